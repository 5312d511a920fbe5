//! Waits for Kubernetes Nodes.

use mainstay_spec::Cni;

use crate::action::Action;
use crate::builder::PlanBuilder;
use crate::context::{Context, StepByMachine};
use crate::desired::DesiredMachine;
use crate::etcd::{EtcdFacts, EtcdPresence};
use crate::guest::GuestStatus;
use crate::observed::Seen;
use crate::plan::HoldReason;
use crate::releases::{CniState, Underway};
use crate::step::{NodeState, Subject};

/// What a Node must be before its machine counts as done.
pub(crate) fn awaited_state(ctx: Context<'_>) -> NodeState {
    match ctx.cluster.cni {
        Cni::None => NodeState::Registered,
        Cni::Flannel | Cni::Canal | Cni::Cilium => NodeState::Ready,
    }
}

/// Waits for the Nodes that are not yet as they should be and that no turn waits for. Returns these waits and those of the turns.
pub(crate) fn plan<'a>(
    ctx: Context<'a>,
    underway: Underway<'_, 'a>,
    etcd: &EtcdFacts<'_>,
    configured: &StepByMachine<'_>,
    network: CniState,
    plan: &mut PlanBuilder,
) -> StepByMachine<'a> {
    let Underway {
        guests,
        bootstrap,
        turned,
    } = underway;
    let mut awaited = turned.clone();
    match &etcd.presence {
        EtcdPresence::Unknown(why) => {
            let reason = HoldReason::transient(format!("a control plane could have etcd data: {why}"));
            plan.hold(Subject::Cluster, "bootstrap", reason);
            return awaited;
        }
        // Without etcd there is no API server that could register a Node.
        EtcdPresence::NotBootstrapped if bootstrap.is_none() => return awaited,
        EtcdPresence::NotBootstrapped | EtcdPresence::Exists => {}
    }
    // While the pod network is held no node becomes ready: waiting would take the whole deadline, and the next look may find a way.
    let (until, network) = match network {
        CniState::Held => (NodeState::Registered, None),
        CniState::Comes(step) => (awaited_state(ctx), Some(step)),
        CniState::NotOurs | CniState::Installed => (awaited_state(ctx), None),
    };
    for (machine, status) in guests {
        let configured = configured.get(machine.name()).copied();
        let is_settled = configured.is_none() && bootstrap.is_none() && is_at(ctx, machine, until);
        if matches!(status, GuestStatus::Held) || is_settled || awaited.contains_key(machine.name()) {
            continue;
        }
        let action = Action::NodeAwait {
            until,
            ask: ctx.control_planes(),
        };
        let step = plan.machine_step(machine, action).because(why_await(ctx, machine));
        awaited.insert(machine.name(), step.needs(configured).needs(bootstrap).needs(network).add());
    }
    awaited
}

/// The Node is what it must be before its machine counts as done.
pub(crate) fn is_as_desired(ctx: Context<'_>, machine: &DesiredMachine) -> bool {
    is_at(ctx, machine, awaited_state(ctx))
}

fn is_at(ctx: Context<'_>, machine: &DesiredMachine, until: NodeState) -> bool {
    let is_enough = |stale: bool| until == NodeState::Registered && !stale;
    ctx.node(machine.name())
        .is_some_and(|node| node.ready || is_enough(node.stale))
}

fn why_await(ctx: Context<'_>, machine: &DesiredMachine) -> String {
    match &ctx.observed.kubernetes {
        Seen::Yes(kubernetes) => match kubernetes.nodes.get(machine.name()) {
            Some(node) if node.ready => "it changes".to_owned(),
            Some(node) => format!("not ready: {}", node.why),
            None => "not a node yet".to_owned(),
        },
        Seen::No => "not a node yet".to_owned(),
        Seen::Unknown(why) => format!("Kubernetes does not answer: {why}"),
    }
}
