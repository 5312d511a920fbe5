//! Events: the only output of the engine. Views, JSON lines and run logs are readers of one stream.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mainstay_plan::{Plan, StepId};
use tokio::time::Instant;

use crate::failure::Failure;

/// An event, and its time since the run began.
#[derive(Debug, Clone)]
pub struct EventRecord {
    pub at: Duration,
    pub event: Event,
}

#[derive(Debug, Clone)]
pub enum Event {
    /// The world is observed, for the n-th time in this run.
    Observing {
        round: u32,
    },
    /// What this round will do. An approval may still be needed before its first step begins.
    Planned(Arc<Plan>),
    /// The last plan waits for approval. `removes` are its steps that destroy data.
    Approval {
        removes: Vec<StepId>,
    },
    /// The last approval request was answered.
    Answered {
        approved: bool,
    },
    Step {
        id: StepId,
        now: StepEvent,
    },
    /// A message for people.
    Note(String),
    /// No new step begins; these are still running.
    Stopping {
        running: Vec<StepId>,
    },
}

#[derive(Debug, Clone)]
pub enum StepEvent {
    Begin,
    /// What the step waits for, and for how long at most. Emitted again whenever the reason changes.
    Wait {
        what: String,
        limit: Duration,
        /// For a copy or a download whose task tells how far it is.
        transfer: Option<Transfer>,
    },
    /// A request failed in a way that may pass; the step is tried again.
    Retry {
        why: String,
    },
    Done {
        took: Duration,
    },
    Failed {
        took: Duration,
        why: Arc<Failure>,
    },
}

/// How far a copy or a download is. A task may tell a percentage without sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfer {
    /// 0 to 100.
    pub percent: f64,
    /// Bytes so far, and in all.
    pub bytes: Option<(u64, u64)>,
    /// Bytes per second.
    pub rate: Option<u64>,
}

impl Transfer {
    /// `None` if the line of the log tells neither a percentage nor sizes.
    pub fn of(progress: &pve_api::Progress) -> Option<Self> {
        let bytes = progress.done.zip(progress.total).filter(|(_, total)| *total > 0);
        let by_size = bytes.map(|(done, total)| done as f64 * 100.0 / total as f64);
        Some(Self {
            percent: by_size.or(progress.percent.map(f64::from))?.clamp(0.0, 100.0),
            bytes,
            rate: progress.rate.filter(|rate| *rate > 0),
        })
    }
}

/// Where events go.
#[derive(Clone)]
pub struct EventSink {
    began: Instant,
    sink: Arc<dyn Fn(EventRecord) + Send + Sync>,
}

impl EventSink {
    pub fn new(sink: impl Fn(EventRecord) + Send + Sync + 'static) -> Self {
        Self {
            began: Instant::now(),
            sink: Arc::new(sink),
        }
    }

    /// Drops every event: for callers that only observe or plan.
    pub fn discard() -> Self {
        Self::new(|_| {})
    }

    pub fn emit(&self, event: Event) {
        (self.sink)(EventRecord {
            at: self.began.elapsed(),
            event,
        });
    }

    pub fn note(&self, text: impl Into<String>) {
        self.emit(Event::Note(text.into()));
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

/// Emits the events of one step. A reason to wait is emitted once, not at every poll.
#[derive(Debug)]
pub struct StepProgress {
    events: EventSink,
    id: StepId,
    last: std::sync::Mutex<String>,
}

impl StepProgress {
    /// Something that people should know, and that changes nothing about the step.
    pub fn note(&self, text: impl Into<String>) {
        self.events.note(text);
    }

    pub fn new(events: EventSink, id: StepId) -> Self {
        Self {
            events,
            id,
            last: std::sync::Mutex::default(),
        }
    }

    /// For requests outside of a step: its events are dropped.
    pub fn discard() -> Self {
        Self::new(EventSink::discard(), StepId(0))
    }

    pub fn wait(&self, what: impl Into<String>, limit: Duration) {
        self.wait_with(what.into(), limit, None);
    }

    /// A copy or a download that goes on, in words and as numbers.
    pub fn transfer(&self, what: impl Into<String>, transfer: Option<Transfer>, limit: Duration) {
        self.wait_with(what.into(), limit, transfer);
    }

    fn wait_with(&self, what: String, limit: Duration, transfer: Option<Transfer>) {
        let mut last = self.last.lock().expect("nothing panics while it speaks");
        if *last != what {
            last.clone_from(&what);
            self.emit(StepEvent::Wait { what, limit, transfer });
        }
    }

    pub fn retry(&self, why: impl fmt::Display) {
        self.emit(StepEvent::Retry { why: why.to_string() });
    }

    pub(crate) fn emit(&self, now: StepEvent) {
        self.events.emit(Event::Step { id: self.id, now });
    }
}
