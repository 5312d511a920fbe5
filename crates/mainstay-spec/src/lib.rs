//! cluster.yaml: from text to meaning.
//!
//! [`load`] reads the text into a [`Spec`], or reports every error in one run; [`report`] prints these for people and for programs.
//! Each key is declared once; the reader, the [`schema`] for editors and the [`reference`] page are made from that declaration.
//!
//! text -> tree (spans) -> type check -> `Draft` (typed keys) -> checks, one per concern -> [`Spec`]

mod addons;
mod check;
mod diagnostic;
mod draft;
mod identity;
mod key;
mod keys;
mod mask;
mod naming;
mod print;
mod provisioning;
mod resolve;
mod roster;
mod source;
mod spec;
mod tree;
mod type_check;
mod value;

#[cfg(test)]
mod later_tests;

pub mod reference;
pub mod report;
pub mod schema;

pub use addons::{
    Addon, AddonSpec, AddonsSpec, AddressSpan, ChartSource, ChartSpec, GitAuth, GitOpsSpec, ManifestSource, RegistriesSpec,
    TailscaleSpec,
};
pub use diagnostic::{Diagnostic, Diagnostics, Severity};
pub use identity::{default_mac, default_vmids, smbios_uuid};
pub use provisioning::{Addressing, FirstBoot, NicAddress, NicSpec, ProvisioningSpec, Route, VmOptions};
pub use source::{Source, Span};
pub use spec::{
    ApiEndpoint, ArtifactDelivery, Bridge, CloudImage, ClusterName, Cni, Datacenter, Disk, DiskCache, DiskOptions, Distro,
    DistroSpec, EndpointBy, Extension, ExtraDisk, FileRef, Firmware, HostName, Hosts, ImageSource, Jump, Machine, MachineName,
    NamePattern, Network, Pool, PoolName, Provision, PveTrust, RancherSpec, ResourcePool, Role, ScsiController, Shape, Spec,
    StorageId, StorageNames, Tag, Taint, TaintEffect, TalosSpec, VersionWish,
};
pub use value::{Gib, Mac, Mib};

use draft::Draft;

/// Settings from environment variables. The binary reads them.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `PROXMOX_VE_ENDPOINT`: used where the file has no `datacenter.endpoint`.
    pub endpoint: Option<String>,
}

/// A file without errors, and its warnings.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    pub spec: Spec,
    pub source: Source,
    pub warnings: Vec<Diagnostic>,
}

/// Reads `text`, the contents of `file`. `files` gives the contents of files that it names, relative to it.
pub fn load(
    text: &str,
    file: &str,
    environment: &Environment,
    files: &dyn Fn(&str) -> Option<Vec<u8>>,
) -> Result<Checked, Diagnostics> {
    let source = Source {
        file: file.to_owned(),
        text: text.into(),
    };
    let mut faults = Vec::new();
    let spec = understand(text, environment, files, &mut faults);
    faults.sort_by_key(|fault| (fault.at.line, fault.at.column, fault.severity));
    match spec {
        Some(spec) if faults.iter().all(|fault| fault.severity == Severity::Warning) => Ok(Checked {
            spec,
            source,
            warnings: faults,
        }),
        _ => Err(Diagnostics { source, faults }),
    }
}

/// Reads the bytes of a file, which may not be text at all.
pub fn load_bytes(
    bytes: &[u8],
    file: &str,
    environment: &Environment,
    files: &dyn Fn(&str) -> Option<Vec<u8>>,
) -> Result<Checked, Diagnostics> {
    match std::str::from_utf8(bytes) {
        Ok(text) => load(text, file, environment, files),
        Err(error) => Err(not_utf8(bytes, file, error.valid_up_to())),
    }
}

fn understand(
    text: &str,
    environment: &Environment,
    files: &dyn Fn(&str) -> Option<Vec<u8>>,
    faults: &mut Vec<Diagnostic>,
) -> Option<Spec> {
    let root = tree::parse(text, faults)?;
    if !type_check::check(&root, faults) {
        return None;
    }
    let mut draft = Draft::read(&root);
    check::datacenter::check(&draft, environment, faults);
    draft.fill_in(environment);
    let roster = roster::roster(&draft);
    check::all(&draft, &roster, faults);
    let texts = check::files::read(&draft, files, faults);
    resolve::resolve(&draft, &roster, &texts)
}

fn not_utf8(bytes: &[u8], file: &str, valid: usize) -> Diagnostics {
    let text = String::from_utf8_lossy(bytes);
    let before = String::from_utf8_lossy(&bytes[..valid]);
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let line = number(before.matches('\n').count() + 1);
    let column = number(before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1);
    let at = Span {
        start: number(valid),
        end: number(valid + 1),
        line,
        column,
    };
    let fault = Diagnostic::error("encoding", at, "the file is not UTF-8 text")
        .label("no character")
        .why("YAML is read as UTF-8; another encoding would turn names and passwords into others.")
        .help("save the file as UTF-8 (in most editors: Save with encoding).");
    Diagnostics {
        source: Source {
            file: file.to_owned(),
            text: text.into(),
        },
        faults: vec![fault],
    }
}
