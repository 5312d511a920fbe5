//! Work that disturbs running machines: control planes one at a time and first, then the workers of each pool within its budget.
//!
//! A turn is: gate, cordon, drain, what is to be done, wait until the machine is well, uncordon.

use std::collections::{BTreeMap, BTreeSet};

use crate::action::Action;
use crate::builder::PlanBuilder;
use crate::context::{Context, StepByMachine};
use crate::desired::DesiredMachine;
use crate::drain::{self, DrainDecision, TurnOrder};
use crate::etcd::{self, EtcdChain, EtcdFacts, EtcdPresence};
use crate::guest::{ConfigChange, GuestStatus, Guests};
use crate::node;
use crate::observed::{EtcdMember, EtcdState, Guest, NodeCordon, Seen};
use crate::ownership::OwnedVm;
use crate::plan::HoldReason;
use crate::step::{ApplyMode, Impact, StepId, UpgradeOrder};
use crate::upgrade::SystemUpgrade;
use crate::vm::{VmPass, VmSteps};
use crate::vm_diff::VmDiff;

const LEFT_ETCD: &str = "etcd has left the cluster on this machine; it rejoins after a reboot";

/// A running machine that must restart or take a new config.
pub(crate) struct Turn<'a> {
    machine: &'a DesiredMachine,
    vm: &'a OwnedVm<'a>,
    /// Settings that take effect at a restart.
    diff: Option<VmDiff>,
    config: Option<ConfigChange>,
    upgrade: Option<SystemUpgrade>,
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
    /// Machines that a turn of this plan uncordons.
    pub cordoned: BTreeSet<&'a str>,
}

/// The machines that need a turn, in file order.
pub(crate) fn collect<'a>(
    ctx: Context<'a>,
    vms: &mut VmPass<'a>,
    (mut configs, mut upgrades): (BTreeMap<&'a str, ConfigChange>, BTreeMap<&'a str, SystemUpgrade>),
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
            upgrade: upgrades.remove(name),
            left_etcd: left(status),
            after: vms.live_steps.get(name).copied(),
        };
        if turn.is_needed() {
            turns.push(turn);
        }
    }
    endpoint_last(turns, guests)
}

/// The control plane that holds the virtual address has its turn after the others: the address moves once, and to one that is done.
fn endpoint_last<'a>(mut turns: Vec<Turn<'a>>, guests: &Guests<'a>) -> Vec<Turn<'a>> {
    let holds = |machine: &DesiredMachine| {
        let mut statuses = guests.iter().filter(|(guest, _)| guest.name() == machine.name());
        statuses.any(|(_, status)| matches!(status, GuestStatus::Running(guest) if guest.holds_vip))
    };
    let holder = turns
        .iter()
        .position(|turn| turn.machine.is_control_plane() && holds(turn.machine));
    let last = turns.iter().rposition(|turn| turn.machine.is_control_plane());
    if let Some((holder, last)) = holder.zip(last) {
        turns[holder..=last].rotate_left(1);
    }
    turns
}

/// Takes the turns. What a worker takes live waits for no other machine.
pub(crate) fn plan<'a>(
    ctx: Context<'a>,
    mut turns: Vec<Turn<'a>>,
    etcd: &EtcdFacts<'_>,
    configured: &StepByMachine<'_>,
    mut chain: EtcdChain,
    plan: &mut PlanBuilder,
) -> (Turned<'a>, EtcdChain) {
    let mut turned = Turned::default();
    let mut order = TurnOrder::new(chain.tail.clone());
    let mut taken = BTreeSet::new();
    // A machine that is unavailable already costs no budget, and may be well again after its turn. The leader of etcd comes last, so that
    // etcd elects another one only once.
    turns.sort_by_key(|turn| {
        (
            !turn.machine.is_control_plane(),
            drain::unavailable(ctx, turn.machine).is_none(),
            ctx.guest(turn.machine.name())
                .and_then(Guest::running)
                .is_some_and(|guest| guest.leads_etcd),
        )
    });
    for turn in turns {
        let gate = match check_turn(ctx, &turn, etcd, &chain.members, &taken) {
            Ok(gate) => gate,
            Err(reason) => {
                plan.hold(turn.machine.subject(), "change", reason.would(&turn.summary()));
                continue;
            }
        };
        let alone = turn.restarts() || turn.machine.is_control_plane();
        let before = if alone {
            order.needs(turn.machine, gate.room)
        } else {
            Vec::new()
        };
        // A machine that does not answer yet is heard first.
        let heard = configured.get(turn.machine.name()).copied();
        let needs: Vec<StepId> = turn.after.into_iter().chain(heard).chain(before).collect();
        let end = take(ctx, &turn, &gate.drain, needs, etcd, (&mut chain, &mut turned), plan);
        // One that a person cordoned stays so after its turn.
        let is_foreign = |name: &str| ctx.node(name).is_some_and(|node| node.cordon == NodeCordon::Foreign);
        if turn.restarts() && !is_foreign(turn.machine.name()) {
            taken.insert(turn.machine.name());
        }
        if alone {
            order.ended(end);
        }
        if turn.machine.is_control_plane() {
            chain.tail = order.tail();
        }
    }
    (turned, chain)
}

/// What the gate of a turn allows.
struct Gate {
    drain: DrainDecision,
    /// How many machines of the pool may be down at once, this one included.
    room: usize,
}

/// Whether the machine may go down now.
fn check_turn(
    ctx: Context<'_>,
    turn: &Turn<'_>,
    etcd: &EtcdFacts<'_>,
    members: &[EtcdMember],
    taken: &BTreeSet<&str>,
) -> Result<Gate, HoldReason> {
    let mut gate = Gate {
        drain: DrainDecision::Skip,
        room: 1,
    };
    if !turn.restarts() {
        return Ok(gate);
    }
    if let Some(reason) = ctx.desired.policy.held.get(turn.machine.name()) {
        return Err(reason.clone().into());
    }
    // A restart that the guest does by itself asks nothing of PVE.
    if let Some(blocked) = turn.vm.blocked(ctx.observed).filter(|_| turn.is_restarted_by_pve()) {
        return Err(blocked);
    }
    check_quorum(ctx, turn, etcd, members).map_err(HoldReason::transient)?;
    if let EtcdPresence::Exists = etcd.presence {
        if !turn.left_etcd {
            gate.room = drain::check_budget(ctx, turn.machine, taken)?;
        }
        gate.drain = drain::decide(ctx, turn.machine.name(), turn.left_etcd)?;
    }
    Ok(gate)
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

/// One turn: cordon and drain, new config, new settings, one restart for both, and the way back. Returns its last step.
fn take<'a>(
    ctx: Context<'a>,
    turn: &Turn<'a>,
    drain: &DrainDecision,
    needs: Vec<StepId>,
    etcd: &EtcdFacts<'_>,
    (chain, turned): (&mut EtcdChain, &mut Turned<'a>),
    plan: &mut PlanBuilder,
) -> Option<StepId> {
    let (name, subject) = (turn.machine.name(), turn.machine.subject());
    let needs = match drain {
        DrainDecision::Drain => {
            // Nothing is disturbed before the new system is on the machine.
            let pulled = turn.upgrade.iter().map(|upgrade| upgrade.pulled);
            let needs: Vec<StepId> = needs.iter().copied().chain(pulled).collect();
            vec![drain::begin(ctx, &subject, turn.kind(), &turn.why(), &needs, plan)]
        }
        DrainDecision::NoOtherMachine => {
            plan.note(format!("no other machine can take the pods of {name}: they stop with it"));
            needs
        }
        DrainDecision::Skip => needs,
    };
    let config = turn.config.as_ref();
    let reconfigured = config.map(|change| reconfigure(ctx, turn, change, &needs, plan));
    let ended = if turn.is_restarted_by_pve() {
        Some(change_and_restart(ctx, turn, reconfigured, needs, plan))
    } else {
        reconfigured
    };
    match etcd.presence {
        EtcdPresence::Exists if turn.restarts() => {
            let awaited = await_restart(ctx, turn.machine, ended, chain, plan);
            turned.awaited.insert(name, awaited);
            let is_cordoned = ctx.node(name).is_some_and(|node| node.cordon == NodeCordon::Ours);
            if !is_cordoned && !matches!(drain, DrainDecision::Drain) {
                return Some(awaited);
            }
            turned.cordoned.insert(name);
            Some(drain::end(ctx, &subject, "its turn is over", [awaited], plan))
        }
        EtcdPresence::Exists | EtcdPresence::Unknown(_) => ended,
        EtcdPresence::NotBootstrapped => {
            turned.ended.extend(ended.map(|step| (name, step)));
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
        config: change.config.clone(),
        mode,
        check: (mode == ApplyMode::Reboot).then(|| ctx.restart_check(turn.machine)).flatten(),
    };
    let step = plan.machine_step(turn.machine, action).because(&change.text);
    step.impact(impact).needs(needs.iter().copied()).add()
}

/// The restart of a machine whose turn has come, and the settings that it brings into force.
fn change_and_restart(
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
    if let Some(upgrade) = &turn.upgrade {
        let action = Action::GuestUpgrade(Box::new(UpgradeOrder {
            vm: turn.vm.vm_ref(),
            guest: ctx.guest_ref(turn.machine.name()),
            from: upgrade.from.clone(),
            to: upgrade.to.clone(),
            schematic: upgrade.schematic.clone(),
            image: upgrade.image.clone(),
            restarts_vm: diff.is_some(),
            check: ctx.restart_check(turn.machine),
        }));
        let step = plan.machine_step(turn.machine, action).because(upgrade.why());
        let step = step.impact(Impact::Reboot).needs(needs).needs(changed).needs(reconfigured);
        return step.needs([upgrade.pulled]).add();
    }
    let pending = diff.map(|diff| diff.pending.iter().map(String::as_str).collect::<Vec<_>>().join(", "));
    let why = match pending.filter(|keys| !keys.is_empty()) {
        Some(keys) => format!("{keys}: written, takes effect at a reboot"),
        None if turn.left_etcd => LEFT_ETCD.to_owned(),
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
    /// What the turn would do.
    fn summary(&self) -> String {
        let settings = self.diff.iter().map(VmDiff::summary);
        let config = self.config.iter().map(|change| change.text.clone());
        let rejoin = self.left_etcd.then(|| "restart, so that its etcd joins again".to_owned());
        let texts: Vec<String> = settings.chain(config).chain(rejoin).filter(|text| !text.is_empty()).collect();
        texts.join(", ")
    }

    fn is_needed(&self) -> bool {
        self.is_restarted() || self.config.is_some()
    }

    /// In one word, recorded on the Node.
    fn kind(&self) -> &'static str {
        if self.upgrade.is_some() { "upgrade" } else { "restart" }
    }

    /// What the turn is for.
    fn why(&self) -> String {
        let settings = self.diff.as_ref().filter(|diff| !diff.changes.is_empty()).map(VmDiff::text);
        let config = self.config.as_ref().map(|change| change.text.clone());
        let upgrade = self.upgrade.as_ref().map(SystemUpgrade::why);
        let why: Vec<String> = upgrade.into_iter().chain(config).chain(settings).collect();
        match why.as_slice() {
            [] if self.left_etcd => LEFT_ETCD.to_owned(),
            [] => "written, takes effect at a reboot".to_owned(),
            _ => why.join("; "),
        }
    }

    /// The machine goes down for a moment.
    fn restarts(&self) -> bool {
        self.is_restarted() || self.config.as_ref().is_some_and(|change| change.mode != ApplyMode::Live)
    }

    /// We restart it, whatever its config does.
    fn is_restarted(&self) -> bool {
        self.diff.is_some() || self.left_etcd || self.upgrade.is_some()
    }

    /// Also where the config takes effect at a reboot that the guest does not do by itself.
    fn is_restarted_by_pve(&self) -> bool {
        self.is_restarted() || self.config.as_ref().is_some_and(|change| change.mode == ApplyMode::Staged)
    }
}
