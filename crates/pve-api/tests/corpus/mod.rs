//! No text and no answer of PVE makes the client panic: the fuzz targets' corpora, recorded answers, and random changes of them.
//!
//! The same checks run under cargo-fuzz with `cargo +nightly fuzz run values` (or `answers`) in `fuzz/`.

mod check;

use std::fs;
use std::path::Path;

use serde_json::Value;

const ROUNDS: usize = 60;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Recorded answers in the form that the target reads.
fn recorded() -> Vec<Vec<u8>> {
    let lines = include_str!("../data/refusals.jsonl")
        .lines()
        .chain(include_str!("../data/answers.jsonl").lines());
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), Into::into);
    let seed = |line: &str| {
        let row: Value = serde_json::from_str(line).unwrap();
        let status = row["status"].as_u64().map_or(200, |status| status as u16);
        let mut bytes = status.to_be_bytes().to_vec();
        bytes.extend(format!("{}\n{}", text(&row["reason"]), text(&row["body"])).bytes());
        bytes
    };
    lines.map(seed).collect()
}

/// Splitmix64: the same changes on every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n.max(1) as u64).unwrap_or(0)
    }
}

const TOKENS: [&str; 20] = [
    ",", "=", ":", ";", "/", "%", "\"", "{", "}", "[", "]", "null", "true", "1e999", "-1", "base64=1", "file=", "ü", "\u{0}",
    "\u{202e}",
];

fn mutate(bytes: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    let (at, length) = (dice.below(bytes.len() + 1), dice.below(12));
    let end = (at + length).min(bytes.len());
    match dice.below(6) {
        0 => drop(bytes.drain(at..end)),
        1 => bytes.insert(at, dice.below(256) as u8),
        2 => drop(bytes.splice(at..at, TOKENS[dice.below(TOKENS.len())].bytes())),
        3 => {
            let from = dice.below(other.len());
            let to = (from + dice.below(40)).min(other.len());
            drop(bytes.splice(at..end, other[from..to].iter().copied()));
        }
        4 => bytes.truncate(at),
        _ => drop(bytes.splice(at..end, dice.below(usize::MAX).to_string().into_bytes())),
    }
}

fn shake(seeds: &[Vec<u8>], rounds: usize, check: fn(&[u8])) {
    let mut dice = Dice(0x5eed);
    for (index, seed) in seeds.iter().enumerate() {
        check(seed);
        let mut bytes = seed.clone();
        for round in 0..rounds {
            mutate(&mut bytes, &seeds[(index * 31 + round * 7) % seeds.len()], &mut dice);
            check(&bytes);
            if round % 6 == 5 {
                bytes.clone_from(seed);
            }
        }
    }
}

#[test]
fn any_text_is_read_or_refused_and_what_was_read_says_the_same_again() {
    let seeds = corpus("values");
    assert!(seeds.len() > 40, "{}", seeds.len());
    shake(&seeds, ROUNDS * 10, check::values);
}

#[test]
fn any_answer_is_understood_or_an_error_that_can_be_told() {
    let mut seeds = corpus("answers");
    seeds.extend(recorded());
    assert!(seeds.len() > 300, "{}", seeds.len());
    shake(&seeds, ROUNDS / 6, check::answers);
}
