//! `setup`: makes user, roles, access list and API token for one cluster through the API, and writes the cluster file with what it found.

mod access;
mod connect;
mod token_file;
mod undo;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstay_engine::{Clients, EventSink, FileStore, Journal, ObserveScope, OsFiles, observe, preflight, pve_version};
use mainstay_net::{Entropy, Env, Secret, Target, Tcp, Trust, Wall};
use mainstay_plan::Observed;
use mainstay_spec::{Checked, Environment, Spec};
use pve_api::privileges::Grant;
use pve_api::storage::{self, Definition};
use pve_api::{Client, ClientOptions, Content, Endpoint};
use rand::Rng;
use uuid::Uuid;

use super::ask::Questions;
use super::{addresses, init, trust};
use crate::args::SetupArgs;
use crate::error::CommandError;
use crate::output::Output;
use crate::process_env::ProcessEnv;
use crate::session::{self, Session};
use access::{Access, Change};
use token_file::TokenFile;

/// Where everything goes, and how Proxmox VE is reached.
struct Site {
    file: PathBuf,
    token_path: PathBuf,
    disk: Arc<dyn FileStore>,
    env: Env,
    target: Target,
    trust: Trust,
    endpoint: String,
    process_env: ProcessEnv,
    /// The file is there already; it decides.
    present: Option<Checked>,
}

pub async fn run(file: &Path, args: &SetupArgs, process_env: ProcessEnv, output: Output) -> Result<(), CommandError> {
    let mut ask = Questions::new(output);
    let site = open(file, args, process_env, &mut ask, output).await?;
    let kept = TokenFile::read(&*site.disk, &site.token_path)?;
    if args.undo {
        return undo::run(&site, kept, args, &mut ask, output).await;
    }
    if let (true, Some(checked), Some(kept)) = (args.show, &site.present, &kept)
        && kept.token.is_some()
    {
        return show_done(&site, checked, kept, output).await;
    }
    let pve = connect::log_in(&site.env, &site.target, &site.trust, args, &site.process_env, &mut ask).await?;
    let (text, checked) = cluster_file(&site, args, &pve).await?;
    let spec = &checked.spec;
    let grants = grants(&site, spec, &pve).await?;
    let id = kept.as_ref().map_or_else(|| new_id(&site.env), |kept| kept.id);
    let access = Access::new(spec.name.as_str(), id, &grants);
    if args.show {
        access.commands().iter().for_each(|line| output.print(line));
        if let Some(storage) = import_change(&pve, spec).await? {
            output.print(import_command(&storage));
        }
        return Ok(());
    }
    may_set_up(&pve).await?;
    let has_secret = kept.as_ref().is_some_and(|kept| kept.token.is_some());
    let (changes, notes) = access::missing(&pve, &access, id, has_secret).await?;
    notes.iter().for_each(|note| output.status(format!("note: {note}")));
    let import = import_change(&pve, spec).await?;
    let import = approve(&site, &access, &changes, text.is_some(), import, args, &mut ask, output).await?;

    // From here on nothing is printed before the end: a closed pipe would end the program between a token and its file.
    if kept.is_none() {
        TokenFile::create(&*site.disk, &site.token_path, id)?;
    }
    let ignored = token_file::ignore_in_git(&site.token_path);
    apply(&site, &pve, &access, id, &changes).await?;
    if let Some(definition) = &import {
        add_import(&pve, definition).await?;
    }
    if let Some(text) = &text {
        init::write_files(&site.file, text)?;
    }
    check_token(&site, &grants).await?;
    output.status(format!(
        "{} works: it has all privileges that this file needs",
        access.token()
    ));
    output.status(format!("token: {} (keep it out of git)", site.token_path.display()));
    if let Err(error) = ignored {
        output.status(format!("cannot add it to .gitignore: {error}"));
    }
    output.status(format!("Review {}, then: mainstay plan", site.file.display()));
    if text.is_some() && site.present.is_none() && ask.can_ask() {
        output.status("To choose the distribution, the number of machines and their addresses: mainstay init --force");
    }
    Ok(())
}

/// Endpoint and trust: from the file if there is one, else from flags, the environment and questions.
async fn open(
    file: &Path,
    args: &SetupArgs,
    process_env: ProcessEnv,
    ask: &mut Questions,
    output: Output,
) -> Result<Site, CommandError> {
    let beside = |name: &str| file.with_file_name(name);
    if file.exists() {
        let session = Session::open(file, process_env)?;
        let endpoint = session.spec().datacenter.endpoint.clone();
        let named = session.spec().datacenter.token_file.clone();
        return Ok(Site {
            file: file.to_path_buf(),
            token_path: named.map_or_else(|| default_token_path(file), |name| beside(&name)),
            disk: session.disk.clone(),
            env: session.env.clone(),
            target: trust::target_of(endpoint.as_str())?,
            trust: session.pve_trust(),
            endpoint: endpoint.to_string(),
            process_env: session.process_env,
            present: Some(session.checked),
        });
    }
    if args.undo {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(CommandError::unreadable(file, &missing));
    }
    let env = Env {
        dialer: Arc::new(Tcp),
        wall: Wall::real(),
        entropy: Entropy::from_os(),
    };
    let endpoint = match args.endpoint.clone().or_else(|| process_env.endpoint.clone()) {
        Some(endpoint) => endpoint,
        None => {
            ask.text("Proxmox VE address, e.g. https://pve.lan:8006", None, "pass --endpoint")
                .await?
        }
    };
    let target = trust::target_of(&endpoint)?;
    let fingerprint = connect::pin(&env, &target, args, ask, output).await?;
    Ok(Site {
        file: file.to_path_buf(),
        token_path: default_token_path(file),
        disk: Arc::new(OsFiles),
        env,
        endpoint: format!("https://{target}"),
        target,
        trust: Trust::Pin(fingerprint),
        process_env,
        present: None,
    })
}

/// `cluster.token` beside `cluster.yaml`.
fn default_token_path(file: &Path) -> PathBuf {
    file.with_extension("token")
}

/// The cluster file: its new text, if it is to be written, and what it says.
async fn cluster_file(site: &Site, args: &SetupArgs, pve: &Client) -> Result<(Option<String>, Checked), CommandError> {
    let name = site
        .token_path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("cluster.token");
    let text = match &site.present {
        Some(checked) if checked.spec.datacenter.token_file.is_some() => return Ok((None, checked.clone())),
        Some(_) => {
            let text = std::fs::read_to_string(&site.file).map_err(|error| CommandError::unreadable(&site.file, &error))?;
            with_token_file(&text, name).ok_or_else(|| {
                CommandError::refused(format!(
                    "{} has no line `datacenter:` to add a key below",
                    site.file.display()
                ))
                .help(format!(
                    "add `token-file: {name}` to `datacenter` yourself, then run setup again"
                ))
            })?
        }
        None => {
            let Trust::Pin(fingerprint) = &site.trust else {
                return Err(CommandError::usage("no certificate is pinned"));
            };
            let found = init::scan(pve, site.endpoint.clone(), Some(*fingerprint)).await?;
            let first = addresses::free_block(&site.env, found.network()).await;
            init::write(&args.name, &found, Some(name), &init::ClusterChoice::usual(&found, first))
        }
    };
    let folder = site.file.parent().map(Path::to_path_buf).unwrap_or_default();
    let named = |name: &str| std::fs::read(folder.join(name)).ok();
    let checked = mainstay_spec::load(&text, &site.file.display().to_string(), &Environment::default(), &named);
    checked.map(|checked| (Some(text), checked)).map_err(CommandError::Spec)
}

/// The key as the first line below `datacenter:`.
fn with_token_file(text: &str, name: &str) -> Option<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = lines.iter().position(|line| line.trim_end() == "datacenter:")?;
    let indent = lines
        .get(at + 1)
        .map_or(2, |line| (line.len() - line.trim_start().len()).max(1));
    lines.insert(at + 1, format!("{}token-file: {name}", " ".repeat(indent)));
    Some(lines.join("\n") + "\n")
}

async fn look(site: &Site, spec: &Spec, pve: &Client) -> Result<Observed, CommandError> {
    let journal = Journal::open(
        site.disk.clone(),
        &site.process_env.journals(),
        Uuid::nil(),
        EventSink::discard(),
    );
    let clients = Clients::new(site.env.clone(), pve.clone(), spec, None, journal, None)?;
    Ok(observe(&clients, &ObserveScope::of(spec, None)).await?.observed)
}

async fn grants(site: &Site, spec: &Spec, pve: &Client) -> Result<Vec<Grant>, CommandError> {
    let observed = look(site, spec, pve).await?;
    Ok(preflight::grants(spec, Some(&observed), pve_version(&observed.pve)))
}

/// What was set up, read with the cluster's own token: no administrator is needed to see it.
async fn show_done(site: &Site, checked: &Checked, kept: &TokenFile, output: Output) -> Result<(), CommandError> {
    let pve = token_client(site)?;
    let grants = grants(site, &checked.spec, &pve).await?;
    let access = Access::new(checked.spec.name.as_str(), kept.id, &grants);
    access.commands().iter().for_each(|line| output.print(line));
    Ok(())
}

fn token_client(site: &Site) -> Result<Client, CommandError> {
    let endpoint = Endpoint {
        target: site.target.clone(),
        trust: site.trust.clone(),
        host: None,
    };
    let login = session::token_from(&site.token_path)?;
    Client::new(&site.env, vec![endpoint], login, ClientOptions::default())
        .map_err(|error| CommandError::new("the certificate settings are not valid").caused_by(error))
}

fn new_id(env: &Env) -> Uuid {
    let mut bytes = [0; 16];
    env.entropy.fork("setup").rng().fill_bytes(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

/// Lists are filtered silently for those who may not see all of them, so that rights are checked before anything is compared.
async fn may_set_up(pve: &Client) -> Result<(), CommandError> {
    if pve.principal() == "root@pam" {
        return Ok(());
    }
    let held = pve.call(pve_api::access::permissions()).await?;
    let needed = [
        ("/access/realm/pve", "Realm.AllocateUser"),
        ("/access/groups", "User.Modify"),
        ("/access", "Sys.Modify"),
        ("/", "Permissions.Modify"),
    ];
    let lacking: Vec<String> = needed
        .iter()
        .filter(|(path, privilege)| !held.allows(path, privilege))
        .map(|(path, privilege)| format!("{privilege} on {path}"))
        .collect();
    if lacking.is_empty() {
        return Ok(());
    }
    Err(
        CommandError::refused(format!("{} may not create users, roles and tokens", pve.principal()))
            .why(format!("it lacks {}", lacking.join(", ")))
            .help("log in as an administrator, e.g. root@pam; nothing was changed"),
    )
}

/// The storage for images, if it does not allow `import` yet.
async fn import_change(pve: &Client, spec: &Spec) -> Result<Option<Definition>, CommandError> {
    let definitions = pve.call(storage::definitions()).await?;
    let images = spec.datacenter.storage.images.as_ref().map(ToString::to_string);
    let usable = || definitions.iter().filter(|definition| !definition.disable);
    let chosen = match &images {
        Some(images) => usable().find(|definition| definition.storage.to_string() == *images),
        None if usable().any(|definition| definition.content.contains(&Content::Import)) => return Ok(None),
        None => usable().find(|definition| definition.kind.keeps_files()),
    };
    let help = "set `datacenter.storage.images` to a storage of type dir, nfs, cifs or btrfs; nothing was changed";
    let Some(chosen) = chosen else {
        return Err(CommandError::refused("no storage can hold images").help(help));
    };
    if chosen.content.contains(&Content::Import) {
        return Ok(None);
    }
    if !chosen.kind.keeps_files() {
        return Err(
            CommandError::refused(format!("storage {} cannot hold images", chosen.storage))
                .why("its type keeps no files, which the content type `import` needs")
                .help(help),
        );
    }
    Ok(Some(chosen.clone()))
}

/// What `--enable-import` does, on the command line of a host.
fn import_command(storage: &Definition) -> String {
    let mut content: Vec<String> = storage.content.iter().map(ToString::to_string).collect();
    content.push(Content::Import.to_string());
    format!(
        "pvesm set {} --content {}   # with --enable-import",
        storage.storage,
        content.join(",")
    )
}

/// Shows every change and asks. The storage is not ours, so that it has a question and a flag of its own.
#[expect(clippy::too_many_arguments, reason = "one question about everything that was found")]
async fn approve(
    site: &Site,
    access: &Access,
    changes: &[Change],
    writes_file: bool,
    import: Option<Definition>,
    args: &SetupArgs,
    ask: &mut Questions,
    output: Output,
) -> Result<Option<Definition>, CommandError> {
    if changes.is_empty() {
        output.status("On Proxmox VE everything is set up already.");
    } else {
        output.status(format!("On {}:", site.target));
        changes
            .iter()
            .for_each(|change| output.status(format!("  {}", change.text(access))));
    }
    let writes_token = changes.iter().any(|change| matches!(change, Change::CreateToken));
    if writes_file || writes_token {
        output.status("Here:");
    }
    if writes_file {
        let sign = if site.present.is_some() { "~" } else { "+" };
        output.status(format!("  {sign} {}", site.file.display()));
    }
    if writes_token {
        output.status(format!(
            "  + {} (only you can read it), named in .gitignore",
            site.token_path.display()
        ));
    }
    let flag = "pass --yes to apply this without asking";
    if !args.yes && !ask.confirm("Apply these changes?", flag).await? {
        return Err(CommandError::refused("not confirmed").help("nothing was changed"));
    }
    let Some(definition) = import else { return Ok(None) };
    let id = &definition.storage;
    output.status(format!(
        "Storage {id} does not allow content type `import`, which images need. It is not part of this cluster."
    ));
    let wanted = args.enable_import
        || (!args.yes
            && ask.can_ask()
            && ask
                .confirm(&format!("Add `import` to storage {id}?"), "pass --enable-import")
                .await?);
    if !wanted {
        output.status("It stays as it is. Later: mainstay setup --enable-import");
    }
    Ok(wanted.then_some(definition))
}

async fn apply(site: &Site, pve: &Client, access: &Access, id: Uuid, changes: &[Change]) -> Result<(), CommandError> {
    for change in changes {
        let outcome = match change.call(access) {
            Some(call) => pve.call(call).await.map(drop).map_err(CommandError::from),
            None => make_token(site, pve, access, id).await,
        };
        outcome.map_err(|error| {
            error
                .help(format!("it was this change: {}", change.text(access)))
                .help("run setup again: it continues where it stopped; `setup --undo` takes back what was made")
        })?;
    }
    Ok(())
}

/// A token whose secret cannot be written is deleted: it could never be used, and would stay.
async fn make_token(site: &Site, pve: &Client, access: &Access, id: Uuid) -> Result<(), CommandError> {
    let name = access.token();
    let (_, short) = name.split_once('!').unwrap_or_default();
    let made = pve
        .call(pve_api::access::create_token(&access.user, short, true, &access.comment))
        .await?;
    let token = Secret::new(format!("{}={}", made.full_tokenid, made.value.expose()));
    if let Err(error) = TokenFile::fill(&*site.disk, &site.token_path, id, &token) {
        pve.call(pve_api::access::delete_token(&access.user, short)).await?;
        return Err(CommandError::new(format!("cannot write {}", site.token_path.display()))
            .caused_by(error)
            .help("the new token was deleted again"));
    }
    Ok(())
}

/// `PUT` replaces the whole list: the present one is read, and the digest refuses a change in between.
async fn add_import(pve: &Client, definition: &Definition) -> Result<(), CommandError> {
    let now = pve.call(storage::definition(&definition.storage)).await?;
    let mut content = now.content.clone();
    content.insert(Content::Import);
    pve.call(storage::set_content(&definition.storage, &content, now.digest.as_ref()))
        .await
        .map(drop)
        .map_err(|error| {
            CommandError::from(error).help(format!(
                "storage {} was not changed; user and token are ready",
                definition.storage
            ))
        })
}

/// Uses the new token once, as every later command will.
async fn check_token(site: &Site, grants: &[Grant]) -> Result<(), CommandError> {
    let held = token_client(site)?.call(pve_api::access::permissions()).await?;
    let missing: Vec<String> = grants
        .iter()
        .filter_map(|grant| grant.missing(&held))
        .map(|grant| crate::text::format_grant(&grant))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(CommandError::new("the new token lacks privileges").because(missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_added_below_its_section() {
        let before = "name: x\ndatacenter:\n    endpoint: https://pve:8006\n";
        let after = with_token_file(before, "x.token").expect("has a section");
        assert_eq!(
            after,
            "name: x\ndatacenter:\n    token-file: x.token\n    endpoint: https://pve:8006\n"
        );
        assert_eq!(with_token_file("name: x\n", "x.token"), None);
    }
}
