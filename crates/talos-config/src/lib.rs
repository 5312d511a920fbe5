//! Talos secrets, machine configs, patches and schematics as pure functions.
//!
//! Nothing here reads a file, a clock or a random source: texts, `now` and a random stream are arguments, and the same
//! arguments give the same bytes.

pub mod access;
mod cel;
pub mod config;
mod decode;
pub mod diff;
pub mod generate;
pub mod meta;
pub mod patch;
mod pki;
mod scalars;
mod schema;
pub mod schematic;
mod secret_paths;
pub mod secrets;
pub mod validate;
pub mod versions;
mod yaml;

pub use access::{ClientIdentity, Kubeconfig, TalosRole, Talosconfig};
pub use config::{Config, DocumentId};
pub use decode::{ConfigError, Problem};
pub use generate::{ClusterInput, MachineInput, machine_config};
pub use patch::{Patch, PatchError};
pub use pki::PkiError;
pub use schematic::Schematic;
pub use secrets::{BundleError, Secrets, ServiceAccountKey};
