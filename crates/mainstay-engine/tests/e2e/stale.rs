//! Proxmox VE tells the cluster about its VMs every ten seconds: what it lists may be over by then.

use std::time::Duration;

use mainstay_sim::WorldSpec;
use pve_api::cluster::{Resource, RunState};
use pve_api::{Client, Vmid, cluster, qemu};

use crate::stage::{QUICK, on_stage, settled};

/// One control plane that boots quicker than the list is renewed.
const FILE: &str = "\
name: small
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }
talos: { version: 1.13.9 }
pools:
  control-plane: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+ }
";

async fn listed(pve: &Client, vmid: Vmid) -> RunState {
    let all = pve.call(cluster::resources(None)).await.expect("a list");
    let of = |resource| match resource {
        Resource::Guest(guest) if guest.vmid == vmid => Some(guest.status),
        _ => None,
    };
    all.into_iter().find_map(of).expect("is listed")
}

#[test]
fn a_machine_that_was_just_started_is_no_stranger_on_its_own_address() {
    on_stage(31, WorldSpec::parse(QUICK).expect("a world"), async |stage| {
        settled(stage, stage.up(FILE).await);
        let pve = stage.pve();
        let vmid: Vmid = "2000".parse().expect("a VMID");
        let host = stage.world.datacenter().inspect().vms[&2000].host.parse().expect("a host");
        pve.call(qemu::stop(&host, vmid, false)).await.expect("stops");
        while listed(&pve, vmid).await != RunState::Stopped {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        pve.call(qemu::start(&host, vmid)).await.expect("starts");
        tokio::time::sleep(Duration::from_secs(3)).await;
        let now = pve.call(qemu::status(&host, vmid)).await.expect("answers").status;
        assert_eq!(
            (listed(&pve, vmid).await, now),
            (RunState::Stopped, RunState::Running),
            "the list is behind, or this shows nothing"
        );
        assert!(
            mainstay_net::dial_within(
                &*stage.env.dialer,
                &mainstay_net::Target::new("10.0.0.11", 50000),
                Duration::from_secs(1)
            )
            .await
            .is_ok(),
            "the machine answers already, or this shows nothing"
        );
        let plan = stage.plan(FILE).await;
        assert!(plan.refusals.is_empty(), "{:?}", plan.refusals);
        settled(stage, stage.up(FILE).await);
    });
}
