//! What is wrong with a file: the place, the reason, and how to fix it.

use std::fmt;

use crate::mask::mask_words;
use crate::source::{Source, Span};

/// One thing that is wrong, or (a warning) probably not what was meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    /// Stable, for programs: `unknown-key`, `control-plane-count`.
    pub code: &'static str,
    /// The problem in one line.
    pub summary: String,
    pub at: Span,
    /// Beside the caret.
    pub label: String,
    pub why: String,
    pub help: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Error,
    Warning,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

impl Diagnostic {
    pub(crate) fn error(code: &'static str, at: Span, summary: impl Into<String>) -> Self {
        let (label, why, help) = <_>::default();
        Self {
            severity: Severity::Error,
            code,
            summary: summary.into(),
            at,
            label,
            why,
            help,
        }
    }

    pub(crate) fn warning(code: &'static str, at: Span, summary: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(code, at, summary)
        }
    }

    pub(crate) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    pub(crate) fn why(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }
}

/// Why a file was refused: at least one error, in the order of the file. Print it with [`crate::report`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostics {
    pub source: Source,
    pub faults: Vec<Diagnostic>,
}

impl Diagnostics {
    pub fn errors(&self) -> usize {
        self.faults.iter().filter(|fault| fault.severity == Severity::Error).count()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors = self.errors();
        write!(
            f,
            "{} has {errors} error{}",
            self.source.file,
            if errors == 1 { "" } else { "s" }
        )
    }
}

impl std::error::Error for Diagnostics {}

/// A value that cannot be read, without the place and the key that the reader knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValueError {
    /// Continues "`memory` ...".
    pub says: String,
    pub label: String,
    pub why: String,
    pub help: String,
}

impl ValueError {
    pub(crate) fn new(says: impl Into<String>, label: impl Into<String>) -> Self {
        Self {
            says: says.into(),
            label: label.into(),
            why: String::new(),
            help: String::new(),
        }
    }

    pub(crate) fn why(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    pub(crate) fn at(self, code: &'static str, span: Span, what: &str) -> Diagnostic {
        Diagnostic::error(code, span, format!("{what} {}", self.says))
            .label(self.label)
            .why(self.why)
            .help(self.help)
    }
}

/// A value from the file inside a sentence: in backticks, short, without secrets, and nothing a terminal would act on.
pub(crate) fn quote(text: &str) -> String {
    const LONGEST: usize = 60;
    let text = mask_words(text);
    let clean: String = text
        .chars()
        .take(LONGEST)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    let more = if text.chars().nth(LONGEST).is_some() { "…" } else { "" };
    format!("`{clean}{more}`")
}
