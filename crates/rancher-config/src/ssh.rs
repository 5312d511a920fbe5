//! The SSH key by which guests are configured, and the administrators' keys beside it.

use std::fmt;

use rand::CryptoRng;
use ssh_key::private::{Ed25519Keypair, KeypairData};
use ssh_key::{LineEnding, PrivateKey, PublicKey};
use zeroize::Zeroizing;

/// An Ed25519 key pair in OpenSSH's formats.
#[derive(Clone, PartialEq, Eq)]
pub struct SshKey {
    private: Zeroizing<String>,
    public: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SshKeyError {
    #[error("the SSH key is not an unencrypted Ed25519 key in OpenSSH's format")]
    Private,
    #[error("`{0}` is not an SSH public key")]
    Public(String),
}

impl SshKey {
    pub fn generate(rng: &mut impl CryptoRng, comment: &str) -> Result<Self, SshKeyError> {
        let mut seed = Zeroizing::new([0; 32]);
        rng.fill_bytes(seed.as_mut());
        let pair = KeypairData::Ed25519(Ed25519Keypair::from_seed(&seed));
        let key = PrivateKey::new(pair, comment).map_err(|_| SshKeyError::Private)?;
        Self::of(&key)
    }

    /// Reads a private key file.
    pub fn from_openssh(text: &str) -> Result<Self, SshKeyError> {
        let key = PrivateKey::from_openssh(text).map_err(|_| SshKeyError::Private)?;
        match key.key_data() {
            KeypairData::Ed25519(_) => Self::of(&key),
            _ => Err(SshKeyError::Private),
        }
    }

    fn of(key: &PrivateKey) -> Result<Self, SshKeyError> {
        Ok(Self {
            private: key.to_openssh(LineEnding::LF).map_err(|_| SshKeyError::Private)?,
            public: key.public_key().to_openssh().map_err(|_| SshKeyError::Private)?,
        })
    }

    /// The private key file.
    pub fn private(&self) -> &str {
        &self.private
    }

    /// One line, for `sshkeys` of Proxmox VE and for `authorized_keys`.
    pub fn public(&self) -> &str {
        &self.public
    }
}

impl fmt::Debug for SshKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SshKey").field("public", &self.public).finish_non_exhaustive()
    }
}

const BEGIN: &str = "# begin administrators' keys, written by mainstay";
const END: &str = "# end administrators' keys";

/// A new text of `authorized_keys` in which exactly `keys` stand in our marked block. Lines outside of the block are kept.
///
/// The block makes it possible to remove a key: without it, our lines could not be told from the user's own.
pub fn authorized_keys(current: &str, keys: &[String]) -> Result<String, SshKeyError> {
    let mut outside = Vec::new();
    let mut inside = false;
    for line in current.lines() {
        match line {
            BEGIN => inside = true,
            END => inside = false,
            kept if !inside => outside.push(kept.to_owned()),
            _ => {}
        }
    }
    if !keys.is_empty() {
        outside.push(BEGIN.to_owned());
        for key in keys {
            let parsed = PublicKey::from_openssh(key.trim()).map_err(|_| SshKeyError::Public(key.clone()))?;
            let line = parsed.to_openssh().map_err(|_| SshKeyError::Public(key.clone()))?;
            outside.push(line);
        }
        outside.push(END.to_owned());
    }
    let mut text = outside.join("\n");
    if !text.is_empty() {
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn key(seed: u64) -> SshKey {
        SshKey::generate(&mut rand_chacha::ChaCha20Rng::seed_from_u64(seed), "mainstay").expect("a key")
    }

    #[test]
    fn a_key_is_reproducible_readable_and_hides_its_private_half() {
        let made = key(1);
        assert_eq!(made, key(1));
        assert_ne!(made, key(2));
        assert_eq!(SshKey::from_openssh(made.private()).expect("readable"), made);
        assert!(made.private().starts_with("-----BEGIN OPENSSH PRIVATE KEY-----\n"));
        assert!(made.public().starts_with("ssh-ed25519 AAAA"));
        assert!(!format!("{made:?}").contains("PRIVATE"));
    }

    #[test]
    fn a_removed_administrator_key_is_removed_and_foreign_lines_stay() {
        let (first, second) = (key(1).public().to_owned(), key(2).public().to_owned());
        let base = "ssh-ed25519 AAAAforeign someone\n";
        let both = authorized_keys(base, &[first.clone(), second.clone()]).expect("keys");
        assert!(both.starts_with(base) && both.contains(&first) && both.contains(&second));
        let one = authorized_keys(&both, std::slice::from_ref(&second)).expect("keys");
        assert!(one.starts_with(base) && !one.contains(&first) && one.contains(&second));
        assert_eq!(authorized_keys(&one, &[]).expect("none"), base);
        assert_eq!(
            authorized_keys(&one, std::slice::from_ref(&second)).expect("again"),
            one,
            "idempotent"
        );
    }

    #[test]
    fn a_line_that_is_no_key_is_refused() {
        let injected = "ssh-ed25519 AAAA\ncommand=\"x\"".to_owned();
        assert!(matches!(authorized_keys("", &[injected]), Err(SshKeyError::Public(_))));
    }
}
