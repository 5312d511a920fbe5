//! Helm charts without helm: pulled from OCI registries and HTTP repositories, checked by digest, looked into, and their releases read.
//!
//! | module | what |
//! |---|---|
//! | [`source`] | where a chart comes from |
//! | [`pull`] | fetching it through the Dialer |
//! | [`archive`] | what is inside: name, version, values, CRDs |
//! | [`values`] | merging values as Helm does |
//! | [`release`] | the Secret in which Helm keeps a release |
//! | [`lock`] | `cluster.lock.yaml` |
//!
//! Only [`pull`] does I/O.

pub mod archive;
mod digest;
mod index;
pub mod lock;
mod oci;
pub mod pull;
pub mod release;
pub mod source;
pub mod values;

pub use archive::{ArchiveError, ChartArchive};
pub use digest::{DigestError, Sha256Digest};
pub use lock::{ArtifactPin, ChartPin, ImagePin, LockError, LockFile};
pub use pull::{ChartClient, Mirrors, PullError, PulledChart};
pub use release::{Release, ReleaseError, ReleaseStatus};
pub use source::{ChartRequest, ChartSource, SourceError};
pub use values::merge;
