//! Reasons to do nothing at all: strangers in the way, what would hurt, what this version does not do.

use crate::desired::{Desired, Goal, Wanted, Wish, running};
use crate::machine::{is_control_plane, subject};
use crate::mark::Mark;
use crate::observed::{Observed, Seen, Talos};
use crate::plan::{Draft, Hold, Refusal, RefusalKind};
use crate::shape;
use crate::step::Subject;
use crate::survey::{Machine, Owned, Survey};

/// `import` of disk images, which every machine begins with.
const OLDEST_PVE: (u64, u64) = (8, 4);

/// Refusals that need no survey.
pub(crate) fn blindly(desired: &Desired, observed: &Observed, draft: &mut Draft) {
    if let Seen::Yes(false) | Seen::No = observed.quorate {
        draft.refuse(gate(
            Subject::Cluster,
            "the datacenter has no quorum",
            "PVE refuses most writes without it, and would destroy disks while it keeps their VMs.",
            "bring hosts back until `pvecm status` says Quorate: Yes.",
        ));
    }
    if let Some(why) = observed.vms.unknown() {
        draft.refuse(Refusal {
            kind: RefusalKind::Lacking,
            ..gate(
                Subject::Cluster,
                "not every VM can be seen",
                format!("PVE hides what a token may not see, so a VM that is not listed may be there: {why}"),
                "give the token VM.Audit: mainstay grant",
            )
        });
    }
    without_secrets(desired, observed, draft);
}

/// Machines that bear our name, but no secrets to prove that they are ours.
fn without_secrets(desired: &Desired, observed: &Observed, draft: &mut Draft) {
    if desired.cluster_id.is_some() {
        return;
    }
    let configs = observed.vms.yes().into_iter().flatten().filter_map(|(_, vm)| vm.config.yes());
    let marks = configs.filter_map(|config| Mark::parse(&config.description));
    let named: Vec<Mark> = marks.filter(|mark| mark.cluster == desired.cluster).collect();
    if let Some(first) = named.first() {
        draft.refuse(gate(
            Subject::Cluster,
            format!(
                "{} of cluster {} exist, but its secrets do not",
                crate::summary::count(named.len(), "machine"),
                desired.cluster
            ),
            format!(
                "new secrets would not open the running cluster (id {}), and nothing proves that it is yours.",
                first.cluster_id
            ),
            "bring the secrets file back to where cluster.yaml is, or use another name.",
        ));
    }
}

/// Refusals for `down`.
pub(crate) fn down(survey: &Survey<'_>, draft: &mut Draft) {
    let Goal::Nothing { .. } = survey.desired.goal else { return };
    if survey.desired.protect {
        let what = format!("cluster {} is protected", survey.desired.cluster);
        draft.refuse(gate(
            Subject::Cluster,
            what,
            "cluster.yaml says `protect: true`.",
            "take `protect` out of cluster.yaml first.",
        ));
    }
    for (name, owned) in survey.ours.iter().filter(|(_, owned)| owned.config.protection) {
        let vmid = owned.vm.vmid;
        draft.refuse(gate(
            Subject::Machine(name.clone()),
            format!("{name} (VM {vmid}) is protected in PVE"),
            "somebody set `protection` on it, and half a cluster is worse than a whole one.",
            format!("qm set {vmid} --protection 0"),
        ));
    }
}

/// Everything that stands against the cluster that is wanted.
pub(crate) fn conflicts(survey: &Survey<'_>, wish: &Wish, draft: &mut Draft) {
    old_pve(survey.observed, draft);
    other_versions(survey, wish, draft);
    for wanted in &wish.machines {
        machine(survey, wish, wanted, draft);
    }
    names(survey, draft);
    vip(survey, wish, draft);
    lost_control_planes(survey, wish, draft);
}

fn old_pve(observed: &Observed, draft: &mut Draft) {
    if (observed.pve.major, observed.pve.minor) < OLDEST_PVE {
        let (major, minor) = OLDEST_PVE;
        draft.refuse(Refusal {
            kind: RefusalKind::Lacking,
            ..gate(
                Subject::Cluster,
                format!("PVE {} is too old", observed.pve),
                format!("disk images are imported through the API, which PVE does since {major}.{minor}."),
                "upgrade the hosts.",
            )
        });
    }
}

/// Upgrades are for a later version; a new file must not look like one.
fn other_versions(survey: &Survey<'_>, wish: &Wish, draft: &mut Draft) {
    let Some(runs) = survey.desired.cluster_id.and_then(|id| running(survey.observed, id)) else {
        return;
    };
    let pairs = [
        ("talos.version", "Talos", &runs.talos, &wish.versions.talos),
        ("kubernetes", "Kubernetes", &runs.kubernetes, &wish.versions.kubernetes),
    ];
    for (key, name, is, want) in pairs.into_iter().filter(|(_, _, is, want)| is != want) {
        draft.refuse(gate(
            Subject::Cluster,
            format!("{name} cannot change from {is} to {want}"),
            format!("the cluster runs {name} {is}; this version of mainstay does no upgrades."),
            format!("write `{key}: {is}`, or leave it out."),
        ));
    }
}

fn machine(survey: &Survey<'_>, wish: &Wish, wanted: &Wanted, draft: &mut Draft) {
    match survey.machine(wanted.name(), wanted.machine.vmid) {
        Machine::Unknown(_) => {}
        // What is left of it goes, whatever it was.
        Machine::There(owned) if owned.is_half_destroyed(survey.observed) => {}
        Machine::Absent => absent(survey, wanted, draft),
        Machine::There(owned) => {
            for impossible in shape::compare(wish, wanted, owned, None).impossible {
                let what = format!("{}: {}", wanted.name(), impossible.what);
                draft.refuse(Refusal {
                    at: Some(wanted.machine.at),
                    ..gate(subject(wanted), what, impossible.why, impossible.help)
                });
            }
            if owned.role().is_some_and(|role| role != wanted.machine.role) {
                let what = format!("{} cannot become a {}", wanted.name(), wanted.machine.role);
                let why = "control planes and workers are made differently.";
                draft.refuse(gate(subject(wanted), what, why, "give the new machine another name."));
            }
            if owned.vm.vmid != wanted.machine.vmid {
                let reason = format!(
                    "it stays VM {}: a VM cannot change its VMID to {}",
                    owned.vm.vmid, wanted.machine.vmid
                );
                draft.hold(subject(wanted), "change", Hold::for_good(reason));
            }
            if owned.runs() {
                stranger_inside(survey, wanted, draft);
            } else {
                stranger_on_address(survey, wanted, draft);
            }
        }
    }
}

fn absent(survey: &Survey<'_>, wanted: &Wanted, draft: &mut Draft) {
    let vmid = wanted.machine.vmid;
    let at = Some(wanted.machine.at);
    if let Some(vm) = survey.vms.get(&vmid) {
        let named = vm.name.as_deref().unwrap_or("without a name");
        let other = survey
            .ours
            .iter()
            .find(|(_, owned)| owned.vm.vmid == vmid)
            .map(|(name, _)| name);
        let why = match (other, survey.strangers.get(&vmid)) {
            (Some(name), _) => format!("it is {name} of this cluster, and a machine cannot be renamed."),
            (None, Some(why)) => format!("{why}."),
            (None, None) => "it does not carry our mark.".to_owned(),
        };
        let what = format!("VMID {vmid} of {} is taken by VM {named} on {}", wanted.name(), vm.host);
        draft.refuse(Refusal {
            at,
            ..conflict(
                subject(wanted),
                what,
                why,
                "choose other VMIDs: `vmids` of the pool, or `vmid` of the machine.",
            )
        });
    } else if let Some(left) = leftover(survey.observed, vmid) {
        let what = format!("VMID {vmid} of {} has a volume without a VM: {left}", wanted.name());
        let why = "it may be somebody's data; a new VM would take it for its own.";
        draft.refuse(Refusal {
            at,
            ..conflict(subject(wanted), what, why, format!("if nobody needs it: pvesm free {left}"))
        });
    }
    stranger_on_address(survey, wanted, draft);
}

/// A volume of a VMID that no VM has, unless our journal says that it was ours: that one is freed.
fn leftover(observed: &Observed, vmid: u32) -> Option<&str> {
    let leftovers = observed.leftovers.yes().into_iter().flatten();
    leftovers
        .filter(|left| !left.proved)
        .find(|left| left.vmid == vmid)
        .map(|left| left.volume.as_str())
}

/// Somebody answers where a machine of ours will be, but is not yet.
fn stranger_on_address(survey: &Survey<'_>, wanted: &Wanted, draft: &mut Draft) {
    if let Some(Seen::Yes(answer)) = survey.observed.answers.get(&wanted.address()) {
        let ports: Vec<String> = answer.ports.iter().map(ToString::to_string).collect();
        let what = format!("somebody else has the address {} of {}", wanted.address(), wanted.name());
        let why = format!("port {} answers there, but the machine does not run.", ports.join(" and "));
        let help = "find who has it, or give the pool other `addresses`.";
        draft.refuse(Refusal {
            at: Some(wanted.machine.at),
            ..conflict(subject(wanted), what, why, help)
        });
    }
}

/// Our machine runs, but another one waits for a config on its address: it gets nothing.
fn stranger_inside(survey: &Survey<'_>, wanted: &Wanted, draft: &mut Draft) {
    let Some(Talos::Maintenance {
        uuid: Seen::Yes(uuid), ..
    }) = survey.talos(wanted.name())
    else {
        return;
    };
    let ours = survey.desired.uuid(wanted.name());
    if *uuid != ours {
        let what = format!(
            "somebody else's machine waits on the address {} of {}",
            wanted.address(),
            wanted.name()
        );
        let why = format!("its SMBIOS UUID is {uuid}, ours has {ours}; a config with secrets goes to ours only.");
        let help = "find the machine that has the address, and give it another.";
        draft.refuse(Refusal {
            at: Some(wanted.machine.at),
            ..conflict(subject(wanted), what, why, help)
        });
    }
}

/// VMs of others that are called as a machine that does not exist yet.
fn names(survey: &Survey<'_>, draft: &mut Draft) {
    let unmade = |name: &str| survey.wanted.get(name).filter(|_| !survey.ours.contains_key(name));
    for vm in survey.vms.values() {
        let Some(wanted) = vm.name.as_deref().and_then(unmade) else {
            continue;
        };
        // One that sits on a VMID of ours is told about there, and one of ours that was renamed is renamed back.
        let ours = survey.ours.values().any(|owned| owned.vm.vmid == vm.vmid);
        if ours || survey.desired.vmids.contains_key(&vm.vmid) {
            continue;
        }
        let what = format!("a VM called {} exists already: VM {} on {}", wanted.name(), vm.vmid, vm.host);
        let why = survey
            .strangers
            .get(&vm.vmid)
            .map_or_else(|| "it does not carry our mark.".to_owned(), |why| format!("{why}."));
        let help = "rename it, or give the cluster another `name` or `names` pattern.";
        draft.refuse(Refusal {
            at: Some(wanted.machine.at),
            ..conflict(subject(wanted), what, why, help)
        });
    }
}

/// Before there is a cluster of ours, nobody may answer on its VIP.
fn vip(survey: &Survey<'_>, wish: &Wish, draft: &mut Draft) {
    let Some(vip) = wish.network.vip else { return };
    let runs = wish.control_planes().any(|wanted| {
        survey
            .ours
            .get(wanted.name())
            .is_some_and(|owned| owned.runs() && owned.is_filled())
    });
    if let (false, Some(Seen::Yes(answer))) = (runs, survey.observed.answers.get(&vip)) {
        let ports: Vec<String> = answer.ports.iter().map(ToString::to_string).collect();
        let what = format!("somebody else has the VIP {vip}");
        let why = format!(
            "port {} answers there, but no control plane of ours runs.",
            ports.join(" and ")
        );
        draft.refuse(conflict(
            Subject::Cluster,
            what,
            why,
            "find who has it, or choose another `network.vip`.",
        ));
    }
}

/// A worker's API runs on a certificate that a control plane gave it: one that runs while no control plane has a disk outlived them all.
fn lost_control_planes(survey: &Survey<'_>, wish: &Wish, draft: &mut Draft) {
    let unknown = |wanted: &Wanted| matches!(survey.machine(wanted.name(), wanted.machine.vmid), Machine::Unknown(_));
    let has_disk = |(name, owned): (&String, &Owned<'_>)| {
        owned.may_hold_data(survey.observed) && is_control_plane(owned, survey.wanted.get(name.as_str()).copied())
    };
    let any_left = wish.control_planes().any(unknown) || survey.ours.iter().any(has_disk);
    let orphan = wish.machines.iter().find(|wanted| {
        !wanted.is_control_plane() && matches!(survey.talos(wanted.name()), Some(Talos::Running(node)) if node.uuid == survey.desired.uuid(wanted.name()))
    });
    if let (false, Some(worker)) = (any_left, orphan) {
        draft.refuse(gate(
            Subject::Cluster,
            "every control plane is gone",
            format!(
                "{} still runs, so the cluster did: a new etcd would begin empty, under nodes that remember another.",
                worker.name()
            ),
            "restore the control planes from a backup of their VMs; or give the cluster up: mainstay down, then mainstay up.",
        ));
    }
}

fn gate(subject: Subject, what: impl Into<String>, why: impl Into<String>, help: impl Into<String>) -> Refusal {
    Refusal {
        kind: RefusalKind::Gate,
        subject,
        what: what.into(),
        why: why.into(),
        help: vec![help.into()],
        at: None,
    }
}

fn conflict(subject: Subject, what: impl Into<String>, why: impl Into<String>, help: impl Into<String>) -> Refusal {
    Refusal {
        kind: RefusalKind::Conflict,
        ..gate(subject, what, why, help)
    }
}
