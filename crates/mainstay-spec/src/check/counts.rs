//! How many machines, and how many of them hold etcd.

use super::count;
use crate::diagnostic::Diagnostic;
use crate::draft::{Draft, NamedFields};
use crate::keys::{self, network, pool};
use crate::roster::{MACHINES_MAX, RosterEntry};
use crate::source::Span;
use crate::spec::Role;

pub(crate) fn check(draft: &Draft<'_>, roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    too_many(draft, faults);
    let pools: Vec<&NamedFields<'_>> = draft.pools.iter().filter(|pool| pool.role() == Role::ControlPlane).collect();
    if pools.is_empty() {
        if !draft.pools.is_empty() {
            faults.push(no_control_plane(draft));
        }
        return;
    }
    if pools.iter().any(|pool| pool.fields.value(&pool::COUNT).is_none()) {
        return;
    }
    let total = pools
        .iter()
        .filter_map(|pool| pool.fields.value(&pool::COUNT))
        .fold(0u32, u32::saturating_add);
    if ![1, 3, 5].contains(&total) {
        faults.push(even(&pools, total));
    }
    if total > 1 && draft.network.is_absent(&network::VIP) && draft.file.is_absent(&keys::ENDPOINT) {
        faults.push(no_endpoint(&pools, total));
    }
    pods_for_all(draft, roster, faults);
}

fn too_many(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    let counts: Vec<_> = draft
        .pools
        .iter()
        .filter_map(|pool| pool.fields.spanned(&pool::COUNT))
        .collect();
    let total: u64 = counts.iter().map(|count| u64::from(count.value)).sum();
    if let Some(last) = counts.last().filter(|_| total > u64::from(MACHINES_MAX)) {
        faults.push(
            Diagnostic::error(
                "too-many-machines",
                last.span,
                format!("{total} machines are more than one cluster carries"),
            )
            .label("the last of them")
            .why(format!("Kubernetes is made for up to {MACHINES_MAX} nodes."))
            .help("make several clusters of it, each with a file of its own."),
        );
    }
}

fn no_control_plane(draft: &Draft<'_>) -> Diagnostic {
    let at = draft.pools.first().map_or(draft.start, |pool| pool.at);
    Diagnostic::error("control-plane-count", at, "no pool has control planes")
        .label("a pool of workers")
        .why("without a control plane there is no Kubernetes API that the workers could join.")
        .help("add a pool called `control-plane`, or give one of the pools `role: control-plane`.")
}

fn even(pools: &[&NamedFields<'_>], total: u32) -> Diagnostic {
    let at = pools
        .last()
        .and_then(|pool| pool.fields.spanned(&pool::COUNT))
        .map_or(Span::default(), |given| given.span);
    let summary = if pools.len() == 1 {
        format!("control-plane count must be 1, 3 or 5, not {total}")
    } else {
        format!("the control-plane pools must have 1, 3 or 5 machines together, not {total}")
    };
    let (label, why, help) = match total {
        0 => (
            "no control plane at all",
            "without a control plane there is no Kubernetes API that the workers could join.",
            "write 1 for a lab, or 3 to survive the loss of one machine.",
        ),
        2 => (
            "two members tolerate no failure, exactly like one",
            "etcd needs a majority. With two members the loss of either stops the cluster, so two is worse than one.",
            "write 1 for a lab, or 3 to survive the loss of one machine.",
        ),
        4 => (
            "four members survive one loss, exactly like three",
            "etcd needs a majority. Four members stop when two are lost, as three do, and have one more to lose.",
            "write 3 to survive the loss of one machine, or 5 to survive two.",
        ),
        _ => (
            "more than five members make etcd slower, not safer",
            "every write waits for a majority of the members. Five survive the loss of two machines.",
            "write 5, and put everything else into a pool of workers.",
        ),
    };
    Diagnostic::error("control-plane-count", at, summary)
        .label(label)
        .why(why)
        .help(help)
}

fn no_endpoint(pools: &[&NamedFields<'_>], total: u32) -> Diagnostic {
    let at = pools
        .iter()
        .filter_map(|pool| pool.fields.spanned(&pool::COUNT))
        .map(|given| given.span)
        .max()
        .unwrap_or_default();
    Diagnostic::error(
        "endpoint-missing",
        at,
        format!("{total} control planes need a VIP or an `endpoint`"),
    )
    .label("no address belongs to all of them")
    .why("nodes and kubeconfigs need one address for the Kubernetes API that outlives each single control plane.")
    .help("add `network.vip` with a free address of the network, or `endpoint` with a load balancer or name of your own.")
}

/// Every node takes a /24 of the pod network; a node without one never becomes Ready.
fn pods_for_all(draft: &Draft<'_>, roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    let pods = draft.pods();
    let room = 1u64 << (24u8.saturating_sub(pods.prefix_len()));
    let machines = roster.len() as u64;
    if pods.prefix_len() > 24 || machines <= room {
        return;
    }
    let largest = draft
        .pools
        .iter()
        .filter_map(|pool| pool.fields.spanned(&pool::COUNT))
        .max_by_key(|given| given.value);
    let at = draft
        .network
        .spanned(&network::PODS)
        .map(|given| given.span)
        .or(largest.map(|given| given.span))
        .unwrap_or(draft.start);
    let prefix = (8..=pods.prefix_len())
        .rev()
        .find(|prefix| 1u64 << (24 - prefix) >= machines)
        .unwrap_or(8);
    faults.push(
        Diagnostic::error(
            "pod-network-small",
            at,
            format!("the pod network {pods} has room for {}, not {machines}", count(room, "node")),
        )
        .label(format!("{machines} machines in all"))
        .why("each node takes a /24 of the pod network; a node that finds none left never becomes ready.")
        .help(format!(
            "give `network.pods` a /{prefix} or larger, for example 10.128.0.0/{prefix}."
        )),
    );
}
