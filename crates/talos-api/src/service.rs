//! Services of a machine, with what they last said.

use talos_proto::machine::ServiceInfo;

/// A service as the machine lists it, running or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub id: String,
    pub state: ServiceState,
    pub health: Health,
    /// Oldest first; the machine keeps the last 64.
    pub events: Vec<ServiceEvent>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceEvent {
    pub state: ServiceState,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// No check, or none has run yet.
    Unknown,
    Good,
    Bad {
        why: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServiceState {
    Initialized,
    Starting,
    /// Its conditions are not met; the last event lists them.
    Waiting,
    /// What comes before it runs: pulling its image, and for etcd finding a cluster to join.
    Preparing,
    Running,
    Stopping,
    Finished,
    Failed,
    Skipped,
    Unknown,
}

impl ServiceState {
    fn of(word: &str) -> Self {
        match word {
            "Initialized" => Self::Initialized,
            "Starting" => Self::Starting,
            "Waiting" => Self::Waiting,
            "Preparing" => Self::Preparing,
            "Running" => Self::Running,
            "Stopping" => Self::Stopping,
            "Finished" => Self::Finished,
            "Failed" => Self::Failed,
            "Skipped" => Self::Skipped,
            _ => Self::Unknown,
        }
    }
}

impl Service {
    pub fn is_healthy(&self) -> bool {
        self.state == ServiceState::Running && self.health == Health::Good
    }

    /// Running and not known to be unwell: what a service without a check can be at best.
    pub fn is_up(&self) -> bool {
        self.state == ServiceState::Running && !matches!(self.health, Health::Bad { .. })
    }

    /// It ended, and nothing begins it anew. A bootstrap ends etcd too, for the moment before its real beginning.
    pub fn is_over(&self) -> bool {
        self.state == ServiceState::Finished && self.last_message() != Some("Bootstrap requested")
    }

    pub fn last_message(&self) -> Option<&str> {
        self.events.last().map(|event| event.message.as_str())
    }

    /// What it said when it last failed, within the events that are kept.
    pub fn last_failure(&self) -> Option<&str> {
        self.events
            .iter()
            .rev()
            .find(|event| event.state == ServiceState::Failed)
            .map(|event| event.message.as_str())
    }
}

impl From<ServiceInfo> for Service {
    fn from(info: ServiceInfo) -> Self {
        let health = match info.health {
            Some(health) if !health.unknown && health.healthy => Health::Good,
            Some(health) if !health.unknown => Health::Bad {
                why: health.last_message,
            },
            _ => Health::Unknown,
        };
        let events = info.events.unwrap_or_default().events.into_iter();
        let events = events
            .map(|event| ServiceEvent {
                state: ServiceState::of(&event.state),
                message: event.msg,
            })
            .collect();
        Self {
            id: info.id,
            state: ServiceState::of(&info.state),
            health,
            events,
        }
    }
}
