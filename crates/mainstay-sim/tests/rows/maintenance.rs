//! Which calls a node without a config takes, by version.

use std::sync::Arc;

use serde_json::{Value, json};
use tonic::Code;

use crate::lab::{Lab, in_world};
use crate::rows::CP;

/// A call, and what a node of 1.12 and one of 1.13 say.
type Row = (&'static str, Value, (Code, &'static str), (Code, &'static str));

const OK: (Code, &str) = (Code::Ok, "");
const HANGS: (Code, &str) = (Code::DeadlineExceeded, "");
const DENIED: (Code, &str) = (Code::PermissionDenied, "not authorized");
const NOT_HERE: (Code, &str) = (Code::Unimplemented, "API is not implemented in maintenance mode");

fn stub(text: &'static str) -> (Code, &'static str) {
    (Code::Unimplemented, text)
}

fn rows() -> Vec<Row> {
    let none = || json!({});
    let status = || json!({"namespace": "runtime", "type": "MachineStatuses.runtime.talos.dev", "id": "machine"});
    let nothing = || json!({"devices": []});
    let cri = || json!({"containerd": {"driver": "CRI", "namespace": "NS_SYSTEM"}, "image_ref": "x:y"});
    let no_service = stub("unknown service machine.ImageService");
    vec![
        ("storage.StorageService/Disks", none(), OK, OK),
        ("cosi.resource.State/Get", status(), OK, OK),
        ("cosi.resource.State/Watch", status(), HANGS, HANGS),
        ("storage.StorageService/BlockDeviceWipe", nothing(), OK, OK),
        ("machine.MachineService/Version", none(), NOT_HERE, OK),
        (
            "machine.MachineService/Hostname",
            none(),
            stub("method Hostname not implemented"),
            OK,
        ),
        (
            "machine.MachineService/Dmesg",
            none(),
            stub("method Dmesg not implemented"),
            OK,
        ),
        (
            "machine.MachineService/Logs",
            json!({"namespace": "system", "id": "machined"}),
            stub("method Logs not implemented"),
            OK,
        ),
        (
            "machine.MachineService/Events",
            none(),
            stub("method Events not implemented"),
            HANGS,
        ),
        (
            "machine.MachineService/ServiceList",
            none(),
            stub("method ServiceList not implemented"),
            OK,
        ),
        (
            "machine.MachineService/Memory",
            none(),
            stub("method Memory not implemented"),
            OK,
        ),
        (
            "machine.MachineService/SystemStat",
            none(),
            stub("method SystemStat not implemented"),
            OK,
        ),
        (
            "machine.MachineService/List",
            json!({"root": "/"}),
            stub("method List not implemented"),
            OK,
        ),
        (
            "machine.MachineService/Mounts",
            none(),
            stub("method Mounts not implemented"),
            OK,
        ),
        ("time.TimeService/Time", none(), stub("unknown service time.TimeService"), OK),
        ("machine.MachineService/Reset", none(), NOT_HERE, DENIED),
        ("machine.MachineService/Upgrade", none(), NOT_HERE, DENIED),
        ("machine.MachineService/MetaWrite", none(), NOT_HERE, DENIED),
        ("machine.MachineService/MetaDelete", none(), NOT_HERE, DENIED),
        (
            "machine.MachineService/Bootstrap",
            none(),
            stub("method Bootstrap not implemented"),
            DENIED,
        ),
        (
            "machine.MachineService/Kubeconfig",
            none(),
            stub("method Kubeconfig not implemented"),
            DENIED,
        ),
        (
            "machine.MachineService/Reboot",
            none(),
            stub("method Reboot not implemented"),
            DENIED,
        ),
        (
            "machine.MachineService/Shutdown",
            none(),
            stub("method Shutdown not implemented"),
            DENIED,
        ),
        (
            "machine.MachineService/Read",
            json!({"path": "/etc/hostname"}),
            stub("method Read not implemented"),
            DENIED,
        ),
        (
            "machine.MachineService/Copy",
            none(),
            stub("method Copy not implemented"),
            DENIED,
        ),
        (
            "machine.MachineService/EtcdSnapshot",
            none(),
            stub("method EtcdSnapshot not implemented"),
            DENIED,
        ),
        (
            "machine.MachineService/EtcdMemberList",
            none(),
            stub("method EtcdMemberList not implemented"),
            stub("member list is only available on control plane nodes"),
        ),
        (
            "machine.MachineService/EtcdStatus",
            none(),
            stub("method EtcdStatus not implemented"),
            stub("etcd status is only available on control plane nodes"),
        ),
        (
            "machine.MachineService/EtcdAlarmList",
            none(),
            stub("method EtcdAlarmList not implemented"),
            stub("etcd alarm list is only available on control plane nodes"),
        ),
        (
            "machine.LifecycleService/Install",
            none(),
            stub("unknown service machine.LifecycleService"),
            DENIED,
        ),
        (
            "machine.LifecycleService/Upgrade",
            none(),
            stub("unknown service machine.LifecycleService"),
            DENIED,
        ),
        ("machine.ImageService/Pull", cri(), no_service, DENIED),
        (
            "machine.ImageService/List",
            json!({"containerd": {"driver": "CRI", "namespace": "NS_SYSTEM"}}),
            no_service,
            HANGS,
        ),
    ]
}

fn asks(version: &'static str, expected: impl Fn(&Row) -> (Code, &'static str) + Send + 'static) {
    in_world(move |lab: Arc<Lab>| async move {
        let vm = lab.vm_of("cp-1", CP, version, &[]);
        vm.on();
        lab.maintenance(CP).await;
        for row in rows() {
            let outcome = lab.insecure(CP).raw(row.0, &row.1).await;
            assert_eq!(
                (outcome.code, outcome.message.as_str()),
                expected(&row),
                "{version} {}",
                row.0
            );
            // Names of other nodes mean nothing here.
            let routed = lab.insecure(CP).raw_with(row.0, &row.1, &[("node", "10.10.0.99")]).await;
            assert_eq!(
                (routed.code, routed.message.as_str()),
                expected(&row),
                "{version} {} routed",
                row.0
            );
        }
    });
}

#[test]
fn up_to_1_12_a_small_server_takes_a_few_calls() {
    asks("1.11.6", |row| row.2);
    asks("1.12.11", |row| row.2);
}

#[test]
fn from_1_13_on_every_peer_is_a_reader() {
    asks("1.13.9", |row| row.3);
    asks("1.14.1", |row| row.3);
}
