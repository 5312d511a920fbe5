//! Join tokens in the form that pins the server's certificate authority: `K10<sha256 of the CA file>::<user>:<password>`.

use std::fmt;

use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// A join token. Printing it shows nothing secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Zeroizing<String>);

/// Whom a token admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admits {
    /// Servers. This token is also the passphrase of the bootstrap data in etcd: a snapshot is useless without it.
    Servers,
    /// Workers only.
    Agents,
}

impl Token {
    /// The hash covers the bytes of the certificate file as written to disk, so the file must be written unchanged.
    pub(crate) fn new(server_ca: &str, admits: Admits, password: &str) -> Self {
        let user = match admits {
            Admits::Servers => "server",
            Admits::Agents => "node",
        };
        let hash = hex::encode(Sha256::digest(server_ca.as_bytes()));
        Self(Zeroizing::new(format!("K10{hash}::{user}:{password}")))
    }

    /// The whole token, for a config file.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_the_hash_of_the_ca_file_and_its_user() {
        let ca = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
        let hash = hex::encode(Sha256::digest(ca));
        assert_eq!(
            Token::new(ca, Admits::Servers, "s3cret").expose(),
            format!("K10{hash}::server:s3cret")
        );
        let agent = Token::new(ca, Admits::Agents, "s3cret");
        assert_eq!(agent.expose(), format!("K10{hash}::node:s3cret"));
        assert_eq!(format!("{agent:?}"), "Token(..)");
    }
}
