//! Converts between the plan's types and Proxmox VE's VM config. Writing and reading are in one file, so that a new setting is added to both.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_plan::{
    Claim, Fill, Lease, Mark, NewDisk, NicConfig, Seed, Seen, Setting, StoredImage, VmDisk, VmNic, VmSettings, VolumeUse,
};
use mainstay_spec::{DiskCache, DiskOptions, Firmware, Gib, Mac, Mib};
use pve_api::{
    Agent, Bios, Boot, Bus, Cache, Description, Drive, IpConfig, Ipv4, Lock, Net, NetModel, Slot, Smbios, Source, Tags, VmConfig,
    Volid, qemu,
};

use crate::failure::{Failure, FailureKind};

/// Parses a name from the plan. The plan contains only names that are valid in Proxmox VE, so an error is a bug.
pub fn parse_name<T: std::str::FromStr>(text: impl ToString) -> Result<T, Failure>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let text = text.to_string();
    text.parse().map_err(|error: T::Err| {
        Failure::new(
            FailureKind::Bug,
            format!("`{text}` in the plan is not a valid Proxmox VE name (bug of mainstay)"),
        )
        .caused_by(error)
    })
}

/// Parses the name of a drive slot from the plan.
pub fn slot(text: &str) -> Result<Slot, Failure> {
    text.parse()
        .map_err(|error: pve_api::ValueError| Failure::new(FailureKind::Bug, error.to_string()))
}

/// The config of a new VM without disks.
pub fn claim_config(claim: &Claim, serial: Option<&str>, lease: Option<Lease>) -> Result<VmConfig, Failure> {
    let shape = &claim.shape;
    let mark = Mark {
        lease,
        ..claim.mark.clone()
    };
    let mut other = BTreeMap::from([
        ("serial0".to_owned(), "socket".to_owned()),
        ("rng0".to_owned(), "source=/dev/urandom".to_owned()),
    ]);
    if let Some(order) = shape.startup_order {
        other.insert("startup".into(), format!("order={order}"));
    }
    Ok(VmConfig {
        name: Some(claim.name.clone()),
        description: Some(description(&mark.write_into(""))?),
        tags: if claim.tags_follow {
            None
        } else {
            Some(parse_tags(&claim.tags)?)
        },
        cores: Some(shape.cpu),
        sockets: Some(1),
        cpu: Some(shape.cpu_type.clone()),
        memory: Some(shape.memory.0),
        balloon: Some(0),
        machine: Some("q35".into()),
        bios: Some(match shape.firmware {
            Firmware::Ovmf => Bios::Ovmf,
            Firmware::Seabios => Bios::Seabios,
        }),
        scsihw: Some(shape.scsi.as_str().into()),
        ostype: Some("l26".into()),
        onboot: Some(shape.onboot),
        agent: claim.agent.then(|| Agent {
            enabled: true,
            other: BTreeMap::new(),
        }),
        smbios: Some(Smbios {
            serial: serial.map(str::to_owned),
            ..Smbios::of(claim.vm.uuid)
        }),
        nets: [(0, nic_config(&claim.nic)?)].into(),
        other,
        ..VmConfig::default()
    })
}

/// The MAC is always sent: Proxmox VE draws a new one for a card without it, and the guest finds its card by the MAC.
fn nic_config(nic: &NicConfig) -> Result<Net, Failure> {
    Ok(Net {
        model: NetModel::Virtio,
        mac: Some(pve_api::Mac::new(nic.mac.0)),
        bridge: Some(nic.bridge.clone()),
        vlan: nic.vlan,
        ..Net::default()
    })
}

/// The file's tags were checked when it was read, so a tag that PVE refuses is an error of mainstay.
fn parse_tags(names: &BTreeSet<String>) -> Result<Tags, Failure> {
    let mut tags = Tags::default();
    for name in names {
        tags.insert(name)
            .map_err(|error| Failure::new(FailureKind::Bug, "a tag in the plan is not valid in Proxmox VE").caused_by(error))?;
    }
    Ok(tags)
}

pub fn description(text: &str) -> Result<Description, Failure> {
    parse_name(text)
}

/// The tags of a VM plus further ones: tags of the user are kept.
pub fn with_tags(there: Option<&Tags>, added: &BTreeSet<String>) -> Result<Tags, Failure> {
    let all = there
        .iter()
        .flat_map(|tags| tags.iter())
        .map(str::to_owned)
        .chain(added.iter().cloned())
        .collect();
    parse_tags(&all)
}

/// The drives of a fill that the VM does not have yet, with the settings that belong to them.
pub fn missing_drives(fill: &Fill, config: &VmConfig) -> Result<VmConfig, Failure> {
    let mut set = VmConfig::default();
    let mut put = |slot: Slot, drive: Drive| {
        if !config.drives.contains_key(&slot) {
            set.drives.insert(slot, drive);
        }
    };
    if let Some(system) = &fill.system {
        put(slot(&system.slot)?, imported_drive(system, &fill.image)?);
    }
    if let Some(store) = &fill.efi {
        put(Slot::Efi, efi_drive(store)?);
    }
    if let Some(store) = fill.seed_on.as_ref().filter(|_| config.cloud_init_drive().is_none()) {
        put(
            Slot::Disk(Bus::Ide, 2),
            Drive::new(Source::CloudInit {
                storage: parse_name(store)?,
            }),
        );
    }
    for disk in &fill.extra {
        put(slot(&disk.slot)?, allocated_drive(disk)?);
    }
    if !set.drives.is_empty() {
        put_seed(&mut set, &fill.seed);
        set.boot = Some(Boot::from_devices(&fill.boot));
    }
    Ok(set)
}

/// Goes with the drives in one request: Proxmox VE writes the seed from these options at each start, so a VM that gets its disks
/// without them would boot without an address.
fn put_seed(set: &mut VmConfig, seed: &Seed) {
    set.ipconfigs.insert(
        0,
        IpConfig {
            ip: Some(Ipv4::Static(seed.address)),
            gw: Some(seed.gateway),
            ..IpConfig::default()
        },
    );
    set.nameservers = Some(seed.dns.iter().map(ToString::to_string).collect());
    set.searchdomain = Some(seed.search.clone());
    if let Some(user) = &seed.user {
        set.ciuser = Some(user.name.clone());
        set.sshkeys = Some(vec![user.public_key.clone()]);
        // Packages are upgraded by nothing but the user: an upgrade at boot would restart servers.
        set.other.insert("ciupgrade".to_owned(), "0".to_owned());
    }
}

/// PVE copies the image while it creates the disk. The size follows from the image; the disk is grown by a step of its own.
fn imported_drive(disk: &NewDisk, image: &StoredImage) -> Result<Drive, Failure> {
    let from = Volid::import(parse_name(&image.storage)?, &image.file)
        .map_err(|error| Failure::new(FailureKind::Bug, "the name of the image is not valid in Proxmox VE").caused_by(error))?;
    Ok(with_serial(
        Drive::new(Source::Import {
            storage: parse_name(&disk.storage)?,
            from,
        }),
        disk,
    ))
}

/// An empty disk. PVE takes whole GiB in this place, and the number must fit its own type.
fn allocated_drive(disk: &NewDisk) -> Result<Drive, Failure> {
    let gib = u32::try_from(disk.size.0)
        .map_err(|error| Failure::new(FailureKind::Bug, "a disk size in the plan is too large").caused_by(error))?;
    Ok(with_serial(
        Drive::new(Source::Allocate {
            storage: parse_name(&disk.storage)?,
            gib,
        }),
        disk,
    ))
}

/// The guest finds a disk by its serial, because device names depend on the order in which the kernel sees disks.
fn with_serial(drive: Drive, disk: &NewDisk) -> Drive {
    Drive {
        serial: Some(disk.serial.clone()),
        ..with_disk_options(drive, disk.options)
    }
}

/// Options at PVE's default are left out, so that the config that is read back equals the one that was sent.
fn with_disk_options(drive: Drive, options: DiskOptions) -> Drive {
    Drive {
        cache: match options.cache {
            DiskCache::None => None,
            DiskCache::Writethrough => Some(Cache::Writethrough),
            DiskCache::Writeback => Some(Cache::Writeback),
            DiskCache::Directsync => Some(Cache::Directsync),
        },
        discard: options.discard.then_some(true),
        ssd: options.ssd.then_some(true),
        iothread: options.iothread.then_some(true),
        ..drive
    }
}

/// An EFI disk without enrolled keys. With Microsoft's keys Secure Boot would reject Talos.
fn efi_drive(store: &str) -> Result<Drive, Failure> {
    let drive = Drive::new(Source::Allocate {
        storage: parse_name(store)?,
        gib: 1,
    });
    Ok(Drive {
        efitype: Some("4m".into()),
        pre_enrolled_keys: Some(false),
        ..drive
    })
}

/// Adds one setting of the plan to a config change.
pub fn apply_setting(change: &mut qemu::Change, setting: &Setting, config: &VmConfig) -> Result<(), Failure> {
    let set = &mut change.set;
    match setting {
        Setting::Name(name) => set.name = Some(name.clone()),
        Setting::Cores(cores) => (set.cores, set.sockets) = (Some(*cores), Some(1)),
        Setting::CpuType(kind) => set.cpu = Some(kind.clone()),
        Setting::Memory(memory) => set.memory = Some(memory.0),
        Setting::ScsiController(kind) => set.scsihw = Some((*kind).into()),
        Setting::Agent(enabled) => {
            set.agent = Some(Agent {
                enabled: *enabled,
                other: BTreeMap::new(),
            });
        }
        Setting::Onboot(onboot) => set.onboot = Some(*onboot),
        Setting::StartupOrder(Some(order)) => drop(set.other.insert("startup".into(), format!("order={order}"))),
        Setting::StartupOrder(None) => change.delete.push("startup".into()),
        Setting::Boot(devices) => set.boot = Some(Boot::from_devices(devices)),
        Setting::Nic(nic) => drop(set.nets.insert(0, nic_config(nic)?)),
        Setting::Seed(seed) => put_seed(set, seed),
        Setting::Tags { add, remove } => {
            let kept = config.tags.iter().flat_map(Tags::iter).filter(|tag| !remove.contains(*tag));
            set.tags = Some(parse_tags(&kept.map(str::to_owned).chain(add.iter().cloned()).collect())?);
        }
        Setting::Attach(disk) => {
            let slot = slot(&disk.slot)?;
            // Not idempotent: the same new disk sent twice would allocate two volumes.
            if !config.drives.contains_key(&slot) {
                set.drives.insert(slot, allocated_drive(disk)?);
            }
        }
        Setting::DiskOptions { slot: name, options } => {
            let slot = slot(name)?;
            let drive = config
                .drives
                .get(&slot)
                .ok_or_else(|| Failure::stale_plan(format!("the VM has no disk {name}")))?;
            set.drives.insert(slot, with_disk_options(drive.clone(), *options));
        }
    }
    Ok(())
}

/// The config in force, and the pending values alone.
pub fn current_and_pending(entries: &[qemu::Pending]) -> (VmConfig, VmConfig) {
    let pick = |value: fn(&qemu::Pending) -> Option<&String>| {
        let pairs = entries
            .iter()
            .filter_map(|entry| Some((entry.key.clone(), value(entry)?.clone())));
        VmConfig::from_entries(pairs)
    };
    (pick(|entry| entry.value.as_ref()), pick(|entry| entry.pending.as_ref()))
}

/// The volumes that a config references.
pub fn volumes_in(config: &VmConfig, snapshot: Option<&str>) -> Vec<VolumeUse> {
    let used = |slot: String, volume: String, serial: Option<String>| VolumeUse {
        slot,
        volume,
        serial,
        snapshot: snapshot.map(str::to_owned),
    };
    let drive = |(slot, drive): (&Slot, &Drive)| Some(used(slot.to_string(), drive.volume()?.to_string(), drive.serial.clone()));
    let unused = |(n, volume): (&u8, &Volid)| used(format!("unused{n}"), volume.to_string(), None);
    let state = config
        .other
        .get("vmstate")
        .map(|volume| used("vmstate".into(), volume.clone(), None));
    let drives = config.drives.iter().filter_map(drive);
    drives.chain(config.unused.iter().map(unused)).chain(state).collect()
}

/// The settings of a VM as they will be after the next restart, with everything that the current config references besides.
pub fn merged_settings(entries: Vec<qemu::Pending>, listed_lock: Option<&Lock>) -> VmSettings {
    let (current, pending_config) = current_and_pending(&entries);
    let pending = entries
        .iter()
        .filter(|entry| entry.is_change())
        .map(|entry| entry.key.clone())
        .collect();
    let merged = entries.into_iter().filter(|entry| !entry.delete).filter_map(|entry| {
        let value = entry.pending.or(entry.value)?;
        Some((entry.key, value))
    });
    let config = VmConfig::from_entries(merged);
    let lock = config.lock.as_ref().or(listed_lock).map(ToString::to_string);
    let mut settings = VmSettings {
        lock,
        pending,
        ..vm_settings(&config)
    };
    // Volumes that the settings do not show: a value that a pending one replaces, a drive to be detached, `unusedN`, a saved state.
    let shown = settings.volume_uses();
    let is_shown = |used: &VolumeUse| {
        let same = |other: &VolumeUse| other.volume == used.volume && (other.slot == used.slot || other.slot == "cloud-init");
        shown.iter().any(same)
    };
    let all = [current, pending_config]
        .into_iter()
        .flat_map(|config| volumes_in(&config, None));
    settings.aside = all.filter(|used| !is_shown(used)).collect();
    settings
}

/// Converts a VM config to the plan's type.
pub fn vm_settings(config: &VmConfig) -> VmSettings {
    let ip = config.ipconfigs.get(&0);
    VmSettings {
        digest: config.digest.map(|digest| digest.to_string()).unwrap_or_default(),
        name: config.name.clone(),
        description: config
            .description
            .as_ref()
            .map(|text| text.as_str().to_owned())
            .unwrap_or_default(),
        uuid: config.smbios.as_ref().and_then(|smbios| smbios.uuid),
        serial: config.smbios.as_ref().and_then(|smbios| smbios.serial.clone()),
        lock: config.lock.as_ref().map(ToString::to_string),
        cores: config.cores.unwrap_or(1) * config.sockets.unwrap_or(1),
        cpu_type: config.cpu.clone().unwrap_or_default(),
        memory: Mib(config.memory.unwrap_or(512)),
        onboot: config.onboot.unwrap_or(false),
        startup_order: config.other.get("startup").and_then(|text| {
            text.split(',')
                .find_map(|part| part.strip_prefix("order=").unwrap_or(part).parse().ok())
        }),
        agent: config.agent.as_ref().is_some_and(|agent| agent.enabled),
        scsi: config.scsihw.clone().unwrap_or_else(|| "lsi".into()),
        firmware: config.bios.map_or_else(|| "seabios".into(), |bios| bios.to_string()),
        protection: config.protection.unwrap_or(false),
        disks: config
            .drives
            .iter()
            .filter_map(|(slot, drive)| disk_of(drive).map(|disk| (slot.to_string(), disk)))
            .collect(),
        seed: config
            .cloud_init_drive()
            .and_then(|slot| config.drives.get(&slot)?.volume())
            .map(ToString::to_string),
        aside: Vec::new(),
        snapshots: Seen::No,
        nic: config.nets.get(&0).and_then(nic_of),
        address: ip.and_then(|ip| {
            if let Some(Ipv4::Static(address)) = ip.ip {
                Some(address)
            } else {
                None
            }
        }),
        gateway: ip.and_then(|ip| ip.gw),
        dns: config
            .nameservers
            .iter()
            .flatten()
            .filter_map(|server| server.parse().ok())
            .collect(),
        boot: if let Some(Boot::Order(devices)) = &config.boot {
            devices.clone()
        } else {
            Vec::new()
        },
        pending: BTreeSet::new(),
    }
}

/// The seed is not among the disks: PVE writes it anew at each start.
fn disk_of(drive: &Drive) -> Option<VmDisk> {
    if drive.is_cloud_init() {
        return None;
    }
    let volume = drive.volume()?;
    Some(VmDisk {
        volume: volume.to_string(),
        size: Gib(drive.size.map_or(0, |size| size.bytes() >> 30)),
        serial: drive.serial.clone(),
        options: DiskOptions {
            cache: match drive.cache {
                Some(Cache::Writethrough) => DiskCache::Writethrough,
                Some(Cache::Writeback | Cache::Unsafe) => DiskCache::Writeback,
                Some(Cache::Directsync) => DiskCache::Directsync,
                Some(Cache::None) | None => DiskCache::None,
            },
            discard: drive.discard.unwrap_or(false),
            ssd: drive.ssd.unwrap_or(false),
            iothread: drive.iothread.unwrap_or(false),
        },
    })
}

fn nic_of(net: &Net) -> Option<VmNic> {
    Some(VmNic {
        mac: Mac(net.mac?.octets()),
        bridge: net.bridge.clone()?,
        vlan: net.vlan,
    })
}
