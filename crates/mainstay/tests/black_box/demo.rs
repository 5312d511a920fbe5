//! Files built on a datacenter in memory.

use crate::stage::{Stage, in_order};

#[test]
fn the_demo_builds_its_cluster_and_leaves_nothing() {
    let stage = Stage::new();
    stage
        .run(&["demo", "--plain", "--speed", "2000"])
        .golden_with("demo", in_order);
    let left: Vec<_> = std::fs::read_dir(stage.path("home")).expect("a folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_demo_as_json_ends_settled() {
    let said = Stage::new().run(&["demo", "--json", "--speed", "2000"]);
    let last = said.objects().pop().expect("a report");
    assert_eq!((&last["type"], &last["settled"]), (&"report".into(), &true.into()), "{last}");
}

#[test]
fn a_file_for_the_demo_must_be_there_and_be_good() {
    let stage = Stage::new().file("bad.yaml", "name: UPPER\n");
    stage.run(&["demo", "-f", "nowhere.yaml"]).golden("demo-file-missing");
    stage.run(&["demo", "-f", "bad.yaml"]).golden("demo-file-bad");
}

#[test]
fn every_example_is_built() {
    for name in ["minimal", "homelab", "multi-host", "internal-bridge", "rke2", "k3s"] {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        let said = Stage::new().run(&["demo", "-f", &format!("{path}/{name}.yaml"), "--plain", "--speed", "5000"]);
        assert_eq!(said.code, Some(0), "{name}: {}", said.stderr);
        assert!(said.stderr.contains(" is settled: "), "{name}: {}", said.stderr);
        assert!(!said.stdout.contains("failing"), "{name}: {}", said.stdout);
    }
}
