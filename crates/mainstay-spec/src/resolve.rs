//! From a draft without faults to its meaning: every default applied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::addons;
use crate::draft::{DiskFields, Draft, Fields, NamedFields};
use crate::key::{Key, SettingList, ShortOrLong};
use crate::keys::{self, datacenter, distro, network, pool, shape};
use crate::provisioning;
use crate::roster::{RosterEntry, names_of};
use crate::source::Spanned;
use crate::spec::{
    ApiEndpoint, Bridge, ClusterName, Cni, Datacenter, Disk, DiskOptions, Distro, DistroSpec, EndpointBy, Extension, ExtraDisk,
    FileRef, HostName, Hosts, ImageSource, Machine, MachineName, Network, Pool, PoolName, PveTrust, RancherSpec, ResourcePool,
    Role, Shape, Spec, StorageId, StorageNames, Tag, TalosSpec, VersionWish,
};
use crate::value::Gib;

fn system_disk(distro: Distro, role: Role) -> Gib {
    match (distro, role) {
        (Distro::Talos, Role::ControlPlane) => Gib(40),
        (Distro::Talos, Role::Worker) => Gib(60),
        (Distro::Rke2 | Distro::K3s, Role::ControlPlane) => Gib(50),
        (Distro::Rke2 | Distro::K3s, Role::Worker) => Gib(100),
    }
}

/// `None` only if something that was reported is missing.
pub(crate) fn resolve(draft: &Draft<'_>, roster: &[RosterEntry<'_>], texts: &BTreeMap<String, Arc<str>>) -> Option<Spec> {
    let files = Files { texts };
    let network = network(draft)?;
    let mut machines = Vec::with_capacity(roster.len());
    for members in roster.chunk_by(|one, other| std::ptr::eq(one.pool, other.pool)) {
        // The pool is read once, however many machines it has.
        let base = shape(
            &members[0].pool.fields,
            &default_shape(draft.distro(), members[0].pool.role())?,
        )?;
        for member in members {
            machines.push(machine(draft, member, &base, &files)?);
        }
    }
    // The sort is stable: within a role the order of the file stays.
    machines.sort_by_key(|machine| machine.role);
    let workers = machines.iter().any(|machine| machine.role == Role::Worker);
    Some(Spec {
        name: ClusterName(draft.file.value(&keys::NAME)?),
        datacenter: datacenter(draft, &files)?,
        endpoint: endpoint(draft, &network, &machines)?,
        network,
        distro: distro_spec(draft, &files)?,
        kubernetes: wish(&draft.file, &keys::KUBERNETES),
        cni: draft.file.value(&keys::CNI).unwrap_or(Cni::default_of(draft.distro())),
        provision: draft.file.or_default(&keys::PROVISION)?,
        provisioning: provisioning::resolve(draft)?,
        tailscale: addons::tailscale(draft)?,
        addons: addons::resolve(draft)?,
        verify_image: draft.file.section(&keys::VERIFY).value(&keys::addons::VERIFY_IMAGE),
        protect: draft.file.or_default(&keys::PROTECT)?,
        control_plane_workloads: draft.file.value(&keys::CONTROL_PLANE_WORKLOADS).unwrap_or(!workers),
        pools: draft
            .pools
            .iter()
            .map(|pool| self::pool(draft, pool))
            .collect::<Option<_>>()?,
        machines,
    })
}

/// The contents of the files that were found.
struct Files<'t> {
    texts: &'t BTreeMap<String, Arc<str>>,
}

impl Files<'_> {
    fn get(&self, path: String) -> Option<FileRef> {
        let text = self.texts.get(&path)?.clone();
        Some(FileRef { path, text })
    }

    fn all(&self, paths: Vec<Spanned<String>>) -> Option<Vec<FileRef>> {
        paths.into_iter().map(|path| self.get(path.value)).collect()
    }
}

fn wish(fields: &Fields<'_>, key: &Key<VersionWish>) -> VersionWish {
    fields.value(key).unwrap_or(VersionWish::Any)
}

fn distro_spec(draft: &Draft<'_>, files: &Files<'_>) -> Option<DistroSpec> {
    let (distro, version) = match draft.distro() {
        Distro::Talos => return talos(&draft.talos, files).map(DistroSpec::Talos),
        Distro::Rke2 => (rancher_config::Distro::Rke2, &distro::RKE2_VERSION),
        Distro::K3s => (rancher_config::Distro::K3s, &distro::K3S_VERSION),
    };
    let fields = &draft.rancher;
    let image = match fields.or_default(&distro::IMAGE)? {
        ShortOrLong::Short(image) => ImageSource::Known(image),
        ShortOrLong::Long => ImageSource::File {
            url: fields.inner(&distro::IMAGE).value(&distro::IMAGE_URL)?,
            checksum: fields.inner(&distro::IMAGE).value(&distro::IMAGE_CHECKSUM)?,
        },
    };
    Some(DistroSpec::Rancher(RancherSpec {
        distro,
        version: fields.value(version),
        image,
        mirror: fields.value(&distro::MIRROR),
        artifact: fields.or_default(&distro::ARTIFACT)?,
        config: settings(fields, &distro::CONFIG),
        ssh_keys: fields.items(&distro::SSH_KEYS).into_iter().map(|key| key.value).collect(),
    }))
}

/// Settings of another program, as that program gets them.
pub(crate) fn settings(fields: &Fields<'_>, key: &Key<SettingList>) -> serde_json::Map<String, serde_json::Value> {
    let settings = fields.value(key).unwrap_or_default();
    settings.into_iter().map(|(key, value)| (key.value, value)).collect()
}

fn talos(fields: &Fields<'_>, files: &Files<'_>) -> Option<TalosSpec> {
    let extension = |name: Spanned<String>| match name.value {
        name if name.contains('/') => Extension(name),
        name => Extension(format!("siderolabs/{name}")),
    };
    Some(TalosSpec {
        version: wish(fields, &distro::VERSION),
        extensions: fields.items(&distro::EXTENSIONS).into_iter().map(extension).collect(),
        patches: files.all(fields.items(&distro::PATCHES))?,
        factory: fields.or_default(&distro::FACTORY)?,
    })
}

fn datacenter(draft: &Draft<'_>, files: &Files<'_>) -> Option<Datacenter> {
    let fields = &draft.datacenter;
    let storage = fields.section(&datacenter::STORAGE);
    let trust = match (fields.value(&datacenter::FINGERPRINT), fields.value(&datacenter::CA)) {
        (Some(fingerprint), _) => PveTrust::Fingerprint(fingerprint),
        (None, Some(ca)) => PveTrust::Ca(files.get(ca)?),
        (None, None) => PveTrust::Roots,
    };
    Some(Datacenter {
        endpoint: draft.pve_endpoint.clone().value()?,
        trust,
        token_file: fields.value(&datacenter::TOKEN_FILE),
        jump: fields.value(&datacenter::JUMP),
        storage: StorageNames {
            images: storage.value(&datacenter::IMAGES).map(StorageId),
            disks: storage.value(&datacenter::DISKS).map(StorageId),
            seeds: storage.value(&datacenter::SEEDS).map(StorageId),
            templates: storage.value(&datacenter::TEMPLATES).map(StorageId),
        },
        pool: fields.value(&datacenter::POOL).map(ResourcePool),
    })
}

fn network(draft: &Draft<'_>) -> Option<Network> {
    let fields = &draft.network;
    let dns = fields.or_default(&network::DNS)?;
    Some(Network {
        cidr: fields.value(&network::CIDR)?,
        gateway: fields.value(&network::GATEWAY)?,
        bridge: Bridge(fields.or_default(&network::BRIDGE)?),
        vlan: fields.value(&network::VLAN).and_then(|vlan| u16::try_from(vlan).ok()),
        dns: dns.readable.into_iter().map(|server| server.value).collect(),
        search: fields
            .items(&network::SEARCH)
            .into_iter()
            .map(|domain| domain.value)
            .collect(),
        vip: fields.value(&network::VIP),
        pods: draft.pods(),
        services: draft.services(),
    })
}

fn endpoint(draft: &Draft<'_>, network: &Network, machines: &[Machine]) -> Option<ApiEndpoint> {
    if let Some(url) = draft.file.value(&keys::ENDPOINT) {
        let (host, port) = (url.host_str()?.to_owned(), url.port_or_known_default()?);
        return Some(ApiEndpoint {
            host,
            port,
            by: EndpointBy::Given,
        });
    }
    let first = machines.iter().find(|machine| machine.role == Role::ControlPlane)?;
    let (host, by) = network
        .vip
        .map_or((first.address, EndpointBy::Machine), |vip| (vip, EndpointBy::Vip));
    Some(ApiEndpoint {
        host: host.to_string(),
        port: 6443,
        by,
    })
}

fn pool(draft: &Draft<'_>, pool: &NamedFields<'_>) -> Option<Pool> {
    Some(Pool {
        name: PoolName(pool.name.to_owned()),
        role: pool.role(),
        count: pool.fields.value(&pool::COUNT)?,
        max_unavailable: pool.fields.or_default(&pool::MAX_UNAVAILABLE)?,
        names: names_of(draft, pool)?,
        at: pool.at,
    })
}

fn machine(draft: &Draft<'_>, member: &RosterEntry<'_>, base: &Shape, files: &Files<'_>) -> Option<Machine> {
    let (pool, own) = (&member.pool.fields, member.own.map(|own| &own.fields));
    let both = || std::iter::once(pool).chain(own);
    let taints = own
        .and_then(|own| own.list(&pool::TAINTS).value())
        .unwrap_or_else(|| pool.items(&pool::TAINTS));
    let tags = both().flat_map(|fields| fields.items(&pool::TAGS));
    let patches = both().flat_map(|fields| fields.items(&pool::PATCHES));
    Some(Machine {
        name: MachineName(member.name.clone()),
        role: member.pool.role(),
        pool: PoolName(member.pool.name.to_owned()),
        ordinal: member.ordinal,
        vmid: member.vmid.as_ref()?.value,
        mac: member.mac.value,
        address: member.address.as_ref()?.value,
        shape: own.map_or_else(|| Some(base.clone()), |own| shape(own, base))?,
        options: provisioning::vm_options(&draft.file.value(&keys::NAME)?, member)?,
        hosts: hosts(pool, own),
        tags: tags
            .chain(draft.datacenter.items(&datacenter::TAGS))
            .map(|tag| Tag(tag.value))
            .collect::<BTreeSet<_>>(),
        labels: both()
            .flat_map(|fields| fields.value(&pool::LABELS).unwrap_or_default())
            .map(|(key, value)| (key.value, value))
            .collect(),
        taints: taints.into_iter().map(|taint| taint.value).collect(),
        patches: files.all(draft.talos.items(&distro::PATCHES).into_iter().chain(patches).collect())?,
        at: member.own.map_or(member.pool.at, |own| own.at),
    })
}

fn hosts(pool: &Fields<'_>, own: Option<&Fields<'_>>) -> Hosts {
    if let Some(host) = own.and_then(|own| own.value(&pool::HOST)) {
        return Hosts::Pinned(HostName(host));
    }
    let several = own
        .and_then(|own| own.list(&pool::HOSTS).value())
        .or_else(|| pool.list(&pool::HOSTS).value());
    several.map_or(Hosts::Any, |hosts| {
        Hosts::OneOf(hosts.into_iter().map(|host| HostName(host.value)).collect())
    })
}

/// The hardware of a pool that says nothing about it.
fn default_shape(distro: Distro, role: Role) -> Option<Shape> {
    Some(Shape {
        cpu: shape::CPU.default_value()?,
        cpu_type: shape::CPU_TYPE.default_value()?,
        memory: shape::MEMORY.default_value()?,
        disk: Disk {
            size: system_disk(distro, role),
            storage: None,
            options: default_options()?,
        },
        disks: Vec::new(),
        scsi: shape::SCSI.default_value()?,
        firmware: shape::FIRMWARE.default_value()?,
        onboot: shape::ONBOOT.default_value()?,
        startup_order: None,
    })
}

fn default_options() -> Option<DiskOptions> {
    Some(DiskOptions {
        cache: shape::CACHE.default_value()?,
        discard: shape::DISCARD.default_value()?,
        ssd: shape::SSD.default_value()?,
        iothread: shape::IOTHREAD.default_value()?,
    })
}

/// What a pool or machine says, else what `base` says: its pool, or the defaults.
fn shape(fields: &Fields<'_>, base: &Shape) -> Option<Shape> {
    let disk = DiskFields::system(fields);
    let disks = match fields.sections(&shape::DISKS).value() {
        Some(disks) => disks.into_iter().map(extra_disk).collect::<Option<_>>()?,
        None => base.disks.clone(),
    };
    Some(Shape {
        cpu: fields.value(&shape::CPU).unwrap_or(base.cpu),
        cpu_type: fields.value(&shape::CPU_TYPE).unwrap_or_else(|| base.cpu_type.clone()),
        memory: fields.value(&shape::MEMORY).unwrap_or(base.memory),
        disk: Disk {
            size: disk.size.value().unwrap_or(base.disk.size),
            storage: disk
                .options
                .value(&shape::STORAGE)
                .map(StorageId)
                .or_else(|| base.disk.storage.clone()),
            options: options(&disk.options, base.disk.options),
        },
        disks,
        scsi: fields.value(&shape::SCSI).unwrap_or(base.scsi),
        firmware: fields.value(&shape::FIRMWARE).unwrap_or(base.firmware),
        onboot: fields.value(&shape::ONBOOT).unwrap_or(base.onboot),
        startup_order: fields.value(&shape::STARTUP_ORDER).or(base.startup_order),
    })
}

fn options(fields: &Fields<'_>, base: DiskOptions) -> DiskOptions {
    DiskOptions {
        cache: fields.value(&shape::CACHE).unwrap_or(base.cache),
        discard: fields.value(&shape::DISCARD).unwrap_or(base.discard),
        ssd: fields.value(&shape::SSD).unwrap_or(base.ssd),
        iothread: fields.value(&shape::IOTHREAD).unwrap_or(base.iothread),
    }
}

fn extra_disk(fields: Fields<'_>) -> Option<ExtraDisk> {
    let name = fields.value(&shape::NAME)?;
    let disk = DiskFields::extra(fields);
    Some(ExtraDisk {
        name,
        disk: Disk {
            size: disk.size.value()?,
            storage: disk.options.value(&shape::STORAGE).map(StorageId),
            options: options(&disk.options, default_options()?),
        },
    })
}
