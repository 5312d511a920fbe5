//! A cluster's whole life on a simulated datacenter, over loopback.

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
    stage.run(&["down"]).golden("life-down-nobody-to-ask");
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
fn machines_behind_a_jump_host_are_reached_through_it() {
    let sim = Sim::start();
    let text = |key: &str| sim.jump[key].as_str().expect("a text").to_owned();
    let (address, user) = (text("address"), text("user"));
    let port = address.rsplit(':').next().expect("has a port");
    let jump = format!("datacenter:\n  jump: {user}@{address}\n");
    let stage = sim
        .stage()
        .volatile(&address, "127.0.0.1:<JUMP>")
        .volatile(format!("[127.0.0.1]:{port}"), "[127.0.0.1]:<JUMP>")
        .file("cluster.yaml", sim.cluster(74).replacen("datacenter:\n", &jump, 1));
    stage.run(&["plan"]).golden("jump-no-key");
    let stage = stage.file("home/.ssh/id_ed25519", text("key")).with_secrets();
    let stage = stage.file("home/.ssh/known_hosts", format!("[127.0.0.1]:{port} {}\n", text("host_key")));
    assert_eq!(stage.run(&["up", "--yes"]).code, Some(0));
    stage.run(&["status"]).golden("jump-status");
    assert_eq!(stage.run(&["down", "--yes", "--name", "box"]).code, Some(0));
}
