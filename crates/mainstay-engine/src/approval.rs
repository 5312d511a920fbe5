//! Approval of a plan: a request that the run sends to its caller, and an answer that the run awaits.
//!
//! The run never blocks on a question. It awaits the answer together with the stop token, so that Ctrl-C works while the question is open.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstay_plan::{Observed, Plan, Step};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::event::{Event, EventSink};

/// A plan that needs a yes before its first step begins. Dropping the request without an answer declines it.
#[derive(Debug)]
pub struct ApprovalRequest {
    pub plan: Arc<Plan>,
    pub observed: Arc<Observed>,
    answer: oneshot::Sender<bool>,
}

impl ApprovalRequest {
    pub fn approve(self) {
        // The run may have been stopped meanwhile; then the answer has no reader.
        let _ = self.answer.send(true);
    }

    pub fn decline(self) {
        let _ = self.answer.send(false);
    }
}

/// Receives the requests of a run. It may answer at once, or pass the request on and answer later.
pub type ApprovalHandler<'a> = dyn FnMut(ApprovalRequest) + 'a;

/// The answer to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Approval {
    Approved,
    Declined,
    /// The run was told to stop while the question was open.
    Interrupted,
}

/// What was approved so far in this run.
#[derive(Debug, Default)]
pub(crate) struct Approvals {
    /// The removals of the last approved plan. A later plan with other removals must be approved again.
    removals: Option<BTreeSet<String>>,
}

impl Approvals {
    /// Asks if this plan is the first one, or removes something that no approved plan removed.
    pub(crate) async fn require(
        &mut self,
        events: &EventSink,
        stop: &CancellationToken,
        handler: &mut ApprovalHandler<'_>,
        plan: &Arc<Plan>,
        observed: &Arc<Observed>,
    ) -> Approval {
        let removals: BTreeSet<String> = plan.removals().map(step_name).collect();
        if self.removals.as_ref().is_some_and(|approved| removals.is_subset(approved)) {
            return Approval::Approved;
        }
        events.emit(Event::Approval {
            removes: plan.removals().map(|step| step.id).collect(),
        });
        let (answer, receiver) = oneshot::channel();
        handler(ApprovalRequest {
            plan: plan.clone(),
            observed: observed.clone(),
            answer,
        });
        let Some(answer) = stop.run_until_cancelled(receiver).await else {
            return Approval::Interrupted;
        };
        let approved = answer.unwrap_or(false);
        events.emit(Event::Answered { approved });
        if !approved {
            return Approval::Declined;
        }
        self.removals = Some(removals);
        Approval::Approved
    }
}

/// `machine.delete prod-w-1`: the name of a step that is the same in every plan of a run.
pub(crate) fn step_name(step: &Step) -> String {
    format!("{} {}", step.action.name(), step.subject)
}
