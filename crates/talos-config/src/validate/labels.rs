//! Labels, annotations and taints, by the rules of Kubernetes.

use crate::yaml::{Map, Node};

const MAX_NAME: usize = 63;
const MAX_DOMAIN: usize = 253;
const MAX_ANNOTATIONS: usize = 256 * 1024;
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

fn sorted(node: &Node) -> Vec<(String, String)> {
    let empty = Map::new();
    let entries = node.as_map().unwrap_or(&empty);
    let text = |(key, value): (&String, &Node)| (key.clone(), value.as_str().unwrap_or_default().to_owned());
    let mut pairs: Vec<(String, String)> = entries.iter().map(text).collect();
    pairs.sort();
    pairs
}

pub fn check_labels(labels: &Node) -> Vec<String> {
    let check = |(key, value): &(String, String)| [check_name(key).err(), check_value(value).err()];
    sorted(labels).iter().flat_map(check).flatten().collect()
}

pub fn check_annotations(annotations: &Node) -> Vec<String> {
    let pairs = sorted(annotations);
    let mut errors = Vec::new();
    for (key, _) in &pairs {
        errors.extend(check_name(key).err());
        if matches!(
            key.as_str(),
            "talos.dev/owned-labels" | "talos.dev/owned-annotations" | "talos.dev/owned-taints"
        ) {
            errors.push(format!("annotation {key:?} is reserved"));
        }
    }
    if pairs.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > MAX_ANNOTATIONS {
        errors.push(format!("total annotation size exceeds limit of {MAX_ANNOTATIONS} bytes"));
    }
    errors
}

pub fn check_taints(taints: &Node) -> Vec<String> {
    sorted(taints)
        .iter()
        .filter_map(|(key, taint)| check_taint(key, taint).err())
        .collect()
}

fn check_taint(key: &str, taint: &str) -> Result<(), String> {
    check_name(key)?;
    let (value, effect) = taint.split_once(':').unwrap_or(("", taint));
    if !EFFECTS.contains(&effect) {
        return Err(format!("invalid taint effect: {effect:?}"));
    }
    check_value(value)
}

fn check_name(text: &str) -> Result<(), String> {
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        ["", _] => return Err(format!("prefix cannot be empty: {text:?}")),
        [prefix, name] => {
            check_domain(prefix).map_err(|problem| format!("prefix {prefix:?} is invalid: {problem}"))?;
            name
        }
        _ => return Err(format!("invalid format: too many slashes: {text:?}")),
    };
    if name.is_empty() {
        Err(format!("name cannot be empty: {text:?}"))
    } else if name.len() > MAX_NAME {
        Err(format!("name is too long: {text:?} (limit is {MAX_NAME})"))
    } else if !is_word(name) {
        Err(format!("name {name:?} is invalid"))
    } else {
        Ok(())
    }
}

fn check_value(value: &str) -> Result<(), String> {
    if value.len() > MAX_NAME {
        Err(format!("label value length exceeds limit of {MAX_NAME}: {value:?}"))
    } else if !value.is_empty() && !is_word(value) {
        Err(format!("label value {value:?} is invalid"))
    } else {
        Ok(())
    }
}

fn check_domain(domain: &str) -> Result<(), String> {
    let label_fits = |label: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        label.starts_with(inner) && label.ends_with(inner) && label.chars().all(|c| inner(c) || c == '-')
    };
    if domain.len() > MAX_DOMAIN {
        Err(format!("domain name length exceeds limit of {MAX_DOMAIN}: {domain:?}"))
    } else if !domain.split('.').all(label_fits) {
        Err(format!("domain doesn't match required format: {domain:?}"))
    } else {
        Ok(())
    }
}

/// Letters and digits, with `-_.` inside.
fn is_word(text: &str) -> bool {
    let outer = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(outer) && text.ends_with(outer) && text.chars().all(|c| outer(c) || matches!(c, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml;

    #[test]
    fn every_wrong_label_is_named_in_upstreams_words() {
        let labels =
            yaml::parse("345@.345/label: value\nfoo_: bar\n/foo: bar\na/b/c: bar\nkubernetes.io/hostname: hostname1_\n").unwrap();
        let expected = [
            r#"prefix cannot be empty: "/foo""#,
            r#"prefix "345@.345" is invalid: domain doesn't match required format: "345@.345""#,
            r#"invalid format: too many slashes: "a/b/c""#,
            r#"name "foo_" is invalid"#,
            r#"label value "hostname1_" is invalid"#,
        ];
        assert_eq!(check_labels(&labels), expected);
    }
}
