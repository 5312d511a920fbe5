//! The four ways to change an object: JSON patch, merge patch, strategic merge patch, and server-side apply.

use serde_json::{Map, Value, json};

/// RFC 7386.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().map(|map| map.shift_remove(key));
        } else {
            merge(&mut target[key], value);
        }
    }
}

/// Lists that Kubernetes merges by a key instead of replacing them.
fn merge_key(field: &str) -> Option<&'static str> {
    Some(match field {
        "taints" | "tolerations" => "key",
        "conditions" | "addresses" => "type",
        "containers" | "initContainers" | "volumes" | "env" => "name",
        "ownerReferences" => "uid",
        _ => return None,
    })
}

pub(crate) fn strategic(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        match (value, merge_key(key)) {
            (Value::Null, _) => {
                target.as_object_mut().map(|map| map.shift_remove(key));
            }
            (Value::String(how), _) if key == "$patch" && how == "replace" => {}
            (Value::Array(items), Some(by)) => merge_list(&mut target[key], items, by),
            _ if key.starts_with("$setElementOrder/") || key.starts_with("$retainKeys") => {}
            _ => strategic(&mut target[key], value),
        }
    }
}

fn merge_list(target: &mut Value, items: &[Value], by: &str) {
    if !target.is_array() {
        *target = json!([]);
    }
    let Some(list) = target.as_array_mut() else { return };
    for item in items {
        let at = list.iter().position(|old| old[by] == item[by]);
        let delete = item["$patch"] == "delete";
        match (at, delete) {
            (Some(at), true) => {
                list.remove(at);
            }
            (Some(at), false) => strategic(&mut list[at], item),
            (None, true) => {}
            (None, false) => list.push(item.clone()),
        }
    }
}

/// RFC 6902; the error says which operation failed.
pub(crate) fn json_patch(target: &mut Value, patch: &Value) -> Result<(), String> {
    for operation in patch.as_array().into_iter().flatten() {
        let path = operation["path"].as_str().unwrap_or_default();
        let value = operation["value"].clone();
        match operation["op"].as_str() {
            Some("add") => add(target, path, value)?,
            Some("replace") => {
                *target
                    .pointer_mut(path)
                    .ok_or_else(|| format!("replace operation does not apply: doc is missing key: {path}: missing value"))? =
                    value;
            }
            Some("remove") => remove(target, path)?,
            Some("test") if target.pointer(path) == Some(&value) => {}
            Some("test") => return Err(format!("testing value {path} failed")),
            other => return Err(format!("Unexpected kind: {}", other.unwrap_or("unknown"))),
        }
    }
    Ok(())
}

fn split(path: &str) -> Option<(&str, String)> {
    let (parent, last) = path.rsplit_once('/')?;
    Some((parent, last.replace("~1", "/").replace("~0", "~")))
}

fn add(target: &mut Value, path: &str, value: Value) -> Result<(), String> {
    let missing = || format!("add operation does not apply: doc is missing path: \"{path}\": missing value");
    let (parent, last) = split(path).ok_or_else(missing)?;
    match target.pointer_mut(parent) {
        Some(Value::Object(map)) => {
            map.insert(last, value);
        }
        Some(Value::Array(list)) if last == "-" => list.push(value),
        Some(Value::Array(list)) => {
            let at = last
                .parse::<usize>()
                .ok()
                .filter(|at| *at <= list.len())
                .ok_or_else(missing)?;
            list.insert(at, value);
        }
        _ => return Err(missing()),
    }
    Ok(())
}

fn remove(target: &mut Value, path: &str) -> Result<(), String> {
    let missing = || format!("remove operation does not apply: doc is missing path: \"{path}\": missing value");
    let (parent, last) = split(path).ok_or_else(missing)?;
    match target.pointer_mut(parent) {
        Some(Value::Object(map)) => map.shift_remove(&last).map(|_| ()).ok_or_else(missing),
        Some(Value::Array(list)) => {
            let at = last.parse::<usize>().ok().filter(|at| *at < list.len()).ok_or_else(missing)?;
            list.remove(at);
            Ok(())
        }
        _ => Err(missing()),
    }
}

/// Server-side apply: fields of `applied` are taken over, fields that this manager owned before and no longer names are removed.
/// An own field of another manager with another value is a conflict unless forced; its path is returned.
pub(crate) fn apply(target: &mut Value, applied: &Value, manager: &str, force: bool) -> Result<(), Vec<String>> {
    let wanted = leaves(applied);
    let conflicts: Vec<String> = wanted
        .iter()
        .filter(|path| taken(target, applied, path, manager))
        .cloned()
        .collect();
    if !conflicts.is_empty() && !force {
        return Err(conflicts);
    }
    for path in owned(target, manager) {
        if !wanted.contains(&path) {
            let _ = remove(target, &path);
        }
    }
    for path in &wanted {
        if let Some(value) = applied.pointer(path) {
            set(target, path, value.clone());
        }
    }
    record(target, applied, manager, &wanted);
    Ok(())
}

/// JSON pointers of all scalars and lists below `metadata.labels`, `metadata.annotations`, `spec`, `status`, `data`, ….
fn leaves(value: &Value) -> Vec<String> {
    let mut out = Vec::new();
    for (key, value) in value.as_object().into_iter().flatten() {
        match key.as_str() {
            "apiVersion" | "kind" => {}
            "metadata" => {
                for part in ["labels", "annotations", "finalizers", "ownerReferences"] {
                    collect(&value[part], &format!("/metadata/{part}"), &mut out);
                }
            }
            other => collect(value, &format!("/{other}"), &mut out),
        }
    }
    out
}

fn collect(value: &Value, path: &str, out: &mut Vec<String>) {
    match value {
        Value::Null => {}
        Value::Object(map) => {
            for (key, value) in map {
                collect(value, &format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), out);
            }
        }
        _ => out.push(path.to_owned()),
    }
}

fn set(target: &mut Value, path: &str, value: Value) {
    let mut at = target;
    for part in path.split('/').skip(1) {
        at = &mut at[part.replace("~1", "/").replace("~0", "~")];
    }
    *at = value;
}

fn entries(target: &Value) -> impl Iterator<Item = &Value> {
    target["metadata"]["managedFields"].as_array().into_iter().flatten()
}

fn owned(target: &Value, manager: &str) -> Vec<String> {
    entries(target)
        .filter(|entry| entry["manager"] == manager)
        .flat_map(|entry| field_paths(&entry["fieldsV1"], ""))
        .collect()
}

fn taken(target: &Value, applied: &Value, path: &str, manager: &str) -> bool {
    target.pointer(path).is_some_and(|old| Some(old) != applied.pointer(path))
        && entries(target)
            .any(|entry| entry["manager"] != manager && field_paths(&entry["fieldsV1"], "").iter().any(|own| own == path))
}

fn field_paths(fields: &Value, path: &str) -> Vec<String> {
    let mut out = Vec::new();
    for (key, value) in fields.as_object().into_iter().flatten() {
        let Some(name) = key.strip_prefix("f:") else { continue };
        let below = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
        match value {
            Value::Object(map) if !map.is_empty() => out.extend(field_paths(value, &below)),
            _ => out.push(below),
        }
    }
    out
}

fn record(target: &mut Value, applied: &Value, manager: &str, paths: &[String]) {
    let mut fields = json!({});
    for path in paths {
        let mut at = &mut fields;
        for part in path.split('/').skip(1) {
            let name = format!("f:{}", part.replace("~1", "/").replace("~0", "~"));
            at = at
                .as_object_mut()
                .expect("built from objects only")
                .entry(name)
                .or_insert_with(|| Value::Object(Map::new()));
        }
    }
    let entry = json!({"manager": manager, "operation": "Apply", "apiVersion": applied["apiVersion"], "fieldsType": "FieldsV1", "fieldsV1": fields});
    let mut all: Vec<Value> = entries(target).filter(|entry| entry["manager"] != manager).cloned().collect();
    all.push(entry);
    target["metadata"]["managedFields"] = Value::Array(all);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategic_patches_merge_taints_by_key() {
        let mut node = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"}]}});
        strategic(
            &mut node,
            &json!({"spec": {"unschedulable": true, "taints": [{"key": "a", "$patch": "delete"}, {"key": "c", "effect": "NoSchedule"}]}}),
        );
        assert_eq!(node["spec"]["unschedulable"], true);
        let keys: Vec<&str> = node["spec"]["taints"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|taint| taint["key"].as_str())
            .collect();
        assert_eq!(keys, ["b", "c"]);
    }

    #[test]
    fn applying_less_takes_own_labels_away_and_leaves_the_others() {
        let mut node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"kept": "x"}}});
        apply(
            &mut node,
            &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"labels": {"a/b": "1", "c": "2"}}}),
            "m",
            false,
        )
        .expect("no conflict");
        apply(
            &mut node,
            &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"labels": {"c": "3"}}}),
            "m",
            false,
        )
        .expect("no conflict");
        assert_eq!(node["metadata"]["labels"], json!({"kept": "x", "c": "3"}));
        let conflict = apply(
            &mut node,
            &json!({"apiVersion": "v1", "metadata": {"labels": {"c": "4"}}}),
            "other",
            false,
        );
        assert_eq!(conflict, Err(vec!["/metadata/labels/c".to_owned()]));
        apply(
            &mut node,
            &json!({"apiVersion": "v1", "metadata": {"labels": {"c": "4"}}}),
            "other",
            true,
        )
        .expect("forced");
        assert_eq!(node["metadata"]["labels"]["c"], "4");
    }

    #[test]
    fn json_patches_name_the_missing_path() {
        let mut node = json!({"metadata": {"labels": {}}});
        json_patch(
            &mut node,
            &json!([{"op": "add", "path": "/metadata/labels/a~1b", "value": "1"}]),
        )
        .expect("applies");
        assert_eq!(node["metadata"]["labels"]["a/b"], "1");
        assert!(json_patch(&mut node, &json!([{"op": "remove", "path": "/spec/x"}])).is_err());
    }
}
