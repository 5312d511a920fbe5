//! Turns: what runs on a machine is moved away before the machine goes down, and nothing stays cordoned.

use std::time::Duration;

use mainstay_engine::RunReport;
use mainstay_plan::Held;
use mainstay_sim::WorldSpec;

use crate::stage::apps::Apps;
use crate::stage::{QUICK, Stage, on_stage, settled};

/// One control plane and three workers.
const FOUR: &str = "\
name: small
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }
talos: { version: 1.13.9 }
pools:
  control-plane: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+ }
  worker: { count: 3, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.21+, vmids: 3000+ }
";

fn larger() -> String {
    FOUR.replace("count: 3, cpu: 2, memory: 4GiB", "count: 3, cpu: 2, memory: 5GiB")
}

fn quick() -> WorldSpec {
    WorldSpec::parse(QUICK).expect("a world")
}

async fn stand(stage: &Stage) -> Apps {
    settled(stage, stage.up(FOUR).await);
    Apps::of(stage, FOUR)
}

fn held(report: &RunReport, machine: &str) -> Held {
    let held = report.held.iter().find(|held| held.subject.to_string() == machine);
    held.unwrap_or_else(|| panic!("{machine} is not held: {:?}", report.held))
        .clone()
}

#[test]
fn pods_leave_within_their_budget_before_each_worker_restarts() {
    on_stage(401, quick(), async |stage| {
        let apps = stand(stage).await;
        apps.deploy("front", 3, Some(2)).await;
        let file = larger();
        let before: Vec<String> = apps.pods("front").await.into_iter().map(|pod| pod.uid).collect();
        let fewest = async {
            let mut fewest = 3;
            loop {
                fewest = fewest.min(apps.pods("front").await.iter().filter(|pod| pod.is_ready).count());
                tokio::time::sleep(Duration::from_millis(500)).await;
                if fewest < 2 {
                    return fewest;
                }
            }
        };
        tokio::select! {
            fewest = fewest => panic!("{fewest} of 3 pods were ready\n{}", stage.story()),
            outcome = stage.up(&file) => drop(settled(stage, outcome)),
        }
        apps.until_ready("front", 3).await;
        assert!(
            apps.pods("front").await.iter().all(|pod| !before.contains(&pod.uid)),
            "every worker was drained"
        );
        assert_eq!(apps.cordoned().await, []);
        assert_eq!(stage.plan(&larger()).await.render(), "nothing to do");
    });
}

#[test]
fn a_budget_that_never_yields_holds_its_machine_with_pod_and_budget_and_leaves_nothing_cordoned() {
    on_stage(402, quick(), async |stage| {
        let mut stage = stage.with_a_colleague();
        stage.policy.drain_timeout = Duration::from_secs(30);
        let apps = stand(&stage).await;
        apps.deploy("front", 1, Some(1)).await;
        let pod = apps.pods("front").await.remove(0);
        let report = settled(&stage, stage.up(&larger()).await);
        let reason = held(&report, &pod.node).reason;
        for part in [
            "is not drained within 30 s",
            &pod.full_name(),
            "default/front",
            "--skip-drain",
        ] {
            assert!(reason.contains(part), "{part} is not in {reason}");
        }
        assert!(!report.is_settled());
        assert_eq!(report.held.len(), 1, "the other workers restarted: {:?}", report.held);
        assert_eq!(
            apps.pods("front").await[0].uid,
            pod.uid,
            "no pod is evicted against its budget"
        );
        assert_eq!(apps.cordoned().await, []);
        // The operator decides.
        stage.policy.skip_drain.insert(pod.node.clone());
        let report = settled(&stage, stage.up(&larger()).await);
        assert!(report.is_settled(), "{:?}", report.held);
    });
}

#[test]
fn a_pod_without_a_controller_holds_its_machine_until_the_operator_gives_it_up() {
    on_stage(403, quick(), async |stage| {
        let mut stage = stage.with_a_colleague();
        let apps = stand(&stage).await;
        apps.lone_pod("precious", "small-worker-2").await;
        let report = settled(&stage, stage.up(&larger()).await);
        let reason = held(&report, "small-worker-2").reason;
        assert!(
            reason.contains("default/precious") && reason.contains("--force-drain small-worker-2"),
            "{reason}"
        );
        assert!(apps.server().pod("default", "precious").await.expect("answers").is_some());
        assert_eq!(apps.cordoned().await, []);
        stage.policy.force_drain.insert("small-worker-2".into());
        let report = settled(&stage, stage.up(&larger()).await);
        assert!(report.is_settled(), "{:?}", report.held);
        assert!(apps.server().pod("default", "precious").await.expect("answers").is_none());
    });
}

#[test]
fn a_run_that_is_killed_while_it_drains_leaves_a_cordon_that_the_next_one_ends() {
    on_stage(404, quick(), async |stage| {
        let apps = stand(stage).await;
        apps.deploy("front", 3, Some(2)).await;
        let file = larger();
        tokio::select! {
            _ = stage.up(&file) => panic!("it was to be killed\n{}", stage.story()),
            () = stage.ended(|step| step.action.name() == "node.cordon") => {}
        }
        let cordoned = apps.cordoned().await;
        let record = cordoned[0].1.as_deref().expect("a record");
        assert!(record.contains(" restart 2026-01-01T"), "{record}");
        // The file is as it was, so that no turn is left to do.
        tokio::time::sleep(Duration::from_secs(120)).await;
        settled(stage, stage.up(FOUR).await);
        assert_eq!(apps.cordoned().await, []);
    });
}

#[test]
fn a_cordon_of_a_person_stays_after_the_turn() {
    on_stage(405, quick(), async |stage| {
        let apps = stand(stage).await;
        let node = serde_json::json!({ "spec": { "unschedulable": true } });
        let subject = mainstay_kube::ObjectRef::new("v1", "Node", None, "small-worker-1");
        apps.server().merge(&subject, &node).await.expect("cordons");
        let mut stage = stage.with_a_colleague();
        stage.policy.despite.insert("small-worker-1".into());
        let report = settled(&stage, stage.up(&larger()).await);
        assert!(report.is_settled(), "{:?}", report.held);
        assert_eq!(apps.cordoned().await, [("small-worker-1".to_owned(), None)]);
    });
}

#[test]
fn a_worker_that_leaves_is_drained_before_its_machine_stops() {
    on_stage(406, quick(), async |stage| {
        let apps = stand(stage).await;
        apps.deploy("front", 3, Some(2)).await;
        let two = FOUR.replace("worker: { count: 3", "worker: { count: 2");
        settled(stage, stage.up(&two).await);
        let pods = apps.pods("front").await;
        assert!(pods.iter().all(|pod| pod.node != "small-worker-3"), "{pods:#?}");
        assert_eq!(apps.cordoned().await, []);
    });
}
