//! The client against small machines in memory, and against what a real cluster was recorded to say.

mod calls;
mod factory;
mod garbage;
mod identity;
mod recorded;
mod state;
mod why;
mod world;
