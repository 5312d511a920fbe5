//! The services of a node and what became of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use jiff::Timestamp;
use talos_proto::machine;

use super::cosi::stamp;

/// Events kept per service.
const KEPT: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceState {
    Preparing,
    Waiting,
    Running,
    Stopping,
    Finished,
    Failed,
    Starting,
}

impl ServiceState {
    pub fn word(self) -> &'static str {
        match self {
            Self::Preparing => "Preparing",
            Self::Waiting => "Waiting",
            Self::Running => "Running",
            Self::Stopping => "Stopping",
            Self::Finished => "Finished",
            Self::Failed => "Failed",
            Self::Starting => "Starting",
        }
    }

    pub fn action(self) -> machine::service_state_event::Action {
        use machine::service_state_event::Action;
        match self {
            Self::Preparing => Action::Preparing,
            Self::Waiting => Action::Waiting,
            Self::Running => Action::Running,
            Self::Stopping => Action::Stopping,
            Self::Finished => Action::Finished,
            Self::Failed => Action::Failed,
            Self::Starting => Action::Starting,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    pub unknown: bool,
    pub healthy: bool,
    message: String,
    changed: Option<Timestamp>,
}

impl Health {
    fn none() -> Self {
        Self {
            unknown: true,
            healthy: false,
            message: String::new(),
            changed: None,
        }
    }

    pub fn to_proto(&self) -> machine::ServiceHealth {
        // A health that was never checked carries Go's zero time.
        let never = prost_types::Timestamp {
            seconds: -62_135_596_800,
            nanos: 0,
        };
        machine::ServiceHealth {
            unknown: self.unknown,
            healthy: self.healthy,
            last_message: self.message.clone(),
            last_change: Some(self.changed.map_or(never, stamp)),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub state: ServiceState,
    pub health: Health,
    events: Vec<(Timestamp, ServiceState, String)>,
}

impl Service {
    /// Up means: running, and healthy where health is checked.
    pub fn is_up(&self) -> bool {
        self.state == ServiceState::Running && (self.health.healthy || (self.health.unknown && self.health.message.is_empty()))
    }

    /// Runs, and has failed its check.
    pub fn is_sick(&self) -> bool {
        self.state == ServiceState::Running && !self.health.unknown && !self.health.healthy
    }

    pub fn to_proto(&self, id: &str) -> machine::ServiceInfo {
        let events = self.events.iter().map(|(at, state, message)| machine::ServiceEvent {
            msg: message.clone(),
            state: state.word().to_owned(),
            ts: Some(stamp(*at)),
        });
        machine::ServiceInfo {
            id: id.to_owned(),
            state: self.state.word().to_owned(),
            events: Some(machine::ServiceEvents {
                events: events.collect(),
            }),
            health: Some(self.health.to_proto()),
        }
    }
}

#[derive(Default)]
pub(crate) struct Services {
    inner: Mutex<BTreeMap<String, Service>>,
}

impl Services {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Service>> {
        self.inner.lock().expect("no service panics while it reports")
    }

    pub fn get(&self, id: &str) -> Option<Service> {
        self.lock().get(id).cloned()
    }

    /// Looks at all of them, by id, without taking a copy.
    pub fn with<T>(&self, look: impl FnOnce(&BTreeMap<String, Service>) -> T) -> T {
        look(&self.lock())
    }

    pub fn is_up(&self, id: &str) -> bool {
        self.lock().get(id).is_some_and(Service::is_up)
    }

    /// By id.
    pub fn all(&self) -> BTreeMap<String, Service> {
        self.lock().clone()
    }

    /// A new state; what to publish about it.
    pub fn set(&self, id: &str, state: ServiceState, message: &str, checked: bool, now: Timestamp) -> Service {
        let mut services = self.lock();
        let service = services.entry(id.to_owned()).or_insert_with(|| Service {
            state,
            health: Health::none(),
            events: Vec::new(),
        });
        service.state = state;
        service.health = match (state, checked) {
            (ServiceState::Running, true) => Health {
                unknown: true,
                healthy: false,
                message: "Unknown".to_owned(),
                changed: Some(now),
            },
            _ => Health::none(),
        };
        remember(service, now, message);
        service.clone()
    }

    /// The outcome of a health check; `None` if it says nothing new.
    pub fn check(&self, id: &str, failure: Option<&str>, now: Timestamp) -> Option<Service> {
        let mut services = self.lock();
        let service = services
            .get_mut(id)
            .filter(|service| service.state == ServiceState::Running)?;
        if !service.health.unknown && service.health.healthy == failure.is_none() {
            return None;
        }
        let message = failure.unwrap_or_default().to_owned();
        service.health = Health {
            unknown: false,
            healthy: failure.is_none(),
            message,
            changed: Some(now),
        };
        let said = failure.map_or_else(
            || "Health check successful".to_owned(),
            |why| format!("Health check failed: {why}"),
        );
        remember(service, now, &said);
        Some(service.clone())
    }

    /// The verdict of a check that the service did not outlive.
    pub fn mark_unhealthy(&self, id: &str, now: Timestamp) {
        if let Some(service) = self.lock().get_mut(id) {
            service.health = Health {
                unknown: false,
                healthy: false,
                message: "context deadline exceeded".to_owned(),
                changed: Some(now),
            };
        }
    }

    /// State and message of a service's last event.
    pub fn last(&self, id: &str) -> (String, String) {
        let services = self.lock();
        let event = services.get(id).and_then(|service| service.events.last());
        event
            .map(|(_, state, message)| (state.word().to_owned(), message.clone()))
            .unwrap_or_default()
    }

    pub fn last_message(&self, id: &str) -> String {
        self.lock()
            .get(id)
            .and_then(|service| service.events.last().map(|(_, _, message)| message.clone()))
            .unwrap_or_default()
    }
}

fn remember(service: &mut Service, now: Timestamp, message: &str) {
    service.events.push((now, service.state, message.to_owned()));
    if service.events.len() > KEPT {
        service.events.remove(0);
    }
}
