//! The machine API's sockets and certificates, through the changes of a node's life.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use rustls::ServerConfig;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::config::Config;
use super::node::Node;
use super::services::ServiceState;
use super::{listen, router, tls};
use crate::pki::{PkiError, Request};

const PORT: u16 = 50000;
/// Server certificates live a day and are renewed at half of it.
const RENEW: Duration = Duration::from_secs(12 * 3600);
/// How long a port stays closed after its process died.
const RESTART: Duration = Duration::from_millis(5400);

/// What serves at the moment.
#[derive(Default)]
pub(crate) struct Apid {
    serving: Mutex<Option<Serving>>,
    /// What was served before, and may still have open streams.
    draining: Mutex<Option<TaskTracker>>,
}

#[derive(Clone)]
struct Serving {
    identity: Identity,
    closing: CancellationToken,
    addresses: Arc<Mutex<BTreeMap<IpAddr, CancellationToken>>>,
    listeners: TaskTracker,
    current: Arc<Mutex<Issued>>,
}

#[derive(Clone)]
struct Issued {
    config: Arc<ServerConfig>,
    at: Timestamp,
    names: usize,
}

#[derive(Clone)]
pub(crate) enum Identity {
    Maintenance,
    /// The cluster's: signed with the OS authority of `issuer`, which on workers is the config of the control plane that trustd asked.
    Cluster {
        issuer: Arc<Config>,
    },
}

impl Apid {
    /// Begins to serve on every address of the node.
    pub async fn serve(&self, node: &Arc<Node>, identity: Identity) -> Result<(), PkiError> {
        let issued = issue(node, &identity)?;
        let serving = Serving {
            identity,
            closing: node.alive.child_token(),
            addresses: Arc::default(),
            listeners: TaskTracker::new(),
            current: Arc::new(Mutex::new(issued)),
        };
        *self.serving.lock().expect("plain data") = Some(serving);
        for address in node.addresses() {
            self.serve_address(node, address).await;
        }
        Ok(())
    }

    /// Serves on one more address. One that another machine holds stays with that machine.
    pub async fn serve_address(&self, node: &Arc<Node>, address: IpAddr) {
        let Some(serving) = self.serving.lock().expect("plain data").clone() else {
            return;
        };
        let Ok(listener) = node.site.network.bind(SocketAddr::new(address, PORT)).await else {
            return;
        };
        let app = router::router(node, matches!(serving.identity, Identity::Maintenance));
        let tls = {
            let (node, identity, current) = (Arc::downgrade(node), serving.identity.clone(), Arc::clone(&serving.current));
            Arc::new(move || {
                let mut issued = current.lock().expect("plain data");
                if let Some(node) = node.upgrade() {
                    renew(&node, &identity, &mut issued);
                }
                Arc::clone(&issued.config)
            })
        };
        let closing = serving.closing.child_token();
        serving.addresses.lock().expect("plain data").insert(address, closing.clone());
        node.spawn(serving.listeners.track_future(listen::listen(listener, tls, app, closing)));
    }

    /// The address belongs to another machine now.
    pub fn forget_address(&self, address: IpAddr) {
        let serving = self.serving.lock().expect("plain data").clone();
        if let Some(closing) = serving.and_then(|serving| serving.addresses.lock().expect("plain data").remove(&address)) {
            closing.cancel();
        }
    }

    /// Asks all clients to go and stops listening.
    pub fn close(&self) {
        if let Some(serving) = self.serving.lock().expect("plain data").take() {
            serving.closing.cancel();
            serving.listeners.close();
            *self.draining.lock().expect("plain data") = Some(serving.listeners);
        }
    }

    /// Waits until no client is connected any more to the listener that was closed last.
    pub async fn drained(&self) {
        let draining = self.draining.lock().expect("plain data").clone();
        if let Some(draining) = draining {
            draining.wait().await;
        }
    }

    pub fn is_serving(&self) -> bool {
        self.serving.lock().expect("plain data").is_some()
    }

    /// Cancelled when this instance of the API stops; `None` while there is none.
    pub fn closing(&self) -> Option<CancellationToken> {
        let serving = self.serving.lock().expect("plain data");
        serving.as_ref().map(|serving| serving.closing.clone())
    }

    fn identity(&self) -> Option<Identity> {
        let serving = self.serving.lock().expect("plain data");
        serving.as_ref().map(|serving| serving.identity.clone())
    }
}

/// The process dies: connections break, and after a while a new one serves. Whether there was one.
pub(crate) fn crash(node: &Arc<Node>) -> bool {
    let Some(identity) = node.api.identity() else {
        return false;
    };
    node.site.sim.reset(node.addresses());
    node.api.close();
    node.set_service(
        "apid",
        ServiceState::Waiting,
        "Error running Containerd(apid), going to restart forever: task \"apid\" failed: exit code 137",
    );
    let own = Arc::clone(node);
    node.spawn(async move {
        own.pass(RESTART).await;
        if own.api.serve(&own, identity).await.is_ok() {
            own.set_service(
                "apid",
                ServiceState::Running,
                "Started task apid (PID 758) for container apid",
            );
            own.check_service("apid", None);
        }
    });
    true
}

fn renew(node: &Node, identity: &Identity, issued: &mut Issued) {
    let old = node.site.wall.now().duration_since(issued.at) > jiff::SignedDuration::try_from(RENEW).unwrap_or_default();
    let moved = node.lock().ever_held.len() != issued.names;
    if (old || moved)
        && let Ok(new) = issue(node, identity)
    {
        *issued = new;
    }
}

fn issue(node: &Node, identity: &Identity) -> Result<Issued, PkiError> {
    let wall = node.site.wall;
    let (held, hostname) = {
        let state = node.lock();
        (
            state.ever_held.iter().copied().collect::<Vec<IpAddr>>(),
            state.hostname.clone(),
        )
    };
    let entropy = node.entropy.fork(&format!("apid {} {}", held.len(), wall.now().as_second()));
    let config = match identity {
        Identity::Maintenance => tls::maintenance(&entropy, wall, &hostname, &held)?,
        Identity::Cluster { issuer } => {
            let own = node.config().ok_or(PkiError::Certificate)?;
            let sans = own.cert_sans();
            let mut request = Request::server(&hostname, &wall);
            request.names = tls::dns_names(&[vec![hostname.clone()], sans.clone()].concat());
            let further = sans.iter().filter_map(|name| name.parse().ok());
            request.addresses = held
                .iter()
                .copied()
                .chain([IpAddr::from([127, 0, 0, 1])])
                .chain(further)
                .collect();
            let pair = issuer.os_authority()?.issue(&request, &entropy)?;
            tls::mutual(&pair, &own.accepted_cas(), wall)?
        }
    };
    Ok(Issued {
        config,
        at: wall.now(),
        names: held.len(),
    })
}
