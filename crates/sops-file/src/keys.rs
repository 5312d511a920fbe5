//! age keys.

use std::fmt;
use std::str::FromStr;

use age::secrecy::ExposeSecret;
use zeroize::Zeroizing;

use crate::error::Error;

/// A private age key.
#[derive(Clone)]
pub struct Identity(pub(crate) age::x25519::Identity);

impl Identity {
    /// A new one, from the system's randomness.
    pub fn generate() -> Self {
        Self(age::x25519::Identity::generate())
    }

    /// Every identity of a key file: one a line, `#` begins a comment.
    pub fn parse_file(text: &str) -> Result<Vec<Self>, Error> {
        let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
        let keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        keys.map(|(line, key)| key.parse().map(Self).map_err(|_: &str| Error::BadIdentity { line }))
            .collect()
    }

    pub fn recipient(&self) -> Recipient {
        Recipient(self.0.to_public())
    }

    /// As a key file holds it, with the comments that `age-keygen` writes.
    pub fn to_file(&self, created: jiff::Timestamp) -> Zeroizing<String> {
        let secret = self.0.to_string();
        let text = format!(
            "# created: {created:.0}\n# public key: {}\n{}\n",
            self.recipient(),
            secret.expose_secret()
        );
        Zeroizing::new(text)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity(*** of {})", self.recipient())
    }
}

/// A public age key.
#[derive(Clone, PartialEq, Eq)]
pub struct Recipient(pub(crate) age::x25519::Recipient);

impl FromStr for Recipient {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.trim()
            .parse()
            .map(Self)
            .map_err(|_: &str| Error::BadRecipient(text.trim().to_owned()))
    }
}

impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
