//! A simulated Proxmox VE datacenter that unmodified clients believe.
//!
//! [`Datacenter`] holds the state of a whole cluster and answers PVE's HTTP API as the real code does: its validation, its rights, its
//! locks and tasks, its texts. It runs on tokio's clock (virtual in tests) and on [`mainstay_net::Binder`] (memory or loopback). What runs
//! inside the VMs plugs in through [`guest`].

pub mod access;
mod bandwidth;
mod cluster;
pub mod conformance;
mod datacenter;
mod die;
mod dispatch;
pub mod faults;
mod firewall;
pub mod guest;
mod guests;
mod ha;
pub mod http;
mod inspect;
mod jobs;
mod lab;
mod locks;
mod nodes;
mod observe;
mod options;
mod qemu;
pub mod schema;
mod sdn;
mod state;
mod storage;
mod tags;
mod tasks;
pub mod world;

pub use datacenter::{Datacenter, SimEnv, Verdict};
pub use die::Die;
pub use guests::{AgentOs, NoOs};
pub use http::Serving;
pub use inspect::{Inventory, TaskView, VmView, VolumeView};
pub use lab::{Lab, UnknownAction};
pub use observe::{Effect, Observer, Seen, Stats};
pub use world::World;
