//! A plan in the stream: its counts, and every step, so that a reader can draw all of it.

use std::collections::BTreeMap;

use mainstay_plan::{Plan, Step, Subject};
use mainstay_spec::{Machine, Spec};
use serde::{Deserialize, Serialize};

use super::time::seconds;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlanEvent {
    pub cluster: String,
    /// How many steps, and how many images and machines they create, change or remove.
    pub steps: usize,
    pub create: usize,
    pub change: usize,
    pub remove: usize,
    /// How many things are held.
    pub held: usize,
    /// Seconds that the plan takes if nothing is wrong.
    pub expected: f64,
    /// The counts by kind.
    pub counts: PlanCounts,
    /// Every step, in an order that respects `needs`.
    pub list: Vec<PlanStep>,
    /// What is wanted but not safe or not possible now.
    pub held_list: Vec<HeldEntry>,
    /// What was changed outside of mainstay.
    pub drift: Vec<DriftEntry>,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlanCounts {
    pub images_to_create: usize,
    pub machines_to_create: usize,
    pub machines_to_change: usize,
    pub machines_to_remove: usize,
    pub images_to_remove: usize,
    /// Volumes and Kubernetes Nodes of machines that no longer exist.
    pub leftovers_to_remove: usize,
    /// Machines that are as they should be.
    pub unchanged: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlanStep {
    /// Counts from 1 in each plan.
    pub id: u32,
    /// The subject in one word, as in `step` lines.
    pub on: String,
    pub subject: PlanSubject,
    /// The kind of action, such as `machine.fill`.
    pub action: String,
    /// What the step does, in words for a progress line.
    pub doing: String,
    /// The most important parameter of the action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Why the step is in the plan.
    pub why: String,
    /// What a running machine notices of it: `none`, `live`, `reboot` or `wipe`.
    pub impact: String,
    /// Ids of steps that must be done before this one begins.
    pub needs: Vec<u32>,
    /// Seconds that the step takes if nothing is wrong.
    pub expected: f64,
    /// The line of the cluster file that asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlanSubject {
    pub kind: SubjectKind,
    /// Absent for the cluster and the schematic, of which there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The pool of a machine that is in the cluster file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SubjectKind {
    Cluster,
    Schematic,
    Image,
    Machine,
    /// A Kubernetes Node without a machine.
    Node,
    Volume,
    Host,
    AddOn,
}

impl SubjectKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Schematic => "schematic",
            Self::Image => "image",
            Self::Machine => "machine",
            Self::Node => "node",
            Self::Volume => "volume",
            Self::Host => "host",
            Self::AddOn => "add-on",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HeldEntry {
    pub on: String,
    /// What is not done, such as `create`.
    pub what: String,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DriftEntry {
    pub on: String,
    pub what: String,
}

/// The pool of each machine of a cluster file.
pub fn pools(spec: &Spec) -> BTreeMap<String, String> {
    let pool = |machine: &Machine| (machine.name.to_string(), machine.pool.to_string());
    spec.machines.iter().map(pool).collect()
}

impl PlanEvent {
    /// `pools`: the pool of each machine of the cluster file.
    pub fn new(plan: &Plan, pools: &BTreeMap<String, String>) -> Self {
        let sums = plan.summary();
        let held = plan.held.iter().map(|held| HeldEntry {
            on: held.subject.to_string(),
            what: held.what.to_owned(),
            reason: held.reason.clone(),
        });
        let drift = plan.drift.iter().map(|drift| DriftEntry {
            on: drift.subject.to_string(),
            what: drift.what.clone(),
        });
        Self {
            cluster: plan.cluster.clone(),
            steps: sums.steps,
            create: sums.images_to_create + sums.machines_to_create,
            change: sums.machines_to_change,
            remove: sums.machines_to_remove + sums.images_to_remove + sums.leftovers_to_remove,
            held: sums.held,
            expected: seconds(plan.expected()),
            counts: PlanCounts {
                images_to_create: sums.images_to_create,
                machines_to_create: sums.machines_to_create,
                machines_to_change: sums.machines_to_change,
                machines_to_remove: sums.machines_to_remove,
                images_to_remove: sums.images_to_remove,
                leftovers_to_remove: sums.leftovers_to_remove,
                unchanged: sums.unchanged,
            },
            list: plan.steps.iter().map(|step| PlanStep::new(step, pools)).collect(),
            held_list: held.collect(),
            drift: drift.collect(),
            notes: plan.notes.clone(),
        }
    }

    /// Ids count from 1, in the order of the list.
    pub fn step(&self, id: u32) -> Option<&PlanStep> {
        self.list.get(usize::try_from(id).ok()?.checked_sub(1)?)
    }
}

impl PlanStep {
    fn new(step: &Step, pools: &BTreeMap<String, String>) -> Self {
        Self {
            id: step.id.0,
            on: step.subject.to_string(),
            subject: PlanSubject::new(&step.subject, pools),
            action: step.action.name().to_owned(),
            doing: step.action.info().progress.to_owned(),
            detail: step.action.detail(),
            why: step.why.clone(),
            impact: step.impact.to_string(),
            needs: step.needs.iter().map(|need| need.0).collect(),
            expected: seconds(step.expected),
            line: step.at.map(|at| at.line),
        }
    }

    /// The step in one line, for `-v`.
    pub fn trace(&self) -> String {
        let detail = self.detail.iter().map(|detail| format!(" {detail}")).collect::<String>();
        let impact = if self.impact == "none" {
            String::new()
        } else {
            format!(" [{}]", self.impact)
        };
        let needs = self.needs.iter().map(|need| format!(" {need}")).collect::<String>();
        let arrow = if needs.is_empty() { "" } else { " <-" };
        format!(
            "{} {} {}{detail}{impact}{arrow}{needs}: {}",
            self.id, self.action, self.on, self.why
        )
    }
}

impl PlanSubject {
    fn new(subject: &Subject, pools: &BTreeMap<String, String>) -> Self {
        let kind = match subject {
            Subject::Cluster => SubjectKind::Cluster,
            Subject::Schematic => SubjectKind::Schematic,
            Subject::Image(_) => SubjectKind::Image,
            Subject::Machine(_) => SubjectKind::Machine,
            Subject::Node(_) => SubjectKind::Node,
            Subject::Volume(_) => SubjectKind::Volume,
            Subject::Host(_) => SubjectKind::Host,
            Subject::Addon(_) => SubjectKind::AddOn,
        };
        let name = match subject {
            Subject::Cluster | Subject::Schematic => None,
            other => Some(other.to_string()),
        };
        let pool = match subject {
            Subject::Machine(name) => pools.get(name).cloned(),
            _ => None,
        };
        Self { kind, name, pool }
    }
}
