//! Trees to text: four spaces, dashes indented under their key, strings plain where that is safe, literal blocks for lines.

use super::scalar::{self, Scalar, ScalarKind};
use super::{Map, Node, Value};

const INDENT: usize = 4;

/// Which quotes keep a word such as `on` a string: the library that nodes use writes double ones, the factory's single ones.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LegacyQuotes {
    Single,
    Double,
}

/// One document, with a trailing newline and without a leading `---`.
pub fn emit(root: &Node) -> String {
    emit_with(root, LegacyQuotes::Double)
}

pub fn emit_with(root: &Node, quotes: LegacyQuotes) -> String {
    let mut writer = Writer {
        out: String::new(),
        quotes,
    };
    match &root.value {
        Value::Map(entries) if !entries.is_empty() => writer.map(entries, 0, false),
        Value::List(items) if !items.is_empty() => writer.list(items, 0, false),
        _ => writer.inline(
            root,
            Hang {
                parent: 0,
                content: INDENT,
            },
        ),
    }
    writer.out
}

pub fn emit_documents<'a>(roots: impl IntoIterator<Item = &'a Node>) -> String {
    roots.into_iter().map(emit).collect::<Vec<_>>().join("---\n")
}

/// Where the lines of a block scalar go.
#[derive(Clone, Copy)]
struct Hang {
    parent: usize,
    content: usize,
}

struct Writer {
    out: String,
    quotes: LegacyQuotes,
}

impl Writer {
    /// `after_dash`: the first entry continues a line that already has its dash.
    fn map(&mut self, entries: &Map, indent: usize, after_dash: bool) {
        for (index, (key, value)) in entries.iter().enumerate() {
            if index > 0 || !after_dash {
                self.pad(indent);
            }
            match style(key, self.quotes) {
                Style::Plain => self.out.push_str(key),
                Style::Single => self.out.push_str(&single_quoted(key)),
                Style::Double | Style::Literal => self.out.push_str(&double_quoted(key)),
            }
            self.out.push(':');
            self.value(value, indent);
        }
    }

    fn list(&mut self, items: &[Node], indent: usize, after_dash: bool) {
        for (index, item) in items.iter().enumerate() {
            if index > 0 || !after_dash {
                self.pad(indent);
            }
            self.out.push_str("- ");
            match &item.value {
                Value::Map(entries) if !entries.is_empty() => self.map(entries, indent + 2, true),
                Value::List(inner) if !inner.is_empty() => self.list(inner, indent + 2, true),
                _ => self.inline(
                    item,
                    Hang {
                        parent: indent,
                        content: indent + 2,
                    },
                ),
            }
        }
    }

    fn value(&mut self, value: &Node, indent: usize) {
        match &value.value {
            Value::Map(entries) if !entries.is_empty() => {
                self.out.push('\n');
                self.map(entries, deeper(indent), false);
            }
            Value::List(items) if !items.is_empty() => {
                self.out.push('\n');
                self.list(items, deeper(indent), false);
            }
            _ => {
                self.out.push(' ');
                self.inline(
                    value,
                    Hang {
                        parent: indent,
                        content: deeper(indent),
                    },
                );
            }
        }
    }

    fn inline(&mut self, value: &Node, hang: Hang) {
        match &value.value {
            Value::Map(_) => self.out.push_str("{}\n"),
            Value::List(_) => self.out.push_str("[]\n"),
            Value::Scalar(scalar) => self.scalar(scalar, hang),
        }
    }

    fn scalar(&mut self, scalar: &Scalar, hang: Hang) {
        let text = &scalar.text;
        if scalar.kind != ScalarKind::Text {
            self.out.push_str(text);
        } else {
            match style(text, self.quotes) {
                Style::Plain => self.out.push_str(text),
                Style::Single => self.out.push_str(&single_quoted(text)),
                Style::Literal if !hint_would_lie(text, hang) => return self.literal(text, hang.content),
                Style::Double | Style::Literal => self.out.push_str(&double_quoted(text)),
            }
        }
        self.out.push('\n');
    }

    fn literal(&mut self, text: &str, indent: usize) {
        self.out.push('|');
        if text.starts_with(' ') {
            self.out.push_str(&INDENT.to_string());
        }
        if !text.ends_with('\n') {
            self.out.push('-');
        } else if text == "\n" || text.ends_with("\n\n") {
            self.out.push('+');
        }
        self.out.push('\n');
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            if !line.is_empty() {
                self.pad(indent);
                self.out.push_str(line);
            }
            self.out.push('\n');
        }
    }

    fn pad(&mut self, indent: usize) {
        self.out.extend(std::iter::repeat_n(' ', indent));
    }
}

/// The next multiple of the indent: content of a list's mapping, which sits at +2, comes back to the grid.
fn deeper(indent: usize) -> usize {
    (indent + INDENT) / INDENT * INDENT
}

/// A block whose first line begins with a space needs to say its indent, and what Talos' library says there is right only
/// when the block is exactly one step in. Quotes are always right.
fn hint_would_lie(text: &str, hang: Hang) -> bool {
    let first_line = text.trim_start_matches('\n');
    first_line.starts_with(' ') && (text.starts_with('\n') || hang.content - hang.parent != INDENT)
}

enum Style {
    Plain,
    Single,
    Double,
    Literal,
}

fn style(text: &str, quotes: LegacyQuotes) -> Style {
    let shape = Shape::of(text);
    if text.contains('\n') {
        return if shape.block_allowed() {
            Style::Literal
        } else {
            Style::Double
        };
    }
    if scalar::is_legacy_word(text) {
        return if quotes == LegacyQuotes::Single {
            Style::Single
        } else {
            Style::Double
        };
    }
    if scalar::resolve(text) != ScalarKind::Text {
        return Style::Double;
    }
    if shape.plain_allowed() {
        Style::Plain
    } else if shape.single_allowed() {
        Style::Single
    } else {
        Style::Double
    }
}

/// What in a text limits how it can be written.
#[derive(Default)]
struct Shape {
    indicators: bool,
    line_breaks: bool,
    tabs: bool,
    special: bool,
    outer_blank: bool,
    trailing_space: bool,
    break_space: bool,
    space_break: bool,
}

impl Shape {
    fn of(text: &str) -> Self {
        let mut shape = Self {
            indicators: text.starts_with("---") || text.starts_with("..."),
            ..Self::default()
        };
        let is_blank = |c: char| matches!(c, ' ' | '\t');
        let mut previous: Option<char> = None;
        let mut rest = text.chars().peekable();
        while let Some(c) = rest.next() {
            let before_blank = rest.peek().is_none_or(|next| is_blank(*next) || is_break(*next));
            shape.indicators |= match (previous, c) {
                (None, '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`') => true,
                (None, '?' | '-') | (_, ':') => before_blank,
                (Some(before), '#') => is_blank(before) || is_break(before),
                _ => false,
            };
            shape.tabs |= c == '\t';
            shape.special |= c != '\t' && !is_printable(c);
            shape.line_breaks |= is_break(c);
            let previous_is = |test: fn(char) -> bool| previous.is_some_and(test);
            shape.break_space |= c == ' ' && previous_is(is_break);
            shape.space_break |= is_break(c) && previous == Some(' ');
            previous = Some(c);
        }
        shape.trailing_space = text.ends_with(' ');
        shape.outer_blank = text.starts_with([' ', '\n']) || text.ends_with([' ', '\n']);
        shape
    }

    fn plain_allowed(&self) -> bool {
        !(self.indicators || self.outer_blank || self.line_breaks) && self.single_allowed()
    }

    fn single_allowed(&self) -> bool {
        !(self.break_space || self.space_break || self.tabs || self.special)
    }

    fn block_allowed(&self) -> bool {
        !(self.trailing_space || self.space_break || self.special)
    }
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..='\u{10ffff}')
        && c != '\u{feff}'
}

fn single_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn double_quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\0' => out.push_str("\\0"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            '\u{1b}' => out.push_str("\\e"),
            '\u{85}' => out.push_str("\\N"),
            '\u{2028}' => out.push_str("\\L"),
            '\u{2029}' => out.push_str("\\P"),
            c if is_printable(c) => out.push(c),
            c if u32::from(c) <= 0xff => out.push_str(&format!("\\x{:02X}", u32::from(c))),
            c if u32::from(c) <= 0xffff => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08X}", u32::from(c))),
        }
    }
    out.push('"');
    out
}
