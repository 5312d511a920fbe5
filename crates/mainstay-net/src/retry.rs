//! Trying again, with pauses that grow and jitter that comes from [`Entropy`].

use std::time::Duration;

use rand::RngExt;
use tokio::time::{Instant, sleep};

use crate::env::Entropy;

/// How long to pause and when to stop.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first pause; each further one is twice as long.
    pub first: Duration,
    pub longest: Duration,
    /// No new attempt begins after this much time.
    pub give_up_after: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(200),
            longest: Duration::from_secs(5),
            give_up_after: Duration::from_secs(30),
        }
    }
}

/// What a failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    Yes,
    /// The other side said when.
    After(Duration),
    No,
}

/// Runs `attempt` until it succeeds, `classify` says no, or the time is up; the last failure is returned.
///
/// Fork `entropy` by what is retried, so that two of them do not pause in step.
pub async fn retry<T, E, F>(
    backoff: Backoff,
    entropy: &Entropy,
    mut classify: impl FnMut(&E) -> Again,
    mut attempt: impl FnMut() -> F,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let until = Instant::now() + backoff.give_up_after;
    let mut rng = entropy.rng();
    let mut pause = backoff.first;
    loop {
        let error = match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let wait = match classify(&error) {
            Again::No => return Err(error),
            Again::After(wait) => wait,
            // Between half and all of the pause: spread out, yet never at once.
            Again::Yes => pause.mul_f64(rng.random_range(0.5..=1.0)),
        };
        if Instant::now() + wait > until {
            return Err(error);
        }
        sleep(wait).await;
        pause = (pause * 2).min(backoff.longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn timed(
        seed: u64,
        backoff: Backoff,
        answers: &[Result<u8, &'static str>],
    ) -> (Result<u8, &'static str>, usize, Duration) {
        let start = Instant::now();
        let mut count = 0;
        let classify = |error: &&str| match *error {
            "busy" => Again::Yes,
            "later" => Again::After(Duration::from_secs(7)),
            _ => Again::No,
        };
        let entropy = Entropy::from_seed(seed);
        let outcome = retry(backoff, &entropy, classify, || {
            let answer = answers[count.min(answers.len() - 1)];
            count += 1;
            async move { answer }
        });
        let outcome = outcome.await;
        (outcome, count, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn it_stops_at_success_and_at_failures_that_stay() {
        let (outcome, count, _) = timed(1, Backoff::default(), &[Err("busy"), Err("busy"), Ok(3)]).await;
        assert_eq!((outcome, count), (Ok(3), 3));
        let (outcome, count, took) = timed(1, Backoff::default(), &[Err("denied"), Ok(3)]).await;
        assert_eq!((outcome, count, took), (Err("denied"), 1, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn it_never_waits_past_its_end() {
        let (outcome, count, took) = timed(1, Backoff::default(), &[Err("busy")]).await;
        assert_eq!(outcome, Err("busy"));
        assert!(took <= Duration::from_secs(30) && took > Duration::from_secs(20), "{took:?}");
        assert!((8..20).contains(&count), "{count}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_other_side_may_say_when() {
        let (outcome, _, took) = timed(1, Backoff::default(), &[Err("later"), Ok(1)]).await;
        assert_eq!((outcome, took), (Ok(1), Duration::from_secs(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn jitter_comes_from_the_entropy() {
        let busy = [Err("busy")];
        let mut took = Vec::new();
        for seed in [5, 5, 6] {
            took.push(timed(seed, Backoff::default(), &busy).await.2);
        }
        assert_eq!(took[0], took[1]);
        assert_ne!(took[0], took[2]);
    }
}
