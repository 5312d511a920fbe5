//! What a Talos node leaves on its disk. Values are immutable: every write replaces the whole, as the platter demands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use pve_sim::guest::{Content, Disk, Hardware, Platter};

use super::etcd::EtcdCluster;
use crate::factory::TalosImage;

/// An installed system.
#[derive(Clone)]
pub(crate) struct Installed {
    pub image: TalosImage,
    pub meta: BTreeMap<u8, String>,
    /// The STATE partition; `None` when it was wiped.
    pub state: Option<StatePartition>,
    /// The EPHEMERAL partition (`/var`).
    pub ephemeral: Ephemeral,
    /// What an upgrade replaced, for the way back.
    pub previous: Option<TalosImage>,
    /// What the next boot installs before anything else (META keys 7 and 8).
    pub staged: Option<TalosImage>,
}

impl Installed {
    pub fn new(image: TalosImage) -> Self {
        Self {
            image,
            meta: BTreeMap::new(),
            state: None,
            ephemeral: Ephemeral::default(),
            previous: None,
            staged: None,
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct StatePartition {
    /// The config as it was sent.
    pub config: Option<Arc<str>>,
    /// Node identity, established at the first boot.
    pub node_id: String,
}

/// Whose images are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ImageStore {
    /// containerd in memory, which is there before any disk.
    Memory,
    System,
    Pods,
}

#[derive(Clone, Default)]
pub(crate) struct Ephemeral {
    /// Pulled images, by store and reference.
    pub images: BTreeSet<(ImageStore, String)>,
    pub etcd: Option<EtcdData>,
    /// An uploaded snapshot that waits for a bootstrap.
    pub snapshot: Option<Bytes>,
}

/// `/var/lib/etcd`: which member of which cluster this node is.
#[derive(Clone)]
pub(crate) struct EtcdData {
    pub cluster: Arc<EtcdCluster>,
    pub member: u64,
}

/// The disk a node runs from.
#[derive(Clone)]
pub(crate) struct SystemDisk {
    pub index: usize,
    platter: Platter,
}

impl SystemDisk {
    pub fn read(&self) -> Option<Installed> {
        read(&self.platter)
    }

    /// Changes what is installed. On a disk that was wiped meanwhile this does nothing.
    pub fn change(&self, change: impl FnOnce(&mut Installed)) {
        if let Some(mut installed) = self.read() {
            change(&mut installed);
            self.platter.write(Content::Written(Arc::new(installed)));
        }
    }

    /// The other system becomes the one that boots next. What was to boot until now stays for the way back, and everything else goes: a
    /// second upgrade before the reboot takes away the system that runs.
    pub fn upgrade(&self, image: TalosImage) {
        self.change(|installed| installed.previous = Some(std::mem::replace(&mut installed.image, image)));
    }

    /// The other system on the disk becomes the one that boots next; whether there is one.
    pub fn revert(&self) -> bool {
        let mut found = false;
        self.change(|installed| {
            if let Some(previous) = installed.previous.take() {
                installed.previous = Some(std::mem::replace(&mut installed.image, previous));
                found = true;
            }
        });
        found
    }

    pub fn wipe(&self) {
        self.platter.write(Content::Blank);
    }
}

fn read(platter: &Platter) -> Option<Installed> {
    match platter.read() {
        Content::Blank => None,
        Content::Image(bytes) => {
            let image = TalosImage::from_qcow2(&bytes)?;
            Some(Installed::new(image))
        }
        Content::Written(written) => written.downcast_ref::<Installed>().cloned(),
    }
}

/// What the firmware, or a kexec, found to run.
pub(crate) struct Booted {
    pub disk: SystemDisk,
    pub installed: Installed,
    /// Whether it runs from a disk; a boot medium runs from memory and forgets everything.
    pub from_disk: bool,
}

/// The first disk in boot order with something to boot on it. A kexec does not pass the firmware: it runs what is installed. A boot
/// medium that finds an installed system halts, since it would install it anew.
pub(crate) fn boot(hardware: &Hardware, kexec: bool) -> Option<Booted> {
    let disks = || hardware.disks.iter().enumerate();
    let mut systems = disks().filter_map(|(index, disk)| installed(index, disk)).peekable();
    if kexec && systems.peek().is_some() {
        return systems.next();
    }
    let medium = disks().find_map(|(index, disk)| Some((index, medium(disk)?)));
    match (medium, systems.next()) {
        (Some((index, _)), Some(system)) if index < system.disk.index => None,
        (Some((index, image)), None) => Some(in_memory(index, image)),
        (_, system) => system,
    }
}

fn medium(disk: &Disk) -> Option<TalosImage> {
    match disk.content.read() {
        Content::Image(bytes) => TalosImage::from_iso(&bytes),
        Content::Blank | Content::Written(_) => None,
    }
}

fn installed(index: usize, disk: &Disk) -> Option<Booted> {
    let platter = disk.content.clone();
    Some(Booted {
        installed: read(&platter)?,
        disk: SystemDisk { index, platter },
        from_disk: true,
    })
}

fn in_memory(index: usize, image: TalosImage) -> Booted {
    let installed = Installed::new(image);
    let platter = Platter::new(Content::Written(Arc::new(installed.clone())));
    Booted {
        disk: SystemDisk { index, platter },
        installed,
        from_disk: false,
    }
}

/// How the kernel names a disk: SCSI and SATA disks are `sda`, `sdb`, … in order of their slots, virtio-blk disks `vda`, ….
pub(crate) fn device_name(disks: &[Disk], index: usize) -> String {
    if disks.get(index).is_some_and(is_medium) {
        return "sr0".to_owned();
    }
    let is_virtio = |disk: &Disk| disk.key.starts_with("virtio");
    let virtio = disks.get(index).is_some_and(is_virtio);
    let mut order: Vec<usize> = (0..disks.len())
        .filter(|at| is_virtio(&disks[*at]) == virtio && !is_medium(&disks[*at]))
        .collect();
    order.sort_by_key(|at| slot(&disks[*at].key));
    let place = order.iter().position(|at| *at == index).unwrap_or(0);
    let letter = char::from(b'a' + u8::try_from(place.min(25)).unwrap_or(25));
    format!("{}{letter}", if virtio { "vd" } else { "sd" })
}

/// Whether a drive holds a boot medium.
pub(crate) fn is_medium(disk: &Disk) -> bool {
    medium(disk).is_some()
}

fn slot(key: &str) -> (String, u32) {
    let digits = key.find(|c: char| c.is_ascii_digit()).unwrap_or(key.len());
    (key[..digits].to_owned(), key[digits..].parse().unwrap_or(0))
}
