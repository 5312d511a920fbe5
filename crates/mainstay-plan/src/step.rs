//! What steps are about, and the payloads of actions.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv4Net;
use mainstay_spec::{DiskOptions, Gib, Mac, Shape};
use semver::Version;
use uuid::Uuid;

use crate::mark::Mark;
use crate::observed::StorageAt;

/// Counts from 1; a step only needs steps with a smaller id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepId(pub u32);

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// What a step is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The whole cluster.
    Cluster,
    /// The Image Factory schematic.
    Schematic,
    Image(StorageAt),
    Machine(String),
    /// A Kubernetes Node without a machine.
    Node(String),
    Volume(String),
    Host(String),
    /// An add-on, as the file calls it.
    Addon(String),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.pad("cluster"),
            Self::Schematic => f.pad("schematic"),
            Self::Image(at) => f.pad(&at.to_string()),
            Self::Machine(name) | Self::Node(name) | Self::Volume(name) | Self::Host(name) | Self::Addon(name) => f.pad(name),
        }
    }
}

/// What a step does to what runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Impact {
    /// Nothing that runs notices.
    None,
    /// Changes something that runs, without a restart.
    Live,
    /// The machine restarts.
    Reboot,
    /// Disks are destroyed.
    Wipe,
}

impl fmt::Display for Impact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Live => "live",
            Self::Reboot => "reboot",
            Self::Wipe => "wipe",
        })
    }
}

/// A VM, by where it is and which. Both may have changed since the plan was made: before an action, the engine looks up the
/// host again and checks by the UUID that this VMID is still the same VM.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VmRef {
    pub host: String,
    pub vmid: u32,
    /// The SMBIOS UUID that it must have.
    pub uuid: Uuid,
}

impl fmt::Display for VmRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vm {} on {}", self.vmid, self.host)
    }
}

/// A VM to claim.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    pub vm: VmRef,
    pub name: String,
    pub mark: Mark,
    /// Ours and the user's.
    pub tags: BTreeSet<String>,
    /// The token may not tag in the creating request, so the tags follow in one of their own.
    pub tags_follow: bool,
    pub pool: Option<String>,
    pub shape: Shape,
    pub nic: NicConfig,
    /// The guest agent's port is there only if the image has the agent.
    pub agent: bool,
    /// The VM gets a random SMBIOS serial, by which its guest proves which life of the VM it is.
    pub has_serial: bool,
}

/// A mark to write onto a VM that is there.
#[derive(Debug, Clone, PartialEq)]
pub struct MarkUpdate {
    pub vm: VmRef,
    /// Written with [`Mark::write_into`] over what is read then, so that the user's text stays.
    pub mark: Mark,
    /// Added to those that are there.
    pub tags: BTreeSet<String>,
}

/// Disks to give to a claimed VM: only what is missing.
#[derive(Debug, Clone, PartialEq)]
pub struct Fill {
    pub vm: VmRef,
    /// The system disk, imported from `image`.
    pub system: Option<NewDisk>,
    pub image: StoredImage,
    /// The storage of the EFI variables.
    pub efi: Option<String>,
    /// The cloud-init drive and its storage.
    pub seed_on: Option<String>,
    pub seed: Seed,
    pub extra: Vec<NewDisk>,
    pub boot: Vec<String>,
}

/// A file on a storage of the VM's host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredImage {
    pub storage: String,
    pub file: String,
}

/// A disk to allocate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDisk {
    pub slot: String,
    pub storage: String,
    /// The system disk has the size of its image first and is grown afterwards.
    pub size: Gib,
    pub options: DiskOptions,
    /// How the guest finds it.
    pub serial: String,
}

/// What the guest learns before it has a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seed {
    pub address: Ipv4Net,
    pub gateway: Ipv4Addr,
    pub dns: Vec<IpAddr>,
    /// Always set, because PVE would copy the host's own search domain otherwise, which may change.
    pub search: String,
    /// `None`: the guest has no accounts.
    pub user: Option<FirstUser>,
}

/// An account that the first boot creates, opened by a public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstUser {
    pub name: String,
    pub public_key: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicConfig {
    pub mac: Mac,
    pub bridge: String,
    pub vlan: Option<u16>,
}

/// How a changed config takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ApplyMode {
    /// While the node runs.
    Live,
    /// The node reboots itself.
    Reboot,
    /// At the restart that follows, so that there is one restart and not two.
    Staged,
}

/// The guest of a machine. Execution turns the name into an address; the UUID proves that the right machine answers there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestRef {
    pub machine: String,
    pub uuid: Uuid,
}

/// Machines to ask, first to last, until one answers.
pub type Ask = Arc<[String]>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberRef {
    pub name: String,
    pub id: u64,
}

/// A control plane that restarts, stops or is removed, whatever it was when it was seen: if it votes by then, etcd must keep its majority
/// without it, which is read right before. The id is zero where it was no member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuorumCheck {
    pub member: MemberRef,
    /// They list the members.
    pub ask: Ask,
    /// It runs and is no voter, so that it may become one at any moment.
    pub may_join: bool,
}

/// Who takes a member out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberRemoval {
    /// The member leaves by itself.
    Leave,
    /// It is gone; another member removes it.
    RemovedBy(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    Ready,
    /// There is no CNI, so it will not become ready.
    Registered,
}

/// How a machine is drained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    pub timeout: Duration,
    /// Also pods that no controller makes again, which the operator allowed.
    pub deletes_unmanaged: bool,
}

/// What must hold right before a machine is cordoned: not more than this many of its pool are unavailable then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolBudget {
    /// The other machines that count.
    pub others: Ask,
    pub max_unavailable: usize,
    /// A node that is not ready is unavailable. Without a network plugin none is ever ready.
    pub needs_ready: bool,
}

/// Another system for a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeOrder {
    pub vm: VmRef,
    pub guest: GuestRef,
    pub from: Version,
    pub to: Version,
    /// What the new system is made of. `None`: its distribution has no such name.
    pub schematic: Option<String>,
    /// Where the machine loads it from.
    pub image: String,
    /// Settings of the VM take effect at the same restart, which PVE does then.
    pub restarts_vm: bool,
    pub check: Option<QuorumCheck>,
}

/// A part of Kubernetes that has a version of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KubernetesPart {
    ApiServer,
    ControllerManager,
    Scheduler,
    Proxy,
    Kubelet,
}

impl KubernetesPart {
    pub const ALL: [Self; 5] = [
        Self::ApiServer,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Proxy,
        Self::Kubelet,
    ];

    /// As Kubernetes calls it, and the image of it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Proxy => "kube-proxy",
            Self::Kubelet => "kubelet",
        }
    }
}

impl fmt::Display for KubernetesPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
