//! What the program takes from outside: connections, calendar time, randomness.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use rustls::pki_types::UnixTime;
use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use crate::dial::Dialer;

/// Everything that comes from outside. `main` builds one, a simulation builds another.
#[derive(Clone)]
pub struct Env {
    pub dialer: Arc<dyn Dialer>,
    pub wall: Wall,
    pub entropy: Entropy,
}

/// Calendar time: anchored once, then moved by tokio's clock, so that it follows virtual time.
#[derive(Clone, Copy, Debug)]
pub struct Wall {
    anchor: Timestamp,
    start: tokio::time::Instant,
}

impl Wall {
    /// The machine's own clock, read once.
    #[expect(clippy::disallowed_methods, reason = "this is the Wall")]
    pub fn real() -> Self {
        let now = SystemTime::now();
        Self::at(Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH))
    }

    /// A wall clock that reads `now` at this instant of tokio's clock.
    pub fn at(now: Timestamp) -> Self {
        Self {
            anchor: now,
            start: tokio::time::Instant::now(),
        }
    }

    pub fn now(&self) -> Timestamp {
        self.anchor.checked_add(self.start.elapsed()).unwrap_or(Timestamp::MAX)
    }
}

/// Certificates expire by this clock too.
impl rustls::time_provider::TimeProvider for Wall {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

/// A labelled source of randomness.
///
/// What it yields depends only on the seed and the labels it was forked by: a new draw elsewhere shifts nothing. Hence also: the
/// same labels give the same numbers again, so fork by a label of its own for every purpose.
#[derive(Clone)]
pub struct Entropy {
    key: [u8; 32],
}

impl Entropy {
    /// Unpredictable: for the shipped program.
    pub fn from_os() -> Self {
        use rand::{TryRng, rngs::SysRng};
        let mut key = [0; 32];
        // A system without randomness can mint no secret: there is nothing sensible to go on with.
        SysRng.try_fill_bytes(&mut key).expect("the system gives random bytes");
        Self { key }
    }

    /// Reproducible: for simulations.
    pub fn from_seed(seed: u64) -> Self {
        Self {
            key: Sha256::digest(seed.to_be_bytes()).into(),
        }
    }

    /// A stream of its own for one purpose.
    pub fn fork(&self, label: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.key);
        hash.update(label.as_bytes());
        Self {
            key: hash.finalize().into(),
        }
    }

    /// The stream from its beginning.
    pub fn rng(&self) -> ChaCha20Rng {
        ChaCha20Rng::from_seed(self.key)
    }
}

// The key yields every secret drawn from it.
impl std::fmt::Debug for Entropy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entropy(***)")
    }
}

impl Drop for Entropy {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_wall_follows_virtual_time() {
        let wall = Wall::at("2026-01-01T00:00:00Z".parse().unwrap());
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(wall.now().to_string(), "2026-01-01T01:00:00Z");
    }

    #[test]
    fn a_fork_depends_on_its_labels_alone() {
        let draw = |from: &Entropy| from.rng().next_u64();
        let root = Entropy::from_seed(7);
        let first = draw(&root.fork("uuid"));
        draw(&root.fork("jitter"));
        assert_eq!(first, draw(&Entropy::from_seed(7).fork("uuid")));
        assert_ne!(first, draw(&root.fork("jitter")));
        assert_ne!(first, draw(&Entropy::from_seed(8).fork("uuid")));
        assert_ne!(draw(&root.fork("a").fork("b")), draw(&root.fork("b").fork("a")));
    }

    #[test]
    fn entropy_of_the_system_differs_each_time_and_is_not_printed() {
        let one = Entropy::from_os();
        assert_ne!(one.rng().next_u64(), Entropy::from_os().rng().next_u64());
        assert_eq!(format!("{one:?}"), "Entropy(***)");
    }
}
