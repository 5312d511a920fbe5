//! A cluster comes up: boot, maintenance, config, bootstrap, join, Ready nodes, VIP.

use crate::lab::{Lab, VIP, control_plane, in_world, until, worker};
use std::sync::Arc;
use talos_proto::machine::apply_configuration_request::Mode;

#[test]
fn a_node_boots_into_maintenance_on_the_address_of_its_drive() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", "10.10.0.11");
        vm.on();
        let began = tokio::time::Instant::now();
        lab.maintenance("10.10.0.11").await;
        assert!(began.elapsed().as_secs() >= 14, "firmware and kernel take their time");
        let node = lab.insecure("10.10.0.11");
        assert_eq!(
            node.machine_status().await,
            "stage: maintenance\nstatus:\n    ready: true\n    unmetConditions: []\n"
        );
        let version = node.version().await.unwrap();
        assert_eq!(version.version.unwrap().tag, "v1.13.9");
        assert_eq!(version.platform.unwrap().mode, "cloud");
        assert!(version.features.is_none(), "RBAC comes with the config");
        let hardware = node
            .yaml("hardware", "SystemInformations.hardware.talos.dev", "systeminformation")
            .await
            .unwrap();
        assert!(hardware.contains(&format!("uuid: {}", vm.hardware.uuid)), "{hardware}");
    });
}

#[test]
fn three_control_planes_and_a_worker_become_a_cluster() {
    in_world(|lab: Arc<Lab>| async move {
        let mut vms = Vec::new();
        let names = [
            ("cp-1", "10.10.0.11"),
            ("cp-2", "10.10.0.12"),
            ("cp-3", "10.10.0.13"),
            ("w-1", "10.10.0.21"),
        ];
        for (name, address) in names {
            let vm = lab.vm(name, address);
            vm.on();
            vms.push(vm);
        }
        for (name, address) in names {
            lab.maintenance(address).await;
            let config = if name.starts_with("cp") {
                control_plane(name)
            } else {
                worker(name)
            };
            let answer = lab.insecure(address).apply(&config, Mode::Auto).await.unwrap();
            assert_eq!(
                (answer.mode(), answer.mode_details.as_str()),
                (Mode::NoReboot, "Applied configuration without a reboot")
            );
        }
        until(|| async { lab.admin("10.10.0.11").version().await.is_ok() }).await;
        assert!(
            lab.insecure("10.10.0.11").version().await.is_err(),
            "no certificate, no answer"
        );
        until(|| async { lab.admin("10.10.0.11").bootstrap().await.is_ok() }).await;
        until(|| async {
            lab.admin("10.10.0.11")
                .members()
                .await
                .is_ok_and(|members| members.len() == 3 && members.iter().all(|member| !member.is_learner))
        })
        .await;
        for (_, address) in names {
            until(|| async {
                lab.admin(address)
                    .machine_status()
                    .await
                    .contains("stage: running\nstatus:\n    ready: true")
            })
            .await;
        }
        let holders = async {
            let mut holders = 0;
            for (_, address) in names {
                let addresses = lab
                    .admin(address)
                    .list("network", "AddressStatuses.net.talos.dev")
                    .await
                    .unwrap();
                holders += addresses
                    .iter()
                    .filter(|address| address.metadata.as_ref().unwrap().id == format!("eth0/{VIP}/32"))
                    .count();
            }
            holders
        };
        assert_eq!(holders.await, 1, "the VIP has one owner");
        let node = lab
            .admin("10.10.0.21")
            .yaml("k8s", "NodeStatuses.kubernetes.talos.dev", "w-1")
            .await
            .unwrap();
        assert!(node.contains("nodeReady: true"), "{node}");
    });
}

/// Machine status of a cluster that comes up, with the instant of every change.
fn trace(seed: u64) -> Vec<String> {
    use mainstay_sim::WorldSpec;
    use std::time::Duration;
    let run = mainstay_net::simulate(seed, Duration::from_secs(3600), |entropy| async move {
        let lab = Lab::start(WorldSpec::default(), entropy).await;
        let began = tokio::time::Instant::now();
        let _first = lab.first_control_plane("cp-1", "10.10.0.11").await;
        let _second = lab.join_control_plane("cp-2", "10.10.0.12").await;
        let mut trace = Vec::new();
        for _ in 0..60 {
            let line = format!(
                "{} {}",
                lab.admin("10.10.0.11").machine_status().await,
                lab.admin("10.10.0.12").machine_status().await
            );
            trace.push(format!("{:?} {line}", began.elapsed()));
            tokio::time::sleep(Duration::from_millis(2300)).await;
        }
        let members = lab.admin("10.10.0.11").members().await.unwrap();
        trace.push(format!("{members:?}"));
        trace
    });
    run.unwrap()
}

#[test]
fn the_same_seed_gives_the_same_life_and_another_seed_other_ids() {
    let once = trace(1);
    assert_eq!(once, trace(1));
    assert_ne!(once.last(), trace(2).last());
}
