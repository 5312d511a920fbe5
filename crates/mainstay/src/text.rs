//! Small pieces of text that the event stream and the views share.

use pve_api::privileges::Grant;

/// `1 step`, `14 steps`.
pub fn count(number: usize, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}

/// `VM.Allocate, VM.Audit on /vms`.
pub fn format_grant(grant: &Grant) -> String {
    let names: Vec<String> = grant.privileges.iter().map(ToString::to_string).collect();
    format!("{} on {}", names.join(", "), grant.path)
}
