//! RKE2 and k3s guests: everything that is done to them and read from them.
//!
//! | channel | used for |
//! |---|---|
//! | SSH ([`ssh`], [`session`]) | steps that write to one machine, and the probe that decides them |
//! | supervisor ([`supervisor`]) | etcd members, readiness, the served authority, snapshots |
//! | Kubernetes | removal of an etcd member by its Node, the version that runs |
//!
//! Every function reads the current state first, does only what is missing, and waits for its own effect, so repeating it is safe.
//! A guest receives a file only after it proved to be the VM of the plan and its host key was recorded: [`session::OpenGuest`] is
//! the only way to write, and [`RancherAccess::open`] the only way to get one.

mod access;
mod clients;
mod lifecycle;
mod maintenance;
mod observe;
mod prepare;
mod push;
pub mod session;
pub mod ssh;
pub mod step;
pub mod supervisor;
mod vip;
mod wait;

pub use access::RancherAccess;
pub use clients::RancherClients;
pub use lifecycle::{Founding, Join, choose_join, found, has_founder_failure, join_agent, join_server, recover_founder};
pub use maintenance::{ChangedFiles, ServerRemoval, Upgrade, reconfigure, remove_member, snapshot, upgrade};
pub use observe::{ObservedMachine, RancherGuest, RancherObservation, RunningFacts, observe};
pub use prepare::{ExpectedFacts, GuestProblem, Preparation, check_facts, prepare, probe, start_packages};
pub use push::{ArtifactFile, ArtifactFiles};
pub use ssh::MachineAccess;
pub use vip::{VipAnswer, VipVerdict, ask_vip, judge_vip};
pub use wait::WaitReporter;
