//! Every plan of two hundred seeded lives, as digests: a change of the planner that is meant to change no plan is proved by them.
//!
//! After a change that is meant to change plans: `UPDATE_EXPECT=1 cargo test -p mainstay-plan --test plan frozen`. To read what changed,
//! set `PLAN_DUMP=folder` before and after, and compare the two folders.

use std::fmt::Write;
use std::path::Path;

use expect_test::expect_file;
use mainstay_plan::{Observed, Plan, PowerState, Seen};
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use sha2::{Digest, Sha256};

use crate::properties::{event, file, happen};
use crate::world::{World, empty};

const LIVES: u64 = 200;

/// What a look may fail to see, or sees besides. Each is planned for, and nothing of it is carried out.
const BLURS: [fn(&mut Observed); 14] = [
    |observed| observed.etcd = Seen::Unknown("timed out".to_owned()),
    |observed| observed.kubernetes = Seen::Unknown("timed out".to_owned()),
    |observed| observed.leftovers = Seen::Unknown("no permission".to_owned()),
    |observed| observed.quorate = Seen::Unknown("no permission".to_owned()),
    |observed| observed.quorate = Seen::Yes(false),
    |observed| observed.token.pool_scoped = true,
    |observed| {
        if let Some(host) = observed.hosts.get_mut("pve1") {
            host.online = false;
        }
    },
    |observed| {
        for host in observed.hosts.values_mut() {
            host.memory.free = 6 << 30;
        }
    },
    |observed| {
        if let Some(vm) = first_vm(observed) {
            vm.config = Seen::Unknown("timed out".to_owned());
        }
    },
    |observed| {
        if let Some(vm) = first_vm(observed) {
            vm.power = PowerState::Unknown("stale".to_owned());
        }
    },
    |observed| {
        if let Some(vm) = first_vm(observed) {
            vm.template = true;
        }
    },
    |observed| {
        if let Seen::Yes(members) = &mut observed.etcd
            && let Some(member) = members.last_mut()
        {
            member.learner = true;
        }
    },
    |observed| {
        if let Seen::Yes(members) = &mut observed.etcd
            && let Some(member) = members.first_mut()
        {
            member.healthy = false;
        }
    },
    |observed| {
        for seen in observed.images.values_mut() {
            *seen = Seen::Unknown("timed out".to_owned());
        }
    },
];

fn first_vm(observed: &mut Observed) -> Option<&mut mainstay_plan::Vm> {
    match &mut observed.vms {
        Seen::Yes(vms) => vms.values_mut().next(),
        Seen::No | Seen::Unknown(_) => None,
    }
}

/// Everything of a plan that people or the engine see, in words that do not depend on the names of Rust items.
fn dump(plan: &Plan) -> String {
    let mut text = format!("{}\n{}\n", plan.render(), plan.trace());
    for held in &plan.held {
        let kind = if held.is_transient() {
            "transient"
        } else if held.blocks() {
            "needs the operator"
        } else {
            "accepted"
        };
        let _ = writeln!(text, "held {} {} {kind}: {}", held.subject, held.what, held.reason);
    }
    for drift in &plan.drift {
        let _ = writeln!(text, "drift {} {}", drift.subject, drift.what);
    }
    for refusal in &plan.refusals {
        let line = refusal.at.map(|at| at.line);
        let _ = writeln!(text, "refused {} {} {line:?}", refusal.kind.as_str(), refusal.subject);
    }
    for step in &plan.steps {
        let at = step.at.map(|at| at.line);
        let _ = writeln!(text, "step {} {:?} {at:?}", step.id, step.expected);
    }
    let _ = writeln!(text, "unchanged {} {}", plan.unchanged.machines, plan.unchanged.images);
    text
}

/// The plans of the world as it is and as it would be seen through some blurs.
fn look(world: &World, turn: usize, text: &mut String) {
    let _ = writeln!(text, "== {turn}\n{}", dump(&world.plan()));
    for (number, blur) in BLURS.iter().enumerate().skip(turn % 3).step_by(3) {
        let blurred = world.clone().blurred(*blur);
        let _ = writeln!(text, "== {turn} blur {number}\n{}", dump(&blurred.plan()));
    }
}

/// Every plan of one life: after each event, while `up` settles it, and while `down` empties it.
fn life(seed: u64) -> String {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let drawn = (file(), vec(event(), 0..12)).new_tree(&mut runner).expect("draws");
    let (mut file, events) = drawn.current();
    let mut world = empty(&file.yaml());
    let mut text = String::new();
    for (turn, event) in events.iter().enumerate() {
        happen(&mut world, &mut file, event);
        look(&world, turn, &mut text);
    }
    let rounds = |world: &mut World, text: &mut String| {
        for round in 0..20 {
            look(world, round, text);
            let plan = world.plan();
            if plan.steps.is_empty() {
                return;
            }
            world.apply(&plan);
        }
    };
    rounds(&mut world, &mut text);
    let mut world = world.down();
    rounds(&mut world, &mut text);
    text
}

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes())
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a developer asks for the full text of every plan")]
fn the_plans_of_seeded_lives_stay_as_they_are() {
    let folder = std::env::var("PLAN_DUMP").ok();
    let mut lines = String::new();
    for seed in 0..LIVES {
        let text = life(seed);
        if let Some(folder) = &folder {
            std::fs::write(Path::new(folder).join(format!("{seed:03}.txt")), &text).expect("writes");
        }
        let _ = writeln!(lines, "{seed} {}", digest(&text));
    }
    expect_file!["../golden/plans.txt"].assert_eq(&lines);
}
