//! Pulling charts through the Dialer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, LOCATION, WWW_AUTHENTICATE};
use http::{Request, StatusCode};
use mainstay_net::http::{Body, HttpClient, HttpError, HttpOptions, HttpResponse};
use mainstay_net::{Connector, Dialer, Env, Secret, Trust, TrustError, Wall};
use url::Url;

use crate::archive::{ArchiveError, ChartArchive};
use crate::digest::Sha256Digest;
use crate::index::{self, IndexError};
use crate::oci::{self, Challenge, ManifestError};
use crate::source::{ChartRequest, ChartSource, host_of, is_allowed};

const CONNECT: Duration = Duration::from_secs(15);
const ANSWER: Duration = Duration::from_secs(120);
const REDIRECTS_MAX: usize = 5;

/// Some indexes are larger than any chart.
const BODY_MAX: usize = 64 << 20;

/// The longest text that is quoted from a refusal.
const REFUSAL_MAX: usize = 300;

/// Where registries are reached instead, and who we are there. By host and port.
#[derive(Debug, Clone, Default)]
pub struct Mirrors {
    /// Tried in order instead of the host itself.
    pub endpoints: BTreeMap<String, Vec<Url>>,
    pub credentials: BTreeMap<String, RegistryLogin>,
}

#[derive(Debug, Clone)]
pub struct RegistryLogin {
    pub username: String,
    pub password: Secret<String>,
}

/// Fetches charts. Create it inside the runtime that uses it.
pub struct ChartClient {
    secured: HttpClient,
    plain: HttpClient,
    mirrors: Mirrors,
}

/// A chart with what pins it.
#[derive(Debug, Clone, PartialEq)]
pub struct PulledChart {
    pub archive: ChartArchive,
    pub bytes: Bytes,
    /// The digest of the OCI manifest. `None` for HTTP repositories.
    pub manifest: Option<Sha256Digest>,
    /// Whether the repository itself named the archive's digest. If not, the first pull pins it.
    pub digest_was_published: bool,
}

/// What must be equal to what was pulled before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pinned {
    pub manifest: Option<Sha256Digest>,
    pub archive: Option<Sha256Digest>,
}

#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error("the trust settings for registries cannot be used")]
    Trust(#[source] Box<TrustError>),
    #[error("{host} cannot be reached")]
    Unreachable { host: String, source: Box<HttpError> },
    #[error("{host} refuses access to {what}: {status} {text}")]
    Denied {
        host: String,
        what: String,
        status: StatusCode,
        text: String,
    },
    #[error("{host} has no {what}")]
    NotFound { host: String, what: String },
    #[error("{host} answered {status} for {what}: {text}")]
    Unexpected {
        host: String,
        what: String,
        status: StatusCode,
        text: String,
    },
    #[error("{host} sends on to {to}, which is neither https nor on loopback")]
    InsecureRedirect { host: String, to: String },
    #[error("{host} asks for a token from {realm}, which is not https")]
    InsecureRealm { host: String, realm: String },
    #[error("{host} sends on more than {REDIRECTS_MAX} times")]
    Redirects { host: String },
    #[error("{what} has the digest {seen}, not {expected}")]
    Digest {
        what: String,
        expected: Sha256Digest,
        seen: Sha256Digest,
    },
    #[error("{host}: {what}")]
    Misread { host: String, what: String },
    #[error(transparent)]
    Archive(#[from] ArchiveError),
}

impl PullError {
    /// Whether asking again later can help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Unexpected { status, .. } => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
            _ => false,
        }
    }

    /// Whether the next mirror is worth a try. A wrong digest is not: it is reported.
    fn allows_next_mirror(&self) -> bool {
        self.is_transient() || matches!(self, Self::NotFound { .. })
    }
}

impl ChartClient {
    /// `trust` is for https; plain http is only ever used on loopback.
    pub fn new(env: &Env, trust: &Trust, mirrors: Mirrors) -> Result<Self, PullError> {
        Ok(Self {
            secured: client(&env.dialer, trust, env.wall)?,
            plain: client(&env.dialer, &Trust::Plain, env.wall)?,
            mirrors,
        })
    }

    /// Pulls a chart and checks it: digests, name, version.
    pub async fn pull(&self, request: &ChartRequest, pinned: Pinned) -> Result<PulledChart, PullError> {
        let pulled = match &request.source {
            ChartSource::Oci { base, repository } => self.pull_oci(base, repository, &request.version, pinned).await?,
            ChartSource::Http { repository, chart } => self.pull_http(repository, chart, &request.version).await?,
        };
        if let Some(expected) = pinned.archive {
            matches(&format!("the chart {}", request.source), expected, &pulled.bytes)?;
        }
        Ok(PulledChart {
            archive: pulled.archive.expect(request.source.chart(), &request.version)?,
            ..pulled
        })
    }

    /// Versions of a chart that an HTTP repository offers, newest first, pre-releases left out.
    pub async fn versions(&self, source: &ChartSource) -> Result<Vec<semver::Version>, PullError> {
        let ChartSource::Http { repository, chart } = source else {
            return self.tags(source).await;
        };
        let (_, entries) = self.index(repository, chart).await?;
        Ok(sorted(entries.iter().map(|entry| entry.version.as_str())))
    }

    async fn tags(&self, source: &ChartSource) -> Result<Vec<semver::Version>, PullError> {
        #[derive(serde::Deserialize)]
        struct Tags {
            tags: Vec<String>,
        }
        let ChartSource::Oci { base, repository } = source else {
            return Ok(Vec::new());
        };
        let answer = self
            .registry(base, repository, &format!("v2/{repository}/tags/list"), "application/json")
            .await?;
        let tags: Tags = serde_json::from_slice(&answer).map_err(|_| misread(base, "the list of tags cannot be read"))?;
        Ok(sorted(
            tags.tags
                .iter()
                .map(|tag| tag.replace('_', "+"))
                .collect::<Vec<_>>()
                .iter()
                .map(String::as_str),
        ))
    }

    async fn pull_oci(&self, base: &Url, repository: &str, version: &str, pinned: Pinned) -> Result<PulledChart, PullError> {
        let what = format!("the manifest of {repository} {version}");
        // A pinned digest is asked for by itself, so that a moved tag changes nothing.
        let reference = pinned.manifest.map_or_else(|| oci::tag(version), |digest| digest.to_string());
        let path = format!("v2/{repository}/manifests/{reference}");
        let manifest = self.registry(base, repository, &path, oci::MANIFEST).await?;
        if let Some(expected) = pinned.manifest {
            matches(&what, expected, &manifest)?;
        }
        let layer = oci::chart_layer(&manifest).map_err(|problem: ManifestError| misread(base, problem))?;
        if layer.size > BODY_MAX as u64 {
            return Err(ArchiveError::TooLarge.into());
        }
        let path = format!("v2/{repository}/blobs/{}", layer.digest);
        let bytes = self.registry(base, repository, &path, "*/*").await?;
        matches(&format!("the chart {repository} {version}"), layer.digest, &bytes)?;
        Ok(PulledChart {
            archive: ChartArchive::read(&bytes)?,
            manifest: Some(Sha256Digest::of(&manifest)),
            digest_was_published: true,
            bytes,
        })
    }

    async fn pull_http(&self, repository: &Url, chart: &str, version: &str) -> Result<PulledChart, PullError> {
        let (base, entries) = self.index(repository, chart).await?;
        let bare = |text: &str| text.strip_prefix('v').unwrap_or(text).to_owned();
        let found = entries.into_iter().find(|entry| bare(&entry.version) == bare(version));
        let what = format!("{chart} {version}");
        let entry = found.ok_or_else(|| PullError::NotFound {
            host: host_of(repository),
            what: what.clone(),
        })?;
        let url = entry.urls.first().and_then(|url| base.join(url).ok());
        let url = url.ok_or_else(|| misread(repository, format!("{what} has no address in the index")))?;
        let bytes = self.get(&url, &what, "*/*", None).await?;
        let published = entry.digest.filter(|digest| !digest.is_empty());
        if let Some(digest) = &published {
            let expected = digest
                .parse()
                .map_err(|_| misread(repository, format!("{what} has a malformed digest")))?;
            matches(&what, expected, &bytes)?;
        }
        Ok(PulledChart {
            archive: ChartArchive::read(&bytes)?,
            manifest: None,
            digest_was_published: published.is_some(),
            bytes,
        })
    }

    /// The entries of a chart, and the address that relative archive addresses start from.
    async fn index(&self, repository: &Url, chart: &str) -> Result<(Url, Vec<index::Entry>), PullError> {
        let mut last = None;
        for base in self.endpoints(repository) {
            let url = base.join("index.yaml").expect("a relative path");
            match self.get(&url, "index.yaml", "*/*", None).await {
                Ok(bytes) => {
                    let text = String::from_utf8_lossy(&bytes);
                    let entries = index::entries(&text, chart).map_err(|problem| match problem {
                        IndexError::NoChart => PullError::NotFound {
                            host: host_of(&base),
                            what: format!("the chart {chart}"),
                        },
                        IndexError::Malformed => misread(&base, problem),
                    })?;
                    return Ok((base, entries));
                }
                Err(problem) if problem.allows_next_mirror() => last = Some(problem),
                Err(problem) => return Err(problem),
            }
        }
        Err(last.expect("there is at least one endpoint"))
    }

    /// A path of a registry, with the token flow, from the first endpoint that has it.
    async fn registry(&self, base: &Url, repository: &str, path: &str, accept: &str) -> Result<Bytes, PullError> {
        let mut last = None;
        for endpoint in self.endpoints(base) {
            let url = endpoint
                .join(path)
                .map_err(|_| misread(&endpoint, "the path cannot be joined"))?;
            match self.get_with_token(&url, repository, path, accept).await {
                Ok(bytes) => return Ok(bytes),
                Err(problem) if problem.allows_next_mirror() => last = Some(problem),
                Err(problem) => return Err(problem),
            }
        }
        Err(last.expect("there is at least one endpoint"))
    }

    /// Mirrors of a host, else the host itself.
    fn endpoints(&self, base: &Url) -> Vec<Url> {
        let mirrors = self.mirrors.endpoints.get(&host_of(base)).filter(|list| !list.is_empty());
        let Some(mirrors) = mirrors else {
            return vec![base.clone()];
        };
        let with_path = |mirror: &Url| {
            let mut url = mirror.clone();
            url.set_path(&format!("{}{}", mirror.path().trim_end_matches('/'), base.path()));
            url
        };
        mirrors.iter().map(with_path).collect()
    }

    async fn get_with_token(&self, url: &Url, repository: &str, what: &str, accept: &str) -> Result<Bytes, PullError> {
        let answer = self.follow(url, accept, None).await?;
        if answer.status != StatusCode::UNAUTHORIZED {
            return good(url, what, answer);
        }
        let header = answer.headers.get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
        let authorization = match header.and_then(Challenge::parse) {
            Some(challenge) => format!("Bearer {}", self.token(url, &challenge, repository).await?),
            // Registries without a token server ask for the password itself.
            None => match self.mirrors.credentials.get(&host_of(url)) {
                Some(login) => basic(login),
                None => return good(url, what, answer),
            },
        };
        let answer = self.follow(url, accept, Some(authorization)).await?;
        good(url, what, answer)
    }

    /// Anonymous unless there are credentials for the registry.
    async fn token(&self, url: &Url, challenge: &Challenge, repository: &str) -> Result<String, PullError> {
        if !is_allowed(&challenge.realm) {
            return Err(PullError::InsecureRealm {
                host: host_of(url),
                realm: challenge.realm.to_string(),
            });
        }
        let login = self.mirrors.credentials.get(&host_of(url)).map(basic);
        let token_url = challenge.token_url(repository);
        let bytes = self.get(&token_url, "a token", "application/json", login).await?;
        oci::token(&bytes).ok_or_else(|| misread(&challenge.realm, "the answer holds no token"))
    }

    async fn get(&self, url: &Url, what: &str, accept: &str, authorization: Option<String>) -> Result<Bytes, PullError> {
        let answer = self.follow(url, accept, authorization).await?;
        good(url, what, answer)
    }

    /// Sends a GET and follows redirects. Another host never sees the authorization.
    async fn follow(&self, url: &Url, accept: &str, authorization: Option<String>) -> Result<HttpResponse, PullError> {
        let mut at = url.clone();
        let mut authorization = authorization;
        for _ in 0..=REDIRECTS_MAX {
            if !is_allowed(&at) {
                return Err(PullError::InsecureRedirect {
                    host: host_of(url),
                    to: host_of(&at),
                });
            }
            let answer = self.send(&at, accept, authorization.as_deref()).await?;
            let location = answer.headers.get(LOCATION).and_then(|value| value.to_str().ok());
            let Some(location) = location.filter(|_| answer.status.is_redirection()) else {
                return Ok(answer);
            };
            let next = at
                .join(location)
                .map_err(|_| misread(&at, "the redirect has no usable address"))?;
            if host_of(&next) != host_of(&at) || next.scheme() != at.scheme() {
                authorization = None;
            }
            at = next;
        }
        Err(PullError::Redirects { host: host_of(url) })
    }

    async fn send(&self, url: &Url, accept: &str, authorization: Option<&str>) -> Result<HttpResponse, PullError> {
        let mut request = Request::get(url.as_str()).header(ACCEPT, accept);
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request
            .body(Body::empty())
            .map_err(|_| misread(url, "the request cannot be formed"))?;
        let client = if url.scheme() == "http" { &self.plain } else { &self.secured };
        client.send(request, ANSWER).await.map_err(|source| PullError::Unreachable {
            host: host_of(url),
            source: Box::new(source),
        })
    }
}

fn client(dialer: &Arc<dyn Dialer>, trust: &Trust, wall: Wall) -> Result<HttpClient, PullError> {
    let connector =
        Connector::new(Arc::clone(dialer), trust, wall, CONNECT).map_err(|problem| PullError::Trust(Box::new(problem)))?;
    let options = HttpOptions {
        max_body: BODY_MAX,
        ..HttpOptions::default()
    };
    Ok(HttpClient::new(connector, options))
}

fn basic(login: &RegistryLogin) -> String {
    let pair = format!("{}:{}", login.username, login.password.expose());
    format!("Basic {}", STANDARD.encode(pair))
}

fn good(url: &Url, what: &str, answer: HttpResponse) -> Result<Bytes, PullError> {
    let (host, what) = (host_of(url), what.to_owned());
    let status = answer.status;
    let text = || {
        let text = String::from_utf8_lossy(&answer.body);
        let printable = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
        printable.take(REFUSAL_MAX).collect::<String>()
    };
    match status {
        StatusCode::OK => Ok(answer.body),
        StatusCode::NOT_FOUND => Err(PullError::NotFound { host, what }),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(PullError::Denied {
            host,
            what,
            status,
            text: text(),
        }),
        _ => Err(PullError::Unexpected {
            host,
            what,
            status,
            text: text(),
        }),
    }
}

fn matches(what: &str, expected: Sha256Digest, bytes: &[u8]) -> Result<(), PullError> {
    let seen = Sha256Digest::of(bytes);
    if seen == expected {
        return Ok(());
    }
    Err(PullError::Digest {
        what: what.to_owned(),
        expected,
        seen,
    })
}

fn misread(url: &Url, what: impl ToString) -> PullError {
    PullError::Misread {
        host: host_of(url),
        what: what.to_string(),
    }
}

/// Newest first, without pre-releases and without what is no version.
fn sorted<'a>(versions: impl Iterator<Item = &'a str>) -> Vec<semver::Version> {
    let parsed = versions.filter_map(|text| semver::Version::parse(text.strip_prefix('v').unwrap_or(text)).ok());
    let mut releases: Vec<_> = parsed.filter(|version| version.pre.is_empty()).collect();
    releases.sort();
    releases.dedup();
    releases.reverse();
    releases
}
