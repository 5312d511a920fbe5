//! The written format: a golden line of every variant, the schema, and reading back.

use std::collections::BTreeSet;
use std::time::Duration;

use expect_test::expect_file;

use super::event::{EventLine, NodeCounts, ReportEvent, RunHeader, StepState, StepUpdate, TransferState, WireEvent};
use super::plan::{DriftEntry, HeldEntry, PlanCounts, PlanEvent, PlanStep, PlanSubject, SubjectKind};
use super::{ErrorEvent, ErrorKind};

/// The variants by number. A new variant does not compile before it has a number, and [`every_variant_has_a_sample`] asks for its sample.
fn number(event: &WireEvent) -> usize {
    match event {
        WireEvent::Run(_) => 0,
        WireEvent::Look { .. } => 1,
        WireEvent::Plan(_) => 2,
        WireEvent::Approval { .. } => 3,
        WireEvent::Answer { .. } => 4,
        WireEvent::Step(step) => match &step.state {
            StepState::Begin => 5,
            StepState::Wait { .. } => 6,
            StepState::Retry { .. } => 7,
            StepState::Done { .. } => 8,
            StepState::Failed { .. } => 9,
        },
        WireEvent::Note { .. } => 10,
        WireEvent::Stopping { .. } => 11,
        WireEvent::Warning(_) => 12,
        WireEvent::Error(_) => 13,
        WireEvent::Report(_) => 14,
    }
}
const VARIANTS: usize = 15;

fn samples() -> Vec<EventLine> {
    let events = [
        WireEvent::Run(RunHeader {
            command: "up".into(),
            cluster: "prod".into(),
            datacenter: "pve.lan".into(),
            version: "0.1.0".into(),
            started: "2026-01-02T03:04:05Z".into(),
        }),
        WireEvent::Look { round: 1 },
        WireEvent::Plan(plan()),
        WireEvent::Approval {
            question: "Apply this plan? [y/N]".into(),
            removes: vec![2],
        },
        WireEvent::Answer { approved: true },
        step(StepState::Begin),
        step(StepState::Wait {
            reason: "etcd does not list prod-cp-1".into(),
            limit: 600.0,
            transfer: Some(TransferState {
                percent: 38.7,
                done: Some(120_000_000),
                total: Some(310_000_000),
                rate: Some(25_000_000),
            }),
        }),
        step(StepState::Retry {
            why: "Proxmox VE cannot be reached".into(),
        }),
        step(StepState::Done { took: 3.4 }),
        step(StepState::Failed {
            took: 40.0,
            kind: ErrorKind::Unsettled,
            summary: "the Talos API did not answer within 5 min".into(),
            why: vec!["connection refused".into()],
            help: vec!["open the console of VM 2001".into()],
        }),
        WireEvent::Note {
            text: "the lease could not be written".into(),
        },
        WireEvent::Stopping { running: vec![1, 2] },
        WireEvent::Warning(ErrorEvent {
            kind: ErrorKind::Spec,
            code: Some("one-control-plane".into()),
            summary: "one control plane".into(),
            file: Some("cluster.yaml".into()),
            line: Some(9),
            column: Some(5),
            path: Some("pools.control-plane.count".into()),
            label: Some("no redundancy".into()),
            ..ErrorEvent::default()
        }),
        WireEvent::Error(ErrorEvent {
            kind: ErrorKind::Denied,
            summary: "Proxmox VE denied the image download".into(),
            id: Some(1),
            on: Some("pve1:local".into()),
            at: Some("step 1 of 2, image.fetch pve1:local".into()),
            file: Some("cluster.yaml".into()),
            line: Some(9),
            until: Some("2026-01-02T03:06:05Z".into()),
            left: Some(3),
            why: vec!["403".into()],
            help: vec!["mainstay grant".into()],
            ..ErrorEvent::default()
        }),
        WireEvent::Report(ReportEvent {
            settled: false,
            done: 1,
            held: 1,
            nodes: Some(NodeCounts { ready: 2, wanted: 3 }),
            exit: 1,
            summary: vec!["1 step is done and kept.".into()],
        }),
    ];
    events
        .into_iter()
        .map(|event| EventLine::at(Duration::from_millis(1540), event))
        .collect()
}

fn step(state: StepState) -> WireEvent {
    WireEvent::Step(StepUpdate {
        id: 2,
        on: "prod-cp-1".into(),
        action: "machine.delete".into(),
        state,
    })
}

fn plan() -> PlanEvent {
    let step = |id, kind, name: Option<&str>, action: &str| PlanStep {
        id,
        on: name.unwrap_or("cluster").into(),
        subject: PlanSubject {
            kind,
            name: name.map(str::to_owned),
            pool: name.map(|_| "control-plane".to_owned()),
        },
        action: action.into(),
        doing: "deleting".into(),
        detail: name.map(|_| "vm 2001 on pve1".into()),
        why: "left the file".into(),
        impact: "wipe".into(),
        needs: (1..id).collect(),
        expected: 3.0,
        line: name.map(|_| 9),
    };
    PlanEvent {
        cluster: "prod".into(),
        steps: 2,
        create: 0,
        change: 0,
        remove: 1,
        held: 1,
        expected: 6.0,
        counts: PlanCounts {
            machines_to_remove: 1,
            unchanged: 4,
            ..PlanCounts::default()
        },
        list: vec![
            step(1, SubjectKind::Cluster, None, "etcd.leave"),
            step(2, SubjectKind::Machine, Some("prod-cp-1"), "machine.delete"),
        ],
        held_list: vec![HeldEntry {
            on: "prod-cp-2".into(),
            what: "remove".into(),
            reason: "etcd needs it".into(),
        }],
        drift: vec![DriftEntry {
            on: "prod-w-1".into(),
            what: "memory is 4 GiB, was set to 8 GiB".into(),
        }],
        notes: vec!["local is thin-provisioned".into()],
    }
}

#[test]
fn every_variant_has_a_sample() {
    let sampled: BTreeSet<usize> = samples().iter().map(|line| number(&line.event)).collect();
    assert_eq!(sampled, (0..VARIANTS).collect());
}

/// `tests/data/events-1.jsonl` is format 1 as it was first written. A difference here breaks readers of the stream and of kept run logs.
#[test]
fn the_written_lines_are_those_of_the_golden_file() {
    let text: String = samples().iter().map(|line| line.to_json() + "\n").collect();
    expect_file!["../../tests/data/events-1.jsonl"].assert_eq(&text);
}

#[test]
fn a_line_that_was_written_is_read_back() {
    for line in samples() {
        let text = line.to_json();
        let read: EventLine = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(read, line);
    }
}

#[test]
fn fields_that_a_later_version_adds_are_ignored() {
    let text = r#"{"v":1,"type":"note","t":1.5,"text":"x","added":{"later":true}}"#;
    let read: EventLine = serde_json::from_str(text).expect("reads");
    assert_eq!(read.event, WireEvent::Note { text: "x".into() });
}

#[test]
fn the_schema_is_that_of_the_types() {
    let schema = schemars::generate::SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<EventLine>();
    let text = serde_json::to_string_pretty(&schema).expect("a schema is JSON") + "\n";
    expect_file!["../../../../docs/reference/events.schema.json"].assert_eq(&text);
}

#[test]
fn every_sample_fits_the_schema_and_a_wrong_line_does_not() {
    let schema = serde_json::from_str(super::SCHEMA).expect("the schema is JSON");
    let schema = jsonschema::validator_for(&schema).expect("the schema is one");
    for line in samples() {
        let object = serde_json::from_str(&line.to_json()).expect("a line is JSON");
        let faults: Vec<String> = schema.iter_errors(&object).map(|error| error.to_string()).collect();
        assert!(faults.is_empty(), "{faults:?}\n{object:#}");
    }
    for wrong in [
        r#"{"v":1,"type":"step","t":0,"id":1}"#,
        r#"{"v":1,"type":"unheard-of"}"#,
        r#"{"type":"look","round":1}"#,
    ] {
        let object = serde_json::from_str(wrong).expect("JSON");
        assert!(!schema.is_valid(&object), "{wrong} fits");
    }
}
