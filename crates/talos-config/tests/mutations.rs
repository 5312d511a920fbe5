//! Files that were cut, mixed and mistyped: read or refused, never a panic.

use crate::support::{raw, read};
use proptest::prelude::*;
use proptest::sample::Index;
use talos_config::versions::Contract;
use talos_config::{Config, Patch, Secrets};

const CONTRACT: Contract = Contract::new(1, 13);
const BASE: &str = "v1.13.9/c-classic/controlplane.yaml";
const TOKENS: [&str; 14] = [
    "\n",
    "  ",
    ": ",
    "- ",
    "---\n",
    "$patch: delete\n",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "&a ",
    "*a",
    "null",
];

/// One edit: where, how much goes, and what comes instead.
type Edit = (Index, usize, Option<Index>);

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    proptest::collection::vec((any::<Index>(), 0..12_usize, any::<Option<Index>>()), 1..6)
}

fn edited(text: &str, edits: &[Edit]) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for (at, length, token) in edits {
        let at = at.index(letters.len() + 1);
        let end = (at + length).min(letters.len());
        let new = token.map(|token| TOKENS[token.index(TOKENS.len())]).unwrap_or_default();
        letters.splice(at..end, new.chars());
    }
    letters.into_iter().collect()
}

/// Every patch of the recording.
fn patches() -> Vec<String> {
    let all = raw("patches.txt");
    let patch = |case: &str| Some(format!("{}\n", case.split_once('\n')?.1.split_once("\n=== ")?.0));
    all.split("### ").skip(1).filter_map(patch).collect()
}

#[test]
fn a_file_without_permissions_is_written_with_a_mode_that_can_be_read() {
    let patch = "machine: {files: [{content: hello, path: /a, op: overwrite}]}\n";
    let patch = Patch::parse("patch.yaml", patch, CONTRACT).unwrap();
    let base = Config::parse(&read(BASE), CONTRACT).unwrap();
    let written = base.patched([&patch], CONTRACT).unwrap().to_yaml();
    assert!(written.contains("permissions: 0o0\n"), "{}", *written);
    Config::parse(&written, CONTRACT).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_mistyped_patch_is_applied_or_refused(which in any::<Index>(), edits in edits()) {
        let all = patches();
        let text = edited(&all[which.index(all.len())], &edits);
        if let Ok(patch) = Patch::parse("patch.yaml", &text, CONTRACT) {
            let base = Config::parse(&read(BASE), CONTRACT).unwrap();
            if let Ok(config) = base.patched([&patch], CONTRACT) {
                Config::parse(&config.to_yaml(), CONTRACT).expect("what was written can be read");
            }
        }
    }

    #[test]
    fn a_mistyped_config_is_read_or_refused(edits in edits()) {
        let text = edited(&read(BASE), &edits);
        if let Ok(config) = Config::parse(&text, CONTRACT) {
            Config::parse(&config.to_yaml(), CONTRACT).expect("what was written can be read");
        }
    }

    #[test]
    fn a_mistyped_set_of_secrets_is_read_or_refused(edits in edits()) {
        let _ = Secrets::from_talosctl_yaml(&edited(&raw("secrets.yaml"), &edits));
    }
}
