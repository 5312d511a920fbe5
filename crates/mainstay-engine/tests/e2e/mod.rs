//! The engine against the simulated world, on virtual time.

mod changes;
mod held;
mod stale;
mod stopped;
mod swapped;
mod taken_back;
mod together;
mod up_and_down;
mod volumes;
