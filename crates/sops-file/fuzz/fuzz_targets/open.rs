//! Any bytes as a secrets file: opened only when they are what was sealed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sops_file::{CreationRules, Identity, decrypt, is_encrypted, recipients};

fuzz_target!(|bytes: &[u8]| {
    let identities = Identity::parse_file(include_str!("../../tests/data/key.txt")).expect("a key");
    let good = include_str!("../../tests/data/by-sops-3.13.3.yaml");
    let _ = (is_encrypted(bytes), recipients(bytes));
    if let Ok(opened) = decrypt(bytes, &identities) {
        let sealed = decrypt(good.as_bytes(), &identities).expect("opens");
        assert_eq!(values(opened.text()), values(sealed.text()), "something else was believed");
    }
    let _ = CreationRules::parse(&String::from_utf8_lossy(bytes));
});

/// The values of a document in their order. The MAC of sops covers these: neither comments, nor the names of keys, nor what is empty.
fn values(text: &str) -> Vec<&str> {
    let lines = text.lines().map(|line| line.split(" #").next().unwrap_or_default());
    let lines = lines.filter(|line| !line.trim_start().starts_with('#'));
    let value = |line: &'_ str| -> Option<usize> { line.find(": ").map(|at| at + 2).or_else(|| line.find("- ").map(|at| at + 2)) };
    lines
        .filter_map(|line| Some(line[value(line)?..].trim()))
        .filter(|value| !["", "null", "\"\""].contains(value))
        .collect()
}
