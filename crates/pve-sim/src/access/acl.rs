//! The ACL tree: the deepest entry for a principal replaces what came from above.

use std::collections::{BTreeMap, BTreeSet};

use super::{Access, ROOT};

/// Privilege -> whether it reaches below the path.
pub type Granted = BTreeMap<String, bool>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: Principal,
    pub id: String,
    pub role: String,
    pub propagate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Principal {
    User,
    Group,
    Token,
}

impl Principal {
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Token => "token",
        }
    }

    pub fn parse(text: &str) -> Self {
        match text {
            "group" => Self::Group,
            "token" => Self::Token,
            _ => Self::User,
        }
    }
}

impl Entry {
    pub fn new(kind: &str, id: &str, role: &str, propagate: bool) -> Self {
        Self {
            kind: Principal::parse(kind),
            id: id.into(),
            role: role.into(),
            propagate,
        }
    }
}

/// One spelling per path; `None` for what the grammar does not allow.
pub fn normalize_path(path: &str) -> Option<String> {
    let segments: Vec<&str> = path.split('/').filter(|s| !s.is_empty()).collect();
    let normal = format!("/{}", segments.join("/"));
    normal
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b".-_/".contains(&b))
        .then_some(normal)
}

/// A path and every node of the tree above it, which exists because of it.
fn with_parents(path: &str) -> impl Iterator<Item = String> + '_ {
    let ends = path.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0);
    ends.chain([path.len()]).map(|end| path[..end].to_string())
}

fn user_of(principal: &str) -> (&str, Option<&str>) {
    match principal.split_once('!') {
        Some((user, token)) => (user, Some(token)),
        None => (principal, None),
    }
}

impl Access {
    /// What a user or token may do on a path.
    pub fn granted(&self, principal: &str, path: &str) -> Granted {
        if principal == ROOT {
            return self
                .role("Administrator")
                .into_iter()
                .flatten()
                .map(|p| (p.clone(), true))
                .collect();
        }
        let (user, token) = user_of(principal);
        let Some(token) = token else {
            return if self.users.contains_key(user) {
                self.compile(principal, path)
            } else {
                Granted::new()
            };
        };
        match self.users.get(user).and_then(|u| u.tokens.get(token)) {
            None => Granted::new(),
            Some(info) if !info.privsep => self.granted(user, path),
            Some(_) => self.separated(principal, user, path),
        }
    }

    /// A privilege-separated token has what both it and its user have.
    fn separated(&self, principal: &str, user: &str, path: &str) -> Granted {
        let own = self.compile(principal, path);
        if user == ROOT {
            return own;
        }
        let limit = self.granted(user, path);
        let both = |(privilege, propagate): (String, bool)| limit.get(&privilege).map(|l| (privilege, propagate && *l));
        own.into_iter().filter_map(both).collect()
    }

    fn compile(&self, principal: &str, path: &str) -> Granted {
        let mut roles = self.roles_on(principal, path);
        self.add_pool_roles(principal, path, &mut roles);
        let mut granted = Granted::new();
        for (role, propagate) in roles {
            for privilege in self.role(&role).into_iter().flatten() {
                *granted.entry(privilege.clone()).or_default() |= propagate;
            }
        }
        granted
    }

    fn roles_on(&self, principal: &str, path: &str) -> BTreeMap<String, bool> {
        let mut roles = BTreeMap::new();
        let mut here = String::new();
        let segments: Vec<&str> = path.split('/').filter(|s| !s.is_empty()).collect();
        for depth in 0..=segments.len() {
            if depth > 0 {
                here.push('/');
                here.push_str(segments[depth - 1]);
            }
            let key = if here.is_empty() { "/" } else { &here };
            if let Some(entries) = self.acl.get(key)
                && let Some(found) = self.roles_at(entries, principal, depth == segments.len())
            {
                roles = found;
            }
        }
        if let Some(none) = roles.get("NoAccess").copied() {
            roles = [("NoAccess".to_string(), none)].into();
        }
        roles
    }

    /// Entries of the token or user itself beat those of its groups.
    fn roles_at(&self, entries: &[Entry], principal: &str, last: bool) -> Option<BTreeMap<String, bool>> {
        let pick = |wanted: &dyn Fn(&Entry) -> bool| {
            let chosen = entries.iter().filter(|e| wanted(e) && (last || e.propagate));
            let roles: BTreeMap<String, bool> = chosen.map(|e| (e.role.clone(), e.propagate)).collect();
            (!roles.is_empty()).then_some(roles)
        };
        let own = if principal.contains('!') {
            Principal::Token
        } else {
            Principal::User
        };
        pick(&|e| e.kind == own && e.id == principal).or_else(|| {
            pick(&|e| e.kind == Principal::Group && self.groups.get(&e.id).is_some_and(|g| g.members.contains(principal)))
        })
    }

    /// Roles on a pool reach its members, without going deeper.
    fn add_pool_roles(&self, principal: &str, path: &str, roles: &mut BTreeMap<String, bool>) {
        if roles.contains_key("NoAccess") {
            return;
        }
        for (name, pool) in &self.pools {
            let member = match path.split('/').collect::<Vec<_>>()[..] {
                ["", "vms", vmid] => vmid.parse().is_ok_and(|id| pool.vms.contains(&id)),
                ["", "storage", id] => pool.storages.contains(id),
                _ => false,
            };
            if !member {
                continue;
            }
            for role in self.roles_on(principal, &format!("/pool/{name}")).into_keys() {
                if role == "NoAccess" {
                    *roles = [(role, false)].into();
                    return;
                }
                roles.entry(role).or_insert(false);
            }
        }
    }

    /// The paths at which `/access/permissions` looks when none is asked for.
    pub fn known_paths(&self) -> BTreeSet<String> {
        let top = [
            "/",
            "/access",
            "/access/groups",
            "/nodes",
            "/pool",
            "/sdn",
            "/storage",
            "/vms",
        ];
        let mut paths: BTreeSet<String> = top.iter().map(|p| (*p).to_string()).collect();
        for path in self.acl.keys() {
            paths.extend(with_parents(path));
        }
        for pool in self.pools.values() {
            paths.extend(pool.vms.iter().map(|v| format!("/vms/{v}")));
            paths.extend(pool.storages.iter().map(|s| format!("/storage/{s}")));
        }
        paths
    }
}

#[cfg(test)]
mod tests {
    use super::{Entry, Principal, normalize_path};
    use crate::access::{Access, Pool, Token, User};

    fn world() -> Access {
        let mut access = Access::new(9);
        let mut user = User {
            enable: true,
            ..User::default()
        };
        user.tokens.insert("full".into(), Token::default());
        user.tokens.insert(
            "sep".into(),
            Token {
                privsep: true,
                ..Token::default()
            },
        );
        access.users.insert("u@pve".into(), user);
        access
    }

    fn give(access: &mut Access, path: &str, kind: Principal, id: &str, role: &str, propagate: bool) {
        access.acl.entry(path.into()).or_default().push(Entry {
            kind,
            id: id.into(),
            role: role.into(),
            propagate,
        });
    }

    #[test]
    fn the_deepest_entry_replaces_what_came_from_above() {
        let mut access = world();
        give(&mut access, "/", Principal::User, "u@pve", "Administrator", true);
        give(&mut access, "/vms/100", Principal::User, "u@pve", "PVEAuditor", true);
        assert!(access.granted("u@pve", "/vms/101").contains_key("VM.Allocate"));
        assert!(!access.granted("u@pve", "/vms/100").contains_key("VM.Allocate"));
    }

    #[test]
    fn a_separated_token_has_only_what_both_have() {
        let mut access = world();
        give(&mut access, "/", Principal::User, "u@pve", "PVEVMUser", true);
        give(&mut access, "/vms", Principal::Token, "u@pve!sep", "PVEVMAdmin", true);
        let granted = access.granted("u@pve!sep", "/vms/100");
        assert!(granted.contains_key("VM.Audit") && !granted.contains_key("VM.Allocate"));
        assert!(access.granted("u@pve!full", "/").contains_key("VM.PowerMgmt"));
    }

    #[test]
    fn pool_roles_reach_member_machines() {
        let mut access = world();
        give(&mut access, "/pool/p", Principal::User, "u@pve", "PVEVMAdmin", true);
        access.pools.insert(
            "p".into(),
            Pool {
                vms: [100].into(),
                ..Pool::default()
            },
        );
        assert!(access.granted("u@pve", "/vms/100").contains_key("VM.Allocate"));
        assert!(access.granted("u@pve", "/vms/101").is_empty());
    }

    #[test]
    fn no_access_cancels_everything() {
        let mut access = world();
        give(&mut access, "/", Principal::User, "u@pve", "Administrator", true);
        give(&mut access, "/vms/100", Principal::User, "u@pve", "NoAccess", true);
        assert!(access.granted("u@pve", "/vms/100").is_empty());
    }

    #[test]
    fn odd_paths_have_no_normal_form() {
        assert_eq!(normalize_path("vms//100/").as_deref(), Some("/vms/100"));
        assert_eq!(normalize_path("/pool/a b"), None);
    }
}
