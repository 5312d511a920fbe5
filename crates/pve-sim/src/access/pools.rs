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
        state.access.check(&call.job.auth, &format!("/pool/{id}"), &["Pool.Audit"])?;
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
    for storage in pool.storages.iter().filter(|_| wanted("storage")) {
        for node in state
            .nodes
            .keys()
            .filter(|n| state.storages.get(storage).is_some_and(|s| s.usable(n)))
        {
            members
                .push(json!({ "type": "storage", "id": format!("storage/{node}/{storage}"), "storage": storage, "node": node }));
        }
    }
    entry["members"] = json!(members);
    entry
}

async fn create(call: &Call) -> Answer {
    let id = call.params.text("poolid").to_string();
    writable(call, "create pool failed: ").await?;
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
    writable(call, "update pools failed: ").await?;
    let mut state = call.job.dc.state();
    if !state.access.pools.contains_key(&id) {
        return Err(missing(&id).prefixed("update pools failed: "));
    }
    if let Some(comment) = call.params.get("comment")
        && let Some(pool) = state.access.pools.get_mut(&id)
    {
        pool.comment = Some(comment.to_string()).filter(|c| !c.is_empty());
    }
    for vmid in split_list(call.params.get("vms").unwrap_or_default()).filter_map(|v| v.parse::<u32>().ok()) {
        state
            .access
            .check(&call.job.auth, &format!("/vms/{vmid}"), &["VM.Allocate"])
            .or_else(|_| state.access.check(&call.job.auth, &format!("/pool/{id}"), &["Pool.Allocate"]))?;
        move_vm(&mut state, call, &id, vmid).map_err(|die| die.prefixed("update pools failed: "))?;
    }
    for storage in split_list(call.params.get("storage").unwrap_or_default()) {
        move_storage(&mut state, call, &id, storage).map_err(|die| die.prefixed("update pools failed: "))?;
    }
    drop(state);
    changed(call, &id);
    Ok(Reply::default())
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
            _ => {}
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
    writable(call, "delete pool failed: ").await?;
    let mut state = call.job.dc.state();
    let failed = |die: Die| die.prefixed("delete pool failed: ");
    let pool = state.access.pools.get(&id).ok_or_else(|| failed(missing(&id)))?;
    if pool.vms.iter().any(|vmid| state.vms.contains_key(vmid)) || !pool.storages.is_empty() {
        return Err(Die::new(format!("delete pool failed: pool '{id}' is not empty")));
    }
    if state.access.pools.keys().any(|other| other.starts_with(&format!("{id}/"))) {
        return Err(Die::new(format!(
            "delete pool failed: pool '{id}' is not empty (contains pools)"
        )));
    }
    state.access.pools.remove(&id);
    state.access.acl.remove(&format!("/pool/{id}"));
    drop(state);
    changed(call, &id);
    Ok(Reply::default())
}
