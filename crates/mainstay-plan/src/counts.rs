//! Counts: what is as it should be, and numbers in words.

use std::collections::BTreeSet;

use crate::context::Context;
use crate::images;
use crate::plan::{Plan, Unchanged};
use crate::step::Subject;

/// Machines without a step or a hold, and images that are where they belong.
pub(crate) fn unchanged(ctx: Context<'_>, plan: &Plan) -> Unchanged {
    let steps = plan.steps.iter().map(|step| &step.subject);
    let held = plan.held.iter().map(|held| &held.subject);
    let busy: BTreeSet<&Subject> = steps.chain(held).collect();
    let is_busy = |name: &str| busy.contains(&Subject::Machine(name.to_owned()));
    Unchanged {
        machines: ctx.cluster.machines.iter().filter(|machine| !is_busy(machine.name())).count(),
        images: images::count(ctx),
    }
}

/// `1 machine`, `2 machines`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}
