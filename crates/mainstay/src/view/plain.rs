//! Append-only lines: one per transition, a heartbeat while something is waited for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mainstay_engine::{Event, StepEvent, Told};
use mainstay_plan::{Plan, StepId};

use super::{clock, count, short, summary};
use crate::output::Output;

const HEARTBEAT: Duration = Duration::from_secs(30);

pub struct Plain {
    output: Output,
    plan: Option<Arc<Plan>>,
    waits: BTreeMap<StepId, Wait>,
    spoken: Duration,
    done: usize,
}

struct Wait {
    since: Duration,
    what: String,
    limit: Duration,
}

impl Plain {
    pub fn new(output: Output) -> Self {
        Self {
            output,
            plan: None,
            waits: BTreeMap::new(),
            spoken: Duration::ZERO,
            done: 0,
        }
    }

    pub fn show(&mut self, told: &Told) {
        match &told.event {
            Event::Observing { round: 1 } => {}
            Event::Observing { round } if self.output.verbose => self.line(told.at, "look", &format!("round {round}")),
            Event::Observing { .. } => {}
            Event::Planned(plan) => {
                self.line(told.at, "plan", &summary(plan));
                if self.output.verbose {
                    plan.trace()
                        .lines()
                        .for_each(|line| self.output.tell(format!("      {line}")));
                }
                self.plan = Some(plan.clone());
                self.waits.clear();
            }
            Event::Step { id, now } => self.step(told.at, *id, now),
            Event::Note(text) => self.line(told.at, "note", text),
            Event::Stopping { running } => self.stopping(told.at, running),
        }
    }

    fn stopping(&mut self, at: Duration, running: &[StepId]) {
        let end = count(running.len(), "step");
        self.line(
            at,
            "stop",
            &format!("nothing new begins; waiting for the end of {end} (once more leaves at once)"),
        );
        for id in running {
            let name = self.name(*id);
            self.line(at, "stop", &format!("runs on: {name}"));
        }
    }

    fn step(&mut self, at: Duration, id: StepId, now: &StepEvent) {
        let name = self.name(id);
        match now {
            StepEvent::Begin => self.line(at, "begin", &name),
            StepEvent::Wait { what, limit } => {
                let since = self.waits.get(&id).map_or(at, |wait| wait.since);
                self.waits.insert(
                    id,
                    Wait {
                        since,
                        what: what.clone(),
                        limit: *limit,
                    },
                );
                self.line(at, "wait", &format!("{name}: {what}"));
            }
            StepEvent::Retry { why } => self.line(at, "retry", &format!("{name}: {why}")),
            StepEvent::Done { took } => {
                self.waits.remove(&id);
                self.done += 1;
                self.line(at, "done", &format!("{name} ({})", short(*took)));
            }
            StepEvent::Failed { took, why } => {
                self.waits.remove(&id);
                let because = why.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                self.line(at, "failed", &format!("{name} ({}): {why}{because}", short(*took)));
            }
        }
    }

    pub fn tick(&mut self, now: Duration) {
        if now.saturating_sub(self.spoken) < HEARTBEAT {
            return;
        }
        let waits: Vec<String> = self
            .waits
            .iter()
            .map(|(id, wait)| {
                format!(
                    "{}: {} ({} of {})",
                    self.name(*id),
                    wait.what,
                    short(now.saturating_sub(wait.since)),
                    short(wait.limit)
                )
            })
            .collect();
        for wait in waits {
            self.line(now, "wait", &wait);
        }
    }

    fn line(&mut self, at: Duration, verb: &str, text: &str) {
        self.spoken = at;
        self.output.tell(format!("{:>5} {verb:<6} {text}", clock(at)));
    }

    fn name(&self, id: StepId) -> String {
        let step = self.plan.as_ref().and_then(|plan| plan.step(id));
        step.map_or_else(
            || format!("step {id}"),
            |step| format!("{} {}", step.action.name(), step.subject),
        )
    }
}
