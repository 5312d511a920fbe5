//! No input makes the reader panic, hang or show a secret: the fuzz target's corpus, and random changes of it.
//!
//! The same check runs under cargo-fuzz with `cargo +nightly fuzz run load` in `fuzz/`.

use std::fs;
use std::path::Path;

use mainstay_spec::report::{self, Paint};
use mainstay_spec::{Environment, load_bytes};

const MUTATIONS_PER_SEED: usize = 40;
const SECRET: &str = "S3cr3tV4lue";

fn check(bytes: &[u8]) {
    let files = |name: &str| Some(name.as_bytes().to_vec());
    match load_bytes(bytes, "cluster.yaml", &Environment::default(), &files) {
        Ok(checked) => {
            let again = checked.spec.to_yaml();
            load_bytes(again.as_bytes(), "again.yaml", &Environment::default(), &files).expect("a printed spec can be read");
        }
        Err(faults) => {
            assert!(faults.errors() > 0, "refused without a reason");
            assert!(!report::terminal(&faults.source, &faults.faults, Paint::Plain).is_empty());
            assert_eq!(report::json(&faults.source, &faults.faults).len(), faults.faults.len());
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seeds = Vec::new();
    for directory in ["fuzz/corpus/load", "tests/invalid", "../../examples"] {
        let mut paths: Vec<_> = fs::read_dir(here.join(directory))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        let yaml = paths
            .iter()
            .filter(|path| path.is_file() && !path.extension().is_some_and(|ext| ext == "txt" || ext == "json"));
        seeds.extend(yaml.map(|path| fs::read(path).unwrap()));
    }
    assert!(seeds.len() > 100, "{}", seeds.len());
    seeds
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

/// What a hand or a broken disk does to a file.
fn mutate(bytes: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    let mut below = |n: usize| dice.below(n);
    let (at, length) = (below(bytes.len() + 1), below(12));
    let end = (at + length).min(bytes.len());
    match below(7) {
        0 => drop(bytes.drain(at..end)),
        1 => bytes.insert(at, below(256) as u8),
        2 => drop(bytes.splice(at..at, TOKENS[below(TOKENS.len())].bytes())),
        3 => {
            let from = below(other.len());
            let to = (from + below(40)).min(other.len());
            drop(bytes.splice(at..end, other[from..to].iter().copied()));
        }
        4 => bytes.truncate(at),
        5 => {
            let copy = bytes[at..end].to_vec();
            drop(bytes.splice(at..at, copy));
        }
        _ => drop(bytes.splice(at..end, below(usize::MAX).to_string().into_bytes())),
    }
}

const TOKENS: [&str; 24] = [
    "\n",
    "\t",
    "  ",
    ": ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "'",
    "|\n  ",
    "&a ",
    "*a",
    "<<: *a\n",
    "!t ",
    "---\n",
    "# ",
    "? ",
    "\u{feff}",
    "ü",
    "\u{202e}",
    "\u{1b}[31m",
    "count: 4294967295\n",
];

#[test]
fn the_corpus_is_read_or_refused_without_a_panic() {
    for seed in seeds() {
        check(&seed);
    }
}

#[test]
fn random_changes_of_the_corpus_are_too() {
    let seeds = seeds();
    let mut dice = Dice(0x5eed);
    for (index, seed) in seeds.iter().enumerate() {
        let mut bytes = seed.clone();
        for round in 0..MUTATIONS_PER_SEED {
            let other = &seeds[(index * 31 + round * 7) % seeds.len()];
            mutate(&mut bytes, other, &mut dice);
            check(&bytes);
            if round % 8 == 7 {
                bytes.clone_from(seed);
            }
        }
    }
}

#[test]
fn a_secret_stays_hidden_wherever_it_stands() {
    for key in ["token", "password", "api_key", "auth", "TS_AUTHKEY", "clientSecret"] {
        for text in [
            format!("datacenter:\n  {key}: {SECRET}\n  endpoint: [\n"),
            format!("datacenter: {{ {key}: {SECRET}, endpoint: 3 }}\n"),
            format!("datacenter: {{ {key}: [{SECRET}, x], endpoint: 3 }}\n"),
            format!("datacenter:\n  {key}: |\n    {SECRET}\n  endpiont: x\n"),
            format!("datacenter:\n  {key}:\n    - {SECRET}\n  endpiont: x\n"),
            format!("datacenter:\n  {key}: \"{SECRET}\n  endpoint: x\n"),
            format!("datacenter:\n  {key}: '{SECRET}' \tx\n"),
            format!("{key}: {SECRET}: x\n"),
            format!("\"{key}\" : {SECRET}\n"),
            format!("endpoint: https://u:{SECRET}@h\n"),
        ] {
            let Err(faults) = load_bytes(text.as_bytes(), "cluster.yaml", &Environment::default(), &|_| None) else {
                panic!("{text}")
            };
            let json = report::json(&faults.source, &faults.faults)
                .iter()
                .map(ToString::to_string)
                .collect::<String>();
            let shown = report::terminal(&faults.source, &faults.faults, Paint::Plain) + &json + &format!("{faults:?}");
            assert!(!shown.contains(SECRET), "{text}\n{shown}");
        }
    }
}

#[test]
fn bombs_are_refused_quickly() {
    let deep = "[".repeat(100_000);
    let maps = (0..300).map(|depth| " ".repeat(depth) + "a:\n").collect::<String>();
    let aliases = "a: &a [x]\n".to_owned() + &(0..2000).map(|n| format!("b{n}: [*a, *a]\n")).collect::<String>();
    let pools = (0..3000)
        .map(|n| format!("  p{n}: {{ count: 5000, addresses: 10.0.0.1+ }}\n"))
        .collect::<String>();
    for text in [deep, maps, aliases, format!("name: x\npools:\n{pools}")] {
        check(text.as_bytes());
    }
}
