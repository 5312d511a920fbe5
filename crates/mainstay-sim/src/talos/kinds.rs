//! The kinds of resources that nodes know.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
use talos_proto::cosi::resource::meta;

use super::cosi::Spec;

/// A kind of resource.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub namespace: &'static str,
    pub name: &'static str,
    pub owner: &'static str,
    display: &'static str,
    aliases: &'static [&'static str],
    columns: &'static [(&'static str, &'static str)],
    /// Only os:admin may read it.
    pub sensitive: bool,
}

impl Kind {
    const fn new(namespace: &'static str, name: &'static str, owner: &'static str, display: &'static str) -> Self {
        Self {
            namespace,
            name,
            owner,
            display,
            aliases: &[],
            columns: &[],
            sensitive: false,
        }
    }

    const fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    const fn columns(mut self, columns: &'static [(&'static str, &'static str)]) -> Self {
        self.columns = columns;
        self
    }

    const fn sensitive(mut self) -> Self {
        self.sensitive = true;
        self
    }

    pub fn is_config(&self) -> bool {
        std::ptr::eq(self, &MACHINE_CONFIG)
    }

    pub fn labels(&self) -> BTreeMap<String, String> {
        let volume = std::ptr::eq(self, &VOLUME);
        let label = volume.then(|| ("talos.dev/system-volume".to_owned(), String::new()));
        label.into_iter().collect()
    }

    /// Mounted volumes are held by the controller that mounts them.
    pub fn finalizers(&self, id: &str) -> Vec<String> {
        let held = std::ptr::eq(self, &VOLUME) && id != "META";
        if held {
            vec!["block.MountController".to_owned()]
        } else {
            Vec::new()
        }
    }
}

pub(crate) static MACHINE_STATUS: Kind = Kind::new(
    "runtime",
    "MachineStatuses.runtime.talos.dev",
    "runtime.MachineStatusController",
    "MachineStatus",
)
.columns(&[("Stage", "{.stage}"), ("Ready", "{.status.ready}")]);
pub(crate) static SERVICE: Kind = Kind::new(
    "runtime",
    "Services.v1alpha1.talos.dev",
    "v1alpha1.ServiceController",
    "Service",
)
.aliases(&["svc"])
.columns(&[
    ("Running", "{.running}"),
    ("Healthy", "{.healthy}"),
    ("Health Unknown", "{.unknown}"),
]);
pub(crate) static MACHINE_TYPE: Kind = Kind::new(
    "config",
    "MachineTypes.config.talos.dev",
    "config.MachineTypeController",
    "MachineType",
);
pub(crate) static MACHINE_CONFIG: Kind = Kind::new("config", "MachineConfigs.config.talos.dev", "", "MachineConfig")
    .aliases(&["mc"])
    .sensitive();
pub(crate) static NODENAME: Kind = Kind::new("k8s", "Nodenames.kubernetes.talos.dev", "k8s.NodenameController", "Nodename")
    .columns(&[("Nodename", "{.nodename}")]);
pub(crate) static NODE_STATUS: Kind = Kind::new(
    "k8s",
    "NodeStatuses.kubernetes.talos.dev",
    "k8s.NodeStatusController",
    "NodeStatus",
)
.columns(&[("Ready", "{.nodeReady}"), ("Unschedulable", "{.unschedulable}")]);
pub(crate) static STATIC_POD: Kind = Kind::new(
    "k8s",
    "StaticPods.kubernetes.talos.dev",
    "k8s.ControlPlaneStaticPodController",
    "StaticPod",
);
pub(crate) static STATIC_POD_STATUS: Kind = Kind::new(
    "k8s",
    "StaticPodStatuses.kubernetes.talos.dev",
    "k8s.KubeletStaticPodController",
    "StaticPodStatus",
)
.columns(&[("Ready", "{.conditions[?(@.type==\"Ready\")].status}")]);
pub(crate) static KUBELET_SPEC: Kind = Kind::new(
    "k8s",
    "KubeletSpecs.kubernetes.talos.dev",
    "k8s.KubeletSpecController",
    "KubeletSpec",
)
.sensitive();
pub(crate) static CONTROLLER_MANAGER_CONFIG: Kind = Kind::new(
    "controlplane",
    "ControllerManagerConfigs.kubernetes.talos.dev",
    "k8s.ControlPlaneControllerManagerController",
    "ControllerManagerConfig",
);
pub(crate) static SCHEDULER_CONFIG: Kind = Kind::new(
    "controlplane",
    "SchedulerConfigs.kubernetes.talos.dev",
    "k8s.ControlPlaneSchedulerController",
    "SchedulerConfig",
);
pub(crate) static API_SERVER_CONFIG: Kind = Kind::new(
    "controlplane",
    "APIServerConfigs.kubernetes.talos.dev",
    "k8s.ControlPlaneAPIServerController",
    "APIServerConfig",
)
.sensitive();
pub(crate) static MANIFEST_STATUS: Kind = Kind::new(
    "controlplane",
    "ManifestStatuses.kubernetes.talos.dev",
    "k8s.ManifestApplyController",
    "ManifestStatus",
);
pub(crate) static BOOTSTRAP_MANIFESTS: Kind = Kind::new(
    "controlplane",
    "BootstrapManifestsConfigs.kubernetes.talos.dev",
    "k8s.ControlPlaneBootstrapManifestsController",
    "BootstrapManifestsConfig",
);
pub(crate) static ETCD_MEMBER: Kind = Kind::new("etcd", "EtcdMembers.etcd.talos.dev", "etcd.MemberController", "EtcdMember")
    .columns(&[("Member ID", "{.memberID}")]);
pub(crate) static ETCD_SPEC: Kind = Kind::new("etcd", "EtcdSpecs.etcd.talos.dev", "etcd.SpecController", "EtcdSpec");
pub(crate) static MEMBER: Kind =
    Kind::new("cluster", "Members.cluster.talos.dev", "cluster.MemberController", "Member").columns(&[
        ("Hostname", "{.hostname}"),
        ("Machine Type", "{.machineType}"),
        ("OS", "{.operatingSystem}"),
        ("Addresses", "{.addresses}"),
    ]);
pub(crate) static IDENTITY: Kind = Kind::new(
    "cluster",
    "Identities.cluster.talos.dev",
    "cluster.NodeIdentityController",
    "Identity",
)
.columns(&[("ID", "{.nodeId}")]);
pub(crate) static INFO: Kind = Kind::new("cluster", "Infos.cluster.talos.dev", "cluster.InfoController", "Info")
    .columns(&[("Cluster ID", "{.clusterId}"), ("Cluster Name", "{.clusterName}")]);
pub(crate) static HOSTNAME: Kind = Kind::new(
    "network",
    "HostnameStatuses.net.talos.dev",
    "network.HostnameSpecController",
    "HostnameStatus",
)
.aliases(&["hostname"])
.columns(&[("Hostname", "{.hostname}"), ("Domainname", "{.domainname}")]);
pub(crate) static NODE_ADDRESS: Kind = Kind::new(
    "network",
    "NodeAddresses.net.talos.dev",
    "network.NodeAddressController",
    "NodeAddress",
)
.columns(&[("Addresses", "{.addresses}"), ("SortAlgorithm", "{.sortAlgorithm}")]);
pub(crate) static ADDRESS: Kind = Kind::new(
    "network",
    "AddressStatuses.net.talos.dev",
    "network.AddressStatusController",
    "AddressStatus",
)
.aliases(&["address", "addresses"])
.columns(&[("Address", "{.address}"), ("Link", "{.linkName}")]);
pub(crate) static LINK: Kind = Kind::new(
    "network",
    "LinkStatuses.net.talos.dev",
    "network.LinkStatusController",
    "LinkStatus",
)
.aliases(&["link", "links"])
.columns(&[
    ("Alias", "{.alias}"),
    ("Type", "{.type}"),
    ("Kind", "{.kind}"),
    ("Hw Addr", "{.hardwareAddr}"),
    ("Oper State", "{.operationalState}"),
    ("Link State", "{.linkState}"),
]);
pub(crate) static NETWORK_STATUS: Kind = Kind::new(
    "network",
    "NetworkStatuses.net.talos.dev",
    "network.StatusController",
    "NetworkStatus",
)
.aliases(&["netstatus"]);
pub(crate) static RESOLVERS: Kind = Kind::new(
    "network",
    "ResolverStatuses.net.talos.dev",
    "network.ResolverSpecController",
    "ResolverStatus",
)
.aliases(&["resolvers"])
.columns(&[("Resolvers", "{.dnsServers}")]);
pub(crate) static TIME_SERVERS: Kind = Kind::new(
    "network",
    "TimeServerStatuses.net.talos.dev",
    "network.TimeServerSpecController",
    "TimeServerStatus",
)
.aliases(&["timeserver", "timeservers"])
.columns(&[("Timeservers", "{.timeServers}")]);
pub(crate) static TIME_STATUS: Kind = Kind::new(
    "runtime",
    "TimeStatuses.v1alpha1.talos.dev",
    "time.SyncController",
    "TimeStatus",
)
.columns(&[("Synced", "{.synced}")]);
pub(crate) static DISK: Kind = Kind::new("runtime", "Disks.block.talos.dev", "block.DisksController", "Disk").columns(&[
    ("Size", "{.pretty_size}"),
    ("Read Only", "{.readonly}"),
    ("Transport", "{.transport}"),
    ("Rotational", "{.rotational}"),
    ("WWID", "{.wwid}"),
    ("Model", "{.model}"),
    ("Serial", "{.serial}"),
]);
pub(crate) static SYSTEM_DISK: Kind = Kind::new(
    "runtime",
    "SystemDisks.block.talos.dev",
    "block.SystemDiskController",
    "SystemDisk",
)
.columns(&[("Disk", "{.diskID}")]);
pub(crate) static VOLUME: Kind = Kind::new(
    "runtime",
    "VolumeStatuses.block.talos.dev",
    "block.VolumeManagerController",
    "VolumeStatus",
)
.columns(&[
    ("Type", "{.type}"),
    ("Phase", "{.phase}"),
    ("Location", "{.location}"),
    ("Size", "{.prettySize}"),
]);
pub(crate) static SECURITY: Kind = Kind::new(
    "runtime",
    "SecurityStates.talos.dev",
    "runtime.SecurityStateController",
    "SecurityState",
);
pub(crate) static PLATFORM: Kind = Kind::new(
    "runtime",
    "PlatformMetadatas.talos.dev",
    "network.PlatformConfigApplyController",
    "PlatformMetadata",
);
pub(crate) static SYSTEM_INFORMATION: Kind = Kind::new(
    "hardware",
    "SystemInformations.hardware.talos.dev",
    "hardware.SystemInfoController",
    "SystemInformation",
)
.columns(&[
    ("Manufacturer", "{.manufacturer}"),
    ("Model", "{.productName}"),
    ("Serial", "{.serialNumber}"),
]);
pub(crate) static EXTENSION: Kind = Kind::new(
    "runtime",
    "ExtensionStatuses.runtime.talos.dev",
    "runtime.ExtensionStatusController",
    "ExtensionStatus",
)
.aliases(&["extensions"])
.columns(&[("Name", "{.metadata.name}"), ("Version", "{.metadata.version}")]);
pub(crate) static DIAGNOSTIC: Kind = Kind::new(
    "runtime",
    "Diagnostics.runtime.talos.dev",
    "runtime.DiagnosticsController",
    "Diagnostic",
)
.columns(&[("Message", "{.message}")]);
pub(crate) static META_KEY: Kind = Kind::new("runtime", "MetaKeys.runtime.talos.dev", "", "MetaKey").aliases(&["meta"]);
pub(crate) static KUBEPRISM: Kind = Kind::new(
    "k8s",
    "KubePrismStatuses.kubernetes.talos.dev",
    "k8s.KubePrismController",
    "KubePrismStatus",
)
.columns(&[("Healthy", "{.healthy}")]);
pub(crate) static OS_ROOT: Kind = Kind::new(
    "secrets",
    "OSRootSecrets.secrets.talos.dev",
    "secrets.RootOSController",
    "OSRootSecret",
)
.sensitive();
pub(crate) static KUBERNETES_ROOT: Kind = Kind::new(
    "secrets",
    "KubernetesRootSecrets.secrets.talos.dev",
    "secrets.RootKubernetesController",
    "KubernetesRootSecret",
)
.sensitive();
pub(crate) static UNIQUE_TOKEN: Kind = Kind::new(
    "runtime",
    "UniqueMachineTokens.runtime.talos.dev",
    "runtime.UniqueMachineTokenController",
    "UniqueMachineToken",
);
pub(crate) static MOUNT: Kind = Kind::new(
    "runtime",
    "MountStatuses.runtime.talos.dev",
    "runtime.MountStatusController",
    "MountStatus",
)
.aliases(&["mounts"]);
pub(crate) static ROUTE: Kind = Kind::new(
    "network",
    "RouteStatuses.net.talos.dev",
    "network.RouteStatusController",
    "RouteStatus",
)
.aliases(&["route", "routes"])
.columns(&[
    ("Destination", "{.dst}"),
    ("Gateway", "{.gateway}"),
    ("Link", "{.outLinkName}"),
    ("Metric", "{.priority}"),
]);
pub(crate) static OPERATOR_SPEC: Kind = Kind::new(
    "network",
    "OperatorSpecs.net.talos.dev",
    "network.OperatorMergeController",
    "OperatorSpec",
)
.sensitive();
pub(crate) static MANIFEST: Kind = Kind::new(
    "controlplane",
    "Manifests.kubernetes.talos.dev",
    "k8s.ManifestController",
    "Manifest",
);
pub(crate) static KUBEPRISM_ENDPOINTS: Kind = Kind::new(
    "k8s",
    "KubePrismEndpoints.kubernetes.talos.dev",
    "k8s.KubePrismEndpointsController",
    "KubePrismEndpoint",
)
.columns(&[("Hosts", "{.endpoints[*].host}"), ("Ports", "{.endpoints[*].port}")]);
pub(crate) static ENDPOINT: Kind = Kind::new(
    "controlplane",
    "Endpoints.kubernetes.talos.dev",
    "k8s.EndpointController",
    "Endpoint",
)
.columns(&[("Addresses", "{.addresses}"), ("Hosts", "{.hosts}")]);
pub(crate) static DEFINITION: Kind = Kind::new("meta", "ResourceDefinitions.meta.cosi.dev", "", "ResourceDefinition")
    .aliases(&["api-resources"])
    .columns(&[("Aliases", "{.aliases[:]}")]);
pub(crate) static NAMESPACE: Kind = Kind::new("meta", "Namespaces.meta.cosi.dev", "", "Namespace").aliases(&["ns"]);

static SHOWN: [&Kind; 48] = [
    &MACHINE_STATUS,
    &SERVICE,
    &MACHINE_TYPE,
    &MACHINE_CONFIG,
    &NODENAME,
    &NODE_STATUS,
    &STATIC_POD,
    &STATIC_POD_STATUS,
    &KUBELET_SPEC,
    &API_SERVER_CONFIG,
    &SCHEDULER_CONFIG,
    &CONTROLLER_MANAGER_CONFIG,
    &MANIFEST_STATUS,
    &BOOTSTRAP_MANIFESTS,
    &ETCD_MEMBER,
    &ETCD_SPEC,
    &MEMBER,
    &IDENTITY,
    &INFO,
    &HOSTNAME,
    &NODE_ADDRESS,
    &ADDRESS,
    &LINK,
    &NETWORK_STATUS,
    &RESOLVERS,
    &TIME_SERVERS,
    &TIME_STATUS,
    &DISK,
    &SYSTEM_DISK,
    &VOLUME,
    &SECURITY,
    &PLATFORM,
    &SYSTEM_INFORMATION,
    &EXTENSION,
    &DIAGNOSTIC,
    &META_KEY,
    &KUBEPRISM,
    &OS_ROOT,
    &KUBERNETES_ROOT,
    &UNIQUE_TOKEN,
    &MOUNT,
    &ROUTE,
    &OPERATOR_SPEC,
    &MANIFEST,
    &KUBEPRISM_ENDPOINTS,
    &ENDPOINT,
    &DEFINITION,
    &NAMESPACE,
];

pub(crate) const NAMESPACES: [&str; 11] = [
    "cluster",
    "config",
    "controlplane",
    "etcd",
    "files",
    "hardware",
    "k8s",
    "meta",
    "network",
    "runtime",
    "secrets",
];

/// Kinds that Talos has and of which these machines have nothing: they can be asked for, and the answer is empty.
static EMPTY: [Kind; 38] = [
    Kind::new(
        "cluster",
        "Affiliates.cluster.talos.dev",
        "cluster.DiscoveryServiceController",
        "Affiliate",
    ),
    Kind::new(
        "cluster",
        "DiscoveryConfigs.cluster.talos.dev",
        "cluster.ConfigController",
        "DiscoveryConfig",
    )
    .sensitive(),
    Kind::new(
        "controlplane",
        "AdmissionControlConfigs.kubernetes.talos.dev",
        "k8s.ControlPlaneAdmissionControlController",
        "AdmissionControlConfig",
    ),
    Kind::new(
        "controlplane",
        "AuditPolicyConfigs.kubernetes.talos.dev",
        "k8s.ControlPlaneAuditPolicyController",
        "AuditPolicyConfig",
    ),
    Kind::new(
        "controlplane",
        "AuthorizationConfigs.kubernetes.talos.dev",
        "k8s.ControlPlaneAuthorizationController",
        "AuthorizationConfig",
    ),
    Kind::new(
        "controlplane",
        "ExtraManifestsConfigs.kubernetes.talos.dev",
        "k8s.ControlPlaneExtraManifestsController",
        "ExtraManifestsConfig",
    ),
    Kind::new("etcd", "EtcdConfigs.etcd.talos.dev", "etcd.ConfigController", "EtcdConfig"),
    Kind::new("etcd", "PKIStatuses.etcd.talos.dev", "etcd.PKIController", "PKIStatus"),
    Kind::new(
        "files",
        "EtcFileSpecs.files.talos.dev",
        "files.EtcFileController",
        "EtcFileSpec",
    )
    .sensitive(),
    Kind::new(
        "files",
        "EtcFileStatuses.files.talos.dev",
        "files.EtcFileController",
        "EtcFileStatus",
    ),
    Kind::new(
        "hardware",
        "MemoryModules.hardware.talos.dev",
        "hardware.SystemInfoController",
        "MemoryModule",
    ),
    Kind::new(
        "hardware",
        "PCIDevices.hardware.talos.dev",
        "hardware.PCIDevicesController",
        "PCIDevice",
    ),
    Kind::new(
        "hardware",
        "Processors.hardware.talos.dev",
        "hardware.SystemInfoController",
        "Processor",
    ),
    Kind::new(
        "k8s",
        "ConfigStatuses.kubernetes.talos.dev",
        "k8s.RenderConfigsStaticPodController",
        "ConfigStatus",
    ),
    Kind::new(
        "k8s",
        "KubeletConfigs.kubernetes.talos.dev",
        "k8s.KubeletConfigController",
        "KubeletConfig",
    )
    .sensitive(),
    Kind::new("k8s", "KubeletLifecycles.kubernetes.talos.dev", "", "KubeletLifecycle"),
    Kind::new(
        "k8s",
        "KubePrismConfigs.kubernetes.talos.dev",
        "k8s.KubePrismConfigController",
        "KubePrismConfig",
    ),
    Kind::new(
        "k8s",
        "NodeAnnotationSpecs.k8s.talos.dev",
        "k8s.NodeAnnotationSpecController",
        "NodeAnnotationSpec",
    ),
    Kind::new("k8s", "NodeCordonedSpecs.k8s.talos.dev", "", "NodeCordonedSpec"),
    Kind::new("k8s", "NodeIPs.kubernetes.talos.dev", "k8s.NodeIPController", "NodeIP"),
    Kind::new(
        "k8s",
        "NodeLabelSpecs.k8s.talos.dev",
        "k8s.NodeLabelSpecController",
        "NodeLabelSpec",
    ),
    Kind::new(
        "k8s",
        "NodeTaintSpecs.k8s.talos.dev",
        "k8s.NodeTaintSpecController",
        "NodeTaintSpec",
    ),
    Kind::new(
        "k8s",
        "StaticPodServerStatuses.kubernetes.talos.dev",
        "k8s.StaticPodServerController",
        "StaticPodServerStatus",
    ),
    Kind::new(
        "network",
        "AddressSpecs.net.talos.dev",
        "network.AddressMergeController",
        "AddressSpec",
    ),
    Kind::new(
        "network",
        "DNSUpstreams.net.talos.dev",
        "network.DNSUpstreamController",
        "DNSUpstream",
    ),
    Kind::new(
        "network",
        "HardwareAddresses.net.talos.dev",
        "network.HardwareAddrController",
        "HardwareAddress",
    ),
    Kind::new(
        "network",
        "HostnameSpecs.net.talos.dev",
        "network.HostnameMergeController",
        "HostnameSpec",
    ),
    Kind::new(
        "network",
        "LinkSpecs.net.talos.dev",
        "network.LinkMergeController",
        "LinkSpec",
    )
    .sensitive(),
    Kind::new(
        "network",
        "ProbeStatuses.net.talos.dev",
        "network.ProbeController",
        "ProbeStatus",
    ),
    Kind::new(
        "network",
        "ResolverSpecs.net.talos.dev",
        "network.ResolverMergeController",
        "ResolverSpec",
    ),
    Kind::new(
        "network",
        "RouteSpecs.net.talos.dev",
        "network.RouteMergeController",
        "RouteSpec",
    ),
    Kind::new(
        "network",
        "TimeServerSpecs.net.talos.dev",
        "network.TimeServerMergeController",
        "TimeServerSpec",
    ),
    Kind::new("runtime", "BlockDevices.block.talos.dev", "block.DevicesController", "Device"),
    Kind::new(
        "runtime",
        "DiscoveredVolumes.block.talos.dev",
        "block.DiscoveryController",
        "DiscoveredVolume",
    ),
    Kind::new(
        "runtime",
        "ExtensionServiceConfigs.runtime.talos.dev",
        "runtime.ExtensionServiceConfigController",
        "ExtensionServiceConfig",
    )
    .sensitive(),
    Kind::new(
        "runtime",
        "KernelModuleSpecs.runtime.talos.dev",
        "runtime.KernelModuleConfigController",
        "KernelModuleSpec",
    ),
    Kind::new(
        "runtime",
        "VolumeConfigs.block.talos.dev",
        "block.VolumeConfigController",
        "VolumeConfig",
    )
    .sensitive(),
    Kind::new(
        "secrets",
        "EtcdRootSecrets.secrets.talos.dev",
        "secrets.RootEtcdController",
        "EtcdRootSecret",
    )
    .sensitive(),
];

fn all() -> impl Iterator<Item = &'static Kind> {
    SHOWN.into_iter().chain(&EMPTY)
}

pub(crate) fn find(name: &str) -> Option<&'static Kind> {
    all().find(|kind| kind.name == name)
}

/// What describes the resources themselves, by id; the same on every node, hence made once.
pub(crate) fn described(kind: &Kind) -> Option<&'static BTreeMap<String, Arc<Spec>>> {
    static DEFINITIONS: OnceLock<BTreeMap<String, Arc<Spec>>> = OnceLock::new();
    static SPACES: OnceLock<BTreeMap<String, Arc<Spec>>> = OnceLock::new();
    if std::ptr::eq(kind, &DEFINITION) {
        let make = || all().map(definition).map(|(id, spec)| (id, Arc::new(spec))).collect();
        return Some(DEFINITIONS.get_or_init(make));
    }
    std::ptr::eq(kind, &NAMESPACE).then(|| {
        SPACES.get_or_init(|| {
            let empty = Arc::new(Spec::new(json!({"description": ""}), &meta::NamespaceSpec::default()));
            NAMESPACES
                .into_iter()
                .map(|name| (name.to_owned(), Arc::clone(&empty)))
                .collect()
        })
    })
}

/// `rd` and `rds` for a ResourceDefinition; a name of one word has none.
fn initials(display: &str) -> Vec<String> {
    let short: String = display
        .chars()
        .filter(char::is_ascii_uppercase)
        .map(|letter| letter.to_ascii_lowercase())
        .collect();
    match short.len() {
        ..2 => Vec::new(),
        _ if short.ends_with('s') => vec![short],
        _ => vec![short.clone(), format!("{short}s")],
    }
}

/// How clients find a kind by a short name.
fn definition(kind: &Kind) -> (String, Spec) {
    let id = kind.name.to_ascii_lowercase();
    let (plural, suffix) = kind.name.split_once('.').unwrap_or((kind.name, ""));
    let plural = plural.to_ascii_lowercase();
    let mut aliases: Vec<String> = kind.aliases.iter().map(|alias| (*alias).to_owned()).collect();
    aliases.push(kind.display.to_ascii_lowercase());
    aliases.extend(initials(kind.display));
    aliases.dedup();
    let mut all = vec![plural.clone()];
    let parts: Vec<&str> = suffix.split('.').collect();
    all.extend((1..parts.len()).map(|count| format!("{plural}.{}", parts[..count].join("."))));
    all.extend(aliases.iter().cloned());
    let sensitivity = if kind.sensitive { "sensitive" } else { "" };
    let columns: Vec<Value> = kind
        .columns
        .iter()
        .map(|(name, path)| json!({"name": name, "jsonPath": path}))
        .collect();
    let value = json!({
        "type": kind.name, "displayType": kind.display, "aliases": aliases, "allAliases": all, "printColumns": columns,
        "defaultNamespace": kind.namespace, "sensitivity": sensitivity,
    });
    let columns = kind
        .columns
        .iter()
        .map(|(name, path)| meta::resource_definition_spec::PrintColumn {
            name: (*name).to_owned(),
            json_path: (*path).to_owned(),
        });
    let message = meta::ResourceDefinitionSpec {
        resource_type: kind.name.to_owned(),
        display_type: kind.display.to_owned(),
        default_namespace: kind.namespace.to_owned(),
        aliases,
        all_aliases: all,
        print_columns: columns.collect(),
        sensitivity: i32::from(kind.sensitive),
    };
    (id, Spec::new(value, &message))
}
