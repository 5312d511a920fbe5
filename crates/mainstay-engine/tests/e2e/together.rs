//! Two people in front of one cluster.

use std::time::Duration;

use futures::future::join;
use mainstay_engine::{RunError, RunReport};
use mainstay_sim::WorldSpec;
use pve_sim::faults::{Fault, Rule};

use crate::stage::{Stage, THREE_AND_TWO, on_stage, settled};

fn larger() -> String {
    THREE_AND_TWO.replace("memory: 4GiB", "memory: 6GiB")
}

fn is_leased(outcome: &Result<RunReport, RunError>) -> bool {
    matches!(outcome, Err(RunError::LeaseHeld(_)))
}

fn lease_of(stage: &Stage, vmid: u32) -> Option<String> {
    let inventory = stage.world.datacenter().inspect();
    let description = inventory.vms[&vmid].config.get("description")?;
    mainstay_plan::Mark::parse(description)?.lease.map(|lease| lease.who)
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
            let (colleague, began) = (stage.with_a_colleague(), tokio::time::Instant::now());
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
            let mut run = colleague.run(&spec, &site, mainstay_engine::RunGoal::Up);
            run.despite_lease = true;
            mainstay_engine::converge(&run, &mut |request| request.approve()).await
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
