//! The plan: what will be done, what is held back and why, and what was found changed.

use std::time::Duration;

use mainstay_spec::Span;
use uuid::Uuid;

use crate::action::Action;
use crate::step::{Impact, StepId, Subject};
use crate::versions::Versions;

/// What to do about one cluster.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    pub cluster: String,
    /// `None`: there are no secrets, so this plan is for reading only.
    pub cluster_id: Option<Uuid>,
    /// What the machines will run. `None` when the cluster is being deleted.
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
    pub fn is_blocked(&self) -> bool {
        self.held.iter().any(Held::blocks)
    }

    pub fn step(&self, id: StepId) -> Option<&Step> {
        self.steps.get(usize::try_from(id.0).ok()?.checked_sub(1)?)
    }

    /// Steps that destroy data: what an approval must cover.
    pub fn removals(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.action.info().removes_data)
    }

    /// Whether an image is downloaded, and whether one is imported: then its publisher is to be asked about it.
    pub fn image_use(&self) -> ImageUse {
        let uses = |does: fn(&Action) -> bool| self.steps.iter().any(|step| does(&step.action));
        ImageUse {
            fetched: uses(|action| matches!(action, Action::ImageFetch { .. })),
            imported: uses(|action| matches!(action, Action::MachineFill(fill) if fill.system.is_some())),
        }
    }

    /// The steps that take something down or away.
    pub fn disruptive(&self) -> impl Iterator<Item = &Step> {
        let is_disruptive = |step: &&Step| step.action.info().needs_lease || step.impact >= Impact::Reboot;
        self.steps.iter().filter(is_disruptive)
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

/// What a plan does with images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageUse {
    pub fetched: bool,
    /// A machine gets its disk from an image.
    pub imported: bool,
}

/// One unit of work. Everything it needs to know is in it: execution chooses nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub id: StepId,
    pub subject: Subject,
    pub action: Action,
    pub why: String,
    pub impact: Impact,
    /// Steps that must have ended well before this one begins. Nothing else orders steps.
    pub needs: Vec<StepId>,
    /// How long it takes when nothing is wrong.
    pub expected: Duration,
    /// The lines of cluster.yaml that ask for it.
    pub at: Option<Span>,
}

/// Wanted, but not safe or not possible now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub subject: Subject,
    /// What is not done: `bootstrap`, `remove`, `create`.
    pub what: &'static str,
    pub reason: String,
    pub lasts: HoldKind,
}

/// How long something is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldKind {
    /// The reason may disappear by itself: observe again before it is reported.
    Transient,
    /// Until a task of Proxmox VE ends that makes something of ours. A copy may take hours.
    Task,
    /// Until the operator fixes the cause.
    NeedsOperator,
    /// It stays as it is, and nothing is wrong with that.
    Accepted,
}

impl Held {
    pub fn is_transient(&self) -> bool {
        matches!(self.lasts, HoldKind::Transient | HoldKind::Task)
    }

    /// The cluster is not as the file says because of it.
    pub fn blocks(&self) -> bool {
        self.lasts != HoldKind::Accepted
    }
}

/// Why something is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HoldReason {
    pub reason: String,
    pub lasts: HoldKind,
}

impl HoldReason {
    /// Something that is under way, or was not seen this time.
    pub fn transient(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            lasts: HoldKind::Transient,
        }
    }

    /// Work of ours that goes on in Proxmox VE.
    pub fn task(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            lasts: HoldKind::Task,
        }
    }

    /// Something that mainstay leaves as it is, and says so.
    pub fn accepted(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            lasts: HoldKind::Accepted,
        }
    }

    /// Adds what is not done because of it.
    pub fn would(self, change: &str) -> Self {
        if change.is_empty() {
            return self;
        }
        Self {
            reason: format!("{} (waits: {change})", self.reason),
            ..self
        }
    }
}

impl From<String> for HoldReason {
    fn from(reason: String) -> Self {
        Self {
            reason,
            lasts: HoldKind::NeedsOperator,
        }
    }
}

/// Changed outside of mainstay since it was last applied.
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
    Insufficient,
    /// It would hurt, or is not done by this version.
    Gate,
}

impl RefusalKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Insufficient => "lacking",
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
