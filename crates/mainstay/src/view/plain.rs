//! Append-only lines for CI and pipes. Without `-v`, at most three lines a minute for each machine, and none that repeats the one before; with
//! `-v`, every event of every step.

use std::collections::BTreeMap;
use std::time::Duration;

use super::progress::{Progress, Row, RowPhase};
use super::{EventReader, clock, count, error, short, summary};
use crate::output::Output;
use crate::wire::{EventLine, PlanEvent, StepState, StepUpdate, WireEvent, duration};

/// The shortest time between a line about a subject and the next one that only tells what it waits for.
const SUBJECT_PAUSE: Duration = Duration::from_secs(30);
/// Lines about one subject in a minute.
const PER_MINUTE: usize = 3;
const MINUTE: Duration = Duration::from_secs(60);
/// After so much silence one line tells that the run goes on, and what is slowest.
const SILENCE: Duration = Duration::from_secs(60);

pub struct PlainView {
    output: Output,
    write: Box<dyn Fn(&str)>,
    progress: Progress,
    plan: Option<PlanEvent>,
    /// The summary of the plan is not written yet: it may still be declined.
    plan_is_new: bool,
    /// By row of the progress.
    told: BTreeMap<usize, Told>,
    last_written: Duration,
}

/// What was written about one subject.
#[derive(Default)]
struct Told {
    /// Times of the last lines.
    times: Vec<Duration>,
    text: String,
}

impl Told {
    fn in_the_last_minute(&self, now: Duration) -> usize {
        self.times.iter().filter(|time| now.saturating_sub(**time) < MINUTE).count()
    }
}

/// A line about a subject.
struct SubjectLine {
    verb: &'static str,
    text: String,
}

impl PlainView {
    pub fn new(output: Output) -> Self {
        Self::writing(output, Box::new(move |line| output.status(line)))
    }

    fn writing(output: Output, write: Box<dyn Fn(&str)>) -> Self {
        Self {
            output,
            write,
            progress: Progress::default(),
            plan: None,
            plan_is_new: false,
            told: BTreeMap::new(),
            last_written: Duration::ZERO,
        }
    }

    fn write_plan(&mut self, at: Duration) {
        let Some(plan) = self.plan.take_if(|_| self.plan_is_new) else {
            return;
        };
        self.write(at, "plan", &summary(&plan));
        if self.output.verbose {
            plan.list
                .iter()
                .for_each(|step| (self.write)(&format!("      {}", step.trace())));
        }
        (self.plan, self.plan_is_new) = (Some(plan), false);
    }

    fn stopping(&mut self, at: Duration, running: &[u32]) {
        let steps = count(running.len(), "step");
        self.write(
            at,
            "stop",
            &format!("no new step begins; requests of {steps} are answered first (Ctrl-C again aborts)"),
        );
        for id in running {
            let step = self.plan.as_ref().and_then(|plan| plan.step(*id));
            let name = step.map_or_else(|| format!("step {id}"), |step| format!("{} {}", step.action, step.on));
            self.write(at, "stop", &format!("still running: {name}"));
        }
    }

    /// Every event of a step, for `-v`.
    fn trace(&mut self, at: Duration, step: &StepUpdate) {
        let name = format!("{} {}", step.action, step.on);
        match &step.state {
            StepState::Begin => self.write(at, "begin", &name),
            StepState::Wait { reason, limit, .. } => {
                let limit = short(duration(*limit));
                self.write(at, "wait", &format!("{name}: {reason} (at most {limit})"));
            }
            StepState::Retry { why } => self.write(at, "retry", &format!("{name}: {why}")),
            StepState::Done { took } => self.write(at, "done", &format!("{name} ({})", short(duration(*took)))),
            StepState::Failed { took, summary, why, .. } => {
                let why = why.iter().map(|why| format!(": {why}")).collect::<String>();
                self.write(at, "failed", &format!("{name} ({}): {summary}{why}", short(duration(*took))));
            }
        }
    }

    /// What is to be said about a row, if anything.
    fn subject_line(&self, index: usize, now: Duration) -> Option<SubjectLine> {
        let row: &Row = self.progress.rows().get(index)?;
        let state = self.progress.state(row, now);
        let told = self.told.get(&index);
        let title = row.title();
        let (verb, text) = match (state.phase, told) {
            (RowPhase::Waiting, _) => return None,
            (RowPhase::Running | RowPhase::Failed, _) if state.since.is_some() => {
                let verb = if told.is_none() { "begin" } else { "wait" };
                (verb, format!("{title}: {}", state.sentence()))
            }
            // The verb of the line says it.
            (RowPhase::Failed | RowPhase::Running, _) => {
                ("failed", format!("{title}: {}", state.sentence().replacen("failed: ", "", 1)))
            }
            (RowPhase::Done, _) => ("done", format!("{title} ({})", short(state.since.unwrap_or_default()))),
        };
        let Some(told) = told else {
            return Some(SubjectLine { verb, text });
        };
        let last = told.times.last().copied().unwrap_or_default();
        let is_news = text != told.text && told.in_the_last_minute(now) < PER_MINUTE;
        let is_due = verb != "wait" || now.saturating_sub(last) >= SUBJECT_PAUSE;
        (is_news && is_due).then_some(SubjectLine { verb, text })
    }

    fn tell(&mut self, index: usize, now: Duration) {
        let Some(SubjectLine { verb, text }) = self.subject_line(index, now) else {
            return;
        };
        self.write(now, verb, &text);
        let told = self.told.entry(index).or_default();
        told.times.retain(|time| now.saturating_sub(*time) < MINUTE);
        told.times.push(now);
        told.text = text;
    }

    /// One line after a long silence. Only its times are new, so that it is written for the whole run and not for each machine.
    fn sign_of_life(&mut self, now: Duration) {
        let rows = self.progress.rows().iter();
        let states = rows.map(|row| (row, self.progress.state(row, now)));
        let running: Vec<_> = states
            .filter(|(_, state)| state.since.is_some() && state.phase < RowPhase::Waiting)
            .collect();
        let Some((row, slowest)) = running.iter().max_by_key(|(_, state)| state.since) else {
            return;
        };
        let (done, all) = self.progress.steps();
        let more = match running.len() - 1 {
            0 => String::new(),
            more => format!("; {more} more"),
        };
        let text = format!(
            "{done} of {}; {}: {} ({}){more}",
            count(all, "step"),
            row.title(),
            slowest.sentence(),
            short(slowest.since.unwrap_or_default())
        );
        self.write(now, "still", &text);
    }

    fn write(&mut self, at: Duration, verb: &str, text: &str) {
        self.last_written = at;
        (self.write)(&format!("{:>5} {verb:<6} {text}", clock(at)));
    }
}

impl EventReader for PlainView {
    fn line(&mut self, line: &EventLine) {
        let at = line.time();
        // The summary follows the approval, so that the page with the question comes first.
        if !matches!(line.event, WireEvent::Approval { .. } | WireEvent::Answer { approved: false }) {
            self.write_plan(at);
        }
        let changed = self.progress.line(line);
        match &line.event {
            WireEvent::Look { round } if *round > 1 && self.output.verbose => self.write(at, "look", &format!("round {round}")),
            WireEvent::Plan(plan) => (self.plan, self.plan_is_new) = (Some(plan.clone()), true),
            WireEvent::Answer { approved: false } => self.plan_is_new = false,
            WireEvent::Step(step) if self.output.verbose => self.trace(at, step),
            WireEvent::Step(_) => {
                if let Some(index) = changed {
                    self.tell(index, at);
                }
            }
            WireEvent::Note { text } => self.write(at, "note", text),
            WireEvent::Stopping { running } => self.stopping(at, running),
            WireEvent::Error(error) => (self.write)(&error::text(error, self.output.color_err)),
            WireEvent::Report(report) => report.summary.iter().for_each(|line| (self.write)(line)),
            WireEvent::Run(_)
            | WireEvent::Look { .. }
            | WireEvent::Approval { .. }
            | WireEvent::Answer { .. }
            | WireEvent::Warning(_) => {}
        }
    }

    fn tick(&mut self, now: Duration) {
        if !self.output.verbose {
            (0..self.progress.rows().len()).for_each(|index| self.tell(index, now));
        }
        if now.saturating_sub(self.last_written) >= SILENCE {
            self.sign_of_life(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::super::script;
    use super::*;
    use crate::wire::StepState;

    fn output() -> Output {
        Output {
            json: false,
            live: false,
            color_err: false,
            unicode: true,
            verbose: false,
        }
    }

    /// Everything that is written about these events, with a tick in each second.
    fn written(lines: &[EventLine], seconds: u64) -> Vec<(u64, String)> {
        let written = Rc::new(RefCell::new(Vec::new()));
        let (second, into) = (Rc::new(RefCell::new(0)), written.clone());
        let now = second.clone();
        let mut view = PlainView::writing(
            output(),
            Box::new(move |line| into.borrow_mut().push((*now.borrow(), line.to_owned()))),
        );
        for at in 0..seconds {
            *second.borrow_mut() = at;
            let due = lines.iter().filter(|line| line.time().as_secs() == at);
            due.for_each(|line| view.line(line));
            view.tick(Duration::from_secs(at));
        }
        written.take()
    }

    /// A machine whose wait has another reason every second, and that fails and is tried again.
    fn restless(machine: &str) -> Vec<EventLine> {
        let plan = || script::plan(&[(machine, "worker", &["machine.claim", "machine.fill", "node.await"])]);
        let mut lines = vec![script::at(0, plan())];
        let mut tell = |at: u64, id, state| lines.push(script::step(at, id, machine, state));
        for id in [1, 2] {
            tell(1, id, StepState::Begin);
            tell(1, id, StepState::Done { took: 0.1 });
        }
        tell(2, 3, StepState::Begin);
        for at in 3..200 {
            tell(at, 3, script::wait(&format!("reason {at}")));
        }
        tell(200, 3, script::failed("it did not become ready"));
        lines.push(script::at(202, plan()));
        for at in (203..260).step_by(3) {
            lines.push(script::step(at, 1, machine, StepState::Begin));
            lines.push(script::step(at + 1, 1, machine, script::failed(&format!("reason {at}"))));
        }
        lines
    }

    #[test]
    fn a_machine_gets_at_most_three_lines_in_any_minute_and_none_twice_in_a_row() {
        let lines = written(&restless("w-1"), 400);
        let of_it: Vec<&(u64, String)> = lines
            .iter()
            .filter(|(_, line)| line.contains("w-1") && !line.contains(" still "))
            .collect();
        assert!(of_it.len() > 8, "{of_it:?}");
        for (at, _) in &of_it {
            let minute = of_it.iter().filter(|(other, _)| (*at..at + 60).contains(other)).count();
            assert!(minute <= PER_MINUTE, "{minute} lines from {at} on: {of_it:#?}");
        }
        for pair in of_it.windows(2) {
            assert_ne!(pair[0].1[6..], pair[1].1[6..]);
        }
        assert!(
            of_it
                .iter()
                .any(|(_, line)| line.contains("failed w-1: node: it did not become ready")),
            "{of_it:#?}"
        );
    }

    #[test]
    fn a_wait_without_news_is_one_line_a_minute_for_the_whole_run() {
        let mut lines = vec![script::at(
            0,
            script::plan(&[("w-1", "worker", &["node.await"]), ("w-2", "worker", &["node.await"])]),
        )];
        for (id, machine) in [(1, "w-1"), (2, "w-2")] {
            lines.push(script::step(1, id, machine, StepState::Begin));
            lines.push(script::step(2, id, machine, script::wait("its network plugin is not up yet")));
        }
        let lines = written(&lines, 300);
        let text: Vec<&str> = lines.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(
            text,
            [
                " 0:01 plan   2 steps",
                " 0:01 begin  w-1: node: waiting for the node",
                " 0:01 begin  w-2: node: waiting for the node",
                " 0:31 wait   w-1: node: its network plugin is not up yet",
                " 0:31 wait   w-2: node: its network plugin is not up yet",
                " 1:31 still  0 of 2 steps; w-2: node: its network plugin is not up yet (1m 30s); 1 more",
                " 2:31 still  0 of 2 steps; w-2: node: its network plugin is not up yet (2m 30s); 1 more",
                " 3:31 still  0 of 2 steps; w-2: node: its network plugin is not up yet (3m 30s); 1 more",
                " 4:31 still  0 of 2 steps; w-2: node: its network plugin is not up yet (4m 30s); 1 more",
            ]
        );
    }
}
