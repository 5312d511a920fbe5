//! What went wrong, in the words of the house: which kind, what is to be done, and whether it may pass by itself.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use mainstay_net::{DialError, DialFault};
use pve_api::{Class, Error as PveError};

/// Why a step did not end well.
#[derive(Debug)]
pub struct Failure {
    pub kind: FailureKind,
    /// The whole story in one line.
    pub what: String,
    /// Our reading of the cause, where we have one.
    pub why: Option<String>,
    /// What to do, each line fit to be pasted or followed.
    pub help: Vec<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kind of a failure. It decides whether the step is tried again and, in the binary, the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// A privilege or credential is missing.
    Denied,
    /// Something that is not ours is in the way.
    Conflict,
    /// A gate says that it would hurt.
    Refused,
    /// Never sent.
    Unreachable,
    /// The other side tried and failed.
    Failed,
    /// The deadline passed, the outcome is unknown.
    Unsettled,
    /// The world is not as the plan saw it any more: look and plan again.
    StalePlan,
    /// Everything else is done; what is left waits for something outside.
    Held,
    /// An invariant of ours broke.
    Bug,
}

impl FailureKind {
    /// As `--json` names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Conflict => "conflict",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Failed => "failed",
            Self::Unsettled => "unsettled",
            Self::StalePlan => "changed",
            Self::Held => "held",
            Self::Bug => "bug",
        }
    }

    /// Another round may do better without a change by a person.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Unreachable | Self::Failed | Self::Unsettled | Self::StalePlan)
    }
}

impl Failure {
    pub fn new(kind: FailureKind, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
            why: None,
            help: Vec::new(),
            source: None,
        }
    }

    pub fn conflict(what: impl Into<String>) -> Self {
        Self::new(FailureKind::Conflict, what)
    }

    pub fn refused(what: impl Into<String>) -> Self {
        Self::new(FailureKind::Refused, what)
    }

    pub fn stale_plan(what: impl Into<String>) -> Self {
        Self::new(FailureKind::StalePlan, what)
    }

    /// `what` did not happen in time; `seen` is what was last seen instead.
    pub fn timed_out(what: impl fmt::Display, limit: Duration, seen: impl Into<String>) -> Self {
        let seen = seen.into();
        let why = (!seen.is_empty()).then_some(seen);
        Self {
            why,
            ..Self::new(FailureKind::Unsettled, format!("{what} within {}", minutes(limit)))
        }
    }

    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    pub fn help(mut self, line: impl Into<String>) -> Self {
        self.help.push(line.into());
        self
    }

    pub fn caused_by(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// The causes below this failure, outermost first.
    pub fn causes(&self) -> Vec<String> {
        let mut next = self.source();
        let mut causes = Vec::new();
        while let Some(cause) = next {
            // What lies below says the same, with the whole address.
            if !matches!(cause.downcast_ref(), Some(PveError::NotSent { .. })) {
                causes.push(cause.to_string());
            }
            next = cause.source();
        }
        causes
    }

    fn pve(&self) -> Option<&PveError> {
        self.source.as_deref().and_then(|source| source.downcast_ref())
    }

    /// PVE did not get one of its own locks in time.
    pub(crate) fn is_lock_timeout(&self) -> bool {
        self.pve().and_then(PveError::class) == Some(&Class::LockTimeout)
    }

    /// PVE refused because the VM runs.
    pub(crate) fn is_running(&self) -> bool {
        self.pve().and_then(PveError::class) == Some(&Class::Running)
    }

    /// The same action may be begun anew, since each looks before it acts.
    pub(crate) fn is_transient(&self) -> bool {
        match self.pve() {
            Some(PveError::NotSent { .. } | PveError::Unknown { .. }) => true,
            Some(error) => error.class().is_some_and(is_transient),
            None => false,
        }
    }
}

/// Refusals that look different a little later.
fn is_transient(class: &Class) -> bool {
    class.is_transient()
        || matches!(
            class,
            Class::Locked(_) | Class::Changed | Class::Interrupted | Class::Running | Class::NotRunning
        )
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// A way that did not open, most often that to the jump host or through it.
impl From<DialError> for Failure {
    fn from(error: DialError) -> Self {
        let kind = if error.is_of_the_jump_host() {
            FailureKind::Denied
        } else {
            FailureKind::Unreachable
        };
        let mut failure = Self::new(kind, error.to_string());
        failure.help.extend(error.remedy());
        failure.why = StdError::source(&error).map(ToString::to_string);
        failure
    }
}

/// The factory's no.
impl From<mainstay_plan::DeriveError> for Failure {
    fn from(error: mainstay_plan::DeriveError) -> Self {
        let mut failure = Self::new(FailureKind::Refused, error.what);
        failure.why = error.why;
        failure
    }
}

/// PVE's no, read as ours.
impl From<PveError> for Failure {
    fn from(error: PveError) -> Self {
        let (kind, what, help) = read(&error);
        let why = match &error {
            PveError::TaskFailed(task) => task.cause().map(str::to_owned),
            _ => None,
        };
        let mut failure = Self::new(kind, what).caused_by(error);
        (failure.why, failure.help) = (why, help);
        failure
    }
}

fn read(error: &PveError) -> (FailureKind, String, Vec<String>) {
    let plain = |kind| (kind, error.to_string(), Vec::new());
    match error {
        PveError::NotSent { source, .. } => {
            let what = match source.dial().map(DialError::fault) {
                Some(DialFault::WrongPin { .. } | DialFault::UnknownIssuer { .. } | DialFault::WrongName { .. }) => {
                    "the certificate of Proxmox VE is not the trusted one"
                }
                _ => "Proxmox VE cannot be reached",
            };
            (FailureKind::Unreachable, what.into(), source.remedy().into_iter().collect())
        }
        PveError::Unknown { .. } => (
            FailureKind::Unsettled,
            "Proxmox VE did not answer; the request may have been carried out".into(),
            Vec::new(),
        ),
        PveError::Decode { .. } => plain(FailureKind::Bug),
        PveError::Refused(_) | PveError::TaskFailed(_) => match error.class() {
            Some(Class::Denied | Class::RootOnly) => (FailureKind::Denied, error.to_string(), denied_help(error)),
            Some(Class::Unauthenticated) if is_login(error) => (
                FailureKind::Denied,
                "Proxmox VE does not accept the user and password".into(),
                vec!["check PROXMOX_VE_USERNAME (user@realm) and PROXMOX_VE_PASSWORD".into()],
            ),
            Some(Class::StorageFull) => (
                FailureKind::Failed,
                error.to_string(),
                vec!["the storage is full: free space on it, or choose another in `datacenter.storage`".into()],
            ),
            Some(Class::Unauthenticated) => (
                FailureKind::Denied,
                "Proxmox VE does not accept the token".into(),
                vec!["check PROXMOX_VE_API_TOKEN: user@realm!name=secret".into()],
            ),
            Some(Class::SecondFactor) => (
                FailureKind::Denied,
                "the user has a second factor".into(),
                vec!["set PROXMOX_VE_OTP to the code that your authenticator shows now".into()],
            ),
            Some(Class::Exists) => plain(FailureKind::Conflict),
            Some(Class::NoQuorum) => (
                FailureKind::Failed,
                "the Proxmox VE cluster has no quorum".into(),
                vec!["bring its hosts back first: pvecm status".into()],
            ),
            Some(Class::Protected) => (
                FailureKind::Refused,
                error.to_string(),
                vec!["this VM has Proxmox VE's protection flag; clear the flag there if the VM is to be deleted".into()],
            ),
            Some(Class::Invalid) => plain(FailureKind::Bug),
            _ => plain(FailureKind::Failed),
        },
    }
}

/// The request that a password is sent with.
fn is_login(error: &PveError) -> bool {
    matches!(error, PveError::Refused(refusal) if refusal.call.path() == "/access/ticket")
}

fn denied_help(error: &PveError) -> Vec<String> {
    let mut help = Vec::new();
    if let Some(missing) = error.privilege() {
        help.push(format!("the token lacks {} on {}", missing.any_of.join(" or "), missing.path));
    }
    help.push("`mainstay grant` prints the role and the ACL lines that this file needs".into());
    help
}

/// `5 min`, `90 s`.
pub(crate) fn minutes(limit: Duration) -> String {
    let seconds = limit.as_secs();
    if seconds >= 120 && seconds.is_multiple_of(60) {
        format!("{} min", seconds / 60)
    } else {
        format!("{seconds} s")
    }
}
