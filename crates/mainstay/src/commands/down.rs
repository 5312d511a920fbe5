//! `down`: deletes everything that mainstay created for this cluster, and nothing else.

use std::time::Duration;

use mainstay_engine::{Clients, EventSink, ObserveScope, Run, RunGoal, RunReport, SecretsFile, observe};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::up;
use crate::args::DownArgs;
use crate::error::CommandError;
use crate::output::Output;
use crate::run::{Prompt, log_name, run_with_views};
use crate::run_log::RunLog;
use crate::session::Session;
use crate::view;
use mainstay_plan::{ClusterSecrets, derive};

pub async fn run(session: &Session, args: &DownArgs, output: Output) -> Result<(), CommandError> {
    let spec = session.spec();
    if spec.protect {
        return Err(CommandError::refused(format!("{} is protected", spec.name))
            .why("the cluster file has `protect: true`")
            .help("remove that line if the cluster should really be deleted"));
    }
    if let Some(name) = args.name.as_ref().filter(|name| *name != spec.name.as_str()) {
        return Err(
            CommandError::refused(format!("the name of the cluster is {}, not {name}", spec.name)).help("nothing was changed"),
        );
    }
    session.check_jump_host().await?;
    let secrets = session.secrets()?;
    let clients = session.clients(secrets.as_ref(), &EventSink::discard())?;
    let images = if args.images {
        images(session, secrets.as_ref(), &clients).await?
    } else {
        Vec::new()
    };
    let run = Run {
        spec,
        clients: &clients,
        secrets: secrets.as_ref(),
        goal: RunGoal::Down { images },
        holder: session.process_env.holder.clone(),
        despite_lease: args.take_lease,
        with_disks: args.with_disk.iter().cloned().collect(),
        policy: mainstay_plan::TurnPolicy::default(),
        addons: mainstay_plan::addon::wanted::AddonRequests::default(),
        events: EventSink::discard(),
        stop: CancellationToken::new(),
    };
    let log = RunLog::new(
        &session.process_env.runs(),
        secrets.as_ref().map_or(Uuid::nil(), ClusterSecrets::id),
        log_name(session.env.wall.now()),
        false,
        output,
    );
    let prompt = Prompt {
        yes: args.yes,
        question: "This deletes the machines and their data. Type the name of the cluster to confirm:".into(),
        accepts: &|line| line == spec.name.as_str(),
        help: format!("pass --yes --name {} to delete the cluster without asking", spec.name),
        approved: &mut || Ok(()),
    };
    let mut ended = run_with_views(session, "down", run, log, prompt, output).await;
    let outcome = std::mem::replace(&mut ended.outcome, Err(CommandError::ExitOnly(0)));
    // `down` wants no nodes.
    ended.report.nodes = None;
    let result = outcome.and_then(|report| closing(session, args, &report, ended.took));
    ended.close(result)
}

fn closing(session: &Session, args: &DownArgs, report: &RunReport, took: Duration) -> Result<Vec<String>, CommandError> {
    let name = session.spec().name.as_str();
    if !report.is_settled() {
        return Err(up::held_up(name, "gone", report));
    }
    if args.forget {
        forget(session)?;
    }
    let steps = if report.done == 0 {
        "there was nothing to delete".to_owned()
    } else {
        format!("{} in {}", view::count(report.done, "step"), view::clock(took))
    };
    let mut lines = vec![format!("{name} is gone: {steps}.")];
    lines.extend(report.held.iter().map(|held| format!("kept: {}", up::held_line(held))));
    lines.extend(left(session, args));
    Ok(lines)
}

/// The images that the machines use. They are read before the machines are deleted: only the machines say which version they run.
async fn images(session: &Session, secrets: Option<&ClusterSecrets>, clients: &Clients) -> Result<Vec<String>, CommandError> {
    let scope = ObserveScope {
        compare: secrets.map(|secrets| (session.spec(), secrets)),
        ..ObserveScope::of(session.spec(), secrets.map(ClusterSecrets::id))
    };
    let seen = observe(clients, &scope).await?;
    Ok(derive::image_files(session.spec(), secrets, &seen.observed, &seen.pins)?
        .into_iter()
        .collect())
}

/// What is kept, and how to remove it too.
fn left(session: &Session, args: &DownArgs) -> Vec<String> {
    let mut lines = Vec::new();
    if !args.images {
        lines.push("kept: downloaded images (mainstay down --images deletes them)".to_owned());
    }
    let secrets = SecretsFile::secrets_path(&session.file);
    if secrets.exists() {
        lines.push(format!("kept: {} (mainstay down --forget deletes it)", secrets.display()));
    }
    lines
}

fn forget(session: &Session) -> Result<(), CommandError> {
    let path = SecretsFile::secrets_path(&session.file);
    session
        .disk
        .remove(&path)
        .map_err(|error| CommandError::new(format!("cannot delete {}", path.display())).caused_by(error))
}
