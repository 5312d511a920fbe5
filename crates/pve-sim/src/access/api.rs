//! `/access`: login, users, tokens, roles, ACLs, permissions.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::acl::{Entry, Principal};
use super::{Access, Group, Token, User, grants, login};
use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::locks::Held;
use crate::observe::Effect;
use crate::schema::split_list;

pub(crate) async fn handle(call: Call) -> Answer {
    let (verb, template) = call.what();
    let what = template.strip_prefix("/access").unwrap_or_default();
    let _held = match what {
        "/ticket" | "/password" => None,
        _ if verb == "GET" => None,
        // Built-in roles and wrong names are refused before the file is locked.
        "/roles" | "/roles/{roleid}" => {
            check_role_name(&call)?;
            Some(writable(&call, prefix_of(verb, what)).await?)
        }
        _ => Some(writable(&call, prefix_of(verb, what)).await?),
    };
    match (verb, what) {
        ("GET", "/ticket") => Ok(Reply::default()),
        ("POST", "/ticket") => login::login(&call),
        ("GET", "/domains") => Ok(domains()),
        ("GET", "/permissions") => login::permissions(&call),
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
        ("GET", "/acl") => Ok(grants::list(&call)),
        ("PUT", "/acl") => grants::update(&call),
        ("PUT", "/password") => login::password(&call),
        ("GET", "/users/{userid}/tfa") => login::second_factor(&call),
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
        ("DELETE", "/roles/{roleid}") => "delete role failed: ",
        ("POST", "/groups") => "create group failed: ",
        ("PUT", "/groups/{groupid}") => "update group failed: ",
        ("DELETE", "/groups/{groupid}") => "delete group failed: ",
        _ => "",
    }
}

/// user.cfg is written under a cluster lock, which needs quorum.
pub(super) async fn writable(call: &Call, prefix: &str) -> Result<Held, Die> {
    let locks = call.job.dc.locks();
    let taken = locks.take_cluster(&call.job, &call.contacted, "file-user_cfg").await;
    taken.map_err(|die| die.prefixed(prefix))
}

pub(super) fn changed(call: &Call, user: &str) {
    call.job.dc.tell(&call.job, &Effect::UserChanged { user: user.into() });
}

fn domains() -> Reply {
    json!([
        { "realm": "pam", "type": "pam", "comment": "Linux PAM standard authentication" },
        { "realm": "pve", "type": "pve", "comment": "Proxmox VE authentication server" },
    ])
    .into()
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

/// Written fields are shown; without an address it is empty if something is written behind it.
fn put_details(entry: &mut Map<String, Value>, user: &User) {
    let fields = [
        ("comment", &user.comment),
        ("email", &user.email),
        ("firstname", &user.firstname),
        ("lastname", &user.lastname),
        ("keys", &user.keys),
    ];
    for (key, value) in fields {
        if let Some(value) = value.as_ref().filter(|v| !v.is_empty()) {
            entry.insert(key.into(), json!(value));
        }
    }
    if (entry.contains_key("comment") || entry.contains_key("keys")) && !entry.contains_key("email") {
        entry.insert("email".into(), json!(""));
    }
}

fn describe_token(token: &Token) -> Map<String, Value> {
    let mut entry = Map::new();
    entry.insert("privsep".into(), json!(u8::from(token.privsep)));
    entry.insert("expire".into(), json!(token.expire));
    if let Some(comment) = token.comment.as_ref().filter(|c| !c.is_empty()) {
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
    let privileges = &["User.Modify", "Sys.Audit"];
    let all = access.may_any(&call.job.auth, "/access/groups", privileges);
    let visible = |name: &str| {
        let mut groups = groups_of(access, name).into_iter();
        groups.any(|g| access.may_any(&call.job.auth, &format!("/access/groups/{g}"), privileges))
    };
    let mut list = Vec::new();
    for (name, user) in &access.users {
        let own = call.job.auth.token.is_none() && call.job.auth.user == *name;
        let enabled = call.params.get("enabled").is_none_or(|e| (e == "1") == user.enable);
        if !enabled || !all && !own && !visible(name) {
            continue;
        }
        let mut entry = describe_user(name, user);
        if call.params.flag("full") {
            entry.insert("groups".into(), json!(groups_of(access, name).join(",")));
            let tokens = Some(list_tokens(user)).filter(|t| !t.is_empty());
            entry.insert("tokens".into(), json!(tokens));
        }
        list.push(Value::Object(entry));
    }
    Value::Array(list).into()
}

pub(super) fn no_such_user(name: &str) -> Die {
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
    let failed = |text: String| Err(Die::new(format!("create user failed: {text}")));
    if state.access.users.contains_key(&name) {
        return failed(format!("user '{name}' already exists"));
    }
    let (account, realm) = name.rsplit_once('@').unwrap_or((&name, ""));
    let password = call.params.get("password").map(str::to_string);
    if password.is_some() && realm == "pam" && account != "root" {
        return failed("change password failed: exit code 6".into());
    }
    if password.is_some() && !matches!(realm, "pam" | "pve") {
        return failed(format!("auth domain '{realm}' does not exist"));
    }
    check_groups(&state.access, call, "create user failed: ")?;
    let mut user = User {
        enable: true,
        password,
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
    if !state.access.users.contains_key(&name) {
        return Err(no_such_user(&name).prefixed("update user failed: "));
    }
    check_groups(&state.access, call, "update user failed: ")?;
    if let Some(user) = state.access.users.get_mut(&name) {
        apply_user(user, call);
    }
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

pub(super) fn no_such_token(id: &str, user: &str) -> Die {
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
    let comment = call.params.get("comment").filter(|c| !c.is_empty()).map(str::to_string);
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
    let mut options = split_list(call.params.get("delete").unwrap_or_default());
    if let Some(option) = options.find(|option| *option != "comment") {
        let die = Die::parameter("delete", format!("unknown option '{option}'"));
        return Err(die.prefixed("updating token info failed: "));
    }
    if let Some(privsep) = call.params.get("privsep") {
        token.privsep = privsep == "1";
    }
    if let Some(expire) = call.params.int("expire") {
        token.expire = expire;
    }
    if let Some(comment) = call.params.get("comment") {
        token.comment = Some(comment.to_string()).filter(|c| !c.is_empty());
    }
    if split_list(call.params.get("delete").unwrap_or_default()).count() > 0 {
        token.comment = None;
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
        let path = format!("/access/groups/{id}");
        state.access.may_any(&call.job.auth, &path, privileges)
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

pub(super) fn no_such_group(id: &str) -> Die {
    Die::new(format!("group '{id}' does not exist"))
}

fn create_group(call: &Call) -> Answer {
    let id = call.params.text("groupid").to_string();
    let mut state = call.job.dc.state();
    if state.access.groups.contains_key(&id) {
        return Err(Die::new(format!("create group failed: group '{id}' already exists")));
    }
    let group = Group {
        comment: call.params.get("comment").filter(|c| !c.is_empty()).map(Into::into),
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
        group.comment = Some(comment.to_string()).filter(|c| !c.is_empty());
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

/// What is refused about a role before the file is read.
fn check_role_name(call: &Call) -> Result<(), Die> {
    let (verb, _) = call.what();
    let name = call.params.text("roleid");
    given_privileges(call)?;
    if verb == "POST" && name.to_ascii_uppercase().starts_with("PVE") {
        let text = "cannot use role ID starting with the (case-insensitive) 'PVE' namespace";
        return Err(Die::parameter("roleid", text));
    }
    if verb == "POST" || !call.job.dc.state().access.is_builtin(name) {
        return Ok(());
    }
    let done = if verb == "PUT" { "modified" } else { "deleted" };
    Err(Die::new(format!("auto-generated role '{name}' cannot be {done}")))
}

fn create_role(call: &Call) -> Answer {
    let name = call.params.text("roleid").to_string();
    let privileges = given_privileges(call)?;
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
    if state.access.roles.remove(name).is_none() {
        return Err(Die::new(format!("delete role failed: role '{name}' does not exist")));
    }
    Ok(Reply::default())
}
