//! The authorities of a cluster in `server/tls`, and the certificates that a server makes of them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use mainstay_net::{ServeOptions, ServerTls};
use rustls::ServerConfig;
use sha2::Digest;

use super::Distro;
use super::config::Config;
use crate::cloud::host::Host;
use crate::pki::{Authority, Request};
use crate::talos::tls as common;

/// Pairs of certificate and key; the last is a key alone.
const PAIRS: [&str; 5] = [
    "server-ca",
    "client-ca",
    "request-header-ca",
    "etcd/peer-ca",
    "etcd/server-ca",
];
const SERVICE_KEY: &str = "service.key";

/// The files by name, as a joining server receives them.
pub(crate) type Authorities = BTreeMap<String, String>;

fn directory(distro: Distro) -> String {
    format!("{}/server/tls", distro.data())
}

/// What is on the disk. A pair that is not whole is replaced by a new one.
pub(crate) fn complete(host: &Host, distro: Distro) -> Authorities {
    let base = directory(distro);
    let mut files = Authorities::new();
    for pair in PAIRS {
        let read = |suffix: &str| host.fs.text(&format!("{base}/{pair}.{suffix}"));
        let (certificate, key) = match (read("crt"), read("key")) {
            (Some(certificate), Some(key)) => (certificate, key),
            _ => generate(host, &format!("{}-{}", distro.name(), pair.replace('/', "-"))),
        };
        files.insert(format!("{pair}.crt"), certificate);
        files.insert(format!("{pair}.key"), key);
    }
    let service = host.fs.text(&format!("{base}/{SERVICE_KEY}"));
    files.insert(
        SERVICE_KEY.to_owned(),
        service.unwrap_or_else(|| "-----BEGIN RSA PRIVATE KEY-----\n-----END RSA PRIVATE KEY-----\n".to_owned()),
    );
    files
}

fn generate(host: &Host, name: &str) -> (String, String) {
    let serial = host.site.next_serial();
    let made = Authority::generate(
        &format!("{name}@{}", host.now()),
        &host.entropy.fork(&format!("ca {name} {serial}")),
        &host.site.wall,
    );
    made.unwrap_or_default()
}

pub(crate) fn write(host: &Host, distro: Distro, files: &Authorities) {
    let base = directory(distro);
    for (name, text) in files {
        let mode = if name.ends_with(".key") { 0o600 } else { 0o644 };
        host.fs.install(&format!("{base}/{name}"), text.clone(), mode, host.now());
    }
}

/// The hash in a K10 token: of the file as it lies on the disk.
pub(crate) fn hash(files: &Authorities) -> String {
    hex::encode(sha2::Sha256::digest(
        files.get("server-ca.crt").map(String::as_str).unwrap_or_default(),
    ))
}

/// How supervisor and API server speak TLS: a client may show a certificate of the client CA, or none.
pub(crate) fn serving(host: &Arc<Host>, distro: Distro, config: &Config, files: &Authorities) -> Option<ServeOptions> {
    let authority = Authority::read(&files["server-ca.crt"], &files["server-ca.key"]).ok()?;
    let wall = host.site.wall;
    let mut request = Request::server(distro.name(), &wall);
    // The certificate begins an hour ago, so that a clock that is a little off does not matter.
    request.not_before = wall
        .now()
        .checked_sub(std::time::Duration::from_secs(3600))
        .unwrap_or(wall.now());
    request.life = std::time::Duration::from_secs(365 * 24 * 3600);
    let sans = config.list("tls-san");
    let names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
    ];
    let all: Vec<String> = names
        .map(str::to_owned)
        .into_iter()
        .chain([config.node_name(host)])
        .chain(sans.clone())
        .collect();
    request.names = common::dns_names(&all);
    let fixed = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 43, 0, 1])];
    request.addresses = host
        .addresses()
        .into_iter()
        .chain(fixed)
        .chain(sans.iter().filter_map(|san| san.parse().ok()))
        .collect();
    let pair = authority
        .issue(&request, &host.entropy.fork(&format!("serving {}", host.site.next_serial())))
        .ok()?;
    let tls: Arc<ServerConfig> = common::optional(&pair, &files["client-ca.crt"], wall).ok()?;
    Some(ServeOptions::tls(ServerTls::from(tls)))
}
