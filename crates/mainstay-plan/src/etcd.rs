//! Etcd: whether it exists, what must hold before a member goes down or leaves, and the steps that change its members.

use crate::action::Action;
use crate::builder::PlanBuilder;
use crate::context::Context;
use crate::desired::DesiredMachine;
use crate::observed::{EtcdMember, EtcdState, Guest, Seen};
use crate::ownership::{OwnedVm, VmLookup};
use crate::step::{Impact, MemberRef, MemberRemoval, StepId, Subject};

/// Whether there is an etcd cluster. A second bootstrap would make a second cluster, so it is planned only when this is certain.
#[derive(Debug, Clone)]
pub(crate) enum EtcdPresence {
    /// Every control plane that has a disk was read, and none has data.
    NotBootstrapped,
    Exists,
    /// A control plane that could have data cannot be read.
    Unknown(String),
}

/// What the passes must know about etcd before they begin.
pub(crate) struct EtcdFacts<'a> {
    pub presence: EtcdPresence,
    /// Where etcd begins: the machine whose mark says so, else the first control plane of the file.
    pub founder: Option<&'a DesiredMachine>,
}

pub(crate) fn inspect<'a>(ctx: Context<'a>) -> EtcdFacts<'a> {
    let control_planes = || ctx.cluster.control_planes();
    let founder = control_planes()
        .find(|machine| is_recorded_founder(ctx, machine))
        .or_else(|| control_planes().next());
    EtcdFacts {
        presence: presence(ctx),
        founder,
    }
}

/// The mark of the machine says that etcd begins there.
pub(crate) fn is_recorded_founder(ctx: Context<'_>, machine: &DesiredMachine) -> bool {
    let mark = ctx.owned.ours.get(machine.name()).and_then(|vm| vm.mark.as_ref());
    mark.is_some_and(|mark| mark.bootstrap)
}

/// When in doubt there may be one.
fn presence(ctx: Context<'_>) -> EtcdPresence {
    let is_seen = !ctx.members().is_empty() || ctx.observed.kubernetes.yes().is_some();
    if is_seen || ctx.observed.guests.values().any(Guest::has_etcd_data) {
        return EtcdPresence::Exists;
    }
    let unknown_vm = ctx.cluster.control_planes().find_map(|machine| match ctx.lookup(machine) {
        VmLookup::Unknown(why) => Some(format!("{}: {why}", machine.name())),
        VmLookup::Absent | VmLookup::Found(_) => None,
    });
    let unread = || {
        let mut control_planes = ctx.owned.ours.iter().filter(|(name, vm)| ctx.is_control_plane(name, vm));
        control_planes.find_map(|(name, vm)| data_unknown(ctx, name, vm).filter(|_| vm.may_hold_data(ctx.observed)))
    };
    unknown_vm
        .or_else(unread)
        .map_or(EtcdPresence::NotBootstrapped, EtcdPresence::Unknown)
}

/// Why it is unknown whether a control plane has etcd data.
pub(crate) fn data_unknown(ctx: Context<'_>, name: &str, vm: &OwnedVm<'_>) -> Option<String> {
    if !vm.runs() {
        return Some(format!("{name} does not run"));
    }
    let ours = ctx.uuid(name);
    match ctx.guest(name) {
        // A machine that was never configured never was a member.
        Some(guest) if guest.awaits_config(ours) => None,
        Some(Guest::Running(node)) if node.uuid == ours => node.etcd.unknown().map(|why| format!("{name}: {why}")),
        Some(Guest::Silent(why) | Guest::Foreign(why)) => Some(format!("{name}: {why}")),
        _ => Some(format!("{name} was not read")),
    }
}

/// The member of this machine was removed from etcd while the machine kept its data. Etcd rejects such data for ever.
pub(crate) fn was_removed(ctx: Context<'_>, name: &str) -> bool {
    let unwell = matches!(ctx.guest(name), Some(Guest::Running(node)) if node.etcd == Seen::Yes(EtcdState::Unhealthy));
    // A member that never started has no name yet.
    let is = |member: &EtcdMember| member.name == name || member.name.is_empty();
    let members = ctx.observed.etcd.yes();
    unwell && members.is_some_and(|members| !members.iter().any(is))
}

pub(crate) fn is_healthy_voter(ctx: Context<'_>, name: &str) -> bool {
    let is = |member: &EtcdMember| member.name == name && member.votes() && member.healthy;
    ctx.members().iter().any(is)
}

/// Steps that change etcd's members, one after another, and the members after them. Passes take it by value and return it.
pub(crate) struct EtcdChain {
    /// The last steps that concern etcd: the next one waits for them.
    pub tail: Vec<StepId>,
    pub members: Vec<EtcdMember>,
}

impl EtcdChain {
    pub fn observed(ctx: Context<'_>) -> Self {
        Self {
            tail: Vec::new(),
            members: ctx.members().to_vec(),
        }
    }

    /// The chain with this step as its end, if there is one.
    pub fn after(mut self, step: Option<StepId>) -> Self {
        if let Some(step) = step {
            self.tail = vec![step];
        }
        self
    }

    /// Adds a wait until the machine is a healthy voter. One that votes already counts as it was observed: the next plan sees whether it
    /// is well again.
    pub fn join(
        &mut self,
        ctx: Context<'_>,
        machine: &DesiredMachine,
        why: &str,
        needs: Vec<StepId>,
        plan: &mut PlanBuilder,
    ) -> StepId {
        let name = machine.name();
        if !self.members.iter().any(|member| member.name == name && member.votes()) {
            self.members.retain(|member| member.name != name);
            self.members.push(EtcdMember {
                id: 0,
                name: name.to_owned(),
                learner: false,
                healthy: true,
            });
        }
        let guest = ctx.guest_ref(name);
        plan.machine_step(machine, Action::EtcdJoin { guest })
            .because(why)
            .needs(needs)
            .add()
    }
}

pub(crate) fn leave(
    ctx: Context<'_>,
    member: &EtcdMember,
    by: MemberRemoval,
    why: &str,
    needs: Vec<StepId>,
    plan: &mut PlanBuilder,
) -> StepId {
    let action = Action::EtcdLeave {
        member: MemberRef {
            name: member.name.clone(),
            id: member.id,
        },
        by,
        ask: ctx.other_control_planes(&member.name),
    };
    let subject = Subject::Machine(member.name.clone());
    plan.step(subject, action)
        .because(why)
        .impact(Impact::Live)
        .needs(needs)
        .add()
}

/// A healthy voter of the file among `rest` that can list and remove members.
pub(crate) fn healthy_peer(ctx: Context<'_>, rest: &[EtcdMember]) -> Result<String, String> {
    let is_voter = |name: &str| {
        rest.iter()
            .any(|member| member.name == name && member.healthy && member.votes())
    };
    let found = ctx.cluster.control_planes().find(|machine| is_voter(machine.name()));
    found
        .map(|machine| machine.name().to_owned())
        .ok_or_else(|| "no healthy control plane can remove it from etcd".to_owned())
}

/// Whether etcd keeps its majority while `name` is down. The only member may go down: no other one depends on it.
pub(crate) fn may_restart(members: &[EtcdMember], name: &str) -> Result<(), String> {
    let voters: Vec<&EtcdMember> = members.iter().filter(|member| member.votes()).collect();
    if voters.iter().all(|voter| voter.name == name) || voters.iter().all(|voter| voter.name != name) {
        return Ok(());
    }
    let others = voters.iter().filter(|voter| voter.healthy && voter.name != name).count();
    if others >= majority(voters.len()) {
        Ok(())
    } else {
        Err(short(&voters, others, "while it restarts"))
    }
}

/// Whether etcd can take `name` out and keeps its majority without it.
pub(crate) fn may_leave(members: &[EtcdMember], name: &str) -> Result<(), String> {
    let voters: Vec<&EtcdMember> = members.iter().filter(|member| member.votes()).collect();
    let healthy = voters.iter().filter(|voter| voter.healthy).count();
    if healthy < majority(voters.len()) {
        return Err(short(&voters, healthy, "now, so it cannot change its members"));
    }
    let rest: Vec<&EtcdMember> = voters.iter().copied().filter(|voter| voter.name != name).collect();
    let left = rest.iter().filter(|voter| voter.healthy).count();
    match rest.len() {
        0 => Err("it is the only etcd member".to_owned()),
        count if left >= majority(count) => Ok(()),
        _ => Err(short(&rest, left, "without it")),
    }
}

fn majority(voters: usize) -> usize {
    voters / 2 + 1
}

fn short(voters: &[&EtcdMember], healthy: usize, when: &str) -> String {
    let sick: Vec<&str> = voters
        .iter()
        .filter(|voter| !voter.healthy)
        .map(|voter| voter.name.as_str())
        .collect();
    let named = if sick.is_empty() {
        String::new()
    } else {
        format!(" (not healthy: {})", sick.join(", "))
    };
    format!(
        "etcd would have {healthy} of {} healthy members {when} and needs {}{named}",
        voters.len(),
        majority(voters.len())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a` is a healthy voter, `A` a sick one, `a?` a learner.
    fn members(text: &str) -> Vec<EtcdMember> {
        let member = |(id, word): (u64, &str)| EtcdMember {
            id,
            name: word.trim_end_matches('?').to_lowercase(),
            learner: word.ends_with('?'),
            healthy: word.starts_with(|c: char| c.is_lowercase()),
        };
        (1..).zip(text.split_whitespace()).map(member).collect()
    }

    #[test]
    fn a_member_may_restart_only_if_the_others_are_a_majority() {
        for (world, name, may) in [
            ("a", "a", true),
            ("a b", "a", false),
            ("a b c", "a", true),
            ("a B c", "a", false),
            ("a B c", "b", true),
            ("a b c d", "a", true),
            ("a b c D", "a", false),
            ("a b c D e", "a", true),
            ("a B c D e", "a", false),
            ("a b c? ", "a", false),
            ("a b c", "x", true),
        ] {
            assert_eq!(may_restart(&members(world), name).is_ok(), may, "{world}: {name}");
        }
    }

    #[test]
    fn a_member_may_leave_only_if_the_rest_is_a_working_cluster() {
        for (world, name, may) in [
            ("a", "a", false),
            ("a b", "a", true),
            ("a B", "b", false),
            ("a b c", "a", true),
            ("a B c", "a", false),
            ("a B c", "b", true),
            ("A B c", "a", false),
            ("a b c D", "d", true),
            ("a b c D", "a", true),
            ("a b C D e", "a", false),
        ] {
            assert_eq!(may_leave(&members(world), name).is_ok(), may, "{world}: {name}");
        }
    }

    #[test]
    fn a_refusal_counts_and_names() {
        let reason = may_restart(&members("a B c"), "a").unwrap_err();
        assert_eq!(
            reason,
            "etcd would have 1 of 3 healthy members while it restarts and needs 2 (not healthy: b)"
        );
    }
}
