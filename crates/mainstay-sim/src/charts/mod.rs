//! Charts of the simulated world: a catalogue that the simulator builds itself, the servers that publish it, and what container registries do.

mod archive;
mod catalogue;
mod server;
mod template;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;

pub(crate) use archive::Chart;
pub(crate) use catalogue::HOSTS;
pub(crate) use server::router;
pub(crate) use template::render;

/// Bad days of chart servers and container registries; changed while the world runs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ChartFaults {
    /// Hosts that answer 503.
    pub outage: BTreeSet<String>,
    /// Charts, by name, whose archive differs from its digest.
    pub corrupt: BTreeSet<String>,
    /// Images that cannot be pulled: their name begins with one of these.
    pub unpullable: Vec<String>,
    /// Images of Jobs whose program fails, by the beginning of their name.
    pub failing: Vec<String>,
    /// Git repositories that Flux and Argo CD cannot read: URL and the error text.
    pub unreadable: Vec<(String, String)>,
    /// How long Helm takes for one part of its work, in seconds; 1 if not said.
    pub helm_step: Option<u64>,
}

/// What all clusters of a world share about charts and images.
pub(crate) struct ChartWorld {
    faults: Mutex<ChartFaults>,
    changed: watch::Sender<u64>,
    pull: Duration,
}

impl ChartWorld {
    pub fn new(pull: Duration) -> Arc<Self> {
        Arc::new(Self {
            faults: Mutex::default(),
            changed: watch::Sender::new(0),
            pull,
        })
    }

    pub fn set_faults(&self, faults: ChartFaults) {
        *self.faults.lock().expect("plain data") = faults;
        self.changed.send_modify(|count| *count += 1);
    }

    pub fn faults(&self) -> ChartFaults {
        self.faults.lock().expect("plain data").clone()
    }

    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub fn pull_time(&self) -> Duration {
        self.pull
    }

    pub fn helm_step(&self) -> Duration {
        Duration::from_secs(self.faults().helm_step.unwrap_or(1))
    }

    /// Why an image cannot be pulled.
    pub fn pull_error(&self, image: &str) -> Option<String> {
        let faults = self.faults();
        let hit = faults.unpullable.iter().any(|prefix| image.starts_with(prefix.as_str()));
        hit.then(|| format!("failed to resolve reference \"{image}\": {image}: not found"))
    }

    pub fn is_failing(&self, image: &str) -> bool {
        self.faults().failing.iter().any(|prefix| image.starts_with(prefix.as_str()))
    }

    pub fn git_error(&self, url: &str) -> Option<String> {
        let faults = self.faults();
        faults
            .unreadable
            .iter()
            .find(|(bad, _)| bad == url)
            .map(|(_, error)| error.clone())
    }
}
