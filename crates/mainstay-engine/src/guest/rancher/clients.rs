//! The clients of one RKE2 or k3s cluster: its machines, and the publishers of images and releases.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use helm_charts::{ImagePin, LockFile, Sha256Digest};
use mainstay_net::http::{Body, HttpClient, HttpOptions};
use mainstay_net::{Connector, Env, Trust};
use mainstay_plan::{PinnedImage, Pins, Seen, Versions};
use mainstay_spec::{ArtifactDelivery, ImageSource, RancherSpec};
use rancher_config::guest::{ArtifactKind, ArtifactOrigin, PinnedArtifact};
use rancher_config::{ArtifactSource, Checksum, OsImage, ReleaseVersion, checksum_of, os_image};
use url::Url;

use super::{MachineAccess, RancherAccess};
use crate::failure::{Failure, FailureKind};
use crate::guest::KnownFiles;
use crate::lock_file::LockStore;

/// How long dial and handshake with a publisher may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long one page of a publisher may take.
const PAGE: Duration = Duration::from_secs(60);

pub struct RancherClients {
    access: Option<RancherAccess>,
    web: HttpClient,
    /// For a mirror without TLS: what it serves is checked by digest.
    plain_web: HttpClient,
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
        let plain = Connector::new(env.dialer.clone(), &Trust::Plain, env.wall, CONNECT)
            .map_err(|error| Failure::new(FailureKind::Failed, "cannot create a client for mirrors").caused_by(error))?;
        Ok(Self {
            access,
            web: HttpClient::new(connector, HttpOptions::default()),
            plain_web: HttpClient::new(plain, HttpOptions::default()),
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

    /// Exact image and artifacts of a release. A publisher is asked once per run, and only for what is not pinned.
    pub async fn pins(&self, versions: &Versions, known: KnownFiles<'_>) -> Result<Pins, Failure> {
        let mut asked = self.pins.lock().await;
        let key = versions.release.to_string();
        if let Some(pins) = asked.get(&key) {
            return Ok(pins.clone());
        }
        let release = ReleaseVersion::parse(self.spec.distro, &format!("v{}", versions.release))
            .map_err(|error| Failure::refused(error.to_string()))?;
        let lock = known.lock.map(LockStore::read).transpose()?.unwrap_or_default();
        let (image, artifact) = tokio::try_join!(self.image(&lock, known), self.artifact(&lock, release))?;
        let pins = Pins {
            image: Some(image),
            artifacts: vec![artifact],
        };
        asked.insert(key, pins.clone());
        Ok(pins)
    }

    /// Writes what was found out in this run into the lock file. Returns what was added.
    pub fn keep_pins(&self, lock: &LockStore) -> Result<Option<String>, Failure> {
        let Ok(asked) = self.pins.try_lock() else { return Ok(None) };
        let mut added = Vec::new();
        lock.change(|lock| {
            for (release, pins) in &*asked {
                if let (ImageSource::Known(image), Some(pinned)) = (&self.spec.image, &pins.image)
                    && !lock.images.contains_key(image.as_str())
                {
                    added.push(pinned.file.clone());
                    let pin = ImagePin {
                        url: pinned.url.clone(),
                        checksum: pinned.checksum.to_string(),
                    };
                    lock.images.insert(image.as_str().to_owned(), pin);
                }
                let files = &mut lock.artifacts.entry(format!("v{release}")).or_default().files;
                for artifact in &pins.artifacts {
                    let Ok(digest) = artifact.sha256.to_string().parse::<Sha256Digest>() else {
                        continue;
                    };
                    if files.insert(artifact.file.clone(), digest).is_none() {
                        added.push(format!("v{release}"));
                    }
                }
            }
        })?;
        Ok((!added.is_empty()).then(|| format!("pinned in {}: {}", lock.path().display(), added.join(", "))))
    }

    async fn image(&self, lock: &LockFile, known: KnownFiles<'_>) -> Result<PinnedImage, Failure> {
        let image = match &self.spec.image {
            ImageSource::File { url, checksum } => return Ok(given_image(url, checksum)),
            ImageSource::Known(image) => os_image(image.as_str())
                .ok_or_else(|| Failure::new(FailureKind::Bug, format!("no publisher of {} is known", image.as_str())))?,
        };
        if let Some(pin) = lock.images.get(image.name) {
            return pinned_image(image, pin);
        }
        let stored = known.observed.images.values().filter_map(Seen::yes).flatten();
        let serials = stored.filter_map(|stored| image.serial_of_storage_file(&stored.file));
        let dated = match serials.max().filter(|_| known.exists) {
            Some(serial) => image.dated(serial),
            None => {
                let listing = self.page(&image.listing_url()).await?;
                image
                    .newest(&listing)
                    .ok_or_else(|| Failure::new(FailureKind::Failed, format!("{} lists no dated image", image.listing_url())))?
            }
        };
        let sums = self.page(&dated.checksums_url).await?;
        let checksum = dated.checksum(&sums).map_err(|error| {
            let what = format!("{} has no checksum of the image", dated.checksums_url);
            Failure::new(FailureKind::Failed, what).caused_by(error)
        })?;
        Ok(PinnedImage {
            url: dated.url.to_string(),
            file: dated.storage_file,
            checksum,
        })
    }

    async fn artifact(&self, lock: &LockFile, release: ReleaseVersion) -> Result<PinnedArtifact, Failure> {
        let source = match &self.spec.mirror {
            Some(base) => ArtifactSource::mirror(base).map_err(|error| Failure::refused(error.to_string()))?,
            None => ArtifactSource::github(self.spec.distro),
        };
        let program = source.program(release);
        let pinned = lock
            .artifacts
            .get(&release.to_string())
            .and_then(|pin| pin.files.get(&program.file));
        let sha256 = match pinned {
            Some(digest) => Checksum::parse(&digest.hex()).map_err(|error| Failure::new(FailureKind::Bug, error.to_string()))?,
            None => self.published_checksum(&source.checksums(release).url, &program.file).await?,
        };
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

    async fn published_checksum(&self, sums: &Url, file: &str) -> Result<Checksum, Failure> {
        let text = self.page(sums).await?;
        checksum_of(&text, file).map_err(|error| {
            let what = format!("{sums} has no checksum of {file}");
            Failure::new(FailureKind::Failed, what).caused_by(error)
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
            let web = if url.scheme() == "http" { &self.plain_web } else { &self.web };
            let answer = web
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

    /// Asks the publisher also for what is pinned: whether it answers is the question.
    pub async fn check_image_source(&self) -> Result<String, Failure> {
        let ImageSource::Known(image) = &self.spec.image else {
            return Ok("the file names the image and its checksum".to_owned());
        };
        let image = os_image(image.as_str())
            .ok_or_else(|| Failure::new(FailureKind::Bug, format!("no publisher of {} is known", image.as_str())))?;
        let listing = self.page(&image.listing_url()).await?;
        let newest = image.newest(&listing).map_or("none".to_owned(), |dated| dated.storage_file);
        Ok(format!("answers, newest image {newest}"))
    }
}

/// An image that the file names with its checksum, under a name that changes with it.
fn given_image(url: &Url, checksum: &Checksum) -> PinnedImage {
    let name = url.path().rsplit('/').next().unwrap_or_default();
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let short: String = checksum.hex().chars().take(12).collect();
    PinnedImage {
        url: url.to_string(),
        file: format!("{stem}-{short}.qcow2"),
        checksum: checksum.clone(),
    }
}

/// The dated directory of the address gives the name on a storage.
fn pinned_image(image: &OsImage, pin: &ImagePin) -> Result<PinnedImage, Failure> {
    let unusable = |why: &str| {
        let what = format!("the image {} in the lock file cannot be used", image.name);
        Failure::refused(what)
            .why(why)
            .help("take its entry out of the lock file to pin the newest one")
    };
    let url: Url = pin.url.parse().map_err(|_| unusable("its address is no URL"))?;
    let serial = url.path_segments().and_then(|mut parts| parts.nth_back(1));
    let dated = serial.map(|serial| image.dated(serial)).filter(|dated| dated.url == url);
    let dated = dated.ok_or_else(|| unusable("its address is not one that its publisher dates"))?;
    let (_, hex) = pin.checksum.split_once(':').unwrap_or(("", &pin.checksum));
    let checksum = Checksum::parse(hex).map_err(|error| unusable(&error.to_string()))?;
    Ok(PinnedImage {
        url: pin.url.clone(),
        file: dated.storage_file,
        checksum,
    })
}
