//! Charts: which archive an add-on needs, by lock file, cache and registry; and the archive itself.
//!
//! Asking changes nothing. Only the step that fetches a chart writes, the cache first and then the lock file, so that a pinned chart is at
//! hand afterwards.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use helm_charts::lock::Pin;
use helm_charts::pull::Pinned;
use helm_charts::{ChartClient, ChartPin, ChartRequest, ChartSource, LockFile, Mirrors, PullError, PulledChart, Sha256Digest};
use mainstay_net::{Env, Trust};
use mainstay_plan::Seen;
use mainstay_plan::addon::run::ChartRef;
use mainstay_plan::addon::seen::ChartFact;
use mainstay_plan::addon::wanted::ChartWish;

use crate::failure::{Failure, FailureKind};
use crate::files::{FileStore, MemoryFiles};

/// Where charts and their pins are kept.
pub struct ChartStore {
    env: Env,
    /// A further authority to believe.
    web_ca: Option<String>,
    files: Arc<dyn FileStore>,
    cache: PathBuf,
    lock: PathBuf,
    /// What this run pulled, by the digest of the archive.
    pulled: Mutex<BTreeMap<String, Arc<PulledChart>>>,
    /// Two steps must not write the lock file at once.
    writing: tokio::sync::Mutex<()>,
}

impl ChartStore {
    /// A store that forgets everything with the run.
    pub fn in_memory(env: &Env, web_ca: Option<String>) -> Self {
        Self {
            env: env.clone(),
            web_ca,
            files: Arc::new(MemoryFiles::default()),
            cache: PathBuf::from("charts"),
            lock: PathBuf::from("cluster.lock.yaml"),
            pulled: Mutex::default(),
            writing: tokio::sync::Mutex::default(),
        }
    }

    /// The same with a folder for archives, and the lock file beside the cluster's file.
    pub fn kept_in(self, files: Arc<dyn FileStore>, cache: PathBuf, lock: PathBuf) -> Self {
        Self {
            files,
            cache,
            lock,
            ..self
        }
    }

    /// Next to `cluster.yaml` lies `cluster.lock.yaml`.
    pub fn lock_beside(cluster_file: &Path) -> PathBuf {
        let stem = cluster_file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        cluster_file.with_file_name(format!("{stem}.lock.yaml"))
    }

    /// The lock file as it is now. One that cannot be read ends the run: its pins would be lost.
    pub fn read_lock(&self) -> Result<LockFile, Failure> {
        let refused = |what: String| {
            Failure::refused(format!("{} cannot be used", self.lock.display()))
                .why(what)
                .help("mend the file, or delete it: it is made anew from what is installed")
        };
        let content = self.files.read(&self.lock).map_err(|error| refused(error.to_string()))?;
        let text = String::from_utf8(content.unwrap_or_default()).map_err(|_| refused("it is not text".to_owned()))?;
        LockFile::parse(&text).map_err(|error| refused(error.to_string()))
    }

    /// What the chart of an add-on is: as pinned, else as its registry has it now. `installed`: the version in the cluster.
    pub async fn fact(&self, wish: &ChartWish, installed: Option<&str>) -> Result<Seen<ChartFact>, Failure> {
        let lock = self.read_lock()?;
        let source = wish.source.text();
        let pinned = lock.charts.get(&wish.name).filter(|pin| pin.source == source);
        let picked = wish.pick(pinned.map(|pin| pin.version.as_str()), installed);
        let version = match picked {
            Some(version) => version,
            None if wish.known.is_empty() => match self.newest(&source, wish).await {
                Ok(version) => version,
                Err(why) => return Ok(Seen::Unknown(why)),
            },
            None => {
                let why = format!("no version {} of it is known; name an exact version", wish.version);
                return Ok(Seen::Unknown(why));
            }
        };
        let fact = |archive: String, is_pinned: bool| ChartFact {
            size: self.at_hand(&archive).map(|bytes| bytes.len()),
            is_cached: self.is_cached(&archive),
            chart: wish.source.chart().to_owned(),
            source: source.clone(),
            version: version.clone(),
            archive,
            is_pinned,
        };
        if let Pin::Exact(pin) = lock.chart(&wish.name, &source, &version) {
            return Ok(Seen::Yes(fact(pin.archive.hex(), true)));
        }
        match self.pull(&source, &version, Pinned::default()).await {
            Ok(chart) => Ok(Seen::Yes(fact(chart.archive.sha256.hex(), false))),
            Err(error) => Ok(Seen::Unknown(text(&error))),
        }
    }

    /// Makes a chart available and pins it.
    pub async fn fetch(&self, chart: &ChartRef) -> Result<(), Failure> {
        let lock = self.read_lock()?;
        let pinned = match lock.chart(&chart.release, &chart.source, &chart.version) {
            Pin::Exact(pin) => pin.manifest,
            Pin::Stale | Pin::Absent => None,
        };
        let expected = Pinned {
            manifest: pinned,
            archive: chart.archive.parse().ok(),
        };
        let known = self.pulled.lock().expect("plain data").get(&chart.archive).cloned();
        let (bytes, manifest) = match (known, self.cached(&chart.archive)) {
            (Some(known), _) => (known.bytes.clone(), known.manifest),
            (None, Some(bytes)) => (bytes, pinned),
            (None, None) => {
                let pulled = self.pull(&chart.source, &chart.version, expected).await.map_err(failure)?;
                (pulled.bytes.clone(), pulled.manifest)
            }
        };
        if Sha256Digest::of(&bytes).hex() != chart.archive {
            return Err(Failure::conflict(format!(
                "the chart {} {} is not the one that the plan was made for",
                chart.chart, chart.version
            )));
        }
        self.write(&self.archive_path(&chart.archive), &bytes)?;
        self.pin(chart, manifest, Sha256Digest::of(&bytes)).await
    }

    async fn pin(&self, chart: &ChartRef, manifest: Option<Sha256Digest>, archive: Sha256Digest) -> Result<(), Failure> {
        let _turn = self.writing.lock().await;
        let mut lock = self.read_lock()?;
        let before = lock.clone();
        let pin = ChartPin {
            source: chart.source.clone(),
            version: chart.version.clone(),
            manifest,
            archive,
        };
        lock.pin_chart(&chart.release, pin)
            .map_err(|error| Failure::conflict(error.to_string()))?;
        if lock == before {
            return Ok(());
        }
        self.write(&self.lock, lock.to_yaml().as_bytes())
    }

    /// The archive of a digest, for a step that needs it.
    pub fn archive(&self, digest: &str) -> Result<Bytes, Failure> {
        self.at_hand(digest)
            .ok_or_else(|| Failure::stale_plan("the chart is not in the cache any more"))
    }

    fn at_hand(&self, digest: &str) -> Option<Bytes> {
        let pulled = self
            .pulled
            .lock()
            .expect("plain data")
            .get(digest)
            .map(|chart| chart.bytes.clone());
        pulled.or_else(|| self.cached(digest))
    }

    fn is_cached(&self, digest: &str) -> bool {
        self.cached(digest).is_some()
    }

    /// Verified at every read: whatever may have written into the folder.
    fn cached(&self, digest: &str) -> Option<Bytes> {
        let content = self.files.read(&self.archive_path(digest)).ok().flatten()?;
        (Sha256Digest::of(&content).hex() == digest).then(|| content.into())
    }

    fn archive_path(&self, digest: &str) -> PathBuf {
        self.cache.join(format!("{digest}.tgz"))
    }

    fn write(&self, path: &Path, content: &[u8]) -> Result<(), Failure> {
        self.files.write(path, content).map_err(|error| {
            Failure::new(FailureKind::Failed, format!("{} cannot be written", path.display())).why(error.to_string())
        })
    }

    /// The newest published version that the file admits, where nothing pins one.
    async fn newest(&self, source: &str, wish: &ChartWish) -> Result<String, String> {
        let (client, source) = self.client(source).map_err(|error| text(&error))?;
        let versions = client.versions(&source).await.map_err(|error| text(&error))?;
        let found = versions.iter().find(|version| wish.version.admits(version));
        found
            .map(ToString::to_string)
            .ok_or_else(|| format!("no version {} of it is published", wish.version))
    }

    fn client(&self, source: &str) -> Result<(ChartClient, ChartSource), PullError> {
        let (address, chart) = source
            .split_once(' ')
            .map_or((source, None), |(url, chart)| (url, Some(chart)));
        let source = ChartSource::parse(address, chart).map_err(|error| PullError::Misread {
            host: address.to_owned(),
            what: error.to_string(),
        })?;
        let trust = Trust::Roots {
            extra_ca_pem: self.web_ca.clone(),
        };
        Ok((ChartClient::new(&self.env, &trust, Mirrors::default())?, source))
    }

    async fn pull(&self, source: &str, version: &str, pinned: Pinned) -> Result<Arc<PulledChart>, PullError> {
        let (client, source) = self.client(source)?;
        let request = ChartRequest {
            source,
            version: version.to_owned(),
        };
        let pulled = Arc::new(client.pull(&request, pinned).await?);
        let digest = pulled.archive.sha256.hex();
        self.pulled.lock().expect("plain data").insert(digest, pulled.clone());
        Ok(pulled)
    }
}

impl std::fmt::Debug for ChartStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChartStore").field("lock", &self.lock).finish_non_exhaustive()
    }
}

/// The whole story in one line.
fn text(error: &PullError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

fn failure(error: PullError) -> Failure {
    let kind = match &error {
        PullError::Digest { .. } => FailureKind::Conflict,
        PullError::Denied { .. } => FailureKind::Denied,
        error if error.is_transient() => FailureKind::Unreachable,
        _ => FailureKind::Failed,
    };
    let failure = Failure::new(kind, "a chart cannot be fetched").why(text(&error));
    if kind == FailureKind::Conflict {
        failure.help("the published chart was replaced; if that is right, remove its entry from the lock file")
    } else {
        failure
    }
}
