//! The life of a node: modes of apply, power, wipes, time, and what clients see of it.

use std::sync::Arc;
use std::time::Duration;

use crate::lab::{Lab, control_plane, in_world, in_world_of, refusal, until, worker};
use mainstay_sim::{NodeFaults, WorldSpec};
use pve_sim::guest::PowerEvent;
use talos_proto::machine::apply_configuration_request::Mode;
use talos_proto::machine::{self, reboot_request};
use tokio::time::{Instant, sleep};
use tonic::Code;

const CP: &str = "10.10.0.11";

async fn boot_id(node: &crate::lab::Node) -> Option<String> {
    let request = machine::ReadRequest {
        path: "/proc/sys/kernel/random/boot_id".to_owned(),
    };
    let mut stream = node.machine.clone().read(request).await.ok()?.into_inner();
    let data = stream.message().await.ok()??;
    String::from_utf8(data.bytes).ok()
}

fn is_running(status: &str) -> bool {
    status.starts_with("stage: running\n")
}

#[test]
fn up_to_1_12_a_small_server_answers_in_maintenance() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm_of("cp-1", CP, "1.12.6", &[]);
        vm.on();
        lab.maintenance(CP).await;
        let node = lab.insecure(CP);
        let unimplemented = |text: &str| (Code::Unimplemented, text.to_owned());
        assert_eq!(
            refusal(node.version().await),
            unimplemented("API is not implemented in maintenance mode")
        );
        assert_eq!(
            refusal(node.bootstrap().await),
            unimplemented("method Bootstrap not implemented")
        );
        assert_eq!(
            refusal(node.services().await),
            unimplemented("method ServiceList not implemented")
        );
        let config = control_plane("cp-1").replace("v1.36.3", "v1.35.0");
        let no_reboot = node.apply(&config, Mode::NoReboot).await;
        assert_eq!(
            refusal(no_reboot),
            unimplemented("apply configuration --mode='no-reboot' is not supported in maintenance mode")
        );
        let (code, text) = refusal(node.apply("garbage", Mode::Auto).await);
        assert_eq!(
            (code, text.as_str()),
            (Code::Unknown, "failed to parse config: expected a YAML document at line 1")
        );
        let (code, text) = refusal(node.apply(&control_plane("cp-1"), Mode::Auto).await);
        assert_eq!(code, Code::InvalidArgument);
        assert!(
            text.starts_with("configuration validation failed: ")
                && text.contains("version of Kubernetes 1.36.3 is too new to be used with Talos 1.12.6"),
            "{text}"
        );
        let answer = node.apply(&config, Mode::Auto).await.unwrap();
        assert_eq!((answer.mode, answer.mode_details.as_str()), (0, ""));
        until(|| async { lab.admin(CP).version().await.is_ok() }).await;
    });
}

#[test]
fn broken_configs_are_refused_and_the_node_stays_in_maintenance() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", CP);
        vm.on();
        lab.maintenance(CP).await;
        let node = lab.insecure(CP);
        let twice = control_plane("cp-1").replace("    kubelet:\n", "    network:\n        hostname: x\n    kubelet:\n");
        assert_eq!(
            refusal(node.apply(&twice, Mode::Auto).await),
            (
                Code::InvalidArgument,
                "1 error occurred:\n\t* static hostname is already set in v1alpha1 config\n\n".to_owned()
            )
        );
        let key = worker("w").replace("        key: \"\"\n    certSANs", "        key: LS0tCg==\n    certSANs");
        let (_, text) = refusal(node.apply(&key, Mode::Auto).await);
        assert_eq!(
            text,
            "1 error occurred:\n\t* v1alpha1.Config: 1 error occurred:\n\t* issuing Talos API CA key is not allowed on non-controlplane nodes (.machine.ca)\n\n\n\n"
        );
        let partial = "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: x\nauto: off\n";
        node.apply(partial, Mode::Auto).await.unwrap();
        sleep(Duration::from_secs(30)).await;
        assert!(
            node.machine_status().await.contains("stage: maintenance"),
            "an incomplete config changes nothing"
        );
        let staged = node.apply(&control_plane("cp-1"), Mode::Staged).await.unwrap();
        assert_eq!(
            staged.mode_details,
            "Staged configuration to be applied after the next reboot"
        );
        assert!(node.machine_status().await.contains("stage: maintenance"));
        vm.off();
        vm.on();
        until(|| async { lab.admin(CP).version().await.is_ok() }).await;
    });
}

#[test]
fn streams_of_the_maintenance_api_outlive_it_by_ten_seconds() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", CP);
        vm.on();
        lab.maintenance(CP).await;
        let node = lab.insecure(CP);
        let mut events = node
            .machine
            .clone()
            .events(machine::EventsRequest::default())
            .await
            .unwrap()
            .into_inner();
        let hello = events.message().await.unwrap().unwrap();
        assert!(hello.data.unwrap().type_url.is_empty() && hello.id.len() == 20);
        let applied = Instant::now();
        node.apply(&control_plane("cp-1"), Mode::Auto).await.unwrap();
        let ended = loop {
            match events.message().await {
                Ok(Some(_)) => {}
                ended => break ended,
            }
        };
        assert_eq!(
            ended
                .err()
                .map(|status| status.code())
                .filter(|code| *code != Code::Unavailable && *code != Code::Unknown && *code != Code::Internal),
            None
        );
        let lasted = applied.elapsed().as_secs();
        assert!((9..=12).contains(&lasted), "{lasted} s");
    });
}

#[test]
fn apply_modes_of_a_configured_node() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        let node = lab.admin(CP);
        let config = control_plane("cp-1");
        let same = node.apply(&config, Mode::Auto).await.unwrap();
        assert_eq!(
            (same.mode(), same.mode_details.as_str()),
            (Mode::NoReboot, "Applied configuration without a reboot")
        );
        let tried = node.apply(&config, Mode::Try).await.unwrap();
        assert_eq!(
            tried.mode_details,
            "Applied configuration without a reboot\nThe config is applied in 'try' mode and will be automatically reverted back in 1m0s"
        );
        let env = config.replace("    features:\n", "    env:\n        A: b\n    features:\n");
        let (code, text) = refusal(node.apply(&env, Mode::NoReboot).await);
        assert_eq!(code, Code::InvalidArgument);
        assert!(
            text.starts_with("this config change can't be applied in immediate mode\ndiff:\n--- a\n+++ b\n@@ ")
                && text.contains("\n+    env:\n+        A: b\n"),
            "{text}"
        );
        let before = boot_id(&node).await.unwrap();
        let request = machine::ApplyConfigurationRequest {
            data: env.clone().into_bytes(),
            mode: Mode::Auto.into(),
            dry_run: true,
            ..Default::default()
        };
        let dry = node
            .machine
            .clone()
            .apply_configuration(request)
            .await
            .unwrap()
            .into_inner()
            .messages
            .remove(0);
        assert!(
            dry.mode_details.starts_with(
                "Dry run summary:\nApplied configuration with a reboot (skipped in dry-run).\nConfig diff:\n\n--- a\n"
            ),
            "{}",
            dry.mode_details
        );
        let answer = node.apply(&env, Mode::Auto).await.unwrap();
        assert!(
            answer.mode_details.starts_with(
                "Applied configuration with a reboot: this config change can't be applied in immediate mode\ndiff:\n"
            )
        );
        let (code, text) = refusal(node.apply(&env, Mode::Auto).await);
        assert_eq!(
            (code, text.as_str()),
            (
                Code::FailedPrecondition,
                "configuration was already applied and node is rebooting, cannot apply more configuration changes until next reboot"
            )
        );
        until(|| async { boot_id(&lab.admin(CP)).await.is_some_and(|now| now != before) }).await;
    });
}

#[test]
fn two_applies_at_once_are_one_too_many() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        let (node, config) = (lab.admin(CP), control_plane("cp-1"));
        let (one, other) = futures::join!(node.apply(&config, Mode::NoReboot), node.apply(&config, Mode::NoReboot));
        let refused = [one, other].into_iter().filter_map(Result::err).collect::<Vec<_>>();
        assert_eq!(refused.len(), 1);
        assert_eq!(refused[0].message(), "another apply configuration is already in progress");
    });
}

#[test]
fn a_reboot_keeps_config_and_membership_and_readiness_is_not_monotonic() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = lab.first_control_plane("cp-1", CP).await;
        let second = lab.join_control_plane("cp-2", "10.10.0.12").await;
        let third = lab.join_control_plane("cp-3", "10.10.0.13").await;
        let node = lab.admin("10.10.0.13");
        until(|| async { node.machine_status().await.contains("ready: true") && is_running(&node.machine_status().await) }).await;
        let (members, before) = (node.members().await.unwrap(), boot_id(&node).await.unwrap());
        let mut events = node
            .machine
            .clone()
            .events(machine::EventsRequest::default())
            .await
            .unwrap()
            .into_inner();
        let actor = node
            .machine
            .clone()
            .reboot(machine::RebootRequest {
                mode: reboot_request::Mode::Default.into(),
            })
            .await
            .unwrap()
            .into_inner()
            .messages
            .remove(0)
            .actor_id;
        let mut seen = Vec::new();
        while let Ok(Some(event)) = events.message().await {
            seen.push(event);
        }
        assert!(seen.iter().any(
            |event| event.actor_id == actor && event.data.as_ref().unwrap().type_url == "talos/runtime/machine.SequenceEvent"
        ));
        let mut history: Vec<String> = Vec::new();
        let until_calm = Instant::now() + Duration::from_secs(90);
        while Instant::now() < until_calm {
            let status = lab.admin("10.10.0.13").machine_status().await;
            if history.last() != Some(&status) {
                history.push(status);
            }
            sleep(Duration::from_millis(200)).await;
        }
        assert_ne!(boot_id(&lab.admin("10.10.0.13")).await, Some(before));
        assert_eq!(lab.admin("10.10.0.13").members().await.unwrap(), members);
        let readiness: Vec<bool> = history
            .iter()
            .filter(|status| is_running(status))
            .map(|status| status.contains("ready: true"))
            .collect();
        assert!(
            readiness.windows(2).any(|pair| pair == [true, false]) && readiness.last() == Some(&true),
            "{history:?}"
        );
        assert_eq!(third.events(), [PowerEvent::Rebooted]);
        drop(second);
    });
}

#[test]
fn what_cannot_take_over_is_locked_out() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        let node = lab.admin(CP);
        until(|| async { node.yaml("k8s", "NodeStatuses.kubernetes.talos.dev", "cp-1").await.is_ok() }).await;
        let mut events = node
            .machine
            .clone()
            .events(machine::EventsRequest::default())
            .await
            .unwrap()
            .into_inner();
        node.machine.clone().reboot(machine::RebootRequest::default()).await.unwrap();
        node.machine
            .clone()
            .reset(machine::ResetRequest {
                reboot: true,
                ..Default::default()
            })
            .await
            .unwrap();
        let mut locked = Vec::new();
        while let Ok(Some(event)) = events.message().await {
            let data = event.data.unwrap();
            if data.type_url.ends_with("SequenceEvent") {
                let sequence: machine::SequenceEvent = prost::Message::decode(data.value.as_slice()).unwrap();
                locked.extend(sequence.error.map(|error| (error.message, event.actor_id)));
            }
        }
        assert_eq!(locked, [("sequence not started: locked".to_owned(), String::new())]);
    });
}

#[test]
fn wiping_state_leads_to_maintenance_and_the_same_member_resumes() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = lab.first_control_plane("cp-1", CP).await;
        let _second = lab.join_control_plane("cp-2", "10.10.0.12").await;
        let _third = lab.join_control_plane("cp-3", "10.10.0.13").await;
        let before = lab.admin(CP).members().await.unwrap();
        let wipe = machine::ResetPartitionSpec {
            label: "STATE".to_owned(),
            wipe: true,
        };
        let reset = machine::ResetRequest {
            reboot: true,
            system_partitions_to_wipe: vec![wipe],
            ..Default::default()
        };
        lab.admin("10.10.0.13").machine.clone().reset(reset).await.unwrap();
        lab.configure("10.10.0.13", &control_plane("cp-3")).await;
        until(|| async { lab.admin("10.10.0.13").service_up("etcd").await }).await;
        assert_eq!(lab.admin(CP).members().await.unwrap(), before);
    });
}

#[test]
fn wiping_ephemeral_makes_a_new_member_of_the_same_name() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = lab.first_control_plane("cp-1", CP).await;
        let _second = lab.join_control_plane("cp-2", "10.10.0.12").await;
        let _third = lab.join_control_plane("cp-3", "10.10.0.13").await;
        let old = lab
            .admin(CP)
            .members()
            .await
            .unwrap()
            .into_iter()
            .find(|member| member.hostname == "cp-3")
            .unwrap()
            .id;
        let wipe = machine::ResetPartitionSpec {
            label: "EPHEMERAL".to_owned(),
            wipe: true,
        };
        let reset = machine::ResetRequest {
            reboot: true,
            system_partitions_to_wipe: vec![wipe],
            ..Default::default()
        };
        lab.admin("10.10.0.13").machine.clone().reset(reset).await.unwrap();
        let replaced = |members: &[machine::EtcdMember]| {
            members.len() == 3
                && members
                    .iter()
                    .any(|member| member.hostname == "cp-3" && member.id != old && !member.is_learner)
        };
        until(|| async { lab.admin(CP).members().await.is_ok_and(|members| replaced(&members)) }).await;
    });
}

#[test]
fn a_graceful_reset_leaves_etcd_and_a_whole_wipe_leaves_nothing_to_boot() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = lab.first_control_plane("cp-1", CP).await;
        let _second = lab.join_control_plane("cp-2", "10.10.0.12").await;
        let third = lab.join_control_plane("cp-3", "10.10.0.13").await;
        let reset = machine::ResetRequest {
            graceful: true,
            reboot: false,
            ..Default::default()
        };
        lab.admin("10.10.0.13").machine.clone().reset(reset).await.unwrap();
        until(|| async { third.events() == [PowerEvent::Off] }).await;
        assert_eq!(lab.admin(CP).members().await.unwrap().len(), 2);
        third.on();
        sleep(Duration::from_secs(120)).await;
        assert!(lab.insecure("10.10.0.13").version().await.is_err(), "no bootable device");
    });
}

#[test]
fn the_last_member_does_not_leave_gracefully() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        let node = lab.admin(CP);
        let mut events = node
            .machine
            .clone()
            .events(machine::EventsRequest::default())
            .await
            .unwrap()
            .into_inner();
        node.machine
            .clone()
            .reset(machine::ResetRequest {
                graceful: true,
                reboot: true,
                ..Default::default()
            })
            .await
            .unwrap();
        let failure = loop {
            let data = events.message().await.unwrap().expect("an event").data.unwrap();
            if data.type_url.ends_with("SequenceEvent") {
                let sequence: machine::SequenceEvent = prost::Message::decode(data.value.as_slice()).unwrap();
                if let Some(error) = sequence.error {
                    break error.message;
                }
            }
        };
        assert!(
            failure.contains("re-configuration failed due to not enough started members"),
            "{failure}"
        );
    });
}

#[test]
fn an_unbootstrapped_control_plane_reboots_by_itself_after_seventy_minutes() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", CP);
        vm.on();
        lab.configure(CP, &control_plane("cp-1")).await;
        let before = boot_id(&lab.admin(CP)).await.unwrap();
        sleep(Duration::from_secs(69 * 60)).await;
        assert_eq!(vm.events(), []);
        sleep(Duration::from_secs(3 * 60)).await;
        assert_eq!(vm.events(), [PowerEvent::Rebooted]);
        until(|| async { boot_id(&lab.admin(CP)).await.is_some_and(|now| now != before) }).await;
    });
}

#[test]
fn a_clock_that_never_syncs_holds_the_bootstrap() {
    in_world(|lab: Arc<Lab>| async move {
        lab.world.set_node_faults(
            "cp-1",
            NodeFaults {
                no_time_sync: true,
                ..NodeFaults::default()
            },
        );
        let vm = lab.vm("cp-1", CP);
        vm.on();
        lab.configure(CP, &control_plane("cp-1")).await;
        let node = lab.admin(CP);
        until(|| async { node.service_up("cri").await }).await;
        assert_eq!(
            refusal(node.bootstrap().await),
            (Code::FailedPrecondition, "time is not in sync yet".to_owned())
        );
        assert!(
            node.machine_status()
                .await
                .contains("name: time\n          reason: time is not synced")
        );
        lab.world.set_node_faults("cp-1", NodeFaults::default());
        until(|| async { node.bootstrap().await.is_ok() }).await;
    });
}

#[test]
fn a_bootstrap_before_the_container_runtime_is_refused_after_a_second() {
    let mut spec = WorldSpec::default();
    spec.guests.timing.cri = Duration::from_secs(30);
    in_world_of(spec, |lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", CP);
        vm.on();
        lab.configure(CP, &control_plane("cp-1")).await;
        let asked = Instant::now();
        assert_eq!(
            refusal(lab.admin(CP).bootstrap().await),
            (Code::FailedPrecondition, "bootstrap is not available yet".to_owned())
        );
        assert_eq!(asked.elapsed().as_secs(), 1);
    });
}

#[test]
fn the_guest_agent_answers_when_the_image_has_it() {
    in_world(|lab: Arc<Lab>| async move {
        let plain = lab.vm("cp-1", CP);
        let with_agent = lab.vm_of("cp-2", "10.10.0.12", "1.13.9", &["qemu-guest-agent"]);
        for (vm, name) in [(&plain, "cp-1"), (&with_agent, "cp-2")] {
            vm.on();
            lab.configure(&vm.address.to_string(), &control_plane(name)).await;
        }
        sleep(Duration::from_secs(5)).await;
        assert_eq!(plain.agent("network-get-interfaces"), None);
        let interfaces = with_agent.agent("network-get-interfaces").unwrap().unwrap();
        assert!(interfaces.to_string().contains("10.10.0.12"), "{interfaces}");
        let extensions = lab
            .admin("10.10.0.12")
            .list("runtime", "ExtensionStatuses.runtime.talos.dev")
            .await
            .unwrap();
        assert!(extensions[0].spec.as_ref().unwrap().yaml_spec.contains("qemu-guest-agent"));
    });
}

#[test]
fn a_lost_answer_leaves_the_work_done() {
    in_world(|lab: Arc<Lab>| async move {
        lab.world.set_node_faults(
            "cp-1",
            NodeFaults {
                lose_apply_answers: 1,
                lose_bootstrap_answers: 1,
                ..NodeFaults::default()
            },
        );
        let vm = lab.vm("cp-1", CP);
        vm.on();
        lab.maintenance(CP).await;
        assert!(lab.insecure(CP).apply(&control_plane("cp-1"), Mode::Auto).await.is_err());
        until(|| async { lab.admin(CP).version().await.is_ok() }).await;
        until(|| async { lab.admin(CP).service_up("cri").await }).await;
        assert!(lab.admin(CP).bootstrap().await.is_err());
        until(|| async { lab.admin(CP).service_up("etcd").await }).await;
        assert_eq!(
            refusal(lab.admin(CP).bootstrap().await),
            (Code::AlreadyExists, "etcd data directory is not empty".to_owned())
        );
    });
}

#[test]
fn services_and_resources_carry_the_recorded_words() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", CP);
        vm.on();
        lab.configure(CP, &control_plane("cp-1")).await;
        let node = lab.admin(CP);
        until(|| async { node.service_up("kubelet").await }).await;
        let expected = "stage: booting\nstatus:\n    ready: false\n    unmetConditions:\n        - name: services\n          reason: etcd not running\n        - name: nodeReady\n          reason: node \"cp-1\" status is not available yet\n";
        assert_eq!(node.machine_status().await, expected);
        let services = node.services().await.unwrap();
        let etcd = services.iter().find(|service| service.id == "etcd").unwrap();
        let messages: Vec<(&str, &str)> = etcd
            .events
            .as_ref()
            .unwrap()
            .events
            .iter()
            .map(|event| (event.state.as_str(), event.msg.as_str()))
            .collect();
        let waiting =
            "Waiting for volumes /var/lib, ETCD to be mounted, service \"cri\" to be \"up\", time sync, network, etcd spec";
        assert_eq!(
            messages,
            [
                ("Starting", "Starting service"),
                ("Waiting", waiting),
                ("Waiting", "Waiting for service \"cri\" to be \"up\""),
                ("Preparing", "Running pre state")
            ]
        );
        let config = node.list("config", "MachineConfigs.config.talos.dev").await.unwrap();
        let ids: Vec<&str> = config
            .iter()
            .map(|resource| resource.metadata.as_ref().unwrap().id.as_str())
            .collect();
        assert_eq!(ids, ["persistent", "v1alpha1"]);
        assert!(
            config[1]
                .spec
                .as_ref()
                .unwrap()
                .yaml_spec
                .starts_with("|\n    version: v1alpha1\n    debug: false\n")
        );
    });
}
