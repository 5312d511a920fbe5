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
    check(job, vmid)?;
    let only = call.params.get("disk").map(str::to_string);
    let upid = job.fork("qmtemplate", &vmid.to_string(), move |job| async move {
        let _held = job.lock_vm(vmid, 10).await?;
        check(&job, vmid)?;
        convert(&job, vmid, only).await
    });
    Ok(upid.into())
}

fn check(job: &Job, vmid: u32) -> Result<(), Die> {
    let state = job.dc.state();
    let vm = state.vm(&job.host, vmid)?;
    vm.conf.check_lock()?;
    if !vm.conf.snapshots.is_empty() {
        return Err(Die::new("unable to create template, because VM contains snapshots"));
    }
    if vm.conf.is_template() {
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
        if drive.volume().is_none() {
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

/// Renames `vm-` to `base-` under the storage's lock.
async fn make_base(job: &Job, volid: &str) -> Result<String, Die> {
    let (id, name) = parse_volid(volid)?;
    if job.dc.state().storage_on(id, &job.host)?.kind == "lvm" {
        return Err(Die::new(format!("volume '{volid}' does not support template/clone")));
    }
    let _held = job.lock_storage(id).await?;
    let file = name.file();
    let renamed = file.replacen("vm-", "base-", 1);
    let base = format!("{}{renamed}", volid.strip_suffix(file).unwrap_or_default());
    let mut state = job.dc.state();
    let place = state.place(id, &job.host).to_string();
    let Some(mut volume) = state.volumes.remove(&place, volid) else {
        return Err(Die::new(format!("volume '{volid}' does not exist")));
    };
    volume.volid.clone_from(&base);
    state.volumes.insert(&place, volume);
    Ok(base)
}
