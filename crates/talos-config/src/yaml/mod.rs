//! YAML as Talos reads and writes it: ordered trees that remember source lines, and one spelling for output.
//!
//! Talos and the Image Factory use one YAML library whose scalar rules (YAML 1.2 with some of 1.1 left) and layout decide both
//! what a config means and which id a schematic has. Hence a tree of our own instead of a general serializer.

mod emit;
mod parse;
mod scalar;

use std::fmt;

use indexmap::IndexMap;

pub use emit::{LegacyQuotes, emit, emit_documents, emit_with};
pub use parse::{SyntaxError, parse, parse_documents};
pub use scalar::{Scalar, ScalarKind};

/// A mapping in source order.
pub type Map = IndexMap<String, Node>;

/// A value and where it was read, 0 if nowhere. Lines do not take part in comparisons.
#[derive(Clone)]
pub struct Node {
    /// The line the value begins on.
    pub line: usize,
    /// The line of its key, for an entry of a mapping: a block below a key begins later.
    pub key_line: usize,
    pub value: Value,
}

#[derive(Clone, PartialEq)]
pub enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Map),
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// Any scalar may be a secret, so only the shape is shown.
impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Value::Scalar(_) => f.write_str("***"),
            Value::List(items) => f.debug_list().entries(items).finish(),
            Value::Map(entries) => f.debug_map().entries(entries).finish(),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Node::from(self.clone()).fmt(f)
    }
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        Self::at(0, value)
    }
}

impl Node {
    pub fn at(line: usize, value: Value) -> Self {
        Self {
            line,
            key_line: line,
            value,
        }
    }

    pub fn text(text: impl Into<String>) -> Self {
        Value::Scalar(Scalar::text(text)).into()
    }

    pub fn null() -> Self {
        Value::Scalar(Scalar::null()).into()
    }

    pub fn empty_map() -> Self {
        Value::Map(Map::new()).into()
    }

    pub fn as_map(&self) -> Option<&Map> {
        match &self.value {
            Value::Map(entries) => Some(entries),
            Value::Scalar(_) | Value::List(_) => None,
        }
    }

    pub fn as_map_mut(&mut self) -> Option<&mut Map> {
        match &mut self.value {
            Value::Map(entries) => Some(entries),
            Value::Scalar(_) | Value::List(_) => None,
        }
    }

    pub fn as_list(&self) -> Option<&[Node]> {
        match &self.value {
            Value::List(items) => Some(items),
            Value::Scalar(_) | Value::Map(_) => None,
        }
    }

    pub fn as_scalar(&self) -> Option<&Scalar> {
        match &self.value {
            Value::Scalar(scalar) => Some(scalar),
            Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The text of a scalar that is not null, whatever its type.
    pub fn as_str(&self) -> Option<&str> {
        self.as_scalar()
            .filter(|scalar| scalar.kind != ScalarKind::Null)
            .map(|scalar| scalar.text.as_str())
    }

    pub fn as_bool(&self) -> Option<bool> {
        self.as_scalar().and_then(Scalar::as_bool)
    }

    pub fn as_int(&self) -> Option<i128> {
        self.as_scalar().and_then(Scalar::as_int)
    }

    pub fn is_null(&self) -> bool {
        self.as_scalar().is_some_and(|scalar| scalar.kind == ScalarKind::Null)
    }

    /// What a zero value is to the programs that read the config: null, an empty text, zero, false, nothing inside.
    pub fn is_zero(&self) -> bool {
        match &self.value {
            Value::Scalar(scalar) => scalar.is_zero(),
            Value::List(items) => items.is_empty(),
            Value::Map(entries) => entries.is_empty(),
        }
    }

    pub fn get(&self, key: &str) -> Option<&Node> {
        self.as_map().and_then(|entries| entries.get(key))
    }

    /// Follows keys separated by dots. Null counts as absent.
    pub fn at_path(&self, path: &str) -> Option<&Node> {
        path.split('.')
            .try_fold(self, |node, key| node.get(key))
            .filter(|node| !node.is_null())
    }
}

impl From<serde_json::Value> for Node {
    fn from(json: serde_json::Value) -> Self {
        use serde_json::Value as Json;
        match json {
            Json::Null => Node::null(),
            Json::Bool(flag) => Value::Scalar(Scalar::bool(flag)).into(),
            Json::Number(number) => {
                let kind = if number.is_f64() { ScalarKind::Float } else { ScalarKind::Int };
                Value::Scalar(Scalar {
                    text: number.to_string(),
                    kind,
                })
                .into()
            }
            Json::String(text) => Node::text(text),
            Json::Array(items) => Value::List(items.into_iter().map(Node::from).collect()).into(),
            Json::Object(entries) => Value::Map(entries.into_iter().map(|(key, value)| (key, value.into())).collect()).into(),
        }
    }
}
