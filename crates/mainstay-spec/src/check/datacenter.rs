//! The PVE endpoint and how its certificate is trusted.

use crate::Environment;
use crate::diagnostic::{Diagnostic, ValueError};
use crate::draft::{Draft, Given};
use crate::keys::datacenter::{CA, FINGERPRINT};
use crate::value;

pub(crate) fn check(draft: &Draft<'_>, environment: &Environment, faults: &mut Vec<Diagnostic>) {
    let datacenter = &draft.datacenter;
    let at = datacenter.at.unwrap_or(draft.start);
    match (&environment.endpoint, &draft.pve_endpoint) {
        (None, Given::Absent) => faults.push(
            Diagnostic::error("endpoint-unknown", at, "the address of Proxmox VE is not given")
                .label("no `datacenter.endpoint`")
                .why("mainstay needs the API of a PVE host.")
                .help("set `datacenter.endpoint`, for example https://pve.lan:8006, or PROXMOX_VE_ENDPOINT in the environment."),
        ),
        (Some(text), Given::Absent) => {
            if let Err(wrong) = value::pve_endpoint(text) {
                faults.push(
                    ValueError {
                        label: "`datacenter.endpoint` is not set either".to_owned(),
                        ..wrong
                    }
                    .at("endpoint-unknown", at, "PROXMOX_VE_ENDPOINT"),
                );
            }
        }
        (Some(text), Given::Is(given)) if value::pve_endpoint(text).is_ok_and(|url| url != given.value) => faults.push(
            Diagnostic::warning(
                "endpoint-twice",
                given.span,
                "PROXMOX_VE_ENDPOINT names another Proxmox VE than this file",
            )
            .label("this one is used")
            .why("the file describes the cluster wherever it is run, so it goes before the environment.")
            .help("unset PROXMOX_VE_ENDPOINT, or take the key out of the file to use the one of the environment."),
        ),
        _ => {}
    }
    if let (Some(fingerprint), Some(ca)) = (datacenter.spanned(&FINGERPRINT), datacenter.spanned(&CA)) {
        faults.push(
            Diagnostic::error(
                "trust-twice",
                fingerprint.span.max(ca.span),
                "`fingerprint` and `ca` exclude each other",
            )
            .label("the second")
            .why("a fingerprint trusts one certificate, a CA every certificate that it signs.")
            .help("keep the fingerprint for one self-signed certificate, the CA for a cluster of hosts."),
        );
    }
}
