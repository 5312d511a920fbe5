//! Lock files and cluster locks: who holds them makes the others wait, then fail with PVE's words.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::die::Die;
use crate::tasks::Job;

/// All lock files of all hosts, and the cluster-wide locks.
#[derive(Default)]
pub struct Locks(Mutex<BTreeMap<String, Arc<RwLock<()>>>>);

/// Held until dropped.
#[derive(Debug)]
pub enum Held {
    Shared(#[expect(dead_code, reason = "held for its drop")] OwnedRwLockReadGuard<()>),
    Alone(#[expect(dead_code, reason = "held for its drop")] OwnedRwLockWriteGuard<()>),
}

/// Which lock, how, and how long to wait for it.
pub struct Wanted {
    /// Where the lock lives: a host for a lock file, nowhere for the cluster's.
    host: Option<String>,
    name: String,
    shared: bool,
    patience: Duration,
}

impl Wanted {
    /// The lock file of a VM's config on a host.
    pub fn vm(host: &str, vmid: u32, patience: u64) -> Self {
        let name = format!("/var/lock/qemu-server/lock-{vmid}.conf");
        Self {
            host: Some(host.into()),
            name,
            shared: false,
            patience: Duration::from_secs(patience),
        }
    }

    pub fn shared(self) -> Self {
        Self { shared: true, ..self }
    }

    /// The lock of a storage: a file on the host, or cluster-wide if the storage is shared.
    pub fn storage(host: &str, storage: &str, shared_storage: bool) -> Self {
        let patience = Duration::from_secs(10);
        if shared_storage {
            return Self {
                host: None,
                name: format!("storage-{storage}"),
                shared: false,
                patience,
            };
        }
        let name = format!("/var/lock/pve-manager/pve-storage-{storage}");
        Self {
            host: Some(host.into()),
            name,
            shared: false,
            patience,
        }
    }

    /// The lock of a file that all hosts share: `file-user_cfg`, `file-storage_cfg`, `firewall-vm-100`.
    pub fn cluster(name: &str) -> Self {
        Self {
            host: None,
            name: name.into(),
            shared: false,
            patience: Duration::from_secs(10),
        }
    }

    fn key(&self) -> String {
        format!("{}:{}", self.host.as_deref().unwrap_or_default(), self.name)
    }
}

impl Locks {
    fn entry(&self, key: String) -> Arc<RwLock<()>> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // No task holds or waits for these any more.
        if table.len() > 256 {
            table.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        Arc::clone(table.entry(key).or_default())
    }

    /// Takes a lock, or dies as PVE does when it stays busy.
    pub async fn take(&self, job: &Job, wanted: &Wanted) -> Result<Held, Die> {
        let lock = self.entry(wanted.key());
        let now = if wanted.shared {
            Arc::clone(&lock).try_read_owned().map(Held::Shared).ok()
        } else {
            Arc::clone(&lock).try_write_owned().map(Held::Alone).ok()
        };
        match now {
            Some(held) => Ok(held),
            None if wanted.host.is_some() => wait_for_file(job, wanted, lock).await,
            None => wait_for_cluster(job, wanted, lock).await,
        }
    }

    /// Takes the lock of a file of the cluster, which needs quorum.
    pub async fn take_cluster(&self, job: &Job, contacted: &str, name: &str) -> Result<Held, Die> {
        let wanted = Wanted::cluster(name);
        if job.dc.state().quorate(contacted) {
            return self.take(job, &wanted).await;
        }
        tokio::time::sleep(wanted.patience).await;
        Err(Die::new(format!("cfs-lock '{name}' error: no quorum!")))
    }

    /// Takes a lock file without a word, for the laboratory's own holders.
    pub async fn hold(&self, wanted: &Wanted) -> Held {
        Held::Alone(self.entry(wanted.key()).write_owned().await)
    }
}

async fn wait_for_file(job: &Job, wanted: &Wanted, lock: Arc<RwLock<()>>) -> Result<Held, Die> {
    job.say("trying to acquire lock...");
    let failed = |why: &str| Die::new(format!("can't lock file '{}' - {why}", wanted.name));
    let waiting = async {
        if wanted.shared {
            Held::Shared(lock.read_owned().await)
        } else {
            Held::Alone(lock.write_owned().await)
        }
    };
    tokio::select! {
        biased;
        () = job.interrupted() => Err(failed("received interrupt")),
        got = tokio::time::timeout(wanted.patience, waiting) => match got {
            Ok(held) => {
                job.say(" OK");
                Ok(held)
            }
            Err(_) => Err(failed("got timeout")),
        },
    }
}

/// Cluster locks are tried once a second.
async fn wait_for_cluster(job: &Job, wanted: &Wanted, lock: Arc<RwLock<()>>) -> Result<Held, Die> {
    let failed = |why: &str| Die::new(format!("cfs-lock '{}' error: {why}", wanted.name));
    for _ in 1..wanted.patience.as_secs() {
        job.say(format!("trying to acquire cfs lock '{}' ...", wanted.name));
        job.sleep(Duration::from_secs(1))
            .await
            .map_err(|_| failed("received interrupt"))?;
        if let Ok(held) = Arc::clone(&lock).try_write_owned() {
            return Ok(Held::Alone(held));
        }
    }
    Err(failed("got lock request timeout"))
}
