//! The other side of the seam: accepting byte streams. Simulated servers stand on it, in memory or on loopback.

use std::io;
use std::net::SocketAddr;

use futures::future::BoxFuture;
use tokio::net::TcpListener;

use crate::dial::BoxIo;

/// Accepts connections. Dropping it frees the address.
pub trait Listener: Send {
    /// The next connection and who opened it. An error is final.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(BoxIo, SocketAddr)>>;

    /// The bound address, with the port that was chosen where 0 was asked for.
    fn address(&self) -> SocketAddr;
}

/// Where servers listen.
pub trait Binder: Send + Sync + 'static {
    fn bind(&self, at: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>>;
}

/// Real TCP, on loopback addresses only: a simulated service must not be reachable from elsewhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loopback;

impl Binder for Loopback {
    fn bind(&self, at: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            if !at.ip().is_loopback() {
                let text = format!("{} is not a loopback address", at.ip());
                return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text));
            }
            let listener = TcpListener::bind(at).await?;
            let address = listener.local_addr()?;
            Ok(Box::new(TcpListening { listener, address }) as Box<dyn Listener>)
        })
    }
}

struct TcpListening {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener for TcpListening {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(BoxIo, SocketAddr)>> {
        Box::pin(async move {
            loop {
                match self.listener.accept().await {
                    Ok((stream, peer)) => {
                        stream.set_nodelay(true)?;
                        return Ok((Box::new(stream) as BoxIo, peer));
                    }
                    // The client gave up between its packet and our call: the listener itself is fine.
                    Err(gone) if gone.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(fault) => return Err(fault),
                }
            }
        })
    }

    fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_loopback_addresses_can_be_bound() {
        let refused = Loopback.bind("0.0.0.0:0".parse().unwrap()).await.err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::AddrNotAvailable);
        let listener = Loopback.bind("127.10.0.11:0".parse().unwrap()).await.unwrap();
        assert_eq!(listener.address().ip().to_string(), "127.10.0.11");
        assert_ne!(listener.address().port(), 0);
    }
}
