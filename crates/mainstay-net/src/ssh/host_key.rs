//! The host key of a guest: the value that is pinned.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use russh::keys::PublicKey;

use super::known_hosts::fingerprint;

/// A public host key in OpenSSH's form, `ssh-ed25519 AAAA…`, without a comment.
#[derive(Clone, PartialEq, Eq)]
pub struct SshHostKey(Arc<PublicKey>);

/// Which host key a server may show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostKeyPolicy {
    /// This one. It is checked before authentication, so another server learns nothing.
    Pinned(SshHostKey),
    /// The first one seen is accepted and returned to the caller, who proves the machine and pins it. Later connections of the same
    /// client must show the same key.
    LearnFirst,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an SSH public key")]
pub struct SshHostKeyError(String);

impl SshHostKey {
    pub(super) fn new(key: &PublicKey) -> Self {
        let mut key = key.clone();
        key.set_comment("");
        Self(Arc::new(key))
    }

    pub(super) fn key(&self) -> &PublicKey {
        &self.0
    }

    /// `SHA256:…`, as `ssh-keygen -l` prints it.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.0)
    }
}

impl FromStr for SshHostKey {
    type Err = SshHostKeyError;

    fn from_str(text: &str) -> Result<Self, SshHostKeyError> {
        let key = PublicKey::from_openssh(text.trim()).map_err(|_| SshHostKeyError(text.to_owned()))?;
        Ok(Self::new(&key))
    }
}

impl fmt::Display for SshHostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_openssh().map_err(|_| fmt::Error)?.trim_end())
    }
}

impl fmt::Debug for SshHostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SshHostKey({})", self.fingerprint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_key_is_written_and_read_back_without_its_comment() {
        let text = include_str!("../../tests/data/host-1.pub");
        let key: SshHostKey = text.parse().unwrap();
        assert_eq!(key.to_string().split(' ').count(), 2, "{key}");
        assert_eq!(key.to_string().parse::<SshHostKey>().unwrap(), key);
        assert!(key.fingerprint().starts_with("SHA256:"));
        assert!("ssh-ed25519 nonsense".parse::<SshHostKey>().is_err());
    }
}
