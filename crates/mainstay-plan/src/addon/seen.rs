//! What was seen of add-ons: charts in lock file, cache and registries, and releases, Jobs and workloads in the cluster.

use std::collections::BTreeMap;

use super::job::{JobBinding, JobNode, LiveJobs};
use super::ready::{WorkloadKey, WorkloadStatus};
use super::release::ObservedRelease;
use crate::seen::Seen;

/// Everything that was seen in one round.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedAddons {
    /// By the name of the add-on. `Unknown`: no source tells what the chart is. A chart that is not here was not asked for.
    pub charts: BTreeMap<String, Seen<ChartFact>>,
    /// `No`: there is no cluster yet.
    pub cluster: Seen<AddonCluster>,
}

impl Default for ObservedAddons {
    fn default() -> Self {
        Self {
            charts: BTreeMap::new(),
            cluster: Seen::No,
        }
    }
}

/// A chart at the version to install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChartFact {
    /// As the lock file names it: `oci://HOST/PATH/CHART`, or `https://REPOSITORY CHART`.
    pub source: String,
    /// The chart's own name.
    pub chart: String,
    pub version: String,
    /// SHA-256 of the archive, in hex.
    pub archive: String,
    /// In bytes, where the archive is at hand.
    pub size: Option<usize>,
    /// The archive is in the cache.
    pub is_cached: bool,
    /// The lock file names exactly this archive.
    pub is_pinned: bool,
}

/// A release by its namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReleaseKey {
    pub namespace: String,
    pub name: String,
}

/// Add-ons of a cluster whose API server answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AddonCluster {
    /// Releases that exist, and those of the file.
    pub releases: BTreeMap<ReleaseKey, ObservedRelease>,
    /// Control-plane nodes.
    pub nodes: Vec<JobNode>,
    /// Role bindings of Jobs of this cluster.
    pub bindings: Vec<JobBinding>,
    pub live: LiveJobs,
    pub workloads: BTreeMap<WorkloadKey, WorkloadStatus>,
    /// A pod network of another kind runs.
    pub has_other_network: bool,
}
