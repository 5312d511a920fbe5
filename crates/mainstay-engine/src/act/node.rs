//! Kubernetes nodes: waiting for them, and taking the Node of a machine that is gone.

use std::time::Duration;

use mainstay_plan::NodeState;
use talos_api::{why_no_answer, why_not_ready};
use tokio::time::Instant;

use super::wait::{self, Look, Steady};
use crate::event::Voice;
use crate::failure::{Failure, Kind};
use crate::site::{EARLIER_BOOT, Site};

const REGISTERED: Duration = Duration::from_secs(900);
/// Readiness comes and goes while a machine starts: it counts when it holds.
const HOLDS: Duration = Duration::from_secs(2);

pub async fn await_ready(site: &Site, voice: &Voice, machine: &str, until: NodeState) -> Result<(), Failure> {
    let what = match until {
        NodeState::Ready => format!("node {machine} did not become ready"),
        NodeState::Registered => format!("node {machine} did not register"),
    };
    let mut steady = Steady::new(HOLDS);
    let mut own = Own::new(machine);
    wait::until(site, voice, &what, REGISTERED, async || {
        let nodes = match site.nodes().await {
            Ok(nodes) => nodes,
            Err(why) => return Ok(Look::NotYet(own.reason(site).await.unwrap_or(why))),
        };
        let Some(node) = nodes.get(machine) else {
            steady.seen(false);
            return Ok(Look::NotYet(
                own.reason(site)
                    .await
                    .unwrap_or_else(|| "its kubelet has not registered yet".into()),
            ));
        };
        let good = until == NodeState::Registered || node.is_ready();
        match (steady.seen(good), good) {
            (true, _) => is_of_this_boot(site, machine, node).await,
            (false, true) => Ok(Look::NotYet("ready; watching that it stays so".into())),
            (false, false) => Ok(Look::NotYet(node.why_not_ready())),
        }
    })
    .await
}

/// For most of a minute Kubernetes believes a kubelet that is gone: only what was told in the boot that runs now counts.
async fn is_of_this_boot(site: &Site, machine: &str, node: &mainstay_kube::Node) -> Result<Look<()>, Failure> {
    let Some(address) = site.addresses.get(machine) else {
        return Ok(Look::Done(()));
    };
    Ok(match site.node(*address)?.boot_id().await {
        Ok(boot) if node.is_of_boot(&boot) => Look::Done(()),
        Ok(_) => Look::NotYet(EARLIER_BOOT.into()),
        Err(error) => Look::NotYet(why_no_answer(&error)),
    })
}

/// What the machine itself says is in the way. It tells much, and little of it changes within seconds.
struct Own<'a> {
    machine: &'a str,
    told: Option<(Instant, Option<String>)>,
}

const TOLD_AGAIN: Duration = Duration::from_secs(5);

impl<'a> Own<'a> {
    fn new(machine: &'a str) -> Self {
        Self { machine, told: None }
    }

    async fn reason(&mut self, site: &Site) -> Option<String> {
        if let Some((_, told)) = self.told.as_ref().filter(|(at, _)| at.elapsed() < TOLD_AGAIN) {
            return told.clone();
        }
        let told = self.ask(site).await;
        self.told = Some((Instant::now(), told.clone()));
        told
    }

    async fn ask(&self, site: &Site) -> Option<String> {
        let address = site.addresses.get(self.machine)?;
        let node = site.node(*address).ok()?;
        match node.look().await {
            Ok(seen) => why_not_ready(&seen),
            Err(error) => Some(why_no_answer(&error)),
        }
    }
}

pub async fn delete(site: &Site, machine: &str) -> Result<(), Failure> {
    let mut last = None;
    for address in &site.control_planes {
        let deleted = match site.keys()?.kubernetes_at(*address) {
            Ok(cluster) => cluster.delete_node(machine).await,
            Err(error) => Err(error),
        };
        match deleted {
            Ok(()) => return Ok(()),
            Err(error) => last = Some(error),
        }
    }
    let failure = Failure::new(Kind::Unreachable, format!("node {machine} could not be deleted"));
    Err(match last {
        Some(error) => failure.why(error.to_string()),
        None => failure.why("no control plane is left to ask"),
    })
}
