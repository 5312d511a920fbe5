//! What the tests share: a certificate authority, an application that tells what it sees, and clients for it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::Extension;
use axum::routing::{get, post};
use futures::future::BoxFuture;
use mainstay_net::http::{Body, HttpClient, HttpError, HttpOptions, HttpResponse};
use mainstay_net::{Connector, Dialer, Fingerprint, Identity, Peer, Secret, ServeOptions, Trust, Wall, crypto_provider};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PKCS_ED25519, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tonic::service::Routes;
use tonic_prost::ProstCodec;

pub const SECOND: Duration = Duration::from_secs(1);
pub const HOUR: Duration = Duration::from_secs(3600);

pub fn wall() -> Wall {
    Wall::at("2027-01-01T00:00:00Z".parse().unwrap())
}

/// A certificate authority, valid from 2025 to 2035.
pub struct Pki {
    ca: CertifiedIssuer<'static, KeyPair>,
}

pub struct Leaf {
    pub certificate: CertificateDer<'static>,
    pub cert_pem: String,
    pub key_pem: String,
}

impl Pki {
    /// All of them bear the same name, as the authorities of Talos and Kubernetes clusters do.
    pub fn new() -> Self {
        Self::named("kubernetes")
    }

    pub fn named(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (date_time_ymd(2025, 1, 1), date_time_ymd(2035, 1, 1));
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        Self {
            ca: CertifiedIssuer::self_signed(params, key).unwrap(),
        }
    }

    pub fn ca_pem(&self) -> String {
        self.ca.pem()
    }

    /// A certificate for `names`, valid during 2026 and 2027.
    pub fn leaf(&self, names: &[&str]) -> Leaf {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2028, 1, 1));
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let certificate = params.signed_by(&key, &self.ca).unwrap();
        Leaf {
            certificate: certificate.der().clone(),
            cert_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        }
    }

    /// Trust in this authority, without a client certificate.
    pub fn trust(&self) -> Trust {
        Trust::Ca {
            ca_pem: self.ca_pem(),
            identity: None,
            server_name: None,
        }
    }

    pub fn trust_as(&self, client: &Leaf) -> Trust {
        Trust::Ca {
            ca_pem: self.ca_pem(),
            identity: Some(client.identity()),
            server_name: None,
        }
    }
}

impl Leaf {
    pub fn identity(&self) -> Identity {
        Identity {
            cert_pem: self.cert_pem.clone(),
            key_pem: Secret::new(self.key_pem.clone()),
        }
    }

    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        mainstay_net::pem::private_key(&self.key_pem).unwrap()
    }

    /// A server with this certificate that speaks TLS 1.3 only.
    pub fn server(&self) -> Arc<ServerConfig> {
        let builder = tls13().with_no_client_auth();
        finish(builder.with_single_cert(vec![self.certificate.clone()], self.key()).unwrap())
    }

    /// Shows this certificate but holds another key.
    pub fn impostor(&self, other: &Leaf) -> Arc<ServerConfig> {
        let key = crypto_provider().key_provider.load_private_key(other.key()).unwrap();
        let pair = CertifiedKey::new(vec![self.certificate.clone()], key);
        finish(
            tls13()
                .with_no_client_auth()
                .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair))),
        )
    }

    /// The same as [`Leaf::server`], and it wants a client certificate signed by `client_ca_pem`.
    pub fn mutual_server(&self, client_ca_pem: &str) -> Arc<ServerConfig> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in mainstay_net::pem::certificates(client_ca_pem).unwrap() {
            roots.add(certificate).unwrap();
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), crypto_provider())
            .build()
            .unwrap();
        let builder = tls13().with_client_cert_verifier(verifier);
        finish(builder.with_single_cert(vec![self.certificate.clone()], self.key()).unwrap())
    }
}

fn tls13() -> rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier> {
    ServerConfig::builder_with_details(crypto_provider(), Arc::new(wall()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
}

fn finish(mut config: ServerConfig) -> Arc<ServerConfig> {
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

/// Answers HTTP on `/` and `/len`, and gRPC on `/test.Echo/Shout`; everywhere it tells who asked.
pub fn app() -> axum::Router {
    let grpc = Routes::new(Echo).into_axum_router();
    grpc.route("/", get(whoami)).route("/len", post(length))
}

async fn whoami(Extension(peer): Extension<Peer>, request: axum::extract::Request) -> String {
    format!(
        "{:?} from {} with {} certificates",
        request.version(),
        peer.address.ip(),
        peer.certificates.len()
    )
}

async fn length(headers: http::HeaderMap, body: axum::body::Bytes) -> String {
    let header = |name| headers.get(name).map_or("none", |value| value.to_str().unwrap());
    format!(
        "content-length {}, transfer-encoding {}, got {}",
        header("content-length"),
        header("transfer-encoding"),
        body.len()
    )
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Text {
    #[prost(string, tag = "1")]
    pub text: String,
}

#[derive(Clone)]
struct Echo;

impl tonic::server::NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

impl tower::Service<http::Request<tonic::body::Body>> for Echo {
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let shout = tower::service_fn(|request: tonic::Request<Text>| async move {
            let certificates = request.extensions().get::<Peer>().map_or(0, |peer| peer.certificates.len());
            let text = format!("{} with {certificates} certificates", request.get_ref().text.to_uppercase());
            Ok::<_, tonic::Status>(tonic::Response::new(Text { text }))
        });
        Box::pin(async move {
            let codec = ProstCodec::<Text, Text>::default();
            Ok(tonic::server::Grpc::new(codec).unary(shout, request).await)
        })
    }
}

/// Starts [`app`] on a network and gives its address.
pub async fn start(network: &dyn mainstay_net::Binder, at: &str, options: ServeOptions) -> SocketAddr {
    start_app(network, at, app(), options).await
}

pub async fn start_app(network: &dyn mainstay_net::Binder, at: &str, app: axum::Router, options: ServeOptions) -> SocketAddr {
    let listener = network.bind(at.parse().unwrap()).await.unwrap();
    let address = listener.address();
    tokio::spawn(mainstay_net::serve(listener, app, options));
    address
}

pub fn connector(dialer: &Arc<dyn Dialer>, trust: &Trust) -> Connector {
    Connector::new(Arc::clone(dialer), trust, wall(), SECOND * 5).unwrap()
}

pub fn client(dialer: &Arc<dyn Dialer>, trust: &Trust) -> HttpClient {
    HttpClient::new(connector(dialer, trust), HttpOptions::default())
}

pub fn http1_client(dialer: &Arc<dyn Dialer>, trust: &Trust) -> HttpClient {
    HttpClient::new(
        connector(dialer, trust),
        HttpOptions {
            http1_only: true,
            ..HttpOptions::default()
        },
    )
}

pub async fn get_from(client: &HttpClient, at: SocketAddr) -> Result<HttpResponse, HttpError> {
    get_url(client, &format!("https://{at}/")).await
}

pub async fn get_url(client: &HttpClient, url: &str) -> Result<HttpResponse, HttpError> {
    let request = http::Request::get(url).body(Body::empty()).unwrap();
    client.send(request, SECOND * 10).await
}

pub fn text(answer: &HttpResponse) -> String {
    String::from_utf8(answer.body.to_vec()).unwrap()
}

/// Calls the gRPC service.
pub async fn shout(connector: Connector, at: SocketAddr, text: &str) -> Result<String, tonic::Status> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{at}")).unwrap();
    let mut grpc = tonic::client::Grpc::new(endpoint.connect_with_connector_lazy(connector));
    grpc.ready()
        .await
        .map_err(|cause| tonic::Status::from_error(Box::new(cause)))?;
    let path = http::uri::PathAndQuery::from_static("/test.Echo/Shout");
    let request = tonic::Request::new(Text { text: text.to_owned() });
    let answer = grpc.unary(request, path, ProstCodec::<Text, Text>::default()).await?;
    Ok(answer.into_inner().text)
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
