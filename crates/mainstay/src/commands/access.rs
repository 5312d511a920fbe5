//! `kubeconfig` and `talosconfig`: issued from the secrets, without any connection.

use std::path::{Path, PathBuf};

use jiff::SignedDuration;
use mainstay_engine::SecretsFile;
use mainstay_spec::Role;
use talos_config::{Kubeconfig, Secrets, TalosRole, Talosconfig};

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
    let minted = Kubeconfig::mint(
        &secrets,
        spec.name.as_str(),
        &endpoint,
        lifetime(args),
        session.env.wall.now(),
        &mut rng,
    );
    let minted = minted.map_err(|error| CommandError::new("cannot create the kubeconfig").caused_by(error))?;
    let place = session.process_env.default_kubeconfig();
    let merged = |text: &str| {
        let mut there = Kubeconfig::parse(text)?;
        there.merge(&minted);
        Ok(there.to_yaml().to_string())
    };
    write_or_merge(session, args, output, &minted.to_yaml(), &place, merged)
}

pub fn talosconfig(session: &Session, args: &Credentials, output: Output) -> Result<(), CommandError> {
    let secrets = secrets(session)?;
    let spec = session.spec();
    let addresses = |role: Role| {
        spec.machines
            .iter()
            .filter(|machine| machine.role == role)
            .map(|machine| machine.address.to_string())
            .collect::<Vec<_>>()
    };
    let endpoints = addresses(Role::ControlPlane);
    let nodes: Vec<String> = endpoints.iter().take(1).cloned().collect();
    let mut rng = session.env.entropy.fork("talosconfig").rng();
    let roles = [TalosRole::Admin].into();
    let minted = Talosconfig::mint(
        &secrets,
        spec.name.as_str(),
        &roles,
        &endpoints,
        &nodes,
        lifetime(args),
        session.env.wall.now(),
        &mut rng,
    );
    let minted = minted.map_err(|error| CommandError::new("cannot create the talosconfig").caused_by(error))?;
    let place = session.process_env.default_talosconfig();
    let merged = |text: &str| {
        let mut there = Talosconfig::parse(text)?;
        there.merge(&minted);
        Ok(there.to_yaml().to_string())
    };
    write_or_merge(session, args, output, &minted.to_yaml(), &place, merged)
}

fn secrets(session: &Session) -> Result<Secrets, CommandError> {
    session
        .secrets()?
        .ok_or_else(|| CommandError::no_secrets(&SecretsFile::beside(&session.file)))
}

fn lifetime(args: &Credentials) -> SignedDuration {
    SignedDuration::from_hours(args.hours)
}

/// Prints the text, writes it to a file, or merges it into the file that other tools read.
fn write_or_merge(
    session: &Session,
    args: &Credentials,
    output: Output,
    text: &str,
    default: &Path,
    merged: impl Fn(&str) -> Result<String, talos_config::access::AccessError>,
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
