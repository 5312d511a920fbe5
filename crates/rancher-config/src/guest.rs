//! The guest's side: files to write, commands to run, and what their answers mean.
//!
//! Long work runs as a systemd unit of the guest and leaves its result in a file, so that a connection that breaks, or an operator that
//! goes away, costs nothing. Everything else is one probe per machine and round.

mod commands;
mod files;
mod probe;

use std::fmt;
use std::time::Duration;

use zeroize::Zeroizing;

pub use self::commands::{
    activate, directories, forget_found, journal, may_found, note_pending_restart, probe, pushed_state, receive_artifact,
    restart_unit, run_work, start_unit, unit_status, wipe_unready_founder,
};
pub use self::files::{
    ArtifactKind, ArtifactOrigin, DataDisk, GuestInput, PinnedArtifact, authority_files, config_file, guest_files,
};
pub use self::probe::{
    CLOCK_LIMIT, Changes, CloudInit, DataState, FileState, JoinState, Probe, ProbeError, UnitReport, UnitState, WorkResult,
    serves_our_authority,
};

/// Work that runs as a unit of the guest. Its result file tells which input it was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Kernel modules, sysctls, swap, root growth, data disks.
    Prepare,
    /// Download, verify, unpack. Activates nothing.
    Fetch,
    /// Packages by apt, best effort, after the server has started.
    Packages,
}

impl Work {
    pub const ALL: [Self; 3] = [Self::Prepare, Self::Fetch, Self::Packages];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Fetch => "fetch",
            Self::Packages => "packages",
        }
    }

    pub fn unit(self) -> String {
        format!("mainstay-{}.service", self.name())
    }

    /// The file that tells the work what to do.
    pub fn input_path(self) -> String {
        format!("{}/{}.input", paths::STATE, self.name())
    }
}

/// A file that is written as root, whole or not at all.
#[derive(Clone, PartialEq, Eq)]
pub struct GuestFile {
    pub path: String,
    pub mode: u32,
    pub content: Zeroizing<String>,
    /// The content must not reach logs, plans or a diff.
    pub secret: bool,
}

impl GuestFile {
    fn public(path: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            mode: 0o644,
            content: Zeroizing::new(content.into()),
            secret: false,
        }
    }

    fn program(path: impl Into<String>, content: &str) -> Self {
        Self {
            mode: 0o755,
            ..Self::public(path, content)
        }
    }

    fn secret(path: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            mode: 0o600,
            secret: true,
            ..Self::public(path, content)
        }
    }

    /// Whether the server or agent reads this file only when it starts.
    pub fn needs_restart(&self) -> bool {
        let is_config = self.path.starts_with("/etc/rancher/") && !self.path.ends_with("/resolv.conf");
        let units = ["rke2-", "k3s"].map(|name| format!("/etc/systemd/system/{name}"));
        is_config || units.iter().any(|unit| self.path.starts_with(unit.as_str()))
    }

    /// The hash that a probe reports for this file once it is written.
    pub fn sha256(&self) -> String {
        use sha2::Digest;
        hex::encode(sha2::Sha256::digest(self.content.as_bytes()))
    }
}

impl fmt::Debug for GuestFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestFile")
            .field("path", &self.path)
            .field("mode", &format_args!("{:04o}", self.mode))
            .field("secret", &self.secret)
            .finish_non_exhaustive()
    }
}

/// A POSIX shell script that runs as root, with its arguments. Neither contains a secret: sudo logs command lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestCommand {
    /// What it is called in errors.
    pub name: &'static str,
    pub script: String,
    pub arguments: Vec<String>,
    pub timeout: Duration,
}

/// The exit code of a command that did not run because another one holds the guest's lock.
pub const LOCKED: u32 = 75;

/// There while changed files wait for a restart of the unit.
pub const RESTART_PENDING: &str = paths::RESTART_PENDING;

pub(crate) mod paths {
    //! Every path in the guest that is ours.

    pub const PROGRAMS: &str = "/usr/local/lib/mainstay";
    pub const STATE: &str = "/var/lib/mainstay";
    pub const LOCK: &str = "/run/mainstay.lock";

    /// Holds the id of the recorded intent to found. Written once, removed when the server is ready.
    pub const FOUND: &str = "/var/lib/mainstay/found";

    /// A reboot is a restart too, so the note goes with it.
    pub const RESTART_PENDING: &str = "/run/mainstay-restart-pending";
}
