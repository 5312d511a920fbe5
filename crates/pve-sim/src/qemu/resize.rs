//! Growing a disk.

use super::drive::Drive;
use super::parse_size;
use crate::datacenter::Answer;
use crate::die::Die;
use crate::dispatch::Call;
use crate::observe::Effect;
use crate::storage::parse_volid;
use crate::tasks::Job;

struct Growth {
    vmid: u32,
    disk: String,
    size: String,
    digest: Option<String>,
    skiplock: bool,
}

pub(super) async fn resize(call: Call) -> Answer {
    let params = &call.params;
    call.job.root_only(params, &["skiplock"])?;
    let growth = Growth {
        vmid: params.vmid(),
        disk: params.text("disk").into(),
        size: params.text("size").into(),
        digest: params.get("digest").map(Into::into),
        skiplock: params.flag("skiplock"),
    };
    let upid = call.job.fork("resize", &growth.vmid.to_string(), move |job| async move {
        job.dc.state().vm(&job.host, growth.vmid)?;
        let _held = job.lock_vm(growth.vmid, 10).await?;
        grow(&job, &growth).await
    });
    Ok(upid.into())
}

async fn grow(job: &Job, growth: &Growth) -> Result<(), Die> {
    let mut conf = job.load(growth.vmid)?;
    conf.check_digest(growth.digest.as_deref())?;
    if !growth.skiplock {
        conf.check_lock()?;
    }
    let Some(value) = conf.get(&growth.disk) else {
        return Err(Die::new(format!("disk '{}' does not exist", growth.disk)));
    };
    let mut drive = Drive::parse(&growth.disk, value)?;
    let (id, name) = parse_volid(drive.file())?;
    if drive.is_cdrom() {
        return Err(Die::new("you can't resize a cdrom"));
    }
    let (size, format, path) = look(job, id, drive.file())?;
    let wanted = match growth.size.strip_prefix('+') {
        Some(more) => size + parse_size(more).unwrap_or(0),
        None => parse_size(&growth.size).unwrap_or(0),
    };
    if wanted < size {
        return Err(Die::new("shrinking disks is not supported"));
    }
    if wanted == size {
        return Ok(());
    }
    job.work(job.dc.timing().resize).await?;
    if name.is_base() {
        return Err(refuse_base(job, &format, &path, wanted));
    }
    change(job, id, drive.file(), wanted)?;
    drive.set_size(wanted);
    conf.now.insert(growth.disk.clone(), drive.print());
    job.save(growth.vmid, conf)
}

fn look(job: &Job, id: &str, volid: &str) -> Result<(u64, String, String), Die> {
    let state = job.dc.state();
    state
        .access
        .check(&job.auth, &format!("/storage/{id}"), &["Datastore.AllocateSpace"])?;
    state.storage_on(id, &job.host)?;
    let path = state.volume_path(volid)?;
    match state.volume(&job.host, volid) {
        Some(volume) => Ok((volume.size, volume.format.clone(), path)),
        None => Err(Die::new(format!("volume '{volid}' does not exist"))),
    }
}

/// Base images are immutable files.
fn refuse_base(job: &Job, format: &str, path: &str, wanted: u64) -> Die {
    job.say(format!(
        "qemu-img: Could not open '{path}': Could not open '{path}': Operation not permitted"
    ));
    let options = if format == "qcow2" {
        "'--preallocation=metadata' "
    } else {
        ""
    };
    Die::new(format!(
        "command '/usr/bin/qemu-img resize {options}-f {format} {path} {wanted}' failed: exit code 1"
    ))
}

fn change(job: &Job, id: &str, volid: &str, size: u64) -> Result<(), Die> {
    let mut state = job.dc.state();
    let place = state.place(id, &job.host).to_string();
    if let Some(volume) = state.volumes.get_mut(&place, volid) {
        // Files grow by whole kibibytes.
        volume.size = size.next_multiple_of(1024);
        volume.file_size = volume.size;
    }
    drop(state);
    job.dc.tell(
        job,
        &Effect::VolumeResized {
            volid: volid.into(),
            size,
        },
    );
    Ok(())
}
