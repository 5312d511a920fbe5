//! Another version of Kubernetes: the API servers first, then what talks to them, the kubelets last, each on one machine after another.
//!
//! Made from what each machine's config asks for, so that a run which was interrupted anywhere is continued.

use std::collections::BTreeMap;

use mainstay_spec::Role;
use semver::Version;

use crate::action::Action;
use crate::builder::PlanBuilder;
use crate::context::Context;
use crate::desired::DesiredMachine;
use crate::guest::{self, GuestStatus, Guests};
use crate::step::{Impact, KubernetesPart, StepId, Subject};

/// In the order in which they change: nothing may be newer than the API server that it talks to.
const CONTROL_PLANE: [KubernetesPart; 4] = [
    KubernetesPart::ApiServer,
    KubernetesPart::ControllerManager,
    KubernetesPart::Scheduler,
    KubernetesPart::Proxy,
];

/// A machine, and the versions of the parts that its config asks for.
struct Running<'a> {
    machine: &'a DesiredMachine,
    parts: BTreeMap<KubernetesPart, Version>,
}

/// Brings every part of Kubernetes to the version of this hop. `after`: the last steps that concern control planes.
pub(crate) fn plan(ctx: Context<'_>, guests: &Guests<'_>, after: &[StepId], plan: &mut PlanBuilder) {
    let (target, from) = (&ctx.cluster.versions.kubernetes, ctx.cluster.course.from.as_ref());
    let Some(from) = from else { return };
    if *target < from.kubernetes {
        let reason = format!(
            "it runs Kubernetes {}, the file says {target}; no plan lowers a version",
            from.kubernetes
        );
        return plan.hold(Subject::Cluster, "upgrade", reason);
    }
    let to = ctx.cluster.course.hop(&ctx.cluster.versions).kubernetes;
    let running: Vec<Running<'_>> = guests
        .iter()
        .filter_map(|(machine, status)| running(machine, status))
        .collect();
    let is_behind = |running: &Running<'_>, part: KubernetesPart| running.parts.get(&part).is_some_and(|version| *version < to);
    let behind: Vec<&Running<'_>> = running
        .iter()
        .filter(|one| one.parts.values().any(|version| *version < to))
        .collect();
    if behind.is_empty() {
        return;
    }
    // A control plane whose API server is not seen could be older than all others.
    let silent = ctx
        .cluster
        .control_planes()
        .find(|machine| !running.iter().any(|one| one.machine.name() == machine.name()));
    if let Some(silent) = silent {
        let reason = format!("what {} runs is not known", silent.name());
        return plan.hold(Subject::Cluster, "upgrade", crate::plan::HoldReason::transient(reason));
    }
    let tried = behind
        .iter()
        .find_map(|one| Some((one, ctx.desired.policy.held.get(one.machine.name())?)));
    if let Some((one, reason)) = tried {
        return plan.hold(one.machine.subject(), "upgrade", reason.clone());
    }
    let pulled = pull(ctx, &behind, &to, plan);
    let mut last: Vec<StepId> = after.iter().copied().chain(pulled).collect();
    let control_planes = || running.iter().filter(|one| one.machine.machine.role == Role::ControlPlane);
    let workers = || running.iter().filter(|one| one.machine.machine.role == Role::Worker);
    for part in CONTROL_PLANE {
        for one in control_planes().filter(|one| is_behind(one, part)) {
            last = vec![change(ctx, one, part, &to, last, plan)];
        }
    }
    for one in control_planes()
        .chain(workers())
        .filter(|one| is_behind(one, KubernetesPart::Kubelet))
    {
        last = vec![change(ctx, one, KubernetesPart::Kubelet, &to, last, plan)];
    }
}

fn running<'a>(machine: &'a DesiredMachine, status: &GuestStatus<'_>) -> Option<Running<'a>> {
    let GuestStatus::Running(guest) = status else { return None };
    let parts = guest::kubernetes_parts(guest);
    (!parts.is_empty()).then_some(Running { machine, parts })
}

/// Loads what the machines need, before anything changes.
fn pull(ctx: Context<'_>, behind: &[&Running<'_>], to: &Version, plan: &mut PlanBuilder) -> Vec<StepId> {
    let pulls = behind.iter().map(|one| {
        let action = Action::KubernetesPull {
            guest: ctx.guest_ref(one.machine.name()),
            parts: one
                .parts
                .keys()
                .copied()
                .filter(|part| *part != KubernetesPart::Proxy)
                .collect(),
            to: to.clone(),
        };
        let step = plan.machine_step(one.machine, action);
        step.because("it is there before anything is disturbed").add()
    });
    pulls.collect()
}

fn change(
    ctx: Context<'_>,
    one: &Running<'_>,
    part: KubernetesPart,
    to: &Version,
    needs: Vec<StepId>,
    plan: &mut PlanBuilder,
) -> StepId {
    let action = Action::KubernetesChange {
        guest: ctx.guest_ref(one.machine.name()),
        part,
        to: to.clone(),
        ask: ctx.control_planes_but_last(one.machine.name()),
    };
    let from = one.parts.get(&part).map(ToString::to_string).unwrap_or_default();
    let step = plan
        .machine_step(one.machine, action)
        .because(format!("{part} {from} -> {to}"));
    step.impact(Impact::Live).needs(needs).add()
}
