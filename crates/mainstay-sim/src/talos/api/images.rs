//! `machine.ImageService`.

use talos_proto::common::{ContainerDriver, ContainerdInstance, ContainerdNamespace};
use talos_proto::machine;
use tonic::{Request, Status};

use super::{Answer, Api, Stream, stream};

pub(super) fn check_instance(instance: Option<&ContainerdInstance>) -> Result<(), Status> {
    let namespace = instance.map_or(ContainerdNamespace::NsUnknown, ContainerdInstance::namespace);
    let driver = instance.map_or(ContainerDriver::Containerd, ContainerdInstance::driver);
    match (namespace, driver) {
        (ContainerdNamespace::NsUnknown, _) => Err(Status::invalid_argument("invalid containerd namespace NS_UNKNOWN")),
        (ContainerdNamespace::NsCri, ContainerDriver::Containerd) => {
            Err(Status::invalid_argument("cannot use CRI namespace with containerd driver"))
        }
        _ => Ok(()),
    }
}

#[tonic::async_trait]
impl machine::image_service_server::ImageService for Api {
    async fn list(
        &self,
        request: Request<machine::ImageServiceListRequest>,
    ) -> Answer<Stream<machine::ImageServiceListResponse>> {
        check_instance(request.into_inner().containerd.as_ref())?;
        // Without a CRI there is nobody to ask, yet.
        self.0.until(|node| node.is_up("cri")).await;
        Ok(stream(self.images()))
    }

    async fn pull(
        &self,
        request: Request<machine::ImageServicePullRequest>,
    ) -> Answer<Stream<machine::ImageServicePullResponse>> {
        let request = request.into_inner();
        check_instance(request.containerd.as_ref())?;
        self.0.until(|node| node.is_up("cri")).await;
        let name = request.image_ref;
        if self.0.faults().image_not_found || name.contains("/nope") {
            return Err(Status::not_found(format!(
                "error pulling image: 1 error(s) occurred:\n\tfailed to pull image \"{name}\": failed to resolve reference \"{name}\": {name}: not found"
            )));
        }
        self.0.pass(self.0.site.timing.image_pull).await;
        self.0.lock().images.insert(name.clone());
        Ok(stream(pulled(&name)))
    }
}

fn digest(name: &str) -> String {
    format!("sha256:{}", hex::encode(<sha2::Sha256 as sha2::Digest>::digest(name)))
}

fn pinned(name: &str) -> String {
    let repository = name.rsplit_once(':').map_or(name, |(repository, _)| repository);
    format!("{repository}@{}", digest(name))
}

/// How a pull is told: its layer, in two steps, and the name it got.
fn pulled(name: &str) -> Vec<machine::ImageServicePullResponse> {
    use machine::image_service_pull_layer_progress::Status as Step;
    use machine::image_service_pull_response::Response;
    let layer_id: String = digest(name).chars().skip("sha256:".len()).take(12).collect();
    let step = |status: Step| {
        let progress = machine::ImageServicePullLayerProgress {
            status: status.into(),
            elapsed: Some(prost_types::Duration::default()),
            ..machine::ImageServicePullLayerProgress::default()
        };
        Response::PullProgress(machine::ImageServicePullProgress {
            layer_id: layer_id.clone(),
            progress: Some(progress),
        })
    };
    [
        step(Step::DownloadComplete),
        step(Step::ExtractComplete),
        Response::Name(pinned(name)),
    ]
    .map(|response| machine::ImageServicePullResponse {
        response: Some(response),
    })
    .to_vec()
}

impl Api {
    /// Every image is there three times: by its tag, by its digest, and by the digest alone.
    fn images(&self) -> Vec<machine::ImageServiceListResponse> {
        let images = self.0.lock().images.clone();
        let created = crate::talos::cosi::stamp(self.0.booted_at);
        let named = |name: String, of: &str| machine::ImageServiceListResponse {
            name,
            digest: digest(of),
            size: 30_000_000,
            created_at: Some(created),
            ..machine::ImageServiceListResponse::default()
        };
        let three = |image: &String| [image.clone(), pinned(image), digest(image)].map(|name| named(name, image));
        let mut list: Vec<_> = images.iter().flat_map(three).collect();
        list.sort_by(|one, other| one.name.cmp(&other.name));
        list
    }
}
