//! The Kubernetes API servers of a cluster, and one list of Nodes for all steps that wait.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_net::{Env, Identity, Target, Trust};
use tokio::time::Instant;

use crate::addresses::AddressBook;

pub const KUBERNETES_PORT: u16 = 6443;

/// How long dial and handshake with a Kubernetes API server may take.
const CONNECT: Duration = Duration::from_secs(5);

/// A list of Nodes is used for this long by all steps that wait for one.
const NODES_FRESH: Duration = Duration::from_millis(900);

/// Why a Node's status counts for nothing if it was written before the last boot of its machine.
pub const EARLIER_BOOT: &str = "the Node's status is older than the last reboot";

/// One list serves all steps that wait, so it is shared and never copied.
pub type NodeMap = Arc<BTreeMap<String, mainstay_kube::Node>>;

/// The administrator's access to the API.
pub struct KubeAccess {
    pub ca: String,
    pub identity: Identity,
}

pub struct KubeClients {
    env: Env,
    /// From the cluster's secrets; `None` while there are none.
    access: Option<KubeAccess>,
    /// API servers that were asked before: each keeps its connections.
    servers: Mutex<BTreeMap<Ipv4Addr, mainstay_kube::Cluster>>,
    nodes: tokio::sync::Mutex<Option<(Instant, Result<NodeMap, String>)>>,
}

impl KubeClients {
    pub fn new(env: &Env, access: Option<KubeAccess>) -> Self {
        Self {
            env: env.clone(),
            access,
            servers: Mutex::default(),
            nodes: tokio::sync::Mutex::default(),
        }
    }

    /// The Nodes, from the first of these control planes that answers; or why none does.
    pub async fn nodes(&self, ask: &[String], addresses: &AddressBook) -> Result<NodeMap, String> {
        let mut known = self.nodes.lock().await;
        if let Some((_, list)) = known.as_ref().filter(|(at, _)| at.elapsed() < NODES_FRESH) {
            return list.clone();
        }
        let list = self.ask_for_nodes(ask, addresses).await;
        *known = Some((Instant::now(), list.clone()));
        list
    }

    async fn ask_for_nodes(&self, ask: &[String], addresses: &AddressBook) -> Result<NodeMap, String> {
        if self.access.is_none() {
            return Err("there are no secrets yet".to_owned());
        }
        let mut why = "no control plane is there to ask".to_owned();
        for address in ask.iter().filter_map(|machine| addresses.get(machine)) {
            match self.nodes_at(address).await {
                Ok(nodes) => return Ok(nodes),
                Err(error) => why = format!("the Kubernetes API at {address} does not answer: {error}"),
            }
        }
        Err(why)
    }

    pub async fn nodes_at(&self, address: Ipv4Addr) -> Result<NodeMap, mainstay_kube::Error> {
        let nodes = self.server(address)?.nodes().await?;
        Ok(Arc::new(nodes.into_iter().map(|node| (node.name.clone(), node)).collect()))
    }

    /// The API server of one control plane. Its certificate names its own address too, so the VIP is not needed.
    pub fn server(&self, address: Ipv4Addr) -> Result<mainstay_kube::Cluster, mainstay_kube::Error> {
        let mut servers = self.servers.lock().expect("nothing panics while it holds the map");
        if let Some(server) = servers.get(&address) {
            return Ok(server.clone());
        }
        let server = self.connect(address)?;
        servers.insert(address, server.clone());
        Ok(server)
    }

    fn connect(&self, address: Ipv4Addr) -> Result<mainstay_kube::Cluster, mainstay_kube::Error> {
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
        let at = Target {
            host: address.to_string(),
            port: KUBERNETES_PORT,
        };
        mainstay_kube::Cluster::connect(&self.env, &at, &trust, CONNECT)
    }
}
