//! `secrets`: shows the contents of the file, and imports the secrets of an existing cluster.

use mainstay_engine::SecretsFile;
use mainstay_plan::{BundleError, ClusterSecrets};

use crate::args;
use crate::error::CommandError;
use crate::output::Output;
use crate::session::Session;

pub fn run(session: &Session, args: &args::SecretsArgs, output: Output) -> Result<(), CommandError> {
    match args {
        args::SecretsArgs::Show => show(session, output),
        args::SecretsArgs::Import { from } => import(session, from, output),
    }
}

fn show(session: &Session, output: Output) -> Result<(), CommandError> {
    let file = session.secrets_file()?;
    let Some(secrets) = file.load()? else {
        return Err(CommandError::no_secrets(file.path()));
    };
    let recipients = file.recipients()?;
    if output.json {
        let contents: Vec<_> = secrets
            .contents()
            .into_iter()
            .map(|(name, expires)| serde_json::json!({"name": name, "expires": expires.map(|at| at.to_string())}))
            .collect();
        output.print_json(
            &serde_json::json!({"v": 1, "type": "secrets", "file": file.path(), "recipients": recipients, "contents": contents}),
        );
        return Ok(());
    }
    output.print(format!("{} can be decrypted by", file.path().display()));
    recipients.iter().for_each(|recipient| output.print(format!("  {recipient}")));
    output.print("and contains");
    for (name, expires) in secrets.contents() {
        let expires = expires
            .map(|at| format!("  expires {}", at.strftime("%Y-%m-%d")))
            .unwrap_or_default();
        output.print(format!("  {name:<36}{expires}").trim_end());
    }
    if recipients.len() == 1 {
        output.status("only one age key decrypts this file: back it up, or add a second recipient with `sops updatekeys`");
    }
    Ok(())
}

fn import(session: &Session, from: &std::path::Path, output: Output) -> Result<(), CommandError> {
    let content = std::fs::read(from).map_err(|error| CommandError::unreadable(from, &error))?;
    let identities = session.identities()?;
    let text = if sops_file::is_encrypted(&content) {
        let opened = sops_file::decrypt(&content, &identities)
            .map_err(|error| CommandError::new(format!("cannot decrypt {}", from.display())).caused_by(error))?;
        opened.text().to_owned()
    } else {
        String::from_utf8(content).map_err(|_| CommandError::usage(format!("{} is not UTF-8 text", from.display())))?
    };
    let bad = |error: BundleError| {
        CommandError::usage(format!("{} does not contain the secrets of a cluster", from.display())).because(error.problems)
    };
    let secrets = ClusterSecrets::from_yaml(&text).map_err(bad)?;
    let recipients = session.recipients(&identities)?;
    if recipients.recipients.is_empty() {
        return Err(CommandError::usage("no age key to encrypt the secrets for")
            .help("create one: age-keygen -o ~/.config/sops/age/keys.txt")
            .help("or name recipients in a .sops.yaml"));
    }
    let file = SecretsFile::new(session.disk.clone(), SecretsFile::secrets_path(&session.file), identities);
    file.store(&secrets, &recipients, session.env.wall.now(), &session.env.entropy)?;
    output.status(format!("wrote {}", file.path().display()));
    Ok(())
}
