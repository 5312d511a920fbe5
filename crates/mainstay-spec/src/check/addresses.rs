//! The address of every machine: it exists, is inside the network, and is used only once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use super::count;
use super::network::{inside, is_host_address, machine_network, taken};
use crate::diagnostic::Diagnostic;
use crate::draft::{Draft, NamedFields};
use crate::keys::{datacenter, network, pool};
use crate::roster::RosterEntry;
use crate::source::{Span, Spanned};

pub(crate) fn check(draft: &Draft<'_>, roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    for members in roster.chunk_by(|one, other| std::ptr::eq(one.pool, other.pool)) {
        enough(members[0].pool, members, faults);
    }
    outside(draft, roster, faults);
    fixed(draft, roster, faults);
    shared(roster, faults);
}

fn enough(pool: &NamedFields<'_>, members: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    let without: Vec<&RosterEntry<'_>> = members.iter().filter(|member| member.address.is_none()).collect();
    let unreported = without
        .iter()
        .filter(|member| member.own.is_none_or(|own| own.fields.is_absent(&pool::ADDRESS)))
        .count() as u64;
    let Some(first) = without.first().filter(|_| unreported > 0) else {
        return;
    };
    if pool.fields.is_absent(&pool::ADDRESSES) {
        faults.push(
            Diagnostic::error("address-missing", pool.at, format!("pool `{}` has no addresses", pool.name))
                .label(format!("{} without an address", count(unreported, "machine")))
                .why("machines have fixed addresses, so that certificates, DNS and firewalls stay true when one is rebuilt.")
                .help("add `addresses`, for example 10.0.0.11+ for as many as needed from there on."),
        );
    } else if let Some(range) = pool.fields.spanned(&pool::ADDRESSES) {
        let machines = count(u64::from(pool.count()), "machine");
        let have = range
            .value
            .len()
            .map_or("too few addresses".to_owned(), |have| count(have, "address"));
        faults.push(
            Diagnostic::error(
                "address-missing",
                range.span,
                format!("pool `{}` has {have} for {machines}", pool.name),
            )
            .label(format!("nothing left for `{}`", first.name))
            .why("ordinal 1 gets the start of the range, and each machine keeps its own.")
            .help("make the range longer, write `+` after its start, or lower `count`."),
        );
    }
}

/// One fault per range or override, not per machine.
fn outside(draft: &Draft<'_>, roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    let Some(cidr) = machine_network(draft) else { return };
    let mut reported = BTreeSet::new();
    for member in roster {
        if let Some(address) = &member.address
            && !is_host_address(cidr, address.value)
            && reported.insert(address.span)
        {
            let what = format!("the address of `{}`", member.name);
            inside(
                cidr,
                address,
                &what,
                "machines have one network card, in this network.",
                faults,
            );
        }
    }
}

/// Something that has an address already.
struct Neighbour {
    name: &'static str,
    address: Spanned<Ipv4Addr>,
}

/// The gateway and the VIP, and the PVE and jump hosts where they are given by address.
fn neighbours(draft: &Draft<'_>) -> Vec<Neighbour> {
    let host = |host: &str, span: Span| host.parse().ok().map(|value| Spanned { value, span });
    // On loopback the simulator's PVE shares the network with its guests, each on a port of its own.
    let apart = draft
        .network
        .value(&network::CIDR)
        .is_none_or(|cidr| !cidr.network().is_loopback());
    let pve = draft
        .pve_endpoint
        .clone()
        .is()
        .filter(|_| apart)
        .and_then(|url| host(url.value.host_str()?, url.span));
    let jump = draft
        .datacenter
        .spanned(&datacenter::JUMP)
        .filter(|_| apart)
        .and_then(|jump| host(&jump.value.host, jump.span));
    let jump = jump.filter(|jump| pve.as_ref().is_none_or(|pve| pve.value != jump.value));
    let named = [
        ("the gateway", draft.network.spanned(&network::GATEWAY)),
        ("the VIP", draft.network.spanned(&network::VIP)),
        ("the PVE endpoint", pve),
        ("the jump host", jump),
    ];
    named
        .into_iter()
        .filter_map(|(name, address)| Some(Neighbour { name, address: address? }))
        .collect()
}

fn fixed(draft: &Draft<'_>, roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    let first: BTreeMap<Ipv4Addr, &RosterEntry<'_>> = roster
        .iter()
        .rev()
        .filter_map(|member| Some((member.address.as_ref()?.value, member)))
        .collect();
    for Neighbour { name, address } in neighbours(draft) {
        if let Some(member) = first.get(&address.value)
            && let Some(own) = &member.address
        {
            faults.push(taken(own, &format!("`{}`", member.name), name, address.span));
        }
        if let Some(vip) = draft.network.spanned(&network::VIP)
            && vip.value == address.value
            && !["the VIP", "the gateway"].contains(&name)
        {
            faults.push(taken(&vip, "the VIP", name, address.span));
        }
    }
}

/// Two machines on one address: said once for each pair of places that ask for it.
fn shared(roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    let mut first: BTreeMap<Ipv4Addr, &RosterEntry<'_>> = BTreeMap::new();
    let mut said = BTreeSet::new();
    for member in roster {
        let Some(Spanned { value, span }) = &member.address else {
            continue;
        };
        let Some(earlier) = first.get(value) else {
            first.insert(*value, member);
            continue;
        };
        let place = earlier.address.as_ref().map_or(*span, |address| address.span);
        let (late, early) = if *span >= place { (*span, place) } else { (place, *span) };
        if said.insert((early, late)) {
            let (one, other) = (&earlier.name, &member.name);
            faults.push(
                Diagnostic::error(
                    "address-shared",
                    late,
                    format!("`{one}` and `{other}` have the same address: {value}"),
                )
                .label(format!("{value} is used on line {} too", early.line))
                .why("two machines that answer for one address make each other unreachable.")
                .help("move one of the ranges, leaving room for the pool to grow."),
            );
        }
    }
}
