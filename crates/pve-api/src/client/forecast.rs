//! When a task will probably end, and so when to look at it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The closest and the widest interval between two looks at a task that is about to end.
pub(super) const CLOSEST: Duration = Duration::from_millis(100);
const WIDEST: Duration = Duration::from_secs(1);

/// A task that outlasts its forecast is looked at again when it is an eighth older, but at least this often.
const AGEING: u32 = 8;
const RARELY: Duration = Duration::from_secs(2);

/// A guess may be wrong by much, so that looks close to it would be wasted: a quarter older is soon enough.
const GUESSING: u32 = 4;

/// Durations kept per kind. Older ones say less about the load of now.
const KEPT: usize = 9;

/// Fewer durations say less than the constant of a kind: the first task often waits for what the others find done.
const NEEDED: usize = 2;

/// How long a task will take, and when to look first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Forecast {
    first: Duration,
    /// The second look, where the first one was early because the durations of this kind differ much.
    near: Duration,
    length: Duration,
    guessed: bool,
}

impl Forecast {
    /// From a percentage, or from other tasks of its kind.
    pub(super) fn measured(length: Duration) -> Self {
        let near = length.mul_f64(0.9);
        Self {
            first: near,
            near,
            length,
            guessed: false,
        }
    }

    /// From nothing but its kind. Half of the time is a good first look at a guess.
    pub(super) fn constant(kind: &str) -> Self {
        let length = Duration::from_millis(usual(kind));
        Self {
            first: length / 2,
            near: length / 2,
            length,
            guessed: true,
        }
    }

    pub(super) fn length(&self) -> Duration {
        self.length
    }

    /// The age for the next look at a task whose last look was at the age `looked`.
    pub(super) fn next(&self, looked: Duration) -> Duration {
        if looked < self.first {
            return self.first;
        }
        if looked < self.near {
            return self.near;
        }
        let step = if looked >= self.length.mul_f64(1.1) {
            (looked / AGEING).clamp(CLOSEST, RARELY)
        } else if self.guessed {
            (looked / GUESSING).clamp(CLOSEST, WIDEST)
        } else {
            (self.length / 20).clamp(CLOSEST, WIDEST)
        };
        looked + step
    }
}

/// Milliseconds that a kind of task usually takes. The claim of a VM is a `qmcreate` without disks, a `qmconfig` brings disks. The first look
/// at a copy comes after the first read of its log, which knows more or shows its end.
fn usual(kind: &str) -> u64 {
    match kind {
        "qmcreate" | "resize" | "imgdel" => 400,
        "qmstart" | "qmstop" | "qmdestroy" | "qmtemplate" | "qmclone" | "qmsnapshot" | "qmdelsnapshot" => 1000,
        "qmconfig" | "download" | "imgcopy" | "qmmove" | "qmrestore" => 6000,
        "qmshutdown" | "qmreboot" | "qmigrate" | "vzdump" => 10_000,
        _ => 800,
    }
}

/// Whether tasks of this kind write a percentage into their log.
pub(super) fn tells_percentage(kind: &str) -> bool {
    matches!(
        kind,
        "download" | "imgcopy" | "qmclone" | "qmconfig" | "qmcreate" | "qmigrate" | "qmmove" | "qmrestore"
    )
}

/// How long the last tasks of each kind took in this run.
#[derive(Default)]
pub(super) struct Durations(BTreeMap<String, VecDeque<Duration>>);

impl Durations {
    pub(super) fn note(&mut self, kind: &str, took: Duration) {
        let known = self.0.entry(kind.to_owned()).or_default();
        if known.len() == KEPT {
            known.pop_front();
        }
        known.push_back(took);
    }

    /// By the median. Where some took less than half of it, there is one more look for those.
    pub(super) fn forecast(&self, kind: &str) -> Option<Forecast> {
        let mut known: Vec<Duration> = self
            .0
            .get(kind)
            .filter(|known| known.len() >= NEEDED)?
            .iter()
            .copied()
            .collect();
        known.sort_unstable();
        let (shortest, median) = (*known.first()?, *known.get((known.len() - 1) / 2)?);
        let mut forecast = Forecast::measured(median);
        if shortest < median / 2 {
            forecast.first = shortest.mul_f64(0.9);
        }
        Some(forecast)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Durations, Forecast};

    fn looks(forecast: Forecast, until: f64) -> Vec<f64> {
        let mut ages = Vec::new();
        let mut age = Duration::ZERO;
        while age.as_secs_f64() < until {
            age = forecast.next(age);
            ages.push((age.as_secs_f64() * 1000.0).round() / 1000.0);
        }
        ages
    }

    #[test]
    fn a_task_is_looked_at_shortly_before_its_end_and_closely_from_then_on() {
        let looks_at = |seconds, until| looks(Forecast::measured(Duration::from_secs_f64(seconds)), until);
        assert_eq!(looks_at(2.0, 2.0), [1.8, 1.9, 2.0]);
        assert_eq!(looks_at(20.0, 21.0), [18.0, 19.0, 20.0, 21.0]);
        assert_eq!(looks_at(120.0, 110.0), [108.0, 109.0, 110.0]);
        // Late, the interval grows with the age.
        assert_eq!(looks_at(8.0, 12.0), [7.2, 7.6, 8.0, 8.4, 8.8, 9.9, 11.138, 12.53]);
    }

    #[test]
    fn a_guess_is_looked_at_after_half_of_its_time() {
        assert_eq!(looks(Forecast::constant("qmstart"), 0.7), [0.5, 0.625, 0.781]);
    }

    #[test]
    fn the_median_of_a_kind_counts_and_much_shorter_ones_get_a_look_of_their_own() {
        let mut durations = Durations::default();
        durations.note("qmstart", Duration::from_secs(3));
        assert_eq!(durations.forecast("qmstart"), None, "one alone may be an odd one");
        for seconds in [2, 30] {
            durations.note("qmstart", Duration::from_secs(seconds));
        }
        assert_eq!(
            durations.forecast("qmstart"),
            Some(Forecast::measured(Duration::from_secs(3)))
        );
        durations.note("qmstart", Duration::from_secs(1));
        durations.note("qmstart", Duration::from_secs(4));
        let forecast = durations.forecast("qmstart").unwrap();
        assert_eq!(looks(forecast, 2.7), [0.9, 2.7]);
    }
}
