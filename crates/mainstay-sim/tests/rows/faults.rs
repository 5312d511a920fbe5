//! Bad days of machines.

use std::sync::Arc;
use std::time::Duration;

use mainstay_sim::NodeFaults;
use talos_proto::machine;
use talos_proto::machine::apply_configuration_request::Mode;
use talos_proto::time::time_service_client::TimeServiceClient;
use tokio::time::sleep;
use tonic::Code;

use crate::lab::{Lab, control_plane, expired_certificate, in_world, os_trust, refusal, until, worker};
use crate::rows::{CP, CP2, WORKER};

fn faults(change: impl FnOnce(&mut NodeFaults)) -> NodeFaults {
    let mut faults = NodeFaults::default();
    change(&mut faults);
    faults
}

#[test]
fn a_worker_behind_a_blocked_trustd_has_no_api_until_it_is_open() {
    in_world(|lab: Arc<Lab>| async move {
        lab.world
            .set_node_faults("cp-1", faults(|faults| faults.trustd_blocked = true));
        let _control_plane = lab.first_control_plane("cp-1", CP).await;
        let vm = lab.vm("w-1", WORKER);
        vm.on();
        lab.maintenance(WORKER).await;
        lab.insecure(WORKER).apply(&worker("w-1"), Mode::Auto).await.unwrap();
        sleep(Duration::from_secs(300)).await;
        assert_eq!(refusal(lab.admin(WORKER).version().await).0, Code::Unavailable);
        assert_eq!(refusal(lab.insecure(WORKER).version().await).0, Code::Unavailable);
        lab.world.set_node_faults("cp-1", NodeFaults::default());
        // Another control plane whose trustd answers is as good.
        let _second = lab.join_control_plane("cp-2", CP2).await;
        until(|| async { lab.admin(WORKER).version().await.is_ok() }).await;
    });
}

#[test]
fn an_extension_that_never_starts_keeps_the_node_booting() {
    in_world(|lab: Arc<Lab>| async move {
        lab.world
            .set_node_faults("cp-1", faults(|faults| faults.broken_extension = true));
        let vm = lab.vm_of("cp-1", CP, "1.13.9", &["tailscale"]);
        vm.on();
        lab.configure(CP, &control_plane("cp-1")).await;
        until(|| async { lab.admin(CP).service_up("kubelet").await }).await;
        sleep(Duration::from_secs(600)).await;
        let status = lab.admin(CP).machine_status().await;
        assert!(
            status.starts_with("stage: booting\n") && status.contains("ext-tailscale not running"),
            "{status}"
        );
        let services = lab.admin(CP).services().await.unwrap();
        let states: Vec<(&str, &str)> = services.iter().map(|own| (own.id.as_str(), own.state.as_str())).collect();
        for id in [
            "apid",
            "auditd",
            "containerd",
            "cri",
            "dashboard",
            "machined",
            "syslogd",
            "udevd",
            "kubelet",
            "trustd",
        ] {
            assert!(states.contains(&(id, "Running")), "{id}: {states:?}");
        }
        assert!(
            states.contains(&("ext-tailscale", "Waiting")) && states.contains(&("etcd", "Preparing")),
            "{states:?}"
        );
    });
}

#[test]
fn a_kexec_that_hangs_ends_with_a_power_cycle() {
    in_world(|lab: Arc<Lab>| async move {
        lab.world.set_node_faults("cp-1", faults(|faults| faults.kexec_hangs = true));
        let vm = lab.first_control_plane("cp-1", CP).await;
        lab.admin(CP)
            .machine
            .clone()
            .reboot(machine::RebootRequest::default())
            .await
            .unwrap();
        sleep(Duration::from_secs(1800)).await;
        assert!(
            lab.admin(CP).version().await.is_err() && vm.events().is_empty(),
            "it never came back"
        );
        vm.off();
        vm.on();
        until(|| async { lab.admin(CP).service_up("etcd").await }).await;
        let mode = machine::reboot_request::Mode::Powercycle.into();
        lab.admin(CP)
            .machine
            .clone()
            .reboot(machine::RebootRequest { mode })
            .await
            .unwrap();
        until(|| async { vm.events().len() == 1 }).await;
        until(|| async { lab.admin(CP).version().await.is_ok() }).await;
    });
}

#[test]
fn a_clock_that_is_off_is_seen_until_time_is_synced() {
    in_world(|lab: Arc<Lab>| async move {
        lab.world.set_node_faults(
            "cp-1",
            faults(|faults| {
                faults.no_time_sync = true;
                faults.clock_skew = -3600;
            }),
        );
        let vm = lab.vm("cp-1", CP);
        vm.on();
        lab.configure(CP, &control_plane("cp-1")).await;
        let ask = || async { TimeServiceClient::new(lab.admin(CP).channel.clone()).time(()).await };
        let (code, text) = refusal(ask().await);
        assert_eq!(
            (code, text.contains("error querying NTP server")),
            (Code::Unknown, true),
            "{text}"
        );
        lab.world.set_node_faults("cp-1", faults(|faults| faults.clock_skew = -3600));
        let time = ask().await.unwrap().into_inner().messages.remove(0);
        assert_eq!(time.remotetime.unwrap().seconds - time.localtime.unwrap().seconds, 3600);
        until(|| async { lab.admin(CP).bootstrap().await.is_ok() }).await;
        let time = ask().await.unwrap().into_inner().messages.remove(0);
        assert_eq!(time.remotetime.unwrap().seconds, time.localtime.unwrap().seconds);
    });
}

#[test]
fn an_image_that_is_not_there_is_told_at_once() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        lab.world
            .set_node_faults("cp-1", faults(|faults| faults.image_not_found = true));
        let request = serde_json::json!({"containerd": {"driver": "CRI", "namespace": "NS_SYSTEM"}, "image_ref": "registry.k8s.io/pause:3.10"});
        let outcome = lab.admin(CP).raw("machine.ImageService/Pull", &request).await;
        assert_eq!(outcome.code, Code::NotFound);
        assert!(outcome.message.starts_with("error pulling image: "), "{}", outcome.message);
    });
}

#[test]
fn a_machine_of_another_cluster_is_a_stranger_to_our_credentials() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("other", CP);
        vm.on();
        // The same config under an authority of its own.
        let foreign = control_plane("other").replace(
            &crate::lab::os_ca_base64(),
            &base64::Engine::encode(&base64::engine::general_purpose::STANDARD, crate::lab::kubernetes_ca()),
        );
        lab.maintenance(CP).await;
        lab.insecure(CP).apply(&foreign, Mode::Auto).await.unwrap();
        sleep(Duration::from_secs(30)).await;
        assert!(lab.admin(CP).version().await.is_err());
        assert!(lab.insecure(CP).version().await.is_err(), "and it is no node in maintenance");
        assert!(lab.insecure(CP).disks().await.is_err());
    });
}

#[test]
fn two_machines_at_one_address_are_told_apart_by_their_hardware() {
    in_world(|lab: Arc<Lab>| async move {
        let mut stranger = lab.vm("stranger", CP);
        stranger.hardware.uuid = "11111111-2222-4333-8444-555555555555".to_owned();
        stranger.on();
        lab.maintenance(CP).await;
        let own = lab.vm("cp-1", CP);
        own.on();
        sleep(Duration::from_secs(60)).await;
        let seen = lab
            .insecure(CP)
            .yaml("hardware", "SystemInformations.hardware.talos.dev", "systeminformation")
            .await
            .unwrap();
        assert!(
            seen.contains("11111111-2222-4333-8444-555555555555"),
            "the first one keeps the address: {seen}"
        );
    });
}

#[test]
fn client_certificates_expire_with_the_clock_of_the_world() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        let old = lab.with_trust(CP, &os_trust(CP, Some(expired_certificate())));
        assert!(old.version().await.is_err());
        let request = machine::GenerateClientConfigurationRequest {
            roles: vec!["os:reader".to_owned()],
            crt_ttl: Some(prost_types::Duration { seconds: 3600, nanos: 0 }),
        };
        let minted = lab
            .admin(CP)
            .machine
            .clone()
            .generate_client_configuration(request)
            .await
            .unwrap();
        let minted = minted.into_inner().messages.remove(0);
        let pair = (String::from_utf8(minted.crt).unwrap(), String::from_utf8(minted.key).unwrap());
        let reader = || lab.with_trust(CP, &os_trust(CP, Some(pair.clone())));
        reader().version().await.unwrap();
        sleep(Duration::from_secs(3700)).await;
        assert!(reader().version().await.is_err(), "an hour later it has expired");
    });
}
