//! Waits for Nodes, and deletes them.

use std::time::Duration;

use mainstay_kube::NodeDeletion;
use mainstay_plan::NodeState;
use tokio::time::Instant;

use super::servers::Servers;
use crate::failure::Failure;
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

async fn delete_once(servers: Servers<'_>, machine: &str, was_drained: bool) -> Result<NodeDeletion, Failure> {
    let what = format!("node {machine} could not be deleted");
    servers
        .call(&what, async |server| {
            if !was_drained {
                match server.set_out_of_service(machine).await {
                    Err(error) if error.class() == mainstay_kube::Class::NotFound => return Ok(NodeDeletion::Gone),
                    set => set?,
                }
            }
            server.delete_node(machine).await
        })
        .await
}
