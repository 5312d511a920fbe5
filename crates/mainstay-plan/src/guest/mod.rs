//! What runs inside the machines. This module alone in the planner knows that there is more than one distribution: each answers the same
//! questions in a module of its own.

mod talos;

use std::collections::BTreeMap;

use crate::builder::PlanBuilder;
use crate::context::Context;
use crate::desired::DesiredMachine;
use crate::observed::Running;
use crate::plan::HoldReason;
use crate::step::Apply;
use crate::vm::{VmOutcome, VmPass};

/// What is known about the guest of a machine after the VM pass.
pub(crate) enum GuestStatus<'a> {
    Running(&'a Running),
    /// Waits for its config, or will answer soon, and why we think so. `joins_etcd`: it will be a new etcd member.
    NeedsConfig {
        reason: String,
        joins_etcd: bool,
    },
    /// Nothing is done inside it in this plan.
    Held,
}

/// In file order.
pub(crate) type Guests<'a> = Vec<(&'a DesiredMachine, GuestStatus<'a>)>;

/// A running guest has another config than the file gives it.
#[derive(Debug, Clone)]
pub(crate) struct ConfigChange {
    pub how: Apply,
    /// Where the configs differ. Values stay out: some are secret.
    pub text: String,
}

/// What is inside every machine. Adds holds only.
pub(crate) fn inspect<'a>(ctx: Context<'a>, vms: &VmPass<'a>, plan: &mut PlanBuilder) -> Guests<'a> {
    let status = |machine: &'a DesiredMachine| {
        let status = status(ctx, machine, vms.outcomes[machine.name()], plan);
        (machine, require_control_plane(ctx, machine, status, vms, plan))
    };
    ctx.cluster.machines.iter().map(status).collect()
}

fn status<'a>(ctx: Context<'a>, machine: &DesiredMachine, vm: VmOutcome, plan: &mut PlanBuilder) -> GuestStatus<'a> {
    match vm {
        VmOutcome::Held => GuestStatus::Held,
        // It does not run yet, so there is nothing to read.
        VmOutcome::Running {
            after: Some(_),
            new_disk,
        } => GuestStatus::NeedsConfig {
            reason: if new_disk { "it is new" } else { "it was stopped" }.to_owned(),
            joins_etcd: new_disk,
        },
        VmOutcome::Running { after: None, .. } => match talos::status(ctx, machine) {
            Ok(status) => status,
            Err((what, reason)) => {
                plan.hold(machine.subject(), what, reason);
                GuestStatus::Held
            }
        },
    }
}

/// A worker gets the certificate of its API from a control plane. While there is none, waiting for the worker would be in vain.
fn require_control_plane<'a>(
    ctx: Context<'a>,
    machine: &DesiredMachine,
    status: GuestStatus<'a>,
    vms: &VmPass<'a>,
    plan: &mut PlanBuilder,
) -> GuestStatus<'a> {
    let will_run = |machine: &DesiredMachine| matches!(vms.outcomes[machine.name()], VmOutcome::Running { .. });
    let waits = matches!(status, GuestStatus::NeedsConfig { .. }) && !machine.is_control_plane();
    if !waits || ctx.cluster.control_planes().any(will_run) {
        return status;
    }
    let reason = HoldReason::transient("no control plane is there yet that could give it a certificate");
    plan.hold(machine.subject(), "configure", reason);
    GuestStatus::Held
}

/// Which running guests need another config. Adds holds only.
pub(crate) fn compare<'a>(ctx: Context<'a>, guests: &Guests<'a>, plan: &mut PlanBuilder) -> BTreeMap<&'a str, ConfigChange> {
    let mut changes = BTreeMap::new();
    // Without secrets there are no configs to compare with: the plan is for reading only.
    if ctx.desired.cluster_id.is_none() {
        return changes;
    }
    for (machine, status) in guests {
        let GuestStatus::Running(guest) = status else { continue };
        match talos::config_change(ctx, machine, guest) {
            Ok(change) => changes.extend(change.map(|change| (machine.name(), change))),
            Err(reason) => plan.hold(machine.subject(), "configure", reason),
        }
    }
    changes
}
