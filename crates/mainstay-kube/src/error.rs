//! What became of a call.

use std::time::Duration;

use mainstay_net::http::client_alert;
use mainstay_net::{DialError, Target, TrustError};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the credentials for {at} cannot be used")]
    Credentials { at: Target, source: TrustError },
    #[error("`{0}` is no address")]
    Address(String),
    /// Nothing was sent.
    #[error("the Kubernetes API at {at} cannot be reached")]
    Unreachable { at: Target, source: DialError },
    /// Turned away right after the handshake, hence nothing was read.
    #[error("the Kubernetes API at {at} does not accept our client certificate ({alert})")]
    ClientRefused { at: Target, alert: String },
    #[error("the Kubernetes API at {at} did not answer ({call}) within {limit:?}")]
    NoAnswer {
        call: &'static str,
        at: Target,
        limit: Duration,
    },
    #[error("the Kubernetes API at {at} refused ({call}): {code} {message}")]
    Refused {
        call: &'static str,
        at: Target,
        code: u16,
        message: String,
    },
    #[error("the connection to the Kubernetes API at {at} broke ({call}): {what}")]
    Broken { call: &'static str, at: Target, what: String },
    #[error("the Kubernetes API at {at} answered something unexpected: {what}")]
    Misread { at: Target, what: String },
}

/// What may be done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Try again later, or elsewhere. Without a leader in etcd the API server is up and says 500.
    Unavailable,
    Denied,
    NotFound,
    /// Somebody else changed it in between, or owns it.
    Conflict,
    Other,
}

impl Error {
    pub(crate) fn of(call: &'static str, at: &Target, error: kube::Error) -> Self {
        let at = at.clone();
        match error {
            kube::Error::Api(status) => Self::Refused {
                call,
                at,
                code: status.code,
                message: status.message.clone(),
            },
            kube::Error::SerdeError(error) => Self::Misread {
                at,
                what: error.to_string(),
            },
            other => match (DialError::find(&other), client_alert(&other)) {
                (Some(dial), _) => Self::Unreachable {
                    at,
                    source: dial.clone(),
                },
                (None, Some(alert)) => Self::ClientRefused {
                    at,
                    alert: format!("{alert:?}"),
                },
                (None, None) => Self::Broken {
                    call,
                    at,
                    what: innermost(&other),
                },
            },
        }
    }

    pub fn class(&self) -> Class {
        match self {
            Self::Unreachable { .. } | Self::NoAnswer { .. } | Self::Broken { .. } => Class::Unavailable,
            Self::ClientRefused { .. } => Class::Denied,
            Self::Refused { code, .. } => match code {
                401 | 403 => Class::Denied,
                404 => Class::NotFound,
                409 => Class::Conflict,
                429 | 500..=599 => Class::Unavailable,
                _ => Class::Other,
            },
            Self::Credentials { .. } | Self::Address(_) | Self::Misread { .. } => Class::Other,
        }
    }

    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Unreachable { source, .. } => source.remedy(),
            Self::ClientRefused { .. } => Some("check that the secrets file belongs to this cluster".into()),
            _ => None,
        }
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}
