//! What steps on releases carry. Secret values are references in all of it.

use std::sync::Arc;

use super::catalogue::{HELM_IMAGE, JobEndpoint};
use super::objects::{HelmRun, HelmVerb};
use super::release::DesiredRelease;

/// A chart archive, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChartRef {
    /// The key in the lock file.
    pub release: String,
    pub source: String,
    pub chart: String,
    pub version: String,
    /// SHA-256 in hex: anything else is refused.
    pub archive: String,
}

/// One run of Helm for one release.
#[derive(Debug, Clone, PartialEq)]
pub struct ReleaseRun {
    pub wanted: DesiredRelease,
    /// SHA-256 of the chart archive, in hex.
    pub archive: String,
    pub attempt: u32,
    pub verb: HelmVerb,
    /// Nothing of the release exists.
    pub is_new: bool,
    pub cluster_id: String,
    /// Nodes on which the Job may run. They may be about to join.
    pub nodes: Vec<String>,
    /// The Job runs before the pod network does.
    pub before_network: Option<JobEndpoint>,
    /// The namespace of the release with its labels; `None` for one that Kubernetes makes itself.
    pub namespace: Option<serde_json::Value>,
    /// Machines to ask, first to last.
    pub ask: Arc<[String]>,
}

impl ReleaseRun {
    /// The run as its objects describe it. `creator` is the person and machine that other operators see.
    pub fn helm<'a>(&'a self, creator: &'a str) -> HelmRun<'a> {
        HelmRun {
            release: &self.wanted.name,
            namespace: &self.wanted.namespace,
            hash: &self.wanted.hash,
            attempt: self.attempt,
            verb: self.verb,
            cluster_id: &self.cluster_id,
            creator,
            image: HELM_IMAGE,
            nodes: &self.nodes,
            before_network: self.before_network.clone(),
        }
    }

    pub fn job_name(&self) -> String {
        self.helm("").job_name()
    }

    pub fn removes(&self) -> bool {
        self.verb == HelmVerb::Uninstall
    }
}

/// What to wait for after a Job was released.
#[derive(Debug, Clone, PartialEq)]
pub struct ReleaseWatch {
    pub wanted: DesiredRelease,
    pub job: String,
    /// Until no revision remains, instead of until the wanted content is deployed.
    pub until_gone: bool,
    /// No node becomes ready without it.
    pub brings_network: bool,
    pub ask: Arc<[String]>,
}

/// What finished runs left behind. The engine reads each Job and its pods again before it deletes anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseCleanup {
    pub jobs: Vec<String>,
    pub bindings: Vec<String>,
    pub ask: Arc<[String]>,
}
