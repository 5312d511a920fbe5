//! `config`: the machine configs that would be applied, offline.

use mainstay_engine::{SecretsFile, derive};
use talos_config::Secrets;
use talos_config::versions::Contract;

use crate::args::Config;
use crate::output::Output;
use crate::problem::Problem;
use crate::session::Session;

pub fn run(session: &Session, args: &Config, output: Output) -> Result<(), Problem> {
    let spec = session.spec();
    if let Some(name) = args.machine.as_ref().filter(|name| spec.machine(name).is_none()) {
        let names: Vec<&str> = spec.machines.iter().map(|machine| machine.name.as_str()).collect();
        return Err(Problem::usage(format!("there is no machine {name}")).help(format!("the machines are: {}", names.join(", "))));
    }
    let secrets = session
        .secrets()?
        .ok_or_else(|| Problem::no_secrets(&SecretsFile::beside(&session.file)))?;
    let contract = Contract::of(&derive::versions(spec, None, None)?.talos).classic();
    let configs = configs(session, &secrets)?;
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
                    .map_err(|error| Problem::plain(format!("{} cannot be written", path.display())).caused_by(error))?;
                output.tell(format!("wrote {}", path.display()));
            }
            None => {
                if configs.len() > 1 && args.machine.is_none() {
                    output.result(format!("# {name}"));
                }
                output.raw(if args.show_secrets {
                    text.expose().to_owned()
                } else {
                    masked(text.expose(), contract)?
                });
            }
        }
    }
    Ok(())
}

fn configs(session: &Session, secrets: &Secrets) -> Result<std::collections::BTreeMap<String, mainstay_plan::Config>, Problem> {
    let versions = derive::versions(session.spec(), None, None)?;
    Ok(derive::configs(session.spec(), secrets, &versions)?)
}

fn masked(text: &str, contract: Contract) -> Result<String, Problem> {
    let config = talos_config::Config::parse(text, contract)
        .map_err(|error| Problem::plain("a config of ours cannot be read").caused_by(error))?;
    Ok(config.to_masked_yaml())
}
