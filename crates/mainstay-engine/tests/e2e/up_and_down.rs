//! From one file to Ready nodes and back, on the simulated world.

use crate::stage::{THREE_AND_TWO, on_stage, settled};
use mainstay_sim::WorldSpec;

#[test]
fn a_new_cluster_becomes_ready_in_one_plan_and_planning_again_is_empty() {
    on_stage(1, WorldSpec::default(), async |stage| {
        let report = settled(stage, stage.up(THREE_AND_TWO).await);
        let nodes = report.nodes.expect("kubernetes answers").nodes;
        assert_eq!(nodes.len(), 5, "{nodes:?}");
        assert!(nodes.values().all(|node| node.ready), "{nodes:?}");
        assert_eq!(
            report.rounds,
            2,
            "one plan, and one look that finds nothing left\n{}",
            stage.story()
        );
        assert_eq!(stage.plan(THREE_AND_TWO).await.render(), "nothing to do");
    });
}

#[test]
fn down_leaves_nothing_of_ours() {
    on_stage(2, WorldSpec::default(), async |stage| {
        let before = stage.world.datacenter().inspect();
        settled(stage, stage.up(THREE_AND_TWO).await);
        settled(stage, stage.down(THREE_AND_TWO).await);
        let after = stage.world.datacenter().inspect();
        assert_eq!(after.vms.len(), before.vms.len());
        let disks = |inventory: &pve_sim::Inventory| inventory.volumes.iter().filter(|volume| volume.content == "images").count();
        assert_eq!(disks(&after), disks(&before));
    });
}
