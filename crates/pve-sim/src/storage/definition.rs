//! `/storage`: the definitions, as in storage.cfg.

use serde_json::{Map, Value, json};

use super::Storage;
use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::locks::Held;
use crate::observe::Effect;
use crate::schema::{Params, split_list};
use crate::state::State;

pub(crate) async fn handle(call: Call) -> Answer {
    match call.what() {
        ("GET", "/storage") => list(&call),
        ("GET", "/storage/{storage}") => {
            let state = call.job.dc.state();
            let id = call.params.text("storage");
            let digest = digest(&state);
            Ok(definition(id, state.storage(id)?, &digest).into())
        }
        ("POST", "/storage") => create(&call).await,
        ("PUT", "/storage/{storage}") => update(&call).await,
        ("DELETE", "/storage/{storage}") => delete(&call).await,
        _ => call.not_simulated(),
    }
}

/// storage.cfg has one digest: it changes with every storage.
fn digest(state: &State) -> String {
    let entries: Vec<String> = state
        .storages
        .iter()
        .map(|(id, s)| definition(id, s, "").to_string())
        .collect();
    hex::encode(<sha1::Sha1 as sha1::Digest>::digest(entries.join("\n").as_bytes()))
}

fn definition(id: &str, storage: &Storage, digest: &str) -> Value {
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
    entry.insert("digest".into(), json!(digest));
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
    let digest = digest(&state);
    Ok(Value::Array(entries.map(|(id, storage)| definition(id, storage, &digest)).collect()).into())
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

/// What every kind has.
const COMMON: [&str; 4] = ["nodes", "disable", "content", "bwlimit"];
const FILES: [&str; 9] = [
    "content-dirs",
    "prune-backups",
    "max-protected-backups",
    "format",
    "mkdir",
    "create-base-path",
    "create-subdirs",
    "preallocation",
    "snapshot-as-volume-chain",
];

/// The options of a kind: those that say where it is and never change, and those of its own besides.
fn options_of(kind: &str) -> Option<(&'static [&'static str], &'static [&'static str])> {
    Some(match kind {
        "dir" => (&["path"], &["shared", "is_mountpoint"]),
        "nfs" => (&["server", "export"], &["options", "path"]),
        "lvmthin" => (&["vgname", "thinpool"], &[]),
        "lvm" => (
            &["vgname"],
            &[
                "shared",
                "saferemove",
                "saferemove-stepsize",
                "saferemove_throughput",
                "base",
                "tagged_only",
                "snapshot-as-volume-chain",
            ],
        ),
        "zfspool" => (&["pool"], &["blocksize", "sparse", "mountpoint"]),
        _ => return None,
    })
}

fn is_optional(kind: &str, name: &str) -> bool {
    let (_, own) = options_of(kind).unwrap_or_default();
    let files = matches!(kind, "dir" | "nfs") && FILES.contains(&name);
    COMMON.contains(&name) || own.contains(&name) || files
}

/// Fixed although it need not be given.
fn is_fixed(kind: &str, name: &str) -> bool {
    let (required, _) = options_of(kind).unwrap_or_default();
    required.contains(&name)
        || matches!(
            (kind, name),
            ("nfs", "path") | ("lvm", "base") | ("dir" | "nfs", "snapshot-as-volume-chain")
        )
}

/// Options by name and by kind, as a section of the file allows them.
fn check_options(kind: &str, params: &Params, create: bool) -> Result<(), Die> {
    let (required, _) = options_of(kind).unwrap_or_default();
    let own = |name: &str| matches!(name, "storage" | "type" | "digest" | "delete");
    for (name, value) in params.texts().filter(|(name, _)| !own(name)) {
        if !create && is_fixed(kind, name) {
            return Err(Die::new(format!("can't change value of fixed parameter '{name}'")));
        }
        let Some(value) = value else {
            return Err(Die::new(format!("got undefined value for option '{name}'")));
        };
        if !is_optional(kind, name) && !required.contains(&name) {
            return Err(Die::new(format!("unexpected property '{name}'")));
        }
        if value.contains(['\n', '\r']) {
            return Err(Die::new("property contains a line feed"));
        }
        if name == "content" {
            check_content(kind, value)?;
        }
    }
    match required.iter().find(|name| create && !params.has(name)) {
        Some(missing) => Err(Die::new(format!("missing value for required option '{missing}'"))),
        None => Ok(()),
    }
}

/// Kinds of content that a kind of storage cannot hold are dropped with a warning that only its host sees.
fn content_of(kind: &str, value: &str) -> Vec<String> {
    let known: &[&str] = match kind {
        "dir" => &["images", "rootdir", "vztmpl", "iso", "backup", "snippets", "import", "none"],
        "nfs" => &["images", "rootdir", "vztmpl", "iso", "backup", "snippets", "import"],
        "lvm" | "lvmthin" | "zfspool" => &["images", "rootdir"],
        _ => &[],
    };
    split_list(value).filter(|c| known.contains(c)).map(str::to_string).collect()
}

fn check_content(kind: &str, value: &str) -> Result<(), Die> {
    let kept = content_of(kind, value);
    if kept.len() > 1 && kept.iter().any(|c| c == "none") {
        return Err(Die::new("unable to combine 'none' with other content types"));
    }
    if kept.is_empty() && kind != "dir" {
        return Err(Die::new("storage does not support content type 'none'"));
    }
    Ok(())
}

async fn create(call: &Call) -> Answer {
    let (id, kind) = (call.params.text("storage").to_string(), call.params.text("type").to_string());
    let mut params = call.params.clone();
    if params.get("nodes").is_none_or(|nodes| matches!(nodes, "" | "0")) {
        params.0.shift_remove("nodes");
    }
    if options_of(&kind).is_none() {
        return Err(Die::bare(501, format!("storage type '{kind}' is not simulated")));
    }
    check_options(&kind, &params, true)?;
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
    apply(&mut storage, &params);
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
            "content" => storage.content = content_of(&storage.kind, value).into_iter().collect(),
            "nodes" => storage.nodes = Some(split_list(value).map(Into::into).collect()),
            "disable" => storage.disable = value == "1",
            "shared" => storage.shared = value == "1",
            "path" => storage.path = Some(value.into()),
            other => drop(storage.other.insert(other.into(), value.into())),
        }
    }
}

fn check_delete(kind: &str, params: &Params) -> Result<(), Die> {
    let (required, _) = options_of(kind).unwrap_or_default();
    for key in split_list(params.get("delete").unwrap_or_default()) {
        if required.contains(&key) {
            return Err(Die::new(format!("unable to delete required option '{key}'")));
        }
        if !is_optional(kind, key) {
            return Err(Die::new(format!("no such option '{key}'")));
        }
        if is_fixed(kind, key) {
            return Err(Die::new(format!("unable to delete fixed option '{key}'")));
        }
        if params.has(key) {
            return Err(Die::new(format!("cannot set and delete property '{key}' at the same time!")));
        }
    }
    Ok(())
}

/// What is refused about a change, in PVE's order: the digest of the file comes first.
fn check_update(state: &State, id: &str, params: &Params) -> Result<(), Die> {
    if params
        .get("digest")
        .is_some_and(|given| !given.is_empty() && given != digest(state))
    {
        return Err(Die::new(
            "detected modified configuration - file changed by other user? Try again.",
        ));
    }
    let storage = state.storage(id)?;
    check_options(&storage.kind, params, false)?;
    check_delete(&storage.kind, params)
}

async fn update(call: &Call) -> Answer {
    let id = call.params.text("storage").to_string();
    let _held = writable(call, "update").await?;
    let mut state = call.job.dc.state();
    check_update(&state, &id, &call.params).map_err(|die| die.prefixed("update storage failed: "))?;
    let Some(storage) = state.storages.get_mut(&id) else {
        return Err(Die::new(format!("update storage failed: storage '{id}' does not exist")));
    };
    apply(storage, &call.params);
    for key in split_list(call.params.get("delete").unwrap_or_default()) {
        match key {
            "disable" => storage.disable = false,
            "nodes" => storage.nodes = None,
            "shared" => storage.shared = false,
            "content" => storage.content = content_of(&storage.kind, "images,rootdir").into_iter().collect(),
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
    let mut state = call.job.dc.state();
    if state.storages.shift_remove(&id).is_none() {
        return Err(Die::new(format!("delete storage failed: storage '{id}' does not exist")));
    }
    // Rights on it and its places in pools go with it.
    state.access.acl.remove(&format!("/storage/{id}"));
    for pool in state.access.pools.values_mut() {
        pool.storages.remove(&id);
    }
    drop(state);
    changed(call, &id);
    Ok(Reply::default())
}
