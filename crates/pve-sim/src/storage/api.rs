//! `/nodes/{node}/storage`: what is there, how full it is, what lies on it.

use serde_json::{Map, Value, json};

use super::transfer::download_url;
use super::volume::{Kind, Volume, parse_volid};
use super::{Storage, Wish};
use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::state::State;

pub(crate) async fn handle(call: Call) -> Answer {
    match call.what() {
        ("GET", "/nodes/{node}/storage") => list(&call),
        ("GET", "/nodes/{node}/storage/{storage}/status") => status(&call),
        ("GET", "/nodes/{node}/storage/{storage}/content") => content(&call),
        ("POST", "/nodes/{node}/storage/{storage}/content") => allocate(&call).await,
        ("GET", "/nodes/{node}/storage/{storage}/content/{volume}") => info(&call),
        ("DELETE", "/nodes/{node}/storage/{storage}/content/{volume}") => delete(call).await,
        ("POST", "/nodes/{node}/storage/{storage}/download-url") => download_url(call).await,
        ("GET", "/nodes/{node}/storage/{storage}/identity") => {
            Ok(json!({ "storage": call.params.text("storage"), "node": call.job.host }).into())
        }
        _ => call.not_simulated(),
    }
}

/// What PVE says about a storage on a host.
fn describe(state: &State, id: &str, storage: &Storage, host: &str) -> Map<String, Value> {
    let active = storage.usable(host);
    let (total, used) = if active {
        (storage.capacity, state.used(id, host))
    } else {
        (0, 0)
    };
    let mut entry = Map::new();
    entry.insert("type".into(), json!(storage.kind));
    entry.insert("content".into(), json!(storage.content_list()));
    entry.insert("shared".into(), json!(u8::from(storage.shared)));
    entry.insert("enabled".into(), json!(u8::from(active)));
    entry.insert("active".into(), json!(u8::from(active)));
    entry.insert("total".into(), json!(total));
    entry.insert("used".into(), json!(used));
    entry.insert("avail".into(), json!(total.saturating_sub(used)));
    entry
}

fn list(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let host = &call.job.host;
    let wanted = call.params.get("storage");
    if let Some(id) = wanted.filter(|id| !state.storages.contains_key(*id)) {
        let _ = id;
        return Err(Die::parameter("storage", "No such storage."));
    }
    let target = call.params.get("target").filter(|t| *t != host);
    let contents: Vec<&str> = call
        .params
        .get("content")
        .map(|c| crate::schema::split_list(c).collect())
        .unwrap_or_default();
    let mut entries = Vec::new();
    for (id, storage) in &state.storages {
        let visible = state.access.may_any(
            &call.job.auth,
            &format!("/storage/{id}"),
            &["Datastore.Audit", "Datastore.AllocateSpace"],
        );
        let usable = storage.usable(host);
        let skip = wanted.is_some_and(|w| w != id)
            || !visible
            || !contents.is_empty() && (!usable || !contents.iter().any(|c| storage.content.contains(*c)))
            || call.params.flag("enabled") && !usable
            || target.is_some_and(|t| !storage.shared || !storage.usable(t) || !usable);
        if !skip {
            entries.push(list_entry(&state, call, id, storage));
        }
    }
    Ok(Value::Array(entries).into())
}

fn list_entry(state: &State, call: &Call, id: &str, storage: &Storage) -> Value {
    let mut entry = describe(state, id, storage, &call.job.host);
    entry.insert("storage".into(), json!(id));
    if storage.usable(&call.job.host) {
        let fraction = if storage.capacity == 0 {
            0.0
        } else {
            state.used(id, &call.job.host) as f64 / storage.capacity as f64
        };
        entry.insert("used_fraction".into(), json!(fraction));
        if call.params.flag("format") {
            let known: Map<String, Value> = storage.formats().iter().map(|f| ((*f).to_string(), json!(1))).collect();
            let mut names = storage.formats().to_vec();
            names.sort_unstable();
            entry.insert("format".into(), json!([known, storage.default_format()]));
            entry.insert(
                "formats".into(),
                json!({ "supported": names, "default": storage.default_format() }),
            );
        }
    }
    Value::Object(entry)
}

fn status(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let id = call.params.text("storage");
    let Some(storage) = state.storages.get(id) else {
        return Err(Die::parameter("storage", "No such storage."));
    };
    Ok(Value::Object(describe(&state, id, storage, &call.job.host)).into())
}

fn content(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let (id, host) = (call.params.text("storage"), &call.job.host);
    let storage = state.storage_on(id, host)?;
    let wanted = call.params.get("content").and_then(Kind::parse);
    if call.params.get("content").is_some() && wanted.is_none() {
        return Ok(json!([]).into());
    }
    let vmid = call.params.int("vmid").map(|v| v as u32);
    let mut volumes: Vec<&Volume> = state.volumes.on(state.place(id, host), id).collect();
    volumes.retain(|v| {
        let of_vm = match vmid {
            // Images and backups have owners; ISO files and templates are left out when a VM is asked for.
            Some(vmid) => v
                .vmid
                .map_or(!matches!(v.kind, Kind::Iso | Kind::Template), |owner| owner == vmid),
            None => true,
        };
        wanted.is_none_or(|k| v.kind == k) && storage.content.contains(v.kind.name()) && of_vm
    });
    let allowed = volumes
        .into_iter()
        .filter(|v| state.check_volume_access(&call.job.auth, None, &v.volid).is_ok());
    Ok(Value::Array(allowed.map(listed).collect()).into())
}

fn listed(volume: &Volume) -> Value {
    let mut entry = json!({
        "volid": volume.volid, "content": volume.kind.name(), "format": volume.format, "ctime": volume.ctime,
        "size": if volume.kind == Kind::Images { volume.size } else { volume.file_size },
    });
    if volume.kind == Kind::Images {
        entry["used"] = json!(volume.used);
        entry["parent"] = json!(volume.parent);
        entry["vmid"] = json!(volume.vmid);
    }
    entry
}

/// `storage:name`, or the name alone below its storage's path.
fn full_volid(call: &Call) -> Result<String, Die> {
    let (id, given) = (call.params.text("storage"), call.params.text("volume"));
    if !given.contains(':') {
        return Ok(format!("{id}:{given}"));
    }
    match parse_volid(given) {
        Ok((other, _)) if other != id => Err(Die::parameter("volume", format!("storage ID mismatch ({other} != {id})\n"))),
        Ok(_) => Ok(given.to_string()),
        Err(die) => Err(Die::parameter("volume", format!("{}\n", die.message))),
    }
}

fn info(call: &Call) -> Answer {
    let volid = full_volid(call)?;
    let state = call.job.dc.state();
    state.check_volume_access(&call.job.auth, None, &volid)?;
    let Some(volume) = state.volume(&call.job.host, &volid) else {
        return Err(Die::new(format!("volume_size_info on '{volid}' failed - no format")));
    };
    let path = state.volume_path(&volid)?;
    Ok(json!({ "path": path, "size": volume.size, "used": volume.used, "format": volume.format }).into())
}

async fn allocate(call: &Call) -> Answer {
    let (id, vmid, name) = (call.params.text("storage"), call.params.vmid(), call.params.text("filename"));
    let size = parse_alloc_size(call.params.text("size"))?;
    let file_based = call.job.dc.state().storage_on(id, &call.job.host)?.is_file_based();
    let by_name = name
        .rsplit_once('.')
        .map(|(_, ext)| ext)
        .filter(|ext| matches!(*ext, "raw" | "qcow2" | "vmdk"));
    if let (Some(given), Some(named)) = (call.params.get("format"), by_name)
        && given != named
    {
        return Err(Die::parameter(
            "format",
            format!("different storage formats ({given} != {named})"),
        ));
    }
    let format = by_name.or(call.params.get("format")).unwrap_or("raw");
    if !file_based && !name.starts_with(&format!("vm-{vmid}-")) {
        return Err(Die::new(format!("illegal name '{name}' - should be 'vm-{vmid}-*'")));
    }
    let wish = Wish {
        storage: id,
        vmid,
        format,
        name: Some(name.into()),
        size,
    };
    Ok(call.job.allocate(wish).await?.into())
}

/// KiB, unless a unit says otherwise.
fn parse_alloc_size(text: &str) -> Result<u64, Die> {
    let (digits, unit) = match text.chars().last() {
        Some('M') => (&text[..text.len() - 1], 1_u64 << 20),
        Some('G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1 << 10),
    };
    let whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let size = digits.parse::<u64>().ok().filter(|_| whole).and_then(|n| n.checked_mul(unit));
    size.ok_or_else(|| Die::parameter("size", format!("unable to parse size '{text}'")))
}

async fn delete(call: Call) -> Answer {
    let volid = full_volid(&call)?;
    let id = call.params.text("storage").to_string();
    let owner = {
        let state = call.job.dc.state();
        let (_, name) = parse_volid(&volid)?;
        let kind = name.require_kind(state.storage(&id)?)?;
        let path = format!("/storage/{id}");
        if let Some(owner) = name.owner().filter(|_| kind == Kind::Backup) {
            state.access.check(&call.job.auth, &path, &["Datastore.AllocateSpace"])?;
            state.access.check(&call.job.auth, &format!("/vms/{owner}"), &["VM.Backup"])?;
        } else {
            state.access.check(&call.job.auth, &path, &["Datastore.Allocate"])?;
        }
        name.owner()
    };
    let task_id = owner.map_or(id.clone(), |vmid| format!("{vmid}@{id}"));
    let upid = call.job.fork("imgdel", &task_id, move |job| async move {
        job.free(&volid).await?;
        job.say(format!("Removed volume '{volid}'"));
        Ok(())
    });
    match call.params.int("delay") {
        None => Ok(upid.into()),
        Some(seconds) => {
            let waited = tokio::time::timeout(std::time::Duration::from_secs(seconds as u64), call.job.ended(&upid)).await;
            match waited {
                Ok(exit) if exit == "OK" || exit.starts_with("WARNINGS") => Ok(Reply::default()),
                Ok(exit) => Err(Die::new(exit)),
                Err(_) => Ok(upid.into()),
            }
        }
    }
}
