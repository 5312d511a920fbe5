//! `talosconfig`: issued from the secrets, without any connection.

use mainstay_plan::DistroSecrets;
use mainstay_spec::Role;
use talos_config::{TalosRole, Talosconfig};

use super::access::{lifetime, secrets, write_or_merge};
use crate::args::Credentials;
use crate::error::CommandError;
use crate::output::Output;
use crate::session::Session;

pub fn run(session: &Session, args: &Credentials, output: Output) -> Result<(), CommandError> {
    let secrets = secrets(session)?;
    let DistroSecrets::Talos(bundle) = &secrets.distro else {
        return Err(CommandError::usage("talosconfig is for Talos clusters")
            .help("for the machines of this cluster: mainstay kubeconfig"));
    };
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
        bundle,
        spec.name.as_str(),
        &roles,
        &endpoints,
        &nodes,
        lifetime(args),
        session.env.wall.now(),
        &mut rng,
    );
    let minted = minted.map_err(|error| CommandError::new("cannot create the talosconfig").caused_by(error))?;
    let process_env = &session.process_env;
    let place = process_env.talosconfig.clone();
    let place = place.unwrap_or_else(|| process_env.home.join(".talos/config"));
    let merged = |text: &str| -> Result<String, talos_config::access::AccessError> {
        let mut there = Talosconfig::parse(text)?;
        there.merge(&minted);
        Ok(there.to_yaml().to_string())
    };
    write_or_merge(session, args, output, &minted.to_yaml(), &place, merged)
}
