//! The crate seen from outside: files and secrets, checked by other readers than the code that wrote them.

mod config;
mod guest_files;
mod guest_scripts;
mod manifests;
mod secrets;
mod support;
