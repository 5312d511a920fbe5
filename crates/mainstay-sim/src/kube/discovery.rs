//! Discovery documents, plain and aggregated.

use serde_json::{Value, json};

use super::kinds::{self, ALL, Kind};
use super::store::Store;

const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

fn kinds_of(store: Option<&Store>) -> Vec<&'static Kind> {
    let mut all = ALL.to_vec();
    all.extend(store.map(kinds::custom).unwrap_or_default());
    all
}

fn groups(kinds: &[&'static Kind]) -> Vec<(&'static str, &'static str)> {
    let mut groups: Vec<(&str, &str)> = Vec::new();
    let all = kinds
        .iter()
        .map(|kind| (kind.group, kind.version))
        .filter(|(group, _)| !group.is_empty());
    for group in all {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

fn members<'a>(kinds: &'a [&'static Kind], group: &'a str, version: &'a str) -> impl Iterator<Item = &'static Kind> + 'a {
    kinds
        .iter()
        .copied()
        .filter(move |kind| kind.group == group && kind.version == version)
}

fn group(name: &str, version: &str) -> Value {
    let one = json!({"groupVersion": format!("{name}/{version}"), "version": version});
    json!({"name": name, "versions": [one], "preferredVersion": one})
}

fn resources(kinds: &[&'static Kind], name: &str, version: &str) -> Option<Value> {
    let mut list = Vec::new();
    for kind in members(kinds, name, version) {
        list.push(json!({
            "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind, "verbs": VERBS,
            "shortNames": kind.short,
        }));
        if kind.status {
            list.push(json!({
                "name": format!("{}/status", kind.plural), "singularName": "", "namespaced": kind.namespaced, "kind": kind.kind,
                "verbs": ["get", "patch", "update"],
            }));
        }
    }
    let group_version = if name.is_empty() {
        version.to_owned()
    } else {
        format!("{name}/{version}")
    };
    (!list.is_empty())
        .then(|| json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}))
}

fn aggregated(kinds: &[&'static Kind], groups: &[(&str, &str)]) -> Value {
    let items: Vec<Value> = groups
        .iter()
        .map(|(name, version)| aggregated_group(kinds, name, version))
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn aggregated_group(kinds: &[&'static Kind], name: &str, version: &str) -> Value {
    let resources: Vec<Value> = members(kinds, name, version)
        .map(|kind| {
            let response = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
            let mut entry = json!({
                "resource": kind.plural, "responseKind": response, "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
                "singularResource": kind.singular, "verbs": VERBS, "shortNames": kind.short,
            });
            if kind.status {
                entry["subresources"] = json!([{"subresource": "status", "responseKind": response, "verbs": ["get", "patch", "update"]}]);
            }
            entry
        })
        .collect();
    let metadata = if name.is_empty() {
        json!({"creationTimestamp": null})
    } else {
        json!({"name": name, "creationTimestamp": null})
    };
    json!({"metadata": metadata, "versions": [{"version": version, "resources": resources, "freshness": "Current"}]})
}

/// The document of a discovery path; `None` for any other path.
pub(crate) fn document(path: &str, accept: &str, address: &str, store: Option<&Store>) -> Option<Value> {
    if !path.starts_with("/api") {
        return None;
    }
    let kinds = kinds_of(store);
    let kinds = kinds.as_slice();
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let whole = accept.contains("as=APIGroupDiscoveryList");
    match parts.as_slice() {
        ["api"] if whole => Some(aggregated(kinds, &[("", "v1")])),
        ["apis"] if whole => Some(aggregated(kinds, &groups(kinds))),
        ["api"] => Some(json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
        })),
        ["apis"] => {
            let groups: Vec<Value> = groups(kinds).iter().map(|(name, version)| group(name, version)).collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["api", version] => resources(kinds, "", version),
        ["apis", name] => {
            let (name, version) = groups(kinds).into_iter().find(|(group, _)| group == name)?;
            let mut one = group(name, version);
            one["kind"] = json!("APIGroup");
            one["apiVersion"] = json!("v1");
            Some(one)
        }
        ["apis", name, version] => resources(kinds, name, version),
        _ => None,
    }
}
