//! `status`: facts first, then judgement, worst last. Exit 0 only when all is well.

use std::time::Duration;

use mainstay_engine::{Events, Scope, derive, observe};
use tokio::time::sleep;

use crate::args::Status;
use crate::output::Output;
use crate::problem::Problem;
use crate::session::Session;
use crate::view::status::{Page, page};

/// Between two looks of `--watch`.
const AGAIN: Duration = Duration::from_secs(5);

pub async fn run(session: &Session, args: &Status, output: Output) -> Result<(), Problem> {
    let secrets = session.secrets()?;
    let site = session.site(secrets.as_ref(), &Events::unheard())?;
    loop {
        let scope = Scope::of(session.spec(), secrets.as_ref().map(derive::cluster_id));
        let observed = observe(&site, &scope).await?.observed;
        let recipients = session.secrets_file()?.recipients().unwrap_or_default().len();
        let page = page(
            session.spec(),
            secrets.as_ref(),
            &observed,
            recipients,
            session.env.wall.now(),
        );
        show(&page, output, args.watch);
        if !args.watch {
            return if page.is_well() { Ok(()) } else { Err(Problem::Said(1)) };
        }
        tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => return Ok(()),
            () = sleep(AGAIN) => {}
        }
    }
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
    output.result(page.text());
}
