//! Values, answers and the client of the Proxmox VE API. One binary: linking is what costs.

mod client;
mod corpus;
mod recorded;
mod values;
