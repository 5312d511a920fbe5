//! The engine against the simulated world, on virtual time.

mod changes;
mod held;
#[path = "../stage/mod.rs"]
mod stage;
mod stale;
mod up_and_down;
