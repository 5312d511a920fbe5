//! Where machines go: hosts and storages that have what is needed, spread by role, then by what is free.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use mainstay_spec::{Hosts, Role};

use crate::desired::{Wanted, Wish};
use crate::observed::{Host, Observed, Storage, StorageAt};
use crate::plan::{Draft, Hold, Refusal, RefusalKind};
use crate::shape::{Difference, Grow};
use crate::step::Subject;
use crate::survey::{Machine, Owned, Survey};

/// What a new system disk takes at once on a thin storage: the image and the first days of a node.
const THIN_START: u64 = 8 << 30;

/// Storages on one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Storages {
    pub images: String,
    pub disks: String,
    pub seeds: String,
}

/// Where everything goes.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// The host of each machine that is not there yet.
    pub hosts: BTreeMap<String, String>,
    pub storages: BTreeMap<String, Result<Storages, Lack>>,
}

/// Hosts, and what each lacks.
type Lacks = Vec<(String, Lack)>;

/// What a host lacks, and the line that mends it, if one does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lack {
    pub what: String,
    pub help: Option<String>,
    /// May be different in a minute: the host is away, or could not be looked at.
    pub passing: bool,
}

impl Lack {
    fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            help: None,
            passing: false,
        }
    }

    fn passing(what: impl Into<String>) -> Self {
        Self {
            passing: true,
            ..Self::new(what)
        }
    }

    fn mended_by(what: impl Into<String>, help: Option<String>) -> Self {
        Self { help, ..Self::new(what) }
    }
}

/// Decides for every machine that has no VM, and refuses what does not fit.
pub(crate) fn places(survey: &Survey<'_>, wish: &Wish, draft: &mut Draft) -> Places {
    let storages = survey
        .observed
        .hosts
        .iter()
        .map(|(name, host)| (name.clone(), storages_of(wish, host)))
        .collect();
    let mut places = Places {
        hosts: BTreeMap::new(),
        storages,
    };
    let mut room = Room::new(survey);
    let mut homeless: Vec<(&Wanted, Lacks)> = Vec::new();
    for wanted in &wish.machines {
        let Machine::Absent = survey.machine(wanted.name(), wanted.machine.vmid) else {
            continue;
        };
        match room.best(wanted, wish, &places.storages) {
            Ok(host) => {
                room.take(&host, wanted, places.storages[&host].as_ref().ok());
                places.hosts.insert(wanted.name().to_owned(), host);
            }
            Err(lacks) => homeless.push((wanted, considered(wanted, lacks))),
        }
    }
    refuse(homeless, draft);
    draft.plan.notes.extend(room.promises());
    places
}

/// Storages of a host for what the file leaves open: images where `import` is allowed, disks on the largest that allows `images`.
fn storages_of(wish: &Wish, host: &Host) -> Result<Storages, Lack> {
    let storages = host.storages.yes().ok_or_else(|| {
        host.storages.unknown().map_or_else(
            || Lack::new("it has no storage"),
            |why| Lack::passing(format!("its storages are unknown: {why}")),
        )
    })?;
    let images = pick(storages, wish.storage.images.as_ref().map(AsRef::as_ref), "import")?;
    let disks = pick(storages, wish.storage.disks.as_ref().map(AsRef::as_ref), "images")?;
    let seeds = match &wish.storage.seeds {
        Some(seeds) => pick(storages, Some(seeds.as_str()), "images")?,
        None => disks.clone(),
    };
    Ok(Storages { images, disks, seeds })
}

fn pick(storages: &BTreeMap<String, Storage>, named: Option<&str>, content: &str) -> Result<String, Lack> {
    match named {
        Some(name) => named_storage(storages, name, content),
        None => largest_storage(storages, content)
            .map(str::to_owned)
            .ok_or_else(|| none_allows(storages, content)),
    }
}

/// The storage of a host that takes what the file has no place for. The lowest name among equals, so that the choice never wavers.
pub fn largest_storage<'a>(storages: &'a BTreeMap<String, Storage>, content: &str) -> Option<&'a str> {
    let fitting = storages.iter().filter(|(_, storage)| storage.allows(content));
    let largest = fitting.max_by_key(|(name, storage)| (storage.total, Reverse(*name)));
    largest.map(|(name, _)| name.as_str())
}

fn named_storage(storages: &BTreeMap<String, Storage>, name: &str, content: &str) -> Result<String, Lack> {
    match storages.get(name) {
        None => Err(Lack::new(format!("it has no storage {name}"))),
        Some(storage) if !storage.active => Err(Lack::new(format!("storage {name} is disabled or not reachable there"))),
        Some(storage) if !storage.allows(content) => Err(Lack::mended_by(
            format!("storage {name} does not allow `{content}`"),
            able(storage, content).then(|| allow(name, storage, content)),
        )),
        Some(_) => Ok(name.to_owned()),
    }
}

/// On a stock PVE no storage allows `import`; one line changes that, and must name what is allowed already, since PVE replaces the list.
fn none_allows(storages: &BTreeMap<String, Storage>, content: &str) -> Lack {
    let candidates = storages.iter().filter(|(_, storage)| able(storage, content));
    let best = candidates.max_by_key(|(name, storage)| (storage.total, Reverse(*name)));
    Lack::mended_by(
        format!("no storage there allows `{content}`"),
        best.map(|(name, storage)| allow(name, storage, content)),
    )
}

/// Could allow it if somebody said so.
fn able(storage: &Storage, content: &str) -> bool {
    storage.active && (content != "import" || storage.kind.holds_files())
}

fn allow(name: &str, storage: &Storage, content: &str) -> String {
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
struct Room<'a> {
    observed: &'a Observed,
    memory: BTreeMap<&'a str, u64>,
    /// Bytes by storage; a shared one counts once for all hosts.
    storage: BTreeMap<StorageAt, u64>,
    roles: BTreeMap<(&'a str, Role), usize>,
    /// Bytes promised to new disks on thin storages.
    promised: BTreeMap<StorageAt, u64>,
}

impl<'a> Room<'a> {
    fn new(survey: &Survey<'a>) -> Self {
        let observed = survey.observed;
        let memory = observed
            .hosts
            .iter()
            .map(|(name, host)| (name.as_str(), host.memory.free))
            .collect();
        let mut room = Self {
            observed,
            memory,
            storage: BTreeMap::new(),
            roles: BTreeMap::new(),
            promised: BTreeMap::new(),
        };
        for (name, host) in &observed.hosts {
            for (id, storage) in host.storages.yes().into_iter().flatten() {
                room.storage.insert(key(name, id, storage.shared), storage.free);
            }
        }
        for (name, owned) in &survey.ours {
            let Some(wanted) = survey.wanted.get(name.as_str()) else {
                continue;
            };
            *room.roles.entry((owned.vm.host.as_str(), wanted.machine.role)).or_default() += 1;
            if !owned.runs() {
                let need = wanted.machine.shape.memory.0 << 20;
                room.memory
                    .entry(owned.vm.host.as_str())
                    .and_modify(|free| *free = free.saturating_sub(need));
            }
        }
        room
    }

    /// The host that suits best, or what each lacks.
    fn best(&self, wanted: &Wanted, wish: &Wish, storages: &BTreeMap<String, Result<Storages, Lack>>) -> Result<String, Lacks> {
        let mut lacks = Vec::new();
        let mut fitting = Vec::new();
        for (name, host) in &self.observed.hosts {
            match self.fits(name, host, wanted, wish, &storages[name]) {
                Ok(free) => fitting.push((
                    self.count(name, wanted.machine.role),
                    Reverse(self.memory[name.as_str()]),
                    Reverse(free),
                    name,
                )),
                Err(lack) => lacks.push((name.clone(), lack)),
            }
        }
        fitting.into_iter().min().map(|(.., name)| name.clone()).ok_or(lacks)
    }

    /// The free space of the disks storage, if the host can carry the machine.
    fn fits(
        &self,
        name: &str,
        host: &Host,
        wanted: &Wanted,
        wish: &Wish,
        storages: &Result<Storages, Lack>,
    ) -> Result<u64, Lack> {
        let shape = &wanted.machine.shape;
        if !wanted.machine.hosts.allow(name) {
            return Err(Lack::new("cluster.yaml does not allow it"));
        }
        if !host.online {
            return Err(Lack::passing("it is offline"));
        }
        has_bridge(host, wish.network.bridge.as_str())?;
        let storages = storages.as_ref().map_err(Clone::clone)?;
        if host.cpus < shape.cpu {
            return Err(Lack::new(format!(
                "it has {} processors, {} are wanted; PVE starts no VM with more than its host has",
                host.cpus, shape.cpu
            )));
        }
        let (need, free) = (shape.memory.0 << 20, self.memory[name]);
        if need > free {
            return Err(Lack::new(format!("{} of memory free, {} needed", gib(free), gib(need))));
        }
        self.disks_fit(name, host, wanted, storages)
    }

    fn disks_fit(&self, name: &str, host: &Host, wanted: &Wanted, storages: &Storages) -> Result<u64, Lack> {
        let mut left = 0;
        for (id, need) in needs(wanted, storages) {
            let storage = host
                .storages
                .yes()
                .and_then(|all| all.get(&id))
                .filter(|storage| storage.allows("images"));
            let storage = storage.ok_or_else(|| Lack::new(format!("storage {id} does not hold disks there")))?;
            let free = self.storage.get(&key(name, &id, storage.shared)).copied().unwrap_or_default();
            let need = if storage.kind.is_thick() { need.full } else { need.start };
            if need > free {
                return Err(Lack::new(format!("{} free on {id}, {} needed", gib(free), gib(need))));
            }
            if id == storages.disks {
                left = free;
            }
        }
        Ok(left)
    }

    fn take(&mut self, name: &str, wanted: &Wanted, storages: Option<&Storages>) {
        let Some((host, observed)) = self.observed.hosts.get_key_value(name) else {
            return;
        };
        let need = wanted.machine.shape.memory.0 << 20;
        self.memory
            .entry(host.as_str())
            .and_modify(|free| *free = free.saturating_sub(need));
        *self.roles.entry((host.as_str(), wanted.machine.role)).or_default() += 1;
        for (id, need) in storages.map(|storages| needs(wanted, storages)).into_iter().flatten() {
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
        self.roles
            .iter()
            .find(|((name, of), _)| *name == host && *of == role)
            .map_or(0, |(_, count)| *count)
    }

    /// Thin storages that were promised more than they have.
    fn promises(&self) -> Vec<String> {
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
                    "{place} has {} free and is promised {}: it is thin, so watch it fill",
                    gib(storage.free),
                    gib(*promised)
                )
            })
        });
        over.collect()
    }
}

fn has_bridge(host: &Host, bridge: &str) -> Result<(), Lack> {
    match (
        &host.bridges,
        host.bridges.yes().is_some_and(|bridges| bridges.contains(bridge)),
    ) {
        (_, true) => Ok(()),
        (bridges, false) => Err(match bridges.unknown() {
            Some(why) => Lack::passing(format!("whether it has bridge {bridge} is unknown: {why}")),
            None => Lack::mended_by(
                format!("bridge {bridge} is absent there, or hidden from the token"),
                Some(format!(
                    "pveum acl modify /sdn/zones/localnetwork/{bridge} --roles PVESDNUser --tokens '<token>'"
                )),
            ),
        }),
    }
}

/// Bytes that a disk takes: all of it, and what it takes at once if the storage is thin.
struct Need {
    full: u64,
    start: u64,
}

/// Space by storage that a machine's disks take.
fn needs(wanted: &Wanted, storages: &Storages) -> BTreeMap<String, Need> {
    let shape = &wanted.machine.shape;
    let mut needs: BTreeMap<String, Need> = BTreeMap::new();
    let mut add = |storage: Option<&str>, full: u64, start: u64| {
        let need = needs
            .entry(storage.unwrap_or(&storages.disks).to_owned())
            .or_insert(Need { full: 0, start: 0 });
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

/// What the hosts lack that the file allows; a host that it names and nobody knows lacks everything.
fn considered(wanted: &Wanted, lacks: Lacks) -> Lacks {
    let hosts = &wanted.machine.hosts;
    let unheard = |name: &String| lacks.iter().all(|(host, _)| host != name);
    let missing: Vec<String> = named_hosts(hosts).into_iter().filter(unheard).collect();
    let known: Vec<String> = lacks.iter().map(|(host, _)| host.clone()).collect();
    let mut considered: Lacks = lacks.into_iter().filter(|(host, _)| hosts.allow(host)).collect();
    considered.extend(missing.into_iter().map(|name| {
        (
            name,
            Lack::new(format!("there is no such host (there are {})", known.join(", "))),
        )
    }));
    considered
}

/// Machines that fit nowhere: held while every host may yet come back, else refused, together where they lack the same.
fn refuse(homeless: Vec<(&Wanted, Lacks)>, draft: &mut Draft) {
    let mut groups: Vec<(Vec<&Wanted>, Lacks)> = Vec::new();
    for (wanted, lacks) in homeless {
        if !lacks.is_empty() && lacks.iter().all(|(_, lack)| lack.passing) {
            draft.hold(
                Subject::Machine(wanted.name().to_owned()),
                "create",
                Hold::for_now(list(&lacks)),
            );
        } else if let Some((machines, _)) = groups.iter_mut().find(|(_, there)| *there == lacks) {
            machines.push(wanted);
        } else {
            groups.push((vec![wanted], lacks));
        }
    }
    for (machines, lacks) in groups {
        draft.refuse(no_host(&machines, &lacks));
    }
}

fn no_host(machines: &[&Wanted], lacks: &[(String, Lack)]) -> Refusal {
    let first = machines[0];
    let (more, each) = match machines.len() - 1 {
        0 => (String::new(), ""),
        others => (format!(" and {others} more"), " each"),
    };
    let mut help: Vec<String> = Vec::new();
    for line in lacks.iter().filter_map(|(_, lack)| lack.help.clone()) {
        if !help.contains(&line) {
            help.push(line);
        }
    }
    let shape = &first.machine.shape;
    Refusal {
        kind: RefusalKind::Lacking,
        subject: Subject::Machine(first.name().to_owned()),
        what: format!(
            "no host can carry {}{more} ({} cpu, {}{each})",
            first.name(),
            shape.cpu,
            gib(shape.memory.0 << 20)
        ),
        why: if lacks.is_empty() {
            "there are no hosts".to_owned()
        } else {
            list(lacks)
        },
        help,
        at: Some(first.machine.at),
    }
}

/// Hosts that lack the same thing are named together.
fn list(lacks: &[(String, Lack)]) -> String {
    let mut groups: Vec<(Vec<&str>, &str)> = Vec::new();
    for (host, lack) in lacks {
        match groups.iter_mut().find(|(_, what)| *what == lack.what) {
            Some((hosts, _)) => hosts.push(host),
            None => groups.push((vec![host], &lack.what)),
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

/// Refuses changes that the host of a machine has no room for.
pub(crate) fn growth(survey: &Survey<'_>, wanted: &Wanted, owned: &Owned<'_>, difference: &Difference) -> Option<Refusal> {
    let host = survey.observed.hosts.get(&owned.vm.host)?;
    let shape = &wanted.machine.shape;
    let more = (shape.memory.0 << 20).saturating_sub(owned.config.memory.0 << 20);
    let thick = |grow: &&Grow| {
        host.storages
            .yes()
            .and_then(|all| all.get(&grow.storage))
            .filter(|storage| storage.kind.is_thick())
    };
    let full = difference.grows.iter().find_map(|grow| {
        let free = thick(&grow)?.free;
        let need = (grow.to.0 - grow.from.0) << 30;
        (need > free).then(|| format!("{} free on {}, {} more needed", gib(free), grow.storage, gib(need)))
    });
    let lack = if shape.cpu > host.cpus {
        Some(format!("it has {} processors, {} are wanted", host.cpus, shape.cpu))
    } else if owned.runs() && more > host.memory.free {
        Some(format!("{} of memory free, {} more needed", gib(host.memory.free), gib(more)))
    } else {
        full
    };
    lack.map(|lack| Refusal {
        kind: RefusalKind::Lacking,
        subject: Subject::Machine(wanted.name().to_owned()),
        what: format!("{} cannot carry {} as it is wanted", owned.vm.host, wanted.name()),
        why: format!("{}: {lack}", owned.vm.host),
        help: vec!["make room, or migrate the machine to another host in PVE.".to_owned()],
        at: Some(wanted.machine.at),
    })
}
