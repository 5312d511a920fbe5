//! Cloud images: which systems are supported, where their dated files are, and which images must not be used.

use url::Url;

use crate::checksum::{Checksum, ChecksumError, checksum_of};

/// A supported operating system. `current` and `latest` directories move, so a dated directory is chosen once and pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OsImage {
    /// As written in the cluster's file: `ubuntu-24.04`.
    pub name: &'static str,
    publisher: Publisher,
    /// The directory that holds the dated directories.
    directory: &'static str,
    /// Largest disk that the image itself describes, rounded up. The machine's disk must not be smaller.
    pub minimum_disk_gib: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Publisher {
    /// The code name is part of the file name.
    Ubuntu(&'static str),
    /// The release number is part of the file name, and so is the date.
    Debian(&'static str),
}

/// One published file of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatedImage {
    /// `20260810` (Ubuntu) or `20260810-2201` (Debian).
    pub serial: String,
    pub url: Url,
    pub checksums_url: Url,
    /// The name in the checksum file.
    pub file: String,
    /// The name to give the file on a Proxmox storage, which accepts `.qcow2` and not Ubuntu's `.img`.
    pub storage_file: String,
}

/// Why an image address is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ImageRefusal {
    #[error("Debian's `nocloud` image has no cloud-init and a root account without password; use `generic`")]
    DebianNocloud,
    #[error("Debian's `genericcloud` image has a reduced kernel; use `generic`")]
    DebianGenericcloud,
    /// canonical/cloud-init issue 6887: the NIC that Proxmox' drive renames to eth0 is busy.
    #[error("Ubuntu 26.04 loses its network when Proxmox' cloud-init drive renames the NIC to eth0")]
    UbuntuRename,
}

const IMAGES: [OsImage; 4] = [
    OsImage {
        name: "ubuntu-22.04",
        publisher: Publisher::Ubuntu("jammy"),
        directory: "https://cloud-images.ubuntu.com/jammy/",
        minimum_disk_gib: 4,
    },
    OsImage {
        name: "ubuntu-24.04",
        publisher: Publisher::Ubuntu("noble"),
        directory: "https://cloud-images.ubuntu.com/noble/",
        minimum_disk_gib: 4,
    },
    OsImage {
        name: "debian-12",
        publisher: Publisher::Debian("12"),
        directory: "https://cloud.debian.org/images/cloud/bookworm/",
        minimum_disk_gib: 4,
    },
    OsImage {
        name: "debian-13",
        publisher: Publisher::Debian("13"),
        directory: "https://cloud.debian.org/images/cloud/trixie/",
        minimum_disk_gib: 4,
    },
];

pub fn os_images() -> &'static [OsImage] {
    &IMAGES
}

pub fn os_image(name: &str) -> Option<&'static OsImage> {
    IMAGES.iter().find(|image| image.name == name)
}

/// Why an image address must not be used, judged by its file name.
pub fn refused_image(url: &Url) -> Option<ImageRefusal> {
    let path = url.path().to_ascii_lowercase();
    let file = path.rsplit('/').next().unwrap_or_default();
    if file.starts_with("debian-") && file.contains("-nocloud-") {
        return Some(ImageRefusal::DebianNocloud);
    }
    if file.starts_with("debian-") && file.contains("-genericcloud-") {
        return Some(ImageRefusal::DebianGenericcloud);
    }
    let is_resolute = file.starts_with("resolute-") || file.starts_with("ubuntu-26.04-");
    is_resolute.then_some(ImageRefusal::UbuntuRename)
}

impl OsImage {
    /// The page that lists the dated directories.
    pub fn listing_url(&self) -> Url {
        Url::parse(self.directory).expect("a constant address")
    }

    /// The newest dated directory that a listing page links to. `None` if the page lists none.
    pub fn newest(&self, listing: &str) -> Option<DatedImage> {
        let links = listing.split("href=\"").skip(1);
        let names = links.filter_map(|rest| rest.split('"').next()?.strip_suffix('/'));
        let serial = names.filter(|name| self.is_serial(name)).max()?;
        Some(self.dated(serial))
    }

    /// The files of one dated directory.
    pub fn dated(&self, serial: &str) -> DatedImage {
        let (file, sums) = match self.publisher {
            Publisher::Ubuntu(code) => (format!("{code}-server-cloudimg-amd64.img"), "SHA256SUMS"),
            Publisher::Debian(release) => (format!("debian-{release}-generic-amd64-{serial}.qcow2"), "SHA512SUMS"),
        };
        let directory = self.listing_url();
        let at = |name: &str| directory.join(&format!("{serial}/{name}")).expect("a relative path");
        DatedImage {
            serial: serial.to_owned(),
            url: at(&file),
            checksums_url: at(sums),
            storage_file: format!("{}-{serial}.qcow2", self.name),
            file,
        }
    }

    /// The serial of a file that [`DatedImage::storage_file`] named: tells which image a storage holds when the lock file is lost.
    pub fn serial_of_storage_file<'a>(&self, file: &'a str) -> Option<&'a str> {
        let serial = file.strip_prefix(self.name)?.strip_prefix('-')?.strip_suffix(".qcow2")?;
        self.is_serial(serial).then_some(serial)
    }

    /// Eight digits, on Debian followed by a build number. All serials of a publisher have one length, so they sort as texts.
    fn is_serial(&self, name: &str) -> bool {
        let is_number = |text: &str, length: usize| text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit());
        match (self.publisher, name.split_once('-')) {
            (Publisher::Ubuntu(_), None) => is_number(name, 8),
            (Publisher::Debian(_), Some((date, build))) => is_number(date, 8) && is_number(build, 4),
            _ => false,
        }
    }
}

impl DatedImage {
    /// The digest in the text of [`DatedImage::checksums_url`].
    pub fn checksum(&self, checksums: &str) -> Result<Checksum, ChecksumError> {
        checksum_of(checksums, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_dated_directory_of_a_listing_is_taken_and_moving_names_are_not() {
        let listing = r#"<a href="../">Parent</a> <a href="20260701/">20260701/</a> <a href="20260810/">20260810/</a>
            <a href="current/">current/</a> <a href="20260805.1/">x</a>"#;
        let found = os_image("ubuntu-24.04").expect("known").newest(listing).expect("dated");
        assert_eq!(
            found.url.as_str(),
            "https://cloud-images.ubuntu.com/noble/20260810/noble-server-cloudimg-amd64.img"
        );
        assert_eq!(
            found.checksums_url.as_str(),
            "https://cloud-images.ubuntu.com/noble/20260810/SHA256SUMS"
        );
        assert_eq!(found.storage_file, "ubuntu-24.04-20260810.qcow2");
        assert_eq!(os_image("ubuntu-24.04").expect("known").newest("<html></html>"), None);
    }

    #[test]
    fn debian_files_carry_their_date_and_are_listed_under_sha512() {
        let debian = os_image("debian-13").expect("known");
        let listing =
            r#"<a href="20260801-2183/">a</a><a href="20260712-2172/">b</a><a href="latest/">c</a><a href="daily/">d</a>"#;
        let found = debian.newest(listing).expect("dated");
        assert_eq!(
            found.url.as_str(),
            "https://cloud.debian.org/images/cloud/trixie/20260801-2183/debian-13-generic-amd64-20260801-2183.qcow2"
        );
        assert!(found.checksums_url.as_str().ends_with("/20260801-2183/SHA512SUMS"));
        let digest = "c".repeat(128);
        let sums = format!("{digest}  debian-13-generic-amd64-20260801-2183.qcow2\n");
        assert_eq!(found.checksum(&sums).expect("listed").algorithm(), "sha512");
    }

    #[test]
    fn the_storage_file_name_tells_image_and_date() {
        for image in os_images() {
            let serial = match image.publisher {
                Publisher::Ubuntu(_) => "20260810",
                Publisher::Debian(_) => "20260810-2201",
            };
            let file = image.dated(serial).storage_file;
            assert_eq!(image.serial_of_storage_file(&file), Some(serial));
            let others = os_images().iter().filter(|other| *other != image);
            assert!(
                others
                    .filter_map(|other| other.serial_of_storage_file(&file))
                    .next()
                    .is_none()
            );
        }
    }

    #[test]
    fn images_that_cannot_work_are_refused_by_name() {
        let refused = |text: &str| refused_image(&Url::parse(text).expect("a URL"));
        let debian = "https://cloud.debian.org/images/cloud/bookworm/latest/debian-12";
        assert_eq!(
            refused(&format!("{debian}-nocloud-amd64.qcow2")),
            Some(ImageRefusal::DebianNocloud)
        );
        assert_eq!(
            refused(&format!("{debian}-genericcloud-amd64.qcow2")),
            Some(ImageRefusal::DebianGenericcloud)
        );
        assert_eq!(refused(&format!("{debian}-generic-amd64.qcow2")), None);
        assert_eq!(
            refused("https://cloud-images.ubuntu.com/resolute/current/resolute-server-cloudimg-amd64.img"),
            Some(ImageRefusal::UbuntuRename)
        );
    }
}
