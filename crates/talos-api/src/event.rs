//! What a machine tells while it works.

use std::time::Duration;

use prost::Message;
use talos_proto::machine::machine_status_event::MachineStage;
use talos_proto::machine::{self as wire, EventsRequest};
use tokio::time::timeout;
use tonic::Streaming;

use crate::error::Error;
use crate::limits::READ;
use crate::link::Pending;
use crate::node::Node;
use crate::resource::{MachineStatus, Readiness, Stage, Unmet};

/// Not `type.googleapis.com/…`, as others would have it.
const TYPE_PREFIX: &str = "talos/runtime/machine.";

/// Where to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Since {
    /// With what happens from now on.
    Now,
    /// With everything the machine still remembers: the last thousand events of this boot.
    Start,
    /// After this event: for going on where a stream broke.
    After(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Sorts by time.
    pub id: String,
    /// The call that caused it, where a call did.
    pub actor: Option<String>,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// Always the first: from here on nothing is missed.
    Hello,
    Status(MachineStatus),
    /// A sequence such as `boot`, `reboot` or `reset`.
    Sequence {
        name: String,
        step: Step,
    },
    Phase {
        name: String,
        begins: bool,
    },
    Task {
        name: String,
        begins: bool,
    },
    Service {
        id: String,
        message: String,
        healthy: Option<bool>,
    },
    Address {
        hostname: String,
        addresses: Vec<String>,
    },
    /// The config could not be loaded, or is not valid.
    ConfigError(String),
    /// Of a type that is not read here.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Begins,
    Ends,
    /// Another sequence runs and may not be taken over: nothing was begun.
    Locked,
    /// Another sequence took over.
    TakenOver,
    /// It failed; the machine reboots, except during a shutdown.
    Failed(String),
}

/// What came of waiting for an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    Event(Event),
    /// Nothing happened in the given time.
    Nothing,
    /// The machine ended the stream: it reboots.
    Ended,
}

/// A stream of events.
pub struct Events {
    pending: Pending,
    stream: Streaming<wire::Event>,
}

impl Node {
    pub async fn events(&self, since: Since) -> Result<Events, Error> {
        let pending = self.link.call("Events", READ);
        let request = match since {
            Since::Now => EventsRequest::default(),
            Since::Start => EventsRequest {
                tail_events: -1,
                ..Default::default()
            },
            Since::After(id) => EventsRequest {
                tail_id: id,
                ..Default::default()
            },
        };
        let stream = pending
            .answer(self.link.machine().events(pending.stream_request(request)))
            .await?;
        Ok(Events { pending, stream })
    }
}

impl Events {
    /// The next event, or [`Heard::Nothing`] when none comes in `quiet`.
    pub async fn next(&mut self, quiet: Duration) -> Result<Heard, Error> {
        match timeout(quiet, self.stream.message()).await {
            Err(_) => Ok(Heard::Nothing),
            Ok(Ok(None)) => Ok(Heard::Ended),
            Ok(Ok(Some(event))) => Ok(Heard::Event(read(&self.pending, event)?)),
            Ok(Err(status)) => Err(Error::of_status(self.pending.name(), quiet, status)),
        }
    }
}

fn read(pending: &Pending, event: wire::Event) -> Result<Event, Error> {
    let actor = Some(event.actor_id).filter(|id| !id.is_empty());
    let data = event.data.unwrap_or_default();
    let unreadable = |_| pending.misread(format!("an event `{}` that cannot be decoded", data.type_url));
    let what = payload(&data.type_url, &data.value).map_err(unreadable)?;
    Ok(Event {
        id: event.id,
        actor,
        what,
    })
}

fn payload(type_url: &str, value: &[u8]) -> Result<What, prost::DecodeError> {
    let Some(name) = type_url.strip_prefix(TYPE_PREFIX) else {
        return Ok(if type_url.is_empty() { What::Hello } else { What::Other });
    };
    Ok(match name {
        "MachineStatusEvent" => What::Status(status(wire::MachineStatusEvent::decode(value)?)),
        "SequenceEvent" => sequence(wire::SequenceEvent::decode(value)?),
        "PhaseEvent" => {
            let event = wire::PhaseEvent::decode(value)?;
            What::Phase {
                begins: event.action() == wire::phase_event::Action::Start,
                name: event.phase,
            }
        }
        "TaskEvent" => {
            let event = wire::TaskEvent::decode(value)?;
            What::Task {
                begins: event.action() == wire::task_event::Action::Start,
                name: event.task,
            }
        }
        "ServiceStateEvent" => {
            let event = wire::ServiceStateEvent::decode(value)?;
            let healthy = event.health.filter(|health| !health.unknown).map(|health| health.healthy);
            What::Service {
                id: event.service,
                message: event.message,
                healthy,
            }
        }
        "AddressEvent" => {
            let event = wire::AddressEvent::decode(value)?;
            What::Address {
                hostname: event.hostname,
                addresses: event.addresses,
            }
        }
        "ConfigLoadErrorEvent" => What::ConfigError(shown(&wire::ConfigLoadErrorEvent::decode(value)?.error)),
        "ConfigValidationErrorEvent" => What::ConfigError(shown(&wire::ConfigValidationErrorEvent::decode(value)?.error)),
        _ => What::Other,
    })
}

fn shown(text: &str) -> String {
    crate::redact::without_secrets(text)
}

fn sequence(event: wire::SequenceEvent) -> What {
    use talos_proto::common::Code;
    let step = match (event.action(), &event.error) {
        (_, Some(error)) => match error.code() {
            Code::Locked => Step::Locked,
            Code::Canceled => Step::TakenOver,
            Code::Fatal => Step::Failed(shown(&error.message)),
        },
        (wire::sequence_event::Action::Start, None) => Step::Begins,
        (_, None) => Step::Ends,
    };
    What::Sequence {
        name: event.sequence,
        step,
    }
}

fn status(event: wire::MachineStatusEvent) -> MachineStatus {
    let stage = match event.stage() {
        MachineStage::Unknown => Stage::Unknown,
        MachineStage::Booting => Stage::Booting,
        MachineStage::Installing => Stage::Installing,
        MachineStage::Maintenance => Stage::Maintenance,
        MachineStage::Running => Stage::Running,
        MachineStage::Rebooting => Stage::Rebooting,
        MachineStage::ShuttingDown => Stage::ShuttingDown,
        MachineStage::Resetting => Stage::Resetting,
        MachineStage::Upgrading => Stage::Upgrading,
    };
    let status = event.status.unwrap_or_default();
    let unmet = status.unmet_conditions.into_iter().map(|unmet| Unmet {
        name: unmet.name,
        reason: unmet.reason,
    });
    MachineStatus {
        stage,
        status: Readiness {
            ready: status.ready,
            unmet_conditions: unmet.collect(),
        },
    }
}
