//! Private keys and certificates in the encodings Talos uses, from a random stream and a time.
//!
//! Not built with `x509-cert`: Talos keeps Ed25519 keys under a PEM label of its own, and one bundle mixes Ed25519, EC and RSA. Signers
//! and labels would have to be adapted to that crate, and only the certificate body in `cert.rs` would become shorter. RKE2 and k3s have
//! one key type and standard labels, so `rancher-config` uses the crate.

mod cert;
mod key;

pub use cert::{Certificate, Extended, Issuer, KeyUsage, Name, Profile};
pub use key::PrivateKey;

/// Why a PEM text is not the key or certificate it should be. Never carries the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PkiError {
    #[error("failed to parse PEM block")]
    NotPem,
    #[error("unsupported key type: {0:?}")]
    KeyLabel(String),
    #[error("the {0} key cannot be read")]
    Key(&'static str),
    #[error("the certificate cannot be read")]
    Certificate,
    #[error("the key does not belong to the certificate")]
    Mismatch,
    #[error("an RSA authority cannot sign here")]
    RsaIssuer,
    #[error("key generation failed")]
    Generation,
}

fn pem_text(label: &str, der: Vec<u8>) -> String {
    pem::encode_config(
        &pem::Pem::new(label, der),
        pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
    )
}
