//! Moving a disk to another storage or format.

use super::conf::Conf;
use super::disks;
use super::drive::Drive;
use crate::datacenter::Answer;
use crate::die::Die;
use crate::dispatch::Call;
use crate::storage::{Volume, Wish};
use crate::tasks::Job;

#[derive(Clone)]
struct Move {
    vmid: u32,
    disk: String,
    storage: String,
    format: Option<String>,
    delete: bool,
    digest: Option<String>,
    limit: Option<u64>,
}

pub(super) async fn move_disk(call: Call) -> Answer {
    let params = &call.params;
    if params.has("target-vmid") {
        return Err(Die::bare(501, "giving a disk to another VM is not simulated"));
    }
    let Some(storage) = params.get("storage") else {
        return Err(Die::new("both 'storage' and 'target-vmid' missing, either needs to be set"));
    };
    let wanted = Move {
        vmid: params.vmid(),
        disk: params.text("disk").into(),
        storage: storage.into(),
        format: params.get("format").map(Into::into),
        delete: params.flag("delete"),
        digest: params.get("digest").map(Into::into),
        limit: params.int("bwlimit").map(|kib| kib as u64 * 1024),
    };
    call.job
        .dc
        .state()
        .access
        .check(&call.job.auth, &format!("/storage/{storage}"), &["Datastore.AllocateSpace"])?;
    call.job.dc.state().storage_on(storage, &call.job.host)?;
    check(&call.job, &wanted)?;
    let upid = call.job.fork("qmmove", &wanted.vmid.to_string(), move |job| async move {
        let _held = job.lock_vm(wanted.vmid, 10).await?;
        run(&job, &wanted).await
    });
    Ok(upid.into())
}

fn check(job: &Job, wanted: &Move) -> Result<(Conf, Drive), Die> {
    let conf = job.load(wanted.vmid)?;
    conf.check_lock()?;
    conf.check_digest(wanted.digest.as_deref())?;
    let Some(value) = conf.get(&wanted.disk) else {
        return Err(Die::new(format!("disk '{}' does not exist", wanted.disk)));
    };
    let drive = Drive::parse(&wanted.disk, value)?;
    if drive.is_cdrom() && !drive.is_cloudinit() {
        return Err(Die::new("you can't move a cdrom"));
    }
    let Some((storage, name)) = drive.volume() else {
        return Err(Die::new(format!("disk '{}' has no associated volume", wanted.disk)));
    };
    let format = name.file().rsplit_once('.').map(|(_, ext)| ext);
    let same = wanted.format.is_none() || format.is_none() || wanted.format.as_deref() == format;
    if storage == wanted.storage && same {
        return Err(Die::new("you can't move to the same storage with same format"));
    }
    Ok((conf, drive))
}

async fn run(job: &Job, wanted: &Move) -> Result<(), Die> {
    let (mut conf, mut drive) = check(job, wanted)?;
    let old = drive.file().to_string();
    let source: Option<Volume> = job.dc.state().volume(&job.host, &old).cloned();
    let Some(source) = source else {
        return Err(Die::new(format!("volume '{old}' does not exist")));
    };
    job.say(format!("create full clone of drive {} ({old})", wanted.disk));
    let (file_based, known) = {
        let state = job.dc.state();
        let target = state.storage_on(&wanted.storage, &job.host)?;
        (target.is_file_based(), target.has_format(&source.format))
    };
    let kept = if known { source.format.clone() } else { "raw".into() };
    let format = wanted.format.clone().filter(|_| file_based).unwrap_or(kept);
    let suffix = if file_based { format!(".{format}") } else { String::new() };
    let name = drive.is_cloudinit().then(|| format!("vm-{}-cloudinit{suffix}", wanted.vmid));
    let wish = Wish {
        storage: &wanted.storage,
        vmid: wanted.vmid,
        format: &format,
        name,
        size: source.size,
    };
    let copied = disks::copy_into(job, &source, wish, wanted.limit).await;
    let volid = copied.map_err(|die| die.prefixed("storage migration failed: "))?;
    drive.set_file(&volid);
    drive.set_size(source.size);
    conf.now.insert(wanted.disk.clone(), drive.print());
    if !wanted.delete
        && let Some(free) = (0..256).map(|n| format!("unused{n}")).find(|key| !conf.now.contains_key(key))
    {
        conf.now.insert(free, old.clone());
    }
    job.save(wanted.vmid, conf)?;
    if wanted.delete { job.free(&old).await } else { Ok(()) }
}
