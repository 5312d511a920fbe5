//! CRDs of the Gateway API and of the Prometheus operator, and kube-vip.

use serde_json::{Value, json};

use super::{
    CatalogueEntry, CrdDelivery, EntrySource, Expect, InUse, LateInstall, Layer, MachineNeeds, ReadyCheck, RemovalPolicy,
    Workload, WorkloadKind, job_or_helm_chart, manifests, no_crds, no_values, no_warnings,
};
use crate::addon::facts::AddonFacts;

pub(super) static GATEWAY_API: CatalogueEntry = CatalogueEntry {
    name: "gateway-api",
    release: "gateway-api",
    // CRDs have no namespace; the inventory of the manifests is kept here.
    namespace: "kube-system",
    pod_security: None,
    layer: Layer::Crds,
    source: EntrySource::Manifest(
        "https://github.com/kubernetes-sigs/gateway-api/releases/download/v{version}/standard-install.yaml",
    ),
    versions: &["1.1.0", "1.2.1", "1.3.0", "1.4.0", "1.6.1"],
    crds: CrdDelivery::Manifest,
    secret: None,
    hooks: &[],
    workloads: &[],
    checks: &[
        ReadyCheck::Crd("gatewayclasses.gateway.networking.k8s.io"),
        ReadyCheck::Crd("gateways.gateway.networking.k8s.io"),
        ReadyCheck::Crd("httproutes.gateway.networking.k8s.io"),
        ReadyCheck::Crd("grpcroutes.gateway.networking.k8s.io"),
        ReadyCheck::Crd("referencegrants.gateway.networking.k8s.io"),
    ],
    late: LateInstall::Allowed,
    removal: RemovalPolicy::WhileUnused(&[InUse::CustomResources("gateway.networking.k8s.io")]),
    machine: MachineNeeds::NONE,
    delivery: manifests,
    probes_crds: no_crds,
    values: no_values,
    judge: no_warnings,
};

pub(super) static PROMETHEUS_CRDS: CatalogueEntry = CatalogueEntry {
    name: "prometheus-crds",
    release: "prometheus-crds",
    namespace: "kube-system",
    pod_security: None,
    layer: Layer::Crds,
    // Plain YAML: as a chart, the release Secret comes near the limit of 1 MiB.
    source: EntrySource::Manifest(
        "https://github.com/prometheus-operator/prometheus-operator/releases/download/v{version}/stripped-down-crds.yaml",
    ),
    versions: &["0.93.0"],
    crds: CrdDelivery::Manifest,
    secret: None,
    hooks: &[],
    workloads: &[],
    checks: &[
        ReadyCheck::Crd("alertmanagerconfigs.monitoring.coreos.com"),
        ReadyCheck::Crd("alertmanagers.monitoring.coreos.com"),
        ReadyCheck::Crd("podmonitors.monitoring.coreos.com"),
        ReadyCheck::Crd("probes.monitoring.coreos.com"),
        ReadyCheck::Crd("prometheusagents.monitoring.coreos.com"),
        ReadyCheck::Crd("prometheuses.monitoring.coreos.com"),
        ReadyCheck::Crd("prometheusrules.monitoring.coreos.com"),
        ReadyCheck::Crd("scrapeconfigs.monitoring.coreos.com"),
        ReadyCheck::Crd("servicemonitors.monitoring.coreos.com"),
        ReadyCheck::Crd("thanosrulers.monitoring.coreos.com"),
    ],
    late: LateInstall::Allowed,
    removal: RemovalPolicy::WhileUnused(&[InUse::CustomResources("monitoring.coreos.com")]),
    machine: MachineNeeds::NONE,
    delivery: manifests,
    probes_crds: no_crds,
    values: no_values,
    judge: no_warnings,
};

pub(super) static KUBE_VIP: CatalogueEntry = CatalogueEntry {
    name: "kube-vip",
    // The control-plane VIP of RKE2 and k3s is a DaemonSet `kube-vip` that mainstay writes itself: this release must not meet its names.
    release: "kube-vip-services",
    namespace: "kube-system",
    pod_security: None,
    layer: Layer::Addresses,
    source: EntrySource::Repository {
        url: "https://kube-vip.github.io/helm-charts",
        chart: "kube-vip",
    },
    versions: &["0.9.9"],
    crds: CrdDelivery::None,
    secret: None,
    hooks: &[],
    workloads: &[Workload {
        kind: WorkloadKind::DaemonSet,
        name: "kube-vip-services",
        expect: Expect::EveryNode,
    }],
    checks: &[],
    late: LateInstall::Allowed,
    removal: RemovalPolicy::WhileUnused(&[InUse::LoadBalancers]),
    machine: MachineNeeds::NONE,
    delivery: job_or_helm_chart,
    probes_crds: no_crds,
    values: kube_vip_values,
    judge: no_warnings,
};

fn kube_vip_values(_: &AddonFacts) -> Value {
    json!({
        // All object names follow this one.
        "nameOverride": "kube-vip-services",
        "env": {
            "vip_arp": "true",
            // The control plane has its own VIP; a second leader for it would fight over the address.
            "cp_enable": "false",
            "svc_enable": "true",
            // One leader per Service: a lost node moves its own Services only.
            "svc_election": "true",
            "lb_enable": "false",
            "vip_subnet": "32",
            // The default port 2112 of the host may be taken by the DaemonSet of the control plane.
            "prometheus_server": ":2113",
        },
        "tolerations": [{ "operator": "Exists" }],
        "priorityClassName": "system-node-critical",
    })
}

/// Gives services their addresses from the pool: kube-vip itself only announces them. Installed with kube-vip where there is a pool.
pub static KUBE_VIP_CLOUD_PROVIDER: CatalogueEntry = CatalogueEntry {
    name: "kube-vip-cloud-provider",
    release: "kube-vip-cloud-provider",
    namespace: "kube-system",
    pod_security: None,
    layer: Layer::Addresses,
    source: EntrySource::Repository {
        url: "https://kube-vip.github.io/helm-charts",
        chart: "kube-vip-cloud-provider",
    },
    versions: &["0.2.10"],
    crds: CrdDelivery::None,
    secret: None,
    hooks: &[],
    workloads: &[Workload {
        kind: WorkloadKind::Deployment,
        name: "kube-vip-cloud-provider",
        expect: Expect::AtLeastOne,
    }],
    checks: &[],
    late: LateInstall::Allowed,
    removal: RemovalPolicy::WhileUnused(&[InUse::LoadBalancers]),
    machine: MachineNeeds::NONE,
    delivery: job_or_helm_chart,
    probes_crds: no_crds,
    values: cloud_provider_values,
    judge: no_warnings,
};

fn cloud_provider_values(facts: &AddonFacts) -> Value {
    match facts.loadbalancer {
        Some(pool) => json!({ "cm": { "data": { "range-global": format!("{}-{}", pool.first, pool.last) } } }),
        None => json!({}),
    }
}
