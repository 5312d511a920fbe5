//! One cluster of two machines, one thing that goes wrong, every place where it can.

use std::collections::BTreeSet;

use pve_sim::faults::{Fault, Rule};

use super::Life;
use super::shape::Shape;
use crate::stage::{Stage, on_stage};

const SEED: u64 = 9;

pub fn on_small_stage<T: Send>(act: impl AsyncFnOnce(&Stage, Life<'_>) -> T + Send) -> T {
    let shape = Shape::small();
    on_stage(SEED, shape.world.clone(), async |stage| {
        act(stage, Life::new(stage, &shape)).await
    })
}

/// What happens in one clean `up` and `down`.
pub struct Clean {
    pub calls: BTreeSet<String>,
    /// How many events each tells.
    pub up: usize,
    pub down: usize,
}

pub fn clean() -> Clean {
    on_small_stage(async |stage, life| {
        life.must_up().await;
        let up = words(stage);
        life.must_down().await;
        assert_eq!(life.watch.all_wrong(), Vec::<String>::new());
        Clean {
            calls: life.watch.calls(),
            up,
            down: words(stage) - up,
        }
    })
}

/// How many events were told so far.
fn words(stage: &Stage) -> usize {
    stage.told.lock().expect("reads").len()
}

/// What the operator has to do when this happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing: the run lives with it.
    Nothing,
    /// Mend what was refused, and run it again.
    Again,
}

/// What is wrong when this befalls this call once.
pub fn befalls_once(call: &str, fault: &Fault, then: Then) -> Vec<String> {
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
        if then == Then::Again {
            let _ = stage.up(&life.file).await;
        }
        life.must_up().await;
        if then == Then::Again {
            life.watch.may_remove();
            let _ = stage.down(&life.file).await;
        }
        life.must_down().await;
        if faults.struck(number) != 1 {
            life.watch.wrong("nothing befell it".into());
        }
        life.watch.all_wrong()
    })
}

/// What is wrong when `up` is killed as soon as it tells its nth event, and then run again.
pub fn up_killed_at(nth: usize) -> Vec<String> {
    on_small_stage(async |stage, life| {
        tokio::select! {
            biased;
            () = heard(stage, nth) => {}
            _ = stage.up(&life.file) => life.watch.wrong(format!("there is no event {nth}")),
        }
        life.must_up().await;
        life.must_down().await;
        life.watch.all_wrong()
    })
}

/// What is wrong when `down` is killed as soon as it tells its nth event, and then run again.
pub fn down_killed_at(nth: usize) -> Vec<String> {
    on_small_stage(async |stage, life| {
        life.must_up().await;
        life.watch.may_remove();
        let before = words(stage);
        tokio::select! {
            biased;
            () = heard(stage, before + nth) => {}
            _ = stage.down(&life.file) => life.watch.wrong(format!("there is no event {nth}")),
        }
        life.must_down().await;
        life.watch.all_wrong()
    })
}

/// When so many events were told.
async fn heard(stage: &Stage, count: usize) {
    while words(stage) < count {
        stage.beat.notified().await;
    }
}
