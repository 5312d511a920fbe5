//! Work that disturbs running machines: one machine at a time, control planes first.

use std::collections::BTreeMap;

use crate::action::Action;
use crate::builder::PlanBuilder;
use crate::context::{Context, StepByMachine};
use crate::desired::DesiredMachine;
use crate::etcd::{self, EtcdChain, EtcdFacts, EtcdPresence};
use crate::guest::{ConfigChange, GuestStatus, Guests};
use crate::node;
use crate::observed::{EtcdMember, EtcdState, Seen};
use crate::ownership::OwnedVm;
use crate::plan::HoldReason;
use crate::step::{ApplyMode, Impact, StepId};
use crate::vm::{VmPass, VmSteps};
use crate::vm_diff::VmDiff;

/// A running machine that must restart or take a new config.
pub(crate) struct Turn<'a> {
    machine: &'a DesiredMachine,
    vm: &'a OwnedVm<'a>,
    /// Settings that take effect at a restart.
    diff: Option<VmDiff>,
    config: Option<ConfigChange>,
    /// Its etcd left the cluster, and joins again only after a restart.
    left_etcd: bool,
    /// The last step on its VM, which stays up.
    after: Option<StepId>,
}

/// What the turns leave for later passes.
#[derive(Default)]
pub(crate) struct Turned<'a> {
    /// The last step of each turn before etcd begins.
    pub ended: StepByMachine<'a>,
    /// Machines whose Node is awaited already.
    pub awaited: StepByMachine<'a>,
}

/// The machines that need a turn, in file order.
pub(crate) fn collect<'a>(
    ctx: Context<'a>,
    vms: &mut VmPass<'a>,
    mut configs: BTreeMap<&'a str, ConfigChange>,
    guests: &Guests<'a>,
) -> Vec<Turn<'a>> {
    let mut turns = Vec::new();
    for (machine, status) in guests {
        let name = machine.name();
        let left =
            |status: &GuestStatus<'_>| matches!(status, GuestStatus::Running(guest) if guest.etcd == Seen::Yes(EtcdState::Left));
        let turn = Turn {
            machine,
            vm: match ctx.owned.ours.get(name) {
                Some(vm) => vm,
                None => continue,
            },
            diff: vms.restarts.remove(name),
            config: configs.remove(name),
            left_etcd: left(status),
            after: vms.live_steps.get(name).copied(),
        };
        if turn.is_needed() {
            turns.push(turn);
        }
    }
    turns
}

/// Takes the turns, one after another. What a worker takes live waits for no other machine.
pub(crate) fn plan<'a>(
    ctx: Context<'a>,
    turns: Vec<Turn<'a>>,
    etcd: &EtcdFacts<'_>,
    configured: &StepByMachine<'_>,
    mut chain: EtcdChain,
    plan: &mut PlanBuilder,
) -> (Turned<'a>, EtcdChain) {
    let mut turned = Turned::default();
    let mut last = chain.tail.clone();
    for turn in turns {
        if let Err(reason) = check_turn(ctx, &turn, etcd, &chain.members) {
            plan.hold(turn.machine.subject(), "change", reason);
            continue;
        }
        let alone = turn.restarts() || turn.machine.is_control_plane();
        let before = if alone { last.as_slice() } else { &[] };
        // A machine that does not answer yet is heard first.
        let heard = configured.get(turn.machine.name()).copied();
        let needs: Vec<StepId> = turn.after.into_iter().chain(heard).chain(before.iter().copied()).collect();
        let end = take(ctx, &turn, needs, etcd, &mut chain, &mut turned, plan);
        if alone {
            last = end.into_iter().collect();
        }
        if turn.machine.is_control_plane() {
            chain.tail.clone_from(&last);
        }
    }
    (turned, chain)
}

/// Whether the machine may go down now.
fn check_turn(ctx: Context<'_>, turn: &Turn<'_>, etcd: &EtcdFacts<'_>, members: &[EtcdMember]) -> Result<(), HoldReason> {
    if !turn.restarts() {
        return Ok(());
    }
    // A restart that the guest does by itself asks nothing of PVE.
    if let Some(blocked) = turn.vm.blocked(ctx.observed).filter(|_| turn.is_restarted_by_pve()) {
        return Err(blocked);
    }
    check_quorum(ctx, turn, etcd, members).map_err(HoldReason::transient)
}

fn check_quorum(ctx: Context<'_>, turn: &Turn<'_>, etcd: &EtcdFacts<'_>, members: &[EtcdMember]) -> Result<(), String> {
    if etcd::was_removed(ctx, turn.machine.name()) {
        return Err("its etcd member was removed and its old data cannot rejoin, so it must not restart".to_owned());
    }
    match (&etcd.presence, &ctx.observed.etcd) {
        (EtcdPresence::NotBootstrapped, _) => Ok(()),
        (EtcdPresence::Unknown(why), _) => Err(format!("the state of etcd is unknown: {why}")),
        (EtcdPresence::Exists, _) if !turn.machine.is_control_plane() => Ok(()),
        (EtcdPresence::Exists, Seen::Yes(_)) => etcd::may_restart(members, turn.machine.name()),
        (EtcdPresence::Exists, Seen::No) => Err("whether etcd survives its restart is unknown".to_owned()),
        (EtcdPresence::Exists, Seen::Unknown(why)) => Err(format!("whether etcd survives its restart is unknown: {why}")),
    }
}

/// One turn: new config, new settings, one restart for both, and the way back. Returns its last step.
fn take<'a>(
    ctx: Context<'a>,
    turn: &Turn<'a>,
    needs: Vec<StepId>,
    etcd: &EtcdFacts<'_>,
    chain: &mut EtcdChain,
    turned: &mut Turned<'a>,
    plan: &mut PlanBuilder,
) -> Option<StepId> {
    let config = turn.config.as_ref();
    let reconfigured = config.map(|change| reconfigure(ctx, turn, change, &needs, plan));
    let ended = if turn.is_restarted_by_pve() {
        Some(change_and_reboot(ctx, turn, reconfigured, needs, plan))
    } else {
        reconfigured
    };
    match etcd.presence {
        EtcdPresence::Exists if turn.restarts() => {
            let awaited = await_restart(ctx, turn.machine, ended, chain, plan);
            turned.awaited.insert(turn.machine.name(), awaited);
            Some(awaited)
        }
        EtcdPresence::Exists | EtcdPresence::Unknown(_) => ended,
        EtcdPresence::NotBootstrapped => {
            turned.ended.extend(ended.map(|step| (turn.machine.name(), step)));
            ended
        }
    }
}

fn reconfigure(ctx: Context<'_>, turn: &Turn<'_>, change: &ConfigChange, needs: &[StepId], plan: &mut PlanBuilder) -> StepId {
    // A machine that is restarted anyway does so once, not twice.
    let mode = if turn.is_restarted() && change.mode == ApplyMode::Reboot {
        ApplyMode::Staged
    } else {
        change.mode
    };
    let impact = if mode == ApplyMode::Reboot {
        Impact::Reboot
    } else {
        Impact::Live
    };
    let action = Action::GuestReconfigure {
        guest: ctx.guest_ref(turn.machine.name()),
        config: turn.machine.config.clone(),
        mode,
        check: (mode == ApplyMode::Reboot).then(|| ctx.restart_check(turn.machine)).flatten(),
    };
    let step = plan.machine_step(turn.machine, action).because(&change.text);
    step.impact(impact).needs(needs.iter().copied()).add()
}

/// The restart of a machine whose turn has come, and the settings that it brings into force.
fn change_and_reboot(
    ctx: Context<'_>,
    turn: &Turn<'_>,
    reconfigured: Option<StepId>,
    needs: Vec<StepId>,
    plan: &mut PlanBuilder,
) -> StepId {
    let mut steps = VmSteps {
        ctx,
        machine: turn.machine,
        plan,
    };
    let diff = turn.diff.as_ref();
    let changed = diff.filter(|diff| !diff.changes.is_empty()).map(|diff| {
        let step = steps.change_settings(turn.vm, diff).impact(Impact::Live);
        step.needs(needs.iter().copied()).add()
    });
    let pending = diff.map(|diff| diff.pending.iter().map(String::as_str).collect::<Vec<_>>().join(", "));
    let why = match pending.filter(|keys| !keys.is_empty()) {
        Some(keys) => format!("{keys}: written, takes effect at a reboot"),
        None if turn.left_etcd => "etcd has left the cluster on this machine; it rejoins after a reboot".to_owned(),
        None => "takes effect at a reboot".to_owned(),
    };
    steps.reboot(turn.vm, &why, needs.into_iter().chain(changed).chain(reconfigured))
}

/// Waits until a machine that restarted is what it was.
fn await_restart(
    ctx: Context<'_>,
    machine: &DesiredMachine,
    restarted: Option<StepId>,
    chain: &mut EtcdChain,
    plan: &mut PlanBuilder,
) -> StepId {
    let joined = machine
        .is_control_plane()
        .then(|| chain.join(ctx, machine, "it restarted", restarted.into_iter().collect(), plan));
    let action = Action::NodeAwait {
        until: node::awaited_state(ctx),
        ask: ctx.control_planes(),
    };
    let step = plan.machine_step(machine, action).because("it restarted");
    step.needs(restarted).needs(joined).add()
}

impl Turn<'_> {
    fn is_needed(&self) -> bool {
        self.is_restarted() || self.config.is_some()
    }

    /// The machine goes down for a moment.
    fn restarts(&self) -> bool {
        self.is_restarted() || self.config.as_ref().is_some_and(|change| change.mode != ApplyMode::Live)
    }

    /// We restart it, whatever its config does.
    fn is_restarted(&self) -> bool {
        self.diff.is_some() || self.left_etcd
    }

    /// Also where the config takes effect at a reboot that the guest does not do by itself.
    fn is_restarted_by_pve(&self) -> bool {
        self.is_restarted() || self.config.as_ref().is_some_and(|change| change.mode == ApplyMode::Staged)
    }
}
