//! Why cluster.yaml cannot become a desired state.

use std::fmt;

/// Why the file cannot become a desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeriveError {
    pub what: String,
    pub why: Option<String>,
}

impl DeriveError {
    pub(crate) fn new(what: impl fmt::Display) -> Self {
        Self {
            what: what.to_string(),
            why: None,
        }
    }

    pub(crate) fn why(self, why: impl fmt::Display) -> Self {
        Self {
            why: Some(why.to_string()),
            ..self
        }
    }
}

impl fmt::Display for DeriveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for DeriveError {}
