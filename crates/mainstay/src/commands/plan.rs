//! `plan`: what `up` would do. Changes nothing, makes no secrets.

use mainstay_engine::{Events, Run, RunError, Wanted, look_and_plan};
use tokio_util::sync::CancellationToken;

use super::up;
use crate::args::Plan;
use crate::output::Output;
use crate::problem::Problem;
use crate::session::Session;
use crate::view;

pub async fn run(session: &Session, args: &Plan, output: Output) -> Result<(), Problem> {
    up::warnings(session, output);
    session.reach().await?;
    let secrets = session.secrets()?;
    let site = session.site(secrets.as_ref(), &Events::unheard())?;
    let run = Run {
        spec: session.spec(),
        site: &site,
        secrets: secrets.as_ref(),
        wanted: Wanted::Cluster,
        holder: session.around.holder.clone(),
        despite_lease: true,
        events: Events::unheard(),
        stop: CancellationToken::new(),
    };
    let (plan, _, seen) = look_and_plan(&run).await?;
    if !plan.refusals.is_empty() {
        return Err(RunError::Refused(plan.into()).into());
    }
    if output.json {
        output.object(&view::plan_object(&plan));
    } else {
        output.result(up::plan_text(&plan, &seen, session, output));
        if !plan.is_settled() {
            output.result("Nothing was changed. To do this: mainstay up");
        }
    }
    if args.check && (!plan.is_settled() || plan.is_held_up()) {
        Err(Problem::Said(3))
    } else {
        Ok(())
    }
}
