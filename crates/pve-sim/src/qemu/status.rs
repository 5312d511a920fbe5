//! What a VM looks like from outside.

use serde_json::{Map, Value, json};

use super::Vm;
use super::conf::Conf;
use super::config::current_memory;
use super::drive::{Drive, is_net};
use super::runtime::agent_enabled;
use crate::datacenter::{Answer, Datacenter};
use crate::dispatch::Call;
use crate::state::State;

/// What `pvestatd` tells the cluster about a VM every ten seconds.
#[derive(Clone, Debug)]
pub(crate) struct Broadcast {
    pub name: String,
    pub status: &'static str,
    pub template: bool,
    pub maxcpu: u32,
    pub maxmem: u64,
    pub maxdisk: u64,
    pub since: Option<tokio::time::Instant>,
}

pub(super) fn broadcast_of(vm: &Vm) -> Broadcast {
    Broadcast {
        name: name_of(vm.vmid, &vm.conf),
        status: qmp_status(vm),
        template: vm.conf.is_template(),
        maxcpu: cpus(&vm.conf),
        maxmem: current_memory(vm.conf.get("memory")) << 20,
        maxdisk: boot_disk_size(&vm.conf),
        since: vm.running.as_ref().map(|r| r.since),
    }
}

fn name_of(vmid: u32, conf: &Conf) -> String {
    conf.get("name").map_or_else(|| format!("VM {vmid}"), Into::into)
}

fn qmp_status(vm: &Vm) -> &'static str {
    match &vm.running {
        Some(running) if running.paused => "paused",
        Some(_) => "running",
        None => "stopped",
    }
}

pub(super) fn cpus(conf: &Conf) -> u32 {
    let number = |key: &str| conf.get(key).and_then(|v| v.parse::<u32>().ok());
    number("vcpus").unwrap_or_else(|| number("cores").unwrap_or(1) * number("sockets").unwrap_or(1))
}

/// The size of the first disk in the boot order.
fn boot_disk_size(conf: &Conf) -> u64 {
    let order = conf.get("boot").and_then(|b| b.strip_prefix("order=")).unwrap_or_default();
    let drives = order
        .split(';')
        .filter_map(|key| conf.get(key).and_then(|value| Drive::parse(key, value).ok()));
    drives.filter(|d| !d.is_cdrom()).find_map(|d| d.size()).unwrap_or(0)
}

/// The fields that lists and status share.
pub(crate) fn describe(vm: &Vm, maxcpu: u32) -> Map<String, Value> {
    let conf = &vm.conf;
    let mut entry = Map::new();
    let mut put = |key: &str, value: Value| drop(entry.insert(key.into(), value));
    put("vmid", json!(vm.vmid));
    put("name", json!(name_of(vm.vmid, conf)));
    put("status", json!(if vm.is_running() { "running" } else { "stopped" }));
    put("cpus", json!(cpus(conf).min(maxcpu.max(1))));
    let maxmem = current_memory(conf.get("memory")) << 20;
    put("maxmem", json!(maxmem));
    put("maxdisk", json!(boot_disk_size(conf)));
    let used = if vm.is_running() { maxmem / 2 } else { 0 };
    for (key, value) in [
        ("disk", 0),
        ("mem", used),
        ("memhost", used),
        ("netin", 0),
        ("netout", 0),
        ("cpu", 0),
    ] {
        put(key, json!(value));
    }
    put(
        "uptime",
        json!(vm.running.as_ref().map_or(0, |r| r.since.elapsed().as_secs())),
    );
    if let Some(running) = &vm.running {
        put("pid", json!(running.pid));
        for kind in ["cpu", "io", "memory"] {
            put(&format!("pressure{kind}some"), json!(0));
            put(&format!("pressure{kind}full"), json!(0));
        }
        let taps: Map<String, Value> = conf
            .now
            .keys()
            .filter(|key| is_net(key))
            .map(|key| (format!("tap{}i{}", vm.vmid, &key[3..]), json!({ "netin": 0, "netout": 0 })))
            .collect();
        if !taps.is_empty() {
            put("nics", Value::Object(taps));
        }
    }
    if conf.is_template() {
        put("template", json!(1));
    }
    if conf.now.keys().any(|key| key.starts_with("serial")) {
        put("serial", json!(1));
    }
    if let Some(balloon) = conf.get("balloon").and_then(|b| b.parse::<u64>().ok()).filter(|b| *b > 0) {
        put("balloon_min", json!(balloon << 20));
        put(
            "shares",
            json!(conf.get("shares").and_then(|s| s.parse::<u64>().ok()).unwrap_or(1000)),
        );
    }
    for key in ["lock", "tags"] {
        if let Some(value) = conf.get(key) {
            put(key, json!(value));
        }
    }
    entry
}

pub(super) fn list(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let host = &call.job.host;
    let maxcpu = state.nodes.get(host).map_or(1, |n| n.maxcpu);
    let visible = |vm: &&Vm| vm.node == *host && state.access.may(&call.job.auth, &format!("/vms/{}", vm.vmid), &["VM.Audit"]);
    let entry = |vm: &Vm| {
        let mut entry = describe(vm, maxcpu);
        entry.remove("nics");
        if call.params.flag("full") {
            entry.insert("qmpstatus".into(), json!(qmp_status(vm)));
        }
        Value::Object(entry)
    };
    Ok(Value::Array(state.vms.values().filter(visible).map(entry).collect()).into())
}

pub(super) fn current(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let vm = state.vm(&call.job.host, call.params.vmid())?;
    let maxcpu = state.nodes.get(&call.job.host).map_or(1, |n| n.maxcpu);
    let mut entry = describe(vm, maxcpu);
    entry.insert("qmpstatus".into(), json!(qmp_status(vm)));
    entry.insert("ha".into(), ha_of(&state, vm.vmid));
    if agent_enabled(&vm.conf) {
        entry.insert("agent".into(), json!(1));
    }
    if let Some(vga) = vm.conf.get("vga") {
        if vga.trim_start_matches("type=").starts_with("qxl") {
            entry.insert("spice".into(), json!(1));
        }
        let clipboard = vga.split(',').find_map(|part| part.strip_prefix("clipboard="));
        entry.insert("clipboard".into(), json!(clipboard));
    }
    Ok(Value::Object(entry).into())
}

fn ha_of(state: &State, vmid: u32) -> Value {
    match state.ha.managed(vmid) {
        Some(_) => json!({ "managed": 1, "state": Value::Null }),
        None => json!({ "managed": 0 }),
    }
}

/// A VM's entry in `/cluster/resources`: where it is comes at once, what it does with the last round.
pub(crate) fn resource(dc: &Datacenter, state: &State, vm: &Vm, fresh: bool) -> Map<String, Value> {
    let mut entry = Map::new();
    let mut put = |key: &str, value: Value| drop(entry.insert(key.into(), value));
    put("id", json!(format!("qemu/{}", vm.vmid)));
    put("type", json!("qemu"));
    put("vmid", json!(vm.vmid));
    put("node", json!(vm.node));
    match vm.broadcast(dc.round()).filter(|_| fresh) {
        None => put("status", json!("unknown")),
        Some(told) => {
            put("name", json!(told.name));
            put("status", json!(told.status));
            put("template", json!(u8::from(told.template)));
            put("maxcpu", json!(told.maxcpu));
            put("maxmem", json!(told.maxmem));
            put("maxdisk", json!(told.maxdisk));
            put("uptime", json!(told.since.map_or(0, |since| since.elapsed().as_secs())));
            let used = if told.since.is_some() { told.maxmem / 2 } else { 0 };
            for key in ["cpu", "disk", "diskread", "diskwrite", "netin", "netout"] {
                put(key, json!(0));
            }
            put("mem", json!(used));
            put("memhost", json!(used));
        }
    }
    for key in ["lock", "tags"] {
        if let Some(value) = vm.conf.get(key) {
            put(key, json!(value));
        }
    }
    if let Some(pool) = state.access.pool_of(vm.vmid) {
        put("pool", json!(pool));
    }
    if let Some(state) = state.ha.managed(vm.vmid) {
        put("hastate", json!(state));
    }
    entry
}
