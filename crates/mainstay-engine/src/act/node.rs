//! Waits for Nodes, and deletes them.

use std::time::Duration;

use mainstay_kube::NodeDeletion;
use mainstay_plan::NodeState;
use tokio::time::Instant;

use crate::failure::{Failure, FailureKind};
use crate::guest::{self, StepContext};
use crate::kube::EARLIER_BOOT;
use crate::wait::{self, Debounce, WaitStatus};

const REGISTERED: Duration = Duration::from_secs(900);
/// Finalizers of a Node take seconds.
const GONE: Duration = Duration::from_secs(120);
/// Readiness comes and goes while a machine starts: it counts when it holds.
const HOLDS: Duration = Duration::from_secs(2);
/// How old the machine's own reason may be. It says much, and little of it changes within seconds.
const REASON_FRESH: Duration = Duration::from_secs(5);

pub async fn await_ready(ctx: StepContext<'_>, machine: &str, until: NodeState, ask: &[String]) -> Result<(), Failure> {
    let what = match until {
        NodeState::Ready => format!("node {machine} did not become ready"),
        NodeState::Registered => format!("node {machine} did not register"),
    };
    let mut steady = Debounce::new(HOLDS);
    let mut own = NotReadyReason::new(machine);
    wait::until(ctx.jitter, ctx.progress, &what, REGISTERED, async || {
        let nodes = match ctx.kube.nodes(ask, ctx.addresses).await {
            Ok(nodes) => nodes,
            Err(why) => return Ok(WaitStatus::Waiting(own.reason(ctx).await.unwrap_or(why))),
        };
        let Some(node) = nodes.get(machine) else {
            steady.seen(false);
            let reason = own.reason(ctx).await;
            return Ok(WaitStatus::Waiting(
                reason.unwrap_or_else(|| "its kubelet has not registered yet".into()),
            ));
        };
        let good = until == NodeState::Registered || node.is_ready();
        match (steady.seen(good), good) {
            (true, _) => Ok(is_of_this_boot(ctx, machine, node).await),
            (false, true) => Ok(WaitStatus::Waiting("ready; watching that it stays so".into())),
            (false, false) => Ok(WaitStatus::Waiting(node.why_not_ready())),
        }
    })
    .await
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

/// A Node may have finalizers, which a controller of its distribution removes first. Its name is free when it is gone.
pub async fn delete(ctx: StepContext<'_>, machine: &str, ask: &[String]) -> Result<(), Failure> {
    let what = format!("node {machine} did not go");
    let mut asked = false;
    wait::until(ctx.jitter, ctx.progress, &what, GONE, async || {
        match delete_once(ctx, machine, ask).await {
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

async fn delete_once(ctx: StepContext<'_>, machine: &str, ask: &[String]) -> Result<NodeDeletion, Failure> {
    let mut last = None;
    for address in ask.iter().filter_map(|control_plane| ctx.addresses.get(control_plane)) {
        let deleted = match ctx.kube.server(address) {
            Ok(server) => server.delete_node(machine).await,
            Err(error) => Err(error),
        };
        match deleted {
            Ok(deletion) => return Ok(deletion),
            Err(error) => last = Some(error),
        }
    }
    let failure = Failure::new(FailureKind::Unreachable, format!("node {machine} could not be deleted"));
    Err(match last {
        Some(error) => failure.why(error.to_string()),
        None => failure.why("no control plane is left to ask"),
    })
}
