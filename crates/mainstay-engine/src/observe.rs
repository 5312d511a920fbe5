//! Looks at the world: Proxmox VE first, then every machine that runs, all at once. Changes nothing.

pub(crate) mod addons;
mod cluster;
mod jobs;
mod leftovers;
mod pve;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use futures::future::join_all;
use mainstay_net::{Target, dial_within};
use mainstay_plan::addon::seen::ObservedAddons;
use mainstay_plan::{ClusterSecrets, GuestConfig, Mark, Observed, OpenPorts, Pins, PowerState, Seen, Vm, derive};
use mainstay_spec::Spec;
use pve_api::access::Permissions;
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

/// Talos and Kubernetes: the only ports that are ever tried on an address that may be a stranger's.
const PROBED_PORTS: [u16; 2] = [50000, 6443];

/// What concerns one cluster.
#[derive(Debug)]
pub struct ObserveScope<'a> {
    pub cluster_id: Option<Uuid>,
    /// VMIDs that are wanted.
    pub vmids: BTreeSet<u32>,
    /// Machines that are wanted, and where.
    pub addresses: AddressBook,
    pub control_planes: BTreeSet<String>,
    pub vip: Option<Ipv4Addr>,
    pub pool: Option<&'a str>,
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
            addresses: AddressBook::of_file(spec),
            control_planes: spec.control_planes().map(|machine| machine.name.to_string()).collect(),
            vip: spec.network.vip,
            pool: spec.datacenter.pool.as_ref().map(AsRef::as_ref),
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
    // An address that does not answer takes the whole timeout, so the addresses are tried while Proxmox VE answers.
    let (datacenter, mut answers) = tokio::join!(pve::look(&site.pve, &site.facts, scope, &noted), probe_all(site, scope));
    let mut datacenter = datacenter?;
    // From now on these names prove nothing: the next volume of such a name may be made by anyone.
    if !datacenter.ended.is_empty() {
        let volumes = std::mem::take(&mut datacenter.ended);
        site.journal.write(&JournalEntry::Ended { volumes });
    }
    let mut running = running_machines(&datacenter.vms, scope);
    if answers.iter().any(|answer| is_foreign_answer(answer, scope, &running)) {
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
        vms: datacenter.vms,
        leftovers: datacenter.leftovers,
        lost: datacenter.lost,
        images: datacenter.images,
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

/// Who answers on the addresses that we want.
async fn probe_all(site: &Clients, scope: &ObserveScope<'_>) -> BTreeMap<Ipv4Addr, Seen<OpenPorts>> {
    // Who removes machines needs no address to be free.
    if scope.removes_all {
        return BTreeMap::new();
    }
    let wanted: BTreeSet<Ipv4Addr> = scope.addresses.wanted().chain(scope.vip).collect();
    let found = join_all(wanted.iter().map(|address| probe(site, *address))).await;
    wanted.into_iter().zip(found).collect()
}

async fn probe(site: &Clients, address: Ipv4Addr) -> Seen<OpenPorts> {
    let tries = PROBED_PORTS.map(|port| async move {
        let target = Target {
            host: address.to_string(),
            port,
        };
        dial_within(&*site.env.dialer, &target, PROBE).await.is_ok().then_some(port)
    });
    let ports: Vec<u16> = join_all(tries).await.into_iter().flatten().collect();
    if ports.is_empty() {
        Seen::No
    } else {
        Seen::Yes(OpenPorts { ports })
    }
}
