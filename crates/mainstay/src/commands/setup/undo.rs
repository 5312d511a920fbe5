//! `setup --undo`: deletes what carries the setup id, and nothing else.

use mainstay_engine::SecretsFile;
use mainstay_plan::{Mark, Observed};

use super::super::ask::Questions;
use super::access::{self, Access};
use super::token_file::TokenFile;
use super::{Site, connect, look};
use crate::args::SetupArgs;
use crate::error::CommandError;
use crate::output::Output;
use mainstay_engine::{preflight, pve_version};

pub async fn run(
    site: &Site,
    kept: Option<TokenFile>,
    args: &SetupArgs,
    ask: &mut Questions,
    output: Output,
) -> Result<(), CommandError> {
    let (Some(kept), Some(checked)) = (kept, &site.present) else {
        return Err(CommandError::usage(format!("{} does not exist", site.token_path.display()))
            .why("it has the setup id, by which setup knows what it made"));
    };
    let spec = &checked.spec;
    let pve = connect::log_in(&site.env, &site.target, &site.trust, args, &site.process_env, ask).await?;
    super::may_set_up(&pve).await?;
    let observed = look(site, spec, &pve).await?;
    refuse_with_machines(site, spec.name.as_str(), &observed)?;
    let grants = preflight::grants(spec, Some(&observed), pve_version(&observed.pve));
    let access = Access::new(spec.name.as_str(), kept.id, &grants);
    let (changes, stays) = access::leftover(&pve, &access, kept.id).await?;
    output.status(format!("On {}:", site.target));
    changes
        .iter()
        .for_each(|change| output.status(format!("  {}", change.text(&access))));
    output.status(format!("Here:\n  - {}", kept.path.display()));
    stays.iter().for_each(|line| output.status(format!("kept: {line}")));
    if !args.yes && !ask.confirm("Delete this?", "pass --yes to delete it without asking").await? {
        return Err(CommandError::refused("not confirmed").help("nothing was changed"));
    }
    for call in changes.iter().filter_map(|change| change.call(&access)) {
        pve.call(call).await?;
    }
    // Last: the id in it finds what an interrupted run left.
    site.disk
        .remove(&kept.path)
        .map_err(|error| CommandError::new(format!("cannot delete {}", kept.path.display())).caused_by(error))?;
    output.status(format!(
        "{} is deleted. Content type `import` of storages stays as it is.",
        access.user
    ));
    Ok(())
}

/// Machines that no token reaches any more could not be changed or deleted by mainstay.
fn refuse_with_machines(site: &Site, cluster: &str, observed: &Observed) -> Result<(), CommandError> {
    let Some(vms) = observed.vms.yes() else {
        return Err(CommandError::refused("not all machines can be seen").help("log in as an administrator; nothing was changed"));
    };
    let marks = vms.values().filter_map(|vm| Mark::parse(&vm.config.yes()?.description));
    let ours: Vec<String> = marks
        .filter(|mark| mark.cluster == cluster)
        .map(|mark| mark.machine)
        .collect();
    if ours.is_empty() {
        return Ok(());
    }
    let secrets = SecretsFile::secrets_path(&site.file);
    Err(
        CommandError::refused(format!("machines of {cluster} exist: {}", ours.join(", ")))
            .help(format!("delete them first: mainstay down (it needs {})", secrets.display()))
            .help("nothing was changed"),
    )
}
