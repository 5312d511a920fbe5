//! `POST /nodes/{node}/qemu`: claim the id in the request, do the rest in a worker.

use super::check::{self, Asker};
use super::conf::{Conf, Section};
use super::disks;
use super::drive::{Drive, Net, boot_keys, is_net};
use super::{Vm, is_drive};
use crate::datacenter::Answer;
use crate::die::Die;
use crate::dispatch::Call;
use crate::observe::Effect;
use crate::tasks::Job;

/// A create on its way.
struct Creation {
    vmid: u32,
    pool: Option<String>,
    settings: Section,
    /// Options that came without a value.
    undefined: Option<String>,
    start: bool,
    ha: bool,
}

/// Parameters that are no options of the VM.
const PARAMETERS: &[&str] = &[
    "node",
    "vmid",
    "archive",
    "bwlimit",
    "force",
    "pool",
    "start",
    "storage",
    "unique",
    "live-restore",
    "import-working-storage",
    "ha-managed",
];

pub(super) async fn create(call: Call) -> Answer {
    let job = call.job.clone();
    let mut creation = read(&call);
    check::ssh_keys(&creation.settings)?;
    check::clamp_cpu_units(&mut creation.settings);
    check_request(&call, &creation)?;
    add_macs(&job, &mut creation.settings)?;
    let vmid = creation.vmid;
    claim(&job, vmid)
        .await
        .map_err(|die| die.prefixed(&format!("unable to create VM {vmid} - ")))?;
    job.dc.tell(
        &job,
        &Effect::VmCreated {
            vmid,
            host: job.host.clone(),
        },
    );
    let upid = job.fork("qmcreate", &vmid.to_string(), move |job| async move {
        match run(&job, &creation).await {
            Ok(()) => autostart(&job, &creation).await,
            Err(die) => {
                remove_config(&job, vmid);
                Err(die)
            }
        }
    });
    Ok(upid.into())
}

fn read(call: &Call) -> Creation {
    let params = &call.params;
    let given = params.texts().filter(|(name, _)| !PARAMETERS.contains(name));
    let mut settings = Section::new();
    let mut undefined = None;
    for (name, value) in given {
        let name = if name == "cdrom" { "ide2" } else { name };
        match value {
            Some(value) => drop(settings.insert(name.into(), value.into())),
            None => undefined = Some(name.to_string()),
        }
    }
    Creation {
        vmid: params.vmid(),
        pool: params.get("pool").map(Into::into),
        settings,
        undefined,
        start: params.flag("start"),
        ha: params.flag("ha-managed"),
    }
}

/// What is refused in the request: rights, storages, syntax.
fn check_request(call: &Call, creation: &Creation) -> Result<(), Die> {
    let (auth, vmid, pool) = (&call.job.auth, creation.vmid, creation.pool.as_deref());
    let state = call.job.dc.state();
    state.require_quorum(&call.job.host)?;
    if let Some(pool) = pool.filter(|p| !state.access.pools.contains_key(*p)) {
        return Err(Die::permission(&format!("pool '{pool}' does not exist")));
    }
    if let Some(storage) = call.params.get("storage") {
        state
            .access
            .check(auth, &format!("/storage/{storage}"), &["Datastore.AllocateSpace"])?;
    }
    if creation.ha {
        state.access.check(auth, "/", &["Sys.Console"])?;
    }
    if creation.start {
        state.access.check_vm(auth, vmid, pool, &["VM.PowerMgmt"])?;
    }
    let allowed = state.access.may(auth, &format!("/vms/{vmid}"), &["VM.Allocate"])
        || pool.is_some_and(|p| state.access.may(auth, &format!("/pool/{p}"), &["VM.Allocate"]));
    if !allowed {
        return Err(Die::permission(""));
    }
    if let Some(archive) = call.params.get("archive") {
        if let Some(key) = creation.settings.keys().find(|key| is_drive(key)) {
            return Err(Die::parameter(key, "option conflicts with option 'archive'"));
        }
        return Err(restore_refusal(&state, call, archive));
    }
    let extract_to = call.params.get("import-working-storage");
    let asker = Asker {
        auth,
        vmid,
        pool,
        extract_to,
    };
    check::storage_access(&state, &asker, &creation.settings)?;
    check::options(&state, &asker, creation.settings.keys().map(String::as_str))?;
    check::devices(&state, &asker, &creation.settings)?;
    check::bridges(&state, auth, &creation.settings)?;
    check::drive_syntax(&state, &creation.settings)
}

/// Backups are not simulated; what PVE refuses before it looks into one is.
fn restore_refusal(state: &crate::state::State, call: &Call, archive: &str) -> Die {
    if archive == "-" {
        return Die::new("pipe requires cli environment");
    }
    if let Ok((id, name)) = crate::storage::parse_volid(archive) {
        match state.storage(id).and_then(|storage| name.require_kind(storage)) {
            Ok(crate::storage::Kind::Backup) => {}
            Ok(_) => {
                return Die::new(format!("unable to use volume {archive} - content type needs to be 'backup'"));
            }
            Err(die) => return die,
        }
    }
    if let Err(die) = state.check_volume_access(&call.job.auth, Some(call.params.vmid()), archive) {
        return die;
    }
    match state.volume(&call.job.host, archive) {
        None => Die::new(format!("volume '{archive}' does not exist")),
        Some(_) => Die::bare(501, "restoring a backup is not simulated"),
    }
}

/// Cards without an address get one; all are written in PVE's order.
pub(super) fn add_macs(job: &Job, settings: &mut Section) -> Result<(), Die> {
    for (key, value) in settings.iter_mut().filter(|(key, _)| is_net(key)) {
        let mut net = Net::parse(key, value)?;
        if net.mac().is_none() {
            net.set_mac(job.dc.state().random_mac());
        }
        *value = net.print();
    }
    Ok(())
}

/// Takes the id: from here on it is used.
async fn claim(job: &Job, vmid: u32) -> Result<(), Die> {
    let _held = job.lock_vm(vmid, 5).await?;
    let round = job.dc.round();
    let mut state = job.dc.state();
    if let Some(present) = state.vms.get(&vmid) {
        return Err(Die::new(format!("VM {vmid} already exists on node '{}'", present.node)));
    }
    let conf = Conf::new([("lock".to_string(), "create".to_string())].into());
    state.vms.insert(vmid, Vm::new(vmid, &job.host, conf, round));
    Ok(())
}

fn remove_config(job: &Job, vmid: u32) {
    let removed = job.dc.state().vms.remove(&vmid);
    if removed.is_some() {
        job.dc.tell(job, &Effect::VmRemoved { vmid });
    }
}

async fn run(job: &Job, creation: &Creation) -> Result<(), Die> {
    let vmid = creation.vmid;
    let _held = job.lock_vm(vmid, 1).await?;
    let wrap = |die: Die| die.prefixed(&format!("unable to create VM {vmid} - "));
    let made = fill(job, creation).await.map_err(wrap)?;
    if let Err(die) = finish(job, creation, &made) {
        disks::free_all(job, &made.volumes).await;
        return Err(wrap(die));
    }
    job.work(job.dc.timing().worker).await?;
    join_pool(job, creation)
}

async fn fill(job: &Job, creation: &Creation) -> Result<disks::Made, Die> {
    disks::create(job, &Conf::default(), creation.vmid, &creation.settings).await
}

/// The final config, with everything PVE fills in.
fn finish(job: &Job, creation: &Creation, made: &disks::Made) -> Result<(), Die> {
    let mut now = creation.settings.clone();
    now.extend(made.settings.clone());
    let version = "10.0.2";
    now.insert("meta".into(), format!("creation-qemu={version},ctime={}", job.dc.epoch()));
    if !now.contains_key("boot") {
        now.insert("boot".into(), default_boot(&now));
    }
    {
        let mut state = job.dc.state();
        if !now.contains_key("smbios1") {
            now.insert("smbios1".into(), format!("uuid={}", state.random_uuid()));
        }
        if now.get("vmgenid").is_none_or(|id| id == "1") {
            now.insert("vmgenid".into(), state.random_uuid());
        }
        if let Some(tags) = now.get("tags").cloned() {
            let asker = Asker {
                auth: &job.auth,
                vmid: creation.vmid,
                pool: None,
                extract_to: None,
            };
            check::tags(&state, &asker, "", &tags)?;
            now.insert("tags".into(), check::normal_tags(&state, &tags));
        }
    }
    if let Some(key) = &creation.undefined {
        return Err(Die::new(format!("unable to parse value of '{key}' - got undefined value")));
    }
    job.save(creation.vmid, Conf::new(now))
}

/// First disk, first CD drive, first card.
pub(super) fn default_boot(settings: &Section) -> String {
    let drive = |cdrom: bool| {
        boot_keys().find(|key| {
            let parsed = settings.get(key).and_then(|value| Drive::parse(key, value).ok());
            parsed.is_some_and(|d| d.is_cdrom() == cdrom)
        })
    };
    let net = (0..32).map(|n| format!("net{n}")).find(|key| settings.contains_key(key));
    let devices: Vec<String> = [drive(false), drive(true), net].into_iter().flatten().collect();
    print_boot(&devices)
}

pub(super) fn print_boot(devices: &[String]) -> String {
    if devices.is_empty() {
        String::new()
    } else {
        format!("order={}", devices.join(";"))
    }
}

/// Pool membership comes last; if it fails, config goes and the disks stay.
fn join_pool(job: &Job, creation: &Creation) -> Result<(), Die> {
    let Some(pool) = &creation.pool else { return Ok(()) };
    let mut state = job.dc.state();
    let Some(entry) = state.access.pools.get_mut(pool) else {
        return Err(Die::new(format!("pool '{pool}' does not exist")));
    };
    entry.vms.insert(creation.vmid);
    drop(state);
    job.dc.tell(job, &Effect::PoolChanged { pool: pool.clone() });
    Ok(())
}

/// A start of its own, with its own task; its failure is not the create's.
async fn autostart(job: &Job, creation: &Creation) -> Result<(), Die> {
    if creation.ha {
        job.say("Add as HA resource");
        let state = if creation.start { "started" } else { "stopped" };
        job.dc.state().ha.add(creation.vmid, state);
    }
    if creation.start {
        job.say("Execute autostart");
        super::power::fork_start(job, creation.vmid, false);
    }
    Ok(())
}

/// Whether a key of a section is a drive with a volume of its own.
pub(super) fn drives(section: &Section) -> impl Iterator<Item = Drive> + '_ {
    section
        .iter()
        .filter(|(key, _)| is_drive(key))
        .filter_map(|(key, value)| Drive::parse(key, value).ok())
}
