//! RFC 6902 patches. They address keys by position in one tree, so they need a config of a single document.

use super::PatchProblem;
use crate::config::Config;
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
    list.as_list().unwrap_or_default().iter().map(operation).collect()
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
        other => return Err(PatchProblem::Json(format!("Unexpected kind: {other}"))),
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
            Kind::Add(value) => self.add(root, value.clone()),
            Kind::Remove => take(root, &self.path).map(|_| ()).ok_or_else(|| self.missing()),
            Kind::Replace(value) => {
                let target = find(root, &self.path).ok_or_else(|| self.missing())?;
                *target = value.clone();
                Ok(())
            }
            Kind::Move(from) => {
                let value = take(root, from).ok_or_else(|| self.missing())?;
                self.add(root, value)
            }
            Kind::Copy(from) => {
                let value = find(root, from).ok_or_else(|| self.missing())?.clone();
                self.add(root, value)
            }
            Kind::Test(expected) => {
                let same = find(root, &self.path).is_some_and(|found| found == expected);
                if same {
                    Ok(())
                } else {
                    Err(PatchProblem::Json(format!("testing value /{} failed", self.path.join("/"))))
                }
            }
        }
    }

    fn missing(&self) -> PatchProblem {
        PatchProblem::Json(format!("doc is missing path: \"/{}\": missing value", self.path.join("/")))
    }

    fn add(&self, root: &mut Node, value: Node) -> Result<(), PatchProblem> {
        let Some((last, parents)) = self.path.split_last() else {
            *root = value;
            return Ok(());
        };
        let parent = find(root, parents).ok_or_else(|| self.missing())?;
        match &mut parent.value {
            Value::Map(entries) => {
                entries.insert(last.clone(), value);
                Ok(())
            }
            Value::List(items) => {
                let position = if last == "-" { Some(items.len()) } else { last.parse().ok() };
                let position = position
                    .filter(|position| *position <= items.len())
                    .ok_or_else(|| self.missing())?;
                items.insert(position, value);
                Ok(())
            }
            Value::Scalar(_) => Err(self.missing()),
        }
    }
}

fn find<'a>(root: &'a mut Node, path: &[String]) -> Option<&'a mut Node> {
    path.iter().try_fold(root, |node, segment| match &mut node.value {
        Value::Map(entries) => entries.get_mut(segment),
        Value::List(items) => items.get_mut(segment.parse::<usize>().ok()?),
        Value::Scalar(_) => None,
    })
}

fn take(root: &mut Node, path: &[String]) -> Option<Node> {
    let (last, parents) = path.split_last()?;
    match &mut find(root, parents)?.value {
        Value::Map(entries) => entries.shift_remove(last),
        Value::List(items) => {
            let position = last.parse().ok().filter(|position| *position < items.len())?;
            Some(items.remove(position))
        }
        Value::Scalar(_) => None,
    }
}
