//! The last check before a control plane restarts, stops or is removed: does etcd keep its majority without it?
//!
//! The plan checked that, but other members may have gone since, and a step that lost an answer is repeated minutes later.

use std::time::Duration;

use futures::future::join_all;
use mainstay_plan::{GuestRef, QuorumCheck};
use tokio::time::Instant;

use crate::failure::Failure;
use crate::guest::{self, ListedMember, StepContext};
use crate::wait::{self, WaitStatus};

/// A machine that is not listed by then hardly joins, and neither does a learner after as much again: a vote is tried for every fifteen
/// seconds.
const MAY_JOIN: Duration = Duration::from_secs(60);

/// Before a restart. A machine without etcd data is no member.
pub async fn check_restart(ctx: StepContext<'_>, guest: &GuestRef, check: Option<&QuorumCheck>) -> Result<(), Failure> {
    let Some(check) = check else { return Ok(()) };
    if guest::has_etcd_data(ctx, &guest.machine).await.is_ok_and(|data| !data) {
        return Ok(());
    }
    check_quorum_without(ctx, Some(check)).await
}

/// Before a stop or a removal. A machine that left, or never was a member, is not listed and may go.
pub async fn check_quorum_without(ctx: StepContext<'_>, check: Option<&QuorumCheck>) -> Result<(), Failure> {
    let Some(check) = check else { return Ok(()) };
    let members = list_members(ctx, &check.ask).await?;
    let (mut own, others): (Vec<_>, Vec<_>) = members.iter().partition(|member| member.is(&check.member));
    let others: Vec<_> = others.into_iter().filter(|member| !member.learner).collect();
    own.retain(|member| !member.learner || guest::promotes_stopped_learners(ctx.guests));
    // The only voter may always go: no other member depends on it.
    if own.is_empty() || others.is_empty() {
        return Ok(());
    }
    let (healthy, voters) = (count_healthy(ctx, &others).await, own.len() + others.len());
    if healthy > voters / 2 {
        return Ok(());
    }
    Err(
        Failure::stale_plan(format!("stopping {} would break etcd quorum", check.member.name))
            .why(format!("only {healthy} of its {voters} voters are healthy besides it")),
    )
}

/// A vote that a machine gets in the moment of its stop would count for the majority and be missing in it. So a machine that may be about
/// to join is given the time to do so, and then to leave, unless etcd keeps its majority without that vote as well.
pub async fn await_not_joining(ctx: StepContext<'_>, check: Option<&QuorumCheck>) -> Result<(), Failure> {
    let Some(check) = check.filter(|check| check.may_join) else {
        return Ok(());
    };
    let name = &check.member.name;
    let (mut since, mut was_listed) = (Instant::now(), false);
    let what = format!("cannot confirm that {name} stays out of etcd");
    wait::until(ctx.jitter, ctx.progress, &what, MAY_JOIN * 3, async || {
        let members = list_members(ctx, &check.ask).await?;
        let (own, others): (Vec<_>, Vec<_>) = members.iter().partition(|member| member.is(&check.member));
        let voters: Vec<_> = others.into_iter().filter(|member| !member.learner).collect();
        if count_healthy(ctx, &voters).await > voters.len().div_ceil(2) {
            return Ok(WaitStatus::Done(()));
        }
        let is_joining = !own.is_empty() && guest::promotes_stopped_learners(ctx.guests);
        if is_joining || own.iter().any(|member| !member.learner) {
            return Err(Failure::stale_plan(format!(
                "{name} joined etcd meanwhile; it must leave etcd before it is stopped"
            )));
        }
        if !own.is_empty() && !was_listed {
            (since, was_listed) = (Instant::now(), true);
        }
        if since.elapsed() >= MAY_JOIN {
            return Ok(WaitStatus::Done(()));
        }
        Ok(WaitStatus::Waiting(format!(
            "{name} may be about to join etcd and would have to leave it again"
        )))
    })
    .await
}

/// The members, from the first of these machines that lists them.
async fn list_members(ctx: StepContext<'_>, ask: &[String]) -> Result<Vec<ListedMember>, Failure> {
    let mut last = Failure::stale_plan("no control plane is left that lists the members of etcd");
    for machine in ask {
        match guest::members(ctx, machine).await {
            Ok(members) => return Ok(members),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

/// Each member is asked itself: what others say about it may be old.
async fn count_healthy(ctx: StepContext<'_>, members: &[&ListedMember]) -> usize {
    let asked = members.iter().map(|member| async move {
        let address = ctx.addresses.get(&member.name).or(member.address);
        match address {
            Some(address) => guest::has_healthy_etcd(ctx.guests, address).await,
            None => false,
        }
    });
    join_all(asked).await.into_iter().filter(|healthy| *healthy).count()
}
