//! Applying pending changes to a VM that does not run, and what becomes of detached volumes.

use super::conf::Conf;
use super::config::Errors;
use super::drive::Drive;
use super::is_drive;
use crate::die::Die;
use crate::observe::Effect;
use crate::storage::parse_volid;
use crate::tasks::Job;

/// Applies everything; what fails stays pending and is told per option.
pub(super) async fn apply(job: &Job, vmid: u32) -> Result<Errors, Die> {
    let mut conf = job.load(vmid)?;
    let mut errors = Errors::new();
    for (key, force) in conf.delete.clone() {
        match delete(job, vmid, &mut conf, &key, force).await {
            Ok(()) => {
                conf.delete.remove(&key);
                conf.now.remove(&key);
            }
            Err(die) => drop(errors.insert(key.clone(), format!("unable to apply pending change {key} : {}", die.text()))),
        }
    }
    conf.cleanup_pending();
    for (key, value) in std::mem::take(&mut conf.pending) {
        if is_drive(&key)
            && let Some(old) = conf.get(&key).and_then(|old| Drive::parse(&key, old).ok())
            && Drive::parse(&key, &value).is_ok_and(|new| new.file() != old.file())
        {
            register_unused(job, vmid, &mut conf, &old);
        }
        conf.now.insert(key, value);
    }
    job.save(vmid, conf)?;
    Ok(errors)
}

async fn delete(job: &Job, vmid: u32, conf: &mut Conf, key: &str, force: bool) -> Result<(), Die> {
    let Some(drive) = conf
        .get(key)
        .filter(|_| is_drive(key))
        .and_then(|value| Drive::parse(key, value).ok())
    else {
        return Ok(());
    };
    detach(job, vmid, conf, &drive, force).await
}

/// Detaches a drive: its volume is kept as unused, or freed on demand.
pub(super) async fn detach(job: &Job, vmid: u32, conf: &mut Conf, drive: &Drive, force: bool) -> Result<(), Die> {
    conf.now.remove(&drive.key);
    if force {
        job.dc.state().access.check_vm(&job.auth, vmid, None, &["VM.Config.Disk"])?;
        return deallocate(job, vmid, conf, drive.file()).await;
    }
    register_unused(job, vmid, conf, drive);
    Ok(())
}

/// Keeps the volume of a drive as `unusedN`; a cloud-init volume goes.
pub(super) fn register_unused(job: &Job, vmid: u32, conf: &mut Conf, drive: &Drive) {
    let Some((id, name)) = drive.volume() else { return };
    if drive.is_cloudinit() {
        conf.cloudinit.clear();
        let mut state = job.dc.state();
        let place = state.place(id, &job.host).to_string();
        let removed = state.volumes.remove(&place, drive.file()).is_some();
        drop(state);
        if removed {
            job.dc.tell(
                job,
                &Effect::VolumeRemoved {
                    volid: drive.file().into(),
                    host: job.host.clone(),
                },
            );
        }
        return;
    }
    if drive.is_cdrom() || name.owner() != Some(vmid) {
        return;
    }
    let present = conf
        .now
        .iter()
        .any(|(key, value)| key.starts_with("unused") && value == drive.file());
    if !present && let Some(free) = (0..256).map(|n| format!("unused{n}")).find(|key| !conf.now.contains_key(key)) {
        conf.now.insert(free, drive.file().to_string());
    }
}

/// Frees a volume of the VM, if nothing else needs it.
pub(super) async fn deallocate(job: &Job, vmid: u32, conf: &Conf, volid: &str) -> Result<(), Die> {
    let Ok((id, name)) = parse_volid(volid) else { return Ok(()) };
    if name.owner() != Some(vmid) {
        return Ok(());
    }
    job.dc
        .state()
        .access
        .check(&job.auth, &format!("/storage/{id}"), &["Datastore.AllocateSpace"])?;
    let in_snapshot = conf
        .snapshots
        .values()
        .flat_map(|s| s.values())
        .any(|v| v.split(',').next() == Some(volid));
    if in_snapshot {
        return Err(Die::new(format!(
            "unable to delete '{volid}' - volume is still in use (snapshot?)"
        )));
    }
    job.free(volid).await
}
