//! Bad days by the dozen. Thousands of them: `cargo run --profile hard -p mainstay-engine --example hardship -- --seeds 1000`.

mod days;
#[expect(dead_code, reason = "shared with tests that need other parts of it")]
mod stage;

use days::live;
use days::once::{befalls_once, clean, killed_at_change};
use pve_sim::faults::Fault;

const SEEDS: u64 = 12;

#[test]
fn whatever_befalls_a_run_calm_settles_it_and_nothing_of_others_is_touched() {
    for seed in 0..SEEDS {
        let tale = live(seed);
        assert!(
            tale.wrong.is_empty(),
            "replay with: cargo run -p mainstay-engine --example hardship -- --seeds 1 --start {seed} --tell\n{:#?}",
            tale.wrong
        );
        assert!(tale.calm_runs <= 2, "seed {seed}: {}", tale.text);
    }
}

/// Every kind of call that changes something, struck once by `fault`: one run of `up` and one of `down` live with it.
fn every_change_lives_with(fault: &Fault) {
    let (calls, _) = clean();
    assert!(calls.len() >= 6, "{calls:?}");
    for call in calls {
        assert_eq!(befalls_once(&call, fault), Vec::<String>::new(), "{call}");
    }
}

#[test]
fn an_answer_lost_after_execution_never_does_anything_twice() {
    every_change_lives_with(&Fault::CutAfter);
}

#[test]
fn a_lock_that_is_not_got_in_time_is_tried_again() {
    every_change_lives_with(&Fault::Refuse {
        status: 500,
        reason: "can't lock file '/var/lock/qemu-server/lock-2000.conf' - got timeout".into(),
    });
}

#[test]
fn a_host_that_gives_a_forwarded_call_up_is_asked_again() {
    every_change_lives_with(&Fault::Refuse {
        status: 596,
        reason: "Connection timed out".into(),
    });
}

#[test]
fn a_run_killed_at_any_change_is_finished_by_the_next() {
    let (_, changes) = clean();
    assert!(changes >= 8, "{changes}");
    for nth in 1..=changes {
        assert_eq!(killed_at_change(nth), Vec::<String>::new(), "killed at change {nth}");
    }
}
