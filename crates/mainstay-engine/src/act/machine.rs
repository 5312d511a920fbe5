//! Machines on Proxmox VE: claim, fill, grow, start, change, stop, delete.

use std::time::Duration;

use mainstay_plan::{
    Claim, Fill, ImageSource, MadeDisk, Mark, NewDisk, Nic, Proof, Remark, Seed, Setting, Spare, StorageAt, TAG, VmRef,
    VolumeUse, volume_owner,
};
use mainstay_spec::{DiskCache, DiskOptions, Firmware, Gib};
use pve_api::{
    Agent, Bios, Boot, Bus, Cache, Call, Class, Content, Description, DiskSize, Drive, Error, IpConfig, Ipv4, Net, NetModel,
    Slot, Smbios, Source, Tags, Upid, VmConfig, Vmid, Volid, cluster, qemu, storage, task,
};
use tokio::time::Instant;
use uuid::Uuid;

use super::image::PROGRESS_EVERY;
use super::wait::{self, Look};
use super::{named, talos};
use crate::event::Voice;
use crate::failure::{Failure, Kind};
use crate::journal::Entry;
use crate::observe::{LOG_LINES, all_uses, made_in, slot, volume_uses};
use crate::site::{Site, talos_at};

/// A guest whose firmware does not react to a power button is cut off after this.
const REBOOT_WAIT: Duration = Duration::from_secs(300);
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(60);

/// A host gives a forwarded request up after thirty seconds, so one that is unheard of by then never began.
const MAY_STILL_BEGIN: Duration = Duration::from_secs(35);

/// How long after a kill a request of that run may still take effect. A forwarded one is given up after thirty seconds; for one that its
/// own host holds there is no limit in Proxmox VE, so this is a guess with room, not a proof.
const STILL_ON_ITS_WAY: Duration = Duration::from_secs(50);

/// How long a copy may well take. Nothing ends it then: a copy that is given up for lost would be made twice.
const COPY: Duration = Duration::from_secs(4 * 3600);

/// How often the list of disks is written anew when the VM was changed meanwhile.
const LIST_TRIES: u32 = 3;

/// The task that destroys a volume. Several may run for one VM.
const VOLUME_TASK: &str = "imgdel";

/// A VM as PVE names it.
pub struct Place {
    pub host: pve_api::Host,
    pub vmid: Vmid,
}

impl Place {
    fn planned(vm: &VmRef) -> Result<Self, Failure> {
        Ok(Self {
            host: named(&vm.host)?,
            vmid: named(vm.vmid)?,
        })
    }

    /// The config of a VM where it is now: HA or an admin may have moved it since the plan was made. `None` when it is gone.
    async fn read(site: &Site, vm: &VmRef) -> Result<Option<(Self, VmConfig)>, Failure> {
        let planned = Self::planned(vm)?;
        match site.pve.call(qemu::config(&planned.host, planned.vmid)).await {
            Ok(read) => return Ok(Some((planned, read))),
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error.into()),
        }
        let Some(place) = Self::find(site, planned.vmid).await? else {
            return Ok(None);
        };
        match site.pve.call(qemu::config(&place.host, place.vmid)).await {
            Ok(read) => Ok(Some((place, read))),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn find(site: &Site, vmid: Vmid) -> Result<Option<Self>, Failure> {
        let guests = site.pve.call(cluster::resources(Some(cluster::ResourceKind::Vm))).await?;
        let host = guests.into_iter().find_map(|resource| match resource {
            cluster::Resource::Guest(guest) if guest.vmid == vmid => Some(guest.host),
            _ => None,
        });
        Ok(host.map(|host| Self { host, vmid }))
    }

    /// The VM that is meant, with its config; `None` when it is gone. Its VMID may be somebody else's by now, and then nothing is done.
    async fn ours(site: &Site, vm: &VmRef) -> Result<Option<(Self, VmConfig)>, Failure> {
        let read = Self::read(site, vm).await?;
        if let Some((_, config)) = &read
            && uuid(config) != Some(vm.uuid)
        {
            return Err(Failure::changed(format!(
                "{vm} is not ours any more: it has another SMBIOS UUID"
            )));
        }
        Ok(read)
    }

    /// The config of a VM of ours that must be there.
    pub async fn config(site: &Site, vm: &VmRef) -> Result<(Self, VmConfig), Failure> {
        Self::ours(site, vm).await?.ok_or_else(|| gone(vm))
    }

    /// Whether a VM of ours that must be there runs.
    async fn power(site: &Site, vm: &VmRef) -> Result<(Self, bool), Failure> {
        let (place, _) = Self::config(site, vm).await?;
        let running = is_running(site, &place).await?;
        Ok((place, running))
    }
}

fn uuid(config: &VmConfig) -> Option<Uuid> {
    config.smbios.as_ref().and_then(|smbios| smbios.uuid)
}

fn gone(vm: &VmRef) -> Failure {
    Failure::changed(format!("{vm} is gone"))
}

/// Creates the VM without disks. The answer to this one request decides whose VMID it is.
pub async fn claim(site: &Site, claim: &Claim) -> Result<(), Failure> {
    let place = Place::planned(&claim.vm)?;
    let options = qemu::CreateOptions {
        pool: claim.pool.as_deref().map(named).transpose()?,
        start: false,
    };
    begin(site, "machine.claim", &claim.name);
    let call = qemu::create(&place.host, place.vmid, &claimed_config(claim)?, &options);
    match site.pve.call(call).await {
        Ok(upid) => follow(site, "machine.claim", &claim.name, &upid).await?,
        // Ours from an attempt whose answer was lost, or somebody else's: the marks tell.
        Err(error) if error.class() == Some(&Class::Exists) => check_claimed(site, claim).await?,
        Err(error) => return Err(error.into()),
    }
    if claim.tags_follow {
        let remark = Remark {
            vm: claim.vm.clone(),
            mark: claim.mark.clone(),
            tags: claim.tags.clone(),
        };
        mark(site, &remark).await?;
    }
    Ok(())
}

/// The VM that has our VMID carries our marks. Somebody else's is a conflict.
async fn check_claimed(site: &Site, claim: &Claim) -> Result<(), Failure> {
    let read = Place::read(site, &claim.vm).await?;
    let (_, config) = read.ok_or_else(|| gone(&claim.vm))?;
    // While it is being created there is nothing in it but its lock.
    if config.lock.is_some() && config.smbios.is_none() {
        return Err(Failure::changed(format!("{} is being created by somebody", claim.vm)));
    }
    if uuid(&config) == Some(claim.vm.uuid) {
        Ok(())
    } else {
        Err(taken(&claim.vm))
    }
}

fn taken(vm: &VmRef) -> Failure {
    Failure::conflict(format!("VMID {} was taken by somebody else meanwhile", vm.vmid))
        .why("the VM there does not carry this machine's SMBIOS UUID, so it is not ours and was left alone")
        .help("choose other VMIDs in cluster.yaml, or move that VM, then run `mainstay up` again")
}

fn claimed_config(claim: &Claim) -> Result<VmConfig, Failure> {
    let shape = &claim.shape;
    let mut other = std::collections::BTreeMap::from([
        ("serial0".to_owned(), "socket".to_owned()),
        ("rng0".to_owned(), "source=/dev/urandom".to_owned()),
    ]);
    if let Some(order) = shape.startup_order {
        other.insert("startup".into(), format!("order={order}"));
    }
    Ok(VmConfig {
        name: Some(claim.name.clone()),
        description: Some(described(&claim.mark.write_into(""))?),
        tags: if claim.tags_follow { None } else { Some(tags(&claim.tags)?) },
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
            other: std::collections::BTreeMap::new(),
        }),
        smbios: Some(Smbios::of(claim.vm.uuid)),
        nets: [(0, net(&claim.nic)?)].into(),
        other,
        ..VmConfig::default()
    })
}

fn net(nic: &Nic) -> Result<Net, Failure> {
    Ok(Net {
        model: NetModel::Virtio,
        mac: Some(pve_api::Mac::new(nic.mac.0)),
        bridge: Some(nic.bridge.clone()),
        vlan: nic.vlan,
        ..Net::default()
    })
}

fn tags(names: &std::collections::BTreeSet<String>) -> Result<Tags, Failure> {
    let mut tags = Tags::default();
    for name in names {
        tags.insert(name)
            .map_err(|error| Failure::new(Kind::Bug, "a tag that Proxmox VE does not take").caused_by(error))?;
    }
    Ok(tags)
}

fn described(text: &str) -> Result<Description, Failure> {
    named(text)
}

/// Writes the mark and adds tags, only onto a VM that is still the one that was planned for. Compare-and-set: somebody else's edit in between is looked at first.
pub async fn mark(site: &Site, remark: &Remark) -> Result<(), Failure> {
    let (place, config) = Place::config(site, &remark.vm).await?;
    let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
    let after = remark.mark.write_into(before);
    let mut change = qemu::Change {
        digest: config.digest,
        ..qemu::Change::default()
    };
    if after != before {
        change.set.description = Some(described(&after)?);
    }
    let all = with_tags(config.tags.as_ref(), &remark.tags)?;
    if config.tags.as_ref() != Some(&all) {
        change.set.tags = Some(all);
    }
    if change.set == VmConfig::default() {
        return Ok(());
    }
    begin(site, "machine.mark", &remark.mark.machine);
    site.pve.call(qemu::set(&place.host, place.vmid, &change)).await?;
    Ok(())
}

fn with_tags(there: Option<&Tags>, added: &std::collections::BTreeSet<String>) -> Result<Tags, Failure> {
    let all = there
        .iter()
        .flat_map(|tags| tags.iter())
        .map(str::to_owned)
        .chain(added.iter().cloned())
        .collect();
    tags(&all)
}

/// Gives a claimed VM its disks, in one request. The same disks sent twice would be two sets of disks, so a fill that may have begun is waited for.
pub async fn fill(site: &Site, voice: &Voice, fill: &Fill) -> Result<(), Failure> {
    names_are_free(site, voice, &fill.vm).await;
    settle_tasks(site, voice, &Place::planned(&fill.vm)?).await?;
    let (place, config) = Place::config(site, &fill.vm).await?;
    let set = missing(fill, &config)?;
    if set == VmConfig::default() {
        return list_made(site, &fill.vm).await;
    }
    let system = fill.system.as_ref().map(|disk| slot(&disk.slot)).transpose()?;
    let makes_system = system.is_some_and(|slot| set.drives.contains_key(&slot));
    begin(site, "machine.fill", &fill.vm.to_string());
    let change = qemu::Change {
        set,
        digest: config.digest,
        ..qemu::Change::default()
    };
    let call = qemu::change(&place.host, place.vmid, &change);
    let sent = once(site, voice, &place, call).await?;
    let answered = Instant::now();
    let mut copied_at = None;
    if let Some(upid) = sent {
        note(site, "machine.fill", &fill.vm.to_string(), &upid);
        let ended = copied(site, voice, &upid).await;
        if ended.is_err() {
            journal_log(site, place.vmid, &upid).await;
        }
        copied_at = ended?;
    }
    // Started by somebody before it had a disk, it would never look for one. While the disk is copied nobody can start it, and who starts
    // it later finds one.
    let then = copied_at.unwrap_or(answered);
    if makes_system && runs_since_before(site, &place, then).await? {
        stop(site, voice, &fill.vm, None).await?;
    }
    list_made(site, &fill.vm).await
}

/// Writes down which volumes the disks became that the mark says were asked for: from then on a disk is ours by its name. A config
/// that was changed in between is read again.
async fn list_made(site: &Site, vm: &VmRef) -> Result<(), Failure> {
    for _ in 0..LIST_TRIES {
        let (place, config) = Place::config(site, vm).await?;
        let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
        let Some(mark) = Mark::parse(before) else { return Ok(()) };
        let made = read_back(vm.vmid, &mark, &config);
        if made.is_empty() {
            return Ok(());
        }
        site.journal.write(&Entry::Made {
            vmid: vm.vmid,
            volumes: made.iter().filter_map(|(_, disk)| disk.volume.clone()).collect(),
        });
        let mut change = qemu::Change {
            digest: config.digest,
            ..qemu::Change::default()
        };
        change.set.description = Some(described(&mark.with_made(made).write_into(before))?);
        match site.pve.call(qemu::set(&place.host, place.vmid, &change)).await {
            Err(error) if error.class() == Some(&Class::Changed) => {}
            written => return Ok(written.map(drop)?),
        }
    }
    // The next plan finds that the list lacks them.
    Ok(())
}

/// The disks that were asked for and are there. A disk with a serial is known by it.
fn read_back(vmid: u32, mark: &Mark, config: &VmConfig) -> Vec<(String, MadeDisk)> {
    let is_there = |(slot_name, asked): (&String, &MadeDisk)| {
        let drive = config.drives.get(&slot_name.parse().ok()?)?;
        let volume = drive.volume()?.to_string();
        let is_it = asked.serial.is_none() || asked.serial == drive.serial;
        let made = MadeDisk {
            volume: Some(volume.clone()),
            serial: asked.serial.clone(),
        };
        (is_it && volume_owner(&volume) == Some(vmid)).then(|| (slot_name.clone(), made))
    };
    let asked = mark.disks.iter().flatten().filter(|(_, disk)| disk.volume.is_none());
    asked.filter_map(is_there).collect()
}

/// A task that failed half way may leave volumes that no config names. Its log does.
async fn journal_log(site: &Site, vmid: Vmid, upid: &Upid) {
    let Ok(page) = site.pve.call(task::log(upid, 0, LOG_LINES)).await else {
        return;
    };
    let volumes: Vec<String> = page.items.iter().filter_map(|line| made_in(&line.t)).collect();
    if !volumes.is_empty() {
        site.journal.write(&Entry::Made {
            vmid: vmid.get(),
            volumes,
        });
    }
}

async fn runs_since_before(site: &Site, place: &Place, then: Instant) -> Result<bool, Failure> {
    let status = site.pve.call(qemu::status(&place.host, place.vmid)).await?;
    // Told in whole seconds.
    let up = Duration::from_secs(status.uptime + 1);
    Ok(status.status == cluster::RunState::Running && up >= then.elapsed())
}

/// A leftover that this run found and destroyed may have been sent away before, by a run that was killed: that request must not arrive
/// when the name is a new disk's.
async fn names_are_free(site: &Site, voice: &Voice, vm: &VmRef) {
    let until = site.began + STILL_ON_ITS_WAY;
    if site.freed.lock().expect("plain data").contains(&vm.vmid) && Instant::now() < until {
        voice.wait(
            "a request of a run that was killed may still free the disk's name",
            STILL_ON_ITS_WAY,
        );
        tokio::time::sleep_until(until).await;
    }
}

/// What of the fill is not there yet.
fn missing(fill: &Fill, config: &VmConfig) -> Result<VmConfig, Failure> {
    let mut set = VmConfig::default();
    let mut put = |slot: Slot, drive: Drive| {
        if !config.drives.contains_key(&slot) {
            set.drives.insert(slot, drive);
        }
    };
    if let Some(system) = &fill.system {
        put(slot(&system.slot)?, imported(system, &fill.image)?);
    }
    if let Some(store) = &fill.efi {
        put(Slot::Efi, efi(store)?);
    }
    if let Some(store) = fill.seed_on.as_ref().filter(|_| config.cloud_init_drive().is_none()) {
        put(
            Slot::Disk(Bus::Ide, 2),
            Drive::new(Source::CloudInit { storage: named(store)? }),
        );
    }
    for disk in &fill.extra {
        put(slot(&disk.slot)?, allocated(disk)?);
    }
    if !set.drives.is_empty() {
        put_seed(&mut set, &fill.seed);
        set.boot = Some(Boot::from_devices(&fill.boot));
    }
    Ok(set)
}

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
}

fn imported(disk: &NewDisk, image: &ImageSource) -> Result<Drive, Failure> {
    let from = Volid::import(named(&image.storage)?, &image.file)
        .map_err(|error| Failure::new(Kind::Bug, "an image that Proxmox VE cannot name").caused_by(error))?;
    Ok(with_options(
        Drive::new(Source::Import {
            storage: named(&disk.storage)?,
            from,
        }),
        disk,
    ))
}

fn allocated(disk: &NewDisk) -> Result<Drive, Failure> {
    let gib =
        u32::try_from(disk.size.0).map_err(|error| Failure::new(Kind::Bug, "a disk beyond all measure").caused_by(error))?;
    Ok(with_options(
        Drive::new(Source::Allocate {
            storage: named(&disk.storage)?,
            gib,
        }),
        disk,
    ))
}

fn with_options(drive: Drive, disk: &NewDisk) -> Drive {
    Drive {
        serial: Some(disk.serial.clone()),
        ..tuned(drive, disk.options)
    }
}

fn tuned(drive: Drive, options: DiskOptions) -> Drive {
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

/// No keys are enrolled: with Microsoft's, Talos would not boot.
fn efi(store: &str) -> Result<Drive, Failure> {
    let drive = Drive::new(Source::Allocate {
        storage: named(store)?,
        gib: 1,
    });
    Ok(Drive {
        efitype: Some("4m".into()),
        pre_enrolled_keys: Some(false),
        ..drive
    })
}

/// Grows a disk to an absolute size; one that is as large already is done.
pub async fn grow(site: &Site, voice: &Voice, vm: &VmRef, slot_name: &str, to: Gib) -> Result<(), Failure> {
    let (place, config) = Place::config(site, vm).await?;
    let slot = slot(slot_name)?;
    let drive = config
        .drives
        .get(&slot)
        .ok_or_else(|| Failure::changed(format!("{vm} has no disk {slot_name}")))?;
    let wanted = DiskSize::from_gib(to.0);
    if drive.size.is_some_and(|size| size >= wanted) {
        return Ok(());
    }
    begin(site, "machine.grow", &vm.to_string());
    let call = qemu::resize(&place.host, place.vmid, slot, wanted, config.digest);
    if let Some(upid) = once(site, voice, &place, call).await? {
        follow(site, "machine.grow", &vm.to_string(), &upid).await?;
    }
    let (place, config) = Place::config(site, vm).await?;
    match config.drives.get(&slot) {
        Some(drive) if drive.size.is_none_or(|size| size < wanted) => measure(site, &place, &config, slot, drive).await,
        _ => Ok(()),
    }
}

/// Has PVE measure a disk again. A growth that was broken off after the volume grew leaves the old size in the config, and growing it
/// once more does nothing. A disk that is sent without its size is measured.
async fn measure(site: &Site, place: &Place, config: &VmConfig, slot: Slot, drive: &Drive) -> Result<(), Failure> {
    let mut change = qemu::Change {
        digest: config.digest,
        ..qemu::Change::default()
    };
    let unsized_drive = Drive {
        size: None,
        ..drive.clone()
    };
    change.set.drives.insert(slot, unsized_drive);
    site.pve.call(qemu::set(&place.host, place.vmid, &change)).await?;
    Ok(())
}

pub async fn start(site: &Site, voice: &Voice, vm: &VmRef) -> Result<(), Failure> {
    let (place, running) = Place::power(site, vm).await?;
    if running {
        return Ok(());
    }
    begin(site, "machine.start", &vm.to_string());
    let upid = once(site, voice, &place, qemu::start(&place.host, place.vmid)).await?;
    match follow(site, "machine.start", &vm.to_string(), &upid).await {
        // Somebody was faster.
        Err(_) if is_running(site, &place).await? => Ok(()),
        result => result,
    }
}

async fn is_running(site: &Site, place: &Place) -> Result<bool, Failure> {
    Ok(site.pve.call(qemu::status(&place.host, place.vmid)).await?.status == cluster::RunState::Running)
}

/// Changes settings and the mark together: the digest in the mark always speaks of what is set.
pub async fn change(site: &Site, vm: &VmRef, settings: &[Setting], mark: &Mark) -> Result<(), Failure> {
    let (place, config) = Place::config(site, vm).await?;
    let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
    let mut change = qemu::Change {
        digest: config.digest,
        ..qemu::Change::default()
    };
    change.set.description = Some(described(&mark.write_into(before))?);
    for setting in settings {
        apply(&mut change, setting, &config)?;
    }
    begin(site, "machine.change", &mark.machine);
    if let Some(upid) = site.pve.call(qemu::change(&place.host, place.vmid, &change)).await? {
        follow(site, "machine.change", &mark.machine, &upid).await?;
    }
    if settings.iter().any(|setting| matches!(setting, Setting::Attach(_))) {
        list_made(site, vm).await?;
    }
    Ok(())
}

fn apply(change: &mut qemu::Change, setting: &Setting, config: &VmConfig) -> Result<(), Failure> {
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
                other: std::collections::BTreeMap::new(),
            });
        }
        Setting::Onboot(onboot) => set.onboot = Some(*onboot),
        Setting::StartupOrder(Some(order)) => drop(set.other.insert("startup".into(), format!("order={order}"))),
        Setting::StartupOrder(None) => change.delete.push("startup".into()),
        Setting::Boot(devices) => set.boot = Some(Boot::from_devices(devices)),
        Setting::Nic(nic) => drop(set.nets.insert(0, net(nic)?)),
        Setting::Seed(seed) => put_seed(set, seed),
        Setting::Tags(added) => set.tags = Some(with_tags(config.tags.as_ref(), added)?),
        Setting::Attach(disk) => {
            let slot = slot(&disk.slot)?;
            // The same new disk sent twice would be two disks.
            if !config.drives.contains_key(&slot) {
                set.drives.insert(slot, allocated(disk)?);
            }
        }
        Setting::DiskOptions { slot: name, options } => {
            let slot = slot(name)?;
            let drive = config
                .drives
                .get(&slot)
                .ok_or_else(|| Failure::changed(format!("there is no disk {name}")))?;
            set.drives.insert(slot, tuned(drive.clone(), *options));
        }
    }
    Ok(())
}

/// A full restart, since QEMU takes pending settings only when it begins.
pub async fn reboot(site: &Site, voice: &Voice, vm: &VmRef, address: std::net::Ipv4Addr) -> Result<(), Failure> {
    let (place, running) = Place::power(site, vm).await?;
    if !running {
        return start(site, voice, vm).await;
    }
    talos::can_be_spared(site, address).await?;
    begin(site, "machine.reboot", &vm.to_string());
    let call = qemu::reboot(&place.host, place.vmid, SHUTDOWN_PATIENCE);
    let upid = once(site, voice, &place, call).await?;
    follow(site, "machine.reboot", &vm.to_string(), &upid).await?;
    wait::until(
        site,
        voice,
        &format!("{} did not come back", talos_at(address)),
        REBOOT_WAIT,
        async || {
            // Proxmox VE shows it as stopped for some seconds after the task ended.
            if !is_running(site, &place).await? {
                return Ok(Look::NotYet("restarting".into()));
            }
            Ok(match site.node(address)?.status().await {
                Ok(Some(status)) if status.stage == talos_api::resource::Stage::Running => Look::Done(()),
                Ok(status) => Look::NotYet(format!("Talos is {}", status.unwrap_or_default().stage)),
                Err(error) => Look::NotYet(error.to_string()),
            })
        },
    )
    .await
}

pub async fn stop(site: &Site, voice: &Voice, vm: &VmRef, spare: Option<&Spare>) -> Result<(), Failure> {
    let Some((place, _)) = Place::ours(site, vm).await? else {
        return Ok(());
    };
    if !is_running(site, &place).await? {
        return Ok(());
    }
    talos::does_not_join(site, voice, spare).await?;
    talos::can_spare(site, spare).await?;
    begin(site, "machine.stop", &vm.to_string());
    let upid = once(site, voice, &place, qemu::stop(&place.host, place.vmid, true)).await?;
    follow(site, "machine.stop", &vm.to_string(), &upid).await?;
    if is_running(site, &place).await? {
        Err(Failure::changed(format!("{vm} runs again although it was stopped")))
    } else {
        Ok(())
    }
}

/// A machine that goes, and the volumes that were approved to go with it.
pub struct Going<'a> {
    pub machine: &'a str,
    pub vm: &'a VmRef,
    pub volumes: &'a [String],
    pub with_disks: &'a [String],
    pub purge: bool,
    pub only_going: bool,
}

/// Destroys a stopped VM with its disks. All three proofs, every volume that it names and Proxmox VE's quorum are read right before:
/// without quorum PVE would destroy the disks and keep the VM.
pub async fn delete(site: &Site, voice: &Voice, going: &Going<'_>, spare: Option<&Spare>) -> Result<(), Failure> {
    let &Going {
        machine, vm, only_going, ..
    } = going;
    let (status, read) = tokio::join!(site.pve.call(cluster::status()), Place::ours(site, vm));
    let Some((place, config)) = read? else {
        return Ok(());
    };
    if !status?.quorate {
        return Err(Failure::refused("the Proxmox VE cluster has no quorum")
            .why("a deletion now would destroy the disks and keep the VM")
            .help("bring its hosts back first: pvecm status"));
    }
    let mark = prove(machine, vm, &config)?;
    if only_going && !(mark.going && lacks_system_disk(site, &place, &config).await?) {
        return Err(Failure::changed(format!("{vm} is not what was left of it any more")));
    }
    if is_running(site, &place).await? {
        return Err(Failure::changed(format!("{vm} runs again")));
    }
    talos::can_spare(site, spare).await?;
    only_approved_volumes(going, &volume_uses(&site.pve, &place.host, place.vmid).await?)?;
    // What Proxmox VE cannot remove is only a warning of its task. The next run knows by this which volumes were ours.
    site.journal.write(&Entry::Made {
        vmid: vm.vmid,
        volumes: going.volumes.to_vec(),
    });
    mark_going(site, &place, &config, mark).await?;
    // Without `destroy-unreferenced-disks`: it takes every volume of this VMID on all storages, also on those that the token cannot see.
    let options = qemu::DeleteOptions {
        purge: going.purge,
        destroy_unreferenced_disks: false,
    };
    match once(site, voice, &place, qemu::delete(&place.host, place.vmid, options)).await {
        Ok(Some(upid)) => follow(site, "machine.delete", machine, &upid).await,
        Ok(None) => Ok(()),
        Err(error) if error.is_missing() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Proxmox VE destroys each volume of this VMID that the VM names, whoever made it. One that was not approved stops the deletion.
fn only_approved_volumes(going: &Going<'_>, uses: &[VolumeUse]) -> Result<(), Failure> {
    let approved = |used: &VolumeUse| going.volumes.contains(&used.volume) || going.with_disks.contains(&used.volume);
    let is_other = |used: &&VolumeUse| volume_owner(&used.volume) == Some(going.vm.vmid) && !approved(used);
    match uses.iter().find(is_other) {
        None => Ok(()),
        Some(used) => Err(Failure::changed(format!(
            "{} has another volume now: {} {}",
            going.vm, used.slot, used.volume
        ))),
    }
}

async fn lacks_system_disk(site: &Site, place: &Place, config: &VmConfig) -> Result<bool, Failure> {
    let system = config.drives.get(&Slot::Disk(Bus::Scsi, 0)).and_then(Drive::volume);
    let Some(volume) = system else { return Ok(true) };
    let filter = storage::ContentFilter {
        content: Some(Content::Images),
        vmid: Some(place.vmid),
    };
    let there = site
        .pve
        .call(storage::content(&place.host, volume.storage(), &filter))
        .await?;
    Ok(!there.iter().any(|listed| listed.volid == *volume))
}

/// A destruction that breaks off leaves a VM that cannot start. The mark tells the next run, of whomever, that it may be ended.
async fn mark_going(site: &Site, place: &Place, config: &VmConfig, mark: Mark) -> Result<(), Failure> {
    if mark.going {
        return Ok(());
    }
    let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
    let mut change = qemu::Change {
        digest: config.digest,
        ..qemu::Change::default()
    };
    // People's own text may leave no room for the word; then it goes without.
    let Ok(text) = described(&Mark { going: true, ..mark }.write_into(before)) else {
        return Ok(());
    };
    change.set.description = Some(text);
    site.pve.call(qemu::set(&place.host, place.vmid, &change)).await?;
    Ok(())
}

/// Beside its UUID the VM has our tag and block.
fn prove(machine: &str, vm: &VmRef, config: &VmConfig) -> Result<Mark, Failure> {
    let refuse = |proof: Proof| Err(Failure::changed(format!("{vm} lost its {proof}, so it is not deleted")));
    if !config.tags.as_ref().is_some_and(|tags| tags.contains(TAG)) {
        return refuse(Proof::Tag);
    }
    let mark = config.description.as_ref().and_then(|text| Mark::parse(text.as_str()));
    match mark {
        Some(mark) if mark.machine == machine && mark.uuid() == vm.uuid && mark.vmid == vm.vmid => Ok(mark),
        _ => refuse(Proof::Block),
    }
}

/// Destroys a disk that no VM refers to, and that nobody makes right now: names are given again as soon as they are free.
pub async fn delete_volume(site: &Site, voice: &Voice, at: &StorageAt, volume: &str) -> Result<(), Failure> {
    let (host, volid): (pve_api::Host, Volid) = (named(&at.host)?, named(volume)?);
    let owner = volid.owner();
    let vmid = owner.ok_or_else(|| Failure::new(Kind::Bug, format!("{volid} is no disk of a VM")))?;
    check_unused(site, &volid, vmid).await?;
    site.freed.lock().expect("plain data").insert(vmid.get());
    let call = storage::delete(&host, &volid);
    match once(site, voice, &Place { host, vmid }, call).await {
        Ok(Some(upid)) => follow(site, "volume.delete", volume, &upid).await,
        Ok(None) => Ok(()),
        Err(error) if error.is_missing() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// No VM names the volume, and nothing works on the VM of its number. A config that cannot be read may name it.
async fn check_unused(site: &Site, volid: &Volid, owner: Vmid) -> Result<(), Failure> {
    let resources = site.pve.call(cluster::resources(Some(cluster::ResourceKind::Vm))).await?;
    let guests: Vec<cluster::Guest> = resources
        .into_iter()
        .filter_map(|resource| match resource {
            cluster::Resource::Guest(guest) => Some(guest),
            _ => None,
        })
        .collect();
    let tasks = match guests.iter().find(|guest| guest.vmid == owner) {
        Some(guest) => {
            running_tasks(
                site,
                &Place {
                    host: guest.host.clone(),
                    vmid: owner,
                },
            )
            .await?
        }
        None => Vec::new(),
    };
    if all_uses(&site.pve, &guests).await?.contains(&volid.to_string()) {
        return Err(Failure::changed(format!("a VM uses {volid} now")));
    }
    match tasks.iter().find(|task| task.kind() != VOLUME_TASK) {
        Some(task) => Err(Failure::changed(format!("{} works on VM {owner}", task.kind()))),
        None => Ok(()),
    }
}

pub(super) fn begin(site: &Site, step: &str, subject: &str) {
    site.journal.write(&Entry::Begin {
        step: step.into(),
        subject: subject.into(),
    });
}

/// Waits for the end of a task that we began.
pub(super) async fn follow(site: &Site, step: &str, subject: &str, upid: &Upid) -> Result<(), Failure> {
    note(site, step, subject, upid);
    site.pve.wait(upid).await?;
    Ok(())
}

pub(super) fn note(site: &Site, step: &str, subject: &str, upid: &Upid) {
    site.journal.write(&Entry::Task {
        step: step.into(),
        subject: subject.into(),
        upid: upid.to_string(),
    });
}

/// Waits for the end of a task that may copy for long, and tells how far it is. Returns when it was last seen to copy, or else when its log
/// was first read: a slow answer at the end says nothing about when the disk was there.
async fn copied(site: &Site, voice: &Voice, upid: &Upid) -> Result<Option<Instant>, Error> {
    let mut copying = None;
    let told = |progress: pve_api::Progress| {
        if copying.is_none() || progress.line.starts_with("transferred") {
            copying = Some(Instant::now());
        }
        voice.wait(progress.line, COPY);
    };
    site.pve.wait_reporting(upid, PROGRESS_EVERY, told).await?;
    Ok(copying)
}

/// Tasks of ours on this VM that still run, from this run or from one that was killed.
async fn running_tasks(site: &Site, place: &Place) -> Result<Vec<Upid>, Failure> {
    let page = site.pve.call(task::active(&place.host)).await?;
    Ok(page
        .items
        .into_iter()
        .filter(|entry| entry.end().is_none() && entry.upid.vmid() == Some(place.vmid))
        .map(|entry| entry.upid)
        .collect())
}

/// Nothing new is begun on a VM while something works on it.
async fn settle_tasks(site: &Site, voice: &Voice, place: &Place) -> Result<(), Failure> {
    for upid in running_tasks(site, place).await? {
        voice.wait(format!("task {} of VM {} still runs", upid.kind(), place.vmid), COPY);
        // Its end is what matters; how it ended shows in the VM.
        if let Err(error @ (Error::NotSent { .. } | Error::Unknown { .. })) = copied(site, voice, &upid).await {
            return Err(error.into());
        }
    }
    Ok(())
}

/// Sends a request that must not come twice: the second of two may come late, and find somebody else under the same number or name.
async fn once<T>(site: &Site, voice: &Voice, place: &Place, call: Call<T>) -> Result<T, Error> {
    let sent = site.pve.call(call).await;
    if sent.as_ref().is_err_and(Error::is_unknown) {
        await_lost_task(site, voice, place).await;
    }
    sent
}

/// The answer to a request was lost. Until it either shows as a task or can no longer begin, repeating it could do it twice.
async fn await_lost_task(site: &Site, voice: &Voice, place: &Place) {
    let began = Instant::now();
    while began.elapsed() < MAY_STILL_BEGIN {
        if !running_tasks(site, place).await.unwrap_or_default().is_empty() {
            // Whether it could be followed to its end shows when the action looks again.
            let _ = settle_tasks(site, voice, place).await;
            return;
        }
        voice.wait(
            "the answer was lost; looking whether the request was carried out",
            MAY_STILL_BEGIN,
        );
        tokio::time::sleep(site.jitter(Duration::from_secs(2))).await;
    }
}
