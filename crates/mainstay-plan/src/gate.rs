//! Gates: what must hold before a control plane may go down or go away.

use crate::observed::Member;

/// The members after `name` joined. One that votes already counts as it was seen: that it is well again is seen by the next plan.
pub(crate) fn join(members: &mut Vec<Member>, name: &str) {
    if !members.iter().any(|member| member.name == name && member.votes()) {
        members.retain(|member| member.name != name);
        members.push(Member {
            id: 0,
            name: name.to_owned(),
            learner: false,
            healthy: true,
        });
    }
}

/// Whether etcd keeps its majority while `name` is down. The only member may go down: there is nobody else to ask.
pub(crate) fn may_restart(members: &[Member], name: &str) -> Result<(), String> {
    let voters: Vec<&Member> = members.iter().filter(|member| member.votes()).collect();
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
pub(crate) fn may_leave(members: &[Member], name: &str) -> Result<(), String> {
    let voters: Vec<&Member> = members.iter().filter(|member| member.votes()).collect();
    let healthy = voters.iter().filter(|voter| voter.healthy).count();
    if healthy < majority(voters.len()) {
        return Err(short(&voters, healthy, "now, so it cannot change its members"));
    }
    let rest: Vec<&Member> = voters.iter().copied().filter(|voter| voter.name != name).collect();
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

fn short(voters: &[&Member], healthy: usize, when: &str) -> String {
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
    fn members(text: &str) -> Vec<Member> {
        let member = |(id, word): (u64, &str)| Member {
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
