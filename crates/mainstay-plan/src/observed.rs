//! What was seen: PVE, guests and Kubernetes as plain values, with the gaps named.
//!
//! The engine fills this in. Each fact says whether it is there, absent, or could not be looked at, because nothing may be created or
//! deleted on an unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::Ipv4Net;
use mainstay_spec::{DiskOptions, Gib, Mac, Mib};
use semver::Version;
use uuid::Uuid;

pub use crate::seen::Seen;

use crate::addon::seen::ObservedAddons;
use crate::mark::{Lease, Mark};
use crate::node_change::{NodeRecord, TaintOnNode};

/// Everything that was seen in one round.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// Of the host that answered.
    pub pve: Version,
    /// A lone host is always quorate. `Unknown` without `Sys.Audit`.
    pub quorate: Seen<bool>,
    pub token: TokenScope,
    pub hosts: BTreeMap<String, Host>,
    /// The zone of the virtual network that machines are attached to. `None`: they are attached to a bridge.
    pub zone: Option<String>,
    /// Whether the resource pool that the file names is there. `No` without one in the file.
    pub resource_pool: Seen<String>,
    /// By VMID: every VM and container that the token sees. `Unknown` when it may not see all, since lists are filtered silently.
    pub vms: Seen<BTreeMap<u32, Vm>>,
    /// Volumes named for a VMID of ours that no VM refers to, on the storages that disks and seeds go to.
    pub leftovers: Seen<Vec<LeftoverVolume>>,
    /// Volumes that VMs of ours refer to and that their storage, which was listed, does not have.
    pub lost: BTreeSet<String>,
    /// Image files by host and storage. A shared storage is listed under each of its hosts.
    pub images: BTreeMap<StorageAt, Seen<Vec<ImageFile>>>,
    /// What the publisher of the image says about it.
    pub publisher: Publisher,
    /// By machine: those wanted and those that carry our mark. A machine that is not here was not asked, since it does not run.
    pub guests: BTreeMap<String, Guest>,
    /// The members as the cluster itself lists them. `No`: every control plane was read and none has etcd data.
    pub etcd: Seen<Vec<EtcdMember>>,
    /// `No`: no cluster yet, so there is no API server to ask.
    pub kubernetes: Seen<Kubernetes>,
    /// Who has an address that a machine is to get: found by dialling it, and in what PVE knows of other VMs.
    pub answers: BTreeMap<Ipv4Addr, Seen<OpenPorts>>,
    /// Tasks of our token that still run.
    pub tasks: Vec<PveTask>,
    pub addons: ObservedAddons,
}

impl Observed {
    /// The leases of a cluster: a lost first machine may leave an old one elsewhere.
    pub fn leases(&self, cluster_id: Uuid) -> impl Iterator<Item = Lease> {
        let configs = self.vms.yes().into_iter().flatten().filter_map(|(_, vm)| vm.config.yes());
        let marks = configs.filter_map(|config| Mark::parse(&config.description));
        marks
            .filter(move |mark| mark.cluster_id == cluster_id)
            .filter_map(|mark| mark.lease)
    }
}

/// What the plan must know about the token. Privileges themselves are preflight's business.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenScope {
    /// Rights come from a PVE pool alone. Such a token may not set tags in the request that creates a VM, only afterwards.
    pub pool_scoped: bool,
}

/// A PVE server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    pub online: bool,
    /// Threads, as PVE counts `maxcpu`.
    pub cpus: u32,
    pub memory: Memory,
    /// `Unknown` when they are hidden: PVE drops bridges that the token may not use.
    pub bridges: Seen<BTreeSet<String>>,
    pub storages: Seen<BTreeMap<String, HostStorage>>,
}

/// In bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    pub free: u64,
}

/// A storage as one host sees it. Bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostStorage {
    pub kind: StorageKind,
    pub content: BTreeSet<String>,
    /// Enabled and reachable from this host.
    pub active: bool,
    pub shared: bool,
    pub total: u64,
    pub free: u64,
}

impl HostStorage {
    pub fn allows(&self, content: &str) -> bool {
        self.active && self.content.contains(content)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorageKind {
    Dir,
    Nfs,
    Cifs,
    Btrfs,
    LvmThin,
    Lvm,
    Zfs,
    Rbd,
    CephFs,
    Other(String),
}

impl StorageKind {
    /// Keeps files, so that it can hold images to import.
    pub fn holds_files(&self) -> bool {
        matches!(self, Self::Dir | Self::Nfs | Self::Cifs | Self::Btrfs | Self::CephFs)
    }

    /// A new disk takes its full size at once. Everywhere else it takes what is written: imported disks stay qcow2 on files.
    pub fn is_thick(&self) -> bool {
        matches!(self, Self::Lvm | Self::Other(_))
    }
}

/// A storage on a host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StorageAt {
    pub host: String,
    pub storage: String,
}

impl fmt::Display for StorageAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.storage)
    }
}

/// An importable file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFile {
    pub file: String,
    /// Bytes of the file, not of the disk in it.
    pub size: u64,
    /// The token may delete it.
    pub may_delete: bool,
}

/// What the publisher of the image says about it. It is asked only where an image is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Publisher {
    #[default]
    NotAsked,
    /// It has the release with all extensions. In bytes; `None` where the image is not built yet.
    Has { size: Option<u64> },
    /// It does not have what the file asks for.
    Lacks { what: String, help: Option<String> },
    /// No answer, and how that showed.
    Silent(String),
}

impl Publisher {
    pub(crate) fn size(&self) -> Option<u64> {
        match self {
            Self::Has { size } => *size,
            Self::NotAsked | Self::Lacks { .. } | Self::Silent(_) => None,
        }
    }
}

/// A VM or container of the datacenter, ours or foreign.
#[derive(Debug, Clone, PartialEq)]
pub struct Vm {
    pub vmid: u32,
    pub host: String,
    /// PVE's inventory lags: a VM made seconds ago has no name there.
    pub name: Option<String>,
    pub power: PowerState,
    pub tags: BTreeSet<String>,
    /// The PVE resource pool that it is in.
    pub pool: Option<String>,
    pub template: bool,
    /// HA manages it.
    pub ha: bool,
    /// Read for machines that are about to go.
    pub jobs: VmJobs,
    /// Read for VMs with our tag and for those on a VMID we want; `No` for all others.
    pub config: Seen<VmSettings>,
}

/// What people made for a VM, besides its HA resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmJobs {
    /// Replication jobs, as `3001-0 to pve2`.
    pub replication: Seen<Vec<String>>,
    /// What else Proxmox VE takes it out of with `purge`: `backup job nightly`, `HA rule apart`. `Unknown` without `Sys.Audit`.
    pub purged: Seen<Vec<String>>,
}

impl Default for VmJobs {
    fn default() -> Self {
        Self {
            replication: Seen::No,
            purged: Seen::No,
        }
    }
}

impl VmJobs {
    /// What a removal with `purge` takes it out of.
    pub fn purged(&self) -> &[String] {
        self.purged.yes().map_or(&[], Vec::as_slice)
    }
}

/// What QEMU does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PowerState {
    Running,
    Stopped,
    /// Paused, suspended, io-error and the like, caused by a user or a fault. Holds PVE's name of the state.
    Other(String),
    Unknown(String),
}

/// A VM's config: pending values over current ones, as PVE answers it.
#[derive(Debug, Clone, PartialEq)]
pub struct VmSettings {
    /// PVE's own, for compare-and-set.
    pub digest: String,
    pub name: Option<String>,
    pub description: String,
    pub uuid: Option<Uuid>,
    /// The SMBIOS serial.
    pub serial: Option<String>,
    pub lock: Option<String>,
    pub cores: u32,
    pub cpu_type: String,
    pub memory: Mib,
    pub onboot: bool,
    pub startup_order: Option<u32>,
    pub agent: bool,
    /// PVE's `scsihw`.
    pub scsi: String,
    /// PVE's `bios`.
    pub firmware: String,
    pub protection: bool,
    /// By slot: `scsi0`, `efidisk0`; the cloud-init drive is not here.
    pub disks: BTreeMap<String, VmDisk>,
    /// The volume of the cloud-init drive.
    pub seed: Option<String>,
    /// Volumes that it names besides `disks` and `seed`, and that PVE destroys with it all the same.
    pub aside: Vec<VolumeUse>,
    /// Names of its snapshots. `No`: not asked, since it is not about to go.
    pub snapshots: Seen<BTreeSet<String>>,
    pub nic: Option<VmNic>,
    pub address: Option<Ipv4Net>,
    pub gateway: Option<Ipv4Addr>,
    pub dns: Vec<IpAddr>,
    /// Devices in boot order.
    pub boot: Vec<String>,
    /// Keys that take effect at the next full restart.
    pub pending: BTreeSet<String>,
}

/// A disk of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmDisk {
    /// `local-lvm:vm-2001-disk-0`.
    pub volume: String,
    /// Rounded down: an imported image may end in the middle of a GiB.
    pub size: Gib,
    pub serial: Option<String>,
    pub options: DiskOptions,
}

impl VmDisk {
    pub fn storage(&self) -> &str {
        self.volume.split_once(':').map_or("", |(storage, _)| storage)
    }
}

/// Where a config names a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeUse {
    /// `scsi3`, `unused0`, `vmstate`.
    pub slot: String,
    pub volume: String,
    pub serial: Option<String>,
    /// `None`: in the VM's own config.
    pub snapshot: Option<String>,
}

/// The first NIC of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmNic {
    pub mac: Mac,
    pub bridge: String,
    pub vlan: Option<u16>,
}

/// A volume that no VM refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftoverVolume {
    pub at: StorageAt,
    pub volume: String,
    /// The VMID in its name, which proves nothing.
    pub vmid: u32,
    pub identity: VolumeIdentity,
    /// Our journal names it as a disk that mainstay made here, and no config of any VM names it.
    pub proved: bool,
    /// Why it may be another one, although the journal has its name.
    pub doubt: Option<String>,
    /// Why it may still be written, or may be named by a config that was not read. That may pass.
    pub busy: Option<String>,
    /// The token may free it.
    pub may_free: bool,
}

/// What tells a volume from another of the same name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeIdentity {
    /// In seconds since 1970. Some storages do not tell it, others tell the last change.
    pub created: Option<u64>,
    /// Bytes.
    pub size: u64,
}

/// What answers inside a machine.
///
/// Each distribution reads this in its own way; everything that decides about etcd, turns and removals reads only this.
#[derive(Debug, Clone, PartialEq)]
pub enum Guest {
    /// No answer, and how that showed.
    Silent(String),
    /// It was never configured. The UUID may be read without authentication, so it proves the VM but not the channel.
    AwaitingConfig {
        uuid: Seen<Uuid>,
        release: Option<Version>,
    },
    /// Answers, but does not accept this cluster's secrets: a machine of others, or one of ours from before the secrets.
    Foreign(String),
    Running(Box<RunningGuest>),
}

/// A configured guest that accepts this cluster's secrets.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningGuest {
    pub uuid: Uuid,
    /// The release of the distribution. `None`: it does not tell yet, as while its API server starts.
    pub release: Option<Version>,
    /// The version of Kubernetes that its config asks for.
    pub kubernetes: Option<Version>,
    /// As the distribution names it: `booting`, `running`, `rebooting`.
    pub stage: String,
    /// Conditions that are not met, in the guest's words.
    pub unmet: Vec<String>,
    pub config: Seen<GuestConfig>,
    /// Etcd on this machine. `No`: it never ran. Always `No` on workers.
    pub etcd: Seen<EtcdState>,
    /// The boot that it runs in, another one after every restart.
    pub boot_id: Option<String>,
    /// What its image is made of, where that has a name.
    pub schematic: Seen<String>,
    /// Its etcd leads the others.
    pub leads_etcd: bool,
    /// The virtual address is on this machine, and moving it takes time: it restarts last.
    pub holds_vip: bool,
}

impl Guest {
    pub fn running(&self) -> Option<&RunningGuest> {
        match self {
            Self::Running(guest) => Some(guest),
            Self::Silent(_) | Self::AwaitingConfig { .. } | Self::Foreign(_) => None,
        }
    }

    /// It is this VM, and it never got a config.
    pub fn awaits_config(&self, of: Uuid) -> bool {
        matches!(self, Self::AwaitingConfig { uuid: Seen::Yes(uuid), .. } if *uuid == of)
    }

    pub fn has_etcd_data(&self) -> bool {
        self.running().is_some_and(RunningGuest::has_etcd_data)
    }

    /// Etcd began on it and was killed before it was ready.
    pub fn is_stillborn(&self) -> bool {
        self.running()
            .is_some_and(|guest| guest.etcd == Seen::Yes(EtcdState::Stillborn))
    }

    /// Its etcd left the cluster, and joins again only after a restart.
    pub fn has_left_etcd(&self) -> bool {
        self.running().is_some_and(|guest| guest.etcd == Seen::Yes(EtcdState::Left))
    }
}

impl RunningGuest {
    pub fn has_etcd_data(&self) -> bool {
        matches!(self.etcd, Seen::Yes(EtcdState::Healthy | EtcdState::Unhealthy))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EtcdState {
    /// Data is there, and its service is running and healthy.
    Healthy,
    /// Data is there, but the service is not well: starting, failed, or taken out of the cluster.
    Unhealthy,
    /// It began here and was killed before it was ready: it can never start, and its data are nothing yet.
    Stillborn,
    /// It left the cluster and took its data along. Only a restart makes it join again.
    Left,
}

/// The config of a guest, in the form of its distribution. It holds secrets, so it never shows itself.
#[derive(Clone, PartialEq, Eq)]
pub struct GuestConfig(Arc<str>);

impl GuestConfig {
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for GuestConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GuestConfig(***)")
    }
}

/// An etcd member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdMember {
    pub id: u64,
    /// The host name of its node, empty while its etcd never started.
    pub name: String,
    pub learner: bool,
    /// Its own machine says so. A machine that cannot be read is not healthy.
    pub healthy: bool,
}

impl EtcdMember {
    pub fn votes(&self) -> bool {
        !self.learner
    }
}

/// The Kubernetes API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubernetes {
    pub version: Version,
    pub nodes: BTreeMap<String, NodeStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeStatus {
    pub ready: bool,
    /// Why it is not ready, in the kubelet's words.
    pub why: String,
    /// All that is known was told before the machine's last boot, perhaps by another machine of this name. It is not ready then.
    pub stale: bool,
    pub cordon: NodeCordon,
    /// A pod without tolerations may be put here.
    pub accepts_pods: bool,
    pub labels: BTreeMap<String, String>,
    pub taints: BTreeSet<TaintOnNode>,
    /// Which of them mainstay set, as it recorded on the Node.
    pub applied: Option<NodeRecord>,
}

/// Who keeps new pods away from a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NodeCordon {
    #[default]
    None,
    /// Mainstay did, and recorded it on the Node.
    Ours,
    /// A person or another program did.
    Foreign,
    /// The record of mainstay is there, and the node takes pods again: another actor ended the cordon.
    Ended,
}

/// What is on an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenPorts {
    /// Those of the dialled ones that answer.
    pub ports: Vec<u16>,
    /// Running VMs of others that have the address, and how that is known: `VM 105 (db) by its cloud-init settings`.
    pub vms: Vec<String>,
}

impl OpenPorts {
    /// Who is there, in words.
    pub(crate) fn text(&self) -> String {
        let ports: Vec<String> = self.ports.iter().map(ToString::to_string).collect();
        let ports = (!ports.is_empty()).then(|| format!("port {} answers there", ports.join(" and ")));
        let vms = (!self.vms.is_empty()).then(|| format!("{} has it", self.vms.join(" and ")));
        vms.into_iter().chain(ports).collect::<Vec<_>>().join("; ")
    }
}

/// A PVE task that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PveTask {
    pub upid: String,
    /// `qmcreate`, `download`, `imgcopy`.
    pub kind: String,
    /// PVE's worker id: the VMID, the file name of a download, or the owner and storage of a volume that goes.
    pub subject: String,
    pub host: String,
}

impl PveTask {
    /// Whether it works on this VM or on a volume of it.
    pub fn is_about(&self, vmid: u32) -> bool {
        let (owner, _) = self.subject.split_once('@').unwrap_or((&self.subject, ""));
        owner == vmid.to_string()
    }
}
