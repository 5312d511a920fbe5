//! A second opinion on a plan: rules that no plan may break, checked against what was seen and not against how it was made.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;

use mainstay_spec::{Mac, Role};

use crate::action::{Action, EtcdEffect};
use crate::desired::{Desired, DesiredMachine, Goal};
use crate::guest::kubernetes_parts;
use crate::mark::Mark;
use crate::observed::{EtcdMember, Observed, PowerState, Seen, StorageAt, Vm, VmSettings};
use crate::ownership::{Ownership, ownership};
use crate::plan::{Plan, Step};
use crate::step::{KubernetesPart, StepId, Subject};
use crate::volumes::{is_cloud_init_volume, volume_owner};

/// A rule that a plan breaks. Always a bug of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub step: Option<StepId>,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Some(step) => write!(f, "step {step}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// Everything that is wrong with a plan. Empty for every plan that may be executed.
pub fn lint(plan: &Plan, desired: &Desired, observed: &Observed) -> Vec<Violation> {
    let none = BTreeMap::new();
    let vms = observed.vms.yes().unwrap_or(&none);
    let mut lint = Linter {
        plan,
        desired,
        observed,
        vms,
        broken: Vec::new(),
    };
    lint.order();
    if !lint.broken.is_empty() {
        return lint.broken;
    }
    lint.refusals();
    lint.identities();
    for step in &plan.steps {
        lint.ownership(step);
        lint.deletion(step);
        lint.disks(step);
        lint.channel(step);
        lint.impact(step);
    }
    lint.bootstrap();
    lint.members();
    lint.cordons();
    lint.kubelets();
    lint.broken
}

struct Linter<'a> {
    plan: &'a Plan,
    desired: &'a Desired,
    observed: &'a Observed,
    vms: &'a BTreeMap<u32, Vm>,
    broken: Vec<Violation>,
}

impl<'a> Linter<'a> {
    fn violation(&mut self, step: StepId, what: impl Into<String>) {
        self.broken.push(Violation {
            step: Some(step),
            what: what.into(),
        });
    }

    /// Ids count from one, and a step needs only earlier ones: no cycles.
    fn order(&mut self) {
        for (step, at) in self.plan.steps.iter().zip(1..) {
            if step.id.0 != at {
                self.violation(step.id, format!("is at place {at}"));
            }
            for need in step.needs.iter().filter(|need| **need >= step.id || need.0 == 0) {
                self.violation(step.id, format!("needs {need}, which does not come before it"));
            }
        }
    }

    /// A refused plan must not have steps: half of what the file asks for is not what it asks for.
    fn refusals(&mut self) {
        if let (false, Some(first)) = (self.plan.refusals.is_empty(), self.plan.steps.first()) {
            self.violation(first.id, "is planned although something is refused");
        }
    }

    /// No two machines share a VMID, a MAC or an address.
    fn identities(&mut self) {
        let mut vmids: BTreeSet<u32> = self.vms.keys().copied().collect();
        let configs = self
            .vms
            .values()
            .filter_map(|vm| vm.config.yes().map(|config| (vm.vmid, config)));
        let mut macs: BTreeMap<Mac, u32> = configs
            .clone()
            .filter_map(|(vmid, config)| Some((config.nic.as_ref()?.mac, vmid)))
            .collect();
        let mut addresses: BTreeMap<Ipv4Addr, u32> = configs
            .filter_map(|(vmid, config)| Some((config.address?.addr(), vmid)))
            .collect();
        for step in &self.plan.steps {
            match &step.action {
                Action::MachineClaim(claim) => {
                    if !vmids.insert(claim.vm.vmid) {
                        self.violation(step.id, format!("claims VMID {}, which is taken", claim.vm.vmid));
                    }
                    if macs
                        .insert(claim.nic.mac, claim.vm.vmid)
                        .is_some_and(|other| other != claim.vm.vmid)
                    {
                        self.violation(step.id, format!("uses the MAC {} a second time", claim.nic.mac));
                    }
                }
                Action::MachineFill(fill) => {
                    let address = fill.seed.address.addr();
                    if addresses
                        .insert(address, fill.vm.vmid)
                        .is_some_and(|other| other != fill.vm.vmid)
                    {
                        self.violation(step.id, format!("uses the address {address} a second time"));
                    }
                }
                _ => {}
            }
        }
    }

    /// A VM is touched only if it is ours, or is claimed by an earlier step. Lost marks are put back first.
    fn ownership(&mut self, step: &Step) {
        let Some(vm) = step.action.info().vm else { return };
        if let Subject::Machine(name) = &step.subject
            && vm.uuid != self.desired.uuid(name)
        {
            self.violation(step.id, format!("takes {vm} for {name} by a UUID that is not its"));
        }
        let claims = matches!(step.action, Action::MachineClaim(_));
        let Some(there) = self.vms.get(&vm.vmid) else {
            let claimed = |before: &Step| matches!(&before.action, Action::MachineClaim(claim) if claim.vm == *vm);
            if !claims && !self.depends_on(step, claimed) {
                self.violation(step.id, format!("acts on {vm}, which no step claimed"));
            }
            return;
        };
        let expected = self.desired.vmids.get(&vm.vmid).map(|claimant| claimant.machine.as_str());
        match ownership(there, self.desired.id(), expected) {
            Ownership::Ours(mark) if Subject::Machine(mark.machine.clone()) != step.subject => {
                self.violation(step.id, format!("acts on {vm}, which is {}", mark.machine));
            }
            Ownership::Ours(_) => {}
            Ownership::Incomplete { tag_follows: false, .. } => {
                self.violation(step.id, format!("acts on {vm}, which lacks marks"));
            }
            Ownership::Incomplete { .. } => {
                let marked = |before: &Step| matches!(&before.action, Action::MachineMark(remark) if remark.vm == *vm);
                if !marked(step) && !self.depends_on(step, marked) {
                    self.violation(step.id, format!("acts on {vm} before its marks are put back"));
                }
            }
            Ownership::Foreign(why) => self.violation(step.id, format!("acts on {vm}, which is not ours: {why}")),
            Ownership::Unknown(why) => self.violation(step.id, format!("acts on {vm}, whose owner is unknown: {why}")),
        }
    }

    /// Nothing is destroyed that runs, that PVE protects, that may belong to another owner, or while PVE has no quorum.
    fn deletion(&mut self, step: &Step) {
        match &step.action {
            Action::MachineDelete {
                vm,
                only_going,
                volumes,
                with_disks,
                ..
            } => {
                let Some(there) = self.vms.get(&vm.vmid) else {
                    return self.violation(step.id, format!("deletes {vm}, which is not there"));
                };
                for used in there.config.yes().into_iter().flat_map(VmSettings::volume_uses) {
                    let goes = volumes.contains(&used.volume) || with_disks.contains(&used.volume);
                    if volume_owner(&used.volume) == Some(vm.vmid) && !goes {
                        self.violation(step.id, format!("destroys {}, which the step does not list", used.volume));
                    }
                }
                for volume in with_disks.iter().filter(|volume| !self.desired.with_disks.contains(*volume)) {
                    self.violation(step.id, format!("destroys {volume}, which the user did not name"));
                }
                let stops = |before: &Step| matches!(&before.action, Action::MachineStop { vm: stopped, .. } if stopped == vm);
                if there.power != PowerState::Stopped && !self.depends_on(step, stops) {
                    self.violation(step.id, format!("deletes {vm} before it is stopped"));
                }
                if there.config.yes().is_some_and(|config| config.protection) {
                    self.violation(step.id, format!("deletes {vm}, which PVE protects"));
                }
                if self.observed.quorate != Seen::Yes(true) {
                    self.violation(step.id, format!("deletes {vm} although PVE's quorum is not known"));
                }
                if let Subject::Machine(name) = &step.subject
                    && !(*only_going && self.is_partially_deleted(there))
                    && self
                        .desired
                        .cluster_goal()
                        .is_some_and(|cluster| cluster.machine(name).is_some())
                {
                    self.violation(step.id, format!("deletes {name}, which is wanted"));
                }
            }
            Action::VolumeDelete { at, volume, .. } => self.volume(step, at, volume),
            _ => {}
        }
    }

    /// It says itself that its destruction was begun, and it lacks a disk.
    fn is_partially_deleted(&self, vm: &Vm) -> bool {
        vm.config.yes().is_some_and(|config| {
            Mark::parse(&config.description).is_some_and(|mark| mark.going)
                && vm.power == PowerState::Stopped
                && config
                    .disks
                    .get("scsi0")
                    .is_some_and(|disk| self.observed.lost.contains(&disk.volume))
        })
    }

    /// A volume that no VM names carries no mark, so the linter demands the proof that the observation recorded.
    fn volume(&mut self, step: &Step, at: &StorageAt, volume: &str) {
        let leftovers = self.observed.leftovers.yes().into_iter().flatten();
        let Some(left) = leftovers.into_iter().find(|left| left.volume == volume && left.at == *at) else {
            return self.violation(step.id, format!("deletes {volume}, which is no leftover"));
        };
        let expected = self.desired.vmids.get(&left.vmid).map(|claimant| claimant.machine.as_str());
        let proved = match self.vms.get(&left.vmid).map(|vm| ownership(vm, self.desired.id(), expected)) {
            Some(Ownership::Ours(_) | Ownership::Incomplete { tag_follows: true, .. }) => {
                left.proved || left.doubt.is_none() && is_cloud_init_volume(volume)
            }
            Some(_) => false,
            None => left.proved,
        };
        if let Some(busy) = &left.busy {
            self.violation(step.id, format!("deletes {volume}, but {busy}"));
        }
        if !proved {
            self.violation(step.id, format!("deletes {volume}, and nothing proves that it is ours"));
        }
        let mut configs = self.vms.values().filter_map(|vm| vm.config.yes());
        if configs.any(|config| config.volume_uses().iter().any(|used| used.volume == volume)) {
            self.violation(step.id, format!("deletes {volume}, which a VM uses"));
        }
    }

    /// What people approve and what needs the lease is decided by the table: a step never does more than its row says.
    fn impact(&mut self, step: &Step) {
        let most = step.action.info().max_impact;
        if step.impact > most {
            self.violation(
                step.id,
                format!("has the impact {}, and its kind at most {most}", step.impact),
            );
        }
    }

    /// A smaller size would cut off data: no step may ask for it, whatever the file says.
    fn disks(&mut self, step: &Step) {
        let Action::MachineGrow { vm, slot, to } = &step.action else {
            return;
        };
        let there = self
            .vms
            .get(&vm.vmid)
            .and_then(|vm| vm.config.yes())
            .and_then(|config| config.disks.get(slot));
        if there.is_some_and(|disk| disk.size > *to) {
            self.violation(step.id, format!("shrinks {slot} of {vm}"));
        }
    }

    /// A config, which holds secrets, goes to the machine that it was made for.
    fn channel(&mut self, step: &Step) {
        let (Action::GuestConfigure { guest, .. }
        | Action::GuestPrepare { guest, .. }
        | Action::GuestReconfigure { guest, .. }
        | Action::EtcdBootstrap { guest, .. }) = &step.action
        else {
            return;
        };
        let Subject::Machine(name) = &step.subject else {
            return self.violation(step.id, "sends a config to no machine");
        };
        let wanted = self.desired.cluster_goal().and_then(|cluster| cluster.machine(name));
        if wanted.is_none() || guest.machine != *name {
            self.violation(step.id, format!("sends the config of {name} to {}", guest.machine));
        }
        if guest.uuid != self.desired.uuid(name) {
            self.violation(step.id, format!("would believe the UUID {} of {name}", guest.uuid));
        }
    }

    /// At most one bootstrap, written down first, and only while no control plane has data or could have.
    fn bootstrap(&mut self) {
        let plan = self.plan;
        let steps: Vec<&Step> = plan
            .steps
            .iter()
            .filter(|step| matches!(step.action, Action::EtcdBootstrap { .. }))
            .collect();
        for second in steps.iter().skip(1) {
            self.violation(second.id, "bootstraps a second time");
        }
        let Some(step) = steps.first() else { return };
        if let Some(name) = self.has_etcd() {
            self.violation(step.id, format!("bootstraps although {name} has etcd data"));
        }
        let intends = |before: &Step| {
            before.subject == step.subject && matches!(&before.action, Action::MachineMark(remark) if remark.mark.bootstrap)
        };
        let marks = self.vms.values().filter_map(|vm| Mark::parse(&vm.config.yes()?.description));
        let written = marks
            .into_iter()
            .any(|mark| mark.bootstrap && Subject::Machine(mark.machine) == step.subject);
        if !written && !self.depends_on(step, intends) {
            self.violation(step.id, "bootstraps before that is written down");
        }
        let marks = self.vms.values().filter_map(|vm| Mark::parse(&vm.config.yes()?.description));
        let mut founded = marks.filter(|mark| mark.founded);
        if let (Action::EtcdBootstrap { again: true, .. }, Some(mark)) = (&step.action, founded.next()) {
            self.violation(step.id, format!("deletes etcd data although {} was ready", mark.machine));
        }
    }

    /// The machine that shows that etcd exists already, if any. Members count as much as data on a machine.
    fn has_etcd(&self) -> Option<String> {
        let members = self
            .observed
            .etcd
            .yes()
            .and_then(|members| members.first())
            .map(|member| member.name.clone());
        members.or_else(|| {
            self.observed
                .guests
                .iter()
                .find(|(_, guest)| guest.has_etcd_data())
                .map(|(name, _)| name.clone())
        })
    }

    /// Etcd loses one member at a time, and only if the others are a majority.
    fn members(&mut self) {
        let (Goal::Cluster(_), Some(members)) = (&self.desired.goal, self.observed.etcd.yes()) else {
            return;
        };
        let plan = self.plan;
        let mut members: Vec<EtcdMember> = members.clone();
        let mut before: Option<&Step> = None;
        for step in &plan.steps {
            let Subject::Machine(name) = &step.subject else { continue };
            let effect = step.action.info().etcd;
            if effect == EtcdEffect::Joins {
                join(&mut members, name);
            }
            if !self.takes_down(step, name, &members) {
                continue;
            }
            let gated = match effect {
                EtcdEffect::Leaves(_) => may_leave(&members, name),
                EtcdEffect::None | EtcdEffect::Joins | EtcdEffect::Interrupts => may_restart(&members, name),
            };
            if let Err(reason) = gated {
                self.violation(step.id, format!("takes {name} down: {reason}"));
            }
            if let Some(before) = before.filter(|before| before.subject != step.subject)
                && !self.depends_on(step, |other| other.id == before.id)
            {
                self.violation(step.id, format!("takes {name} down while {} may be down", before.subject));
            }
            if let EtcdEffect::Leaves(member) = effect {
                members.retain(|other| other.id != member.id);
            }
            before = Some(step);
        }
    }

    /// No kubelet is ever newer than an API server.
    fn kubelets(&mut self) {
        let plan = self.plan;
        let changed = |step: &Step, of: KubernetesPart| match &step.action {
            Action::KubernetesChange { part, to, .. } if *part == of => Some(to.clone()),
            _ => None,
        };
        let control_planes: Vec<&str> = self
            .desired
            .cluster_goal()
            .into_iter()
            .flat_map(|cluster| cluster.control_planes().map(DesiredMachine::name))
            .collect();
        for step in &plan.steps {
            let Some(to) = changed(step, KubernetesPart::Kubelet) else {
                continue;
            };
            for name in &control_planes {
                let guest = self.observed.guests.get(*name).and_then(|guest| guest.running());
                let seen = guest.and_then(|guest| kubernetes_parts(guest).get(&KubernetesPart::ApiServer).cloned());
                let is_new = |before: &Step| {
                    before.subject == Subject::Machine((*name).to_owned())
                        && changed(before, KubernetesPart::ApiServer).is_some_and(|version| version >= to)
                };
                if seen.is_none_or(|seen| seen < to) && !self.depends_on(step, is_new) {
                    self.violation(step.id, format!("makes a kubelet newer than the API server of {name}"));
                }
            }
        }
    }

    /// What is cordoned is released after what was done to it, unless it leaves. What is drained was cordoned before.
    fn cordons(&mut self) {
        let plan = self.plan;
        for step in &plan.steps {
            let same = |other: &Step| other.subject == step.subject;
            match &step.action {
                Action::NodeDrain { .. } => {
                    let cordons = |before: &Step| same(before) && matches!(before.action, Action::NodeCordon { .. });
                    if !self.depends_on(step, cordons) {
                        self.violation(step.id, format!("drains {} before it is cordoned", step.subject));
                    }
                }
                Action::NodeCordon { .. } => {
                    let ends = |after: &&Step| {
                        same(after) && matches!(after.action, Action::NodeUncordon { .. } | Action::MachineDelete { .. })
                    };
                    let end = plan.steps.iter().find(ends);
                    if !end.is_some_and(|end| self.depends_on(end, |before| before.id == step.id)) {
                        self.violation(step.id, format!("cordons {} for good", step.subject));
                    }
                }
                _ => {}
            }
        }
    }

    /// The step makes a member of etcd stop, leave or restart.
    fn takes_down(&self, step: &Step, name: &str, members: &[EtcdMember]) -> bool {
        let disturbs = matches!(step.action.info().etcd, EtcdEffect::Interrupts | EtcdEffect::Leaves(_));
        let votes = |member: &EtcdMember| member.name == name && member.votes();
        let was_control_plane = || {
            self.desired
                .cluster_goal()
                .and_then(|cluster| cluster.machine(name))
                .is_none_or(|wanted| wanted.machine.role == Role::ControlPlane)
        };
        disturbs && was_control_plane() && members.iter().any(votes)
    }

    /// A step that `is` comes before `step` on some path of needs.
    fn depends_on(&self, step: &Step, is: impl Fn(&Step) -> bool) -> bool {
        let mut seen: BTreeSet<StepId> = BTreeSet::new();
        let mut open: Vec<StepId> = step.needs.clone();
        while let Some(id) = open.pop() {
            let Some(before) = self.plan.step(id).filter(|_| seen.insert(id)) else {
                continue;
            };
            if is(before) {
                return true;
            }
            open.extend(&before.needs);
        }
        false
    }
}

/// The members after `name` joined. This arithmetic is the linter's own: a second opinion that asked the planner would share its errors.
fn join(members: &mut Vec<EtcdMember>, name: &str) {
    if members.iter().any(|member| member.name == name && member.votes()) {
        return;
    }
    members.retain(|member| member.name != name);
    members.push(EtcdMember {
        id: 0,
        name: name.to_owned(),
        learner: false,
        healthy: true,
    });
}

/// How many voters there are, and how many of them are healthy.
fn count<'m>(members: impl Iterator<Item = &'m EtcdMember>) -> (usize, usize) {
    members
        .filter(|member| !member.learner)
        .fold((0, 0), |(all, healthy), member| {
            (all + 1, healthy + usize::from(member.healthy))
        })
}

/// While one voter is down, the others must be more than half of all. A single voter depends on no other.
fn may_restart(members: &[EtcdMember], name: &str) -> Result<(), String> {
    let (all, _) = count(members.iter());
    let (others, healthy) = count(members.iter().filter(|member| member.name != name));
    if others == 0 || others == all || healthy * 2 > all {
        return Ok(());
    }
    Err(format!("etcd would have {healthy} of {all} healthy members"))
}

/// A change of members needs a majority before it, and the rest is a cluster with a majority after it.
fn may_leave(members: &[EtcdMember], name: &str) -> Result<(), String> {
    let (all, healthy) = count(members.iter());
    let (others, healthy_others) = count(members.iter().filter(|member| member.name != name));
    if healthy * 2 > all && others > 0 && healthy_others * 2 > others {
        return Ok(());
    }
    Err(format!(
        "{healthy} of {all} voters are healthy before, {healthy_others} of {others} after"
    ))
}
