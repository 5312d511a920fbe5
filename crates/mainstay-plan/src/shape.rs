//! The shape of a machine: what the file asks of PVE, compared with what PVE has.

use sha2::{Digest, Sha256};

use crate::desired::{Wanted, Wish};
use crate::mark::ShapeDigest;

/// Begins every digest, so that a later mainstay that asks for more is not mistaken for an edited file.
const DIGEST_FORMAT: &str = "1";

/// A digest of everything the file decides about the VM.
pub(crate) fn digest(wish: &Wish, wanted: &Wanted) -> ShapeDigest {
    let (shape, network) = (&wanted.machine.shape, &wish.network);
    let text = format!(
        "{shape:?} {} {} {} {:?} {} {:?} {:?} {}",
        wanted.machine.mac,
        wish.interface(wanted),
        network.gateway,
        network.dns,
        network.bridge,
        network.vlan,
        wanted.machine.tags,
        wish.agent
    );
    let hash = Sha256::digest(text.as_bytes());
    let short: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    ShapeDigest(format!("{DIGEST_FORMAT}:{short}"))
}
