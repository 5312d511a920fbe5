//! The machine API's accept loop. It differs from an ordinary one in how it ends: apid asks its clients to go (GOAWAY), leaves open
//! streams ten seconds, and then hangs up.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use mainstay_net::{BoxIo, Listener, Peer};
use rustls::ServerConfig;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Asked for every connection: certificates are renewed while the node runs.
pub(crate) type Certificate = dyn Fn() -> Arc<ServerConfig> + Send + Sync;

const GRACE: Duration = Duration::from_secs(10);

/// Serves until `closing`; then takes no new connections and lets the old ones end.
pub(crate) async fn listen(mut listener: Box<dyn Listener>, tls: Arc<Certificate>, app: Router, closing: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = closing.cancelled() => break,
            Some(_) = connections.join_next() => {}
            arrival = listener.accept() => match arrival {
                Ok((stream, peer)) => {
                    connections.spawn(connection(stream, peer, tls(), app.clone(), closing.clone()));
                }
                Err(_) => break,
            },
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    // After the grace period the set is dropped, and with it every connection.
    let _ = tokio::time::timeout(GRACE, ended).await;
}

async fn connection(stream: BoxIo, address: SocketAddr, tls: Arc<ServerConfig>, app: Router, closing: CancellationToken) {
    // A client that was refused learns it by an alert, which the acceptor has sent.
    let Ok(secured) = TlsAcceptor::from(tls).accept(stream).await else {
        return;
    };
    let certificates = secured.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
    let peer = Peer {
        address,
        certificates: certificates.into(),
    };
    let service = app.map_request(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer.clone());
        request
    });
    let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    builder.http2().timer(TokioTimer::new()).auto_date_header(false);
    let connection = builder.serve_connection(TokioIo::new(secured), TowerToHyperService::new(service));
    tokio::pin!(connection);
    let ended = tokio::select! {
        biased;
        () = closing.cancelled() => None,
        ended = connection.as_mut() => Some(ended),
    };
    if ended.is_none() {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}
