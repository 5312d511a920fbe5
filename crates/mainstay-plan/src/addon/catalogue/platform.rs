//! Metrics, certificates, ingress, tailnet and GitOps.

use mainstay_spec::{Addon, Distro, GitAuth, GitOpsSpec};
use serde_json::{Value, json};

use super::{
    CatalogueEntry, ChartHook, CrdDelivery, Delivery, EntrySecret, EntrySource, Expect, HookMoment, InUse, LateInstall, Layer,
    MachineNeeds, PodSecurity, ReadyCheck, RemovalPolicy, Workload, WorkloadKind, job_or_helm_chart, manifests, no_crds,
    no_values, no_warnings,
};
use crate::addon::facts::AddonFacts;
use crate::addon::values::{ValueWarning, at};

const fn deployment(name: &'static str) -> Workload {
    Workload {
        kind: WorkloadKind::Deployment,
        name,
        expect: Expect::Replicas,
    }
}

pub(super) static METRICS_SERVER: CatalogueEntry = CatalogueEntry {
    name: "metrics-server",
    release: "metrics-server",
    namespace: "kube-system",
    pod_security: None,
    layer: Layer::Storage,
    source: EntrySource::Repository {
        url: "https://kubernetes-sigs.github.io/metrics-server/",
        chart: "metrics-server",
    },
    versions: &["3.13.1"],
    crds: CrdDelivery::None,
    secret: None,
    hooks: &[],
    workloads: &[deployment("metrics-server")],
    checks: &[ReadyCheck::ApiService("v1beta1.metrics.k8s.io")],
    late: LateInstall::Allowed,
    removal: RemovalPolicy::Free,
    // Together with an approver only: rotation without one leaves kubelets without a serving certificate.
    machine: MachineNeeds {
        kubelet_args: &[("rotate-server-certificates", "true")],
        ..MachineNeeds::NONE
    },
    delivery: metrics_server_delivery,
    probes_crds: no_crds,
    values: metrics_server_values,
    judge: metrics_server_warnings,
};

fn metrics_server_delivery(distro: Distro) -> Delivery {
    match distro {
        Distro::Talos => Delivery::Job,
        Distro::Rke2 => Delivery::Packaged {
            chart: "rke2-metrics-server",
            since_start: false,
        },
        Distro::K3s => Delivery::BuiltIn { by: "k3s" },
    }
}

fn metrics_server_values(facts: &AddonFacts) -> Value {
    match facts.distro {
        Distro::Talos => json!({ "replicas": facts.replicas() }),
        // The packaged chart has values of its own.
        Distro::Rke2 | Distro::K3s => json!({}),
    }
}

fn metrics_server_warnings(facts: &AddonFacts, values: &Value) -> Vec<ValueWarning> {
    let args = at(values, "args").and_then(Value::as_array);
    let is_insecure = args.is_some_and(|args| args.contains(&json!("--kubelet-insecure-tls")));
    if facts.distro == Distro::Talos && is_insecure {
        let why = "mainstay has kubelet serving certificates signed, so this only switches the check off";
        return vec![ValueWarning::new("args", why)];
    }
    Vec::new()
}

/// Signs kubelet serving certificates after `up` has ended. Installed with metrics-server, unless talos-ccm approves them.
pub static KUBELET_CERT_APPROVER: CatalogueEntry = CatalogueEntry {
    name: "kubelet-serving-cert-approver",
    release: "kubelet-serving-cert-approver",
    namespace: "kubelet-serving-cert-approver",
    // The manifest brings its namespace and the label.
    pod_security: None,
    layer: Layer::Cloud,
    source: EntrySource::Manifest(
        "https://raw.githubusercontent.com/alex1989hu/kubelet-serving-cert-approver/v{version}/deploy/standalone-install.yaml",
    ),
    versions: &["0.11.0"],
    crds: CrdDelivery::None,
    secret: None,
    hooks: &[],
    workloads: &[deployment("kubelet-serving-cert-approver")],
    checks: &[],
    late: LateInstall::Allowed,
    removal: RemovalPolicy::Free,
    machine: MachineNeeds::NONE,
    delivery: manifests,
    probes_crds: no_crds,
    values: no_values,
    judge: no_warnings,
};

pub(super) static CERT_MANAGER: CatalogueEntry = CatalogueEntry {
    name: "cert-manager",
    release: "cert-manager",
    namespace: "cert-manager",
    pod_security: None,
    layer: Layer::Ingress,
    source: EntrySource::Oci("oci://quay.io/jetstack/charts/cert-manager"),
    versions: &["v1.21.1"],
    crds: CrdDelivery::Template,
    secret: None,
    hooks: &[],
    workloads: &[
        deployment("cert-manager"),
        deployment("cert-manager-webhook"),
        deployment("cert-manager-cainjector"),
    ],
    checks: &[ReadyCheck::DryRun("Issuer")],
    late: LateInstall::Allowed,
    removal: RemovalPolicy::WhileUnused(&[InUse::CustomResources("cert-manager.io")]),
    machine: MachineNeeds::NONE,
    delivery: job_or_helm_chart,
    probes_crds: gateway_crds,
    values: cert_manager_values,
    judge: no_warnings,
};

/// Controllers that look for the Gateway API once, when they start.
fn gateway_crds(facts: &AddonFacts) -> Vec<&'static str> {
    if facts.wants(Addon::GatewayApi) {
        vec!["gateways.gateway.networking.k8s.io", "httproutes.gateway.networking.k8s.io"]
    } else {
        Vec::new()
    }
}

fn cert_manager_values(facts: &AddonFacts) -> Value {
    let mut values = json!({
        "crds": { "enabled": true, "keep": true },
        // The hook Job fails on slow clusters; mainstay waits for the webhook itself.
        "startupapicheck": { "enabled": false },
    });
    if facts.wants(Addon::GatewayApi) {
        values["config"] = json!({
            "apiVersion": "controller.config.cert-manager.io/v1alpha1",
            "kind": "ControllerConfiguration",
            "enableGatewayAPI": true,
        });
    }
    values
}

pub(super) static TRAEFIK: CatalogueEntry = CatalogueEntry {
    name: "traefik",
    release: "traefik",
    namespace: "traefik",
    pod_security: None,
    layer: Layer::Ingress,
    source: EntrySource::Oci("oci://ghcr.io/traefik/helm/traefik"),
    versions: &["41.3.0"],
    crds: CrdDelivery::Archive,
    secret: None,
    hooks: &[],
    workloads: &[deployment("traefik")],
    checks: &[ReadyCheck::ServiceAddress("traefik")],
    late: LateInstall::Allowed,
    removal: RemovalPolicy::WhileUnused(&[InUse::CustomResources("traefik.io"), InUse::LoadBalancers]),
    machine: MachineNeeds::NONE,
    delivery: traefik_delivery,
    probes_crds: gateway_crds,
    values: traefik_values,
    judge: no_warnings,
};

fn traefik_delivery(distro: Distro) -> Delivery {
    match distro {
        Distro::Talos => Delivery::Job,
        Distro::Rke2 => Delivery::HelmChart { replaces: None },
        // k3s runs one of its own: it is configured, never installed a second time.
        Distro::K3s => Delivery::Packaged {
            chart: "traefik",
            since_start: false,
        },
    }
}

fn traefik_values(facts: &AddonFacts) -> Value {
    let replicas = facts.workers.len().clamp(1, 2);
    let mut values = json!({ "deployment": { "replicas": replicas } });
    if facts.wants(Addon::GatewayApi) {
        values["providers"] = json!({ "kubernetesGateway": { "enabled": true } });
    }
    values
}

pub(super) static TAILSCALE_OPERATOR: CatalogueEntry = CatalogueEntry {
    name: "tailscale-operator",
    release: "tailscale-operator",
    namespace: "tailscale",
    // Proxy pods set sysctls in a privileged init container.
    pod_security: Some(PodSecurity::Privileged),
    layer: Layer::Ingress,
    source: EntrySource::Repository {
        url: "https://pkgs.tailscale.com/helmcharts",
        chart: "tailscale-operator",
    },
    versions: &["1.102.3"],
    crds: CrdDelivery::Template,
    secret: Some(EntrySecret {
        name: "operator-oauth",
        keys: &[("client_id", "client-id"), ("client_secret", "client-secret")],
    }),
    hooks: &[],
    workloads: &[deployment("operator")],
    checks: &[],
    late: LateInstall::Allowed,
    removal: RemovalPolicy::WhileUnused(&[InUse::CustomResources("tailscale.com")]),
    machine: MachineNeeds::NONE,
    delivery: job_or_helm_chart,
    probes_crds: no_crds,
    values: no_values,
    judge: no_warnings,
};

pub(super) static FLUX: CatalogueEntry = CatalogueEntry {
    name: "flux",
    release: "flux-operator",
    namespace: "flux-system",
    pod_security: None,
    layer: Layer::GitOps,
    source: EntrySource::Oci("oci://ghcr.io/controlplaneio-fluxcd/charts/flux-operator"),
    versions: &["0.49.0"],
    crds: CrdDelivery::Template,
    secret: None,
    hooks: &[],
    workloads: &[deployment("flux-operator")],
    checks: &[
        ReadyCheck::Condition {
            kind: "FluxInstance",
            namespace: Some("flux-system"),
            name: "flux",
            condition: "Ready",
        },
        ReadyCheck::Condition {
            kind: "Kustomization",
            namespace: Some("flux-system"),
            name: "flux-system",
            condition: "Ready",
        },
    ],
    late: LateInstall::Allowed,
    removal: RemovalPolicy::WhileUnused(&[InUse::CustomResources("fluxcd.controlplane.io")]),
    machine: MachineNeeds::NONE,
    delivery: job_or_helm_chart,
    probes_crds: no_crds,
    values: flux_values,
    judge: no_warnings,
};

fn flux_values(_: &AddonFacts) -> Value {
    json!({ "installCRDs": true })
}

pub(super) static ARGOCD: CatalogueEntry = CatalogueEntry {
    name: "argocd",
    release: "argocd",
    namespace: "argocd",
    pod_security: None,
    layer: Layer::GitOps,
    source: EntrySource::Oci("oci://ghcr.io/argoproj/argo-helm/argo-cd"),
    versions: &["10.1.1"],
    crds: CrdDelivery::Template,
    secret: None,
    hooks: &[ChartHook {
        job: "argocd-redis-secret-init",
        on: HookMoment::InstallAndUpgrade,
        tolerations: "redisSecretInit.tolerations",
        minors: None,
    }],
    workloads: &[
        deployment("argocd-server"),
        deployment("argocd-repo-server"),
        deployment("argocd-redis"),
        deployment("argocd-applicationset-controller"),
        Workload {
            kind: WorkloadKind::StatefulSet,
            name: "argocd-application-controller",
            expect: Expect::Replicas,
        },
    ],
    checks: &[ReadyCheck::Crd("applications.argoproj.io")],
    late: LateInstall::Allowed,
    removal: RemovalPolicy::WhileUnused(&[InUse::CustomResources("argoproj.io")]),
    machine: MachineNeeds::NONE,
    delivery: job_or_helm_chart,
    probes_crds: no_crds,
    values: argocd_values,
    judge: no_warnings,
};

fn argocd_values(_: &AddonFacts) -> Value {
    // Deleting the release must not delete every Application with what it deployed.
    json!({ "crds": { "install": true, "keep": true } })
}

/// The object that makes the operator install Flux and follow the repository. Its name must be `flux`.
pub fn flux_instance(git: &GitOpsSpec) -> Value {
    let mut sync = json!({
        "kind": "GitRepository",
        "url": git.url.as_str(),
        "ref": format!("refs/heads/{}", git.branch),
        "path": git.path,
        "interval": "1m",
    });
    if git.auth != GitAuth::None {
        sync["pullSecret"] = json!("flux-system");
    }
    let mut spec = json!({
        // Without an artifact the operator uses the manifests that it contains: no further download.
        "distribution": { "version": "2.x", "registry": "ghcr.io/fluxcd" },
        "components": ["source-controller", "kustomize-controller", "helm-controller", "notification-controller"],
        "cluster": { "type": "kubernetes", "size": "small", "multitenant": false, "networkPolicy": true },
        "sync": sync,
    });
    if git.age_key {
        // Decryption is no field of `sync`.
        let patch = "- op: add\n  path: /spec/decryption\n  value: { provider: sops, secretRef: { name: sops-age } }\n";
        spec["kustomize"] = json!({ "patches": [{ "target": { "kind": "Kustomization" }, "patch": patch }] });
    }
    json!({
        "apiVersion": "fluxcd.controlplane.io/v1",
        "kind": "FluxInstance",
        "metadata": { "name": "flux", "namespace": "flux-system" },
        "spec": spec,
    })
}

/// The Application that follows the repository. Without a finalizer: deleting it leaves what it deployed.
pub fn argocd_root(git: &GitOpsSpec) -> Value {
    json!({
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": { "name": "root", "namespace": "argocd" },
        "spec": {
            "project": "default",
            "source": { "repoURL": git.url.as_str(), "targetRevision": git.branch, "path": git.path },
            "destination": { "server": "https://kubernetes.default.svc", "namespace": "argocd" },
            "syncPolicy": {
                "automated": { "prune": true, "selfHeal": true },
                "syncOptions": ["CreateNamespace=true", "ServerSideApply=true"],
            },
        },
    })
}
