//! The modules of a crate call downwards: no two of them need each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use crate::source::{Class, Token, files, shipped};

/// Crates whose modules form layers.
const LAYERED: &[&str] = &["mainstay", "mainstay-engine", "mainstay-plan"];

/// Uses that still point upwards, as `crate: module -> module`.
const STILL_UPWARDS: &[&str] = &[];

/// Which top-level module uses which others.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// One line for each crate that has a cycle between its top-level modules.
pub fn cycles(root: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    let mut excepted: BTreeSet<&str> = STILL_UPWARDS.iter().copied().collect();
    for name in LAYERED {
        let mut uses = read(root, name)?;
        excepted.retain(|edge| !take_upward(name, edge, &mut uses));
        if let Some(cycle) = cycle(&uses) {
            broken.push(format!("modules of {name} need each other: {}", cycle.join(" -> ")));
        }
    }
    let needless = |edge| format!("{edge} needs no exception any more: remove it from STILL_UPWARDS in xtask/src/modules.rs");
    broken.extend(excepted.into_iter().map(needless));
    Ok(broken)
}

/// Takes an excepted use out of the graph. False if it is not there or not part of a cycle.
fn take_upward(name: &str, edge: &str, uses: &mut Uses) -> bool {
    let Some((from, to)) = edge
        .strip_prefix(&format!("{name}: "))
        .and_then(|edge| edge.split_once(" -> "))
    else {
        return false;
    };
    uses.get(from).is_some_and(|used| used.contains(to))
        && path(uses, to, from).is_some()
        && uses.get_mut(from).is_some_and(|used| used.remove(to))
}

/// A file in a folder belongs to the module of that folder.
fn read(root: &Path, name: &str) -> Result<Uses> {
    let sources = files(root, name)?;
    let prefix = format!("crates/{name}/src/");
    let module = |path: &str| {
        let inside = path.strip_prefix(&prefix).unwrap_or(path);
        inside.split(['/', '.']).next().unwrap_or_default().to_owned()
    };
    let is_root = |path: &str| matches!(module(path).as_str(), "lib" | "main");
    let mut exported = BTreeMap::new();
    for file in sources.iter().filter(|file| is_root(&file.path)) {
        exported.extend(exports(&shipped(&file.text)));
    }
    // `crate::plan` is the module even where a function of that name is exported too.
    for file in &sources {
        exported.remove(&module(&file.path));
    }
    let mut uses = Uses::new();
    for file in sources.iter().filter(|file| !is_root(&file.path)) {
        let own = module(&file.path);
        let used = used_names(&shipped(&file.text)).into_iter();
        let used = used.map(|name| exported.get(&name).cloned().unwrap_or(name));
        uses.entry(own.clone())
            .or_default()
            .extend(used.filter(|other| *other != own));
    }
    Ok(uses)
}

/// What the root of a crate exports under its own name, with the module that it comes from.
fn exports(tokens: &[Token<'_>]) -> BTreeMap<String, String> {
    let tokens = without_comments(tokens);
    let mut found = BTreeMap::new();
    for statement in tokens.split(|token| token.is(";")) {
        let Some(at) = statement.iter().position(|token| token.is("use")) else {
            continue;
        };
        let mut names = statement[at + 1..].iter().filter(|token| token.class == Class::Name);
        let module = names.find(|token| !matches!(token.text, "crate" | "self"));
        for name in names {
            found.insert(
                name.text.to_owned(),
                module.map_or_else(String::new, |module| module.text.to_owned()),
            );
        }
    }
    found
}

/// Names that directly follow `crate::`, also in a group.
fn used_names(tokens: &[Token<'_>]) -> BTreeSet<String> {
    let tokens = without_comments(tokens);
    let mut found = BTreeSet::new();
    for (at, _) in tokens.iter().enumerate().filter(|(_, token)| token.is("crate")) {
        let [a, b, rest @ ..] = &tokens[at + 1..] else { continue };
        if !a.is(":") || !b.is(":") {
            continue;
        }
        match rest {
            [first, rest @ ..] if first.is("{") => found.extend(group(rest)),
            [first, ..] => drop(found.insert(first.text.to_owned())),
            [] => {}
        }
    }
    found
}

/// The first name of each member of a group, up to its closing brace.
fn group(tokens: &[Token<'_>]) -> Vec<String> {
    let (mut depth, mut begins) = (1, true);
    let mut found = Vec::new();
    for token in tokens {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," if depth == 1 => begins = true,
            name if begins => {
                found.push(name.to_owned());
                begins = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

fn without_comments<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    tokens.iter().copied().filter(|token| token.class != Class::Comment).collect()
}

/// A path from a module back to itself.
fn cycle(uses: &Uses) -> Option<Vec<String>> {
    uses.keys().find_map(|start| path(uses, start, start))
}

/// A path of at least one use.
fn path(uses: &Uses, from: &str, to: &str) -> Option<Vec<String>> {
    let mut seen = BTreeSet::new();
    let mut paths = vec![vec![from.to_owned()]];
    while let Some(path) = paths.pop() {
        for next in path.last().and_then(|last| uses.get(last)).into_iter().flatten() {
            let mut longer = path.clone();
            longer.push(next.clone());
            if next == to {
                return Some(longer);
            }
            if seen.insert(next.clone()) {
                paths.push(longer);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &str)]) -> Uses {
        let mut uses = Uses::new();
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
        assert_eq!(used_names(&shipped(text)), ["digest", "plan"].map(str::to_owned).into());
    }

    #[test]
    fn a_group_uses_every_member_and_pub_crate_uses_nothing() {
        let text = "pub(crate) use crate::{a, b::{C, D}, self::e};";
        assert_eq!(used_names(&shipped(text)), ["a", "b", "self"].map(str::to_owned).into());
    }

    #[test]
    fn a_name_that_the_root_exports_stands_for_its_module() {
        let exported = exports(&shipped("mod a;\npub use a::{B, c::D as E};\nuse crate::f::G;"));
        assert_eq!([&exported["B"], &exported["E"], &exported["G"]], ["a", "a", "f"]);
    }

    #[test]
    fn an_excepted_use_must_be_there_and_in_a_cycle() {
        let mut uses = graph(&[("a", "b"), ("b", "a"), ("b", "c")]);
        assert!(!take_upward("x", "x: b -> c", &mut uses), "no cycle goes through it");
        assert!(!take_upward("y", "x: b -> a", &mut uses), "another crate");
        assert!(take_upward("x", "x: b -> a", &mut uses));
        assert_eq!(cycle(&uses), None);
        assert!(!take_upward("x", "x: b -> a", &mut uses), "it is gone");
    }
}
