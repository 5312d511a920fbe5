//! Private keys and certificates in the encodings Talos uses, from a random stream and a time.

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
