//! Lines of the stream, and the translation of engine events into them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mainstay_engine::{Event, EventRecord, StepEvent};
use mainstay_plan::{Plan, StepId};
use mainstay_spec::Spec;
use serde::{Deserialize, Serialize};

use super::error::{ErrorEvent, ErrorKind};
use super::plan::{PlanEvent, pools};
use super::time::{duration, seconds};

/// The version of the format. Fields may be added to a version; none is renamed, removed or given another type.
const VERSION: u8 = 1;

/// One line: one JSON object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EventLine {
    /// Version of the format.
    pub v: u8,
    /// Seconds since the run began. Absent in lines that belong to no run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub t: Option<f64>,
    #[serde(flatten)]
    pub event: WireEvent,
}

impl EventLine {
    /// A line of a run.
    pub fn at(time: Duration, event: WireEvent) -> Self {
        Self {
            v: VERSION,
            t: Some(seconds(time)),
            event,
        }
    }

    /// A line that belongs to no run.
    pub fn untimed(event: WireEvent) -> Self {
        Self {
            v: VERSION,
            t: None,
            event,
        }
    }

    pub fn time(&self) -> Duration {
        duration(self.t.unwrap_or_default())
    }

    /// The text of the line. The order of fields is part of the format: `v`, `type`, `t`, then those of the event.
    pub fn to_json(&self) -> String {
        let mut value = serde_json::to_value(self).expect("wire types have string keys and finite numbers");
        if let Some(object) = value.as_object_mut()
            && let Some(t) = object.shift_remove("t")
        {
            object.shift_insert(2, "t".to_owned(), t);
        }
        value.to_string()
    }
}

/// What a line says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum WireEvent {
    /// The first line of a run.
    Run(RunHeader),
    /// The world is observed, for the n-th time in this run.
    Look { round: u32 },
    /// What a round does, with every step.
    Plan(PlanEvent),
    /// The plan above waits for approval. `removes` are the ids of its steps that destroy data.
    Approval { question: String, removes: Vec<u32> },
    /// The answer to the question above.
    Answer { approved: bool },
    /// A step of the last plan has changed its state.
    Step(StepUpdate),
    /// A message for people.
    Note { text: String },
    /// No new step begins. The steps with these ids are still running.
    Stopping { running: Vec<u32> },
    /// A problem with cluster.yaml that does not stop the run.
    Warning(ErrorEvent),
    /// Why the command failed. A command can end with several errors.
    Error(ErrorEvent),
    /// The last line of a run.
    Report(ReportEvent),
}

/// Which run this is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunHeader {
    /// `up` or `down`.
    pub command: String,
    pub cluster: String,
    /// The host name of the Proxmox VE endpoint.
    pub datacenter: String,
    /// The version of mainstay.
    pub version: String,
    /// When the run began, in UTC.
    pub started: String,
}

/// What happened to one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StepUpdate {
    /// The id of the step in the last plan.
    pub id: u32,
    /// The subject of the step, as the plan names it.
    pub on: String,
    pub action: String,
    #[serde(flatten)]
    pub state: StepState,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum StepState {
    Begin,
    /// The step waits for something outside of mainstay, for at most `limit` seconds. Written again whenever the reason changes.
    Wait {
        #[serde(rename = "for")]
        reason: String,
        limit: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        transfer: Option<TransferState>,
    },
    /// A request failed in a way that may pass; the step is tried again.
    Retry {
        why: String,
    },
    Done {
        took: f64,
    },
    Failed {
        took: f64,
        kind: ErrorKind,
        summary: String,
        why: Vec<String>,
        help: Vec<String>,
    },
}

/// How far a copy or a download is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TransferState {
    /// 0 to 100.
    pub percent: f64,
    /// Bytes so far. Absent, with `total`, where the task tells a percentage only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReportEvent {
    /// Everything is as the command should make it.
    pub settled: bool,
    /// Steps that were done, in all rounds.
    pub done: usize,
    /// Things that are held.
    pub held: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCounts>,
    /// The exit code of the command.
    pub exit: u8,
    /// The result for people, line by line.
    pub summary: Vec<String>,
}

/// Kubernetes nodes: ready ones, and as many as the file asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NodeCounts {
    pub ready: usize,
    pub wanted: usize,
}

/// Translates the events of one run. It remembers the last plan, because engine events name steps by id only.
pub struct EventEncoder {
    /// What is asked when a plan needs approval.
    question: String,
    /// The pool of each machine of the cluster file.
    pools: BTreeMap<String, String>,
    plan: Option<Arc<Plan>>,
}

impl EventEncoder {
    pub fn new(question: impl Into<String>, spec: &Spec) -> Self {
        Self {
            question: question.into(),
            pools: pools(spec),
            plan: None,
        }
    }

    pub fn encode(&mut self, record: &EventRecord) -> EventLine {
        let event = match &record.event {
            Event::Observing { round } => WireEvent::Look { round: *round },
            Event::Planned(plan) => {
                self.plan = Some(plan.clone());
                WireEvent::Plan(PlanEvent::new(plan, &self.pools))
            }
            Event::Approval { removes } => WireEvent::Approval {
                question: self.question.clone(),
                removes: ids(removes),
            },
            Event::Answered { approved } => WireEvent::Answer { approved: *approved },
            Event::Step { id, now } => WireEvent::Step(self.step(*id, now)),
            Event::Note(text) => WireEvent::Note { text: text.clone() },
            Event::Stopping { running } => WireEvent::Stopping { running: ids(running) },
        };
        EventLine::at(record.at, event)
    }

    fn step(&self, id: StepId, now: &StepEvent) -> StepUpdate {
        let step = self.plan.as_ref().and_then(|plan| plan.step(id));
        StepUpdate {
            id: id.0,
            on: step.map(|step| step.subject.to_string()).unwrap_or_default(),
            action: step.map(|step| step.action.name().to_owned()).unwrap_or_default(),
            state: state(now),
        }
    }
}

fn state(now: &StepEvent) -> StepState {
    match now {
        StepEvent::Begin => StepState::Begin,
        StepEvent::Wait { what, limit, transfer } => StepState::Wait {
            reason: what.clone(),
            limit: seconds(*limit),
            transfer: transfer.as_ref().map(|transfer| TransferState {
                percent: (transfer.percent * 10.0).round() / 10.0,
                done: transfer.bytes.map(|(done, _)| done),
                total: transfer.bytes.map(|(_, total)| total),
                rate: transfer.rate,
            }),
        },
        StepEvent::Retry { why } => StepState::Retry { why: why.clone() },
        StepEvent::Done { took } => StepState::Done { took: seconds(*took) },
        StepEvent::Failed { took, why: failure } => StepState::Failed {
            took: seconds(*took),
            kind: failure.kind.into(),
            summary: failure.what.clone(),
            why: failure.why.iter().cloned().collect(),
            help: failure.help.clone(),
        },
    }
}

fn ids(steps: &[StepId]) -> Vec<u32> {
    steps.iter().map(|id| id.0).collect()
}
