//! Behaviour of single methods.

use std::sync::Arc;
use std::time::Duration;

use mainstay_sim::{NodeFaults, WorldSpec};
use serde_json::{Value, json};
use talos_proto::machine;
use talos_proto::machine::apply_configuration_request::Mode;
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::lab::{Lab, Node, control_plane, in_world, in_world_of, reflect, refusal, until};
use crate::rows::CP;

async fn ask(node: &Node, method: &str, request: Value) -> (Code, String, Vec<Value>) {
    let outcome = node.raw_within(Duration::from_secs(20), method, &request, &[]).await;
    let answers = outcome.answers.iter().map(|answer| reflect::decode(method, answer)).collect();
    (outcome.code, outcome.message, answers)
}

#[test]
fn a_bootstrap_is_checked_in_order() {
    let mut spec = WorldSpec::default();
    spec.guests.timing.cri = Duration::from_secs(30);
    in_world_of(spec, |lab: Arc<Lab>| async move {
        let slow = NodeFaults {
            no_time_sync: true,
            ..NodeFaults::default()
        };
        lab.world.set_node_faults("cp-1", slow);
        let vm = lab.vm("cp-1", CP);
        vm.on();
        lab.configure(CP, &control_plane("cp-1")).await;
        let node = lab.admin(CP);
        let refused = |text: &str| (Code::FailedPrecondition, text.to_owned());
        let began = Instant::now();
        assert_eq!(refusal(node.bootstrap().await), refused("bootstrap is not available yet"));
        assert_eq!(began.elapsed().as_secs(), 1);
        until(|| async { node.service_up("cri").await }).await;
        let began = Instant::now();
        assert_eq!(refusal(node.bootstrap().await), refused("time is not in sync yet"));
        assert_eq!(began.elapsed().as_secs(), 5);
        lab.world.set_node_faults("cp-1", NodeFaults::default());
        sleep(Duration::from_secs(15)).await;
        node.bootstrap().await.unwrap();
        until(|| async { node.service_up("etcd").await }).await;
        assert_eq!(
            refusal(node.bootstrap().await),
            (Code::AlreadyExists, "etcd data directory is not empty".to_owned())
        );
    });
}

#[test]
fn a_version_names_platform_and_mode() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", CP);
        vm.on();
        lab.maintenance(CP).await;
        let before = lab.insecure(CP).version().await.unwrap();
        let platform = before.platform.unwrap();
        assert_eq!((platform.name.as_str(), platform.mode.as_str()), ("nocloud", "cloud"));
        assert!(before.features.is_none());
        lab.configure(CP, &control_plane("cp-1")).await;
        assert!(lab.admin(CP).version().await.unwrap().features.unwrap().rbac);
    });
}

#[test]
fn a_dry_run_changes_nothing_and_tells_what_would_happen() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        let node = lab.admin(CP);
        let request = machine::ApplyConfigurationRequest {
            data: control_plane("cp-1").into_bytes(),
            mode: Mode::Auto.into(),
            dry_run: true,
            ..machine::ApplyConfigurationRequest::default()
        };
        let answer = node
            .machine
            .clone()
            .apply_configuration(request)
            .await
            .unwrap()
            .into_inner()
            .messages
            .remove(0);
        assert_eq!(
            answer.mode_details,
            "Dry run summary:\nApplied configuration without a reboot (skipped in dry-run).\nConfig diff:\n\nNo changes."
        );
        let mc = node
            .get("config", "MachineConfigs.config.talos.dev", "v1alpha1")
            .await
            .unwrap();
        assert_eq!(mc.metadata.unwrap().version, "1");
    });
}

#[test]
fn services_are_started_stopped_and_restarted_only_where_it_is_allowed() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm_of("cp-1", CP, "1.13.9", &["qemu-guest-agent"]);
        vm.on();
        lab.configure(CP, &control_plane("cp-1")).await;
        until(|| async { lab.admin(CP).service_up("kubelet").await }).await;
        let node = lab.admin(CP);
        for (what, id, expected) in [
            ("Start", "kubelet", Ok("Service \"kubelet\" started")),
            ("Restart", "kubelet", Ok("Service \"kubelet\" restarted")),
            (
                "Stop",
                "kubelet",
                Err("service \"kubelet\" doesn't support stop operation via API"),
            ),
            (
                "Start",
                "etcd",
                Err("service \"etcd\" doesn't support start operation via API"),
            ),
            (
                "Stop",
                "machined",
                Err("service \"machined\" doesn't support stop operation via API"),
            ),
            ("Restart", "nope", Err("service \"nope\" not defined")),
            ("Stop", "ext-qemu-guest-agent", Ok("Service \"ext-qemu-guest-agent\" stopped")),
            (
                "Start",
                "ext-qemu-guest-agent",
                Ok("Service \"ext-qemu-guest-agent\" started"),
            ),
        ] {
            let (code, text, answers) = ask(&node, &format!("machine.MachineService/Service{what}"), json!({"id": id})).await;
            match expected {
                Ok(says) => assert_eq!(answers[0]["messages"][0]["resp"], says, "{text}"),
                Err(says) => assert_eq!((code, text.as_str()), (Code::Unknown, says)),
            }
        }
        until(|| async {
            node.services()
                .await
                .unwrap()
                .iter()
                .any(|own| own.id == "ext-qemu-guest-agent" && own.state == "Running")
        })
        .await;
    });
}

#[test]
fn logs_are_read_by_service_and_the_kernel_has_its_format() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        let node = lab.admin(CP);
        for request in [
            json!({"namespace": "system", "id": "etcd", "tail_lines": 1}),
            json!({"namespace": "k8s.io", "id": "kubelet", "tail_lines": -1}),
            json!({"namespace": "system", "id": "kernel"}),
        ] {
            assert_eq!(
                ask(&node, "machine.MachineService/Logs", request.clone()).await.0,
                Code::Ok,
                "{request}"
            );
        }
        let (_, _, lines) = ask(&node, "machine.MachineService/Dmesg", json!({})).await;
        let line = base64::Engine::decode(
            &base64::engine::general_purpose::STANDARD,
            lines[0]["bytes"].as_str().unwrap(),
        )
        .unwrap();
        let line = String::from_utf8(line).unwrap();
        let (facility, rest) = line.split_once(": ").unwrap();
        assert_eq!(facility, "kern");
        assert!(rest.starts_with("   info: [") && rest.contains("]: Linux version"), "{line}");
    });
}

#[test]
fn meta_keys_are_bytes_and_live_on_disk() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.first_control_plane("cp-1", CP).await;
        let meta = |method: &'static str, key: u32| {
            let node = lab.admin(CP);
            async move { ask(&node, &format!("machine.MachineService/Meta{method}"), json!({"key": key})).await }
        };
        assert_eq!(meta("Write", 300).await.1, "key must be a uint8");
        assert_eq!(
            (meta("Delete", 12).await.0, meta("Delete", 12).await.1.as_str()),
            (Code::NotFound, "meta key not found")
        );
        assert_eq!(meta("Write", 12).await.0, Code::Ok);
        vm.off();
        vm.on();
        until(|| async {
            lab.admin(CP)
                .yaml("runtime", "MetaKeys.runtime.talos.dev", "0x0c")
                .await
                .is_ok()
        })
        .await;
        assert_eq!(meta("Delete", 12).await.0, Code::Ok);
    });
}

#[test]
fn a_client_configuration_is_named_by_its_role() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        let method = "machine.MachineService/GenerateClientConfiguration";
        let (code, text, _) = ask(&lab.admin(CP), method, json!({"roles": ["os:reader"]})).await;
        assert_eq!((code, text.as_str()), (Code::InvalidArgument, "crt_ttl should be positive"));
        let (_, _, answers) = ask(&lab.admin(CP), method, json!({"roles": ["os:reader"], "crt_ttl": "3600s"})).await;
        let text = answers[0]["messages"][0]["talosconfig"].as_str().unwrap();
        let text = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text).unwrap();
        let config: Value = serde_saphyr::from_str(&String::from_utf8(text).unwrap()).unwrap();
        assert_eq!(config["context"], "reader@demo");
        assert_eq!(config["contexts"]["reader@demo"]["endpoints"], json!([]));
    });
}

#[test]
fn a_machine_tells_its_processes_containers_and_counters() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        let node = lab.admin(CP);
        until(|| async { node.machine_status().await.contains("ready: true") }).await;
        let one = |method: &'static str, request: Value| {
            let node = node.clone();
            async move {
                ask(&node, &format!("machine.MachineService/{method}"), request)
                    .await
                    .2
                    .remove(0)["messages"][0]
                    .clone()
            }
        };
        let processes = one("Processes", json!({})).await;
        let commands: Vec<&str> = processes["processes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|own| own["command"].as_str().unwrap())
            .collect();
        assert!(
            commands.contains(&"init") && commands.contains(&"etcd") && commands.contains(&"kubelet"),
            "{commands:?}"
        );
        let containers = one("Containers", json!({"namespace": "system"})).await;
        let ids: Vec<&str> = containers["containers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|own| own["id"].as_str().unwrap())
            .collect();
        assert_eq!(ids, ["apid", "trustd"]);
        let pods = one("Containers", json!({"namespace": "k8s.io", "driver": "CRI"})).await;
        assert_eq!(
            pods["containers"].as_array().unwrap().len(),
            6,
            "a sandbox and a container each"
        );
        for method in ["Stats", "CPUInfo", "DiskStats", "NetworkDeviceStats", "LogsContainers"] {
            let answer = one(method, json!({})).await;
            assert!(
                answer.as_object().unwrap().len() == 1 || answer["total"].is_object(),
                "{method}: {answer}"
            );
        }
        let (code, text, _) = ask(
            &node,
            "machine.MachineService/Restart",
            json!({"namespace": "k8s.io", "id": "nope", "driver": "CRI"}),
        )
        .await;
        assert_eq!((code, text.as_str()), (Code::Unknown, "container \"nope\" not found"));
        let (_, _, usage) = ask(
            &node,
            "machine.MachineService/DiskUsage",
            json!({"paths": ["/var/lib/etcd", "/nope"]}),
        )
        .await;
        assert_eq!(usage.iter().filter(|own| own["error"].is_string()).count(), 1, "{usage:?}");
    });
}
