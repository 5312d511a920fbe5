//! Machine configs compared: what differs, and what that costs a running node.

use talos_config::diff::{Change, Effect, diff, effect};
use talos_config::versions::Contract;

use crate::cluster::ConfigChange;
use crate::observed::Config;
use crate::step::Apply;

/// Places that are named; the rest is counted.
const NAMED: usize = 3;

/// How a running config must change, if it must. `Err` for one that this version cannot read.
pub(crate) fn compare(current: &Config, wanted: &Config, contract: Contract) -> Result<Option<ConfigChange>, String> {
    if current == wanted {
        return Ok(None);
    }
    // What a parser says may quote the config, and the config holds secrets: only that it failed is told.
    let read = |config: &Config| talos_config::Config::parse(config.expose(), contract).ok();
    let (Some(before), Some(after)) = (read(current), read(wanted)) else {
        return Err(format!("it is not a config of Talos {contract}"));
    };
    let changes = diff(&before, &after, contract);
    Ok(effect(&changes).map(|effect| ConfigChange {
        how: how(effect),
        text: places(&changes),
    }))
}

/// A change that a node accepts without rebooting for it is staged, and the machine is restarted: half in force is not in force.
fn how(effect: Effect) -> Apply {
    match effect {
        Effect::Live => Apply::Live,
        Effect::NextBoot => Apply::Staged,
        Effect::Reboot => Apply::Reboot,
    }
}

/// Where the configs differ. Values stay out: some are secret.
fn places(changes: &[Change]) -> String {
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
