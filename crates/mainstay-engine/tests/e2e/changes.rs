//! A cluster that is there, and a file that changes.

use std::time::Duration;

use crate::stage::{QUICK, Stage, THREE_AND_TWO, on_stage, settled};
use mainstay_engine::{Event, RunError, StepEvent};
use mainstay_sim::WorldSpec;

/// One control plane and one worker: quick to build.
const ONE_AND_ONE: &str = "\
name: small
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }
talos: { version: 1.13.9 }
pools:
  control-plane: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+ }
  worker: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.21+, vmids: 3000+ }
";

fn edited(from: &str, to: &str) -> String {
    let text = ONE_AND_ONE.replace(from, to);
    assert_ne!(text, ONE_AND_ONE, "`{from}` is in the file");
    text
}

fn names(stage: &Stage) -> Vec<String> {
    let inventory = stage.world.datacenter().inspect();
    inventory
        .vms
        .values()
        .filter_map(|vm| vm.config.get("name").cloned())
        .filter(|name| name.starts_with("small-"))
        .collect()
}

#[test]
fn a_worker_is_added_and_taken_away_again_with_its_node() {
    on_stage(11, WorldSpec::default(), async |stage| {
        let two = edited("worker: { count: 1", "worker: { count: 2");
        settled(stage, stage.up(ONE_AND_ONE).await);
        let report = settled(stage, stage.up(&two).await);
        assert_eq!(report.nodes.expect("answers").nodes.len(), 3);
        let report = settled(stage, stage.up(ONE_AND_ONE).await);
        let nodes = report.nodes.expect("answers").nodes;
        assert_eq!(nodes.keys().collect::<Vec<_>>(), ["small-control-plane-1", "small-worker-1"]);
        assert_eq!(names(stage), ["small-control-plane-1", "small-worker-1"]);
        assert_eq!(stage.plan(ONE_AND_ONE).await.render(), "nothing to do");
    });
}

#[test]
fn one_control_plane_becomes_three_and_one_again() {
    on_stage(12, WorldSpec::default(), async |stage| {
        let three = edited("control-plane: { count: 1", "control-plane: { count: 3");
        settled(stage, stage.up(ONE_AND_ONE).await);
        let report = settled(stage, stage.up(&three).await);
        assert!(report.nodes.expect("answers").nodes.values().all(|node| node.ready));
        settled(stage, stage.up(ONE_AND_ONE).await);
        assert_eq!(names(stage), ["small-control-plane-1", "small-worker-1"]);
        assert_eq!(stage.plan(ONE_AND_ONE).await.render(), "nothing to do");
    });
}

#[test]
fn more_memory_and_a_larger_disk_reach_the_machine() {
    on_stage(13, WorldSpec::default(), async |stage| {
        let larger = edited(
            "worker: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB",
            "worker: { count: 1, cpu: 4, memory: 6GiB, disk: 30GiB",
        );
        settled(stage, stage.up(ONE_AND_ONE).await);
        settled(stage, stage.up(&larger).await);
        let inventory = stage.world.datacenter().inspect();
        let worker = &inventory.vms[&3000];
        assert_eq!(
            (worker.config["memory"].as_str(), worker.config["cores"].as_str()),
            ("6144", "4")
        );
        assert!(worker.config["scsi0"].contains("size=30G"), "{}", worker.config["scsi0"]);
        assert!(worker.pending.is_empty(), "{:?}", worker.pending);
        assert_eq!(stage.plan(&larger).await.render(), "nothing to do");
    });
}

#[test]
fn a_disk_that_grew_without_its_config_is_measured_again() {
    on_stage(11, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(ONE_AND_ONE).await);
        // As a growth leaves it that lost its quorum between the volume and the config.
        let lab = stage.world.datacenter().lab();
        let disk = stage.world.datacenter().inspect().vms[&3000].config["scsi0"].clone();
        assert!(disk.contains("size=20G"), "{disk}");
        lab.set_config(3000, "scsi0", &disk.replace("size=20G", "size=4G"));
        let report = settled(stage, stage.up(ONE_AND_ONE).await);
        assert!(report.rounds <= 2, "{}", report.rounds);
        assert_eq!(stage.world.datacenter().inspect().vms[&3000].config["scsi0"], disk);
    });
}

#[test]
fn a_machine_made_anew_is_not_ready_on_its_predecessors_word() {
    on_stage(15, WorldSpec::parse(QUICK).expect("a world"), async |stage| {
        settled(stage, stage.up(ONE_AND_ONE).await);
        let node = async || {
            let spec = stage.spec(ONE_AND_ONE);
            let site = stage.site(&spec);
            let server = site.kube.server("10.0.0.11".parse().expect("an address"));
            let node = server.expect("a client").node("small-worker-1").await;
            node.expect("answers").expect("is there")
        };
        let before = node().await;
        // It is there again before Kubernetes misses the one that had its name.
        stage.world.datacenter().lab().destroy_vm(3000);
        tokio::time::sleep(Duration::from_secs(1)).await;
        settled(stage, stage.up(ONE_AND_ONE).await);
        let heard = stage.told.lock().expect("reads").iter().any(|told| {
            matches!(&told.event, Event::Step { now: StepEvent::Wait { what, .. }, .. } if what.contains("older than the last reboot"))
        });
        assert!(
            heard,
            "it was there before the other was missed, or this shows nothing\n{}",
            stage.story()
        );
        let after = node().await;
        assert!(after.is_ready(), "{after:?}");
        assert_ne!(after.boot, before.boot);
    });
}

#[test]
fn nodes_without_a_cni_are_settled_although_they_are_not_ready() {
    on_stage(14, WorldSpec::default(), async |stage| {
        let bare = format!("{ONE_AND_ONE}cni: none\n");
        let report = settled(stage, stage.up(&bare).await);
        let nodes = report.nodes.expect("answers").nodes;
        assert_eq!(nodes.len(), 2);
        assert!(nodes.values().all(|node| !node.ready), "{nodes:?}");
    });
}

#[test]
fn a_namesake_cluster_with_other_secrets_touches_nothing() {
    on_stage(16, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(THREE_AND_TWO).await);
        let before = stage.world.datacenter().inspect();
        let stranger = stage.with_other_secrets();
        assert!(
            matches!(stranger.up(THREE_AND_TWO).await, Err(RunError::Refused(_))),
            "{}",
            stage.story()
        );
        let _ = stranger.down(THREE_AND_TWO).await;
        let after = stage.world.datacenter().inspect();
        assert_eq!(before.vms.len(), after.vms.len());
        assert!(after.vms.values().all(|vm| vm.running), "foreign machines still run");
    });
}

#[test]
fn a_machine_about_to_restart_with_the_config_of_a_killed_run_is_waited_for() {
    on_stage(93, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(ONE_AND_ONE).await);
        let node = stage.talos_node("10.0.0.21");
        let (_, config) = node.config().await.expect("answers").expect("is configured");
        // Environment variables take effect only at a restart.
        let (before, after) = config.expose().split_once("\nmachine:\n").expect("a machine section");
        let indent = " ".repeat(after.len() - after.trim_start().len());
        let text = format!("{before}\nmachine:\n{indent}env:\n{indent}  KILLED: run\n{after}");
        let boot = node.boot_id().await.expect("answers");
        node.apply(&mainstay_net::Secret::new(text), talos_api::Mode::Auto)
            .await
            .expect("is taken");
        let labelled = edited(
            "disk: 20GiB, addresses: 10.0.0.21+",
            "disk: 20GiB, labels: { tier: gold }, addresses: 10.0.0.21+",
        );
        settled(stage, stage.up(&labelled).await);
        assert_ne!(node.boot_id().await.expect("answers"), boot, "{}", stage.story());
        assert_eq!(stage.plan(&labelled).await.render(), "nothing to do");
    });
}
