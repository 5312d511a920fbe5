//! Any text is read or refused; what was read is read again from what it prints.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/corpus/check.rs"]
mod check;

fuzz_target!(|bytes: &[u8]| check::values(bytes));
