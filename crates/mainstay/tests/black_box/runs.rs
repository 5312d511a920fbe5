//! Questions on a terminal, and the runs that are kept.

use std::path::PathBuf;

use pve_api::cluster;

use crate::stage::{AGE_KEY, Sim, Stage, in_order, mode, talosctl_secrets};

const QUESTION: &str = "Apply this plan? [y/N] ";

fn guests(sim: &Sim) -> usize {
    sim.ask(async |pve| {
        pve.call(cluster::resources(Some(cluster::ResourceKind::Vm)))
            .await
            .expect("a list")
            .len()
    })
}

/// The run logs of the only cluster, oldest first.
fn logs(stage: &Stage) -> Vec<PathBuf> {
    let runs = stage.path("home/.local/state/mainstay/runs");
    let folders: Vec<PathBuf> = entries(&runs);
    let [folder] = &folders[..] else { panic!("{folders:?}") };
    assert_eq!(mode(folder), "700");
    entries(folder)
}

fn entries(folder: &PathBuf) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

#[test]
fn ctrl_c_at_the_question_ends_the_run_and_changes_nothing() {
    let sim = Sim::start();
    let stage = sim
        .stage()
        .file("cluster.yaml", sim.cluster(91))
        .with("SOPS_AGE_KEY", AGE_KEY);
    let mut run = stage.on_terminal(&["up", "--plain"]);
    run.screen.until(&[QUESTION]);
    run.signal("INT");
    let said = run.finish();
    assert_eq!(said.code, Some(130), "{}", said.stderr);
    assert!(
        said.stderr.contains("Stopped after 0 steps, 18 not finished."),
        "{}",
        said.stderr
    );
    assert_eq!(guests(&sim), 0);
    assert!(!stage.path("cluster.secrets.yaml").exists() && !stage.path("home/.local").exists());
}

#[test]
fn a_plan_is_applied_after_a_typed_yes_and_only_then() {
    let sim = Sim::start();
    let stage = sim.stage().file("cluster.yaml", sim.cluster(92)).with_secrets();
    let mut run = stage.on_terminal(&["up"]);
    run.screen.until(&[QUESTION]);
    run.type_line("maybe");
    let said = run.finish();
    assert_eq!(said.code, Some(4), "{}", said.stderr);
    assert!(
        said.stderr.ends_with("Not approved. Nothing was changed.\n"),
        "{}",
        said.stderr
    );
    assert_eq!(guests(&sim), 0);
    let mut run = stage.on_terminal(&["up"]);
    run.screen.until(&[QUESTION]);
    run.type_line("y");
    let said = run.finish();
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains("box is settled: 2 of 2 nodes ready."), "{}", said.stderr);
    let mut run = stage.on_terminal(&["down"]);
    run.screen.until(&["Type the name of the cluster to confirm: "]);
    run.type_line("box");
    let said = run.finish();
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert_eq!(guests(&sim), 0);
}

#[test]
fn every_run_is_kept_for_its_owner_and_can_be_shown_again() {
    let sim = Sim::start();
    let stage = sim.stage().file("cluster.yaml", sim.cluster(93)).with_secrets();
    stage.run(&["logs"]).golden("logs-none");
    let up = stage.run(&["up", "--yes"]);
    assert_eq!(up.code, Some(0), "{}", up.stderr);
    assert_eq!(stage.run(&["down", "--yes", "--name", "box"]).code, Some(0));
    stage.run(&["logs"]).golden("logs");
    stage.run(&["logs", "3"]).golden("logs-none-such");
    let files = logs(&stage);
    assert_eq!(files.len(), 2);
    assert!(files.iter().all(|file| mode(file) == "600"), "{files:?}");
    let again = stage.run(&["logs", "2"]);
    let lines = |text: &str| -> Vec<String> {
        let shown = in_order(text);
        shown
            .lines()
            .filter(|line| line.starts_with(" 0:00 ") || line.contains("box is"))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(lines(&again.stderr), lines(&up.stderr), "the replay differs from the run");
    let schema = serde_json::from_str(include_str!("../../../../docs/reference/events.schema.json")).expect("JSON");
    let schema = jsonschema::validator_for(&schema).expect("a schema");
    for line in stage.run(&["logs", "--last", "--json"]).objects() {
        assert!(schema.is_valid(&line), "{line}");
    }
}

#[test]
fn a_run_log_holds_no_secret() {
    let sim = Sim::start();
    let stage = sim.stage().file("cluster.yaml", sim.cluster(94)).with_secrets();
    assert_eq!(stage.run(&["up", "--yes"]).code, Some(0));
    let log = std::fs::read_to_string(&logs(&stage)[0]).expect("text");
    assert!(log.contains("box is settled"), "{log}");
    let secret = |text: &str| text.split('=').next_back().unwrap_or_default().to_owned();
    let mut secrets = vec![AGE_KEY.to_owned(), secret(&sim.token)];
    // Every value of the bundle, certificates included: not one of them belongs into a log.
    let clear = talosctl_secrets();
    let values = clear
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(_, value)| value.trim().to_owned());
    secrets.extend(values.filter(|value| value.len() >= 12));
    assert!(secrets.len() > 10, "{secrets:?}");
    for secret in secrets {
        assert!(!log.contains(&secret), "a secret is in the log");
    }
}
