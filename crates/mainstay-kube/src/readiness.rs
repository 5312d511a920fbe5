//! Whether a workload does what it was made for: pure rules over what the API server tells about an object.

use serde_json::Value;

/// How far an object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// Still on its way; what is missing.
    Waiting(String),
    /// It will not get there by itself.
    Failed(String),
}

impl Readiness {
    pub fn is_ready(&self) -> bool {
        *self == Self::Ready
    }
}

/// Judges an object by its kind. A DaemonSet that wants no pods is ready: callers that know how many nodes there are compare
/// `status.desiredNumberScheduled` themselves.
pub fn readiness(object: &Value) -> Readiness {
    if object
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(|time| !time.is_null())
    {
        return waiting("it is being deleted");
    }
    match object["kind"].as_str().unwrap_or_default() {
        "Deployment" => deployment(object),
        "DaemonSet" => daemon_set(object),
        "StatefulSet" => stateful_set(object),
        "ReplicaSet" => replica_set(object),
        "Job" => job(object),
        "CustomResourceDefinition" => crd(object),
        "PersistentVolumeClaim" => match object["status"]["phase"].as_str() {
            Some("Bound") => Readiness::Ready,
            phase => waiting(&format!("the claim is {}", phase.unwrap_or("not seen yet"))),
        },
        "APIService" => condition_true(object, "Available"),
        "GatewayClass" => condition_true(object, "Accepted"),
        _ => other(object),
    }
}

fn waiting(what: &str) -> Readiness {
    Readiness::Waiting(what.to_owned())
}

fn number(object: &Value, pointer: &str, default: i64) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(default)
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind)
}

fn told(condition: &Value) -> String {
    let text = |key: &str| condition[key].as_str().unwrap_or_default();
    match (text("reason"), text("message")) {
        ("", message) => message.to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

/// The controller has seen the newest version of the object. Without this its counters are those of the last rollout.
fn is_observed(object: &Value) -> bool {
    number(object, "/status/observedGeneration", 0) >= number(object, "/metadata/generation", 1)
}

fn enough(have: i64, want: i64, what: &str) -> Option<Readiness> {
    (have < want).then(|| Readiness::Waiting(format!("{have} of {want} pods are {what}")))
}

fn deployment(object: &Value) -> Readiness {
    if !is_observed(object) {
        return waiting("the controller has not seen the change yet");
    }
    if let Some(progress) = condition(object, "Progressing")
        && progress["reason"] == "ProgressDeadlineExceeded"
    {
        return Readiness::Failed(told(progress));
    }
    if let Some(failure) = condition(object, "ReplicaFailure").filter(|failure| failure["status"] == "True") {
        return Readiness::Failed(told(failure));
    }
    let want = number(object, "/spec/replicas", 1);
    let status = |name: &str| number(object, &format!("/status/{name}"), 0);
    let updated = status("updatedReplicas");
    if let Some(missing) = enough(updated, want, "updated") {
        return missing;
    }
    if status("replicas") > updated {
        return Readiness::Waiting(format!("{} old pods are still there", status("replicas") - updated));
    }
    enough(status("availableReplicas"), want, "available").unwrap_or(Readiness::Ready)
}

fn daemon_set(object: &Value) -> Readiness {
    if object.pointer("/status/observedGeneration").is_none() || !is_observed(object) {
        return waiting("the controller has not seen the change yet");
    }
    let status = |name: &str| number(object, &format!("/status/{name}"), 0);
    let want = status("desiredNumberScheduled");
    // With OnDelete old pods stay until they are deleted by hand.
    let rolls = object.pointer("/spec/updateStrategy/type").and_then(Value::as_str) != Some("OnDelete");
    let updated = enough(status("updatedNumberScheduled"), want, "updated").filter(|_| rolls);
    updated
        .or_else(|| enough(status("numberAvailable"), want, "available"))
        .unwrap_or(Readiness::Ready)
}

fn stateful_set(object: &Value) -> Readiness {
    if number(object, "/status/observedGeneration", 0) == 0 || !is_observed(object) {
        return waiting("the controller has not seen the change yet");
    }
    let want = number(object, "/spec/replicas", 1);
    if let Some(missing) = enough(number(object, "/status/readyReplicas", 0), want, "ready") {
        return missing;
    }
    if object.pointer("/spec/updateStrategy/type").and_then(Value::as_str) == Some("OnDelete") {
        return Readiness::Ready;
    }
    let partition = number(object, "/spec/updateStrategy/rollingUpdate/partition", 0);
    if partition > 0 {
        let updated = number(object, "/status/updatedReplicas", 0);
        return enough(updated, want - partition, "updated").unwrap_or(Readiness::Ready);
    }
    let revision = |name: &str| object.pointer(&format!("/status/{name}")).and_then(Value::as_str);
    if revision("updateRevision") == revision("currentRevision") {
        Readiness::Ready
    } else {
        waiting("pods of the old revision are still there")
    }
}

fn replica_set(object: &Value) -> Readiness {
    if !is_observed(object) {
        return waiting("the controller has not seen the change yet");
    }
    if let Some(failure) = condition(object, "ReplicaFailure").filter(|failure| failure["status"] == "True") {
        return Readiness::Failed(told(failure));
    }
    let want = number(object, "/spec/replicas", 1);
    enough(number(object, "/status/availableReplicas", 0), want, "available").unwrap_or(Readiness::Ready)
}

fn job(object: &Value) -> Readiness {
    if condition(object, "Complete").is_some_and(|condition| condition["status"] == "True") {
        return Readiness::Ready;
    }
    match condition(object, "Failed").filter(|condition| condition["status"] == "True") {
        Some(failure) => Readiness::Failed(told(failure)),
        None if object.pointer("/spec/suspend") == Some(&Value::Bool(true)) => waiting("it is suspended"),
        None => Readiness::Waiting(format!("{} pods are running", number(object, "/status/active", 0))),
    }
}

fn crd(object: &Value) -> Readiness {
    if let Some(names) = condition(object, "NamesAccepted").filter(|names| names["status"] == "False") {
        return Readiness::Failed(told(names));
    }
    match condition(object, "Established") {
        Some(established) if established["status"] == "True" => Readiness::Ready,
        Some(established) if established["reason"] != "Installing" => Readiness::Failed(told(established)),
        _ => waiting("it is not established yet"),
    }
}

fn condition_true(object: &Value, kind: &str) -> Readiness {
    match condition(object, kind) {
        Some(condition) if condition["status"] == "True" => Readiness::Ready,
        Some(condition) => Readiness::Waiting(told(condition)),
        None => Readiness::Waiting(format!("the condition {kind} is not reported yet")),
    }
}

/// Kinds without rules of their own: what their controller says, if it says anything.
fn other(object: &Value) -> Readiness {
    let generation = number(object, "/metadata/generation", 0);
    if object.pointer("/status/observedGeneration").is_some() && number(object, "/status/observedGeneration", 0) < generation {
        return waiting("the controller has not seen the change yet");
    }
    let is_true = |kind: &str| condition(object, kind).filter(|condition| condition["status"] == "True");
    if let Some(stalled) = is_true("Stalled") {
        return Readiness::Failed(told(stalled));
    }
    if let Some(reconciling) = is_true("Reconciling") {
        return Readiness::Waiting(told(reconciling));
    }
    match condition(object, "Ready") {
        Some(ready) if ready["status"] != "True" => Readiness::Waiting(told(ready)),
        _ => Readiness::Ready,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(kind: &str, spec: Value, status: Value) -> Readiness {
        readiness(&json!({"kind": kind, "metadata": {"generation": 2}, "spec": spec, "status": status}))
    }

    fn is_waiting(readiness: &Readiness) -> bool {
        matches!(readiness, Readiness::Waiting(_))
    }

    #[test]
    fn counters_of_the_last_rollout_do_not_count() {
        let old = json!({"observedGeneration": 1, "replicas": 3, "updatedReplicas": 3, "availableReplicas": 3, "readyReplicas": 3,
            "desiredNumberScheduled": 3, "updatedNumberScheduled": 3, "numberAvailable": 3});
        for kind in ["Deployment", "DaemonSet", "StatefulSet", "ReplicaSet"] {
            assert!(is_waiting(&object(kind, json!({"replicas": 3}), old.clone())), "{kind}");
            let mut new = old.clone();
            new["observedGeneration"] = 2.into();
            assert!(object(kind, json!({"replicas": 3}), new).is_ready(), "{kind}");
        }
    }

    #[test]
    fn a_deployment_waits_for_new_pods_and_the_end_of_old_ones() {
        let state = |replicas: i64, updated: i64, available: i64| {
            object(
                "Deployment",
                json!({"replicas": 3}),
                json!({"observedGeneration": 2, "replicas": replicas, "updatedReplicas": updated,
                "availableReplicas": available}),
            )
        };
        assert_eq!(state(3, 1, 3), Readiness::Waiting("1 of 3 pods are updated".into()));
        assert_eq!(state(4, 3, 3), Readiness::Waiting("1 old pods are still there".into()));
        assert_eq!(state(3, 3, 2), Readiness::Waiting("2 of 3 pods are available".into()));
        assert!(state(3, 3, 3).is_ready());
        assert!(object("Deployment", json!({"replicas": 0}), json!({"observedGeneration": 2})).is_ready());
        let failed = object(
            "Deployment",
            json!({}),
            json!({"observedGeneration": 2,
            "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "violates PodSecurity"}]}),
        );
        assert_eq!(failed, Readiness::Failed("FailedCreate: violates PodSecurity".into()));
        let late = object(
            "Deployment",
            json!({}),
            json!({"observedGeneration": 2, "conditions": [{"type": "Progressing", "status": "False",
            "reason": "ProgressDeadlineExceeded"}]}),
        );
        assert_eq!(late, Readiness::Failed("ProgressDeadlineExceeded".into()));
    }

    #[test]
    fn a_daemon_set_that_was_never_looked_at_is_not_ready() {
        assert!(is_waiting(&readiness(
            &json!({"kind": "DaemonSet", "metadata": {"generation": 1}, "status": {}})
        )));
        let status =
            json!({"observedGeneration": 2, "desiredNumberScheduled": 3, "updatedNumberScheduled": 1, "numberAvailable": 3});
        assert!(is_waiting(&object("DaemonSet", json!({}), status.clone())));
        assert!(object("DaemonSet", json!({"updateStrategy": {"type": "OnDelete"}}), status).is_ready());
    }

    #[test]
    fn a_stateful_set_is_ready_with_its_last_revision() {
        let state = |spec: Value, current: &str| {
            object(
                "StatefulSet",
                spec,
                json!({"observedGeneration": 2, "readyReplicas": 2, "updatedReplicas": 1, "currentRevision": current,
                "updateRevision": "b"}),
            )
        };
        assert!(is_waiting(&state(json!({"replicas": 2}), "a")));
        assert!(state(json!({"replicas": 2}), "b").is_ready());
        assert!(
            state(
                json!({"replicas": 2, "updateStrategy": {"rollingUpdate": {"partition": 1}}}),
                "a"
            )
            .is_ready()
        );
        assert!(is_waiting(&state(json!({"replicas": 3}), "b")));
    }

    #[test]
    fn a_job_is_ready_only_when_it_is_complete() {
        let with = |kind: &str| {
            object(
                "Job",
                json!({}),
                json!({"conditions": [{"type": kind, "status": "True", "reason": "BackoffLimitExceeded"}]}),
            )
        };
        assert!(with("Complete").is_ready());
        assert_eq!(with("Failed"), Readiness::Failed("BackoffLimitExceeded".into()));
        assert_eq!(
            object("Job", json!({}), json!({"active": 1})),
            Readiness::Waiting("1 pods are running".into())
        );
        assert_eq!(
            object("Job", json!({"suspend": true}), json!({})),
            Readiness::Waiting("it is suspended".into())
        );
    }

    #[test]
    fn crds_and_custom_resources_follow_their_conditions() {
        let crd = |kind: &str, status: &str, reason: &str| {
            object(
                "CustomResourceDefinition",
                json!({}),
                json!({"conditions": [{"type": kind, "status": status, "reason": reason}]}),
            )
        };
        assert!(crd("Established", "True", "InitialNamesAccepted").is_ready());
        assert!(is_waiting(&crd("Established", "False", "Installing")));
        assert!(matches!(
            crd("NamesAccepted", "False", "ListKindConflict"),
            Readiness::Failed(_)
        ));
        let flux = |conditions: Value| {
            object(
                "FluxInstance",
                json!({}),
                json!({"observedGeneration": 2, "conditions": conditions}),
            )
        };
        assert!(is_waiting(&flux(
            json!([{"type": "Ready", "status": "False", "reason": "Progressing"}])
        )));
        assert!(matches!(
            flux(json!([{"type": "Stalled", "status": "True"}])),
            Readiness::Failed(_)
        ));
        assert!(flux(json!([{"type": "Ready", "status": "True"}])).is_ready());
        assert!(object("ConfigMap", json!({}), json!({})).is_ready());
        let going = json!({"kind": "ConfigMap", "metadata": {"deletionTimestamp": "2026-11-15T00:00:00Z"}});
        assert!(is_waiting(&readiness(&going)));
    }
}
