//! `/nodes`: hosts, their network, their tasks.

use serde_json::{Map, Value, json};

use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::schema::split_list;
use crate::state::State;
use crate::storage;
use crate::tasks::Task;

pub(crate) async fn handle(call: Call) -> Answer {
    let (verb, template) = call.what();
    match (verb, template) {
        ("GET", "/nodes") => Ok(list(&call)),
        ("GET", "/nodes/{node}/status") => Ok(status(&call)),
        ("GET", "/nodes/{node}/version") => {
            let release = call.job.dc.release();
            Ok(json!({ "version": release.version, "release": release.release, "repoid": release.repoid }).into())
        }
        ("GET", "/nodes/{node}/network") => Ok(network(&call)),
        ("GET", "/nodes/{node}/network/{iface}") => interface(&call),
        ("GET", "/nodes/{node}/dns") => Ok(dns(&call)),
        ("GET", "/nodes/{node}/time") => {
            let now = call.job.dc.epoch();
            Ok(json!({ "timezone": "UTC", "time": now, "localtime": now }).into())
        }
        ("GET", "/nodes/{node}/capabilities/qemu/cpu") => Ok(cpu_models()),
        ("GET", "/nodes/{node}/capabilities/qemu/machines") => Ok(machines()),
        ("GET", "/nodes/{node}/query-url-metadata") => storage::query_url_metadata(&call).await,
        ("GET", "/nodes/{node}/tasks") => Ok(tasks(&call)),
        ("GET", "/nodes/{node}/tasks/{upid}/status") => task_status(&call),
        ("GET", "/nodes/{node}/tasks/{upid}/log") => task_log(&call),
        ("DELETE", "/nodes/{node}/tasks/{upid}") => task_stop(&call),
        ("GET", "/nodes/{node}/lxc") => Ok(json!([]).into()),
        _ => call.not_simulated(),
    }
}

/// A host's entry in lists; numbers need Sys.Audit.
pub(crate) fn describe(call: &Call, state: &State, name: &str) -> Map<String, Value> {
    let mut entry = Map::new();
    let mut put = |key: &str, value: Value| drop(entry.insert(key.into(), value));
    let Some(node) = state.nodes.get(name) else {
        return Map::new();
    };
    let online = state.sees(&call.contacted, name);
    put("type", json!("node"));
    put("id", json!(format!("node/{name}")));
    put("node", json!(name));
    put("status", json!(if online { "online" } else { "offline" }));
    put("level", json!(""));
    if !node.fingerprint.is_empty() || !call.job.dc.uses_tls() {
        put("ssl_fingerprint", json!(node.fingerprint));
    }
    if online && state.access.may(&call.job.auth, &format!("/nodes/{name}"), &["Sys.Audit"]) {
        let used: u64 = state.vms.values().filter(|vm| vm.node == name && vm.is_running()).count() as u64;
        put("cpu", json!(0.02));
        put("maxcpu", json!(node.maxcpu));
        put("mem", json!((2_u64 << 30) + used * (1 << 30)));
        put("maxmem", json!(node.maxmem));
        put("disk", json!(8_u64 << 30));
        put("maxdisk", json!(100_u64 << 30));
        put("uptime", json!(call.job.dc.host_uptime()));
    }
    entry
}

fn list(call: &Call) -> Reply {
    let state = call.job.dc.state();
    Value::Array(
        state
            .nodes
            .keys()
            .map(|name| Value::Object(describe(call, &state, name)))
            .collect(),
    )
    .into()
}

fn status(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let host = &call.job.host;
    let Some(node) = state.nodes.get(host) else {
        return Reply::default();
    };
    let release = call.job.dc.release();
    let memory =
        |used: u64| json!({ "total": node.maxmem, "used": used, "free": node.maxmem - used, "available": node.maxmem - used });
    let disk: u64 = 100 << 30;
    json!({
        "pveversion": format!("pve-manager/{}/{}", release.version, release.repoid), "kversion": "Linux 6.14.11-1-pve #1 SMP PREEMPT_DYNAMIC",
        "uptime": call.job.dc.host_uptime(), "cpu": 0.02, "wait": 0, "idle": 0, "loadavg": ["0.10", "0.12", "0.08"],
        "memory": memory(4 << 30), "swap": { "total": 0, "used": 0, "free": 0 },
        "rootfs": { "total": disk, "used": disk / 10, "free": disk / 10 * 9, "avail": disk / 10 * 9 }, "ksm": { "shared": 0 },
        "cpuinfo": {
            "cpus": node.maxcpu, "cores": node.maxcpu, "sockets": 1, "model": "Simulated CPU", "vendor": "GenuineIntel", "family": "6", "mhz": "2400.000", "hvm": "1",
            "user_hz": 100,
            "flags": "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat sse sse2 ht ssse3 cx16 sse4_1 sse4_2 popcnt aes avx",
        },
        "current-kernel": { "sysname": "Linux", "release": "6.14.11-1-pve", "version": "#1 SMP PREEMPT_DYNAMIC", "machine": "x86_64" },
        "boot-info": { "mode": "legacy-bios" },
    })
    .into()
}

fn dns(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let mut entry = json!({});
    if let Some(node) = state.nodes.get(&call.job.host) {
        entry["search"] = json!(node.resolv.search);
        for (index, server) in node.resolv.nameserver.iter().take(3).enumerate() {
            entry[format!("dns{}", index + 1)] = json!(server);
        }
    }
    entry.into()
}

/// Bridges and the ports below them.
fn interfaces(state: &State, host: &str) -> Vec<(String, Value)> {
    let Some(node) = state.nodes.get(host) else {
        return Vec::new();
    };
    let mut list = Vec::new();
    let mut ports: Vec<&str> = node.bridges.values().flat_map(|b| split_list(&b.ports)).collect();
    ports.sort_unstable();
    ports.dedup();
    for (index, port) in ports.iter().enumerate() {
        list.push((
            (*port).to_string(),
            json!({
                "type": "eth", "method": "manual", "method6": "manual", "families": ["inet"], "active": 1, "priority": 3 + index,
            }),
        ));
    }
    for (index, (name, bridge)) in node.bridges.iter().enumerate() {
        let mut entry = json!({
            "type": "bridge", "bridge_ports": bridge.ports, "bridge_stp": "off", "bridge_fd": "0", "autostart": 1, "active": bridge.active,
            "families": ["inet"], "method6": "manual", "priority": 3 + ports.len() + index,
            "method": if bridge.cidr.is_some() { "static" } else { "manual" },
        });
        if let Some((address, mask)) = bridge.cidr.as_ref().and_then(|c| c.split_once('/')) {
            entry["cidr"] = json!(bridge.cidr);
            entry["address"] = json!(address);
            entry["netmask"] = json!(mask);
        }
        if bridge.vlan_aware {
            entry["bridge_vlan_aware"] = json!(1);
            entry["bridge_vids"] = json!("2-4094");
        }
        list.push((name.clone(), entry));
    }
    list
}

fn network(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let kind = call.params.get("type");
    let mut list = Vec::new();
    for (name, mut entry) in interfaces(&state, &call.job.host) {
        let is_bridge = entry["type"] == "bridge";
        let wanted = match kind {
            None | Some("include_sdn") => true,
            Some("any_bridge" | "any_local_bridge" | "bridge") => is_bridge,
            Some(kind) => entry["type"] == kind,
        };
        let path = format!("/sdn/zones/localnetwork/{name}");
        let visible = !is_bridge || state.access.may_any(&call.job.auth, &path, &["SDN.Audit", "SDN.Use"]);
        if wanted && visible {
            entry["iface"] = json!(name);
            list.push(entry);
        }
    }
    if matches!(kind, Some("any_bridge" | "vnet" | "include_sdn")) {
        for (name, vnet) in &state.sdn.vnets {
            let path = format!("/sdn/zones/{}/{name}", vnet.zone);
            if state.access.may_any(&call.job.auth, &path, &["SDN.Audit", "SDN.Use"]) {
                list.push(json!({ "iface": name, "type": "vnet", "active": 1 }));
            }
        }
    }
    Value::Array(list).into()
}

fn interface(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let wanted = call.params.text("iface");
    match interfaces(&state, &call.job.host)
        .into_iter()
        .find(|(name, _)| name == wanted)
    {
        Some((_, entry)) => Ok(entry.into()),
        None => Err(Die::parameter("iface", "interface does not exist")),
    }
}

/// CPU models QEMU knows, by vendor.
static CPU_MODELS: &str = include_str!("../data/cpu-models.txt");

pub(crate) fn is_cpu_model(name: &str) -> bool {
    CPU_MODELS.lines().any(|line| line.split(' ').next() == Some(name))
}

fn cpu_models() -> Reply {
    let entry = |line: &str| {
        let mut words = line.split(' ');
        let mut entry = json!({ "name": words.next(), "vendor": words.next(), "custom": 0 });
        if words.next().is_some() {
            entry["abstract"] = json!(1);
        }
        entry
    };
    Value::Array(CPU_MODELS.lines().map(entry).collect()).into()
}

/// Machine versions with changes that only PVE has.
const PVE_MACHINES: &[(&str, &str)] = &[
    (
        "10.0+pve1",
        "Set host_mtu vNIC option even with default value for migration compat.",
    ),
    ("9.2+pve1", "Disables S3/S4 power states by default."),
    ("4.1+pve2", "Increases the number of SCSI drives supported."),
    ("4.1+pve1", "Introduction of pveX versioning, no changes."),
];
const MACHINES: &[&str] = &[
    "10.0", "9.2", "9.1", "9.0", "8.2", "8.1", "8.0", "7.2", "7.1", "7.0", "6.2", "6.1", "6.0", "5.2", "5.1", "5.0", "4.2",
    "4.1", "4.0", "3.1", "3.0", "2.12", "2.11", "2.10", "2.9", "2.8", "2.7", "2.6", "2.5", "2.4",
];

fn machines() -> Reply {
    let mut list = Vec::new();
    for (prefix, kind) in [("pc-i440fx-", "i440fx"), ("pc-q35-", "q35")] {
        let changed = PVE_MACHINES.iter().map(|(version, changes)| json!({ "id": format!("{prefix}{version}"), "type": kind, "version": version, "changes": changes }));
        list.extend(changed);
        list.extend(
            MACHINES
                .iter()
                .map(|version| json!({ "id": format!("{prefix}{version}"), "type": kind, "version": version })),
        );
    }
    Value::Array(list).into()
}

/// Own tasks, and everybody's with Sys.Audit. A user sees those of their tokens, a token only its own.
fn sees_task(call: &Call, state: &State, task: &Task) -> bool {
    owns(call, &task.owner)
        || state
            .access
            .may(&call.job.auth, &format!("/nodes/{}", task.host), &["Sys.Audit"])
}

fn owns(call: &Call, owner: &str) -> bool {
    let auth = &call.job.auth;
    match &auth.token {
        Some(_) => owner == auth.full(),
        None => owner.split('!').next() == Some(&auth.user),
    }
}

fn finished(task: &Task) -> Value {
    let mut entry = base(task);
    entry["endtime"] = json!(task.endtime);
    entry["status"] = json!(task.exit);
    split_user(&mut entry, task);
    entry
}

fn base(task: &Task) -> Value {
    json!({
        "upid": task.upid, "node": task.host, "pid": task.pid, "pstart": task.pstart, "starttime": task.starttime, "type": task.kind,
        "id": task.id,
    })
}

fn split_user(entry: &mut Value, task: &Task) {
    entry["user"] = json!(task.user());
    if let Some(token) = task.token() {
        entry["tokenid"] = json!(token);
    }
}

/// In the list of active tasks the owner is written in full.
fn active(task: &Task) -> Value {
    let mut entry = base(task);
    entry["user"] = json!(task.owner);
    entry["saved"] = json!("0");
    entry["status"] = json!("RUNNING");
    entry
}

fn tasks(call: &Call) -> Reply {
    let params = &call.params;
    let state = call.job.dc.state();
    let source = params.get("source").unwrap_or("archive");
    let states: Vec<&str> = params
        .get("statusfilter")
        .map(|s| split_list(s).collect())
        .unwrap_or_default();
    let kind_of = |exit: &str| match exit {
        "OK" => "ok",
        "unexpected status" => "unknown",
        e if e.starts_with("WARNINGS") => "warning",
        _ => "error",
    };
    let errors = params.flag("errors");
    let wants = |kind: &str| {
        if errors {
            kind != "ok"
        } else {
            states.is_empty() || states.iter().any(|s| s.eq_ignore_ascii_case(kind))
        }
    };
    let by = params.get("userfilter").map(str::to_lowercase);
    let fits = |task: &&Task| {
        let exit = task.exit.as_deref();
        // Finished tasks are filed under their user, running ones still under the token.
        let owner = if exit.is_some() { task.user() } else { &task.owner };
        let in_source = match source {
            "active" => exit.is_none(),
            "all" => true,
            _ => exit.is_some(),
        };
        in_source
            && task.host == call.job.host
            && sees_task(call, &state, task)
            && params.get("vmid").is_none_or(|v| task.id == v)
            && params.get("typefilter").is_none_or(|t| task.kind == t)
            && by.as_ref().is_none_or(|u| owner.to_lowercase().contains(u))
            && wants(exit.map_or("unknown", kind_of))
            && params.int("since").is_none_or(|s| task.starttime >= s)
            && params.int("until").is_none_or(|u| task.starttime <= u)
    };
    let all: Vec<&Task> = state.tasks.newest().filter(fits).collect();
    let (start, limit) = (
        params.int("start").unwrap_or(0) as usize,
        params.int("limit").unwrap_or(50) as usize,
    );
    let page = all
        .iter()
        .skip(start)
        .take(limit)
        .map(|t| if t.exit.is_some() { finished(t) } else { active(t) });
    // An empty list has no total.
    let total = (!all.is_empty()).then_some(all.len() as u64);
    Reply {
        data: Value::Array(page.collect()),
        total,
        raw: None,
    }
}

/// What happened to tasks, newest first; of others only with Sys.Syslog.
pub(crate) fn cluster_log(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let admin = state.access.may(&call.job.auth, "/", &["Sys.Syslog"]);
    let mut lines = Vec::new();
    for task in state.tasks.newest().filter(|t| admin || t.owner == call.job.auth.full()) {
        if let (Some(exit), Some(time)) = (&task.exit, task.endtime) {
            let pri = if exit == "OK" { 6 } else { 3 };
            lines.push((time, task, pri, format!("end task {} {exit}", task.upid)));
        }
        lines.push((task.starttime, task, 6, format!("starting task {}", task.upid)));
    }
    lines.sort_by_key(|(time, ..)| std::cmp::Reverse(*time));
    let count = lines.len();
    let entry = |(index, (time, task, pri, msg)): (usize, &(i64, &Task, i32, String))| {
        let uid = (count - index).to_string();
        json!({
            "time": time, "uid": uid, "id": format!("{uid}:{}", task.host), "node": task.host, "tag": "pvedaemon", "pri": pri, "msg": msg,
            "user": task.owner, "pid": task.pid,
        })
    };
    let max = call
        .params
        .int("max")
        .and_then(|m| usize::try_from(m).ok())
        .unwrap_or(usize::MAX);
    Value::Array(lines.iter().enumerate().take(max).map(entry).collect()).into()
}

/// The cluster's ring of recent tasks.
pub(crate) fn cluster_tasks(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let visible = state.tasks.newest().filter(|t| sees_task(call, &state, t)).take(25);
    let entry = |t: &Task| {
        let mut entry = if t.exit.is_some() { finished(t) } else { base(t) };
        entry["user"] = json!(t.owner);
        entry["saved"] = json!("1");
        entry
    };
    Value::Array(visible.map(entry).collect()).into()
}

fn parse_upid(call: &Call) -> Result<&str, Die> {
    let upid = call.params.text("upid");
    let parts: Vec<&str> = upid.split(':').collect();
    let hex = |s: &str, len: usize| s.len() >= len && s.len() <= 9 && s.bytes().all(|b| b.is_ascii_hexdigit());
    match parts[..] {
        ["UPID", _, pid, pstart, start, kind, _, user, ""]
            if hex(pid, 8) && hex(pstart, 8) && hex(start, 8) && !kind.is_empty() && !user.is_empty() =>
        {
            Ok(upid)
        }
        _ => Err(Die::parameter("upid", "unable to parse worker upid")),
    }
}

fn find<'a>(call: &Call, state: &'a State, privilege: &str) -> Result<&'a Task, Die> {
    let upid = parse_upid(call)?;
    let task = state.tasks.get(upid).filter(|t| t.host == call.job.host);
    let task = task.ok_or_else(|| Die::parameter("upid", "no such task"))?;
    if !owns(call, task.owner.as_str()) {
        let path = format!("/nodes/{}", call.job.host);
        state.access.check(&call.job.auth, &path, &[privilege])?;
    }
    Ok(task)
}

fn task_status(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let task = find(call, &state, "Sys.Audit")?;
    let mut entry = base(task);
    split_user(&mut entry, task);
    entry["status"] = json!(if task.exit.is_some() { "stopped" } else { "running" });
    if let Some(exit) = &task.exit {
        entry["exitstatus"] = json!(exit);
    }
    Ok(entry.into())
}

fn task_log(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let lines = match find(call, &state, "Sys.Audit") {
        Ok(task) => task.log(),
        Err(die) if die.errors.values().any(|text| text == "no such task") => {
            let owner = call.params.text("upid").split(':').nth(7).unwrap_or_default();
            if !owns(call, owner) {
                let path = format!("/nodes/{}", call.job.host);
                state.access.check(&call.job.auth, &path, &["Sys.Audit"])?;
            }
            let line = json!({ "n": 1, "t": "unable to open file - No such file or directory" });
            return Ok(Reply {
                data: json!([line]),
                total: Some(1),
                raw: None,
            });
        }
        Err(die) => return Err(die),
    };
    if call.params.flag("download") {
        if call.params.has("start") || call.params.has("limit") {
            return Err(Die::new(
                "'download' cannot be used together with 'start' or 'limit' parameters",
            ));
        }
        return Ok(download(&lines));
    }
    let start = call.params.int("start").unwrap_or(0) as usize;
    let limit = call.params.int("limit").unwrap_or(50) as usize;
    let limit = if limit == 0 { usize::MAX } else { limit };
    let mut page: Vec<Value> = lines
        .iter()
        .enumerate()
        .skip(start)
        .take(limit)
        .map(|(n, text)| json!({ "n": n + 1, "t": text }))
        .collect();
    let total = lines.len();
    if total == 0 {
        page.push(json!({ "n": 1, "t": "no content" }));
    }
    Ok(Reply {
        data: Value::Array(page),
        total: Some(total.max(1) as u64),
        raw: None,
    })
}

/// The log as a file. A long one is compressed whether that was asked for or not.
fn download(lines: &[String]) -> Reply {
    use std::io::Write;
    let mut headers = vec![("Content-Type", "text/plain".to_string())];
    let mut body = (lines.join("\n") + "\n").into_bytes();
    if body.len() > 1024 {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let packed = encoder.write_all(&body).and_then(|()| encoder.finish());
        body = packed.unwrap_or_default();
        headers.push(("Content-Encoding", "gzip".to_string()));
    }
    let response = crate::http::Response {
        status: 200,
        reason: "OK".into(),
        headers,
        body: body.into(),
        bare: false,
    };
    Reply {
        raw: Some(response),
        ..Reply::default()
    }
}

fn task_stop(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let upid = find(call, &state, "Sys.Modify")?.upid.clone();
    state.tasks.stop(&upid);
    Ok(Reply::default())
}
