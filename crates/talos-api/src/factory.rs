//! The Image Factory: makes Talos images to order.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Collected};
use mainstay_net::http::{Body, HttpClient, HttpError, HttpOptions, HttpResponse, RequestOutcome};
use mainstay_net::{Connector, Env, Trust, TrustError};
use semver::Version;
use serde::Deserialize;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use url::Url;

const CONNECT: Duration = Duration::from_secs(10);

/// Everything but images.
const ANSWER: Duration = Duration::from_secs(30);

/// One attempt at an image. The factory builds it while we wait; load balancers in between cut longer waits.
const BUILD_ATTEMPT: Duration = Duration::from_secs(300);

/// How often waiting is reported.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// The pause before asking again after the factory, or the way to it, failed.
const PAUSE: Duration = Duration::from_secs(5);

const REDIRECTS_MAX: usize = 5;

/// The longest text that is quoted from a refusal.
const REFUSAL_MAX: usize = 400;

/// A factory: the public one, or one's own.
#[derive(Clone)]
pub struct Factory {
    base: Url,
    http: HttpClient,
}

/// A system extension that a release offers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct OfficialExtension {
    /// `siderolabs/qemu-guest-agent`.
    pub name: String,
    #[serde(default)]
    pub r#ref: String,
    #[serde(default)]
    pub digest: String,
}

/// Which image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub schematic: String,
    pub version: Version,
    /// `nocloud-amd64.qcow2`.
    pub file: String,
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of Talos {}", self.file, self.version)
    }
}

/// An image that is built and can be downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asset {
    /// Where to download it: the factory's own address, which may send on to another.
    pub url: Url,
    pub size: u64,
}

/// What the factory did not give.
#[derive(Debug, thiserror::Error)]
pub enum FactoryError {
    #[error("the trust settings for {factory} cannot be used")]
    Trust { factory: String, source: Box<TrustError> },
    #[error("the image factory {factory} cannot be reached")]
    Unreachable { factory: String, source: Box<HttpError> },
    /// Reached, but out of order.
    #[error("the image factory {factory} is out of order: {status} {text}")]
    Outage {
        factory: String,
        status: StatusCode,
        text: String,
    },
    #[error("the image factory {factory} has no Talos {version}")]
    UnknownVersion { factory: String, version: Version },
    #[error("Talos {version} has no extension `{extension}`")]
    UnknownExtension { version: Version, extension: String },
    #[error("the image factory {factory} refuses the schematic: {text}")]
    BadSchematic { factory: String, text: String },
    /// The factory names what we sent differently than we do: one of us reads it wrongly, and its images are not what we ordered.
    #[error("the image factory {factory} calls the schematic {seen}, not {expected}")]
    WrongId {
        factory: String,
        expected: String,
        seen: String,
    },
    #[error("the schematic {schematic} is not registered at {factory}")]
    UnknownSchematic { factory: String, schematic: String },
    /// A feature that only paying customers of a factory have.
    #[error("the image factory {factory} asks for a subscription: {text}")]
    Subscription { factory: String, text: String },
    #[error("{image} was not built within {patience:?}")]
    NotBuilt {
        image: Image,
        patience: Duration,
        #[source]
        last: Option<Box<FactoryError>>,
    },
    #[error("the image factory {factory} answered something unexpected: {what}")]
    Misread { factory: String, what: String },
}

impl FactoryError {
    /// Whether asking again later can help.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Outage { .. } | Self::NotBuilt { .. })
    }

    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Unreachable { source, .. } => return source.remedy(),
            Self::Outage { factory, .. } => format!("try again later, or name another factory than {factory} in `talos.factory`"),
            Self::UnknownVersion { factory, .. } => format!("choose a version that {factory}/versions lists"),
            Self::UnknownExtension { version, .. } => {
                format!("choose extensions of https://factory.talos.dev/version/v{version}/extensions/official")
            }
            Self::NotBuilt { .. } => "run it again: the factory goes on building, and keeps what it has built".into(),
            _ => return None,
        })
    }
}

impl Factory {
    pub const PUBLIC: &'static str = "https://factory.talos.dev";

    /// Create it inside the runtime that uses it.
    pub fn new(env: &Env, base: &Url, trust: &Trust) -> Result<Self, FactoryError> {
        let mut base = base.clone();
        // Without it, the last part of a path of one's own would be replaced instead of continued.
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let connector = Connector::new(env.dialer.clone(), trust, env.wall, CONNECT);
        let connector = connector.map_err(|source| FactoryError::Trust {
            factory: base.to_string(),
            source: source.into(),
        })?;
        Ok(Self {
            base,
            http: HttpClient::new(connector, HttpOptions::default()),
        })
    }

    /// The schematic's registration, which every image of it needs once. `expected` is its id, computed here.
    pub async fn register(&self, schematic_yaml: &str, expected: &str) -> Result<(), FactoryError> {
        #[derive(Deserialize)]
        struct Registered {
            id: String,
        }
        let request = Request::post(self.url("schematics")?.as_str()).header(CONTENT_TYPE, "application/yaml");
        let answer = self.send(request.body(Body::from(schematic_yaml.to_owned()))).await?;
        match answer.status {
            StatusCode::OK | StatusCode::CREATED => {}
            StatusCode::BAD_REQUEST => {
                return Err(FactoryError::BadSchematic {
                    factory: self.name(),
                    text: text_of(&answer),
                });
            }
            _ => return Err(self.unexpected(&answer)),
        }
        let Registered { id: seen } = self.json(&answer)?;
        if seen == expected {
            return Ok(());
        }
        Err(FactoryError::WrongId {
            factory: self.name(),
            expected: expected.to_owned(),
            seen,
        })
    }

    /// The versions it makes, pre-releases included, in ascending order.
    pub async fn versions(&self) -> Result<Vec<Version>, FactoryError> {
        let answer = self.get("versions").await?;
        let tags: Vec<String> = self.json(&self.good(answer)?)?;
        let mut versions: Vec<_> = tags
            .iter()
            .filter_map(|tag| Version::parse(tag.strip_prefix('v')?).ok())
            .collect();
        versions.sort();
        Ok(versions)
    }

    /// Checks that it makes this release.
    pub async fn check_version(&self, version: &Version) -> Result<(), FactoryError> {
        if self.versions().await?.contains(version) {
            Ok(())
        } else {
            Err(self.unknown_version(version))
        }
    }

    pub async fn extensions(&self, version: &Version) -> Result<Vec<OfficialExtension>, FactoryError> {
        let answer = self.get(&format!("version/v{version}/extensions/official")).await?;
        if answer.status.is_success() {
            return self.json(&answer);
        }
        // It may also fail with 500 on a version that it does not have; its list of versions tells the two apart.
        match self.versions().await {
            Ok(versions) if !versions.contains(version) => Err(self.unknown_version(version)),
            _ => Err(self.unexpected(&answer)),
        }
    }

    /// Checks that a release has all these extensions.
    pub async fn check_extensions(&self, version: &Version, wanted: &[String]) -> Result<(), FactoryError> {
        let offered = self.extensions(version).await?;
        match wanted
            .iter()
            .find(|name| offered.iter().all(|extension| extension.name != **name))
        {
            None => Ok(()),
            Some(missing) => Err(FactoryError::UnknownExtension {
                version: version.clone(),
                extension: missing.clone(),
            }),
        }
    }

    /// Has the image built, however long that takes within `patience`, and tells its size.
    ///
    /// The first request for an image builds it, which takes minutes: `waiting` hears every few seconds how long it has been.
    pub async fn asset(
        &self,
        image: &Image,
        patience: Duration,
        waiting: &mut (dyn FnMut(Duration) + Send),
    ) -> Result<Asset, FactoryError> {
        let start = Instant::now();
        let until = start + patience;
        let mut last = None;
        loop {
            match reporting(start, waiting, timeout_at(until, self.ask_for(image))).await {
                Ok(Ok(asset)) => return Ok(asset),
                Ok(Err(error)) if error.is_transient() => last = Some(Box::new(error)),
                Ok(Err(error)) => return Err(error),
                Err(_) => break,
            }
            if Instant::now() + PAUSE >= until {
                break;
            }
            sleep(PAUSE).await;
        }
        Err(FactoryError::NotBuilt {
            image: image.clone(),
            patience,
            last,
        })
    }

    async fn ask_for(&self, image: &Image) -> Result<Asset, FactoryError> {
        let url = self.url(&format!("image/{}/v{}/{}", image.schematic, image.version, image.file))?;
        let answer = self.head(&url).await?;
        if !answer.status.is_success() {
            return Err(self.why_no_image(image, &url, &answer).await);
        }
        let size = answer
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        size.map(|size| Asset { url, size })
            .ok_or_else(|| self.misread("an image without a size"))
    }

    /// Follows the factory to where it keeps what it has built.
    async fn head(&self, url: &Url) -> Result<HttpResponse, FactoryError> {
        let mut at = url.clone();
        for _ in 0..REDIRECTS_MAX {
            let request = Request::builder().method(Method::HEAD).uri(at.as_str()).body(Body::empty());
            let answer = self.send_within(request, BUILD_ATTEMPT).await?;
            if !answer.status.is_redirection() {
                return Ok(answer);
            }
            let to = answer.headers.get(LOCATION).and_then(|value| value.to_str().ok());
            let next = to
                .and_then(|to| at.join(to).ok())
                .ok_or_else(|| self.misread("a redirection to nowhere"))?;
            // Whether TLS is spoken is a matter of trust settings, which are for one scheme.
            if next.scheme() != self.base.scheme() {
                return Err(self.misread(&format!("a redirection from {} to {}", self.base.scheme(), next.scheme())));
            }
            at = next;
        }
        Err(self.misread("too many redirections"))
    }

    /// A HEAD is answered without a text, so the reason is asked for in other ways.
    async fn why_no_image(&self, image: &Image, url: &Url, answer: &HttpResponse) -> FactoryError {
        match answer.status {
            StatusCode::NOT_FOUND => match self.versions().await {
                Ok(versions) if !versions.contains(&image.version) => FactoryError::UnknownVersion {
                    factory: self.name(),
                    version: image.version.clone(),
                },
                Ok(_) => FactoryError::UnknownSchematic {
                    factory: self.name(),
                    schematic: image.schematic.clone(),
                },
                Err(error) => error,
            },
            StatusCode::BAD_REQUEST => match self.refusal(url).await {
                Ok(text) => self.sort_refusal(image, text),
                Err(error) => error,
            },
            _ => self.unexpected(answer),
        }
    }

    fn sort_refusal(&self, image: &Image, text: String) -> FactoryError {
        let extension = text
            .contains("is not available for Talos version")
            .then(|| text.split('"').nth(1))
            .flatten();
        match extension {
            Some(name) => FactoryError::UnknownExtension {
                version: image.version.clone(),
                extension: name.to_owned(),
            },
            None => FactoryError::BadSchematic {
                factory: self.name(),
                text,
            },
        }
    }

    /// The text of a refused GET. Should it be granted after all, nothing of the image is read.
    async fn refusal(&self, url: &Url) -> Result<String, FactoryError> {
        let request = Request::get(url.as_str())
            .body(Body::empty())
            .map_err(|_| self.misread("an address that is none"))?;
        let opened = self
            .http
            .open(request, ANSWER)
            .await
            .map_err(|source| self.unreachable(source))?;
        if !opened.status.is_client_error() {
            return Err(self.misread("an image that is refused and granted"));
        }
        let limited = http_body_util::Limited::new(opened.body, REFUSAL_MAX * 4);
        let body = limited.collect().await.map_or_else(|_| Bytes::new(), Collected::to_bytes);
        Ok(shorten(&String::from_utf8_lossy(&body)))
    }

    async fn get(&self, path: &str) -> Result<HttpResponse, FactoryError> {
        self.send(Request::get(self.url(path)?.as_str()).body(Body::empty())).await
    }

    async fn send(&self, request: http::Result<Request<Body>>) -> Result<HttpResponse, FactoryError> {
        self.send_within(request, ANSWER).await
    }

    async fn send_within(&self, request: http::Result<Request<Body>>, limit: Duration) -> Result<HttpResponse, FactoryError> {
        let request = request.map_err(|_| self.misread("an address that is none"))?;
        self.http
            .send(request, limit)
            .await
            .map_err(|source| self.unreachable(source))
    }

    /// As the user writes it.
    fn name(&self) -> String {
        self.base.as_str().trim_end_matches('/').to_owned()
    }

    fn unreachable(&self, source: HttpError) -> FactoryError {
        match source.outcome() {
            RequestOutcome::Answered(status) => FactoryError::Outage {
                factory: self.name(),
                status,
                text: "and broke off".into(),
            },
            RequestOutcome::NotSent | RequestOutcome::Unknown => FactoryError::Unreachable {
                factory: self.name(),
                source: source.into(),
            },
        }
    }

    fn good(&self, answer: HttpResponse) -> Result<HttpResponse, FactoryError> {
        if answer.status.is_success() {
            Ok(answer)
        } else {
            Err(self.unexpected(&answer))
        }
    }

    fn unexpected(&self, answer: &HttpResponse) -> FactoryError {
        let (factory, text) = (self.name(), text_of(answer));
        match answer.status {
            StatusCode::PAYMENT_REQUIRED => FactoryError::Subscription { factory, text },
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                FactoryError::Outage { factory, status, text }
            }
            status => self.misread(&format!("{status} {text}")),
        }
    }

    fn unknown_version(&self, version: &Version) -> FactoryError {
        FactoryError::UnknownVersion {
            factory: self.name(),
            version: version.clone(),
        }
    }

    fn json<T: serde::de::DeserializeOwned>(&self, answer: &HttpResponse) -> Result<T, FactoryError> {
        serde_json::from_slice(&answer.body).map_err(|_| self.misread("no JSON of the known form"))
    }

    fn url(&self, path: &str) -> Result<Url, FactoryError> {
        self.base.join(path).map_err(|_| self.misread("an address that is none"))
    }

    fn misread(&self, what: &str) -> FactoryError {
        FactoryError::Misread {
            factory: self.name(),
            what: what.to_owned(),
        }
    }
}

/// Drives `work`, and tells every few seconds how long it has been since `start`.
async fn reporting<T>(start: Instant, waiting: &mut (dyn FnMut(Duration) + Send), work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let mut report_at = Instant::now() + REPORT_EVERY;
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = sleep_until(report_at) => {
                waiting(start.elapsed());
                report_at += REPORT_EVERY;
            }
        }
    }
}

fn text_of(answer: &HttpResponse) -> String {
    shorten(&String::from_utf8_lossy(&answer.body))
}

fn shorten(text: &str) -> String {
    text.trim().chars().take(REFUSAL_MAX).collect()
}
