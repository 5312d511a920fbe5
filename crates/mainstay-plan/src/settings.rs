//! One table of VM settings: what PVE calls each, what changing it costs a running machine, and whether it waits for a restart.

use std::collections::BTreeSet;

use mainstay_spec::{DiskOptions, Mib};

use crate::step::{Impact, NewDisk, NicConfig, Seed};

/// One setting of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    Name(String),
    Cores(u32),
    CpuType(String),
    Memory(Mib),
    ScsiController(&'static str),
    Agent(bool),
    Onboot(bool),
    StartupOrder(Option<u32>),
    Boot(Vec<String>),
    Nic(NicConfig),
    Seed(Seed),
    /// Those of others stay.
    Tags {
        add: BTreeSet<String>,
        remove: BTreeSet<String>,
    },
    Attach(NewDisk),
    DiskOptions {
        slot: String,
        options: DiskOptions,
    },
}

/// What the program knows about a setting.
#[derive(Debug, Clone, Copy)]
pub struct SettingInfo {
    /// PVE's key. A disk has the key of its slot, which only the VM knows.
    pub key: &'static str,
    /// In plans.
    pub label: &'static str,
    /// On a VM that runs. With PVE's default hotplug, NICs and SCSI disks change live; processors and memory never do.
    pub impact: Impact,
}

impl Setting {
    /// The table: one row for each setting.
    pub fn info(&self) -> SettingInfo {
        let row = |key, label, impact| SettingInfo { key, label, impact };
        match self {
            Self::Name(_) => row("name", "name", Impact::None),
            Self::Cores(_) => row("cores", "cpu", Impact::Reboot),
            Self::CpuType(_) => row("cpu", "cpu type", Impact::Reboot),
            Self::Memory(_) => row("memory", "memory", Impact::Reboot),
            Self::ScsiController(_) => row("scsihw", "scsi controller", Impact::Reboot),
            Self::Agent(_) => row("agent", "guest agent", Impact::Reboot),
            Self::Onboot(_) => row("onboot", "onboot", Impact::None),
            Self::StartupOrder(_) => row("startup", "startup order", Impact::None),
            Self::Boot(_) => row("boot", "boot", Impact::None),
            Self::Nic(_) => row("net0", "network", Impact::Live),
            Self::Seed(_) => row("ipconfig0", "first boot", Impact::None),
            Self::Tags { .. } => row("tags", "tags", Impact::None),
            Self::Attach(_) => row("disk", "disk", Impact::Live),
            Self::DiskOptions { .. } => row("options", "disk options", Impact::Reboot),
        }
    }

    pub fn key(&self) -> &'static str {
        self.info().key
    }

    pub fn impact(&self) -> Impact {
        self.info().impact
    }

    /// The storage on which it allocates space.
    pub(crate) fn allocates_on(&self) -> Option<&String> {
        match self {
            Self::Attach(disk) => Some(&disk.storage),
            _ => None,
        }
    }
}
