//! VMIDs: enough of them, in bounds, and no two machines on one.

use std::collections::{BTreeMap, BTreeSet};

use super::count;
use crate::diagnostic::Diagnostic;
use crate::draft::{Draft, NamedFields};
use crate::keys::pool;
use crate::roster::RosterEntry;
use crate::source::{Span, Spanned};
use crate::value::VMIDS;

pub(crate) fn check(draft: &Draft<'_>, roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    for members in roster.chunk_by(|one, other| std::ptr::eq(one.pool, other.pool)) {
        enough(members[0].pool, members, faults);
    }
    let said = ranges(draft, faults);
    shared(roster, &said, faults);
}

fn enough(pool: &NamedFields<'_>, members: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    let Some(range) = pool.fields.spanned(&pool::VMIDS) else {
        return;
    };
    let length = range.value.len();
    if let Some(first) = members.iter().find(|member| member.vmid.is_none() && length.is_some()) {
        let machines = count(members.len() as u64, "machine");
        let start = range.value.parts().first().map_or(0, |part| part.first);
        faults.push(
            Diagnostic::error(
                "vmid-missing",
                range.span,
                format!(
                    "pool `{}` has {} for {machines}",
                    pool.name,
                    count(length.unwrap_or(0), "VMID")
                ),
            )
            .label(format!("nothing left for `{}`", first.name))
            .why("ordinal 1 gets the start of the range, and each machine keeps its own.")
            .help(format!("make the range longer, or write {start}+ for as many as needed.")),
        );
    } else if members
        .iter()
        .any(|member| member.vmid.as_ref().is_none_or(|vmid| !VMIDS.contains(&vmid.value)))
    {
        faults.push(
            Diagnostic::error(
                "vmid-bounds",
                range.span,
                format!("the VMIDs of pool `{}` run out of bounds", pool.name),
            )
            .label("ends above 999999999")
            .why("a VMID has at most nine digits.")
            .help("begin the range lower."),
        );
    }
}

/// Ranges with an end are the pool's own, also where it has not grown to yet. The pairs that were reported.
fn ranges(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) -> BTreeSet<(Span, Span)> {
    let mut said = BTreeSet::new();
    for (index, one) in draft.pools.iter().enumerate() {
        for other in &draft.pools[index + 1..] {
            let (Some(a), Some(b)) = (one.fields.spanned(&pool::VMIDS), other.fields.spanned(&pool::VMIDS)) else {
                continue;
            };
            let parts = a
                .value
                .parts()
                .iter()
                .flat_map(|x| b.value.parts().iter().map(move |y| (x, y)));
            let bounded = parts.filter_map(|(x, y)| Some((x.first.max(y.first), x.last?.min(y.last?))));
            if let Some((from, to)) = bounded.into_iter().find(|(from, to)| from <= to) {
                let (early, late) = if a.span <= b.span {
                    (a.span, b.span)
                } else {
                    (b.span, a.span)
                };
                said.insert((early, late));
                let which = if from == to {
                    format!("{from}")
                } else {
                    format!("{from} to {to}")
                };
                faults.push(
                    Diagnostic::error(
                        "vmid-overlap",
                        late,
                        format!("pools `{}` and `{}` both have VMID {which}", one.name, other.name),
                    )
                    .label(format!("overlaps the range on line {}", early.line))
                    .why("a VMID is one machine in the whole datacenter, and pools grow into their ranges.")
                    .help("give the pools ranges that do not touch."),
                );
            }
        }
    }
    said
}

fn shared(roster: &[RosterEntry<'_>], said: &BTreeSet<(Span, Span)>, faults: &mut Vec<Diagnostic>) {
    let mut first: BTreeMap<u32, &RosterEntry<'_>> = BTreeMap::new();
    let mut said = said.clone();
    for member in roster {
        let Some(Spanned { value, span }) = &member.vmid else {
            continue;
        };
        let Some(earlier) = first.get(value) else {
            first.insert(*value, member);
            continue;
        };
        let place = earlier.vmid.as_ref().map_or(*span, |vmid| vmid.span);
        let (early, late) = if *span >= place { (place, *span) } else { (*span, place) };
        if said.insert((early, late)) {
            faults.push(
                Diagnostic::error(
                    "vmid-shared",
                    late,
                    format!("`{}` and `{}` have the same VMID: {value}", earlier.name, member.name),
                )
                .label(format!("{value} is used on line {} too", early.line))
                .why("a VMID is one machine in the whole datacenter.")
                .help("give the pools `vmids` that leave room for each to grow, for example 2000-2999 and 3000-3999."),
            );
        }
    }
}
