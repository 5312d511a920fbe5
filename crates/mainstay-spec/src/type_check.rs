//! Compares a tree with the declared keys: unknown keys, values of a wrong type, values that cannot be read, unsupported keys.

use crate::diagnostic::{Diagnostic, quote};
use crate::key::{AnyChoices, AnyType, AnyWord, ChoiceInfo, KeyInfo, Numbers, Section, Support, ValueType};
use crate::keys;
use crate::mask::is_secret_key;
use crate::naming::{self, Naming};
use crate::source::Span;
use crate::tree::{Value, YamlEntry, YamlKind, YamlNode};
use crate::value;

/// Reports every key and value that does not fit its declaration. Later readers may skip what is unreadable, because it has been
/// reported. False if the file has no keys at all.
pub(crate) fn check(root: &YamlNode, faults: &mut Vec<Diagnostic>) -> bool {
    if root.kind() != YamlKind::Map {
        faults.push(not_a_file(root));
        return false;
    }
    let start = root.entries().first().map_or(root.span, |entry| Span {
        end: entry.key_span.start,
        ..entry.key_span
    });
    TypeChecker { faults }.section(root, &keys::FILE, &KeyPath::new("", start));
    true
}

struct TypeChecker<'f> {
    faults: &'f mut Vec<Diagnostic>,
}

/// The key under which a value stands.
struct KeyPath<'a> {
    name: &'a str,
    key_span: Span,
    item: bool,
}

impl<'a> KeyPath<'a> {
    fn new(name: &'a str, key_span: Span) -> Self {
        Self {
            name,
            key_span,
            item: false,
        }
    }

    fn named(&self) -> String {
        match (self.name, self.item) {
            ("", _) => "the file".to_owned(),
            (name, false) => quote(name),
            (name, true) => format!("an item of {}", quote(name)),
        }
    }
}

impl TypeChecker<'_> {
    fn section(&mut self, node: &YamlNode, section: &'static Section, place: &KeyPath<'_>) {
        for entry in node.entries() {
            match section.key(&entry.key) {
                Some(key) => self.key(entry, key),
                None => self.faults.push(unknown_key(entry, section, place)),
            }
        }
        for key in section.keys().filter(|key| key.required && node.entry(key.name).is_none()) {
            // A misspelt key is reported as such, not as missing too.
            let misspelt = node.entries().iter().any(|entry| {
                section.key(&entry.key).is_none() && nearest(&entry.key, section).is_some_and(|near| near.name == key.name)
            });
            if !misspelt {
                self.faults.push(missing(key, place));
            }
        }
    }

    fn key(&mut self, entry: &YamlEntry, key: KeyInfo) {
        match key.support {
            Support::Now => self.value(&entry.value, key.value_type, &KeyPath::new(key.name, entry.key_span)),
            Support::Later => {
                self.faults
                    .push(not_yet(entry.key_span, &format!("`{}`", key.name), "this key"));
                self.value(&entry.value, key.value_type, &KeyPath::new(key.name, entry.key_span));
            }
            Support::Never { why, help } => self.faults.push(never(entry, why, help)),
        }
    }

    fn value(&mut self, node: &YamlNode, value_type: ValueType, place: &KeyPath<'_>) {
        if matches!(value_type, ValueType::Anything) {
            return;
        }
        if node.kind() == YamlKind::Nothing {
            self.faults.push(nothing(node, value_type, place));
            return;
        }
        match value_type {
            ValueType::Anything => {}
            ValueType::Flag => self.flag(node, place),
            ValueType::Int { min, max } => self.integer(node, min, max, place),
            ValueType::Word(word) => self.word(node, word, place),
            ValueType::Name(naming) => self.name(node, naming, place),
            ValueType::Choice(choices) => self.choice(node, choices, place),
            ValueType::List(item) => self.list(node, item.value_type(), value_type, place),
            ValueType::Section(section) if node.kind() == YamlKind::Map => self.section(node, section, place),
            ValueType::Named(naming, section) if node.kind() == YamlKind::Map => self.named(node, naming, section),
            ValueType::Labels if node.kind() == YamlKind::Map => self.labels(node),
            ValueType::Settings if node.kind() == YamlKind::Map => {}
            ValueType::Section(_) | ValueType::Named(..) | ValueType::Labels | ValueType::Settings => {
                self.faults.push(wrong_kind(node, value_type, place));
            }
            ValueType::Either(one, other) => match [one, other]
                .map(AnyType::value_type)
                .into_iter()
                .find(|either| fits(node.kind(), *either))
            {
                Some(either) => self.value(node, either, place),
                // A bare number where a size belongs is a mistake in the size.
                None if node.text().is_some() => self.value(node, one.value_type(), place),
                None => self.faults.push(wrong_kind(node, value_type, place)),
            },
        }
    }

    fn flag(&mut self, node: &YamlNode, place: &KeyPath<'_>) {
        if node.kind() == YamlKind::Flag {
            return;
        }
        let fault = wrong_kind(node, ValueType::Flag, place);
        let text = node.text().map(str::to_ascii_lowercase).unwrap_or_default();
        self.faults.push(match text.as_str() {
            "yes" | "on" | "y" | "true" | "1" => fault
                .why("in YAML 1.2 only `true` and `false` without quotes are flags.")
                .help("write true."),
            "no" | "off" | "n" | "false" | "0" => fault
                .why("in YAML 1.2 only `true` and `false` without quotes are flags.")
                .help("write false."),
            _ => fault,
        });
    }

    fn integer(&mut self, node: &YamlNode, min: u32, max: u32, place: &KeyPath<'_>) {
        let text = node.text().unwrap_or_default();
        if node.kind() != YamlKind::Integer {
            let fault = wrong_kind(node, ValueType::Int { min, max }, place);
            let quoted = matches!(node.value, Value::Scalar { plain: false, .. }) && text.parse::<u32>().is_ok();
            self.faults.push(match quoted {
                true => fault
                    .why("in quotes a number is text.")
                    .help(format!("take the quotes away: {text}.")),
                false => fault,
            });
            return;
        }
        match value::integer(text) {
            Some(number) if (u64::from(min)..=u64::from(max)).contains(&number) => {}
            Some(_) => self.faults.push(out_of_bounds(node, text, min, max, place)),
            None => self.faults.push(
                Diagnostic::error(
                    "integer",
                    node.span,
                    format!("{} is not a plain whole number: {}", place.named(), quote(text)),
                )
                .label("written in an unusual way")
                .why("hexadecimal, octal and leading zeros mean different numbers to different programs.")
                .help(format!("write a whole number from {min} to {max}.")),
            ),
        }
    }

    fn word(&mut self, node: &YamlNode, word: &'static dyn AnyWord, place: &KeyPath<'_>) {
        let read = node.text().map(|text| word.check(text));
        match read {
            Some(Err(wrong)) => self.faults.push(wrong.at("value", node.span, &place.named())),
            Some(Ok(())) if takes(word, node.kind()) => {}
            _ => self.faults.push(wrong_kind(node, ValueType::Word(word), place)),
        }
    }

    fn name(&mut self, node: &YamlNode, naming: &'static Naming, place: &KeyPath<'_>) {
        let read = node.text().map(|text| naming.read(text));
        match (read, node.kind()) {
            (Some(Err(wrong)), _) => self.faults.push(wrong.at("name", node.span, &place.named())),
            (Some(Ok(_)), YamlKind::Text) => {}
            _ => self.faults.push(wrong_kind(node, ValueType::Name(naming), place)),
        }
    }

    fn choice(&mut self, node: &YamlNode, choices: &'static dyn AnyChoices, place: &KeyPath<'_>) {
        let (Some(text), YamlKind::Text) = (node.text(), node.kind()) else {
            self.faults.push(wrong_kind(node, ValueType::Choice(choices), place));
            return;
        };
        let words = choices.words();
        match words.iter().find(|choice| choice.word == text) {
            Some(choice) if choice.support == Support::Now => {}
            Some(choice) => self.faults.push(not_yet(
                node.span,
                &format!("`{}: {}`", place.name, choice.word),
                "this value",
            )),
            None => self.faults.push(unknown_choice(node, text, &words, place)),
        }
    }

    fn list(&mut self, node: &YamlNode, item: ValueType, value_type: ValueType, place: &KeyPath<'_>) {
        if node.kind() != YamlKind::List {
            let fault = wrong_kind(node, value_type, place);
            let single = node
                .text()
                .filter(|_| fits(node.kind(), item))
                .map(|text| format!("put it in brackets: [{text}]."));
            self.faults.push(single.map_or(fault.clone(), |help| fault.help(help)));
            return;
        }
        for inner in node.items() {
            self.value(
                inner,
                item,
                &KeyPath {
                    item: true,
                    ..KeyPath::new(place.name, inner.span)
                },
            );
        }
    }

    fn named(&mut self, node: &YamlNode, naming: &'static Naming, section: &'static Section) {
        for entry in node.entries() {
            if let Err(wrong) = naming.read(&entry.key) {
                self.faults.push(wrong.at("name", entry.key_span, "this key"));
            }
            self.value(
                &entry.value,
                ValueType::Section(section),
                &KeyPath::new(&entry.key, entry.key_span),
            );
        }
    }

    fn labels(&mut self, node: &YamlNode) {
        for entry in node.entries() {
            if !value::is_label_key(&entry.key) {
                self.faults.push(bad_label_key(entry));
            }
            match (entry.value.text(), entry.value.kind()) {
                (Some(text), YamlKind::Text | YamlKind::Flag | YamlKind::Integer | YamlKind::Float) => {
                    if let Err(wrong) = value::label_value(text) {
                        self.faults.push(wrong.at("label", entry.value.span, &quote(&entry.key)));
                    }
                }
                // A label without a value is a label with an empty one.
                (_, YamlKind::Nothing) => {}
                _ => self.faults.push(wrong_kind(
                    &entry.value,
                    ValueType::Name(&naming::TEXT),
                    &KeyPath::new(&entry.key, entry.key_span),
                )),
            }
        }
    }
}

fn takes(word: &dyn AnyWord, kind: YamlKind) -> bool {
    match kind {
        YamlKind::Text => true,
        YamlKind::Integer => word.info().numbers != Numbers::None,
        YamlKind::Float => word.info().numbers == Numbers::All,
        YamlKind::Nothing | YamlKind::Flag | YamlKind::List | YamlKind::Map => false,
    }
}

fn fits(kind: YamlKind, value_type: ValueType) -> bool {
    match value_type {
        ValueType::Flag => kind == YamlKind::Flag,
        ValueType::Int { .. } => kind == YamlKind::Integer,
        ValueType::Word(word) => takes(word, kind),
        ValueType::Name(_) | ValueType::Choice(_) => kind == YamlKind::Text,
        ValueType::List(_) => kind == YamlKind::List,
        ValueType::Section(_) | ValueType::Named(..) | ValueType::Labels | ValueType::Settings => kind == YamlKind::Map,
        ValueType::Either(one, other) => fits(kind, one.value_type()) || fits(kind, other.value_type()),
        ValueType::Anything => true,
    }
}

/// Whether a scalar would be good for a value_type, were it only text.
fn reads(text: &str, value_type: ValueType) -> bool {
    match value_type {
        ValueType::Word(word) => word.check(text).is_ok(),
        ValueType::Name(naming) => (naming.fits)(text),
        _ => false,
    }
}

/// What a key takes, for sentences.
pub(crate) fn expectation(value_type: ValueType) -> String {
    match value_type {
        ValueType::Flag => "true or false".to_owned(),
        ValueType::Int { min, max } => format!("a whole number from {min} to {max}"),
        ValueType::Word(word) => format!("{} like {}", word.info().what, word.info().example),
        ValueType::Name(naming) if naming.example.is_empty() => naming.what.to_owned(),
        ValueType::Name(naming) => format!("{} like {}", naming.what, naming.example),
        ValueType::Choice(choices) => list_of(&choices.words()),
        ValueType::List(item) => format!("a list, each item {}", expectation(item.value_type())),
        ValueType::Section(section) => section_with(section),
        ValueType::Named(naming, _) => format!(
            "a section for each {}, like `{}:`",
            naming.what.trim_start_matches("a "),
            naming.example
        ),
        ValueType::Labels => "keys and values of labels".to_owned(),
        ValueType::Either(one, other) => format!("{}, or {}", expectation(one.value_type()), expectation(other.value_type())),
        ValueType::Settings => "a section with settings of its own".to_owned(),
        ValueType::Anything => "settings of its own".to_owned(),
    }
}

fn section_with(section: &Section) -> String {
    let required: Vec<&str> = section.keys().filter(|key| key.required).map(|key| key.name).collect();
    match (required.as_slice(), section.keys().next()) {
        ([], Some(first)) => format!("a section with keys like `{}`", first.name),
        (required, _) => format!("a section with `{}`", required.join("` and `")),
    }
}

fn list_of(choices: &[ChoiceInfo]) -> String {
    let values: Vec<&str> = choices
        .iter()
        .filter(|choice| choice.support == Support::Now)
        .map(|choice| choice.word)
        .collect();
    match values.as_slice() {
        [only] => format!("`{only}`"),
        [rest @ .., last] => format!("`{}` or `{last}`", rest.join("`, `")),
        [] => String::new(),
    }
}

fn not_a_file(root: &YamlNode) -> Diagnostic {
    Diagnostic::error(
        "wrong-kind",
        root.span,
        format!("the file must be a section with keys, not {}", root.kind().name()),
    )
    .label("keys like `name:` are expected here")
    .why("cluster.yaml describes one cluster by keys at the left margin.")
    .help("`mainstay init` writes a file to begin with.")
}

fn wrong_kind(node: &YamlNode, value_type: ValueType, place: &KeyPath<'_>) -> Diagnostic {
    let kind = node.kind();
    let summary = format!("{} takes {}, not {}", place.named(), expectation(value_type), kind.name());
    let number = matches!(kind, YamlKind::Integer | YamlKind::Float | YamlKind::Flag) && fits(YamlKind::Text, value_type);
    let shown = node.text().filter(|_| !is_secret_key(place.name));
    let help = match (shown, value_type) {
        (Some(text), _) if number && reads(text, value_type) => format!("put it in quotes: \"{text}\"."),
        (Some(text), ValueType::Section(section)) => match section
            .keys()
            .find(|key| key.support == Support::Now && reads(text, key.value_type))
        {
            Some(key) => format!("write `{}: {{ {}: {text} }}`.", place.name, key.name),
            None => format!("give it {}.", expectation(value_type)),
        },
        _ => format!("give it {}.", expectation(value_type)),
    };
    let why = if number {
        "without quotes YAML reads this as something else than text.".to_owned()
    } else {
        format!("{} has no meaning as {}.", place.named(), kind.name())
    };
    Diagnostic::error("wrong-kind", first_line(node.span, place.key_span), summary)
        .label(format!("this is {}", kind.name()))
        .why(why)
        .help(help)
}

fn nothing(node: &YamlNode, value_type: ValueType, place: &KeyPath<'_>) -> Diagnostic {
    let at = if node.span.start > 0 && node.span.line == place.key_span.line && node.span.end > node.span.start {
        node.span
    } else {
        place.key_span
    };
    Diagnostic::error("no-value", at, format!("{} has no value", place.named()))
        .label("nothing is given")
        .why("an empty value is neither the default nor a choice.")
        .help(format!(
            "take the key out to get the default, or give it {}.",
            expectation(value_type)
        ))
}

/// A section on lines of its own is reported at its key.
fn first_line(span: Span, key: Span) -> Span {
    if span.line > key.line && key.line > 0 { key } else { span }
}

fn out_of_bounds(node: &YamlNode, text: &str, min: u32, max: u32, place: &KeyPath<'_>) -> Diagnostic {
    Diagnostic::error(
        "out-of-bounds",
        node.span,
        format!("{} must be from {min} to {max}, not {}", place.named(), quote(text)),
    )
    .label("out of bounds")
    .why(format!("{} takes a whole number in these bounds.", place.named()))
    .help(format!("write a number from {min} to {max}."))
}

fn unknown_choice(node: &YamlNode, text: &str, choices: &[ChoiceInfo], place: &KeyPath<'_>) -> Diagnostic {
    let near = closest(
        text,
        choices
            .iter()
            .filter(|choice| choice.support == Support::Now)
            .map(|choice| choice.word),
    );
    let help = near.map_or_else(
        || format!("write {}.", list_of(choices)),
        |near| format!("did you mean `{near}`?"),
    );
    Diagnostic::error(
        "unknown-value",
        node.span,
        format!("{} must be {}, not {}", place.named(), list_of(choices), quote(text)),
    )
    .label("not one of them")
    .why("nothing else is known here.")
    .help(help)
}

fn missing(key: KeyInfo, place: &KeyPath<'_>) -> Diagnostic {
    let inside = if place.name.is_empty() {
        String::new()
    } else {
        format!(" in `{}`", place.name)
    };
    Diagnostic::error("missing-key", place.key_span, format!("`{}` is missing{inside}", key.name))
        .label(if place.name.is_empty() {
            "the file begins here"
        } else {
            "needed here"
        })
        .why("it has no default, and nothing can be made without it.")
        .help(format!(
            "add `{}:` with {}. It is: {}",
            key.name,
            expectation(key.value_type),
            lower_first(key.doc)
        ))
}

/// Refused by name: this version does not carry it out.
pub(crate) fn not_yet(at: Span, what: &str, label: &str) -> Diagnostic {
    Diagnostic::error("later-version", at, format!("{what} is not supported by this version"))
        .label(format!("{label} belongs to a later version"))
        .why("it is refused rather than ignored, so that the cluster is what the file says.")
        .help("take it out, or use a version of mainstay that supports it.")
}

fn never(entry: &YamlEntry, why: &str, help: &str) -> Diagnostic {
    Diagnostic::error(
        "refused-key",
        entry.key_span,
        format!("`{}` does not belong in cluster.yaml", entry.key),
    )
    .label("not here")
    .why(why)
    .help(help)
}

fn bad_label_key(entry: &YamlEntry) -> Diagnostic {
    Diagnostic::error("label", entry.key_span, format!("{} is not a label key", quote(&entry.key)))
        .label("Kubernetes would refuse it")
        .why(
            "a label key has at most 63 letters, digits, dashes, dots and underscores, and may have a DNS name and `/` in front.",
        )
        .help("write for example topology.kubernetes.io/zone or rack.")
}

fn unknown_key(entry: &YamlEntry, section: &'static Section, place: &KeyPath<'_>) -> Diagnostic {
    if let Some(known) = nearest(&entry.key, section) {
        if let Support::Never { why, help } = known.support {
            return never(entry, why, help);
        }
        return Diagnostic::error("unknown-key", entry.key_span, unknown_summary(entry, place))
            .label(format!("did you mean `{}`?", known.name))
            .why("unknown keys are refused, so that nothing that was meant is ignored.")
            .help(format!("write `{}`: {}", known.name, lower_first(known.doc)));
    }
    let elsewhere = keys::places_of(&entry.key);
    let fault = Diagnostic::error("unknown-key", entry.key_span, unknown_summary(entry, place));
    if !elsewhere.is_empty() {
        let places: Vec<String> = elsewhere.iter().take(3).map(|path| format!("`{path}`")).collect();
        return fault
            .label("known, but not here")
            .why("unknown keys are refused, so that nothing that was meant is ignored.")
            .help(format!("move it to {}.", places.join(" or ")));
    }
    let known: Vec<&str> = section
        .keys()
        .filter(|key| key.support == Support::Now)
        .map(|key| key.name)
        .collect();
    fault
        .label("not a key of mainstay")
        .why("unknown keys are refused, so that nothing that was meant is ignored.")
        .help(format!("take it out. Known here: {}.", known.join(", ")))
}

/// A description inside a sentence. `CPU` stays what it is.
fn lower_first(doc: &str) -> String {
    let mut letters = doc.chars();
    match (letters.next(), letters.clone().next()) {
        (Some(first), Some(second)) if !second.is_ascii_uppercase() => {
            format!("{}{}", first.to_ascii_lowercase(), letters.as_str())
        }
        _ => doc.to_owned(),
    }
}

fn unknown_summary(entry: &YamlEntry, place: &KeyPath<'_>) -> String {
    let inside = if place.name.is_empty() {
        String::new()
    } else {
        format!(" in `{}`", place.name)
    };
    format!("unknown key {}{inside}", quote(&entry.key))
}

/// The key of a section that was probably meant: another spelling, what other tools call it, or a typo.
fn nearest(text: &str, section: &'static Section) -> Option<KeyInfo> {
    let dashed = text.replace('_', "-").to_ascii_lowercase();
    let named = section
        .keys()
        .find(|key| key.name == dashed || key.also.iter().any(|also| also.eq_ignore_ascii_case(text)));
    let typo = || {
        closest(
            text,
            section.keys().filter(|key| key.support == Support::Now).map(|key| key.name),
        )
    };
    named.or_else(|| typo().and_then(|name| section.key(name)))
}

/// The nearest of several words, if it is near.
pub(crate) fn closest<'a>(text: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = text.to_ascii_lowercase();
    let nearest = words
        .into_iter()
        .map(|word| (strsim::osa_distance(&lower, word), word))
        .min()?;
    let near = nearest.0 <= 1 && nearest.1.len() > 2 || nearest.0 * 3 <= nearest.1.len().min(text.len());
    near.then_some(nearest.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree;

    #[test]
    fn every_documented_key_begins_with_a_capital_and_ends_with_a_full_stop() {
        keys::walk(&keys::FILE, "", &mut |path, key| {
            let never = matches!(key.support, Support::Never { .. });
            assert!(
                never || (key.doc.starts_with(|c: char| c.is_ascii_uppercase() || c == '`') && key.doc.ends_with('.')),
                "{path}"
            );
        });
    }

    #[test]
    fn no_section_names_a_key_twice_even_by_what_others_call_it() {
        fn names(section: &'static Section) {
            let mut seen = std::collections::BTreeSet::new();
            for key in section.keys() {
                for name in [key.name].iter().chain(key.also) {
                    assert!(seen.insert(*name), "{name}");
                }
            }
        }
        names(&keys::FILE);
        keys::walk(&keys::FILE, "", &mut |_, key| {
            if let ValueType::Section(section) | ValueType::Named(_, section) = key.value_type {
                names(section);
            }
        });
    }

    #[test]
    fn examples_in_the_tables_can_be_read() {
        keys::walk(&keys::FILE, "", &mut |path, key| match key.value_type {
            // The example of a fingerprint is cut short for people.
            ValueType::Word(word) if word.info().example.contains('…') => {}
            ValueType::Word(word) => assert!(word.check(word.info().example).is_ok(), "{path}"),
            ValueType::Name(naming) => assert!(naming.example.is_empty() || (naming.fits)(naming.example), "{path}"),
            _ => {}
        });
    }

    #[test]
    fn everything_wrong_is_found_in_one_run() {
        let text = "nme: a\nnetwork: { cidr: x, gateway: 3, vlan: 5000 }\npools: []\nprotect: yes\n";
        let mut faults = Vec::new();
        check(&tree::parse(text, &mut faults).unwrap(), &mut faults);
        let codes: Vec<&str> = faults.iter().map(|fault| fault.code).collect();
        assert_eq!(
            codes,
            ["unknown-key", "value", "value", "out-of-bounds", "wrong-kind", "wrong-kind"]
        );
    }
}
