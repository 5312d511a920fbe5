//! The only place that writes to the terminal. stdout carries the result, stderr progress and errors.

use std::io::{self, IsTerminal, Write};

use crate::args::{Color, Global};
use crate::process_env::ProcessEnv;

/// The form of the output.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    pub json: bool,
    /// A live view may be drawn on stderr.
    pub live: bool,
    pub color_err: bool,
    /// Block characters can be shown.
    pub unicode: bool,
    pub verbose: bool,
}

impl Output {
    pub fn new(global: &Global, process_env: &ProcessEnv) -> Self {
        let err = io::stderr().is_terminal();
        let color = |terminal: bool| match global.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => terminal && !process_env.no_color && !process_env.dumb_terminal,
        };
        Self {
            json: global.json,
            live: err && !global.plain && !global.json && !process_env.ci && !process_env.dumb_terminal,
            color_err: color(err),
            unicode: process_env.unicode,
            verbose: global.verbose,
        }
    }

    /// Whether a question can be asked: a person reads stderr and can type.
    pub fn can_ask(&self) -> bool {
        io::stdin().is_terminal() && io::stderr().is_terminal() && !self.json
    }

    /// The width of the result. A file or a pipe has no limit.
    pub fn width(&self) -> usize {
        let out = io::stdout();
        let size = if out.is_terminal() {
            terminal_size::terminal_size_of(out)
        } else {
            None
        };
        size.map_or(usize::MAX, |(width, _)| usize::from(width.0))
    }

    /// A line of the result.
    pub fn print(&self, line: impl AsRef<str>) {
        write(io::stdout().lock(), line.as_ref(), true);
    }

    /// A part of the result as it is, without a line break at its end.
    pub fn print_raw(&self, text: impl AsRef<str>) {
        write(io::stdout().lock(), text.as_ref(), false);
    }

    /// A line of progress.
    pub fn status(&self, line: impl AsRef<str>) {
        write(io::stderr().lock(), line.as_ref(), true);
    }

    /// One JSON object on a line of stdout.
    pub fn print_json(&self, object: &serde_json::Value) {
        self.print(object.to_string());
    }
}

/// A closed pipe (`mainstay status | head`) is not an error: the reader has all it wanted.
#[expect(
    clippy::exit,
    reason = "a closed pipe ends the program quietly, as it ends every other filter"
)]
fn write(mut to: impl Write, text: &str, line: bool) {
    let end = if line { "\n" } else { "" };
    if let Err(error) = to
        .write_all(text.as_bytes())
        .and_then(|()| to.write_all(end.as_bytes()))
        .and_then(|()| to.flush())
        && error.kind() == io::ErrorKind::BrokenPipe
    {
        std::process::exit(0);
    }
}
