//! What a node shows of itself as resources: hardware, volumes, network.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, OnceLock};

use ipnet::{IpNet, Ipv6Net};
use serde_json::{Value, json};
use talos_proto::machine as proto;

use super::config::{Config, LinkAddress};
use super::cosi::Spec;
use super::disk;
use super::node::Node;
use super::resources;

/// A directory on EPHEMERAL that is a volume of its own.
pub(crate) struct Directory {
    pub id: &'static str,
    pub parent: &'static str,
    pub label: &'static str,
    /// Nothing where Talos leaves the mode alone.
    pub mode: Option<u32>,
    pub relabel: bool,
}

const fn directory(id: &'static str, parent: &'static str, label: &'static str, mode: Option<u32>, relabel: bool) -> Directory {
    Directory {
        id,
        parent,
        label,
        mode,
        relabel,
    }
}

const PRIVATE: Option<u32> = Some(0o700);
const PUBLIC: Option<u32> = Some(0o755);

static DIRECTORIES: [Directory; 13] = [
    directory("/var/lib", "EPHEMERAL", "ephemeral_t", PRIVATE, false),
    directory("/var/lib/cni", "/var/lib", "cni_state_t", PRIVATE, true),
    directory("/var/lib/containerd", "/var/lib", "containerd_state_t", None, false),
    directory("/var/lib/kubelet", "/var/lib", "kubelet_state_t", PRIVATE, false),
    directory(
        "/var/lib/kubelet/seccomp",
        "/var/lib/kubelet",
        "seccomp_profile_t",
        PRIVATE,
        false,
    ),
    directory(
        "/var/lib/kubelet/seccomp/profiles",
        "/var/lib/kubelet/seccomp",
        "seccomp_profile_t",
        PRIVATE,
        true,
    ),
    directory("/var/log", "EPHEMERAL", "var_log_t", PUBLIC, false),
    directory("/var/log/audit", "/var/log", "audit_log_t", PRIVATE, false),
    directory("/var/log/audit/kube", "/var/log/audit", "kube_log_t", PRIVATE, false),
    directory("/var/log/containers", "/var/log", "containers_log_t", PUBLIC, true),
    directory("/var/log/pods", "/var/log", "pods_log_t", PUBLIC, true),
    directory("/var/mnt", "EPHEMERAL", "ephemeral_t", PRIVATE, false),
    directory("ETCD", "/var/lib", "etcd_data_t", PRIVATE, true),
];

/// The same on every node, hence made once.
fn directories() -> &'static [(&'static str, Arc<Spec>)] {
    static MADE: OnceLock<Vec<(&str, Arc<Spec>)>> = OnceLock::new();
    let one = |directory: &Directory| (directory.id, Arc::new(resources::directory_volume(directory)));
    MADE.get_or_init(|| DIRECTORIES.iter().map(one).collect())
}

/// `fe80::be24:11ff:fe00:2/64` of `bc:24:11:00:00:02`.
fn link_local(mac: &str) -> Option<IpNet> {
    let bytes: Vec<u8> = mac.split(':').filter_map(|part| u8::from_str_radix(part, 16).ok()).collect();
    let [a, b, c, d, e, f]: [u8; 6] = bytes.try_into().ok()?;
    let mut address = [0; 16];
    address[..2].copy_from_slice(&[0xfe, 0x80]);
    address[8..].copy_from_slice(&[a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Ipv6Net::new(Ipv6Addr::from(address), 64).ok().map(IpNet::from)
}

impl Node {
    /// Shows addresses and links as they are now.
    pub fn show_network(&self) {
        let (addresses, vips, hostname) = {
            let state = self.lock();
            (state.addresses.clone(), state.vips.clone(), state.hostname.clone())
        };
        self.resources
            .put(&resources::LINK, "lo", resources::link("lo", "00:00:00:00:00:00", 1, true));
        for (index, nic) in (2..).zip(&self.nics) {
            self.resources
                .put(&resources::LINK, &nic.name, resources::link(&nic.name, &nic.mac, index, true));
        }
        let loopback: IpNet = IpNet::from(IpAddr::from([127, 0, 0, 1]));
        let mut shown: BTreeMap<String, (IpNet, String)> = BTreeMap::new();
        shown.insert(
            "lo/127.0.0.1/8".to_owned(),
            (IpNet::new(loopback.addr(), 8).unwrap_or(loopback), "lo".to_owned()),
        );
        let shared = vips.iter().map(|(vip, link)| LinkAddress {
            link: link.clone(),
            address: IpNet::from(*vip),
        });
        let own: Vec<LinkAddress> = addresses.into_iter().chain(shared).collect();
        shown.insert(
            "lo/::1/128".to_owned(),
            (IpNet::from(IpAddr::from(Ipv6Addr::LOCALHOST)), "lo".to_owned()),
        );
        for (name, local) in self
            .nics
            .iter()
            .filter_map(|nic| Some((nic.name.clone(), link_local(&nic.mac)?)))
        {
            shown.insert(format!("{name}/{local}"), (local, name));
        }
        for address in &own {
            shown.insert(
                format!("{}/{}", address.link, address.address),
                (address.address, address.link.clone()),
            );
        }
        for old in self.resources.list(&resources::ADDRESS) {
            if !shown.contains_key(&old.id) {
                self.resources.remove(&resources::ADDRESS, &old.id);
            }
        }
        for (id, (net, link)) in &shown {
            self.resources.put(
                &resources::ADDRESS,
                id,
                resources::address(*net, link, if link == "lo" { 1 } else { 2 }),
            );
        }
        self.show_routes(&own);
        let nets: Vec<IpNet> = own.iter().map(|address| address.address).collect();
        for id in [
            "accumulative",
            "accumulative-no-k8s",
            "current",
            "current-no-k8s",
            "routed",
            "routed-no-k8s",
        ] {
            self.resources
                .put(&resources::NODE_ADDRESS, id, resources::node_addresses(&nets));
        }
        for id in ["accumulative-only-k8s", "current-only-k8s", "routed-only-k8s"] {
            self.resources
                .put(&resources::NODE_ADDRESS, id, resources::node_addresses(&[]));
        }
        self.resources.put(
            &resources::NODE_ADDRESS,
            "default",
            resources::node_addresses(&nets[..nets.len().min(1)]),
        );
        self.resources
            .put(&resources::HOSTNAME, "hostname", resources::hostname(&hostname));
        let there = !nets.is_empty();
        self.resources.put(
            &resources::NETWORK_STATUS,
            "status",
            resources::network_status(there, there, !hostname.is_empty()),
        );
        let event = proto::AddressEvent {
            hostname,
            addresses: nets.iter().map(|net| net.addr().to_string()).collect(),
        };
        self.events.publish("AddressEvent", &event);
        self.refresh();
    }

    /// What the machine is made of, which never changes while it runs.
    pub fn show_hardware(&self) {
        let devices = &self.hardware.disks;
        for (index, disk) in devices.iter().enumerate() {
            let name = disk::device_name(devices, index);
            let device = resources::BlockDevice {
                name: name.clone(),
                size: disk.size,
                serial: disk.serial.clone().unwrap_or_default(),
                virtio: disk.key.starts_with("virtio"),
                cdrom: disk::is_medium(disk),
            };
            self.resources.put(&resources::DISK, &name, resources::disk(&device));
        }
        let system = disk::device_name(devices, self.disk.index);
        if self.from_disk {
            self.resources
                .put(&resources::SYSTEM_DISK, "system-disk", resources::system_disk(&system));
        }
        self.resources.put(
            &resources::SYSTEM_INFORMATION,
            "systeminformation",
            resources::system_information(&self.hardware.uuid),
        );
        let platform = &self.platform;
        self.resources.put(
            &resources::PLATFORM,
            "platformmetadata",
            resources::platform_metadata(&self.image.platform, &platform.hostname, &platform.instance),
        );
        self.resources
            .put(&resources::SECURITY, "securitystate", resources::security_state());
        self.resources
            .put(&resources::IDENTITY, "local", resources::identity(&self.node_id));
        self.resources
            .put(&resources::MACHINE_TYPE, "machine-type", resources::machine_type("unknown"));
        self.resources.put(
            &resources::UNIQUE_TOKEN,
            "unique-machine-token",
            resources::plain(&json!({"token": ""})),
        );
        let extensions = self.extensions();
        for (index, name) in extensions.iter().enumerate() {
            self.resources.put(
                &resources::EXTENSION,
                &index.to_string(),
                resources::extension(name, "v1.0.0"),
            );
        }
        let schematic = resources::extension("schematic", &self.image.schematic);
        self.resources
            .put(&resources::EXTENSION, &extensions.len().to_string(), schematic);
        for (key, value) in self.disk.read().map(|installed| installed.meta).unwrap_or_default() {
            self.resources
                .put(&resources::META_KEY, &format!("{key:#04x}"), resources::meta_key(&value));
        }
        let resolvers = if self.platform.resolvers.is_empty() {
            vec![IpAddr::from([1, 1, 1, 1]), IpAddr::from([8, 8, 8, 8])]
        } else {
            self.platform.resolvers.clone()
        };
        self.resources
            .put(&resources::RESOLVERS, "resolvers", resources::resolvers(&resolvers));
    }

    pub fn show_volumes(&self, mounted: bool) {
        const MIB: u64 = 1024 * 1024;
        let system = disk::device_name(&self.hardware.disks, self.disk.index);
        let size = self.hardware.disks.get(self.disk.index).map_or(0, |disk| disk.size);
        let ephemeral = size.saturating_sub(self.image.virtual_size() + 101 * MIB);
        let rest = if mounted { "ready" } else { "missing" };
        let meta = if self.from_disk { "ready" } else { "missing" };
        for (name, phase, partition, size) in [
            ("META", meta, 4, MIB),
            ("STATE", rest, 5, 100 * MIB),
            ("EPHEMERAL", rest, 6, ephemeral),
        ] {
            self.resources.put(
                &resources::VOLUME,
                name,
                resources::volume(phase, &format!("/dev/{system}{partition}"), size),
            );
        }
        if mounted {
            for (id, spec) in directories() {
                self.resources.put(&resources::VOLUME, id, Arc::clone(spec));
            }
        }
    }

    pub fn show_static_pod(&self, name: &str, status: &Value) {
        self.resources.put(
            &resources::STATIC_POD_STATUS,
            &format!("kube-system/{name}-{}", self.hostname()),
            resources::static_pod_status(status),
        );
        self.refresh();
    }

    /// Routes, operators and diagnostics follow from addresses and config.
    fn show_routes(&self, own: &[LinkAddress]) {
        let mut routes: BTreeMap<String, Value> = BTreeMap::new();
        for LinkAddress { link, address } in own.iter().filter(|own| own.address.addr().is_ipv4()) {
            let mut add = |id: String, dst: String, gateway: &str, table: &str| {
                routes.insert(
                    id,
                    json!({"family": "inet4", "dst": dst, "src": address.addr(), "gateway": gateway, "outLinkIndex": 2, "outLinkName": link, "table": table, "priority": 0, "scope": if gateway.is_empty() { "link" } else { "global" }, "type": if table == "local" { "local" } else { "unicast" }, "flags": "", "protocol": if gateway.is_empty() { "kernel" } else { "static" }}),
                );
            };
            let host = address.addr();
            add(format!("local/inet4//{host}/32/0"), format!("{host}/32"), "", "local");
            if address.prefix_len() < 32 {
                let net = address.trunc();
                add(format!("inet4//{net}/0"), net.to_string(), "", "main");
                let last = address.broadcast();
                add(format!("local/inet4//{last}/32/0"), format!("{last}/32"), "", "local");
            }
        }
        if let Some(gateway) = self.platform.gateway {
            let link = self.nics.first().map_or("eth0", |nic| nic.name.as_str());
            routes.insert(
                format!("inet4/{gateway}//0"),
                json!({"family": "inet4", "dst": "", "src": "", "gateway": gateway, "outLinkIndex": 2, "outLinkName": link, "table": "main", "priority": 0, "scope": "global", "type": "unicast", "flags": "", "protocol": "static"}),
            );
        }
        for old in self.resources.list(&resources::ROUTE) {
            if !routes.contains_key(&old.id) {
                self.resources.remove(&resources::ROUTE, &old.id);
            }
        }
        for (id, route) in &routes {
            self.resources.put(&resources::ROUTE, id, resources::plain(route));
        }
    }

    /// What a config asks operators to do, and what is wrong with it.
    pub fn show_config(&self, config: &Config) {
        for (vip, link) in config.vips(&self.nics) {
            let spec = json!({"operator": "vip", "linkName": link, "requireUp": true, "vip": {"ip": vip, "gratuitousARP": true}, "layer": "configuration"});
            self.resources.put(
                &resources::OPERATOR_SPEC,
                &format!("vip/{link}/{vip}"),
                resources::plain(&spec),
            );
        }
        self.resources.remove(&resources::DIAGNOSTIC, "address-overlap");
        let pods: Vec<IpNet> = config.pod_subnets();
        let services: Vec<IpNet> = config.service_subnets();
        let own: Vec<IpNet> = self.lock().addresses.iter().map(|own| own.address).collect();
        let overlaps = own.iter().any(|own| {
            pods.iter()
                .chain(&services)
                .any(|net| net.contains(&own.addr()) || own.contains(&net.addr()))
        });
        if overlaps {
            let details = [
                format!("host routed addresses: {}", quoted(&own)),
                format!("Kubernetes pod CIDRs: {}", quoted(&pods)),
                format!("Kubernetes service CIDRs: {}", quoted(&services)),
            ];
            let message = "host and Kubernetes pod/service CIDR addresses overlap";
            self.resources.put(
                &resources::DIAGNOSTIC,
                "address-overlap",
                resources::diagnostic(message, &details),
            );
        }
    }
}

fn quoted(nets: &[IpNet]) -> String {
    let nets: Vec<String> = nets.iter().map(|net| format!("\"{net}\"")).collect();
    format!("[{}]", nets.join(" "))
}
