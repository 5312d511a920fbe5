//! The address book: the only place that turns the name of a machine into an address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use mainstay_plan::{Mark, Seen, Vm};
use mainstay_spec::{Role, Spec};
use uuid::Uuid;

use crate::failure::{Failure, FailureKind};

/// Where machines are. An observation builds it, and the steps of its round use it.
#[derive(Debug, Clone, Default)]
pub struct AddressBook {
    machines: BTreeMap<String, Ipv4Addr>,
    /// Those of the file.
    in_file: BTreeSet<String>,
    identities: BTreeMap<String, GuestIdentity>,
}

/// What a guest must show before it is believed to be the machine of this name.
#[derive(Debug, Clone)]
pub struct GuestIdentity {
    pub uuid: Uuid,
    /// The SMBIOS serial of this life of the VM.
    pub serial: Option<String>,
    /// Recorded in the mark, and void if it was seen with another serial.
    pub host_key: Option<String>,
    pub role: Role,
}

impl AddressBook {
    /// The machines of the file.
    pub fn of_file(spec: &Spec) -> Self {
        let address = |machine: &mainstay_spec::Machine| (machine.name.to_string(), machine.address);
        let machines: BTreeMap<_, _> = spec.machines.iter().map(address).collect();
        Self {
            in_file: machines.keys().cloned().collect(),
            machines,
            identities: BTreeMap::new(),
        }
    }

    pub fn identity(&self, machine: &str) -> Option<&GuestIdentity> {
        self.identities.get(machine)
    }

    /// Adds machines of this cluster that are not in the file any more: their VM says where they are.
    pub fn add_vms(&mut self, vms: &Seen<BTreeMap<u32, Vm>>, cluster_id: Uuid) {
        for config in vms.yes().into_iter().flatten().filter_map(|(_, vm)| vm.config.yes()) {
            let mark = Mark::parse(&config.description).filter(|mark| mark.cluster_id == cluster_id);
            if let Some((mark, uuid)) = mark.as_ref().zip(config.uuid) {
                let pinned = mark.host_key.as_ref();
                let host_key = pinned.filter(|pinned| Some(&pinned.serial) == config.serial.as_ref());
                let identity = GuestIdentity {
                    uuid,
                    serial: config.serial.clone(),
                    host_key: host_key.map(|pinned| pinned.key.clone()),
                    role: mark.role,
                };
                self.identities.insert(mark.machine.clone(), identity);
            }
            if let Some((mark, address)) = mark.zip(config.address) {
                self.machines.entry(mark.machine).or_insert(address.addr());
            }
        }
    }

    pub fn get(&self, machine: &str) -> Option<Ipv4Addr> {
        self.machines.get(machine).copied()
    }

    /// The address of a machine that a step names.
    pub fn address(&self, machine: &str) -> Result<Ipv4Addr, Failure> {
        self.get(machine)
            .ok_or_else(|| Failure::new(FailureKind::Bug, format!("a step names {machine}, which has no address")))
    }

    pub fn machine_at(&self, address: Ipv4Addr) -> Option<&str> {
        let found = self.machines.iter().find(|(_, at)| **at == address);
        found.map(|(name, _)| name.as_str())
    }

    /// The addresses of the file.
    pub fn wanted(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.in_file.iter().filter_map(|name| self.get(name))
    }
}
