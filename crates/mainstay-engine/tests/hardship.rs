//! Bad days by the dozen. Thousands of them: `cargo run --profile hard -p mainstay-engine --example hardship -- --seeds 1000`.

mod days;
#[expect(dead_code, reason = "shared with tests that need other parts of it")]
mod stage;

use days::live;
use days::once::{befalls_once, clean, killed_at_change, on_small_stage};
use pve_sim::faults::Fault;
use pve_sim::{Effect, Observer, Seen};

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

/// Invariants that cannot break show nothing: each is broken here, and the watch says so.
#[test]
fn the_watch_tells_of_everything_that_must_not_happen() {
    on_small_stage(async |stage, life| {
        let watch = &life.watch;
        let mut told = 0;
        let mut tells = |what: &str| {
            let wrong = watch.all_wrong();
            assert!(wrong.len() > told, "{what} was not told of");
            told = wrong.len();
        };
        let ours = || Effect::VmRemoved { vmid: 2000 };
        watch.effect("root@pam!mainstay", &Effect::VmConfigured { vmid: 100, keys: vec![] });
        tells("a change of a stranger's VM");
        watch.effect("root@pam!mainstay", &Effect::PoolChanged { pool: "theirs".into() });
        tells("a change of a pool");
        watch.effect("root@pam!mainstay", &Effect::VmStarted { vmid: 2000 });
        watch.effect("root@pam!mainstay", &ours());
        tells("the removal of a living machine by up");
        let token = stage.world.token().expect("a token");
        watch.request(&seen(token.split_once('=').expect("a secret").1));
        tells("a secret in an answer");
        for _ in 0..days::watch::REQUESTS_PER_MINUTE {
            watch.request(&seen(""));
        }
        tells("too many requests");
        let lab = stage.world.datacenter().lab();
        for vmid in [2000, 100] {
            let config = [("net0".to_owned(), "virtio=BC:24:11:00:00:01,bridge=vmbr0".to_owned())];
            lab.create_vm(vmid, "pve1", config.into());
        }
        watch.look(stage);
        tells("two VMs with one MAC");
        watch.nothing_of_ours(stage);
        tells("a machine that is left after down");
        let before = watch.all_wrong().len();
        watch.effect("root@pam", &ours());
        assert_eq!(
            watch.all_wrong().len(),
            before,
            "what an administrator does is his own affair"
        );
    });
}

fn seen(answer: &str) -> Seen {
    Seen {
        host: "pve1".into(),
        by: None,
        verb: "GET".into(),
        path: "/version".into(),
        template: None,
        params: serde_json::Value::Null,
        status: Some(200),
        reason: "OK".into(),
        answer: answer.into(),
    }
}
