//! systemd of a cloud guest: units, their drop-ins, and their lives.

pub(crate) mod control;
mod run;
mod unit;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use self::run::boot;
pub(crate) use self::unit::Definition;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ActiveState {
    #[default]
    Inactive,
    Activating,
    Active,
    Failed,
}

impl ActiveState {
    pub fn word(self) -> &'static str {
        match self {
            Self::Inactive => "inactive",
            Self::Activating => "activating",
            Self::Active => "active",
            Self::Failed => "failed",
        }
    }
}

/// What systemd knows of a unit that was started in this boot.
#[derive(Clone, Default)]
pub(crate) struct Unit {
    pub active: ActiveState,
    pub sub: &'static str,
    /// `success`, `exit-code`, `exec-condition`, `timeout`
    pub result: &'static str,
    pub restarts: u32,
    /// Exit status of the main process when it last ended.
    pub status: i32,
    pub pid: u32,
    /// As it was read; a unit that runs keeps it until `daemon-reload`.
    pub definition: Option<Arc<Definition>>,
    stop: Option<CancellationToken>,
    /// Tells one start of the unit from the next.
    life: u64,
}

pub(crate) struct Manager {
    units: Mutex<BTreeMap<String, Unit>>,
    pulse: watch::Sender<u64>,
}

impl Default for Manager {
    fn default() -> Self {
        Self {
            units: Mutex::default(),
            pulse: watch::Sender::new(0),
        }
    }
}

impl Manager {
    fn units(&self) -> MutexGuard<'_, BTreeMap<String, Unit>> {
        self.units.lock().expect("plain data")
    }

    pub fn unit(&self, name: &str) -> Unit {
        let unit = self.units().get(name).cloned();
        unit.unwrap_or_else(|| Unit {
            sub: "dead",
            result: "success",
            ..Unit::default()
        })
    }

    pub fn names(&self) -> Vec<String> {
        self.units().keys().cloned().collect()
    }

    fn change<T>(&self, name: &str, change: impl FnOnce(&mut Unit) -> T) -> T {
        let made = {
            let mut units = self.units();
            let fresh = || Unit {
                sub: "dead",
                result: "success",
                ..Unit::default()
            };
            change(units.entry(name.to_owned()).or_insert_with(fresh))
        };
        self.pulse.send_modify(|count| *count += 1);
        made
    }

    /// Waits until a unit is as wanted.
    pub async fn until(&self, name: &str, holds: impl Fn(&Unit) -> bool) -> Unit {
        let mut changed = self.pulse.subscribe();
        loop {
            changed.mark_unchanged();
            let unit = self.unit(name);
            if holds(&unit) {
                return unit;
            }
            if changed.changed().await.is_err() {
                return unit;
            }
        }
    }

    /// `daemon-reload`: units that run follow their files from now on.
    pub fn reload(&self, read: impl Fn(&str) -> Option<Definition>) {
        for (name, unit) in self.units().iter_mut() {
            if unit.definition.is_some() {
                unit.definition = read(name).map(Arc::new).or_else(|| unit.definition.take());
            }
        }
    }
}
