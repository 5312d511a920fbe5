//! The live view on a terminal: the board, redrawn in place, and lines that stay above it.

use std::io::Write;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use tokio::time::Instant;

use super::board::{self, BoardLine, Canvas, LineStyle};
use super::progress::Progress;
use super::{EventReader, count, error, summary};
use crate::output::Output;
use crate::wire::{EventLine, WireEvent};

/// The shortest time between two frames.
const FRAME_PAUSE: Duration = Duration::from_millis(50);

pub struct LiveView {
    output: Output,
    progress: Progress,
    /// The widths of the lines that are on the screen.
    drawn: Vec<usize>,
    drawn_at: Option<Instant>,
    /// A plan whose approval is still open. While the question is on the screen nothing is drawn.
    new_plan: Option<EventLine>,
}

impl LiveView {
    pub fn new(output: Output) -> Self {
        Self {
            output,
            progress: Progress::default(),
            drawn: Vec::new(),
            drawn_at: None,
            new_plan: None,
        }
    }

    /// Shows the new plan above the board, which goes on with it.
    fn begin_plan(&mut self) {
        let Some(line) = self.new_plan.take() else { return };
        if let WireEvent::Plan(plan) = &line.event {
            self.above(&summary(plan));
        }
        self.progress.line(&line);
    }

    /// The frame as it stays: what happened since the last one is in it.
    fn last_frame(&mut self, now: Duration) {
        if !self.drawn.is_empty() {
            self.draw(now);
        }
    }

    /// Writes a line below the last frame, which stays as it is.
    fn below(&mut self, line: &str) {
        self.drawn.clear();
        write(&format!("{line}\n"));
    }

    /// Writes a line that stays, above the board.
    fn above(&mut self, line: &str) {
        let (width, _) = size();
        let mut frame = self.erase(width);
        frame.push_str(line);
        frame.push('\n');
        self.drawn.clear();
        write(&frame);
    }

    fn draw(&mut self, now: Duration) {
        let (width, height) = size();
        let canvas = Canvas {
            // A line that fills the last column makes some terminals wrap.
            width: width.saturating_sub(1),
            height: height.saturating_sub(2),
            unicode: self.output.unicode,
        };
        let mut frame = self.erase(width);
        let lines = board::lines(&self.progress, now, canvas);
        for line in &lines {
            frame.push_str(&self.painted(line));
            frame.push('\n');
        }
        self.drawn = lines.iter().map(BoardLine::width).collect();
        self.drawn_at = Some(Instant::now());
        write(&frame);
    }

    fn erase(&self, width: usize) -> String {
        erase(&self.drawn, width)
    }

    fn painted(&self, line: &BoardLine) -> String {
        let part = |(style, text): &(LineStyle, String)| {
            let style = match style {
                LineStyle::Normal => Style::new(),
                LineStyle::Strong => Style::new().bold(),
                LineStyle::Faint => Style::new().dimmed(),
                LineStyle::Good => AnsiColor::Green.on_default(),
                LineStyle::Bad => AnsiColor::Red.on_default(),
            };
            if self.output.color_err {
                format!("{style}{text}{style:#}")
            } else {
                text.clone()
            }
        };
        line.0.iter().map(part).collect()
    }
}

impl EventReader for LiveView {
    fn line(&mut self, line: &EventLine) {
        let now = line.time();
        match &line.event {
            WireEvent::Plan(_) => {
                self.new_plan = Some(line.clone());
                return;
            }
            // The prompt shows the page and the question.
            WireEvent::Approval { .. } => return,
            WireEvent::Answer { approved: false } => self.new_plan = None,
            _ => self.begin_plan(),
        }
        self.progress.line(line);
        match &line.event {
            WireEvent::Note { text } => self.above(&format!("note: {text}")),
            WireEvent::Stopping { running } => self.above(&format!(
                "Stopping: no new step begins; requests of {} are answered first. Ctrl-C again aborts.",
                count(running.len(), "step")
            )),
            // The run is over: the last frame stays, and what follows comes below it.
            WireEvent::Error(error) => {
                self.last_frame(now);
                self.below(&error::text(error, self.output.color_err));
                return;
            }
            WireEvent::Report(report) => {
                self.last_frame(now);
                report.summary.iter().for_each(|line| self.below(line));
                return;
            }
            _ => {}
        }
        // Hundreds of machines report hundreds of times in a second. The next event or tick draws what this one changed.
        if self.drawn_at.is_none_or(|at| at.elapsed() >= FRAME_PAUSE) || self.drawn.is_empty() {
            self.draw(now);
        }
    }

    fn tick(&mut self, now: Duration) {
        if self.new_plan.is_none() {
            self.draw(now);
        }
    }
}

/// Moves to the first line of the board and erases everything below. A terminal that became narrower shows long lines in several rows.
fn erase(drawn: &[usize], width: usize) -> String {
    let rows: usize = drawn.iter().map(|line| line.div_ceil(width.max(1)).max(1)).sum();
    if rows == 0 {
        String::new()
    } else {
        format!("\x1b[{rows}A\x1b[J")
    }
}

/// Columns and rows. Read before each frame, so that a resize needs no signal.
fn size() -> (usize, usize) {
    let size =
        terminal_size::terminal_size_of(std::io::stderr()).map(|(width, height)| (usize::from(width.0), usize::from(height.0)));
    // A terminal that does not know its size says zero.
    size.filter(|(width, height)| *width > 0 && *height > 0).unwrap_or((80, 24))
}

/// One write per frame, so that nothing flickers. A terminal that was closed is noticed elsewhere.
fn write(frame: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(frame.as_bytes()).and_then(|()| err.flush());
}

#[cfg(test)]
mod tests {
    use super::erase;

    #[test]
    fn a_board_is_erased_whole_also_after_the_terminal_became_narrower() {
        assert_eq!(erase(&[], 80), "");
        assert_eq!(erase(&[79, 10, 0], 80), "\x1b[3A\x1b[J");
        assert_eq!(erase(&[79, 10, 0], 40), "\x1b[4A\x1b[J");
    }
}
