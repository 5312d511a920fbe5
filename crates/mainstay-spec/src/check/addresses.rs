//! The address of every machine: there is one, inside the network, and nobody else's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use super::count;
use super::network::{inside, is_host_address, machine_network, taken};
use crate::draft::{Draft, PoolDraft};
use crate::fault::Fault;
use crate::roster::Member;
use crate::source::{Span, Spanned};

pub(crate) fn check(draft: &Draft, roster: &[Member<'_>], faults: &mut Vec<Fault>) {
    for members in roster.chunk_by(|one, other| std::ptr::eq(one.pool, other.pool)) {
        enough(members[0].pool, members, faults);
    }
    outside(draft, roster, faults);
    fixed(draft, roster, faults);
    shared(roster, faults);
}

fn enough(pool: &PoolDraft, members: &[Member<'_>], faults: &mut Vec<Fault>) {
    let without: Vec<&Member<'_>> = members.iter().filter(|member| member.address.is_none()).collect();
    let unreported = without
        .iter()
        .filter(|member| member.own.is_none_or(|own| own.address.is_absent()))
        .count() as u64;
    let Some(first) = without.first().filter(|_| unreported > 0) else {
        return;
    };
    if pool.addresses.is_absent() {
        faults.push(
            Fault::error("address-missing", pool.at, format!("pool `{}` has no addresses", pool.name))
                .label(format!("{} without an address", count(unreported, "machine")))
                .why("machines have fixed addresses, so that certificates, DNS and firewalls stay true when one is rebuilt.")
                .help("add `addresses`, for example 10.0.0.11+ for as many as needed from there on."),
        );
    } else if let Some(range) = pool.addresses.is() {
        let machines = count(pool.count.value().copied().map_or(0, u64::from), "machine");
        let have = range
            .value
            .len()
            .map_or("too few addresses".to_owned(), |have| count(have, "address"));
        faults.push(
            Fault::error(
                "address-missing",
                range.span,
                format!("pool `{}` has {have} for {machines}", pool.name),
            )
            .label(format!("nothing left for `{}`", first.name))
            .why("ordinal 1 gets the start of the range, and each machine keeps its own.")
            .help("make the range longer, write `+` behind its start, or lower `count`."),
        );
    }
}

/// One fault per range or override, not per machine.
fn outside(draft: &Draft, roster: &[Member<'_>], faults: &mut Vec<Fault>) {
    let Some(cidr) = machine_network(draft) else { return };
    let mut blamed = BTreeSet::new();
    for member in roster {
        if let Some(address) = &member.address
            && !is_host_address(cidr, address.value)
            && blamed.insert(address.span)
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

/// Addresses of things that are there already.
fn fixed(draft: &Draft, roster: &[Member<'_>], faults: &mut Vec<Fault>) {
    let literal = |host: Option<&str>| host.and_then(|host| host.parse::<Ipv4Addr>().ok());
    let pve = draft
        .datacenter
        .endpoint
        .is()
        .and_then(|url| Some((literal(url.value.host_str())?, url.span)));
    let jump = draft
        .datacenter
        .jump
        .is()
        .and_then(|jump| Some((literal(Some(&jump.value.host))?, jump.span)));
    let mut others: Vec<(&str, Ipv4Addr, Span)> = Vec::new();
    others.extend(
        draft
            .network
            .gateway
            .is()
            .map(|given| ("the gateway", given.value, given.span)),
    );
    others.extend(draft.network.vip.is().map(|given| ("the VIP", given.value, given.span)));
    let loopback = draft.network.cidr.value().is_some_and(|cidr| cidr.network().is_loopback());
    others.extend(
        pve.filter(|_| !loopback)
            .map(|(address, span)| ("the PVE endpoint", address, span)),
    );
    others.extend(
        jump.filter(|(address, _)| Some(*address) != pve.map(|pve| pve.0) && !loopback)
            .map(|(address, span)| ("the jump host", address, span)),
    );
    for (by, address, span) in &others {
        if let Some(member) = roster
            .iter()
            .find(|member| member.address.as_ref().is_some_and(|own| own.value == *address))
            && let Some(own) = &member.address
        {
            faults.push(taken(own, &format!("`{}`", member.name), by, *span));
        }
    }
    if let Some(vip) = draft.network.vip.is()
        && let Some((by, _, span)) = others
            .iter()
            .find(|(by, address, _)| by.starts_with("the PVE") && *address == vip.value)
    {
        faults.push(taken(vip, "the VIP", by, *span));
    }
}

/// Two machines on one address: said once for each pair of places that ask for it.
fn shared(roster: &[Member<'_>], faults: &mut Vec<Fault>) {
    let mut first: BTreeMap<Ipv4Addr, &Member<'_>> = BTreeMap::new();
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
                Fault::error(
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
