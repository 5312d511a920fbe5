//! The secrets of a new cluster: created in memory for the plan, and written after its approval, before the first change.

use mainstay_engine::SecretsFile;
use mainstay_plan::{ClusterSecrets, ServiceAccountKeyKind, derive};
use sops_file::{Identity, Rule};

use crate::error::CommandError;
use crate::output::Output;
use crate::session::Session;
use crate::view;

/// Secrets that are not written yet: their file and recipients.
pub struct PendingSecrets {
    file: SecretsFile,
    recipients: Rule,
    /// A new age key, if the user has none.
    identity: Option<Identity>,
}

/// The secrets in the file, else new ones. Never new ones for a cluster that exists.
pub async fn open_or_make(session: &Session, output: Output) -> Result<(ClusterSecrets, Option<PendingSecrets>), CommandError> {
    let file = session.secrets_file()?;
    if let Some(secrets) = file.load()? {
        return Ok((secrets, None));
    }
    refuse_if_cluster_exists(session).await?;
    let identities = session.identities()?;
    let mut recipients = session.recipients(&identities)?;
    let mut identity = None;
    if recipients.recipients.is_empty() {
        let new = Identity::generate();
        recipients = session.recipients(std::slice::from_ref(&new))?;
        identity = Some(new);
    }
    output.status("creating the cluster's secrets (a 4096-bit key takes a few seconds)");
    let secrets = make(session).await?;
    let unwritten = PendingSecrets {
        file,
        recipients,
        identity,
    };
    Ok((secrets, Some(unwritten)))
}

async fn make(session: &Session) -> Result<ClusterSecrets, CommandError> {
    let failed = "cannot create the cluster's secrets";
    let versions = derive::versions(session.spec(), None, None)?;
    let (distro, env) = (session.spec().distro.clone(), session.env.clone());
    let generate = move || {
        let mut key_rng = env.entropy.fork("service account key").rng();
        let mut rng = env.entropy.fork("secrets").rng();
        let kind = ServiceAccountKeyKind::Rsa4096;
        ClusterSecrets::generate(&distro, &versions.release, kind, &mut key_rng, &mut rng, env.wall.now())
    };
    // The key takes seconds of computing, during which Ctrl-C must still be heard.
    let generated = tokio::task::spawn_blocking(generate).await;
    let generated = generated.map_err(|error| CommandError::new(failed).caused_by(error))?;
    generated.map_err(|error| CommandError::new(failed).caused_by(error))
}

impl PendingSecrets {
    /// Writes the age key first: without it the secrets file could never be decrypted.
    pub fn write(&self, secrets: &ClusterSecrets, session: &Session, output: Output) -> Result<(), CommandError> {
        if let Some(identity) = &self.identity {
            write_identity(identity, session, output)?;
        }
        self.file
            .store(secrets, &self.recipients, session.env.wall.now(), &session.env.entropy)?;
        output.status(format!(
            "wrote {}, encrypted for {}; keep it in git",
            self.file.path().display(),
            view::count(self.recipients.recipients.len(), "age key")
        ));
        Ok(())
    }
}

/// Writes the age key where sops looks for it.
fn write_identity(identity: &Identity, session: &Session, output: Output) -> Result<(), CommandError> {
    let path = session.process_env.default_age_keys();
    let text = identity.to_file(session.env.wall.now());
    session
        .disk
        .create(&path, text.as_bytes())
        .map_err(|error| CommandError::new(format!("cannot write {}", path.display())).caused_by(error))?;
    output.status(format!("created an age key: {}", path.display()));
    output.status("  back it up: without it the secrets of this cluster cannot be decrypted");
    output.status(format!("  public key: {}", identity.recipient()));
    Ok(())
}

/// Machines of this cluster without its secrets file: new secrets cannot access them.
async fn refuse_if_cluster_exists(session: &Session) -> Result<(), CommandError> {
    use pve_api::cluster::{Resource, ResourceKind, resources};
    let name = session.spec().name.as_str();
    let guests = session.pve()?.call(resources(Some(ResourceKind::Vm))).await?;
    let tagged = guests.into_iter().filter_map(|resource| {
        if let Resource::Guest(guest) = resource {
            Some(guest)
        } else {
            None
        }
    });
    let pve = session.pve()?;
    for guest in tagged.filter(|guest| guest.tags.contains(mainstay_plan::TAG)) {
        let config = pve.call(pve_api::qemu::config(&guest.host, guest.vmid)).await?;
        let mark = config
            .description
            .as_ref()
            .and_then(|text| mainstay_plan::Mark::parse(text.as_str()));
        if let Some(mark) = mark.filter(|mark| mark.cluster == name) {
            let path = SecretsFile::secrets_path(&session.file);
            return Err(
                CommandError::refused(format!("cluster {name} exists, but its secrets file is missing"))
                    .why(format!(
                        "VM {} on {} is its machine {}, and {} does not exist",
                        guest.vmid,
                        guest.host,
                        mark.machine,
                        path.display()
                    ))
                    .help("restore the secrets file from git or a backup; new secrets cannot access these machines")
                    .help("to give these machines up: delete their VMs in Proxmox VE, or use another cluster name"),
            );
        }
    }
    Ok(())
}
