//! Another version of Talos: loaded, installed, booted and proved, machine after machine.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mainstay_engine::RunError;
use mainstay_plan::{Guest, RefusalKind};
use mainstay_sim::{NodeFaults, WorldSpec};

use crate::stage::apps::Apps;
use crate::stage::{QUICK, Stage, THREE_AND_TWO, on_stage, settled};

const SMALL: &str = "\
name: small
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }
talos: { version: 1.13.2 }
kubernetes: 1.35.4
pools:
  control-plane: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+ }
  worker: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.21+, vmids: 3000+ }
";

fn quick() -> WorldSpec {
    WorldSpec::parse(QUICK).expect("a world")
}

fn newer() -> String {
    SMALL.replace("1.13.2", "1.13.9")
}

/// What every machine says that it runs.
async fn releases(stage: &Stage, file: &str) -> BTreeMap<String, String> {
    let observed = stage.observed(file).await;
    let release = |guest: &Guest| {
        guest
            .running()
            .and_then(|guest| guest.release.as_ref())
            .map(ToString::to_string)
    };
    let guests = observed.guests.iter();
    guests
        .map(|(name, guest)| (name.clone(), release(guest).unwrap_or_default()))
        .collect()
}

async fn all_run(stage: &Stage, file: &str, release: &str) {
    let seen = releases(stage, file).await;
    assert!(seen.values().all(|seen| seen == release), "{seen:?}\n{}", stage.story());
    assert_eq!(stage.plan(file).await.render(), "nothing to do");
    assert_eq!(Apps::of(stage, file).cordoned().await, []);
}

#[test]
fn a_cluster_goes_from_1_12_over_1_13_to_1_14_while_its_pods_keep_their_budget() {
    on_stage(501, quick(), async |stage| {
        let old = THREE_AND_TWO.replace("1.13.9", "1.12.11");
        settled(stage, stage.up(&old).await);
        let apps = Apps::of(stage, &old);
        apps.deploy("front", 2, Some(1)).await;
        let new = THREE_AND_TWO.replace("1.13.9", "1.14.1");
        let fewest = async {
            loop {
                // The API server that is asked restarts as well.
                if let Ok(pods) = apps.server().pods(Some("default"), "app=front").await
                    && !pods.iter().any(|pod| pod.is_ready)
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
        };
        tokio::select! {
            () = fewest => panic!("no pod was ready\n{}", stage.story()),
            outcome = stage.up(&new) => drop(settled(stage, outcome)),
        }
        all_run(stage, &new, "1.14.1").await;
        assert_eq!(stage.world.etcd_foundings(), 1);
    });
}

#[test]
fn other_extensions_reach_every_machine_by_a_restart() {
    on_stage(502, quick(), async |stage| {
        settled(stage, stage.up(SMALL).await);
        let with = SMALL.replace("version: 1.13.2", "version: 1.13.2, extensions: [qemu-guest-agent]");
        settled(stage, stage.up(&with).await);
        all_run(stage, &with, "1.13.2").await;
    });
}

#[test]
fn a_machine_that_comes_back_with_the_old_system_is_held_and_the_next_run_does_not_try_again() {
    on_stage(503, quick(), async |stage| {
        settled(stage, stage.up(SMALL).await);
        let faults = NodeFaults {
            unbootable: BTreeSet::from(["1.13.9".to_owned()]),
            ..NodeFaults::default()
        };
        stage.world.set_node_faults("small-worker-1", faults);
        let report = settled(stage, stage.up(&newer()).await);
        assert!(!report.is_settled(), "{}", stage.story());
        let held = report
            .held
            .iter()
            .find(|held| held.subject.to_string() == "small-worker-1")
            .expect("is held");
        assert!(held.reason.contains("--retry-upgrade small-worker-1"), "{}", held.reason);
        let seen = releases(stage, &newer()).await;
        assert_eq!(
            (seen["small-control-plane-1"].as_str(), seen["small-worker-1"].as_str()),
            ("1.13.9", "1.13.2")
        );
        assert_eq!(Apps::of(stage, SMALL).cordoned().await, []);
        stage.world.set_node_faults("small-worker-1", NodeFaults::default());
        assert_eq!(stage.up(&newer()).await.expect("ends").done, 0);
        let mut stage = stage.with_a_colleague();
        stage.policy.retry_upgrade.insert("small-worker-1".into());
        settled(&stage, stage.up(&newer()).await);
        all_run(&stage, &newer(), "1.13.9").await;
    });
}

#[test]
fn an_installer_that_is_not_there_holds_its_machine_before_it_is_disturbed() {
    on_stage(504, quick(), async |stage| {
        settled(stage, stage.up(SMALL).await);
        for machine in ["small-control-plane-1", "small-worker-1"] {
            let image_not_found = true;
            stage.world.set_node_faults(
                machine,
                NodeFaults {
                    image_not_found,
                    ..NodeFaults::default()
                },
            );
        }
        let boots = boots(stage).await;
        let report = settled(stage, stage.up(&newer()).await);
        assert!(
            report.held.iter().all(|held| held.reason.contains("does not have it")),
            "{:?}",
            report.held
        );
        assert_eq!(self::boots(stage).await, boots);
        for machine in ["small-control-plane-1", "small-worker-1"] {
            stage.world.set_node_faults(machine, NodeFaults::default());
        }
        settled(stage, stage.up(&newer()).await);
        all_run(stage, &newer(), "1.13.9").await;
    });
}

async fn boots(stage: &Stage) -> Vec<String> {
    let mut boots = Vec::new();
    for address in ["10.0.0.11", "10.0.0.21"] {
        boots.push(stage.talos_node(address).boot_id().await.expect("answers"));
    }
    boots
}

#[test]
fn answers_that_are_lost_neither_upgrade_twice_nor_lose_the_upgrade() {
    for method in ["Upgrade", "Reboot"] {
        on_stage(505, quick(), async |stage| {
            settled(stage, stage.up(SMALL).await);
            let lose_answers = BTreeMap::from([(method.to_owned(), 1)]);
            stage.world.set_node_faults(
                "small-worker-1",
                NodeFaults {
                    lose_answers,
                    ..NodeFaults::default()
                },
            );
            settled(stage, stage.up(&newer()).await);
            all_run(stage, &newer(), "1.13.9").await;
        });
    }
}

#[test]
fn an_upgrade_that_is_killed_when_any_of_its_steps_ends_is_finished_by_the_next_run() {
    let steps = on_stage(506, quick(), async |stage| {
        settled(stage, stage.up(SMALL).await);
        let plan = stage.plan(&newer()).await;
        plan.steps
            .iter()
            .map(|step| (step.action.name(), step.subject.to_string()))
            .collect::<Vec<_>>()
    });
    assert!(steps.iter().any(|(name, _)| *name == "guest.upgrade"), "{steps:?}");
    for (name, subject) in steps {
        on_stage(506, quick(), async |stage| {
            settled(stage, stage.up(SMALL).await);
            let file = newer();
            stage.told.lock().expect("plain data").clear();
            tokio::select! {
                biased;
                () = stage.ended(|step| step.action.name() == name && step.subject.to_string() == subject) => {}
                outcome = stage.up(&file) => panic!("{name} of {subject} did not end: {outcome:?}"),
            }
            // The lease of the run that was killed ends.
            tokio::time::sleep(Duration::from_secs(120)).await;
            settled(stage, stage.up(&file).await);
            all_run(stage, &file, "1.13.9").await;
        });
    }
}

#[test]
fn an_upgrade_that_is_killed_at_any_moment_of_a_restart_is_finished_by_the_next_run() {
    for seconds in [2, 5, 9, 14, 20, 27, 35, 44, 54, 65, 80, 100] {
        on_stage(507, quick(), async |stage| {
            settled(stage, stage.up(SMALL).await);
            let file = newer();
            let killed = tokio::time::timeout(Duration::from_secs(seconds), stage.up(&file)).await;
            assert!(killed.is_err(), "it took less than {seconds} s");
            tokio::time::sleep(Duration::from_secs(120)).await;
            settled(stage, stage.up(&file).await);
            all_run(stage, &file, "1.13.9").await;
        });
    }
}

#[test]
fn a_minor_before_the_one_that_runs_is_refused() {
    on_stage(508, quick(), async |stage| {
        settled(stage, stage.up(SMALL).await);
        let Err(RunError::Refused(plan)) = stage.up(&SMALL.replace("1.13.2", "1.12.11")).await else {
            panic!("not refused")
        };
        assert_eq!(plan.refusals[0].kind, RefusalKind::Gate, "{:?}", plan.refusals);
        assert!(
            plan.refusals[0].what.contains("cannot go back from 1.13.2 to 1.12.11"),
            "{:?}",
            plan.refusals
        );
    });
}

/// The versions of the guide, in its order, as the only thing that changes in a file.
fn files_of_the_guide() -> Vec<String> {
    let guide = include_str!("../../../../docs/guides/upgrade.md");
    let blocks = guide.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let base = SMALL.replace("talos: { version: 1.13.2 }\nkubernetes: 1.35.4\n", "");
    blocks.map(|block| format!("{block}{base}")).collect()
}

#[test]
fn the_guide_leads_from_the_first_versions_to_the_last() {
    on_stage(509, quick(), async |stage| {
        let files = files_of_the_guide();
        assert_eq!(files.len(), 3);
        for file in &files {
            settled(stage, stage.up(file).await);
        }
        let last = files.last().expect("a file");
        all_run(stage, last, "1.14.1").await;
        let nodes = Apps::of(stage, last).server().nodes().await.expect("answers");
        let kubelets: Vec<&str> = nodes.iter().map(|node| node.kubelet.as_str()).collect();
        assert_eq!(kubelets, ["v1.36.3", "v1.36.3"]);
    });
}

#[test]
fn kubernetes_rises_over_two_minors_and_no_kubelet_is_newer_than_an_api_server() {
    on_stage(510, quick(), async |stage| {
        let old = THREE_AND_TWO.replace("pools:", "kubernetes: 1.34.1\npools:");
        let new = THREE_AND_TWO.replace("pools:", "kubernetes: 1.36.3\npools:");
        settled(stage, stage.up(&old).await);
        let boots = boots(stage).await;
        settled(stage, stage.up(&new).await);
        let observed = stage.observed(&new).await;
        let versions: BTreeSet<String> = observed
            .guests
            .values()
            .filter_map(|guest| guest.running()?.kubernetes.clone())
            .map(|version| version.to_string())
            .collect();
        assert_eq!(versions, BTreeSet::from(["1.36.3".to_owned()]));
        assert_eq!(observed.kubernetes.yes().expect("answers").version.to_string(), "1.36.3");
        assert_eq!(self::boots(stage).await, boots, "no machine restarts for Kubernetes");
        assert_eq!(stage.plan(&new).await.render(), "nothing to do");
    });
}

#[test]
fn a_kubernetes_upgrade_that_is_killed_when_any_of_its_steps_ends_is_finished_by_the_next_run() {
    let newer = SMALL.replace("1.35.4", "1.36.3");
    let steps = on_stage(511, quick(), async |stage| {
        settled(stage, stage.up(SMALL).await);
        let plan = stage.plan(&newer).await;
        plan.steps
            .iter()
            .map(|step| (step.action.detail(), step.subject.to_string()))
            .collect::<Vec<_>>()
    });
    assert!(steps.len() >= 8, "{steps:?}");
    for (detail, subject) in steps {
        on_stage(511, quick(), async |stage| {
            settled(stage, stage.up(SMALL).await);
            stage.told.lock().expect("plain data").clear();
            tokio::select! {
                biased;
                () = stage.ended(|step| step.action.detail() == detail && step.subject.to_string() == subject) => {}
                outcome = stage.up(&newer) => panic!("{detail:?} of {subject} did not end: {outcome:?}"),
            }
            tokio::time::sleep(Duration::from_secs(120)).await;
            settled(stage, stage.up(&newer).await);
            assert_eq!(stage.plan(&newer).await.render(), "nothing to do");
        });
    }
}
