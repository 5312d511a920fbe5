//! `plan`: shows what `up` would do. Changes nothing and creates no secrets.

use mainstay_engine::{Events, Run, RunError, Wanted, look_and_plan};
use tokio_util::sync::CancellationToken;

use super::up;
use crate::args::PlanArgs;
use crate::error::CommandError;
use crate::exit;
use crate::output::Output;
use crate::run::plan_text;
use crate::session::Session;
use crate::wire::{EventLine, PlanEvent, WireEvent};

pub async fn run(session: &Session, args: &PlanArgs, output: Output) -> Result<(), CommandError> {
    up::warnings(session, output);
    session.check_jump_host().await?;
    let secrets = session.secrets()?;
    let site = session.site(secrets.as_ref(), &Events::unheard())?;
    let run = Run {
        spec: session.spec(),
        site: &site,
        secrets: secrets.as_ref(),
        wanted: Wanted::Cluster,
        holder: session.process_env.holder.clone(),
        despite_lease: true,
        with_disks: std::collections::BTreeSet::new(),
        events: Events::unheard(),
        stop: CancellationToken::new(),
    };
    let (plan, _, seen) = look_and_plan(&run).await?;
    if !plan.refusals.is_empty() {
        return Err(RunError::Refused(plan.into()).into());
    }
    if output.json {
        output.print(EventLine::untimed(WireEvent::Plan(PlanEvent::new(&plan))).to_json());
    } else {
        output.print(plan_text(&plan, &seen, session, output));
        if !plan.is_settled() {
            output.print("Nothing was changed. To do this: mainstay up");
        }
    }
    if args.check && (!plan.is_settled() || plan.is_held_up()) {
        Err(CommandError::ExitOnly(exit::WORK_FOUND))
    } else {
        Ok(())
    }
}
