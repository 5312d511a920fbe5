//! The datacenter: its state, its clock, and what clients, tests and laboratories hold of it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use mainstay_net::{Binder, Dialer, Entropy, Wall};
use rand::Rng;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::access::Signer;
use crate::bandwidth::Bandwidth;
use crate::faults::Faults;
use crate::guest::{Guests, Pace};
use crate::http::{self, Response, Serving};
use crate::locks::Locks;
use crate::observe::{Effect, Observer, Stats};
use crate::state::State;
use crate::tasks::Job;
use crate::world::{Release, Timing, World};

/// What the datacenter takes from outside.
#[derive(Clone)]
pub struct SimEnv {
    /// Where its hosts listen.
    pub network: Arc<dyn Binder>,
    /// How its hosts reach web servers.
    pub dialer: Arc<dyn Dialer>,
    pub wall: Wall,
    pub entropy: Entropy,
    pub pace: Pace,
    pub tls: bool,
}

/// A handle; clones share the datacenter.
#[derive(Clone)]
pub struct Datacenter(Arc<Inner>);

/// The datacenter, as long as another owner keeps it alive.
pub(crate) struct WeakDatacenter(Weak<Inner>);

impl WeakDatacenter {
    pub(crate) fn upgrade(&self) -> Option<Datacenter> {
        self.0.upgrade().map(Datacenter)
    }
}

struct Inner {
    state: Mutex<State>,
    env: SimEnv,
    guests: Arc<dyn Guests>,
    locks: Locks,
    bandwidth: Bandwidth,
    signer: Signer,
    timing: Timing,
    release: Release,
    began: Instant,
    ends: watch::Sender<u64>,
    faults: Faults,
    observers: Mutex<Vec<Arc<dyn Observer>>>,
    stats: Stats,
    /// An authority that hosts believe on the web, beside those of their system.
    web_ca: Mutex<Option<String>>,
}

/// What a call gives.
#[derive(Debug, Default)]
pub struct Reply {
    pub data: Value,
    pub total: Option<u64>,
    /// An answer outside the envelope.
    pub raw: Option<Response>,
}

impl<T: Into<Value>> From<T> for Reply {
    fn from(data: T) -> Self {
        Self {
            data: data.into(),
            total: None,
            raw: None,
        }
    }
}

pub type Answer = Result<Reply, crate::die::Die>;

/// What becomes of a request.
pub enum Verdict {
    Answer(Response),
    HangUp,
}

/// Jiffies that had passed when the simulation began: the hosts were not booted just now.
const BOOTED: Duration = Duration::from_secs(3 * 86400);

impl Datacenter {
    pub fn new(world: World, env: SimEnv, guests: Arc<dyn Guests>) -> Self {
        let mut key = [0; 32];
        env.entropy.fork("pve-sim ticket key").rng().fill_bytes(&mut key);
        let inner = Inner {
            timing: world.timing.clone(),
            release: world.pve.clone(),
            faults: Faults::new(world.faults.clone(), &env.entropy),
            state: Mutex::new(State::new(&world, &env)),
            guests,
            locks: Locks::default(),
            bandwidth: Bandwidth::default(),
            signer: Signer::new(key),
            began: Instant::now(),
            ends: watch::Sender::new(0),
            observers: Mutex::default(),
            web_ca: Mutex::default(),
            stats: Stats::default(),
            env,
        };
        let dc = Self(Arc::new(inner));
        crate::qemu::start_initial(&dc, &world);
        dc
    }

    /// Starts an endpoint per host; dropping the result takes them down.
    pub async fn serve(&self, at: BTreeMap<String, SocketAddr>) -> io::Result<Serving> {
        http::serve(self, at).await
    }

    pub(crate) fn downgrade(&self) -> WeakDatacenter {
        WeakDatacenter(Arc::downgrade(&self.0))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn locks(&self) -> &Locks {
        &self.0.locks
    }

    pub(crate) fn bandwidth(&self) -> &Bandwidth {
        &self.0.bandwidth
    }

    pub(crate) fn signer(&self) -> &Signer {
        &self.0.signer
    }

    pub(crate) fn timing(&self) -> &Timing {
        &self.0.timing
    }

    pub fn release(&self) -> &Release {
        &self.0.release
    }

    /// Longer bodies are refused, but for uploads.
    pub(crate) fn body_limit(&self) -> usize {
        let kib = if self.release().number() >= (8, 4) { 512 } else { 64 };
        kib * 1024
    }

    pub(crate) fn guests(&self) -> &Arc<dyn Guests> {
        &self.0.guests
    }

    pub(crate) fn network(&self) -> &Arc<dyn Binder> {
        &self.0.env.network
    }

    /// Lets hosts believe web servers with certificates of this authority (PEM) when they download.
    pub fn trust_web(&self, ca_pem: String) {
        *self.0.web_ca.lock().expect("plain data") = Some(ca_pem);
    }

    pub(crate) fn web_ca(&self) -> Option<String> {
        self.0.web_ca.lock().expect("plain data").clone()
    }

    pub(crate) fn dialer(&self) -> Arc<dyn Dialer> {
        Arc::clone(&self.0.env.dialer)
    }

    pub(crate) fn uses_tls(&self) -> bool {
        self.0.env.tls
    }

    pub fn wall(&self) -> Wall {
        self.0.env.wall
    }

    pub fn pace(&self) -> Pace {
        self.0.env.pace
    }

    /// Rules that make things go wrong.
    pub fn faults(&self) -> &Faults {
        &self.0.faults
    }

    pub fn stats(&self) -> &Stats {
        &self.0.stats
    }

    /// Calls back with every request and every effect from now on.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        self.0.observers.lock().unwrap_or_else(PoisonError::into_inner).push(observer);
    }

    pub(crate) fn observers(&self) -> Vec<Arc<dyn Observer>> {
        self.0.observers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn tell(&self, job: &Job, effect: &Effect) {
        for observer in self.observers() {
            observer.effect(&job.auth.full(), effect);
        }
    }

    /// Seconds since 1970.
    pub(crate) fn epoch(&self) -> i64 {
        self.0.env.wall.now().as_second()
    }

    pub(crate) fn jiffies(&self) -> u64 {
        ((BOOTED + self.0.began.elapsed()).as_millis() / 10) as u64
    }

    pub(crate) fn host_uptime(&self) -> u64 {
        (BOOTED + self.0.began.elapsed()).as_secs()
    }

    /// The number of the last `pvestatd` round. It is as fast as everything that a host does.
    pub(crate) fn round(&self) -> u64 {
        let every = self.pace().scale(Duration::from_secs(10)).as_micros().max(1);
        u64::try_from(self.0.began.elapsed().as_micros() / every).unwrap_or(u64::MAX)
    }

    pub(crate) fn task_ended(&self, upid: &str) {
        for observer in self.observers() {
            observer.task_ended(upid);
        }
        self.0.ends.send_modify(|count| *count += 1);
    }

    pub(crate) fn task_ends(&self) -> watch::Receiver<u64> {
        self.0.ends.subscribe()
    }

    pub(crate) fn set_fingerprint(&self, host: &str, fingerprint: String) {
        if let Some(node) = self.state().nodes.get_mut(host) {
            node.fingerprint = fingerprint;
        }
    }

    /// SHA-256 fingerprint of a host's certificate, once it is served with TLS.
    pub fn fingerprint(&self, host: &str) -> Option<String> {
        self.state()
            .nodes
            .get(host)
            .map(|n| n.fingerprint.clone())
            .filter(|f| !f.is_empty())
    }

    pub(crate) fn is_reachable(&self, host: &str) -> bool {
        self.state().nodes.get(host).is_some_and(|n| n.online && n.proxy)
    }
}
