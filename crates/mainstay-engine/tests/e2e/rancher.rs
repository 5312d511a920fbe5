//! RKE2 and k3s from one file to Ready nodes, with the planner that also makes Talos clusters.

use mainstay_sim::WorldSpec;
use rancher_config::Distro;

use crate::stage::{Stage, on_stage, settled};

const RKE2: &str = "\
name: lab
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }
rke2: { version: 1.35, image: ubuntu-24.04 }
pools:
  control-plane: { count: 1, addresses: 10.0.0.11+, vmids: 2000+ }
  worker: { count: 1, addresses: 10.0.0.21+, vmids: 3000+ }
";

const K3S: &str = "\
name: lab
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }
k3s: { version: 1.36, image: debian-13 }
pools:
  control-plane: { count: 3, addresses: 10.0.0.11+, vmids: 2000+ }
  worker: { count: 1, addresses: 10.0.0.21+, vmids: 3000+ }
";

#[test]
fn one_rke2_server_and_one_agent_become_ready_and_planning_again_is_empty() {
    on_stage(301, WorldSpec::default(), async |stage| {
        let stage = &stage.with_rancher(Distro::Rke2);
        let report = settled(stage, stage.up(RKE2).await);
        let nodes = report.nodes.expect("kubernetes answers").nodes;
        assert!(nodes.len() == 2 && nodes.values().all(|node| node.ready), "{nodes:?}");
        assert_eq!(stage.world.etcd_foundings(), 1);
        assert_eq!(stage.plan(RKE2).await.render(), "nothing to do");
    });
}

#[test]
fn an_agent_that_is_added_joins_a_running_cluster() {
    on_stage(302, WorldSpec::default(), async |stage| {
        let stage = &stage.with_rancher(Distro::Rke2);
        settled(stage, stage.up(RKE2).await);
        let more = RKE2.replace("worker: { count: 1", "worker: { count: 2");
        let nodes = settled(stage, stage.up(&more).await).nodes.expect("kubernetes answers").nodes;
        assert!(nodes.len() == 3 && nodes.values().all(|node| node.ready), "{nodes:?}");
    });
}

#[test]
fn three_k3s_servers_join_one_by_one_and_down_leaves_nothing() {
    on_stage(303, WorldSpec::default(), async |stage| {
        let stage = &stage.with_rancher(Distro::K3s);
        let before = stage.world.datacenter().inspect();
        let report = settled(stage, stage.up(K3S).await);
        let nodes = report.nodes.expect("kubernetes answers").nodes;
        assert!(nodes.len() == 4 && nodes.values().all(|node| node.ready), "{nodes:?}");
        let members = stage.observed(K3S).await.etcd.yes().cloned().expect("members");
        assert!(
            members.len() == 3 && members.iter().all(|member| member.votes() && member.healthy),
            "{members:?}"
        );
        assert_eq!(stage.world.etcd_foundings(), 1);
        assert_eq!(stage.plan(K3S).await.render(), "nothing to do");
        settled(stage, stage.down(K3S).await);
        assert_eq!(stage.world.datacenter().inspect().vms.len(), before.vms.len());
    });
}

/// Servers and agents come and go, for both distributions, and etcd is the same all the time.
async fn grows_and_shrinks(stage: &Stage, small: &str) {
    settled(stage, stage.up(small).await);
    let large = small
        .replace("control-plane: { count: 1", "control-plane: { count: 3")
        .replace("worker: { count: 1", "worker: { count: 2");
    for (file, servers, nodes) in [(large.as_str(), 3, 5), (small, 1, 2)] {
        let seen = settled(stage, stage.up(file).await).nodes.expect("kubernetes answers").nodes;
        assert!(seen.len() == nodes && seen.values().all(|node| node.ready), "{seen:?}");
        let members = stage.observed(file).await.etcd.yes().cloned().expect("members");
        let all_vote = members.iter().all(|member| member.votes() && member.healthy);
        assert!(members.len() == servers && all_vote, "{members:?}");
        assert_eq!(stage.plan(file).await.render(), "nothing to do");
    }
    assert_eq!(stage.world.etcd_foundings(), 1);
    settled(stage, stage.down(small).await);
}

#[test]
fn an_rke2_cluster_grows_to_three_servers_and_shrinks_to_one() {
    on_stage(304, WorldSpec::default(), async |stage| {
        grows_and_shrinks(&stage.with_rancher(Distro::Rke2), RKE2).await;
    });
}

#[test]
fn a_k3s_cluster_grows_to_three_servers_and_shrinks_to_one() {
    on_stage(305, WorldSpec::default(), async |stage| {
        let small = K3S.replace("count: 3", "count: 1");
        grows_and_shrinks(&stage.with_rancher(Distro::K3s), &small).await;
    });
}
