//! Users, tokens, groups, roles, the ACL tree and pools: who may do what.

mod acl;
mod api;
mod auth;
mod grants;
mod login;
mod permission;
mod pools;
mod roles;
mod tfa;

use std::collections::{BTreeMap, BTreeSet};

pub use acl::{Entry, Principal, normalize_path};
pub(crate) use api::handle;
pub use auth::{Auth, Login, Signer};
pub(crate) use permission::permit;
pub(crate) use pools::handle as handle_pools;
pub use roles::{is_privilege, privileges};
pub use tfa::{Tfa, totp_code};

/// `root@pam` by password. A token of root has an identity of its own.
pub const ROOT: &str = "root@pam";

#[derive(Clone, Debug, Default)]
pub struct Access {
    pub users: BTreeMap<String, User>,
    pub groups: BTreeMap<String, Group>,
    /// Own roles; the built-in ones come with the version.
    pub roles: BTreeMap<String, BTreeSet<String>>,
    pub acl: BTreeMap<String, Vec<Entry>>,
    pub pools: BTreeMap<String, Pool>,
    /// Second factors by user.
    pub tfa: BTreeMap<String, Tfa>,
    builtin: BTreeMap<&'static str, BTreeSet<String>>,
}

#[derive(Clone, Debug, Default)]
pub struct User {
    pub enable: bool,
    pub expire: i64,
    pub comment: Option<String>,
    pub email: Option<String>,
    pub firstname: Option<String>,
    pub lastname: Option<String>,
    pub keys: Option<String>,
    pub password: Option<String>,
    pub tokens: BTreeMap<String, Token>,
}

#[derive(Clone, Default)]
pub struct Token {
    pub privsep: bool,
    pub expire: i64,
    pub comment: Option<String>,
    pub secret: String,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token(privsep {}, ***)", self.privsep)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Group {
    pub comment: Option<String>,
    pub members: BTreeSet<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Pool {
    pub comment: Option<String>,
    pub vms: BTreeSet<u32>,
    pub storages: BTreeSet<String>,
}

impl Access {
    pub fn new(major: u32) -> Self {
        Self {
            builtin: roles::builtin(major),
            ..Self::default()
        }
    }

    pub fn role(&self, name: &str) -> Option<&BTreeSet<String>> {
        self.builtin.get(name).or_else(|| self.roles.get(name))
    }

    pub fn is_builtin(&self, name: &str) -> bool {
        self.builtin.contains_key(name)
    }

    pub fn role_names(&self) -> Vec<String> {
        self.builtin
            .keys()
            .map(|n| (*n).to_string())
            .chain(self.roles.keys().cloned())
            .collect()
    }

    pub fn pool_of(&self, vmid: u32) -> Option<&str> {
        self.pools
            .iter()
            .find(|(_, pool)| pool.vms.contains(&vmid))
            .map(|(name, _)| name.as_str())
    }

    /// What PVE forgets when a VM goes: its ACL entries and its pool membership.
    pub fn forget_vm(&mut self, vmid: u32) {
        self.acl.remove(&format!("/vms/{vmid}"));
        for pool in self.pools.values_mut() {
            pool.vms.remove(&vmid);
        }
    }
}
