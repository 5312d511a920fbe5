//! The user's values over ours, what they warn about, and the hash by which a release is recognised.
//!
//! A value that is secret is written `{ $secret: name }`. Plans, journals and events only ever see the reference.

use std::collections::BTreeMap;
use std::fmt::Write;

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Map, Value, json};
use sha2::Sha256;

/// Something in the values that probably does not do what the user wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueWarning {
    /// Dotted path.
    pub path: String,
    pub why: String,
}

impl ValueWarning {
    pub fn new(path: &str, why: &str) -> Self {
        Self {
            path: path.to_owned(),
            why: why.to_owned(),
        }
    }
}

/// `over` merged into `base` as Helm does: maps key by key, everything else replaced, null deletes.
pub fn merge(base: &Value, over: &Value) -> Value {
    let (Value::Object(base), Value::Object(over)) = (base, over) else {
        return without_nulls(over);
    };
    let mut merged = base.clone();
    for (key, value) in over {
        if value.is_null() {
            merged.shift_remove(key);
            continue;
        }
        let both = merged
            .get(key)
            .map_or_else(|| without_nulls(value), |ours| merge(ours, value));
        merged.insert(key.clone(), both);
    }
    Value::Object(merged)
}

/// A null that has nothing to delete is not a value.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        other => other.clone(),
    }
}

/// The value at a dotted path. Keys that contain a dot are not reached.
pub fn at<'a>(values: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(values, |value, key| value.get(key))
}

/// `{ $secret: name }`.
pub fn secret_reference(name: &str) -> Value {
    json!({ "$secret": name })
}

/// The name, if this is a reference to a secret.
pub fn referenced_secret(value: &Value) -> Option<&str> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    map.get("$secret")?.as_str()
}

/// Names of all secrets that the values refer to, sorted.
pub fn referenced_secrets(values: &Value) -> Vec<String> {
    let mut names = Vec::new();
    each_leaf(values, "", &mut |_, value| {
        names.extend(referenced_secret(value).map(ToOwned::to_owned));
    });
    names.sort();
    names.dedup();
    names
}

/// Plain strings under keys that look like secrets. The text itself is not repeated.
pub fn plain_secrets(values: &Value) -> Vec<ValueWarning> {
    let mut warnings = Vec::new();
    each_leaf(values, "", &mut |path, value| {
        let key = path.rsplit('.').next().unwrap_or_default();
        let is_text = value.as_str().is_some_and(|text| !text.is_empty());
        if is_text && looks_secret(key) {
            let why = "looks like a secret in a file that is kept in version control; keep it in a Secret of the cluster that the chart reads";
            warnings.push(ValueWarning::new(path, why));
        }
    });
    warnings
}

/// Names of Secrets and of keys inside Secrets are not secret.
fn looks_secret(key: &str) -> bool {
    let key = key.to_lowercase();
    let names_an_object = ["secretname", "secretkey", "existingsecret", "secretref", "keyref"];
    let is_secret = ["password", "token", "secret", "apikey", "privatekey", "authkey"]
        .iter()
        .any(|word| key.contains(word))
        || key == "key";
    is_secret && !names_an_object.iter().any(|word| key.contains(word))
}

/// Calls `visit` for every value that is no map, and for references.
fn each_leaf(value: &Value, path: &str, visit: &mut dyn FnMut(&str, &Value)) {
    match value {
        Value::Object(map) if referenced_secret(value).is_none() => {
            for (key, value) in map {
                each_leaf(value, &join(path, key), visit);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| each_leaf(item, path, visit)),
        leaf => visit(path, leaf),
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// Dotted paths at which the installed values differ from the wanted ones, sorted. Values are not shown: they may be secret.
///
/// A reference equals any text: whether the secret behind it changed is seen from the content hash alone.
pub fn differing_keys(wanted: &Value, installed: &Value) -> Vec<String> {
    let mut paths = Vec::new();
    compare(wanted, installed, "", &mut paths);
    paths.sort();
    paths
}

fn compare(wanted: &Value, installed: &Value, path: &str, paths: &mut Vec<String>) {
    if referenced_secret(wanted).is_some() && installed.is_string() {
        return;
    }
    let (Value::Object(ours), Value::Object(theirs)) = (wanted, installed) else {
        if !same(wanted, installed) {
            paths.push(path.to_owned());
        }
        return;
    };
    for (key, value) in ours {
        match theirs.get(key) {
            Some(other) => compare(value, other, &join(path, key), paths),
            None => paths.push(join(path, key)),
        }
    }
    let added = theirs.keys().filter(|key| !ours.contains_key(*key));
    paths.extend(added.map(|key| join(path, key)));
}

/// Equality of lists and scalars. Helm reads numbers as floats, so 2 and 2.0 are the same.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            let equal = |(one, other): (&Value, &Value)| {
                let mut paths = Vec::new();
                compare(one, other, "", &mut paths);
                paths.is_empty()
            };
            one.len() == other.len() && one.iter().zip(other).all(equal)
        }
        (one, other) => one == other,
    }
}

/// What a release consists of, for the hash.
#[derive(Debug, Clone, Copy)]
pub struct ReleaseContent<'a> {
    /// `namespace/name`: Jobs are named by the hash, and two releases may have the same chart and values.
    pub release: &'a str,
    /// SHA-256 of the chart archive, in hex.
    pub archive: &'a str,
    /// With references.
    pub values: &'a Value,
    pub namespace_labels: &'a BTreeMap<String, String>,
    /// A keyed fingerprint of each referenced secret, so that a changed secret changes the hash without being in it.
    pub secrets: &'a BTreeMap<String, String>,
}

/// The hash that the description of a release and the names of its inputs carry: HMAC-SHA-256, in hex.
///
/// Keyed, because values may contain guessable secrets and descriptions are readable by everyone who may list releases.
pub fn content_hash(key: &[u8; 32], content: &ReleaseContent<'_>) -> String {
    let input = json!({
        "format": 1,
        "release": content.release,
        "archive": content.archive,
        "values": canonical(content.values),
        "namespaceLabels": content.namespace_labels,
        "secrets": content.secrets,
    });
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of every length");
    mac.update(canonical(&input).to_string().as_bytes());
    let mut hex = String::new();
    for byte in mac.finalize().into_bytes() {
        write!(hex, "{byte:02x}").expect("writing to memory");
    }
    hex
}

/// Keys sorted at every level: the order of keys in a file means nothing.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<&String, Value> = map.iter().map(|(key, value)| (key, canonical(value))).collect();
            Value::Object(
                sorted
                    .into_iter()
                    .map(|(key, value)| (key.clone(), value))
                    .collect::<Map<_, _>>(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(canonical).collect()),
        other => other.clone(),
    }
}
