//! Volumes: where they are, and which VM names them.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use mainstay_plan::{Host, HostStorage, StorageAt, Vm, VmDisk, VolumeUse};
use pve_api::{Client, Content, Error, qemu, storage};

use super::limit::within;
use crate::failure::{Failure, FailureKind};
use crate::pve_config::{current_and_pending, volumes_in};

pub async fn snapshots(
    pve: &Client,
    host: &pve_api::Host,
    vmid: pve_api::Vmid,
) -> Result<Vec<(String, pve_api::VmConfig)>, Error> {
    let listed = pve.call(qemu::snapshots(host, vmid)).await?;
    let mut found = Vec::new();
    for snapshot in listed.into_iter().filter(|snapshot| !snapshot.is_current()) {
        let config = pve.call(qemu::snapshot_config(host, vmid, &snapshot.name)).await?;
        found.push((snapshot.name, config));
    }
    Ok(found)
}

/// Everywhere that a VM names a volume: drives as they are and as they will be, detached volumes, saved states, snapshots.
pub async fn volume_uses(pve: &Client, host: &pve_api::Host, vmid: pve_api::Vmid) -> Result<Vec<VolumeUse>, Error> {
    let entries = pve.call(qemu::pending(host, vmid)).await?;
    let (now, then) = current_and_pending(&entries);
    volume_uses_with(pve, host, vmid, [&now, &then]).await
}

/// As [`volume_uses`], for a config that was read, as it is and as it will be.
pub async fn volume_uses_with(
    pve: &Client,
    host: &pve_api::Host,
    vmid: pve_api::Vmid,
    configs: [&pve_api::VmConfig; 2],
) -> Result<Vec<VolumeUse>, Error> {
    let snapshots = snapshots(pve, host, vmid).await?;
    let own = configs.into_iter().flat_map(|config| volumes_in(config, None));
    let saved = snapshots.iter().flat_map(|(name, config)| volumes_in(config, Some(name)));
    Ok(own.chain(saved).collect())
}

/// The hosts that see the same storage: all that have it if it is shared, else the one.
pub fn hosts_sharing(hosts: &BTreeMap<String, Host>, at: &StorageAt) -> Vec<String> {
    let shares = |host: &Host| {
        host.storages
            .yes()
            .and_then(|storages| storages.get(&at.storage))
            .is_some_and(|storage| storage.shared)
    };
    hosts
        .iter()
        .filter(|(name, host)| **name == at.host || shares(host))
        .map(|(name, _)| name.clone())
        .collect()
}

/// Every disk on every storage that may hold some.
pub type VolumeListing = Vec<(StorageAt, Result<Vec<storage::Volume>, Failure>)>;

pub async fn disks(pve: &Client, hosts: &BTreeMap<String, Host>) -> VolumeListing {
    let places = places(hosts, |_, storage| storage.allows("images"));
    let lists = join_all(places.iter().map(|at| disks_at(pve, at))).await;
    places.into_iter().zip(lists).collect()
}

/// Disks of VMs whose storage was listed and does not have them.
pub fn lost(disks: &VolumeListing, hosts: &BTreeMap<String, Host>, vms: Option<&BTreeMap<u32, Vm>>) -> BTreeSet<String> {
    let mut listed: BTreeMap<StorageAt, BTreeSet<String>> = BTreeMap::new();
    for (at, list) in disks {
        let Ok(volumes) = list else { continue };
        let names: BTreeSet<String> = volumes.iter().map(|volume| volume.volid.to_string()).collect();
        for host in hosts_sharing(hosts, at) {
            listed.insert(StorageAt { host, ..at.clone() }, names.clone());
        }
    }
    let mut lost = BTreeSet::new();
    for vm in vms.into_iter().flat_map(BTreeMap::values) {
        // Not the ISO in a drive, nor what belongs to another.
        let is_own = |disk: &&VmDisk| {
            let volume: Option<pve_api::Volid> = disk.volume.parse().ok();
            volume
                .and_then(|volume| volume.owner())
                .is_some_and(|owner| owner.get() == vm.vmid)
        };
        let disks = vm.config.yes().into_iter().flat_map(|config| config.disks.values());
        for disk in disks.filter(is_own) {
            let at = StorageAt {
                host: vm.host.clone(),
                storage: disk.storage().to_owned(),
            };
            if listed.get(&at).is_some_and(|names| !names.contains(&disk.volume)) {
                lost.insert(disk.volume.clone());
            }
        }
    }
    lost
}

async fn disks_at(pve: &Client, at: &StorageAt) -> Result<Vec<storage::Volume>, Failure> {
    let place = |error: pve_api::ValueError| Failure::new(FailureKind::Bug, error.to_string());
    let (host, storage) = (at.host.parse().map_err(place)?, at.storage.parse().map_err(place)?);
    let filter = storage::ContentFilter {
        content: Some(Content::Images),
        vmid: None,
    };
    let listed = within(pve, storage::content(&host, &storage, &filter)).await;
    listed.map_err(|why| Failure::new(FailureKind::Unreachable, why))
}

/// Storages of the hosts that are there; a shared one once.
pub fn places(hosts: &BTreeMap<String, Host>, fits: impl Fn(&str, &HostStorage) -> bool) -> Vec<StorageAt> {
    let mut shared = BTreeSet::new();
    let mut places = Vec::new();
    for (host, seen) in hosts {
        for (name, storage) in seen.storages.yes().into_iter().flatten() {
            if fits(name, storage) && (!storage.shared || shared.insert(name.clone())) {
                places.push(StorageAt {
                    host: host.clone(),
                    storage: name.clone(),
                });
            }
        }
    }
    places
}
