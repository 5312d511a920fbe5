//! RKE2 and k3s as pure functions: secrets, config files, guest files, versions and artifacts.
//!
//! Nothing here reads a file, a clock or a random source: texts, the time and a random stream are arguments, and the same arguments give
//! the same bytes. Callers write the files into guests over SSH, run the commands, and hand the answers back to the parsers.

pub mod access;
mod artifacts;
mod checksum;
mod cni;
pub mod config;
mod distro;
pub mod guest;
mod images;
pub mod manifests;
mod pki;
mod registries;
mod releases;
mod secrets;
mod ssh;
mod token;
mod version;
pub mod yaml;

pub use access::ClientIdentity;
pub use artifacts::{Artifact, ArtifactSource, MirrorError};
pub use checksum::{Checksum, ChecksumError, checksum_of, parse_checksums};
pub use cni::Cni;
pub use config::{ClusterInput, ExtraProblem, InputError, MachineInput, Place};
pub use distro::{Distro, Role};
pub use images::{DatedImage, ImageRefusal, OsImage, os_image, os_images, refused_image};
pub use pki::{ClockError, MintTime, PkiError};
pub use registries::{Mirror, Registries, RegistryAccess};
pub use releases::{Channel, ReleaseError, VersionRequest, hops, newest, releases, stable};
pub use secrets::{BundleError, Secrets, ServiceKey, TlsFile};
pub use ssh::{SshKey, SshKeyError, authorized_keys};
pub use token::Token;
pub use version::{ReleaseVersion, VersionError};
