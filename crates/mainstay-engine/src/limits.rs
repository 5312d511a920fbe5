//! How much is asked of PVE at once. PVE's own locks time out after ten seconds, so more at once means failures, not speed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::channel::oneshot;
use mainstay_plan::{Action, Observed, Plan, StorageAt, StorageKind};

/// Tasks that one host works on, whatever its number of cores: as in the bulk actions of PVE itself.
const TASKS_MAX: usize = 8;
/// Allocations that begin at once on a storage where each one only writes metadata under the storage's lock, and on any other.
const ALLOCATIONS_ON_BLOCKS: usize = 6;
const ALLOCATIONS_ON_FILES: usize = 3;
/// More at once would not be told apart from fewer within one run.
const ALLOCATIONS_MAX: usize = 16;
/// Allocations are slower than before from this factor on: below it, it is noise.
const SLOWER: f64 = 1.1;

/// Slots. A slot that becomes free goes to the step with the longest remaining path, among equals to the first that asked.
#[derive(Debug, Default)]
pub struct Limits {
    queue: Arc<Mutex<Queue>>,
    /// Tasks at once, for hosts that are known.
    hosts: BTreeMap<String, usize>,
    /// Storages that all hosts share.
    shared: BTreeSet<String>,
    /// Storages of block devices.
    blocks: BTreeSet<String>,
    /// Fills that the plan has for each storage.
    fills: BTreeMap<LimitKey, usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum LimitKey {
    Host(String),
    Storage { host: Option<String>, storage: String },
    Vm(u32),
}

/// Who comes first: the longest remaining path, then who asked first.
type QueueTurn = (Reverse<Duration>, u64);

#[derive(Debug, Default)]
struct Queue {
    pools: BTreeMap<LimitKey, SlotPool>,
    waiting: BTreeMap<QueueTurn, Waiter>,
    asked: u64,
}

/// A slot that a step asks for, how many there are at first, and how many steps will ask in all, if that is known.
#[derive(Debug)]
struct Wanted {
    slot: LimitKey,
    size: usize,
    all: usize,
}

impl Wanted {
    fn new(slot: LimitKey, size: usize) -> Self {
        Self { slot, size, all: 0 }
    }
}

#[derive(Debug)]
struct Waiter {
    slots: Vec<LimitKey>,
    granted: oneshot::Sender<()>,
}

/// The slots of one kind.
#[derive(Debug)]
struct SlotPool {
    size: usize,
    used: usize,
    waiting: BTreeSet<QueueTurn>,
    /// How long the last allocations took, as many as there are slots.
    took: Vec<Duration>,
    /// Their mean before the size was last changed.
    before: Option<Duration>,
    /// How many begin at once before one has ended.
    first: usize,
}

impl SlotPool {
    /// `all`: how many will ask.
    fn new(size: usize, all: usize) -> Self {
        Self {
            size,
            used: 0,
            waiting: BTreeSet::new(),
            took: Vec::new(),
            before: None,
            first: first_wave(size, all),
        }
    }

    fn has_room(&self) -> bool {
        self.used < self.size.min(self.first)
    }

    /// One more at once while that makes none slower, one less when it does.
    fn learn(&mut self, took: Duration) {
        self.first = usize::MAX;
        self.took.push(took);
        if self.took.len() < self.size {
            return;
        }
        let mean = self.took.iter().sum::<Duration>().div_f64(self.took.len() as f64);
        let is_slower = self.before.is_some_and(|before| mean > before.mul_f64(SLOWER));
        self.size = if is_slower { self.size - 1 } else { self.size + 1 }.clamp(1, ALLOCATIONS_MAX);
        self.before = Some(mean);
        self.took.clear();
    }

    /// PVE did not get the lock of the storage in time.
    fn halve(&mut self) {
        self.size = (self.size / 2).max(1);
        self.first = usize::MAX;
        self.took.clear();
        self.before = None;
    }
}

impl Queue {
    fn ask(&mut self, rank: Duration, slots: Vec<Wanted>) -> (QueueTurn, Vec<LimitKey>, oneshot::Receiver<()>) {
        let turn = (Reverse(rank), self.asked);
        self.asked += 1;
        let (granted, receiver) = oneshot::channel();
        for Wanted { slot, size, all } in &slots {
            let pool = self.pools.entry(slot.clone());
            pool.or_insert_with(|| SlotPool::new(*size, *all)).waiting.insert(turn);
        }
        let slots: Vec<LimitKey> = slots.into_iter().map(|wanted| wanted.slot).collect();
        let waiter = Waiter {
            slots: slots.clone(),
            granted,
        };
        self.waiting.insert(turn, waiter);
        self.try_grant(turn);
        (turn, slots, receiver)
    }

    /// All slots or none: a step that waits for one keeps no other from being used.
    fn try_grant(&mut self, turn: QueueTurn) {
        let has_room = |slot: &LimitKey| self.pools.get(slot).is_none_or(SlotPool::has_room);
        if !self
            .waiting
            .get(&turn)
            .is_some_and(|waiter| waiter.slots.iter().all(has_room))
        {
            return;
        }
        let Some(waiter) = self.waiting.remove(&turn) else { return };
        for slot in &waiter.slots {
            if let Some(pool) = self.pools.get_mut(slot) {
                pool.waiting.remove(&turn);
                pool.used += 1;
            }
        }
        // One that stopped waiting gives its slots back when it is dropped.
        let _ = waiter.granted.send(());
    }

    fn give_back(&mut self, turn: QueueTurn, slots: &[LimitKey]) {
        let never_granted = self.waiting.remove(&turn).is_some();
        for slot in slots {
            let Some(pool) = self.pools.get_mut(slot) else { continue };
            if never_granted {
                pool.waiting.remove(&turn);
            } else {
                pool.used -= 1;
            }
        }
        for slot in slots {
            self.serve(slot);
        }
    }

    fn serve(&mut self, slot: &LimitKey) {
        let mut after = Bound::Unbounded;
        while let Some(pool) = self.pools.get(slot).filter(|pool| pool.has_room()) {
            let Some(next) = pool.waiting.range((after, Bound::Unbounded)).next().copied() else {
                return;
            };
            after = Bound::Excluded(next);
            self.try_grant(next);
        }
    }
}

/// A place in the queue, taken when this was made.
#[derive(Debug)]
pub struct Ticket {
    held: SlotGuard,
    granted: oneshot::Receiver<()>,
}

impl Ticket {
    /// Waits for the slots. The channel is not one of tokio: its budget per poll would lose the order among hundreds of waiters.
    pub async fn slots(self) -> SlotGuard {
        // The sender is dropped only together with the waiter, which `held` keeps.
        let _ = self.granted.await;
        self.held
    }
}

/// Slots that are held until this is dropped.
#[derive(Debug)]
pub struct SlotGuard {
    queue: Arc<Mutex<Queue>>,
    turn: QueueTurn,
    slots: Vec<LimitKey>,
    /// How long it takes tells how busy its storage is.
    measures: bool,
}

impl SlotGuard {
    /// The step was done in this time.
    pub fn done(self, took: Duration) {
        if self.measures {
            self.adjust(|pool| pool.learn(took));
        }
    }

    /// A lock of PVE was not got in time.
    pub fn lock_timed_out(self) {
        self.adjust(SlotPool::halve);
    }

    fn adjust(&self, change: impl Fn(&mut SlotPool)) {
        let mut queue = locked(&self.queue);
        for slot in self.slots.iter().filter(|slot| matches!(slot, LimitKey::Storage { .. })) {
            queue.pools.get_mut(slot).into_iter().for_each(&change);
        }
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        locked(&self.queue).give_back(self.turn, &self.slots);
    }
}

fn locked(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().expect("nothing panics while it counts")
}

impl Limits {
    /// What the hosts and storages can bear, for the steps of a plan.
    pub fn of(observed: &Observed, plan: &Plan) -> Self {
        let storages = || observed.hosts.values().filter_map(|host| host.storages.yes()).flatten();
        let is_block = |kind: &StorageKind| matches!(kind, StorageKind::LvmThin | StorageKind::Zfs | StorageKind::Rbd);
        let named = |fits: &dyn Fn(&mainstay_plan::HostStorage) -> bool| {
            storages()
                .filter(|(_, storage)| fits(storage))
                .map(|(name, _)| name.clone())
                .collect()
        };
        let cores = observed.hosts.iter().map(|(name, host)| (name.clone(), host.cpus as usize));
        let mut limits = Self {
            queue: Arc::default(),
            hosts: cores.map(|(name, cores)| (name, tasks_of(cores))).collect(),
            shared: named(&|storage| storage.shared),
            blocks: named(&|storage| is_block(&storage.kind)),
            fills: BTreeMap::new(),
        };
        for step in plan.steps.iter().filter(|step| is_fill(&step.action)) {
            if let Some(at) = step.action.info().allocates_on {
                *limits.fills.entry(limits.storage_slot(at)).or_default() += 1;
            }
        }
        limits
    }

    /// Takes a place in the queue for the slots of an action, at once. `rank`: the longest path from its begin to the end of the plan.
    pub fn ask(&self, action: &Action, rank: Duration) -> Ticket {
        let info = action.info();
        let mut wanted = Vec::new();
        // PVE holds the VM's lock while a task works on it; a second one would wait ten seconds and fail.
        wanted.extend(info.vm.map(|vm| Wanted::new(LimitKey::Vm(vm.vmid), 1)));
        // Copies and downloads wait for their storage, not for the cores of the host.
        match (info.allocates_on, info.host) {
            (Some(at), _) => wanted.push(self.storage(at)),
            (None, Some(host)) => wanted.push(Wanted::new(LimitKey::Host(host.to_owned()), self.tasks(host))),
            (None, None) => {}
        }
        self.take(rank, wanted, is_fill(action))
    }

    /// The slot of one VM alone, for a write that belongs to no step: every step comes first.
    pub async fn vm(&self, vmid: u32) -> SlotGuard {
        let wanted = vec![Wanted::new(LimitKey::Vm(vmid), 1)];
        self.take(Duration::ZERO, wanted, false).slots().await
    }

    fn take(&self, rank: Duration, wanted: Vec<Wanted>, measures: bool) -> Ticket {
        let (turn, slots, granted) = locked(&self.queue).ask(rank, wanted);
        let held = SlotGuard {
            queue: self.queue.clone(),
            turn,
            slots,
            measures,
        };
        Ticket { held, granted }
    }

    fn tasks(&self, host: &str) -> usize {
        self.hosts.get(host).copied().unwrap_or(1)
    }

    fn storage(&self, at: StorageAt) -> Wanted {
        let size = if self.blocks.contains(&at.storage) {
            ALLOCATIONS_ON_BLOCKS
        } else {
            ALLOCATIONS_ON_FILES
        };
        let slot = self.storage_slot(at);
        let all = self.fills.get(&slot).copied().unwrap_or_default();
        Wanted { slot, size, all }
    }

    fn storage_slot(&self, at: StorageAt) -> LimitKey {
        LimitKey::Storage {
            host: (!self.shared.contains(&at.storage)).then_some(at.host),
            storage: at.storage,
        }
    }
}

fn is_fill(action: &Action) -> bool {
    matches!(action, Action::MachineFill(_))
}

/// Copies that take more than one wave begin with the small wave and not with the large one: it takes as long in all, and those with the
/// longest remaining path share the storage with fewer.
fn first_wave(size: usize, all: usize) -> usize {
    if all <= size {
        return usize::MAX;
    }
    match all % size {
        0 => size,
        rest => rest,
    }
}

/// One core is left to what else the host does.
fn tasks_of(cores: usize) -> usize {
    cores.saturating_sub(1).clamp(1, TASKS_MAX)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
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

    fn fetch(host: &str, storage: &str) -> Action {
        Action::ImageFetch {
            at: StorageAt {
                host: host.into(),
                storage: storage.into(),
            },
            image: mainstay_plan::Image {
                schematic: None,
                url: String::new(),
                file: String::new(),
                size: None,
                checksum: None,
            },
        }
    }

    fn limits(cores: usize) -> Limits {
        Limits {
            hosts: ["pve1", "pve2"].map(|host| (host.to_owned(), tasks_of(cores))).into(),
            shared: ["nfs".to_owned()].into(),
            blocks: ["thin".to_owned()].into(),
            ..Limits::default()
        }
    }

    /// The slots, if they are free.
    fn free(limits: &Limits, action: &Action) -> Option<SlotGuard> {
        limits.ask(action, Duration::ZERO).slots().now_or_never()
    }

    fn free_starts(limits: &Limits, host: &str, vmids: std::ops::Range<u32>) -> Vec<SlotGuard> {
        vmids.map_while(|vmid| free(limits, &start(host, vmid))).collect()
    }

    #[test]
    fn a_host_works_on_one_task_less_than_it_has_cores_and_on_eight_at_most() {
        for (cores, tasks) in [(0, 1), (1, 1), (2, 1), (4, 3), (9, 8), (64, 8)] {
            let limits = limits(cores);
            let mut held = free_starts(&limits, "pve1", 100..200);
            assert_eq!(held.len(), tasks, "{cores} cores");
            assert!(free(&limits, &start("pve2", 200)).is_some());
            held.pop();
            assert!(free(&limits, &start("pve1", 201)).is_some());
        }
    }

    #[test]
    fn one_vm_takes_one_mutation_at_a_time() {
        let limits = limits(4);
        let _held = limits.vm(100).now_or_never().unwrap();
        assert!(free(&limits, &start("pve1", 100)).is_none());
    }

    #[test]
    fn a_write_that_belongs_to_no_step_comes_after_every_step_of_its_vm() {
        let limits = limits(4);
        let held = free(&limits, &start("pve1", 100));
        let mut lease = std::pin::pin!(limits.vm(100));
        assert!(lease.as_mut().now_or_never().is_none());
        let step = limits.ask(&start("pve1", 100), Duration::from_secs(1));
        drop(held);
        assert!(lease.as_mut().now_or_never().is_none());
        drop(step.slots().now_or_never().unwrap());
        assert!(lease.now_or_never().is_some());
    }

    #[test]
    fn a_shared_storage_counts_once_for_all_hosts_and_blocks_bear_more() {
        let hosts: Vec<String> = (0..9).map(|host| format!("pve{host}")).collect();
        let at_once = |storage: &str| {
            let limits = limits(4);
            let held: Vec<_> = hosts.iter().map_while(|host| free(&limits, &fetch(host, storage))).collect();
            held.len()
        };
        assert_eq!(at_once("nfs"), 3);
        assert_eq!(at_once("local"), 9);
        let on_one_host = |storage: &str| {
            let limits = limits(4);
            let held: Vec<_> = (0..9).map_while(|_| free(&limits, &fetch("pve1", storage))).collect();
            held.len()
        };
        assert_eq!(on_one_host("thin"), 6);
        assert_eq!(on_one_host("local"), 3);
    }

    #[test]
    fn of_two_waves_of_copies_the_first_is_the_small_one() {
        for (all, first) in [
            (0, usize::MAX),
            (5, usize::MAX),
            (6, usize::MAX),
            (7, 1),
            (10, 4),
            (12, 6),
            (16, 4),
        ] {
            assert_eq!(first_wave(6, all), first, "of {all}");
        }
        let mut pool = SlotPool::new(6, 10);
        pool.used = 4;
        assert!(!pool.has_room());
        pool.learn(Duration::from_secs(9));
        assert!(pool.has_room(), "the second wave begins when the first ends");
    }

    #[test]
    fn slots_go_to_the_longest_remaining_path_and_waiting_ones_hold_none() {
        let limits = limits(2);
        let held = free(&limits, &start("pve1", 100));
        let short = limits.ask(&start("pve1", 101), Duration::from_secs(1));
        let given_up = limits.ask(&start("pve1", 102), Duration::from_secs(9));
        let long = limits.ask(&start("pve1", 103), Duration::from_secs(5));
        drop(given_up);
        drop(held);
        let mut short = std::pin::pin!(short.slots());
        assert!(short.as_mut().now_or_never().is_none());
        let long = long.slots().now_or_never().expect("the longest path is next");
        // The one that waits for the host leaves its VM to others.
        assert!(limits.vm(101).now_or_never().is_some());
        drop(long);
        assert!(short.now_or_never().is_some());
    }

    #[test]
    fn allocations_grow_while_none_is_slower_shrink_when_they_are_and_halve_on_a_lock_timeout() {
        let mut pool = SlotPool::new(3, 0);
        let mut wave = |seconds: f64| {
            for _ in 0..pool.size {
                pool.learn(Duration::from_secs_f64(seconds));
            }
            pool.size
        };
        assert_eq!([10.0, 10.5, 13.0, 12.0].map(&mut wave), [4, 5, 4, 5]);
        pool.halve();
        assert_eq!(pool.size, 2);
        pool.halve();
        pool.halve();
        assert_eq!(pool.size, 1);
        let mut fast = SlotPool::new(6, 0);
        (0..1000).for_each(|_| fast.learn(Duration::from_secs(1)));
        assert_eq!(fast.size, ALLOCATIONS_MAX);
    }

    #[test]
    fn a_step_that_timed_out_on_a_lock_halves_its_storage_alone() {
        let limits = limits(8);
        let held: Vec<_> = (0..6).filter_map(|_| free(&limits, &fetch("pve1", "thin"))).collect();
        held.into_iter().next().unwrap().lock_timed_out();
        let held: Vec<_> = (0..6).filter_map(|_| free(&limits, &fetch("pve1", "thin"))).collect();
        assert_eq!(held.len(), 3);
        assert_eq!(free_starts(&limits, "pve1", 100..200).len(), 7);
    }
}
