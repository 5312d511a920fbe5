//! What became of a request that has no usable answer.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use ::http::{Method, Request, StatusCode};
use hyper_util::client::legacy;
use rustls::AlertDescription;

use crate::connector::refuses_client;
use crate::error::DialError;

/// Method and address of a request, without its query: that may carry what must not be printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    pub method: Method,
    pub url: String,
}

impl RequestInfo {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let uri = request.uri();
        let scheme = uri.scheme_str().unwrap_or("http");
        // Only host and port: the authority of a URI may hold a password.
        let at = crate::Target::of_uri(uri).map(|to| to.to_string()).unwrap_or_default();
        Self {
            method: request.method().clone(),
            url: format!("{scheme}://{at}{}", uri.path()),
        }
    }
}

impl fmt::Display for RequestInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.url)
    }
}

/// A request without a usable answer. [`HttpError::outcome`] says whether it may have been carried out.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("{asked} was not sent")]
    NotSent {
        asked: RequestInfo,
        #[source]
        cause: Unsent,
    },
    #[error("{asked} got no answer: the connection broke, the request may have been carried out")]
    Lost {
        asked: RequestInfo,
        #[source]
        cause: legacy::Error,
    },
    #[error("{asked} got no answer within {deadline:?}: it may have been carried out")]
    NoAnswer { asked: RequestInfo, deadline: Duration },
    #[error("{asked} was answered {status}, but the answer broke off")]
    Cut {
        asked: RequestInfo,
        status: StatusCode,
        #[source]
        cause: hyper::Error,
    },
    #[error("{asked} was answered {status}, but the answer was not complete within {deadline:?}")]
    Slow {
        asked: RequestInfo,
        status: StatusCode,
        deadline: Duration,
    },
    #[error("{asked} was answered {status} with more than {limit} bytes")]
    TooLong {
        asked: RequestInfo,
        status: StatusCode,
        limit: usize,
    },
}

/// Why a request was not sent.
#[derive(Debug, thiserror::Error)]
pub enum Unsent {
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The server turned our client certificate away right after the handshake, hence before it read the request.
    #[error("the server refused our client certificate ({0:?})")]
    ClientRefused(AlertDescription),
    #[error("the connection broke before anything was written to it")]
    Broken(#[source] legacy::Error),
    #[error("no connection came about within {0:?}")]
    Deadline(Duration),
}

/// What is known about the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Certainly not carried out: sending it again is safe.
    NotSent,
    /// Perhaps carried out: look before sending it again.
    Unknown,
    /// Carried out and answered with this status; only the rest of the answer is missing.
    Answered(StatusCode),
}

impl HttpError {
    pub(super) fn of_failure(asked: &RequestInfo, cause: legacy::Error, untouched: bool) -> Self {
        let asked = asked.clone();
        if let Some(dial) = DialError::find(&cause) {
            return Self::NotSent {
                asked,
                cause: Unsent::Dial(dial.clone()),
            };
        }
        if let Some(alert) = client_alert(&cause) {
            return Self::NotSent {
                asked,
                cause: Unsent::ClientRefused(alert),
            };
        }
        if untouched {
            Self::NotSent {
                asked,
                cause: Unsent::Broken(cause),
            }
        } else {
            Self::Lost { asked, cause }
        }
    }

    pub fn outcome(&self) -> RequestOutcome {
        match self {
            Self::NotSent { .. } => RequestOutcome::NotSent,
            Self::Lost { .. } | Self::NoAnswer { .. } => RequestOutcome::Unknown,
            Self::Cut { status, .. } | Self::Slow { status, .. } | Self::TooLong { status, .. } => {
                RequestOutcome::Answered(*status)
            }
        }
    }

    pub fn asked(&self) -> &RequestInfo {
        match self {
            Self::NotSent { asked, .. }
            | Self::Lost { asked, .. }
            | Self::NoAnswer { asked, .. }
            | Self::Cut { asked, .. }
            | Self::Slow { asked, .. }
            | Self::TooLong { asked, .. } => asked,
        }
    }

    /// The failed dial, if that is what it was.
    pub fn dial(&self) -> Option<&DialError> {
        match self {
            Self::NotSent {
                cause: Unsent::Dial(dial),
                ..
            } => Some(dial),
            _ => None,
        }
    }

    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::NotSent {
                cause: Unsent::ClientRefused(_),
                ..
            } => Some("check that the secrets file belongs to this cluster".to_owned()),
            _ => self.dial().and_then(DialError::remedy),
        }
    }
}

/// The alert by which the server turned our client certificate away, wherever in the chain it is.
///
/// In TLS 1.3 it shows only when the first answer is read, long after the handshake.
pub fn client_alert(error: &(dyn Error + 'static)) -> Option<AlertDescription> {
    let mut at = Some(error);
    while let Some(error) = at {
        // An io::Error hides what it wraps from `source`.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(rustls::Error::AlertReceived(alert)) = wrapped.and_then(|inner| inner.downcast_ref()) {
            return refuses_client(*alert).then_some(*alert);
        }
        at = error.source();
    }
    None
}
