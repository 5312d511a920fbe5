//! Accepts connections and keeps them as pveproxy does: 100 requests, closed after any error.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use mainstay_net::{BoxIo, Fingerprint, Listener};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::envelope::compress;
use super::wire::{Incoming, Manner, Response, read_request, write_response};
use crate::datacenter::{Datacenter, Verdict};

const REQUESTS_PER_CONNECTION: usize = 100;

/// The running endpoints. Dropping it takes them down, connections included.
pub struct Serving {
    _tasks: JoinSet<()>,
    addresses: BTreeMap<String, SocketAddr>,
}

impl Serving {
    /// Where each host listens.
    pub fn addresses(&self) -> &BTreeMap<String, SocketAddr> {
        &self.addresses
    }
}

/// Starts an endpoint per host.
pub async fn serve(dc: &Datacenter, at: BTreeMap<String, SocketAddr>) -> io::Result<Serving> {
    let mut tasks = JoinSet::new();
    let mut addresses = BTreeMap::new();
    for (host, address) in at {
        let listener = dc.network().bind(address).await?;
        addresses.insert(host.clone(), listener.address());
        let tls = if dc.uses_tls() { Some(certificate(dc, &host)?) } else { None };
        tasks.spawn(accept(dc.clone(), host, listener, tls));
    }
    Ok(Serving {
        _tasks: tasks,
        addresses,
    })
}

/// A leaf of its own for every host, as the cluster CA would have made.
fn certificate(dc: &Datacenter, host: &str) -> io::Result<TlsAcceptor> {
    let fault = |e: &dyn std::fmt::Display| io::Error::other(e.to_string());
    let names = vec![host.to_string(), "localhost".to_string(), "127.0.0.1".to_string()];
    let made = rcgen::generate_simple_self_signed(names).map_err(|e| fault(&e))?;
    let leaf = made.cert.der().clone();
    dc.set_fingerprint(host, Fingerprint::of(&leaf).to_string());
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let mut config: ServerConfig = mainstay_net::server_config(dc.wall())
        .with_no_client_auth()
        .with_single_cert(vec![leaf], key)
        .map_err(|e| fault(&e))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept(dc: Datacenter, host: String, mut listener: Box<dyn Listener>, tls: Option<TlsAcceptor>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // A host that is off, or whose pveproxy is down, hangs up at once.
                    if dc.is_reachable(&host) {
                        connections.spawn(connection(dc.clone(), host.clone(), stream, tls.clone()));
                    }
                }
                Err(_) => return,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn connection(dc: Datacenter, host: String, stream: BoxIo, tls: Option<TlsAcceptor>) {
    // An error on one connection must not affect the others.
    let _ = match tls {
        Some(acceptor) => match acceptor.accept(stream).await {
            Ok(stream) => converse(dc, &host, stream).await,
            Err(e) => Err(e),
        },
        None => converse(dc, &host, stream).await,
    };
}

async fn converse<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
    dc: Datacenter,
    host: &str,
    mut stream: S,
) -> io::Result<()> {
    let mut left = BytesMut::new();
    let limit = dc.body_limit();
    for count in 1..=REQUESTS_PER_CONNECTION {
        let (request, response) = match read_request(&mut stream, &mut left, limit).await? {
            Incoming::Gone => return Ok(()),
            Incoming::Refused(request, response) => (request, response),
            Incoming::Request(request) => {
                let verdict = dc.answer(host, &request).await;
                match verdict {
                    Verdict::Answer(response) => (request, response),
                    Verdict::HangUp => return Ok(()),
                }
            }
        };
        let close = must_close(&response) || request.wants_close() || count == REQUESTS_PER_CONNECTION;
        let manner = Manner {
            old: request.old,
            close,
            date: dc.wall().now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string(),
        };
        write_response(&mut stream, &compress(&request, response), &manner).await?;
        if close {
            tokio::io::AsyncWriteExt::shutdown(&mut stream).await?;
            return Ok(());
        }
    }
    Ok(())
}

fn must_close(response: &Response) -> bool {
    response.status >= 400 || response.bare
}
