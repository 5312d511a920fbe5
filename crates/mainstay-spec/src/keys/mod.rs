//! Every key of cluster.yaml, declared once. The reader, the type check, the JSON Schema and the reference page are made from these
//! declarations. A key that this version does not support says `.later()`.

pub(crate) mod addons;
pub(crate) mod datacenter;
pub(crate) mod distro;
pub(crate) mod network;
pub(crate) mod nic;
pub(crate) mod options;
pub(crate) mod pool;
pub(crate) mod shape;
pub(crate) mod words;

use url::Url;

use crate::key::{
    Choice, Choices, Flag, FlagOrAnything, Inside, Items, Key, KeyInfo, List, Named, NamedInside, Section, Support, Unread,
    ValueType,
};
use crate::naming;
use crate::spec::{Cni, NamePattern, Provision, VersionWish};
use crate::value::Range;

pub(crate) static NAME: Key<String> = Key::new(
    "name",
    &naming::CLUSTER_NAME,
    "What the cluster is called. Machine names begin with it.",
)
.required()
.also(&["cluster", "cluster_name", "clusterName"]);
pub(crate) static DATACENTER: Key<Inside> = Key::new(
    "datacenter",
    &datacenter::SECTION,
    "The Proxmox VE that carries the machines.",
)
.also(&["proxmox", "pve", "provider"]);
pub(crate) static NETWORK: Key<Inside> =
    Key::new("network", &network::SECTION, "The network that the machines are in.").required();
pub(crate) static ENDPOINT: Key<Url> = Key::new(
    "endpoint",
    &words::API_ENDPOINT,
    "Where the Kubernetes API is found, if not at the VIP: a load balancer or name of your own.",
)
.default("https://VIP:6443");
pub(crate) static TALOS: Key<Inside> = Key::new("talos", &distro::TALOS, "Talos Linux on the machines. The default.");
pub(crate) static RKE2: Key<Inside> = Key::new("rke2", &distro::RKE2, "RKE2 on a cloud image, instead of Talos.");
pub(crate) static K3S: Key<Inside> = Key::new(
    "k3s",
    &distro::K3S,
    "The k3s distribution on a cloud image, instead of Talos.",
);
pub(crate) static KUBERNETES: Key<VersionWish> = Key::new(
    "kubernetes",
    &words::VERSION,
    "The Kubernetes version: exact, or a minor for its newest known patch.",
)
.default("what the cluster runs, else the one that the Talos version ships with")
.also(&["kubernetes_version", "kubernetesVersion", "k8s"]);
pub(crate) static CNI: Key<Cni> = Key::new(
    "cni",
    &Choices(&[
        Choice::now("flannel", Cni::Flannel),
        Choice::now("none", Cni::None),
        Choice::now("canal", Cni::Canal),
        Choice::now("cilium", Cni::Cilium),
    ]),
    "The pod network. With `none` nodes are expected NotReady until you install one.",
)
.default("flannel, with RKE2 canal");
pub(crate) static PROVISION: Key<Provision> = Key::new(
    "provision",
    &Choices(&[
        Choice::now("import", Provision::Import),
        Choice::later("clone", Provision::Clone),
    ]),
    "How a machine gets its disk: imported from the downloaded image.",
)
.default("import");
pub(crate) static TEMPLATE_VMIDS: Key<Range> = Key::new(
    "template-vmids",
    &words::VMID_RANGE,
    "VMIDs of the templates that `provision: clone` makes.",
)
.default("9000+")
.later();
pub(crate) static PROTECT: Key<bool> = Key::new(
    "protect",
    &Flag,
    "`mainstay down` refuses as long as this is true, and `mainstay up` removes no machine.",
)
.default("false");
pub(crate) static NAMES: Key<NamePattern> = Key::new(
    "names",
    &words::NAMES,
    "How machines are called: `{cluster}`, `{pool}`, `{n}` counting from 1 or `{n0}` counting from 0. A pool may have its own.",
)
.default("\"{cluster}-{pool}-{n}\"");
pub(crate) static CONTROL_PLANE_WORKLOADS: Key<bool> =
    Key::new("control-plane-workloads", &Flag, "Whether control planes run ordinary pods.")
        .default("true without workers, else false");
pub(crate) static POOLS: Key<NamedInside> = Key::new(
    "pools",
    &Named {
        naming: &naming::POOL_NAME,
        section: &pool::POOL,
    },
    "Machines that are alike, by pool. `control-plane` has the control planes; any other pool has workers unless its `role` says otherwise.",
)
.required()
.also(&["nodes", "node_pools", "nodePools", "groups"]);
pub(crate) static MACHINES: Key<NamedInside> = Key::new(
    "machines",
    &Named {
        naming: &naming::MACHINE_NAME,
        section: &pool::MACHINE,
    },
    "Exceptions for single machines, by machine name.",
);
static ARCH: Key<()> = Key::new(
    "arch",
    &Choices(&[Choice::now("amd64", ()), Choice::later("arm64", ())]),
    "The processor architecture.",
)
.default("amd64");
pub(crate) static TAILSCALE: Key<Inside> =
    Key::new("tailscale", &addons::TAILSCALE, "Tailscale or Headscale on every machine.").later();
pub(crate) static KUBESPAN: Key<bool> = Key::new("kubespan", &Flag, "An encrypted network between the machines, with Talos.")
    .default("false")
    .later();
pub(crate) static ADDONS: Key<Inside> = Key::new(
    "addons",
    &addons::ADDONS,
    "What is installed on the cluster by name: cilium, proxmox-ccm, proxmox-csi, talos-ccm, kube-vip, metrics-server, prometheus-crds, gateway-api, longhorn, cert-manager, traefik, tailscale-operator, flux, argocd.",
);
pub(crate) static CHARTS: Key<Items<Inside>> = Key::new(
    "charts",
    &List(&addons::CHART),
    "Helm charts that are not in the catalogue of add-ons.",
);
pub(crate) static LOADBALANCER: Key<Inside> = Key::new(
    "loadbalancer",
    &addons::LOADBALANCER,
    "Addresses of services of type LoadBalancer, with Cilium or kube-vip.",
)
.later();
static HA: Key<Unread> = Key::new("ha", &FlagOrAnything, "PVE HA resources and affinity rules.").later();
static FIREWALL: Key<Unread> = Key::new("firewall", &FlagOrAnything, "PVE firewall rules for the machines.").later();
pub(crate) static REGISTRIES: Key<Inside> = Key::new(
    "registries",
    &addons::REGISTRIES,
    "Mirrors and credentials of image registries.",
)
.later();
pub(crate) static VERIFY: Key<Inside> = Key::new("verify", &addons::VERIFY, "Settings of `mainstay verify`.").later();
pub(crate) static IMAGE: Key<Inside> = Key::new("image", &addons::IMAGE, "How the image gets to PVE.").later();
static SECURE_BOOT: Key<bool> = Key::new("secure-boot", &Flag, "Secure Boot with a TPM.").later();

pub(crate) static FILE: Section = Section {
    keys: &[
        &NAME,
        &DATACENTER,
        &NETWORK,
        &ENDPOINT,
        &TALOS,
        &RKE2,
        &K3S,
        &KUBERNETES,
        &CNI,
        &PROVISION,
        &TEMPLATE_VMIDS,
        &PROTECT,
        &NAMES,
        &CONTROL_PLANE_WORKLOADS,
        &POOLS,
        &MACHINES,
        &ARCH,
        &TAILSCALE,
        &KUBESPAN,
        &ADDONS,
        &CHARTS,
        &addons::MANIFESTS,
        &LOADBALANCER,
        &HA,
        &FIREWALL,
        &REGISTRIES,
        &VERIFY,
        &IMAGE,
        &SECURE_BOOT,
    ],
};

/// Every place of the file that has a key of this name, as dotted paths.
pub(crate) fn places_of(name: &str) -> Vec<String> {
    let mut places = Vec::new();
    walk(&FILE, "", &mut |path, key| {
        if key.name == name && key.support != Support::Later {
            places.push(path.to_owned());
        }
    });
    places
}

/// Visits every key with its dotted path; `*` stands for a name that the user gives.
pub(crate) fn walk(section: &'static Section, prefix: &str, visit: &mut dyn FnMut(&str, KeyInfo)) {
    for key in section.keys() {
        let path = format!("{prefix}{}", key.name);
        visit(&path, key);
        walk_type(key.value_type, &path, visit);
    }
}

fn walk_type(value_type: ValueType, path: &str, visit: &mut dyn FnMut(&str, KeyInfo)) {
    match value_type {
        ValueType::Section(section) => walk(section, &format!("{path}."), visit),
        ValueType::Named(_, section) => walk(section, &format!("{path}.*."), visit),
        ValueType::List(item) => walk_type(item.value_type(), &format!("{path}[]"), visit),
        ValueType::Either(one, other) => {
            walk_type(one.value_type(), path, visit);
            walk_type(other.value_type(), path, visit);
        }
        ValueType::Flag
        | ValueType::Int { .. }
        | ValueType::Word(_)
        | ValueType::Name(_)
        | ValueType::Choice(_)
        | ValueType::Labels
        | ValueType::Settings
        | ValueType::Anything => {}
    }
}
