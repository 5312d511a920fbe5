//! One way to reach a server: dial, shake hands, one time limit over both. HTTP, gRPC and Kubernetes clients all stand on it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::Uri;
use futures::future::BoxFuture;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, ClientConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::dial::{BoxIo, Dialer};
use crate::env::Wall;
use crate::error::{DialError, DialFault, Operation};
use crate::fingerprint::Fingerprint;
use crate::http::client_alert;
use crate::target::Target;
use crate::trust::{Reason, Rejection, Trust, TrustError};

/// Dials, then secures. A `tower::Service<Uri>`: hyper-util, tonic and kube take it as it is.
///
/// Whether TLS is spoken is decided by [`Trust`], never by the URI's scheme: tonic wants `http://` when the connector brings TLS.
#[derive(Clone)]
pub struct Connector {
    shared: Arc<ConnectorConfig>,
}

#[derive(Clone)]
struct ConnectorConfig {
    dialer: Arc<dyn Dialer>,
    tls: Option<(Arc<ClientConfig>, Option<ServerName<'static>>)>,
    timeout: Duration,
}

/// Which HTTP versions to offer in the TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alpn {
    /// Proxmox VE speaks nothing else.
    Http1,
    /// gRPC.
    Http2,
    Both,
}

impl Alpn {
    fn protocols(self) -> Vec<Vec<u8>> {
        let (h1, h2) = (b"http/1.1".to_vec(), b"h2".to_vec());
        match self {
            Self::Http1 => vec![h1],
            Self::Http2 => vec![h2],
            Self::Both => vec![h2, h1],
        }
    }
}

impl Connector {
    /// `timeout` bounds dial and TLS handshake together. Offers both HTTP versions; see [`Connector::with_alpn`].
    pub fn new(dialer: Arc<dyn Dialer>, trust: &Trust, wall: Wall, timeout: Duration) -> Result<Self, TrustError> {
        let name = trust.server_name()?;
        let tls = trust.client_config(wall)?.map(|config| (Arc::new(config), name));
        Ok(Self {
            shared: Arc::new(ConnectorConfig { dialer, tls, timeout }),
        }
        .with_alpn(Alpn::Both))
    }

    pub fn with_alpn(self, alpn: Alpn) -> Self {
        self.offering(alpn.protocols())
    }

    fn offering(self, protocols: Vec<Vec<u8>>) -> Self {
        // Connectors that offer the same share one TLS config.
        let offers = |(config, _): &(Arc<ClientConfig>, _)| config.alpn_protocols == protocols;
        if self.shared.tls.as_ref().is_none_or(offers) {
            return self;
        }
        let mut shared = (*self.shared).clone();
        if let Some((config, _)) = &mut shared.tls {
            Arc::make_mut(config).alpn_protocols = protocols;
        }
        Self {
            shared: Arc::new(shared),
        }
    }

    /// A secured stream to `to`.
    pub async fn connect(&self, to: &Target) -> Result<Wire, DialError> {
        Ok(match self.reach(to).await? {
            Reached::Plain(stream) => Wire::new(stream, false),
            Reached::Secured(stream) => {
                let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                Wire::new(stream, h2)
            }
        })
    }

    /// The alert by which the server turns our client certificate away, if it does.
    ///
    /// In TLS 1.3 it does so after the handshake, and all that an HTTP/2 client then sees is a connection that closes. So one is opened
    /// for nothing but to read the reason.
    pub async fn refusal(&self, to: &Target) -> Option<AlertDescription> {
        let mut wire = self.connect(to).await.ok()?;
        let heard = timeout_at(Instant::now() + self.shared.timeout, wire.read_u8()).await.ok()?;
        client_alert(&heard.err()?)
    }

    async fn reach(&self, to: &Target) -> Result<Reached, DialError> {
        let ConnectorConfig { dialer, tls, timeout } = &*self.shared;
        let until = Instant::now() + *timeout;
        let late = |operation| move |_| DialError::new(to.clone(), operation, DialFault::TimedOut { after: *timeout });
        let stream = timeout_at(until, dialer.dial(to)).await.map_err(late(Operation::Connect))??;
        let Some((config, name)) = tls else {
            return Ok(Reached::Plain(stream));
        };
        let secured = timeout_at(until, handshake(config, name.as_ref(), to, stream))
            .await
            .map_err(late(Operation::TlsHandshake))??;
        Ok(Reached::Secured(Box::new(secured)))
    }
}

enum Reached {
    Plain(BoxIo),
    Secured(Box<TlsStream<BoxIo>>),
}

/// The certificates a server presents, leaf first, not verified: what a user is asked to confirm.
pub async fn presented_chain(
    dialer: Arc<dyn Dialer>,
    to: &Target,
    wall: Wall,
    timeout: Duration,
) -> Result<Vec<CertificateDer<'static>>, DialError> {
    let failed = |cause: TrustError| {
        DialError::new(
            to.clone(),
            Operation::TlsHandshake,
            DialFault::Tls(rustls::Error::General(cause.to_string())),
        )
    };
    let connector = Connector::new(dialer, &Trust::Nothing, wall, timeout)
        .map_err(failed)?
        .offering(Vec::new());
    match connector.reach(to).await? {
        Reached::Plain(_) => Ok(Vec::new()),
        Reached::Secured(stream) => Ok(stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec()),
    }
}

async fn handshake(
    config: &Arc<ClientConfig>,
    name: Option<&ServerName<'static>>,
    to: &Target,
    stream: BoxIo,
) -> Result<TlsStream<BoxIo>, DialError> {
    let failed = |fault| DialError::new(to.clone(), Operation::TlsHandshake, fault);
    let name = match name {
        Some(name) => name.clone(),
        None => ServerName::try_from(to.host.clone()).map_err(|_| {
            failed(DialFault::Tls(rustls::Error::General(format!(
                "`{}` is no server name",
                to.host
            ))))
        })?,
    };
    TlsConnector::from(Arc::clone(config))
        .connect(name, stream)
        .await
        .map_err(|cause| failed(tls_fault(cause)))
}

fn tls_fault(cause: io::Error) -> DialFault {
    match cause.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(error) => sort_tls(error),
        None => DialFault::from_io(cause),
    }
}

fn sort_tls(error: &rustls::Error) -> DialFault {
    if let Some(rejection) = Rejection::find(error) {
        return sort_rejection(rejection);
    }
    match error {
        rustls::Error::AlertReceived(alert) if refuses_client(*alert) => DialFault::ClientRefused(*alert),
        rustls::Error::InvalidMessage(_) => DialFault::NotTls,
        other => DialFault::Tls(other.clone()),
    }
}

/// Alerts by which a server turns away a client certificate, or its absence.
pub(crate) fn refuses_client(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateExpired
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::DecryptError
            | Alert::AccessDenied
    )
}

fn sort_rejection(rejection: &Rejection) -> DialFault {
    use CertificateError as Bad;
    let seen = rejection.seen;
    let cause = match &rejection.cause {
        Reason::WrongPin { expected } => {
            return DialFault::WrongPin {
                expected: *expected,
                seen,
            };
        }
        Reason::Invalid(cause) => cause,
    };
    let rustls::Error::InvalidCertificate(bad) = cause else {
        return DialFault::BadCertificate {
            seen,
            cause: cause.clone(),
        };
    };
    match bad {
        Bad::Expired => DialFault::Expired { seen, since: None },
        Bad::ExpiredContext { not_after, .. } => DialFault::Expired {
            seen,
            since: timestamp(*not_after),
        },
        Bad::NotValidYet => DialFault::NotYetValid { seen, until: None },
        Bad::NotValidYetContext { not_before, .. } => DialFault::NotYetValid {
            seen,
            until: timestamp(*not_before),
        },
        // Clusters name their authorities alike, so that another cluster's certificate fails by signature, not by issuer.
        Bad::UnknownIssuer | Bad::BadSignature => DialFault::UnknownIssuer { seen },
        Bad::NotValidForName => DialFault::WrongName {
            seen,
            presented: Vec::new(),
        },
        Bad::NotValidForNameContext { presented, .. } => DialFault::WrongName {
            seen,
            presented: presented.clone(),
        },
        _ => DialFault::BadCertificate {
            seen,
            cause: cause.clone(),
        },
    }
}

fn timestamp(at: UnixTime) -> Option<Timestamp> {
    Timestamp::from_second(i64::try_from(at.as_secs()).ok()?).ok()
}

/// The fingerprint of what `to` presents right now.
pub async fn presented_fingerprint(
    dialer: Arc<dyn Dialer>,
    to: &Target,
    wall: Wall,
    timeout: Duration,
) -> Result<Fingerprint, DialError> {
    let chain = presented_chain(dialer, to, wall, timeout).await?;
    let none = || {
        DialError::new(
            to.clone(),
            Operation::TlsHandshake,
            DialFault::Tls(rustls::Error::NoCertificatesPresented),
        )
    };
    chain.first().map(Fingerprint::of).ok_or_else(none)
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Wire>;
    type Error = DialError;
    type Future = BoxFuture<'static, Result<Self::Response, DialError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let nowhere = || {
                let cause = io::Error::new(io::ErrorKind::InvalidInput, format!("`{uri}` names no host"));
                DialError::new(Target::new("", 0), Operation::Connect, DialFault::Io(Arc::new(cause)))
            };
            let to = Target::of_uri(&uri).ok_or_else(nowhere)?;
            connector.connect(&to).await.map(TokioIo::new)
        })
    }
}

/// A stream as HTTP clients see it: it knows which HTTP version was agreed, and whether anything was written.
pub struct Wire {
    io: BoxIo,
    h2: bool,
    traffic: Traffic,
}

/// Counts bytes handed to the stream, so that "certainly not sent" can be told from "perhaps sent".
#[derive(Clone, Default)]
pub(crate) struct Traffic(Arc<Counts>);

#[derive(Default)]
struct Counts {
    written: AtomicU64,
    answered_at: AtomicU64,
}

impl Traffic {
    /// An answer has begun: what was written so far belongs to requests the server has seen.
    pub(crate) fn answered(&self) {
        self.0
            .answered_at
            .store(self.0.written.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether nothing at all was written since the last answer.
    pub(crate) fn is_untouched(&self) -> bool {
        self.0.written.load(Ordering::Relaxed) == self.0.answered_at.load(Ordering::Relaxed)
    }

    fn wrote(&self, outcome: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count)) = outcome {
            self.0.written.fetch_add(*count as u64, Ordering::Relaxed);
        }
    }
}

impl Wire {
    fn new(io: BoxIo, h2: bool) -> Self {
        Self {
            io,
            h2,
            traffic: Traffic::default(),
        }
    }

    pub fn is_h2(&self) -> bool {
        self.h2
    }
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        let connected = Connected::new().extra(self.traffic.clone());
        if self.h2 { connected.negotiated_h2() } else { connected }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write(cx, buf);
        self.traffic.wrote(&outcome);
        outcome
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.traffic.wrote(&outcome);
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
