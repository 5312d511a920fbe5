//! `machine.network.interfaces`.

use std::collections::BTreeMap;

use super::Look;
use crate::scalars;
use crate::yaml::Node;

const EXCLUSIVE: &str = "config sections are mutually exclusive";

pub fn check(network: &Node, warnings: &mut Vec<String>, errors: &mut Vec<String>) {
    let devices = network.items("interfaces");
    let members = members(devices, errors);
    for device in devices {
        if device.is_null() {
            errors.push("empty device".to_owned());
        } else if device.flag("ignore") != Some(true) {
            check_identity(device, errors);
            check_addresses(device, &members, warnings, errors);
            check_routes(device, errors);
        }
    }
}

/// Which cards belong to which bond or bridge.
fn members<'a>(devices: &'a [Node], errors: &mut Vec<String>) -> BTreeMap<&'a str, &'a str> {
    let mut members = BTreeMap::new();
    for device in devices {
        let name = device.text("interface");
        let (bond, bridge) = (device.at_path("bond"), device.at_path("bridge"));
        if bond.is_some() && bridge.is_some() {
            errors.push(format!(
                "interface has both bridge and bond sections set {name:?}: {EXCLUSIVE}"
            ));
        }
        if bond.is_some_and(|bond| !bond.items("interfaces").is_empty() && !bond.items("deviceSelectors").is_empty()) {
            errors.push(format!(
                "interface {name:?} has both interfaces and selectors set: {EXCLUSIVE}"
            ));
        }
        for member in bridge.or(bond).map(|link| link.texts("interfaces")).unwrap_or_default() {
            if let Some(other) = members.insert(member, name)
                && other != name
            {
                errors.push(format!(
                    "interface {member:?} is declared as part of two separate links: {other:?} and {name:?}"
                ));
            }
        }
    }
    members
}

fn check_identity(device: &Node, errors: &mut Vec<String>) {
    let both = "[networking.os.device.interface], [networking.os.device.deviceSelector]";
    let selector = device.at_path("deviceSelector");
    match (device.text("interface").is_empty(), selector.is_some()) {
        (true, false) => errors.push(format!("{both}: required either config section to be set")),
        (false, true) => errors.push(format!("{both}: {EXCLUSIVE}")),
        (true, true) | (false, false) => {}
    }
    if selector.is_some_and(|selector| {
        selector
            .as_map()
            .is_some_and(|fields| fields.iter().all(|(key, value)| key != "physical" && value.is_zero()))
    }) {
        errors.push("[networking.os.device.deviceSelector]: config section should contain at least one field".to_owned());
    }
    if let Some(bond) = device.at_path("bond") {
        check_bond(bond, errors);
    }
    if let Some(wireguard) = device.at_path("wireguard") {
        check_wireguard(wireguard, errors);
    }
    check_vlans(device, errors);
}

const BOND_MODES: [&str; 7] = [
    "balance-rr",
    "active-backup",
    "balance-xor",
    "broadcast",
    "802.3ad",
    "balance-tlb",
    "balance-alb",
];

/// A key, what its value is called, and which values there are.
type WordField = (&'static str, &'static str, &'static [&'static str]);

const BOND_WORDS: [WordField; 7] = [
    (
        "xmitHashPolicy",
        "xmit hash policy",
        &["layer2", "layer3+4", "layer2+3", "encap2+3", "encap3+4"],
    ),
    ("lacpRate", "lacp rate", &["slow", "fast"]),
    (
        "arpValidate",
        "arp_validate mode",
        &["none", "active", "backup", "all", "filter", "filter-active", "filter-backup"],
    ),
    ("arpAllTargets", "arp_all_targets mode", &["any", "all"]),
    ("primaryReselect", "primary_reselect mode", &["always", "better", "failure"]),
    ("failOverMac", "fail_over_mac value", &["none", "active", "follow"]),
    ("adSelect", "ad_select mode", &["stable", "bandwidth", "count"]),
];

fn check_bond(bond: &Node, errors: &mut Vec<String>) {
    let mode = bond.text("mode");
    let mode = if mode.is_empty() { "balance-rr" } else { mode };
    if !BOND_MODES.contains(&mode) {
        errors.push(format!("invalid bond type {mode}"));
    }
    for (field, what, words) in BOND_WORDS {
        let word = bond.text(field);
        if !word.is_empty() && !words.contains(&word) {
            errors.push(format!("invalid {what} {word}"));
        }
    }
    check_bond_delays(bond, errors);
    if !bond.items("arpIPTarget").is_empty() {
        errors.push("bond.arpIPTarget is not supported".to_owned());
    }
    let aggregates = mode == "802.3ad";
    let balances = matches!(mode, "balance-alb" | "balance-tlb");
    if !bond.text("lacpRate").is_empty() && !aggregates {
        errors.push("bond.lacpRate is only available in 802.3ad mode".to_owned());
    }
    if !bond.text("adActorSystem").is_empty() {
        errors.push("bond.adActorSystem is not supported".to_owned());
    }
    let unavailable = [
        (
            "arpValidate",
            (aggregates || balances) && !bond.text("arpValidate").is_empty(),
        ),
        (
            "primary",
            !(mode == "active-backup" || balances || bond.text("primary").is_empty()),
        ),
        ("arpInterval", (aggregates || balances) && bond.number("arpInterval") > 0),
        ("packetsPerSlave", mode != "balance-rr" && bond.number("packetsPerSlave") > 1),
        ("tlbDynamicTLB", !balances && bond.number("tlbDynamicLb") > 0),
    ];
    let unavailable = unavailable.iter().filter(|(_, wrong)| *wrong);
    errors.extend(unavailable.map(|(field, _)| format!("bond.{field} is not available in {mode} mode")));
    let only = ["adActorSysPrio", "adUserPortKey"]
        .into_iter()
        .filter(|field| !aggregates && bond.number(field) > 0);
    errors.extend(only.map(|field| format!("bond.{field} is only available in 802.3ad mode")));
}

fn check_bond_delays(bond: &Node, errors: &mut Vec<String>) {
    let interval = bond.number("miimon");
    for (field, name) in [("updelay", "upDelay"), ("downdelay", "downDelay")] {
        let delay = bond.number(field);
        if interval == 0 && delay != 0 {
            errors.push(format!("bond.{name} can't be set if miiMon is zero"));
        } else if interval != 0 && delay % interval != 0 {
            errors.push(format!("bond.{name} should be a multiple of miiMon"));
        }
    }
}

fn check_wireguard(wireguard: &Node, errors: &mut Vec<String>) {
    if let Err(problem) = scalars::wireguard_key(wireguard.text("privateKey")) {
        errors.push(format!("private key is invalid: {problem}"));
    }
    for peer in wireguard.items("peers") {
        if let Err(problem) = scalars::wireguard_key(peer.text("publicKey")) {
            errors.push(format!("public key invalid: {problem}"));
        }
        let endpoint = peer.text("endpoint");
        if !endpoint.is_empty() && endpoint.parse::<std::net::SocketAddr>().is_err() {
            errors.push(format!("peer endpoint {endpoint:?} is invalid"));
        }
        for network in peer.texts("allowedIPs") {
            if scalars::prefix(network).is_err() {
                errors.push(format!(
                    "peer allowed IP {network:?} is invalid: invalid CIDR address: {network}"
                ));
            }
        }
    }
}

fn check_vlans(device: &Node, errors: &mut Vec<String>) {
    let name = device.text("interface");
    for vlan in device.items("vlans") {
        let id = vlan.number("vlanId");
        let (addresses, cidr) = (vlan.texts("addresses"), vlan.text("cidr"));
        if !addresses.is_empty() && !cidr.is_empty() {
            let problem = "vlan can't have both .cidr and .addresses set";
            errors.push(format!("[networking.os.device.vlan] {name}.{id}: {problem}"));
        }
        let wrong = |section: &str, text: &str| {
            check_address(text)
                .err()
                .map(|problem| format!("[networking.os.device.vlan.{section}] {name}.{id}: {problem}"))
        };
        errors.extend(
            Some(cidr)
                .filter(|cidr| !cidr.is_empty())
                .and_then(|cidr| wrong("CIDR", cidr)),
        );
        errors.extend(addresses.into_iter().filter_map(|address| wrong("addresses", address)));
    }
}

/// An address with or without a mask.
fn check_address(text: &str) -> Result<(), String> {
    if text.contains('/') {
        scalars::prefix(text).map_err(|_| format!("invalid CIDR address: {text}"))
    } else {
        scalars::address(text)
            .map(|_| ())
            .map_err(|_| format!("failed to parse IP address {text:?}"))
    }
}

fn check_addresses(device: &Node, members: &BTreeMap<&str, &str>, warnings: &mut Vec<String>, errors: &mut Vec<String>) {
    let name = device.text("interface");
    let (addresses, cidr, vip) = (device.texts("addresses"), device.text("cidr"), device.at_path("vip"));
    let is_addressed = device.flag("dhcp") == Some(true) || !cidr.is_empty() || !addresses.is_empty() || vip.is_some();
    if members.contains_key(name) && is_addressed {
        let problem = "bonded/bridged interface shouldn't have any addressing methods configured";
        errors.push(format!("[networking.os.device] {name:?}: {problem}"));
    }
    if !addresses.is_empty() && !cidr.is_empty() {
        errors.push(format!(
            "[networking.os.device] {name:?}: interface can't have both .cidr and .addresses set"
        ));
    }
    if !cidr.is_empty() {
        let problem = check_address(cidr).err();
        errors.extend(problem.map(|problem| format!("[networking.os.device.CIDR] {name:?}: {problem}")));
        let instead = "machine.network.interface.cidr is deprecated, please use machine.network.interface.addresses";
        warnings.push(format!("{name:?}: {instead}"));
    }
    for problem in addresses.into_iter().filter_map(|address| check_address(address).err()) {
        errors.push(format!("[networking.os.device.addresses] {name:?}: {problem}"));
    }
    if let Some(ip) = vip.map(|vip| vip.text("ip"))
        && scalars::address(ip).is_err()
    {
        errors.push(format!("[networking.os.device.vip] failed to parse {ip:?} as IP address"));
    }
}

fn check_routes(device: &Node, errors: &mut Vec<String>) {
    for (index, route) in device.items("routes").iter().enumerate() {
        let place = format!("networking.os.device.route[{index}]");
        let (network, gateway, source) = (route.text("network"), route.text("gateway"), route.text("source"));
        let mut complain = |field: &str, text: &str, wrong: bool| {
            if !text.is_empty() && wrong {
                errors.push(format!("[{place}.{field}] {text:?}: invalid network address"));
            }
        };
        complain("network", network, scalars::prefix(network).is_err());
        complain("gateway", gateway, scalars::address(gateway).is_err());
        if gateway.is_empty() && network.is_empty() {
            errors.push(format!("[{place}]: either network or gateway should be set"));
        }
        if !source.is_empty() && scalars::address(source).is_err() {
            errors.push(format!("[{place}.source] {source:?}: invalid network address"));
        }
    }
}
