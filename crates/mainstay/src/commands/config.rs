//! `config`: the machine configs that would be applied, without any connection.

use mainstay_engine::SecretsFile;
use mainstay_plan::{DistroSecrets, Pins, Versions, derive};
use mainstay_spec::{Spec, VersionWish};
use talos_config::versions::Contract;

use crate::args::ConfigArgs;
use crate::error::CommandError;
use crate::output::Output;
use crate::session::Session;

pub fn run(session: &Session, args: &ConfigArgs, output: Output) -> Result<(), CommandError> {
    let spec = session.spec();
    if let Some(name) = args.machine.as_ref().filter(|name| spec.machine(name).is_none()) {
        let names: Vec<&str> = spec.machines.iter().map(|machine| machine.name.as_str()).collect();
        return Err(
            CommandError::usage(format!("there is no machine {name}")).help(format!("the machines are: {}", names.join(", ")))
        );
    }
    let secrets = session
        .secrets()?
        .ok_or_else(|| CommandError::no_secrets(&SecretsFile::secrets_path(&session.file)))?;
    let versions = derive::versions(spec, None, None)?;
    if !matches!(secrets.distro, DistroSecrets::Talos(_)) {
        return Err(CommandError::usage("config shows machine configs, which only Talos has")
            .help("the files of RKE2 and k3s machines are written over SSH by: mainstay up"));
    }
    let contract = Contract::of(&versions.release).classic();
    let configs = derive::configs(spec, &secrets, &versions, &Pins::default())?;
    tell_versions(spec, &versions, output);
    for (name, text) in configs
        .iter()
        .filter(|(name, _)| args.machine.as_ref().is_none_or(|wanted| wanted == *name))
    {
        match &args.out {
            Some(folder) => {
                let path = folder.join(format!("{name}.yaml"));
                session
                    .disk
                    .write(&path, text.expose().as_bytes())
                    .map_err(|error| CommandError::new(format!("cannot write {}", path.display())).caused_by(error))?;
                output.status(format!("wrote {}", path.display()));
            }
            None => {
                if configs.len() > 1 && args.machine.is_none() {
                    output.print(format!("# {name}"));
                }
                output.print_raw(if args.show_secrets {
                    text.expose().to_owned()
                } else {
                    masked(text.expose(), contract)?
                });
            }
        }
    }
    Ok(())
}

/// There is no connection here, so the versions of a running cluster are not known.
fn tell_versions(spec: &Spec, versions: &Versions, output: Output) {
    let Some(talos) = spec.distro.talos() else { return };
    let exact = |wish: &VersionWish| matches!(wish, VersionWish::Exact(_));
    if !exact(&talos.version) || !exact(&spec.kubernetes) {
        output.status(format!(
            "for Talos {} and Kubernetes {}, the newest that the file allows; a running cluster keeps its versions",
            versions.release, versions.kubernetes
        ));
    }
}

fn masked(text: &str, contract: Contract) -> Result<String, CommandError> {
    let config = talos_config::Config::parse(text, contract)
        .map_err(|error| CommandError::new("cannot parse the generated config").caused_by(error))?;
    Ok(config.to_masked_yaml())
}
