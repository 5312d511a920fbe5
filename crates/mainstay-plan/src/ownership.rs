//! Which VM is which machine: the one place where ownership is decided.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use mainstay_spec::{Mac, Role, smbios_uuid};
use uuid::Uuid;

use crate::desired::{Desired, DesiredMachine};
use crate::mark::{Mark, TAG};
use crate::observed::{Observed, PowerState, Seen, Vm, VmSettings};
use crate::plan::HoldReason;
use crate::step::VmRef;

/// Whose a VM is. Only `Ours` may be destroyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ownership {
    /// All three proofs agree: tag, block and UUID.
    Ours(Box<Mark>),
    /// Not ours, or a copy of one of ours, and why we think so.
    Foreign(String),
    /// Has the UUID of a machine of ours, but lacks marks. It is neither changed nor removed, unless `tag_follows`.
    Incomplete {
        machine: String,
        missing: BTreeSet<MarkPart>,
        /// Our own unfinished claim: everything agrees, and the block says that the tag is yet to be set.
        tag_follows: bool,
    },
    /// Could not be told.
    Unknown(String),
}

/// One of the marks that can be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MarkPart {
    Tag,
    Block,
}

impl fmt::Display for MarkPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tag => "tag",
            Self::Block => "description block",
        })
    }
}

/// Whose `vm` is, seen from the cluster `cluster_id`. `expected` is the machine that should sit on this VMID, if any.
pub fn ownership(vm: &Vm, cluster_id: Uuid, expected: Option<&str>) -> Ownership {
    match &vm.config {
        Seen::Unknown(why) => Ownership::Unknown(why.clone()),
        Seen::No => Ownership::Foreign("it carries no mark".to_owned()),
        // While PVE creates a VM its config holds nothing but the lock, so its owner is unknown.
        Seen::Yes(config) if config.lock.as_deref() == Some("create") && config.description.is_empty() => {
            Ownership::Unknown("it is being created (lock `create`), so it carries no mark yet".to_owned())
        }
        Seen::Yes(config) => judge(vm, config, cluster_id, expected),
    }
}

fn judge(vm: &Vm, config: &VmSettings, cluster_id: Uuid, expected: Option<&str>) -> Ownership {
    let tagged = vm.tags.contains(TAG);
    match Mark::parse(&config.description) {
        Some(mark) if mark.cluster_id != cluster_id => Ownership::Foreign(format!(
            "it belongs to another cluster {} (id {})",
            mark.cluster, mark.cluster_id
        )),
        Some(mark) if config.uuid != Some(mark.uuid()) => Ownership::Foreign(format!(
            "it is a copy of {}: its SMBIOS UUID is not that machine's",
            mark.machine
        )),
        Some(mark) if mark.vmid != vm.vmid => Ownership::Foreign(format!(
            "it is a copy of {}, which was claimed as VM {}",
            mark.machine, mark.vmid
        )),
        Some(mark) if tagged => Ownership::Ours(Box::new(mark)),
        Some(mark) => Ownership::Incomplete {
            machine: mark.machine,
            missing: BTreeSet::from([MarkPart::Tag]),
            tag_follows: mark.tag_follows,
        },
        None => by_uuid_alone(config, cluster_id, expected, tagged),
    }
}

/// A description may be edited away. The UUID comes from the random cluster id, so no other VM has it by chance; a copy would
/// sit on another VMID than the one that is expected to hold this machine.
fn by_uuid_alone(config: &VmSettings, cluster_id: Uuid, expected: Option<&str>, tagged: bool) -> Ownership {
    match expected.filter(|name| config.uuid == Some(smbios_uuid(cluster_id, name))) {
        Some(name) => {
            let missing = [Some(MarkPart::Block), (!tagged).then_some(MarkPart::Tag)]
                .into_iter()
                .flatten()
                .collect();
            Ownership::Incomplete {
                machine: name.to_owned(),
                missing,
                tag_follows: false,
            }
        }
        None => Ownership::Foreign("it does not carry our mark".to_owned()),
    }
}

/// The VMs of the datacenter, sorted by whose they are.
pub(crate) struct OwnedVms<'a> {
    pub all: &'a BTreeMap<u32, Vm>,
    /// By machine.
    pub ours: BTreeMap<String, OwnedVm<'a>>,
    /// By VMID, with why they are not ours. Only VMs whose config was read.
    pub foreign: BTreeMap<u32, String>,
    /// By VMID, with why their owner is unknown.
    pub unknown: BTreeMap<u32, String>,
    /// The machines of the file by name.
    in_file: BTreeMap<&'a str, &'a DesiredMachine>,
}

/// A VM that is ours.
#[derive(Debug, Clone)]
pub(crate) struct OwnedVm<'a> {
    pub vm: &'a Vm,
    pub config: &'a VmSettings,
    /// `None`: the block is lost.
    pub mark: Option<Mark>,
    /// Marks that it lacks.
    pub missing: BTreeSet<MarkPart>,
}

/// What is known about a machine's VM.
pub(crate) enum VmLookup<'a> {
    Absent,
    Found(&'a OwnedVm<'a>),
    Unknown(String),
}

impl<'a> OwnedVms<'a> {
    pub fn new(desired: &'a Desired, vms: &'a BTreeMap<u32, Vm>) -> Self {
        let machines = desired.cluster_goal().map(|cluster| cluster.machines.as_slice());
        let mut owned = Self {
            all: vms,
            ours: BTreeMap::new(),
            foreign: BTreeMap::new(),
            unknown: BTreeMap::new(),
            in_file: machines
                .into_iter()
                .flatten()
                .map(|machine| (machine.name(), machine))
                .collect(),
        };
        vms.values().for_each(|vm| owned.sort(desired, vm));
        owned
    }

    fn sort(&mut self, desired: &Desired, vm: &'a Vm) {
        let expected = desired.vmids.get(&vm.vmid).map(|expected| expected.machine.as_str());
        // Neither tagged nor where the file expects a machine: its config was not read, and it is none of our business.
        if expected.is_none() && !vm.tags.contains(TAG) {
            return;
        }
        match ownership(vm, desired.id(), expected) {
            Ownership::Ours(mark) => self.own(vm, mark.machine.clone(), Some(*mark), BTreeSet::new()),
            Ownership::Incomplete { machine, missing, .. } => {
                let mark = vm.config.yes().and_then(|config| Mark::parse(&config.description));
                self.own(vm, machine, mark, missing);
            }
            Ownership::Foreign(why) => drop(self.foreign.insert(vm.vmid, why)),
            Ownership::Unknown(why) => drop(self.unknown.insert(vm.vmid, why)),
        }
    }

    fn own(&mut self, vm: &'a Vm, machine: String, mark: Option<Mark>, missing: BTreeSet<MarkPart>) {
        let Some(config) = vm.config.yes() else { return };
        let owned = OwnedVm {
            vm,
            config,
            mark,
            missing,
        };
        // Two with every proof cannot both have the VMID that is in the mark. One that lacks marks stands back.
        match self.ours.entry(machine) {
            Entry::Vacant(free) => drop(free.insert(owned)),
            Entry::Occupied(mut taken) if !taken.get().missing.is_empty() && owned.missing.is_empty() => {
                let other = taken.insert(owned).vm.vmid;
                self.foreign.insert(other, format!("it is a second {}", taken.key()));
            }
            Entry::Occupied(taken) => drop(self.foreign.insert(vm.vmid, format!("it is a second {}", taken.key()))),
        }
    }

    /// Another VM with the SMBIOS UUID or the MAC of a machine of ours, such as a restored backup: which of the two answers on the machine's
    /// address cannot be told, so neither gets a config or a key.
    pub fn copy(&self, vmid: u32, uuid: Uuid, mac: Mac) -> Option<HoldReason> {
        let others = self.all.values().filter(|vm| vm.vmid != vmid);
        let mut read = others.filter_map(|vm| Some((vm.vmid, vm.config.yes()?)));
        let shared = |config: &VmSettings| match () {
            () if config.uuid == Some(uuid) => Some("SMBIOS UUID"),
            () if config.nic.as_ref().is_some_and(|nic| nic.mac == mac) => Some("MAC address"),
            () => None,
        };
        let (other, what) = read.find_map(|(other, config)| Some((other, shared(config)?)))?;
        let reason = format!(
            "VM {other} has the same {what} as its VM {vmid}, so one of the two is a copy, and neither gets a config; \
             delete VM {other}, or give it a UUID and a MAC of its own: qm set {other} --smbios1 uuid=<UUID> --net0 virtio,bridge=<BRIDGE>"
        );
        Some(reason.into())
    }

    /// A machine of the file. `None` for `down`, which wants none.
    pub fn in_file(&self, name: &str) -> Option<&'a DesiredMachine> {
        self.in_file.get(name).copied()
    }

    /// The VM of a machine. It is looked for by its marks first, so that a changed VMID range finds it where it is.
    pub fn lookup(&'a self, name: &str, vmid: u32) -> VmLookup<'a> {
        match (self.ours.get(name), self.unknown.get(&vmid)) {
            (Some(owned), _) => VmLookup::Found(owned),
            (None, Some(why)) => VmLookup::Unknown(why.clone()),
            (None, None) => VmLookup::Absent,
        }
    }
}

impl OwnedVm<'_> {
    pub fn vm_ref(&self) -> VmRef {
        VmRef {
            host: self.vm.host.clone(),
            vmid: self.vm.vmid,
            // Without one it would not be ours.
            uuid: self.config.uuid.unwrap_or_default(),
        }
    }

    pub fn runs(&self) -> bool {
        self.vm.power == PowerState::Running
    }

    /// Has its system disk. From then on it may hold data.
    pub fn is_filled(&self) -> bool {
        self.config.disks.contains_key(SYSTEM_SLOT)
    }

    /// Its destruction was begun.
    pub fn is_deleting(&self) -> bool {
        self.mark.as_ref().is_some_and(|mark| mark.going)
    }

    /// Its destruction was begun and broke off when its system disk was gone, which is the first to go, so that it never starts again. A
    /// missing volume alone proves nothing: a storage that is not mounted is listed as empty.
    pub fn is_partially_deleted(&self, observed: &Observed) -> bool {
        let system = self.config.disks.get(SYSTEM_SLOT);
        self.is_deleting()
            && self.vm.power == PowerState::Stopped
            && system.is_some_and(|disk| observed.lost.contains(&disk.volume))
    }

    /// Has a disk on which etcd may have left data.
    pub fn may_hold_data(&self, observed: &Observed) -> bool {
        self.is_filled() && !self.is_partially_deleted(observed)
    }

    pub fn role(&self) -> Option<Role> {
        self.mark.as_ref().map(|mark| mark.role)
    }

    /// Why it is neither changed nor removed: it lacks marks, and not because its claim is unfinished.
    pub fn unproved(&self) -> Option<HoldReason> {
        let is_claim = self.mark.as_ref().is_some_and(|mark| mark.tag_follows);
        let missing: Vec<String> = self.missing.iter().map(ToString::to_string).collect();
        (!missing.is_empty() && !is_claim).then(|| unproved(&missing.join(" and "), self.vm.vmid))
    }

    /// Why nothing may be done to it now.
    pub fn blocked(&self, observed: &Observed) -> Option<HoldReason> {
        let vmid = self.vm.vmid;
        if let Some(reason) = self.unproved() {
            return Some(reason);
        }
        if let PowerState::Unknown(why) = &self.vm.power {
            return Some(HoldReason::transient(why.clone()));
        }
        if observed.hosts.get(&self.vm.host).is_some_and(|host| !host.online) {
            return Some(format!("host {} is offline", self.vm.host).into());
        }
        if let Some(task) = observed.tasks.iter().find(|task| task.is_about(vmid)) {
            let reason = format!("its PVE task {} still runs", task.kind);
            // Only these copy disks for mainstay. A backup or a migration is other people's work, which is not waited for.
            let is_ours = matches!(task.kind.as_str(), "qmcreate" | "qmconfig" | "qmclone");
            return Some(if is_ours {
                HoldReason::task(reason)
            } else {
                HoldReason::transient(reason)
            });
        }
        if let Some(lock) = &self.config.lock {
            let reason = format!("PVE holds the lock `{lock}`; if no task runs, root can remove it: qm unlock {vmid}");
            return Some(HoldReason::transient(reason));
        }
        if self.vm.template {
            return Some("the VM was converted to a template, which cannot run".to_owned().into());
        }
        None
    }
}

/// A VM that lacks marks is left alone until the user says that it is mainstay's.
pub(crate) fn unproved(missing: &str, vmid: u32) -> HoldReason {
    let reason = format!(
        "VM {vmid} lacks its {missing}, so it is not proved to be mainstay's and is left alone; if it is: mainstay adopt {vmid}"
    );
    reason.into()
}

/// Why a claim is marked again.
pub(crate) const UNFINISHED_CLAIM: &str = "its claim was interrupted before it got its tag";

/// The slot of the system disk.
pub(crate) const SYSTEM_SLOT: &str = "scsi0";

/// The slot of the EFI variables.
pub(crate) const EFI_SLOT: &str = "efidisk0";
