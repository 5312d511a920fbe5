//! Stages and the conditions of readiness, as events tell them.

use std::sync::Arc;
use std::time::Duration;

use mainstay_sim::NodeFaults;
use prost::Message;
use talos_proto::machine;
use talos_proto::machine::apply_configuration_request::Mode;
use talos_proto::machine::machine_status_event::MachineStage;
use tokio::time::sleep;

use crate::lab::{Lab, Node, control_plane, in_world, until};
use crate::rows::CP;

/// The stages that a stream of events tells until it ends or is silent for two minutes.
async fn stages(node: &Node, tail: i32) -> Vec<(MachineStage, bool)> {
    let request = machine::EventsRequest {
        tail_events: tail,
        ..machine::EventsRequest::default()
    };
    let Ok(stream) = node.machine.clone().events(request).await else {
        return Vec::new();
    };
    let mut stream = stream.into_inner();
    let mut seen = Vec::new();
    while let Ok(Ok(Some(event))) = tokio::time::timeout(Duration::from_secs(120), stream.message()).await {
        let data = event.data.unwrap_or_default();
        if data.type_url.ends_with("machine.MachineStatusEvent") {
            let status = machine::MachineStatusEvent::decode(data.value.as_slice()).unwrap();
            seen.push((status.stage(), status.status.unwrap_or_default().ready));
        }
    }
    seen
}

fn words(stages: &[(MachineStage, bool)]) -> Vec<MachineStage> {
    let mut words: Vec<MachineStage> = stages.iter().map(|(stage, _)| *stage).collect();
    words.dedup();
    words
}

#[test]
fn a_disk_image_goes_from_booting_over_maintenance_to_running() {
    use MachineStage::{Booting, Maintenance, Rebooting, Running, Unknown};
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", CP);
        vm.on();
        lab.configure(CP, &control_plane("cp-1")).await;
        until(|| async { lab.admin(CP).bootstrap().await.is_ok() }).await;
        until(|| async { lab.admin(CP).machine_status().await.contains("ready: true") }).await;
        let told = stages(&lab.admin(CP), -1).await;
        assert_eq!(words(&told), [Unknown, Booting, Maintenance, Booting, Running]);
        let ready = |stage| told.iter().filter(move |(one, _)| *one == stage).map(|(_, ready)| *ready);
        assert!(
            ready(Unknown).all(|ready| ready) && ready(Maintenance).all(|ready| ready),
            "no checks apply there"
        );
        assert!(
            !ready(Booting).any(|ready| ready),
            "a first boot is never ready before it runs"
        );
        let node = lab.admin(CP);
        let (rebooting, ()) = tokio::join!(stages(&node, 0), async {
            sleep(Duration::from_secs(1)).await;
            node.machine.clone().reboot(machine::RebootRequest::default()).await.unwrap();
        });
        assert_eq!(rebooting, [(Rebooting, true)]);
    });
}

#[test]
fn a_boot_medium_passes_through_installing() {
    use MachineStage::{Booting, Installing, Maintenance, Rebooting, Unknown};
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.medium_vm("cp-1", CP, false);
        vm.on();
        lab.maintenance(CP).await;
        let node = lab.insecure(CP);
        let (told, ()) = tokio::join!(stages(&node, -1), async {
            sleep(Duration::from_secs(1)).await;
            lab.insecure(CP).apply(&control_plane("cp-1"), Mode::Auto).await.unwrap();
        });
        let words = words(&told);
        // The stream ends with the maintenance API, ten seconds after the config came.
        assert_eq!(words[..3], [Unknown, Booting, Maintenance]);
        assert!(
            words[3..].starts_with(&[Installing]) || words[3..].starts_with(&[Booting, Installing]),
            "{words:?}"
        );
        assert!(
            !words.contains(&Rebooting),
            "that comes when no client can be connected any more"
        );
    });
}

#[test]
fn reset_and_shutdown_have_stages_of_their_own() {
    for (reset, expected) in [(true, MachineStage::Resetting), (false, MachineStage::ShuttingDown)] {
        in_world(move |lab: Arc<Lab>| async move {
            let _vm = lab.first_control_plane("cp-1", CP).await;
            let node = lab.admin(CP);
            let (told, ()) = tokio::join!(stages(&node, 0), async {
                sleep(Duration::from_millis(100)).await;
                let mut client = node.machine.clone();
                if reset {
                    client.reset(machine::ResetRequest::default()).await.unwrap();
                } else {
                    client.shutdown(machine::ShutdownRequest::default()).await.unwrap();
                }
            });
            assert_eq!(told.last(), Some(&(expected, true)), "{told:?}");
        });
    }
}

#[test]
fn every_condition_has_its_name_and_reason() {
    in_world(|lab: Arc<Lab>| async move {
        let slow = NodeFaults {
            no_time_sync: true,
            ..NodeFaults::default()
        };
        lab.world.set_node_faults("cp-1", slow);
        let vm = lab.vm("cp-1", CP);
        vm.on();
        lab.configure(CP, &control_plane("cp-1")).await;
        let says = |part: &'static str| {
            let node = lab.admin(CP);
            async move { node.machine_status().await.contains(part) }
        };
        until(|| says("- name: time\n          reason: time is not synced")).await;
        until(|| says("- name: services\n          reason: kubelet not running, etcd not running, trustd not running")).await;
        lab.world.set_node_faults("cp-1", NodeFaults::default());
        until(|| says("- name: nodeReady\n          reason: node \"cp-1\" status is not available yet")).await;
        until(|| async { lab.admin(CP).bootstrap().await.is_ok() }).await;
        until(|| says("reason: etcd not running")).await;
        until(|| says("- name: nodeReady\n          reason: node \"cp-1\" is not ready")).await;
        until(|| says("- name: staticPods\n          reason: kube-system/kube-controller-manager-cp-1 not ready")).await;
        until(|| says("stage: running\nstatus:\n    ready: true\n    unmetConditions: []")).await;
    });
}
