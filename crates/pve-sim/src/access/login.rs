//! Logging in: passwords, tickets in their place, second factors; and what a caller may then do.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::acl::normalize_path;
use super::api::no_such_user;
use super::{Auth, ROOT};
use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::schema::split_list;
use crate::state::State;

/// Every failure looks the same, so that no one learns which users exist.
fn failure() -> Die {
    Die::with_code(401, "authentication failure")
}

/// The first factor went well; the second is still wanted.
enum Step {
    In,
    Challenge(String),
}

pub(super) fn login(call: &Call) -> Answer {
    let params = &call.params;
    let name = match params.get("realm").filter(|r| !r.is_empty()) {
        Some(realm) => format!("{}@{realm}", params.text("username")),
        None => params.text("username").to_string(),
    };
    let (dc, now) = (&call.job.dc, call.job.dc.epoch());
    let mut state = dc.state();
    if !state.access.is_active(&name, now) {
        return Err(failure());
    }
    let named = |text: &str| params.get(text).is_some_and(|p| !p.is_empty());
    if named("path") && named("privs") {
        verify(call, &mut state, &name)?;
        let data = json!({ "username": name, "cap": capabilities(&state, &name) });
        return Ok(with_cluster(&state, &name, data));
    }
    match authenticate(call, &mut state, &name)? {
        Step::In => {
            let data = json!({
                "username": name, "cap": capabilities(&state, &name),
                "ticket": dc.signer().ticket(&name, now), "CSRFPreventionToken": dc.signer().csrf(&name, now),
            });
            Ok(with_cluster(&state, &name, data))
        }
        Step::Challenge(challenge) => {
            let data = json!({
                "username": name, "NeedTFA": 1,
                "ticket": dc.signer().challenge(&name, &challenge, now), "CSRFPreventionToken": dc.signer().csrf(&name, now),
            });
            Ok(with_cluster(&state, &name, data))
        }
    }
}

fn with_cluster(state: &State, name: &str, mut data: Value) -> Reply {
    if let (Some(cluster), true) = (&state.cluster, state.access.may(&Auth::user(name), "/", &["Sys.Audit"])) {
        data["clustername"] = json!(cluster.name);
    }
    data.into()
}

/// A password, or a ticket in its place: the user's own, or root's for everyone. Then the second factor.
fn authenticate(call: &Call, state: &mut State, name: &str) -> Result<Step, Die> {
    let params = &call.params;
    let (signer, now, given) = (call.job.dc.signer(), call.job.dc.epoch(), params.text("password"));
    let (otp, challenge) = (params.get("otp"), params.get("tfa-challenge"));
    if let Some(challenge) = challenge {
        // The answer to a challenge stands where the password stood.
        if otp.is_some() || signer.verify_challenge(name, challenge, now).is_none() {
            return Err(failure());
        }
        let tfa = state.access.tfa.get_mut(name).ok_or_else(failure)?;
        return tfa.verify(given, now).then_some(Step::In).ok_or_else(failure);
    }
    if signer
        .verify_ticket(given, now)
        .is_some_and(|owner| owner == name || owner == ROOT)
    {
        return Ok(Step::In);
    }
    check_password(state, name, given)?;
    match (state.access.tfa.get_mut(name).filter(|tfa| tfa.is_set()), otp) {
        (None, None) => Ok(Step::In),
        (None, Some(_)) => Err(failure()),
        (Some(tfa), None) => Ok(Step::Challenge(tfa.challenge())),
        (Some(tfa), Some(otp)) => tfa.verify(otp, now).then_some(Step::In).ok_or_else(failure),
    }
}

fn check_password(state: &State, name: &str, given: &str) -> Result<(), Die> {
    let user = state.access.users.get(name).ok_or_else(failure)?;
    match user.password.as_deref() {
        Some(password) if !given.is_empty() && password == given => Ok(()),
        _ => Err(failure()),
    }
}

/// A look whether a user has privileges on a path; it makes no ticket.
fn verify(call: &Call, state: &mut State, name: &str) -> Result<(), Die> {
    let (signer, now, given) = (call.job.dc.signer(), call.job.dc.epoch(), call.params.text("password"));
    let path = normalize_path(call.params.text("path")).ok_or_else(failure)?;
    if signer.verify_ticket(given, now).as_deref() != Some(name) {
        check_password(state, name, given)?;
    }
    let privileges: Vec<&str> = split_list(call.params.text("privs")).collect();
    if privileges.is_empty() || !state.access.may(&Auth::user(name), &path, &privileges) {
        return Err(failure());
    }
    Ok(())
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

/// What a user or token may do, path by path. A path is taken as it is given.
pub(super) fn permissions(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let own = call.job.auth.full();
    let principal = call.params.get("userid").unwrap_or(&own);
    let owner = principal.split_once('!').map(|(user, _)| user);
    if principal != own && owner != Some(own.as_str()) {
        state.access.check(&call.job.auth, "/access", &["Sys.Audit"])?;
    }
    let wanted = call.params.get("path").filter(|p| !p.is_empty());
    let paths = match wanted {
        Some(path) => [path.to_string()].into(),
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
        if !granted.is_empty() || wanted.is_some() {
            shown.insert(path, Value::Object(granted));
        }
    }
    Ok(Value::Object(shown).into())
}

/// A user confirms a new password with the present one; root need not.
pub(super) fn password(call: &Call) -> Answer {
    let name = call.params.text("userid").to_string();
    let auth = &call.job.auth;
    let mut state = call.job.dc.state();
    if !state.access.users.contains_key(&name) {
        return Err(no_such_user(&name));
    }
    if !auth.is_root() {
        if name == ROOT {
            return Err(Die::permission(""));
        }
        let Some(present) = call.params.get("confirmation-password") else {
            return Err(Die::parameter("confirmation-password", "password is required to modify user"));
        };
        let known = state.access.users.get(&auth.user).and_then(|u| u.password.as_deref());
        match known {
            None => return Err(Die::new("no password set")),
            Some(known) if known != present => return Err(Die::new("invalid credentials")),
            Some(_) => {}
        }
        if auth.user != name && name.ends_with("@pam") {
            return Err(Die::permission(""));
        }
    }
    if let Some(user) = state.access.users.get_mut(&name) {
        user.password = Some(call.params.text("password").into());
    }
    Ok(Reply::default())
}

/// Which second factors a user has.
pub(super) fn second_factor(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let name = call.params.text("userid");
    let realm = name.rsplit('@').next().unwrap_or_default();
    if !matches!(realm, "pam" | "pve") {
        return Err(Die::new(format!("auth domain '{realm}' does not exist")));
    }
    let set = state.access.tfa.get(name).is_some_and(super::Tfa::is_set);
    if call.params.flag("multiple") {
        let kinds: &[&str] = if set { &["totp"] } else { &[] };
        return Ok(json!({ "user": kinds }).into());
    }
    Ok(json!({}).into())
}
