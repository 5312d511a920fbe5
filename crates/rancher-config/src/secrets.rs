//! The secrets bundle: everything of a cluster that must be made once and kept.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use rand::CryptoRng;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::distro::Distro;
use crate::pki::{self, EcKey, Issuer, MintTime, PkiError};
use crate::ssh::{SshKey, SshKeyError};
use crate::token::{Admits, Token};

/// Ten years of 365 days, as both distributions choose for their own authorities.
const AUTHORITY_LIFETIME: SignedDuration = SignedDuration::from_hours(87_600);

/// The key size that the distributions' documentation shows for the service account key.
const SERVICE_KEY_BITS: usize = 2048;

/// The secrets of one cluster. Made once: a second set for the same cluster means losing access to it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secrets {
    distro: Distro,
    server: Authority,
    client: Authority,
    request_header: Authority,
    etcd_server: Authority,
    etcd_peer: Authority,
    service_key: ServiceKey,
    server_password: Zeroizing<String>,
    agent_password: Zeroizing<String>,
    ssh: SshKey,
}

/// A certificate authority as PEM texts.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Authority {
    certificate: String,
    key: Zeroizing<String>,
}

/// The key that signs service account tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct ServiceKey(Zeroizing<String>);

impl ServiceKey {
    /// What the distributions document. Takes a second or more of computing: run it off the event loop.
    pub fn rsa(rng: &mut impl CryptoRng) -> Result<Self, PkiError> {
        Ok(Self(pki::rsa_pem(rng, SERVICE_KEY_BITS)?))
    }

    /// Made at once; Kubernetes accepts it, some external readers of its tokens do not.
    pub fn ec(rng: &mut impl CryptoRng) -> Result<Self, PkiError> {
        Ok(Self(EcKey::generate(rng).to_pem()?))
    }
}

/// A file under `server/tls` of the first server. The others receive these files when they join.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsFile {
    /// Relative to `server/tls`: `etcd/peer-ca.key`.
    pub name: &'static str,
    pub content: Zeroizing<String>,
}

impl fmt::Debug for TlsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsFile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Why a bundle is not usable. Names parts, never their content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the secrets are not usable: {}", problems.join("; "))]
pub struct BundleError {
    pub problems: Vec<String>,
}

impl Secrets {
    /// A new bundle. The service account key comes from outside because making an RSA key takes time.
    pub fn generate(
        distro: Distro,
        rng: &mut impl CryptoRng,
        at: MintTime,
        service_key: ServiceKey,
        ssh_comment: &str,
    ) -> Result<Self, PkiError> {
        let mut authority = |part: &str| Authority::generate(&format!("{distro}-{part}-ca"), rng, at);
        let (server, client) = (authority("server")?, authority("client")?);
        let request_header = authority("request-header")?;
        let (etcd_server, etcd_peer) = (authority("etcd-server")?, authority("etcd-peer")?);
        Ok(Self {
            distro,
            server,
            client,
            request_header,
            etcd_server,
            etcd_peer,
            service_key,
            server_password: password(rng),
            agent_password: password(rng),
            ssh: SshKey::generate(rng, ssh_comment).map_err(|_| PkiError::Generation)?,
        })
    }

    pub const fn distro(&self) -> Distro {
        self.distro
    }

    /// What joins servers. Also the passphrase of the bootstrap data in every etcd snapshot.
    pub fn server_token(&self) -> Token {
        Token::new(&self.server.certificate, Admits::Servers, &self.server_password)
    }

    /// What joins workers, and nothing else.
    pub fn agent_token(&self) -> Token {
        Token::new(&self.server.certificate, Admits::Agents, &self.agent_password)
    }

    pub const fn ssh(&self) -> &SshKey {
        &self.ssh
    }

    /// The certificate that signs the API server's and the supervisor's certificates, PEM.
    ///
    /// A server answers `GET /cacerts` with exactly these bytes. Anything else means that it does not use our authority: a CA certificate
    /// without its key is silently replaced by a generated one, and a server without CA files makes its own.
    pub fn server_ca(&self) -> &str {
        &self.server.certificate
    }

    pub(crate) fn client_issuer(&self) -> Result<Issuer, PkiError> {
        self.client.issuer()
    }

    /// The complete documented set: eleven files. A server takes them as they are if they exist before its first start.
    pub fn tls_files(&self) -> Vec<TlsFile> {
        let pair = |certificate, key, authority: &Authority| {
            let certificate_file = TlsFile {
                name: certificate,
                content: Zeroizing::new(authority.certificate.clone()),
            };
            let key_file = TlsFile {
                name: key,
                content: authority.key.clone(),
            };
            [certificate_file, key_file]
        };
        let service = TlsFile {
            name: "service.key",
            content: self.service_key.0.clone(),
        };
        [
            pair("server-ca.crt", "server-ca.key", &self.server),
            pair("client-ca.crt", "client-ca.key", &self.client),
            pair("request-header-ca.crt", "request-header-ca.key", &self.request_header),
            pair("etcd/server-ca.crt", "etcd/server-ca.key", &self.etcd_server),
            pair("etcd/peer-ca.crt", "etcd/peer-ca.key", &self.etcd_peer),
        ]
        .into_iter()
        .flatten()
        .chain([service])
        .collect()
    }

    /// What the bundle holds, by name, with the expiry of what expires. No secret in it.
    pub fn contents(&self) -> Vec<(&'static str, Option<Timestamp>)> {
        let expiry = |authority: &Authority| authority.issuer().ok().map(|issuer| issuer.not_after);
        let mut contents: Vec<_> = self
            .authorities()
            .into_iter()
            .map(|(name, authority)| (name, expiry(authority)))
            .collect();
        contents.extend(["service-key", "server-password", "agent-password", "ssh-key"].map(|name| (name, None)));
        contents
    }

    fn authorities(&self) -> [(&'static str, &Authority); 5] {
        [
            ("server-ca", &self.server),
            ("client-ca", &self.client),
            ("request-header-ca", &self.request_header),
            ("etcd-server-ca", &self.etcd_server),
            ("etcd-peer-ca", &self.etcd_peer),
        ]
    }

    /// The bundle as a value for the secrets file. Everything in it but `distro` and certificates is secret.
    pub fn to_value(&self) -> serde_json::Value {
        serde_json::to_value(File::from(self)).expect("texts are values")
    }

    /// Reads what [`Secrets::to_value`] wrote and checks that every key belongs to its certificate.
    pub fn from_value(value: &serde_json::Value) -> Result<Self, BundleError> {
        // The reader's own message may quote the text that it could not read, so only the position's name is kept.
        let file = File::deserialize(value).map_err(|_| BundleError {
            problems: vec!["a part is missing, has the wrong form, or is not known".into()],
        })?;
        Self::try_from(file)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets")
            .field("distro", &self.distro)
            .finish_non_exhaustive()
    }
}

impl Authority {
    fn generate(common_name: &str, rng: &mut impl CryptoRng, at: MintTime) -> Result<Self, PkiError> {
        let key = EcKey::generate(rng);
        Ok(Self {
            certificate: pki::authority(common_name, &key, AUTHORITY_LIFETIME, at, rng)?,
            key: key.to_pem()?,
        })
    }

    fn issuer(&self) -> Result<Issuer, PkiError> {
        Issuer::from_pem(&self.certificate, &self.key)
    }
}

/// 256 random bits. Hex has no colon, which separates the parts of a token.
fn password(rng: &mut impl CryptoRng) -> Zeroizing<String> {
    let mut bytes = Zeroizing::new([0; 32]);
    rng.fill_bytes(bytes.as_mut());
    Zeroizing::new(hex::encode(*bytes))
}

/// The bundle as written.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    distro: String,
    server_ca: Pair,
    client_ca: Pair,
    request_header_ca: Pair,
    etcd_server_ca: Pair,
    etcd_peer_ca: Pair,
    service_key: String,
    server_password: String,
    agent_password: String,
    ssh_key: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    crt: String,
    key: String,
}

impl From<&Secrets> for File {
    fn from(secrets: &Secrets) -> Self {
        let pair = |authority: &Authority| Pair {
            crt: authority.certificate.clone(),
            key: authority.key.to_string(),
        };
        Self {
            distro: secrets.distro.name().to_owned(),
            server_ca: pair(&secrets.server),
            client_ca: pair(&secrets.client),
            request_header_ca: pair(&secrets.request_header),
            etcd_server_ca: pair(&secrets.etcd_server),
            etcd_peer_ca: pair(&secrets.etcd_peer),
            service_key: secrets.service_key.0.to_string(),
            server_password: secrets.server_password.to_string(),
            agent_password: secrets.agent_password.to_string(),
            ssh_key: secrets.ssh.private().to_owned(),
        }
    }
}

impl TryFrom<File> for Secrets {
    type Error = BundleError;

    fn try_from(file: File) -> Result<Self, BundleError> {
        let mut problems = Vec::new();
        let distro = Distro::ALL.into_iter().find(|distro| distro.name() == file.distro);
        let ssh: Result<SshKey, SshKeyError> = SshKey::from_openssh(&file.ssh_key);
        let authority = |pair: Pair| Authority {
            certificate: pair.crt,
            key: Zeroizing::new(pair.key),
        };
        if distro.is_none() {
            problems.push("distro is neither rke2 nor k3s".to_owned());
        }
        for (name, password) in [
            ("server-password", &file.server_password),
            ("agent-password", &file.agent_password),
        ] {
            if password.is_empty() || password.contains([':', '\n']) {
                problems.push(format!("{name} is empty or holds a colon or a line break"));
            }
        }
        problems.extend(ssh.as_ref().err().map(|problem| format!("ssh-key: {problem}")));
        let service = pki::check_service_key(&file.service_key);
        problems.extend(service.err().map(|problem| format!("service-key: {problem}")));
        let (Some(distro), Ok(ssh)) = (distro, ssh) else {
            return Err(BundleError { problems });
        };
        let secrets = Self {
            distro,
            server: authority(file.server_ca),
            client: authority(file.client_ca),
            request_header: authority(file.request_header_ca),
            etcd_server: authority(file.etcd_server_ca),
            etcd_peer: authority(file.etcd_peer_ca),
            service_key: ServiceKey(Zeroizing::new(file.service_key)),
            server_password: Zeroizing::new(file.server_password),
            agent_password: Zeroizing::new(file.agent_password),
            ssh,
        };
        for (name, authority) in secrets.authorities() {
            problems.extend(authority.issuer().err().map(|problem| format!("{name}: {problem}")));
        }
        if problems.is_empty() {
            Ok(secrets)
        } else {
            Err(BundleError { problems })
        }
    }
}
