//! Resources of a machine's state, by type. Their binary form is read where it is filled, since a YAML parser costs a hundred times
//! more; the YAML form is read where the binary one is missing.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use talos_proto::spec::{block, cluster, config, etcd, extensions, hardware, k8s, network, runtime, time, v1alpha1};

/// A type of resource that can be read.
pub trait Spec: DeserializeOwned {
    const NAMESPACE: &'static str;
    const TYPE: &'static str;

    /// Reads the binary form. `None` for a type that is read from YAML only.
    fn of_proto(_encoded: &[u8]) -> Option<Result<Self, prost::DecodeError>> {
        None
    }
}

/// A resource as read.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource<S> {
    pub id: String,
    /// Grows by one with every change. `None` for a resource that is not there.
    pub version: Option<u64>,
    pub spec: S,
}

macro_rules! specs {
    ($($spec:ty, $namespace:literal, $type:literal $(, $message:ty)?;)*) => {
        $(impl Spec for $spec {
            const NAMESPACE: &'static str = $namespace;
            const TYPE: &'static str = $type;
            $(fn of_proto(encoded: &[u8]) -> Option<Result<Self, prost::DecodeError>> {
                Some(<$message as prost::Message>::decode(encoded).map(Self::from))
            })?
        })*
    };
}

specs! {
    AddressStatus, "network", "AddressStatuses.net.talos.dev", network::AddressStatusSpec;
    ClusterInfo, "cluster", "Infos.cluster.talos.dev", cluster::InfoSpec;
    Diagnostic, "runtime", "Diagnostics.runtime.talos.dev", runtime::DiagnosticSpec;
    Disk, "runtime", "Disks.block.talos.dev", block::DiskSpec;
    EtcdMemberId, "etcd", "EtcdMembers.etcd.talos.dev", etcd::MemberSpec;
    Extension, "runtime", "ExtensionStatuses.runtime.talos.dev", extensions::Layer;
    HostnameStatus, "network", "HostnameStatuses.net.talos.dev", network::HostnameStatusSpec;
    LinkStatus, "network", "LinkStatuses.net.talos.dev", network::LinkStatusSpec;
    MachineStatus, "runtime", "MachineStatuses.runtime.talos.dev", runtime::MachineStatusSpec;
    MachineType, "config", "MachineTypes.config.talos.dev", config::MachineTypeSpec;
    Member, "cluster", "Members.cluster.talos.dev", cluster::MemberSpec;
    NetworkStatus, "network", "NetworkStatuses.net.talos.dev", network::StatusSpec;
    NodeAddress, "network", "NodeAddresses.net.talos.dev", network::NodeAddressSpec;
    NodeStatus, "k8s", "NodeStatuses.kubernetes.talos.dev", k8s::NodeStatusSpec;
    Nodename, "k8s", "Nodenames.kubernetes.talos.dev", k8s::NodenameSpec;
    RunningService, "runtime", "Services.v1alpha1.talos.dev", v1alpha1::ServiceSpec;
    StaticPodStatus, "k8s", "StaticPodStatuses.kubernetes.talos.dev", k8s::StaticPodStatusSpec;
    SystemDisk, "runtime", "SystemDisks.block.talos.dev", block::SystemDiskSpec;
    SystemInformation, "hardware", "SystemInformations.hardware.talos.dev", hardware::SystemInformationSpec;
    TimeServers, "network", "TimeServerStatuses.net.talos.dev";
    TimeStatus, "runtime", "TimeStatuses.v1alpha1.talos.dev", time::StatusSpec;
    VolumeStatus, "runtime", "VolumeStatuses.block.talos.dev", block::VolumeStatusSpec;
}

/// What a machine is doing, and whether it is ready. Readiness means something in [`Stage::Booting`] and [`Stage::Running`] only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct MachineStatus {
    pub stage: Stage,
    pub status: Readiness,
}

impl MachineStatus {
    pub const ID: &'static str = "machine";

    /// Running, and every condition met. It can still be lost again: a reboot shows it before the static pods are judged.
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Running && self.status.ready
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Readiness {
    pub ready: bool,
    #[serde(default)]
    pub unmet_conditions: Vec<Unmet>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Unmet {
    pub name: String,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    Booting,
    Installing,
    Maintenance,
    Running,
    Rebooting,
    #[serde(rename = "shutting down")]
    ShuttingDown,
    Resetting,
    Upgrading,
    #[default]
    #[serde(other)]
    Unknown,
}

impl Stage {
    /// Its services end, its disks are unmounted, its API goes, in this order.
    pub fn is_going_down(self) -> bool {
        matches!(self, Self::Rebooting | Self::ShuttingDown | Self::Resetting | Self::Upgrading)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::Booting => "booting",
            Self::Installing => "installing",
            Self::Maintenance => "maintenance",
            Self::Running => "running",
            Self::Rebooting => "rebooting",
            Self::ShuttingDown => "shutting down",
            Self::Resetting => "resetting",
            Self::Upgrading => "upgrading",
        })
    }
}

/// A service, for as long as it runs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RunningService {
    pub running: bool,
    pub healthy: bool,
    /// It has no health check, or none has run yet.
    pub unknown: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineType {
    Init,
    ControlPlane,
    Worker,
    #[serde(other)]
    Unknown,
}

impl MachineType {
    pub const ID: &'static str = "machine-type";
}

/// What the firmware says about the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SystemInformation {
    pub uuid: String,
    #[serde(rename = "serialnumber")]
    pub serial_number: String,
    pub manufacturer: String,
    pub product_name: String,
}

impl SystemInformation {
    pub const ID: &'static str = "systeminformation";
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TimeStatus {
    pub synced: bool,
    pub sync_disabled: bool,
}

impl TimeStatus {
    pub const ID: &'static str = "node";
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TimeServers {
    pub time_servers: Vec<String>,
}

impl TimeServers {
    pub const ID: &'static str = "timeservers";
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkStatus {
    pub address_ready: bool,
    pub connectivity_ready: bool,
    pub hostname_ready: bool,
    pub etc_files_ready: bool,
}

impl NetworkStatus {
    pub const ID: &'static str = "status";
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct HostnameStatus {
    pub hostname: String,
    #[serde(default)]
    pub domainname: String,
}

impl HostnameStatus {
    pub const ID: &'static str = "hostname";
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct NodeAddress {
    /// With prefix length.
    pub addresses: Vec<String>,
}

/// An address that is on a link right now: the VIP shows up here on the machine that holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AddressStatus {
    pub address: String,
    pub link_name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LinkStatus {
    pub hardware_addr: String,
    pub permanent_addr: String,
    pub operational_state: String,
    pub link_state: bool,
    pub kind: String,
}

/// The name under which the machine is a Kubernetes node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Nodename {
    pub nodename: String,
}

impl Nodename {
    pub const ID: &'static str = "nodename";
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    pub nodename: String,
    pub node_ready: bool,
    pub unschedulable: bool,
    pub labels: BTreeMap<String, String>,
}

/// What the kubelet says about a static pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StaticPodStatus {
    pub phase: String,
    pub conditions: Vec<PodCondition>,
    pub container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodCondition {
    #[serde(rename = "type")]
    pub name: String,
    pub status: String,
    pub reason: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    pub name: String,
    pub ready: bool,
    pub restart_count: u32,
    pub state: ContainerState,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    pub waiting: Option<ContainerWaiting>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ContainerWaiting {
    pub reason: String,
    pub message: String,
}

impl StaticPodStatus {
    pub fn is_ready(&self) -> bool {
        self.conditions
            .iter()
            .any(|condition| condition.name == "Ready" && condition.status == "True")
    }
}

/// The machine's own member of etcd, there while etcd is healthy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct EtcdMemberId {
    /// Sixteen hexadecimal digits.
    #[serde(rename = "memberID")]
    pub member_id: String,
}

impl EtcdMemberId {
    pub const ID: &'static str = "local";
}

/// A machine of the cluster, as discovery knows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    pub node_id: String,
    #[serde(default)]
    pub addresses: Vec<String>,
    pub hostname: String,
    pub machine_type: MachineType,
    #[serde(default)]
    pub operating_system: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterInfo {
    pub cluster_id: String,
    pub cluster_name: String,
}

impl ClusterInfo {
    pub const ID: &'static str = "current";
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Disk {
    pub dev_path: String,
    pub size: u64,
    pub model: String,
    pub serial: String,
    pub transport: String,
    pub rotational: bool,
    pub readonly: bool,
    pub cdrom: bool,
}

/// The disk Talos is installed on. Absent while it runs from memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SystemDisk {
    #[serde(rename = "diskID")]
    pub disk_id: String,
    pub dev_path: String,
}

impl SystemDisk {
    pub const ID: &'static str = "system-disk";
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeStatus {
    pub phase: String,
    pub location: String,
    pub size: u64,
    pub error_message: String,
}

/// A warning of the machine about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Diagnostic {
    pub message: String,
    pub details: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Extension {
    pub image: String,
    pub metadata: ExtensionMetadata,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ExtensionMetadata {
    pub name: String,
    pub version: String,
}
