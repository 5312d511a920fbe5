//! Moving a VM to another host: offline with its local disks, or over shared storage.

use serde_json::{Value, json};

use super::conf::Conf;
use super::create::drives;
use super::drive::Drive;
use crate::datacenter::Answer;
use crate::die::Die;
use crate::dispatch::Call;
use crate::observe::Effect;
use crate::schema::split_list;
use crate::state::State;
use crate::storage::{Volume, parse_volid};
use crate::tasks::Job;

pub(super) async fn handle(call: Call) -> Answer {
    if call.method.verb == "GET" {
        preconditions(&call)
    } else {
        migrate(call).await
    }
}

/// Drives on storages that only this host has.
fn local_drives(state: &State, conf: &Conf) -> Vec<Drive> {
    let local = |d: &Drive| {
        d.volume()
            .is_some_and(|(id, _)| state.storages.get(id).is_some_and(|s| !s.shared))
    };
    drives(&conf.now).filter(local).collect()
}

fn preconditions(call: &Call) -> Answer {
    let state = call.job.dc.state();
    state.require_quorum(&call.job.host)?;
    let vm = state.vm(&call.job.host, call.params.vmid())?;
    vm.conf.check_lock()?;
    let disks: Vec<Value> = local_drives(&state, &vm.conf)
        .iter()
        .map(|drive| {
            let mut entry = json!({
                "volid": drive.file(), "drivename": drive.key, "cdrom": u8::from(drive.is_cdrom()),
                "is_cloudinit": u8::from(drive.is_cloudinit()), "is_attached": 1, "is_unused": 0,
                "is_tpmstate": u8::from(drive.key.starts_with("tpmstate")), "is_vmstate": 0, "shared": 0, "replicate": 1,
            });
            if let Some(size) = drive.size() {
                entry["size"] = json!(size);
            }
            entry
        })
        .collect();
    let others: Vec<&String> = state.nodes.keys().filter(|n| **n != call.job.host).collect();
    let mut not_allowed = json!({});
    let mut allowed = Vec::new();
    // A target that is named does not narrow the list.
    for node in others {
        let mut missing: Vec<&str> = drives(&vm.conf.now)
            .filter_map(|d| parse_volid(d.file()).ok().map(|(id, _)| id.to_string()))
            .filter_map(|id| {
                state
                    .storages
                    .get_key_value(&id)
                    .filter(|(_, s)| !s.usable(node))
                    .map(|(id, _)| id.as_str())
            })
            .collect();
        missing.sort_unstable();
        missing.dedup();
        if missing.is_empty() {
            allowed.push(node.clone());
            not_allowed[node] = json!({});
        } else {
            not_allowed[node] = json!({ "unavailable_storages": missing });
        }
    }
    let mut answer = json!({
        "running": u8::from(vm.is_running()), "local_disks": disks, "local_resources": [], "mapped-resources": [],
        "mapped-resource-info": {}, "allowed_nodes": allowed, "not_allowed_nodes": not_allowed, "has-dbus-vmstate": 1,
    });
    if state.ha.managed(vm.vmid).is_some() {
        answer["dependent-ha-resources"] = json!([]);
    }
    Ok(answer.into())
}

/// Where volumes go on the target: by default where they are, or as a list says.
#[derive(Default)]
struct StorageMap {
    identity: bool,
    default: Option<String>,
    entries: Vec<(String, String)>,
}

impl StorageMap {
    fn parse(text: &str) -> Result<Self, Die> {
        let mut map = Self::default();
        for entry in split_list(text) {
            let valid = |id: &str| {
                if crate::schema::is_storage_id(id) {
                    return Ok(id.to_string());
                }
                let why = format!("storage ID '{id}' contains illegal characters");
                Err(Die::new(format!("entry '{entry}' contains invalid ID - {why}\n")))
            };
            match entry.split_once(':') {
                _ if entry == "1" => map.identity = true,
                Some((from, to)) => {
                    let pair = (valid(from)?, valid(to)?);
                    if map.entries.iter().any(|(known, _)| *known == pair.0) {
                        return Err(Die::new(format!("duplicate mapping for source '{from}'")));
                    }
                    map.entries.push(pair);
                }
                None if map.default.is_some() => {
                    return Err(Die::new("default target ID can only be provided once"));
                }
                None => map.default = Some(valid(entry)?),
            }
        }
        if map.identity && (map.default.is_some() || !map.entries.is_empty()) {
            return Err(Die::new("identity mapping cannot be combined with other mappings"));
        }
        Ok(map)
    }

    fn target_of(&self, storage: &str) -> String {
        let listed = self.entries.iter().find(|(from, _)| from == storage).map(|(_, to)| to);
        listed.or(self.default.as_ref()).map_or(storage, String::as_str).to_string()
    }
}

/// The storages of a VM as they are must be usable on both hosts.
fn check_storages(state: &State, conf: &Conf, host: &str, target: &str) -> Result<(), Die> {
    for drive in drives(&conf.now) {
        let Some((id, name)) = drive.volume() else { continue };
        let storage = state.storage_on(id, host)?;
        state.storage_on(id, target)?;
        let kind = name.require_kind(storage)?.name();
        if !storage.content.contains(kind) {
            let text = format!("{}: content type '{kind}' is not available on storage '{id}'", drive.file());
            return Err(Die::new(text));
        }
    }
    Ok(())
}

fn check_map(job: &Job, state: &State, vmid: u32, target: &str, map: &StorageMap) -> Result<(), Die> {
    if !map.identity {
        state.access.check_vm(&job.auth, vmid, None, &["VM.Config.Disk"])?;
    }
    for id in map.entries.iter().map(|(_, to)| to).chain(&map.default) {
        let storage = state.storage_on(id, target)?;
        state
            .access
            .check(&job.auth, &format!("/storage/{id}"), &["Datastore.AllocateSpace"])?;
        if !storage.content.contains("images") {
            return Err(Die::new(format!("storage '{id}' does not support vm images")));
        }
    }
    Ok(())
}

async fn migrate(call: Call) -> Answer {
    let (job, vmid) = (&call.job, call.params.vmid());
    let target = call.params.text("target").to_string();
    if target == job.host {
        return Err(Die::parameter("target", "target is local node."));
    }
    let online = call.params.flag("online");
    let map = match call.params.get("targetstorage") {
        Some(text) => {
            let failed = |die: Die| Die::parameter("targetstorage", format!("failed to parse storage map: {}\n", die.message));
            Some(StorageMap::parse(text).map_err(failed)?)
        }
        None => None,
    };
    {
        let state = job.dc.state();
        state.require_quorum(&job.host)?;
        state.require_node(&target)?;
        job.root_only(&call.params, &["force", "migration_type", "migration_network"])?;
        let vm = state.vm(&job.host, vmid)?;
        vm.conf.check_lock()?;
        if vm.is_running() && !online {
            return Err(Die::new("can't migrate running VM without --online"));
        }
        match &map {
            Some(map) => check_map(job, &state, vmid, &target, map)?,
            None => check_storages(&state, &vm.conf, &job.host, &target)?,
        }
        if map.as_ref().is_some_and(|map| map.identity) {
            check_storages(&state, &vm.conf, &job.host, &target)?;
        }
    }
    if job.dc.state().ha.managed(vmid).is_some() {
        let upid = job.fork("hamigrate", &vmid.to_string(), move |job| async move {
            job.say(format!("Requesting HA migration for VM {vmid} to node {target}"));
            Ok(())
        });
        return Ok(upid.into());
    }
    let upid = job.fork("qmigrate", &vmid.to_string(), move |job| async move {
        let _held = job.lock_vm(vmid, 10).await?;
        run(&job, vmid, &target, &map.unwrap_or_default()).await
    });
    Ok(upid.into())
}

fn say(job: &Job, text: &str) {
    let stamp = job.dc.wall().now().strftime("%Y-%m-%d %H:%M:%S");
    job.say(format!("{stamp} {text}"));
}

async fn run(job: &Job, vmid: u32, target: &str, map: &StorageMap) -> Result<(), Die> {
    let began = tokio::time::Instant::now();
    let address = job.dc.state().require_node(target)?.ip.clone();
    say(
        job,
        &format!("starting migration of VM {vmid} to node '{target}' ({address})"),
    );
    let duration = || {
        let seconds = began.elapsed().as_secs();
        format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
    };
    match move_all(job, vmid, target, map).await {
        Ok(()) => {
            say(job, &format!("migration finished successfully (duration {})", duration()));
            Ok(())
        }
        Err(die) => {
            say(job, &format!("ERROR: {}", die.message));
            say(job, "aborting phase 1 - cleanup resources");
            say(
                job,
                &format!("ERROR: migration aborted (duration {}): {}", duration(), die.message),
            );
            Err(Die::new("migration aborted"))
        }
    }
}

/// The config carries a lock until it has arrived.
async fn move_all(job: &Job, vmid: u32, target: &str, map: &StorageMap) -> Result<(), Die> {
    let mut conf = job.load(vmid)?;
    conf.check_lock()?;
    set_lock(job, vmid, Some("migrate"))?;
    let moved = move_volumes(job, vmid, target, map, &mut conf).await;
    if moved.is_err() {
        set_lock(job, vmid, None)?;
    }
    moved
}

fn set_lock(job: &Job, vmid: u32, lock: Option<&str>) -> Result<(), Die> {
    let mut conf = job.load(vmid)?;
    match lock {
        Some(lock) => drop(conf.now.insert("lock".into(), lock.into())),
        None => drop(conf.now.remove("lock")),
    }
    job.save(vmid, conf)
}

async fn move_volumes(job: &Job, vmid: u32, target: &str, map: &StorageMap, conf: &mut Conf) -> Result<(), Die> {
    let mut local = local_drives(&job.dc.state(), conf);
    local.sort_by(|a, b| a.file().cmp(b.file()));
    scan(job, &local)?;
    for drive in &mut local {
        update_size(job, conf, drive);
    }
    if !local.is_empty() {
        say(job, "copying local disk images");
    }
    for drive in &mut local {
        let arrived = transfer(job, vmid, drive.file(), target, map).await?;
        if arrived != drive.file() {
            drive.set_file(&arrived);
            conf.now.insert(drive.key.clone(), drive.print());
        }
    }
    job.work(job.dc.timing().stop).await?;
    job.save(vmid, conf.clone())?;
    hand_over(job, vmid, target);
    Ok(())
}

/// What is found is told; what cannot be moved ends it.
fn scan(job: &Job, local: &[Drive]) -> Result<(), Die> {
    for drive in local {
        if drive.is_cloudinit() {
            say(
                job,
                &format!("found generated disk '{}' (in current VM config)", drive.file()),
            );
        } else {
            say(job, &format!("found local disk '{}' (attached)", drive.file()));
        }
    }
    let mut stuck = false;
    for drive in local.iter().filter(|d| d.is_cdrom() && !d.is_cloudinit()) {
        say(
            job,
            &format!("can't migrate local disk '{}': local cdrom image", drive.file()),
        );
        stuck = true;
    }
    if stuck {
        Err(Die::new(
            "Problem found while scanning volumes - can't migrate VM - check log",
        ))
    } else {
        Ok(())
    }
}

fn update_size(job: &Job, conf: &mut Conf, drive: &mut Drive) {
    let Some(size) = job.dc.state().volume(&job.host, drive.file()).map(|v| v.size) else {
        return;
    };
    if drive.size() != Some(size) {
        let old = super::format_size(drive.size().unwrap_or(0));
        let new = super::format_size(size);
        say(
            job,
            &format!(
                "drive '{}': size of disk '{}' updated from {old} to {new}",
                drive.key,
                drive.file()
            ),
        );
        drive.set_size(size);
        conf.now.insert(drive.key.clone(), drive.print());
    }
}

/// Copies a volume to the target, under the same name if that is free there; gives its id there.
async fn transfer(job: &Job, vmid: u32, volid: &str, target: &str, map: &StorageMap) -> Result<String, Die> {
    let found: Option<Volume> = job.dc.state().volume(&job.host, volid).cloned();
    let Some(mut volume) = found else {
        return Err(Die::new(format!("volume '{volid}' does not exist")));
    };
    let to = map.target_of(volume.storage());
    job.copy_bytes((&to, target), volume.size, None, |_| {}).await?;
    let mut state = job.dc.state();
    state.volumes.remove(&job.host, volid);
    let arrived = state.arriving_name(&volume, &to, target, vmid)?;
    volume.volid.clone_from(&arrived);
    let place = state.place(&to, target).to_string();
    state.volumes.insert(&place, volume);
    drop(state);
    say(job, &format!("successfully imported '{arrived}'"));
    say(job, &format!("volume '{volid}' is '{arrived}' on the target"));
    Ok(arrived)
}

fn hand_over(job: &Job, vmid: u32, target: &str) {
    let round = job.dc.round();
    if let Some(vm) = job.dc.state().vm_mut(vmid, round) {
        vm.node = target.into();
    }
    job.dc.tell(job, &Effect::VmMoved { vmid, to: target.into() });
}
