//! What is installed on the cluster: add-ons by name, charts, manifests; and what these need: addresses, registries.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use rancher_config::Checksum;
use url::Url;

use super::words;
use crate::addons::{Addon, GitAuth};
use crate::key::{
    Anything, Choice, Choices, Flag, Inside, Items, Key, List, Named, NamedInside, OrSection, Section, SettingList, Settings,
    ShortOrLong, Unread,
};
use crate::naming;
use crate::spec::{NamePattern, VersionWish};

const fn addon(name: &'static str, doc: &'static str) -> Key<Inside> {
    Key::new(name, &ADDON, doc)
}

/// One that this version does not install yet.
const fn later(name: &'static str, doc: &'static str) -> Key<Inside> {
    addon(name, doc).later()
}

static CILIUM: Key<Inside> = addon("cilium", "Pod network with kube-proxy replacement.");
static PROXMOX_CCM: Key<Inside> = later(
    "proxmox-ccm",
    "Cloud controller manager for Proxmox, with a PVE account of its own.",
);
static PROXMOX_CSI: Key<Inside> = later("proxmox-csi", "Volumes on PVE storages, with a PVE account of its own.");
static TALOS_CCM: Key<Inside> = later("talos-ccm", "Cloud controller manager for Talos.");
static KUBE_VIP: Key<Inside> = later("kube-vip", "Addresses of services of type LoadBalancer, announced by ARP.");
static METRICS_SERVER: Key<Inside> = later("metrics-server", "`kubectl top`.");
static PROMETHEUS_CRDS: Key<Inside> = later("prometheus-crds", "Custom resources of the Prometheus operator.");
static GATEWAY_API: Key<Inside> = later("gateway-api", "Custom resources of the Gateway API.");
static LONGHORN: Key<Inside> = later("longhorn", "Replicated volumes on the machines' own disks.");
static CERT_MANAGER: Key<Inside> = later("cert-manager", "Certificates.");
static TRAEFIK: Key<Inside> = later("traefik", "Ingress.");
static TAILSCALE_OPERATOR: Key<Inside> = later("tailscale-operator", "Services in a tailnet.");
pub(crate) static FLUX: Key<Inside> = Key::new("flux", &GITOPS, "GitOps with Flux.").later();
pub(crate) static ARGOCD: Key<Inside> = Key::new("argocd", &GITOPS, "GitOps with Argo CD.").also(&["argo-cd"]).later();

/// The add-on that announces addresses of services.
pub(crate) fn kube_vip() -> &'static Key<Inside> {
    &KUBE_VIP
}

/// The add-ons that are releases of one chart.
pub(crate) static CATALOGUE: [(Addon, &Key<Inside>); 12] = [
    (Addon::Cilium, &CILIUM),
    (Addon::ProxmoxCcm, &PROXMOX_CCM),
    (Addon::ProxmoxCsi, &PROXMOX_CSI),
    (Addon::TalosCcm, &TALOS_CCM),
    (Addon::KubeVip, &KUBE_VIP),
    (Addon::MetricsServer, &METRICS_SERVER),
    (Addon::PrometheusCrds, &PROMETHEUS_CRDS),
    (Addon::GatewayApi, &GATEWAY_API),
    (Addon::Longhorn, &LONGHORN),
    (Addon::CertManager, &CERT_MANAGER),
    (Addon::Traefik, &TRAEFIK),
    (Addon::TailscaleOperator, &TAILSCALE_OPERATOR),
];

pub(crate) static ADDONS: Section = Section {
    keys: &[
        &CILIUM,
        &PROXMOX_CCM,
        &PROXMOX_CSI,
        &TALOS_CCM,
        &KUBE_VIP,
        &METRICS_SERVER,
        &PROMETHEUS_CRDS,
        &GATEWAY_API,
        &LONGHORN,
        &CERT_MANAGER,
        &TRAEFIK,
        &TAILSCALE_OPERATOR,
        &FLUX,
        &ARGOCD,
    ],
};

pub(crate) static VERSION: Key<VersionWish> = Key::new("version", &words::VERSION, "Chart version: exact, or a minor.")
    .default("the one in cluster.lock.yaml, else the newest known");
pub(crate) static NAMESPACE: Key<String> =
    Key::new("namespace", &naming::KUBERNETES_NAME, "Namespace.").default("that of the add-on");
pub(crate) static VALUES: Key<SettingList> =
    Key::new("values", &Settings, "Helm values, merged over those of mainstay.").default("{}");

static ADDON: Section = Section {
    keys: &[&VERSION, &NAMESPACE, &VALUES],
};

pub(crate) static GIT_URL: Key<Url> = Key::new("url", &words::GIT_URL, "Repository, by https or ssh.").required();
pub(crate) static GIT_BRANCH: Key<String> = Key::new("branch", &naming::TEXT, "Branch.").default("main");
pub(crate) static GIT_PATH: Key<String> = Key::new("path", &naming::TEXT, "Directory in the repository.").default(".");
pub(crate) static GIT_AUTH: Key<GitAuth> = Key::new(
    "auth",
    &Choices(&[
        Choice::now("none", GitAuth::None),
        Choice::now("key", GitAuth::DeployKey),
        Choice::now("token", GitAuth::Token),
    ]),
    "How the repository is read: openly, with a deploy key that mainstay makes, or with a token from the secrets file.",
)
.default("key for ssh, none for https");
pub(crate) static KNOWN_HOSTS: Key<String> = Key::new(
    "known-hosts",
    &naming::PATH,
    "File with the SSH host keys of the repository's server.",
)
.default("shown and confirmed once, then kept in cluster.lock.yaml");
pub(crate) static AGE_KEY: Key<bool> = Key::new(
    "age-key",
    &Flag,
    "Place the SOPS age key in the cluster, so that encrypted manifests can be read there.",
)
.default("false");

static GITOPS: Section = Section {
    keys: &[
        &VERSION,
        &GIT_URL,
        &GIT_BRANCH,
        &GIT_PATH,
        &GIT_AUTH,
        &KNOWN_HOSTS,
        &AGE_KEY,
        &VALUES,
    ],
};

pub(crate) static CHART_NAME: Key<String> = Key::new("name", &naming::KUBERNETES_NAME, "Release name.").required();
pub(crate) static CHART_CHART: Key<String> =
    Key::new("chart", &naming::TEXT, "`oci://…`, or the chart's name in `repo`.").required();
pub(crate) static CHART_REPO: Key<Url> = Key::new("repo", &words::MIRROR, "Chart repository.");
pub(crate) static CHART_NAMESPACE: Key<String> = Key::new("namespace", &naming::KUBERNETES_NAME, "Namespace.").default("default");

pub(crate) static CHART: Section = Section {
    keys: &[&CHART_NAME, &CHART_CHART, &CHART_REPO, &VERSION, &CHART_NAMESPACE, &VALUES],
};

pub(crate) static MANIFEST: OrSection<String> = OrSection {
    value: &naming::PATH,
    section: &MANIFEST_SECTION,
};
pub(crate) static MANIFEST_URL: Key<Url> = Key::new("url", &words::MIRROR, "Where the manifest is.").required();
pub(crate) static MANIFEST_CHECKSUM: Key<Checksum> =
    Key::new("checksum", &words::CHECKSUM, "SHA-256 or SHA-512 of the file.").required();

static MANIFEST_SECTION: Section = Section {
    keys: &[&MANIFEST_URL, &MANIFEST_CHECKSUM],
};

pub(crate) static MANIFESTS: Key<Items<ShortOrLong<String>>> = Key::new(
    "manifests",
    &List(&MANIFEST),
    "Manifests applied at bootstrap: files, folders, or URLs with a checksum.",
)
.later();

pub(crate) static BALANCER_POOL: Key<(Ipv4Addr, Ipv4Addr)> = Key::new(
    "pool",
    &words::ADDRESS_SPAN,
    "Addresses for services of type LoadBalancer, from the network of the machines.",
)
.required();

pub(crate) static LOADBALANCER: Section = Section { keys: &[&BALANCER_POOL] };

pub(crate) static MIRRORS: Key<NamedInside> = Key::new(
    "mirrors",
    &Named {
        naming: &naming::REGISTRY,
        section: &REGISTRY_MIRROR,
    },
    "Where images of a registry are pulled from, by the registry's name in image references.",
);
pub(crate) static CREDENTIALS: Key<NamedInside> = Key::new(
    "credentials",
    &Named {
        naming: &naming::REGISTRY,
        section: &REGISTRY_LOGIN,
    },
    "Logins to registries and mirrors, by host; the password is in the secrets file.",
);
pub(crate) static ENDPOINTS: Key<Items<Url>> = Key::new(
    "endpoints",
    &List(&words::MIRROR),
    "Mirrors, tried in this order; the registry itself comes last.",
)
.required()
.also(&["endpoint"]);
pub(crate) static REGISTRY_USER: Key<String> = Key::new("username", &naming::TEXT, "User name.").required();
static REGISTRY_PASSWORD: Key<Unread> = Key::new("password", &Anything, "")
    .never(
        "cluster.yaml is meant for git, and a password opens the registry to everyone who can read it.",
        "take it out, change it if the file was shared, and run `mainstay secrets set registries`.",
    )
    .also(&["token", "auth"]);

pub(crate) static REGISTRIES: Section = Section {
    keys: &[&MIRRORS, &CREDENTIALS],
};
static REGISTRY_MIRROR: Section = Section { keys: &[&ENDPOINTS] };
static REGISTRY_LOGIN: Section = Section {
    keys: &[&REGISTRY_USER, &REGISTRY_PASSWORD],
};

pub(crate) static UPLOAD: Key<bool> = Key::new("upload", &Flag, "Upload from here, for a PVE without internet.").default("false");

pub(crate) static IMAGE: Section = Section { keys: &[&UPLOAD] };

pub(crate) static LOGIN_SERVER: Key<Url> =
    Key::new("login-server", &words::HTTPS, "The Headscale server, if not Tailscale's own.")
        .default("https://controlplane.tailscale.com");
pub(crate) static TAILNET_NAME: Key<NamePattern> =
    Key::new("hostname", &words::NAMES, "Name of a machine in the tailnet.").default("the machine's name");
static AUTH_KEY: Key<Unread> = Key::new("auth-key", &Anything, "")
    .never(
        "cluster.yaml is meant for git, and everyone who can read an auth key can join the tailnet.",
        "take it out, revoke it if the file was shared, and set TS_AUTHKEY or put it into the secrets file.",
    )
    .also(&["authkey", "auth_key", "key"]);
pub(crate) static TAILNET_TAGS: Key<Items<String>> =
    Key::new("tags", &List(&naming::TAILNET_TAG), "Tailscale tags of the machines.").default("[]");
pub(crate) static ROUTES: Key<Items<Ipv4Net>> =
    Key::new("routes", &List(&words::CIDR), "Routes that the machines advertise.").default("[]");
pub(crate) static ACCEPT_DNS: Key<bool> =
    Key::new("accept-dns", &Flag, "Use the tailnet's name servers on the machines.").default("false");

pub(crate) static TAILSCALE: Section = Section {
    keys: &[&LOGIN_SERVER, &TAILNET_NAME, &AUTH_KEY, &TAILNET_TAGS, &ROUTES, &ACCEPT_DNS],
};

pub(crate) static VERIFY_IMAGE: Key<String> = Key::new(
    "image",
    &naming::TEXT,
    "Container image of the test pods of `mainstay verify`.",
);

pub(crate) static VERIFY: Section = Section { keys: &[&VERIFY_IMAGE] };
