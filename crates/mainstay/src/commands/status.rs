//! `status`: facts first, then judgement, worst last. Exit 0 only when all is well.

use std::time::Duration;

use mainstay_engine::{Events, Scope, Site, derive, observe};
use talos_config::Secrets;
use tokio::time::sleep;

use crate::args::Status;
use crate::interrupts::Interrupts;
use crate::output::Output;
use crate::problem::Problem;
use crate::session::Session;
use crate::view::status::{Page, page};

/// Between two looks of `--watch`.
const AGAIN: Duration = Duration::from_secs(5);

pub async fn run(session: &Session, args: &Status, output: Output) -> Result<(), Problem> {
    session.reach().await?;
    let secrets = session.secrets()?;
    let site = session.site(secrets.as_ref(), &Events::unheard())?;
    if !args.watch {
        let page = look(session, secrets.as_ref(), &site).await?;
        show(&page, output, false);
        return if page.is_well() { Ok(()) } else { Err(Problem::Said(1)) };
    }
    let mut interrupts = Interrupts::listen();
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

async fn look(session: &Session, secrets: Option<&Secrets>, site: &Site) -> Result<Page, Problem> {
    let scope = Scope::of(session.spec(), secrets.map(derive::cluster_id));
    let observed = observe(site, &scope).await?.observed;
    let recipients = session.secrets_file()?.recipients().unwrap_or_default().len();
    Ok(page(session.spec(), secrets, &observed, recipients, session.env.wall.now()))
}

fn show(page: &Page, output: Output, again: bool) {
    if output.json {
        output.object(&page.object());
        return;
    }
    if again && output.live {
        // The screen from its top, so that the page stays where it is.
        output.raw("\x1b[H\x1b[2J");
    }
    output.result(page.text(output.width()));
}
