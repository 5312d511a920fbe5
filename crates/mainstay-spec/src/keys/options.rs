//! Options of a VM besides its size and disks, for pools and machines.

use super::nic;
use crate::key::{Flag, Inside, Int, Items, Key, List, SettingList, Settings};
use crate::naming;

pub(crate) static MACHINE_TYPE: Key<String> = Key::new("machine-type", &naming::MACHINE_TYPE, "PVE's machine type.")
    .default("q35")
    .later();
pub(crate) static NUMA: Key<bool> = Key::new("numa", &Flag, "Show the guest the NUMA layout.")
    .default("false")
    .later();
pub(crate) static MTU: Key<u32> = Key::new("mtu", &Int { min: 576, max: 65520 }, "MTU of the first network card.")
    .default("that of the bridge")
    .later();
pub(crate) static CPU_FLAGS: Key<Items<String>> = Key::new(
    "cpu-flags",
    &List(&naming::CPU_FLAG),
    "CPU flags switched on (`+aes`) or off (`-pcid`).",
)
.default("[]")
.later();
pub(crate) static HOSTPCI: Key<Items<String>> = Key::new(
    "hostpci",
    &List(&naming::MAPPING),
    "PCI devices passed through, by their mapping in the datacenter.",
)
.default("[]")
.later();
pub(crate) static EXTRA: Key<SettingList> = Key::new(
    "extra",
    &Settings,
    "Options of PVE that no other key sets, like tablet, localtime or watchdog.",
)
.default("{}")
.later();
pub(crate) static NICS: Key<Items<Inside>> = Key::new(
    "nics",
    &List(&nic::SECTION),
    "More network cards, found in the guest by their MAC.",
)
.default("[]")
.later();
