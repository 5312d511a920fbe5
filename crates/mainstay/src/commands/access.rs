//! `kubeconfig`: issued from the secrets, without any connection. Shared by the other commands that write credentials.

use std::path::{Path, PathBuf};

use jiff::SignedDuration;
use mainstay_engine::SecretsFile;
use mainstay_plan::{AccessError, ClusterSecrets, Kubeconfig};

use crate::args::Credentials;
use crate::error::CommandError;
use crate::output::Output;
use crate::session::Session;

pub fn kubeconfig(session: &Session, args: &Credentials, output: Output) -> Result<(), CommandError> {
    let secrets = secrets(session)?;
    let spec = session.spec();
    let endpoint = spec
        .endpoint
        .url()
        .parse()
        .map_err(|error| CommandError::new("the API endpoint is not a URL").caused_by(error))?;
    let mut rng = session.env.entropy.fork("kubeconfig").rng();
    let now = session.env.wall.now();
    let minted = secrets.kubeconfig(spec.name.as_str(), &endpoint, lifetime(args), now, &mut rng);
    let minted = minted.map_err(|error| CommandError::new("cannot create the kubeconfig").caused_by(error))?;
    let place = session.process_env.default_kubeconfig();
    let merged = |text: &str| -> Result<String, AccessError> {
        let mut there = Kubeconfig::parse(text)?;
        there.merge(&minted);
        Ok(there.to_yaml().to_string())
    };
    write_or_merge(session, args, output, &minted.to_yaml(), &place, merged)
}

pub fn secrets(session: &Session) -> Result<ClusterSecrets, CommandError> {
    session
        .secrets()?
        .ok_or_else(|| CommandError::no_secrets(&SecretsFile::secrets_path(&session.file)))
}

pub fn lifetime(args: &Credentials) -> SignedDuration {
    SignedDuration::from_hours(args.hours)
}

/// Prints the text, writes it to a file, or merges it into the file that other tools read.
pub fn write_or_merge<E: std::error::Error + Send + Sync + 'static>(
    session: &Session,
    args: &Credentials,
    output: Output,
    text: &str,
    default: &Path,
    merged: impl Fn(&str) -> Result<String, E>,
) -> Result<(), CommandError> {
    let write = |path: &PathBuf, text: &str| {
        session
            .disk
            .write(path, text.as_bytes())
            .map_err(|error| CommandError::new(format!("cannot write {}", path.display())).caused_by(error))?;
        output.status(format!("wrote {}", path.display()));
        Ok(())
    };
    if let Some(path) = &args.out {
        return write(path, text);
    }
    if !args.merge {
        output.print_raw(text);
        return Ok(());
    }
    let path = default.to_path_buf();
    let there = session
        .disk
        .read(&path)
        .map_err(|error| CommandError::unreadable(&path, &error))?
        .unwrap_or_default();
    let there = String::from_utf8(there).map_err(|_| CommandError::new(format!("{} is not UTF-8 text", path.display())))?;
    let merged = merged(&there).map_err(|error| {
        CommandError::new(format!("cannot merge into {}; it was not changed", path.display())).caused_by(error)
    })?;
    write(&path, &merged)
}
