//! The layout of the live view: pure text of a given size, so that tests read it and every terminal can show it.
//!
//! No terminal library is used. indicatif takes elapsed times and rates from its own clock, but a replayed run and a demo have the clock of
//! their events, and it hides its bars where stderr is no terminal, so that tests would need its terminal emulator. ratatui draws inline into
//! an area whose height is fixed when it begins, while this view grows with the plan and gives way to lines above it; it would add about
//! thirty crates to a binary that moves the cursor up and erases below, which is one line of code.

use std::collections::BTreeMap;
use std::time::Duration;

use super::progress::{Progress, Row, RowPhase, RowState, StageCell};
use super::{about, clock, count, short};
use crate::wire::SubjectKind;

/// Below this width there is no room for a bar beside name and text.
const NARROW: usize = 56;
/// From this width on a cell of a bar has two columns.
const WIDE: usize = 100;
/// Cells of a bar: as many as the stages of a new control plane.
const CELLS: usize = 7;
/// The longest word of a stage.
const STAGE_WIDTH: usize = 7;

/// What the view may use.
#[derive(Debug, Clone, Copy)]
pub struct Canvas {
    pub width: usize,
    pub height: usize,
    /// Block characters can be shown.
    pub unicode: bool,
}

/// A line of differently styled parts. No information is in the style alone.
#[derive(Default)]
pub struct BoardLine(pub Vec<(LineStyle, String)>);

/// Styles that are readable on light and on dark backgrounds: no colour is set as a background, and none is yellow or white.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineStyle {
    Normal,
    Strong,
    Faint,
    Good,
    Bad,
}

impl BoardLine {
    fn of(style: LineStyle, text: impl Into<String>) -> Self {
        Self(vec![(style, text.into())])
    }

    /// How many columns it takes.
    pub fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| text.chars().count()).sum()
    }
}

/// At most `height` lines of at most `width` columns. The last line is the bar of the whole run. Where there is no room for every row, failed
/// ones come first, then running ones; each pool's heading counts all of its machines.
pub fn lines(progress: &Progress, now: Duration, canvas: Canvas) -> Vec<BoardLine> {
    if progress.plan().is_none() {
        return Vec::new();
    }
    let groups = groups(progress, now);
    let held = held(progress, canvas);
    let headings = groups.iter().filter(|group| group.pool.is_some()).count();
    let room = canvas.height.saturating_sub(1 + headings + held.len());
    let shown = chosen(&groups, room);
    let names = names_width(&groups, &shown, canvas);
    let mut lines = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        let rows: Vec<&Entry> = group
            .rows
            .iter()
            .enumerate()
            .filter(|(row, _)| shown[number][*row])
            .map(|(_, row)| row)
            .collect();
        if group.pool.is_some() {
            lines.push(heading(group, rows.len(), canvas));
        }
        lines.extend(rows.iter().map(|row| row.line(progress, names, canvas)));
    }
    lines.extend(held);
    let most = canvas.height.saturating_sub(1);
    if lines.len() > most {
        let hidden = lines.len() - most.saturating_sub(1);
        lines.truncate(most.saturating_sub(1));
        let more = format!("  ... {} more", count(hidden, "line"));
        lines.push(BoardLine::of(LineStyle::Faint, shortened(&more, canvas.width)));
        lines.truncate(most);
    }
    lines.push(whole_run(progress, now, canvas));
    lines.iter_mut().for_each(|line| line.cut(canvas.width));
    lines
}

/// A row with what it says now.
struct Entry<'p> {
    row: &'p Row,
    state: RowState,
}

/// The machines of a pool, or everything that belongs to no pool.
struct PoolGroup<'p> {
    pool: Option<&'p str>,
    rows: Vec<Entry<'p>>,
}

/// In the order of the plan: what belongs to no machine comes first, because machines wait for it.
fn groups(progress: &Progress, now: Duration) -> Vec<PoolGroup<'_>> {
    let mut groups: Vec<PoolGroup<'_>> = vec![PoolGroup {
        pool: None,
        rows: Vec::new(),
    }];
    for row in progress.rows() {
        let machine = row.subject.kind == SubjectKind::Machine;
        // A machine that left the file has no pool any more.
        let pool = machine.then(|| row.subject.pool.as_deref().unwrap_or("not in the file"));
        let at = groups.iter().position(|group| group.pool == pool).unwrap_or_else(|| {
            groups.push(PoolGroup { pool, rows: Vec::new() });
            groups.len() - 1
        });
        let state = progress.state(row, now);
        groups[at].rows.push(Entry { row, state });
    }
    groups.retain(|group| !group.rows.is_empty());
    groups
}

/// Which rows have room: failed ones, then running ones, then those that wait, each in the order of the plan.
fn chosen(groups: &[PoolGroup<'_>], room: usize) -> Vec<Vec<bool>> {
    let rows = groups.iter().enumerate().flat_map(|(number, group)| {
        group.rows.iter().enumerate().map(move |(row, entry)| {
            // The longest wait says most about where the run is slow.
            let longest = std::cmp::Reverse(entry.state.since.filter(|_| entry.state.phase == RowPhase::Running));
            ((entry.state.phase, longest), number, row)
        })
    });
    let mut ranked: Vec<_> = rows.collect();
    ranked.sort();
    let mut shown: Vec<Vec<bool>> = groups.iter().map(|group| vec![false; group.rows.len()]).collect();
    for (_, group, row) in ranked.into_iter().take(room) {
        shown[group][row] = true;
    }
    shown
}

fn names_width(groups: &[PoolGroup<'_>], shown: &[Vec<bool>], canvas: Canvas) -> usize {
    let rows = groups
        .iter()
        .zip(shown)
        .flat_map(|(group, shown)| group.rows.iter().zip(shown));
    let names = rows
        .filter(|(_, shown)| **shown)
        .map(|(entry, _)| entry.row.title().chars().count());
    names.max().unwrap_or(0).min(canvas.width / 3)
}

/// `worker  500 machines: 1 failed, 31 booting, 456 waiting, 12 done  (18 shown)`.
fn heading(group: &PoolGroup<'_>, shown: usize, canvas: Canvas) -> BoardLine {
    let mut counts: BTreeMap<(RowPhase, &str), usize> = BTreeMap::new();
    for entry in &group.rows {
        let word = match (entry.state.phase, entry.state.stage) {
            (RowPhase::Failed, _) => "failed",
            (RowPhase::Done, _) => "done",
            (RowPhase::Waiting, _) | (_, None) => "waiting",
            (RowPhase::Running, Some(stage)) => stage.doing(),
        };
        *counts.entry((entry.state.phase, word)).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|((_, word), number)| format!("{number} {word}")).collect();
    let mut text = format!("  {}: {}", count(group.rows.len(), "machine"), counts.join(", "));
    if shown < group.rows.len() {
        text.push_str(&format!("  ({shown} shown)"));
    }
    let pool = shortened(group.pool.unwrap_or_default(), canvas.width / 2);
    let text = shortened(&text, canvas.width.saturating_sub(pool.chars().count()));
    BoardLine(vec![(LineStyle::Strong, pool), (LineStyle::Faint, text)])
}

impl Entry<'_> {
    fn line(&self, progress: &Progress, names: usize, canvas: Canvas) -> BoardLine {
        let style = match self.state.phase {
            RowPhase::Failed => LineStyle::Bad,
            RowPhase::Running => LineStyle::Normal,
            RowPhase::Waiting => LineStyle::Faint,
            RowPhase::Done => LineStyle::Good,
        };
        let mut parts = vec![(style, format!("  {:<names$}  ", shortened(&self.row.title(), names)))];
        if canvas.width >= NARROW {
            let cell = if canvas.width >= WIDE { 2 } else { 1 };
            parts.push((
                style,
                format!("{:<width$}  ", self.bar(cell, canvas.unicode), width = CELLS * cell),
            ));
        }
        let stage = self.state.stage.filter(|_| self.state.phase != RowPhase::Done);
        let stage = stage.map_or("", super::stage::Stage::word);
        parts.push((style, format!("{stage:<STAGE_WIDTH$}  ")));
        let time = self
            .state
            .since
            .filter(|time| time.as_secs() > 0)
            .map(short)
            .unwrap_or_default();
        let used: usize = parts.iter().map(|(_, text)| text.chars().count()).sum();
        let room = canvas.width.saturating_sub(used + time.chars().count() + 2);
        let text = match self.state.phase {
            RowPhase::Waiting => shortened(&progress.obstacle(self.row), room),
            _ => shortened(&self.state.text, room),
        };
        // The time stands at the end of the line, where times of all rows can be compared.
        parts.push((style, format!("{text:<room$}  {time}")));
        let mut line = BoardLine(parts);
        line.trim();
        line
    }

    /// Stages of a machine; of a download or a copy, how far it is.
    fn bar(&self, cell: usize, unicode: bool) -> String {
        if self.row.subject.kind == SubjectKind::Machine {
            let cells = self.row.cells();
            return cells
                .iter()
                .map(|cell_state| glyph(*cell_state, unicode).repeat(cell))
                .collect();
        }
        let percent = match (self.state.phase, self.state.transfer) {
            (RowPhase::Done, _) => 100.0,
            (_, Some(transfer)) => transfer.percent,
            _ => 0.0,
        };
        let width = CELLS * cell;
        filled(percent / 100.0, width, unicode)
    }
}

impl BoardLine {
    /// Drops what is beyond this width: a terminal of ten columns shows what it can.
    fn cut(&mut self, width: usize) {
        let mut room = width;
        for (_, text) in &mut self.0 {
            if let Some((end, _)) = text.char_indices().nth(room) {
                text.truncate(end);
            }
            room -= text.chars().count();
        }
    }

    fn trim(&mut self) {
        if let Some((_, text)) = self.0.last_mut() {
            text.truncate(text.trim_end().len());
        }
    }
}

fn glyph(cell: StageCell, unicode: bool) -> &'static str {
    match (cell, unicode) {
        (StageCell::Done, true) => "█",
        (StageCell::Current, true) => "▒",
        (StageCell::Open, true) => "░",
        (StageCell::Done, false) => "#",
        (StageCell::Current, false) => "=",
        (StageCell::Open, false) => ".",
        (StageCell::Failed, _) => "!",
    }
}

fn filled(fraction: f64, width: usize, unicode: bool) -> String {
    let done = ((fraction.clamp(0.0, 1.0) * width as f64) as usize).min(width);
    glyph(StageCell::Done, unicode).repeat(done) + &glyph(StageCell::Open, unicode).repeat(width - done)
}

/// What the plan holds back, with its reason.
fn held(progress: &Progress, canvas: Canvas) -> Vec<BoardLine> {
    let held = progress.held();
    let most = (canvas.height / 4).max(1);
    let mut lines: Vec<BoardLine> = held
        .iter()
        .take(most)
        .map(|held| shortened(&format!("held  {} of {}: {}", held.what, held.on, held.reason), canvas.width))
        .map(|text| BoardLine::of(LineStyle::Strong, text))
        .collect();
    if held.len() > most {
        lines.push(BoardLine::of(LineStyle::Strong, format!("held  {} more", held.len() - most)));
    }
    lines
}

/// `██████░░░░  27 of 39 steps  1:32, about 2 min left`.
fn whole_run(progress: &Progress, now: Duration, canvas: Canvas) -> BoardLine {
    let (done, all) = progress.steps();
    let elapsed = clock(progress.elapsed(now));
    let rest = progress.rest(now);
    let rest = if done == all || rest.is_zero() {
        String::new()
    } else {
        format!(", {} left", about(rest))
    };
    let text = format!("  {done} of {}  {elapsed}{rest}", count(all, "step"));
    let bar = canvas.width.saturating_sub(text.chars().count()).min(40);
    if bar < 5 {
        return BoardLine::of(LineStyle::Normal, shortened(text.trim_start(), canvas.width));
    }
    // A run that has failed steps does not look finished.
    let fraction = if done == all { 1.0 } else { progress.fraction(now).min(0.99) };
    BoardLine(vec![
        (LineStyle::Good, filled(fraction, bar, canvas.unicode)),
        (LineStyle::Normal, text),
    ])
}

fn shortened(text: &str, width: usize) -> String {
    let text = text.replace('\n', " ");
    if text.chars().count() <= width {
        return text;
    }
    let kept: String = text.chars().take(width.saturating_sub(3)).collect();
    format!("{}...", kept.trim_end()).chars().take(width).collect()
}

#[cfg(test)]
mod tests {
    use super::super::script;
    use super::*;
    use crate::wire::{EventLine, StepState};

    const NEW: &[&str] = &[
        "machine.claim",
        "machine.fill",
        "machine.start",
        "guest.configure",
        "etcd.join",
        "node.await",
    ];

    fn progress(lines: &[EventLine]) -> Progress {
        let mut progress = Progress::default();
        for line in lines {
            progress.line(line);
        }
        progress
    }

    fn texts(progress: &Progress, at: u64, width: usize, height: usize) -> Vec<String> {
        let canvas = Canvas {
            width,
            height,
            unicode: true,
        };
        let lines = lines(progress, Duration::from_secs(at), canvas);
        let text = |line: &BoardLine| line.0.iter().map(|(_, text)| text.as_str()).collect();
        lines.iter().map(text).collect()
    }

    /// One image, one control plane and a worker, 41 seconds after the control plane was started.
    fn cluster() -> Vec<EventLine> {
        let mut lines = vec![script::at(
            0,
            script::plan(&[
                ("pve1:local", "", &["image.fetch"]),
                ("cp-1", "control-plane", NEW),
                ("w-1", "worker", &["machine.claim", "machine.fill", "node.await"]),
            ]),
        )];
        let mut tell = |at, id, on, state| lines.push(script::step(at, id, on, state));
        tell(0, 1, "pve1:local", StepState::Begin);
        tell(9, 1, "pve1:local", StepState::Done { took: 9.0 });
        for id in [2, 3, 4] {
            tell(9, id, "cp-1", StepState::Begin);
            tell(10, id, "cp-1", StepState::Done { took: 1.0 });
        }
        tell(10, 5, "cp-1", StepState::Begin);
        tell(11, 5, "cp-1", script::wait("booting: the Talos API is not up yet"));
        tell(10, 8, "w-1", StepState::Begin);
        lines
    }

    #[test]
    fn machines_stand_below_their_pool_with_stage_bar_reason_and_time() {
        let mut lines = cluster();
        lines.push(script::step(12, 8, "w-1", StepState::Done { took: 2.0 }));
        lines.push(script::step(12, 9, "w-1", StepState::Begin));
        lines.push(script::step(20, 9, "w-1", script::transfer(38.7)));
        assert_eq!(
            texts(&progress(&lines), 51, 80, 24),
            [
                "  image pve1:local  ███████           done                                    9s",
                "control-plane  1 machine: 1 booting",
                "  cp-1              ███▒░░░  boot     booting: the Talos API is not up yet   41s",
                "worker  1 machine: 1 importing",
                "  w-1               ██▒░     disk     39%, downloaded 120 of 310 MB, 25...   39s",
                "██████████████████████░░░░░░░░░░░░░░░░░░  5 of 10 steps  0:51, about 2 min left",
            ]
        );
    }

    #[test]
    fn a_download_has_a_bar_of_its_own_and_a_machine_says_that_it_waits_for_it() {
        let mut lines = vec![script::at(
            0,
            script::plan(&[("pve1:local", "", &["image.fetch"]), ("w-1", "worker", NEW)]),
        )];
        lines.push(script::step(0, 1, "pve1:local", StepState::Begin));
        lines.push(script::step(5, 1, "pve1:local", script::transfer(50.0)));
        lines.push(script::step(0, 2, "w-1", StepState::Begin));
        lines.push(script::step(1, 2, "w-1", StepState::Done { took: 1.0 }));
        let texts = texts(&progress(&lines), 10, 100, 24);
        assert!(
            texts[0].contains("███████░░░░░░░") && texts[0].contains("50%, downloaded"),
            "{texts:#?}"
        );
        assert!(
            texts[2].contains("██░░░░░░░░░░░░") && texts[2].contains("waiting for the image on pve1:local"),
            "{texts:#?}"
        );
    }

    #[test]
    fn a_failure_stays_visible_in_the_next_round_until_its_step_is_done() {
        let plan = || script::plan(&[("w-1", "worker", &["machine.start", "node.await"])]);
        let mut lines = vec![
            script::at(0, plan()),
            script::step(1, 1, "w-1", StepState::Begin),
            script::step(2, 1, "w-1", script::failed("VM 3001 does not start")),
        ];
        let shown = |lines: &[EventLine]| texts(&progress(lines), 9, 110, 24).join("\n");
        assert!(shown(&lines).contains("failed: VM 3001 does not start"), "{}", shown(&lines));
        assert!(shown(&lines).contains("!"), "{}", shown(&lines));
        lines.push(script::at(5, plan()));
        assert!(shown(&lines).contains("failed: VM 3001 does not start"), "{}", shown(&lines));
        lines.push(script::step(6, 1, "w-1", StepState::Begin));
        assert!(
            shown(&lines).contains("working (failed: VM 3001 does not start before)"),
            "{}",
            shown(&lines)
        );
        lines.push(script::step(7, 1, "w-1", StepState::Done { took: 1.0 }));
        assert!(!shown(&lines).contains("failed"), "{}", shown(&lines));
    }

    #[test]
    fn five_hundred_machines_are_counted_and_the_failed_and_the_slowest_are_shown() {
        let names: Vec<String> = (1..=500).map(|number| format!("w-{number}")).collect();
        let subjects: Vec<(&str, &str, &[&str])> = names.iter().map(|name| (name.as_str(), "worker", NEW)).collect();
        let mut lines = vec![script::at(0, script::plan(&subjects))];
        let id = |machine: u32, step: u32| (machine - 1) * 6 + step;
        for machine in 1..=100 {
            lines.push(script::step(1, id(machine, 1), "", StepState::Begin));
        }
        for machine in 1..=40 {
            for step in 1..=6 {
                lines.push(script::step(2, id(machine, step), "", StepState::Begin));
                lines.push(script::step(3, id(machine, step), "", StepState::Done { took: 1.0 }));
            }
        }
        lines.push(script::step(4, id(321, 1), "", StepState::Begin));
        lines.push(script::step(5, id(321, 1), "", script::failed("no room")));
        let texts = texts(&progress(&lines), 60, 80, 22);
        assert_eq!(texts.len(), 22);
        assert_eq!(
            texts[0],
            "worker  500 machines: 1 failed, 60 creating, 399 waiting, 40 done  (20 shown)"
        );
        let failed: Vec<&String> = texts.iter().filter(|text| text.contains("w-321 ")).collect();
        assert!(failed.len() == 1 && failed[0].contains("failed: no room"), "{texts:#?}");
        assert!(texts[21].contains("240 of 3000 steps"), "{texts:#?}");
    }

    #[test]
    fn nothing_is_wider_or_higher_than_the_terminal_whatever_its_size() {
        let mut lines = cluster();
        lines.push(script::step(30, 5, "cp-1", script::wait(&"x".repeat(300))));
        let progress = progress(&lines);
        for width in [10, 20, 40, 56, 79, 80, 99, 100, 120, 250] {
            for height in [1, 2, 3, 4, 6, 22, 60] {
                let texts = texts(&progress, 60, width, height);
                assert!(texts.len() <= height, "{width}x{height}: {texts:#?}");
                let widest = texts.iter().map(|text| text.chars().count()).max();
                assert!(widest <= Some(width), "{width}x{height}: {widest:?} {texts:#?}");
            }
        }
    }

    #[test]
    fn a_terminal_without_block_characters_gets_ascii() {
        let canvas = Canvas {
            width: 80,
            height: 24,
            unicode: false,
        };
        let lines = lines(&progress(&cluster()), Duration::from_secs(51), canvas);
        let text: String = lines.iter().flat_map(|line| &line.0).map(|(_, text)| text.as_str()).collect();
        assert!(text.is_ascii() && text.contains("###=..."), "{text}");
    }

    #[test]
    fn a_machine_is_not_named_twice_in_its_row() {
        let mut lines = cluster();
        lines.push(script::step(30, 5, "cp-1", script::wait("node cp-1 is not registered yet")));
        let texts = texts(&progress(&lines), 31, 100, 24);
        assert!(texts[2].contains("the node is not registered yet"), "{texts:#?}");
    }
}
