//! Opening byte streams: the only way out of the process.

use std::io;
use std::time::Duration;

use futures::future::{BoxFuture, select_ok};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::error::{DialError, DialFault, Operation};
use crate::target::Target;

/// A byte stream in both directions.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

pub type BoxIo = Box<dyn Io>;

/// What [`Dialer::dial`] gives.
pub type Dial<'a> = BoxFuture<'a, Result<BoxIo, DialError>>;

/// Opens byte streams.
///
/// A dial may wait for ever, because a network may drop packets silently. The caller must set a time limit, as
/// [`Connector`](crate::Connector) and [`dial_within`] do.
pub trait Dialer: Send + Sync + 'static {
    fn dial<'a>(&'a self, to: &'a Target) -> Dial<'a>;
}

/// Dials and gives up after `limit`.
pub async fn dial_within(dialer: &dyn Dialer, to: &Target, limit: Duration) -> Result<BoxIo, DialError> {
    match tokio::time::timeout(limit, dialer.dial(to)).await {
        Ok(dialled) => dialled,
        Err(_) => Err(DialError::new(
            to.clone(),
            Operation::Connect,
            DialFault::TimedOut { after: limit },
        )),
    }
}

/// How long one address of a name is tried alone before the next one joins in, so that a dead address family costs no timeout.
const HEAD_START: Duration = Duration::from_millis(250);

/// Straight over the machine's own network.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Dialer for Tcp {
    fn dial<'a>(&'a self, to: &'a Target) -> Dial<'a> {
        Box::pin(async move {
            let stream = self.connect(to).await?;
            // Requests are small and answered one by one: waiting to fill a packet would only add delay.
            stream.set_nodelay(true).map_err(|cause| connect_failed(to, cause))?;
            Ok(Box::new(stream) as BoxIo)
        })
    }
}

impl Tcp {
    #[expect(clippy::disallowed_methods, reason = "this is the Dialer")]
    async fn connect(self, to: &Target) -> Result<TcpStream, DialError> {
        let found = tokio::net::lookup_host((to.host.as_str(), to.port)).await;
        let addresses =
            found.map_err(|cause| DialError::new(to.clone(), Operation::Resolve, DialFault::UnknownName(cause.into())))?;
        let attempts: Vec<_> = (0..)
            .zip(addresses)
            .map(|(n, address)| {
                Box::pin(async move {
                    tokio::time::sleep(HEAD_START * n).await;
                    TcpStream::connect(address).await
                })
            })
            .collect();
        if attempts.is_empty() {
            return Err(connect_failed(to, io::ErrorKind::AddrNotAvailable.into()));
        }
        select_ok(attempts)
            .await
            .map(|(stream, _)| stream)
            .map_err(|cause| connect_failed(to, cause))
    }
}

fn connect_failed(to: &Target, cause: io::Error) -> DialError {
    DialError::new(to.clone(), Operation::Connect, DialFault::from_io(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_closed_port_is_refused() {
        let port = {
            let bound = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            bound.local_addr().unwrap().port()
        };
        let to = Target::new("127.0.0.1", port);
        let error = Tcp.dial(&to).await.err().unwrap();
        assert!(matches!(error.fault(), DialFault::Refused), "{error:?}");
        assert_eq!(error.to_string(), format!("connect to {to}: connection refused"));
        assert!(error.remedy().is_some());
    }

    #[tokio::test]
    async fn an_unknown_name_is_not_a_refusal() {
        let to = Target::new("no-such-host.invalid", 1);
        let error = Tcp.dial(&to).await.err().unwrap();
        assert!(matches!(error.fault(), DialFault::UnknownName(_)), "{error:?}");
    }
}
