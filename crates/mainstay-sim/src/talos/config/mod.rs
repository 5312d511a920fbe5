//! The machine config as a node reads it: decoding, judging, and what follows from it.
//!
//! The rules are the node's own, on purpose: a generator of configs must not be checked by its own rules.

mod decode;
mod diff;
mod schema;
mod types;
mod validate;
mod view;

pub(crate) use decode::Config;
pub(crate) use diff::{live_applicable, unified};
pub(crate) use validate::{Judge, image_fault as kubernetes_fault, validate};
pub(crate) use view::{LinkAddress, MachineType, Nic};
