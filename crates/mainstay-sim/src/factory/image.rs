//! A disk image: a small body with a true qcow2 header, and behind it what the guest that boots from it will be.

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::qcow2;

/// The body is much smaller than a real one (hundreds of MB); what it stands for is in the header.
const BODY: usize = 64 * 1024;
/// The volume descriptor of ISO 9660, and a sector behind it that is free.
const ISO_MAGIC: &[u8] = b"\x01CD001\x01";
const ISO_MAGIC_AT: usize = 32 * 1024;
const ISO_DESCRIPTION_AT: usize = 34 * 1024;
const MIB: u64 = 1024 * 1024;

/// What an image contains.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct TalosImage {
    pub version: semver::Version,
    pub schematic: String,
    pub extensions: Vec<String>,
    /// `nocloud` or `metal`.
    pub platform: String,
    /// `amd64` or `arm64`.
    pub arch: String,
}

impl TalosImage {
    /// The size a VM sees, before its disk is enlarged.
    pub fn virtual_size(&self) -> u64 {
        let dual_boot = self.arch == "amd64";
        match (self.version.minor, dual_boot) {
            (..=9, _) => 1246 * MIB,
            (10, _) => 2247 * MIB,
            (_, true) => 4247 * MIB,
            (_, false) => 2246 * MIB,
        }
    }

    pub fn to_qcow2(&self) -> Bytes {
        qcow2::write(self, self.virtual_size())
    }

    /// A boot medium: what is on it runs from memory until it is installed on a disk.
    pub fn to_iso(&self) -> Bytes {
        let mut body = BytesMut::with_capacity(BODY);
        body.resize(ISO_MAGIC_AT, 0);
        body.put_slice(ISO_MAGIC);
        body.resize(ISO_DESCRIPTION_AT, 0);
        let description = serde_json::to_vec(self).unwrap_or_default();
        body.put_u32(u32::try_from(description.len()).unwrap_or(0));
        body.put_slice(&description);
        body.resize(BODY.max(body.len()), 0);
        body.freeze()
    }

    /// What would boot from a medium with these bytes.
    pub fn from_iso(body: &[u8]) -> Option<Self> {
        body.get(ISO_MAGIC_AT..)?.starts_with(ISO_MAGIC).then_some(())?;
        qcow2::described(body.get(ISO_DESCRIPTION_AT..)?)
    }

    /// What would boot from these bytes; `None` if nothing of ours is on them.
    pub fn from_qcow2(body: &[u8]) -> Option<Self> {
        qcow2::read(body)
    }

    /// The system that an installer brings to a machine that runs this one: `…/nocloud-installer/<schematic>:v1.13.9`.
    pub fn from_installer(&self, reference: &str) -> Option<Self> {
        let (repository, tag) = reference.rsplit_once(':')?;
        let last = repository.rsplit('/').next()?;
        let schematic = if last.len() == 64 { last } else { &self.schematic };
        Some(Self {
            version: tag.strip_prefix('v')?.parse().ok()?,
            schematic: schematic.to_owned(),
            ..self.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_tells_what_is_on_it() {
        let image = TalosImage {
            version: semver::Version::new(1, 13, 9),
            schematic: "376567".to_owned(),
            extensions: vec!["siderolabs/qemu-guest-agent".to_owned()],
            platform: "nocloud".to_owned(),
            arch: "amd64".to_owned(),
        };
        let body = image.to_qcow2();
        assert_eq!(&body[..4], b"QFI\xfb");
        assert_eq!(u64::from_be_bytes(body[24..32].try_into().expect("eight bytes")), 4247 * MIB);
        assert_eq!(TalosImage::from_qcow2(&body), Some(image));
        assert_eq!(TalosImage::from_qcow2(b"not found"), None);
    }
}
