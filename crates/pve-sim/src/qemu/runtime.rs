//! The QEMU process: a guest that is powered on, and what happens when it ends.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::time::Instant;

use super::conf::Conf;
use super::config::current_memory;
use super::create::drives;
use super::drive::{Drive, Net, is_net};
use super::{cloudinit, disks, pending};
use crate::access::Auth;
use crate::datacenter::Datacenter;
use crate::die::Die;
use crate::guest::{Disk, Guest, Hardware, Nic, PowerEvent, PowerSwitch};
use crate::locks::Wanted;
use crate::observe::Effect;
use crate::tasks::Job;
use crate::world::World;

/// How long `qmeventd` and `qm cleanup` take to notice that a process ended.
const CLEANUP_DELAY: Duration = Duration::from_millis(700);
/// `qm cleanup` that finds a newer process waits so long for it to end.
const CLEANUP_PATIENCE: Duration = Duration::from_secs(30);

/// A powered-on VM.
pub struct Running {
    pub pid: u32,
    pub since: Instant,
    pub paused: bool,
    /// Whether the agent's channel was there at start.
    pub agent_channel: bool,
    /// Tells this process from the next of the same VM.
    pub generation: u64,
    /// `qm reboot` asked for a new process once this one ends.
    pub restart: bool,
    guest: SharedGuest,
}

type SharedGuest = Arc<Mutex<Option<Box<dyn Guest>>>>;

/// What the VM's config gives the guest.
pub(super) fn hardware(job: &Job, vmid: u32, conf: &Conf, power: PowerSwitch) -> Hardware {
    let number = |key: &str| conf.get(key).and_then(|v| v.parse::<u32>().ok()).unwrap_or(1);
    let smbios = |key: &str| {
        conf.get("smbios1")
            .and_then(|s| s.split(',').find_map(|p| p.strip_prefix(key)))
    };
    let uuid = smbios("uuid=").unwrap_or_default();
    let serial = smbios("serial=").unwrap_or_default();
    let serial = if smbios("base64=") == Some("1") {
        String::from_utf8_lossy(&STANDARD.decode(serial).unwrap_or_default()).into_owned()
    } else {
        serial.to_owned()
    };
    Hardware {
        vmid,
        host: job.host.clone(),
        name: conf.get("name").map_or_else(|| format!("VM{vmid}"), Into::into),
        uuid: uuid.to_lowercase(),
        serial,
        cores: number("cores") * number("sockets"),
        memory: current_memory(conf.get("memory")) << 20,
        nics: nics(conf),
        disks: attached(job, conf),
        cloud_init: cloudinit::files(job, vmid, conf).ok().flatten(),
        agent_channel: agent_enabled(conf),
        power,
        pace: job.dc.pace(),
    }
}

pub(super) fn agent_enabled(conf: &Conf) -> bool {
    let first = conf.get("agent").and_then(|a| a.split(',').next()).unwrap_or_default();
    matches!(first.trim_start_matches("enabled="), "1" | "on" | "yes" | "true")
}

fn nics(conf: &Conf) -> Vec<Nic> {
    let keys = (0..32).map(|n| format!("net{n}"));
    let cards = keys.filter_map(|key| conf.get(&key).and_then(|value| Net::parse(&key, value).ok()));
    let nic = |net: Net| Nic {
        mac: net.mac().unwrap_or_default(),
        bridge: net.get("bridge").unwrap_or_default().into(),
        vlan: net.get("tag").and_then(|t| t.parse().ok()),
        link_down: net.get("link_down") == Some("1"),
    };
    cards.map(nic).collect()
}

/// Disks in boot order first, then as the config sorts them; firmware volumes and CD drives are none.
fn attached(job: &Job, conf: &Conf) -> Vec<Disk> {
    let order: Vec<&str> = conf
        .get("boot")
        .and_then(|b| b.strip_prefix("order="))
        .map(|o| o.split(';').collect())
        .unwrap_or_default();
    let mut found: Vec<Drive> = drives(&conf.now)
        .filter(|d| !d.is_cdrom() && !d.key.starts_with("efidisk") && !d.key.starts_with("tpmstate"))
        .collect();
    found.sort_by_key(|d| order.iter().position(|key| *key == d.key).unwrap_or(order.len()));
    let disk = |drive: &Drive| {
        let (size, content) = disks::content(job, drive.file())?;
        Some(Disk {
            key: drive.key.clone(),
            serial: drive.get("serial").map(Into::into),
            size,
            content,
        })
    };
    found.iter().filter_map(disk).collect()
}

/// Powers the VM on; the guest begins to live.
pub(super) fn power_on(job: &Job, vmid: u32, conf: &Conf) {
    let round = job.dc.round();
    let (pid, generation) = {
        let mut state = job.dc.state();
        let pid = state.next_pid();
        (pid, u64::from(pid) << 32 | job.dc.jiffies())
    };
    let switch = switch_of(&job.dc, vmid, generation);
    let hardware = hardware(job, vmid, conf, switch);
    let agent_channel = hardware.agent_channel;
    let guest: SharedGuest = Arc::new(Mutex::new(None));
    let running = Running {
        pid,
        since: Instant::now(),
        paused: false,
        agent_channel,
        generation,
        restart: false,
        guest: Arc::clone(&guest),
    };
    if let Some(vm) = job.dc.state().vm_mut(vmid, round) {
        vm.running = Some(running);
    }
    let made = job.dc.guests().power_on(hardware);
    *guest.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
    job.dc.tell(job, &Effect::VmStarted { vmid });
}

/// The guest's own way to end or restart its VM. It may be used from within a call into the guest, so it acts later. A datacenter
/// holds its guests, so a guest must not hold its datacenter: neither would ever go.
fn switch_of(dc: &Datacenter, vmid: u32, generation: u64) -> PowerSwitch {
    let dc = dc.downgrade();
    PowerSwitch::new(move |event| {
        if event == PowerEvent::Off
            && let Some(dc) = dc.upgrade()
        {
            tokio::spawn(async move { process_ended(&dc, None, vmid, generation) });
        }
    })
}

/// The process is gone, by a job or by itself. What the guest was is dropped, then the host cleans up.
fn process_ended(dc: &Datacenter, by: Option<&Job>, vmid: u32, generation: u64) {
    let round = dc.round();
    let mut state = dc.state();
    let Some(vm) = state.vm_mut(vmid, round) else { return };
    if vm.running.as_ref().is_none_or(|r| r.generation != generation) {
        return;
    }
    let ended = vm.running.take();
    vm.stopped_at = Some(Instant::now());
    let host = vm.node.clone();
    drop(state);
    let restart = ended.as_ref().is_some_and(|r| r.restart);
    // Outside the lock: a guest's end may do whatever it likes.
    drop(ended);
    let job = Job::request(dc, &host, &Auth::user(crate::access::ROOT));
    dc.tell(by.unwrap_or(&job), &Effect::VmStopped { vmid });
    tokio::spawn(cleanup(job, vmid, restart));
}

/// `qm cleanup`: applies pending changes, or starts the VM again after a reboot. If another job has already started the VM again, it holds the
/// lock until that process ends or its patience does.
async fn cleanup(job: Job, vmid: u32, restart: bool) {
    let delay = if restart { job.dc.timing().restart_gap } else { CLEANUP_DELAY };
    tokio::time::sleep(job.dc.pace().scale(delay)).await;
    let Ok(_held) = job.dc.locks().take(&job, &Wanted::vm(&job.host, vmid, 60)).await else {
        return;
    };
    if job.is_running(vmid) {
        let until = Instant::now() + CLEANUP_PATIENCE;
        while job.is_running(vmid) && Instant::now() < until {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        return;
    }
    let locked = job.load(vmid).map_or(true, |conf| conf.lock().is_some());
    if !locked && pending::apply(&job, vmid).await.is_ok() && restart {
        let _ = super::power::start_locked(&job, vmid, false).await;
    }
}

/// Pulls the plug, or ends the process in an orderly way; the guest has no say.
pub(super) fn power_off(job: &Job, vmid: u32) {
    let generation = job
        .dc
        .state()
        .vms
        .get(&vmid)
        .and_then(|vm| vm.running.as_ref().map(|r| r.generation));
    if let Some(generation) = generation {
        process_ended(&job.dc, Some(job), vmid, generation);
    }
}

fn guest_of(dc: &Datacenter, vmid: u32) -> Option<SharedGuest> {
    dc.state()
        .vms
        .get(&vmid)
        .and_then(|vm| vm.running.as_ref())
        .filter(|r| !r.paused)
        .map(|r| Arc::clone(&r.guest))
}

/// Calls into the guest, without holding the datacenter's lock.
pub(super) fn with_guest<R>(dc: &Datacenter, vmid: u32, act: impl FnOnce(&mut dyn Guest) -> R) -> Option<R> {
    let guest = guest_of(dc, vmid)?;
    let mut guest = guest.lock().unwrap_or_else(PoisonError::into_inner);
    guest.as_mut().map(|guest| act(&mut **guest))
}

pub(super) fn releases_devices(job: &Job, vmid: u32) -> bool {
    with_guest(&job.dc, vmid, |guest| guest.releases_devices()).unwrap_or(false)
}

pub(super) fn hardware_changed(job: &Job, vmid: u32) {
    let generation = job
        .dc
        .state()
        .vms
        .get(&vmid)
        .and_then(|vm| vm.running.as_ref().map(|r| r.generation));
    if let (Some(generation), Ok(conf)) = (generation, job.load(vmid)) {
        let hardware = hardware(job, vmid, &conf, switch_of(&job.dc, vmid, generation));
        with_guest(&job.dc, vmid, |guest| guest.hardware_changed(&hardware));
    }
}

/// Starts the VMs that a world says run.
pub(crate) fn start_initial(dc: &Datacenter, world: &World) {
    for (vmid, spec) in world.vms.iter().filter(|(_, spec)| spec.running) {
        let job = Job::request(dc, &spec.node, &Auth::user(crate::access::ROOT));
        if let Ok(conf) = job.load(*vmid) {
            power_on(&job, *vmid, &conf);
        }
    }
}

/// What keeps a VM from starting.
pub(super) fn check_startable(job: &Job, conf: &Conf) -> Result<(), Die> {
    let state = job.dc.state();
    let memory = current_memory(conf.get("memory")) << 20;
    let host = state.nodes.get(&job.host);
    for drive in drives(&conf.now) {
        let Some((id, _)) = drive.volume() else { continue };
        let storage = state.storage_on(id, &job.host)?;
        if state.volume(&job.host, drive.file()).is_none() && !drive.is_cloudinit() {
            return Err(Die::new(missing_volume(storage, drive.file())));
        }
    }
    for (key, value) in conf.now.iter().filter(|(key, _)| is_net(key)) {
        let net = Net::parse(key, value)?;
        let bridge = net.get("bridge").unwrap_or_default();
        let known = host.is_some() && (bridge.is_empty() || state.has_bridge(&job.host, bridge));
        if !known {
            return Err(Die::new(format!("bridge '{bridge}' does not exist")));
        }
    }
    // Linux promises more memory than there is, but not to one process.
    if host.is_some_and(|n| memory > n.maxmem) {
        job.say("kvm: cannot set up guest memory 'pc.ram': Cannot allocate memory");
        return Err(Die::new("start failed: QEMU exited with code 1"));
    }
    Ok(())
}

fn missing_volume(storage: &crate::storage::Storage, volid: &str) -> String {
    if storage.is_file_based() {
        return format!("volume '{volid}' does not exist");
    }
    let name = volid.split(':').nth(1).unwrap_or_default();
    let group = storage.other.get("vgname").cloned().unwrap_or_default();
    if storage.kind == "zfspool" {
        format!("volume '{volid}' does not exist")
    } else {
        format!("no such logical volume {group}/{name}")
    }
}

/// SIGKILL to the process.
pub(crate) fn kill(dc: &Datacenter, vmid: u32) {
    let generation = dc
        .state()
        .vms
        .get(&vmid)
        .and_then(|vm| vm.running.as_ref().map(|r| r.generation));
    if let Some(generation) = generation {
        process_ended(dc, None, vmid, generation);
    }
}

/// A start without a task and without a check.
pub(crate) fn start_now(job: &Job, vmid: u32) {
    if let Ok(conf) = job.load(vmid)
        && !job.is_running(vmid)
    {
        power_on(job, vmid, &conf);
    }
}
