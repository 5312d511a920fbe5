//! The plan of a cluster, as a list of passes: machines first, then what runs in them, then etcd, then nodes, then what must go.

use std::collections::BTreeSet;

use crate::builder::PlanBuilder;
use crate::conflicts;
use crate::context::{Context, Inputs};
use crate::counts;
use crate::desired::{Desired, Goal};
use crate::drain;
use crate::etcd::{self, EtcdChain, EtcdPresence};
use crate::guest;
use crate::images::{self, ImageTable};
use crate::join;
use crate::kubernetes;
use crate::node;
use crate::node_settings;
use crate::observed::{Observed, Seen};
use crate::ownership::OwnedVms;
use crate::placement;
use crate::plan::{Plan, Unchanged};
use crate::releases::{AddonPass, Underway};
use crate::removal;
use crate::turns;
use crate::upgrade;
use crate::vm;

/// What must be done so that `observed` becomes `desired`. Nothing, when it is so already.
pub fn plan(desired: &Desired, observed: &Observed) -> Plan {
    let mut plan = PlanBuilder::new(desired);
    conflicts::check_preconditions(desired, observed, &mut plan);
    // Without the list of VMs nothing can be told apart from what belongs to others.
    let Seen::Yes(vms) = &observed.vms else {
        return plan.finish(|_| Unchanged::default());
    };
    if plan.is_refused() {
        return plan.finish(|_| Unchanged::default());
    }
    let owned = OwnedVms::new(desired, vms);
    let inputs = Inputs {
        desired,
        observed,
        owned: &owned,
    };
    match &desired.goal {
        Goal::Cluster(cluster) => {
            let ctx = Context { inputs, cluster };
            if desired.policy.ends {
                drain::release(ctx, &BTreeSet::new(), &mut plan);
                return plan.finish(|_| Unchanged::default());
            }
            let is_complete = plan_cluster(ctx, &mut plan);
            plan.finish(|plan| {
                if is_complete {
                    counts::unchanged(ctx, plan)
                } else {
                    Unchanged::default()
                }
            })
        }
        Goal::Absent { images } => {
            conflicts::refuse_teardown(inputs, &mut plan);
            removal::plan_teardown(inputs, images, &mut plan);
            plan.finish(|_| Unchanged::default())
        }
    }
}

/// Every pass adds its steps to `plan` and returns what later passes must know. `false`: refused before any step was planned.
fn plan_cluster(ctx: Context<'_>, plan: &mut PlanBuilder) -> bool {
    conflicts::refuse(ctx, plan);
    let etcd = etcd::inspect(ctx);
    let mut addons = AddonPass::new(ctx, &etcd);
    addons.refuse(plan);
    let placement = placement::place(ctx, plan);
    if plan.is_refused() {
        return false;
    }
    addons.charts(plan);
    let mut images = ImageTable::inspect(ctx);
    let mut vms = vm::plan(ctx, &placement, &mut images, plan);
    let guests = guest::inspect(ctx, &vms, plan);
    let configs = guest::compare(ctx, &guests, plan);
    let prepared = join::prepare(ctx, &placement, &vms, &guests, plan);
    let chain = join::complete_founding(ctx, &etcd, EtcdChain::observed(ctx), plan);
    let (mut configured, chain) = join::configure(ctx, &vms, &guests, &etcd, &prepared, chain, plan);
    let upgrades = upgrade::plan(ctx, &guests, &mut images, plan);
    let changes_system = !upgrades.is_empty();
    let turns = turns::collect(ctx, &mut vms, (configs, upgrades), &guests);
    let (bootstrap, turned, chain) = match &etcd.presence {
        // Nothing depends on these machines yet, so they change before etcd begins.
        EtcdPresence::NotBootstrapped => {
            let (turned, chain) = turns::plan(ctx, turns, &etcd, &configured, chain, plan);
            configured.extend(&turned.ended);
            let mut ready = prepared.clone();
            ready.extend(&configured);
            let bootstrap = join::bootstrap(ctx, &placement, &vms, &guests, &etcd, &ready, plan);
            let chain = chain.after(bootstrap);
            let founding = etcd.founder.zip(bootstrap);
            let chain = join::configure_joiners(ctx, &guests, &prepared, founding, &mut configured, chain, plan);
            (
                bootstrap,
                turned,
                join::await_members(ctx, &guests, &configured, bootstrap, chain, plan),
            )
        }
        // Members that are missing join before another one goes down.
        EtcdPresence::Exists => {
            let chain = join::await_members(ctx, &guests, &configured, None, chain, plan);
            let (turned, chain) = turns::plan(ctx, turns, &etcd, &configured, chain, plan);
            (None, turned, chain)
        }
        EtcdPresence::Unknown(_) => {
            let (turned, chain) = turns::plan(ctx, turns, &etcd, &configured, chain, plan);
            (None, turned, chain)
        }
    };
    let underway = Underway {
        guests: &guests,
        bootstrap,
        turned: &turned.awaited,
    };
    let network = addons.network(underway, plan);
    let awaited = node::plan(ctx, underway, &etcd, &configured, network, plan);
    node_settings::plan(ctx, &awaited, plan);
    addons.rest(underway, network, plan);
    drain::release(ctx, &turned.cordoned, plan);
    // One version changes at a time: that of the system first, where both could.
    if matches!(etcd.presence, EtcdPresence::Exists) && !changes_system {
        kubernetes::plan(ctx, &guests, &chain.tail, plan);
    }
    // Removals start from the observed members: they must not rely on joins of this plan.
    removal::plan(ctx, &etcd, chain.tail, vms.freed, plan);
    images::judge_publisher(ctx, plan);
    true
}
