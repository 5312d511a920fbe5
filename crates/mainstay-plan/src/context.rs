//! What every pass may read, and small questions about it.

use std::collections::BTreeMap;
use std::ops::Deref;

use mainstay_spec::Role;
use uuid::Uuid;

use crate::desired::{Desired, DesiredCluster, DesiredMachine};
use crate::digest;
use crate::mark::Mark;
use crate::observed::{EtcdMember, Guest, NodeStatus, Observed};
use crate::ownership::{OwnedVm, OwnedVms, VmLookup};
use crate::step::{Ask, GuestRef, MemberRef, QuorumCheck, StepId};

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

    /// Control planes of the file, for steps that need one that answers.
    pub fn control_planes(self) -> Ask {
        let control_planes = self
            .desired
            .cluster_goal()
            .into_iter()
            .flat_map(DesiredCluster::control_planes);
        control_planes.map(|machine| machine.name().to_owned()).collect()
    }

    /// The guest of the machine of this name, as a step refers to it.
    pub fn guest_ref(self, name: &str) -> GuestRef {
        GuestRef {
            machine: name.to_owned(),
            uuid: self.uuid(name),
        }
    }

    pub fn guest(self, name: &str) -> Option<&'a Guest> {
        self.observed.guests.get(name)
    }

    /// The etcd members that were observed. Empty where they could not be read.
    pub fn members(self) -> &'a [EtcdMember] {
        self.observed.etcd.yes().map(Vec::as_slice).unwrap_or_default()
    }

    pub fn node(self, name: &str) -> Option<&'a NodeStatus> {
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
    /// Control planes of the file without one of them.
    pub fn other_control_planes(self, name: &str) -> Ask {
        let others = self
            .cluster
            .control_planes()
            .map(DesiredMachine::name)
            .filter(|other| *other != name);
        others.map(str::to_owned).collect()
    }

    /// Control planes of the file, one of them last.
    pub fn control_planes_but_last(self, name: &str) -> Ask {
        let own = self.cluster.machine(name).filter(|machine| machine.is_control_plane());
        let own = own.map(|machine| machine.name().to_owned());
        self.other_control_planes(name).iter().cloned().chain(own).collect()
    }

    /// What must be read right before a control plane restarts: the members, first as it lists them itself.
    pub fn restart_check(self, machine: &DesiredMachine) -> Option<QuorumCheck> {
        let name = machine.name();
        machine.is_control_plane().then(|| QuorumCheck {
            member: MemberRef {
                name: name.to_owned(),
                id: 0,
            },
            ask: [name.to_owned()]
                .into_iter()
                .chain(self.other_control_planes(name).iter().cloned())
                .collect(),
            may_join: false,
        })
    }

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
            tag_follows: false,
            shape: Some(digest::digest(self.cluster, machine)),
            versions: Some(machine.runs.clone()),
            bootstrap: false,
            founded: false,
            going: false,
            disks: None,
            lease: None,
            upgrade: None,
            host_key: None,
            tags: machine.machine.tags.iter().map(ToString::to_string).collect(),
            pool: self.cluster.resource_pool.clone(),
        }
    }
}
