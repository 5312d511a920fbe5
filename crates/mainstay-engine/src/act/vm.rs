//! Virtual machines: claim, mark, start, change, reboot, stop, delete.

use std::time::Duration;

use mainstay_plan::{
    Claim, GuestRef, MadeDisk, Mark, MarkPart, MarkUpdate, QuorumCheck, Setting, TAG, VmRef, VolumeUse, volume_owner,
};
use pve_api::{Bus, Class, Content, Description, Drive, Error, Slot, Tags, VmConfig, cluster, qemu, storage};
use tokio::time::Instant;

use super::location::{VmLocation, gone, is_running, read_proof, uuid};
use super::tasks::{follow_task, journal_begin, send_once};
use rand::Rng as _;

use crate::clients::Clients;
use crate::event::StepProgress;
use crate::failure::Failure;
use crate::guest::{self, StepContext, etcd};
use crate::journal::JournalEntry;
use crate::known::VmProof;
use crate::observe::volume_uses_with;
use crate::pve_config::{apply_setting, claim_config, description, parse_name, with_tags};
use crate::wait::{self, WaitStatus};

/// How long a restarted machine may take until its guest runs again.
const REBOOT_TIMEOUT: Duration = Duration::from_secs(300);

/// A guest that does not react to ACPI shutdown is stopped after this.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// How long an answer about the quorum of Proxmox VE counts.
const QUORUM_LASTS: Duration = Duration::from_secs(1);

/// Attempts to write the list of volumes when the config changes concurrently.
const RECORD_ATTEMPTS: u32 = 3;

/// Creates the VM without disks, with all its marks. Proxmox VE accepts only one create per VMID, so this request decides who owns the
/// VMID.
pub(super) async fn claim(site: &Clients, claim: &Claim) -> Result<(), Failure> {
    // Random for each life of the VM: the guest proves by it that it is this one.
    let serial = claim.has_serial.then(|| new_serial(site));
    let location = VmLocation::planned(&claim.vm)?;
    let options = qemu::CreateOptions {
        pool: claim.pool.as_deref().map(parse_name).transpose()?,
        start: false,
    };
    journal_begin(site, "machine.claim", &claim.name);
    let config = claim_config(claim, serial.as_deref(), site.lease_of_claim(claim.vm.vmid))?;
    let call = qemu::create(&location.host, location.vmid, &config, &options);
    match site.send(call).await {
        Ok(upid) => {
            follow_task(site, "machine.claim", &claim.name, &upid).await?;
            site.fresh.lock().expect("plain data").insert(claim.vm.vmid);
        }
        // Either an earlier attempt whose answer was lost, or another VM: the SMBIOS UUID tells which.
        Err(error) if error.class() == Some(&Class::Exists) => {
            check_claimed(site, claim).await?;
            if site.lease_of_claim(claim.vm.vmid).is_some() {
                site.lease_doubted.notify_one();
            }
        }
        Err(error) => return Err(error.into()),
    }
    if claim.tags_follow {
        let remark = MarkUpdate {
            vm: claim.vm.clone(),
            mark: Mark {
                tag_follows: false,
                ..claim.mark.clone()
            },
            tags: claim.tags.clone(),
        };
        mark(site, &remark).await?;
    }
    Ok(())
}

/// Checks that the VM on this VMID is the claimed one. Another VM is a conflict that only the user can resolve.
async fn check_claimed(site: &Clients, claim: &Claim) -> Result<(), Failure> {
    let read = VmLocation::read(site, &claim.vm).await?;
    let (_, config) = read.ok_or_else(|| gone(&claim.vm))?;
    // While a VM is being created, its config contains only the lock.
    if config.lock.is_some() && config.smbios.is_none() {
        return Err(Failure::stale_plan(format!(
            "{} is being created by another request",
            claim.vm
        )));
    }
    if uuid(&config) == Some(claim.vm.uuid) {
        Ok(())
    } else {
        Err(vmid_taken(&claim.vm))
    }
}

fn vmid_taken(vm: &VmRef) -> Failure {
    Failure::conflict(format!("VMID {} was taken by another VM since the plan was made", vm.vmid))
        .why("the VM there has another SMBIOS UUID, so it does not belong to this cluster and was not changed")
        .help("choose other VMIDs in cluster.yaml, or move that VM, then run `mainstay up` again")
}

/// Writes the mark and adds tags, if the VM is still the planned one. Compare-and-set with the config's digest: a concurrent edit makes the
/// request fail, and the next attempt reads it first.
pub(super) async fn mark(site: &Clients, remark: &MarkUpdate) -> Result<(), Failure> {
    let (location, config) = VmLocation::config(site, &remark.vm).await?;
    let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
    check_not_unmarked(remark, before, config.tags.as_ref())?;
    let after = remark.mark.write_into(before);
    let mut change = qemu::Change {
        digest: config.digest,
        ..qemu::Change::default()
    };
    if after != before {
        change.set.description = Some(description(&after)?);
    }
    let all = with_tags(config.tags.as_ref(), &remark.tags)?;
    if config.tags.as_ref() != Some(&all) {
        change.set.tags = Some(all);
    }
    if change.set == VmConfig::default() {
        return Ok(());
    }
    journal_begin(site, "machine.mark", &remark.mark.machine);
    site.send(qemu::set(&location.host, location.vmid, &change)).await?;
    Ok(())
}

/// Marks that a person removed after the plan was made are not put back. Only an unfinished claim has no tag yet.
fn check_not_unmarked(remark: &MarkUpdate, before: &str, tags: Option<&Tags>) -> Result<(), Failure> {
    let mark = Mark::parse(before).filter(|mark| mark.machine == remark.mark.machine && mark.vmid == remark.vm.vmid);
    let is_tagged = tags.is_some_and(|tags| tags.contains(TAG));
    match mark {
        Some(mark) if is_tagged || mark.tag_follows => Ok(()),
        _ => Err(Failure::stale_plan(format!(
            "{} lost its marks since the plan was made",
            remark.vm
        ))),
    }
}

/// Starts the VM unless it runs, which Proxmox VE itself tells. The read before the start also serves the list of volumes in the mark.
pub(super) async fn start(site: &Clients, ctx: StepContext<'_>, vm: &VmRef) -> Result<(), Failure> {
    let location = record_volumes(site, vm).await?;
    let Err(failure) = send_start(site, ctx.progress, vm, &location).await else {
        return Ok(());
    };
    let status = site.pve.call(qemu::status(&location.host, location.vmid)).await?;
    if status.status != cluster::RunState::Running {
        return Err(failure);
    }
    // It runs already, or another request was faster. A VM that was started without a disk never finds the disk.
    let filled = site.filled.lock().expect("plain data").get(&vm.vmid).copied();
    if !filled.is_some_and(|then| ran_before(&status, then)) {
        return Ok(());
    }
    stop(site, ctx, vm, None).await?;
    let (location, _) = VmLocation::config(site, vm).await?;
    send_start(site, ctx.progress, vm, &location).await
}

async fn send_start(site: &Clients, voice: &StepProgress, vm: &VmRef, location: &VmLocation) -> Result<(), Failure> {
    journal_begin(site, "machine.start", &vm.to_string());
    let upid = send_once(site, voice, location, qemu::start(&location.host, location.vmid)).await?;
    follow_task(site, "machine.start", &vm.to_string(), &upid).await
}

/// Whether a VM that runs was started before a point in time.
pub(super) fn ran_before(status: &qemu::VmStatus, then: Instant) -> bool {
    // Proxmox VE reports whole seconds.
    Duration::from_secs(status.uptime + 1) >= then.elapsed()
}

/// Changes settings and the mark in one request, so the digest in the mark always describes the settings in force.
pub(super) async fn change(site: &Clients, vm: &VmRef, settings: &[Setting], mark: &Mark) -> Result<(), Failure> {
    let (location, config) = VmLocation::config(site, vm).await?;
    let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
    let mut change = qemu::Change {
        digest: config.digest,
        ..qemu::Change::default()
    };
    change.set.description = Some(description(&mark.write_into(before))?);
    for setting in settings {
        apply_setting(&mut change, setting, &config)?;
    }
    journal_begin(site, "machine.change", &mark.machine);
    if let Some(upid) = site.send(qemu::change(&location.host, location.vmid, &change)).await? {
        follow_task(site, "machine.change", &mark.machine, &upid).await?;
    }
    if settings.iter().any(|setting| matches!(setting, Setting::Attach(_))) {
        record_volumes(site, vm).await?;
    }
    Ok(())
}

/// Records in the mark the volume names of the disks that were requested. From then on ownership of a disk is proved by its volume name.
/// Compare-and-set: if the config changed concurrently, it is read again. Returns where the VM is, as it was read or proved right now.
pub(super) async fn record_volumes(site: &Clients, vm: &VmRef) -> Result<VmLocation, Failure> {
    for _ in 0..RECORD_ATTEMPTS {
        let (location, config) = VmLocation::config(site, vm).await?;
        let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
        let Some(mark) = Mark::parse(before) else {
            return Ok(location);
        };
        let made = created_disks(vm.vmid, &mark, &config);
        if made.is_empty() {
            return Ok(location);
        }
        site.journal.write(&JournalEntry::Made {
            vmid: vm.vmid,
            volumes: made.iter().filter_map(|(_, disk)| disk.volume.clone()).collect(),
            host: Some(location.host.to_string()),
            since: None,
        });
        let mut change = qemu::Change {
            digest: config.digest,
            ..qemu::Change::default()
        };
        change.set.description = Some(description(&mark.with_made(made).write_into(before))?);
        match site.send(qemu::set(&location.host, location.vmid, &change)).await {
            Err(error) if error.class() == Some(&Class::Changed) => {}
            written => return Ok(written.map(|_| location)?),
        }
    }
    // The next plan finds volumes that are missing in the list and records them.
    Ok(VmLocation::config(site, vm).await?.0)
}

/// Requested disks that exist now. A disk with a serial counts only if the serial matches.
fn created_disks(vmid: u32, mark: &Mark, config: &VmConfig) -> Vec<(String, MadeDisk)> {
    let is_there = |(slot_name, asked): (&String, &MadeDisk)| {
        let drive = config.drives.get(&slot_name.parse().ok()?)?;
        let volume = drive.volume()?.to_string();
        let is_it = asked.serial.is_none() || asked.serial == drive.serial;
        let made = MadeDisk {
            volume: Some(volume.clone()),
            serial: asked.serial.clone(),
        };
        (is_it && volume_owner(&volume) == Some(vmid)).then(|| (slot_name.clone(), made))
    };
    let asked = mark.disks.iter().flatten().filter(|(_, disk)| disk.volume.is_none());
    asked.filter_map(is_there).collect()
}

/// Restarts the VM's QEMU process, because pending settings take effect only in a new process.
pub(super) async fn reboot(
    site: &Clients,
    ctx: StepContext<'_>,
    vm: &VmRef,
    guest: &GuestRef,
    check: Option<&QuorumCheck>,
) -> Result<(), Failure> {
    let voice = ctx.progress;
    let (location, running) = VmLocation::power(site, vm).await?;
    if !running {
        return start(site, ctx, vm).await;
    }
    guest::release_endpoint(ctx, &guest.machine).await?;
    etcd::check_restart(ctx, guest, check).await?;
    journal_begin(site, "machine.reboot", &vm.to_string());
    let call = qemu::reboot(&location.host, location.vmid, SHUTDOWN_TIMEOUT);
    let upid = send_once(site, voice, &location, call).await?;
    follow_task(site, "machine.reboot", &vm.to_string(), &upid).await?;
    wait::until(
        &site.jitter,
        voice,
        &format!("{} did not answer after its restart", guest.machine),
        REBOOT_TIMEOUT,
        async || {
            // Proxmox VE lists the VM as stopped for some seconds after the task ended.
            if !is_running(site, &location).await? {
                return Ok(WaitStatus::Waiting("restarting".into()));
            }
            guest::is_back(ctx, guest).await
        },
    )
    .await?;
    guest::return_endpoint(ctx, &guest.machine).await
}

/// Stops the VM, if etcd keeps its quorum without it. For one that is stopped, Proxmox VE's task ends well at once. Whether it stays
/// stopped is left to what follows: Proxmox VE deletes no VM that runs.
pub(super) async fn stop(site: &Clients, ctx: StepContext<'_>, vm: &VmRef, check: Option<&QuorumCheck>) -> Result<(), Failure> {
    let voice = ctx.progress;
    let Some(proof) = read_proof(site, vm).await? else {
        return Ok(());
    };
    let location = &VmLocation::of(&proof);
    // A control plane that is off does not join any more.
    if check.is_some() && !is_running(site, location).await? {
        return Ok(());
    }
    etcd::await_not_joining(ctx, check).await?;
    etcd::check_quorum_without(ctx, check).await?;
    journal_begin(site, "machine.stop", &vm.to_string());
    match send_once(site, voice, location, qemu::stop(&location.host, location.vmid, true)).await {
        Ok(upid) => follow_task(site, "machine.stop", &vm.to_string(), &upid).await?,
        // Proxmox VE refuses the request for a VM that HA manages, also for one that is off.
        Err(error @ Error::Refused(_)) if is_running(site, location).await? => return Err(error.into()),
        Err(Error::Refused(_)) => {}
        Err(error) => return Err(error.into()),
    }
    site.proofs.lock().expect("plain data").insert(vm.vmid, proof);
    Ok(())
}

/// A VM to delete, and the volumes that the user approved to be deleted with it.
pub(super) struct VmDeletion<'a> {
    pub machine: &'a str,
    pub vm: &'a VmRef,
    pub volumes: &'a [String],
    pub with_disks: &'a [String],
    pub purge: bool,
    pub only_going: bool,
}

/// Whether a deletion may be sent.
enum Proved {
    Yes,
    /// The VM is not the one any more that was read before it was stopped.
    Outdated,
}

/// Deletes a stopped VM with its disks. All three marks and every volume that the VM references were read before it was stopped; the word
/// `going` is written only if nothing changed since. Otherwise all of it is read again.
pub(super) async fn delete(
    site: &Clients,
    ctx: StepContext<'_>,
    deletion: &VmDeletion<'_>,
    check: Option<&QuorumCheck>,
) -> Result<(), Failure> {
    let vm = deletion.vm;
    let before_stop = site.proofs.lock().expect("plain data").remove(&vm.vmid);
    if let Some(proof) = before_stop.filter(|proof| uuid(&proof.config) == Some(vm.uuid))
        && let Proved::Yes = prove_deletion(site, ctx, deletion, check, &proof, false).await?
    {
        return send_deletion(site, ctx.progress, deletion, &VmLocation::of(&proof)).await;
    }
    let Some(proof) = read_proof(site, vm).await? else {
        return Ok(());
    };
    match prove_deletion(site, ctx, deletion, check, &proof, true).await? {
        Proved::Yes => send_deletion(site, ctx.progress, deletion, &VmLocation::of(&proof)).await,
        Proved::Outdated => Err(Failure::stale_plan(format!(
            "{vm} was changed meanwhile, so it is not deleted"
        ))),
    }
}

/// Checks marks, etcd and volumes, and writes the word `going` with the digest of what was read. `is_new`: it was read just now, so that
/// no such write is needed to prove it.
async fn prove_deletion(
    site: &Clients,
    ctx: StepContext<'_>,
    deletion: &VmDeletion<'_>,
    check: Option<&QuorumCheck>,
    proof: &VmProof,
    is_new: bool,
) -> Result<Proved, Failure> {
    let (location, config) = (&VmLocation::of(proof), &proof.config);
    let &VmDeletion {
        machine, vm, only_going, ..
    } = deletion;
    require_quorum(site).await?;
    let mark = match check_marks(machine, vm, config) {
        Ok(mark) => mark,
        Err(_) if !is_new => return Ok(Proved::Outdated),
        Err(failure) => return Err(failure),
    };
    if mark.going && !is_new {
        return Ok(Proved::Outdated);
    }
    if only_going && !(mark.going && lacks_system_disk(site, location, config).await?) {
        return Err(Failure::stale_plan(format!("{vm} is complete again, so it is not deleted")));
    }
    etcd::check_quorum_without(ctx, check).await?;
    let uses = match volume_uses_with(&site.pve, &location.host, location.vmid, [config, &proof.pending]).await {
        Err(error) if error.is_missing() && !is_new => return Ok(Proved::Outdated),
        uses => uses?,
    };
    check_only_approved_volumes(deletion, &uses)?;
    // A volume that Proxmox VE cannot remove is only a warning of its task. The journal tells the next run that the volume was ours.
    site.journal.write(&JournalEntry::Made {
        vmid: vm.vmid,
        volumes: deletion.volumes.to_vec(),
        host: Some(location.host.to_string()),
        since: None,
    });
    match mark_deletion_started(site, location, config, mark).await {
        Ok(written) if written || is_new => Ok(Proved::Yes),
        Ok(_) => Ok(Proved::Outdated),
        Err(error) if !is_new && (error.is_missing() || error.class() == Some(&Class::Changed)) => Ok(Proved::Outdated),
        Err(error) => Err(error.into()),
    }
}

/// Without quorum, Proxmox VE would delete the disks of a VM and keep its config. One answer serves all deletions within a second.
async fn require_quorum(site: &Clients) -> Result<(), Failure> {
    let mut quorate_at = site.quorate_at.lock().await;
    if quorate_at.is_some_and(|at| at.elapsed() <= QUORUM_LASTS) {
        return Ok(());
    }
    *quorate_at = None;
    if !site.pve.call(cluster::status()).await?.quorate {
        return Err(Failure::refused("the Proxmox VE cluster has no quorum")
            .why("without quorum, Proxmox VE deletes the disks of a VM but keeps its config")
            .help("bring its hosts back first: pvecm status"));
    }
    *quorate_at = Some(Instant::now());
    Ok(())
}

/// Sends the deletion of a VM that was proved to be ours right before. Proxmox VE refuses it while the VM runs.
async fn send_deletion(
    site: &Clients,
    voice: &StepProgress,
    deletion: &VmDeletion<'_>,
    location: &VmLocation,
) -> Result<(), Failure> {
    require_quorum(site).await?;
    // `destroy-unreferenced-disks` would delete every volume with this VMID on all storages, even on those that the token cannot list.
    let options = qemu::DeleteOptions {
        purge: deletion.purge,
        destroy_unreferenced_disks: false,
    };
    let call = qemu::delete(&location.host, location.vmid, options);
    let sent = match send_once(site, voice, location, call).await {
        Ok(Some(upid)) => follow_task(site, "machine.delete", deletion.machine, &upid).await,
        Ok(None) => Ok(()),
        Err(error) if error.is_missing() => Ok(()),
        Err(error) => Err(error.into()),
    };
    sent.map_err(|failure| {
        if failure.is_running() {
            let what = format!("{} is running, so it is not deleted", deletion.vm);
            return Failure::stale_plan(what);
        }
        failure
    })
}

/// Proxmox VE deletes every volume of this VMID that the VM references, no matter who created it. So a volume that was not approved
/// prevents the deletion.
fn check_only_approved_volumes(deletion: &VmDeletion<'_>, uses: &[VolumeUse]) -> Result<(), Failure> {
    let approved = |used: &VolumeUse| deletion.volumes.contains(&used.volume) || deletion.with_disks.contains(&used.volume);
    let is_other = |used: &&VolumeUse| volume_owner(&used.volume) == Some(deletion.vm.vmid) && !approved(used);
    match uses.iter().find(is_other) {
        None => Ok(()),
        Some(used) => Err(Failure::stale_plan(format!(
            "{} references a volume that was not approved for deletion: {} {}",
            deletion.vm, used.slot, used.volume
        ))),
    }
}

/// Whether the system disk is missing, in the config or on its storage.
async fn lacks_system_disk(site: &Clients, location: &VmLocation, config: &VmConfig) -> Result<bool, Failure> {
    let system = config.drives.get(&Slot::Disk(Bus::Scsi, 0)).and_then(Drive::volume);
    let Some(volume) = system else { return Ok(true) };
    let filter = storage::ContentFilter {
        content: Some(Content::Images),
        vmid: Some(location.vmid),
    };
    let there = site
        .pve
        .call(storage::content(&location.host, volume.storage(), &filter))
        .await?;
    Ok(!there.iter().any(|listed| listed.volid == *volume))
}

/// Records in the mark that the deletion started. An interrupted deletion leaves a VM that cannot start; with this word any later run knows
/// that it may finish the deletion.
///
/// Whether it was written.
async fn mark_deletion_started(site: &Clients, location: &VmLocation, config: &VmConfig, mark: Mark) -> Result<bool, Error> {
    if mark.going {
        return Ok(false);
    }
    let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
    let mut change = qemu::Change {
        digest: config.digest,
        ..qemu::Change::default()
    };
    // If the user's own description leaves no room for the word, the deletion continues without it.
    let Ok(text) = description(&Mark { going: true, ..mark }.write_into(before)) else {
        return Ok(false);
    };
    change.set.description = Some(text);
    site.send(qemu::set(&location.host, location.vmid, &change)).await?;
    Ok(true)
}

/// Checks the tag and the description block. The SMBIOS UUID was checked when the config was read.
fn check_marks(machine: &str, vm: &VmRef, config: &VmConfig) -> Result<Mark, Failure> {
    let refuse = |proof: MarkPart| {
        Err(Failure::stale_plan(format!(
            "{vm} has no valid {proof} any more, so it is not deleted"
        )))
    };
    if !config.tags.as_ref().is_some_and(|tags| tags.contains(TAG)) {
        return refuse(MarkPart::Tag);
    }
    let mark = config.description.as_ref().and_then(|text| Mark::parse(text.as_str()));
    match mark {
        Some(mark) if mark.machine == machine && mark.uuid() == vm.uuid && mark.vmid == vm.vmid => Ok(mark),
        _ => refuse(MarkPart::Block),
    }
}

fn new_serial(clients: &Clients) -> String {
    let mut bytes = [0_u8; 16];
    clients.env.entropy.fork("smbios serial").rng().fill_bytes(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Waits until the guest proves that it is this life of the VM, and records its host key in the mark.
pub(super) async fn prove(site: &Clients, ctx: StepContext<'_>, vm: &VmRef, guest: &GuestRef) -> Result<(), Failure> {
    let (_, config) = VmLocation::config(site, vm).await?;
    let serial = config.smbios.as_ref().and_then(|smbios| smbios.serial.clone());
    let Some(key) = guest::prove(ctx, guest, serial.as_deref()).await? else {
        return Ok(());
    };
    for _ in 0..RECORD_ATTEMPTS {
        let (location, config) = VmLocation::config(site, vm).await?;
        let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
        let Some(mark) = Mark::parse(before) else {
            return Err(Failure::stale_plan(format!("{vm} lost its mark")));
        };
        let pinned = Mark {
            host_key: Some(key.clone()),
            ..mark
        };
        let after = pinned.write_into(before);
        if after == before {
            return Ok(());
        }
        let mut change = qemu::Change {
            digest: config.digest,
            ..qemu::Change::default()
        };
        change.set.description = Some(description(&after)?);
        match site.send(qemu::set(&location.host, location.vmid, &change)).await {
            Err(error) if error.class() == Some(&Class::Changed) => {}
            written => return Ok(written.map(drop)?),
        }
    }
    Err(Failure::stale_plan(format!(
        "the mark of {vm} changes too often to record the host key"
    )))
}
