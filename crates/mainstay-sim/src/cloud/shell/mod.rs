//! The shell of a cloud guest, and how its programs read and write.

mod arith;
mod builtins;
mod expand;
mod io;
mod parse;
mod pattern;
mod process;
mod run;

pub(crate) use self::io::{Input, Output};
pub(crate) use self::pattern::{Sign, matches};
pub(crate) use self::process::{Process, User};
pub(crate) use self::run::interpret;
