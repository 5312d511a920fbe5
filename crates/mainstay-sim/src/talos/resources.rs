//! How the specs of resources are written.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};
use talos_proto::common;
use talos_proto::spec as proto;

use super::cosi::Spec;
pub(crate) use super::kinds::{
    ADDRESS, API_SERVER_CONFIG, BOOTSTRAP_MANIFESTS, CONTROLLER_MANAGER_CONFIG, DIAGNOSTIC, DISK, ENDPOINT, ETCD_MEMBER,
    ETCD_SPEC, EXTENSION, HOSTNAME, IDENTITY, INFO, KUBELET_SPEC, KUBEPRISM, KUBEPRISM_ENDPOINTS, Kind, LINK, MACHINE_CONFIG,
    MACHINE_STATUS, MACHINE_TYPE, MANIFEST, MANIFEST_STATUS, MEMBER, META_KEY, NAMESPACES, NETWORK_STATUS, NODE_ADDRESS,
    NODE_STATUS, NODENAME, OPERATOR_SPEC, PLATFORM, RESOLVERS, ROUTE, SCHEDULER_CONFIG, SECURITY, SERVICE, STATIC_POD,
    STATIC_POD_STATUS, SYSTEM_DISK, SYSTEM_INFORMATION, TIME_SERVERS, TIME_STATUS, UNIQUE_TOKEN, VOLUME, find,
};
use super::shown::Directory;

/// By their numbers in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Unknown = 0,
    Booting = 1,
    Installing = 2,
    Maintenance = 3,
    Running = 4,
    Rebooting = 5,
    ShuttingDown = 6,
    Resetting = 7,
    Upgrading = 8,
}

impl Stage {
    pub fn number(self) -> i32 {
        self as i32
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Booting => "booting",
            Self::Installing => "installing",
            Self::Maintenance => "maintenance",
            Self::Running => "running",
            Self::Rebooting => "rebooting",
            Self::ShuttingDown => "shutting down",
            Self::Resetting => "resetting",
            Self::Upgrading => "upgrading",
        }
    }
}

pub(crate) fn machine_status(stage: Stage, unmet: &[(&'static str, String)]) -> Spec {
    let ready = unmet.is_empty();
    let conditions: Vec<Value> = unmet
        .iter()
        .map(|(name, reason)| json!({"name": name, "reason": reason}))
        .collect();
    let value = json!({"stage": stage.word(), "status": {"ready": ready, "unmetConditions": conditions}});
    let unmet_conditions = unmet
        .iter()
        .map(|(name, reason)| proto::runtime::UnmetCondition {
            name: (*name).to_owned(),
            reason: reason.clone(),
        })
        .collect();
    let status = proto::runtime::MachineStatusStatus { ready, unmet_conditions };
    Spec::new(
        value,
        &proto::runtime::MachineStatusSpec {
            stage: stage.number(),
            status: Some(status),
        },
    )
}

pub(crate) fn service(running: bool, healthy: bool, unknown: bool) -> Spec {
    Spec::new(
        json!({"running": running, "healthy": healthy, "unknown": unknown}),
        &proto::v1alpha1::ServiceSpec {
            running,
            healthy,
            unknown,
        },
    )
}

pub(crate) fn machine_config(text: &str) -> Spec {
    let message = proto::config::MachineConfigSpec {
        yaml_marshalled: text.as_bytes().to_vec(),
    };
    Spec::new(text, &message)
}

pub(crate) fn machine_type(word: &str) -> Spec {
    let number = match word {
        "controlplane" => 2,
        "worker" => 3,
        _ => 0,
    };
    Spec::new(json!(word), &proto::config::MachineTypeSpec { machine_type: number })
}

fn net_ip(address: IpAddr) -> common::NetIp {
    let ip = match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    common::NetIp { ip }
}

fn net_prefix(net: IpNet) -> common::NetIpPrefix {
    common::NetIpPrefix {
        ip: net_ip(net.addr()).ip,
        prefix_length: i32::from(net.prefix_len()),
    }
}

pub(crate) fn nodename(name: &str) -> Spec {
    let value = json!({"nodename": name, "hostnameVersion": "1", "skipNodeRegistration": false});
    Spec::new(
        value,
        &proto::k8s::NodenameSpec {
            nodename: name.to_owned(),
            hostname_version: "1".to_owned(),
            skip_node_registration: false,
        },
    )
}

/// From the Node object as the API server has it.
pub(crate) fn node_status(node: &Value) -> Spec {
    let name = node["metadata"]["name"].as_str().unwrap_or_default();
    let ready = node["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    let unschedulable = node["spec"]["unschedulable"] == true;
    let map = |key: &str| -> std::collections::BTreeMap<String, String> {
        let entries = node["metadata"][key].as_object().into_iter().flatten();
        entries
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect()
    };
    let cidrs: Vec<IpNet> = node["spec"]["podCIDRs"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|net| net.as_str()?.parse().ok())
        .collect();
    let (labels, annotations) = (map("labels"), map("annotations"));
    let mut value = json!({"nodename": name, "nodeReady": ready, "unschedulable": unschedulable, "labels": labels, "annotations": annotations});
    if !cidrs.is_empty() {
        value["podCIDRs"] = json!(cidrs);
    }
    let pod_cid_rs = cidrs.into_iter().map(net_prefix).collect();
    Spec::new(
        value,
        &proto::k8s::NodeStatusSpec {
            nodename: name.to_owned(),
            node_ready: ready,
            unschedulable,
            labels,
            annotations,
            pod_cid_rs,
        },
    )
}

/// Any JSON object as a protobuf `Struct`.
fn structure(value: &Value) -> prost_types::Struct {
    let fields = value
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.clone(), any(value)))
        .collect();
    prost_types::Struct { fields }
}

fn any(value: &Value) -> prost_types::Value {
    use prost_types::value::Kind as K;
    let kind = match value {
        Value::Null => K::NullValue(0),
        Value::Bool(flag) => K::BoolValue(*flag),
        Value::Number(number) => K::NumberValue(number.as_f64().unwrap_or(0.0)),
        Value::String(text) => K::StringValue(text.clone()),
        Value::Array(items) => K::ListValue(prost_types::ListValue {
            values: items.iter().map(any).collect(),
        }),
        Value::Object(_) => K::StructValue(structure(value)),
    };
    prost_types::Value { kind: Some(kind) }
}

pub(crate) fn static_pod_status(status: &Value) -> Spec {
    Spec::new(
        status.clone(),
        &proto::k8s::StaticPodStatusSpec {
            pod_status: Some(structure(status)),
        },
    )
}

pub(crate) fn kubelet_spec(image: &str, node: &str, address: IpAddr) -> Spec {
    let args: Vec<String> = vec![
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubeconfig".to_owned(),
        "--cert-dir=/var/lib/kubelet/pki".to_owned(),
        "--config=/etc/kubernetes/kubelet.yaml".to_owned(),
        format!("--hostname-override={node}"),
        "--kubeconfig=/etc/kubernetes/kubeconfig-kubelet".to_owned(),
        format!("--node-ip={address}"),
    ];
    let config = json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "port": 10250, "rotateCertificates": true});
    let value = json!({"image": image, "args": args, "expectedNodename": node, "config": config});
    let message = proto::k8s::KubeletSpecSpec {
        image: image.to_owned(),
        args,
        expected_nodename: node.to_owned(),
        config: Some(structure(&config)),
        credential_provider_config: None,
    };
    Spec::new(value, &message)
}

pub(crate) fn manifest_status(applied: &[&str]) -> Spec {
    let names: Vec<String> = applied.iter().map(|name| (*name).to_owned()).collect();
    Spec::new(
        json!({"manifestsApplied": names}),
        &proto::k8s::ManifestStatusSpec {
            manifests_applied: names,
        },
    )
}

pub(crate) fn etcd_member(id: u64) -> Spec {
    let id = format!("{id:016x}");
    Spec::new(json!({"memberID": id}), &proto::etcd::MemberSpec { member_id: id })
}

pub(crate) fn etcd_spec(name: &str, address: IpAddr, image: &str) -> Spec {
    let any = IpAddr::from([0, 0, 0, 0]);
    let value = json!({
        "name": name, "advertisedAddresses": [address], "listenPeerAddresses": [any], "listenClientAddresses": [any], "image": image, "extraArgs": {},
    });
    let message = proto::etcd::SpecSpec {
        name: name.to_owned(),
        advertised_addresses: vec![net_ip(address)],
        image: image.to_owned(),
        listen_peer_addresses: vec![net_ip(any)],
        listen_client_addresses: vec![net_ip(any)],
    };
    Spec::new(value, &message)
}

/// A peer as discovery sees it.
pub(crate) struct Peer<'a> {
    pub node_id: &'a str,
    pub addresses: &'a [IpAddr],
    pub hostname: &'a str,
    pub control_plane: bool,
    pub version: &'a semver::Version,
}

pub(crate) fn member(peer: &Peer<'_>) -> Spec {
    let kind = if peer.control_plane { "controlplane" } else { "worker" };
    let os = format!("Talos (v{})", peer.version);
    let mut value = json!({"nodeId": peer.node_id, "addresses": peer.addresses, "hostname": peer.hostname, "machineType": kind, "operatingSystem": os});
    if peer.control_plane {
        value["controlPlane"] = json!({"port": 6443});
    }
    let message = proto::cluster::MemberSpec {
        node_id: peer.node_id.to_owned(),
        addresses: peer.addresses.iter().copied().map(net_ip).collect(),
        hostname: peer.hostname.to_owned(),
        machine_type: if peer.control_plane { 2 } else { 3 },
        operating_system: os,
        control_plane: peer
            .control_plane
            .then_some(proto::cluster::ControlPlane { api_server_port: 6443 }),
    };
    Spec::new(value, &message)
}

pub(crate) fn identity(node_id: &str) -> Spec {
    Spec::new(
        json!({"nodeId": node_id}),
        &proto::cluster::IdentitySpec {
            node_id: node_id.to_owned(),
        },
    )
}

pub(crate) fn info(id: &str, name: &str) -> Spec {
    let value = json!({"clusterId": id, "clusterName": name});
    Spec::new(
        value,
        &proto::cluster::InfoSpec {
            cluster_id: id.to_owned(),
            cluster_name: name.to_owned(),
        },
    )
}

pub(crate) fn hostname(name: &str) -> Spec {
    let (host, domain) = name.split_once('.').unwrap_or((name, ""));
    let message = proto::network::HostnameStatusSpec {
        hostname: host.to_owned(),
        domainname: domain.to_owned(),
    };
    Spec::new(json!({"hostname": host, "domainname": domain}), &message)
}

pub(crate) fn node_addresses(addresses: &[IpNet]) -> Spec {
    let value = json!({"addresses": addresses, "sortAlgorithm": "v1"});
    let message = proto::network::NodeAddressSpec {
        addresses: addresses.iter().copied().map(net_prefix).collect(),
        sort_algorithm: 0,
    };
    Spec::new(value, &message)
}

pub(crate) fn address(net: IpNet, link: &str, index: u32) -> Spec {
    let family = if net.addr().is_ipv4() { ("inet4", 2) } else { ("inet6", 10) };
    let host = net.addr().is_loopback();
    let value = json!({
        "address": net, "local": net.addr(), "linkIndex": index, "linkName": link, "family": family.0,
        "scope": if host { "host" } else { "global" }, "flags": "permanent",
    });
    let message = proto::network::AddressStatusSpec {
        address: Some(net_prefix(net)),
        local: Some(net_ip(net.addr())),
        link_index: index,
        link_name: link.to_owned(),
        family: family.1,
        scope: if host { 254 } else { 0 },
        flags: 128,
        ..proto::network::AddressStatusSpec::default()
    };
    Spec::new(value, &message)
}

pub(crate) fn link(name: &str, mac: &str, index: u32, up: bool) -> Spec {
    let lo = name == "lo";
    let state = match (lo, up) {
        (true, _) => ("unknown", 0),
        (false, true) => ("up", 6),
        (false, false) => ("down", 2),
    };
    let bytes: Vec<u8> = mac.split(':').filter_map(|part| u8::from_str_radix(part, 16).ok()).collect();
    let flags = if lo {
        "UP,LOOPBACK,RUNNING,LOWER_UP"
    } else {
        "UP,BROADCAST,RUNNING,MULTICAST,LOWER_UP"
    };
    let mut value = json!({
        "index": index, "type": if lo { "loopback" } else { "ether" }, "linkIndex": 0, "flags": flags, "hardwareAddr": mac, "permanentAddr": if lo { "" } else { mac },
        "broadcastAddr": if lo { "00:00:00:00:00:00" } else { "ff:ff:ff:ff:ff:ff" }, "mtu": if lo { 65536 } else { 1500 },
        "queueDisc": if lo { "noqueue" } else { "pfifo_fast" }, "operationalState": state.0, "kind": "", "slaveKind": "",
    });
    if !lo {
        value["busPath"] = json!("0000:06:12.0");
        value["driver"] = json!("virtio_net");
    }
    value["linkState"] = json!(up);
    value["port"] = json!("Other");
    value["duplex"] = json!("Unknown");
    let message = proto::network::LinkStatusSpec {
        index,
        r#type: if lo { 772 } else { 1 },
        hardware_addr: bytes.clone(),
        permanent_addr: if lo { Vec::new() } else { bytes },
        mtu: if lo { 65536 } else { 1500 },
        operational_state: state.1,
        driver: if lo { String::new() } else { "virtio_net".to_owned() },
        link_state: up,
        ..proto::network::LinkStatusSpec::default()
    };
    Spec::new(value, &message)
}

pub(crate) fn network_status(address: bool, connectivity: bool, hostname: bool) -> Spec {
    let value =
        json!({"addressReady": address, "connectivityReady": connectivity, "hostnameReady": hostname, "etcFilesReady": true});
    let message = proto::network::StatusSpec {
        address_ready: address,
        connectivity_ready: connectivity,
        hostname_ready: hostname,
        etc_files_ready: true,
    };
    Spec::new(value, &message)
}

pub(crate) fn resolvers(servers: &[IpAddr]) -> Spec {
    let message = proto::network::ResolverStatusSpec {
        dns_servers: servers.iter().copied().map(net_ip).collect(),
        search_domains: Vec::new(),
    };
    Spec::new(json!({"dnsServers": servers, "searchDomains": []}), &message)
}

pub(crate) fn time_servers(servers: &[String]) -> Spec {
    Spec::new(
        json!({"timeServers": servers}),
        &proto::network::TimeServerStatusSpec {
            ntp_servers: servers.to_vec(),
        },
    )
}

pub(crate) fn time_status(synced: bool, sync_disabled: bool) -> Spec {
    let value = json!({"synced": synced, "epoch": 0, "syncDisabled": sync_disabled});
    Spec::new(
        value,
        &proto::time::StatusSpec {
            synced,
            epoch: 0,
            sync_disabled,
        },
    )
}

/// `42949672960` as `43 GB`.
pub(crate) fn pretty_size(bytes: u64) -> String {
    let mut size = bytes as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if size < 1000.0 {
            return if size < 10.0 && unit != "B" {
                format!("{size:.1} {unit}")
            } else {
                format!("{size:.0} {unit}")
            };
        }
        size /= 1000.0;
    }
    format!("{size:.1} TB")
}

/// A block device as hardware shows it.
pub(crate) struct BlockDevice {
    pub name: String,
    pub size: u64,
    pub serial: String,
    pub virtio: bool,
    pub cdrom: bool,
}

pub(crate) fn disk(device: &BlockDevice) -> Spec {
    let path = format!("/dev/{}", device.name);
    let model = match (device.virtio, device.cdrom) {
        (_, true) => "QEMU DVD-ROM",
        (true, _) => "",
        (false, _) => "QEMU HARDDISK",
    };
    // SCSI disks hang on a virtio controller too.
    let transport = "virtio";
    let wwid = if device.serial.is_empty() {
        String::new()
    } else {
        format!("0QEMU    QEMU HARDDISK   {}", device.serial)
    };
    let value = json!({
        "dev_path": path, "size": device.size, "pretty_size": pretty_size(device.size), "io_size": 512, "sector_size": 512, "readonly": device.cdrom,
        "cdrom": device.cdrom, "model": model, "serial": device.serial, "wwid": wwid, "bus_path": "/pci0000:00/0000:00:05.0/virtio2", "sub_system": "/sys/class/block",
        "transport": transport, "rotational": true,
    });
    let message = proto::block::DiskSpec {
        size: device.size,
        io_size: 512,
        sector_size: 512,
        readonly: device.cdrom,
        model: model.to_owned(),
        serial: device.serial.clone(),
        wwid,
        bus_path: "/pci0000:00/0000:00:05.0/virtio2".to_owned(),
        sub_system: "/sys/class/block".to_owned(),
        transport: transport.to_owned(),
        rotational: true,
        cdrom: device.cdrom,
        dev_path: path,
        pretty_size: pretty_size(device.size),
        ..proto::block::DiskSpec::default()
    };
    Spec::new(value, &message)
}

pub(crate) fn system_disk(name: &str) -> Spec {
    let path = format!("/dev/{name}");
    Spec::new(
        json!({"diskID": name, "devPath": path}),
        &proto::block::SystemDiskSpec {
            disk_id: name.to_owned(),
            dev_path: path.clone(),
        },
    )
}

pub(crate) fn volume(phase: &str, location: &str, size: u64) -> Spec {
    let number = match phase {
        "missing" => 2,
        "ready" => 6,
        _ => 0,
    };
    let value = json!({"phase": phase, "type": "partition", "location": location, "size": size, "prettySize": pretty_size(size), "filesystem": "xfs"});
    let message = proto::block::VolumeStatusSpec {
        phase: number,
        location: location.to_owned(),
        size,
        pretty_size: pretty_size(size),
        filesystem: 1,
        ..proto::block::VolumeStatusSpec::default()
    };
    Spec::new(value, &message)
}

/// A directory that is a volume of its own.
pub(crate) fn directory_volume(directory: &Directory) -> Spec {
    let target = directory.id.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let mut mount = json!({"targetPath": target, "selinuxLabel": format!("system_u:object_r:{}:s0", directory.label), "projectQuotaSupport": false, "parentId": directory.parent});
    if let Some(mode) = directory.mode {
        mount["fileMode"] = json!(mode);
    }
    if directory.relabel {
        mount["recursiveRelabel"] = json!(true);
    }
    let message = proto::block::VolumeStatusSpec {
        phase: 6,
        r#type: 3,
        ..proto::block::VolumeStatusSpec::default()
    };
    Spec::new(json!({"phase": "ready", "type": "directory", "mountSpec": mount}), &message)
}

pub(crate) fn diagnostic(message: &str, details: &[String]) -> Spec {
    Spec::new(
        json!({"message": message, "details": details}),
        &proto::runtime::DiagnosticSpec {
            message: message.to_owned(),
            details: details.to_vec(),
        },
    )
}

pub(crate) fn security_state() -> Spec {
    let value = json!({"secureBoot": false, "bootedWithUKI": true, "selinuxState": "enabled, permissive", "fipsState": "disabled", "moduleSignatureEnforced": true});
    let message = proto::runtime::SecurityStateSpec {
        booted_with_uki: true,
        se_linux_state: 1,
        module_signature_enforced: true,
        ..proto::runtime::SecurityStateSpec::default()
    };
    Spec::new(value, &message)
}

pub(crate) fn platform_metadata(platform: &str, hostname: &str, instance: &str) -> Spec {
    let mut value = json!({"platform": platform});
    if !hostname.is_empty() {
        value["hostname"] = json!(hostname);
    }
    if !instance.is_empty() {
        value["instanceId"] = json!(instance);
    }
    let message = proto::runtime::PlatformMetadataSpec {
        platform: platform.to_owned(),
        hostname: hostname.to_owned(),
        instance_id: instance.to_owned(),
        ..proto::runtime::PlatformMetadataSpec::default()
    };
    Spec::new(value, &message)
}

pub(crate) fn system_information(uuid: &str) -> Spec {
    let value = json!({
        "manufacturer": "QEMU", "productName": "Standard PC (Q35 + ICH9, 2009)", "version": "pc-q35-10.0", "uuid": uuid, "wakeUpType": "Power Switch",
    });
    let message = proto::hardware::SystemInformationSpec {
        manufacturer: "QEMU".to_owned(),
        product_name: "Standard PC (Q35 + ICH9, 2009)".to_owned(),
        version: "pc-q35-10.0".to_owned(),
        uuid: uuid.to_owned(),
        wake_up_type: "Power Switch".to_owned(),
        ..proto::hardware::SystemInformationSpec::default()
    };
    Spec::new(value, &message)
}

pub(crate) fn extension(name: &str, version: &str) -> Spec {
    let image = format!("{name}.sqsh");
    let value = json!({"image": image, "metadata": {"name": name, "version": version, "author": "Sidero Labs", "description": "", "compatibility": {"talos": {"version": ">= v1.0.0"}}}});
    let constraint = proto::extensions::Constraint {
        version: ">= v1.0.0".to_owned(),
    };
    let metadata = proto::extensions::Metadata {
        name: name.to_owned(),
        version: version.to_owned(),
        author: "Sidero Labs".to_owned(),
        description: String::new(),
        compatibility: Some(proto::extensions::Compatibility { talos: Some(constraint) }),
    };
    Spec::new(
        value,
        &proto::extensions::Layer {
            image,
            metadata: Some(metadata),
        },
    )
}

pub(crate) fn meta_key(value: &str) -> Spec {
    Spec::new(
        json!({"value": value}),
        &proto::runtime::MetaKeySpec { value: value.to_owned() },
    )
}

pub(crate) fn kubeprism(healthy: bool) -> Spec {
    let message = proto::k8s::KubePrismStatusesSpec {
        host: "127.0.0.1:7445".to_owned(),
        healthy,
    };
    Spec::new(json!({"host": "127.0.0.1:7445", "healthy": healthy}), &message)
}

/// A resource of which only the fields that matter here are written, and those as YAML.
pub(crate) fn plain(value: &Value) -> Spec {
    Spec::plain(value.clone())
}
