//! The scheduler: pods without a node get one that takes them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::kinds;
use super::{Round, condition, is_deleting, set_condition, text};

pub(super) fn run(round: &mut Round<'_>) {
    let pods = round.list(&kinds::PODS);
    let waiting = pods
        .iter()
        .filter(|pod| pod["spec"]["nodeName"].is_null() && !is_deleting(pod));
    let waiting: Vec<_> = waiting.collect();
    if waiting.is_empty() {
        return;
    }
    let nodes = round.list(&kinds::NODES);
    let mut load: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in &pods {
        *load.entry(text(&pod["spec"]["nodeName"])).or_default() += 1;
    }
    for pod in waiting {
        let found = nodes.iter().filter(|node| takes(&pod["spec"], node));
        let chosen = found.min_by_key(|node| {
            let name = text(&node["metadata"]["name"]);
            (load.get(name).copied().unwrap_or_default(), name.to_owned())
        });
        let now = round.now.clone();
        let Some(node) = chosen else {
            let why = refusals(&pod["spec"], &nodes);
            round.change(pod, &kinds::PODS, |pod| {
                set_condition(pod, "PodScheduled", "False", "Unschedulable", &why, &now);
            });
            continue;
        };
        let name = text(&node["metadata"]["name"]);
        *load.entry(name).or_default() += 1;
        round.change(pod, &kinds::PODS, |pod| {
            pod["spec"]["nodeName"] = name.into();
            set_condition(pod, "PodScheduled", "True", "", "", &now);
        });
    }
}

fn takes(pod: &Value, node: &Value) -> bool {
    why_not(pod, node).is_none()
}

fn why_not(pod: &Value, node: &Value) -> Option<String> {
    let tolerations: Vec<&Value> = pod["tolerations"].as_array().into_iter().flatten().collect();
    let unschedulable = serde_json::json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"});
    if node["spec"]["unschedulable"] == true && !tolerations.iter().any(|one| tolerates(one, &unschedulable)) {
        return Some("node(s) were unschedulable".to_owned());
    }
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let mut hard = taints.filter(|taint| taint["effect"] != "PreferNoSchedule");
    if let Some(taint) = hard.find(|taint| !tolerations.iter().any(|one| tolerates(one, taint))) {
        return Some(format!(
            "node(s) had untolerated taint(s) {{{}: {}}}",
            text(&taint["key"]),
            text(&taint["value"])
        ));
    }
    (!selected(pod, node)).then(|| "node(s) didn't match Pod's node affinity/selector".to_owned())
}

fn refusals(pod: &Value, nodes: &[std::sync::Arc<Value>]) -> String {
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for node in nodes {
        *reasons.entry(why_not(pod, node).unwrap_or_default()).or_default() += 1;
    }
    let total = nodes.len();
    let list: Vec<String> = reasons
        .into_iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    if list.is_empty() {
        return "no nodes available to schedule pods".to_owned();
    }
    format!("0/{total} nodes are available: {}.", list.join(", "))
}

pub(crate) fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let exists = toleration["operator"] == "Exists";
    let same_key = (toleration["key"].is_null() && exists) || toleration["key"] == taint["key"];
    let same_value = exists || text(&toleration["value"]) == text(&taint["value"]);
    let same_effect = text(&toleration["effect"]).is_empty() || toleration["effect"] == taint["effect"];
    same_key && same_value && same_effect
}

/// Selector and required affinity.
fn selected(pod: &Value, node: &Value) -> bool {
    let labels = &node["metadata"]["labels"];
    let by_label = pod["nodeSelector"]
        .as_object()
        .into_iter()
        .flatten()
        .all(|(key, value)| labels[key] == *value);
    let terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].as_array();
    let term_holds = |term: &Value| {
        let expressions = term["matchExpressions"].as_array().into_iter().flatten();
        let fields = term["matchFields"].as_array().into_iter().flatten();
        let name = |field: &Value| {
            let listed = field["values"]
                .as_array()
                .is_some_and(|values| values.contains(&node["metadata"]["name"]));
            field["key"] == "metadata.name" && (listed == (field["operator"] == "In"))
        };
        expressions.clone().all(|one| holds(one, labels)) && fields.clone().all(name)
    };
    by_label && terms.is_none_or(|terms| terms.iter().any(term_holds))
}

pub(crate) fn holds(expression: &Value, labels: &Value) -> bool {
    let value = &labels[text(&expression["key"])];
    let listed = || expression["values"].as_array().is_some_and(|values| values.contains(value));
    match expression["operator"].as_str() {
        Some("In") => listed(),
        Some("NotIn") => !listed(),
        Some("Exists") => !value.is_null(),
        Some("DoesNotExist") => value.is_null(),
        _ => false,
    }
}

/// Whether a DaemonSet runs on a node: its controller tolerates what says that the node is not ready, cordoned or under pressure.
pub(crate) fn fits(pod: &Value, node: &Value) -> bool {
    const TOLERATED: [&str; 7] = [
        "not-ready",
        "unreachable",
        "disk-pressure",
        "memory-pressure",
        "pid-pressure",
        "unschedulable",
        "network-unavailable",
    ];
    let host_network = pod["hostNetwork"] == true;
    let by_controller = |taint: &Value| {
        let key = text(&taint["key"]).strip_prefix("node.kubernetes.io/");
        key.is_some_and(|key| TOLERATED.contains(&key) && (key != "network-unavailable" || host_network))
    };
    let own = |taint: &Value| {
        pod["tolerations"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|one| tolerates(one, taint))
    };
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let mut hard = taints.filter(|taint| taint["effect"] != "PreferNoSchedule");
    selected(pod, node) && hard.all(|taint| by_controller(taint) || own(taint))
}

/// Whether a Node is Ready.
pub(super) fn is_ready(node: &Value) -> bool {
    condition(node, "Ready")
}
