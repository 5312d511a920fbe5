//! Certificates of the simulated world: what the nodes make for themselves, and what they read in their clients'.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_net::{Entropy, Wall};
use rand::Rng;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::prelude::FromDer;

const DAY: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum PkiError {
    #[error("the certificate cannot be read")]
    Certificate,
    #[error("the private key cannot be read")]
    Key,
    #[error("the certificate cannot be made")]
    Issue(#[source] Arc<rcgen::Error>),
}

impl From<rcgen::Error> for PkiError {
    fn from(error: rcgen::Error) -> Self {
        Self::Issue(Arc::new(error))
    }
}

/// A certificate authority whose key we have.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub certificate: CertificateDer<'static>,
}

/// A certificate and its key.
pub(crate) struct Pair {
    pub certificate: CertificateDer<'static>,
    key: KeyPair,
}

impl Pair {
    pub fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()))
    }

    pub fn certificate_pem(&self) -> String {
        pem_of(&self.certificate)
    }

    /// As Talos labels Ed25519 keys; others as PKCS#8.
    pub fn key_pem(&self) -> String {
        let label = if self.key.algorithm() == &rcgen::PKCS_ED25519 {
            "ED25519 PRIVATE KEY"
        } else {
            "PRIVATE KEY"
        };
        pem::encode_config(
            &pem::Pem::new(label, self.key.serialize_der()),
            pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
        )
    }
}

pub(crate) fn pem_of(certificate: &[u8]) -> String {
    pem::encode_config(
        &pem::Pem::new("CERTIFICATE", certificate),
        pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
    )
}

/// What a new certificate says.
pub(crate) struct Request<'a> {
    pub common_name: &'a str,
    pub organizations: &'a [String],
    pub names: Vec<String>,
    pub addresses: Vec<IpAddr>,
    pub server: bool,
    pub not_before: Timestamp,
    pub life: Duration,
}

impl<'a> Request<'a> {
    pub fn server(common_name: &'a str, wall: &Wall) -> Self {
        let (names, addresses) = (Vec::new(), Vec::new());
        Self {
            common_name,
            organizations: &[],
            names,
            addresses,
            server: true,
            not_before: wall.now(),
            life: DAY,
        }
    }

    pub fn client(common_name: &'a str, organizations: &'a [String], not_before: Timestamp, life: Duration) -> Self {
        Self {
            common_name,
            organizations,
            names: Vec::new(),
            addresses: Vec::new(),
            server: false,
            not_before,
            life,
        }
    }

    fn params(&self) -> Result<CertificateParams, PkiError> {
        let mut params = CertificateParams::new(Vec::new())?;
        let mut subject = DistinguishedName::new();
        // rcgen keeps one value per attribute type, hence roles beyond the first go into further types of the same OID.
        for (index, organization) in self.organizations.iter().enumerate() {
            let kind = if index == 0 {
                DnType::OrganizationName
            } else {
                DnType::CustomDnType(vec![2, 5, 4, 10])
            };
            subject.push(kind, organization.as_str());
        }
        if !self.common_name.is_empty() {
            subject.push(DnType::CommonName, self.common_name);
        }
        params.distinguished_name = subject;
        for name in &self.names {
            params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
        }
        params
            .subject_alt_names
            .extend(self.addresses.iter().copied().map(SanType::IpAddress));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![if self.server {
            ExtendedKeyUsagePurpose::ServerAuth
        } else {
            ExtendedKeyUsagePurpose::ClientAuth
        }];
        params.use_authority_key_identifier_extension = true;
        params.not_before = date(self.not_before)?;
        params.not_after = date(self.not_before.checked_add(self.life).unwrap_or(Timestamp::MAX))?;
        Ok(params)
    }
}

fn date(at: Timestamp) -> Result<time::OffsetDateTime, PkiError> {
    time::OffsetDateTime::from_unix_timestamp(at.as_second()).map_err(|_| PkiError::Certificate)
}

/// An Ed25519 key that depends on its entropy alone.
pub(crate) fn ed25519(entropy: &Entropy) -> Result<KeyPair, PkiError> {
    let mut der = hex::decode("302e020100300506032b657004220420").map_err(|_| PkiError::Key)?;
    let mut seed = [0; 32];
    entropy.rng().fill_bytes(&mut seed);
    der.extend_from_slice(&seed);
    read_key(der)
}

fn read_key(pkcs8: Vec<u8>) -> Result<KeyPair, PkiError> {
    KeyPair::try_from(pkcs8).map_err(|_| PkiError::Key)
}

impl Authority {
    /// A new authority that signs itself, as every boot in maintenance mode makes one.
    pub fn self_signed(entropy: &Entropy, wall: &Wall) -> Result<Self, PkiError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = DistinguishedName::new();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
        params.not_before = date(wall.now())?;
        params.not_after = date(wall.now().checked_add(365 * DAY).unwrap_or(Timestamp::MAX))?;
        let key = ed25519(entropy)?;
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate,
        })
    }

    /// PEM texts of a new authority with a name, for ten years: certificate and key.
    pub fn generate(common_name: &str, entropy: &Entropy, wall: &Wall) -> Result<(String, String), PkiError> {
        let mut params = CertificateParams::new(Vec::new())?;
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, common_name);
        params.distinguished_name = subject;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
        params.not_before = date(wall.now())?;
        params.not_after = date(wall.now().checked_add(3650 * DAY).unwrap_or(Timestamp::MAX))?;
        let key = ed25519(entropy)?;
        let certificate = params.self_signed(&key)?.der().clone();
        Ok((pem_of(&certificate), key.serialize_pem()))
    }

    /// From the PEM texts of a machine config; keys may be labelled as Talos labels them.
    pub fn read(certificate: &str, key: &str) -> Result<Self, PkiError> {
        let certificate = CertificateDer::from(pem::parse(certificate).map_err(|_| PkiError::Certificate)?.into_contents());
        let key = pem::parse(key).map_err(|_| PkiError::Key)?;
        let pkcs8 = if key.tag() == "EC PRIVATE KEY" {
            sec1_to_pkcs8(key.contents()).ok_or(PkiError::Key)?
        } else {
            key.into_contents()
        };
        let issuer = Issuer::from_ca_cert_der(&certificate, read_key(pkcs8)?).map_err(|_| PkiError::Certificate)?;
        Ok(Self { issuer, certificate })
    }

    pub fn issue(&self, request: &Request<'_>, entropy: &Entropy) -> Result<Pair, PkiError> {
        let key = ed25519(entropy)?;
        let mut params = request.params()?;
        let mut serial = [0; 16];
        entropy.fork("serial").rng().fill_bytes(&mut serial);
        serial[0] &= 0x7f;
        params.serial_number = Some(serial.to_vec().into());
        let certificate = params.signed_by(&key, &self.issuer)?.der().clone();
        Ok(Pair { certificate, key })
    }

    /// The same for a key of the NIST P-256 kind, which Kubernetes clients expect of their cluster.
    pub fn issue_p256(&self, request: &Request<'_>) -> Result<Pair, PkiError> {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let certificate = request.params()?.signed_by(&key, &self.issuer)?.der().clone();
        Ok(Pair { certificate, key })
    }
}

/// Wraps a SEC 1 key of the curve P-256 into PKCS#8.
fn sec1_to_pkcs8(sec1: &[u8]) -> Option<Vec<u8>> {
    // SEQUENCE { INTEGER 0, SEQUENCE { id-ecPublicKey, prime256v1 }, OCTET STRING { sec1 } }
    let algorithm = hex::decode("301306072a8648ce3d020106082a8648ce3d030107").ok()?;
    let mut inner = vec![0x02, 0x01, 0x00];
    inner.extend_from_slice(&algorithm);
    inner.extend(tlv(0x04, sec1)?);
    tlv(0x30, &inner)
}

fn tlv(tag: u8, content: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![tag];
    match content.len() {
        length @ 0..=127 => out.push(u8::try_from(length).ok()?),
        length @ 128..=255 => out.extend([0x81, u8::try_from(length).ok()?]),
        length => {
            out.push(0x82);
            out.extend(u16::try_from(length).ok()?.to_be_bytes());
        }
    }
    out.extend_from_slice(content);
    Some(out)
}

/// What a client certificate says about its holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    pub common_name: String,
    pub organizations: Vec<String>,
}

/// Extended key usages by name, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyUses {
    Absent,
    OnlyClient,
    Other,
}

pub(crate) fn subject(certificate: &[u8]) -> Option<Subject> {
    let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(certificate).ok()?;
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().unwrap_or_default().to_owned();
    Some(Subject {
        common_name: parsed.subject().iter_common_name().next().map(text).unwrap_or_default(),
        organizations: parsed.subject().iter_organization().map(text).collect(),
    })
}

pub(crate) fn key_uses(certificate: &[u8]) -> KeyUses {
    let Ok((_, parsed)) = x509_parser::certificate::X509Certificate::from_der(certificate) else {
        return KeyUses::Other;
    };
    match parsed.extended_key_usage() {
        Ok(Some(uses)) => {
            let uses = uses.value;
            let others = uses.any
                || uses.server_auth
                || uses.code_signing
                || uses.email_protection
                || uses.time_stamping
                || uses.ocsp_signing;
            if uses.client_auth && !others && uses.other.is_empty() {
                KeyUses::OnlyClient
            } else {
                KeyUses::Other
            }
        }
        Ok(None) => KeyUses::Absent,
        Err(_) => KeyUses::Other,
    }
}
