//! Holds a tree against the tables of keys: unknown keys, wrong kinds of values, values that cannot be read, keys of later versions.

use crate::fault::{Diagnostic, quote};
use crate::keys::{self, Choice, Key, Kind, Numbers, Section, When, Word};
use crate::mask::is_secret_key;
use crate::naming::{self, Naming};
use crate::source::Span;
use crate::tree::{Entry, Node, Sort, Value};
use crate::value;

/// Collects everything that is wrong with the shape of the file. Whoever reads values afterwards may pass over what is unreadable:
/// it has been reported. False if there are no keys to read at all.
pub(crate) fn check(root: &Node, faults: &mut Vec<Diagnostic>) -> bool {
    if root.sort() != Sort::Map {
        faults.push(not_a_file(root));
        return false;
    }
    let start = root.entries().first().map_or(root.span, |entry| Span {
        end: entry.key_span.start,
        ..entry.key_span
    });
    Shape { faults }.section(root, &keys::FILE, &Place::new("", start));
    true
}

struct Shape<'f> {
    faults: &'f mut Vec<Diagnostic>,
}

/// The key under which a value stands.
struct Place<'a> {
    name: &'a str,
    key_span: Span,
    item: bool,
}

impl<'a> Place<'a> {
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

impl Shape<'_> {
    fn section(&mut self, node: &Node, section: &'static Section, place: &Place<'_>) {
        for entry in node.entries() {
            match section.key(&entry.key) {
                Some(key) => self.key(entry, key),
                None => self.faults.push(unknown_key(entry, section, place)),
            }
        }
        for key in section
            .keys
            .iter()
            .filter(|key| key.required && node.entry(key.name).is_none())
        {
            // A misspelt key is reported as such, not as missing too.
            let misspelt = node.entries().iter().any(|entry| {
                section.key(&entry.key).is_none() && nearest(&entry.key, section).is_some_and(|near| near.name == key.name)
            });
            if !misspelt {
                self.faults.push(missing(key, place));
            }
        }
    }

    fn key(&mut self, entry: &Entry, key: &'static Key) {
        match key.when {
            When::Now => self.value(&entry.value, &key.kind, &Place::new(key.name, entry.key_span)),
            When::Later => {
                self.faults
                    .push(not_yet(entry.key_span, &format!("`{}`", key.name), "this key"));
                self.value(&entry.value, &key.kind, &Place::new(key.name, entry.key_span));
            }
            When::Never { why, help } => self.faults.push(never(entry, why, help)),
        }
    }

    fn value(&mut self, node: &Node, kind: &Kind, place: &Place<'_>) {
        if matches!(kind, Kind::Anything) {
            return;
        }
        if node.sort() == Sort::Nothing {
            self.faults.push(nothing(node, kind, place));
            return;
        }
        match kind {
            Kind::Anything => {}
            Kind::Flag => self.flag(node, place),
            Kind::Int { min, max } => self.integer(node, *min, *max, place),
            Kind::Word(word) => self.word(node, word, place),
            Kind::Name(naming) => self.name(node, naming, place),
            Kind::Choice(choices) => self.choice(node, choices, place),
            Kind::List(item) => self.list(node, item, kind, place),
            Kind::Section(section) if node.sort() == Sort::Map => self.section(node, section, place),
            Kind::Named(naming, section) if node.sort() == Sort::Map => self.named(node, naming, section),
            Kind::Labels if node.sort() == Sort::Map => self.labels(node),
            Kind::Section(_) | Kind::Named(..) | Kind::Labels => self.faults.push(wrong_kind(node, kind, place)),
            Kind::Either(one, other) => match [one, other].into_iter().find(|either| fits(node.sort(), either)) {
                Some(either) => self.value(node, either, place),
                // A bare number where a size belongs is a mistake in the size.
                None if node.text().is_some() => self.value(node, one, place),
                None => self.faults.push(wrong_kind(node, kind, place)),
            },
        }
    }

    fn flag(&mut self, node: &Node, place: &Place<'_>) {
        if node.sort() == Sort::Flag {
            return;
        }
        let fault = wrong_kind(node, &Kind::Flag, place);
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

    fn integer(&mut self, node: &Node, min: u32, max: u32, place: &Place<'_>) {
        let text = node.text().unwrap_or_default();
        if node.sort() != Sort::Integer {
            let fault = wrong_kind(node, &Kind::Int { min, max }, place);
            let quoted = matches!(node.value, Value::Scalar { plain: false, .. }) && text.parse::<u32>().is_ok();
            self.faults.push(match quoted {
                true => fault
                    .why("in quotes a number is text.")
                    .help(format!("take the quotes away: {text}.")),
                false => fault,
            });
            return;
        }
        match integer(text) {
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

    fn word(&mut self, node: &Node, word: &'static Word, place: &Place<'_>) {
        let read = node.text().map(word.read);
        match read {
            Some(Err(wrong)) => self.faults.push(wrong.at("value", node.span, &place.named())),
            Some(Ok(())) if takes(word, node.sort()) => {}
            _ => self.faults.push(wrong_kind(node, &Kind::Word(word), place)),
        }
    }

    fn name(&mut self, node: &Node, naming: &'static Naming, place: &Place<'_>) {
        let read = node.text().map(|text| naming.read(text));
        match (read, node.sort()) {
            (Some(Err(wrong)), _) => self.faults.push(wrong.at("name", node.span, &place.named())),
            (Some(Ok(_)), Sort::Text) => {}
            _ => self.faults.push(wrong_kind(node, &Kind::Name(naming), place)),
        }
    }

    fn choice(&mut self, node: &Node, choices: &'static [Choice], place: &Place<'_>) {
        let (Some(text), Sort::Text) = (node.text(), node.sort()) else {
            self.faults.push(wrong_kind(node, &Kind::Choice(choices), place));
            return;
        };
        match choices.iter().find(|choice| choice.value == text) {
            Some(choice) if choice.when == When::Now => {}
            Some(choice) => self.faults.push(not_yet(
                node.span,
                &format!("`{}: {}`", place.name, choice.value),
                "this value",
            )),
            None => self.faults.push(unknown_choice(node, text, choices, place)),
        }
    }

    fn list(&mut self, node: &Node, item: &Kind, kind: &Kind, place: &Place<'_>) {
        if node.sort() != Sort::List {
            let fault = wrong_kind(node, kind, place);
            let single = node
                .text()
                .filter(|_| fits(node.sort(), item))
                .map(|text| format!("put it in brackets: [{text}]."));
            self.faults.push(single.map_or(fault.clone(), |help| fault.help(help)));
            return;
        }
        for inner in node.items() {
            self.value(
                inner,
                item,
                &Place {
                    item: true,
                    ..Place::new(place.name, inner.span)
                },
            );
        }
    }

    fn named(&mut self, node: &Node, naming: &'static Naming, section: &'static Section) {
        for entry in node.entries() {
            if let Err(wrong) = naming.read(&entry.key) {
                self.faults.push(wrong.at("name", entry.key_span, "this key"));
            }
            self.value(&entry.value, &Kind::Section(section), &Place::new(&entry.key, entry.key_span));
        }
    }

    fn labels(&mut self, node: &Node) {
        for entry in node.entries() {
            if !value::is_label_key(&entry.key) {
                self.faults.push(bad_label_key(entry));
            }
            match (entry.value.text(), entry.value.sort()) {
                (Some(text), Sort::Text | Sort::Flag | Sort::Integer | Sort::Float) => {
                    if let Err(wrong) = value::label_value(text) {
                        self.faults.push(wrong.at("label", entry.value.span, &quote(&entry.key)));
                    }
                }
                // A label without a value is a label with an empty one.
                (_, Sort::Nothing) => {}
                _ => self.faults.push(wrong_kind(
                    &entry.value,
                    &Kind::Name(&naming::TEXT),
                    &Place::new(&entry.key, entry.key_span),
                )),
            }
        }
    }
}

/// Plain decimal, or nothing.
pub(crate) fn integer(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    // Too many digits for a number are still a number, only far out of bounds.
    plain.then(|| text.parse().unwrap_or(u64::MAX))
}

fn takes(word: &Word, sort: Sort) -> bool {
    match sort {
        Sort::Text => true,
        Sort::Integer => word.numbers != Numbers::None,
        Sort::Float => word.numbers == Numbers::All,
        Sort::Nothing | Sort::Flag | Sort::List | Sort::Map => false,
    }
}

fn fits(sort: Sort, kind: &Kind) -> bool {
    match kind {
        Kind::Flag => sort == Sort::Flag,
        Kind::Int { .. } => sort == Sort::Integer,
        Kind::Word(word) => takes(word, sort),
        Kind::Name(_) | Kind::Choice(_) => sort == Sort::Text,
        Kind::List(_) => sort == Sort::List,
        Kind::Section(_) | Kind::Named(..) | Kind::Labels => sort == Sort::Map,
        Kind::Either(one, other) => fits(sort, one) || fits(sort, other),
        Kind::Anything => true,
    }
}

/// Whether a scalar would be good for a kind, were it only text.
fn reads(text: &str, kind: &Kind) -> bool {
    match kind {
        Kind::Word(word) => (word.read)(text).is_ok(),
        Kind::Name(naming) => (naming.fits)(text),
        _ => false,
    }
}

/// What a key takes, for sentences.
pub(crate) fn expectation(kind: &Kind) -> String {
    match kind {
        Kind::Flag => "true or false".to_owned(),
        Kind::Int { min, max } => format!("a whole number from {min} to {max}"),
        Kind::Word(word) => format!("{} like {}", word.what, word.example),
        Kind::Name(naming) if naming.example.is_empty() => naming.what.to_owned(),
        Kind::Name(naming) => format!("{} like {}", naming.what, naming.example),
        Kind::Choice(choices) => list_of(choices),
        Kind::List(item) => format!("a list, each item {}", expectation(item)),
        Kind::Section(section) => section_with(section),
        Kind::Named(naming, _) => format!(
            "a section for each {}, like `{}:`",
            naming.what.trim_start_matches("a "),
            naming.example
        ),
        Kind::Labels => "keys and values of labels".to_owned(),
        Kind::Either(one, other) => format!("{}, or {}", expectation(one), expectation(other)),
        Kind::Anything => "settings of its own".to_owned(),
    }
}

fn section_with(section: &Section) -> String {
    let required: Vec<&str> = section.keys.iter().filter(|key| key.required).map(|key| key.name).collect();
    match (required.as_slice(), section.keys.first()) {
        ([], Some(first)) => format!("a section with keys like `{}`", first.name),
        (required, _) => format!("a section with `{}`", required.join("` and `")),
    }
}

fn list_of(choices: &[Choice]) -> String {
    let values: Vec<&str> = choices
        .iter()
        .filter(|choice| choice.when == When::Now)
        .map(|choice| choice.value)
        .collect();
    match values.as_slice() {
        [only] => format!("`{only}`"),
        [rest @ .., last] => format!("`{}` or `{last}`", rest.join("`, `")),
        [] => String::new(),
    }
}

fn not_a_file(root: &Node) -> Diagnostic {
    Diagnostic::error(
        "wrong-kind",
        root.span,
        format!("the file must be a section with keys, not {}", root.sort().name()),
    )
    .label("keys like `name:` are expected here")
    .why("cluster.yaml describes one cluster by keys at the left margin.")
    .help("`mainstay init` writes a file to begin with.")
}

fn wrong_kind(node: &Node, kind: &Kind, place: &Place<'_>) -> Diagnostic {
    let sort = node.sort();
    let summary = format!("{} takes {}, not {}", place.named(), expectation(kind), sort.name());
    let number = matches!(sort, Sort::Integer | Sort::Float | Sort::Flag) && fits(Sort::Text, kind);
    let shown = node.text().filter(|_| !is_secret_key(place.name));
    let help = match (shown, kind) {
        (Some(text), _) if number && reads(text, kind) => format!("put it in quotes: \"{text}\"."),
        (Some(text), Kind::Section(section)) => match section
            .keys
            .iter()
            .find(|key| key.when == When::Now && reads(text, &key.kind))
        {
            Some(key) => format!("write `{}: {{ {}: {text} }}`.", place.name, key.name),
            None => format!("give it {}.", expectation(kind)),
        },
        _ => format!("give it {}.", expectation(kind)),
    };
    let why = if number {
        "without quotes YAML reads this as something else than text.".to_owned()
    } else {
        format!("{} has no meaning as {}.", place.named(), sort.name())
    };
    Diagnostic::error("wrong-kind", first_line(node.span, place.key_span), summary)
        .label(format!("this is {}", sort.name()))
        .why(why)
        .help(help)
}

fn nothing(node: &Node, kind: &Kind, place: &Place<'_>) -> Diagnostic {
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
            expectation(kind)
        ))
}

/// A section on lines of its own is blamed at its key, where the eye is.
fn first_line(span: Span, key: Span) -> Span {
    if span.line > key.line && key.line > 0 { key } else { span }
}

fn out_of_bounds(node: &Node, text: &str, min: u32, max: u32, place: &Place<'_>) -> Diagnostic {
    Diagnostic::error(
        "out-of-bounds",
        node.span,
        format!("{} must be from {min} to {max}, not {}", place.named(), quote(text)),
    )
    .label("out of bounds")
    .why(format!("{} takes a whole number in these bounds.", place.named()))
    .help(format!("write a number from {min} to {max}."))
}

fn unknown_choice(node: &Node, text: &str, choices: &[Choice], place: &Place<'_>) -> Diagnostic {
    let near = closest(
        text,
        choices
            .iter()
            .filter(|choice| choice.when == When::Now)
            .map(|choice| choice.value),
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

fn missing(key: &'static Key, place: &Place<'_>) -> Diagnostic {
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
            expectation(&key.kind),
            lower_first(key.doc)
        ))
}

fn not_yet(at: Span, what: &str, label: &str) -> Diagnostic {
    Diagnostic::error("later-version", at, format!("{what} is not carried out by this version"))
        .label(format!("{label} belongs to a later version"))
        .why("it is refused rather than ignored, so that the cluster is what the file says.")
        .help("take it out, or use a version of mainstay that carries it out.")
}

fn never(entry: &Entry, why: &str, help: &str) -> Diagnostic {
    Diagnostic::error(
        "refused-key",
        entry.key_span,
        format!("`{}` does not belong in cluster.yaml", entry.key),
    )
    .label("not here")
    .why(why)
    .help(help)
}

fn bad_label_key(entry: &Entry) -> Diagnostic {
    Diagnostic::error("label", entry.key_span, format!("{} is not a label key", quote(&entry.key)))
        .label("Kubernetes would refuse it")
        .why(
            "a label key has at most 63 letters, digits, dashes, dots and underscores, and may have a DNS name and `/` in front.",
        )
        .help("write for example topology.kubernetes.io/zone or rack.")
}

fn unknown_key(entry: &Entry, section: &'static Section, place: &Place<'_>) -> Diagnostic {
    if let Some(known) = nearest(&entry.key, section) {
        if let When::Never { why, help } = known.when {
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
        .keys
        .iter()
        .filter(|key| key.when == When::Now)
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

fn unknown_summary(entry: &Entry, place: &Place<'_>) -> String {
    let inside = if place.name.is_empty() {
        String::new()
    } else {
        format!(" in `{}`", place.name)
    };
    format!("unknown key {}{inside}", quote(&entry.key))
}

/// The key of a section that was probably meant: another spelling, what other tools call it, or a slip of the fingers.
fn nearest(text: &str, section: &'static Section) -> Option<&'static Key> {
    let dashed = text.replace('_', "-").to_ascii_lowercase();
    let named = section
        .keys
        .iter()
        .find(|key| key.name == dashed || key.also.iter().any(|also| also.eq_ignore_ascii_case(text)));
    let slip = || {
        closest(
            text,
            section.keys.iter().filter(|key| key.when == When::Now).map(|key| key.name),
        )
    };
    named.or_else(|| slip().and_then(|name| section.key(name)))
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
            let never = matches!(key.when, When::Never { .. });
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
            for key in section.keys {
                for name in [key.name].iter().chain(key.also) {
                    assert!(seen.insert(*name), "{name}");
                }
            }
        }
        names(&keys::FILE);
        names(&keys::POOL);
        names(&keys::MACHINE);
        keys::walk(&keys::FILE, "", &mut |_, key| {
            if let Kind::Section(section) = key.kind {
                names(section);
            }
        });
    }

    #[test]
    fn examples_in_the_tables_can_be_read() {
        keys::walk(&keys::FILE, "", &mut |path, key| match key.kind {
            // The example of a fingerprint is cut short for people.
            Kind::Word(word) if word.example.contains('…') => {}
            Kind::Word(word) => assert!((word.read)(word.example).is_ok(), "{path}"),
            Kind::Name(naming) => assert!(naming.example.is_empty() || (naming.fits)(naming.example), "{path}"),
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
