//! Kubernetes objects as data: kube-vip, and HelmChart and HelmChartConfig for the distributions' own Helm controller.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::cni::Cni;
use crate::distro::Distro;
use crate::yaml;

/// A node with this label and value never holds the virtual address. A turn sets it before the node's server restarts.
pub const VIP_LABEL: &str = "mainstay/vip";
pub const VIP_OFF: &str = "off";

/// The Lease whose holder has the virtual address, in `kube-system`. Empty after a clean stop.
pub const VIP_LEASE: &str = "plndr-cp-lock";

/// 1.2.2 followed the kubeconfig's own server, which may be the virtual address itself. Older versions lose the address for good after
/// an etcd stall.
pub const KUBE_VIP_VERSION: &str = "v1.2.3";

const KUBE_VIP_IMAGE: &str = "ghcr.io/kube-vip/kube-vip";

/// What kube-vip needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeVip {
    pub distro: Distro,
    pub address: IpAddr,
    /// Only if the node addresses are not on the interface of the default route.
    pub interface: Option<String>,
    /// Overrides repository and tag, for mirrors.
    pub image: Option<String>,
}

impl KubeVip {
    /// ServiceAccount, ClusterRole, ClusterRoleBinding and DaemonSet, in the order of applying.
    pub fn objects(&self) -> Vec<Value> {
        let mut objects = role_objects();
        objects.push(self.daemon_set());
        objects
    }

    fn daemon_set(&self) -> Value {
        let labels = json!({ "app.kubernetes.io/name": "kube-vip" });
        let image = self
            .image
            .clone()
            .unwrap_or_else(|| format!("{KUBE_VIP_IMAGE}:{KUBE_VIP_VERSION}"));
        json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": { "name": "kube-vip", "namespace": "kube-system", "labels": labels },
            "spec": {
                "selector": { "matchLabels": labels },
                "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1 } },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "serviceAccountName": "kube-vip",
                        "hostNetwork": true,
                        "priorityClassName": "system-node-critical",
                        "affinity": affinity(),
                        "tolerations": [
                            { "effect": "NoSchedule", "operator": "Exists" },
                            { "effect": "NoExecute", "operator": "Exists" },
                        ],
                        // kube-vip dials the name `kubernetes` when it uses the mounted kubeconfig.
                        "hostAliases": [{ "ip": "127.0.0.1", "hostnames": ["kubernetes"] }],
                        "containers": [{
                            "name": "kube-vip",
                            "image": image,
                            "imagePullPolicy": "IfNotPresent",
                            "args": ["manager"],
                            "env": self.environment(),
                            "securityContext": { "capabilities": { "add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"] } },
                            "volumeMounts": [{ "name": "kubeconfig", "mountPath": "/etc/kubernetes/admin.conf", "readOnly": true }],
                        }],
                        // Without a type, a missing file would become a directory.
                        "volumes": [{ "name": "kubeconfig", "hostPath": { "path": self.distro.local_kubeconfig(), "type": "File" } }],
                    },
                },
            },
        })
    }

    fn environment(&self) -> Vec<Value> {
        let prefix = if self.address.is_ipv4() { "32" } else { "128" };
        let address = self.address.to_string();
        let settings = [
            ("vip_arp", "true"),
            ("address", &address),
            ("port", "6443"),
            ("vip_subnet", prefix),
            ("vip_interface", self.interface.as_deref().unwrap_or_default()),
            ("cp_enable", "true"),
            ("cp_namespace", "kube-system"),
            ("svc_enable", "false"),
            ("vip_leaderelection", "true"),
            ("vip_leasename", VIP_LEASE),
            // Shorter leases flap when etcd's disk is slow.
            ("vip_leaseduration", "15"),
            ("vip_renewdeadline", "10"),
            ("vip_retryperiod", "2"),
            // The API server of the same machine. A client that followed the virtual address could not take it over.
            ("kubernetes_addr", "https://127.0.0.1:6443"),
            // Port 2112 of the host stays free.
            ("prometheus_server", ""),
        ];
        let mut environment: Vec<Value> = settings
            .into_iter()
            .filter(|(name, value)| *name != "vip_interface" || !value.is_empty())
            .map(|(name, value)| json!({ "name": name, "value": value }))
            .collect();
        environment.push(json!({ "name": "vip_nodename", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }));
        environment
    }
}

/// Servers only, and not those that are about to restart.
fn affinity() -> Value {
    json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{
        "matchExpressions": [
            { "key": "node-role.kubernetes.io/control-plane", "operator": "Exists" },
            { "key": VIP_LABEL, "operator": "NotIn", "values": [VIP_OFF] },
        ],
    }] } } })
}

fn role_objects() -> Vec<Value> {
    let account = json!({ "name": "kube-vip", "namespace": "kube-system" });
    let rule =
        |group: &str, resources: &[&str], verbs: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
    vec![
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": account }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": { "name": "system:kube-vip-role" },
            "rules": [
                rule("", &["services/status"], &["update"]),
                rule("", &["services", "endpoints"], &["list", "get", "watch", "update"]),
                rule("", &["nodes"], &["list", "get", "watch", "update", "patch"]),
                rule("", &["pods"], &["list"]),
                rule("coordination.k8s.io", &["leases"], &["list", "get", "watch", "update", "create"]),
                rule("discovery.k8s.io", &["endpointslices"], &["list", "get", "watch", "update"]),
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": { "name": "system:kube-vip-binding" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:kube-vip-role" },
            "subjects": [{ "kind": "ServiceAccount", "name": "kube-vip", "namespace": "kube-system" }],
        }),
    ]
}

/// Values for a chart that the distribution packages. Name and namespace are those of the packaged chart.
///
/// `abort` keeps a failed release as it is. The default, `reinstall`, uninstalls first, which removes the network if the chart is the CNI.
pub fn helm_chart_config(chart: &str, values: &Value) -> Value {
    json!({
        "apiVersion": "helm.cattle.io/v1",
        "kind": "HelmChartConfig",
        "metadata": { "name": chart, "namespace": "kube-system" },
        "spec": { "valuesContent": yaml::document(values), "failurePolicy": "abort" },
    })
}

/// A chart that the distribution's Helm controller installs.
#[derive(Debug, Clone, PartialEq)]
pub struct HelmChart<'a> {
    /// The name of the release and of the object.
    pub release: &'a str,
    pub namespace: &'a str,
    /// The chart archive. The controller pulls nothing.
    pub archive: &'a [u8],
    pub values: &'a Value,
    /// The install Job runs on the host network and tolerates nodes that are not ready: for a CNI or a cloud controller.
    pub bootstrap: bool,
}

impl HelmChart<'_> {
    pub fn object(&self) -> Value {
        json!({
            "apiVersion": "helm.cattle.io/v1",
            "kind": "HelmChart",
            "metadata": { "name": self.release, "namespace": "kube-system" },
            "spec": {
                "chartContent": STANDARD.encode(self.archive),
                "targetNamespace": self.namespace,
                "valuesContent": yaml::document(self.values),
                "bootstrap": self.bootstrap,
                "failurePolicy": "abort",
                "backOffLimit": 6,
            },
        })
    }
}

/// A file of `server/manifests`: name without extension, and content. Equal on all servers, there before the first start of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestFile {
    pub name: String,
    pub content: String,
}

impl ManifestFile {
    /// The name becomes the name of an AddOn object, so it must be one of Kubernetes' names. An underscore makes the file be ignored.
    pub fn new(name: &str, objects: &[Value]) -> Self {
        let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        assert!(!name.is_empty() && name.bytes().all(is_valid), "{name} is no object name");
        Self {
            name: name.to_owned(),
            content: yaml::documents(objects),
        }
    }
}

/// What the packaged CNI needs to be told before the first start. `user` is merged over our values by the caller.
pub fn cni_values(distro: Distro, cni: Cni, interface: Option<&str>) -> Option<(&'static str, Value)> {
    let (host, port) = distro.local_api();
    match (distro, cni) {
        (Distro::Rke2, Cni::Cilium) => Some((
            "rke2-cilium",
            json!({ "kubeProxyReplacement": true, "k8sServiceHost": host, "k8sServicePort": port.to_string() }),
        )),
        (Distro::Rke2, Cni::Canal) => interface.map(|name| ("rke2-canal", json!({ "flannel": { "iface": name } }))),
        _ => None,
    }
}
