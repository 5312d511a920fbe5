//! Any bytes are read or refused with a report; what is accepted can be printed and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_spec::report::{self, Paint};
use mainstay_spec::{Environment, load_bytes};

fuzz_target!(|bytes: &[u8]| {
    let files = |name: &str| Some(name.as_bytes().to_vec());
    match load_bytes(bytes, "cluster.yaml", &Environment::default(), &files) {
        Ok(checked) => {
            let again = checked.spec.to_yaml();
            load_bytes(again.as_bytes(), "again.yaml", &Environment::default(), &files).expect("a printed spec can be read");
        }
        Err(faults) => {
            assert!(faults.errors() > 0, "refused without a reason");
            report::terminal(&faults.source, &faults.faults, Paint::Colour);
            report::json(&faults.source, &faults.faults);
        }
    }
});
