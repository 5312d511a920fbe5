//! What a Talos node leaves on its disk. Values are immutable: every write replaces the whole, as the platter demands.

use std::collections::BTreeMap;
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
}

#[derive(Clone, Default)]
pub(crate) struct StatePartition {
    /// The config as it was sent.
    pub config: Option<Arc<str>>,
    /// Node identity, established at the first boot.
    pub node_id: String,
}

#[derive(Clone, Default)]
pub(crate) struct Ephemeral {
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

    pub fn wipe(&self) {
        self.platter.write(Content::Blank);
    }
}

fn read(platter: &Platter) -> Option<Installed> {
    match platter.read() {
        Content::Blank => None,
        Content::Image(bytes) => {
            let image = TalosImage::from_qcow2(&bytes)?;
            Some(Installed {
                image,
                meta: BTreeMap::new(),
                state: None,
                ephemeral: Ephemeral::default(),
            })
        }
        Content::Written(written) => written.downcast_ref::<Installed>().cloned(),
    }
}

/// The first disk in boot order with a system on it.
pub(crate) fn boot_disk(hardware: &Hardware) -> Option<(SystemDisk, Installed)> {
    hardware.disks.iter().enumerate().find_map(|(index, disk)| {
        let installed = read(&disk.content)?;
        Some((
            SystemDisk {
                index,
                platter: disk.content.clone(),
            },
            installed,
        ))
    })
}

/// How the kernel names a disk: SCSI and SATA disks are `sda`, `sdb`, … in order of their slots, virtio-blk disks `vda`, ….
pub(crate) fn device_name(disks: &[Disk], index: usize) -> String {
    let is_virtio = |disk: &Disk| disk.key.starts_with("virtio");
    let virtio = disks.get(index).is_some_and(is_virtio);
    let mut order: Vec<usize> = (0..disks.len()).filter(|at| is_virtio(&disks[*at]) == virtio).collect();
    order.sort_by_key(|at| slot(&disks[*at].key));
    let place = order.iter().position(|at| *at == index).unwrap_or(0);
    let letter = char::from(b'a' + u8::try_from(place.min(25)).unwrap_or(25));
    format!("{}{letter}", if virtio { "vd" } else { "sd" })
}

fn slot(key: &str) -> (String, u32) {
    let digits = key.find(|c: char| c.is_ascii_digit()).unwrap_or(key.len());
    (key[..digits].to_owned(), key[digits..].parse().unwrap_or(0))
}
