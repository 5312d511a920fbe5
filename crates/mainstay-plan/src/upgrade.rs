//! Which machines get another system in this plan, and what became of upgrades that were begun.
//!
//! What runs after a restart tells whether an upgrade worked only together with the boot before it, so the mark records both before the call
//! that makes another system bootable.

use std::collections::BTreeMap;

use semver::Version;

use crate::action::Action;
use crate::builder::PlanBuilder;
use crate::context::Context;
use crate::desired::{DesiredMachine, SystemGoal};
use crate::guest::{GuestStatus, Guests};
use crate::images::ImageTable;
use crate::mark::{BegunUpgrade, Mark, UpgradeRecord};
use crate::observed::{RunningGuest, Seen};
use crate::plan::HoldReason;
use crate::step::StepId;
use crate::vm::VmSteps;

/// What a turn with an upgrade takes on average machines. Only for the estimate in a plan.
const MINUTES_EACH: usize = 3;
/// As many machines load the new system at once.
const PULLS: usize = 4;

/// Another system for one machine, which is loaded already when its turn begins.
pub(crate) struct SystemUpgrade {
    pub from: Version,
    pub to: Version,
    pub schematic: Option<String>,
    pub image: String,
    /// The step after which the system is on the machine.
    pub pulled: StepId,
}

impl SystemUpgrade {
    pub fn why(&self) -> String {
        if self.from == self.to {
            format!("{} with other extensions", self.to)
        } else {
            format!("{} -> {}", self.from, self.to)
        }
    }
}

/// What the record of an upgrade means for the machine now.
enum UpgradeVerdict {
    /// Nothing was begun, or it ended.
    Open,
    /// It runs what it was to run.
    Done,
    /// It came back with what it ran before.
    CameBack(BegunUpgrade),
    Held(HoldReason),
}

/// Machines that get another system, by name. Adds the steps that load it, and those that bring the records up to date.
pub(crate) fn plan<'a>(
    ctx: Context<'a>,
    guests: &Guests<'a>,
    images: &mut ImageTable<'_>,
    plan: &mut PlanBuilder,
) -> BTreeMap<&'a str, SystemUpgrade> {
    let mut upgrades = BTreeMap::new();
    let Some(goal) = &ctx.cluster.system else { return upgrades };
    let mut wanted: Vec<(&'a DesiredMachine, &'a RunningGuest, &'a Version)> = Vec::new();
    let mut broken = None;
    for (machine, status) in guests {
        let GuestStatus::Running(guest) = status else { continue };
        let Some(release) = &guest.release else { continue };
        match judge(ctx, machine, guest, goal, plan) {
            Ok(true) => wanted.push((machine, guest, release)),
            Ok(false) => {}
            Err(reason) => {
                if machine.is_control_plane() {
                    broken.get_or_insert(machine.name());
                }
                plan.hold(machine.subject(), "upgrade", reason);
            }
        }
    }
    if let Some(name) = broken {
        // What one control plane could not boot is not tried on the next one.
        for (machine, ..) in wanted {
            plan.hold(
                machine.subject(),
                "upgrade",
                format!("the upgrade of {name} is held, which comes first"),
            );
        }
        return upgrades;
    }
    if let Some(road) = later_hops(ctx).filter(|_| !wanted.is_empty()) {
        plan.note(road);
    }
    let mut pulls: Vec<StepId> = Vec::new();
    let registered = goal
        .schematic
        .as_ref()
        .filter(|_| !wanted.is_empty())
        .map(|schematic| images.register(schematic, plan));
    for (machine, _, release) in wanted {
        let action = Action::GuestPull {
            guest: ctx.guest_ref(machine.name()),
            image: goal.image.clone(),
        };
        let step = plan
            .machine_step(machine, action)
            .because("it is there before anything is disturbed");
        let lane = pulls.len().checked_sub(PULLS).map(|at| pulls[at]);
        let pulled = step.needs(registered).needs(lane).add();
        pulls.push(pulled);
        let upgrade = SystemUpgrade {
            from: release.clone(),
            to: goal.release.clone(),
            schematic: goal.schematic.as_ref().map(|schematic| schematic.id.clone()),
            image: goal.image.clone(),
            pulled,
        };
        upgrades.insert(machine.name(), upgrade);
    }
    upgrades
}

/// The hops after this one, each of which is settled before the next begins.
fn later_hops(ctx: Context<'_>) -> Option<String> {
    let road = ctx.cluster.course.road.as_ref().ok()?;
    let mut at = road.first()?;
    let mut hops = Vec::new();
    for hop in road.iter().skip(1) {
        hops.push(if hop.release == at.release {
            format!("Kubernetes {}", hop.kubernetes)
        } else {
            format!("{} {}", hop.distro.title(), hop.release)
        });
        at = hop;
    }
    let restarts = road.windows(2).filter(|pair| pair[0].release != pair[1].release).count();
    let machines = ctx.cluster.machines.len();
    let minutes = restarts * machines * MINUTES_EACH;
    let each = crate::counts::count(restarts, "more restart");
    (!hops.is_empty()).then(|| {
        format!(
            "then {}: {each} of each machine, about {minutes} min; each hop is settled before the next begins",
            hops.join(", then ")
        )
    })
}

/// Whether this machine is to get another system now.
fn judge(
    ctx: Context<'_>,
    machine: &DesiredMachine,
    guest: &RunningGuest,
    goal: &SystemGoal,
    plan: &mut PlanBuilder,
) -> Result<bool, HoldReason> {
    let name = machine.name();
    let record = ctx.owned.ours.get(name).and_then(|vm| vm.mark.as_ref()?.upgrade.clone());
    match verdict(record.as_ref(), guest, goal) {
        UpgradeVerdict::Open => {}
        UpgradeVerdict::Held(reason) => return Err(reason),
        UpgradeVerdict::Done => record_as(
            ctx,
            machine,
            UpgradeRecord::Over,
            "it runs the system that it was to get",
            plan,
        ),
        UpgradeVerdict::CameBack(begun) => {
            let (to, schematic) = (begun.to.clone(), begun.schematic.clone());
            let why = "it came back with the system that it had before";
            record_as(ctx, machine, UpgradeRecord::RolledBack { to, schematic }, why, plan);
            return Err(came_back(name, &begun.to));
        }
    }
    let is_retried = ctx.desired.policy.retry_upgrade.contains(name);
    if let Some(UpgradeRecord::RolledBack { to, schematic }) = &record
        && *to == goal.release
        && is_schematic(goal, schematic)
        && !is_retried
    {
        return Err(came_back(name, to));
    }
    let Some(release) = &guest.release else { return Ok(false) };
    let target = &ctx.cluster.versions.release;
    if release > target {
        let reason = format!("it runs {release}, the file says {target}; no plan lowers a version");
        return Err(reason.into());
    }
    let has_other = matches!((&guest.schematic, &goal.schematic), (Seen::Yes(is), Some(wanted)) if *is != wanted.id);
    let is_needed = *release < goal.release || *release == goal.release && has_other;
    match ctx.desired.policy.held.get(name).filter(|_| is_needed) {
        Some(reason) => Err(reason.clone().into()),
        None => Ok(is_needed),
    }
}

fn verdict(record: Option<&UpgradeRecord>, guest: &RunningGuest, goal: &SystemGoal) -> UpgradeVerdict {
    let Some(UpgradeRecord::Begun(begun)) = record else {
        return UpgradeVerdict::Open;
    };
    let Some(boot) = &guest.boot_id else {
        return UpgradeVerdict::Held(HoldReason::transient("the boot that it runs in is unknown"));
    };
    if *boot == begun.boot_id {
        let is_wanted = begun.to == goal.release && is_schematic(goal, &begun.schematic);
        if begun.is_armed && !is_wanted {
            let reason = format!(
                "it boots {} at its next restart, which the file does not ask for any more",
                begun.to
            );
            return UpgradeVerdict::Held(reason.into());
        }
        return UpgradeVerdict::Open;
    }
    let is_new = guest.release.as_ref() == Some(&begun.to);
    let is_old = guest.release.as_ref() == Some(&begun.from);
    let schematic = match &guest.schematic {
        Seen::Yes(is) => Some(*is == begun.schematic),
        Seen::No | Seen::Unknown(_) => None,
    };
    match (is_new, is_old, schematic) {
        // The same version with other extensions: only the schematic tells.
        (true, true, None) => UpgradeVerdict::Held(HoldReason::transient("which extensions it runs cannot be read")),
        // Whether the new system was ever installed is not known, so a restart of another cause may have come first: it is tried again.
        (true, true, Some(false)) | (false, true, _) if !begun.is_armed => UpgradeVerdict::Open,
        (true, true, Some(false)) => UpgradeVerdict::CameBack(begun.clone()),
        (false, true, _) => UpgradeVerdict::CameBack(begun.clone()),
        // Or another version altogether, which a person installed meanwhile.
        _ => UpgradeVerdict::Done,
    }
}

fn is_schematic(goal: &SystemGoal, id: &str) -> bool {
    goal.schematic.as_ref().is_none_or(|wanted| wanted.id == id)
}

fn came_back(name: &str, to: &Version) -> HoldReason {
    format!("it started {to}, and came back with the system that it had before; to try again: --retry-upgrade {name}").into()
}

fn record_as(ctx: Context<'_>, machine: &DesiredMachine, record: UpgradeRecord, why: &str, plan: &mut PlanBuilder) {
    let Some(vm) = ctx.owned.ours.get(machine.name()) else {
        return;
    };
    let Some(there) = &vm.mark else { return };
    let mark = Mark {
        upgrade: Some(record),
        versions: Some(machine.runs.clone()),
        lease: None,
        ..there.clone()
    };
    let mut steps = VmSteps { ctx, machine, plan };
    let tags = crate::vm_diff::desired_tags(machine);
    steps.write_mark(vm.vm_ref(), mark, tags).because(why).add();
}
