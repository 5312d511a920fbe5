//! Storages and the volumes on them: names, paths, content rules, allocation.

mod api;
mod definition;
mod image;
mod transfer;
mod volume;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::access::Auth;
use crate::die::Die;
use crate::guest::{Content, Platter};
use crate::locks::Wanted;
use crate::observe::Effect;
use crate::state::State;
use crate::tasks::Job;
use crate::world::StorageSpec;

pub(crate) use api::handle;
pub(crate) use definition::handle as handle_definitions;
pub(crate) use transfer::{query_url_metadata, upload};
pub use volume::{Kind, Name, Volume, Volumes, parse_volid};

/// A storage definition.
#[derive(Clone, Debug)]
pub struct Storage {
    pub kind: String,
    pub path: Option<String>,
    pub content: BTreeSet<String>,
    pub shared: bool,
    pub nodes: Option<Vec<String>>,
    pub disable: bool,
    pub capacity: u64,
    /// Bytes that are taken by others than our volumes.
    pub taken: u64,
    /// Whatever else the definition holds.
    pub other: BTreeMap<String, String>,
}

impl Storage {
    pub fn from_spec(spec: &StorageSpec) -> Self {
        let text = |v: &serde_json::Value| v.as_str().map_or_else(|| v.to_string(), Into::into);
        let other = spec
            .other
            .iter()
            .filter(|(k, _)| k.as_str() != "note")
            .map(|(k, v)| (k.clone(), text(v)))
            .collect();
        Self {
            kind: spec.kind.clone(),
            path: spec.path.clone(),
            content: spec.content.split(',').filter(|c| !c.is_empty()).map(Into::into).collect(),
            shared: spec.shared != 0 || matches!(spec.kind.as_str(), "nfs" | "cifs" | "cephfs" | "rbd"),
            nodes: spec.nodes.clone(),
            disable: spec.disable != 0,
            capacity: spec.capacity,
            taken: 0,
            other,
        }
    }

    /// Files in a directory, as opposed to block devices.
    pub fn is_file_based(&self) -> bool {
        matches!(self.kind.as_str(), "dir" | "nfs" | "cifs" | "btrfs" | "cephfs")
    }

    pub fn formats(&self) -> &'static [&'static str] {
        match self.kind.as_str() {
            "dir" => &["raw", "qcow2", "vmdk", "subvol"],
            "nfs" | "cifs" => &["raw", "qcow2", "vmdk"],
            "zfspool" => &["raw", "subvol"],
            _ => &["raw"],
        }
    }

    pub fn default_format(&self) -> &'static str {
        "raw"
    }

    pub fn has_format(&self, format: &str) -> bool {
        self.formats().contains(&format)
    }

    pub fn on(&self, host: &str) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.iter().any(|n| n == host))
    }

    pub fn usable(&self, host: &str) -> bool {
        !self.disable && self.on(host)
    }

    /// Content types as PVE lists them.
    pub fn content_list(&self) -> String {
        self.content.iter().cloned().collect::<Vec<_>>().join(",")
    }
}

impl State {
    pub fn storage(&self, id: &str) -> Result<&Storage, Die> {
        self.storages
            .get(id)
            .ok_or_else(|| Die::new(format!("storage '{id}' does not exist")))
    }

    /// A storage that is enabled and there on the host.
    pub fn storage_on(&self, id: &str, host: &str) -> Result<&Storage, Die> {
        let storage = self.storage(id)?;
        if storage.disable {
            return Err(Die::new(format!("storage '{id}' is disabled")));
        }
        if !storage.on(host) {
            return Err(Die::new(format!("storage '{id}' is not available on node '{host}'")));
        }
        Ok(storage)
    }

    /// Where the volumes of a storage are kept: with the host, or with all.
    pub fn place<'a>(&self, storage: &str, host: &'a str) -> &'a str {
        if self.storages.get(storage).is_some_and(|s| s.shared) {
            ""
        } else {
            host
        }
    }

    pub fn volume(&self, host: &str, volid: &str) -> Option<&Volume> {
        let storage = volid.split(':').next().unwrap_or_default();
        self.volumes.get(self.place(storage, host), volid)
    }

    /// The file or device behind a volume.
    pub fn volume_path(&self, volid: &str) -> Result<String, Die> {
        let (id, name) = parse_volid(volid)?;
        Ok(name.path(id, self.storage(id)?))
    }

    /// Bytes in use on a storage, as the host sees it.
    pub fn used(&self, id: &str, host: &str) -> u64 {
        let taken = self.storages.get(id).map_or(0, |s| s.taken);
        taken + self.volumes.used(self.place(id, host), id)
    }

    pub fn free(&self, id: &str, host: &str) -> u64 {
        self.storages
            .get(id)
            .map_or(0, |s| s.capacity.saturating_sub(self.used(id, host)))
    }

    /// Gives a volume to another VM, under the first free name there.
    pub fn rename_volume(&mut self, host: &str, volid: &str, vmid: u32) -> Result<String, Die> {
        let id = volid.split(':').next().unwrap_or_default().to_string();
        let (storage, place) = (self.storage(&id)?.clone(), self.place(&id, host).to_string());
        let gone = || Die::new(format!("volume '{volid}' does not exist"));
        let mut volume = self.volumes.remove(&place, volid).ok_or_else(gone)?;
        let name = self.volumes.next_disk(&place, &id, &storage, vmid, &volume.format);
        volume.volid = volume::volid_of(&storage, &id, vmid, &name);
        volume.vmid = Some(vmid);
        let renamed = volume.volid.clone();
        self.volumes.insert(&place, volume);
        Ok(renamed)
    }

    /// The id that a volume gets when it is copied to a storage of another host: its own name, or the next free one.
    pub fn arriving_name(&self, volume: &Volume, storage: &str, host: &str, vmid: u32) -> Result<String, Die> {
        let definition = self.storage(storage)?;
        let place = self.place(storage, host);
        let own = volume::volid_of(definition, storage, vmid, volume.name().file());
        if self.volumes.get(place, &own).is_none() {
            return Ok(own);
        }
        let name = self.volumes.next_disk(place, storage, definition, vmid, &volume.format);
        Ok(volume::volid_of(definition, storage, vmid, &name))
    }

    /// The same for a volume that must be a VM's image.
    pub fn check_image_access(&self, auth: &Auth, vmid: u32, volid: &str) -> Result<(), Die> {
        let (id, name) = parse_volid(volid)?;
        if name.require_kind(self.storage(id)?)? != Kind::Images {
            return Err(Die::new(format!(
                "unable to use volume {volid} - content type needs to be 'images'"
            )));
        }
        self.check_volume_access(auth, Some(vmid), volid)
    }

    /// Whether a caller may use a volume for a VM.
    pub fn check_volume_access(&self, auth: &Auth, vmid: Option<u32>, volid: &str) -> Result<(), Die> {
        let Ok((id, name)) = parse_volid(volid) else {
            if auth.is_root() {
                return Ok(());
            }
            return Err(Die::new(
                "Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 651.",
            ));
        };
        let kind = name.require_kind(self.storage(id)?)?;
        let path = format!("/storage/{id}");
        if self.access.may(auth, &path, &["Datastore.Allocate"]) {
            return Ok(());
        }
        match (kind, name.owner()) {
            (Kind::Iso | Kind::Template | Kind::Import, _) => {
                self.access
                    .check_any(auth, &path, &["Datastore.AllocateSpace", "Datastore.Audit"])
            }
            (_, Some(owner)) if Some(owner) == vmid => Ok(()),
            (Kind::Backup, Some(owner)) => {
                self.access.check(auth, &path, &["Datastore.AllocateSpace"])?;
                self.access.check(auth, &format!("/vms/{owner}"), &["VM.Backup"])
            }
            (Kind::Images, Some(owner)) => {
                self.access.check(auth, &path, &["Datastore.Audit"])?;
                self.access.check(auth, &format!("/vms/{owner}"), &["VM.Config.Disk"])
            }
            _ => Err(Die::new(format!("missing privileges to access {volid}"))),
        }
    }
}

/// A volume to be made.
pub struct Wish<'a> {
    pub storage: &'a str,
    pub vmid: u32,
    pub format: &'a str,
    /// Instead of the next free `vm-N-disk-M`.
    pub name: Option<String>,
    pub size: u64,
}

impl Job {
    /// Takes the storage's lock; the guard frees it.
    pub(crate) async fn lock_storage(&self, id: &str) -> Result<crate::locks::Held, Die> {
        let shared = self.dc.state().storage(id)?.shared;
        if shared && !self.dc.state().quorate(&self.host) {
            return Err(Die::new(format!("cfs-lock 'storage-{id}' error: no quorum!")));
        }
        self.dc.locks().take(self, &Wanted::storage(&self.host, id, shared)).await
    }

    /// Allocates an empty volume.
    pub(crate) async fn allocate(&self, wish: Wish<'_>) -> Result<String, Die> {
        self.check_allocatable(&wish)?;
        let _held = self.lock_storage(wish.storage).await?;
        self.work(self.dc.timing().allocate).await?;
        let now = self.dc.epoch();
        let mut state = self.dc.state();
        let storage = state.storage(wish.storage)?.clone();
        let place = state.place(wish.storage, &self.host).to_string();
        let name = match wish.name {
            Some(name) => name,
            None => state
                .volumes
                .next_disk(&place, wish.storage, &storage, wish.vmid, wish.format),
        };
        let volid = volume::volid_of(&storage, wish.storage, wish.vmid, &name);
        let path = state.volume_path(&volid)?;
        if state.volumes.get(&place, &volid).is_some() {
            return Err(Die::new(already_exists(&storage, &path, &volid)));
        }
        if storage.kind == "zfspool" && wish.size > state.free(wish.storage, &self.host) {
            return Err(Die::new("zfs error: cannot create '".to_string() + &name + "': out of space"));
        }
        let disk = Platter::new(Content::Blank);
        let made = Volume::image(&volid, wish.vmid, wish.format, wish.size, now, disk);
        state.volumes.insert(&place, made);
        drop(state);
        if storage.is_file_based() {
            self.say(formatting(&path, wish.format, wish.size));
        }
        self.dc.tell(
            self,
            &Effect::VolumeCreated {
                volid: volid.clone(),
                host: self.host.clone(),
            },
        );
        Ok(volid)
    }

    fn check_allocatable(&self, wish: &Wish<'_>) -> Result<(), Die> {
        let state = self.dc.state();
        let storage = state.storage_on(wish.storage, &self.host)?;
        if !storage.is_file_based() {
            return if storage.has_format(wish.format) {
                Ok(())
            } else {
                Err(Die::new(format!("unsupported format '{}'", wish.format)))
            };
        }
        // The extension of the file decides over the format.
        let name = match &wish.name {
            Some(name) => name.clone(),
            None => {
                let place = state.place(wish.storage, &self.host);
                state.volumes.next_disk(place, wish.storage, storage, wish.vmid, wish.format)
            }
        };
        let named = volume::image_format(&name)?;
        if named != wish.format {
            let text = format!(
                "illegal name '{name}' - wrong extension for format ('{named} != '{}')",
                wish.format
            );
            return Err(Die::new(text));
        }
        Ok(())
    }

    /// Frees a volume; a base that has clones stays.
    pub(crate) async fn free(&self, volid: &str) -> Result<(), Die> {
        let (id, name) = parse_volid(volid)?;
        self.dc.state().storage_on(id, &self.host)?;
        let _held = self.lock_storage(id).await?;
        self.work(self.dc.timing().allocate / 2).await?;
        let mut state = self.dc.state();
        let place = state.place(id, &self.host).to_string();
        if let Some(base) = state.volumes.clone_of(&place, volid) {
            return Err(Die::new(format!("base volume '{base}' is still in use by linked clones")));
        }
        let file = name.path(id, state.storage(id)?);
        let file_based = state.storage(id)?.is_file_based();
        let removed = state.volumes.remove(&place, volid);
        drop(state);
        match removed {
            Some(_) => self.dc.tell(
                self,
                &Effect::VolumeRemoved {
                    volid: volid.into(),
                    host: self.host.clone(),
                },
            ),
            None if file_based => self.say(format!("disk image '{file}' does not exist")),
            None => {}
        }
        Ok(())
    }

    /// Copies so many bytes to a storage of a host: time passes, and tells which share is done; then the target has them.
    pub(crate) async fn copy_bytes(
        &self,
        (storage, host): (&str, &str),
        size: u64,
        limit: Option<u64>,
        told: impl FnMut(f64) + Send,
    ) -> Result<(), Die> {
        let own = self.dc.timing().copy_rate.max(1);
        let (alone, wants) = match limit.filter(|l| *l > 0) {
            // A bandwidth limit is a protocol's number, not a pace.
            Some(limit) => {
                let rate = limit.min(own);
                (Duration::from_secs_f64(size as f64 / rate as f64), rate as f64 / own as f64)
            }
            None => (self.dc.pace().scale(Duration::from_secs_f64(size as f64 / own as f64)), 1.0),
        };
        self.copy(storage, host, (alone, wants), told).await
    }
}

fn already_exists(storage: &Storage, path: &str, volid: &str) -> String {
    if storage.is_file_based() {
        return format!("disk image '{path}' already exists");
    }
    let name = volid.split(':').nth(1).unwrap_or_default();
    format!("lvcreate '{name}' error:   Logical Volume \"{name}\" already exists in volume group")
}

/// What qemu-img says when it creates a file.
pub(crate) fn formatting(path: &str, format: &str, size: u64) -> String {
    match format {
        "qcow2" => format!(
            "Formatting '{path}', fmt=qcow2 cluster_size=65536 extended_l2=off preallocation=metadata compression_type=zlib size={size} lazy_refcounts=off refcount_bits=16"
        ),
        other => format!("Formatting '{path}', fmt={other} size={size}"),
    }
}
