//! Applying pending changes to a running VM: what can be plugged is, the rest waits for a stop.

use std::collections::BTreeSet;

use super::cloudinit;
use super::conf::Conf;
use super::config::Errors;
use super::drive::{Drive, Net, is_net};
use super::pending;
use super::{is_drive, runtime};
use crate::die::Die;
use crate::tasks::Job;

/// Without any effect on the running VM.
const FAST: &[&str] = &[
    "description",
    "hookscript",
    "lock",
    "migrate_downtime",
    "migrate_speed",
    "name",
    "onboot",
    "protection",
    "shares",
    "startup",
    "tags",
    "vmstatestorage",
];

/// Options of a drive that QEMU takes only when the drive is added.
const COLD_DRIVE_OPTIONS: &[&str] = &[
    "aio", "discard", "iothread", "queues", "product", "cache", "ssd", "vendor", "ro",
];

/// Why an option is not applied now.
enum Skip {
    /// It waits for a stop.
    Later,
    Problem(String),
}

/// Applies what was touched; problems are told per option and stay pending.
pub(super) async fn apply(job: &Job, vmid: u32, touched: &BTreeSet<String>) -> Result<Errors, Die> {
    let mut conf = job.load(vmid)?;
    for key in FAST {
        if let Some(value) = conf.pending.remove(*key) {
            let old = conf.now.get(*key).cloned();
            cloudinit::record(&mut conf, key, old.as_deref(), Some(&value));
            conf.now.insert((*key).into(), value);
        }
    }
    let mut errors = Errors::new();
    for (key, force) in conf.delete.clone() {
        if touched.contains(&key) {
            let done = unplug(job, vmid, &mut conf, &key, force).await?;
            note(&mut errors, &key, done.err());
        }
    }
    for (key, value) in conf.pending.clone() {
        if touched.contains(&key) {
            let done = plug(job, vmid, &mut conf, &key, &value).await?;
            note(&mut errors, &key, done.err());
        }
    }
    let regenerate = features(&conf).contains("cloudinit") && !conf.cloudinit.is_empty();
    job.save(vmid, conf)?;
    if regenerate {
        cloudinit::applied(job, vmid)?;
    }
    runtime::hardware_changed(job, vmid);
    Ok(errors)
}

fn note(errors: &mut Errors, key: &str, why: Option<Skip>) {
    if let Some(Skip::Problem(text)) = why {
        errors.insert(key.into(), format!("hotplug problem - {text}\n"));
    }
}

fn features(conf: &Conf) -> BTreeSet<String> {
    match conf.get("hotplug") {
        Some("0") => BTreeSet::new(),
        None | Some("1") => ["network", "disk", "usb"].map(Into::into).into(),
        Some(list) => list.split(',').map(Into::into).collect(),
    }
}

fn is_cold_bus(key: &str) -> bool {
    ["efidisk", "tpmstate", "ide", "sata"].iter().any(|bus| key.starts_with(bus))
}

/// Takes an option out of the running VM.
async fn unplug(job: &Job, vmid: u32, conf: &mut Conf, key: &str, force: bool) -> Result<Result<(), Skip>, Die> {
    let features = features(conf);
    let old = conf.now.get(key).cloned();
    if is_net(key) || is_drive(key) {
        let feature = if is_net(key) { "network" } else { "disk" };
        if !features.contains(feature) || is_cold_bus(key) {
            return Ok(Err(Skip::Later));
        }
        if let Err(problem) = release(job, vmid, conf, key) {
            return Ok(Err(Skip::Problem(problem)));
        }
        if let Some(drive) = old.as_deref().and_then(|v| Drive::parse(key, v).ok()) {
            pending::detach(job, vmid, conf, &drive, force).await?;
        }
    } else if !leaves_live(conf, key, &features) {
        return Ok(Err(Skip::Later));
    }
    cloudinit::record(conf, key, old.as_deref(), None);
    conf.now.remove(key);
    conf.delete.remove(key);
    Ok(Ok(()))
}

/// Options that are no devices and can be taken away from a running VM.
fn leaves_live(conf: &Conf, key: &str, features: &BTreeSet<String>) -> bool {
    match key {
        "hotplug" => conf.get(key).is_none_or(|v| !v.contains("cpu") && !v.contains("memory")),
        "tablet" => features.contains("usb"),
        // A device that is not there cannot be added.
        "balloon" => conf.get(key) != Some("0"),
        "cpuunits" | "cpulimit" => true,
        _ => FAST.contains(&key) || cloudinit::is_option(key),
    }
}

/// The same for options that get another value.
fn changes_live(conf: &Conf, key: &str, value: &str, features: &BTreeSet<String>) -> bool {
    let on = |v: Option<&str>| v != Some("0");
    match key {
        "hotplug" => [conf.get(key), Some(value)]
            .into_iter()
            .flatten()
            .all(|v| !v.contains("cpu") && !v.contains("memory")),
        "tablet" => features.contains("usb"),
        "balloon" => on(conf.get(key)) == on(Some(value)),
        "agent" => conf
            .get(key)
            .is_some_and(|old| fixed_agent_parts(old) == fixed_agent_parts(value)),
        "cpuunits" | "cpulimit" => true,
        _ => cloudinit::is_option(key) || key.starts_with("ipconfig"),
    }
}

/// What of the agent's option a running VM cannot change.
fn fixed_agent_parts(value: &str) -> BTreeSet<String> {
    let part = |part: &str| match part.split_once('=') {
        None => format!("enabled={part}"),
        Some(_) => part.to_string(),
    };
    let parts = value.split(',').map(part);
    parts.filter(|p| !p.starts_with("fstrim_cloned_disks=")).collect()
}

/// The guest must let a device go.
fn release(job: &Job, vmid: u32, conf: &Conf, key: &str) -> Result<(), String> {
    let boot = conf.get("boot").and_then(|b| b.strip_prefix("order=")).unwrap_or_default();
    if is_drive(key) && boot.split(';').any(|device| device == key) {
        return Err(format!("can't unplug bootdisk '{key}'"));
    }
    if is_cold_bus(key) {
        return Err(format!("can't unplug device '{key}'"));
    }
    if runtime::releases_devices(job, vmid) {
        return Ok(());
    }
    let single = conf.get("scsihw") == Some("virtio-scsi-single");
    if key.starts_with("scsi") && !single {
        // A disk leaves its controller without asking; only the controller itself would have to be let go.
        return Ok(());
    }
    let device = match key.strip_prefix("scsi") {
        Some(number) if single => format!("virtioscsi{number}"),
        _ => key.to_string(),
    };
    Err(format!("error on hot-unplugging device '{device}' - still busy in guest?"))
}

/// Puts a new value into the running VM.
async fn plug(job: &Job, vmid: u32, conf: &mut Conf, key: &str, value: &str) -> Result<Result<(), Skip>, Die> {
    let features = features(conf);
    let old = conf.now.get(key).cloned();
    let possible = if is_net(key) {
        plug_net(job, vmid, conf, key, value, features.contains("network"))
    } else if is_drive(key) {
        plug_drive(job, vmid, conf, key, value, features.contains("disk")).await?
    } else if changes_live(conf, key, value, &features) {
        Ok(())
    } else {
        Err(Skip::Later)
    };
    if possible.is_ok() {
        cloudinit::record(conf, key, old.as_deref(), Some(value));
        conf.now.insert(key.into(), value.into());
        conf.pending.remove(key);
    }
    Ok(possible)
}

fn plug_net(job: &Job, vmid: u32, conf: &Conf, key: &str, value: &str, allowed: bool) -> Result<(), Skip> {
    let problem = |die: Die| Skip::Problem(die.message);
    let new = Net::parse(key, value).map_err(problem)?;
    let known = |bridge: Option<&str>| {
        let state = job.dc.state();
        bridge.is_none_or(|b| state.has_bridge(&job.host, b))
    };
    let old = conf.get(key).and_then(|v| Net::parse(key, v).ok());
    let same = |name: &str| old.as_ref().is_some_and(|o| o.get(name) == new.get(name));
    let bridged = old.as_ref().is_some_and(|o| o.get("bridge").is_some()) && new.get("bridge").is_some();
    if bridged && ["model", "macaddr", "queues", "mtu"].iter().all(|name| same(name)) {
        // Only what the card is plugged into changes.
        if !known(new.get("bridge")) {
            let bridge = new.get("bridge").unwrap_or_default();
            return Err(Skip::Problem(format!("interface {bridge} does not exist")));
        }
        return Ok(());
    }
    if !allowed {
        return Err(Skip::Later);
    }
    if old.is_some()
        && let Err(text) = release(job, vmid, conf, key)
    {
        return Err(Skip::Problem(text));
    }
    if !known(new.get("bridge")) {
        let script = "network script /usr/libexec/qemu-server/pve-bridge-hotplug failed with status 512";
        return Err(Skip::Problem(format!("VM {vmid} qmp command 'netdev_add' failed - {script}")));
    }
    Ok(())
}

async fn plug_drive(
    job: &Job,
    vmid: u32,
    conf: &mut Conf,
    key: &str,
    value: &str,
    allowed: bool,
) -> Result<Result<(), Skip>, Die> {
    if key == "efidisk0" || key == "tpmstate0" {
        return Ok(Err(Skip::Later));
    }
    let new = Drive::parse(key, value)?;
    let old = conf.get(key).and_then(|v| Drive::parse(key, v).ok());
    if new.is_cloudinit() && old.is_none() {
        return Ok(Err(Skip::Later));
    }
    if let Some(old) = old {
        if old.is_cdrom() != new.is_cdrom() {
            return Ok(Err(Skip::Problem("unable to change media type".into())));
        }
        if old.is_cdrom() {
            // A disk is changed in its tray. A cloud-init drive that is taken out goes.
            if new.file() == "none" && old.is_cloudinit() {
                pending::register_unused(job, vmid, conf, &old);
            }
            return Ok(Ok(()));
        }
        if old.file() == new.file() {
            let fixed = COLD_DRIVE_OPTIONS.iter().any(|name| old.get(name) != new.get(name));
            return Ok(if fixed { Err(Skip::Later) } else { Ok(()) });
        }
        if !allowed {
            return Ok(Err(Skip::Later));
        }
        if let Err(text) = release(job, vmid, conf, key) {
            return Ok(Err(Skip::Problem(text)));
        }
        pending::register_unused(job, vmid, conf, &old);
    }
    Ok(if !allowed || is_cold_bus(key) {
        Err(Skip::Later)
    } else {
        Ok(())
    })
}
