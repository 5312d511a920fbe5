//! Start, stop, shutdown, reboot, reset, pause.

use std::time::Duration;

use super::runtime::{self, with_guest};
use super::{agent, cloudinit, pending};
use crate::datacenter::Answer;
use crate::die::Die;
use crate::dispatch::Call;
use crate::guest::Guest;
use crate::observe::Effect;
use crate::tasks::Job;

pub(super) async fn handle(call: Call) -> Answer {
    let action = call.method.template.rsplit('/').next().unwrap_or_default();
    match action {
        "start" => start(&call),
        "stop" => stop(&call),
        "shutdown" => shutdown(&call),
        "reboot" => reboot(&call),
        "reset" => reset(&call),
        "suspend" => suspend(&call),
        "resume" => resume(&call),
        _ => call.not_simulated(),
    }
}

fn not_running(vmid: u32) -> Die {
    Die::new(format!("VM {vmid} not running"))
}

/// Calls that make no sense for a VM that is off.
fn require_running(job: &Job, vmid: u32) -> Result<(), Die> {
    job.dc.state().vm(&job.host, vmid).map_err(|_| missing(job, vmid))?;
    if job.is_running(vmid) {
        Ok(())
    } else {
        Err(not_running(vmid))
    }
}

pub(super) fn missing(job: &Job, vmid: u32) -> Die {
    Die::new(format!(
        "unable to find configuration file for VM {vmid} on node '{}'",
        job.host
    ))
}

/// What HA manages is only asked for; its manager acts later.
fn ask_ha(job: &Job, vmid: u32, kind: &'static str, state: &'static str) -> Option<String> {
    job.dc.state().ha.managed(vmid)?;
    Some(job.fork(kind, &vmid.to_string(), move |job| async move {
        job.say(format!("Requesting HA {} for VM {vmid}", kind.trim_start_matches("ha")));
        job.dc.state().ha.set_state(vmid, state);
        Ok(())
    }))
}

fn start(call: &Call) -> Answer {
    let (job, vmid) = (&call.job, call.params.vmid());
    job.root_only(
        &call.params,
        &[
            "stateuri",
            "skiplock",
            "migratedfrom",
            "migration_type",
            "migration_network",
            "targetstorage",
            "force-cpu",
            "with-conntrack-state",
            "nets-host-mtu",
        ],
    )?;
    if call.params.has("targetstorage") && !call.params.has("migratedfrom") {
        let text = "targetstorage can only by used with migratedfrom.";
        return Err(Die::parameter("targetstorage", text));
    }
    job.dc.state().require_quorum(&job.host)?;
    if let Some(upid) = ask_ha(job, vmid, "hastart", "started") {
        return Ok(upid.into());
    }
    Ok(fork_start(job, vmid, call.params.flag("skiplock")).into())
}

pub(super) fn fork_start(job: &Job, vmid: u32, skiplock: bool) -> String {
    job.fork("qmstart", &vmid.to_string(), move |job| async move {
        job.dc.state().vm(&job.host, vmid)?;
        let _held = job.lock_vm(vmid, 10).await?;
        start_locked(&job, vmid, skiplock).await
    })
}

/// Starts a VM whose lock file is held.
pub(super) async fn start_locked(job: &Job, vmid: u32, skiplock: bool) -> Result<(), Die> {
    let conf = job.load(vmid)?;
    if conf.is_template() {
        return Err(Die::new("you can't start a vm if it's a template"));
    }
    if conf.lock() == Some("backup") && job.is_running(vmid) {
        // A backup of a stopped VM runs in a process that waits to be continued.
        set_paused(job, vmid, false);
        return Ok(());
    }
    let suspended = conf.lock() == Some("suspended");
    if !skiplock && !suspended {
        conf.check_lock()?;
    }
    if job.is_running(vmid) {
        return Err(Die::new(format!("VM {vmid} already running")));
    }
    let changes = !conf.pending.is_empty() || !conf.delete.is_empty();
    if changes && !suspended {
        pending::apply(job, vmid).await?;
    }
    let conf = job.load(vmid)?;
    if cloudinit::has_drive(&conf) {
        cloudinit::files(job, vmid, &conf)?;
        job.say("generating cloud-init ISO");
        cloudinit::applied(job, vmid)?;
    }
    if suspended {
        job.say("Resuming suspended VM");
    }
    runtime::check_startable(job, &conf)?;
    let nics = conf.now.keys().filter(|key| super::drive::is_net(key)).count() as u32;
    let timing = job.dc.timing();
    job.work(timing.start + timing.start_per_nic * nics).await?;
    runtime::power_on(job, vmid, &job.load(vmid)?);
    if suspended {
        forget_suspension(job, vmid).await?;
    }
    Ok(())
}

/// A VM that was resumed from disk loses its lock and what was saved for it.
async fn forget_suspension(job: &Job, vmid: u32) -> Result<(), Die> {
    let mut conf = job.load(vmid)?;
    job.say("Resumed VM, removing state");
    if let Some(volid) = conf.now.remove("vmstate") {
        job.free(&volid).await?;
    }
    for key in ["lock", "runningmachine", "runningcpu", "running-nets-host-mtu"] {
        conf.now.remove(key);
    }
    job.save(vmid, conf)
}

fn stop(call: &Call) -> Answer {
    let (job, vmid) = (&call.job, call.params.vmid());
    job.root_only(&call.params, &["skiplock", "keepActive", "migratedfrom"])?;
    let managed = job.dc.state().ha.managed(vmid).is_some();
    if managed && call.params.flag("overrule-shutdown") {
        return Err(Die::parameter("overrule-shutdown", "Not applicable for HA resources."));
    }
    if let Some(upid) = ask_ha(job, vmid, "hastop", "stopped") {
        return Ok(upid.into());
    }
    let (skiplock, overrule) = (call.params.flag("skiplock"), call.params.flag("overrule-shutdown"));
    let upid = job.fork("qmstop", &vmid.to_string(), move |job| async move {
        if overrule {
            overrule_shutdowns(&job, vmid).await;
        }
        halt(&job, vmid, skiplock, Halt::Quit).await
    });
    Ok(upid.into())
}

/// Ends the shutdown tasks of this VM that the caller may end.
async fn overrule_shutdowns(job: &Job, vmid: u32) {
    let tasks: Vec<String> = {
        let state = job.dc.state();
        let any = state.access.may(&job.auth, &format!("/nodes/{}", job.host), &["Sys.Modify"]);
        let fits = |t: &&crate::tasks::Task| {
            t.kind == "qmshutdown" && t.id == vmid.to_string() && t.exit.is_none() && (any || t.user() == job.auth.user)
        };
        state.tasks.newest().filter(fits).map(|t| t.upid.clone()).collect()
    };
    for upid in &tasks {
        job.dc.state().tasks.stop(upid);
        job.ended(upid).await;
    }
    if !tasks.is_empty() {
        job.say(format!("overruled qmshutdown tasks: {}", tasks.join(", ")));
    }
}

/// How a VM is brought down.
#[derive(Clone, Copy)]
enum Halt {
    Quit,
    Shutdown { timeout: Duration, force: bool },
}

async fn halt(job: &Job, vmid: u32, skiplock: bool, how: Halt) -> Result<(), Die> {
    job.dc.state().vm(&job.host, vmid).map_err(|_| missing(job, vmid))?;
    let _held = job.lock_vm(vmid, 10).await?;
    halt_locked(job, vmid, skiplock, how).await
}

async fn halt_locked(job: &Job, vmid: u32, skiplock: bool, how: Halt) -> Result<(), Die> {
    if !job.is_running(vmid) {
        return Ok(());
    }
    if !skiplock {
        job.load(vmid)?.check_lock()?;
    }
    match how {
        Halt::Quit => {}
        Halt::Shutdown { timeout, force } => {
            if ask_guest(job, vmid, timeout).await? {
                return after_halt(job, vmid).await;
            }
            if !force {
                return Err(Die::new("VM quit/powerdown failed - got timeout"));
            }
            job.say("VM still running - terminating now with SIGTERM");
        }
    }
    job.work(job.dc.timing().stop).await?;
    runtime::power_off(job, vmid);
    after_halt(job, vmid).await
}

/// Volumes are given back and pending changes applied.
async fn after_halt(job: &Job, vmid: u32) -> Result<(), Die> {
    let conf = job.load(vmid)?;
    if conf.lock().is_none() && (!conf.pending.is_empty() || !conf.delete.is_empty()) {
        pending::apply(job, vmid).await?;
    }
    Ok(())
}

/// Agent or power button; says whether the guest went down in time.
async fn ask_guest(job: &Job, vmid: u32, timeout: Duration) -> Result<bool, Die> {
    let conf = job.load(vmid)?;
    let by_agent = if runtime::agent_enabled(&conf) {
        let answers = agent::ping(job, vmid).await;
        if !answers {
            let why = format!("VM {vmid} qga command 'guest-ping' failed - got timeout");
            job.say(format!("QEMU Guest Agent is not running - {why}"));
        }
        answers
    } else {
        false
    };
    if by_agent {
        with_guest(&job.dc, vmid, |guest| guest.agent("shutdown", &serde_json::Value::Null));
    } else {
        with_guest(&job.dc, vmid, Guest::press_power_button);
    }
    wait_down(job, vmid, timeout).await
}

async fn wait_down(job: &Job, vmid: u32, timeout: Duration) -> Result<bool, Die> {
    let until = tokio::time::Instant::now() + timeout;
    while job.is_running(vmid) {
        if tokio::time::Instant::now() >= until {
            return Ok(false);
        }
        job.sleep(Duration::from_millis(500).min(timeout)).await?;
    }
    Ok(true)
}

fn timeout_of(call: &Call, conf: Option<&super::Conf>) -> Duration {
    let down = conf
        .and_then(|c| c.get("startup"))
        .and_then(|s| s.split(',').find_map(|p| p.strip_prefix("down=")))
        .and_then(|d| d.parse().ok());
    Duration::from_secs(call.params.int("timeout").map(|t| t as u64).or(down).unwrap_or(60))
}

fn is_paused(job: &Job, vmid: u32) -> bool {
    let state = job.dc.state();
    let vm = state.vm(&job.host, vmid);
    vm.is_ok_and(|vm| vm.running.as_ref().is_some_and(|r| r.paused))
}

fn shutdown(call: &Call) -> Answer {
    let (job, vmid) = (&call.job, call.params.vmid());
    job.root_only(&call.params, &["skiplock", "keepActive"])?;
    let (skiplock, force) = (call.params.flag("skiplock"), call.params.flag("forceStop"));
    let paused = is_paused(job, vmid);
    if paused && !force {
        return Err(Die::new("VM is paused - cannot shutdown"));
    }
    if let Some(upid) = ask_ha(job, vmid, "hastop", "stopped") {
        return Ok(upid.into());
    }
    let timeout = timeout_of(call, job.load(vmid).ok().as_ref());
    let how = if paused {
        Halt::Quit
    } else {
        Halt::Shutdown { timeout, force }
    };
    let upid = job.fork("qmshutdown", &vmid.to_string(), move |job| async move {
        halt(&job, vmid, skiplock, how).await
    });
    Ok(upid.into())
}

fn reboot(call: &Call) -> Answer {
    let (job, vmid) = (&call.job, call.params.vmid());
    if is_paused(job, vmid) {
        return Err(Die::new("VM is paused - cannot shutdown"));
    }
    require_running(job, vmid)?;
    let timeout = timeout_of(call, job.load(vmid).ok().as_ref());
    let upid = job.fork("qmreboot", &vmid.to_string(), move |job| async move {
        let _held = job.lock_vm(vmid, 10).await?;
        job.load(vmid)?.check_lock()?;
        request_restart(&job, vmid, true);
        let result = halt_locked(&job, vmid, true, Halt::Shutdown { timeout, force: false }).await;
        if result.is_err() {
            request_restart(&job, vmid, false);
        }
        result
    });
    Ok(upid.into())
}

fn request_restart(job: &Job, vmid: u32, wanted: bool) {
    if let Some(running) = job.dc.state().vms.get_mut(&vmid).and_then(|vm| vm.running.as_mut()) {
        running.restart = wanted;
    }
}

fn reset(call: &Call) -> Answer {
    let (job, vmid) = (&call.job, call.params.vmid());
    job.root_only(&call.params, &["skiplock"])?;
    require_running(job, vmid)?;
    let skiplock = call.params.flag("skiplock");
    let upid = job.fork("qmreset", &vmid.to_string(), move |job| async move {
        let _held = job.lock_vm(vmid, 10).await?;
        if !skiplock {
            job.load(vmid)?.check_lock()?;
        }
        with_guest(&job.dc, vmid, Guest::reset);
        job.dc.tell(&job, &Effect::VmReset { vmid });
        Ok(())
    });
    Ok(upid.into())
}

fn suspend(call: &Call) -> Answer {
    let (job, vmid) = (&call.job, call.params.vmid());
    job.root_only(&call.params, &["skiplock"])?;
    require_running(job, vmid)?;
    if call.params.flag("todisk") {
        check_suspension(call)?;
        return call.not_simulated();
    }
    let skiplock = call.params.flag("skiplock");
    let upid = job.fork("qmpause", &vmid.to_string(), move |job| async move {
        let _held = job.lock_vm(vmid, 10).await?;
        // A VM may be paused while it is backed up.
        if !skiplock && job.load(vmid)?.lock() != Some("backup") {
            job.load(vmid)?.check_lock()?;
        }
        set_paused(&job, vmid, true);
        Ok(())
    });
    Ok(upid.into())
}

/// What is asked before the memory of a VM is written to a storage.
fn check_suspension(call: &Call) -> Result<(), Die> {
    let (job, vmid) = (&call.job, call.params.vmid());
    let state = job.dc.state();
    if state.ha.managed(vmid).is_some() {
        return Err(Die::new("Cannot suspend HA managed VM to disk"));
    }
    state.access.check_vm(&job.auth, vmid, None, &["VM.Config.Disk"])?;
    if state
        .vm(&job.host, vmid)?
        .conf
        .now
        .keys()
        .any(|key| key.starts_with("hostpci"))
    {
        return Err(Die::new(
            "cannot suspend VM to disk due to passed-through PCI device(s), which lack the possibility to save/restore their internal state",
        ));
    }
    match call.params.get("statestorage") {
        Some(id) => state
            .access
            .check(&job.auth, &format!("/storage/{id}"), &["Datastore.AllocateSpace"]),
        None => Ok(()),
    }
}

fn resume(call: &Call) -> Answer {
    let (job, vmid) = (&call.job, call.params.vmid());
    job.root_only(&call.params, &["skiplock", "nocheck"])?;
    let on_disk = job.load(vmid).is_ok_and(|conf| conf.lock() == Some("suspended"));
    if on_disk {
        let skiplock = call.params.flag("skiplock");
        let upid = job.fork("qmresume", &vmid.to_string(), move |job| async move {
            let _held = job.lock_vm(vmid, 10).await?;
            start_locked(&job, vmid, skiplock).await
        });
        return Ok(upid.into());
    }
    require_running(job, vmid)?;
    let upid = job.fork("qmresume", &vmid.to_string(), move |job| async move {
        let _held = job.lock_vm(vmid, 10).await?;
        set_paused(&job, vmid, false);
        Ok(())
    });
    Ok(upid.into())
}

fn set_paused(job: &Job, vmid: u32, paused: bool) {
    let round = job.dc.round();
    if let Some(running) = job.dc.state().vm_mut(vmid, round).and_then(|vm| vm.running.as_mut()) {
        running.paused = paused;
    }
}
