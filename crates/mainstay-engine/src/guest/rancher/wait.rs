//! Waiting for an effect in a guest, with a deadline and a reason.

use std::time::Duration;

use rand::RngExt;
use tokio::time::Instant;

use super::access::RancherAccess;
use crate::event::StepProgress;
use crate::failure::Failure;

/// Pauses between two requests to a supervisor: short while the end may be near, longer later.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Hears what a step waits for. A reason is passed at every poll; the receiver drops repetitions.
pub trait WaitReporter: Sync {
    fn wait(&self, reason: &str, limit: Duration);
}

impl WaitReporter for StepProgress {
    fn wait(&self, reason: &str, limit: Duration) {
        StepProgress::wait(self, reason, limit);
    }
}

/// For callers that show nothing.
impl WaitReporter for () {
    fn wait(&self, _reason: &str, _limit: Duration) {}
}

/// What one look gave.
pub(super) enum Poll<T> {
    Done(T),
    /// Not yet, and what is in the way.
    NotYet(String),
}

/// Polls until it is done or the time is up. `what` completes "... within 5 min", e.g. `prod-cp-1 did not answer`.
pub(super) async fn until<T>(
    access: &RancherAccess,
    progress: &dyn WaitReporter,
    what: &str,
    limit: Duration,
    mut poll: impl AsyncFnMut() -> Result<Poll<T>, Failure>,
) -> Result<T, Failure> {
    let began = Instant::now();
    let mut rng = access.env.entropy.fork("guest pauses").fork(what).rng();
    let mut pause = PAUSE_FIRST;
    loop {
        let reason = match poll().await? {
            Poll::Done(value) => return Ok(value),
            Poll::NotYet(reason) => reason,
        };
        if began.elapsed() >= limit {
            return Err(Failure::timed_out(what, limit, reason));
        }
        progress.wait(&reason, limit);
        tokio::time::sleep(pause.mul_f64(rng.random_range(0.75..1.25))).await;
        pause = (pause * 5 / 4).min(PAUSE_MAX);
    }
}
