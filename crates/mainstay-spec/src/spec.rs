//! `Spec`: what cluster.yaml means. Every default is resolved here, except what only PVE or the running cluster can tell.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::Ipv4Net;
use semver::Version;
use url::Url;

use crate::addons::{AddonsSpec, TailscaleSpec};
use crate::provisioning::{ProvisioningSpec, VmOptions};
use crate::source::Span;
use crate::value::{Gib, Mac, Mib};

/// One cluster, as meant.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    pub name: ClusterName,
    pub datacenter: Datacenter,
    pub network: Network,
    pub endpoint: ApiEndpoint,
    pub distro: DistroSpec,
    pub kubernetes: VersionWish,
    pub cni: Cni,
    pub provision: Provision,
    pub provisioning: ProvisioningSpec,
    pub tailscale: Option<TailscaleSpec>,
    pub addons: AddonsSpec,
    /// Container image of the test pods of `verify`.
    pub verify_image: Option<String>,
    /// `down` refuses while this is set.
    pub protect: bool,
    /// Control planes carry no taint and take pods. True by default exactly when there is no worker.
    pub control_plane_workloads: bool,
    /// In the order of the file.
    pub pools: Vec<Pool>,
    /// Control planes first, then by pool in the order of the file, then by ordinal. No two share a name, VMID, MAC or address.
    pub machines: Vec<Machine>,
}

impl Spec {
    /// Control planes, the one that bootstraps first.
    pub fn control_planes(&self) -> impl Iterator<Item = &Machine> {
        self.machines.iter().filter(|machine| machine.role == Role::ControlPlane)
    }

    pub fn workers(&self) -> impl Iterator<Item = &Machine> {
        self.machines.iter().filter(|machine| machine.role == Role::Worker)
    }

    pub fn machine(&self, name: &str) -> Option<&Machine> {
        self.machines.iter().find(|machine| machine.name.as_str() == name)
    }

    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name.as_str() == name)
    }
}

/// A checked name. Only `load` makes one, so that it need not be checked again.
macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(pub(crate) String);

        impl $type {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// A DNS label of at most 32 characters.
    ClusterName
);
name!(
    /// A DNS label, which is what both PVE and Kubernetes accept.
    MachineName
);
name!(PoolName);
name!(
    /// A PVE server, by the name PVE knows it.
    HostName
);
name!(
    /// A PVE storage, e.g. `local-lvm`.
    StorageId
);
name!(
    /// A Linux bridge or SDN vnet on the hosts.
    Bridge
);
name!(
    /// A PVE resource pool, up to three levels: `team/k8s`.
    ResourcePool
);
name!(
    /// A PVE tag, lower case.
    Tag
);
name!(
    /// An official Talos system extension with its owner: `siderolabs/qemu-guest-agent`.
    Extension
);

/// What one PVE API endpoint governs.
#[derive(Debug, Clone, PartialEq)]
pub struct Datacenter {
    /// `https://host:port/`, without `/api2/json`. The port is always there when it is not 443.
    pub endpoint: Url,
    pub trust: PveTrust,
    /// File with the API token, relative to cluster.yaml. It is not read here.
    pub token_file: Option<String>,
    pub jump: Option<Jump>,
    pub storage: StorageNames,
    pub pool: Option<ResourcePool>,
}

/// How the PVE certificate is believed. Never switched off.
#[derive(Debug, Clone, PartialEq)]
pub enum PveTrust {
    /// The system's roots.
    Roots,
    /// A CA of one's own, in PEM.
    Ca(FileRef),
    /// SHA-256 of the certificate.
    Fingerprint([u8; 32]),
}

/// The SSH host through which everything is dialled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jump {
    pub user: String,
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.user, self.host)?;
        if self.port == 22 {
            Ok(())
        } else {
            write!(f, ":{}", self.port)
        }
    }
}

/// Where things go on PVE. What is not said is for the plan to find: images = one that allows `import`, disks = the largest that
/// allows `images`, seeds and templates = where the disks go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StorageNames {
    pub images: Option<StorageId>,
    pub disks: Option<StorageId>,
    pub seeds: Option<StorageId>,
    pub templates: Option<StorageId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    pub cidr: Ipv4Net,
    pub gateway: Ipv4Addr,
    pub bridge: Bridge,
    pub vlan: Option<u16>,
    pub dns: Vec<IpAddr>,
    /// Search domains.
    pub search: Vec<String>,
    pub vip: Option<Ipv4Addr>,
    pub pods: Ipv4Net,
    pub services: Ipv4Net,
}

/// Where the Kubernetes API is found by everyone: host and port of `https://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiEndpoint {
    /// A name or an IPv4 address.
    pub host: String,
    pub port: u16,
    pub by: EndpointBy,
}

impl ApiEndpoint {
    pub fn url(&self) -> String {
        format!("https://{}:{}", self.host, self.port)
    }
}

/// What stands behind the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointBy {
    /// The VIP, held by one control plane at a time.
    Vip,
    /// `endpoint` of the file: a load balancer or name that mainstay does not manage.
    Given,
    /// The address of the only control plane.
    Machine,
}

/// A Kubernetes distribution. All machines of a cluster run the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distro {
    Talos,
    Rke2,
    K3s,
}

impl Distro {
    /// The first one is the one of a file that names none.
    pub const ALL: [Self; 3] = [Self::Talos, Self::Rke2, Self::K3s];

    /// The section of a new cluster file. A file without one means the first distribution.
    pub fn new_section(self) -> Option<&'static str> {
        match self {
            Self::Talos => None,
            Self::Rke2 => Some("rke2: { image: ubuntu-24.04 }"),
            Self::K3s => Some("k3s: { image: debian-13 }"),
        }
    }

    /// The key of its section in cluster.yaml.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Talos => "talos",
            Self::Rke2 => "rke2",
            Self::K3s => "k3s",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|distro| distro.as_str() == text)
    }

    /// Its name in messages.
    pub fn title(self) -> &'static str {
        match self {
            Self::Talos => "Talos",
            Self::Rke2 => "RKE2",
            Self::K3s => "k3s",
        }
    }
}

impl fmt::Display for Distro {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The distribution with the settings of its section.
#[derive(Debug, Clone, PartialEq)]
pub enum DistroSpec {
    Talos(TalosSpec),
    /// RKE2 or k3s on a cloud image.
    Rancher(RancherSpec),
}

impl DistroSpec {
    pub fn distro(&self) -> Distro {
        match self {
            Self::Talos(_) => Distro::Talos,
            Self::Rancher(rancher) => match rancher.distro {
                rancher_config::Distro::Rke2 => Distro::Rke2,
                rancher_config::Distro::K3s => Distro::K3s,
            },
        }
    }

    pub fn talos(&self) -> Option<&TalosSpec> {
        if let Self::Talos(talos) = self { Some(talos) } else { None }
    }

    /// Whether QEMU's guest agent runs in the machines. On cloud images mainstay installs it.
    pub fn has_guest_agent(&self) -> bool {
        match self {
            Self::Talos(talos) => talos
                .extensions
                .iter()
                .any(|extension| extension.as_str().ends_with("/qemu-guest-agent")),
            Self::Rancher(_) => true,
        }
    }

    pub fn rancher(&self) -> Option<&RancherSpec> {
        if let Self::Rancher(rancher) = self {
            Some(rancher)
        } else {
            None
        }
    }
}

/// `rke2` or `k3s` of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct RancherSpec {
    pub distro: rancher_config::Distro,
    /// `None`: what the cluster runs, else the newest known. A channel is resolved once and pinned in `cluster.lock.yaml`.
    pub version: Option<rancher_config::VersionRequest>,
    pub image: ImageSource,
    /// `None`: the releases on GitHub.
    pub mirror: Option<Url>,
    pub artifact: ArtifactDelivery,
    /// Further keys of config.yaml, checked by [`rancher_config::config::check_extra`].
    pub config: serde_json::Map<String, serde_json::Value>,
    /// Lines of authorized_keys.
    pub ssh_keys: Vec<String>,
}

/// Where a cloud image comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum ImageSource {
    /// The newest dated release of the publisher, pinned in `cluster.lock.yaml`.
    Known(CloudImage),
    File {
        url: Url,
        checksum: rancher_config::Checksum,
    },
}

/// A cloud image that is known to work with PVE's cloud-init drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloudImage {
    Ubuntu2204,
    Ubuntu2404,
    Debian12,
    Debian13,
}

impl CloudImage {
    /// Its name in cluster.yaml and in the table of [`rancher_config::os_image`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ubuntu2204 => "ubuntu-22.04",
            Self::Ubuntu2404 => "ubuntu-24.04",
            Self::Debian12 => "debian-12",
            Self::Debian13 => "debian-13",
        }
    }
}

/// How the release gets into a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArtifactDelivery {
    /// The machine downloads it.
    Fetch,
    /// mainstay copies it over SSH.
    Push,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TalosSpec {
    pub version: VersionWish,
    pub extensions: BTreeSet<Extension>,
    /// Patches of the whole cluster. They are in every machine's list too.
    pub patches: Vec<FileRef>,
    pub factory: Url,
}

/// A version as wished: the plan picks one, see [`VersionWish::pick`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionWish {
    /// Not said: what the cluster runs, else the newest known.
    Any,
    /// `1.13`: what the cluster runs if it is of this minor, else its newest known patch.
    Minor(u64, u64),
    /// `1.13.9`.
    Exact(Version),
}

impl VersionWish {
    pub fn admits(&self, version: &Version) -> bool {
        match self {
            Self::Any => true,
            Self::Minor(major, minor) => (version.major, version.minor) == (*major, *minor),
            Self::Exact(exact) => version == exact,
        }
    }

    /// The version to run: the running one as long as the wish admits it, so that a new binary never upgrades by itself.
    pub fn pick<'a>(&'a self, running: Option<&'a Version>, known: impl IntoIterator<Item = &'a Version>) -> Option<&'a Version> {
        if let Self::Exact(exact) = self {
            return Some(exact);
        }
        running
            .filter(|version| self.admits(version))
            .or_else(|| known.into_iter().filter(|version| self.admits(version)).max())
    }
}

impl fmt::Display for VersionWish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Minor(major, minor) => write!(f, "{major}.{minor}"),
            Self::Exact(version) => write!(f, "{version}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cni {
    /// Of Talos and k3s.
    Flannel,
    /// Of RKE2.
    Canal,
    /// On Talos and k3s an add-on; RKE2 packages it.
    Cilium,
    /// The user installs one: nodes are expected NotReady.
    None,
}

impl Cni {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Flannel => "flannel",
            Self::Canal => "canal",
            Self::Cilium => "cilium",
            Self::None => "none",
        }
    }

    /// What a distribution runs unless the file says otherwise.
    pub fn default_of(distro: Distro) -> Self {
        match distro {
            Distro::Talos | Distro::K3s => Self::Flannel,
            Distro::Rke2 => Self::Canal,
        }
    }
}

/// How a machine gets its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provision {
    /// `import-from` the downloaded image.
    Import,
    /// Cloned from a template.
    Clone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    ControlPlane,
    Worker,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Worker => "worker",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Machines of one role that were asked for together.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    pub name: PoolName,
    pub role: Role,
    pub count: u32,
    /// How many of its machines may be down at once while they are changed.
    pub max_unavailable: u32,
    /// How its machines are called.
    pub names: NamePattern,
    /// The key of the pool in the file.
    pub at: Span,
}

/// `{cluster}-{pool}-{n}`: `n` counts from 1, `n0` from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern(pub(crate) String);

impl NamePattern {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The ordinal of a machine that is called so, if the pattern gives such a name.
    pub(crate) fn ordinal(&self, cluster: &str, pool: &str, name: &str) -> Option<u32> {
        let pattern = self.0.replace("{cluster}", cluster).replace("{pool}", pool);
        let (prefix, suffix, first) = match pattern.split_once("{n}") {
            Some((prefix, suffix)) => (prefix, suffix, 0),
            None => pattern.split_once("{n0}").map(|(prefix, suffix)| (prefix, suffix, 1))?,
        };
        let number: u32 = name.strip_prefix(prefix)?.strip_suffix(suffix)?.parse().ok()?;
        number
            .checked_add(first)
            .filter(|ordinal| self.name(cluster, pool, *ordinal) == name)
    }

    pub fn name(&self, cluster: &str, pool: &str, ordinal: u32) -> String {
        let pattern = self.0.replace("{cluster}", cluster).replace("{pool}", pool);
        pattern
            .replace("{n}", &ordinal.to_string())
            .replace("{n0}", &ordinal.saturating_sub(1).to_string())
    }
}

/// A VM that is wanted, with everything that identifies it.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    pub name: MachineName,
    pub role: Role,
    pub pool: PoolName,
    /// 1 is the start of the pool's ranges.
    pub ordinal: u32,
    pub vmid: u32,
    pub mac: Mac,
    pub address: Ipv4Addr,
    pub shape: Shape,
    pub options: VmOptions,
    pub hosts: Hosts,
    /// The user's own tags: those of the datacenter and of the pool.
    pub tags: BTreeSet<Tag>,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// In the order to apply: cluster, pool, machine.
    pub patches: Vec<FileRef>,
    /// Its entry under `machines`, else its pool.
    pub at: Span,
}

/// The virtual hardware that the file decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Cores of one socket.
    pub cpu: u32,
    /// PVE's CPU type, e.g. `x86-64-v2-AES` or `host`.
    pub cpu_type: String,
    pub memory: Mib,
    pub disk: Disk,
    pub disks: Vec<ExtraDisk>,
    pub scsi: ScsiController,
    pub firmware: Firmware,
    /// PVE starts the VM when its host boots.
    pub onboot: bool,
    /// Place in PVE's own start and shutdown order.
    pub startup_order: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    pub size: Gib,
    /// `None`: where the datacenter's disks go.
    pub storage: Option<StorageId>,
    pub options: DiskOptions,
}

/// A disk besides the system disk, found in the guest by its name, which is its serial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraDisk {
    pub name: String,
    pub disk: Disk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskOptions {
    pub cache: DiskCache,
    /// Freed blocks are given back to the storage.
    pub discard: bool,
    /// The guest sees a non-rotating disk.
    pub ssd: bool,
    /// A thread of its own; takes effect with `virtio-scsi-single` only.
    pub iothread: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskCache {
    None,
    Writethrough,
    Writeback,
    Directsync,
}

impl DiskCache {
    /// As PVE writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Writethrough => "writethrough",
            Self::Writeback => "writeback",
            Self::Directsync => "directsync",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScsiController {
    VirtioScsiPci,
    VirtioScsiSingle,
}

impl ScsiController {
    /// As PVE writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::VirtioScsiPci => "virtio-scsi-pci",
            Self::VirtioScsiSingle => "virtio-scsi-single",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firmware {
    Ovmf,
    Seabios,
}

impl Firmware {
    /// As PVE writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ovmf => "ovmf",
            Self::Seabios => "seabios",
        }
    }
}

/// Which hosts may carry a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hosts {
    /// Any that has the storages and the bridge.
    Any,
    OneOf(Vec<HostName>),
    Pinned(HostName),
}

impl Hosts {
    pub fn allow(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::OneOf(hosts) => hosts.iter().any(|allowed| allowed.as_str() == host),
            Self::Pinned(pinned) => pinned.as_str() == host,
        }
    }
}

/// `key=value:Effect`, as kubectl writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: TaintEffect,
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equals = if self.value.is_empty() { "" } else { "=" };
        write!(f, "{}{equals}{}:{}", self.key, self.value, self.effect.as_str())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

impl TaintEffect {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

/// A file that cluster.yaml names, already read. `Debug` shows the path only: patches may hold secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct FileRef {
    /// As written in the file, relative to it.
    pub path: String,
    pub text: Arc<str>,
}

impl fmt::Debug for FileRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileRef({:?}, {} bytes)", self.path, self.text.len())
    }
}
