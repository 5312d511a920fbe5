//! The resources that the simulated API server serves.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock};

use serde_json::Value;

use super::control::{condition, text};
use super::store::Store;

/// One resource of one group and version.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
    pub short: &'static [&'static str],
    pub status: bool,
}

impl Kind {
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// As messages name it: `nodes`, `leases.coordination.k8s.io`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }
}

const fn core(
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    namespaced: bool,
    short: &'static [&'static str],
) -> Kind {
    Kind {
        group: "",
        version: "v1",
        plural,
        singular,
        kind,
        namespaced,
        short,
        status: false,
    }
}

const fn in_group(
    group: &'static str,
    version: &'static str,
    names: (&'static str, &'static str, &'static str),
    namespaced: bool,
) -> Kind {
    Kind {
        group,
        version,
        plural: names.0,
        singular: names.1,
        kind: names.2,
        namespaced,
        short: &[],
        status: false,
    }
}

const fn with_status(kind: Kind) -> Kind {
    Kind { status: true, ..kind }
}

const fn with_short(kind: Kind, short: &'static [&'static str]) -> Kind {
    Kind { short, ..kind }
}

pub(crate) static NODES: Kind = with_status(core("nodes", "node", "Node", false, &["no"]));
pub(crate) static PODS: Kind = with_status(core("pods", "pod", "Pod", true, &["po"]));
pub(crate) static NAMESPACES: Kind = with_status(core("namespaces", "namespace", "Namespace", false, &["ns"]));
pub(crate) static EVENTS: Kind = core("events", "event", "Event", true, &["ev"]);
/// The namespace of the leases that kubelets renew.
pub(crate) const NODE_LEASES: &str = "kube-node-lease";
pub(crate) static LEASES: Kind = in_group("coordination.k8s.io", "v1", ("leases", "lease", "Lease"), true);
pub(crate) static CONFIG_MAPS: Kind = core("configmaps", "configmap", "ConfigMap", true, &["cm"]);
pub(crate) static SERVICES: Kind = with_status(core("services", "service", "Service", true, &["svc"]));
pub(crate) static DAEMON_SETS: Kind = with_short(
    with_status(in_group("apps", "v1", ("daemonsets", "daemonset", "DaemonSet"), true)),
    &["ds"],
);
pub(crate) static DEPLOYMENTS: Kind = with_short(
    with_status(in_group("apps", "v1", ("deployments", "deployment", "Deployment"), true)),
    &["deploy"],
);

pub(crate) static SECRETS: Kind = core("secrets", "secret", "Secret", true, &[]);
pub(crate) static SERVICE_ACCOUNTS: Kind = core("serviceaccounts", "serviceaccount", "ServiceAccount", true, &["sa"]);
static ENDPOINTS: Kind = core("endpoints", "endpoints", "Endpoints", true, &["ep"]);
pub(crate) static PERSISTENT_VOLUMES: Kind = with_status(core(
    "persistentvolumes",
    "persistentvolume",
    "PersistentVolume",
    false,
    &["pv"],
));
pub(crate) static PERSISTENT_VOLUME_CLAIMS: Kind = with_status(core(
    "persistentvolumeclaims",
    "persistentvolumeclaim",
    "PersistentVolumeClaim",
    true,
    &["pvc"],
));
pub(crate) static STATEFUL_SETS: Kind = with_short(
    with_status(in_group("apps", "v1", ("statefulsets", "statefulset", "StatefulSet"), true)),
    &["sts"],
);
pub(crate) static REPLICA_SETS: Kind = with_short(
    with_status(in_group("apps", "v1", ("replicasets", "replicaset", "ReplicaSet"), true)),
    &["rs"],
);
pub(crate) static JOBS: Kind = with_status(in_group("batch", "v1", ("jobs", "job", "Job"), true));
pub(crate) static CSRS: Kind = with_short(
    with_status(in_group(
        "certificates.k8s.io",
        "v1",
        (
            "certificatesigningrequests",
            "certificatesigningrequest",
            "CertificateSigningRequest",
        ),
        false,
    )),
    &["csr"],
);
static ENDPOINT_SLICES: Kind = in_group(
    "discovery.k8s.io",
    "v1",
    ("endpointslices", "endpointslice", "EndpointSlice"),
    true,
);
static CLUSTER_ROLES: Kind = in_group(
    "rbac.authorization.k8s.io",
    "v1",
    ("clusterroles", "clusterrole", "ClusterRole"),
    false,
);
pub(crate) static CLUSTER_ROLE_BINDINGS: Kind = in_group(
    "rbac.authorization.k8s.io",
    "v1",
    ("clusterrolebindings", "clusterrolebinding", "ClusterRoleBinding"),
    false,
);
static ROLES: Kind = in_group("rbac.authorization.k8s.io", "v1", ("roles", "role", "Role"), true);
static ROLE_BINDINGS: Kind = in_group(
    "rbac.authorization.k8s.io",
    "v1",
    ("rolebindings", "rolebinding", "RoleBinding"),
    true,
);
pub(crate) static STORAGE_CLASSES: Kind = with_short(
    in_group(
        "storage.k8s.io",
        "v1",
        ("storageclasses", "storageclass", "StorageClass"),
        false,
    ),
    &["sc"],
);
pub(crate) static VOLUME_ATTACHMENTS: Kind = with_status(in_group(
    "storage.k8s.io",
    "v1",
    ("volumeattachments", "volumeattachment", "VolumeAttachment"),
    false,
));
static CSI_NODES: Kind = in_group("storage.k8s.io", "v1", ("csinodes", "csinode", "CSINode"), false);
pub(crate) static DISRUPTION_BUDGETS: Kind = with_short(
    with_status(in_group(
        "policy",
        "v1",
        ("poddisruptionbudgets", "poddisruptionbudget", "PodDisruptionBudget"),
        true,
    )),
    &["pdb"],
);

pub(crate) static HELM_CHARTS: Kind = with_status(in_group(
    "helm.cattle.io",
    "v1",
    ("helmcharts", "helmchart", "HelmChart"),
    true,
));
pub(crate) static HELM_CHART_CONFIGS: Kind = in_group(
    "helm.cattle.io",
    "v1",
    ("helmchartconfigs", "helmchartconfig", "HelmChartConfig"),
    true,
);
static ADDONS: Kind = in_group("k3s.cattle.io", "v1", ("addons", "addon", "Addon"), true);
pub(crate) static SNAPSHOT_FILES: Kind = with_status(in_group(
    "k3s.cattle.io",
    "v1",
    ("etcdsnapshotfiles", "etcdsnapshotfile", "ETCDSnapshotFile"),
    false,
));

pub(crate) static CRDS: Kind = with_short(
    with_status(in_group(
        "apiextensions.k8s.io",
        "v1",
        (
            "customresourcedefinitions",
            "customresourcedefinition",
            "CustomResourceDefinition",
        ),
        false,
    )),
    &["crd"],
);
static API_SERVICES: Kind = with_status(in_group(
    "apiregistration.k8s.io",
    "v1",
    ("apiservices", "apiservice", "APIService"),
    false,
));
static CSI_DRIVERS: Kind = in_group("storage.k8s.io", "v1", ("csidrivers", "csidriver", "CSIDriver"), false);
static PRIORITY_CLASSES: Kind = in_group(
    "scheduling.k8s.io",
    "v1",
    ("priorityclasses", "priorityclass", "PriorityClass"),
    false,
);
static CRON_JOBS: Kind = with_status(in_group("batch", "v1", ("cronjobs", "cronjob", "CronJob"), true));
static NETWORK_POLICIES: Kind = in_group(
    "networking.k8s.io",
    "v1",
    ("networkpolicies", "networkpolicy", "NetworkPolicy"),
    true,
);

/// In the order that discovery lists them.
pub(crate) static ALL: [&Kind; 37] = [
    &CONFIG_MAPS,
    &ENDPOINTS,
    &EVENTS,
    &NAMESPACES,
    &NODES,
    &PERSISTENT_VOLUME_CLAIMS,
    &PERSISTENT_VOLUMES,
    &PODS,
    &SECRETS,
    &SERVICE_ACCOUNTS,
    &SERVICES,
    &DAEMON_SETS,
    &DEPLOYMENTS,
    &REPLICA_SETS,
    &STATEFUL_SETS,
    &CRON_JOBS,
    &JOBS,
    &CSRS,
    &LEASES,
    &ENDPOINT_SLICES,
    &DISRUPTION_BUDGETS,
    &CLUSTER_ROLE_BINDINGS,
    &CLUSTER_ROLES,
    &ROLE_BINDINGS,
    &ROLES,
    &NETWORK_POLICIES,
    &PRIORITY_CLASSES,
    &CSI_DRIVERS,
    &CSI_NODES,
    &STORAGE_CLASSES,
    &VOLUME_ATTACHMENTS,
    &HELM_CHART_CONFIGS,
    &HELM_CHARTS,
    &ADDONS,
    &SNAPSHOT_FILES,
    &CRDS,
    &API_SERVICES,
];

pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    ALL.into_iter()
        .find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
}

/// A resource of a cluster: built in, or defined there by an established definition.
pub(crate) fn find_in(store: Option<&Store>, group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    find(group, version, plural).or_else(|| {
        let all = custom(store?);
        all.into_iter()
            .find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
    })
}

/// The kind of a manifest.
pub(crate) fn of_manifest(store: &Store, object: &Value) -> Option<&'static Kind> {
    let api_version = object["apiVersion"].as_str()?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let same = |kind: &&'static Kind| kind.group == group && kind.version == version && object["kind"] == kind.kind;
    ALL.into_iter().find(same).or_else(|| custom(store).into_iter().find(same))
}

/// Kinds that definitions of this cluster serve.
pub(crate) fn custom(store: &Store) -> Vec<&'static Kind> {
    let definitions = store.list(&CRDS, None).1;
    let established = definitions.iter().filter(|crd| condition(crd, "Established"));
    established.flat_map(|crd| served(crd)).collect()
}

fn served(crd: &Value) -> Vec<&'static Kind> {
    let spec = &crd["spec"];
    let versions = spec["versions"].as_array().into_iter().flatten();
    versions
        .filter(|version| version["served"] == true)
        .map(|version| {
            intern(&Names {
                group: text(&spec["group"]).to_owned(),
                version: text(&version["name"]).to_owned(),
                plural: text(&spec["names"]["plural"]).to_owned(),
                kind: text(&spec["names"]["kind"]).to_owned(),
                namespaced: spec["scope"] == "Namespaced",
                status: !version["subresources"]["status"].is_null(),
            })
        })
        .collect()
}

struct Names {
    group: String,
    version: String,
    plural: String,
    kind: String,
    namespaced: bool,
    status: bool,
}

/// Kinds live as long as the process, as the built-in ones do; the same definition gives the same kind.
fn intern(names: &Names) -> &'static Kind {
    static KNOWN: OnceLock<Mutex<BTreeSet<&'static Kind>>> = OnceLock::new();
    let mut known = KNOWN.get_or_init(Mutex::default).lock().expect("plain data");
    let same = |kind: &&&'static Kind| {
        kind.group == names.group
            && kind.version == names.version
            && kind.plural == names.plural
            && kind.kind == names.kind
            && (kind.namespaced, kind.status) == (names.namespaced, names.status)
    };
    if let Some(kind) = known.iter().find(same) {
        return kind;
    }
    let leak = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    let kind: &'static Kind = Box::leak(Box::new(Kind {
        group: leak(&names.group),
        version: leak(&names.version),
        plural: leak(&names.plural),
        singular: leak(&names.kind.to_lowercase()),
        kind: leak(&names.kind),
        namespaced: names.namespaced,
        short: &[],
        status: names.status,
    }));
    known.insert(kind);
    kind
}
