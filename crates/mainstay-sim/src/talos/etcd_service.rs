//! The etcd service of a control plane: bootstrap, join, promotion, health, leaving.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use semver::Version;
use tokio::time::Instant;

use super::config::Config;
use super::disk::EtcdData;
use super::etcd::{EtcdCluster, EtcdError};
use super::node::{BootstrapRequest, EtcdState, Node};
use super::resources;
use super::services::ServiceState;
use super::site::Room;
use super::snapshot;
use crate::kube::store::Store;

/// From a lost leader until the health check of the service has failed, and back.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(26);
const HEALTHY_AFTER: Duration = Duration::from_secs(10);
const RESTART: Duration = Duration::from_secs(5);

/// From this version on a stale member is known by its address too.
const BY_ADDRESS: Version = Version::new(1, 14, 0);

const VOLUMES: &str =
    "Waiting for volumes /var/lib, ETCD to be mounted, service \"cri\" to be \"up\", time sync, network, etcd spec";

pub(crate) async fn run(node: Arc<Node>) {
    prepare(&node).await;
    loop {
        let Some(data) = find_data(&node).await else {
            // The bootstrap failed; another one may follow.
            continue;
        };
        match serve(&node, &data).await {
            Stopped::Left => {
                node.lock().etcd = EtcdState::Left;
                node.disk.change(|installed| installed.ephemeral.etcd = None);
                node.set_service("etcd", ServiceState::Finished, "Service finished successfully");
                // Its last health check found no member any more, and that verdict stays.
                node.services.mark_unhealthy("etcd", node.site.wall.now());
                node.resources.remove(&resources::ETCD_MEMBER, "local");
                node.announce();
                return;
            }
            Stopped::Removed => restart_for_ever(&node).await,
        }
    }
}

async fn prepare(node: &Arc<Node>) {
    node.set_service("etcd", ServiceState::Starting, "Starting service");
    node.set_service("etcd", ServiceState::Waiting, VOLUMES);
    node.set_service("etcd", ServiceState::Waiting, "Waiting for service \"cri\" to be \"up\"");
    node.until(|node| node.is_up("cri") && node.time_is_synced()).await;
    node.set_service("etcd", ServiceState::Preparing, "Running pre state");
    node.pass(node.site.timing.image_pull).await;
    node.keep_image(Config::etcd_image);
}

/// What is on disk, or what a bootstrap or a join puts there.
async fn find_data(node: &Arc<Node>) -> Option<EtcdData> {
    if let Some(data) = node.disk.read().and_then(|installed| installed.ephemeral.etcd) {
        return Some(data);
    }
    let room = node.room()?;
    let mut changed = room.watch();
    loop {
        changed.mark_unchanged();
        let request = node.bootstrap_request();
        if let Some(request) = request {
            return bootstrap(node, request).await;
        }
        match join(node) {
            Ok(Some(data)) => return Some(data),
            Ok(None) => {
                tokio::select! {
                    biased;
                    () = node.until(|node| node.bootstrap_request().is_some()) => {}
                    () = Room::stirs(&mut changed, node.site.pace) => {}
                }
            }
            // Another member is joining, or there is no leader right now: try again.
            Err(_) => node.pass(node.site.timing.etcd_join_retry).await,
        }
    }
}

async fn bootstrap(node: &Arc<Node>, request: BootstrapRequest) -> Option<EtcdData> {
    node.set_service("etcd", ServiceState::Finished, "Bootstrap requested");
    node.set_service("etcd", ServiceState::Starting, "Starting service");
    node.set_service("etcd", ServiceState::Waiting, VOLUMES);
    node.set_service("etcd", ServiceState::Preparing, "Running pre state");
    node.pass(node.site.timing.bootstrap_unguarded).await;
    let store = if request.recover {
        recover(node, request)
    } else {
        Ok(Store::new())
    };
    let store = match store {
        Ok(store) => store,
        Err(why) => {
            node.set_service("etcd", ServiceState::Failed, &format!("Failed to run pre stage: {why}"));
            node.lock().bootstrap = None;
            node.until(|node| node.bootstrap_request().is_some()).await;
            return None;
        }
    };
    let (cluster, member) = EtcdCluster::found(&node.site, &node.hostname(), node.address()?, store);
    let data = EtcdData { cluster, member };
    node.disk.change(|installed| {
        installed.ephemeral.etcd = Some(data.clone());
        installed.ephemeral.snapshot = None;
    });
    Some(data)
}

fn recover(node: &Node, request: BootstrapRequest) -> Result<Store, String> {
    let uploaded = node.disk.read().and_then(|installed| installed.ephemeral.snapshot);
    let bytes = uploaded.ok_or("error verifying snapshot: stat /var/lib/etcd.snapshot: no such file or directory")?;
    snapshot::read(&bytes, request.skip_hash_check).map_err(|why| format!("error verifying snapshot: {why}"))
}

/// Asks a running member to add this node. `None` while no cluster is in sight.
fn join(node: &Arc<Node>) -> Result<Option<EtcdData>, EtcdError> {
    let (Some(config), Some(own), Some(room)) = (node.config(), node.address(), node.room()) else {
        return Ok(None);
    };
    // Without discovery members are known only from the Kubernetes API at the cluster's endpoint, which names all that serve.
    let answered = endpoint_answers(node, &config, &room);
    for other in room.control_planes() {
        let (Some(theirs), Some(address), Some((cluster, member))) = (other.config(), other.address(), other.etcd()) else {
            continue;
        };
        let by_discovery = config.discovery_enabled() && theirs.discovery_enabled();
        let by_endpoint = answered && other.serves_kubernetes();
        if other.node_id == node.node_id
            || !(by_discovery || by_endpoint)
            || !node.site.reaches(own, address)
            || !other.is_up("etcd")
        {
            continue;
        }
        let by_address = node.image.version >= BY_ADDRESS;
        let id = cluster.add_learner(member, &node.hostname(), own, by_address)?;
        let data = EtcdData { cluster, member: id };
        node.disk.change(|installed| installed.ephemeral.etcd = Some(data.clone()));
        return Ok(Some(data));
    }
    Ok(None)
}

/// Whether an API server answers this node at the cluster's endpoint.
fn endpoint_answers(node: &Node, config: &Config, room: &Room) -> bool {
    let (Some(host), Some(own)) = (config.endpoint_host(), node.address()) else {
        return false;
    };
    room.control_planes().iter().any(|other| {
        let holds = other.addresses().iter().any(|at| at.to_string() == host);
        holds && other.serves_kubernetes() && other.address().is_some_and(|address| node.site.reaches(own, address))
    })
}

enum Stopped {
    Left,
    Removed,
}

async fn serve(node: &Arc<Node>, data: &EtcdData) -> Stopped {
    let (cluster, member) = (&data.cluster, data.member);
    let Some(own) = cluster.member(member) else {
        return Stopped::Removed;
    };
    node.set_service("etcd", ServiceState::Preparing, "Creating service runner");
    if own.learner {
        node.pass(node.site.timing.etcd_learner_starts).await;
    }
    node.set_service(
        "etcd",
        ServiceState::Running,
        "Started task etcd (PID 327) for container etcd",
    );
    let Some(address) = node.address() else { return Stopped::Left };
    cluster.start(member, &node.hostname(), address);
    node.lock().etcd = EtcdState::Running {
        cluster: Arc::clone(cluster),
        member,
    };
    node.beat();
    promote(node, cluster, member).await;
    node.pass(node.site.timing.etcd_healthy).await;
    watch_health(node, cluster, member).await
}

/// Attempts come in steps. etcd refuses a learner that has not caught up with the leader.
async fn promote(node: &Arc<Node>, cluster: &Arc<EtcdCluster>, member: u64) {
    let is_learner = || cluster.member(member).is_some_and(|own| own.learner);
    if !is_learner() {
        return;
    }
    let timing = &node.site.timing;
    let share = node.entropy.fork(&format!("learner {member}")).rng().random_range(0.0..=1.0);
    let sync = timing.etcd_learner_sync + timing.etcd_learner_sync_spread.mul_f64(share);
    let in_sync = Instant::now() + node.site.pace.scale(sync);
    node.pass(timing.etcd_promotion).await;
    while is_learner() {
        let allowed = Instant::now() >= in_sync && !node.faults().no_promotion;
        if allowed && cluster.promote(member).is_ok() {
            return;
        }
        node.check_service("etcd", Some("etcdserver: rpc not supported for learner"));
        node.pass(timing.etcd_promotion_retry).await;
    }
}

async fn watch_health(node: &Arc<Node>, cluster: &Arc<EtcdCluster>, member: u64) -> Stopped {
    let mut changed = cluster.watch();
    loop {
        changed.mark_unchanged();
        if cluster.member(member).is_none() {
            let left = matches!(node.etcd_state(), EtcdState::Left);
            return if left { Stopped::Left } else { Stopped::Removed };
        }
        let healthy = cluster.leader_of(member).is_some();
        let shown = node.is_up("etcd");
        if healthy && !shown {
            node.resources
                .put(&resources::ETCD_MEMBER, "local", resources::etcd_member(member));
            node.check_service("etcd", None);
            node.announce();
        }
        let settle = match (healthy, shown) {
            (false, true) => Some(UNHEALTHY_AFTER),
            (true, false) => Some(Duration::ZERO),
            (false, false) | (true, true) => None,
        };
        let moved = changed.changed();
        match settle {
            Some(after) if after > Duration::ZERO => {
                if tokio::time::timeout(node.site.pace.scale(after), moved).await.is_err() {
                    node.check_service("etcd", Some("context deadline exceeded"));
                    node.announce();
                }
            }
            Some(_) => {}
            None => {
                if moved.await.is_err() {
                    std::future::pending::<()>().await;
                }
                // A leader that is back is noticed at the next check.
                if !shown && cluster.leader_of(member).is_some() {
                    node.pass(HEALTHY_AFTER).await;
                }
            }
        }
    }
}

/// etcd finds itself removed, exits, and is started again, every five seconds.
async fn restart_for_ever(node: &Arc<Node>) {
    node.lock().etcd = EtcdState::Removed;
    node.resources.remove(&resources::ETCD_MEMBER, "local");
    node.announce();
    loop {
        let why = "Runner Containerd(etcd) exited without error, going to restart it";
        node.set_service("etcd", ServiceState::Waiting, why);
        node.pass(RESTART).await;
        node.set_service(
            "etcd",
            ServiceState::Running,
            "Started task etcd (PID 402) for container etcd",
        );
    }
}
