//! Property strings: `[default=]value,key=value,…`.

use std::collections::BTreeMap;

use indexmap::IndexMap;

use super::check::{add, check_value};
use super::{Grammar, Kind};

/// A parsed property string: canonical keys, booleans as 1 and 0.
pub type Properties = BTreeMap<String, String>;

/// Parses and checks a property string. The error is what PVE puts behind `invalid format - `.
pub fn parse_properties(grammar: &Grammar, value: &str, path: &str) -> Result<Properties, String> {
    let mut found = Properties::new();
    let mut default = None;
    for part in value.split(',').filter(|part| !part.trim().is_empty()) {
        take_part(grammar, part, &mut found, &mut default)?;
    }
    check_properties(grammar, &found, path)?;
    Ok(found)
}

/// `found` collects; `default` is the default key once a value without a key was seen.
fn take_part<'g>(grammar: &'g Grammar, part: &str, found: &mut Properties, default: &mut Option<&'g str>) -> Result<(), String> {
    let duplicate = |key: &str| Err(format!("duplicate key in comma-separated list property: {key}\n"));
    let spell = |key: &str, value: &str| match grammar.get(key) {
        Some(property) if property.kind == Kind::Boolean => as_boolean(value).to_string(),
        _ => value.to_string(),
    };
    if let Some((key, value)) = part.split_once('=') {
        if key.is_empty() || value.is_empty() {
            return Err("missing key in comma-separated list property\n".into());
        }
        if found.contains_key(key) {
            return duplicate(key);
        }
        let key = take_alias(grammar, key, found)?;
        found.insert(key.into(), spell(key, value));
        return Ok(());
    }
    if let Some(key) = default {
        return duplicate(key);
    }
    let Some((key, _)) = grammar.iter().find(|(_, property)| property.default_key) else {
        return Err("value without key, but schema does not define a default key\n".into());
    };
    *default = Some(key);
    if found.get(key).is_some_and(|v| v != "0") {
        return duplicate(key);
    }
    found.insert(key.clone(), spell(key, part));
    Ok(())
}

/// The key that another one stands for. `virtio=MAC` says model and address at once.
fn take_alias<'k>(grammar: &'k Grammar, key: &'k str, found: &mut Properties) -> Result<&'k str, String> {
    let Some((property, alias)) = grammar.get(key).and_then(|p| Some((p, p.alias.as_deref()?))) else {
        return Ok(key);
    };
    if let Some(name) = &property.key_alias {
        if found.contains_key(name) {
            return Err(format!("key alias '{name}' is already defined\n"));
        }
        found.insert(name.clone(), key.into());
    }
    if found.contains_key(alias) {
        return Err(format!("key '{alias}' is already defined (via alias)\n"));
    }
    Ok(alias)
}

/// Inside property strings PVE takes the words, too.
fn as_boolean(value: &str) -> &str {
    match value.to_ascii_lowercase().as_str() {
        "1" | "on" | "yes" | "true" => "1",
        "0" | "off" | "no" | "false" => "0",
        _ => value,
    }
}

fn check_properties(grammar: &Grammar, found: &Properties, path: &str) -> Result<(), String> {
    let mut errors = IndexMap::new();
    let full = |key: &str| {
        if path.is_empty() {
            key.to_string()
        } else {
            format!("{path}.{key}")
        }
    };
    for (key, property) in grammar.iter().filter(|(_, p)| p.alias.is_none()) {
        match found.get(key) {
            None if !property.optional => add(&mut errors, &full(key), "property is missing and it is not optional".into()),
            None => {}
            Some(value) => {
                if let Err(text) = check_value(property, value, &full(key)) {
                    add(&mut errors, &full(key), text);
                }
            }
        }
    }
    for key in found.keys() {
        let Some(property) = grammar.get(key) else {
            add(
                &mut errors,
                &full(key),
                "property is not defined in schema and the schema does not allow additional properties".into(),
            );
            continue;
        };
        if let Some(required) = property.requires.as_ref().filter(|r| !found.contains_key(*r)) {
            add(
                &mut errors,
                &full(required),
                format!("missing property required by '{}'", full(key)),
            );
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    let lines: String = errors.iter().map(|(key, text)| format!("{key}: {text}\n")).collect();
    Err(format!("format error\n{lines}"))
}

/// Writes a property string: the default key's value first, the rest sorted.
pub fn print_properties(grammar: &Grammar, properties: &Properties, skip: &[&str]) -> String {
    let default = grammar.iter().find(|(_, p)| p.default_key).map(|(key, _)| key.as_str());
    let mut parts = Vec::new();
    if let Some(value) = default.and_then(|key| properties.get(key)) {
        parts.push(value.clone());
    }
    for (key, value) in properties {
        if Some(key.as_str()) != default && !skip.contains(&key.as_str()) {
            parts.push(format!("{key}={value}"));
        }
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::{parse_properties, print_properties};
    use crate::schema::schema;

    fn net(value: &str) -> Result<String, String> {
        let create = schema().method("POST", "/nodes/{node}/qemu").expect("known");
        let grammar = create.property("net0").and_then(|p| p.grammar()).expect("a grammar");
        parse_properties(grammar, value, "net0").map(|p| print_properties(grammar, &p, &[]))
    }

    #[test]
    fn a_model_as_key_names_model_and_address() {
        assert_eq!(
            net("virtio=02:00:00:00:00:01,tag=5,bridge=vmbr0").as_deref(),
            Ok("virtio,bridge=vmbr0,macaddr=02:00:00:00:00:01,tag=5")
        );
    }

    #[test]
    fn booleans_are_words_in_any_case_and_trailing_commas_are_ignored() {
        assert_eq!(net("virtio,firewall=YES,").as_deref(), Ok("virtio,firewall=1"));
    }

    #[test]
    fn a_key_without_a_value_or_a_value_without_a_key_is_refused() {
        for value in ["virtio,bridge=", "=virtio", "virtio,=x"] {
            assert_eq!(
                net(value).unwrap_err(),
                "missing key in comma-separated list property\n",
                "{value}"
            );
        }
    }

    #[test]
    fn a_model_that_is_named_twice_is_refused_by_how_it_was_named() {
        for (value, text) in [
            (
                "virtio=02:00:00:00:00:01,e1000=02:00:00:00:00:02",
                "key alias 'model' is already defined\n",
            ),
            (
                "model=virtio,virtio=02:00:00:00:00:01",
                "key alias 'model' is already defined\n",
            ),
            (
                "macaddr=02:00:00:00:00:01,virtio=02:00:00:00:00:01",
                "key 'macaddr' is already defined (via alias)\n",
            ),
            (
                "model=virtio,model=e1000",
                "duplicate key in comma-separated list property: model\n",
            ),
            (
                "model=virtio,e1000",
                "duplicate key in comma-separated list property: model\n",
            ),
        ] {
            assert_eq!(net(value).unwrap_err(), text, "{value}");
        }
    }

    #[test]
    fn a_key_twice_is_refused() {
        assert_eq!(
            net("virtio,bridge").unwrap_err(),
            "duplicate key in comma-separated list property: model\n"
        );
    }
}
