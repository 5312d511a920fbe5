//! The head of a qcow2 file, and a description of what the image holds in its second cluster.

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;

const MAGIC: &[u8; 4] = b"QFI\xfb";
/// Where the description of the image lies: the second cluster, since images are built with clusters of 8 KiB.
const DESCRIPTION_AT: usize = 8 * 1024;
/// The body is much smaller than a real one (hundreds of MB); what it stands for is in the header.
const BODY: usize = 64 * 1024;

pub(crate) fn write(what: &impl Serialize, virtual_size: u64) -> Bytes {
    let mut body = BytesMut::with_capacity(BODY);
    body.put_slice(MAGIC);
    body.put_u32(3);
    body.put_slice(&[0; 12]); // no backing file
    body.put_u32(13); // cluster bits
    body.put_u64(virtual_size);
    body.resize(100, 0);
    body.put_u32(104); // header length
    body.resize(DESCRIPTION_AT, 0);
    let description = serde_json::to_vec(what).unwrap_or_default();
    body.put_u32(u32::try_from(description.len()).unwrap_or(0));
    body.put_slice(&description);
    body.resize(BODY.max(body.len()), 0);
    body.freeze()
}

/// What would boot from these bytes; `None` if they hold another kind of system, or nothing known.
pub(crate) fn read<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    if !body.starts_with(MAGIC) {
        return None;
    }
    described(body.get(DESCRIPTION_AT..)?)
}

/// A length, and so many bytes of description.
pub(crate) fn described<T: DeserializeOwned>(rest: &[u8]) -> Option<T> {
    let (length, rest) = rest.split_at_checked(4)?;
    let length = usize::try_from(u32::from_be_bytes(length.try_into().ok()?)).ok()?;
    serde_json::from_slice(rest.get(..length)?).ok()
}
