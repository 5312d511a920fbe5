//! A plan in short: one row per subject, counts, one line per step. No widths and no colours: the layout belongs to the binary.

use std::collections::BTreeMap;

use crate::action::{Action, SubjectFate};
use crate::counts::count;
use crate::desired::Image;
use crate::plan::{Held, Plan, Refusal, Step};
use crate::step::{Claim, Impact, Subject, VmRef};

/// Everything that happens to one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanRow {
    pub sign: RowSign,
    pub noun: &'static str,
    pub name: String,
    pub vm: Option<VmRef>,
    pub what: String,
    pub why: String,
    /// The line of cluster.yaml that asks for it.
    pub line: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowSign {
    Create,
    Change,
    Remove,
    Held,
}

impl RowSign {
    pub fn glyph(self) -> char {
        match self {
            Self::Create => '+',
            Self::Change => '~',
            Self::Remove => '-',
            Self::Held => '.',
        }
    }
}

/// Counts for one-line summaries and for the event stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlanSummary {
    pub images_to_create: usize,
    pub machines_to_create: usize,
    pub machines_to_change: usize,
    pub machines_to_remove: usize,
    pub images_to_remove: usize,
    /// Volumes and Kubernetes Nodes of machines that no longer exist.
    pub leftovers_to_remove: usize,
    pub held: usize,
    pub unchanged: usize,
    pub steps: usize,
}

impl Plan {
    /// Short form: refusals, drift, notes, then one line per subject.
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

    /// Every step with its dependencies, for `-v` and for tests of the order.
    pub fn trace(&self) -> String {
        self.steps.iter().map(trace).collect::<Vec<_>>().join("\n")
    }

    /// What happens, in the order of the steps, then what is held.
    pub fn rows(&self) -> Vec<PlanRow> {
        let mut subjects: Vec<&Subject> = Vec::new();
        let mut steps: BTreeMap<&Subject, Vec<&Step>> = BTreeMap::new();
        for step in &self.steps {
            let known = steps.entry(&step.subject).or_default();
            if known.is_empty() {
                subjects.push(&step.subject);
            }
            known.push(step);
        }
        let mut rows: Vec<PlanRow> = self.images().into_iter().collect();
        rows.extend(subjects.into_iter().filter_map(|subject| self.row(subject, &steps[subject])));
        rows.extend(self.steps.iter().filter_map(bootstrap));
        rows.extend(self.held.iter().map(held));
        rows
    }

    /// Counted over rows, not steps: people count machines, and one machine has several steps.
    pub fn summary(&self) -> PlanSummary {
        let rows = self.rows();
        let machines = |sign: RowSign| rows.iter().filter(|row| row.sign == sign && row.noun == "machine").count();
        let removed = |noun: &'static str| rows.iter().filter(move |row| row.sign == RowSign::Remove && row.noun == noun);
        let fetches = |step: &&Step| matches!(step.action, Action::ImageFetch { .. });
        PlanSummary {
            images_to_create: self.steps.iter().filter(fetches).count(),
            machines_to_create: machines(RowSign::Create),
            machines_to_change: machines(RowSign::Change),
            machines_to_remove: machines(RowSign::Remove),
            images_to_remove: removed("image").count(),
            leftovers_to_remove: rows.iter().filter(|row| row.sign == RowSign::Remove).count()
                - removed("machine").count()
                - removed("image").count()
                - removed("add-on").count(),
            held: self.held.len(),
            unchanged: self.unchanged.machines,
            steps: self.steps.len(),
        }
    }

    /// The image is one, however many storages get it.
    fn images(&self) -> Option<PlanRow> {
        let fetches = self.steps.iter().filter_map(|step| match &step.action {
            Action::ImageFetch { at, image } => Some((at.to_string(), image, &step.why)),
            _ => None,
        });
        let (places, mut images): (Vec<String>, Vec<(&Image, &String)>) =
            fetches.map(|(at, image, why)| (at, (image, why))).unzip();
        let (image, why) = images.pop()?;
        let short: String = image
            .schematic
            .iter()
            .flat_map(|schematic| schematic.id.chars())
            .take(12)
            .collect();
        let name = match &self.versions {
            Some(versions) if !short.is_empty() => format!("{}-{} ({short})", versions.distro, versions.release),
            _ => image.file.clone(),
        };
        Some(PlanRow {
            sign: RowSign::Create,
            noun: "image",
            name,
            vm: None,
            what: places.join(", "),
            why: why.clone(),
            line: None,
        })
    }

    /// One row for all steps of a subject. What serves several machines has rows of its own or none.
    fn row(&self, subject: &Subject, steps: &[&Step]) -> Option<PlanRow> {
        let noun = match subject {
            Subject::Schematic | Subject::Cluster | Subject::Host(_) => return None,
            Subject::Image(_) if steps.iter().any(|step| matches!(step.action, Action::ImageFetch { .. })) => return None,
            Subject::Image(_) => "image",
            Subject::Machine(_) => "machine",
            Subject::Node(_) => "node",
            Subject::Volume(_) => "volume",
            Subject::Addon(_) => "add-on",
        };
        let drifted = self.drift.iter().any(|drift| drift.subject == *subject);
        let (sign, what, why) = judge(steps, drifted);
        let vm = steps.iter().find_map(|step| step.action.info().vm.cloned());
        Some(PlanRow {
            sign,
            noun,
            name: subject.to_string(),
            vm,
            what,
            why,
            line: steps[0].at.map(|at| at.line),
        })
    }
}

/// The first step that creates or removes the subject decides the row; everything else is a change.
fn judge(steps: &[&Step], drifted: bool) -> (RowSign, String, String) {
    for step in steps {
        match (step.action.info().fate, &step.action) {
            (SubjectFate::Created, Action::MachineClaim(claim)) => {
                return (RowSign::Create, shape(claim, steps), step.why.clone());
            }
            (SubjectFate::Created, Action::ReleaseStart(run)) => {
                return (RowSign::Create, run.wanted.version.clone(), step.why.clone());
            }
            (SubjectFate::Removed, _) => return (RowSign::Remove, removal(steps), step.why.clone()),
            (SubjectFate::Created | SubjectFate::Kept, _) => {}
        }
    }
    (RowSign::Change, changes(steps), reason(steps, drifted).to_owned())
}

fn shape(claim: &Claim, steps: &[&Step]) -> String {
    let address = steps.iter().find_map(|step| match &step.action {
        Action::MachineFill(fill) => Some(format!("  {}", fill.seed.address.addr())),
        _ => None,
    });
    let mib = claim.shape.memory.0;
    let memory = if mib.is_multiple_of(1024) {
        format!("{} GiB", mib / 1024)
    } else {
        format!("{mib} MiB")
    };
    format!("{} cpu  {memory}{}", claim.shape.cpu, address.unwrap_or_default())
}

/// The one step that happens once in the life of a cluster has a line of its own.
fn bootstrap(step: &Step) -> Option<PlanRow> {
    let Action::EtcdBootstrap { .. } = &step.action else {
        return None;
    };
    let (name, why) = (step.subject.to_string(), step.why.clone());
    Some(PlanRow {
        sign: RowSign::Create,
        noun: "etcd",
        name,
        vm: None,
        what: "bootstraps here".to_owned(),
        why,
        line: None,
    })
}

fn held(held: &Held) -> PlanRow {
    let what = format!("held: {}", held.reason);
    PlanRow {
        sign: RowSign::Held,
        noun: held.what,
        name: held.subject.to_string(),
        vm: None,
        what,
        why: String::new(),
        line: None,
    }
}

/// What happens to a machine that is there already, in the order it happens. Waiting is told only where nothing else happens.
fn changes(steps: &[&Step]) -> String {
    let waits = |step: &Step| step.action.info().waits;
    let all_wait = steps.iter().all(|step| waits(step));
    let mut words: Vec<String> = Vec::new();
    for word in steps
        .iter()
        .filter(|step| all_wait || !waits(step))
        .filter_map(|step| verb(step))
    {
        if !words.contains(&word) {
            words.push(word);
        }
    }
    words.join(", ")
}

/// A change says itself what it is.
fn verb(step: &Step) -> Option<String> {
    if is_change(step) {
        return Some(step.why.clone());
    }
    Some(step.action.info().verb)
        .filter(|verb| !verb.is_empty())
        .map(str::to_owned)
}

/// An approval must show how many volumes go, and by name those that mainstay did not make.
fn removal(steps: &[&Step]) -> String {
    let volumes = steps.iter().find_map(|step| match &step.action {
        Action::MachineDelete { volumes, with_disks, .. } if !volumes.is_empty() || !with_disks.is_empty() => {
            let named = with_disks.iter().map(|volume| format!(" and {volume}"));
            Some(count(volumes.len(), "volume") + &named.collect::<String>())
        }
        _ => None,
    });
    let before = Some(changes(steps)).filter(|before| !before.is_empty());
    before.into_iter().chain(volumes).collect::<Vec<_>>().join(", ")
}

/// Why a machine that is there is touched. What a change is says itself; who made it does not.
fn reason<'s>(steps: &[&'s Step], drifted: bool) -> &'s str {
    let start = steps.iter().find(|step| matches!(step.action, Action::MachineStart { .. }));
    match (steps.iter().any(|step| is_change(step)), start) {
        (false, _) => steps.first().map_or("", |step| step.why.as_str()),
        (true, Some(start)) => &start.why,
        (true, None) if drifted => "changed outside",
        (true, None) => "changed in the file",
    }
}

/// What a step changes is its reason.
fn is_change(step: &Step) -> bool {
    matches!(
        step.action,
        Action::MachineChange { .. } | Action::MachinePool { .. } | Action::NodeChange { .. }
    ) || is_growth(step)
}

/// A disk that is larger in the file than it is.
fn is_growth(step: &Step) -> bool {
    matches!(step.action, Action::MachineGrow { .. }) && step.why.contains(" -> ")
}

/// One line for a step with its order, for `plan -v` and for tests.
fn trace(step: &Step) -> String {
    let needs: Vec<String> = step.needs.iter().map(ToString::to_string).collect();
    let needs = if needs.is_empty() {
        String::new()
    } else {
        format!(" <- {}", needs.join(" "))
    };
    let detail = step.action.detail().map(|detail| format!(" {detail}")).unwrap_or_default();
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

fn short(row: &PlanRow) -> String {
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
