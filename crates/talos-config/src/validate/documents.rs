//! The documents beside the v1alpha1 one, each by its own rules.

use std::collections::BTreeSet;

use semver::Version;

use super::machine::check_subnet;
use super::{Look, Verdict};
use crate::cel::{self, Scope};
use crate::config::{Config, DocumentId};
use crate::scalars;
use crate::versions::Contract;
use crate::yaml::{Node, Value};

const V1_13: Contract = Contract::new(1, 13);
const V1_14: Contract = Contract::new(1, 14);

/// Documents that are known by their kind alone.
const UNNAMED: [&str; 34] = [
    "HostnameConfig",
    "ResolverConfig",
    "TimeSyncConfig",
    "KubeSpanConfig",
    "KubeSpanEndpointsConfig",
    "NetworkDefaultActionConfig",
    "EventSinkConfig",
    "WatchdogTimerConfig",
    "EnvironmentConfig",
    "OOMConfig",
    "ZswapConfig",
    "SideroLinkConfig",
    "ImageVerificationConfig",
    "DiscoveryIdentityConfig",
    "UnattendedInstallConfig",
    "SysctlConfig",
    "SysfsConfig",
    "UdevRulesConfig",
    "FilesystemTrimConfig",
    "FilesystemScrubConfig",
    "SecurityProfileConfig",
    "KubeClusterConfig",
    "KubeNodeConfig",
    "KubeletConfig",
    "KubeNetworkConfig",
    "KubeAPIServerCAConfig",
    "KubePrismConfig",
    "KubeAggregatorCAConfig",
    "KubeAuditPolicyConfig",
    "KubeAuthenticationConfig",
    "KubeEtcdEncryptionConfig",
    "KubeServiceAccountConfig",
    "KubeAPIServerConfig",
    "KubeControllerManagerConfig",
];

pub fn check(config: &Config, talos: &Version, verdict: &mut Verdict) {
    for document in config.documents.iter().filter(|document| !document.id.is_legacy()) {
        let check = Check {
            id: &document.id,
            body: &document.body,
            talos,
            contract: Contract::of(talos),
        };
        let mut found = Vec::new();
        check.run(&mut found);
        if !found.is_empty() {
            verdict.others.push(format!("{}: {}", shown(&document.id), found.join("\n")));
        }
    }
}

fn shown(id: &DocumentId) -> String {
    if UNNAMED.contains(&id.kind.as_str()) {
        id.kind.clone()
    } else {
        format!("{}/{}", id.kind, id.name)
    }
}

struct Check<'a> {
    id: &'a DocumentId,
    body: &'a Node,
    talos: &'a Version,
    contract: Contract,
}

impl Check<'_> {
    fn run(&self, found: &mut Vec<String>) {
        match self.id.kind.as_str() {
            "HostnameConfig" => self.hostname(found),
            "ResolverConfig" => self.resolver(found),
            "TimeSyncConfig" => self.time_sync(found),
            "LinkAliasConfig" => self.link_alias(found),
            "LinkConfig" | "DummyLinkConfig" | "BridgeConfig" => self.link(found),
            "BondConfig" => self.bond(found),
            "VLANConfig" => self.vlan(found),
            "VRFConfig" => self.vrf(found),
            "WireguardConfig" => self.wireguard(found),
            "DHCPv4Config" | "DHCPv6Config" => self.dhcp(found),
            "Layer2VIPConfig" | "HCloudVIPConfig" => self.vip(found),
            "StaticHostConfig" => self.static_host(found),
            "KubeSpanConfig" => self.kubespan(found),
            "NetworkRuleConfig" => self.network_rule(found),
            "EthernetConfig" => self.require_name("name is required", found),
            "BlackholeRouteConfig" => self.blackhole(found),
            "VolumeConfig" => self.volume(found),
            "UserVolumeConfig" => self.user_volume(found),
            "RawVolumeConfig" | "SwapVolumeConfig" => self.sized_volume(found),
            "ExistingVolumeConfig" => self.existing_volume(found),
            "ExternalVolumeConfig" => self.external_volume(found),
            "ZswapConfig" => self.zswap(found),
            _ => self.small(found),
        }
    }

    fn small(&self, found: &mut Vec<String>) {
        match self.id.kind.as_str() {
            "ExtensionServiceConfig" => found.extend(self.extension_service()),
            "KmsgLogConfig" => found.extend(self.kmsg_log()),
            "WatchdogTimerConfig" => found.extend(self.watchdog()),
            "EventSinkConfig" => found.extend(self.event_sink()),
            "EnvironmentConfig" => self.environment(found),
            "SideroLinkConfig" => found.extend(self.siderolink()),
            "RegistryMirrorConfig" => self.registry_mirror(found),
            "RegistryAuthConfig" => self.registry_auth(found),
            "RegistryTLSConfig" => self.registry_tls(found),
            "TCPProbeConfig" => self.tcp_probe(found),
            _ => {}
        }
    }

    fn name(&self) -> &str {
        &self.id.name
    }

    fn require_name(&self, text: &str, found: &mut Vec<String>) {
        if self.name().is_empty() {
            found.push(text.to_owned());
        }
    }

    fn hostname(&self, found: &mut Vec<String>) {
        let (auto, hostname) = (self.body.at_path("auto").and_then(Node::as_str), self.body.text("hostname"));
        let nothing = if self.accepts_off_alone() {
            auto.is_none()
        } else {
            matches!(auto, None | Some("off"))
        };
        if nothing && hostname.is_empty() {
            found.push("either 'auto' or 'hostname' must be set".to_owned());
        }
        if !matches!(auto, None | Some("off")) && !hostname.is_empty() {
            found.push("'auto' and 'hostname' cannot be set at the same time".to_owned());
        }
        if let Some(other) = auto.filter(|auto| !matches!(*auto, "off" | "stable")) {
            found.push(format!("invalid value for 'auto': {other}"));
        }
        let label = hostname.split('.').next().unwrap_or_default();
        if hostname.len() > 253 {
            found.push(format!("fqdn is too long: {}", hostname.len()));
        }
        if !hostname.is_empty() && (label.is_empty() || label.len() > 63) {
            found.push(format!("invalid hostname {label:?}"));
        }
    }

    /// Patch releases changed their mind about `auto: off` without a name.
    fn accepts_off_alone(&self) -> bool {
        match self.talos.minor {
            ..12 => false,
            12 => self.talos.patch >= 9,
            13 => self.talos.patch >= 3,
            _ => true,
        }
    }

    fn resolver(&self, found: &mut Vec<String>) {
        if self.contract < V1_14 {
            return;
        }
        let Some(dns) = self.body.at_path("hostDNS").filter(|dns| !dns.is_zero()) else {
            return;
        };
        if dns.flag("enabled") == Some(true) {
            return;
        }
        for key in ["forwardKubeDNSToHost", "resolveMemberNames"] {
            if dns.flag(key) == Some(true) {
                found.push(format!("hostDNS.{key} cannot be enabled when hostDNS.enabled is false"));
            }
        }
    }

    fn time_sync(&self, found: &mut Vec<String>) {
        if self.body.text("bootTimeout").starts_with('-') {
            found.push("bootTimeout cannot be negative".to_owned());
        }
        if self.body.has("ntp") && self.body.has("ptp") {
            found.push("only one of ntp or ptp configuration can be specified".to_owned());
        }
    }

    fn link_alias(&self, found: &mut Vec<String>) {
        self.require_name("name must be specified", found);
        if let Some((prefix, suffix)) = self.name().split_once('%')
            && self.contract >= V1_13
            && (suffix != "d" || prefix.is_empty())
        {
            found.push(format!(
                "name {:?} contains an invalid format verb, use %d suffix",
                self.name()
            ));
        }
        self.selector("selector.match", "link selector", Scope::Link, true, found);
    }

    fn selector(&self, path: &str, what: &str, scope: Scope, required: bool, found: &mut Vec<String>) {
        let expression = self.body.text(path);
        if expression.is_empty() {
            if required {
                found.push(format!("{what} is required"));
            }
        } else if let Err(problem) = cel::check_bool(expression, scope) {
            found.push(format!("{what} is invalid: {problem}"));
        }
    }

    fn link(&self, found: &mut Vec<String>) {
        self.require_name("name must be specified", found);
        self.common_link(found);
    }

    fn common_link(&self, found: &mut Vec<String>) {
        let is_unspecified = |text: &str| {
            let ip = text.split('/').next().unwrap_or_default();
            scalars::address(ip).is_ok_and(|ip| ip.is_unspecified())
        };
        for (index, address) in self.body.items("addresses").iter().enumerate() {
            let address = address.text("address");
            if address.is_empty() {
                found.push(format!("address {index} must be specified"));
            } else if is_unspecified(address) {
                found.push(format!("address {index} must be a valid IP address"));
            }
        }
        for (index, route) in self.body.items("routes").iter().enumerate() {
            if is_unspecified(route.text("destination")) {
                found.push(format!("route {index} destination must be a valid IP prefix"));
            }
            for key in ["gateway", "source"] {
                if is_unspecified(route.text(key)) {
                    found.push(format!("route {index} {key} must be a valid IP address"));
                }
            }
        }
    }

    fn bond(&self, found: &mut Vec<String>) {
        self.require_name("name must be specified", found);
        if self.body.items("links").is_empty() {
            found.push("at least one link must be specified".to_owned());
        }
        if !self.body.has("bondMode") {
            found.push("bond mode must be specified".to_owned());
        }
        self.common_link(found);
    }

    fn vlan(&self, found: &mut Vec<String>) {
        self.require_name("name must be specified", found);
        if !(1..=4094).contains(&self.body.number("vlanID")) {
            found.push("vlanID must be specified and between 1 and 4094".to_owned());
        }
        if self.body.text("parent").is_empty() {
            found.push("parent must be specified".to_owned());
        }
        self.common_link(found);
    }

    fn vrf(&self, found: &mut Vec<String>) {
        self.require_name("name must be specified", found);
        let table = self.body.text("table");
        let table = if table.is_empty() { "unspec" } else { table };
        if matches!(table, "unspec" | "local" | "main" | "default") {
            found.push(format!("cannot create vrf with reserved table {table}"));
        }
        self.common_link(found);
    }

    fn wireguard(&self, found: &mut Vec<String>) {
        self.require_name("name must be specified", found);
        let key = self.body.text("privateKey");
        if key.is_empty() {
            found.push("wireguard private key must be specified".to_owned());
        } else if let Err(problem) = scalars::wireguard_key(key) {
            found.push(format!("wireguard private key is invalid: {problem}"));
        }
        if !(0..=65535).contains(&self.body.number("listenPort")) {
            found.push("wireguard listen port must be between 0 and 65535".to_owned());
        }
        for (index, peer) in self.body.items("peers").iter().enumerate() {
            let key = peer.text("publicKey");
            if key.is_empty() {
                found.push(format!("wireguard peer public key must be specified (peer index {index})"));
            } else if let Err(problem) = scalars::wireguard_key(key) {
                found.push(format!(
                    "wireguard peer public key is invalid (peer index {index}): {problem}"
                ));
            }
        }
        self.common_link(found);
    }

    fn dhcp(&self, found: &mut Vec<String>) {
        self.require_name("name must be specified", found);
        let (raw, by_duid) = (
            !self.body.text("duidRaw").is_empty(),
            self.body.text("clientIdentifier") == "duid",
        );
        if raw && !by_duid {
            found.push("duidRaw can only be set if clientIdentifier is 'duid'".to_owned());
        }
        if by_duid && !raw {
            found.push("duidRaw must be set if clientIdentifier is 'duid'".to_owned());
        }
    }

    fn vip(&self, found: &mut Vec<String>) {
        if self.name().is_empty() {
            found.push("name must be specified".to_owned());
        } else if let Err(problem) = scalars::address(self.name()) {
            found.push(format!("name must be a valid IP address: {problem}"));
        }
        if self.body.text("link").is_empty() {
            found.push("link must be specified".to_owned());
        }
        if self.id.kind == "HCloudVIPConfig" && self.body.text("apiToken").is_empty() {
            found.push("apiToken must be specified".to_owned());
        }
    }

    fn static_host(&self, found: &mut Vec<String>) {
        self.require_name("name is required", found);
        if scalars::address(self.name()).is_err() {
            found.push("name must be a valid IP address".to_owned());
        }
        if self.body.items("hostnames").is_empty() {
            found.push("at least one hostname is required".to_owned());
        }
    }

    fn kubespan(&self, found: &mut Vec<String>) {
        if self.body.has("mtu") && self.body.number("mtu") < 1280 {
            found.push("kubespan link MTU must be at least 1280".to_owned());
        }
        for subnet in self.body.texts("filters.endpoints") {
            check_subnet(subnet, "KubeSpan endpoint filter is not valid", found);
        }
    }

    fn network_rule(&self, found: &mut Vec<String>) {
        if self.name().is_empty() {
            found.push("name is required".to_owned());
        } else if self.body.items("portSelector.ports").is_empty() {
            found.push("portSelector.ports is required".to_owned());
        }
    }

    fn blackhole(&self, found: &mut Vec<String>) {
        self.require_name("name must be specified", found);
        if let Err(problem) = scalars::prefix(self.name()) {
            found.push(format!("name must be a valid address prefix: {problem}"));
        }
    }

    fn volume(&self, found: &mut Vec<String>) {
        let known: &[&str] = if self.contract < V1_14 {
            &["STATE", "EPHEMERAL", "IMAGECACHE"]
        } else {
            &["STATE", "EPHEMERAL", "IMAGECACHE", "ETCD", "CRI", "KUBELET", "LOG"]
        };
        let name = self.name();
        if !known.contains(&name) {
            let known: Vec<String> = known.iter().map(|name| format!("{name:?}")).collect();
            found.push(format!("only [{}] volumes are supported", known.join(" ")));
            return;
        }
        if name == "STATE" {
            if self.body.at_path("provisioning").is_some_and(|spec| !spec.is_zero()) {
                found.push(format!("provisioning config is not allowed for the {name:?} volume"));
            }
            let locked = self
                .body
                .items("encryption.keys")
                .iter()
                .filter(|key| key.flag("lockToState") == Some(true));
            found.extend(locked.map(|_| format!("state-locked key is not allowed for the {name:?} volume")));
        }
        self.provisioning(false, true, found);
        self.encryption(found);
    }

    fn volume_name(&self, has_limit: bool, found: &mut Vec<String>) {
        let name = self.name();
        self.require_name("name is required", found);
        if has_limit && !(1..=34).contains(&name.len()) {
            found.push("name must be between 1 and 34 characters long".to_owned());
        }
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            found.push("name can only contain lowercase and uppercase ASCII letters, digits, and hyphens".to_owned());
        }
    }

    fn user_volume(&self, found: &mut Vec<String>) {
        self.volume_name(true, found);
        let kind = self.body.at_path("volumeType").and_then(Node::as_str).unwrap_or("partition");
        match kind {
            "directory" => self.directory_volume(found),
            "disk" | "partition" => {
                self.provisioning(true, kind == "partition", found);
                self.filesystem(found);
                self.encryption(found);
            }
            other => found.push(format!("unsupported volume type {other:?}")),
        }
    }

    fn directory_volume(&self, found: &mut Vec<String>) {
        let given = |section: &str| self.body.at_path(section).is_some_and(|spec| !spec.is_zero());
        for section in ["provisioning", "encryption", "filesystem"]
            .into_iter()
            .filter(|section| given(section))
        {
            found.push(format!("{section} spec is invalid for volumeType directory"));
        }
        if self.contract >= V1_14 {
            if self.body.has("mount.disableAccessTime") {
                found.push("mount.disableAccessTime is invalid for volumeType directory".to_owned());
            }
        } else if self.contract >= V1_13 && given("mount") {
            found.push("mount spec is invalid for volumeType directory".to_owned());
        }
    }

    fn sized_volume(&self, found: &mut Vec<String>) {
        self.volume_name(true, found);
        self.provisioning(true, true, found);
        self.encryption(found);
    }

    fn existing_volume(&self, found: &mut Vec<String>) {
        self.volume_name(false, found);
        self.selector("discovery.volumeSelector.match", "volume selector", Scope::Any, true, found);
    }

    fn external_volume(&self, found: &mut Vec<String>) {
        self.volume_name(true, found);
        match self.body.text("filesystemType") {
            "virtiofs" => match self.body.at_path("mount.virtiofs") {
                None => found.push("virtiofs mount spec is required".to_owned()),
                Some(mount) if mount.text("tag").is_empty() => found.push("virtiofs tag is required".to_owned()),
                Some(_) => {}
            },
            other => {
                let other = if other.is_empty() { "none" } else { other };
                found.push(format!("invalid filesystem type: {other}"));
            }
        }
    }

    fn provisioning(&self, required: bool, sizes_allowed: bool, found: &mut Vec<String>) {
        self.selector(
            "provisioning.diskSelector.match",
            "disk selector",
            Scope::Disk,
            required,
            found,
        );
        let (min, max) = (self.body.text("provisioning.minSize"), self.body.text("provisioning.maxSize"));
        let (has_min, has_max) = (!min.is_empty(), !max.is_empty());
        if !sizes_allowed {
            if has_min || has_max || self.body.has("provisioning.grow") {
                found.push("min size, max size and grow are not supported".to_owned());
            }
            return;
        }
        if required && !has_min && !has_max {
            found.push("min size or max size is required".to_owned());
        }
        let sizes = scalars::bytes_of(min).zip(scalars::bytes_of(max).filter(|_| !max.ends_with('%') && !max.starts_with('-')));
        if sizes.is_some_and(|(min, max)| min > max) {
            found.push("min size is greater than max size".to_owned());
        }
        if min.starts_with('-') && self.contract >= V1_13 {
            found.push("min size cannot be negative".to_owned());
        }
    }

    fn filesystem(&self, found: &mut Vec<String>) {
        let Some(spec) = self.body.at_path("filesystem") else { return };
        let kind = spec.at_path("type").and_then(Node::as_str).unwrap_or("xfs");
        let supported = matches!(kind, "none" | "xfs" | "ext4") || kind == "btrfs" && self.contract >= V1_14;
        if !supported {
            found.push(format!("unsupported filesystem type: {kind}"));
        } else if spec.flag("projectQuotaSupport") == Some(true) && !matches!(kind, "xfs" | "none") {
            found.push("project quota support is only available for xfs filesystem".to_owned());
        }
    }

    fn encryption(&self, found: &mut Vec<String>) {
        let Some(spec) = self.body.at_path("encryption").filter(|spec| !is_blank(spec)) else {
            return;
        };
        let provider = spec.text("provider");
        if provider != "luks2" {
            let provider = if provider.is_empty() { "none" } else { provider };
            found.push(format!("unsupported encryption provider: {provider}"));
        }
        let keys = spec.items("keys");
        if keys.is_empty() {
            found.push("encryption keys are required".to_owned());
        }
        let mut slots = BTreeSet::new();
        for key in keys {
            let slot = key.number("slot");
            if !slots.insert(slot) {
                found.push(format!("duplicate key slot {slot}"));
            }
            if !["static", "nodeID", "kms", "tpm"].iter().any(|method| key.has(method)) {
                found.push(format!("at least one encryption key type must be specified for slot {slot}"));
            }
            let registers = key.items("tpm.options.pcrs").iter().filter_map(Node::as_int);
            let wrong = registers.filter(|register| !(0..=23).contains(register));
            found.extend(wrong.map(|register| format!("TPM PCR {register} is out of range (0-23)")));
        }
    }

    fn zswap(&self, found: &mut Vec<String>) {
        if self.body.has("maxPoolPercent") && !(0..=100).contains(&self.body.number("maxPoolPercent")) {
            found.push("maxPoolPercent must be between 0 and 100".to_owned());
        }
    }

    fn extension_service(&self) -> Option<String> {
        let name = self.name();
        if name.is_empty() {
            return Some("name is required".to_owned());
        }
        let files = self.body.items("configFiles");
        if files.is_empty() && self.body.items("environment").is_empty() {
            return Some(format!("no config files found for extension {name:?}"));
        }
        files.iter().find_map(|file| {
            let missing = [("content", "content"), ("mountPath", "mount path")];
            let missing = missing.iter().find(|(key, _)| file.text(key).is_empty());
            missing.map(|(_, what)| format!("extension {what} is required for extension {name:?}"))
        })
    }

    fn kmsg_log(&self) -> Option<String> {
        let url = self.body.text("url");
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let problem = if self.name().is_empty() {
            "name is required"
        } else if url.is_empty() {
            "url is required"
        } else if !matches!(scheme, "tcp" | "udp") {
            "url scheme must be tcp:// or udp://"
        } else if !path.is_empty() {
            "url path must be empty"
        } else if host.rsplit_once(':').is_none_or(|(_, port)| port.is_empty()) {
            "url port is required"
        } else {
            return None;
        };
        Some(problem.to_owned())
    }

    fn watchdog(&self) -> Option<String> {
        if self.body.text("device").is_empty() {
            return Some("watchdog device: empty value".to_owned());
        }
        let timeout = scalars::parse_duration(self.body.text("timeout")).unwrap_or_default();
        let too_short = timeout != 0 && timeout < 10_000_000_000;
        too_short.then(|| "watchdog timeout: minimum value is 10s".to_owned())
    }

    fn event_sink(&self) -> Option<String> {
        let endpoint = self.body.text("endpoint");
        let has_port = endpoint.rsplit_once(':').is_some();
        (!has_port).then(|| format!("event sink endpoint: address {endpoint}: missing port in address"))
    }

    fn environment(&self, found: &mut Vec<String>) {
        let Some(Value::Map(variables)) = self.body.at_path("variables").map(|node| &node.value) else {
            return;
        };
        let fits = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        let wrong = variables.keys().filter(|name| !fits(name));
        found.extend(wrong.map(|name| format!("invalid environment variable name: {name:?}")));
    }

    fn siderolink(&self) -> Option<String> {
        let url = self.body.text("apiUrl");
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let path = rest
            .split_once('/')
            .map_or("", |(_, path)| path)
            .split('?')
            .next()
            .unwrap_or_default();
        let problem = if url.is_empty() {
            "apiUrl is required"
        } else if !matches!(scheme, "https" | "grpc") {
            "apiUrl scheme must be https:// or grpc://"
        } else if !path.is_empty() {
            "apiUrl path must be empty"
        } else {
            return None;
        };
        Some(problem.to_owned())
    }

    fn registry_mirror(&self, found: &mut Vec<String>) {
        self.require_name("name must be specified", found);
        for (index, endpoint) in self.body.items("endpoints").iter().enumerate() {
            let url = endpoint.text("url");
            let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
            if url.is_empty() {
                found.push(format!("endpoints[{index}].url must be specified"));
            } else if !matches!(scheme, "http" | "https") {
                found.push(format!("endpoints[{index}].url has unsupported scheme: {scheme:?}"));
            }
        }
    }

    fn registry_auth(&self, found: &mut Vec<String>) {
        self.require_name("name must be specified", found);
        let [username, token, auth] = ["username", "identityToken", "auth"].map(|key| !self.body.text(key).is_empty());
        if username && token {
            found.push("only one of username/password or identityToken authentication can be specified".to_owned());
        }
        if auth && (username || token) {
            found.push("only one of auth, username/password or identityToken authentication can be specified".to_owned());
        }
    }

    fn registry_tls(&self, found: &mut Vec<String>) {
        self.require_name("name must be specified", found);
        let ca = self.body.text("ca");
        if !ca.is_empty() && pem::parse_many(ca).is_ok_and(|blocks| blocks.is_empty()) {
            found.push("ca must be a valid PEM-encoded certificate".to_owned());
        }
    }

    fn tcp_probe(&self, found: &mut Vec<String>) {
        self.require_name("probe name is required", found);
        if self.body.text("endpoint").is_empty() {
            found.push("TCP probe endpoint is required".to_owned());
        }
    }
}

/// A section in which nothing is said.
fn is_blank(section: &Node) -> bool {
    section
        .as_map()
        .map_or(section.is_zero(), |fields| fields.values().all(is_blank))
}
