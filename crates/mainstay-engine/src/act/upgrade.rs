//! Another system on a machine: recorded, installed, booted, and proved by what runs then.

use std::time::Duration;

use mainstay_plan::{BegunUpgrade, Mark, UpgradeOrder, UpgradeRecord, VmRef};
use pve_api::{Class, Description, qemu};
use tokio::time::Instant;

use super::location::VmLocation;
use super::tasks::journal_begin;
use super::vm;
use crate::clients::Clients;
use crate::failure::{Failure, FailureKind};
use crate::guest::{self, RunningSystem, StepContext, WrittenSystem, etcd};
use crate::pve_config::description;
use crate::wait::{self, WaitStatus};

/// From the restart until the machine runs again, the installation by an older release included.
const RETURNS: Duration = Duration::from_secs(15 * 60);
/// A restart that did not begin by then was not heard.
const RESTART_BEGINS: Duration = Duration::from_secs(60);
/// Attempts to write the mark when the config changes concurrently.
const ATTEMPTS: u32 = 3;

pub(super) async fn upgrade(clients: &Clients, ctx: StepContext<'_>, order: &UpgradeOrder) -> Result<(), Failure> {
    let (vm, guest) = (&order.vm, &order.guest);
    let before = guest::running_system(ctx, guest).await?;
    if is_new(order, &before) {
        return record(clients, vm, UpgradeRecord::Over, Some(&before)).await;
    }
    let known = read_mark(clients, vm).await?.1.upgrade;
    let is_this = |begun: &BegunUpgrade| begun.boot_id == before.boot_id && begun.to == order.to && begun.is_armed;
    let is_armed = matches!(&known, Some(UpgradeRecord::Begun(begun)) if is_this(begun));
    let is_before = |begun: &BegunUpgrade| begun.boot_id != before.boot_id && begun.to == order.to;
    let is_second = matches!(&known, Some(UpgradeRecord::Begun(begun)) if is_before(begun));
    let written = if is_armed {
        WrittenSystem::Armed
    } else {
        install(clients, ctx, order, &before).await?
    };
    if written == WrittenSystem::Armed {
        // Minutes may have passed since the plan looked at the members.
        etcd::check_restart(ctx, guest, order.check.as_ref()).await?;
        guest::hand_over_etcd(ctx, guest).await;
        if order.restarts_vm {
            vm::reboot(clients, ctx, vm, guest, order.check.as_ref()).await?;
        } else {
            guest::restart(ctx, guest).await?;
        }
    }
    let after = await_return(ctx, order, &before, written == WrittenSystem::Armed && !order.restarts_vm).await?;
    if is_new(order, &after) {
        return record(clients, vm, UpgradeRecord::Over, Some(&after)).await;
    }
    // Before 1.13 nothing tells whether the installer ended, so one restart into the old system may have another cause.
    if written == WrittenSystem::Restarting && !is_second {
        return Err(Failure::stale_plan(format!(
            "{} came back with {}",
            guest.machine, after.release
        )));
    }
    let back = UpgradeRecord::RolledBack {
        to: order.to.clone(),
        schematic: order.schematic.clone().unwrap_or_default(),
    };
    record(clients, vm, back, Some(&after)).await?;
    Err(Failure::new(
        FailureKind::Held,
        format!("{} started {}, and came back with {}", guest.machine, order.to, after.release),
    )
    .why("the new system did not boot, so the machine went back to the one before by itself")
    .help(format!(
        "look at its console while it tries again: mainstay up --retry-upgrade {}",
        guest.machine
    )))
}

/// Writes down what is about to happen, and makes the new system bootable. Nothing is bootable after a failure of the installer.
async fn install(
    clients: &Clients,
    ctx: StepContext<'_>,
    order: &UpgradeOrder,
    before: &RunningSystem,
) -> Result<WrittenSystem, Failure> {
    etcd::check_restart(ctx, &order.guest, order.check.as_ref()).await?;
    let begun = |is_armed| {
        UpgradeRecord::Begun(BegunUpgrade {
            from: before.release.clone(),
            to: order.to.clone(),
            schematic: order.schematic.clone().unwrap_or_default(),
            boot_id: before.boot_id.clone(),
            since: clients.env.wall.now(),
            is_armed,
        })
    };
    record(clients, &order.vm, begun(false), None).await?;
    match guest::write_system(ctx, &order.guest, &order.image).await {
        Ok(WrittenSystem::Armed) => {
            record(clients, &order.vm, begun(true), None).await?;
            Ok(WrittenSystem::Armed)
        }
        Ok(WrittenSystem::Restarting) => Ok(WrittenSystem::Restarting),
        Err(failure) if failure.kind == FailureKind::Unsettled => Err(failure),
        // It was refused, so nothing else is bootable.
        Err(failure) => {
            record(clients, &order.vm, UpgradeRecord::Over, None).await?;
            Err(failure)
        }
    }
}

/// What runs is what was to run.
fn is_new(order: &UpgradeOrder, system: &RunningSystem) -> bool {
    let has_schematic = match (&order.schematic, &system.schematic) {
        (Some(wanted), Some(is)) => wanted == is,
        _ => true,
    };
    system.release == order.to && has_schematic
}

/// Waits until the machine runs in another boot. `may_ask_again`: a restart that was not heard is asked for again.
async fn await_return(
    ctx: StepContext<'_>,
    order: &UpgradeOrder,
    before: &RunningSystem,
    may_ask_again: bool,
) -> Result<RunningSystem, Failure> {
    let machine = &order.guest.machine;
    let mut asked = Instant::now();
    let what = format!("{machine} did not come back from its upgrade");
    let returned = wait::until(
        ctx.jitter,
        ctx.progress,
        &what,
        RETURNS,
        async || match guest::running_system(ctx, &order.guest).await {
            Ok(system) if system.boot_id != before.boot_id && system.is_up => Ok(WaitStatus::Done(system)),
            Ok(system) if system.boot_id != before.boot_id => Ok(WaitStatus::Waiting(format!("it starts {}", system.release))),
            Ok(system) => {
                if may_ask_again && system.is_up && asked.elapsed() >= RESTART_BEGINS {
                    asked = Instant::now();
                    guest::restart(ctx, &order.guest).await?;
                }
                Ok(WaitStatus::Waiting("about to restart".into()))
            }
            Err(failure) if failure.kind == FailureKind::Conflict => Err(failure),
            Err(failure) => Ok(WaitStatus::Waiting(failure.why.unwrap_or(failure.what))),
        },
    )
    .await;
    returned.map_err(|failure| {
        if failure.kind != FailureKind::Unsettled {
            return failure;
        }
        let why = failure.why.unwrap_or_default();
        Failure::new(FailureKind::Held, failure.what)
            .why(why)
            .help(format!("look at its console: qm terminal {}", order.vm.vmid))
    })
}

/// Writes the record of an upgrade, and what runs where that was proved. Compare-and-set: a concurrent change is read first.
async fn record(clients: &Clients, vm: &VmRef, record: UpgradeRecord, proved: Option<&RunningSystem>) -> Result<(), Failure> {
    for _ in 0..ATTEMPTS {
        let ((location, config), mut mark) = read_mark(clients, vm).await?;
        let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
        mark.upgrade = Some(record.clone());
        if let (Some(system), Some(versions)) = (proved, mark.versions.as_mut()) {
            versions.release = system.release.clone();
        }
        let after = mark.write_into(before);
        if after == before {
            return Ok(());
        }
        let mut change = qemu::Change {
            digest: config.digest,
            ..qemu::Change::default()
        };
        change.set.description = Some(description(&after)?);
        journal_begin(clients, "guest.upgrade", &mark.machine);
        match clients.pve.call(qemu::set(&location.host, location.vmid, &change)).await {
            Err(error) if error.class() == Some(&Class::Changed) => {}
            written => return Ok(written.map(drop)?),
        }
    }
    Err(Failure::stale_plan(format!(
        "the mark of {vm} changes too often to be written"
    )))
}

async fn read_mark(clients: &Clients, vm: &VmRef) -> Result<((VmLocation, pve_api::VmConfig), Mark), Failure> {
    let (location, config) = VmLocation::config(clients, vm).await?;
    let mark = config.description.as_ref().and_then(|text| Mark::parse(text.as_str()));
    let mark = mark.ok_or_else(|| Failure::stale_plan(format!("{vm} lost its mark")))?;
    Ok(((location, config), mark))
}
