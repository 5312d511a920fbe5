//! Objects of any kind, releases and what `verify` reads.

use std::io::Write;

use crate::scripted::{Call, ok, refused, run};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use helm_charts::Release;
use mainstay_kube::{Class, Deletion, Error, FieldConflict, ListScope, ObjectRef, OnConflict, Propagation, newest_revisions};
use serde_json::{Value, json};

fn resource(name: &str, kind: &str, namespaced: bool) -> Value {
    json!({"name": name, "kind": kind, "namespaced": namespaced, "singularName": "", "verbs": ["get", "list", "delete", "patch"]})
}

fn release(revision: u64, status: &str, packed: bool) -> Value {
    let text =
        json!({"name": "cilium", "version": revision, "info": {"description": "mainstay abc"}, "config": {"password": "CANARY"}})
            .to_string();
    let bytes = if packed {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    } else {
        text.into_bytes()
    };
    let twice = BASE64_STANDARD.encode(BASE64_STANDARD.encode(bytes));
    json!({"metadata": {"namespace": "kube-system", "name": format!("sh.helm.release.v1.cilium.v{revision}"),
        "labels": {"owner": "helm", "name": "cilium", "status": status, "version": revision.to_string()}},
        "type": "helm.sh/release.v1", "data": {"release": twice}})
}

fn list(items: Value) -> Response {
    ok(json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}))
}

fn server(call: &Call) -> Response {
    match (call.method.as_str(), call.path.as_str()) {
        ("GET", "/api/v1") => ok(json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": [
            resource("namespaces", "Namespace", false), resource("configmaps", "ConfigMap", true), resource("events", "Event", true),
            resource("pods", "Pod", true), resource("pods/log", "Pod", true)]})),
        ("GET", "/apis") => ok(
            json!({"kind": "APIGroupList", "groups": [{"name": "apps", "preferredVersion": {"groupVersion": "apps/v1"}},
            {"name": "metrics.k8s.io", "preferredVersion": {"groupVersion": "metrics.k8s.io/v1beta1"}}]}),
        ),
        ("GET", "/apis/apps/v1") => ok(json!({"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [
            resource("deployments", "Deployment", true)]})),
        ("GET", "/apis/metrics.k8s.io/v1beta1") => refused(
            503,
            "ServiceUnavailable",
            "the server is currently unable to handle the request",
            json!({}),
        ),
        ("PATCH", "/apis/apps/v1/namespaces/web/deployments/front") if call.query.contains("force=false") => {
            let cause = json!({"reason": "FieldManagerConflict", "message": "conflict with \"kubectl\" using apps/v1", "field": ".spec.replicas"});
            refused(409, "Conflict", "Apply failed with 1 conflict", json!({"causes": [cause]}))
        }
        ("PATCH", _) => ok(call.body.clone()),
        ("POST", "/api/v1/namespaces/web/configmaps") => {
            refused(409, "AlreadyExists", "configmaps \"there\" already exists", json!({}))
        }
        ("DELETE", path) if path.ends_with("/there") => ok(json!({"kind": "Status", "status": "Success"})),
        ("DELETE", path) if path.ends_with("/replaced") => refused(409, "Conflict", "Precondition failed: UID", json!({})),
        ("GET", "/api/v1/namespaces/web/configmaps/there") => ok(json!({"metadata": {"name": "there"}})),
        ("GET", "/api/v1/configmaps") if call.query.contains("continue") => list(json!([{"metadata": {"name": "two"}}])),
        ("GET", "/api/v1/configmaps") => {
            ok(json!({"kind": "List", "metadata": {"continue": "a=b"}, "items": [{"metadata": {"name": "one"}}]}))
        }
        ("GET", "/api/v1/secrets") => list(json!([release(10, "deployed", true), release(9, "superseded", false),
            {"metadata": {"name": "not-a-release", "namespace": "x"}, "data": {}}])),
        ("GET", "/api/v1/namespaces/kube-system/pods") => list(json!([
            {"metadata": {"namespace": "kube-system", "name": "coredns-1", "uid": "1"}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}},
            {"metadata": {"namespace": "kube-system", "name": "coredns-2", "uid": "2"}, "status": {"phase": "Pending"}}])),
        ("GET", "/api/v1/namespaces/web/events") => list(json!([
            {"metadata": {"namespace": "web"}, "type": "Warning", "reason": "BackOff", "message": "old", "lastTimestamp": "2026-11-15T00:00:01Z",
             "involvedObject": {"kind": "Pod", "name": "a"}},
            {"metadata": {"namespace": "web"}, "type": "Warning", "reason": "FailedCreate", "lastTimestamp": "2026-11-15T00:00:02Z",
             "message": "Error creating: pods \"x\" is forbidden: violates PodSecurity \"baseline:latest\"", "involvedObject": {"kind": "DaemonSet", "name": "csi"}}])),
        ("GET", "/readyz") => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n",
        )
            .into_response(),
        _ => refused(404, "NotFound", &format!("{} not found", call.path), json!({})),
    }
}

fn deployment() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "web", "name": "front"}, "spec": {"replicas": 2}})
}

#[test]
fn an_object_of_any_kind_is_applied_and_conflicts_name_their_owner() {
    run(server, |cluster, calls| async move {
        let error = cluster.apply(&deployment(), OnConflict::Report).await.unwrap_err();
        assert_eq!(error.class(), Class::Conflict);
        let conflicts = error.status().unwrap().field_conflicts();
        assert_eq!(
            conflicts,
            [FieldConflict {
                manager: "kubectl".into(),
                field: ".spec.replicas".into()
            }]
        );
        cluster.apply(&deployment(), OnConflict::Force).await.unwrap();
        let call = calls.all().pop().unwrap();
        assert_eq!(call.content_type, "application/apply-patch+yaml");
        assert_eq!(call.query, "fieldManager=mainstay&force=true&fieldValidation=Strict");
        assert_eq!(calls.count(), 3, "discovery is asked once");
        let labels = [("pod-security.kubernetes.io/enforce".to_owned(), "privileged".to_owned())].into();
        cluster.ensure_namespace("storage", &labels).await.unwrap();
        let call = calls.all().pop().unwrap();
        assert_eq!(
            (call.path.as_str(), call.query.contains("force=false")),
            ("/api/v1/namespaces/storage", true)
        );
        assert_eq!(
            call.body["metadata"]["labels"]["pod-security.kubernetes.io/enforce"],
            "privileged"
        );
    });
}

#[test]
fn a_kind_that_the_server_does_not_know_is_not_found_and_asked_again() {
    run(server, |cluster, calls| async move {
        let flux = json!({"apiVersion": "fluxcd.controlplane.io/v1", "kind": "FluxInstance", "metadata": {"namespace": "flux-system", "name": "flux"}});
        for _ in 0..2 {
            let error = cluster.apply(&flux, OnConflict::Force).await.unwrap_err();
            assert!(
                matches!(error, Error::UnknownKind { .. }) && error.class() == Class::NotFound,
                "{error:?}"
            );
        }
        assert_eq!(calls.count(), 2, "a CRD may have come meanwhile");
        assert!(
            cluster
                .list("fluxcd.controlplane.io/v1", "FluxInstance", &ListScope::default())
                .await
                .unwrap()
                .is_empty()
        );
        assert!(cluster.get(&ObjectRef::of(&flux).unwrap()).await.unwrap().is_none());
        let bad = ObjectRef::new("v1", "ConfigMap", Some("web"), "../../secrets");
        assert!(matches!(cluster.get(&bad).await.unwrap_err(), Error::BadObject(_)));
        let homeless = ObjectRef::new("v1", "ConfigMap", None, "x");
        assert!(matches!(cluster.get(&homeless).await.unwrap_err(), Error::BadObject(_)));
    });
}

#[test]
fn objects_are_created_read_listed_and_deleted() {
    run(server, |cluster, calls| async move {
        let there = ObjectRef::new("v1", "ConfigMap", Some("web"), "there");
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "web", "name": "there"}});
        assert_eq!(cluster.create(&object).await.unwrap_err().class(), Class::Conflict);
        assert!(cluster.get(&there).await.unwrap().is_some());
        let absent = ObjectRef::new("v1", "ConfigMap", Some("web"), "absent");
        assert!(cluster.get(&absent).await.unwrap().is_none());
        cluster.merge(&there, &json!({"data": {"a": "b"}})).await.unwrap();
        assert_eq!(calls.all().pop().unwrap().content_type, "application/merge-patch+json");

        let delete = async |name: &str, uid| {
            let object = ObjectRef::new("v1", "ConfigMap", Some("web"), name);
            cluster.delete(&object, Propagation::Foreground, uid).await
        };
        assert_eq!(delete("there", Some("u1")).await.unwrap(), Deletion::Started);
        assert_eq!(
            calls.all().pop().unwrap().body,
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground", "preconditions": {"uid": "u1"}})
        );
        assert_eq!(delete("absent", None).await.unwrap(), Deletion::Absent);
        assert_eq!(delete("replaced", Some("u1")).await.unwrap(), Deletion::Absent);
        assert_eq!(delete("replaced", None).await.unwrap_err().class(), Class::Conflict);

        let found = cluster
            .list("v1", "ConfigMap", &ListScope::labels("mainstay/cluster=x"))
            .await
            .unwrap();
        let names: Vec<_> = found
            .iter()
            .map(|object| ObjectRef::of(object).unwrap().to_string())
            .collect();
        assert_eq!(names, ["ConfigMap one", "ConfigMap two"], "both pages, with kinds");
        assert!(calls.all().pop().unwrap().query.contains("continue=a%3Db"));
        let kinds = cluster.deletable_kinds().await.unwrap();
        let names: Vec<_> = kinds.iter().map(|info| info.plural.as_str()).collect();
        assert_eq!(
            names,
            ["namespaces", "configmaps", "events", "pods", "deployments"],
            "without the API that is down"
        );
        let configmaps = &kinds[1..2];
        assert_eq!(cluster.labelled(configmaps, "mainstay/cluster=x").await.unwrap().len(), 2);
    });
}

#[test]
fn releases_are_read_as_helm_wrote_them() {
    run(server, |cluster, calls| async move {
        let all = cluster.release_revisions(None).await.unwrap();
        assert_eq!(
            all.iter().map(|release| release.revision).collect::<Vec<_>>(),
            [9, 10],
            "by number, not by text"
        );
        assert!(!format!("{all:?}").contains("CANARY"));
        assert_eq!(
            Release::decode(all[0].payload().expose()).unwrap().description,
            "mainstay abc",
            "without gzip"
        );
        let newest = newest_revisions(all);
        assert_eq!(
            (newest.len(), newest[0].revision, newest[0].status.as_str()),
            (1, 10, "deployed")
        );
        assert_eq!(
            Release::decode(newest[0].payload().expose()).unwrap().config["password"],
            "CANARY"
        );
        let query = calls.all().pop().unwrap().query;
        assert!(
            query.contains("labelSelector=owner%3Dhelm") && query.contains("fieldSelector=type%3Dhelm.sh"),
            "{query}"
        );
    });
}

#[test]
fn an_api_server_that_is_not_ready_names_its_checks() {
    run(server, |cluster, _| async move {
        let readiness = cluster.readiness().await.unwrap();
        assert_eq!((readiness.is_ready, readiness.failing), (false, vec!["etcd".to_owned()]));
        let dns = cluster.dns_pods().await.unwrap();
        assert_eq!((dns.ready.len(), dns.not_ready[0].name.as_str()), (1, "coredns-2"));
        let warnings = cluster.warnings(Some("web")).await.unwrap();
        assert_eq!(
            (warnings[0].name.as_str(), warnings[0].is_pod_security_refusal()),
            ("csi", true),
            "newest first"
        );
        assert!(!warnings[1].is_pod_security_refusal());
    });
}
