//! The plan: what will be done, what is held back and why, and what was found changed.

use std::fmt;
use std::time::Duration;

use mainstay_spec::Span;
use uuid::Uuid;

use crate::cluster;
use crate::desired::{Desired, Goal};
use crate::mark::Versions;
use crate::observed::{Observed, Seen};
use crate::refuse;
use crate::remove;
use crate::step::{Action, Impact, Step, StepId, Subject};
use crate::survey::Survey;

/// What must be done so that `observed` becomes `desired`. Nothing, when it is so already.
pub fn plan(desired: &Desired, observed: &Observed) -> Plan {
    let mut draft = Draft::new(desired);
    refuse::blindly(desired, observed, &mut draft);
    let Seen::Yes(vms) = &observed.vms else {
        return draft.finish();
    };
    if !draft.plan.refusals.is_empty() {
        return draft.finish();
    }
    let survey = Survey::new(desired, observed, vms);
    refuse::down(&survey, &mut draft);
    match &desired.goal {
        Goal::Cluster(wish) => cluster::plan(&survey, wish, draft).finish(),
        Goal::Nothing { images } => {
            remove::everything(&survey, images, &mut draft);
            draft.finish()
        }
    }
}

/// What to do about one cluster.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    pub cluster: String,
    /// `None`: there are no secrets, so this plan is for reading only.
    pub cluster_id: Option<Uuid>,
    /// What the machines will run. `None` when nothing is wanted.
    pub versions: Option<Versions>,
    /// In an order that respects `needs`. Empty when anything is refused.
    pub steps: Vec<Step>,
    pub held: Vec<Held>,
    pub drift: Vec<Drift>,
    /// Worth knowing before saying yes.
    pub notes: Vec<String>,
    pub refusals: Vec<Refusal>,
    pub unchanged: Unchanged,
}

impl Plan {
    /// Nothing is left to do. Held things are still reported.
    pub fn is_settled(&self) -> bool {
        self.steps.is_empty() && self.refusals.is_empty()
    }

    /// Something is not as it should be, and nothing can be done about it now.
    pub fn is_held_up(&self) -> bool {
        self.held.iter().any(Held::holds_up)
    }

    pub fn step(&self, id: StepId) -> Option<&Step> {
        self.steps.get(usize::try_from(id.0).ok()?.checked_sub(1)?)
    }

    /// Steps that destroy data: what an approval must cover.
    pub fn removals(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.action.removes())
    }

    /// The steps that take something down or away.
    pub fn disruptive(&self) -> impl Iterator<Item = &Step> {
        let is = |step: &&Step| step.action.removes() || step.action.stops() || step.impact >= Impact::Reboot;
        self.steps.iter().filter(is)
    }

    pub fn is_disruptive(&self) -> bool {
        self.disruptive().next().is_some()
    }

    /// How long it takes when nothing is wrong and everything that may run at once does.
    pub fn expected(&self) -> Duration {
        let mut ends: Vec<Duration> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let begin = step
                .needs
                .iter()
                .map(|need| ends[need.0 as usize - 1])
                .max()
                .unwrap_or_default();
            ends.push(begin + step.expected);
        }
        ends.into_iter().max().unwrap_or_default()
    }
}

/// Wanted, but not safe or not possible now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub subject: Subject,
    /// What is not done: `bootstrap`, `remove`, `create`.
    pub what: &'static str,
    pub reason: String,
    pub lasts: Lasts,
}

/// How long something is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasts {
    /// The reason may go by itself: worth another look before anybody is told.
    AMoment,
    /// Until somebody does something about it.
    UntilMended,
    /// It stays as it is, and nothing is wrong with that.
    ForGood,
}

impl Held {
    pub fn passes(&self) -> bool {
        self.lasts == Lasts::AMoment
    }

    /// The cluster is not as the file says because of it.
    pub fn holds_up(&self) -> bool {
        self.lasts != Lasts::ForGood
    }
}

/// Why something is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hold {
    reason: String,
    lasts: Lasts,
}

impl Hold {
    /// Something that is under way, or was not seen this time.
    pub fn for_now(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            lasts: Lasts::AMoment,
        }
    }

    /// Something that mainstay leaves as it is, and says so.
    pub fn for_good(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            lasts: Lasts::ForGood,
        }
    }
}

impl From<String> for Hold {
    fn from(reason: String) -> Self {
        Self {
            reason,
            lasts: Lasts::UntilMended,
        }
    }
}

/// Changed by somebody else since it was last applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    pub subject: Subject,
    pub what: String,
}

/// Something because of which nothing at all is done.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    pub kind: RefusalKind,
    pub subject: Subject,
    /// The whole story in one line.
    pub what: String,
    pub why: String,
    /// What to do, each line fit to be pasted or followed.
    pub help: Vec<String>,
    pub at: Option<Span>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalKind {
    /// Something that is not ours is in the way.
    Conflict,
    /// The datacenter lacks something.
    Lacking,
    /// It would hurt, or is not done by this version.
    Gate,
}

impl RefusalKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Lacking => "lacking",
            Self::Gate => "gate",
        }
    }
}

/// Things as they should be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unchanged {
    pub machines: usize,
    pub images: usize,
}

/// Collects a plan. Steps get their ids in the order they are added, and may only need what was added before, so a plan has no cycles.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub plan: Plan,
}

impl Draft {
    fn new(desired: &Desired) -> Self {
        let versions = desired.wish().map(|wish| wish.versions.clone());
        Self {
            plan: Plan {
                cluster: desired.cluster.clone(),
                cluster_id: desired.cluster_id,
                versions,
                ..Plan::default()
            },
        }
    }

    pub fn step(&mut self, subject: Subject, action: Action) -> Adding<'_> {
        Adding {
            draft: self,
            subject,
            action,
            why: String::new(),
            impact: Impact::None,
            needs: Vec::new(),
            at: None,
        }
    }

    pub fn hold(&mut self, subject: Subject, what: &'static str, hold: impl Into<Hold>) {
        let Hold { reason, lasts } = hold.into();
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

    /// The plan. A refusal empties it: half of what was asked for is not what was asked for.
    pub fn finish(mut self) -> Plan {
        if !self.plan.refusals.is_empty() {
            self.plan.steps.clear();
            self.plan.held.clear();
        }
        self.plan
    }
}

/// A step that is being added.
#[must_use]
pub(crate) struct Adding<'a> {
    draft: &'a mut Draft,
    subject: Subject,
    action: Action,
    why: String,
    impact: Impact,
    needs: Vec<StepId>,
    at: Option<Span>,
}

impl Adding<'_> {
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
        self.needs.sort_unstable();
        self.needs.dedup();
        let steps = &mut self.draft.plan.steps;
        let id = StepId(u32::try_from(steps.len()).unwrap_or(u32::MAX).saturating_add(1));
        let expected = self.action.expected();
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
