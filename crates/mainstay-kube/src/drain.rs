//! Draining a node: which pods leave, which stay, and what blocks them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::Method;
use k8s_openapi::api::policy::v1::PodDisruptionBudget as KubeBudget;
use k8s_openapi::api::storage::v1::VolumeAttachment as KubeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::error::{ApiStatus, Class, Error};
use crate::node::NodeTaint;
use crate::pod::Pod;
use crate::{CONFLICTS_MAX, Cluster};

/// On a Node that mainstay cordoned. Its value is the caller's record of the turn.
pub const CORDONED: &str = "mainstay/cordoned";

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// What a drain does with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainClass {
    /// Its controller makes another one elsewhere, or it has finished.
    Evict,
    /// Belongs to a DaemonSet: its controller would put it back at once, so it stays.
    DaemonSet,
    /// The kubelet runs it from a file: the API cannot remove it, so it stays.
    Mirror,
    /// It has no controller: once it is evicted it is gone for ever. Only with the operator's consent.
    Unmanaged,
}

/// `daemon_sets` are those that exist, by namespace and name: a pod that one left behind has no controller any more.
pub fn drain_class(pod: &Pod, daemon_sets: &BTreeSet<(String, String)>) -> DrainClass {
    match &pod.controller {
        _ if pod.is_mirror => DrainClass::Mirror,
        _ if pod.is_finished() => DrainClass::Evict,
        Some((kind, name)) if kind == "DaemonSet" => {
            if daemon_sets.contains(&(pod.namespace.clone(), name.clone())) {
                DrainClass::DaemonSet
            } else {
                DrainClass::Unmanaged
            }
        }
        Some(_) => DrainClass::Evict,
        None => DrainClass::Unmanaged,
    }
}

/// The pods of a node, sorted by what a drain does with them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DrainPlan {
    pub evict: Vec<Pod>,
    pub stay: Vec<Pod>,
    pub unmanaged: Vec<Pod>,
}

impl DrainPlan {
    pub fn new(pods: Vec<Pod>, daemon_sets: &BTreeSet<(String, String)>) -> Self {
        let mut plan = Self::default();
        for pod in pods {
            match drain_class(&pod, daemon_sets) {
                DrainClass::Evict => plan.evict.push(pod),
                DrainClass::DaemonSet | DrainClass::Mirror => plan.stay.push(pod),
                DrainClass::Unmanaged => plan.unmanaged.push(pod),
            }
        }
        plan
    }

    /// Pods whose `emptyDir` data ends with the eviction.
    pub fn loses_data(&self) -> impl Iterator<Item = &Pod> {
        self.evict.iter().filter(|pod| pod.has_empty_dir && !pod.is_finished())
    }
}

/// What came of asking for an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Eviction {
    /// The pod ends within its grace period.
    Accepted,
    /// There is no such pod any more; another one may have its name.
    Gone,
    /// A budget does not allow it now. `retry_after` is set while its controller has not counted yet.
    Blocked { message: String, retry_after: Option<Duration> },
    /// Two budgets cover the pod: the API refuses for ever, until one of them is changed.
    TwoBudgets { message: String },
    /// The namespace is being deleted, and the pod with it: it is only awaited.
    NamespaceTerminating,
}

/// A PodDisruptionBudget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisruptionBudget {
    pub namespace: String,
    pub name: String,
    pub disruptions_allowed: i32,
    pub current_healthy: i32,
    pub desired_healthy: i32,
    pub expected_pods: i32,
    selector: Option<PodSelector>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct PodSelector {
    labels: BTreeMap<String, String>,
    expressions: Vec<(String, String, Vec<String>)>,
}

impl DisruptionBudget {
    pub fn covers(&self, pod: &Pod) -> bool {
        self.namespace == pod.namespace && self.selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels))
    }

    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// The budgets that cover a pod.
pub fn budgets_of<'a>(pod: &Pod, budgets: &'a [DisruptionBudget]) -> Vec<&'a DisruptionBudget> {
    budgets.iter().filter(|budget| budget.covers(pod)).collect()
}

impl PodSelector {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let has_labels = self.labels.iter().all(|(key, value)| labels.get(key) == Some(value));
        has_labels
            && self.expressions.iter().all(|(key, operator, values)| {
                let value = labels.get(key);
                match operator.as_str() {
                    "In" => value.is_some_and(|value| values.contains(value)),
                    "NotIn" => value.is_none_or(|value| !values.contains(value)),
                    "Exists" => value.is_some(),
                    "DoesNotExist" => value.is_none(),
                    _ => false,
                }
            })
    }
}

impl From<LabelSelector> for PodSelector {
    fn from(selector: LabelSelector) -> Self {
        let expressions = selector.match_expressions.unwrap_or_default().into_iter();
        Self {
            labels: selector.match_labels.unwrap_or_default(),
            expressions: expressions
                .map(|expression| (expression.key, expression.operator, expression.values.unwrap_or_default()))
                .collect(),
        }
    }
}

/// A volume that is attached, or being attached, to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedVolume {
    pub name: String,
    pub driver: String,
    pub node: String,
    /// Empty for volumes inside a pod.
    pub persistent_volume: String,
    /// Being detached.
    pub is_deleting: bool,
}

/// What came of a cordon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cordon {
    Done,
    /// Cordoned by mainstay earlier, with this record.
    AlreadyOurs {
        record: String,
    },
    /// Cordoned without our annotation, so by a person or another program: it must stay so.
    ByOthers,
}

/// What came of an uncordon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uncordon {
    Done,
    /// It was schedulable again; only our annotation was removed.
    AlreadyOpen,
    /// Nothing of ours was there.
    NotOurs,
}

impl Cluster {
    /// Keeps new pods away from a node and records on it that mainstay did so. Never takes over a cordon of others.
    pub async fn cordon(&self, name: &str, record: &str) -> Result<Cordon, Error> {
        self.retrying_conflicts(async || {
            let node = self.within("cordon", self.node_api().get(name)).await?;
            let ours = node.metadata.annotations.as_ref().and_then(|all| all.get(CORDONED)).cloned();
            if node.spec.is_some_and(|spec| spec.unschedulable == Some(true)) {
                return Ok(ours.map_or(Cordon::ByOthers, |record| Cordon::AlreadyOurs { record }));
            }
            let metadata = json!({ "resourceVersion": node.metadata.resource_version, "annotations": { CORDONED: record } });
            self.merge_node(
                "cordon",
                name,
                json!({ "metadata": metadata, "spec": { "unschedulable": true } }),
            )
            .await?;
            Ok(Cordon::Done)
        })
        .await
    }

    /// Ends a cordon of ours and removes its record. A cordon of others stays.
    pub async fn uncordon(&self, name: &str) -> Result<Uncordon, Error> {
        self.retrying_conflicts(async || {
            let node = self.within("uncordon", self.node_api().get(name)).await?;
            if !node.metadata.annotations.is_some_and(|all| all.contains_key(CORDONED)) {
                return Ok(Uncordon::NotOurs);
            }
            let was_cordoned = node.spec.is_some_and(|spec| spec.unschedulable == Some(true));
            let metadata = json!({ "resourceVersion": node.metadata.resource_version, "annotations": { CORDONED: null } });
            self.merge_node(
                "uncordon",
                name,
                json!({ "metadata": metadata, "spec": { "unschedulable": null } }),
            )
            .await?;
            Ok(if was_cordoned { Uncordon::Done } else { Uncordon::AlreadyOpen })
        })
        .await
    }

    async fn merge_node(&self, call: &'static str, name: &str, patch: Value) -> Result<(), Error> {
        let params = PatchParams::default();
        self.within(call, self.node_api().patch(name, &params, &Patch::Merge(patch)))
            .await
            .map(drop)
    }

    /// Repeats a read and a change with `resourceVersion` while changes of others come in between.
    pub(crate) async fn retrying_conflicts<T>(&self, attempt: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
        for _ in 1..CONFLICTS_MAX {
            match attempt().await {
                Err(error) if error.class() == Class::Conflict => {}
                outcome => return outcome,
            }
        }
        attempt().await
    }

    /// Names of all DaemonSets, by namespace, for [`DrainPlan::new`].
    pub async fn daemon_sets(&self) -> Result<BTreeSet<(String, String)>, Error> {
        let api: Api<k8s_openapi::api::apps::v1::DaemonSet> = Api::all(self.client.clone());
        let list = self.within("daemon sets", api.list(&ListParams::default())).await?;
        let name = |set: k8s_openapi::api::apps::v1::DaemonSet| {
            (
                set.metadata.namespace.unwrap_or_default(),
                set.metadata.name.unwrap_or_default(),
            )
        };
        Ok(list.items.into_iter().map(name).collect())
    }

    /// Asks for the eviction of exactly this pod, with its own grace period.
    pub async fn evict(&self, pod: &Pod) -> Result<Eviction, Error> {
        let path = format!("/api/v1/namespaces/{}/pods/{}/eviction", pod.namespace, pod.name);
        let metadata = json!({ "namespace": pod.namespace, "name": pod.name });
        let options = json!({ "preconditions": { "uid": pod.uid } });
        let body = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options });
        let Err(error) = self.call("evict", Method::POST, &path, Some(&body)).await else {
            return Ok(Eviction::Accepted);
        };
        match error.status().and_then(refused_eviction) {
            Some(eviction) => Ok(eviction),
            // The UID differs, or the pod was changed in the same moment.
            None if error.class() == Class::Conflict => self.after_conflict(pod, error).await,
            None => Err(error),
        }
    }

    async fn after_conflict(&self, pod: &Pod, conflict: Error) -> Result<Eviction, Error> {
        if self.is_pod_gone(pod).await? {
            return Ok(Eviction::Gone);
        }
        Ok(Eviction::Blocked {
            message: conflict.to_string(),
            retry_after: None,
        })
    }

    /// Whether exactly this pod is gone. Another one may have its name by now.
    pub async fn is_pod_gone(&self, pod: &Pod) -> Result<bool, Error> {
        let now = self.pod(&pod.namespace, &pod.name).await?;
        Ok(now.is_none_or(|now| now.uid != pod.uid))
    }

    /// All budgets.
    pub async fn disruption_budgets(&self) -> Result<Vec<DisruptionBudget>, Error> {
        let api: Api<KubeBudget> = Api::all(self.client.clone());
        let list = self.within("disruption budgets", api.list(&ListParams::default())).await?;
        let budget = |budget: KubeBudget| {
            let status = budget.status.unwrap_or_default();
            DisruptionBudget {
                namespace: budget.metadata.namespace.unwrap_or_default(),
                name: budget.metadata.name.unwrap_or_default(),
                disruptions_allowed: status.disruptions_allowed,
                current_healthy: status.current_healthy,
                desired_healthy: status.desired_healthy,
                expected_pods: status.expected_pods,
                selector: budget.spec.and_then(|spec| spec.selector).map(PodSelector::from),
            }
        };
        Ok(list.items.into_iter().map(budget).collect())
    }

    /// The volumes that a node holds, those that are being detached included.
    pub async fn volume_attachments(&self, node: &str) -> Result<Vec<AttachedVolume>, Error> {
        let api: Api<KubeAttachment> = Api::all(self.client.clone());
        let list = self.within("volume attachments", api.list(&ListParams::default())).await?;
        let on_node = list.items.into_iter().filter(|attachment| attachment.spec.node_name == node);
        let volume = |attachment: KubeAttachment| AttachedVolume {
            name: attachment.metadata.name.unwrap_or_default(),
            driver: attachment.spec.attacher,
            node: attachment.spec.node_name,
            persistent_volume: attachment.spec.source.persistent_volume_name.unwrap_or_default(),
            is_deleting: attachment.metadata.deletion_timestamp.is_some(),
        };
        Ok(on_node.map(volume).collect())
    }

    /// Says that a machine is off for certain, so that its volumes are detached by force. Only after PVE says stopped: pods that still
    /// run there would lose their data.
    pub async fn set_out_of_service(&self, node: &str) -> Result<(), Error> {
        self.add_taints(node, &[out_of_service()]).await
    }

    pub async fn clear_out_of_service(&self, node: &str) -> Result<(), Error> {
        self.remove_taints(node, &[out_of_service()]).await
    }
}

fn out_of_service() -> NodeTaint {
    NodeTaint {
        key: OUT_OF_SERVICE.into(),
        value: "nodeshutdown".into(),
        effect: "NoExecute".into(),
    }
}

/// `None` for what is not about this eviction.
fn refused_eviction(status: &ApiStatus) -> Option<Eviction> {
    match status.code {
        404 => Some(Eviction::Gone),
        429 => Some(Eviction::Blocked {
            message: status.message.clone(),
            retry_after: status.retry_after,
        }),
        // This answer has no reason, only a text.
        500 if status.message.contains("more than one PodDisruptionBudget") => Some(Eviction::TwoBudgets {
            message: status.message.clone(),
        }),
        403 if status.has_cause("NamespaceTerminating") => Some(Eviction::NamespaceTerminating),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, change: impl FnOnce(&mut Value)) -> Pod {
        let mut json = json!({"metadata": {"namespace": "web", "name": name, "uid": name, "labels": {"app": "front", "tier": "a"}},
            "spec": {"containers": [], "nodeName": "w1"}, "status": {"phase": "Running"}});
        change(&mut json);
        serde_json::from_value::<k8s_openapi::api::core::v1::Pod>(json)
            .unwrap()
            .into()
    }

    fn owned_by(kind: &'static str, name: &'static str) -> impl FnOnce(&mut Value) {
        move |pod| {
            pod["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "1", "controller": true}]);
        }
    }

    #[test]
    fn pods_are_sorted_as_kubectl_does() {
        let daemon_sets = [("web".to_owned(), "agent".to_owned())].into();
        let class = |pod: &Pod| drain_class(pod, &daemon_sets);
        assert_eq!(class(&pod("a", owned_by("ReplicaSet", "front"))), DrainClass::Evict);
        assert_eq!(class(&pod("b", owned_by("DaemonSet", "agent"))), DrainClass::DaemonSet);
        assert_eq!(class(&pod("c", owned_by("DaemonSet", "deleted"))), DrainClass::Unmanaged);
        assert_eq!(class(&pod("d", |_| {})), DrainClass::Unmanaged);
        let finished = pod("e", |pod| pod["status"]["phase"] = "Succeeded".into());
        assert_eq!(class(&finished), DrainClass::Evict);
        let mirror = pod("f", |pod| {
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        });
        assert_eq!(class(&mirror), DrainClass::Mirror);
        let owner_only = pod("g", |pod| {
            pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "w1", "uid": "1"}]);
        });
        assert_eq!(
            class(&owner_only),
            DrainClass::Unmanaged,
            "an owner that does not control it makes no other one"
        );

        let data = pod("h", |pod| {
            owned_by("ReplicaSet", "front")(pod);
            pod["spec"]["volumes"] = json!([{"name": "cache", "emptyDir": {}}]);
        });
        let plan = DrainPlan::new(vec![data, finished, mirror, owner_only], &daemon_sets);
        assert_eq!((plan.evict.len(), plan.stay.len(), plan.unmanaged.len()), (2, 1, 1));
        assert_eq!(plan.loses_data().map(Pod::full_name).collect::<Vec<_>>(), ["web/h"]);
    }

    #[test]
    fn a_budget_covers_pods_of_its_namespace_by_its_selector() {
        let budget = |selector: Value| DisruptionBudget {
            namespace: "web".into(),
            name: "front".into(),
            disruptions_allowed: 0,
            current_healthy: 1,
            desired_healthy: 1,
            expected_pods: 1,
            selector: serde_json::from_value::<Option<LabelSelector>>(selector)
                .unwrap()
                .map(PodSelector::from),
        };
        let front = pod("a", |_| {});
        let other = pod("b", |pod| pod["metadata"]["namespace"] = "shop".into());
        assert!(budget(json!({"matchLabels": {"app": "front"}})).covers(&front));
        assert!(!budget(json!({"matchLabels": {"app": "front"}})).covers(&other));
        assert!(!budget(json!({"matchLabels": {"app": "back"}})).covers(&front));
        assert!(budget(json!({})).covers(&front), "an empty selector means all pods");
        assert!(!budget(json!(null)).covers(&front), "no selector means none");
        let by = |operator: &str, values: Value| {
            budget(json!({"matchExpressions": [{"key": "tier", "operator": operator, "values": values}]}))
        };
        assert!(by("In", json!(["a", "b"])).covers(&front) && !by("NotIn", json!(["a"])).covers(&front));
        assert!(by("Exists", json!(null)).covers(&front) && !by("DoesNotExist", json!(null)).covers(&front));
        assert_eq!(budgets_of(&front, &[budget(json!({}))])[0].full_name(), "web/front");
    }
}
