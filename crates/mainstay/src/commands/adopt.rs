//! `adopt`: puts the marks back on a VM that lost some of them.

use mainstay_engine::{Adoption, EventSink, adopt, adoption};

use crate::args::AdoptArgs;
use crate::error::CommandError;
use crate::output::Output;
use crate::run::read_line;
use crate::session::Session;

pub async fn run(session: &Session, args: &AdoptArgs, output: Output) -> Result<(), CommandError> {
    session.check_jump_host().await?;
    let Some(secrets) = session.secrets()? else {
        return Err(CommandError::refused(format!("VM {} is not adopted", args.vmid))
            .why("the SMBIOS UUID of a machine is derived from the cluster's secrets, and there is no secrets file")
            .help("bring the secrets file back to where cluster.yaml is"));
    };
    let site = session.clients(Some(&secrets), &EventSink::discard())?;
    let found = adoption(&site, session.spec(), secrets.id(), args.vmid).await?;
    if !output.json {
        output.status(text(&found));
    }
    if found.complete {
        report(&found, false, output);
        return Ok(());
    }
    if !args.yes {
        confirm(output).await?;
    }
    adopt(&site, &found).await?;
    report(&found, true, output);
    Ok(())
}

async fn confirm(output: Output) -> Result<(), CommandError> {
    if !output.can_ask() {
        return Err(CommandError::refused("cannot ask for confirmation: stdin is not a terminal")
            .help("pass --yes to adopt the VM without asking")
            .help("nothing was changed"));
    }
    let answer = read_line("Is this VM the cluster's? From then on mainstay changes and deletes it. [y/N]");
    let answer = answer.await.unwrap_or_default();
    if answer.eq_ignore_ascii_case("y") || answer.eq_ignore_ascii_case("yes") {
        Ok(())
    } else {
        Err(CommandError::refused("the VM is not adopted").help("nothing was changed"))
    }
}

fn text(found: &Adoption) -> String {
    let name = found.vm_name.as_deref().unwrap_or("without a name");
    let state = if found.running { "running" } else { "not running" };
    format!(
        "{} ({name}, {state}) has the SMBIOS UUID {} of {}, {} of cluster {}",
        found.vm, found.vm.uuid, found.mark.machine, found.mark.role, found.mark.cluster
    )
}

fn report(found: &Adoption, changed: bool, output: Output) {
    if output.json {
        output.print_json(&serde_json::json!({
            "v": 1, "type": "adopt", "vmid": found.vm.vmid, "machine": found.mark.machine, "changed": changed
        }));
    } else if changed {
        output.print(format!(
            "{} is adopted as {}. Next: mainstay plan",
            found.vm, found.mark.machine
        ));
    } else {
        output.print(format!("{} carries all its marks, nothing was changed", found.vm));
    }
}
