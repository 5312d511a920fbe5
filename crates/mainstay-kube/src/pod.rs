//! Pods: what they belong to, and why they do not run.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod as KubePod};
use kube::api::{Api, ListParams};

use crate::{Cluster, Error, absent_is_none};

const MIRROR: &str = "kubernetes.io/config.mirror";

/// A Kubernetes Pod, as far as it concerns us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Empty while it is not scheduled.
    pub node: String,
    /// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`.
    pub phase: String,
    pub labels: BTreeMap<String, String>,
    /// Kind and name of the controller that would replace it.
    pub controller: Option<(String, String)>,
    /// A static pod: the kubelet runs it from a file.
    pub is_mirror: bool,
    /// Has data that ends with the pod.
    pub has_empty_dir: bool,
    pub is_ready: bool,
    pub restarts: i32,
    pub created: Option<Timestamp>,
    /// Since when it is being deleted.
    pub deleted: Option<Timestamp>,
    pub problem: Option<PodProblem>,
}

/// Why a pod does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodProblem {
    pub kind: PodProblemKind,
    /// `ImagePullBackOff`, `Unschedulable`, as Kubernetes names it.
    pub reason: String,
    pub message: String,
    /// Empty for problems of the whole pod.
    pub container: String,
    pub image: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodProblemKind {
    ImagePull,
    Unschedulable,
    /// A Secret, ConfigMap or setting that the container needs.
    Config,
    Crash,
    Failed,
}

impl Pod {
    /// It ended and will not run again.
    pub fn is_finished(&self) -> bool {
        self.phase == "Succeeded" || self.phase == "Failed"
    }

    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl From<KubePod> for Pod {
    fn from(pod: KubePod) -> Self {
        let problem = problem(&pod);
        let spec = pod.spec.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let metadata = pod.metadata;
        let owners = metadata.owner_references.unwrap_or_default();
        let controller = owners.into_iter().find(|owner| owner.controller == Some(true));
        let ready = status
            .conditions
            .iter()
            .flatten()
            .find(|condition| condition.type_ == "Ready");
        let volumes = spec.volumes.unwrap_or_default();
        Self {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            node: spec.node_name.unwrap_or_default(),
            is_ready: ready.is_some_and(|condition| condition.status == "True"),
            restarts: status
                .container_statuses
                .iter()
                .flatten()
                .map(|container| container.restart_count)
                .sum(),
            phase: status.phase.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            controller: controller.map(|owner| (owner.kind, owner.name)),
            is_mirror: metadata
                .annotations
                .is_some_and(|annotations| annotations.contains_key(MIRROR)),
            has_empty_dir: volumes.iter().any(|volume| volume.empty_dir.is_some()),
            created: metadata.creation_timestamp.map(|time| time.0),
            deleted: metadata.deletion_timestamp.map(|time| time.0),
            problem,
        }
    }
}

fn problem(pod: &KubePod) -> Option<PodProblem> {
    let status = pod.status.as_ref()?;
    let containers = || {
        status
            .init_container_statuses
            .iter()
            .chain(&status.container_statuses)
            .flatten()
    };
    if let Some(problem) = containers().find_map(waiting_problem) {
        return Some(problem);
    }
    let unscheduled = status.conditions.iter().flatten().find(|condition| {
        condition.type_ == "PodScheduled" && condition.status == "False" && condition.reason.as_deref() == Some("Unschedulable")
    });
    let whole = |kind, reason: &str, message: Option<String>| PodProblem {
        kind,
        reason: reason.to_owned(),
        message: message.unwrap_or_default(),
        container: String::new(),
        image: String::new(),
    };
    if let Some(condition) = unscheduled {
        return Some(whole(
            PodProblemKind::Unschedulable,
            "Unschedulable",
            condition.message.clone(),
        ));
    }
    if status.phase.as_deref() != Some("Failed") {
        return None;
    }
    let reason = status.reason.as_deref().unwrap_or("Failed");
    Some(
        containers()
            .find_map(ended_problem)
            .unwrap_or_else(|| whole(PodProblemKind::Failed, reason, status.message.clone())),
    )
}

fn waiting_problem(container: &ContainerStatus) -> Option<PodProblem> {
    use PodProblemKind as Kind;
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let kind = match waiting.reason.as_deref()? {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "InvalidImageName"
        | "ErrImageNeverPull"
        | "ImageInspectError"
        | "RegistryUnavailable" => Kind::ImagePull,
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => Kind::Config,
        "CrashLoopBackOff" => Kind::Crash,
        _ => return None,
    };
    // A container that crashes says why in its last state; the waiting message only names the back-off.
    let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let told = last.and_then(|ended| ended.message.clone()).filter(|_| kind == Kind::Crash);
    Some(PodProblem {
        kind,
        reason: waiting.reason.clone().unwrap_or_default(),
        message: told.or_else(|| waiting.message.clone()).unwrap_or_default(),
        container: container.name.clone(),
        image: container.image.clone(),
    })
}

fn ended_problem(container: &ContainerStatus) -> Option<PodProblem> {
    let ended = container
        .state
        .as_ref()?
        .terminated
        .as_ref()
        .filter(|ended| ended.exit_code != 0)?;
    Some(PodProblem {
        kind: PodProblemKind::Failed,
        reason: ended
            .reason
            .clone()
            .unwrap_or_else(|| format!("exit code {}", ended.exit_code)),
        message: ended.message.clone().unwrap_or_default(),
        container: container.name.clone(),
        image: container.image.clone(),
    })
}

impl Cluster {
    /// The pods of one namespace, or of all, that carry the labels of `selector` (empty: all of them), by name.
    pub async fn pods(&self, namespace: Option<&str>, selector: &str) -> Result<Vec<Pod>, Error> {
        self.pods_where(namespace, &ListParams::default().labels(selector)).await
    }

    /// The pods of all namespaces on a node.
    pub async fn pods_on(&self, node: &str) -> Result<Vec<Pod>, Error> {
        self.pods_where(None, &ListParams::default().fields(&format!("spec.nodeName={node}")))
            .await
    }

    /// `None` if there is no such pod.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, Error> {
        let api: Api<KubePod> = Api::namespaced(self.client.clone(), namespace);
        Ok(absent_is_none(self.within("pod", api.get(name)).await)?.map(Pod::from))
    }

    async fn pods_where(&self, namespace: Option<&str>, params: &ListParams) -> Result<Vec<Pod>, Error> {
        let api: Api<KubePod> = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let mut params = params.clone().limit(500);
        let mut pods = Vec::new();
        loop {
            let page = self.within("pods", api.list(&params)).await?;
            pods.extend(page.items.into_iter().map(Pod::from));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => break,
            }
        }
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        Ok(pods)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Pod {
        let json = json!({"metadata": {"namespace": "web", "name": "front-1"}, "status": status});
        serde_json::from_value::<KubePod>(json).expect("a pod").into()
    }

    fn container(state: Value) -> Value {
        json!({"name": "app", "image": "registry.example/app:1", "imageID": "", "ready": false, "restartCount": 3,
            "state": state, "lastState": {"terminated": {"exitCode": 1, "message": "no such file: config.yaml"}}})
    }

    #[test]
    fn a_pod_says_why_it_does_not_run() {
        use PodProblemKind as Kind;
        let kind = |status: Value| pod(status).problem.map(|problem| (problem.kind, problem.message));
        let waiting = |reason: &str| json!({"phase": "Pending", "containerStatuses": [container(json!({"waiting": {"reason": reason, "message": "told"}}))]});
        assert_eq!(kind(waiting("ImagePullBackOff")), Some((Kind::ImagePull, "told".into())));
        assert_eq!(
            kind(waiting("CreateContainerConfigError")),
            Some((Kind::Config, "told".into()))
        );
        assert_eq!(
            kind(waiting("CrashLoopBackOff")),
            Some((Kind::Crash, "no such file: config.yaml".into()))
        );
        assert_eq!(kind(waiting("ContainerCreating")), None);
        let unscheduled = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available"}]});
        assert_eq!(
            kind(unscheduled),
            Some((Kind::Unschedulable, "0/3 nodes are available".into()))
        );
        let failed = json!({"phase": "Failed", "initContainerStatuses": [container(json!({"terminated": {"exitCode": 2, "message": "boom"}}))]});
        assert_eq!(kind(failed), Some((Kind::Failed, "boom".into())));
        assert_eq!(
            kind(json!({"phase": "Failed", "reason": "Evicted", "message": "disk"})),
            Some((Kind::Failed, "disk".into()))
        );
        assert_eq!(kind(json!({"phase": "Succeeded"})), None);
    }
}
