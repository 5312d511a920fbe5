//! `/access/acl`: who holds which role on which path.

use serde_json::{Value, json};

use super::acl::{Entry, Granted, Principal, normalize_path};
use super::api::{no_such_group, no_such_token};
use super::{Access, ROOT};
use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::observe::Effect;
use crate::schema::split_list;

const KINDS: [(&str, Principal); 3] = [
    ("groups", Principal::Group),
    ("users", Principal::User),
    ("tokens", Principal::Token),
];

/// All entries for an auditor, for others those on paths that they may change.
pub(super) fn list(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let mut list = Vec::new();
    let audit = state.access.may(&call.job.auth, "/access", &["Sys.Audit"]);
    for (path, entries) in &state.access.acl {
        if !audit && state.access.check_modify(&call.job.auth, path).is_err() {
            continue;
        }
        for entry in entries {
            list.push(json!({
                "path": path, "type": entry.kind.name(), "ugid": entry.id, "roleid": entry.role, "propagate": u8::from(entry.propagate),
            }));
        }
    }
    Value::Array(list).into()
}

/// Paths that ACLs may stand on.
fn is_acl_path(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    let plain = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric());
    let dashed = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    match parts[..] {
        [] | ["access" | "nodes" | "pool" | "sdn" | "storage" | "vms" | "mapping"] => true,
        ["access", "groups" | "realm"] | ["access", "groups" | "realm", _] => true,
        ["nodes" | "storage", _] => true,
        ["pool", ..] => parts.len() <= 4,
        ["vms", id] => number(id) && id.len() >= 3,
        [
            "sdn",
            "zones" | "controllers" | "dns" | "ipams" | "fabrics" | "prefix-lists" | "route-maps",
        ] => true,
        ["sdn", "zones", _] | ["sdn", "zones", _, _] => true,
        ["sdn", "zones", _, _, vlan] => number(vlan) && vlan.len() <= 4,
        ["sdn", "controllers", name] => dashed(name),
        ["sdn", "dns" | "ipams" | "fabrics" | "prefix-lists" | "route-maps", name] => plain(name),
        ["mapping", _] | ["mapping", _, _] => true,
        _ => false,
    }
}

pub(super) fn update(call: &Call) -> Answer {
    let params = &call.params;
    if KINDS
        .iter()
        .all(|(name, _)| params.get(name).is_none_or(|list| matches!(list, "" | "0")))
    {
        let text = "either 'users', 'groups' or 'tokens' is required.";
        let errors = KINDS.iter().map(|(name, _)| ((*name).to_string(), text.to_string()));
        return Err(Die::parameters(errors.collect()));
    }
    let given = params.text("path");
    // What is to be removed may stand on a path that is not taken any more.
    let path = normalize_path(given).filter(|p| !given.is_empty() && (params.flag("delete") || is_acl_path(p)));
    let Some(path) = path else {
        return Err(Die::parameter("path", format!("invalid ACL path '{given}'")));
    };
    let mut state = call.job.dc.state();
    // The file is written once, at the end: what fails on the way changes nothing.
    let mut access = state.access.clone();
    edit(&mut access, call, &path).map_err(|die| die.prefixed("ACL update failed: "))?;
    state.access = access;
    drop(state);
    call.job.dc.tell(&call.job, &Effect::AclChanged { path });
    Ok(Reply::default())
}

fn edit(access: &mut Access, call: &Call, path: &str) -> Result<(), Die> {
    let params = &call.params;
    let own = access.granted(&call.job.auth.full(), path);
    let (propagate, delete) = (params.get("propagate") != Some("0"), params.flag("delete"));
    for role in split_list(params.text("roles")) {
        check_role(access, &own, role, propagate, delete)?;
        for (name, kind) in KINDS {
            for id in split_list(params.get(name).unwrap_or_default()) {
                check_principal(access, kind, id)?;
                let entries = access.acl.entry(path.into()).or_default();
                entries.retain(|e| !(e.kind == kind && e.id == id && e.role == role));
                // root has every right anyway and is never written down.
                let written = kind != Principal::User || id != ROOT;
                if written && !delete {
                    entries.push(Entry {
                        kind,
                        id: id.into(),
                        role: role.into(),
                        propagate,
                    });
                }
            }
        }
    }
    access.acl.retain(|_, entries| !entries.is_empty());
    Ok(())
}

/// Without Permissions.Modify only roles within one's own rights can be given or taken.
fn check_role(access: &Access, own: &Granted, role: &str, propagate: bool, delete: bool) -> Result<(), Die> {
    let Some(privileges) = access.role(role) else {
        return Err(Die::new(format!("role '{role}' does not exist")));
    };
    if own.contains_key("Permissions.Modify") {
        return Ok(());
    }
    let verb = if delete { "remove" } else { "add" };
    let refuse = |rest: &str| Err(Die::parameter("role", format!("Cannot {verb} role '{role}'{rest}")));
    if privileges.iter().any(|p| !own.contains_key(p)) {
        return refuse(" - requires 'Permissions.Modify' or superset of privileges.");
    }
    if propagate && !delete && privileges.iter().any(|p| own.get(p) != Some(&true)) {
        return refuse(" with propagation - requires 'Permissions.Modify' or propagated superset of privileges.");
    }
    if role == "NoAccess" {
        return refuse(" - requires 'Permissions.Modify'");
    }
    Ok(())
}

fn check_principal(access: &Access, kind: Principal, id: &str) -> Result<(), Die> {
    match kind {
        Principal::User if !access.users.contains_key(id) => Err(Die::new(format!("user '{id}' does not exist"))),
        Principal::Group if !access.groups.contains_key(id) => Err(no_such_group(id)),
        Principal::Token => {
            let (user, token) = id.split_once('!').unwrap_or((id, ""));
            let Some(owner) = access.users.get(user) else {
                return Err(super::api::no_such_user(user));
            };
            let known = owner.tokens.contains_key(token);
            if known { Ok(()) } else { Err(no_such_token(token, user)) }
        }
        _ => Ok(()),
    }
}
