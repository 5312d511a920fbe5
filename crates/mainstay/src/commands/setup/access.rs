//! User, roles, access list and token that a cluster needs, and what is missing of them.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_engine::preflight;
use pve_api::access::{self, AclEntry, Principal, Token};
use pve_api::privileges::Grant;
use pve_api::{Call, Client, Done};
use uuid::Uuid;

use crate::error::CommandError;

/// The token's name below its user.
const TOKEN: &str = "mainstay";

/// What a cluster needs, all of it named after its setup id.
pub struct Access {
    pub user: String,
    pub comment: String,
    /// Privileges by role.
    pub roles: BTreeMap<String, BTreeSet<String>>,
    pub entries: Vec<AclEntry>,
    user_prefix: String,
    role_prefix: String,
}

impl Access {
    pub fn new(cluster: &str, id: Uuid, grants: &[Grant]) -> Self {
        let short = &id.simple().to_string()[..8];
        let user = format!("mainstay-{cluster}-{short}@pve");
        let role_prefix = format!("Mainstay-{cluster}-{short}-");
        let mut names: BTreeMap<BTreeSet<String>, String> = BTreeMap::new();
        let mut entries = Vec::new();
        for grant in grants {
            let privileges: BTreeSet<String> = grant.privileges.iter().map(ToString::to_string).collect();
            let role = names
                .entry(privileges)
                .or_insert_with(|| role_name(&role_prefix, &grant.path));
            // A token has at most the rights of its user, so that both need the entry.
            for (kind, ugid) in [(Principal::User, user.clone()), (Principal::Token, format!("{user}!{TOKEN}"))] {
                entries.push(AclEntry {
                    path: grant.path.clone(),
                    roleid: role.clone(),
                    ugid,
                    kind,
                    propagate: grant.propagate,
                });
            }
        }
        // The token's entries come last: they need the token, and the token needs its user.
        entries.sort_by_key(|entry| entry.kind == Principal::Token);
        Self {
            comment: format!("mainstay cluster {cluster}, setup {id}"),
            roles: names.into_iter().map(|(privileges, name)| (name, privileges)).collect(),
            user,
            entries,
            user_prefix: format!("mainstay-{cluster}-"),
            role_prefix,
        }
    }

    pub fn token(&self) -> String {
        format!("{}!{TOKEN}", self.user)
    }

    /// The user of another setup: `mainstay-home-1a2b3c4d@pve`, but not `mainstay-home-lab-1a2b3c4d@pve`, which is of another cluster.
    fn is_namesake(&self, user: &str) -> bool {
        let id = user
            .strip_prefix(&self.user_prefix)
            .and_then(|rest| rest.strip_suffix("@pve"));
        *user != *self.user && id.is_some_and(|id| id.len() == 8 && id.chars().all(|digit| digit.is_ascii_hexdigit()))
    }

    fn is_ours(&self, entry: &AclEntry) -> bool {
        entry.ugid == self.user || entry.ugid == self.token()
    }

    fn has_id(&self, comment: Option<&str>, id: Uuid) -> bool {
        comment.is_some_and(|comment| comment.contains(&id.to_string()))
    }

    /// What all of it would be on the command line of a host.
    pub fn commands(&self) -> Vec<String> {
        let roles = self.roles.iter().map(|(name, privileges)| Change::CreateRole {
            name: name.clone(),
            privileges: privileges.clone(),
        });
        let acl = |kind| {
            self.entries
                .iter()
                .filter(move |entry| entry.kind == kind)
                .cloned()
                .map(Change::Grant)
        };
        roles
            .chain([Change::CreateUser])
            .chain(acl(Principal::User))
            .chain([Change::CreateToken])
            .chain(acl(Principal::Token))
            .map(|change| change.command(self))
            .collect()
    }
}

/// By path alone: the name stays when the file gets or loses another path.
fn role_name(prefix: &str, path: &str) -> String {
    match path.trim_matches('/') {
        "" => format!("{prefix}root"),
        path => format!("{prefix}{}", path.replace('/', "-")),
    }
}

/// One change on Proxmox VE.
pub enum Change {
    CreateRole {
        name: String,
        privileges: BTreeSet<String>,
    },
    SetRole {
        name: String,
        privileges: BTreeSet<String>,
        was: BTreeSet<String>,
    },
    CreateUser,
    Grant(AclEntry),
    Revoke(AclEntry),
    CreateToken,
    DeleteToken,
    DeleteUser,
    DeleteRole(String),
}

impl Change {
    /// The same change on the command line of a host.
    pub fn command(&self, access: &Access) -> String {
        let (user, comment) = (&access.user, &access.comment);
        let list = |privileges: &BTreeSet<String>| privileges.iter().cloned().collect::<Vec<_>>().join(" ");
        match self {
            Self::CreateRole { name, privileges } => preflight::role_command(name, privileges),
            Self::SetRole { name, privileges, .. } => format!("pveum role modify {name} --privs '{}'", list(privileges)),
            Self::CreateUser => format!("pveum user add '{user}' --comment '{comment}' || true"),
            Self::Grant(entry) => format!(
                "pveum acl modify {} {} --roles {} --propagate {}",
                entry.path,
                principal(entry),
                entry.roleid,
                u8::from(entry.propagate)
            ),
            Self::Revoke(entry) => format!(
                "pveum acl delete {} {} --roles {}",
                entry.path,
                principal(entry),
                entry.roleid
            ),
            Self::CreateToken => format!(
                "pveum user token add '{user}' {TOKEN} --privsep 1 --comment '{comment}' || pveum user token modify '{user}' {TOKEN} --privsep 1"
            ),
            Self::DeleteToken => format!("pveum user token remove '{user}' {TOKEN}"),
            Self::DeleteUser => format!("pveum user delete '{user}'"),
            Self::DeleteRole(name) => format!("pveum role delete {name}"),
        }
    }

    /// A line for the person who confirms it.
    pub fn text(&self, access: &Access) -> String {
        let names = |privileges: &BTreeSet<String>| privileges.iter().cloned().collect::<Vec<_>>().join(", ");
        match self {
            Self::CreateRole { name, privileges } => format!("+ role {name}: {}", names(privileges)),
            Self::SetRole { name, privileges, was } => {
                let more: BTreeSet<String> = privileges.difference(was).cloned().collect();
                let less: BTreeSet<String> = was.difference(privileges).cloned().collect();
                format!("~ role {name}: add [{}], remove [{}]", names(&more), names(&less))
            }
            Self::CreateUser => format!("+ user {} (without password)", access.user),
            Self::Grant(entry) => format!("+ {} on {} for {}", entry.roleid, entry.path, entry.ugid),
            Self::Revoke(entry) => format!("- {} on {} for {}", entry.roleid, entry.path, entry.ugid),
            Self::CreateToken => format!("+ API token {}", access.token()),
            Self::DeleteToken => format!("- API token {}", access.token()),
            Self::DeleteUser => format!("- user {}", access.user),
            Self::DeleteRole(name) => format!("- role {name}"),
        }
    }

    /// The call, except for a new token: its answer must be kept.
    pub fn call(&self, access: &Access) -> Option<Call<Done>> {
        Some(match self {
            Self::CreateRole { name, privileges } => access::create_role(name, privileges),
            Self::SetRole { name, privileges, .. } => access::set_role(name, privileges),
            Self::CreateUser => access::create_user(&access.user, &access.comment),
            Self::Grant(entry) => access::grant(entry),
            Self::Revoke(entry) => access::revoke(entry),
            Self::DeleteToken => access::delete_token(&access.user, TOKEN),
            Self::DeleteUser => access::delete_user(&access.user),
            Self::DeleteRole(name) => access::delete_role(name),
            Self::CreateToken => return None,
        })
    }
}

fn principal(entry: &AclEntry) -> String {
    let flag = match entry.kind {
        Principal::User => "--users",
        Principal::Token => "--tokens",
        Principal::Group => "--groups",
    };
    format!("{flag} '{}'", entry.ugid)
}

/// What is there of it.
struct Present {
    user: bool,
    /// Users of other setups of a cluster of this name.
    namesakes: Vec<String>,
    tokens: Vec<Token>,
    roles: BTreeMap<String, BTreeSet<String>>,
    acl: Vec<AclEntry>,
}

impl Present {
    /// A user or token of this name without the setup id was made by another hand, and is refused.
    async fn read(pve: &Client, access: &Access, id: Uuid) -> Result<Self, CommandError> {
        let users = pve.call(access::users()).await?;
        let is_namesake = |name: &str| access.is_namesake(name);
        let namesakes = users.iter().map(|user| user.userid.clone()).filter(|name| is_namesake(name));
        let namesakes = namesakes.collect();
        let user = users.into_iter().find(|user| user.userid == access.user);
        let foreign = |what: &str| {
            CommandError::refused(format!("{what} exists, and was not made by this setup"))
                .why("its comment lacks the setup id")
                .help("nothing was changed")
        };
        if user.as_ref().is_some_and(|user| !access.has_id(user.comment.as_deref(), id)) {
            return Err(foreign(&access.user));
        }
        let tokens = match &user {
            Some(_) => pve.call(access::tokens(&access.user)).await?,
            None => Vec::new(),
        };
        let named = tokens.iter().find(|token| token.tokenid == TOKEN);
        if named.is_some_and(|token| !access.has_id(token.comment.as_deref(), id)) {
            return Err(foreign(&access.token()));
        }
        let roles = pve.call(access::roles()).await?;
        Ok(Self {
            user: user.is_some(),
            namesakes,
            tokens,
            roles: roles.into_iter().map(|role| (role.roleid, role.privs)).collect(),
            acl: pve.call(access::acl()).await?,
        })
    }

    /// What a person should know although setup leaves it as it is.
    fn notes(&self, access: &Access) -> Vec<String> {
        let foreign = self
            .acl
            .iter()
            .filter(|entry| access.is_ours(entry) && !entry.roleid.starts_with(&access.role_prefix));
        let foreign = foreign.map(|entry| {
            format!(
                "{} has {} on {} too, which setup did not give",
                entry.ugid, entry.roleid, entry.path
            )
        });
        let namesakes = self.namesakes.iter().map(|user| {
            format!(
                "user {user} is of another setup of a cluster of this name; if that token is lost: pveum user delete '{user}'"
            )
        });
        foreign.chain(namesakes).collect()
    }

    fn has_token(&self) -> bool {
        self.tokens.iter().any(|token| token.tokenid == TOKEN)
    }
}

/// What is missing, in the order in which it is made, and what else should be known. `kept`: the token file has the token's secret.
pub async fn missing(pve: &Client, access: &Access, id: Uuid, kept: bool) -> Result<(Vec<Change>, Vec<String>), CommandError> {
    let present = Present::read(pve, access, id).await?;
    Ok((changes(&present, access, kept)?, present.notes(access)))
}

fn changes(present: &Present, access: &Access, kept: bool) -> Result<Vec<Change>, CommandError> {
    let mut changes = Vec::new();
    for (name, privileges) in &access.roles {
        let (name, privileges) = (name.clone(), privileges.clone());
        match present.roles.get(&name) {
            None => changes.push(Change::CreateRole { name, privileges }),
            Some(was) if *was == privileges => {}
            Some(was) => {
                // Another principal would get or lose rights with the change.
                if let Some(other) = present
                    .acl
                    .iter()
                    .find(|entry| entry.roleid == name && !access.is_ours(entry))
                {
                    return Err(CommandError::refused(format!(
                        "role {name} has other privileges, and {} has it too",
                        other.ugid
                    ))
                    .why(format!("it is used on {} outside of this setup", other.path))
                    .help("give them a role of their own, then run setup again; nothing was changed"));
                }
                changes.push(Change::SetRole {
                    name,
                    privileges,
                    was: was.clone(),
                });
            }
        }
    }
    if !present.user {
        changes.push(Change::CreateUser);
    }
    let same = |a: &AclEntry, b: &AclEntry| (&a.path, &a.roleid, &a.ugid) == (&b.path, &b.roleid, &b.ugid);
    let granted = |entry: &AclEntry| present.acl.contains(entry);
    let grants = |kind| {
        let lacking = access
            .entries
            .iter()
            .filter(move |entry| entry.kind == kind && !granted(entry));
        lacking.cloned().map(Change::Grant)
    };
    changes.extend(grants(Principal::User));
    // The secret of a token is told once: without it in the file, the token is of no use.
    let renew = !(kept && present.has_token());
    if renew && present.has_token() {
        changes.push(Change::DeleteToken);
    }
    if renew {
        changes.push(Change::CreateToken);
        // Proxmox VE deletes the entries of a token with it.
        let entries = access.entries.iter().filter(|entry| entry.kind == Principal::Token);
        changes.extend(entries.cloned().map(Change::Grant));
    } else {
        changes.extend(grants(Principal::Token));
    }
    let stale = present.acl.iter().filter(|entry| {
        access.is_ours(entry)
            && entry.roleid.starts_with(&access.role_prefix)
            && !access.entries.iter().any(|wanted| same(wanted, entry))
            && !(renew && entry.kind == Principal::Token)
    });
    changes.extend(stale.cloned().map(Change::Revoke));
    // Roles of paths that the file had once.
    let unused = present.roles.keys().filter(|name| {
        let others = present
            .acl
            .iter()
            .any(|entry| entry.roleid == **name && !access.is_ours(entry));
        name.starts_with(&access.role_prefix) && !access.roles.contains_key(*name) && !others
    });
    changes.extend(unused.cloned().map(Change::DeleteRole));
    Ok(changes)
}

/// What `--undo` deletes, and what it keeps with the reason.
pub async fn leftover(pve: &Client, access: &Access, id: Uuid) -> Result<(Vec<Change>, Vec<String>), CommandError> {
    let present = Present::read(pve, access, id).await?;
    let (ours, others): (Vec<&AclEntry>, Vec<&AclEntry>) = present.acl.iter().partition(|entry| access.is_ours(entry));
    let mut kept = Vec::new();
    let mut changes: Vec<Change> = ours.into_iter().cloned().map(Change::Revoke).collect();
    if present.has_token() {
        changes.push(Change::DeleteToken);
    }
    let other_token = present.tokens.iter().find(|token| token.tokenid != TOKEN);
    match other_token {
        Some(token) => kept.push(format!("user {}: it has another token, {}", access.user, token.tokenid)),
        None if present.user => changes.push(Change::DeleteUser),
        None => {}
    }
    for (name, privileges) in present.roles.iter().filter(|(name, _)| name.starts_with(&access.role_prefix)) {
        if let Some(other) = others.iter().find(|entry| entry.roleid == *name) {
            kept.push(format!("role {name}: {} has it on {}", other.ugid, other.path));
        } else if access.roles.get(name) != Some(privileges) {
            kept.push(format!("role {name}: its privileges are not those that setup gave it"));
        } else {
            changes.push(Change::DeleteRole(name.clone()));
        }
    }
    Ok((changes, kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_whose_name_begins_alike_is_no_namesake() {
        let access = Access::new("home", Uuid::nil(), &[]);
        for (user, is_namesake) in [
            ("mainstay-home-1a2b3c4d@pve", true),
            ("mainstay-home-00000000@pve", false),
            ("mainstay-home-lab-1a2b3c4d@pve", false),
            ("mainstay-home-by-hand@pve", false),
            ("mainstay-home-1a2b3c4d@pam", false),
        ] {
            assert_eq!(access.is_namesake(user), is_namesake, "{user}");
        }
    }
}
