//! Waits for Nodes, and deletes them.

use std::collections::BTreeSet;
use std::time::Duration;

use mainstay_kube::NodeDeletion;
use mainstay_plan::{NodeChange, NodeState};
use tokio::time::Instant;

use super::servers::Servers;
use crate::failure::{Failure, FailureKind};
use crate::guest::{self, StepContext};
use crate::in_flight;
use crate::kube::EARLIER_BOOT;
use crate::node_watch::NodeView;
use crate::wait::{self, Debounce, WaitStatus};

const REGISTERED: Duration = Duration::from_secs(900);
/// Finalizers of a Node take seconds.
const GONE: Duration = Duration::from_secs(120);
/// Readiness comes and goes while a machine starts: it counts when it holds.
const HOLDS: Duration = Duration::from_secs(2);
/// A Node that is as wanted and of another boot of its machine is looked at again after this.
const BOOT_AGAIN: Duration = Duration::from_secs(1);
/// How old the machine's own reason may be. It says much, and little of it changes within seconds.
const REASON_FRESH: Duration = Duration::from_secs(5);

/// Follows the Node until it is as wanted. Its own changes wake this step; the pauses are for reasons that people read.
pub async fn await_ready(ctx: StepContext<'_>, machine: &str, until: NodeState, ask: &[String]) -> Result<(), Failure> {
    let node = ctx.kube.follow_node(machine, ask, ctx.addresses);
    let mut steady = Debounce::new(HOLDS);
    let mut own = NotReadyReason::new(machine);
    let began = Instant::now();
    loop {
        let reason = match look(ctx, machine, until, &node, &mut steady, &mut own).await {
            WaitStatus::Done(()) => return Ok(()),
            WaitStatus::Waiting(reason) => reason,
        };
        let what = match until {
            NodeState::Ready => format!("node {machine} did not become ready"),
            NodeState::Registered => format!("node {machine} did not register"),
        };
        if let Some(why) = ctx.kube.network_fault().filter(|_| until == NodeState::Ready) {
            return Err(Failure::new(FailureKind::Failed, what).why(format!("the pod network is missing: {why}")));
        }
        if began.elapsed() >= REGISTERED {
            return Err(Failure::timed_out(what, REGISTERED, reason));
        }
        ctx.progress.wait(reason, REGISTERED);
        let pause = match steady.remaining() {
            Some(left) if left.is_zero() => ctx.jitter.pause(BOOT_AGAIN),
            Some(left) => left,
            None => ctx.jitter.pause(REASON_FRESH),
        };
        tokio::select! {
            biased;
            () = node.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn look(
    ctx: StepContext<'_>,
    machine: &str,
    until: NodeState,
    node: &NodeView,
    steady: &mut Debounce,
    own: &mut NotReadyReason<'_>,
) -> WaitStatus<()> {
    let node = match node.now() {
        Ok(node) => node,
        Err(why) => {
            steady.seen(false);
            return WaitStatus::Waiting(own.reason(ctx).await.unwrap_or(why));
        }
    };
    let Some(node) = node else {
        steady.seen(false);
        let reason = own.reason(ctx).await;
        return WaitStatus::Waiting(reason.unwrap_or_else(|| "its kubelet has not registered yet".into()));
    };
    let good = until == NodeState::Registered || node.is_ready();
    match (steady.seen(good), good) {
        (true, _) => is_of_this_boot(ctx, machine, &node).await,
        (false, true) => WaitStatus::Waiting("ready; watching that it stays so".into()),
        (false, false) => WaitStatus::Waiting(node.why_not_ready()),
    }
}

/// For most of a minute Kubernetes believes a kubelet that is gone: only a status of the boot that runs now counts.
async fn is_of_this_boot(ctx: StepContext<'_>, machine: &str, node: &mainstay_kube::Node) -> WaitStatus<()> {
    if ctx.addresses.get(machine).is_none() {
        return WaitStatus::Done(());
    }
    match guest::boot_id(ctx, machine).await {
        Ok(boot) if node.is_of_boot(&boot) => WaitStatus::Done(()),
        Ok(_) => WaitStatus::Waiting(EARLIER_BOOT.into()),
        Err(why) => WaitStatus::Waiting(why),
    }
}

/// Why the machine is not ready, in its own words, kept for some seconds.
struct NotReadyReason<'a> {
    machine: &'a str,
    last: Option<(Instant, Option<String>)>,
}

impl<'a> NotReadyReason<'a> {
    fn new(machine: &'a str) -> Self {
        Self { machine, last: None }
    }

    async fn reason(&mut self, ctx: StepContext<'_>) -> Option<String> {
        if let Some((_, last)) = self.last.as_ref().filter(|(at, _)| at.elapsed() < REASON_FRESH) {
            return last.clone();
        }
        let reason = guest::not_ready_reason(ctx, self.machine).await;
        self.last = Some((Instant::now(), reason.clone()));
        reason
    }
}

/// A Node may have finalizers, which a controller of its distribution removes first. Its name is free when it is gone. Where its machine
/// was not drained, the volumes of its pods are released first: Proxmox VE says that it is off, so nothing writes to them.
pub async fn delete(servers: Servers<'_>, machine: &str, was_drained: bool) -> Result<(), Failure> {
    let ctx = servers.ctx;
    let what = format!("node {machine} did not go");
    let mut asked = false;
    wait::until(ctx.jitter, ctx.progress, &what, GONE, async || {
        match delete_once(servers, machine, was_drained).await {
            Ok(NodeDeletion::Gone) => Ok(WaitStatus::Done(())),
            Ok(NodeDeletion::Begun) => {
                asked = true;
                Ok(WaitStatus::Waiting("its finalizers are not done yet".into()))
            }
            Err(failure) if asked => Ok(WaitStatus::Waiting(failure.why.unwrap_or(failure.what))),
            Err(failure) => Err(failure),
        }
    })
    .await
}

/// Sets labels and taints, with the record of which are ours.
pub async fn change(servers: Servers<'_>, machine: &str, change: &NodeChange) -> Result<(), Failure> {
    let taints = |taints: &BTreeSet<mainstay_plan::TaintOnNode>| taints.iter().map(kube_taint).collect();
    let edit = mainstay_kube::NodeEdit {
        set_labels: change.set_labels.clone(),
        remove_labels: change.remove_labels.clone(),
        set_taints: taints(&change.set_taints),
        remove_taints: taints(&change.remove_taints),
        record: change.record_text(),
    };
    let what = format!("labels and taints of node {machine} could not be set");
    servers
        .call(&what, async |server| server.edit_node(machine, &edit).await)
        .await
}

fn kube_taint(taint: &mainstay_plan::TaintOnNode) -> mainstay_kube::NodeTaint {
    mainstay_kube::NodeTaint {
        key: taint.key.clone(),
        value: taint.value.clone(),
        effect: taint.effect.clone(),
    }
}

async fn delete_once(servers: Servers<'_>, machine: &str, was_drained: bool) -> Result<NodeDeletion, Failure> {
    let what = format!("node {machine} could not be deleted");
    servers
        .call(&what, async |server| {
            if !was_drained {
                match in_flight::send(server.set_out_of_service(machine)).await {
                    Err(error) if error.class() == mainstay_kube::Class::NotFound => return Ok(NodeDeletion::Gone),
                    set => set?,
                }
            }
            in_flight::send(server.delete_node(machine)).await
        })
        .await
}
