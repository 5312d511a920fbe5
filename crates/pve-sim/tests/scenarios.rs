//! The recordings of the real PVE decide.

use std::collections::BTreeSet;

use crate::recorded::scenarios;
use pve_sim::conformance::play_all;

/// Steps that differ, each with its reason in docs/reference/simulator.md.
const KNOWN: &[(&str, u64)] = &[("reads-cluster", 30)];

#[test]
fn every_stable_step_is_answered_like_the_real_code() {
    let outcomes = play_all(&scenarios());
    let stable: usize = outcomes.iter().map(|o| o.stable).sum();
    assert!(stable > 1000, "the fixture holds {stable} stable steps");
    let known: BTreeSet<(String, u64)> = KNOWN.iter().map(|(name, step)| ((*name).to_string(), *step)).collect();
    let mut differing = BTreeSet::new();
    for outcome in &outcomes {
        for step in &outcome.different {
            let at = (outcome.name.clone(), step.step);
            if !known.contains(&at) {
                println!(
                    "{} step {} {}\n   {}",
                    outcome.name,
                    step.step,
                    step.call,
                    step.why.join("\n   ")
                );
            }
            differing.insert(at);
        }
    }
    assert_eq!(differing, known);
}

#[test]
fn every_known_difference_is_explained() {
    let text = include_str!("../../../docs/reference/simulator.md");
    for (name, step) in KNOWN {
        assert!(
            text.contains(&format!("`{name}` {step}")),
            "{name} step {step} stands nowhere in the reference"
        );
    }
}
