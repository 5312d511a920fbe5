//! A VM of ours is destroyed in the middle of the work, and somebody else takes its VMID.

use mainstay_engine::RunError;
use mainstay_plan::RefusalKind;
use mainstay_sim::WorldSpec;

use crate::stage::{THREE_AND_TWO, on_stage};

const VMID: u32 = 3001;

#[test]
fn whoever_takes_a_vmid_of_ours_between_two_steps_is_left_alone() {
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
