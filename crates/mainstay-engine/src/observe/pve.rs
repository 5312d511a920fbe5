//! What Proxmox VE shows: a constant number of calls, and about one per machine of ours.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use futures::future::join_all;
use mainstay_plan::{
    Host, HostStorage, ImageFile, LeftoverVolume, Mark, Memory, PowerState, PveTask, Seen, StorageAt, StorageKind, TAG,
    TokenScope, Vm, VmJobs, VmSettings,
};
use pve_api::access::Permissions;
use pve_api::cluster::{Guest, GuestKind, HostState, Resource, RunState};
use pve_api::{Client, Content, Error, cluster, host, pool, qemu, storage, task};
use semver::Version;
use tokio::sync::oneshot;

use super::jobs::{self, may_go};
use super::leftovers::{self, Noted};
use super::limit::within;
use super::volumes::{disks, hosts_sharing, lost, places, snapshots};
use super::{Existing, ObserveScope, must_be_free, neighbours};
use crate::failure::Failure;
use crate::known::{FactCache, HostFacts, KeptFacts};
use crate::pve_config::{merged_settings, volumes_in};

/// Everything that Proxmox VE was asked for.
#[derive(Debug)]
pub struct PveObservation {
    pub version: Version,
    pub quorate: Seen<bool>,
    pub token: TokenScope,
    pub permissions: Permissions,
    pub hosts: BTreeMap<String, Host>,
    pub zone: Option<String>,
    pub resource_pool: Seen<String>,
    /// Running VMs of others that have an address which must be free.
    pub address_users: BTreeMap<Ipv4Addr, Vec<String>>,
    pub vms: Seen<BTreeMap<u32, Vm>>,
    pub leftovers: Seen<Vec<LeftoverVolume>>,
    /// Volumes of the journal that are gone, or whose VMID another VM has.
    pub ended: Vec<String>,
    pub lost: BTreeSet<String>,
    pub images: BTreeMap<StorageAt, Seen<Vec<ImageFile>>>,
    pub tasks: Vec<PveTask>,
}

/// Asks only for what the round before did not read.
async fn known_or<T: Clone>(known: Option<&T>, call: pve_api::Call<T>, pve: &Client) -> Result<T, Error> {
    match known {
        Some(known) => Ok(known.clone()),
        None => pve.call(call).await,
    }
}

/// Without its version, its inventory and our own rights nothing can be said at all; every other gap is a gap.
/// `tell` hears which VMs there are as soon as that is known.
pub async fn look(
    pve: &Client,
    cache: &FactCache,
    scope: &ObserveScope<'_>,
    noted: &Noted,
    tell: oneshot::Sender<Existing>,
) -> Result<PveObservation, Failure> {
    let known = cache.take();
    let (version, status, resources, permissions) = whole(pve, known.as_ref()).await?;
    let inventory = ResourceList::of(resources);
    let existing = inventory.existing();
    let free = must_be_free(scope, &existing);
    // Nothing is dialled where the observation was given up meanwhile.
    let _ = tell.send(existing);
    let names: Vec<pve_api::Host> = inventory.online().cloned().collect();
    let bridges = needs_bridges(&inventory, scope);
    let active = |name| async move {
        let page = within(pve, task::active(name)).await?;
        Ok(page.items.into_iter().map(task_of).collect())
    };
    let (address_users, zone, resource_pool, hosts, tasks, vms) = tokio::join!(
        neighbours::users_of(pve, &inventory.guests, scope, &permissions, &free),
        zone(pve, scope, known.as_ref()),
        resource_pool(pve, scope, known.as_ref()),
        join_all(names.iter().map(|name| look_at_host(pve, name, bridges, known.as_ref()))),
        join_all(names.iter().map(active)),
        configs(pve, &inventory.guests, scope),
    );
    let looks = names.iter().cloned().zip(hosts.iter().cloned()).collect();
    let hosts = inventory.hosts(names.iter().zip(hosts));
    let vms = if sees_all(&permissions, scope) {
        Seen::Yes(vms)
    } else {
        Seen::Unknown("the token lacks VM.Audit on /vms, so it may not see every VM".into())
    };
    let images = async {
        match known {
            Some(known) => known.images,
            None => images(pve, &hosts, scope, &permissions).await,
        }
    };
    let (images, disks, vms) = tokio::join!(images, disks(pve, &hosts), jobs::read(pve, &version, scope, vms));
    cache.keep(KeptFacts {
        version: version.clone(),
        permissions: permissions.clone(),
        zone: zone.clone(),
        resource_pool: resource_pool.clone(),
        hosts: looks,
        images: images.clone(),
    });
    let seen = leftovers::Seeing {
        disks: &disks,
        hosts: &hosts,
        vms: &vms,
        guests: &inventory.guests,
        tasks: &tasks,
        permissions: &permissions,
    };
    let (leftovers, ended) = leftovers::find(pve, &seen, scope, noted).await;
    let lost = lost(&disks, &hosts, vms.yes());
    Ok(PveObservation {
        version,
        quorate: quorate(status),
        token: TokenScope {
            pool_scoped: pool_scoped(&permissions, scope),
        },
        permissions,
        hosts,
        zone,
        resource_pool,
        address_users,
        vms,
        leftovers,
        ended,
        lost,
        images,
        tasks: tasks.into_iter().filter_map(Result::ok).flatten().collect(),
    })
}

/// What one call each answers for the whole datacenter.
async fn whole(
    pve: &Client,
    known: Option<&KeptFacts>,
) -> Result<(Version, Result<cluster::Status, Error>, Vec<Resource>, Permissions), Failure> {
    let version = async {
        match known {
            Some(known) => Ok(known.version.clone()),
            None => pve.call(cluster::version()).await.map(|version| semver_of(version.version)),
        }
    };
    let permissions = known_or(known.map(|known| &known.permissions), pve_api::access::permissions(), pve);
    let status = pve.call(cluster::status());
    let (version, status, resources, permissions) =
        tokio::join!(version, status, pve.call(cluster::resources(None)), permissions);
    Ok((version?, status, resources?, permissions?))
}

fn semver_of(version: pve_api::PveVersion) -> Version {
    Version::new(version.major.into(), version.minor.into(), version.patch.into())
}

/// A token may lack the right to read the cluster's state. Then quorum is unknown, and deletions are held.
fn quorate(status: Result<cluster::Status, Error>) -> Seen<bool> {
    match status {
        Ok(status) => Seen::Yes(status.quorate),
        Err(error) => Seen::Unknown(error.to_string()),
    }
}

/// PVE leaves out VMs that the token may not see. Then a VMID that looks free may be taken, so the list counts as unknown.
fn sees_all(permissions: &Permissions, scope: &ObserveScope<'_>) -> bool {
    permissions.allows("/vms", "VM.Audit") || pool_scoped(permissions, scope)
}

/// A token whose rights end at its pool sees only what is in there. It can still claim a VMID: PVE itself says when one is taken.
fn pool_scoped(permissions: &Permissions, scope: &ObserveScope<'_>) -> bool {
    let in_pool = scope
        .pool
        .is_some_and(|pool| permissions.allows(&format!("/pool/{pool}"), "VM.Allocate"));
    in_pool && !permissions.allows("/vms", "VM.Allocate")
}

/// The one call that answers for all, taken apart.
struct ResourceList {
    guests: Vec<Guest>,
    hosts: Vec<cluster::HostEntry>,
}

impl ResourceList {
    fn of(resources: Vec<Resource>) -> Self {
        let mut inventory = Self {
            guests: Vec::new(),
            hosts: Vec::new(),
        };
        for resource in resources {
            match resource {
                Resource::Guest(guest) => inventory.guests.push(guest),
                Resource::Host(host) => inventory.hosts.push(host),
                Resource::Storage(_) | Resource::Other { .. } => {}
            }
        }
        inventory
    }

    fn existing(&self) -> Existing {
        let ours = self.guests.iter().filter(|guest| guest.tags.contains(TAG));
        Existing {
            vmids: self.guests.iter().map(|guest| guest.vmid.get()).collect(),
            names: ours.filter_map(|guest| guest.name.clone()).collect(),
        }
    }

    fn online(&self) -> impl Iterator<Item = &pve_api::Host> {
        self.hosts
            .iter()
            .filter(|entry| entry.status == HostState::Online)
            .map(|entry| &entry.host)
    }

    fn hosts<'a>(&self, looked: impl Iterator<Item = (&'a pve_api::Host, HostFacts)>) -> BTreeMap<String, Host> {
        let mut looked: BTreeMap<&pve_api::Host, HostFacts> = looked.collect();
        let host = |entry: &cluster::HostEntry| {
            let (bridges, storages) = looked.remove(&entry.host).unwrap_or_else(|| {
                (
                    Seen::Unknown("the host is offline".into()),
                    Seen::Unknown("the host is offline".into()),
                )
            });
            let total = entry.maxmem.unwrap_or_default();
            Host {
                online: entry.status == HostState::Online,
                cpus: u32::try_from(entry.maxcpu.unwrap_or_default()).unwrap_or(u32::MAX),
                memory: Memory {
                    total,
                    free: total.saturating_sub(entry.mem.unwrap_or_default()),
                },
                bridges,
                storages,
            }
        };
        let mut host = host;
        self.hosts.iter().map(|entry| (entry.host.to_string(), host(entry))).collect()
    }
}

/// The zone of the virtual network of the file. What is called like a bridge is one.
async fn zone(pve: &Client, scope: &ObserveScope<'_>, known: Option<&KeptFacts>) -> Option<String> {
    let is_bridge = |name: &str| {
        name.strip_prefix("vmbr")
            .is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let name = scope.bridge.filter(|name| !is_bridge(name))?;
    if let Some(known) = known.and_then(|known| known.zone.clone()) {
        return Some(known);
    }
    let vnets = pve.call(cluster::vnets()).await.ok()?;
    vnets.into_iter().find(|vnet| vnet.vnet == name).map(|vnet| vnet.zone)
}

/// Whether the resource pool of the file is there: Proxmox VE shows a pool that is asked for by name to everyone.
async fn resource_pool(pve: &Client, scope: &ObserveScope<'_>, known: Option<&KeptFacts>) -> Seen<String> {
    let Some(name) = scope.pool else { return Seen::No };
    if let Some(Seen::Yes(known)) = known.map(|known| &known.resource_pool) {
        return Seen::Yes(known.clone());
    }
    let Ok(id) = name.parse() else {
        return Seen::Unknown(format!("`{name}` is no name of a pool"));
    };
    match pve.call(pool::members(&id)).await {
        Ok(_) => Seen::Yes(name.to_owned()),
        Err(error) if error.is_missing() => Seen::No,
        Err(error) => Seen::Unknown(error.to_string()),
    }
}

/// Only a machine that is to be made is placed, and only its host must have the bridge.
fn needs_bridges(inventory: &ResourceList, scope: &ObserveScope<'_>) -> bool {
    let there: BTreeSet<u32> = inventory.guests.iter().map(|guest| guest.vmid.get()).collect();
    !scope.removes_all && !scope.vmids.is_subset(&there)
}

/// Bridges are read only where a machine may be created: with many hosts this is the call that costs most.
async fn look_at_host(pve: &Client, name: &pve_api::Host, needs_bridges: bool, known: Option<&KeptFacts>) -> HostFacts {
    let is_complete = |look: &&HostFacts| (look.0.yes().is_some() || !needs_bridges) && look.1.yes().is_some();
    if let Some(known) = known.and_then(|known| known.hosts.get(name)).filter(is_complete) {
        return known.clone();
    }
    let bridges = async {
        if needs_bridges {
            bridges(pve, name).await
        } else {
            Seen::Unknown("no machine is to be made".into())
        }
    };
    let (bridges, storages) = tokio::join!(bridges, within(pve, storage::list(name)));
    let storages = match storages {
        Ok(list) => Seen::Yes(
            list.into_iter()
                .map(|status| (status.storage.to_string(), storage_of(&status)))
                .collect(),
        ),
        Err(why) => Seen::Unknown(why),
    };
    (bridges, storages)
}

async fn bridges(pve: &Client, name: &pve_api::Host) -> Seen<BTreeSet<String>> {
    match within(pve, host::bridges(name)).await {
        // PVE leaves out what the token may not use: an empty list is more likely a lack of rights than a host without a bridge.
        Ok(list) if list.is_empty() => Seen::Unknown(format!(
            "no bridge of {name} is visible: the token may lack SDN.Use on /sdn/zones/localnetwork"
        )),
        Ok(list) => Seen::Yes(list.into_iter().map(|bridge| bridge.iface).collect()),
        Err(why) => Seen::Unknown(why),
    }
}

/// The type decides whether a disk takes its whole size at once, and how many allocations the storage bears at a time.
fn storage_of(status: &storage::StorageStatus) -> HostStorage {
    HostStorage {
        kind: match status.kind.to_string().as_str() {
            "dir" => StorageKind::Dir,
            "nfs" => StorageKind::Nfs,
            "cifs" => StorageKind::Cifs,
            "btrfs" => StorageKind::Btrfs,
            "lvmthin" => StorageKind::LvmThin,
            "lvm" => StorageKind::Lvm,
            "zfspool" => StorageKind::Zfs,
            "rbd" => StorageKind::Rbd,
            "cephfs" => StorageKind::CephFs,
            other => StorageKind::Other(other.to_owned()),
        },
        content: status.content.iter().map(ToString::to_string).collect(),
        active: status.enabled && status.active,
        shared: status.shared,
        total: status.total,
        free: status.avail,
    }
}

/// Every guest, with the config of those that carry our tag or sit on a VMID that is wanted.
async fn configs(pve: &Client, guests: &[Guest], scope: &ObserveScope<'_>) -> BTreeMap<u32, Vm> {
    let vm = |guest: &Guest| {
        let mut guest = guest.clone();
        async move {
            let vmid = guest.vmid.get();
            let concerns_us = guest.kind == GuestKind::Qemu && (guest.tags.contains(TAG) || scope.vmids.contains(&vmid));
            let mut config = if concerns_us {
                config_of(pve, &mut guest).await
            } else {
                Seen::No
            };
            if let Seen::Yes(config) = &mut config {
                add_snapshots(pve, &guest, scope, config).await;
            }
            // In its first seconds a VM is known to its host, but the cluster has not heard of it yet.
            if guest.status == RunState::Unknown
                && matches!(config, Seen::Yes(_))
                && let Ok(now) = pve.call(qemu::status(&guest.host, guest.vmid)).await
            {
                guest.status = now.status;
            }
            (vmid, vm_of(guest, config))
        }
    };
    join_all(guests.iter().map(vm)).await.into_iter().collect()
}

/// The cluster's list is up to ten seconds old: a machine that it calls stopped may have been started since. Its host knows.
pub async fn ask_hosts_for_power(pve: &Client, vms: &mut Seen<BTreeMap<u32, Vm>>) {
    let Seen::Yes(vms) = vms else { return };
    let stopped = vms
        .values_mut()
        .filter(|vm| vm.power == PowerState::Stopped && vm.config.yes().is_some());
    join_all(stopped.map(|vm| async {
        let (Ok(host), Ok(vmid)) = (vm.host.parse(), vm.vmid.to_string().parse()) else {
            return;
        };
        if let Ok(now) = pve.call(qemu::status(&host, vmid)).await {
            vm.power = power_of(now.status);
        }
    }))
    .await;
}

/// The pending list answers for config, pending changes and digest in one call.
/// Reads the config, and the tags with it: those of the inventory may be some seconds old, and a missing tag means a missing mark.
async fn config_of(pve: &Client, guest: &mut Guest) -> Seen<VmSettings> {
    match within(pve, qemu::pending(&guest.host, guest.vmid)).await {
        Ok(entries) => {
            let tags = entries.iter().find(|entry| entry.key == "tags" && !entry.delete);
            let tags = tags.and_then(|entry| entry.pending.clone().or_else(|| entry.value.clone()));
            guest.tags = tags.and_then(|text| text.parse().ok()).unwrap_or_default();
            Seen::Yes(merged_settings(entries, guest.lock.as_ref()))
        }
        Err(why) => Seen::Unknown(why),
    }
}

/// The snapshots of a machine that is about to go: a volume that only a snapshot names would be left without a config that names it.
async fn add_snapshots(pve: &Client, guest: &Guest, scope: &ObserveScope<'_>, config: &mut VmSettings) {
    let Some(mark) = Mark::parse(&config.description).filter(|mark| Some(mark.cluster_id) == scope.cluster_id) else {
        return;
    };
    if !may_go(&mark, guest.vmid.get(), scope) {
        return;
    }
    match snapshots(pve, &guest.host, guest.vmid).await {
        Ok(found) => {
            config.snapshots = Seen::Yes(found.iter().map(|(name, _)| name.clone()).collect());
            let uses = found.iter().flat_map(|(name, config)| volumes_in(config, Some(name)));
            config.aside.extend(uses);
        }
        Err(error) => config.snapshots = Seen::Unknown(error.to_string()),
    }
}

fn vm_of(guest: Guest, config: Seen<VmSettings>) -> Vm {
    let power = power_of(guest.status);
    Vm {
        vmid: guest.vmid.get(),
        host: guest.host.to_string(),
        name: guest.name,
        power,
        tags: guest.tags.iter().map(str::to_owned).collect(),
        pool: guest.pool.as_ref().map(ToString::to_string),
        template: guest.template,
        ha: guest.hastate.is_some(),
        jobs: VmJobs::default(),
        config,
    }
}

/// States such as `paused` or `io-error` are kept by name: a person must look at the console before mainstay does anything.
fn power_of(state: RunState) -> PowerState {
    match state {
        RunState::Running => PowerState::Running,
        RunState::Stopped => PowerState::Stopped,
        RunState::Unknown => PowerState::Unknown("its host does not report".into()),
        other => PowerState::Other(other.to_string()),
    }
}

/// Image files on every storage that may hold them.
async fn images(
    pve: &Client,
    hosts: &BTreeMap<String, Host>,
    scope: &ObserveScope<'_>,
    permissions: &Permissions,
) -> BTreeMap<StorageAt, Seen<Vec<ImageFile>>> {
    let wanted = |name: &str| scope.images.is_none_or(|chosen| chosen == name);
    let places = places(hosts, |name, storage| wanted(name) && storage.allows("import"));
    let lists = join_all(places.iter().map(|at| files(pve, at, permissions))).await;
    let mut seen = BTreeMap::new();
    for (at, list) in places.into_iter().zip(lists) {
        for host in hosts_sharing(hosts, &at) {
            seen.insert(StorageAt { host, ..at.clone() }, list.clone());
        }
    }
    seen
}

async fn files(pve: &Client, at: &StorageAt, permissions: &Permissions) -> Seen<Vec<ImageFile>> {
    let may_delete = permissions.allows(&format!("/storage/{}", at.storage), "Datastore.Allocate");
    let (Ok(host), Ok(storage)) = (at.host.parse(), at.storage.parse()) else {
        return Seen::Unknown(format!("{at} is not a valid storage name of Proxmox VE"));
    };
    let filter = storage::ContentFilter {
        content: Some(Content::Import),
        vmid: None,
    };
    match within(pve, storage::content(&host, &storage, &filter)).await {
        Ok(volumes) => Seen::Yes(
            volumes
                .iter()
                .map(|volume| ImageFile {
                    file: volume.volid.file_name().to_owned(),
                    size: volume.size,
                    may_delete,
                })
                .collect(),
        ),
        Err(why) => Seen::Unknown(why),
    }
}

fn task_of(entry: task::TaskEntry) -> PveTask {
    PveTask {
        kind: entry.upid.kind().to_owned(),
        subject: entry.upid.subject().to_owned(),
        host: entry.upid.host().to_string(),
        upid: entry.upid.to_string(),
    }
}
