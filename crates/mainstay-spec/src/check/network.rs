//! The networks: that they exist, do not overlap, and hold gateway and VIP.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::diagnostic::Diagnostic;
use crate::draft::Draft;
use crate::keys::network::{CIDR, DNS, GATEWAY, PODS, SERVICES, VIP};
use crate::source::{Span, Spanned};

pub(crate) fn check(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    let network = &draft.network;
    if let Some(cidr) = network.spanned(&CIDR) {
        usable(draft, &cidr, faults);
    }
    if let Some(cidr) = machine_network(draft) {
        if let Some(gateway) = network.spanned(&GATEWAY) {
            inside(
                cidr,
                &gateway,
                "the gateway",
                "machines reach it directly, so it is one of their own network.",
                faults,
            );
        }
        if let Some(vip) = network.spanned(&VIP) {
            inside(
                cidr,
                &vip,
                "the VIP",
                "control planes announce it on their own network by ARP.",
                faults,
            );
        }
    }
    if let (Some(gateway), Some(vip)) = (network.spanned(&GATEWAY), network.spanned(&VIP))
        && gateway.value == vip.value
    {
        faults.push(taken(&vip, "the VIP", "the gateway", gateway.span));
    }
    overlaps(draft, faults);
    pod_prefix(draft, faults);
    resolvers(draft, faults);
}

/// The network of the machines, if it can have any.
pub(crate) fn machine_network(draft: &Draft<'_>) -> Option<Ipv4Net> {
    draft
        .network
        .value(&CIDR)
        .filter(|cidr| (8..=30).contains(&cidr.prefix_len()))
}

/// Whether an address is one that a machine can have.
pub(crate) fn is_host_address(cidr: Ipv4Net, address: Ipv4Addr) -> bool {
    cidr.contains(&address) && address != cidr.network() && address != cidr.broadcast()
}

/// Says that an address is not one that a machine of the network can have, unless it is.
pub(crate) fn inside(cidr: Ipv4Net, address: &Spanned<Ipv4Addr>, what: &str, why: &str, faults: &mut Vec<Diagnostic>) {
    let Spanned { value, span } = address;
    if is_host_address(cidr, *value) {
        return;
    }
    let (summary, label, why) = if *value == cidr.network() {
        (
            format!("{what} is the address of the network itself: {value}"),
            "no machine can have it".to_owned(),
            "the first address of a network names the network.",
        )
    } else if *value == cidr.broadcast() {
        (
            format!("{what} is the broadcast address: {value}"),
            "no machine can have it".to_owned(),
            "the last address of a network reaches all machines on it.",
        )
    } else {
        (
            format!("{what} is outside the network: {value}"),
            format!("not in {cidr}"),
            why,
        )
    };
    let (first, last) = hosts(cidr);
    faults.push(
        Diagnostic::error("address-outside", *span, summary)
            .label(label)
            .why(why)
            .help(format!("take an address from {first} to {last}, or correct `network.cidr`.")),
    );
}

fn hosts(cidr: Ipv4Net) -> (Ipv4Addr, Ipv4Addr) {
    (
        Ipv4Addr::from(u32::from(cidr.network()).saturating_add(1)),
        Ipv4Addr::from(u32::from(cidr.broadcast()).saturating_sub(1)),
    )
}

pub(crate) fn taken(address: &Spanned<Ipv4Addr>, what: &str, by: &str, first: Span) -> Diagnostic {
    Diagnostic::error(
        "address-taken",
        address.span,
        format!("{what} has the address of {by}: {}", address.value),
    )
    .label(format!("{by} is on line {}", first.line))
    .why("two machines that answer for one address make each other unreachable.")
    .help("give one of them another address.")
}

fn usable(draft: &Draft<'_>, cidr: &Spanned<Ipv4Net>, faults: &mut Vec<Diagnostic>) {
    let network = cidr.value.network();
    let fault = |summary: String, label: &str| Diagnostic::error("network", cidr.span, summary).label(label);
    if machine_network(draft).is_none() {
        faults.push(
            fault(
                format!("{} is no network for machines", cidr.value),
                if cidr.value.prefix_len() > 30 {
                    "too small"
                } else {
                    "too large"
                },
            )
            .why("it must hold a gateway and at least one machine, and must not swallow half of the internet.")
            .help("write a prefix from /8 to /30."),
        );
    } else if network.is_loopback() && !endpoint_is_loopback(draft) {
        faults.push(
            fault(format!("{} never leaves a machine", cidr.value), "a loopback network")
                .why("packets to 127.x.x.x stay inside the machine that sends them. Only the simulator answers there, and then so does its PVE.")
                .help("give the network of the bridge, for example 10.0.0.0/16."),
        );
    } else if network.is_link_local() || network.is_multicast() || network.octets()[0] == 0 || network.octets()[0] >= 240 {
        faults.push(
            fault(format!("{} is reserved", cidr.value), "not for machines")
                .why("link-local, multicast and reserved networks are not routed.")
                .help("give the network of the bridge, for example 10.0.0.0/16."),
        );
    }
}

fn endpoint_is_loopback(draft: &Draft<'_>) -> bool {
    // One that cannot be read was reported already.
    draft.pve_endpoint.clone().value().is_none_or(|url| match url.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    })
}

fn overlaps(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    let network = &draft.network;
    let pods = Part {
        name: "pods",
        net: draft.pods(),
        given: network.spanned(&PODS).map(|given| given.span),
    };
    let services = Part {
        name: "services",
        net: draft.services(),
        given: network.spanned(&SERVICES).map(|given| given.span),
    };
    if let Some(cidr) = network.spanned(&CIDR) {
        let machines = Part {
            name: "machines",
            net: cidr.value,
            given: Some(cidr.span),
        };
        faults.extend(
            [&pods, &services]
                .into_iter()
                .filter_map(|other| overlapping(draft, &machines, other)),
        );
    }
    // The one that is given is the one to change; of two given ones the later.
    let (one, other) = if services.given >= pods.given {
        (&pods, &services)
    } else {
        (&services, &pods)
    };
    faults.extend(overlapping(draft, one, other));
}

/// One of the networks of a cluster, and where it is given, if it is.
struct Part {
    name: &'static str,
    net: Ipv4Net,
    given: Option<Span>,
}

fn overlap(one: Ipv4Net, other: Ipv4Net) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

fn overlapping(draft: &Draft<'_>, one: &Part, other: &Part) -> Option<Diagnostic> {
    let at = other.given.or(one.given).filter(|_| overlap(one.net, other.net))?;
    let label = match other.given {
        Some(_) => "the same addresses twice".to_owned(),
        None => format!("overlaps the default for {}", other.name),
    };
    let example = free_network(draft, other.net.prefix_len()).map_or(String::new(), |free| format!(", for example {free}"));
    let summary = format!(
        "the network of the {} ({}) overlaps that of the {} ({})",
        one.name, one.net, other.name, other.net
    );
    Some(
        Diagnostic::error("network-overlap", at, summary)
            .label(label)
            .why("an address in both would be routed to one of them only, and the other could not be reached.")
            .help(format!("set `network.{}` to a network of its own{example}.", other.name)),
    )
}

/// A private network of this size, or a /16, that meets none of the cluster's.
fn free_network(draft: &Draft<'_>, prefix: u8) -> Option<Ipv4Net> {
    let prefix = prefix.max(16);
    let used: Vec<Ipv4Net> = draft
        .network
        .value(&CIDR)
        .into_iter()
        .chain([draft.pods(), draft.services()])
        .collect();
    let private = [
        Ipv4Net::new(Ipv4Addr::new(172, 16, 0, 0), 12),
        Ipv4Net::new(Ipv4Addr::new(10, 0, 0, 0), 8),
    ];
    let mut candidates = private
        .into_iter()
        .flatten()
        .filter(|net| net.prefix_len() <= prefix)
        .flat_map(|net| net.subnets(prefix).into_iter().flatten());
    candidates.find(|net| !used.iter().any(|used| overlap(*used, *net)))
}

fn pod_prefix(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    for (name, key, smallest) in [("pods", &PODS, 24), ("services", &SERVICES, 28)] {
        if let Some(net) = draft.network.spanned(key)
            && !(8..=smallest).contains(&net.value.prefix_len())
        {
            let why = if name == "pods" {
                "each node takes a /24 of it."
            } else {
                "every service takes an address of it, and Kubernetes takes the first ten."
            };
            faults.push(
                Diagnostic::error("network", net.span, format!("{} is no network for {name}", net.value))
                    .label(if net.value.prefix_len() > smallest {
                        "too small"
                    } else {
                        "too large"
                    })
                    .why(why)
                    .help(format!("write a prefix from /8 to /{smallest}.")),
            );
        }
    }
}

fn resolvers(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    let Some(dns) = draft.network.list(&DNS).is() else { return };
    if dns.value.is_empty() {
        faults.push(
            Diagnostic::error("dns", dns.span, "`dns` names no server")
                .label("empty")
                .why("machines must resolve names to fetch images and to find the time.")
                .help("name at least one server, or take the key out to get 1.1.1.1 and 8.8.8.8."),
        );
    }
    for server in dns
        .value
        .iter()
        .filter(|server| server.value.is_loopback() || server.value.is_unspecified())
    {
        if draft.network.value(&CIDR).is_some_and(|cidr| cidr.network().is_loopback()) {
            continue;
        }
        faults.push(
            Diagnostic::error("dns", server.span, format!("no machine can ask {} for names", server.value))
                .label("the machine itself")
                .why("the address is the machine's own, and no name server runs in it.")
                .help("write the address of a server in your network, for example the gateway."),
        );
    }
}
