//! What can be wrong with a file. No variant holds a value of it.

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the file is not UTF-8 text")]
    NotText,
    #[error("the file is not YAML: {what} (line {line})")]
    Syntax { line: usize, what: String },
    #[error("sops metadata not found: the file is not encrypted")]
    NotSops,
    #[error("the sops metadata cannot be read: {0}")]
    Metadata(String),
    #[error("the document already has a `sops` block")]
    AlreadyEncrypted,
    #[error("line {line}: {what} is not supported in an encrypted file")]
    Unsupported { line: usize, what: &'static str },
    #[error("the file is also encrypted with {0}; writing it would lock those readers out")]
    OtherKeys(String),
    #[error("no age recipient to encrypt for")]
    NoRecipient,
    #[error("`{0}` is not an age recipient (age1...)")]
    BadRecipient(String),
    #[error("line {line} of the key file is not an age identity (AGE-SECRET-KEY-1...)")]
    BadIdentity { line: usize },
    #[error("none of the {tried} age identities at hand opens the file; it is encrypted for {recipients}")]
    NoIdentity { tried: usize, recipients: String },
    #[error("the file is encrypted, but not for an age key: {0}")]
    NoAge(String),
    #[error("`{path}` should be encrypted, but is not")]
    NotEncrypted { path: String },
    #[error("`{path}` was changed after it was encrypted")]
    Tampered { path: String },
    #[error("MAC mismatch: values were changed, added, removed or reordered after the file was encrypted")]
    Mac,
    #[error("`{0}` is not a regular expression")]
    BadRegex(String),
    #[error("age could not encrypt the data key: {0}")]
    Age(String),
}
