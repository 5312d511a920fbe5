//! The binary forms of resources, in the words of their YAML forms.

use std::net::IpAddr;

use serde_json::Value;
use talos_proto::common::{NetIp, NetIpPrefix};
use talos_proto::spec::enums::{BlockVolumePhase, NethelpersOperationalState, RuntimeMachineStage};
use talos_proto::spec::{block, cluster, config, enums, etcd, extensions, hardware, k8s, network, runtime, time, v1alpha1};

use crate::resource::{
    AddressStatus, ClusterInfo, Diagnostic, Disk, EtcdMemberId, Extension, ExtensionMetadata, HostnameStatus, LinkStatus,
    MachineStatus, MachineType, Member, NetworkStatus, NodeAddress, NodeStatus, Nodename, Readiness, RunningService, Stage,
    StaticPodStatus, SystemDisk, SystemInformation, TimeStatus, Unmet, VolumeStatus,
};

/// Four bytes, or sixteen; a zone after them is of no use to another machine.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(four));
    }
    let sixteen = <[u8; 16]>::try_from(bytes.get(..16)?).ok()?;
    Some(IpAddr::from(sixteen))
}

fn ip(ip: &NetIp) -> String {
    address(&ip.ip).map(|address| address.to_string()).unwrap_or_default()
}

fn prefix(net: &NetIpPrefix) -> String {
    address(&net.ip)
        .map(|address| format!("{address}/{}", net.prefix_length))
        .unwrap_or_default()
}

fn hardware_address(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

impl From<runtime::MachineStatusSpec> for MachineStatus {
    fn from(spec: runtime::MachineStatusSpec) -> Self {
        let stage = match spec.stage() {
            RuntimeMachineStage::MachineStageUnknown => Stage::Unknown,
            RuntimeMachineStage::MachineStageBooting => Stage::Booting,
            RuntimeMachineStage::MachineStageInstalling => Stage::Installing,
            RuntimeMachineStage::MachineStageMaintenance => Stage::Maintenance,
            RuntimeMachineStage::MachineStageRunning => Stage::Running,
            RuntimeMachineStage::MachineStageRebooting => Stage::Rebooting,
            RuntimeMachineStage::MachineStageShuttingDown => Stage::ShuttingDown,
            RuntimeMachineStage::MachineStageResetting => Stage::Resetting,
            RuntimeMachineStage::MachineStageUpgrading => Stage::Upgrading,
        };
        let status = spec.status.unwrap_or_default();
        let unmet = status.unmet_conditions.into_iter().map(|unmet| Unmet {
            name: unmet.name,
            reason: unmet.reason,
        });
        Self {
            stage,
            status: Readiness {
                ready: status.ready,
                unmet_conditions: unmet.collect(),
            },
        }
    }
}

fn machine_type(kind: enums::MachineType) -> MachineType {
    match kind {
        enums::MachineType::TypeInit => MachineType::Init,
        enums::MachineType::TypeControlPlane => MachineType::ControlPlane,
        enums::MachineType::TypeWorker => MachineType::Worker,
        enums::MachineType::TypeUnknown => MachineType::Unknown,
    }
}

impl From<config::MachineTypeSpec> for MachineType {
    fn from(spec: config::MachineTypeSpec) -> Self {
        machine_type(spec.machine_type())
    }
}

impl From<v1alpha1::ServiceSpec> for RunningService {
    fn from(spec: v1alpha1::ServiceSpec) -> Self {
        Self {
            running: spec.running,
            healthy: spec.healthy,
            unknown: spec.unknown,
        }
    }
}

impl From<hardware::SystemInformationSpec> for SystemInformation {
    fn from(spec: hardware::SystemInformationSpec) -> Self {
        Self {
            uuid: spec.uuid,
            serial_number: spec.serial_number,
            manufacturer: spec.manufacturer,
            product_name: spec.product_name,
        }
    }
}

impl From<time::StatusSpec> for TimeStatus {
    fn from(spec: time::StatusSpec) -> Self {
        Self {
            synced: spec.synced,
            sync_disabled: spec.sync_disabled,
        }
    }
}

impl From<network::StatusSpec> for NetworkStatus {
    fn from(spec: network::StatusSpec) -> Self {
        Self {
            address_ready: spec.address_ready,
            connectivity_ready: spec.connectivity_ready,
            hostname_ready: spec.hostname_ready,
            etc_files_ready: spec.etc_files_ready,
        }
    }
}

impl From<network::HostnameStatusSpec> for HostnameStatus {
    fn from(spec: network::HostnameStatusSpec) -> Self {
        Self {
            hostname: spec.hostname,
            domainname: spec.domainname,
        }
    }
}

impl From<network::NodeAddressSpec> for NodeAddress {
    fn from(spec: network::NodeAddressSpec) -> Self {
        Self {
            addresses: spec.addresses.iter().map(prefix).collect(),
        }
    }
}

impl From<network::AddressStatusSpec> for AddressStatus {
    fn from(spec: network::AddressStatusSpec) -> Self {
        Self {
            address: spec.address.as_ref().map(prefix).unwrap_or_default(),
            link_name: spec.link_name,
        }
    }
}

impl From<network::LinkStatusSpec> for LinkStatus {
    fn from(spec: network::LinkStatusSpec) -> Self {
        let state = match spec.operational_state() {
            NethelpersOperationalState::OperStateUnknown => "unknown",
            NethelpersOperationalState::OperStateNotPresent => "notPresent",
            NethelpersOperationalState::OperStateDown => "down",
            NethelpersOperationalState::OperStateLowerLayerDown => "lowerLayerDown",
            NethelpersOperationalState::OperStateTesting => "testing",
            NethelpersOperationalState::OperStateDormant => "dormant",
            NethelpersOperationalState::OperStateUp => "up",
        };
        Self {
            hardware_addr: hardware_address(&spec.hardware_addr),
            permanent_addr: hardware_address(&spec.permanent_addr),
            operational_state: state.to_owned(),
            link_state: spec.link_state,
            kind: spec.kind,
        }
    }
}

impl From<k8s::NodenameSpec> for Nodename {
    fn from(spec: k8s::NodenameSpec) -> Self {
        Self { nodename: spec.nodename }
    }
}

impl From<k8s::NodeStatusSpec> for NodeStatus {
    fn from(spec: k8s::NodeStatusSpec) -> Self {
        Self {
            nodename: spec.nodename,
            node_ready: spec.node_ready,
            unschedulable: spec.unschedulable,
            labels: spec.labels.into_iter().collect(),
        }
    }
}

/// A protobuf structure as JSON. Its numbers are all floating point; whole ones become integers again.
fn json(value: prost_types::Value) -> Value {
    use prost_types::value::Kind;
    match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(flag)) => Value::Bool(flag),
        Some(Kind::StringValue(text)) => Value::String(text),
        Some(Kind::NumberValue(number)) => whole(number).map_or_else(|| Value::from(number), Value::from),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(json).collect(),
        Some(Kind::StructValue(fields)) => object(fields),
    }
}

/// Beyond 2^53 a floating point number does not name one integer any more.
fn whole(number: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (number.fract() == 0.0 && number.abs() <= EXACT)
        .then(|| format!("{number:.0}").parse().ok())
        .flatten()
}

fn object(fields: prost_types::Struct) -> Value {
    fields.fields.into_iter().map(|(key, value)| (key, json(value))).collect()
}

impl From<k8s::StaticPodStatusSpec> for StaticPodStatus {
    /// Parts that are not shaped as a pod's status are left out, as in a pod without a status.
    fn from(spec: k8s::StaticPodStatusSpec) -> Self {
        let status = spec.pod_status.map(object).unwrap_or_default();
        serde_json::from_value(status).unwrap_or_default()
    }
}

impl From<etcd::MemberSpec> for EtcdMemberId {
    fn from(spec: etcd::MemberSpec) -> Self {
        Self {
            member_id: spec.member_id,
        }
    }
}

impl From<cluster::MemberSpec> for Member {
    fn from(spec: cluster::MemberSpec) -> Self {
        Self {
            machine_type: machine_type(spec.machine_type()),
            node_id: spec.node_id,
            addresses: spec.addresses.iter().map(ip).collect(),
            hostname: spec.hostname,
            operating_system: spec.operating_system,
        }
    }
}

impl From<cluster::InfoSpec> for ClusterInfo {
    fn from(spec: cluster::InfoSpec) -> Self {
        Self {
            cluster_id: spec.cluster_id,
            cluster_name: spec.cluster_name,
        }
    }
}

impl From<block::DiskSpec> for Disk {
    fn from(spec: block::DiskSpec) -> Self {
        Self {
            dev_path: spec.dev_path,
            size: spec.size,
            model: spec.model,
            serial: spec.serial,
            transport: spec.transport,
            rotational: spec.rotational,
            readonly: spec.readonly,
            cdrom: spec.cdrom,
        }
    }
}

impl From<block::SystemDiskSpec> for SystemDisk {
    fn from(spec: block::SystemDiskSpec) -> Self {
        Self {
            disk_id: spec.disk_id,
            dev_path: spec.dev_path,
        }
    }
}

impl From<block::VolumeStatusSpec> for VolumeStatus {
    fn from(spec: block::VolumeStatusSpec) -> Self {
        let phase = match spec.phase() {
            BlockVolumePhase::VolumePhaseWaiting => "waiting",
            BlockVolumePhase::VolumePhaseFailed => "failed",
            BlockVolumePhase::VolumePhaseMissing => "missing",
            BlockVolumePhase::VolumePhaseLocated => "located",
            BlockVolumePhase::VolumePhaseProvisioned => "provisioned",
            BlockVolumePhase::VolumePhasePrepared => "prepared",
            BlockVolumePhase::VolumePhaseReady => "ready",
            BlockVolumePhase::VolumePhaseClosed => "closed",
        };
        Self {
            phase: phase.to_owned(),
            location: spec.location,
            size: spec.size,
            error_message: spec.error_message,
        }
    }
}

impl From<runtime::DiagnosticSpec> for Diagnostic {
    fn from(spec: runtime::DiagnosticSpec) -> Self {
        Self {
            message: spec.message,
            details: spec.details,
        }
    }
}

impl From<extensions::Layer> for Extension {
    fn from(spec: extensions::Layer) -> Self {
        let metadata = spec.metadata.unwrap_or_default();
        Self {
            image: spec.image,
            metadata: ExtensionMetadata {
                name: metadata.name,
                version: metadata.version,
            },
        }
    }
}
