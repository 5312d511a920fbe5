//! Client certificates, made offline from the secrets.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use rand::CryptoRng;
use zeroize::Zeroizing;

use crate::pki::{EcKey, MintTime, PkiError, Subject};
use crate::secrets::Secrets;

/// A year, as the distributions give their own client certificates.
pub const DEFAULT_LIFETIME: SignedDuration = SignedDuration::from_hours(24 * 365);

/// A client certificate with its key (PKCS#8), both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    pub certificate: String,
    pub key: Zeroizing<String>,
    pub expires: Timestamp,
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientIdentity")
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// A certificate for the Kubernetes API with all rights, named as the distributions name their own.
pub fn kubernetes_admin(
    secrets: &Secrets,
    lifetime: SignedDuration,
    at: MintTime,
    rng: &mut impl CryptoRng,
) -> Result<ClientIdentity, PkiError> {
    let subject = Subject {
        user: "system:admin",
        groups: &["system:masters"],
    };
    issue(secrets, &subject, lifetime, at, rng)
}

/// A certificate that opens every path of the supervisor and the Kubernetes API.
///
/// Supervisor requests with a password cost the server about forty times the computing time of requests with a certificate.
pub fn supervisor_client(
    secrets: &Secrets,
    lifetime: SignedDuration,
    at: MintTime,
    rng: &mut impl CryptoRng,
) -> Result<ClientIdentity, PkiError> {
    let groups = secrets.distro().supervisor_groups();
    let subject = Subject {
        user: "system:supervisor-client",
        groups: &groups.each_ref().map(String::as_str),
    };
    issue(secrets, &subject, lifetime, at, rng)
}

fn issue(
    secrets: &Secrets,
    subject: &Subject<'_>,
    lifetime: SignedDuration,
    at: MintTime,
    rng: &mut impl CryptoRng,
) -> Result<ClientIdentity, PkiError> {
    let issuer = secrets.client_issuer()?;
    let key = EcKey::generate(rng);
    // A certificate that outlives its authority would be refused before the date that it shows.
    let lifetime = lifetime.min(issuer.not_after.duration_since(at.now()));
    Ok(ClientIdentity {
        certificate: issuer.client_certificate(subject, &key, lifetime, at, rng)?,
        key: key.to_pem()?,
        expires: at.now() + lifetime,
    })
}
