//! Looks at the world: Proxmox VE first, then every machine that runs, all at once. Changes nothing.

pub(crate) mod addons;
mod cluster;
mod jobs;
mod leftovers;
mod limit;
mod neighbours;
mod pve;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use futures::future::join_all;
use mainstay_net::{Target, dial_within};
use mainstay_plan::addon::seen::ObservedAddons;
use mainstay_plan::{ClusterSecrets, GuestConfig, Mark, Observed, OpenPorts, Pins, PowerState, Publisher, Seen, Vm, derive};
use mainstay_spec::Spec;
use pve_api::access::Permissions;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::addresses::AddressBook;
use crate::clients::Clients;
use crate::failure::Failure;
use crate::guest;
use crate::journal::JournalEntry;

pub use leftovers::{LOG_LINES, all_uses, made_in, writing_task};
pub use volumes::volume_uses_with;

/// How long a foreign machine may take to answer on an address that should be free. On one network an answer takes milliseconds, and a lost
/// SYN is sent again after a second.
const PROBE: Duration = Duration::from_millis(1100);

/// What machines of all kinds answer on: Talos, Kubernetes, SSH, web servers, Proxmox VE.
const PROBED_PORTS: [u16; 6] = [50000, 6443, 22, 80, 443, 8006];

/// On loopback addresses, which belong to one machine, only what a cluster itself answers on: Talos, Kubernetes, the supervisor of RKE2.
const PROBED_ON_LOOPBACK: [u16; 3] = [50000, 6443, 9345];

/// What concerns one cluster.
#[derive(Debug)]
pub struct ObserveScope<'a> {
    pub cluster_id: Option<Uuid>,
    /// VMIDs that are wanted.
    pub vmids: BTreeSet<u32>,
    /// The VMID of each machine that is wanted.
    pub by_name: BTreeMap<String, u32>,
    /// Machines that are wanted, and where.
    pub addresses: AddressBook,
    pub control_planes: BTreeSet<String>,
    pub vip: Option<Ipv4Addr>,
    pub pool: Option<&'a str>,
    /// What machines are attached to.
    pub bridge: Option<&'a str>,
    /// The storage for images, if the file names one.
    pub images: Option<&'a str>,
    /// Everything is to go, so that the snapshots of every machine are read.
    pub removes_all: bool,
    /// The add-ons of this file are looked at.
    pub addons: Option<&'a Spec>,
    /// The configs that running guests are compared with come from these.
    pub compare: Option<(&'a Spec, &'a ClusterSecrets)>,
}

impl<'a> ObserveScope<'a> {
    pub fn of(spec: &'a Spec, cluster_id: Option<Uuid>) -> Self {
        Self {
            cluster_id,
            vmids: spec.machines.iter().map(|machine| machine.vmid).collect(),
            by_name: spec
                .machines
                .iter()
                .map(|machine| (machine.name.to_string(), machine.vmid))
                .collect(),
            addresses: AddressBook::of_file(spec),
            control_planes: spec.control_planes().map(|machine| machine.name.to_string()).collect(),
            vip: spec.network.vip,
            pool: spec.datacenter.pool.as_ref().map(AsRef::as_ref),
            bridge: Some(spec.network.bridge.as_str()),
            images: spec.datacenter.storage.images.as_ref().map(AsRef::as_ref),
            removes_all: false,
            addons: None,
            compare: None,
        }
    }
}

/// What was seen, and what the token may do.
#[derive(Debug)]
pub struct Observation {
    pub observed: Observed,
    /// Where the machines are.
    pub addresses: AddressBook,
    pub pins: Pins,
    pub permissions: Permissions,
}

/// One look at everything. Fails only where nothing could be said at all.
pub async fn observe(site: &Clients, scope: &ObserveScope<'_>) -> Result<Observation, Failure> {
    let noted = leftovers::Noted {
        made: site.journal.made_volumes(),
        fills: site.journal.fills().iter().filter_map(|upid| upid.parse().ok()).collect(),
    };
    // An address that does not answer takes the whole timeout, so the addresses are tried while Proxmox VE answers, as soon as its
    // inventory says which machines do not exist yet.
    let (tell, inventory) = oneshot::channel();
    let (datacenter, mut answers) = tokio::join!(
        pve::look(&site.pve, &site.facts, scope, &noted, tell),
        probe_free(site, scope, inventory)
    );
    let mut datacenter = datacenter?;
    for (address, vms) in std::mem::take(&mut datacenter.address_users) {
        match answers.entry(address).or_insert(Seen::No) {
            Seen::Yes(open) => open.vms = vms,
            other => *other = Seen::Yes(OpenPorts { ports: Vec::new(), vms }),
        }
    }
    // From now on these names prove nothing: the next volume of such a name may be made by anyone.
    if !datacenter.ended.is_empty() {
        let volumes = std::mem::take(&mut datacenter.ended);
        site.journal.write(&JournalEntry::Ended { volumes });
    }
    let mut running = running_machines(&datacenter.vms, scope);
    // The inventory is some seconds old, and under load it lists machines as stopped that run. Only their hosts know.
    if !scope.removes_all && has_stopped(&datacenter.vms, scope) {
        pve::ask_hosts_for_power(&site.pve, &mut datacenter.vms).await;
        running = running_machines(&datacenter.vms, scope);
    }
    let mut addresses = scope.addresses.clone();
    if let Some(cluster_id) = scope.cluster_id {
        addresses.add_vms(&datacenter.vms, cluster_id);
    }
    answers.retain(|address, seen| seen.yes().is_none() || is_foreign_answer((address, seen), scope, &running));
    let mut observed = Observed {
        pve: datacenter.version,
        quorate: datacenter.quorate,
        token: datacenter.token,
        hosts: datacenter.hosts,
        zone: datacenter.zone,
        resource_pool: datacenter.resource_pool,
        vms: datacenter.vms,
        leftovers: datacenter.leftovers,
        lost: datacenter.lost,
        images: datacenter.images,
        publisher: Publisher::NotAsked,
        guests: BTreeMap::new(),
        etcd: Seen::No,
        answers,
        kubernetes: Seen::No,
        tasks: datacenter.tasks,
        addons: ObservedAddons::default(),
    };
    let (pins, configs) = wanted_configs(site, scope, &observed).await?;
    let guests = cluster::look(site, scope, &addresses, &configs, &running).await;
    (observed.guests, observed.etcd, observed.kubernetes) = (guests.guests, guests.etcd, guests.kubernetes);
    if let Some(spec) = scope.addons {
        observed.addons = addons::look(site, spec, scope.cluster_id, &addresses, &observed.kubernetes).await?;
    }
    Ok(Observation {
        observed,
        addresses,
        pins,
        permissions: datacenter.permissions,
    })
}

/// The configs that running guests are compared with. Versions come from the marks here, because no guest was asked yet.
async fn wanted_configs(
    clients: &Clients,
    scope: &ObserveScope<'_>,
    observed: &Observed,
) -> Result<(Pins, BTreeMap<String, GuestConfig>), Failure> {
    let Some((spec, secrets)) = scope.compare else {
        return Ok((Pins::default(), BTreeMap::new()));
    };
    let versions = derive::versions(spec, Some(observed), Some(secrets))?;
    let id = secrets.id();
    let is_ours = |vm: &Vm| {
        vm.config
            .yes()
            .and_then(|config| Mark::parse(&config.description))
            .is_some_and(|mark| mark.cluster_id == id)
    };
    let known = guest::KnownFiles {
        lock: clients.lock.as_ref(),
        observed,
        exists: observed.vms.yes().is_some_and(|vms| vms.values().any(is_ours)),
    };
    let pins = guest::pins(&clients.guests, &versions, known).await?;
    let configs = if guest::compares_files(&clients.guests) {
        derive::configs(spec, secrets, &versions, &pins)?
    } else {
        BTreeMap::new()
    };
    Ok((pins, configs))
}

/// A machine of this cluster is listed as stopped.
fn has_stopped(vms: &Seen<BTreeMap<u32, Vm>>, scope: &ObserveScope<'_>) -> bool {
    let is_ours = |vm: &Vm| {
        let mark = vm.config.yes().and_then(|config| Mark::parse(&config.description));
        mark.is_some_and(|mark| Some(mark.cluster_id) == scope.cluster_id)
    };
    let mut all = vms.yes().into_iter().flat_map(BTreeMap::values);
    all.any(|vm| vm.power == PowerState::Stopped && is_ours(vm))
}

/// A machine answers where no machine of ours runs that could.
fn is_foreign_answer(
    answer: (&Ipv4Addr, &Seen<OpenPorts>),
    scope: &ObserveScope<'_>,
    running: &BTreeMap<String, Ipv4Addr>,
) -> bool {
    let (address, Seen::Yes(_)) = answer else { return false };
    let ours = running.values().any(|taken| taken == address);
    let our_vip = scope.vip == Some(*address) && !running.is_empty();
    !ours && !our_vip
}

/// Machines of ours that have power, by name and address: those of the file, and those that only their mark still knows.
fn running_machines(vms: &Seen<BTreeMap<u32, Vm>>, scope: &ObserveScope<'_>) -> BTreeMap<String, Ipv4Addr> {
    let Some(cluster_id) = scope.cluster_id else {
        return BTreeMap::new();
    };
    let mut running = BTreeMap::new();
    for vm in vms
        .yes()
        .into_iter()
        .flat_map(BTreeMap::values)
        .filter(|vm| vm.power != PowerState::Stopped)
    {
        let Some(mark) = vm.config.yes().and_then(|config| Mark::parse(&config.description)) else {
            continue;
        };
        let address = scope
            .addresses
            .get(&mark.machine)
            .or_else(|| vm.config.yes()?.address.map(|net| net.addr()));
        if let (true, Some(address)) = (mark.cluster_id == cluster_id, address) {
            running.insert(mark.machine, address);
        }
    }
    running
}

/// The addresses that must be free: those of machines that do not exist yet, and the VIP while no control plane exists. `existing`: names
/// and VMIDs of the VMs that are there.
fn must_be_free(scope: &ObserveScope<'_>, existing: &Existing) -> BTreeSet<Ipv4Addr> {
    // Who removes machines needs no address to be free.
    if scope.removes_all {
        return BTreeSet::new();
    }
    let exists =
        |name: &str| existing.names.contains(name) || scope.by_name.get(name).is_some_and(|vmid| existing.vmids.contains(vmid));
    let missing = scope.by_name.keys().filter(|name| !exists(name));
    let vip = scope.vip.filter(|_| !scope.control_planes.iter().any(|name| exists(name)));
    missing.filter_map(|name| scope.addresses.get(name)).chain(vip).collect()
}

/// The VMs of an inventory.
#[derive(Debug, Clone, Default)]
pub struct Existing {
    pub vmids: BTreeSet<u32>,
    /// Of those that carry our tag: a machine keeps its VMID when the file gives it another.
    pub names: BTreeSet<String>,
}

/// Who answers on the addresses that must be free.
async fn probe_free(
    site: &Clients,
    scope: &ObserveScope<'_>,
    inventory: oneshot::Receiver<Existing>,
) -> BTreeMap<Ipv4Addr, Seen<OpenPorts>> {
    // Without an inventory the observation fails, and nothing is dialled.
    let Ok(existing) = inventory.await else {
        return BTreeMap::new();
    };
    let wanted = must_be_free(scope, &existing);
    let found = join_all(wanted.iter().map(|address| probe(site, *address))).await;
    wanted.into_iter().zip(found).collect()
}

async fn probe(site: &Clients, address: Ipv4Addr) -> Seen<OpenPorts> {
    let dialled: &[u16] = if address.is_loopback() {
        &PROBED_ON_LOOPBACK
    } else {
        &PROBED_PORTS
    };
    let tries = dialled.iter().map(|port| async move {
        let target = Target {
            host: address.to_string(),
            port: *port,
        };
        dial_within(&*site.env.dialer, &target, PROBE).await.is_ok().then_some(*port)
    });
    let ports: Vec<u16> = join_all(tries).await.into_iter().flatten().collect();
    if ports.is_empty() {
        Seen::No
    } else {
        Seen::Yes(OpenPorts { ports, vms: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
name: small
datacenter: { endpoint: https://pve.lan:8006 }
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, vip: 10.0.0.20 }
pools:
  control-plane: { count: 1, addresses: 10.0.0.11+, vmids: 2000+ }
  worker: { count: 2, addresses: 10.0.0.21+, vmids: 3000+ }
";

    #[test]
    fn only_addresses_of_machines_that_do_not_exist_are_dialled() {
        let environment = mainstay_spec::Environment::default();
        let spec = match mainstay_spec::load(FILE, "cluster.yaml", &environment, &|_| None) {
            Ok(checked) => checked.spec,
            Err(faults) => panic!("{faults:?}"),
        };
        let scope = ObserveScope::of(&spec, None);
        let dialled = |vmids: &[u32], names: &[&str]| -> Vec<String> {
            let existing = Existing {
                vmids: vmids.iter().copied().collect(),
                names: names.iter().map(|name| (*name).to_owned()).collect(),
            };
            must_be_free(&scope, &existing).iter().map(ToString::to_string).collect()
        };
        assert_eq!(dialled(&[], &[]), ["10.0.0.11", "10.0.0.20", "10.0.0.21", "10.0.0.22"]);
        assert_eq!(
            dialled(&[2000, 3000], &[]),
            ["10.0.0.22"],
            "etcd may have begun, so the VIP is ours"
        );
        assert_eq!(dialled(&[9000, 9001, 3001], &["small-control-plane-1"]), ["10.0.0.21"]);
        assert!(dialled(&[2000, 3000, 3001], &[]).is_empty());
        let removes_all = true;
        let down = ObserveScope { removes_all, ..scope };
        assert!(must_be_free(&down, &Existing::default()).is_empty());
    }
}
