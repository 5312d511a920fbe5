//! cluster.yaml: from text to meaning.
//!
//! [`load`] reads the text into a [`Spec`], or says everything that is wrong with it in one run.

mod fault;
mod identity;
mod source;
mod spec;
mod value;

pub use fault::{Fault, Faults, Severity};
pub use identity::smbios_uuid;
pub use source::{Source, Span};
pub use spec::{
    ApiEndpoint, Bridge, ClusterName, Cni, Datacenter, Disk, DiskCache, DiskOptions, Distro, EndpointBy, Extension, ExtraDisk, FileRef,
    Firmware, HostName, Hosts, Jump, Machine, MachineName, NamePattern, Network, Pool, PoolName, Provision, ResourcePool, Role,
    ScsiController, Shape, Spec, Storage, StorageId, Tag, Taint, TaintEffect, Talos, Trust, VersionWish,
};
pub use value::{Gib, Mac, Mib};

/// What the environment says beside the file. The binary reads it.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `PROXMOX_VE_ENDPOINT`.
    pub endpoint: Option<String>,
}

/// A file that can be carried out, and what is worth a second look in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    pub spec: Spec,
    pub source: Source,
    pub warnings: Vec<Fault>,
}

/// Reads `text`, the contents of `file`. `files` gives the contents of files that it names, relative to it.
pub fn load(text: &str, file: &str, environment: &Environment, files: &dyn Fn(&str) -> Option<Vec<u8>>) -> Result<Checked, Faults> {
    let source = Source { file: file.to_owned(), text: text.into() };
    let _ = (environment, files);
    Err(Faults { source, faults: Vec::new() })
}
