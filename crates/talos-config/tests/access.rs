//! Talosconfigs and kubeconfigs of users: any text is read or refused, and what is read can be merged, printed and read again.
//!
//! The same check runs under cargo-fuzz with `cargo +nightly fuzz run access` in `fuzz/`.

use talos_config::{Kubeconfig, Talosconfig};

const ROUNDS: usize = 600;
const SECRET: &str = "S3cr3tV4lue";

const KUBECONFIG: &str = "apiVersion: v1\nkind: Config\nclusters:\n- name: a\n  cluster: {server: https://10.0.0.1:6443, certificate-authority-data: QQ==}\nusers:\n- name: admin@a\n  user:\n    client-certificate-data: QQ==\n    client-key-data: S3cr3tV4lue\ncontexts:\n- name: admin@a\n  context: {cluster: a, user: admin@a, namespace: default}\ncurrent-context: admin@a\npreferences: {}\n";
const TALOSCONFIG: &str = "context: a\ncontexts:\n    a:\n        endpoints:\n            - 10.0.0.11\n        ca: QQ==\n        crt: QQ==\n        key: S3cr3tV4lue\n    b: {}\n";

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

    /// What a hand or a broken disk does to a file.
    fn mutate(&mut self, text: &mut Vec<u8>) {
        const TOKENS: [&str; 14] = [
            "\n", "\t", "  ", ": ", "- ", "{", "}", "[", "]", "\"", "|\n  ", "&a ", "*a", "null",
        ];
        let at = self.below(text.len() + 1);
        let end = (at + self.below(20)).min(text.len());
        match self.below(4) {
            0 => drop(text.drain(at..end)),
            1 => drop(text.splice(at..at, TOKENS[self.below(TOKENS.len())].bytes())),
            2 => text.truncate(at),
            _ => {
                let copy = text[at..end].to_vec();
                let to = self.below(text.len() + 1);
                drop(text.splice(to..to, copy));
            }
        }
    }
}

/// A user's file, with ours merged into it.
fn check_kubeconfig(text: &str) {
    match Kubeconfig::parse(text) {
        Ok(mut theirs) => {
            let own = Kubeconfig::parse(KUBECONFIG).expect("our own");
            theirs.merge(&own);
            assert_eq!(theirs.current_context(), Some("admin@a"), "{text}");
            let printed = theirs.to_yaml();
            let again = Kubeconfig::parse(&printed).unwrap_or_else(|error| panic!("{error}: {}", *printed));
            assert_eq!(*again.to_yaml(), *printed, "printing is stable");
            assert!(again.users().any(|user| user == "admin@a"));
        }
        Err(error) => assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}"),
    }
}

fn check_talosconfig(text: &str) {
    match Talosconfig::parse(text) {
        Ok(mut theirs) => {
            let own = Talosconfig::parse(TALOSCONFIG).expect("our own");
            theirs.merge(&own);
            assert_eq!(theirs.current_context(), Some("a"), "{text}");
            let printed = theirs.to_yaml();
            let again = Talosconfig::parse(&printed).unwrap_or_else(|error| panic!("{error}: {}", *printed));
            assert_eq!(*again.to_yaml(), *printed, "printing is stable");
            assert!(again.contexts().any(|context| context == "a"));
        }
        Err(error) => assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}"),
    }
}

fn changes(seed: &str, check: impl Fn(&str)) {
    let mut dice = Dice(0x5eed);
    let mut bytes = seed.as_bytes().to_vec();
    check(seed);
    for round in 0..ROUNDS {
        dice.mutate(&mut bytes);
        check(&String::from_utf8_lossy(&bytes));
        if round % 6 == 5 {
            bytes = seed.as_bytes().to_vec();
        }
    }
}

#[test]
fn a_kubeconfig_in_any_state_is_refused_or_merged_into() {
    changes(KUBECONFIG, check_kubeconfig);
}

#[test]
fn a_talosconfig_in_any_state_is_refused_or_merged_into() {
    changes(TALOSCONFIG, check_talosconfig);
}
