//! Only the guest modules know distributions. Everywhere else a distribution is a value that the code passes on, so that a fourth
//! one needs no change there.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use crate::exceptions;
use crate::source::{Class, files, shipped};

const BLIND: &[&str] = &["mainstay", "mainstay-engine", "mainstay-plan"];

const DISTRIBUTIONS: &[&str] = &["talos", "rke2", "k3s", "rancher"];

/// Modules whose subject is a distribution: its guests, its secrets, what add-ons need on it, and the commands that print its files or simulate it.
const MAY_NAME_ONE: &[&str] = &[
    "/guest/",
    "/addon/catalogue/",
    "/secrets.rs",
    "/commands/talosconfig.rs",
    "/commands/config.rs",
    "/commands/demo.rs",
    "/commands/sim.rs",
];

/// The command that prints a talosconfig, and the variable that names the file, are called as talosctl calls them. Everything else about
/// that file is in the command's module.
const OWN_NAME: &str = "talosconfig";

/// Files that still name a distribution.
const STILL_NAME_ONE: &[&str] = &["crates/mainstay-engine/src/lib.rs"];

pub fn named(root: &Path) -> Result<Vec<String>> {
    let mut hits = BTreeMap::new();
    for name in BLIND {
        for file in files(root, name)? {
            let lines = named_in(&file.text);
            if !MAY_NAME_ONE.iter().any(|part| file.path.contains(part)) && !lines.is_empty() {
                let line = |(line, text): &(usize, String)| format!("{}:{line}: {text} names a distribution", file.path);
                hits.insert(file.path.clone(), lines.iter().map(line).collect());
            }
        }
    }
    Ok(exceptions::judge(
        "STILL_NAME_ONE in xtask/src/distros.rs",
        STILL_NAME_ONE,
        &hits,
    ))
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
    fn a_distribution_is_found_in_names_and_strings_but_not_in_comments() {
        let text = "/// Talos\nuse talos_config::A;\nlet b = \"an RKE2 server\"; // k3s\nmod talosconfig;\nlet c = \".talos/config\";\n#[cfg(test)]\nmod tests { use rancher_config; }";
        let found: Vec<_> = named_in(text).into_iter().map(|(line, _)| line).collect();
        assert_eq!(found, [2, 3, 5]);
    }
}
