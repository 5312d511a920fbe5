//! The name of a volume.

use std::fmt;
use std::str::FromStr;

use super::loose::deserialize_from_text;
use super::{StorageId, ValueError, Vmid};

/// `<storage>:<volume>`, for example `local:import/talos.qcow2` or `local-lvm:vm-100-disk-0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Volid {
    storage: StorageId,
    volume: String,
}

impl Volid {
    pub fn new(storage: StorageId, volume: impl Into<String>) -> Result<Self, ValueError> {
        let volume = volume.into();
        // A comma would end the value inside a property string; PVE never makes such a name.
        let plain = !volume.is_empty() && !volume.contains(|c: char| c.is_whitespace() || c.is_control() || c == ',');
        if plain {
            Ok(Self { storage, volume })
        } else {
            Err(ValueError::new("a volume name", volume))
        }
    }

    /// An image that `import-from` accepts, by its file name.
    pub fn import(storage: StorageId, file: &str) -> Result<Self, ValueError> {
        Self::new(storage, format!("import/{file}"))
    }

    pub fn storage(&self) -> &StorageId {
        &self.storage
    }

    pub fn volume(&self) -> &str {
        &self.volume
    }

    /// What follows the last slash.
    pub fn file_name(&self) -> &str {
        self.volume.rsplit('/').next().unwrap_or_default()
    }

    /// The VM a disk image belongs to, by the name PVE gives such images.
    pub fn owner(&self) -> Option<Vmid> {
        let mut parts = self.file_name().split('-');
        match parts.next()? {
            "vm" | "base" => parts.next()?.parse().ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Volid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.storage, self.volume)
    }
}

impl FromStr for Volid {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let error = || ValueError::new("a volume id", text);
        let (storage, volume) = text.split_once(':').ok_or_else(error)?;
        Self::new(storage.parse().map_err(|_| error())?, volume).map_err(|_| error())
    }
}

deserialize_from_text!(Volid);

#[cfg(test)]
mod tests {
    use super::Volid;

    #[test]
    fn the_owner_of_a_disk_is_read_from_its_name() {
        let owner = |text: &str| text.parse::<Volid>().unwrap().owner().map(super::Vmid::get);
        assert_eq!(owner("local-lvm:vm-100-disk-0"), Some(100));
        assert_eq!(owner("vmstore:200/base-200-disk-0.qcow2/211/vm-211-disk-0.qcow2"), Some(211));
        assert_eq!(owner("local-zfs:base-9000-disk-0"), Some(9000));
        assert_eq!(owner("local:211/vm-211-cloudinit.qcow2"), Some(211));
        assert_eq!(owner("local:iso/vm.iso"), None);
        assert_eq!(owner("local:import/vm-x-y.qcow2"), None);
    }

    #[test]
    fn a_volid_needs_a_storage_and_a_name() {
        for text in ["", "local", "local:", ":x", "local:a b", "local:a,size=1G", "/dev/sda"] {
            assert!(text.parse::<Volid>().is_err(), "{text}");
        }
    }
}
