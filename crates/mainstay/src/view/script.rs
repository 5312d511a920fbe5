//! Event streams for tests of the views.

use std::time::Duration;

use crate::wire::{
    ErrorKind, EventLine, PlanCounts, PlanEvent, PlanStep, PlanSubject, StepState, StepUpdate, SubjectKind, TransferState,
    WireEvent,
};

pub fn at(second: u64, event: WireEvent) -> EventLine {
    EventLine::at(Duration::from_secs(second), event)
}

/// A plan of machines with these actions, one after the other. A name with a colon is an image.
pub fn plan(subjects: &[(&str, &str, &[&str])]) -> WireEvent {
    let mut list: Vec<PlanStep> = Vec::new();
    for (name, pool, actions) in subjects {
        let is_image = name.contains(':');
        let first = list.len();
        for action in *actions {
            let id = u32::try_from(list.len() + 1).expect("a short plan");
            let image = list
                .iter()
                .find(|step| step.subject.kind == SubjectKind::Image)
                .map(|step| step.id);
            let before = (list.len() > first).then(|| id - 1);
            list.push(PlanStep {
                id,
                on: (*name).into(),
                subject: PlanSubject {
                    kind: if is_image { SubjectKind::Image } else { SubjectKind::Machine },
                    name: Some((*name).into()),
                    pool: (!is_image && !pool.is_empty()).then(|| (*pool).to_owned()),
                },
                action: (*action).into(),
                doing: if *action == "node.await" {
                    "waiting for the node"
                } else {
                    "working"
                }
                .into(),
                detail: None,
                why: String::new(),
                impact: "none".into(),
                needs: before
                    .into_iter()
                    .chain(image.filter(|_| *action == "machine.fill"))
                    .collect(),
                expected: 30.0,
                line: None,
            });
        }
    }
    WireEvent::Plan(PlanEvent {
        cluster: "prod".into(),
        steps: list.len(),
        create: 0,
        change: 0,
        remove: 0,
        held: 0,
        expected: 90.0,
        counts: PlanCounts::default(),
        list,
        held_list: Vec::new(),
        drift: Vec::new(),
        notes: Vec::new(),
    })
}

pub fn step(second: u64, id: u32, on: &str, state: StepState) -> EventLine {
    at(
        second,
        WireEvent::Step(StepUpdate {
            id,
            on: on.into(),
            action: String::new(),
            state,
        }),
    )
}

pub fn wait(reason: &str) -> StepState {
    StepState::Wait {
        reason: reason.into(),
        limit: 600.0,
        transfer: None,
    }
}

pub fn transfer(percent: f64) -> StepState {
    StepState::Wait {
        reason: "downloaded 120 of 310 MB, 25 MB/s".into(),
        limit: 600.0,
        transfer: Some(TransferState {
            percent,
            done: Some(120_000_000),
            total: Some(310_000_000),
            rate: Some(25_000_000),
        }),
    }
}

pub fn failed(summary: &str) -> StepState {
    StepState::Failed {
        took: 1.0,
        kind: ErrorKind::Failed,
        summary: summary.into(),
        why: Vec::new(),
        help: Vec::new(),
    }
}
