//! Client credentials minted offline from the bundle: for the Talos API and for Kubernetes.

mod kubeconfig;
mod talosconfig;

use std::collections::BTreeSet;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use rand::CryptoRng;
use zeroize::Zeroizing;

pub use kubeconfig::{Kubeconfig, KubeconfigEntry};
pub use talosconfig::Talosconfig;

use crate::pki::{Certificate, Extended, Issuer, KeyUsage, Name, PkiError, Profile};
use crate::secrets::{Secrets, serial};
use crate::yaml::{Node, SyntaxError};

/// A year of 365 days, what talosctl and Talos give.
pub const DEFAULT_LIFETIME: SignedDuration = SignedDuration::from_hours(8_760);

/// A certificate valid from this very second is refused by a node whose clock lags.
const BACKDATE: SignedDuration = SignedDuration::from_mins(5);

/// What a holder of a Talos client certificate may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TalosRole {
    Admin,
    Operator,
    Reader,
    EtcdBackup,
    ImageVerifier,
    MetaWriter,
    Impersonator,
}

impl TalosRole {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "os:admin",
            Self::Operator => "os:operator",
            Self::Reader => "os:reader",
            Self::EtcdBackup => "os:etcd:backup",
            Self::ImageVerifier => "os:image:verifier",
            Self::MetaWriter => "os:meta:writer",
            Self::Impersonator => "os:impersonator",
        }
    }
}

/// A client certificate with its key.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    pub certificate: String,
    /// With the label that Talos and Go expect.
    pub key: Zeroizing<String>,
    /// The same key as PKCS#8 with the label that everybody else expects.
    pub pkcs8_key: Zeroizing<String>,
    pub expires: Timestamp,
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientIdentity")
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// A certificate for the Talos API.
pub fn talos_identity(
    secrets: &Secrets,
    roles: &BTreeSet<TalosRole>,
    lifetime: SignedDuration,
    now: Timestamp,
    rng: &mut impl CryptoRng,
) -> Result<ClientIdentity, PkiError> {
    let mut organizations: Vec<&str> = roles.iter().map(|role| role.as_str()).collect();
    organizations.sort_unstable();
    let subject = Name {
        organizations: &organizations,
        common_name: None,
    };
    issue(&secrets.os.issuer()?, subject, KeyUsage::Sign, lifetime, now, rng)
}

/// A certificate for the Kubernetes API with all rights, which no role binding can take away.
pub fn kubernetes_admin(
    secrets: &Secrets,
    lifetime: SignedDuration,
    now: Timestamp,
    rng: &mut impl CryptoRng,
) -> Result<ClientIdentity, PkiError> {
    let subject = Name {
        organizations: &["system:masters"],
        common_name: Some("admin"),
    };
    issue(
        &secrets.kubernetes.issuer()?,
        subject,
        KeyUsage::SignAndEncipher,
        lifetime,
        now,
        rng,
    )
}

fn issue(
    issuer: &Issuer,
    subject: Name<'_>,
    usage: KeyUsage,
    lifetime: SignedDuration,
    now: Timestamp,
    rng: &mut impl CryptoRng,
) -> Result<ClientIdentity, PkiError> {
    let key = issuer.matching_key(rng);
    let profile = Profile {
        subject,
        serial: serial(rng),
        not_before: now - BACKDATE,
        not_after: now + lifetime,
        usage,
        extended: Extended::Client,
        authority: None,
    };
    Ok(ClientIdentity {
        certificate: profile.issued_by(issuer, &key)?,
        key: key.to_pem()?,
        pkcs8_key: key.to_pkcs8_pem()?,
        expires: profile.not_after,
    })
}

/// Why a talosconfig or kubeconfig cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    #[error("the file is not YAML")]
    Syntax(#[source] SyntaxError),
    #[error("the file is not a {0}")]
    Shape(&'static str),
}

/// When the certificate inside a base64 field expires.
fn expiry_of(field: Option<&Node>) -> Option<Timestamp> {
    let pem = STANDARD.decode(field?.as_str()?).ok()?;
    Some(Certificate::from_pem(std::str::from_utf8(&pem).ok()?).ok()?.not_after)
}

fn encoded(pem: &str) -> Node {
    Node::text(STANDARD.encode(pem))
}
