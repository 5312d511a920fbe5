//! `status`: facts first, then findings, the worst last. Exit code 0 only if everything is ok.

use std::time::Duration;

use mainstay_engine::{Clients, EventSink, ObserveScope, health, observe};
use tokio::time::sleep;

use crate::args::StatusArgs;
use crate::error::CommandError;
use crate::exit;
use crate::output::Output;
use crate::session::Session;
use crate::signals::Signals;
use crate::view::status::{StatusFacts, StatusPage, page};
use mainstay_plan::ClusterSecrets;

/// The pause between two observations of `--watch`.
const AGAIN: Duration = Duration::from_secs(5);

pub async fn run(session: &Session, args: &StatusArgs, output: Output) -> Result<(), CommandError> {
    session.check_jump_host().await?;
    let secrets = session.secrets()?;
    let site = session.clients(secrets.as_ref(), &EventSink::discard())?;
    if !args.watch {
        let page = look(session, secrets.as_ref(), &site).await?;
        show(&page, output, false);
        return if page.is_well() {
            Ok(())
        } else {
            Err(CommandError::ExitOnly(exit::UNHEALTHY))
        };
    }
    let mut interrupts = Signals::listen();
    let watching = async {
        loop {
            let page = look(session, secrets.as_ref(), &site).await?;
            show(&page, output, true);
            sleep(AGAIN).await;
        }
    };
    tokio::select! {
        biased;
        () = interrupts.next() => Ok(()),
        ended = watching => ended,
    }
}

async fn look(session: &Session, secrets: Option<&ClusterSecrets>, site: &Clients) -> Result<StatusPage, CommandError> {
    let scope = ObserveScope {
        addons: Some(session.spec()),
        ..ObserveScope::of(session.spec(), secrets.map(ClusterSecrets::id))
    };
    let (observation, health) = tokio::join!(observe(site, &scope), health(site, session.spec(), secrets.is_some()));
    let facts = StatusFacts {
        secrets,
        observed: &observation?.observed,
        health: health.as_ref(),
        recipients: session.secrets_file()?.recipients().unwrap_or_default().len(),
        now: session.env.wall.now(),
    };
    Ok(page(session.spec(), &facts))
}

fn show(page: &StatusPage, output: Output, again: bool) {
    if output.json {
        output.print_json(&page.to_json());
        return;
    }
    if again && output.live {
        // Clear the screen, so that the page stays in place.
        output.print_raw("\x1b[H\x1b[2J");
    }
    output.print(page.text(output.width()));
}
