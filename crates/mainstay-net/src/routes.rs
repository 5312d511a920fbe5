//! Which network is reached through which dialer.

use std::sync::Arc;

use ipnet::IpNet;

use crate::dial::{Dial, Dialer};
use crate::target::Target;

/// Picks among dialers by destination: "10.10.0.0/24 via jump", all else direct.
#[derive(Clone)]
pub struct Routes {
    default: Arc<dyn Dialer>,
    rules: Vec<(IpNet, Arc<dyn Dialer>)>,
}

impl Routes {
    pub fn new(default: Arc<dyn Dialer>) -> Self {
        Self {
            default,
            rules: Vec::new(),
        }
    }

    /// Sends addresses of `network` through `dialer`. The narrowest matching network wins.
    pub fn via(mut self, network: IpNet, dialer: Arc<dyn Dialer>) -> Self {
        self.rules.push((network, dialer));
        self
    }

    /// Names go the default way: only its resolver can say which network they are in.
    fn pick(&self, to: &Target) -> &Arc<dyn Dialer> {
        let matching = to
            .ip()
            .into_iter()
            .flat_map(|ip| self.rules.iter().filter(move |(network, _)| network.contains(&ip)));
        matching
            .max_by_key(|(network, _)| network.prefix_len())
            .map_or(&self.default, |(_, dialer)| dialer)
    }
}

impl Dialer for Routes {
    fn dial<'a>(&'a self, to: &'a Target) -> Dial<'a> {
        self.pick(to).dial(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{DialError, DialFault, Operation};

    /// Says where it is instead of connecting.
    struct Sign(&'static str);

    impl Dialer for Sign {
        fn dial<'a>(&'a self, _: &'a Target) -> Dial<'a> {
            let here = Target::new(self.0, 1);
            Box::pin(async { Err(DialError::new(here, Operation::Connect, DialFault::Refused)) })
        }
    }

    #[tokio::test]
    async fn the_narrowest_network_wins_and_names_go_the_default_way() {
        let routes = Routes::new(Arc::new(Sign("direct")))
            .via("10.10.0.0/24".parse().unwrap(), Arc::new(Sign("narrow")))
            .via("10.0.0.0/8".parse().unwrap(), Arc::new(Sign("wide")));
        for (host, way) in [
            ("10.10.0.7", "narrow"),
            ("10.9.0.7", "wide"),
            ("192.168.1.1", "direct"),
            ("pve.lan", "direct"),
        ] {
            let error = routes.dial(&Target::new(host, 50000)).await.err().unwrap();
            assert_eq!(error.target().host, way, "{host}");
        }
    }
}
