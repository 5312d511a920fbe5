//! The resources that the simulated API server serves.

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
static SERVICE_ACCOUNTS: Kind = core("serviceaccounts", "serviceaccount", "ServiceAccount", true, &["sa"]);
static ENDPOINTS: Kind = core("endpoints", "endpoints", "Endpoints", true, &["ep"]);
static PERSISTENT_VOLUMES: Kind = with_status(core(
    "persistentvolumes",
    "persistentvolume",
    "PersistentVolume",
    false,
    &["pv"],
));
static PERSISTENT_VOLUME_CLAIMS: Kind = with_status(core(
    "persistentvolumeclaims",
    "persistentvolumeclaim",
    "PersistentVolumeClaim",
    true,
    &["pvc"],
));
static STATEFUL_SETS: Kind = with_short(
    with_status(in_group("apps", "v1", ("statefulsets", "statefulset", "StatefulSet"), true)),
    &["sts"],
);
static REPLICA_SETS: Kind = with_short(
    with_status(in_group("apps", "v1", ("replicasets", "replicaset", "ReplicaSet"), true)),
    &["rs"],
);
static JOBS: Kind = with_status(in_group("batch", "v1", ("jobs", "job", "Job"), true));
static CSRS: Kind = with_short(
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
static CLUSTER_ROLE_BINDINGS: Kind = in_group(
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
static STORAGE_CLASSES: Kind = with_short(
    in_group(
        "storage.k8s.io",
        "v1",
        ("storageclasses", "storageclass", "StorageClass"),
        false,
    ),
    &["sc"],
);
static VOLUME_ATTACHMENTS: Kind = with_status(in_group(
    "storage.k8s.io",
    "v1",
    ("volumeattachments", "volumeattachment", "VolumeAttachment"),
    false,
));
static CSI_NODES: Kind = in_group("storage.k8s.io", "v1", ("csinodes", "csinode", "CSINode"), false);
static DISRUPTION_BUDGETS: Kind = with_short(
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
static HELM_CHART_CONFIGS: Kind = in_group(
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

/// In the order that discovery lists them.
pub(crate) static ALL: [&Kind; 31] = [
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
    &JOBS,
    &CSRS,
    &LEASES,
    &ENDPOINT_SLICES,
    &DISRUPTION_BUDGETS,
    &CLUSTER_ROLE_BINDINGS,
    &CLUSTER_ROLES,
    &ROLE_BINDINGS,
    &ROLES,
    &CSI_NODES,
    &STORAGE_CLASSES,
    &VOLUME_ATTACHMENTS,
    &HELM_CHART_CONFIGS,
    &HELM_CHARTS,
    &ADDONS,
    &SNAPSHOT_FILES,
];

pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    ALL.into_iter()
        .find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
}
