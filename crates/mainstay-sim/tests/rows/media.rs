//! Boot media, installation, boot order and addresses.

use std::sync::Arc;
use std::time::Duration;

use mainstay_sim::NodeFaults;
use talos_proto::machine::apply_configuration_request::Mode;
use tokio::time::sleep;
use tonic::Code;

use crate::lab::{Lab, Vm, control_plane, in_world, refusal, until};
use crate::rows::CP;

async fn install(lab: &Lab, vm: &Vm) {
    vm.on();
    lab.maintenance(CP).await;
    lab.insecure(CP).apply(&control_plane("cp-1"), Mode::Auto).await.unwrap();
}

#[test]
fn a_boot_medium_installs_the_disk_and_boots_from_it() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.medium_vm("cp-1", CP, false);
        vm.on();
        lab.maintenance(CP).await;
        let node = lab.insecure(CP);
        let version = node.version().await.unwrap();
        assert_eq!(version.platform.unwrap().mode, "metal");
        assert!(
            node.yaml("runtime", "SystemDisks.block.talos.dev", "system-disk")
                .await
                .is_err(),
            "not installed"
        );
        assert!(!node.disks().await.unwrap().disks.iter().any(|disk| disk.system_disk));
        let elsewhere = control_plane("cp-1").replace("disk: /dev/sda", "disk: /dev/nvme0n1");
        let (code, text) = refusal(node.apply(&elsewhere, Mode::Auto).await);
        assert_eq!(code, Code::InvalidArgument);
        assert!(
            text.contains("specified install disk does not exist: \"/dev/nvme0n1\""),
            "{text}"
        );
        let before = boots(&vm);
        node.apply(&control_plane("cp-1"), Mode::Auto).await.unwrap();
        until(|| async { lab.admin(CP).machine_status().await.contains("stage: booting") }).await;
        assert_eq!(boots(&vm), before + 1, "one reboot");
        let disk = lab
            .admin(CP)
            .yaml("runtime", "SystemDisks.block.talos.dev", "system-disk")
            .await
            .unwrap();
        assert!(disk.contains("/dev/sda"), "{disk}");
    });
}

fn boots(vm: &Vm) -> usize {
    vm.events().len()
}

#[test]
fn a_disk_image_is_installed_already_and_never_reboots_for_its_config() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", CP);
        install(&lab, &vm).await;
        until(|| async { lab.admin(CP).version().await.is_ok() }).await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!(boots(&vm), 0);
    });
}

#[test]
fn a_failed_installation_leads_back_to_maintenance() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.medium_vm("cp-1", CP, false);
        let broken = NodeFaults {
            image_not_found: true,
            ..NodeFaults::default()
        };
        lab.world.set_node_faults("cp-1", broken);
        install(&lab, &vm).await;
        until(|| async { boots(&vm) == 1 }).await;
        lab.maintenance(CP).await;
        assert!(lab.admin(CP).version().await.is_err(), "nothing was kept");
        lab.world.set_node_faults("cp-1", NodeFaults::default());
        lab.insecure(CP).apply(&control_plane("cp-1"), Mode::Auto).await.unwrap();
        until(|| async { lab.admin(CP).version().await.is_ok() }).await;
    });
}

#[test]
fn a_medium_before_an_installed_disk_halts() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.medium_vm("cp-1", CP, true);
        install(&lab, &vm).await;
        until(|| async { lab.admin(CP).version().await.is_ok() }).await;
        vm.off();
        vm.on();
        sleep(Duration::from_secs(600)).await;
        assert!(lab.admin(CP).version().await.is_err() && lab.insecure(CP).version().await.is_err());
    });
}

#[test]
fn a_port_is_closed_while_a_machine_boots() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", CP);
        vm.on();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(
            refusal(lab.insecure(CP).version().await).0,
            Code::Unavailable,
            "firmware and kernel"
        );
        lab.configure(CP, &control_plane("cp-1")).await;
        lab.admin(CP)
            .machine
            .clone()
            .reboot(talos_proto::machine::RebootRequest::default())
            .await
            .unwrap();
        sleep(Duration::from_secs(2)).await;
        assert_eq!(
            refusal(lab.admin(CP).version().await).0,
            Code::Unavailable,
            "between two boots"
        );
        until(|| async { lab.admin(CP).version().await.is_ok() }).await;
    });
}

#[test]
fn an_address_of_the_config_is_there_at_once() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", CP);
        vm.on();
        lab.maintenance(CP).await;
        let moved = control_plane("cp-1").replace(
            "    kubelet:\n",
            "    network:\n        interfaces:\n            - interface: eth0\n              addresses:\n                - 10.10.0.77/16\n    kubelet:\n",
        );
        lab.insecure(CP).apply(&moved, Mode::Auto).await.unwrap();
        until(|| async { lab.admin("10.10.0.77").version().await.is_ok() }).await;
        let event = lab
            .admin("10.10.0.77")
            .list("network", "AddressStatuses.net.talos.dev")
            .await
            .unwrap();
        assert!(
            event
                .iter()
                .any(|address| address.metadata.as_ref().unwrap().id == "eth0/10.10.0.77/16")
        );
    });
}
