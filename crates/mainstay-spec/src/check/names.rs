//! Machine names and MAC addresses: valid, unique, and no exception for a machine that does not exist.

use std::collections::{BTreeMap, BTreeSet};

use crate::diagnostic::{Diagnostic, quote};
use crate::draft::{Draft, NamedFields};
use crate::keys::{self, pool};
use crate::naming::MACHINE_NAME;
use crate::roster::{RosterEntry, names_of};
use crate::source::Span;
use crate::type_check::closest;
use crate::value::Mac;

pub(crate) fn check(draft: &Draft<'_>, roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    if draft.file.value(&keys::NAME).is_some() {
        valid(draft, roster, faults);
        unique(draft, roster, faults);
        known(draft, roster, faults);
    }
    macs(roster, faults);
}

/// Where the name of a pool's machines is decided.
fn pattern_place(draft: &Draft<'_>, pool: &NamedFields<'_>) -> Span {
    pool.fields
        .spanned(&pool::NAMES)
        .or_else(|| draft.file.spanned(&keys::NAMES))
        .map_or(pool.at, |given| given.span)
}

fn valid(draft: &Draft<'_>, roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    let mut reported = BTreeSet::new();
    for member in roster.iter().filter(|member| !(MACHINE_NAME.fits)(&member.name)) {
        let at = pattern_place(draft, member.pool);
        if reported.insert(at) {
            let long = member.name.len() > 63;
            faults.push(
                Diagnostic::error("machine-name", at, format!("{} is not a machine name", quote(&member.name)))
                    .label(if long {
                        format!("{} characters", member.name.len())
                    } else {
                        "not a DNS name".to_owned()
                    })
                    .why(format!("{}.", MACHINE_NAME.rule))
                    .help("shorten the name of the cluster or pool, or change `names`."),
            );
        }
    }
}

fn unique(draft: &Draft<'_>, roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    let mut first: BTreeMap<&str, &RosterEntry<'_>> = BTreeMap::new();
    let mut reported = BTreeSet::new();
    for member in roster {
        let Some(earlier) = first.get(member.name.as_str()) else {
            first.insert(&member.name, member);
            continue;
        };
        if reported.insert((earlier.pool.name, member.pool.name)) {
            faults.push(
                Diagnostic::error(
                    "machine-name",
                    pattern_place(draft, member.pool),
                    format!("two machines would be called {}", quote(&member.name)),
                )
                .label(format!("in pools `{}` and `{}`", earlier.pool.name, member.pool.name))
                .why("the name is how Kubernetes, PVE and you tell machines apart.")
                .help("put {pool} into `names`, or give each pool `names` of its own."),
            );
        }
    }
}

fn known(draft: &Draft<'_>, roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    // A pool whose count cannot be read has machines that we cannot name.
    if draft.pools.iter().any(|pool| pool.fields.value(&pool::COUNT).is_none()) {
        return;
    }
    let names: BTreeSet<&str> = roster.iter().map(|member| member.name.as_str()).collect();
    for machine in draft.machines.iter().filter(|machine| !names.contains(machine.name)) {
        faults.push(beyond_count(draft, machine).unwrap_or_else(|| no_such_machine(machine, &names)));
    }
}

/// An exception for a machine that is gone since its pool was made smaller, and comes back when it grows.
fn beyond_count(draft: &Draft<'_>, machine: &NamedFields<'_>) -> Option<Diagnostic> {
    let cluster = draft.file.value(&keys::NAME)?;
    let pool = draft.pools.iter().find(|pool| {
        let ordinal = names_of(draft, pool).and_then(|names| names.ordinal(&cluster, pool.name, machine.name));
        ordinal.is_some_and(|ordinal| ordinal > pool.count())
    })?;
    let count = pool.count();
    Some(
        Diagnostic::warning(
            "machine-unused",
            machine.at,
            format!("{} is not among the {count} of pool `{}`", quote(machine.name), pool.name),
        )
        .label("has no effect at present")
        .why("the pool's `count` does not reach this machine.")
        .help("take it out, or leave it for the day the pool grows."),
    )
}

fn no_such_machine(machine: &NamedFields<'_>, names: &BTreeSet<&str>) -> Diagnostic {
    let help = match (closest(machine.name, names.iter().copied()), names.first()) {
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, Some(first)) => format!("machines are called like `{first}`."),
        (None, None) => "take it out: there are no machines yet.".to_owned(),
    };
    Diagnostic::error(
        "machine-unknown",
        machine.at,
        format!("there is no machine called {}", quote(machine.name)),
    )
    .label("in no pool")
    .why("`machines` makes exceptions for machines of the pools; it does not add any.")
    .help(help)
}

fn macs(roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    let mut first: BTreeMap<Mac, &RosterEntry<'_>> = BTreeMap::new();
    for member in roster {
        let Some(earlier) = first.get(&member.mac.value) else {
            first.insert(member.mac.value, member);
            continue;
        };
        let at = member.mac.span.max(earlier.mac.span);
        faults.push(
            Diagnostic::error(
                "mac-shared",
                at,
                format!(
                    "`{}` and `{}` have the same MAC address: {}",
                    earlier.name, member.name, member.mac.value
                ),
            )
            .label("used twice")
            .why("a switch sends frames for one MAC address to one port, so only one of the two would be reachable.")
            .help("give one of them another `mac`, or take it out: mainstay makes one from the name."),
        );
    }
}
