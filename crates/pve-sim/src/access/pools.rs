//! `/pools`: resource pools and their members.

use serde_json::{Value, json};

use super::Pool;
use super::api::writable;
use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::observe::Effect;
use crate::qemu;
use crate::schema::split_list;
use crate::state::State;

pub(crate) async fn handle(call: Call) -> Answer {
    match call.what() {
        ("GET", "/pools") => list(&call),
        ("GET", "/pools/{poolid}") => {
            let state = call.job.dc.state();
            let id = call.params.text("poolid");
            let pool = state.access.pools.get(id).ok_or_else(|| missing(id))?;
            Ok(describe(&call, &state, id, pool).into())
        }
        ("POST", "/pools") => create(&call).await,
        ("PUT", _) => update(&call).await,
        ("DELETE", _) => delete(&call).await,
        _ => call.not_simulated(),
    }
}

fn missing(id: &str) -> Die {
    Die::new(format!("pool '{id}' does not exist"))
}

fn changed(call: &Call, pool: &str) {
    call.job.dc.tell(&call.job, &Effect::PoolChanged { pool: pool.into() });
}

fn list(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let may = |id: &str| state.access.may(&call.job.auth, &format!("/pool/{id}"), &["Pool.Audit"]);
    if let Some(id) = call.params.get("poolid") {
        // Here PVE looks at the right and does not mind if it is missing.
        let pool = state.access.pools.get(id).ok_or_else(|| missing(id))?;
        return Ok(json!([describe(call, &state, id, pool)]).into());
    }
    let entry = |(id, pool): (&String, &Pool)| {
        let mut entry = json!({ "poolid": id });
        if let Some(comment) = &pool.comment {
            entry["comment"] = json!(comment);
        }
        entry
    };
    Ok(Value::Array(state.access.pools.iter().filter(|(id, _)| may(id)).map(entry).collect()).into())
}

fn describe(call: &Call, state: &State, id: &str, pool: &Pool) -> Value {
    let mut entry = json!({ "poolid": id });
    if let Some(comment) = &pool.comment {
        entry["comment"] = json!(comment);
    }
    let wanted = |kind: &str| call.params.get("type").is_none_or(|t| t == kind);
    let mut members = Vec::new();
    for vm in pool
        .vms
        .iter()
        .filter_map(|vmid| state.vms.get(vmid))
        .filter(|_| wanted("qemu"))
    {
        let mut member = qemu::resource(&call.job.dc, state, vm, true);
        for key in ["pool", "tags", "lock", "hastate"] {
            member.remove(key);
        }
        members.push(Value::Object(member));
    }
    let storages = pool.storages.iter().filter(|_| wanted("storage"));
    for (id, storage) in storages.filter_map(|id| state.storages.get_key_value(id)) {
        let first = storage.nodes.as_ref().and_then(|nodes| nodes.iter().min());
        let node = if storage.on(&call.contacted) {
            &call.contacted
        } else {
            first.unwrap_or(&call.contacted)
        };
        members.push(crate::cluster::storage_resource(state, id, storage, node, true));
    }
    entry["members"] = json!(members);
    entry
}

async fn create(call: &Call) -> Answer {
    let id = call.params.text("poolid").to_string();
    let _held = writable(call, "create pool failed: ").await?;
    let mut state = call.job.dc.state();
    if state.access.pools.contains_key(&id) {
        return Err(Die::new(format!("create pool failed: pool '{id}' already exists")));
    }
    if let Some((parent, _)) = id.rsplit_once('/')
        && !state.access.pools.contains_key(parent)
    {
        return Err(Die::new(format!(
            "create pool failed: parent '{parent}' of pool '{id}' does not exist"
        )));
    }
    let leaf = id.rsplit('/').next().unwrap_or_default();
    if !leaf.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(Die::new("create pool failed: pool name must start with a letter"));
    }
    let pool = Pool {
        comment: call.params.get("comment").filter(|c| !c.is_empty()).map(Into::into),
        ..Pool::default()
    };
    state.access.pools.insert(id.clone(), pool);
    drop(state);
    changed(call, &id);
    Ok(Reply::default())
}

async fn update(call: &Call) -> Answer {
    let id = call.params.text("poolid").to_string();
    let _held = writable(call, "update pools failed: ").await?;
    let mut state = call.job.dc.state();
    // The file is written once, at the end: what fails on the way changes nothing.
    let before = state.access.pools.clone();
    if let Err(die) = edit(&mut state, call, &id) {
        state.access.pools = before;
        return Err(die.prefixed("update pools failed: "));
    }
    drop(state);
    changed(call, &id);
    Ok(Reply::default())
}

fn edit(state: &mut State, call: &Call, id: &str) -> Result<(), Die> {
    let pool = state.access.pools.get_mut(id).ok_or_else(|| missing(id))?;
    if let Some(comment) = call.params.get("comment") {
        pool.comment = Some(comment.to_string()).filter(|c| !c.is_empty());
    }
    for vmid in split_list(call.params.get("vms").unwrap_or_default()).filter_map(|v| v.parse::<u32>().ok()) {
        state.access.check_modify(&call.job.auth, &format!("/vms/{vmid}"))?;
        move_vm(state, call, id, vmid)?;
    }
    for storage in split_list(call.params.get("storage").unwrap_or_default()) {
        state.access.check_modify(&call.job.auth, &format!("/storage/{storage}"))?;
        move_storage(state, call, id, storage)?;
    }
    Ok(())
}

fn move_vm(state: &mut State, call: &Call, id: &str, vmid: u32) -> Result<(), Die> {
    let present = state.access.pool_of(vmid).map(str::to_string);
    if call.params.flag("delete") {
        if present.as_deref() != Some(id) {
            return Err(Die::new(format!("VM {vmid} is not a pool member")));
        }
    } else {
        match present {
            Some(other) if other == id => return Err(Die::new(format!("VM {vmid} is already a pool member"))),
            Some(other) if !call.params.flag("allow-move") => {
                return Err(Die::new(format!(
                    "VM {vmid} belongs already to pool '{other}' and 'allow-move' is not set"
                )));
            }
            Some(other) => state
                .access
                .check(&call.job.auth, &format!("/pool/{other}"), &["Pool.Allocate"])?,
            None => {}
        }
    }
    for pool in state.access.pools.values_mut() {
        pool.vms.remove(&vmid);
    }
    if !call.params.flag("delete")
        && let Some(pool) = state.access.pools.get_mut(id)
    {
        pool.vms.insert(vmid);
    }
    Ok(())
}

fn move_storage(state: &mut State, call: &Call, id: &str, storage: &str) -> Result<(), Die> {
    let Some(pool) = state.access.pools.get_mut(id) else {
        return Err(missing(id));
    };
    if call.params.flag("delete") {
        if !pool.storages.remove(storage) {
            return Err(Die::new(format!("Storage '{storage}' is not a pool member")));
        }
        return Ok(());
    }
    if !pool.storages.insert(storage.into()) {
        return Err(Die::new(format!("Storage '{storage}' is already a pool member")));
    }
    Ok(())
}

async fn delete(call: &Call) -> Answer {
    let id = call.params.text("poolid").to_string();
    let _held = writable(call, "delete pool failed: ").await?;
    let mut state = call.job.dc.state();
    let failed = |die: Die| die.prefixed("delete pool failed: ");
    let pool = state.access.pools.get(&id).ok_or_else(|| failed(missing(&id)))?;
    if let Some(what) = holds(&state, &id, pool) {
        return Err(failed(Die::new(format!("pool '{id}' is not empty (contains {what})"))));
    }
    state.access.pools.remove(&id);
    // The entries of a nested pool stay behind: PVE looks for them in the wrong place.
    let (own, below) = (format!("/pool/{id}"), format!("/pool/{id}/"));
    state
        .access
        .acl
        .retain(|path, _| id.contains('/') || *path != own && !path.starts_with(&below));
    drop(state);
    changed(call, &id);
    Ok(Reply::default())
}

/// The first thing that keeps a pool from being deleted; guests that are gone do not count.
fn holds(state: &State, id: &str, pool: &Pool) -> Option<String> {
    let below = state.access.pools.keys().find(|other| other.starts_with(&format!("{id}/")));
    let guest = pool.vms.iter().find(|vmid| state.vms.contains_key(vmid));
    let storage = pool.storages.iter().find(|s| state.storages.contains_key(*s));
    below
        .map(|p| format!("pool '{p}'"))
        .or_else(|| guest.map(|vmid| format!("VM {vmid}")))
        .or_else(|| storage.map(|s| format!("storage '{s}'")))
}
