//! A client for the Proxmox VE API: requests and answers as values.
//!
//! A [`Call`] is built by a function of its part ([`qemu`], [`storage`], [`task`], ...) and says what it sends and what its answer means,
//! without any I/O. A [`Client`] sends it. What went wrong is an [`Error`] that says what may be done: send again, look first, or give up.

mod calls;
mod client;
mod config;
mod encode;
mod error;
pub mod privileges;
mod request;
mod value;

pub use calls::{access, cluster, host, pool, qemu, storage, task};
pub use client::{Client, ClientOptions, Endpoint, Login, Progress, TaskDone, Upload};
pub use config::{Bios, VmConfig};
pub use error::{Class, Error, MissingPrivilege, Refusal, TaskFailure, Unknown};
pub use request::{Call, CallName, Done, Page, Request};
pub use value::{
    Agent, Boot, Bus, Cache, Content, Description, Digest, DiskSize, Drive, Host, IpConfig, Ipv4, Ipv6, Lock, Mac, Media, Net,
    NetModel, PoolId, PveVersion, Slot, Smbios, Source, StorageId, StorageKind, Tags, Upid, ValueError, Vmid, Volid,
};
