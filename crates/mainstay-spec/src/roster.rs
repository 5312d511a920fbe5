//! The machines that the pools ask for, each with its name, address, VMID and MAC and the place that decided it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use crate::draft::{Draft, Given, NamedFields};
use crate::identity::{default_mac, default_vmids};
use crate::keys::{self, pool};
use crate::source::Spanned;
use crate::spec::NamePattern;
use crate::value::{Mac, Range};

pub(crate) struct RosterEntry<'d> {
    pub pool: &'d NamedFields<'d>,
    pub ordinal: u32,
    pub name: String,
    /// `None`: reported already, or to be reported as missing for the whole pool.
    pub address: Option<Spanned<Ipv4Addr>>,
    pub vmid: Option<Spanned<u32>>,
    pub mac: Spanned<Mac>,
    pub own: Option<&'d NamedFields<'d>>,
}

/// The largest cluster that Kubernetes is made for. A larger one is reported by its number; its machines are not checked one by one.
pub(crate) const MACHINES_MAX: u32 = 5000;

/// In the order of the file. Empty pools and pools without a readable count have no machines.
pub(crate) fn roster<'d>(draft: &'d Draft<'d>) -> Vec<RosterEntry<'d>> {
    let own: BTreeMap<&str, &NamedFields<'_>> = draft.machines.iter().map(|machine| (machine.name, machine)).collect();
    // Without a readable name nothing is made, but addresses and VMIDs can still be checked.
    let cluster = draft.file.value(&keys::NAME).unwrap_or_else(|| "…".to_owned());
    let mut members = Vec::new();
    for pool in &draft.pools {
        let room = MACHINES_MAX - members.len() as u32;
        members.extend(pool_members(draft, &cluster, pool, &own, room));
    }
    members
}

/// How the machines of a pool are called. `None` only if the default pattern is not one.
pub(crate) fn names_of(draft: &Draft<'_>, pool: &NamedFields<'_>) -> Option<NamePattern> {
    pool.fields
        .value(&pool::NAMES)
        .or_else(|| draft.file.or_default(&keys::NAMES))
}

fn pool_members<'d>(
    draft: &Draft<'_>,
    cluster: &str,
    pool: &'d NamedFields<'d>,
    own: &BTreeMap<&str, &'d NamedFields<'d>>,
    room: u32,
) -> Vec<RosterEntry<'d>> {
    let Some(names) = names_of(draft, pool) else {
        return Vec::new();
    };
    let vmids = match pool.fields.get(&pool::VMIDS) {
        Given::Absent => Some(Spanned {
            value: Range::open(default_vmids(cluster, pool.name)),
            span: pool.at,
        }),
        given => given.is(),
    };
    let addresses = pool.fields.spanned(&pool::ADDRESSES);
    let count = pool.count().min(room);
    let member = |ordinal| {
        let name = names.name(cluster, pool.name, ordinal);
        let own = own.get(name.as_str()).copied();
        let ranged = |range: &Option<Spanned<Range>>| {
            let range = range.as_ref()?;
            Some(Spanned {
                value: range.value.nth(ordinal)?,
                span: range.span,
            })
        };
        RosterEntry {
            pool,
            ordinal,
            name,
            address: own.and_then(|own| own.fields.spanned(&pool::ADDRESS)).or_else(|| {
                ranged(&addresses).map(|number| Spanned {
                    value: Ipv4Addr::from(number.value),
                    span: number.span,
                })
            }),
            vmid: own.and_then(|own| own.fields.spanned(&pool::VMID)).or_else(|| ranged(&vmids)),
            mac: own.and_then(|own| own.fields.spanned(&pool::MAC)).unwrap_or_else(|| Spanned {
                value: default_mac(cluster, pool.name, ordinal),
                span: pool.at,
            }),
            own,
        }
    };
    (1..=count).map(member).collect()
}
