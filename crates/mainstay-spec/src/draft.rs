//! `Draft`: the file as written. A value is read by the declaration of its key, with its place. What cannot be read was reported by
//! `type_check`.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use url::Url;

use crate::Environment;
use crate::key::{Inside, Items, Key, NamedInside, ShortOrLong};
use crate::keys::{self, datacenter, distro, network, pool, shape};
use crate::source::{Span, Spanned};
use crate::spec::{Distro, Role};
use crate::tree::{YamlEntry, YamlKind, YamlNode};
use crate::value::{self, Gib};

/// What a key holds. `Unreadable` was reported already, so that it is not reported as missing too.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Given<T> {
    Absent,
    Unreadable,
    Is(Spanned<T>),
}

impl<T> Given<T> {
    pub(crate) fn is(self) -> Option<Spanned<T>> {
        if let Self::Is(value) = self { Some(value) } else { None }
    }

    pub(crate) fn value(self) -> Option<T> {
        self.is().map(|spanned| spanned.value)
    }

    fn and_then<U>(self, change: impl FnOnce(T) -> Option<U>) -> Given<U> {
        match self {
            Self::Absent => Given::Absent,
            Self::Unreadable => Given::Unreadable,
            Self::Is(Spanned { value, span }) => {
                change(value).map_or(Given::Unreadable, |value| Given::Is(Spanned { value, span }))
            }
        }
    }
}

pub(crate) struct Draft<'n> {
    /// Where the file begins: the place of what is missing altogether.
    pub start: Span,
    pub file: Fields<'n>,
    pub datacenter: Fields<'n>,
    pub network: Fields<'n>,
    pub talos: Fields<'n>,
    /// `rke2` or `k3s`, whichever is the distribution.
    pub rancher: Fields<'n>,
    /// Of the file, else of the environment.
    pub pve_endpoint: Given<Url>,
    /// The distributions that have a section, at the key of that section.
    pub distros: Vec<Spanned<Distro>>,
    pub pools: Vec<NamedFields<'n>>,
    pub machines: Vec<NamedFields<'n>>,
}

impl<'n> Draft<'n> {
    pub(crate) fn read(root: &'n YamlNode) -> Self {
        let file = Fields {
            node: Some(root),
            at: None,
        };
        let datacenter = file.section(&keys::DATACENTER);
        let distros = [
            (&keys::TALOS, Distro::Talos),
            (&keys::RKE2, Distro::Rke2),
            (&keys::K3S, Distro::K3s),
        ];
        let named = |(key, value): (&Key<Inside>, Distro)| {
            let span = file.section(key).at?;
            Some(Spanned { value, span })
        };
        Self {
            start: root.entries().first().map_or(root.span, |entry| Span {
                end: entry.key_span.start,
                ..entry.key_span
            }),
            pve_endpoint: datacenter.get(&datacenter::ENDPOINT),
            datacenter,
            network: file.section(&keys::NETWORK),
            talos: file.section(&keys::TALOS),
            rancher: [&keys::RKE2, &keys::K3S]
                .map(|key| file.section(key))
                .into_iter()
                .find(|section| section.at.is_some())
                .unwrap_or_default(),
            distros: distros.into_iter().filter_map(named).collect(),
            pools: file.named(&keys::POOLS),
            machines: file.named(&keys::MACHINES),
            file,
        }
    }

    /// Takes from the environment what the file leaves to it.
    pub(crate) fn fill_in(&mut self, environment: &Environment) {
        let span = self.datacenter.at.unwrap_or(self.start);
        let endpoint = environment
            .endpoint
            .as_deref()
            .and_then(|text| value::pve_endpoint(text).ok());
        if let (Given::Absent, Some(value)) = (&self.pve_endpoint, endpoint) {
            self.pve_endpoint = Given::Is(Spanned { value, span });
        }
    }

    pub(crate) fn distro(&self) -> Distro {
        self.distros.first().map_or(Distro::Talos, |distro| distro.value)
    }

    /// The network of the pods. The default is the one of the distribution.
    pub(crate) fn pods(&self) -> Ipv4Net {
        let default = match self.distro() {
            Distro::Talos => Ipv4Addr::new(10, 244, 0, 0),
            Distro::Rke2 | Distro::K3s => Ipv4Addr::new(10, 42, 0, 0),
        };
        self.network.value(&network::PODS).unwrap_or(Ipv4Net::new_assert(default, 16))
    }

    pub(crate) fn services(&self) -> Ipv4Net {
        let default = match self.distro() {
            Distro::Talos => Ipv4Net::new_assert(Ipv4Addr::new(10, 96, 0, 0), 12),
            Distro::Rke2 | Distro::K3s => Ipv4Net::new_assert(Ipv4Addr::new(10, 43, 0, 0), 16),
        };
        self.network.value(&network::SERVICES).unwrap_or(default)
    }

    /// Every patch that the file names.
    pub(crate) fn patches(&self) -> Vec<Spanned<String>> {
        let named = self.pools.iter().chain(&self.machines);
        let mut patches = self.talos.items(&distro::PATCHES);
        patches.extend(named.flat_map(|named| named.fields.items(&pool::PATCHES)));
        patches
    }
}

/// A pool or a machine: its keys under its name.
pub(crate) struct NamedFields<'n> {
    pub name: &'n str,
    /// The name as a key of the file.
    pub at: Span,
    pub fields: Fields<'n>,
}

impl NamedFields<'_> {
    /// The role of a pool: what it says, else what its name says.
    pub(crate) fn role(&self) -> Role {
        let by_name = match self.name {
            "control-plane" => Role::ControlPlane,
            _ => Role::Worker,
        };
        self.fields.value(&pool::ROLE).unwrap_or(by_name)
    }

    /// How many machines a pool has; none if that cannot be read.
    pub(crate) fn count(&self) -> u32 {
        self.fields.value(&pool::COUNT).unwrap_or(0)
    }
}

/// A disk: its size, which may stand alone, and its other keys.
pub(crate) struct DiskFields<'n> {
    pub size: Given<Gib>,
    pub options: Fields<'n>,
}

impl<'n> DiskFields<'n> {
    /// `disk: 40GiB` or `disk: { size: 40GiB, … }`.
    pub(crate) fn system(fields: &Fields<'n>) -> Self {
        let options = fields.inner(&shape::DISK);
        let size = match fields.get(&shape::DISK) {
            Given::Is(Spanned {
                value: ShortOrLong::Long,
                ..
            }) => options.get(&shape::SIZE),
            short => short.and_then(|disk| match disk {
                ShortOrLong::Short(size) => Some(size),
                ShortOrLong::Long => None,
            }),
        };
        Self { size, options }
    }

    pub(crate) fn extra(fields: Fields<'n>) -> Self {
        Self {
            size: fields.get(&shape::SIZE),
            options: fields,
        }
    }
}

/// The keys of one section, or of one that is not there.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fields<'n> {
    node: Option<&'n YamlNode>,
    /// The key of the section.
    pub at: Option<Span>,
}

impl<'n> Fields<'n> {
    fn entry<T>(&self, key: &Key<T>) -> Option<&'n YamlEntry> {
        self.node?.entry(key.name())
    }

    pub(crate) fn get<T>(&self, key: &Key<T>) -> Given<T> {
        let Some(YamlEntry { value: node, .. }) = self.entry(key) else {
            return Given::Absent;
        };
        let spanned = |value| Given::Is(Spanned { value, span: node.span });
        key.read(node).map_or(Given::Unreadable, spanned)
    }

    pub(crate) fn spanned<T>(&self, key: &Key<T>) -> Option<Spanned<T>> {
        self.get(key).is()
    }

    pub(crate) fn value<T>(&self, key: &Key<T>) -> Option<T> {
        self.get(key).value()
    }

    pub(crate) fn is_absent<T>(&self, key: &Key<T>) -> bool {
        self.entry(key).is_none()
    }

    /// The value, or the default that the key is declared with. `None` if the default is not written as a value.
    pub(crate) fn or_default<T>(&self, key: &Key<T>) -> Option<T> {
        self.value(key).or_else(|| key.default_value())
    }

    pub(crate) fn section(&self, key: &Key<Inside>) -> Self {
        self.inner(key)
    }

    /// The keys below a key, if it has any.
    pub(crate) fn inner<T>(&self, key: &Key<T>) -> Self {
        let entry = self.entry(key);
        Self {
            node: entry.map(|entry| &entry.value),
            at: entry.map(|entry| entry.key_span),
        }
    }

    /// The sections below a key whose names can be used; other names were reported.
    pub(crate) fn named(&self, key: &Key<NamedInside>) -> Vec<NamedFields<'n>> {
        let entries = self.inner(key).node.map(YamlNode::entries).unwrap_or_default();
        entries
            .iter()
            .filter(|entry| key.takes_name(&entry.key))
            .map(|entry| NamedFields {
                name: &entry.key,
                at: entry.key_span,
                fields: Fields {
                    node: Some(&entry.value),
                    at: Some(entry.key_span),
                },
            })
            .collect()
    }

    /// A list of sections.
    pub(crate) fn sections(&self, key: &Key<Items<Inside>>) -> Given<Vec<Self>> {
        let Some(entry) = self.entry(key) else { return Given::Absent };
        if entry.value.kind() != YamlKind::List {
            return Given::Unreadable;
        }
        let inside = |node: &'n YamlNode| Self {
            node: Some(node),
            at: Some(node.span),
        };
        Given::Is(Spanned {
            value: entry.value.items().iter().map(inside).collect(),
            span: entry.value.span,
        })
    }

    /// The items of a list that are values or sections.
    pub(crate) fn items_or_sections<T>(&self, key: &Key<Items<ShortOrLong<T>>>) -> Vec<(ShortOrLong<T>, Self)> {
        let nodes = self.entry(key).map(|entry| entry.value.items()).unwrap_or_default();
        let by_span = |span: Span| nodes.iter().find(|node| node.span == span);
        let fields = |item: Spanned<ShortOrLong<T>>| {
            let inside = Self {
                node: by_span(item.span),
                at: Some(item.span),
            };
            (item.value, inside)
        };
        self.items(key).into_iter().map(fields).collect()
    }

    /// The items of a list that can be read; the others were reported.
    pub(crate) fn items<T>(&self, key: &Key<Items<T>>) -> Vec<Spanned<T>> {
        self.value(key).map_or(Vec::new(), |items| items.readable)
    }

    /// All items of a list or none, for checks that count them.
    pub(crate) fn list<T>(&self, key: &Key<Items<T>>) -> Given<Vec<Spanned<T>>> {
        self.get(key).and_then(|items| items.complete.then_some(items.readable))
    }
}
