//! What a cluster shows while it is kept: joins under load and without discovery, members that left, reboots by a config.

use std::sync::Arc;
use std::time::Duration;

use mainstay_sim::{Timing, WorldSpec};
use talos_proto::machine;
use talos_proto::machine::apply_configuration_request::Mode;
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::lab::kube::{Kube, ready};
use crate::lab::{Lab, control_plane, in_world, in_world_of, refusal, until, worker};

const CP: &str = "10.10.0.11";
const CP2: &str = "10.10.0.12";
const CP3: &str = "10.10.0.13";

/// Whether the member of this name votes, as the first control plane lists it.
async fn votes(lab: &Lab, name: &str) -> bool {
    let members = lab.admin(CP).members().await.unwrap_or_default();
    members.iter().any(|member| member.hostname == name && !member.is_learner)
}

async fn etcd_runs(lab: &Lab, address: &str) -> bool {
    let services = lab.admin(address).services().await.unwrap_or_default();
    services
        .iter()
        .any(|service| service.id == "etcd" && service.state == "Running")
}

#[test]
fn under_load_a_learner_becomes_a_voter_after_45_to_90_seconds() {
    let mut spec = WorldSpec::default();
    spec.guests.timing = Timing::loaded();
    in_world_of(spec, |lab: Arc<Lab>| async move {
        let mut vms = vec![lab.first_control_plane("cp-1", CP).await];
        for (name, address) in [("cp-2", CP2), ("cp-3", CP3)] {
            let vm = lab.vm(name, address);
            vm.on();
            lab.configure(address, &control_plane(name)).await;
            until(|| async { etcd_runs(&lab, address).await }).await;
            let started = Instant::now();
            until(|| async { votes(&lab, name).await }).await;
            let voted = started.elapsed().as_secs();
            assert!((44..=92).contains(&voted), "{name} votes after {voted} s");
            until(|| async { lab.admin(address).service_up("etcd").await }).await;
            let healthy = started.elapsed().as_secs() - voted;
            assert!((14..=20).contains(&healthy), "{name} is healthy {healthy} s after the vote");
            vms.push(vm);
        }
    });
}

#[test]
fn without_discovery_a_control_plane_joins_only_when_an_api_server_answers_at_the_endpoint() {
    in_world(|lab: Arc<Lab>| async move {
        let quiet = |name: &str| {
            control_plane(name).replace(
                "    discovery:\n        enabled: true",
                "    discovery:\n        enabled: false",
            )
        };
        assert_ne!(quiet("cp-1"), control_plane("cp-1"));
        let (first, second) = (lab.vm("cp-1", CP), lab.vm("cp-2", CP2));
        first.on();
        second.on();
        lab.configure(CP, &quiet("cp-1")).await;
        lab.configure(CP2, &quiet("cp-2")).await;
        until(|| async { lab.admin(CP).bootstrap().await.is_ok() }).await;
        until(|| async { lab.admin(CP).service_up("etcd").await }).await;
        let pods = "StaticPodStatuses.kubernetes.talos.dev";
        let serves = || async { !lab.admin(CP).list("k8s", pods).await.unwrap_or_default().is_empty() };
        // etcd has run for longer than any retry of a join takes, and the API server has not begun to serve.
        sleep(Duration::from_secs(10)).await;
        assert!(!serves().await);
        assert_eq!(lab.admin(CP).members().await.unwrap().len(), 1);
        until(|| async { votes(&lab, "cp-2").await }).await;
    });
}

#[test]
fn a_member_that_left_shows_a_finished_service_whose_health_failed() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = lab.first_control_plane("cp-1", CP).await;
        let _second = lab.join_control_plane("cp-2", CP2).await;
        let _third = lab.join_control_plane("cp-3", CP3).await;
        let mut leaving = lab.admin(CP3).machine;
        leaving.etcd_leave_cluster(machine::EtcdLeaveClusterRequest {}).await.unwrap();
        let etcd = || async {
            let services = lab.admin(CP3).services().await.unwrap();
            services.into_iter().find(|service| service.id == "etcd").unwrap()
        };
        until(|| async { etcd().await.state == "Finished" }).await;
        let health = etcd().await.health.unwrap();
        // `talosctl services` prints `Fail` for exactly this.
        assert_eq!((health.unknown, health.healthy), (false, false));
    });
}

#[test]
fn while_it_reboots_for_a_config_a_machine_shows_the_old_one_and_takes_no_other() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.first_control_plane("cp-1", CP).await;
        until(|| async { lab.admin(CP).machine_status().await.contains("ready: true") }).await;
        let old = control_plane("cp-1");
        let new = old.replace("    features:\n", "    env:\n        FOO: bar\n    features:\n");
        let node = lab.admin(CP);
        assert_eq!(node.apply(&new, Mode::Auto).await.unwrap().mode(), Mode::Reboot);
        sleep(Duration::from_secs(35)).await;
        let shown = |id: &'static str| {
            let node = node.clone();
            async move { node.yaml("config", "MachineConfigs.config.talos.dev", id).await.unwrap() }
        };
        assert!(!shown("v1alpha1").await.contains("FOO: bar"), "the active one is the old one");
        assert!(
            shown("persistent").await.contains("FOO: bar"),
            "the stored one is the new one"
        );
        assert_eq!(
            refusal(node.apply(&new, Mode::Auto).await),
            (
                Code::FailedPrecondition,
                "configuration was already applied and node is rebooting, cannot apply more configuration changes until next reboot"
                    .to_owned()
            )
        );
        until(|| async { vm.events().len() == 1 }).await;
        let config = || async {
            let kind = "MachineConfigs.config.talos.dev";
            lab.admin(CP).yaml("config", kind, "v1alpha1").await.unwrap_or_default()
        };
        until(|| async { config().await.contains("FOO: bar") }).await;
    });
}

/// A kubelet may not change the taints of its own Node, and Talos writes labels and taints in one request.
#[test]
fn taints_in_the_config_of_a_worker_never_take_effect_and_keep_its_labels_away() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = lab.first_control_plane("cp-1", CP).await;
        let _worker = lab.vm("w-1", "10.10.0.21");
        _worker.on();
        lab.maintenance("10.10.0.21").await;
        let registered =
            "    kubelet:\n        extraConfig:\n            registerWithTaints: [{ key: gpu, effect: NoSchedule }]\n";
        let config = worker("w-1").replace("    kubelet:\n", registered);
        let own = "machine:\n    nodeLabels: { tier: gold }\n    nodeTaints: { dedicated: NoSchedule }\n";
        lab.configure("10.10.0.21", &config.replace("machine:\n", own)).await;
        let kube = Kube::admin(&lab, CP);
        let node = || async { kube.try_call("GET", "/api/v1/nodes/w-1", &[], "").await.map(|(_, node)| node) };
        until(|| async { node().await.is_some_and(|node| ready(&node)) }).await;
        let taints = |node: &serde_json::Value| -> Vec<String> {
            let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            taints
                .iter()
                .filter_map(|taint| Some(taint["key"].as_str()?.to_owned()))
                .collect()
        };
        let seen = node().await.unwrap();
        assert_eq!(taints(&seen), ["gpu"], "only those of the first registration");
        assert!(seen["metadata"]["labels"]["tier"].is_null(), "{seen}");
        // Without the taints the labels pass.
        let labels = "machine:\n    nodeLabels: { tier: gold }\n";
        let answer = lab
            .admin("10.10.0.21")
            .apply(&config.replace("machine:\n", labels), Mode::NoReboot)
            .await;
        assert!(answer.is_ok(), "{answer:?}");
        until(|| async { node().await.is_some_and(|node| node["metadata"]["labels"]["tier"] == "gold") }).await;
        assert_eq!(taints(&node().await.unwrap()), ["gpu"]);
    });
}
