//! The built program as people meet it: arguments in, stdout, stderr and an exit code out. What it said is kept under `golden/`;
//! `UPDATE_EXPECT=1 cargo test -p mainstay` writes it anew. Nothing here leaves 127.0.0.0/8.

mod commands;
mod credentials;
mod datacenter;
mod demo;
mod examples;
mod file;
mod first_minutes;
mod interrupted;
mod jump;
mod life;
mod pages;
mod rancher;
mod runs;
mod secrets;
mod setup;
mod stage;
