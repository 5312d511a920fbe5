//! What a world stands on: a network in memory, or loopback TCP with the memory behind it for everything that has no loopback address.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use mainstay_net::{Binder, Dial, Dialer, Listener, Loopback, SimNet, Target, Tcp};

#[derive(Clone)]
pub(crate) struct Ground {
    net: SimNet,
    loopback: bool,
}

impl Ground {
    pub fn memory(net: SimNet) -> Self {
        Self { net, loopback: false }
    }

    pub fn loopback(net: SimNet) -> Self {
        Self { net, loopback: true }
    }

    pub fn net(&self) -> &SimNet {
        &self.net
    }

    pub fn network(&self) -> Arc<dyn Binder> {
        Arc::new(self.clone())
    }

    /// How the world's own hosts dial: they reach every guest.
    pub fn inside(&self) -> Arc<dyn Dialer> {
        Arc::new(self.clone())
    }

    /// How a user's program dials.
    pub fn outside(&self) -> Arc<dyn Dialer> {
        if self.loopback {
            Arc::new(Tcp)
        } else {
            Arc::new(self.net.clone())
        }
    }
}

impl Binder for Ground {
    fn bind(&self, at: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        if self.loopback && at.ip().is_loopback() {
            Loopback.bind(at)
        } else {
            self.net.bind(at)
        }
    }
}

impl Dialer for Ground {
    fn dial<'a>(&'a self, to: &'a Target) -> Dial<'a> {
        let real = self.loopback && (to.host == "localhost" || to.ip().is_some_and(|ip| ip.is_loopback()));
        if real { Tcp.dial(to) } else { self.net.dial(to) }
    }
}
