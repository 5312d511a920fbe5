//! The simulated Proxmox VE. One binary: linking is what costs.

mod client;
mod datacenter;
mod recorded;
mod refusals;
mod rules;
mod scenarios;
mod sheet;
mod traces;
