//! Container images on a machine.

use std::time::Duration;

use talos_proto::common::{ContainerDriver, ContainerdInstance, ContainerdNamespace};
use talos_proto::machine::image_service_pull_layer_progress::Status as LayerStatus;
use talos_proto::machine::image_service_pull_response::Response;
use talos_proto::machine::{
    ImageListRequest, ImagePullRequest, ImageServiceListRequest, ImageServicePullProgress, ImageServicePullRequest,
};

use crate::error::Error;
use crate::limits::{PULL, READ};
use crate::node::Node;
use crate::release::Release;

/// Which of a machine's image stores is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageStore {
    /// Installers, the kubelet, etcd.
    System,
    /// Pods, static ones included.
    Pods,
}

impl ImageStore {
    fn namespace(self) -> ContainerdNamespace {
        match self {
            Self::System => ContainerdNamespace::NsSystem,
            Self::Pods => ContainerdNamespace::NsCri,
        }
    }

    pub(crate) fn instance(self) -> ContainerdInstance {
        ContainerdInstance {
            driver: ContainerDriver::Cri.into(),
            namespace: self.namespace().into(),
        }
    }
}

/// An image that a machine has. The same image is listed by its tag, by its digest and by both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredImage {
    pub name: String,
    pub digest: String,
    pub size: u64,
}

/// How far one layer of an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerProgress {
    pub layer: String,
    /// Downloaded and unpacked, or there before.
    pub done: bool,
    /// Bytes; zero where the machine does not know.
    pub offset: u64,
    pub total: u64,
    pub elapsed: Duration,
}

impl From<ImageServicePullProgress> for LayerProgress {
    fn from(told: ImageServicePullProgress) -> Self {
        let progress = told.progress.unwrap_or_default();
        let done = matches!(progress.status(), LayerStatus::ExtractComplete | LayerStatus::AlreadyExists);
        Self {
            layer: told.layer_id,
            done,
            offset: u64::try_from(progress.offset).unwrap_or(0),
            total: u64::try_from(progress.total).unwrap_or(0),
            elapsed: progress
                .elapsed
                .and_then(|elapsed| elapsed.try_into().ok())
                .unwrap_or_default(),
        }
    }
}

/// `release` is what the machine runs: it decides which of two services is asked.
impl Node {
    /// Every image in a store.
    pub async fn images(&self, release: &Release, store: ImageStore) -> Result<Vec<StoredImage>, Error> {
        if release.has_lifecycle() {
            return self.images_of_service(store).await;
        }
        let pending = self.link.call("ImageList", READ);
        let request = ImageListRequest {
            namespace: store.namespace().into(),
        };
        let stream = pending
            .answer(self.link.machine().image_list(pending.request(request)))
            .await?;
        let listed = pending.collect(stream).await?.into_iter();
        Ok(listed.map(|image| stored(image.name, image.digest, image.size)).collect())
    }

    async fn images_of_service(&self, store: ImageStore) -> Result<Vec<StoredImage>, Error> {
        let pending = self.link.call("ImageService.List", READ);
        let request = ImageServiceListRequest {
            containerd: Some(store.instance()),
        };
        let stream = pending.answer(self.link.images().list(pending.request(request))).await?;
        let listed = pending.collect(stream).await?.into_iter();
        Ok(listed.map(|image| stored(image.name, image.digest, image.size)).collect())
    }

    /// Pulls an image, which disturbs nothing that runs. Pulling one that is there is cheap.
    ///
    /// An image that its registry does not have is refused with [`crate::Class::NotFound`]. `heard` is told how far each layer is;
    /// releases before 1.13 tell nothing.
    pub async fn pull_image(
        &self,
        release: &Release,
        store: ImageStore,
        reference: &str,
        mut heard: impl FnMut(LayerProgress),
    ) -> Result<(), Error> {
        if !release.has_lifecycle() {
            return self.pull_image_before_1_13(store, reference).await;
        }
        let pending = self.link.call("ImageService.Pull", PULL);
        let request = ImageServicePullRequest {
            containerd: Some(store.instance()),
            image_ref: reference.to_owned(),
        };
        let mut stream = pending.answer(self.link.images().pull(pending.request(request))).await?;
        let mut name = None;
        while let Some(told) = pending.within(stream.message()).await? {
            match told.response {
                Some(Response::Name(pinned)) => name = Some(pinned),
                Some(Response::PullProgress(progress)) => heard(progress.into()),
                None => {}
            }
        }
        // The name is the last message: a stream without it was cut off.
        name.map(drop)
            .ok_or_else(|| pending.misread("a pull that ended without the name of its image"))
    }

    async fn pull_image_before_1_13(&self, store: ImageStore, reference: &str) -> Result<(), Error> {
        let pending = self.link.call("ImagePull", PULL);
        let request = ImagePullRequest {
            namespace: store.namespace().into(),
            reference: reference.to_owned(),
        };
        pending
            .answer(self.link.machine().image_pull(pending.request(request)))
            .await
            .map(drop)
    }
}

fn stored(name: String, digest: String, size: i64) -> StoredImage {
    StoredImage {
        name,
        digest,
        size: u64::try_from(size).unwrap_or(0),
    }
}
