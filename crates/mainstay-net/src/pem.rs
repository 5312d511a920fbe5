//! Certificates and keys from PEM text, with the labels that Talos, OpenSSL and Proxmox VE write.

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};

/// Why PEM text cannot be used. The text itself is never quoted: it may hold a key.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    // `pem`'s own error quotes parts of what it read.
    #[error("the text is not PEM")]
    Malformed,
    #[error("there is no certificate in it")]
    NoCertificate,
    #[error("there is no private key in it")]
    NoKey,
}

/// All certificates, in order.
pub fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let found: Vec<_> = parse(text)?
        .into_iter()
        .filter(|block| block.tag() == "CERTIFICATE")
        .map(|block| CertificateDer::from(block.into_contents()))
        .collect();
    if found.is_empty() {
        Err(PemError::NoCertificate)
    } else {
        Ok(found)
    }
}

/// The first private key, whatever its encoding.
pub fn private_key(text: &str) -> Result<PrivateKeyDer<'static>, PemError> {
    parse(text)?.into_iter().find_map(key_of).ok_or(PemError::NoKey)
}

fn parse(text: &str) -> Result<Vec<::pem::Pem>, PemError> {
    ::pem::parse_many(text).map_err(|_| PemError::Malformed)
}

fn key_of(block: ::pem::Pem) -> Option<PrivateKeyDer<'static>> {
    let label = block.tag().to_owned();
    let der = block.into_contents();
    Some(match label.as_str() {
        // Talos' own label for Ed25519; PKCS#8 inside.
        "PRIVATE KEY" | "ED25519 PRIVATE KEY" => PrivatePkcs8KeyDer::from(der).into(),
        "EC PRIVATE KEY" => PrivateSec1KeyDer::from(der).into(),
        "RSA PRIVATE KEY" => PrivatePkcs1KeyDer::from(der).into(),
        _ => return None,
    })
}
