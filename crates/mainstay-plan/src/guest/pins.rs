//! What the network decided once for a cluster: exact image and artifacts.

use rancher_config::Checksum;
use rancher_config::guest::PinnedArtifact;

/// Exact files with their checksums. A distribution whose files have fixed addresses needs none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins {
    pub image: Option<PinnedImage>,
    pub artifacts: Vec<PinnedArtifact>,
}

/// A published disk image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedImage {
    pub url: String,
    /// Its name on a PVE storage.
    pub file: String,
    pub checksum: Checksum,
}
