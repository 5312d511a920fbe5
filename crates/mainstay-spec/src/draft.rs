//! `Draft`: the file as written, key by key, with the place of everything. What could not be read was reported by `shape`.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use url::Url;

use crate::Environment;
use crate::keys::{self, Kind};
use crate::naming::{self, Naming};
use crate::shape;
use crate::source::{Span, Spanned};
use crate::spec::{DiskCache, Distro, Firmware, Jump, NamePattern, Role, ScsiController, Taint, VersionWish};
use crate::tree::{Node, Sort, Value};
use crate::value::{self, Gib, Mac, Mib, Range, Read};

/// What a key holds. `Unreadable` was reported already, so nobody says that it is missing.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Given<T> {
    Absent,
    Unreadable,
    Is(Spanned<T>),
}

impl<T> Given<T> {
    pub(crate) fn is(&self) -> Option<&Spanned<T>> {
        if let Self::Is(value) = self { Some(value) } else { None }
    }

    pub(crate) fn value(&self) -> Option<&T> {
        self.is().map(|spanned| &spanned.value)
    }

    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

pub(crate) struct Draft {
    /// Where the file begins, to blame for what is nowhere.
    pub start: Span,
    pub name: Given<String>,
    pub datacenter: DatacenterDraft,
    pub network: NetworkDraft,
    pub endpoint: Given<Url>,
    pub distros: Vec<Spanned<Distro>>,
    pub talos: TalosDraft,
    pub kubernetes: Given<VersionWish>,
    pub cni_none: bool,
    pub protect: bool,
    pub names: Given<NamePattern>,
    pub control_plane_workloads: Given<bool>,
    pub pools: Vec<PoolDraft>,
    pub machines: Vec<MachineDraft>,
}

pub(crate) struct DatacenterDraft {
    pub at: Option<Span>,
    pub endpoint: Given<Url>,
    pub fingerprint: Given<[u8; 32]>,
    pub ca: Given<String>,
    pub jump: Given<Jump>,
    pub images: Given<String>,
    pub disks: Given<String>,
    pub seeds: Given<String>,
    pub pool: Given<String>,
    pub tags: Vec<Spanned<String>>,
}

pub(crate) struct NetworkDraft {
    pub cidr: Given<Ipv4Net>,
    pub gateway: Given<Ipv4Addr>,
    pub bridge: Given<String>,
    pub vlan: Given<u32>,
    pub dns: Given<Vec<Spanned<IpAddr>>>,
    pub vip: Given<Ipv4Addr>,
    pub pods: Given<Ipv4Net>,
    pub services: Given<Ipv4Net>,
}

pub(crate) struct TalosDraft {
    pub version: Given<VersionWish>,
    pub extensions: Vec<Spanned<String>>,
    pub patches: Vec<Spanned<String>>,
    pub factory: Given<Url>,
}

pub(crate) struct PoolDraft {
    pub name: String,
    pub at: Span,
    pub role: Role,
    pub count: Given<u32>,
    pub addresses: Given<Range>,
    pub vmids: Given<Range>,
    pub names: Given<NamePattern>,
    pub shape: ShapeDraft,
    pub hosts: Given<Vec<Spanned<String>>>,
    pub node: NodeDraft,
}

pub(crate) struct MachineDraft {
    pub name: String,
    pub at: Span,
    pub host: Given<String>,
    pub hosts: Given<Vec<Spanned<String>>>,
    pub address: Given<Ipv4Addr>,
    pub vmid: Given<u32>,
    pub mac: Given<Mac>,
    pub shape: ShapeDraft,
    pub node: NodeDraft,
}

/// Virtual hardware, as far as it is given.
pub(crate) struct ShapeDraft {
    pub cpu: Given<u32>,
    pub cpu_type: Given<String>,
    pub memory: Given<Mib>,
    pub disk: DiskDraft,
    pub disks: Given<Vec<ExtraDiskDraft>>,
    pub scsi: Given<ScsiController>,
    pub firmware: Given<Firmware>,
    pub onboot: Given<bool>,
    pub startup_order: Given<u32>,
}

pub(crate) struct DiskDraft {
    pub size: Given<Gib>,
    pub storage: Given<String>,
    pub cache: Given<DiskCache>,
    pub discard: Given<bool>,
    pub ssd: Given<bool>,
    pub iothread: Given<bool>,
}

pub(crate) struct ExtraDiskDraft {
    pub name: Given<String>,
    pub disk: DiskDraft,
}

/// What PVE and Kubernetes shall know a machine by.
pub(crate) struct NodeDraft {
    pub tags: Vec<Spanned<String>>,
    pub labels: Vec<(Spanned<String>, String)>,
    pub taints: Given<Vec<Spanned<Taint>>>,
    pub patches: Vec<Spanned<String>>,
}

impl Draft {
    pub(crate) fn read(root: &Node) -> Self {
        let file = Fields(Some(root));
        let distros = [("talos", Distro::Talos), ("rke2", Distro::Rke2), ("k3s", Distro::K3s)];
        Self {
            start: root.entries().first().map_or(root.span, |entry| Span {
                end: entry.key_span.start,
                ..entry.key_span
            }),
            name: file.name("name", &naming::CLUSTER_NAME),
            datacenter: DatacenterDraft::read(
                root.entry("datacenter").map(|entry| entry.key_span),
                &file.section("datacenter"),
            ),
            network: NetworkDraft::read(&file.section("network")),
            endpoint: file.word("endpoint", value::api_endpoint),
            distros: distros
                .into_iter()
                .filter_map(|(key, value)| {
                    root.entry(key).map(|entry| Spanned {
                        value,
                        span: entry.key_span,
                    })
                })
                .collect(),
            talos: TalosDraft::read(&file.section("talos")),
            kubernetes: file.word("kubernetes", value::version),
            cni_none: file.text("cni") == Some("none"),
            protect: file.flag("protect").value() == Some(&true),
            names: file.word("names", value::name_pattern),
            control_plane_workloads: file.flag("control-plane-workloads"),
            pools: file.named("pools", &naming::POOL_NAME, PoolDraft::read),
            machines: file.named("machines", &naming::MACHINE_NAME, MachineDraft::read),
        }
    }

    /// What the file leaves to the environment.
    pub(crate) fn fill_in(&mut self, environment: &Environment) {
        let span = self.datacenter.at.unwrap_or(self.start);
        let endpoint = environment
            .endpoint
            .as_deref()
            .and_then(|text| value::pve_endpoint(text).ok());
        if let (Given::Absent, Some(value)) = (&self.datacenter.endpoint, endpoint) {
            self.datacenter.endpoint = Given::Is(Spanned { value, span });
        }
    }

    pub(crate) fn distro(&self) -> Distro {
        self.distros.first().map_or(Distro::Talos, |distro| distro.value)
    }

    pub(crate) fn pods(&self) -> Ipv4Net {
        self.network
            .pods
            .value()
            .copied()
            .unwrap_or(Ipv4Net::new_assert(Ipv4Addr::new(10, 244, 0, 0), 16))
    }

    pub(crate) fn services(&self) -> Ipv4Net {
        self.network
            .services
            .value()
            .copied()
            .unwrap_or(Ipv4Net::new_assert(Ipv4Addr::new(10, 96, 0, 0), 12))
    }

    /// Every list of patches in the file.
    pub(crate) fn patches(&self) -> impl Iterator<Item = &Spanned<String>> {
        let pools = self.pools.iter().flat_map(|pool| &pool.node.patches);
        let machines = self.machines.iter().flat_map(|machine| &machine.node.patches);
        self.talos.patches.iter().chain(pools).chain(machines)
    }
}

impl DatacenterDraft {
    fn read(at: Option<Span>, fields: &Fields<'_>) -> Self {
        let storage = fields.section("storage");
        Self {
            at,
            endpoint: fields.word("endpoint", value::pve_endpoint),
            fingerprint: fields.word("fingerprint", value::fingerprint),
            ca: fields.name("ca", &naming::PATH),
            jump: fields.word("jump", value::jump),
            images: storage.name("images", &naming::STORAGE_ID),
            disks: storage.name("disks", &naming::STORAGE_ID),
            seeds: storage.name("seeds", &naming::STORAGE_ID),
            pool: fields.name("pool", &naming::RESOURCE_POOL),
            tags: fields.list("tags", |text| naming::TAG.read(text)),
        }
    }
}

impl NetworkDraft {
    fn read(fields: &Fields<'_>) -> Self {
        Self {
            cidr: fields.word("cidr", value::cidr),
            gateway: fields.word("gateway", value::ipv4),
            bridge: fields.name("bridge", &naming::BRIDGE),
            vlan: fields.integer("vlan"),
            dns: fields.given_list("dns", value::ip),
            vip: fields.word("vip", value::ipv4),
            pods: fields.word("pods", value::cidr),
            services: fields.word("services", value::cidr),
        }
    }
}

impl TalosDraft {
    fn read(fields: &Fields<'_>) -> Self {
        Self {
            version: fields.word("version", value::version),
            extensions: fields.list("extensions", |text| naming::EXTENSION.read(text)),
            patches: fields.list("patches", |text| naming::PATH.read(text)),
            factory: fields.word("factory", value::factory),
        }
    }
}

impl PoolDraft {
    fn read(name: &str, at: Span, fields: &Fields<'_>) -> Self {
        let named_so = if name == "control-plane" {
            Role::ControlPlane
        } else {
            Role::Worker
        };
        Self {
            name: name.to_owned(),
            at,
            role: fields
                .choice("role", &[("control-plane", Role::ControlPlane), ("worker", Role::Worker)])
                .value()
                .copied()
                .unwrap_or(named_so),
            count: fields.integer("count"),
            addresses: fields.range("addresses", value::addresses),
            vmids: fields.range("vmids", value::vmids),
            names: fields.word("names", value::name_pattern),
            shape: ShapeDraft::read(fields),
            hosts: fields.given_list("hosts", |text| naming::HOST_NAME.read(text)),
            node: NodeDraft::read(fields),
        }
    }
}

impl MachineDraft {
    fn read(name: &str, at: Span, fields: &Fields<'_>) -> Self {
        Self {
            name: name.to_owned(),
            at,
            host: fields.name("host", &naming::HOST_NAME),
            hosts: fields.given_list("hosts", |text| naming::HOST_NAME.read(text)),
            address: fields.word("address", value::ipv4),
            vmid: fields.integer("vmid"),
            mac: fields.word("mac", value::mac),
            shape: ShapeDraft::read(fields),
            node: NodeDraft::read(fields),
        }
    }
}

impl ShapeDraft {
    fn read(fields: &Fields<'_>) -> Self {
        Self {
            cpu: fields.integer("cpu"),
            cpu_type: fields.name("cpu-type", &naming::CPU_TYPE),
            memory: fields.word("memory", value::memory),
            disk: DiskDraft::system(fields),
            disks: fields.given_nodes("disks", |fields| ExtraDiskDraft {
                name: fields.name("name", &naming::DISK_NAME),
                disk: DiskDraft::read(fields),
            }),
            scsi: fields.choice(
                "scsi",
                &[
                    ("virtio-scsi-pci", ScsiController::VirtioScsiPci),
                    ("virtio-scsi-single", ScsiController::VirtioScsiSingle),
                ],
            ),
            firmware: fields.choice("firmware", &[("ovmf", Firmware::Ovmf), ("seabios", Firmware::Seabios)]),
            onboot: fields.flag("onboot"),
            startup_order: fields.integer("startup-order"),
        }
    }
}

impl DiskDraft {
    /// `disk: 40GiB` or `disk: { size: 40GiB, … }`.
    fn system(fields: &Fields<'_>) -> Self {
        let section = fields.section("disk");
        match section.0.map(Node::sort) {
            Some(Sort::Map) | None => Self::read(&section),
            Some(_) => Self {
                size: fields.word("disk", value::disk_size),
                ..Self::read(&Fields(None))
            },
        }
    }

    fn read(fields: &Fields<'_>) -> Self {
        let caches = [
            DiskCache::None,
            DiskCache::Writethrough,
            DiskCache::Writeback,
            DiskCache::Directsync,
        ];
        Self {
            size: fields.word("size", value::disk_size),
            storage: fields.name("storage", &naming::STORAGE_ID),
            cache: fields.choice("cache", &caches.map(|cache| (cache.as_str(), cache))),
            discard: fields.flag("discard"),
            ssd: fields.flag("ssd"),
            iothread: fields.flag("iothread"),
        }
    }
}

impl NodeDraft {
    fn read(fields: &Fields<'_>) -> Self {
        let labels = fields.section("labels").0.map(Node::entries).unwrap_or_default();
        let label = |entry: &crate::tree::Entry| {
            let value = if entry.value.sort() == Sort::Nothing {
                ""
            } else {
                entry.value.text()?
            };
            Some((
                Spanned {
                    value: entry.key.clone(),
                    span: entry.key_span,
                },
                value.to_owned(),
            ))
        };
        Self {
            tags: fields.list("tags", |text| naming::TAG.read(text)),
            labels: labels.iter().filter_map(label).collect(),
            taints: fields.given_list("taints", value::taint),
            patches: fields.list("patches", |text| naming::PATH.read(text)),
        }
    }
}

/// The keys of one section, or of none.
struct Fields<'n>(Option<&'n Node>);

impl<'n> Fields<'n> {
    fn node(&self, key: &str) -> Option<&'n Node> {
        self.0?.entry(key).map(|entry| &entry.value)
    }

    fn section(&self, key: &str) -> Self {
        Self(self.node(key))
    }

    fn text(&self, key: &str) -> Option<&'n str> {
        self.node(key)?.text()
    }

    fn word<T>(&self, key: &str, read: impl Fn(&str) -> Read<T>) -> Given<T> {
        self.given(key, |node| node.text().and_then(|text| read(text).ok()))
    }

    fn name(&self, key: &str, naming: &Naming) -> Given<String> {
        self.word(key, |text| naming.read(text))
    }

    fn flag(&self, key: &str) -> Given<bool> {
        self.given(key, |node| {
            (node.sort() == Sort::Flag).then(|| node.text().is_some_and(|text| text.eq_ignore_ascii_case("true")))
        })
    }

    fn integer(&self, key: &str) -> Given<u32> {
        let section = [&keys::POOL, &keys::MACHINE].into_iter().find_map(|section| section.key(key));
        let max = if let Some(Kind::Int { max, .. }) = section.map(|key| &key.kind) {
            u64::from(*max)
        } else {
            u64::from(u32::MAX)
        };
        self.given(key, |node| {
            let number = shape::integer(node.text()?).filter(|number| *number <= max)?;
            u32::try_from(number).ok().filter(|_| node.sort() == Sort::Integer)
        })
    }

    fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Given<T> {
        self.given(key, |node| {
            choices
                .iter()
                .find(|(name, _)| node.text() == Some(name))
                .map(|(_, value)| *value)
        })
    }

    /// The items that can be read; the others were reported.
    fn list<T>(&self, key: &str, read: impl Fn(&str) -> Read<T>) -> Vec<Spanned<T>> {
        let items = self.node(key).map(Node::items).unwrap_or_default();
        items
            .iter()
            .filter_map(|node| {
                Some(Spanned {
                    value: read(node.text()?).ok()?,
                    span: node.span,
                })
            })
            .collect()
    }

    /// All items, or none: whoever counts them must not miss one.
    fn given_list<T>(&self, key: &str, read: impl Fn(&str) -> Read<T>) -> Given<Vec<Spanned<T>>> {
        let item = |node: &Node| {
            Some(Spanned {
                value: read(node.text()?).ok()?,
                span: node.span,
            })
        };
        self.given(key, |node| {
            (node.sort() == Sort::List)
                .then(|| node.items().iter().map(item).collect::<Option<_>>())
                .flatten()
        })
    }

    fn given_nodes<T>(&self, key: &str, read: impl Fn(&Fields<'_>) -> T) -> Given<Vec<T>> {
        self.given(key, |node| {
            (node.sort() == Sort::List).then(|| node.items().iter().map(|item| read(&Fields(Some(item)))).collect())
        })
    }

    /// One range or a list of them; all or nothing, since ordinals count through it.
    fn range(&self, key: &str, read: fn(&str) -> Read<Range>) -> Given<Range> {
        self.given(key, |node| match &node.value {
            Value::List(items) => {
                let ranges: Option<Vec<Range>> = items.iter().map(|item| read(item.text()?).ok()).collect();
                ranges.map(Range::join)
            }
            _ => read(node.text()?).ok(),
        })
    }

    fn named<T>(&self, key: &str, naming: &Naming, read: impl Fn(&str, Span, &Fields<'_>) -> T) -> Vec<T> {
        let entries = self.node(key).map(Node::entries).unwrap_or_default();
        let known = entries.iter().filter(|entry| (naming.fits)(&entry.key));
        known
            .map(|entry| read(&entry.key, entry.key_span, &Fields(Some(&entry.value))))
            .collect()
    }

    fn given<T>(&self, key: &str, read: impl FnOnce(&'n Node) -> Option<T>) -> Given<T> {
        match self.node(key) {
            None => Given::Absent,
            Some(node) => read(node).map_or(Given::Unreadable, |value| Given::Is(Spanned { value, span: node.span })),
        }
    }
}
