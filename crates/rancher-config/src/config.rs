//! `config.yaml` of one machine, and which keys a user may add to it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Map, Value, json};
use url::Url;

use crate::cni::Cni;
use crate::distro::{Distro, Role};
use crate::secrets::Secrets;

/// What all machines of a cluster have in common.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterInput {
    pub distro: Distro,
    pub cni: Cni,
    /// Names and addresses that the API server's certificate must carry: VIP, endpoint, every planned server.
    pub sans: BTreeSet<String>,
    /// Resolvers for pods. Without any, pods use what the guest itself uses.
    pub dns: Vec<IpAddr>,
    pub search: Vec<String>,
    /// Packaged components that are not deployed. Removing one from a running cluster uninstalls it.
    pub disable: BTreeSet<String>,
    /// An external cloud controller sets addresses and removes the `uninitialized` taint.
    pub external_cloud_provider: bool,
    /// The registry of all system images: host and port, without scheme or path.
    pub system_registry: Option<String>,
    /// The user's further keys, checked by [`check_extra`].
    pub extra: Map<String, Value>,
}

/// One machine's place in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The one server that founds etcd. It has no `server:`, exactly once in the life of a cluster.
    Founder,
    /// Joins through `server`. Also the founder, once a second voter exists and the endpoint answers.
    Server {
        server: Url,
    },
    Agent {
        server: Url,
    },
}

impl Place {
    pub const fn role(&self) -> Role {
        match self {
            Self::Founder | Self::Server { .. } => Role::Server,
            Self::Agent { .. } => Role::Agent,
        }
    }
}

/// What differs from machine to machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineInput {
    /// The Node's name.
    pub name: String,
    pub address: IpAddr,
    pub place: Place,
    pub labels: BTreeMap<String, String>,
    /// `key=value:effect`.
    pub taints: Vec<String>,
    /// The interface of `address`, only if it is not the one of the default route.
    pub interface: Option<String>,
}

/// Why a machine's input cannot become a config file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    #[error("`{0}` is not a node name: lower-case letters, digits and dashes, at most 63, no dot")]
    NodeName(String),
    #[error("{0} cannot be a node address: it is link-local, loopback, multicast or unspecified")]
    Address(IpAddr),
    #[error("{address} is the cluster's virtual address and cannot be a node address")]
    AddressIsVip { address: IpAddr },
    #[error("{distro} has no network plug-in `{cni}`")]
    Cni { distro: Distro, cni: Cni },
    #[error("the join address {0} is not https")]
    Join(Url),
}

/// Keys that the generated file always or sometimes sets. A user must not set them: the value would be lost or break the cluster.
const OWNED: &[&str] = &[
    "agent-token",
    "cni",
    "disable-cloud-controller",
    "disable-kube-proxy",
    "disable-network-policy",
    "flannel-backend",
    "flannel-iface",
    "cloud-provider-name",
    "cluster-init",
    "node-ip",
    "node-label",
    "node-name",
    "node-taint",
    "resolv-conf",
    "server",
    "system-default-registry",
    "token",
];

/// Keys that nothing here sets, but which would move the datastore, the identity or the secrets away from where they are looked for.
const FORBIDDEN: &[&str] = &[
    "agent-token-file",
    "cluster-reset",
    "cluster-reset-restore-path",
    "config",
    "data-dir",
    "datastore-cafile",
    "datastore-certfile",
    "datastore-endpoint",
    "datastore-keyfile",
    "disable-agent",
    "disable-apiserver",
    "disable-controller-manager",
    "disable-etcd",
    "https-listen-port",
    "private-registry",
    "rootless",
    "supervisor-port",
    "token-file",
    "with-node-id",
    "write-kubeconfig",
];

/// Lists to which the user's items are added.
const MERGED: &[&str] = &["disable", "kubelet-arg", "tls-san"];

/// What is wrong with a key of the user's `config:`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExtraProblem {
    #[error("`{key}` is set from other keys of the file")]
    Owned { key: String },
    #[error("`{key}` is not supported: it moves data, identity or secrets away from where they are looked for")]
    Forbidden { key: String },
    #[error("{distro} has no key `{key}`")]
    Unknown { key: String, distro: Distro },
    #[error("`{key}` must be a text, a number, a boolean or a list of those")]
    Type { key: String },
}

impl ExtraProblem {
    pub fn key(&self) -> &str {
        match self {
            Self::Owned { key } | Self::Forbidden { key } | Self::Unknown { key, .. } | Self::Type { key } => key,
        }
    }
}

/// Every problem of the user's further keys.
pub fn check_extra(distro: Distro, extra: &Map<String, Value>) -> Vec<ExtraProblem> {
    let known = known_keys(distro, Role::Server);
    extra
        .iter()
        .filter_map(|(key, value)| {
            let owned_key = key.clone();
            if OWNED.contains(&key.as_str()) {
                Some(ExtraProblem::Owned { key: owned_key })
            } else if FORBIDDEN.contains(&key.as_str()) {
                Some(ExtraProblem::Forbidden { key: owned_key })
            } else if !known.contains(key.as_str()) && !known_keys(distro, Role::Agent).contains(key.as_str()) {
                Some(ExtraProblem::Unknown { key: owned_key, distro })
            } else if !is_flag_value(value) {
                Some(ExtraProblem::Type { key: owned_key })
            } else {
                None
            }
        })
        .collect()
}

/// Keys that the newest known release accepts. A key outside of this list is silently ignored by the program itself.
pub fn known_keys(distro: Distro, role: Role) -> BTreeSet<&'static str> {
    let text = match distro {
        Distro::Rke2 => include_str!("../data/flags-rke2.txt"),
        Distro::K3s => include_str!("../data/flags-k3s.txt"),
    };
    let (servers, agents) = text.split_once("[agent]").expect("the file has two sections");
    let section = match role {
        Role::Server => servers,
        Role::Agent => agents,
    };
    let is_key = |line: &&str| !line.is_empty() && !line.starts_with(['#', '[']);
    section.lines().filter(is_key).collect()
}

fn is_flag_value(value: &Value) -> bool {
    let is_scalar = |value: &Value| value.is_string() || value.is_number() || value.is_boolean();
    match value {
        Value::Array(items) => items.iter().all(is_scalar),
        other => is_scalar(other),
    }
}

/// The content of `config.yaml`. Secret: it carries a token.
pub fn config(
    cluster: &ClusterInput,
    machine: &MachineInput,
    secrets: &Secrets,
    vip: Option<IpAddr>,
) -> Result<Map<String, Value>, InputError> {
    check(cluster, machine, vip)?;
    let mut file = Map::new();
    let mut set = |key: &str, value: Value| {
        file.insert(key.to_owned(), value);
    };
    set("node-name", json!(machine.name));
    set("node-ip", json!(machine.address.to_string()));
    if !machine.labels.is_empty() {
        let labels: Vec<String> = machine.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        set("node-label", json!(labels));
    }
    if !machine.taints.is_empty() {
        set("node-taint", json!(machine.taints));
    }
    if !cluster.dns.is_empty() {
        set("resolv-conf", json!(resolv_conf_path(cluster.distro)));
    }
    if cluster.external_cloud_provider {
        match cluster.distro {
            Distro::Rke2 => set("cloud-provider-name", json!("external")),
            Distro::K3s => set("kubelet-arg", json!(["cloud-provider=external"])),
        }
    }
    if let (Distro::K3s, Cni::Flannel, Some(interface)) = (cluster.distro, cluster.cni, &machine.interface) {
        set("flannel-iface", json!(interface));
    }
    match &machine.place {
        Place::Agent { server } => {
            set("server", json!(bare(server)));
            set("token", json!(secrets.agent_token().expose()));
        }
        Place::Server { server } => set("server", json!(bare(server))),
        // k3s without it would start on SQLite, which no second server can join. RKE2 always founds etcd.
        Place::Founder if cluster.distro == Distro::K3s => set("cluster-init", json!(true)),
        Place::Founder => {}
    }
    if machine.place.role() == Role::Server {
        server_keys(cluster, secrets, &mut file);
    }
    merge_extra(&mut file, cluster, machine.place.role());
    Ok(file)
}

/// Keys of every server. They are equal on all servers: each server rewrites its packaged manifests at start, so that different values
/// would change the cluster back and forth.
fn server_keys(cluster: &ClusterInput, secrets: &Secrets, file: &mut Map<String, Value>) {
    let mut set = |key: &str, value: Value| {
        file.insert(key.to_owned(), value);
    };
    set("token", json!(secrets.server_token().expose()));
    set("agent-token", json!(secrets.agent_token().expose()));
    set("tls-san", json!(cluster.sans));
    match cluster.distro {
        Distro::Rke2 => set("cni", json!(cluster.cni.name())),
        Distro::K3s if cluster.cni != Cni::Flannel => {
            set("flannel-backend", json!("none"));
            set("disable-network-policy", json!(true));
        }
        Distro::K3s => {}
    }
    if cluster.cni.replaces_kube_proxy() {
        set("disable-kube-proxy", json!(true));
    }
    if cluster.external_cloud_provider {
        set("disable-cloud-controller", json!(true));
    }
    if !cluster.disable.is_empty() {
        set("disable", json!(cluster.disable));
    }
    if let Some(registry) = &cluster.system_registry {
        set("system-default-registry", json!(registry));
    }
}

/// Adds the user's keys. An agent gets only those that agents know.
fn merge_extra(file: &mut Map<String, Value>, cluster: &ClusterInput, role: Role) {
    let known = known_keys(cluster.distro, role);
    for (key, value) in cluster.extra.iter().filter(|(key, _)| known.contains(key.as_str())) {
        let ours = file.get_mut(key).and_then(Value::as_array_mut);
        match (ours, value) {
            (Some(ours), Value::Array(items)) if MERGED.contains(&key.as_str()) => {
                ours.extend(items.iter().filter(|item| !ours.contains(item)).cloned().collect::<Vec<_>>());
            }
            (Some(ours), item) if MERGED.contains(&key.as_str()) => ours.push(item.clone()),
            _ => {
                file.insert(key.clone(), value.clone());
            }
        }
    }
}

fn check(cluster: &ClusterInput, machine: &MachineInput, vip: Option<IpAddr>) -> Result<(), InputError> {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let name = &machine.name;
    let inner = name.bytes().all(|byte| is_word(byte) || byte == b'-');
    let ends = name.bytes().next().is_some_and(is_word) && name.bytes().last().is_some_and(is_word);
    if !inner || !ends || name.len() > 63 {
        return Err(InputError::NodeName(name.clone()));
    }
    let address = machine.address;
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if is_link_local || address.is_loopback() || address.is_multicast() || address.is_unspecified() {
        return Err(InputError::Address(address));
    }
    if vip == Some(address) {
        return Err(InputError::AddressIsVip { address });
    }
    if !Cni::choices(cluster.distro).contains(&cluster.cni) {
        return Err(InputError::Cni {
            distro: cluster.distro,
            cni: cluster.cni,
        });
    }
    match &machine.place {
        Place::Server { server } | Place::Agent { server } if server.scheme() != "https" => Err(InputError::Join(server.clone())),
        _ => Ok(()),
    }
}

/// The address that machines join through: supervisor port, no path.
pub fn join_url(distro: Distro, host: IpAddr) -> Url {
    let authority = match host {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    };
    let text = format!("https://{authority}:{}", distro.supervisor_port());
    Url::parse(&text).expect("an address and a port are a URL")
}

pub(crate) fn resolv_conf_path(distro: Distro) -> String {
    format!("{}/resolv.conf", distro.config_dir())
}

fn bare(url: &Url) -> &str {
    url.as_str().trim_end_matches('/')
}
