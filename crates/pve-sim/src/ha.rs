//! HA resources and rules as far as they go without a manager: states are kept, nothing acts on them.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::schema::split_list;

#[derive(Clone, Debug, Default)]
pub struct Ha {
    resources: BTreeMap<u32, BTreeMap<String, String>>,
    rules: IndexMap<String, BTreeMap<String, String>>,
}

impl Ha {
    /// The requested state of a managed VM.
    pub fn managed(&self, vmid: u32) -> Option<&str> {
        self.resources
            .get(&vmid)
            .map(|r| r.get("state").map_or("started", String::as_str))
    }

    pub fn add(&mut self, vmid: u32, state: &str) {
        self.resources.insert(vmid, [("state".to_string(), state.to_string())].into());
    }

    pub fn set_state(&mut self, vmid: u32, state: &str) {
        if let Some(resource) = self.resources.get_mut(&vmid) {
            resource.insert("state".into(), state.into());
        }
    }

    /// Takes a VM out of resources and rules; says whether it was there.
    pub fn remove(&mut self, vmid: u32) -> bool {
        self.leave_rules(vmid);
        self.resources.remove(&vmid).is_some()
    }

    /// A rule without resources goes.
    fn leave_rules(&mut self, vmid: u32) {
        let sid = format!("vm:{vmid}");
        for rule in self.rules.values_mut() {
            if let Some(list) = rule.get_mut("resources") {
                *list = split_list(list).filter(|s| *s != sid).collect::<Vec<_>>().join(",");
            }
        }
        self.rules
            .retain(|_, rule| rule.get("resources").is_some_and(|r| !r.is_empty()));
    }

    /// resources.cfg has one digest.
    fn digest(&self) -> String {
        hex::encode(<sha1::Sha1 as sha1::Digest>::digest(format!("{:?}", self.resources)))
    }
}

/// The VM of `vm:100` or `100`; a bare number must be that of a VM.
fn vmid_of(call: &Call) -> Result<u32, Die> {
    let sid = call.params.text("sid");
    match sid.split_once(':') {
        Some((kind, id)) => {
            if call.params.get("type").is_some_and(|given| given != kind) {
                return Err(Die::new("types does not match"));
            }
            Ok(id.parse().unwrap_or_default())
        }
        None => {
            let vmid = sid.parse().unwrap_or_default();
            if !call.job.dc.state().vms.contains_key(&vmid) {
                return Err(Die::new(format!(
                    "unable to detect SID from VMID - VM/CT {sid} does not exist"
                )));
            }
            Ok(vmid)
        }
    }
}

pub(crate) async fn handle(call: Call) -> Answer {
    let (verb, template) = call.what();
    match (verb, template.strip_prefix("/cluster/ha").unwrap_or_default()) {
        ("GET", "/resources") => resources(&call),
        ("POST", "/resources") => add(&call),
        ("GET", "/resources/{sid}") => resource(&call),
        ("PUT", "/resources/{sid}") => update(&call),
        ("DELETE", "/resources/{sid}") => delete(&call),
        ("GET", "/rules") => rules(&call),
        ("POST", "/rules") => add_rule(&call),
        ("GET", "/rules/{rule}") => rule(&call),
        ("PUT", "/rules/{rule}") => update_rule(&call),
        ("DELETE", "/rules/{rule}") => {
            call.job.dc.state().ha.rules.shift_remove(call.params.text("rule"));
            Ok(Reply::default())
        }
        ("GET", "/groups") => Err(Die::new("cannot index groups: ha groups have been migrated to rules")),
        ("POST", "/groups") => Err(Die::new("cannot create group: ha groups have been migrated to rules")),
        ("PUT", "/groups/{group}") => Err(Die::new("cannot update group: ha groups have been migrated to rules")),
        ("DELETE", "/groups/{group}") => Err(Die::new("cannot delete group: ha groups have been migrated to rules")),
        ("GET", "/groups/{group}") => Err(Die::new("cannot read group: ha groups have been migrated to rules")),
        ("GET", "/status/current") => status(&call),
        _ => call.not_simulated(),
    }
}

fn show(vmid: u32, resource: &BTreeMap<String, String>, digest: &str) -> Value {
    let mut entry: Map<String, Value> = resource.iter().map(|(k, v)| (k.clone(), typed(v))).collect();
    entry.entry("state").or_insert(json!("started"));
    entry.insert("sid".into(), json!(format!("vm:{vmid}")));
    entry.insert("type".into(), json!("vm"));
    entry.insert("digest".into(), json!(digest));
    Value::Object(entry)
}

fn typed(value: &str) -> Value {
    value.parse::<i64>().map_or_else(|_| json!(value), |n| json!(n))
}

fn resources(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let digest = state.ha.digest();
    let shown = state.ha.resources.iter().map(|(vmid, r)| show(*vmid, r, &digest));
    Ok(Value::Array(shown.collect()).into())
}

fn resource(call: &Call) -> Answer {
    let vmid = vmid_of(call)?;
    let state = call.job.dc.state();
    match state.ha.resources.get(&vmid) {
        Some(resource) => Ok(show(vmid, resource, &state.ha.digest()).into()),
        None => Err(Die::new(format!("no such resource 'vm:{vmid}'"))),
    }
}

fn settings(call: &Call, skip: &[&str]) -> BTreeMap<String, String> {
    let given = call.params.texts().filter(|(name, _)| !skip.contains(name));
    given
        .filter_map(|(name, value)| value.map(|v| (name.to_string(), v.to_string())))
        .collect()
}

fn add(call: &Call) -> Answer {
    call.job.dc.state().require_quorum(&call.contacted)?;
    let vmid = vmid_of(call)?;
    let mut state = call.job.dc.state();
    if call.params.has("group") {
        return Err(Die::new("invalid parameter 'group': ha groups have been migrated to rules"));
    }
    if !state.vms.contains_key(&vmid) {
        return Err(Die::new(format!("resource 'vm:{vmid}' does not exist in cluster")));
    }
    if state.ha.resources.contains_key(&vmid) {
        return Err(Die::new(format!(
            "create resource failed: resource ID 'vm:{vmid}' already defined"
        )));
    }
    state.ha.resources.insert(vmid, settings(call, &["sid", "type"]));
    Ok(Reply::default())
}

fn update(call: &Call) -> Answer {
    let vmid = vmid_of(call)?;
    if call.params.get("group").is_some_and(|group| !group.is_empty()) {
        return Err(Die::new("invalid parameter 'group': ha groups have been migrated to rules"));
    }
    change(call, vmid).map_err(|die| die.prefixed("update resources config failed: "))?;
    Ok(Reply::default())
}

fn change(call: &Call, vmid: u32) -> Result<(), Die> {
    let mut state = call.job.dc.state();
    let digest = call.params.get("digest").filter(|d| !d.is_empty());
    if digest.is_some_and(|given| given != state.ha.digest()) {
        return Err(Die::new(
            "detected modified configuration - file changed by other user? Try again.",
        ));
    }
    let Some(resource) = state.ha.resources.get_mut(&vmid) else {
        return Err(Die::new(format!("no such resource 'vm:{vmid}'")));
    };
    let mut changed = resource.clone();
    changed.extend(settings(call, &["sid", "digest", "delete", "type"]));
    for key in split_list(call.params.get("delete").unwrap_or_default()) {
        if !matches!(
            key,
            "state" | "group" | "comment" | "failback" | "max_restart" | "max_relocate"
        ) {
            return Err(Die::new(format!("no such option '{key}'")));
        }
        changed.remove(key);
    }
    *resource = changed;
    Ok(())
}

/// Rules keep a resource that goes only if they are asked to.
fn delete(call: &Call) -> Answer {
    let vmid = vmid_of(call)?;
    let mut state = call.job.dc.state();
    if state.ha.resources.remove(&vmid).is_some() {
        if call.params.get("purge") != Some("0") {
            state.ha.leave_rules(vmid);
        }
        return Ok(Reply::default());
    }
    Err(Die::new(format!("cannot delete service 'vm:{vmid}', not HA managed!")))
}

fn show_rule(name: &str, order: usize, rule: &BTreeMap<String, String>) -> Value {
    let mut entry: Map<String, Value> = rule.iter().map(|(k, v)| (k.clone(), typed(v))).collect();
    entry.insert("rule".into(), json!(name));
    entry.insert("order".into(), json!(order + 1));
    entry.insert(
        "digest".into(),
        json!(hex::encode(<sha1::Sha1 as sha1::Digest>::digest(format!("{rule:?}")))),
    );
    Value::Object(entry)
}

fn rules(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let (kind, resource) = (call.params.get("type"), call.params.get("resource"));
    let fits = |rule: &BTreeMap<String, String>| {
        kind.is_none_or(|kind| rule.get("type").is_some_and(|t| t == kind))
            && resource.is_none_or(|sid| rule.get("resources").is_some_and(|r| split_list(r).any(|s| s == sid)))
    };
    let list = state
        .ha
        .rules
        .iter()
        .enumerate()
        .filter(|(_, (_, rule))| fits(rule))
        .map(|(order, (name, rule))| show_rule(name, order, rule));
    Ok(Value::Array(list.collect()).into())
}

fn rule(call: &Call) -> Answer {
    let (state, name) = (call.job.dc.state(), call.params.text("rule"));
    match state.ha.rules.get_full(name) {
        Some((order, name, rule)) => Ok(show_rule(name, order, rule).into()),
        None => Err(Die::new(format!("no such ha rule '{name}'"))),
    }
}

/// Resources must be managed and hosts must exist.
fn check_members(call: &Call, state: &crate::state::State) -> Result<(), Die> {
    let members: Vec<&str> = split_list(call.params.get("resources").unwrap_or_default()).collect();
    let unmanaged: Vec<&str> = members
        .iter()
        .filter(|sid| {
            !state
                .ha
                .resources
                .contains_key(&sid.trim_start_matches("vm:").parse().unwrap_or_default())
        })
        .copied()
        .collect();
    if !unmanaged.is_empty() {
        return Err(Die::new(format!(
            "cannot use unmanaged resource(s) {}.",
            unmanaged.join(", ")
        )));
    }
    let nodes: Vec<&str> = split_list(call.params.get("nodes").unwrap_or_default())
        .map(|n| n.split(':').next().unwrap_or(n))
        .collect();
    let unknown: Vec<&str> = nodes.iter().filter(|n| !state.nodes.contains_key(**n)).copied().collect();
    if !unknown.is_empty() {
        return Err(Die::new(format!("cannot use non-existent node(s) {}.", unknown.join(", "))));
    }
    Ok(())
}

fn refuse_infeasible(state: &crate::state::State, name: &str, rule: &BTreeMap<String, String>) -> Result<(), Die> {
    let text = |key: &str| rule.get(key).map(String::as_str).unwrap_or_default();
    let members: Vec<&str> = split_list(text("resources")).collect();
    match infeasible(&state.ha, state.nodes.len(), &members) {
        Some(why) if text("affinity") == "negative" => Err(Die::new(format!("400 Rule '{name}' is invalid.\nresources: {why}"))),
        _ => Ok(()),
    }
}

fn update_rule(call: &Call) -> Answer {
    let failed = |die: Die| die.prefixed("update HA rules failed: ");
    let mut state = call.job.dc.state();
    let name = call.params.text("rule").to_string();
    let Some(present) = state.ha.rules.get(&name).cloned() else {
        return Err(failed(Die::new(format!("HA rule '{name}' does not exist"))));
    };
    check_members(call, &state).map_err(failed)?;
    let mut rule = present;
    for key in split_list(call.params.get("delete").unwrap_or_default()) {
        rule.remove(key);
    }
    rule.extend(settings(call, &["rule", "digest", "delete", "type"]));
    if rule.get("disable").is_some_and(|value| value == "0") {
        rule.remove("disable");
    }
    refuse_infeasible(&state, &name, &rule).map_err(failed)?;
    state.ha.rules.insert(name, rule);
    Ok(Reply::default())
}

fn add_rule(call: &Call) -> Answer {
    let failed = |die: Die| die.prefixed("create ha rule failed: ");
    let mut state = call.job.dc.state();
    let name = call.params.text("rule").to_string();
    check_members(call, &state).map_err(failed)?;
    if state.ha.rules.contains_key(&name) {
        return Err(failed(Die::new(format!("HA rule '{name}' already defined"))));
    }
    let rule = settings(call, &["rule", "digest"]);
    refuse_infeasible(&state, &name, &rule).map_err(failed)?;
    state.ha.rules.insert(name, rule);
    Ok(Reply::default())
}

/// What keeps resources from being kept apart.
fn infeasible(ha: &Ha, nodes: usize, members: &[&str]) -> Option<String> {
    let mut reasons = Vec::new();
    if members.len() >= nodes {
        reasons.push("rule defines more resources than available nodes");
    }
    let prioritised = ha.rules.values().any(|rule| {
        let shares = rule
            .get("resources")
            .is_some_and(|r| split_list(r).any(|sid| members.contains(&sid)));
        let priorities: Vec<&str> = rule
            .get("nodes")
            .map(|n| split_list(n).map(|n| n.split(':').nth(1).unwrap_or("0")).collect())
            .unwrap_or_default();
        shares && priorities.iter().any(|p| p != &priorities[0])
    });
    if prioritised {
        reasons.push("resources are in node affinity rules with multiple priorities");
    }
    (!reasons.is_empty()).then(|| reasons.join(", "))
}

fn status(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let quorate = state.quorate(&call.contacted);
    let mut list = vec![
        json!({ "id": "fencing", "status": "standby (CRM watchdog standby)", "node": call.contacted, "type": "fencing", "armed-state": "standby" }),
        json!({ "quorate": u8::from(quorate), "id": "quorum", "status": if quorate { "OK" } else { "No quorum on node!" }, "node": call.contacted, "type": "quorum" }),
    ];
    list.extend(state.ha.resources.iter().map(|(vmid, r)| {
        let node = state.vms.get(vmid).map(|vm| vm.node.clone());
        json!({ "id": format!("service:vm:{vmid}"), "sid": format!("vm:{vmid}"), "type": "service", "node": node, "state": r.get("state") })
    }));
    Ok(Value::Array(list).into())
}
