//! Which VM is which machine: the one place where ownership is judged for a plan.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use mainstay_spec::Role;

use crate::desired::{Desired, Wanted};
use crate::mark::{Mark, Ownership, Proof, TAG, ownership};
use crate::observed::{Observed, Power, Talos, Vm, VmConfig};
use crate::plan::Hold;
use crate::step::VmRef;

/// The world as this cluster sees it.
pub(crate) struct Survey<'a> {
    pub desired: &'a Desired,
    pub observed: &'a Observed,
    pub vms: &'a BTreeMap<u32, Vm>,
    /// The machines of the file by name.
    pub wanted: BTreeMap<&'a str, &'a Wanted>,
    /// By machine.
    pub ours: BTreeMap<String, Owned<'a>>,
    /// By VMID, with why they are not ours. Only VMs that were looked at.
    pub strangers: BTreeMap<u32, String>,
    /// By VMID, with why it could not be told whose they are.
    pub unknown: BTreeMap<u32, String>,
}

/// A VM that is ours.
#[derive(Debug, Clone)]
pub(crate) struct Owned<'a> {
    pub vm: &'a Vm,
    pub config: &'a VmConfig,
    /// `None`: the block is lost.
    pub mark: Option<Mark>,
    /// Marks that must be put back first.
    pub missing: BTreeSet<Proof>,
}

/// What is known about a machine's VM.
pub(crate) enum Machine<'s, 'a> {
    Absent,
    There(&'s Owned<'a>),
    Unknown(String),
}

impl<'a> Survey<'a> {
    pub fn new(desired: &'a Desired, observed: &'a Observed, vms: &'a BTreeMap<u32, Vm>) -> Self {
        let machines = desired.wish().map(|wish| wish.machines.as_slice()).unwrap_or_default();
        let wanted = machines.iter().map(|wanted| (wanted.name(), wanted)).collect();
        let (ours, strangers, unknown) = Default::default();
        let mut survey = Self {
            desired,
            observed,
            vms,
            wanted,
            ours,
            strangers,
            unknown,
        };
        vms.values().for_each(|vm| survey.sort(vm));
        survey
    }

    fn sort(&mut self, vm: &'a Vm) {
        let expected = self.desired.vmids.get(&vm.vmid).map(|claimant| claimant.machine.as_str());
        if expected.is_none() && !vm.tags.contains(TAG) {
            return;
        }
        match ownership(vm, self.desired.id(), expected) {
            Ownership::Ours(mark) => self.own(vm, mark.machine.clone(), Some(*mark), BTreeSet::new()),
            Ownership::Damaged { machine, missing } => {
                let mark = vm.config.yes().and_then(|config| Mark::parse(&config.description));
                self.own(vm, machine, mark, missing);
            }
            Ownership::Stranger(why) => drop(self.strangers.insert(vm.vmid, why)),
            Ownership::Unknown(why) => drop(self.unknown.insert(vm.vmid, why)),
        }
    }

    fn own(&mut self, vm: &'a Vm, machine: String, mark: Option<Mark>, missing: BTreeSet<Proof>) {
        let Some(config) = vm.config.yes() else { return };
        let owned = Owned {
            vm,
            config,
            mark,
            missing,
        };
        // Two with every proof cannot both have the VMID that is in the mark; a repaired block could, and then the lower VMID stays.
        match self.ours.entry(machine) {
            Entry::Vacant(free) => drop(free.insert(owned)),
            Entry::Occupied(taken) => drop(self.strangers.insert(vm.vmid, format!("it is a second {}", taken.key()))),
        }
    }

    /// The VM of a machine. It is looked for by its marks first, so that a changed VMID range finds it where it is.
    pub fn machine(&self, name: &str, vmid: u32) -> Machine<'_, 'a> {
        match (self.ours.get(name), self.unknown.get(&vmid)) {
            (Some(owned), _) => Machine::There(owned),
            (None, Some(why)) => Machine::Unknown(why.clone()),
            (None, None) => Machine::Absent,
        }
    }

    pub fn talos(&self, name: &str) -> Option<&'a Talos> {
        self.observed.talos.get(name)
    }
}

impl Owned<'_> {
    pub fn at(&self) -> VmRef {
        VmRef {
            host: self.vm.host.clone(),
            vmid: self.vm.vmid,
            // Without one it would not be ours.
            uuid: self.config.uuid.unwrap_or_default(),
        }
    }

    pub fn runs(&self) -> bool {
        self.vm.power == Power::Running
    }

    /// Has its system disk. From then on it may hold data.
    pub fn is_filled(&self) -> bool {
        self.config.disks.contains_key(SYSTEM_SLOT)
    }

    /// Its destruction was begun.
    pub fn is_going(&self) -> bool {
        self.mark.as_ref().is_some_and(|mark| mark.going)
    }

    /// Its destruction was begun and broke off when its system disk was gone, which is the first to go, so that it never starts again. A
    /// missing volume alone proves nothing: a storage that is not mounted is listed as empty.
    pub fn is_half_destroyed(&self, observed: &Observed) -> bool {
        let system = self.config.disks.get(SYSTEM_SLOT);
        self.is_going() && self.vm.power == Power::Stopped && system.is_some_and(|disk| observed.lost.contains(&disk.volume))
    }

    /// Has a disk on which etcd may have left data.
    pub fn may_hold_data(&self, observed: &Observed) -> bool {
        self.is_filled() && !self.is_half_destroyed(observed)
    }

    pub fn role(&self) -> Option<Role> {
        self.mark.as_ref().map(|mark| mark.role)
    }

    /// Why nothing may be done to it now.
    pub fn blocked(&self, observed: &Observed) -> Option<Hold> {
        let vmid = self.vm.vmid;
        if let Power::Unknown(why) = &self.vm.power {
            return Some(Hold::for_now(why.clone()));
        }
        if observed.hosts.get(&self.vm.host).is_some_and(|host| !host.online) {
            return Some(format!("host {} is offline", self.vm.host).into());
        }
        if let Some(task) = observed.tasks.iter().find(|task| task.is_about(vmid)) {
            return Some(Hold::for_now(format!("its PVE task {} still runs", task.kind)));
        }
        if let Some(lock) = &self.config.lock {
            let reason = format!("PVE holds the lock `{lock}`; if no task runs, root can remove it: qm unlock {vmid}");
            return Some(Hold::for_now(reason));
        }
        if self.vm.template {
            return Some("it was turned into a template, which cannot run".to_owned().into());
        }
        None
    }
}

/// The slot of the system disk.
pub(crate) const SYSTEM_SLOT: &str = "scsi0";

/// The slot of the EFI variables.
pub(crate) const EFI_SLOT: &str = "efidisk0";
