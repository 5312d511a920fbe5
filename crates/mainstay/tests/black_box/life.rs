//! A cluster's whole life on a simulated datacenter, over loopback.

use pve_api::cluster;

use crate::stage::{AGE_KEY, Sim, in_order};

#[test]
fn a_cluster_comes_up_stays_changes_and_goes() {
    let sim = Sim::start();
    let stage = sim
        .stage()
        .file("cluster.yaml", sim.cluster(71))
        .with("SOPS_AGE_KEY", AGE_KEY);
    stage.run(&["up", "--yes"]).golden_with("life-up", in_order);
    stage.run(&["up", "--yes"]).golden("life-up-again");
    stage.run(&["up", "--yes", "--json"]).golden("life-up-again-json");
    stage.run(&["status"]).golden("life-status");
    stage.run(&["status", "--json"]).golden("life-status-json");
    stage.run(&["plan", "--check"]).golden("life-plan-check");
    stage.run(&["doctor"]).golden("life-doctor");
    stage.change("cluster.yaml", |text| {
        text.replace("worker: { count: 1, memory: 4GiB", "worker: { count: 1, memory: 6GiB")
    });
    stage.run(&["plan", "--check"]).golden("life-plan-memory");
    stage.run(&["up", "--yes"]).golden_with("life-up-memory", in_order);
    assert_eq!(stage.run(&["plan", "--check"]).code, Some(0), "settled is settled");
    stage.run(&["down"]).golden("life-down-without-terminal");
    stage
        .run(&["down", "--yes", "--name", "box"])
        .golden_with("life-down", in_order);
    stage.run(&["down", "--yes", "--name", "box"]).golden("life-down-twice");
    stage
        .run(&["down", "--yes", "--name", "box", "--images", "--forget"])
        .golden_with("life-down-images", in_order);
    stage.run(&["down", "--yes", "--name", "box"]).golden("life-down-again");
    assert!(!stage.path("cluster.secrets.yaml").exists(), "--forget was said");
}

#[test]
fn a_run_as_json_is_one_object_per_line() {
    let sim = Sim::start();
    let stage = sim.stage().file("cluster.yaml", sim.cluster(72)).with_secrets();
    let said = stage.run(&["up", "--yes", "--json"]);
    assert!(
        said.objects()
            .iter()
            .all(|object| object["v"] == 1 && object["type"].is_string())
    );
    said.golden_with("life-up-json", in_order);
    let down = stage.run(&["down", "--yes", "--name", "box", "--json"]);
    down.golden_with("life-down-json", in_order);
}

#[test]
fn machines_without_their_secrets_are_left_alone() {
    let sim = Sim::start();
    let stage = sim.stage().file("cluster.yaml", sim.cluster(73)).with_secrets();
    assert_eq!(stage.run(&["up", "--yes"]).code, Some(0));
    std::fs::remove_file(stage.path("cluster.secrets.yaml")).expect("was there");
    stage.run(&["up", "--yes"]).golden("life-secrets-lost");
    assert!(
        !stage.path("cluster.secrets.yaml").exists(),
        "new secrets were made for a cluster that exists"
    );
}

#[test]
fn what_cannot_be_done_now_is_held_and_says_so() {
    let sim = Sim::start();
    let stage = sim
        .stage()
        .file(
            "cluster.yaml",
            sim.cluster(75).replace("worker: { count: 1", "worker: { count: 2"),
        )
        .with_secrets();
    assert_eq!(stage.run(&["up", "--yes"]).code, Some(0));
    stage.change("cluster.yaml", |text| {
        text.replace("worker: { count: 2", "worker: { count: 1")
    });
    sim.protect("box-worker-2", true);
    stage.run(&["up", "--yes"]).golden("held-up");
    stage.run(&["up", "--yes", "--json"]).golden("held-up-json");
    stage.run(&["plan", "--check"]).golden("held-plan-check");
    sim.protect("box-worker-2", false);
    assert_eq!(stage.run(&["up", "--yes"]).code, Some(0));
}

#[test]
fn a_disk_without_room_for_the_secrets_stops_up_before_anything_is_done() {
    let sim = Sim::start();
    let stage = sim
        .stage()
        .file("cluster.yaml", sim.cluster(79))
        .with("SOPS_AGE_KEY", AGE_KEY);
    let said = stage.run_on_full_disk(&["up", "--yes"]);
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    assert!(
        said.stderr.contains("cluster.secrets.yaml cannot be written") && said.stderr.contains("nothing was changed"),
        "{}",
        said.stderr
    );
    let files = std::fs::read_dir(stage.path("")).expect("a folder");
    let left: Vec<_> = files.map(|file| file.expect("a file").file_name()).collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().contains("secrets") || name.to_string_lossy().starts_with('.')),
        "{left:?}"
    );
    let guests = sim.ask(async |pve| {
        pve.call(cluster::resources(Some(cluster::ResourceKind::Vm)))
            .await
            .expect("a list")
    });
    assert_eq!(guests.len(), 0, "{guests:?}");
    assert_eq!(stage.run(&["up", "--yes"]).code, Some(0));
}

#[test]
fn nothing_is_written_before_the_plan_is_approved() {
    let sim = Sim::start();
    let stage = sim.stage().file("cluster.yaml", sim.cluster(76));
    stage.run(&["up"]).golden("up-new-without-terminal");
    let files = |folder: &str| -> Vec<String> {
        let entries = std::fs::read_dir(stage.path(folder)).expect("a folder");
        entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect()
    };
    assert_eq!(files("home"), [""; 0], "something was left at home");
    assert!(!files("").contains(&"cluster.secrets.yaml".to_owned()));
    let said = stage.run(&["up", "--yes"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(stage.path("cluster.secrets.yaml").exists() && stage.path("home/.config/sops/age/keys.txt").exists());
}
