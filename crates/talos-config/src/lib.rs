//! Talos secrets, machine configs, patches and schematics as pure functions.

pub mod versions;
