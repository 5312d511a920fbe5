//! Who may do what.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_net::Secret;
use serde::Deserialize;

use crate::request::{Call, Done, Request};
use crate::value::loose;

/// The caller's own privileges, by path. A caller without any gets an empty map, which is the proof of having none.
pub fn permissions() -> Call<Permissions> {
    Call::new(Request::get("/access/permissions", &[]))
}

/// The caller's own privileges on one path, pools and inheritance taken into account.
pub fn permissions_on(path: &str) -> Call<Permissions> {
    Call::new(Request::get("/access/permissions", &[]).with("path", path))
}

/// Privileges by path; the value tells whether they reach below.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permissions(BTreeMap<String, BTreeMap<String, bool>>);

impl<'de> Deserialize<'de> for Permissions {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let paths = BTreeMap::<String, BTreeMap<String, loose::Scalar>>::deserialize(deserializer)?;
        let propagates = |scalar: loose::Scalar| scalar.text().is_some_and(|text| text == "1");
        let privileges = |map: BTreeMap<String, loose::Scalar>| map.into_iter().map(|(name, s)| (name, propagates(s))).collect();
        Ok(Self(paths.into_iter().map(|(path, map)| (path, privileges(map))).collect()))
    }
}

impl Permissions {
    pub fn is_empty(&self) -> bool {
        self.0.values().all(BTreeMap::is_empty)
    }

    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Whether `privilege` is held on `path`: by the entry of the path itself, else by the closest one above whose rights reach down.
    ///
    /// What pool membership adds to a guest shows only in [`permissions_on`] that guest's path.
    pub fn allows(&self, path: &str, privilege: &str) -> bool {
        if let Some(own) = self.0.get(path) {
            return own.contains_key(privilege);
        }
        let above = ancestors(path).find_map(|ancestor| self.0.get(ancestor));
        above.is_some_and(|privileges| privileges.get(privilege) == Some(&true))
    }

    /// What another answer says about its paths replaces what was known.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

impl<P: Into<String>, N: Into<String>, I: IntoIterator<Item = (N, bool)>> FromIterator<(P, I)> for Permissions {
    fn from_iter<T: IntoIterator<Item = (P, I)>>(paths: T) -> Self {
        let privileges = |list: I| list.into_iter().map(|(name, propagate)| (name.into(), propagate)).collect();
        Self(
            paths
                .into_iter()
                .map(|(path, list)| (path.into(), privileges(list)))
                .collect(),
        )
    }
}

/// `/a/b` has the ancestors `/a` and `/`.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = path;
    std::iter::from_fn(move || {
        let cut = rest.rfind('/')?;
        let parent = if cut == 0 { "/" } else { &rest[..cut] };
        if rest == "/" {
            return None;
        }
        rest = parent;
        Some(parent)
    })
}

/// Logs in. The password may also be a ticket that is still valid.
pub(crate) fn ticket(user: &str, password: &str) -> Call<Ticket> {
    Call::new(
        Request::post("/access/ticket", &[])
            .with("username", user)
            .with("password", password),
    )
}

/// The second step of a login that asks for a second factor.
pub(crate) fn ticket_with_code(user: &str, challenge: &Secret<String>, code: &Secret<String>) -> Call<Ticket> {
    let request = Request::post("/access/ticket", &[])
        .with("username", user)
        .with("password", format!("totp:{}", code.expose()))
        .with("tfa-challenge", challenge.expose());
    Call::new(request)
}

/// A login: valid for two hours.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Ticket {
    pub(crate) ticket: Secret<String>,
    #[serde(default, rename = "CSRFPreventionToken")]
    pub(crate) csrf: Option<Secret<String>>,
    #[serde(default, rename = "NeedTFA", deserialize_with = "loose::flag")]
    pub(crate) need_tfa: bool,
}

pub fn users() -> Call<Vec<User>> {
    Call::new(Request::get("/access/users", &[]))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct User {
    pub userid: String,
    #[serde(default, deserialize_with = "loose::flag")]
    pub enable: bool,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub comment: Option<String>,
}

/// A user without a password: it can only have tokens.
pub fn create_user(userid: &str, comment: &str) -> Call<Done> {
    Call::new(
        Request::post("/access/users", &[])
            .with("userid", userid)
            .with("comment", comment),
    )
}

/// Also when there is none.
pub fn delete_user(userid: &str) -> Call<Done> {
    Call::new(Request::delete("/access/users/{userid}", &[&userid]))
}

/// Tokens of a user. A token cannot list its own user's.
pub fn tokens(userid: &str) -> Call<Vec<Token>> {
    Call::new(Request::get("/access/users/{userid}/token", &[&userid]))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Token {
    pub tokenid: String,
    #[serde(default, deserialize_with = "loose::flag")]
    pub privsep: bool,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub expire: u64,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub comment: Option<String>,
}

/// The secret is told once. With `privsep` the token has only rights given to it that its user has too.
pub fn create_token(userid: &str, tokenid: &str, privsep: bool, comment: &str) -> Call<NewToken> {
    let request = Request::post("/access/users/{userid}/token/{tokenid}", &[&userid, &tokenid]);
    Call::new(request.with("privsep", u8::from(privsep)).with("comment", comment))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NewToken {
    /// `user@realm!token`.
    #[serde(rename = "full-tokenid")]
    pub full_tokenid: String,
    pub value: Secret<String>,
}

/// Changes whether a token has rights of its own. Its secret stays.
pub fn set_token(userid: &str, tokenid: &str, privsep: bool) -> Call<Done> {
    let request = Request::put("/access/users/{userid}/token/{tokenid}", &[&userid, &tokenid]);
    Call::new(request.with("privsep", u8::from(privsep)))
}

pub fn delete_token(userid: &str, tokenid: &str) -> Call<Done> {
    Call::new(Request::delete(
        "/access/users/{userid}/token/{tokenid}",
        &[&userid, &tokenid],
    ))
}

pub fn roles() -> Call<Vec<Role>> {
    Call::new(Request::get("/access/roles", &[]))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Role {
    pub roleid: String,
    #[serde(default, deserialize_with = "names")]
    pub privs: BTreeSet<String>,
    /// Built in.
    #[serde(default, deserialize_with = "loose::flag")]
    pub special: bool,
}

fn names<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<String>, D::Error> {
    let text = loose::text(deserializer)?;
    Ok(text
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect())
}

pub fn create_role<P: ToString>(roleid: &str, privs: impl IntoIterator<Item = P>) -> Call<Done> {
    Call::new(
        Request::post("/access/roles", &[])
            .with("roleid", roleid)
            .with_list("privs", privs),
    )
}

/// Replaces what the role holds.
pub fn set_role<P: ToString>(roleid: &str, privs: impl IntoIterator<Item = P>) -> Call<Done> {
    Call::new(Request::put("/access/roles/{roleid}", &[&roleid]).with_list("privs", privs))
}

/// Adds to what the role holds.
pub fn extend_role<P: ToString>(roleid: &str, privs: impl IntoIterator<Item = P>) -> Call<Done> {
    let request = Request::put("/access/roles/{roleid}", &[&roleid]);
    Call::new(request.with_list("privs", privs).with("append", 1))
}

pub fn delete_role(roleid: &str) -> Call<Done> {
    Call::new(Request::delete("/access/roles/{roleid}", &[&roleid]))
}

/// The whole access list, as far as the caller may see it.
pub fn acl() -> Call<Vec<AclEntry>> {
    Call::new(Request::get("/access/acl", &[]))
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct AclEntry {
    pub path: String,
    pub roleid: String,
    /// Whom it is for: `user@realm`, `user@realm!token` or a group.
    pub ugid: String,
    #[serde(rename = "type")]
    pub kind: Principal,
    #[serde(default, deserialize_with = "loose::flag")]
    pub propagate: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Principal {
    User,
    Group,
    Token,
}

impl AclEntry {
    fn onto(&self, request: Request) -> Request {
        let whom = match self.kind {
            Principal::User => "users",
            Principal::Group => "groups",
            Principal::Token => "tokens",
        };
        request
            .with("path", &self.path)
            .with("roles", &self.roleid)
            .with(whom, &self.ugid)
    }
}

pub fn grant(entry: &AclEntry) -> Call<Done> {
    Call::new(
        entry
            .onto(Request::put("/access/acl", &[]))
            .with("propagate", u8::from(entry.propagate)),
    )
}

pub fn revoke(entry: &AclEntry) -> Call<Done> {
    Call::new(entry.onto(Request::put("/access/acl", &[])).with("delete", 1))
}

#[cfg(test)]
mod tests {
    use super::{Permissions, ancestors};

    fn permissions(json: &str) -> Permissions {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn rights_reach_down_only_when_they_propagate() {
        let held = permissions(r#"{"/":{"Sys.Audit":0,"VM.Audit":1},"/vms":{"VM.Clone":1}}"#);
        assert!(held.allows("/", "Sys.Audit") && !held.allows("/nodes/pve1", "Sys.Audit"));
        assert!(held.allows("/nodes/pve1", "VM.Audit"));
        assert!(held.allows("/vms/100", "VM.Clone"));
    }

    #[test]
    fn the_deepest_entry_replaces_those_above() {
        let held = permissions(r#"{"/":{"VM.Audit":1},"/vms/100":{"VM.Clone":1}}"#);
        assert!(!held.allows("/vms/100", "VM.Audit"));
        assert!(held.allows("/vms/101", "VM.Audit"));
    }

    #[test]
    fn no_entry_at_all_is_no_right() {
        assert!(permissions("{}").is_empty());
        assert!(!permissions("{}").allows("/", "Sys.Audit"));
    }

    #[test]
    fn ancestors_end_at_the_root() {
        assert_eq!(ancestors("/a/b/c").collect::<Vec<_>>(), ["/a/b", "/a", "/"]);
        assert_eq!(ancestors("/").count(), 0);
    }
}
