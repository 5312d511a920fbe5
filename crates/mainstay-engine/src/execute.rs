//! Runs a plan: whatever is ready, at once, within limits. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use mainstay_plan::{Plan, Step, StepId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::act;
use crate::event::{Event, Events, StepEvent, Voice};
use crate::failure::Failure;
use crate::limits::Limits;
use crate::site::Site;

/// How often one step is begun anew after something that may pass, before the round gives it up.
const ATTEMPTS_MAX: u32 = 5;
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    pub done: BTreeSet<StepId>,
    pub failed: BTreeMap<StepId, Arc<Failure>>,
    /// Not begun: something that they need failed, or the run was stopped.
    pub left: usize,
    pub stopped: bool,
}

/// Ends when every step has ended, failed or lost what it needs. `stop` begins nothing new and lets the running steps end.
pub async fn execute(plan: &Plan, site: &Site, limits: &Limits, events: &Events, stop: &CancellationToken) -> Outcome {
    let mut outcome = Outcome::default();
    let mut waiting: BTreeMap<StepId, &Step> = plan.steps.iter().map(|step| (step.id, step)).collect();
    let mut running = FuturesUnordered::new();
    let mut in_flight: BTreeSet<StepId> = BTreeSet::new();
    loop {
        if !stop.is_cancelled() {
            let ready: Vec<StepId> = waiting
                .values()
                .filter(|step| step.needs.iter().all(|need| outcome.done.contains(need)))
                .map(|step| step.id)
                .collect();
            for id in ready {
                let step = waiting.remove(&id).expect("it was just found there");
                in_flight.insert(id);
                running.push(run(step, site, limits, events));
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled(), if !outcome.stopped => {
                outcome.stopped = true;
                events.tell(Event::Stopping { running: in_flight.iter().copied().collect() });
            }
            next = running.next() => {
                let Some((id, result)) = next else { break };
                in_flight.remove(&id);
                match result {
                    Ok(()) => {
                        outcome.done.insert(id);
                    }
                    Err(failure) => {
                        outcome.failed.insert(id, failure);
                    }
                }
            }
        }
    }
    outcome.left = waiting.len();
    outcome
}

async fn run(step: &Step, site: &Site, limits: &Limits, events: &Events) -> (StepId, Result<(), Arc<Failure>>) {
    let voice = Voice::new(events.clone(), step.id);
    voice.tell(StepEvent::Begin);
    let began = Instant::now();
    let result = attempts(step, site, limits, &voice).await;
    let took = began.elapsed();
    let result = result.map_err(Arc::new);
    voice.tell(match &result {
        Ok(()) => StepEvent::Done { took },
        Err(why) => StepEvent::Failed { took, why: why.clone() },
    });
    (step.id, result)
}

/// An action looks before it acts, so beginning it anew is safe whatever became of the last request.
async fn attempts(step: &Step, site: &Site, limits: &Limits, voice: &Voice) -> Result<(), Failure> {
    let mut pause = PAUSE_FIRST;
    for attempt in 1.. {
        let held = limits.slots_for(&step.action).await;
        let result = act::act(step, site, voice).await;
        drop(held);
        match result {
            Err(failure) if failure.is_transient() && attempt < ATTEMPTS_MAX => {
                voice.retry(&failure);
                tokio::time::sleep(site.jitter(pause)).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            result => return result,
        }
    }
    unreachable!("the loop ends by returning")
}
