//! The engine against the simulated world, on virtual time.

mod changes;
mod held;
#[path = "../stage/mod.rs"]
#[expect(dead_code, reason = "shared with tests that need other parts of it")]
mod stage;
mod stale;
mod stopped;
mod swapped;
mod taken_back;
mod together;
mod up_and_down;
