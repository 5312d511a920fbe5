//! What kubelets tell their cluster, and what it makes of their silence.
//!
//! A kubelet renews the Lease of its Node every ten seconds. Renewals are not simulated one by one: one look around a cluster notes which kubelets could
//! have renewed since the last look, and a client that reads leases finds them written as of that moment.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;

use super::etcd::{self, EtcdCluster};
use super::node::Node;
use super::objects;
use super::resources;
use super::site::{Room, Site};
use crate::kube::kinds;
use crate::kube::store::Key;

const RENEWED_EVERY: Duration = Duration::from_secs(10);
/// The node controller's own period.
const LOOKED_EVERY: Duration = Duration::from_secs(5);

/// The kubelets of a cluster, by the names of their Nodes.
#[derive(Default)]
pub(crate) struct Heartbeats(Mutex<State>);

#[derive(Default)]
struct State {
    kubelets: BTreeMap<String, Kubelet>,
    /// Since when an API server has been there without a break: silence from before that does not count against a kubelet.
    served_since: Option<Timestamp>,
    /// The looks around are on their way.
    looking: bool,
}

struct Kubelet {
    boot: String,
    registered: Timestamp,
    /// When it was last known to reach an API server.
    seen: Timestamp,
    reaches: bool,
    /// Its Node was called unreachable.
    lost: bool,
}

impl Kubelet {
    fn arrived(boot: &str, now: Timestamp) -> Self {
        Self {
            boot: boot.to_owned(),
            registered: now,
            seen: now,
            reaches: true,
            lost: false,
        }
    }

    /// The last of its renewals.
    fn renewed(&self, every: Duration) -> Timestamp {
        let lived = elapsed(self.registered, self.seen);
        let renewals = u32::try_from(lived.as_nanos() / every.as_nanos().max(1)).unwrap_or(u32::MAX);
        self.registered.checked_add(every * renewals).unwrap_or(self.seen)
    }
}

fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    to.duration_since(from).try_into().unwrap_or_default()
}

impl Heartbeats {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("plain data")
    }

    pub fn arrived(&self, node: &Node) {
        let kubelet = Kubelet::arrived(&node.boot_id, node.site.wall.now());
        self.lock().kubelets.insert(node.hostname(), kubelet);
    }

    /// A kubelet stopped; until now it renewed its lease.
    pub fn stopped(&self, node: &Node) {
        if let Some(kubelet) = self.lock().kubelets.get_mut(&node.hostname())
            && kubelet.boot == node.boot_id
            && std::mem::take(&mut kubelet.reaches)
        {
            kubelet.seen = node.site.wall.now();
        }
    }
}

/// Looks after the nodes of a cluster for as long as an API server runs there.
pub(crate) fn watch_over(site: &Arc<Site>, cluster: &Arc<EtcdCluster>, room: &Arc<Room>) {
    if std::mem::replace(&mut cluster.heartbeats.lock().looking, true) {
        return;
    }
    let (site, cluster, room) = (Arc::downgrade(site), Arc::downgrade(cluster), Arc::downgrade(room));
    etcd::spawn(async move {
        while let (Some(site), Some(cluster), Some(room)) = (site.upgrade(), cluster.upgrade(), room.upgrade()) {
            if api_servers(&cluster, &room).next().is_none() {
                let mut state = cluster.heartbeats.lock();
                (state.looking, state.served_since) = (false, None);
                return;
            }
            look(&site, &cluster, &room);
            let pause = site.pace.scale(LOOKED_EVERY);
            drop((site, cluster, room));
            tokio::time::sleep(pause).await;
        }
    });
}

/// Every API server on this cluster's etcd: its address, and whether it sees a leader.
fn api_servers(cluster: &Arc<EtcdCluster>, room: &Room) -> impl Iterator<Item = (IpAddr, bool)> {
    let serving = room.control_planes().into_iter().filter(|node| node.serves_kubernetes());
    serving.filter_map(move |node| {
        let (own, member) = node.etcd().filter(|(own, _)| Arc::ptr_eq(own, cluster))?;
        Some((node.address()?, own.leader_of(member).is_some()))
    })
}

/// Whether an API server of this cluster works.
pub(crate) fn is_served(cluster: &Arc<EtcdCluster>, room: &Room) -> bool {
    api_servers(cluster, room).any(|(_, usable)| usable)
}

/// Notes who reaches an API server, and judges those who have not for too long.
pub(crate) fn look(site: &Site, cluster: &Arc<EtcdCluster>, room: &Room) {
    let servers: Vec<IpAddr> = api_servers(cluster, room)
        .filter_map(|(at, usable)| usable.then_some(at))
        .collect();
    let now = site.wall.now();
    let mut state = cluster.heartbeats.lock();
    state.kubelets.values_mut().for_each(|kubelet| kubelet.reaches = false);
    if servers.is_empty() {
        state.served_since = None;
        return;
    }
    let served_since = *state.served_since.get_or_insert(now);
    for node in room
        .nodes()
        .iter()
        .filter(|node| node.is_registered() && node.is_up("kubelet"))
    {
        let reaches = |at: IpAddr| servers.iter().any(|server| site.reaches(at, *server));
        if node.address().is_some_and(reaches) {
            hear(&mut state, cluster, node, now);
        }
    }
    let grace = site.pace.scale(site.timing.node_grace);
    let every = site.pace.scale(RENEWED_EVERY);
    for (name, kubelet) in state
        .kubelets
        .iter_mut()
        .filter(|(_, kubelet)| !kubelet.reaches && !kubelet.lost)
    {
        if elapsed(kubelet.renewed(every).max(served_since), now) > grace {
            kubelet.lost = true;
            objects::set_unknown(&cluster.store, name, &kubelet.boot, &objects::now(site.wall));
        }
    }
    let gone = |name: &str| cluster.store.get(&Key::new(&kinds::NODES, "", name)).is_none();
    state.kubelets.retain(|name, kubelet| {
        let kept = kubelet.reaches || !gone(name);
        if !kept {
            objects::delete_lease(&cluster.store, name);
        }
        kept
    });
}

/// A kubelet reaches the API. One that had been given up says how its node is.
fn hear(state: &mut State, cluster: &EtcdCluster, node: &Node, now: Timestamp) {
    let name = node.hostname();
    let arrived = || Kubelet::arrived(&node.boot_id, now);
    let kubelet = state.kubelets.entry(name.clone()).or_insert_with(arrived);
    if kubelet.boot != node.boot_id {
        *kubelet = arrived();
    }
    kubelet.seen = now;
    kubelet.reaches = true;
    if std::mem::take(&mut kubelet.lost)
        && let Some(config) = node.config()
    {
        objects::set_ready(&cluster.store, &name, config.uses_flannel(), &objects::now(node.site.wall));
    }
}

/// Writes the leases as their kubelets have renewed them until now.
pub(crate) fn write_leases(site: &Site, cluster: &Arc<EtcdCluster>, room: &Room) {
    look(site, cluster, room);
    let every = site.pace.scale(RENEWED_EVERY);
    for (name, kubelet) in &cluster.heartbeats.lock().kubelets {
        objects::renew_lease(&cluster.store, name, kubelet.renewed(every), &objects::now(site.wall));
    }
    // Both crash until the node's own balancer has an API server, and lead from then on.
    let balanced = |node: &Arc<Node>| node.resources.get(&resources::KUBEPRISM, "k8s-loadbalancer").is_some();
    let hears = |node: &Arc<Node>| {
        cluster
            .heartbeats
            .lock()
            .kubelets
            .get(&node.hostname())
            .is_some_and(|kubelet| kubelet.reaches)
    };
    if let Some(leader) = room.control_planes().into_iter().find(|node| balanced(node) && hears(node)) {
        for component in ["kube-controller-manager", "kube-scheduler"] {
            objects::renew_leader(
                &cluster.store,
                component,
                &leader.hostname(),
                site.wall.now(),
                &objects::now(site.wall),
            );
        }
    }
}
