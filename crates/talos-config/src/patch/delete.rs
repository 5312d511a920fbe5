//! `$patch: delete`: finding the statements in a patch, and doing what they say.

use super::PatchProblem;
use crate::config::{Config, Document, DocumentId, LEGACY_KIND};
use crate::schema::{Schema, Type};
use crate::yaml::{Map, Node, Value};

/// One statement.
#[derive(Clone)]
pub struct Delete {
    pub line: usize,
    pub document: DocumentId,
    path: Vec<String>,
    /// For an item of a list: the key and the text that tell which.
    item: Option<(String, String)>,
}

/// Cuts the statements out of a document. Says whether anything is left to merge.
pub fn take(root: &mut Node) -> Result<(Vec<Delete>, bool), String> {
    let Some(entries) = root.as_map() else {
        return Ok((Vec::new(), true));
    };
    let header = entries.clone();
    let mut found = Vec::new();
    let gone = cut(root, Parent::Document, &mut Vec::new(), &header, &mut found)?;
    Ok((found, !gone && !says_nothing(root)))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Parent {
    Document,
    Map,
    List,
}

/// Says whether the node itself is to go.
fn cut(node: &mut Node, parent: Parent, path: &mut Vec<String>, header: &Map, found: &mut Vec<Delete>) -> Result<bool, String> {
    if let Some(line) = statement_in(node) {
        let delete = Delete::new(line, node, parent, path, header)?;
        found.push(delete);
        return Ok(true);
    }
    match &mut node.value {
        Value::Scalar(_) => Ok(false),
        Value::Map(entries) => {
            let keys: Vec<String> = entries.keys().cloned().collect();
            let before = keys.len();
            for key in keys {
                path.push(key.clone());
                let gone = match entries.get_mut(&key) {
                    Some(value) => cut(value, Parent::Map, path, header, found)?,
                    None => false,
                };
                path.pop();
                if gone {
                    entries.shift_remove(&key);
                }
            }
            Ok(before > 0 && entries.is_empty())
        }
        Value::List(items) => {
            let before = items.len();
            let mut kept = Vec::with_capacity(before);
            for mut item in std::mem::take(items) {
                path.push(format!("[{}]", kept.len()));
                let gone = cut(&mut item, Parent::List, path, header, found)?;
                path.pop();
                if !gone {
                    kept.push(item);
                }
            }
            *items = kept;
            Ok(before > 0 && items.is_empty())
        }
    }
}

/// The line of `$patch: delete` in a mapping.
fn statement_in(node: &Node) -> Option<usize> {
    let statement = node.get("$patch")?;
    (statement.as_str() == Some("delete")).then_some(statement.line)
}

/// A document that holds nothing but its name.
fn says_nothing(root: &Node) -> bool {
    let header =
        |(key, value): (&String, &Node)| matches!(key.as_str(), "version" | "kind" | "name") && value.as_scalar().is_some();
    root.as_map().is_some_and(|entries| entries.iter().all(header))
}

impl Delete {
    fn new(line: usize, node: &Node, parent: Parent, path: &[String], header: &Map) -> Result<Self, String> {
        let whole_path = path.join(".");
        let item = match parent {
            Parent::List => Some(item_selector(node, &whole_path)?),
            Parent::Document | Parent::Map => {
                if path.iter().any(|segment| segment.starts_with('[')) {
                    return Err(format!("cannot delete an inner key in '{whole_path}'"));
                }
                None
            }
        };
        Ok(Self {
            line,
            document: document_of(header, path)?,
            path: path.to_vec(),
            item,
        })
    }

    pub fn apply(&self, config: &mut Config, schema: Schema) -> Result<(), PatchProblem> {
        // The old document has no version of its own, so a statement that gives one means another document.
        let means_legacy = self.document.is_legacy() && self.document.api_version.is_empty();
        let same = |document: &Document| document.id == self.document || (document.id.is_legacy() && means_legacy);
        let Some(position) = config.documents.iter().position(same) else {
            // Upstream appends an empty document here, which then fails validation.
            return Ok(());
        };
        if self.path.is_empty() {
            config.documents.remove(position);
            return Ok(());
        }
        let document = &mut config.documents[position];
        let name = if self.document.is_legacy() {
            schema.legacy()
        } else {
            schema.kind(&self.document.kind).unwrap_or_default()
        };
        let removed = self.remove(&mut document.body, &Type::Struct(name), &self.path, schema);
        removed.map_err(|problem| PatchProblem::Delete(self.describe(problem)))
    }

    fn describe(&self, problem: &str) -> String {
        let path = self.path.join(".");
        let (api_version, kind) = (&self.document.api_version, &self.document.kind);
        let failed = format!("failed to delete path '{path}': {problem}");
        if self.document.name.is_empty() {
            format!("patch delete: path '{path}' in document '{api_version}/{kind}': {failed}")
        } else {
            format!("named patch delete: document {api_version}/{kind}: {failed}")
        }
    }

    fn remove(&self, node: &mut Node, kind: &Type, path: &[String], schema: Schema) -> Result<(), &'static str> {
        const LOOKUP_FAILED: &str = "lookup failed";
        let Some((key, rest)) = path.split_first() else {
            return Err("path is empty");
        };
        match kind.inner() {
            Type::Struct(name) => {
                let field = schema.field(name, key).ok_or(LOOKUP_FAILED)?;
                let entries = node.as_map_mut().ok_or(LOOKUP_FAILED)?;
                if rest.is_empty() {
                    entries.shift_remove(key);
                    return Ok(());
                }
                if matches!(field.kind, Type::Struct(_)) {
                    entries.entry(key.clone()).or_insert_with(Node::empty_map);
                }
                let inner = entries.get_mut(key).filter(|inner| !inner.is_null()).ok_or(LOOKUP_FAILED)?;
                self.remove(inner, &field.kind, rest, schema)
            }
            Type::Map(_) | Type::Arguments | Type::Object | Type::Any => {
                let below = if let Type::Map(value) = kind.inner() {
                    value
                } else {
                    &Type::Any
                };
                let entries = node.as_map_mut().ok_or(LOOKUP_FAILED)?;
                let inner = entries.get_mut(key).ok_or(LOOKUP_FAILED)?;
                if rest.is_empty() {
                    entries.shift_remove(key);
                    return Ok(());
                }
                self.remove(inner, below, rest, schema)
            }
            Type::List(item, _) => self.remove_item(node, item, schema).ok_or(LOOKUP_FAILED),
            _ => Err(LOOKUP_FAILED),
        }
    }

    /// The first item whose key has the text. Numbers and booleans never match, as they do not upstream.
    fn remove_item(&self, node: &mut Node, item: &Type, schema: Schema) -> Option<()> {
        let (key, text) = self.item.as_ref()?;
        let Type::Struct(name) = item.inner() else { return None };
        let field = schema.field(name, key)?;
        if matches!(field.kind.inner(), Type::Int(_) | Type::Bool | Type::Struct(_)) {
            return None;
        }
        let Value::List(items) = &mut node.value else { return None };
        let value_of = |item: &Node| item.get(key).and_then(Node::as_str).unwrap_or_default().to_owned();
        let position = items.iter().position(|item| value_of(item) == *text)?;
        items.remove(position);
        Some(())
    }
}

/// The first other key of the item.
fn item_selector(node: &Node, path: &str) -> Result<(String, String), String> {
    let entries = node.as_map().ok_or("expected a mapping node")?;
    let (key, value) = entries
        .iter()
        .find(|(key, _)| key.as_str() != "$patch")
        .ok_or_else(|| format!("no key:val found in sequence node for path {path}"))?;
    Ok((key.clone(), value.as_str().unwrap_or_default().to_owned()))
}

fn document_of(header: &Map, path: &[String]) -> Result<DocumentId, String> {
    let read = |key: &str| -> Result<String, String> {
        match header.get(key) {
            Some(value) => Ok(value.as_str().unwrap_or_default().to_owned()),
            None if path.is_empty() => Err(format!("missing {key} in document for which $patch: delete is used")),
            None => Ok(String::new()),
        }
    };
    let (api_version, kind, name) = (read("apiVersion")?, read("kind")?, header.get("name"));
    let name = name.and_then(Node::as_str).unwrap_or_default().to_owned();
    match (kind.is_empty(), api_version.is_empty()) {
        (true, true) => Ok(DocumentId {
            api_version,
            kind: LEGACY_KIND.to_owned(),
            name,
        }),
        (false, false) => Ok(DocumentId { api_version, kind, name }),
        _ => Err(format!("kind and apiVersion must be both set for path {}", path.join("."))),
    }
}
