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
    for part in value.split(',') {
        if part.trim().is_empty() {
            continue;
        }
        take_part(grammar, part, &mut found)?;
    }
    check_properties(grammar, &found, path)?;
    Ok(found)
}

fn take_part(grammar: &Grammar, part: &str, found: &mut Properties) -> Result<(), String> {
    let insert = |found: &mut Properties, key: &str, value: &str| match found.insert(key.into(), value.into()) {
        Some(_) => Err(format!("duplicate key in comma-separated list property: {key}\n")),
        None => Ok(()),
    };
    if let Some((key, value)) = part.split_once('=') {
        let mut key = key;
        let mut named = None;
        while let Some(property) = grammar.get(key) {
            named = named.or(property.key_alias.as_deref().map(|alias| (alias, key)));
            match &property.alias {
                Some(alias) => key = alias,
                None => break,
            }
        }
        if let Some((alias, model)) = named {
            insert(found, alias, model)?;
        }
        let boolean = grammar.get(key).is_some_and(|p| p.kind == Kind::Boolean);
        return insert(found, key, if boolean { as_boolean(value) } else { value });
    }
    match grammar.iter().find(|(_, property)| property.default_key) {
        Some((key, property)) => {
            let value = if property.kind == Kind::Boolean {
                as_boolean(part)
            } else {
                part
            };
            if found.contains_key(key) {
                return Err(format!("duplicate key in comma-separated list property: {key}\n"));
            }
            insert(found, key, value)
        }
        None => Err("value without key, but schema does not define a default key\n".into()),
    }
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
            None if !property.optional && !property.default_key => {
                add(&mut errors, &full(key), "property is missing and it is not optional".into());
            }
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
    fn a_key_twice_is_refused() {
        assert_eq!(
            net("virtio,bridge").unwrap_err(),
            "duplicate key in comma-separated list property: model\n"
        );
    }
}
