//! `/storage`: the definitions, as in storage.cfg.

use serde_json::{Map, Value, json};

use super::Storage;
use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::locks::Held;
use crate::observe::Effect;
use crate::schema::{Params, split_list};

pub(crate) async fn handle(call: Call) -> Answer {
    match call.what() {
        ("GET", "/storage") => list(&call),
        ("GET", "/storage/{storage}") => {
            let state = call.job.dc.state();
            let id = call.params.text("storage");
            Ok(definition(id, state.storage(id)?).into())
        }
        ("POST", "/storage") => create(&call).await,
        ("PUT", "/storage/{storage}") => update(&call).await,
        ("DELETE", "/storage/{storage}") => delete(&call).await,
        _ => call.not_simulated(),
    }
}

fn definition(id: &str, storage: &Storage) -> Value {
    let mut entry = Map::new();
    entry.insert("storage".into(), json!(id));
    entry.insert("type".into(), json!(storage.kind));
    entry.insert("content".into(), json!(storage.content_list()));
    if let Some(path) = &storage.path {
        entry.insert("path".into(), json!(path));
    }
    if storage.shared {
        entry.insert("shared".into(), json!(1));
    }
    if let Some(nodes) = &storage.nodes {
        entry.insert("nodes".into(), json!(nodes.join(",")));
    }
    if storage.disable {
        entry.insert("disable".into(), json!(1));
    }
    for (key, value) in &storage.other {
        entry.insert(key.clone(), json!(value));
    }
    entry.insert(
        "digest".into(),
        json!(hex::encode(<sha1::Sha1 as sha1::Digest>::digest(
            format!("{entry:?}").as_bytes()
        ))),
    );
    Value::Object(entry)
}

fn list(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let kind = call.params.get("type");
    let entries = state.storages.iter().filter(|(id, storage)| {
        kind.is_none_or(|k| storage.kind == k)
            && state.access.may_any(
                &call.job.auth,
                &format!("/storage/{id}"),
                &["Datastore.Audit", "Datastore.AllocateSpace"],
            )
    });
    Ok(Value::Array(entries.map(|(id, storage)| definition(id, storage)).collect()).into())
}

/// storage.cfg is written under a cluster lock.
async fn writable(call: &Call, what: &str) -> Result<Held, Die> {
    let locks = call.job.dc.locks();
    let taken = locks.take_cluster(&call.job, &call.contacted, "file-storage_cfg").await;
    taken.map_err(|die| die.prefixed(&format!("{what} storage failed: ")))
}

fn changed(call: &Call, id: &str) {
    call.job.dc.tell(&call.job, &Effect::StorageChanged { storage: id.into() });
}

async fn create(call: &Call) -> Answer {
    let (id, kind) = (call.params.text("storage").to_string(), call.params.text("type").to_string());
    let required = match kind.as_str() {
        "dir" => &["path"][..],
        "nfs" => &["server", "export"],
        "lvmthin" => &["vgname", "thinpool"],
        "lvm" => &["vgname"],
        "zfspool" => &["pool"],
        _ => return Err(Die::bare(501, format!("storage type '{kind}' is not simulated"))),
    };
    if let Some(missing) = required.iter().find(|name| !call.params.has(name)) {
        return Err(Die::new(format!("missing value for required option '{missing}'")));
    }
    let _held = writable(call, "create").await?;
    let mut state = call.job.dc.state();
    if state.storages.contains_key(&id) {
        return Err(Die::new(format!("create storage failed: storage ID '{id}' already defined")));
    }
    let mut storage = Storage {
        shared: kind == "nfs",
        kind: kind.clone(),
        path: None,
        content: ["images".to_string(), "rootdir".to_string()].into(),
        nodes: None,
        disable: false,
        capacity: 100 << 30,
        taken: 0,
        other: [].into(),
    };
    if kind == "dir" || kind == "nfs" {
        storage.content = ["images", "rootdir", "vztmpl", "iso", "backup", "snippets"]
            .map(Into::into)
            .into();
    }
    apply(&mut storage, &call.params);
    if kind == "nfs" && storage.path.is_none() {
        storage.path = Some(format!("/mnt/pve/{id}"));
    }
    state.storages.insert(id.clone(), storage);
    drop(state);
    changed(call, &id);
    Ok(json!({ "storage": id, "type": kind }).into())
}

fn apply(storage: &mut Storage, params: &Params) {
    for (name, value) in params.texts() {
        let Some(value) = value else { continue };
        match name {
            "storage" | "type" | "digest" | "delete" => {}
            "content" => storage.content = split_list(value).map(Into::into).collect(),
            "nodes" => storage.nodes = Some(split_list(value).map(Into::into).collect()),
            "disable" => storage.disable = value == "1",
            "shared" => storage.shared = value == "1",
            "path" => storage.path = Some(value.into()),
            other => drop(storage.other.insert(other.into(), value.into())),
        }
    }
}

/// What every kind of storage can do without; the rest says where it is.
const OPTIONAL: &[&str] = &[
    "nodes",
    "shared",
    "disable",
    "content",
    "format",
    "mkdir",
    "is_mountpoint",
    "bwlimit",
    "preallocation",
    "prune-backups",
    "max-protected-backups",
    "content-dirs",
    "options",
    "sparse",
    "create-base-path",
    "create-subdirs",
];

fn check_update(id: &str, storage: &Storage, params: &Params) -> Result<(), Die> {
    let shown = definition(id, storage);
    if params.get("digest").is_some_and(|digest| shown["digest"] != digest) {
        return Err(Die::new(
            "detected modified configuration - file changed by other user? Try again.",
        ));
    }
    for key in split_list(params.get("delete").unwrap_or_default()) {
        if matches!(key, "path" | "server" | "export" | "vgname" | "thinpool" | "pool") {
            return Err(Die::new(format!("unable to delete required option '{key}'")));
        }
        if !OPTIONAL.contains(&key) {
            return Err(Die::new(format!("no such option '{key}'")));
        }
        if params.has(key) {
            return Err(Die::new(format!("cannot set and delete property '{key}' at the same time!")));
        }
    }
    Ok(())
}

async fn update(call: &Call) -> Answer {
    let id = call.params.text("storage").to_string();
    let _held = writable(call, "update").await?;
    let mut state = call.job.dc.state();
    let Some(storage) = state.storages.get_mut(&id) else {
        return Err(Die::new(format!("update storage failed: storage '{id}' does not exist")));
    };
    check_update(&id, storage, &call.params).map_err(|die| die.prefixed("update storage failed: "))?;
    apply(storage, &call.params);
    for key in split_list(call.params.get("delete").unwrap_or_default()) {
        match key {
            "disable" => storage.disable = false,
            "nodes" => storage.nodes = None,
            "shared" => storage.shared = false,
            other => drop(storage.other.remove(other)),
        }
    }
    let kind = storage.kind.clone();
    drop(state);
    changed(call, &id);
    Ok(json!({ "storage": id, "type": kind }).into())
}

async fn delete(call: &Call) -> Answer {
    let id = call.params.text("storage").to_string();
    let _held = writable(call, "delete").await?;
    let removed = call.job.dc.state().storages.shift_remove(&id);
    if removed.is_none() {
        return Err(Die::new(format!("delete storage failed: storage '{id}' does not exist")));
    }
    changed(call, &id);
    Ok(Reply::default())
}
