//! The secrets file: made once, before the first change, encrypted before it touches a disk, and never made anew for a cluster that exists.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use mainstay_net::Entropy;
use mainstay_plan::{BundleError, ClusterSecrets};
use sops_file::{CreationRules, Filter, Identity, Recipient, Rule};

use crate::files::FileStore;

/// Where the secrets of one cluster are, and the keys that open them.
pub struct SecretsFile {
    disk: Arc<dyn FileStore>,
    path: PathBuf,
    identities: Vec<Identity>,
}

#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    #[error("{path} cannot be read")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} cannot be written")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path} cannot be opened")]
    Sops { path: PathBuf, source: sops_file::Error },
    #[error("{path} does not hold a cluster's secrets: {}", .source.problems.join("; "))]
    Bundle { path: PathBuf, source: BundleError },
    #[error("{path} exists already")]
    Exists { path: PathBuf },
}

impl SecretsFile {
    /// Next to `cluster.yaml` lies `cluster.secrets.yaml`.
    pub fn secrets_path(cluster_file: &Path) -> PathBuf {
        let stem = cluster_file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        cluster_file.with_file_name(format!("{stem}.secrets.yaml"))
    }

    pub fn new(disk: Arc<dyn FileStore>, path: PathBuf, identities: Vec<Identity>) -> Self {
        Self { disk, path, identities }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `None` when there is no file yet. A file that is there but cannot be opened is an error, never an invitation to make another.
    pub fn load(&self) -> Result<Option<ClusterSecrets>, SecretsError> {
        let Some(content) = self.disk.read(&self.path).map_err(|source| SecretsError::Read {
            path: self.path.clone(),
            source,
        })?
        else {
            return Ok(None);
        };
        let opened = sops_file::decrypt(&content, &self.identities).map_err(|source| self.sops(source))?;
        let secrets = ClusterSecrets::from_yaml(opened.text()).map_err(|source| self.bundle(source))?;
        Ok(Some(secrets))
    }

    /// Who can open the file.
    pub fn recipients(&self) -> Result<Vec<String>, SecretsError> {
        let content = self.disk.read(&self.path).map_err(|source| SecretsError::Read {
            path: self.path.clone(),
            source,
        })?;
        sops_file::recipients(&content.unwrap_or_default()).map_err(|source| self.sops(source))
    }

    /// Writes a bundle, encrypted, where no file is.
    pub fn store(&self, secrets: &ClusterSecrets, rule: &Rule, now: Timestamp, entropy: &Entropy) -> Result<(), SecretsError> {
        let mut rng = entropy.fork("secrets file").rng();
        let text = secrets.to_yaml();
        let sealed =
            sops_file::encrypt(&text, &rule.recipients, &rule.filter, now, &mut rng).map_err(|source| self.sops(source))?;
        self.disk
            .create(&self.path, sealed.as_bytes())
            .map_err(|source| match source.kind() {
                std::io::ErrorKind::AlreadyExists => SecretsError::Exists { path: self.path.clone() },
                _ => SecretsError::Write {
                    path: self.path.clone(),
                    source,
                },
            })
    }

    fn sops(&self, source: sops_file::Error) -> SecretsError {
        SecretsError::Sops {
            path: self.path.clone(),
            source,
        }
    }

    fn bundle(&self, source: BundleError) -> SecretsError {
        SecretsError::Bundle {
            path: self.path.clone(),
            source,
        }
    }
}

/// Who may read a new file: what `.sops.yaml` says, else those whose keys are at hand.
pub fn recipients(rules: Option<(&CreationRules, &str)>, identities: &[Identity]) -> Result<Rule, sops_file::Error> {
    let by_rule = rules.map(|(rules, path)| rules.rule_for(path)).transpose()?.flatten();
    Ok(by_rule.filter(|rule| !rule.recipients.is_empty()).unwrap_or_else(|| Rule {
        recipients: identities.iter().map(Identity::recipient).collect::<Vec<Recipient>>(),
        filter: Filter::default(),
    }))
}
