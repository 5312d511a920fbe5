//! Any text as a patch or a config: refused, or applied to a real config, printed and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use talos_config::versions::Contract;
use talos_config::{Config, Patch, Secrets};

const CONTRACT: Contract = Contract::new(1, 13);
const BASE: &str = "version: v1alpha1\nmachine:\n  type: worker\n  certSANs: [a]\ncluster:\n  controlPlane:\n    endpoint: https://10.0.0.1:6443\n";

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(patch) = Patch::parse("patch.yaml", &text, CONTRACT)
        && let Ok(config) = Config::parse(BASE, CONTRACT).expect("a config").patched([&patch], CONTRACT)
    {
        Config::parse(&config.to_yaml(), CONTRACT).expect("what was written can be read");
    }
    if let Ok(config) = Config::parse(&text, CONTRACT) {
        Config::parse(&config.to_yaml(), CONTRACT).expect("what was written can be read");
    }
    let _ = Secrets::from_talosctl_yaml(&text);
});
