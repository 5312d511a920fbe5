//! New guests get their config, etcd is bootstrapped, members join: in the order that etcd asks for.

use crate::action::Action;
use crate::builder::PlanBuilder;
use crate::context::{Context, StepByMachine};
use crate::desired::DesiredMachine;
use crate::etcd::{self, EtcdChain, EtcdFacts, EtcdPresence};
use crate::guest::{self, GuestStatus, Guests};
use crate::observed::{EtcdState, RunningGuest, Seen};
use crate::ownership::OwnedVm;
use crate::placement::Placement;
use crate::plan::HoldReason;
use crate::step::{Ask, Impact, MemberRemoval, StepId, Subject, VmRef};
use crate::vm::{self, VmOutcome, VmPass};

/// Proves and prepares the guests that need it before they are configured. Returns the step after which each is prepared.
pub(crate) fn prepare<'a>(
    ctx: Context<'a>,
    placement: &Placement,
    vms: &VmPass<'a>,
    guests: &Guests<'a>,
    plan: &mut PlanBuilder,
) -> StepByMachine<'a> {
    let mut prepared = StepByMachine::new();
    for (machine, status) in guests {
        let GuestStatus::NeedsConfig { reason, .. } = status else {
            continue;
        };
        let VmOutcome::Running { after, .. } = vms.outcomes[machine.name()] else {
            continue;
        };
        if !guest::is_prepared(machine) {
            continue;
        }
        let guest = ctx.guest_ref(machine.name());
        let prove = Action::GuestProve {
            vm: vm_ref(ctx, placement, machine),
            guest: guest.clone(),
        };
        let live = vms.live_steps.get(machine.name()).copied();
        let proved = plan
            .machine_step(machine, prove)
            .because(reason)
            .needs(after)
            .needs(live)
            .add();
        let prepare = Action::GuestPrepare {
            guest,
            config: machine.config.clone(),
        };
        let step = plan.machine_step(machine, prepare).because(reason).needs([proved]).add();
        prepared.insert(machine.name(), step);
    }
    prepared
}

/// Configures every guest that needs it and whose order does not depend on the bootstrap. Returns the step after which each is configured.
pub(crate) fn configure<'a>(
    ctx: Context<'a>,
    vms: &VmPass<'a>,
    guests: &Guests<'a>,
    etcd: &EtcdFacts<'_>,
    prepared: &StepByMachine<'_>,
    mut chain: EtcdChain,
    plan: &mut PlanBuilder,
) -> (StepByMachine<'a>, EtcdChain) {
    let mut configured = StepByMachine::new();
    let is_new_cluster = matches!(etcd.presence, EtcdPresence::NotBootstrapped);
    for (machine, status) in guests {
        let GuestStatus::NeedsConfig { reason, joins_etcd } = status else {
            continue;
        };
        let VmOutcome::Running { after, .. } = vms.outcomes[machine.name()] else {
            continue;
        };
        // Such a guest joins when it is configured, so there must be something to join first.
        if is_new_cluster && !guest::joins_by_itself(machine) {
            continue;
        }
        // A cluster that runs takes new members one by one; one that is about to begin takes them as they come.
        let is_new_member = machine.is_control_plane() && *joins_etcd;
        let is_chained = is_new_member && !is_new_cluster;
        let mut before = if is_chained { chain.tail.clone() } else { Vec::new() };
        if *joins_etcd && !is_new_cluster && guest::needs_free_name(machine) {
            match free_name(ctx, machine, &before, &mut chain, plan) {
                Ok(freed) => before.extend(freed),
                Err(reason) => {
                    plan.hold(machine.subject(), "configure", HoldReason::transient(reason));
                    continue;
                }
            }
        } else if is_chained {
            before.extend(remove_stale_learner(ctx, machine, &before, &mut chain, plan));
        }
        // One whose disk is not grown yet was never configured, and the next plan relies on that.
        let live = vms.live_steps.get(machine.name()).copied();
        let step = plan.machine_step(machine, configure_action(ctx, machine)).because(reason);
        let step = step.needs(after).needs(live).needs(prepared.get(machine.name()).copied());
        let step = step.needs(before).add();
        configured.insert(machine.name(), step);
        if is_chained && matches!(etcd.presence, EtcdPresence::Exists) {
            let joined = chain.join(ctx, machine, "a new member", vec![step], plan);
            chain.tail = vec![joined];
        }
    }
    (configured, chain)
}

fn configure_action(ctx: Context<'_>, machine: &DesiredMachine) -> Action {
    Action::GuestConfigure {
        guest: ctx.guest_ref(machine.name()),
        config: machine.config.clone(),
    }
}

/// Configures the guests that join when they are configured, after the bootstrap: control planes one by one, workers at once.
pub(crate) fn configure_joiners<'a>(
    ctx: Context<'a>,
    guests: &Guests<'a>,
    prepared: &StepByMachine<'_>,
    founding: Option<(&DesiredMachine, StepId)>,
    configured: &mut StepByMachine<'a>,
    mut chain: EtcdChain,
    plan: &mut PlanBuilder,
) -> EtcdChain {
    let Some((founder, bootstrap)) = founding else {
        return chain;
    };
    for (machine, status) in guests {
        let is_founder = founder.name() == machine.name();
        let GuestStatus::NeedsConfig { reason, .. } = status else {
            continue;
        };
        if is_founder || guest::joins_by_itself(machine) {
            continue;
        }
        let before = if machine.is_control_plane() {
            chain.tail.clone()
        } else {
            Vec::new()
        };
        let step = plan.machine_step(machine, configure_action(ctx, machine)).because(reason);
        let step = step
            .needs(prepared.get(machine.name()).copied())
            .needs([bootstrap])
            .needs(before);
        let step = step.add();
        configured.insert(machine.name(), step);
        if machine.is_control_plane() {
            chain.tail = vec![chain.join(ctx, machine, "a member of the new cluster", vec![step], plan)];
        }
    }
    chain
}

/// A learner of a machine that has no data yet is that of its predecessor: until it is removed, etcd accepts no other learner.
fn remove_stale_learner(
    ctx: Context<'_>,
    machine: &DesiredMachine,
    after: &[StepId],
    chain: &mut EtcdChain,
    plan: &mut PlanBuilder,
) -> Option<StepId> {
    let mut members = chain.members.iter();
    let learner = members
        .find(|member| member.learner && member.name == machine.name())?
        .clone();
    let by = etcd::healthy_peer(ctx, &chain.members).ok()?;
    chain.members.retain(|member| member.id != learner.id);
    let by = MemberRemoval::RemovedBy(by);
    Some(etcd::leave(ctx, &learner, by, "its etcd never started", after.to_vec(), plan))
}

/// Removes what an earlier machine of this name left in etcd and Kubernetes: a new one would be refused as its double. Returns the last step.
fn free_name(
    ctx: Context<'_>,
    machine: &DesiredMachine,
    after: &[StepId],
    chain: &mut EtcdChain,
    plan: &mut PlanBuilder,
) -> Result<Option<StepId>, String> {
    const WHY: &str = "left by an earlier machine of this name";
    let name = machine.name();
    let mut last = None;
    if let Some(member) = chain.members.iter().find(|member| member.name == name).cloned() {
        if member.votes() {
            etcd::may_leave(&chain.members, name)?;
        }
        let rest: Vec<_> = chain.members.iter().filter(|other| other.name != name).cloned().collect();
        let by = guest::etcd_exit(ctx, &member, &rest)?.removal();
        chain.members = rest;
        last = Some(etcd::leave(ctx, &member, by, WHY, after.to_vec(), plan));
    }
    if ctx.node(name).is_some() {
        let ask = ctx.other_control_planes(name);
        // Its machine is gone, so no pod of it runs.
        let was_drained = false;
        let step = plan
            .machine_step(machine, Action::NodeDelete { ask, was_drained })
            .because(WHY);
        let step = step.impact(Impact::Live).needs(after.iter().copied()).needs(last);
        last = Some(step.add());
    }
    Ok(last)
}

/// Begins etcd on the founder, once in the life of the cluster. That it will begin there is recorded first, so that a run that is
/// interrupted in between never begins it on another machine.
pub(crate) fn bootstrap(
    ctx: Context<'_>,
    placement: &Placement,
    vms: &VmPass<'_>,
    guests: &Guests<'_>,
    etcd: &EtcdFacts<'_>,
    ready: &StepByMachine<'_>,
    plan: &mut PlanBuilder,
) -> Option<StepId> {
    let has_intent = |vm: &OwnedVm<'_>| vm.mark.as_ref().is_some_and(|mark| mark.bootstrap);
    let mut ours = ctx.owned.ours.iter();
    if let Some((name, _)) = ours.find(|(name, vm)| ctx.owned.in_file(name).is_none() && has_intent(vm)) {
        let reason = format!("{name} was chosen to bootstrap etcd and left cluster.yaml; it is removed first");
        plan.hold(Subject::Cluster, "bootstrap", reason);
        return None;
    }
    let founder = etcd.founder?;
    let is_held = |(machine, status): &(&DesiredMachine, GuestStatus<'_>)| {
        machine.name() == founder.name() && matches!(status, GuestStatus::Held)
    };
    if guests.iter().any(is_held) {
        plan.hold(Subject::Cluster, "bootstrap", format!("{} is held", founder.name()));
        return None;
    }
    let after = match vms.outcomes[founder.name()] {
        VmOutcome::Running { after, .. } => after,
        VmOutcome::Held => None,
    };
    let recorded = (!etcd::is_recorded_founder(ctx, founder)).then(|| {
        let vm = vm_ref(ctx, placement, founder);
        vm::record_bootstrap(ctx, founder, vm, after, plan)
    });
    // Only the machine that has the record may be cleaned, and only while nothing can have joined it.
    let stillborn: Vec<&String> = ctx
        .observed
        .guests
        .iter()
        .filter(|(_, guest)| guest.is_stillborn())
        .map(|(name, _)| name)
        .collect();
    let is_founder = |name: &&String| name.as_str() == founder.name() && recorded.is_none() && !is_founded(ctx, founder);
    if let Some(name) = stillborn.iter().find(|name| !is_founder(name)) {
        let reason = format!("{name} has the data of an etcd that cannot start; look at its journal, and restore a snapshot");
        plan.hold(Subject::Cluster, "bootstrap", reason);
        return None;
    }
    let action = Action::EtcdBootstrap {
        guest: ctx.guest_ref(founder.name()),
        config: founder.config.clone(),
        prove_empty: could_have_data(ctx),
        again: !stillborn.is_empty(),
    };
    let why = if stillborn.is_empty() {
        "no control plane has etcd data"
    } else {
        "its etcd was killed before it was ready, and nothing had joined it"
    };
    let step = plan
        .machine_step(founder, action)
        .because(why)
        .needs(ready.get(founder.name()).copied())
        .needs(recorded)
        .add();
    if !guest::records_founding(founder) {
        return Some(step);
    }
    let vm = vm_ref(ctx, placement, founder);
    Some(vm::record_founded(ctx, founder, vm, Some(step), plan))
}

/// The mark of the machine says that the etcd that began there was ready.
fn is_founded(ctx: Context<'_>, machine: &DesiredMachine) -> bool {
    let mark = ctx.owned.ours.get(machine.name()).and_then(|vm| vm.mark.as_ref());
    mark.is_some_and(|mark| mark.founded)
}

/// Makes up for the record that etcd was ready, where a run ended between the two. Nothing may join before.
pub(crate) fn complete_founding(ctx: Context<'_>, etcd: &EtcdFacts<'_>, chain: EtcdChain, plan: &mut PlanBuilder) -> EtcdChain {
    let founder = etcd.founder.filter(|founder| {
        let is_due = etcd::is_recorded_founder(ctx, founder) && !is_founded(ctx, founder);
        is_due && guest::records_founding(founder) && etcd::is_healthy_voter(ctx, founder.name())
    });
    let vm = founder.and_then(|founder| ctx.owned.ours.get(founder.name()));
    let Some((founder, vm)) = founder.zip(vm) else {
        return chain;
    };
    let step = vm::record_founded(ctx, founder, vm.vm_ref(), None, plan);
    chain.after(Some(step))
}

/// The VM of a machine, also of one that this plan makes.
fn vm_ref(ctx: Context<'_>, placement: &Placement, machine: &DesiredMachine) -> VmRef {
    let placed = || VmRef {
        host: placement.hosts.get(machine.name()).cloned().unwrap_or_default(),
        vmid: machine.machine.vmid,
        uuid: ctx.uuid(machine.name()),
    };
    ctx.owned.ours.get(machine.name()).map_or_else(placed, OwnedVm::vm_ref)
}

/// Control planes whose disk is older than this plan, in the file or not: each is read again right before the bootstrap.
fn could_have_data(ctx: Context<'_>) -> Ask {
    let could = |(name, vm): &(&String, &OwnedVm<'_>)| vm.may_hold_data(ctx.observed) && ctx.is_control_plane(name, vm);
    ctx.owned.ours.iter().filter(could).map(|(name, _)| name.clone()).collect()
}

/// Waits for control planes that are configured but not yet healthy voters.
pub(crate) fn await_members(
    ctx: Context<'_>,
    guests: &Guests<'_>,
    configured: &StepByMachine<'_>,
    bootstrap: Option<StepId>,
    mut chain: EtcdChain,
    plan: &mut PlanBuilder,
) -> EtcdChain {
    let mut joined = Vec::new();
    for (machine, status) in guests.iter().filter(|(machine, _)| machine.is_control_plane()) {
        let why = match status {
            GuestStatus::Running(_) if etcd::is_healthy_voter(ctx, machine.name()) => continue,
            GuestStatus::Held => continue,
            // Its turn restarts it first.
            GuestStatus::Running(guest) if guest.etcd == Seen::Yes(EtcdState::Left) && bootstrap.is_none() => continue,
            // It joined in the chain when it was configured.
            GuestStatus::NeedsConfig { joins_etcd: true, .. } if bootstrap.is_none() => continue,
            GuestStatus::NeedsConfig { .. } if !guest::joins_by_itself(machine) && configured.contains_key(machine.name()) => {
                continue;
            }
            GuestStatus::Running(guest) => why_not_voting(guest),
            GuestStatus::NeedsConfig { joins_etcd: false, .. } => "it did not answer".to_owned(),
            GuestStatus::NeedsConfig { .. } => "a member of the new cluster".to_owned(),
        };
        let configured = configured.get(machine.name()).copied();
        let needs = configured.into_iter().chain(bootstrap).collect();
        joined.push(chain.join(ctx, machine, &why, needs, plan));
    }
    chain.tail.extend(joined);
    chain
}

/// For the wait of a control plane that runs and does not vote yet.
fn why_not_voting(guest: &RunningGuest) -> String {
    match &guest.etcd {
        Seen::Yes(EtcdState::Healthy) => "not yet a voter".to_owned(),
        Seen::Yes(EtcdState::Unhealthy) => "its etcd is not healthy".to_owned(),
        Seen::Yes(EtcdState::Left) => "it left etcd".to_owned(),
        Seen::Yes(EtcdState::Stillborn) => "its etcd was killed before it was ready".to_owned(),
        Seen::No => "not yet a member".to_owned(),
        Seen::Unknown(why) => format!("its etcd is unknown: {why}"),
    }
}
