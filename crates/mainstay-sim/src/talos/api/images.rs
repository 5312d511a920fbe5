//! Container images: `machine.ImageService`, and the two calls of `machine.MachineService` before it.

use std::time::Duration;

use futures::StreamExt;
use talos_proto::common::{ContainerDriver, ContainerdInstance, ContainerdNamespace};
use talos_proto::machine;
use talos_proto::machine::image_service_pull_layer_progress::Status as Step;
use talos_proto::machine::image_service_pull_response::Response;
use tonic::{Request, Status};

use super::{Answer, Api, Stream, stream};
use crate::talos::disk::ImageStore;
use crate::talos::node::Node;

/// Pulls that take at least this long tell of a layer while it comes.
const TOLD_AFTER: Duration = Duration::from_secs(5);

pub(super) fn check_instance(instance: Option<&ContainerdInstance>) -> Result<ImageStore, Status> {
    let namespace = instance.map_or(ContainerdNamespace::NsUnknown, ContainerdInstance::namespace);
    let driver = instance.map_or(ContainerDriver::Containerd, ContainerdInstance::driver);
    match (namespace, driver) {
        (ContainerdNamespace::NsUnknown, _) => Err(Status::invalid_argument("invalid containerd namespace NS_UNKNOWN")),
        (ContainerdNamespace::NsCri, ContainerDriver::Containerd) => {
            Err(Status::invalid_argument("cannot use CRI namespace with containerd driver"))
        }
        (ContainerdNamespace::NsCri, ContainerDriver::Cri) => Ok(ImageStore::Pods),
        (ContainerdNamespace::NsSystem, ContainerDriver::Cri) => Ok(ImageStore::System),
        (ContainerdNamespace::NsSystem, ContainerDriver::Containerd) => Ok(ImageStore::Memory),
    }
}

/// The namespace of the calls before 1.13, which know no driver.
fn store_of(namespace: ContainerdNamespace) -> Result<ImageStore, Status> {
    match namespace {
        ContainerdNamespace::NsUnknown => Err(Status::invalid_argument("invalid containerd namespace NS_UNKNOWN")),
        ContainerdNamespace::NsSystem => Ok(ImageStore::System),
        ContainerdNamespace::NsCri => Ok(ImageStore::Pods),
    }
}

impl Node {
    /// Whether a registry has the image.
    pub(crate) fn is_published(&self, name: &str) -> bool {
        let faults = self.faults();
        !faults.image_not_found && !faults.missing_images.contains(name) && !name.contains("/nope")
    }

    /// What it takes to get an image from its registry.
    pub(crate) fn pull_time(&self, name: &str) -> Duration {
        let timing = &self.site.timing;
        let once = if name.contains("installer") {
            timing.installer_pull
        } else {
            timing.image_pull
        };
        once * self.faults().slow_images.unwrap_or(1)
    }
}

fn not_found(name: &str) -> Status {
    Status::not_found(format!(
        "error pulling image: 1 error(s) occurred:\n\tfailed to pull image \"{name}\": failed to resolve reference \"{name}\": {name}: not found"
    ))
}

#[tonic::async_trait]
impl machine::image_service_server::ImageService for Api {
    async fn list(
        &self,
        request: Request<machine::ImageServiceListRequest>,
    ) -> Answer<Stream<machine::ImageServiceListResponse>> {
        let store = check_instance(request.into_inner().containerd.as_ref())?;
        self.until_usable(store).await;
        Ok(stream(self.images(store)))
    }

    /// The layer is told while it comes. A caller that hangs up ends the pull.
    async fn pull(
        &self,
        request: Request<machine::ImageServicePullRequest>,
    ) -> Answer<Stream<machine::ImageServicePullResponse>> {
        let request = request.into_inner();
        let store = check_instance(request.containerd.as_ref())?;
        self.until_usable(store).await;
        let (name, node) = (request.image_ref, self.0.clone());
        if !node.is_published(&name) {
            return Err(not_found(&name));
        }
        if node.has_image(store, &name) {
            return Ok(stream(vec![layer(&name, Step::AlreadyExists), named(&name)]));
        }
        // A layer that comes quickly is told of only when it is there.
        let slow = node.pull_time(&name) >= TOLD_AFTER;
        let begins = futures::stream::iter(slow.then(|| Ok(layer(&name, Step::Downloading))));
        let ends = futures::stream::once(async move {
            node.pass(node.pull_time(&name)).await;
            node.add_image(store, &name);
            futures::stream::iter([
                Ok(layer(&name, Step::DownloadComplete)),
                Ok(layer(&name, Step::ExtractComplete)),
                Ok(named(&name)),
            ])
        });
        Ok(tonic::Response::new(Box::pin(begins.chain(ends.flatten()))))
    }
}

fn digest(name: &str) -> String {
    format!("sha256:{}", hex::encode(<sha2::Sha256 as sha2::Digest>::digest(name)))
}

fn pinned(name: &str) -> String {
    let repository = name.rsplit_once(':').map_or(name, |(repository, _)| repository);
    format!("{repository}@{}", digest(name))
}

fn layer(name: &str, status: Step) -> machine::ImageServicePullResponse {
    let progress = machine::ImageServicePullLayerProgress {
        status: status.into(),
        elapsed: Some(prost_types::Duration::default()),
        ..machine::ImageServicePullLayerProgress::default()
    };
    let progress = machine::ImageServicePullProgress {
        layer_id: digest(name).chars().skip("sha256:".len()).take(12).collect(),
        progress: Some(progress),
    };
    machine::ImageServicePullResponse {
        response: Some(Response::PullProgress(progress)),
    }
}

fn named(name: &str) -> machine::ImageServicePullResponse {
    machine::ImageServicePullResponse {
        response: Some(Response::Name(pinned(name))),
    }
}

impl Api {
    /// Images on the disk are kept by the CRI, which may not run yet.
    async fn until_usable(&self, store: ImageStore) {
        if store != ImageStore::Memory {
            self.0.until(|node| node.is_up("cri")).await;
        }
    }

    /// Every image is there three times: by its tag, by its digest, and by the digest alone.
    fn images(&self, store: ImageStore) -> Vec<machine::ImageServiceListResponse> {
        let created = crate::talos::cosi::stamp(self.0.booted_at);
        let named = |name: String, of: &str| machine::ImageServiceListResponse {
            name,
            digest: digest(of),
            size: 30_000_000,
            created_at: Some(created),
            ..machine::ImageServiceListResponse::default()
        };
        let three = |image: &String| [image.clone(), pinned(image), digest(image)].map(|name| named(name, image));
        let mut list: Vec<_> = self.0.images(store).iter().flat_map(three).collect();
        list.sort_by(|one, other| one.name.cmp(&other.name));
        list
    }

    pub(super) async fn image_list_before_1_13(
        &self,
        request: machine::ImageListRequest,
    ) -> Answer<Stream<machine::ImageListResponse>> {
        let store = store_of(request.namespace())?;
        self.until_usable(store).await;
        let listed = self.images(store).into_iter().map(|image| machine::ImageListResponse {
            metadata: None,
            name: image.name,
            digest: image.digest,
            size: image.size,
            created_at: image.created_at,
        });
        Ok(stream(listed.collect()))
    }

    /// One answer, when the image is there.
    pub(super) async fn image_pull_before_1_13(&self, request: machine::ImagePullRequest) -> Answer<machine::ImagePullResponse> {
        let store = store_of(request.namespace())?;
        self.until_usable(store).await;
        let name = request.reference;
        if !self.0.is_published(&name) {
            return Err(not_found(&name));
        }
        if !self.0.has_image(store, &name) {
            self.0.pass(self.0.pull_time(&name)).await;
            self.0.add_image(store, &name);
        }
        Ok(tonic::Response::new(machine::ImagePullResponse {
            messages: vec![machine::ImagePull { metadata: None }],
        }))
    }
}
