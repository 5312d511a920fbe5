//! Waiting for something, with a deadline and a reason.

use std::time::Duration;

use tokio::time::Instant;

use crate::event::StepProgress;
use crate::failure::Failure;
use crate::jitter::Jitter;

/// Pauses between two looks: short while the end may be near, longer later. Guests are asked themselves, never Proxmox VE.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What one look gave.
pub enum WaitStatus<T> {
    Done(T),
    /// Not yet, and what is in the way.
    Waiting(String),
}

/// Looks until it is done or too late. `what` completes "… did not happen", e.g. `prod-cp-1 did not answer`.
pub async fn until<T>(
    jitter: &Jitter,
    voice: &StepProgress,
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<WaitStatus<T>, Failure>,
) -> Result<T, Failure> {
    let began = Instant::now();
    let mut pause = PAUSE_FIRST;
    loop {
        let reason = match look().await? {
            WaitStatus::Done(value) => return Ok(value),
            WaitStatus::Waiting(reason) => reason,
        };
        if began.elapsed() >= limit {
            return Err(Failure::timed_out(what, limit, reason));
        }
        voice.wait(reason, limit);
        tokio::time::sleep(jitter.pause(pause)).await;
        pause = (pause * 5 / 4).min(PAUSE_MAX);
    }
}

/// Holds its breath: a state counts when it was seen without a break for `steady`.
pub struct Debounce {
    since: Option<Instant>,
    steady: Duration,
}

impl Debounce {
    pub fn new(steady: Duration) -> Self {
        Self { since: None, steady }
    }

    /// How long it has yet to hold, while it does.
    pub fn remaining(&self) -> Option<Duration> {
        Some(self.steady.saturating_sub(self.since?.elapsed()))
    }

    /// `true` when it has held long enough.
    pub fn seen(&mut self, good: bool) -> bool {
        if !good {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        since.elapsed() >= self.steady
    }
}
