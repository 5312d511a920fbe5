//! The lock in a guest's configuration.

use super::open::open_enum;

open_enum! {
    /// What holds a guest: `VM is locked (<lock>)`. It stays behind when its task is killed; only root can take it away.
    Lock {
        Backup = "backup",
        Clone = "clone",
        Create = "create",
        Destroyed = "destroyed",
        Import = "import",
        Migrate = "migrate",
        Rollback = "rollback",
        Snapshot = "snapshot",
        SnapshotDelete = "snapshot-delete",
        Suspended = "suspended",
        Suspending = "suspending",
    }
}

#[cfg(test)]
mod tests {
    use super::Lock;

    #[test]
    fn a_lock_of_a_later_pve_keeps_its_name() {
        assert_eq!(Lock::from("snapshot-delete"), Lock::SnapshotDelete);
        assert_eq!(Lock::from("thawing").to_string(), "thawing");
    }
}
