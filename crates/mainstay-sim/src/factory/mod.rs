//! A simulated Image Factory.
//!
//! Schematics are named by the hash of their canonical form, an asset is built when it is first asked for, and a download is
//! answered with a redirect to object storage, as the public instance does.

mod image;
pub(crate) mod qcow2;
mod schematic;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use pve_sim::guest::Pace;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

pub use image::TalosImage;
pub(crate) use schematic::Schematic;

/// Downloads arrive in this many pieces, so that a cut connection leaves a part of the file.
const PIECES: u32 = 8;

/// What the factory offers and how fast it is.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub build: Duration,
    pub download: Duration,
    pub pace: Pace,
}

/// Bad days of a factory; changed while it runs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FactoryFaults {
    /// Everything answers 503.
    pub outage: bool,
    /// Builds of assets fail with 500.
    pub builds_fail: bool,
    /// Downloads stop after half of the body.
    pub downloads_break: bool,
    /// Assets are sent without a redirect.
    pub no_redirects: bool,
}

pub struct Factory {
    settings: Settings,
    state: Mutex<FactoryState>,
}

struct FactoryState {
    schematics: BTreeMap<String, Schematic>,
    /// When the asset of this path is built.
    assets: BTreeMap<String, Instant>,
    faults: FactoryFaults,
}

/// Releases the factory knows, oldest first. The pre-release is there because the real list has them and clients must filter.
const VERSIONS: [&str; 14] = [
    "v1.11.0",
    "v1.11.6",
    "v1.12.0",
    "v1.12.4",
    "v1.12.6",
    "v1.12.11",
    "v1.13.0",
    "v1.13.2",
    "v1.13.9",
    "v1.13.10",
    "v1.14.0-rc.1",
    "v1.14.0",
    "v1.14.1",
    "v1.15.0-alpha.0",
];

const EXTENSIONS: [(&str, &str); 14] = [
    ("amd-ucode", "20260809"),
    ("btrfs", ""),
    ("cloudflared", "2026.7.0"),
    ("drbd", "9.2.16"),
    ("gvisor", "20260727.0"),
    ("i915", ""),
    ("intel-ucode", "20260714"),
    ("iscsi-tools", "v0.2.0"),
    ("nfs-utils", "v2.8.4"),
    ("qemu-guest-agent", "10.2.2"),
    ("tailscale", "1.96.2"),
    ("util-linux-tools", "2.42"),
    ("zfs", "2.4.1"),
    ("xen-guest-agent", "0.5.1"),
];

impl Factory {
    pub(crate) fn new(settings: Settings) -> Arc<Self> {
        let mut schematics = BTreeMap::new();
        let plain = Schematic::default();
        schematics.insert(plain.id(), plain);
        let state = FactoryState {
            schematics,
            assets: BTreeMap::new(),
            faults: FactoryFaults::default(),
        };
        Arc::new(Self {
            settings,
            state: Mutex::new(state),
        })
    }

    pub fn set_faults(&self, faults: FactoryFaults) {
        self.lock().faults = faults;
    }

    pub fn knows_schematic(&self, id: &str) -> bool {
        self.lock().schematics.contains_key(id)
    }

    /// How often an asset had to be built.
    pub fn builds(&self) -> usize {
        self.lock().assets.len()
    }

    pub(crate) fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/schematics", post(post_schematic))
            .route("/schematics/{id}", get(get_schematic))
            .route("/versions", get(versions))
            .route("/version/{version}/extensions/official", get(extensions))
            .route("/version/{version}/overlays/official", get(overlays))
            .route("/image/{schematic}/{version}/{path}", get(asset).head(asset))
            .route("/storage/{schematic}/{version}/{path}", get(stored))
            .with_state(Arc::clone(self))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FactoryState> {
        self.state.lock().expect("no handler panics while it holds the factory")
    }

    fn faults(&self) -> FactoryFaults {
        self.lock().faults.clone()
    }

    /// The image behind an asset path, or the plain-text refusal.
    fn image(&self, schematic: &str, version: &str, path: &str) -> Result<TalosImage, (StatusCode, String)> {
        let stored = self.lock().schematics.get(schematic).cloned();
        let stored = stored.ok_or((StatusCode::NOT_FOUND, format!("schematic ID \"{schematic}\" not found")))?;
        let parsed = parse_version(version)?;
        let (platform, arch) = parse_asset(path)?;
        for extension in stored.extensions() {
            let known = EXTENSIONS
                .iter()
                .any(|(name, _)| extension.strip_prefix("siderolabs/") == Some(name));
            if !known {
                let text = format!("official extension \"{extension}\" is not available for Talos version {version}");
                return Err((StatusCode::BAD_REQUEST, text));
            }
        }
        Ok(TalosImage {
            version: parsed,
            schematic: schematic.to_owned(),
            extensions: stored.extensions().to_vec(),
            platform,
            arch,
        })
    }

    /// Waits until the asset is built; the first request starts the build.
    async fn built(&self, key: &str) {
        let ready = {
            let mut state = self.lock();
            let ready = Instant::now() + self.settings.pace.scale(self.settings.build);
            *state.assets.entry(key.to_owned()).or_insert(ready)
        };
        tokio::time::sleep_until(ready).await;
    }
}

fn parse_version(version: &str) -> Result<semver::Version, (StatusCode, String)> {
    let parsed = version
        .strip_prefix('v')
        .and_then(|text| text.parse::<semver::Version>().ok());
    let parsed = parsed.ok_or((
        StatusCode::INTERNAL_SERVER_ERROR,
        format!("error parsing version \"{version}\""),
    ))?;
    if VERSIONS.contains(&version) {
        Ok(parsed)
    } else {
        Err((StatusCode::NOT_FOUND, format!("version {version} is not available")))
    }
}

/// `<platform>-<arch>[-secureboot].<suffix>`
fn parse_asset(path: &str) -> Result<(String, String), (StatusCode, String)> {
    let invalid = || (StatusCode::BAD_REQUEST, format!("invalid profile path: \"{path}\""));
    let (stem, suffix) = path.split_once('.').ok_or_else(invalid)?;
    if !["qcow2", "raw", "raw.xz", "raw.zst", "raw.gz", "iso"].contains(&suffix) {
        return Err(invalid());
    }
    let (platform, arch) = stem.trim_end_matches("-secureboot").rsplit_once('-').ok_or_else(invalid)?;
    if !["nocloud", "metal"].contains(&platform) {
        return Err(invalid());
    }
    if !["amd64", "arm64"].contains(&arch) {
        return Err((StatusCode::BAD_REQUEST, format!("invalid architecture: \"{arch}\"")));
    }
    Ok((platform.to_owned(), arch.to_owned()))
}

fn outage() -> Response {
    (
        StatusCode::SERVICE_UNAVAILABLE,
        "upstream connect error or disconnect/reset before headers",
    )
        .into_response()
}

async fn post_schematic(State(factory): State<Arc<Factory>>, body: String) -> Response {
    if factory.faults().outage {
        return outage();
    }
    match Schematic::parse(&body) {
        Err(error) => (StatusCode::BAD_REQUEST, format!("yaml: construct errors: {error}")).into_response(),
        Ok(schematic) => {
            let answer = json!({"id": schematic.id(), "schematic": schematic.canonical()});
            factory.lock().schematics.insert(schematic.id(), schematic);
            (StatusCode::CREATED, axum::Json(answer)).into_response()
        }
    }
}

async fn get_schematic(State(factory): State<Arc<Factory>>, Path(id): Path<String>) -> Response {
    if factory.faults().outage {
        return outage();
    }
    match factory.lock().schematics.get(&id) {
        Some(schematic) => ([(header::CONTENT_TYPE, "application/yaml")], schematic.canonical()).into_response(),
        None => (StatusCode::NOT_FOUND, format!("schematic ID \"{id}\" not found")).into_response(),
    }
}

async fn versions(State(factory): State<Arc<Factory>>) -> Response {
    if factory.faults().outage {
        return outage();
    }
    axum::Json(VERSIONS).into_response()
}

async fn extensions(State(factory): State<Arc<Factory>>, Path(version): Path<String>) -> Response {
    if factory.faults().outage {
        return outage();
    }
    if let Err(refusal) = parse_version(&version) {
        return refusal.into_response();
    }
    let list: Vec<_> = EXTENSIONS
        .iter()
        .map(|(name, tag)| {
            let tag = if tag.is_empty() { &version } else { *tag };
            let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(format!("{name}:{tag}")));
            json!({
                "name": format!("siderolabs/{name}"),
                "ref": format!("ghcr.io/siderolabs/{name}:{tag}"),
                "digest": format!("sha256:{digest}"),
                "author": "Sidero Labs",
                "description": format!("This system extension provides {name}.\n"),
            })
        })
        .collect();
    axum::Json(list).into_response()
}

async fn overlays(State(factory): State<Arc<Factory>>, Path(version): Path<String>) -> Response {
    if factory.faults().outage {
        return outage();
    }
    match parse_version(&version) {
        Ok(_) => axum::Json(json!([])).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

#[derive(Deserialize)]
struct AssetQuery {
    filename: Option<String>,
}

async fn asset(
    State(factory): State<Arc<Factory>>,
    Path((schematic, version, path)): Path<(String, String, String)>,
    Query(query): Query<AssetQuery>,
    request: Request,
) -> Response {
    let faults = factory.faults();
    if faults.outage {
        return outage();
    }
    if path.ends_with(".sha256") || path.ends_with(".sha512") || path.ends_with(".sigstore.json") {
        return (StatusCode::PAYMENT_REQUIRED, "enterprise feature is not enabled").into_response();
    }
    let image = match factory.image(&schematic, &version, &path) {
        Ok(image) => image,
        Err(refusal) => return refusal.into_response(),
    };
    if faults.builds_fail {
        return (StatusCode::INTERNAL_SERVER_ERROR, "internal server error").into_response();
    }
    let key = format!("{schematic}/{version}/{path}");
    factory.built(&key).await;
    if request.method() == Method::GET && !faults.no_redirects {
        let to = format!("/storage/{key}");
        return (StatusCode::FOUND, [(header::LOCATION, to)]).into_response();
    }
    let name = query.filename.unwrap_or(path);
    let body = image.to_qcow2();
    if request.method() == Method::HEAD {
        send(body.len(), &name, Body::empty())
    } else {
        factory.stream(body, &name)
    }
}

async fn stored(
    State(factory): State<Arc<Factory>>,
    Path((schematic, version, path)): Path<(String, String, String)>,
) -> Response {
    match factory.image(&schematic, &version, &path) {
        Ok(image) if factory.lock().assets.contains_key(&format!("{schematic}/{version}/{path}")) => {
            factory.stream(image.to_qcow2(), &path)
        }
        _ => (StatusCode::NOT_FOUND, "NoSuchKey").into_response(),
    }
}

fn send(length: usize, name: &str, body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
    ];
    (headers, body).into_response()
}

impl Factory {
    fn stream(&self, body: Bytes, name: &str) -> Response {
        let length = body.len();
        let step = self.settings.pace.scale(self.settings.download) / PIECES;
        let breaks = self.faults().downloads_break;
        let size = length.div_ceil(PIECES as usize);
        let pieces = futures::stream::unfold((body, 0), move |(mut rest, sent)| async move {
            if rest.is_empty() {
                return None;
            }
            tokio::time::sleep(step).await;
            if breaks && sent == PIECES / 2 {
                return Some((
                    Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)),
                    (Bytes::new(), sent),
                ));
            }
            let piece = rest.split_to(size.min(rest.len()));
            Some((Ok(piece), (rest, sent + 1)))
        });
        send(length, name, Body::from_stream(pieces))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    fn factory() -> Arc<Factory> {
        Factory::new(Settings {
            build: Duration::from_secs(30),
            download: Duration::from_secs(8),
            pace: Pace::default(),
        })
    }

    async fn call(factory: &Arc<Factory>, method: &str, uri: &str, body: &str) -> Response {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .body(Body::from(body.to_owned()))
            .expect("a request");
        factory.router().oneshot(request).await.expect("the router always answers")
    }

    async fn text(response: Response) -> String {
        let body = response.into_body().collect().await.expect("a whole body").to_bytes();
        String::from_utf8_lossy(&body).into_owned()
    }

    const PLAIN: &str = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba";

    #[tokio::test(start_paused = true)]
    async fn the_first_head_builds_and_the_second_does_not() {
        let factory = factory();
        let start = Instant::now();
        let uri = format!("/image/{PLAIN}/v1.13.9/nocloud-amd64.qcow2");
        let head = call(&factory, "HEAD", &uri, "").await;
        assert_eq!(head.status(), StatusCode::OK);
        assert_eq!(start.elapsed().as_secs(), 30);
        let length: usize = head.headers()["content-length"]
            .to_str()
            .expect("ascii")
            .parse()
            .expect("a number");
        call(&factory, "HEAD", &uri, "").await;
        assert_eq!(start.elapsed().as_secs(), 30);
        let moved = call(&factory, "GET", &uri, "").await;
        assert_eq!(moved.status(), StatusCode::FOUND);
        let stored = call(&factory, "GET", moved.headers()["location"].to_str().expect("ascii"), "").await;
        let body = stored.into_body().collect().await.expect("a whole body").to_bytes();
        assert_eq!(body.len(), length);
        assert!(start.elapsed() >= Duration::from_secs(38), "the download takes its time");
        assert_eq!(
            TalosImage::from_qcow2(&body).expect("an image").version,
            semver::Version::new(1, 13, 9)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_told_apart() {
        let factory = factory();
        let odd = "customization:\n  systemExtensions:\n    officialExtensions: [siderolabs/nope]\n";
        let answer = text(call(&factory, "POST", "/schematics", odd).await).await;
        let id = serde_json::from_str::<serde_json::Value>(&answer).expect("json")["id"]
            .as_str()
            .expect("an id")
            .to_owned();
        let cases = [
            (
                format!("/image/{}/v1.13.9/nocloud-amd64.qcow2", "0".repeat(64)),
                StatusCode::NOT_FOUND,
                "schematic ID",
            ),
            (
                format!("/image/{PLAIN}/v1.99.0/nocloud-amd64.qcow2"),
                StatusCode::NOT_FOUND,
                "version v1.99.0 is not available",
            ),
            (
                format!("/image/{PLAIN}/1.13/nocloud-amd64.qcow2"),
                StatusCode::INTERNAL_SERVER_ERROR,
                "error parsing version",
            ),
            (
                format!("/image/{PLAIN}/v1.13.9/nocloud-x86.qcow2"),
                StatusCode::BAD_REQUEST,
                "invalid architecture",
            ),
            (
                format!("/image/{PLAIN}/v1.13.9/nocloud-amd64.qcow2.sha256"),
                StatusCode::PAYMENT_REQUIRED,
                "enterprise",
            ),
            (
                format!("/image/{id}/v1.13.9/nocloud-amd64.qcow2"),
                StatusCode::BAD_REQUEST,
                "official extension \"siderolabs/nope\" is not available for Talos version v1.13.9",
            ),
        ];
        for (uri, status, words) in cases {
            let response = call(&factory, "GET", &uri, "").await;
            assert_eq!(response.status(), status, "{uri}");
            let body = text(response).await;
            assert!(body.contains(words), "{uri}: {body}");
        }
        let bad = call(&factory, "POST", "/schematics", "customization: {nope: 1}").await;
        assert_eq!(bad.status(), StatusCode::BAD_REQUEST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_download_ends_early() {
        let factory = factory();
        factory.set_faults(FactoryFaults {
            downloads_break: true,
            no_redirects: true,
            ..FactoryFaults::default()
        });
        let response = call(&factory, "GET", &format!("/image/{PLAIN}/v1.13.9/nocloud-amd64.qcow2"), "").await;
        assert!(response.into_body().collect().await.is_err());
        factory.set_faults(FactoryFaults {
            outage: true,
            ..FactoryFaults::default()
        });
        assert_eq!(
            call(&factory, "GET", "/versions", "").await.status(),
            StatusCode::SERVICE_UNAVAILABLE
        );
    }
}
