//! `/access`: login, users, tokens, roles, ACLs, permissions.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::acl::{Entry, Principal, normalize_path};
use super::{Access, Auth, Group, Token, User};
use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::locks::Held;
use crate::observe::Effect;
use crate::schema::split_list;
use crate::state::State;

pub(crate) async fn handle(call: Call) -> Answer {
    let (verb, template) = call.what();
    let what = template.strip_prefix("/access").unwrap_or_default();
    let _held = match what {
        "/ticket" => None,
        _ if verb == "GET" => None,
        _ => Some(writable(&call, prefix_of(verb, what)).await?),
    };
    match (verb, what) {
        ("GET", "/ticket") => Ok(Reply::default()),
        ("POST", "/ticket") => login(&call),
        ("GET", "/domains") => Ok(domains()),
        ("GET", "/permissions") => permissions(&call),
        ("GET", "/users") => Ok(users(&call)),
        ("POST", "/users") => create_user(&call),
        ("GET", "/users/{userid}") => user(&call),
        ("PUT", "/users/{userid}") => update_user(&call),
        ("DELETE", "/users/{userid}") => delete_user(&call),
        ("GET", "/users/{userid}/token") => tokens(&call),
        ("GET", "/users/{userid}/token/{tokenid}") => token(&call),
        ("POST", "/users/{userid}/token/{tokenid}") => create_token(&call),
        ("PUT", "/users/{userid}/token/{tokenid}") => update_token(&call),
        ("DELETE", "/users/{userid}/token/{tokenid}") => delete_token(&call),
        ("GET", "/groups") => Ok(groups(&call)),
        ("POST", "/groups") => create_group(&call),
        ("GET", "/groups/{groupid}") => group(&call),
        ("PUT", "/groups/{groupid}") => update_group(&call),
        ("DELETE", "/groups/{groupid}") => delete_group(&call),
        ("GET", "/roles") => Ok(roles(&call)),
        ("POST", "/roles") => create_role(&call),
        ("GET", "/roles/{roleid}") => role(&call),
        ("PUT", "/roles/{roleid}") => update_role(&call),
        ("DELETE", "/roles/{roleid}") => delete_role(&call),
        ("GET", "/acl") => Ok(acl(&call)),
        ("PUT", "/acl") => update_acl(&call),
        ("PUT", "/password") => password(&call),
        _ => call.not_simulated(),
    }
}

/// What PVE says it failed at, if user.cfg cannot be written.
fn prefix_of(verb: &str, what: &str) -> &'static str {
    match (verb, what) {
        ("POST", "/users") => "create user failed: ",
        ("PUT", "/users/{userid}") => "update user failed: ",
        ("DELETE", "/users/{userid}") => "delete user failed: ",
        ("POST", "/users/{userid}/token/{tokenid}") => "generating token failed: ",
        ("PUT", "/users/{userid}/token/{tokenid}") => "updating token info failed: ",
        ("DELETE", "/users/{userid}/token/{tokenid}") => "deleting token failed: ",
        ("PUT", "/acl") => "ACL update failed: ",
        ("POST", "/roles") => "create role failed: ",
        ("PUT", "/roles/{roleid}") => "update role failed: ",
        _ => "",
    }
}

/// user.cfg is written under a cluster lock, which needs quorum.
pub(super) async fn writable(call: &Call, prefix: &str) -> Result<Held, Die> {
    let locks = call.job.dc.locks();
    let taken = locks.take_cluster(&call.job, &call.contacted, "file-user_cfg").await;
    taken.map_err(|die| die.prefixed(prefix))
}

fn changed(call: &Call, user: &str) {
    call.job.dc.tell(&call.job, &Effect::UserChanged { user: user.into() });
}

fn domains() -> Reply {
    json!([
        { "realm": "pam", "type": "pam", "comment": "Linux PAM standard authentication" },
        { "realm": "pve", "type": "pve", "comment": "Proxmox VE authentication server" },
    ])
    .into()
}

/// A password, or a ticket in its place: anybody's own, or root's for everybody.
fn login(call: &Call) -> Answer {
    let failure = || Die::with_code(401, "authentication failure");
    let params = &call.params;
    let name = match params.get("realm") {
        Some(realm) if !params.text("username").contains('@') => format!("{}@{realm}", params.text("username")),
        _ => params.text("username").to_string(),
    };
    let (dc, now, given) = (&call.job.dc, call.job.dc.epoch(), params.text("password"));
    let state = dc.state();
    let user = state
        .access
        .users
        .get(&name)
        .filter(|_| state.access.is_active(&name, now))
        .ok_or_else(failure)?;
    let by_ticket = dc
        .signer()
        .verify_ticket(given, now)
        .is_some_and(|owner| owner == name || owner == super::ROOT);
    if !by_ticket && user.password.as_deref() != Some(given) {
        return Err(failure());
    }
    let auth = Auth::user(&name);
    let mut data = json!({ "username": name, "cap": capabilities(&state, &name) });
    if let (Some(cluster), true) = (&state.cluster, state.access.may(&auth, "/", &["Sys.Audit"])) {
        data["clustername"] = json!(cluster.name);
    }
    if let Some(path) = params.get("path") {
        let privileges: Vec<&str> = split_list(params.text("privs")).collect();
        if !state.access.may(&auth, path, &privileges) {
            return Err(failure());
        }
        return Ok(data.into());
    }
    data["ticket"] = json!(dc.signer().ticket(&name, now));
    data["CSRFPreventionToken"] = json!(dc.signer().csrf(&name, now));
    Ok(data.into())
}

/// What the browser shows and hides, by area.
fn capabilities(state: &State, user: &str) -> Value {
    let areas: &[(&str, &[&str])] = &[
        ("vms", &["VM.", "Permissions.Modify"]),
        ("access", &["User.", "Group.", "Permissions.Modify"]),
        ("storage", &["Datastore.", "Permissions.Modify"]),
        ("nodes", &["Sys.", "Permissions.Modify"]),
        ("sdn", &["SDN.", "Permissions.Modify"]),
        ("dc", &["Sys.Audit", "Sys.Modify", "SDN."]),
        ("mapping", &["Mapping.", "Permissions.Modify"]),
    ];
    let mut found: BTreeMap<&str, Map<String, Value>> = areas.iter().map(|(area, _)| (*area, Map::new())).collect();
    let top = ["/", "/nodes", "/access/groups", "/vms", "/storage", "/sdn", "/mapping"];
    let paths: BTreeSet<String> = top
        .iter()
        .map(|p| (*p).to_string())
        .chain(state.access.acl.keys().cloned())
        .collect();
    for path in paths {
        let area = path.split('/').nth(1).filter(|a| !a.is_empty()).unwrap_or("dc");
        for privilege in state.access.granted(user, &path).into_keys() {
            let areas_of: Vec<&str> = match area {
                "pool" if privilege.starts_with("VM.") => vec!["vms"],
                "pool" if privilege.starts_with("Datastore.") => vec!["storage"],
                "pool" if privilege == "Permissions.Modify" => vec!["vms", "storage"],
                "pool" => vec![],
                area => vec![area],
            };
            for name in areas_of {
                let fits = areas
                    .iter()
                    .any(|(a, prefixes)| *a == name && prefixes.iter().any(|p| privilege.starts_with(p)));
                if let Some(area) = found.get_mut(name).filter(|_| fits) {
                    area.insert(privilege.clone(), json!(1));
                }
            }
        }
    }
    json!(found)
}

fn permissions(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let own = call.job.auth.full();
    let principal = call.params.get("userid").unwrap_or(&own);
    if principal != own && principal.split('!').next() != Some(&own) {
        state.access.check(&call.job.auth, "/access", &["Sys.Audit"])?;
    }
    let paths = match call.params.get("path") {
        Some(path) => {
            let path = normalize_path(path).ok_or_else(|| Die::parameter("path", "invalid path"))?;
            [path].into()
        }
        None => state.access.known_paths(),
    };
    let mut shown = Map::new();
    for path in paths {
        let granted: Map<String, Value> = state
            .access
            .granted(principal, &path)
            .into_iter()
            .map(|(p, propagate)| (p, json!(u8::from(propagate))))
            .collect();
        if !granted.is_empty() || call.params.has("path") {
            shown.insert(path, Value::Object(granted));
        }
    }
    Ok(Value::Object(shown).into())
}

fn realm_type(user: &str) -> &str {
    user.rsplit('@').next().unwrap_or_default()
}

fn describe_user(name: &str, user: &User) -> Map<String, Value> {
    let mut entry = Map::new();
    entry.insert("userid".into(), json!(name));
    entry.insert("enable".into(), json!(u8::from(user.enable)));
    entry.insert("expire".into(), json!(user.expire));
    entry.insert("realm-type".into(), json!(realm_type(name)));
    put_details(&mut entry, user);
    entry
}

/// Written fields are shown; a comment without an address shows an empty one.
fn put_details(entry: &mut Map<String, Value>, user: &User) {
    let fields = [
        ("comment", &user.comment),
        ("email", &user.email),
        ("firstname", &user.firstname),
        ("lastname", &user.lastname),
    ];
    for (key, value) in fields {
        if let Some(value) = value.as_ref().filter(|v| !v.is_empty()) {
            entry.insert(key.into(), json!(value));
        }
    }
    if user.comment.as_ref().is_some_and(|c| !c.is_empty()) && !entry.contains_key("email") {
        entry.insert("email".into(), json!(""));
    }
}

fn describe_token(token: &Token) -> Map<String, Value> {
    let mut entry = Map::new();
    entry.insert("privsep".into(), json!(u8::from(token.privsep)));
    entry.insert("expire".into(), json!(token.expire));
    if let Some(comment) = &token.comment {
        entry.insert("comment".into(), json!(comment));
    }
    entry
}

fn list_tokens(user: &User) -> Vec<Value> {
    let entry = |(id, token): (&String, &Token)| {
        let mut entry = describe_token(token);
        entry.insert("tokenid".into(), json!(id));
        Value::Object(entry)
    };
    user.tokens.iter().map(entry).collect()
}

fn groups_of(access: &Access, user: &str) -> Vec<String> {
    access
        .groups
        .iter()
        .filter(|(_, g)| g.members.contains(user))
        .map(|(name, _)| name.clone())
        .collect()
}

fn users(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let access = &state.access;
    let all = access.may_any(&call.job.auth, "/access/groups", &["User.Modify", "Sys.Audit"]);
    let mut list = Vec::new();
    for (name, user) in &access.users {
        let own = call.job.auth.token.is_none() && call.job.auth.user == *name;
        let enabled = call.params.get("enabled").is_none_or(|e| (e == "1") == user.enable);
        if !enabled || !all && !own {
            continue;
        }
        let mut entry = describe_user(name, user);
        if call.params.flag("full") {
            entry.insert("groups".into(), json!(groups_of(access, name).join(",")));
            entry.insert("tokens".into(), json!(list_tokens(user)));
        }
        list.push(Value::Object(entry));
    }
    Value::Array(list).into()
}

fn no_such_user(name: &str) -> Die {
    Die::new(format!("no such user ('{name}')"))
}

fn user(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let name = call.params.text("userid");
    let user = state.access.users.get(name).ok_or_else(|| no_such_user(name))?;
    let mut entry = describe_user(name, user);
    entry.remove("userid");
    entry.remove("realm-type");
    entry.insert("groups".into(), json!(groups_of(&state.access, name)));
    let tokens: Map<String, Value> = user
        .tokens
        .iter()
        .map(|(id, t)| (id.clone(), Value::Object(describe_token(t))))
        .collect();
    entry.insert(
        "tokens".into(),
        if tokens.is_empty() {
            Value::Null
        } else {
            Value::Object(tokens)
        },
    );
    Ok(Value::Object(entry).into())
}

fn apply_user(user: &mut User, call: &Call) {
    let text = |name: &str| call.params.get(name).map(str::to_string);
    if let Some(enable) = call.params.get("enable") {
        user.enable = enable == "1";
    }
    if let Some(expire) = call.params.int("expire") {
        user.expire = expire;
    }
    for (name, field) in [
        ("comment", &mut user.comment),
        ("email", &mut user.email),
        ("firstname", &mut user.firstname),
        ("lastname", &mut user.lastname),
        ("keys", &mut user.keys),
    ] {
        if let Some(value) = text(name) {
            *field = Some(value);
        }
    }
}

fn set_groups(access: &mut Access, name: &str, call: &Call) {
    let Some(groups) = call.params.get("groups") else { return };
    let wanted: Vec<&str> = split_list(groups).collect();
    let append = call.params.flag("append");
    for (id, group) in &mut access.groups {
        if wanted.contains(&id.as_str()) {
            group.members.insert(name.into());
        } else if !append {
            group.members.remove(name);
        }
    }
}

fn create_user(call: &Call) -> Answer {
    let name = call.params.text("userid").to_string();
    let mut state = call.job.dc.state();
    if state.access.users.contains_key(&name) {
        return Err(Die::new(format!("create user failed: user '{name}' already exists")));
    }
    check_groups(&state.access, call, "create user failed: ")?;
    let mut user = User {
        enable: true,
        password: call.params.get("password").map(Into::into),
        ..User::default()
    };
    apply_user(&mut user, call);
    state.access.users.insert(name.clone(), user);
    set_groups(&mut state.access, &name, call);
    drop(state);
    changed(call, &name);
    Ok(Reply::default())
}

fn check_groups(access: &Access, call: &Call, prefix: &str) -> Result<(), Die> {
    match split_list(call.params.text("groups")).find(|group| !access.groups.contains_key(*group)) {
        Some(group) => Err(Die::new(format!("{prefix}no such group '{group}'"))),
        None => Ok(()),
    }
}

fn update_user(call: &Call) -> Answer {
    let name = call.params.text("userid").to_string();
    let mut state = call.job.dc.state();
    check_groups(&state.access, call, "update user failed: ")?;
    let user = state.access.users.get_mut(&name).ok_or_else(|| no_such_user(&name))?;
    apply_user(user, call);
    set_groups(&mut state.access, &name, call);
    drop(state);
    changed(call, &name);
    Ok(Reply::default())
}

fn delete_user(call: &Call) -> Answer {
    let name = call.params.text("userid").to_string();
    let mut state = call.job.dc.state();
    state.access.users.remove(&name);
    for group in state.access.groups.values_mut() {
        group.members.remove(&name);
    }
    forget(&mut state.access, |entry| {
        entry.id != name && !entry.id.starts_with(&format!("{name}!"))
    });
    drop(state);
    changed(call, &name);
    Ok(Reply::default())
}

fn forget(access: &mut Access, keep: impl Fn(&Entry) -> bool) {
    for entries in access.acl.values_mut() {
        entries.retain(&keep);
    }
    access.acl.retain(|_, entries| !entries.is_empty());
}

fn tokens(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let name = call.params.text("userid");
    let user = state.access.users.get(name).ok_or_else(|| no_such_user(name))?;
    Ok(Value::Array(list_tokens(user)).into())
}

fn no_such_token(id: &str, user: &str) -> Die {
    Die::new(format!("no such token '{id}' for user '{user}'"))
}

fn find_token<'a>(access: &'a mut Access, call: &Call) -> Result<&'a mut Token, Die> {
    let (name, id) = (call.params.text("userid"), call.params.text("tokenid"));
    let user = access.users.get_mut(name).ok_or_else(|| no_such_user(name))?;
    user.tokens.get_mut(id).ok_or_else(|| no_such_token(id, name))
}

fn token(call: &Call) -> Answer {
    let mut state = call.job.dc.state();
    Ok(Value::Object(describe_token(find_token(&mut state.access, call)?)).into())
}

fn full_id(call: &Call) -> String {
    format!("{}!{}", call.params.text("userid"), call.params.text("tokenid"))
}

fn create_token(call: &Call) -> Answer {
    let (name, id) = (
        call.params.text("userid").to_string(),
        call.params.text("tokenid").to_string(),
    );
    let mut state = call.job.dc.state();
    let secret = state.random_uuid();
    let user = state.access.users.get_mut(&name).ok_or_else(|| no_such_user(&name))?;
    if user.tokens.contains_key(&id) {
        return Err(Die::parameter("tokenid", "Token already exists."));
    }
    let comment = call.params.get("comment").map(str::to_string);
    let token = Token {
        privsep: call.params.get("privsep") != Some("0"),
        expire: call.params.int("expire").unwrap_or(0),
        comment: comment.clone(),
        secret: secret.clone(),
    };
    user.tokens.insert(id, token);
    drop(state);
    // What was given comes back as text, what was filled in as a number.
    let mut info = json!({ "privsep": call.params.get("privsep").map_or(json!(1), |p| json!(p)) });
    if let Some(comment) = comment {
        info["comment"] = json!(comment);
    }
    if let Some(expire) = call.params.get("expire") {
        info["expire"] = json!(expire);
    }
    changed(call, &name);
    Ok(json!({ "full-tokenid": full_id(call), "value": secret, "info": info }).into())
}

fn update_token(call: &Call) -> Answer {
    let mut state = call.job.dc.state();
    let secret = state.random_uuid();
    let token = find_token(&mut state.access, call)?;
    if let Some(privsep) = call.params.get("privsep") {
        token.privsep = privsep == "1";
    }
    if let Some(expire) = call.params.int("expire") {
        token.expire = expire;
    }
    if let Some(comment) = call.params.get("comment") {
        token.comment = Some(comment.into());
    }
    let mut entry = Value::Object(describe_token(token));
    for name in ["privsep", "expire"] {
        if let Some(given) = call.params.get(name) {
            entry[name] = json!(given);
        }
    }
    if call.params.flag("regenerate") {
        token.secret.clone_from(&secret);
        entry["value"] = json!(secret);
        entry["full-tokenid"] = json!(full_id(call));
    }
    drop(state);
    changed(call, call.params.text("userid"));
    Ok(entry.into())
}

fn delete_token(call: &Call) -> Answer {
    let (name, id, full) = (call.params.text("userid"), call.params.text("tokenid"), full_id(call));
    let mut state = call.job.dc.state();
    find_token(&mut state.access, call)?;
    if let Some(user) = state.access.users.get_mut(name) {
        user.tokens.remove(id);
    }
    forget(&mut state.access, |entry| entry.id != full);
    drop(state);
    changed(call, name);
    Ok(Reply::default())
}

fn groups(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let visible = |id: &str| {
        let privileges = &["User.Modify", "Sys.Audit", "Group.Allocate"];
        state.access.may_any(&call.job.auth, "/access/groups", privileges)
            || state
                .access
                .may_any(&call.job.auth, &format!("/access/groups/{id}"), privileges)
    };
    let entry = |(id, group): (&String, &Group)| {
        let members: Vec<&String> = group.members.iter().collect();
        let users = members.iter().map(|m| m.as_str()).collect::<Vec<_>>().join(",");
        let mut entry = json!({ "groupid": id, "users": users });
        if let Some(comment) = &group.comment {
            entry["comment"] = json!(comment);
        }
        entry
    };
    Value::Array(state.access.groups.iter().filter(|(id, _)| visible(id)).map(entry).collect()).into()
}

fn no_such_group(id: &str) -> Die {
    Die::new(format!("group '{id}' does not exist"))
}

fn create_group(call: &Call) -> Answer {
    let id = call.params.text("groupid").to_string();
    let mut state = call.job.dc.state();
    if state.access.groups.contains_key(&id) {
        return Err(Die::new(format!("create group failed: group '{id}' already exists")));
    }
    let group = Group {
        comment: call.params.get("comment").map(Into::into),
        ..Group::default()
    };
    state.access.groups.insert(id, group);
    Ok(Reply::default())
}

fn group(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let id = call.params.text("groupid");
    let group = state.access.groups.get(id).ok_or_else(|| no_such_group(id))?;
    let mut entry = json!({ "members": group.members });
    if let Some(comment) = &group.comment {
        entry["comment"] = json!(comment);
    }
    Ok(entry.into())
}

fn update_group(call: &Call) -> Answer {
    let mut state = call.job.dc.state();
    let id = call.params.text("groupid");
    let group = state
        .access
        .groups
        .get_mut(id)
        .ok_or_else(|| no_such_group(id).prefixed("update group failed: "))?;
    if let Some(comment) = call.params.get("comment") {
        group.comment = Some(comment.into());
    }
    Ok(Reply::default())
}

fn delete_group(call: &Call) -> Answer {
    let mut state = call.job.dc.state();
    let id = call.params.text("groupid");
    if state.access.groups.remove(id).is_none() {
        return Err(no_such_group(id).prefixed("delete group failed: "));
    }
    forget(&mut state.access, |entry| entry.kind != Principal::Group || entry.id != id);
    Ok(Reply::default())
}

fn roles(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let entry = |name: String| {
        let privileges: Vec<&str> = state.access.role(&name).into_iter().flatten().map(String::as_str).collect();
        json!({ "roleid": name, "privs": privileges.join(","), "special": u8::from(state.access.is_builtin(&name)) })
    };
    Value::Array(state.access.role_names().into_iter().map(entry).collect()).into()
}

fn role(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let name = call.params.text("roleid");
    let role = state
        .access
        .role(name)
        .ok_or_else(|| Die::new(format!("role '{name}' does not exist")))?;
    let privileges: Map<String, Value> = role.iter().map(|p| (p.clone(), json!(1))).collect();
    Ok(Value::Object(privileges).into())
}

/// Privileges that this release knows.
fn given_privileges(call: &Call) -> Result<BTreeSet<String>, Die> {
    let known = super::privileges(call.job.dc.release().number().0);
    let mut given = BTreeSet::new();
    for name in split_list(call.params.get("privs").unwrap_or_default()) {
        if !known.contains(name) {
            return Err(Die::parameter(
                "privs",
                format!("invalid format - invalid privilege '{name}'\n"),
            ));
        }
        given.insert(name.to_string());
    }
    Ok(given)
}

fn create_role(call: &Call) -> Answer {
    let name = call.params.text("roleid").to_string();
    let privileges = given_privileges(call)?;
    if name.to_ascii_uppercase().starts_with("PVE") {
        let text = "cannot use role ID starting with the (case-insensitive) 'PVE' namespace";
        return Err(Die::parameter("roleid", text));
    }
    let mut state = call.job.dc.state();
    if state.access.role(&name).is_some() {
        return Err(Die::new(format!("create role failed: role '{name}' already exists")));
    }
    state.access.roles.insert(name, privileges);
    Ok(Reply::default())
}

fn update_role(call: &Call) -> Answer {
    let name = call.params.text("roleid");
    let privileges = given_privileges(call)?;
    let mut state = call.job.dc.state();
    if state.access.is_builtin(name) {
        return Err(Die::new(format!(
            "update role failed: auto-generated role '{name}' cannot be modified"
        )));
    }
    let append = call.params.flag("append");
    let role = state
        .access
        .roles
        .get_mut(name)
        .ok_or_else(|| Die::new(format!("update role failed: role '{name}' does not exist")))?;
    if !append {
        role.clear();
    }
    role.extend(privileges);
    Ok(Reply::default())
}

fn delete_role(call: &Call) -> Answer {
    let name = call.params.text("roleid");
    let mut state = call.job.dc.state();
    if state.access.is_builtin(name) {
        return Err(Die::new(format!(
            "delete role failed: auto-generated role '{name}' cannot be deleted"
        )));
    }
    if state.access.roles.remove(name).is_none() {
        return Err(Die::new(format!("delete role failed: role '{name}' does not exist")));
    }
    Ok(Reply::default())
}

fn acl(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let mut list = Vec::new();
    let audit = state
        .access
        .may_any(&call.job.auth, "/access", &["Sys.Audit", "Permissions.Modify"]);
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
    match parts[..] {
        [] | ["access" | "nodes" | "pool" | "sdn" | "storage" | "vms" | "mapping"] => true,
        ["access", "groups" | "realm"] | ["access", "groups" | "realm", _] => true,
        ["nodes" | "storage", _] => true,
        ["pool", ..] => parts.len() <= 4,
        ["vms", id] => id.bytes().all(|b| b.is_ascii_digit()) && id.len() >= 3,
        [
            "sdn",
            "zones" | "controllers" | "dns" | "ipams" | "fabrics" | "prefix-lists" | "route-maps",
        ] => true,
        ["sdn", "zones", ..] => parts.len() <= 5,
        ["sdn", "controllers" | "dns" | "ipams" | "fabrics", _] => true,
        ["mapping", "pci" | "usb" | "dir" | "notifications" | "cpu" | "hwrng"]
        | ["mapping", "pci" | "usb" | "dir" | "notifications" | "cpu", _] => true,
        _ => false,
    }
}

fn update_acl(call: &Call) -> Answer {
    let params = &call.params;
    let given = params.text("path");
    let path = normalize_path(given).filter(|p| is_acl_path(p));
    let kinds = [
        ("users", Principal::User),
        ("groups", Principal::Group),
        ("tokens", Principal::Token),
    ];
    if kinds.iter().all(|(name, _)| !params.has(name)) {
        let text = "either 'users', 'groups' or 'tokens' is required.";
        return Err(Die::parameters(
            kinds
                .iter()
                .map(|(name, _)| ((*name).to_string(), text.to_string()))
                .collect(),
        ));
    }
    let Some(path) = path else {
        return Err(Die::parameter("path", format!("invalid ACL path '{given}'")));
    };
    let mut state = call.job.dc.state();
    let failed = |die: Die| die.prefixed("ACL update failed: ");
    let propagate = params.get("propagate") != Some("0");
    for role in split_list(params.text("roles")) {
        check_role(&state.access, call, &path, role).map_err(failed)?;
        for (name, kind) in kinds {
            for id in split_list(params.get(name).unwrap_or_default()) {
                check_principal(&state.access, kind, id).map_err(failed)?;
                let entries = state.access.acl.entry(path.clone()).or_default();
                entries.retain(|e| !(e.kind == kind && e.id == id && e.role == role));
                if !params.flag("delete") {
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
    state.access.acl.retain(|_, entries| !entries.is_empty());
    drop(state);
    call.job.dc.tell(&call.job, &Effect::AclChanged { path });
    Ok(Reply::default())
}

/// Without Permissions.Modify only roles below one's own can be given.
fn check_role(access: &Access, call: &Call, path: &str, role: &str) -> Result<(), Die> {
    let Some(privileges) = access.role(role) else {
        return Err(Die::new(format!("role '{role}' does not exist")));
    };
    let auth = &call.job.auth;
    if access.may(auth, path, &["Permissions.Modify"]) || access.may(auth, "/access", &["Permissions.Modify"]) {
        return Ok(());
    }
    let own = access.granted(&auth.full(), path);
    if privileges.iter().all(|p| own.get(p).copied().unwrap_or(false)) {
        return Ok(());
    }
    Err(Die::parameter(
        "role",
        format!("Cannot add role '{role}' - requires 'Permissions.Modify' or superset of privileges."),
    ))
}

fn check_principal(access: &Access, kind: Principal, id: &str) -> Result<(), Die> {
    match kind {
        Principal::User if !access.users.contains_key(id) => Err(Die::new(format!("user '{id}' does not exist"))),
        Principal::Group if !access.groups.contains_key(id) => Err(no_such_group(id)),
        Principal::Token => {
            let (user, token) = id.split_once('!').unwrap_or((id, ""));
            let known = access.users.get(user).is_some_and(|u| u.tokens.contains_key(token));
            if known { Ok(()) } else { Err(no_such_token(token, user)) }
        }
        _ => Ok(()),
    }
}

fn password(call: &Call) -> Answer {
    let name = call.params.text("userid").to_string();
    let mut state = call.job.dc.state();
    let user = state.access.users.get_mut(&name).ok_or_else(|| no_such_user(&name))?;
    user.password = Some(call.params.text("password").into());
    Ok(Reply::default())
}
