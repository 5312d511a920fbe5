//! Clusters of control planes: bootstrap, learners, quorum, leaving, the VIP, and who reaches whom.

use std::sync::Arc;
use std::time::Duration;

use crate::lab::{Lab, VIP, control_plane, in_world, refusal, until, worker};
use mainstay_sim::NodeFaults;
use sha2::{Digest, Sha256};
use talos_proto::machine;
use tokio::time::{Instant, sleep};
use tonic::Code;

const CP: [&str; 3] = ["10.10.0.11", "10.10.0.12", "10.10.0.13"];

async fn three(lab: &Lab) -> [crate::lab::Vm; 3] {
    let first = lab.first_control_plane("cp-1", CP[0]).await;
    let second = lab.join_control_plane("cp-2", CP[1]).await;
    let third = lab.join_control_plane("cp-3", CP[2]).await;
    [first, second, third]
}

/// Which of the nodes shows the VIP.
async fn holders(lab: &Lab) -> Vec<&'static str> {
    let mut found = Vec::new();
    for address in CP {
        let shown = lab
            .admin(address)
            .get("network", "AddressStatuses.net.talos.dev", &format!("eth0/{VIP}/32"))
            .await;
        found.extend(shown.is_ok().then_some(address));
    }
    found
}

#[test]
fn repeated_bootstraps_all_succeed_until_etcd_has_data() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", CP[0]);
        vm.on();
        lab.configure(CP[0], &control_plane("cp-1")).await;
        let node = lab.admin(CP[0]);
        until(|| async { node.service_up("kubelet").await }).await;
        node.bootstrap().await.unwrap();
        assert!(
            node.machine_status().await.starts_with("stage: running\n"),
            "the bootstrap itself ends the boot"
        );
        node.bootstrap().await.unwrap();
        until(|| async { node.service_up("etcd").await }).await;
        assert_eq!(
            refusal(node.bootstrap().await),
            (Code::AlreadyExists, "etcd data directory is not empty".to_owned())
        );
    });
}

#[test]
fn two_bootstraps_at_once_make_two_clusters_that_both_hold_the_vip() {
    in_world(|lab: Arc<Lab>| async move {
        let vms = [lab.vm("cp-1", CP[0]), lab.vm("cp-2", CP[1])];
        for (index, vm) in vms.iter().enumerate() {
            vm.on();
            lab.configure(CP[index], &control_plane(&format!("cp-{}", index + 1))).await;
        }
        for address in &CP[..2] {
            until(|| async { lab.admin(address).service_up("kubelet").await }).await;
        }
        let (one, other) = (lab.admin(CP[0]), lab.admin(CP[1]));
        let (first, second) = futures::join!(one.bootstrap(), other.bootstrap());
        first.unwrap();
        second.unwrap();
        until(|| async { one.members().await.is_ok() && other.members().await.is_ok() }).await;
        assert_eq!(
            (one.members().await.unwrap().len(), other.members().await.unwrap().len()),
            (1, 1)
        );
        until(|| async { holders(&lab).await == CP[..2] }).await;
    });
}

#[test]
fn joiners_are_learners_first_and_one_at_a_time() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = lab.first_control_plane("cp-1", CP[0]).await;
        lab.world.set_node_faults(
            "cp-2",
            NodeFaults {
                no_promotion: true,
                ..NodeFaults::default()
            },
        );
        let vms = [lab.vm("cp-2", CP[1]), lab.vm("cp-3", CP[2])];
        vms[0].on();
        lab.configure(CP[1], &control_plane("cp-2")).await;
        until(|| async {
            lab.admin(CP[0])
                .members()
                .await
                .is_ok_and(|members| members.iter().any(|member| member.is_learner && member.hostname == "cp-2"))
        })
        .await;
        vms[1].on();
        lab.configure(CP[2], &control_plane("cp-3")).await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!(
            lab.admin(CP[0]).members().await.unwrap().len(),
            2,
            "a second learner is not taken"
        );
        lab.world.set_node_faults("cp-2", NodeFaults::default());
        until(|| async {
            lab.admin(CP[0])
                .members()
                .await
                .is_ok_and(|members| members.len() == 3 && members.iter().all(|member| !member.is_learner))
        })
        .await;
    });
}

#[test]
fn a_partition_takes_the_quorum_from_the_smaller_side() {
    in_world(|lab: Arc<Lab>| async move {
        let vms = three(&lab).await;
        let addresses: Vec<std::net::IpAddr> = vms.iter().map(|vm| vm.address).collect();
        lab.world.net().partition(addresses[0], addresses[1..].to_vec());
        sleep(Duration::from_secs(15)).await;
        assert_eq!(
            refusal(lab.admin(CP[0]).members().await),
            (Code::Unknown, "etcdserver: no leader".to_owned())
        );
        assert_eq!(lab.admin(CP[1]).members().await.unwrap().len(), 3);
        lab.world.net().repair();
        until(|| async { lab.admin(CP[0]).members().await.is_ok() }).await;
    });
}

#[test]
fn a_node_that_left_joins_again_with_its_next_boot() {
    in_world(|lab: Arc<Lab>| async move {
        let vms = three(&lab).await;
        let node = lab.admin(CP[2]);
        let old = node
            .members()
            .await
            .unwrap()
            .into_iter()
            .find(|member| member.hostname == "cp-3")
            .unwrap()
            .id;
        node.machine
            .clone()
            .etcd_leave_cluster(machine::EtcdLeaveClusterRequest {})
            .await
            .unwrap();
        until(|| async {
            node.services()
                .await
                .unwrap()
                .iter()
                .any(|service| service.id == "etcd" && service.state == "Finished")
        })
        .await;
        assert_eq!(node.members().await.unwrap().len(), 2, "it asks the others");
        assert!(
            tokio::time::timeout(Duration::from_secs(5), node.machine.clone().etcd_status(()))
                .await
                .is_err(),
            "its own is gone: the call hangs"
        );
        sleep(Duration::from_secs(120)).await;
        assert_eq!(lab.admin(CP[0]).members().await.unwrap().len(), 2);
        vms[2].off();
        vms[2].on();
        until(|| async {
            lab.admin(CP[0]).members().await.is_ok_and(|members| {
                members
                    .iter()
                    .any(|member| member.hostname == "cp-3" && member.id != old && !member.is_learner)
            })
        })
        .await;
    });
}

#[test]
fn a_member_that_was_removed_while_it_ran_restarts_for_ever() {
    in_world(|lab: Arc<Lab>| async move {
        let _vms = three(&lab).await;
        let victim = lab
            .admin(CP[0])
            .members()
            .await
            .unwrap()
            .into_iter()
            .find(|member| member.hostname == "cp-3")
            .unwrap()
            .id;
        lab.admin(CP[0])
            .machine
            .clone()
            .etcd_remove_member_by_id(machine::EtcdRemoveMemberByIdRequest { member_id: victim })
            .await
            .unwrap();
        let node = lab.admin(CP[2]);
        until(|| async {
            node.services()
                .await
                .unwrap()
                .iter()
                .any(|service| service.id == "etcd" && service.state == "Waiting")
        })
        .await;
        assert!(
            tokio::time::timeout(
                Duration::from_secs(5),
                node.machine.clone().etcd_leave_cluster(machine::EtcdLeaveClusterRequest {})
            )
            .await
            .is_err()
        );
        assert_eq!(lab.admin(CP[0]).members().await.unwrap().len(), 2);
    });
}

#[test]
fn the_vip_moves_a_minute_after_its_owner_died_and_at_once_when_it_reboots() {
    in_world(|lab: Arc<Lab>| async move {
        let vms = three(&lab).await;
        let owner = holders(&lab).await[0];
        let index = CP.iter().position(|address| *address == owner).unwrap();
        vms[index].off();
        let died = Instant::now();
        until(|| async { !holders(&lab).await.is_empty() }).await;
        let gap = died.elapsed().as_secs();
        assert!((58..=68).contains(&gap), "{gap} s");
        let next = holders(&lab).await[0];
        lab.admin(next)
            .machine
            .clone()
            .reboot(machine::RebootRequest::default())
            .await
            .unwrap();
        let began = Instant::now();
        vms[index].on();
        until(|| async { holders(&lab).await.iter().any(|address| *address != next) }).await;
        // Two members are left while one reboots and one boots: the address comes with the quorum.
        assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
    });
}

#[test]
fn without_a_quorum_the_vip_is_kept_for_a_while_and_then_dropped() {
    in_world(|lab: Arc<Lab>| async move {
        let vms = three(&lab).await;
        assert_eq!(holders(&lab).await, [CP[0]]);
        vms[1].off();
        vms[2].off();
        sleep(Duration::from_secs(30)).await;
        assert!(
            lab.admin(CP[0])
                .get("network", "AddressStatuses.net.talos.dev", &format!("eth0/{VIP}/32"))
                .await
                .is_ok()
        );
        sleep(Duration::from_secs(35)).await;
        assert!(
            lab.admin(CP[0])
                .get("network", "AddressStatuses.net.talos.dev", &format!("eth0/{VIP}/32"))
                .await
                .is_err()
        );
        let services = lab.admin(CP[0]).services().await.unwrap();
        assert!(
            services
                .iter()
                .any(|service| service.id == "etcd" && !service.health.as_ref().unwrap().healthy),
            "its health check fails"
        );
    });
}

#[test]
fn a_snapshot_restores_the_cluster_on_one_node() {
    in_world(|lab: Arc<Lab>| async move {
        let first = lab.first_control_plane("cp-1", CP[0]).await;
        let node = lab.admin(CP[0]);
        let mut stream = node
            .machine
            .clone()
            .etcd_snapshot(machine::EtcdSnapshotRequest {})
            .await
            .unwrap()
            .into_inner();
        let mut snapshot = Vec::new();
        while let Some(data) = stream.message().await.unwrap() {
            snapshot.extend_from_slice(&data.bytes);
        }
        assert_eq!(snapshot.len() % 512, 32);
        let (database, hash) = snapshot.split_at(snapshot.len() - 32);
        assert_eq!(Sha256::digest(database).as_slice(), hash);
        drop(first);
        let again = lab.vm("cp-2", CP[1]);
        again.on();
        lab.configure(CP[1], &control_plane("cp-2")).await;
        let node = lab.admin(CP[1]);
        until(|| async { node.service_up("kubelet").await }).await;
        let recover = machine::BootstrapRequest {
            recover_etcd: true,
            recover_skip_hash_check: false,
        };
        node.machine.clone().bootstrap(recover).await.unwrap();
        until(|| async {
            node.services()
                .await
                .unwrap()
                .iter()
                .any(|service| service.id == "etcd" && service.state == "Failed")
        })
        .await;
        let chunks: Vec<_> = snapshot
            .chunks(4096)
            .map(|chunk| talos_proto::common::Data {
                metadata: None,
                bytes: chunk.to_vec(),
            })
            .collect();
        node.machine
            .clone()
            .etcd_recover(futures::stream::iter(chunks))
            .await
            .unwrap();
        node.machine.clone().bootstrap(recover).await.unwrap();
        until(|| async {
            node.members()
                .await
                .is_ok_and(|members| members.len() == 1 && members[0].hostname == "cp-2")
        })
        .await;
    });
}

#[test]
fn a_worker_has_no_api_until_a_trustd_answers() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("w-1", "10.10.0.21");
        vm.on();
        lab.maintenance("10.10.0.21").await;
        lab.insecure("10.10.0.21")
            .apply(&worker("w-1"), machine::apply_configuration_request::Mode::Auto)
            .await
            .unwrap();
        sleep(Duration::from_secs(120)).await;
        assert!(lab.admin("10.10.0.21").version().await.is_err() && lab.insecure("10.10.0.21").version().await.is_err());
        let control = lab.vm("cp-1", CP[0]);
        control.on();
        lab.configure(CP[0], &control_plane("cp-1")).await;
        until(|| async { lab.admin("10.10.0.21").version().await.is_ok() }).await;
        let node = lab.admin("10.10.0.21");
        assert_eq!(
            refusal(node.bootstrap().await),
            (
                Code::Unimplemented,
                "bootstrap is only available on control plane nodes".to_owned()
            )
        );
        assert_eq!(
            refusal(node.members().await),
            (
                Code::Unimplemented,
                "member list is only available on control plane nodes".to_owned()
            )
        );
    });
}

#[test]
fn alarms_are_listed_and_disarmed() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.first_control_plane("cp-1", CP[0]).await;
        assert!(lab.world.raise_etcd_alarm(vm.address));
        let mut client = lab.admin(CP[0]).machine.clone();
        let alarms = client
            .etcd_alarm_list(())
            .await
            .unwrap()
            .into_inner()
            .messages
            .remove(0)
            .member_alarms;
        assert_eq!(alarms.len(), 1);
        client.etcd_alarm_disarm(()).await.unwrap();
        assert!(
            client
                .etcd_alarm_list(())
                .await
                .unwrap()
                .into_inner()
                .messages
                .remove(0)
                .member_alarms
                .is_empty()
        );
    });
}
