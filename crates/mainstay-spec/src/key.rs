//! What a key of cluster.yaml is. A key is declared once, as a static `Key<T>`; that declaration reads its value, checks it, and
//! makes the JSON Schema and the reference page.

use crate::diagnostic::ValueError;
use crate::naming::Naming;
use crate::source::Spanned;
use crate::tree::{self, Value, YamlKind, YamlNode};
use crate::value::{self, Range, Read};

/// A key whose value is a `T`.
pub(crate) struct Key<T: 'static> {
    name: &'static str,
    value: &'static dyn Type<T>,
    doc: &'static str,
    default: &'static str,
    required: bool,
    support: Support,
    also: &'static [&'static str],
}

/// Whether this version acts on a key or value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Support {
    Now,
    /// Read and checked, then refused by name: this version does not support it.
    Later,
    /// Known, and refused for good.
    Never {
        why: &'static str,
        help: &'static str,
    },
}

impl<T> Key<T> {
    pub(crate) const fn new(name: &'static str, value: &'static dyn Type<T>, doc: &'static str) -> Self {
        Self {
            name,
            value,
            doc,
            default: "",
            required: false,
            support: Support::Now,
            also: &[],
        }
    }

    pub(crate) const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// What the key means when it is left out: a value as it would be written, or a description of how it is chosen.
    pub(crate) const fn default(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    /// Switches the key off: it is refused by name until this line is removed.
    pub(crate) const fn later(mut self) -> Self {
        self.support = Support::Later;
        self
    }

    pub(crate) const fn never(mut self, why: &'static str, help: &'static str) -> Self {
        self.support = Support::Never { why, help };
        self
    }

    /// What other tools call it.
    pub(crate) const fn also(mut self, also: &'static [&'static str]) -> Self {
        self.also = also;
        self
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn read(&self, node: &YamlNode) -> Option<T> {
        self.value.read(node)
    }

    /// The default, where it is written as a value.
    pub(crate) fn default_value(&self) -> Option<T> {
        let documents = tree::parse_all(self.default).ok()?;
        self.read(documents.first()?)
    }
}

impl Key<NamedInside> {
    /// Whether a section below this key may have this name.
    pub(crate) fn takes_name(&self, name: &str) -> bool {
        matches!(self.value.value_type(), ValueType::Named(naming, _) if (naming.fits)(name))
    }
}

/// A key without its Rust type.
pub(crate) trait AnyKey: Sync {
    fn info(&self) -> KeyInfo;
}

/// What the type check, the schema and the reference page need to know of a key.
#[derive(Clone, Copy)]
pub(crate) struct KeyInfo {
    pub name: &'static str,
    pub value_type: ValueType,
    pub doc: &'static str,
    pub default: &'static str,
    pub required: bool,
    pub support: Support,
    pub also: &'static [&'static str],
}

impl<T> AnyKey for Key<T> {
    fn info(&self) -> KeyInfo {
        KeyInfo {
            name: self.name,
            value_type: self.value.value_type(),
            doc: self.doc,
            default: self.default,
            required: self.required,
            support: self.support,
            also: self.also,
        }
    }
}

/// A key of a pool on a single machine: it has no default there, because the pool has the value, and may need another description.
pub(crate) struct MachineKey {
    key: &'static dyn AnyKey,
    doc: &'static str,
}

impl MachineKey {
    pub(crate) const fn same(key: &'static dyn AnyKey) -> Self {
        Self { key, doc: "" }
    }

    pub(crate) const fn new(key: &'static dyn AnyKey, doc: &'static str) -> Self {
        Self { key, doc }
    }
}

impl AnyKey for MachineKey {
    fn info(&self) -> KeyInfo {
        let info = self.key.info();
        KeyInfo {
            doc: if self.doc.is_empty() { info.doc } else { self.doc },
            default: "",
            ..info
        }
    }
}

/// Keys that belong together: the file itself, or a value with keys of its own.
pub(crate) struct Section {
    pub keys: &'static [&'static dyn AnyKey],
}

impl Section {
    pub(crate) fn keys(&self) -> impl Iterator<Item = KeyInfo> {
        self.keys.iter().map(|key| key.info())
    }

    pub(crate) fn key(&self, name: &str) -> Option<KeyInfo> {
        self.keys().find(|key| key.name == name)
    }
}

/// What a value may be, without its Rust type.
#[derive(Clone, Copy)]
pub(crate) enum ValueType {
    Flag,
    Int {
        min: u32,
        max: u32,
    },
    Word(&'static dyn AnyWord),
    Name(&'static Naming),
    Choice(&'static dyn AnyChoices),
    List(&'static dyn AnyType),
    Section(&'static Section),
    /// Keys are names of things, values are all alike.
    Named(&'static Naming, &'static Section),
    Labels,
    Either(&'static dyn AnyType, &'static dyn AnyType),
    /// A section whose keys belong to another program.
    Settings,
    /// Free-form: the schema belongs to another program.
    Anything,
}

/// A type of values, without its Rust type.
pub(crate) trait AnyType: Sync {
    fn value_type(&'static self) -> ValueType;
}

/// A type of values that reads them. `None` is a value that the type check has reported.
pub(crate) trait Type<T>: AnyType {
    fn read(&self, node: &YamlNode) -> Option<T>;
}

/// `true` or `false`.
pub(crate) struct Flag;

impl AnyType for Flag {
    fn value_type(&'static self) -> ValueType {
        ValueType::Flag
    }
}

impl Type<bool> for Flag {
    fn read(&self, node: &YamlNode) -> Option<bool> {
        (node.kind() == YamlKind::Flag).then(|| node.text().is_some_and(|text| text.eq_ignore_ascii_case("true")))
    }
}

/// A whole number.
pub(crate) struct Int {
    pub min: u32,
    pub max: u32,
}

impl AnyType for Int {
    fn value_type(&'static self) -> ValueType {
        ValueType::Int {
            min: self.min,
            max: self.max,
        }
    }
}

impl Type<u32> for Int {
    fn read(&self, node: &YamlNode) -> Option<u32> {
        let number = value::integer(node.text()?).filter(|_| node.kind() == YamlKind::Integer)?;
        u32::try_from(number).ok().filter(|number| *number <= self.max)
    }
}

/// A scalar with a grammar of its own.
pub(crate) struct Word<T> {
    what: &'static str,
    read: fn(&str) -> Read<T>,
    numbers: Numbers,
    /// For JSON Schema: accepts at least what `read` accepts.
    pattern: &'static str,
    example: &'static str,
}

/// Which unquoted numbers a word may look like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbers {
    None,
    Integers,
    All,
}

impl<T> Word<T> {
    pub(crate) const fn new(what: &'static str, read: fn(&str) -> Read<T>, pattern: &'static str, example: &'static str) -> Self {
        Self {
            what,
            read,
            numbers: Numbers::None,
            pattern,
            example,
        }
    }

    pub(crate) const fn numbers(mut self, numbers: Numbers) -> Self {
        self.numbers = numbers;
        self
    }
}

/// A word without its Rust type.
pub(crate) trait AnyWord: Sync {
    fn check(&self, text: &str) -> Result<(), ValueError>;
    fn info(&self) -> WordInfo;
}

#[derive(Clone, Copy)]
pub(crate) struct WordInfo {
    pub what: &'static str,
    pub numbers: Numbers,
    pub pattern: &'static str,
    pub example: &'static str,
}

impl<T> AnyWord for Word<T> {
    fn check(&self, text: &str) -> Result<(), ValueError> {
        (self.read)(text).map(drop)
    }

    fn info(&self) -> WordInfo {
        WordInfo {
            what: self.what,
            numbers: self.numbers,
            pattern: self.pattern,
            example: self.example,
        }
    }
}

impl<T> AnyType for Word<T> {
    fn value_type(&'static self) -> ValueType {
        ValueType::Word(self)
    }
}

impl<T> Type<T> for Word<T> {
    fn read(&self, node: &YamlNode) -> Option<T> {
        (self.read)(node.text()?).ok()
    }
}

impl AnyType for Naming {
    fn value_type(&'static self) -> ValueType {
        ValueType::Name(self)
    }
}

impl Type<String> for Naming {
    fn read(&self, node: &YamlNode) -> Option<String> {
        Self::read(self, node.text()?).ok()
    }
}

/// One of several words.
pub(crate) struct Choices<T: 'static>(pub &'static [Choice<T>]);

pub(crate) struct Choice<T> {
    word: &'static str,
    value: T,
    support: Support,
}

impl<T> Choice<T> {
    pub(crate) const fn now(word: &'static str, value: T) -> Self {
        Self {
            word,
            value,
            support: Support::Now,
        }
    }

    /// A value that is refused by name until it says `now`.
    pub(crate) const fn later(word: &'static str, value: T) -> Self {
        Self {
            word,
            value,
            support: Support::Later,
        }
    }
}

/// Choices without their Rust type.
pub(crate) trait AnyChoices: Sync {
    fn words(&self) -> Vec<ChoiceInfo>;
}

#[derive(Clone, Copy)]
pub(crate) struct ChoiceInfo {
    pub word: &'static str,
    pub support: Support,
}

impl<T: Sync> AnyChoices for Choices<T> {
    fn words(&self) -> Vec<ChoiceInfo> {
        let info = |choice: &Choice<T>| ChoiceInfo {
            word: choice.word,
            support: choice.support,
        };
        self.0.iter().map(info).collect()
    }
}

impl<T: Sync> AnyType for Choices<T> {
    fn value_type(&'static self) -> ValueType {
        ValueType::Choice(self)
    }
}

impl<T: Copy + Sync> Type<T> for Choices<T> {
    fn read(&self, node: &YamlNode) -> Option<T> {
        let text = node.text()?;
        self.0.iter().find(|choice| choice.word == text).map(|choice| choice.value)
    }
}

/// A list whose items are all alike.
pub(crate) struct List<T: 'static>(pub &'static dyn Type<T>);

/// The items of a list that can be read; the others were reported.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Items<T> {
    pub readable: Vec<Spanned<T>>,
    pub complete: bool,
}

impl<T> AnyType for List<T> {
    fn value_type(&'static self) -> ValueType {
        ValueType::List(&self.0)
    }
}

/// So that a list can hold its item's type as one that knows nothing of `T`.
impl<T> AnyType for &'static dyn Type<T> {
    fn value_type(&'static self) -> ValueType {
        (**self).value_type()
    }
}

impl<T> Type<Items<T>> for List<T> {
    fn read(&self, node: &YamlNode) -> Option<Items<T>> {
        let Value::List(items) = &node.value else { return None };
        let item = |node: &YamlNode| self.0.read(node).map(|value| Spanned { value, span: node.span });
        let readable: Vec<Spanned<T>> = items.iter().filter_map(item).collect();
        Some(Items {
            complete: readable.len() == items.len(),
            readable,
        })
    }
}

/// One range, or a list of ranges that are counted through one after the other.
pub(crate) struct Ranges {
    pub one: &'static Word<Range>,
    pub list: &'static List<Range>,
}

impl AnyType for Ranges {
    fn value_type(&'static self) -> ValueType {
        ValueType::Either(self.one, self.list)
    }
}

impl Type<Range> for Ranges {
    /// All or nothing, since ordinals count through it.
    fn read(&self, node: &YamlNode) -> Option<Range> {
        if node.kind() != YamlKind::List {
            return self.one.read(node);
        }
        let items = self.list.read(node).filter(|items| items.complete)?;
        Some(Range::join(items.readable.into_iter().map(|item| item.value)))
    }
}

/// Stands for the keys of a section, which `Fields` gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inside;

impl AnyType for Section {
    fn value_type(&'static self) -> ValueType {
        ValueType::Section(self)
    }
}

impl Type<Inside> for Section {
    fn read(&self, _: &YamlNode) -> Option<Inside> {
        Some(Inside)
    }
}

/// A section for each of several things, by name.
pub(crate) struct Named {
    pub naming: &'static Naming,
    pub section: &'static Section,
}

/// Stands for the named sections of a key, which `Fields` gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NamedInside;

impl AnyType for Named {
    fn value_type(&'static self) -> ValueType {
        ValueType::Named(self.naming, self.section)
    }
}

impl Type<NamedInside> for Named {
    fn read(&self, _: &YamlNode) -> Option<NamedInside> {
        Some(NamedInside)
    }
}

/// A value, or a section that says more than the value alone.
pub(crate) struct OrSection<T: 'static> {
    pub value: &'static dyn Type<T>,
    pub section: &'static Section,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ShortOrLong<T> {
    Short(T),
    Long,
}

impl<T> AnyType for OrSection<T> {
    fn value_type(&'static self) -> ValueType {
        ValueType::Either(&self.value, self.section)
    }
}

impl<T> Type<ShortOrLong<T>> for OrSection<T> {
    fn read(&self, node: &YamlNode) -> Option<ShortOrLong<T>> {
        match node.kind() {
            YamlKind::Map => Some(ShortOrLong::Long),
            _ => self.value.read(node).map(ShortOrLong::Short),
        }
    }
}

/// Kubernetes labels, in the order of the file.
pub(crate) struct Labels;

impl AnyType for Labels {
    fn value_type(&'static self) -> ValueType {
        ValueType::Labels
    }
}

impl Type<Vec<(Spanned<String>, String)>> for Labels {
    fn read(&self, node: &YamlNode) -> Option<Vec<(Spanned<String>, String)>> {
        let Value::Map(entries) = &node.value else { return None };
        let label = |entry: &tree::YamlEntry| {
            let value = match entry.value.kind() {
                // A label without a value is a label with an empty one.
                YamlKind::Nothing => "",
                _ => entry.value.text()?,
            };
            let key = Spanned {
                value: entry.key.clone(),
                span: entry.key_span,
            };
            Some((key, value.to_owned()))
        };
        Some(entries.iter().filter_map(label).collect())
    }
}

/// A section whose keys belong to another program. `null` is a value there.
pub(crate) struct Settings;

/// The keys of such a section, in the order of the file.
pub(crate) type SettingList = Vec<(Spanned<String>, serde_json::Value)>;

impl AnyType for Settings {
    fn value_type(&'static self) -> ValueType {
        ValueType::Settings
    }
}

impl Type<SettingList> for Settings {
    fn read(&self, node: &YamlNode) -> Option<SettingList> {
        let Value::Map(entries) = &node.value else { return None };
        let setting = |entry: &tree::YamlEntry| {
            let key = Spanned {
                value: entry.key.clone(),
                span: entry.key_span,
            };
            (key, entry.value.to_json())
        };
        Some(entries.iter().map(setting).collect())
    }
}

/// A value whose schema belongs to another program, or that is refused whatever it is.
pub(crate) struct Anything;

impl AnyType for Anything {
    fn value_type(&'static self) -> ValueType {
        ValueType::Anything
    }
}

/// Stands for a value that is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unread;

impl Type<Unread> for Anything {
    fn read(&self, _: &YamlNode) -> Option<Unread> {
        Some(Unread)
    }
}

/// A flag, or settings that are not read.
pub(crate) struct FlagOrAnything;

impl AnyType for FlagOrAnything {
    fn value_type(&'static self) -> ValueType {
        ValueType::Either(&Flag, &Anything)
    }
}

impl Type<Unread> for FlagOrAnything {
    fn read(&self, _: &YamlNode) -> Option<Unread> {
        Some(Unread)
    }
}
