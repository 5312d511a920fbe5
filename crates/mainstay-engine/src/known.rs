//! What a run has read of Proxmox VE and need not read again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_plan::{HostStorage, ImageFile, Lease, Seen, StorageAt};
use pve_api::access::Permissions;
use pve_api::{VmConfig, Vmid};
use semver::Version;

/// A controller of evicted pods: namespace, kind, name.
pub type Controller = (String, String, String);
/// How many ready pods each controller had before a drain.
pub type ReadyBefore = BTreeMap<Controller, usize>;

/// What was read of a VM before it is stopped or deleted: with its digest, Proxmox VE proves later that none of it changed.
#[derive(Debug)]
pub struct VmProof {
    pub host: pve_api::Host,
    pub vmid: Vmid,
    /// As it is, with all marks and the digest.
    pub config: VmConfig,
    /// Values that take effect at the next start.
    pub pending: VmConfig,
}

/// Bridges and storages of a host.
pub type HostFacts = (Seen<BTreeSet<String>>, Seen<BTreeMap<String, HostStorage>>);

/// The lease of a run that makes a new cluster: the claim of its first machine writes it.
#[derive(Debug)]
pub struct FirstLease {
    pub vmid: u32,
    pub lease: Lease,
    pub lasts: Duration,
}

impl FirstLease {
    /// The lease that the claim of this VM carries. Asked for at each attempt, so that it lasts from then on.
    pub fn of_claim(&self, vmid: u32, now: Timestamp) -> Option<Lease> {
        (self.vmid == vmid).then(|| Lease {
            until: now + self.lasts,
            ..self.lease.clone()
        })
    }
}

/// What hardly changes while a run works: it is read again only after something failed or was held.
#[derive(Debug, Clone)]
pub struct KeptFacts {
    pub version: Version,
    pub permissions: Permissions,
    pub hosts: BTreeMap<pve_api::Host, HostFacts>,
    /// Image files, with those that this run fetched since.
    pub images: BTreeMap<StorageAt, Seen<Vec<ImageFile>>>,
    pub zone: Option<String>,
    pub resource_pool: Seen<String>,
}

/// The facts of the last observation, for the next one if it may use them.
#[derive(Debug, Default)]
pub struct FactCache(Mutex<(Option<KeptFacts>, bool)>);

impl FactCache {
    /// All that the last observation led to was done, so the next one reads only what that changed.
    pub fn reuse_once(&self) {
        self.0.lock().expect("plain data").1 = true;
    }

    pub fn take(&self) -> Option<KeptFacts> {
        let (facts, may_reuse) = std::mem::take(&mut *self.0.lock().expect("plain data"));
        facts.filter(|_| may_reuse)
    }

    /// This run fetched an image. On a shared storage it shows from other hosts too, where a second fetch would find it.
    pub fn add_image(&self, at: &StorageAt, image: ImageFile) {
        let mut facts = self.0.lock().expect("plain data");
        if let Some(Seen::Yes(files)) = facts.0.as_mut().and_then(|facts| facts.images.get_mut(at)) {
            files.retain(|file| file.file != image.file);
            files.push(image);
        }
    }

    /// The run takes something away that these facts list: the next observation reads everything again.
    pub fn forget(&self) {
        self.0.lock().expect("plain data").0 = None;
    }

    pub fn keep(&self, facts: KeptFacts) {
        self.0.lock().expect("plain data").0 = Some(facts);
    }
}
