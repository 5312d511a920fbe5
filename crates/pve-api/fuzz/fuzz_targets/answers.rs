//! Any answer is understood or an error that can be told.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/corpus/check.rs"]
mod check;

fuzz_target!(|bytes: &[u8]| check::answers(bytes));
