//! The shared address: control planes elect its owner through etcd.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::etcd::EtcdCluster;
use super::kubelet;
use super::node::Node;

/// How long an owner keeps the address when etcd has no leader any more.
const KEPT_WITHOUT_QUORUM: Duration = Duration::from_secs(52);

pub(crate) async fn contend(node: Arc<Node>, vip: IpAddr, link: String) {
    loop {
        node.until(|node| node.is_up("etcd") && node.etcd().is_some() && !node.is_ending())
            .await;
        let Some((cluster, member)) = node.etcd() else { continue };
        win(&cluster, vip, member).await;
        if node.etcd().is_none_or(|(_, own)| own != member) {
            continue;
        }
        take(&node, vip, &link).await;
        hold(&node, &cluster, member).await;
        drop_address(&node, vip);
        // With a leader in sight the address was given up in good order, and another may take it at once.
        if cluster.leader_of(member).is_some() {
            cluster.release(vip, member);
        }
    }
}

async fn win(cluster: &Arc<EtcdCluster>, vip: IpAddr, member: u64) {
    let mut changed = cluster.watch();
    loop {
        changed.mark_unchanged();
        match cluster.acquire(vip, member) {
            Ok(()) => return,
            Err(Some(expires)) => {
                let _ = tokio::time::timeout_at(expires, changed.changed()).await;
            }
            Err(None) => {
                if changed.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

async fn take(node: &Arc<Node>, vip: IpAddr, link: &str) {
    {
        let mut state = node.lock();
        state.vips.insert(vip, link.to_owned());
        state.ever_held.insert(vip);
    }
    node.site.register(node, vip);
    node.show_network();
    node.api.serve_address(node, vip).await;
    kubelet::serve_address(node, vip).await;
    node.announce();
}

/// Holds it until the own etcd is gone, or etcd has been without a leader for too long.
async fn hold(node: &Arc<Node>, cluster: &Arc<EtcdCluster>, member: u64) {
    let mut changed = cluster.watch();
    loop {
        changed.mark_unchanged();
        let own = node.etcd().is_some_and(|(_, own)| own == member);
        if !own || node.is_ending() {
            return;
        }
        if cluster.leader_of(member).is_none() {
            let wait = node.site.pace.scale(KEPT_WITHOUT_QUORUM);
            let back = async {
                loop {
                    if cluster.leader_of(member).is_some() || changed.changed().await.is_err() {
                        return;
                    }
                }
            };
            if tokio::time::timeout(wait, back).await.is_err() {
                return;
            }
            continue;
        }
        tokio::select! {
            biased;
            () = node.until(|node| node.is_ending() || node.etcd().is_none()) => {}
            gone = changed.changed() => if gone.is_err() { return },
        }
    }
}

fn drop_address(node: &Arc<Node>, vip: IpAddr) {
    node.lock().vips.remove(&vip);
    node.site.forget_address(vip);
    kubelet::forget_address(node, vip);
    node.api.forget_address(vip);
    node.show_network();
    node.beat();
}
