//! Cilium: values per distribution, one minor per upgrade, the Gateway API that each minor needs.

use mainstay_spec::{Addon, Distro};
use serde_json::{Map, Value, json};

use super::cloud::has_external_cloud_provider;
use super::delivery::job_endpoint;
use super::{
    CatalogueEntry, ChartHook, CrdDelivery, Delivery, EntrySource, Expect, HookMoment, LateInstall, Layer, MachineNeeds,
    ReadyCheck, RemovalPolicy, Workload, WorkloadKind, minor_number,
};
use crate::addon::facts::AddonFacts;
use crate::addon::values::{ValueWarning, at};

pub(super) static CILIUM: CatalogueEntry = CatalogueEntry {
    name: "cilium",
    release: "cilium",
    namespace: "kube-system",
    pod_security: None,
    layer: Layer::Network,
    source: EntrySource::Oci("oci://quay.io/cilium/charts/cilium"),
    versions: &["1.16.19", "1.17.18", "1.18.13", "1.19.7", "1.20.1"],
    crds: CrdDelivery::Operator(&[
        "ciliumloadbalancerippools.cilium.io",
        "ciliuml2announcementpolicies.cilium.io",
    ]),
    secret: None,
    // From 1.19 on the Job is an ordinary object with a name by checksum: Helm does not wait for it.
    hooks: &[ChartHook {
        job: "hubble-generate-certs",
        on: HookMoment::InstallAndUpgrade,
        tolerations: "certgen.tolerations",
        minors: Some(("1.16", "1.18")),
    }],
    workloads: &[
        Workload {
            kind: WorkloadKind::DaemonSet,
            name: "cilium",
            expect: Expect::EveryNode,
        },
        Workload {
            kind: WorkloadKind::DaemonSet,
            name: "cilium-envoy",
            expect: Expect::EveryNode,
        },
        Workload {
            kind: WorkloadKind::Deployment,
            name: "cilium-operator",
            expect: Expect::AtLeastOne,
        },
    ],
    checks: &[ReadyCheck::NodesReady, ReadyCheck::NoTaint("node.cilium.io/agent-not-ready")],
    late: LateInstall::Refused {
        why: "another network plug-in runs; its bridge and its configuration stay on every node until the node restarts",
        manual: "set the CNI of the machine config to none, install Cilium, delete the DaemonSet, ConfigMap and RBAC of the old plug-in, \
                 then restart the nodes one by one",
    },
    removal: RemovalPolicy::Never("without Cilium no pod has a network"),
    machine: MachineNeeds {
        without_cni: true,
        without_kube_proxy: true,
        ..MachineNeeds::NONE
    },
    delivery,
    probes_crds,
    values,
    judge,
};

fn delivery(distro: Distro) -> Delivery {
    match distro {
        Distro::Talos => Delivery::Job,
        // The values must be there before the first start: the packaged chart would otherwise start with kube-proxy in mind.
        Distro::Rke2 => Delivery::Packaged {
            chart: "rke2-cilium",
            since_start: true,
        },
        Distro::K3s => Delivery::HelmChart { replaces: None },
    }
}

/// The release of RKE2 decides which Cilium it packages.
pub fn restrict_rke2_version(distro: Distro, is_version_given: bool) -> Result<(), &'static str> {
    match (distro, is_version_given) {
        (Distro::Rke2, true) => {
            Err("RKE2 packages Cilium: its version follows `rke2.version`, so `addons.cilium.version` has no effect")
        }
        _ => Ok(()),
    }
}

/// Kinds that Cilium's operator looks for once, when it starts.
fn probes_crds(facts: &AddonFacts) -> Vec<&'static str> {
    if !facts.wants(Addon::GatewayApi) {
        return Vec::new();
    }
    vec![
        "gatewayclasses.gateway.networking.k8s.io",
        "gateways.gateway.networking.k8s.io",
        "httproutes.gateway.networking.k8s.io",
        "grpcroutes.gateway.networking.k8s.io",
        "referencegrants.gateway.networking.k8s.io",
    ]
}

/// The Gateway API that a Cilium version was built for. `None`: a minor that this binary does not know.
pub fn gateway_api_for(cilium: &str) -> Option<&'static str> {
    match minor_number(cilium) {
        (1, 16) => Some("1.1.0"),
        (1, 17) => Some("1.2.1"),
        (1, 18) => Some("1.3.0"),
        (1, 19) => Some("1.4.0"),
        (1, 20) => Some("1.6.1"),
        _ => None,
    }
}

fn values(facts: &AddonFacts) -> Value {
    let mut values = common_values(facts);
    if facts.distro == Distro::Talos {
        restricted_host(&mut values);
    }
    if facts.forwards_dns_to_host {
        // BPF host routing drops the answers of the host's resolver.
        values.insert("bpf".to_owned(), json!({ "hostLegacyRouting": true }));
    }
    if facts.loadbalancer.is_some() {
        values.insert("l2announcements".to_owned(), json!({ "enabled": true }));
        // One lease per announced Service is renewed every five seconds; the chart's limit of 10 requests per second is too low for that.
        values.insert("k8sClientRateLimit".to_owned(), json!({ "qps": 50, "burst": 100 }));
    }
    if facts.wants(Addon::GatewayApi) {
        // `auto` looks at the API server while rendering; the CRDs are there, so the answer is known.
        values.insert(
            "gatewayAPI".to_owned(),
            json!({ "enabled": true, "gatewayClass": { "create": "true" } }),
        );
    }
    if let Some(minor) = &facts.first_cilium_minor {
        values.insert("upgradeCompatibility".to_owned(), json!(minor));
    }
    Value::Object(values)
}

fn common_values(facts: &AddonFacts) -> Map<String, Value> {
    let everywhere = json!([{ "operator": "Exists" }]);
    let endpoint = job_endpoint(facts.distro);
    let mut operator = json!({ "replicas": facts.replicas(), "rollOutPods": true });
    if has_external_cloud_provider(facts) {
        // The cloud controller waits for the network and the network for the operator: the operator must tolerate `uninitialized`.
        operator["tolerations"] = everywhere.clone();
    }
    let values = json!({
        "cluster": { "name": facts.cluster },
        "ipam": { "mode": "kubernetes" },
        "kubeProxyReplacement": true,
        "k8sServiceHost": endpoint.host,
        "k8sServicePort": endpoint.port,
        "operator": operator,
        "rollOutCiliumPods": true,
        // Helm waits for the certificate Job, also before the first worker has joined: it must run on tainted nodes.
        "certgen": { "tolerations": everywhere },
        // Certificates made by Helm expire after a year and are renewed only by the next upgrade.
        "hubble": { "tls": { "auto": { "method": "cronJob" } } },
    });
    match values {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The host mounts cgroups itself and does not let pods load kernel modules.
fn restricted_host(values: &mut Map<String, Value>) {
    values.insert(
        "cgroup".to_owned(),
        json!({ "autoMount": { "enabled": false }, "hostRoot": "/sys/fs/cgroup" }),
    );
    values.insert(
        "securityContext".to_owned(),
        json!({ "capabilities": {
            "ciliumAgent": [
                "CHOWN", "KILL", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "SYS_ADMIN", "SYS_RESOURCE", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID",
            ],
            "cleanCiliumState": ["NET_ADMIN", "SYS_ADMIN", "SYS_RESOURCE"],
        } }),
    );
}

/// Values that keep Cilium from working on this cluster. They warn, they do not refuse: a user may know better.
fn judge(facts: &AddonFacts, values: &Value) -> Vec<ValueWarning> {
    let mut warnings = cluster_warnings(facts, values);
    if facts.distro == Distro::Talos {
        warnings.extend(host_warnings(facts, values));
    }
    warnings
}

fn cluster_warnings(facts: &AddonFacts, values: &Value) -> Vec<ValueWarning> {
    let mut warnings = Vec::new();
    let tolerates_all = |path: &str| {
        let list = at(values, path).and_then(Value::as_array);
        list.is_some_and(|list| list.contains(&json!({ "operator": "Exists" })))
    };
    if !tolerates_all("certgen.tolerations") {
        let why = "Helm waits for the certificate Job, which then cannot run while every node is tainted";
        warnings.push(ValueWarning::new("certgen.tolerations", why));
    }
    if has_external_cloud_provider(facts) && !tolerates_all("operator.tolerations") {
        let why = "the operator then waits for the cloud controller, and the cloud controller for the network";
        warnings.push(ValueWarning::new("operator.tolerations", why));
    }
    if facts.loadbalancer.is_some() && at(values, "l2announcements.enabled") != Some(&Value::Bool(true)) {
        let why = "`loadbalancer.pool` is announced only with it";
        warnings.push(ValueWarning::new("l2announcements.enabled", why));
    }
    if facts.nodes() == 1
        && at(values, "operator.replicas")
            .and_then(Value::as_u64)
            .is_some_and(|count| count > 1)
    {
        let why = "the operator uses host ports, so a second replica stays Pending on one node";
        warnings.push(ValueWarning::new("operator.replicas", why));
    }
    warnings
}

fn host_warnings(facts: &AddonFacts, values: &Value) -> Vec<ValueWarning> {
    let mut warnings = Vec::new();
    let is = |path: &str, wanted: &Value| at(values, path) == Some(wanted);
    if at(values, "cgroup.automount").is_some() {
        let why = "the key is `autoMount`; this spelling has no effect";
        warnings.push(ValueWarning::new("cgroup.automount", why));
    }
    if !is("cgroup.autoMount.enabled", &json!(false)) || !is("cgroup.hostRoot", &json!("/sys/fs/cgroup")) {
        let why = "Talos mounts cgroups at /sys/fs/cgroup and refuses another mount";
        warnings.push(ValueWarning::new("cgroup", why));
    }
    if !is("ipam.mode", &json!("kubernetes")) {
        let why = "Talos gives each Node its pod network; another mode ignores it";
        warnings.push(ValueWarning::new("ipam.mode", why));
    }
    for part in ["ciliumAgent", "cleanCiliumState"] {
        let path = format!("securityContext.capabilities.{part}");
        let list = at(values, &path).and_then(Value::as_array);
        if list.is_none_or(|list| list.contains(&json!("SYS_MODULE"))) {
            warnings.push(ValueWarning::new(&path, "Talos does not start containers with SYS_MODULE"));
        }
    }
    // The chart accepts a boolean and a string.
    let replaces = is("kubeProxyReplacement", &json!(true)) || is("kubeProxyReplacement", &json!("true"));
    if !replaces {
        let why = "kube-proxy is off in the machine config, so services have no addresses without it";
        warnings.push(ValueWarning::new("kubeProxyReplacement", why));
    }
    let masquerades = is("bpf.masquerade", &json!(true));
    if facts.forwards_dns_to_host && masquerades && !is("bpf.hostLegacyRouting", &json!(true)) {
        let why = "with bpf.masquerade the answers of the host's DNS resolver are dropped";
        warnings.push(ValueWarning::new("bpf.hostLegacyRouting", why));
    }
    warnings
}

/// One upgrade of Cilium on the way to the wanted version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CiliumHop {
    /// Installed and wanted are the same version.
    None,
    /// Upgrade to this version next. Each hop is settled before the following one is planned.
    To(String),
    Refused(HopRefusal),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HopRefusal {
    /// Cilium does not support going back over a minor.
    Downgrade,
    /// A minor on the way is not in this binary's list, so its newest patch is not known.
    UnknownMinor(u64, u64),
}

/// The next version on the way from `installed` to `wanted`: one minor at a time, each to its newest known patch.
pub fn cilium_hop(installed: &str, wanted: &str) -> CiliumHop {
    let (from, to) = (minor_number(installed), minor_number(wanted));
    if installed == wanted {
        return CiliumHop::None;
    }
    if from > to {
        return CiliumHop::Refused(HopRefusal::Downgrade);
    }
    let next = (from.0, from.1 + 1);
    // Within a minor, and for the last step, the wanted patch itself is the target.
    if from == to || next == to {
        return CiliumHop::To(wanted.to_owned());
    }
    let newest = CILIUM.versions.iter().find(|version| minor_number(version) == next);
    newest.map_or(CiliumHop::Refused(HopRefusal::UnknownMinor(next.0, next.1)), |version| {
        CiliumHop::To((*version).to_owned())
    })
}
