//! Errors that know what may be done about them.

mod class;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mainstay_net::http::HttpError;
use serde::Deserialize;

pub use class::{Class, MissingPrivilege};

use crate::request::{CallName, Request};
use crate::value::{Host, Upid};

/// A call that did not give what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Certainly not carried out: it may be sent again.
    #[error("{call} was not sent")]
    NotSent { call: CallName, source: Box<HttpError> },

    /// Perhaps carried out: look for its effect before it is sent again. For a read: nothing was learnt.
    #[error("{call} has an unknown outcome")]
    Unknown { call: CallName, source: Unknown },

    /// Carried out in no part.
    #[error("{0}")]
    Refused(Box<Refusal>),

    /// The task began and ended badly.
    #[error("{0}")]
    TaskFailed(Box<TaskFailure>),

    /// Answered, and hence carried out, but the answer makes no sense to us.
    #[error("the answer to {call} is not what PVE documents")]
    Decode { call: CallName, source: serde_json::Error },
}

/// Why an outcome is unknown.
#[derive(Debug, thiserror::Error)]
pub enum Unknown {
    /// The connection broke after the request was sent, or there was no answer in time.
    #[error(transparent)]
    Lost(Box<HttpError>),

    /// The contacted host could not reach the one that carries the call out, or lost it on the way (status 595 to 599).
    #[error("host {host} did not answer the one that was asked: {status} {reason}", host = Named(.host.as_ref()))]
    Gateway {
        status: u16,
        reason: String,
        host: Option<Host>,
    },

    /// Neither the task's state nor its end can be read.
    #[error("task {upid} cannot be followed")]
    Task { upid: Box<Upid>, source: Arc<Error> },
}

struct Named<'a>(Option<&'a Host>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.map_or("of the call", Host::as_str))
    }
}

/// PVE's no, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub call: CallName,
    pub class: Class,
    pub status: u16,
    /// PVE's own words.
    pub message: String,
    /// What is wrong with which parameter.
    pub fields: BTreeMap<String, String>,
    /// What the caller lacks, where PVE names it.
    pub privilege: Option<MissingPrivilege>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was refused: {} {}", self.call, self.status, self.message)?;
        for (n, (field, text)) in self.fields.iter().enumerate() {
            write!(f, "{} {field}: {}", if n == 0 { "" } else { "," }, text.trim_end())?;
        }
        Ok(())
    }
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFailure {
    pub upid: Upid,
    pub class: Class,
    /// PVE's own words.
    pub exitstatus: String,
    pub privilege: Option<MissingPrivilege>,
    /// The last lines of the task's log; empty when it could not be read.
    pub log_tail: Vec<String>,
}

impl TaskFailure {
    pub(crate) fn new(upid: Upid, exitstatus: String, log_tail: Vec<String>) -> Self {
        let class = match Class::of_task(&exitstatus) {
            // A copy that fails says only that it failed; the program that copied said why.
            Class::Other if log_tail.iter().any(|line| Class::of_task(line) == Class::StorageFull) => Class::StorageFull,
            class => class,
        };
        let privilege = MissingPrivilege::parse(&exitstatus);
        Self {
            upid,
            class,
            exitstatus,
            privilege,
            log_tail,
        }
    }
}

impl TaskFailure {
    /// The line of the log that says what happened, where the exit status does not: a program that copied, for example, ran out of space.
    pub fn cause(&self) -> Option<&str> {
        let is_cause = |line: &&String| self.class != Class::Other && Class::of_task(line) == self.class;
        let line = self.log_tail.iter().rev().find(is_cause)?;
        (!self.exitstatus.contains(line.as_str())).then_some(line.as_str())
    }
}

impl fmt::Display for TaskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "task {} on {} failed: {}",
            self.upid.kind(),
            self.upid.host(),
            self.exitstatus
        )
    }
}

impl Error {
    /// What a status other than 200 means.
    pub(crate) fn from_answer(request: &Request, status: u16, reason: &str, body: &[u8]) -> Self {
        let call = request.name();
        if (595..=599).contains(&status) {
            let reason = reason.to_owned();
            return Self::Unknown {
                call,
                source: Unknown::Gateway {
                    status,
                    reason,
                    host: request.host().cloned(),
                },
            };
        }
        let said: Said = serde_json::from_slice(body).unwrap_or_default();
        let message = said.message(reason);
        let fields = said.errors.unwrap_or_default();
        let class = Class::of_answer(status, &message, &fields);
        let privilege = MissingPrivilege::parse(&message);
        Self::Refused(Box::new(Refusal {
            call,
            class,
            status,
            message,
            fields,
            privilege,
        }))
    }

    /// A login that ends after its first step, since there is no code for the second.
    pub(crate) fn second_factor(request: &Request) -> Self {
        Self::Refused(Box::new(Refusal {
            call: request.name(),
            class: Class::SecondFactor,
            status: 200,
            message: "the user has a second factor, and no code was given".into(),
            fields: BTreeMap::new(),
            privilege: None,
        }))
    }

    /// What a request without a usable answer means.
    pub(crate) fn from_http(request: &Request, error: HttpError) -> Self {
        use mainstay_net::http::RequestOutcome;
        let call = request.name();
        match error.outcome() {
            RequestOutcome::NotSent => Self::NotSent {
                call,
                source: Box::new(error),
            },
            RequestOutcome::Unknown | RequestOutcome::Answered(_) => Self::Unknown {
                call,
                source: Unknown::Lost(Box::new(error)),
            },
        }
    }

    /// What kind of no it was, for refusals, failed tasks and hosts out of reach.
    pub fn class(&self) -> Option<&Class> {
        match self {
            Self::Refused(refusal) => Some(&refusal.class),
            Self::TaskFailed(failure) => Some(&failure.class),
            Self::Unknown {
                source: Unknown::Gateway { .. },
                ..
            } => Some(&Class::HostUnreachable),
            Self::Unknown {
                source: Unknown::Task { source: cause, .. },
                ..
            } => cause.class(),
            Self::NotSent { .. } | Self::Unknown { .. } | Self::Decode { .. } => None,
        }
    }

    /// The privilege that is missing, and where, if PVE says so.
    pub fn privilege(&self) -> Option<&MissingPrivilege> {
        match self {
            Self::Refused(refusal) => refusal.privilege.as_ref(),
            Self::TaskFailed(failure) => failure.privilege.as_ref(),
            Self::Unknown {
                source: Unknown::Task { source: cause, .. },
                ..
            } => cause.privilege(),
            _ => None,
        }
    }

    /// PVE's own words, if it said any.
    pub fn message(&self) -> Option<&str> {
        match self {
            Self::Refused(refusal) => Some(&refusal.message),
            Self::TaskFailed(failure) => Some(&failure.exitstatus),
            Self::Unknown {
                source: Unknown::Gateway { reason, .. },
                ..
            } => Some(reason),
            _ => None,
        }
    }

    pub fn is_missing(&self) -> bool {
        self.class() == Some(&Class::Missing)
    }

    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }

    pub fn is_not_sent(&self) -> bool {
        matches!(self, Self::NotSent { .. })
    }
}

/// What an error's body may say.
#[derive(Default, Deserialize)]
struct Said {
    message: Option<String>,
    errors: Option<BTreeMap<String, String>>,
}

impl Said {
    /// The body's message since PVE 8.4, else the reason phrase: that is the same text up to its first line feed.
    fn message(&self, reason: &str) -> String {
        let body = self.message.as_deref().map(str::trim_end).filter(|text| !text.is_empty());
        body.unwrap_or(reason.trim()).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, Error};
    use crate::request::Request;

    fn answer(status: u16, reason: &str, body: &str) -> Error {
        let request = Request::post("/nodes/{node}/qemu", &[&"pve1"]).with("password", "hunter2");
        Error::from_answer(&request, status, reason, body.as_bytes())
    }

    #[test]
    fn the_reason_phrase_speaks_where_the_body_is_silent() {
        for body in ["", "{\"data\":null}", "<html>", "{\"data\":null,\"message\":\"\\n\"}"] {
            assert_eq!(
                answer(500, "VM is locked (backup)", body).message(),
                Some("VM is locked (backup)"),
                "{body}"
            );
        }
    }

    #[test]
    fn the_body_says_more_than_the_first_line() {
        let error = answer(500, "one", "{\"data\":null,\"message\":\"one\\ntwo\\n\"}");
        assert_eq!(error.message(), Some("one\ntwo"));
    }

    #[test]
    fn a_refusal_names_call_status_and_fields() {
        let body = r#"{"data":null,"message":"Parameter verification failed.\n","errors":{"vmid":"bad\n","a":"b"}}"#;
        let error = answer(400, "Parameter verification failed.", body);
        let text = "POST /nodes/pve1/qemu was refused: 400 Parameter verification failed. a: b, vmid: bad";
        assert_eq!(error.to_string(), text);
        assert_eq!(error.class(), Some(&Class::Invalid));
    }

    #[test]
    fn a_host_that_was_not_reached_leaves_the_outcome_open() {
        for status in [595, 596, 597, 599] {
            let error = answer(status, "Connection timed out", "");
            assert!(error.is_unknown(), "{status}");
            assert_eq!(error.class(), Some(&Class::HostUnreachable));
        }
    }

    #[test]
    fn an_error_never_prints_parameters() {
        let error = answer(500, "x", "");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}
