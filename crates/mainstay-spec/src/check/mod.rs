//! One file per concern. Each checks what could be read and reports every error.

pub(crate) mod addons;
pub(crate) mod addresses;
pub(crate) mod counts;
pub(crate) mod datacenter;
pub(crate) mod files;
pub(crate) mod hardware;
pub(crate) mod names;
pub(crate) mod network;
pub(crate) mod nodes;
pub(crate) mod provisioning;
pub(crate) mod rancher;
pub(crate) mod versions;
pub(crate) mod vmids;

use crate::diagnostic::Diagnostic;
use crate::draft::Draft;
use crate::roster::RosterEntry;

pub(crate) fn all(draft: &Draft<'_>, roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    network::check(draft, faults);
    counts::check(draft, roster, faults);
    addresses::check(draft, roster, faults);
    vmids::check(draft, roster, faults);
    names::check(draft, roster, faults);
    versions::check(draft, faults);
    hardware::check(draft, roster, faults);
    nodes::check(draft, faults);
    rancher::check(draft, faults);
    addons::check(draft, roster, faults);
    provisioning::check(draft, faults);
}

/// "1 machine", "2 machines", "3 addresses".
pub(crate) fn count(n: u64, noun: &str) -> String {
    let plural = if noun.ends_with('s') { "es" } else { "s" };
    format!("{n} {noun}{}", if n == 1 { "" } else { plural })
}
