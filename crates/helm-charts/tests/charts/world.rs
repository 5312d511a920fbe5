//! A registry, a token server, a blob store on another host, and an HTTP repository.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use helm_charts::pull::RegistryLogin;
use helm_charts::{ChartClient, ChartRequest, ChartSource, Mirrors, Sha256Digest};
use mainstay_net::{Binder, Env, Secret, ServeOptions, SimNet, Trust, Wall, crypto_provider, serve, simulate};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PKCS_ED25519, date_time_ymd};
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;

pub const CHART_LAYER: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";

/// A chart archive with these files below its directory.
pub fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (path, content) in files {
        let mut head = tar::Header::new_gnu();
        head.set_size(content.len() as u64);
        head.set_mode(0o644);
        head.set_cksum();
        builder
            .append_data(&mut head, format!("demo/{path}"), *content)
            .expect("appended");
    }
    builder.into_inner().expect("a tar").finish().expect("a gzip")
}

pub fn demo(version: &str) -> Vec<u8> {
    let metadata = format!("apiVersion: v2\nname: demo\nversion: {version}\nappVersion: 1.30\n");
    archive(&[
        ("Chart.yaml", metadata.as_bytes()),
        ("values.yaml", b"replicas: 1\nimage: {tag: x}\n"),
    ])
}

/// What the servers do and what they saw.
#[derive(Default)]
pub struct Site {
    /// By path with query.
    pub pages: BTreeMap<String, Page>,
    /// Without this header a page is answered with 401.
    pub protected: Option<String>,
    pub challenge: Option<String>,
    /// Host of the server, path, `Authorization`.
    pub seen: Vec<(String, String, Option<String>)>,
}

#[derive(Clone)]
pub enum Page {
    Bytes(Vec<u8>),
    Redirect(String),
    Status(u16),
}

pub type Shared = Arc<Mutex<BTreeMap<String, Site>>>;

/// Servers by name, each with its own pages.
pub struct World {
    pub net: SimNet,
    pub sites: Shared,
    env: Env,
    authority: CertifiedIssuer<'static, KeyPair>,
    next: u8,
}

/// Runs a test on virtual time.
pub fn run<T: Future<Output = ()>>(test: impl FnOnce(World) -> T + Send + 'static) {
    simulate(7, Duration::from_secs(3600), |entropy| {
        let net = SimNet::new(entropy.fork("net"));
        let wall = Wall::at("2027-01-01T00:00:00Z".parse().expect("a time"));
        let env = Env {
            dialer: Arc::new(net.clone()),
            wall,
            entropy,
        };
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (date_time_ymd(2025, 1, 1), date_time_ymd(2035, 1, 1));
        let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
        test(World {
            net,
            sites: Shared::default(),
            env,
            authority: CertifiedIssuer::self_signed(params, key).expect("an authority"),
            next: 1,
        })
    })
    .expect("the test ended");
}

impl World {
    pub fn client(&self, mirrors: Mirrors) -> ChartClient {
        let trust = Trust::Ca {
            ca_pem: self.authority.pem(),
            identity: None,
            server_name: None,
        };
        ChartClient::new(&self.env, &trust, mirrors).expect("a client")
    }

    /// A server with TLS at this name.
    pub async fn server(&mut self, name: &str, site: Site) {
        let address = std::net::IpAddr::from([10, 0, 0, self.next]);
        self.next += 1;
        self.net.name(name, [address]);
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2028, 1, 1));
        let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
        let certificate = params.signed_by(&key, &self.authority).expect("a certificate");
        let config = rustls::ServerConfig::builder_with_provider(crypto_provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
            )
            .expect("a config");
        let listener = self.net.bind((address, 443).into()).await.expect("bound");
        self.sites.lock().expect("unpoisoned").insert(name.to_owned(), site);
        let app = app(name, &self.sites);
        tokio::spawn(serve(listener, app, ServeOptions::tls(Arc::new(config))));
    }

    /// A server without TLS on loopback.
    pub async fn loopback(&mut self, site: Site) {
        let listener = self
            .net
            .bind("127.0.0.1:5000".parse().expect("an address"))
            .await
            .expect("bound");
        self.sites
            .lock()
            .expect("unpoisoned")
            .insert("127.0.0.1:5000".to_owned(), site);
        tokio::spawn(serve(listener, app("127.0.0.1:5000", &self.sites), ServeOptions::plain()));
    }

    pub fn seen(&self, name: &str) -> Vec<(String, Option<String>)> {
        let sites = self.sites.lock().expect("unpoisoned");
        sites[name]
            .seen
            .iter()
            .map(|(_, path, authorization)| (path.clone(), authorization.clone()))
            .collect()
    }
}

fn app(name: &str, sites: &Shared) -> Router {
    Router::new()
        .route("/{*path}", get(answer))
        .with_state((name.to_owned(), Arc::clone(sites)))
}

async fn answer(State((name, sites)): State<(String, Shared)>, Path(_): Path<String>, uri: Uri, headers: HeaderMap) -> Response {
    let mut sites = sites.lock().expect("unpoisoned");
    let site = sites.get_mut(&name).expect("known");
    let path = uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let authorization = headers
        .get(header::AUTHORIZATION)
        .map(|value| value.to_str().expect("text").to_owned());
    site.seen.push((name, path.clone(), authorization.clone()));
    if site.protected.is_some() && authorization != site.protected {
        let challenge = site.challenge.clone().unwrap_or_default();
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)], "log in").into_response();
    }
    match site.pages.get(&path).cloned() {
        Some(Page::Bytes(bytes)) => bytes.into_response(),
        Some(Page::Redirect(to)) => (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response(),
        Some(Page::Status(code)) => (StatusCode::from_u16(code).expect("a code"), "because").into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// The pages of a registry that has one chart.
pub fn registry(repository: &str, tag: &str, chart: &[u8]) -> Site {
    let layer = Sha256Digest::of(chart);
    let manifest = json!({
        "schemaVersion": 2,
        "config": { "mediaType": "application/vnd.cncf.helm.config.v1+json", "digest": Sha256Digest::of(b"{}"), "size": 2 },
        "layers": [{ "mediaType": CHART_LAYER, "digest": layer, "size": chart.len() }],
    })
    .to_string()
    .into_bytes();
    let mut site = Site::default();
    let digest = Sha256Digest::of(&manifest);
    for reference in [tag.to_owned(), digest.to_string()] {
        let path = format!("/v2/{repository}/manifests/{reference}");
        site.pages.insert(path, Page::Bytes(manifest.clone()));
    }
    site.pages
        .insert(format!("/v2/{repository}/blobs/{layer}"), Page::Bytes(chart.to_vec()));
    site
}

pub fn request(source: &str, chart: Option<&str>, version: &str) -> ChartRequest {
    ChartRequest {
        source: ChartSource::parse(source, chart).expect(source),
        version: version.to_owned(),
    }
}

pub fn login(host: &str) -> Mirrors {
    let login = RegistryLogin {
        username: "user".into(),
        password: Secret::new("canary".to_owned()),
    };
    Mirrors {
        credentials: [(host.to_owned(), login)].into(),
        ..Mirrors::default()
    }
}

/// A gzip of many zeros: small on the wire, large in memory.
pub fn bomb(size: usize) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let mut head = tar::Header::new_gnu();
    head.set_size(size as u64);
    head.set_path("demo/Chart.yaml").expect("a path");
    head.set_cksum();
    encoder.write_all(head.as_bytes()).expect("written");
    let zeros = vec![0; 1 << 20];
    for _ in 0..size >> 20 {
        encoder.write_all(&zeros).expect("written");
    }
    encoder.write_all(&[0; 1024]).expect("written");
    encoder.finish().expect("a gzip")
}
