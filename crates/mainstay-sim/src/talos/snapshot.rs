//! Snapshots of etcd: a database of whole pages and a SHA-256 over it.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::kube::store::Store;

const PAGE: usize = 512;
const HASH: usize = 32;

pub(crate) fn write(store: &Store) -> Bytes {
    let mut database = store.dump().to_string().into_bytes();
    database.resize(database.len().div_ceil(PAGE) * PAGE, 0);
    let hash = Sha256::digest(&database);
    database.extend_from_slice(&hash);
    database.into()
}

pub(crate) fn read(snapshot: &[u8], skip_hash_check: bool) -> Result<Store, String> {
    let whole = snapshot.len() % PAGE == HASH;
    let (database, hash) = snapshot.split_at(if whole { snapshot.len() - HASH } else { snapshot.len() });
    if !skip_hash_check && (!whole || Sha256::digest(database).as_slice() != hash) {
        return Err("snapshot missing hash but --skip-hash-check=false".to_owned());
    }
    let end = database.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    let dump = serde_json::from_slice(&database[..end]).map_err(|_| "invalid database".to_owned())?;
    Ok(Store::restore(&dump))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_ends_with_the_hash_of_whole_pages() {
        let bytes = write(&Store::new());
        assert_eq!(bytes.len() % PAGE, HASH);
        assert!(read(&bytes, false).is_ok());
        let mut broken = bytes.to_vec();
        broken[3] ^= 1;
        assert!(read(&broken, false).is_err());
    }
}
