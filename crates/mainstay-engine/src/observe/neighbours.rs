//! Addresses of other VMs, as far as Proxmox VE knows them and the token may see them.
//!
//! A machine that is off or that drops packets answers to no dial, but its settings or its guest agent name its address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use futures::future::join_all;
use mainstay_plan::TAG;
use pve_api::access::Permissions;
use pve_api::cluster::{Guest, GuestKind, RunState};
use pve_api::{Client, Ipv4, VmConfig, qemu};

use super::ObserveScope;

/// How long the settings of a VM may take to read. What is not read by then is left to the dial.
const SETTINGS_ANSWER: Duration = Duration::from_secs(5);

/// How long a guest agent may take: one that is not there answers after some seconds only.
const AGENT_ANSWERS: Duration = Duration::from_secs(4);

/// Running VMs of others that have one of these addresses. What cannot be read is passed over: the addresses are dialled too.
pub async fn users_of(
    pve: &Client,
    guests: &[Guest],
    scope: &ObserveScope<'_>,
    permissions: &Permissions,
    addresses: &BTreeSet<Ipv4Addr>,
) -> BTreeMap<Ipv4Addr, Vec<String>> {
    let mut users: BTreeMap<Ipv4Addr, Vec<String>> = BTreeMap::new();
    if addresses.is_empty() {
        return users;
    }
    let is_other = |guest: &&Guest| {
        let runs = guest.kind == GuestKind::Qemu && guest.status == RunState::Running && !guest.template;
        // What carries our tag is told apart by its mark, and answers to a dial.
        runs && !scope.vmids.contains(&guest.vmid.get()) && !guest.tags.contains(TAG)
    };
    let found = join_all(
        guests
            .iter()
            .filter(is_other)
            .map(|guest| addresses_of(pve, guest, permissions)),
    )
    .await;
    for (address, user) in found.into_iter().flatten() {
        if addresses.contains(&address) {
            users.entry(address).or_default().push(user);
        }
    }
    users
}

/// The addresses of one VM, each with how it is known.
async fn addresses_of(pve: &Client, guest: &Guest, permissions: &Permissions) -> Vec<(Ipv4Addr, String)> {
    let read = tokio::time::timeout(SETTINGS_ANSWER, pve.call(qemu::config(&guest.host, guest.vmid)));
    let Ok(Ok(config)) = read.await else {
        return Vec::new();
    };
    let name = match &guest.name {
        Some(name) => format!("VM {} ({name})", guest.vmid),
        None => format!("VM {}", guest.vmid),
    };
    let settings = static_addresses(&config).map(|address| (address, format!("{name} by its cloud-init settings")));
    let mut found: Vec<(Ipv4Addr, String)> = settings.collect();
    let path = format!("/vms/{}", guest.vmid);
    let may_ask = ["VM.GuestAgent.Audit", "VM.Monitor"]
        .iter()
        .any(|privilege| permissions.allows(&path, privilege));
    if may_ask && config.agent.as_ref().is_some_and(|agent| agent.enabled) {
        let agent = agent_addresses(pve, guest).await.into_iter();
        found.extend(agent.map(|address| (address, format!("{name} by its guest agent"))));
    }
    found.dedup_by_key(|(address, _)| *address);
    found
}

fn static_addresses(config: &VmConfig) -> impl Iterator<Item = Ipv4Addr> {
    config.ipconfigs.values().filter_map(|ip| match ip.ip {
        Some(Ipv4::Static(address)) => Some(address.addr()),
        _ => None,
    })
}

async fn agent_addresses(pve: &Client, guest: &Guest) -> Vec<Ipv4Addr> {
    let asked = pve.call(qemu::agent_interfaces(&guest.host, guest.vmid));
    let Ok(Ok(answer)) = tokio::time::timeout(AGENT_ANSWERS, asked).await else {
        return Vec::new();
    };
    let interfaces = answer.interfaces().unwrap_or_default();
    let addresses = interfaces.iter().flat_map(qemu::Interface::addresses);
    addresses
        .filter_map(|address| if let IpAddr::V4(v4) = address { Some(v4) } else { None })
        .collect()
}
