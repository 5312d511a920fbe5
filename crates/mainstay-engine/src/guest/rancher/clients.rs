//! The clients of one RKE2 or k3s cluster: its machines, and the publishers of images and releases.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use mainstay_net::http::{Body, HttpClient, HttpOptions};
use mainstay_net::{Connector, Env, Trust};
use mainstay_plan::{PinnedImage, Pins, Versions};
use mainstay_spec::{ArtifactDelivery, ImageSource, RancherSpec, Spec};
use rancher_config::guest::{ArtifactKind, ArtifactOrigin, PinnedArtifact};
use rancher_config::{ArtifactSource, ReleaseVersion, checksum_of, os_image};
use url::Url;

use super::{MachineAccess, RancherAccess};
use crate::failure::{Failure, FailureKind};

/// How long dial and handshake with a publisher may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long one page of a publisher may take.
const PAGE: Duration = Duration::from_secs(60);

pub struct RancherClients {
    access: Option<RancherAccess>,
    web: HttpClient,
    spec: RancherSpec,
    /// Machines that were proved in this run, by name.
    proved: Mutex<BTreeMap<String, MachineAccess>>,
    /// What publishers answered in this run, by release.
    pins: tokio::sync::Mutex<BTreeMap<String, Pins>>,
}

impl RancherClients {
    pub fn new(env: &Env, spec: &RancherSpec, access: Option<RancherAccess>, web_ca: Option<String>) -> Result<Self, Failure> {
        let trust = Trust::Roots { extra_ca_pem: web_ca };
        let connector = Connector::new(env.dialer.clone(), &trust, env.wall, CONNECT)
            .map_err(|error| Failure::new(FailureKind::Failed, "cannot create a client for image publishers").caused_by(error))?;
        Ok(Self {
            access,
            web: HttpClient::new(connector, HttpOptions::default()),
            spec: spec.clone(),
            proved: Mutex::default(),
            pins: tokio::sync::Mutex::default(),
        })
    }

    pub fn access(&self) -> Result<&RancherAccess, Failure> {
        self.access
            .as_ref()
            .ok_or_else(|| Failure::new(FailureKind::Bug, "a step needs the cluster's secrets, and there are none"))
    }

    pub fn remember(&self, machine: MachineAccess) {
        let mut proved = self.proved.lock().expect("nothing panics while it holds the map");
        proved.insert(machine.name.clone(), machine);
    }

    pub fn known(&self, machine: &str) -> Option<MachineAccess> {
        let proved = self.proved.lock().expect("nothing panics while it holds the map");
        proved.get(machine).cloned()
    }

    /// Exact image and artifacts of a release. Publishers are asked once per run.
    pub async fn pins(&self, _spec: &Spec, versions: &Versions) -> Result<Pins, Failure> {
        let mut known = self.pins.lock().await;
        let key = versions.release.to_string();
        if let Some(pins) = known.get(&key) {
            return Ok(pins.clone());
        }
        let release = ReleaseVersion::parse(self.spec.distro, &format!("v{}", versions.release))
            .map_err(|error| Failure::refused(error.to_string()))?;
        let (image, artifact) = tokio::try_join!(self.image(), self.artifact(release))?;
        let pins = Pins {
            image: Some(image),
            artifacts: vec![artifact],
        };
        known.insert(key, pins.clone());
        Ok(pins)
    }

    async fn image(&self) -> Result<PinnedImage, Failure> {
        match &self.spec.image {
            ImageSource::File { url, checksum } => {
                let name = url.path().rsplit('/').next().unwrap_or_default();
                let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
                let short: String = checksum.hex().chars().take(12).collect();
                Ok(PinnedImage {
                    url: url.to_string(),
                    file: format!("{stem}-{short}.qcow2"),
                    checksum: checksum.clone(),
                })
            }
            ImageSource::Known(image) => {
                let image = os_image(image.as_str())
                    .ok_or_else(|| Failure::new(FailureKind::Bug, format!("no publisher of {} is known", image.as_str())))?;
                let listing = self.page(&image.listing_url()).await?;
                let dated = image
                    .newest(&listing)
                    .ok_or_else(|| Failure::new(FailureKind::Failed, format!("{} lists no dated image", image.listing_url())))?;
                let sums = self.page(&dated.checksums_url).await?;
                let checksum = dated.checksum(&sums).map_err(|error| {
                    Failure::new(
                        FailureKind::Failed,
                        format!("{} has no checksum of the image", dated.checksums_url),
                    )
                    .caused_by(error)
                })?;
                Ok(PinnedImage {
                    url: dated.url.to_string(),
                    file: dated.storage_file,
                    checksum,
                })
            }
        }
    }

    async fn artifact(&self, release: ReleaseVersion) -> Result<PinnedArtifact, Failure> {
        let source = match &self.spec.mirror {
            Some(base) => ArtifactSource::mirror(base).map_err(|error| Failure::refused(error.to_string()))?,
            None => ArtifactSource::github(self.spec.distro),
        };
        let (program, sums) = (source.program(release), source.checksums(release));
        let text = self.page(&sums.url).await?;
        let sha256 = checksum_of(&text, &program.file).map_err(|error| {
            Failure::new(
                FailureKind::Failed,
                format!("{} has no checksum of {}", sums.url, program.file),
            )
            .caused_by(error)
        })?;
        Ok(PinnedArtifact {
            kind: ArtifactKind::Program,
            file: program.file,
            sha256,
            origin: match self.spec.artifact {
                ArtifactDelivery::Fetch => ArtifactOrigin::Download(program.url),
                ArtifactDelivery::Push => ArtifactOrigin::Pushed,
            },
        })
    }

    /// A page of a publisher, redirections followed.
    async fn page(&self, url: &Url) -> Result<String, Failure> {
        let mut url = url.clone();
        for _ in 0..5 {
            let unreachable = |why: String| Failure::new(FailureKind::Unreachable, format!("{url} cannot be read")).why(why);
            let request = http::Request::get(url.as_str())
                .body(Body::empty())
                .map_err(|error| unreachable(error.to_string()))?;
            let answer = self
                .web
                .send(request, PAGE)
                .await
                .map_err(|error| unreachable(error.to_string()))?;
            if answer.status.is_redirection() {
                let target = answer
                    .headers
                    .get(http::header::LOCATION)
                    .and_then(|value| value.to_str().ok());
                let target = target.and_then(|text| url.join(text).ok());
                url = target.ok_or_else(|| unreachable("it redirects to no address".to_owned()))?;
                continue;
            }
            if !answer.status.is_success() {
                return Err(unreachable(format!("it answers {}", answer.status)));
            }
            return Ok(String::from_utf8_lossy(&answer.body).into_owned());
        }
        Err(Failure::new(FailureKind::Unreachable, format!("{url} redirects too often")))
    }

    pub async fn check_image_source(&self) -> Result<String, Failure> {
        let image = self.image().await?;
        Ok(format!("answers, newest image {}", image.file))
    }
}
