//! A spec as a file again, with everything written out: reading it gives the same spec.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::spec::{
    ArtifactDelivery, Disk, DistroSpec, EndpointBy, Hosts, ImageSource, Machine, Network, Pool, PveTrust, RancherSpec, Role,
    Spec, TalosSpec, VersionWish,
};

impl Spec {
    /// The file in full: no default is left to the reader. Files that it names are named, not included.
    pub fn to_yaml(&self) -> String {
        let mut text = String::new();
        block(&Value::Object(self.file()), 0, &mut text);
        text
    }

    fn file(&self) -> Map<String, Value> {
        let mut file = Map::new();
        let mut set = |key: &str, value: Value| drop(file.insert(key.to_owned(), value));
        set("name", json!(self.name.as_str()));
        set("datacenter", self.datacenter_section());
        set("network", network(&self.network));
        if self.endpoint.by == EndpointBy::Given {
            set("endpoint", json!(self.endpoint.url()));
        }
        let section = match &self.distro {
            DistroSpec::Talos(talos) => talos_section(talos),
            DistroSpec::Rancher(rancher) => rancher_section(rancher),
        };
        set(self.distro.distro().as_str(), section);
        let mut top = json!({});
        version(&mut top, "kubernetes", &self.kubernetes);
        if let Some(kubernetes) = top.get("kubernetes") {
            set("kubernetes", kubernetes.clone());
        }
        set("cni", json!(self.cni.as_str()));
        set("provision", json!("import"));
        set("protect", json!(self.protect));
        set("control-plane-workloads", json!(self.control_plane_workloads));
        set(
            "pools",
            self.pools
                .iter()
                .map(|pool| (pool.name.to_string(), section_of(pool)))
                .collect::<Map<_, _>>()
                .into(),
        );
        set(
            "machines",
            self.machines
                .iter()
                .map(|machine| (machine.name.to_string(), self.machine_section(machine)))
                .collect::<Map<_, _>>()
                .into(),
        );
        file
    }

    fn datacenter_section(&self) -> Value {
        let datacenter = &self.datacenter;
        let mut endpoint = datacenter.endpoint.clone().to_string();
        if datacenter.endpoint.port().is_none() {
            // The reader takes a URL without a port for one on 8006.
            endpoint = format!("https://{}:443", datacenter.endpoint.host_str().unwrap_or_default());
        }
        let mut section = json!({ "endpoint": endpoint });
        match &datacenter.trust {
            PveTrust::Roots => {}
            PveTrust::Ca(file) => section["ca"] = json!(file.path),
            PveTrust::Fingerprint(bytes) => {
                section["fingerprint"] = json!(bytes.map(|byte| format!("{byte:02X}")).join(":"));
            }
        }
        if let Some(jump) = &datacenter.jump {
            section["jump"] = json!(jump.to_string());
        }
        let named = [
            ("images", &datacenter.storage.images),
            ("disks", &datacenter.storage.disks),
            ("seeds", &datacenter.storage.seeds),
        ];
        let storage: Map<String, Value> = named
            .into_iter()
            .filter_map(|(key, id)| Some((key.to_owned(), json!(id.as_ref()?.as_str()))))
            .collect();
        section["storage"] = storage.into();
        if let Some(pool) = &datacenter.pool {
            section["pool"] = json!(pool.as_str());
        }
        section
    }

    fn machine_section(&self, machine: &Machine) -> Value {
        let common = self.distro.talos().map_or(0, |talos| talos.patches.len());
        let patches: Vec<&str> = machine.patches.iter().skip(common).map(|patch| patch.path.as_str()).collect();
        let taints: Vec<String> = machine.taints.iter().map(ToString::to_string).collect();
        let tags: Vec<&str> = machine.tags.iter().map(AsRef::as_ref).collect();
        let labels: BTreeMap<&str, &str> = machine
            .labels
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        let disks: Vec<Value> = machine
            .shape
            .disks
            .iter()
            .map(|extra| {
                let mut section = disk(&extra.disk);
                section["name"] = json!(extra.name);
                section
            })
            .collect();
        let shape = &machine.shape;
        let mut section = json!({
            "address": machine.address.to_string(), "vmid": machine.vmid, "mac": machine.mac.to_string(),
            "cpu": shape.cpu, "cpu-type": shape.cpu_type, "memory": shape.memory.to_string(), "disk": disk(&shape.disk), "disks": disks,
            "scsi": shape.scsi.as_str(), "firmware": shape.firmware.as_str(), "onboot": shape.onboot,
            "tags": tags, "labels": labels, "taints": taints, "patches": patches,
        });
        if let Some(order) = shape.startup_order {
            section["startup-order"] = json!(order);
        }
        match &machine.hosts {
            Hosts::Any => {}
            Hosts::Pinned(host) => section["host"] = json!(host.as_str()),
            Hosts::OneOf(hosts) => section["hosts"] = json!(hosts.iter().map(AsRef::as_ref).collect::<Vec<&str>>()),
        }
        section
    }
}

fn talos_section(talos: &TalosSpec) -> Value {
    let extensions: Vec<&str> = talos.extensions.iter().map(AsRef::as_ref).collect();
    let patches: Vec<&str> = talos.patches.iter().map(|patch| patch.path.as_str()).collect();
    let mut section = json!({ "extensions": extensions, "patches": patches, "factory": talos.factory.as_str() });
    version(&mut section, "version", &talos.version);
    section
}

fn rancher_section(rancher: &RancherSpec) -> Value {
    let artifact = match rancher.artifact {
        ArtifactDelivery::Fetch => "fetch",
        ArtifactDelivery::Push => "push",
    };
    let image = match &rancher.image {
        ImageSource::Known(image) => json!(image.as_str()),
        // Whether the system is known was checked when the file was read.
        ImageSource::File { url, checksum } => {
            json!({ "url": url.as_str(), "checksum": checksum.to_string(), "unchecked": true })
        }
    };
    let mut section = json!({
        "image": image, "artifact": artifact, "config": rancher.config,
    });
    if !rancher.ssh_keys.is_empty() {
        section["ssh-keys"] = json!(rancher.ssh_keys);
    }
    if let Some(version) = rancher.version {
        section["version"] = json!(version.to_string());
    }
    if let Some(mirror) = &rancher.mirror {
        section["mirror"] = json!(mirror.as_str());
    }
    section
}

fn version(section: &mut Value, key: &str, wish: &VersionWish) {
    if *wish != VersionWish::Any {
        section[key] = json!(wish.to_string());
    }
}

fn network(network: &Network) -> Value {
    let dns: Vec<String> = network.dns.iter().map(ToString::to_string).collect();
    let mut section = json!({
        "cidr": network.cidr.to_string(), "gateway": network.gateway.to_string(), "bridge": network.bridge.as_str(), "dns": dns,
        "pods": network.pods.to_string(), "services": network.services.to_string(),
    });
    if let Some(vlan) = network.vlan {
        section["vlan"] = json!(vlan);
    }
    if let Some(vip) = network.vip {
        section["vip"] = json!(vip.to_string());
    }
    section
}

/// Everything else of a pool is written at its machines.
fn section_of(pool: &Pool) -> Value {
    let role = match pool.role {
        Role::ControlPlane => "control-plane",
        Role::Worker => "worker",
    };
    json!({ "role": role, "count": pool.count, "names": pool.names.as_str() })
}

fn disk(disk: &Disk) -> Value {
    let options = &disk.options;
    let mut section = json!({
        "size": disk.size.to_string(), "cache": options.cache.as_str(), "discard": options.discard, "ssd": options.ssd,
        "iothread": options.iothread,
    });
    if let Some(storage) = &disk.storage {
        section["storage"] = json!(storage.as_str());
    }
    section
}

/// Sections as indented lines; everything below two levels, and lists, in JSON, which YAML contains. All text is quoted, so that
/// nothing is taken for a number.
fn block(value: &Value, depth: usize, out: &mut String) {
    const BLOCKS: usize = 2;
    let Value::Object(map) = value else { return };
    for (key, value) in map {
        out.push_str(&"  ".repeat(depth));
        match value {
            Value::Object(inner) if depth < BLOCKS && !inner.is_empty() => {
                out.push_str(&format!("{key}:\n"));
                block(value, depth + 1, out);
            }
            _ => out.push_str(&format!("{key}: {value}\n")),
        }
    }
}
