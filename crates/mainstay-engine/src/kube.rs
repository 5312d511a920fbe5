//! The Kubernetes API servers of a cluster.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use mainstay_net::{Env, Identity, Target, Trust};

use crate::addresses::AddressBook;
use crate::jitter::Jitter;
use crate::node_watch::{NodeFollower, NodeView};

pub const KUBERNETES_PORT: u16 = 6443;

/// How long dial and handshake with a Kubernetes API server may take.
const CONNECT: Duration = Duration::from_secs(5);

/// Why a Node's status counts for nothing if it was written before the last boot of its machine.
pub const EARLIER_BOOT: &str = "the Node's status is older than the last reboot";

/// The administrator's access to the API.
pub struct KubeAccess {
    pub ca: String,
    pub identity: Identity,
}

pub struct KubeClients {
    servers: Arc<KubeServers>,
    jitter: Arc<Jitter>,
    /// By the addresses that are asked.
    followers: Mutex<BTreeMap<Vec<Ipv4Addr>, Weak<NodeFollower>>>,
    /// Why the pod network cannot be installed in this round.
    network_fault: Mutex<Option<String>>,
}

/// The API servers themselves.
struct KubeServers {
    env: Env,
    /// From the cluster's secrets; `None` while there are none.
    access: Option<KubeAccess>,
    /// API servers that were asked before: each keeps its connections.
    known: Mutex<BTreeMap<Ipv4Addr, mainstay_kube::Cluster>>,
}

impl KubeClients {
    pub fn new(env: &Env, access: Option<KubeAccess>) -> Self {
        Self {
            servers: Arc::new(KubeServers {
                env: env.clone(),
                access,
                known: Mutex::default(),
            }),
            jitter: Arc::new(Jitter::new(env)),
            followers: Mutex::default(),
            network_fault: Mutex::default(),
        }
    }

    /// Steps that wait for ready nodes end with this reason: nothing else brings the network in this round.
    pub fn set_network_fault(&self, why: Option<String>) {
        *self.network_fault.lock().expect("plain data") = why;
    }

    pub fn network_fault(&self) -> Option<String> {
        self.network_fault.lock().expect("plain data").clone()
    }

    /// The API server of the first of these control planes that says it is ready; or why none does.
    pub async fn answering(&self, ask: &[String], addresses: &AddressBook) -> Result<mainstay_kube::Cluster, String> {
        let mut why = "no control plane is there to ask".to_owned();
        for address in ask.iter().filter_map(|machine| addresses.get(machine)) {
            let server = match self.server(address) {
                Ok(server) => server,
                Err(error) => return Err(error.to_string()),
            };
            match server.is_ready().await {
                Ok(true) => return Ok(server),
                Ok(false) => why = format!("the Kubernetes API at {address} is not ready"),
                Err(error) => why = format!("the Kubernetes API at {address} does not answer: {error}"),
            }
        }
        Err(why)
    }

    /// One Node, followed: as the first of these control planes tells it that answers.
    pub fn follow_node(&self, name: &str, ask: &[String], addresses: &AddressBook) -> NodeView {
        let ask: Vec<Ipv4Addr> = ask.iter().filter_map(|machine| addresses.get(machine)).collect();
        let mut followers = self.followers.lock().expect("nothing panics while it holds the map");
        let running = followers.get(&ask).and_then(Weak::upgrade);
        let follower = running.unwrap_or_else(|| {
            let servers = self.servers.clone();
            let server = move |address| servers.server(address);
            let started = NodeFollower::start(server, ask.clone(), self.jitter.clone());
            followers.insert(ask, Arc::downgrade(&started));
            started
        });
        follower.view(name)
    }

    pub fn server(&self, address: Ipv4Addr) -> Result<mainstay_kube::Cluster, mainstay_kube::Error> {
        self.servers.server(address)
    }

    /// The API at an endpoint that users use, whatever stands behind it. Its certificate must name the host.
    pub fn connect_to(&self, at: &Target) -> Result<mainstay_kube::Cluster, mainstay_kube::Error> {
        self.servers.connect_to(at)
    }
}

impl KubeServers {
    /// The API server of one control plane. Its certificate names its own address too, so the VIP is not needed.
    pub fn server(&self, address: Ipv4Addr) -> Result<mainstay_kube::Cluster, mainstay_kube::Error> {
        let mut servers = self.known.lock().expect("nothing panics while it holds the map");
        if let Some(server) = servers.get(&address) {
            return Ok(server.clone());
        }
        let server = self.connect(address)?;
        servers.insert(address, server.clone());
        Ok(server)
    }

    fn connect(&self, address: Ipv4Addr) -> Result<mainstay_kube::Cluster, mainstay_kube::Error> {
        self.connect_to(&Target {
            host: address.to_string(),
            port: KUBERNETES_PORT,
        })
    }

    fn connect_to(&self, at: &Target) -> Result<mainstay_kube::Cluster, mainstay_kube::Error> {
        let trust = match &self.access {
            Some(access) => Trust::Ca {
                ca_pem: access.ca.clone(),
                identity: Some(access.identity.clone()),
                server_name: None,
            },
            // Without secrets there is no authority to believe, so no server can pass.
            None => Trust::Ca {
                ca_pem: String::new(),
                identity: None,
                server_name: None,
            },
        };
        mainstay_kube::Cluster::connect(&self.env, at, &trust, CONNECT)
    }
}
