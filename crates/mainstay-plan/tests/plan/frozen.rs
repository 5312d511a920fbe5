//! Every plan of two hundred seeded lives, as digests: a change of the planner that is meant to change no plan is proved by them. The first
//! digest of a line covers what the plans decide, the second what they say: a reworded reason changes the second alone.
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

/// What a plan decides, in words that do not depend on the names of Rust items and without any sentence: a text may be reworded.
fn decisions(plan: &Plan) -> String {
    let mut text = String::new();
    for step in &plan.steps {
        let (name, at) = (step.action.name(), step.at.map(|at| at.line));
        let needs: Vec<String> = step.needs.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            text,
            "step {} {} {name} {:?} {} {needs:?} {:?} {at:?}",
            step.id,
            step.subject,
            step.action.detail(),
            step.impact,
            step.expected
        );
    }
    for held in &plan.held {
        let kind = if held.is_transient() {
            "transient"
        } else if held.blocks() {
            "needs the operator"
        } else {
            "accepted"
        };
        let _ = writeln!(text, "held {} {} {kind}", held.subject, held.what);
    }
    for drift in &plan.drift {
        let _ = writeln!(text, "drift {}", drift.subject);
    }
    for refusal in &plan.refusals {
        let line = refusal.at.map(|at| at.line);
        let _ = writeln!(text, "refused {} {} {line:?}", refusal.kind.as_str(), refusal.subject);
    }
    let _ = writeln!(text, "{} notes", plan.notes.len());
    let _ = writeln!(text, "unchanged {} {}", plan.unchanged.machines, plan.unchanged.images);
    text
}

/// What a plan tells people: rows, reasons and notes.
fn texts(plan: &Plan) -> String {
    let held = plan.held.iter().map(|held| &held.reason);
    let drift = plan.drift.iter().map(|drift| &drift.what);
    let lines: Vec<&String> = held.chain(drift).collect();
    format!("{}\n{}\n{lines:?}\n", plan.render(), plan.trace())
}

/// All plans of one life, by what they decide and by what they say.
#[derive(Default)]
struct Dump {
    decisions: String,
    texts: String,
}

impl Dump {
    fn add(&mut self, title: &str, plan: &Plan) {
        let _ = writeln!(self.decisions, "== {title}\n{}", decisions(plan));
        let _ = writeln!(self.texts, "== {title}\n{}", texts(plan));
    }
}

/// The plans of the world as it is and as it would be seen through some blurs.
fn look(world: &World, turn: usize, dump: &mut Dump) {
    dump.add(&turn.to_string(), &world.plan());
    for (number, blur) in BLURS.iter().enumerate().skip(turn % 3).step_by(3) {
        let blurred = world.clone().blurred(*blur);
        dump.add(&format!("{turn} blur {number}"), &blurred.plan());
    }
}

/// Every plan of one life: after each event, while `up` settles it, and while `down` empties it.
fn life(seed: u64) -> Dump {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let drawn = (file(), vec(event(), 0..12)).new_tree(&mut runner).expect("draws");
    let (mut file, events) = drawn.current();
    let mut world = empty(&file.yaml());
    let mut dump = Dump::default();
    for (turn, event) in events.iter().enumerate() {
        happen(&mut world, &mut file, event);
        look(&world, turn, &mut dump);
    }
    let rounds = |world: &mut World, dump: &mut Dump| {
        for round in 0..20 {
            look(world, round, dump);
            let plan = world.plan();
            if plan.steps.is_empty() {
                return;
            }
            world.apply(&plan);
        }
    };
    rounds(&mut world, &mut dump);
    let mut world = world.down();
    rounds(&mut world, &mut dump);
    dump
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
        let Dump { decisions, texts } = life(seed);
        if let Some(folder) = &folder {
            let text = format!("{decisions}\n{texts}");
            std::fs::write(Path::new(folder).join(format!("{seed:03}.txt")), &text).expect("writes");
        }
        let _ = writeln!(lines, "{seed} {} {}", digest(&decisions), digest(&texts));
    }
    expect_file!["../golden/plans.txt"].assert_eq(&lines);
}
