//! The root disk of a cloud guest. Its content is immutable: every write replaces the whole, so that clones and snapshots hold.

use std::sync::Arc;

use pve_sim::guest::{Content, Hardware, Platter};

use super::fs::Tree;
use super::image::CloudImage;

/// What is on the disk.
#[derive(Clone)]
pub(crate) struct Installed {
    pub image: CloudImage,
    pub tree: Arc<Tree>,
    /// Bytes that the root file system spans; cloud-init grows it to the disk.
    pub root_size: u64,
}

#[derive(Clone)]
pub(crate) struct SystemDisk {
    platter: Platter,
    /// Bytes of the volume.
    pub size: u64,
    pub key: String,
}

impl SystemDisk {
    /// The first disk in boot order that a cloud image was written to.
    pub fn find(hardware: &Hardware) -> Option<Self> {
        hardware.disks.iter().find_map(|disk| {
            let found = Self {
                platter: disk.content.clone(),
                size: disk.size,
                key: disk.key.clone(),
            };
            found.read().map(|_| found)
        })
    }

    pub fn read(&self) -> Option<Installed> {
        match self.platter.read() {
            Content::Blank => None,
            Content::Image(bytes) => {
                let image = CloudImage::from_qcow2(&bytes)?;
                let (tree, root_size) = (Arc::new(image.root_tree()), image.virtual_size());
                let installed = Installed { image, tree, root_size };
                self.platter.write(Content::Written(Arc::new(installed.clone())));
                Some(installed)
            }
            Content::Written(written) => written.downcast_ref::<Installed>().cloned(),
        }
    }

    pub fn tree(&self) -> Arc<Tree> {
        self.read().map(|installed| installed.tree).unwrap_or_default()
    }

    /// Changes the tree. On a disk that was wiped meanwhile the change is lost.
    pub fn change_tree<T>(&self, change: impl FnOnce(&mut Tree) -> T) -> T {
        let Some(mut installed) = self.read() else {
            return change(&mut Tree::default());
        };
        let made = change(Arc::make_mut(&mut installed.tree));
        self.platter.write(Content::Written(Arc::new(installed)));
        made
    }

    pub fn root_size(&self) -> u64 {
        self.read().map_or(0, |installed| installed.root_size)
    }

    /// growpart and resize2fs.
    pub fn grow_root(&self) {
        if let Some(mut installed) = self.read()
            && installed.root_size < self.size
        {
            installed.root_size = self.size;
            self.platter.write(Content::Written(Arc::new(installed)));
        }
    }

    pub fn has_room(&self, more: usize) -> bool {
        self.read()
            .is_some_and(|installed| installed.tree.used() + more as u64 <= installed.root_size)
    }
}
