//! What steps are about, and the payloads of actions.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use mainstay_spec::{DiskOptions, Gib, Mac, Shape};
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
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.pad("cluster"),
            Self::Schematic => f.pad("schematic"),
            Self::Image(at) => f.pad(&at.to_string()),
            Self::Machine(name) | Self::Node(name) | Self::Volume(name) | Self::Host(name) => f.pad(name),
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
    /// The machine restarts. Its pods are not drained first.
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

/// A VM, by where it is and which. Both may have changed meanwhile: whoever acts looks again where it is, and whether the one that has
/// this VMID then is still the one that is meant.
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
    pub nic: Nic,
    /// The guest agent's port is there only if the image has the agent.
    pub agent: bool,
}

/// A mark to write onto a VM that is there.
#[derive(Debug, Clone, PartialEq)]
pub struct Remark {
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
    pub image: ImageSource,
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
pub struct ImageSource {
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
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    pub mac: Mac,
    pub bridge: String,
    pub vlan: Option<u16>,
}

/// How a changed config takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Apply {
    /// While the node runs.
    Live,
    /// The node reboots itself.
    Reboot,
    /// At the restart that follows, so that there is one restart and not two.
    Staged,
}

/// A control plane, by name and address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub machine: String,
    pub address: Ipv4Addr,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdMember {
    pub name: String,
    pub id: u64,
}

/// A control plane that goes, whatever it was when it was seen: if it votes by then, etcd must be able to do without it, as a survivor
/// tells right before. The id is zero where it was no member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spare {
    pub member: EtcdMember,
    pub by: Peer,
    /// It runs and is no voter, so that it may become one at any moment.
    pub may_join: bool,
}

/// Who takes a member out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaveBy {
    /// The member leaves by itself.
    Itself(Ipv4Addr),
    /// It is gone; another member removes it.
    Survivor(Peer),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    Ready,
    /// There is no CNI, so it will not become ready.
    Registered,
}
