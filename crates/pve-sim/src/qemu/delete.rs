//! Removing a VM with everything it owns.

use super::conf::{Conf, Section};
use super::create::drives;
use super::drive::{Drive, boot_keys};
use crate::datacenter::Answer;
use crate::die::Die;
use crate::dispatch::Call;
use crate::observe::Effect;
use crate::storage::{Kind, parse_volid};
use crate::tasks::Job;

#[derive(Clone, Copy)]
struct Removal {
    vmid: u32,
    purge: bool,
    unreferenced: bool,
    skiplock: bool,
}

pub(super) async fn delete(call: Call) -> Answer {
    let params = &call.params;
    call.job.root_only(params, &["skiplock"])?;
    let removal = Removal {
        vmid: params.vmid(),
        purge: params.flag("purge"),
        unreferenced: params.flag("destroy-unreferenced-disks"),
        skiplock: params.flag("skiplock"),
    };
    early_checks(&call.job, removal)?;
    let upid = call.job.fork("qmdestroy", &removal.vmid.to_string(), move |job| async move {
        early_checks(&job, removal)?;
        let _held = job.lock_vm(removal.vmid, 10).await?;
        destroy(&job, removal).await
    });
    Ok(upid.into())
}

fn early_checks(job: &Job, removal: Removal) -> Result<(), Die> {
    let vmid = removal.vmid;
    let state = job.dc.state();
    let vm = state.vm(&job.host, vmid)?;
    vm.conf.check_protection(&format!("can't remove VM {vmid}"))?;
    if state.ha.managed(vmid).is_some() && !removal.purge {
        return Err(Die::new(format!(
            "unable to remove VM {vmid} - used in HA resources and purge parameter not set."
        )));
    }
    if !removal.purge {
        state.jobs.check_replication(vmid)?;
    }
    if vm.is_running() {
        return Err(Die::new(format!("VM {vmid} is running - destroy failed")));
    }
    Ok(())
}

async fn destroy(job: &Job, removal: Removal) -> Result<(), Die> {
    let vmid = removal.vmid;
    let conf = job.load(vmid)?;
    if job.is_running(vmid) {
        return Err(Die::new(format!("VM {vmid} is running - destroy failed")));
    }
    if !removal.skiplock && conf.lock() != Some("suspended") {
        conf.check_lock()?;
    }
    if conf.is_template() {
        check_bases(job, &conf)?;
    }
    for volid in owned(&conf, vmid) {
        free_or_warn(job, &volid).await?;
    }
    if removal.unreferenced {
        for volid in unreferenced(job, vmid) {
            free_or_warn(job, &volid).await?;
        }
    }
    job.work(job.dc.timing().delete).await?;
    // The config is first replaced, then removed: without quorum the disks are gone by now and the config stays.
    let mut zombie = Conf::default();
    zombie.now.insert("lock".into(), "destroyed".into());
    job.save(vmid, zombie)?;
    purge(job, removal);
    {
        let mut state = job.dc.state();
        state.vms.remove(&vmid);
        state.firewalls.remove(&vmid);
    }
    job.dc.tell(job, &Effect::VmRemoved { vmid });
    Ok(())
}

/// In the order in which PVE goes through drives.
fn ordered(conf: &Conf) -> Vec<Drive> {
    let keys = boot_keys().chain(["efidisk0".to_string(), "tpmstate0".to_string()]);
    keys.filter_map(|key| conf.get(&key).and_then(|value| Drive::parse(&key, value).ok()))
        .collect()
}

fn check_bases(job: &Job, conf: &Conf) -> Result<(), Die> {
    let state = job.dc.state();
    for drive in ordered(conf) {
        let Some((id, _)) = drive.volume() else { continue };
        if !drive.is_cdrom() && state.volumes.clone_of(state.place(id, &job.host), drive.file()).is_some() {
            return Err(Die::new(format!(
                "base volume '{}' is still in use by linked cloned",
                drive.file()
            )));
        }
    }
    Ok(())
}

/// Volumes of this VM that its config names: drives, then `unusedN`, then saved states, then those of pending values. The drives of
/// snapshots are not among them.
fn owned(conf: &Conf, vmid: u32) -> Vec<String> {
    let mut volumes: Vec<String> = Vec::new();
    let mut add = |volid: &str| {
        let ours = parse_volid(volid).is_ok_and(|(_, name)| name.owner() == Some(vmid) && name.kind() == Some(Kind::Images));
        if ours && !volumes.iter().any(|v| v == volid) {
            volumes.push(volid.to_string());
        }
    };
    let is_disk = |drive: &&Drive| !drive.is_cdrom() || drive.is_cloudinit();
    let unused = |section: &Section| -> Vec<String> {
        let named = section.iter().filter(|(key, _)| key.starts_with("unused"));
        named.map(|(_, value)| value.clone()).collect()
    };
    ordered(conf).iter().filter(is_disk).for_each(|drive| add(drive.file()));
    unused(&conf.now).iter().for_each(|volid| add(volid));
    let states = std::iter::once(&conf.now).chain(conf.snapshots.values());
    states
        .filter_map(|section| section.get("vmstate"))
        .for_each(|volid| add(volid));
    let pending: Vec<Drive> = drives(&conf.pending).collect();
    pending.iter().filter(is_disk).for_each(|drive| add(drive.file()));
    unused(&conf.pending).iter().for_each(|volid| add(volid));
    volumes
}

fn unreferenced(job: &Job, vmid: u32) -> Vec<String> {
    let state = job.dc.state();
    let mut found = Vec::new();
    for (id, storage) in &state.storages {
        if storage.usable(&job.host) && storage.content.contains("images") {
            let place = state.place(id, &job.host);
            found.extend(
                state
                    .volumes
                    .on(place, id)
                    .filter(|v| v.vmid == Some(vmid))
                    .map(|v| v.volid.clone()),
            );
        }
    }
    found
}

/// A volume that cannot be removed is only a warning.
async fn free_or_warn(job: &Job, volid: &str) -> Result<(), Die> {
    match job.free(volid).await {
        Ok(()) => Ok(()),
        Err(die) if die.message.ends_with("received interrupt") => Err(die),
        Err(die) => {
            job.warn(&format!("Could not remove disk '{volid}', check manually: {}", die.text()));
            Ok(())
        }
    }
}

fn purge(job: &Job, removal: Removal) {
    let vmid = removal.vmid;
    let managed = {
        let mut state = job.dc.state();
        state.access.forget_vm(vmid);
        if removal.purge {
            state.jobs.purge(vmid);
        }
        removal.purge && state.ha.remove(vmid)
    };
    if removal.purge {
        job.say(format!("purging VM {vmid} from related configurations.."));
    }
    if managed {
        job.say(format!("NOTE: removed VM {vmid} from HA resource configuration."));
    }
}
