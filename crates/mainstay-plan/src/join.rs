//! New guests get their config, etcd is bootstrapped, members join: in the order that etcd asks for.

use crate::action::Action;
use crate::builder::PlanBuilder;
use crate::context::{Context, StepByMachine};
use crate::desired::DesiredMachine;
use crate::etcd::{self, EtcdChain, EtcdFacts, EtcdPresence};
use crate::guest::{GuestStatus, Guests};
use crate::observed::{EtcdState, Running, Seen};
use crate::ownership::OwnedVm;
use crate::placement::Placement;
use crate::step::{LeaveBy, Peer, StepId, Subject, VmRef};
use crate::vm::{self, VmOutcome, VmPass};

/// Configures every guest that needs it. Returns the step after which each is configured.
pub(crate) fn configure<'a>(
    ctx: Context<'a>,
    vms: &VmPass<'a>,
    guests: &Guests<'a>,
    etcd: &EtcdFacts<'_>,
    mut chain: EtcdChain,
    plan: &mut PlanBuilder,
) -> (StepByMachine<'a>, EtcdChain) {
    let mut configured = StepByMachine::new();
    for (machine, status) in guests {
        let GuestStatus::NeedsConfig { reason, joins_etcd } = status else {
            continue;
        };
        let VmOutcome::Running { after, .. } = vms.outcomes[machine.name()] else {
            continue;
        };
        // A cluster that runs takes new members one by one; one that is about to begin takes them as they come.
        let is_new_member = machine.is_control_plane() && *joins_etcd;
        let is_chained = is_new_member && !matches!(etcd.presence, EtcdPresence::NotBootstrapped);
        let mut before = if is_chained { chain.tail.clone() } else { Vec::new() };
        if is_chained {
            before.extend(remove_stale_learner(ctx, machine, &before, &mut chain, plan));
        }
        let action = Action::TalosConfigure {
            address: machine.address(),
            uuid: ctx.uuid(machine.name()),
            config: machine.config.clone(),
        };
        // One whose disk is not grown yet was never configured, and the next plan relies on that.
        let live = vms.live_steps.get(machine.name()).copied();
        let step = plan.machine_step(machine, action).because(reason);
        let step = step.needs(after).needs(live).needs(before).add();
        configured.insert(machine.name(), step);
        if is_chained && matches!(etcd.presence, EtcdPresence::Exists) {
            let joined = chain.join(machine, "a new member", vec![step], plan);
            chain.tail = vec![joined];
        }
    }
    (configured, chain)
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
    let by = LeaveBy::Survivor(by);
    Some(etcd::leave(&learner, by, "it never started", after.to_vec(), plan))
}

/// Begins etcd on the founder, once in the life of the cluster. That it will begin there is recorded first, so that a run that is
/// interrupted in between never begins it on another machine.
pub(crate) fn bootstrap(
    ctx: Context<'_>,
    placement: &Placement,
    vms: &VmPass<'_>,
    guests: &Guests<'_>,
    etcd: &EtcdFacts<'_>,
    configured: &StepByMachine<'_>,
    plan: &mut PlanBuilder,
) -> Option<StepId> {
    let has_intent = |vm: &OwnedVm<'_>| vm.mark.as_ref().is_some_and(|mark| mark.bootstrap);
    let mut ours = ctx.owned.ours.iter();
    if let Some((name, _)) = ours.find(|(name, vm)| ctx.owned.in_file(name).is_none() && has_intent(vm)) {
        let reason = format!("{name}, where etcd was to begin, is not in the file any more and goes first");
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
    let action = Action::TalosBootstrap {
        address: founder.address(),
        prove: could_have_data(ctx),
    };
    let step = plan
        .machine_step(founder, action)
        .because("no control plane has etcd data")
        .needs(configured.get(founder.name()).copied())
        .needs(recorded)
        .add();
    Some(step)
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
fn could_have_data(ctx: Context<'_>) -> Vec<Peer> {
    let is_old = |(name, vm): &(&String, &OwnedVm<'_>)| vm.may_hold_data(ctx.observed) && ctx.is_control_plane(name, vm);
    let peer = |(name, vm): (&String, &OwnedVm<'_>)| {
        let in_file = ctx.owned.in_file(name).map(DesiredMachine::address);
        let address = in_file.or_else(|| vm.config.address.map(|address| address.addr()))?;
        Some(Peer {
            machine: name.clone(),
            address,
        })
    };
    ctx.owned.ours.iter().filter(is_old).filter_map(peer).collect()
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
            GuestStatus::Running(guest) => why_not_voting(guest),
            GuestStatus::NeedsConfig { joins_etcd: false, .. } => "it was away".to_owned(),
            GuestStatus::NeedsConfig { .. } => "a member of the new cluster".to_owned(),
        };
        let configured = configured.get(machine.name()).copied();
        let needs = configured.into_iter().chain(bootstrap).collect();
        joined.push(chain.join(machine, &why, needs, plan));
    }
    chain.tail.extend(joined);
    chain
}

fn why_not_voting(guest: &Running) -> String {
    match &guest.etcd {
        Seen::Yes(EtcdState::Healthy) => "not yet a voter".to_owned(),
        Seen::Yes(EtcdState::Unwell) => "its etcd is not healthy".to_owned(),
        Seen::Yes(EtcdState::Left) => "it left etcd".to_owned(),
        Seen::No => "not yet a member".to_owned(),
        Seen::Unknown(why) => format!("its etcd is unknown: {why}"),
    }
}
