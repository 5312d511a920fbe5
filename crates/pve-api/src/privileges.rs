//! Privileges by PVE version, what a purpose needs, and which call needs which.

mod call;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

pub use call::{Check, check_of, lacking};

use crate::calls::access::Permissions;
use crate::value::{Host, PoolId, PveVersion, StorageId, ValueError};

macro_rules! privileges {
    ($($variant:ident = $name:literal,)+) => {
        /// What a role may hold.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Privilege { $($variant,)+ }

        impl Privilege {
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

privileges! {
    DatastoreAllocate = "Datastore.Allocate",
    DatastoreAllocateSpace = "Datastore.AllocateSpace",
    DatastoreAllocateTemplate = "Datastore.AllocateTemplate",
    DatastoreAudit = "Datastore.Audit",
    GroupAllocate = "Group.Allocate",
    MappingAudit = "Mapping.Audit",
    MappingModify = "Mapping.Modify",
    MappingUse = "Mapping.Use",
    PermissionsModify = "Permissions.Modify",
    PoolAllocate = "Pool.Allocate",
    PoolAudit = "Pool.Audit",
    RealmAllocate = "Realm.Allocate",
    RealmAllocateUser = "Realm.AllocateUser",
    SdnAllocate = "SDN.Allocate",
    SdnAudit = "SDN.Audit",
    SdnUse = "SDN.Use",
    SysAccessNetwork = "Sys.AccessNetwork",
    SysAudit = "Sys.Audit",
    SysConsole = "Sys.Console",
    SysIncoming = "Sys.Incoming",
    SysModify = "Sys.Modify",
    SysPowerMgmt = "Sys.PowerMgmt",
    SysSyslog = "Sys.Syslog",
    UserModify = "User.Modify",
    VmAllocate = "VM.Allocate",
    VmAudit = "VM.Audit",
    VmBackup = "VM.Backup",
    VmClone = "VM.Clone",
    VmConfigCdrom = "VM.Config.CDROM",
    VmConfigCloudinit = "VM.Config.Cloudinit",
    VmConfigCpu = "VM.Config.CPU",
    VmConfigDisk = "VM.Config.Disk",
    VmConfigHwType = "VM.Config.HWType",
    VmConfigMemory = "VM.Config.Memory",
    VmConfigNetwork = "VM.Config.Network",
    VmConfigOptions = "VM.Config.Options",
    VmConsole = "VM.Console",
    VmGuestAgentAudit = "VM.GuestAgent.Audit",
    VmGuestAgentFileRead = "VM.GuestAgent.FileRead",
    VmGuestAgentFileSystemMgmt = "VM.GuestAgent.FileSystemMgmt",
    VmGuestAgentFileWrite = "VM.GuestAgent.FileWrite",
    VmGuestAgentUnrestricted = "VM.GuestAgent.Unrestricted",
    VmMigrate = "VM.Migrate",
    VmMonitor = "VM.Monitor",
    VmPowerMgmt = "VM.PowerMgmt",
    VmReplicate = "VM.Replicate",
    VmSnapshot = "VM.Snapshot",
    VmSnapshotRollback = "VM.Snapshot.Rollback",
}

impl Privilege {
    /// A role with a privilege its PVE does not know is refused as a whole.
    pub fn exists_in(self, version: PveVersion) -> bool {
        match self {
            Self::VmMonitor => version < PveVersion::new(9, 0),
            Self::VmGuestAgentAudit
            | Self::VmGuestAgentFileRead
            | Self::VmGuestAgentFileSystemMgmt
            | Self::VmGuestAgentFileWrite
            | Self::VmGuestAgentUnrestricted
            | Self::VmReplicate => version >= PveVersion::new(9, 0),
            Self::SysAccessNetwork => version >= PveVersion::new(8, 2),
            Self::SdnUse | Self::MappingAudit | Self::MappingModify | Self::MappingUse => version >= PveVersion::new(8, 0),
            _ => true,
        }
    }
}

impl fmt::Display for Privilege {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Privilege {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let known = Self::ALL.iter().copied().find(|privilege| privilege.name() == text);
        known.ok_or_else(|| ValueError::new("a privilege", text))
    }
}

/// Which guests rights are for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    All,
    Pool(PoolId),
}

impl Scope {
    fn path(&self) -> String {
        match self {
            Self::All => "/vms".to_owned(),
            Self::Pool(pool) => format!("/pool/{pool}"),
        }
    }
}

/// Something a caller wants to be able to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// See hosts, their load and the quorum.
    Inventory,
    /// Create, configure, start, stop and delete VMs.
    Machines(Scope),
    /// Give VMs a place in PVE's own start and shutdown order.
    StartupOrder,
    /// Clone templates, which lie in this scope.
    Clone(Scope),
    /// Read addresses from the guest agent.
    AgentAddresses(Scope),
    /// Put disks on a storage and see what is free on it.
    Disks(StorageId),
    /// Put images on a storage by download or upload, and see them.
    Images { storage: StorageId, hosts: Vec<Host> },
    /// Delete images from a storage.
    DeleteImages(StorageId),
    /// See and attach NICs to a bridge or virtual network. Plain bridges are in the zone `localnetwork`.
    Bridge {
        zone: String,
        bridge: String,
        vlan: Option<u16>,
    },
    /// Create and delete the pool itself.
    Pool(PoolId),
}

/// Privileges on a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    pub path: String,
    /// Whether they reach below the path.
    pub propagate: bool,
    pub privileges: BTreeSet<Privilege>,
}

/// The zone of bridges that belong to no software-defined network.
pub const LOCAL_ZONE: &str = "localnetwork";

const MACHINES: [Privilege; 11] = [
    Privilege::VmAllocate,
    Privilege::VmAudit,
    Privilege::VmConfigCdrom,
    Privilege::VmConfigCloudinit,
    Privilege::VmConfigCpu,
    Privilege::VmConfigDisk,
    Privilege::VmConfigHwType,
    Privilege::VmConfigMemory,
    Privilege::VmConfigNetwork,
    Privilege::VmConfigOptions,
    Privilege::VmPowerMgmt,
];

impl Purpose {
    /// The least that serves the purpose, by path; whether it propagates; one list of privileges per path.
    fn needs(&self, version: PveVersion) -> Vec<(String, bool, Vec<Privilege>)> {
        use Privilege as P;
        match self {
            // Without propagation: the quorum is read on `/`, and mainstay reads nothing below it.
            Self::Inventory => {
                vec![
                    ("/".to_owned(), false, vec![P::SysAudit]),
                    ("/nodes".to_owned(), true, vec![P::SysAudit]),
                ]
            }
            Self::Machines(scope) => vec![(scope.path(), true, MACHINES.to_vec())],
            Self::StartupOrder => vec![("/".to_owned(), false, vec![P::SysModify])],
            Self::Clone(scope) => vec![(scope.path(), true, vec![P::VmAudit, P::VmClone])],
            Self::AgentAddresses(scope) => vec![(scope.path(), true, vec![agent_audit(version)])],
            Self::Disks(storage) => {
                vec![(
                    format!("/storage/{storage}"),
                    true,
                    vec![P::DatastoreAllocateSpace, P::DatastoreAudit],
                )]
            }
            Self::Images { storage, hosts } => {
                let storage = (
                    format!("/storage/{storage}"),
                    true,
                    vec![P::DatastoreAllocateTemplate, P::DatastoreAudit],
                );
                std::iter::once(storage).chain(network_access(hosts, version)).collect()
            }
            Self::DeleteImages(storage) => vec![(format!("/storage/{storage}"), true, vec![P::DatastoreAllocate])],
            Self::Bridge { zone, bridge, vlan } => {
                let vlan = vlan.map(|vlan| format!("/{vlan}")).unwrap_or_default();
                vec![(format!("/sdn/zones/{zone}/{bridge}{vlan}"), true, vec![P::SdnUse])]
            }
            Self::Pool(pool) => vec![(format!("/pool/{pool}"), true, vec![P::PoolAllocate, P::PoolAudit])],
        }
    }
}

fn agent_audit(version: PveVersion) -> Privilege {
    if Privilege::VmMonitor.exists_in(version) {
        Privilege::VmMonitor
    } else {
        Privilege::VmGuestAgentAudit
    }
}

/// Hosts fetch URLs themselves. Before 8.2 that took rights over the whole datacenter.
fn network_access(hosts: &[Host], version: PveVersion) -> Vec<(String, bool, Vec<Privilege>)> {
    if !Privilege::SysAccessNetwork.exists_in(version) {
        return vec![("/".to_owned(), false, vec![Privilege::SysAudit, Privilege::SysModify])];
    }
    hosts
        .iter()
        .map(|host| (format!("/nodes/{host}"), true, vec![Privilege::SysAccessNetwork]))
        .collect()
}

/// The least grants that serve all purposes, one per path.
///
/// An entry on a path replaces what reaches it from above, so that a deeper path also gets what its parents grant with propagation.
pub fn needed<'a>(purposes: impl IntoIterator<Item = &'a Purpose>, version: PveVersion) -> Vec<Grant> {
    let mut grants: BTreeMap<String, Grant> = BTreeMap::new();
    for (path, propagate, privileges) in purposes.into_iter().flat_map(|purpose| purpose.needs(version)) {
        let grant = grants.entry(path.clone()).or_insert(Grant {
            path,
            propagate: false,
            privileges: BTreeSet::new(),
        });
        grant.propagate |= propagate;
        grant.privileges.extend(privileges);
    }
    let inherited: Vec<Grant> = grants.values().filter(|grant| grant.propagate).cloned().collect();
    for grant in grants.values_mut() {
        let above = inherited.iter().filter(|above| is_below(&grant.path, &above.path));
        grant
            .privileges
            .extend(above.flat_map(|above| above.privileges.iter().copied()));
    }
    grants.into_values().map(|grant| grant.existing_in(version)).collect()
}

fn is_below(path: &str, above: &str) -> bool {
    path != above && (above == "/" || path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/')))
}

impl Grant {
    fn existing_in(mut self, version: PveVersion) -> Self {
        self.privileges.retain(|privilege| privilege.exists_in(version));
        self
    }

    /// What of this grant is not held.
    pub fn missing(&self, held: &Permissions) -> Option<Self> {
        let lacks = |privilege: &&Privilege| !held.allows(&self.path, privilege.name());
        let privileges: BTreeSet<Privilege> = self.privileges.iter().filter(lacks).copied().collect();
        (!privileges.is_empty()).then(|| Self {
            path: self.path.clone(),
            propagate: self.propagate,
            privileges,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Grant, LOCAL_ZONE, Privilege, Purpose, Scope, needed};
    use crate::calls::access::Permissions;
    use crate::value::PveVersion;

    const V84: PveVersion = PveVersion::new(8, 4);
    const V92: PveVersion = PveVersion::new(9, 2);

    fn printed(grants: &[Grant]) -> Vec<String> {
        let names = |grant: &Grant| grant.privileges.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        grants
            .iter()
            .map(|grant| format!("{} {} {}", grant.path, u8::from(grant.propagate), names(grant)))
            .collect()
    }

    #[test]
    fn agent_addresses_need_another_privilege_since_nine() {
        let purpose = [Purpose::AgentAddresses(Scope::All)];
        assert_eq!(printed(&needed(&purpose, V84)), ["/vms 1 VM.Monitor"]);
        assert_eq!(printed(&needed(&purpose, V92)), ["/vms 1 VM.GuestAgent.Audit"]);
    }

    #[test]
    fn purposes_on_one_path_become_one_grant() {
        let local = "local".parse().unwrap();
        let purposes = [
            Purpose::Images {
                storage: "local".parse().unwrap(),
                hosts: vec!["pve1".parse().unwrap()],
            },
            Purpose::DeleteImages(local),
            Purpose::Inventory,
            Purpose::Bridge {
                zone: LOCAL_ZONE.to_owned(),
                bridge: "vmbr0".to_owned(),
                vlan: Some(20),
            },
        ];
        // The host's own entry hides `/nodes`, and so repeats it.
        assert_eq!(
            printed(&needed(&purposes, V92)),
            [
                "/ 0 Sys.Audit",
                "/nodes 1 Sys.Audit",
                "/nodes/pve1 1 Sys.AccessNetwork Sys.Audit",
                "/sdn/zones/localnetwork/vmbr0/20 1 SDN.Use",
                "/storage/local 1 Datastore.Allocate Datastore.AllocateTemplate Datastore.Audit",
            ]
        );
    }

    #[test]
    fn a_download_before_eight_two_needs_rights_on_everything() {
        let purpose = [Purpose::Images {
            storage: "local".parse().unwrap(),
            hosts: vec!["pve1".parse().unwrap()],
        }];
        let old = needed(&purpose, PveVersion::new(8, 1));
        assert_eq!(printed(&old)[0], "/ 0 Sys.Audit Sys.Modify");
    }

    #[test]
    fn what_is_held_is_not_missing() {
        let held: Permissions = serde_json::from_str(r#"{"/storage":{"Datastore.AllocateSpace":1}}"#).unwrap();
        let grant = &needed(&[Purpose::Disks("fast".parse().unwrap())], V92)[0];
        assert_eq!(printed(&[grant.missing(&held).unwrap()]), ["/storage/fast 1 Datastore.Audit"]);
    }

    #[test]
    fn every_name_is_read_back() {
        for privilege in Privilege::ALL {
            assert_eq!(privilege.name().parse::<Privilege>(), Ok(*privilege));
        }
        assert!("VM.Fly".parse::<Privilege>().is_err());
    }
}
