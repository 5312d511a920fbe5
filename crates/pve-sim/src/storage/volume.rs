//! Volumes and their names.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::Storage;
use crate::die::Die;
use crate::guest::{Content, Platter};
use crate::world::World;

/// What a volume holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Images,
    Iso,
    Import,
    Snippets,
    Template,
    Backup,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Images => "images",
            Self::Iso => "iso",
            Self::Import => "import",
            Self::Snippets => "snippets",
            Self::Template => "vztmpl",
            Self::Backup => "backup",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        [
            Self::Images,
            Self::Iso,
            Self::Import,
            Self::Snippets,
            Self::Template,
            Self::Backup,
        ]
        .into_iter()
        .find(|k| k.name() == name)
    }

    fn directory(self) -> &'static str {
        match self {
            Self::Images => "images",
            Self::Iso => "template/iso",
            Self::Import => "import",
            Self::Snippets => "snippets",
            Self::Template => "template/cache",
            Self::Backup => "dump",
        }
    }
}

/// A volume's name within its storage, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    pub full: &'a str,
}

/// Splits `storage:name`.
pub fn parse_volid(volid: &str) -> Result<(&str, Name<'_>), Die> {
    match volid.split_once(':') {
        Some((storage, full)) if !full.is_empty() && crate::schema::is_storage_id(storage) => Ok((storage, Name { full })),
        _ => Err(Die::new(format!("unable to parse volume ID '{volid}'"))),
    }
}

impl<'a> Name<'a> {
    /// What the name says it is.
    pub fn kind(&self) -> Option<Kind> {
        let first = self.full.split('/').next().unwrap_or_default();
        match Kind::parse(first) {
            Some(Kind::Images) | None => self.owner().map(|_| Kind::Images),
            Some(kind) if self.full.split('/').count() == 2 => Some(kind),
            // The disk inside an appliance.
            Some(Kind::Import) if self.full.split('/').count() == 3 && self.full.contains(".ova/") => Some(Kind::Import),
            Some(_) => None,
        }
    }

    /// What the name is on a storage of this kind; names that its plugin cannot parse are refused in its words.
    pub fn require_kind(&self, storage: &Storage) -> Result<Kind, Die> {
        let family = match storage.kind.as_str() {
            "lvmthin" | "lvm" => "lvm",
            "zfspool" => "zfs",
            _ => "directory",
        };
        let unknown = || Die::new(format!("unable to parse {family} volume name '{}'", self.full));
        let kind = self.kind().ok_or_else(unknown)?;
        if family == "directory" {
            match kind {
                Kind::Images if self.full.contains('/') => self.require_image_files()?,
                Kind::Images => return Err(unknown()),
                kind if !has_extension_of(kind, self.file()) => return Err(unknown()),
                _ => {}
            }
        } else if kind != Kind::Images {
            return Err(unknown());
        }
        Ok(kind)
    }

    /// The files of an image and of its base: `[^/\s]+` and an extension that tells the format.
    fn require_image_files(&self) -> Result<(), Die> {
        let files: Vec<&str> = self.full.split('/').skip(1).step_by(2).collect();
        for file in files {
            image_format(file)?;
        }
        Ok(())
    }

    /// The last part: `vm-100-disk-0.qcow2`.
    pub fn file(&self) -> &'a str {
        self.full.rsplit('/').next().unwrap_or_default()
    }

    /// The VM an image belongs to.
    pub fn owner(&self) -> Option<u32> {
        let parts: Vec<&str> = self.full.split('/').collect();
        if parts.len() >= 2 && parts[parts.len() - 2].bytes().all(|b| b.is_ascii_digit()) {
            return parts[parts.len() - 2].parse().ok();
        }
        if let Some(archive) = self.full.strip_prefix("backup/vzdump-") {
            let (kind, rest) = archive.split_once('-')?;
            let (owner, _) = rest.split_once('-')?;
            return owner.parse().ok().filter(|_| matches!(kind, "qemu" | "lxc" | "openvz"));
        }
        let file = self
            .file()
            .strip_prefix("vm-")
            .or_else(|| self.file().strip_prefix("base-"))?;
        file.split('-').next()?.parse().ok()
    }

    pub fn is_base(&self) -> bool {
        self.file().starts_with("base-")
    }

    /// `9000/base-9000-disk-0.qcow2` of a linked clone whose name tells its base.
    pub fn base(&self) -> Option<String> {
        let parts: Vec<&str> = self.full.split('/').collect();
        match parts[..] {
            [vmid, base, _, _] => Some(format!("{vmid}/{base}")),
            [base, _] if base.starts_with("base-") => Some(base.into()),
            _ => None,
        }
    }

    pub fn is_cloudinit(&self) -> bool {
        let file = self.file();
        file.strip_prefix("vm-")
            .is_some_and(|rest| rest.split('.').next().is_some_and(|stem| stem.ends_with("-cloudinit")))
    }

    /// The file or device.
    pub fn path(&self, id: &str, storage: &Storage) -> String {
        let file = self.file();
        if !storage.is_file_based() {
            let group = storage
                .other
                .get("vgname")
                .or(storage.other.get("pool"))
                .map_or(id, String::as_str);
            let root = if storage.kind == "zfspool" { "/dev/zvol" } else { "/dev" };
            return format!("{root}/{group}/{file}");
        }
        let root = storage.path.clone().unwrap_or_else(|| format!("/mnt/pve/{id}"));
        match (self.kind().unwrap_or(Kind::Images), self.owner()) {
            (Kind::Images, Some(owner)) => format!("{root}/images/{owner}/{file}"),
            (kind, _) => format!("{root}/{}/{file}", kind.directory()),
        }
    }
}

/// The format that the name of an image file tells.
pub(super) fn image_format(file: &str) -> Result<&str, Die> {
    if file.starts_with("snap-") && file.ends_with(".qcow2") {
        return Err(Die::new(format!("'{file}' is a snapshot filename, not a volume!")));
    }
    let extension = file.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).map(|(_, e)| e);
    extension
        .filter(|e| matches!(*e, "raw" | "qcow2" | "vmdk" | "subvol") && !file.contains(char::is_whitespace))
        .ok_or_else(|| Die::new(format!("unable to parse volume filename '{file}'")))
}

/// Whether a file of this kind may have this name.
fn has_extension_of(kind: Kind, file: &str) -> bool {
    let lower = file.to_ascii_lowercase();
    let ends = |name: &str, list: &[&str]| list.iter().any(|e| name.len() > e.len() && name.ends_with(e));
    match kind {
        Kind::Images | Kind::Snippets => true,
        Kind::Iso => ends(&lower, &[".iso", ".img"]),
        Kind::Template => ends(&lower, &[".tar", ".tar.gz", ".tar.xz", ".tar.zst", ".tar.bz2"]),
        Kind::Backup => {
            let packed = ["", ".gz", ".lzo", ".zst", ".bz2"];
            let packed = |base: &str| packed.iter().any(|p| ends(file, &[&format!("{base}{p}")]));
            packed(".tar") || packed(".vma") || ends(file, &[".tgz"])
        }
        Kind::Import => {
            ends(file, &[".ova", ".ovf", ".qcow2", ".raw", ".vmdk"])
                && file.chars().all(|c| c.is_ascii_alphanumeric() || " -.+=_".contains(c))
        }
    }
}

/// The volid of an image by this name.
pub(super) fn volid_of(storage: &Storage, id: &str, vmid: u32, name: &str) -> String {
    if storage.is_file_based() {
        format!("{id}:{vmid}/{name}")
    } else {
        format!("{id}:{name}")
    }
}

#[derive(Clone)]
pub struct Volume {
    pub volid: String,
    pub kind: Kind,
    pub format: String,
    /// As a guest sees it.
    pub size: u64,
    /// As the file system counts it.
    pub file_size: u64,
    /// Bytes it takes from the storage.
    pub used: u64,
    pub vmid: Option<u32>,
    /// The base of a linked clone, as qemu-img tells it.
    pub parent: Option<String>,
    pub ctime: i64,
    pub content: Platter,
    pub sha256: Option<String>,
    /// Snapshots inside the volume.
    pub snapshots: BTreeMap<String, Platter>,
}

impl Volume {
    pub fn image(volid: &str, vmid: u32, format: &str, size: u64, now: i64, content: Platter) -> Self {
        Self {
            volid: volid.into(),
            kind: Kind::Images,
            format: format.into(),
            size,
            file_size: size,
            used: 0,
            vmid: Some(vmid),
            parent: None,
            ctime: now,
            content,
            sha256: None,
            snapshots: BTreeMap::new(),
        }
    }

    pub fn name(&self) -> Name<'_> {
        Name {
            full: self.volid.split_once(':').map(|(_, name)| name).unwrap_or_default(),
        }
    }

    pub fn storage(&self) -> &str {
        self.volid.split(':').next().unwrap_or_default()
    }

    /// The bytes of an image file, where they are known.
    pub fn bytes(&self) -> Bytes {
        match self.content.read() {
            Content::Image(bytes) => bytes,
            _ => Bytes::new(),
        }
    }
}

/// All volumes, by where they are and their id.
#[derive(Clone, Default)]
pub struct Volumes(BTreeMap<(String, String), Volume>);

impl Volumes {
    pub fn get(&self, place: &str, volid: &str) -> Option<&Volume> {
        self.0.get(&(place.to_string(), volid.to_string()))
    }

    pub fn get_mut(&mut self, place: &str, volid: &str) -> Option<&mut Volume> {
        self.0.get_mut(&(place.to_string(), volid.to_string()))
    }

    pub fn insert(&mut self, place: &str, volume: Volume) {
        self.0.insert((place.to_string(), volume.volid.clone()), volume);
    }

    pub fn remove(&mut self, place: &str, volid: &str) -> Option<Volume> {
        self.0.remove(&(place.to_string(), volid.to_string()))
    }

    pub fn all(&self) -> impl Iterator<Item = (&str, &Volume)> {
        self.0.iter().map(|((place, _), volume)| (place.as_str(), volume))
    }

    pub fn on<'a>(&'a self, place: &str, storage: &'a str) -> impl Iterator<Item = &'a Volume> + use<'a> {
        let prefix = format!("{storage}:");
        let from = (place.to_string(), prefix.clone());
        let place = place.to_string();
        self.0
            .range(from..)
            .take_while(move |((p, v), _)| *p == place && v.starts_with(&prefix))
            .map(|(_, volume)| volume)
    }

    pub fn used(&self, place: &str, storage: &str) -> u64 {
        self.on(place, storage).map(|v| v.used).sum()
    }

    /// The lowest free `vm-N-disk-M` of a VM.
    pub(super) fn next_disk(&self, place: &str, id: &str, storage: &Storage, vmid: u32, format: &str) -> String {
        let taken: Vec<u32> = self
            .on(place, id)
            .filter(|v| v.vmid == Some(vmid))
            .filter_map(|v| disk_number(&v.name(), vmid))
            .collect();
        let number = (0..).find(|n| !taken.contains(n)).unwrap_or(0);
        let suffix = if storage.is_file_based() {
            format!(".{format}")
        } else {
            String::new()
        };
        format!("vm-{vmid}-disk-{number}{suffix}")
    }

    /// The base's own name, if a clone still stands on it.
    pub fn clone_of(&self, place: &str, volid: &str) -> Option<String> {
        let (storage, name) = volid.split_once(':')?;
        let base = Name { full: name };
        if !base.is_base() {
            return None;
        }
        let wanted = match base.full.matches('/').count() {
            3 => base.full.splitn(3, '/').nth(2)?.to_string(),
            _ => base.full.to_string(),
        };
        self.on(place, storage)
            .any(|v| v.name().base().as_deref() == Some(&wanted))
            .then_some(wanted)
    }

    pub(crate) fn load(&mut self, world: &World, now: i64) {
        for (place, storages) in &world.volumes {
            let place = if place == "shared" { "" } else { place };
            for spec in storages.values().flatten() {
                let kind = Kind::parse(&spec.content).unwrap_or(Kind::Import);
                let name = spec.volid.split_once(':').map(|(_, name)| Name { full: name });
                let marker = spec.text.clone().or_else(|| spec.sha256.clone()).unwrap_or_default();
                let volume = Volume {
                    volid: spec.volid.clone(),
                    kind,
                    format: spec.format.clone(),
                    size: spec.virtual_size.unwrap_or(spec.size),
                    file_size: spec.size,
                    used: spec.size,
                    vmid: name.and_then(|name| name.owner()).filter(|_| kind == Kind::Images),
                    parent: None,
                    ctime: now,
                    content: Platter::new(Content::Image(Bytes::from(marker))),
                    sha256: spec.sha256.clone(),
                    snapshots: BTreeMap::new(),
                };
                self.insert(place, volume);
            }
        }
    }
}

fn disk_number(name: &Name<'_>, vmid: u32) -> Option<u32> {
    let rest = name
        .file()
        .strip_prefix("vm-")
        .or_else(|| name.file().strip_prefix("base-"))?;
    let rest = rest.strip_prefix(&vmid.to_string())?.strip_prefix("-disk-")?;
    rest.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Kind, Name, parse_volid};

    #[test]
    fn names_tell_kind_owner_and_base() {
        for (name, kind, owner, base) in [
            ("100/vm-100-disk-0.qcow2", Some(Kind::Images), Some(100), None),
            (
                "9000/base-9000-disk-0.raw/101/vm-101-disk-0.qcow2",
                Some(Kind::Images),
                Some(101),
                Some("9000/base-9000-disk-0.raw"),
            ),
            (
                "base-9000-disk-0/vm-101-disk-0",
                Some(Kind::Images),
                Some(101),
                Some("base-9000-disk-0"),
            ),
            ("vm-100-disk-0", Some(Kind::Images), Some(100), None),
            ("iso/x.iso", Some(Kind::Iso), None, None),
            ("x", None, None, None),
        ] {
            let name = Name { full: name };
            assert_eq!(
                (name.kind(), name.owner(), name.base().as_deref()),
                (kind, owner, base),
                "{name:?}"
            );
        }
        assert!(parse_volid("none").is_err());
    }
}
