//! Refusals, by code and text: those that the recordings do not hold.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use talos_proto::machine::apply_configuration_request::Mode;
use tonic::Code;

use crate::lab::{Lab, control_plane, in_world, refusal, until, worker};
use crate::rows::{CP, WORKER};

#[test]
fn a_worker_names_what_only_control_planes_have() {
    in_world(|lab: Arc<Lab>| async move {
        let _control_plane = lab.first_control_plane("cp-1", CP).await;
        let vm = lab.vm("w-1", WORKER);
        vm.on();
        lab.configure(WORKER, &worker("w-1")).await;
        for (method, what) in [
            ("Bootstrap", "bootstrap"),
            ("Kubeconfig", "kubeconfig"),
            ("EtcdMemberList", "member list"),
            ("EtcdRemoveMemberByID", "etcd remove member"),
            ("EtcdLeaveCluster", "etcd leave"),
            ("EtcdForfeitLeadership", "etcd forfeit leadership"),
            ("EtcdSnapshot", "etcd snapshot"),
            ("EtcdRecover", "etcd recover"),
            ("EtcdAlarmList", "etcd alarm list"),
            ("EtcdAlarmDisarm", "etcd alarm disarm"),
            ("EtcdDefragment", "etcd defragment"),
            ("EtcdStatus", "etcd status"),
            ("EtcdDowngradeValidate", "etcd downgrade validate"),
            ("EtcdDowngradeEnable", "etcd downgrade enable"),
            ("EtcdDowngradeCancel", "etcd downgrade cancel"),
            ("GenerateClientConfiguration", "generate client configuration"),
        ] {
            let outcome = lab
                .admin(WORKER)
                .raw(&format!("machine.MachineService/{method}"), &json!({}))
                .await;
            let expected = format!("{what} is only available on control plane nodes");
            assert_eq!((outcome.code, outcome.message), (Code::Unimplemented, expected));
        }
        let outcome = lab.admin(WORKER).raw("cluster.ClusterService/HealthCheck", &json!({})).await;
        assert_eq!(
            (outcome.code, outcome.message.as_str()),
            (
                Code::Unimplemented,
                "cluster health check is only available on control plane nodes"
            )
        );
    });
}

#[test]
fn what_cannot_be_done_is_refused_in_talos_words() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        let wipe = |device: &str| json!({"devices": [{"device": device}]});
        let labels = |label: &str| json!([{"label": label, "wipe": true}]);
        let rows: Vec<(&str, Value, Code, &str)> = vec![
            (
                "storage.StorageService/BlockDeviceWipe",
                wipe("nope"),
                Code::NotFound,
                "blockdevice \"nope\" not found",
            ),
            (
                "storage.StorageService/BlockDeviceWipe",
                wipe("sda"),
                Code::FailedPrecondition,
                "blockdevice \"sda\" is in use by disk \"sda\"",
            ),
            (
                "machine.MachineService/Reset",
                json!({"mode": "USER_DISKS", "system_partitions_to_wipe": labels("STATE")}),
                Code::Unknown,
                "reset failed: invalid input, wipe mode USER_DISKS doesn't support SystemPartitionsToWipe parameter",
            ),
            (
                "machine.MachineService/Reset",
                json!({"mode": "SYSTEM_DISK", "user_disks_to_wipe": ["/dev/sdb"]}),
                Code::Unknown,
                "reset failed: invalid input, wipe mode SYSTEM_DISK doesn't support UserDisksToWipe parameter",
            ),
            (
                "machine.MachineService/Rollback",
                json!({}),
                Code::Unknown,
                "previous UKI not found",
            ),
            (
                "machine.MachineService/EtcdDowngradeValidate",
                json!({"version": "3.2"}),
                Code::Unknown,
                "etcdserver: invalid downgrade target version",
            ),
            (
                "machine.MachineService/EtcdDowngradeCancel",
                json!({}),
                Code::Unknown,
                "etcdserver: no inflight downgrade job",
            ),
            (
                "cosi.resource.State/Create",
                json!({}),
                Code::PermissionDenied,
                "write access is not allowed",
            ),
            (
                "cosi.resource.State/Update",
                json!({}),
                Code::PermissionDenied,
                "write access is not allowed",
            ),
            (
                "cosi.resource.State/Get",
                json!({"namespace": "network", "type": "ProbeStatuses.net.talos.dev", "id": "x"}),
                Code::NotFound,
                "resource ProbeStatuses.net.talos.dev(network/x@undefined) doesn't exist",
            ),
        ];
        for (method, request, code, text) in rows {
            let outcome = lab.admin(CP).raw(method, &request).await;
            assert_eq!((outcome.code, outcome.message.as_str()), (code, text), "{method} {request}");
        }
        let two = lab
            .admin(CP)
            .raw_with(
                "machine.MachineService/Version",
                &json!({}),
                &[("node", CP), ("node", WORKER)],
            )
            .await;
        assert_eq!(
            (two.code, two.message.as_str()),
            (Code::InvalidArgument, "node metadata must be single-valued")
        );
        let empty = lab
            .admin(CP)
            .raw_with("machine.MachineService/Version", &json!({}), &[("node", "")])
            .await;
        assert_eq!((empty.code, empty.message.as_str()), (Code::Internal, "invalid target \"\""));
    });
}

#[test]
fn two_calls_race_with_an_apply_that_reboots() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        let node = lab.admin(CP);
        until(|| async { node.machine_status().await.contains("ready: true") }).await;
        node.apply(&control_plane("cp-1"), Mode::Reboot).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(
            refusal(node.apply(&control_plane("cp-1"), Mode::Auto).await),
            (
                Code::FailedPrecondition,
                "configuration was already applied and node is rebooting, cannot apply more configuration changes until next reboot"
                    .to_owned()
            )
        );
    });
}

#[test]
fn an_overlap_of_networks_is_a_diagnostic_and_holds_the_health_check() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", CP);
        vm.on();
        let overlapping = control_plane("cp-1").replace("10.244.0.0/16", "10.10.0.0/16");
        lab.configure(CP, &overlapping).await;
        let found = lab.admin(CP).list("runtime", "Diagnostics.runtime.talos.dev").await.unwrap();
        let spec = found[0].spec.clone().unwrap().yaml_spec;
        assert!(
            spec.starts_with("message: host and Kubernetes pod/service CIDR addresses overlap\n"),
            "{spec}"
        );
        assert_eq!(found[0].metadata.clone().unwrap().id, "address-overlap");
    });
}
