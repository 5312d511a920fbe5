//! Append-only lines for CI and pipes: one per transition, and a heartbeat while steps wait.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{EventReader, clock, count, error, short, summary};
use crate::output::Output;
use crate::wire::{EventLine, PlanEvent, StepState, StepUpdate, WireEvent, duration};

const HEARTBEAT: Duration = Duration::from_secs(30);

pub struct PlainView {
    output: Output,
    plan: Option<PlanEvent>,
    /// The summary of the plan is not written yet: it may still be declined.
    plan_is_new: bool,
    waits: BTreeMap<u32, StepWait>,
    last_written: Duration,
}

struct StepWait {
    name: String,
    since: Duration,
    reason: String,
    limit: Duration,
}

impl PlainView {
    pub fn new(output: Output) -> Self {
        Self {
            output,
            plan: None,
            plan_is_new: false,
            waits: BTreeMap::new(),
            last_written: Duration::ZERO,
        }
    }

    fn write_plan(&mut self, at: Duration) {
        let Some(plan) = self.plan.take_if(|_| self.plan_is_new) else {
            return;
        };
        self.write(at, "plan", &summary(&plan));
        if self.output.verbose {
            plan.list
                .iter()
                .for_each(|step| self.output.status(format!("      {}", step.trace())));
        }
        (self.plan, self.plan_is_new) = (Some(plan), false);
    }

    fn stopping(&mut self, at: Duration, running: &[u32]) {
        let steps = count(running.len(), "step");
        self.write(
            at,
            "stop",
            &format!("no new step begins; waiting for {steps} (Ctrl-C again aborts)"),
        );
        for id in running {
            let step = self.plan.as_ref().and_then(|plan| plan.step(*id));
            let name = step.map_or_else(|| format!("step {id}"), |step| format!("{} {}", step.action, step.on));
            self.write(at, "stop", &format!("still running: {name}"));
        }
    }

    fn step(&mut self, at: Duration, step: &StepUpdate) {
        let name = format!("{} {}", step.action, step.on);
        match &step.state {
            StepState::Begin => self.write(at, "begin", &name),
            StepState::Wait { reason, limit } => {
                self.write(at, "wait", &format!("{name}: {reason}"));
                let since = self.waits.get(&step.id).map_or(at, |wait| wait.since);
                let wait = StepWait {
                    name,
                    since,
                    reason: reason.clone(),
                    limit: duration(*limit),
                };
                self.waits.insert(step.id, wait);
            }
            StepState::Retry { why } => self.write(at, "retry", &format!("{name}: {why}")),
            StepState::Done { took } => {
                self.waits.remove(&step.id);
                self.write(at, "done", &format!("{name} ({})", short(duration(*took))));
            }
            StepState::Failed { took, summary, why, .. } => {
                self.waits.remove(&step.id);
                let why = why.iter().map(|why| format!(": {why}")).collect::<String>();
                self.write(at, "failed", &format!("{name} ({}): {summary}{why}", short(duration(*took))));
            }
        }
    }

    fn write(&mut self, at: Duration, verb: &str, text: &str) {
        self.last_written = at;
        self.output.status(format!("{:>5} {verb:<6} {text}", clock(at)));
    }
}

impl EventReader for PlainView {
    fn line(&mut self, line: &EventLine) {
        let at = line.time();
        // The summary follows the approval, so that the page with the question comes first.
        if !matches!(line.event, WireEvent::Approval { .. } | WireEvent::Answer { approved: false }) {
            self.write_plan(at);
        }
        match &line.event {
            WireEvent::Look { round } if *round > 1 && self.output.verbose => self.write(at, "look", &format!("round {round}")),
            WireEvent::Plan(plan) => {
                (self.plan, self.plan_is_new) = (Some(plan.clone()), true);
                self.waits.clear();
            }
            WireEvent::Answer { approved: false } => self.plan_is_new = false,
            WireEvent::Step(step) => self.step(at, step),
            WireEvent::Note { text } => self.write(at, "note", text),
            WireEvent::Stopping { running } => self.stopping(at, running),
            WireEvent::Error(error) => self.output.status(error::text(error, self.output.color_err)),
            WireEvent::Report(report) => report.summary.iter().for_each(|line| self.output.status(line)),
            WireEvent::Run(_)
            | WireEvent::Look { .. }
            | WireEvent::Approval { .. }
            | WireEvent::Answer { .. }
            | WireEvent::Warning(_) => {}
        }
    }

    fn tick(&mut self, now: Duration) {
        if now.saturating_sub(self.last_written) < HEARTBEAT {
            return;
        }
        let text = |wait: &StepWait| {
            let waited = short(now.saturating_sub(wait.since));
            format!("{}: {} ({waited} of {})", wait.name, wait.reason, short(wait.limit))
        };
        let waits: Vec<String> = self.waits.values().map(text).collect();
        waits.iter().for_each(|wait| self.write(now, "wait", wait));
    }
}
