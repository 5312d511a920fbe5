//! The event stream as it is written: serde types of `--json` and of the run log, version 1.
//!
//! The engine's own types never leave the program, so that renaming one of them cannot change the format. Every type here can also be
//! read back: `mainstay logs` shows a run log in the same views as a running run.

mod diagnostic;
mod error;
mod event;
mod plan;
mod time;

pub use diagnostic::diagnostics;
pub use error::{ErrorEvent, ErrorKind, run_errors};
pub use event::{EventEncoder, EventLine, NodeCounts, ReportEvent, RunHeader, StepState, StepUpdate, TransferState, WireEvent};
#[cfg(test)]
pub use plan::PlanCounts;
pub use plan::{HeldEntry, PlanEvent, PlanStep, PlanSubject, SubjectKind, pools};
pub use time::duration;

/// The JSON Schema of the stream. A test generates it from the types and compares.
pub const SCHEMA: &str = include_str!("../../../docs/reference/events.schema.json");

#[cfg(test)]
mod tests;
