//! Every key of cluster.yaml, once: the reader, the JSON Schema and the reference page are all made from these tables.

use crate::fault::Wrong;
use crate::naming::{
    BRIDGE, CLUSTER_NAME, CPU_TYPE, DISK_NAME, EXTENSION, HOST_NAME, KUBERNETES_NAME, MACHINE_NAME, Naming, PATH, POOL_NAME,
    RESOURCE_POOL, STORAGE_ID, TAG, TEXT,
};
use crate::value;

pub(crate) struct Section {
    pub keys: &'static [Key],
}

impl Section {
    pub(crate) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

pub(crate) struct Key {
    pub name: &'static str,
    pub kind: Kind,
    pub doc: &'static str,
    pub default: &'static str,
    pub required: bool,
    pub when: When,
    /// What other tools call it.
    pub also: &'static [&'static str],
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Now,
    /// Decided, read and checked, but not carried out by this version.
    Later,
    /// Known, and refused for good.
    Never {
        why: &'static str,
        help: &'static str,
    },
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Flag,
    Int {
        min: u32,
        max: u32,
    },
    Word(&'static Word),
    Name(&'static Naming),
    Choice(&'static [Choice]),
    List(&'static Kind),
    Section(&'static Section),
    /// Keys are names of things, values are all alike.
    Named(&'static Naming, &'static Section),
    Labels,
    Either(&'static Kind, &'static Kind),
    /// Free-form: somebody else's schema.
    Anything,
}

pub(crate) struct Choice {
    pub value: &'static str,
    pub when: When,
}

/// A scalar with a grammar of its own.
pub(crate) struct Word {
    pub what: &'static str,
    pub read: fn(&str) -> Result<(), Wrong>,
    pub numbers: Numbers,
    /// For JSON Schema: accepts at least what `read` accepts.
    pub pattern: &'static str,
    pub example: &'static str,
}

/// Which unquoted numbers a word may look like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbers {
    None,
    Integers,
    All,
}

const fn key(name: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key {
        name,
        kind,
        doc,
        default: "",
        required: false,
        when: When::Now,
        also: &[],
    }
}

impl Key {
    const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    const fn default(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    const fn later(mut self) -> Self {
        self.when = When::Later;
        self
    }

    const fn never(mut self, why: &'static str, help: &'static str) -> Self {
        self.when = When::Never { why, help };
        self
    }

    const fn also(mut self, also: &'static [&'static str]) -> Self {
        self.also = also;
        self
    }
}

const fn now(value: &'static str) -> Choice {
    Choice { value, when: When::Now }
}

const fn later(value: &'static str) -> Choice {
    Choice {
        value,
        when: When::Later,
    }
}

macro_rules! word {
    ($name:ident, $what:literal, $read:expr, $numbers:ident, $pattern:literal, $example:literal) => {
        static $name: Word = Word {
            what: $what,
            read: $read,
            numbers: Numbers::$numbers,
            pattern: $pattern,
            example: $example,
        };
    };
}

word!(
    MEMORY,
    "a size",
    |text| value::memory(text).map(drop),
    None,
    "^[0-9]+ ?([MGT]i?B?)$",
    "8GiB"
);
word!(
    DISK_SIZE,
    "a size",
    |text| value::disk_size(text).map(drop),
    None,
    "^[0-9]+ ?([MGT]i?B?)$",
    "40GiB"
);
word!(
    VERSION,
    "a version",
    |text| value::version(text).map(drop),
    All,
    "^v?[0-9]+\\.[0-9]+(\\.[0-9]+(-[0-9A-Za-z.-]+)?)?$",
    "1.13.9"
);
word!(
    RANCHER_VERSION,
    "a release",
    |text| value::rancher_version(text).map(drop),
    None,
    "^v?[0-9]+\\.[0-9]+\\.[0-9]+(-[0-9A-Za-z.-]+)?\\+(rke2r|k3s)[0-9A-Za-z.-]*$",
    "1.34.2+rke2r1"
);
word!(
    IPV4,
    "an IPv4 address",
    |text| value::ipv4(text).map(drop),
    None,
    "^[0-9]+(\\.[0-9]+){3}$",
    "10.0.0.1"
);
word!(
    IP,
    "an IP address",
    |text| value::ip(text).map(drop),
    None,
    "^[0-9a-fA-F.:]+$",
    "1.1.1.1"
);
word!(
    CIDR,
    "a network",
    |text| value::cidr(text).map(drop),
    None,
    "^[0-9]+(\\.[0-9]+){3}/[0-9]+$",
    "10.0.0.0/16"
);
word!(
    ADDRESSES,
    "addresses",
    |text| value::addresses(text).map(drop),
    None,
    "^ *[0-9]+(\\.[0-9]+){3} *(\\+|- *[0-9]+(\\.[0-9]+){0,3})? *$",
    "10.0.0.11+"
);
word!(
    VMIDS,
    "VMIDs",
    |text| value::vmids(text).map(drop),
    Integers,
    "^ *[0-9]+ *(\\+|- *[0-9]+)? *$",
    "2000+"
);
word!(
    MAC,
    "a MAC address",
    |text| value::mac(text).map(drop),
    None,
    "^[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}$",
    "BC:24:11:00:00:17"
);
word!(
    PVE_ENDPOINT,
    "a URL",
    |text| value::pve_endpoint(text).map(drop),
    None,
    "^[hH][tT][tT][pP][sS]:",
    "https://pve.lan:8006"
);
word!(
    API_ENDPOINT,
    "a URL",
    |text| value::api_endpoint(text).map(drop),
    None,
    "^[hH][tT][tT][pP][sS]:",
    "https://k8s.example:6443"
);
word!(
    HTTPS,
    "a URL",
    |text| value::factory(text).map(drop),
    None,
    "^[hH][tT][tT][pP][sS]?:",
    "https://factory.talos.dev"
);
word!(
    FINGERPRINT,
    "a fingerprint",
    |text| value::fingerprint(text).map(drop),
    None,
    "^[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){31}$",
    "9A:…"
);
word!(
    JUMP,
    "user@host",
    |text| value::jump(text).map(drop),
    None,
    "@",
    "ops@pve.lan"
);
word!(
    NAMES,
    "a name pattern",
    |text| value::name_pattern(text).map(drop),
    None,
    "\\{n0?\\}",
    "{cluster}-{pool}-{n}"
);
word!(
    TAINT,
    "a taint",
    |text| value::taint(text).map(drop),
    None,
    ":(NoSchedule|PreferNoSchedule|NoExecute)$",
    "dedicated=gpu:NoSchedule"
);

const SIZED: Kind = Kind::Word(&DISK_SIZE);
const HOSTS: Kind = Kind::List(&Kind::Name(&HOST_NAME));
const PATHS: Kind = Kind::List(&Kind::Name(&PATH));

pub(crate) static FILE: Section = Section {
    keys: &[
        key("name", Kind::Name(&CLUSTER_NAME), "What the cluster is called. Machine names begin with it.").required().also(&["cluster", "cluster_name", "clusterName"]),
        key("datacenter", Kind::Section(&DATACENTER), "The Proxmox VE that carries the machines.").also(&["proxmox", "pve", "provider"]),
        key("network", Kind::Section(&NETWORK), "The network that the machines are in.").required(),
        key("endpoint", Kind::Word(&API_ENDPOINT), "Where the Kubernetes API is found, if not at the VIP: a load balancer or name of your own.")
            .default("https://VIP:6443"),
        key("talos", Kind::Section(&TALOS), "Talos Linux on the machines. The default."),
        key("rke2", Kind::Section(&RANCHER), "RKE2 on a cloud image, instead of Talos.").later(),
        key("k3s", Kind::Section(&RANCHER), "The k3s distribution on a cloud image, instead of Talos.").later(),
        key("kubernetes", Kind::Word(&VERSION), "The Kubernetes version: exact, or a minor for its newest known patch.")
            .default("what the cluster runs, else the one that the Talos version ships with")
            .also(&["kubernetes_version", "kubernetesVersion", "k8s"]),
        key("cni", Kind::Choice(&[now("flannel"), now("none"), later("cilium")]), "The pod network. With `none` nodes are expected NotReady until you install one.")
            .default("flannel"),
        key("provision", Kind::Choice(&[now("import"), later("clone")]), "How a machine gets its disk: imported from the downloaded image.").default("import"),
        key("template-vmids", Kind::Word(&VMIDS), "VMIDs of the templates that `provision: clone` makes.").later(),
        key("protect", Kind::Flag, "`mainstay down` refuses as long as this is true.").default("false"),
        key("names", Kind::Word(&NAMES), "How machines are called: `{cluster}`, `{pool}`, `{n}` counting from 1 or `{n0}` counting from 0. A pool may have its own.")
            .default("\"{cluster}-{pool}-{n}\""),
        key("control-plane-workloads", Kind::Flag, "Whether control planes run ordinary pods.").default("true without workers, else false"),
        key("pools", Kind::Named(&POOL_NAME, &POOL), "Machines that are alike, by pool. `control-plane` has the control planes; any other pool has workers unless its `role` says otherwise.")
            .required().also(&["nodes", "node_pools", "nodePools", "groups"]),
        key("machines", Kind::Named(&MACHINE_NAME, &MACHINE), "Exceptions for single machines, by machine name."),
        key("arch", Kind::Choice(&[now("amd64"), later("arm64")]), "The processor architecture.").default("amd64"),
        key("tailscale", Kind::Section(&TAILSCALE), "Tailscale or Headscale on every machine.").later(),
        key("addons", Kind::Section(&ADDONS), "What is installed on the cluster by name: cilium, proxmox-ccm, proxmox-csi, talos-ccm, metrics-server, prometheus-crds, gateway-api, longhorn, cert-manager, traefik, flux, argocd.").later(),
        key("charts", Kind::List(&Kind::Section(&CHART)), "Helm charts installed at bootstrap.").later(),
        key("manifests", Kind::List(&Kind::Name(&TEXT)), "Manifests applied at bootstrap: files or URLs.").later(),
        key("ha", Kind::Either(&Kind::Flag, &Kind::Anything), "PVE HA resources and affinity rules.").later(),
        key("firewall", Kind::Either(&Kind::Flag, &Kind::Anything), "PVE firewall rules for the machines.").later(),
        key("registries", Kind::Anything, "Mirrors and credentials of image registries.").later(),
        key("image", Kind::Section(&IMAGE), "How the image gets to PVE.").later(),
        key("secure-boot", Kind::Flag, "Secure Boot with a TPM.").later(),
    ],
};

static DATACENTER: Section = Section {
    keys: &[
        key("endpoint", Kind::Word(&PVE_ENDPOINT), "The PVE API, on any host of the datacenter.").default("PROXMOX_VE_ENDPOINT").also(&["url", "api", "address"]),
        key("fingerprint", Kind::Word(&FINGERPRINT), "SHA-256 fingerprint of the PVE certificate. `mainstay trust` shows and writes it."),
        key("ca", Kind::Name(&PATH), "File with the CA that signed the PVE certificate, instead of a fingerprint.").also(&["ca-file", "cacert"]),
        key("jump", Kind::Word(&JUMP), "SSH host through which the machines are reached, if they are not reachable from here; Proxmox VE, too, if it is not.").also(&["ssh", "bastion", "proxy"]),
        key("storage", Kind::Section(&STORAGE), "Where things go on PVE.").also(&["storages", "datastore"]),
        key("pool", Kind::Name(&RESOURCE_POOL), "PVE resource pool that all machines join."),
        key("tags", Kind::List(&Kind::Name(&TAG)), "PVE tags of all machines, besides mainstay's own."),
        key("token", Kind::Anything, "").never(
            "cluster.yaml is meant for git, and whoever reads a token has its rights on PVE.",
            "take it out, revoke it if the file was shared, and set PROXMOX_VE_API_TOKEN, or PROXMOX_VE_API_TOKEN_FILE to a file that holds it.",
        ).also(&["api-token", "api_token", "token_id", "token_secret", "api-key"]),
        key("username", Kind::Anything, "").never(
            "whom mainstay logs in as belongs to whoever runs it, not to the cluster.",
            "set PROXMOX_VE_API_TOKEN, or PROXMOX_VE_USERNAME and PROXMOX_VE_PASSWORD.",
        ).also(&["user"]),
        key("password", Kind::Anything, "").never(
            "cluster.yaml is meant for git, and whoever reads a password has its rights on PVE.",
            "take it out, change it if the file was shared, and set PROXMOX_VE_API_TOKEN, or PROXMOX_VE_USERNAME and PROXMOX_VE_PASSWORD.",
        ),
        key("insecure", Kind::Anything, "").never(
            "whoever stands between could read the token, so the certificate is always checked.",
            "take it out and run `mainstay trust`: it shows the certificate's fingerprint and writes it here.",
        ).also(&["verify", "verify_ssl", "skip-tls-verify", "tls"]),
    ],
};

static STORAGE: Section = Section {
    keys: &[
        key(
            "images",
            Kind::Name(&STORAGE_ID),
            "Storage for downloaded images; it must allow `import`.",
        )
        .default("the one that allows `import`"),
        key("disks", Kind::Name(&STORAGE_ID), "Storage for disks; it must allow `images`.")
            .default("the largest that allows `images`"),
        key("seeds", Kind::Name(&STORAGE_ID), "Storage for first-boot drives.").default("where the disks go"),
        key("templates", Kind::Name(&STORAGE_ID), "Storage for templates.").later(),
    ],
};

static NETWORK: Section = Section {
    keys: &[
        key("cidr", Kind::Word(&CIDR), "The IPv4 network of the machines.")
            .required()
            .also(&["subnet", "network"]),
        key("gateway", Kind::Word(&IPV4), "Their way out.")
            .required()
            .also(&["gw", "router"]),
        key("bridge", Kind::Name(&BRIDGE), "Bridge or SDN vnet on the PVE hosts.").default("vmbr0"),
        key("vlan", Kind::Int { min: 1, max: 4094 }, "VLAN tag on that bridge.")
            .default("none")
            .also(&["tag", "vlan_id"]),
        key("dns", Kind::List(&Kind::Word(&IP)), "Name servers.")
            .default("[1.1.1.1, 8.8.8.8]")
            .also(&["nameservers", "dns_servers"]),
        key(
            "vip",
            Kind::Word(&IPV4),
            "Address of the Kubernetes API, held by one control plane at a time. Needed above one control plane unless there is an `endpoint`.",
        ),
        key("pods", Kind::Word(&CIDR), "Network of the pods; each node takes a /24 of it.")
            .default("10.244.0.0/16")
            .also(&["pod-cidr", "pod_cidr", "podSubnets"]),
        key("services", Kind::Word(&CIDR), "Network of the services.")
            .default("10.96.0.0/12")
            .also(&["service-cidr", "service_cidr", "serviceSubnets"]),
        key(
            "addressing",
            Kind::Choice(&[now("static"), later("dhcp")]),
            "How machines get their address.",
        )
        .default("static"),
        key(
            "hostnames",
            Kind::Choice(&[now("static"), later("dhcp")]),
            "How machines get their host name.",
        )
        .default("static"),
    ],
};

static TALOS: Section = Section {
    keys: &[
        key(
            "version",
            Kind::Word(&VERSION),
            "The Talos version: exact, or a minor for its newest known patch.",
        )
        .default("what the cluster runs, else the newest known"),
        key(
            "extensions",
            Kind::List(&Kind::Name(&EXTENSION)),
            "Official system extensions in the image, with or without `siderolabs/`.",
        )
        .default("[]"),
        key(
            "patches",
            PATHS,
            "Strategic-merge patches for the config of every machine, in order: files beside cluster.yaml.",
        )
        .default("[]"),
        key("factory", Kind::Word(&HTTPS), "The Image Factory.").default("https://factory.talos.dev"),
        key(
            "first-boot",
            Kind::Choice(&[now("cloud-init"), later("meta")]),
            "How a machine learns its address at first boot.",
        )
        .default("cloud-init"),
    ],
};

static RANCHER: Section = Section {
    keys: &[
        key("version", Kind::Word(&RANCHER_VERSION), "The release."),
        key(
            "image",
            Kind::Choice(&[
                now("ubuntu-22.04"),
                now("ubuntu-24.04"),
                now("ubuntu-26.04"),
                now("debian-12"),
                now("debian-13"),
            ]),
            "The cloud image.",
        )
        .default("ubuntu-24.04"),
    ],
};

const CPU: Kind = Kind::Int { min: 1, max: 512 };
const SCSI: Kind = Kind::Choice(&[now("virtio-scsi-pci"), now("virtio-scsi-single")]);
const FIRMWARE: Kind = Kind::Choice(&[now("ovmf"), now("seabios")]);
const DISK: Kind = Kind::Either(&SIZED, &Kind::Section(&DISK_SECTION));
const DISKS: Kind = Kind::List(&Kind::Section(&EXTRA_DISK));

pub(crate) static POOL: Section = Section {
    keys: &[
        key(
            "role",
            Kind::Choice(&[now("control-plane"), now("worker")]),
            "What its machines are.",
        )
        .default("control-plane for the pool of that name, else worker"),
        key(
            "count",
            Kind::Int { min: 0, max: 5000 },
            "How many machines. Control planes: 1, 3 or 5 over all pools.",
        )
        .required()
        .also(&["replicas", "size", "number"]),
        key(
            "addresses",
            Kind::Either(&Kind::Word(&ADDRESSES), &Kind::List(&Kind::Word(&ADDRESSES))),
            "Addresses by ordinal: `10.0.0.11+`, `10.0.0.11-13`, or a list. Needed unless every machine has its own.",
        )
        .also(&["ips", "ip", "address", "range"]),
        key(
            "vmids",
            Kind::Either(&Kind::Word(&VMIDS), &Kind::List(&Kind::Word(&VMIDS))),
            "VMIDs by ordinal: `2000+`, `2000-2999`, or a list.",
        )
        .default("a block made from cluster and pool name")
        .also(&["vmid", "ids"]),
        key("names", Kind::Word(&NAMES), "How its machines are called.").default("the file's `names`"),
        key("cpu", CPU, "How many cores.")
            .default("4")
            .also(&["cores", "cpus", "vcpu"]),
        key("cpu-type", Kind::Name(&CPU_TYPE), "CPU type, as PVE calls it.")
            .default("x86-64-v2-AES")
            .also(&["cpu_type", "type"]),
        key("memory", Kind::Word(&MEMORY), "How much memory.")
            .default("8GiB")
            .also(&["ram", "mem"]),
        key("disk", DISK, "The system disk: a size, or a section.")
            .default("40GiB for control planes, 60GiB for workers")
            .also(&["disk_size"]),
        key("disks", DISKS, "More disks, found in the guest by their name.")
            .default("[]")
            .also(&["extra_disks", "volumes"]),
        key("scsi", SCSI, "SCSI controller. Talos warns of `-single` on some processors.")
            .default("virtio-scsi-pci")
            .also(&["scsihw"]),
        key("firmware", FIRMWARE, "UEFI with an EFI disk and no enrolled keys, or BIOS.")
            .default("ovmf")
            .also(&["bios"]),
        key("onboot", Kind::Flag, "PVE starts the machine when its host boots.")
            .default("true")
            .also(&["autostart"]),
        key(
            "startup-order",
            Kind::Int { min: 1, max: 9999 },
            "Place in PVE's start and shutdown order.",
        )
        .default("none")
        .also(&["startup", "order"]),
        key("hosts", HOSTS, "PVE hosts that may carry its machines.")
            .default("all that have the storages and the bridge")
            .also(&["node", "target_node"]),
        key(
            "tags",
            Kind::List(&Kind::Name(&TAG)),
            "PVE tags, besides those of the datacenter.",
        )
        .default("[]"),
        key("labels", Kind::Labels, "Kubernetes labels of its nodes.").default("{}"),
        key(
            "taints",
            Kind::List(&Kind::Word(&TAINT)),
            "Kubernetes taints of its nodes, as kubectl writes them.",
        )
        .default("[]"),
        key(
            "patches",
            PATHS,
            "Patches for the config of its machines, after those of the cluster.",
        )
        .default("[]"),
        key("nics", Kind::List(&Kind::Section(&NIC)), "More network cards.").later(),
        key(
            "min",
            Kind::Int { min: 0, max: 5000 },
            "Fewest machines when scaled by demand.",
        )
        .later(),
        key("max", Kind::Int { min: 0, max: 5000 }, "Most machines when scaled by demand.").later(),
    ],
};

pub(crate) static MACHINE: Section = Section {
    keys: &[
        key(
            "host",
            Kind::Name(&HOST_NAME),
            "The PVE host that carries it, whatever its pool says.",
        )
        .also(&["node", "target_node"]),
        key("hosts", HOSTS, "PVE hosts that may carry it, instead of those of its pool."),
        key("address", Kind::Word(&IPV4), "Its address.").also(&["ip", "addresses"]),
        key(
            "vmid",
            Kind::Int {
                min: 100,
                max: 999_999_999,
            },
            "Its VMID.",
        )
        .also(&["vmids", "id"]),
        key("mac", Kind::Word(&MAC), "Its MAC address.")
            .default("made from cluster, pool and ordinal")
            .also(&["mac_address", "macaddr"]),
        key("cpu", CPU, "How many cores.").also(&["cores", "cpus", "vcpu"]),
        key("cpu-type", Kind::Name(&CPU_TYPE), "CPU type, as PVE calls it.").also(&["cpu_type", "type"]),
        key("memory", Kind::Word(&MEMORY), "How much memory.").also(&["ram", "mem"]),
        key("disk", DISK, "The system disk: a size, or a section.").also(&["disk_size"]),
        key("disks", DISKS, "More disks, instead of those of its pool.").also(&["extra_disks", "volumes"]),
        key("scsi", SCSI, "SCSI controller.").also(&["scsihw"]),
        key("firmware", FIRMWARE, "UEFI or BIOS.").also(&["bios"]),
        key("onboot", Kind::Flag, "PVE starts the machine when its host boots.").also(&["autostart"]),
        key(
            "startup-order",
            Kind::Int { min: 1, max: 9999 },
            "Place in PVE's start and shutdown order.",
        )
        .also(&["startup", "order"]),
        key(
            "tags",
            Kind::List(&Kind::Name(&TAG)),
            "PVE tags, besides those of datacenter and pool.",
        ),
        key("labels", Kind::Labels, "Kubernetes labels, besides those of its pool."),
        key(
            "taints",
            Kind::List(&Kind::Word(&TAINT)),
            "Kubernetes taints, instead of those of its pool.",
        ),
        key("patches", PATHS, "Patches for its config, after those of cluster and pool."),
    ],
};

static DISK_SECTION: Section = Section {
    keys: &[
        key("size", SIZED, "Size, whole GiB.").default("as the pool's role has it"),
        key("storage", Kind::Name(&STORAGE_ID), "Storage.").default("the datacenter's for disks"),
        key("cache", CACHE, "Cache mode.").default("none"),
        key("discard", Kind::Flag, "Give freed blocks back to the storage.").default("true"),
        key("ssd", Kind::Flag, "Show it as a solid-state disk.").default("true"),
        key(
            "iothread",
            Kind::Flag,
            "A thread of its own; takes effect with `scsi: virtio-scsi-single` only.",
        )
        .default("false"),
    ],
};

const CACHE: Kind = Kind::Choice(&[now("none"), now("writethrough"), now("writeback"), now("directsync")]);

static EXTRA_DISK: Section = Section {
    keys: &[
        key(
            "name",
            Kind::Name(&DISK_NAME),
            "Its name: the serial by which the guest finds it.",
        )
        .required(),
        key("size", SIZED, "Size, whole GiB.").required(),
        key("storage", Kind::Name(&STORAGE_ID), "Storage.").default("the datacenter's for disks"),
        key("cache", CACHE, "Cache mode.").default("none"),
        key("discard", Kind::Flag, "Give freed blocks back to the storage.").default("true"),
        key("ssd", Kind::Flag, "Show it as a solid-state disk.").default("true"),
        key(
            "iothread",
            Kind::Flag,
            "A thread of its own; takes effect with `scsi: virtio-scsi-single` only.",
        )
        .default("false"),
    ],
};

static NIC: Section = Section {
    keys: &[
        key("bridge", Kind::Name(&BRIDGE), "Bridge or SDN vnet.").required(),
        key("vlan", Kind::Int { min: 1, max: 4094 }, "VLAN tag."),
        key(
            "addresses",
            Kind::Either(&Kind::Word(&ADDRESSES), &Kind::List(&Kind::Word(&ADDRESSES))),
            "Addresses by ordinal.",
        ),
    ],
};

static IMAGE: Section = Section {
    keys: &[key("upload", Kind::Flag, "Upload from here, for a PVE without internet.")],
};

static TAILSCALE: Section = Section {
    keys: &[
        key(
            "login-server",
            Kind::Word(&HTTPS),
            "The Headscale server, if not Tailscale's own.",
        )
        .default("https://controlplane.tailscale.com"),
        key("auth-key", Kind::Anything, "")
            .never(
                "cluster.yaml is meant for git, and whoever reads an auth key can join the tailnet.",
                "take it out, revoke it if the file was shared, and set TS_AUTHKEY or put it into the secrets file.",
            )
            .also(&["authkey", "auth_key", "key"]),
        key("tags", Kind::List(&Kind::Name(&TEXT)), "Tailscale tags of the machines."),
        key(
            "routes",
            Kind::List(&Kind::Word(&CIDR)),
            "Routes that the machines advertise.",
        ),
    ],
};

const ADDON: Kind = Kind::Section(&ADDON_SECTION);

static ADDONS: Section = Section {
    keys: &[
        key("cilium", ADDON, "Pod network with kube-proxy replacement."),
        key(
            "proxmox-ccm",
            ADDON,
            "Cloud controller manager for Proxmox, with a PVE account of its own.",
        ),
        key(
            "proxmox-csi",
            ADDON,
            "Volumes on PVE storages, with a PVE account of its own.",
        ),
        key("talos-ccm", ADDON, "Cloud controller manager for Talos."),
        key("metrics-server", ADDON, "`kubectl top`."),
        key("prometheus-crds", ADDON, "Custom resources of the Prometheus operator."),
        key("gateway-api", ADDON, "Custom resources of the Gateway API."),
        key("longhorn", ADDON, "Replicated volumes on the machines' own disks."),
        key("cert-manager", ADDON, "Certificates."),
        key("traefik", ADDON, "Ingress."),
        key("flux", Kind::Section(&GITOPS), "GitOps with Flux."),
        key("argocd", Kind::Section(&GITOPS), "GitOps with Argo CD.").also(&["argo-cd"]),
    ],
};

static ADDON_SECTION: Section = Section {
    keys: &[
        key("version", Kind::Word(&VERSION), "Chart version."),
        key("namespace", Kind::Name(&KUBERNETES_NAME), "Namespace."),
        key("values", Kind::Anything, "Helm values."),
    ],
};

static GITOPS: Section = Section {
    keys: &[
        key("version", Kind::Word(&VERSION), "Version."),
        key("url", Kind::Name(&TEXT), "Repository.").required(),
        key("branch", Kind::Name(&TEXT), "Branch.").default("main"),
        key("path", Kind::Name(&TEXT), "Directory in the repository.").default("."),
        key("values", Kind::Anything, "Helm values."),
    ],
};

static CHART: Section = Section {
    keys: &[
        key("name", Kind::Name(&KUBERNETES_NAME), "Release name.").required(),
        key("chart", Kind::Name(&TEXT), "`oci://…`, or the chart's name in `repo`.").required(),
        key("repo", Kind::Word(&HTTPS), "Chart repository."),
        key("version", Kind::Word(&VERSION), "Chart version."),
        key("namespace", Kind::Name(&KUBERNETES_NAME), "Namespace.").default("default"),
        key("values", Kind::Anything, "Helm values."),
    ],
};

/// Every place of the file that has a key of this name, as dotted paths.
pub(crate) fn places_of(name: &str) -> Vec<String> {
    let mut places = Vec::new();
    walk(&FILE, "", &mut |path, key| {
        if key.name == name && key.when != When::Later {
            places.push(path.to_owned());
        }
    });
    places
}

/// Visits every key with its dotted path; `*` stands for a name that the user gives.
pub(crate) fn walk(section: &'static Section, prefix: &str, visit: &mut dyn FnMut(&str, &'static Key)) {
    for key in section.keys {
        let path = format!("{prefix}{}", key.name);
        visit(&path, key);
        walk_kind(&key.kind, &path, visit);
    }
}

fn walk_kind(kind: &Kind, path: &str, visit: &mut dyn FnMut(&str, &'static Key)) {
    match kind {
        Kind::Section(section) => walk(section, &format!("{path}."), visit),
        Kind::Named(_, section) => walk(section, &format!("{path}.*."), visit),
        Kind::List(item) => walk_kind(item, &format!("{path}[]"), visit),
        Kind::Either(one, other) => {
            walk_kind(one, path, visit);
            walk_kind(other, path, visit);
        }
        Kind::Flag | Kind::Int { .. } | Kind::Word(_) | Kind::Name(_) | Kind::Choice(_) | Kind::Labels | Kind::Anything => {}
    }
}
