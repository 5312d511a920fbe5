//! Moving a disk: to another storage or format, or to another VM.

use std::collections::BTreeSet;

use super::conf::Conf;
use super::drive::Drive;
use super::{disks, hotplug, pending};
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

/// A disk that changes its owner.
#[derive(Clone)]
struct Gift {
    from: u32,
    disk: String,
    digest: Option<String>,
    to: u32,
    target: String,
    target_digest: Option<String>,
}

pub(super) async fn move_disk(call: Call) -> Answer {
    let (storage, other) = (call.params.get("storage"), call.params.get("target-vmid"));
    let refuse = |text: &str| {
        let both = ["target-vmid", "storage"].map(|name| (name.to_string(), text.to_string()));
        Err(Die::parameters(both.into_iter().collect()))
    };
    match (storage, other) {
        (Some(_), Some(_)) => refuse("either set 'storage' or 'target-vmid', but not both"),
        (None, None) => refuse("both 'storage' and 'target-vmid' missing, either needs to be set"),
        (Some(storage), None) => to_storage(&call, storage),
        (None, Some(other)) => to_machine(&call, other.parse().unwrap_or(0)),
    }
}

fn to_storage(call: &Call, storage: &str) -> Answer {
    let params = &call.params;
    let wanted = Move {
        vmid: params.vmid(),
        disk: params.text("disk").into(),
        storage: storage.into(),
        format: params.get("format").map(Into::into),
        delete: params.flag("delete"),
        digest: params.get("digest").map(Into::into),
        limit: params.int("bwlimit").map(|kib| kib as u64 * 1024),
    };
    let path = format!("/storage/{storage}");
    let allowed = |job: &Job| job.dc.state().access.check(&job.auth, &path, &["Datastore.AllocateSpace"]);
    allowed(&call.job)?;
    check(&call.job, &wanted)?;
    let upid = call.job.fork("qmmove", &wanted.vmid.to_string(), move |job| async move {
        let _held = job.lock_vm(wanted.vmid, 10).await?;
        run(&job, &wanted).await
    });
    Ok(upid.into())
}

fn unmodified(conf: &Conf, digest: Option<&str>) -> Result<(), Die> {
    conf.check_digest(digest)
        .map_err(|_| Die::new("detected modified configuration - file changed by other user? Try again."))
}

fn in_snapshot(conf: &Conf, volid: &str) -> bool {
    let mut all = conf.snapshots.values().flat_map(super::create::drives);
    all.any(|drive| drive.file() == volid)
}

fn check(job: &Job, wanted: &Move) -> Result<(Conf, Drive), Die> {
    let conf = job.load(wanted.vmid)?;
    conf.check_lock()?;
    unmodified(&conf, wanted.digest.as_deref())?;
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
    if !job
        .dc
        .state()
        .storage_on(&wanted.storage, &job.host)?
        .content
        .contains("images")
    {
        let text = format!("storage '{}' does not support vm images", wanted.storage);
        return Err(Die::parameter("storage", text));
    }
    if wanted.delete && in_snapshot(&conf, drive.file()) {
        return Err(Die::new("you can't move a disk with snapshots and delete the source"));
    }
    Ok((conf, drive))
}

async fn run(job: &Job, wanted: &Move) -> Result<(), Die> {
    let (mut conf, mut drive) = check(job, wanted)?;
    let old = drive.file().to_string();
    let from = old.split(':').next().unwrap_or_default();
    job.say(format!(
        "copying volume '{old}' from current storage '{from}' to target storage '{}'",
        wanted.storage
    ));
    let source: Option<Volume> = job.dc.state().volume(&job.host, &old).cloned();
    let Some(source) = source else {
        return Err(Die::new(format!("volume '{old}' does not exist")));
    };
    if in_snapshot(&conf, &old) {
        job.say("moving disk with snapshots, snapshots will not be moved!");
    }
    job.say(format!("create full clone of drive {} ({old})", wanted.disk));
    let copied = copy(job, wanted, &drive, &source).await;
    let volid = copied.map_err(|die| die.prefixed("storage migration failed: "))?;
    drive.set_file(&volid);
    drive.set_size(source.size);
    conf.now.insert(wanted.disk.clone(), drive.print());
    let free = (0..256).map(|n| format!("unused{n}")).find(|key| !conf.now.contains_key(key));
    if let Some(free) = free.filter(|_| !wanted.delete) {
        job.say(format!("adding source volume '{old}' as '{free}' to config"));
        conf.now.insert(free, old.clone());
    }
    job.save(wanted.vmid, conf)?;
    if wanted.delete {
        job.say(format!("removing source volume '{old}' after successful copy"));
        if let Err(die) = job.free(&old).await {
            job.say(die.message);
        }
    }
    Ok(())
}

async fn copy(job: &Job, wanted: &Move, drive: &Drive, source: &Volume) -> Result<String, Die> {
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
    disks::copy_into(job, source, wish, wanted.limit).await
}

fn to_machine(call: &Call, to: u32) -> Answer {
    let (job, params) = (&call.job, &call.params);
    let text = |name: &str| params.get(name).map(str::to_string);
    let gift = Gift {
        from: params.vmid(),
        disk: params.text("disk").into(),
        digest: text("digest"),
        to,
        target: text("target-disk").unwrap_or_else(|| params.text("disk").into()),
        target_digest: text("target-digest"),
    };
    job.dc.state().access.check_vm(&job.auth, to, None, &["VM.Config.Disk"])?;
    if gift.from == to {
        return Err(Die::parameter(
            "target-vmid",
            "must be different than source VMID to reassign disk",
        ));
    }
    let (.., drive) = check_gift(job, &gift)?;
    let storage = drive.volume().map(|(id, _)| id.to_string()).unwrap_or_default();
    let path = format!("/storage/{storage}");
    job.dc.state().access.check(&job.auth, &path, &["Datastore.AllocateSpace"])?;
    let id = format!("{}-{}>{to}-{}", gift.from, gift.disk, gift.target);
    let upid = job.fork("qmmove", &id, move |job| async move {
        let _from = job.lock_vm(gift.from, 10).await?;
        let _to = job.lock_vm(gift.to, 10).await?;
        give(&job, &gift).await
    });
    Ok(upid.into())
}

fn check_gift(job: &Job, gift: &Gift) -> Result<(Conf, Conf, Drive), Die> {
    let home = |vmid: u32| job.dc.state().vms.get(&vmid).map(|vm| vm.node.clone());
    let from = home(gift.from).ok_or_else(|| Die::new(format!("could not find VM {}", gift.from)))?;
    let to = home(gift.to).ok_or_else(|| Die::new(format!("could not find target VM {}", gift.to)))?;
    if from != to {
        return Err(Die::new(format!("Both VMs need to be on the same node ({from} != {to})")));
    }
    let (source, target) = (job.load(gift.from)?, job.load(gift.to)?);
    source.check_lock()?;
    target.check_lock()?;
    if source.is_template() || target.is_template() {
        return Err(Die::new("Can't move disks from or to template VMs"));
    }
    unmodified(&source, gift.digest.as_deref()).map_err(|die| die.prefixed(&format!("VM {}: ", gift.from)))?;
    unmodified(&target, gift.target_digest.as_deref()).map_err(|die| die.prefixed(&format!("VM {}: ", gift.to)))?;
    let Some(value) = source.get(&gift.disk) else {
        let text = format!("Disk '{}' for VM '{}' does not exist", gift.disk, gift.from);
        return Err(Die::new(text));
    };
    if target.get(&gift.target).is_some() {
        let text = format!("Target disk key '{}' is already in use for VM '{}'", gift.target, gift.to);
        return Err(Die::new(text));
    }
    let drive = Drive::parse(&gift.disk, value)?;
    check_volume(job, gift, &source, &drive)?;
    let spelled = if gift.target.starts_with("unused") {
        drive.file()
    } else {
        value
    };
    let drive = Drive::parse(&gift.target, spelled)?;
    Ok((source, target, drive))
}

fn check_volume(job: &Job, gift: &Gift, source: &Conf, drive: &Drive) -> Result<(), Die> {
    let volid = drive.file();
    if drive.is_cdrom() && !drive.is_cloudinit() {
        return Err(Die::new("CD drive contents can't be moved to another VM"));
    }
    if drive.volume().is_none() {
        return Err(Die::new(format!("Volume '{volid}' not managed by PVE")));
    }
    if in_snapshot(source, volid) {
        return Err(Die::new("Can't move disk used by a snapshot to another VM"));
    }
    if job.is_running(gift.from) && !gift.disk.starts_with("unused") {
        return Err(Die::new(
            "Cannot move disk to another VM while the source VM is running - detach first",
        ));
    }
    Ok(())
}

async fn give(job: &Job, gift: &Gift) -> Result<(), Die> {
    let (mut source, mut target, mut drive) = check_gift(job, gift)?;
    job.say(format!(
        "reassign disk '{}' from VM '{}' as '{}' to VM '{}'",
        gift.disk, gift.from, gift.target, gift.to
    ));
    let volid = job.dc.state().rename_volume(&job.host, drive.file(), gift.to)?;
    drive.set_file(&volid);
    leave_boot_order(job, &mut source, &gift.disk);
    source.now.remove(&gift.disk);
    job.say(format!("removing disk '{}' from VM '{}' config", gift.disk, gift.from));
    job.save(gift.from, source)?;
    let value = drive.print();
    if gift.target.starts_with("unused") {
        target.now.insert(gift.target.clone(), value);
        return job.save(gift.to, target);
    }
    job.say(format!("update VM {}: -{} {value}", gift.to, gift.target));
    let made = disks::create(job, &target, gift.to, &[(gift.target.clone(), value)].into()).await?;
    target.pending.extend(made.settings);
    job.save(gift.to, target)?;
    let errors = if job.is_running(gift.to) {
        hotplug::apply(job, gift.to, &BTreeSet::from([gift.target.clone()])).await?
    } else {
        pending::apply(job, gift.to).await?
    };
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Die::parameters(errors))
    }
}

fn leave_boot_order(job: &Job, conf: &mut Conf, disk: &str) {
    let order = conf.get("boot").and_then(|b| b.strip_prefix("order="));
    let devices: Vec<String> = order.map(|o| o.split(';').map(Into::into).collect()).unwrap_or_default();
    if devices.iter().any(|device| device == disk) {
        job.say(format!("removing disk '{disk}' from boot order config"));
        let left: Vec<String> = devices.into_iter().filter(|device| device != disk).collect();
        conf.now.insert("boot".into(), super::create::print_boot(&left));
    }
}
