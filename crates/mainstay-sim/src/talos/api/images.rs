//! `machine.ImageService` and `machine.LifecycleService`.

use talos_proto::common::{ContainerDriver, ContainerdInstance, ContainerdNamespace};
use talos_proto::machine;
use tonic::{Request, Status};

use super::{Answer, Api, Stream, hang, stream};

fn check_instance(instance: Option<&ContainerdInstance>) -> Result<(), Status> {
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
        // Without a CRI there is nobody to ask.
        if !self.0.is_up("cri") {
            return hang().await;
        }
        let config = self.0.config();
        let mut images: Vec<String> = self.0.lock().images.iter().cloned().collect();
        images.extend(config.map(|config| config.kubelet_image().to_owned()));
        let digest = |name: &str| format!("sha256:{}", hex::encode(<sha2::Sha256 as sha2::Digest>::digest(name)));
        let list = images.into_iter().map(|name| machine::ImageServiceListResponse {
            digest: digest(&name),
            name,
            size: 30_000_000,
            ..machine::ImageServiceListResponse::default()
        });
        Ok(stream(list.collect()))
    }

    async fn pull(
        &self,
        request: Request<machine::ImageServicePullRequest>,
    ) -> Answer<Stream<machine::ImageServicePullResponse>> {
        let request = request.into_inner();
        check_instance(request.containerd.as_ref())?;
        if !self.0.is_up("cri") {
            return hang().await;
        }
        let name = request.image_ref;
        if self.0.faults().image_not_found || name.contains("/nope") {
            return Err(Status::not_found(format!(
                "error pulling image: 1 error(s) occurred:\n\tfailed to pull image \"{name}\": failed to resolve reference \"{name}\": {name}: not found"
            )));
        }
        self.0.pass(self.0.site.timing.image_pull).await;
        self.0.lock().images.insert(name.clone());
        let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&name));
        let pinned = format!(
            "{}@sha256:{digest}",
            name.rsplit_once(':').map_or(name.as_str(), |(repository, _)| repository)
        );
        let response = machine::image_service_pull_response::Response::Name(pinned);
        Ok(stream(vec![machine::ImageServicePullResponse {
            response: Some(response),
        }]))
    }
}

#[tonic::async_trait]
impl machine::lifecycle_service_server::LifecycleService for Api {
    async fn install(
        &self,
        request: Request<machine::LifecycleServiceInstallRequest>,
    ) -> Answer<Stream<machine::LifecycleServiceInstallResponse>> {
        check_instance(request.into_inner().containerd.as_ref())?;
        Err(Status::already_exists("machine is already installed"))
    }
}
