//! A VM of ours is destroyed in the middle of the work, and a foreign VM takes its VMID.

use mainstay_engine::RunError;
use mainstay_plan::RefusalKind;
use mainstay_sim::WorldSpec;

use crate::stage::{Stage, THREE_AND_TWO, on_stage, settled};

const VMID: u32 = 3001;

#[test]
fn a_foreign_vm_that_takes_our_vmid_between_two_steps_is_left_alone() {
    for action in ["machine.claim", "machine.fill", "machine.grow"] {
        on_stage(71, WorldSpec::default(), async |stage| {
            let lab = stage.world.datacenter().lab();
            let theirs = [
                ("name", "intruder"),
                ("memory", "512"),
                ("scsi0", "local-lvm:vm-3001-disk-7,size=1G"),
            ];
            let theirs = theirs.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let swap = async {
                stage
                    .ended(|step| step.action.name() == action && step.action.info().vm.is_some_and(|vm| vm.vmid == VMID))
                    .await;
                let host = stage.world.datacenter().inspect().vms[&VMID].host.clone();
                lab.destroy_vm(VMID);
                lab.create_vm(VMID, &host, theirs.clone().into());
                stage.world.datacenter().inspect().vms[&VMID].clone()
            };
            let (outcome, before) = futures::future::join(stage.up(THREE_AND_TWO), swap).await;
            let after = stage.world.datacenter().inspect().vms[&VMID].clone();
            assert_eq!(
                format!("{after:?}"),
                format!("{before:?}"),
                "after {action}\n{}",
                stage.story()
            );
            let Err(RunError::Refused(plan)) = outcome else {
                panic!("after {action}: {outcome:?}\n{}", stage.story());
            };
            assert!(
                plan.refusals.iter().any(|refusal| refusal.kind == RefusalKind::Conflict),
                "{:?}",
                plan.refusals
            );
        });
    }
}

/// Runs `down`, and `meddle` as soon as the machine with this VMID is stopped.
async fn down_with(stage: &Stage, meddle: impl FnOnce()) -> Result<mainstay_engine::RunReport, RunError> {
    let meddling = async {
        stage
            .ended(|step| step.action.name() == "machine.stop" && step.action.info().vm.is_some_and(|vm| vm.vmid == VMID))
            .await;
        meddle();
    };
    futures::future::join(stage.down(THREE_AND_TWO), meddling).await.0
}

fn calls(stage: &Stage, call: &str) -> u64 {
    let calls = stage.world.datacenter().stats().calls();
    calls.get(call).copied().unwrap_or_default()
}

#[test]
fn a_foreign_vm_that_takes_our_vmid_after_the_stop_is_not_deleted() {
    on_stage(72, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(THREE_AND_TWO).await);
        let lab = stage.world.datacenter().lab();
        let host = stage.world.datacenter().inspect().vms[&VMID].host.clone();
        let outcome = down_with(stage, || {
            lab.destroy_vm(VMID);
            lab.create_vm(VMID, &host, [("name".to_owned(), "intruder".to_owned())].into());
        });
        let outcome = outcome.await;
        let vms = stage.world.datacenter().inspect().vms;
        assert_eq!(vms[&VMID].config["name"], "intruder", "{outcome:?}\n{}", stage.story());
    });
}

#[test]
fn a_machine_that_was_edited_after_the_stop_is_read_again_and_deleted() {
    on_stage(73, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(THREE_AND_TWO).await);
        let lab = stage.world.datacenter().lab();
        let before = calls(stage, "GET /nodes/{node}/qemu/{vmid}/pending");
        settled(stage, down_with(stage, || lab.set_config(VMID, "tablet", "0")).await);
        let reads = calls(stage, "GET /nodes/{node}/qemu/{vmid}/pending") - before;
        // Five for the plan, five before the stops, one because the digest was refused.
        assert_eq!(reads, 11, "{}", stage.story());
        assert_eq!(stage.world.datacenter().inspect().vms.len(), 0, "{}", stage.story());
    });
}

#[test]
fn a_machine_that_is_started_after_the_stop_is_stopped_again_before_it_goes() {
    on_stage(74, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(THREE_AND_TWO).await);
        let lab = stage.world.datacenter().lab();
        let report = settled(stage, down_with(stage, || lab.start_vm(VMID)).await);
        assert!(
            stage.story().contains("is running, so it is not deleted"),
            "{}",
            stage.story()
        );
        assert!(report.rounds > 2, "{report:?}");
        assert_eq!(stage.world.datacenter().inspect().vms.len(), 0, "{}", stage.story());
    });
}

#[test]
fn a_machine_that_is_started_by_hand_before_its_start_is_left_running() {
    on_stage(75, WorldSpec::default(), async |stage| {
        let lab = stage.world.datacenter().lab();
        let start = async {
            stage
                .ended(|step| step.action.name() == "machine.grow" && step.action.info().vm.is_some_and(|vm| vm.vmid == VMID))
                .await;
            lab.start_vm(VMID);
        };
        let (outcome, ()) = futures::future::join(stage.up(THREE_AND_TWO), start).await;
        settled(stage, outcome);
        assert_eq!(
            calls(stage, "POST /nodes/{node}/qemu/{vmid}/status/stop"),
            0,
            "{}",
            stage.story()
        );
    });
}

#[test]
fn a_machine_that_runs_since_before_it_had_a_disk_is_started_anew() {
    on_stage(76, WorldSpec::default(), async |stage| {
        let lab = stage.world.datacenter().lab();
        let start = async {
            stage
                .ended(|step| step.action.name() == "machine.claim" && step.action.info().vm.is_some_and(|vm| vm.vmid == VMID))
                .await;
            lab.start_vm(VMID);
        };
        let (outcome, ()) = futures::future::join(stage.up(THREE_AND_TWO), start).await;
        settled(stage, outcome);
        // Only the refused start tells that it runs, and only its uptime since when.
        assert_eq!(
            calls(stage, "GET /nodes/{node}/qemu/{vmid}/status/current"),
            1,
            "{}",
            stage.story()
        );
        assert_eq!(
            calls(stage, "POST /nodes/{node}/qemu/{vmid}/status/stop"),
            1,
            "{}",
            stage.story()
        );
        assert_eq!(
            calls(stage, "POST /nodes/{node}/qemu/{vmid}/status/start"),
            6,
            "{}",
            stage.story()
        );
    });
}

#[test]
fn a_machine_that_was_edited_before_its_start_is_read_again_and_its_disks_are_recorded() {
    on_stage(77, WorldSpec::default(), async |stage| {
        let lab = stage.world.datacenter().lab();
        let edit = async {
            stage
                .ended(|step| step.action.name() == "machine.fill" && step.action.info().vm.is_some_and(|vm| vm.vmid == VMID))
                .await;
            lab.set_config(VMID, "tablet", "0");
        };
        let (outcome, ()) = futures::future::join(stage.up(THREE_AND_TWO), edit).await;
        settled(stage, outcome);
        let description = stage.world.datacenter().inspect().vms[&VMID].config["description"].clone();
        assert!(description.contains("vm-3001-disk-"), "{description}");
    });
}

#[test]
fn the_claim_of_the_first_machine_takes_the_lease() {
    on_stage(78, WorldSpec::default(), async |stage| {
        let claimed = async {
            stage
                .ended(|step| step.action.name() == "machine.claim" && step.action.info().vm.is_some_and(|vm| vm.vmid == 2000))
                .await;
            let written = calls(stage, "PUT /nodes/{node}/qemu/{vmid}/config");
            (
                stage.world.datacenter().inspect().vms[&2000].config["description"].clone(),
                written,
            )
        };
        let (outcome, (description, written)) = futures::future::join(stage.up(THREE_AND_TWO), claimed).await;
        settled(stage, outcome);
        assert!(description.contains("lease ops@desk"), "{description}");
        assert_eq!(written, 0, "no request of its own takes the lease");
        let description = stage.world.datacenter().inspect().vms[&2000].config["description"].clone();
        assert!(!description.contains("lease"), "{description}");
    });
}
