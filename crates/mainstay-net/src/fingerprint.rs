//! The SHA-256 fingerprint of a certificate, in the form Proxmox VE and OpenSSL print.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// SHA-256 over a certificate's DER, printed as `9A:07:…`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate).into())
    }

    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, byte) in self.0.iter().enumerate() {
            let colon = if n == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02X}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a SHA-256 fingerprint: 32 bytes in hexadecimal are expected, colons optional")]
pub struct FingerprintError(String);

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let fault = || FingerprintError(text.to_owned());
        let digits: Vec<u8> = text.trim().bytes().filter(|byte| *byte != b':').collect();
        if digits.len() != 64 {
            return Err(fault());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let value = |digit: u8| (digit as char).to_digit(16).ok_or_else(fault);
            *byte = u8::try_from(value(pair[0])? * 16 + value(pair[1])?).map_err(|_| fault())?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_with_or_without_colons_in_either_case() {
        let print = Fingerprint::of(&CertificateDer::from(b"abc".to_vec()));
        let text = print.to_string();
        assert!(text.starts_with("BA:78:16:BF"), "{text}");
        for form in [text.clone(), text.to_lowercase(), text.replace(':', "")] {
            assert_eq!(form.parse::<Fingerprint>().unwrap(), print);
        }
    }

    #[test]
    fn a_sha1_fingerprint_or_garbage_is_refused() {
        for text in ["", "9A:07", &"AA:".repeat(20), &"zz".repeat(32)] {
            assert!(text.parse::<Fingerprint>().is_err(), "{text}");
        }
    }
}
