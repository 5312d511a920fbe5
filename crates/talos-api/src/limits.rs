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

/// The older upgrade call pulls and tries the installer before it answers.
pub(crate) const LEGACY_UPGRADE: Duration = Duration::from_secs(20 * 60);

/// An image over a slow line.
pub(crate) const PULL: Duration = Duration::from_secs(20 * 60);

/// The installer unpacks a system and writes it to the disk.
pub(crate) const INSTALLER: Duration = Duration::from_secs(15 * 60);

/// Between two parts of a snapshot.
pub(crate) const SNAPSHOT_PART: Duration = Duration::from_secs(60);

/// A followed machine that said nothing for this long is asked whether it is still there: one that lost its power leaves a connection
/// behind on which nothing ever comes.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);

/// How long that question may take.
pub(crate) const PROBE: Duration = Duration::from_secs(5);

/// Pauses between attempts to reach a followed machine again: the first, doubled each time up to the longest.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(200);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(2);
