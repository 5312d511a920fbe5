//! Storages and what lies on them.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Deserializer};

use crate::request::{Call, Done, Request};
use crate::value::{Content, Digest, Host, StorageId, StorageKind, Upid, Vmid, Volid, loose};

pub type Contents = BTreeSet<Content>;

pub(crate) fn contents<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Contents, D::Error> {
    let text = loose::text(deserializer)?;
    Ok(text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(Content::from)
        .collect())
}

/// The storages of a host as it sees them now. Slow when one of them hangs.
pub fn list(host: &Host) -> Call<Vec<StorageStatus>> {
    Call::new(Request::get("/nodes/{node}/storage", &[host]))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StorageStatus {
    pub storage: StorageId,
    #[serde(rename = "type")]
    pub kind: StorageKind,
    #[serde(default, deserialize_with = "contents")]
    pub content: Contents,
    #[serde(default, deserialize_with = "loose::flag")]
    pub enabled: bool,
    /// Usable on this host right now.
    #[serde(default, deserialize_with = "loose::flag")]
    pub active: bool,
    #[serde(default, deserialize_with = "loose::flag")]
    pub shared: bool,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub total: u64,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub used: u64,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub avail: u64,
}

/// The storages as they are configured, for all hosts.
pub fn definitions() -> Call<Vec<Definition>> {
    Call::new(Request::get("/storage", &[]))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Definition {
    pub storage: StorageId,
    #[serde(rename = "type")]
    pub kind: StorageKind,
    #[serde(default, deserialize_with = "contents")]
    pub content: Contents,
    #[serde(default, deserialize_with = "loose::flag")]
    pub disable: bool,
    #[serde(default, deserialize_with = "loose::flag")]
    pub shared: bool,
    /// Empty means every host.
    #[serde(default, deserialize_with = "hosts")]
    pub nodes: BTreeSet<Host>,
    /// Of all storages together.
    #[serde(default)]
    pub digest: Option<Digest>,
}

fn hosts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<Host>, D::Error> {
    let text = loose::text(deserializer)?;
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(|name| name.parse().map_err(serde::de::Error::custom)).collect()
}

/// One storage as it is configured.
pub fn definition(storage: &StorageId) -> Call<Definition> {
    Call::new(Request::get("/storage/{storage}", &[storage]))
}

/// Replaces what the storage may hold, all of it. Needs `Datastore.Allocate` on `/storage`.
///
/// With a digest, it is refused as [`crate::Class::Changed`] when any storage was changed since it was read.
pub fn set_content(storage: &StorageId, content: &Contents, digest: Option<&Digest>) -> Call<Done> {
    Call::new(
        Request::put("/storage/{storage}", &[storage])
            .with_list("content", content)
            .with_opt("digest", digest),
    )
}

/// The volumes of a storage that the caller may see.
pub fn content(host: &Host, storage: &StorageId, filter: &ContentFilter) -> Call<Vec<Volume>> {
    let request = Request::get("/nodes/{node}/storage/{storage}/content", &[host, storage]);
    Call::new(
        request
            .with_opt("content", filter.content.as_ref())
            .with_opt("vmid", filter.vmid),
    )
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContentFilter {
    pub content: Option<Content>,
    pub vmid: Option<Vmid>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Volume {
    pub volid: Volid,
    pub content: Content,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub format: Option<String>,
    /// Of the file for imports and ISOs, of the disk for disk images.
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub size: u64,
    #[serde(default)]
    pub vmid: Option<Vmid>,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub parent: Option<String>,
    #[serde(default, deserialize_with = "loose::opt_unsigned")]
    pub ctime: Option<u64>,
}

/// One volume, with the size the guest would see.
pub fn volume(host: &Host, volid: &Volid) -> Call<VolumeInfo> {
    Call::new(Request::get(
        "/nodes/{node}/storage/{storage}/content/{volume}",
        &[host, volid.storage(), volid],
    ))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct VolumeInfo {
    pub path: String,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub format: Option<String>,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub size: u64,
    #[serde(default, deserialize_with = "loose::opt_unsigned")]
    pub used: Option<u64>,
}

/// PVE does not check whether a guest still uses the volume, and deleting one that is gone succeeds.
pub fn delete(host: &Host, volid: &Volid) -> Call<Option<Upid>> {
    Call::new(Request::delete(
        "/nodes/{node}/storage/{storage}/content/{volume}",
        &[host, volid.storage(), volid],
    ))
}

/// Lets the host fetch a file. With a checksum a file that is there already is success; without, it is refused in the task.
pub fn download(host: &Host, storage: &StorageId, download: &Download) -> Call<Upid> {
    let request = Request::post("/nodes/{node}/storage/{storage}/download-url", &[host, storage])
        .with("content", &download.content)
        .with("filename", &download.filename)
        .with("url", &download.url);
    let request = download.checksum.iter().fold(request, |request, checksum| {
        request
            .with("checksum", &checksum.hex)
            .with("checksum-algorithm", checksum.algorithm)
    });
    Call::new(if download.verify_certificates {
        request
    } else {
        request.with("verify-certificates", 0)
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Download {
    pub content: Content,
    pub filename: String,
    pub url: String,
    pub checksum: Option<Checksum>,
    pub verify_certificates: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checksum {
    pub algorithm: ChecksumAlgorithm,
    pub hex: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumAlgorithm {
    Md5,
    Sha1,
    Sha256,
    Sha512,
}

impl fmt::Display for ChecksumAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        })
    }
}

/// The file goes in by [`crate::Client::upload`]: it is streamed, and its parameters stand in the same body.
pub(crate) fn upload(host: &Host, storage: &StorageId) -> Call<Upid> {
    Call::new(Request::post("/nodes/{node}/storage/{storage}/upload", &[host, storage]))
}

/// What becomes of a file name on its way in: PVE takes the last part of the path, and `_` for any character it does not like.
pub fn stored_name(filename: &str) -> String {
    let base = filename.rsplit(['/', '\\']).next().unwrap_or_default();
    base.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "_.-".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::stored_name;

    #[test]
    fn a_file_name_is_stored_as_pve_would() {
        assert_eq!(stored_name("dir/a b(1)+x.iso"), "a_b_1__x.iso");
        assert_eq!(stored_name("talos-1.13.qcow2"), "talos-1.13.qcow2");
    }
}
