//! Privileges and built-in roles, by major version.

use std::collections::{BTreeMap, BTreeSet};

struct Category {
    name: &'static str,
    root: &'static [&'static str],
    admin: &'static [&'static str],
    user: &'static [&'static str],
    audit: &'static [&'static str],
}

const SINCE_9: &[&str] = &[
    "VM.GuestAgent.Audit",
    "VM.GuestAgent.FileRead",
    "VM.GuestAgent.FileSystemMgmt",
    "VM.GuestAgent.FileWrite",
    "VM.GuestAgent.Unrestricted",
    "VM.Replicate",
];
const UNTIL_8: &[&str] = &["VM.Monitor"];

const CATEGORIES: &[Category] = &[
    Category {
        name: "VM",
        root: &[],
        admin: &[
            "VM.Config.Disk",
            "VM.Config.CPU",
            "VM.Config.Memory",
            "VM.Config.Network",
            "VM.Config.HWType",
            "VM.Config.Options",
            "VM.Allocate",
            "VM.Clone",
            "VM.Migrate",
            "VM.Monitor",
            "VM.Snapshot",
            "VM.Snapshot.Rollback",
            "VM.GuestAgent.Unrestricted",
            "VM.Replicate",
        ],
        user: &[
            "VM.Config.CDROM",
            "VM.Config.Cloudinit",
            "VM.Console",
            "VM.Backup",
            "VM.PowerMgmt",
            "VM.GuestAgent.FileRead",
            "VM.GuestAgent.FileWrite",
            "VM.GuestAgent.FileSystemMgmt",
        ],
        audit: &["VM.Audit", "VM.GuestAgent.Audit"],
    },
    Category {
        name: "Sys",
        root: &["Sys.PowerMgmt", "Sys.Modify", "Sys.Incoming", "Sys.AccessNetwork"],
        admin: &["Sys.Console", "Sys.Syslog"],
        user: &[],
        audit: &["Sys.Audit"],
    },
    Category {
        name: "Datastore",
        root: &[],
        admin: &["Datastore.Allocate", "Datastore.AllocateTemplate"],
        user: &["Datastore.AllocateSpace"],
        audit: &["Datastore.Audit"],
    },
    Category {
        name: "SDN",
        root: &[],
        admin: &["SDN.Allocate"],
        user: &["SDN.Use"],
        audit: &["SDN.Audit"],
    },
    Category {
        name: "User",
        root: &["Realm.Allocate"],
        admin: &["User.Modify", "Group.Allocate", "Realm.AllocateUser"],
        user: &[],
        audit: &[],
    },
    Category {
        name: "Pool",
        root: &[],
        admin: &["Pool.Allocate"],
        user: &["Pool.Audit"],
        audit: &["Pool.Audit"],
    },
    Category {
        name: "Mapping",
        root: &[],
        admin: &["Mapping.Modify"],
        user: &["Mapping.Use"],
        audit: &["Mapping.Audit"],
    },
];

fn exists(privilege: &str, major: u32) -> bool {
    if major >= 9 {
        !UNTIL_8.contains(&privilege)
    } else {
        !SINCE_9.contains(&privilege)
    }
}

/// All privileges of a major version.
pub fn privileges(major: u32) -> BTreeSet<String> {
    let listed = CATEGORIES
        .iter()
        .flat_map(|c| [c.root, c.admin, c.user, c.audit])
        .flatten()
        .copied();
    listed
        .filter(|p| exists(p, major))
        .chain(["Permissions.Modify"])
        .map(Into::into)
        .collect()
}

/// Whether any version knows the privilege; which ones a datacenter takes is checked with its version.
pub fn is_privilege(name: &str) -> bool {
    name == "Permissions.Modify"
        || CATEGORIES
            .iter()
            .flat_map(|c| [c.root, c.admin, c.user, c.audit])
            .flatten()
            .any(|p| *p == name)
}

pub(super) fn builtin(major: u32) -> BTreeMap<&'static str, BTreeSet<String>> {
    let mut roles: BTreeMap<&'static str, BTreeSet<String>> = BTreeMap::new();
    let mut grant = |role: &'static str, groups: &[&[&str]]| {
        let privileges = groups
            .iter()
            .copied()
            .flatten()
            .filter(|p| exists(p, major))
            .map(|p| (*p).to_string());
        roles.entry(role).or_default().extend(privileges);
    };
    for category in CATEGORIES {
        let (admin, user) = role_names(category.name);
        grant(admin, &[category.admin, category.user, category.audit]);
        grant("PVEAdmin", &[category.admin, category.user, category.audit]);
        if !category.user.is_empty() {
            grant(user, &[category.user, category.audit]);
        }
        grant("PVEAuditor", &[category.audit]);
    }
    grant("PVETemplateUser", &[&["VM.Clone", "VM.Audit"]]);
    grant("NoAccess", &[]);
    roles.insert("Administrator", privileges(major));
    if let Some(admin) = roles.get_mut("PVEAdmin") {
        admin.remove("Mapping.Modify");
    }
    roles
}

fn role_names(category: &str) -> (&'static str, &'static str) {
    match category {
        "VM" => ("PVEVMAdmin", "PVEVMUser"),
        "Sys" => ("PVESysAdmin", "PVESysUser"),
        "Datastore" => ("PVEDatastoreAdmin", "PVEDatastoreUser"),
        "SDN" => ("PVESDNAdmin", "PVESDNUser"),
        "User" => ("PVEUserAdmin", "PVEUserUser"),
        "Pool" => ("PVEPoolAdmin", "PVEPoolUser"),
        _ => ("PVEMappingAdmin", "PVEMappingUser"),
    }
}

#[cfg(test)]
mod tests {
    use super::{builtin, privileges};

    #[test]
    fn the_agent_privilege_changed_with_version_9() {
        assert!(privileges(8).contains("VM.Monitor") && !privileges(9).contains("VM.Monitor"));
        assert!(builtin(9)["PVEAuditor"].contains("VM.GuestAgent.Audit"));
        assert!(!builtin(8)["PVEVMUser"].contains("VM.GuestAgent.FileRead"));
    }

    #[test]
    fn an_admin_below_root_may_not_modify_mappings() {
        assert!(!builtin(9)["PVEAdmin"].contains("Mapping.Modify") && builtin(9)["PVEMappingAdmin"].contains("Mapping.Modify"));
    }
}
