//! Judging a config: the checks of a node, with the node's words.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

use super::decode::Config;
use super::view::MachineType;

/// Who judges: the running version and its platform, and the disks that exist.
pub(crate) struct Judge<'a> {
    pub version: &'a semver::Version,
    /// The `metal` platform demands an install section; `nocloud` does not.
    pub metal: bool,
    /// Whether the system is on a disk already, so that no install will happen.
    pub installed: bool,
    /// Device paths: `/dev/sda`.
    pub disks: &'a [String],
}

/// All faults of the config in one text, or nothing.
pub(crate) fn validate(config: &Config, judge: &Judge<'_>) -> Result<Vec<String>, String> {
    let mut faults = Vec::new();
    let mut warnings = Vec::new();
    if let Some(v1alpha1) = config.v1alpha1() {
        let own = Classic {
            config,
            root: v1alpha1,
            judge,
        }
        .faults(&mut warnings);
        if !own.is_empty() {
            faults.push(format!("v1alpha1.Config: {}", listing(&own)));
        }
    }
    for document in &config.documents {
        faults.extend(document_faults(&document.value, judge));
    }
    faults.extend(conflicts(config, judge.version.minor));
    if faults.is_empty() {
        Ok(warnings)
    } else {
        Err(listing(&faults))
    }
}

/// Go's multierror.
fn listing(faults: &[String]) -> String {
    let head = if faults.len() == 1 {
        "1 error occurred:".to_owned()
    } else {
        format!("{} errors occurred:", faults.len())
    };
    let lines: String = faults.iter().map(|fault| format!("\t* {fault}\n")).collect();
    format!("{head}\n{lines}\n")
}

struct Classic<'a> {
    config: &'a Config,
    root: &'a Value,
    judge: &'a Judge<'a>,
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn filled(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

impl Classic<'_> {
    /// In the order in which a node lists them.
    fn faults(&self, warnings: &mut Vec<String>) -> Vec<String> {
        let mut faults = Vec::new();
        let (machine, cluster) = (&self.root["machine"], &self.root["cluster"]);
        if machine.is_null() {
            return vec!["machine instructions are required".to_owned()];
        }
        if cluster.is_null() && self.judge.version.minor < 14 {
            return vec!["cluster instructions are required".to_owned()];
        }
        let kind = machine["type"].as_str().unwrap_or_default();
        let control_plane = matches!(kind, "controlplane" | "init");
        self.cluster_faults(cluster, control_plane, &mut faults);
        if kind.is_empty() {
            warnings.push("use \"worker\" instead of \"\" for machine type".to_owned());
        } else if !matches!(kind, "controlplane" | "init" | "worker" | "join") {
            faults.push(format!("unknown machine type \"{kind}\""));
        }
        self.machine_faults(machine, control_plane, &mut faults);
        self.authority_faults(control_plane || !matches!(kind, "" | "worker" | "join"), &mut faults);
        self.image_faults(control_plane, &mut faults);
        faults
    }

    fn cluster_faults(&self, cluster: &Value, control_plane: bool, faults: &mut Vec<String>) {
        if !control_plane && !cluster["etcd"].is_null() {
            faults.push("etcd config is only allowed on control plane machines".to_owned());
        }
        if cluster["controlPlane"]["endpoint"].is_null() && self.config.endpoint().is_empty() {
            faults.push("cluster controlplane endpoint is required".to_owned());
        }
        if !control_plane && filled(&cluster["ca"]["key"]) {
            faults.push("cluster CA key is not allowed on non-controlplane nodes (.cluster.ca)".to_owned());
        }
        let cni = &cluster["network"]["cni"];
        match cni["name"].as_str() {
            None | Some("custom") => {}
            Some(name @ ("flannel" | "none")) if list(&cni["urls"]).next().is_some() => {
                faults.push(format!("\"urls\" field should be empty for \"{name}\" CNI"));
            }
            Some("flannel" | "none") => {}
            Some(_) => faults.push("cni name should be one of [\"flannel\", \"custom\", \"none\"]".to_owned()),
        }
        if let Some(domain) = cluster["network"]["dnsDomain"].as_str()
            && !domain.split('.').all(is_label)
        {
            faults.push(format!("\"{domain}\" is not a valid DNS name"));
        }
        self.manifest_faults(cluster, faults);
        let service = &cluster["discovery"]["registries"]["service"];
        if cluster["discovery"]["enabled"] == true && service["disabled"] != true {
            for (key, missing) in [("id", ".cluster.id"), ("secret", ".cluster.secret")] {
                if !filled(&cluster[key]) {
                    faults.push(format!("cluster discovery service requires {missing}"));
                }
            }
        }
    }

    fn manifest_faults(&self, cluster: &Value, faults: &mut Vec<String>) {
        let mut names = BTreeSet::new();
        for manifest in list(&cluster["inlineManifests"]) {
            match manifest["name"].as_str().unwrap_or_default() {
                "" => faults.push("inline manifest name can't be empty".to_owned()),
                name if !names.insert(name) => faults.push(format!("inline manifest name \"{name}\" is duplicate")),
                _ => {}
            }
        }
    }

    fn machine_faults(&self, machine: &Value, control_plane: bool, faults: &mut Vec<String>) {
        if self.judge.metal && !self.judge.installed {
            let install = &machine["install"];
            if !filled(&install["disk"])
                && install["diskSelector"].is_null()
                && self.config.of_kind("UnattendedInstallConfig").next().is_none()
            {
                faults.push("either install disk or diskSelector should be defined".to_owned());
            } else if let Some(disk) = install["disk"].as_str().filter(|disk| !disk.is_empty())
                && !self.judge.disks.iter().any(|known| known == disk)
            {
                faults.push(format!("specified install disk does not exist: \"{disk}\""));
            }
            if install["grubUseUKICmdline"] == true && list(&install["extraKernelArgs"]).next().is_some() {
                faults.push("install.extraKernelArgs and install.grubUseUKICmdline can't be used together".to_owned());
            }
        }
        for interface in list(&machine["network"]["interfaces"]) {
            interface_faults(interface, control_plane, faults);
        }
        if self.root["persist"] == false {
            faults.push(".persist should be enabled".to_owned());
        }
        const PROTECTED: [&str; 13] = [
            "apiVersion",
            "kind",
            "authentication",
            "authorization",
            "cgroupRoot",
            "kubeletCgroups",
            "port",
            "protectKernelDefaults",
            "resolvConf",
            "rotateCertificates",
            "systemCgroups",
            "staticPodPath",
            "seccompDefault",
        ];
        for (field, _) in machine["kubelet"]["extraConfig"].as_object().into_iter().flatten() {
            if PROTECTED.contains(&field.as_str()) {
                faults.push(format!("kubelet configuration field \"{field}\" can't be overridden"));
            }
        }
        if machine["features"]["kubernetesTalosAPIAccess"]["enabled"] == true && !control_plane {
            faults.push("feature Kubernetes Talos API Access can only be enabled on control plane machines".to_owned());
        }
        taint_faults(&machine["nodeTaints"], faults);
    }

    fn authority_faults(&self, control_plane: bool, faults: &mut Vec<String>) {
        let machine = &self.root["machine"];
        let ca = &machine["ca"];
        if !filled(&ca["crt"]) && list(&machine["acceptedCAs"]).next().is_none() {
            faults.push("issuing CA or some accepted CAs are required (.machine.ca, machine.acceptedCAs)".to_owned());
        }
        if control_plane && !filled(&ca["crt"]) {
            faults.push("issuing CA is required (.machine.ca)".to_owned());
        } else if control_plane && !filled(&ca["key"]) {
            faults.push("issuing CA key is required for controlplane nodes (.machine.ca)".to_owned());
        }
        if !control_plane && filled(&ca["key"]) {
            faults.push("issuing Talos API CA key is not allowed on non-controlplane nodes (.machine.ca)".to_owned());
        }
        if !control_plane && filled(&self.root["cluster"]["ca"]["key"]) {
            faults.push("issuing Kubernetes API CA key is not allowed on non-controlplane nodes (.cluster.ca)".to_owned());
        }
    }

    /// Kubernetes images must be of a version that this Talos runs; read from the tag.
    fn image_faults(&self, control_plane: bool, faults: &mut Vec<String>) {
        let mut images = vec![("kubelet", self.root["machine"]["kubelet"]["image"].as_str())];
        if control_plane {
            let cluster = &self.root["cluster"];
            let sections = [
                ("kube-apiserver", "apiServer"),
                ("kube-controller-manager", "controllerManager"),
                ("kube-scheduler", "scheduler"),
            ];
            images.extend(sections.map(|(name, section)| (name, cluster[section]["image"].as_str())));
        }
        for (name, image) in images {
            if let Some(fault) = image.and_then(|image| image_fault(image, self.judge.version)) {
                faults.push(format!("{name} image is not valid: {fault}"));
            }
        }
    }
}

/// Why this Talos does not take the Kubernetes that an image names.
pub(crate) fn image_fault(image: &str, talos: &semver::Version) -> Option<String> {
    let tag = image
        .split('@')
        .next()
        .and_then(|name| name.rsplit_once(':'))
        .map(|(_, tag)| tag)
        .filter(|tag| !tag.contains('/'));
    let version = tag
        .and_then(|tag| tag.trim_start_matches('v').split(['-', '+']).next())
        .and_then(|text| text.parse::<semver::Version>().ok());
    let Some(version) = version else {
        return Some(format!(
            "failed to parse Kubernetes version from image reference \"{image}\": invalid image reference: \"{image}\""
        ));
    };
    // The default Kubernetes minor of Talos 1.13 is 1.36; every Talos minor moves it by one and accepts the five before it.
    let newest = talos.minor + 23;
    match version.minor {
        minor if minor > newest => Some(format!(
            "version of Kubernetes {version} is too new to be used with Talos {talos}"
        )),
        minor if minor + 5 < newest => Some(format!(
            "version of Kubernetes {version} is too old to be used with Talos {talos}"
        )),
        _ => None,
    }
}

fn is_label(label: &str) -> bool {
    !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

fn interface_faults(interface: &Value, control_plane: bool, faults: &mut Vec<String>) {
    let both = "[networking.os.device.interface], [networking.os.device.deviceSelector]";
    match (filled(&interface["interface"]), interface["deviceSelector"].is_object()) {
        (true, true) => faults.push(format!("{both}: config sections are mutually exclusive")),
        (false, false) => faults.push(format!("{both}: required either config section to be set")),
        _ => {}
    }
    if let Some(vip) = interface["vip"]["ip"].as_str() {
        if !control_plane {
            faults.push("virtual (shared) IP is not allowed on non-controlplane nodes".to_owned());
        } else if vip.parse::<IpAddr>().is_err() {
            faults.push(format!("[networking.os.device.vip] failed to parse \"{vip}\" as IP address"));
        }
    }
    for (index, route) in list(&interface["routes"]).enumerate() {
        if !filled(&route["network"]) && !filled(&route["gateway"]) {
            faults.push(format!(
                "[networking.os.device.route[{index}]]: either network or gateway should be set"
            ));
        } else if let Some(gateway) = route["gateway"].as_str()
            && gateway.parse::<IpAddr>().is_err()
        {
            faults.push(format!(
                "[networking.os.device.route[{index}].gateway] \"{gateway}\": invalid network address"
            ));
        }
    }
}

fn taint_faults(taints: &Value, faults: &mut Vec<String>) {
    let effect = |taint: &Value| {
        taint
            .as_str()
            .unwrap_or_default()
            .rsplit(':')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let wrong: Vec<String> = taints
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, taint)| effect(taint))
        .filter(|effect| !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect.as_str()))
        .collect();
    if !wrong.is_empty() {
        let inner: Vec<String> = wrong
            .iter()
            .map(|effect| format!("invalid taint effect: \"{effect}\""))
            .collect();
        faults.push(format!("invalid machine node taints: {}", listing(&inner)));
    }
}

fn document_faults(document: &Value, judge: &Judge<'_>) -> Option<String> {
    let kind = document["kind"].as_str()?;
    let name = document["name"].as_str().unwrap_or_default();
    let at = |text: String| Some(format!("{kind}/{name}: {text}"));
    match kind {
        "HostnameConfig" => hostname_fault(document, judge.version).map(|text| format!("HostnameConfig: {text}")),
        "Layer2VIPConfig" if name.parse::<IpAddr>().is_err() => at(format!(
            "name must be a valid IP address: ParseAddr(\"{name}\"): unable to parse IP"
        )),
        "LinkAliasConfig" if !filled(&document["selector"]["match"]) => at("link selector is required".to_owned()),
        "UserVolumeConfig" if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') => {
            at("name can only contain lowercase and uppercase ASCII letters, digits, and hyphens".to_owned())
        }
        "UserVolumeConfig"
            if document["volumeType"] != "directory" && !filled(&document["provisioning"]["diskSelector"]["match"]) =>
        {
            at("disk selector is required".to_owned())
        }
        "VolumeConfig" if judge.version.minor < 14 && !["STATE", "EPHEMERAL", "IMAGECACHE"].contains(&name) => {
            at("only [\"STATE\" \"EPHEMERAL\" \"IMAGECACHE\"] volumes are supported".to_owned())
        }
        "ExtensionServiceConfig" if name.is_empty() => at("name is required".to_owned()),
        "ExtensionServiceConfig"
            if list(&document["configFiles"]).next().is_none() && list(&document["environment"]).next().is_none() =>
        {
            at(format!("no config files found for extension \"{name}\""))
        }
        _ => None,
    }
}

fn hostname_fault(document: &Value, version: &semver::Version) -> Option<String> {
    let auto = match &document["auto"] {
        Value::Bool(false) => "off",
        other => other.as_str().unwrap_or_default(),
    };
    let named = filled(&document["hostname"]);
    // `auto: off` alone became legal in 1.12.9 and 1.13.3.
    let off_alone = match (version.minor, version.patch) {
        (..12, _) => false,
        (12, patch) => patch >= 9,
        (13, patch) => patch >= 3,
        _ => true,
    };
    match (auto, named) {
        ("stable", true) => Some("'auto' and 'hostname' cannot be set at the same time".to_owned()),
        ("", false) => Some("either 'auto' or 'hostname' must be set".to_owned()),
        ("off", false) if !off_alone => Some("either 'auto' or 'hostname' must be set".to_owned()),
        _ => None,
    }
}

/// What is said twice: once in the classic document and once in its own.
fn conflicts(config: &Config, minor: u64) -> Vec<String> {
    let mut out = Vec::new();
    let (machine, cluster) = (config.machine(), config.cluster());
    let has = |kind: &str| config.of_kind(kind).next().is_some();
    let mut clash = |kind: &str, set: bool, text: &str| {
        if set && config.of_kind(kind).next().is_some() {
            out.push(text.to_owned());
        }
    };
    let network = &machine["network"];
    clash(
        "HostnameConfig",
        filled(&network["hostname"]),
        "static hostname is already set in v1alpha1 config",
    );
    clash(
        "HostnameConfig",
        machine["features"]["stableHostname"] == true,
        "stable hostname is already set in v1alpha1 config",
    );
    let resolver = [
        ("searchDomains", list(&network["searchDomains"]).next().is_some()),
        ("nameservers", list(&network["nameservers"]).next().is_some()),
    ];
    if let Some((field, _)) = resolver.iter().find(|(_, set)| *set) {
        clash(
            "ResolverConfig",
            true,
            &format!(".machine.network.{field} is already set in v1alpha1 config"),
        );
    }
    let time = &machine["time"];
    clash(
        "TimeSyncConfig",
        list(&time["servers"]).next().is_some() || time["disabled"] == true,
        "time servers cannot be specified in both v1alpha1 and new-style configuration",
    );
    clash(
        "KubeSpanConfig",
        !network["kubespan"].is_null(),
        "kubespan is already configured in v1alpha1 machine.network.kubespan",
    );
    if minor >= 14 {
        clash(
            "UnattendedInstallConfig",
            !machine["install"].is_null(),
            "UnattendedInstallConfig config is incompatible with v1alpha1 config (.machine.install)",
        );
        clash(
            "KubeletConfig",
            !machine["kubelet"].is_null(),
            "kubelet config is already set in v1alpha1 config (.machine.kubelet)",
        );
        clash(
            "KubeNodeConfig",
            !machine["nodeLabels"].is_null(),
            ".machine.nodeLabels is already set in v1alpha1 config",
        );
        clash(
            "KubeAPIServerConfig",
            !cluster["apiServer"].is_null(),
            "kube-apiserver config is already set in v1alpha1 config (.cluster.apiServer)",
        );
        clash(
            "KubeAPIServerCAConfig",
            !cluster["ca"].is_null(),
            "kube-apiserver CA is already set in v1alpha1 config (.cluster.ca)",
        );
        clash(
            "KubeServiceAccountConfig",
            !cluster["serviceAccount"].is_null(),
            "service account is already set in v1alpha1 config (.cluster.serviceAccount)",
        );
        clash(
            "KubeControllerManagerConfig",
            !cluster["controllerManager"].is_null(),
            "kube-controller-manager config is already set in v1alpha1 config (.cluster.controllerManager)",
        );
        clash(
            "KubeSchedulerConfig",
            !cluster["scheduler"].is_null(),
            "kube-scheduler config is already set in v1alpha1 config (.cluster.scheduler)",
        );
        clash(
            "DiscoveryServiceConfig",
            !cluster["discovery"].is_null(),
            "discovery service is already configured in .cluster.discovery of the v1alpha1 config",
        );
        clash(
            "DiscoveryIdentityConfig",
            filled(&cluster["id"]),
            "cluster identity is already configured in .cluster.id/.cluster.secret of the v1alpha1 config",
        );
    }
    if has("KubeSpanConfig")
        && minor >= 14
        && config.machine_type() == MachineType::ControlPlane
        && cluster["discovery"]["enabled"] == false
    {
        out.push("KubeSpan requires cluster discovery to be enabled".to_owned());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Verdicts of the real validator of 1.13.9 on configs that people get wrong. Blank lines are how Go separates lists: not compared.
    #[test]
    fn verdicts_are_those_of_the_real_validator() {
        let version = semver::Version::new(1, 13, 9);
        let judge = Judge {
            version: &version,
            metal: false,
            installed: true,
            disks: &[],
        };
        let lines = |text: &str| {
            text.lines()
                .filter(|line| !line.trim().is_empty())
                .collect::<Vec<_>>()
                .join("\n")
        };
        let mut seen = 0;
        for case in include_str!("../../../tests/data/broken.jsonl").lines() {
            let case: Value = serde_json::from_str(case).expect("a case");
            let text = case["config"].as_str().expect("a config");
            let verdict = match Config::decode(text.as_bytes(), 13) {
                Err(error) => error.0,
                Ok(config) => validate(&config, &judge).map_or_else(|faults| faults, |_| "VALID".to_owned()),
            };
            assert_eq!(
                lines(&verdict),
                case["verdict"].as_str().expect("a verdict"),
                "{}",
                case["name"]
            );
            seen += 1;
        }
        assert_eq!(seen, 58);
    }
}
