//! Calls that were recorded on a real cluster of Talos 1.13.9, asked again in the same stage: codes and texts must be equal.
//!
//! Left out are answers that only a container gives (no disks, no power control, no NTP server).

mod lab;

use std::sync::Arc;

use lab::{Lab, Node, control_plane, in_world, until};
use serde_json::Value;
use tonic::Code;

const RECORDED: &str = include_str!("data/recorded.jsonl");

fn of_stage(stage: &str) -> Vec<Value> {
    let calls: Vec<Value> = RECORDED
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|call: &Value| call["stage"] == stage)
        .collect();
    assert!(!calls.is_empty(), "{stage}");
    calls
}

fn code(name: &str) -> Code {
    match name {
        "OK" => Code::Ok,
        "Unknown" => Code::Unknown,
        "InvalidArgument" => Code::InvalidArgument,
        "DeadlineExceeded" => Code::DeadlineExceeded,
        "NotFound" => Code::NotFound,
        "PermissionDenied" => Code::PermissionDenied,
        "FailedPrecondition" => Code::FailedPrecondition,
        "Unimplemented" => Code::Unimplemented,
        other => panic!("{other}"),
    }
}

/// `member` stands in for the recorded member's id.
async fn replay(node: &Node, stage: &str, member: u64) {
    let mut wrong = Vec::new();
    for call in of_stage(stage) {
        let mut request = call["request"].clone();
        let mut message = call["message"].as_str().unwrap().to_owned();
        if let Some(id) = request["member_id"].as_str().filter(|id| id.len() > 8).map(str::to_owned) {
            request["member_id"] = Value::String(member.to_string());
            message = message.replace(&id, &member.to_string());
        }
        message = message.replace("5608921940790707176", &member.to_string());
        let method = call["method"].as_str().unwrap();
        let outcome = node.raw(method, &request).await;
        if outcome.code != code(call["code"].as_str().unwrap()) || outcome.message != message {
            wrong.push(format!(
                "{method} {request}\n   recorded {} {message:?}\n   answered {:?} {:?}",
                call["code"], outcome.code, outcome.message
            ));
        }
    }
    assert!(wrong.is_empty(), "{stage}:\n{}", wrong.join("\n"));
}

#[test]
fn a_node_in_maintenance_answers_as_recorded() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp1", "10.10.0.11");
        vm.on();
        lab.maintenance("10.10.0.11").await;
        replay(&lab.insecure("10.10.0.11"), "maintenance", 0).await;
    });
}

#[test]
fn a_control_plane_that_waits_for_its_bootstrap_answers_as_recorded() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp1", "10.10.0.11");
        vm.on();
        lab.configure("10.10.0.11", &control_plane("cp1")).await;
        until(|| async { lab.admin("10.10.0.11").service_up("kubelet").await }).await;
        replay(&lab.admin("10.10.0.11"), "not bootstrapped", 0).await;
    });
}

#[test]
fn each_role_may_do_what_was_recorded() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp1", "10.10.0.11").await;
        for role in ["os:reader", "os:operator", "os:etcd:backup"] {
            replay(&lab.with_roles("10.10.0.11", &[role]), role, 0).await;
        }
        replay(&lab.with_roles("10.10.0.11", &["os:nope"]), "unknown role", 0).await;
    });
}

#[test]
fn a_running_control_plane_answers_as_recorded() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp1", "10.10.0.11").await;
        let node = lab.admin("10.10.0.11");
        let member = node.members().await.unwrap()[0].id;
        for stage in ["configured", "events", "resources", "one voter"] {
            replay(&node, stage, member).await;
        }
    });
}

#[test]
fn a_cluster_that_lost_its_quorum_answers_as_recorded() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = lab.first_control_plane("cp1", "10.10.0.11").await;
        let second = lab.join_control_plane("cp2", "10.10.0.12").await;
        let node = lab.admin("10.10.0.11");
        let member = node
            .members()
            .await
            .unwrap()
            .iter()
            .find(|member| member.hostname == "cp2")
            .unwrap()
            .id;
        second.off();
        tokio::time::sleep(std::time::Duration::from_secs(10)).await;
        replay(&node, "no quorum", member).await;
    });
}
