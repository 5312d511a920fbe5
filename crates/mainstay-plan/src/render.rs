//! Plans as text. Pure: width, file name and datacenter are arguments, and nothing depends on colour.

use std::fmt::Write as _;
use std::time::Duration;

use crate::plan::{Plan, Refusal};
use crate::row::{Row, Sign};
use crate::step::{Action, Impact, LeaveBy, Setting, Step};

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

/// Where a line that had to be broken goes on.
const INDENT: usize = 4;

impl Plan {
    /// Short form: what is refused, what changed outside, one line per subject.
    pub fn render(&self) -> String {
        let mut lines: Vec<String> = self.refusals.iter().flat_map(refusal).collect();
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
        self.steps.iter().map(trace).collect::<Vec<_>>().join("\n")
    }

    /// The whole plan for people. Refusals are not in it: they are errors, and told as such.
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
                text.push_str(&wrap(
                    &format!("  {:width$}   {}", drift.subject, drift.what),
                    page.width,
                    INDENT,
                ));
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
                .for_each(|note| text.push_str(&wrap(&format!("note: {note}"), page.width, INDENT)));
        }
        text.push('\n');
        text.push_str(&wrap(&self.closing(), page.width, 0));
        text
    }

    fn headline(&self, page: &Page<'_>) -> String {
        let versions = self.versions.as_ref();
        let versions = versions.map(|versions| format!("Talos {}, Kubernetes {}, ", versions.talos, versions.kubernetes));
        let versions = versions.unwrap_or_default();
        let line = format!(
            "{}: {versions}datacenter {} ({})",
            self.cluster,
            page.datacenter,
            count(page.hosts, "host")
        );
        wrap(&line, page.width, INDENT)
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
                &[
                    (sums.machines_to_remove, "machine"),
                    (sums.images_to_remove, "image"),
                    (sums.leftovers_to_remove, "leftover"),
                ],
                "to remove",
            ),
            (sums.held > 0).then(|| format!("{} held", sums.held)),
            (sums.unchanged > 0).then(|| format!("{} unchanged", sums.unchanged)),
        ];
        let what = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        match (self.steps.is_empty(), what.is_empty()) {
            (true, true) => "Nothing to do.".to_owned(),
            (true, false) => format!("Nothing to do: {what}."),
            (false, _) => format!("{what}. {}, {}.", count(sums.steps, "step"), about(self.expected())),
        }
    }
}

/// `1 image and 2 machines to create`.
fn list(counts: &[(usize, &str)], what: &str) -> Option<String> {
    let some = counts
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, noun)| count(*number, noun));
    let some: Vec<String> = some.collect();
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

fn trace(step: &Step) -> String {
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
}

fn detail(action: &Action) -> Option<String> {
    Some(match action {
        Action::MachineClaim(claim) => claim.vm.to_string(),
        Action::MachineFill(fill) => format!("from {}:{}", fill.image.storage, fill.image.file),
        Action::MachineGrow { slot, to, .. } => format!("{slot} to {} GiB", to.0),
        Action::MachineChange { settings, .. } => settings.iter().map(setting_key).collect::<Vec<_>>().join("+"),
        Action::MachineMark(remark) if remark.mark.bootstrap => "bootstrap here".to_owned(),
        Action::EtcdLeave {
            by: LeaveBy::Survivor(peer),
            ..
        } => format!("by {}", peer.machine),
        Action::TalosBootstrap { prove, .. } if !prove.is_empty() => {
            let names: Vec<&str> = prove.iter().map(|peer| peer.machine.as_str()).collect();
            format!("after reading {}", names.join(", "))
        }
        _ => return None,
    })
}

/// As PVE calls it.
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
    format!("{} {} {}{vm}{what}{why}", row.sign.glyph(), row.noun, row.name)
}

fn refusal(refusal: &Refusal) -> Vec<String> {
    let mut lines = vec![
        format!("refused ({}): {}", refusal.kind.as_str(), refusal.what),
        format!("  why:  {}", refusal.why),
    ];
    lines.extend(refusal.help.iter().map(|help| format!("  help: {help}")));
    lines
}

/// Widths of the columns that machines have in common.
struct Widths {
    name: usize,
    vmid: usize,
    host: usize,
    what: usize,
}

impl Widths {
    /// A machine's line without its reason.
    fn line(&self) -> usize {
        "+ machine   ".len() + self.name + self.vmid + self.host + self.what + 3 * 2
    }

    /// From machines alone: images, volumes and what is held are sentences, and would push everything else aside.
    fn of(rows: &[Row]) -> Self {
        let machines = || rows.iter().filter(|row| is_columns(row));
        let widest = |length: &dyn Fn(&Row) -> usize| machines().map(length).max().unwrap_or_default();
        Self {
            name: widest(&|row| row.name.chars().count()),
            vmid: widest(&|row| row.vm.as_ref().map_or(0, |vm| vm.vmid.to_string().len() + 3)),
            host: widest(&|row| row.vm.as_ref().map_or(0, |vm| vm.host.chars().count())),
            what: widest(&|row| row.what.chars().count()),
        }
    }
}

fn is_columns(row: &Row) -> bool {
    row.noun == "machine" && row.sign != Sign::Held
}

/// Several machines, and all have this reason.
fn is_common(why: &str, rows: &[Row]) -> bool {
    let mut machines = rows.iter().filter(|row| is_columns(row));
    machines.clone().count() > 1 && machines.all(|row| row.why == why)
}

/// Rows in columns as wide as their content. A line that is too long loses its place in the file first, then goes on below.
fn table(rows: &[Row], page: &Page<'_>) -> String {
    let widths = Widths::of(rows);
    // One reason for all machines, and no room for it: the page says it well enough without.
    let fits = |row: &Row| widths.line() + 2 + row.why.chars().count() <= page.width;
    let spoken = |row: &Row| !is_columns(row) || fits(row) || !is_common(&row.why, rows);
    let mut text = String::new();
    for row in rows {
        let mut line = format!("{} {:8}  {:name$}", row.sign.glyph(), row.noun, row.name, name = widths.name);
        if is_columns(row) {
            let (vmid, host) = row
                .vm
                .as_ref()
                .map(|vm| (format!("vm {}", vm.vmid), vm.host.as_str()))
                .unwrap_or_default();
            let _ = write!(
                line,
                "  {vmid:vm$}  {host:at$}  {:what$}",
                row.what,
                vm = widths.vmid,
                at = widths.host,
                what = widths.what
            );
        } else {
            let _ = write!(line, "  {}", row.what);
        }
        if !row.why.is_empty() && spoken(row) {
            let _ = write!(line, "  {}", row.why);
        }
        let line = line.trim_end();
        let place = row.line.map(|at| format!("   {}:{at}", page.file)).unwrap_or_default();
        let fits = line.chars().count() + place.chars().count() <= page.width;
        text.push_str(&wrap(
            &format!("{line}{}", if fits { place.as_str() } else { "" }),
            page.width,
            INDENT,
        ));
    }
    text
}

/// Breaks at blanks. Runs of blanks inside a line are kept, since they are columns.
fn wrap(text: &str, width: usize, indent: usize) -> String {
    let mut out = String::new();
    let mut rest = text;
    let mut prefix = 0;
    while prefix + rest.chars().count() > width {
        // One more than fits, since a blank may stand right behind the last column.
        let end = rest
            .char_indices()
            .nth(width.saturating_sub(prefix) + 1)
            .map_or(rest.len(), |(at, _)| at);
        let begin = rest.len() - rest.trim_start().len();
        let Some(at) = rest[..end].rfind(' ').filter(|at| *at > begin) else {
            break;
        };
        let _ = writeln!(out, "{:prefix$}{}", "", rest[..at].trim_end());
        rest = rest[at..].trim_start();
        prefix = indent;
    }
    let _ = writeln!(out, "{:prefix$}{rest}", "");
    out
}
