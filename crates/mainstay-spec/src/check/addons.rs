//! Add-ons, charts, the addresses of services, and Tailscale: what belongs together.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::network::machine_network;
use crate::diagnostic::Diagnostic;
use crate::draft::Draft;
use crate::keys::{self, addons, network};
use crate::roster::RosterEntry;
use crate::source::{Span, Spanned};
use crate::spec::{Cni, Distro};

pub(crate) fn check(draft: &Draft<'_>, roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    catalogue(draft, faults);
    charts(draft, faults);
    loadbalancer(draft, roster, faults);
}

/// Add-ons that need a certain distribution or pod network.
fn catalogue(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    let fields = draft.file.section(&keys::ADDONS);
    let distro = draft.distro();
    for (addon, key) in &addons::CATALOGUE {
        let inside = fields.section(key);
        let Some(at) = inside.at else { continue };
        let name = addon.as_str();
        if name == "talos-ccm" && distro != Distro::Talos {
            faults.push(
                Diagnostic::error("addon", at, format!("`{name}` needs Talos"))
                    .label(format!("not with {distro}"))
                    .why("it reads the Talos API of each machine.")
                    .help("take it out, or use `proxmox-ccm`."),
            );
        }
        if name == "cilium" && draft.file.value(&keys::CNI) != Some(Cni::Cilium) {
            faults.push(
                Diagnostic::error("addon", at, "`addons.cilium` needs `cni: cilium`")
                    .label("another pod network is installed")
                    .why("a cluster has one pod network; two would configure the same interfaces.")
                    .help("set `cni: cilium` at the top of the file, or take the add-on out."),
            );
        }
        if let Some(version) = inside
            .spanned(&addons::VERSION)
            .filter(|_| name == "cilium" && distro == Distro::Rke2)
        {
            faults.push(
                Diagnostic::error("addon", version.span, "the version of Cilium comes with RKE2")
                    .label("cannot be chosen")
                    .why("RKE2 packages Cilium, and each release of RKE2 has one version of it.")
                    .help("take it out; `rke2.version` decides."),
            );
        }
    }
}

fn charts(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    let mut seen = BTreeSet::new();
    for fields in draft.file.sections(&keys::CHARTS).value().unwrap_or_default() {
        let namespace = fields.or_default(&addons::CHART_NAMESPACE).unwrap_or_default();
        if let Some(name) = fields.spanned(&addons::CHART_NAME)
            && !seen.insert((namespace.clone(), name.value.clone()))
        {
            faults.push(
                Diagnostic::error(
                    "chart",
                    name.span,
                    format!("two charts are called `{}` in namespace `{namespace}`", name.value),
                )
                .label("again")
                .why("Helm keeps one release of a name in each namespace.")
                .help("give one of them another `name` or `namespace`."),
            );
        }
        let Some(chart) = fields.spanned(&addons::CHART_CHART) else {
            continue;
        };
        let oci = chart.value.starts_with("oci://");
        if oci == fields.is_absent(&addons::CHART_REPO) {
            continue;
        }
        let (summary, help) = if oci {
            (
                "`oci://` and `repo` exclude each other",
                "take `repo` out, or write the chart's name alone.",
            )
        } else {
            (
                "the chart's repository is missing",
                "add `repo`, or write the chart as oci://registry/path.",
            )
        };
        faults.push(
            Diagnostic::error("chart", chart.span, summary)
                .label("one source is expected")
                .why("a chart comes from a registry (`oci://…`) or from a repository with an index.")
                .help(help),
        );
    }
}

/// Addresses of services are inside the network, and no machine has one of them.
fn loadbalancer(draft: &Draft<'_>, roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    let fields = draft.file.section(&keys::LOADBALANCER);
    let Some(pool) = fields.spanned(&addons::BALANCER_POOL) else {
        return;
    };
    let kube_vip = draft.file.section(&keys::ADDONS).section(addons::kube_vip()).at;
    if draft.file.value(&keys::CNI) != Some(Cni::Cilium) && kube_vip.is_none() {
        faults.push(
            Diagnostic::error("loadbalancer", pool.span, "nothing announces the addresses of `loadbalancer`")
                .label("no Cilium, no kube-vip")
                .why("addresses of services are announced by Cilium or by the add-on kube-vip.")
                .help("set `cni: cilium`, or add `addons.kube-vip`."),
        );
    }
    let (first, last) = pool.value;
    if let Some(cidr) = machine_network(draft).filter(|cidr| !(cidr.contains(&first) && cidr.contains(&last))) {
        faults.push(
            Diagnostic::error("loadbalancer", pool.span, format!("{first}-{last} is outside the network"))
                .label(format!("not in {cidr}"))
                .why("the addresses are announced by ARP, in the network of the machines.")
                .help(format!("take addresses of {cidr} that no DHCP server gives away.")),
        );
    }
    let named = [("the gateway", &network::GATEWAY), ("the VIP", &network::VIP)];
    let fixed = named
        .into_iter()
        .filter_map(|(name, key)| Some((name.to_owned(), draft.network.spanned(key)?)));
    let machines = roster
        .iter()
        .filter_map(|member| Some((format!("`{}`", member.name), member.address.clone()?)));
    let inside = |(_, address): &(String, Spanned<Ipv4Addr>)| (first..=last).contains(&address.value);
    if let Some((name, address)) = fixed.chain(machines).find(inside) {
        faults.push(overlap(pool.span, &name, &address));
    }
}

fn overlap(at: Span, name: &str, address: &Spanned<Ipv4Addr>) -> Diagnostic {
    Diagnostic::error(
        "loadbalancer",
        at,
        format!("the addresses of services contain that of {name}: {}", address.value),
    )
    .label(format!("{name} is on line {}", address.span.line))
    .why("two machines that answer for one address make each other unreachable.")
    .help("choose addresses that no machine of the file has, leaving room for the pools to grow.")
}
