//! The virtual hardware of pools and machines.

use super::words;
use crate::key::{Choice, Choices, Flag, Inside, Int, Items, Key, List, OrSection, Section, ShortOrLong};
use crate::naming;
use crate::spec::{DiskCache, Firmware, ScsiController};
use crate::value::{Gib, Mib};

pub(crate) static CPU: Key<u32> = Key::new("cpu", &Int { min: 1, max: 512 }, "How many cores.")
    .default("4")
    .also(&["cores", "cpus", "vcpu"]);
pub(crate) static CPU_TYPE: Key<String> = Key::new("cpu-type", &naming::CPU_TYPE, "CPU type, as PVE calls it.")
    .default("x86-64-v2-AES")
    .also(&["cpu_type", "type"]);
pub(crate) static MEMORY: Key<Mib> = Key::new("memory", &words::MEMORY, "How much memory.")
    .default("8GiB")
    .also(&["ram", "mem"]);
pub(crate) static DISK: Key<ShortOrLong<Gib>> = Key::new(
    "disk",
    &OrSection {
        value: &words::DISK_SIZE,
        section: &SYSTEM_DISK,
    },
    "The system disk: a size, or a section.",
)
.default("40GiB for control planes, 60GiB for workers; with RKE2 and k3s 50GiB and 100GiB")
.also(&["disk_size"]);
pub(crate) static DISKS: Key<Items<Inside>> =
    Key::new("disks", &List(&EXTRA_DISK), "More disks, found in the guest by their name.")
        .default("[]")
        .also(&["extra_disks", "volumes"]);
pub(crate) static SCSI: Key<ScsiController> = Key::new(
    "scsi",
    &Choices(&[
        Choice::now("virtio-scsi-pci", ScsiController::VirtioScsiPci),
        Choice::now("virtio-scsi-single", ScsiController::VirtioScsiSingle),
    ]),
    "SCSI controller. Talos warns of `-single` on some processors.",
)
.default("virtio-scsi-pci")
.also(&["scsihw"]);
pub(crate) static FIRMWARE: Key<Firmware> = Key::new(
    "firmware",
    &Choices(&[Choice::now("ovmf", Firmware::Ovmf), Choice::now("seabios", Firmware::Seabios)]),
    "UEFI with an EFI disk and no enrolled keys, or BIOS.",
)
.default("ovmf")
.also(&["bios"]);
pub(crate) static ONBOOT: Key<bool> = Key::new("onboot", &Flag, "PVE starts the machine when its host boots.")
    .default("true")
    .also(&["autostart"]);
pub(crate) static STARTUP_ORDER: Key<u32> = Key::new(
    "startup-order",
    &Int { min: 1, max: 9999 },
    "Place in PVE's start and shutdown order.",
)
.default("none")
.also(&["startup", "order"]);

pub(crate) static SIZE: Key<Gib> = Key::new("size", &words::DISK_SIZE, "Size, whole GiB.").default("as the pool's role has it");
pub(crate) static STORAGE: Key<String> =
    Key::new("storage", &naming::STORAGE_ID, "Storage.").default("the datacenter's for disks");
pub(crate) static CACHE: Key<DiskCache> = Key::new(
    "cache",
    &Choices(&[
        Choice::now("none", DiskCache::None),
        Choice::now("writethrough", DiskCache::Writethrough),
        Choice::now("writeback", DiskCache::Writeback),
        Choice::now("directsync", DiskCache::Directsync),
    ]),
    "Cache mode.",
)
.default("none");
pub(crate) static DISCARD: Key<bool> = Key::new("discard", &Flag, "Give freed blocks back to the storage.").default("true");
pub(crate) static SSD: Key<bool> = Key::new("ssd", &Flag, "Show it as a solid-state disk.").default("true");
pub(crate) static IOTHREAD: Key<bool> = Key::new(
    "iothread",
    &Flag,
    "A thread of its own; takes effect with `scsi: virtio-scsi-single` only.",
)
.default("false");

static SYSTEM_DISK: Section = Section {
    keys: &[&SIZE, &STORAGE, &CACHE, &DISCARD, &SSD, &IOTHREAD],
};

pub(crate) static NAME: Key<String> = Key::new(
    "name",
    &naming::DISK_NAME,
    "Its name: the serial by which the guest finds it.",
)
.required();
/// No role gives an extra disk a size.
static EXTRA_SIZE: Key<Gib> = Key::new("size", &words::DISK_SIZE, "Size, whole GiB.").required();

static EXTRA_DISK: Section = Section {
    keys: &[&NAME, &EXTRA_SIZE, &STORAGE, &CACHE, &DISCARD, &SSD, &IOTHREAD],
};
