//! Whether an add-on does its work: a release that is `deployed` says only that its objects were accepted.

use std::collections::BTreeMap;

use super::catalogue::{Expect, Workload};

/// A workload by kind, namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkloadKey {
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
}

/// How far a workload is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadStatus {
    /// What is missing, as its controller tells it. `None`: it is rolled out.
    pub missing: Option<String>,
    pub available: u64,
}

/// A workload that must be rolled out, and on how many machines at least.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwaitedWorkload {
    pub key: WorkloadKey,
    /// A DaemonSet that wants no pod is complete to Kubernetes.
    pub at_least: u64,
}

/// Machines that can run pods of an add-on now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MachineCounts {
    pub control_planes: u64,
    pub workers: u64,
    /// Control planes take ordinary pods.
    pub shared: bool,
}

impl AwaitedWorkload {
    pub fn new(workload: &Workload, namespace: &str, counts: MachineCounts) -> Self {
        let at_least = match workload.expect {
            Expect::AtLeastOne | Expect::Replicas => 1,
            Expect::EveryNode => counts.control_planes + counts.workers,
            Expect::EveryControlPlane => counts.control_planes,
            Expect::EveryWorker if counts.shared => counts.control_planes + counts.workers,
            Expect::EveryWorker => counts.workers,
        };
        Self {
            key: WorkloadKey {
                kind: workload.kind.as_str(),
                namespace: namespace.to_owned(),
                name: workload.name.to_owned(),
            },
            at_least,
        }
    }
}

/// The first thing that is missing, or `None` if all is there.
pub fn missing(awaited: &[AwaitedWorkload], seen: &BTreeMap<WorkloadKey, WorkloadStatus>) -> Option<String> {
    awaited.iter().find_map(|workload| {
        let WorkloadKey { kind, name, .. } = &workload.key;
        let Some(status) = seen.get(&workload.key) else {
            return Some(format!("{kind} {name} does not exist"));
        };
        if let Some(missing) = &status.missing {
            return Some(format!("{kind} {name}: {missing}"));
        }
        let (have, want) = (status.available, workload.at_least);
        (have < want).then(|| format!("{kind} {name}: {have} of {want} pods are available"))
    })
}
