//! The live view: one line per subject, with what it waits for and for how long, redrawn in place.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anstyle::{AnsiColor, Style};

use super::{EventReader, about, clock, count, error, short, summary};
use crate::output::Output;
use crate::wire::{EventLine, PlanEvent, PlanSubject, StepState, StepUpdate, WireEvent, duration};

/// The content of the view. Pure, so that tests can read it.
#[derive(Default)]
pub struct ProgressBoard {
    plan: Option<PlanEvent>,
    rows: Vec<BoardRow>,
    by_subject: BTreeMap<PlanSubject, usize>,
    done: usize,
    began: Duration,
}

struct BoardRow {
    noun: &'static str,
    name: String,
    left: usize,
    total: usize,
    running: BTreeMap<u32, RunningStep>,
    failed: Option<String>,
    ended: Option<Duration>,
    begun: Option<Duration>,
}

struct RunningStep {
    since: Duration,
    text: String,
}

/// A line and its style. No information is in the colour alone.
pub struct BoardLine {
    pub text: String,
    pub style: LineStyle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineStyle {
    Normal,
    Faint,
    Good,
    Bad,
}

impl ProgressBoard {
    pub fn line(&mut self, line: &EventLine) {
        match &line.event {
            WireEvent::Plan(plan) => self.begin(plan.clone(), line.time()),
            WireEvent::Step(step) => self.step(line.time(), step),
            _ => {}
        }
    }

    fn begin(&mut self, plan: PlanEvent, at: Duration) {
        *self = Self {
            began: at,
            ..Self::default()
        };
        for step in &plan.list {
            let index = *self.by_subject.entry(step.subject.clone()).or_insert_with(|| {
                self.rows.push(BoardRow {
                    noun: step.subject.kind.as_str(),
                    name: step.subject.name.clone().unwrap_or_default(),
                    left: 0,
                    total: 0,
                    running: BTreeMap::new(),
                    failed: None,
                    ended: None,
                    begun: None,
                });
                self.rows.len() - 1
            });
            self.rows[index].left += 1;
            self.rows[index].total += 1;
        }
        self.plan = Some(plan);
    }

    fn step(&mut self, at: Duration, update: &StepUpdate) {
        let Some(step) = self.plan.as_ref().and_then(|plan| plan.step(update.id)) else {
            return;
        };
        let Some(row) = self.by_subject.get(&step.subject).and_then(|index| self.rows.get_mut(*index)) else {
            return;
        };
        let running = row.running.get_mut(&update.id);
        match (&update.state, running) {
            (StepState::Begin, _) => {
                row.begun.get_or_insert(at);
                let text = step.doing.clone();
                row.running.insert(update.id, RunningStep { since: at, text });
            }
            // What a step waits for says more than what it does, and a line is short.
            (StepState::Wait { reason, .. }, Some(running)) => running.text = without_name(reason, &row.name),
            (StepState::Retry { why }, Some(running)) => running.text = format!("{}, retrying: {why}", step.doing),
            (StepState::Wait { .. } | StepState::Retry { .. }, None) => {}
            (StepState::Done { .. }, _) => {
                row.running.remove(&update.id);
                row.left = row.left.saturating_sub(1);
                self.done += 1;
                row.ended = (row.left == 0).then_some(at);
            }
            (StepState::Failed { summary, .. }, _) => {
                row.running.remove(&update.id);
                row.failed = Some(summary.clone());
            }
        }
    }

    /// At most `height` lines of at most `width` columns. Where there are too many rows, finished ones are left out first.
    pub fn lines(&self, now: Duration, width: usize, height: usize) -> Vec<BoardLine> {
        let Some(plan) = &self.plan else { return Vec::new() };
        let names = self
            .rows
            .iter()
            .map(|row| row.name.chars().count())
            .max()
            .unwrap_or(0)
            .min(32);
        let mut lines: Vec<(u8, BoardLine)> = self.rows.iter().map(|row| row.line(now, names, width)).collect();
        let room = height.saturating_sub(1);
        if lines.len() > room {
            let hidden = lines.len() - room.saturating_sub(1);
            lines.sort_by_key(|(rank, _)| *rank);
            lines.truncate(room.saturating_sub(1));
            lines.push((
                9,
                BoardLine {
                    text: format!("  ... and {hidden} more lines"),
                    style: LineStyle::Faint,
                },
            ));
        }
        let mut lines: Vec<BoardLine> = lines.into_iter().map(|(_, line)| line).collect();
        let foot = format!(
            "{} of {}, {} of {}",
            self.done,
            count(plan.steps, "step"),
            clock(now.saturating_sub(self.began)),
            about(duration(plan.expected))
        );
        lines.push(BoardLine {
            text: format!("{foot:>width$}"),
            style: LineStyle::Normal,
        });
        lines
    }
}

impl BoardRow {
    /// With a rank: failed rows come before running ones, those before waiting ones, finished ones last.
    fn line(&self, now: Duration, names: usize, width: usize) -> (u8, BoardLine) {
        let (rank, style, text, time) = if let Some(failed) = &self.failed {
            (0, LineStyle::Bad, format!("failed: {failed}"), None)
        } else if let Some(running) = self.running.values().min_by_key(|running| running.since) {
            (
                1,
                LineStyle::Normal,
                running.text.clone(),
                Some(now.saturating_sub(running.since)),
            )
        } else if let Some(ended) = self.ended {
            (
                3,
                LineStyle::Good,
                "done".to_owned(),
                Some(ended.saturating_sub(self.begun.unwrap_or(ended))),
            )
        } else {
            let text = if self.left == self.total {
                "waits".to_owned()
            } else {
                format!("waits ({} of {} done)", self.total - self.left, count(self.total, "step"))
            };
            (2, LineStyle::Faint, text, None)
        };
        let head = format!("  {:<9} {:<names$}  ", self.noun, self.name);
        let time = time
            .filter(|time| time.as_secs() > 0)
            .map(|time| format!("  {}", short(time)))
            .unwrap_or_default();
        let room = width.saturating_sub(head.chars().count() + time.chars().count() + 1);
        let text = shortened(&text, room);
        (
            rank,
            BoardLine {
                text: format!("{head}{text:<room$}{time}"),
                style,
            },
        )
    }
}

/// Drops the machine's name from a text: the row begins with it.
fn without_name(text: &str, name: &str) -> String {
    text.replace(&format!("Kubernetes node {name} "), "the node ")
        .replace(&format!(" node {name} "), " the node ")
        .replace(&format!(" {name}"), "")
}

fn shortened(text: &str, width: usize) -> String {
    let text = text.replace('\n', " ");
    if text.chars().count() <= width {
        return text;
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// The view on a terminal.
pub struct LiveView {
    output: Output,
    board: ProgressBoard,
    drawn: usize,
    /// A plan whose approval is still open. While the question is on the screen nothing is drawn.
    new_plan: Option<EventLine>,
}

impl LiveView {
    pub fn new(output: Output) -> Self {
        Self {
            output,
            board: ProgressBoard::default(),
            drawn: 0,
            new_plan: None,
        }
    }

    /// Shows the new plan, below the last frame of the earlier round.
    fn begin_plan(&mut self, now: Duration) {
        let Some(line) = self.new_plan.take() else { return };
        if let WireEvent::Plan(plan) = &line.event {
            self.draw(now);
            self.drawn = 0;
            self.above(&summary(plan));
        }
        self.board.line(&line);
    }

    /// Writes a line below the last frame, which stays as it is.
    fn below(&mut self, line: &str) {
        self.drawn = 0;
        write(&format!("{line}\n"));
    }

    /// Writes a line that stays, above the board.
    fn above(&mut self, line: &str) {
        let mut frame = self.erase();
        frame.push_str(line);
        frame.push('\n');
        self.drawn = 0;
        write(&frame);
    }

    fn draw(&mut self, now: Duration) {
        let (width, height) = terminal_size::terminal_size_of(std::io::stderr())
            .map_or((80, 24), |(width, height)| (usize::from(width.0), usize::from(height.0)));
        let mut frame = self.erase();
        let lines = self.board.lines(now, width.saturating_sub(1), height.saturating_sub(2));
        for line in &lines {
            frame.push_str(&self.painted(line));
            frame.push('\n');
        }
        self.drawn = lines.len();
        write(&frame);
    }

    fn erase(&self) -> String {
        if self.drawn == 0 {
            String::new()
        } else {
            format!("\x1b[{}A\x1b[J", self.drawn)
        }
    }

    fn painted(&self, line: &BoardLine) -> String {
        let style = match line.style {
            LineStyle::Normal => Style::new(),
            LineStyle::Faint => Style::new().dimmed(),
            LineStyle::Good => AnsiColor::Green.on_default(),
            LineStyle::Bad => AnsiColor::Red.on_default(),
        };
        if self.output.color_err {
            format!("{style}{}{style:#}", line.text)
        } else {
            line.text.clone()
        }
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
            _ => self.begin_plan(now),
        }
        self.board.line(line);
        match &line.event {
            WireEvent::Note { text } => self.above(&format!("note: {text}")),
            WireEvent::Stopping { running } => self.above(&format!(
                "Stopping: no new step begins; waiting for {}. Ctrl-C again aborts.",
                count(running.len(), "step")
            )),
            // The run is over: the last frame stays, and what follows comes below it.
            WireEvent::Error(error) => {
                self.below(&error::text(error, self.output.color_err));
                return;
            }
            WireEvent::Report(report) => {
                report.summary.iter().for_each(|line| self.below(line));
                return;
            }
            _ => {}
        }
        self.draw(now);
    }

    fn tick(&mut self, now: Duration) {
        if self.new_plan.is_none() {
            self.draw(now);
        }
    }
}

/// One write per frame, so that nothing flickers. A terminal that was closed is noticed elsewhere.
fn write(frame: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(frame.as_bytes()).and_then(|()| err.flush());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{PlanCounts, PlanStep, SubjectKind};

    fn step(id: u32, machine: &str) -> PlanStep {
        PlanStep {
            id,
            on: machine.into(),
            subject: PlanSubject {
                kind: SubjectKind::Machine,
                name: Some(machine.into()),
            },
            action: "node.await".into(),
            doing: "waiting for the node".into(),
            detail: None,
            why: String::new(),
            impact: "none".into(),
            needs: Vec::new(),
            expected: 90.0,
            line: None,
        }
    }

    fn board(machines: u32) -> ProgressBoard {
        let list: Vec<PlanStep> = (1..=machines).map(|number| step(number, &format!("w-{number}"))).collect();
        let plan = PlanEvent {
            cluster: "prod".into(),
            steps: list.len(),
            create: 0,
            change: 0,
            remove: 0,
            held: 0,
            expected: 90.0,
            counts: PlanCounts::default(),
            list,
            held_list: Vec::new(),
            drift: Vec::new(),
            notes: Vec::new(),
        };
        let mut board = ProgressBoard::default();
        board.line(&EventLine::at(Duration::ZERO, WireEvent::Plan(plan)));
        board
    }

    fn tell(board: &mut ProgressBoard, at: u64, id: u32, state: StepState) {
        let update = StepUpdate {
            id,
            on: format!("w-{id}"),
            action: "node.await".into(),
            state,
        };
        board.line(&EventLine::at(Duration::from_secs(at), WireEvent::Step(update)));
    }

    fn texts(board: &ProgressBoard, at: u64, height: usize) -> Vec<String> {
        board
            .lines(Duration::from_secs(at), 60, height)
            .into_iter()
            .map(|line| line.text)
            .collect()
    }

    #[test]
    fn a_line_says_what_is_waited_for_and_how_long_and_never_breaks() {
        let mut board = board(1);
        tell(&mut board, 0, 1, StepState::Begin);
        tell(
            &mut board,
            1,
            1,
            StepState::Wait {
                reason: "x".repeat(200),
                limit: 600.0,
            },
        );
        let lines = texts(&board, 41, 20);
        assert!(lines[0].contains("w-1") && lines[0].ends_with("41s"), "{lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= 60), "{lines:?}");
        tell(&mut board, 50, 1, StepState::Done { took: 50.0 });
        assert!(texts(&board, 51, 20)[0].contains("done"));
    }

    #[test]
    fn what_works_is_seen_before_what_waits_when_there_is_no_room() {
        let mut board = board(30);
        tell(&mut board, 0, 29, StepState::Begin);
        let lines = texts(&board, 5, 6);
        assert_eq!(lines.len(), 6);
        assert!(lines[0].contains("w-29"), "{lines:?}");
        assert!(lines[4].contains("more lines"), "{lines:?}");
    }

    #[test]
    fn a_line_does_not_name_its_machine_twice() {
        for (told, shown) in [
            (
                "Kubernetes does not know node w-1 yet",
                "Kubernetes does not know the node yet",
            ),
            (
                "Kubernetes node w-1 is not Ready: no network",
                "the node is not Ready: no network",
            ),
            ("etcd does not list w-1", "etcd does not list"),
        ] {
            assert_eq!(without_name(told, "w-1"), shown);
        }
    }
}
