//! Which line of which patch makes a config one that a node refuses.

use std::collections::BTreeSet;

use semver::Version;

use super::{Content, Part, Patch};
use crate::config::{Config, Document, DocumentId, LEGACY_KIND};
use crate::schema::Schema;
use crate::validate::{Options, validate};
use crate::versions::Contract;
use crate::yaml::Node;

/// Something that a node refuses in a config, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFault {
    /// The name of the patch; none for what no patch brought in.
    pub patch: Option<String>,
    /// The line in the patch, where one key alone is to blame; else that of its document.
    pub line: Option<usize>,
    /// The kind and name of the document; none where it is not known.
    pub document: Option<String>,
    pub error: String,
}

/// What a node of this version would refuse in a config with these patches. Empty for a valid one.
pub fn faults(base: &Config, patches: &[Patch], talos: &Version) -> Vec<ConfigFault> {
    let contract = Contract::of(talos);
    let Ok(whole) = base.patched(patches, contract) else {
        return Vec::new();
    };
    let mut left = errors(&whole, talos);
    if left.is_empty() {
        return Vec::new();
    }
    let mut blame = Blame {
        talos,
        schema: Schema::of(contract),
        faults: Vec::new(),
    };
    let mut config = base.clone();
    for patch in patches {
        blame.patch(patch, &mut config);
    }
    // A later patch may have put it right, and what the generated config has is in no patch.
    blame.faults.retain(|fault| left.contains(&fault.error));
    for fault in &blame.faults {
        left.remove(&fault.error);
    }
    let others = left.into_iter().map(|error| ConfigFault {
        patch: None,
        line: None,
        document: None,
        error,
    });
    blame.faults.into_iter().chain(others).collect()
}

/// Every error of a config, in the words of a node.
fn errors(config: &Config, talos: &Version) -> BTreeSet<String> {
    let mut config = config.clone();
    config.make_canonical(Contract::of(talos));
    let verdict = validate(&config, talos, Options::NODE);
    verdict.legacy.into_iter().chain(verdict.others).collect()
}

struct Blame<'a> {
    talos: &'a Version,
    schema: Schema,
    faults: Vec<ConfigFault>,
}

impl Blame<'_> {
    /// Applies a patch part by part, and notes the errors that each part brings in.
    fn patch(&mut self, patch: &Patch, config: &mut Config) {
        let Content::Strategic(parts) = &patch.content else {
            let before = config.clone();
            if patch.apply(config).is_ok() {
                let new = self.brought_in(&before, config);
                self.note(patch, None, None, new);
            }
            return;
        };
        for part in parts {
            let before = config.clone();
            if patch.apply_part(part, config, self.schema).is_err() {
                return;
            }
            let new = self.brought_in(&before, config);
            if new.is_empty() {
                continue;
            }
            match part {
                Part::Delete(delete) => self.note(patch, Some(delete.line), Some(&delete.document), new),
                Part::Merge(document) => {
                    for error in new {
                        let line = self.line(patch, document, &before, &error);
                        self.note(patch, line, Some(&document.id), [error].into());
                    }
                }
            }
        }
    }

    fn brought_in(&self, before: &Config, after: &Config) -> BTreeSet<String> {
        let known = errors(before, self.talos);
        errors(after, self.talos).difference(&known).cloned().collect()
    }

    fn note(&mut self, patch: &Patch, line: Option<usize>, document: Option<&DocumentId>, errors: BTreeSet<String>) {
        let document = document.map(name);
        self.faults.extend(errors.into_iter().map(|error| ConfigFault {
            patch: Some(patch.name.clone()),
            line: line.filter(|line| *line > 0),
            document: document.clone(),
            error,
        }));
    }

    /// The line of the key without which the document would not bring the error in.
    fn line(&self, patch: &Patch, document: &Document, before: &Config, error: &String) -> Option<usize> {
        let mut leaves = Vec::new();
        collect_leaves(&document.body, &mut Vec::new(), &mut leaves);
        let is_culprit = |(path, _): &&(Vec<String>, usize)| {
            let mut without = document.clone();
            remove(&mut without.body, path);
            let mut config = before.clone();
            let applied = patch.apply_part(&Part::Merge(without), &mut config, self.schema);
            applied.is_ok() && !errors(&config, self.talos).contains(error)
        };
        let culprit = leaves.iter().find(is_culprit).map(|(_, line)| *line);
        culprit.or(Some(document.body.line))
    }
}

/// Keys that name a document.
const HEADER: [&str; 3] = ["apiVersion", "kind", "name"];

/// Paths of scalars and lists with the lines of their keys.
fn collect_leaves(node: &Node, path: &mut Vec<String>, leaves: &mut Vec<(Vec<String>, usize)>) {
    for (key, value) in node.as_map().into_iter().flatten() {
        if path.is_empty() && HEADER.contains(&key.as_str()) {
            continue;
        }
        path.push(key.clone());
        match value.as_map() {
            Some(below) if !below.is_empty() => collect_leaves(value, path, leaves),
            _ => leaves.push((path.clone(), value.key_line)),
        }
        path.pop();
    }
}

fn remove(node: &mut Node, path: &[String]) {
    let Some((key, rest)) = path.split_first() else { return };
    let Some(entries) = node.as_map_mut() else { return };
    if rest.is_empty() {
        entries.shift_remove(key);
    } else if let Some(below) = entries.get_mut(key) {
        remove(below, rest);
    }
}

/// `HostnameConfig`, `LinkConfig/net0`, or `v1alpha1` for the document without a kind.
fn name(id: &DocumentId) -> String {
    match (id.kind.as_str(), id.name.as_str()) {
        (LEGACY_KIND, _) => LEGACY_KIND.to_owned(),
        (kind, "") => kind.to_owned(),
        (kind, name) => format!("{kind}/{name}"),
    }
}
