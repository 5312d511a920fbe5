//! A world as data: hosts, storages, volumes, users, VMs, timing and faults. JSON and YAML have one form.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::faults::Rule;

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct World {
    pub pve: Release,
    pub cluster: Option<ClusterSpec>,
    pub nodes: IndexMap<String, NodeSpec>,
    pub storages: IndexMap<String, StorageSpec>,
    /// By node (or `shared`) and storage.
    pub volumes: BTreeMap<String, BTreeMap<String, Vec<VolumeSpec>>>,
    pub datacenter: BTreeMap<String, Value>,
    pub users: IndexMap<String, UserSpec>,
    pub passwords: BTreeMap<String, String>,
    /// Keys of one-time passwords by user, in base32.
    pub totp: BTreeMap<String, Vec<String>>,
    pub tokens: IndexMap<String, TokenSpec>,
    pub roles: BTreeMap<String, Vec<String>>,
    pub acl: Vec<AclSpec>,
    pub pools: BTreeMap<String, PoolSpec>,
    pub groups: BTreeMap<String, GroupSpec>,
    pub vms: BTreeMap<u32, VmSpec>,
    /// SDN networks in simple zones; every host has them.
    pub vnets: BTreeMap<String, VnetSpec>,
    pub timing: Timing,
    pub faults: Vec<Rule>,
}

#[derive(Debug, thiserror::Error)]
#[error("the world file cannot be read")]
pub struct WorldError(#[source] Box<dyn std::error::Error + Send + Sync>);

impl World {
    /// Reads a world from YAML or JSON.
    pub fn parse(text: &str) -> Result<Self, WorldError> {
        let json = text.trim_start().starts_with('{');
        if json {
            return serde_json::from_str(text).map_err(|e| WorldError(e.into()));
        }
        serde_saphyr::from_str(text).map_err(|e| WorldError(e.into()))
    }
}

/// Three hosts with a local directory, a thin pool and a shared NFS storage; one token that may do everything.
impl Default for World {
    fn default() -> Self {
        let json = include_str!("../data/default-world.json");
        serde_json::from_str::<WorldFacts>(json)
            .expect("the default world is valid")
            .into_world()
    }
}

/// The default world in its own type, so that reading it does not need the default world.
#[derive(Deserialize)]
struct WorldFacts {
    pve: Release,
    cluster: ClusterSpec,
    nodes: IndexMap<String, NodeSpec>,
    storages: IndexMap<String, StorageSpec>,
    users: IndexMap<String, UserSpec>,
    passwords: BTreeMap<String, String>,
    tokens: IndexMap<String, TokenSpec>,
}

impl WorldFacts {
    fn into_world(self) -> World {
        World {
            pve: self.pve,
            cluster: Some(self.cluster),
            nodes: self.nodes,
            storages: self.storages,
            volumes: BTreeMap::new(),
            datacenter: BTreeMap::new(),
            users: self.users,
            passwords: self.passwords,
            totp: BTreeMap::new(),
            tokens: self.tokens,
            roles: BTreeMap::new(),
            acl: Vec::new(),
            pools: BTreeMap::new(),
            groups: BTreeMap::new(),
            vms: BTreeMap::new(),
            vnets: BTreeMap::new(),
            timing: Timing::default(),
            faults: Vec::new(),
        }
    }
}

/// The release of PVE that all hosts run.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct Release {
    pub version: String,
    pub release: String,
    pub repoid: String,
}

impl Default for Release {
    fn default() -> Self {
        Self {
            version: "9.2.11".into(),
            release: "9.2".into(),
            repoid: "14a22df35955d97d".into(),
        }
    }
}

impl Release {
    /// `(9, 2)` for 9.2.11.
    pub fn number(&self) -> (u32, u32) {
        let mut parts = self.version.split('.').map(|p| p.parse().unwrap_or(0));
        (parts.next().unwrap_or(9), parts.next().unwrap_or(0))
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct ClusterSpec {
    pub name: String,
    pub config_version: u32,
}

impl Default for ClusterSpec {
    fn default() -> Self {
        Self {
            name: "lab".into(),
            config_version: 1,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    pub nodeid: u32,
    pub ip: String,
    pub online: u8,
    pub maxcpu: u32,
    pub maxmem: u64,
    pub bridges: IndexMap<String, BridgeSpec>,
    pub resolv: Resolv,
}

impl Default for NodeSpec {
    fn default() -> Self {
        Self {
            nodeid: 1,
            ip: "127.0.0.1".into(),
            online: 1,
            maxcpu: 16,
            maxmem: 64 << 30,
            bridges: IndexMap::new(),
            resolv: Resolv::default(),
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct BridgeSpec {
    pub cidr: Option<String>,
    pub ports: String,
    pub active: u8,
    pub vlan_aware: bool,
}

/// A vnet; with a subnet and a range PVE's IPAM reserves an address for each card.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VnetSpec {
    pub zone: String,
    pub subnet: Option<String>,
    pub gateway: Option<String>,
    /// `10.0.0.100-10.0.0.199`
    pub dhcp_range: Option<String>,
}

impl VnetSpec {
    /// The first and the last address that cards get.
    pub fn range(&self) -> Option<(Ipv4Addr, Ipv4Addr)> {
        let (first, last) = self.dhcp_range.as_ref()?.split_once('-')?;
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Resolv {
    pub search: String,
    pub nameserver: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StorageSpec {
    #[serde(rename = "type")]
    pub kind: String,
    pub path: Option<String>,
    pub content: String,
    pub shared: u8,
    pub nodes: Option<Vec<String>>,
    pub disable: u8,
    pub capacity: u64,
    /// Whatever else the definition holds (`vgname`, `thinpool`, `pool`, `server`, `export`).
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeSpec {
    pub volid: String,
    pub content: String,
    pub format: String,
    pub size: u64,
    pub virtual_size: Option<u64>,
    pub sha256: Option<String>,
    pub text: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct UserSpec {
    pub enable: u8,
    pub expire: i64,
    pub comment: Option<String>,
    pub email: Option<String>,
}

impl Default for UserSpec {
    fn default() -> Self {
        Self {
            enable: 1,
            expire: 0,
            comment: None,
            email: None,
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TokenSpec {
    pub privsep: u8,
    pub expire: i64,
    pub secret: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct AclSpec {
    pub path: String,
    pub ugid: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub roleid: String,
    #[serde(default = "one")]
    pub propagate: u8,
}

fn one() -> u8 {
    1
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PoolSpec {
    pub comment: String,
    pub vms: Vec<u32>,
    pub storage: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GroupSpec {
    pub comment: Option<String>,
    pub users: Vec<String>,
}

/// A VM that was there before: its config and where it lives.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VmSpec {
    pub node: String,
    pub config: BTreeMap<String, Value>,
    pub running: bool,
}

/// How long things take at pace 1.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct Timing {
    /// Allocating or freeing one volume, under the storage's lock.
    #[serde(deserialize_with = "seconds")]
    pub allocate: Duration,
    /// Bytes per second of a full copy.
    pub copy_rate: u64,
    /// So many copies a storage carries at full rate; more of them share it.
    pub copies_per_storage: u32,
    /// Bytes per second of a download.
    pub download_rate: u64,
    /// What a worker takes beside everything else.
    #[serde(deserialize_with = "seconds")]
    pub worker: Duration,
    #[serde(deserialize_with = "seconds")]
    pub start: Duration,
    #[serde(deserialize_with = "seconds")]
    pub start_per_nic: Duration,
    #[serde(deserialize_with = "seconds")]
    pub stop: Duration,
    #[serde(deserialize_with = "seconds")]
    pub delete: Duration,
    #[serde(deserialize_with = "seconds")]
    pub resize: Duration,
    #[serde(deserialize_with = "seconds")]
    pub template: Duration,
    /// From a guest's own end until `qm cleanup` has brought the VM back, on a reboot.
    #[serde(deserialize_with = "seconds")]
    pub restart_gap: Duration,
    /// A plain call.
    #[serde(deserialize_with = "seconds")]
    pub request: Duration,
}

fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let value = f64::deserialize(from)?;
    Duration::try_from_secs_f64(value).map_err(serde::de::Error::custom)
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            allocate: Duration::from_millis(120),
            copy_rate: 400 << 20,
            copies_per_storage: 4,
            download_rate: 100 << 20,
            worker: Duration::from_millis(60),
            start: Duration::from_millis(1200),
            start_per_nic: Duration::from_millis(450),
            stop: Duration::from_millis(1000),
            delete: Duration::from_millis(200),
            resize: Duration::from_millis(200),
            template: Duration::from_millis(250),
            restart_gap: Duration::from_secs(5),
            request: Duration::from_millis(8),
        }
    }
}
