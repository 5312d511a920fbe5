//! How many calls may be in flight, and how many polls a host is asked to answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::request::Request;
use crate::value::Host;

/// Queues per host and one for calls without a host: a hanging host must not delay calls to the others.
pub(super) struct Limits {
    per_host: usize,
    elsewhere: Arc<Semaphore>,
    hosts: Mutex<BTreeMap<Host, Queues>>,
}

/// A host's root daemon has three blocking workers. What its web server answers itself must not wait behind them.
struct Queues {
    protected: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Limits {
    pub(super) fn new(per_host: usize, elsewhere: usize) -> Self {
        Self {
            per_host,
            elsewhere: Arc::new(Semaphore::new(elsewhere)),
            hosts: Mutex::default(),
        }
    }

    /// Waits for a turn, in order of asking.
    pub(super) async fn turn(&self, request: &Request) -> Option<OwnedSemaphorePermit> {
        // The semaphores are never closed.
        self.queue(request).acquire_owned().await.ok()
    }

    fn queue(&self, request: &Request) -> Arc<Semaphore> {
        let Some(host) = request.host() else {
            return Arc::clone(&self.elsewhere);
        };
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let queues = hosts.entry(host.clone()).or_insert_with(|| Queues {
            protected: Arc::new(Semaphore::new(self.per_host)),
            open: Arc::new(Semaphore::new(self.per_host)),
        });
        Arc::clone(if request.is_protected() {
            &queues.protected
        } else {
            &queues.open
        })
    }
}

/// Polls of a host that may come at once, before they are held to the rate. Enough for a few short tasks one after another.
const BURST: f64 = 20.0;

/// Polls of a host per second.
const RATE: f64 = 2.0;

/// Holds the polls of a host to a rate. Each request takes one token before it is sent, and there is never a debt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    tokens: f64,
    at: Instant,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self {
            tokens: BURST,
            at: Instant::now(),
        }
    }

    fn refill(&mut self, now: Instant) {
        self.tokens = ((now - self.at).as_secs_f64().mul_add(RATE, self.tokens)).min(BURST);
        self.at = now;
    }

    /// Takes a token if there is one.
    pub(super) fn take(&mut self) -> bool {
        self.refill(Instant::now());
        // Timers count in milliseconds, so that a token may be a thousandth short when its time has come.
        let enough = self.tokens >= 1.0 - 0.005;
        if enough {
            self.tokens = (self.tokens - 1.0).max(0.0);
        }
        enough
    }

    /// When there are so many tokens.
    pub(super) fn ready(&self, tokens: f64) -> Instant {
        self.at + Duration::from_secs_f64(((tokens - self.tokens) / RATE).max(0.0))
    }
}
