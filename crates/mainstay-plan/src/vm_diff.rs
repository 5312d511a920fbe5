//! A VM against what the file asks for: what differs, what that costs a running machine, and what cannot be changed.

use std::collections::BTreeSet;
use std::fmt;

use mainstay_spec::{Disk, Gib, Mib, Shape};

use crate::desired::{DesiredCluster, DesiredMachine};
use crate::mark::TAG;
use crate::observed::{VmDisk, VmSettings};
use crate::ownership::{OwnedVm, SYSTEM_SLOT};
use crate::settings::Setting;
use crate::step::{Impact, NewDisk, NicConfig, Seed};

/// Slots for disks besides the system disk: what one virtio-scsi controller takes in PVE.
const EXTRA_SLOTS: std::ops::RangeInclusive<u32> = 1..=30;

/// Keys whose pending value waits for a full restart and that mainstay sets. Disks besides these.
const RESTART_KEYS: [&str; 5] = ["cores", "cpu", "memory", "scsihw", "agent"];

/// How a VM differs from what is wanted.
#[derive(Debug, Default)]
pub(crate) struct VmDiff {
    pub changes: Vec<SettingChange>,
    pub growth: Vec<DiskGrowth>,
    /// What cannot be done to a machine that exists.
    pub unsupported: Vec<UnsupportedChange>,
    /// What is left alone, and why.
    pub kept: Vec<String>,
    /// Settings were written earlier and wait for a restart.
    pub pending: BTreeSet<String>,
    /// The resource pool to move it to; `Some(None)` takes it out of its pool.
    pub pool: Option<Option<String>>,
}

impl VmDiff {
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.growth.is_empty() && self.pending.is_empty() && self.pool.is_none()
    }

    /// Also where nothing is left to write: a setting that was written earlier still waits for the restart.
    pub fn restarts(&self) -> bool {
        !self.pending.is_empty() || self.changes.iter().any(|change| change.setting.impact() == Impact::Reboot)
    }

    /// One request carries all changes, so the step has the impact of the worst.
    pub fn impact(&self) -> Impact {
        self.changes
            .iter()
            .map(|change| change.setting.impact())
            .max()
            .unwrap_or(Impact::None)
    }

    pub fn settings(&self) -> Vec<Setting> {
        self.changes.iter().map(|change| change.setting.clone()).collect()
    }

    /// All of it, for a machine on which nothing may be done now.
    pub fn summary(&self) -> String {
        let growth = self.growth.iter().map(DiskGrowth::text);
        let pending = self.pending.iter().map(|key| format!("{key} at a restart"));
        let pool = self.pool.iter().map(|pool| pool_text(pool.as_deref()));
        let changes = self.changes.iter().map(ToString::to_string);
        let texts: Vec<String> = changes.chain(growth).chain(pending).chain(pool).collect();
        texts.join(", ")
    }

    /// What the file asks for.
    pub fn text(&self) -> String {
        let texts: Vec<String> = self.changes.iter().map(ToString::to_string).collect();
        texts.join(", ")
    }
}

/// A setting that differs, in words.
#[derive(Debug)]
pub(crate) struct SettingChange {
    pub setting: Setting,
    pub what: String,
    /// `None`: there was nothing.
    pub is: Option<String>,
    pub want: String,
}

impl fmt::Display for SettingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.is {
            Some(is) => write!(f, "{} {is} -> {}", self.what, self.want),
            None => write!(f, "{} {}", self.what, self.want),
        }
    }
}

/// A disk that is smaller than wanted.
#[derive(Debug)]
pub(crate) struct DiskGrowth {
    pub slot: String,
    pub label: String,
    pub storage: String,
    pub from: Gib,
    pub to: Gib,
}

impl DiskGrowth {
    pub fn text(&self) -> String {
        format!("{} {} -> {} GiB", self.label, self.from.0, self.to.0)
    }
}

/// Where a machine goes among PVE's resource pools.
pub(crate) fn pool_text(pool: Option<&str>) -> String {
    pool.map_or_else(|| "no pool".to_owned(), |pool| format!("pool {pool}"))
}

#[derive(Debug)]
pub(crate) struct UnsupportedChange {
    pub what: String,
    pub why: &'static str,
    pub help: String,
}

/// Compares a VM with what is wanted. `disks_on` is where a new disk goes that names no storage.
pub(crate) fn compare(cluster: &DesiredCluster, machine: &DesiredMachine, vm: &OwnedVm<'_>, disks_on: Option<&str>) -> VmDiff {
    let mut diff = VmDiff::default();
    identity(cluster, machine, vm.config, &mut diff);
    hardware(&machine.machine.shape, vm.config, cluster.agent, &mut diff);
    place_in_pve(cluster, machine, vm, &mut diff);
    if vm.is_filled() {
        disks(machine, vm.config, disks_on, &mut diff);
    }
    if vm.runs() {
        let is_disk = |key: &str| key.strip_prefix("scsi").is_some_and(|n| n.parse::<u32>().is_ok());
        let restart = |key: &&String| RESTART_KEYS.contains(&key.as_str()) || is_disk(key);
        diff.pending = vm.config.pending.iter().filter(restart).cloned().collect();
    }
    diff
}

/// Address and MAC are how the cluster knows a machine; changing them on one that exists cuts it off.
fn identity(cluster: &DesiredCluster, machine: &DesiredMachine, config: &VmSettings, diff: &mut VmDiff) {
    if let Some(there) = config.address.filter(|there| there.addr() != machine.address()) {
        diff.unsupported.push(UnsupportedChange {
            what: format!("its address cannot change from {} to {}", there.addr(), machine.address()),
            why: "etcd, certificates and other nodes refer to the machine by its address; this version cannot change addresses.",
            help: format!("put {} back, or remove the machine first and add it again.", there.addr()),
        });
    }
    let Some(nic) = &config.nic else { return };
    if nic.mac != machine.machine.mac {
        diff.unsupported.push(UnsupportedChange {
            what: format!("its MAC cannot change from {} to {}", nic.mac, machine.machine.mac),
            why: "the guest finds its network card by the MAC; with another MAC the machine would boot without an address.",
            help: format!("put {} back, or remove the machine first and add it again.", nic.mac),
        });
    }
    let want = desired_nic(cluster, machine);
    if (&nic.bridge, nic.vlan) != (&want.bridge, want.vlan) {
        let show = |bridge: &str, vlan: Option<u16>| vlan.map_or_else(|| bridge.to_owned(), |vlan| format!("{bridge}.{vlan}"));
        let (is, want_text) = (show(&nic.bridge, nic.vlan), show(&want.bridge, want.vlan));
        diff.push("network", is, want_text, Setting::Nic(NicConfig { mac: nic.mac, ..want }));
    }
}

/// Processors, memory and controllers, which a running VM takes at a restart. The firmware cannot change: an installed system
/// boots only with its own.
fn hardware(shape: &Shape, config: &VmSettings, agent: bool, diff: &mut VmDiff) {
    diff.compare("cpu", &config.cores, &shape.cpu, |cores| Setting::Cores(*cores));
    diff.compare("cpu type", &config.cpu_type, &shape.cpu_type, |kind| {
        Setting::CpuType(kind.clone())
    });
    if config.memory != shape.memory {
        diff.push(
            "memory",
            memory(config.memory),
            memory(shape.memory),
            Setting::Memory(shape.memory),
        );
    }
    let scsi = shape.scsi.as_str();
    diff.compare("scsi controller", &config.scsi.as_str(), &scsi, |_| {
        Setting::ScsiController(scsi)
    });
    diff.compare("guest agent", &config.agent, &agent, |on| Setting::Agent(*on));
    diff.compare("onboot", &config.onboot, &shape.onboot, |on| Setting::Onboot(*on));
    if config.startup_order != shape.startup_order {
        let show = |order: Option<u32>| order.map_or_else(|| "none".to_owned(), |order| order.to_string());
        let setting = Setting::StartupOrder(shape.startup_order);
        diff.push(
            "startup order",
            show(config.startup_order),
            show(shape.startup_order),
            setting,
        );
    }
    if config.firmware != shape.firmware.as_str() {
        diff.unsupported.push(UnsupportedChange {
            what: format!(
                "its firmware cannot change from {} to {}",
                config.firmware,
                shape.firmware.as_str()
            ),
            why: "an installed system boots only with the firmware that it was installed for.",
            help: format!("put {} back, or remove the machine first and add it again.", config.firmware),
        });
    }
}

/// What PVE shows and what the guest reads once. None of it needs a restart.
fn place_in_pve(cluster: &DesiredCluster, machine: &DesiredMachine, vm: &OwnedVm<'_>, diff: &mut VmDiff) {
    let config = vm.config;
    let name = config.name.clone().unwrap_or_default();
    diff.compare("name", &name.as_str(), &machine.name(), |name| {
        Setting::Name((*name).to_owned())
    });
    tags(machine, vm, diff);
    let recorded = vm.mark.as_ref().and_then(|mark| mark.pool.as_ref());
    diff.pool = match &cluster.resource_pool {
        Some(pool) => (vm.vm.pool.as_ref() != Some(pool)).then(|| Some(pool.clone())),
        // A pool that another hand put it in stays.
        None => (recorded.is_some() && vm.vm.pool.as_ref() == recorded).then_some(None),
    };
    if !vm.is_filled() {
        return;
    }
    let want = seed(cluster, machine);
    let is = config.address.zip(config.gateway).map(|(address, gateway)| Seed {
        address,
        gateway,
        dns: config.dns.clone(),
        // Search domain and account are only read at the first boot, so a difference has no effect.
        search: want.search.clone(),
        user: want.user.clone(),
    });
    if is.as_ref() != Some(&want) && is.as_ref().is_none_or(|is| is.address.addr() == want.address.addr()) {
        let is = is.as_ref().map_or_else(|| "none".to_owned(), show_seed);
        diff.push("first boot", is, show_seed(&want), Setting::Seed(want));
    }
    if config.boot.first().is_none_or(|first| first != SYSTEM_SLOT) {
        let boot = vec![SYSTEM_SLOT.to_owned()];
        diff.push("boot", config.boot.join(";"), SYSTEM_SLOT.to_owned(), Setting::Boot(boot));
    }
}

/// Tags of the file that it lacks, and those that mainstay set and the file has no more.
fn tags(machine: &DesiredMachine, vm: &OwnedVm<'_>, diff: &mut VmDiff) {
    let wanted = desired_tags(machine);
    let add: BTreeSet<String> = wanted.difference(&vm.vm.tags).cloned().collect();
    let recorded = vm.mark.iter().flat_map(|mark| &mark.tags);
    let remove: BTreeSet<String> = recorded
        .filter(|tag| !wanted.contains(*tag) && vm.vm.tags.contains(*tag))
        .cloned()
        .collect();
    // Our own tag is one of the marks and is put back with them.
    if remove.is_empty() && !add.iter().any(|tag| tag != TAG) {
        return;
    }
    let removed = remove.iter().map(|tag| format!("not {tag}"));
    let list: Vec<String> = add.iter().cloned().chain(removed).collect();
    diff.push("tags", None, list.join(", "), Setting::Tags { add, remove });
}

/// Disks are matched by serial, not by slot: a user may move a disk to another slot, and a removed entry must not shift the others.
/// A disk that left the file is kept, because it may hold data.
fn disks(machine: &DesiredMachine, config: &VmSettings, disks_on: Option<&str>, diff: &mut VmDiff) {
    let shape = &machine.machine.shape;
    if let Some(system) = config.disks.get(SYSTEM_SLOT) {
        disk(SYSTEM_SLOT, "disk", &shape.disk, system, diff);
    }
    let mut free = free_slots(config);
    for extra in &shape.disks {
        match by_serial(config, &extra.name) {
            Some((slot, there)) => disk(slot, &format!("disk {}", extra.name), &extra.disk, there, diff),
            None => {
                let storage = extra
                    .disk
                    .storage
                    .as_ref()
                    .map(ToString::to_string)
                    .or_else(|| disks_on.map(str::to_owned));
                if let (Some(slot), Some(storage)) = (free.next(), storage) {
                    let new = new_disk(slot, storage, &extra.disk, &extra.name);
                    let want = extra.disk.size.0;
                    diff.push(
                        &format!("disk {}", extra.name),
                        None,
                        format!("{want} GiB"),
                        Setting::Attach(new),
                    );
                }
            }
        }
    }
    let known = |serial: &String| serial == SYSTEM_SERIAL || shape.disks.iter().any(|extra| extra.name == *serial);
    for serial in config
        .disks
        .values()
        .filter_map(|disk| disk.serial.as_ref())
        .filter(|serial| !known(serial))
    {
        diff.kept.push(format!(
            "disk {serial} left cluster.yaml; it may hold data, so it is kept: detach it in PVE"
        ));
    }
}

/// Grows, never shrinks, and never moves to another storage by itself: moving copies the whole disk and belongs to PVE.
fn disk(slot: &str, label: &str, want: &Disk, there: &VmDisk, diff: &mut VmDiff) {
    if want.size > there.size {
        diff.growth.push(DiskGrowth {
            slot: slot.to_owned(),
            label: label.to_owned(),
            storage: there.storage().to_owned(),
            from: there.size,
            to: want.size,
        });
    } else if want.size < there.size {
        diff.unsupported.push(UnsupportedChange {
            what: format!("its {label} cannot shrink from {} GiB to {} GiB", there.size.0, want.size.0),
            why: "PVE cannot shrink disks, and data at the end of the disk would be lost.",
            help: format!("write {}GiB, or remove the machine first and add it again.", there.size.0),
        });
    }
    if let Some(storage) = want.storage.as_ref().filter(|storage| storage.as_str() != there.storage()) {
        diff.kept.push(format!(
            "its {label} is kept on {}; to move it to {storage}, use PVE's \"Move Disk\"",
            there.storage()
        ));
    }
    if want.options != there.options {
        let setting = Setting::DiskOptions {
            slot: slot.to_owned(),
            options: want.options,
        };
        diff.push(
            &format!("{label} options"),
            show_options(there.options),
            show_options(want.options),
            setting,
        );
    }
}

impl VmDiff {
    fn push(&mut self, what: &str, is: impl Into<Option<String>>, want: String, setting: Setting) {
        self.changes.push(SettingChange {
            setting,
            what: what.to_owned(),
            is: is.into(),
            want,
        });
    }

    fn compare<T: PartialEq + fmt::Display>(&mut self, what: &str, is: &T, want: &T, setting: impl FnOnce(&T) -> Setting) {
        if is != want {
            self.push(what, is.to_string(), want.to_string(), setting(want));
        }
    }
}

/// The serial of the system disk; extra disks have their names.
pub const SYSTEM_SERIAL: &str = "system";

/// The tags of the file and the tag of mainstay, which is a part of the proof of ownership.
pub(crate) fn desired_tags(machine: &DesiredMachine) -> BTreeSet<String> {
    machine
        .machine
        .tags
        .iter()
        .map(ToString::to_string)
        .chain([TAG.to_owned()])
        .collect()
}

pub(crate) fn desired_nic(cluster: &DesiredCluster, machine: &DesiredMachine) -> NicConfig {
    NicConfig {
        mac: machine.machine.mac,
        bridge: cluster.network.bridge.to_string(),
        vlan: cluster.network.vlan,
    }
}

/// What the guest reads from its cloud-init drive at the first boot. It holds no secret.
pub(crate) fn seed(cluster: &DesiredCluster, machine: &DesiredMachine) -> Seed {
    Seed {
        address: cluster.interface(machine),
        gateway: cluster.network.gateway,
        dns: cluster.network.dns.clone(),
        search: cluster.search.clone(),
        user: cluster.first_user.clone(),
    }
}

pub(crate) fn new_disk(slot: String, storage: String, disk: &Disk, serial: &str) -> NewDisk {
    NewDisk {
        slot,
        storage,
        size: disk.size,
        options: disk.options,
        serial: serial.to_owned(),
    }
}

/// Slots that no disk is in, lowest first.
pub(crate) fn free_slots(config: &VmSettings) -> impl Iterator<Item = String> + use<> {
    let taken: BTreeSet<String> = config.disks.keys().cloned().collect();
    EXTRA_SLOTS
        .map(|n| format!("scsi{n}"))
        .filter(move |slot| !taken.contains(slot))
}

/// A disk without a serial was attached by hand and matches no entry of the file.
pub(crate) fn by_serial<'c>(config: &'c VmSettings, serial: &str) -> Option<(&'c str, &'c VmDisk)> {
    let found = config.disks.iter().find(|(_, disk)| disk.serial.as_deref() == Some(serial));
    found.map(|(slot, disk)| (slot.as_str(), disk))
}

fn memory(size: Mib) -> String {
    if size.0.is_multiple_of(1024) {
        format!("{} GiB", size.0 / 1024)
    } else {
        format!("{} MiB", size.0)
    }
}

fn show_seed(seed: &Seed) -> String {
    let dns: Vec<String> = seed.dns.iter().map(ToString::to_string).collect();
    format!("{} via {} dns {}", seed.address, seed.gateway, dns.join(" "))
}

fn show_options(options: mainstay_spec::DiskOptions) -> String {
    let flags = [
        ("discard", options.discard),
        ("ssd", options.ssd),
        ("iothread", options.iothread),
    ];
    let on = flags.iter().filter(|(_, on)| *on).map(|(name, _)| *name);
    std::iter::once(options.cache.as_str())
        .chain(on)
        .collect::<Vec<_>>()
        .join("+")
}
