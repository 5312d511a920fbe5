//! Clones: full copies and overlays on a base.

use super::check;
use super::conf::{Conf, Section};
use super::disks;
use super::drive::{Drive, Net, is_net};
use super::{Vm, is_drive};
use crate::datacenter::Answer;
use crate::die::Die;
use crate::dispatch::Call;
use crate::guest::Platter;
use crate::locks::Wanted;
use crate::observe::Effect;
use crate::state::State;
use crate::storage::{Volume, Wish, parse_volid};
use crate::tasks::Job;

#[derive(Clone)]
struct Request {
    vmid: u32,
    newid: u32,
    name: Option<String>,
    description: Option<String>,
    pool: Option<String>,
    storage: Option<String>,
    format: Option<String>,
    target: Option<String>,
    snapname: Option<String>,
    full: Option<bool>,
    /// Bytes per second.
    limit: Option<u64>,
}

/// What load and check give: the new config without its drives, and the drives to clone.
struct Plan {
    now: Section,
    drives: Vec<(Drive, bool)>,
    old_name: Option<String>,
    /// Changes that the original has not applied yet; a clone does not get them.
    pending: Vec<String>,
}

pub(super) async fn clone(call: Call) -> Answer {
    let params = &call.params;
    let text = |name: &str| params.get(name).map(str::to_string);
    let request = Request {
        vmid: params.vmid(),
        newid: params.int("newid").unwrap_or_default() as u32,
        name: text("name"),
        description: text("description"),
        pool: text("pool"),
        storage: text("storage"),
        format: text("format"),
        target: text("target").filter(|t| *t != call.job.host && t != "localhost"),
        snapname: text("snapname"),
        full: params.get("full").map(|f| f == "1"),
        limit: params.int("bwlimit").map(|kib| kib as u64 * 1024),
    };
    let running = call.job.is_running(request.vmid);
    if call.job.load(request.vmid).is_err() {
        return Err(missing(&call.job, request.vmid));
    }
    plan(&call.job, &request)?;
    let upid = call.job.fork("qmclone", &request.vmid.to_string(), move |job| async move {
        let source = Wanted::vm(&job.host, request.vmid, 1);
        let source = if running { source } else { source.shared() };
        let _source = job.dc.locks().take(&job, &source).await?;
        let _target = job.lock_vm(request.newid, 1).await?;
        run(&job, &request).await
    });
    Ok(upid.into())
}

/// Everything that is refused before anything is made.
fn plan(job: &Job, request: &Request) -> Result<Plan, Die> {
    let state = job.dc.state();
    if let Some(pool) = request.pool.as_ref().filter(|p| !state.access.pools.contains_key(*p)) {
        return Err(Die::permission(&format!("pool '{pool}' does not exist")));
    }
    if let Some(target) = &request.target {
        state.require_node(target)?;
    }
    check_storage(&state, job, request)?;
    state.require_quorum(&job.host)?;
    let vm = state.vm(&job.host, request.vmid).map_err(|_| missing(job, request.vmid))?;
    vm.conf.check_lock()?;
    let source = match &request.snapname {
        None => &vm.conf.now,
        Some(name) => vm
            .conf
            .snapshots
            .get(name)
            .ok_or_else(|| Die::new(format!("snapshot '{name}' does not exist")))?,
    };
    let full = request.full.unwrap_or(!vm.conf.is_template());
    if let Some(name) = [("storage", &request.storage), ("format", &request.format)]
        .iter()
        .find(|(_, v)| v.is_some() && !full)
    {
        return Err(Die::new(format!("parameter '{}' not allowed for linked clones", name.0)));
    }
    let shared = check_access(&state, job, request, source)?;
    check::bridges(&state, &job.auth, source)?;
    if let Some(target) = request.target.as_ref().filter(|_| !shared) {
        return Err(Die::new(format!("can't clone VM to node '{target}' (VM uses local storage)")));
    }
    if state.vms.get(&request.newid).is_some_and(|vm| vm.node == job.host) {
        return Err(Die::new(format!(
            "unable to create VM {}: config file already exists",
            request.newid
        )));
    }
    let old_name = source.get("name").cloned();
    let pending = vm.conf.pending.keys().chain(vm.conf.delete.keys()).cloned().collect();
    let (now, drives) = divide(&state, source, full, vm.is_running(), request)?;
    Ok(Plan {
        now,
        drives,
        old_name,
        pending,
    })
}

fn missing(job: &Job, vmid: u32) -> Die {
    Die::new(format!(
        "unable to find configuration file for VM {vmid} on node '{}'",
        job.host
    ))
}

fn check_storage(state: &State, job: &Job, request: &Request) -> Result<(), Die> {
    let Some(storage) = &request.storage else { return Ok(()) };
    state.storage_on(storage, &job.host)?;
    if !state.storage(storage)?.content.contains("images") {
        return Err(Die::parameter(
            "storage",
            format!("storage '{storage}' does not support vm images"),
        ));
    }
    if let Some(target) = &request.target {
        let there = state.storage_on(storage, target)?;
        if !there.shared {
            return Err(Die::new(format!("can't clone to non-shared storage '{storage}'")));
        }
    }
    Ok(())
}

/// Space on the storages that are written to; says whether all volumes are shared.
fn check_access(state: &State, job: &Job, request: &Request, source: &Section) -> Result<bool, Die> {
    let mut shared = true;
    for drive in check::drives_of(source)? {
        if drive.is_cdrom() && drive.file() == "cdrom" {
            state.access.check(&job.auth, "/", &["Sys.Console"])?;
        }
        let Some((id, _)) = drive.volume() else { continue };
        shared &= state.storage(id)?.shared;
        if !drive.is_cdrom() {
            let id = request.storage.as_deref().unwrap_or(id);
            state
                .access
                .check(&job.auth, &format!("/storage/{id}"), &["Datastore.AllocateSpace"])?;
        }
    }
    if let Some(id) = source.get("vmstatestorage") {
        state
            .access
            .check(&job.auth, &format!("/storage/{id}"), &["Datastore.AllocateSpace"])?;
    }
    Ok(shared)
}

/// Whether the storage can copy a volume, or put an overlay on it.
fn require_feature(state: &State, drive: &Drive, whole: bool, snapshot: bool) -> Result<(), Die> {
    let Some((id, name)) = drive.volume() else { return Ok(()) };
    let storage = state.storage(id)?;
    let qcow2 = name.full.ends_with(".qcow2");
    let able = match (whole, snapshot, storage.kind.as_str()) {
        (true, false, _) | (true, true, "lvmthin" | "rbd" | "btrfs") => true,
        (true, true, _) => qcow2,
        (false, _, "lvm") => false,
        (false, true, "lvmthin" | "rbd") => true,
        (false, _, _) => name.is_base(),
    };
    if able {
        return Ok(());
    }
    let kind = if whole { "Full" } else { "Linked" };
    let of = if snapshot { " a snapshot of" } else { "" };
    let (file, key) = (drive.file(), &drive.key);
    Err(Die::new(format!(
        "{kind} clone feature is not supported for{of} '{file}' ({key})"
    )))
}

/// What is copied as it is, and the drives that are cloned (`true`: in full).
fn divide(
    state: &State,
    source: &Section,
    full: bool,
    running: bool,
    request: &Request,
) -> Result<(Section, Vec<(Drive, bool)>), Die> {
    let mut now = Section::new();
    let mut drives = Vec::new();
    for (key, value) in source {
        if matches!(key.as_str(), "parent" | "snaptime" | "vmstate" | "snapstate" | "template") || key.starts_with("unused") {
            continue;
        }
        if full && running && request.snapname.is_none() && key == "tpmstate0" {
            return Err(Die::new("cannot clone TPM state while VM is running"));
        }
        if !is_drive(key) {
            now.insert(key.clone(), value.clone());
            continue;
        }
        let drive = Drive::parse(key, value)?;
        if drive.is_cdrom() && !drive.is_cloudinit() || drive.volume().is_none() {
            now.insert(key.clone(), value.clone());
        } else {
            let whole = full || drive.is_cloudinit() || key == "tpmstate0";
            require_feature(state, &drive, whole, request.snapname.is_some())?;
            drives.push((drive, whole));
        }
    }
    Ok((now, drives))
}

async fn run(job: &Job, request: &Request) -> Result<(), Die> {
    let Plan {
        mut now,
        drives,
        old_name,
        pending,
    } = plan(job, request)?;
    job.say(format!("creating a clone of VM {} with ID {}", request.vmid, request.newid));
    renew(job, &mut now);
    let name = request
        .name
        .clone()
        .filter(|n| !n.is_empty())
        .unwrap_or_else(|| format!("Copy-of-VM-{}", old_name.unwrap_or(request.vmid.to_string())));
    now.insert("name".into(), name);
    if let Some(description) = request.description.as_ref().filter(|d| !d.is_empty()) {
        now.insert("description".into(), description.clone());
    }
    claim(job, request.newid)?;
    copy_firewall(job, request);
    let mut made = Vec::new();
    let mut done = fill(job, request, &mut now, drives, &mut made).await;
    if done.is_ok() {
        if request.snapname.is_none() && !pending.is_empty() {
            job.say(format!(
                "found pending changes for '{}', discarding for clone",
                pending.join(",")
            ));
        }
        done = finish(job, request, now);
    }
    if let Err(die) = done {
        disks::free_all(job, &made).await;
        let mut state = job.dc.state();
        state.firewalls.remove(&request.newid);
        state.vms.remove(&request.newid);
        drop(state);
        job.dc.tell(job, &Effect::VmRemoved { vmid: request.newid });
        return Err(die.prefixed("clone failed: "));
    }
    Ok(())
}

/// A clone is guarded like its original.
fn copy_firewall(job: &Job, request: &Request) {
    let mut state = job.dc.state();
    if let Some(file) = state.firewalls.get(&request.vmid).cloned() {
        state.firewalls.insert(request.newid, file);
    }
}

/// Addresses and ids are never shared with the original.
fn renew(job: &Job, now: &mut Section) {
    let mut state = job.dc.state();
    for (key, value) in now.iter_mut() {
        if is_net(key)
            && let Ok(mut net) = Net::parse(key, value)
        {
            net.set_mac(state.random_mac());
            *value = net.print();
        }
    }
    let uuid = state.random_uuid();
    let others: Vec<String> = now
        .get("smbios1")
        .map(|s| s.split(',').filter(|p| !p.starts_with("uuid=")).map(Into::into).collect())
        .unwrap_or_default();
    let mut parts = others;
    parts.push(format!("uuid={uuid}"));
    parts.sort();
    now.insert("smbios1".into(), parts.join(","));
    if now.contains_key("vmgenid") {
        let id = state.random_uuid();
        now.insert("vmgenid".into(), id);
    }
}

/// The placeholder config: from here on the id is used.
fn claim(job: &Job, newid: u32) -> Result<(), Die> {
    let round = job.dc.round();
    let mut conf = Conf::default();
    conf.now.insert("lock".into(), "clone".into());
    conf.now.insert("description".into(), " qmclone temporary file".into());
    let mut state = job.dc.state();
    if state.vms.contains_key(&newid) {
        let file = format!("/etc/pve/nodes/{}/qemu-server/{newid}.conf", job.host);
        return Err(Die::new(format!("close (rename) atomic file '{file}' failed: File exists")));
    }
    state.vms.insert(newid, Vm::new(newid, &job.host, conf, round));
    drop(state);
    job.dc.tell(
        job,
        &Effect::VmCreated {
            vmid: newid,
            host: job.host.clone(),
        },
    );
    Ok(())
}

async fn fill(
    job: &Job,
    request: &Request,
    now: &mut Section,
    drives: Vec<(Drive, bool)>,
    made: &mut Vec<String>,
) -> Result<(), Die> {
    for (drive, _) in drives.iter().filter(|(d, _)| !d.is_cloudinit()) {
        require_volume(job, drive)?;
    }
    for (mut drive, whole) in drives {
        let volid = if whole {
            copy(job, request, &drive).await?
        } else {
            link(job, request, &drive).await?
        };
        made.push(volid.clone());
        let size = job.dc.state().volume(&job.host, &volid).map_or(0, |v| v.size);
        drive.set_file(&volid);
        drive.set_size(size);
        now.insert(drive.key.clone(), drive.print());
        // From the first drive on everything but the missing drives can be read; the lock stays until the end.
        let mut so_far = now.clone();
        so_far.insert("lock".into(), "clone".into());
        job.save(request.newid, Conf::new(so_far))?;
    }
    Ok(())
}

fn require_volume(job: &Job, drive: &Drive) -> Result<Volume, Die> {
    let state = job.dc.state();
    let (id, _) = parse_volid(drive.file())?;
    state.storage_on(id, &job.host)?;
    state
        .volume(&job.host, drive.file())
        .cloned()
        .ok_or_else(|| Die::new(format!("volume '{}' does not exist", drive.file())))
}

async fn copy(job: &Job, request: &Request, drive: &Drive) -> Result<String, Die> {
    let source = require_volume(job, drive)?;
    job.say(format!("create full clone of drive {} ({})", drive.key, drive.file()));
    let storage = request.storage.clone().unwrap_or_else(|| source.storage().to_string());
    let (file_based, known, default) = {
        let state = job.dc.state();
        let target = state.storage_on(&storage, &job.host)?;
        (
            target.is_file_based(),
            target.has_format(&source.format),
            target.default_format(),
        )
    };
    let format = request
        .format
        .clone()
        .filter(|_| file_based)
        .unwrap_or_else(|| if known { source.format.clone() } else { default.into() });
    let suffix = if file_based { format!(".{format}") } else { String::new() };
    let name = drive
        .is_cloudinit()
        .then(|| format!("vm-{}-cloudinit{suffix}", request.newid));
    let wish = Wish {
        storage: &storage,
        vmid: request.newid,
        format: &format,
        name,
        size: source.size,
    };
    disks::copy_into(job, &source, wish, request.limit).await
}

/// An overlay on the base; LVM-thin names do not tell the base.
async fn link(job: &Job, request: &Request, drive: &Drive) -> Result<String, Die> {
    let base = require_volume(job, drive)?;
    job.say(format!("create linked clone of drive {} ({})", drive.key, drive.file()));
    let id = base.storage().to_string();
    let (kind, file_based) = {
        let state = job.dc.state();
        let storage = state.storage_on(&id, &job.host)?;
        (storage.kind.clone(), storage.is_file_based())
    };
    let format = if file_based { "qcow2" } else { "raw" };
    let volid = job
        .allocate(Wish {
            storage: &id,
            vmid: request.newid,
            format,
            name: None,
            size: base.size,
        })
        .await?;
    let base_name = base
        .name()
        .full
        .rsplit('/')
        .take(if file_based { 2 } else { 1 })
        .collect::<Vec<_>>();
    let base_name = base_name.into_iter().rev().collect::<Vec<_>>().join("/");
    let own = volid.split(':').nth(1).unwrap_or_default().to_string();
    let linked = if kind == "lvmthin" {
        volid.clone()
    } else {
        format!("{id}:{base_name}/{own}")
    };
    rename(
        job,
        &id,
        &volid,
        &linked,
        base.content.copy(),
        file_based.then(|| format!("../{base_name}")),
    );
    if file_based {
        let file = own.rsplit('/').next().unwrap_or_default();
        job.say(format!(
            "clone {base_name}: images, {file}, {} to {file} (base=../{base_name})",
            request.newid
        ));
    }
    Ok(linked)
}

fn rename(job: &Job, id: &str, from: &str, to: &str, content: Platter, parent: Option<String>) {
    let mut state = job.dc.state();
    let place = state.place(id, &job.host).to_string();
    if let Some(mut volume) = state.volumes.remove(&place, from) {
        volume.volid = to.into();
        volume.content = content;
        volume.parent = parent;
        state.volumes.insert(&place, volume);
    }
}

fn finish(job: &Job, request: &Request, mut now: Section) -> Result<(), Die> {
    now.remove("lock");
    job.save(request.newid, Conf::new(now))?;
    let mut state = job.dc.state();
    if let Some(target) = &request.target
        && let Some(vm) = state.vms.get_mut(&request.newid)
    {
        vm.node.clone_from(target);
    }
    if let Some(pool) = request.pool.as_ref() {
        match state.access.pools.get_mut(pool) {
            Some(entry) => drop(entry.vms.insert(request.newid)),
            None => return Err(Die::new(format!("pool '{pool}' does not exist"))),
        }
    }
    Ok(())
}
