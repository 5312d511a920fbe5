//! The permission rule of a call, evaluated for a caller.

use super::acl::normalize_path;
use super::{Access, Auth};
use crate::die::Die;
use crate::schema::{Check, Method, Params, Permission, split_list};

impl Access {
    /// Root's password session, and tokens that have all of root's rights.
    fn has_all(&self, auth: &Auth) -> bool {
        let token = |id: &String| {
            self.users
                .get(super::ROOT)
                .and_then(|u| u.tokens.get(id))
                .is_some_and(|t| !t.privsep)
        };
        auth.user == super::ROOT && auth.token.as_ref().is_none_or(token)
    }

    /// All of the privileges on a path, else the refusal names the first that is missing.
    pub fn check(&self, auth: &Auth, path: &str, privileges: &[&str]) -> Result<(), Die> {
        if self.has_all(auth) {
            return Ok(());
        }
        let granted = self.granted(&auth.full(), path);
        match privileges.iter().find(|p| !granted.contains_key(**p)) {
            Some(missing) => Err(Die::permission(&format!("{path}, {missing}"))),
            None => Ok(()),
        }
    }

    /// One of the privileges on a path.
    pub fn check_any(&self, auth: &Auth, path: &str, privileges: &[&str]) -> Result<(), Die> {
        if self.has_all(auth) {
            return Ok(());
        }
        let granted = self.granted(&auth.full(), path);
        if privileges.iter().any(|p| granted.contains_key(*p)) {
            return Ok(());
        }
        Err(Die::permission(&format!("{path}, {}", privileges.join("|"))))
    }

    pub fn may(&self, auth: &Auth, path: &str, privileges: &[&str]) -> bool {
        self.check(auth, path, privileges).is_ok()
    }

    pub fn may_any(&self, auth: &Auth, path: &str, privileges: &[&str]) -> bool {
        self.check_any(auth, path, privileges).is_ok()
    }

    /// Rights on the pool a VM is to join, or else on the VM itself, which a refusal names.
    pub fn check_vm(&self, auth: &Auth, vmid: u32, pool: Option<&str>, privileges: &[&str]) -> Result<(), Die> {
        match pool {
            Some(pool) if self.may(auth, &format!("/pool/{pool}"), privileges) => Ok(()),
            _ => self.check(auth, &format!("/vms/{vmid}"), privileges),
        }
    }

    pub fn check_vm_any(&self, auth: &Auth, vmid: u32, pool: Option<&str>, privileges: &[&str]) -> Result<(), Die> {
        match pool {
            Some(pool) if self.may_any(auth, &format!("/pool/{pool}"), privileges) => Ok(()),
            _ => self.check_any(auth, &format!("/vms/{vmid}"), privileges),
        }
    }

    /// Who may change ACLs on a path.
    pub fn check_modify(&self, auth: &Auth, path: &str) -> Result<(), Die> {
        let mut enough = vec!["Permissions.Modify"];
        let object = |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty());
        if object("/storage/") {
            enough.push("Datastore.Allocate");
        } else if object("/vms/") {
            enough.push("VM.Allocate");
        } else if object("/pool/") {
            enough.push("Pool.Allocate");
        }
        self.check_any(auth, path, &enough)
    }
}

/// Evaluates the rule that the schema gives for a call. Nothing is forbidden to root, not even names outside the ACL grammar.
pub(crate) fn permit(access: &Access, auth: &Auth, method: &Method, params: &Params) -> Result<(), Die> {
    match &method.permission {
        Permission::World | Permission::Everyone => Ok(()),
        _ if auth.is_root() => Ok(()),
        Permission::RootOnly => Err(Die::permission("user != root@pam")),
        Permission::Check(check) => evaluate(access, auth, check, params),
    }
}

fn evaluate(access: &Access, auth: &Auth, check: &Check, params: &Params) -> Result<(), Die> {
    match check {
        Check::And(all) => all.iter().try_for_each(|c| evaluate(access, auth, c, params)),
        Check::Or(any) if any.iter().any(|c| evaluate(access, auth, c, params).is_ok()) => Ok(()),
        Check::Or(_) => Err(Die::permission("")),
        Check::Perm {
            path,
            privileges,
            any,
            require,
        } => {
            if require.as_ref().is_some_and(|name| !params.has(name)) {
                return Err(Die::permission(""));
            }
            check_template(access, auth, path, privileges, *any, params)
        }
        Check::UserSelf => {
            let user = params.text("userid");
            if !access.users.contains_key(user) {
                return Err(Die::new(format!("no such user ('{user}')")));
            }
            if auth.token.is_none() && auth.user == user {
                Ok(())
            } else {
                Err(Die::permission(""))
            }
        }
        Check::UserRealm => {
            let realm = params
                .text("userid")
                .rsplit_once('@')
                .map(|(_, realm)| realm)
                .unwrap_or_default();
            access.check(auth, &format!("/access/realm/{realm}"), &["Realm.AllocateUser"])
        }
        Check::UserGroup {
            privileges,
            groups_param,
        } => check_user_group(access, auth, privileges, groups_param.as_deref(), params),
        Check::Modify => match normalize_path(params.text("path")) {
            Some(path) => access.check_modify(auth, &path),
            None => Ok(()),
        },
    }
}

fn check_template(
    access: &Access,
    auth: &Auth,
    template: &str,
    privileges: &[String],
    any: bool,
    params: &Params,
) -> Result<(), Die> {
    let names: Vec<&str> = privileges.iter().map(String::as_str).collect();
    match normalize_path(&fill(template, params)) {
        Some(path) if any => access.check_any(auth, &path, &names),
        Some(path) => access.check(auth, &path, &names),
        None if any => Err(Die::permission(&format!(", {}", names.join("|")))),
        None => Err(Die::permission(&format!(", {}", names.first().copied().unwrap_or_default()))),
    }
}

/// Puts path parameters into an ACL template; they are not validated yet.
fn fill(template: &str, params: &Params) -> String {
    let filled = template
        .split('/')
        .map(|segment| match segment.strip_prefix('{').and_then(|s| s.strip_suffix('}')) {
            Some(name) => params.text(name),
            None => segment,
        });
    filled.collect::<Vec<_>>().join("/")
}

/// `groups` says whether the call names groups, and whether its user is there already.
fn check_user_group(
    access: &Access,
    auth: &Auth,
    privileges: &[String],
    groups: Option<&str>,
    params: &Params,
) -> Result<(), Die> {
    let names: Vec<&str> = privileges.iter().map(String::as_str).collect();
    let wanted = names.join("|");
    let user = params.text("userid");
    let existing = groups != Some("create");
    if existing && !access.users.contains_key(user) {
        return Err(Die::new(format!("no such user ('{user}')")));
    }
    if access.may_any(auth, "/access/groups", &names) {
        return Ok(());
    }
    let allowed =
        |group: &str| access.groups.contains_key(group) && access.may_any(auth, &format!("/access/groups/{group}"), &names);
    if groups.is_some() {
        let given: Vec<&str> = split_list(params.get("groups").unwrap_or_default()).collect();
        if given.is_empty() {
            return Err(Die::permission(&format!("/access/groups, {wanted}")));
        }
        if let Some(group) = given.iter().find(|group| !allowed(group)) {
            return Err(Die::permission(&format!("/access/groups/{group}, {wanted}")));
        }
    }
    let member = access
        .groups
        .iter()
        .any(|(name, group)| group.members.contains(user) && allowed(name));
    if member || !existing {
        Ok(())
    } else {
        Err(Die::permission(""))
    }
}
