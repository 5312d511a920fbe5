//! One release: who owns it, and what to do with it. Every decision is a pure function of what was read.
//!
//! The owner is decided first and needs no release: objects of a running Cilium without any Helm release belong to a user. A Job that is
//! Complete says only that Helm has stopped. A release is installed when its newest revision is `deployed` with the wanted content.

use serde_json::Value;

use super::values::differing_keys;

/// What a release should be.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredRelease {
    pub name: String,
    pub namespace: String,
    pub chart: String,
    pub version: String,
    /// Of [`super::values::content_hash`].
    pub hash: String,
    /// Merged, with references to secrets.
    pub values: Value,
}

impl DesiredRelease {
    /// Helm keeps it with the revision and does not hand it on to the next one, so it names the author of exactly one revision.
    pub fn description(&self) -> String {
        format!("{DESCRIPTION}{}", self.hash)
    }
}

impl Revision {
    /// Its description names mainstay as its author.
    pub fn is_described_as_ours(&self) -> bool {
        self.description.starts_with(DESCRIPTION)
    }
}

const DESCRIPTION: &str = "mainstay ";

/// Who changes a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReleaseOwner {
    /// Nothing of it exists.
    Absent,
    Mainstay,
    /// A HelmRelease, also a suspended one.
    Flux(String),
    /// An Application.
    ArgoCd(String),
    /// Marked by a GitOps tool whose object is gone.
    Orphaned(GitOpsTool),
    /// Installed or last changed by hand. With the paths of values that differ from the file.
    User(Vec<String>),
    /// The cluster could not be asked.
    Unknown(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitOpsTool {
    Flux,
    ArgoCd,
}

impl GitOpsTool {
    pub fn title(self) -> &'static str {
        match self {
            Self::Flux => "Flux",
            Self::ArgoCd => "Argo CD",
        }
    }
}

/// What was read about a release.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObservedRelease {
    /// A list that the decision needs could not be read.
    pub unread: Option<String>,
    /// `namespace/name` of a HelmRelease that names this release and namespace.
    pub helm_release: Option<String>,
    /// `namespace/name` of an Application for it.
    pub application: Option<String>,
    /// A mark of a GitOps tool on the add-on's main objects.
    pub mark: Option<GitOpsTool>,
    /// The add-on's main objects exist.
    pub has_objects: bool,
    pub newest: Option<Revision>,
    /// Of this release; at most one of them is not finished.
    pub jobs: Vec<ReleaseJob>,
}

/// The newest revision, decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct Revision {
    pub number: u64,
    pub status: HelmStatus,
    pub chart: String,
    pub version: String,
    pub config: Value,
    pub description: String,
    /// Seconds since it was last changed.
    pub age: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HelmStatus {
    Deployed,
    Failed,
    PendingInstall,
    PendingUpgrade,
    PendingRollback,
    Superseded,
    Uninstalling,
    Uninstalled,
    Unknown,
}

impl HelmStatus {
    pub const ALL: [Self; 9] = [
        Self::Deployed,
        Self::Failed,
        Self::PendingInstall,
        Self::PendingUpgrade,
        Self::PendingRollback,
        Self::Superseded,
        Self::Uninstalling,
        Self::Uninstalled,
        Self::Unknown,
    ];

    /// As Helm writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployed => "deployed",
            Self::Failed => "failed",
            Self::PendingInstall => "pending-install",
            Self::PendingUpgrade => "pending-upgrade",
            Self::PendingRollback => "pending-rollback",
            Self::Superseded => "superseded",
            Self::Uninstalling => "uninstalling",
            Self::Uninstalled => "uninstalled",
            Self::Unknown => "unknown",
        }
    }

    pub fn parse(text: &str) -> Self {
        let found = Self::ALL.into_iter().find(|status| status.as_str() == text);
        found.unwrap_or(Self::Unknown)
    }

    /// Helm was interrupted, or runs.
    fn is_interrupted(self) -> bool {
        matches!(
            self,
            Self::PendingInstall | Self::PendingUpgrade | Self::PendingRollback | Self::Superseded | Self::Uninstalling
        )
    }
}

/// A Job that runs or ran Helm for this release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseJob {
    pub name: String,
    pub uid: String,
    pub hash: String,
    pub attempt: u32,
    pub phase: JobPhase,
    /// Person and machine that created it.
    pub creator: String,
    /// It wrote the newest revision: the revision changed after the Job had started.
    pub wrote_newest: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobPhase {
    /// Created, its inputs are not complete.
    Suspended,
    /// Released. With the problem of its pod, if there is one.
    Active {
        problem: Option<String>,
        has_live_pod: bool,
    },
    /// Helm has ended with exit code 0, which it also does after some failures.
    Complete(JobFailure),
    Failed(JobFailure),
}

/// Why Helm failed, by what its output says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFailure {
    pub kind: JobFailureKind,
    /// Redacted.
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobFailureKind {
    /// No answer from the API server, or a timeout.
    Transport,
    ImagePull,
    /// The pod ended without a word: its node restarted or was lost.
    PodLost,
    /// Values that the chart's schema refuses.
    Schema,
    Template,
    /// An object that exists belongs to another release.
    Ownership,
    /// Another field manager owns a field.
    Conflict,
    Forbidden,
    Other,
}

impl JobFailureKind {
    /// Reads Helm's output. Nothing at all means that the pod was lost.
    pub fn classify(text: &str) -> Self {
        let table: [(&[&str], Self); 6] = [
            (&["ErrImagePull", "ImagePullBackOff"], Self::ImagePull),
            (&["values don't meet the specifications of the schema"], Self::Schema),
            (&["execution error at", "parse error at", "error calling"], Self::Template),
            (&["invalid ownership metadata"], Self::Ownership),
            (&["conflict with", "Apply failed with"], Self::Conflict),
            (&["is forbidden:"], Self::Forbidden),
        ];
        let transport = [
            "connection refused",
            "i/o timeout",
            "TLS handshake timeout",
            "no route to host",
            "context deadline exceeded",
            "EOF",
        ];
        if text.trim().is_empty() {
            return Self::PodLost;
        }
        let contains = |words: &[&str]| words.iter().any(|word| text.contains(word));
        let found = table.iter().find(|(words, _)| contains(words)).map(|(_, kind)| *kind);
        found.unwrap_or(if contains(&transport) { Self::Transport } else { Self::Other })
    }

    /// Trying again without a change can help.
    fn is_passing(self) -> bool {
        matches!(self, Self::Transport | Self::ImagePull | Self::PodLost)
    }
}

/// What the operator asked for on the command line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReleaseRequest {
    /// `up --take NAME`, `addons take NAME`.
    pub take: bool,
    /// `up --retry NAME`.
    pub retry: bool,
}

/// What to do with a release.
#[derive(Debug, Clone, PartialEq)]
pub enum ReleaseDecision {
    Install {
        attempt: u32,
    },
    /// With the paths of values that change.
    Upgrade {
        attempt: u32,
        differs: Vec<String>,
        takes: bool,
    },
    /// Helm was interrupted by a killed Job of ours. The next Job repairs the status and goes on.
    Recover {
        attempt: u32,
        status: HelmStatus,
    },
    /// A suspended Job of ours that the last run did not finish creating.
    Resume {
        job: String,
        uid: String,
    },
    /// A suspended Job of other content: nothing has run yet.
    DeleteJob {
        job: String,
        uid: String,
    },
    Uninstall {
        attempt: u32,
    },
    Wait(WaitReason),
    /// Another owner changes it.
    Leave(ReleaseOwner),
    Hold(ReleaseHold),
    /// As wanted. Finished Jobs can go.
    Done {
        finished: Vec<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitReason {
    Running {
        job: String,
    },
    /// The pod cannot run: reported at once, not after a deadline.
    Problem {
        job: String,
        problem: String,
    },
}

/// Why nothing is done, until a person acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReleaseHold {
    OwnerUnknown(String),
    Orphaned(GitOpsTool),
    /// Changed by hand.
    User {
        differs: Vec<String>,
    },
    /// A Job with other content is running.
    OtherJob {
        job: String,
        creator: String,
    },
    /// Interrupted by a program that is not ours, and perhaps still running.
    Interrupted {
        status: HelmStatus,
        age: u64,
    },
    Failed {
        attempt: u32,
        failure: JobFailure,
    },
    /// A status that this version of mainstay does not know.
    StatusUnknown,
}

/// Who owns the release. `wanted` tells a change of ours from one by hand.
pub fn owner(wanted: &DesiredRelease, observed: &ObservedRelease) -> ReleaseOwner {
    if let Some(why) = &observed.unread {
        return ReleaseOwner::Unknown(why.clone());
    }
    if let Some(object) = &observed.helm_release {
        return ReleaseOwner::Flux(object.clone());
    }
    if let Some(object) = &observed.application {
        return ReleaseOwner::ArgoCd(object.clone());
    }
    if let Some(tool) = observed.mark {
        return ReleaseOwner::Orphaned(tool);
    }
    match &observed.newest {
        None if observed.has_objects && observed.jobs.is_empty() => ReleaseOwner::User(Vec::new()),
        None if observed.jobs.is_empty() => ReleaseOwner::Absent,
        None => ReleaseOwner::Mainstay,
        Some(revision) if is_by_mainstay(revision, observed) => ReleaseOwner::Mainstay,
        Some(revision) => ReleaseOwner::User(differing_keys(&wanted.values, &revision.config)),
    }
}

/// Helm replaces the description when it fails or is interrupted, so such a revision is ours if one of our Jobs wrote it.
fn is_by_mainstay(revision: &Revision, observed: &ObservedRelease) -> bool {
    match revision.status {
        HelmStatus::Deployed => revision.description.starts_with(DESCRIPTION),
        // Judged by `decide`: an interrupted release is healed or held by its origin.
        status if status.is_interrupted() => true,
        HelmStatus::Uninstalled => true,
        _ => is_left_by_our_job(observed) || revision.description.starts_with(DESCRIPTION),
    }
}

/// A Job of ours wrote the newest revision.
fn is_left_by_our_job(observed: &ObservedRelease) -> bool {
    observed.jobs.iter().any(|job| job.wrote_newest)
}

/// The newest revision is what the file wants: chart, version, values and author.
pub fn is_equal(wanted: &DesiredRelease, revision: &Revision) -> bool {
    revision.status == HelmStatus::Deployed
        && revision.chart == wanted.chart
        && revision.version == wanted.version
        && revision.description == wanted.description()
        && differing_keys(&wanted.values, &revision.config).is_empty()
}

/// What to do so that the release becomes what the file wants.
pub fn decide(wanted: &DesiredRelease, observed: &ObservedRelease, request: ReleaseRequest) -> ReleaseDecision {
    let owner = owner(wanted, observed);
    if let Some(decision) = by_owner(&owner, request) {
        return decision;
    }
    if let Some(decision) = by_unfinished_job(&wanted.hash, observed) {
        return decision;
    }
    if matches!(owner, ReleaseOwner::Orphaned(_) | ReleaseOwner::User(_)) {
        return upgrade(wanted, observed, request, true);
    }
    let Some(revision) = &observed.newest else {
        return attempt(&wanted.hash, observed, request, |attempt| ReleaseDecision::Install {
            attempt,
        });
    };
    match revision.status {
        HelmStatus::Deployed if is_equal(wanted, revision) => ReleaseDecision::Done {
            finished: observed.jobs.iter().map(|job| job.name.clone()).collect(),
        },
        HelmStatus::Deployed | HelmStatus::Failed => upgrade(wanted, observed, request, false),
        HelmStatus::Uninstalled => attempt(&wanted.hash, observed, request, |attempt| ReleaseDecision::Install {
            attempt,
        }),
        HelmStatus::Unknown => ReleaseDecision::Hold(ReleaseHold::StatusUnknown),
        status => recover(&wanted.hash, status, revision.age, observed, request),
    }
}

fn by_owner(owner: &ReleaseOwner, request: ReleaseRequest) -> Option<ReleaseDecision> {
    match owner {
        ReleaseOwner::Unknown(why) => Some(ReleaseDecision::Hold(ReleaseHold::OwnerUnknown(why.clone()))),
        ReleaseOwner::Flux(_) | ReleaseOwner::ArgoCd(_) => Some(ReleaseDecision::Leave(owner.clone())),
        ReleaseOwner::Orphaned(tool) if !request.take => Some(ReleaseDecision::Hold(ReleaseHold::Orphaned(*tool))),
        ReleaseOwner::User(differs) if !request.take => Some(ReleaseDecision::Hold(ReleaseHold::User {
            differs: differs.clone(),
        })),
        _ => None,
    }
}

/// One Job per release at a time. A running Job of other content is never deleted: Helm would leave the release interrupted.
fn by_unfinished_job(hash: &str, observed: &ObservedRelease) -> Option<ReleaseDecision> {
    let unfinished = |job: &&ReleaseJob| matches!(job.phase, JobPhase::Active { .. } | JobPhase::Suspended);
    // An active one decides, whatever else is left over.
    let is_active = |job: &&ReleaseJob| matches!(job.phase, JobPhase::Active { .. });
    let job = observed
        .jobs
        .iter()
        .find(is_active)
        .or_else(|| observed.jobs.iter().find(unfinished))?;
    let (name, uid) = (job.name.clone(), job.uid.clone());
    Some(match &job.phase {
        JobPhase::Suspended if job.hash == hash => ReleaseDecision::Resume { job: name, uid },
        JobPhase::Suspended => ReleaseDecision::DeleteJob { job: name, uid },
        _ if job.hash != hash => ReleaseDecision::Hold(ReleaseHold::OtherJob {
            job: name,
            creator: job.creator.clone(),
        }),
        JobPhase::Active {
            problem: Some(problem), ..
        } => ReleaseDecision::Wait(WaitReason::Problem {
            job: name,
            problem: problem.clone(),
        }),
        _ => ReleaseDecision::Wait(WaitReason::Running { job: name }),
    })
}

fn upgrade(wanted: &DesiredRelease, observed: &ObservedRelease, request: ReleaseRequest, takes: bool) -> ReleaseDecision {
    let config = observed.newest.as_ref().map(|revision| &revision.config);
    let differs = config.map_or_else(Vec::new, |config| differing_keys(&wanted.values, config));
    attempt(&wanted.hash, observed, request, |attempt| ReleaseDecision::Upgrade {
        attempt,
        differs,
        takes,
    })
}

/// An interrupted release that our Job left is healed at once. One of unknown origin may still be worked on.
fn recover(hash: &str, status: HelmStatus, age: u64, observed: &ObservedRelease, request: ReleaseRequest) -> ReleaseDecision {
    if !is_left_by_our_job(observed) && !request.take {
        return ReleaseDecision::Hold(ReleaseHold::Interrupted { status, age });
    }
    attempt(hash, observed, request, |attempt| ReleaseDecision::Recover {
        attempt,
        status,
    })
}

/// The next attempt at this content, unless the last one failed for a reason that stays.
///
/// A failure of other content says nothing about this one. One retry is automatic, for reasons that pass.
fn attempt(
    hash: &str,
    observed: &ObservedRelease,
    request: ReleaseRequest,
    then: impl FnOnce(u32) -> ReleaseDecision,
) -> ReleaseDecision {
    let tried = observed
        .jobs
        .iter()
        .filter(|job| job.hash == hash)
        .max_by_key(|job| job.attempt);
    let Some(last) = tried else {
        return then(1);
    };
    let (JobPhase::Complete(failure) | JobPhase::Failed(failure)) = &last.phase else {
        return then(last.attempt + 1);
    };
    let may_retry = request.retry || (failure.kind.is_passing() && last.attempt == 1);
    if may_retry {
        return then(last.attempt + 1);
    }
    ReleaseDecision::Hold(ReleaseHold::Failed {
        attempt: last.attempt,
        failure: failure.clone(),
    })
}

/// What to do so that the release goes. `hash` names the removing Job. Gone means that no release Secret of the name remains.
pub fn decide_removal(wanted: &DesiredRelease, observed: &ObservedRelease, request: ReleaseRequest) -> ReleaseDecision {
    let owner = owner(wanted, observed);
    if let Some(decision) = by_owner(&owner, request) {
        return decision;
    }
    if let Some(decision) = by_unfinished_job(&wanted.hash, observed) {
        return decision;
    }
    match &observed.newest {
        None => ReleaseDecision::Done {
            finished: observed.jobs.iter().map(|job| job.name.clone()).collect(),
        },
        // A Helm that is not ours may still work on it.
        Some(revision) if revision.status.is_interrupted() && !request.take && !is_left_by_our_job(observed) => {
            ReleaseDecision::Hold(ReleaseHold::Interrupted {
                status: revision.status,
                age: revision.age,
            })
        }
        Some(_) => attempt(&wanted.hash, observed, request, |attempt| ReleaseDecision::Uninstall {
            attempt,
        }),
    }
}
