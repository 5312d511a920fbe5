//! What a machine config is made from.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use semver::Version;

use crate::versions::Contract;

/// Where kube-prism, the local load balancer of the API servers, listens unless told otherwise.
pub const KUBE_PRISM_PORT: u16 = 7445;

/// What all machines of a cluster share.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterInput {
    pub name: String,
    /// `https://host:port`
    pub endpoint: url::Url,
    pub talos: Version,
    pub kubernetes: Version,
    pub network_form: NetworkForm,
    pub dns_domain: String,
    pub pod_subnets: Vec<String>,
    pub service_subnets: Vec<String>,
    pub cni: Cni,
    pub kube_proxy: bool,
    pub discovery: bool,
    pub kubespan: Option<bool>,
    pub kube_prism_port: u16,
    /// CoreDNS asks the node's resolver. Cilium with BPF masquerading cannot reach it.
    pub forward_dns_to_host: bool,
    pub schedule_on_control_planes: bool,
    pub external_cloud_provider: bool,
    /// Names and addresses under which the Talos API is reached beside the machines' own.
    pub talos_sans: Vec<String>,
    /// The same for the Kubernetes API.
    pub kubernetes_sans: Vec<String>,
    pub nameservers: Vec<IpAddr>,
    pub time_servers: Vec<String>,
    pub registries: BTreeMap<String, Registry>,
}

impl ClusterInput {
    /// The defaults of `talosctl gen config`.
    pub fn new(name: impl Into<String>, endpoint: url::Url, talos: Version, kubernetes: Version) -> Self {
        Self {
            name: name.into(),
            endpoint,
            network_form: NetworkForm::newest(Contract::of(&talos)),
            talos,
            kubernetes,
            dns_domain: "cluster.local".to_owned(),
            pod_subnets: vec!["10.244.0.0/16".to_owned()],
            service_subnets: vec!["10.96.0.0/12".to_owned()],
            cni: Cni::Flannel,
            kube_proxy: true,
            discovery: true,
            kubespan: None,
            kube_prism_port: KUBE_PRISM_PORT,
            forward_dns_to_host: true,
            schedule_on_control_planes: false,
            external_cloud_provider: false,
            talos_sans: Vec::new(),
            kubernetes_sans: Vec::new(),
            nameservers: Vec::new(),
            time_servers: Vec::new(),
            registries: BTreeMap::new(),
        }
    }

    /// The contract whose form is written.
    pub fn contract(&self) -> Contract {
        Contract::of(&self.talos).classic()
    }
}

/// How addresses, resolvers and time servers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkForm {
    /// In `machine.network` and `machine.time`: the only way up to Talos 1.11.
    Classic,
    /// In documents of their own, from Talos 1.12.
    Documents,
}

impl NetworkForm {
    pub fn newest(contract: Contract) -> Self {
        if contract.has_network_documents() {
            Self::Documents
        } else {
            Self::Classic
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cni {
    /// Talos' default; nothing is written.
    Flannel,
    None,
}

/// How one image registry is reached.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Registry {
    /// Mirrors to try before the registry itself.
    pub endpoints: Vec<url::Url>,
    pub skip_fallback: bool,
    pub login: Option<RegistryLogin>,
    /// A PEM certificate to trust.
    pub ca: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct RegistryLogin {
    pub username: String,
    pub password: String,
}

/// Mirrors may carry credentials in their URL, so hosts only.
impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<_> = self.endpoints.iter().filter_map(url::Url::host_str).collect();
        f.debug_struct("Registry").field("endpoints", &hosts).finish_non_exhaustive()
    }
}

impl fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RegistryLogin(***)")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    ControlPlane,
    Worker,
}

/// What belongs to one machine.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineInput {
    pub role: Role,
    pub hostname: Hostname,
    pub install: Install,
    pub links: Vec<Link>,
    /// Subnets from which the node's address is chosen; an entry with `!` in front excludes.
    pub node_subnets: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// A worker is registered with them, and only that counts: its kubelet may not change its own taints later.
    pub taints: Vec<Taint>,
    pub user_volumes: Vec<UserVolume>,
    /// Keeps the rest of the system disk free. Read once, at the first boot.
    pub ephemeral_max_size: Option<String>,
    pub extension_services: Vec<ExtensionService>,
}

impl MachineInput {
    pub fn new(role: Role, install: Install) -> Self {
        Self {
            role,
            hostname: Hostname::Automatic,
            install,
            links: Vec::new(),
            node_subnets: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            taints: Vec::new(),
            user_volumes: Vec::new(),
            ephemeral_max_size: None,
            extension_services: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    /// May be empty.
    pub value: String,
    pub effect: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hostname {
    /// From the platform or DHCP, else a name derived from the node's identity.
    Automatic,
    Static(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Install {
    pub disk: InstallDisk,
    pub image: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstallDisk {
    Path(String),
    Serial(String),
}

/// A network card, found by its MAC whatever the kernel calls it.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// The name it gets in the documents form, such as `net0`.
    pub alias: String,
    pub mac: String,
    pub addresses: Vec<IpNet>,
    pub gateways: Vec<IpAddr>,
    pub routes: Vec<Route>,
    pub dhcp: bool,
    pub mtu: Option<u32>,
    /// The shared address of the control planes. Not written for workers.
    pub vip: Option<IpAddr>,
}

impl Link {
    pub fn new(alias: impl Into<String>, mac: &str) -> Self {
        Self {
            alias: alias.into(),
            mac: mac.to_ascii_lowercase(),
            addresses: Vec::new(),
            gateways: Vec::new(),
            routes: Vec::new(),
            dhcp: false,
            mtu: None,
            vip: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    pub destination: IpNet,
    pub gateway: IpAddr,
}

/// A volume mounted at `/var/mnt/<name>`, on the disk with this serial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserVolume {
    pub name: String,
    pub serial: String,
    pub min_size: String,
}

/// Settings of a system extension's service.
#[derive(Clone, PartialEq, Eq)]
pub struct ExtensionService {
    pub name: String,
    /// `KEY=value`
    pub environment: Vec<String>,
    pub files: Vec<ExtensionFile>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct ExtensionFile {
    pub mount_path: String,
    pub content: String,
}

/// Environment and files carry keys of the services.
impl fmt::Debug for ExtensionService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtensionService")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ExtensionFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtensionFile")
            .field("mount_path", &self.mount_path)
            .finish_non_exhaustive()
    }
}
