//! A step: one thing done to one subject, and why.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::Ipv4Net;
use mainstay_spec::{DiskOptions, Gib, Mac, Mib, Shape, Span};
use uuid::Uuid;

use crate::desired::Image;
use crate::mark::Mark;
use crate::observed::{Config, StorageAt};

/// One unit of work. Everything it needs to know is in it: execution chooses nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub id: StepId,
    pub subject: Subject,
    pub action: Action,
    pub why: String,
    pub impact: Impact,
    /// Steps that must have ended well before this one begins. Nothing else orders steps.
    pub needs: Vec<StepId>,
    /// How long it takes when nothing is wrong.
    pub expected: Duration,
    /// The lines of cluster.yaml that ask for it.
    pub at: Option<Span>,
}

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
    /// The machine is made anew.
    Recreate,
    /// Disks are destroyed.
    Wipe,
}

impl fmt::Display for Impact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Live => "live",
            Self::Reboot => "reboot",
            Self::Recreate => "recreate",
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

/// Everything that can be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Make the schematic known to the Image Factory.
    SchematicRegister {
        schematic: String,
    },
    /// Have a host download the image. On a shared storage one host does it for all.
    ImageFetch {
        at: StorageAt,
        image: Image,
    },
    /// Remove a file of the image's name that is not the whole image.
    ImageDiscard {
        at: StorageAt,
        file: String,
    },
    /// Remove an image that nobody needs.
    ImageDelete {
        at: StorageAt,
        file: String,
    },
    /// Create a VM without disks that carries all marks: the claim of its VMID.
    MachineClaim(Box<Claim>),
    /// Write the mark, and the tags that are missing.
    MachineMark(Box<Remark>),
    /// Give a claimed VM its disks, in one request. Not idempotent: whoever repeats it looks first. A VM that somebody started
    /// before it got its system disk by it does not run afterwards: it would never look for one.
    MachineFill(Box<Fill>),
    /// Grow a disk to a size.
    MachineGrow {
        vm: VmRef,
        slot: String,
        to: Gib,
    },
    MachineStart {
        vm: VmRef,
    },
    /// Change settings in one request, and record the shape in the mark.
    MachineChange {
        vm: VmRef,
        settings: Vec<Setting>,
        mark: Box<Mark>,
    },
    /// Restart through PVE, so that pending settings take effect.
    MachineReboot {
        vm: VmRef,
        address: Ipv4Addr,
    },
    /// Switch off, and wait until it is off.
    MachineStop {
        vm: VmRef,
        spare: Option<Spare>,
    },
    /// Destroy a stopped VM with its volumes: those that mainstay made, and those that the user named with `--with-disk`. Proof of
    /// ownership, the config's volumes and PVE's quorum are read again right before: a volume that is in neither list stops it.
    /// `purge`: also take it out of HA, which the approval says. `only_going`: the machine is wanted, so only what is left of a
    /// destruction that was begun may go.
    MachineDelete {
        vm: VmRef,
        volumes: Vec<String>,
        with_disks: Vec<String>,
        purge: bool,
        spare: Option<Spare>,
        only_going: bool,
    },
    /// Destroy a volume that no VM refers to.
    VolumeDelete {
        at: StorageAt,
        volume: String,
    },
    /// Wait for the Talos API; in maintenance mode prove the VM by its UUID and apply the config; done if it is configured already.
    TalosConfigure {
        address: Ipv4Addr,
        uuid: Uuid,
        config: Config,
    },
    /// Wait for the Talos API of a machine that is not wanted any more, so that it can be seen whether it has etcd data.
    TalosAwait {
        address: Ipv4Addr,
        uuid: Uuid,
    },
    /// Apply a changed config to a running node.
    TalosReconfigure {
        address: Ipv4Addr,
        uuid: Uuid,
        config: Config,
        how: Apply,
    },
    /// Begin etcd here, once in the life of the cluster. `prove` are the control planes that could have data: each is read again first.
    TalosBootstrap {
        address: Ipv4Addr,
        prove: Vec<Peer>,
    },
    /// Wait until the machine is a healthy voter of etcd.
    EtcdJoin {
        address: Ipv4Addr,
    },
    EtcdLeave {
        member: EtcdMember,
        by: LeaveBy,
    },
    /// Wait for the Kubernetes Node.
    NodeAwait {
        until: NodeState,
    },
    NodeDelete,
}

impl Action {
    /// As it is called in output and in the journal.
    pub fn name(&self) -> &'static str {
        match self {
            Self::SchematicRegister { .. } => "schematic.register",
            Self::ImageFetch { .. } => "image.fetch",
            Self::ImageDiscard { .. } => "image.discard",
            Self::ImageDelete { .. } => "image.delete",
            Self::MachineClaim(_) => "machine.claim",
            Self::MachineMark(_) => "machine.mark",
            Self::MachineFill(_) => "machine.fill",
            Self::MachineGrow { .. } => "machine.grow",
            Self::MachineStart { .. } => "machine.start",
            Self::MachineChange { .. } => "machine.change",
            Self::MachineReboot { .. } => "machine.reboot",
            Self::MachineStop { .. } => "machine.stop",
            Self::MachineDelete { .. } => "machine.delete",
            Self::VolumeDelete { .. } => "volume.delete",
            Self::TalosConfigure { .. } => "talos.configure",
            Self::TalosAwait { .. } => "talos.await",
            Self::TalosReconfigure { .. } => "talos.reconfigure",
            Self::TalosBootstrap { .. } => "talos.bootstrap",
            Self::EtcdJoin { .. } => "etcd.join",
            Self::EtcdLeave { .. } => "etcd.leave",
            Self::NodeAwait { .. } => "node.await",
            Self::NodeDelete => "node.delete",
        }
    }

    /// How long it takes when nothing is wrong, so that views can say "1:02 of about 4 min". Orders of magnitude, not deadlines.
    pub fn expected(&self) -> Duration {
        Duration::from_secs(match self {
            Self::MachineClaim(_) | Self::MachineMark(_) | Self::MachineGrow { .. } | Self::SchematicRegister { .. } => 1,
            Self::MachineChange { .. } | Self::ImageDiscard { .. } | Self::ImageDelete { .. } | Self::NodeDelete => 1,
            Self::MachineStart { .. } | Self::MachineStop { .. } | Self::MachineDelete { .. } | Self::VolumeDelete { .. } => 3,
            Self::ImageFetch { .. } => 40,
            Self::MachineFill(_) => 20,
            Self::TalosConfigure { .. } | Self::TalosAwait { .. } => 45,
            Self::TalosReconfigure {
                how: Apply::Live | Apply::Staged,
                ..
            } => 5,
            Self::TalosReconfigure { how: Apply::Reboot, .. } | Self::MachineReboot { .. } => 60,
            Self::TalosBootstrap { .. } => 15,
            Self::EtcdJoin { .. } => 30,
            Self::EtcdLeave { .. } => 10,
            Self::NodeAwait { .. } => 90,
        })
    }

    /// Destroys data.
    pub fn removes(&self) -> bool {
        matches!(
            self,
            Self::MachineDelete { .. }
                | Self::VolumeDelete { .. }
                | Self::ImageDelete { .. }
                | Self::EtcdLeave { .. }
                | Self::NodeDelete
        )
    }

    /// Ends what runs, if only for a moment.
    pub fn stops(&self) -> bool {
        matches!(self, Self::MachineStop { .. } | Self::MachineReboot { .. })
    }

    /// The VM that is acted on.
    pub fn vm(&self) -> Option<&VmRef> {
        match self {
            Self::MachineClaim(claim) => Some(&claim.vm),
            Self::MachineMark(remark) => Some(&remark.vm),
            Self::MachineFill(fill) => Some(&fill.vm),
            Self::MachineGrow { vm, .. }
            | Self::MachineStart { vm }
            | Self::MachineChange { vm, .. }
            | Self::MachineReboot { vm, .. }
            | Self::MachineStop { vm, .. }
            | Self::MachineDelete { vm, .. } => Some(vm),
            _ => None,
        }
    }

    /// A storage on which space is allocated, for the limits of who executes.
    pub fn allocates_on(&self) -> Option<StorageAt> {
        let at = |host: &str, storage: &str| StorageAt {
            host: host.to_owned(),
            storage: storage.to_owned(),
        };
        match self {
            Self::ImageFetch { at, .. } => Some(at.clone()),
            Self::MachineFill(fill) => fill.system.as_ref().map(|disk| at(&fill.vm.host, &disk.storage)),
            Self::MachineChange { vm, settings, .. } => settings.iter().find_map(|setting| match setting {
                Setting::Attach(disk) => Some(at(&vm.host, &disk.storage)),
                _ => None,
            }),
            _ => None,
        }
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

/// One setting of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    Name(String),
    Cores(u32),
    CpuType(String),
    Memory(Mib),
    ScsiController(&'static str),
    Agent(bool),
    Onboot(bool),
    StartupOrder(Option<u32>),
    Boot(Vec<String>),
    Nic(Nic),
    Seed(Seed),
    /// Added to those that are there.
    Tags(BTreeSet<String>),
    Attach(NewDisk),
    DiskOptions {
        slot: String,
        options: DiskOptions,
    },
}

impl Setting {
    /// On a VM that runs. With PVE's default hotplug, NICs and SCSI disks change live; processors and memory never do.
    pub fn impact(&self) -> Impact {
        match self {
            Self::Cores(_)
            | Self::CpuType(_)
            | Self::Memory(_)
            | Self::ScsiController(_)
            | Self::Agent(_)
            | Self::DiskOptions { .. } => Impact::Reboot,
            Self::Nic(_) | Self::Attach(_) => Impact::Live,
            Self::Name(_) | Self::Onboot(_) | Self::StartupOrder(_) | Self::Boot(_) | Self::Seed(_) | Self::Tags(_) => {
                Impact::None
            }
        }
    }
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
