//! From a draft without faults to its meaning: every default applied.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use url::Url;

use crate::draft::{DiskDraft, Draft, Given, MachineDraft, PoolDraft, ShapeDraft};
use crate::roster::{Member, names_of};
use crate::source::Spanned;
use crate::spec::{
    ApiEndpoint, Bridge, ClusterName, Cni, Datacenter, Disk, DiskCache, DiskOptions, DistroSpec, EndpointBy, Extension,
    ExtraDisk, FileRef, Firmware, HostName, Hosts, Machine, MachineName, Network, Pool, PoolName, Provision, PveTrust,
    ResourcePool, Role, ScsiController, Shape, Spec, StorageId, StorageNames, Tag, TalosSpec, VersionWish,
};
use crate::value::{Gib, Mib};

const CPU: u32 = 4;
const CPU_TYPE: &str = "x86-64-v2-AES";
const MEMORY: Mib = Mib(8192);
const DNS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1)), IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8))];
const FACTORY: &str = "https://factory.talos.dev";

fn system_disk(role: Role) -> Gib {
    match role {
        Role::ControlPlane => Gib(40),
        Role::Worker => Gib(60),
    }
}

/// `None` only if something that was reported is missing.
pub(crate) fn resolve(draft: &Draft, roster: &[Member<'_>], texts: &BTreeMap<String, Arc<str>>) -> Option<Spec> {
    let files = Files { texts };
    let network = network(draft)?;
    let talos_patches = files.all(&draft.talos.patches)?;
    let mut machines: Vec<Machine> = roster
        .iter()
        .map(|member| machine(draft, member, &files))
        .collect::<Option<_>>()?;
    // The sort is stable: within a role the order of the file stays.
    machines.sort_by_key(|machine| machine.role);
    let workers = machines.iter().any(|machine| machine.role == Role::Worker);
    Some(Spec {
        name: ClusterName(draft.name.value()?.clone()),
        datacenter: datacenter(draft, &files)?,
        endpoint: endpoint(draft, &network, &machines)?,
        network,
        distro: DistroSpec::Talos(TalosSpec {
            version: wish(&draft.talos.version),
            extensions: draft.talos.extensions.iter().map(extension).collect(),
            patches: talos_patches,
            factory: draft.talos.factory.value().cloned().or_else(|| Url::parse(FACTORY).ok())?,
        }),
        kubernetes: wish(&draft.kubernetes),
        cni: if draft.cni_none { Cni::None } else { Cni::Flannel },
        provision: Provision::Import,
        protect: draft.protect,
        control_plane_workloads: draft.control_plane_workloads.value().copied().unwrap_or(!workers),
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
    fn get(&self, path: &str) -> Option<FileRef> {
        Some(FileRef {
            path: path.to_owned(),
            text: self.texts.get(path)?.clone(),
        })
    }

    fn all(&self, paths: &[Spanned<String>]) -> Option<Vec<FileRef>> {
        paths.iter().map(|path| self.get(&path.value)).collect()
    }
}

fn wish(given: &Given<VersionWish>) -> VersionWish {
    given.value().cloned().unwrap_or(VersionWish::Any)
}

fn extension(name: &Spanned<String>) -> Extension {
    let name = &name.value;
    Extension(if name.contains('/') {
        name.clone()
    } else {
        format!("siderolabs/{name}")
    })
}

fn datacenter(draft: &Draft, files: &Files<'_>) -> Option<Datacenter> {
    let given = &draft.datacenter;
    let storage = |given: &Given<String>| given.value().cloned().map(StorageId);
    let trust = match (given.fingerprint.value(), given.ca.value()) {
        (Some(fingerprint), _) => PveTrust::Fingerprint(*fingerprint),
        (None, Some(ca)) => PveTrust::Ca(files.get(ca)?),
        (None, None) => PveTrust::Roots,
    };
    Some(Datacenter {
        endpoint: given.endpoint.value()?.clone(),
        trust,
        jump: given.jump.value().cloned(),
        storage: StorageNames {
            images: storage(&given.images),
            disks: storage(&given.disks),
            seeds: storage(&given.seeds),
        },
        pool: given.pool.value().cloned().map(ResourcePool),
    })
}

fn network(draft: &Draft) -> Option<Network> {
    let given = &draft.network;
    let dns = given
        .dns
        .value()
        .map(|servers| servers.iter().map(|server| server.value).collect());
    Some(Network {
        cidr: *given.cidr.value()?,
        gateway: *given.gateway.value()?,
        bridge: Bridge(given.bridge.value().cloned().unwrap_or_else(|| "vmbr0".to_owned())),
        vlan: given.vlan.value().and_then(|vlan| u16::try_from(*vlan).ok()),
        dns: dns.unwrap_or_else(|| DNS.to_vec()),
        vip: given.vip.value().copied(),
        pods: draft.pods(),
        services: draft.services(),
    })
}

fn endpoint(draft: &Draft, network: &Network, machines: &[Machine]) -> Option<ApiEndpoint> {
    if let Some(url) = draft.endpoint.value() {
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

fn pool(draft: &Draft, pool: &PoolDraft) -> Option<Pool> {
    let count = *pool.count.value()?;
    Some(Pool {
        name: PoolName(pool.name.clone()),
        role: pool.role,
        count,
        names: names_of(draft, pool),
        at: pool.at,
    })
}

fn machine(draft: &Draft, member: &Member<'_>, files: &Files<'_>) -> Option<Machine> {
    let (pool, own) = (member.pool, member.own);
    let tags = [&draft.datacenter.tags, &pool.node.tags]
        .into_iter()
        .chain(own.map(|own| &own.node.tags));
    let labels = [&pool.node.labels].into_iter().chain(own.map(|own| &own.node.labels));
    let patches = [&draft.talos.patches, &pool.node.patches]
        .into_iter()
        .chain(own.map(|own| &own.node.patches));
    let taints = own.and_then(|own| own.node.taints.value()).or(pool.node.taints.value());
    Some(Machine {
        name: MachineName(member.name.clone()),
        role: pool.role,
        pool: PoolName(pool.name.clone()),
        ordinal: member.ordinal,
        vmid: member.vmid.as_ref()?.value,
        mac: member.mac.value,
        address: member.address.as_ref()?.value,
        shape: shape(pool, own),
        hosts: hosts(pool, own),
        tags: tags.flatten().map(|tag| Tag(tag.value.clone())).collect::<BTreeSet<_>>(),
        labels: labels
            .flatten()
            .map(|(key, value)| (key.value.clone(), value.clone()))
            .collect(),
        taints: taints.into_iter().flatten().map(|taint| taint.value.clone()).collect(),
        patches: patches.flatten().map(|path| files.get(&path.value)).collect::<Option<_>>()?,
        at: own.map_or(pool.at, |own| own.at),
    })
}

fn hosts(pool: &PoolDraft, own: Option<&MachineDraft>) -> Hosts {
    if let Some(host) = own.and_then(|own| own.host.value()) {
        return Hosts::Pinned(HostName(host.clone()));
    }
    let several = own.and_then(|own| own.hosts.value()).or(pool.hosts.value());
    several.map_or(Hosts::Any, |hosts| {
        Hosts::OneOf(hosts.iter().map(|host| HostName(host.value.clone())).collect())
    })
}

/// The machine's own word, else its pool's, else the default.
fn shape(pool: &PoolDraft, own: Option<&MachineDraft>) -> Shape {
    let said = Said {
        own: own.map(|own| &own.shape),
        pool: &pool.shape,
    };
    Shape {
        cpu: said.value(|shape| &shape.cpu).copied().unwrap_or(CPU),
        cpu_type: said
            .value(|shape| &shape.cpu_type)
            .cloned()
            .unwrap_or_else(|| CPU_TYPE.to_owned()),
        memory: said.value(|shape| &shape.memory).copied().unwrap_or(MEMORY),
        disk: Disk {
            size: said
                .value(|shape| &shape.disk.size)
                .copied()
                .unwrap_or_else(|| system_disk(pool.role)),
            storage: said.value(|shape| &shape.disk.storage).cloned().map(StorageId),
            options: DiskOptions {
                cache: said.value(|shape| &shape.disk.cache).copied().unwrap_or(DiskCache::None),
                discard: said.value(|shape| &shape.disk.discard).copied().unwrap_or(true),
                ssd: said.value(|shape| &shape.disk.ssd).copied().unwrap_or(true),
                iothread: said.value(|shape| &shape.disk.iothread).copied().unwrap_or(false),
            },
        },
        disks: said
            .value(|shape| &shape.disks)
            .into_iter()
            .flatten()
            .filter_map(|extra| extra_disk(extra.name.value()?, &extra.disk))
            .collect(),
        scsi: said
            .value(|shape| &shape.scsi)
            .copied()
            .unwrap_or(ScsiController::VirtioScsiPci),
        firmware: said.value(|shape| &shape.firmware).copied().unwrap_or(Firmware::Ovmf),
        onboot: said.value(|shape| &shape.onboot).copied().unwrap_or(true),
        startup_order: said.value(|shape| &shape.startup_order).copied(),
    }
}

struct Said<'d> {
    own: Option<&'d ShapeDraft>,
    pool: &'d ShapeDraft,
}

impl<'d> Said<'d> {
    fn value<T>(&self, field: impl Fn(&'d ShapeDraft) -> &'d Given<T>) -> Option<&'d T> {
        self.own
            .and_then(|own| field(own).value())
            .or_else(|| field(self.pool).value())
    }
}

fn extra_disk(name: &str, disk: &DiskDraft) -> Option<ExtraDisk> {
    let options = DiskOptions {
        cache: disk.cache.value().copied().unwrap_or(DiskCache::None),
        discard: disk.discard.value().copied().unwrap_or(true),
        ssd: disk.ssd.value().copied().unwrap_or(true),
        iothread: disk.iothread.value().copied().unwrap_or(false),
    };
    let disk = Disk {
        size: *disk.size.value()?,
        storage: disk.storage.value().cloned().map(StorageId),
        options,
    };
    Some(ExtraDisk {
        name: name.to_owned(),
        disk,
    })
}
