//! What kind of no an answer is, by the exact texts of PVE.
//!
//! PVE has one status for nearly every failure, so the text decides. The texts are the ones seen on the real code; a text that is not
//! listed is [`Class::Other`], and nothing is done about it but showing it.

use std::collections::BTreeMap;

use crate::value::Lock;

/// What may be done about a refusal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Parameters PVE does not take: our mistake, or another version's rules.
    Invalid,
    /// The change is written, but the running guest does not take it: it is pending until a stop and start.
    Hotplug,
    /// Token or ticket not accepted. Trying again costs three seconds each time and changes nothing.
    Unauthenticated,
    /// The password was right, and the user has a second factor of which no code was given.
    SecondFactor,
    /// A privilege is missing.
    Denied,
    /// Only `root@pam` with a password may do this; no token ever can.
    RootOnly,
    /// The guest's configuration is locked by something that runs, or that was killed.
    Locked(Lock),
    /// Another task held the lock for too long. Safe to retry after looking.
    LockTimeout,
    /// The thing is not there, or not on that host.
    Missing,
    /// The id or name is taken.
    Exists,
    /// The guest runs and should not.
    Running,
    /// The guest does not run and should.
    NotRunning,
    /// A template cannot do that.
    IsTemplate,
    /// Something else still needs it.
    InUse,
    /// The VM has the protection flag. An operator set it, so mainstay never clears it.
    Protected,
    /// The file changed since it was read.
    Changed,
    /// The content is not what its checksum says.
    Corrupt,
    /// The cluster has no majority: nothing can be written.
    NoQuorum,
    StorageFull,
    /// The storage is not there, disabled, not on that host, or not for that content.
    StorageUnavailable,
    /// The host named in the path is none of the cluster's.
    UnknownHost,
    /// The host exists and does not answer.
    HostUnreachable,
    /// The guest did not react in time.
    GuestTimeout,
    /// The VM has no guest agent port.
    AgentOff,
    /// The guest agent does not answer (yet).
    AgentSilent,
    /// A user stopped the task, or its process died.
    Interrupted,
    /// The host could not start a process for the task. Safe to try again.
    Busy,
    /// This PVE cannot do that, or not like that.
    Unsupported,
    /// Any other text.
    Other,
}

impl Class {
    /// Whether the same request may succeed a little later without a change on either side.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::LockTimeout | Self::Busy | Self::HostUnreachable | Self::AgentSilent
        )
    }

    pub(crate) fn of_answer(status: u16, message: &str, fields: &BTreeMap<String, String>) -> Self {
        match status {
            400 => fields.values().find_map(|text| by_field(text)).unwrap_or(Self::Invalid),
            401 => Self::Unauthenticated,
            // A pool that does not exist is refused as if it were a matter of rights.
            403 if message.contains("' does not exist)") => Self::Missing,
            403 => Self::Denied,
            501 | 506 => Self::Unsupported,
            595..=599 => Self::HostUnreachable,
            _ => by_text(message),
        }
    }

    /// Of a task's exit status.
    pub fn of_task(exitstatus: &str) -> Self {
        by_text(exitstatus)
    }
}

/// Parameter errors that are about the world rather than about the parameter.
fn by_field(text: &str) -> Option<Class> {
    let text = text.trim_end();
    match text {
        "no such task" | "interface does not exist" => Some(Class::Missing),
        "Token already exists." => Some(Class::Exists),
        "No such storage." => Some(Class::StorageUnavailable),
        "Only root may use this option." => Some(Class::RootOnly),
        _ if text.starts_with("VM ") && text.ends_with(" already exists") => Some(Class::Exists),
        _ if text.starts_with("hotplug problem - ") => Some(Class::Hotplug),
        _ if text.contains("does not support vm images") => Some(Class::StorageUnavailable),
        _ => None,
    }
}

fn by_text(text: &str) -> Class {
    if let Some(lock) = between(text, "VM is locked (", ")") {
        return Class::Locked(Lock::from(lock));
    }
    let listed = TEXTS
        .iter()
        .find(|(patterns, _)| patterns.iter().all(|pattern| text.contains(pattern)));
    listed.map_or(Class::Other, |(_, class)| class.clone())
}

/// First match wins: a text with all the patterns of a row is of its class. The more particular texts stand first.
const TEXTS: &[(&[&str], Class)] = &[
    // A stopped task also reports the call that the signal cut off. The cause is the interruption, so this text is looked for first.
    (&["received interrupt"], Class::Interrupted),
    (&["interrupted by signal"], Class::Interrupted),
    (&["unexpected status"], Class::Interrupted),
    // What the guest says is not about PVE.
    (&["Agent error: "], Class::Other),
    // Permission errors inside a worker carry their status in front.
    (&["403 Permission check failed"], Class::Denied),
    (&["Permission check failed"], Class::Denied),
    (&["400 Parameter verification failed."], Class::Invalid),
    (&["only root can "], Class::RootOnly),
    (&["Only root can pass"], Class::RootOnly),
    (&["no quorum"], Class::NoQuorum),
    // Without quorum the cluster's file system is read-only.
    (&["unable to open file '/etc/pve/", "Permission denied"], Class::NoQuorum),
    (&["VM quit/powerdown failed"], Class::GuestTimeout),
    (&["- got timeout"], Class::LockTimeout),
    (&["got lock request timeout"], Class::LockTimeout),
    (&["-locked command timed out"], Class::LockTimeout),
    (&["got no worker upid"], Class::Busy),
    (&["starting worker failed"], Class::Busy),
    (&["checksum mismatch (file change"], Class::Changed),
    (&["detected modified configuration"], Class::Changed),
    (&["checksum mismatch: got"], Class::Corrupt),
    (&["Image is not in "], Class::Corrupt),
    (&["backing file not allowed"], Class::Corrupt),
    (&["No space left on device"], Class::StorageFull),
    (&["no space left"], Class::StorageFull),
    (&["out of space"], Class::StorageFull),
    (&["protection mode enabled"], Class::Protected),
    (&["is still in use by linked clone"], Class::InUse),
    (&["used in HA resources"], Class::InUse),
    (&["is already a pool member"], Class::InUse),
    (&["belongs already to pool"], Class::InUse),
    (&["pool '", "' is not empty"], Class::InUse),
    (&["already exists"], Class::Exists),
    (&["already defined"], Class::Exists),
    (&["already used"], Class::Exists),
    (&["File exists"], Class::Exists),
    (&["refusing to override existing file"], Class::Exists),
    (&["cloud-init drive is already attached"], Class::Exists),
    (&["hostname lookup '"], Class::UnknownHost),
    (&["no such cluster node"], Class::UnknownHost),
    (&["cannot use non-existent node"], Class::UnknownHost),
    (&["No QEMU guest agent configured"], Class::AgentOff),
    (&["QEMU guest agent is not running"], Class::AgentSilent),
    (&["VM ", " already running"], Class::Running),
    (&["is running - destroy failed"], Class::Running),
    (&["if VM is running"], Class::Running),
    (&["can't migrate running VM"], Class::Running),
    (&["VM ", " not running"], Class::NotRunning),
    (&["if it's a template"], Class::IsTemplate),
    (&["can't convert a template to a template"], Class::IsTemplate),
    (&["storage '", "' is disabled"], Class::StorageUnavailable),
    (&["is not available on node"], Class::StorageUnavailable),
    (&["storage '", "' does not exist"], Class::StorageUnavailable),
    (&["does not support '", "' content"], Class::StorageUnavailable),
    (&["is not configured for content-type"], Class::StorageUnavailable),
    (&["can't clone to non-shared storage"], Class::StorageUnavailable),
    (&["(VM uses local storage)"], Class::StorageUnavailable),
    (&["invalid bootorder: device"], Class::Invalid),
    (&["does not exist"], Class::Missing),
    (&["unable to find configuration file for VM"], Class::Missing),
    (&["No such file or directory"], Class::Missing),
    (&["no such "], Class::Missing),
    (&["failed to stat '"], Class::Missing),
    (&["volume_size_info on '", "failed - no format"], Class::Missing),
    (&["invalid server response: '404"], Class::Missing),
    (&["cannot use unmanaged resource"], Class::Missing),
    (&["not HA managed"], Class::Missing),
    (&["feature is not supported"], Class::Unsupported),
    (&["feature is not available"], Class::Unsupported),
    (&["not allowed for linked clones"], Class::Unsupported),
    (&["decompression not supported"], Class::Unsupported),
    (&["no decompression method found"], Class::Unsupported),
    (&["ha groups have been migrated to rules"], Class::Unsupported),
    (&["shrinking disks is not supported"], Class::Unsupported),
    (&["you can't resize a cdrom"], Class::Unsupported),
    (&["because VM contains snapshots"], Class::Unsupported),
    (&["unable to parse value of"], Class::Invalid),
    (&["unable to parse volume ID"], Class::Invalid),
    (&["balloon value too large"], Class::Invalid),
    (&["no options specified"], Class::Invalid),
    (&["SSH public key validation error"], Class::Invalid),
    (&["(reserved name)"], Class::Invalid),
    (&["missing value for required option"], Class::Invalid),
];

/// What a `Permission check failed (<path>, <privilege>|<privilege>)` says: one of the privileges is needed on the path.
///
/// With several missing, PVE names any one of them. It names none where several ways to be allowed exist.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingPrivilege {
    pub path: String,
    pub any_of: Vec<String>,
}

impl MissingPrivilege {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (path, privileges) = between(text, "Permission check failed (", ")")?.split_once(", ")?;
        // `Sys.Modify for modifying tag 'a'`: the privilege is the first word.
        let any_of: Vec<String> = privileges.split(' ').next()?.split('|').map(str::to_owned).collect();
        let named = path.starts_with('/') && any_of.iter().all(|name| name.contains('.'));
        named.then(|| Self {
            path: path.to_owned(),
            any_of,
        })
    }
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    rest.split_once(end).map(|(inner, _)| inner)
}

#[cfg(test)]
mod tests {
    use super::{Class, MissingPrivilege};
    use crate::value::Lock;

    #[test]
    fn the_missing_privilege_and_its_path_are_read_from_the_text() {
        let privilege =
            MissingPrivilege::parse("unable to create VM 102 - 403 Permission check failed (/vms/102, VM.Config.Options)")
                .unwrap();
        assert_eq!(
            (privilege.path.as_str(), privilege.any_of),
            ("/vms/102", vec!["VM.Config.Options".to_owned()])
        );
        let either =
            MissingPrivilege::parse("Permission check failed (/storage/local, Datastore.Audit|Datastore.AllocateSpace)").unwrap();
        assert_eq!(either.any_of, ["Datastore.Audit", "Datastore.AllocateSpace"]);
        let tag = MissingPrivilege::parse("Permission check failed (/, Sys.Modify for modifying tag 'a')").unwrap();
        assert_eq!(tag.any_of, ["Sys.Modify"]);
    }

    #[test]
    fn a_403_that_names_no_privilege_yields_none() {
        for text in [
            "Permission check failed",
            "Permission check failed (user != root@pam)",
            "Permission check failed (pool 'x' does not exist)",
            "Permission check failed (, Pool.Audit)",
            "Permission check failed (URI '/access/ticket' not available with API token, need proper ticket.",
        ] {
            assert_eq!(MissingPrivilege::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_lock_is_read_from_the_text() {
        assert_eq!(
            Class::of_task("VM is locked (snapshot-delete)"),
            Class::Locked(Lock::SnapshotDelete)
        );
        assert_eq!(
            Class::of_task("clone failed: VM is locked (odd)"),
            Class::Locked(Lock::Other("odd".to_owned()))
        );
    }

    #[test]
    fn texts_that_were_only_read_in_the_source_have_their_class() {
        for (text, class) in [
            ("got no worker upid - start worker failed", Class::Busy),
            ("starting worker failed: unable to fork", Class::Busy),
            (
                "clone failed: 'storage-ceph'-locked command timed out - aborting",
                Class::LockTimeout,
            ),
            (
                "detected modified configuration - file changed by other user? Try again.",
                Class::Changed,
            ),
            (
                "unable to find configuration file for VM 8000 on node 'pve02'",
                Class::Missing,
            ),
            ("start failed: no such logical volume pve/vm-100-disk-0", Class::Missing),
            (
                "can't clone VM to node 'pve2' (VM uses local storage)",
                Class::StorageUnavailable,
            ),
            (
                "storage 'local' is not configured for content-type 'import'",
                Class::StorageUnavailable,
            ),
            (
                "update pools failed: VM 212 belongs already to pool 'a' and 'allow-move' is not set",
                Class::InUse,
            ),
            ("delete pool failed: pool 'a' is not empty", Class::InUse),
            ("unexpected status", Class::Interrupted),
        ] {
            assert_eq!(Class::of_task(text), class, "{text}");
        }
    }

    #[test]
    fn a_text_that_is_not_listed_is_other() {
        assert_eq!(Class::of_task("the moon is full"), Class::Other);
    }
}
