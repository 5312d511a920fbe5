//! Pods, controllers and the eviction subresource of a simulated cluster, by raw HTTP.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::lab::kube::{Kube, ready};
use crate::lab::{Lab, Vm, in_world, until};

/// One control plane that takes pods.
async fn cluster(lab: &Lab) -> (Vm, Kube) {
    let vm = lab.first_control_plane("cp-1", "10.10.0.11").await;
    let kube = Kube::admin(lab, "10.10.0.11");
    until(|| async {
        kube.try_call("GET", "/api/v1/nodes/cp-1", &[], "")
            .await
            .is_some_and(|(_, node)| ready(&node))
    })
    .await;
    let merge = [("content-type", "application/merge-patch+json")];
    kube.call("PATCH", "/api/v1/nodes/cp-1", &merge, r#"{"spec":{"taints":null}}"#)
        .await;
    (vm, kube)
}

async fn post(kube: &Kube, path: &str, object: &Value) -> (u16, Value) {
    kube.call("POST", path, &[("content-type", "application/json")], &object.to_string())
        .await
}

fn deployment(name: &str, replicas: u64) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": format!("example/{name}:1")}]}}}})
}

fn budget(name: &str, app: &str, available: u64) -> Value {
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": {"minAvailable": available, "selector": {"matchLabels": {"app": app}}}})
}

async fn pods(kube: &Kube, app: &str) -> Vec<Value> {
    let (_, list) = kube
        .get(&format!("/api/v1/namespaces/default/pods?labelSelector=app={app}"))
        .await;
    list["items"].as_array().cloned().unwrap_or_default()
}

async fn rolled_out(kube: &Kube, name: &str, replicas: u64) {
    until(|| async {
        let (_, object) = kube
            .get(&format!("/apis/apps/v1/namespaces/default/deployments/{name}"))
            .await;
        object["status"]["availableReplicas"] == replicas
    })
    .await;
}

fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap()
}

async fn evict(kube: &Kube, pod: &Value) -> (u16, Value) {
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name(pod), "namespace": "default"}, "deleteOptions": {"preconditions": {"uid": pod["metadata"]["uid"]}}});
    post(
        kube,
        &format!("/api/v1/namespaces/default/pods/{}/eviction", name(pod)),
        &body,
    )
    .await
}

#[test]
fn a_deployment_becomes_pods_and_an_evicted_pod_is_replaced() {
    in_world(|lab: Arc<Lab>| async move {
        let (_vm, kube) = cluster(&lab).await;
        assert_eq!(
            post(&kube, "/apis/apps/v1/namespaces/default/deployments", &deployment("web", 2))
                .await
                .0,
            201
        );
        rolled_out(&kube, "web", 2).await;
        let before = pods(&kube, "web").await;
        assert_eq!(before.len(), 2);
        assert_eq!(before[0]["metadata"]["ownerReferences"][0]["kind"], "ReplicaSet");
        assert_eq!(evict(&kube, &before[0]).await.0, 201);
        until(|| async { pods(&kube, "web").await.iter().all(|pod| name(pod) != name(&before[0])) }).await;
        rolled_out(&kube, "web", 2).await;
        assert_eq!(evict(&kube, &before[0]).await.0, 404, "the pod is gone");
    });
}

#[test]
fn evictions_are_refused_as_a_real_api_server_refuses_them() {
    in_world(|lab: Arc<Lab>| async move {
        let (_vm, kube) = cluster(&lab).await;
        post(&kube, "/apis/apps/v1/namespaces/default/deployments", &deployment("web", 2)).await;
        rolled_out(&kube, "web", 2).await;
        let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
        assert_eq!(post(&kube, budgets, &budget("strict", "web", 2)).await.0, 201);
        let all = pods(&kube, "web").await;
        let (code, early) = evict(&kube, &all[0]).await;
        assert_eq!(
            (code, &early["details"]["retryAfterSeconds"]),
            (429, &json!(10)),
            "not counted yet: {early}"
        );
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (code, exhausted) = evict(&kube, &all[0]).await;
        assert_eq!((code, exhausted["reason"].as_str()), (429, Some("TooManyRequests")));
        assert!(exhausted["details"]["retryAfterSeconds"].is_null(), "{exhausted}");
        assert_eq!(exhausted["details"]["causes"][0]["reason"], "DisruptionBudget");
        assert_eq!(
            exhausted["message"],
            "Cannot evict pod as it would violate the pod's disruption budget."
        );
        post(&kube, budgets, &budget("second", "web", 1)).await;
        let (code, two) = evict(&kube, &all[0]).await;
        assert_eq!((code, two.get("reason")), (500, None), "{two}");
        for name in ["strict", "second"] {
            kube.call("DELETE", &format!("{budgets}/{name}"), &[], "").await;
        }
        let mut other = all[0].clone();
        other["metadata"]["uid"] = json!("another");
        assert_eq!(evict(&kube, &other).await.0, 409, "the uid is a precondition");
        assert_eq!(evict(&kube, &all[0]).await.0, 201);
    });
}

#[test]
fn a_budget_lets_one_pod_go_at_a_time() {
    in_world(|lab: Arc<Lab>| async move {
        let (_vm, kube) = cluster(&lab).await;
        post(&kube, "/apis/apps/v1/namespaces/default/deployments", &deployment("web", 3)).await;
        rolled_out(&kube, "web", 3).await;
        post(
            &kube,
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            &budget("one", "web", 2),
        )
        .await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let all = pods(&kube, "web").await;
        assert_eq!(evict(&kube, &all[0]).await.0, 201);
        assert_eq!(evict(&kube, &all[1]).await.0, 429, "the budget is used up");
        rolled_out(&kube, "web", 3).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(evict(&kube, &all[1]).await.0, 201);
    });
}

#[test]
fn a_namespace_that_ends_takes_its_objects_and_refuses_new_ones() {
    in_world(|lab: Arc<Lab>| async move {
        let (_vm, kube) = cluster(&lab).await;
        post(&kube, "/api/v1/namespaces", &json!({"metadata": {"name": "going"}})).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "example/a"}]}});
        assert_eq!(post(&kube, "/api/v1/namespaces/going/pods", &pod).await.0, 201);
        assert_eq!(kube.call("DELETE", "/api/v1/namespaces/going", &[], "").await.0, 200);
        let (code, refusal) = post(
            &kube,
            "/api/v1/namespaces/going/configmaps",
            &json!({"metadata": {"name": "b"}}),
        )
        .await;
        assert_eq!(
            (code, &refusal["details"]["causes"][0]["reason"]),
            (403, &json!("NamespaceTerminating"))
        );
        until(|| async { kube.get("/api/v1/namespaces/going").await.0 == 404 }).await;
    });
}

#[test]
fn pods_that_break_the_level_of_their_namespace_are_refused_and_reported_on_the_replica_set() {
    in_world(|lab: Arc<Lab>| async move {
        let (_vm, kube) = cluster(&lab).await;
        let mut host = deployment("host", 1);
        host["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
        post(&kube, "/apis/apps/v1/namespaces/default/deployments", &host).await;
        until(|| async {
            let (_, sets) = kube.get("/apis/apps/v1/namespaces/default/replicasets").await;
            let message = sets["items"][0]["status"]["conditions"][0]["message"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            message.contains("violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)")
        })
        .await;
        let (_, events) = kube.get("/api/v1/namespaces/default/events").await;
        assert!(
            events["items"]
                .as_array()
                .unwrap()
                .iter()
                .any(|event| event["reason"] == "FailedCreate")
        );
        let (code, _) = post(
            &kube,
            "/api/v1/namespaces/default/pods",
            &json!({"metadata": {"name": "x"}, "spec": {"hostNetwork": true, "containers": []}}),
        )
        .await;
        assert_eq!(code, 403);
        let (code, _) = post(
            &kube,
            "/api/v1/namespaces/kube-system/pods",
            &json!({"metadata": {"name": "x"}, "spec": {"hostNetwork": true, "containers": []}}),
        )
        .await;
        assert_eq!(code, 201, "kube-system is exempt");
    });
}

#[test]
fn an_image_that_cannot_be_pulled_and_a_pod_without_a_place_say_so_in_their_status() {
    in_world(|lab: Arc<Lab>| async move {
        let (_vm, kube) = cluster(&lab).await;
        lab.world.set_chart_faults(mainstay_sim::ChartFaults {
            unpullable: vec!["example/broken".into()],
            ..Default::default()
        });
        post(
            &kube,
            "/apis/apps/v1/namespaces/default/deployments",
            &deployment("broken", 1),
        )
        .await;
        let reason = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].clone();
        until(|| async {
            pods(&kube, "broken")
                .await
                .first()
                .is_some_and(|pod| reason(pod) == "ErrImagePull")
        })
        .await;
        until(|| async {
            pods(&kube, "broken")
                .await
                .first()
                .is_some_and(|pod| reason(pod) == "ImagePullBackOff")
        })
        .await;
        lab.world.set_chart_faults(mainstay_sim::ChartFaults::default());
        rolled_out(&kube, "broken", 1).await;
        let merge = [("content-type", "application/merge-patch+json")];
        kube.call("PATCH", "/api/v1/nodes/cp-1", &merge, r#"{"spec":{"unschedulable":true}}"#)
            .await;
        post(&kube, "/apis/apps/v1/namespaces/default/deployments", &deployment("later", 1)).await;
        until(|| async {
            let all = pods(&kube, "later").await;
            all.first().is_some_and(|pod| {
                pod["status"]["conditions"][0]["message"]
                    .as_str()
                    .unwrap_or_default()
                    .contains("1 node(s) were unschedulable")
            })
        })
        .await;
    });
}

#[test]
fn a_job_completes_fails_is_suspended_and_expires() {
    in_world(|lab: Arc<Lab>| async move {
        let (_vm, kube) = cluster(&lab).await;
        lab.world.set_chart_faults(mainstay_sim::ChartFaults {
            failing: vec!["example/fails".into()],
            ..Default::default()
        });
        let job = |name: &str, image: &str| json!({"metadata": {"name": name}, "spec": {"backoffLimit": 1, "ttlSecondsAfterFinished": 600, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": image}]}}}});
        let path = "/apis/batch/v1/namespaces/default/jobs";
        let mut held = job("held", "example/works");
        held["spec"]["suspend"] = json!(true);
        for object in [job("works", "example/works"), job("fails", "example/fails"), held] {
            assert_eq!(post(&kube, path, &object).await.0, 201);
        }
        let has = |object: &Value, word: &str| {
            object["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|one| one["type"] == word && one["status"] == "True")
        };
        until(|| async { has(&kube.get(&format!("{path}/works")).await.1, "Complete") }).await;
        until(|| async { has(&kube.get(&format!("{path}/fails")).await.1, "Failed") }).await;
        let (_, failed) = kube.get(&format!("{path}/fails")).await;
        assert_eq!(failed["status"]["failed"], 2);
        assert!(has(&kube.get(&format!("{path}/held")).await.1, "Suspended"));
        let merge = [("content-type", "application/merge-patch+json")];
        kube.call("PATCH", &format!("{path}/held"), &merge, r#"{"spec":{"suspend":false}}"#)
            .await;
        until(|| async { has(&kube.get(&format!("{path}/held")).await.1, "Complete") }).await;
        until(|| async { kube.get(&format!("{path}/works")).await.0 == 404 }).await;
        let (_, left) = kube.get("/api/v1/namespaces/default/pods?labelSelector=job-name=works").await;
        assert_eq!(left["items"], json!([]), "its pods go with it");
    });
}

#[test]
fn a_volume_is_attached_for_its_pod_and_detached_after_it() {
    in_world(|lab: Arc<Lab>| async move {
        let (_vm, kube) = cluster(&lab).await;
        post(
            &kube,
            "/apis/storage.k8s.io/v1/storageclasses",
            &json!({"metadata": {"name": "disks"}, "provisioner": "example.csi"}),
        )
        .await;
        let set = json!({"metadata": {"name": "db"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "db", "image": "example/db"}]}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"storageClassName": "disks", "resources": {"requests": {"storage": "1Gi"}}}}]}});
        post(&kube, "/apis/apps/v1/namespaces/default/statefulsets", &set).await;
        until(|| async { kube.get("/apis/apps/v1/namespaces/default/statefulsets/db").await.1["status"]["readyReplicas"] == 1 })
            .await;
        let attachments = || async {
            kube.get("/apis/storage.k8s.io/v1/volumeattachments").await.1["items"]
                .as_array()
                .cloned()
                .unwrap_or_default()
        };
        let all = attachments().await;
        assert_eq!(
            (all.len(), &all[0]["spec"]["nodeName"], &all[0]["status"]["attached"]),
            (1, &json!("cp-1"), &json!(true))
        );
        let merge = [("content-type", "application/merge-patch+json")];
        kube.call(
            "PATCH",
            "/apis/apps/v1/namespaces/default/statefulsets/db",
            &merge,
            r#"{"spec":{"replicas":0}}"#,
        )
        .await;
        until(|| async { attachments().await.is_empty() }).await;
        assert_eq!(
            kube.get("/api/v1/namespaces/default/persistentvolumeclaims/data-db-0")
                .await
                .1["status"]["phase"],
            "Bound"
        );
    });
}
