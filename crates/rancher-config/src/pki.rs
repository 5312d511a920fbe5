//! Keys and certificates from a random stream and a time. The same arguments give the same bytes.

use std::str::FromStr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use p256::ecdsa::{DerSignature, SigningKey};
use p256::pkcs8::{DecodePrivateKey, EncodePrivateKey};
use rand::CryptoRng;
use rsa::pkcs1::{DecodeRsaPrivateKey, EncodeRsaPrivateKey};
use x509_cert::Certificate;
use x509_cert::builder::profile::BuilderProfile;
use x509_cert::builder::{Builder, CertificateBuilder};
use x509_cert::certificate::TbsCertificate;
use x509_cert::der::asn1::GeneralizedTime;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{DecodePem, Encode};
use x509_cert::ext::pkix::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, KeyUsages, SubjectKeyIdentifier,
};
use x509_cert::ext::{Extension, ToExtension};
use x509_cert::name::Name;
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::{SubjectPublicKeyInfo, SubjectPublicKeyInfoRef};
use x509_cert::time::{Time, Validity};
use zeroize::Zeroizing;

/// Certificates begin this long before they are made, so that a guest whose clock is behind accepts them.
const BACKDATE: SignedDuration = SignedDuration::from_hours(48);

const CLIENT_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");

/// Why a key or certificate cannot be made or read. Never carries the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PkiError {
    #[error("the PEM text cannot be read")]
    NotPem,
    #[error("the {0} key cannot be read")]
    Key(&'static str),
    #[error("the certificate cannot be read")]
    Certificate,
    #[error("the key does not belong to the certificate")]
    Mismatch,
    #[error("the certificate cannot be made")]
    Issue,
    #[error("key generation failed")]
    Generation,
}

/// The time at which secrets and certificates are made.
///
/// An operator's clock that is behind the program's own build is certainly wrong, and certificates made by it would not be valid in
/// the guests. So this type exists only for a clock that was compared with the build date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MintTime(Timestamp);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the clock says {now}, before this program was built ({built}): certificates made now would not be accepted")]
pub struct ClockError {
    pub now: Timestamp,
    pub built: Timestamp,
}

impl MintTime {
    pub fn new(now: Timestamp, built: Timestamp) -> Result<Self, ClockError> {
        if now < built {
            return Err(ClockError { now, built });
        }
        Ok(Self(now))
    }

    pub const fn now(self) -> Timestamp {
        self.0
    }
}

/// An EC P-256 key, the kind that both distributions make for their own authorities.
pub(crate) struct EcKey(p256::SecretKey);

impl EcKey {
    pub fn generate(rng: &mut impl CryptoRng) -> Self {
        let mut candidate = Zeroizing::new([0; 32]);
        loop {
            rng.fill_bytes(candidate.as_mut());
            // Fails for zero and for numbers beyond the group order: once in 2^32 keys.
            if let Ok(key) = p256::SecretKey::from_slice(candidate.as_ref()) {
                return Self(key);
            }
        }
    }

    pub fn from_pem(text: &str) -> Result<Self, PkiError> {
        let block = pem::parse(text).map_err(|_| PkiError::NotPem)?;
        let der = block.contents();
        let key = match block.tag() {
            "PRIVATE KEY" => p256::SecretKey::from_pkcs8_der(der).ok(),
            "EC PRIVATE KEY" => p256::SecretKey::from_sec1_der(der).ok(),
            _ => None,
        };
        key.map(Self).ok_or(PkiError::Key("EC P-256"))
    }

    /// PKCS#8, which Go and TLS libraries read without knowing the curve beforehand.
    pub fn to_pem(&self) -> Result<Zeroizing<String>, PkiError> {
        let der = self.0.to_pkcs8_der().map_err(|_| PkiError::Key("EC P-256"))?;
        Ok(Zeroizing::new(pem_text("PRIVATE KEY", der.as_bytes().to_vec())))
    }

    fn public(&self) -> Result<SubjectPublicKeyInfo<x509_cert::der::Any, x509_cert::der::asn1::BitString>, PkiError> {
        SubjectPublicKeyInfo::from_key(&self.0.public_key()).map_err(|_| PkiError::Issue)
    }

    /// Signs with nonces as in RFC 6979, so that certificates are reproducible.
    fn signer(&self) -> SigningKey {
        SigningKey::from(&self.0)
    }
}

/// An RSA key in the traditional PEM form. Takes a second or more of computing.
pub(crate) fn rsa_pem(rng: &mut impl CryptoRng, bits: usize) -> Result<Zeroizing<String>, PkiError> {
    let key = rsa::RsaPrivateKey::new(rng, bits).map_err(|_| PkiError::Generation)?;
    let der = key.to_pkcs1_der().map_err(|_| PkiError::Generation)?;
    Ok(Zeroizing::new(pem_text("RSA PRIVATE KEY", der.as_bytes().to_vec())))
}

/// Whether a PEM text holds a private key that signs service account tokens: RSA or EC.
pub(crate) fn check_service_key(text: &str) -> Result<(), PkiError> {
    let block = pem::parse(text).map_err(|_| PkiError::NotPem)?;
    if block.tag() == "RSA PRIVATE KEY" {
        let key = rsa::RsaPrivateKey::from_pkcs1_der(block.contents());
        return key.map(|_| ()).map_err(|_| PkiError::Key("RSA"));
    }
    EcKey::from_pem(text).map(|_| ())
}

/// Who a certificate is for: groups are organizations, the user is the common name.
pub(crate) struct Subject<'a> {
    pub user: &'a str,
    pub groups: &'a [&'a str],
}

impl Subject<'_> {
    fn name(&self) -> Result<Name, PkiError> {
        let groups = self.groups.iter().map(|group| format!("O={},", escaped(group)));
        let text = format!("{}CN={}", groups.collect::<String>(), escaped(self.user));
        Name::from_str(&text).map_err(|_| PkiError::Issue)
    }
}

/// Escapes what has a meaning in the text form of a name (RFC 4514).
fn escaped(text: &str) -> String {
    let special = |letter: char| ",+\"\\<>;=#/".contains(letter);
    text.chars()
        .flat_map(|letter| special(letter).then_some('\\').into_iter().chain([letter]))
        .collect()
}

/// A self-signed certificate authority.
pub(crate) fn authority(
    common_name: &str,
    key: &EcKey,
    lifetime: SignedDuration,
    at: MintTime,
    rng: &mut impl CryptoRng,
) -> Result<String, PkiError> {
    let subject = Subject {
        user: common_name,
        groups: &[],
    }
    .name()?;
    let profile = Profile {
        subject,
        issuer: None,
        kind: Kind::Authority,
    };
    build(profile, key, key, lifetime, at, rng)
}

/// An authority ready to sign: a certificate and the key that belongs to it.
pub(crate) struct Issuer {
    name: Name,
    key: EcKey,
    pub not_after: Timestamp,
}

impl Issuer {
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, PkiError> {
        let parsed = Certificate::from_pem(certificate).map_err(|_| PkiError::Certificate)?;
        let tbs = parsed.tbs_certificate();
        let key = EcKey::from_pem(key)?;
        let public = |info: &SubjectPublicKeyInfo<_, _>| info.to_der().map_err(|_| PkiError::Certificate);
        if public(&key.public()?)? != public(tbs.subject_public_key_info())? {
            return Err(PkiError::Mismatch);
        }
        let seconds = tbs.validity().not_after.to_unix_duration().as_secs();
        let seconds = i64::try_from(seconds).map_err(|_| PkiError::Certificate)?;
        Ok(Self {
            name: tbs.subject().clone(),
            key,
            not_after: Timestamp::from_second(seconds).map_err(|_| PkiError::Certificate)?,
        })
    }

    pub fn client_certificate(
        &self,
        subject: &Subject<'_>,
        key: &EcKey,
        lifetime: SignedDuration,
        at: MintTime,
        rng: &mut impl CryptoRng,
    ) -> Result<String, PkiError> {
        let profile = Profile {
            subject: subject.name()?,
            issuer: Some(self.name.clone()),
            kind: Kind::Client,
        };
        build(profile, key, &self.key, lifetime, at, rng)
    }
}

fn build(
    profile: Profile,
    key: &EcKey,
    signer: &EcKey,
    lifetime: SignedDuration,
    at: MintTime,
    rng: &mut impl CryptoRng,
) -> Result<String, PkiError> {
    let mut serial = [0; 16];
    rng.fill_bytes(&mut serial);
    // A serial is a positive number without leading zeros: clear the sign bit, set the next one.
    serial[0] = serial[0] & 0x3f | 0x40;
    let serial = SerialNumber::new(&serial).map_err(|_| PkiError::Issue)?;
    let validity = Validity::new(time(at.0 - BACKDATE)?, time(at.0 + lifetime)?);
    let builder = CertificateBuilder::new(profile, serial, validity, key.public()?).map_err(|_| PkiError::Issue)?;
    let certificate = builder
        .build::<_, DerSignature>(&signer.signer())
        .map_err(|_| PkiError::Issue)?;
    let der = certificate.to_der().map_err(|_| PkiError::Issue)?;
    Ok(pem_text("CERTIFICATE", der))
}

fn time(at: Timestamp) -> Result<Time, PkiError> {
    let seconds = u64::try_from(at.as_second()).map_err(|_| PkiError::Issue)?;
    let general = GeneralizedTime::from_unix_duration(Duration::from_secs(seconds)).map_err(|_| PkiError::Issue)?;
    Ok(Time::GeneralTime(general))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Authority,
    Client,
}

struct Profile {
    subject: Name,
    issuer: Option<Name>,
    kind: Kind,
}

impl BuilderProfile for Profile {
    fn get_issuer(&self, subject: &Name) -> Name {
        self.issuer.clone().unwrap_or_else(|| subject.clone())
    }

    fn get_subject(&self) -> Name {
        self.subject.clone()
    }

    fn build_extensions(
        &self,
        public: SubjectPublicKeyInfoRef<'_>,
        issuer: SubjectPublicKeyInfoRef<'_>,
        tbs: &TbsCertificate,
    ) -> x509_cert::builder::Result<Vec<Extension>> {
        let mut extensions: Vec<Extension> = Vec::new();
        let usage = match self.kind {
            Kind::Authority => KeyUsages::DigitalSignature | KeyUsages::KeyEncipherment | KeyUsages::KeyCertSign,
            Kind::Client => KeyUsages::DigitalSignature | KeyUsages::KeyEncipherment,
        };
        let subject = tbs.subject();
        extensions.push((&KeyUsage(usage)).to_extension(subject, &extensions)?);
        match self.kind {
            Kind::Authority => {
                let constraints = BasicConstraints {
                    ca: true,
                    path_len_constraint: None,
                };
                extensions.push((&constraints).to_extension(subject, &extensions)?);
                let id = SubjectKeyIdentifier::try_from(public)?;
                extensions.push((&id).to_extension(subject, &extensions)?);
            }
            Kind::Client => {
                let purposes = ExtendedKeyUsage(vec![CLIENT_AUTH]);
                extensions.push((&purposes).to_extension(subject, &extensions)?);
                let id = AuthorityKeyIdentifier::try_from(issuer)?;
                extensions.push((&id).to_extension(subject, &extensions)?);
            }
        }
        Ok(extensions)
    }
}

fn pem_text(label: &str, der: Vec<u8>) -> String {
    pem::encode_config(
        &pem::Pem::new(label, der),
        pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
    )
}
