//! One object per line, versioned, with stable fields and never a secret.

use std::sync::Arc;
use std::time::Duration;

use mainstay_engine::{Event, Report, RunError, StepEvent, Told};
use mainstay_plan::{Plan, StepId};
use serde_json::{Value, json};

use crate::output::Output;

pub struct Json {
    output: Output,
    plan: Option<Arc<Plan>>,
}

impl Json {
    pub fn new(output: Output) -> Self {
        Self { output, plan: None }
    }

    pub fn show(&mut self, told: &Told) {
        let t = seconds(told.at);
        let object = match &told.event {
            Event::Observing { round } => json!({"v": 1, "type": "look", "t": t, "round": round}),
            Event::Planned(plan) => {
                self.plan = Some(plan.clone());
                plan_event(plan, t)
            }
            Event::Step { id, now } => self.step(t, *id, now),
            Event::Note(text) => json!({"v": 1, "type": "note", "t": t, "text": text}),
            Event::Stopping { running } => {
                json!({"v": 1, "type": "stopping", "t": t, "running": running.iter().map(|id| id.0).collect::<Vec<_>>()})
            }
        };
        self.output.object(&object);
    }

    fn step(&self, t: f64, id: StepId, now: &StepEvent) -> Value {
        let step = self.plan.as_ref().and_then(|plan| plan.step(id));
        let on = step.map(|step| step.subject.to_string());
        let action = step.map(|step| step.action.name());
        let mut object = json!({"v": 1, "type": "step", "t": t, "id": id.0, "on": on, "action": action});
        let more = match now {
            StepEvent::Begin => json!({"event": "begin"}),
            StepEvent::Wait { what, limit } => json!({"event": "wait", "for": what, "limit": seconds(*limit)}),
            StepEvent::Retry { why } => json!({"event": "retry", "why": why}),
            StepEvent::Done { took } => json!({"event": "done", "took": seconds(*took)}),
            StepEvent::Failed { took, why } => {
                json!({"event": "failed", "took": seconds(*took), "kind": why.kind.as_str(), "summary": why.what, "why": why.why, "help": why.help})
            }
        };
        if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
            object.extend(more);
        }
        object
    }
}

/// A plan in numbers.
fn plan_event(plan: &Plan, t: f64) -> Value {
    let sums = plan.summary();
    json!({
        "v": 1, "type": "plan", "t": t, "cluster": plan.cluster, "steps": sums.steps,
        "create": sums.images_to_create + sums.machines_to_create, "change": sums.machines_to_change,
        "remove": sums.machines_to_remove + sums.images_to_remove + sums.leftovers_to_remove, "held": sums.held,
    })
}

/// A plan that is only shown: its numbers, and every step with its reason.
pub fn plan_object(plan: &Plan) -> Value {
    let mut object = plan_event(plan, 0.0);
    let steps: Vec<Value> = plan.steps.iter().map(|step| {
        let needs: Vec<u32> = step.needs.iter().map(|need| need.0).collect();
        json!({"id": step.id.0, "on": step.subject.to_string(), "action": step.action.name(), "why": step.why, "impact": step.impact.to_string(), "needs": needs})
    }).collect();
    let held: Vec<Value> = plan
        .held
        .iter()
        .map(|held| json!({"on": held.subject.to_string(), "what": held.what, "reason": held.reason}))
        .collect();
    let drift: Vec<Value> = plan
        .drift
        .iter()
        .map(|drift| json!({"on": drift.subject.to_string(), "what": drift.what}))
        .collect();
    if let Some(object) = object.as_object_mut() {
        object.remove("t");
        object.insert("list".into(), steps.into());
        object.insert("held_list".into(), held.into());
        object.insert("drift".into(), drift.into());
    }
    object
}

/// The last line of a run.
pub fn report(outcome: Result<&Report, &RunError>, t: Duration, wanted: usize) -> Value {
    let t = seconds(t);
    match outcome {
        Ok(report) => {
            let ready = report
                .nodes
                .as_ref()
                .map_or(0, |nodes| nodes.nodes.values().filter(|node| node.ready).count());
            json!({"v": 1, "type": "report", "t": t, "settled": report.is_settled(), "done": report.done, "held": report.held.len(), "nodes": {"ready": ready, "wanted": wanted}})
        }
        Err(error) => {
            let done = match error {
                RunError::Failed { done, .. } | RunError::Stopped { done, .. } => *done,
                _ => 0,
            };
            json!({"v": 1, "type": "report", "t": t, "settled": false, "done": done, "exit": error.exit_code()})
        }
    }
}

/// Rounded to tenths, as people would say it.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}
