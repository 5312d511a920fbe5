//! Deployments, ReplicaSets, DaemonSets and StatefulSets.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::kinds;
use super::schedule::fits;
use super::{Round, condition, controller_of, is_deleting, key_of, set_condition, text};

const HASH: &str = "pod-template-hash";

pub(super) fn run(round: &mut Round<'_>) {
    for deployment in round.list(&kinds::DEPLOYMENTS) {
        if !is_deleting(&deployment) {
            self::deployment(round, &deployment);
        }
    }
    for set in round.list(&kinds::REPLICA_SETS) {
        if !is_deleting(&set) {
            replica_set(round, &set);
        }
    }
    for set in round.list(&kinds::STATEFUL_SETS) {
        if !is_deleting(&set) && set["spec"]["template"].is_object() {
            stateful_set(round, &set);
        }
    }
    if !round.hooks.is_rancher {
        for set in round.list(&kinds::DAEMON_SETS) {
            if !is_deleting(&set) && set["spec"]["template"].is_object() {
                daemon_set(round, &set);
            }
        }
    }
}

fn hash_of(template: &Value) -> String {
    hex::encode(&<sha2::Sha256 as sha2::Digest>::digest(template.to_string())[..5])
}

fn is_available(pod: &Value) -> bool {
    condition(pod, "Ready") && !is_deleting(pod)
}

fn is_finished(pod: &Value) -> bool {
    matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed")
}

fn count<'a>(pods: impl Iterator<Item = &'a Arc<Value>>) -> u64 {
    u64::try_from(pods.count()).unwrap_or_default()
}

fn generation(object: &Value) -> Value {
    object["metadata"]["generation"].as_u64().unwrap_or(1).into()
}

fn replicas(object: &Value) -> u64 {
    object["spec"]["replicas"].as_u64().unwrap_or(1)
}

/// A rolling update: the new ReplicaSet is filled, and the old ones are emptied as the new pods become available.
fn deployment(round: &mut Round<'_>, deployment: &Value) {
    if !deployment["spec"]["template"]["spec"]["containers"].is_array() {
        bare_deployment(round, deployment);
        return;
    }
    let (namespace, name) = (
        text(&deployment["metadata"]["namespace"]),
        text(&deployment["metadata"]["name"]),
    );
    let hash = hash_of(&deployment["spec"]["template"]);
    let own: Vec<Arc<Value>> = round
        .store
        .list(&kinds::REPLICA_SETS, Some(namespace))
        .1
        .into_iter()
        .filter(|set| controller_of(set) == Some(&deployment["metadata"]["uid"]))
        .collect();
    let current = format!("{name}-{hash}");
    let wanted = replicas(deployment);
    let Some(new) = own.iter().find(|set| set["metadata"]["name"] == current) else {
        let mut template = deployment["spec"]["template"].clone();
        template["metadata"]["labels"][HASH] = json!(hash);
        let mut selector = deployment["spec"]["selector"].clone();
        selector["matchLabels"][HASH] = json!(hash);
        let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": deployment["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true}]);
        round.create(&kinds::REPLICA_SETS, json!({
            "metadata": {"name": current, "namespace": namespace, "labels": template["metadata"]["labels"], "ownerReferences": owner, "generation": 1},
            "spec": {"replicas": wanted, "selector": selector, "template": template}, "status": {"replicas": 0},
        }));
        return;
    };
    let available = new["status"]["availableReplicas"].as_u64().unwrap_or_default();
    if replicas(new) != wanted {
        round.change(new, &kinds::REPLICA_SETS, |set| set["spec"]["replicas"] = json!(wanted));
    }
    for old in own
        .iter()
        .filter(|set| set["metadata"]["name"] != current && replicas(set) > 0)
    {
        let kept = wanted.saturating_sub(available).min(replicas(old));
        round.change(old, &kinds::REPLICA_SETS, |set| set["spec"]["replicas"] = json!(kept));
    }
    deployment_status(round, deployment, &own, new);
}

fn deployment_status(round: &Round<'_>, deployment: &Value, own: &[Arc<Value>], new: &Value) {
    let total = |field: &str| own.iter().filter_map(|set| set["status"][field].as_u64()).sum::<u64>();
    let updated = new["status"]["replicas"].as_u64().unwrap_or_default();
    let (available, wanted) = (total("availableReplicas"), replicas(deployment));
    let failure = new["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|one| one["type"] == "ReplicaFailure")
        .cloned();
    let complete = updated >= wanted && available >= wanted && total("replicas") == updated;
    let (now, observed) = (round.now.clone(), generation(deployment));
    round.change(deployment, &kinds::DEPLOYMENTS, |object| {
        let conditions = object["status"]["conditions"].clone();
        object["status"] = json!({
            "observedGeneration": observed, "replicas": total("replicas"), "updatedReplicas": updated, "readyReplicas": total("readyReplicas"), "availableReplicas": available,
            "unavailableReplicas": wanted.saturating_sub(available), "conditions": conditions,
        });
        let (word, reason, message) = if available >= wanted {
            ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        } else {
            ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        };
        set_condition(object, "Available", word, reason, message, &now);
        let reason = if complete { "NewReplicaSetAvailable" } else { "ReplicaSetUpdated" };
        set_condition(object, "Progressing", "True", reason, "", &now);
        match (&failure, object["status"]["conditions"].as_array_mut()) {
            (Some(failure), _) => set_condition(object, "ReplicaFailure", "True", text(&failure["reason"]), text(&failure["message"]), &now),
            (None, Some(list)) => list.retain(|one| one["type"] != "ReplicaFailure"),
            (None, None) => {}
        }
    });
}

/// CoreDNS, which bootstrap manifests bring without its template: once it ran, a lost pod is replaced.
fn bare_deployment(round: &mut Round<'_>, deployment: &Value) {
    let name = text(&deployment["metadata"]["name"]).to_owned();
    let wanted = usize::try_from(replicas(deployment)).unwrap_or(1);
    let pods = round.pods_of(&deployment["metadata"]["uid"]);
    let alive: Vec<&Arc<Value>> = pods.iter().filter(|pod| !is_deleting(pod) && !is_finished(pod)).collect();
    let key = format!("ran {}", text(&deployment["metadata"]["uid"]));
    if !alive.is_empty() {
        round.state.since.entry(key.clone()).or_insert(round.instant);
    }
    if !round.state.since.contains_key(&key) {
        return;
    }
    for extra in alive.iter().skip(wanted) {
        round.delete_pod(extra);
    }
    let tolerations = json!([{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}]);
    let template = json!({
        "metadata": {"labels": deployment["metadata"]["labels"]},
        "spec": {"containers": [{"name": name, "image": format!("registry.k8s.io/{name}")}], "tolerations": tolerations},
    });
    for _ in alive.len()..wanted {
        let pod = format!("{name}-{}", round.suffix());
        let _ = round.create_pod((&kinds::DEPLOYMENTS, deployment), &pod, &template);
    }
    let ready = count(alive.iter().copied().filter(|pod| is_available(pod)));
    let status = json!({
        "observedGeneration": generation(deployment), "availableReplicas": ready, "readyReplicas": ready, "replicas": wanted,
        "updatedReplicas": wanted,
    });
    round.set_status(deployment, &kinds::DEPLOYMENTS, &status);
}

/// A failed create is tried again after this time.
const CREATE_AGAIN: Duration = Duration::from_secs(10);

fn replica_set(round: &mut Round<'_>, set: &Value) {
    let name = text(&set["metadata"]["name"]).to_owned();
    let pods: Vec<Arc<Value>> = round
        .pods_of(&set["metadata"]["uid"])
        .into_iter()
        .filter(|pod| !is_finished(pod))
        .collect();
    let alive: Vec<&Arc<Value>> = pods.iter().filter(|pod| !is_deleting(pod)).collect();
    let wanted = usize::try_from(replicas(set)).unwrap_or_default();
    let mut failure = None;
    for _ in alive.len()..wanted {
        let pod = format!("{name}-{}", round.suffix());
        if let Err(refusal) = round.create_pod((&kinds::REPLICA_SETS, set), &pod, &set["spec"]["template"]) {
            failure = Some(refusal);
            round.wake(round.instant + CREATE_AGAIN);
            break;
        }
    }
    // Pods that do not run yet go first.
    let mut surplus: Vec<&&Arc<Value>> = alive.iter().collect();
    surplus.sort_by_key(|pod| (is_available(pod), text(&pod["metadata"]["name"]).to_owned()));
    for pod in surplus.iter().take(alive.len().saturating_sub(wanted)) {
        round.delete_pod(pod);
    }
    let ready = count(alive.iter().copied().filter(|pod| is_available(pod)));
    let (now, observed) = (round.now.clone(), generation(set));
    round.change(set, &kinds::REPLICA_SETS, |set| {
        let total = alive.len();
        set["status"] = json!({"observedGeneration": observed, "replicas": total, "fullyLabeledReplicas": total, "readyReplicas": ready, "availableReplicas": ready});
        if let Some(refusal) = failure {
            set_condition(set, "ReplicaFailure", "True", "FailedCreate", &refusal, &now);
        }
    });
}

/// One pod per node that it may run on, named after the node. Pods of an old template are replaced one by one.
fn daemon_set(round: &mut Round<'_>, set: &Value) {
    let name = text(&set["metadata"]["name"]);
    let hash = hash_of(&set["spec"]["template"]);
    let mut template = set["spec"]["template"].clone();
    template["metadata"]["labels"]["controller-revision-hash"] = json!(hash);
    let pods = round.pods_of(&set["metadata"]["uid"]);
    let (mut desired, mut updated, mut ready, mut current) = (0, 0, 0, 0);
    let mut old: Option<&Arc<Value>> = None;
    for node in round.list(&kinds::NODES) {
        let node_name = text(&node["metadata"]["name"]);
        let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == node_name);
        if !fits(&template["spec"], &node) {
            if let Some(pod) = pod.filter(|pod| !is_deleting(pod)) {
                round.delete_pod(pod);
            }
            continue;
        }
        desired += 1;
        let Some(pod) = pod else {
            let mut placed = template.clone();
            placed["spec"]["nodeName"] = json!(node_name);
            // The controller tolerates what says that a node is not ready.
            push_tolerations(&mut placed["spec"]);
            if round
                .create_pod((&kinds::DAEMON_SETS, set), &format!("{name}-{node_name}"), &placed)
                .is_err()
            {
                round.wake(round.instant + CREATE_AGAIN);
            }
            continue;
        };
        if is_finished(pod) {
            let _ = round.store.delete(&key_of(pod, &kinds::PODS));
        }
        current += 1;
        ready += u64::from(is_available(pod));
        if pod["metadata"]["labels"]["controller-revision-hash"] == hash {
            updated += 1;
        } else if !is_deleting(pod) {
            old = Some(pod);
        }
    }
    // One pod at a time: the next goes when all others are available.
    if let Some(pod) = old
        && set["spec"]["updateStrategy"]["type"] != "OnDelete"
        && (ready >= desired || !is_available(pod))
    {
        round.delete_pod(pod);
    }
    let status = json!({
        "observedGeneration": generation(set), "currentNumberScheduled": current, "desiredNumberScheduled": desired, "numberAvailable": ready, "numberMisscheduled": 0,
        "numberReady": ready, "updatedNumberScheduled": updated, "numberUnavailable": desired - ready,
    });
    round.set_status(set, &kinds::DAEMON_SETS, &status);
}

fn push_tolerations(spec: &mut Value) {
    if !spec["tolerations"].is_array() {
        spec["tolerations"] = json!([]);
    }
    let Some(list) = spec["tolerations"].as_array_mut() else {
        return;
    };
    for (key, effect) in [
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("unschedulable", "NoSchedule"),
    ] {
        list.push(json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": effect}));
    }
}

/// Pods `name-0`, `name-1`, … in order; the next begins when the one before is ready.
fn stateful_set(round: &mut Round<'_>, set: &Value) {
    let (namespace, name) = (
        text(&set["metadata"]["namespace"]).to_owned(),
        text(&set["metadata"]["name"]).to_owned(),
    );
    let wanted = replicas(set);
    let revision = format!("{name}-{}", hash_of(&set["spec"]["template"]));
    let parallel = set["spec"]["podManagementPolicy"] == "Parallel";
    let (mut present, mut ready, mut updated) = (0, 0, 0);
    for ordinal in 0..wanted {
        let Some(pod) = round.get(&kinds::PODS, &namespace, &format!("{name}-{ordinal}")) else {
            let mut template = set["spec"]["template"].clone();
            template["metadata"]["labels"]["controller-revision-hash"] = json!(revision);
            claims(round, set, ordinal, &mut template);
            let _ = round.create_pod((&kinds::STATEFUL_SETS, set), &format!("{name}-{ordinal}"), &template);
            if parallel {
                continue;
            }
            break;
        };
        present += 1;
        ready += u64::from(is_available(&pod));
        updated += u64::from(pod["metadata"]["labels"]["controller-revision-hash"] == revision);
        if is_finished(&pod) {
            let _ = round.store.delete(&key_of(&pod, &kinds::PODS));
        }
        if !is_available(&pod) && !parallel {
            break;
        }
    }
    let pods = round.pods_of(&set["metadata"]["uid"]);
    let stale = pods
        .iter()
        .rev()
        .find(|pod| pod["metadata"]["labels"]["controller-revision-hash"] != revision && !is_deleting(pod));
    if ready == wanted
        && let Some(pod) = stale
    {
        round.delete_pod(pod);
    }
    for pod in &pods {
        let ordinal = text(&pod["metadata"]["name"])
            .rsplit('-')
            .next()
            .and_then(|text| text.parse::<u64>().ok());
        if ordinal.is_some_and(|ordinal| ordinal >= wanted) {
            round.delete_pod(pod);
        }
    }
    let current = if updated == wanted {
        json!(revision)
    } else {
        set["status"]["currentRevision"].clone()
    };
    let status = json!({
        "observedGeneration": generation(set), "replicas": present, "readyReplicas": ready, "availableReplicas": ready, "currentReplicas": present,
        "updatedReplicas": updated, "updateRevision": revision, "currentRevision": current,
    });
    round.set_status(set, &kinds::STATEFUL_SETS, &status);
}

/// The claims of one replica; they outlive its pod.
fn claims(round: &Round<'_>, set: &Value, ordinal: u64, template: &mut Value) {
    for claim in set["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten() {
        let volume = text(&claim["metadata"]["name"]);
        let name = format!("{volume}-{}-{ordinal}", text(&set["metadata"]["name"]));
        let object = json!({"metadata": {"name": name, "namespace": set["metadata"]["namespace"]}, "spec": claim["spec"], "status": {"phase": "Pending"}});
        round.create(&kinds::PERSISTENT_VOLUME_CLAIMS, object);
        if !template["spec"]["volumes"].is_array() {
            template["spec"]["volumes"] = json!([]);
        }
        if let Some(list) = template["spec"]["volumes"].as_array_mut() {
            list.push(json!({"name": volume, "persistentVolumeClaim": {"claimName": name}}));
        }
    }
}
