//! Turning a VM into a template: its volumes become bases.

use super::create::drives;
use crate::datacenter::Answer;
use crate::die::Die;
use crate::dispatch::Call;
use crate::observe::Effect;
use crate::storage::parse_volid;
use crate::tasks::Job;

pub(super) async fn template(call: Call) -> Answer {
    let (job, vmid) = (&call.job, call.params.vmid());
    let only = call.params.get("disk").map(str::to_string);
    check(job, vmid, only.is_some())?;
    let upid = job.fork("qmtemplate", &vmid.to_string(), move |job| async move {
        let _held = job.lock_vm(vmid, 10).await?;
        check(&job, vmid, only.is_some())?;
        convert(&job, vmid, only).await
    });
    Ok(upid.into())
}

/// A single disk of a template may be converted later.
fn check(job: &Job, vmid: u32, single: bool) -> Result<(), Die> {
    let state = job.dc.state();
    let vm = state.vm(&job.host, vmid)?;
    vm.conf.check_lock()?;
    if !vm.conf.snapshots.is_empty() {
        return Err(Die::new("unable to create template, because VM contains snapshots"));
    }
    if vm.conf.is_template() && !single {
        return Err(Die::new("you can't convert a template to a template"));
    }
    if vm.is_running() {
        return Err(Die::new("you can't convert a VM to template if VM is running"));
    }
    Ok(())
}

async fn convert(job: &Job, vmid: u32, only: Option<String>) -> Result<(), Die> {
    let mut conf = job.load(vmid)?;
    conf.now.insert("template".into(), "1".into());
    job.save(vmid, conf.clone())?;
    let wanted: Vec<_> = drives(&conf.now)
        .filter(|d| !d.is_cdrom() && only.as_ref().is_none_or(|o| *o == d.key))
        .collect();
    for mut drive in wanted {
        if !can_be_base(job, &drive) {
            continue;
        }
        let base = make_base(job, drive.file()).await?;
        drive.set_file(&base);
        conf.now.insert(drive.key.clone(), drive.print());
        job.save(vmid, conf.clone())?;
    }
    job.work(job.dc.timing().template).await?;
    job.dc.tell(job, &Effect::VmTemplated { vmid });
    Ok(())
}

/// What a storage cannot turn into a base, or what is one, is passed over in silence.
fn can_be_base(job: &Job, drive: &super::drive::Drive) -> bool {
    let state = job.dc.state();
    drive.volume().is_some_and(|(id, name)| {
        let able = state.storages.get(id).is_some_and(|storage| storage.kind != "lvm");
        able && !name.is_base()
    })
}

/// Renames `vm-` to `base-` under the storage's lock.
pub(super) async fn make_base(job: &Job, volid: &str) -> Result<String, Die> {
    let (id, name) = parse_volid(volid)?;
    job.dc.state().storage_on(id, &job.host)?;
    let _held = job.lock_storage(id).await?;
    let file = name.file();
    let renamed = file.replacen("vm-", "base-", 1);
    let base = format!("{}{renamed}", volid.strip_suffix(file).unwrap_or_default());
    let mut state = job.dc.state();
    let place = state.place(id, &job.host).to_string();
    let Some(mut volume) = state.volumes.remove(&place, volid) else {
        let path = state.volume_path(volid)?;
        drop(state);
        job.say(format!("failed to stat '{path}'"));
        return Err(Die::new(format!("file_size_info on '{}' failed", name.full)));
    };
    volume.volid.clone_from(&base);
    state.volumes.insert(&place, volume);
    Ok(base)
}
