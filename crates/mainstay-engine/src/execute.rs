//! Runs a plan: whatever is ready, at once, within limits. Decides nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use mainstay_plan::{Plan, Step, StepId};
use tokio::time::Instant;

use crate::act;
use crate::addresses::AddressBook;
use crate::approval::step_name;
use crate::clients::Clients;
use crate::event::{Event, EventSink, StepEvent, StepProgress};
use crate::failure::Failure;
use crate::in_flight::{InFlight, RoundEnd};
use crate::limits::{Limits, Ticket};

/// How often one step is begun anew after something that may pass, before the round gives it up.
const ATTEMPTS_MAX: u32 = 5;
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// What the steps of a plan use.
#[derive(Clone, Copy)]
pub struct Execution<'a> {
    pub clients: &'a Clients,
    pub addresses: &'a AddressBook,
    pub limits: &'a Limits,
    pub events: &'a EventSink,
}

/// What became of a plan.
#[derive(Debug, Default)]
pub struct ExecutionResult {
    pub done: BTreeSet<StepId>,
    pub failed: BTreeMap<StepId, Arc<Failure>>,
    /// Not begun, because something that they need failed, or not ended, because the round was.
    pub left: usize,
    /// The user wanted the run to end.
    pub stopped: bool,
    /// Tasks of Proxmox VE whose end was not waited for.
    pub tasks: Vec<LeftTask>,
}

/// A task of Proxmox VE that goes on although its step was left. The next observation finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftTask {
    /// `machine.fill prod-w-1`.
    pub step: String,
    pub upid: String,
}

/// What became of one step.
enum StepEnd {
    Done,
    Failed(Arc<Failure>),
    /// It was left, and these tasks go on.
    Left(Vec<String>),
}

/// Ends when every step has ended, failed, was left or lost what it needs.
pub async fn execute(plan: &Plan, with: Execution<'_>, end: &RoundEnd) -> ExecutionResult {
    // The place in the queue is taken here, in the order of importance, not when the step is first polled.
    drive(plan, with.events, end, |step, rank| {
        run(step, rank, with.limits.ask(&step.action, rank), with, end)
    })
    .await
}

/// Begins each step as soon as nothing keeps it, those with the longest remaining path first.
async fn drive<'p, R>(
    plan: &'p Plan,
    events: &EventSink,
    end: &RoundEnd,
    begin: impl Fn(&'p Step, Duration) -> R,
) -> ExecutionResult
where
    R: Future<Output = (StepId, StepEnd)>,
{
    let mut outcome = ExecutionResult::default();
    let mut schedule = Schedule::of(plan);
    let mut running = FuturesUnordered::new();
    let mut in_flight: BTreeSet<StepId> = BTreeSet::new();
    loop {
        while !end.is_over()
            && let Some((step, rank)) = schedule.next()
        {
            in_flight.insert(step.id);
            running.push(begin(step, rank));
        }
        tokio::select! {
            biased;
            () = end.asked.cancelled(), if !outcome.stopped => {
                outcome.stopped = true;
                events.emit(Event::Stopping { running: in_flight.iter().copied().collect() });
            }
            next = running.next() => {
                let Some((id, ended)) = next else { break };
                in_flight.remove(&id);
                match ended {
                    StepEnd::Done => {
                        schedule.done(id);
                        outcome.done.insert(id);
                    }
                    StepEnd::Failed(failure) => {
                        outcome.failed.insert(id, failure);
                    }
                    StepEnd::Left(tasks) => {
                        let step = plan.step(id).map(step_name).unwrap_or_default();
                        let left = |upid| LeftTask { step: step.clone(), upid };
                        outcome.tasks.extend(tasks.into_iter().map(left));
                    }
                }
            }
        }
    }
    outcome.left = plan.steps.len() - outcome.done.len() - outcome.failed.len();
    outcome
}

/// Which step is next. Counts what each step still needs, so that the end of a step costs its dependants alone.
struct Schedule<'p> {
    steps: BTreeMap<StepId, Pending<'p>>,
    ready: BTreeSet<(Reverse<Duration>, StepId)>,
}

struct Pending<'p> {
    step: &'p Step,
    /// Needs that are not done.
    open: usize,
    dependants: Vec<StepId>,
    /// How long it takes from its begin to the end of the plan, along the longest path.
    rank: Duration,
}

impl<'p> Schedule<'p> {
    fn of(plan: &'p Plan) -> Self {
        let pending = |step: &'p Step| Pending {
            step,
            open: step.needs.iter().collect::<BTreeSet<_>>().len(),
            dependants: Vec::new(),
            rank: step.expected,
        };
        let mut steps: BTreeMap<StepId, Pending<'p>> = plan.steps.iter().map(|step| (step.id, pending(step))).collect();
        // A step only needs steps with a smaller id, so its own rank is known before it counts for them.
        for step in plan.steps.iter().rev() {
            let rank = steps.get(&step.id).map_or(step.expected, |pending| pending.rank);
            for need in step.needs.iter().collect::<BTreeSet<_>>() {
                if let Some(needed) = steps.get_mut(need) {
                    needed.dependants.push(step.id);
                    needed.rank = needed.rank.max(needed.step.expected + rank);
                }
            }
        }
        let ready = steps.values().filter(|pending| pending.open == 0);
        let ready = ready.map(|pending| (Reverse(pending.rank), pending.step.id)).collect();
        Self { steps, ready }
    }

    fn next(&mut self) -> Option<(&'p Step, Duration)> {
        let (Reverse(rank), id) = self.ready.pop_first()?;
        Some((self.steps.get(&id)?.step, rank))
    }

    fn done(&mut self, id: StepId) {
        let dependants = self.steps.get_mut(&id).map(|done| std::mem::take(&mut done.dependants));
        for dependant in dependants.unwrap_or_default() {
            let Some(pending) = self.steps.get_mut(&dependant) else {
                continue;
            };
            pending.open -= 1;
            if pending.open == 0 {
                self.ready.insert((Reverse(pending.rank), dependant));
            }
        }
    }
}

async fn run(step: &Step, rank: Duration, ticket: Ticket, with: Execution<'_>, end: &RoundEnd) -> (StepId, StepEnd) {
    let voice = StepProgress::new(with.events.clone(), step.id);
    voice.emit(StepEvent::Begin);
    let began = Instant::now();
    let in_flight = Arc::new(InFlight::default());
    let result = in_flight.run(end, attempts(step, rank, ticket, with, &voice)).await;
    let took = began.elapsed();
    let ended = match result {
        Some(Ok(())) => StepEnd::Done,
        Some(Err(failure)) => StepEnd::Failed(Arc::new(failure)),
        None => StepEnd::Left(in_flight.tasks()),
    };
    match &ended {
        StepEnd::Done => voice.emit(StepEvent::Done { took }),
        StepEnd::Failed(why) => voice.emit(StepEvent::Failed { took, why: why.clone() }),
        StepEnd::Left(_) => {}
    }
    (step.id, ended)
}

/// An action looks before it acts, so beginning it anew is safe whatever became of the last request.
async fn attempts(step: &Step, rank: Duration, ticket: Ticket, with: Execution<'_>, voice: &StepProgress) -> Result<(), Failure> {
    let mut pause = PAUSE_FIRST;
    let mut ticket = ticket;
    for attempt in 1.. {
        let held = ticket.slots().await;
        let began = Instant::now();
        let result = act::act(step, with.clients, with.addresses, voice).await;
        match &result {
            Ok(()) => held.done(began.elapsed()),
            Err(failure) if failure.is_lock_timeout() => held.lock_timed_out(),
            Err(_) => drop(held),
        }
        match result {
            Err(failure) if failure.is_transient() && attempt < ATTEMPTS_MAX => {
                voice.retry(&failure);
                tokio::time::sleep(with.clients.jitter.pause(pause)).await;
                pause = (pause * 2).min(PAUSE_MAX);
                ticket = with.limits.ask(&step.action, rank);
            }
            result => return result,
        }
    }
    unreachable!("the loop ends by returning")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use mainstay_plan::{Action, Impact, Subject, VmRef};
    use tokio_util::sync::CancellationToken;

    use super::*;

    const MACHINES: u32 = 500;

    fn start(id: u32, expected: u64, needs: Vec<StepId>) -> Step {
        Step {
            id: StepId(id),
            subject: Subject::Machine(format!("machine-{id}")),
            action: Action::MachineStart {
                vm: VmRef {
                    host: "pve1".into(),
                    vmid: 100 + id,
                    uuid: uuid::Uuid::nil(),
                },
            },
            why: String::new(),
            impact: Impact::None,
            needs,
            expected: Duration::from_secs(expected),
            at: None,
        }
    }

    /// Step 1 is needed by a start for each machine. Long paths follow the starts with the highest ids.
    fn plan() -> Plan {
        let mut steps = vec![start(1, 1, Vec::new())];
        steps.extend((0..MACHINES).map(|n| start(2 + n, 3, vec![StepId(1)])));
        steps.extend((0..MACHINES).map(|n| start(2 + MACHINES + n, u64::from(10 + n), vec![StepId(1), StepId(2 + n)])));
        Plan {
            steps,
            ..Plan::default()
        }
    }

    #[test]
    fn the_rank_of_a_step_is_its_longest_remaining_path() {
        let plan = plan();
        let schedule = Schedule::of(&plan);
        let rank = |id| schedule.steps.get(&StepId(id)).map(|pending| pending.rank.as_secs());
        assert_eq!(rank(1), Some(1 + 3 + 10 + u64::from(MACHINES) - 1));
        assert_eq!(rank(2), Some(13));
        assert_eq!(rank(2 + MACHINES), Some(10));
    }

    #[tokio::test(start_paused = true)]
    async fn among_500_machines_on_one_host_the_longest_path_always_gets_the_next_slot() {
        let plan = plan();
        let limits = Limits::default();
        let began = Mutex::new(Vec::new());
        let begin = |step: &Step, rank| {
            let (ticket, took, id) = (limits.ask(&step.action, rank), step.expected, step.id);
            let began = &began;
            async move {
                let held = ticket.slots().await;
                began.lock().unwrap().push((id, rank));
                tokio::time::sleep(took).await;
                drop(held);
                (id, StepEnd::Done)
            }
        };
        let outcome = drive(&plan, &EventSink::discard(), &RoundEnd::of(&CancellationToken::new()), begin).await;
        assert_eq!((outcome.done.len(), outcome.left), (plan.steps.len(), 0));
        let began = began.into_inner().unwrap();
        let starts: Vec<_> = began.iter().filter(|(id, _)| (2..2 + MACHINES).contains(&id.0)).collect();
        assert_eq!(starts.len(), MACHINES as usize);
        assert!(starts.is_sorted_by_key(|(_, rank)| Reverse(*rank)), "{starts:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_needs_a_step_that_failed_is_left() {
        let plan = plan();
        let begin = |step: &Step, _| {
            let id = step.id;
            let failed = id == StepId(2);
            async move {
                let ended = if failed {
                    StepEnd::Failed(Arc::new(Failure::stale_plan("changed")))
                } else {
                    StepEnd::Done
                };
                (id, ended)
            }
        };
        let outcome = drive(&plan, &EventSink::discard(), &RoundEnd::of(&CancellationToken::new()), begin).await;
        assert_eq!((outcome.failed.len(), outcome.left), (1, 1));
    }
}
