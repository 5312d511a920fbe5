//! The jump host: connections that leave from another machine, over SSH.

mod jump;
mod known_hosts;
pub mod sshd;

pub use self::jump::{Jump, JumpAddress, JumpAddressError, Login};
pub use self::known_hosts::{HostKey, KnownHosts};
