//! Disks of other people, on and beside our machines: whatever we remove, each of them survives.

use rand::{Rng, RngExt};

use super::admin::idle_machine;
use super::watch::Watch;
use super::weather::Field;
use crate::stage::Stage;

/// A storage that the token cannot list.
pub const HIDDEN: &str = "hidden";

/// Rights that end before that storage.
pub const RIGHTS: &str = "\
tokens: { root@pam!mainstay: { privsep: 1, secret: 00000000-0000-4000-8000-000000000001 } }
acl:
- { path: /, ugid: root@pam!mainstay, type: token, roleid: Administrator }
- { path: /storage/hidden, ugid: root@pam!mainstay, type: token, roleid: NoAccess }
";

const SIZE: u64 = 8 << 30;

/// A disk that is not ours turns up. One that holds the removal of its machine is put on workers only: etcd may need a control plane whose
/// removal is held, and mainstay does not switch such a one on again.
pub fn turn_up(stage: &Stage, field: &Field, watch: &Watch, rng: &mut impl Rng) -> String {
    let machine = idle_machine(stage, field, rng).filter(|vmid| !watch.is_strange(*vmid) && !is_going(stage, *vmid));
    let number = rng.random_range(0..4);
    match (rng.random_range(0..5), machine) {
        (0, Some(vmid)) if !field.is_control_plane(vmid) => attached(stage, watch, vmid, "scsi5", &free_name(stage, vmid)),
        (1, Some(vmid)) if !field.is_control_plane(vmid) => attached(stage, watch, vmid, "unused7", &free_name(stage, vmid)),
        (2, Some(vmid)) => attached(stage, watch, vmid, "scsi6", &format!("local-lvm:vm-9999-pvc-{number}")),
        (3, Some(vmid)) => replica(stage, field, watch, vmid),
        _ => {
            let vmids: Vec<u32> = field.guests.keys().copied().collect();
            let vmid = vmids[rng.random_range(0..vmids.len())];
            let host = &field.hosts[rng.random_range(0..field.hosts.len())];
            let volid = format!("{HIDDEN}:vm-{vmid}-disk-{number}");
            put(stage, watch, host, &volid, None)
        }
    }
}

/// What was read of it is over: it may be deleted at any moment, and whatever is on it then.
fn is_going(stage: &Stage, vmid: u32) -> bool {
    let now = stage.world.datacenter().inspect();
    let description = now.vms.get(&vmid).and_then(|vm| vm.config.get("description"));
    let mark = description.and_then(|text| mainstay_plan::Mark::parse(text));
    mark.is_none_or(|mark| mark.going)
}

/// The lowest number that is free, as Proxmox VE gives it.
fn free_name(stage: &Stage, vmid: u32) -> String {
    let now = stage.world.datacenter().inspect();
    let name = |number: u32| format!("local-lvm:vm-{vmid}-disk-{number}");
    let is_free = |name: &String| !now.volumes.iter().any(|volume| volume.volid == *name);
    (0..).map(name).find(is_free).expect("a number")
}

/// A person attaches a disk: a new one, one that was moved from another VM, or one of a CSI driver.
fn attached(stage: &Stage, watch: &Watch, vmid: u32, slot: &str, volid: &str) -> String {
    let vm = &stage.world.datacenter().inspect().vms[&vmid];
    if vm.config.contains_key(slot) {
        return "nothing".into();
    }
    let holds = volid.contains(&format!(":vm-{vmid}-")).then_some(vmid);
    let told = put(stage, watch, &vm.host, volid, holds);
    let value = if slot.starts_with("unused") {
        volid.to_owned()
    } else {
        format!("{volid},size=8G")
    };
    stage.world.datacenter().lab().set_config(vmid, slot, &value);
    format!("{told} on {slot}")
}

/// Replication makes a volume of the same name on another host.
fn replica(stage: &Stage, field: &Field, watch: &Watch, vmid: u32) -> String {
    let vm = &stage.world.datacenter().inspect().vms[&vmid];
    let system = vm.config.get("scsi0").and_then(|drive| drive.split(',').next());
    let elsewhere = field.hosts.iter().find(|host| **host != vm.host);
    match (system, elsewhere) {
        (Some(volid), Some(host)) => put(stage, watch, host, volid, None),
        _ => "nothing".into(),
    }
}

fn put(stage: &Stage, watch: &Watch, host: &str, volid: &str, holds: Option<u32>) -> String {
    let now = stage.world.datacenter().inspect();
    let is_it = |volume: &pve_sim::VolumeView| volume.volid == volid && volume.host.as_deref().is_none_or(|at| at == host);
    if now.volumes.iter().any(is_it) {
        return "nothing".into();
    }
    stage.world.datacenter().lab().add_volume(host, volid, SIZE);
    watch.turns_up(volid, host, holds);
    format!("{volid} of others on {host}")
}

/// The people who put disks on our machines take them away: onto a VM of their own, or out of the slot.
pub fn taken_away(stage: &Stage, watch: &Watch) {
    let lab = stage.world.datacenter().lab();
    let now = stage.world.datacenter().inspect();
    for (vmid, vm) in &now.vms {
        for (slot, value) in &vm.config {
            let volid = value.split(',').next().unwrap_or_default();
            if watch.holds(*vmid, volid) {
                lab.unset_config(*vmid, slot);
            }
        }
    }
    watch.hold_nothing();
}
