//! The Kubernetes API of a simulated cluster, by raw HTTP.

use std::sync::Arc;
use std::time::Duration;

use crate::lab::kube::{Kube, ready};
use crate::lab::{Lab, VIP, in_world, until};
use serde_json::{Value, json};

/// One control plane with a Ready node.
async fn cluster(lab: &Lab) -> crate::lab::Vm {
    let vm = lab.first_control_plane("cp-1", "10.10.0.11").await;
    let kube = Kube::admin(lab, "10.10.0.11");
    until(|| async {
        kube.try_call("GET", "/api/v1/nodes/cp-1", &[], "")
            .await
            .is_some_and(|(_, node)| ready(&node))
    })
    .await;
    vm
}

#[test]
fn the_api_answers_on_the_node_and_on_the_vip_to_those_it_knows() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = cluster(&lab).await;
        for address in ["10.10.0.11", VIP] {
            let (code, version) = Kube::admin(&lab, address).get("/version").await;
            assert_eq!((code, version["gitVersion"].as_str()), (200, Some("v1.36.3")), "{address}");
        }
        assert_eq!(Kube::new(&lab, "10.10.0.11", None).get("/api/v1/nodes").await.0, 401);
        let (code, refusal) = Kube::new(&lab, "10.10.0.11", Some(("eve", "no-group")))
            .get("/api/v1/nodes")
            .await;
        assert_eq!(code, 403);
        assert_eq!(
            refusal["message"],
            "nodes is forbidden: User \"eve\" cannot list resource \"nodes\" in API group \"\" at the cluster scope"
        );
        assert_eq!(Kube::admin(&lab, "10.10.0.11").get("/readyz").await, (200, json!("ok")));
    });
}

#[test]
fn discovery_lists_what_is_served_in_both_forms() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = cluster(&lab).await;
        let kube = Kube::admin(&lab, "10.10.0.11");
        let (_, core) = kube.get("/api/v1").await;
        let names: Vec<&str> = core["resources"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|entry| entry["name"].as_str())
            .collect();
        assert!(names.contains(&"nodes") && names.contains(&"nodes/status"));
        let (_, groups) = kube.get("/apis").await;
        assert!(
            groups["groups"]
                .as_array()
                .unwrap()
                .iter()
                .any(|group| group["name"] == "coordination.k8s.io")
        );
        let accept = [(
            "accept",
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        )];
        let (_, whole) = kube.call("GET", "/apis", &accept, "").await;
        assert_eq!(whole["kind"], "APIGroupDiscoveryList");
    });
}

#[test]
fn nodes_are_listed_patched_applied_watched_and_deleted() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = cluster(&lab).await;
        let kube = Kube::admin(&lab, "10.10.0.11");
        let (_, list) = kube.get("/api/v1/nodes").await;
        assert_eq!(list["kind"], "NodeList");
        let from = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let merge = [("content-type", "application/merge-patch+json")];
        let (code, node) = kube
            .call("PATCH", "/api/v1/nodes/cp-1", &merge, r#"{"spec":{"unschedulable":true}}"#)
            .await;
        assert_eq!((code, &node["spec"]["unschedulable"]), (200, &json!(true)));
        until(|| async {
            lab.admin("10.10.0.11")
                .yaml("k8s", "NodeStatuses.kubernetes.talos.dev", "cp-1")
                .await
                .is_ok_and(|yaml| yaml.contains("unschedulable: true"))
        })
        .await;
        let apply = [("content-type", "application/apply-patch+yaml")];
        let body = "apiVersion: v1\nkind: Node\nmetadata:\n  name: cp-1\n  labels: {topology.kubernetes.io/zone: pve1}\n";
        assert_eq!(
            kube.call("PATCH", "/api/v1/nodes/cp-1", &apply, body).await.0,
            422,
            "a manager is required"
        );
        let (_, node) = kube
            .call("PATCH", "/api/v1/nodes/cp-1?fieldManager=mainstay&force=true", &apply, body)
            .await;
        assert_eq!(node["metadata"]["labels"]["topology.kubernetes.io/zone"], "pve1");
        let watch = format!("/api/v1/nodes?watch=true&resourceVersion={from}&timeoutSeconds=1");
        let (_, events) = kube.get(&watch).await;
        let text = events.as_str().map_or_else(|| events.to_string(), str::to_owned);
        assert_eq!(text.lines().filter(|line| line.contains("\"MODIFIED\"")).count(), 2, "{text}");
        let stale = r#"{"metadata":{"resourceVersion":"1"},"spec":{"unschedulable":false}}"#;
        let (code, refusal) = kube.call("PATCH", "/api/v1/nodes/cp-1", &merge, stale).await;
        assert_eq!((code, refusal["reason"].as_str()), (409, Some("Conflict")));
        let (code, gone) = kube.get("/api/v1/nodes/nope").await;
        assert_eq!((code, gone["message"].as_str()), (404, Some("nodes \"nope\" not found")));
        assert_eq!(
            kube.call("DELETE", "/api/v1/nodes/cp-1", &[], "").await.1["status"],
            "Success"
        );
        assert_eq!(kube.get("/api/v1/nodes/cp-1").await.0, 404);
    });
}

#[test]
fn kubectl_gets_its_table() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = cluster(&lab).await;
        let kube = Kube::admin(&lab, "10.10.0.11");
        let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")];
        let (_, table) = kube.call("GET", "/api/v1/nodes", &accept, "").await;
        let cells = table["rows"][0]["cells"].as_array().unwrap();
        assert_eq!(
            (&cells[0], &cells[1], &cells[2]),
            (&json!("cp-1"), &json!("Ready"), &json!("control-plane"))
        );
    });
}

#[test]
fn a_node_without_a_network_says_why_it_is_not_ready() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", "10.10.0.11");
        vm.on();
        let config = crate::lab::control_plane("cp-1").replace(
            "    network:\n        dnsDomain",
            "    network:\n        cni:\n            name: none\n        dnsDomain",
        );
        lab.configure("10.10.0.11", &config).await;
        until(|| async { lab.admin("10.10.0.11").bootstrap().await.is_ok() }).await;
        let kube = Kube::admin(&lab, "10.10.0.11");
        until(|| async {
            kube.try_call("GET", "/api/v1/nodes/cp-1", &[], "")
                .await
                .is_some_and(|(code, _)| code == 200)
        })
        .await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let (_, node) = kube.get("/api/v1/nodes/cp-1").await;
        assert!(!ready(&node));
        assert!(node.to_string().contains("cni plugin not initialized"), "{node}");
    });
}

#[test]
fn without_a_quorum_there_is_no_api() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = cluster(&lab).await;
        let second = lab.join_control_plane("cp-2", "10.10.0.12").await;
        second.off();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let kube = Kube::admin(&lab, "10.10.0.11");
        let (code, text) = kube.get("/readyz").await;
        assert_eq!(code, 500);
        assert!(text.as_str().is_some_and(|text| text.contains("[-]etcd failed")), "{text}");
        let (code, refusal) = kube.get("/api/v1/nodes").await;
        assert_eq!(
            (code, refusal["message"].as_str()),
            (500, Some("etcdserver: request timed out"))
        );
        second.on();
        until(|| async {
            kube.try_call("GET", "/api/v1/nodes", &[], "")
                .await
                .is_some_and(|(code, _)| code == 200)
        })
        .await;
    });
}

#[test]
fn the_node_of_a_dead_machine_turns_unknown_and_comes_back() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = cluster(&lab).await;
        let worker = lab.vm("w-1", "10.10.0.21");
        worker.on();
        lab.configure("10.10.0.21", &crate::lab::worker("w-1")).await;
        let kube = Kube::admin(&lab, "10.10.0.11");
        until(|| async { ready(&kube.get("/api/v1/nodes/w-1").await.1) }).await;
        worker.off();
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(ready(&kube.get("/api/v1/nodes/w-1").await.1), "no controller has noticed yet");
        until(|| async {
            kube.get("/api/v1/nodes/w-1")
                .await
                .1
                .to_string()
                .contains("Kubelet stopped posting node status.")
        })
        .await;
        worker.on();
        until(|| async { ready(&kube.get("/api/v1/nodes/w-1").await.1) }).await;
    });
}

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

fn renewed(lease: &Value) -> jiff::Timestamp {
    lease["spec"]["renewTime"].as_str().expect("a time").parse().expect("a time")
}

impl Kube {
    async fn renewed(&self, node: &str) -> jiff::Timestamp {
        renewed(&self.get(&format!("{LEASES}/{node}")).await.1)
    }

    /// Waits until a node is Ready, or until it is not.
    async fn until_ready(&self, node: &str, wanted: bool) {
        let path = format!("/api/v1/nodes/{node}");
        until(|| async { ready(&self.get(&path).await.1) == wanted }).await;
    }
}

async fn ready_worker(lab: &Lab, kube: &Kube) -> crate::lab::Vm {
    let worker = lab.vm("w-1", "10.10.0.21");
    worker.on();
    lab.configure("10.10.0.21", &crate::lab::worker("w-1")).await;
    kube.until_ready("w-1", true).await;
    worker
}

fn seconds_between(from: jiff::Timestamp, to: jiff::Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

#[test]
fn a_kubelet_renews_its_lease_every_ten_seconds_while_it_lives() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = cluster(&lab).await;
        let kube = Kube::admin(&lab, "10.10.0.11");
        let worker = ready_worker(&lab, &kube).await;
        let (_, before) = kube.get(&format!("{LEASES}/w-1")).await;
        assert_eq!(before["spec"]["holderIdentity"], "w-1");
        assert_eq!(before["spec"]["leaseDurationSeconds"], 40);
        assert_eq!(before["metadata"]["ownerReferences"][0]["name"], "w-1");
        tokio::time::sleep(Duration::from_secs(40)).await;
        let (_, after) = kube.get(&format!("{LEASES}/w-1")).await;
        assert!(
            (39.9..40.1).contains(&seconds_between(renewed(&before), renewed(&after))),
            "{before} {after}"
        );
        assert_ne!(before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
        for path in [LEASES, "/apis/coordination.k8s.io/v1/leases"] {
            let (_, list) = kube.get(path).await;
            // Leaders keep their leases elsewhere.
            let of_kubelets = |one: &&Value| one["metadata"]["namespace"] == "kube-node-lease";
            let names: Vec<&str> = list["items"]
                .as_array()
                .unwrap()
                .iter()
                .filter(of_kubelets)
                .filter_map(|one| one["metadata"]["name"].as_str())
                .collect();
            assert_eq!(names, ["cp-1", "w-1"]);
            assert_eq!(list["items"][1], after, "{path}");
        }
        worker.off();
        let off = lab.world.wall().now();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let last = kube.renewed("w-1").await;
        assert!((0.0..10.0).contains(&seconds_between(last, off)), "{last} {off}");
        kube.until_ready("w-1", false).await;
        let silent = seconds_between(last, lab.world.wall().now());
        assert!(
            (50.0..57.0).contains(&silent),
            "called unreachable {silent} s after its last renewal"
        );
        assert_eq!(kube.renewed("w-1").await, last);
        worker.on();
        kube.until_ready("w-1", true).await;
        let again = kube.renewed("w-1").await;
        assert!(seconds_between(again, lab.world.wall().now()) < 10.0);
    });
}

#[test]
fn renewed_leases_reach_those_who_watch_them() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = cluster(&lab).await;
        let kube = Kube::admin(&lab, "10.10.0.11");
        let from = kube.get(LEASES).await.1["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .to_owned();
        let (_, events) = kube
            .get(&format!("{LEASES}?watch=true&resourceVersion={from}&timeoutSeconds=19"))
            .await;
        let text = events.as_str().map_or_else(|| events.to_string(), str::to_owned);
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("an event"))
            .collect();
        assert!((1..=2).contains(&lines.len()), "{text}");
        assert!(
            lines
                .iter()
                .all(|line| line["type"] == "MODIFIED" && line["object"]["metadata"]["name"] == "cp-1")
        );
    });
}

#[test]
fn a_node_that_is_cut_off_is_called_unreachable_until_it_is_heard_again() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = cluster(&lab).await;
        let kube = Kube::admin(&lab, "10.10.0.11");
        let worker = ready_worker(&lab, &kube).await;
        let control_plane: std::net::IpAddr = "10.10.0.11".parse().unwrap();
        lab.world.net().partition(worker.address, control_plane);
        tokio::time::sleep(Duration::from_secs(20)).await;
        let last = kube.renewed("w-1").await;
        assert!(ready(&kube.get("/api/v1/nodes/w-1").await.1), "no controller has noticed yet");
        kube.until_ready("w-1", false).await;
        assert_eq!(kube.renewed("w-1").await, last);
        assert!(ready(&kube.get("/api/v1/nodes/cp-1").await.1), "the other one is heard");
        lab.world.net().repair();
        kube.until_ready("w-1", true).await;
        assert!(kube.renewed("w-1").await > last);
    });
}

#[test]
fn no_node_is_blamed_for_silence_while_there_was_no_api() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = cluster(&lab).await;
        let second = lab.join_control_plane("cp-2", "10.10.0.12").await;
        let kube = Kube::admin(&lab, "10.10.0.11");
        kube.until_ready("cp-2", true).await;
        let _worker = ready_worker(&lab, &kube).await;
        second.off();
        tokio::time::sleep(Duration::from_secs(300)).await;
        second.on();
        until(|| async {
            kube.try_call("GET", "/api/v1/nodes/w-1", &[], "")
                .await
                .is_some_and(|(code, _)| code == 200)
        })
        .await;
        for _ in 0..60 {
            assert!(ready(&kube.get("/api/v1/nodes/w-1").await.1));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
}

#[test]
fn a_lease_goes_with_its_node_unless_the_kubelet_lives() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = cluster(&lab).await;
        let kube = Kube::admin(&lab, "10.10.0.11");
        let worker = ready_worker(&lab, &kube).await;
        assert_eq!(kube.call("DELETE", "/api/v1/nodes/w-1", &[], "").await.0, 200);
        let _ = kube.call("DELETE", &format!("{LEASES}/w-1"), &[], "").await;
        let (code, lease) = kube.get(&format!("{LEASES}/w-1")).await;
        assert_eq!((code, &lease["metadata"]["ownerReferences"]), (200, &Value::Null));
        worker.off();
        assert_eq!(kube.get(&format!("{LEASES}/w-1")).await.0, 404);
    });
}
