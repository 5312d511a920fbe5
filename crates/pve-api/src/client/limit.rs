//! How many calls may be in flight.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::value::Host;

/// One queue per host and one for calls that concern none: a hanging host holds up nobody else.
pub(super) struct Limits {
    per_host: usize,
    elsewhere: Arc<Semaphore>,
    hosts: Mutex<BTreeMap<Host, Arc<Semaphore>>>,
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
    pub(super) async fn turn(&self, host: Option<&Host>) -> Option<OwnedSemaphorePermit> {
        // The semaphores are never closed.
        self.queue(host).acquire_owned().await.ok()
    }

    fn queue(&self, host: Option<&Host>) -> Arc<Semaphore> {
        let Some(host) = host else {
            return Arc::clone(&self.elsewhere);
        };
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(
            hosts
                .entry(host.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(self.per_host))),
        )
    }
}
