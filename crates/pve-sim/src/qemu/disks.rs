//! Making the disks that drive options ask for.

use super::conf::{Conf, Section};
use super::drive::Drive;
use crate::die::Die;
use crate::guest::Platter;
use crate::observe::Effect;
use crate::storage::{Kind, Volume, Wish, parse_volid};
use crate::tasks::Job;

const CLOUDINIT_SIZE: u64 = 4 << 20;
const EFI_SIZE: u64 = 528 << 10;
const TPM_SIZE: u64 = 4 << 20;

/// What was made: drive strings by key, and the new volumes to free if something goes wrong.
#[derive(Default)]
pub(super) struct Made {
    pub settings: Section,
    pub volumes: Vec<String>,
}

/// Makes all disks that `settings` ask for; on a failure frees what it made.
pub(super) async fn create(job: &Job, conf: &Conf, vmid: u32, settings: &Section) -> Result<Made, Die> {
    let mut made = Made::default();
    for drive in super::check::drives_of(settings)? {
        if let Err(die) = create_one(job, conf, vmid, settings, drive, &mut made).await {
            free_all(job, &made.volumes).await;
            return Err(die);
        }
    }
    Ok(made)
}

/// Frees volumes after a failure, whatever happens; the worker may have been told to stop.
pub(super) async fn free_all(job: &Job, volumes: &[String]) {
    for volid in volumes {
        drop_volume(job, volid);
    }
}

fn drop_volume(job: &Job, volid: &str) {
    let Ok((id, _)) = parse_volid(volid) else { return };
    let mut state = job.dc.state();
    let place = state.place(id, &job.host).to_string();
    if state.volumes.remove(&place, volid).is_some() {
        drop(state);
        job.dc.tell(
            job,
            &Effect::VolumeRemoved {
                volid: volid.into(),
                host: job.host.clone(),
            },
        );
    }
}

async fn create_one(job: &Job, conf: &Conf, vmid: u32, settings: &Section, mut drive: Drive, made: &mut Made) -> Result<(), Die> {
    let key = drive.key.clone();
    if matches!(drive.file(), "" | "none" | "cdrom") {
        drive.props.remove("size");
    } else if drive.wants_cloudinit() {
        create_cloudinit(job, conf, vmid, settings, &mut drive, made).await?;
        announce(job, &drive);
    } else if drive.new_disk().is_some() {
        let imported = drive.get("import-from").is_some();
        create_disk(job, vmid, &mut drive, made).await?;
        if conf.is_template() && !imported {
            // New disks of a template are bases from the start.
            let base = super::template::make_base(job, drive.file()).await?;
            made.volumes.retain(|volid| volid != drive.file());
            made.volumes.push(base.clone());
            drive.set_file(&base);
        }
        announce(job, &drive);
    } else {
        use_existing(job, conf, vmid, settings, &mut drive)?;
    }
    made.settings.insert(key, drive.print());
    Ok(())
}

fn announce(job: &Job, drive: &Drive) {
    job.say(format!("{}: successfully created disk '{}'", drive.key, drive.print()));
}

/// Where a cloud-init drive is attached already.
fn cloudinit_key(section: &Section, except: &str) -> Option<String> {
    let drives = section.iter().filter(|(key, _)| *key != except && super::is_drive(key));
    drives
        .filter_map(|(key, value)| Drive::parse(key, value).ok())
        .find(Drive::is_cloudinit)
        .map(|d| d.key)
}

fn refuse_second_cloudinit(conf: &Conf, settings: &Section, key: &str) -> Result<(), Die> {
    let other = [&conf.now, &conf.pending, settings]
        .into_iter()
        .find_map(|section| cloudinit_key(section, key));
    match other {
        Some(other) => Err(Die::new(format!("{key} - cloud-init drive is already attached at '{other}'"))),
        None => Ok(()),
    }
}

async fn create_cloudinit(
    job: &Job,
    conf: &Conf,
    vmid: u32,
    settings: &Section,
    drive: &mut Drive,
    made: &mut Made,
) -> Result<(), Die> {
    refuse_second_cloudinit(conf, settings, &drive.key)?;
    let storage = drive.volume().map(|(id, _)| id.to_string()).unwrap_or_default();
    let file_based = job.dc.state().storage(&storage)?.is_file_based();
    let format = drive
        .get("format")
        .unwrap_or(if file_based { "qcow2" } else { "raw" })
        .to_string();
    let suffix = if file_based { format!(".{format}") } else { String::new() };
    let wish = Wish {
        storage: &storage,
        vmid,
        format: &format,
        name: Some(format!("vm-{vmid}-cloudinit{suffix}")),
        size: CLOUDINIT_SIZE,
    };
    let volid = job.allocate(wish).await?;
    made.volumes.push(volid.clone());
    drive.set_file(&volid);
    drive.props.insert("media".into(), "cdrom".into());
    drive.props.remove("format");
    Ok(())
}

async fn create_disk(job: &Job, vmid: u32, drive: &mut Drive, made: &mut Made) -> Result<(), Die> {
    let (storage, size) = drive
        .new_disk()
        .map(|new| (new.storage.to_string(), new.bytes()))
        .unwrap_or_default();
    if let Some(source) = drive.props.remove("import-from") {
        return import(job, vmid, &storage, &source, drive, made).await;
    }
    let default = job.dc.state().storage(&storage)?.default_format();
    let (format, size) = match drive.key.as_str() {
        "efidisk0" => (drive.get("format").unwrap_or("raw").to_string(), EFI_SIZE),
        "tpmstate0" => (drive.get("format").unwrap_or(default).to_string(), TPM_SIZE),
        _ => (drive.get("format").unwrap_or(default).to_string(), size),
    };
    let volid = job
        .allocate(Wish {
            storage: &storage,
            vmid,
            format: &format,
            name: None,
            size,
        })
        .await?;
    made.volumes.push(volid.clone());
    drive.set_file(&volid);
    drive.set_size(size);
    drive.props.remove("format");
    Ok(())
}

/// Copies an image into a new volume of the source's format, where the storage can.
async fn import(job: &Job, vmid: u32, storage: &str, source: &str, drive: &mut Drive, made: &mut Made) -> Result<(), Die> {
    let image = source_volume(job, source)?;
    let wrap = |die: Die| die.prefixed(&format!("cannot import from '{source}' - "));
    let (volid, size) = import_volume(job, vmid, storage, &image, drive).await.map_err(wrap)?;
    made.volumes.push(volid.clone());
    drive.set_file(&volid);
    drive.set_size(size);
    drive.props.remove("format");
    Ok(())
}

/// The copy itself. Another VM's disk is copied as a drive, an image file as a file.
async fn import_volume(job: &Job, vmid: u32, storage: &str, image: &Volume, drive: &Drive) -> Result<(String, u64), Die> {
    if image.name().is_cloudinit() {
        return Err(Die::new("cannot import from cloudinit disk"));
    }
    let named = source_drive(job, image)?;
    check_firmware(named.as_deref(), &drive.key)?;
    let shown = named.map(|name| format!("{name} ")).unwrap_or_default();
    job.say(format!("create full clone of drive {shown}({})", image.volid));
    let target = job.dc.state().storage(storage)?.clone();
    let wanted = drive.get("format");
    let format = match wanted.unwrap_or(&image.format) {
        format if target.has_format(format) => format,
        _ => target.default_format(),
    };
    if let Some(wanted) = wanted.filter(|w| *w != format) {
        job.say(format!(
            "format '{wanted}' is not supported by the target storage '{storage}' - using '{format}' instead"
        ));
    }
    // Firmware volumes have a size of their own, whatever is copied into them.
    let size = match drive.key.as_str() {
        "efidisk0" => EFI_SIZE,
        "tpmstate0" => TPM_SIZE,
        _ => image.size,
    };
    let wish = Wish {
        storage,
        vmid,
        format,
        name: None,
        size,
    };
    Ok((copy_into(job, image, wish, None).await?, size))
}

/// The key of the drive that holds a volume in its owner's config, if it is attached there.
fn source_drive(job: &Job, image: &Volume) -> Result<Option<String>, Die> {
    let state = job.dc.state();
    let Some((owner, vm)) = image.vmid.and_then(|owner| Some((owner, state.vms.get(&owner)?))) else {
        return Ok(None);
    };
    if vm.node != job.host {
        return Err(Die::new(format!("owner VM {owner} not on local node")));
    }
    let found = super::create::drives(&vm.conf.now).find(|d| d.file() == image.volid);
    Ok(found.map(|d| d.key))
}

/// Firmware state is copied to firmware state only.
fn check_firmware(from: Option<&str>, to: &str) -> Result<(), Die> {
    let Some(from) = from.filter(|from| *from != to) else {
        return Ok(());
    };
    for (key, text) in [
        ("efidisk0", "cloning from/to EFI disk requires EFI disk"),
        ("tpmstate0", "cloning from/to TPM state requires TPM state"),
    ] {
        if from == key || to == key {
            return Err(Die::new(text));
        }
    }
    Ok(())
}

/// Files to import are looked at first, as they are not trusted; disks of VMs when they are copied.
fn source_volume(job: &Job, source: &str) -> Result<Volume, Die> {
    let state = job.dc.state();
    let (id, name) = parse_volid(source)?;
    let kind = name.require_kind(state.storage(id)?)?;
    let path = state.volume_path(source)?;
    if let Some(volume) = state.volume(&job.host, source) {
        return Ok(volume.clone());
    }
    drop(state);
    let missing = format!("failed to stat '{path}'");
    if kind == Kind::Import {
        return Err(Die::new(missing));
    }
    job.say(missing);
    Err(Die::new(format!(
        "cannot import from '{source}' - could not get size of {source}"
    )))
}

/// Allocates a volume and copies another's content into it. A stopped or failed copy leaves nothing behind.
pub(super) async fn copy_into(job: &Job, source: &Volume, wish: Wish<'_>, limit: Option<u64>) -> Result<String, Die> {
    let (storage, format) = (wish.storage.to_string(), wish.format.to_string());
    let volid = job.allocate(wish).await?;
    job.say(format!("allocated target volume '{volid}'"));
    let done = copy_content(job, source, &storage, &volid, &format, limit).await;
    if done.is_err() {
        drop_volume(job, &volid);
    }
    done.map(|()| volid)
}

async fn copy_content(
    job: &Job,
    source: &Volume,
    storage: &str,
    volid: &str,
    format: &str,
    limit: Option<u64>,
) -> Result<(), Die> {
    let total = human(source.size);
    job.say(format!("transferred 0.0 B of {total} (0.00%)"));
    let command = convert_command(job, source, volid, format, limit)?;
    let told = |share: f64| {
        let (done, percent) = (human((source.size as f64 * share) as u64), share * 100.0);
        job.say(format!("transferred {done} of {total} ({percent:.2}%)"));
    };
    if job.copy_bytes((storage, &job.host), source.size, limit, told).await.is_err() {
        return Err(Die::new(format!(
            "copy failed: command '{command}' failed: interrupted by signal"
        )));
    }
    let mut state = job.dc.state();
    if source.used > state.free(storage, &job.host) {
        let written = state.free(storage, &job.host);
        drop(state);
        job.say(format!(
            "qemu-img: error while writing at byte {written}: No space left on device"
        ));
        return Err(Die::new(format!("copy failed: command '{command}' failed: exit code 1")));
    }
    let place = state.place(storage, &job.host).to_string();
    if let Some(target) = state.volumes.get_mut(&place, volid) {
        target.content = source.content.copy();
        target.used = source.used;
    }
    drop(state);
    job.say(format!("transferred {total} of {total} (100.00%)"));
    Ok(())
}

fn convert_command(job: &Job, source: &Volume, volid: &str, format: &str, limit: Option<u64>) -> Result<String, Die> {
    let state = job.dc.state();
    let (from, to) = (state.volume_path(&source.volid)?, state.volume_path(volid)?);
    let rate = limit.map(|bytes| format!(" -r {}K", bytes / 1024)).unwrap_or_default();
    Ok(format!(
        "/usr/bin/qemu-img convert -p -n{rate} -f {} -O {format} {from} zeroinit:{to}",
        source.format
    ))
}

fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            return format!("{value:.1} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} PiB")
}

/// A volume that is there already: its own size and format count, whatever is said about them.
fn use_existing(job: &Job, conf: &Conf, vmid: u32, settings: &Section, drive: &mut Drive) -> Result<(), Die> {
    let state = job.dc.state();
    state.check_volume_access(&job.auth, Some(vmid), drive.file())?;
    let volid = drive.file().to_string();
    if let Ok((id, name)) = parse_volid(&volid) {
        let kind = name.require_kind(state.storage(id)?)?;
        let format = match kind {
            Kind::Images => name.file().rsplit_once('.').map_or("raw", |(_, e)| e),
            _ => "raw",
        };
        if let Some(wanted) = drive.get("format").filter(|wanted| *wanted != format) {
            return Err(Die::new(format!(
                "drive '{}' - volume '{volid}' - 'format={wanted}' option different from storage format '{format}'",
                drive.key
            )));
        }
        if drive.is_cloudinit() {
            refuse_second_cloudinit(conf, settings, &drive.key)?;
        }
        state.storage_on(id, &job.host)?;
        let Some(volume) = state.volume(&job.host, &volid) else {
            return Err(Die::new(format!("volume '{volid}' does not exist")));
        };
        drive.set_size(volume.size);
    }
    Ok(())
}

/// A volume's content, shared with the guest that has it attached.
pub(super) fn content(job: &Job, volid: &str) -> Option<(u64, Platter)> {
    let state = job.dc.state();
    state
        .volume(&job.host, volid)
        .map(|volume| (volume.size, volume.content.clone()))
}
