//! Which call needs which privileges: PVE's own answer often names none.

use http::Method;

use super::Privilege;
use super::Privilege as P;
use crate::calls::access::Permissions;
use crate::error::MissingPrivilege;
use crate::request::Request;
use crate::value::PveVersion;

/// What a caller must hold. `{name}` in a path stands for the call's parameter of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Any user that is logged in; lists then show only what the caller may see.
    Anyone,
    /// All of the privileges on the path.
    AllOf(&'static str, &'static [Privilege]),
    /// One of the privileges on the path.
    AnyOf(&'static str, &'static [Privilege]),
    Both(&'static [Self]),
    Either(&'static [Self]),
}

const GET: Method = Method::GET;
const POST: Method = Method::POST;
const PUT: Method = Method::PUT;
const DELETE: Method = Method::DELETE;

const VM_AUDIT: Check = Check::AllOf("/vms/{vmid}", &[P::VmAudit]);
const VM_POWER: Check = Check::AllOf("/vms/{vmid}", &[P::VmPowerMgmt]);
/// Three names for one right; those that a version does not have do not count.
const VM_AGENT: Check = Check::AnyOf(
    "/vms/{vmid}",
    &[P::VmGuestAgentAudit, P::VmGuestAgentUnrestricted, P::VmMonitor],
);
const VM_CONFIG: Check = Check::AnyOf(
    "/vms/{vmid}",
    &[
        P::VmConfigDisk,
        P::VmConfigCdrom,
        P::VmConfigCpu,
        P::VmConfigMemory,
        P::VmConfigNetwork,
        P::VmConfigHwType,
        P::VmConfigOptions,
        P::VmConfigCloudinit,
    ],
);
const STORAGE_VIEW: Check = Check::AnyOf("/storage/{storage}", &[P::DatastoreAudit, P::DatastoreAllocateSpace]);
const STORAGE_FILL: Check = Check::AllOf("/storage/{storage}", &[P::DatastoreAllocateTemplate]);
const NETWORK_ACCESS: Check = Check::Either(&[
    Check::AllOf("/nodes/{node}", &[P::SysAccessNetwork]),
    Check::AllOf("/", &[P::SysAudit, P::SysModify]),
]);
const ROLES: Check = Check::AllOf("/access", &[P::SysModify]);
const USERS: Check = Check::AllOf("/access/groups", &[P::UserModify]);
const POOL: Check = Check::AllOf("/pool/{poolid}", &[P::PoolAllocate]);

/// By method and path. Options of a VM, its disks and its bridges need more, which depends on their values.
const CALLS: &[(Method, &str, Check)] = &[
    (GET, "/version", Check::Anyone),
    (GET, "/cluster/status", Check::AllOf("/", &[P::SysAudit])),
    (GET, "/cluster/resources", Check::Anyone),
    (GET, "/cluster/nextid", Check::Anyone),
    (GET, "/cluster/options", Check::Anyone),
    (GET, "/cluster/replication", Check::Anyone),
    (GET, "/cluster/backup", Check::AllOf("/", &[P::SysAudit])),
    (GET, "/cluster/ha/rules", Check::AllOf("/", &[P::SysAudit])),
    (GET, "/cluster/sdn/vnets", Check::Anyone),
    (GET, "/nodes", Check::Anyone),
    (GET, "/nodes/{node}/status", Check::AllOf("/nodes/{node}", &[P::SysAudit])),
    (GET, "/nodes/{node}/version", Check::Anyone),
    (GET, "/nodes/{node}/network", Check::Anyone),
    (GET, "/nodes/{node}/query-url-metadata", NETWORK_ACCESS),
    (GET, "/access/permissions", Check::Anyone),
    (POST, "/access/ticket", Check::Anyone),
    (GET, "/access/users", Check::Anyone),
    (
        POST,
        "/access/users",
        Check::Both(&[Check::AllOf("/access/realm/{realm}", &[P::RealmAllocateUser]), USERS]),
    ),
    (
        DELETE,
        "/access/users/{userid}",
        Check::Both(&[Check::AllOf("/access/realm/{realm}", &[P::RealmAllocateUser]), USERS]),
    ),
    (GET, "/access/users/{userid}/token", USERS),
    (POST, "/access/users/{userid}/token/{tokenid}", USERS),
    (DELETE, "/access/users/{userid}/token/{tokenid}", USERS),
    (GET, "/access/roles", Check::Anyone),
    (POST, "/access/roles", ROLES),
    (PUT, "/access/roles/{roleid}", ROLES),
    (DELETE, "/access/roles/{roleid}", ROLES),
    (GET, "/access/acl", Check::Anyone),
    (PUT, "/access/acl", Check::AllOf("{path}", &[P::PermissionsModify])),
    (GET, "/pools", Check::Anyone),
    (POST, "/pools", POOL),
    (PUT, "/pools", POOL),
    (DELETE, "/pools", POOL),
    (GET, "/storage", Check::Anyone),
    (PUT, "/storage/{storage}", Check::AllOf("/storage", &[P::DatastoreAllocate])),
    (GET, "/nodes/{node}/storage", Check::Anyone),
    (GET, "/nodes/{node}/storage/{storage}/content", STORAGE_VIEW),
    (GET, "/nodes/{node}/storage/{storage}/content/{volume}", STORAGE_VIEW),
    (
        DELETE,
        "/nodes/{node}/storage/{storage}/content/{volume}",
        Check::AllOf("/storage/{storage}", &[P::DatastoreAllocate]),
    ),
    (
        POST,
        "/nodes/{node}/storage/{storage}/download-url",
        Check::Both(&[STORAGE_FILL, NETWORK_ACCESS]),
    ),
    (POST, "/nodes/{node}/storage/{storage}/upload", STORAGE_FILL),
    (GET, "/nodes/{node}/qemu", Check::Anyone),
    (
        POST,
        "/nodes/{node}/qemu",
        Check::Either(&[
            Check::AllOf("/vms/{vmid}", &[P::VmAllocate]),
            Check::AllOf("/pool/{pool}", &[P::VmAllocate]),
        ]),
    ),
    (
        DELETE,
        "/nodes/{node}/qemu/{vmid}",
        Check::AllOf("/vms/{vmid}", &[P::VmAllocate]),
    ),
    (GET, "/nodes/{node}/qemu/{vmid}/config", VM_AUDIT),
    (PUT, "/nodes/{node}/qemu/{vmid}/config", VM_CONFIG),
    (POST, "/nodes/{node}/qemu/{vmid}/config", VM_CONFIG),
    (GET, "/nodes/{node}/qemu/{vmid}/pending", VM_AUDIT),
    (GET, "/nodes/{node}/qemu/{vmid}/cloudinit/dump", VM_AUDIT),
    (
        PUT,
        "/nodes/{node}/qemu/{vmid}/cloudinit",
        Check::AllOf("/vms/{vmid}", &[P::VmConfigCloudinit]),
    ),
    (
        PUT,
        "/nodes/{node}/qemu/{vmid}/resize",
        Check::AllOf("/vms/{vmid}", &[P::VmConfigDisk]),
    ),
    (
        POST,
        "/nodes/{node}/qemu/{vmid}/clone",
        Check::Both(&[
            Check::AllOf("/vms/{vmid}", &[P::VmClone]),
            Check::Either(&[
                Check::AllOf("/vms/{newid}", &[P::VmAllocate]),
                Check::AllOf("/pool/{pool}", &[P::VmAllocate]),
            ]),
        ]),
    ),
    (
        POST,
        "/nodes/{node}/qemu/{vmid}/template",
        Check::AllOf("/vms/{vmid}", &[P::VmAllocate]),
    ),
    (POST, "/nodes/{node}/qemu/{vmid}/status/start", VM_POWER),
    (POST, "/nodes/{node}/qemu/{vmid}/status/stop", VM_POWER),
    (POST, "/nodes/{node}/qemu/{vmid}/status/shutdown", VM_POWER),
    (POST, "/nodes/{node}/qemu/{vmid}/status/reboot", VM_POWER),
    (POST, "/nodes/{node}/qemu/{vmid}/status/reset", VM_POWER),
    (GET, "/nodes/{node}/qemu/{vmid}/status/current", VM_AUDIT),
    (GET, "/nodes/{node}/qemu/{vmid}/agent/network-get-interfaces", VM_AGENT),
    (POST, "/nodes/{node}/qemu/{vmid}/agent/ping", VM_AGENT),
    // One's own tasks need nothing; others' `Sys.Audit` to read and `Sys.Modify` to stop.
    (GET, "/nodes/{node}/tasks", Check::Anyone),
    (GET, "/nodes/{node}/tasks/{upid}/status", Check::Anyone),
    (GET, "/nodes/{node}/tasks/{upid}/log", Check::Anyone),
    (DELETE, "/nodes/{node}/tasks/{upid}", Check::Anyone),
];

/// What a call needs; `None` for one this table does not know.
pub fn check_of(method: &Method, template: &str) -> Option<Check> {
    let known = CALLS.iter().find(|(known, path, _)| known == method && *path == template);
    known.map(|(_, _, check)| *check)
}

/// What a caller with these permissions lacks for a call: the reason behind a 403 that gives none.
pub fn lacking(request: &Request, version: PveVersion, held: &Permissions) -> Vec<MissingPrivilege> {
    match check_of(&request.method(), request.template()) {
        Some(check) => check.lacking(&|name| request.value_of(name), version, held),
        None => Vec::new(),
    }
}

impl Check {
    fn lacking(&self, value: &dyn Fn(&str) -> Option<String>, version: PveVersion, held: &Permissions) -> Vec<MissingPrivilege> {
        let holds = |path: &str, privilege: &Privilege| held.allows(path, privilege.name());
        let lack = |path: &str, any_of: Vec<&Privilege>| MissingPrivilege {
            path: path.to_owned(),
            any_of: any_of.into_iter().map(ToString::to_string).collect(),
        };
        match self {
            Self::Anyone => Vec::new(),
            Self::AllOf(path, privileges) => {
                let path = filled(path, value);
                privileges
                    .iter()
                    .filter(|privilege| !holds(&path, privilege))
                    .map(|privilege| lack(&path, vec![privilege]))
                    .collect()
            }
            Self::AnyOf(path, privileges) => {
                let path = filled(path, value);
                let known: Vec<&Privilege> = privileges.iter().filter(|privilege| privilege.exists_in(version)).collect();
                if known.iter().any(|privilege| holds(&path, privilege)) {
                    Vec::new()
                } else {
                    vec![lack(&path, known)]
                }
            }
            Self::Both(checks) => checks.iter().flat_map(|check| check.lacking(value, version, held)).collect(),
            // Alternatives that cannot apply (no pool given, privilege unknown to this version) are passed over; the first is advised.
            Self::Either(checks) => {
                let usable = checks.iter().filter(|check| check.is_usable(value, version));
                let lacks: Vec<Vec<MissingPrivilege>> = usable.map(|check| check.lacking(value, version, held)).collect();
                if lacks.iter().any(Vec::is_empty) {
                    Vec::new()
                } else {
                    lacks.into_iter().next().unwrap_or_default()
                }
            }
        }
    }

    fn is_usable(&self, value: &dyn Fn(&str) -> Option<String>, version: PveVersion) -> bool {
        match self {
            Self::AllOf(path, privileges) => {
                !filled(path, value).contains('{') && privileges.iter().all(|privilege| privilege.exists_in(version))
            }
            _ => true,
        }
    }
}

/// The path with the call's values in it; a value the call does not have stays as it is.
fn filled(path: &str, value: &dyn Fn(&str) -> Option<String>) -> String {
    let mut pieces = path.split('{');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once('}').unwrap_or((piece, ""));
        text += &value(name).unwrap_or_else(|| format!("{{{name}}}"));
        text += rest;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::lacking;
    use crate::calls::access::Permissions;
    use crate::calls::storage::Download;
    use crate::calls::{qemu, storage};
    use crate::config::VmConfig;
    use crate::value::{Content, PveVersion};

    fn held(json: &str) -> Permissions {
        serde_json::from_str(json).unwrap()
    }

    fn lacks(request: &crate::Request, version: PveVersion, json: &str) -> Vec<String> {
        let lacks = lacking(request, version, &held(json));
        lacks
            .into_iter()
            .map(|lack| format!("{} {}", lack.path, lack.any_of.join("|")))
            .collect()
    }

    #[test]
    fn a_bare_403_on_a_download_is_explained() {
        let download = Download {
            content: Content::Import,
            filename: "x.qcow2".to_owned(),
            url: "https://x".to_owned(),
            checksum: None,
            verify_certificates: true,
        };
        let call = storage::download(&"pve1".parse().unwrap(), &"local".parse().unwrap(), &download);
        let held = r#"{"/storage":{"Datastore.AllocateTemplate":1}}"#;
        assert_eq!(
            lacks(&call.request, PveVersion::new(9, 2), held),
            ["/nodes/pve1 Sys.AccessNetwork"]
        );
        assert_eq!(
            lacks(&call.request, PveVersion::new(8, 1), held),
            ["/ Sys.Audit", "/ Sys.Modify"]
        );
        let admin = r#"{"/":{"Sys.Audit":1,"Sys.Modify":1,"Datastore.AllocateTemplate":1}}"#;
        assert_eq!(lacks(&call.request, PveVersion::new(9, 2), admin), [""; 0]);
    }

    #[test]
    fn a_create_in_a_pool_may_take_its_right_from_the_pool() {
        let create = |pool: Option<&str>| {
            let options = qemu::CreateOptions {
                pool: pool.map(|pool| pool.parse().unwrap()),
                start: false,
            };
            qemu::create(
                &"pve1".parse().unwrap(),
                "100".parse().unwrap(),
                &VmConfig::default(),
                &options,
            )
            .request
        };
        let held = r#"{"/pool/k8s":{"VM.Allocate":1}}"#;
        assert_eq!(lacks(&create(Some("k8s")), PveVersion::new(9, 2), held), [""; 0]);
        assert_eq!(lacks(&create(None), PveVersion::new(9, 2), held), ["/vms/100 VM.Allocate"]);
    }

    #[test]
    fn only_privileges_of_the_version_are_named() {
        let ping = qemu::agent_ping(&"pve1".parse().unwrap(), "100".parse().unwrap()).request;
        assert_eq!(lacks(&ping, PveVersion::new(8, 4), "{}"), ["/vms/100 VM.Monitor"]);
        assert_eq!(
            lacks(&ping, PveVersion::new(9, 0), "{}"),
            ["/vms/100 VM.GuestAgent.Audit|VM.GuestAgent.Unrestricted"]
        );
    }
}
