//! Where machines go: hosts and storages that have what is needed, spread by role, then by what is free.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use mainstay_spec::{Hosts, Role};

use crate::builder::PlanBuilder;
use crate::context::Context;
use crate::desired::{DesiredCluster, DesiredMachine};
use crate::observed::{Host, HostStorage, Observed, StorageAt, VmDisk};
use crate::ownership::{OwnedVm, SYSTEM_SLOT, VmLookup};
use crate::plan::{HoldReason, Refusal, RefusalKind};
use crate::vm_diff::{DiskGrowth, VmDiff};

/// Differences of free memory and space below this do not count, in bytes.
const NOISE: u64 = 4 << 30;

/// What a new system disk takes at once on a thin storage: the image and the first days of a node.
const THIN_START: u64 = 8 << 30;

/// StorageChoice on one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StorageChoice {
    pub images: String,
    pub disks: String,
    pub seeds: String,
}

/// Where everything goes.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    /// The host of each machine that is not there yet.
    pub hosts: BTreeMap<String, String>,
    pub storages: BTreeMap<String, Result<StorageChoice, MissingResource>>,
}

/// Hosts, and what each lacks.
type MissingByHost = Vec<(String, MissingResource)>;

/// What a host lacks, and the line that mends it, if one does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissingResource {
    pub what: String,
    pub help: Option<String>,
    /// May be different in a minute: the host is away, or could not be looked at.
    pub passing: bool,
}

impl MissingResource {
    fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            help: None,
            passing: false,
        }
    }

    /// A lack that may end by itself, such as a host that is offline. The machine is held, not refused.
    fn passing(what: impl Into<String>) -> Self {
        Self {
            passing: true,
            ..Self::new(what)
        }
    }

    /// A lack that one command of an administrator ends; the command is shown.
    fn fixable_by(what: impl Into<String>, help: Option<String>) -> Self {
        Self { help, ..Self::new(what) }
    }
}

/// Decides for every machine that has no VM, and refuses what does not fit.
pub(crate) fn place(ctx: Context<'_>, plan: &mut PlanBuilder) -> Placement {
    let storages = ctx
        .observed
        .hosts
        .iter()
        .map(|(name, host)| (name.clone(), storages_of(ctx, host)))
        .collect();
    let mut placement = Placement {
        hosts: BTreeMap::new(),
        storages,
    };
    let mut capacity = Capacity::new(ctx);
    let mut unplaced: Vec<(&DesiredMachine, MissingByHost)> = Vec::new();
    for machine in &ctx.cluster.machines {
        let VmLookup::Absent = ctx.lookup(machine) else {
            continue;
        };
        match capacity.best(machine, ctx.cluster, &placement.storages) {
            Ok(host) => {
                capacity.take(&host, machine, placement.storages[&host].as_ref().ok());
                placement.hosts.insert(machine.name().to_owned(), host);
            }
            Err(missing_by_host) => unplaced.push((machine, considered(machine, missing_by_host))),
        }
    }
    refuse(unplaced, plan);
    capacity.overcommit_notes().into_iter().for_each(|note| plan.note(note));
    placement
}

/// StorageChoice of a host for what the file leaves open: images where `import` is allowed, disks where the machines of the cluster have
/// theirs, else on the largest that allows `images`, block storage first.
fn storages_of(ctx: Context<'_>, host: &Host) -> Result<StorageChoice, MissingResource> {
    let cluster = ctx.cluster;
    let storages = host.storages.yes().ok_or_else(|| {
        host.storages.unknown().map_or_else(
            || MissingResource::new("it has no storage"),
            |why| MissingResource::passing(format!("its storages are unknown: {why}")),
        )
    })?;
    let images = pick(storages, cluster.storage.images.as_ref().map(AsRef::as_ref), "import")?;
    let disks = match &cluster.storage.disks {
        Some(named) => named_storage(storages, named.as_str(), "images")?,
        None => {
            let systems = ctx.owned.ours.values().filter_map(|vm| vm.config.disks.get(SYSTEM_SLOT));
            default_disks(storages, systems.map(VmDisk::storage))
                .map(str::to_owned)
                .ok_or_else(|| none_allows(storages, "images"))?
        }
    };
    let seeds = match &cluster.storage.seeds {
        Some(seeds) => pick(storages, Some(seeds.as_str()), "images")?,
        None => disks.clone(),
    };
    Ok(StorageChoice { images, disks, seeds })
}

/// The storage that the file names, else one that allows the content.
fn pick(storages: &BTreeMap<String, HostStorage>, named: Option<&str>, content: &str) -> Result<String, MissingResource> {
    match named {
        Some(name) => named_storage(storages, name, content),
        None => largest_storage(storages, content)
            .map(str::to_owned)
            .ok_or_else(|| none_allows(storages, content)),
    }
}

/// The storage of a host that takes what the file has no place for. Block storage comes before files, because etcd waits for every write;
/// images can only be files. The lowest name among equals, so that the choice never wavers.
pub fn largest_storage<'a>(storages: &'a BTreeMap<String, HostStorage>, content: &str) -> Option<&'a str> {
    let fitting = storages.iter().filter(|(_, storage)| storage.allows(content));
    let largest = fitting.max_by_key(|(name, storage)| (!storage.kind.holds_files(), storage.total, Reverse(*name)));
    largest.map(|(name, _)| name.as_str())
}

/// The storage for disks that the file does not name. `used`: those that the machines of the cluster use.
pub fn default_disks<'a, 'u>(
    storages: &'a BTreeMap<String, HostStorage>,
    used: impl IntoIterator<Item = &'u str>,
) -> Option<&'a str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in used {
        *counts.entry(name).or_default() += 1;
    }
    let usable = storages.iter().filter(|(_, storage)| storage.allows("images"));
    let most_used = usable
        .filter_map(|(name, _)| Some((*counts.get(name.as_str())?, Reverse(name), name)))
        .max();
    match most_used {
        Some((.., name)) => Some(name),
        None => largest_storage(storages, "images"),
    }
}

/// A storage that the file names is never replaced by another one: the reason is shown instead.
fn named_storage(storages: &BTreeMap<String, HostStorage>, name: &str, content: &str) -> Result<String, MissingResource> {
    match storages.get(name) {
        None => Err(MissingResource::new(format!("it has no storage {name}"))),
        Some(storage) if !storage.active => Err(MissingResource::new(format!(
            "storage {name} is disabled or not reachable there"
        ))),
        Some(storage) if !storage.allows(content) => Err(MissingResource::fixable_by(
            format!("storage {name} does not allow `{content}`"),
            can_allow(storage, content).then(|| allow_command(name, storage, content)),
        )),
        Some(_) => Ok(name.to_owned()),
    }
}

/// On a stock PVE no storage allows `import`; one line changes that, and must name what is allowed already, since PVE replacement the list.
fn none_allows(storages: &BTreeMap<String, HostStorage>, content: &str) -> MissingResource {
    let candidates = storages.iter().filter(|(_, storage)| can_allow(storage, content));
    let best = candidates.max_by_key(|(name, storage)| (storage.total, Reverse(*name)));
    MissingResource::fixable_by(
        format!("no storage there allows `{content}`"),
        best.map(|(name, storage)| allow_command(name, storage, content)),
    )
}

/// Whether an administrator could enable this content type on the storage.
fn can_allow(storage: &HostStorage, content: &str) -> bool {
    storage.active && (content != "import" || storage.kind.holds_files())
}

/// `pvesm set` replaces the whole list, so the content types that are allowed already are repeated.
fn allow_command(name: &str, storage: &HostStorage, content: &str) -> String {
    let mut all: Vec<&str> = storage
        .content
        .iter()
        .map(String::as_str)
        .filter(|kind| *kind != "none")
        .collect();
    all.push(content);
    format!("pvesm set {name} --content {}", all.join(","))
}

/// What is left on hosts and storages while machines are placed.
struct Capacity<'a> {
    observed: &'a Observed,
    memory: BTreeMap<&'a str, u64>,
    /// Bytes by storage; a shared one counts once for all hosts.
    storage: BTreeMap<StorageAt, u64>,
    roles: BTreeMap<(&'a str, Role), usize>,
    /// Bytes promised to new disks on thin storages.
    promised: BTreeMap<StorageAt, u64>,
}

impl<'a> Capacity<'a> {
    fn new(ctx: Context<'a>) -> Self {
        let observed = ctx.observed;
        let memory = observed
            .hosts
            .iter()
            .map(|(name, host)| (name.as_str(), host.memory.free))
            .collect();
        let mut capacity = Self {
            observed,
            memory,
            storage: BTreeMap::new(),
            roles: BTreeMap::new(),
            promised: BTreeMap::new(),
        };
        for (name, host) in &observed.hosts {
            for (id, storage) in host.storages.yes().into_iter().flatten() {
                capacity.storage.insert(key(name, id, storage.shared), storage.free);
            }
        }
        for (name, owned) in &ctx.owned.ours {
            let Some(machine) = ctx.owned.in_file(name) else {
                continue;
            };
            *capacity
                .roles
                .entry((owned.vm.host.as_str(), machine.machine.role))
                .or_default() += 1;
            if !owned.runs() {
                let need = machine.machine.shape.memory.0 << 20;
                capacity
                    .memory
                    .entry(owned.vm.host.as_str())
                    .and_modify(|free| *free = free.saturating_sub(need));
            }
        }
        capacity
    }

    /// The host that suits best, or what each lacks.
    fn best(
        &self,
        machine: &DesiredMachine,
        cluster: &DesiredCluster,
        storages: &BTreeMap<String, Result<StorageChoice, MissingResource>>,
    ) -> Result<String, MissingByHost> {
        let mut missing_by_host = Vec::new();
        let mut fitting = Vec::new();
        for (name, host) in &self.observed.hosts {
            match self.fits(name, host, machine, cluster, &storages[name]) {
                Ok(free) => fitting.push((
                    self.count(name, machine.machine.role),
                    // What programs of the host take and free between two looks must not decide.
                    Reverse(self.memory[name.as_str()] / NOISE),
                    Reverse(free / NOISE),
                    name,
                )),
                Err(missing) => missing_by_host.push((name.clone(), missing)),
            }
        }
        fitting
            .into_iter()
            .min()
            .map(|(.., name)| name.clone())
            .ok_or(missing_by_host)
    }

    /// The free space of the disks storage, if the host can carry the machine.
    fn fits(
        &self,
        name: &str,
        host: &Host,
        machine: &DesiredMachine,
        cluster: &DesiredCluster,
        storages: &Result<StorageChoice, MissingResource>,
    ) -> Result<u64, MissingResource> {
        let shape = &machine.machine.shape;
        if !machine.machine.hosts.allow(name) {
            return Err(MissingResource::new("cluster.yaml does not allow it"));
        }
        if !host.online {
            return Err(MissingResource::passing("it is offline"));
        }
        has_bridge(host, cluster.network.bridge.as_str())?;
        let storages = storages.as_ref().map_err(Clone::clone)?;
        if !is_sized(host) {
            return Err(MissingResource::new(unsized_host(name)));
        }
        if host.cpus < shape.cpu {
            return Err(MissingResource::new(format!(
                "it has {} processors, {} are wanted; PVE starts no VM with more than its host has",
                host.cpus, shape.cpu
            )));
        }
        let (need, free) = (shape.memory.0 << 20, self.memory[name]);
        if need > free {
            return Err(MissingResource::new(format!(
                "{} of memory free, {} needed",
                gib(free),
                gib(need)
            )));
        }
        self.disks_fit(name, host, machine, storages)
    }

    /// A storage that takes the whole size at once must have it free. A thin one needs room for the start only, and the rest is noted.
    fn disks_fit(
        &self,
        name: &str,
        host: &Host,
        machine: &DesiredMachine,
        storages: &StorageChoice,
    ) -> Result<u64, MissingResource> {
        let mut left = 0;
        for (id, need) in needs(machine, storages) {
            let storage = host
                .storages
                .yes()
                .and_then(|all| all.get(&id))
                .filter(|storage| storage.allows("images"));
            let storage = storage.ok_or_else(|| MissingResource::new(format!("storage {id} does not hold disks there")))?;
            let free = self.storage.get(&key(name, &id, storage.shared)).copied().unwrap_or_default();
            let need = if storage.kind.is_thick() { need.full } else { need.start };
            if need > free {
                return Err(MissingResource::new(format!(
                    "{} free on {id}, {} needed",
                    gib(free),
                    gib(need)
                )));
            }
            if id == storages.disks {
                left = free;
            }
        }
        Ok(left)
    }

    /// Counts a machine in, so that the next one sees what is left. PVE itself shows it only after the VM runs.
    fn take(&mut self, name: &str, machine: &DesiredMachine, storages: Option<&StorageChoice>) {
        let Some((host, observed)) = self.observed.hosts.get_key_value(name) else {
            return;
        };
        let need = machine.machine.shape.memory.0 << 20;
        self.memory
            .entry(host.as_str())
            .and_modify(|free| *free = free.saturating_sub(need));
        *self.roles.entry((host.as_str(), machine.machine.role)).or_default() += 1;
        for (id, need) in storages.map(|storages| needs(machine, storages)).into_iter().flatten() {
            let Some(storage) = observed.storages.yes().and_then(|all| all.get(&id)) else {
                continue;
            };
            let key = key(name, &id, storage.shared);
            let taken = if storage.kind.is_thick() { need.full } else { need.start };
            self.storage
                .entry(key.clone())
                .and_modify(|free| *free = free.saturating_sub(taken));
            if !storage.kind.is_thick() {
                *self.promised.entry(key).or_default() += need.full;
            }
        }
    }

    fn count(&self, host: &str, role: Role) -> usize {
        self.roles.get(&(host, role)).copied().unwrap_or_default()
    }

    /// Thin storages that were promised more than they have.
    fn overcommit_notes(&self) -> Vec<String> {
        let over = self.promised.iter().filter_map(|(at, promised)| {
            let host = self
                .observed
                .hosts
                .iter()
                .find(|(name, _)| at.host.is_empty() || **name == at.host)?
                .1;
            let storage = host.storages.yes()?.get(&at.storage)?;
            let place = if at.host.is_empty() {
                at.storage.clone()
            } else {
                at.to_string()
            };
            (*promised > storage.free).then(|| {
                format!(
                    "{place} is thin-provisioned: planned disks need up to {}, {} is free; monitor it",
                    gib(*promised),
                    gib(storage.free)
                )
            })
        });
        over.collect()
    }
}

/// PVE hides bridges that the token may not use, so "absent" and "hidden" cannot be told apart and both are named.
fn has_bridge(host: &Host, bridge: &str) -> Result<(), MissingResource> {
    match (
        &host.bridges,
        host.bridges.yes().is_some_and(|bridges| bridges.contains(bridge)),
    ) {
        (_, true) => Ok(()),
        (bridges, false) => Err(match bridges.unknown() {
            Some(why) => MissingResource::passing(format!("whether it has bridge {bridge} is unknown: {why}")),
            None => MissingResource::fixable_by(
                format!("bridge {bridge} is absent there, or hidden from the token"),
                Some("if it is there, this prints the commands that let the token use it: mainstay grant".to_owned()),
            ),
        }),
    }
}

/// Bytes that a disk takes: all of it, and what it takes at once if the storage is thin.
struct DiskSpace {
    full: u64,
    start: u64,
}

/// Space by storage that a machine's disks take.
fn needs(machine: &DesiredMachine, storages: &StorageChoice) -> BTreeMap<String, DiskSpace> {
    let shape = &machine.machine.shape;
    let mut needs: BTreeMap<String, DiskSpace> = BTreeMap::new();
    let mut add = |storage: Option<&str>, full: u64, start: u64| {
        let need = needs
            .entry(storage.unwrap_or(&storages.disks).to_owned())
            .or_insert(DiskSpace { full: 0, start: 0 });
        need.full += full;
        need.start += start;
    };
    let size = shape.disk.size.0 << 30;
    add(shape.disk.storage.as_ref().map(AsRef::as_ref), size, size.min(THIN_START));
    for extra in &shape.disks {
        add(extra.disk.storage.as_ref().map(AsRef::as_ref), extra.disk.size.0 << 30, 0);
    }
    needs
}

fn key(host: &str, storage: &str, shared: bool) -> StorageAt {
    StorageAt {
        host: if shared { String::new() } else { host.to_owned() },
        storage: storage.to_owned(),
    }
}

/// What the hosts lack that the file allows; a host that it names and PVE does not list lacks everything.
fn considered(machine: &DesiredMachine, missing_by_host: MissingByHost) -> MissingByHost {
    let hosts = &machine.machine.hosts;
    let unheard = |name: &String| missing_by_host.iter().all(|(host, _)| host != name);
    let missing: Vec<String> = named_hosts(hosts).into_iter().filter(unheard).collect();
    let known: Vec<String> = missing_by_host.iter().map(|(host, _)| host.clone()).collect();
    let mut considered: MissingByHost = missing_by_host.into_iter().filter(|(host, _)| hosts.allow(host)).collect();
    considered.extend(missing.into_iter().map(|name| {
        (
            name,
            MissingResource::new(format!("there is no such host (there are {})", known.join(", "))),
        )
    }));
    considered
}

/// Machines that fit nowhere: held while every host may yet come back, else refused, together where they lack the same.
fn refuse(unplaced: Vec<(&DesiredMachine, MissingByHost)>, plan: &mut PlanBuilder) {
    let mut groups: Vec<(Vec<&DesiredMachine>, MissingByHost)> = Vec::new();
    for (machine, missing_by_host) in unplaced {
        if !missing_by_host.is_empty() && missing_by_host.iter().all(|(_, missing)| missing.passing) {
            plan.hold(machine.subject(), "create", HoldReason::transient(list(&missing_by_host)));
        } else if let Some((machines, _)) = groups.iter_mut().find(|(_, there)| *there == missing_by_host) {
            machines.push(machine);
        } else {
            groups.push((vec![machine], missing_by_host));
        }
    }
    for (machines, missing_by_host) in groups {
        plan.refuse(no_host(&machines, &missing_by_host));
    }
}

/// One refusal for all machines that lack the same, with what each host lacks.
fn no_host(machines: &[&DesiredMachine], missing_by_host: &[(String, MissingResource)]) -> Refusal {
    let first = machines[0];
    let (more, each) = match machines.len() - 1 {
        0 => (String::new(), ""),
        others => (format!(" and {others} more"), " each"),
    };
    let mut help: Vec<String> = Vec::new();
    for line in missing_by_host.iter().filter_map(|(_, missing)| missing.help.clone()) {
        if !help.contains(&line) {
            help.push(line);
        }
    }
    let shape = &first.machine.shape;
    Refusal {
        kind: RefusalKind::Insufficient,
        subject: first.subject(),
        what: format!(
            "no host has room for {}{more} ({} CPUs, {} memory{each})",
            first.name(),
            shape.cpu,
            gib(shape.memory.0 << 20)
        ),
        why: if missing_by_host.is_empty() {
            "there are no hosts".to_owned()
        } else {
            list(missing_by_host)
        },
        help,
        at: Some(first.machine.at),
    }
}

/// Hosts that lack the same thing are named together.
fn list(missing_by_host: &[(String, MissingResource)]) -> String {
    let mut groups: Vec<(Vec<&str>, &str)> = Vec::new();
    for (host, missing) in missing_by_host {
        match groups.iter_mut().find(|(_, what)| *what == missing.what) {
            Some((hosts, _)) => hosts.push(host),
            None => groups.push((vec![host], &missing.what)),
        }
    }
    groups
        .iter()
        .map(|(hosts, what)| format!("{}: {what}", hosts.join(", ")))
        .collect::<Vec<_>>()
        .join("; ")
}

fn named_hosts(hosts: &Hosts) -> Vec<String> {
    match hosts {
        Hosts::Any => Vec::new(),
        Hosts::OneOf(hosts) => hosts.iter().map(ToString::to_string).collect(),
        Hosts::Pinned(host) => vec![host.to_string()],
    }
}

pub(crate) fn gib(bytes: u64) -> String {
    let tenths = bytes / ((1 << 30) / 10);
    if tenths.is_multiple_of(10) {
        format!("{} GiB", tenths / 10)
    } else {
        format!("{}.{} GiB", tenths / 10, tenths % 10)
    }
}

/// Whether the size of a host is known. PVE leaves processors and memory out where the token may not read them.
fn is_sized(host: &Host) -> bool {
    host.cpus > 0
}

/// Without Sys.Audit PVE leaves out processors and memory. Zero would mean that nothing fits.
fn unsized_host(name: &str) -> String {
    format!("its processors and memory are unknown: the token lacks Sys.Audit on /nodes/{name}")
}

/// Refuses changes that the host of a machine has no room for.
pub(crate) fn growth(ctx: Context<'_>, machine: &DesiredMachine, vm: &OwnedVm<'_>, diff: &VmDiff) -> Option<Refusal> {
    let host = ctx.observed.hosts.get(&vm.vm.host)?;
    let shape = &machine.machine.shape;
    let more = (shape.memory.0 << 20).saturating_sub(vm.config.memory.0 << 20);
    let thick = |grow: &&DiskGrowth| {
        host.storages
            .yes()
            .and_then(|all| all.get(&grow.storage))
            .filter(|storage| storage.kind.is_thick())
    };
    let full = diff.growth.iter().find_map(|grow| {
        let free = thick(&grow)?.free;
        let need = (grow.to.0 - grow.from.0) << 30;
        (need > free).then(|| format!("{} free on {}, {} more needed", gib(free), grow.storage, gib(need)))
    });
    let missing = if !is_sized(host) {
        // The machine runs there, so it fits; PVE refuses what does not.
        full
    } else if shape.cpu > host.cpus {
        Some(format!("it has {} processors, {} are wanted", host.cpus, shape.cpu))
    } else if vm.runs() && more > host.memory.free {
        Some(format!("{} of memory free, {} more needed", gib(host.memory.free), gib(more)))
    } else {
        full
    };
    missing.map(|missing| Refusal {
        kind: RefusalKind::Insufficient,
        subject: machine.subject(),
        what: format!(
            "{} has no room for {} with the settings of cluster.yaml",
            vm.vm.host,
            machine.name()
        ),
        why: format!("{}: {missing}", vm.vm.host),
        help: vec!["make room, or migrate the machine to another host in PVE.".to_owned()],
        at: Some(machine.machine.at),
    })
}
