//! The public hosts that cloud guests and their images come from: image servers, release downloads, channels and package mirrors.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use mainstay_net::{Entropy, Wall, server_config};
use pve_sim::guest::Pace;
use rustls::ServerConfig;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256, Sha512};

use super::archive::{self, Entry};
use super::image::CloudImage;
use super::rancher::{Binary, Distro};
use crate::pki::{Authority, PkiError, Request as CertificateRequest};

/// Names that resolve to the public hosts of a world.
pub(crate) const HOSTS: [&str; 9] = [
    "cloud-images.ubuntu.com",
    "cloud.debian.org",
    "github.com",
    "release-assets.githubusercontent.com",
    "update.rke2.io",
    "update.k3s.io",
    "archive.ubuntu.com",
    "security.ubuntu.com",
    "deb.debian.org",
];

/// Releases that are published, oldest first.
const RKE2: [&str; 7] = [
    "v1.33.13+rke2r1",
    "v1.34.9+rke2r1",
    "v1.34.10+rke2r1",
    "v1.35.6+rke2r1",
    "v1.35.7+rke2r1",
    "v1.36.2+rke2r1",
    "v1.36.3+rke2r1",
];
const K3S: [&str; 6] = [
    "v1.33.13+k3s1",
    "v1.34.10+k3s1",
    "v1.35.6+k3s1",
    "v1.35.7+k3s1",
    "v1.36.2+k3s1",
    "v1.36.3+k3s1",
];

/// Directories of images: the moving one stands for the last of the others.
const UBUNTU: [&str; 2] = ["20260701", "20260801"];
const DEBIAN: [&str; 2] = ["20260701-2200", "20260803-2300"];

/// Bad days of the public hosts; changed while the world runs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct WebFaults {
    /// Hosts that answer 503.
    pub outage: BTreeSet<String>,
    /// Artifacts and images differ from their checksums.
    pub corrupt: bool,
    /// Downloads take this many times as long.
    pub slowness: u32,
}

pub(crate) struct Web {
    faults: Mutex<WebFaults>,
    download: Duration,
    pace: Pace,
    tls: Arc<ServerConfig>,
    pub ca_pem: String,
}

impl Web {
    pub fn new(download: Duration, pace: Pace, wall: Wall, entropy: &Entropy) -> Result<Arc<Self>, PkiError> {
        let (ca_pem, key) = Authority::generate("public web authority", &entropy.fork("web ca"), &wall)?;
        let mut request = CertificateRequest::server("web", &wall);
        request.names = HOSTS.into_iter().chain(crate::charts::HOSTS).map(str::to_owned).collect();
        request.life = Duration::from_secs(3650 * 24 * 3600);
        let pair = Authority::read(&ca_pem, &key)?.issue(&request, &entropy.fork("web"))?;
        let config = server_config(wall)
            .with_no_client_auth()
            .with_single_cert(vec![pair.certificate.clone()], pair.key_der());
        let tls = Arc::new(config.map_err(|_| PkiError::Certificate)?);
        Ok(Arc::new(Self {
            faults: Mutex::default(),
            download,
            pace,
            tls,
            ca_pem,
        }))
    }

    pub fn tls(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.tls)
    }

    pub fn set_faults(&self, faults: WebFaults) {
        *self.faults.lock().expect("plain data") = faults;
    }

    fn faults(&self) -> WebFaults {
        self.faults.lock().expect("plain data").clone()
    }

    /// By the name in the request.
    pub fn router(self: &Arc<Self>) -> Router {
        let web = Arc::clone(self);
        Router::new().fallback(move |request: Request| {
            let web = Arc::clone(&web);
            async move {
                let named = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
                let host = named.or(request.uri().host()).unwrap_or_default();
                let host = host.split(':').next().unwrap_or_default().to_owned();
                web.answer(&host, request.uri().path()).await
            }
        })
    }

    /// The same under `/mirror/<host>/…`, as an operator's own mirror has it.
    pub fn mirror(self: &Arc<Self>) -> Router {
        let web = Arc::clone(self);
        Router::new().route(
            "/mirror/{*path}",
            axum::routing::get(move |request: Request| {
                let web = Arc::clone(&web);
                async move {
                    let path = request.uri().path().strip_prefix("/mirror/").unwrap_or_default();
                    let (host, rest) = path.split_once('/').unwrap_or((path, ""));
                    web.answer(host, &format!("/{rest}")).await
                }
            }),
        )
    }

    async fn answer(&self, host: &str, path: &str) -> Response {
        let faults = self.faults();
        if faults.outage.contains(host) {
            return (StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable").into_response();
        }
        let path = path.replace("%2B", "+").replace("%2b", "+");
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        match host {
            "cloud-images.ubuntu.com" => self.ubuntu(&parts).await,
            "cloud.debian.org" => self.debian(&parts).await,
            "github.com" => release(&parts),
            "release-assets.githubusercontent.com" => self.asset(&parts).await,
            "update.rke2.io" => channel(Distro::Rke2, &parts),
            "update.k3s.io" => channel(Distro::K3s, &parts),
            "archive.ubuntu.com" | "security.ubuntu.com" | "deb.debian.org" => "package".into_response(),
            _ => not_found(),
        }
    }

    /// A large file: it takes its time, and on a bad day it is not what was published.
    async fn large(&self, bytes: Vec<u8>) -> Response {
        let faults = self.faults();
        self.pace.pass(self.download * faults.slowness.max(1)).await;
        let mut bytes = bytes;
        if faults.corrupt
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 0xff;
        }
        ([(header::CONTENT_TYPE, "application/octet-stream")], Bytes::from(bytes)).into_response()
    }

    async fn ubuntu(&self, parts: &[&str]) -> Response {
        if let ["jammy" | "noble" | "resolute"] = parts {
            return listing(&UBUNTU, "current");
        }
        let [code, directory, file] = parts else { return not_found() };
        let release = match *code {
            "jammy" => "22.04",
            "noble" => "24.04",
            "resolute" => "26.04",
            _ => return not_found(),
        };
        let Some(serial) = dated(directory, "current", &UBUNTU) else {
            return not_found();
        };
        let image = cloud_image("ubuntu", release, serial).to_qcow2();
        let name = format!("{code}-server-cloudimg-amd64.img");
        match *file {
            "SHA256SUMS" => format!("{} *{name}\n", hex::encode(Sha256::digest(&image))).into_response(),
            file if file == name => self.large(image.to_vec()).await,
            _ => not_found(),
        }
    }

    async fn debian(&self, parts: &[&str]) -> Response {
        if let ["images", "cloud", "bookworm" | "trixie"] = parts {
            return listing(&DEBIAN, "latest");
        }
        let ["images", "cloud", code, directory, file] = parts else {
            return not_found();
        };
        let release = match *code {
            "bookworm" => "12",
            "trixie" => "13",
            _ => return not_found(),
        };
        let Some(serial) = dated(directory, "latest", &DEBIAN) else {
            return not_found();
        };
        let image = cloud_image("debian", release, serial).to_qcow2();
        // In a dated directory the name carries the date too.
        let plain = format!("debian-{release}-generic-amd64.qcow2");
        let stamped = format!("debian-{release}-generic-amd64-{serial}.qcow2");
        let name = if *directory == "latest" { &plain } else { &stamped };
        match *file {
            "SHA512SUMS" => format!("{}  {name}\n", hex::encode(Sha512::digest(&image))).into_response(),
            file if file == name => self.large(image.to_vec()).await,
            _ => not_found(),
        }
    }

    async fn asset(&self, parts: &[&str]) -> Response {
        let [distro, version, file] = parts else { return not_found() };
        let distro = if *distro == "rke2" { Distro::Rke2 } else { Distro::K3s };
        let binary = Binary {
            distro,
            version: (*version).to_owned(),
        };
        let (name, bytes) = artifact(&binary);
        match *file {
            "sha256sum-amd64.txt" => format!("{}  {name}\n", hex::encode(Sha256::digest(&bytes))).into_response(),
            file if file == name => self.large(bytes).await,
            _ => not_found(),
        }
    }
}

/// The index page that a web server makes of a directory: both publishers use Apache's.
fn listing(dated: &[&str], moving: &str) -> Response {
    let row = |name: &&str| format!("<tr><td><a href=\"{name}/\">{name}/</a></td></tr>\n");
    let rows: String = dated.iter().chain([&moving]).map(row).collect();
    let page = format!(
        "<html><body><h1>Index</h1><table>\n<tr><td><a href=\"../\">Parent Directory</a></td></tr>\n{rows}</table></body></html>\n"
    );
    ([(header::CONTENT_TYPE, "text/html;charset=UTF-8")], page).into_response()
}

fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "Not Found").into_response()
}

fn dated(directory: &str, moving: &str, all: &[&'static str]) -> Option<&'static str> {
    if directory == moving {
        all.last().copied()
    } else {
        all.iter().copied().find(|known| *known == directory)
    }
}

fn cloud_image(os: &str, release: &str, serial: &str) -> CloudImage {
    CloudImage {
        os: os.to_owned(),
        release: release.to_owned(),
        serial: serial.to_owned(),
        arch: "amd64".to_owned(),
    }
}

fn releases(distro: Distro) -> &'static [&'static str] {
    match distro {
        Distro::Rke2 => &RKE2,
        Distro::K3s => &K3S,
    }
}

/// `/rancher/rke2/releases/download/<tag>/<file>`: GitHub sends its clients to object storage.
fn release(parts: &[&str]) -> Response {
    let (distro, version, file) = match parts {
        ["rancher", "rke2", "releases", "download", version, file] => (Distro::Rke2, version, file),
        ["k3s-io", "k3s", "releases", "download", version, file] => (Distro::K3s, version, file),
        _ => return not_found(),
    };
    if !releases(distro).contains(version) {
        return not_found();
    }
    let to = format!(
        "https://release-assets.githubusercontent.com/{}/{version}/{file}",
        distro.name()
    );
    (StatusCode::FOUND, [(header::LOCATION, to.replace('+', "%2B"))]).into_response()
}

/// `/v1-release/channels/<name>` leads to the release's page.
fn channel(distro: Distro, parts: &[&str]) -> Response {
    let latest = |minor: &str| {
        releases(distro)
            .iter()
            .rev()
            .find(|version| version.starts_with(&format!("{minor}.")))
            .copied()
    };
    let newest = releases(distro).last().copied();
    let stable = if distro == Distro::Rke2 {
        latest("v1.35")
    } else {
        latest("v1.36")
    };
    let page = |version: &str| match distro {
        Distro::Rke2 => format!("https://github.com/rancher/rke2/releases/tag/{}", version.replace('+', "%2B")),
        Distro::K3s => format!("https://github.com/k3s-io/k3s/releases/tag/{}", version.replace('+', "%2B")),
    };
    match parts {
        ["v1-release", "channels"] => {
            let names = ["stable", "latest", "v1.33", "v1.34", "v1.35", "v1.36"];
            let version = |name: &str| match name {
                "stable" => stable,
                "latest" => newest,
                minor => latest(minor),
            };
            let data: Vec<_> = names
                .iter()
                .map(|name| json!({"id": name, "name": name, "latest": version(name)}))
                .collect();
            axum::Json(json!({"type": "collection", "data": data})).into_response()
        }
        ["v1-release", "channels", name] => {
            let version = match *name {
                "stable" => stable,
                "latest" => newest,
                minor => latest(minor),
            };
            match version {
                Some(version) => (StatusCode::FOUND, [(header::LOCATION, page(version))]).into_response(),
                None => not_found(),
            }
        }
        _ => not_found(),
    }
}

/// The file of a release that a node needs.
fn artifact(binary: &Binary) -> (&'static str, Vec<u8>) {
    match binary.distro {
        Distro::K3s => ("k3s", binary.to_bytes()),
        Distro::Rke2 => ("rke2.linux-amd64.tar.gz", tarball(binary)),
    }
}

fn unit(kind: &str) -> String {
    let other = if kind == "server" { "agent" } else { "server" };
    format!(
        "[Unit]\nDescription=Rancher Kubernetes Engine v2 ({kind})\nWants=network-online.target\nAfter=network-online.target\nConflicts=rke2-{other}.service\n\n[Install]\nWantedBy=multi-user.target\n\n[Service]\nType=notify\nEnvironmentFile=-/etc/default/%N\nEnvironmentFile=-/usr/local/lib/systemd/system/%N.env\nKillMode=process\nDelegate=yes\nTimeoutStartSec=0\nRestart=always\nRestartSec=5s\nExecCondition=/bin/sh -xc '! /usr/bin/systemctl is-active --quiet rke2-{other}.service'\nExecStart=/usr/local/bin/rke2 {kind}\n"
    )
}

fn tarball(binary: &Binary) -> Vec<u8> {
    let killall = "#!/bin/sh\n# ends every container of this node\nexec /usr/local/bin/rke2 killall\n";
    let files: [(&str, Vec<u8>, u32); 7] = [
        ("bin/rke2", binary.to_bytes(), 0o755),
        ("bin/rke2-killall.sh", killall.as_bytes().to_vec(), 0o755),
        ("bin/rke2-uninstall.sh", b"#!/bin/sh\nexit 0\n".to_vec(), 0o755),
        ("lib/systemd/system/rke2-agent.env", b"HOME=/root\n".to_vec(), 0o644),
        ("lib/systemd/system/rke2-agent.service", unit("agent").into_bytes(), 0o644),
        ("lib/systemd/system/rke2-server.env", b"HOME=/root\n".to_vec(), 0o644),
        ("lib/systemd/system/rke2-server.service", unit("server").into_bytes(), 0o644),
    ];
    let entry = |(path, content, mode): (&str, Vec<u8>, u32)| Entry {
        path: path.to_owned(),
        mode,
        is_directory: false,
        content,
    };
    let plain = archive::pack(&files.map(entry));
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    let _ = packed.write_all(&plain);
    packed.finish().unwrap_or_default()
}
