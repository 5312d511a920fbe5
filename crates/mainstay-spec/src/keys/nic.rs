//! `nics[]`: a network card besides the first.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use super::words;
use crate::key::{Flag, Inside, Int, Items, Key, List, Section};
use crate::naming;
use crate::value::{Mac, Range};

pub(crate) static BRIDGE: Key<String> = Key::new("bridge", &naming::BRIDGE, "Bridge or SDN vnet.").required();
pub(crate) static VLAN: Key<u32> = Key::new("vlan", &Int { min: 1, max: 4094 }, "VLAN tag.").default("none");
pub(crate) static MTU: Key<u32> =
    Key::new("mtu", &Int { min: 576, max: 65520 }, "MTU of the card.").default("that of the bridge");
pub(crate) static MAC: Key<Mac> =
    Key::new("mac", &words::MAC, "MAC address; only below `machines`.").default("made from cluster, pool, ordinal and card");
pub(crate) static CIDR: Key<Ipv4Net> = Key::new("cidr", &words::CIDR, "The network of its addresses.");
pub(crate) static ADDRESSES: Key<Range> =
    Key::new("addresses", &words::ADDRESSES, "Addresses by ordinal, from `cidr`.").default("none");
pub(crate) static DHCP: Key<bool> = Key::new("dhcp", &Flag, "The address comes from a DHCP server.").default("false");
pub(crate) static ROUTES: Key<Items<Inside>> = Key::new("routes", &List(&ROUTE), "Routes over this card.").default("[]");

pub(crate) static SECTION: Section = Section {
    keys: &[&BRIDGE, &VLAN, &MTU, &MAC, &CIDR, &ADDRESSES, &DHCP, &ROUTES],
};

pub(crate) static TO: Key<Ipv4Net> = Key::new("to", &words::CIDR, "The network to reach.").required();
pub(crate) static VIA: Key<Ipv4Addr> = Key::new("via", &words::IPV4, "The router.").required();

static ROUTE: Section = Section { keys: &[&TO, &VIA] };
