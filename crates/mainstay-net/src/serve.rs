//! The accept loop of every server in the program: HTTP/1.1, HTTP/2 and gRPC, plain or over TLS, on any [`Listener`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::http::{Request, Response};
use axum::Router;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::dial::BoxIo;
use crate::listen::Listener;

/// How connections are served.
#[derive(Clone, Default)]
pub struct ServeOptions {
    pub tls: Option<ServerTls>,
    pub versions: HttpVersions,
    /// Hang up on a client that sends no request for this long, between requests too (HTTP/1.1). Proxmox VE: 5 s.
    pub idle: Option<Duration>,
}

/// Which HTTP versions are spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpVersions {
    /// What the client begins with.
    #[default]
    Auto,
    Http1Only,
    /// HTTP/2 without asking: gRPC.
    Http2Only,
}

/// Where the TLS configuration comes from.
#[derive(Clone)]
pub enum ServerTls {
    Fixed(Arc<ServerConfig>),
    /// Asked anew for every connection: for certificates that are renewed, or a server that changes its mode.
    PerConnection(Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>),
}

impl From<Arc<ServerConfig>> for ServerTls {
    fn from(config: Arc<ServerConfig>) -> Self {
        Self::Fixed(config)
    }
}

impl ServerTls {
    fn config(&self) -> Arc<ServerConfig> {
        match self {
            Self::Fixed(config) => Arc::clone(config),
            Self::PerConnection(config) => config(),
        }
    }
}

impl ServeOptions {
    pub fn plain() -> Self {
        Self::default()
    }

    pub fn tls(config: impl Into<ServerTls>) -> Self {
        Self {
            tls: Some(config.into()),
            ..Self::default()
        }
    }

    pub fn http1_only(self) -> Self {
        Self {
            versions: HttpVersions::Http1Only,
            ..self
        }
    }
}

/// Who asks. Every request carries it as an extension; `axum::extract::ConnectInfo<SocketAddr>` works too.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// The client's certificates, leaf first, as verified by the server configuration; empty without client authentication.
    pub certificates: Arc<[CertificateDer<'static>]>,
}

/// In an answer's extensions: the connection ends without an answer, although the request was carried out.
/// (On HTTP/2 the stream ends.)
#[derive(Clone, Copy, Debug)]
pub struct HangUp;

#[derive(Debug, thiserror::Error)]
#[error("the handler hung up")]
struct HungUp;

/// Serves until the listener fails, which is what it returns.
///
/// Dropping the future drops the listener and every connection at once: a crash of the server. A handler chooses its reason
/// phrase by [`set_reason`], hangs up after its answer by the header `connection: close`, and without one by [`HangUp`].
pub async fn serve(mut listener: Box<dyn Listener>, app: Router, options: ServeOptions) -> io::Error {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            arrival = listener.accept() => match arrival {
                Ok((stream, peer)) => {
                    connections.spawn(serve_connection(stream, peer, app.clone(), options.clone()));
                }
                Err(fault) => return fault,
            },
        }
    }
}

/// Gives an answer its own reason phrase (HTTP/1.1). What cannot stand in a status line becomes a blank.
pub fn set_reason<B>(response: &mut Response<B>, phrase: &str) {
    let printable = |byte: u8| if byte < b' ' || byte == 0x7f { b' ' } else { byte };
    let bytes: Vec<u8> = phrase.bytes().map(printable).collect();
    if let Ok(phrase) = ReasonPhrase::try_from(bytes) {
        response.extensions_mut().insert(phrase);
    }
}

async fn serve_connection(stream: BoxIo, address: SocketAddr, app: Router, options: ServeOptions) {
    let (stream, certificates) = match &options.tls {
        None => (stream, Vec::new()),
        Some(tls) => match TlsAcceptor::from(tls.config()).accept(stream).await {
            Ok(secured) => {
                let certificates = secured.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
                (Box::new(secured) as BoxIo, certificates)
            }
            Err(fault) => return tracing::debug!(%address, %fault, "TLS handshake failed"),
        },
    };
    let peer = Peer {
        address,
        certificates: certificates.into(),
    };
    let service = tower::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer.address));
        request.extensions_mut().insert(peer.clone());
        let answering = app.clone().oneshot(request);
        async {
            let answer = answering.await.unwrap_or_else(|never| match never {});
            if answer.extensions().get::<HangUp>().is_some() {
                Err(HungUp)
            } else {
                Ok(answer)
            }
        }
    });
    let served = builder(&options)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
        .await;
    if let Err(fault) = served {
        tracing::debug!(%address, fault, "connection ended");
    }
}

fn builder(options: &ServeOptions) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // The date would come from the real clock.
    builder
        .http1()
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .header_read_timeout(options.idle);
    builder.http2().timer(TokioTimer::new()).auto_date_header(false);
    match options.versions {
        HttpVersions::Auto => builder,
        HttpVersions::Http1Only => builder.http1_only(),
        HttpVersions::Http2Only => builder.http2_only(),
    }
}
