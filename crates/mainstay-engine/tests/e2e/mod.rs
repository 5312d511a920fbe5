//! The engine against the simulated world, on virtual time.

mod adopt;
mod changes;
mod configs;
mod early;
mod held;
mod identity;
mod interrupted;
mod privileges;
mod rancher;
mod stale;
mod stopped;
mod swapped;
mod taken_back;
mod together;
mod turns;
mod up_and_down;
mod upgrades;
mod volumes;
