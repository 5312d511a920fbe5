//! What became of a call: never sent, perhaps carried out, or answered with a refusal of a known class.

use std::fmt;
use std::time::Duration;

use mainstay_net::http::client_alert;
use mainstay_net::{DialError, DialFault, Target, TrustError};
use tonic::{Code, Status};
use uuid::Uuid;

pub use crate::class::Class;
use crate::redact::without_secrets;
use crate::resource::Stage;

/// Which call, to which machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub name: &'static str,
    pub at: Target,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.name, self.at)
    }
}

/// A call without the answer it was made for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the credentials for {at} cannot be used")]
    Credentials { at: Target, source: TrustError },
    #[error("`{text}` is no address")]
    Address { text: String },
    #[error("{call} was not sent")]
    NotSent { call: Call, source: Unsent },
    #[error("{call} got no answer: the connection broke, it may have been carried out")]
    Lost { call: Call, source: Box<Status> },
    #[error("{call} got no answer within {deadline:?}: it may have been carried out")]
    NoAnswer { call: Call, deadline: Duration },
    #[error("{call} was refused: {message}")]
    Refused {
        call: Call,
        class: Class,
        code: Code,
        message: String,
    },
    #[error("{call} was answered with something unexpected: {what}")]
    Misread { call: Call, what: String },
    /// A machine on its way down answers on for a while, with less and less behind it.
    #[error("{call} tells nothing: the machine is {stage}")]
    GoingDown { call: Call, stage: Stage },
    /// Another machine has this address. It was told nothing.
    #[error("the machine at {at} is {seen}, not {expected}")]
    Stranger { at: Target, expected: Uuid, seen: String },
}

/// Why a call never reached the machine.
#[derive(Debug, thiserror::Error)]
pub enum Unsent {
    #[error(transparent)]
    Dial(#[from] DialError),
    /// Our certificate was turned away right after the handshake, hence before the call was read.
    #[error("the machine refused our client certificate ({0})")]
    ClientRefused(String),
    /// The connection was closed before the call was written to it.
    #[error("the connection was closing")]
    Closing(#[source] Box<Status>),
    /// The machine we went through could not reach the one we meant.
    #[error("{endpoint} cannot reach the machine: {message}")]
    Onward { endpoint: Target, message: String },
}

/// What is known about the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Certainly not carried out.
    NotSent,
    /// Perhaps carried out.
    Unknown,
    /// Answered, with a refusal.
    Refused,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The same call again, until the phase's deadline.
    Retry,
    /// Look at the machine first: it may be carried out, or the machine may be in another stage than thought.
    Look,
    /// Wait until the machine has rebooted.
    AwaitReboot,
    /// What was asked for is already so.
    Done,
    /// This release does not have it: do without.
    DoWithout,
    /// A retry cannot help: the user must change something, or mainstay has a bug.
    Stop,
}

/// What apid says about a machine behind it that it could not connect to.
const NOT_CONNECTED: [&str; 4] = [
    "Error while dialing",
    "lookup error",
    "authentication handshake failed",
    "error reading server preface",
];

impl Error {
    /// Sorts what tonic says, within a call that had this long. A status that the machine sent has no source; one that our side made up has the broken transport as its.
    pub(crate) fn of_status(call: Call, deadline: Duration, status: Status) -> Self {
        if ran_out(&status) {
            return Self::NoAnswer { call, deadline };
        }
        match std::error::Error::source(&status) {
            None => Self::of_answer(call, &status),
            Some(cause) => {
                if let Some(dial) = DialError::find(cause) {
                    return Self::NotSent {
                        call,
                        source: dial.clone().into(),
                    };
                }
                if let Some(alert) = client_alert(cause) {
                    return Self::NotSent {
                        call,
                        source: Unsent::ClientRefused(format!("{alert:?}")),
                    };
                }
                if never_dispatched(cause) {
                    return Self::NotSent {
                        call,
                        source: Unsent::Closing(Box::new(status)),
                    };
                }
                Self::Lost {
                    call,
                    source: Box::new(status),
                }
            }
        }
    }

    fn of_answer(call: Call, status: &Status) -> Self {
        let message = without_secrets(status.message());
        match status.code() {
            // apid answers for a machine behind it that it could not even connect to.
            Code::Unavailable if NOT_CONNECTED.iter().any(|text| message.contains(text)) => {
                let endpoint = call.at.clone();
                Self::NotSent {
                    call,
                    source: Unsent::Onward { endpoint, message },
                }
            }
            // The transport behind apid broke while the call was there: the answer says nothing about what was done.
            Code::Unavailable | Code::Cancelled => Self::Lost {
                call,
                source: Box::new(scrubbed(status, message)),
            },
            code => Self::Refused {
                class: Class::of(code, &message),
                call,
                code,
                message,
            },
        }
    }

    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Credentials { .. } | Self::Address { .. } | Self::NotSent { .. } | Self::Stranger { .. } => Outcome::NotSent,
            Self::Lost { .. } | Self::NoAnswer { .. } | Self::Misread { .. } | Self::GoingDown { .. } => Outcome::Unknown,
            Self::Refused { .. } => Outcome::Refused,
        }
    }

    pub fn class(&self) -> Option<Class> {
        match self {
            Self::Refused { class, .. } => Some(*class),
            _ => None,
        }
    }

    /// The failed dial, if that is what it was.
    pub fn dial(&self) -> Option<&DialError> {
        match self {
            Self::NotSent {
                source: Unsent::Dial(dial),
                ..
            } => Some(dial),
            _ => None,
        }
    }

    /// The machine at the other end is not signed by our authority: still unconfigured, or of another cluster.
    pub fn is_unknown_issuer(&self) -> bool {
        matches!(self.dial().map(DialError::fault), Some(DialFault::UnknownIssuer { .. }))
    }

    /// The machine wants another client certificate than ours, or any at all.
    pub fn is_client_refused(&self) -> bool {
        let at_handshake = matches!(self.dial().map(DialError::fault), Some(DialFault::ClientRefused(_)));
        at_handshake
            || matches!(
                self,
                Self::NotSent {
                    source: Unsent::ClientRefused(_),
                    ..
                }
            )
    }

    pub fn next(&self) -> Next {
        match self {
            Self::Credentials { .. } | Self::Address { .. } | Self::Stranger { .. } => Next::Stop,
            Self::NotSent {
                source: Unsent::Dial(dial),
                ..
            } if dial.is_transient() => Next::Retry,
            Self::NotSent {
                source: Unsent::Closing(_) | Unsent::Onward { .. },
                ..
            } => Next::Retry,
            // An unknown authority is how an unconfigured machine looks, a refused client how a foreign one may.
            Self::NotSent { .. } | Self::Lost { .. } | Self::NoAnswer { .. } | Self::Misread { .. } | Self::GoingDown { .. } => {
                Next::Look
            }
            Self::Refused { class, .. } => class.next(),
        }
    }

    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::NotSent {
                source: Unsent::Dial(dial),
                ..
            } => dial.remedy(),
            Self::NotSent {
                source: Unsent::ClientRefused(_),
                ..
            } => Some("check that the secrets file belongs to this cluster".into()),
            Self::Stranger { at, .. } => Some(format!(
                "find out which machine has {}, or give ours another address",
                at.host
            )),
            Self::Refused { class, .. } => class.remedy().map(str::to_owned),
            _ => None,
        }
    }
}

/// The time limit travels with the call: the machine, or tonic for it, may say first that it is over.
fn ran_out(status: &Status) -> bool {
    status.code() == Code::DeadlineExceeded || causes(status).any(<dyn std::error::Error>::is::<tonic::TimeoutExpired>)
}

/// hyper tells when a request was handed back unsent: the connection had gone away, or the server's GOAWAY did not cover it.
fn never_dispatched(error: &(dyn std::error::Error + 'static)) -> bool {
    causes(error).any(|cause| cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled))
}

/// The error and what caused it, outermost first.
fn causes<'a>(error: &'a (dyn std::error::Error + 'static)) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// The status again, with a text that may be shown and without details, which no caller reads.
fn scrubbed(status: &Status, message: String) -> Status {
    Status::new(status.code(), message)
}
