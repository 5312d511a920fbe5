//! Disks: create the disks of a claimed VM, grow a disk, delete a volume that no VM uses.

use std::time::Duration;

use mainstay_plan::{Fill, StorageAt, VmRef, VolumeIdentity, is_cloud_init_volume};
use mainstay_spec::Gib;
use pve_api::{Content, DiskSize, Drive, Slot, Upid, VmConfig, Vmid, Volid, cluster, qemu, storage, task};
use tokio::time::Instant;

use super::location::VmLocation;
use super::tasks::{await_running_tasks, follow_copy, follow_task, journal_begin, journal_task, send_once};
use super::vm::{ran_before, stop};
use crate::clients::Clients;
use crate::event::StepProgress;
use crate::failure::{Failure, FailureKind};
use crate::guest::StepContext;
use crate::journal::JournalEntry;
use crate::observe::{LOG_LINES, all_uses, made_in, writing_task};
use crate::pve_config::{missing_drives, parse_name, slot};

/// How long after the start of this run a request of an earlier, killed run may still be executed. A host drops a forwarded request after
/// 30 seconds. Proxmox VE has no limit for a request on its own host, so this value is an estimate with a margin, not a proof.
const INFLIGHT_WINDOW: Duration = Duration::from_secs(50);

/// For how long a volume must stay as it is before it counts as left behind.
const STILL: Duration = Duration::from_secs(30);

/// Creates all disks of a claimed VM with one request. The request is not idempotent: a second one would allocate a second set of disks.
/// So the running tasks of the VM are awaited first, and only missing disks are requested.
pub(super) async fn fill(site: &Clients, ctx: StepContext<'_>, fill: &Fill) -> Result<(), Failure> {
    let voice = ctx.progress;
    await_inflight_deletes(site, voice, &fill.vm).await;
    // Only a request of an earlier run or attempt may be at work on the VM.
    let is_fresh = take_fresh(site, &fill.vm);
    if !is_fresh {
        await_running_tasks(site, voice, &VmLocation::planned(&fill.vm)?).await?;
    }
    let (location, config) = VmLocation::config(site, &fill.vm).await?;
    let set = missing_drives(fill, &config)?;
    if set == VmConfig::default() {
        return Ok(());
    }
    let system = fill.system.as_ref().map(|disk| slot(&disk.slot)).transpose()?;
    let makes_system = system.is_some_and(|slot| set.drives.contains_key(&slot));
    journal_begin(site, "machine.fill", &fill.vm.to_string());
    let change = qemu::Change {
        set,
        digest: config.digest,
        ..qemu::Change::default()
    };
    let call = qemu::change(&location.host, location.vmid, &change);
    let sent = send_once(site, voice, &location, call).await?;
    let answered = Instant::now();
    let mut copied_at = None;
    if let Some(upid) = sent {
        journal_task(site, "machine.fill", &fill.vm.to_string(), &upid);
        let storage = fill.system.as_ref().map(|disk| parse_name(&disk.storage)).transpose()?;
        let ended = follow_copy(site, voice, &upid, storage.as_ref()).await;
        if ended.is_err() {
            journal_created_volumes(site, location.vmid, &upid).await;
        }
        copied_at = ended?;
    }
    // A VM that was started without a disk never finds the disk. Proxmox VE holds the VM's lock during the copy, so only a start before the
    // copy does harm. The start that follows shows it where this run claimed the VM; any other may be left running by this run.
    let then = copied_at.unwrap_or(answered);
    if makes_system {
        site.filled.lock().expect("plain data").insert(fill.vm.vmid, then);
    }
    if makes_system && !is_fresh && started_before(site, &location, then).await? {
        stop(site, ctx, &fill.vm, None).await?;
    }
    if is_fresh {
        site.fresh.lock().expect("plain data").insert(fill.vm.vmid);
    }
    Ok(())
}

/// Whether this run claimed the VM and no step of it failed since. Until the caller has succeeded it does not count as such.
fn take_fresh(site: &Clients, vm: &VmRef) -> bool {
    site.fresh.lock().expect("plain data").remove(&vm.vmid)
}

/// Records the volumes that a failed task allocated. No config references them, only the task's log names them.
async fn journal_created_volumes(site: &Clients, vmid: Vmid, upid: &Upid) {
    let Ok(page) = site.pve.call(task::log(upid, 0, LOG_LINES)).await else {
        return;
    };
    let volumes: Vec<String> = page.items.iter().filter_map(|line| made_in(&line.t)).collect();
    if !volumes.is_empty() {
        site.journal.write(&JournalEntry::Made {
            vmid: vmid.get(),
            volumes,
            host: Some(upid.host().to_string()),
            since: Some(upid.starttime().into()),
        });
    }
}

/// Whether the VM runs since before a point in time.
async fn started_before(site: &Clients, location: &VmLocation, then: Instant) -> Result<bool, Failure> {
    let status = site.pve.call(qemu::status(&location.host, location.vmid)).await?;
    Ok(status.status == cluster::RunState::Running && ran_before(&status, then))
}

/// This run deleted a leftover volume of the VM. A killed run may have sent a delete request for the same volume, which is still in flight.
/// It must not arrive after a new disk got the same name, so wait until it cannot be executed any more.
async fn await_inflight_deletes(site: &Clients, voice: &StepProgress, vm: &VmRef) {
    let until = site.began + INFLIGHT_WINDOW;
    if site.freed.lock().expect("plain data").contains(&vm.vmid) && Instant::now() < until {
        voice.wait(
            "waiting: a delete request of a killed run may still be in flight",
            INFLIGHT_WINDOW,
        );
        tokio::time::sleep_until(until).await;
    }
}

/// Grows a disk to an absolute size, unless it is that large already.
pub(super) async fn grow(site: &Clients, voice: &StepProgress, vm: &VmRef, slot_name: &str, to: Gib) -> Result<(), Failure> {
    let is_fresh = take_fresh(site, vm);
    let (location, config) = VmLocation::config(site, vm).await?;
    let slot = slot(slot_name)?;
    let drive = config
        .drives
        .get(&slot)
        .ok_or_else(|| Failure::stale_plan(format!("{vm} has no disk {slot_name}")))?;
    let wanted = DiskSize::from_gib(to.0);
    if drive.size.is_some_and(|size| size >= wanted) {
        return Ok(());
    }
    journal_begin(site, "machine.grow", &vm.to_string());
    let call = qemu::resize(&location.host, location.vmid, slot, wanted, config.digest);
    if let Some(upid) = send_once(site, voice, &location, call).await? {
        follow_task(site, "machine.grow", &vm.to_string(), &upid).await?;
    }
    // Only an earlier attempt, of this run or another, may have left a size that a resize does not correct.
    if is_fresh {
        return Ok(());
    }
    let (location, config) = VmLocation::config(site, vm).await?;
    match config.drives.get(&slot) {
        Some(drive) if drive.size.is_none_or(|size| size < wanted) => measure(site, &location, &config, slot, drive).await,
        _ => Ok(()),
    }
}

/// Makes Proxmox VE measure a disk again. A resize that was interrupted after the volume grew leaves the old size in the config, and another
/// resize does not correct it. Proxmox VE measures a disk whose config is sent without a size.
async fn measure(site: &Clients, location: &VmLocation, config: &VmConfig, slot: Slot, drive: &Drive) -> Result<(), Failure> {
    let mut change = qemu::Change {
        digest: config.digest,
        ..qemu::Change::default()
    };
    let unsized_drive = Drive {
        size: None,
        ..drive.clone()
    };
    change.set.drives.insert(slot, unsized_drive);
    site.send(qemu::set(&location.host, location.vmid, &change)).await?;
    Ok(())
}

/// Deletes a volume that no VM references and no task is creating. Proxmox VE reuses a volume name as soon as it is free.
pub(super) async fn delete_volume(
    site: &Clients,
    voice: &StepProgress,
    at: &StorageAt,
    volume: &str,
    identity: VolumeIdentity,
) -> Result<(), Failure> {
    let (host, volid): (pve_api::Host, Volid) = (parse_name(&at.host)?, parse_name(volume)?);
    let owner = volid.owner();
    let vmid = owner.ok_or_else(|| Failure::new(FailureKind::Bug, format!("{volid} is not a disk of a VM")))?;
    // A fill writes volumes before a config names them, and their size and time change meanwhile. Proxmox VE itself writes the seed.
    if !is_cloud_init_volume(volume) {
        check_unchanged(site, &host, &volid, identity).await?;
        voice.wait("waiting: the volume must stay as it is", STILL);
        tokio::time::sleep(STILL).await;
        check_unchanged(site, &host, &volid, identity).await?;
    }
    check_unused(site, &volid, vmid, &at.host).await?;
    site.freed.lock().expect("plain data").insert(vmid.get());
    let call = storage::delete(&host, &volid);
    match send_once(site, voice, &VmLocation { host, vmid }, call).await {
        Ok(Some(upid)) => follow_task(site, "volume.delete", volume, &upid).await?,
        Ok(None) => {}
        Err(error) if error.is_missing() => {}
        Err(error) => return Err(error.into()),
    }
    site.journal.write(&JournalEntry::Ended {
        volumes: vec![volume.to_owned()],
    });
    Ok(())
}

/// Checks that the volume of this name is still the one that was planned.
async fn check_unchanged(site: &Clients, host: &pve_api::Host, volid: &Volid, identity: VolumeIdentity) -> Result<(), Failure> {
    let filter = storage::ContentFilter {
        content: Some(Content::Images),
        vmid: volid.owner(),
    };
    let listed = site.pve.call(storage::content(host, volid.storage(), &filter)).await?;
    let now = listed
        .iter()
        .find(|volume| volume.volid == *volid)
        .map(|volume| VolumeIdentity {
            created: volume.ctime,
            size: volume.size,
        });
    match now {
        Some(now) if now == identity => Ok(()),
        Some(_) => Err(Failure::stale_plan(format!(
            "{volid} changed since it was read, so it is not deleted"
        ))),
        None => Err(Failure::stale_plan(format!("{volid} is gone"))),
    }
}

/// Checks that no VM references the volume and that no task works on the VM with its VMID. A config that cannot be read may reference the
/// volume, so it is an error.
async fn check_unused(site: &Clients, volid: &Volid, owner: Vmid, near: &str) -> Result<(), Failure> {
    let resources = site.pve.call(cluster::resources(None)).await?;
    let (mut guests, mut hosts) = (Vec::new(), Vec::new());
    for resource in resources {
        match resource {
            cluster::Resource::Guest(guest) => guests.push(guest),
            cluster::Resource::Host(host) if host.status == cluster::HostState::Online => hosts.push(host.host),
            _ => {}
        }
    }
    if all_uses(&site.pve, &guests).await?.contains(&volid.to_string()) {
        return Err(Failure::stale_plan(format!("a VM references {volid} now")));
    }
    match writing_task(&site.pve, &hosts, owner.get(), near).await? {
        Some(upid) => Err(Failure::stale_plan(format!("a task may be writing {volid}: {upid}"))),
        None => Ok(()),
    }
}
