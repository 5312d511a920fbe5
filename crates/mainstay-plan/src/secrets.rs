//! The secrets of a cluster: its id, and the bundle of its distribution.

use hmac::{Hmac, KeyInit, Mac};
use jiff::{SignedDuration, Timestamp};
use mainstay_spec::{Distro, DistroSpec};
use rancher_config::MintTime;
use rand::CryptoRng;
use semver::Version;
use serde::Deserialize;
use sha2::Sha256;
use talos_config::versions::Contract;
use talos_config::{PkiError, ServiceAccountKey};
use url::Url;
use uuid::Uuid;
use zeroize::Zeroizing;

pub use talos_config::access::AccessError;
use talos_config::access::KubeconfigEntry;
pub use talos_config::{BundleError, Kubeconfig};

/// Everything secret about one cluster. It is made once, before the first change.
#[derive(Clone)]
pub struct ClusterSecrets {
    id: Uuid,
    pub distro: DistroSecrets,
}

/// Certificate authorities, tokens and keys in the form of the distribution.
#[derive(Clone)]
pub enum DistroSecrets {
    Talos(Box<talos_config::Secrets>),
    Rancher(Box<rancher_config::Secrets>),
}

/// The key that signs service account tokens. Other programs verify the tokens, and not all of them know elliptic curves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceAccountKeyKind {
    Rsa4096,
    /// Drawn at once, for clusters that are simulated.
    EcP256,
}

impl ClusterSecrets {
    /// The id comes from the random cluster id in the bundle, so that it is minted and lost with the secrets.
    pub fn talos(secrets: talos_config::Secrets) -> Self {
        let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("mainstay {}", secrets.cluster_id()).as_bytes());
        Self {
            id,
            distro: DistroSecrets::Talos(Box::new(secrets)),
        }
    }

    /// New secrets for a cluster of this distribution that begins with `release`. `key_rng` draws the service account key, which may take
    /// seconds, `rng` everything else.
    pub fn generate(
        distro: &DistroSpec,
        release: &Version,
        kind: ServiceAccountKeyKind,
        key_rng: &mut impl CryptoRng,
        rng: &mut impl CryptoRng,
        now: Timestamp,
    ) -> Result<Self, MintError> {
        match distro {
            DistroSpec::Talos(_) => {
                let key = match kind {
                    ServiceAccountKeyKind::Rsa4096 => ServiceAccountKey::rsa4096(key_rng)?,
                    ServiceAccountKeyKind::EcP256 => ServiceAccountKey::ec_p256(key_rng)?,
                };
                let secrets = talos_config::Secrets::generate(rng, now, Contract::of(release), key)?;
                Ok(Self::talos(secrets))
            }
            DistroSpec::Rancher(spec) => {
                let key = match kind {
                    ServiceAccountKeyKind::Rsa4096 => rancher_config::ServiceKey::rsa(key_rng),
                    ServiceAccountKeyKind::EcP256 => rancher_config::ServiceKey::ec(key_rng),
                };
                let key = key.map_err(|error| MintError(error.to_string()))?;
                Self::generate_rancher(spec.distro, rng, now, key)
            }
        }
    }

    /// A new bundle of RKE2 or k3s with its random id.
    pub fn generate_rancher(
        distro: rancher_config::Distro,
        rng: &mut impl CryptoRng,
        now: Timestamp,
        service_key: rancher_config::ServiceKey,
    ) -> Result<Self, MintError> {
        let mut bytes = [0_u8; 16];
        rng.fill_bytes(&mut bytes);
        let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, &bytes);
        let secrets = rancher_config::Secrets::generate(distro, rng, mint_time(now)?, service_key, "mainstay");
        Ok(Self::rancher(id, secrets.map_err(|error| MintError(error.to_string()))?))
    }

    /// The id is minted with the bundle and kept beside it.
    pub fn rancher(id: Uuid, secrets: rancher_config::Secrets) -> Self {
        Self {
            id,
            distro: DistroSecrets::Rancher(Box::new(secrets)),
        }
    }

    /// The id that goes into marks and SMBIOS UUIDs.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// The key of content hashes that are readable in the cluster. It is derived from a secret that only this cluster has.
    pub fn content_key(&self) -> [u8; 32] {
        let mut mac = match &self.distro {
            DistroSecrets::Talos(secrets) => keyed(secrets.cluster_secret()),
            DistroSecrets::Rancher(secrets) => keyed(secrets.server_token().expose()),
        };
        mac.update(b"mainstay content hash 1");
        mac.finalize().into_bytes().into()
    }

    /// Reads the text of a secrets file. Without a `mainstay` key it is the bundle that talosctl writes.
    pub fn from_yaml(text: &str) -> Result<Self, BundleError> {
        if let Ok(SecretsText { mainstay }) = serde_saphyr::from_str(text) {
            return mainstay.read();
        }
        let secrets = talos_config::Secrets::from_talosctl_yaml(text)?;
        secrets.validate()?;
        Ok(Self::talos(secrets))
    }

    /// The text of a secrets file.
    pub fn to_yaml(&self) -> Zeroizing<String> {
        match &self.distro {
            DistroSecrets::Talos(secrets) => secrets.to_talosctl_yaml(),
            DistroSecrets::Rancher(secrets) => {
                let bundle =
                    serde_json::json!({ "mainstay": { "format": FORMAT, "id": self.id, "rancher": secrets.to_value() } });
                Zeroizing::new(rancher_config::yaml::document(&bundle))
            }
        }
    }

    /// What the bundle holds, with the end of each certificate.
    pub fn contents(&self) -> Vec<(&'static str, Option<Timestamp>)> {
        match &self.distro {
            DistroSecrets::Talos(secrets) => secrets.contents(),
            DistroSecrets::Rancher(secrets) => secrets.contents(),
        }
    }

    /// An administrator's kubeconfig, minted offline.
    pub fn kubeconfig(
        &self,
        cluster: &str,
        endpoint: &Url,
        lifetime: SignedDuration,
        now: Timestamp,
        rng: &mut impl CryptoRng,
    ) -> Result<Kubeconfig, MintError> {
        match &self.distro {
            DistroSecrets::Talos(secrets) => Ok(Kubeconfig::mint(secrets, cluster, endpoint, lifetime, now, rng)?),
            DistroSecrets::Rancher(secrets) => rancher_kubeconfig(secrets, cluster, endpoint, lifetime, now, rng),
        }
    }

    /// Whether this bundle is for a cluster of this distribution.
    pub fn fits(&self, distro: Distro) -> bool {
        match self.distro {
            DistroSecrets::Talos(_) => distro == Distro::Talos,
            DistroSecrets::Rancher(ref secrets) => match secrets.distro() {
                rancher_config::Distro::Rke2 => distro == Distro::Rke2,
                rancher_config::Distro::K3s => distro == Distro::K3s,
            },
        }
    }
}

fn keyed(secret: &str) -> Hmac<Sha256> {
    Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of every length")
}

impl std::fmt::Debug for ClusterSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterSecrets").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The format of files that mainstay itself defines. Files without the `mainstay` key are talosctl's.
const FORMAT: u32 = 2;

#[derive(Deserialize)]
struct SecretsText {
    mainstay: BundleText,
}

#[derive(Deserialize)]
struct BundleText {
    format: u32,
    id: Uuid,
    rancher: serde_json::Value,
}

impl BundleText {
    fn read(&self) -> Result<ClusterSecrets, BundleError> {
        if self.format != FORMAT {
            let problem = format!("it has format {}, and this version reads format {FORMAT}", self.format);
            return Err(BundleError { problems: vec![problem] });
        }
        let secrets = rancher_config::Secrets::from_value(&self.rancher);
        let secrets = secrets.map_err(|error| BundleError {
            problems: error.problems,
        })?;
        Ok(ClusterSecrets::rancher(self.id, secrets))
    }
}

/// Why a credential cannot be issued.
#[derive(Debug)]
pub struct MintError(String);

impl std::fmt::Display for MintError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MintError {}

impl From<PkiError> for MintError {
    fn from(error: PkiError) -> Self {
        Self(error.to_string())
    }
}

/// Certificates of a clock before this date would be refused by every server.
const BUILT: &str = "2026-01-01T00:00:00Z";

/// The time for certificates, refused where the operator's clock is wrong.
pub fn mint_time(now: Timestamp) -> Result<MintTime, MintError> {
    let built = BUILT.parse().map_err(|error: jiff::Error| MintError(error.to_string()))?;
    MintTime::new(now, built).map_err(|error| MintError(error.to_string()))
}

fn rancher_kubeconfig(
    secrets: &rancher_config::Secrets,
    cluster: &str,
    endpoint: &Url,
    lifetime: SignedDuration,
    now: Timestamp,
    rng: &mut impl CryptoRng,
) -> Result<Kubeconfig, MintError> {
    let identity = rancher_config::access::kubernetes_admin(secrets, lifetime, mint_time(now)?, rng);
    let identity = identity.map_err(|error| MintError(error.to_string()))?;
    Ok(Kubeconfig::new(&KubeconfigEntry {
        cluster,
        endpoint,
        authority: secrets.server_ca(),
        certificate: &identity.certificate,
        key: &identity.key,
    }))
}
