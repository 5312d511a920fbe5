//! The v1alpha1 document. Field order is upstream's, so that a person can compare the texts.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::input::{ClusterInput, Cni, Hostname, InstallDisk, Link, MachineInput, NetworkForm, Registry, Role, Taint};
use crate::secrets::{Authority, EtcdEncryption, Secrets};
use crate::versions::Contract;

#[derive(Serialize)]
pub struct Legacy<'a> {
    version: &'static str,
    debug: bool,
    persist: bool,
    machine: Machine<'a>,
    cluster: Cluster<'a>,
}

impl<'a> Legacy<'a> {
    pub fn new(secrets: &'a Secrets, cluster: &'a ClusterInput, machine: &'a MachineInput) -> Self {
        Self {
            version: "v1alpha1",
            debug: false,
            persist: true,
            machine: Machine::new(secrets, cluster, machine),
            cluster: Cluster::new(secrets, cluster, machine),
        }
    }
}

/// A certificate and its key as base64 of PEM; workers get no key.
#[derive(Serialize)]
struct Pair {
    crt: String,
    key: String,
}

impl Pair {
    fn full(authority: &Authority) -> Self {
        Self {
            crt: STANDARD.encode(&authority.certificate),
            key: STANDARD.encode(authority.key.as_bytes()),
        }
    }

    fn for_role(authority: &Authority, role: Role) -> Self {
        match role {
            Role::ControlPlane => Self::full(authority),
            Role::Worker => Self {
                crt: STANDARD.encode(&authority.certificate),
                key: String::new(),
            },
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Machine<'a> {
    r#type: &'static str,
    token: &'a str,
    ca: Pair,
    #[serde(rename = "certSANs")]
    cert_sans: &'a [String],
    kubelet: Kubelet<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Network<'a>>,
    install: Install<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<Time<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    registries: Option<Registries<'a>>,
    features: Features,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    node_labels: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    node_annotations: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    node_taints: BTreeMap<&'a str, String>,
}

impl<'a> Machine<'a> {
    fn new(secrets: &'a Secrets, cluster: &'a ClusterInput, machine: &'a MachineInput) -> Self {
        let contract = cluster.contract();
        Self {
            r#type: match machine.role {
                Role::ControlPlane => "controlplane",
                Role::Worker => "worker",
            },
            token: &secrets.trustd_token,
            ca: Pair::for_role(&secrets.os, machine.role),
            cert_sans: &cluster.talos_sans,
            kubelet: Kubelet::new(cluster, machine),
            network: Network::new(cluster, machine),
            install: Install::new(machine, contract),
            time: Time::new(cluster),
            registries: Registries::new(cluster),
            features: Features::new(cluster),
            node_labels: node_labels(machine),
            node_annotations: &machine.annotations,
            node_taints: node_taints(machine),
        }
    }
}

fn node_labels(machine: &MachineInput) -> BTreeMap<&str, &str> {
    let own = machine.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let of_role = match machine.role {
        Role::ControlPlane => Some(("node.kubernetes.io/exclude-from-external-load-balancers", "")),
        Role::Worker => None,
    };
    of_role.into_iter().chain(own).collect()
}

/// On a worker they would never take effect, and keep its labels from being written.
fn node_taints(machine: &MachineInput) -> BTreeMap<&str, String> {
    let own = machine.taints.iter().filter(|_| machine.role == Role::ControlPlane);
    own.map(|taint| {
        let value = if taint.value.is_empty() {
            taint.effect.clone()
        } else {
            format!("{}:{}", taint.value, taint.effect)
        };
        (taint.key.as_str(), value)
    })
    .collect()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Kubelet<'a> {
    image: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_config: Option<ExtraConfig<'a>>,
    default_runtime_seccomp_profile_enabled: bool,
    #[serde(rename = "nodeIP", skip_serializing_if = "Option::is_none")]
    node_ip: Option<NodeIp<'a>>,
    disable_manifests_directory: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExtraConfig<'a> {
    register_with_taints: Vec<RegisteredTaint<'a>>,
}

#[derive(Serialize)]
struct RegisteredTaint<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    value: &'a str,
    effect: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeIp<'a> {
    valid_subnets: &'a [String],
}

impl<'a> ExtraConfig<'a> {
    /// A control plane changes its own Node as an administrator, so its taints are Talos' own.
    fn of(machine: &'a MachineInput) -> Option<Self> {
        let registers = machine.role == Role::Worker && !machine.taints.is_empty();
        registers.then(|| Self {
            register_with_taints: machine.taints.iter().map(RegisteredTaint::of).collect(),
        })
    }
}

impl<'a> RegisteredTaint<'a> {
    fn of(taint: &'a Taint) -> Self {
        Self {
            key: &taint.key,
            value: &taint.value,
            effect: &taint.effect,
        }
    }
}

impl<'a> Kubelet<'a> {
    fn new(cluster: &ClusterInput, machine: &'a MachineInput) -> Self {
        let subnets = machine.node_subnets.as_slice();
        Self {
            image: format!("ghcr.io/siderolabs/kubelet:v{}", cluster.kubernetes),
            extra_config: ExtraConfig::of(machine),
            default_runtime_seccomp_profile_enabled: true,
            node_ip: (!subnets.is_empty()).then_some(NodeIp { valid_subnets: subnets }),
            disable_manifests_directory: true,
        }
    }
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Network<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nameservers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kubespan: Option<Enabled>,
}

#[derive(Serialize)]
struct Enabled {
    enabled: bool,
}

impl<'a> Network<'a> {
    fn new(cluster: &ClusterInput, machine: &'a MachineInput) -> Option<Self> {
        let contract = cluster.contract();
        let mut network = Self::default();
        if cluster.network_form == NetworkForm::Classic {
            network.interfaces = machine.links.iter().map(|link| Interface::new(link, machine.role)).collect();
            network.nameservers = cluster.nameservers.iter().map(ToString::to_string).collect();
        }
        if let (false, Hostname::Static(name)) = (contract.has_network_documents(), &machine.hostname) {
            network.hostname = Some(name);
        }
        if !contract.has_kubespan_document() {
            network.kubespan = cluster.kubespan.map(|enabled| Enabled { enabled });
        }
        let says_something = network.hostname.is_some()
            || network.kubespan.is_some()
            || !network.interfaces.is_empty()
            || !network.nameservers.is_empty();
        (says_something || contract.writes_empty_network()).then_some(network)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Interface<'a> {
    device_selector: DeviceSelector<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    dhcp: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    vip: Option<Vip>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeviceSelector<'a> {
    hardware_addr: &'a str,
}

#[derive(Serialize)]
struct Route {
    network: String,
    gateway: String,
}

#[derive(Serialize)]
struct Vip {
    ip: String,
}

impl<'a> Interface<'a> {
    fn new(link: &'a Link, role: Role) -> Self {
        let default = |gateway: &std::net::IpAddr| Route {
            network: if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" }.to_owned(),
            gateway: gateway.to_string(),
        };
        let further = link.routes.iter().map(|route| Route {
            network: route.destination.to_string(),
            gateway: route.gateway.to_string(),
        });
        Self {
            device_selector: DeviceSelector {
                hardware_addr: &link.mac,
            },
            addresses: link.addresses.iter().map(ToString::to_string).collect(),
            routes: link.gateways.iter().map(default).chain(further).collect(),
            mtu: link.mtu,
            dhcp: link.dhcp,
            vip: link
                .vip
                .filter(|_| role == Role::ControlPlane)
                .map(|ip| Vip { ip: ip.to_string() }),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Install<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_selector: Option<DiskSelector<'a>>,
    image: &'a str,
    wipe: bool,
    #[serde(rename = "grubUseUKICmdline", skip_serializing_if = "Option::is_none")]
    grub_use_uki_cmdline: Option<bool>,
}

#[derive(Serialize)]
struct DiskSelector<'a> {
    serial: &'a str,
}

impl<'a> Install<'a> {
    fn new(machine: &'a MachineInput, contract: Contract) -> Self {
        let (disk, disk_selector) = match &machine.install.disk {
            InstallDisk::Path(path) => (Some(path.as_str()), None),
            InstallDisk::Serial(serial) => (None, Some(DiskSelector { serial })),
        };
        Self {
            disk,
            disk_selector,
            image: &machine.install.image,
            wipe: false,
            grub_use_uki_cmdline: contract.has_network_documents().then_some(true),
        }
    }
}

#[derive(Serialize)]
struct Time<'a> {
    servers: &'a [String],
}

impl<'a> Time<'a> {
    fn new(cluster: &'a ClusterInput) -> Option<Self> {
        let wanted = cluster.network_form == NetworkForm::Classic && !cluster.time_servers.is_empty();
        wanted.then_some(Self {
            servers: &cluster.time_servers,
        })
    }
}

#[derive(Serialize)]
struct Registries<'a> {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    mirrors: BTreeMap<&'a str, Mirror>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    config: BTreeMap<&'a str, RegistryConfig<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Mirror {
    endpoints: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    skip_fallback: Option<bool>,
}

#[derive(Serialize)]
struct RegistryConfig<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<RegistryTls>,
    #[serde(skip_serializing_if = "Option::is_none")]
    auth: Option<RegistryAuth<'a>>,
}

#[derive(Serialize)]
struct RegistryTls {
    ca: String,
}

#[derive(Serialize)]
struct RegistryAuth<'a> {
    username: &'a str,
    password: &'a str,
}

impl<'a> Registries<'a> {
    fn new(cluster: &'a ClusterInput) -> Option<Self> {
        if cluster.contract().has_network_documents() || cluster.registries.is_empty() {
            return None;
        }
        let registries = || cluster.registries.iter().map(|(host, registry)| (host.as_str(), registry));
        let mirrors = registries().filter(|(_, registry)| !registry.endpoints.is_empty());
        let configs = registries().filter(|(_, registry)| registry.ca.is_some() || registry.login.is_some());
        Some(Self {
            mirrors: mirrors.map(|(host, registry)| (host, Mirror::new(registry))).collect(),
            config: configs
                .map(|(host, registry)| (host, RegistryConfig::new(registry)))
                .collect(),
        })
    }
}

impl Mirror {
    fn new(registry: &Registry) -> Self {
        Self {
            endpoints: registry.endpoints.iter().map(super::bare_url).collect(),
            skip_fallback: registry.skip_fallback.then_some(true),
        }
    }
}

impl<'a> RegistryConfig<'a> {
    fn new(registry: &'a Registry) -> Self {
        let login = registry.login.as_ref();
        Self {
            tls: registry.ca.as_ref().map(|ca| RegistryTls { ca: STANDARD.encode(ca) }),
            auth: login.map(|login| RegistryAuth {
                username: &login.username,
                password: &login.password,
            }),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Features {
    #[serde(skip_serializing_if = "Option::is_none")]
    rbac: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stable_hostname: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    apid_check_ext_key_usage: Option<bool>,
    disk_quota_support: bool,
    kube_prism: KubePrism,
    #[serde(rename = "hostDNS")]
    host_dns: HostDns,
}

#[derive(Serialize)]
struct KubePrism {
    enabled: bool,
    port: u16,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HostDns {
    enabled: bool,
    #[serde(rename = "forwardKubeDNSToHost")]
    forward: bool,
}

impl Features {
    fn new(cluster: &ClusterInput) -> Self {
        let before_documents = (!cluster.contract().has_network_documents()).then_some(true);
        Self {
            rbac: before_documents,
            stable_hostname: before_documents,
            apid_check_ext_key_usage: before_documents,
            disk_quota_support: true,
            kube_prism: KubePrism {
                enabled: true,
                port: cluster.kube_prism_port,
            },
            host_dns: HostDns {
                enabled: true,
                forward: cluster.forward_dns_to_host,
            },
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Cluster<'a> {
    id: &'a str,
    secret: &'a str,
    control_plane: ControlPlane,
    cluster_name: &'a str,
    network: ClusterNetwork<'a>,
    token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    aescbc_encryption_secret: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secretbox_encryption_secret: Option<&'a str>,
    ca: Pair,
    #[serde(flatten)]
    components: Option<Components<'a>>,
    discovery: Discovery,
    #[serde(skip_serializing_if = "Option::is_none")]
    etcd: Option<Etcd>,
    #[serde(skip_serializing_if = "Option::is_none")]
    external_cloud_provider: Option<Enabled>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_scheduling_on_control_planes: Option<bool>,
}

#[derive(Serialize)]
struct ControlPlane {
    endpoint: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterNetwork<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cni: Option<CniName>,
    dns_domain: &'a str,
    pod_subnets: &'a [String],
    service_subnets: &'a [String],
}

#[derive(Serialize)]
struct CniName {
    name: &'static str,
}

#[derive(Serialize)]
struct Discovery {
    enabled: bool,
    registries: DiscoveryRegistries,
}

/// Only the service is used: the registry in Kubernetes does not work with recent Kubernetes versions.
#[derive(Serialize)]
struct DiscoveryRegistries {
    kubernetes: Disabled,
    service: Empty,
}

#[derive(Serialize)]
struct Disabled {
    disabled: bool,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Etcd {
    ca: Pair,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    advertised_subnets: Vec<String>,
}

impl<'a> Cluster<'a> {
    fn new(secrets: &'a Secrets, cluster: &'a ClusterInput, machine: &'a MachineInput) -> Self {
        let on_control_plane = machine.role == Role::ControlPlane;
        let encryption = Some(&secrets.etcd_encryption).filter(|_| on_control_plane);
        let (secretbox, aescbc) = match encryption {
            Some(EtcdEncryption::Secretbox(key)) => (Some(key.as_str()), None),
            Some(EtcdEncryption::AesCbc(key)) => (None, Some(key.as_str())),
            None => (None, None),
        };
        Self {
            id: &secrets.cluster_id,
            secret: &secrets.cluster_secret,
            control_plane: ControlPlane {
                endpoint: super::bare_url(&cluster.endpoint),
            },
            cluster_name: &cluster.name,
            network: ClusterNetwork {
                cni: (cluster.cni == Cni::None).then_some(CniName { name: "none" }),
                dns_domain: &cluster.dns_domain,
                pod_subnets: &cluster.pod_subnets,
                service_subnets: &cluster.service_subnets,
            },
            token: &secrets.bootstrap_token,
            aescbc_encryption_secret: aescbc,
            secretbox_encryption_secret: secretbox,
            ca: Pair::for_role(&secrets.kubernetes, machine.role),
            components: on_control_plane.then(|| Components::new(secrets, cluster)),
            discovery: Discovery {
                enabled: cluster.discovery,
                registries: DiscoveryRegistries {
                    kubernetes: Disabled { disabled: true },
                    service: Empty {},
                },
            },
            etcd: on_control_plane.then(|| Etcd {
                ca: Pair::full(&secrets.etcd),
                advertised_subnets: machine.node_subnets.clone(),
            }),
            external_cloud_provider: cluster.external_cloud_provider.then_some(Enabled { enabled: true }),
            allow_scheduling_on_control_planes: (on_control_plane && cluster.schedule_on_control_planes).then_some(true),
        }
    }
}

/// What only control planes run.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Components<'a> {
    #[serde(rename = "aggregatorCA")]
    aggregator_ca: Pair,
    service_account: ServiceAccount,
    api_server: ApiServer<'a>,
    controller_manager: Image,
    proxy: Proxy,
    scheduler: Image,
}

#[derive(Serialize)]
struct ServiceAccount {
    key: String,
}

#[derive(Serialize)]
struct Image {
    image: String,
}

#[derive(Serialize)]
struct Proxy {
    #[serde(skip_serializing_if = "Option::is_none")]
    disabled: Option<bool>,
    image: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiServer<'a> {
    image: String,
    #[serde(rename = "certSANs", skip_serializing_if = "Vec::is_empty")]
    cert_sans: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disable_pod_security_policy: Option<bool>,
    admission_control: serde_json::Value,
    audit_policy: serde_json::Value,
}

impl<'a> Components<'a> {
    fn new(secrets: &Secrets, cluster: &'a ClusterInput) -> Self {
        let image = |component: &str| format!("registry.k8s.io/kube-{component}:v{}", cluster.kubernetes);
        Self {
            aggregator_ca: Pair::full(&secrets.aggregator),
            service_account: ServiceAccount {
                key: STANDARD.encode(secrets.service_account.key.as_bytes()),
            },
            api_server: ApiServer::new(image("apiserver"), cluster),
            controller_manager: Image {
                image: image("controller-manager"),
            },
            proxy: Proxy {
                disabled: (!cluster.kube_proxy).then_some(true),
                image: image("proxy"),
            },
            scheduler: Image {
                image: image("scheduler"),
            },
        }
    }
}

impl<'a> ApiServer<'a> {
    fn new(image: String, cluster: &'a ClusterInput) -> Self {
        // Newer nodes add the endpoint's host themselves.
        let writes_endpoint = !cluster.contract().has_network_documents();
        let endpoint = cluster.endpoint.host_str().filter(|_| writes_endpoint);
        let endpoint = endpoint.map(|host| host.trim_matches(['[', ']']));
        Self {
            image,
            cert_sans: endpoint
                .into_iter()
                .chain(cluster.kubernetes_sans.iter().map(String::as_str))
                .collect(),
            disable_pod_security_policy: writes_endpoint.then_some(true),
            admission_control: pod_security(),
            audit_policy: serde_json::json!({
                "apiVersion": "audit.k8s.io/v1",
                "kind": "Policy",
                "rules": [{ "level": "Metadata" }],
            }),
        }
    }
}

fn pod_security() -> serde_json::Value {
    serde_json::json!([{
        "name": "PodSecurity",
        "configuration": {
            "apiVersion": "pod-security.admission.config.k8s.io/v1alpha1",
            "defaults": {
                "audit": "restricted",
                "audit-version": "latest",
                "enforce": "baseline",
                "enforce-version": "latest",
                "warn": "restricted",
                "warn-version": "latest",
            },
            "exemptions": { "namespaces": ["kube-system"], "runtimeClasses": [], "usernames": [] },
            "kind": "PodSecurityConfiguration",
        },
    }])
}
