//! A snapshot of etcd, as a stream, and the check of its bytes.

use sha2::{Digest, Sha256};
use talos_proto::common::Data;
use talos_proto::machine::EtcdSnapshotRequest;
use tonic::Streaming;

use crate::error::Error;
use crate::limits::{READ, SNAPSHOT_PART};
use crate::link::{Link, Pending};
use crate::node::Node;

/// etcd writes whole pages, and behind them the hash of all of them.
const PAGE: u64 = 512;
const HASH: usize = 32;

/// A snapshot on its way. Nothing is kept in memory but the part at hand.
pub struct EtcdSnapshot {
    link: Link,
    opened: Pending,
    stream: Streaming<Data>,
}

impl Node {
    /// Asks for a snapshot. It can be taken without a quorum, too.
    pub async fn etcd_snapshot(&self) -> Result<EtcdSnapshot, Error> {
        let opened = self.link.call("EtcdSnapshot", READ);
        let request = opened.stream_request(EtcdSnapshotRequest {});
        let stream = opened.answer(self.link.machine().etcd_snapshot(request)).await?;
        Ok(EtcdSnapshot {
            link: self.link.clone(),
            opened,
            stream,
        })
    }
}

impl EtcdSnapshot {
    /// The next part, `None` after the last one. An end proves nothing: check the bytes with [`SnapshotCheck`].
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let pending = self.link.call("EtcdSnapshot", SNAPSHOT_PART);
        let part = pending.within(self.stream.message()).await?;
        match part.as_ref().and_then(|part| part.metadata.as_ref()).map(|said| &said.error) {
            Some(error) if !error.is_empty() => Err(self.opened.misread(format!("a snapshot that failed: {error}"))),
            _ => Ok(part.map(|part| part.bytes)),
        }
    }
}

impl std::fmt::Debug for EtcdSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdSnapshot")
            .field("at", &self.link.at())
            .finish_non_exhaustive()
    }
}

/// Judges the bytes of a snapshot while they pass by.
#[derive(Clone, Debug, Default)]
pub struct SnapshotCheck {
    hash: Sha256,
    size: u64,
    /// The last bytes, which may turn out to be the hash.
    tail: Vec<u8>,
}

/// A snapshot whose hash fits its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedSnapshot {
    pub size: u64,
    /// The hash that etcd wrote behind its pages.
    pub hash: [u8; HASH],
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotFault {
    #[error("the snapshot has {size} bytes, which are not whole pages and a hash: it was cut off")]
    CutOff { size: u64 },
    #[error("the snapshot's hash does not fit its contents")]
    Damaged,
}

impl SnapshotCheck {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&mut self, part: &[u8]) {
        self.size += u64::try_from(part.len()).unwrap_or(u64::MAX);
        self.tail.extend_from_slice(part);
        let known = self.tail.len().saturating_sub(HASH);
        self.hash.update(&self.tail[..known]);
        self.tail.drain(..known);
    }

    pub fn finish(self) -> Result<CheckedSnapshot, SnapshotFault> {
        let whole = self.size > PAGE && self.size % PAGE == u64::try_from(HASH).unwrap_or(0);
        let hash = <[u8; HASH]>::try_from(self.tail.as_slice()).ok().filter(|_| whole);
        let hash = hash.ok_or(SnapshotFault::CutOff { size: self.size })?;
        let computed = self.hash.finalize();
        if computed.as_slice() == hash {
            Ok(CheckedSnapshot { size: self.size, hash })
        } else {
            Err(SnapshotFault::Damaged)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Vec<u8> {
        let pages: Vec<u8> = (0..2048u32).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let hash = Sha256::digest(&pages);
        [pages, hash.to_vec()].concat()
    }

    fn check(bytes: &[u8], part: usize) -> Result<CheckedSnapshot, SnapshotFault> {
        let mut check = SnapshotCheck::new();
        bytes.chunks(part).for_each(|part| check.push(part));
        check.finish()
    }

    #[test]
    fn a_whole_snapshot_passes_however_it_is_cut_into_parts() {
        for part in [1, 7, 32, 512, 4096] {
            assert_eq!(check(&file(), part).map(|checked| checked.size), Ok(2080), "parts of {part}");
        }
    }

    #[test]
    fn a_snapshot_that_was_cut_off_or_changed_is_refused() {
        let whole = file();
        assert_eq!(check(&whole[..1500], 512), Err(SnapshotFault::CutOff { size: 1500 }));
        assert_eq!(check(&[], 512), Err(SnapshotFault::CutOff { size: 0 }));
        assert_eq!(check(&whole[..1056], 512), Err(SnapshotFault::Damaged), "cut at a page");
        let mut changed = whole;
        changed[77] ^= 1;
        assert_eq!(check(&changed, 512), Err(SnapshotFault::Damaged));
    }
}
