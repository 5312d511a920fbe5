//! Collects a plan. Passes may add to it and never read it, so that what one pass tells another is visible in their signatures.

use std::fmt;

use mainstay_spec::Span;

use crate::action::Action;
use crate::desired::{Desired, DesiredMachine};
use crate::plan::{Drift, Held, HoldReason, Plan, Refusal, Step, Unchanged};
use crate::step::{Impact, StepId, Subject};

/// A plan that is being made. Steps get their ids in the order they are added, and may only need what was added before, so a plan has no
/// cycles.
#[derive(Debug, Default)]
pub(crate) struct PlanBuilder {
    plan: Plan,
    /// Steps that must have ended well before any other begins.
    first: Vec<StepId>,
}

impl PlanBuilder {
    pub fn new(desired: &Desired) -> Self {
        let versions = desired.cluster_goal().map(|cluster| cluster.versions.clone());
        Self {
            plan: Plan {
                cluster: desired.cluster.clone(),
                cluster_id: desired.cluster_id,
                versions,
                ..Plan::default()
            },
            first: Vec::new(),
        }
    }

    pub fn step(&mut self, subject: Subject, action: Action) -> StepBuilder<'_> {
        StepBuilder {
            builder: self,
            subject,
            action,
            why: String::new(),
            impact: Impact::None,
            needs: Vec::new(),
            at: None,
        }
    }

    /// A step on a machine of the file; it remembers the lines that ask for it.
    pub fn machine_step(&mut self, machine: &DesiredMachine, action: Action) -> StepBuilder<'_> {
        self.step(machine.subject(), action).at(Some(machine.machine.at))
    }

    /// From now on no step begins before this one has ended well.
    pub fn begin_with(&mut self, step: StepId) {
        self.first.push(step);
    }

    /// Several passes may find the same reason; it is listed once.
    pub fn hold(&mut self, subject: Subject, what: &'static str, reason: impl Into<HoldReason>) {
        let HoldReason { reason, lasts } = reason.into();
        let held = Held {
            subject,
            what,
            reason,
            lasts,
        };
        if !self.plan.held.contains(&held) {
            self.plan.held.push(held);
        }
    }

    pub fn refuse(&mut self, refusal: Refusal) {
        self.plan.refusals.push(refusal);
    }

    /// After a refusal no step is shown, so the remaining passes need not run.
    pub fn is_refused(&self) -> bool {
        !self.plan.refusals.is_empty()
    }

    pub fn drift(&mut self, subject: Subject, what: String) {
        self.plan.drift.push(Drift { subject, what });
    }

    pub fn note(&mut self, note: String) {
        self.plan.notes.push(note);
    }

    /// Whether any step so far does this, for what is said about the plan as a whole.
    pub fn uses(&self, does: impl Fn(&Action) -> bool) -> bool {
        self.plan.steps.iter().any(|step| does(&step.action))
    }

    /// The plan. A refusal empties it: half of what was asked for is not what was asked for.
    pub fn finish(self, unchanged: impl FnOnce(&Plan) -> Unchanged) -> Plan {
        let mut plan = self.plan;
        plan.unchanged = unchanged(&plan);
        if !plan.refusals.is_empty() {
            plan.steps.clear();
            plan.held.clear();
        }
        plan
    }
}

/// A step that is being added.
#[must_use]
pub(crate) struct StepBuilder<'a> {
    builder: &'a mut PlanBuilder,
    subject: Subject,
    action: Action,
    why: String,
    impact: Impact,
    needs: Vec<StepId>,
    at: Option<Span>,
}

impl StepBuilder<'_> {
    pub fn because(mut self, why: impl fmt::Display) -> Self {
        self.why = why.to_string();
        self
    }

    pub fn impact(mut self, impact: Impact) -> Self {
        self.impact = impact;
        self
    }

    pub fn needs(mut self, needs: impl IntoIterator<Item = StepId>) -> Self {
        self.needs.extend(needs);
        self
    }

    pub fn at(mut self, at: Option<Span>) -> Self {
        self.at = at;
        self
    }

    pub fn add(mut self) -> StepId {
        // A step that needs another waits for the first ones through it.
        if self.needs.is_empty() {
            self.needs.clone_from(&self.builder.first);
        }
        self.needs.sort_unstable();
        self.needs.dedup();
        let steps = &mut self.builder.plan.steps;
        let id = StepId(u32::try_from(steps.len()).unwrap_or(u32::MAX).saturating_add(1));
        let expected = self.action.info().expected;
        steps.push(Step {
            id,
            subject: self.subject,
            action: self.action,
            why: self.why,
            impact: self.impact,
            needs: self.needs,
            expected,
            at: self.at,
        });
        id
    }
}
