//! `pools.*`: machines that are alike; and `machines.*`: exceptions for single machines.

use std::net::Ipv4Addr;

use super::options::{CPU_FLAGS, EXTRA, HOSTPCI, MACHINE_TYPE, MTU, NICS, NUMA};
use super::shape::{CPU, CPU_TYPE, DISK, DISKS, FIRMWARE, MEMORY, ONBOOT, SCSI, STARTUP_ORDER};
use super::words;
use crate::key::{Choice, Choices, Int, Items, Key, Labels, List, MachineKey, Section};
use crate::naming;
use crate::source::Spanned;
use crate::spec::{NamePattern, Role, Taint};
use crate::value::{Mac, Range};

pub(crate) static ROLE: Key<Role> = Key::new(
    "role",
    &Choices(&[
        Choice::now("control-plane", Role::ControlPlane),
        Choice::now("worker", Role::Worker),
    ]),
    "What its machines are.",
)
.default("control-plane for the pool of that name, else worker");
pub(crate) static COUNT: Key<u32> = Key::new(
    "count",
    &Int { min: 0, max: 5000 },
    "How many machines. Control planes: 1, 3 or 5 over all pools.",
)
.required()
.also(&["replicas", "size", "number"]);
pub(crate) static ADDRESSES: Key<Range> = Key::new(
    "addresses",
    &words::ADDRESSES,
    "Addresses by ordinal: `10.0.0.11+`, `10.0.0.11-13`, or a list. Needed unless every machine has its own.",
)
.also(&["ips", "ip", "address", "range"]);
pub(crate) static VMIDS: Key<Range> = Key::new("vmids", &words::VMIDS, "VMIDs by ordinal: `2000+`, `2000-2999`, or a list.")
    .default("a block made from cluster and pool name")
    .also(&["vmid", "ids"]);
pub(crate) static NAMES: Key<NamePattern> =
    Key::new("names", &words::NAMES, "How its machines are called.").default("the file's `names`");
pub(crate) static HOSTS: Key<Items<String>> =
    Key::new("hosts", &List(&naming::HOST_NAME), "PVE hosts that may carry its machines.")
        .default("all that have the storages and the bridge")
        .also(&["node", "target_node"]);
pub(crate) static TAGS: Key<Items<String>> =
    Key::new("tags", &List(&naming::TAG), "PVE tags, besides those of the datacenter.").default("[]");
pub(crate) static LABELS: Key<Vec<(Spanned<String>, String)>> =
    Key::new("labels", &Labels, "Kubernetes labels of its nodes.").default("{}");
pub(crate) static TAINTS: Key<Items<Taint>> = Key::new(
    "taints",
    &List(&words::TAINT),
    "Kubernetes taints of its nodes, as kubectl writes them.",
)
.default("[]");
pub(crate) static PATCHES: Key<Items<String>> = Key::new(
    "patches",
    &List(&naming::PATH),
    "Patches for the config of its machines, after those of the cluster.",
)
.default("[]");
pub(crate) static MAX_UNAVAILABLE: Key<u32> = Key::new(
    "max-unavailable",
    &Int { min: 1, max: 5000 },
    "How many of its machines may be down at once while they are changed.",
)
.default("1");
static MIN: Key<u32> = Key::new("min", &Int { min: 0, max: 5000 }, "Fewest machines when scaled by demand.").later();
static MAX: Key<u32> = Key::new("max", &Int { min: 0, max: 5000 }, "Most machines when scaled by demand.").later();

pub(crate) static POOL: Section = Section {
    keys: &[
        &ROLE,
        &COUNT,
        &ADDRESSES,
        &VMIDS,
        &NAMES,
        &CPU,
        &CPU_TYPE,
        &MEMORY,
        &DISK,
        &DISKS,
        &SCSI,
        &FIRMWARE,
        &ONBOOT,
        &STARTUP_ORDER,
        &HOSTS,
        &TAGS,
        &LABELS,
        &TAINTS,
        &PATCHES,
        &NICS,
        &MACHINE_TYPE,
        &NUMA,
        &MTU,
        &CPU_FLAGS,
        &HOSTPCI,
        &EXTRA,
        &MAX_UNAVAILABLE,
        &MIN,
        &MAX,
    ],
};

pub(crate) static HOST: Key<String> = Key::new(
    "host",
    &naming::HOST_NAME,
    "The PVE host that carries it, whatever its pool says.",
)
.also(&["node", "target_node"]);
/// Here the words of other tools for a pool's hosts mean `host`, so this key takes none of them.
static OWN_HOSTS: Key<Items<String>> = Key::new(
    "hosts",
    &List(&naming::HOST_NAME),
    "PVE hosts that may carry it, instead of those of its pool.",
);
pub(crate) static ADDRESS: Key<Ipv4Addr> = Key::new("address", &words::IPV4, "Its address.").also(&["ip", "addresses"]);
pub(crate) static VMID: Key<u32> = Key::new(
    "vmid",
    &Int {
        min: 100,
        max: 999_999_999,
    },
    "Its VMID.",
)
.also(&["vmids", "id"]);
pub(crate) static MAC: Key<Mac> = Key::new("mac", &words::MAC, "Its MAC address.")
    .default("made from cluster, pool and ordinal")
    .also(&["mac_address", "macaddr"]);

pub(crate) static MACHINE: Section = Section {
    keys: &[
        &HOST,
        &OWN_HOSTS,
        &ADDRESS,
        &VMID,
        &MAC,
        &MachineKey::same(&CPU),
        &MachineKey::same(&CPU_TYPE),
        &MachineKey::same(&MEMORY),
        &MachineKey::same(&DISK),
        &MachineKey::new(&DISKS, "More disks, instead of those of its pool."),
        &MachineKey::new(&SCSI, "SCSI controller."),
        &MachineKey::new(&FIRMWARE, "UEFI or BIOS."),
        &MachineKey::same(&ONBOOT),
        &MachineKey::same(&STARTUP_ORDER),
        &MachineKey::new(&TAGS, "PVE tags, besides those of datacenter and pool."),
        &MachineKey::new(&LABELS, "Kubernetes labels, besides those of its pool."),
        &MachineKey::new(&TAINTS, "Kubernetes taints, instead of those of its pool."),
        &MachineKey::new(&PATCHES, "Patches for its config, after those of cluster and pool."),
        &MachineKey::new(&NICS, "More network cards, instead of those of its pool."),
        &MachineKey::same(&MACHINE_TYPE),
        &MachineKey::same(&NUMA),
        &MachineKey::same(&MTU),
        &MachineKey::same(&CPU_FLAGS),
        &MachineKey::same(&HOSTPCI),
        &MachineKey::same(&EXTRA),
    ],
};
