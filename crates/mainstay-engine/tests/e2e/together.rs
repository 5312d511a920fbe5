//! Two people in front of one cluster.

use std::time::Duration;

use futures::future::join;
use mainstay_engine::{LeaseHolder, RunError, RunGoal, RunReport, converge};
use mainstay_net::Wall;
use mainstay_plan::{Lease, with_lease};
use mainstay_sim::WorldSpec;
use pve_sim::faults::{Fault, Rule};
use tokio::time::Instant;

use crate::stage::{Stage, THREE_AND_TWO, on_stage, settled};

fn larger() -> String {
    THREE_AND_TWO.replace("memory: 4GiB", "memory: 6GiB")
}

fn is_leased(outcome: &Result<RunReport, RunError>) -> bool {
    matches!(outcome, Err(RunError::LeaseHeld(_)))
}

fn lease_line(stage: &Stage, vmid: u32) -> Option<Lease> {
    let inventory = stage.world.datacenter().inspect();
    let description = inventory.vms[&vmid].config.get("description")?;
    mainstay_plan::Mark::parse(description)?.lease
}

fn lease_of(stage: &Stage, vmid: u32) -> Option<String> {
    lease_line(stage, vmid).map(|lease| lease.who)
}

/// No `PUT` of the config of a VM that is there is carried out.
fn no_config_can_be_written(stage: &Stage) {
    for vmid in stage.world.datacenter().inspect().vms.keys() {
        stage.world.datacenter().faults().add(Rule {
            call: "PUT /nodes/{node}/qemu/{vmid}/config".into(),
            path: Some(format!("/qemu/{vmid}/")),
            from: 1,
            times: None,
            chance: 1.0,
            then: Fault::Refuse {
                status: 500,
                reason: format!("can't lock file '/var/lock/qemu-server/lock-{vmid}.conf' - got timeout"),
            },
        });
    }
}

#[test]
fn of_two_who_begin_at_the_same_instant_one_restarts_machines_and_the_other_is_told_so() {
    for seed in 41..45 {
        on_stage(seed, WorldSpec::default(), async |stage| {
            settled(stage, stage.up(THREE_AND_TWO).await);
            let (colleague, file) = (stage.with_a_colleague(), larger());
            let (mine, theirs) = join(stage.up(&file), colleague.up(&file)).await;
            assert!(is_leased(&mine) != is_leased(&theirs), "{mine:?} {theirs:?}");
            settled(stage, if is_leased(&mine) { theirs } else { mine });
            assert_eq!(stage.plan(&file).await.render(), "nothing to do");
            assert_eq!(lease_of(stage, 2000), None);
        });
    }
}

#[test]
fn of_two_who_make_a_new_cluster_at_the_same_instant_the_one_whose_claim_came_second_is_told_at_once() {
    for seed in 35..37 {
        on_stage(seed, WorldSpec::default(), async |stage| {
            let (colleague, began) = (stage.with_a_colleague(), Instant::now());
            let begun = async |stage: &Stage| {
                let outcome = stage.up(THREE_AND_TWO).await;
                (is_leased(&outcome), outcome, began.elapsed())
            };
            let (mine, theirs) = join(begun(stage), begun(&colleague)).await;
            assert!(mine.0 != theirs.0, "{mine:?} {theirs:?}");
            let (other, winner) = if mine.0 { (mine, theirs) } else { (theirs, mine) };
            settled(stage, winner.1);
            // Before a lease is renewed for the first time. What it had begun ends first: the download of the image.
            assert!(other.2 < Duration::from_secs(55), "{:?}\n{}", other.2, stage.story());
            assert_eq!(lease_of(stage, 2000), None);
        });
    }
}

#[test]
fn who_cannot_take_the_lease_takes_no_machine_down() {
    on_stage(46, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(THREE_AND_TWO).await);
        no_config_can_be_written(stage);
        let boots = |stage: &Stage| stage.world.datacenter().inspect().vms[&3000].clone();
        let before = boots(stage);
        let Err(RunError::StepsFailed { failed, done: 0, .. }) = stage.up(&larger()).await else {
            panic!("{}", stage.story());
        };
        assert!(
            failed
                .iter()
                .all(|(_, failure)| failure.why.as_deref().is_some_and(|why| why.contains("lease")))
        );
        assert_eq!(format!("{before:?}"), format!("{:?}", boots(stage)));
        stage.world.datacenter().faults().clear();
        settled(stage, stage.up(&larger()).await);
    });
}

#[test]
fn a_new_machine_is_made_although_no_lease_can_be_written() {
    on_stage(47, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(THREE_AND_TWO).await);
        no_config_can_be_written(stage);
        let more = THREE_AND_TWO.replace("worker: { count: 2", "worker: { count: 3");
        settled(stage, stage.up(&more).await);
    });
}

#[test]
fn a_run_that_lost_the_lease_starts_no_new_step() {
    on_stage(48, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(THREE_AND_TWO).await);
        let (colleague, file) = (stage.with_a_colleague(), larger());
        let overrule = async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            let spec = colleague.spec(&file);
            let site = colleague.site(&spec);
            let mut run = colleague.run(&spec, &site, RunGoal::Up);
            run.despite_lease = true;
            converge(&run, &mut |request| request.approve()).await
        };
        let (mine, theirs) = join(stage.up(&file), overrule).await;
        assert!(is_leased(&mine), "{mine:?}");
        settled(stage, theirs);
        assert_eq!(stage.plan(&file).await.render(), "nothing to do");
    });
}

/// Waits until the first machine carries the lease and the first step is done.
async fn in_the_middle(stage: &Stage, action: &str) {
    stage.ended(|step| step.action.name() == action).await;
    assert!(lease_of(stage, 2000).is_some(), "{}", stage.story());
}

#[test]
fn the_lease_follows_its_machine_to_another_host() {
    on_stage(47, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(THREE_AND_TWO).await);
        let lab = stage.world.datacenter().lab();
        let moved = async {
            in_the_middle(stage, "machine.reboot").await;
            let host = stage.world.datacenter().inspect().vms[&2000].host.clone();
            lab.move_vm(2000, if host == "pve1" { "pve2" } else { "pve1" });
        };
        let file = larger();
        let (outcome, ()) = join(stage.up(&file), moved).await;
        settled(stage, outcome);
        assert_eq!(lease_of(stage, 2000), None);
    });
}

/// Its mark is ours to the letter, with the lease; only its UUID is not.
#[test]
fn the_lease_of_a_copy_that_took_the_vmid_of_the_first_machine_is_left_alone() {
    on_stage(48, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(THREE_AND_TWO).await);
        let lab = stage.world.datacenter().lab();
        let swapped = async {
            in_the_middle(stage, "machine.reboot").await;
            let ours = stage.world.datacenter().inspect().vms[&2000].clone();
            let mut config = ours.config.clone();
            config.insert("smbios1".into(), "uuid=11111111-2222-4333-8444-555555555555".into());
            lab.destroy_vm(2000);
            lab.create_vm(2000, &ours.host, config.clone());
            config
        };
        let file = larger();
        let (_, config) = join(stage.up(&file), swapped).await;
        assert_eq!(
            stage.world.datacenter().inspect().vms[&2000].config,
            config,
            "{}",
            stage.story()
        );
    });
}

/// Runs `up` as this run.
async fn up_as(stage: &Stage, file: &str, holder: LeaseHolder) -> Result<RunReport, RunError> {
    let spec = stage.spec(file);
    let site = stage.site(&spec);
    let mut run = stage.run(&spec, &site, RunGoal::Up);
    run.holder = holder;
    converge(&run, &mut |request| request.approve()).await
}

#[test]
fn two_runs_of_one_user_on_one_machine_are_two() {
    on_stage(121, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(THREE_AND_TWO).await);
        let file = larger();
        let (mine, theirs) = join(stage.up(&file), stage.up(&file)).await;
        assert!(is_leased(&mine) != is_leased(&theirs), "{mine:?} {theirs:?}");
        settled(stage, if is_leased(&mine) { theirs } else { mine });
    });
}

/// Kills a run of this holder while it has the lease.
async fn killed(stage: &Stage, file: &str, holder: LeaseHolder) {
    let run = std::pin::pin!(up_as(stage, file, holder));
    let middle = std::pin::pin!(in_the_middle(stage, "machine.reboot"));
    futures::future::select(run, middle).await;
    assert!(lease_of(stage, 2000).is_some(), "{}", stage.story());
}

#[test]
fn the_lease_of_a_killed_run_of_the_same_user_and_machine_is_taken_at_once() {
    on_stage(122, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(THREE_AND_TWO).await);
        let file = larger();
        // No process has this number any more.
        killed(stage, &file, stage.holder(900, "desk")).await;
        let began = Instant::now();
        let taken = async {
            while lease_line(stage, 2000).is_none_or(|line| line.run.is_none_or(|run| run.id.ends_with("-900"))) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            began.elapsed()
        };
        let (outcome, taken) = join(stage.up(&file), taken).await;
        settled(stage, outcome);
        assert!(taken < Duration::from_secs(20), "{taken:?}");
    });
}

#[test]
fn a_container_of_the_same_name_has_other_processes_so_its_lease_is_waited_for() {
    on_stage(123, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(THREE_AND_TWO).await);
        let file = larger();
        // The same user and host name, and a process with that number is not here.
        killed(stage, &file, stage.holder(900, "container")).await;
        assert!(is_leased(&stage.up(&file).await), "{}", stage.story());
        // Its time is over, and it was not renewed while we watched.
        tokio::time::sleep(Duration::from_secs(121)).await;
        let began = Instant::now();
        settled(stage, stage.up(&file).await);
        assert!(began.elapsed() > Duration::from_secs(60), "it was not watched");
    });
}

#[test]
fn clocks_that_differ_by_ten_minutes_take_nothing_from_a_run_that_works() {
    for seconds in [-600, 600] {
        on_stage(124, WorldSpec::default(), async |stage| {
            settled(stage, stage.up(THREE_AND_TWO).await);
            let mut colleague = stage.with_a_colleague();
            let now = stage.env.wall.now() + jiff::SignedDuration::from_secs(seconds);
            colleague.env.wall = Wall::at(now);
            let file = larger();
            let theirs = async {
                in_the_middle(stage, "machine.reboot").await;
                colleague.up(&file).await
            };
            let (mine, theirs) = join(stage.up(&file), theirs).await;
            assert!(is_leased(&theirs), "{theirs:?}");
            settled(stage, mine);
        });
    }
}

#[test]
fn a_lease_that_has_ended_by_pves_clock_and_is_still_renewed_is_not_taken() {
    on_stage(125, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(THREE_AND_TWO).await);
        let since: jiff::Timestamp = "2020-01-01T00:00:00Z".parse().expect("a time");
        let lease = |minute: i64| Lease {
            who: "bob@ci".into(),
            since,
            until: since + jiff::SignedDuration::from_mins(minute),
            run: None,
        };
        let write = |lease| {
            let config = &stage.world.datacenter().inspect().vms[&2000].config;
            let text = with_lease(&config["description"], Some(lease));
            stage.world.datacenter().lab().set_config(2000, "description", &text);
        };
        write(lease(1));
        let renewed = async {
            tokio::time::sleep(Duration::from_secs(30)).await;
            write(lease(2));
        };
        let (outcome, ()) = join(stage.up(&larger()), renewed).await;
        assert!(is_leased(&outcome), "{outcome:?}");
    });
}
