//! Copies share the bandwidth of the storage that they write to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// All storages that something is copied to.
#[derive(Default)]
pub(crate) struct Bandwidth(Mutex<BTreeMap<String, Arc<Storage>>>);

struct Storage {
    copies: Mutex<Copies>,
    /// Counts joins and leaves, so that the others look at their share again.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Copies {
    next: u64,
    /// What each copy would take alone; one is the full rate of a copy.
    wants: BTreeMap<u64, f64>,
}

/// A copy's place among the others; dropping it leaves them more.
pub(crate) struct Share {
    storage: Arc<Storage>,
    id: u64,
    capacity: f64,
}

impl Bandwidth {
    /// Joins the copies of a storage. `capacity` is how many copies it carries at full rate.
    pub fn join(&self, storage: String, wants: f64, capacity: f64) -> Share {
        let mut storages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let storage = storages.entry(storage).or_insert_with(|| {
            Arc::new(Storage {
                copies: Mutex::default(),
                changes: watch::Sender::new(0),
            })
        });
        let storage = Arc::clone(storage);
        drop(storages);
        let id = storage.change(|copies| {
            copies.next += 1;
            copies.wants.insert(copies.next, wants.max(f64::MIN_POSITIVE));
            copies.next
        });
        Share { storage, id, capacity }
    }
}

impl Storage {
    fn copies(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<R>(&self, act: impl FnOnce(&mut Copies) -> R) -> R {
        let result = act(&mut self.copies());
        self.changes.send_modify(|count| *count += 1);
        result
    }
}

impl Share {
    /// Tells when copies joined or left. To be taken before the speed is read.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.storage.changes.subscribe()
    }

    /// Which part of its own rate this copy has now.
    pub fn speed(&self) -> f64 {
        let copies = self.storage.copies();
        let own = copies.wants.get(&self.id).copied().unwrap_or(1.0);
        (fair_share(copies.wants.values().copied(), self.capacity) / own).min(1.0)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.storage.change(|copies| copies.wants.remove(&self.id));
    }
}

/// What everyone gets who wants more: those who want less leave the rest to the others.
fn fair_share(wants: impl Iterator<Item = f64>, capacity: f64) -> f64 {
    let mut wants: Vec<f64> = wants.collect();
    wants.sort_by(f64::total_cmp);
    let (mut left, mut count) = (capacity, wants.len());
    for want in wants {
        let equal = left / count as f64;
        if want > equal {
            return equal;
        }
        left -= want;
        count -= 1;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::{Bandwidth, fair_share};

    #[test]
    fn everyone_gets_what_is_wanted_while_there_is_enough() {
        assert_eq!(fair_share([1.0, 1.0, 1.0].into_iter(), 4.0), f64::INFINITY);
        assert_eq!(fair_share([1.0; 8].into_iter(), 4.0), 0.5);
        assert_eq!(fair_share([0.25, 0.25, 1.0, 1.0].into_iter(), 2.0), 0.75);
    }

    #[test]
    fn shares_never_add_up_to_more_than_the_storage_has() {
        for count in 1..40_u32 {
            let wants: Vec<f64> = (1..=count).map(|n| f64::from(n % 7 + 1) / 4.0).collect();
            let share = fair_share(wants.iter().copied(), 4.0);
            let total: f64 = wants.iter().map(|want| want.min(share)).sum();
            assert!(total <= 4.0 + 1e-9, "{count}: {total}");
            let wanted: f64 = wants.iter().sum();
            assert!(total >= wanted.min(4.0) - 1e-9, "{count}: nothing is left idle");
        }
    }

    #[test]
    fn a_copy_that_ends_leaves_its_share_to_the_others() {
        let all = Bandwidth::default();
        let first = all.join("pve1/local".into(), 1.0, 2.0);
        let others: Vec<_> = (0..3).map(|_| all.join("pve1/local".into(), 1.0, 2.0)).collect();
        assert_eq!(first.speed(), 0.5);
        assert_eq!(all.join("pve2/local".into(), 1.0, 2.0).speed(), 1.0);
        let changes = first.changes();
        drop(others);
        assert!(changes.has_changed().expect("open") && first.speed() == 1.0);
    }
}
