//! Merging a document into another of the same kind. What is right goes into what is left.

use super::PatchProblem;
use crate::config::Document;
use crate::schema::{ListMerge, Schema, Type};
use crate::yaml::{Map, Node, ScalarKind, Value};

type Failure = (Option<usize>, PatchProblem);

pub fn documents(left: &mut Document, right: &Document, schema: Schema) -> Result<(), Failure> {
    let name = if left.id.is_legacy() {
        schema.legacy()
    } else {
        schema.kind(&left.id.kind).unwrap_or_default()
    };
    Merge { schema }.structure(&mut left.body, &right.body, name, "")
}

struct Merge {
    schema: Schema,
}

impl Merge {
    fn structure(&self, left: &mut Node, right: &Node, name: &str, path: &str) -> Result<(), Failure> {
        let (Some(entries), Some(patch)) = (left.as_map_mut(), right.as_map()) else {
            *left = right.clone();
            return Ok(());
        };
        for (key, value) in patch {
            let Some(field) = self.schema.field(name, key) else { continue };
            let below = join(path, key);
            match entries.get_mut(key) {
                None => {
                    entries.insert(key.clone(), value.clone());
                }
                Some(existing) if field.replace => {
                    // An empty list replaces; an empty mapping says nothing.
                    if value.as_list().is_some() || !value.is_zero() {
                        *existing = value.clone();
                    }
                }
                Some(existing) => self.value(existing, value, &field.kind, &below)?,
            }
        }
        self.forget_unsaid(entries, patch, name);
        Ok(())
    }

    /// Byte sizes and selectors are replaced even by their absence, here as upstream: a patch of a volume must repeat its
    /// `minSize` and its disk selector.
    fn forget_unsaid(&self, entries: &mut Map, patch: &Map, name: &str) {
        for field in self.schema.fields(name).filter(|field| !patch.contains_key(field.name)) {
            match (&field.kind, entries.get_mut(field.name)) {
                (Type::ByteSize | Type::Cel, Some(_)) => {
                    entries.shift_remove(field.name);
                }
                (
                    Type::Struct(inner),
                    Some(Node {
                        value: Value::Map(below),
                        ..
                    }),
                ) => {
                    self.forget_unsaid(below, &Map::new(), inner);
                }
                _ => {}
            }
        }
    }

    fn value(&self, left: &mut Node, right: &Node, kind: &Type, path: &str) -> Result<(), Failure> {
        match kind {
            // Given means meant, even if it is false or zero.
            Type::Optional(inner) if is_scalar(inner) => {
                *left = right.clone();
                Ok(())
            }
            Type::Optional(_) if left.is_null() => {
                *left = right.clone();
                Ok(())
            }
            Type::Optional(inner) => self.value(left, right, inner, path),
            Type::Struct(name) => self.structure(left, right, name, path),
            Type::List(item, merge) => self.list(left, right, item, *merge, path),
            Type::Map(value) => self.map(left, right, value, path),
            Type::Arguments => {
                if let (Some(entries), Some(patch)) = (left.as_map_mut(), right.as_map()) {
                    entries.extend(patch.clone());
                }
                Ok(())
            }
            Type::Object => self.free(left, right, path),
            // Upstream keeps both and writes the bytes.
            Type::Size if is_relative(right) && !is_relative(left) => Ok(()),
            Type::Pem(_) | Type::Bool => {
                *left = right.clone();
                Ok(())
            }
            _ => {
                if !right.is_zero() {
                    *left = right.clone();
                }
                Ok(())
            }
        }
    }

    fn map(&self, left: &mut Node, right: &Node, kind: &Type, path: &str) -> Result<(), Failure> {
        let (Some(entries), Some(patch)) = (left.as_map_mut(), right.as_map()) else {
            return Ok(());
        };
        for (key, value) in patch {
            match entries.get_mut(key).filter(|existing| !existing.is_null()) {
                Some(existing) => self.value(existing, value, kind, &join(path, key))?,
                None => {
                    entries.insert(key.clone(), value.clone());
                }
            }
        }
        Ok(())
    }

    fn list(&self, left: &mut Node, right: &Node, item: &Type, merge: ListMerge, path: &str) -> Result<(), Failure> {
        let (Value::List(items), Some(patch)) = (&mut left.value, right.as_list()) else {
            return Ok(());
        };
        for (index, value) in patch.iter().enumerate() {
            match (merge, matching(items, value, merge)) {
                (ListMerge::ByKey(_), Some(existing)) => {
                    self.value(existing, value, item.inner(), &format!("{path}[{index}]"))?;
                }
                (ListMerge::ReplaceByKey(_), Some(existing)) => *existing = value.clone(),
                (_, _) => items.push(value.clone()),
            }
        }
        Ok(())
    }

    /// Content that only Kubernetes understands: mappings merge, lists grow, other values replace unless they are empty.
    fn free(&self, left: &mut Node, right: &Node, path: &str) -> Result<(), Failure> {
        if left.is_null() {
            *left = right.clone();
            return Ok(());
        }
        let (ours, theirs) = (free_type(left), free_type(right));
        if ours != theirs {
            let problem = PatchProblem::Merge {
                path: path.to_owned(),
                left: ours,
                right: theirs,
            };
            return Err((Some(right.line), problem));
        }
        match (&mut left.value, &right.value) {
            (Value::Map(entries), Value::Map(patch)) => self.free_map(entries, patch, path),
            (Value::List(items), Value::List(patch)) => {
                items.extend(patch.iter().cloned());
                Ok(())
            }
            _ => {
                if !right.is_zero() || right.as_bool().is_some() {
                    *left = right.clone();
                }
                Ok(())
            }
        }
    }

    fn free_map(&self, entries: &mut Map, patch: &Map, path: &str) -> Result<(), Failure> {
        for (key, value) in patch {
            match entries.get_mut(key) {
                Some(existing) => self.free(existing, value, &join(path, key))?,
                None => {
                    entries.insert(key.clone(), value.clone());
                }
            }
        }
        Ok(())
    }
}

/// The item that a patch's item is about. Network cards are told apart by name or, without one, by their selector.
fn matching<'a>(items: &'a mut [Node], value: &Node, merge: ListMerge) -> Option<&'a mut Node> {
    let (ListMerge::ByKey(key) | ListMerge::ReplaceByKey(key)) = merge else {
        return None;
    };
    let same = |key: &str, item: &Node| {
        let given = value.get(key).filter(|given| !given.is_zero());
        given.is_some() && item.get(key) == given
    };
    let keys: &[&str] = if key == "interface" {
        &["interface", "deviceSelector"]
    } else {
        &[key]
    };
    let position = keys.iter().find_map(|key| items.iter().position(|item| same(key, item)))?;
    items.get_mut(position)
}

fn is_relative(size: &Node) -> bool {
    size.as_str().is_some_and(|size| size.contains('%'))
}

fn is_scalar(kind: &Type) -> bool {
    !matches!(
        kind.inner(),
        Type::Struct(_) | Type::List(..) | Type::Map(_) | Type::Arguments | Type::Object | Type::Any | Type::Pem(_)
    )
}

fn free_type(node: &Node) -> &'static str {
    match &node.value {
        Value::Map(_) => "map[string]interface {}",
        Value::List(_) => "[]interface {}",
        Value::Scalar(scalar) => match scalar.kind {
            ScalarKind::Null => "nil",
            ScalarKind::Bool => "bool",
            ScalarKind::Int => "int",
            ScalarKind::Float => "float64",
            ScalarKind::Timestamp => "time.Time",
            ScalarKind::Text => "string",
        },
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}
