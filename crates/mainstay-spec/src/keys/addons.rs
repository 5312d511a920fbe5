//! What is installed on the cluster, and what the machines need besides Kubernetes.

use super::words;
use crate::key::{Anything, Flag, Inside, Key, List, Section, Unread};
use crate::naming;

pub(crate) static IMAGE: Section = Section {
    keys: &[&Key::<bool>::new(
        "upload",
        &Flag,
        "Upload from here, for a PVE without internet.",
    )],
};

pub(crate) static TAILSCALE: Section = Section {
    keys: &[
        &Key::new("login-server", &words::HTTPS, "The Headscale server, if not Tailscale's own.")
            .default("https://controlplane.tailscale.com"),
        &Key::<Unread>::new("auth-key", &Anything, "")
            .never(
                "cluster.yaml is meant for git, and whoever reads an auth key can join the tailnet.",
                "take it out, revoke it if the file was shared, and set TS_AUTHKEY or put it into the secrets file.",
            )
            .also(&["authkey", "auth_key", "key"]),
        &Key::new("tags", &List(&naming::TEXT), "Tailscale tags of the machines."),
        &Key::new("routes", &List(&words::CIDR), "Routes that the machines advertise."),
    ],
};

const fn addon(name: &'static str, doc: &'static str) -> Key<Inside> {
    Key::new(name, &ADDON, doc)
}

pub(crate) static ADDONS: Section = Section {
    keys: &[
        &addon("cilium", "Pod network with kube-proxy replacement."),
        &addon(
            "proxmox-ccm",
            "Cloud controller manager for Proxmox, with a PVE account of its own.",
        ),
        &addon("proxmox-csi", "Volumes on PVE storages, with a PVE account of its own."),
        &addon("talos-ccm", "Cloud controller manager for Talos."),
        &addon("metrics-server", "`kubectl top`."),
        &addon("prometheus-crds", "Custom resources of the Prometheus operator."),
        &addon("gateway-api", "Custom resources of the Gateway API."),
        &addon("longhorn", "Replicated volumes on the machines' own disks."),
        &addon("cert-manager", "Certificates."),
        &addon("traefik", "Ingress."),
        &Key::new("flux", &GITOPS, "GitOps with Flux."),
        &Key::new("argocd", &GITOPS, "GitOps with Argo CD.").also(&["argo-cd"]),
    ],
};

static ADDON: Section = Section {
    keys: &[
        &Key::new("version", &words::VERSION, "Chart version."),
        &Key::new("namespace", &naming::KUBERNETES_NAME, "Namespace."),
        &Key::<Unread>::new("values", &Anything, "Helm values."),
    ],
};

static GITOPS: Section = Section {
    keys: &[
        &Key::new("version", &words::VERSION, "Version."),
        &Key::new("url", &naming::TEXT, "Repository.").required(),
        &Key::new("branch", &naming::TEXT, "Branch.").default("main"),
        &Key::new("path", &naming::TEXT, "Directory in the repository.").default("."),
        &Key::<Unread>::new("values", &Anything, "Helm values."),
    ],
};

pub(crate) static CHART: Section = Section {
    keys: &[
        &Key::new("name", &naming::KUBERNETES_NAME, "Release name.").required(),
        &Key::new("chart", &naming::TEXT, "`oci://…`, or the chart's name in `repo`.").required(),
        &Key::new("repo", &words::HTTPS, "Chart repository."),
        &Key::new("version", &words::VERSION, "Chart version."),
        &Key::new("namespace", &naming::KUBERNETES_NAME, "Namespace.").default("default"),
        &Key::<Unread>::new("values", &Anything, "Helm values."),
    ],
};
