//! What every pass may read, and small questions about it.

use std::collections::BTreeMap;
use std::ops::Deref;

use mainstay_spec::Role;
use uuid::Uuid;

use crate::desired::{Desired, DesiredCluster, DesiredMachine};
use crate::digest;
use crate::mark::Mark;
use crate::observed::{Member, Node, Observed, Talos};
use crate::ownership::{OwnedVm, OwnedVms, VmLookup};
use crate::step::StepId;

/// The last step that a machine has in some respect.
pub(crate) type StepByMachine<'a> = BTreeMap<&'a str, StepId>;

/// Both sides of the comparison, for `up` and for `down`.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub desired: &'a Desired,
    pub observed: &'a Observed,
    pub owned: &'a OwnedVms<'a>,
}

impl<'a> Inputs<'a> {
    /// The SMBIOS UUID that the machine of this name has.
    pub fn uuid(self, name: &str) -> Uuid {
        self.desired.uuid(name)
    }

    pub fn talos(self, name: &str) -> Option<&'a Talos> {
        self.observed.talos.get(name)
    }

    /// The etcd members that were observed. Empty where they could not be read.
    pub fn members(self) -> &'a [Member] {
        self.observed.etcd.yes().map(Vec::as_slice).unwrap_or_default()
    }

    pub fn node(self, name: &str) -> Option<&'a Node> {
        self.observed.kubernetes.yes()?.nodes.get(name)
    }

    /// The kubelet reports that all is well, so the machine lives even if its own API cannot be reached.
    pub fn is_ready(self, name: &str) -> bool {
        self.node(name).is_some_and(|node| node.ready)
    }

    /// Whether a machine of ours is a control plane, by its mark or by the file.
    pub fn is_control_plane(self, name: &str, vm: &OwnedVm<'_>) -> bool {
        let in_file = self.owned.in_file(name).is_some_and(DesiredMachine::is_control_plane);
        vm.role() == Some(Role::ControlPlane) || in_file
    }
}

/// The same for a cluster that is wanted. `Copy`, so that passes take it by value.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub inputs: Inputs<'a>,
    pub cluster: &'a DesiredCluster,
}

impl<'a> Deref for Context<'a> {
    type Target = Inputs<'a>;

    fn deref(&self) -> &Inputs<'a> {
        &self.inputs
    }
}

impl<'a> Context<'a> {
    /// The VM of a machine of the file.
    pub fn lookup(self, machine: &DesiredMachine) -> VmLookup<'a> {
        self.owned.lookup(machine.name(), machine.machine.vmid)
    }

    /// The mark that a machine should carry.
    pub fn mark(self, machine: &DesiredMachine, vmid: u32) -> Mark {
        Mark {
            cluster: self.desired.cluster.clone(),
            cluster_id: self.desired.id(),
            machine: machine.name().to_owned(),
            role: machine.machine.role,
            vmid,
            shape: Some(digest::digest(self.cluster, machine)),
            versions: Some(self.cluster.versions.clone()),
            bootstrap: false,
            going: false,
            disks: None,
            lease: None,
        }
    }
}
