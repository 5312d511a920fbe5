//! Kinds of storage and what they can hold.

use super::open::open_enum;

open_enum! {
    /// What a storage may hold.
    Content {
        Backup = "backup",
        Images = "images",
        Import = "import",
        Iso = "iso",
        None = "none",
        Rootdir = "rootdir",
        Snippets = "snippets",
        Templates = "vztmpl",
    }
}

open_enum! {
    /// How a storage works.
    StorageKind {
        Btrfs = "btrfs",
        CephFs = "cephfs",
        Cifs = "cifs",
        Dir = "dir",
        Iscsi = "iscsi",
        Lvm = "lvm",
        LvmThin = "lvmthin",
        Nfs = "nfs",
        Pbs = "pbs",
        Rbd = "rbd",
        ZfsOverIscsi = "zfs",
        ZfsPool = "zfspool",
    }
}

impl StorageKind {
    /// Whether a clone of a template may share the template's data.
    pub fn links_clones(&self) -> bool {
        self.keeps_files() || matches!(self, Self::LvmThin | Self::Rbd | Self::ZfsOverIscsi | Self::ZfsPool)
    }

    /// Whether disks are files, which may be qcow2, next to images and ISOs.
    pub fn keeps_files(&self) -> bool {
        matches!(self, Self::Btrfs | Self::Cifs | Self::Dir | Self::Nfs)
    }

    /// Whether storages of this type are shared by all hosts even without the `shared` flag.
    pub fn is_shared_by_nature(&self) -> bool {
        matches!(
            self,
            Self::CephFs | Self::Cifs | Self::Iscsi | Self::Nfs | Self::Pbs | Self::Rbd | Self::ZfsOverIscsi
        )
    }
}

#[cfg(test)]
mod tests {
    use super::StorageKind;

    #[test]
    fn plain_lvm_links_no_clones() {
        for (kind, links) in [
            ("lvm", false),
            ("lvmthin", true),
            ("zfspool", true),
            ("dir", true),
            ("pbs", false),
            ("new", false),
        ] {
            assert_eq!(StorageKind::from(kind).links_clones(), links, "{kind}");
        }
    }
}
