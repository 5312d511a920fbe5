//! Reading and changing a VM's config.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use indexmap::IndexMap;
use serde_json::{Value, json};

use super::check::{self, Asker};
use super::conf::{self, Conf, Section, option_exists};
use super::create::print_boot;
use super::drive::{Drive, is_drive, is_net};
use super::{cloudinit, disks, hotplug, pending};
use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::schema::{Params, split_list};
use crate::tasks::Job;

pub(super) fn get(call: &Call) -> Answer {
    if call.params.flag("current") && call.params.get("snapshot").is_some_and(|name| !name.is_empty()) {
        let text = "cannot use 'snapshot' parameter with 'current'";
        let both = ["snapshot", "current"].map(|name| (name.to_string(), text.to_string()));
        return Err(Die::parameters(both.into_iter().collect()));
    }
    let state = call.job.dc.state();
    let vm = state.vm(&call.job.host, call.params.vmid())?;
    let digest = vm.conf.digest();
    if let Some(name) = call.params.get("snapshot") {
        let Some(section) = vm.conf.snapshots.get(name) else {
            return Err(Die::new(format!("snapshot '{name}' does not exist")));
        };
        return Ok(conf::show(section, digest).into());
    }
    let section = if call.params.flag("current") {
        vm.conf.now.clone()
    } else {
        vm.conf.with_pending()
    };
    Ok(conf::show(&section, digest).into())
}

/// `GET .../pending`: current, pending and to-be-deleted values side by side.
pub(super) fn pending(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let conf = &state.vm(&call.job.host, call.params.vmid())?.conf;
    let hide = |key: &str, value: &str| {
        if key == "cipassword" {
            json!("**********")
        } else {
            conf::typed(key, value)
        }
    };
    let keys: BTreeSet<&String> = conf.now.keys().chain(conf.pending.keys()).chain(conf.delete.keys()).collect();
    let mut list = Vec::new();
    for key in keys {
        let mut item = json!({ "key": key });
        if let Some(value) = conf.now.get(key) {
            item["value"] = hide(key, value);
        }
        if let Some(value) = conf.pending.get(key) {
            item["pending"] = hide(key, value);
        }
        if let Some(force) = conf.delete.get(key) {
            item["delete"] = json!(if *force { 2 } else { 1 });
        }
        list.push(item);
    }
    list.push(json!({ "key": "digest", "value": conf.digest() }));
    Ok(Value::Array(list).into())
}

/// A change, checked and ready to be made.
#[derive(Clone)]
struct Update {
    vmid: u32,
    settings: Section,
    undefined: Option<String>,
    delete: Vec<String>,
    revert: Vec<String>,
    force: bool,
    skiplock: bool,
    digest: Option<String>,
    /// As the log tells it.
    words: String,
}

pub(super) async fn put(call: Call) -> Answer {
    let update = prepare(&call.job, call.params.clone())?;
    let _held = call.job.lock_vm(update.vmid, 10).await?;
    apply(&call.job, update).await?;
    Ok(Reply::default())
}

pub(super) async fn post(call: Call) -> Answer {
    let mut params = call.params.clone();
    let delay = params.take("background_delay").and_then(|d| d.parse::<u64>().ok());
    params.take("import-working-storage");
    let update = prepare(&call.job, params)?;
    let vmid = update.vmid;
    let upid = call.job.fork("qmconfig", &vmid.to_string(), move |job| async move {
        let _held = job.lock_vm(vmid, 10).await?;
        job.say(format!("update VM {vmid}: {}", update.words));
        apply(&job, update).await
    });
    let Some(delay) = delay else { return Ok(upid.into()) };
    match tokio::time::timeout(Duration::from_secs(delay), call.job.ended(&upid)).await {
        Ok(exit) if exit == "OK" || exit.starts_with("WARNINGS") => Ok(Reply::default()),
        Ok(exit) => Err(Die::new(format!("failed to update VM {vmid}: {exit}"))),
        Err(_) => Ok(upid.into()),
    }
}

/// `PUT .../unlink`: delete drives by list.
pub(super) async fn unlink(call: Call) -> Answer {
    let mut params = Params::default();
    params.set("vmid", call.params.text("vmid"));
    params.set("node", call.params.text("node"));
    params.set("delete", call.params.text("idlist"));
    if call.params.flag("force") {
        params.set("force", "1");
    }
    let update = prepare(&call.job, params)?;
    let _held = call.job.lock_vm(update.vmid, 10).await?;
    apply(&call.job, update).await?;
    Ok(Reply::default())
}

/// Everything that is refused in the request.
fn prepare(job: &Job, mut params: Params) -> Result<Update, Die> {
    let vmid = params.vmid();
    params.take("node");
    params.take("vmid");
    let digest = params.take("digest");
    let words = words_of(&params);
    job.root_only(&params, &["skiplock"])?;
    let skiplock = params.flag("skiplock");
    params.take("skiplock");
    let (delete, revert) = (
        params.take("delete").unwrap_or_default(),
        params.take("revert").unwrap_or_default(),
    );
    let force = params.take("force").as_deref() == Some("1");
    let mut update = Update {
        vmid,
        settings: Section::new(),
        undefined: None,
        delete: Vec::new(),
        revert: Vec::new(),
        force,
        skiplock,
        digest,
        words,
    };
    read_settings(&params, &mut update);
    check::ssh_keys(&update.settings)?;
    check::clamp_cpu_units(&mut update.settings);
    if delete.is_empty() && revert.is_empty() && update.settings.is_empty() && update.undefined.is_none() {
        return Err(Die::new("no options specified"));
    }
    read_lists(&mut update, &delete, &revert)?;
    check::drive_syntax(&job.dc.state(), &update.settings)?;
    normalize(job, &mut update.settings)?;
    check_request(job, &update)?;
    Ok(update)
}

fn words_of(params: &Params) -> String {
    let given: BTreeMap<&str, &str> = params
        .texts()
        .map(|(name, value)| (name, value.unwrap_or_default()))
        .collect();
    let shown = given
        .into_iter()
        .map(|(name, value)| format!("-{name} {}", if name == "cipassword" { "<hidden>" } else { value }));
    shown.collect::<Vec<_>>().join(" ")
}

fn read_settings(params: &Params, update: &mut Update) {
    for (name, value) in params.texts() {
        let name = if name == "cdrom" { "ide2" } else { name };
        match value {
            Some(value) => drop(update.settings.insert(name.into(), value.into())),
            None => update.undefined = Some(name.into()),
        }
    }
    if let Some(password) = update.settings.get_mut("cipassword")
        && !is_crypted(password)
    {
        *password = crypt(password);
    }
}

/// `$5$salt$hash` and its like are taken as they are.
fn is_crypted(password: &str) -> bool {
    let mut parts = password.split('$');
    let known = parts.next() == Some("") && parts.next().is_some_and(|id| matches!(id, "1" | "5" | "6" | "2a" | "2y"));
    known && parts.next().is_some_and(|p| !p.is_empty()) && parts.next().is_some_and(|p| !p.is_empty())
}

/// Stands for crypt(3): a hash in the same form.
fn crypt(password: &str) -> String {
    use sha1::Digest;
    let hash = hex::encode(sha1::Sha1::digest(password.as_bytes()));
    format!("$5${}${}", &hash[..8], &hash)
}

fn read_lists(update: &mut Update, delete: &str, revert: &str) -> Result<(), Die> {
    for key in split_list(revert) {
        if !option_exists(key) {
            return Err(Die::parameter("revert", format!("unknown option '{key}'")));
        }
        if update.settings.contains_key(key) {
            return Err(Die::parameter(
                "delete",
                format!("you can't use '-{key}' and -revert {key}' at the same time"),
            ));
        }
        update.revert.push(key.into());
    }
    for key in split_list(delete) {
        let key = if key == "cdrom" { "ide2" } else { key };
        if update.settings.contains_key(key) {
            return Err(Die::parameter(
                "delete",
                format!("you can't use '-{key}' and -delete {key}' at the same time"),
            ));
        }
        if update.revert.iter().any(|r| r == key) {
            return Err(Die::parameter(
                "revert",
                format!("you can't use '-delete {key}' and -revert {key}' at the same time"),
            ));
        }
        if !option_exists(key) {
            return Err(Die::parameter("delete", format!("unknown option '{key}'")));
        }
        update.delete.push(key.into());
    }
    Ok(())
}

/// Drives and cards in PVE's own spelling.
fn normalize(job: &Job, settings: &mut Section) -> Result<(), Die> {
    for (key, value) in settings.iter_mut().filter(|(key, _)| is_drive(key)) {
        *value = Drive::parse(key, value)?.print();
    }
    if settings.get("vmgenid").is_some_and(|id| id == "1") {
        let id = job.dc.state().random_uuid();
        settings.insert("vmgenid".into(), id);
    }
    if let Some(script) = settings.get("hookscript") {
        check_hook_script(job, script).map_err(|die| Die::parameter("hookscript", format!("{}\n", die.message)))?;
    }
    super::create::add_macs(job, settings)
}

/// A snippet that is there. Uploaded and simulated snippets have no right to be executed.
fn check_hook_script(job: &Job, volid: &str) -> Result<(), Die> {
    let state = job.dc.state();
    let (id, name) = crate::storage::parse_volid(volid)?;
    if name.require_kind(state.storage(id)?)? != crate::storage::Kind::Snippets {
        return Err(Die::new(format!("'{volid}' is not in the snippets directory")));
    }
    let text = match state.volume(&job.host, volid) {
        None => format!("script '{volid}' does not exist"),
        Some(_) => format!("script '{volid}' is not executable"),
    };
    Err(Die::new(text))
}

fn check_request(job: &Job, update: &Update) -> Result<(), Die> {
    let state = job.dc.state();
    let asker = Asker {
        auth: &job.auth,
        vmid: update.vmid,
        pool: None,
        extract_to: None,
    };
    check::options(&state, &asker, update.delete.iter().map(String::as_str))?;
    check::options(&state, &asker, update.settings.keys().map(String::as_str))?;
    check::storage_access(&state, &asker, &update.settings)?;
    check::bridges(&state, &job.auth, &update.settings)?;
    let conf = &state.vm(&job.host, update.vmid)?.conf;
    conf.check_digest(update.digest.as_deref())?;
    if !update.skiplock {
        conf.check_lock()?;
    }
    let mut update = update.clone();
    resolve_reverts(conf, &mut update);
    check_memory(conf, &update.settings)
}

/// Of serial ports PVE says `modify` or `delete` where a create says `set`.
fn of_serial(key: &str, verb: &str, mut die: Die) -> Die {
    if key.starts_with("serial") {
        let text = format!("only root can {verb}");
        die.message = die.message.replacen("only root can set", &text, 1);
    }
    die
}

/// Writes the change as pending, then applies what can be applied.
async fn apply(job: &Job, mut update: Update) -> Result<(), Die> {
    let vmid = update.vmid;
    let conf = job.load(vmid)?;
    conf.check_digest(update.digest.as_deref())?;
    if !update.skiplock {
        conf.check_lock()?;
    }
    resolve_reverts(&conf, &mut update);
    check_memory(&conf, &update.settings)?;
    let mut modified = Modified::new(&conf);
    for key in update.delete.clone() {
        delete_one(job, &update, &key, &mut modified).await?;
    }
    for (key, value) in update.settings.clone() {
        set_one(job, &update, &key, &value, &mut modified).await?;
    }
    if let Some(key) = &update.undefined {
        return Err(Die::new(format!("unable to parse value of '{key}' - got undefined value")));
    }
    let mut conf = job.load(vmid)?;
    conf.cleanup_pending();
    job.save(vmid, conf.clone())?;
    if conf.pending.is_empty() && conf.delete.is_empty() {
        return Ok(());
    }
    let errors = if job.is_running(vmid) {
        hotplug::apply(job, vmid, &modified.keys).await?
    } else {
        // A drive that is attached is written; one that is there keeps what it has until the next start.
        let attached = super::create::drives(&conf.pending).any(|drive| drive.is_cloudinit());
        let errors = pending::apply(job, vmid).await?;
        if attached {
            cloudinit::applied(job, vmid)?;
        }
        errors
    };
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Die::parameters(errors))
    }
}

/// A reverted option takes its present value again, or is not set at all.
fn resolve_reverts(conf: &Conf, update: &mut Update) {
    for key in std::mem::take(&mut update.revert) {
        match conf.get(&key) {
            Some(value) => drop(update.settings.insert(key, value.into())),
            None if conf.pending.contains_key(&key) => update.delete.push(key),
            None => {}
        }
    }
}

pub(super) fn current_memory(value: Option<&str>) -> u64 {
    value
        .and_then(|v| v.trim_start_matches("current=").split(',').next()?.parse().ok())
        .unwrap_or(512)
}

fn check_memory(conf: &Conf, settings: &Section) -> Result<(), Die> {
    if !settings.contains_key("memory") && !settings.contains_key("balloon") {
        return Ok(());
    }
    let newest = |key: &str| {
        settings
            .get(key)
            .or(conf.pending.get(key))
            .or(conf.now.get(key))
            .map(String::as_str)
    };
    let balloon = newest("balloon").and_then(|b| b.parse::<u64>().ok()).unwrap_or(0);
    if balloon > current_memory(newest("memory")) {
        return Err(Die::new("balloon value too large (must be smaller than assigned memory)"));
    }
    Ok(())
}

/// Keys that were touched, and the boot order as it becomes.
struct Modified {
    keys: BTreeSet<String>,
    boot: Vec<String>,
}

impl Modified {
    fn new(conf: &Conf) -> Self {
        let order = conf.get("boot").and_then(|b| b.strip_prefix("order="));
        Self {
            keys: BTreeSet::new(),
            boot: order.map(|o| o.split(';').map(Into::into).collect()).unwrap_or_default(),
        }
    }

    fn set_boot(&mut self, conf: &mut Conf) {
        conf.pending.insert("boot".into(), print_boot(&self.boot));
        conf.delete.remove("boot");
        self.keys.insert("boot".into());
    }
}

async fn delete_one(job: &Job, update: &Update, key: &str, modified: &mut Modified) -> Result<(), Die> {
    let vmid = update.vmid;
    let mut conf = job.load(vmid)?;
    let Some(value) = conf.now.get(key).or(conf.pending.get(key)).cloned() else {
        job.say(format!("cannot delete '{key}' - not set in current configuration!"));
        return Ok(());
    };
    modified.keys.insert(key.into());
    let was_pending = conf.pending.remove(key);
    if modified.boot.iter().any(|device| device == key) {
        modified.boot.retain(|device| device != key);
        modified.set_boot(&mut conf);
    }
    if key.starts_with("unused") {
        return delete_unused(job, vmid, key, &value, conf).await;
    }
    check_delete(job, vmid, key, &value, &conf)?;
    if key == "tags" {
        conf.now.remove(key);
        return job.save(vmid, conf);
    }
    if is_drive(key)
        && let Some(drive) = was_pending.and_then(|v| Drive::parse(key, &v).ok())
    {
        pending::register_unused(job, vmid, &mut conf, &drive);
    }
    conf.delete.insert(key.into(), update.force);
    job.save(vmid, conf)
}

fn check_delete(job: &Job, vmid: u32, key: &str, value: &str, conf: &Conf) -> Result<(), Die> {
    let asker = Asker {
        auth: &job.auth,
        vmid,
        pool: None,
        extract_to: None,
    };
    if is_drive(key) {
        conf.check_protection(&format!("can't remove drive '{key}'"))?;
        return check_drive(job, vmid, &Drive::parse(key, value)?);
    }
    let state = job.dc.state();
    if key == "tags" {
        return check::tags(&state, &asker, value, "");
    }
    if is_net(key) {
        return check::bridges(&state, &job.auth, &[(key.to_string(), value.to_string())].into());
    }
    let devices = check::devices(&state, &asker, &[(key.to_string(), value.to_string())].into());
    devices.map_err(|die| of_serial(key, "delete", die))
}

async fn delete_unused(job: &Job, vmid: u32, key: &str, value: &str, mut conf: Conf) -> Result<(), Die> {
    let volid = value.split(',').next().unwrap_or_default().to_string();
    conf.check_protection(&format!("can't remove unused disk '{volid}'"))?;
    job.dc.state().access.check_vm(&job.auth, vmid, None, &["VM.Config.Disk"])?;
    pending::deallocate(job, vmid, &conf, &volid).await?;
    conf.now.remove(key);
    job.save(vmid, conf)
}

/// CD drives, cloud-init drives and disks have privileges of their own.
fn check_drive(job: &Job, vmid: u32, drive: &Drive) -> Result<(), Die> {
    let needs: &[&str] = if drive.is_cloudinit() {
        &["VM.Config.Cloudinit", "VM.Config.CDROM"]
    } else if drive.is_cdrom() {
        &["VM.Config.CDROM"]
    } else {
        &["VM.Config.Disk"]
    };
    job.dc.state().access.check_vm(&job.auth, vmid, None, needs)
}

async fn set_one(job: &Job, update: &Update, key: &str, value: &str, modified: &mut Modified) -> Result<(), Die> {
    let vmid = update.vmid;
    modified.keys.insert(key.into());
    let mut conf = job.load(vmid)?;
    if conf.pending.get(key).is_some_and(|present| present == value) {
        return Ok(());
    }
    if is_drive(key) {
        set_drive(job, vmid, key, value, &mut conf, modified).await?;
    } else {
        set_plain(job, update, key, value, &mut conf, modified)?;
    }
    conf.delete.remove(key);
    job.save(vmid, conf)
}

async fn set_drive(job: &Job, vmid: u32, key: &str, value: &str, conf: &mut Conf, modified: &mut Modified) -> Result<(), Die> {
    if let Some(old) = conf.get(key) {
        let old = Drive::parse(key, old)?;
        check_drive(job, vmid, &old)?;
        check_tpm_version(&old, &Drive::parse(key, value)?)?;
    }
    check_drive(job, vmid, &Drive::parse(key, value)?)?;
    if let Some(old) = conf.pending.get(key).and_then(|v| Drive::parse(key, v).ok()) {
        pending::register_unused(job, vmid, conf, &old);
    }
    let made = disks::create(job, conf, vmid, &[(key.to_string(), value.to_string())].into()).await?;
    conf.pending.extend(made.settings);
    let drive = Drive::parse(key, &conf.pending[key])?;
    if !modified.boot.is_empty() && drive.is_cdrom() && !drive.is_cloudinit() && !modified.boot.iter().any(|d| d == key) {
        modified.boot.push(key.into());
        modified.set_boot(conf);
    }
    Ok(())
}

fn check_tpm_version(old: &Drive, new: &Drive) -> Result<(), Die> {
    let version = |drive: &Drive| drive.get("version").unwrap_or("v1.2").to_string();
    if old.key == "tpmstate0" && old.file() == new.file() && version(old) != version(new) {
        return Err(Die::new("cannot change TPM state version after creation"));
    }
    Ok(())
}

fn set_plain(job: &Job, update: &Update, key: &str, value: &str, conf: &mut Conf, modified: &mut Modified) -> Result<(), Die> {
    let state = job.dc.state();
    let asker = Asker {
        auth: &job.auth,
        vmid: update.vmid,
        pool: None,
        extract_to: None,
    };
    let mut value = value.to_string();
    let old = conf.get(key).map(ToString::to_string);
    for device in old.iter().chain([&value]) {
        let devices = check::devices(&state, &asker, &[(key.to_string(), device.clone())].into());
        devices.map_err(|die| of_serial(key, "modify", die))?;
    }
    if key == "tags" {
        check::tags(&state, &asker, conf.get("tags").unwrap_or_default(), &value)?;
        value = check::normal_tags(&state, &value);
    }
    if is_net(key)
        && let Some(old) = conf.get(key)
    {
        check::bridges(&state, &job.auth, &[(key.to_string(), old.to_string())].into())?;
    }
    if key == "boot"
        && let Some(order) = value.strip_prefix("order=")
    {
        let devices: Vec<String> = split_list(order).map(Into::into).collect();
        for device in &devices {
            let exists =
                conf.now.contains_key(device) || conf.pending.contains_key(device) || update.settings.contains_key(device);
            if !exists || update.delete.contains(device) {
                return Err(Die::new(format!("invalid bootorder: device '{device}' does not exist'")));
            }
        }
        value = print_boot(&devices);
        if conf.now.contains_key("bootdisk") {
            conf.delete.insert("bootdisk".into(), false);
        }
        modified.boot = devices;
    }
    conf.pending.insert(key.into(), value);
    Ok(())
}

/// Texts per option that could not be applied.
pub(super) type Errors = IndexMap<String, String>;
