//! The text of a file and places in it.

use std::fmt;
use std::sync::Arc;

/// A place in cluster.yaml: bytes `start..end`, and where `start` is for people, counted from 1 (columns in characters).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span {
    pub start: u32,
    pub end: u32,
    pub line: u32,
    pub column: u32,
}

impl Span {
    pub(crate) fn holds(self, byte: u32) -> bool {
        self.start <= byte && (byte < self.end || byte == self.start)
    }
}

/// A value with the place it was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spanned<T> {
    pub value: T,
    pub span: Span,
}

/// A file by name, with its text. `Debug` shows the name only, since the text may hold a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Source {
    pub file: String,
    pub text: Arc<str>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({:?}, {} bytes)", self.file, self.text.len())
    }
}
