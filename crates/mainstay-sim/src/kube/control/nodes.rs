//! What happens to pods when their node is tainted, lost, off or deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::kinds;
use super::schedule::{is_ready, tolerates};
use super::{Round, controller_of, is_deleting, key_of, set_condition, text};

/// The pod garbage collector waits this long before it believes that a node is gone.
const ORPHANED_AFTER: Duration = Duration::from_secs(40);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

pub(super) fn run(round: &mut Round<'_>) {
    let nodes: BTreeMap<String, Arc<Value>> = round
        .list(&kinds::NODES)
        .into_iter()
        .map(|node| (text(&node["metadata"]["name"]).to_owned(), node))
        .collect();
    for (name, node) in &nodes {
        // The kubelet reports a network as soon as the pod of a CNI runs beside it.
        if !round.hooks.is_rancher && !is_ready(node) && !unknown(node) && (round.hooks.is_alive)(name) && has_cni(round, name) {
            crate::talos::objects::set_ready(round.store, name, false, &round.now);
        }
    }
    for pod in round.list(&kinds::PODS) {
        let Some(name) = pod["spec"]["nodeName"].as_str() else {
            continue;
        };
        let uid = text(&pod["metadata"]["uid"]).to_owned();
        match nodes.get(name) {
            None => orphaned(round, &pod, &uid),
            Some(node) => {
                round.forget(&format!("orphaned {uid}"));
                let is_daemon = pod["metadata"]["ownerReferences"][0]["kind"] == "DaemonSet" && controller_of(&pod).is_some();
                let is_mirror = !pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null();
                if is_out_of_service(node) {
                    remove(round, &pod);
                } else if !is_daemon && !is_mirror {
                    evict_by_taint(round, &pod, node, &uid);
                }
                if !is_ready(node) && super::condition(&pod, "Ready") && unknown(node) {
                    let now = round.now.clone();
                    round.change(&pod, &kinds::PODS, |pod| set_condition(pod, "Ready", "False", "", "", &now));
                }
            }
        }
    }
}

fn has_cni(round: &Round<'_>, node: &str) -> bool {
    round.store.list(&kinds::PODS, Some("kube-system")).1.iter().any(|pod| {
        let owner = text(&pod["metadata"]["ownerReferences"][0]["name"]);
        pod["spec"]["nodeName"] == node && (owner == "cilium" || owner.contains("calico")) && super::condition(pod, "Ready")
    })
}

fn unknown(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|one| one["type"] == "Ready" && one["status"] == "Unknown")
}

/// The taint counts on a node that is not ready only.
pub(super) fn is_out_of_service(node: &Value) -> bool {
    let taints = node["spec"]["taints"].as_array();
    !is_ready(node) && taints.into_iter().flatten().any(|taint| taint["key"] == OUT_OF_SERVICE)
}

fn orphaned(round: &mut Round<'_>, pod: &Value, uid: &str) {
    if round.after(&format!("orphaned {uid}"), ORPHANED_AFTER) {
        remove(round, pod);
    }
}

fn remove(round: &mut Round<'_>, pod: &Value) {
    let _ = round.store.delete(&key_of(pod, &kinds::PODS));
    round.state.pods.remove(text(&pod["metadata"]["uid"]));
}

/// `NoExecute`: at once, or after the toleration's seconds.
fn evict_by_taint(round: &mut Round<'_>, pod: &Value, node: &Value, uid: &str) {
    let taints: Vec<Value> = node["spec"]["taints"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|taint| taint["effect"] == "NoExecute")
        .cloned()
        .collect();
    if is_deleting(pod) {
        return;
    }
    if taints.is_empty() {
        round.forget(&format!("tainted {uid}"));
        return;
    }
    let tolerations: Vec<Value> = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    let mut shortest: Option<u64> = None;
    for taint in &taints {
        let fitting: Vec<&Value> = tolerations.iter().filter(|one| tolerates(one, taint)).collect();
        if fitting.is_empty() {
            shortest = Some(0);
        } else if let Some(seconds) = fitting.iter().map(|one| one["tolerationSeconds"].as_u64()).min().flatten() {
            shortest = Some(shortest.map_or(seconds, |known| known.min(seconds)));
        }
    }
    if let Some(seconds) = shortest
        && round.after(&format!("tainted {uid}"), Duration::from_secs(seconds))
    {
        round.forget(&format!("tainted {uid}"));
        let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "Taint manager: deleting due to NoExecute taint", "lastTransitionTime": round.now});
        round.change(pod, &kinds::PODS, |pod| {
            if let Some(list) = pod["status"]["conditions"].as_array_mut() {
                list.push(condition);
            }
        });
        round.delete_pod(pod);
    }
}
