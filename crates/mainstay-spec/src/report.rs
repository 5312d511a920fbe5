//! Diagnostics for people and for programs. Pure: the binary prints what these functions return.
//!
//! The page is laid out here and not by `annotate-snippets`, because that crate prints source lines as they are. Lines of cluster.yaml
//! may hold a secret that belongs elsewhere, so they are masked before they are cut to the width of the page, and columns must still
//! point at the right place afterwards.

use anstyle::{AnsiColor, Style};
use serde_json::{Value, json};

use crate::diagnostic::{Diagnostic, Severity};
use crate::mask::masked_lines;
use crate::source::{Source, Span};
use crate::tree::{self, YamlNode};

/// Explanations are wrapped here, as long lines are hard to read on any screen.
const WIDTH: usize = 112;

/// Longer lines of the file are cut around the fault.
const SNIPPET_WIDTH: usize = 120;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    Plain,
    Colour,
}

/// The faults as a person reads them: each with its lines of the file, then how many there are.
pub fn terminal(source: &Source, faults: &[Diagnostic], paint: Paint) -> String {
    let page = ReportPage::new(source, paint);
    let mut out = String::new();
    for fault in faults {
        page.fault(fault, &mut out);
        out.push('\n');
    }
    out.push_str(&tally(source, faults));
    out
}

/// The same facts as objects, in the form of the other lines of `--json`.
pub fn json(source: &Source, faults: &[Diagnostic]) -> Vec<Value> {
    let page = ReportPage::new(source, Paint::Plain);
    faults.iter().map(|fault| page.object(fault)).collect()
}

fn tally(source: &Source, faults: &[Diagnostic]) -> String {
    let errors = faults.iter().filter(|fault| fault.severity == Severity::Error).count();
    let counts: Vec<String> = [(errors, "error"), (faults.len() - errors, "warning")]
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, noun)| count(*n, noun))
        .collect();
    match (counts.is_empty(), errors) {
        (true, _) => String::new(),
        (false, 0) => format!("{}: {}.\n", source.file, counts.join(", ")),
        (false, _) => format!("{}: {}. Nothing was changed.\n", source.file, counts.join(", ")),
    }
}

fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// A file laid out for showing parts of it.
struct ReportPage<'s> {
    source: &'s Source,
    raw: Vec<&'s str>,
    /// The same lines without secrets.
    shown: Vec<String>,
    root: Option<YamlNode>,
    paint: Paint,
}

impl<'s> ReportPage<'s> {
    fn new(source: &'s Source, paint: Paint) -> Self {
        let raw = source.text.lines().collect();
        Self {
            source,
            raw,
            shown: masked_lines(&source.text),
            root: tree::parse(&source.text, &mut Vec::new()),
            paint,
        }
    }

    fn object(&self, fault: &Diagnostic) -> Value {
        let help: Vec<&str> = fault.help.lines().collect();
        json!({
            "v": 1, "type": fault.severity.as_str(), "kind": "spec", "code": fault.code, "summary": fault.summary,
            "file": self.source.file, "line": fault.at.line, "column": fault.at.column, "path": self.path(fault.at),
            "label": fault.label, "why": fault.why, "help": help,
        })
    }

    fn path(&self, at: Span) -> String {
        let keys = self.root.iter().flat_map(|root| root.keys_at(at.start));
        keys.map(|entry| entry.key.as_str()).collect::<Vec<_>>().join(".")
    }

    fn fault(&self, fault: &Diagnostic, out: &mut String) {
        let severity = match fault.severity {
            Severity::Error => AnsiColor::Red,
            Severity::Warning => AnsiColor::Yellow,
        };
        let style = severity.on_default().bold();
        let width = fault.at.line.to_string().len();
        let head = format!(
            "{}: {}",
            self.paint(style, fault.severity.as_str()),
            self.paint(Style::new().bold(), &fault.summary)
        );
        out.push_str(&head);
        let place = format!("{}:{}:{}", self.source.file, fault.at.line, fault.at.column);
        out.push_str(&format!("\n{:width$}{} {place}\n", "", self.gutter("-->")));
        self.snippet(fault, width, style, out);
        for (word, text) in [("why: ", &fault.why), ("help:", &fault.help)] {
            if !text.is_empty() {
                out.push_str(&format!("  {} {}\n", self.paint(Style::new().bold(), word), wrap(text)));
            }
        }
    }

    fn snippet(&self, fault: &Diagnostic, width: usize, style: Style, out: &mut String) {
        let bar = self.gutter("|");
        let number = |line: u32| self.gutter(&format!("{line:>width$}"));
        let mut write = |text: String| {
            out.push_str(text.trim_end());
            out.push('\n');
        };
        let Some(cut) = self.cut(fault.at) else { return };
        write(format!("{:width$} {bar}", ""));
        if let Some(above) = self.line_above(fault.at) {
            write(format!("{} {bar} {}", number(above), self.clean(above)));
            if above + 1 < fault.at.line {
                write(self.gutter("..."));
            }
        }
        write(format!("{} {bar} {}", number(fault.at.line), cut.text));
        let carets = self.paint(style, &format!("{} {}", "^".repeat(cut.width), fault.label));
        write(format!("{:width$} {bar} {:column$}{carets}", "", "", column = cut.column));
        write(format!("{:width$} {bar}", ""));
    }

    /// The line of the section that holds the fault, or the line before it where the file cannot be read.
    fn line_above(&self, at: Span) -> Option<u32> {
        let Some(root) = &self.root else {
            return at.line.checked_sub(1).filter(|line| *line > 0);
        };
        let keys = root.keys_at(at.start);
        keys.iter()
            .rev()
            .map(|entry| entry.key_span.line)
            .find(|line| *line < at.line)
    }

    fn clean(&self, line: u32) -> String {
        let text: String = self
            .shown
            .get(line as usize - 1)
            .map_or(String::new(), |text| printable(text));
        if text.chars().count() > SNIPPET_WIDTH {
            text.chars().take(SNIPPET_WIDTH - 1).chain(['…']).collect()
        } else {
            text
        }
    }

    /// The line of the fault, and which part of it to underline.
    fn cut(&self, at: Span) -> Option<Cut> {
        let index = at.line.checked_sub(1)? as usize;
        let (raw, shown) = (*self.raw.get(index)?, self.shown.get(index)?);
        let byte: usize = raw.chars().take(at.column as usize - 1).map(char::len_utf8).sum();
        let end = (byte + (at.end.saturating_sub(at.start)) as usize).min(raw.len());
        let marked = raw.get(byte..end).unwrap_or_default().trim_end();
        let (before, width) = match raw.get(byte..) {
            Some(tail) if !tail.is_empty() && shown.ends_with(tail) => {
                (&shown[..shown.len() - tail.len()], marked.chars().count())
            }
            _ if raw.get(..byte).is_some_and(|head| shown.starts_with(head)) => {
                (&shown[..byte], marked.chars().count().min(shown.len() - byte))
            }
            // The mask swallowed the place: point at the beginning of the line.
            _ => (&shown[..shown.len() - shown.trim_start().len()], 1),
        };
        Some(Cut::new(&printable(shown), printable(before).chars().count(), width.max(1)))
    }

    fn gutter(&self, text: &str) -> String {
        self.paint(AnsiColor::Blue.on_default().bold(), text)
    }

    fn paint(&self, style: Style, text: &str) -> String {
        match self.paint {
            Paint::Plain => text.to_owned(),
            Paint::Colour => format!("{style}{text}{style:#}"),
        }
    }
}

struct Cut {
    text: String,
    column: usize,
    width: usize,
}

impl Cut {
    fn new(line: &str, column: usize, width: usize) -> Self {
        let length = line.chars().count();
        let width = width.min(SNIPPET_WIDTH / 2);
        if length <= SNIPPET_WIDTH {
            return Self {
                text: line.to_owned(),
                column,
                width,
            };
        }
        let from = column.saturating_sub(SNIPPET_WIDTH / 2);
        let middle: String = line.chars().skip(from).take(SNIPPET_WIDTH - 2).collect();
        let (head, tail) = (
            if from > 0 { "…" } else { "" },
            if from + SNIPPET_WIDTH - 2 < length { "…" } else { "" },
        );
        Self {
            text: format!("{head}{middle}{tail}"),
            column: column - from + head.chars().count(),
            width,
        }
    }
}

/// Tabs as spaces, and nothing that a terminal would act on.
fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => out.push_str("    "),
            c if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}') => {
                out.push('\u{fffd}');
            }
            c => out.push(c),
        }
    }
    out
}

/// Lines of at most `WIDTH`, the second and later ones under the first.
fn wrap(text: &str) -> String {
    const INDENT: &str = "        ";
    let mut out = String::new();
    for (index, line) in text.lines().enumerate() {
        if index > 0 {
            out.push('\n');
            out.push_str(INDENT);
        }
        // A line that begins with a blank is a command to paste: it stays whole.
        if line.starts_with(' ') {
            out.push_str(line);
            continue;
        }
        let mut column = INDENT.len();
        for word in line.split_whitespace() {
            let length = word.chars().count();
            if column > INDENT.len() && column + 1 + length > WIDTH {
                out.push('\n');
                out.push_str(INDENT);
                column = INDENT.len();
            } else if column > INDENT.len() {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += length;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn fault(text: &str, needle: &str, summary: &str) -> (Source, Diagnostic) {
        let start = text.find(needle).unwrap();
        let before = &text[..start];
        let number = |n: usize| u32::try_from(n).unwrap();
        let line = number(before.matches('\n').count() + 1);
        let column = number(before.rsplit('\n').next().unwrap().chars().count() + 1);
        let at = Span {
            start: number(start),
            end: number(start + needle.len()),
            line,
            column,
        };
        let fault = Diagnostic::error("test", at, summary)
            .label("here")
            .why("because it is so.")
            .help("change it.");
        (
            Source {
                file: "cluster.yaml".to_owned(),
                text: text.into(),
            },
            fault,
        )
    }

    fn render(text: &str, needle: &str) -> String {
        let (source, fault) = fault(text, needle, "something is wrong");
        terminal(&source, &[fault], Paint::Plain)
    }

    #[test]
    fn a_fault_is_shown_below_the_section_it_is_in() {
        expect![[r"
            error: something is wrong
             --> cluster.yaml:4:12
              |
            2 |   control-plane:
            ...
            4 |     count: 2
              |            ^ here
              |
              why:  because it is so.
              help: change it.

            cluster.yaml: 1 error. Nothing was changed.
        "]]
        .assert_eq(&render("pools:\n  control-plane:\n    cpu: 4\n    count: 2\n", "2"));
    }

    #[test]
    fn the_caret_follows_when_a_secret_before_it_is_hidden() {
        let text = "x: { token: aVeryLongSecretIndeed, count: 2 }\n";
        let shown = render(text, "2");
        assert!(shown.contains("x: { token: ***, count: 2 }"), "{shown}");
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[3].find('2'), lines[4].find('^'), "{shown}");
    }

    #[test]
    fn a_fault_at_a_secret_points_at_the_stars() {
        let shown = render("token: aVeryLongSecretIndeed\n", "aVeryLongSecretIndeed");
        assert!(shown.contains("1 | token: ***\n  |        ^^^ here"), "{shown}");
        assert!(!shown.contains("Indeed"));
    }

    #[test]
    fn a_long_line_is_cut_around_the_fault() {
        let text = format!("x: [{}, needle, {}]\n", "aaaa, ".repeat(60), "bbbb, ".repeat(60));
        let shown = render(&text, "needle");
        let lines: Vec<Vec<char>> = shown.lines().map(|line| line.chars().collect()).collect();
        assert!(lines[3].len() < 130, "{shown}");
        let caret = lines[4].iter().position(|c| *c == '^').unwrap();
        assert_eq!(lines[3][caret..caret + 6].iter().collect::<String>(), "needle");
    }

    #[test]
    fn nothing_a_terminal_acts_on_is_printed() {
        let shown = render("x: \"\u{1b}[31m\u{202e}\" # \u{7}\ny: needle\n", "needle");
        assert!(!shown.contains(['\u{1b}', '\u{202e}', '\u{7}']), "{shown:?}");
    }

    #[test]
    fn colours_only_add_to_the_text() {
        let (source, fault) = fault("count: 2\n", "2", "something is wrong");
        let coloured = terminal(&source, std::slice::from_ref(&fault), Paint::Colour);
        let mut plain = String::new();
        let mut inside = false;
        for c in coloured.chars() {
            match c {
                '\u{1b}' => inside = true,
                'm' if inside => inside = false,
                c if !inside => plain.push(c),
                _ => {}
            }
        }
        assert_ne!(coloured, plain);
        assert_eq!(plain, terminal(&source, &[fault], Paint::Plain));
    }

    #[test]
    fn an_object_says_what_the_text_says() {
        let (source, fault) = fault("pools: { worker: { count: x } }\n", "x", "something is wrong");
        let object = &json(&source, &[fault])[0];
        assert_eq!(object["path"], "pools.worker.count");
        assert_eq!((object["line"].as_u64(), object["column"].as_u64()), (Some(1), Some(27)));
        assert_eq!(object["help"], json!(["change it."]));
    }
}
