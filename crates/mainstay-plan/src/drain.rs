//! What surrounds a turn in Kubernetes: who else is unavailable, cordon, drain, and the way back.

use std::collections::BTreeSet;

use crate::action::Action;
use crate::builder::PlanBuilder;
use crate::context::Context;
use crate::desired::DesiredMachine;
use crate::node;
use crate::observed::{NodeCordon, PowerState, Seen};
use crate::plan::HoldReason;
use crate::step::{Drain, Impact, PoolBudget, StepId, Subject};

/// What happens to the pods of a machine that goes down.
pub(crate) enum DrainDecision {
    /// They are moved to other machines first.
    Drain,
    /// They are not, and why not.
    Skip,
    /// There is no other machine that could take them.
    NoOtherMachine,
}

/// Decides about the pods of a machine. `repairs`: the turn is the only way to make the machine well, so it does not wait for an API
/// server that may need it.
pub(crate) fn decide(ctx: Context<'_>, name: &str, repairs: bool) -> Result<DrainDecision, HoldReason> {
    if ctx.desired.policy.skip_drain.contains(name) {
        return Ok(DrainDecision::Skip);
    }
    let kubernetes = match &ctx.observed.kubernetes {
        Seen::Yes(kubernetes) => kubernetes,
        Seen::No => return Ok(DrainDecision::Skip),
        Seen::Unknown(_) if repairs => return Ok(DrainDecision::Skip),
        Seen::Unknown(why) => {
            let reason = format!(
                "its pods cannot be moved away, Kubernetes does not answer: {why}; to go on all the same: --skip-drain {name}"
            );
            return Err(HoldReason::transient(reason));
        }
    };
    // A kubelet that is silent ends no pod, so a drain would wait in vain.
    let Some(own) = kubernetes.nodes.get(name).filter(|own| own.ready) else {
        return Ok(DrainDecision::Skip);
    };
    let others = kubernetes.nodes.iter().filter(|(other, _)| *other != name);
    let takes_pods = others.clone().any(|(_, node)| node.ready && node.accepts_pods);
    // What ran on control planes that take no pods moves to other control planes at most.
    let takes_tolerant = !own.accepts_pods && others.clone().any(|(_, node)| node.ready && node.cordon == NodeCordon::None);
    if takes_pods || takes_tolerant {
        Ok(DrainDecision::Drain)
    } else {
        Ok(DrainDecision::NoOtherMachine)
    }
}

/// How many machines of its pool may be unavailable at once with this one, or why it may not become unavailable now. `taken` are machines
/// whose turn ends before this one.
pub(crate) fn check_budget(ctx: Context<'_>, machine: &DesiredMachine, taken: &BTreeSet<&str>) -> Result<usize, HoldReason> {
    let pool = &machine.machine.pool;
    let is_other = |other: &&DesiredMachine| other.name() != machine.name() && !taken.contains(other.name());
    let others = ctx.cluster.machines.iter().filter(is_other);
    let away: Vec<(&DesiredMachine, String)> = others
        .filter(|other| !ctx.desired.policy.despite.contains(other.name()))
        .filter_map(|other| Some((other, unavailable(ctx, other)?)))
        .collect();
    let in_pool: Vec<_> = away.iter().filter(|(other, _)| other.machine.pool == *pool).collect();
    let (limit, in_all) = (
        ctx.cluster.max_unavailable(pool.as_ref()),
        ctx.cluster.max_unavailable_of_all(),
    );
    let first = if in_pool.len() >= limit {
        in_pool.first().copied()
    } else if away.len() >= in_all {
        away.first()
    } else {
        None
    };
    // A machine that is unavailable itself takes nothing more from the budget.
    if unavailable(ctx, machine).is_some() {
        return Ok(1);
    }
    let Some((other, why)) = first else {
        return Ok((limit - in_pool.len()).min(in_all - away.len()));
    };
    let reason = format!(
        "{} is unavailable already: {why}; to go on all the same: --despite {}",
        other.name(),
        other.name()
    );
    Err(HoldReason::transient(reason))
}

/// Why a machine that was there before does not do its part now.
pub(crate) fn unavailable(ctx: Context<'_>, machine: &DesiredMachine) -> Option<String> {
    let name = machine.name();
    let vm = ctx.owned.ours.get(name).filter(|vm| vm.is_filled())?;
    if vm.vm.power == PowerState::Stopped {
        return Some("it is off".to_owned());
    }
    let node = ctx.node(name)?;
    match node.cordon {
        NodeCordon::None | NodeCordon::Ended => {}
        NodeCordon::Ours => return Some("mainstay cordoned it for a turn that was interrupted".to_owned()),
        NodeCordon::Foreign => return Some("another person or program cordoned it".to_owned()),
    }
    (!node::is_as_desired(ctx, machine)).then(|| format!("not ready: {}", node.why))
}

/// Cordon and drain. Returns the step after which the machine may go down, if there is any.
pub(crate) fn begin(
    ctx: Context<'_>,
    subject: &Subject,
    turn: &'static str,
    why: &str,
    needs: &[StepId],
    plan: &mut PlanBuilder,
) -> StepId {
    let name = subject.to_string();
    let ask = ctx.control_planes_but_last(&name);
    let cordon = Action::NodeCordon {
        turn,
        budget: budget(ctx, &name),
        ask: ask.clone(),
    };
    let at = ctx.cluster.machine(&name).map(|machine| machine.machine.at);
    let step = plan.step(subject.clone(), cordon).at(at).because(why);
    let cordoned = step.impact(Impact::Live).needs(needs.iter().copied()).add();
    let policy = &ctx.desired.policy;
    let drain = Action::NodeDrain {
        drain: Drain {
            timeout: policy.drain_timeout,
            deletes_unmanaged: policy.force_drain.contains(&name),
        },
        ask,
    };
    let step = plan
        .step(subject.clone(), drain)
        .at(at)
        .because("its pods move to other machines");
    step.impact(Impact::Live).needs([cordoned]).add()
}

/// Takes the cordon back, if it is ours.
pub(crate) fn end(
    ctx: Context<'_>,
    subject: &Subject,
    why: &str,
    needs: impl IntoIterator<Item = StepId>,
    plan: &mut PlanBuilder,
) -> StepId {
    let ask = ctx.control_planes_but_last(&subject.to_string());
    let at = ctx.cluster.machine(&subject.to_string()).map(|machine| machine.machine.at);
    let step = plan.step(subject.clone(), Action::NodeUncordon { ask }).at(at).because(why);
    step.impact(Impact::Live).needs(needs).add()
}

/// Releases machines that mainstay cordoned and whose turn is not in this plan: a run was killed, or the turn is held. `open` are machines
/// with a turn.
pub(crate) fn release(ctx: Context<'_>, open: &BTreeSet<&str>, plan: &mut PlanBuilder) {
    for (name, node) in ctx.observed.kubernetes.yes().iter().flat_map(|kubernetes| &kubernetes.nodes) {
        let is_ours = matches!(node.cordon, NodeCordon::Ours | NodeCordon::Ended);
        // A machine that leaves stays cordoned until its Node is gone.
        if is_ours && !open.contains(name.as_str()) && ctx.owned.in_file(name).is_some() {
            let why = match node.cordon {
                NodeCordon::Ended => "a person ended the cordon of mainstay, whose record is left",
                _ => "mainstay cordoned it, and no turn of it is open",
            };
            end(ctx, &Subject::Machine(name.clone()), why, None, plan);
        }
    }
}

/// Who else must be available when the machine is cordoned. A machine that leaves the file costs no budget.
fn budget(ctx: Context<'_>, name: &str) -> Option<PoolBudget> {
    let machine = ctx.cluster.machine(name)?;
    let pool = &machine.machine.pool;
    let policy = &ctx.desired.policy;
    let others = ctx
        .cluster
        .machines
        .iter()
        .filter(|other| other.machine.pool == *pool && other.name() != name);
    // What is being made in this plan was never available.
    let others = others.filter(|other| ctx.node(other.name()).is_some() && !policy.despite.contains(other.name()));
    Some(PoolBudget {
        others: others.map(|other| other.name().to_owned()).collect(),
        max_unavailable: ctx.cluster.max_unavailable(pool.as_ref()),
        needs_ready: node::awaited_state(ctx) == crate::step::NodeState::Ready,
    })
}

/// Which turns wait for which: in a pool as many at once as its budget allows, everything else one after another.
#[derive(Default)]
pub(crate) struct TurnOrder<'a> {
    pool: Option<&'a str>,
    width: usize,
    /// Last steps of the turns of this pool.
    ended: Vec<StepId>,
    /// What every turn of this pool waits for.
    before: Vec<StepId>,
}

impl<'a> TurnOrder<'a> {
    pub fn new(before: Vec<StepId>) -> Self {
        Self {
            before,
            ..Self::default()
        }
    }

    /// What the next turn of this machine waits for.
    pub fn needs(&mut self, machine: &'a DesiredMachine, room: usize) -> Vec<StepId> {
        let pool = machine.machine.pool.as_ref();
        if self.pool != Some(pool) {
            let ended = std::mem::take(&mut self.ended);
            if !ended.is_empty() {
                self.before = ended;
            }
            self.pool = Some(pool);
            self.width = room;
        }
        self.width = self.width.min(room).max(1);
        let Some(earlier) = self.ended.len().checked_sub(self.width) else {
            return self.before.clone();
        };
        vec![self.ended[earlier]]
    }

    pub fn ended(&mut self, last: Option<StepId>) {
        self.ended.extend(last);
    }

    /// Everything that a later pass must wait for.
    pub fn tail(&self) -> Vec<StepId> {
        let open = self.ended.len().saturating_sub(self.width.max(1));
        if self.ended.is_empty() {
            self.before.clone()
        } else {
            self.ended[open..].to_vec()
        }
    }
}
