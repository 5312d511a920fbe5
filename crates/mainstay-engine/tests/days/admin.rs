//! An administrator who means well, and knows nothing of the run.

use std::net::IpAddr;
use std::time::Duration;

use rand::{Rng, RngExt};
use tokio::time::sleep;

use super::watch::Watch;
use super::weather::Field;
use crate::stage::Stage;

/// One of ours on which no task works: an administrator's tools wait for those.
pub fn idle_machine(stage: &Stage, field: &Field, rng: &mut impl Rng) -> Option<u32> {
    let now = stage.world.datacenter().inspect();
    let busy = |vmid: &u32| {
        now.tasks
            .iter()
            .any(|task| task.exit.is_none() && task.id == vmid.to_string())
    };
    let idle: Vec<u32> = now
        .vms
        .iter()
        .filter(|(vmid, vm)| field.guests.contains_key(vmid) && !busy(vmid) && !vm.config.contains_key("lock"))
        .map(|(vmid, _)| *vmid)
        .collect();
    (!idle.is_empty()).then(|| idle[rng.random_range(0..idle.len())])
}

/// Something done to a machine of ours.
pub async fn administer(stage: &Stage, field: &Field, watch: &Watch, rng: &mut impl Rng, moment: Duration) -> String {
    let Some(vmid) = idle_machine(stage, field, rng).filter(|vmid| !watch.is_strange(*vmid)) else {
        return intrude(stage, field, watch, rng);
    };
    let lab = stage.world.datacenter().lab();
    let host = &field.hosts[rng.random_range(0..field.hosts.len())];
    match rng.random_range(0..8) {
        0 | 1 => {
            lab.kill_vm(vmid);
            format!("{vmid} stopped")
        }
        2 if !watch.is_beside_others(vmid) => {
            lab.kill_vm(vmid);
            lab.move_vm(vmid, host);
            format!("{vmid} moved to {host}")
        }
        3 => {
            lab.hold_vm_lock(vmid, moment).await;
            format!("lock of {vmid} held {moment:?}")
        }
        4 => {
            watch.is_backed_up(vmid);
            lab.set_lock(vmid, Some("backup"));
            sleep(moment).await;
            lab.set_lock(vmid, None);
            format!("{vmid} in backup {moment:?}")
        }
        5 => {
            watch.may_restart(vmid);
            lab.set_config(vmid, "memory", "3072");
            format!("{vmid} shrunk")
        }
        6 if !field.is_control_plane(vmid) => {
            lose(stage, watch, vmid);
            format!("{vmid} destroyed")
        }
        _ => {
            lab.set_config(vmid, "name", "renamed");
            format!("{vmid} renamed")
        }
    }
}

/// A destruction that broke off leaves a VM that refers to disks which are gone.
pub fn is_half_destroyed(stage: &Stage, vmid: u32) -> bool {
    let now = stage.world.datacenter().inspect();
    let is_gone = |value: &String| {
        let volid = value.split(',').next().unwrap_or_default();
        // Proxmox VE makes the seed anew at each start.
        volid.contains(&format!("vm-{vmid}-disk-")) && !now.volumes.iter().any(|volume| volume.volid == volid)
    };
    now.vms.get(&vmid).is_some_and(|vm| vm.config.values().any(is_gone))
}

/// A machine of ours is gone with its disks.
pub fn lose(stage: &Stage, watch: &Watch, vmid: u32) {
    watch.forget(vmid);
    stage.world.datacenter().lab().destroy_vm(vmid);
    watch.count_disks(stage);
}

/// A foreign VM takes a VMID that we have not taken yet.
fn intrude(stage: &Stage, field: &Field, watch: &Watch, rng: &mut impl Rng) -> String {
    let now = stage.world.datacenter().inspect();
    let free: Vec<u32> = field
        .guests
        .keys()
        .filter(|vmid| !now.vms.contains_key(vmid))
        .copied()
        .collect();
    if free.is_empty() || rng.random_bool(0.7) {
        return "nothing".into();
    }
    let vmid = free[rng.random_range(0..free.len())];
    let host = &field.hosts[rng.random_range(0..field.hosts.len())];
    let config = [
        ("name".to_owned(), "intruder".to_owned()),
        ("memory".to_owned(), "512".to_owned()),
    ];
    watch.intrudes(vmid);
    stage.world.datacenter().lab().create_vm(vmid, host, config.into());
    format!("an intruder on {vmid}")
}

/// Those who stood in our way go, and what was begun is over.
pub fn clear_out(stage: &Stage, watch: &Watch) {
    let lab = stage.world.datacenter().lab();
    for vmid in watch.intruders_gone() {
        lab.destroy_vm(vmid);
        watch.count_disks(stage);
    }
    for vmid in watch.backups_over() {
        lab.set_lock(vmid, None);
    }
}

/// Kubernetes cannot be reached at this address, or can be again.
pub fn hide_kubernetes(stage: &Stage, at: IpAddr, hidden: bool) {
    let at = (at, 6443).into();
    if hidden {
        stage.world.net().refuse(at);
    } else {
        stage.world.net().stop_refusing(at);
    }
}
