//! Reboot, reset and shutdown: sequences that end a boot.

use std::sync::Arc;
use std::time::Duration;

use talos_proto::{common, machine};

use super::etcd::EtcdError;
use super::node::{Ending, EtcdState, Node, Sequence};
use super::services::ServiceState;
use crate::factory::TalosImage;
use crate::witness::Deed;

/// A node without pods takes a moment too, in which its API still answers.
const NO_PODS: Duration = Duration::from_millis(400);

/// The disks are let go of between the services and the API.
const UNMOUNTING: Duration = Duration::from_millis(500);

/// What is to be wiped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wipe {
    pub state: bool,
    pub ephemeral: bool,
    pub disk: bool,
}

/// How a sequence was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub sequence: Sequence,
    pub actor: String,
    pub ending: Ending,
    /// Drain the node first, and let its pods end.
    pub graceful: bool,
    /// Leave etcd first; a failure then stops the reset.
    pub leaves_etcd: bool,
    pub wipe: Wipe,
    /// Take over whatever runs.
    pub force: bool,
    /// Skip the tear-down of pods.
    pub abrupt: bool,
    /// What is to boot next.
    pub upgrade: Option<TalosImage>,
}

impl Order {
    pub fn reboot(actor: String, ending: Ending) -> Self {
        Self {
            sequence: Sequence::Reboot,
            actor,
            ending,
            graceful: false,
            leaves_etcd: false,
            wipe: Wipe::default(),
            force: false,
            abrupt: false,
            upgrade: None,
        }
    }

    pub fn shutdown(actor: String, abrupt: bool) -> Self {
        Self {
            sequence: Sequence::Shutdown,
            actor,
            ending: Ending::Off,
            graceful: false,
            leaves_etcd: false,
            wipe: Wipe::default(),
            force: true,
            abrupt,
            upgrade: None,
        }
    }
}

/// Begins a sequence, or publishes that another one is in the way.
pub(crate) fn begin(node: &Arc<Node>, order: Order) {
    let allowed = {
        let mut state = node.lock();
        let allowed = match state.sequence {
            None => true,
            Some(Sequence::Reboot | Sequence::Reset) if order.sequence == Sequence::Reboot => true,
            Some(_) => order.force,
        };
        if allowed {
            state.sequence = Some(order.sequence);
        }
        allowed
    };
    if !allowed {
        return publish_locked(node, order.sequence);
    }
    node.site.tell(node, Deed::Away);
    node.beat();
    let own = Arc::clone(node);
    node.spawn(async move { run(own, order).await });
}

fn publish_locked(node: &Node, sequence: Sequence) {
    let error = common::Error {
        code: common::Code::Locked.into(),
        message: "sequence not started: locked".to_owned(),
        details: Vec::new(),
    };
    let event = machine::SequenceEvent {
        sequence: sequence.word().to_owned(),
        action: machine::sequence_event::Action::Noop.into(),
        error: Some(error),
    };
    node.events.publish("SequenceEvent", &event);
}

async fn run(node: Arc<Node>, order: Order) {
    let actor = order.actor.as_str();
    node.sequence_event(order.sequence.word(), true, actor);
    if order.graceful {
        node.phase("drain", &["cordonAndDrainNode"], actor);
    }
    stop_pods(&node, &order).await;
    node.phase("dbus", &["stopDBus"], actor);
    if order.leaves_etcd {
        node.phase_event("leave", true, actor);
        if let Err(why) = leave_etcd(&node) {
            return fail(&node, &order, &why).await;
        }
        node.phase_event("leave", false, actor);
    }
    stop_services(&node, actor).await;
    match order.upgrade {
        Some(image) if order.sequence == Sequence::StageUpgrade => {
            node.disk.change(|installed| installed.staged = Some(image));
        }
        Some(image) => {
            node.pass(node.site.timing.install).await;
            node.disk.upgrade(image);
        }
        None => {}
    }
    if order.wipe != Wipe::default() {
        node.pass(node.site.timing.wipe).await;
        wipe(&node, &order.wipe);
    }
    node.pass(if order.ending == Ending::Off {
        Duration::from_secs(1)
    } else {
        node.site.timing.kexec
    })
    .await;
    if order.ending == Ending::Reboot && node.faults().kexec_hangs {
        // The API is gone and nothing follows: only a power cycle helps.
        node.alive.cancel();
        std::future::pending::<()>().await;
    }
    node.end(order.ending);
}

/// The kubelet goes first, then its pods, in their own time.
async fn stop_pods(node: &Arc<Node>, order: &Order) {
    let actor = order.actor.as_str();
    let task = if order.graceful { "removeAllPods" } else { "stopAllPods" };
    node.phase_event("cleanup", true, actor);
    node.task_event(task, true, actor);
    node.set_stage(order.sequence.stage());
    let pods = if order.abrupt || !node.is_registered() {
        NO_PODS
    } else {
        node.site.timing.stop_pods
    };
    // A quarter of the time passes with the kubelet's own farewell.
    node.pass(pods / 4).await;
    if node.is_up("kubelet") {
        node.set_service(
            "kubelet",
            ServiceState::Stopping,
            "Sending SIGTERM to task kubelet (PID 351, container kubelet)",
        );
        node.set_service("kubelet", ServiceState::Finished, "Service finished successfully");
        super::kubelet::fell_silent(node);
    }
    node.pass(pods * 3 / 4).await;
    node.task_event(task, false, actor);
    node.phase_event("cleanup", false, actor);
}

fn leave_etcd(node: &Arc<Node>) -> Result<(), String> {
    let Some((cluster, member)) = node.etcd() else { return Ok(()) };
    cluster.remove(member, member).map_err(|error| leave_error(member, &error))?;
    node.lock().etcd = EtcdState::Left;
    cluster.stop(member);
    node.disk.change(|installed| installed.ephemeral.etcd = None);
    Ok(())
}

pub(crate) fn leave_error(member: u64, error: &EtcdError) -> String {
    format!("failed to leave cluster: 1 error(s) occurred:\n\tfailed to remove member {member}: {error}")
}

async fn fail(node: &Arc<Node>, order: &Order, why: &str) {
    let message = format!(
        "sequence failed: error running phase in {} sequence: {why}",
        order.sequence.word()
    );
    node.lock().sequence = None;
    super::boot::fail_sequence(node, order.sequence.word(), &message).await;
}

/// The API goes with the services; streams of events end cleanly before.
async fn stop_services(node: &Arc<Node>, actor: &str) {
    node.events.close();
    node.phase_event("stopEverything", true, actor);
    node.task_event("stopAllServices", true, actor);
    if let Some((cluster, member)) = node.etcd() {
        node.lock().etcd = EtcdState::Idle;
        node.beat();
        // The shared address is given back before etcd stops.
        tokio::task::yield_now().await;
        for (vip, _) in node.config().map(|config| config.vips(&node.nics)).unwrap_or_default() {
            cluster.release(vip, member);
        }
        cluster.stop(member);
    }
    node.lock().apiserver = false;
    for service in ["kubelet", "etcd", "trustd", "cri"] {
        if node
            .services
            .get(service)
            .is_some_and(|own| own.state != ServiceState::Finished)
        {
            node.set_service(service, ServiceState::Finished, "Service finished successfully");
        }
    }
    node.announce();
    node.lock().unmounted = true;
    node.pass(UNMOUNTING).await;
    node.api.close();
}

fn wipe(node: &Node, wipe: &Wipe) {
    if wipe.disk {
        return node.disk.wipe();
    }
    node.disk.change(|installed| {
        if wipe.state {
            installed.state = None;
        }
        if wipe.ephemeral {
            installed.ephemeral = super::disk::Ephemeral::default();
        }
    });
}
