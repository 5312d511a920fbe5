//! `plan`: shows what `up` would do. Changes nothing and creates no secrets.

use mainstay_engine::{EventSink, PlannedRound, Run, RunError, RunGoal, observe_and_plan};
use tokio_util::sync::CancellationToken;

use super::up;
use crate::args::PlanArgs;
use crate::error::CommandError;
use crate::exit;
use crate::output::Output;
use crate::run::plan_text;
use crate::session::Session;
use crate::wire::{EventLine, PlanEvent, WireEvent, pools};

pub async fn run(session: &Session, args: &PlanArgs, output: Output) -> Result<(), CommandError> {
    up::warnings(session, output);
    session.check_jump_host().await?;
    let secrets = session.secrets()?;
    let clients = session.clients(secrets.as_ref(), &EventSink::discard())?;
    let run = Run {
        spec: session.spec(),
        clients: &clients,
        secrets: secrets.as_ref(),
        goal: RunGoal::Up,
        holder: session.process_env.holder.clone(),
        despite_lease: true,
        with_disks: std::collections::BTreeSet::new(),
        policy: args.turns.policy(),
        addons: mainstay_plan::addon::wanted::AddonRequests::default(),
        events: EventSink::discard(),
        stop: CancellationToken::new(),
    };
    let PlannedRound {
        plan, observed: seen, ..
    } = observe_and_plan(&run).await?;
    if !plan.refusals.is_empty() {
        return Err(RunError::Refused(plan.into()).into());
    }
    if output.json {
        output.print(EventLine::untimed(WireEvent::Plan(PlanEvent::new(&plan, &pools(session.spec())))).to_json());
    } else {
        output.print(plan_text(&plan, &seen, session, output));
        if !plan.is_settled() {
            output.print("Nothing was changed. To do this: mainstay up");
        }
    }
    if args.check && (!plan.is_settled() || plan.is_blocked()) {
        Err(CommandError::ExitOnly(exit::WORK_FOUND))
    } else {
        Ok(())
    }
}
