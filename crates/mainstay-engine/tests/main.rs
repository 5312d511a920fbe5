//! Whole runs against a simulated datacenter. One binary: linking is what costs.

mod days;
mod e2e;
mod failures;
mod hardship;
mod pve_faults;
mod stage;
