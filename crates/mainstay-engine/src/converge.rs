//! The converge loop: observe, plan, execute, and again, until nothing is left to do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mainstay_plan::{Desired, Held, Kubernetes, Lease, Observed, Plan, StepId, lint, plan};
use mainstay_spec::Spec;
use talos_config::Secrets;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::approval::{Approval, ApprovalHandler, Approvals, step_name};
use crate::derive;
use crate::event::{Event, Events, StepEvent};
use crate::execute::{Outcome, execute};
use crate::failure::Failure;
use crate::lease::{self, Carrier, Holder};
use crate::limits::Limits;
use crate::observe::{Scope, Sight, observe};
use crate::preflight;
use crate::site::Site;

/// Rounds without progress before the run gives up. A round that does something new is always followed by another.
const ROUNDS_WITHOUT_PROGRESS: u32 = 3;
/// A limit that no correct run reaches: a plan that never becomes empty is a bug.
const ROUNDS_MAX: u32 = 100;
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// How long the same reasons may hold up everything that is left, where they may pass by themselves: a task of a run that was killed, a
/// host whose status is stale. Proxmox VE renews what it tells every ten seconds.
const HELD_PATIENCE: Duration = Duration::from_secs(120);
const PAUSE_WHILE_HELD: Duration = Duration::from_secs(4);

/// What is wanted of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    Cluster,
    /// Nothing of the cluster, nor these image files.
    Nothing {
        images: Vec<String>,
    },
}

/// One run.
pub struct Run<'a> {
    pub spec: &'a Spec,
    pub site: &'a Site,
    pub secrets: Option<&'a Secrets>,
    pub wanted: Wanted,
    pub holder: Holder,
    /// Take over the lease of another run.
    pub despite_lease: bool,
    /// Volumes that may be destroyed with their VM although mainstay did not make them.
    pub with_disks: BTreeSet<String>,
    pub events: Events,
    pub stop: CancellationToken,
}

/// How a run ended well.
#[derive(Debug)]
pub struct Report {
    pub rounds: u32,
    pub done: usize,
    pub held: Vec<Held>,
    pub nodes: Option<Kubernetes>,
    pub plan: Arc<Plan>,
}

impl Report {
    /// Whether all that the file asks for is so. What stays as it is for good does not count against it.
    pub fn is_settled(&self) -> bool {
        !self.held.iter().any(Held::holds_up)
    }
}

/// How it ended otherwise.
#[derive(Debug)]
pub enum RunError {
    /// The world could not be observed.
    Blind(Failure),
    /// The plan refuses: nothing was done in this round.
    Refused(Arc<Plan>),
    /// The API token lacks privileges that the file needs. Nothing was done.
    Lacking(Vec<pve_api::privileges::Grant>),
    /// Another run holds the lease.
    Leased(Lease),
    /// The plan was not approved.
    NotApproved(Arc<Plan>),
    /// Steps failed, and another round would not help.
    Failed {
        plan: Arc<Plan>,
        failed: Vec<(StepId, Arc<Failure>)>,
        done: usize,
    },
    /// Stopped by the user. No step is running any more.
    Stopped {
        done: usize,
        left: usize,
    },
    /// Aborted by the user. Tasks that Proxmox VE has continue.
    Left,
    /// The plan violates a rule of `lint` and was not executed: a bug of mainstay.
    Unsound(Vec<String>),
    NotSettled {
        rounds: u32,
    },
}

/// The plan for what is seen now. Changes nothing.
pub async fn look_and_plan(run: &Run<'_>) -> Result<(Plan, Desired, Observed), RunError> {
    let scope = Scope {
        removes_all: run.wanted != Wanted::Cluster,
        ..Scope::of(run.spec, run.secrets.map(derive::cluster_id))
    };
    let sight = observe(run.site, &scope).await.map_err(RunError::Blind)?;
    let mut desired = match &run.wanted {
        Wanted::Cluster => derive::desired(run.spec, run.secrets, &sight.observed).map_err(RunError::Blind)?,
        Wanted::Nothing { images } => Desired::nothing(run.spec, run.secrets.map(derive::cluster_id), images.clone()),
    };
    desired.with_disks.clone_from(&run.with_disks);
    let plan = plan(&desired, &sight.observed);
    let broken = lint(&plan, &desired, &sight.observed);
    if !broken.is_empty() {
        return Err(RunError::Unsound(broken.iter().map(ToString::to_string).collect()));
    }
    if run.wanted == Wanted::Cluster && !plan.steps.is_empty() && plan.refusals.is_empty() {
        check_rights(run, &sight)?;
    }
    Ok((plan, desired, sight.observed))
}

/// Before the first change: compares the privileges that the file needs with those of the token.
fn check_rights(run: &Run<'_>, sight: &Sight) -> Result<(), RunError> {
    let version = pve_version(&sight.observed.pve);
    let missing = preflight::missing(run.spec, &sight.observed, version, &sight.permissions);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(RunError::Lacking(missing))
    }
}

pub fn pve_version(version: &semver::Version) -> pve_api::PveVersion {
    let part = |number: u64| u16::try_from(number).unwrap_or(u16::MAX);
    pve_api::PveVersion::new(part(version.major), part(version.minor))
}

pub async fn converge(run: &Run<'_>, approve: &mut ApprovalHandler<'_>) -> Result<Report, RunError> {
    let mut done = 0;
    let mut progress = Progress::default();
    let mut approvals = Approvals::default();
    let mut patience = Patience::default();
    for round in 1..=ROUNDS_MAX {
        run.events.tell(Event::Observing { round });
        // An observation changes nothing, so a stop request ends it at once.
        let Some(looked) = run.stop.run_until_cancelled(look_and_plan(run)).await else {
            return Err(RunError::Stopped { done, left: 0 });
        };
        let (plan, _, observed) = looked?;
        let (plan, observed) = (Arc::new(plan), Arc::new(observed));
        if !plan.refusals.is_empty() {
            return Err(RunError::Refused(plan));
        }
        if plan.is_settled() && patience.is_left(&plan, &run.events) {
            let pause = tokio::time::sleep(run.site.jitter(PAUSE_WHILE_HELD));
            if run.stop.run_until_cancelled(pause).await.is_none() {
                let left = plan.held.len();
                return Err(RunError::Stopped { done, left });
            }
            continue;
        }
        if plan.is_settled() {
            // Keep the journal while something is held: it may record a request whose outcome was never seen.
            if !plan.is_held_up() {
                run.site.journal.clear();
            }
            return Ok(Report {
                rounds: round,
                done,
                held: plan.held.clone(),
                nodes: observed.kubernetes.yes().cloned(),
                plan,
            });
        }
        check_lease(run, &observed)?;
        run.events.tell(Event::Planned(plan.clone()));
        match approvals.require(run, approve, &plan, &observed).await {
            Approval::Approved => {}
            Approval::Declined => return Err(RunError::NotApproved(plan)),
            Approval::Interrupted => {
                let left = plan.steps.len();
                return Err(RunError::Stopped { done, left });
            }
        }
        let outcome = carry_out(run, &plan, &observed).await?;
        done += outcome.done.len();
        patience = Patience::default();
        if outcome.stopped {
            return Err(RunError::Stopped {
                done,
                left: outcome.left,
            });
        }
        progress.note(&plan, &outcome);
        let hopeless = outcome.failed.values().any(|failure| !failure.kind.may_pass());
        let in_vain = progress.fruitless >= ROUNDS_WITHOUT_PROGRESS;
        if in_vain && outcome.failed.is_empty() {
            return Err(RunError::NotSettled { rounds: round });
        }
        if hopeless || in_vain {
            return Err(RunError::Failed {
                plan,
                failed: outcome.failed.into_iter().collect(),
                done,
            });
        }
        if !outcome.failed.is_empty() {
            let pause = tokio::time::sleep(run.site.jitter(PAUSE_AFTER_FAILURE));
            let _ = run.stop.run_until_cancelled(pause).await;
        }
    }
    Err(RunError::NotSettled { rounds: ROUNDS_MAX })
}

/// Detects rounds without progress. A step that was done before does not count: a failure may undo it in every round.
#[derive(Default)]
struct Progress {
    done: BTreeSet<String>,
    /// Consecutive rounds that did no new step.
    fruitless: u32,
}

impl Progress {
    fn note(&mut self, plan: &Plan, outcome: &Outcome) {
        let before = self.done.len();
        let steps = outcome.done.iter().filter_map(|id| plan.step(*id));
        self.done.extend(steps.map(step_name));
        if self.done.len() > before {
            self.fruitless = 0;
        } else {
            self.fruitless += 1;
        }
    }
}

/// What is held, and since when.
#[derive(Default)]
struct Patience {
    held: BTreeSet<String>,
    since: Option<Instant>,
}

impl Patience {
    /// Whether to observe again: something held may pass by itself, and the reasons have not been the same for too long.
    fn is_left(&mut self, plan: &Plan, events: &Events) -> bool {
        let mut passing = plan.held.iter().filter(|held| held.passes()).peekable();
        if passing.peek().is_none() {
            return false;
        }
        let held: BTreeSet<String> = plan
            .held
            .iter()
            .map(|held| format!("{} of {}", held.what, held.subject))
            .collect();
        if self.held != held {
            for held in passing {
                events.note(format!("waiting: {} of {}: {}", held.what, held.subject, held.reason));
            }
            (self.held, self.since) = (held, None);
        }
        self.since.get_or_insert_with(Instant::now).elapsed() < HELD_PATIENCE
    }
}

fn check_lease(run: &Run<'_>, observed: &Observed) -> Result<(), RunError> {
    let held = run
        .secrets
        .and_then(|secrets| lease::held_by_another(observed, derive::cluster_id(secrets), &run.holder, run.site.env.wall.now()));
    match held {
        Some(lease) if !run.despite_lease => Err(RunError::Leased(lease)),
        _ => Ok(()),
    }
}

/// Executes the plan. The lease is taken before and renewed meanwhile; no new step begins once another run has taken it.
async fn carry_out(run: &Run<'_>, plan: &Plan, observed: &Observed) -> Result<Outcome, RunError> {
    let limits = Limits::new(shared_storages(observed));
    let stop = run.stop.child_token();
    let work = execute(plan, run.site, &limits, &run.events, &stop);
    let Some(carrier) = Carrier::of(plan, run, observed) else {
        return Ok(work.await);
    };
    let taken = run.stop.run_until_cancelled(lease::take(run.site, &limits, &carrier)).await;
    match taken.unwrap_or(Ok(None)) {
        // A run that was stopped meanwhile begins no step and releases the lease.
        Ok(None) => {}
        Ok(Some(taken)) => return Err(RunError::Leased(taken)),
        Err(failure) if plan.is_disruptive() => return Ok(without_lease(run, plan, failure)),
        Err(failure) => run.events.note(format!("the lease could not be written: {failure}")),
    }
    tokio::pin!(work);
    let outcome = tokio::select! {
        biased;
        outcome = &mut work => outcome,
        taken = lease::keep(run.site, &limits, &carrier) => {
            stop.cancel();
            work.await;
            return Err(RunError::Leased(taken));
        }
    };
    lease::release(run.site, &limits, &carrier).await;
    Ok(outcome)
}

/// No step was done: the plan stops or removes machines, and the lease could not be taken.
fn without_lease(run: &Run<'_>, plan: &Plan, failure: Failure) -> Outcome {
    let why =
        Arc::new(failure.why("steps that stop or remove machines need the cluster lease, so that two runs cannot do so at once"));
    let failed: BTreeMap<_, _> = plan.disruptive().map(|step| (step.id, why.clone())).collect();
    for id in failed.keys() {
        let now = StepEvent::Failed {
            took: Duration::ZERO,
            why: why.clone(),
        };
        run.events.tell(Event::Step { id: *id, now });
    }
    Outcome {
        left: plan.steps.len() - failed.len(),
        failed,
        ..Outcome::default()
    }
}

fn shared_storages(observed: &Observed) -> BTreeSet<String> {
    let storages = observed.hosts.values().filter_map(|host| host.storages.yes()).flatten();
    storages
        .filter(|(_, storage)| storage.shared)
        .map(|(name, _)| name.clone())
        .collect()
}
