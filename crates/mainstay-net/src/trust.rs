//! Whom to believe at the other end of a TLS connection.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};

use crate::env::Wall;
use crate::fingerprint::Fingerprint;
use crate::pem::{self, PemError};
use crate::secret::Secret;

/// Whom to believe.
#[derive(Clone, Debug)]
pub enum Trust {
    /// The system's certificate authorities, and perhaps one more.
    Roots { extra_ca_pem: Option<String> },
    /// These certificate authorities only; perhaps with a client certificate, perhaps under another name than the one dialled.
    Ca {
        ca_pem: String,
        identity: Option<Identity>,
        server_name: Option<String>,
    },
    /// Exactly this certificate, whatever it says about names and dates. The server still proves that it holds the key.
    Pin(Fingerprint),
    /// Any certificate. Only for a Talos node in maintenance mode, which has no identity yet.
    Nothing,
    /// No TLS at all.
    Plain,
}

/// A client certificate and its key.
#[derive(Clone, Debug)]
pub struct Identity {
    pub cert_pem: String,
    pub key_pem: Secret<String>,
}

/// Why a [`Trust`] cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("the {what} cannot be read")]
    Pem { what: &'static str, source: PemError },
    #[error("the {what} is not usable")]
    Unusable { what: &'static str, source: rustls::Error },
    #[error("the CA certificate is not usable")]
    Ca { source: rustls::client::VerifierBuilderError },
    #[error("`{0}` is neither a DNS name nor an address")]
    ServerName(String),
    #[error("this system has no certificate authorities; name a CA file")]
    NoRoots,
}

/// The one crypto provider. Never the process default: a second linked provider would turn that into a panic.
pub fn crypto_provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())))
}

/// A rustls server configuration builder with our provider and clock; certificates are the caller's choice.
pub fn server_config(wall: Wall) -> rustls::ConfigBuilder<rustls::ServerConfig, rustls::WantsVerifier> {
    rustls::ServerConfig::builder_with_details(crypto_provider(), Arc::new(wall))
        .with_safe_default_protocol_versions()
        .expect("ring supports TLS 1.2 and 1.3")
}

impl Trust {
    /// `None` for [`Trust::Plain`].
    pub(crate) fn client_config(&self, wall: Wall) -> Result<Option<ClientConfig>, TrustError> {
        let Some(verifier) = self.verifier()? else { return Ok(None) };
        let builder = ClientConfig::builder_with_details(crypto_provider(), Arc::new(wall))
            .with_safe_default_protocol_versions()
            .map_err(|source| TrustError::Unusable {
                what: "crypto provider",
                source,
            })?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match self {
            Self::Ca {
                identity: Some(identity),
                ..
            } => {
                let (chain, key) = identity.load()?;
                let unusable = |source| TrustError::Unusable {
                    what: "client certificate",
                    source,
                };
                builder.with_client_auth_cert(chain, key).map_err(unusable)?
            }
            _ => builder.with_no_client_auth(),
        };
        // A resumed session skips the certificate check: a renewed, replaced or expired certificate would go unnoticed.
        config.resumption = Resumption::disabled();
        Ok(Some(config))
    }

    fn verifier(&self) -> Result<Option<Verifier>, TrustError> {
        let rule = match self {
            Self::Plain => return Ok(None),
            Self::Nothing => Rule::Any,
            Self::Pin(pin) => Rule::Pin(*pin),
            Self::Ca { ca_pem, .. } => Rule::Ca(web_pki(ca_roots(ca_pem)?)?),
            Self::Roots { extra_ca_pem } => Rule::Ca(web_pki(system_roots(extra_ca_pem.as_deref())?)?),
        };
        Ok(Some(Verifier {
            rule,
            provider: crypto_provider(),
        }))
    }

    /// The name to check the certificate against, where it is not the dialled one.
    pub(crate) fn server_name(&self) -> Result<Option<ServerName<'static>>, TrustError> {
        let Self::Ca {
            server_name: Some(name), ..
        } = self
        else {
            return Ok(None);
        };
        ServerName::try_from(name.clone())
            .map(Some)
            .map_err(|_| TrustError::ServerName(name.clone()))
    }
}

impl Identity {
    fn load(&self) -> Result<(Vec<CertificateDer<'static>>, rustls::pki_types::PrivateKeyDer<'static>), TrustError> {
        let chain = pem::certificates(&self.cert_pem).map_err(|source| TrustError::Pem {
            what: "client certificate",
            source,
        })?;
        let key = pem::private_key(self.key_pem.expose()).map_err(|source| TrustError::Pem {
            what: "client key",
            source,
        })?;
        Ok((chain, key))
    }
}

fn ca_roots(ca_pem: &str) -> Result<RootCertStore, TrustError> {
    let mut roots = RootCertStore::empty();
    add_ca(&mut roots, ca_pem)?;
    Ok(roots)
}

fn add_ca(roots: &mut RootCertStore, ca_pem: &str) -> Result<(), TrustError> {
    let what = "CA certificate";
    for certificate in pem::certificates(ca_pem).map_err(|source| TrustError::Pem { what, source })? {
        roots
            .add(certificate)
            .map_err(|source| TrustError::Unusable { what, source })?;
    }
    Ok(())
}

fn system_roots(extra_ca_pem: Option<&str>) -> Result<RootCertStore, TrustError> {
    // Reading and parsing some 150 files takes milliseconds, and they do not change under a running program.
    static SYSTEM: OnceLock<RootCertStore> = OnceLock::new();
    let system = SYSTEM.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    });
    let mut roots = system.clone();
    if let Some(extra) = extra_ca_pem {
        add_ca(&mut roots, extra)?;
    }
    if roots.is_empty() {
        Err(TrustError::NoRoots)
    } else {
        Ok(roots)
    }
}

fn web_pki(roots: RootCertStore) -> Result<Arc<WebPkiServerVerifier>, TrustError> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), crypto_provider())
        .build()
        .map_err(|source| TrustError::Ca { source })
}

#[derive(Debug)]
enum Rule {
    Ca(Arc<WebPkiServerVerifier>),
    Pin(Fingerprint),
    Any,
}

/// Judges the certificate by the rule. Handshake signatures are verified whatever the rule: a certificate alone proves nothing.
#[derive(Debug)]
struct Verifier {
    rule: Rule,
    provider: Arc<CryptoProvider>,
}

/// What the verifier saw and why it said no: rustls' own error does not name the certificate.
#[derive(Debug)]
pub(crate) struct Rejection {
    pub(crate) seen: Fingerprint,
    pub(crate) cause: Reason,
}

#[derive(Debug)]
pub(crate) enum Reason {
    WrongPin { expected: Fingerprint },
    Invalid(rustls::Error),
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "certificate {} rejected", self.seen)
    }
}

impl std::error::Error for Rejection {}

impl Rejection {
    fn into_rustls(self) -> rustls::Error {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(self))))
    }

    pub(crate) fn find(error: &rustls::Error) -> Option<&Self> {
        match error {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => inner.downcast_ref(),
            _ => None,
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let seen = Fingerprint::of(leaf);
        let reject = |cause| Err(Rejection { seen, cause }.into_rustls());
        match &self.rule {
            Rule::Any => Ok(ServerCertVerified::assertion()),
            Rule::Pin(expected) if *expected == seen => Ok(ServerCertVerified::assertion()),
            Rule::Pin(expected) => reject(Reason::WrongPin { expected: *expected }),
            Rule::Ca(verifier) => verifier
                .verify_server_cert(leaf, intermediates, name, ocsp, now)
                .or_else(|cause| reject(Reason::Invalid(cause))),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
