//! The converge loop: observe, plan, execute, and again, until nothing is left to do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mainstay_plan::addon::wanted::AddonRequests;
use mainstay_plan::{
    ClusterSecrets, Desired, Goal, Held, HoldKind, Kubernetes, Lease, Observed, Plan, Publisher, Step, StepId, TurnPolicy,
    derive, lint, plan,
};
use mainstay_spec::Spec;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::addresses::AddressBook;
use crate::approval::{Approval, ApprovalHandler, Approvals, step_name};
use crate::clients::Clients;
use crate::event::{Event, EventSink, StepEvent};
use crate::execute::{Execution, ExecutionResult, LeftTask, execute};
use crate::failure::{Failure, FailureKind};
use crate::guest;
use crate::hold_watch::{self, until_a_hold_ends};
use crate::in_flight::RoundEnd;
use crate::lease::{self, LeaseHolder, LeaseRequest, LeaseVm};
use crate::limits::Limits;
use crate::observe::{Observation, ObserveScope, observe};
use crate::preflight;

/// Rounds without progress before the run gives up. A round that does something new is always followed by another.
const ROUNDS_WITHOUT_PROGRESS: u32 = 3;
/// A limit that no correct run reaches: a plan that never becomes empty is a bug.
const ROUNDS_MAX: u32 = 100;
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// How long the same reasons may hold up everything that is left, where they may pass by themselves: a task of a run that was killed, a
/// host whose status is stale. Proxmox VE renews what it tells every ten seconds.
const HELD_PATIENCE: Duration = Duration::from_secs(120);
const PAUSE_WHILE_HELD: Duration = Duration::from_secs(4);
/// How long the end of a run tries to release what it cordoned.
const RELEASE: Duration = Duration::from_secs(60);
/// How long a new plan waits for steps that follow a task. Most tasks of Proxmox VE end within seconds; what follows a copy is left.
const TASKS_END: Duration = Duration::from_secs(10);
/// How long a run that was told to stop may take to give its lease back. It ends by itself, too.
const LEASE_GIVEN_BACK: Duration = Duration::from_millis(1500);

/// What is wanted of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunGoal {
    Up,
    /// Nothing of the cluster, nor these image files.
    Down {
        images: Vec<String>,
    },
}

/// One run.
pub struct Run<'a> {
    pub spec: &'a Spec,
    pub clients: &'a Clients,
    pub secrets: Option<&'a ClusterSecrets>,
    pub goal: RunGoal,
    pub holder: LeaseHolder,
    /// Take over the lease of another run.
    pub despite_lease: bool,
    /// Volumes that may be destroyed with their VM although mainstay did not make them.
    pub with_disks: BTreeSet<String>,
    /// What was asked for about single add-ons.
    pub addons: AddonRequests,
    /// Consent and limits for work that disturbs machines.
    pub policy: TurnPolicy,
    pub events: EventSink,
    pub stop: CancellationToken,
}

/// How a run ended well.
#[derive(Debug)]
pub struct RunReport {
    pub rounds: u32,
    pub done: usize,
    pub held: Vec<Held>,
    pub nodes: Option<Kubernetes>,
    pub plan: Arc<Plan>,
}

impl RunReport {
    /// Whether all that the file asks for is so. What stays as it is for good does not count against it.
    pub fn is_settled(&self) -> bool {
        !self.held.iter().any(Held::blocks)
    }
}

/// How it ended otherwise.
#[derive(Debug)]
pub enum RunError {
    /// The world could not be observed.
    ObserveFailed(Failure),
    /// The plan refuses: nothing was done in this round.
    Refused(Arc<Plan>),
    /// The API token lacks privileges that the file needs. Nothing was done.
    MissingPrivileges(Vec<pve_api::privileges::Grant>),
    /// Another run holds the lease.
    LeaseHeld(Box<Lease>),
    /// The plan was not approved.
    NotApproved(Arc<Plan>),
    /// Steps failed, and another round would not help.
    StepsFailed {
        plan: Arc<Plan>,
        failed: Vec<(StepId, Arc<Failure>)>,
        done: usize,
    },
    /// Stopped by the user. No request is in flight any more, but these tasks of Proxmox VE go on.
    Stopped {
        done: usize,
        left: usize,
        tasks: Vec<LeftTask>,
    },
    /// Aborted by the user. Tasks that Proxmox VE has continue.
    Aborted,
    /// The plan violates a rule of `lint` and was not executed: a bug of mainstay.
    InvalidPlan(Vec<String>),
    NotSettled {
        rounds: u32,
    },
}

/// What is wanted and what was seen, with the plan that follows from both.
pub struct PlannedRound {
    pub plan: Plan,
    pub desired: Desired,
    pub observed: Observed,
    pub addresses: AddressBook,
}

/// The plan for what is seen now. Changes nothing.
pub async fn observe_and_plan(run: &Run<'_>) -> Result<PlannedRound, RunError> {
    plan_under(run, &run.policy).await
}

async fn plan_under(run: &Run<'_>, policy: &TurnPolicy) -> Result<PlannedRound, RunError> {
    let scope = ObserveScope {
        removes_all: run.goal != RunGoal::Up,
        addons: (run.goal == RunGoal::Up).then_some(run.spec),
        compare: run
            .secrets
            .filter(|_| run.goal == RunGoal::Up)
            .map(|secrets| (run.spec, secrets)),
        ..ObserveScope::of(run.spec, run.secrets.map(ClusterSecrets::id))
    };
    let mut sight = observe(run.clients, &scope).await.map_err(RunError::ObserveFailed)?;
    let mut desired = match &run.goal {
        RunGoal::Up => derive::desired(run.spec, run.secrets, &sight.observed, &sight.pins)
            .map_err(|error| RunError::ObserveFailed(error.into()))?,
        RunGoal::Down { images } => Desired::nothing(run.spec, run.secrets.map(ClusterSecrets::id), images.clone()),
    };
    if run.goal == RunGoal::Up && run.secrets.is_none() {
        check_configs(run, &sight.observed)?;
    }
    desired.with_disks.clone_from(&run.with_disks);
    if let Goal::Cluster(cluster) = &mut desired.goal {
        cluster.addons.requests.clone_from(&run.addons);
    }
    desired.policy.clone_from(policy);
    let mut plan = plan(&desired, &sight.observed);
    if let Some(publisher) = ask_publisher(run, &desired, &plan).await {
        sight.observed.publisher = publisher;
        plan = mainstay_plan::plan(&desired, &sight.observed);
    }
    let broken = lint(&plan, &desired, &sight.observed);
    if !broken.is_empty() {
        return Err(RunError::InvalidPlan(broken.iter().map(ToString::to_string).collect()));
    }
    if run.goal == RunGoal::Up && !plan.steps.is_empty() && plan.refusals.is_empty() {
        check_rights(run, &sight, &plan)?;
    }
    Ok(PlannedRound {
        plan,
        desired,
        observed: sight.observed,
        addresses: sight.addresses,
    })
}

/// What the publisher says about the image, where the plan downloads or imports it: a release that it does not have, a file that is not
/// whole. Its size is asked for only where no download asks for it anyway.
async fn ask_publisher(run: &Run<'_>, desired: &Desired, plan: &Plan) -> Option<Publisher> {
    let image_use = plan.image_use();
    if !(image_use.fetched || image_use.imported) {
        return None;
    }
    let cluster = desired.cluster_goal()?;
    let image = &cluster.machines.first()?.image;
    let asked = guest::ask_publisher(&run.clients.guests, run.spec, &cluster.versions, image, !image_use.fetched);
    Some(asked.await)
}

/// Without secrets there are no configs yet, but what Talos would refuse in them can be told before anything is made.
fn check_configs(run: &Run<'_>, observed: &Observed) -> Result<(), RunError> {
    let failed = |error: mainstay_plan::DeriveError| RunError::ObserveFailed(error.into());
    let versions = derive::versions(run.spec, Some(observed), None).map_err(failed)?;
    let env = &run.clients.env;
    let mut rng = env.entropy.fork("configs to check").rng();
    derive::check_configs(run.spec, &versions, env.wall.now(), &mut rng).map_err(failed)
}

/// Before the first change: compares the privileges that the file needs with those of the token.
fn check_rights(run: &Run<'_>, sight: &Observation, plan: &Plan) -> Result<(), RunError> {
    let version = pve_version(&sight.observed.pve);
    let mut missing = preflight::missing(run.spec, &sight.observed, version, &sight.permissions);
    missing.extend(preflight::missing_for(plan, version, &sight.permissions));
    if missing.is_empty() {
        Ok(())
    } else {
        Err(RunError::MissingPrivileges(missing))
    }
}

pub fn pve_version(version: &semver::Version) -> pve_api::PveVersion {
    let part = |number: u64| u16::try_from(number).unwrap_or(u16::MAX);
    pve_api::PveVersion::new(part(version.major), part(version.minor))
}

/// Runs until nothing is left to do. However it ends, no machine stays cordoned by it.
pub async fn converge(run: &Run<'_>, approve: &mut ApprovalHandler<'_>) -> Result<RunReport, RunError> {
    let outcome = run_rounds(run, approve).await;
    if !run.clients.cordoned.lock().expect("plain data").is_empty()
        && tokio::time::timeout(RELEASE, release_cordons(run)).await.is_err()
    {
        let names: Vec<String> = run.clients.cordoned.lock().expect("plain data").iter().cloned().collect();
        run.events.note(format!(
            "still cordoned by mainstay: {}; the next `mainstay up` ends that",
            names.join(", ")
        ));
    }
    outcome
}

/// Uncordons the machines whose turn did not end.
async fn release_cordons(run: &Run<'_>) {
    let policy = TurnPolicy {
        ends: true,
        ..run.policy.clone()
    };
    let Ok(round) = plan_under(run, &policy).await else { return };
    let limits = Limits::of(&round.observed, &round.plan);
    let with = Execution {
        clients: run.clients,
        addresses: &round.addresses,
        limits: &limits,
        events: &run.events,
    };
    let plan = Arc::new(round.plan);
    run.events.emit(Event::Planned(plan.clone()));
    let outcome = execute(&plan, with, &RoundEnd::of(&CancellationToken::new())).await;
    if outcome.failed.is_empty() && outcome.left == 0 {
        run.clients.cordoned.lock().expect("plain data").clear();
    }
}

async fn run_rounds(run: &Run<'_>, approve: &mut ApprovalHandler<'_>) -> Result<RunReport, RunError> {
    let mut policy = run.policy.clone();
    let mut done = 0;
    let mut progress = StallDetector::default();
    let mut approvals = Approvals::default();
    let mut patience = HoldTimer::default();
    // Rounds that end early or only wait for Proxmox VE do not count.
    let mut uncounted = 0;
    let mut round = 0;
    while round < ROUNDS_MAX + uncounted {
        round += 1;
        run.events.emit(Event::Observing { round });
        // An observation changes nothing, so a stop request ends it at once.
        let Some(looked) = run.stop.run_until_cancelled(plan_under(run, &policy)).await else {
            return Err(stopped(done, 0));
        };
        let PlannedRound {
            plan,
            observed,
            addresses,
            ..
        } = looked?;
        let (plan, observed) = (Arc::new(plan), Arc::new(observed));
        if !plan.refusals.is_empty() {
            return Err(RunError::Refused(plan));
        }
        if plan.is_settled() && patience.is_left(&plan, &run.events) {
            uncounted += u32::from(is_for_a_task(&plan));
            let pause = tokio::time::sleep(run.clients.jitter.pause(PAUSE_WHILE_HELD));
            if run.stop.run_until_cancelled(pause).await.is_none() {
                return Err(stopped(done, plan.held.len()));
            }
            continue;
        }
        if plan.is_settled() {
            return Ok(settled(run, plan, &observed, round, done));
        }
        check_lease(run, &observed)?;
        run.events.emit(Event::Planned(plan.clone()));
        match approvals.require(&run.events, &run.stop, approve, &plan, &observed).await {
            Approval::Approved => {}
            Approval::Declined => return Err(RunError::NotApproved(plan)),
            Approval::Interrupted => return Err(stopped(done, plan.steps.len())),
        }
        if let Some(added) = guest::keep_pins(&run.clients.guests, run.clients.lock.as_ref()).map_err(RunError::ObserveFailed)? {
            run.events.emit(Event::Note(added));
        }
        let (outcome, is_replanned) = execute_with_lease(run, &policy, &plan, &observed, &addresses).await?;
        done += outcome.done.len();
        patience = HoldTimer::default();
        if outcome.stopped {
            return Err(RunError::Stopped {
                done,
                left: outcome.left,
                tasks: outcome.tasks,
            });
        }
        if is_replanned {
            uncounted += 1;
        } else {
            progress.note(&plan, &outcome);
        }
        // What is held is left alone in this run; everything else goes on.
        policy.held.extend(held_machines(&plan, &outcome));
        let failed = !outcome.failed.is_empty();
        let is_clean = !failed && plan.held.is_empty() && !is_replanned;
        give_up(&progress, plan, outcome, round, done)?;
        if is_clean {
            run.clients.facts.reuse_once();
        } else if failed {
            let pause = tokio::time::sleep(run.clients.jitter.pause(PAUSE_AFTER_FAILURE));
            let _ = run.stop.run_until_cancelled(pause).await;
        }
    }
    Err(RunError::NotSettled { rounds: ROUNDS_MAX })
}

/// Ends the run where another round would do nothing new: a failure that no retry passes, or rounds that achieved nothing.
fn give_up(
    progress: &StallDetector,
    plan: Arc<Plan>,
    outcome: ExecutionResult,
    rounds: u32,
    done: usize,
) -> Result<(), RunError> {
    let ends = |kind: FailureKind| !kind.is_retryable() && kind != FailureKind::Held;
    let hopeless = outcome.failed.values().any(|failure| ends(failure.kind));
    let in_vain = progress.fruitless >= ROUNDS_WITHOUT_PROGRESS;
    if in_vain && outcome.failed.is_empty() {
        return Err(RunError::NotSettled { rounds });
    }
    if hopeless || in_vain {
        return Err(RunError::StepsFailed {
            plan,
            failed: outcome.failed.into_iter().collect(),
            done,
        });
    }
    Ok(())
}

/// Something waits for a task of ours in Proxmox VE.
fn is_for_a_task(plan: &Plan) -> bool {
    plan.held.iter().any(|held| held.lasts == HoldKind::Task)
}

fn settled(run: &Run<'_>, plan: Arc<Plan>, observed: &Observed, rounds: u32, done: usize) -> RunReport {
    // Keep the journal while something is held: it may record a request whose outcome was never seen.
    if !plan.is_blocked() {
        run.clients.journal.clear();
    }
    RunReport {
        rounds,
        done,
        held: plan.held.clone(),
        nodes: observed.kubernetes.yes().cloned(),
        plan,
    }
}

/// Nothing was under way.
fn stopped(done: usize, left: usize) -> RunError {
    let tasks = Vec::new();
    RunError::Stopped { done, left, tasks }
}

/// Detects rounds without progress. A step that was done before does not count: a failure may undo it in every round.
#[derive(Default)]
struct StallDetector {
    done: BTreeSet<String>,
    /// Consecutive rounds that did no new step.
    fruitless: u32,
}

impl StallDetector {
    fn note(&mut self, plan: &Plan, outcome: &ExecutionResult) {
        let before = self.done.len();
        let steps = outcome.done.iter().filter_map(|id| plan.step(*id));
        // The same machine is upgraded again at the next hop, which is another step.
        let name = |step: &Step| format!("{} {}", step_name(step), step.action.detail().unwrap_or_default());
        self.done.extend(steps.map(name));
        if self.done.len() > before {
            self.fruitless = 0;
        } else {
            self.fruitless += 1;
        }
    }
}

/// What is held, and since when.
#[derive(Default)]
struct HoldTimer {
    held: BTreeSet<String>,
    since: Option<Instant>,
}

impl HoldTimer {
    /// Whether to observe again: something held may pass by itself, and the reasons have not been the same for too long.
    fn is_left(&mut self, plan: &Plan, events: &EventSink) -> bool {
        let mut passing = plan.held.iter().filter(|held| held.is_transient()).peekable();
        if passing.peek().is_none() {
            return false;
        }
        let held: BTreeSet<String> = plan.held.iter().map(hold_watch::name).collect();
        if self.held != held {
            for held in passing {
                events.note(format!("waiting: {} of {}: {}", held.what, held.subject, held.reason));
            }
            (self.held, self.since) = (held, None);
        }
        // What Proxmox VE does for us is waited for as long as it takes.
        if is_for_a_task(plan) {
            self.since = None;
        }
        self.since.get_or_insert_with(Instant::now).elapsed() < HELD_PATIENCE
    }
}

/// Machines whose step found that something outside holds it, and what that is.
fn held_machines(plan: &Plan, outcome: &ExecutionResult) -> BTreeMap<String, String> {
    let held = outcome.failed.iter().filter(|(_, failure)| failure.kind == FailureKind::Held);
    let reason = |failure: &Failure| {
        let parts = [Some(&failure.what), failure.why.as_ref()]
            .into_iter()
            .flatten()
            .chain(&failure.help);
        parts.cloned().collect::<Vec<_>>().join("; ")
    };
    held.filter_map(|(id, failure)| Some((plan.step(*id)?.subject.to_string(), reason(failure))))
        .collect()
}

fn check_lease(run: &Run<'_>, observed: &Observed) -> Result<(), RunError> {
    let Some(secrets) = run.secrets else { return Ok(()) };
    let held = lease::held_by_another(run.clients, observed, secrets.id(), &run.holder);
    match held {
        Some(lease) if !run.despite_lease => Err(RunError::LeaseHeld(Box::new(lease))),
        _ => Ok(()),
    }
}

/// The lease that this run asks for. Without secrets there is no cluster yet, hence nothing to lease.
fn lease_request(run: &Run<'_>) -> Option<LeaseRequest> {
    Some(LeaseRequest {
        cluster_id: run.secrets?.id(),
        holder: run.holder.clone(),
        takes_over: run.despite_lease,
        since: run.clients.now(),
    })
}

/// Executes the plan. The lease is taken before and renewed meanwhile; no new step begins once another run has taken it.
///
/// Whether the plan is to be made anew before all of it was done: what held a machine has passed.
async fn execute_with_lease(
    run: &Run<'_>,
    policy: &TurnPolicy,
    plan: &Plan,
    observed: &Observed,
    addresses: &AddressBook,
) -> Result<(ExecutionResult, bool), RunError> {
    let limits = Limits::of(observed, plan);
    let end = RoundEnd::of(&run.stop);
    let with = Execution {
        clients: run.clients,
        addresses,
        limits: &limits,
        events: &run.events,
    };
    let work = execute_until_a_hold_ends(run, policy, plan, with, &end);
    let Some(carrier) = lease_request(run).and_then(|request| LeaseVm::of(plan, request, observed)) else {
        return Ok((work.await, end.replan.is_cancelled()));
    };
    let taken = run
        .stop
        .run_until_cancelled(lease::take(run.clients, &limits, &carrier, &run.events))
        .await;
    match taken.unwrap_or(Ok(None)) {
        // A run that was stopped meanwhile begins no step and releases the lease.
        Ok(None) => {}
        Ok(Some(taken)) => return Err(RunError::LeaseHeld(Box::new(taken))),
        Err(failure) if plan.is_disruptive() => return Ok((without_lease(run, plan, failure), false)),
        Err(failure) => run.events.note(format!("the lease could not be written: {failure}")),
    }
    let mut work = std::pin::pin!(work);
    let outcome = tokio::select! {
        biased;
        outcome = &mut work => outcome,
        taken = lease::keep(run.clients, &limits, &carrier) => {
            end.stop.cancel();
            work.await;
            return Err(RunError::LeaseHeld(Box::new(taken)));
        }
    };
    let released = lease::release(run.clients, &limits, &carrier);
    if run.stop.is_cancelled() {
        let _ = tokio::time::timeout(LEASE_GIVEN_BACK, released).await;
    } else {
        released.await;
    }
    Ok((outcome, end.replan.is_cancelled()))
}

/// Executes the plan, and leaves what is left of it when a machine that is held could be planned: the waits of the others would go on for
/// minutes. What was left is in the next plan.
async fn execute_until_a_hold_ends(
    run: &Run<'_>,
    policy: &TurnPolicy,
    plan: &Plan,
    with: Execution<'_>,
    end: &RoundEnd,
) -> ExecutionResult {
    let mut work = std::pin::pin!(execute(plan, with, end));
    let plan_now = async || plan_under(run, policy).await.ok().map(|round| round.plan);
    let passed = tokio::select! {
        biased;
        outcome = &mut work => return outcome,
        passed = until_a_hold_ends(&run.clients.jitter, plan, plan_now) => passed,
    };
    run.events.note(format!("planning again: the {passed} is not held any more"));
    end.replan.cancel();
    if let Ok(outcome) = tokio::time::timeout(TASKS_END, &mut work).await {
        return outcome;
    }
    end.stop.cancel();
    work.await
}

/// No step was done: the plan stops or removes machines, and the lease could not be taken.
fn without_lease(run: &Run<'_>, plan: &Plan, failure: Failure) -> ExecutionResult {
    let why =
        Arc::new(failure.why("steps that stop or remove machines need the cluster lease, so that two runs cannot do so at once"));
    let failed: BTreeMap<_, _> = plan.disruptive().map(|step| (step.id, why.clone())).collect();
    for id in failed.keys() {
        let now = StepEvent::Failed {
            took: Duration::ZERO,
            why: why.clone(),
        };
        run.events.emit(Event::Step { id: *id, now });
    }
    ExecutionResult {
        left: plan.steps.len() - failed.len(),
        failed,
        ..ExecutionResult::default()
    }
}
