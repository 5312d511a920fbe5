//! What a run does at the moment, by subject. The live view and the plain lines show this model; the event stream alone feeds it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::stage::Stage;
use crate::wire::{
    EventLine, HeldEntry, PlanEvent, PlanStep, PlanSubject, StepState, StepUpdate, SubjectKind, TransferState, WireEvent,
    duration,
};

/// An estimate by finished machines needs so many of them: a few say nothing about the rest.
const MANY_MACHINES: usize = 20;

/// The state of a run. It lives over all rounds, so that what was done or failed in an earlier round stays visible.
#[derive(Default)]
pub struct Progress {
    plan: Option<PlanEvent>,
    /// By step id, which counts from 1.
    phases: Vec<StepPhase>,
    rows: Vec<Row>,
    by_subject: BTreeMap<PlanSubject, usize>,
    /// When the first step began: a plan may wait for its approval as long as a person likes.
    began: Option<Duration>,
    earlier: Earlier,
}

/// What the rounds before this one did.
#[derive(Default)]
struct Earlier {
    steps: usize,
    work: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum StepPhase {
    Waiting,
    Running { since: Duration, percent: Option<f64> },
    Done,
    Failed,
}

/// One image, machine, volume or node.
pub struct Row {
    pub subject: PlanSubject,
    stages: BTreeMap<Stage, StageSteps>,
    running: BTreeMap<u32, RunningStep>,
    failure: Option<StepFailure>,
    left: usize,
    begun: Option<Duration>,
    ended: Option<Duration>,
}

#[derive(Default, Clone)]
struct StageSteps {
    done: usize,
    open: Vec<u32>,
}

struct RunningStep {
    since: Duration,
    stage: Stage,
    text: String,
    transfer: Option<TransferState>,
}

struct StepFailure {
    action: String,
    stage: Stage,
    text: String,
}

/// What a row says.
pub struct RowState {
    pub phase: RowPhase,
    pub stage: Option<Stage>,
    pub text: String,
    pub since: Option<Duration>,
    pub transfer: Option<TransferState>,
}

/// In the order in which rows matter when there is no room for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowPhase {
    Failed,
    Running,
    Waiting,
    Done,
}

/// One cell of a machine's bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageCell {
    Done,
    Current,
    Open,
    Failed,
}

impl Progress {
    /// The index of the row that the line changed.
    pub fn line(&mut self, line: &EventLine) -> Option<usize> {
        match &line.event {
            WireEvent::Plan(plan) => {
                self.begin_round(plan.clone());
                None
            }
            WireEvent::Step(step) => self.step(line.time(), step),
            _ => None,
        }
    }

    fn begin_round(&mut self, plan: PlanEvent) {
        if let Some(before) = &self.plan {
            let done = before
                .list
                .iter()
                .zip(&self.phases)
                .filter(|(_, phase)| **phase == StepPhase::Done);
            let (steps, work) = done.fold((0, 0.0), |(steps, work), (step, _)| (steps + 1, work + step.expected));
            self.earlier.steps += steps;
            self.earlier.work += work;
        }
        for row in &mut self.rows {
            row.forget_open_steps();
        }
        self.phases = vec![StepPhase::Waiting; plan.list.len()];
        for step in &plan.list {
            let index = *self.by_subject.entry(step.subject.clone()).or_insert_with(|| {
                self.rows.push(Row::new(step.subject.clone()));
                self.rows.len() - 1
            });
            let row = &mut self.rows[index];
            row.left += 1;
            row.ended = None;
            row.stages.entry(Stage::of(step)).or_default().open.push(step.id);
            // A machine has no step for its image: the step belongs to the storage, and many machines wait for it.
            let images = step.needs.iter().filter(|need| {
                let needed = plan.step(**need);
                step.subject.kind == SubjectKind::Machine && needed.is_some_and(|step| step.subject.kind == SubjectKind::Image)
            });
            for image in images {
                row.stages.entry(Stage::Image).or_default().open.push(*image);
            }
        }
        self.plan = Some(plan);
    }

    fn step(&mut self, at: Duration, update: &StepUpdate) -> Option<usize> {
        let step = self.plan.as_ref()?.step(update.id)?.clone();
        let index = *self.by_subject.get(&step.subject)?;
        let phase = self.phases.get_mut(usize::try_from(update.id).ok()?.checked_sub(1)?)?;
        let row = &mut self.rows[index];
        match &update.state {
            StepState::Begin => {
                self.began.get_or_insert(at);
                *phase = StepPhase::Running {
                    since: at,
                    percent: None,
                };
                row.begin(&step, at);
            }
            StepState::Wait { reason, transfer, .. } => {
                if let StepPhase::Running { percent, .. } = phase {
                    *percent = transfer.map(|transfer| transfer.percent).or(*percent);
                }
                row.wait(&step, reason, *transfer);
            }
            StepState::Retry { why } => {
                if let Some(running) = row.running.get_mut(&step.id) {
                    running.text = format!("{}, retrying: {why}", step.doing);
                }
            }
            StepState::Done { .. } => {
                *phase = StepPhase::Done;
                row.done(&step, at);
                if step.subject.kind == SubjectKind::Image {
                    self.rows.iter_mut().for_each(|row| row.image_done(step.id));
                }
            }
            StepState::Failed { summary, .. } => {
                *phase = StepPhase::Failed;
                row.running.remove(&step.id);
                row.failure = Some(StepFailure {
                    action: step.action.clone(),
                    stage: Stage::of(&step),
                    text: summary.clone(),
                });
            }
        }
        Some(index)
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn held(&self) -> &[HeldEntry] {
        self.plan.as_ref().map_or(&[], |plan| &plan.held_list)
    }

    pub fn plan(&self) -> Option<&PlanEvent> {
        self.plan.as_ref()
    }

    /// Steps done, and steps in all, over all rounds.
    pub fn steps(&self) -> (usize, usize) {
        let done = self.phases.iter().filter(|phase| **phase == StepPhase::Done).count();
        (self.earlier.steps + done, self.earlier.steps + self.phases.len())
    }

    /// How long the steps have been running.
    pub fn elapsed(&self, now: Duration) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now.saturating_sub(began))
    }

    /// How much of the expected work is done, 0 to 1.
    pub fn fraction(&self, now: Duration) -> f64 {
        let Some(plan) = &self.plan else { return 0.0 };
        let (mut done, mut all) = (self.earlier.work, self.earlier.work);
        for (step, phase) in plan.list.iter().zip(&self.phases) {
            all += step.expected;
            done += step.expected - remaining(step, *phase, now).min(step.expected);
        }
        if all > 0.0 { (done / all).clamp(0.0, 1.0) } else { 1.0 }
    }

    /// How long the rest takes: the longest path through the steps that are left. Where machines queue for few slots, the pace of the machines
    /// that are finished says more.
    pub fn rest(&self, now: Duration) -> Duration {
        let Some(plan) = &self.plan else { return Duration::ZERO };
        let mut ends: Vec<f64> = Vec::with_capacity(plan.list.len());
        for (step, phase) in plan.list.iter().zip(&self.phases) {
            let before = step
                .needs
                .iter()
                .filter_map(|need| ends.get(*need as usize - 1))
                .copied()
                .fold(0.0, f64::max);
            ends.push(match phase {
                StepPhase::Done | StepPhase::Failed => 0.0,
                StepPhase::Running { .. } => remaining(step, *phase, now),
                StepPhase::Waiting => before + step.expected,
            });
        }
        let path = duration(ends.into_iter().fold(0.0, f64::max));
        let machines = self.rows.iter().filter(|row| row.subject.kind == SubjectKind::Machine);
        let (all, ready) = machines.fold((0, 0), |(all, ready), row| {
            (all + 1, ready + usize::from(row.ended.is_some()))
        });
        if all < MANY_MACHINES || ready * 10 < all {
            return path;
        }
        let by_pace = self.elapsed(now).mul_f64((all - ready) as f64 / ready as f64);
        path.max(by_pace)
    }

    /// What this row says now.
    pub fn state(&self, row: &Row, now: Duration) -> RowState {
        let name = row.subject.name.as_deref().unwrap_or_default();
        let failed = |text: &str| format!("failed: {text}");
        let running = row.running.values().min_by_key(|running| running.since);
        match (running, &row.failure) {
            (Some(running), failure) => {
                let text = match running.transfer {
                    Some(transfer) if !running.text.contains('%') => format!("{:.0}%, {}", transfer.percent, running.text),
                    _ => without_name(&running.text, name),
                };
                let text = match failure {
                    Some(failure) => format!("{text} ({} before)", failed(&failure.text)),
                    None => text,
                };
                RowState {
                    phase: if failure.is_some() {
                        RowPhase::Failed
                    } else {
                        RowPhase::Running
                    },
                    stage: Some(running.shown_stage()),
                    text,
                    since: Some(now.saturating_sub(running.since)),
                    transfer: running.transfer,
                }
            }
            (None, Some(failure)) => RowState::of(RowPhase::Failed, Some(failure.stage), failed(&failure.text)),
            (None, None) if row.left == 0 => RowState {
                since: row.ended.map(|ended| ended.saturating_sub(row.begun.unwrap_or(ended))),
                ..RowState::of(RowPhase::Done, None, "done".to_owned())
            },
            // The reason takes a search through the plan: see `obstacle`.
            (None, None) => RowState::of(RowPhase::Waiting, row.current_stage(), "waiting".to_owned()),
        }
    }

    /// What a row waits for that has no step running: a step of another subject, or a free slot.
    pub fn obstacle(&self, row: &Row) -> String {
        let waiting = |id: u32| {
            self.phases
                .get(id as usize - 1)
                .is_some_and(|phase| *phase != StepPhase::Done)
        };
        let plan = self.plan.as_ref();
        let next = plan.and_then(|plan| plan.list.iter().find(|step| step.subject == row.subject && waiting(step.id)));
        let Some((plan, next)) = plan.zip(next) else {
            return "waiting".to_owned();
        };
        let needed = next
            .needs
            .iter()
            .filter(|need| waiting(**need))
            .find_map(|need| plan.step(*need));
        match needed {
            None => "waiting for a free slot".to_owned(),
            Some(step) if step.subject.kind == SubjectKind::Image => format!("waiting for the image on {}", step.on),
            Some(step) => format!("waiting for {}: {}", step.on, step.doing),
        }
    }
}

/// Seconds that are left of a step. A step that takes longer than expected is expected to take a quarter longer still.
fn remaining(step: &PlanStep, phase: StepPhase, now: Duration) -> f64 {
    match phase {
        StepPhase::Done | StepPhase::Failed => 0.0,
        StepPhase::Waiting => step.expected,
        StepPhase::Running { since, percent } => {
            let elapsed = now.saturating_sub(since).as_secs_f64();
            match percent {
                Some(percent) if percent >= 1.0 => elapsed * (100.0 - percent) / percent,
                _ if elapsed < step.expected => step.expected - elapsed,
                _ => elapsed / 4.0,
            }
        }
    }
}

impl RowState {
    fn of(phase: RowPhase, stage: Option<Stage>, text: String) -> Self {
        Self {
            phase,
            stage,
            text,
            since: None,
            transfer: None,
        }
    }

    /// The stage in front of the text, unless the text begins with it: `etcd: it starts`.
    pub fn sentence(&self) -> String {
        match self.stage {
            Some(stage) if self.phase != RowPhase::Waiting && stage.is_of_machine() && !self.text.starts_with(stage.verb()) => {
                format!("{}: {}", stage.word(), self.text)
            }
            _ => self.text.clone(),
        }
    }
}

impl Row {
    fn new(subject: PlanSubject) -> Self {
        Self {
            subject,
            stages: BTreeMap::new(),
            running: BTreeMap::new(),
            failure: None,
            left: 0,
            begun: None,
            ended: None,
        }
    }

    /// As it is called in a list of all subjects: `image pve1:local`, and machines by their name alone.
    pub fn title(&self) -> String {
        let kind = self.subject.kind.as_str();
        match &self.subject.name {
            Some(name) if self.subject.kind == SubjectKind::Machine => name.clone(),
            Some(name) => format!("{kind} {name}"),
            None => kind.to_owned(),
        }
    }

    /// The bar: one cell for each stage of this machine.
    pub fn cells(&self) -> Vec<StageCell> {
        let running = self.running.values().map(RunningStep::shown_stage).min();
        let cell = |(stage, steps): (&Stage, &StageSteps)| match () {
            // A guest that boots has its step in a later stage: until it answers, the boot goes on.
            () if running == Some(*stage) => StageCell::Current,
            () if steps.open.is_empty() && running.is_none_or(|running| *stage < running || steps.done > 0) => StageCell::Done,
            () if running.is_none() && self.failure.as_ref().is_some_and(|failure| failure.stage == *stage) => StageCell::Failed,
            () => StageCell::Open,
        };
        self.stages.iter().map(cell).collect()
    }

    /// The first stage that is not done.
    fn current_stage(&self) -> Option<Stage> {
        let mut open = self.stages.iter().filter(|(_, steps)| !steps.open.is_empty());
        open.next().map(|(stage, _)| *stage)
    }

    fn forget_open_steps(&mut self) {
        self.left = 0;
        self.running.clear();
        self.stages.values_mut().for_each(|steps| steps.open.clear());
        self.stages.retain(|_, steps| steps.done > 0);
    }

    fn begin(&mut self, step: &PlanStep, at: Duration) {
        self.begun.get_or_insert(at);
        let running = RunningStep {
            since: at,
            stage: Stage::of(step),
            text: step.doing.clone(),
            transfer: None,
        };
        self.running.insert(step.id, running);
    }

    fn wait(&mut self, step: &PlanStep, reason: &str, transfer: Option<TransferState>) {
        if let Some(running) = self.running.get_mut(&step.id) {
            // What a step waits for says more than what it does, and a line is short.
            reason.clone_into(&mut running.text);
            running.transfer = transfer;
        }
    }

    fn done(&mut self, step: &PlanStep, at: Duration) {
        self.running.remove(&step.id);
        self.left = self.left.saturating_sub(1);
        if let Some(steps) = self.stages.get_mut(&Stage::of(step)) {
            steps.open.retain(|id| *id != step.id);
            steps.done += 1;
        }
        if self.failure.as_ref().is_some_and(|failure| failure.action == step.action) {
            self.failure = None;
        }
        self.ended = (self.left == 0).then_some(at);
        if self.left == 0 {
            self.failure = None;
        }
    }

    fn image_done(&mut self, id: u32) {
        if let Some(steps) = self.stages.get_mut(&Stage::Image).filter(|steps| steps.open.contains(&id)) {
            steps.open.retain(|open| *open != id);
            steps.done += 1;
        }
    }
}

impl RunningStep {
    /// A guest that boots is in the stage of its boot, whichever step waits for it.
    fn shown_stage(&self) -> Stage {
        if self.text.starts_with(Stage::Boot.verb()) {
            Stage::Boot
        } else {
            self.stage
        }
    }
}

/// Drops the machine's name from a text: the row begins with it.
fn without_name(text: &str, name: &str) -> String {
    if name.is_empty() {
        return text.to_owned();
    }
    text.replace(&format!("Kubernetes node {name} "), "the node ")
        .replace(&format!("node {name} "), "the node ")
        .replace(&format!(" {name}"), "")
}
