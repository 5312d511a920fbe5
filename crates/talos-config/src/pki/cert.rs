use jiff::{Timestamp, tz::TimeZone};
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, X509Certificate};
use yasna::models::ObjectIdentifier;
use yasna::{DERWriter, DERWriterSeq, Tag};

use super::{PkiError, PrivateKey, pem_text};

pub(super) mod oid {
    use yasna::models::ObjectIdentifier;

    pub const ED25519: &[u64] = &[1, 3, 101, 112];
    pub const EC_PUBLIC_KEY: &[u64] = &[1, 2, 840, 10045, 2, 1];
    pub const PRIME256V1: &[u64] = &[1, 2, 840, 10045, 3, 1, 7];
    pub const ECDSA_SHA256: &[u64] = &[1, 2, 840, 10045, 4, 3, 2];
    pub const ORGANIZATION: &[u64] = &[2, 5, 4, 10];
    pub const COMMON_NAME: &[u64] = &[2, 5, 4, 3];
    pub const KEY_USAGE: &[u64] = &[2, 5, 29, 15];
    pub const EXTENDED_KEY_USAGE: &[u64] = &[2, 5, 29, 37];
    pub const BASIC_CONSTRAINTS: &[u64] = &[2, 5, 29, 19];
    pub const SUBJECT_KEY_ID: &[u64] = &[2, 5, 29, 14];
    pub const AUTHORITY_KEY_ID: &[u64] = &[2, 5, 29, 35];
    pub const SERVER_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 1];
    pub const CLIENT_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 2];

    pub fn of(parts: &[u64]) -> ObjectIdentifier {
        ObjectIdentifier::from_slice(parts)
    }
}

const UTC_TIME: u64 = 23;
const GENERALIZED_TIME: u64 = 24;

/// A subject: organizations share one set, as Go writes them, then the common name.
#[derive(Debug, Clone, Copy, Default)]
pub struct Name<'a> {
    pub organizations: &'a [&'a str],
    pub common_name: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyUsage {
    SignAndIssue,
    Sign,
    SignAndEncipher,
}

impl KeyUsage {
    /// The bit string and how many of its bits count.
    fn bits(self) -> (u8, usize) {
        match self {
            Self::SignAndIssue => (0b1000_0100, 6),
            Self::Sign => (0b1000_0000, 1),
            Self::SignAndEncipher => (0b1010_0000, 3),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extended {
    Client,
    ServerAndClient,
}

impl Extended {
    fn oids(self) -> &'static [&'static [u64]] {
        match self {
            Self::Client => &[oid::CLIENT_AUTH],
            Self::ServerAndClient => &[oid::SERVER_AUTH, oid::CLIENT_AUTH],
        }
    }
}

/// Everything of a certificate but the keys.
pub struct Profile<'a> {
    pub subject: Name<'a>,
    pub serial: [u8; 16],
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub usage: KeyUsage,
    pub extended: Extended,
    /// Given for an authority: it then may issue, and children point to this identifier.
    pub authority: Option<[u8; 20]>,
}

impl Profile<'_> {
    /// Signed by its own key.
    pub fn self_signed(&self, key: &PrivateKey) -> Result<String, PkiError> {
        let name = name_der(self.subject);
        self.sign(&key.public_info()?, &name, None, key)
    }

    /// Signed by an authority.
    pub fn issued_by(&self, issuer: &Issuer, subject_key: &PrivateKey) -> Result<String, PkiError> {
        self.sign(
            &subject_key.public_info()?,
            &issuer.name,
            issuer.key_id.as_deref(),
            &issuer.key,
        )
    }

    fn sign(&self, public: &[u8], issuer: &[u8], issuer_id: Option<&[u8]>, key: &PrivateKey) -> Result<String, PkiError> {
        let algorithm = key.signature_algorithm();
        let body = yasna::construct_der(|writer| {
            writer.write_sequence(|writer| {
                writer.next().write_tagged(Tag::context(0), |writer| writer.write_u8(2));
                writer.next().write_bigint_bytes(&self.serial, true);
                write_algorithm(writer.next(), algorithm);
                writer.next().write_der(issuer);
                writer.next().write_sequence(|writer| {
                    write_time(writer.next(), self.not_before);
                    write_time(writer.next(), self.not_after);
                });
                writer.next().write_der(&name_der(self.subject));
                writer.next().write_der(public);
                writer.next().write_tagged(Tag::context(3), |writer| {
                    writer.write_sequence(|writer| self.write_extensions(writer, issuer_id));
                });
            });
        });
        let signature = key.sign(&body)?;
        let der = yasna::construct_der(|writer| {
            writer.write_sequence(|writer| {
                writer.next().write_der(&body);
                write_algorithm(writer.next(), algorithm);
                writer.next().write_bitvec_bytes(&signature, signature.len() * 8);
            });
        });
        Ok(pem_text("CERTIFICATE", der))
    }

    fn write_extensions(&self, writer: &mut DERWriterSeq, issuer_id: Option<&[u8]>) {
        let (bits, count) = self.usage.bits();
        write_extension(writer, oid::KEY_USAGE, true, |writer| {
            writer.write_bitvec_bytes(&[bits], count);
        });
        write_extension(writer, oid::EXTENDED_KEY_USAGE, false, |writer| {
            writer.write_sequence(|writer| {
                for purpose in self.extended.oids() {
                    writer.next().write_oid(&oid::of(purpose));
                }
            });
        });
        if let Some(id) = &self.authority {
            write_extension(writer, oid::BASIC_CONSTRAINTS, true, |writer| {
                writer.write_sequence(|writer| writer.next().write_bool(true));
            });
            write_extension(writer, oid::SUBJECT_KEY_ID, false, |writer| writer.write_bytes(id));
        }
        if let Some(id) = issuer_id {
            write_extension(writer, oid::AUTHORITY_KEY_ID, false, |writer| {
                writer.write_sequence(|writer| {
                    writer
                        .next()
                        .write_tagged_implicit(Tag::context(0), |writer| writer.write_bytes(id));
                });
            });
        }
    }
}

fn write_extension(writer: &mut DERWriterSeq, id: &[u64], critical: bool, content: impl FnOnce(DERWriter)) {
    writer.next().write_sequence(|writer| {
        writer.next().write_oid(&oid::of(id));
        if critical {
            writer.next().write_bool(true);
        }
        writer.next().write_bytes(&yasna::construct_der(content));
    });
}

fn write_algorithm(writer: DERWriter, algorithm: &[u64]) {
    writer.write_sequence(|writer| writer.next().write_oid(&oid::of(algorithm)));
}

/// Two-digit years up to 2049, four digits from then on, as RFC 5280 has it.
fn write_time(writer: DERWriter, at: Timestamp) {
    let civil = at.to_zoned(TimeZone::UTC).datetime();
    let (tag, format) = if civil.year() < 2050 {
        (UTC_TIME, "%y%m%d%H%M%SZ")
    } else {
        (GENERALIZED_TIME, "%Y%m%d%H%M%SZ")
    };
    let text = civil.strftime(format).to_string();
    let tag = Tag {
        tag_class: yasna::TagClass::Universal,
        tag_number: tag,
    };
    writer.write_tagged_implicit(tag, |writer| writer.write_bytes(text.as_bytes()));
}

fn name_der(name: Name<'_>) -> Vec<u8> {
    yasna::construct_der(|writer| {
        writer.write_sequence(|writer| {
            if !name.organizations.is_empty() {
                writer.next().write_set_of(|writer| {
                    for organization in name.organizations {
                        write_attribute(writer.next(), &oid::of(oid::ORGANIZATION), organization);
                    }
                });
            }
            if let Some(common_name) = name.common_name {
                writer
                    .next()
                    .write_set_of(|writer| write_attribute(writer.next(), &oid::of(oid::COMMON_NAME), common_name));
            }
        });
    })
}

fn write_attribute(writer: DERWriter, kind: &ObjectIdentifier, value: &str) {
    writer.write_sequence(|writer| {
        writer.next().write_oid(kind);
        let printable = |byte: u8| byte.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&byte);
        if value.bytes().all(printable) {
            writer.next().write_printable_string(value);
        } else {
            writer.next().write_utf8_string(value);
        }
    });
}

/// What we read of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    name: Vec<u8>,
    key_id: Option<Vec<u8>>,
    public_info: Vec<u8>,
}

impl Certificate {
    pub fn from_pem(text: &str) -> Result<Self, PkiError> {
        let block = pem::parse(text).map_err(|_| PkiError::NotPem)?;
        if block.tag() != "CERTIFICATE" {
            return Err(PkiError::Certificate);
        }
        let (_, parsed) = X509Certificate::from_der(block.contents()).map_err(|_| PkiError::Certificate)?;
        let key_id = parsed
            .extensions()
            .iter()
            .find_map(|extension| match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
                _ => None,
            });
        let at = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).map_err(|_| PkiError::Certificate);
        Ok(Self {
            not_before: at(parsed.validity().not_before)?,
            not_after: at(parsed.validity().not_after)?,
            name: parsed.subject().as_raw().to_vec(),
            key_id,
            public_info: parsed.public_key().raw.to_vec(),
        })
    }
}

/// An authority ready to sign: a certificate and the key that belongs to it.
pub struct Issuer {
    name: Vec<u8>,
    key_id: Option<Vec<u8>>,
    key: PrivateKey,
}

impl Issuer {
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, PkiError> {
        let certificate = Certificate::from_pem(certificate)?;
        let key = PrivateKey::from_pem(key)?;
        if key.public_info()? != certificate.public_info {
            return Err(PkiError::Mismatch);
        }
        Ok(Self {
            name: certificate.name,
            key_id: certificate.key_id,
            key,
        })
    }

    /// Leaves have a key of the same kind as their authority.
    pub fn matching_key(&self, rng: &mut impl rand::CryptoRng) -> PrivateKey {
        match self.key {
            PrivateKey::Ed25519(_) => PrivateKey::ed25519(rng),
            PrivateKey::P256(_) | PrivateKey::Rsa(_) => PrivateKey::p256(rng),
        }
    }
}
