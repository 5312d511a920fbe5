//! How PVE refuses: a text, sometimes with a status code and texts per parameter.

use indexmap::IndexMap;

/// A refusal on its way up. In the request it becomes the HTTP answer, in a worker the task's exit status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Die {
    /// `None` is a plain `die`: 500 in a request, no number in front in a task.
    pub code: Option<u16>,
    /// Without the final line feed.
    pub message: String,
    pub errors: IndexMap<String, String>,
    /// What the HTTP layer answers although no line feed ended the text (pveproxy's own words).
    pub bare: bool,
}

pub const BAD_PARAMETERS: &str = "Parameter verification failed.";

impl Die {
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            code: None,
            message: message.into(),
            errors: IndexMap::new(),
            bare: false,
        }
    }

    pub fn with_code(code: u16, message: impl Into<String>) -> Self {
        Self {
            code: Some(code),
            ..Self::new(message)
        }
    }

    /// An answer of the proxy itself, which carries no line feed.
    pub fn bare(code: u16, message: impl Into<String>) -> Self {
        Self {
            bare: true,
            ..Self::with_code(code, message)
        }
    }

    pub fn permission(what: &str) -> Self {
        let message = if what.is_empty() {
            "Permission check failed".into()
        } else {
            format!("Permission check failed ({what})")
        };
        Self::with_code(403, message)
    }

    pub fn parameter(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self::parameters([(name.into(), text.into())].into_iter().collect())
    }

    pub fn parameters(errors: IndexMap<String, String>) -> Self {
        Self {
            errors,
            ..Self::with_code(400, BAD_PARAMETERS)
        }
    }

    /// What the worker of a stopped task dies of.
    pub fn interrupted() -> Self {
        Self::new("received interrupt")
    }

    pub fn status(&self) -> u16 {
        self.code.unwrap_or(500)
    }

    /// The exception as text, as Perl prints it: code in front, parameter errors below.
    pub fn text(&self) -> String {
        let mut text = match self.code {
            Some(code) => format!("{code} {}", self.message),
            None => self.message.clone(),
        };
        for (name, why) in &self.errors {
            text.push_str(&format!("\n{name}: {}", why.trim_end_matches('\n')));
        }
        text
    }

    /// Dies again with a prefix; code and parameter errors become text, as in `die "prefix$@"`.
    pub fn prefixed(self, prefix: &str) -> Self {
        Self::new(format!("{prefix}{}", self.text()))
    }

    /// The text on one line, as a task's exit status has it.
    pub fn exit_status(&self) -> String {
        self.text().trim_end().replace('\n', " ")
    }
}

impl std::fmt::Display for Die {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text())
    }
}

impl std::error::Error for Die {}

#[cfg(test)]
mod tests {
    use super::Die;

    #[test]
    fn a_refusal_inside_a_worker_shows_its_code() {
        let inner = Die::permission("/vms/102, VM.Config.Options");
        assert_eq!(
            inner.prefixed("unable to create VM 102 - ").exit_status(),
            "unable to create VM 102 - 403 Permission check failed (/vms/102, VM.Config.Options)"
        );
    }

    #[test]
    fn parameter_errors_follow_the_message_line_by_line() {
        let inner = Die::parameter("role", "Cannot add role");
        assert_eq!(inner.text(), "400 Parameter verification failed.\nrole: Cannot add role");
    }
}
