//! Runs that are told to stop, and runs that go on after one that was killed.

use std::time::Duration;

use mainstay_engine::{LeftTask, RunError, RunGoal, RunReport, converge};
use mainstay_sim::WorldSpec;
use pve_sim::faults::{Fault, Rule};
use tokio::time::{Instant, sleep, timeout};

use crate::stage::{Stage, on_stage, settled};

const FILE: &str = "\
name: small
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }
talos: { version: 1.13.9 }
pools:
  control-plane: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+ }
  worker: { count: 2, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.21+, vmids: 3000+ }
";

/// Waits are left within this time.
const LEFT_WITHIN: Duration = Duration::from_secs(2);

/// Each such call, or task on a VM, befalls this.
fn befalls(call: &str, vmid: Option<u32>, then: Fault) -> Rule {
    Rule {
        call: call.into(),
        path: vmid.map(|vmid| vmid.to_string()),
        from: 1,
        times: None,
        chance: 1.0,
        then,
    }
}

/// Runs `up`, tells it to stop when `when` ends, and says how long it took to.
async fn stopped(stage: &Stage, when: impl Future<Output = ()>) -> (Result<RunReport, RunError>, Duration) {
    let spec = stage.spec(FILE);
    let site = stage.site(&spec);
    let run = stage.run(&spec, &site, RunGoal::Up);
    let stop = run.stop.clone();
    let asked = async {
        when.await;
        stop.cancel();
        Instant::now()
    };
    let ended = async {
        let outcome = converge(&run, &mut |request| {
            if stage.keep_secrets() {
                request.approve();
            }
        })
        .await;
        (outcome, Instant::now())
    };
    let ((outcome, ended), asked) = futures::future::join(ended, asked).await;
    (outcome, ended.saturating_duration_since(asked))
}

/// The tasks that a stopped run named.
fn named(outcome: &Result<RunReport, RunError>) -> &[LeftTask] {
    match outcome {
        Err(RunError::Stopped { tasks, .. }) => tasks,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stop_leaves_running_tasks_at_once_names_them_and_the_next_run_finds_them() {
    on_stage(111, WorldSpec::default(), async |stage| {
        let slow = Fault::SlowTask { seconds: 600.0 };
        let rule = stage.world.datacenter().faults().add(befalls("task qmconfig", None, slow));
        let fills = async {
            let filling = |stage: &Stage| {
                let tasks = stage.world.datacenter().inspect().tasks;
                tasks
                    .iter()
                    .filter(|task| task.exit.is_none() && task.kind == "qmconfig")
                    .count()
            };
            while filling(stage) < 3 {
                sleep(Duration::from_millis(500)).await;
            }
        };
        let (outcome, took) = stopped(stage, fills).await;
        assert!(took <= LEFT_WITHIN, "it took {took:?}\n{}", stage.story());
        let tasks = named(&outcome);
        let steps: Vec<&str> = tasks.iter().map(|task| task.step.as_str()).collect();
        assert_eq!(
            steps,
            [
                "machine.fill small-control-plane-1",
                "machine.fill small-worker-1",
                "machine.fill small-worker-2"
            ]
        );
        let running = stage.world.datacenter().inspect().tasks;
        for task in tasks {
            let there = running.iter().find(|running| running.upid == task.upid);
            assert!(there.is_some_and(|there| there.exit.is_none()), "{task:?}");
        }
        stage.world.datacenter().faults().remove(rule);
        settled(stage, stage.up(FILE).await);
        let fills = stage.world.datacenter().inspect().tasks;
        let fills = fills.iter().filter(|task| task.kind == "qmconfig").count();
        assert_eq!(fills, 3, "each machine was filled once");
        assert_eq!(stage.plan(FILE).await.render(), "nothing to do");
    });
}

#[test]
fn a_stop_leaves_waits_for_guests_nodes_and_etcd_within_two_seconds() {
    for step in ["guest.configure", "etcd.bootstrap", "node.await"] {
        on_stage(112, WorldSpec::default(), async |stage| {
            let begun = async {
                stage.began(|begun| begun.action.name() == step).await;
                // In the middle of its wait.
                sleep(Duration::from_millis(1300)).await;
            };
            let (outcome, took) = stopped(stage, begun).await;
            assert!(took <= LEFT_WITHIN, "{step} took {took:?}\n{}", stage.story());
            assert!(matches!(outcome, Err(RunError::Stopped { .. })), "{outcome:?}");
            settled(stage, stage.up(FILE).await);
        });
    }
}

#[test]
fn a_stop_waits_for_the_answer_to_a_request_and_sends_no_other() {
    on_stage(113, WorldSpec::default(), async |stage| {
        let late = Fault::Delay { seconds: 20.0 };
        let rule = befalls("POST /nodes/{node}/qemu", None, late);
        stage.world.datacenter().faults().add(rule);
        let claiming = async {
            stage.began(|step| step.action.name() == "machine.claim").await;
            sleep(Duration::from_secs(5)).await;
        };
        let (outcome, took) = stopped(stage, claiming).await;
        assert!(
            took > Duration::from_secs(10) && took < Duration::from_secs(20),
            "{took:?}\n{}",
            stage.story()
        );
        let claims: Vec<&str> = named(&outcome).iter().map(|task| task.step.as_str()).collect();
        assert_eq!(claims.len(), 3, "{claims:?}");
        stage.world.datacenter().faults().clear();
        settled(stage, stage.up(FILE).await);
    });
}

#[test]
fn a_machine_whose_fill_outlived_its_run_is_worked_on_as_soon_as_it_ends_while_the_others_wait() {
    on_stage(114, WorldSpec::default(), async |stage| {
        let slow = Fault::SlowTask { seconds: 400.0 };
        // The founder of etcd: all others wait for it.
        stage
            .world
            .datacenter()
            .faults()
            .add(befalls("task qmconfig", Some(2000), slow));
        let killed = timeout(Duration::from_secs(3600), async {
            futures::future::select(
                std::pin::pin!(stage.up(FILE)),
                std::pin::pin!(stage.began(|step| step.action.name() == "guest.configure")),
            )
            .await;
        });
        killed.await.expect("a worker is configured while the founder is filled");
        stage.world.datacenter().faults().clear();
        let fill = || {
            let tasks = stage.world.datacenter().inspect().tasks;
            tasks.into_iter().find(|task| task.kind == "qmconfig" && task.id == "2000")
        };
        assert!(fill().is_some_and(|fill| fill.exit.is_none()), "the fill goes on");
        let ended = async {
            while fill().is_some_and(|fill| fill.exit.is_none()) {
                sleep(Duration::from_secs(1)).await;
            }
            let at = Instant::now();
            let runs = || stage.world.datacenter().inspect().vms[&2000].running;
            while !runs() {
                sleep(Duration::from_secs(1)).await;
            }
            at.elapsed()
        };
        let ended = timeout(Duration::from_secs(3600), ended);
        let (outcome, idle) = futures::future::join(stage.up(FILE), ended).await;
        settled(stage, outcome);
        let idle = idle.expect("it runs at last");
        assert!(idle < Duration::from_secs(30), "it lay idle for {idle:?}\n{}", stage.story());
    });
}
