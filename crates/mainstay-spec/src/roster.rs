//! The machines that the pools ask for, each with its name, address, VMID and MAC and the place that decided it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use crate::draft::{Draft, MachineDraft, PoolDraft};
use crate::identity::{default_mac, default_vmids};
use crate::source::Spanned;
use crate::spec::NamePattern;
use crate::value::{Mac, Range};

pub(crate) struct Member<'d> {
    pub pool: &'d PoolDraft,
    pub ordinal: u32,
    pub name: String,
    /// `None`: reported already, or to be reported as missing for the whole pool.
    pub address: Option<Spanned<Ipv4Addr>>,
    pub vmid: Option<Spanned<u32>>,
    pub mac: Spanned<Mac>,
    pub own: Option<&'d MachineDraft>,
}

/// What Kubernetes is made for. More are reported by their number, and nobody looks at them one by one.
pub(crate) const MACHINES_MAX: u32 = 5000;

/// In the order of the file. Empty pools and pools without a readable count have no members.
pub(crate) fn roster(draft: &Draft) -> Vec<Member<'_>> {
    let own: BTreeMap<&str, &MachineDraft> = draft
        .machines
        .iter()
        .map(|machine| (machine.name.as_str(), machine))
        .collect();
    // Without a readable name nothing is made, but addresses and VMIDs can still be checked.
    let cluster = draft.name.value().map_or("…", String::as_str);
    let mut members = Vec::new();
    for pool in &draft.pools {
        let room = MACHINES_MAX - members.len() as u32;
        members.extend(pool_members(draft, cluster, pool, &own, room));
    }
    members
}

/// How the machines of a pool are called.
pub(crate) fn names_of(draft: &Draft, pool: &PoolDraft) -> NamePattern {
    let given = pool.names.value().or(draft.names.value()).cloned();
    given.unwrap_or_else(|| NamePattern("{cluster}-{pool}-{n}".to_owned()))
}

fn pool_members<'d>(
    draft: &'d Draft,
    cluster: &str,
    pool: &'d PoolDraft,
    own: &BTreeMap<&str, &'d MachineDraft>,
    room: u32,
) -> Vec<Member<'d>> {
    let names = names_of(draft, pool);
    let vmids = match &pool.vmids {
        crate::draft::Given::Absent => Some(Spanned {
            value: Range::open(default_vmids(cluster, &pool.name)),
            span: pool.at,
        }),
        given => given.is().cloned(),
    };
    let count = pool.count.value().copied().unwrap_or(0).min(room);
    let member = |ordinal| {
        let name = names.name(cluster, &pool.name, ordinal);
        let own = own.get(name.as_str()).copied();
        let ranged = |range: Option<&Spanned<Range>>| {
            let range = range?;
            Some(Spanned {
                value: range.value.nth(ordinal)?,
                span: range.span,
            })
        };
        Member {
            pool,
            ordinal,
            name,
            address: own.and_then(|own| own.address.is().cloned()).or_else(|| {
                ranged(pool.addresses.is()).map(|number| Spanned {
                    value: Ipv4Addr::from(number.value),
                    span: number.span,
                })
            }),
            vmid: own.and_then(|own| own.vmid.is().cloned()).or_else(|| ranged(vmids.as_ref())),
            mac: own.and_then(|own| own.mac.is().cloned()).unwrap_or_else(|| Spanned {
                value: default_mac(cluster, &pool.name, ordinal),
                span: pool.at,
            }),
            own,
        }
    };
    (1..=count).map(member).collect()
}
