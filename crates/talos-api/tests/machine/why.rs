//! One sentence for each state that was seen on a real cluster, and for some that users report.

use serde::Deserialize;
use talos_api::resource::{Diagnostic, MachineStatus, NetworkStatus, Resource, StaticPodStatus, TimeStatus, VolumeStatus};
use talos_api::{Health, Service, ServiceEvent, ServiceState, Snapshot, why_no_answer, why_not_ready};

use crate::world::{Authority, Reply, run, target};

/// A state as recorded: the machine's status, and the services that were not simply up.
#[derive(Deserialize)]
struct Seen {
    name: String,
    stage: String,
    ready: bool,
    #[serde(default)]
    unmet: Vec<(String, String)>,
    #[serde(default)]
    services: Vec<(String, String, String, String)>,
    why: Option<String>,
}

fn state(word: &str) -> ServiceState {
    match word {
        "Waiting" => ServiceState::Waiting,
        "Preparing" => ServiceState::Preparing,
        "Running" => ServiceState::Running,
        "Finished" => ServiceState::Finished,
        "Failed" => ServiceState::Failed,
        "Starting" => ServiceState::Starting,
        other => panic!("{other}"),
    }
}

fn service(id: &str, word: &str, health: &str, last: &str) -> Service {
    let health = match health {
        "OK" => Health::Good,
        "?" => Health::Unknown,
        why => Health::Bad {
            why: why.strip_prefix("Fail").unwrap().trim_start_matches(": ").to_owned(),
        },
    };
    let events = vec![ServiceEvent {
        state: state(word),
        message: last.to_owned(),
    }];
    Service {
        id: id.to_owned(),
        state: state(word),
        health,
        events,
    }
}

fn snapshot(seen: &Seen) -> Snapshot {
    let unmet = seen
        .unmet
        .iter()
        .map(|(name, reason)| serde_json::json!({"name": name, "reason": reason}));
    let status =
        serde_json::json!({"stage": seen.stage, "status": {"ready": seen.ready, "unmetConditions": unmet.collect::<Vec<_>>()}});
    let services = seen
        .services
        .iter()
        .map(|(id, state, health, last)| service(id, state, health, last))
        .collect();
    Snapshot {
        machine: Some(serde_json::from_value(status).unwrap()),
        services,
        ..Default::default()
    }
}

#[test]
fn every_recorded_stage_has_its_sentence() {
    let stages = include_str!("../data/stages.jsonl")
        .lines()
        .map(|line| serde_json::from_str::<Seen>(line).unwrap());
    let mut count = 0;
    for seen in stages {
        assert_eq!(why_not_ready(&snapshot(&seen)), seen.why, "{}", seen.name);
        count += 1;
    }
    assert!(count >= 25, "{count}");
}

fn booting(unmet: &[(&str, &str)]) -> Snapshot {
    let unmet = unmet
        .iter()
        .map(|(name, reason)| ((*name).to_owned(), (*reason).to_owned()))
        .collect();
    snapshot(&Seen {
        name: String::new(),
        stage: "booting".into(),
        ready: false,
        unmet,
        services: Vec::new(),
        why: None,
    })
}

#[test]
fn a_clock_that_is_not_in_sync_comes_before_what_waits_for_it() {
    let mut seen = booting(&[
        ("time", "time is not synced"),
        ("services", "etcd not running"),
        ("nodeReady", "x"),
    ]);
    seen.time = Some(TimeStatus {
        synced: false,
        sync_disabled: false,
    });
    seen.time_servers = vec!["time.cloudflare.com".into()];
    seen.services = vec![service("etcd", "Waiting", "?", "Waiting for time sync, network")];
    assert_eq!(
        why_not_ready(&seen).unwrap(),
        "its clock is not in sync yet: no answer from time.cloudflare.com"
    );
}

#[test]
fn a_network_that_is_not_up_says_what_it_lacks() {
    let mut seen = booting(&[("network", "waiting on: connectivity, hostname")]);
    assert_eq!(
        why_not_ready(&seen).unwrap(),
        "its network is not up: waiting on: connectivity, hostname"
    );
    seen.network = Some(NetworkStatus {
        address_ready: true,
        etc_files_ready: true,
        ..Default::default()
    });
    assert_eq!(why_not_ready(&seen).unwrap(), "its network has no way out, no hostname");
}

#[test]
fn an_extension_that_never_starts_is_named() {
    let mut seen = booting(&[("services", "ext-qemu-guest-agent not running")]);
    let waits = "Waiting for file \"/dev/virtio-ports/org.qemu.guest_agent.0\" to exist";
    seen.services = vec![
        service("kubelet", "Running", "OK", "x"),
        service("ext-qemu-guest-agent", "Waiting", "?", waits),
    ];
    let why = why_not_ready(&seen).unwrap();
    assert_eq!(
        why,
        "ext-qemu-guest-agent waits for file \"/dev/virtio-ports/org.qemu.guest_agent.0\" to exist"
    );
}

#[test]
fn a_volume_that_failed_is_the_reason() {
    let mut seen = booting(&[("services", "kubelet not running")]);
    let spec = VolumeStatus {
        phase: "failed".into(),
        error_message: "filesystem type mismatch".into(),
        ..Default::default()
    };
    seen.volumes = vec![Resource {
        id: "EPHEMERAL".into(),
        version: Some(2),
        spec,
    }];
    assert_eq!(
        why_not_ready(&seen).unwrap(),
        "volume EPHEMERAL cannot be used: filesystem type mismatch"
    );
}

#[test]
fn a_static_pod_tells_why_its_container_waits() {
    let mut seen = booting(&[("staticPods", "kube-system/kube-apiserver-cp1 pending")]);
    let waiting = serde_json::json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image\nmore"}});
    let status = serde_json::json!({"phase": "Pending", "containerStatuses": [{"name": "kube-apiserver", "state": waiting}]});
    let spec: StaticPodStatus = serde_json::from_value(status).unwrap();
    seen.static_pods = vec![Resource {
        id: "kube-system/kube-apiserver-cp1".into(),
        version: Some(1),
        spec,
    }];
    assert_eq!(
        why_not_ready(&seen).unwrap(),
        "kube-apiserver is not ready: ImagePullBackOff, Back-off pulling image"
    );
}

#[test]
fn a_warning_of_the_machine_is_told_with_an_unready_node() {
    let mut seen = booting(&[("nodeReady", "node \"w1\" is not ready")]);
    seen.diagnostics = vec![Diagnostic {
        message: "kubelet server certificate rotation is enabled, but CSR is not approved".into(),
        details: vec![],
    }];
    let why = why_not_ready(&seen).unwrap();
    assert!(
        why.starts_with("Kubernetes node w1 is not Ready") && why.ends_with("CSR is not approved)"),
        "{why}"
    );
}

#[test]
fn a_machine_without_a_status_says_so() {
    assert_eq!(why_not_ready(&Snapshot::default()).unwrap(), "it does not tell its state yet");
    let odd: MachineStatus = serde_json::from_value(serde_json::json!({"stage": "hovering", "status": {"ready": true}})).unwrap();
    assert!(
        why_not_ready(&Snapshot {
            machine: Some(odd),
            ..Default::default()
        })
        .is_some()
    );
}

#[test]
fn a_look_at_a_machine_survives_what_cannot_be_read() {
    run(|world| async move {
        let authority = Authority::new("cluster");
        let machine = world.configured("10.0.0.11", &authority).await;
        let node = authority.access(&world.env).node(&target(&machine)).unwrap();
        machine.resource(
            "MachineStatuses.runtime.talos.dev",
            "machine",
            "stage: running\nstatus:\n    ready: true\n    unmetConditions: []\n",
        );
        machine.always("ServiceList", Reply::Silence);
        machine.always(
            "ListResources",
            Reply::Refuse(tonic::Code::PermissionDenied, "not authorized"),
        );
        let seen = node.look().await.unwrap();
        assert_eq!(why_not_ready(&seen), None);
        assert!(seen.services.is_empty() && seen.static_pods.is_empty());
    });
}

#[test]
fn a_machine_that_gives_no_answer_has_a_reason_too() {
    run(|world| async move {
        let authority = Authority::new("cluster");
        let machine = world.machine("10.0.0.11");
        world.net.attach(machine.at.ip());
        let node = authority.access(&world.env).node(&target(&machine)).unwrap();
        let refused = why_no_answer(&node.release().await.unwrap_err());
        assert!(refused.contains("the Talos API is not up yet"), "{refused}");
        let unconfigured = world.unconfigured("10.0.0.12").await;
        let node = authority.access(&world.env).node(&target(&unconfigured)).unwrap();
        let unknown = why_no_answer(&node.release().await.unwrap_err());
        assert_eq!(unknown, "it has no config yet, or belongs to another cluster");
    });
}
