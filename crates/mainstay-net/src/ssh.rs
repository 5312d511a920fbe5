//! SSH: the jump host that connections leave from, and sessions on guests.

mod banner;
mod client;
mod command;
mod error;
mod host_key;
mod jump;
mod known_hosts;
pub mod sshd;

pub use self::client::{SshClient, SshEndpoint, SshLimits};
pub use self::command::{RemoteFile, RunAs, SshCommand, SshExit, SshOutput};
pub use self::error::{SshError, SshErrorClass};
pub use self::host_key::{HostKeyPolicy, SshHostKey, SshHostKeyError};
pub use self::jump::{JumpAddress, JumpAddressError, JumpDialer, Login};
pub use self::known_hosts::{HostKey, KnownHosts};
