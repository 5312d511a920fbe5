//! From what the machines of a cluster run to what the file asks for: each machine's own versions, and the hops in between.

use std::collections::BTreeMap;

use mainstay_spec::{Role, Spec};
use uuid::Uuid;

use crate::guest;
use crate::mark::{Mark, UpgradeRecord};
use crate::observed::{Guest, Observed};
use crate::versions::{Course, Versions};

/// Where the cluster of this file stands, and its way.
pub(crate) fn chart(spec: &Spec, observed: &Observed, cluster_id: Option<Uuid>, target: &Versions) -> Course {
    let marks = marks(observed, cluster_id);
    let mut runs = BTreeMap::new();
    let mut running: Vec<(Role, Versions)> = Vec::new();
    for machine in &spec.machines {
        let name = machine.name.as_str();
        let mark = marks.get(name);
        let recorded = mark.and_then(|mark| mark.versions.clone());
        let Some(seen) = seen(observed.guests.get(name), recorded, target) else {
            continue;
        };
        // One that came back with its old system waits for another file, and keeps no other machine from going on.
        let is_back = mark.is_some_and(|mark| matches!(mark.upgrade, Some(UpgradeRecord::RolledBack { .. })));
        if let Some(guest) = observed.guests.get(name).and_then(Guest::running)
            && !(is_back && machine.role == Role::Worker)
        {
            let oldest = Versions {
                kubernetes: guest::oldest_kubernetes(guest).unwrap_or_else(|| seen.kubernetes.clone()),
                ..seen.clone()
            };
            running.push((machine.role, oldest));
        }
        runs.insert(name.to_owned(), seen);
    }
    let control_planes = || {
        running
            .iter()
            .filter(|(role, _)| *role == Role::ControlPlane)
            .map(|(_, versions)| versions)
    };
    let recorded = || runs.values();
    let joins = oldest(control_planes())
        .or_else(|| oldest(recorded()))
        .unwrap_or_else(|| target.clone());
    let from = oldest(running.iter().map(|(_, versions)| versions));
    let road = match &from {
        Some(from) => guest::road(from, target),
        None => Ok(Vec::new()),
    };
    Course { runs, joins, from, road }
}

fn marks(observed: &Observed, cluster_id: Option<Uuid>) -> BTreeMap<String, Mark> {
    let vms = observed.vms.yes().into_iter().flatten();
    let marks = vms.filter_map(|(_, vm)| Mark::parse(&vm.config.yes()?.description));
    let ours = marks.filter(|mark| Some(mark.cluster_id) == cluster_id);
    ours.map(|mark| (mark.machine.clone(), mark)).collect()
}

/// What a machine says itself, else what its mark says.
fn seen(guest: Option<&Guest>, recorded: Option<Versions>, target: &Versions) -> Option<Versions> {
    let base = |recorded: Option<Versions>| recorded.unwrap_or_else(|| target.clone());
    match guest {
        Some(Guest::Running(guest)) => {
            let base = base(recorded);
            Some(Versions {
                release: guest.release.clone().unwrap_or(base.release),
                kubernetes: guest.kubernetes.clone().unwrap_or(base.kubernetes),
                distro: base.distro,
            })
        }
        Some(Guest::AwaitingConfig {
            release: Some(release), ..
        }) => Some(Versions {
            release: release.clone(),
            ..base(recorded)
        }),
        _ => recorded,
    }
}

/// The oldest of both, each for itself.
fn oldest<'v>(all: impl Iterator<Item = &'v Versions>) -> Option<Versions> {
    all.cloned().reduce(|a, b| Versions {
        distro: a.distro,
        release: a.release.min(b.release),
        kubernetes: a.kubernetes.min(b.kubernetes),
    })
}
