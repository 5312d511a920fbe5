//! Identities that come from names alone, so that nothing is renumbered when the file is edited.

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::value::Mac;

/// VMIDs that PVE's `nextid` hands out by default end here, so blocks above it do not meet VMIDs that PVE chooses.
const VMID_BLOCKS_FROM: u32 = 1_000_000;
const VMID_BLOCKS: u32 = 9_000;
const VMID_BLOCK_SIZE: u32 = 1_000;

/// The SMBIOS UUID of a machine: the proof, read from inside the guest, that it is our VM and not a namesake's.
pub fn smbios_uuid(cluster_id: Uuid, machine: &str) -> Uuid {
    Uuid::new_v5(&cluster_id, machine.as_bytes())
}

/// First VMID of a pool that names none.
pub fn default_vmids(cluster: &str, pool: &str) -> u32 {
    let digest = digest(&["vmid", cluster, pool]);
    let block = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]) % VMID_BLOCKS;
    VMID_BLOCKS_FROM + block * VMID_BLOCK_SIZE + 1
}

/// Locally administered, unicast.
pub fn default_mac(cluster: &str, pool: &str, ordinal: u32) -> Mac {
    let digest = digest(&["mac", cluster, pool, &ordinal.to_string()]);
    let first = (digest[0] & 0b1111_1100) | 0b0000_0010;
    Mac([first, digest[1], digest[2], digest[3], digest[4], digest[5]])
}

/// The MAC of a further network card. Card 0 has [`default_mac`].
pub(crate) fn nic_mac(cluster: &str, pool: &str, ordinal: u32, card: usize) -> Mac {
    let digest = digest(&["mac", cluster, pool, &ordinal.to_string(), &card.to_string()]);
    let first = (digest[0] & 0b1111_1100) | 0b0000_0010;
    Mac([first, digest[1], digest[2], digest[3], digest[4], digest[5]])
}

fn digest(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        // Names hold no zero byte, so no two lists of parts give the same bytes.
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_what_they_were_yesterday() {
        assert_eq!(default_vmids("homelab", "worker"), 7_621_001);
        assert_eq!(default_mac("homelab", "worker", 1).to_string(), "CA:76:42:B6:D1:A1");
        assert_eq!(
            smbios_uuid(Uuid::from_u128(7), "homelab-worker-1").to_string(),
            "d7b0caaa-c17e-54aa-bbcf-683ef37e4f8c"
        );
    }

    #[test]
    fn a_default_mac_is_local_and_unicast() {
        for ordinal in 1..500 {
            let Mac([first, ..]) = default_mac("homelab", "worker", ordinal);
            assert_eq!(first & 0b11, 0b10);
        }
    }

    #[test]
    fn a_default_vmid_block_leaves_room_and_stays_above_nextid() {
        for pool in ["control-plane", "worker", "gpu", "storage"] {
            let first = default_vmids("homelab", pool);
            assert!((1_000_001..=9_999_001).contains(&first), "{first}");
            assert_eq!(first % VMID_BLOCK_SIZE, 1);
        }
    }
}
