//! The live view: one line per subject, what it waits for and how long, redrawn in place.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use mainstay_engine::{Event, StepEvent, Told};
use mainstay_plan::{Plan, StepId, Subject};

use super::{clock, count, short, summary};
use crate::output::Output;

/// What is on the board. Pure, so that it can be looked at in tests.
#[derive(Default)]
pub struct Board {
    plan: Option<Arc<Plan>>,
    rows: Vec<Row>,
    by_subject: BTreeMap<Subject, usize>,
    done: usize,
    began: Duration,
}

struct Row {
    noun: &'static str,
    name: String,
    left: usize,
    total: usize,
    running: BTreeMap<StepId, Running>,
    failed: Option<String>,
    ended: Option<Duration>,
    begun: Option<Duration>,
}

struct Running {
    since: Duration,
    text: String,
}

/// A line and how it stands out. Nothing depends on the colour.
pub struct Line {
    pub text: String,
    pub tone: Tone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Normal,
    Faint,
    Good,
    Bad,
}

impl Board {
    pub fn absorb(&mut self, told: &Told) {
        match &told.event {
            Event::Planned(plan) => self.begin(plan.clone(), told.at),
            Event::Step { id, now } => self.step(told.at, *id, now),
            Event::Observing { .. } | Event::Note(_) | Event::Stopping { .. } => {}
        }
    }

    fn begin(&mut self, plan: Arc<Plan>, at: Duration) {
        *self = Self {
            began: at,
            ..Self::default()
        };
        for step in &plan.steps {
            let index = *self.by_subject.entry(step.subject.clone()).or_insert_with(|| {
                self.rows.push(Row {
                    noun: noun(&step.subject),
                    name: name(&step.subject),
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

    fn step(&mut self, at: Duration, id: StepId, now: &StepEvent) {
        let Some(plan) = self.plan.clone() else { return };
        let Some(step) = plan.step(id) else { return };
        let Some(row) = self.by_subject.get(&step.subject).and_then(|index| self.rows.get_mut(*index)) else {
            return;
        };
        match now {
            StepEvent::Begin => {
                row.begun.get_or_insert(at);
                row.running.insert(
                    id,
                    Running {
                        since: at,
                        text: doing(step.action.name()).to_owned(),
                    },
                );
            }
            StepEvent::Wait { what, .. } => {
                if let Some(running) = row.running.get_mut(&id) {
                    // What it waits for says more than what it does, and a line is short.
                    running.text = unnamed(what, &row.name);
                }
            }
            StepEvent::Retry { why } => {
                if let Some(running) = row.running.get_mut(&id) {
                    running.text = format!("{}, again: {why}", doing(step.action.name()));
                }
            }
            StepEvent::Done { .. } => {
                row.running.remove(&id);
                row.left -= 1;
                self.done += 1;
                row.ended = (row.left == 0).then_some(at);
            }
            StepEvent::Failed { why, .. } => {
                row.running.remove(&id);
                row.failed = Some(why.what.clone());
            }
        }
    }

    /// At most `height` lines of at most `width` columns; what is done makes room first.
    pub fn lines(&self, now: Duration, width: usize, height: usize) -> Vec<Line> {
        let Some(plan) = &self.plan else { return Vec::new() };
        let names = self
            .rows
            .iter()
            .map(|row| row.name.chars().count())
            .max()
            .unwrap_or(0)
            .min(32);
        let mut lines: Vec<(u8, Line)> = self.rows.iter().map(|row| row.line(now, names, width)).collect();
        let room = height.saturating_sub(1);
        if lines.len() > room {
            let hidden = lines.len() - room.saturating_sub(1);
            lines.sort_by_key(|(rank, _)| *rank);
            lines.truncate(room.saturating_sub(1));
            lines.push((
                9,
                Line {
                    text: format!("  ... and {hidden} more lines"),
                    tone: Tone::Faint,
                },
            ));
        }
        let mut lines: Vec<Line> = lines.into_iter().map(|(_, line)| line).collect();
        let steps = plan.steps.len();
        let foot = format!(
            "{} of {}, {} of {}",
            self.done,
            count(steps, "step"),
            clock(now.saturating_sub(self.began)),
            mainstay_plan::about(plan.expected())
        );
        lines.push(Line {
            text: format!("{foot:>width$}"),
            tone: Tone::Normal,
        });
        lines
    }
}

impl Row {
    /// With a rank: what fails or works is seen before what waits, and that before what is done.
    fn line(&self, now: Duration, names: usize, width: usize) -> (u8, Line) {
        let (rank, tone, text, time) = if let Some(failed) = &self.failed {
            (0, Tone::Bad, format!("failed: {failed}"), None)
        } else if let Some(running) = self.running.values().min_by_key(|running| running.since) {
            (1, Tone::Normal, running.text.clone(), Some(now.saturating_sub(running.since)))
        } else if let Some(ended) = self.ended {
            (
                3,
                Tone::Good,
                "done".to_owned(),
                Some(ended.saturating_sub(self.begun.unwrap_or(ended))),
            )
        } else {
            let text = if self.left == self.total {
                "waits".to_owned()
            } else {
                format!("waits ({} of {} done)", self.total - self.left, count(self.total, "step"))
            };
            (2, Tone::Faint, text, None)
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
            Line {
                text: format!("{head}{text:<room$}{time}"),
                tone,
            },
        )
    }
}

fn noun(subject: &Subject) -> &'static str {
    match subject {
        Subject::Cluster => "cluster",
        Subject::Schematic => "schematic",
        Subject::Image(_) => "image",
        Subject::Machine(_) => "machine",
        Subject::Node(_) => "node",
        Subject::Volume(_) => "volume",
        Subject::Host(_) => "host",
    }
}

/// The cluster and its schematic are one of a kind: their noun is name enough.
fn name(subject: &Subject) -> String {
    match subject {
        Subject::Cluster | Subject::Schematic => String::new(),
        other => other.to_string(),
    }
}

/// What a step does, as one would say it while it happens.
fn doing(action: &str) -> &str {
    match action {
        "schematic.register" => "registering at the Image Factory",
        "image.fetch" => "downloading",
        "image.discard" => "removing what is left of a download",
        "image.delete" | "volume.delete" | "machine.delete" => "deleting",
        "machine.claim" => "creating the VM",
        "machine.mark" => "marking",
        "machine.fill" => "importing its disk",
        "machine.grow" => "growing its disk",
        "machine.start" => "starting",
        "machine.change" => "changing",
        "machine.reboot" => "restarting",
        "machine.stop" => "stopping",
        "talos.configure" => "configuring Talos",
        "talos.reconfigure" => "applying its config",
        "talos.bootstrap" => "beginning etcd",
        "etcd.join" => "joining etcd",
        "etcd.leave" => "leaving etcd",
        "node.await" => "becoming a node",
        "node.delete" => "deleting its Node",
        other => other,
    }
}

/// The name stands at the line's beginning already, and a line is short.
fn unnamed(text: &str, name: &str) -> String {
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

/// The board on a terminal.
pub struct Live {
    output: Output,
    board: Board,
    drawn: usize,
}

impl Live {
    pub fn new(output: Output) -> Self {
        Self {
            output,
            board: Board::default(),
            drawn: 0,
        }
    }

    pub fn show(&mut self, told: &Told) {
        match &told.event {
            Event::Note(text) => self.above(&format!("note: {text}")),
            Event::Stopping { running } => self.above(&format!(
                "Stopping: nothing new begins; waiting for the end of {}. Ctrl-C again leaves at once.",
                count(running.len(), "step")
            )),
            Event::Planned(plan) => {
                // A later round begins below what the earlier one did.
                self.draw(told.at);
                self.drawn = 0;
                self.above(&summary(plan));
            }
            Event::Observing { .. } | Event::Step { .. } => {}
        }
        self.board.absorb(told);
        self.draw(told.at);
    }

    /// A line that stays, above the board.
    fn above(&mut self, line: &str) {
        let mut frame = self.erase();
        frame.push_str(line);
        frame.push('\n');
        self.drawn = 0;
        write(&frame);
    }

    pub fn draw(&mut self, now: Duration) {
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

    fn painted(&self, line: &Line) -> String {
        let style = match line.tone {
            Tone::Normal => Style::new(),
            Tone::Faint => Style::new().dimmed(),
            Tone::Good => AnsiColor::Green.on_default(),
            Tone::Bad => AnsiColor::Red.on_default(),
        };
        if self.output.color_err {
            format!("{style}{}{style:#}", line.text)
        } else {
            line.text.clone()
        }
    }

    pub fn finish(&mut self) {
        self.drawn = 0;
    }
}

/// One write per frame, so that nothing flickers. A terminal that went away is noticed elsewhere.
fn write(frame: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(frame.as_bytes()).and_then(|()| err.flush());
}

#[cfg(test)]
mod tests {
    use mainstay_plan::{Action, Impact, NodeState, Step};

    use super::*;

    fn step(id: u32, machine: &str) -> Step {
        Step {
            id: StepId(id),
            subject: Subject::Machine(machine.into()),
            action: Action::NodeAwait { until: NodeState::Ready },
            why: String::new(),
            impact: Impact::None,
            needs: Vec::new(),
            expected: Duration::from_secs(90),
            at: None,
        }
    }

    fn board(machines: usize) -> Board {
        let steps = (1..=machines)
            .map(|number| step(u32::try_from(number).expect("few"), &format!("w-{number}")))
            .collect();
        let mut board = Board::default();
        board.absorb(&Told {
            at: Duration::ZERO,
            event: Event::Planned(Arc::new(Plan {
                steps,
                ..Plan::default()
            })),
        });
        board
    }

    fn tell(board: &mut Board, at: u64, id: u32, now: StepEvent) {
        board.absorb(&Told {
            at: Duration::from_secs(at),
            event: Event::Step { id: StepId(id), now },
        });
    }

    fn texts(board: &Board, at: u64, height: usize) -> Vec<String> {
        board
            .lines(Duration::from_secs(at), 60, height)
            .into_iter()
            .map(|line| line.text)
            .collect()
    }

    #[test]
    fn a_line_says_what_is_waited_for_and_how_long_and_never_breaks() {
        let mut board = board(1);
        tell(&mut board, 0, 1, StepEvent::Begin);
        tell(
            &mut board,
            1,
            1,
            StepEvent::Wait {
                what: "x".repeat(200),
                limit: Duration::from_secs(600),
            },
        );
        let lines = texts(&board, 41, 20);
        assert!(lines[0].contains("w-1") && lines[0].ends_with("41s"), "{lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= 60), "{lines:?}");
        tell(
            &mut board,
            50,
            1,
            StepEvent::Done {
                took: Duration::from_secs(50),
            },
        );
        assert!(texts(&board, 51, 20)[0].contains("done"));
    }

    #[test]
    fn what_works_is_seen_before_what_waits_when_there_is_no_room() {
        let mut board = board(30);
        tell(&mut board, 0, 29, StepEvent::Begin);
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
            assert_eq!(unnamed(told, "w-1"), shown);
        }
    }
}
