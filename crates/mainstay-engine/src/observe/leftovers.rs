//! Volumes that no VM refers to: which of them mainstay made.
//!
//! A name is no identity. Proxmox VE gives the lowest free number again, a replica has the same name on another host, and two Proxmox VE
//! clusters on one storage make the same names. So an entry of the journal proves a volume on the host where it was made, as long as that
//! name was not seen free and its VMID was not seen with another VM.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use mainstay_plan::{Host, LeftoverVolume, Mark, PveTask, Seen, StorageAt, Vm, VolumeIdentity, is_cloud_init_volume};
use pve_api::access::Permissions;
use pve_api::cluster::{Guest, GuestKind};
use pve_api::{Client, Error, storage, task};

use super::ObserveScope;
use super::volumes::{VolumeListing, hosts_sharing, volume_uses};
use crate::journal::MadeVolume;

/// More lines than the log of a fill has.
pub const LOG_LINES: u64 = 5000;

/// Tasks that write volumes which no config names yet.
const WRITERS: [&str; 8] = [
    "qmcreate",
    "qmclone",
    "qmconfig",
    "qmrestore",
    "qmmove",
    "qmigrate",
    "imgcopy",
    "vzdump",
];

/// The target of such a task is not in its UPID, which names the source.
const CLONE: &str = "qmclone";

/// What the journal knows about disks.
#[derive(Debug)]
pub struct Noted {
    /// Volumes that mainstay made.
    pub made: BTreeMap<String, MadeVolume>,
    /// Tasks that mainstay sent to make disks.
    pub fills: Vec<pve_api::Upid>,
}

/// What was seen of Proxmox VE.
pub struct Seeing<'a> {
    pub disks: &'a VolumeListing,
    pub hosts: &'a BTreeMap<String, Host>,
    pub vms: &'a Seen<BTreeMap<u32, Vm>>,
    pub guests: &'a [Guest],
    /// By host that is online.
    /// By host; why they could not be read.
    pub tasks: &'a [Result<Vec<PveTask>, String>],
    pub permissions: &'a Permissions,
}

/// Disks with one of our VMIDs in their name that the VM of that number does not name, and the entries of the journal that have ended.
pub async fn find(
    pve: &Client,
    seen: &Seeing<'_>,
    scope: &ObserveScope<'_>,
    noted: &Noted,
) -> (Seen<Vec<LeftoverVolume>>, Vec<String>) {
    let Seen::Yes(vms) = seen.vms else {
        let why = "the list of VMs is not complete".into();
        return (Seen::Unknown(why), Vec::new());
    };
    let ended = ended(seen, vms, scope, noted);
    let mut found = match unreferenced(seen, vms, scope, noted) {
        Ok(found) => found,
        Err(why) => return (Seen::Unknown(why), ended),
    };
    for left in &mut found {
        if let Some(made) = noted.made.get(&left.volume) {
            judge(seen, left, made);
            left.proved &= !ended.contains(&left.volume);
        }
    }
    prove_by_logs(pve, seen, noted, &ended, &mut found).await;
    hold_on_crowded_storages(seen, vms, scope, noted, &mut found);
    for left in &mut found {
        left.busy = busy(seen, left);
        left.may_free = seen
            .permissions
            .allows(&format!("/storage/{}", left.at.storage), "Datastore.Allocate");
    }
    drop_used(pve, seen.guests, &mut found).await;
    (Seen::Yes(found), ended)
}

/// `Err`: a storage cannot be listed.
fn unreferenced(
    seen: &Seeing<'_>,
    vms: &BTreeMap<u32, Vm>,
    scope: &ObserveScope<'_>,
    noted: &Noted,
) -> Result<Vec<LeftoverVolume>, String> {
    let mut found = Vec::new();
    for (at, list) in seen.disks {
        let volumes = list.as_ref().map_err(|error| format!("{at} cannot be listed: {error}"))?;
        for volume in volumes {
            let Some(vmid) = owner(volume) else { continue };
            let name = volume.volid.to_string();
            let is_marked = vms.get(&vmid).is_some_and(|vm| is_of_cluster(vm, scope));
            let concerns_us = scope.vmids.contains(&vmid) || is_marked || noted.made.contains_key(&name);
            if concerns_us && !is_referred_to(vms.get(&vmid), &name) {
                found.push(LeftoverVolume {
                    at: at.clone(),
                    volume: name,
                    vmid,
                    identity: VolumeIdentity {
                        created: volume.ctime,
                        size: volume.size,
                    },
                    proved: false,
                    doubt: None,
                    busy: None,
                    may_free: false,
                });
            }
        }
    }
    Ok(found)
}

fn owner(volume: &storage::Volume) -> Option<u32> {
    volume.vmid.or(volume.volid.owner()).map(pve_api::Vmid::get)
}

fn is_of_cluster(vm: &Vm, scope: &ObserveScope<'_>) -> bool {
    let mark = vm.config.yes().and_then(|config| Mark::parse(&config.description));
    mark.is_some_and(|mark| Some(mark.cluster_id) == scope.cluster_id)
}

/// A VM whose config was not read may refer to anything.
fn is_referred_to(vm: Option<&Vm>, volume: &str) -> bool {
    match vm.map(|vm| &vm.config) {
        None => false,
        Some(Seen::Yes(config)) => config.volume_uses().iter().any(|used| used.volume == volume) || config.lock.is_some(),
        Some(Seen::No | Seen::Unknown(_)) => true,
    }
}

fn is_shared(hosts: &BTreeMap<String, Host>, at: &StorageAt) -> bool {
    let storages = hosts.get(&at.host).and_then(|host| host.storages.yes());
    storages
        .and_then(|storages| storages.get(&at.storage))
        .is_some_and(|storage| storage.shared)
}

/// Entries of the journal whose volume was seen absent where it was made, or whose VMID another VM has now.
fn ended(seen: &Seeing<'_>, vms: &BTreeMap<u32, Vm>, scope: &ObserveScope<'_>, noted: &Noted) -> Vec<String> {
    let is_gone = |volume: &str, made: &MadeVolume| {
        let storage = volume.split(':').next().unwrap_or_default();
        let mut places = seen.disks.iter().filter(|(at, _)| {
            let is_place = made.host.as_deref() == Some(at.host.as_str()) || is_shared(seen.hosts, at);
            at.storage == storage && is_place
        });
        places.any(|(_, list)| {
            list.as_ref()
                .is_ok_and(|volumes| !volumes.iter().any(|listed| listed.volid.to_string() == volume))
        })
    };
    let has_another_vm = |made: &MadeVolume| vms.get(&made.vmid).is_some_and(|vm| is_of_another(vm, scope));
    let entries = noted
        .made
        .iter()
        .filter(|(volume, made)| is_gone(volume, made) || has_another_vm(made));
    entries.map(|(volume, _)| volume.clone()).collect()
}

/// Surely not ours: a config that could not be read may be ours.
fn is_of_another(vm: &Vm, scope: &ObserveScope<'_>) -> bool {
    !matches!(vm.config, Seen::Unknown(_)) && !is_of_cluster(vm, scope)
}

/// Whether what the journal says of a volume is about this one.
fn judge(seen: &Seeing<'_>, left: &mut LeftoverVolume, made: &MadeVolume) {
    let is_shared = is_shared(seen.hosts, &left.at);
    let is_older = |since: u64| left.identity.created.is_some_and(|created| created + 1 < since);
    left.doubt = match &made.host {
        None => Some("the journal does not say on which host mainstay made it".to_owned()),
        Some(host) if !is_shared && *host != left.at.host => Some(format!(
            "mainstay made a volume of this name on {host}; this one on {} is a replica or remains of a migration",
            left.at.host
        )),
        Some(_) if is_shared && left.identity.created.is_none() => Some(format!(
            "{} is shared and does not tell when a volume was made",
            left.at.storage
        )),
        Some(_) if made.since.is_some_and(is_older) => {
            Some("it is older than the task in which mainstay made a volume of this name".to_owned())
        }
        Some(_) => None,
    };
    left.proved = left.doubt.is_none();
}

/// A fill that failed, or whose worker died, leaves volumes that no config names. The log of the task that we sent names them.
async fn prove_by_logs(pve: &Client, seen: &Seeing<'_>, noted: &Noted, ended: &[String], leftovers: &mut [LeftoverVolume]) {
    let is_open = |left: &LeftoverVolume| !left.proved && left.doubt.is_none() && !ended.contains(&left.volume);
    let open: BTreeSet<u32> = leftovers.iter().filter(|left| is_open(left)).map(|left| left.vmid).collect();
    let concerns = |upid: &&pve_api::Upid| upid.vmid().is_some_and(|vmid| open.contains(&vmid.get()));
    for upid in noted.fills.iter().filter(concerns) {
        // A log that is gone proves nothing.
        let Ok(page) = pve.call(task::log(upid, 0, LOG_LINES)).await else {
            continue;
        };
        let named: BTreeSet<String> = page.items.iter().filter_map(|line| made_in(&line.t)).collect();
        let vmid = upid.vmid().map(pve_api::Vmid::get);
        let is_named = |left: &&mut LeftoverVolume| Some(left.vmid) == vmid && named.contains(&left.volume);
        for left in leftovers.iter_mut().filter(|left| is_open(left)).filter(is_named) {
            let made = MadeVolume {
                vmid: left.vmid,
                host: Some(upid.host().to_string()),
                since: Some(upid.starttime().into()),
            };
            judge(seen, left, &made);
        }
    }
}

/// The volume that a line of a task log says was made.
pub fn made_in(line: &str) -> Option<String> {
    let (_, rest) = line
        .split_once("allocated target volume '")
        .or_else(|| line.split_once(": successfully created disk '"))?;
    let end = rest.find([',', '\''])?;
    Some(rest[..end].to_owned())
}

/// Volumes of VMIDs that this Proxmox VE does not know are on a shared storage: another one may use it, with the same numbers.
fn hold_on_crowded_storages(
    seen: &Seeing<'_>,
    vms: &BTreeMap<u32, Vm>,
    scope: &ObserveScope<'_>,
    noted: &Noted,
    leftovers: &mut [LeftoverVolume],
) {
    let is_known = |vmid: u32| {
        let is_noted = noted.made.values().any(|made| made.vmid == vmid);
        vms.contains_key(&vmid) || scope.vmids.contains(&vmid) || is_noted
    };
    for (at, list) in seen.disks.iter().filter(|(at, _)| is_shared(seen.hosts, at)) {
        let mut owners = list.iter().flatten().filter_map(owner);
        let Some(stranger) = owners.find(|vmid| !is_known(*vmid)) else {
            continue;
        };
        for left in leftovers.iter_mut().filter(|left| left.at.storage == at.storage) {
            if left.proved || is_cloud_init_volume(&left.volume) {
                left.proved = false;
                left.doubt = Some(format!(
                    "{} also has volumes of VMID {stranger}, which is no VM here: another PVE may use the storage",
                    at.storage
                ));
            }
        }
    }
}

/// A task that may be writing the volume: no config names it before the task ends.
fn busy(seen: &Seeing<'_>, left: &LeftoverVolume) -> Option<String> {
    let near = hosts_sharing(seen.hosts, &left.at);
    let mut unread = seen.tasks.iter().filter_map(|tasks| tasks.as_ref().err());
    if let Some(error) = unread.next() {
        return Some(format!("the tasks of a host cannot be read: {error}"));
    }
    let mut running = seen.tasks.iter().flatten().flatten();
    let writes = |task: &&PveTask| {
        let may_be_target = task.kind == CLONE && near.contains(&task.host);
        WRITERS.contains(&task.kind.as_str()) && (task.is_about(left.vmid) || may_be_target)
    };
    let task = running.find(writes)?;
    Some(format!(
        "a {} task runs on {} and may be writing it: {}",
        task.kind, task.host, task.upid
    ))
}

/// A volume is freed only if no VM at all names it: another may have taken it over.
async fn drop_used(pve: &Client, guests: &[Guest], leftovers: &mut Vec<LeftoverVolume>) {
    if !leftovers.iter().any(|left| left.proved) {
        return;
    }
    match all_uses(pve, guests).await {
        Ok(used) => leftovers.retain(|left| !left.proved || !used.contains(&left.volume)),
        // What could not be read may name it.
        Err(error) => {
            for left in leftovers.iter_mut().filter(|left| left.proved) {
                left.busy = Some(format!("the config of a VM cannot be read, and may name it: {error}"));
            }
        }
    }
}

/// Every volume that the config of some VM names.
pub async fn all_uses(pve: &Client, guests: &[Guest]) -> Result<BTreeSet<String>, Error> {
    let machines = guests.iter().filter(|guest| guest.kind == GuestKind::Qemu);
    let read = join_all(machines.map(|guest| volume_uses(pve, &guest.host, guest.vmid))).await;
    let mut used = BTreeSet::new();
    for uses in read {
        match uses {
            Ok(uses) => used.extend(uses.into_iter().map(|used| used.volume)),
            // Gone since it was listed.
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(used)
}

/// The task that may be writing volumes of this VMID, among those of all hosts that are online.
pub async fn writing_task(pve: &Client, hosts: &[pve_api::Host], vmid: u32, near: &str) -> Result<Option<String>, Error> {
    for page in join_all(hosts.iter().map(|host| pve.call(task::active(host)))).await {
        let tasks = page?.items.into_iter().filter(|entry| entry.end().is_none());
        let writes = |upid: &pve_api::Upid| {
            let is_about = upid.vmid().is_some_and(|about| about.get() == vmid);
            let may_be_target = upid.kind() == CLONE && upid.host().to_string() == near;
            WRITERS.contains(&upid.kind()) && (is_about || may_be_target)
        };
        if let Some(upid) = tasks.map(|entry| entry.upid).find(writes) {
            return Ok(Some(upid.to_string()));
        }
    }
    Ok(None)
}
