//! Values of the wrong type, which a node refuses while it decodes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use serde_json::Value;

/// A value that does not fit, in the decoder's words.
pub(crate) struct TypeFault {
    /// As it stands in the document.
    pub text: String,
    pub why: String,
    /// The Go type it was read into.
    pub into: &'static str,
}

pub(crate) fn first_fault(document: &Value) -> Option<TypeFault> {
    match document["kind"].as_str() {
        Some("HostnameConfig") => hostname(document),
        Some("LinkConfig") => addresses(document),
        Some(_) => None,
        None => classic(document),
    }
}

fn hostname(document: &Value) -> Option<TypeFault> {
    let auto = document["auto"]
        .as_str()
        .filter(|auto| !["stable", "off", ""].contains(auto))?;
    let why = format!("{auto} does not belong to AutoHostnameKind values");
    Some(TypeFault {
        text: auto.to_owned(),
        why,
        into: "network.HostnameConfigV1Alpha1",
    })
}

fn addresses(document: &Value) -> Option<TypeFault> {
    let listed = document["addresses"]
        .as_array()?
        .iter()
        .filter_map(|entry| entry["address"].as_str());
    let wrong = listed.into_iter().find(|text| text.parse::<IpNet>().is_err())?;
    let why = if wrong.contains('/') { "invalid prefix" } else { "no '/'" };
    let why = format!("netip.ParsePrefix(\"{wrong}\"): {why}");
    Some(TypeFault {
        text: wrong.to_owned(),
        why,
        into: "network.LinkConfigV1Alpha1",
    })
}

/// Certificates and keys are base64; switches are booleans.
fn classic(document: &Value) -> Option<TypeFault> {
    const INTO: &str = "v1alpha1.Config";
    const PAIRS: [&str; 4] = ["/machine/ca", "/cluster/ca", "/cluster/aggregatorCA", "/cluster/etcd/ca"];
    const SWITCHES: [&str; 12] = [
        "/debug",
        "/persist",
        "/machine/install/wipe",
        "/machine/features/rbac",
        "/machine/features/stableHostname",
        "/machine/features/diskQuotaSupport",
        "/machine/features/kubePrism/enabled",
        "/machine/features/hostDNS/enabled",
        "/machine/kubelet/disableManifestsDirectory",
        "/machine/kubelet/defaultRuntimeSeccompProfileEnabled",
        "/cluster/discovery/enabled",
        "/cluster/allowSchedulingOnControlPlanes",
    ];
    let fields = PAIRS.iter().flat_map(|pair| [format!("{pair}/crt"), format!("{pair}/key")]);
    let texts = fields.filter_map(|field| document.pointer(&field)?.as_str());
    let broken = texts.into_iter().find(|text| STANDARD.decode(text).is_err()).map(|text| {
        let why = "illegal base64 data at input byte 0".to_owned();
        TypeFault {
            text: text.to_owned(),
            why,
            into: INTO,
        }
    });
    broken.or_else(|| {
        let text = SWITCHES.iter().find_map(|switch| document.pointer(switch)?.as_str())?;
        Some(TypeFault {
            text: text.to_owned(),
            why: format!("cannot construct !!str `{text}` into bool"),
            into: INTO,
        })
    })
}
