//! Everything that a run talks to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use mainstay_net::Env;
use mainstay_plan::{ClusterSecrets, Lease};
use mainstay_spec::Spec;
use pve_api::Client;
use rand::RngExt as _;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::addresses::AddressBook;
use crate::charts::ChartStore;
use crate::event::StepProgress;
use crate::failure::Failure;
use crate::files::FileStore;
use crate::guest::{self, GuestClients, StepContext};
use crate::in_flight;
use crate::jitter::Jitter;
use crate::journal::Journal;
use crate::known::{FactCache, FirstLease, ReadyBefore, VmProof};
use crate::kube::KubeClients;
use crate::lock_file::LockStore;

/// The clients of one run. `env.dialer` already goes through the jump host where there is one.
pub struct Clients {
    pub env: Env,
    pub pve: Client,
    pub guests: GuestClients,
    pub kube: KubeClients,
    pub journal: Journal,
    /// When this run began.
    pub began: Instant,
    /// VMIDs of which this run destroyed a volume.
    pub freed: Mutex<BTreeSet<u32>>,
    /// VMIDs that this run claimed, and on which no step of it failed since: no other request can be at work there.
    pub fresh: Mutex<BTreeSet<u32>>,
    /// When the system disks of this run were last seen being copied, by VMID: a VM that runs for longer began without its disk.
    pub filled: Mutex<BTreeMap<u32, Instant>>,
    /// The lease that goes with the claim of the first machine of a new cluster.
    pub first_lease: Mutex<Option<FirstLease>>,
    /// Another run may have claimed the machine that was to take the lease, so the mark is to be read at once.
    pub lease_doubted: Notify,
    /// What was read of machines right before they were stopped, by VMID.
    pub proofs: Mutex<BTreeMap<u32, VmProof>>,
    /// When Proxmox VE last answered that it has quorum.
    pub quorate_at: tokio::sync::Mutex<Option<Instant>>,
    /// Machines that this run cordoned and did not release yet.
    pub cordoned: Mutex<BTreeSet<String>>,
    /// What controllers had before machines were drained, by machine.
    pub evicted: Mutex<BTreeMap<String, ReadyBefore>>,
    /// In records on Nodes: tells one run from another.
    pub run_name: String,
    /// What the next observation need not read again.
    pub facts: FactCache,
    /// A lease of another run that had ended when it was read, and since when it was seen unchanged.
    pub ended_lease: Mutex<Option<(Lease, Instant)>>,
    pub jitter: Jitter,
    pub charts: ChartStore,
    /// Person and machine, as other operators see them.
    creator: String,
    /// Where exact versions and digests are kept. `None`: nowhere, as in a demonstration.
    pub lock: Option<LockStore>,
}

impl Clients {
    /// `secrets`: `None` while there are none, so that machines cannot be asked.
    pub fn new(
        env: Env,
        pve: Client,
        spec: &Spec,
        secrets: Option<&ClusterSecrets>,
        journal: Journal,
        web_ca: Option<String>,
    ) -> Result<Self, Failure> {
        let jitter = Jitter::new(&env);
        let run_name = format!("{:08x}", env.entropy.fork("run name").rng().random::<u32>());
        let access = secrets.map(|secrets| guest::access(&env, secrets)).transpose()?;
        let (guest_access, kube_access) = access.unzip();
        Ok(Self {
            charts: ChartStore::in_memory(&env, web_ca.clone()),
            creator: String::new(),
            guests: GuestClients::new(&env, spec, guest_access, web_ca)?,
            kube: KubeClients::new(&env, kube_access),
            env,
            pve,
            journal,
            began: Instant::now(),
            freed: Mutex::default(),
            fresh: Mutex::default(),
            filled: Mutex::default(),
            first_lease: Mutex::default(),
            lease_doubted: Notify::new(),
            proofs: Mutex::default(),
            quorate_at: tokio::sync::Mutex::default(),
            cordoned: Mutex::default(),
            evicted: Mutex::default(),
            run_name,
            facts: FactCache::default(),
            ended_lease: Mutex::default(),
            jitter,
            lock: None,
        })
    }

    /// The lease that the claim of a VM takes with it.
    pub fn lease_of_claim(&self, vmid: u32) -> Option<Lease> {
        let first = self.first_lease.lock().expect("plain data");
        first.as_ref()?.of_claim(vmid, self.now())
    }

    /// The time by the clock of Proxmox VE, which all who work on the cluster share. Before its first answer, by our own.
    pub fn now(&self) -> Timestamp {
        let parser = jiff::fmt::rfc2822::DateTimeParser::new();
        let told = self.pve.date().and_then(|(date, at)| {
            let then = parser.parse_timestamp(&date).ok()?;
            then.checked_add(at.elapsed()).ok()
        });
        told.unwrap_or_else(|| self.env.wall.now())
    }

    /// Sends a call that changes something. A step that is to be left waits for its answer.
    pub async fn send<T>(&self, call: pve_api::Call<T>) -> Result<T, pve_api::Error> {
        in_flight::send(self.pve.call(call)).await
    }

    /// Keeps charts in a folder and their pins in a lock file, and names the person at work to other operators.
    pub fn keeping_charts(self, files: Arc<dyn FileStore>, cache: PathBuf, lock: PathBuf, creator: String) -> Self {
        Self {
            charts: self.charts.kept_in(files, cache, lock),
            creator,
            ..self
        }
    }

    /// The same, with what was pinned once.
    pub fn with_lock(self, lock: LockStore) -> Self {
        Self {
            lock: Some(lock),
            ..self
        }
    }

    pub fn creator(&self) -> &str {
        &self.creator
    }

    /// What a step on a guest may use.
    pub fn step<'a>(&'a self, addresses: &'a AddressBook, progress: &'a StepProgress) -> StepContext<'a> {
        StepContext {
            env: &self.env,
            guests: &self.guests,
            kube: &self.kube,
            jitter: &self.jitter,
            addresses,
            progress,
        }
    }
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clients")
            .field("journal", &self.journal)
            .finish_non_exhaustive()
    }
}
