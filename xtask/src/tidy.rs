//! The rules of the house that no compiler checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Crates without tokio, I/O, clock or randomness of their own.
const PURE: &[&str] = &[
    "mainstay-spec",
    "mainstay-plan",
    "talos-config",
    "rancher-config",
    "sops-file",
];

/// The simulators must not share a misreading with the code that they judge.
const SIMULATORS: &[&str] = &["pve-sim", "mainstay-sim"];
const JUDGED: &[&str] = &[
    "mainstay-plan",
    "mainstay-engine",
    "pve-api",
    "talos-api",
    "talos-config",
    "rancher-config",
    "mainstay-kube",
    "mainstay-spec",
];

/// Crates that could serve others: of ours they know the seam only.
const MECHANISMS: &[&str] = &[
    "pve-api",
    "talos-api",
    "talos-proto",
    "talos-config",
    "rancher-config",
    "helm-charts",
    "sops-file",
    "pve-sim",
    "mainstay-kube",
];
const SEAM: &str = "mainstay-net";

/// The only crate that prints, prompts, reads the environment or exits.
const BINARY: &str = "mainstay";

pub fn run() -> Result<()> {
    let output = crate::cargo()
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()
        .context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    let graph = Graph::from_metadata(&serde_json::from_slice(&output.stdout)?)?;
    let mut broken = graph.broken_rules();
    broken.extend(broken_manifests(&crate::root())?);
    broken.extend(unlisted_tests(&crate::root())?);
    broken.extend(broken_texts(&crate::root())?);
    broken.extend(crate::modules::cycles(&crate::root())?);
    broken.extend(crate::names::repeated(&crate::root())?);
    broken.extend(crate::distros::named(&crate::root())?);
    broken.extend(crate::size::too_long(&crate::root())?);
    for rule in &broken {
        eprintln!("tidy: {rule}");
    }
    if !broken.is_empty() {
        bail!("{} broken rule(s)", broken.len());
    }
    println!("tidy: {} crates, all rules hold", graph.ours.len());
    Ok(())
}

/// Who depends on whom, in what is shipped (development dependencies apart).
struct Graph {
    ours: BTreeSet<String>,
    /// By package id: name and ids of the normal and build dependencies.
    packages: BTreeMap<String, (String, Vec<String>)>,
}

impl Graph {
    fn from_metadata(metadata: &Value) -> Result<Self> {
        let members: BTreeSet<&str> = strings(&metadata["workspace_members"]).collect();
        let mut names = BTreeMap::new();
        for package in list(&metadata["packages"]) {
            names.insert(text(&package["id"])?, text(&package["name"])?);
        }
        let mut packages = BTreeMap::new();
        for node in list(&metadata["resolve"]["nodes"]) {
            let id = text(&node["id"])?;
            let shipped = list(&node["deps"])
                .filter(|dep| list(&dep["dep_kinds"]).any(|kind| kind["kind"].is_null()))
                .map(|dep| text(&dep["pkg"]).map(str::to_owned))
                .collect::<Result<_>>()?;
            packages.insert(id.to_owned(), (names[id].to_owned(), shipped));
        }
        let ours = members.iter().map(|id| names[id].to_owned()).collect();
        Ok(Self { ours, packages })
    }

    fn broken_rules(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for name in PURE.iter().filter(|name| self.ours.contains(**name)) {
            if let Some(chain) = self.chain(name, &["tokio"]) {
                broken.push(format!("{name} is pure and must not reach tokio: {chain}"));
            }
        }
        for name in SIMULATORS.iter().filter(|name| self.ours.contains(**name)) {
            if let Some(chain) = self.chain(name, JUDGED) {
                broken.push(format!("{name} judges and must know neither client nor planner: {chain}"));
            }
        }
        for name in MECHANISMS.iter().filter(|name| self.ours.contains(**name)) {
            let known: Vec<&str> = self
                .direct(name)
                .filter(|dep| dep.starts_with("mainstay") && *dep != SEAM)
                .collect();
            if !known.is_empty() {
                broken.push(format!(
                    "{name} could serve others and may know {SEAM} only, not {}",
                    known.join(", ")
                ));
            }
        }
        broken
    }

    fn direct<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let found = self.packages.values().find(move |(own, _)| own == name);
        found
            .into_iter()
            .flat_map(|(_, deps)| deps)
            .map(|id| self.packages[id].0.as_str())
    }

    /// The path from `name` to one of `forbidden`, written `a -> b -> c`.
    fn chain(&self, name: &str, forbidden: &[&str]) -> Option<String> {
        let start = self.packages.iter().find(|(_, (own, _))| own == name)?.0;
        let mut seen = BTreeSet::from([start.as_str()]);
        let mut paths = vec![vec![start.as_str()]];
        while let Some(path) = paths.pop() {
            let last = *path.last().expect("paths are never empty");
            for dep in &self.packages[last].1 {
                let mut longer = path.clone();
                longer.push(dep);
                if forbidden.contains(&self.packages[dep].0.as_str()) {
                    let names: Vec<&str> = longer.iter().map(|id| self.packages[*id].0.as_str()).collect();
                    return Some(names.join(" -> "));
                }
                if seen.insert(dep) {
                    paths.push(longer);
                }
            }
        }
        None
    }
}

/// Every crate takes the workspace's lints; only then is "only the binary prints" more than a wish.
fn broken_manifests(root: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for entry in fs::read_dir(root.join("crates"))? {
        let manifest = entry?.path().join("Cargo.toml");
        let Ok(text) = fs::read_to_string(&manifest) else { continue };
        if !text.contains("[lints]\nworkspace = true") {
            broken.push(format!("{} does not take the workspace's lints", shown(root, &manifest)));
        }
    }
    Ok(broken)
}

/// A crate has one integration-test binary, because each further one is linked with everything below it. Cargo does not look for
/// test files there, so a file that `tests/main.rs` does not name would never run.
fn unlisted_tests(root: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for entry in fs::read_dir(root.join("crates"))? {
        let tests = entry?.path().join("tests");
        let Ok(listed) = fs::read_to_string(tests.join("main.rs")) else {
            continue;
        };
        for file in fs::read_dir(&tests)? {
            let file = file?.path();
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let is_module = file.extension().is_some_and(|ending| ending == "rs") || file.join("mod.rs").exists();
            if is_module && name != "main" && !listed.contains(&format!("mod {name};")) {
                broken.push(format!(
                    "{} is not named in tests/main.rs, so it never runs",
                    shown(root, &file)
                ));
            }
        }
    }
    Ok(broken)
}

/// What no text of the repository may hold, and tests that only its pages know.
fn broken_texts(root: &Path) -> Result<Vec<String>> {
    let listed = git(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("git ls-files")?;
    let mut broken = Vec::new();
    let (mut told, mut pages) = (BTreeSet::new(), Vec::new());
    for name in String::from_utf8(listed.stdout)?.split('\0').filter(|name| !name.is_empty()) {
        let Ok(text) = fs::read_to_string(root.join(name)) else {
            continue;
        };
        broken.extend(faults_of_text(name, &text));
        broken.extend(crate::words::vague(name, &text));
        broken.extend(silenced_lints(name, &text));
        if name.ends_with(".rs") {
            told.extend(functions(&text));
        } else if TESTS_ARE_NAMED_IN.contains(&name) {
            pages.push((name.to_owned(), text));
        }
    }
    for (name, text) in &pages {
        broken.extend(unknown_tests(name, text, &told));
    }
    Ok(broken)
}

/// Pages that promise something and name the test that shows it.
const TESTS_ARE_NAMED_IN: [&str; 3] = [
    "docs/reference/formats.md",
    "docs/reference/guarantees.md",
    "docs/reference/failures.md",
];

fn functions(text: &str) -> impl Iterator<Item = String> {
    let name = |rest: &str| rest.split(['(', '<']).next().unwrap_or_default().to_owned();
    text.split("fn ").skip(1).map(name)
}

/// A sentence in code quotes is a test's name.
fn unknown_tests(page: &str, text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let words = text.split('`').skip(1).step_by(2);
    let sentences = words.filter(|word| word.matches('_').count() >= 2 && !word.contains([' ', '/', '.', '-', '{']));
    let lost = sentences.filter(|name| !known.contains(*name));
    lost.map(|name| format!("{page} names the test `{name}`, which is not there"))
        .collect()
}

#[expect(
    clippy::disallowed_methods,
    reason = "the workshop asks git which files there are; the product runs nothing"
)]
fn git(root: &Path) -> std::process::Command {
    let mut command = std::process::Command::new("git");
    command.current_dir(root);
    command
}

/// `expect` instead of `allow`: an expectation that is not met any more is a warning, an allowance stays for ever.
fn silenced_lints(name: &str, text: &str) -> Vec<String> {
    // Written in two halves so that this file does not accuse itself.
    let attributes = [concat!("#[al", "low("), concat!("#![al", "low(")];
    let silences = |line: &str| name.ends_with(".rs") && attributes.iter().any(|attribute| line.contains(attribute));
    let lines = text.lines().enumerate().filter(|(_, line)| silences(line));
    let fault = "a lint is silenced for ever; write #[expect(.., reason = \"..\")]";
    lines.map(|(at, _)| format!("{name}:{}: {fault}", at + 1)).collect()
}

fn faults_of_text(name: &str, text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    let crate_name = name.strip_prefix("crates/").and_then(|rest| rest.split('/').next());
    let shipped = crate_name.is_some() && name.contains("/src/");
    for (number, line) in text.lines().enumerate() {
        let mut fault = |what: &str| broken.push(format!("{name}:{}: {what}", number + 1));
        // Written in two halves so that this file does not accuse itself.
        if begins_path(line, concat!("/wo", "rk/")) || begins_path(line, concat!("/ho", "me/")) && !name.ends_with(".md") {
            fault("a path of a developer's machine");
        }
        let silences_printing = line.contains("clippy::print_std") || line.contains("clippy::exit");
        if shipped && crate_name != Some(BINARY) && silences_printing {
            fault("only the binary prints or exits");
        }
    }
    broken
}

/// Whether a path begins with `prefix` somewhere in the line, rather than going through a folder of that name.
fn begins_path(line: &str, prefix: &str) -> bool {
    let before = |at: usize| line[..at].chars().next_back();
    line.match_indices(prefix)
        .any(|(at, _)| before(at).is_none_or(|letter| letter.is_whitespace() || "\"'`(=:".contains(letter)))
}

fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn strings(value: &Value) -> impl Iterator<Item = &str> {
    list(value).filter_map(Value::as_str)
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().context("cargo metadata: a string is missing")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace of the named crates with these dependencies; every name that is no crate of ours is a stranger's.
    fn graph(edges: &[(&str, &[&str])]) -> Graph {
        let ours = edges.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut packages: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
        for (name, deps) in edges {
            packages.insert(
                (*name).into(),
                ((*name).into(), deps.iter().map(|dep| (*dep).into()).collect()),
            );
            for dep in *deps {
                packages.entry((*dep).into()).or_insert_with(|| ((*dep).into(), Vec::new()));
            }
        }
        Graph { ours, packages }
    }

    #[test]
    fn a_pure_crate_that_reaches_tokio_is_refused_with_the_way_it_got_there() {
        let broken = graph(&[
            ("mainstay-plan", &["mainstay-spec"]),
            ("mainstay-spec", &["reqwest"]),
            ("reqwest", &["tokio"]),
        ])
        .broken_rules();
        assert_eq!(
            broken,
            [
                "mainstay-spec is pure and must not reach tokio: mainstay-spec -> reqwest -> tokio",
                "mainstay-plan is pure and must not reach tokio: mainstay-plan -> mainstay-spec -> reqwest -> tokio",
            ]
        );
    }

    #[test]
    fn a_simulator_that_knows_the_client_is_refused() {
        let broken = graph(&[
            ("mainstay-sim", &["pve-sim"]),
            ("pve-sim", &["pve-api"]),
            ("pve-api", &["mainstay-net"]),
        ])
        .broken_rules();
        assert_eq!(broken.len(), 2, "{broken:?}");
        assert!(broken[0].contains("pve-sim -> pve-api"), "{broken:?}");
    }

    #[test]
    fn a_mechanism_that_knows_the_cluster_is_refused() {
        let broken = graph(&[("pve-api", &["mainstay-net", "mainstay-spec"])]).broken_rules();
        assert_eq!(
            broken,
            ["pve-api could serve others and may know mainstay-net only, not mainstay-spec"]
        );
    }

    #[test]
    fn development_dependencies_are_free() {
        let metadata = serde_json::json!({
            "workspace_members": ["a"],
            "packages": [{"id": "a", "name": "mainstay-plan"}, {"id": "t", "name": "tokio"}],
            "resolve": {"nodes": [
                {"id": "a", "deps": [{"pkg": "t", "dep_kinds": [{"kind": "dev"}]}]},
                {"id": "t", "deps": []},
            ]},
        });
        assert!(
            Graph::from_metadata(&metadata)
                .expect("well-formed")
                .broken_rules()
                .is_empty()
        );
    }

    #[test]
    fn a_page_that_names_a_test_which_is_gone_is_refused() {
        let known: BTreeSet<String> = functions("fn a_machine_is_kept() {}\nasync fn b_c_d<T>(").collect();
        let page = "| kept | `hardship`: `a_machine_is_kept`, `a_machine_is_lost` |";
        let broken = unknown_tests("guarantees.md", page, &known);
        assert_eq!(
            broken,
            ["guarantees.md names the test `a_machine_is_lost`, which is not there"]
        );
    }

    #[test]
    fn a_silenced_lint_a_machine_path_and_a_print_outside_the_binary_are_refused() {
        let silenced = silenced_lints("crates/pve-api/src/lib.rs", concat!("#[al", "low(dead_code)]"));
        let inner = silenced_lints(
            "crates/pve-api/src/lib.rs",
            concat!("#![al", "low(dead_code, reason = \"x\")]"),
        );
        let path = faults_of_text("README.md", concat!("see /wo", "rk/main"));
        let below = faults_of_text("golden.txt", concat!("wrote <DIR>/ho", "me/.kube/config"));
        assert!(below.is_empty(), "{below:?}");
        let print = faults_of_text(
            "crates/pve-api/src/lib.rs",
            "#[expect(clippy::print_stdout, reason = \"I want to\")]",
        );
        let binary = faults_of_text(
            "crates/mainstay/src/view.rs",
            "#[expect(clippy::print_stdout, reason = \"the one printer\")]",
        );
        assert_eq!(
            [silenced.len(), inner.len(), path.len(), print.len(), binary.len()],
            [1, 1, 1, 1, 0]
        );
    }
}
