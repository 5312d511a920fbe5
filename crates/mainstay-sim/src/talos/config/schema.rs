//! Which keys each kind of document may have, by Talos version. The tables hold names and nesting only.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::{Map, Value};

/// Keys below a key. An empty map of children means: anything.
#[derive(Debug, Default)]
pub(crate) struct Keys(BTreeMap<&'static str, Keys>);

type Kinds = BTreeMap<&'static str, Keys>;

/// The kind name of the document that has none.
pub(crate) const V1ALPHA1: &str = "v1alpha1.Config";

/// The tables of a minor version; the nearest one we know.
pub(crate) fn kinds(minor: u64) -> &'static Kinds {
    static TABLES: OnceLock<[Kinds; 3]> = OnceLock::new();
    let tables = TABLES.get_or_init(|| {
        [
            read(include_str!("keys-1.12.txt")),
            read(include_str!("keys-1.13.txt")),
            read(include_str!("keys-1.14.txt")),
        ]
    });
    match minor {
        ..=12 => &tables[0],
        13 => &tables[1],
        _ => &tables[2],
    }
}

fn read(table: &'static str) -> Kinds {
    let kinds = table.lines().filter_map(|line| line.split_once(' '));
    kinds
        .map(|(kind, keys)| (kind, read_keys(&mut keys.trim().trim_start_matches('{'))))
        .collect()
}

/// `a b{c d} e}`: consumes up to the closing brace.
fn read_keys(text: &mut &'static str) -> Keys {
    let mut keys = Keys::default();
    loop {
        *text = text.trim_start();
        let end = text.find([' ', '{', '}']).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        *text = rest;
        let mut children = Keys::default();
        if let Some(inner) = text.strip_prefix('{') {
            *text = inner;
            children = read_keys(text);
        }
        if !name.is_empty() {
            keys.0.insert(name, children);
        }
        if let Some(after) = text.strip_prefix('}') {
            *text = after;
            return keys;
        }
        if text.is_empty() {
            return keys;
        }
    }
}

impl Keys {
    /// The part of `value` whose keys are unknown; `None` when all are known.
    pub fn unknown(&self, value: &Value) -> Option<Value> {
        if self.0.is_empty() {
            return None;
        }
        match value {
            Value::Object(map) => {
                let mut out = Map::new();
                for (key, value) in map {
                    match self.0.get(key.as_str()) {
                        None => {
                            out.insert(key.clone(), value.clone());
                        }
                        Some(keys) => {
                            if let Some(unknown) = keys.unknown(value) {
                                out.insert(key.clone(), unknown);
                            }
                        }
                    }
                }
                (!out.is_empty()).then_some(Value::Object(out))
            }
            Value::Array(items) => {
                let unknown: Vec<Value> = items.iter().filter_map(|item| self.unknown(item)).collect();
                (!unknown.is_empty()).then_some(Value::Array(unknown))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_keys_are_found_at_any_depth() {
        let keys = &kinds(13)[V1ALPHA1];
        let config = json!({"version": "v1alpha1", "machine": {"nope": 1, "kubelet": {"image": "x"}, "sysctls": {"a.b": "1"}}});
        assert_eq!(keys.unknown(&config), Some(json!({"machine": {"nope": 1}})));
        assert_eq!(keys.unknown(&json!({"machine": {"nodeLabels": {"any/key": "x"}}})), None);
    }

    #[test]
    fn kinds_come_with_their_version() {
        assert!(!kinds(12).contains_key("KubeSpanConfig"));
        assert!(kinds(13).contains_key("KubeSpanConfig"));
        assert!(kinds(14).contains_key("UnattendedInstallConfig"));
    }
}
