//! Who may call what.

use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Admin,
    Operator,
    Reader,
    EtcdBackup,
    ImageVerifier,
    MetaWriter,
    Impersonator,
}

/// Roles of a caller, as its certificate names them. Unknown ones grant nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles(BTreeSet<Role>);

impl Roles {
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let role = |name: &str| {
            Some(match name {
                "os:admin" => Role::Admin,
                "os:operator" => Role::Operator,
                "os:reader" => Role::Reader,
                "os:etcd:backup" => Role::EtcdBackup,
                "os:image:verifier" => Role::ImageVerifier,
                "os:meta:writer" => Role::MetaWriter,
                "os:impersonator" => Role::Impersonator,
                _ => return None,
            })
        };
        Self(names.into_iter().filter_map(role).collect())
    }

    /// What every peer has while the node is not configured.
    pub fn reader() -> Self {
        Self(BTreeSet::from([Role::Reader]))
    }

    pub fn has(&self, role: Role) -> bool {
        self.0.contains(&role)
    }

    pub fn may_call(&self, path: &str) -> bool {
        rule(path).iter().any(|role| self.has(*role))
    }
}

const ADMIN: &[Role] = &[Role::Admin];
const OPERATE: &[Role] = &[Role::Admin, Role::Operator];
const READ: &[Role] = &[Role::Admin, Role::Operator, Role::Reader];
const ETCD: &[Role] = &[Role::Admin, Role::Operator, Role::Reader, Role::EtcdBackup];
const BACKUP: &[Role] = &[Role::Admin, Role::Operator, Role::EtcdBackup];
const META: &[Role] = &[Role::Admin, Role::MetaWriter];

/// A method without a rule needs os:admin.
fn rule(path: &str) -> &'static [Role] {
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or((path, ""));
    match (service, method) {
        ("machine.MachineService", "ApplyConfiguration") => &[Role::Admin, Role::Reader],
        (
            "machine.MachineService",
            "Containers" | "CPUFreqStats" | "CPUInfo" | "DiskStats" | "Dmesg" | "Events" | "Hostname" | "List" | "DiskUsage"
            | "LoadAvg" | "Logs" | "LogsContainers" | "Memory" | "Mounts" | "NetworkDeviceStats" | "Processes" | "ServiceList"
            | "Stats" | "SystemStat" | "Version" | "Netstat" | "ImageList",
        ) => READ,
        ("machine.MachineService", "EtcdMemberList" | "EtcdAlarmList" | "EtcdStatus") => ETCD,
        ("machine.MachineService", "EtcdSnapshot") => BACKUP,
        (
            "machine.MachineService",
            "EtcdAlarmDisarm" | "EtcdDefragment" | "Reboot" | "Restart" | "ServiceRestart" | "ServiceStart" | "ServiceStop"
            | "Shutdown" | "PacketCapture" | "ImagePull",
        ) => OPERATE,
        ("machine.MachineService", "MetaWrite" | "MetaDelete") => META,
        ("machine.ImageService", "List") => READ,
        ("machine.ImageService", "Pull") => OPERATE,
        ("machine.ImageService", "Verify") => &[Role::Admin, Role::Operator, Role::Reader, Role::ImageVerifier],
        ("storage.StorageService", "Disks")
        | ("time.TimeService" | "inspect.InspectService", _)
        | ("cluster.ClusterService", "HealthCheck") => READ,
        ("storage.StorageService", "BlockDeviceWipe") => &[Role::Admin, Role::Reader],
        ("cosi.resource.State", "Get" | "List" | "Watch") => READ,
        _ => ADMIN,
    }
}
