//! Jobs that people make for VMs: replication to another host (`replication.cfg`) and backups (`jobs.cfg`).

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::qemu;
use crate::schema::{Params, split_list};
use crate::state::State;

/// How often the scheduler looks at replication jobs.
const SCHEDULER: Duration = Duration::from_secs(60);

/// Both files; options are kept as text.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    pub replication: BTreeMap<String, BTreeMap<String, String>>,
    pub backup: BTreeMap<String, BTreeMap<String, String>>,
}

impl Jobs {
    /// What a removal without `purge` is refused for.
    pub(crate) fn check_replication(&self, vmid: u32) -> Result<(), Die> {
        match self.replication.keys().find(|id| guest_of(id) == vmid) {
            Some(id) => Err(Die::new(format!(
                "There is a replication job '{id}' for guest '{vmid}' - Please remove that first."
            ))),
            None => Ok(()),
        }
    }

    /// Takes a VM out of all jobs; a backup of nothing else goes.
    pub(crate) fn purge(&mut self, vmid: u32) {
        self.replication.retain(|id, _| guest_of(id) != vmid);
        let without = |list: &str| {
            let rest = split_list(list).filter(|id| id.parse() != Ok(vmid));
            rest.collect::<Vec<_>>().join(",")
        };
        for job in self.backup.values_mut() {
            let key = if job.contains_key("vmid") { "vmid" } else { "exclude" };
            if let Some(list) = job.get_mut(key) {
                *list = without(list);
            }
            if job.get("exclude").is_some_and(String::is_empty) {
                job.remove("exclude");
            }
        }
        self.backup
            .retain(|_, job| job.get("vmid").is_none_or(|list| !list.is_empty()));
    }
}

/// `100-0` replicates VM 100.
fn guest_of(id: &str) -> u32 {
    id.split('-').next().and_then(|guest| guest.parse().ok()).unwrap_or_default()
}

pub(crate) async fn handle(call: Call) -> Answer {
    let (verb, template) = call.what();
    let (verb, template) = (verb.to_string(), template.to_string());
    match (verb.as_str(), template.as_str()) {
        ("GET", "/cluster/replication") => Ok(replications(&call)),
        ("GET", "/cluster/replication/{id}") => replication(&call),
        ("POST", "/cluster/replication") => create_replication(call).await,
        ("PUT", "/cluster/replication/{id}") => update_replication(&call).await,
        ("DELETE", "/cluster/replication/{id}") => delete_replication(call).await,
        ("GET", "/cluster/backup") => Ok(backups(&call)),
        ("GET", "/cluster/backup/{id}") => backup(&call),
        ("POST", "/cluster/backup") => create_backup(&call).await,
        ("PUT", "/cluster/backup/{id}") => update_backup(&call).await,
        ("DELETE", "/cluster/backup/{id}") => delete_backup(&call).await,
        _ => call.not_simulated(),
    }
}

async fn writable(call: &Call, file: &str) -> Result<crate::locks::Held, Die> {
    let locks = call.job.dc.locks();
    locks.take_cluster(&call.job, &call.contacted, file).await
}

/// Options that are numbers are shown as such.
fn show(options: &BTreeMap<String, String>) -> Map<String, Value> {
    let number = |key: &str| {
        matches!(
            key,
            "guest" | "jobnum" | "disable" | "rate" | "enabled" | "all" | "zstd" | "remove"
        )
    };
    let value = |(key, value): (&String, &String)| {
        let shown = value
            .parse::<i64>()
            .ok()
            .filter(|_| number(key))
            .map_or(json!(value), |n| json!(n));
        (key.clone(), shown)
    };
    options.iter().map(value).collect()
}

fn describe(id: &str, options: &BTreeMap<String, String>) -> Value {
    let mut entry = show(options);
    entry.insert("id".into(), json!(id));
    Value::Object(entry)
}

fn replications(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let seen = |id: &str| {
        state
            .access
            .may(&call.job.auth, &format!("/vms/{}", guest_of(id)), &["VM.Audit"])
    };
    let jobs = state.jobs.replication.iter().filter(|(id, _)| seen(id));
    Value::Array(jobs.map(|(id, job)| describe(id, job)).collect()).into()
}

fn digest(jobs: &BTreeMap<String, BTreeMap<String, String>>) -> String {
    hex::encode(<sha1::Sha1 as sha1::Digest>::digest(format!("{jobs:?}").as_bytes()))
}

fn replication(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let id = call.params.text("id");
    let Some(job) = state.jobs.replication.get(id) else {
        return Err(Die::new(format!("no such replication job '{id}'")));
    };
    let path = format!("/vms/{}", guest_of(id));
    state.access.check(&call.job.auth, &path, &["VM.Audit"])?;
    let mut entry = describe(id, job);
    entry["digest"] = json!(digest(&state.jobs.replication));
    Ok(entry.into())
}

/// Everything but what names the job or the file.
fn options_of(params: &Params) -> BTreeMap<String, String> {
    let own = |name: &str| matches!(name, "id" | "digest" | "delete" | "type" | "keep" | "force");
    let given = params.texts().filter(|(name, _)| !own(name));
    given
        .filter_map(|(name, value)| Some((name.to_string(), value?.to_string())))
        .collect()
}

async fn create_replication(call: Call) -> Answer {
    let id = call.params.text("id").to_string();
    let guest = guest_of(&id);
    let mut options = options_of(&call.params);
    {
        let state = call.job.dc.state();
        state
            .access
            .check(&call.job.auth, &format!("/vms/{guest}"), &["VM.Replicate"])?;
        check_replication(&state, guest, &mut options)?;
    }
    let _held = writable(&call, "file-replication_cfg").await?;
    let mut state = call.job.dc.state();
    if state.jobs.replication.contains_key(&id) {
        return Err(Die::new(format!("replication job '{id}' already exists")));
    }
    let number = id.split('-').nth(1).unwrap_or_default().to_string();
    options.extend([
        ("type".into(), call.params.text("type").to_string()),
        ("guest".into(), guest.to_string()),
        ("jobnum".into(), number),
    ]);
    state.jobs.replication.insert(id.clone(), options);
    drop(state);
    follow(call, id);
    Ok(Reply::default())
}

fn check_replication(state: &State, guest: u32, options: &mut BTreeMap<String, String>) -> Result<(), Die> {
    let Some(vm) = state.vms.get(&guest) else {
        return Err(Die::new(format!("Guest '{guest}' does not exist.")));
    };
    let target = options.get("target").cloned().unwrap_or_default();
    if !state.nodes.contains_key(&target) {
        return Err(Die::new(format!("Target '{target}' does not exist.")));
    }
    let source = options.entry("source".into()).or_insert_with(|| vm.node.clone());
    if *source != vm.node {
        return Err(Die::new(format!(
            "Source '{source}' does not match current node of guest '{guest}' ({})",
            vm.node
        )));
    }
    if target == vm.node {
        return Err(Die::new("Source and target must not be identical"));
    }
    let volumes = qemu::volumes_to_replicate(state, guest)?;
    if volumes.is_empty() {
        return Err(Die::new("No replicatable volumes found"));
    }
    Ok(())
}

/// The scheduler: it copies the volumes of a new job, and of one that is to go it removes the copies.
fn follow(call: Call, id: String) {
    let (dc, guest) = (call.job.dc.downgrade(), guest_of(&id));
    let every = call.job.dc.pace().scale(SCHEDULER);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            let Some(dc) = dc.upgrade() else { return };
            let mut state = dc.state();
            let Some(job) = state.jobs.replication.get(&id).cloned() else {
                return;
            };
            let target = job.get("target").cloned().unwrap_or_default();
            match job.get("remove_job").map(String::as_str) {
                None if job.get("disable").is_none_or(|d| d != "1") => copy(&mut state, guest, &target),
                None => {}
                Some(how) => {
                    if how == "full" {
                        remove_copies(&mut state, guest, &target);
                    }
                    state.jobs.replication.remove(&id);
                    return;
                }
            }
        }
    });
}

fn copy(state: &mut State, guest: u32, target: &str) {
    let Some(node) = state.vms.get(&guest).map(|vm| vm.node.clone()) else {
        return;
    };
    for volid in qemu::volumes_to_replicate(state, guest).unwrap_or_default() {
        if let Some(volume) = state.volume(&node, &volid).cloned() {
            state.volumes.insert(target, volume);
        }
    }
}

fn remove_copies(state: &mut State, guest: u32, target: &str) {
    if state.vms.get(&guest).is_some_and(|vm| vm.node == target) {
        return;
    }
    for volid in qemu::volumes_to_replicate(state, guest).unwrap_or_default() {
        state.volumes.remove(target, &volid);
    }
}

async fn update_replication(call: &Call) -> Answer {
    let id = call.params.text("id").to_string();
    let path = format!("/vms/{}", guest_of(&id));
    call.job.dc.state().access.check(&call.job.auth, &path, &["VM.Replicate"])?;
    let _held = writable(call, "file-replication_cfg").await?;
    let mut state = call.job.dc.state();
    let given = call.params.get("digest");
    if given.is_some_and(|given| !given.is_empty() && given != digest(&state.jobs.replication)) {
        return Err(Die::new(
            "detected modified configuration - file changed by other user? Try again.",
        ));
    }
    let Some(job) = state.jobs.replication.get_mut(&id) else {
        return Err(Die::new(format!("no such job '{id}'")));
    };
    for key in split_list(call.params.get("delete").unwrap_or_default()) {
        match key {
            "comment" | "disable" | "rate" | "schedule" | "source" | "remove_job" => drop(job.remove(key)),
            "target" => return Err(Die::new("unable to delete required option 'target'")),
            _ => return Err(Die::new(format!("no such option '{key}'"))),
        }
    }
    job.extend(options_of(&call.params));
    Ok(Reply::default())
}

/// The job stays until the scheduler has cleaned up behind it.
async fn delete_replication(call: Call) -> Answer {
    let id = call.params.text("id").to_string();
    let path = format!("/vms/{}", guest_of(&id));
    call.job.dc.state().access.check(&call.job.auth, &path, &["VM.Replicate"])?;
    let (keep, force) = (call.params.flag("keep"), call.params.flag("force"));
    let _held = writable(&call, "file-replication_cfg").await?;
    let mut state = call.job.dc.state();
    if force {
        if keep {
            return Err(Die::parameter("keep", "conflicts with parameter 'force'"));
        }
        state.jobs.replication.remove(&id);
        return Ok(Reply::default());
    }
    let Some(job) = state.jobs.replication.get_mut(&id) else {
        return Err(Die::new(format!("no such job '{id}'")));
    };
    let how = if keep { "local" } else { "full" };
    job.insert("remove_job".into(), how.into());
    Ok(Reply::default())
}

fn backups(call: &Call) -> Reply {
    let state = call.job.dc.state();
    Value::Array(state.jobs.backup.iter().map(|(id, job)| describe(id, job)).collect()).into()
}

fn no_such_backup(id: &str) -> Die {
    Die::parameter("id", format!("No such job '{id}'"))
}

fn backup(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let id = call.params.text("id");
    let job = state.jobs.backup.get(id).ok_or_else(|| no_such_backup(id))?;
    Ok(describe(id, job).into())
}

async fn create_backup(call: &Call) -> Answer {
    let params = &call.params;
    check_backup(call)?;
    let both = params.has("starttime") && params.has("schedule");
    if both {
        return Err(Die::parameter("starttime", "'starttime' and 'schedule' cannot both be set"));
    }
    if !params.has("starttime") && !params.has("schedule") {
        return Err(Die::parameter("schedule", "neither 'starttime' nor 'schedule' were set"));
    }
    let _held = writable(call, "file-jobs_cfg").await?;
    let mut state = call.job.dc.state();
    let id = params.get("id").map_or_else(|| state.random_uuid(), str::to_string);
    if state.jobs.backup.contains_key(&id) {
        return Err(Die::new(format!("Job '{id}' already exists")));
    }
    let mut options = options_of(params);
    options.insert("type".into(), "vzdump".into());
    options.entry("enabled".into()).or_insert_with(|| "1".into());
    state.jobs.backup.insert(id, options);
    Ok(Reply::default())
}

fn check_backup(call: &Call) -> Result<(), Die> {
    let state = call.job.dc.state();
    let (auth, params) = (&call.job.auth, &call.params);
    let roots_own = ["dumpdir", "script", "tmpdir"].into_iter().find(|key| params.has(key));
    if let Some(key) = roots_own.filter(|_| !auth.is_root()) {
        return Err(Die::parameter(key, "Only root may set this option."));
    }
    if let Some(storage) = params.get("storage") {
        state
            .access
            .check(auth, &format!("/storage/{storage}"), &["Datastore.Allocate"])?;
    }
    let Some(pool) = params.get("pool") else { return Ok(()) };
    if !state.access.pools.contains_key(pool) {
        return Err(Die::permission(&format!("pool '{pool}' does not exist")));
    }
    state.access.check(auth, &format!("/pool/{pool}"), &["VM.Backup"])
}

async fn update_backup(call: &Call) -> Answer {
    check_backup(call)?;
    let id = call.params.text("id").to_string();
    let _held = writable(call, "file-jobs_cfg").await?;
    let mut state = call.job.dc.state();
    let Some(job) = state.jobs.backup.get_mut(&id) else {
        return Err(Die::new("no such vzdump job"));
    };
    for key in split_list(call.params.get("delete").unwrap_or_default()) {
        if call.method.property(key).is_none() {
            return Err(Die::parameter("delete", format!("unknown option '{key}'")));
        }
        job.remove(key);
    }
    let given = options_of(&call.params);
    // What is backed up is said in one way: a list, a pool, or all.
    if given.contains_key("vmid") || given.contains_key("pool") || given.get("all").is_some_and(|all| all == "1") {
        for key in ["vmid", "pool", "all", "exclude"] {
            job.remove(key);
        }
    }
    job.extend(given);
    Ok(Reply::default())
}

async fn delete_backup(call: &Call) -> Answer {
    let id = call.params.text("id").to_string();
    let _held = writable(call, "file-jobs_cfg").await?;
    match call.job.dc.state().jobs.backup.remove(&id) {
        Some(_) => Ok(Reply::default()),
        None => Err(no_such_backup(&id)),
    }
}

#[cfg(test)]
mod tests {
    use super::Jobs;

    fn job(pairs: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_string(), (*v).to_string())).collect()
    }

    #[test]
    fn a_purge_takes_a_vm_out_of_every_job_and_removes_those_that_are_empty() {
        let mut jobs = Jobs::default();
        jobs.replication.insert("100-0".into(), job(&[("target", "pve2")]));
        jobs.replication.insert("101-0".into(), job(&[("target", "pve2")]));
        jobs.backup.insert("only".into(), job(&[("vmid", "100")]));
        jobs.backup.insert("both".into(), job(&[("vmid", "100,101")]));
        jobs.backup.insert("rest".into(), job(&[("all", "1"), ("exclude", "100")]));
        jobs.purge(100);
        assert!(jobs.replication.keys().eq(["101-0"]));
        assert!(jobs.backup.keys().eq(["both", "rest"]));
        assert_eq!(
            (jobs.backup["both"]["vmid"].as_str(), jobs.backup["rest"].get("exclude")),
            ("101", None)
        );
        assert!(jobs.check_replication(100).is_ok() && jobs.check_replication(101).is_err());
    }
}
