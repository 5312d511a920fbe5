//! `network`: the network that the machines are in.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;

use super::words;
use crate::key::{Choice, Choices, Int, Items, Key, List, Section};
use crate::naming;
use crate::provisioning::Addressing;

pub(crate) static CIDR: Key<Ipv4Net> = Key::new("cidr", &words::CIDR, "The IPv4 network of the machines.")
    .required()
    .also(&["subnet", "network"]);
pub(crate) static GATEWAY: Key<Ipv4Addr> = Key::new("gateway", &words::IPV4, "Their way out.")
    .required()
    .also(&["gw", "router"]);
pub(crate) static BRIDGE: Key<String> =
    Key::new("bridge", &naming::BRIDGE, "Bridge or SDN vnet on the PVE hosts.").default("vmbr0");
pub(crate) static VLAN: Key<u32> = Key::new("vlan", &Int { min: 1, max: 4094 }, "VLAN tag on that bridge.")
    .default("none")
    .also(&["tag", "vlan_id"]);
pub(crate) static DNS: Key<Items<IpAddr>> = Key::new("dns", &List(&words::IP), "Name servers.")
    .default("[1.1.1.1, 8.8.8.8]")
    .also(&["nameservers", "dns_servers"]);
pub(crate) static VIP: Key<Ipv4Addr> = Key::new(
    "vip",
    &words::IPV4,
    "Address of the Kubernetes API, held by one control plane at a time. Needed above one control plane unless there is an `endpoint`.",
);
pub(crate) static PODS: Key<Ipv4Net> = Key::new("pods", &words::CIDR, "Network of the pods; each node takes a /24 of it.")
    .default("10.244.0.0/16, with RKE2 and k3s 10.42.0.0/16")
    .also(&["pod-cidr", "pod_cidr", "podSubnets"]);
pub(crate) static SERVICES: Key<Ipv4Net> = Key::new("services", &words::CIDR, "Network of the services.")
    .default("10.96.0.0/12, with RKE2 and k3s 10.43.0.0/16")
    .also(&["service-cidr", "service_cidr", "serviceSubnets"]);
pub(crate) static SEARCH: Key<Items<String>> = Key::new("search", &List(&naming::DOMAIN), "Search domains of the machines.")
    .default("[]")
    .later();
pub(crate) static ADDRESSING: Key<Addressing> = Key::new(
    "addressing",
    &Choices(&[
        Choice::now("static", Addressing::Static),
        Choice::later("dhcp", Addressing::Dhcp),
    ]),
    "How machines get their address.",
)
.default("static");
pub(crate) static HOSTNAMES: Key<Addressing> = Key::new(
    "hostnames",
    &Choices(&[
        Choice::now("static", Addressing::Static),
        Choice::later("dhcp", Addressing::Dhcp),
    ]),
    "How machines get their host name.",
)
.default("static");
pub(crate) static DHCP_RANGE: Key<(Ipv4Addr, Ipv4Addr)> = Key::new(
    "dhcp-range",
    &words::ADDRESS_SPAN,
    "Where leases are looked for with `addressing: dhcp`.",
)
.default("the whole network")
.later();

pub(crate) static SECTION: Section = Section {
    keys: &[
        &CIDR,
        &GATEWAY,
        &BRIDGE,
        &VLAN,
        &DNS,
        &SEARCH,
        &VIP,
        &PODS,
        &SERVICES,
        &ADDRESSING,
        &HOSTNAMES,
        &DHCP_RANGE,
    ],
};
