//! Runs that are interrupted, and runs of two people at once.

use std::time::Duration;

use tokio::time::Instant;

use crate::stage::{AGE_KEY, Running, Sim, Stage, in_order};

/// A run that waits for its images and does nothing else: what can be stopped is always the same.
const ONLY_IMAGES_ARE_LEFT: [&str; 4] = [
    "begin  image.fetch pve1:local",
    "begin  image.fetch pve2:local",
    "done   machine.claim box-control-plane-1",
    "done   machine.claim box-worker-1",
];

fn fetching(stage: &Stage) -> Running<'_> {
    let mut run = stage.spawn(&["up", "--yes", "-v"]);
    run.stderr.until(&ONLY_IMAGES_ARE_LEFT);
    run
}

/// Without the steps of the plan, which `-v` lists: `14 machine.mark box-control-plane-1 ...`.
fn without_plan(text: &str) -> String {
    let is_step = |line: &str| line.trim_start().starts_with(|first: char| first.is_ascii_digit()) && !line.starts_with(" 0:00");
    text.lines()
        .filter(|line| !is_step(line))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Without the tasks that go on: whether the download has begun is a matter of milliseconds.
fn without_tasks(text: &str) -> String {
    let kept = in_order(&without_plan(text));
    let is_task = |line: &&str| line.contains("its task goes on in Proxmox VE: UPID:");
    kept.split_inclusive('\n').filter(|line| !is_task(line)).collect()
}

#[test]
fn ctrl_c_leaves_waits_within_two_seconds_and_the_next_run_goes_on() {
    let sim = Sim::slow();
    let stage = sim.stage().file("cluster.yaml", sim.cluster(81)).with_secrets();
    let run = fetching(&stage);
    let asked = Instant::now();
    run.signal("INT");
    let said = run.finish();
    // The program itself needs a moment to end on a machine that is busy.
    assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
    said.golden_with("interrupt-once", without_tasks);
    assert_eq!(stage.run(&["up", "--yes"]).code, Some(0));
    assert_eq!(stage.run(&["plan", "--check"]).code, Some(0));
}

#[test]
fn sigterm_is_heard_like_ctrl_c() {
    let sim = Sim::slow();
    let stage = sim.stage().file("cluster.yaml", sim.cluster(82)).with_secrets();
    let run = fetching(&stage);
    run.signal("TERM");
    let said = run.finish();
    assert_eq!(said.code, Some(130), "{}", said.stderr);
    assert!(
        said.stderr.contains("Stopped after 3 steps, 15 not finished."),
        "{}",
        said.stderr
    );
}

/// Requests for a download that are answered too late.
const LATE: &str =
    "faults:\n  - { call: 'POST /nodes/{node}/storage/{storage}/download-url', times: 2, then: { delay: { seconds: 600 } } }\n";

#[test]
fn ctrl_c_waits_for_answers_and_twice_leaves_at_once_and_the_next_run_finds_what_went_on() {
    let sim = Sim::slow_of(LATE);
    let stage = sim.stage().file("cluster.yaml", sim.cluster(83)).with_secrets();
    let mut run = fetching(&stage);
    run.signal("INT");
    run.stderr.until(&[" stop   still running: image.fetch pve2:local"]);
    run.signal("INT");
    run.finish()
        .golden_with("interrupt-twice", |text| in_order(&without_plan(text)));
    assert_eq!(stage.run(&["up", "--yes"]).code, Some(0));
    assert_eq!(stage.run(&["plan", "--check"]).code, Some(0));
}

#[test]
fn an_interrupted_run_as_json_says_so() {
    let sim = Sim::slow();
    let stage = sim.stage().file("cluster.yaml", sim.cluster(84)).with_secrets();
    let mut run = stage.spawn(&["up", "--yes", "--json"]);
    run.stdout.until(&[r#""type":"plan""#]);
    run.signal("INT");
    let said = run.finish();
    assert_eq!(said.code, Some(130));
    let objects = said.objects();
    let kinds: Vec<&str> = objects.iter().filter_map(|object| object["type"].as_str()).collect();
    assert!(kinds.contains(&"stopping"), "{kinds:?}");
    let last = |kind: &str| objects.iter().rfind(|object| object["type"] == kind).expect("is told");
    assert_eq!(
        (&last("report")["settled"], &last("report")["exit"]),
        (&false.into(), &130.into())
    );
    assert_eq!(last("error")["kind"], "interrupted");
}

#[test]
fn a_second_operator_is_told_who_is_at_work() {
    let sim = Sim::slow();
    let desk = sim.stage().file("cluster.yaml", sim.cluster(85)).with_secrets();
    let sofa = sim
        .stage()
        .with("USER", "grace")
        .with("HOSTNAME", "sofa")
        .with("SOPS_AGE_KEY", AGE_KEY)
        .file("cluster.yaml", desk.read("cluster.yaml"))
        .file("cluster.secrets.yaml", desk.read("cluster.secrets.yaml"));
    let mut run = desk.spawn(&["up", "--yes", "-v"]);
    run.stderr.until(&["begin  guest.configure box-control-plane-1"]);
    sofa.run(&["up", "--yes"]).golden("leased-up");
    sofa.run(&["up", "--yes", "--json"]).golden("leased-up-json");
    sofa.run(&["down", "--yes", "--name", "box"]).golden("leased-down");
    assert_eq!(sofa.run(&["plan", "--check"]).code, Some(3), "looking is free");
    assert_eq!(run.finish().code, Some(0));
    assert_eq!(sofa.run(&["up", "--yes"]).code, Some(0), "the lease ended with the run");
}

#[test]
fn a_lease_of_a_run_that_died_can_be_taken() {
    let sim = Sim::slow();
    let desk = sim.stage().file("cluster.yaml", sim.cluster(86)).with_secrets();
    let sofa = sim
        .stage()
        .with("USER", "grace")
        .with("HOSTNAME", "sofa")
        .with("SOPS_AGE_KEY", AGE_KEY)
        .file("cluster.yaml", desk.read("cluster.yaml"))
        .file("cluster.secrets.yaml", desk.read("cluster.secrets.yaml"));
    let mut run = desk.spawn(&["up", "--yes", "-v"]);
    run.stderr.until(&["begin  guest.configure box-control-plane-1"]);
    run.signal("KILL");
    assert_eq!(run.finish().code, None);
    assert_eq!(sofa.run(&["up", "--yes"]).code, Some(4));
    assert_eq!(sofa.run(&["up", "--yes", "--take-lease"]).code, Some(0));
}

#[test]
fn two_runs_of_one_user_are_two_and_one_that_was_killed_is_taken_over_without_a_flag() {
    let sim = Sim::slow();
    let desk = sim.stage().file("cluster.yaml", sim.cluster(87)).with_secrets();
    let mut run = desk.spawn(&["up", "--yes", "-v"]);
    run.stderr.until(&["begin  guest.configure box-control-plane-1"]);
    let second = desk.run(&["up", "--yes"]);
    assert_eq!(second.code, Some(4), "{}", second.stderr);
    assert!(
        second.stderr.contains("ada@desk is running mainstay on this cluster"),
        "{}",
        second.stderr
    );
    run.signal("KILL");
    assert_eq!(run.finish().code, None);
    let third = desk.run(&["up", "--yes"]);
    assert_eq!(third.code, Some(0), "{}", third.stderr);
}

#[test]
fn status_can_be_watched_until_ctrl_c() {
    let sim = Sim::start();
    let stage = sim.stage().file("cluster.yaml", sim.cluster(87)).with_secrets();
    let mut watch = stage.spawn(&["status", "--watch"]);
    watch.stdout.until(&["machines     failing  2 not running"]);
    assert_eq!(stage.run(&["up", "--yes"]).code, Some(0));
    watch.stdout.until(&["nodes        ok       2 of 2 ready", "secrets      ok"]);
    watch.signal("INT");
    let said = watch.finish();
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    let pages: Vec<&str> = said.stdout.split("MACHINE ").skip(1).collect();
    assert!(pages.len() >= 2, "{}", said.stdout);
    assert!(
        pages[0].contains("absent") && pages[pages.len() - 1].contains("ready"),
        "{}",
        said.stdout
    );
}
