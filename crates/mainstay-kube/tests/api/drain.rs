//! Evictions and their refusals, as a real API server words them.

use std::time::Duration;

use axum::response::Response;
use mainstay_kube::{Class, DrainPlan, Eviction, Pod, budgets_of};
use serde_json::{Value, json};

use crate::scripted::{Call, ok, refused, run};

const BLOCKED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
const TWO: &str = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";

fn pod(name: &str) -> Value {
    json!({"metadata": {"namespace": "web", "name": name, "uid": format!("uid-{name}"), "labels": {"app": "front"},
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "front", "uid": "1", "controller": true}]},
        "spec": {"containers": [], "nodeName": "w1"}, "status": {"phase": "Running"}})
}

fn list(items: Value) -> Response {
    ok(json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}))
}

fn server(call: &Call) -> Response {
    let name = call.path.trim_end_matches("/eviction").rsplit('/').next().unwrap();
    if call.path.ends_with("/eviction") {
        return match name {
            "free" => ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201})),
            "early" => refused(429, "TooManyRequests", BLOCKED, json!({"retryAfterSeconds": 10})),
            "blocked" => {
                let cause = json!({"reason": "DisruptionBudget", "message": "The disruption budget front needs 2 healthy pods and has 2 currently"});
                refused(429, "TooManyRequests", BLOCKED, json!({"causes": [cause]}))
            }
            "two" => refused(500, "", TWO, json!(null)),
            "ending" => refused(
                403,
                "Forbidden",
                "forbidden",
                json!({"causes": [{"reason": "NamespaceTerminating", "message": "x"}]}),
            ),
            "denied" => refused(403, "Forbidden", "no", json!({})),
            "replaced" | "racing" => refused(409, "Conflict", "the UID in the precondition differs", json!({})),
            "broken" => refused(500, "InternalError", "etcdserver: no leader", json!({})),
            _ => refused(404, "NotFound", "pods not found", json!({})),
        };
    }
    match (call.path.as_str(), call.query.as_str()) {
        ("/api/v1/pods", query) if query.contains("continue=next") => list(json!([pod("second")])),
        ("/api/v1/pods", query) => {
            assert!(query.contains("fieldSelector=spec.nodeName%3Dw1"), "{query}");
            ok(
                json!({"kind": "List", "apiVersion": "v1", "metadata": {"continue": "next"}, "items": [pod("third"), pod("first")]}),
            )
        }
        ("/api/v1/namespaces/web/pods/replaced", _) => {
            let mut other = pod("replaced");
            other["metadata"]["uid"] = "another".into();
            ok(other)
        }
        ("/api/v1/namespaces/web/pods/racing", _) => ok(pod("racing")),
        ("/apis/apps/v1/daemonsets", _) => list(json!([{"metadata": {"namespace": "web", "name": "agent"}}])),
        ("/apis/policy/v1/poddisruptionbudgets", _) => list(json!([
            {"metadata": {"namespace": "web", "name": "front"}, "spec": {"selector": {"matchLabels": {"app": "front"}}},
             "status": {"disruptionsAllowed": 0, "currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 2}},
            {"metadata": {"namespace": "shop", "name": "front"}, "spec": {"selector": {"matchLabels": {"app": "front"}}},
             "status": {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}}])),
        ("/apis/storage.k8s.io/v1/volumeattachments", _) => list(json!([
            {"metadata": {"name": "one", "deletionTimestamp": "2026-11-15T00:00:00Z"}, "spec": {"attacher": "csi.proxmox.sinextra.dev", "nodeName": "w1",
                "source": {"persistentVolumeName": "pvc-1"}}, "status": {"attached": true}},
            {"metadata": {"name": "two"}, "spec": {"attacher": "csi", "nodeName": "w2", "source": {}}, "status": {"attached": true}}])),
        _ => refused(404, "NotFound", &call.path, json!({})),
    }
}

fn seen(name: &str) -> Pod {
    serde_json::from_value::<k8s_openapi::api::core::v1::Pod>(pod(name))
        .unwrap()
        .into()
}

#[test]
fn every_answer_to_an_eviction_is_told_apart() {
    run(server, |cluster, calls| async move {
        let evict = async |name: &str| cluster.evict(&seen(name)).await;
        assert_eq!(evict("free").await.unwrap(), Eviction::Accepted);
        let blocked = |retry_after| Eviction::Blocked {
            message: BLOCKED.into(),
            retry_after,
        };
        assert_eq!(evict("early").await.unwrap(), blocked(Some(Duration::from_secs(10))));
        assert_eq!(evict("blocked").await.unwrap(), blocked(None));
        assert_eq!(evict("two").await.unwrap(), Eviction::TwoBudgets { message: TWO.into() });
        assert_eq!(evict("ending").await.unwrap(), Eviction::NamespaceTerminating);
        assert_eq!(evict("missing").await.unwrap(), Eviction::Gone);
        assert_eq!(evict("replaced").await.unwrap(), Eviction::Gone, "another pod has its name");
        assert!(
            matches!(evict("racing").await.unwrap(), Eviction::Blocked { .. }),
            "the same pod, changed meanwhile"
        );
        assert_eq!(evict("denied").await.unwrap_err().class(), Class::Denied);
        assert_eq!(evict("broken").await.unwrap_err().class(), Class::Unavailable);
        let first = &calls.all()[0];
        assert_eq!(
            (first.method.as_str(), first.path.as_str()),
            ("POST", "/api/v1/namespaces/web/pods/free/eviction")
        );
        assert_eq!(
            first.body,
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": "web", "name": "free"},
                "deleteOptions": {"preconditions": {"uid": "uid-free"}}})
        );
    });
}

#[test]
fn what_blocks_a_drain_is_named() {
    run(server, |cluster, _| async move {
        let pods = cluster.pods_on("w1").await.unwrap();
        assert_eq!(
            pods.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>(),
            ["first", "second", "third"],
            "all pages, in order"
        );
        let plan = DrainPlan::new(pods, &cluster.daemon_sets().await.unwrap());
        assert_eq!((plan.evict.len(), plan.stay.len(), plan.unmanaged.len()), (3, 0, 0));
        let budgets = cluster.disruption_budgets().await.unwrap();
        let names: Vec<_> = budgets_of(&plan.evict[0], &budgets)
            .iter()
            .map(|budget| budget.full_name())
            .collect();
        assert_eq!(names, ["web/front"]);
        let volumes = cluster.volume_attachments("w1").await.unwrap();
        assert_eq!(volumes.len(), 1);
        assert_eq!(
            (volumes[0].persistent_volume.as_str(), volumes[0].is_deleting),
            ("pvc-1", true)
        );
        assert!(cluster.is_pod_gone(&seen("missing")).await.unwrap() && !cluster.is_pod_gone(&seen("racing")).await.unwrap());
    });
}
