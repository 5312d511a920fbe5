//! Talos: what its API says about a machine, and how its config changes.

pub(super) mod desired;
pub(super) mod images;
pub(super) mod road;

use talos_config::diff::{Change, Effect, diff, effect};
use talos_config::versions::Contract;

use super::{ConfigChange, EtcdExit};
use crate::context::Context;
use crate::desired::DesiredMachine;
use crate::etcd;
use crate::observed::{EtcdMember, Guest, GuestConfig, RunningGuest, Seen};
use crate::plan::HoldReason;
use crate::step::ApplyMode;

/// Differences that are named; the rest is counted.
const NAMED: usize = 3;

/// How the config of a running machine must change, if it must.
pub(super) fn config_change(machine: &DesiredMachine, guest: &RunningGuest) -> Result<Option<ConfigChange>, HoldReason> {
    let current = match &guest.config {
        Seen::Yes(config) => config,
        Seen::No => return Ok(None),
        Seen::Unknown(why) => return Err(HoldReason::transient(format!("its config could not be read: {why}"))),
    };
    let contract = Contract::of(&machine.runs.release);
    compare(current, &machine.config, contract).map_err(|why| format!("its config cannot be compared: {why}").into())
}

/// A member leaves by itself while it answers. One that does not answer cannot leave: its VM is deleted first, and then a healthy member
/// removes it. In the other order an interrupted removal would leave a machine whose data etcd rejects for good, so that it could not be
/// kept after all.
pub(super) fn etcd_exit(ctx: Context<'_>, member: &EtcdMember, rest: &[EtcdMember]) -> Result<EtcdExit, String> {
    let own_address = ctx.owned.ours.get(&member.name).and_then(|vm| vm.config.address);
    let answers = matches!(ctx.guest(&member.name), Some(Guest::Running(_)));
    match own_address.filter(|_| answers && member.healthy) {
        Some(_) => Ok(EtcdExit::Itself),
        None => etcd::healthy_peer(ctx, rest).map(EtcdExit::AfterDeletion),
    }
}

/// `Err` for a config that this version cannot read.
fn compare(current: &GuestConfig, desired: &GuestConfig, contract: Contract) -> Result<Option<ConfigChange>, String> {
    if current == desired {
        return Ok(None);
    }
    // What a parser says may quote the config, and the config holds secrets: only that it failed is told.
    let read = |config: &GuestConfig| talos_config::Config::parse(config.expose(), contract).ok();
    let (Some(before), Some(after)) = (read(current), read(desired)) else {
        return Err(format!("it is not a config of Talos {contract}"));
    };
    // A version is not changed by a config: what carries one stays as the node has it.
    let mut changes = diff(&before, &after, contract);
    changes.retain(|change| !images::carries_version(&change.path));
    let Some(effect) = effect(&changes) else { return Ok(None) };
    let kept = images::keep(&before, after, contract).ok_or("its images cannot be kept as they are")?;
    Ok(Some(ConfigChange {
        mode: apply_mode(effect),
        config: GuestConfig::new(kept.to_yaml().as_str()),
        text: differences(&changes),
    }))
}

/// A change that a node accepts without rebooting for it is staged, and the machine is restarted: half in force is not in force.
fn apply_mode(effect: Effect) -> ApplyMode {
    match effect {
        Effect::Live => ApplyMode::Live,
        Effect::NextBoot => ApplyMode::Staged,
        Effect::Reboot => ApplyMode::Reboot,
    }
}

/// Where the configs differ, without values.
fn differences(changes: &[Change]) -> String {
    let mut places: Vec<String> = Vec::new();
    for change in changes {
        let place = if change.path.is_empty() {
            change.document.kind.clone()
        } else {
            change.path.clone()
        };
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let more = places.len().saturating_sub(NAMED);
    places.truncate(NAMED);
    let more = if more == 0 {
        String::new()
    } else {
        format!(" and {more} more")
    };
    format!("config differs at {}{more}", places.join(", "))
}
