//! Something outside keeps a machine from being changed: it is waited for, then told, and never called settled.

use std::time::Duration;

use mainstay_sim::WorldSpec;
use tokio::time::Instant;

use crate::stage::{Stage, on_stage, settled};

const FILE: &str = "\
name: small
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }
talos: { version: 1.13.9 }
pools:
  control-plane: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+ }
";

/// A cluster whose only machine is being backed up, and a file that wants it larger.
async fn backed_up(stage: &Stage) -> String {
    settled(stage, stage.up(FILE).await);
    stage.world.datacenter().lab().set_lock(2000, Some("backup"));
    FILE.replace("memory: 4GiB", "memory: 6GiB")
}

#[test]
fn what_stays_held_for_minutes_is_not_settled() {
    on_stage(41, WorldSpec::default(), async |stage| {
        let larger = backed_up(stage).await;
        let began = Instant::now();
        let report = settled(stage, stage.up(&larger).await);
        assert!(began.elapsed() > Duration::from_secs(100), "it was not waited for");
        assert!(!report.is_settled(), "{:?}", report.held);
        assert!(report.held[0].reason.contains("backup"), "{:?}", report.held);
        assert!(stage.plan(&larger).await.is_blocked());
    });
}

#[test]
fn what_was_held_for_a_moment_is_done_when_it_passes() {
    on_stage(42, WorldSpec::default(), async |stage| {
        let larger = backed_up(stage).await;
        let unlocked = async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            stage.world.datacenter().lab().set_lock(2000, None);
        };
        let (outcome, ()) = tokio::join!(stage.up(&larger), unlocked);
        let report = settled(stage, outcome);
        assert!(report.is_settled() && report.done > 0, "{report:?}");
        assert_eq!(stage.world.datacenter().inspect().vms[&2000].config["memory"], "6144");
    });
}

#[test]
fn what_stays_as_it_is_for_good_does_not_hold_anything_up() {
    on_stage(43, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        let other = FILE.replace("vmids: 2000+", "vmids: 4000+");
        let report = settled(stage, stage.up(&other).await);
        assert!(report.held[0].reason.contains("it keeps VMID 2000"), "{:?}", report.held);
        assert!(report.is_settled());
    });
}
