//! Vectors made by the real talosctl and its libraries. Long values of the test bundle are written as `${os.crt}` in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use serde_json::Value;
use talos_config::Secrets;

pub fn data(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

pub fn raw(path: impl AsRef<Path>) -> String {
    let path = data(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A vector with the bundle's values filled in.
pub fn read(path: impl AsRef<Path>) -> String {
    let mut text = raw(path);
    for (name, value) in bundle_values() {
        text = text.replace(&format!("${{{name}}}"), &value);
    }
    text
}

fn bundle_values() -> BTreeMap<String, String> {
    let bundle: Value = serde_saphyr::from_str(&raw("secrets.yaml")).unwrap();
    let certs = bundle["certs"].as_object().unwrap();
    let fields = certs.iter().flat_map(|(name, entry)| {
        let fields = entry.as_object().unwrap();
        fields
            .iter()
            .map(move |(field, value)| (format!("{name}.{field}"), value.as_str().unwrap().to_owned()))
    });
    fields.collect()
}

pub fn secrets() -> Secrets {
    Secrets::from_talosctl_yaml(&raw("secrets.yaml")).unwrap()
}

/// Parsed by another YAML reader than the crate's own.
pub fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

pub fn rng(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

/// Every place where two configs differ, as `document 0 .machine.token`.
pub fn differences(ours: &[Value], theirs: &[Value]) -> Vec<String> {
    let mut found = Vec::new();
    if ours.len() != theirs.len() {
        found.push(format!("{} documents instead of {}", ours.len(), theirs.len()));
    }
    for (index, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        compare(&format!("document {index} "), ours, theirs, &mut found);
    }
    found
}

fn compare(path: &str, ours: &Value, theirs: &Value, found: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(left), Value::Object(right)) => {
            for (key, value) in left {
                match right.get(key) {
                    Some(other) => compare(&format!("{path}.{key}"), value, other, found),
                    None => found.push(format!("{path}.{key} is ours only")),
                }
            }
            found.extend(
                right
                    .keys()
                    .filter(|key| !left.contains_key(*key))
                    .map(|key| format!("{path}.{key} is missing")),
            );
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                compare(&format!("{path}[{index}]"), left, right, found);
            }
        }
        _ if ours == theirs => {}
        _ => found.push(format!("{path}: {ours} instead of {theirs}")),
    }
}
