//! An error as people read it: what, where, why, what to do.

use anstyle::{AnsiColor, Style};
use mainstay_spec::report::{self, Paint};

use crate::error::CommandError;
use crate::output::Output;
use crate::wire::{self, ErrorEvent, ErrorKind, EventLine, WireEvent};

/// Writes the error that ended a command: text on stderr, or lines of the event stream on stdout.
pub fn show(output: Output, error: &CommandError, file: &str) {
    if output.json {
        let events: Vec<WireEvent> = match error {
            CommandError::Spec(found) => wire::diagnostics(&found.source, &found.faults),
            other => other.events(file).into_iter().map(WireEvent::Error).collect(),
        };
        events
            .into_iter()
            .for_each(|event| output.print(EventLine::untimed(event).to_json()));
        return;
    }
    if let CommandError::Spec(diagnostics) = error {
        // Errors of the file are shown with the lines of the file, which the event stream does not carry.
        let paint = if output.color_err { Paint::Colour } else { Paint::Plain };
        output.status(report::terminal(&diagnostics.source, &diagnostics.faults, paint).trim_end());
        return;
    }
    for error in error.events(file) {
        output.status(text(&error, output.color_err));
    }
}

/// The form that all errors have.
pub fn text(error: &ErrorEvent, color: bool) -> String {
    if matches!(error.kind, ErrorKind::Interrupted | ErrorKind::Declined) {
        // The user's own decision is no error.
        return error.summary.clone();
    }
    let mut text = ErrorText::new(&error.summary, color);
    let place = error
        .file
        .iter()
        .zip(&error.line)
        .map(|(file, line)| format!("  --> {file}:{line}"));
    text.lines.extend(place);
    text.field("at", &error.at);
    text.field("why", &error.why);
    text.field("help", &error.help);
    text.lines.join("\n")
}

struct ErrorText {
    lines: Vec<String>,
    color: bool,
}

impl ErrorText {
    fn new(summary: &str, color: bool) -> Self {
        let style = AnsiColor::Red.on_default().bold();
        let head = if color {
            format!("{style}error:{style:#} {summary}")
        } else {
            format!("error: {summary}")
        };
        Self {
            lines: vec![head],
            color,
        }
    }

    /// The label stands on the first line only.
    fn field<'t>(&mut self, name: &str, texts: impl IntoIterator<Item = &'t String>) {
        for (number, text) in texts.into_iter().enumerate() {
            let label = if number == 0 { format!("{name}:") } else { String::new() };
            let style = if self.color { Style::new().bold() } else { Style::new() };
            for (line, part) in text.lines().enumerate() {
                let label = if line == 0 { label.as_str() } else { "" };
                self.lines.push(format!("  {style}{label:<5}{style:#} {part}"));
            }
        }
    }
}
