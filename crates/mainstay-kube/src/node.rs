//! A node, as far as it concerns us.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node as KubeNode;
use serde_json::{Value, json};

/// A Kubernetes Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// `v1.35.2`.
    pub kubelet: String,
    /// The boot of the machine in which the kubelet told all this, as the kernel names it; empty where it did not say.
    pub boot: String,
    /// Addresses and hostname.
    pub addresses: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// What a cloud controller calls the machine; empty without one.
    pub provider_id: String,
    pub taints: Vec<NodeTaint>,
    /// New pods are kept away.
    pub cordoned: bool,
    /// Conditions that should not be there: `MemoryPressure`, `DiskPressure`, `PIDPressure`, `NetworkUnavailable`.
    pub pressures: Vec<String>,
    /// The condition Ready: its status, and what the kubelet says about it.
    ready: Option<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeTaint {
    pub key: String,
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// The annotation that records which labels and taints of a Node mainstay set.
pub const APPLIED: &str = "mainstay/applied";

/// A change of labels and taints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeEdit {
    pub set_labels: BTreeMap<String, String>,
    pub remove_labels: BTreeSet<String>,
    pub set_taints: Vec<NodeTaint>,
    /// By key and effect, whatever their value.
    pub remove_taints: Vec<NodeTaint>,
    /// Written as [`APPLIED`]. `None` removes it.
    pub record: Option<String>,
}

impl NodeEdit {
    /// The merge patch for a node as it was read. With its version a change that came in between makes it a conflict.
    pub(crate) fn patch(&self, seen: &Node, version: Option<&str>) -> Value {
        let set = self.set_labels.iter().map(|(key, value)| (key.clone(), json!(value)));
        let removed = self.remove_labels.iter().map(|key| (key.clone(), Value::Null));
        let labels: serde_json::Map<String, Value> = removed.chain(set).collect();
        let metadata = json!({ "resourceVersion": version, "labels": labels, "annotations": { APPLIED: self.record } });
        let taints = with_taints(&without_taints(&seen.taints, &self.remove_taints), &self.set_taints);
        if taints == seen.taints {
            return json!({ "metadata": metadata });
        }
        json!({ "metadata": metadata, "spec": { "taints": taints_json(&taints) } })
    }
}

impl Node {
    /// The record that mainstay left when it cordoned the node.
    pub fn cordon_record(&self) -> Option<&str> {
        self.annotations.get(crate::CORDONED).map(String::as_str)
    }

    pub fn is_ready(&self) -> bool {
        self.ready.as_ref().is_some_and(|(status, _)| status == "True")
    }

    /// What it tells is of this boot. A kubelet that names none is believed.
    pub fn is_of_boot(&self, boot: &str) -> bool {
        self.boot.is_empty() || self.boot == boot
    }

    /// In the kubelet's own words; empty when it is ready.
    pub fn why_not_ready(&self) -> String {
        match &self.ready {
            Some((status, _)) if status == "True" => String::new(),
            Some((status, message)) if message.is_empty() => format!("the node's Ready condition is {status}"),
            // The kubelet quotes its runtime at length. Every node says this until its network plugin runs.
            Some((_, message)) if message.contains("NetworkPluginNotReady") => "its network plugin is not up yet".into(),
            Some((_, message)) => message.clone(),
            None => "the kubelet has not reported yet".into(),
        }
    }
}

impl From<KubeNode> for Node {
    fn from(node: KubeNode) -> Self {
        let status = node.status.unwrap_or_default();
        let spec = node.spec.unwrap_or_default();
        let (kubelet, boot) = status
            .node_info
            .map(|info| (info.kubelet_version, info.boot_id))
            .unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let pressures = conditions
            .iter()
            .filter(|condition| condition.type_ != "Ready" && condition.status == "True");
        let pressures = pressures.map(|condition| condition.type_.clone()).collect();
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
        let taint = |taint: k8s_openapi::api::core::v1::Taint| NodeTaint {
            key: taint.key,
            value: taint.value.unwrap_or_default(),
            effect: taint.effect,
        };
        Self {
            name: node.metadata.name.unwrap_or_default(),
            kubelet,
            boot,
            addresses: status
                .addresses
                .unwrap_or_default()
                .into_iter()
                .map(|address| address.address)
                .collect(),
            labels: node.metadata.labels.unwrap_or_default(),
            annotations: node.metadata.annotations.unwrap_or_default(),
            provider_id: spec.provider_id.unwrap_or_default(),
            pressures,
            taints: spec.taints.unwrap_or_default().into_iter().map(taint).collect(),
            cordoned: spec.unschedulable.unwrap_or_default(),
            ready: ready.map(|condition| (condition.status, condition.message.unwrap_or_default())),
        }
    }
}

/// Key and effect name a taint.
fn same(a: &NodeTaint, b: &NodeTaint) -> bool {
    a.key == b.key && a.effect == b.effect
}

pub(crate) fn without_taints(seen: &[NodeTaint], unwanted: &[NodeTaint]) -> Vec<NodeTaint> {
    let stays = |taint: &&NodeTaint| !unwanted.iter().any(|other| same(other, taint));
    seen.iter().filter(stays).cloned().collect()
}

/// The value of a taint that is there is replaced.
pub(crate) fn with_taints(seen: &[NodeTaint], ours: &[NodeTaint]) -> Vec<NodeTaint> {
    let mut taints = seen.to_vec();
    for taint in ours {
        match taints.iter_mut().find(|other| same(other, taint)) {
            Some(other) => other.value.clone_from(&taint.value),
            None => taints.push(taint.clone()),
        }
    }
    taints
}

pub(crate) fn taints_json(taints: &[NodeTaint]) -> Vec<Value> {
    let json = |taint: &NodeTaint| match taint.value.as_str() {
        "" => json!({ "key": taint.key, "effect": taint.effect }),
        value => json!({ "key": taint.key, "value": value, "effect": taint.effect }),
    };
    taints.iter().map(json).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(conditions: Value) -> Node {
        let json = json!({"metadata": {"name": "prod-w-1"}, "status": {"conditions": conditions}});
        serde_json::from_value::<KubeNode>(json).expect("a node").into()
    }

    #[test]
    fn a_node_is_ready_only_when_its_kubelet_says_so() {
        assert!(node(json!([{"type": "Ready", "status": "True"}])).is_ready());
        assert!(!node(json!([{"type": "Ready", "status": "Unknown"}])).is_ready());
        assert!(!node(json!([{"type": "MemoryPressure", "status": "True"}])).is_ready());
    }

    #[test]
    fn the_reason_is_the_kubelets_own() {
        let waiting = node(json!([{"type": "Ready", "status": "False", "message": "cni plugin not initialized"}]));
        assert_eq!(waiting.why_not_ready(), "cni plugin not initialized");
        let long = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error";
        let starts = node(json!([{"type": "Ready", "status": "False", "message": long}]));
        assert_eq!(starts.why_not_ready(), "its network plugin is not up yet");
        assert_eq!(node(json!([])).why_not_ready(), "the kubelet has not reported yet");
    }

    #[test]
    fn only_what_was_told_in_this_boot_counts() {
        let told =
            |info: Value| Node::from(serde_json::from_value::<KubeNode>(json!({"status": {"nodeInfo": info}})).expect("a node"));
        let info = |boot: &str| {
            json!({"architecture": "", "bootID": boot, "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""})
        };
        assert!(told(info("4f1c")).is_of_boot("4f1c"));
        assert!(!told(info("4f1c")).is_of_boot("b7a0"));
        assert!(told(info("")).is_of_boot("b7a0"), "it names none");
    }

    #[test]
    fn taints_of_others_stay() {
        let taint = |key: &str, value: &str| NodeTaint {
            key: key.into(),
            value: value.into(),
            effect: "NoSchedule".into(),
        };
        let seen = [taint("node.kubernetes.io/not-ready", ""), taint("gpu", "old")];
        let wanted = with_taints(&seen, &[taint("gpu", "new"), taint("edge", "")]);
        assert_eq!(
            wanted,
            [
                taint("node.kubernetes.io/not-ready", ""),
                taint("gpu", "new"),
                taint("edge", "")
            ]
        );
        assert_eq!(with_taints(&wanted, &[taint("edge", "")]), wanted);
        let gone = without_taints(&wanted, &[taint("gpu", "whatever"), taint("absent", "")]);
        assert_eq!(gone, [taint("node.kubernetes.io/not-ready", ""), taint("edge", "")]);
    }
}
