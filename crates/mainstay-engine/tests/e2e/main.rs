//! The engine against the simulated world, on virtual time.

mod changes;
#[path = "../stage/mod.rs"]
mod stage;
mod up_and_down;
