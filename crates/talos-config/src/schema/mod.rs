//! Which documents and keys Talos knows, by version. The facts are in `table.txt`; this reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use crate::config::LEGACY_KIND;
use crate::versions::Contract;

static TABLE: &str = include_str!("table.txt");

/// What a value may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    Text,
    Bool,
    Int(IntRange),
    Float,
    Duration,
    Prefix,
    Address,
    AddressPort,
    Mac,
    Url,
    Cel,
    ByteSize,
    Size,
    Base64,
    DiskSize,
    DiskSizeMatch,
    FileMode,
    PortRange,
    /// A text or a list of texts.
    Argument,
    Enum(&'static str),
    /// A mapping of base64 fields that is always replaced as a whole.
    Pem(&'static [&'static str]),
    /// Absent and empty are different things.
    Optional(Box<Type>),
    List(Box<Type>, ListMerge),
    Map(Box<Type>),
    /// A mapping of arguments; each key replaces.
    Arguments,
    /// A mapping that Talos hands on without looking inside.
    Object,
    Any,
    Struct(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntRange {
    pub name: &'static str,
    pub min: i128,
    pub max: i128,
}

/// What happens to the items of two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListMerge {
    Append,
    /// Items that agree on this key merge, others are appended.
    ByKey(&'static str),
    /// Items that agree on this key replace each other, others are appended.
    ReplaceByKey(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    since: u64,
    until: u64,
}

impl Span {
    const ALWAYS: Self = Self {
        since: 0,
        until: u64::MAX,
    };

    fn covers(self, contract: Contract) -> bool {
        (self.since..self.until).contains(&contract.minor)
    }
}

#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub kind: Type,
    pub omit_empty: bool,
    pub replace: bool,
    span: Span,
}

#[derive(Debug, Default)]
struct Table {
    kinds: BTreeMap<&'static str, (&'static str, Vec<Span>)>,
    documents: BTreeSet<&'static str>,
    enums: BTreeMap<&'static str, Vec<&'static str>>,
    structs: BTreeMap<&'static str, Vec<Field>>,
}

/// The table as one version sees it.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    table: &'static Table,
    pub contract: Contract,
}

impl Schema {
    pub fn of(contract: Contract) -> Self {
        static READ: OnceLock<Table> = OnceLock::new();
        Self {
            table: READ.get_or_init(|| Table::read(TABLE)),
            contract,
        }
    }

    /// The mapping behind a kind, if this version has it.
    pub fn kind(&self, kind: &str) -> Option<&'static str> {
        let (name, spans) = self.table.kinds.get(kind)?;
        spans.iter().any(|span| span.covers(self.contract)).then_some(*name)
    }

    pub fn legacy(&self) -> &'static str {
        self.kind(LEGACY_KIND).unwrap_or_default()
    }

    /// Whether a mapping is a document and so has `apiVersion` and `kind`. The old one has neither.
    pub fn is_document(&self, name: &str) -> bool {
        name != self.legacy() && self.table.documents.contains(name)
    }

    pub fn fields(&self, name: &str) -> impl Iterator<Item = &'static Field> + use<'_> {
        let contract = self.contract;
        let fields = self.table.structs.get(name).map(Vec::as_slice).unwrap_or_default();
        fields.iter().filter(move |field| field.span.covers(contract))
    }

    pub fn field(&self, name: &str, key: &str) -> Option<&'static Field> {
        self.fields(name).find(|field| field.name == key)
    }

    pub fn words(&self, name: &str) -> &'static [&'static str] {
        self.table.enums.get(name).map(Vec::as_slice).unwrap_or_default()
    }
}

impl Table {
    fn read(text: &'static str) -> Self {
        let mut table = Self::default();
        let mut current = "";
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            let first = words.next().unwrap_or_default();
            match (line.starts_with(' '), first) {
                (true, name) => table.structs.entry(current).or_default().push(Field::read(name, words)),
                (false, "kind") => {
                    let (kind, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                    let entry = table.kinds.entry(kind).or_insert((name, Vec::new()));
                    entry.1.push(span(words));
                    table.documents.insert(name);
                }
                (false, "enum") => {
                    table.enums.insert(words.next().unwrap_or_default(), words.collect());
                }
                (false, _) => {
                    current = words.next().unwrap_or_default();
                    table.structs.entry(current).or_default();
                }
            }
        }
        table
    }
}

impl Field {
    fn read(name: &'static str, mut words: std::str::SplitWhitespace<'static>) -> Self {
        let kind = Type::read(words.next().unwrap_or_default());
        let flags = words.clone().find(|word| word.starts_with(['~', '='])).unwrap_or_default();
        Self {
            name,
            kind,
            omit_empty: flags.contains('~'),
            replace: flags.contains('='),
            span: span(words),
        }
    }
}

fn span(words: impl Iterator<Item = &'static str>) -> Span {
    let mut span = Span::ALWAYS;
    for word in words {
        if let Some(minor) = word.strip_prefix('+') {
            span.since = minor.parse().unwrap_or_default();
        } else if let Some(minor) = word.strip_prefix('-') {
            span.until = minor.parse().unwrap_or(u64::MAX);
        }
    }
    span
}

impl Type {
    fn read(text: &'static str) -> Self {
        if let Some(inner) = text.strip_prefix('?') {
            return Self::Optional(Box::new(Self::read(inner)));
        }
        if let Some(inner) = text.strip_prefix("{}") {
            return Self::Map(Box::new(Self::read(inner)));
        }
        if let Some((key, inner)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            let merge = match (key, key.strip_prefix('=')) {
                ("", _) => ListMerge::Append,
                (_, Some(key)) => ListMerge::ReplaceByKey(key),
                (key, None) => ListMerge::ByKey(key),
            };
            return Self::List(Box::new(Self::read(inner)), merge);
        }
        if let Some(words) = text.strip_prefix("enum:") {
            return Self::Enum(words);
        }
        Self::named(text)
    }

    fn named(text: &'static str) -> Self {
        match text {
            "string" | "disktype" => Self::Text,
            "bool" => Self::Bool,
            "float64" => Self::Float,
            "duration" => Self::Duration,
            "prefix" => Self::Prefix,
            "addr" => Self::Address,
            "addrport" => Self::AddressPort,
            "mac" => Self::Mac,
            "url" => Self::Url,
            "cel" => Self::Cel,
            "bytesize" => Self::ByteSize,
            "size" => Self::Size,
            "base64" => Self::Base64,
            "disksize" => Self::DiskSize,
            "disksizematch" => Self::DiskSizeMatch,
            "filemode" => Self::FileMode,
            "portrange" => Self::PortRange,
            "arg" => Self::Argument,
            "args" => Self::Arguments,
            "object" => Self::Object,
            "any" => Self::Any,
            "pempair" => Self::Pem(&["crt", "key"]),
            "pemcert" => Self::Pem(&["crt"]),
            "pemkey" => Self::Pem(&["key"]),
            _ => IntRange::read(text).map_or(Self::Struct(text), Self::Int),
        }
    }

    /// The type behind `?`.
    pub fn inner(&self) -> &Type {
        match self {
            Self::Optional(inner) => inner.inner(),
            other => other,
        }
    }

    /// The name that Go has for it, as it appears in errors.
    pub fn go_name(&self) -> String {
        match self {
            Self::Text => "string".to_owned(),
            Self::Bool => "bool".to_owned(),
            Self::Float => "float64".to_owned(),
            Self::Int(range) => range.name.to_owned(),
            Self::Duration => "time.Duration".to_owned(),
            Self::Object => "map[string]interface {}".to_owned(),
            Self::Struct(name) => (*name).to_owned(),
            Self::Optional(inner) => inner.go_name(),
            Self::List(item, _) if matches!(**item, Self::Optional(_)) => format!("[]*{}", item.go_name()),
            Self::List(item, _) => format!("[]{}", item.go_name()),
            Self::Map(value) => format!("map[string]{}", value.go_name()),
            Self::Enum(name) => (*name).to_owned(),
            Self::Pem(fields) => pem_name(fields),
            _ => "string".to_owned(),
        }
    }
}

/// The anonymous type through which certificates are read.
fn pem_name(fields: &[&str]) -> String {
    let field = |field: &&str| {
        let (first, rest) = field.split_at(1);
        format!(r#"{}{rest} string "yaml:\"{field}\"""#, first.to_uppercase())
    };
    format!("struct {{ {} }}", fields.iter().map(field).collect::<Vec<_>>().join("; "))
}

impl IntRange {
    fn read(text: &'static str) -> Option<Self> {
        let signed = |bits: u32| (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1);
        let unsigned = |bits: u32| (0, (1i128 << bits) - 1);
        let (min, max) = match text {
            "int" | "int64" => signed(64),
            "int32" => signed(32),
            "int16" => signed(16),
            "int8" => signed(8),
            "uint" | "uint64" => unsigned(64),
            "uint32" => unsigned(32),
            "uint16" => unsigned(16),
            "uint8" => unsigned(8),
            _ => return None,
        };
        Some(Self { name: text, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(minor: u64) -> Schema {
        Schema::of(Contract::new(1, minor))
    }

    #[test]
    fn every_mapping_that_a_key_refers_to_is_in_the_table() {
        fn check(table: &Table, kind: &Type) {
            match kind {
                Type::Struct(name) => assert!(table.structs.contains_key(name), "{name} is missing"),
                Type::Enum(name) => assert!(table.enums.contains_key(name), "{name} is missing"),
                Type::Optional(inner) | Type::List(inner, _) | Type::Map(inner) => check(table, inner),
                _ => {}
            }
        }
        let table = schema(14).table;
        assert!(table.kinds.values().all(|(name, _)| table.structs.contains_key(name)));
        table.structs.values().flatten().for_each(|field| check(table, &field.kind));
    }

    #[test]
    fn documents_appear_with_their_version() {
        let known = |kind| [11, 12, 13, 14].map(|minor| schema(minor).kind(kind).is_some());
        assert_eq!(known("ExtensionServiceConfig"), [true, true, true, true]);
        assert_eq!(known("HostnameConfig"), [false, true, true, true]);
        assert_eq!(known("KubeSpanConfig"), [false, false, true, true]);
        assert_eq!(known("KubeletConfig"), [false, false, false, true]);
    }

    #[test]
    fn keys_appear_with_their_version() {
        let known = [11, 12, 13].map(|minor| schema(minor).field("v1alpha1.InstallConfig", "grubUseUKICmdline").is_some());
        assert_eq!(known, [false, true, true]);
    }
}
