//! `/version` and `/cluster`: what is true everywhere.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::state::State;
use crate::storage::Storage;
use crate::{ha, jobs, options, qemu, sdn};

/// What is known of the VMs of a host that went away is kept so long.
const STALE: std::time::Duration = std::time::Duration::from_secs(300);

pub(crate) async fn handle(call: Call) -> Answer {
    let (verb, template) = call.what();
    match (verb, template) {
        ("GET", "/version") => Ok(version(&call)),
        ("GET", "/cluster/status") => Ok(status(&call)),
        ("GET", "/cluster/resources") => Ok(resources(&call)),
        ("GET", "/cluster/nextid") => next_id(&call),
        ("GET", "/cluster/log") => Ok(crate::nodes::cluster_log(&call)),
        ("GET", "/cluster/tasks") => Ok(crate::nodes::cluster_tasks(&call)),
        ("GET", "/cluster/options") => Ok(options::get(&call)),
        ("PUT", "/cluster/options") => options::set(&call).await,
        ("GET", "/cluster/config/nodes") => Ok(config_nodes(&call)),
        ("GET", "/cluster/mapping/pci" | "/cluster/mapping/usb" | "/cluster/mapping/dir") => Ok(json!([]).into()),
        (_, t) if is_job(t) => jobs::handle(call).await,
        (_, t) if t.starts_with("/cluster/sdn/") => sdn::handle(&call),
        (_, t) if t.starts_with("/cluster/ha/") => ha::handle(call).await,
        _ => call.not_simulated(),
    }
}

fn is_job(template: &str) -> bool {
    ["/cluster/replication", "/cluster/backup"]
        .iter()
        .any(|path| template == *path || template == format!("{path}/{{id}}"))
}

fn version(call: &Call) -> Reply {
    let release = call.job.dc.release();
    json!({ "version": release.version, "release": release.release, "repoid": release.repoid }).into()
}

fn status(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let mut list = Vec::new();
    if let Some(cluster) = &state.cluster {
        list.push(json!({
            "type": "cluster", "id": "cluster", "name": cluster.name, "version": cluster.config_version,
            "nodes": state.nodes.len(), "quorate": u8::from(state.quorate(&call.contacted)),
        }));
    }
    for (name, node) in &state.nodes {
        list.push(json!({
            "type": "node", "id": format!("node/{name}"), "name": name, "ip": node.ip, "level": "",
            "nodeid": if state.cluster.is_some() { node.id } else { 0 },
            "online": u8::from(state.sees(&call.contacted, name)), "local": u8::from(*name == call.contacted),
        }));
    }
    Value::Array(list).into()
}

/// Whether what a host told last is still worth showing.
fn is_fresh(state: &State, from: &str, host: &str) -> bool {
    state.sees(from, host)
        || state
            .nodes
            .get(host)
            .and_then(|n| n.gone_since)
            .is_none_or(|since| Instant::now() - since < STALE)
}

fn resources(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let (auth, kind) = (&call.job.auth, call.params.get("type"));
    let wants = |name: &str| kind.is_none_or(|k| k == name);
    let mut list = Vec::new();
    if wants("vm") {
        for vm in state.vms.values() {
            if state.access.may(auth, &format!("/vms/{}", vm.vmid), &["VM.Audit"]) {
                let fresh = is_fresh(&state, &call.contacted, &vm.node);
                list.push(Value::Object(qemu::resource(&call.job.dc, &state, vm, fresh)));
            }
        }
    }
    if wants("node") {
        for name in state.nodes.keys() {
            let mut entry = crate::nodes::describe(call, &state, name);
            entry.remove("ssl_fingerprint");
            entry.insert("cgroup-mode".into(), json!(2));
            list.push(Value::Object(entry));
        }
    }
    if wants("storage") {
        push_storages(call, &state, &mut list);
    }
    if kind.is_none() {
        for pool in state
            .access
            .pools
            .keys()
            .filter(|p| state.access.may(auth, &format!("/pool/{p}"), &["Pool.Audit"]))
        {
            list.push(json!({ "type": "pool", "id": format!("/pool/{pool}"), "pool": pool }));
        }
        let zones = state
            .access
            .may_any(auth, "/sdn/zones/localnetwork", &["SDN.Audit", "SDN.Allocate"]);
        for node in state.nodes.keys().filter(|_| zones) {
            list.push(json!({
                "type": "network", "network-type": "zone", "network": "localnetwork", "node": node, "status": "ok",
                "id": format!("network/{node}/zone/localnetwork"),
            }));
        }
    }
    Value::Array(list).into()
}

fn push_storages(call: &Call, state: &State, list: &mut Vec<Value>) {
    for (id, storage) in &state.storages {
        if !state.access.may_any(
            &call.job.auth,
            &format!("/storage/{id}"),
            &["Datastore.Audit", "Datastore.AllocateSpace"],
        ) {
            continue;
        }
        for node in state.nodes.keys().filter(|node| storage.usable(node)) {
            let fresh = is_fresh(state, &call.contacted, node);
            list.push(storage_resource(state, id, storage, node, fresh));
        }
    }
}

/// A storage on a host, as `/cluster/resources` and pools show it.
pub(crate) fn storage_resource(state: &State, id: &str, storage: &Storage, node: &str, fresh: bool) -> Value {
    json!({
        "type": "storage", "id": format!("storage/{node}/{id}"), "storage": id, "node": node, "plugintype": storage.kind,
        "status": if fresh { "available" } else { "unknown" }, "shared": u8::from(storage.shared),
        "content": storage.content_list(), "maxdisk": storage.capacity, "disk": state.used(id, node),
    })
}

fn next_id(call: &Call) -> Answer {
    let state = call.job.dc.state();
    if let Some(vmid) = call.params.get("vmid") {
        let used = vmid.parse().is_ok_and(|id: u32| state.vms.contains_key(&id));
        return if used {
            Err(Die::parameter("vmid", format!("VM {vmid} already exists")))
        } else {
            Ok(vmid.into())
        };
    }
    let option = state.options.get("next-id").cloned().unwrap_or_default();
    let bound = |name: &str| {
        option
            .split(',')
            .find_map(|p| p.strip_prefix(&format!("{name}=")))
            .and_then(|v| v.parse::<u32>().ok())
    };
    let (lower, upper) = (bound("lower").unwrap_or(100), bound("upper").unwrap_or(1_000_000));
    match (lower..upper).find(|id| !state.vms.contains_key(id)) {
        Some(id) => Ok(id.to_string().into()),
        None => Err(Die::new(format!("unable to get any free VMID in range [{lower}, {upper}]"))),
    }
}

fn config_nodes(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let entry = |(name, node): (&String, &crate::state::Node)| json!({ "node": name, "name": name, "nodeid": node.id.to_string(), "ring0_addr": node.ip, "quorum_votes": "1" });
    Value::Array(state.nodes.iter().map(entry).collect()).into()
}
