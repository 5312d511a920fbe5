//! RKE2 and k3s: the image, further config keys, and keys of the file that only Talos has.

use rancher_config::config::{ExtraProblem, check_extra};
use serde_json::Map;

use crate::diagnostic::{Diagnostic, quote};
use crate::draft::Draft;
use crate::keys::{self, distro, pool};
use crate::source::Spanned;
use crate::spec::{Cni, Distro};
use crate::type_check::closest;
use crate::type_check::not_yet;

pub(crate) fn check(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    cni(draft, faults);
    let distro = match draft.distro() {
        Distro::Talos => return,
        Distro::Rke2 => rancher_config::Distro::Rke2,
        Distro::K3s => rancher_config::Distro::K3s,
    };
    let charts = draft.file.sections(&keys::CHARTS).value().unwrap_or_default();
    if let Some(charts) = charts.first().and_then(|chart| chart.at) {
        faults.push(not_yet(charts, &format!("`charts` with {}", draft.distro()), "this key"));
    }
    image(draft, faults);
    config(draft, distro, faults);
    patches(draft, faults);
}

/// Each distribution has pod networks of its own.
fn cni(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    let distro = draft.distro();
    let choices: &[Cni] = match distro {
        Distro::Talos | Distro::K3s => &[Cni::Flannel, Cni::Cilium, Cni::None],
        Distro::Rke2 => &[Cni::Canal, Cni::Cilium, Cni::None],
    };
    let Some(cni) = draft.file.spanned(&keys::CNI) else { return };
    if cni.value == Cni::Cilium && distro != Distro::Talos {
        faults.push(not_yet(cni.span, &format!("`cni: cilium` with {distro}"), "this value"));
    }
    if choices.contains(&cni.value) {
        return;
    }
    let names: Vec<String> = choices.iter().map(|choice| format!("`{}`", choice.as_str())).collect();
    faults.push(
        Diagnostic::error(
            "cni",
            cni.span,
            format!("{distro} has no pod network `{}`", cni.value.as_str()),
        )
        .label(format!("not with {distro}"))
        .why(format!("{distro} takes {}.", names.join(", ")))
        .help(format!("write {}, or take the key out.", Cni::default_of(distro).as_str())),
    );
}

/// Systems that are known to work with PVE's cloud-init drive, by the names of their image files.
const KNOWN_FILES: [&str; 6] = [
    "jammy-server-cloudimg-",
    "noble-server-cloudimg-",
    "ubuntu-22.04-server-cloudimg-",
    "ubuntu-24.04-server-cloudimg-",
    "debian-12-generic-",
    "debian-13-generic-",
];

fn image(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    let image = draft.rancher.inner(&distro::IMAGE);
    let Some(url) = image.spanned(&distro::IMAGE_URL) else {
        return;
    };
    let file = url.value.path().rsplit('/').next().unwrap_or_default();
    let known = KNOWN_FILES.iter().any(|prefix| file.starts_with(prefix));
    if known || image.value(&distro::IMAGE_UNCHECKED) == Some(true) {
        return;
    }
    faults.push(
        Diagnostic::error(
            "image-unknown",
            url.span,
            format!("{} is not an image of a known system", quote(file)),
        )
        .label("not Ubuntu 22.04 or 24.04, not Debian 12 or 13 generic")
        .why("an image without cloud-init, sudo or the right network names never gets its address.")
        .help("keep the publisher's file name, or add `unchecked: true` if you know that the image works."),
    );
}

/// Keys of config.yaml that mainstay sets itself, or that the distribution does not have.
fn config(draft: &Draft<'_>, distro: rancher_config::Distro, faults: &mut Vec<Diagnostic>) {
    for (key, value) in draft.rancher.value(&distro::CONFIG).unwrap_or_default() {
        let networks = ["cluster-cidr", "service-cidr"].contains(&key.value.as_str());
        let extra = Map::from_iter([(key.value.clone(), value)]);
        let problem = check_extra(distro, &extra).pop();
        let fault = if networks {
            set_by_mainstay(&key, "set `network.pods` and `network.services` instead.")
        } else {
            match problem {
                None => continue,
                Some(ExtraProblem::Owned { .. }) => set_by_mainstay(&key, owner_of(&key.value)),
                Some(ExtraProblem::Forbidden { .. }) => {
                    Diagnostic::error("config-key", key.span, format!("`{}` cannot be set", key.value))
                        .label("not supported")
                        .why("it would move data, identity or secrets away from where mainstay looks for them.")
                        .help("take it out.")
                }
                Some(ExtraProblem::Unknown { .. }) => unknown_key(&key, distro),
                Some(ExtraProblem::Type { .. }) => {
                    Diagnostic::error("config-key", key.span, format!("`{}` takes no section", key.value))
                        .label("not a value of config.yaml")
                        .why(format!("{distro} reads text, numbers, flags and lists of these."))
                        .help("write one value or a list; nested settings are written as `key=value`.")
                }
            }
        };
        faults.push(fault);
    }
}

fn set_by_mainstay(key: &Spanned<String>, help: &str) -> Diagnostic {
    Diagnostic::error("config-key", key.span, format!("`{}` is set by mainstay", key.value))
        .label("set from other keys of this file")
        .why("two values for one key would contradict each other.")
        .help(help)
}

/// What to write instead of a key that mainstay sets.
fn owner_of(key: &str) -> &'static str {
    match key {
        "cni" | "flannel-backend" | "disable-network-policy" | "disable-kube-proxy" => {
            "set `cni` at the top of the file instead."
        }
        "node-label" => "set `labels` of the pool or machine instead.",
        "node-taint" => "set `taints` of the pool or machine instead.",
        "node-ip" => "set `addresses` of the pool or `address` of the machine instead.",
        "node-name" => "set `names` instead.",
        "resolv-conf" => "set `network.dns` instead.",
        "system-default-registry" => "set `registries` instead.",
        _ => "take it out.",
    }
}

fn unknown_key(key: &Spanned<String>, distro: rancher_config::Distro) -> Diagnostic {
    let known = rancher_config::config::known_keys(distro, rancher_config::Role::Server);
    let help = closest(&key.value, known).map_or_else(|| "take it out.".to_owned(), |near| format!("did you mean `{near}`?"));
    Diagnostic::error("config-key", key.span, format!("{distro} has no key {}", quote(&key.value)))
        .label("unknown")
        .why(format!(
            "{distro} ignores keys that it does not know, so a typo would have no effect."
        ))
        .help(help)
}

/// Patches are parts of a Talos config.
fn patches(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    for named in draft.pools.iter().chain(&draft.machines) {
        let Some(patches) = named.fields.spanned(&pool::PATCHES) else {
            continue;
        };
        if !patches.value.readable.is_empty() {
            faults.push(
                Diagnostic::error(
                    "patches",
                    patches.span,
                    format!("`patches` of `{}` have no effect", named.name),
                )
                .label("only with Talos")
                .why("patches change the machine config of Talos, which RKE2 and k3s do not have.")
                .help("take them out; further keys of config.yaml belong into `config` of the distribution."),
            );
        }
    }
}
