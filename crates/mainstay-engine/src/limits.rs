//! How much is asked of PVE at once. PVE's own locks time out after ten seconds, so more at once means failures, not speed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use mainstay_plan::{Action, StorageAt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Tasks that one host works on.
const TASKS_PER_HOST: usize = 4;
/// Allocations on one storage. A shared storage counts once for all hosts.
const ALLOCATIONS_PER_STORAGE: usize = 3;

/// Slots, handed out in the order they were asked for.
#[derive(Debug, Default)]
pub struct Limits {
    slots: Mutex<BTreeMap<Slot, Arc<Semaphore>>>,
    /// Storages that all hosts share.
    shared: std::collections::BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Slot {
    Host(String),
    Storage { host: Option<String>, storage: String },
    Vm(u32),
}

impl Slot {
    fn size(&self) -> usize {
        match self {
            Self::Host(_) => TASKS_PER_HOST,
            Self::Storage { .. } => ALLOCATIONS_PER_STORAGE,
            // PVE holds the VM's lock while a task works on it; a second one would wait ten seconds and fail.
            Self::Vm(_) => 1,
        }
    }
}

/// Slots that are held until this is dropped.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "held, never looked at")] Vec<OwnedSemaphorePermit>);

impl Limits {
    pub fn new(shared: impl IntoIterator<Item = String>) -> Self {
        Self {
            slots: Mutex::default(),
            shared: shared.into_iter().collect(),
        }
    }

    /// Waits for the slots of an action: VM, storage, host, always in that order, so that no two wait for each other.
    pub async fn slots_for(&self, action: &Action) -> Held {
        let mut wanted = Vec::new();
        let info = action.info();
        wanted.extend(info.vm.map(|vm| Slot::Vm(vm.vmid)));
        wanted.extend(info.allocates_on.map(|at| self.storage(at)));
        wanted.extend(info.host.map(|host| Slot::Host(host.to_owned())));
        let mut held = Vec::with_capacity(wanted.len());
        for slot in wanted {
            held.push(self.take(slot).await);
        }
        Held(held)
    }

    /// The slot of one VM alone, for writes that belong to no step.
    pub async fn vm(&self, vmid: u32) -> Held {
        Held(vec![self.take(Slot::Vm(vmid)).await])
    }

    fn storage(&self, at: StorageAt) -> Slot {
        let host = (!self.shared.contains(&at.storage)).then_some(at.host);
        Slot::Storage {
            host,
            storage: at.storage,
        }
    }

    async fn take(&self, slot: Slot) -> OwnedSemaphorePermit {
        let semaphore = {
            let mut slots = self.slots.lock().expect("nothing panics while it counts");
            let size = slot.size();
            slots.entry(slot).or_insert_with(|| Arc::new(Semaphore::new(size))).clone()
        };
        semaphore.acquire_owned().await.expect("slots are never closed")
    }
}

#[cfg(test)]
mod tests {
    use mainstay_plan::VmRef;

    use super::*;

    fn start(host: &str, vmid: u32) -> Action {
        Action::MachineStart {
            vm: VmRef {
                host: host.into(),
                vmid,
                uuid: uuid::Uuid::nil(),
            },
        }
    }

    async fn blocks(limits: &Limits, action: &Action) -> bool {
        tokio::time::timeout(std::time::Duration::from_secs(1), limits.slots_for(action))
            .await
            .is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_works_on_four_tasks_and_other_hosts_are_free() {
        let limits = Limits::default();
        let mut held = Vec::new();
        for vmid in 100..104 {
            held.push(limits.slots_for(&start("pve1", vmid)).await);
        }
        assert!(blocks(&limits, &start("pve1", 104)).await);
        assert!(!blocks(&limits, &start("pve2", 104)).await);
        held.pop();
        assert!(!blocks(&limits, &start("pve1", 104)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn one_vm_takes_one_mutation_at_a_time() {
        let limits = Limits::default();
        let _held = limits.vm(100).await;
        assert!(blocks(&limits, &start("pve1", 100)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shared_storage_counts_once_for_all_hosts() {
        let at = |host: &str| Action::ImageFetch {
            at: StorageAt {
                host: host.into(),
                storage: "nfs".into(),
            },
            image: mainstay_plan::Image {
                schematic: String::new(),
                url: String::new(),
                file: String::new(),
                size: None,
            },
        };
        let limits = Limits::new(["nfs".to_owned()]);
        let mut held = Vec::new();
        for host in ["pve1", "pve2", "pve3"] {
            held.push(limits.slots_for(&at(host)).await);
        }
        assert!(blocks(&limits, &at("pve4")).await);
        let apart = Limits::default();
        for host in ["pve1", "pve2", "pve3"] {
            held.push(apart.slots_for(&at(host)).await);
        }
        assert!(!blocks(&apart, &at("pve4")).await);
    }
}
