//! Observes, executes, waits: the imperative shell around the plan.
//!
//! [`converge`] is the loop. It looks ([`observe`]), plans (`mainstay_plan::plan`, which is pure) and carries the plan out
//! ([`execute`]), until a look finds nothing left to do. Events are its only output.

mod act;
mod addresses;
mod adopt;
mod approval;
mod charts;
mod clients;
mod converge;
mod event;
mod execute;
mod failure;
mod files;
pub mod guest;
mod health;
mod hold_watch;
mod in_flight;
mod jitter;
mod journal;
mod known;
mod kube;
mod lease;
mod limits;
mod lock_file;
mod node_watch;
mod observe;
pub mod preflight;
mod pve_config;
mod secrets;
mod wait;

pub use addresses::AddressBook;
pub use adopt::{Adoption, adopt, adoption};
pub use approval::{ApprovalHandler, ApprovalRequest};
pub use charts::ChartStore;
pub use clients::Clients;
pub use converge::{PlannedRound, Run, RunError, RunGoal, RunReport, converge, observe_and_plan, pve_version};
pub use event::{Event, EventRecord, EventSink, StepEvent, Transfer};
pub use execute::LeftTask;
pub use failure::{Failure, FailureKind};
pub use files::{FileStore, MemoryFiles, OsFiles};
pub use guest::{check_image_source, guest_port};
pub use health::{ClusterHealth, health};
pub use journal::{Journal, JournalEntry};
pub use lease::LeaseHolder;
pub use lock_file::LockStore;
pub use observe::{Observation, ObserveScope, observe};
pub use secrets::{SecretsError, SecretsFile, recipients};
