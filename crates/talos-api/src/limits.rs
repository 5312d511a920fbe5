//! How long each kind of call may take.

use std::time::Duration;

/// Dial and TLS handshake.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);

/// Anything that only looks. etcd's own calls hang for ever on a machine whose etcd was never started.
pub(crate) const READ: Duration = Duration::from_secs(10);

/// A config may change the machine's address before the answer leaves, so that none ever comes.
pub(crate) const APPLY: Duration = Duration::from_secs(15);

/// The machine itself waits 1 s for CRI and 5 s for the clock before it refuses.
pub(crate) const BOOTSTRAP: Duration = Duration::from_secs(15);

/// Reboot, reset and shutdown answer before they begin.
pub(crate) const POWER: Duration = Duration::from_secs(15);

/// Changes of etcd's membership by another member.
pub(crate) const ETCD: Duration = Duration::from_secs(30);

/// Leaving etcd is tried by the machine for 5 minutes.
pub(crate) const LEAVE: Duration = Duration::from_secs(330);
