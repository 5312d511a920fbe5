//! Disks and CD drives.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::loose::deserialize_from_text;
use super::property::{self, Properties};
use super::{DiskSize, StorageId, ValueError, Volid};
use crate::encode;

/// Where a drive is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    Disk(Bus, u8),
    Efi,
    Tpm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bus {
    Ide,
    Sata,
    Scsi,
    Virtio,
}

impl Bus {
    const ALL: [Self; 4] = [Self::Ide, Self::Sata, Self::Scsi, Self::Virtio];

    fn name(self) -> &'static str {
        match self {
            Self::Ide => "ide",
            Self::Sata => "sata",
            Self::Scsi => "scsi",
            Self::Virtio => "virtio",
        }
    }

    fn last(self) -> u8 {
        match self {
            Self::Ide => 3,
            Self::Sata => 5,
            Self::Scsi => 30,
            Self::Virtio => 15,
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(bus, n) => write!(f, "{}{n}", bus.name()),
            Self::Efi => f.write_str("efidisk0"),
            Self::Tpm => f.write_str("tpmstate0"),
        }
    }
}

impl FromStr for Slot {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "efidisk0" => return Ok(Self::Efi),
            "tpmstate0" => return Ok(Self::Tpm),
            _ => {}
        }
        let disk = Bus::ALL.into_iter().find_map(|bus| {
            let number = text.strip_prefix(bus.name())?;
            let canonical = number == "0" || !number.starts_with(['0', '+']);
            number
                .parse::<u8>()
                .ok()
                .filter(|n| canonical && *n <= bus.last())
                .map(|n| Self::Disk(bus, n))
        });
        disk.ok_or_else(|| ValueError::new("a drive slot", text))
    }
}

/// What is in a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// An existing volume.
    Volume(Volid),
    /// A new, empty disk. For EFI and TPM disks PVE ignores the size.
    Allocate { storage: StorageId, gib: u32 },
    /// A new disk with the content and the virtual size of an image. It keeps the image's format where the storage can.
    Import { storage: StorageId, from: Volid },
    /// A drive that PVE fills from the cloud-init options at each start.
    CloudInit { storage: StorageId },
    /// An empty CD drive.
    Empty,
    /// The host's own CD drive.
    Physical,
    /// A file or device outside any storage; only root may set it.
    Path(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    Disk,
    Cdrom,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    None,
    Writethrough,
    Writeback,
    Unsafe,
    Directsync,
}

/// A drive and its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drive {
    pub source: Source,
    pub media: Option<Media>,
    /// What PVE believes the size to be. PVE writes it; a size that is sent changes nothing.
    pub size: Option<DiskSize>,
    pub cache: Option<Cache>,
    pub discard: Option<bool>,
    /// Takes effect on SCSI only with `virtio-scsi-single`.
    pub iothread: Option<bool>,
    /// Refused on virtio.
    pub ssd: Option<bool>,
    pub backup: Option<bool>,
    /// At most 20 bytes; the guest sees it.
    pub serial: Option<String>,
    /// EFI disk: `4m` for every current machine.
    pub efitype: Option<String>,
    /// EFI disk: turns Secure Boot on with Microsoft's keys.
    pub pre_enrolled_keys: Option<bool>,
    /// Options this type does not know.
    pub other: BTreeMap<String, String>,
}

impl Drive {
    pub fn new(source: Source) -> Self {
        Self {
            source,
            media: None,
            size: None,
            cache: None,
            discard: None,
            iothread: None,
            ssd: None,
            backup: None,
            serial: None,
            efitype: None,
            pre_enrolled_keys: None,
            other: BTreeMap::new(),
        }
    }

    pub fn cdrom(source: Source) -> Self {
        Self {
            media: Some(Media::Cdrom),
            ..Self::new(source)
        }
    }

    pub fn volume(&self) -> Option<&Volid> {
        match &self.source {
            Source::Volume(volume) => Some(volume),
            _ => None,
        }
    }

    pub fn is_cdrom(&self) -> bool {
        self.media == Some(Media::Cdrom)
    }

    /// PVE names the volume of a cloud-init drive `vm-<id>-cloudinit`.
    pub fn is_cloud_init(&self) -> bool {
        match &self.source {
            Source::CloudInit { .. } => true,
            Source::Volume(volume) => volume.owner().is_some() && volume.file_name().contains("-cloudinit"),
            _ => false,
        }
    }
}

impl fmt::Display for Drive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pairs = self.other.clone();
        let mut put = |key: &str, value: Option<String>| value.map(|value| pairs.insert(key.to_owned(), value));
        if let Source::Import { from, .. } = &self.source {
            put("import-from", Some(from.to_string()));
        }
        put("media", self.media.map(|media| media.name().to_owned()));
        put("size", self.size.map(|size| size.to_string()));
        put("cache", self.cache.map(|cache| cache.name().to_owned()));
        put("discard", self.discard.map(|on| if on { "on" } else { "ignore" }.to_owned()));
        put("iothread", self.iothread.map(property::flag));
        put("ssd", self.ssd.map(property::flag));
        put("backup", self.backup.map(property::flag));
        put("serial", self.serial.as_deref().map(encode::component));
        put("efitype", self.efitype.clone());
        put("pre-enrolled-keys", self.pre_enrolled_keys.map(property::flag));
        f.write_str(&property::print(&self.source.first(), &pairs))
    }
}

impl FromStr for Drive {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        const EXPECTED: &str = "a drive";
        let mut properties = Properties::parse(text, EXPECTED)?;
        let file = properties.take_default("file").or_else(|| properties.take("volume"));
        let file = file.ok_or_else(|| ValueError::new(EXPECTED, text))?;
        let source = Source::read(&file, &mut properties).ok_or_else(|| ValueError::new(EXPECTED, text))?;
        let drive = Self {
            media: properties.take_as("media", Media::parse),
            size: properties.take_parsed("size"),
            cache: properties.take_as("cache", Cache::parse),
            discard: properties.take_as("discard", |text| match text {
                "on" => Some(true),
                "ignore" => Some(false),
                _ => None,
            }),
            iothread: properties.take_flag("iothread"),
            ssd: properties.take_flag("ssd"),
            backup: properties.take_flag("backup"),
            serial: properties.take_as("serial", encode::decode_component),
            efitype: properties.take("efitype"),
            pre_enrolled_keys: properties.take_flag("pre-enrolled-keys"),
            ..Self::new(source)
        };
        Ok(Self {
            other: properties.pairs,
            ..drive
        })
    }
}

deserialize_from_text!(Drive, Slot);

impl Source {
    /// The part before the first comma.
    fn first(&self) -> String {
        let file = self.file();
        // Unnamed, it would be taken for a key and its value.
        if file.contains('=') { format!("file={file}") } else { file }
    }

    fn file(&self) -> String {
        match self {
            Self::Volume(volume) => volume.to_string(),
            Self::Allocate { storage, gib } => format!("{storage}:{gib}"),
            Self::Import { storage, .. } => format!("{storage}:0"),
            Self::CloudInit { storage } => format!("{storage}:cloudinit"),
            Self::Empty => "none".to_owned(),
            Self::Physical => "cdrom".to_owned(),
            Self::Path(path) => path.clone(),
        }
    }

    fn read(file: &str, properties: &mut Properties) -> Option<Self> {
        match file {
            "none" => return Some(Self::Empty),
            "cdrom" => return Some(Self::Physical),
            path if path.starts_with('/') => return Some(Self::Path(path.to_owned())),
            _ => {}
        }
        let volume: Volid = file.parse().ok()?;
        let storage = volume.storage().clone();
        if let Some(from) = properties.take("import-from") {
            let from = from.parse().ok()?;
            return (volume.volume() == "0").then_some(Self::Import { storage, from });
        }
        match volume.volume() {
            "cloudinit" => Some(Self::CloudInit { storage }),
            // A fraction is a size as well, but never one of ours, and PVE answers with volumes only.
            size if size.bytes().all(|b| b.is_ascii_digit() || b == b'.') => {
                size.parse().ok().map(|gib| Self::Allocate { storage, gib })
            }
            _ => Some(Self::Volume(volume)),
        }
    }
}

impl Media {
    fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Cdrom => "cdrom",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Disk, Self::Cdrom].into_iter().find(|media| media.name() == text)
    }
}

impl Cache {
    const ALL: [Self; 5] = [
        Self::None,
        Self::Writethrough,
        Self::Writeback,
        Self::Unsafe,
        Self::Directsync,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Writethrough => "writethrough",
            Self::Writeback => "writeback",
            Self::Unsafe => "unsafe",
            Self::Directsync => "directsync",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cache| cache.name() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::{Bus, Cache, Drive, Slot, Source};

    fn drive(text: &str) -> Drive {
        text.parse().unwrap()
    }

    #[test]
    fn a_disk_as_pve_prints_it_is_read_and_printed_the_same() {
        for text in [
            "vmstore:200/base-200-disk-0.qcow2/211/vm-211-disk-0.qcow2,size=38250K",
            "local-lvm:vm-100-disk-0,discard=on,iothread=1,size=20G,ssd=1",
            "vmstore:101/vm-101-cloudinit.qcow2,media=cdrom",
            "vmstore:101/vm-101-disk-1.raw,size=4M,version=v2.0",
            "vmstore:1/vm-1-disk-0.raw,efitype=4m,pre-enrolled-keys=0,size=528K",
            "none,media=cdrom",
            "cdrom,media=cdrom",
            "/dev/sdb,backup=0",
        ] {
            assert_eq!(drive(text).to_string(), text);
        }
    }

    #[test]
    fn an_import_names_its_source() {
        let mut disk = Drive::new(Source::Import {
            storage: "local-lvm".parse().unwrap(),
            from: "local:import/talos.qcow2".parse().unwrap(),
        });
        disk.discard = Some(true);
        disk.cache = Some(Cache::None);
        assert_eq!(
            disk.to_string(),
            "local-lvm:0,cache=none,discard=on,import-from=local:import/talos.qcow2"
        );
        assert_eq!(drive(&disk.to_string()), disk);
        assert!("local-lvm:8,import-from=local:import/talos.qcow2".parse::<Drive>().is_err());
    }

    #[test]
    fn the_ways_other_clients_write_a_drive_are_read() {
        assert_eq!(
            drive("file=vmstore:cloudinit,").source,
            Source::CloudInit {
                storage: "vmstore".parse().unwrap()
            }
        );
        assert_eq!(
            drive("vmstore:1,efitype=4m,pre-enrolled-keys=False").pre_enrolled_keys,
            Some(false)
        );
        assert!(drive("vmstore:101/vm-101-cloudinit.qcow2,media=cdrom").is_cloud_init());
    }

    #[test]
    fn an_option_this_type_does_not_know_survives() {
        let text = "local:100/vm-100-disk-0.raw,iops_rd=100,mbps=1.5,wwn=0x5000c50015ea71ac";
        assert_eq!(drive(text).to_string(), text);
    }

    #[test]
    fn a_serial_is_percent_encoded() {
        let disk = Drive {
            serial: Some("a b,c".to_owned()),
            ..drive("local:vm-100-disk-0")
        };
        assert_eq!(disk.to_string(), "local:vm-100-disk-0,serial=a%20b%2Cc");
        assert_eq!(drive(&disk.to_string()), disk);
    }

    #[test]
    fn slots_have_the_ranges_of_pve() {
        assert_eq!("scsi30".parse::<Slot>().unwrap(), Slot::Disk(Bus::Scsi, 30));
        assert_eq!("efidisk0".parse::<Slot>().unwrap(), Slot::Efi);
        for text in [
            "scsi31", "ide4", "sata6", "virtio16", "scsi", "scsi01", "scsi+1", "net0", "efidisk1",
        ] {
            assert!(text.parse::<Slot>().is_err(), "{text}");
        }
    }
}
