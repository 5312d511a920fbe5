//! What is known about the cluster as a whole.

use std::fmt;

use serde::{Deserialize, Deserializer};

use crate::request::{Call, Request};
use crate::value::open::open_enum;
use crate::value::{Host, Lock, PoolId, PveVersion, StorageId, StorageKind, Tags, Vmid, loose};

/// The version of the host that answers. In a cluster under upgrade others may run another.
pub fn version() -> Call<Version> {
    Call::new(Request::get("/version", &[]))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Version {
    pub version: PveVersion,
    pub release: String,
    #[serde(default, deserialize_with = "loose::text")]
    pub repoid: String,
}

/// Who is in the cluster and whether it has a majority. Needs `Sys.Audit` on `/`.
pub fn status() -> Call<Status> {
    Call::new(Request::get("/cluster/status", &[]))
}

/// A single server is no cluster: it has no name, and always its majority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub name: Option<String>,
    pub quorate: bool,
    pub hosts: Vec<Member>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Member {
    pub name: Host,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub ip: Option<String>,
    #[serde(default, deserialize_with = "loose::flag")]
    pub online: bool,
    /// The one that answered.
    #[serde(default, deserialize_with = "loose::flag")]
    pub local: bool,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum StatusLine {
    Cluster {
        name: String,
        #[serde(default, deserialize_with = "loose::flag")]
        quorate: bool,
    },
    Node(Member),
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut status = Self {
            name: None,
            quorate: true,
            hosts: Vec::new(),
        };
        for line in Vec::<StatusLine>::deserialize(deserializer)? {
            match line {
                StatusLine::Cluster { name, quorate } => (status.name, status.quorate) = (Some(name), quorate),
                StatusLine::Node(member) => status.hosts.push(member),
                StatusLine::Other => {}
            }
        }
        status.hosts.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(status)
    }
}

/// The virtual networks that the caller may see, each with its zone.
pub fn vnets() -> Call<Vec<Vnet>> {
    Call::new(Request::get("/cluster/sdn/vnets", &[]))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Vnet {
    pub vnet: String,
    pub zone: String,
}

/// Everything the caller may see, in one answer. What it may not see is left out silently.
///
/// Guests, their host, lock, tags and pool are current; name, state and counters are up to ten seconds old.
pub fn resources(only: Option<ResourceKind>) -> Call<Vec<Resource>> {
    Call::new(Request::get("/cluster/resources", &[]).with_opt("type", only))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceKind {
    Vm,
    Storage,
    Host,
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vm => "vm",
            Self::Storage => "storage",
            Self::Host => "node",
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Resource {
    Guest(Guest),
    Host(HostEntry),
    Storage(StorageEntry),
    /// Pools, zones and whatever a later PVE lists.
    Other {
        id: String,
    },
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Guest {
    pub vmid: Vmid,
    #[serde(rename = "type")]
    pub kind: GuestKind,
    #[serde(rename = "node")]
    pub host: Host,
    /// Absent in the first seconds of a guest.
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub name: Option<String>,
    pub status: RunState,
    #[serde(default, deserialize_with = "loose::flag")]
    pub template: bool,
    #[serde(default)]
    pub lock: Option<Lock>,
    #[serde(default)]
    pub tags: Tags,
    #[serde(default, deserialize_with = "loose::opt_value")]
    pub pool: Option<PoolId>,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub hastate: Option<String>,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub maxmem: u64,
    #[serde(default, deserialize_with = "loose::opt_float")]
    pub maxcpu: Option<f64>,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub maxdisk: u64,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub uptime: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuestKind {
    Qemu,
    Lxc,
}

open_enum! {
    /// What a guest is doing.
    RunState {
        InternalError = "internal-error",
        /// A full storage froze it.
        IoError = "io-error",
        Paused = "paused",
        Prelaunch = "prelaunch",
        Running = "running",
        Shutdown = "shutdown",
        Stopped = "stopped",
        Suspended = "suspended",
        /// Just created, or its host is away.
        Unknown = "unknown",
    }
}

open_enum! {
    /// Whether a host is there.
    HostState {
        Offline = "offline",
        Online = "online",
        Unknown = "unknown",
    }
}

/// A host. The numbers are absent without `Sys.Audit` on it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct HostEntry {
    #[serde(rename = "node")]
    pub host: Host,
    pub status: HostState,
    #[serde(default, deserialize_with = "loose::opt_float")]
    pub cpu: Option<f64>,
    #[serde(default, deserialize_with = "loose::opt_unsigned")]
    pub maxcpu: Option<u64>,
    #[serde(default, deserialize_with = "loose::opt_unsigned")]
    pub mem: Option<u64>,
    #[serde(default, deserialize_with = "loose::opt_unsigned")]
    pub maxmem: Option<u64>,
    #[serde(default, deserialize_with = "loose::opt_unsigned")]
    pub uptime: Option<u64>,
    /// Only in the list of hosts.
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub ssl_fingerprint: Option<String>,
}

/// A storage on one host: a shared one is listed once per host.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct StorageEntry {
    pub storage: StorageId,
    #[serde(rename = "node")]
    pub host: Host,
    #[serde(rename = "plugintype")]
    pub kind: StorageKind,
    #[serde(default, deserialize_with = "super::storage::contents")]
    pub content: super::storage::Contents,
    #[serde(default, deserialize_with = "loose::flag")]
    pub shared: bool,
    #[serde(default, deserialize_with = "loose::text")]
    pub status: String,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub disk: u64,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub maxdisk: u64,
}

impl<'de> Deserialize<'de> for Resource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        let value = serde_json::Value::deserialize(deserializer)?;
        let kind = value.get("type").and_then(serde_json::Value::as_str).unwrap_or_default();
        let resource = match kind {
            "qemu" | "lxc" => serde_json::from_value(value).map(Self::Guest),
            "node" => serde_json::from_value(value).map(Self::Host),
            "storage" => serde_json::from_value(value).map(Self::Storage),
            _ => {
                let id = value
                    .get("id")
                    .and_then(serde_json::Value::as_str)
                    .unwrap_or_default()
                    .to_owned();
                Ok(Self::Other { id })
            }
        };
        // An entry that cannot be read fails the list: dropping it would make a guest look absent.
        resource.map_err(D::Error::custom)
    }
}

/// A VM id that is free at this moment. Nothing is reserved: only creating the guest claims it.
pub fn next_id() -> Call<Vmid> {
    Call::new(Request::get("/cluster/nextid", &[]))
}

/// Whether this very id is free; refused as [`crate::Class::Exists`] when it is not.
pub fn is_free(vmid: Vmid) -> Call<Vmid> {
    Call::new(Request::get("/cluster/nextid", &[]).with("vmid", vmid))
}

/// Replication jobs of the guests that the caller may see.
pub fn replication_jobs() -> Call<Vec<ReplicationJob>> {
    Call::new(Request::get("/cluster/replication", &[]))
}

/// Copies the volumes of a guest to another host, again and again.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ReplicationJob {
    /// `100-0`.
    pub id: String,
    #[serde(deserialize_with = "loose::text")]
    pub guest: String,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub target: Option<String>,
}

/// All backup jobs.
pub fn backup_jobs() -> Call<Vec<BackupJob>> {
    Call::new(Request::get("/cluster/backup", &[]))
}

/// Backs guests up: those of a list, of a pool, or all but those of a list.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct BackupJob {
    pub id: String,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub vmid: Option<String>,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub exclude: Option<String>,
}

impl BackupJob {
    /// Whether it names this guest.
    pub fn names(&self, vmid: Vmid) -> bool {
        let lists = [&self.vmid, &self.exclude].into_iter().flatten();
        let mut named = lists.flat_map(|list| list.split([',', ';', ' ']));
        named.any(|name| name == vmid.to_string())
    }
}

/// Rules of the HA manager. Releases before 9 have none, and no such call.
pub fn ha_rules() -> Call<Vec<HaRule>> {
    Call::new(Request::get("/cluster/ha/rules", &[]))
}

/// Which resources are to be where, or apart.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct HaRule {
    pub rule: String,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub resources: Option<String>,
}

impl HaRule {
    /// Whether it names this VM.
    pub fn names(&self, vmid: Vmid) -> bool {
        let wanted = format!("vm:{vmid}");
        let mut named = self.resources.iter().flat_map(|list| list.split([',', ';', ' ']));
        named.any(|name| name == wanted)
    }
}

/// Options of the datacenter that concern guests.
pub fn options() -> Call<Options> {
    Call::new(Request::get("/cluster/options", &[]))
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Options {
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub mac_prefix: Option<String>,
    /// Tags only a holder of `Sys.Modify` on `/` may give.
    #[serde(default, rename = "registered-tags")]
    pub registered_tags: Option<Vec<String>>,
    #[serde(default, rename = "user-tag-access")]
    pub user_tag_access: Option<TagAccess>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct TagAccess {
    #[serde(default, rename = "user-allow", deserialize_with = "loose::opt_text")]
    pub user_allow: Option<String>,
    #[serde(default, rename = "user-allow-list")]
    pub user_allow_list: Vec<String>,
}
