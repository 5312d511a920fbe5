//! Another version on the same machine.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use talos_proto::machine;
use tokio::time::sleep;
use tonic::Code;

use crate::lab::{Lab, in_world, reflect, refusal, until};
use crate::rows::{CP, CP2, CP3};

const INSTALLER: &str =
    "factory.talos.dev/nocloud-installer/0000000000000000000000000000000000000000000000000000000000000000:v1.13.10";

async fn tag(lab: &Lab, address: &str) -> Option<String> {
    Some(lab.admin(address).version().await.ok()?.version?.tag)
}

fn legacy(force: bool) -> machine::UpgradeRequest {
    machine::UpgradeRequest {
        image: INSTALLER.to_owned(),
        force,
        ..machine::UpgradeRequest::default()
    }
}

#[test]
fn the_lifecycle_service_writes_the_disk_and_the_next_boot_runs_it() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.first_control_plane("cp-1", CP).await;
        let node = lab.admin(CP);
        let instance = json!({"driver": "CRI", "namespace": "NS_SYSTEM"});
        let upgrade = json!({"containerd": instance, "source": {"image_name": INSTALLER}});
        let path = "machine.LifecycleService/Upgrade";
        let patience = Duration::from_secs(60);
        let early = node.raw_within(patience, path, &upgrade, &[]).await;
        assert_eq!(
            (early.code, early.message),
            (
                Code::Internal,
                format!("upgrade failed: installer image \"{INSTALLER}\" not found in containerd store")
            )
        );
        let nameless = node.raw_within(patience, path, &json!({"containerd": instance}), &[]).await;
        assert_eq!(
            (nameless.code, nameless.message.as_str()),
            (Code::InvalidArgument, "installer image name is required")
        );
        let nowhere = node
            .raw_within(patience, path, &json!({"source": {"image_name": INSTALLER}}), &[])
            .await;
        assert_eq!(
            (nowhere.code, nowhere.message.as_str()),
            (Code::InvalidArgument, "invalid containerd namespace NS_UNKNOWN")
        );
        let mixed = json!({"containerd": {"driver": "CONTAINERD", "namespace": "NS_CRI"}, "source": {"image_name": INSTALLER}});
        let mixed = node.raw_within(patience, path, &mixed, &[]).await;
        assert_eq!(
            (mixed.code, mixed.message.as_str()),
            (Code::InvalidArgument, "cannot use CRI namespace with containerd driver")
        );
        let pull = json!({"containerd": instance, "image_ref": INSTALLER});
        let pulled = node.raw_within(patience, "machine.ImageService/Pull", &pull, &[]).await;
        assert_eq!(pulled.code, Code::Ok);
        let done = node.raw_within(patience, path, &upgrade, &[]).await;
        let last = reflect::decode(path, done.answers.last().unwrap());
        assert_eq!(
            (done.code, last["progress"]["exit_code"].as_i64()),
            (Code::Ok, Some(0)),
            "{last}"
        );
        sleep(Duration::from_secs(60)).await;
        assert_eq!(
            (tag(&lab, CP).await.as_deref(), vm.events().len()),
            (Some("v1.13.9"), 0),
            "no reboot by itself"
        );
        let installed = json!({"containerd": instance, "source": {"image_name": INSTALLER}, "destination": {"disk": "/dev/sda"}});
        let again = node.raw("machine.LifecycleService/Install", &installed).await;
        assert_eq!(
            (again.code, again.message.as_str()),
            (Code::AlreadyExists, "machine is already installed")
        );
        node.machine.clone().reboot(machine::RebootRequest::default()).await.unwrap();
        until(|| async { tag(&lab, CP).await.as_deref() == Some("v1.13.10") }).await;
        lab.admin(CP)
            .machine
            .clone()
            .rollback(machine::RollbackRequest {})
            .await
            .unwrap();
        until(|| async { tag(&lab, CP).await.as_deref() == Some("v1.13.9") }).await;
    });
}

#[test]
fn the_older_call_looks_after_etcd_first() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = lab.first_control_plane("cp-1", CP).await;
        let second = lab.join_control_plane("cp-2", CP2).await;
        let upgrade = |request: machine::UpgradeRequest| {
            let mut client = lab.admin(CP).machine;
            async move { client.upgrade(request).await }
        };
        assert_eq!(
            refusal(upgrade(legacy(false)).await),
            (
                Code::Unknown,
                "error validating etcd for upgrade: etcd member count(2) is insufficient to maintain quorum if upgrade commences"
                    .to_owned()
            )
        );
        let nowhere = machine::UpgradeRequest {
            image: "ghcr.io/siderolabs/installer".to_owned(),
            ..machine::UpgradeRequest::default()
        };
        let (code, text) = refusal(upgrade(nowhere).await);
        assert_eq!(code, Code::Unknown);
        assert!(
            text.starts_with("error validating installer image \"ghcr.io/siderolabs/installer\": "),
            "{text}"
        );
        let _third = lab.join_control_plane("cp-3", CP3).await;
        second.off();
        sleep(Duration::from_secs(5)).await;
        let (_, text) = refusal(upgrade(legacy(false)).await);
        assert!(
            text.ends_with("is not started, all members must be running to perform an upgrade"),
            "{text}"
        );
        second.on();
        until(|| async { lab.admin(CP2).service_up("etcd").await }).await;
        let answer = upgrade(legacy(false)).await.unwrap().into_inner().messages.remove(0);
        assert_eq!((answer.ack.as_str(), answer.actor_id.len()), ("Upgrade request received", 36));
        until(|| async { lab.admin(CP).machine_status().await.contains("stage: upgrading") }).await;
        until(|| async { tag(&lab, CP).await.as_deref() == Some("v1.13.10") }).await;
        until(|| async { lab.admin(CP).service_up("etcd").await }).await;
        assert_eq!(lab.admin(CP).members().await.unwrap().len(), 3, "nothing was wiped");
    });
}

#[test]
fn force_skips_the_look() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = lab.first_control_plane("cp-1", CP).await;
        let _second = lab.join_control_plane("cp-2", CP2).await;
        lab.admin(CP).machine.clone().upgrade(legacy(true)).await.unwrap();
        until(|| async { tag(&lab, CP).await.as_deref() == Some("v1.13.10") }).await;
    });
}

#[test]
fn a_machine_that_runs_from_memory_cannot_be_upgraded() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.medium_vm("cp-1", CP, false);
        vm.on();
        lab.maintenance(CP).await;
        // Only os:admin may ask, and before a config no client has that role.
        let outcome = lab
            .insecure(CP)
            .raw("machine.MachineService/Upgrade", &json!({"image": INSTALLER}))
            .await;
        assert_eq!(
            (outcome.code, outcome.message.as_str()),
            (Code::PermissionDenied, "not authorized")
        );
    });
}
