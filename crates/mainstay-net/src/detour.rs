//! Another way to what cannot be reached straight.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::dial::{BoxIo, Dial, Dialer, dial_within};
use crate::error::DialError;
use crate::target::Target;

/// Dials straight, and where that fails, by a second way. What was reached by the second way goes there at once from then on.
///
/// For targets that may be reachable either directly or through the jump host only, and the file does not say which.
pub struct Detour {
    straight: Arc<dyn Dialer>,
    around: Arc<dyn Dialer>,
    /// A firewall that drops packets must not use up the caller's time limit.
    patience: Duration,
    known: Mutex<BTreeSet<Target>>,
}

impl Detour {
    pub fn new(straight: Arc<dyn Dialer>, around: Arc<dyn Dialer>, patience: Duration) -> Self {
        Self {
            straight,
            around,
            patience,
            known: Mutex::default(),
        }
    }

    async fn reach(&self, to: &Target) -> Result<BoxIo, DialError> {
        if self.known.lock().expect("nothing panics while it looks").contains(to) {
            return self.around.dial(to).await;
        }
        let error = match dial_within(&*self.straight, to, self.patience).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        // Most often both ways fail for one reason, and the straight one is the one that people can check.
        let stream = self.around.dial(to).await.map_err(|_| error)?;
        self.known.lock().expect("nothing panics while it writes").insert(to.clone());
        Ok(stream)
    }
}

impl Dialer for Detour {
    fn dial<'a>(&'a self, to: &'a Target) -> Dial<'a> {
        Box::pin(self.reach(to))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::{DialFault, Operation};

    /// A way that counts who comes along, and ends in a stream, in a refusal, or nowhere.
    struct Way {
        end: End,
        dialled: AtomicUsize,
    }

    #[derive(Clone, Copy)]
    enum End {
        Open,
        Refused,
        Nowhere,
    }

    fn way(end: End) -> Arc<Way> {
        let dialled = AtomicUsize::new(0);
        Arc::new(Way { end, dialled })
    }

    impl Dialer for Way {
        fn dial<'a>(&'a self, to: &'a Target) -> Dial<'a> {
            self.dialled.fetch_add(1, Ordering::Relaxed);
            Box::pin(async {
                match self.end {
                    End::Open => Ok(Box::new(tokio::io::duplex(1).0) as BoxIo),
                    End::Refused => Err(DialError::new(to.clone(), Operation::Connect, DialFault::Refused)),
                    End::Nowhere => std::future::pending().await,
                }
            })
        }
    }

    async fn twice(straight: End, around: End) -> (bool, usize, usize) {
        let (straight, around) = (way(straight), way(around));
        let detour = Detour::new(straight.clone(), around.clone(), Duration::from_secs(3));
        let to = Target::new("pve.lan", 8006);
        let first = detour.dial(&to).await.is_ok();
        assert_eq!(detour.dial(&to).await.is_ok(), first);
        let count = |way: &Way| way.dialled.load(Ordering::Relaxed);
        (first, count(&straight), count(&around))
    }

    #[tokio::test(start_paused = true)]
    async fn the_straight_way_is_taken_while_it_is_open() {
        assert_eq!(twice(End::Open, End::Open).await, (true, 2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_only_the_second_way_reached_goes_there_at_once() {
        assert_eq!(twice(End::Refused, End::Open).await, (true, 1, 2));
        assert_eq!(twice(End::Nowhere, End::Open).await, (true, 1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn where_both_ways_fail_the_straight_one_is_told() {
        let detour = Detour::new(way(End::Nowhere), way(End::Refused), Duration::from_secs(3));
        let error = detour.dial(&Target::new("pve.lan", 8006)).await.err().expect("fails");
        assert!(matches!(error.fault(), DialFault::TimedOut { .. }), "{error}");
    }
}
