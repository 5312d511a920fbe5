//! Labels and taints of Nodes: those of the file are put on, and those that left the file are taken off.
//!
//! A worker may not change its own taints, and RKE2 and k3s read both at the first registration alone. So they are written with the
//! administrator's certificate. A record on the Node says which of them are ours: all others stay.

use std::collections::BTreeSet;

use crate::action::Action;
use crate::builder::PlanBuilder;
use crate::context::{Context, StepByMachine};
use crate::desired::DesiredMachine;
use crate::node_change::{NodeChange, NodeRecord, TaintOnNode};
use crate::observed::{NodeStatus, Seen};
use crate::step::Impact;

fn record_of(machine: &DesiredMachine) -> NodeRecord {
    NodeRecord {
        labels: machine.machine.labels.keys().cloned().collect(),
        taints: desired_taints(machine).iter().map(TaintOnNode::name).collect(),
    }
}

fn desired_taints(machine: &DesiredMachine) -> BTreeSet<TaintOnNode> {
    machine.machine.taints.iter().map(TaintOnNode::of).collect()
}

/// Changes the Nodes that differ. `awaited`: the steps after which Nodes are there that are not yet, or that restart.
pub(crate) fn plan(ctx: Context<'_>, awaited: &StepByMachine<'_>, plan: &mut PlanBuilder) {
    for machine in &ctx.cluster.machines {
        let after = awaited.get(machine.name()).copied();
        let node = ctx.node(machine.name());
        let is_known = matches!(ctx.observed.kubernetes, Seen::Yes(_)) && node.is_some();
        if !is_known && after.is_none() {
            continue;
        }
        let Some(change) = change(machine, node) else { continue };
        report_drift(machine, node, &change, plan);
        let action = Action::NodeChange {
            change: Box::new(change.clone()),
            ask: ctx.control_planes(),
        };
        let impact = if node.is_some() { Impact::Live } else { Impact::None };
        let step = plan.machine_step(machine, action).because(change.text());
        step.impact(impact).needs(after).add();
    }
}

/// What must change on a Node, if anything must. Of a Node that is not there yet nothing is known, so all is set.
fn change(machine: &DesiredMachine, node: Option<&NodeStatus>) -> Option<NodeChange> {
    let (labels, taints, record) = (&machine.machine.labels, desired_taints(machine), record_of(machine));
    let Some(node) = node else {
        let change = NodeChange {
            set_labels: labels.clone(),
            set_taints: taints,
            record,
            ..NodeChange::default()
        };
        return (!change.record.is_empty()).then_some(change);
    };
    let applied = node.applied.clone().unwrap_or_default();
    let wanted: BTreeSet<String> = taints.iter().map(TaintOnNode::name).collect();
    let differs = |(key, value): &(&String, &String)| node.labels.get(*key) != Some(*value);
    let is_left_over = |taint: &&TaintOnNode| applied.taints.contains(&taint.name()) && !wanted.contains(&taint.name());
    let change = NodeChange {
        set_labels: labels
            .iter()
            .filter(differs)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        remove_labels: applied
            .labels
            .iter()
            .filter(|key| !labels.contains_key(*key) && node.labels.contains_key(*key))
            .cloned()
            .collect(),
        set_taints: taints.difference(&node.taints).cloned().collect(),
        remove_taints: node.taints.iter().filter(is_left_over).cloned().collect(),
        record,
    };
    let is_same = NodeChange {
        record: change.record.clone(),
        ..NodeChange::default()
    } == change;
    (!is_same || change.record != applied).then_some(change)
}

/// The file is as it was when it was last applied, so a difference was made outside mainstay.
fn report_drift(machine: &DesiredMachine, node: Option<&NodeStatus>, change: &NodeChange, plan: &mut PlanBuilder) {
    let Some(node) = node.filter(|node| node.applied.as_ref() == Some(&change.record)) else {
        return;
    };
    for (key, value) in &change.set_labels {
        let what = match node.labels.get(key) {
            Some(is) => format!("label {key} is `{is}`, was set to `{value}`"),
            None => format!("label {key} is gone"),
        };
        plan.drift(machine.subject(), what);
    }
    for taint in &change.set_taints {
        plan.drift(machine.subject(), format!("taint {taint} is gone"));
    }
}
