//! Only the guest modules know distributions. Everywhere else a distribution is a value that the code passes on, so that a fourth
//! one needs no change there.

use std::path::Path;

use anyhow::Result;

use crate::source::{Class, files, shipped};

const BLIND: &[&str] = &["mainstay", "mainstay-engine", "mainstay-plan"];

const DISTRIBUTIONS: &[&str] = &["talos", "rke2", "k3s", "rancher"];

/// Files and folders whose subject is a distribution: its guests, its secrets, what add-ons need on it, and the commands that print its
/// files or simulate it.
const MAY_NAME_ONE: &[&str] = &[
    "crates/mainstay-plan/src/guest/",
    "crates/mainstay-plan/src/secrets.rs",
    "crates/mainstay-plan/src/addon/catalogue/",
    "crates/mainstay-engine/src/guest/",
    "crates/mainstay/src/commands/talosconfig.rs",
    "crates/mainstay/src/commands/sshconfig.rs",
    "crates/mainstay/src/commands/config.rs",
    "crates/mainstay/src/commands/demo.rs",
    "crates/mainstay/src/commands/demo/",
    "crates/mainstay/src/commands/sim.rs",
];

/// The command that prints a talosconfig, and the variable that names the file, are called as talosctl calls them. Everything else about
/// that file is in the command's module.
const OWN_NAME: &str = "talosconfig";

pub fn named(root: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for name in BLIND {
        let blind = files(root, name)?.into_iter().filter(|file| !may_name_one(&file.path));
        for file in blind {
            let line = |(line, text): &(usize, String)| format!("{}:{line}: {text} names a distribution", file.path);
            broken.extend(named_in(&file.text).iter().map(line));
        }
    }
    Ok(broken)
}

fn may_name_one(path: &str) -> bool {
    let is = |allowed: &&str| path == *allowed || allowed.ends_with('/') && path.starts_with(allowed);
    MAY_NAME_ONE.iter().any(is)
}

/// Names and string literals with a distribution in them. Comments explain, and doc comments of arguments are help texts: both may
/// name one.
fn named_in(text: &str) -> Vec<(usize, String)> {
    let tokens = shipped(text);
    let read = tokens.iter().filter(|token| matches!(token.class, Class::Name | Class::Text));
    let named = read.filter(|token| {
        let lower = token.text.to_lowercase().replace(OWN_NAME, "");
        DISTRIBUTIONS.iter().any(|name| lower.contains(name))
    });
    named.map(|token| (token.line, token.text.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_same_name_elsewhere_may_not_name_one() {
        assert!(may_name_one("crates/mainstay-plan/src/secrets.rs"));
        assert!(may_name_one("crates/mainstay-engine/src/guest/talos.rs"));
        for path in [
            "crates/mainstay/src/commands/up/secrets.rs",
            "crates/mainstay-engine/src/secrets.rs",
            "crates/mainstay-plan/src/guests.rs",
        ] {
            assert!(!may_name_one(path), "{path}");
        }
    }

    #[test]
    fn a_distribution_is_found_in_names_and_strings_but_not_in_comments() {
        let text = "/// Talos\nuse talos_config::A;\nlet b = \"an RKE2 server\"; // k3s\nmod talosconfig;\nlet c = \".talos/config\";\n#[cfg(test)]\nmod tests { use rancher_config; }";
        let found: Vec<_> = named_in(text).into_iter().map(|(line, _)| line).collect();
        assert_eq!(found, [2, 3, 5]);
    }
}
