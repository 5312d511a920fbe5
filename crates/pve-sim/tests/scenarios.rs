//! The recordings of the real PVE decide.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flate2::read::GzDecoder;
use pve_sim::conformance::{Folder, play_all};
use serde_json::Value;

/// Steps that differ, each with its reason in docs/reference/simulator.md.
const KNOWN: &[(&str, u64)] = &[("reads-cluster", 30)];

fn recorded() -> Folder {
    let mut text = String::new();
    GzDecoder::new(&include_bytes!("data/pve-scenarios.json.gz")[..])
        .read_to_string(&mut text)
        .expect("the fixture is gzip");
    let fixture: Value = serde_json::from_str(&text).expect("the fixture is JSON");
    let decode = |(name, data): (&String, &Value)| {
        let bytes = STANDARD.decode(data.as_str().unwrap_or_default()).expect("files are base64");
        (name.clone(), Bytes::from(bytes))
    };
    let files: BTreeMap<String, Bytes> = fixture["files"].as_object().into_iter().flatten().map(decode).collect();
    let scenarios = fixture["scenarios"].as_array().cloned().unwrap_or_default();
    Folder {
        world: fixture["world"].clone(),
        scenarios,
        files: Arc::new(files),
    }
}

#[test]
fn every_stable_step_is_answered_like_the_real_code() {
    let outcomes = play_all(&recorded());
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
