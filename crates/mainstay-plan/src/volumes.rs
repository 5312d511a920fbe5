//! Whose a volume is: which volumes go with a VM of ours, and which were put there by another hand.

use std::collections::{BTreeMap, BTreeSet};

use crate::action::Action;
use crate::builder::PlanBuilder;
use crate::context::Inputs;
use crate::desired::Desired;
use crate::mark::{MadeDisk, Mark};
use crate::observed::{LeftoverVolume, VmSettings, VolumeUse};
use crate::ownership::{EFI_SLOT, OwnedVm, SYSTEM_SLOT};
use crate::plan::HoldReason;
use crate::step::{Impact, NewDisk, StepId, Subject};
use crate::vm_diff::SYSTEM_SERIAL;

/// Why a volume of a machine that stays is deleted.
pub(crate) const BROKEN_FILL: &str = "leftover volume of an interrupted disk import";

/// The VMID in a volume's name. PVE destroys a volume with the VM of this number only, no matter which VM the volume was made for.
pub fn volume_owner(volume: &str) -> Option<u32> {
    let (_, name) = volume.split_once(':')?;
    let mut parts = name.rsplit('/');
    let file = parts.next()?;
    // On file storages the folder is the owner.
    if let Some(folder) = parts.next().and_then(|folder| folder.parse().ok()) {
        return Some(folder);
    }
    let rest = file.strip_prefix("vm-").or_else(|| file.strip_prefix("base-"))?;
    rest.split('-').next()?.parse().ok()
}

/// PVE writes this volume itself from the VM's options, at each start. It holds nothing of anyone.
pub fn is_cloud_init_volume(volume: &str) -> bool {
    let file = volume.rsplit(['/', ':']).next().unwrap_or_default();
    let stem = file.split('.').next().unwrap_or_default();
    stem.starts_with("vm-") && stem.ends_with("-cloudinit")
}

impl VmSettings {
    /// Everywhere that a volume is named.
    pub fn volume_uses(&self) -> Vec<VolumeUse> {
        let drive = |slot: &str, volume: &str, serial: Option<&String>| VolumeUse {
            slot: slot.to_owned(),
            volume: volume.to_owned(),
            serial: serial.cloned(),
            snapshot: None,
        };
        let disks = self
            .disks
            .iter()
            .map(|(slot, disk)| drive(slot, &disk.volume, disk.serial.as_ref()));
        let seed = self.seed.iter().map(|volume| drive("cloud-init", volume, None));
        disks.chain(seed).chain(self.aside.iter().cloned()).collect()
    }
}

/// The volumes of a VM that is to go.
#[derive(Debug, Default)]
pub(crate) struct DeletedVolumes {
    /// Those that mainstay made.
    pub made: BTreeSet<String>,
    /// Those that the user named.
    pub with_disks: BTreeSet<String>,
    /// Those that neither is known of.
    pub foreign: Vec<VolumeUse>,
}

/// What PVE would destroy with this VM, or leave without a config that names it, and whose each volume is. A volume of another VMID is
/// not here: PVE leaves it alone.
pub(crate) fn deleted_with(desired: &Desired, vm: &OwnedVm<'_>) -> DeletedVolumes {
    let mut deleted = DeletedVolumes::default();
    let uses = vm.config.volume_uses();
    for used in uses.iter().filter(|used| volume_owner(&used.volume) == Some(vm.vm.vmid)) {
        if is_cloud_init_volume(&used.volume) || is_made(desired, vm, used, &uses) {
            deleted.made.insert(used.volume.clone());
        } else if desired.with_disks.contains(&used.volume) {
            deleted.with_disks.insert(used.volume.clone());
        } else {
            deleted.foreign.push(used.clone());
        }
    }
    // A snapshot names the disks of its VM again.
    let DeletedVolumes {
        made,
        with_disks,
        foreign,
    } = &mut deleted;
    foreign.retain(|used| used.snapshot.is_none() || !made.contains(&used.volume) && !with_disks.contains(&used.volume));
    deleted
}

/// Mainstay made the volume that is used here.
fn is_made(desired: &Desired, vm: &OwnedVm<'_>, used: &VolumeUse, uses: &[VolumeUse]) -> bool {
    let Some(list) = vm.mark.as_ref().and_then(|mark| mark.disks.as_ref()) else {
        return used.snapshot.is_none() && is_slot_of_the_file(desired, vm.vm.vmid, used);
    };
    let is_this = |disk: &MadeDisk| disk.volume.as_ref() == Some(&used.volume);
    let has_serial = |disk: &MadeDisk| disk.serial.is_some() && disk.serial == used.serial;
    if used.snapshot.is_some() {
        return list.values().any(is_this);
    }
    if used.slot.starts_with("unused") {
        // PVE gives a free name again: while another volume is in its slot, the one of this name may be a new one.
        let is_replaced = |slot: &String| uses.iter().any(|other| other.slot == *slot && other.volume != used.volume);
        return list.iter().any(|(slot, disk)| is_this(disk) && !is_replaced(slot));
    }
    let in_its_slot = list.get(&used.slot).is_some_and(|disk| {
        let is_not_read_back = disk.volume.is_none() && disk.serial.is_none();
        is_this(disk) || has_serial(disk) || is_not_read_back
    });
    // Moved to another slot, which keeps volume and serial.
    in_its_slot || list.values().any(|disk| is_this(disk) && has_serial(disk))
}

/// A VM from before disks were listed in the mark: what the file's shape has counts as made by mainstay.
fn is_slot_of_the_file(desired: &Desired, vmid: u32, used: &VolumeUse) -> bool {
    let extra = desired.vmids.get(&vmid).map(|expected| &expected.disks);
    let is_extra = |serial: &String| extra.is_some_and(|names| names.contains(serial)) && used.slot.starts_with("scsi");
    match used.slot.as_str() {
        SYSTEM_SLOT => used.serial.as_deref().is_none_or(|serial| serial == SYSTEM_SERIAL),
        EFI_SLOT => true,
        _ => used.serial.as_ref().is_some_and(is_extra),
    }
}

/// Why a VM with these volumes stays, with what keeps each and what destroys it.
pub(crate) fn hold(vmid: u32, foreign: &[VolumeUse]) -> Option<HoldReason> {
    let told: Vec<String> = foreign.iter().map(|used| describe_foreign(vmid, used)).collect();
    (!told.is_empty()).then(|| told.join("; ").into())
}

fn describe_foreign(vmid: u32, used: &VolumeUse) -> String {
    let VolumeUse { slot, volume, .. } = used;
    let keep = match &used.snapshot {
        Some(name) => format!("only snapshot {name} uses it; to remove it: qm delsnapshot {vmid} {name}"),
        None => format!("to keep it: qm disk move {vmid} {slot} --target-vmid <VMID>"),
    };
    format!("{slot} {volume} was not made by mainstay; {keep}; to delete it with the VM: --with-disk {volume}")
}

/// The list of disks as it should be in the mark, for what the config has now.
pub(crate) fn listed(desired: &Desired, vm: &OwnedVm<'_>) -> BTreeMap<String, MadeDisk> {
    let uses = vm.config.volume_uses();
    let known = vm.mark.as_ref().and_then(|mark| mark.disks.clone()).unwrap_or_default();
    let mut list: BTreeMap<String, MadeDisk> = BTreeMap::new();
    for (slot, disk) in &vm.config.disks {
        let used = VolumeUse {
            slot: slot.clone(),
            volume: disk.volume.clone(),
            serial: disk.serial.clone(),
            snapshot: None,
        };
        let is_own = volume_owner(&disk.volume) == Some(vm.vm.vmid);
        if is_own && is_made(desired, vm, &used, &uses) {
            let serial = disk.serial.clone();
            let volume = Some(disk.volume.clone());
            list.insert(slot.clone(), MadeDisk { volume, serial });
        }
    }
    // Asked for and not there yet, or detached.
    let is_detached = |disk: &MadeDisk| {
        let kept = |used: &VolumeUse| used.slot.starts_with("unused") && disk.volume.as_ref() == Some(&used.volume);
        disk.volume.is_none() || uses.iter().any(kept)
    };
    for (slot, disk) in known {
        if !vm.config.disks.contains_key(&slot) && is_detached(&disk) {
            list.insert(slot, disk);
        }
    }
    list
}

/// What a mark lists before the disks are asked for: PVE has yet to choose their names.
pub(crate) fn asked<'d>(disks: impl IntoIterator<Item = &'d NewDisk>) -> impl Iterator<Item = (String, MadeDisk)> {
    disks.into_iter().map(|disk| {
        let serial = Some(disk.serial.clone());
        (disk.slot.clone(), MadeDisk { volume: None, serial })
    })
}

impl Mark {
    /// Writes down the volumes that PVE chose for disks that were asked for, each with its slot and serial.
    #[must_use]
    pub fn with_made(mut self, made: impl IntoIterator<Item = (String, MadeDisk)>) -> Self {
        self.disks.get_or_insert_default().extend(made);
        self
    }
}

/// Deletes what is left of a VM that is ours: volumes that mainstay provably made, and the seed, which PVE wrote and whose name the next
/// seed needs. Returns the volumes with their steps.
pub(crate) fn free_leftovers(
    inputs: Inputs<'_>,
    vmid: u32,
    why: &str,
    after: Option<StepId>,
    plan: &mut PlanBuilder,
) -> Vec<(String, StepId)> {
    let is_freed = |left: &&LeftoverVolume| left.vmid == vmid && left.may_free && left.busy.is_none() && left.is_provable();
    let leftovers = inputs.observed.leftovers.yes().into_iter().flatten().filter(is_freed);
    leftovers
        .map(|left| (left.volume.clone(), free(left, why, after, plan)))
        .collect()
}

impl LeftoverVolume {
    /// Of a VMID of ours: mainstay made it, or Proxmox VE wrote it for a machine of ours.
    pub(crate) fn is_provable(&self) -> bool {
        self.proved || self.doubt.is_none() && is_cloud_init_volume(&self.volume)
    }
}

pub(crate) fn free(left: &LeftoverVolume, why: &str, after: Option<StepId>, plan: &mut PlanBuilder) -> StepId {
    let action = Action::VolumeDelete {
        at: left.at.clone(),
        volume: left.volume.clone(),
        identity: left.identity,
    };
    let step = plan.step(Subject::Volume(left.volume.clone()), action).because(why);
    step.impact(Impact::Wipe).needs(after).add()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_read_from_the_name_as_pve_does() {
        for (volume, owner) in [
            ("local-lvm:vm-2001-disk-0", Some(2001)),
            ("local:2001/vm-2001-disk-0.qcow2", Some(2001)),
            ("local:9000/base-9000-disk-0.raw/2001/vm-2001-disk-0.qcow2", Some(2001)),
            ("zfs:base-9000-disk-0/vm-2001-disk-0", Some(2001)),
            ("ceph:vm-9999-pvc-0f8fad5b-d9cb-469f-a165-70867728950e", Some(9999)),
            ("local:iso/talos.iso", None),
            ("none", None),
        ] {
            assert_eq!(volume_owner(volume), owner, "{volume}");
        }
    }

    #[test]
    fn only_the_seed_of_a_vm_is_pves_own() {
        assert!(is_cloud_init_volume("local-lvm:vm-2001-cloudinit"));
        assert!(is_cloud_init_volume("local:2001/vm-2001-cloudinit.qcow2"));
        for other in [
            "local-lvm:vm-2001-disk-0",
            "local:iso/cloudinit.iso",
            "nfs:2001/cloudinit.qcow2",
        ] {
            assert!(!is_cloud_init_volume(other), "{other}");
        }
    }
}
