//! The modules of a crate call downwards: no two of them need each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Result;

/// Crates whose modules form layers.
const LAYERED: &[&str] = &["mainstay-plan"];

/// One line for each crate that has a cycle between its top-level modules.
pub fn cycles(root: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for name in LAYERED {
        let mut uses = BTreeMap::new();
        collect(&root.join("crates").join(name).join("src"), None, &mut uses)?;
        if let Some(cycle) = cycle(&uses) {
            broken.push(format!("modules of {name} need each other: {}", cycle.join(" -> ")));
        }
    }
    Ok(broken)
}

/// Reads which top-level module uses which others. A file in a folder belongs to the module of that folder.
fn collect(folder: &Path, module: Option<&str>, uses: &mut BTreeMap<String, BTreeSet<String>>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let own = module.unwrap_or(&stem);
        if path.is_dir() {
            collect(&path, Some(own), uses)?;
        } else if own != "lib" && path.extension().is_some_and(|ending| ending == "rs") {
            let used = used_modules(&fs::read_to_string(&path)?);
            uses.entry(own.to_owned())
                .or_default()
                .extend(used.into_iter().filter(|other| other != own));
        }
    }
    Ok(())
}

/// Modules that a file names as `crate::module`, its tests apart.
fn used_modules(text: &str) -> BTreeSet<String> {
    let shipped = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = shipped.lines().filter(|line| !line.trim_start().starts_with("//"));
    let names = lines.flat_map(|line| line.split("crate::").skip(1));
    names
        .map(|rest| {
            rest.split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
                .unwrap_or_default()
                .to_owned()
        })
        .collect()
}

/// A path from a module back to itself.
fn cycle(uses: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    uses.keys().find_map(|start| {
        let mut seen = BTreeSet::new();
        let mut paths = vec![vec![start.clone()]];
        while let Some(path) = paths.pop() {
            for next in path.last().and_then(|last| uses.get(last)).into_iter().flatten() {
                let mut longer = path.clone();
                longer.push(next.clone());
                if next == start {
                    return Some(longer);
                }
                if seen.insert(next.clone()) {
                    paths.push(longer);
                }
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &str)]) -> BTreeMap<String, BTreeSet<String>> {
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in edges {
            uses.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        uses
    }

    #[test]
    fn a_cycle_is_told_with_its_path() {
        let uses = graph(&[("a", "b"), ("b", "c"), ("c", "b"), ("a", "d")]);
        assert_eq!(cycle(&uses).unwrap(), ["b", "c", "b"]);
        assert_eq!(cycle(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])), None);
    }

    #[test]
    fn comments_and_tests_use_nothing() {
        let text = "use crate::plan::{Plan};\n// crate::x\nfn f() { crate::digest::matches() }\n#[cfg(test)]\nmod tests { use crate::y; }";
        assert_eq!(used_modules(text), ["digest", "plan"].map(str::to_owned).into());
    }
}
