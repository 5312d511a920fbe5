//! State and events: read, listed, followed.

use std::time::Duration;

use prost::Message;
use talos_api::resource::{Diagnostic, MachineStatus, RunningService, Stage, TimeStatus};
use talos_api::{Change, Error, Heard, Next, Node, Since, Step, Told, What};
use talos_proto::cosi::resource as cosi;
use talos_proto::cosi::resource::EventType;
use talos_proto::machine as wire;
use tonic::Code;

use crate::world::{Authority, Machine, Reply, World, resource, run, target};

const QUIET: Duration = Duration::from_secs(5);
const SERVICES: &str = "Services.v1alpha1.talos.dev";

async fn one_machine(world: &World) -> (Node, Machine) {
    let authority = Authority::new("cluster");
    let machine = world.configured("10.0.0.11", &authority).await;
    (authority.access(&world.env).node(&target(&machine)).unwrap(), machine)
}

fn event(kind: EventType, resource: Option<cosi::Resource>) -> cosi::WatchResponse {
    cosi::WatchResponse {
        event: vec![cosi::Event {
            resource,
            event_type: kind.into(),
            ..Default::default()
        }],
    }
}

#[test]
fn a_resource_is_read_with_its_version() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        machine.resource(
            "TimeStatuses.v1alpha1.talos.dev",
            "node",
            "synced: true\nepoch: 0\nsyncDisabled: false\n",
        );
        let time = node.get::<TimeStatus>(TimeStatus::ID).await.unwrap().unwrap();
        assert_eq!(
            (time.version, time.spec),
            (
                Some(3),
                TimeStatus {
                    synced: true,
                    sync_disabled: false
                }
            )
        );
    });
}

#[test]
fn what_is_not_there_and_what_the_release_does_not_know_are_both_absent() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        assert!(node.get::<TimeStatus>("node").await.unwrap().is_none());
        let unknown = Reply::Refuse(
            Code::PermissionDenied,
            "resource type \"Diagnostics.runtime.talos.dev\" is not supported",
        );
        machine.next("ListResources", unknown);
        assert!(node.list::<Diagnostic>().await.unwrap().is_empty());
        machine.next("ListResources", Reply::Refuse(Code::PermissionDenied, "not authorized"));
        assert!(node.list::<Diagnostic>().await.is_err(), "what may not be read is not absent");
    });
}

#[test]
fn text_that_is_not_the_resource_is_not_quoted() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        machine.resource("MachineStatuses.runtime.talos.dev", "machine", "stage: [CANARY\n");
        let error = node.status().await.unwrap_err();
        assert!(matches!(error, Error::Misread { .. }));
        assert!(!format!("{error:?}").contains("CANARY"), "{error:?}");
    });
}

#[test]
fn a_watch_tells_what_is_there_and_then_what_changes() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        let service = |healthy| {
            resource(
                SERVICES,
                "etcd",
                &format!("running: true\nhealthy: {healthy}\nunknown: false\n"),
            )
        };
        machine.with_watch(vec![
            // The first answer is empty: the watch stands.
            cosi::WatchResponse::default(),
            event(EventType::Created, Some(service(false))),
            event(EventType::Bootstrapped, None),
            event(EventType::Noop, None),
            event(EventType::Updated, Some(service(true))),
            event(EventType::Destroyed, Some(service(true))),
        ]);
        let mut watch = node.watch::<RunningService>(None).await.unwrap();
        let mut told = Vec::new();
        loop {
            match watch.next(QUIET).await.unwrap() {
                Told::Change(Change::Is(service)) => told.push(format!("{} healthy={}", service.id, service.spec.healthy)),
                Told::Change(Change::Gone { id }) => told.push(format!("{id} gone")),
                Told::Change(Change::Listed) => told.push("listed".into()),
                Told::Nothing => told.push("nothing".into()),
                Told::Ended => break,
            }
        }
        assert_eq!(told, ["etcd healthy=false", "listed", "etcd healthy=true", "etcd gone"]);
    });
}

#[test]
fn a_watch_that_fails_on_the_machine_is_an_error() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        let mut failed = event(EventType::Errored, None);
        failed.event[0].error = Some("buffer overrun".into());
        machine.with_watch(vec![failed]);
        let mut watch = node.watch::<RunningService>(None).await.unwrap();
        assert!(watch.next(QUIET).await.unwrap_err().to_string().contains("buffer overrun"));
        machine.next("Watch", Reply::Refuse(Code::FailedPrecondition, "invalid watch bookmark"));
        assert_eq!(node.watch::<RunningService>(None).await.unwrap_err().next(), Next::Look);
    });
}

fn packed(name: &str, message: &impl Message) -> wire::Event {
    let data = prost_types::Any {
        type_url: format!("talos/runtime/machine.{name}"),
        value: message.encode_to_vec(),
    };
    wire::Event {
        data: Some(data),
        id: format!("id-{name}"),
        ..Default::default()
    }
}

#[test]
fn events_are_read_by_their_own_type_names() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        let hello = wire::Event {
            data: Some(prost_types::Any::default()),
            id: "dbt20tpgddlc73fq4n4g".into(),
            ..Default::default()
        };
        let locked = wire::SequenceEvent {
            sequence: "reboot".into(),
            error: Some(talos_proto::common::Error {
                code: 1,
                message: "sequence not started: locked".into(),
                details: Vec::new(),
            }),
            ..Default::default()
        };
        let begins = wire::SequenceEvent {
            sequence: "reboot".into(),
            action: 1,
            error: None,
        };
        let status = wire::MachineStatusEvent {
            stage: wire::machine_status_event::MachineStage::Rebooting.into(),
            status: Some(wire::machine_status_event::MachineStatus {
                ready: true,
                unmet_conditions: Vec::new(),
            }),
        };
        let mut unknown = packed("RestartEvent", &wire::RestartEvent { cmd: 1 });
        unknown.actor_id = "an-actor".into();
        machine.with_events(vec![
            hello,
            packed("SequenceEvent", &locked),
            packed("SequenceEvent", &begins),
            packed("MachineStatusEvent", &status),
            unknown,
        ]);
        let mut events = node.events(Since::Start).await.unwrap();
        let mut told = Vec::new();
        while let Heard::Event(event) = events.next(QUIET).await.unwrap() {
            told.push((event.actor, event.what));
        }
        let sequence = |step| What::Sequence {
            name: "reboot".into(),
            step,
        };
        assert_eq!(told[0], (None, What::Hello));
        assert_eq!(told[1].1, sequence(Step::Locked));
        assert_eq!(told[2].1, sequence(Step::Begins));
        let What::Status(MachineStatus { stage, .. }) = &told[3].1 else {
            panic!("{:?}", told[3])
        };
        assert_eq!(*stage, Stage::Rebooting);
        assert_eq!(told[4], (Some("an-actor".into()), What::Other));
        assert_eq!(told.len(), 5);
    });
}
