//! The catalogue: one [`CatalogueEntry`] for each add-on that cluster.yaml names.
//!
//! Key names of our default values are checked against the chart's own `values.yaml` at every version listed here; the lists of key
//! names are test data. A version that is not listed still works, but its keys have not been checked.

mod cilium;
mod cloud;
mod delivery;
mod network;
mod platform;
mod storage;

use mainstay_spec::{Addon, Distro};
use serde_json::Value;

use super::facts::AddonFacts;
use super::values::ValueWarning;

pub use cilium::{CiliumHop, HopRefusal, cilium_hop, gateway_api_for, restrict_rke2_version};
pub use cloud::has_external_cloud_provider;
pub use delivery::{
    ConfigFault, HELM_IMAGE, HelmControllerChart, JobEndpoint, forwards_dns_to_host, job_endpoint, packaged_chart_config,
};
pub use network::KUBE_VIP_CLOUD_PROVIDER;
pub use platform::{KUBELET_CERT_APPROVER, argocd_root, flux_instance};

/// Everything that is known about one add-on before a cluster exists.
#[derive(Debug)]
pub struct CatalogueEntry {
    /// The key in `addons:`.
    pub name: &'static str,
    /// Name of the Helm release, or of the set of manifests.
    pub release: &'static str,
    pub namespace: &'static str,
    pub pod_security: Option<PodSecurity>,
    pub layer: Layer,
    pub source: EntrySource,
    /// Known versions, oldest first. The last one is the default.
    pub versions: &'static [&'static str],
    pub crds: CrdDelivery,
    /// A Secret that the chart expects to exist.
    pub secret: Option<EntrySecret>,
    /// Pods that Helm itself waits for, as rendered with our default values.
    pub hooks: &'static [ChartHook],
    /// What must be rolled out.
    pub workloads: &'static [Workload],
    /// What must hold beside the rollout.
    pub checks: &'static [ReadyCheck],
    pub late: LateInstall,
    pub removal: RemovalPolicy,
    /// What a machine config must contain, for distributions that are configured as a whole.
    pub machine: MachineNeeds,
    /// How each distribution brings it.
    pub delivery: fn(Distro) -> Delivery,
    /// CRDs that must be Established before this add-on starts, because it looks for them only once.
    pub probes_crds: fn(&AddonFacts) -> Vec<&'static str>,
    pub values: fn(&AddonFacts) -> Value,
    /// Warnings about merged values.
    pub judge: fn(&AddonFacts, &Value) -> Vec<ValueWarning>,
}

/// Order of installation. A layer begins when what it needs holds (nodes Ready, CRDs Established), never because a release of the
/// layer before says `deployed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// CRDs that other components look for once.
    Crds,
    Network,
    Cloud,
    Storage,
    /// Address pools: their CRDs are registered by a running operator.
    Addresses,
    Ingress,
    GitOps,
}

/// Where an add-on comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntrySource {
    /// `oci://HOST/PATH/CHART`.
    Oci(&'static str),
    Repository {
        url: &'static str,
        chart: &'static str,
    },
    /// One YAML file; `{version}` is replaced.
    Manifest(&'static str),
}

/// Value of the label `pod-security.kubernetes.io/enforce`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodSecurity {
    Privileged,
    Baseline,
}

impl PodSecurity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
        }
    }
}

/// Where the CRDs of a chart are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrdDelivery {
    /// In `crds/` of the archive: Helm installs them once and never upgrades them, so mainstay applies them and passes `--skip-crds`.
    Archive,
    /// Rendered by templates: Helm upgrades them.
    Template,
    /// A running operator registers these.
    Operator(&'static [&'static str]),
    /// The manifests are CRDs and nothing else.
    Manifest,
    None,
}

/// A Secret that mainstay applies before the release, so that its content is not part of the release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntrySecret {
    pub name: &'static str,
    /// Key in the Secret, and the name below `addons.<release>` in the secrets file.
    pub keys: &'static [(&'static str, &'static str)],
}

/// A Job that Helm waits for, even without `--wait`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChartHook {
    /// Name or name prefix of the Job.
    pub job: &'static str,
    pub on: HookMoment,
    /// Path in the values where the tolerations of its pod are set.
    pub tolerations: &'static str,
    /// The first and the last minor that render it; `None`: every listed version.
    pub minors: Option<(&'static str, &'static str)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookMoment {
    InstallAndUpgrade,
    Upgrade,
    Delete,
}

/// A workload that the chart renders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    pub kind: WorkloadKind,
    pub name: &'static str,
    pub expect: Expect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadKind {
    Deployment,
    DaemonSet,
    StatefulSet,
}

impl Workload {
    /// The value that takes it out of the chart.
    pub fn switched_off_by(&self) -> Option<&'static str> {
        (self.name == "cilium-envoy").then_some("envoy.enabled")
    }
}

impl WorkloadKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::DaemonSet => "DaemonSet",
            Self::StatefulSet => "StatefulSet",
        }
    }
}

/// How much of a workload must be available. A DaemonSet that wants zero pods is complete to Kubernetes, so numbers are expected here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    AtLeastOne,
    Replicas,
    EveryNode,
    EveryControlPlane,
    /// Nodes without the control-plane taint.
    EveryWorker,
}

/// What must hold beside the rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadyCheck {
    NodesReady,
    /// No Node carries this taint.
    NoTaint(&'static str),
    /// Every Node has a `providerID` with this prefix.
    ProviderId(&'static str),
    /// CRD is Established.
    Crd(&'static str),
    /// `APIService` has Available=True.
    ApiService(&'static str),
    /// Every CSINode lists the driver.
    CsiDriver(&'static str),
    /// The driver published capacity. None at all means missing PVE privileges.
    StorageCapacity(&'static str),
    /// An object has a condition.
    Condition {
        kind: &'static str,
        namespace: Option<&'static str>,
        name: &'static str,
        condition: &'static str,
    },
    /// A server-side dry run of creating this kind succeeds: the webhook answers.
    DryRun(&'static str),
    /// A Service of type LoadBalancer has an address.
    ServiceAddress(&'static str),
}

/// May it be added to a running cluster?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LateInstall {
    Allowed,
    /// Refused by name, with the way to do it by hand.
    Refused {
        why: &'static str,
        manual: &'static str,
    },
}

/// What must be checked before it is uninstalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalPolicy {
    Free,
    /// Refused: the cluster cannot work without it.
    Never(&'static str),
    /// Refused while objects are in use.
    WhileUnused(&'static [InUse]),
}

/// Something that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InUse {
    /// PersistentVolumes of a CSI driver.
    Volumes(&'static str),
    /// Services of type LoadBalancer.
    LoadBalancers,
    /// Objects of the API group.
    CustomResources(&'static str),
    /// Nodes that were initialised by this cloud provider.
    Nodes,
}

/// What a machine config must contain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MachineNeeds {
    /// System extensions, with their publisher.
    pub extensions: &'static [&'static str],
    pub kernel_modules: &'static [&'static str],
    pub kubelet_args: &'static [(&'static str, &'static str)],
    /// A user volume of this name, on the extra disk of the same name.
    pub user_volume: Option<&'static str>,
    /// Bind mount of the kubelet, used where there is no user volume.
    pub kubelet_mount: Option<&'static str>,
    /// The machine API is opened for this namespace, with this role.
    pub machine_api: Option<(&'static str, &'static str)>,
    /// Packages of a cloud image.
    pub packages: &'static [&'static str],
    pub without_cni: bool,
    pub without_kube_proxy: bool,
}

impl MachineNeeds {
    pub(super) const NONE: Self = Self {
        extensions: &[],
        kernel_modules: &[],
        kubelet_args: &[],
        user_volume: None,
        kubelet_mount: None,
        machine_api: None,
        packages: &[],
        without_cni: false,
        without_kube_proxy: false,
    };
}

/// How a distribution brings an add-on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// A Job of ours runs Helm.
    Job,
    /// The distribution's own Helm controller installs our chart. `replaces` names a packaged chart that must be disabled first.
    HelmChart {
        replaces: Option<&'static str>,
    },
    /// The distribution packages it: only values are given. The version is the distribution's.
    Packaged {
        chart: &'static str,
        since_start: bool,
    },
    /// The distribution contains it and needs nothing.
    BuiltIn {
        by: &'static str,
    },
    /// Server-side apply of plain objects.
    Manifests,
    Refused(&'static str),
}

static ENTRIES: [&CatalogueEntry; 14] = [
    &network::GATEWAY_API,
    &network::PROMETHEUS_CRDS,
    &cilium::CILIUM,
    &cloud::PROXMOX_CCM,
    &cloud::TALOS_CCM,
    &network::KUBE_VIP,
    &storage::PROXMOX_CSI,
    &storage::LONGHORN,
    &platform::METRICS_SERVER,
    &platform::CERT_MANAGER,
    &platform::TRAEFIK,
    &platform::TAILSCALE_OPERATOR,
    &platform::FLUX,
    &platform::ARGOCD,
];

/// Every entry, in the order of installation.
pub fn entries() -> impl Iterator<Item = &'static CatalogueEntry> {
    ENTRIES.iter().copied()
}

/// The entry of a key in `addons:`.
pub fn by_name(name: &str) -> Option<&'static CatalogueEntry> {
    entries().find(|entry| entry.name == name)
}

/// The entry of an add-on that is one release.
pub fn entry(addon: Addon) -> &'static CatalogueEntry {
    match addon {
        Addon::Cilium => &cilium::CILIUM,
        Addon::ProxmoxCcm => &cloud::PROXMOX_CCM,
        Addon::ProxmoxCsi => &storage::PROXMOX_CSI,
        Addon::TalosCcm => &cloud::TALOS_CCM,
        Addon::KubeVip => &network::KUBE_VIP,
        Addon::MetricsServer => &platform::METRICS_SERVER,
        Addon::PrometheusCrds => &network::PROMETHEUS_CRDS,
        Addon::GatewayApi => &network::GATEWAY_API,
        Addon::Longhorn => &storage::LONGHORN,
        Addon::CertManager => &platform::CERT_MANAGER,
        Addon::Traefik => &platform::TRAEFIK,
        Addon::TailscaleOperator => &platform::TAILSCALE_OPERATOR,
    }
}

impl CatalogueEntry {
    /// The newest known version.
    pub fn default_version(&self) -> &'static str {
        self.versions.last().copied().unwrap_or_default()
    }

    /// Address of the manifest at a version; `None` for charts.
    pub fn manifest_url(&self, version: &str) -> Option<String> {
        match self.source {
            EntrySource::Manifest(url) => Some(url.replace("{version}", version)),
            EntrySource::Oci(_) | EntrySource::Repository { .. } => None,
        }
    }

    /// Pods of this add-on must run before the network does: its Job runs on the host network and tolerates every taint.
    pub fn is_before_network(&self) -> bool {
        self.layer <= Layer::Cloud
    }

    /// Hooks that Helm waits for at this version.
    pub fn hooks_at(&self, version: &str) -> impl Iterator<Item = &'static ChartHook> {
        let at = minor_number(version);
        let within = move |(first, last): (&str, &str)| minor_number(first) <= at && at <= minor_number(last);
        self.hooks.iter().filter(move |hook| hook.minors.is_none_or(within))
    }
}

/// `1.18.3`, `v1.18` -> (1, 18), so that 1.9 sorts before 1.10.
fn minor_number(version: &str) -> (u64, u64) {
    let mut numbers = version
        .trim_start_matches('v')
        .split('.')
        .map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// For entries without values.
fn no_values(_: &AddonFacts) -> Value {
    Value::Object(serde_json::Map::new())
}

fn no_crds(_: &AddonFacts) -> Vec<&'static str> {
    Vec::new()
}

fn no_warnings(_: &AddonFacts, _: &Value) -> Vec<ValueWarning> {
    Vec::new()
}

/// A Job on distributions without a Helm controller, a `HelmChart` on the others.
fn job_or_helm_chart(distro: Distro) -> Delivery {
    match distro {
        Distro::Talos => Delivery::Job,
        Distro::Rke2 | Distro::K3s => Delivery::HelmChart { replaces: None },
    }
}

fn manifests(_: Distro) -> Delivery {
    Delivery::Manifests
}
