//! Cordon, drain and budgets around what disturbs running machines.

use expect_test::expect;
use mainstay_plan::{Action, HoldKind, NodeCordon, Plan, PowerState, Seen};

use crate::world::{ONE, THREE_AND_TWO, World, settled};

/// Three control planes and four workers, of which `max` may be unavailable at once.
fn workers(max: usize) -> World {
    let pool = format!("count: 4, max-unavailable: {max}");
    settled(&THREE_AND_TWO.replace("count: 2", &pool)).edit("disk: 60GiB", "disk: 60GiB, patches: [proxy.yaml]")
}

/// The steps of a kind, by machine.
fn machines(plan: &Plan, kind: &str) -> Vec<String> {
    let steps = plan.steps.iter().filter(|step| step.action.name() == kind);
    steps.map(|step| step.subject.to_string()).collect()
}

/// At most so many machines are cordoned at once, whatever the order within the needs.
fn most_cordoned_at_once(plan: &Plan) -> usize {
    let cordons: Vec<_> = plan
        .steps
        .iter()
        .filter(|step| matches!(step.action, Action::NodeCordon { .. }))
        .collect();
    let ends_before = |a: &mainstay_plan::Step, b: &mainstay_plan::Step| {
        let end = plan
            .steps
            .iter()
            .find(|step| matches!(step.action, Action::NodeUncordon { .. }) && step.subject == a.subject);
        let mut open = b.needs.clone();
        while let Some(id) = open.pop() {
            if end.is_some_and(|end| end.id == id) {
                return true;
            }
            open.extend(&plan.step(id).unwrap().needs);
        }
        false
    };
    // No two of a set that is open at once wait for each other.
    let at_once = |set: u32| {
        let chosen: Vec<_> = (0..cordons.len())
            .filter(|at| set & (1 << at) != 0)
            .map(|at| cordons[at])
            .collect();
        let ordered = chosen
            .iter()
            .any(|a| chosen.iter().any(|b| a.id != b.id && ends_before(a, b)));
        if ordered { 0 } else { chosen.len() }
    };
    (0..1_u32 << cordons.len()).map(at_once).max().unwrap_or_default()
}

#[test]
fn as_many_workers_of_a_pool_are_cordoned_at_once_as_its_budget_allows() {
    for max in [1, 2, 3] {
        let mut world = workers(max);
        let plan = world.plan();
        assert_eq!(machines(&plan, "node.drain").len(), 4);
        assert_eq!(most_cordoned_at_once(&plan), max, "{}", plan.trace());
        world.settle();
        assert!(world.cordons.is_empty());
    }
}

#[test]
fn a_worker_that_a_person_cordoned_counts_for_the_budget_and_stays_cordoned() {
    let mut world = workers(1).changed(|world| {
        world.cordons.insert("prod-w-3".into(), NodeCordon::Foreign);
    });
    let plan = world.plan();
    // It costs no budget itself, and its turn comes first.
    assert_eq!(machines(&plan, "machine.reboot"), ["prod-w-3"], "{}", plan.trace());
    expect![[r#"
        ~ machine prod-w-3 vm 3003 pve3 drain, new config, reboot: config differs at machine.env.HTTP_PROXY
        . change prod-w-1 held: prod-w-3 is unavailable already: another person or program cordoned it; to go on all the same: --despite prod-w-3 (waits: config differs at machine.env.HTTP_PROXY)
        . change prod-w-2 held: prod-w-3 is unavailable already: another person or program cordoned it; to go on all the same: --despite prod-w-3 (waits: config differs at machine.env.HTTP_PROXY)
        . change prod-w-4 held: prod-w-3 is unavailable already: another person or program cordoned it; to go on all the same: --despite prod-w-3 (waits: config differs at machine.env.HTTP_PROXY)"#]]
    .assert_eq(&plan.render());
    world.policy.despite.insert("prod-w-3".into());
    world.settle();
    assert_eq!(world.cordons.get("prod-w-3"), Some(&NodeCordon::Foreign));
    assert!(world.plan().held.is_empty());
}

#[test]
fn a_worker_that_is_not_ready_takes_its_turn_first_and_is_not_drained() {
    let world = workers(1).blurred(|seen| {
        if let Seen::Yes(kubernetes) = &mut seen.kubernetes {
            let node = kubernetes.nodes.get_mut("prod-w-4").unwrap();
            (node.ready, node.why) = (false, "kubelet stopped posting status".into());
        }
    });
    let plan = world.plan();
    assert_eq!(machines(&plan, "machine.reboot")[0], "prod-w-4", "{}", plan.trace());
    assert!(!machines(&plan, "node.drain").contains(&"prod-w-4".to_owned()));
    assert_eq!(machines(&plan, "node.drain").len(), 3);
}

#[test]
fn a_cordon_of_a_run_that_was_killed_is_ended_and_that_of_a_person_is_not() {
    let mut world = settled(THREE_AND_TWO);
    world.cordons.insert("prod-w-1".into(), NodeCordon::Ours);
    world.cordons.insert("prod-w-2".into(), NodeCordon::Foreign);
    world.cordons.insert("prod-cp-1".into(), NodeCordon::Ended);
    expect![[r#"
        1 node.uncordon prod-cp-1 [live]: a person ended the cordon of mainstay, whose record is left
        2 node.uncordon prod-w-1 [live]: mainstay cordoned it, and no turn of it is open"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(
        world.cordons.into_iter().collect::<Vec<_>>(),
        [("prod-w-2".to_owned(), NodeCordon::Foreign)]
    );
}

#[test]
fn a_turn_that_was_interrupted_after_its_cordon_ends_with_an_uncordon_of_its_own() {
    let mut world = workers(1);
    let plan = world.plan();
    world.apply_some(&plan, |step| {
        step.action.name() == "node.drain" && step.subject.to_string() == "prod-w-1"
    });
    let plan = world.plan();
    assert_eq!(
        machines(&plan, "node.uncordon")
            .iter()
            .filter(|name| *name == "prod-w-1")
            .count(),
        1
    );
    world.settle();
    assert!(world.cordons.is_empty());
}

#[test]
fn the_end_of_a_run_only_releases_what_was_cordoned() {
    let mut world = workers(1);
    world.cordons.insert("prod-w-2".into(), NodeCordon::Ours);
    world.policy.ends = true;
    expect!["1 node.uncordon prod-w-2 [live]: mainstay cordoned it, and no turn of it is open"].assert_eq(&world.plan().trace());
}

#[test]
fn what_a_budget_holds_is_held_for_the_rest_of_the_run_and_its_cordon_ends() {
    let mut world = workers(1);
    world.cordons.insert("prod-w-1".into(), NodeCordon::Ours);
    world.policy.held.insert(
        "prod-w-1".into(),
        "pod shop/front-1 is kept by disruption budget shop/front".into(),
    );
    let plan = world.plan();
    assert_eq!(machines(&plan, "node.uncordon")[0], "prod-w-1", "{}", plan.trace());
    let held = plan.held.iter().find(|held| held.subject.to_string() == "prod-w-1").unwrap();
    assert_eq!((held.lasts, held.what), (HoldKind::NeedsOperator, "change"));
    assert!(held.reason.contains("shop/front"), "{}", held.reason);
    world.settle();
    assert!(world.cordons.is_empty());
    assert_eq!(world.plan().held.len(), 1, "the other workers had their turns");
}

#[test]
fn a_drain_is_skipped_where_the_operator_says_so() {
    let mut world = workers(1);
    world.policy.skip_drain.insert("prod-w-1".into());
    assert_eq!(machines(&world.plan(), "node.drain"), ["prod-w-2", "prod-w-3", "prod-w-4"]);
    world.policy.force_drain.insert("prod-w-2".into());
    let forced = |step: &&mainstay_plan::Step| matches!(&step.action, Action::NodeDrain { drain, .. } if drain.deletes_unmanaged);
    let plan = world.plan();
    let forced: Vec<String> = plan
        .steps
        .iter()
        .filter(forced)
        .map(|step| step.subject.to_string())
        .collect();
    assert_eq!(forced, ["prod-w-2"]);
}

#[test]
fn a_consent_that_names_no_machine_is_refused() {
    let mut world = workers(1);
    world.policy.skip_drain.insert("prod-w-9".into());
    assert_eq!(world.plan().refusals[0].what, "there is no machine prod-w-9");
}

#[test]
fn a_machine_is_not_drained_where_no_other_could_take_its_pods_and_the_plan_says_so() {
    let world = settled(ONE).edit("count: 1,", "count: 1, cpu: 8,");
    let plan = world.plan();
    assert!(machines(&plan, "node.drain").is_empty());
    assert_eq!(
        plan.notes,
        ["no other machine can take the pods of lab-cp-1: they stop with it"]
    );
}

#[test]
fn without_an_answer_of_kubernetes_a_worker_is_not_restarted_unless_the_operator_skips_its_drain() {
    let blind = |seen: &mut mainstay_plan::Observed| seen.kubernetes = Seen::Unknown("connection refused".into());
    let mut world = workers(1).blurred(blind);
    let plan = world.plan();
    assert!(machines(&plan, "machine.reboot").is_empty(), "{}", plan.trace());
    assert_eq!(
        plan.held.iter().filter(|held| held.reason.contains("--skip-drain")).count(),
        4
    );
    world.policy.skip_drain = (1..=4).map(|n| format!("prod-w-{n}")).collect();
    assert_eq!(machines(&world.plan(), "machine.reboot").len(), 4);
}

#[test]
fn a_machine_that_leaves_is_drained_before_it_stops_and_one_that_is_off_is_not() {
    let world = settled(THREE_AND_TWO).edit("count: 2", "count: 1");
    let drained = |plan: &Plan| {
        let delete = plan
            .steps
            .iter()
            .find(|step| matches!(step.action, Action::NodeDelete { .. }));
        matches!(delete.unwrap().action, Action::NodeDelete { was_drained: true, .. })
    };
    assert!(drained(&world.plan()));
    let off = world
        .clone()
        .changed(|world| world.vm("prod-w-2").power = PowerState::Stopped);
    assert!(machines(&off.plan(), "node.drain").is_empty());
    assert!(!drained(&off.plan()), "its volumes are released first");
}
