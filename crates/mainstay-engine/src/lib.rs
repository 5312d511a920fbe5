//! Observes, executes, waits: the imperative shell around the plan.
//!
//! [`converge`] is the loop. It looks ([`observe`]), plans (`mainstay_plan::plan`, which is pure) and carries the plan out
//! ([`execute`]), until a look finds nothing left to do. Events are its only output.

mod act;
mod approval;
mod converge;
pub mod derive;
mod disk;
mod event;
mod execute;
mod failure;
mod journal;
mod lease;
mod limits;
mod observe;
pub mod preflight;
mod secrets;
mod site;

pub use approval::{ApprovalHandler, ApprovalRequest};
pub use converge::{Report, Run, RunError, Wanted, converge, look_and_plan, pve_version};
pub use disk::{Disk, MemoryDisk, RealDisk};
pub use event::{Event, Events, StepEvent, Told};
pub use failure::{Failure, Kind};
pub use journal::{Entry, Journal};
pub use lease::Holder;
pub use observe::{Scope, Sight, observe};
pub use secrets::{SecretsError, SecretsFile, keys, readers};
pub use site::{Keys, Site, TALOS_PORT};
