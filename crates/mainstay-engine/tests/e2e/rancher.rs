//! RKE2 and k3s from one file to Ready nodes, with the planner that also makes Talos clusters.

use std::time::Duration;

use mainstay_engine::FileStore;
use mainstay_plan::{Guest, Step};
use mainstay_sim::{WebFaults, WorldSpec};
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

const LOCK: &str = "cluster.lock.yaml";

/// Everything that is downloaded is pinned before it is: later runs ask no publisher, also where the newest is another one by then.
#[test]
fn what_is_downloaded_is_pinned_and_asked_for_once() {
    on_stage(306, WorldSpec::default(), async |stage| {
        let stage = &stage.with_rancher(Distro::Rke2);
        assert!(stage.plan(RKE2).await.steps.len() > 10);
        assert_eq!(stage.folder.read(LOCK.as_ref()).expect("reads"), None, "a plan pins nothing");
        settled(stage, stage.up(RKE2).await);
        let lock = stage.folder.read(LOCK.as_ref()).expect("reads").expect("a lock");
        let text = String::from_utf8(lock.clone()).expect("text");
        for part in [
            "ubuntu-24.04",
            "https://cloud-images.ubuntu.com/noble/20",
            "sha256:",
            "v1.35.",
            "rke2.linux-amd64.tar.gz",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        stage.world.set_web_faults(WebFaults {
            outage: ["cloud-images.ubuntu.com", "github.com"].map(str::to_owned).into(),
            ..WebFaults::default()
        });
        assert_eq!(stage.plan(RKE2).await.render(), "nothing to do");
        // A lost lock: the mark has the version and a storage has the image, so the same is pinned again.
        stage.world.set_web_faults(WebFaults::default());
        stage.folder.remove(LOCK.as_ref()).expect("removed");
        let more = RKE2.replace("worker: { count: 1", "worker: { count: 2");
        settled(stage, stage.up(&more).await);
        assert_eq!(stage.folder.read(LOCK.as_ref()).expect("reads"), Some(lock));
    });
}

/// A pin that is not what the publisher has is a wrong download, and the machine says so.
#[test]
fn a_pinned_checksum_is_what_counts() {
    on_stage(307, WorldSpec::default(), async |stage| {
        let stage = &stage.with_rancher(Distro::Rke2);
        settled(stage, stage.up(RKE2).await);
        settled(stage, stage.down(RKE2).await);
        let lock = stage.folder.read(LOCK.as_ref()).expect("reads").expect("a lock");
        let text = String::from_utf8(lock).expect("text");
        let at = text.find("tar.gz\": \"sha256:").expect("a digest") + "tar.gz\": \"sha256:".len();
        let wrong = format!("{}{}{}", &text[..at], "0".repeat(64), &text[at + 64..]);
        stage.folder.write(LOCK.as_ref(), wrong.as_bytes()).expect("written");
        let error = stage.up(RKE2).await.expect_err("a wrong checksum");
        assert!(format!("{error:?}").contains("checksum"), "{error:?}");
    });
}

/// An edit of the file that one unit must restart for: one server after the other, and etcd lives all the time.
#[test]
fn a_changed_config_restarts_servers_one_by_one_and_agents_after_them() {
    on_stage(308, WorldSpec::default(), async |stage| {
        let stage = &stage.with_rancher(Distro::K3s);
        settled(stage, stage.up(K3S).await);
        let changed = K3S.replace(
            "image: debian-13",
            "image: debian-13, config: { kubelet-arg: [max-pods=200] }",
        );
        let plan = stage.plan(&changed).await;
        let restarts: Vec<String> = plan
            .steps
            .iter()
            .filter(|step| step.action.name() == "guest.reconfigure")
            .map(|step| step.subject.to_string())
            .collect();
        assert_eq!(restarts.len(), 4, "{}", plan.trace());
        settled(stage, stage.up(&changed).await);
        assert_eq!(stage.plan(&changed).await.render(), "nothing to do");
        assert_eq!(stage.world.etcd_foundings(), 1);
    });
}

/// A cluster that is founded is founded, whatever happens to the power meanwhile.
#[test]
fn a_founder_that_is_killed_in_its_first_seconds_is_founded_again_by_the_same_run() {
    let mut recovered = 0;
    for seconds in 1..=5 {
        on_stage(320 + seconds, WorldSpec::default(), async |stage| {
            let stage = &stage.with_rancher(Distro::K3s);
            let small = K3S.replace("count: 3", "count: 1");
            let kill = async {
                stage.began(|step| step.action.name() == "etcd.bootstrap").await;
                tokio::time::sleep(Duration::from_millis(1200 * seconds)).await;
                stage.world.datacenter().lab().kill_vm(2000);
                std::future::pending::<()>().await;
            };
            let outcome = tokio::select! {
                outcome = stage.up(&small) => outcome,
                () = kill => unreachable!("it never ends"),
            };
            // A machine that was switched off is started by the next run, where this one did not see it.
            let report = match outcome {
                Ok(report) => report,
                Err(_) => settled(stage, stage.up(&small).await),
            };
            let nodes = report.nodes.expect("kubernetes answers").nodes;
            assert!(nodes.len() == 2 && nodes.values().all(|node| node.ready), "{nodes:?}");
            assert_eq!(stage.plan(&small).await.render(), "nothing to do");
            recovered += usize::from(stage.story().contains("nothing had joined it"));
        });
    }
    assert!(recovered > 0, "no kill met the first seconds");
}

/// One server and one agent: small enough to end it everywhere.
const SMALL: &str = "\
name: lab
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }
k3s: { version: 1.36, image: debian-13 }
pools:
  control-plane: { count: 1, addresses: 10.0.0.11+, vmids: 2000+ }
  worker: { count: 1, addresses: 10.0.0.21+, vmids: 3000+ }
";

/// What must hold when a cluster is settled, whatever happened before.
async fn is_whole(stage: &Stage, file: &str, when: &str) {
    let report = match stage.up(file).await {
        Ok(report) => report,
        // Some runs end with a failure that says what to wait for, such as a VM that was switched off under a step.
        Err(_) => settled(stage, stage.up(file).await),
    };
    let nodes = report.nodes.expect("kubernetes answers").nodes;
    assert!(nodes.values().all(|node| node.ready), "{when}: {nodes:?}");
    assert_eq!(stage.plan(file).await.render(), "nothing to do", "{when}");
    // Data that never were ready may be founded again; two clusters at a time are never.
    let members = stage.observed(file).await.etcd.yes().cloned().expect("members");
    assert_eq!(members.len(), 1, "{when}: {members:?}");
    assert_eq!(
        stage
            .world
            .datacenter()
            .inspect()
            .vms
            .values()
            .filter(|vm| vm.config.contains_key("description"))
            .count(),
        2
    );
}

fn told(stage: &Stage) -> usize {
    stage.told.lock().expect("reads").len()
}

/// How many events a clean run tells.
fn clean_run() -> usize {
    on_stage(330, WorldSpec::default(), async |stage| {
        let stage = &stage.with_rancher(Distro::K3s);
        settled(stage, stage.up(SMALL).await);
        told(stage)
    })
}

async fn killed_at(stage: &Stage, nth: usize) {
    let heard = async {
        while told(stage) < nth {
            stage.beat.notified().await;
        }
    };
    tokio::select! {
        biased;
        () = heard => {}
        outcome = stage.up(SMALL) => panic!("there is no event {nth}: {outcome:?}"),
    }
}

/// Every step tells that it begins, what it waits for and that it is done. Every run here is killed at another of these words; the
/// offset moves with the number of words, so that all are met in the long run.
#[test]
fn an_up_of_k3s_that_was_killed_anywhere_is_finished_by_the_next() {
    let words = clean_run();
    assert!(words >= 40, "{words}");
    for nth in (1..=words).step_by(5) {
        on_stage(330, WorldSpec::default(), async |stage| {
            let stage = &stage.with_rancher(Distro::K3s);
            killed_at(stage, nth).await;
            is_whole(stage, SMALL, &format!("killed at word {nth}")).await;
        });
    }
}

/// The power goes everywhere, and comes back, while the operator's machine is gone too.
#[test]
fn a_power_cut_of_every_machine_at_any_step_founds_no_second_cluster() {
    let words = clean_run();
    for nth in (3..=words).step_by(9) {
        on_stage(330, WorldSpec::default(), async |stage| {
            let stage = &stage.with_rancher(Distro::K3s);
            killed_at(stage, nth).await;
            let lab = stage.world.datacenter().lab();
            for vmid in stage.world.datacenter().inspect().vms.keys().filter(|vmid| **vmid >= 2000) {
                lab.kill_vm(*vmid);
            }
            is_whole(stage, SMALL, &format!("no power at word {nth}")).await;
        });
    }
}

/// The holder of the virtual address is told to give it away first, and is the last to restart.
#[test]
fn the_server_that_holds_the_virtual_address_restarts_last_and_without_it() {
    on_stage(309, WorldSpec::default(), async |stage| {
        let stage = &stage.with_rancher(Distro::K3s);
        settled(stage, stage.up(K3S).await);
        let holder = async || {
            let observed = stage.observed(K3S).await;
            let holds = |guest: &Guest| guest.running().is_some_and(|guest| guest.holds_vip);
            observed
                .guests
                .iter()
                .find(|(_, guest)| holds(guest))
                .map(|(name, _)| name.clone())
        };
        // The first holder is elected some seconds after its Node is ready.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let first = holder().await.expect("a server holds it");
        let changed = K3S.replace(
            "image: debian-13",
            "image: debian-13, config: { kubelet-arg: [max-pods=200] }",
        );
        let plan = stage.plan(&changed).await;
        let is_restart =
            |step: &&Step| step.action.name() == "guest.reconfigure" && step.subject.to_string().contains("control-plane");
        let last = plan.steps.iter().rfind(is_restart).expect("restarts").subject.to_string();
        assert_eq!(last, first, "{}", plan.trace());
        settled(stage, stage.up(&changed).await);
        assert_ne!(holder().await, Some(first), "it moved once");
        // The label that kept it away is gone.
        assert_eq!(stage.plan(&changed).await.render(), "nothing to do");
    });
}
