//! A datastore: its members, its objects, and what new servers are given.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::Digest;
use tokio::time::Instant;

use super::Distro;
use super::tls::Authorities;
use crate::kube::store::Store;
use crate::talos::etcd::{EtcdCluster, Member};
use crate::talos::{Site, etcd};

pub(crate) const ELECTION: Duration = Duration::from_secs(5);

pub(crate) struct Cluster {
    pub distro: Distro,
    pub etcd: Arc<EtcdCluster>,
    /// k3s without `cluster-init` and `server`.
    pub is_sqlite: bool,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// Authorities and passwords; absent until the first server has saved them.
    pub bootstrap: Option<Bootstrap>,
    /// Learners whose log has caught up, and when each was added.
    pub caught_up: BTreeSet<u64>,
    pub added: BTreeMap<u64, Instant>,
    /// The member that holds the leases of the controllers.
    pub lease_holder: Option<u64>,
    pub is_watched: bool,
    /// The database file of the first server can be opened.
    pub is_readable: bool,
    pub deployed: super::deploy::Deployed,
    pub vip: super::vip::Election,
    /// Kubelets by Node name.
    pub kubelets: BTreeMap<String, super::node::Kubelet>,
}

#[derive(Clone, Debug)]
pub(crate) struct Bootstrap {
    pub authorities: Authorities,
    pub server_password: String,
    pub agent_password: String,
}

/// `server/db/etcd`: which member of which cluster this machine is.
#[derive(Clone)]
pub(crate) struct EtcdData {
    pub cluster: Arc<Cluster>,
    pub member: u64,
}

impl Cluster {
    pub fn found(site: &Arc<Site>, distro: Distro, member: &str, address: IpAddr, is_sqlite: bool) -> (Arc<Self>, u64) {
        let (etcd, id) = EtcdCluster::found(site, member, address, Store::seeded(format!("{} ", site.next_serial())));
        etcd.set_election(ELECTION);
        let state = Mutex::default();
        let cluster = Arc::new(Self {
            distro,
            etcd,
            is_sqlite,
            state,
        });
        site.cloud
            .clusters
            .0
            .lock()
            .expect("plain data")
            .push(Arc::downgrade(&cluster));
        (cluster, id)
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("plain data")
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.etcd.store
    }

    /// `/db/info`, as the etcd of `member` answers.
    pub fn members(&self, member: u64) -> Result<Value, String> {
        let Some(own) = self.etcd.member(member) else {
            return Err("context deadline exceeded".to_owned());
        };
        if own.learner {
            return Err("etcdserver: rpc not supported for learner".to_owned());
        }
        if self.etcd.leader_of(member).is_none() {
            return Err("context deadline exceeded".to_owned());
        }
        let members: Vec<Value> = self.etcd.members().iter().map(shown).collect();
        Ok(json!({"members": members}))
    }

    /// What the etcd leader does every 15 s: promote who has caught up, whether it lives or not, and evict who makes no progress.
    pub fn tick(&self) {
        let leader = self
            .etcd
            .members()
            .into_iter()
            .find(|member| self.etcd.leader_of(member.id) == Some(member.id));
        let Some(leader) = leader else { return };
        for learner in self.etcd.members().into_iter().filter(|member| member.learner) {
            let (ready, added) = {
                let state = self.lock();
                (state.caught_up.contains(&learner.id), state.added.get(&learner.id).copied())
            };
            if ready {
                let _ = self.etcd.promote_by(leader.id, learner.id);
            } else if added.is_some_and(|added| added.elapsed() > Duration::from_secs(300)) {
                let _ = self.etcd.remove(leader.id, learner.id);
            }
        }
    }
}

fn shown(member: &Member) -> Value {
    let url = format!("https://{}:2380", member.address);
    // The number follows from the peer URL: a cluster built anew on the same address has the same.
    let digest = sha2::Sha256::digest(&url);
    let id = u64::from_be_bytes(digest[..8].try_into().unwrap_or_default());
    let mut object = json!({"ID": id, "name": member.name, "peerURLs": [url]});
    if !member.name.is_empty() {
        object["clientURLs"] = json!([format!("https://{}:2379", member.address)]);
    }
    if member.learner {
        object["isLearner"] = json!(true);
    }
    object
}

/// All datastores of a world.
#[derive(Default)]
pub(crate) struct Clusters(pub Mutex<Vec<std::sync::Weak<Cluster>>>);

impl Clusters {
    pub fn all(&self) -> Vec<Arc<Cluster>> {
        self.0
            .lock()
            .expect("plain data")
            .iter()
            .filter_map(std::sync::Weak::upgrade)
            .collect()
    }
}

/// Runs for as long as the cluster exists.
pub(crate) fn spawn_tick(cluster: &Arc<Cluster>) {
    let weak = Arc::downgrade(cluster);
    etcd::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(15)).await;
            match weak.upgrade() {
                Some(cluster) => cluster.tick(),
                None => return,
            }
        }
    });
}
