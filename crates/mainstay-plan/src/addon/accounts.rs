//! PVE accounts of the cloud controller and the CSI driver: exactly the privileges that each needs, by PVE version.
//!
//! Only a user whose name and comment are ours is changed or deleted. Roles are shared by all clusters of a datacenter and stay.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use uuid::Uuid;

use super::facts::PveFacts;

/// Secret of the cloud controller in kube-system.
pub const CONFIG_SECRET_CCM: &str = "proxmox-cloud-controller-manager";
/// Secret of the CSI driver in its namespace.
pub const CONFIG_SECRET_CSI: &str = "proxmox-csi-plugin";
pub const CONFIG_KEY: &str = "config.yaml";
const CA_KEY: &str = "ca.crt";

/// Which program an account is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccountKind {
    Ccm,
    Csi,
}

impl AccountKind {
    pub const ALL: [Self; 2] = [Self::Ccm, Self::Csi];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ccm => "ccm",
            Self::Csi => "csi",
        }
    }

    /// Shared by all clusters of a datacenter, so that `down` of one leaves the others working.
    pub fn role(self) -> &'static str {
        match self {
            Self::Ccm => "mainstay-ccm",
            Self::Csi => "mainstay-csi",
        }
    }

    /// The privileges of the role. PVE refuses a role with a privilege that it does not know.
    pub fn privileges(self, pve_major: u32) -> BTreeSet<&'static str> {
        let mut privileges: BTreeSet<_> = match self {
            Self::Ccm => ["VM.Audit", "Sys.Audit"].into(),
            Self::Csi => [
                "VM.Audit",
                "VM.Config.Disk",
                "Datastore.Allocate",
                "Datastore.AllocateSpace",
                "Datastore.Audit",
                "Sys.Audit",
            ]
            .into(),
        };
        if self == Self::Ccm && pve_major >= 9 {
            privileges.insert("VM.GuestAgent.Audit");
        }
        privileges
    }
}

/// One account, as it should be in PVE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedAccount {
    pub kind: AccountKind,
    pub user: String,
    pub comment: String,
    pub role: &'static str,
    pub privileges: BTreeSet<&'static str>,
    /// Path of the ACL, for the user and for the token: a token with separate privileges has none by itself.
    pub acl_path: &'static str,
}

/// The account of a cluster. The comment names the whole cluster id, because eight digits in a name prove nothing.
pub fn wanted_account(kind: AccountKind, cluster: Uuid, pve_major: u32, controller_vmid: Option<u32>) -> WantedAccount {
    let vmid = controller_vmid.map(|vmid| format!(" csi-vmid={vmid}")).unwrap_or_default();
    WantedAccount {
        kind,
        user: user_name(kind, cluster),
        comment: format!("mainstay cluster={cluster}{vmid}"),
        role: kind.role(),
        privileges: kind.privileges(pve_major),
        acl_path: "/",
    }
}

/// `ms-<first 8 of the cluster id>-ccm@pve`.
pub fn user_name(kind: AccountKind, cluster: Uuid) -> String {
    let id = cluster.simple().to_string();
    format!("ms-{}-{}@pve", &id[..8], kind.as_str())
}

/// What PVE says about an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObservedAccount {
    /// The list could not be read.
    Unknown(String),
    Absent,
    Present(PveUser),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PveUser {
    pub comment: String,
    /// Ids of its tokens, without the user's name.
    pub tokens: BTreeSet<String>,
    /// The ACL exists for the user and for these tokens.
    pub acl: BTreeSet<String>,
    pub has_user_acl: bool,
}

/// What our own token may do, and which tokens the two places that keep a secret name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccountAccess {
    /// May create users and roles and change ACLs.
    pub may_modify: bool,
    /// Token ids in the secrets file: two while a rotation is under way.
    pub in_secrets_file: BTreeSet<String>,
    /// Token id in the Kubernetes Secret.
    pub in_cluster: Option<String>,
}

/// What happens to an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountDecision {
    /// Nothing is missing.
    Keep,
    /// Do this, in order.
    Change(Vec<AccountChange>),
    /// A user of this name is not ours.
    Conflict {
        user: String,
        comment: String,
    },
    /// Our token may not: print the commands.
    Print(Vec<String>),
    Hold(AccountHold),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountHold {
    Unknown(String),
    /// The cluster uses a token whose secret this secrets file does not have.
    SecretsFileIsOlder {
        in_cluster: String,
    },
}

/// One request to PVE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountChange {
    CreateRole,
    /// Add privileges that are missing. None is taken away: the role is shared.
    ExtendRole(Vec<String>),
    CreateUser,
    /// PVE shows the secret once, so it is written to the secrets file before anything else happens.
    CreateToken(String),
    /// A token whose secret no place has: it cannot be used any more.
    DeleteToken(String),
    AllowUser,
    AllowToken(String),
}

/// What must be done so that the account exists and its secret is known. `role`: privileges of the role, `None` if it does not exist. It
/// is read apart from the user, because the role of another cluster is there before the user of this one.
pub fn decide_account(
    wanted: &WantedAccount,
    role: Option<&BTreeSet<String>>,
    observed: &ObservedAccount,
    access: &AccountAccess,
) -> AccountDecision {
    let user = match observed {
        ObservedAccount::Unknown(why) => return AccountDecision::Hold(AccountHold::Unknown(why.clone())),
        ObservedAccount::Absent => None,
        ObservedAccount::Present(user) if !is_ours(wanted, user) => {
            return AccountDecision::Conflict {
                user: wanted.user.clone(),
                comment: user.comment.clone(),
            };
        }
        ObservedAccount::Present(user) => Some(user),
    };
    // A secrets file from before the last rotation would replace the token that the cluster uses.
    if let Some(in_cluster) = &access.in_cluster
        && !access.in_secrets_file.contains(in_cluster)
    {
        let in_cluster = in_cluster.clone();
        return AccountDecision::Hold(AccountHold::SecretsFileIsOlder { in_cluster });
    }
    let changes = account_changes(wanted, role, user, access);
    if changes.is_empty() {
        AccountDecision::Keep
    } else if access.may_modify {
        AccountDecision::Change(changes)
    } else {
        AccountDecision::Print(pveum_commands(wanted, &changes))
    }
}

/// The comment names this cluster, as a whole word.
fn is_ours(wanted: &WantedAccount, user: &PveUser) -> bool {
    let id = wanted.comment.split(' ').nth(1).unwrap_or_default();
    let mut words = user.comment.split_whitespace();
    words.next() == Some("mainstay") && words.any(|word| word == id)
}

fn account_changes(
    wanted: &WantedAccount,
    role: Option<&BTreeSet<String>>,
    user: Option<&PveUser>,
    access: &AccountAccess,
) -> Vec<AccountChange> {
    let mut changes = Vec::new();
    match role {
        None => changes.push(AccountChange::CreateRole),
        Some(role) => {
            let missing = wanted.privileges.iter().filter(|privilege| !role.contains(**privilege));
            let missing: Vec<String> = missing.map(ToString::to_string).collect();
            if !missing.is_empty() {
                changes.push(AccountChange::ExtendRole(missing));
            }
        }
    }
    if user.is_none() {
        changes.push(AccountChange::CreateUser);
    }
    if !user.is_some_and(|user| user.has_user_acl) {
        changes.push(AccountChange::AllowUser);
    }
    changes.extend(token_changes(user, access));
    changes
}

fn token_changes(user: Option<&PveUser>, access: &AccountAccess) -> Vec<AccountChange> {
    let none = BTreeSet::new();
    let (existing, allowed) = user.map_or((&none, &none), |user| (&user.tokens, &user.acl));
    // Only the ids that mainstay makes are deleted; a token of another name was made by a person.
    let is_lost = |id: &&String| is_our_token(id) && !access.in_secrets_file.contains(*id);
    let mut changes: Vec<_> = existing
        .iter()
        .filter(is_lost)
        .cloned()
        .map(AccountChange::DeleteToken)
        .collect();
    let usable: Vec<&String> = access.in_secrets_file.intersection(existing).collect();
    if usable.is_empty() {
        changes.push(AccountChange::CreateToken("a".to_owned()));
        changes.push(AccountChange::AllowToken("a".to_owned()));
    }
    let forbidden = usable.into_iter().filter(|id| !allowed.contains(*id));
    changes.extend(forbidden.cloned().map(AccountChange::AllowToken));
    changes
}

fn is_our_token(id: &str) -> bool {
    matches!(id, "a" | "b")
}

/// The id of the next token: `a` and `b` alternate, so that the old one works until the new one is in use.
pub fn next_token(current: &str) -> &'static str {
    if current == "a" { "b" } else { "a" }
}

/// The steps of a rotation, in order. Each is safe to repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RotationStep {
    /// The new id exists, but the run that created it ended before it wrote the secret down.
    DeleteLostToken,
    /// Writes the secrets file before it returns: PVE shows the secret once.
    CreateToken,
    AllowToken,
    /// As the new token: its permissions, and that it sees every VM of ours. A cloud controller that misses a VM deletes its Node.
    CheckToken,
    ApplySecret,
    /// An annotation with the token id on the pod template restarts the pods.
    RestartPods,
    /// Rollout complete, no new authentication errors, Lease renewed, all Nodes kept.
    CheckController,
    DeleteOldToken,
}

/// What has been done of a rotation, as read from PVE, the secrets file and the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RotationState {
    /// The token id that is rotated away.
    pub old: String,
    pub tokens: BTreeSet<String>,
    pub allowed: BTreeSet<String>,
    pub in_secrets_file: BTreeSet<String>,
    pub in_cluster: Option<String>,
    /// The token id of the pod template.
    pub in_pods: Option<String>,
    pub is_checked: bool,
    pub is_controller_healthy: bool,
}

/// The next step of rotating away from `old`; `None` when it is complete.
pub fn next_rotation_step(state: &RotationState) -> Option<RotationStep> {
    let new = next_token(&state.old);
    let is_known = state.in_secrets_file.contains(new);
    let exists = state.tokens.contains(new);
    let steps = [
        (!exists || is_known, RotationStep::DeleteLostToken),
        (exists, RotationStep::CreateToken),
        (state.allowed.contains(new), RotationStep::AllowToken),
        (state.is_checked, RotationStep::CheckToken),
        (state.in_cluster.as_deref() == Some(new), RotationStep::ApplySecret),
        (state.in_pods.as_deref() == Some(new), RotationStep::RestartPods),
        (state.is_controller_healthy, RotationStep::CheckController),
        (!state.tokens.contains(&state.old), RotationStep::DeleteOldToken),
    ];
    steps.into_iter().find(|(is_done, _)| !is_done).map(|(_, step)| step)
}

/// What an administrator runs if our token may not.
fn pveum_commands(wanted: &WantedAccount, changes: &[AccountChange]) -> Vec<String> {
    let (user, role, path) = (&wanted.user, wanted.role, wanted.acl_path);
    let privileges: Vec<&str> = wanted.privileges.iter().copied().collect();
    let privileges = privileges.join(" ");
    let command = |change: &AccountChange| match change {
        AccountChange::CreateRole => format!("pveum role add {role} --privs '{privileges}'"),
        AccountChange::ExtendRole(missing) => format!("pveum role modify {role} --append 1 --privs '{}'", missing.join(" ")),
        AccountChange::CreateUser => format!("pveum user add {user} --comment '{}'", wanted.comment),
        AccountChange::CreateToken(id) => format!("pveum user token add {user} {id} --privsep 1"),
        AccountChange::DeleteToken(id) => format!("pveum user token remove {user} {id}"),
        AccountChange::AllowUser => format!("pveum acl modify {path} --users {user} --roles {role}"),
        AccountChange::AllowToken(id) => format!("pveum acl modify {path} --tokens '{user}!{id}' --roles {role}"),
    };
    changes.iter().map(command).collect()
}

/// May a cloud controller start with this token? VMs of ours that the token cannot see: the controller would delete their Nodes.
pub fn unseen_machines(ours: &BTreeSet<u32>, seen: &BTreeSet<u32>) -> Vec<u32> {
    ours.difference(seen).copied().collect()
}

/// The VMID that owns CSI volumes: hashed from the cluster id, so that two clusters of a datacenter do not share it.
///
/// `taken` holds every range of the file, template VMIDs included, and what exists on PVE. `None`: no free VMID was found.
pub fn choose_controller_vmid(cluster: Uuid, is_taken: impl Fn(u32) -> bool) -> Option<u32> {
    const FIRST: u32 = 900_000;
    const COUNT: u32 = 90_000;
    let start = u32::try_from(cluster.as_u128() % u128::from(COUNT)).unwrap_or_default();
    (0..COUNT)
        .map(|step| FIRST + (start + step) % COUNT)
        .find(|vmid| !is_taken(*vmid))
}

/// The content of `config.yaml` for both programs. Called by the executor only: the token's secret is in it.
pub fn cloud_config(pve: &PveFacts, token: &str, secret: &str, controller_vmid: Option<u32>) -> Value {
    let mut features = json!({ "provider": "default" });
    if let Some(vmid) = controller_vmid {
        // The driver's code reads `controllerVmID`; its documentation writes `controllerVMID`, which has no effect.
        features["controllerVmID"] = json!(vmid);
    }
    json!({
        "features": features,
        "clusters": [{
            "url": format!("{}/api2/json", pve.endpoint.trim_end_matches('/')),
            "insecure": false,
            "token_id": token,
            "token_secret": secret,
            "region": pve.region,
        }],
    })
}

/// Volume and mount for the CA of PVE. Go programs read every file of this directory beside their system's certificates.
pub(super) fn ca_volume(secret: &str) -> (Value, Value) {
    (
        json!({ "name": "pve-ca", "secret": { "secretName": secret, "items": [{ "key": CA_KEY, "path": "pve-ca.crt" }] } }),
        json!({ "name": "pve-ca", "mountPath": "/etc/pki/tls/certs", "readOnly": true }),
    )
}
