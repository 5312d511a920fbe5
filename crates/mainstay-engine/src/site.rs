//! Everything that a run talks to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_net::{Env, Identity, Target, Trust};
use mainstay_spec::Spec;
use pve_api::Client;
use rand::RngExt;
use talos_api::factory::Factory;
use talos_api::{Access, Node};
use tokio::time::Instant;

use crate::failure::{Failure, Kind};
use crate::journal::Journal;

pub const TALOS_PORT: u16 = 50000;
pub const KUBERNETES_PORT: u16 = 6443;

/// How long dial and handshake with a Kubernetes API server may take.
const KUBERNETES_CONNECT: Duration = Duration::from_secs(5);

/// The places that a run acts on. `env.dialer` already goes through the jump host where there is one.
pub struct Site {
    pub env: Env,
    pub pve: Client,
    pub factory: Factory,
    /// The schematic of the file, as the factory wants it.
    pub schematic: String,
    /// From the cluster's secrets; `None` while there are none.
    pub keys: Option<Keys>,
    pub journal: Journal,
    /// Machines of the file, by name.
    pub addresses: BTreeMap<String, Ipv4Addr>,
    /// Those of them that serve the Kubernetes API.
    pub control_planes: Vec<Ipv4Addr>,
    /// When this run began.
    pub began: Instant,
    /// VMIDs of which this run destroyed a volume.
    pub freed: Mutex<BTreeSet<u32>>,
    nodes: tokio::sync::Mutex<Option<(Instant, Result<Nodes, String>)>>,
    jitter: Mutex<rand_chacha::ChaCha20Rng>,
}

pub type Nodes = BTreeMap<String, mainstay_kube::Node>;

/// Why a Node counts for nothing that was told before its machine's last boot.
pub const EARLIER_BOOT: &str = "what Kubernetes tells of it is from before its last boot";

/// A list of nodes is as good as new for this long: whoever waits for a node looks at one list with all others.
const NODES_FRESH: Duration = Duration::from_millis(900);

impl Site {
    pub fn new(env: Env, pve: Client, factory: Factory, keys: Option<Keys>, journal: Journal, spec: &Spec) -> Self {
        let jitter = Mutex::new(env.entropy.fork("engine jitter").rng());
        let addresses = spec
            .machines
            .iter()
            .map(|machine| (machine.name.to_string(), machine.address))
            .collect();
        let control_planes = spec.control_planes().map(|machine| machine.address).collect();
        Self {
            env,
            pve,
            factory,
            schematic: crate::derive::schematic(spec).canonical(),
            keys,
            journal,
            addresses,
            control_planes,
            began: Instant::now(),
            freed: Mutex::default(),
            nodes: tokio::sync::Mutex::default(),
            jitter,
        }
    }

    /// The nodes, as the first control plane tells that answers; or why none does.
    pub async fn nodes(&self) -> Result<Nodes, String> {
        let mut known = self.nodes.lock().await;
        if let Some((_, list)) = known.as_ref().filter(|(at, _)| at.elapsed() < NODES_FRESH) {
            return list.clone();
        }
        let list = self.ask_for_nodes().await;
        *known = Some((Instant::now(), list.clone()));
        list
    }

    async fn ask_for_nodes(&self) -> Result<Nodes, String> {
        let keys = self.keys.as_ref().ok_or("there are no secrets yet")?;
        let mut why = "no control plane is there to ask".to_owned();
        for address in &self.control_planes {
            match keys.nodes_at(*address).await {
                Ok(nodes) => return Ok(nodes),
                Err(error) => why = format!("the Kubernetes API at {address} does not answer: {error}"),
            }
        }
        Err(why)
    }

    /// A pause of about this length, so that those who failed together do not come back together.
    pub fn jitter(&self, pause: Duration) -> Duration {
        let share: f64 = self
            .jitter
            .lock()
            .expect("nothing panics while it draws")
            .random_range(0.75..1.25);
        pause.mul_f64(share)
    }

    pub fn keys(&self) -> Result<&Keys, Failure> {
        self.keys
            .as_ref()
            .ok_or_else(|| Failure::new(Kind::Bug, "a step needs the cluster's secrets, and there are none"))
    }

    /// A configured machine.
    pub fn node(&self, address: Ipv4Addr) -> Result<Node, Failure> {
        Ok(self.keys()?.talos.node(&talos_at(address))?)
    }
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site").field("journal", &self.journal).finish_non_exhaustive()
    }
}

pub fn talos_at(address: Ipv4Addr) -> Target {
    Target {
        host: address.to_string(),
        port: TALOS_PORT,
    }
}

/// What opens the machines and the API of one cluster.
#[derive(Clone)]
pub struct Keys {
    pub talos: Access,
    env: Env,
    kubernetes_ca: String,
    kubernetes_identity: Identity,
    /// API servers that were asked before: each keeps its connections.
    clusters: Arc<Mutex<BTreeMap<Ipv4Addr, mainstay_kube::Cluster>>>,
}

impl Keys {
    pub fn new(env: &Env, talos: Access, kubernetes_ca: String, kubernetes_identity: Identity) -> Self {
        Self {
            talos,
            env: env.clone(),
            kubernetes_ca,
            kubernetes_identity,
            clusters: Arc::default(),
        }
    }

    pub async fn nodes_at(&self, address: Ipv4Addr) -> Result<Nodes, mainstay_kube::Error> {
        let nodes = self.kubernetes_at(address)?.nodes().await?;
        Ok(nodes.into_iter().map(|node| (node.name.clone(), node)).collect())
    }

    /// The Kubernetes API on one control plane. Its certificate is for its own address too, so the VIP is not needed.
    pub fn kubernetes_at(&self, address: Ipv4Addr) -> Result<mainstay_kube::Cluster, mainstay_kube::Error> {
        let mut clusters = self.clusters.lock().expect("nothing panics while it holds the map");
        if let Some(cluster) = clusters.get(&address) {
            return Ok(cluster.clone());
        }
        let cluster = self.connect(address)?;
        clusters.insert(address, cluster.clone());
        Ok(cluster)
    }

    fn connect(&self, address: Ipv4Addr) -> Result<mainstay_kube::Cluster, mainstay_kube::Error> {
        let trust = Trust::Ca {
            ca_pem: self.kubernetes_ca.clone(),
            identity: Some(self.kubernetes_identity.clone()),
            server_name: None,
        };
        let host = address.to_string();
        let at = Target {
            host,
            port: KUBERNETES_PORT,
        };
        mainstay_kube::Cluster::connect(&self.env, &at, &trust, KUBERNETES_CONNECT)
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(***)")
    }
}
