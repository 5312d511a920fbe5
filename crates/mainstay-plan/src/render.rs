//! Plans as text. Pure: width, file name and datacenter are arguments, and nothing depends on colour.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::plan::Plan;
use crate::step::{Action, Apply, Impact, LeaveBy, Setting, Step, Subject, VmRef};

/// What a reader sees around the plan.
#[derive(Debug, Clone)]
pub struct Page<'a> {
    /// What the PVE endpoint is called.
    pub datacenter: &'a str,
    pub hosts: usize,
    /// The file that the plan is for.
    pub file: &'a str,
    /// Columns of the terminal.
    pub width: usize,
}

/// Counts for one-line summaries and machines that read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    pub images_to_create: usize,
    pub machines_to_create: usize,
    pub machines_to_change: usize,
    pub machines_to_remove: usize,
    pub others_to_remove: usize,
    pub held: usize,
    pub unchanged: usize,
    pub steps: usize,
}

/// One line of a plan: everything that happens to one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// `+` create, `~` change, `-` remove, `.` held.
    pub sign: char,
    pub noun: &'static str,
    pub name: String,
    pub vm: Option<VmRef>,
    pub what: String,
    pub why: String,
    pub line: Option<u32>,
}

impl Plan {
    /// One line per subject, in the order of the steps: images, machines, then what is held.
    pub fn rows(&self) -> Vec<Row> {
        let mut subjects: Vec<&Subject> = Vec::new();
        let mut steps: BTreeMap<&Subject, Vec<&Step>> = BTreeMap::new();
        for step in &self.steps {
            let known = steps.entry(&step.subject).or_default();
            if known.is_empty() {
                subjects.push(&step.subject);
            }
            known.push(step);
        }
        let mut rows: Vec<Row> = subjects
            .into_iter()
            .filter_map(|subject| {
                row(
                    subject,
                    &steps[subject],
                    self.drift.iter().any(|drift| drift.subject == *subject),
                )
            })
            .collect();
        merge_images(&mut rows);
        rows.extend(self.steps.iter().filter_map(bootstrap_row));
        rows.extend(self.held.iter().map(held_row));
        rows
    }

    pub fn summary(&self) -> Summary {
        let rows = self.rows();
        let count = |sign: char, noun: &str| rows.iter().filter(|row| row.sign == sign && row.noun == noun).count();
        Summary {
            images_to_create: self
                .steps
                .iter()
                .filter(|step| matches!(step.action, Action::ImageFetch { .. }))
                .count(),
            machines_to_create: count('+', "machine"),
            machines_to_change: count('~', "machine"),
            machines_to_remove: count('-', "machine"),
            others_to_remove: rows.iter().filter(|row| row.sign == '-' && row.noun != "machine").count(),
            held: self.held.len(),
            unchanged: self.unchanged.machines,
            steps: self.steps.len(),
        }
    }

    /// Short form: what changed outside, one line per subject, what is refused.
    pub fn render(&self) -> String {
        let mut lines: Vec<String> = self.refusals.iter().flat_map(refusal_lines).collect();
        lines.extend(self.drift.iter().map(|drift| format!("! {} {}", drift.subject, drift.what)));
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines.extend(self.rows().iter().map(short));
        if lines.is_empty() {
            "nothing to do".to_owned()
        } else {
            lines.join("\n")
        }
    }

    /// Every step with what it needs, for `-v` and for tests of the order.
    pub fn trace(&self) -> String {
        let line = |step: &Step| {
            let needs: Vec<String> = step.needs.iter().map(ToString::to_string).collect();
            let needs = if needs.is_empty() {
                String::new()
            } else {
                format!(" <- {}", needs.join(" "))
            };
            let detail = detail(&step.action).map(|detail| format!(" {detail}")).unwrap_or_default();
            let impact = if step.impact == Impact::None {
                String::new()
            } else {
                format!(" [{}]", step.impact)
            };
            format!(
                "{} {} {}{detail}{impact}{needs}: {}",
                step.id,
                step.action.name(),
                step.subject,
                step.why
            )
        };
        self.steps.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// The whole plan for people.
    pub fn page(&self, page: &Page<'_>) -> String {
        let mut text = self.headline(page);
        if !self.drift.is_empty() {
            text.push_str("\nchanged outside mainstay\n");
            let width = self
                .drift
                .iter()
                .map(|drift| drift.subject.to_string().len())
                .max()
                .unwrap_or_default();
            for drift in &self.drift {
                let _ = writeln!(text, "  {:width$}   {}", drift.subject, drift.what);
            }
        }
        let rows = self.rows();
        if !rows.is_empty() {
            text.push('\n');
            text.push_str(&table(&rows, page));
        }
        if !self.notes.is_empty() {
            text.push('\n');
            self.notes
                .iter()
                .for_each(|note| text.push_str(&wrap(&format!("note: {note}"), page.width, 6)));
        }
        text.push('\n');
        text.push_str(&wrap(&self.closing(), page.width, 0));
        text
    }

    fn headline(&self, page: &Page<'_>) -> String {
        let versions = self.versions.as_ref();
        let versions = versions.map(|versions| format!("Talos {}, Kubernetes {}, ", versions.talos, versions.kubernetes));
        format!(
            "{}: {}datacenter {} ({})\n",
            self.cluster,
            versions.unwrap_or_default(),
            page.datacenter,
            count(page.hosts, "host")
        )
    }

    fn closing(&self) -> String {
        let sums = self.summary();
        let parts = [
            list(
                &[(sums.images_to_create, "image"), (sums.machines_to_create, "machine")],
                "to create",
            ),
            list(&[(sums.machines_to_change, "machine")], "to change"),
            list(
                &[(sums.machines_to_remove, "machine"), (sums.others_to_remove, "leftover")],
                "to remove",
            ),
            (sums.held > 0).then(|| format!("{} held", sums.held)),
            (sums.unchanged > 0).then(|| format!("{} unchanged", sums.unchanged)),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let what = if parts.is_empty() {
            "nothing".to_owned()
        } else {
            parts.join(", ")
        };
        if self.steps.is_empty() {
            format!("Nothing to do: {what}.")
        } else {
            format!("{what}. {}, {}.", count(sums.steps, "step"), about(self.expected()))
        }
    }
}

/// `1 image and 2 machines to create`.
fn list(counts: &[(usize, &str)], what: &str) -> Option<String> {
    let some: Vec<String> = counts
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, noun)| count(*number, noun))
        .collect();
    (!some.is_empty()).then(|| format!("{} {what}", some.join(" and ")))
}

/// `1 machine`, `2 machines`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}

/// `about 40 s`, `about 4 min`.
pub fn about(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 90 {
        format!("about {seconds} s")
    } else {
        format!("about {} min", (seconds + 30) / 60)
    }
}

fn row(subject: &Subject, steps: &[&Step], drifted: bool) -> Option<Row> {
    let noun = match subject {
        Subject::Schematic | Subject::Cluster | Subject::Host(_) => return None,
        Subject::Image(_) => "image",
        Subject::Machine(_) => "machine",
        Subject::Node(_) => "node",
        Subject::Volume(_) => "volume",
    };
    let claim = steps.iter().find_map(|step| {
        if let Action::MachineClaim(claim) = &step.action {
            Some((claim, step))
        } else {
            None
        }
    });
    let fetch = steps.iter().find_map(|step| {
        if let Action::ImageFetch { image, .. } = &step.action {
            Some((image, step))
        } else {
            None
        }
    });
    let gone = steps.iter().find(|step| {
        matches!(
            step.action,
            Action::MachineDelete { .. } | Action::VolumeDelete { .. } | Action::ImageDelete { .. }
        )
    });
    let vm = steps.iter().find_map(|step| step.action.vm().cloned());
    let line = steps[0].at.map(|at| at.line);
    let row = |sign, what: String, why: &str| Row {
        sign,
        noun,
        name: subject.to_string(),
        vm: vm.clone(),
        what,
        why: why.to_owned(),
        line,
    };
    Some(match (claim, fetch, gone) {
        (Some((claim, step)), ..) => {
            let shape = &claim.shape;
            let address = steps.iter().find_map(|step| {
                if let Action::MachineFill(fill) = &step.action {
                    Some(fill.seed.address.addr())
                } else {
                    None
                }
            });
            let address = address.map(|address| format!("  {address}")).unwrap_or_default();
            row('+', format!("{} cpu  {}{address}", shape.cpu, gib(shape.memory.0)), &step.why)
        }
        (None, Some((image, step)), _) => row('+', image.file.clone(), &step.why),
        (None, None, Some(step)) => row('-', removal(steps), &step.why),
        (None, None, None) => row('~', changes(steps), reason(steps, drifted)),
    })
}

/// Several storages get one image: one line.
fn merge_images(rows: &mut Vec<Row>) {
    let mut merged: Vec<Row> = Vec::new();
    for row in rows.drain(..) {
        let same = |other: &&mut Row| {
            row.noun == "image"
                && other.noun == "image"
                && (other.sign, &other.what, &other.why) == (row.sign, &row.what, &row.why)
        };
        match merged.iter_mut().find(same) {
            Some(other) => {
                other.name.push_str(", ");
                other.name.push_str(&row.name);
            }
            None => merged.push(row),
        }
    }
    for row in merged.iter_mut().filter(|row| row.noun == "image" && row.sign == '+') {
        std::mem::swap(&mut row.name, &mut row.what);
    }
    *rows = merged;
}

/// The one step that happens once in the life of a cluster has a line of its own.
fn bootstrap_row(step: &Step) -> Option<Row> {
    let Action::TalosBootstrap { .. } = &step.action else {
        return None;
    };
    let row = Row {
        sign: '+',
        noun: "etcd",
        name: step.subject.to_string(),
        vm: None,
        what: "begins here".to_owned(),
        why: step.why.clone(),
        line: None,
    };
    Some(row)
}

fn held_row(held: &crate::plan::Held) -> Row {
    let what = format!("held: {}", held.reason);
    Row {
        sign: '.',
        noun: held.what,
        name: held.subject.to_string(),
        vm: None,
        what,
        why: String::new(),
        line: None,
    }
}

/// What happens to a machine that is there already, in the order it happens.
fn changes(steps: &[&Step]) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in steps.iter().filter_map(|step| verb(step)) {
        if words.last() != Some(&word) {
            words.push(word);
        }
    }
    words.join(", ")
}

fn verb(step: &Step) -> Option<String> {
    Some(match &step.action {
        Action::MachineChange { .. } => step.why.clone(),
        Action::MachineGrow { .. } if is_growth(step) => step.why.clone(),
        Action::MachineGrow { .. } => "grow".to_owned(),
        Action::MachineReboot { .. } => "reboot".to_owned(),
        Action::MachineFill(_) => "fill".to_owned(),
        Action::MachineStart { .. } => "start".to_owned(),
        Action::MachineStop { .. } => "stop".to_owned(),
        Action::MachineMark(_) => "mark".to_owned(),
        Action::TalosConfigure { .. } => "configure".to_owned(),
        Action::TalosAwait { .. } => "await Talos".to_owned(),
        Action::TalosReconfigure { how: Apply::Live, .. } => "new config, live".to_owned(),
        Action::TalosReconfigure { how: Apply::Staged, .. } => "new config".to_owned(),
        Action::TalosReconfigure { how: Apply::Reboot, .. } => "new config, reboot".to_owned(),
        Action::EtcdJoin { .. } => "join etcd".to_owned(),
        Action::EtcdLeave { .. } => "leave etcd".to_owned(),
        Action::NodeAwait { .. } => "await node".to_owned(),
        Action::NodeDelete => "delete node".to_owned(),
        _ => return None,
    })
}

fn removal(steps: &[&Step]) -> String {
    let volumes: usize = steps
        .iter()
        .map(|step| {
            if let Action::MachineDelete { volumes, .. } = &step.action {
                volumes.len()
            } else {
                0
            }
        })
        .sum();
    let before = changes(steps);
    match (before.is_empty(), volumes) {
        (true, 0) => String::new(),
        (false, 0) => before,
        (true, _) => count(volumes, "volume"),
        (false, _) => format!("{before}, {}", count(volumes, "volume")),
    }
}

/// Why a machine that is there is touched. What a change is says itself; who made it does not.
fn reason<'s>(steps: &[&'s Step], drifted: bool) -> &'s str {
    let changes =
        |step: &&Step| matches!(step.action, Action::MachineChange { .. }) || step.why.contains(" GiB -> ") || is_growth(step);
    let starts = |step: &&Step| matches!(step.action, Action::MachineStart { .. });
    match (
        steps.iter().copied().find(|step| !changes(step)),
        steps.iter().copied().any(|step| changes(&step)),
    ) {
        (Some(other), false) => other.why.as_str(),
        (Some(_), true) if steps.iter().copied().any(|step| starts(&step)) => {
            steps.iter().find(|step| starts(step)).map_or("", |step| &step.why)
        }
        (_, true) if drifted => "changed outside",
        (_, true) => "changed in the file",
        (None, false) => "",
    }
}

/// A disk that is larger in the file than it is.
fn is_growth(step: &Step) -> bool {
    matches!(step.action, Action::MachineGrow { .. }) && step.why.contains(" -> ")
}

fn detail(action: &Action) -> Option<String> {
    Some(match action {
        Action::MachineClaim(claim) => claim.vm.to_string(),
        Action::MachineFill(fill) => format!("from {}:{}", fill.image.storage, fill.image.file),
        Action::MachineGrow { slot, to, .. } => format!("{slot} to {} GiB", to.0),
        Action::TalosBootstrap { prove, .. } if !prove.is_empty() => {
            let names: Vec<&str> = prove.iter().map(|peer| peer.machine.as_str()).collect();
            format!("after reading {}", names.join(", "))
        }
        Action::MachineChange { settings, .. } => settings.iter().map(setting_key).collect::<Vec<_>>().join("+"),
        Action::MachineMark(remark) if remark.mark.bootstrap => "bootstrap here".to_owned(),
        Action::EtcdLeave {
            by: LeaveBy::Survivor(peer),
            ..
        } => format!("by {}", peer.machine),
        _ => return None,
    })
}

fn setting_key(setting: &Setting) -> &'static str {
    match setting {
        Setting::Name(_) => "name",
        Setting::Cores(_) => "cores",
        Setting::CpuType(_) => "cpu",
        Setting::Memory(_) => "memory",
        Setting::ScsiController(_) => "scsihw",
        Setting::Agent(_) => "agent",
        Setting::Onboot(_) => "onboot",
        Setting::StartupOrder(_) => "startup",
        Setting::Boot(_) => "boot",
        Setting::Nic(_) => "net0",
        Setting::Seed(_) => "ipconfig0",
        Setting::Tags(_) => "tags",
        Setting::Attach(_) => "disk",
        Setting::DiskOptions { .. } => "options",
    }
}

fn short(row: &Row) -> String {
    let vm = row
        .vm
        .as_ref()
        .map(|vm| format!(" vm {} {}", vm.vmid, vm.host))
        .unwrap_or_default();
    let what = if row.what.is_empty() {
        String::new()
    } else {
        format!(" {}", row.what.replace("  ", " "))
    };
    let why = if row.why.is_empty() {
        String::new()
    } else {
        format!(": {}", row.why)
    };
    format!("{} {} {}{vm}{what}{why}", row.sign, row.noun, row.name)
}

fn refusal_lines(refusal: &crate::plan::Refusal) -> Vec<String> {
    let mut lines = vec![
        format!("refused ({:?}): {}", refusal.kind, refusal.what)
            .replace("Gate", "gate")
            .replace("Conflict", "conflict")
            .replace("Lacking", "lacking"),
    ];
    lines.push(format!("  why:  {}", refusal.why));
    lines.extend(refusal.help.iter().map(|help| format!("  help: {help}")));
    lines
}

fn gib(mib: u64) -> String {
    if mib.is_multiple_of(1024) {
        format!("{} GiB", mib / 1024)
    } else {
        format!("{mib} MiB")
    }
}

/// Rows in columns as wide as their content. Where a line is too long, its reason goes to a line of its own.
fn table(rows: &[Row], page: &Page<'_>) -> String {
    let cells: Vec<[String; 5]> = rows.iter().map(cells).collect();
    // What is held is a sentence, not columns, and would push everything else aside.
    let aligned = rows
        .iter()
        .zip(&cells)
        .filter(|(row, _)| row.sign != '.')
        .map(|(_, cells)| cells);
    let width = |column: usize| {
        aligned
            .clone()
            .map(|cells| cells[column].chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..5).map(width).collect();
    let mut text = String::new();
    for (row, cells) in rows.iter().zip(&cells) {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(&widths).filter(|(_, width)| **width > 0) {
            let _ = write!(line, "{cell:width$}  ");
        }
        let at = row.line.map(|line| format!("{}:{line}", page.file)).unwrap_or_default();
        let tail = [row.why.as_str(), at.as_str()]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("   ");
        let indent = 4;
        if line.trim_end().chars().count() > page.width {
            text.push_str(&wrap(line.trim_end(), page.width, indent));
            line.clear();
        } else if !tail.is_empty() && line.chars().count() + tail.chars().count() > page.width {
            let _ = writeln!(text, "{}", line.trim_end());
            line.clear();
        }
        let rest = format!("{line}{tail}");
        if !rest.trim().is_empty() {
            let rest = if line.is_empty() {
                format!("{:indent$}{rest}", "")
            } else {
                rest
            };
            text.push_str(&wrap(rest.trim_end(), page.width, indent));
        }
    }
    text
}

fn cells(row: &Row) -> [String; 5] {
    let (vmid, host) = row
        .vm
        .as_ref()
        .map(|vm| (format!("vm {}", vm.vmid), vm.host.clone()))
        .unwrap_or_default();
    [
        format!("{} {:8}", row.sign, row.noun),
        row.name.clone(),
        vmid,
        host,
        row.what.clone(),
    ]
}

/// Breaks at blanks. Runs of blanks inside a line are kept, since they are columns.
fn wrap(text: &str, width: usize, indent: usize) -> String {
    let mut out = String::new();
    let mut rest = text;
    let mut prefix = 0;
    while prefix + rest.chars().count() > width {
        let end = rest
            .char_indices()
            .nth(width.saturating_sub(prefix))
            .map_or(rest.len(), |(at, _)| at);
        let begin = rest.len() - rest.trim_start().len();
        let Some(at) = rest[..end].rfind(' ').filter(|at| *at > begin) else {
            break;
        };
        let _ = writeln!(out, "{:prefix$}{}", "", rest[..at].trim_end());
        rest = rest[at..].trim_start();
        prefix = indent;
    }
    let _ = writeln!(out, "{:prefix$}{}", "", rest);
    out
}
