//! Small charts under the names, versions and addresses of the real ones. Each has the workloads, hooks and definitions that waiters look at.

use serde_json::{Value, json};

use super::archive::Chart;

/// Names that resolve to the chart servers of a world.
pub(crate) const HOSTS: [&str; 11] = [
    "quay.io",
    "ghcr.io",
    "helm.cilium.io",
    "kubernetes-sigs.github.io",
    "charts.longhorn.io",
    "charts.jetstack.io",
    "traefik.github.io",
    "kube-vip.github.io",
    "pkgs.tailscale.com",
    "vmware-tanzu.github.io",
    "prometheus-community.github.io",
];

/// Where a chart is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Host and repository.
    Oci(&'static str, &'static str),
    /// Host and the folder of `index.yaml`.
    Http(&'static str, &'static str),
}

/// A chart of the catalogue.
struct Entry {
    name: &'static str,
    versions: &'static [&'static str],
    places: &'static [Place],
    /// Kind and name of each workload.
    workloads: &'static [(&'static str, &'static str)],
    /// Group, plural and kind of each definition, whether it is namespaced, and its version.
    crds: &'static [(&'static str, &'static str, &'static str, bool, &'static str)],
}

const FLUX: &str = "fluxcd.controlplane.io";

const ENTRIES: &[Entry] = &[
    Entry {
        name: "cilium",
        versions: &["1.16.19", "1.17.15", "1.18.3", "1.18.13", "1.19.7", "1.20.1"],
        places: &[
            Place::Oci("quay.io", "cilium/charts/cilium"),
            Place::Http("helm.cilium.io", ""),
        ],
        workloads: &[
            ("DaemonSet", "cilium"),
            ("DaemonSet", "cilium-envoy"),
            ("Deployment", "cilium-operator"),
        ],
        crds: &[],
    },
    Entry {
        name: "metrics-server",
        versions: &["3.12.2", "3.13.0", "3.13.1"],
        places: &[Place::Http("kubernetes-sigs.github.io", "metrics-server")],
        workloads: &[("Deployment", "metrics-server")],
        crds: &[],
    },
    Entry {
        name: "cert-manager",
        versions: &["v1.20.3", "v1.21.1"],
        places: &[
            Place::Oci("quay.io", "jetstack/charts/cert-manager"),
            Place::Http("charts.jetstack.io", ""),
        ],
        workloads: &[
            ("Deployment", "cert-manager"),
            ("Deployment", "cert-manager-webhook"),
            ("Deployment", "cert-manager-cainjector"),
        ],
        crds: &[
            ("cert-manager.io", "certificates", "Certificate", true, "v1"),
            ("cert-manager.io", "issuers", "Issuer", true, "v1"),
            ("cert-manager.io", "clusterissuers", "ClusterIssuer", false, "v1"),
        ],
    },
    Entry {
        name: "proxmox-cloud-controller-manager",
        versions: &["0.2.26", "0.2.27"],
        places: &[Place::Oci("ghcr.io", "sergelogvinov/charts/proxmox-cloud-controller-manager")],
        workloads: &[("Deployment", "proxmox-cloud-controller-manager")],
        crds: &[],
    },
    Entry {
        name: "proxmox-csi-plugin",
        versions: &["0.5.8", "0.5.9"],
        places: &[Place::Oci("ghcr.io", "sergelogvinov/charts/proxmox-csi-plugin")],
        workloads: &[
            ("Deployment", "proxmox-csi-plugin-controller"),
            ("DaemonSet", "proxmox-csi-plugin-node"),
        ],
        crds: &[],
    },
    Entry {
        name: "talos-cloud-controller-manager",
        versions: &["0.5.4"],
        places: &[Place::Oci("ghcr.io", "siderolabs/charts/talos-cloud-controller-manager")],
        workloads: &[("Deployment", "talos-cloud-controller-manager")],
        crds: &[],
    },
    Entry {
        name: "flux-operator",
        versions: &["0.58.1"],
        places: &[Place::Oci("ghcr.io", "controlplaneio-fluxcd/charts/flux-operator")],
        workloads: &[("Deployment", "flux-operator")],
        crds: &[
            (FLUX, "fluxinstances", "FluxInstance", true, "v1"),
            ("source.toolkit.fluxcd.io", "gitrepositories", "GitRepository", true, "v1"),
            ("source.toolkit.fluxcd.io", "ocirepositories", "OCIRepository", true, "v1"),
            ("kustomize.toolkit.fluxcd.io", "kustomizations", "Kustomization", true, "v1"),
            ("helm.toolkit.fluxcd.io", "helmreleases", "HelmRelease", true, "v2"),
        ],
    },
    Entry {
        name: "argo-cd",
        versions: &["10.1.1", "10.3.0"],
        places: &[Place::Oci("ghcr.io", "argoproj/argo-helm/argo-cd")],
        workloads: &[
            ("Deployment", "argocd-server"),
            ("Deployment", "argocd-repo-server"),
            ("Deployment", "argocd-redis"),
            ("Deployment", "argocd-applicationset-controller"),
            ("StatefulSet", "argocd-application-controller"),
        ],
        crds: &[
            ("argoproj.io", "applications", "Application", true, "v1alpha1"),
            ("argoproj.io", "appprojects", "AppProject", true, "v1alpha1"),
        ],
    },
    Entry {
        name: "longhorn",
        versions: &["1.12.0", "1.12.1"],
        places: &[Place::Http("charts.longhorn.io", "")],
        workloads: &[("DaemonSet", "longhorn-manager"), ("Deployment", "longhorn-driver-deployer")],
        crds: &[
            ("longhorn.io", "nodes", "Node", true, "v1beta2"),
            ("longhorn.io", "settings", "Setting", true, "v1beta2"),
        ],
    },
    Entry {
        name: "traefik",
        versions: &["41.2.0", "41.3.0"],
        places: &[
            Place::Oci("ghcr.io", "traefik/helm/traefik"),
            Place::Http("traefik.github.io", "charts"),
        ],
        workloads: &[("Deployment", "traefik")],
        crds: &[("traefik.io", "ingressroutes", "IngressRoute", true, "v1alpha1")],
    },
    Entry {
        name: "kube-vip",
        versions: &["0.8.2", "0.9.0"],
        places: &[Place::Http("kube-vip.github.io", "helm-charts")],
        workloads: &[("DaemonSet", "kube-vip")],
        crds: &[],
    },
    Entry {
        name: "prometheus-operator-crds",
        versions: &["31.0.1"],
        places: &[
            Place::Oci("ghcr.io", "prometheus-community/charts/prometheus-operator-crds"),
            Place::Http("prometheus-community.github.io", "helm-charts"),
        ],
        workloads: &[],
        crds: &[
            ("monitoring.coreos.com", "servicemonitors", "ServiceMonitor", true, "v1"),
            ("monitoring.coreos.com", "podmonitors", "PodMonitor", true, "v1"),
        ],
    },
    Entry {
        name: "tailscale-operator",
        versions: &["1.102.2"],
        places: &[Place::Http("pkgs.tailscale.com", "helmcharts")],
        workloads: &[("Deployment", "operator")],
        crds: &[],
    },
    Entry {
        name: "velero",
        versions: &["12.1.0"],
        places: &[Place::Http("vmware-tanzu.github.io", "helm-charts")],
        workloads: &[("Deployment", "velero")],
        crds: &[],
    },
];

/// Every chart and where it is published.
pub(crate) fn published() -> impl Iterator<Item = (Place, &'static str, &'static [&'static str])> {
    ENTRIES
        .iter()
        .flat_map(|entry| entry.places.iter().map(|place| (*place, entry.name, entry.versions)))
}

pub(crate) fn chart(name: &str, version: &str) -> Option<Chart> {
    let entry = ENTRIES.iter().find(|entry| entry.name == name)?;
    let version = entry.versions.iter().find(|known| **known == version)?;
    let mut templates: Vec<(String, String)> = entry
        .workloads
        .iter()
        .map(|(kind, name)| (format!("{name}.yaml"), workload(entry, kind, name, version)))
        .collect();
    templates.extend(extra(name));
    Some(Chart {
        metadata: json!({"apiVersion": "v2", "name": name, "version": version, "appVersion": version, "description": format!("{name} of the simulated world")}),
        values: values(name),
        schema: schema(name),
        templates,
        crds: entry.crds.iter().map(definition).collect(),
    })
}

/// Keys that the templates read, with the defaults of the real charts.
fn values(name: &str) -> Value {
    match name {
        "cilium" => {
            json!({"operator": {"replicas": 2, "tolerations": [{"operator": "Exists"}]}, "envoy": {"enabled": true}, "hubble": {"tls": {"auto": {"method": "helm"}}}, "certgen": {"tolerations": []}, "kubeProxyReplacement": "false", "ipam": {"mode": "cluster-pool"}})
        }
        "longhorn" => json!({"persistence": {"defaultClassReplicaCount": 3}, "defaultSettings": {}}),
        "cert-manager" => json!({"crds": {"enabled": false}, "startupapicheck": {"enabled": true}, "replicaCount": 1}),
        _ => json!({"replicas": 1}),
    }
}

/// Charts that judge their values; cilium's real schema does so too.
fn schema(name: &str) -> Value {
    match name {
        "cilium" => {
            json!({"type": "object", "properties": {"operator": {"type": "object", "properties": {"replicas": {"type": "integer"}}}, "envoy": {"type": "object", "properties": {"enabled": {"type": "boolean"}}}, "ipam": {"type": "object", "properties": {"mode": {"type": "string"}}}}})
        }
        "cert-manager" => {
            json!({"type": "object", "additionalProperties": true, "properties": {"replicaCount": {"type": "integer"}, "crds": {"type": "object"}}})
        }
        _ => Value::Null,
    }
}

fn workload(entry: &Entry, kind: &str, name: &str, version: &str) -> String {
    let labels = json!({"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": entry.name, "k8s-app": name});
    let is_host = matches!(entry.name, "cilium" | "kube-vip") || name.ends_with("-node") || name == "longhorn-manager";
    let mut spec = json!({"containers": [{"name": name, "image": format!("simulated.example/{}/{name}:{version}", entry.name)}]});
    if is_host {
        spec["hostNetwork"] = json!(true);
        spec["tolerations"] = json!([{"operator": "Exists"}]);
        spec["containers"][0]["securityContext"] = json!({"privileged": true});
    }
    if name == "proxmox-cloud-controller-manager" || name.starts_with("talos-cloud") {
        spec["tolerations"] = json!([{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}, {"key": "node.cloudprovider.kubernetes.io/uninitialized", "operator": "Exists"}]);
    }
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "{{ .Release.Namespace }}", "labels": labels},
        "spec": {"selector": {"matchLabels": {"k8s-app": name}}, "template": {"metadata": {"labels": labels, "annotations": {"checksum/config": "{{ .Release.Values }}"}}, "spec": spec}},
    });
    let mut replicas = "{{ .Values.replicas | default 1 }}";
    if name == "cilium-operator" {
        replicas = "{{ .Values.operator.replicas }}";
        object["spec"]["template"]["spec"]["tolerations"] = json!("TOLERATIONS");
    }
    if kind != "DaemonSet" {
        object["spec"]["replicas"] = json!("REPLICAS");
    }
    let text = object
        .to_string()
        .replace("\"REPLICAS\"", replicas)
        .replace("\"TOLERATIONS\"", "{{ toYaml .Values.operator.tolerations }}");
    match name {
        "cilium-envoy" => format!("{{{{ if .Values.envoy.enabled }}}}{text}{{{{ end }}}}\n"),
        _ => text + "\n",
    }
}

/// What a chart has besides workloads.
fn extra(name: &str) -> Vec<(String, String)> {
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    match name {
        // With certificates from a CronJob the chart runs it once after the install, and Helm waits for it.
        "cilium" => vec![file(
            "certgen.yaml",
            r#"{{ if eq .Values.hubble.tls.auto.method "cronJob" }}{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "hubble-generate-certs", "namespace": "{{ .Release.Namespace }}", "annotations": {"helm.sh/hook": "post-install,post-upgrade"}}, "spec": {"template": {"metadata": {"labels": {"k8s-app": "hubble-generate-certs"}}, "spec": {"hostNetwork": true, "restartPolicy": "OnFailure", "tolerations": {{ toYaml .Values.certgen.tolerations }}, "containers": [{"name": "certgen", "image": "simulated.example/cilium/certgen:v0.4.7"}]}}}}{{ end }}"#,
        )],
        "metrics-server" => vec![file(
            "api.yaml",
            r#"{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": {"group": "metrics.k8s.io", "version": "v1beta1", "service": {"name": "metrics-server", "namespace": "{{ .Release.Namespace }}"}}}"#,
        )],
        "proxmox-csi-plugin" => vec![
            file(
                "driver.yaml",
                r#"{"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "csi.proxmox.sinextra.dev"}, "spec": {"attachRequired": true}}"#,
            ),
            file(
                "class.yaml",
                r#"{{ if .Values.storageClass }}{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "proxmox"}, "provisioner": "csi.proxmox.sinextra.dev", "volumeBindingMode": "WaitForFirstConsumer"}{{ end }}"#,
            ),
        ],
        "longhorn" => vec![file(
            "driver.yaml",
            r#"{"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "driver.longhorn.io"}, "spec": {"attachRequired": true}}"#,
        )],
        "tailscale-operator" => vec![file(
            "secret.yaml",
            r#"{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "operator-oauth", "namespace": "{{ .Release.Namespace }}"}, "stringData": {"client_id": "{{ required "oauth.clientId is required" .Values.oauth.clientId }}"}}"#,
        )],
        _ => Vec::new(),
    }
}

fn definition((group, plural, kind, namespaced, version): &(&str, &str, &str, bool, &str)) -> String {
    let scope = if *namespaced { "Namespaced" } else { "Cluster" };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")}, "scope": scope,
            "versions": [{"name": version, "served": true, "storage": true, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    })
    .to_string()
        + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chart_of_the_catalogue_can_be_packed_and_rendered() {
        for (_, name, versions) in published() {
            for version in versions {
                let chart = Chart::unpack(&chart(name, version).expect("in the catalogue").pack()).expect("a chart");
                assert_eq!((chart.name(), chart.version()), (name, *version));
                let mut values = chart.values.clone();
                values["oauth"] = json!({"clientId": "x"});
                let context = json!({"Values": values, "Release": {"Name": name, "Namespace": "n", "Values": "0"}});
                for (file, text) in &chart.templates {
                    let rendered =
                        super::super::render(file, text, &context).unwrap_or_else(|error| panic!("{name} {file}: {error}"));
                    crate::yaml::parse(&rendered).unwrap_or_else(|error| panic!("{name} {file}: {error}\n{rendered}"));
                }
            }
        }
        assert!(chart("cilium", "9.9.9").is_none());
    }
}
