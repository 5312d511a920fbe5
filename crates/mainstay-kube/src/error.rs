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
    #[error("the Kubernetes API at {at} refused ({call}): {} {}", .status.code, .status.message)]
    Refused {
        call: &'static str,
        at: Target,
        status: Box<ApiStatus>,
    },
    /// The API server does not know this kind. A CRD that was just applied may follow.
    #[error("the Kubernetes API at {at} knows no kind {kind} in {api_version}")]
    UnknownKind { at: Target, api_version: String, kind: String },
    /// Not sent: the object has no kind, no name, or a name that cannot be part of a path.
    #[error("not an object that can be sent: {0}")]
    BadObject(String),
    #[error("the connection to the Kubernetes API at {at} broke ({call}): {what}")]
    Broken { call: &'static str, at: Target, what: String },
    #[error("the Kubernetes API at {at} answered something unexpected: {what}")]
    Misread { at: Target, what: String },
}

/// The API server's own words about a refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiStatus {
    pub code: u16,
    /// `Conflict`, `Forbidden`; empty where the server gives none.
    pub reason: String,
    pub message: String,
    pub causes: Vec<ApiCause>,
    pub retry_after: Option<Duration>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiCause {
    /// `FieldManagerConflict`, `DisruptionBudget`, `NamespaceTerminating`.
    pub reason: String,
    pub message: String,
    pub field: String,
}

/// A field that server-side apply did not change because another manager owns it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldConflict {
    pub manager: String,
    /// `.spec.replicas`.
    pub field: String,
}

impl ApiStatus {
    pub fn has_cause(&self, reason: &str) -> bool {
        self.causes.iter().any(|cause| cause.reason == reason)
    }

    /// Who owns which field, after an apply that was refused.
    pub fn field_conflicts(&self) -> Vec<FieldConflict> {
        let conflicts = self.causes.iter().filter(|cause| cause.reason == "FieldManagerConflict");
        let conflict = |cause: &ApiCause| FieldConflict {
            // `conflict with "kubectl" using apps/v1`
            manager: cause.message.split('"').nth(1).unwrap_or(&cause.message).to_owned(),
            field: cause.field.clone(),
        };
        conflicts.map(conflict).collect()
    }
}

impl From<kube::core::Status> for ApiStatus {
    fn from(status: kube::core::Status) -> Self {
        let (causes, seconds) = status
            .details
            .map(|details| (details.causes, details.retry_after_seconds))
            .unwrap_or_default();
        let cause = |cause: kube::core::response::StatusCause| ApiCause {
            reason: cause.reason,
            message: cause.message,
            field: cause.field,
        };
        Self {
            code: status.code,
            reason: status.reason,
            message: status.message,
            causes: causes.into_iter().map(cause).collect(),
            retry_after: (seconds > 0).then(|| Duration::from_secs(seconds.into())),
        }
    }
}

/// What may be done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Try again later, or elsewhere. Without a leader in etcd the API server is up and says 500.
    Unavailable,
    Denied,
    NotFound,
    /// It was changed in between, or another manager owns it.
    Conflict,
    /// The history that a watch wants to continue from is no longer kept.
    Gone,
    Other,
}

impl Error {
    pub(crate) fn of(call: &'static str, at: &Target, error: kube::Error) -> Self {
        let at = at.clone();
        match error {
            kube::Error::Api(status) => Self::Refused {
                call,
                at,
                status: Box::new(ApiStatus::from(*status)),
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
            Self::UnknownKind { .. } => Class::NotFound,
            Self::Refused { status, .. } => match status.code {
                401 | 403 => Class::Denied,
                404 => Class::NotFound,
                409 => Class::Conflict,
                410 => Class::Gone,
                429 | 500..=599 => Class::Unavailable,
                _ => Class::Other,
            },
            Self::Credentials { .. } | Self::Address(_) | Self::Misread { .. } | Self::BadObject(_) => Class::Other,
        }
    }

    /// What the API server said, if it refused.
    pub fn status(&self) -> Option<&ApiStatus> {
        match self {
            Self::Refused { status, .. } => Some(status),
            _ => None,
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
