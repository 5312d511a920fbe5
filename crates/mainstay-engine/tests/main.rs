//! Whole runs against a simulated datacenter. One binary: linking is what costs.

mod addons;
mod calls;
mod days;
mod e2e;
mod failures;
mod formats;
mod hardship;
mod pve_faults;
mod rancher;
mod stage;
