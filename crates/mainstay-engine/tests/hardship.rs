//! Bad days by the dozen. Thousands of them: `cargo run --profile hard -p mainstay-engine --example hardship -- --seeds 1000`.

use crate::days::live;
use crate::days::once::{Then, befalls_once, clean, down_killed_at, on_small_stage, up_killed_at};
use mainstay_engine::FileStore;
use mainstay_sim::{Deed, Standing, Struck, Witness};
use pve_sim::faults::Fault;
use pve_sim::{Effect, Observer, Seen};

const SEEDS: u64 = 12;
/// Days on which something was wrong once: a disk that grew behind its config was grown for ever (24, 1169), a control plane was
/// restarted again although another had gone meanwhile (1237), nodes that a partition had kept away never registered (100184, 100311), a
/// disk was taken for a leftover while a colleague made it (100347), two at once restarted one control plane each (510725), a seed that
/// was left was to be made a second time (520658), a removal whose answer was lost took the disk that had the name by then (601657), a
/// second `DELETE` came late, upon a foreign VM that had the VMID by then (1006968), a machine ran before it had a disk (1005785), a node was
/// ready on the word of its predecessor (1007090), a stranger's VM was filled and started (2003882), a removal was called held while a
/// member started (3000164), of two who filled one machine the second stopped what the first had started (3020140, 3201824), a removal that was
/// sent before a kill took the disk that had the name by then (3020185), a machine whose destruction had broken off was to be started
/// (3200817), a control plane got its vote in the moment of its stop (3301495), a restart of a machine that was gone started the next one
/// of that VMID before it had a disk (3600466).
const PINNED: [u64; 20] = [
    24, 1169, 1237, 100_184, 100_311, 100_347, 510_725, 520_658, 601_657, 1_005_785, 1_006_968, 1_007_090, 2_003_882, 3_000_164,
    3_020_140, 3_020_185, 3_200_817, 3_201_824, 3_301_495, 3_600_466,
];

#[test]
fn whatever_befalls_a_run_calm_settles_it_and_nothing_of_others_is_touched() {
    for seed in (0..SEEDS).chain(PINNED) {
        let tale = live(seed);
        assert!(
            tale.wrong.is_empty(),
            "replay with: cargo run -p mainstay-engine --example hardship -- --seeds 1 --start {seed} --tell\n{:#?}",
            tale.wrong
        );
        assert!(tale.calm_runs <= 2, "seed {seed}: {}", tale.text);
    }
}

/// A seed that cannot be replayed proves nothing about the code that it found wanting.
#[test]
fn a_seed_lives_the_same_life_every_time() {
    assert_eq!(live(1).digest, live(1).digest);
}

/// Every call that `up` and `down` make, or only those that change something.
fn every(call: &str) -> bool {
    !call.is_empty()
}

fn changing(call: &str) -> bool {
    !call.starts_with("GET ")
}

/// Each of these calls, struck once by `fault`.
fn each_lives_with(which: fn(&str) -> bool, fault: &Fault, then: Then) {
    let calls: Vec<String> = clean().calls.into_iter().filter(|call| which(call)).collect();
    assert!(calls.len() >= 6, "{calls:?}");
    for call in calls {
        assert_eq!(befalls_once(&call, fault, then), Vec::<String>::new(), "{call}");
    }
}

fn refuse(status: u16, reason: &str) -> Fault {
    let reason = reason.into();
    Fault::Refuse { status, reason }
}

#[test]
fn an_answer_lost_after_execution_never_does_anything_twice() {
    each_lives_with(every, &Fault::CutAfter, Then::Nothing);
}

#[test]
fn a_host_that_carries_a_call_out_and_answers_too_late_is_looked_at() {
    let (status, reason) = (596, "Connection timed out".into());
    each_lives_with(changing, &Fault::ReplaceAnswer { status, reason }, Then::Nothing);
}

#[test]
fn a_lock_that_is_not_got_in_time_is_tried_again() {
    let lock = "can't lock file '/var/lock/qemu-server/lock-2000.conf' - got timeout";
    each_lives_with(changing, &refuse(500, lock), Then::Nothing);
}

#[test]
fn a_host_that_gives_a_forwarded_call_up_is_asked_again() {
    each_lives_with(changing, &refuse(596, "Connection timed out"), Then::Nothing);
}

#[test]
fn a_right_that_is_taken_away_meanwhile_is_given_back_and_the_next_run_ends_it() {
    each_lives_with(
        every,
        &refuse(403, "Permission check failed (/vms/2000, VM.Allocate)"),
        Then::Again,
    );
}

#[test]
fn a_token_that_expires_meanwhile_is_renewed_and_the_next_run_ends_it() {
    each_lives_with(every, &refuse(401, "authentication failure"), Then::Again);
}

#[test]
fn a_step_that_fails_for_a_reason_of_its_own_is_ended_by_the_next_run() {
    each_lives_with(
        changing,
        &refuse(500, "unable to open file - Input/output error"),
        Then::Again,
    );
}

/// Every step tells that it begins, what it waits for and that it is done: killed at each of these words, it is killed before and after.
#[test]
fn an_up_killed_at_any_word_is_finished_by_the_next() {
    let words = clean().up;
    assert!(words >= 30, "{words}");
    for nth in 1..=words {
        assert_eq!(up_killed_at(nth), Vec::<String>::new(), "killed at word {nth}");
    }
}

#[test]
fn a_down_killed_at_any_word_is_finished_by_the_next() {
    let words = clean().down;
    assert!(words >= 5, "{words}");
    for nth in 1..=words {
        assert_eq!(down_killed_at(nth), Vec::<String>::new(), "killed at word {nth}");
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
        watch.effect("root@pam!mainstay", &Effect::VmStarted { vmid: 2000 });
        tells("a machine without secrets that are kept");
        assert!(stage.keep_secrets());
        watch.effect("root@pam!mainstay", &Effect::VmConfigured { vmid: 100, keys: vec![] });
        tells("a change of a stranger's VM");
        watch.effect("root@pam!mainstay", &Effect::PoolChanged { pool: "theirs".into() });
        tells("a change of a pool");
        watch.effect("root@pam!mainstay", &Effect::VmStarted { vmid: 2000 });
        watch.effect("root@pam!mainstay", &ours());
        tells("the removal of a living machine by up");
        let struck = |vmid, others| Struck {
            vmid,
            uuid: watch.uuid(vmid),
            etcd: Some(Standing {
                voters: 3,
                others,
                votes: true,
            }),
        };
        watch.deed(&struck(2000, 2), Deed::Config);
        watch.deed(&struck(2000, 2), Deed::Away);
        assert_eq!(
            watch.all_wrong().len(),
            4,
            "a machine of ours that etcd can do without for a while"
        );
        watch.deed(&struck(100, 2), Deed::Config);
        tells("a config for a stranger's machine");
        let uuid = "00000000-0000-4000-8000-000000000002".into();
        watch.deed(&Struck { uuid, ..struck(2000, 2) }, Deed::Config);
        tells("a config for a machine with our VMID and another UUID");
        watch.deed(&struck(2000, 1), Deed::Away);
        tells("a restart that costs etcd its majority");
        watch.intrudes(3000);
        watch.effect("root@pam!mainstay", &Effect::VmRemoved { vmid: 3000 });
        tells("the removal of a foreign VM that took our VMID");
        stage.tell_a_wait_without_a_reason();
        watch.look(stage);
        tells("a wait without a reason");
        let token = stage.world.token().expect("a token");
        watch.request(&seen(token.split_once('=').expect("a secret").1));
        tells("a secret in an answer");
        for _ in 0..crate::days::watch::REQUESTS_PER_MINUTE {
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
        watch.nothing_of_ours(stage, &[]);
        tells("a machine that is left after down");
        lab.add_volume("pve1", "local-lvm:vm-2000-disk-9", 1 << 30);
        watch.turns_up("local-lvm:vm-2000-disk-9", "pve1", Some(2000));
        let (volid, host) = ("local-lvm:vm-2000-disk-9".into(), "pve1".into());
        watch.effect("root@pam!mainstay", &Effect::VolumeRemoved { volid, host });
        tells("the removal of a disk that a person put on our machine");
        watch.holding_stays(stage, &[]);
        tells("a disk that holds a machine and is not named");
        lab.remove_volume("pve1", "local-lvm:vm-2000-disk-9");
        watch.look(stage);
        tells("a disk of others that is gone");
        lab.destroy_vm(2000);
        stage.disk.write("state/journal".as_ref(), b"x").expect("writes");
        watch.nothing_of_ours(stage, &[]);
        tells("a journal that is left after down");
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
