//! Snapshots of a VM and its volumes.

use serde_json::{Value, json};

use super::conf::{Conf, Section, typed};
use super::create::drives;
use super::drive::Drive;
use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::tasks::Job;

pub(super) async fn handle(call: Call) -> Answer {
    let (verb, template) = call.what();
    let rest = template
        .strip_prefix("/nodes/{node}/qemu/{vmid}/snapshot")
        .unwrap_or_default();
    match (verb, rest) {
        ("GET", "") => list(&call),
        ("POST", "") => take(&call),
        ("DELETE", "/{snapname}") => remove(&call),
        ("GET", "/{snapname}") => Ok(json!([{ "cmd": "rollback" }, { "cmd": "config" }]).into()),
        ("POST", "/{snapname}/rollback") => rollback(&call),
        ("GET", "/{snapname}/config") => {
            let conf = call.job.load(call.params.vmid())?;
            let section = snapshot(&conf, call.params.text("snapname"))?;
            // As it is kept: without a digest, and passwords are not hidden.
            let kept = section.iter().map(|(key, value)| (key.clone(), typed(key, value)));
            Ok(Value::Object(kept.collect()).into())
        }
        ("PUT", "/{snapname}/config") => describe(&call).await,
        _ => call.not_simulated(),
    }
}

fn snapshot<'a>(conf: &'a Conf, name: &str) -> Result<&'a Section, Die> {
    conf.snapshots
        .get(name)
        .ok_or_else(|| Die::new(format!("snapshot '{name}' does not exist")))
}

fn list(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let vm = state.vm(&call.job.host, call.params.vmid())?;
    let mut entries = Vec::new();
    for (name, section) in &vm.conf.snapshots {
        let time: i64 = section.get("snaptime").and_then(|t| t.parse().ok()).unwrap_or(0);
        let mut entry = json!({ "name": name, "snaptime": time, "vmstate": u8::from(section.contains_key("vmstate")) });
        entry["description"] = json!(section.get("description").cloned().unwrap_or_default());
        if let Some(parent) = section.get("parent") {
            entry["parent"] = json!(parent);
        }
        entries.push(entry);
    }
    let mut current = json!({ "name": "current", "description": "You are here!", "digest": vm.conf.digest(), "running": u8::from(vm.is_running()) });
    if let Some(parent) = vm.conf.get("parent") {
        current["parent"] = json!(parent);
    }
    entries.push(current);
    Ok(Value::Array(entries).into())
}

fn take(call: &Call) -> Answer {
    let (job, vmid, name) = (&call.job, call.params.vmid(), call.params.text("snapname").to_string());
    // One of them is taken in any case.
    let reserved = match name.as_str() {
        "current" => Some("current"),
        other => other.eq_ignore_ascii_case("pending").then_some("pending"),
    };
    if let Some(word) = reserved {
        return Err(Die::new(format!("unable to use snapshot name '{word}' (reserved name)")));
    }
    job.load(vmid)?;
    if call.params.flag("vmstate") && job.is_running(vmid) {
        return Err(Die::bare(501, "a snapshot with the memory of a running VM is not simulated"));
    }
    let description = call.params.get("description").map(str::to_string);
    let upid = job.fork("qmsnapshot", &vmid.to_string(), move |job| async move {
        let _held = job.lock_vm(vmid, 10).await?;
        let mut conf = job.load(vmid)?;
        if conf.is_template() {
            return Err(Die::new("you can't take a snapshot if it's a template"));
        }
        conf.check_lock()?;
        if conf.snapshots.contains_key(&name) {
            return Err(Die::new(format!("snapshot name '{name}' already used")));
        }
        require_feature(&job, &conf)?;
        for drive in drives(&conf.now).filter(|d| !d.is_cdrom() && d.volume().is_some()) {
            job.say(format!("snapshotting 'drive-{}' ({})", drive.key, drive.file()));
            on_volume(&job, drive.file(), |volume| {
                drop(volume.snapshots.insert(name.clone(), volume.content.copy()));
            });
        }
        let mut section = conf.now.clone();
        section.retain(|key, _| key != "description" && key != "lock" && !key.starts_with("unused"));
        section.insert("snaptime".into(), job.dc.epoch().to_string());
        if let Some(description) = description {
            section.insert("description".into(), description);
        }
        conf.snapshots.insert(name.clone(), section);
        conf.now.insert("parent".into(), name);
        job.save(vmid, conf)
    });
    Ok(upid.into())
}

fn on_volume(job: &Job, volid: &str, act: impl FnOnce(&mut crate::storage::Volume)) {
    let mut state = job.dc.state();
    let id = volid.split(':').next().unwrap_or_default();
    let place = state.place(id, &job.host).to_string();
    if let Some(volume) = state.volumes.get_mut(&place, volid) {
        act(volume);
    }
}

/// Whether all disks can keep snapshots.
fn can_snapshot(job: &Job, conf: &Conf) -> bool {
    let state = job.dc.state();
    drives(&conf.now).filter(|d| !d.is_cdrom()).all(|drive| {
        let Some((id, _)) = drive.volume() else { return true };
        let thin = state
            .storages
            .get(id)
            .is_some_and(|s| matches!(s.kind.as_str(), "lvmthin" | "zfspool" | "rbd" | "btrfs"));
        thin || state.volume(&job.host, drive.file()).is_some_and(|v| v.format == "qcow2")
    })
}

fn require_feature(job: &Job, conf: &Conf) -> Result<(), Die> {
    if can_snapshot(job, conf) {
        Ok(())
    } else {
        Err(Die::new("snapshot feature is not available"))
    }
}

fn remove(call: &Call) -> Answer {
    let (job, vmid, name) = (&call.job, call.params.vmid(), call.params.text("snapname").to_string());
    let upid = job.fork("qmdelsnapshot", &vmid.to_string(), move |job| async move {
        let _held = job.lock_vm(vmid, 10).await?;
        let mut conf = job.load(vmid)?;
        let section = snapshot(&conf, &name)?.clone();
        conf.check_lock()?;
        if conf.is_template() {
            return Err(Die::new("you can't delete a snapshot if vm is a template"));
        }
        let parent = section.get("parent").cloned();
        for drive in drives(&section).filter(|d| !d.is_cdrom()) {
            on_volume(&job, drive.file(), |volume| drop(volume.snapshots.remove(&name)));
        }
        conf.snapshots.shift_remove(&name);
        let children = conf.snapshots.values_mut().chain(std::iter::once(&mut conf.now));
        for child in children.filter(|s| s.get("parent") == Some(&name)) {
            match &parent {
                Some(parent) => drop(child.insert("parent".into(), parent.clone())),
                None => drop(child.remove("parent")),
            }
        }
        job.save(vmid, conf)
    });
    Ok(upid.into())
}

fn rollback(call: &Call) -> Answer {
    let (job, vmid, name) = (&call.job, call.params.vmid(), call.params.text("snapname").to_string());
    let start = call.params.flag("start");
    if start {
        let path = format!("/vms/{vmid}");
        job.dc.state().access.check(&job.auth, &path, &["VM.PowerMgmt"])?;
    }
    let upid = job.fork("qmrollback", &vmid.to_string(), move |job| async move {
        let held = job.lock_vm(vmid, 10).await?;
        let mut conf = job.load(vmid)?;
        if conf.is_template() {
            return Err(Die::new("you can't rollback if vm is a template"));
        }
        let section = snapshot(&conf, &name)?.clone();
        conf.check_lock()?;
        super::runtime::power_off(&job, vmid);
        for drive in drives(&section).filter(|d| !d.is_cdrom()) {
            on_volume(&job, drive.file(), |volume| {
                if let Some(kept) = volume.snapshots.get(&name) {
                    volume.content.write(kept.read());
                }
            });
        }
        // The description and volumes that are not used stay as they are.
        let kept = |key: &String| key == "description" || key.starts_with("unused");
        let stays: Vec<(String, String)> = conf.now.clone().into_iter().filter(|(key, _)| kept(key)).collect();
        let left: Vec<Drive> = drives(&conf.now)
            .filter(|d| !d.is_cdrom() && !drives(&section).any(|kept| kept.file() == d.file()))
            .collect();
        conf.now = section;
        conf.now.retain(|key, _| key != "snaptime" && !kept(key));
        conf.now.extend(stays);
        conf.now.insert("parent".into(), name);
        // Disks that came after the snapshot are kept as unused.
        for drive in &left {
            super::pending::register_unused(&job, vmid, &mut conf, drive);
        }
        conf.pending.clear();
        conf.delete.clear();
        conf.cloudinit.clear();
        job.save(vmid, conf)?;
        drop(held);
        if start {
            super::power::fork_start(&job, vmid, false);
        }
        Ok(())
    });
    Ok(upid.into())
}

async fn describe(call: &Call) -> Answer {
    let (job, vmid) = (&call.job, call.params.vmid());
    if !call.params.has("description") {
        return Ok(Reply::default());
    }
    let _held = job.lock_vm(vmid, 10).await?;
    let mut conf = job.load(vmid)?;
    conf.check_lock()?;
    snapshot(&conf, call.params.text("snapname"))?;
    if let (Some(section), Some(text)) = (
        conf.snapshots.get_mut(call.params.text("snapname")),
        call.params.get("description"),
    ) {
        section.insert("description".into(), text.into());
    }
    job.save(vmid, conf)?;
    Ok(Reply::default())
}

/// `GET .../feature`: whether all disks can do it, and on which hosts the VM could run.
pub(super) fn feature(call: &Call) -> Answer {
    let (job, vmid) = (&call.job, call.params.vmid());
    let conf = job.load(vmid).map_err(|_| super::power::missing(job, vmid))?;
    let name = call.params.get("snapname").filter(|name| !name.is_empty());
    let section = match name {
        Some(name) => snapshot(&conf, name)?.clone(),
        None => conf.now.clone(),
    };
    let has = match call.params.text("feature") {
        "snapshot" => can_snapshot(job, &Conf::new(section.clone())),
        feature => disks_can(job, &section, feature, name.is_some()),
    };
    Ok(json!({ "hasFeature": u8::from(has), "nodes": shared_nodes(job, &section) }).into())
}

/// Linked clones need a base, or a snapshot on storages that keep them apart; copies of a snapshot need one that can be read.
fn disks_can(job: &Job, section: &Section, feature: &str, of_snapshot: bool) -> bool {
    let state = job.dc.state();
    drives(section).filter(|d| !d.is_cdrom()).all(|drive| {
        let Some((id, name)) = drive.volume() else { return true };
        let kind = state.storages.get(id).map_or("", |s| s.kind.as_str());
        let qcow2 = name.file().ends_with(".qcow2");
        match (feature, of_snapshot) {
            ("clone", false) => name.is_base(),
            ("clone", true) => matches!(kind, "lvmthin" | "rbd"),
            (_, true) => qcow2 || matches!(kind, "lvmthin" | "rbd" | "btrfs"),
            _ => true,
        }
    })
}

fn shared_nodes(job: &Job, section: &Section) -> Vec<String> {
    let state = job.dc.state();
    let mut nodes: Vec<String> = state.nodes.keys().cloned().collect();
    for drive in drives(section) {
        let Some(storage) = drive.volume().and_then(|(id, _)| state.storages.get(id)) else {
            continue;
        };
        match &storage.nodes {
            _ if storage.disable => nodes.clear(),
            Some(listed) => nodes.retain(|node| listed.contains(node)),
            None if !storage.shared => nodes.retain(|node| *node == job.host),
            None => {}
        }
    }
    nodes
}
