//! The v1alpha1 document: its machine section, and through it the whole.

use std::collections::BTreeSet;

use semver::Version;

use super::{ErrorList, Look, Mode, Options, Verdict, cluster, device, labels};
use crate::scalars;
use crate::versions::{Contract, release};
use crate::yaml::{Node, Value};

const PROTECTED_KUBELET_FIELDS: [&str; 13] = [
    "apiVersion",
    "authentication",
    "authorization",
    "cgroupRoot",
    "kind",
    "kubeletCgroups",
    "port",
    "protectKernelDefaults",
    "resolvConf",
    "rotateCertificates",
    "systemCgroups",
    "staticPodPath",
    "seccompDefault",
];

const TALOS_ROLES: [&str; 7] = [
    "os:admin",
    "os:operator",
    "os:reader",
    "os:etcd:backup",
    "os:image:verifier",
    "os:meta:writer",
    "os:impersonator",
];

const KUBESPAN_MIN_MTU: i128 = 1280;
const KUBESPAN_DEFAULT_MTU: i128 = 1420;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineType {
    ControlPlane,
    Worker,
    Unknown,
}

impl MachineType {
    pub fn of(legacy: &Node) -> Self {
        match legacy.text("machine.type") {
            "init" | "controlplane" => Self::ControlPlane,
            "worker" | "join" | "" => Self::Worker,
            _ => Self::Unknown,
        }
    }
}

pub fn check(legacy: &Node, talos: &Version, options: Options, verdict: &mut Verdict) {
    let Some(machine) = legacy.at_path("machine") else {
        verdict.legacy.push("machine instructions are required".to_owned());
        return;
    };
    let check = Check {
        legacy,
        machine,
        kind: MachineType::of(legacy),
        contract: Contract::of(talos),
        mode: options.mode,
    };
    check.deprecated(&mut verdict.warnings);
    cluster::check(
        legacy,
        check.kind == MachineType::ControlPlane,
        check.contract,
        &mut verdict.legacy,
    );
    check.install(&mut verdict.legacy);
    check.host_dns(&mut verdict.legacy);
    check.type_and_ca(verdict);
    check.network(verdict);
    check.disks(&mut verdict.legacy);
    check.kubelet(&mut verdict.legacy);
    check.encryption(&mut verdict.legacy);
    check.kubespan(&mut verdict.legacy);
    check.logging(&mut verdict.legacy);
    check.extensions(verdict);
    check.node_metadata(&mut verdict.legacy);
    check.api_access(&mut verdict.legacy);
    check.rest(&mut verdict.legacy);
    if options.as_node {
        check.images(talos, &mut verdict.legacy);
    }
}

struct Check<'a> {
    legacy: &'a Node,
    machine: &'a Node,
    kind: MachineType,
    contract: Contract,
    mode: Mode,
}

impl Check<'_> {
    fn is_before(&self, minor: u64) -> bool {
        self.contract < Contract::new(1, minor)
    }

    fn deprecated(&self, warnings: &mut Vec<String>) {
        if self.is_before(14) {
            return;
        }
        if !self.machine.items("files").is_empty() {
            warnings.push(".machine.files is deprecated; use dedicated configuration documents instead".to_owned());
        }
        if self
            .machine
            .at_path("baseRuntimeSpecOverrides")
            .is_some_and(|overrides| !overrides.is_zero())
        {
            let text = ".machine.baseRuntimeSpecOverrides is deprecated; use a CRIBaseRuntimeSpecConfig document instead";
            warnings.push(text.to_owned());
        }
    }

    fn install(&self, errors: &mut Vec<String>) {
        if self.mode != Mode::Metal {
            return;
        }
        let Some(install) = self.machine.at_path("install") else {
            if self.is_before(14) {
                errors.push(format!("install instructions are required in {:?} mode", self.mode.as_str()));
            }
            return;
        };
        let class = install.text("diskSelector.type");
        let has_known_class = matches!(class, "" | "ssd" | "hdd" | "nvme" | "sd");
        if !has_known_class {
            errors.push(format!("install disk selector is invalid: unsupported disk type {class:?}"));
        }
        if install.text("disk").is_empty() && !(install.has("diskSelector") && has_known_class) {
            errors.push("either install disk or diskSelector should be defined".to_owned());
        }
        if !install.items("extraKernelArgs").is_empty() && install.flag("grubUseUKICmdline") == Some(true) {
            errors.push("install.extraKernelArgs and install.grubUseUKICmdline can't be used together".to_owned());
        }
    }

    fn host_dns(&self, errors: &mut Vec<String>) {
        let enabled = self.machine.flag("features.hostDNS.enabled") == Some(true);
        let forwards = self.machine.flag("features.hostDNS.forwardKubeDNSToHost") == Some(true);
        if self.mode == Mode::Container && self.is_before(14) {
            let place = "in container mode (.machine.features.hostDNS";
            if !enabled {
                errors.push(format!("feature HostDNS should be enabled {place}.enabled)"));
            }
            if !forwards {
                errors.push(format!(
                    "feature HostDNS should forward kube-dns to host {place}.forwardKubeDNSToHost)"
                ));
            }
        }
        if forwards && !enabled && !self.is_before(13) {
            let text = "feature hostDNS.forwardKubeDNSToHost requires hostDNS.enabled to be true (.machine.features.hostDNS)";
            errors.push(text.to_owned());
        }
    }

    fn type_and_ca(&self, verdict: &mut Verdict) {
        let written = self.machine.text("type");
        let errors = &mut verdict.legacy;
        if self.kind == MachineType::Worker && written != "worker" {
            verdict
                .warnings
                .push(format!("use \"worker\" instead of {written:?} for machine type"));
        }
        let (ca, accepted) = (self.machine.at_path("ca"), self.machine.items("acceptedCAs"));
        if ca.is_none() && accepted.is_empty() {
            errors.push("issuing CA or some accepted CAs are required (.machine.ca, machine.acceptedCAs)".to_owned());
        }
        match self.kind {
            MachineType::ControlPlane => {
                self.cni(&mut verdict.warnings, errors);
                match ca {
                    None => errors.push("issuing CA is required (.machine.ca)".to_owned()),
                    Some(ca) if ca.text("key").is_empty() => {
                        errors.push("issuing CA key is required for controlplane nodes (.machine.ca.key)".to_owned());
                    }
                    Some(_) => {}
                }
            }
            MachineType::Worker => self.worker(ca, accepted, errors),
            MachineType::Unknown => errors.push(format!("unknown machine type {written:?}")),
        }
    }

    fn cni(&self, warnings: &mut Vec<String>, errors: &mut Vec<String>) {
        if self.is_before(14) || self.legacy.has("cluster.network") {
            cluster::check_cni(self.legacy, self.contract, warnings, errors);
        }
    }

    fn worker(&self, ca: Option<&Node>, accepted: &[Node], errors: &mut Vec<String>) {
        for device in self.machine.items("network.interfaces") {
            let with_vip = std::iter::once(device)
                .chain(device.items("vlans"))
                .filter(|link| link.has("vip"));
            errors.extend(with_vip.map(|_| "virtual (shared) IP is not allowed on non-controlplane nodes".to_owned()));
        }
        if let Some(ca) = ca {
            if !ca.text("key").is_empty() {
                errors.push("issuing Talos API CA key is not allowed on non-controlplane nodes (.machine.ca)".to_owned());
            }
            if ca.text("crt").is_empty() && accepted.is_empty() {
                let text =
                    "trusted CA certificates are required on non-controlplane nodes (.machine.ca.crt, .machine.acceptedCAs)";
                errors.push(text.to_owned());
            }
        }
        if !self.legacy.text("cluster.ca.key").is_empty() {
            errors.push("issuing Kubernetes API CA key is not allowed on non-controlplane nodes (.cluster.ca)".to_owned());
        }
    }

    fn network(&self, verdict: &mut Verdict) {
        if let Some(network) = self.machine.at_path("network") {
            device::check(network, &mut verdict.warnings, &mut verdict.legacy);
            let mtu = network
                .at_path("kubespan.mtu")
                .and_then(Node::as_int)
                .unwrap_or(KUBESPAN_DEFAULT_MTU);
            if network.flag("kubespan.enabled") == Some(true) && mtu < KUBESPAN_MIN_MTU {
                verdict
                    .legacy
                    .push(format!("kubespan link MTU must be at least {KUBESPAN_MIN_MTU}"));
            }
        }
    }

    fn disks(&self, errors: &mut Vec<String>) {
        for (index, disk) in self.machine.items("disks").iter().enumerate() {
            if disk.is_null() {
                errors.push(format!("machine.disks[{index}] is null"));
                continue;
            }
            let partitions = disk.items("partitions");
            let unsized_early = partitions.iter().rev().skip(1).filter(|partition| {
                let size = partition.text("size");
                size.is_empty() || size == "0"
            });
            let device = disk.text("device");
            errors.extend(unsized_early.map(|_| {
                format!("partition for disk {device:?} is set to occupy full disk, but it's not the last partition in the list")
            }));
        }
    }

    fn kubelet(&self, errors: &mut Vec<String>) {
        for subnet in self.machine.texts("kubelet.nodeIP.validSubnets") {
            check_subnet(subnet, "kubelet nodeIP subnet is not valid", errors);
        }
        let extra = self.machine.at_path("kubelet.extraConfig");
        let overridden = PROTECTED_KUBELET_FIELDS
            .iter()
            .filter(|field| extra.is_some_and(|extra| extra.get(field).is_some()));
        errors.extend(overridden.map(|field| format!("kubelet configuration field {field:?} can't be overridden")));
    }

    fn encryption(&self, errors: &mut Vec<String>) {
        for (label, key) in [("EPHEMERAL", "ephemeral"), ("STATE", "state")] {
            let Some(encryption) = self.machine.at_path(&format!("systemDiskEncryption.{key}")) else {
                continue;
            };
            let keys = encryption.items("keys");
            if keys.is_empty() {
                errors.push(format!("partition {label:?}: no encryption keys provided"));
            }
            let mut slots = BTreeSet::new();
            for key in keys {
                let slot = key.number("slot");
                if !slots.insert(slot) {
                    errors.push(format!("partition {label:?}: encryption key slot {slot} is already in use"));
                }
                if !["nodeID", "static", "kms", "tpm"].iter().any(|method| key.has(method)) {
                    let text = format!("encryption key at slot {slot} doesn't have the configuration parameters");
                    errors.push(format!("partition {label:?}: {text}"));
                }
            }
        }
    }

    fn kubespan(&self, errors: &mut Vec<String>) {
        let Some(kubespan) = self.machine.at_path("network.kubespan") else {
            return;
        };
        if kubespan.flag("enabled") != Some(true) {
            return;
        }
        if self.is_before(14) {
            let when = "when .machine.network.kubespan is enabled";
            if self.legacy.flag("cluster.discovery.enabled") != Some(true) {
                errors.push(format!(".cluster.discovery should be enabled {when}"));
            }
            for key in ["id", "secret"] {
                if self.legacy.text(&format!("cluster.{key}")).is_empty() {
                    errors.push(format!(".cluster.{key} should be set {when}"));
                }
            }
        }
        for subnet in kubespan.texts("filters.endpoints") {
            check_subnet(subnet, "KubeSpan endpoint filter is not valid", errors);
        }
        for subnet in kubespan.texts("filters.excludeAdvertisedNetworks") {
            if scalars::prefix(subnet).is_err() {
                errors.push(format!(
                    "KubeSpan exclude advertised networks filter is not valid: {subnet:?}"
                ));
            }
        }
    }

    fn logging(&self, errors: &mut Vec<String>) {
        for destination in self.machine.items("logging.destinations") {
            let endpoint = destination.text("endpoint");
            if endpoint.is_empty() {
                errors.push("empty logging endpoint".to_owned());
            } else {
                let (scheme, rest) = endpoint.split_once("://").unwrap_or(("", endpoint));
                if rest.split('/').next().unwrap_or_default().is_empty() {
                    errors.push("empty logging endpoint's host".to_owned());
                }
                if !matches!(scheme, "tcp" | "udp") {
                    errors.push(format!("unexpected logging endpoint scheme {scheme:?}"));
                }
            }
            let format = destination.text("format");
            if format != "json_lines" {
                errors.push(format!("unknown logging format {format:?}"));
            }
        }
    }

    fn extensions(&self, verdict: &mut Verdict) {
        let extensions = self.machine.items("install.extensions");
        let mut seen = BTreeSet::new();
        for image in extensions.iter().map(|extension| extension.text("image")) {
            if !seen.insert(image) {
                verdict.legacy.push(format!("duplicate system extension {image:?}"));
            }
        }
        if !extensions.is_empty() {
            let page = if self.is_before(13) {
                "https://www.talos.dev/latest/talos-guides/install/boot-assets/"
            } else {
                "https://docs.siderolabs.com/talos/latest/platform-specific-installations/boot-assets"
            };
            verdict
                .warnings
                .push(format!(".machine.install.extensions is deprecated, please see {page}"));
        }
    }

    fn node_metadata(&self, errors: &mut Vec<String>) {
        let found = |key: &str, check: fn(&Node) -> Vec<String>| self.machine.at_path(key).map(check).unwrap_or_default();
        let checks = [
            ("labels", found("nodeLabels", labels::check_labels)),
            ("annotations", found("nodeAnnotations", labels::check_annotations)),
            ("taints", found("nodeTaints", labels::check_taints)),
        ];
        for (what, found) in checks {
            if !found.is_empty() {
                errors.push(format!("invalid machine node {what}: {}", ErrorList(&found)));
            }
        }
    }

    fn api_access(&self, errors: &mut Vec<String>) {
        let Some(access) = self.machine.at_path("features.kubernetesTalosAPIAccess") else {
            return;
        };
        if access.flag("enabled") != Some(true) {
            return;
        }
        if self.kind != MachineType::ControlPlane {
            errors.push("feature Kubernetes Talos API Access can only be enabled on control plane machines".to_owned());
        }
        let unknown = access
            .texts("allowedRoles")
            .into_iter()
            .filter(|role| !TALOS_ROLES.contains(role));
        errors.extend(unknown.map(|role| format!("invalid role {role:?} in allowed roles for Kubernetes Talos API Access")));
    }

    fn rest(&self, errors: &mut Vec<String>) {
        let algorithm = self.machine.text("features.nodeAddressSortAlgorithm");
        if !matches!(algorithm.to_lowercase().as_str(), "" | "v1" | "v2") {
            let problem = format!("{algorithm} does not belong to AddressSortAlgorithm values");
            errors.push(format!("invalid node address sort algorithm: {problem}"));
        }
        if self.legacy.flag("persist") == Some(false) {
            errors.push(".persist should be enabled".to_owned());
        }
        for list in ["config", "mirrors"].into_iter().filter(|_| self.is_before(14)) {
            let Some(Value::Map(entries)) = self.machine.at_path(&format!("registries.{list}")).map(|node| &node.value) else {
                continue;
            };
            let empty = entries.iter().filter(|(_, entry)| entry.is_null());
            errors.extend(empty.map(|(host, _)| format!("registries.{list}[{host:?}] is null")));
        }
    }

    /// A node refuses images of a Kubernetes that it does not run.
    fn images(&self, talos: &Version, errors: &mut Vec<String>) {
        let mut check = |name: &str, image: &str| {
            if let Err(problem) = check_image(image, talos) {
                errors.push(format!("{name} image is not valid: {problem}"));
            }
        };
        if let Some(kubelet) = self
            .machine
            .at_path("kubelet")
            .filter(|kubelet| !kubelet.text("image").is_empty())
        {
            check("kubelet", kubelet.text("image"));
        }
        if self.kind == MachineType::ControlPlane {
            let components = [
                ("kube-apiserver", "apiServer"),
                ("kube-controller-manager", "controllerManager"),
                ("kube-scheduler", "scheduler"),
            ];
            for (name, section) in components {
                let image = self.legacy.text(&format!("cluster.{section}.image"));
                if !image.is_empty() {
                    check(name, image);
                }
            }
        }
    }
}

fn check_image(image: &str, talos: &Version) -> Result<(), String> {
    let invalid = |problem: String| format!("failed to parse Kubernetes version from image reference {image:?}: {problem}");
    let (_, tag) = image
        .rsplit_once(":v")
        .ok_or_else(|| invalid(format!("invalid image reference: {image:?}")))?;
    let version = tag.split('@').next().unwrap_or_default();
    let version: Version = version.parse().map_err(|_| invalid(format!("invalid version {version:?}")))?;
    let Ok(known) = release(talos) else { return Ok(()) };
    let window = known.window();
    let complaint = match version.minor {
        minor if version.major != 1 || minor > window.newest => "too new",
        minor if minor < window.oldest => "too old",
        _ => return Ok(()),
    };
    Err(format!(
        "version of Kubernetes {version} is {complaint} to be used with Talos {talos}"
    ))
}

/// A subnet or a single address, possibly excluded with `!`.
pub fn check_subnet(subnet: &str, problem: &str, errors: &mut Vec<String>) {
    let subnet = subnet.strip_prefix('!').unwrap_or(subnet);
    if scalars::prefix(subnet).is_err() && scalars::address(subnet).is_err() {
        errors.push(format!("{problem}: {subnet:?}"));
    }
}
