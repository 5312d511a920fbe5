//! YAML as a tree in which everything knows its place. No anchors, aliases, tags or merge keys: what is written is what is meant.

use std::borrow::Cow;

use serde_saphyr::granit_parser::{self as yaml, ErrorKind, Event, Parser, ScalarStyle, StrInput};

use crate::diagnostic::{Diagnostic, quote};
use crate::source::Span;

/// Deeper than any key of ours; a deeper file is a mistake or an attack.
const DEEPEST: usize = 32;

#[derive(Debug, Clone)]
pub(crate) struct YamlNode {
    pub span: Span,
    pub value: Value,
}

#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// `plain`: without quotes, so that `3` is a number and `true` a flag.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<YamlNode>),
    Map(Vec<YamlEntry>),
}

#[derive(Debug, Clone)]
pub(crate) struct YamlEntry {
    pub key: String,
    pub key_span: Span,
    pub value: YamlNode,
}

/// What a node is, by YAML's core schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum YamlKind {
    Nothing,
    Flag,
    Integer,
    Float,
    Text,
    List,
    Map,
}

impl YamlKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Flag => "true or false",
            Self::Integer | Self::Float => "a number",
            Self::Text => "text",
            Self::List => "a list",
            Self::Map => "a section with keys",
        }
    }
}

impl YamlNode {
    pub(crate) fn kind(&self) -> YamlKind {
        match &self.value {
            Value::List(_) => YamlKind::List,
            Value::Map(_) => YamlKind::Map,
            Value::Scalar { plain: false, .. } => YamlKind::Text,
            Value::Scalar { text, plain: true } => plain_kind(text),
        }
    }

    pub(crate) fn entries(&self) -> &[YamlEntry] {
        if let Value::Map(entries) = &self.value { entries } else { &[] }
    }

    pub(crate) fn items(&self) -> &[Self] {
        if let Value::List(items) = &self.value { items } else { &[] }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Value::Scalar { text, .. } = &self.value {
            Some(text)
        } else {
            None
        }
    }

    /// The value as another program reads it, by YAML's core schema.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        let text = self.text().unwrap_or_default();
        match self.kind() {
            YamlKind::Nothing => Json::Null,
            YamlKind::Flag => Json::Bool(text.eq_ignore_ascii_case("true")),
            YamlKind::Integer => integer(text).unwrap_or_else(|| Json::from(text)),
            // JSON has neither infinity nor NaN, so these stay what they look like.
            YamlKind::Float => text
                .parse()
                .ok()
                .and_then(serde_json::Number::from_f64)
                .map_or_else(|| Json::from(text), Json::Number),
            YamlKind::Text => Json::from(text),
            YamlKind::List => self.items().iter().map(Self::to_json).collect(),
            YamlKind::Map => {
                let entry = |entry: &YamlEntry| (entry.key.clone(), entry.value.to_json());
                Json::Object(self.entries().iter().map(entry).collect())
            }
        }
    }

    pub(crate) fn entry(&self, key: &str) -> Option<&YamlEntry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// The keys that lead to a byte of the file, outermost first.
    pub(crate) fn keys_at(&self, byte: u32) -> Vec<&YamlEntry> {
        let mut keys = Vec::new();
        let mut node = self;
        loop {
            let next = match &node.value {
                Value::Scalar { .. } => None,
                Value::List(items) => items.iter().rfind(|item| item.span.holds(byte)),
                Value::Map(entries) => {
                    let last = entries
                        .iter()
                        .rfind(|entry| entry.key_span.holds(byte) || entry.value.span.holds(byte));
                    keys.extend(last);
                    last.map(|entry| &entry.value)
                }
            };
            match next {
                Some(inner) if inner.span.holds(byte) => node = inner,
                _ => return keys,
            }
        }
    }
}

fn plain_kind(text: &str) -> YamlKind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => YamlKind::Nothing,
        "true" | "True" | "TRUE" | "false" | "False" | "FALSE" => YamlKind::Flag,
        _ if is_integer(text) => YamlKind::Integer,
        _ if is_float(text) => YamlKind::Float,
        _ => YamlKind::Text,
    }
}

/// An integer of YAML's core schema, unless it is too large.
fn integer(text: &str) -> Option<serde_json::Value> {
    let unsigned = match (text.strip_prefix("0x"), text.strip_prefix("0o")) {
        (Some(hex), _) => u64::from_str_radix(hex, 16).ok(),
        (_, Some(octal)) => u64::from_str_radix(octal, 8).ok(),
        _ => text.strip_prefix('+').unwrap_or(text).parse().ok(),
    };
    let signed = || text.parse::<i64>().ok().map(serde_json::Value::from);
    unsigned.map(serde_json::Value::from).or_else(signed)
}

fn is_integer(text: &str) -> bool {
    let digits = |text: &str, radix| !text.is_empty() && text.chars().all(|c| c.is_digit(radix));
    match (text.strip_prefix("0x"), text.strip_prefix("0o")) {
        (Some(hex), _) => digits(hex, 16),
        (_, Some(octal)) => digits(octal, 8),
        _ => digits(text.strip_prefix(['-', '+']).unwrap_or(text), 10),
    }
}

fn is_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let numeric =
        unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') && unsigned.contains(|c: char| c.is_ascii_digit());
    numeric && !unsigned.starts_with("0x") && unsigned.parse::<f64>().is_ok()
        || matches!(unsigned, ".inf" | ".Inf" | ".INF")
        || matches!(text, ".nan" | ".NaN" | ".NAN")
}

/// Reads the one document of a file. What YAML cannot read ends the reading; what we do not want in it is collected in `faults`.
pub(crate) fn parse(text: &str, faults: &mut Vec<Diagnostic>) -> Option<YamlNode> {
    let mut reader = Reader {
        events: events(text),
        faults,
    };
    match reader.document(text) {
        Ok(node) => Some(node),
        Err(Stop::Yaml(error)) => {
            reader.faults.push(syntax(&error, text));
            None
        }
        Err(Stop::Diagnostic(fault)) => {
            reader.faults.push(*fault);
            None
        }
    }
}

/// All documents of a file, for patches: only the shape of their roots is looked at.
pub(crate) fn parse_all(text: &str) -> Result<Vec<YamlNode>, Box<Diagnostic>> {
    let mut ignored = Vec::new();
    let mut reader = Reader {
        events: events(text),
        faults: &mut ignored,
    };
    reader.documents().map_err(|stop| match stop {
        Stop::Yaml(error) => Box::new(syntax(&error, text)),
        Stop::Diagnostic(fault) => fault,
    })
}

fn events(text: &str) -> Parser<'_, StrInput<'_>> {
    let options = yaml::options! {
        emit_comments: false, emit_unresolved_aliases: true, emit_anchor_events: true, disallow_directives: true,
        flow_nesting_limit: DEEPEST, block_nesting_limit: DEEPEST,
    };
    Parser::new_from_str_with_options(text, options)
}

enum Stop {
    Yaml(yaml::ScanError),
    Diagnostic(Box<Diagnostic>),
}

impl From<yaml::ScanError> for Stop {
    fn from(error: yaml::ScanError) -> Self {
        Self::Yaml(error)
    }
}

struct Reader<'t, 'f> {
    events: Parser<'t, StrInput<'t>>,
    faults: &'f mut Vec<Diagnostic>,
}

impl<'t> Reader<'t, '_> {
    fn document(&mut self, text: &str) -> Result<YamlNode, Stop> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return root.ok_or_else(|| Stop::Diagnostic(Box::new(empty(text)))),
                Event::DocumentStart(..) if root.is_some() => {
                    return Err(Stop::Diagnostic(Box::new(second_document(place(&span)))));
                }
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                event => root = Some(self.node(event, span)?),
            }
        }
    }

    fn documents(&mut self) -> Result<Vec<YamlNode>, Stop> {
        let mut roots = Vec::new();
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(roots),
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                event => roots.push(self.node(event, span)?),
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, yaml::Span), Stop> {
        loop {
            // The parser ends with `StreamEnd`, and no caller reads past it.
            let (event, span) = self
                .events
                .next_event()
                .unwrap_or(Ok((Event::StreamEnd, yaml::Span::default())))?;
            if !matches!(event, Event::Anchor(..)) {
                return Ok((event, span));
            }
            self.faults.push(anchor(place(&span)));
        }
    }

    fn node(&mut self, event: Event<'t>, span: yaml::Span) -> Result<YamlNode, Stop> {
        let place = place(&span);
        if event.is_alias() || matches!(event, Event::UnresolvedAlias(_)) {
            self.faults.push(anchor(place));
        }
        if let Some(tag) = event.tag() {
            let at = span.tag_span().map_or(place, |span| self::place(&span));
            self.faults.push(tagged(at, &tag.original()));
        }
        let (value, end) = match event {
            Event::Scalar(text, style, ..) => (
                Value::Scalar {
                    text: text.into_owned(),
                    plain: style == ScalarStyle::Plain,
                },
                place.end,
            ),
            Event::SequenceStart(..) => self.list()?,
            Event::MappingStart(..) => self.map()?,
            // An alias stands for a value that was refused at its anchor already.
            _ => (
                Value::Scalar {
                    text: String::new(),
                    plain: true,
                },
                place.end,
            ),
        };
        Ok(YamlNode {
            span: Span {
                end: end.max(place.start),
                ..place
            },
            value,
        })
    }

    fn list(&mut self) -> Result<(Value, u32), Stop> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::SequenceEnd => return Ok((Value::List(items), place(&span).end)),
                event => items.push(self.node(event, span)?),
            }
        }
    }

    fn map(&mut self) -> Result<(Value, u32), Stop> {
        let mut entries: Vec<YamlEntry> = Vec::new();
        let mut seen = std::collections::BTreeMap::<String, u32>::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok((Value::Map(entries), place(&span).end));
            }
            let key = self.node(event, span)?;
            let before = self.faults.len();
            let (event, span) = self.next()?;
            let value = self.node(event, span)?;
            match key.text().map(str::to_owned) {
                None => self.faults.push(not_a_key(key.span)),
                Some(text) if text == "<<" => {
                    // The alias that it merges was reported already; one report is enough.
                    self.faults.truncate(before);
                    self.faults.push(merge_key(key.span));
                }
                Some(text) => match seen.insert(text.clone(), key.span.line) {
                    Some(first) => self.faults.push(duplicate(key.span, &text, first)),
                    None => entries.push(YamlEntry {
                        key: text,
                        key_span: key.span,
                        value,
                    }),
                },
            }
        }
    }
}

fn place(span: &yaml::Span) -> Span {
    let bytes = span.byte_range().unwrap_or(0..0);
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Span {
        start: number(bytes.start),
        end: number(bytes.end),
        line: number(span.start.line()),
        column: number(span.start.col() + 1),
    }
}

fn empty(text: &str) -> Diagnostic {
    let line = u32::try_from(text.lines().count().max(1)).unwrap_or(1);
    Diagnostic::error(
        "empty",
        Span {
            line,
            column: 1,
            ..Span::default()
        },
        "the file describes nothing",
    )
    .label("no key is set")
    .why("a cluster needs at least a name, a network and a pool of control planes.")
    .help("`mainstay init` looks at PVE and writes a file to begin with.")
}

fn second_document(at: Span) -> Diagnostic {
    Diagnostic::error("second-document", at, "a second document begins here")
        .label("one file is one cluster")
        .why("everything after `---` would be ignored or would describe another cluster; neither can be meant.")
        .help("move it into a file of its own and name that with `-f`.")
}

fn anchor(at: Span) -> Diagnostic {
    Diagnostic::error("anchor", at, "anchors and aliases are not used in this file")
        .label("`&` or `*`")
        .why("with an alias the lines of a machine do not show what it gets.")
        .help("write the value out, or give machines that are alike one pool. Quote text that begins with `*` or `&`.")
}

fn tagged(at: Span, tag: &str) -> Diagnostic {
    Diagnostic::error("tag", at, format!("YAML tags are not used in this file: {}", quote(tag)))
        .label("a tag")
        .why("every key already knows what kind of value it takes.")
        .help("take the tag away. Quote text that begins with `!`.")
}

fn merge_key(at: Span) -> Diagnostic {
    Diagnostic::error("merge-key", at, "merge keys are not used in this file")
        .label("`<<`")
        .why("YAML 1.2 has no merge keys, and programs disagree about which value wins.")
        .help("write the keys out, or give machines that are alike one pool.")
}

fn not_a_key(at: Span) -> Diagnostic {
    Diagnostic::error("key", at, "a key must be text, not a list or a section")
        .label("not a key")
        .why("text that begins with `{`, `[` or `?` is YAML's own notation.")
        .help("put the text in quotes if it is meant as text.")
}

fn duplicate(at: Span, key: &str, first: u32) -> Diagnostic {
    Diagnostic::error("duplicate-key", at, format!("{} is set twice", quote(key)))
        .label(format!("first set on line {first}"))
        .why("only one of the two could count.")
        .help("keep one of them.")
}

/// YAML's own refusals, with the usual reasons in front.
fn syntax(error: &yaml::ScanError, text: &str) -> Diagnostic {
    let at = error_place(error, text);
    let line = text.lines().nth(at.line as usize - 1).unwrap_or_default();
    let tab = matches!(error.kind(), ErrorKind::TabNotAllowed | ErrorKind::TabInBlockIndentation);
    if tab || line.trim_start_matches(' ').starts_with('\t') {
        let column = line.chars().take_while(|c| *c != '\t').count();
        let start = at.start - (at.column - 1).min(at.start) + u32::try_from(column).unwrap_or(0);
        let at = Span {
            start,
            end: start + 1,
            column: u32::try_from(column).unwrap_or(0) + 1,
            ..at
        };
        return Diagnostic::error("tab", at, "a tab stands where only spaces may")
            .label("a tab")
            .why("YAML indents with spaces only.")
            .help("replace it with spaces, two for each level; most editors have a setting for it.");
    }
    let fault =
        Diagnostic::error("syntax", at, format!("this is not YAML: {}", reason(error.kind()))).label("reading stopped here");
    if ["{cluster}", "{pool}", "{n}", "{n0}"].iter().any(|part| line.contains(part)) {
        return fault
            .why("a value that begins with `{` is a section to YAML.")
            .help("put the pattern in quotes: \"{cluster}-{pool}-{n}\".");
    }
    fault
        .why("the rest of the file cannot be read before this is fixed.")
        .help("look at the indentation, and for a missing colon, quote, comma or bracket here or on the line above.")
}

fn reason(kind: &ErrorKind) -> Cow<'static, str> {
    match kind {
        ErrorKind::UnexpectedEofFlowMapping | ErrorKind::UnexpectedEofImplicitFlowMapping => "a `{` is never closed".into(),
        ErrorKind::UnexpectedEofFlowSequence => "a `[` is never closed".into(),
        ErrorKind::ExpectedFlowMappingSeparator => "a comma or `}` is missing".into(),
        ErrorKind::ExpectedFlowSequenceSeparator => "a comma or `]` is missing".into(),
        ErrorKind::ExpectedBlockMappingKey => "a key was expected".into(),
        ErrorKind::SimpleKeyExpected => "a colon is missing after a key".into(),
        ErrorKind::MappingValueNotAllowed => "there can be no key here".into(),
        ErrorKind::InvalidIndentation => "the indentation fits no line above".into(),
        other => {
            let text = other.to_string().to_lowercase();
            if text.contains("quoted scalar") {
                "a quote is not closed".into()
            } else {
                text.into()
            }
        }
    }
}

/// The end of the file is not a place to show, so an error there moves to the last line that has something on it.
fn error_place(error: &yaml::ScanError, text: &str) -> Span {
    let marker = error.marker();
    let line = marker.line().max(1);
    let start = marker.byte_offset().unwrap_or(text.len()).min(text.len());
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    if text[floor(text, start)..].trim().is_empty()
        && let Some((index, last)) = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).last()
    {
        let start = last.as_ptr() as usize - text.as_ptr() as usize + last.trim_end().len();
        return Span {
            start: number(start),
            end: number(start),
            line: number(index + 1),
            column: number(last.trim_end().chars().count() + 1),
        };
    }
    Span {
        start: number(start),
        end: number(start + 1),
        line: number(line),
        column: number(marker.col() + 1),
    }
}

fn floor(text: &str, mut byte: usize) -> usize {
    while !text.is_char_boundary(byte) {
        byte -= 1;
    }
    byte
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> YamlNode {
        let mut faults = Vec::new();
        let node = parse(text, &mut faults).unwrap();
        assert_eq!(faults, []);
        node
    }

    #[test]
    fn plain_scalars_are_what_the_core_schema_says() {
        let text = "[~, true, 3, -3, 0x1F, 1.13, 1.13.9, yes, \"3\", 1e3, .inf, infinity, nan, 12:30, 0o17, +]";
        let sorts: Vec<YamlKind> = read(text).items().iter().map(YamlNode::kind).collect();
        use YamlKind::{Flag, Float, Integer, Nothing, Text};
        let expected = [
            Nothing, Flag, Integer, Integer, Integer, Float, Text, Text, Text, Float, Float, Text, Text, Text, Integer, Text,
        ];
        assert_eq!(sorts, expected);
    }

    #[test]
    fn settings_of_another_program_keep_their_types() {
        let text = "{a: 1, b: -2, c: 0x10, d: 1.5, e: \"1\", f: [true, ~], g: {h: x}, i: .inf, j: 99999999999999999999}";
        let expected = serde_json::json!({
            "a": 1, "b": -2, "c": 16, "d": 1.5, "e": "1", "f": [true, null], "g": { "h": "x" }, "i": ".inf", "j": "99999999999999999999",
        });
        assert_eq!(read(text).to_json(), expected);
    }

    #[test]
    fn the_keys_that_lead_to_a_place_are_found() {
        let text = "name: a\npools:\n  worker: { count: 2, taints: [x, y] }\nprotect: true\n";
        let root = read(text);
        let path = |needle: &str| {
            let byte = u32::try_from(text.find(needle).unwrap()).unwrap();
            root.keys_at(byte)
                .iter()
                .map(|entry| entry.key.as_str())
                .collect::<Vec<_>>()
                .join(".")
        };
        assert_eq!(path("a\n"), "name");
        assert_eq!(path("2"), "pools.worker.count");
        assert_eq!(path("y]"), "pools.worker.taints");
        assert_eq!(path("worker"), "pools.worker");
        assert_eq!(path("true"), "protect");
    }

    #[test]
    fn a_place_is_counted_in_characters_for_people_and_in_bytes_for_programs() {
        let root = read("a: ü\nö: x\n");
        let key = &root.entries()[1];
        assert_eq!((key.value.span.line, key.value.span.column, key.value.span.start), (2, 4, 10));
    }
}
