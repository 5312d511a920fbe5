//! Other versions on the same machines, through our own client: images, both ways to upgrade, falls back, ways back, Kubernetes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mainstay_net::{Env, Target};
use mainstay_sim::NodeFaults;
use rcgen::ExtendedKeyUsagePurpose::ClientAuth;
use serde_json::Value;
use talos_api::resource::{
    Disk, Extension, LinkStatus, MachineStatus, MachineType, NodeAddress, NodeStatus, RunningService, Spec, Stage,
    StaticPodStatus, SystemInformation, TimeStatus, VolumeStatus,
};
use talos_api::{
    Access, AlarmKind, Class, EtcdAlarm, Followed, ImageStore, LegacyUpgrade, Mode, Next, Node, Outcome, Release, SnapshotCheck,
};
use tokio::time::{Instant, sleep};

use crate::lab::kube::Kube;
use crate::lab::{Lab, Vm, client_certificate, control_plane, in_world, os_ca, to_identity, until};

const CP: &str = "10.10.0.11";
const CP2: &str = "10.10.0.12";
const CP3: &str = "10.10.0.13";
const OLD: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const NEW: &str = "1111111111111111111111111111111111111111111111111111111111111111";

fn installer(schematic: &str, version: &str) -> String {
    format!("factory.talos.dev/nocloud-installer/{schematic}:v{version}")
}

fn access(lab: &Lab) -> Access {
    let env = Env {
        dialer: lab.world.dialer(),
        wall: lab.world.wall(),
        entropy: lab.entropy.clone(),
    };
    Access::new(&env, os_ca(), to_identity(client_certificate(&["os:admin"], &[ClientAuth])))
}

fn target(address: &str) -> Target {
    Target::new(address, 50000)
}

fn node(lab: &Lab, address: &str) -> Node {
    access(lab).node(&target(address)).unwrap()
}

async fn release(lab: &Lab) -> Release {
    node(lab, CP).release().await.unwrap()
}

async fn runs(lab: &Lab, version: &str) -> bool {
    node(lab, CP).release().await.is_ok_and(|runs| runs.to_string() == version)
}

async fn old_control_plane(lab: &Lab, talos: &str, kubernetes: &str) -> Vm {
    let vm = lab.vm_of("cp-1", CP, talos, &[]);
    vm.on();
    lab.configure(CP, &control_plane("cp-1").replace("v1.36.3", kubernetes)).await;
    until(|| async { lab.admin(CP).bootstrap().await.is_ok() }).await;
    until(|| async { lab.admin(CP).service_up("etcd").await }).await;
    vm
}

async fn pull(lab: &Lab, image: &str) -> Result<(), talos_api::Error> {
    let release = release(lab).await;
    node(lab, CP).pull_image(&release, ImageStore::System, image, drop).await
}

#[test]
fn a_pulled_installer_is_listed_and_written_and_the_reboot_runs_it_with_its_schematic() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        let (image, release) = (installer(NEW, "1.13.10"), release(&lab).await);
        let unpulled = node(&lab, CP).write_system(&image, |_| ()).await.unwrap_err();
        assert_eq!(
            (unpulled.outcome(), unpulled.class()),
            (Outcome::Refused, Some(Class::NotFound))
        );
        let (began, mut layers) = (Instant::now(), Vec::new());
        node(&lab, CP)
            .pull_image(&release, ImageStore::System, &image, |layer| layers.push(layer.done))
            .await
            .unwrap();
        assert!(began.elapsed() >= Duration::from_secs(8), "an installer takes its time");
        assert_eq!((layers.first(), layers.last()), (Some(&false), Some(&true)));
        let listed = |store| {
            let (lab, release, image) = (Arc::clone(&lab), release.clone(), image.clone());
            async move {
                let images = node(&lab, CP).images(&release, store).await.unwrap();
                images.iter().any(|it| it.name == image)
            }
        };
        assert!(listed(ImageStore::System).await && !listed(ImageStore::Pods).await);
        let before = node(&lab, CP).running().await.unwrap();
        assert_eq!(before.schematic.as_deref(), Some(OLD));
        let mut heard = String::new();
        let written = node(&lab, CP)
            .write_system(&image, |text| heard.push_str(text))
            .await
            .unwrap();
        assert!(written.is_written() && heard.contains("installation complete"), "{heard}");
        assert_eq!(node(&lab, CP).running().await.unwrap(), before, "armed, and nothing rebooted");
        node(&lab, CP).reboot().await.unwrap();
        until(|| async { runs(&lab, "1.13.10").await }).await;
        let after = node(&lab, CP).running().await.unwrap();
        assert_eq!(after.schematic.as_deref(), Some(NEW));
        assert_ne!(after.boot_id, before.boot_id);
        until(|| async { lab.admin(CP).service_up("cri").await }).await;
        assert!(listed(ImageStore::System).await, "images survive a reboot");
        node(&lab, CP).rollback().await.unwrap();
        until(|| async { runs(&lab, "1.13.9").await }).await;
    });
}

#[test]
fn a_power_cut_boots_an_armed_machine_into_the_other_system() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.first_control_plane("cp-1", CP).await;
        let image = installer(OLD, "1.13.10");
        pull(&lab, &image).await.unwrap();
        assert!(node(&lab, CP).write_system(&image, |_| ()).await.unwrap().is_written());
        vm.off();
        vm.on();
        until(|| async { runs(&lab, "1.13.10").await }).await;
    });
}

#[test]
fn a_system_that_does_not_boot_falls_back_to_the_one_before() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.first_control_plane("cp-1", CP).await;
        let faults = NodeFaults {
            unbootable: BTreeSet::from(["1.13.10".to_owned()]),
            ..NodeFaults::default()
        };
        lab.world.set_node_faults("cp-1", faults);
        let before = node(&lab, CP).running().await.unwrap();
        let image = installer(OLD, "1.13.10");
        pull(&lab, &image).await.unwrap();
        assert!(node(&lab, CP).write_system(&image, |_| ()).await.unwrap().is_written());
        node(&lab, CP).reboot().await.unwrap();
        until(|| async { vm.events().len() == 2 }).await;
        until(|| async { runs(&lab, "1.13.9").await }).await;
        let after = node(&lab, CP).running().await.unwrap();
        assert_ne!(after.boot_id, before.boot_id, "another boot, and the old version: a rollback");
        assert_eq!(after.schematic, before.schematic);
    });
}

#[test]
fn installers_that_fail_or_do_not_fit_change_nothing() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.first_control_plane("cp-1", CP).await;
        let far = installer(OLD, "1.16.0");
        pull(&lab, &far).await.unwrap();
        let refused = node(&lab, CP).write_system(&far, |_| ()).await.unwrap();
        assert_eq!(refused.exit_code, 1);
        assert!(
            refused
                .output
                .contains("host version 1.13.9 is too old to upgrade to Talos 1.16.0"),
            "{}",
            refused.output
        );
        // Talos 1.12 does not know Kubernetes 1.36.
        let back = installer(OLD, "1.12.11");
        pull(&lab, &back).await.unwrap();
        let refused = node(&lab, CP).write_system(&back, |_| ()).await.unwrap();
        assert!(
            refused
                .output
                .contains("version of Kubernetes 1.36.3 is too new to be used with Talos 1.12.11"),
            "{}",
            refused.output
        );
        let faults = NodeFaults {
            installer_fails: true,
            missing_images: BTreeSet::from([installer(NEW, "1.13.10")]),
            ..NodeFaults::default()
        };
        lab.world.set_node_faults("cp-1", faults);
        let image = installer(OLD, "1.13.10");
        pull(&lab, &image).await.unwrap();
        assert!(!node(&lab, CP).write_system(&image, |_| ()).await.unwrap().is_written());
        let missing = pull(&lab, &installer(NEW, "1.13.10")).await.unwrap_err();
        assert_eq!((missing.class(), missing.next()), (Some(Class::NotFound), Next::Look));
        vm.off();
        vm.on();
        until(|| async { runs(&lab, "1.13.9").await }).await;
    });
}

#[test]
fn one_installer_runs_at_a_time_and_ends_when_its_caller_hangs_up() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.first_control_plane("cp-1", CP).await;
        let image = installer(OLD, "1.13.10");
        pull(&lab, &image).await.unwrap();
        let first = node(&lab, CP);
        let second = async {
            sleep(Duration::from_secs(2)).await;
            node(&lab, CP).write_system(&image, |_| ()).await.unwrap_err()
        };
        let (outcome, refused) = tokio::join!(
            tokio::time::timeout(Duration::from_secs(5), first.write_system(&image, |_| ())),
            second
        );
        assert!(outcome.is_err(), "the caller gave up");
        assert_eq!((refused.class(), refused.next()), (Some(Class::NotYet), Next::Retry));
        sleep(Duration::from_secs(60)).await;
        vm.off();
        vm.on();
        until(|| async { runs(&lab, "1.13.9").await }).await;
    });
}

#[test]
fn before_1_13_one_call_upgrades_and_images_come_by_the_older_calls() {
    in_world(|lab: Arc<Lab>| async move {
        for (talos, to, kubernetes) in [("1.11.6", "1.12.11", "v1.34.1"), ("1.12.4", "1.12.11", "v1.35.2")] {
            let vm = old_control_plane(&lab, talos, kubernetes).await;
            let release = release(&lab).await;
            let kubelet = format!("ghcr.io/siderolabs/kubelet:{kubernetes}-new");
            node(&lab, CP)
                .pull_image(&release, ImageStore::System, &kubelet, drop)
                .await
                .unwrap();
            let images = node(&lab, CP).images(&release, ImageStore::System).await.unwrap();
            assert!(images.iter().any(|image| image.name == kubelet), "{talos}");
            let before = node(&lab, CP).boot_id().await.unwrap();
            let missing = node(&lab, CP)
                .upgrade("factory.talos.dev/nope/nocloud-installer:v1.12.11", LegacyUpgrade::default())
                .await
                .unwrap_err();
            assert_eq!(missing.class(), Some(Class::NotFound), "{missing:?}");
            let actor = node(&lab, CP)
                .upgrade(&installer(OLD, to), LegacyUpgrade::default())
                .await
                .unwrap();
            assert_eq!(actor.len(), 36);
            until(|| async {
                node(&lab, CP)
                    .status()
                    .await
                    .is_ok_and(|it| it.is_some_and(|it| it.stage == Stage::Upgrading))
            })
            .await;
            until(|| async { runs(&lab, to).await }).await;
            assert_ne!(node(&lab, CP).boot_id().await.unwrap(), before);
            vm.off();
        }
    });
}

#[test]
fn a_staged_upgrade_boots_twice() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = old_control_plane(&lab, "1.12.4", "v1.35.2").await;
        let how = LegacyUpgrade {
            stage: true,
            ..LegacyUpgrade::default()
        };
        node(&lab, CP).upgrade(&installer(OLD, "1.12.11"), how).await.unwrap();
        until(|| async { runs(&lab, "1.12.11").await }).await;
        assert_eq!(vm.events().len(), 2);
    });
}

#[test]
fn rollback_without_another_system_is_refused() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        let refused = node(&lab, CP).rollback().await.unwrap_err();
        assert!(refused.to_string().contains("previous UKI not found"), "{refused}");
    });
}

#[test]
fn a_snapshot_streams_and_its_hash_fits() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        until(|| async { lab.admin(CP).machine_status().await.contains("ready: true") }).await;
        let mut snapshot = node(&lab, CP).etcd_snapshot().await.unwrap();
        let (mut check, mut parts) = (SnapshotCheck::new(), 0);
        while let Some(part) = snapshot.next().await.unwrap() {
            check.push(&part);
            parts += 1;
        }
        let checked = check.finish().unwrap();
        assert!(parts > 1 && checked.size % 512 == 32, "{parts} parts, {} bytes", checked.size);
        let status = node(&lab, CP).etcd_status().await.unwrap();
        assert_eq!(
            (status.version.as_str(), status.storage_version.as_deref()),
            ("3.6.12", Some("3.6.0"))
        );
        assert!(status.db_size_in_use > 0 && status.db_size >= status.db_size_in_use);
    });
}

#[test]
fn the_leader_gives_its_office_away_and_alarms_name_their_member() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = lab.first_control_plane("cp-1", CP).await;
        let alone = node(&lab, CP).etcd_forfeit_leadership().await.unwrap_err();
        assert_eq!(alone.class(), Some(Class::WouldLoseQuorum));
        let second = lab.join_control_plane("cp-2", CP2).await;
        let _third = lab.join_control_plane("cp-3", CP3).await;
        assert!(node(&lab, CP).etcd_status().await.unwrap().is_leader());
        let heir = node(&lab, CP).etcd_forfeit_leadership().await.unwrap().unwrap();
        assert!(["cp-2", "cp-3"].contains(&heir.as_str()), "{heir}");
        assert!(!node(&lab, CP).etcd_status().await.unwrap().is_leader());
        assert_eq!(
            node(&lab, CP).etcd_forfeit_leadership().await.unwrap(),
            None,
            "it leads no more"
        );
        assert_eq!(node(&lab, CP).etcd_alarms().await.unwrap(), []);
        assert!(lab.world.raise_etcd_alarm(second.address));
        let member = node(&lab, CP2).etcd_status().await.unwrap().member;
        let kind = AlarmKind::NoSpace;
        assert_eq!(node(&lab, CP).etcd_alarms().await.unwrap(), [EtcdAlarm { member, kind }]);
    });
}

#[test]
fn a_followed_status_is_told_without_asking_over_a_reboot_and_a_power_cut() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.first_control_plane("cp-1", CP).await;
        let mut follow = access(&lab).follow_status(&target(CP));
        let patience = Duration::from_secs(300);
        let mut stages = Vec::new();
        let mut lost = 0;
        let settle = async |follow: &mut talos_api::Follow<MachineStatus>, stages: &mut Vec<Stage>, lost: &mut u32| loop {
            match follow.next(patience).await {
                Followed::Is(it) => {
                    stages.push(it.spec.stage);
                    if it.spec.is_ready() {
                        return;
                    }
                }
                Followed::Lost(_) => *lost += 1,
                other => panic!("{other:?}"),
            }
        };
        settle(&mut follow, &mut stages, &mut lost).await;
        assert_eq!(lost, 0, "{stages:?}");
        stages.clear();
        node(&lab, CP).reboot().await.unwrap();
        until(|| async { lab.admin(CP).machine_status().await.contains("stage: rebooting") }).await;
        settle(&mut follow, &mut stages, &mut lost).await;
        assert!(
            stages.contains(&Stage::Rebooting) && stages.contains(&Stage::Booting),
            "{stages:?}"
        );
        assert!(lost > 0, "the connection went with the machine");
        // A machine that loses its power says nothing at all: silence is looked into.
        assert!(matches!(
            follow.next(Duration::from_secs(3)).await,
            Followed::Nothing | Followed::Is(_)
        ));
        vm.off();
        let cut = Instant::now();
        while !matches!(follow.next(patience).await, Followed::Lost(_)) {}
        assert!(cut.elapsed() < Duration::from_secs(30), "{:?}", cut.elapsed());
        assert!(!follow.is_connected());
        vm.on();
        settle(&mut follow, &mut stages, &mut lost).await;
    });
}

/// Both encodings of every resource of a type, read by the client's own rules.
async fn agree<S: Spec + PartialEq + std::fmt::Debug>(lab: &Lab) {
    let found = lab.admin(CP).list(S::NAMESPACE, S::TYPE).await.unwrap();
    assert!(!found.is_empty(), "{} is empty", S::TYPE);
    for resource in found {
        let spec = resource.spec.unwrap();
        let binary = S::of_proto(&spec.proto_spec).expect("a binary form").unwrap();
        let text: S = serde_saphyr::from_str(&spec.yaml_spec).unwrap();
        assert_eq!(binary, text, "{}", S::TYPE);
    }
}

#[test]
fn the_binary_form_of_a_resource_says_what_its_yaml_says() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        until(|| async { lab.admin(CP).machine_status().await.contains("ready: true") }).await;
        agree::<MachineStatus>(&lab).await;
        agree::<MachineType>(&lab).await;
        agree::<RunningService>(&lab).await;
        agree::<SystemInformation>(&lab).await;
        agree::<TimeStatus>(&lab).await;
        agree::<NodeAddress>(&lab).await;
        agree::<LinkStatus>(&lab).await;
        agree::<NodeStatus>(&lab).await;
        agree::<StaticPodStatus>(&lab).await;
        agree::<Disk>(&lab).await;
        agree::<VolumeStatus>(&lab).await;
        agree::<Extension>(&lab).await;
    });
}

/// What the API server of the first control plane says; null while it does not answer.
async fn admin_get(lab: &Lab, address: &str, path: &str) -> Value {
    let answer = Kube::admin(lab, address).try_call("GET", path, &[], "").await;
    answer.map_or(Value::Null, |(_, value)| value)
}

async fn pod(lab: &Lab, component: &str) -> Value {
    admin_get(lab, CP, &format!("/api/v1/namespaces/kube-system/pods/{component}-cp-1")).await
}

async fn config_version(lab: &Lab, kind: &str, id: &str) -> String {
    let resource = lab.admin(CP).get("controlplane", kind, id).await.unwrap();
    resource.metadata.unwrap().version
}

#[test]
fn another_image_of_a_component_rolls_its_static_pod_alone() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        until(|| async { lab.admin(CP).machine_status().await.contains("ready: true") }).await;
        let (apiserver, scheduler) = (
            "APIServerConfigs.kubernetes.talos.dev",
            "SchedulerConfigs.kubernetes.talos.dev",
        );
        let before = config_version(&lab, apiserver, "kube-apiserver").await;
        let untouched = config_version(&lab, scheduler, "kube-scheduler").await;
        let seen = pod(&lab, "kube-apiserver").await;
        assert_eq!(seen["metadata"]["annotations"]["talos.dev/config-version"], before.as_str());
        let old = control_plane("cp-1");
        let new = old.replace("kube-apiserver:v1.36.3", "kube-apiserver:v1.36.4");
        let config = mainstay_net::Secret::new(new);
        node(&lab, CP).apply(&config, Mode::NoReboot).await.unwrap();
        let after = config_version(&lab, apiserver, "kube-apiserver").await;
        assert_ne!(after, before, "the resource changes with the config");
        assert_eq!(config_version(&lab, scheduler, "kube-scheduler").await, untouched);
        sleep(Duration::from_secs(5)).await;
        assert!(pod(&lab, "kube-apiserver").await.is_null(), "refused while it starts anew");
        until(|| async {
            pod(&lab, "kube-apiserver").await["metadata"]["annotations"]["talos.dev/config-version"] == after.as_str()
        })
        .await;
        let seen = pod(&lab, "kube-apiserver").await;
        assert_eq!(
            seen["spec"]["containers"][0]["image"],
            "registry.k8s.io/kube-apiserver:v1.36.4"
        );
        assert_eq!(admin_get(&lab, CP, "/version").await["gitVersion"], "v1.36.4");
        assert_eq!(
            pod(&lab, "kube-scheduler").await["spec"]["containers"][0]["image"],
            "registry.k8s.io/kube-scheduler:v1.36.3"
        );
    });
}

#[test]
fn another_kubelet_image_restarts_the_kubelet_and_nothing_else() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.first_control_plane("cp-1", CP).await;
        until(|| async { lab.admin(CP).machine_status().await.contains("ready: true") }).await;
        let mut services = node(&lab, CP).watch::<RunningService>(Some("kubelet")).await.unwrap();
        let new = control_plane("cp-1").replace("kubelet:v1.36.3", "kubelet:v1.36.4");
        node(&lab, CP)
            .apply(&mainstay_net::Secret::new(new), Mode::NoReboot)
            .await
            .unwrap();
        let mut told = Vec::new();
        loop {
            match services.next(Duration::from_secs(60)).await.unwrap() {
                talos_api::Told::Change(talos_api::Change::Gone { .. }) => told.push("gone"),
                talos_api::Told::Change(talos_api::Change::Is(it)) if it.spec.healthy => told.push("healthy"),
                talos_api::Told::Change(_) => {}
                other => panic!("{other:?} after {told:?}"),
            }
            if told.ends_with(&["gone", "healthy"]) {
                break;
            }
        }
        let version =
            || async { admin_get(&lab, CP, "/api/v1/nodes/cp-1").await["status"]["nodeInfo"]["kubeletVersion"].clone() };
        until(|| async { version().await == "v1.36.4" }).await;
        assert!(vm.events().is_empty(), "no reboot");
    });
}
