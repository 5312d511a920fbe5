//! Modules call downwards: no two modules beside each other need each other, neither at the top of a crate nor inside a folder.
//!
//! A module and its own parent are one unit here: the parent declares the child, and the child may use what the parent defines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use crate::source::{Class, SourceFile, Token, files, shipped};

/// Crates whose modules form layers.
const LAYERED: &[&str] = &["mainstay", "mainstay-engine", "mainstay-plan"];

/// Which module uses which others, among the children of one parent.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// A module by the names that lead to it from the root of its crate. The root itself has none.
type ModulePath = Vec<String>;

/// One line for each parent that has a cycle between its children.
pub fn cycles(root: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for name in LAYERED {
        let modules = Modules::of(&files(root, name)?, &format!("crates/{name}/src/"));
        for (parent, uses) in modules.uses() {
            if let Some(cycle) = cycle(&uses) {
                let place = [vec![(*name).to_owned()], parent].concat().join("::");
                broken.push(format!("modules of {place} need each other: {}", cycle.join(" -> ")));
            }
        }
    }
    Ok(broken)
}

/// The modules of a crate.
struct Modules {
    /// The paths that each module names, from the root of the crate.
    named: BTreeMap<ModulePath, Vec<ModulePath>>,
    /// What a module takes from another one under its own name, such as `pub use child::Name`: a use of it is a use of that module.
    exported: BTreeMap<ModulePath, BTreeMap<String, ModulePath>>,
}

impl Modules {
    fn of(sources: &[SourceFile], prefix: &str) -> Self {
        let mut modules = Self {
            named: BTreeMap::new(),
            exported: BTreeMap::new(),
        };
        for file in sources {
            let own = module_path(file.path.strip_prefix(prefix).unwrap_or(&file.path));
            let tokens = without_comments(&shipped(&file.text));
            let named = modules.named.entry(own.clone()).or_default();
            named.extend(absolute_paths(&tokens).filter_map(|path| from_root(&own, &path)));
            let export = |import: Import| Some((import.name, from_root(&own, &import.path)?));
            let exports: BTreeMap<String, ModulePath> = imports(&tokens).into_iter().filter_map(export).collect();
            modules.exported.entry(own).or_default().extend(exports);
        }
        modules
    }

    /// By parent: which of its children use which others.
    fn uses(&self) -> BTreeMap<ModulePath, Uses> {
        let mut uses: BTreeMap<ModulePath, Uses> = BTreeMap::new();
        for (own, paths) in &self.named {
            for path in paths {
                let depth = own.iter().zip(path).take_while(|(a, b)| a == b).count();
                let (Some(from), Some(to)) = (own.get(depth), self.child(&path[..depth], path.get(depth), 0)) else {
                    continue;
                };
                if *from != to {
                    uses.entry(own[..depth].to_vec())
                        .or_default()
                        .entry(from.clone())
                        .or_default()
                        .insert(to);
                }
            }
        }
        uses
    }

    /// The child of `parent` that a name stands for: the child of that name, else the one that the parent takes the name from.
    fn child(&self, parent: &[String], name: Option<&String>, hops: usize) -> Option<String> {
        let name = name?;
        if self.named.contains_key(&[parent, std::slice::from_ref(name)].concat()) {
            return Some(name.clone());
        }
        let source = self.exported.get(parent)?.get(name)?;
        // A name that comes from outside of this parent is no use of a child. A few hops end chains of re-exports.
        let inside = source.strip_prefix(parent).filter(|_| hops < 4)?;
        self.child(parent, inside.first(), hops + 1)
    }
}

/// `a/b.rs` and `a/b/mod.rs` are the module `a::b`.
fn module_path(file: &str) -> ModulePath {
    let names = file.strip_suffix(".rs").unwrap_or(file).split('/').map(str::to_owned);
    let mut path: ModulePath = names.collect();
    if matches!(path.last().map(String::as_str), Some("mod")) || matches!(file, "lib.rs" | "main.rs") {
        path.pop();
    }
    path
}

/// A path as it is written in `own`, from the root of the crate. `None` for the paths of other crates.
fn from_root(own: &[String], path: &[String]) -> Option<ModulePath> {
    let mut base = own.to_vec();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => (base, rest) = (Vec::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {
            while let [first, tail @ ..] = rest
                && first == "super"
            {
                base.pop()?;
                rest = tail;
            }
        }
        // In an import, a child of this module or another crate.
        _ => {}
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// Paths that begin at the root or at a parent: `crate::a::b`, `super::c`, each member of a group by itself.
fn absolute_paths<'t>(tokens: &'t [Token<'t>]) -> impl Iterator<Item = ModulePath> + 't {
    let begins = |at: &usize| matches!(tokens[*at].text, "crate" | "super") && tokens[*at].class == Class::Name;
    // `super::super::a` begins at its first `super`; `pub(crate)` begins no path.
    let is_first = |at: &usize| *at == 0 || !tokens[*at - 1].is(":");
    // `pub(in crate::a)` says who may use an item, it uses nothing.
    let is_visibility = |at: &usize| *at >= 2 && tokens[*at - 1].is("in") && tokens[*at - 2].is("(");
    let starts = (0..tokens.len())
        .filter(begins)
        .filter(is_first)
        .filter(move |at| !is_visibility(at));
    starts.flat_map(|at| tree(&tokens[at..], &[]).0).map(|import| import.path)
}

/// What `use` statements name, also relative to the module.
fn imports(tokens: &[Token<'_>]) -> Vec<Import> {
    let uses = (0..tokens.len()).filter(|at| tokens[*at].is("use"));
    uses.flat_map(|at| tree(&tokens[at + 1..], &[]).0).collect()
}

/// A path, and the name under which it is known where it is imported.
struct Import {
    path: ModulePath,
    name: String,
}

impl Import {
    fn new(path: ModulePath) -> Self {
        let name = path.last().cloned().unwrap_or_default();
        Self { path, name }
    }
}

/// The paths of one `use` tree or path expression, and how many tokens it takes. `a::{b, c as d}` is `a::b` and `a::c`, known as `d`.
fn tree(tokens: &[Token<'_>], before: &[String]) -> (Vec<Import>, usize) {
    let mut path = before.to_vec();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.text {
            "{" => {
                let (paths, length) = group(&tokens[at + 1..], &path);
                return (paths, at + 1 + length);
            }
            "as" if token.class == Class::Name => {
                let name = tokens.get(at + 1).map_or_else(String::new, |name| name.text.to_owned());
                return (vec![Import { path, name }], at + 2);
            }
            _ if token.class == Class::Name => path.push(token.text.to_owned()),
            _ => break,
        }
        at += 1;
        let goes_on = matches!(tokens.get(at..at + 2), Some([a, b]) if a.is(":") && b.is(":"));
        let renamed = tokens.get(at).is_some_and(|next| next.is("as"));
        if goes_on {
            at += 2;
        } else if !renamed {
            break;
        }
    }
    (vec![Import::new(path)], at)
}

/// The members of a group up to its closing brace.
fn group(tokens: &[Token<'_>], before: &[String]) -> (Vec<Import>, usize) {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.text {
            "}" => return (found, at + 1),
            "," | "*" => at += 1,
            _ => {
                let (paths, length) = tree(&tokens[at..], before);
                found.extend(paths);
                at += length.max(1);
            }
        }
    }
    (found, at)
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

    fn modules(sources: &[(&str, &str)]) -> Modules {
        let file = |(path, text): &(&str, &str)| SourceFile {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        Modules::of(&sources.iter().map(file).collect::<Vec<_>>(), "")
    }

    /// The cycles, each as `parent: a -> b -> a`.
    fn cycles_in(sources: &[(&str, &str)]) -> Vec<String> {
        let uses = modules(sources).uses();
        let told = |(parent, uses): (&ModulePath, &Uses)| Some(format!("{}: {}", parent.join("::"), cycle(uses)?.join(" -> ")));
        uses.iter().filter_map(told).collect()
    }

    #[test]
    fn a_cycle_at_the_top_is_told_with_its_path() {
        let sources = [
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "fn f() { crate::c::g() }"),
            ("c.rs", "use super::b;"),
        ];
        assert_eq!(cycles_in(&sources), [": b -> c -> b"]);
        assert!(cycles_in(&sources[..2]).is_empty());
    }

    #[test]
    fn a_cycle_inside_a_folder_is_found_through_super_and_through_the_root() {
        let sources = [
            ("a.rs", "mod x; mod y; pub use x::X; fn helper() {}"),
            ("a/x.rs", "use super::y::Y;"),
            ("a/y.rs", "use super::X;"),
        ];
        assert_eq!(cycles_in(&sources), ["a: x -> y -> x"], "by a name that the parent exports");
        for import in [
            "use super::{helper, x};",
            "use super::{x as w, helper};",
            "fn f() { super::x::g() }",
        ] {
            let x = "use crate::a::{y::{Y}, z};";
            let sources = [("a/mod.rs", "mod x; mod y;"), ("a/x.rs", x), ("a/y.rs", import)];
            assert_eq!(cycles_in(&sources), ["a: x -> y -> x"], "{import}");
        }
    }

    #[test]
    fn a_child_and_its_parent_may_use_each_other() {
        let sources = [
            ("a.rs", "mod x; use x::f; pub fn helper() {}"),
            ("a/x.rs", "use super::helper; use crate::a::helper; pub fn f() {}"),
        ];
        assert!(cycles_in(&sources).is_empty());
    }

    #[test]
    fn a_name_that_the_root_exports_stands_for_its_module() {
        let sources = [
            ("lib.rs", "mod a; mod b; pub use a::{A, c::C as D};"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "fn f() -> crate::D {}"),
        ];
        assert_eq!(cycles_in(&sources), [": a -> b -> a"]);
    }

    #[test]
    fn comments_tests_and_visibility_use_nothing() {
        let sources = [
            (
                "a.rs",
                "pub(crate) use crate::b::B; // crate::c\n#[cfg(test)]\nmod tests { use crate::c::C; use super::*; }",
            ),
            ("b.rs", "pub(in crate::a) fn f() {} pub(super) struct B;"),
            ("c.rs", "use crate::a;"),
        ];
        let uses = modules(&sources).uses();
        assert_eq!(uses[&Vec::new()]["a"], ["b".to_owned()].into());
    }
}
