//! RFC 6902 patches. They address keys by position in one tree, so they need a config of a single document.

use super::PatchProblem;
use crate::config::Config;
use crate::decode::ConfigError;
use crate::versions::Contract;
use crate::yaml::{self, Node, Value};

#[derive(Clone)]
pub struct Operation {
    kind: Kind,
    path: Vec<String>,
}

#[derive(Clone)]
enum Kind {
    Add(Node),
    Remove,
    Replace(Node),
    Move(Vec<String>),
    Copy(Vec<String>),
    Test(Node),
}

pub fn parse(list: &Node) -> Result<Vec<Operation>, PatchProblem> {
    let items = list.as_list().unwrap_or_default();
    if items.iter().any(|item| item.as_map().is_none()) {
        return Err(ConfigError::NotMapping { line: list.line }.into());
    }
    items.iter().map(operation).collect()
}

fn operation(node: &Node) -> Result<Operation, PatchProblem> {
    let text = |key: &str| node.get(key).and_then(Node::as_str);
    let missing = |key: &str| PatchProblem::Json(format!("operation without {key:?} (line {})", node.line));
    let pointer = |key: &str| text(key).map(segments).ok_or_else(|| missing(key));
    let value = || node.get("value").cloned().ok_or_else(|| missing("value"));
    let kind = match text("op").ok_or_else(|| missing("op"))? {
        "add" => Kind::Add(value()?),
        "remove" => Kind::Remove,
        "replace" => Kind::Replace(value()?),
        "move" => Kind::Move(pointer("from")?),
        "copy" => Kind::Copy(pointer("from")?),
        "test" => Kind::Test(value()?),
        other => return Err(problem(format!("Unexpected kind: {other}"))),
    };
    Ok(Operation {
        kind,
        path: pointer("path")?,
    })
}

fn segments(pointer: &str) -> Vec<String> {
    pointer
        .split('/')
        .skip(1)
        .map(|segment| segment.replace("~1", "/").replace("~0", "~"))
        .collect()
}

pub fn apply(config: &mut Config, operations: &[Operation], contract: Contract) -> Result<(), PatchProblem> {
    let [document] = config.documents.as_mut_slice() else {
        return Err(PatchProblem::JsonOnSeveralDocuments);
    };
    for operation in operations {
        operation.apply(&mut document.body)?;
    }
    // What came out is read again: an operation may have put anything anywhere.
    let text = yaml::emit(&document.body);
    *config = Config::parse(&text, contract)?;
    Ok(())
}

impl Operation {
    fn apply(&self, root: &mut Node) -> Result<(), PatchProblem> {
        match &self.kind {
            Kind::Add(value) => self.put(root, value.clone(), "add"),
            Kind::Remove => take(root, &self.path)
                .map(|_| ())
                .map_err(|missing| self.missing("remove", &self.path, missing)),
            Kind::Replace(value) => match find(root, &self.path) {
                Some(target) => {
                    *target = value.clone();
                    Ok(())
                }
                // A key that is not there is set, as upstream does against the standard.
                None => self.put(root, value.clone(), "replace"),
            },
            Kind::Move(from) => {
                let value = take(root, from).map_err(|missing| self.missing("move", from, missing))?;
                self.put(root, value, "move")
            }
            Kind::Copy(from) => {
                let value = find(root, from).map(|found| found.clone());
                self.put(
                    root,
                    value.ok_or_else(|| self.missing("copy", from, Missing::Parent))?,
                    "copy",
                )
            }
            Kind::Test(expected) => {
                let same = find(root, &self.path).is_some_and(|found| found == expected);
                if same {
                    Ok(())
                } else {
                    Err(problem(format!("testing value {} failed: test failed", pointer(&self.path))))
                }
            }
        }
    }

    fn missing(&self, verb: &str, path: &[String], missing: Missing) -> PatchProblem {
        let (path, key) = (pointer(path), path.last().map(String::as_str).unwrap_or_default());
        problem(match missing {
            Missing::Parent => format!("{verb} operation does not apply: doc is missing path: {path:?}: missing value"),
            Missing::Key => format!("error in {verb} for path: '{path}': Unable to remove nonexistent key: {key}: missing value"),
            Missing::Index => {
                format!("error in {verb} for path: '{path}': Unable to access invalid index: {key}: invalid index referenced")
            }
        })
    }

    fn put(&self, root: &mut Node, value: Node, verb: &str) -> Result<(), PatchProblem> {
        let Some((last, parents)) = self.path.split_last() else {
            *root = value;
            return Ok(());
        };
        let parent = find(root, parents).ok_or_else(|| self.missing(verb, &self.path, Missing::Parent))?;
        match &mut parent.value {
            Value::Map(entries) => {
                entries.insert(last.clone(), value);
                Ok(())
            }
            Value::List(items) => {
                let position = if last == "-" { Some(items.len()) } else { last.parse().ok() };
                let position = position.filter(|position| *position <= items.len());
                items.insert(position.ok_or_else(|| self.missing(verb, &self.path, Missing::Index))?, value);
                Ok(())
            }
            Value::Scalar(_) => Err(self.missing(verb, &self.path, Missing::Parent)),
        }
    }
}

/// What was not there.
enum Missing {
    Parent,
    Key,
    Index,
}

fn problem(text: String) -> PatchProblem {
    PatchProblem::Json(format!("failure applying rfc6902 patches to talos machine config: {text}"))
}

fn pointer(path: &[String]) -> String {
    format!("/{}", path.join("/"))
}

fn find<'a>(root: &'a mut Node, path: &[String]) -> Option<&'a mut Node> {
    path.iter().try_fold(root, |node, segment| match &mut node.value {
        Value::Map(entries) => entries.get_mut(segment),
        Value::List(items) => items.get_mut(segment.parse::<usize>().ok()?),
        Value::Scalar(_) => None,
    })
}

fn take(root: &mut Node, path: &[String]) -> Result<Node, Missing> {
    let (last, parents) = path.split_last().ok_or(Missing::Parent)?;
    match &mut find(root, parents).ok_or(Missing::Parent)?.value {
        Value::Map(entries) => entries.shift_remove(last).ok_or(Missing::Key),
        Value::List(items) => {
            let position = last
                .parse()
                .ok()
                .filter(|position| *position < items.len())
                .ok_or(Missing::Index)?;
            Ok(items.remove(position))
        }
        Value::Scalar(_) => Err(Missing::Parent),
    }
}
