//! Releases as Helm stores them: a Secret per revision.

use std::io::{Read, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::super::control::{Round, text};
use super::super::kinds;
use super::super::store::{Key, Store};

const TYPE: &str = "helm.sh/release.v1";
/// `--history-max`
const HISTORY_MAX: usize = 10;

fn secret_key(namespace: &str, record: &Value) -> Key {
    let name = format!("sh.helm.release.v1.{}.v{}", text(&record["name"]), record["version"]);
    Key::new(&kinds::SECRETS, namespace, &name)
}

fn encode(record: &Value) -> String {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(record.to_string().as_bytes()).expect("writing to memory");
    let helm = STANDARD.encode(encoder.finish().expect("writing to memory"));
    STANDARD.encode(helm)
}

fn decode(secret: &Value) -> Option<Value> {
    let helm = STANDARD.decode(text(&secret["data"]["release"])).ok()?;
    let packed = STANDARD.decode(helm.trim_ascii()).ok()?;
    let mut bytes = Vec::new();
    if packed.starts_with(&[0x1f, 0x8b, 0x08]) {
        GzDecoder::new(&packed[..]).read_to_end(&mut bytes).ok()?;
    } else {
        bytes = packed;
    }
    serde_json::from_slice(&bytes).ok()
}

/// Records of a release, oldest first. Helm finds them by the label `owner`, and by their type.
pub(crate) fn history(store: &Store, namespace: &str, name: &str) -> Vec<Value> {
    let secrets = store.list(&kinds::SECRETS, Some(namespace)).1;
    let own = secrets
        .iter()
        .filter(|secret| secret["metadata"]["labels"]["owner"] == "helm");
    let mut records: Vec<Value> = own
        .filter_map(|secret| decode(secret))
        .filter(|record| record["name"] == name)
        .collect();
    records.sort_by_key(|record| record["version"].as_u64());
    records
}

pub(crate) fn newest(store: &Store, namespace: &str, name: &str) -> Option<Value> {
    history(store, namespace, name).pop()
}

/// Writes a revision with a status. Labels of the revision before are inherited, as Helm's upgrade does.
pub(crate) fn write(round: &Round<'_>, namespace: &str, record: &Value, status: &str, labels: &Value) {
    let mut record = record.clone();
    record["info"]["status"] = json!(status);
    let key = secret_key(namespace, &record);
    let mut all = json!({});
    if let Some(before) = previous(round.store, namespace, &record) {
        all = before["metadata"]["labels"].clone();
    }
    for (key, value) in labels.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    let system = json!({"name": record["name"], "owner": "helm", "status": status, "version": record["version"].to_string(), "modifiedAt": round.wall.now().as_second().to_string()});
    for (key, value) in system.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    let data = json!({"release": encode(&record)});
    let known = round.store.update(&key, |secret| {
        secret["data"] = data.clone();
        secret["metadata"]["labels"] = all.clone();
        Ok(())
    });
    if known.is_err() {
        round.create(
            &kinds::SECRETS,
            json!({"metadata": {"name": key.name, "namespace": namespace, "labels": all}, "type": TYPE, "data": data}),
        );
    }
    let records = history(round.store, namespace, text(&record["name"]));
    for old in records.iter().take(records.len().saturating_sub(HISTORY_MAX)) {
        let _ = round.store.delete(&secret_key(namespace, old));
    }
}

fn previous(store: &Store, namespace: &str, record: &Value) -> Option<std::sync::Arc<Value>> {
    let own = store.get(&secret_key(namespace, record));
    own.or_else(|| {
        let mut before = record.clone();
        before["version"] = json!(record["version"].as_u64()?.checked_sub(1)?);
        store.get(&secret_key(namespace, &before))
    })
}

/// Marks every deployed revision as superseded.
pub(crate) fn supersede(round: &Round<'_>, namespace: &str, record: &Value) {
    for old in history(round.store, namespace, text(&record["name"])) {
        if old["info"]["status"] == "deployed" {
            write(round, namespace, &old, "superseded", &json!({}));
        }
    }
}

pub(crate) fn remove(round: &Round<'_>, namespace: &str, name: &str) {
    for record in history(round.store, namespace, name) {
        let _ = round.store.delete(&secret_key(namespace, &record));
    }
}

/// Objects of a record's manifest.
pub(crate) fn objects(record: &Value) -> Vec<Value> {
    crate::yaml::split(text(&record["manifest"]))
        .iter()
        .filter_map(|(_, text)| crate::yaml::parse(text).ok())
        .collect()
}

/// Changes every live object of a release.
pub(crate) fn mark(round: &Round<'_>, record: &Value, change: impl Fn(&mut Value)) {
    for object in objects(record) {
        if let Some(key) = key_of(round.store, &object, text(&record["namespace"])) {
            let _ = round.store.update(&key, |object| {
                change(object);
                Ok(())
            });
        }
    }
}

/// Where an object of a manifest lives.
pub(crate) fn key_of(store: &Store, object: &Value, namespace: &str) -> Option<Key> {
    let kind = kinds::of_manifest(store, object)?;
    let own = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
    Some(Key::new(
        kind,
        if kind.namespaced { own } else { "" },
        text(&object["metadata"]["name"]),
    ))
}
