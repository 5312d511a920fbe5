//! Text to config, as strict as a node: unknown documents, unknown keys and values of the wrong type are errors.

use std::collections::BTreeSet;
use std::fmt;

use crate::config::{Config, Document, DocumentId, LEGACY_KIND};
use crate::scalars;
use crate::schema::{Schema, Type};
use crate::secret_paths;
use crate::versions::Contract;
use crate::yaml::{self, Map, Node, Scalar, ScalarKind, SyntaxError, Value};

/// Why a text is not a machine config. The texts are those of Talos; values that may be secrets are masked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("decode error: yaml: {problem}")]
    Syntax { line: usize, problem: String },
    #[error("config not found")]
    Empty,
    #[error("expected a YAML document at line {line}")]
    NotMapping { line: usize },
    #[error("duplicate document {id} is not allowed (line {line})")]
    Duplicate { id: DocumentId, line: usize },
    #[error("conflicting documents: {0} and {1}")]
    Conflict(String, String),
    #[error("error decoding document {id} (line {line}): {problem}")]
    Decode {
        id: DocumentId,
        line: usize,
        problem: Box<Problem>,
    },
}

impl ConfigError {
    /// The line to look at, where there is one.
    pub fn line(&self) -> Option<usize> {
        match self {
            Self::Empty | Self::Conflict(..) => None,
            Self::Syntax { line, .. } | Self::NotMapping { line } | Self::Duplicate { line, .. } => Some(*line),
            Self::Decode { line, problem, .. } => Some(problem.line().unwrap_or(*line)),
        }
    }
}

impl From<SyntaxError> for ConfigError {
    fn from(error: SyntaxError) -> Self {
        Self::Syntax {
            line: error.line,
            problem: format!("line {}: {}", error.line, error.problem),
        }
    }
}

/// What is wrong with one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    MissingKind,
    MissingApiVersion,
    UnknownKind {
        kind: String,
        api_version: String,
    },
    Values {
        kind: String,
        type_name: String,
        errors: Vec<(usize, String)>,
        wording: Wording,
    },
    /// From Talos 1.14: items of lists and mappings that are null.
    Nulls {
        places: Vec<(usize, String)>,
    },
    UnknownKeys {
        keys: Vec<(usize, String)>,
        shown: String,
    },
}

/// How the YAML library of a Talos version puts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wording {
    Unmarshal,
    Construct,
    ConstructInline,
}

impl Wording {
    fn of(contract: Contract) -> Self {
        match contract.minor {
            ..13 => Self::Unmarshal,
            13 => Self::Construct,
            _ => Self::ConstructInline,
        }
    }

    fn verb(self) -> &'static str {
        match self {
            Self::Unmarshal => "unmarshal",
            Self::Construct | Self::ConstructInline => "construct",
        }
    }
}

impl Problem {
    fn line(&self) -> Option<usize> {
        match self {
            Self::Values { errors: found, .. } | Self::UnknownKeys { keys: found, .. } | Self::Nulls { places: found } => {
                found.first().map(|(line, _)| *line)
            }
            Self::MissingKind | Self::MissingApiVersion | Self::UnknownKind { .. } => None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingKind => f.write_str("missing kind"),
            Self::MissingApiVersion => f.write_str("missing apiVersion"),
            Self::UnknownKind { kind, api_version } => write!(f, "{kind:?} {api_version:?}: not registered"),
            Self::Values {
                kind,
                type_name,
                errors,
                wording,
            } => {
                write!(f, "error decoding {kind} to *{type_name}: yaml: {} errors:", wording.verb())?;
                let lines = errors.iter().map(|(line, error)| format!("line {line}: {error}"));
                match wording {
                    Wording::ConstructInline => write!(f, " {}", lines.collect::<Vec<_>>().join("; ")),
                    Wording::Unmarshal | Wording::Construct => lines.into_iter().try_for_each(|line| write!(f, "\n  {line}")),
                }
            }
            Self::Nulls { places } => {
                let text = |(line, path): &(usize, String)| format!("null value is not allowed at {path:?} (line {line})");
                f.write_str(&places.iter().map(text).collect::<Vec<_>>().join("\n"))
            }
            Self::UnknownKeys { shown, .. } => write!(f, "unknown keys found during decoding:\n{shown}"),
        }
    }
}

impl Config {
    /// Reads a config as a node of this version would.
    pub fn parse(text: &str, contract: Contract) -> Result<Self, ConfigError> {
        let documents = yaml::parse_documents(text)?;
        let roots = documents.into_iter().map(|document| document.root);
        let config = Self {
            documents: decode_all(roots, Schema::of(contract))?,
        };
        if config.documents.is_empty() {
            Err(ConfigError::Empty)
        } else {
            Ok(config)
        }
    }
}

pub(crate) fn decode_all(roots: impl Iterator<Item = Node>, schema: Schema) -> Result<Vec<Document>, ConfigError> {
    let mut seen = BTreeSet::new();
    let mut documents = Vec::new();
    for root in roots.filter(|root| !root.is_null()) {
        let document = decode_document(&root, schema, &mut seen)?;
        documents.push(document);
    }
    check_conflicts(&documents)?;
    Ok(documents)
}

fn decode_document(root: &Node, schema: Schema, seen: &mut BTreeSet<DocumentId>) -> Result<Document, ConfigError> {
    let line = root.line;
    let Some(entries) = root.as_map() else {
        return Err(ConfigError::NotMapping { line });
    };
    let id = DocumentId::of(root);
    if !seen.insert(id.clone()) {
        return Err(ConfigError::Duplicate { id, line });
    }
    let fail = |problem| ConfigError::Decode {
        id: id.clone(),
        line,
        problem: Box::new(problem),
    };
    let type_name = document_type(entries, schema).map_err(fail)?;
    let body = Decoder::document(root, type_name, &id, schema).map_err(fail)?;
    Ok(Document { id: id.clone(), body })
}

/// Which mapping the document is. A document with one of the old top-level keys needs neither kind nor version.
fn document_type(entries: &Map, schema: Schema) -> Result<&'static str, Problem> {
    let read = |key| entries.get(key).and_then(Node::as_str).unwrap_or_default().to_owned();
    let (mut api_version, kind) = (read("apiVersion"), read("kind"));
    if ["machine", "cluster", "debug", "persist"]
        .iter()
        .any(|key| entries.contains_key(*key))
    {
        LEGACY_KIND.clone_into(&mut api_version);
    }
    match (api_version.as_str(), kind.as_str()) {
        ("v1alpha1", "") => Ok(schema.legacy()),
        (_, "") => Err(Problem::MissingKind),
        ("", _) => Err(Problem::MissingApiVersion),
        ("v1alpha1", kind) if kind != LEGACY_KIND => schema.kind(kind).ok_or_else(|| Problem::UnknownKind {
            kind: kind.to_owned(),
            api_version: api_version.clone(),
        }),
        _ => Err(Problem::UnknownKind { kind, api_version }),
    }
}

/// Documents of different kinds that would make the same link, volume or address.
fn check_conflicts(documents: &[Document]) -> Result<(), ConfigError> {
    const LINKS: [&str; 7] = [
        "BondConfig",
        "BridgeConfig",
        "DummyLinkConfig",
        "LinkConfig",
        "VLANConfig",
        "VRFConfig",
        "WireguardConfig",
    ];
    const GROUPS: [&[&str]; 3] = [
        &LINKS,
        &["ExistingVolumeConfig", "UserVolumeConfig"],
        &["HCloudVIPConfig", "Layer2VIPConfig"],
    ];
    for (index, later) in documents.iter().enumerate() {
        for earlier in &documents[..index] {
            let pair = [earlier.id.kind.as_str(), later.id.kind.as_str()];
            let conflicting = pair[0] != pair[1] && GROUPS.iter().any(|group| pair.iter().all(|kind| group.contains(kind)));
            if conflicting && earlier.id.name == later.id.name {
                let name = |id: &DocumentId| format!("{}/{}", id.kind, id.name);
                return Err(ConfigError::Conflict(name(&earlier.id), name(&later.id)));
            }
        }
    }
    Ok(())
}

struct Decoder {
    schema: Schema,
    errors: Vec<(usize, String)>,
}

impl Decoder {
    fn document(root: &Node, type_name: &'static str, id: &DocumentId, schema: Schema) -> Result<Node, Problem> {
        let mut decoder = Self {
            schema,
            errors: Vec::new(),
        };
        let is_legacy = id.is_legacy();
        let body = decoder.structure(root, type_name).unwrap_or_else(Node::empty_map);
        if !decoder.errors.is_empty() {
            let kind = if is_legacy { String::new() } else { id.kind.clone() };
            let wording = Wording::of(schema.contract);
            return Err(Problem::Values {
                kind,
                type_name: type_name.to_owned(),
                errors: decoder.errors,
                wording,
            });
        }
        let mut places = Vec::new();
        if schema.contract >= Contract::new(1, 14) {
            find_nulls(root, &Type::Struct(type_name), "", schema, &mut places);
        }
        if !places.is_empty() {
            return Err(Problem::Nulls { places });
        }
        let mut unknown = Unknown {
            schema,
            keys: Vec::new(),
        };
        match unknown.find(root, &Type::Struct(type_name), "") {
            Some(found) => {
                let shown = yaml::emit(&secret_paths::masked_unknown(&found));
                Err(Problem::UnknownKeys {
                    keys: unknown.keys,
                    shown,
                })
            }
            None => Ok(body),
        }
    }

    fn structure(&mut self, node: &Node, name: &'static str) -> Option<Node> {
        let Some(entries) = node.as_map() else {
            return self.mismatch(node, &Type::Struct(name));
        };
        let mut decoded = Map::new();
        for (key, value) in entries {
            if is_meta(name, key, self.schema) {
                decoded.insert(
                    key.clone(),
                    Node::at(value.line, Value::Scalar(Scalar::text(value.as_str().unwrap_or_default()))),
                );
            } else if let Some(field) = self.schema.field(name, key)
                && let Some(value) = self.value(value, &field.kind)
            {
                decoded.insert(key.clone(), value);
            }
        }
        Some(Node::at(node.line, Value::Map(decoded)))
    }

    /// The value as its type has it; nothing for null and for what is wrong.
    fn value(&mut self, node: &Node, kind: &Type) -> Option<Node> {
        if node.is_null() {
            return None;
        }
        match kind {
            Type::Optional(inner) => self.value(node, inner),
            Type::Struct(name) => self.structure(node, name),
            Type::List(item, _) => self.list(node, item, kind),
            Type::Map(value) => self.map(node, value, kind),
            Type::Arguments => self.map(node, &Type::Argument, kind),
            Type::Pem(fields) => self.pem(node, fields, kind),
            Type::Object if node.as_map().is_none() => self.mismatch(node, kind),
            Type::Object | Type::Any => Some(plain(node)),
            Type::Argument if node.as_list().is_some() => self.list(node, &Type::Text, kind),
            _ => self.scalar(node, kind),
        }
    }

    fn list(&mut self, node: &Node, item: &Type, kind: &Type) -> Option<Node> {
        let Some(items) = node.as_list() else {
            return self.mismatch(node, kind);
        };
        let absent = |line| Node::at(line, Value::Scalar(Scalar::null()));
        let items = items
            .iter()
            .map(|value| self.value(value, item).unwrap_or_else(|| absent(value.line)))
            .collect();
        Some(Node::at(node.line, Value::List(items)))
    }

    fn map(&mut self, node: &Node, value: &Type, kind: &Type) -> Option<Node> {
        let Some(entries) = node.as_map() else {
            return self.mismatch(node, kind);
        };
        let mut decoded = Map::new();
        for (key, found) in entries {
            let absent = || {
                if matches!(value, Type::Optional(_)) {
                    Node::null()
                } else {
                    zero(value, self.schema)
                }
            };
            let value = if found.is_null() {
                Some(absent())
            } else {
                self.value(found, value)
            };
            decoded.extend(value.map(|value| (key.clone(), value)));
        }
        Some(Node::at(node.line, Value::Map(decoded)))
    }

    /// All fields are always there: a pair given without its key has an empty key.
    fn pem(&mut self, node: &Node, fields: &[&str], kind: &Type) -> Option<Node> {
        let Some(entries) = node.as_map() else {
            return self.mismatch(node, kind);
        };
        let mut decoded = Map::new();
        for field in fields {
            let found = entries.get(*field).filter(|found| !found.is_null());
            let value = found.and_then(|found| self.scalar(found, &Type::Base64));
            decoded.insert((*field).to_owned(), value.unwrap_or_else(|| Node::text("")));
        }
        Some(Node::at(node.line, Value::Map(decoded)))
    }

    fn scalar(&mut self, node: &Node, kind: &Type) -> Option<Node> {
        let Some(scalar) = node.as_scalar() else {
            return self.mismatch(node, kind);
        };
        match scalars::decode(scalar, kind, self.schema) {
            Ok(decoded) => Some(Node::at(node.line, Value::Scalar(decoded))),
            Err(Some(problem)) => {
                self.errors.push((node.line, problem));
                None
            }
            Err(None) => self.mismatch(node, kind),
        }
    }

    fn mismatch(&mut self, node: &Node, kind: &Type) -> Option<Node> {
        let found = match &node.value {
            Value::Map(_) => "!!map".to_owned(),
            Value::List(_) => "!!seq".to_owned(),
            Value::Scalar(scalar) => format!("{} `{}`", tag(scalar.kind), excerpt(&scalar.text)),
        };
        let verb = Wording::of(self.schema.contract).verb();
        self.errors
            .push((node.line, format!("cannot {} {found} into {}", verb, kind.go_name())));
        None
    }
}

fn is_meta(name: &str, key: &str, schema: Schema) -> bool {
    matches!(key, "apiVersion" | "kind") && schema.is_document(name)
}

fn tag(kind: ScalarKind) -> &'static str {
    match kind {
        ScalarKind::Null => "!!null",
        ScalarKind::Bool => "!!bool",
        ScalarKind::Int => "!!int",
        ScalarKind::Float => "!!float",
        ScalarKind::Timestamp => "!!timestamp",
        ScalarKind::Text => "!!str",
    }
}

/// As much of a value as tells what it is; a longer one may be a secret in the wrong place.
fn excerpt(text: &str) -> &str {
    if text.chars().count() > 10 { "***" } else { text }
}

/// Free-form content, with numbers in their usual spelling.
fn plain(node: &Node) -> Node {
    let value = match &node.value {
        Value::Map(entries) => Value::Map(entries.iter().map(|(key, value)| (key.clone(), plain(value))).collect()),
        Value::List(items) => Value::List(items.iter().map(plain).collect()),
        Value::Scalar(scalar) => Value::Scalar(scalars::canonical(scalar)),
    };
    Node::at(node.line, value)
}

/// What is written for a key that is absent but never left out.
pub(crate) fn zero(kind: &Type, schema: Schema) -> Node {
    match kind {
        Type::Optional(_) | Type::Any => Node::null(),
        Type::List(..) => Value::List(Vec::new()).into(),
        Type::Map(_) | Type::Arguments | Type::Object => Node::empty_map(),
        Type::Bool => Value::Scalar(Scalar::bool(false)).into(),
        Type::Int(_) | Type::Float => Value::Scalar(Scalar::int(0)).into(),
        Type::Duration => Node::text("0s"),
        Type::FileMode => Value::Scalar(scalars::mode(0)).into(),
        Type::Enum(name) => Node::text(schema.words(name).first().copied().unwrap_or_default()),
        Type::Struct(_) => canonical(&Node::empty_map(), kind, schema),
        _ => Node::text(""),
    }
}

/// The config as Talos writes it: keys in their order, empty ones left out or written as their kind demands.
pub(crate) fn canonical(node: &Node, kind: &Type, schema: Schema) -> Node {
    let value = match (kind, &node.value) {
        (Type::Optional(inner), _) => return canonical(node, inner, schema),
        (Type::Struct(name), Value::Map(entries)) => Value::Map(canonical_fields(entries, name, schema)),
        (Type::List(item, _), Value::List(items)) => {
            Value::List(items.iter().map(|value| canonical(value, item, schema)).collect())
        }
        (Type::Map(item), Value::Map(entries)) => {
            let mut entries: Map = entries
                .iter()
                .map(|(key, value)| (key.clone(), canonical(value, item, schema)))
                .collect();
            entries.sort_keys();
            Value::Map(entries)
        }
        (Type::Object | Type::Any | Type::Arguments, _) => sorted(node).value,
        (_, value) => value.clone(),
    };
    Node::at(node.line, value)
}

fn canonical_fields(entries: &Map, name: &str, schema: Schema) -> Map {
    let mut fields = Map::new();
    for key in ["apiVersion", "kind"].into_iter().filter(|key| is_meta(name, key, schema)) {
        fields.extend(entries.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    for field in schema.fields(name) {
        match entries.get(field.name) {
            Some(value) if field.omit_empty && is_empty(value, &field.kind, schema) => {}
            Some(value) => {
                fields.insert(field.name.to_owned(), canonical(value, &field.kind, schema));
            }
            None if field.omit_empty => {}
            None => {
                fields.insert(field.name.to_owned(), zero(&field.kind, schema));
            }
        }
    }
    fields
}

/// Whether Go would leave the value out. What is optional and there is never empty.
pub(crate) fn is_empty(node: &Node, kind: &Type, schema: Schema) -> bool {
    match (kind, &node.value) {
        (Type::Optional(_), _) => false,
        (Type::Struct(name), Value::Map(entries)) => entries.iter().all(|(key, value)| match schema.field(name, key) {
            Some(field) => is_empty(value, &field.kind, schema),
            None => true,
        }),
        (Type::Enum(name), _) => node.as_str() == schema.words(name).first().copied(),
        (Type::Duration, _) => node.as_str() == Some("0s"),
        _ => node.is_zero(),
    }
}

fn sorted(node: &Node) -> Node {
    let value = match &node.value {
        Value::Map(entries) => {
            let mut entries: Map = entries.iter().map(|(key, value)| (key.clone(), sorted(value))).collect();
            entries.sort_keys();
            Value::Map(entries)
        }
        Value::List(items) => Value::List(items.iter().map(sorted).collect()),
        Value::Scalar(_) => node.value.clone(),
    };
    Node::at(node.line, value)
}

fn find_nulls(node: &Node, kind: &Type, path: &str, schema: Schema, found: &mut Vec<(usize, String)>) {
    let below = |key: &str| {
        if path.is_empty() {
            key.to_owned()
        } else {
            format!("{path}.{key}")
        }
    };
    let mut item = |value: &Node, kind: &Type, path: String| {
        if value.is_null() && matches!(kind, Type::Optional(_)) {
            found.push((value.line, path));
        } else {
            find_nulls(value, kind, &path, schema, found);
        }
    };
    match (kind.inner(), &node.value) {
        (Type::Struct(name), Value::Map(entries)) => {
            for (key, value) in entries {
                if let Some(field) = schema.field(name, key) {
                    find_nulls(value, &field.kind, &below(key), schema, found);
                }
            }
        }
        (Type::Map(inner), Value::Map(entries)) => entries.iter().for_each(|(key, value)| item(value, inner, below(key))),
        (Type::List(inner, _), Value::List(items)) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, value)| item(value, inner, format!("{path}[{index}]")));
        }
        _ => {}
    }
}

/// Finds the part of a tree that its type does not know.
struct Unknown {
    schema: Schema,
    /// Line and path of each unknown key.
    keys: Vec<(usize, String)>,
}

impl Unknown {
    fn find(&mut self, node: &Node, kind: &Type, path: &str) -> Option<Node> {
        let below = |key: &str| {
            if path.is_empty() {
                key.to_owned()
            } else {
                format!("{path}.{key}")
            }
        };
        match (kind.inner(), &node.value) {
            (Type::Struct(name), Value::Map(entries)) => keyed(entries.iter().filter_map(|(key, value)| {
                let found = match self.schema.field(name, key) {
                    Some(field) => self.find(value, &field.kind, &below(key))?,
                    None if is_meta(name, key, self.schema) => return None,
                    None => self.note(value, below(key)),
                };
                Some((key.clone(), found))
            })),
            (Type::Map(inner), Value::Map(entries)) => keyed(
                entries
                    .iter()
                    .filter_map(|(key, value)| Some((key.clone(), self.find(value, inner, &below(key))?))),
            ),
            (Type::Pem(fields), Value::Map(entries)) => {
                let unknown = entries.iter().filter(|(key, _)| !fields.contains(&key.as_str()));
                keyed(unknown.map(|(key, value)| (key.clone(), self.note(value, below(key)))))
            }
            (Type::List(inner, _), Value::List(items)) => {
                let found = |(index, item)| self.find(item, inner, &format!("{path}[{index}]"));
                let found: Vec<Node> = items.iter().enumerate().filter_map(found).collect();
                (!found.is_empty()).then(|| Value::List(found).into())
            }
            _ => None,
        }
    }

    fn note(&mut self, value: &Node, path: String) -> Node {
        self.keys.push((value.key_line, path));
        value.clone()
    }
}

fn keyed(entries: impl Iterator<Item = (String, Node)>) -> Option<Node> {
    let mut entries: Map = entries.collect();
    entries.sort_keys();
    (!entries.is_empty()).then(|| Value::Map(entries).into())
}
