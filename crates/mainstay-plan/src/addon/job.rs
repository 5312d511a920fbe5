//! Where a Job of Helm may run, when it may start, and what it leaves behind.

use std::collections::BTreeSet;

/// A Node whose lease is older does not run pods reliably.
pub const LEASE_FRESH_SECONDS: u64 = 40;

/// A control-plane node, as the planner sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobNode {
    pub name: String,
    /// Its machine API or SSH server answers.
    pub guest_answers: bool,
    pub lease_age_seconds: Option<u64>,
    pub is_cordoned: bool,
    /// A reboot, upgrade or drain of it is planned or running.
    pub in_turn: bool,
    pub has_control_plane_label: bool,
}

/// Names of nodes on which a Job may run. They are required by name, because the scheduler knows none of these reasons.
pub fn job_nodes(nodes: &[JobNode]) -> Vec<String> {
    let is_fit = |node: &&JobNode| {
        let is_fresh = node.lease_age_seconds.is_some_and(|age| age < LEASE_FRESH_SECONDS);
        node.guest_answers && is_fresh && !node.is_cordoned && !node.in_turn && node.has_control_plane_label
    };
    nodes.iter().filter(is_fit).map(|node| node.name.clone()).collect()
}

/// What must work before a Job is created.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobPreconditions {
    pub scheduler_lease_held: bool,
    pub controller_manager_lease_held: bool,
    /// ConfigMap `kube-root-ca.crt` exists in the Job's namespace.
    pub root_ca_published: bool,
    pub nodes: Vec<String>,
}

/// Why a Job cannot start yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobBlocker {
    Scheduler,
    ControllerManager,
    RootCa,
    NoNode,
}

/// The first thing that is missing. Without these a Job would exist without a pod, or its pod could not reach the API server.
pub fn job_blocker(seen: &JobPreconditions) -> Option<JobBlocker> {
    let needs = [
        (seen.controller_manager_lease_held, JobBlocker::ControllerManager),
        (seen.root_ca_published, JobBlocker::RootCa),
        (seen.scheduler_lease_held, JobBlocker::Scheduler),
        (!seen.nodes.is_empty(), JobBlocker::NoNode),
    ];
    needs.into_iter().find(|(holds, _)| !holds).map(|(_, blocker)| blocker)
}

/// A role binding that carries our label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobBinding {
    pub name: String,
    /// The Job that it is named after.
    pub job: String,
}

/// Jobs that still need their rights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveJobs {
    /// Not finished.
    pub unfinished: BTreeSet<String>,
    /// Finished or gone, with a pod that still runs.
    pub with_running_pod: BTreeSet<String>,
}

/// Bindings that give cluster-admin to no running Helm. Each is deleted after a fresh read.
pub fn stale_bindings<'a>(bindings: &'a [JobBinding], live: &LiveJobs) -> Vec<&'a JobBinding> {
    let is_stale =
        |binding: &&JobBinding| !live.unfinished.contains(&binding.job) && !live.with_running_pod.contains(&binding.job);
    bindings.iter().filter(is_stale).collect()
}

/// May a Job with this UID take the lease of its release?
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseVerdict {
    Take,
    Held { by: String },
}

/// One Job per release. A holder that is finished or gone is replaced. `unfinished` holds UIDs.
pub fn judge_lease(holder: Option<&str>, own: &str, unfinished: &BTreeSet<String>) -> LeaseVerdict {
    match holder {
        Some(holder) if holder != own && unfinished.contains(holder) => LeaseVerdict::Held { by: holder.to_owned() },
        _ => LeaseVerdict::Take,
    }
}

/// A pod that is bound to a node and has not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StuckPod {
    pub seconds_without_status: u64,
    pub lease_age_seconds: u64,
    pub vm_is_stopped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StuckVerdict {
    Wait,
    /// Its node is gone for sure.
    ForceDelete,
    /// Its node may still run it: two Helms at once would damage the release.
    Hold,
}

pub fn judge_stuck_pod(pod: StuckPod) -> StuckVerdict {
    let is_stale = pod.lease_age_seconds >= LEASE_FRESH_SECONDS;
    match (pod.seconds_without_status >= 30 && is_stale, pod.vm_is_stopped) {
        (false, _) => StuckVerdict::Wait,
        (true, true) => StuckVerdict::ForceDelete,
        (true, false) => StuckVerdict::Hold,
    }
}
