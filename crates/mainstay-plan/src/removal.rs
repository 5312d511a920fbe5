//! The removal pass: machines that are not in the file any more, members without a machine, leftover volumes; and everything for `down`.
//!
//! A machine is drained, a control plane leaves etcd, its machine stops, its Node goes, then its VM: each while the one before still proves
//! it. When a member leaves is a question to its distribution, see [`EtcdExit`].

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;

use mainstay_spec::Role;

use crate::action::Action;
use crate::builder::{PlanBuilder, StepBuilder};
use crate::context::{Context, Inputs};
use crate::drain::{self, DrainDecision};
use crate::etcd::{self, EtcdChain, EtcdFacts, EtcdPresence};
use crate::guest::{self, EtcdExit};
use crate::images;
use crate::mark::{Mark, TAG};
use crate::observed::{EtcdMember, EtcdState, Guest, Observed, PowerState, Seen, Vm};
use crate::ownership::{OwnedVm, UNFINISHED_CLAIM, unproved};
use crate::plan::HoldReason;
use crate::step::{Impact, MarkUpdate, MemberRef, MemberRemoval, QuorumCheck, StepId, Subject};
use crate::volumes;

const UNWANTED: &str = "not in cluster.yaml";
const PROTECTED: &str = "cluster.yaml says `protect: true`, so no machine is removed; take `protect` out of cluster.yaml first";
const PARTIAL: &str = "finishes a deletion that stopped after the system disk was removed";

/// Deletes everything that is ours.
pub(crate) fn plan_teardown(inputs: Inputs<'_>, images: &[String], plan: &mut PlanBuilder) {
    let (desired, owned) = (inputs.desired, inputs.owned);
    let mut freed = BTreeSet::new();
    for (vmid, why) in &owned.unknown {
        let expected = desired.vmids.get(vmid);
        if expected.is_some() || desired.vmids.is_empty() {
            let subject = expected.map_or_else(|| format!("vm {vmid}"), |expected| expected.machine.clone());
            plan.hold(Subject::Machine(subject), "remove", HoldReason::transient(why.clone()));
        }
    }
    // As with a protected VM: deleting only the others would leave a broken cluster.
    let locked = owned.ours.iter().find(|(_, vm)| vm.config.lock.is_some());
    for (name, vm) in &owned.ours {
        let mut removal = Removal {
            inputs,
            name,
            vm,
            freed: &mut freed,
            is_drained: false,
            plan,
        };
        if let Some((other, _)) = locked.filter(|(other, _)| *other != name) {
            let reason = format!("PVE holds a lock on {other}, and nothing is deleted while a part of the cluster would stay");
            removal.hold(HoldReason::transient(reason));
            continue;
        }
        if let Some(reason) = removal_blocker(inputs, vm) {
            removal.hold(reason);
            continue;
        }
        let marked = removal.repair_marks();
        let freed = removal.free_leftovers(marked);
        let stopped = removal.stop(None, marked.into_iter().collect());
        removal.delete(None, stopped.into_iter().chain(marked).chain(freed).collect());
    }
    leftover_volumes(inputs, freed, plan);
    images::delete(inputs, images, guest::may_be_made_of, plan);
}

/// Volumes that no VM uses. Those that mainstay provably made, and that the token may free, are deleted; every other one is named.
/// `freed`: those that a step of this plan deletes already.
fn leftover_volumes(inputs: Inputs<'_>, mut freed: BTreeSet<String>, plan: &mut PlanBuilder) {
    let leftovers = inputs.observed.leftovers.yes().into_iter().flatten();
    for left in leftovers {
        if freed.contains(&left.volume) {
            continue;
        }
        let subject = Subject::Volume(left.volume.clone());
        let owner = inputs.owned.ours.values().find(|vm| vm.vm.vmid == left.vmid);
        // A task may be about to use it.
        let is_idle = match owner {
            Some(vm) => vm.blocked(inputs.observed).is_none(),
            None => !inputs.owned.all.contains_key(&left.vmid),
        };
        if left.proved && !left.may_free {
            let reason = format!(
                "mainstay made it and no VM uses it, but the token lacks Datastore.Allocate on /storage/{}: pvesm free {}",
                left.at.storage, left.volume
            );
            plan.hold(subject, "free", reason);
        } else if let Some(busy) = left.busy.as_ref().filter(|_| left.proved) {
            plan.hold(subject, "free", HoldReason::transient(busy));
        } else if left.proved && is_idle {
            let why = if owner.is_some() {
                volumes::BROKEN_FILL
            } else {
                "leftover volume of a deleted machine of this cluster"
            };
            volumes::free(left, why, None, plan);
            freed.insert(left.volume.clone());
        } else if !left.proved && is_idle {
            let doubt = left.doubt.as_deref().unwrap_or("nothing proves that mainstay made it");
            let reason = format!(
                "no VM uses it, and {doubt}, so it is kept; if it is not needed: pvesm free {}",
                left.volume
            );
            plan.hold(subject, "free", HoldReason::accepted(reason));
        }
    }
}

/// Removes the machines that are ours and not in the file, and what is left of those whose deletion broke off. `after`: the last steps of
/// earlier passes that concern etcd. `freed`: volumes that they delete.
pub(crate) fn plan(
    ctx: Context<'_>,
    etcd: &EtcdFacts<'_>,
    after: Vec<StepId>,
    mut freed: BTreeSet<String>,
    plan: &mut PlanBuilder,
) {
    let mut chain = EtcdChain {
        tail: after,
        ..EtcdChain::observed(ctx)
    };
    let is_leaving =
        |(name, vm): &(&String, &OwnedVm<'_>)| ctx.owned.in_file(name).is_none() || vm.is_partially_deleted(ctx.observed);
    let mut leaving: Vec<(&String, &OwnedVm<'_>)> = ctx.owned.ours.iter().filter(is_leaving).collect();
    // Workers first, and the youngest control plane before the oldest.
    leaving.sort_by_key(|(name, vm)| (vm.role() == Some(Role::ControlPlane), Reverse(name.len()), Reverse(*name)));
    for (name, vm) in leaving {
        let inputs = *ctx;
        let mut removal = Removal {
            inputs,
            name,
            vm,
            freed: &mut freed,
            is_drained: false,
            plan,
        };
        if let Some(reason) = removal_blocker(inputs, vm) {
            removal.hold(reason);
            continue;
        }
        if ctx.desired.protect && ctx.owned.in_file(name).is_none() {
            removal.hold(PROTECTED.to_owned().into());
            continue;
        }
        if ctx.owned.in_file(name).is_some() {
            let note = format!("{name} is recreated by the next run, after its remains are deleted");
            removal.plan.note(note);
        }
        let removed = match removal_hold(ctx, etcd) {
            Some(reason) => Err(HoldReason::transient(reason)),
            None if is_marked_control_plane(vm) => remove_control_plane(ctx, &mut removal, etcd, &mut chain),
            None => remove_worker(ctx, &mut removal),
        };
        if let Err(reason) = removed {
            // A member that starts, an API server that rolls: most of it passes by itself.
            removal.hold(reason);
            start_to_inspect(ctx, &mut removal);
        }
    }
    if matches!(etcd.presence, EtcdPresence::Exists) {
        remove_orphans(ctx, &mut chain, plan);
    }
    note_stale_nodes(ctx, plan);
    leftover_volumes(*ctx, freed, plan);
}

/// Nodes that belong to no machine of ours. They may have joined on purpose, so they are only named.
fn note_stale_nodes(ctx: Context<'_>, plan: &mut PlanBuilder) {
    let nodes = ctx
        .observed
        .kubernetes
        .yes()
        .into_iter()
        .flat_map(|kubernetes| kubernetes.nodes.keys());
    let is_foreign = |name: &&String| ctx.owned.in_file(name).is_none() && !ctx.owned.ours.contains_key(*name);
    for name in nodes.filter(is_foreign) {
        plan.note(format!(
            "Kubernetes node {name} belongs to no machine of this cluster; to remove it: kubectl delete node {name}"
        ));
    }
}

/// A control plane that cannot be removed yet may be what the others wait for: its etcd data, or its vote. It is started, so that the next
/// plan can read it.
fn start_to_inspect(ctx: Context<'_>, removal: &mut Removal<'_, '_>) {
    let (name, vm) = (removal.name, removal.vm);
    let may_hold_data = is_marked_control_plane(vm) && vm.may_hold_data(ctx.observed);
    let is_unread = may_hold_data && etcd::data_unknown(ctx, name, vm).is_some();
    let can_answer = matches!(vm.vm.power, PowerState::Running | PowerState::Stopped);
    if !is_unread || !can_answer || vm.config.address.is_none() {
        return;
    }
    let marked = removal.repair_marks();
    let why = "its etcd data must be read before it can be removed";
    let start = Action::MachineStart { vm: vm.vm_ref() };
    let started = (!vm.runs()).then(|| removal.step(start).because(why).needs(marked).add());
    let guest = ctx.guest_ref(name);
    let action = Action::GuestAwait { guest };
    removal.step(action).because(why).needs(started).add();
}

/// Whether its pods are moved to other machines first.
fn drains(ctx: Context<'_>, name: &str) -> Result<bool, HoldReason> {
    Ok(matches!(drain::decide(ctx, name, true)?, DrainDecision::Drain))
}

fn remove_worker(ctx: Context<'_>, removal: &mut Removal<'_, '_>) -> Result<(), HoldReason> {
    removal.is_drained = drains(ctx, removal.name)?;
    let marked = removal.repair_marks();
    let needs = removal.drain(ctx, marked.into_iter().collect());
    removal.remove_machine(None, needs, None, &[]);
    Ok(())
}

/// Removes a control plane, if etcd lives on without it.
fn remove_control_plane(
    ctx: Context<'_>,
    removal: &mut Removal<'_, '_>,
    etcd: &EtcdFacts<'_>,
    chain: &mut EtcdChain,
) -> Result<(), HoldReason> {
    let (name, vm) = (removal.name, removal.vm);
    let member = chain.members.iter().find(|member| member.name == name).cloned();
    if let (EtcdPresence::Exists, Seen::Unknown(why)) = (&etcd.presence, &ctx.observed.etcd) {
        return Err(HoldReason::transient(format!(
            "whether etcd keeps its quorum without it is unknown: {why}"
        )));
    }
    let rest: Vec<EtcdMember> = chain.members.iter().filter(|other| other.name != name).cloned().collect();
    let may_join = may_join(ctx, name, vm);
    let by = match &member {
        Some(member) => {
            if member.votes() {
                etcd::may_leave(&chain.members, name).map_err(HoldReason::transient)?;
            }
            Some(guest::etcd_exit(ctx, member, &rest).map_err(HoldReason::transient)?)
        }
        // It may be a member by the time it is stopped, and then a healthy one must tell.
        None if may_join && matches!(etcd.presence, EtcdPresence::Exists) => {
            etcd::healthy_peer(ctx, &rest).map_err(HoldReason::transient)?;
            None
        }
        None => None,
    };
    removal.is_drained = drains(ctx, name)?;
    chain.members = rest;
    let marked = removal.repair_marks();
    let needs: Vec<StepId> = marked.into_iter().chain(chain.tail.iter().copied()).collect();
    let needs = removal.drain(ctx, needs);
    let is_out_first = matches!(by, Some(EtcdExit::Itself | EtcdExit::BeforeStop(_)));
    let votes = member.as_ref().is_some_and(EtcdMember::votes);
    let check = etcd::healthy_peer(ctx, &chain.members).ok().map(|peer| QuorumCheck {
        member: MemberRef {
            name: name.to_owned(),
            id: member.as_ref().map_or(0, |member| member.id),
        },
        ask: [peer].into(),
        may_join: !is_out_first && !votes && may_join,
    });
    let tail = chain.tail.clone();
    let leaving = member.zip(by).map(|(member, exit)| LeavingMember { ctx, member, exit });
    chain.tail = vec![removal.remove_machine(check, needs, leaving.as_ref(), &tail)];
    Ok(())
}

/// A control plane that runs joins etcd as soon as it can. Not one that left, or that was never configured.
fn may_join(ctx: Context<'_>, name: &str, vm: &OwnedVm<'_>) -> bool {
    let stays_out = match ctx.guest(name) {
        Some(Guest::AwaitingConfig { .. }) => true,
        Some(Guest::Running(node)) => node.etcd == Seen::Yes(EtcdState::Left),
        _ => false,
    };
    vm.runs() && vm.is_filled() && !stays_out
}

/// Removes members whose machine is gone and not in the file. They count for the majority, so they must not stay.
fn remove_orphans(ctx: Context<'_>, chain: &mut EtcdChain, plan: &mut PlanBuilder) {
    let owned = ctx.owned;
    let mut running = owned
        .ours
        .iter()
        .filter(|(name, vm)| vm.runs() && ctx.is_control_plane(name, vm));
    let is_one_joining = running.any(|(name, _)| !chain.members.iter().any(|member| member.name == *name));
    let is_orphan = |member: &&EtcdMember| {
        let is_known = owned.in_file(&member.name).is_some() || owned.ours.contains_key(&member.name);
        // Without a name it is called by its address, and could be one of ours that is about to start.
        let starts = is_one_joining && member.name.parse::<IpAddr>().is_ok();
        !member.name.is_empty() && !is_known && !starts && owned.unknown.is_empty()
    };
    for member in chain.members.iter().filter(is_orphan).cloned().collect::<Vec<_>>() {
        if let Some(vm) = unproved_vm(ctx, &member.name) {
            let reason = unproved("marks", vm.vmid);
            plan.hold(Subject::Machine(member.name.clone()), "remove", reason);
            continue;
        }
        let gate = if member.votes() {
            etcd::may_leave(&chain.members, &member.name)
        } else {
            Ok(())
        };
        let rest: Vec<EtcdMember> = chain.members.iter().filter(|other| other.id != member.id).cloned().collect();
        match gate.and_then(|()| guest::etcd_exit(ctx, &member, &rest)) {
            Ok(exit) => {
                let by = exit.removal();
                chain.members = rest;
                chain.tail = vec![etcd::leave(ctx, &member, by, UNWANTED, chain.tail.clone(), plan)];
            }
            Err(reason) => plan.hold(Subject::Node(member.name.clone()), "remove", HoldReason::transient(reason)),
        }
    }
}

/// The VM that has the name or the UUID of a machine of ours, although it lacks marks. Its etcd may run, so its member still counts.
fn unproved_vm<'a>(ctx: Context<'a>, name: &str) -> Option<&'a Vm> {
    let uuid = Some(ctx.uuid(name));
    let is_it = |vm: &&Vm| vm.name.as_deref() == Some(name) || vm.config.yes().is_some_and(|config| config.uuid == uuid);
    ctx.owned.all.values().find(is_it)
}

/// A member of etcd whose machine goes.
struct LeavingMember<'a> {
    ctx: Context<'a>,
    member: EtcdMember,
    exit: EtcdExit,
}

impl LeavingMember<'_> {
    fn leave(&self, by: MemberRemoval, why: &str, needs: Vec<StepId>, plan: &mut PlanBuilder) -> StepId {
        etcd::leave(self.ctx, &self.member, by, why, needs, plan)
    }
}

/// Adds the steps that remove one machine.
struct Removal<'p, 'a> {
    inputs: Inputs<'a>,
    name: &'a str,
    vm: &'a OwnedVm<'a>,
    /// Leftover volumes that this plan deletes.
    freed: &'p mut BTreeSet<String>,
    is_drained: bool,
    plan: &'p mut PlanBuilder,
}

impl Removal<'_, '_> {
    fn step(&mut self, action: Action) -> StepBuilder<'_> {
        self.plan.step(Subject::Machine(self.name.to_owned()), action)
    }

    fn hold(&mut self, reason: HoldReason) {
        self.plan.hold(Subject::Machine(self.name.to_owned()), "remove", reason);
    }

    /// Moves its pods to other machines first, where it has any.
    fn drain(&mut self, ctx: Context<'_>, needs: Vec<StepId>) -> Vec<StepId> {
        if !self.is_drained {
            return needs;
        }
        let subject = Subject::Machine(self.name.to_owned());
        vec![drain::begin(ctx, &subject, "removal", self.why(), &needs, self.plan)]
    }

    /// Stop, Node, VM, and in between the etcd member, where its distribution says. `tail`: the last steps on other members.
    /// Returns the last step.
    fn remove_machine(
        &mut self,
        check: Option<QuorumCheck>,
        mut needs: Vec<StepId>,
        leaving: Option<&LeavingMember<'_>>,
        tail: &[StepId],
    ) -> StepId {
        let why = self.why();
        let is_out_first = |leaving: &&LeavingMember<'_>| matches!(leaving.exit, EtcdExit::Itself | EtcdExit::BeforeStop(_));
        if let Some(leaving) = leaving.filter(is_out_first) {
            let left = leaving.leave(leaving.exit.removal(), why, needs, self.plan);
            needs = [left].into_iter().chain(tail.iter().copied()).collect();
        }
        let stopped = self.stop(check.clone(), needs.clone());
        let mut before = needs;
        before.extend(stopped);
        if let Some(leaving) = leaving.filter(|leaving| matches!(leaving.exit, EtcdExit::AfterStop(_))) {
            before.push(leaving.leave(leaving.exit.removal(), why, before.clone(), self.plan));
        }
        if self.may_be_node() {
            let ask = self.inputs.control_planes();
            let was_drained = self.is_drained;
            let action = Action::NodeDelete { ask, was_drained };
            let step = self.step(action).because("its machine is being removed");
            let deleted = step.impact(Impact::Live).needs(before.iter().copied()).add();
            before.push(deleted);
        }
        let first = before.first().copied();
        before.extend(self.free_leftovers(first));
        let deleted = self.delete(check, before);
        match leaving.filter(|leaving| matches!(leaving.exit, EtcdExit::AfterDeletion(_))) {
            Some(leaving) => leaving.leave(leaving.exit.removal(), why, vec![deleted], self.plan),
            None => deleted,
        }
    }

    /// It is a Node, or could become one before it is stopped.
    fn may_be_node(&self) -> bool {
        let waits = matches!(self.inputs.guest(self.name), Some(Guest::AwaitingConfig { .. }));
        let may_register = self.vm.runs() && self.vm.is_filled() && !waits;
        let kubernetes = self.inputs.observed.kubernetes.yes();
        kubernetes.is_some_and(|kubernetes| kubernetes.nodes.contains_key(self.name) || may_register)
    }

    fn stop(&mut self, check: Option<QuorumCheck>, needs: Vec<StepId>) -> Option<StepId> {
        if self.vm.vm.power == PowerState::Stopped {
            return None;
        }
        let action = Action::MachineStop {
            vm: self.vm.vm_ref(),
            check,
        };
        let step = self.step(action).because("it is being removed").impact(Impact::Live);
        Some(step.needs(needs).add())
    }

    fn delete(&mut self, check: Option<QuorumCheck>, needs: Vec<StepId>) -> StepId {
        let deleted = volumes::deleted_with(self.inputs.desired, self.vm);
        let action = Action::MachineDelete {
            vm: self.vm.vm_ref(),
            volumes: deleted.made.into_iter().collect(),
            with_disks: deleted.with_disks.into_iter().collect(),
            purge: self.vm.vm.ha || !self.vm.vm.jobs.purged().is_empty(),
            check,
            only_going: self.inputs.owned.in_file(self.name).is_some(),
        };
        let mut why = self.why().to_owned();
        // An approval must say what else is changed: people made it.
        if self.vm.vm.ha {
            why.push_str("; its HA resource is removed too");
        }
        for job in self.vm.vm.jobs.purged() {
            why.push_str("; it leaves ");
            why.push_str(job);
        }
        self.step(action).because(why).impact(Impact::Wipe).needs(needs).add()
    }

    fn why(&self) -> &'static str {
        let is_in_file = self.inputs.owned.in_file(self.name).is_some();
        match self.inputs.desired.cluster_goal() {
            None => "the cluster is being deleted",
            Some(_) if is_in_file && self.vm.is_partially_deleted(self.inputs.observed) => PARTIAL,
            Some(_) => UNWANTED,
        }
    }

    /// Deletes what no VM refers to, while the machine still proves that it is ours.
    fn free_leftovers(&mut self, after: Option<StepId>) -> Vec<StepId> {
        let why = "leftover volume of a machine that is being removed";
        let freed = volumes::free_leftovers(self.inputs, self.vm.vm.vmid, why, after, self.plan);
        let (volumes, steps): (Vec<String>, Vec<StepId>) = freed.into_iter().unzip();
        self.freed.extend(volumes);
        steps
    }

    /// Completes the claim of a pool-scoped token, so that all three marks are there when the deletion reads them.
    fn repair_marks(&mut self) -> Option<StepId> {
        let mark = self.vm.mark.clone().filter(|_| !self.vm.missing.is_empty())?;
        let remark = MarkUpdate {
            vm: self.vm.vm_ref(),
            mark: Mark {
                lease: None,
                tag_follows: false,
                ..mark
            },
            tags: [TAG.to_owned()].into(),
        };
        let step = self.step(Action::MachineMark(Box::new(remark)));
        Some(step.because(UNFINISHED_CLAIM).add())
    }
}

/// Why a VM of ours cannot be removed, whatever the cluster says.
fn removal_blocker(inputs: Inputs<'_>, vm: &OwnedVm<'_>) -> Option<HoldReason> {
    let tried = vm
        .mark
        .as_ref()
        .and_then(|mark| inputs.desired.policy.held.get(&mark.machine));
    if let Some(reason) = tried {
        return Some(reason.clone().into());
    }
    if let Some(reason) = no_quorum(inputs.observed).or_else(|| vm.unproved()) {
        return Some(reason);
    }
    if vm.config.protection {
        let vmid = vm.vm.vmid;
        let reason = format!("the VM has PVE's protection flag; to clear it: qm set {vmid} --protection 0");
        return Some(reason.into());
    }
    if let Seen::Unknown(why) = &vm.config.snapshots {
        let reason = format!("its snapshots cannot be read, so their disks are unknown: {why}");
        return Some(HoldReason::transient(reason));
    }
    if let Some(reason) = volumes::hold(vm.vm.vmid, &volumes::deleted_with(inputs.desired, vm).foreign) {
        return Some(reason);
    }
    if let Some(reason) = jobs_blocker(vm) {
        return Some(reason);
    }
    if vm.vm.template {
        return None;
    }
    vm.blocked(inputs.observed)
}

/// Proxmox VE does not delete a VM that is replicated, and leaves a replica whose job goes together with its VM. `purge` would take it out of
/// jobs that were not read, so it is not sent then, and without it Proxmox VE does not delete a VM that HA manages.
fn jobs_blocker(vm: &OwnedVm<'_>) -> Option<HoldReason> {
    let (vmid, jobs) = (vm.vm.vmid, &vm.vm.jobs);
    if let Seen::Unknown(why) = &jobs.replication {
        let reason = format!("whether it is replicated to another host is unknown: {why}");
        return Some(HoldReason::transient(reason));
    }
    if let Some(job) = jobs.replication.yes().and_then(|jobs| jobs.first()) {
        let id = job.split(' ').next().unwrap_or_default();
        let reason = format!("it has the replication job {job}; to remove the job with its replica: pvesr delete {id}");
        return Some(reason.into());
    }
    let why = jobs.purged.unknown().filter(|_| vm.vm.ha)?;
    let reason = format!(
        "HA manages it, and what else a purge takes it out of cannot be read ({why}); to take it out of HA: ha-manager remove vm:{vmid}"
    );
    Some(reason.into())
}

/// Without quorum PVE destroys the disks, then fails and keeps the config: the worst of both.
fn no_quorum(observed: &Observed) -> Option<HoldReason> {
    match &observed.quorate {
        Seen::Yes(true) => None,
        Seen::Yes(false) | Seen::No => Some("PVE has no quorum".to_owned().into()),
        Seen::Unknown(why) => Some(HoldReason::transient(format!("whether PVE has quorum is unknown: {why}"))),
    }
}

/// Why no machine may leave the cluster now.
fn removal_hold(ctx: Context<'_>, etcd: &EtcdFacts<'_>) -> Option<String> {
    match (&etcd.presence, &ctx.observed.kubernetes) {
        (EtcdPresence::Unknown(why), _) => Some(format!("a control plane cannot be read: {why}")),
        (EtcdPresence::Exists, Seen::Unknown(why)) => Some(format!(
            "its Node cannot be deleted, the Kubernetes API does not answer: {why}"
        )),
        _ => None,
    }
}

/// By its mark: what is being removed is not in the file, or not in full.
fn is_marked_control_plane(vm: &OwnedVm<'_>) -> bool {
    vm.role() == Some(Role::ControlPlane)
}
