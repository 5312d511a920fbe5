//! What must go: machines that the file does not want any more, and everything for `down`.
//!
//! A control plane leaves etcd first, then the machine stops, then its Node goes, then the VM: each while the one before still proves it.
//! One that does not answer cannot leave. It goes first, and then a survivor takes its member out: were the removal broken off in
//! between the other way round, the machine would keep data that can never join again, and nobody could want it back.

use std::net::IpAddr;

use mainstay_spec::Role;

use crate::cluster::Course;
use crate::desired::Wanted;
use crate::gate;
use crate::image;
use crate::machine::is_control_plane;
use crate::mark::{Mark, TAG};
use crate::observed::{EtcdState, Leftover, Member, Observed, Power, Seen, Talos};
use crate::plan::{Draft, Hold};
use crate::step::{Action, EtcdMember, Impact, LeaveBy, Peer, Remark, Spare, StepId, Subject};
use crate::survey::{Owned, Survey};
use crate::talos::Etcd;
use crate::volume::{self, is_cloud_init_volume};

const UNWANTED: &str = "not in cluster.yaml";
pub(crate) const BROKEN_FILL: &str = "left by a fill that did not end";
const HALF: &str = "its destruction broke off when some of its disks were gone";

/// Plans for nothing.
pub(crate) fn everything(survey: &Survey<'_>, images: &[String], draft: &mut Draft) {
    for (vmid, why) in &survey.unknown {
        let known = survey.desired.vmids.get(vmid);
        if known.is_some() || survey.desired.vmids.is_empty() {
            let subject = known.map_or_else(|| format!("vm {vmid}"), |claimant| claimant.machine.clone());
            draft.hold(Subject::Machine(subject), "remove", Hold::for_now(why.clone()));
        }
    }
    for (name, owned) in &survey.ours {
        if let Some(reason) = unremovable(survey, owned) {
            draft.hold(Subject::Machine(name.clone()), "remove", reason);
            continue;
        }
        let marked = repair(survey, name, owned, draft);
        let freed = free_leftovers(survey, owned.vm.vmid, "left by its machine, which goes", marked, draft);
        let stopped = stop(name, owned, None, marked.into_iter().collect(), draft);
        delete(
            survey,
            name,
            owned,
            None,
            stopped.into_iter().chain(marked).chain(freed).collect(),
            draft,
        );
    }
    strays(survey, draft);
    image::delete(survey.observed, images, draft);
}

/// Volumes that no VM uses. Those that mainstay provably made, and that the token may free, go; every other one is named.
pub(crate) fn strays(survey: &Survey<'_>, draft: &mut Draft) {
    for left in survey.observed.leftovers.yes().into_iter().flatten() {
        if left.is_freed_in(draft) {
            continue;
        }
        let subject = Subject::Volume(left.volume.clone());
        let owner = survey.ours.values().find(|owned| owned.vm.vmid == left.vmid);
        // A task may be about to use it.
        let is_idle = owner.map_or(!survey.vms.contains_key(&left.vmid), |owned| {
            owned.blocked(survey.observed).is_none()
        });
        if left.proved && !left.may_free {
            let reason = format!(
                "mainstay made it and no VM uses it, but the token lacks Datastore.Allocate on /storage/{}: pvesm free {}",
                left.at.storage, left.volume
            );
            draft.hold(subject, "free", reason);
        } else if left.proved && is_idle {
            let why = if owner.is_some() {
                BROKEN_FILL
            } else {
                "left by a machine of ours that is gone"
            };
            free(left, why, None, draft);
        } else if !left.proved && is_idle {
            let reason = format!(
                "no VM uses it, and nothing proves that mainstay made it, so it stays; if it is not needed: pvesm free {}",
                left.volume
            );
            draft.hold(subject, "free", Hold::for_good(reason));
        }
    }
}

impl Leftover {
    fn is_freed_in(&self, draft: &Draft) -> bool {
        let frees =
            |action: &Action| matches!(action, Action::VolumeDelete { at, volume } if (at, volume) == (&self.at, &self.volume));
        draft.plan.steps.iter().any(|step| frees(&step.action))
    }
}

/// Frees what is left of a VM that is ours: volumes that mainstay provably made, and the seed, which PVE wrote and whose name the next
/// seed needs.
pub(crate) fn free_leftovers(survey: &Survey<'_>, vmid: u32, why: &str, after: Option<StepId>, draft: &mut Draft) -> Vec<StepId> {
    let leftovers = survey.observed.leftovers.yes().into_iter().flatten();
    let goes = |left: &&Leftover| left.vmid == vmid && left.may_free && (left.proved || is_cloud_init_volume(&left.volume));
    leftovers.filter(goes).map(|left| free(left, why, after, draft)).collect()
}

fn free(left: &Leftover, why: &str, after: Option<StepId>, draft: &mut Draft) -> StepId {
    let action = Action::VolumeDelete {
        at: left.at.clone(),
        volume: left.volume.clone(),
    };
    let adding = draft.step(Subject::Volume(left.volume.clone()), action).because(why);
    adding.impact(Impact::Wipe).needs(after).add()
}

/// Plans for the machines that are ours and not wanted.
pub(crate) fn unwanted(course: &mut Course<'_, '_>, after: &[StepId]) {
    let survey = course.survey;
    let etcd = course.etcd();
    let mut members = survey.observed.etcd.yes().cloned().unwrap_or_default();
    let mut last = after.to_vec();
    let mut leaving: Vec<(&String, &Owned<'_>)> = survey
        .ours
        .iter()
        .filter(|(name, owned)| !survey.wanted.contains_key(name.as_str()) || owned.is_half_destroyed(survey.observed))
        .collect();
    // Workers first, and the youngest control plane before the oldest.
    leaving.sort_by_key(|(name, owned)| {
        (
            owned.role() == Some(Role::ControlPlane),
            std::cmp::Reverse(name.len()),
            std::cmp::Reverse(*name),
        )
    });
    for (name, owned) in leaving {
        if let Some(reason) = unremovable(survey, owned) {
            course.draft.hold(Subject::Machine(name.clone()), "remove", reason);
            continue;
        }
        if survey.wanted.contains_key(name.as_str()) {
            let note = format!("{name} is made anew when what is left of it is gone");
            course.draft.plan.notes.push(note);
        }
        let held = match unsafe_now(survey, &etcd) {
            Some(reason) => Err(reason),
            None if is_control_plane(owned, None) => control_plane(course, name, owned, &etcd, &mut members, &mut last),
            None => {
                let marked = repair(survey, name, owned, &mut course.draft);
                go(course, name, owned, None, marked.into_iter().collect());
                Ok(())
            }
        };
        if let Err(reason) = held {
            // A member that starts, an API server that rolls: most of it passes by itself.
            course
                .draft
                .hold(Subject::Machine(name.clone()), "remove", Hold::for_now(reason));
            revive(course, name, owned);
        }
    }
    if matches!(etcd, Etcd::Exists) {
        orphans(course, &mut members, &mut last);
    }
    stale_nodes(survey, &mut course.draft);
    strays(survey, &mut course.draft);
}

/// Nodes that are no machine of ours. Somebody may have joined them on purpose, so they are only named.
fn stale_nodes(survey: &Survey<'_>, draft: &mut Draft) {
    let nodes = survey
        .observed
        .kubernetes
        .yes()
        .map(|kubernetes| kubernetes.nodes.keys())
        .into_iter()
        .flatten();
    let strange = |name: &&String| !survey.wanted.contains_key(name.as_str()) && !survey.ours.contains_key(*name);
    for name in nodes.filter(strange) {
        draft.plan.notes.push(format!(
            "node {name} is no machine of ours; if it is gone for good: kubectl delete node {name}"
        ));
    }
}

/// A control plane that cannot go yet may be what the others wait for: its etcd data, or its vote. It is made to speak.
fn revive(course: &mut Course<'_, '_>, name: &str, owned: &Owned<'_>) {
    let unread =
        is_control_plane(owned, None) && owned.may_hold_data(course.survey.observed) && course.unread(name, owned).is_some();
    let speaks = matches!(owned.vm.power, Power::Running | Power::Stopped);
    let Some(address) = owned.config.address.filter(|_| unread && speaks) else {
        return;
    };
    let subject = Subject::Machine(name.to_owned());
    let marked = repair(course.survey, name, owned, &mut course.draft);
    let start = Action::MachineStart { vm: owned.at() };
    let why = "it cannot go before it is read";
    let started = (!owned.runs()).then(|| course.draft.step(subject.clone(), start).because(why).needs(marked).add());
    let action = Action::TalosAwait {
        address: address.addr(),
        uuid: course.survey.desired.uuid(name),
    };
    course.draft.step(subject, action).because(why).needs(started).add();
}

/// A control plane goes only if etcd lives on without it.
fn control_plane(
    course: &mut Course<'_, '_>,
    name: &str,
    owned: &Owned<'_>,
    etcd: &Etcd,
    members: &mut Vec<Member>,
    last: &mut Vec<StepId>,
) -> Result<(), String> {
    let survey = course.survey;
    let member = members.iter().find(|member| member.name == name).cloned();
    if let (Etcd::Exists, Seen::Unknown(why)) = (etcd, &survey.observed.etcd) {
        return Err(format!("whether etcd survives it is unknown: {why}"));
    }
    let rest: Vec<Member> = members.iter().filter(|other| other.name != name).cloned().collect();
    let by = match &member {
        Some(member) if member.votes() => {
            gate::may_leave(members, name)?;
            Some(who_takes_out(course, member, &rest)?)
        }
        Some(member) => Some(who_takes_out(course, member, &rest)?),
        // It may be one by the time it goes, and then somebody must tell.
        None if may_join(survey, name, owned) && matches!(etcd, Etcd::Exists) => survivor(course, &rest).map(|_| None)?,
        None => None,
    };
    *members = rest;
    let marked = repair(survey, name, owned, &mut course.draft);
    let needs: Vec<StepId> = marked.into_iter().chain(last.iter().copied()).collect();
    let leaves = matches!(by, Some(LeaveBy::Itself(_)));
    let votes = member.as_ref().is_some_and(Member::votes);
    let spare = survivor(course, members).ok().map(|by| Spare {
        member: EtcdMember {
            name: name.to_owned(),
            id: member.as_ref().map_or(0, |member| member.id),
        },
        by,
        may_join: !leaves && !votes && may_join(survey, name, owned),
    });
    let why = why(survey, name, owned);
    let end = match member.zip(by) {
        None => go(course, name, owned, spare, needs),
        Some((member, by @ LeaveBy::Itself(_))) => {
            let left = leave(course, &member, by, why, needs);
            let needs = [left].into_iter().chain(last.iter().copied()).collect();
            go(course, name, owned, spare, needs)
        }
        Some((member, by @ LeaveBy::Survivor(_))) => {
            let gone = go(course, name, owned, spare, needs);
            leave(course, &member, by, why, vec![gone])
        }
    };
    *last = vec![end];
    Ok(())
}

/// A control plane that runs joins etcd as soon as it can. Not one that left, or that was never configured.
fn may_join(survey: &Survey<'_>, name: &str, owned: &Owned<'_>) -> bool {
    let stays_out = match survey.talos(name) {
        Some(Talos::Maintenance { .. }) => true,
        Some(Talos::Running(node)) => node.etcd == Seen::Yes(EtcdState::Left),
        _ => false,
    };
    owned.runs() && owned.is_filled() && !stays_out
}

/// Members whose machine is gone and not wanted again. They count for the majority, so they must not stay.
fn orphans(course: &mut Course<'_, '_>, members: &mut Vec<Member>, last: &mut Vec<StepId>) {
    let survey = course.survey;
    let is_one_joining = survey
        .ours
        .iter()
        .filter(|(name, owned)| owned.runs() && is_control_plane(owned, survey.wanted.get(name.as_str()).copied()))
        .any(|(name, _)| !members.iter().any(|member| member.name == *name));
    let is_orphan = |member: &&Member| {
        let known = survey.wanted.contains_key(member.name.as_str()) || survey.ours.contains_key(&member.name);
        // Without a name it is called by its address, and could be one of ours that is about to start.
        let starts = is_one_joining && member.name.parse::<IpAddr>().is_ok();
        !member.name.is_empty() && !known && !starts && survey.unknown.is_empty()
    };
    for member in members.iter().filter(is_orphan).cloned().collect::<Vec<_>>() {
        let gated = if member.votes() {
            gate::may_leave(members, &member.name)
        } else {
            Ok(())
        };
        let rest: Vec<Member> = members.iter().filter(|other| other.id != member.id).cloned().collect();
        match gated.and_then(|()| who_takes_out(course, &member, &rest)) {
            Ok(by) => {
                *members = rest;
                *last = vec![leave(course, &member, by, UNWANTED, last.clone())];
            }
            Err(reason) => course
                .draft
                .hold(Subject::Node(member.name.clone()), "remove", Hold::for_now(reason)),
        }
    }
}

/// A member leaves by itself while it answers; else one of the rest removes it.
fn who_takes_out(course: &Course<'_, '_>, member: &Member, rest: &[Member]) -> Result<LeaveBy, String> {
    let survey = course.survey;
    let own_address = survey.ours.get(&member.name).and_then(|owned| owned.config.address);
    let answers = matches!(survey.talos(&member.name), Some(Talos::Running(_)));
    match own_address.filter(|_| answers && member.healthy) {
        Some(address) => Ok(LeaveBy::Itself(address.addr())),
        None => survivor(course, rest).map(LeaveBy::Survivor),
    }
}

pub(crate) fn leave(course: &mut Course<'_, '_>, member: &Member, by: LeaveBy, why: &str, needs: Vec<StepId>) -> StepId {
    let subject = Subject::Machine(member.name.clone());
    let action = Action::EtcdLeave {
        member: EtcdMember {
            name: member.name.clone(),
            id: member.id,
        },
        by,
    };
    course
        .draft
        .step(subject, action)
        .because(why)
        .impact(Impact::Live)
        .needs(needs)
        .add()
}

pub(crate) fn survivor(course: &Course<'_, '_>, rest: &[Member]) -> Result<Peer, String> {
    let healthy = |wanted: &&Wanted| {
        rest.iter()
            .any(|member| member.name == wanted.name() && member.healthy && member.votes())
    };
    let found = course.wish.control_planes().find(healthy);
    found
        .map(|wanted| Peer {
            machine: wanted.name().to_owned(),
            address: wanted.address(),
        })
        .ok_or_else(|| "no healthy control plane is there to take it out of etcd".to_owned())
}

/// Stop, Node, VM. Returns the last.
fn go(course: &mut Course<'_, '_>, name: &str, owned: &Owned<'_>, spare: Option<Spare>, needs: Vec<StepId>) -> StepId {
    let survey = course.survey;
    let stopped = stop(name, owned, spare.clone(), needs.clone(), &mut course.draft);
    let mut before: Vec<StepId> = needs;
    before.extend(stopped);
    if may_be_node(survey, name, owned) {
        let subject = Subject::Machine(name.to_owned());
        let adding = course
            .draft
            .step(subject, Action::NodeDelete)
            .because("its machine goes")
            .impact(Impact::Live);
        before.push(adding.needs(before.clone()).add());
    }
    let first = before.first().copied();
    let why = "left by its machine, which goes";
    before.extend(free_leftovers(survey, owned.vm.vmid, why, first, &mut course.draft));
    delete(survey, name, owned, spare, before, &mut course.draft)
}

/// It is a Node, or could become one before it is stopped.
fn may_be_node(survey: &Survey<'_>, name: &str, owned: &Owned<'_>) -> bool {
    let waits = matches!(survey.talos(name), Some(Talos::Maintenance { .. }));
    let kubernetes = survey.observed.kubernetes.yes();
    kubernetes.is_some_and(|kubernetes| kubernetes.nodes.contains_key(name) || owned.runs() && owned.is_filled() && !waits)
}

fn stop(name: &str, owned: &Owned<'_>, spare: Option<Spare>, needs: Vec<StepId>, draft: &mut Draft) -> Option<StepId> {
    if owned.vm.power == Power::Stopped {
        return None;
    }
    let action = Action::MachineStop { vm: owned.at(), spare };
    let adding = draft
        .step(Subject::Machine(name.to_owned()), action)
        .because("it goes")
        .impact(Impact::Live);
    Some(adding.needs(needs).add())
}

fn delete(
    survey: &Survey<'_>,
    name: &str,
    owned: &Owned<'_>,
    spare: Option<Spare>,
    needs: Vec<StepId>,
    draft: &mut Draft,
) -> StepId {
    let volumes = volume::going(survey.desired, owned);
    let action = Action::MachineDelete {
        vm: owned.at(),
        volumes: volumes.made.into_iter().collect(),
        with_disks: volumes.with_disks.into_iter().collect(),
        spare,
        purge: owned.vm.ha,
        only_going: survey.wanted.contains_key(name),
    };
    let reason = why(survey, name, owned);
    // A person put it under HA: an approval must say that this goes with it.
    let reason = if owned.vm.ha {
        format!("{reason}; HA forgets it")
    } else {
        reason.to_owned()
    };
    draft
        .step(Subject::Machine(name.to_owned()), action)
        .because(reason)
        .impact(Impact::Wipe)
        .needs(needs)
        .add()
}

fn why(survey: &Survey<'_>, name: &str, owned: &Owned<'_>) -> &'static str {
    match survey.desired.wish() {
        None => "nothing is wanted",
        Some(_) if survey.wanted.contains_key(name) && owned.is_half_destroyed(survey.observed) => HALF,
        Some(_) => UNWANTED,
    }
}

/// Puts marks back, so that the proof is whole when the deletion asks for it.
fn repair(survey: &Survey<'_>, name: &str, owned: &Owned<'_>, draft: &mut Draft) -> Option<StepId> {
    if owned.missing.is_empty() {
        return None;
    }
    let known = owned.mark.clone().map(|mark| Mark { lease: None, ..mark });
    let mark = known.unwrap_or_else(|| Mark {
        cluster: survey.desired.cluster.clone(),
        cluster_id: survey.desired.id(),
        machine: name.to_owned(),
        role: survey
            .desired
            .vmids
            .get(&owned.vm.vmid)
            .map_or(Role::Worker, |claimant| claimant.role),
        vmid: owned.vm.vmid,
        shape: None,
        versions: None,
        bootstrap: false,
        going: false,
        disks: None,
        lease: None,
    });
    let remark = Remark {
        vm: owned.at(),
        mark,
        tags: [TAG.to_owned()].into(),
    };
    let missing: Vec<String> = owned.missing.iter().map(ToString::to_string).collect();
    let why = format!("ours by its UUID, but its {} is missing", missing.join(" and "));
    Some(
        draft
            .step(Subject::Machine(name.to_owned()), Action::MachineMark(Box::new(remark)))
            .because(why)
            .add(),
    )
}

/// Why a VM of ours cannot be removed, whatever the cluster says.
fn unremovable(survey: &Survey<'_>, owned: &Owned<'_>) -> Option<Hold> {
    if let Some(hold) = no_quorum(survey.observed) {
        return Some(hold);
    }
    if owned.config.protection {
        let vmid = owned.vm.vmid;
        let reason = format!("it is protected in PVE, which mainstay respects; to lift it: qm set {vmid} --protection 0");
        return Some(reason.into());
    }
    if let Seen::Unknown(why) = &owned.config.snapshots {
        return Some(Hold::for_now(format!(
            "whether snapshots of it have disks of their own is unknown: {why}"
        )));
    }
    if let Some(hold) = volume::hold(owned.vm.vmid, &volume::going(survey.desired, owned).strange) {
        return Some(hold);
    }
    if owned.vm.template {
        return None;
    }
    owned.blocked(survey.observed)
}

/// Without quorum PVE destroys the disks, then fails and keeps the config: the worst of both.
fn no_quorum(observed: &Observed) -> Option<Hold> {
    match &observed.quorate {
        Seen::Yes(true) => None,
        Seen::Yes(false) | Seen::No => Some("PVE has no quorum".to_owned().into()),
        Seen::Unknown(why) => Some(Hold::for_now(format!("whether PVE has quorum is unknown: {why}"))),
    }
}

/// Why nothing may leave the cluster now.
fn unsafe_now(survey: &Survey<'_>, etcd: &Etcd) -> Option<String> {
    match (etcd, &survey.observed.kubernetes) {
        (Etcd::Unknown(why), _) => Some(format!("a control plane cannot be read: {why}")),
        (Etcd::Exists, Seen::Unknown(why)) => Some(format!("its Node cannot be removed, Kubernetes does not answer: {why}")),
        _ => None,
    }
}
