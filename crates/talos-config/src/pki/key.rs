use p256::ecdsa::signature::Signer;
use p256::elliptic_curve::sec1::ToSec1Point;
use p256::pkcs8::{DecodePrivateKey, EncodePrivateKey};
use rand::CryptoRng;
use ring::signature::KeyPair;
use rsa::pkcs1::{DecodeRsaPrivateKey, EncodeRsaPrivateKey};
use yasna::Tag;
use zeroize::{Zeroize, Zeroizing};

use super::{PkiError, pem_text};
use crate::pki::cert::oid;

/// PKCS#8 version 1 around a 32-byte Ed25519 seed: OpenSSL 3.0 does not read version 2, which carries the public key too.
const ED25519_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

const RSA_BITS: usize = 4096;

/// A private key of one of the three kinds found in a secrets bundle.
pub enum PrivateKey {
    Ed25519(Zeroizing<[u8; 32]>),
    P256(p256::SecretKey),
    Rsa(Box<rsa::RsaPrivateKey>),
}

impl PrivateKey {
    pub fn ed25519(rng: &mut impl CryptoRng) -> Self {
        let mut seed = Zeroizing::new([0; 32]);
        rng.fill_bytes(seed.as_mut());
        Self::Ed25519(seed)
    }

    pub fn p256(rng: &mut impl CryptoRng) -> Self {
        let mut candidate = Zeroizing::new([0; 32]);
        loop {
            rng.fill_bytes(candidate.as_mut());
            // Fails for zero and for numbers beyond the group order: once in 2^32 keys.
            if let Ok(key) = p256::SecretKey::from_slice(candidate.as_ref()) {
                return Self::P256(key);
            }
        }
    }

    /// Takes a second or more.
    pub fn rsa4096(rng: &mut impl CryptoRng) -> Result<Self, PkiError> {
        let key = rsa::RsaPrivateKey::new(rng, RSA_BITS).map_err(|_| PkiError::Generation)?;
        Ok(Self::Rsa(Box::new(key)))
    }

    pub fn from_pem(text: &str) -> Result<Self, PkiError> {
        let block = pem::parse(text).map_err(|_| PkiError::NotPem)?;
        let der = block.contents();
        match block.tag() {
            "ED25519 PRIVATE KEY" => ed25519_from_pkcs8(der).ok_or(PkiError::Key("Ed25519")),
            "EC PRIVATE KEY" => p256::SecretKey::from_sec1_der(der)
                .map(Self::P256)
                .map_err(|_| PkiError::Key("EC P-256")),
            "RSA PRIVATE KEY" => rsa_or(rsa::RsaPrivateKey::from_pkcs1_der(der).ok()),
            "PRIVATE KEY" => Self::from_pkcs8(der),
            label => Err(PkiError::KeyLabel(label.to_owned())),
        }
    }

    fn from_pkcs8(der: &[u8]) -> Result<Self, PkiError> {
        if let Some(key) = ed25519_from_pkcs8(der) {
            return Ok(key);
        }
        if let Ok(key) = p256::SecretKey::from_pkcs8_der(der) {
            return Ok(Self::P256(key));
        }
        rsa_or(rsa::RsaPrivateKey::from_pkcs8_der(der).ok())
    }

    /// PEM with the label that Talos dispatches on.
    pub fn to_pem(&self) -> Result<Zeroizing<String>, PkiError> {
        let (label, der) = match self {
            Self::Ed25519(seed) => ("ED25519 PRIVATE KEY", [ED25519_PREFIX.as_slice(), seed.as_ref()].concat()),
            Self::P256(key) => ("EC PRIVATE KEY", sec1_with_curve(key)),
            Self::Rsa(key) => {
                let document = key.to_pkcs1_der().map_err(|_| PkiError::Key("RSA"))?;
                ("RSA PRIVATE KEY", document.as_bytes().to_vec())
            }
        };
        Ok(Zeroizing::new(pem_text(label, der)))
    }

    /// PEM with the label that TLS libraries expect.
    pub fn to_pkcs8_pem(&self) -> Result<Zeroizing<String>, PkiError> {
        let der = match self {
            Self::Ed25519(seed) => [ED25519_PREFIX.as_slice(), seed.as_ref()].concat(),
            Self::P256(key) => key.to_pkcs8_der().map_err(|_| PkiError::Key("EC P-256"))?.as_bytes().to_vec(),
            Self::Rsa(key) => key.to_pkcs8_der().map_err(|_| PkiError::Key("RSA"))?.as_bytes().to_vec(),
        };
        Ok(Zeroizing::new(pem_text("PRIVATE KEY", der)))
    }

    /// The public half as it appears in a certificate.
    pub fn public_info(&self) -> Result<Vec<u8>, PkiError> {
        match self {
            Self::Ed25519(seed) => Ok(subject_public_key(&[oid::ED25519], ring_pair(seed)?.public_key().as_ref())),
            Self::P256(key) => Ok(subject_public_key(&[oid::EC_PUBLIC_KEY, oid::PRIME256V1], &point(key))),
            Self::Rsa(key) => {
                use rsa::pkcs8::EncodePublicKey;
                let document = key.to_public_key().to_public_key_der().map_err(|_| PkiError::Key("RSA"))?;
                Ok(document.as_bytes().to_vec())
            }
        }
    }

    /// Deterministic in all cases: Ed25519 by design, ECDSA with nonces as in RFC 6979. RSA keys sign no certificate here.
    pub(super) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, PkiError> {
        match self {
            Self::Ed25519(seed) => Ok(ring_pair(seed)?.sign(message).as_ref().to_vec()),
            Self::P256(key) => {
                let signature: p256::ecdsa::Signature = p256::ecdsa::SigningKey::from(key).sign(message);
                Ok(signature.to_der().as_bytes().to_vec())
            }
            Self::Rsa(_) => Err(PkiError::RsaIssuer),
        }
    }

    pub(super) fn signature_algorithm(&self) -> &'static [u64] {
        match self {
            Self::Ed25519(_) => oid::ED25519,
            Self::P256(_) | Self::Rsa(_) => oid::ECDSA_SHA256,
        }
    }
}

fn ring_pair(seed: &[u8; 32]) -> Result<ring::signature::Ed25519KeyPair, PkiError> {
    ring::signature::Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| PkiError::Key("Ed25519"))
}

fn rsa_or(key: Option<rsa::RsaPrivateKey>) -> Result<PrivateKey, PkiError> {
    key.map(|key| PrivateKey::Rsa(Box::new(key))).ok_or(PkiError::Key("RSA"))
}

/// Both PKCS#8 versions hold the seed as the nested octet string `04 22 04 20` after the algorithm.
fn ed25519_from_pkcs8(der: &[u8]) -> Option<PrivateKey> {
    let algorithm_and_wrapper = &ED25519_PREFIX[5..];
    let (head, rest) = (der.get(5..16)?, der.get(16..48)?);
    let mut seed: [u8; 32] = rest.try_into().ok()?;
    let key = PrivateKey::Ed25519(Zeroizing::new(seed));
    seed.zeroize();
    (head == algorithm_and_wrapper).then_some(key)
}

fn point(key: &p256::SecretKey) -> Vec<u8> {
    key.public_key().to_sec1_point(false).as_bytes().to_vec()
}

/// SEC1 with the curve's name inside, without which Go refuses to guess the curve.
fn sec1_with_curve(key: &p256::SecretKey) -> Vec<u8> {
    let public = point(key);
    let secret = Zeroizing::new(key.to_bytes().to_vec());
    yasna::construct_der(|writer| {
        writer.write_sequence(|writer| {
            writer.next().write_u8(1);
            writer.next().write_bytes(&secret);
            writer
                .next()
                .write_tagged(Tag::context(0), |writer| writer.write_oid(&oid::of(oid::PRIME256V1)));
            writer
                .next()
                .write_tagged(Tag::context(1), |writer| writer.write_bitvec_bytes(&public, public.len() * 8));
        });
    })
}

fn subject_public_key(algorithm: &[&[u64]], key: &[u8]) -> Vec<u8> {
    yasna::construct_der(|writer| {
        writer.write_sequence(|writer| {
            writer.next().write_sequence(|writer| {
                for part in algorithm {
                    writer.next().write_oid(&oid::of(part));
                }
            });
            writer.next().write_bitvec_bytes(key, key.len() * 8);
        });
    })
}
