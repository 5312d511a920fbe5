//! Looks at the world: Proxmox VE first, then every machine that runs, all at once. Changes nothing.

mod guests;
mod pve;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use futures::future::join_all;
use mainstay_net::{Target, dial_within};
use mainstay_plan::{Answer, Observed, Power, Seen, Vm};
use mainstay_spec::Spec;
use pve_api::access::Permissions;
use uuid::Uuid;

use crate::failure::Failure;
use crate::site::Site;

pub use pve::{LOG_LINES, all_uses, made_in, slot, volume_uses};

/// How long somebody may take to answer on an address that should be free. On one network an answer takes milliseconds.
const PROBE: Duration = Duration::from_millis(1500);

/// Talos and Kubernetes: the only ports that are ever tried on an address that may be a stranger's.
const PROBED_PORTS: [u16; 2] = [50000, 6443];

/// What concerns one cluster.
#[derive(Debug)]
pub struct Scope<'a> {
    pub cluster_id: Option<Uuid>,
    /// VMIDs that are wanted.
    pub vmids: BTreeSet<u32>,
    /// Machines that are wanted, and where.
    pub addresses: BTreeMap<String, Ipv4Addr>,
    pub control_planes: BTreeSet<String>,
    pub vip: Option<Ipv4Addr>,
    pub pool: Option<&'a str>,
    /// The storage for images, if the file names one.
    pub images: Option<&'a str>,
    /// Everything is to go, so that the snapshots of every machine are read.
    pub removes_all: bool,
}

impl<'a> Scope<'a> {
    pub fn of(spec: &'a Spec, cluster_id: Option<Uuid>) -> Self {
        Self {
            cluster_id,
            vmids: spec.machines.iter().map(|machine| machine.vmid).collect(),
            addresses: spec
                .machines
                .iter()
                .map(|machine| (machine.name.to_string(), machine.address))
                .collect(),
            control_planes: spec.control_planes().map(|machine| machine.name.to_string()).collect(),
            vip: spec.network.vip,
            pool: spec.datacenter.pool.as_ref().map(AsRef::as_ref),
            images: spec.datacenter.storage.images.as_ref().map(AsRef::as_ref),
            removes_all: false,
        }
    }
}

/// What was seen, and what the token may do.
#[derive(Debug)]
pub struct Sight {
    pub observed: Observed,
    pub permissions: Permissions,
}

/// One look at everything. Fails only where nothing could be said at all.
pub async fn observe(site: &Site, scope: &Scope<'_>) -> Result<Sight, Failure> {
    let noted = pve::Noted {
        made: site.journal.made_volumes(),
        fills: site.journal.fills().iter().filter_map(|upid| upid.parse().ok()).collect(),
    };
    // Nobody's business waits for silence: the addresses are tried while Proxmox VE answers.
    let (datacenter, answers) = tokio::join!(pve::look(&site.pve, scope, &noted), probe_all(site, scope));
    let mut datacenter = datacenter?;
    let mut running = machines_that_run(&datacenter.vms, scope);
    if answers.iter().any(|answer| is_strange(answer, scope, &running)) {
        pve::ask_hosts_for_power(&site.pve, &mut datacenter.vms).await;
        running = machines_that_run(&datacenter.vms, scope);
    }
    let guests = guests::look(site, scope, &running).await;
    let mut answers = answers;
    answers.retain(|address, seen| seen.yes().is_none() || is_strange((address, seen), scope, &running));
    let observed = Observed {
        pve: datacenter.version,
        quorate: datacenter.quorate,
        token: datacenter.token,
        hosts: datacenter.hosts,
        vms: datacenter.vms,
        leftovers: datacenter.leftovers,
        lost: datacenter.lost,
        images: datacenter.images,
        talos: guests.talos,
        etcd: guests.etcd,
        answers,
        kubernetes: guests.kubernetes,
        tasks: datacenter.tasks,
    };
    Ok(Sight {
        observed,
        permissions: datacenter.permissions,
    })
}

/// Somebody answers where no machine of ours runs that could.
fn is_strange(answer: (&Ipv4Addr, &Seen<Answer>), scope: &Scope<'_>, running: &BTreeMap<String, Ipv4Addr>) -> bool {
    let (address, Seen::Yes(_)) = answer else { return false };
    let ours = running.values().any(|taken| taken == address);
    let our_vip = scope.vip == Some(*address) && !running.is_empty();
    !ours && !our_vip
}

/// Machines of ours that have power, by name and address: those of the file, and those that only their mark still knows.
fn machines_that_run(vms: &Seen<BTreeMap<u32, Vm>>, scope: &Scope<'_>) -> BTreeMap<String, Ipv4Addr> {
    let Some(cluster_id) = scope.cluster_id else {
        return BTreeMap::new();
    };
    let mut running = BTreeMap::new();
    for vm in vms
        .yes()
        .into_iter()
        .flat_map(BTreeMap::values)
        .filter(|vm| vm.power != Power::Stopped)
    {
        let Some(mark) = vm
            .config
            .yes()
            .and_then(|config| mainstay_plan::Mark::parse(&config.description))
        else {
            continue;
        };
        let address = scope
            .addresses
            .get(&mark.machine)
            .copied()
            .or_else(|| vm.config.yes()?.address.map(|net| net.addr()));
        if let (true, Some(address)) = (mark.cluster_id == cluster_id, address) {
            running.insert(mark.machine, address);
        }
    }
    running
}

/// Who answers on the addresses that we want.
async fn probe_all(site: &Site, scope: &Scope<'_>) -> BTreeMap<Ipv4Addr, Seen<Answer>> {
    let wanted: BTreeSet<Ipv4Addr> = scope.addresses.values().copied().chain(scope.vip).collect();
    let found = join_all(wanted.iter().map(|address| probe(site, *address))).await;
    wanted.into_iter().zip(found).collect()
}

async fn probe(site: &Site, address: Ipv4Addr) -> Seen<Answer> {
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
        Seen::Yes(Answer { ports })
    }
}
