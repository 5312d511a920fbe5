//! PVE's values as types: one parser (`FromStr`) and one printer (`Display`) each.

mod agent;
mod boot;
mod description;
mod drive;
mod id;
mod ipconfig;
mod lock;
pub(crate) mod loose;
mod net;
pub(crate) mod open;
mod property;
mod size;
mod smbios;
mod storage;
mod tags;
mod upid;
mod version;
mod volid;

pub use agent::Agent;
pub use boot::Boot;
pub use description::Description;
pub use drive::{Bus, Cache, Drive, Media, Slot, Source};
pub use id::{Digest, Host, PoolId, StorageId, Vmid};
pub use ipconfig::{IpConfig, Ipv4, Ipv6};
pub use lock::Lock;
pub use net::{Mac, Net, NetModel};
pub use size::DiskSize;
pub use smbios::Smbios;
pub use storage::{Content, StorageKind};
pub use tags::Tags;
pub use upid::Upid;
pub use version::PveVersion;
pub use volid::Volid;

/// A text that is not the value it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct ValueError {
    expected: &'static str,
    text: String,
}

impl ValueError {
    pub(crate) fn new(expected: &'static str, text: impl Into<String>) -> Self {
        Self {
            expected,
            text: text.into(),
        }
    }
}
