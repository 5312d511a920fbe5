//! Objects as the rows that `kubectl get` prints.

use serde_json::{Value, json};

use super::kinds::Kind;

struct Column {
    name: &'static str,
    kind: &'static str,
    /// 1 is shown with `-o wide` only.
    priority: u8,
}

const fn column(name: &'static str) -> Column {
    Column {
        name,
        kind: "string",
        priority: 0,
    }
}

const fn wide(name: &'static str) -> Column {
    Column {
        name,
        kind: "string",
        priority: 1,
    }
}

const NODE: [Column; 10] = [
    column("Name"),
    column("Status"),
    column("Roles"),
    column("Age"),
    column("Version"),
    wide("Internal-IP"),
    wide("External-IP"),
    wide("OS-Image"),
    wide("Kernel-Version"),
    wide("Container-Runtime"),
];
const POD: [Column; 7] = [
    column("Name"),
    column("Ready"),
    column("Status"),
    column("Restarts"),
    column("Age"),
    wide("IP"),
    wide("Node"),
];
const NAMESPACE: [Column; 3] = [column("Name"), column("Status"), column("Age")];
const LEASE: [Column; 3] = [column("Name"), column("Holder"), column("Age")];
const OTHER: [Column; 2] = [column("Name"), column("Age")];

pub(crate) fn table(kind: &Kind, list_metadata: &Value, objects: &[&Value], now: jiff::Timestamp) -> Value {
    let columns: &[Column] = match kind.plural {
        "nodes" => &NODE,
        "pods" => &POD,
        "namespaces" => &NAMESPACE,
        "leases" => &LEASE,
        _ => &OTHER,
    };
    let definitions: Vec<Value> = columns
        .iter()
        .map(|column| {
            let format = if column.name == "Name" { "name" } else { "" };
            json!({"name": column.name, "type": column.kind, "format": format, "description": column.name, "priority": column.priority})
        })
        .collect();
    let rows: Vec<Value> = objects.iter().map(|object| row(kind, object, now)).collect();
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list_metadata, "columnDefinitions": definitions, "rows": rows})
}

fn row(kind: &Kind, object: &Value, now: jiff::Timestamp) -> Value {
    let name = object["metadata"]["name"].clone();
    let age = json!(age(object["metadata"]["creationTimestamp"].as_str(), now));
    let cells = match kind.plural {
        "nodes" => node_cells(object, &name, &age),
        "pods" => pod_cells(object, &name, &age),
        "namespaces" => json!([name, object["status"]["phase"], age]),
        "leases" => json!([name, object["spec"]["holderIdentity"], age]),
        _ => json!([name, age]),
    };
    let metadata = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]});
    json!({"cells": cells, "object": metadata})
}

fn node_cells(node: &Value, name: &Value, age: &Value) -> Value {
    let ready = condition(node, "Ready");
    let mut status = match ready {
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if node["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    let labels = node["metadata"]["labels"].as_object();
    let roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
        .collect();
    let roles = if roles.is_empty() {
        "<none>".to_owned()
    } else {
        roles.join(",")
    };
    let addresses = node["status"]["addresses"].as_array();
    let address = addresses
        .into_iter()
        .flatten()
        .find(|address| address["type"] == "InternalIP")
        .map(|address| address["address"].clone());
    let info = &node["status"]["nodeInfo"];
    json!([
        name,
        status,
        roles,
        age,
        info["kubeletVersion"],
        address.unwrap_or_else(|| json!("<none>")),
        "<none>",
        info["osImage"],
        info["kernelVersion"],
        info["containerRuntimeVersion"],
    ])
}

fn condition<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == name)?["status"].as_str()
}

fn pod_cells(pod: &Value, name: &Value, age: &Value) -> Value {
    let statuses: Vec<&Value> = pod["status"]["containerStatuses"].as_array().into_iter().flatten().collect();
    let ready = statuses.iter().filter(|status| status["ready"] == true).count();
    let restarts: u64 = statuses.iter().filter_map(|status| status["restartCount"].as_u64()).sum();
    let total = pod["spec"]["containers"].as_array().map_or(statuses.len(), Vec::len);
    json!([
        name,
        format!("{ready}/{total}"),
        pod["status"]["phase"],
        restarts.to_string(),
        age,
        pod["status"]["podIP"],
        pod["spec"]["nodeName"]
    ])
}

/// Age as kubectl words it.
fn age(created: Option<&str>, now: jiff::Timestamp) -> String {
    let Some(created) = created.and_then(|text| text.parse::<jiff::Timestamp>().ok()) else {
        return "<unknown>".to_owned();
    };
    let seconds = now.duration_since(created).as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 if seconds % 60 == 0 => format!("{minutes}m"),
        120..600 => format!("{minutes}m{}s", seconds % 60),
        600..10800 => format!("{minutes}m"),
        10800..28800 if minutes % 60 == 0 => format!("{hours}h"),
        10800..28800 => format!("{hours}h{}m", minutes % 60),
        28800..172_800 => format!("{hours}h"),
        172_800..691_200 if hours % 24 == 0 => format!("{days}d"),
        172_800..691_200 => format!("{days}d{}h", hours % 24),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_prints_them() {
        let now: jiff::Timestamp = "2026-01-02T00:00:00Z".parse().expect("a time");
        for (created, expected) in [
            ("2026-01-01T23:59:13Z", "47s"),
            ("2026-01-01T23:55:30Z", "4m30s"),
            ("2026-01-01T20:30:00Z", "3h30m"),
        ] {
            assert_eq!(age(Some(created), now), expected);
        }
    }
}
