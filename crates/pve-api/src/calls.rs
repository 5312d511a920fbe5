//! The calls, by the part of PVE they belong to.

pub mod access;
pub mod cluster;
pub mod host;
pub mod pool;
pub mod qemu;
pub mod storage;
pub mod task;

#[cfg(test)]
mod tests;
