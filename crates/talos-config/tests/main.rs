//! Talos configs against those of the real programs. One binary: linking is what costs.

mod access;
mod diff;
mod generate;
mod mutations;
mod patch;
mod pki;
mod properties;
mod schematic;
mod support;
mod validate;
