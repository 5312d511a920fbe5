//! Which version of a chart is installed, and what the lock file says about it; which CRDs may be replaced.

use std::collections::BTreeSet;

/// Where a version can come from, strongest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VersionSources<'a> {
    pub file: Option<&'a str>,
    pub lock: Option<&'a str>,
    /// A lost lock file is rebuilt from the cluster, so losing it never upgrades anything.
    pub installed: Option<&'a str>,
    pub catalogue: &'a str,
}

/// The version to install.
pub fn choose_version<'a>(sources: VersionSources<'a>) -> &'a str {
    sources
        .file
        .or(sources.lock)
        .or(sources.installed)
        .unwrap_or(sources.catalogue)
}

/// A chart as the lock file pins it, or as the registry serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedArchive {
    pub version: String,
    /// SHA-256 of the archive, in hex.
    pub archive: String,
}

/// What the lock file means for a download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PinVerdict {
    /// As pinned.
    Matches,
    /// Not pinned yet, or pinned at another version: the lock file is written.
    Write,
    /// The same version with other content: the chart was replaced in the registry, or the download is damaged.
    Refuse { pinned: String, found: String },
}

pub fn judge_pin(lock: Option<&PinnedArchive>, found: &PinnedArchive) -> PinVerdict {
    match lock {
        Some(pin) if pin.version != found.version => PinVerdict::Write,
        Some(pin) if pin.archive == found.archive => PinVerdict::Matches,
        Some(pin) => PinVerdict::Refuse {
            pinned: pin.archive.clone(),
            found: found.archive.clone(),
        },
        None => PinVerdict::Write,
    }
}

/// A CRD that is installed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstalledCrd {
    /// `status.storedVersions`: objects may exist in each of these.
    pub stored: BTreeSet<String>,
    /// Version of the chart that it came from, if it is known.
    pub chart_version: Option<semver::Version>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CrdVerdict {
    Apply,
    /// A newer one is installed. CRDs are never downgraded.
    KeepNewer,
    /// The new CRD lacks versions in which objects are stored; they would become unreadable.
    Refuse {
        dropped: Vec<String>,
    },
}

/// May this CRD be applied over what is installed?
pub fn judge_crd(installed: Option<&InstalledCrd>, offered: &BTreeSet<String>, chart_version: &semver::Version) -> CrdVerdict {
    let Some(installed) = installed else {
        return CrdVerdict::Apply;
    };
    if installed
        .chart_version
        .as_ref()
        .is_some_and(|version| version > chart_version)
    {
        return CrdVerdict::KeepNewer;
    }
    let dropped: Vec<String> = installed.stored.difference(offered).cloned().collect();
    if dropped.is_empty() {
        CrdVerdict::Apply
    } else {
        CrdVerdict::Refuse { dropped }
    }
}
