//! What is wrong with the cluster file, or with what was typed.

use crate::stage::{Stage, cluster};

#[test]
fn without_a_file_the_way_to_one_is_told() {
    Stage::new().run(&["plan"]).golden("file-missing");
    Stage::new().run(&["plan", "--json"]).golden("file-missing-json");
    Stage::new()
        .run(&["-f", "prod.yaml", "up", "--yes"])
        .golden("file-missing-named");
}

#[test]
fn a_file_that_is_no_yaml_is_shown_with_its_place() {
    let stage = Stage::new().file(
        "cluster.yaml",
        "name: box\ndatacenter:\n  endpoint: [https://pve.lan:8006\nnetwork: {}\n",
    );
    stage.run(&["plan"]).golden("file-no-yaml");
    stage.run(&["plan", "--json"]).golden("file-no-yaml-json");
}

#[test]
fn a_file_that_is_empty_or_no_text_or_a_folder_is_refused() {
    Stage::new().file("cluster.yaml", "").run(&["plan"]).golden("file-empty");
    Stage::new()
        .file("cluster.yaml", [0xff, 0xfe, 0x00])
        .run(&["plan"])
        .golden("file-no-text");
    Stage::new().file("cluster.yaml/x", "").run(&["plan"]).golden("file-folder");
}

#[test]
fn all_faults_of_a_file_are_told_in_one_run() {
    let text = cluster()
        .replace("gateway: 10.7.0.1", "gatway: 10.7.0.1")
        .replace("count: 2", "count: -2")
        .replace("addresses: 10.7.0.11+", "addresses: 10.8.0.11+");
    let stage = Stage::new().file("cluster.yaml", text);
    stage.run(&["plan"]).golden("file-faults");
    stage.run(&["up", "--json"]).golden("file-faults-json");
}

#[test]
fn colour_is_only_where_it_was_asked_for() {
    let stage = Stage::new();
    let plain = stage.run(&["plan"]).stderr;
    assert!(!plain.contains('\u{1b}'), "a pipe is no terminal");
    assert_eq!(stage.run(&["plan", "--color", "never"]).stderr, plain);
    stage.run(&["plan", "--color", "always"]).golden("file-missing-colour");
    let quiet = Stage::new().with("NO_COLOR", "1");
    assert!(!quiet.run(&["plan"]).stderr.contains('\u{1b}'));
}

#[test]
fn wrong_words_on_the_command_line_are_exit_code_two() {
    let stage = Stage::new().file("cluster.yaml", cluster());
    stage.run(&["upp"]).golden("usage-unknown-command");
    stage.run(&[]).golden("usage-nothing");
    stage.run(&["down", "--yes"]).golden("usage-down-yes-without-name");
    stage
        .run(&["kubeconfig", "--out", "k", "--merge"])
        .golden("usage-out-and-merge");
    stage.run(&["demo", "--speed", "0"]).golden("usage-speed-zero");
    stage.run(&["kubeconfig", "--hours", "0"]).golden("usage-hours-zero");
    stage.run(&["sim", "--listen", "0.0.0.0:8006"]).golden("sim-not-loopback");
    stage.run(&["sim", "--world", "nowhere.yaml"]).golden("sim-world-missing");
    let stage = stage.file("world.yaml", "guests: {nope: 1}\n");
    stage
        .run(&["sim", "--listen", "127.0.0.1:0", "--world", "world.yaml"])
        .golden("sim-world-wrong");
}
