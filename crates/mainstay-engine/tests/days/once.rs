//! One cluster of two machines, one thing that goes wrong, every place where it can.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pve_sim::faults::{Fault, Rule};
use pve_sim::{Observer, Seen};
use tokio::sync::Notify;

use super::Life;
use super::shape::Shape;
use crate::stage::{Stage, on_stage};

const SEED: u64 = 9;

pub fn on_small_stage<T: Send>(act: impl AsyncFnOnce(&Stage, Life<'_>) -> T + Send) -> T {
    let mut shape = Shape::small();
    let world = std::mem::take(&mut shape.world);
    on_stage(SEED, world, async |stage| act(stage, Life::new(stage, &shape)).await)
}

/// The calls that change something in one clean `up` and `down`, and how many times any was made by `up`.
pub fn clean() -> (BTreeSet<String>, u64) {
    on_small_stage(async |stage, life| {
        let count = Arc::new(Killer::at(u64::MAX));
        stage.world.datacenter().observe(count.clone());
        life.must_up().await;
        let made = count.seen.load(Ordering::Relaxed);
        life.must_down().await;
        assert_eq!(life.watch.all_wrong(), Vec::<String>::new());
        (life.watch.changing_calls(), made)
    })
}

/// What is wrong when this befalls this call once, in runs that nobody repeats.
pub fn befalls_once(call: &str, fault: &Fault) -> Vec<String> {
    on_small_stage(async |stage, life| {
        let faults = stage.world.datacenter().faults();
        let number = faults.add(Rule {
            call: call.into(),
            path: None,
            from: 1,
            times: Some(1),
            chance: 1.0,
            then: fault.clone(),
        });
        life.must_up().await;
        life.must_down().await;
        if faults.struck(number) != 1 {
            life.watch.wrong("nothing befell it".into());
        }
        life.watch.all_wrong()
    })
}

/// What is wrong when `up` is killed as soon as its nth change was carried out, and then run again.
pub fn killed_at_change(nth: u64) -> Vec<String> {
    on_small_stage(async |stage, life| {
        let killer = Arc::new(Killer::at(nth));
        stage.world.datacenter().observe(killer.clone());
        tokio::select! {
            biased;
            () = killer.now.notified() => {}
            _ = stage.up(&life.file) => life.watch.wrong(format!("there is no change {nth}")),
        }
        life.must_up().await;
        life.must_down().await;
        life.watch.all_wrong()
    })
}

/// Tells when so many changes were carried out.
struct Killer {
    at: u64,
    seen: AtomicU64,
    now: Notify,
}

impl Killer {
    fn at(at: u64) -> Self {
        Self {
            at,
            seen: AtomicU64::new(0),
            now: Notify::new(),
        }
    }
}

impl Observer for Killer {
    fn request(&self, seen: &Seen) {
        if seen.verb != "GET" && self.seen.fetch_add(1, Ordering::Relaxed) + 1 == self.at {
            self.now.notify_one();
        }
    }
}
