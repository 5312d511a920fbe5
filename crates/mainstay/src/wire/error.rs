//! Errors in the stream. Errors of a run and of cluster.yaml are translated here, once; views and exit codes read the result.

use mainstay_engine::{Failure, FailureKind, LeftTask, RunError};
use mainstay_plan::{Lease, Plan, Refusal, RefusalKind, Step};
use serde::{Deserialize, Serialize};

use crate::text::{count, format_grant};

/// What a reader of the stream learns about an error.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ErrorEvent {
    pub kind: ErrorKind,
    /// The rule of cluster.yaml that is broken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The whole story in one line.
    pub summary: String,
    /// The id of the step that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// The machine, image or volume that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Where in the run, such as `step 2 of 41, image.fetch pve1:local`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// The key in cluster.yaml, such as `pools.worker.count`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What is said next to the marked place of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When the lease of the other run ends, in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Steps that an interrupted run has not finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<usize>,
    pub why: Vec<String>,
    pub help: Vec<String>,
}

/// Kinds of errors. They decide the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// Wrong arguments or a missing file.
    Usage,
    /// cluster.yaml is wrong.
    Spec,
    /// A privilege or credential is missing.
    Denied,
    /// Something that mainstay does not own is in the way, or the datacenter lacks something.
    Conflict,
    /// A check says that the plan would do harm.
    Refused,
    /// The plan was not approved.
    Declined,
    /// The request was never sent.
    Unreachable,
    /// The other side tried and failed.
    #[default]
    Failed,
    /// The deadline passed; the outcome is unknown.
    Unsettled,
    /// The world differs from what the plan was made for.
    Changed,
    /// Everything else is done; the rest waits for something outside of mainstay.
    Held,
    /// A bug of mainstay.
    Bug,
    /// Stopped by a signal.
    Interrupted,
}

impl From<FailureKind> for ErrorKind {
    fn from(kind: FailureKind) -> Self {
        match kind {
            FailureKind::Denied => Self::Denied,
            FailureKind::Conflict => Self::Conflict,
            FailureKind::Refused => Self::Refused,
            FailureKind::Unreachable => Self::Unreachable,
            FailureKind::Failed => Self::Failed,
            FailureKind::Unsettled => Self::Unsettled,
            FailureKind::StalePlan => Self::Changed,
            FailureKind::Held => Self::Held,
            FailureKind::Bug => Self::Bug,
        }
    }
}

impl From<RefusalKind> for ErrorKind {
    fn from(kind: RefusalKind) -> Self {
        match kind {
            RefusalKind::Conflict | RefusalKind::Insufficient => Self::Conflict,
            RefusalKind::Gate => Self::Refused,
        }
    }
}

/// The errors that a run ended with. `file` is the cluster file.
pub fn run_errors(error: &RunError, file: &str) -> Vec<ErrorEvent> {
    let one = |kind, summary: String, why: Vec<String>, help: &[&str]| {
        vec![ErrorEvent {
            kind,
            summary,
            why,
            help: help.iter().map(|line| (*line).to_owned()).collect(),
            ..ErrorEvent::default()
        }]
    };
    match error {
        RunError::ObserveFailed(failure) => vec![failed(failure, None)],
        RunError::StepsFailed { plan, failed: steps, .. } => steps
            .iter()
            .map(|(id, failure)| failed(failure, plan.step(*id).map(|step| (&**plan, step, file))))
            .collect(),
        RunError::Refused(plan) => plan.refusals.iter().map(|refusal| refused(refusal, file)).collect(),
        RunError::MissingPrivileges(missing) => one(
            ErrorKind::Denied,
            "the API token lacks privileges that the cluster file needs".into(),
            missing.iter().map(format_grant).collect(),
            &["`mainstay grant` prints the role and the ACL commands, `mainstay doctor` the missing ones. Nothing was changed."],
        ),
        RunError::LeaseHeld(lease) => vec![leased(lease)],
        RunError::NotApproved(_) => one(
            ErrorKind::Declined,
            "Not approved. Nothing was changed.".into(),
            Vec::new(),
            &[],
        ),
        RunError::Stopped { done, left, tasks } => vec![stopped(*done, *left, tasks)],
        RunError::Aborted => one(
            ErrorKind::Interrupted,
            "Aborted; Proxmox VE tasks continue. Run the same command again: it finds them and continues.".into(),
            Vec::new(),
            &[],
        ),
        RunError::InvalidPlan(rules) => one(
            ErrorKind::Bug,
            "mainstay made a plan that violates its own rules; the plan was not executed".into(),
            rules.clone(),
            &["this is a bug of mainstay: please report it with the output of `mainstay plan -v`"],
        ),
        RunError::NotSettled { rounds } => one(
            ErrorKind::Unsettled,
            format!("not settled after {}", count(*rounds as usize, "round")),
            Vec::new(),
            &["`mainstay plan -v` shows what is left to do"],
        ),
    }
}

fn leased(lease: &Lease) -> ErrorEvent {
    let why = format!(
        "that run has held the lease since {:.0}; it is valid until {:.0} and is renewed while the run lasts",
        lease.since, lease.until
    );
    ErrorEvent {
        kind: ErrorKind::Refused,
        summary: format!("{} is running mainstay on this cluster", lease.who),
        until: Some(format!("{:.0}", lease.until)),
        why: vec![why],
        help: vec!["wait for that run to end; if you know that it is dead, add --take-lease".into()],
        ..ErrorEvent::default()
    }
}

fn stopped(done: usize, left: usize, tasks: &[LeftTask]) -> ErrorEvent {
    let not_finished = if left == 0 {
        String::new()
    } else {
        format!(", {left} not finished")
    };
    let done = count(done, "step");
    let named = |task: &LeftTask| format!("{}: its task goes on in Proxmox VE: {}", task.step, task.upid);
    ErrorEvent {
        kind: ErrorKind::Interrupted,
        summary: format!("Stopped after {done}{not_finished}. Run the same command again to continue."),
        left: Some(left),
        why: tasks.iter().map(named).collect(),
        ..ErrorEvent::default()
    }
}

fn failed(failure: &Failure, step: Option<(&Plan, &Step, &str)>) -> ErrorEvent {
    let causes = failure.causes().into_iter().filter(|cause| *cause != failure.what);
    let mut event = ErrorEvent {
        kind: failure.kind.into(),
        summary: failure.what.clone(),
        why: failure.why.iter().cloned().chain(causes).collect(),
        help: failure.help.clone(),
        ..ErrorEvent::default()
    };
    if let Some((plan, step, file)) = step {
        event.id = Some(step.id.0);
        event.on = Some(step.subject.to_string());
        let (count, action) = (plan.steps.len(), step.action.name());
        event.at = Some(format!("step {} of {count}, {action} {}", step.id, step.subject));
        event.line = step.at.map(|at| at.line);
        event.file = event.line.map(|_| file.to_owned());
    }
    event
}

fn refused(refusal: &Refusal, file: &str) -> ErrorEvent {
    let line = refusal.at.map(|at| at.line);
    ErrorEvent {
        kind: refusal.kind.into(),
        summary: refusal.what.clone(),
        on: Some(refusal.subject.to_string()),
        line,
        file: line.map(|_| file.to_owned()),
        why: Some(refusal.why.clone()).filter(|why| !why.is_empty()).into_iter().collect(),
        help: refusal.help.clone(),
        ..ErrorEvent::default()
    }
}
