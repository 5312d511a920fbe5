//! Talos: what its API says about a machine, and how its config changes.

use talos_config::diff::{Change, Effect, diff, effect};
use talos_config::versions::Contract;

use super::{ConfigChange, GuestStatus};
use crate::context::Context;
use crate::desired::DesiredMachine;
use crate::etcd;
use crate::observed::{Config, Running, Seen, Talos};
use crate::plan::HoldReason;
use crate::step::Apply;

/// Differences that are named; the rest is counted.
const NAMED: usize = 3;

/// What is known about the guest of a VM that runs. `Err`: what is held, and why.
pub(super) fn status<'a>(ctx: Context<'a>, machine: &DesiredMachine) -> Result<GuestStatus<'a>, (&'static str, HoldReason)> {
    let (name, address) = (machine.name(), machine.address());
    let ours = ctx.uuid(name);
    let needs_config = |reason: String, joins_etcd: bool| Ok(GuestStatus::NeedsConfig { reason, joins_etcd });
    let held = match ctx.talos(name) {
        Some(Talos::Running(node)) if node.uuid == ours && etcd::was_removed(ctx, name) => {
            let vmid = ctx.owned.ours.get(name).map_or(machine.machine.vmid, |vm| vm.vm.vmid);
            let reason = format!(
                "its member was taken out of etcd, and its data can never join again; to have it made anew: qm stop {vmid} && qm destroy {vmid} --purge"
            );
            return Err(("join", HoldReason::transient(reason)));
        }
        Some(Talos::Running(node)) if node.uuid == ours => return Ok(GuestStatus::Running(node)),
        Some(Talos::Maintenance {
            uuid: Seen::Yes(uuid), ..
        }) if *uuid == ours => return needs_config("it waits for its config".to_owned(), true),
        // The step waits for its API; if it is configured already, nothing is sent.
        Some(Talos::Silent(why)) if !ctx.is_ready(name) => {
            return needs_config(format!("its Talos API does not answer: {why}"), false);
        }
        None if !ctx.is_ready(name) => return needs_config("its Talos API was not asked".to_owned(), false),
        Some(Talos::Silent(why)) => HoldReason::transient(format!("its node is well but its Talos API does not answer: {why}")),
        None => "its Talos API was not asked".to_owned().into(),
        Some(Talos::Running(_)) => format!("another machine of this cluster answers on {address}").into(),
        Some(Talos::Maintenance { .. }) => format!("who waits for a config on {address} could not be proved").into(),
        Some(Talos::Foreign(why)) => format!("who answers on {address} does not believe our secrets: {why}").into(),
    };
    Err(("configure", held))
}

/// How the config of a running machine must change, if it must.
pub(super) fn config_change(
    ctx: Context<'_>,
    machine: &DesiredMachine,
    guest: &Running,
) -> Result<Option<ConfigChange>, HoldReason> {
    let current = match &guest.config {
        Seen::Yes(config) => config,
        Seen::No => return Ok(None),
        Seen::Unknown(why) => return Err(HoldReason::transient(format!("its config could not be read: {why}"))),
    };
    let contract = Contract::of(&ctx.cluster.versions.talos);
    compare(current, &machine.config, contract).map_err(|why| format!("its config cannot be compared: {why}").into())
}

/// `Err` for a config that this version cannot read.
fn compare(current: &Config, desired: &Config, contract: Contract) -> Result<Option<ConfigChange>, String> {
    if current == desired {
        return Ok(None);
    }
    // What a parser says may quote the config, and the config holds secrets: only that it failed is told.
    let read = |config: &Config| talos_config::Config::parse(config.expose(), contract).ok();
    let (Some(before), Some(after)) = (read(current), read(desired)) else {
        return Err(format!("it is not a config of Talos {contract}"));
    };
    let changes = diff(&before, &after, contract);
    Ok(effect(&changes).map(|effect| ConfigChange {
        how: apply_mode(effect),
        text: differences(&changes),
    }))
}

/// A change that a node accepts without rebooting for it is staged, and the machine is restarted: half in force is not in force.
fn apply_mode(effect: Effect) -> Apply {
    match effect {
        Effect::Live => Apply::Live,
        Effect::NextBoot => Apply::Staged,
        Effect::Reboot => Apply::Reboot,
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
