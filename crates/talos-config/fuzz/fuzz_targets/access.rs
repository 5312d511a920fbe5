//! Any text as a user's kubeconfig or talosconfig: refused, or merged with another, printed and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use talos_config::{Kubeconfig, Talosconfig};

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(mut theirs) = Kubeconfig::parse(&text) {
        let own = theirs.clone();
        theirs.merge(&own);
        Kubeconfig::parse(&theirs.to_yaml()).expect("a printed kubeconfig can be read");
    }
    if let Ok(mut theirs) = Talosconfig::parse(&text) {
        let own = theirs.clone();
        theirs.merge(&own);
        Talosconfig::parse(&theirs.to_yaml()).expect("a printed talosconfig can be read");
    }
});
