//! Labels, taints, tags and hosts.

use std::collections::BTreeSet;

use crate::diagnostic::Diagnostic;
use crate::draft::{Draft, Fields};
use crate::keys::{datacenter, pool};
use crate::source::Spanned;
use crate::spec::Role;

pub(crate) fn check(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    tags(&draft.datacenter.items(&datacenter::TAGS), faults);
    for pool in &draft.pools {
        node(&pool.fields, faults);
        hosts(&pool.fields, faults);
        if pool.role() == Role::Worker {
            restricted(&pool.fields, faults);
        }
    }
    for machine in &draft.machines {
        node(&machine.fields, faults);
        hosts(&machine.fields, faults);
        if let (Some(_), Some(hosts)) = (machine.fields.spanned(&pool::HOST), machine.fields.list(&pool::HOSTS).is()) {
            faults.push(
                Diagnostic::error("hosts", hosts.span, format!("`{}` has both `host` and `hosts`", machine.name))
                    .label("the second")
                    .why("`host` pins the machine to one, `hosts` leaves the choice to the plan.")
                    .help("keep one of them."),
            );
        }
    }
}

fn node(node: &Fields<'_>, faults: &mut Vec<Diagnostic>) {
    tags(&node.items(&pool::TAGS), faults);
    let mut seen = BTreeSet::new();
    for taint in node.list(&pool::TAINTS).value().into_iter().flatten() {
        if !seen.insert((taint.value.key.clone(), taint.value.effect.as_str())) {
            faults.push(
                Diagnostic::error("taint", taint.span, format!("taint `{}` is set twice", taint.value))
                    .label("same key and effect")
                    .why("Kubernetes keeps one taint for each key and effect.")
                    .help("keep one of them."),
            );
        }
    }
}

fn tags(tags: &[Spanned<String>], faults: &mut Vec<Diagnostic>) {
    for tag in tags.iter().filter(|tag| tag.value == "mainstay") {
        faults.push(
            Diagnostic::error("tag-reserved", tag.span, "the tag `mainstay` is the mark itself")
                .label("set by mainstay")
                .why("it is a part of the proof that a VM belongs to mainstay, and every machine gets it anyway.")
                .help("take it out."),
        );
    }
}

fn hosts(fields: &Fields<'_>, faults: &mut Vec<Diagnostic>) {
    let Some(hosts) = fields.list(&pool::HOSTS).is() else { return };
    if hosts.value.is_empty() {
        faults.push(
            Diagnostic::error("hosts", hosts.span, "`hosts` names no host")
                .label("empty")
                .why("its machines could be placed nowhere.")
                .help("name at least one host, or take the key out to allow all."),
        );
    }
    let mut seen = BTreeSet::new();
    for host in &hosts.value {
        if !seen.insert(&host.value) {
            faults.push(
                Diagnostic::error("hosts", host.span, format!("host `{}` is named twice", host.value))
                    .label("again")
                    .why("a host counts once, however often it is named.")
                    .help("keep one of them."),
            );
        }
    }
}

/// Labels that the API server lets no kubelet set on its own node.
fn restricted(node: &Fields<'_>, faults: &mut Vec<Diagnostic>) {
    let labels = node.value(&pool::LABELS).unwrap_or_default();
    for (key, _) in labels.iter().filter(|(key, _)| is_restricted(&key.value)) {
        faults.push(
            Diagnostic::error("label", key.span, format!("a worker may not label itself `{}`", key.value))
                .label("refused by the API server")
                .why("a worker sets its labels itself, and Kubernetes keeps names under kubernetes.io for itself.")
                .help("use a key of your own, like example.com/role. The role of a worker needs no label."),
        );
    }
}

fn is_restricted(key: &str) -> bool {
    const ALLOWED: [&str; 7] = [
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
    ];
    let Some((prefix, _)) = key.split_once('/') else {
        return false;
    };
    let under = |domain: &str| prefix == domain || prefix.ends_with(&format!(".{domain}"));
    let own = under("kubelet.kubernetes.io") || under("node.kubernetes.io");
    (under("kubernetes.io") || under("k8s.io")) && !own && !ALLOWED.contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kubelet_may_not_set_is_known() {
        for key in [
            "node-role.kubernetes.io/worker",
            "kubernetes.io/x",
            "node-restriction.kubernetes.io/x",
            "foo.k8s.io/x",
        ] {
            assert!(is_restricted(key), "{key}");
        }
        for key in [
            "rack",
            "example.com/x",
            "topology.kubernetes.io/zone",
            "node.kubernetes.io/instance-type",
            "mykubernetes.io/x",
        ] {
            assert!(!is_restricted(key), "{key}");
        }
    }
}
