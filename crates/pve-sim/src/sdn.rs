//! SDN as far as VMs need it: vnets in simple zones, and the addresses that PVE's own IPAM reserves for their cards.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::qemu;
use crate::state::State;
use crate::world::VnetSpec;

/// Vnets by name, and what is reserved on them.
#[derive(Clone, Debug, Default)]
pub struct Sdn {
    pub vnets: BTreeMap<String, VnetSpec>,
    /// By hardware address.
    leases: BTreeMap<String, Lease>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Lease {
    vmid: u32,
    vnet: String,
    ip: Ipv4Addr,
    hostname: String,
}

impl Sdn {
    pub fn new(vnets: &BTreeMap<String, VnetSpec>) -> Self {
        Self {
            vnets: vnets.clone(),
            ..Self::default()
        }
    }

    /// The zone of a bridge: that of a vnet, or the one that stands for plain bridges.
    pub fn zone_of(&self, bridge: &str) -> &str {
        self.vnets.get(bridge).map_or("localnetwork", |vnet| vnet.zone.as_str())
    }

    fn zones(&self) -> BTreeSet<&str> {
        self.vnets.values().map(|vnet| vnet.zone.as_str()).collect()
    }

    /// The lowest address of a vnet's range that no card has.
    fn free(&self, vnet: &str) -> Option<Ipv4Addr> {
        let (first, last) = self.vnets.get(vnet)?.range()?;
        let taken: BTreeSet<Ipv4Addr> = self.leases.values().filter(|l| l.vnet == vnet).map(|l| l.ip).collect();
        (u32::from(first)..=u32::from(last))
            .map(Ipv4Addr::from)
            .find(|ip| !taken.contains(ip))
    }

    /// Reserves an address for every card on a vnet with a range, and frees those of cards that are gone.
    fn follow(&mut self, cards: &[(String, u32, String, String)]) {
        self.leases.retain(|mac, lease| {
            cards
                .iter()
                .any(|(m, vmid, vnet, _)| m == mac && *vmid == lease.vmid && *vnet == lease.vnet)
        });
        for (mac, vmid, vnet, hostname) in cards {
            if self.leases.contains_key(mac) {
                continue;
            }
            if let Some(ip) = self.free(vnet) {
                let lease = Lease {
                    vmid: *vmid,
                    vnet: vnet.clone(),
                    ip,
                    hostname: hostname.clone(),
                };
                self.leases.insert(mac.clone(), lease);
            }
        }
    }
}

impl State {
    /// Whether a card can be plugged into a bridge or vnet of a host.
    pub(crate) fn has_bridge(&self, host: &str, bridge: &str) -> bool {
        self.sdn.vnets.contains_key(bridge) || self.nodes.get(host).is_some_and(|n| n.bridges.contains_key(bridge))
    }

    /// Brings the reserved addresses up to date with the VMs' configs.
    pub(crate) fn follow_cards(&mut self) {
        if self.sdn.vnets.is_empty() {
            return;
        }
        let mut cards = Vec::new();
        for vm in self.vms.values() {
            let name = vm.conf.get("name").unwrap_or_default();
            for (mac, bridge) in qemu::cards(&vm.conf) {
                if self.sdn.vnets.get(&bridge).is_some_and(|vnet| vnet.range().is_some()) {
                    cards.push((mac, vm.vmid, bridge, name.to_string()));
                }
            }
        }
        self.sdn.follow(&cards);
    }
}

const SEE: [&str; 2] = ["SDN.Audit", "SDN.Allocate"];

pub(crate) fn handle(call: &Call) -> Answer {
    match call.what() {
        ("GET", "/cluster/sdn/zones") => Ok(zones(call)),
        ("GET", "/cluster/sdn/vnets") => Ok(vnets(call)),
        ("GET", "/cluster/sdn/ipams") => Ok(ipams(call)),
        ("GET", "/cluster/sdn/controllers" | "/cluster/sdn/dns") => Ok(json!([]).into()),
        ("GET", "/cluster/sdn/zones/{zone}") => one(zones(call), "zone", call.params.text("zone"), "sdn"),
        ("GET", "/cluster/sdn/ipams/{ipam}") => one(ipams(call), "ipam", call.params.text("ipam"), "sdn"),
        ("GET", "/cluster/sdn/vnets/{vnet}") => vnet(call),
        ("GET", "/cluster/sdn/ipams/{ipam}/status") => status(call),
        _ => call.not_simulated(),
    }
}

/// One entry of a list, with the digest of its file.
fn one(list: Reply, key: &str, id: &str, what: &str) -> Answer {
    let digest = hex::encode(<sha1::Sha1 as sha1::Digest>::digest(list.data.to_string()));
    let found = list.data.as_array().into_iter().flatten().find(|entry| entry[key] == id);
    let Some(entry) = found else {
        return Err(Die::new(format!("{what} '{id}' does not exist")));
    };
    let mut entry = entry.clone();
    entry["digest"] = json!(digest);
    Ok(entry.into())
}

fn vnet(call: &Call) -> Answer {
    let id = call.params.text("vnet");
    {
        let state = call.job.dc.state();
        if let Some(vnet) = state.sdn.vnets.get(id) {
            let path = format!("/sdn/zones/{}/{id}", vnet.zone);
            state.access.check_any(&call.job.auth, &path, &SEE)?;
        }
    }
    one(vnets(call), "vnet", id, "sdn vnet")
}

fn zones(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let seen = |zone: &&str| state.access.may_any(&call.job.auth, &format!("/sdn/zones/{zone}"), &SEE);
    let entry = |zone: &str| json!({ "zone": zone, "type": "simple", "ipam": "pve", "dhcp": "dnsmasq" });
    let zones = state.sdn.zones();
    Value::Array(zones.into_iter().filter(seen).map(entry).collect()).into()
}

fn vnets(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let seen = |name: &str, zone: &str| {
        state
            .access
            .may_any(&call.job.auth, &format!("/sdn/zones/{zone}/{name}"), &SEE)
    };
    let vnets = state.sdn.vnets.iter().filter(|(name, vnet)| seen(name, &vnet.zone));
    Value::Array(
        vnets
            .map(|(name, vnet)| json!({ "vnet": name, "zone": vnet.zone, "type": "vnet" }))
            .collect(),
    )
    .into()
}

fn ipams(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let seen = state.access.may_any(&call.job.auth, "/sdn/ipams/pve", &SEE);
    let list = if seen {
        json!([{ "ipam": "pve", "type": "pve" }])
    } else {
        json!([])
    };
    list.into()
}

/// Gateways and cards of every subnet that the caller may see.
fn status(call: &Call) -> Answer {
    if call.params.text("ipam") != "pve" {
        let at = "/usr/share/perl5/PVE/API2/Network/SDN/Ipams.pm line 319.";
        return Err(Die::new(format!("Currently only PVE IPAM is supported! at {at}")));
    }
    let mut state = call.job.dc.state();
    state.follow_cards();
    let mut list = Vec::new();
    for (name, vnet) in &state.sdn.vnets {
        let Some(subnet) = vnet.subnet.as_ref().filter(|_| vnet.range().is_some()) else {
            continue;
        };
        let path = format!("/sdn/zones/{}/{name}", vnet.zone);
        if !state.access.may_any(&call.job.auth, &path, &SEE) {
            continue;
        }
        let base = || json!({ "zone": vnet.zone, "subnet": subnet, "vnet": name });
        if let Some(gateway) = &vnet.gateway {
            let mut entry = base();
            entry["ip"] = json!(gateway);
            entry["gateway"] = json!(1);
            list.push(entry);
        }
        for (mac, lease) in state.sdn.leases.iter().filter(|(_, lease)| lease.vnet == *name) {
            let mut entry = base();
            entry["ip"] = json!(lease.ip.to_string());
            entry["mac"] = json!(mac);
            entry["vmid"] = json!(lease.vmid);
            entry["hostname"] = json!(lease.hostname);
            list.push(entry);
        }
    }
    Ok(Value::Array(list).into())
}
