//! A client for Talos machines and for the Image Factory.
//!
//! A machine without a config is met as [`Maintenance`], which only reads; [`Maintenance::prove`] makes it [`Proven`], which takes a
//! config. A configured one is a [`Node`], opened by the cluster's [`Access`]. [`presence`] finds out which of them answers.
//!
//! Every call has a deadline. Every [`Error`] says whether the call may have been carried out ([`Error::outcome`]) and what to do
//! about it ([`Error::next`]).

mod apply;
mod class;
mod encoded;
mod error;
mod etcd;
mod event;
pub mod factory;
mod follow;
mod images;
mod limits;
mod link;
mod maintenance;
mod node;
mod presence;
mod redact;
mod release;
pub mod resource;
mod service;
mod snapshot;
mod state;
mod upgrade;
mod why;

pub use apply::{Applied, Effect, Mode};
pub use error::{Call, Class, Error, Next, Outcome, Unsent};
pub use etcd::{AlarmKind, EtcdAlarm, EtcdMember, EtcdStatus};
pub use event::{Event, Events, Heard, Since, Step, What};
pub use factory::{Asset, Factory, FactoryError, Image, OfficialExtension};
pub use follow::{Follow, Followed};
pub use images::{ImageStore, LayerProgress, StoredImage};
pub use maintenance::{Maintenance, Proven};
pub use node::{Access, Bootstrapped, Node, Wipe};
pub use presence::{Presence, presence};
pub use release::Release;
pub use service::{Health, Service, ServiceEvent, ServiceState};
pub use snapshot::{CheckedSnapshot, EtcdSnapshot, SnapshotCheck, SnapshotFault};
pub use state::{Change, Told, Watch};
pub use upgrade::{Installer, LegacyUpgrade, Running};
pub use why::{Snapshot, why_no_answer, why_not_ready};
