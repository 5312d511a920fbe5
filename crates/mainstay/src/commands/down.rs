//! `down`: everything that mainstay made for this cluster, and nothing else.

use mainstay_engine::{Events, Run, Scope, SecretsFile, Site, Wanted, derive, observe};
use mainstay_plan::{Observed, Plan};
use talos_config::Secrets;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::up;
use crate::args::Down;
use crate::output::Output;
use crate::problem::Problem;
use crate::session::Session;
use crate::view;

pub async fn run(session: &Session, args: &Down, output: Output) -> Result<(), Problem> {
    let spec = session.spec();
    if spec.protect {
        return Err(Problem::refused(format!("{} is protected", spec.name))
            .why("`protect: true` stands in the cluster file")
            .help("take it out there if the cluster is really to go"));
    }
    if let Some(name) = args.name.as_ref().filter(|name| *name != spec.name.as_str()) {
        return Err(Problem::refused(format!("the cluster is called {}, not {name}", spec.name)).help("nothing was changed"));
    }
    session.reach().await?;
    let secrets = session.secrets()?;
    let site = session.site(secrets.as_ref(), &Events::unheard())?;
    let images = if args.images {
        images(session, secrets.as_ref(), &site).await?
    } else {
        Vec::new()
    };
    let run = Run {
        spec,
        site: &site,
        secrets: secrets.as_ref(),
        wanted: Wanted::Nothing { images },
        holder: session.around.holder.clone(),
        despite_lease: args.take_lease,
        events: Events::unheard(),
        stop: CancellationToken::new(),
    };
    let ask = |plan: &Plan, seen: &Observed| approve(plan, seen, session, args, output);
    let began = Instant::now();
    let outcome = up::watched(run, ask, output).await;
    if output.json {
        output.object(&view::json_report(outcome.as_ref(), began.elapsed(), 0));
    }
    let report = outcome?;
    if !report.held.is_empty() {
        return Err(up::held_up(spec.name.as_str(), "gone", &report));
    }
    if args.forget {
        forget(session)?;
    }
    if !output.json {
        let steps = if report.done == 0 {
            "there was nothing left".to_owned()
        } else {
            format!("{} in {}", view::count(report.done, "step"), view::clock(began.elapsed()))
        };
        output.tell(format!("{} is gone: {steps}.", spec.name));
        left(session, args).iter().for_each(|line| output.tell(line));
    }
    Ok(())
}

/// Before the machines go: only they know what they run.
async fn images(session: &Session, secrets: Option<&Secrets>, site: &Site) -> Result<Vec<String>, Problem> {
    let scope = Scope::of(session.spec(), secrets.map(derive::cluster_id));
    let observed = observe(site, &scope).await?.observed;
    Ok(derive::image_files(session.spec(), secrets, &observed)?.into_iter().collect())
}

/// The name must be typed, or given with `--name` next to `--yes`.
fn approve(plan: &Plan, seen: &Observed, session: &Session, args: &Down, output: Output) -> bool {
    if !output.json {
        output.tell(up::plan_text(plan, seen, session, output));
    }
    if args.yes {
        return true;
    }
    if !output.can_ask() {
        output.tell(format!(
            "error: nobody to ask here; say --yes --name {} to go ahead",
            session.spec().name
        ));
        return false;
    }
    up::question("To destroy all of this with its data, type the name of the cluster: ") == session.spec().name.as_str()
}

/// What stays, and how it goes too.
fn left(session: &Session, args: &Down) -> Vec<String> {
    let mut lines = Vec::new();
    if !args.images {
        lines.push("kept: downloaded images (mainstay down --images removes them)".to_owned());
    }
    let secrets = SecretsFile::beside(&session.file);
    if secrets.exists() {
        lines.push(format!("kept: {} (mainstay down --forget removes it)", secrets.display()));
    }
    lines
}

fn forget(session: &Session) -> Result<(), Problem> {
    let path = SecretsFile::beside(&session.file);
    session
        .disk
        .remove(&path)
        .map_err(|error| Problem::plain(format!("{} cannot be removed", path.display())).caused_by(error))
}
