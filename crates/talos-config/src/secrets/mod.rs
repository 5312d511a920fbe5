//! The secrets bundle: everything of a cluster that must be made once and kept.

mod file;

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use jiff::{SignedDuration, Timestamp};
use rand::CryptoRng;
use zeroize::Zeroizing;

use crate::pki::{Certificate, Extended, Issuer, KeyUsage, Name, PkiError, PrivateKey, Profile};
use crate::versions::Contract;

/// Ten years of 365 days.
const AUTHORITY_LIFETIME: SignedDuration = SignedDuration::from_hours(87_600);

/// The secrets of one cluster. Made once: a second set for the same cluster means losing access to it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secrets {
    pub(crate) cluster_id: String,
    pub(crate) cluster_secret: Zeroizing<String>,
    pub(crate) bootstrap_token: Zeroizing<String>,
    pub(crate) etcd_encryption: EtcdEncryption,
    pub(crate) trustd_token: Zeroizing<String>,
    pub(crate) etcd: Authority,
    pub(crate) kubernetes: Authority,
    pub(crate) aggregator: Authority,
    pub(crate) service_account: ServiceAccountKey,
    pub(crate) os: Authority,
}

/// How Kubernetes secrets are encrypted in etcd. AES-CBC is found in old bundles only.
#[derive(Clone, PartialEq, Eq)]
pub enum EtcdEncryption {
    Secretbox(Zeroizing<String>),
    AesCbc(Zeroizing<String>),
}

/// A certificate authority, as the PEM texts found or made.
#[derive(Clone, PartialEq, Eq)]
pub struct Authority {
    pub(crate) certificate: String,
    pub(crate) key: Zeroizing<String>,
}

/// The key that signs service account tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct ServiceAccountKey {
    pub(crate) key: Zeroizing<String>,
}

impl ServiceAccountKey {
    /// What Talos makes by default. Takes a second or more of computing: run it off the event loop.
    pub fn rsa4096(rng: &mut impl CryptoRng) -> Result<Self, PkiError> {
        Ok(Self {
            key: PrivateKey::rsa4096(rng)?.to_pem()?,
        })
    }

    /// Made in no time; Kubernetes does not mind, some external readers of its tokens do.
    pub fn ec_p256(rng: &mut impl CryptoRng) -> Result<Self, PkiError> {
        Ok(Self {
            key: PrivateKey::p256(rng).to_pem()?,
        })
    }

    pub fn from_pem(text: &str) -> Result<Self, PkiError> {
        PrivateKey::from_pem(text)?;
        Ok(Self {
            key: Zeroizing::new(text.to_owned()),
        })
    }
}

/// Why a bundle is not usable. Texts are those of talosctl where it checks the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the secrets bundle is not usable: {}", problems.join("; "))]
pub struct BundleError {
    pub problems: Vec<String>,
}

impl BundleError {
    fn one(problem: impl Into<String>) -> Self {
        Self {
            problems: vec![problem.into()],
        }
    }
}

impl Secrets {
    /// A new bundle. The service account key comes from outside because making an RSA key takes its time.
    pub fn generate(
        rng: &mut impl CryptoRng,
        now: Timestamp,
        contract: Contract,
        service_account: ServiceAccountKey,
    ) -> Result<Self, PkiError> {
        let id = random_bytes(rng);
        let cluster_id = if contract.cluster_id_is_url_safe() {
            URL_SAFE.encode(*id)
        } else {
            STANDARD.encode(*id)
        };
        Ok(Self {
            cluster_id,
            cluster_secret: encoded(&random_bytes(rng)),
            bootstrap_token: token(rng),
            etcd_encryption: EtcdEncryption::Secretbox(encoded(&random_bytes(rng))),
            trustd_token: token(rng),
            etcd: Authority::generate(PrivateKey::p256(rng), &["etcd"], rng, now)?,
            kubernetes: Authority::generate(PrivateKey::p256(rng), &["kubernetes"], rng, now)?,
            aggregator: Authority::generate(PrivateKey::p256(rng), &[], rng, now)?,
            service_account,
            os: Authority::generate(PrivateKey::ed25519(rng), &["talos"], rng, now)?,
        })
    }

    /// Identifies the cluster to the discovery service. Not a secret.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// Identifies members of the cluster to each other. A secret: other keys can be derived from it.
    pub fn cluster_secret(&self) -> &str {
        &self.cluster_secret
    }

    /// The certificate that signs the Talos API's certificates, PEM.
    pub fn os_ca(&self) -> &str {
        &self.os.certificate
    }

    /// The certificate that signs the Kubernetes API's certificates, PEM.
    pub fn kubernetes_ca(&self) -> &str {
        &self.kubernetes.certificate
    }

    /// What the bundle holds, by name, with the expiry of what expires. No secret in it.
    pub fn contents(&self) -> Vec<(&'static str, Option<Timestamp>)> {
        let authority = |authority: &Authority| {
            Certificate::from_pem(&authority.certificate)
                .ok()
                .map(|found| found.not_after)
        };
        let encryption = match self.etcd_encryption {
            EtcdEncryption::Secretbox(_) => "secrets.secretboxencryptionsecret",
            EtcdEncryption::AesCbc(_) => "secrets.aescbcencryptionsecret",
        };
        vec![
            ("cluster.id", None),
            ("cluster.secret", None),
            ("secrets.bootstraptoken", None),
            (encryption, None),
            ("trustdinfo.token", None),
            ("certs.etcd", authority(&self.etcd)),
            ("certs.k8s", authority(&self.kubernetes)),
            ("certs.k8saggregator", authority(&self.aggregator)),
            ("certs.k8sserviceaccount", None),
            ("certs.os", authority(&self.os)),
        ]
    }

    /// Checks what talosctl checks, and that each authority's key belongs to its certificate.
    pub fn validate(&self) -> Result<(), BundleError> {
        let mut problems = Vec::new();
        let texts = [
            ("cluster.id", self.cluster_id.as_str()),
            ("cluster.secret", &self.cluster_secret),
            ("secrets.bootstraptoken", &self.bootstrap_token),
            ("trustdinfo.token", &self.trustd_token),
        ];
        problems.extend(
            texts
                .iter()
                .filter(|(_, text)| text.is_empty())
                .map(|(name, _)| format!("{name} is required")),
        );
        if !self.bootstrap_token.is_empty() && !is_bootstrap_token(&self.bootstrap_token) {
            problems.push("secrets.bootstraptoken is invalid: it must look like abcdef.0123456789abcdef".into());
        }
        let authorities = [
            ("certs.etcd", &self.etcd),
            ("certs.k8s", &self.kubernetes),
            ("certs.k8saggregator", &self.aggregator),
            ("certs.os", &self.os),
        ];
        for (name, authority) in authorities {
            problems.extend(
                authority
                    .issuer()
                    .err()
                    .map(|problem| format!("{name} is invalid: {problem}")),
            );
        }
        let service_account = PrivateKey::from_pem(&self.service_account.key).err();
        problems.extend(service_account.map(|problem| format!("certs.k8sserviceaccount.key is invalid: {problem}")));
        if problems.is_empty() {
            Ok(())
        } else {
            Err(BundleError { problems })
        }
    }
}

impl Authority {
    fn generate(key: PrivateKey, organization: &[&str], rng: &mut impl CryptoRng, now: Timestamp) -> Result<Self, PkiError> {
        let mut key_id = [0; 20];
        rng.fill_bytes(&mut key_id);
        let profile = Profile {
            subject: Name {
                organizations: organization,
                common_name: None,
            },
            serial: serial(rng),
            not_before: now,
            not_after: now + AUTHORITY_LIFETIME,
            usage: KeyUsage::SignAndIssue,
            extended: Extended::ServerAndClient,
            authority: Some(key_id),
        };
        Ok(Self {
            certificate: profile.self_signed(&key)?,
            key: key.to_pem()?,
        })
    }

    pub(crate) fn issuer(&self) -> Result<Issuer, PkiError> {
        Issuer::from_pem(&self.certificate, &self.key)
    }
}

pub(crate) fn serial(rng: &mut impl CryptoRng) -> [u8; 16] {
    let mut serial = [0; 16];
    rng.fill_bytes(&mut serial);
    serial
}

fn random_bytes(rng: &mut impl CryptoRng) -> Zeroizing<[u8; 32]> {
    let mut bytes = Zeroizing::new([0; 32]);
    rng.fill_bytes(bytes.as_mut());
    bytes
}

fn encoded(bytes: &[u8; 32]) -> Zeroizing<String> {
    Zeroizing::new(STANDARD.encode(bytes))
}

/// Six and sixteen characters, each of the 36 equally likely.
fn token(rng: &mut impl CryptoRng) -> Zeroizing<String> {
    Zeroizing::new(format!("{}.{}", random_word(rng, 6), random_word(rng, 16)))
}

/// As Kubernetes reads it: kubelets with any other are turned away, and no node ever registers.
fn is_bootstrap_token(token: &str) -> bool {
    let is_word = |word: &str, length: usize| {
        word.len() == length && word.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
    };
    token
        .split_once('.')
        .is_some_and(|(id, secret)| is_word(id, 6) && is_word(secret, 16))
}

fn random_word(rng: &mut impl CryptoRng, length: usize) -> String {
    const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut word = String::with_capacity(length);
    while word.len() < length {
        let mut byte = [0];
        rng.fill_bytes(&mut byte);
        // 252 is the largest multiple of 36 that fits a byte; what lies beyond would favour the first letters.
        if byte[0] < 252 {
            word.push(char::from(ALPHABET[usize::from(byte[0] % 36)]));
        }
    }
    word
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets")
            .field("cluster_id", &self.cluster_id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority(***)")
    }
}

impl fmt::Debug for EtcdEncryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EtcdEncryption(***)")
    }
}

impl fmt::Debug for ServiceAccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceAccountKey(***)")
    }
}
