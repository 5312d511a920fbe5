//! Another version of Talos, or other extensions: one machine after another, one minor per plan.

use expect_test::expect;
use mainstay_plan::{Action, BegunUpgrade, HoldKind, Plan, RefusalKind, UpgradeRecord};
use semver::Version;

use crate::world::{THREE_AND_TWO, World, settled};

const OLD: &str = "talos: { version: 1.13.8 }\nkubernetes: 1.36.1\n";

/// A cluster of Talos 1.13.8 whose file says this instead.
fn edited(talos: &str) -> World {
    settled(&format!("{OLD}{THREE_AND_TWO}")).edit("talos: { version: 1.13.8 }", talos)
}

fn newer() -> World {
    edited("talos: { version: 1.13.9 }")
}

fn begun(boot: &str, is_armed: bool) -> UpgradeRecord {
    UpgradeRecord::Begun(BegunUpgrade {
        from: Version::new(1, 13, 8),
        to: Version::new(1, 13, 9),
        schematic: "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba".to_owned(),
        boot_id: boot.to_owned(),
        since: "2026-03-01T10:00:00Z".parse().unwrap(),
        is_armed,
    })
}

fn upgraded(plan: &Plan) -> Vec<String> {
    let steps = plan
        .steps
        .iter()
        .filter(|step| matches!(step.action, Action::GuestUpgrade(_)));
    steps.map(|step| step.subject.to_string()).collect()
}

fn releases(world: &World) -> Vec<String> {
    ["prod-cp-1", "prod-cp-2", "prod-cp-3", "prod-w-1", "prod-w-2"]
        .map(|name| world.release(name))
        .to_vec()
}

#[test]
fn every_machine_loads_the_new_system_first_and_then_they_take_turns() {
    let mut world = newer();
    let plan = world.plan();
    let of = |name: &str| {
        let lines: Vec<String> = plan
            .trace()
            .lines()
            .filter(|line| line.contains(name))
            .map(str::to_owned)
            .collect();
        lines.join("\n")
    };
    expect![[r#"
        2 guest.pull prod-cp-1 factory.talos.dev/nocloud-installer/376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba:v1.13.9 <- 1: it is there before anything is disturbed
        7 node.cordon prod-cp-1 for upgrade [live] <- 2: 1.13.8 -> 1.13.9
        8 node.drain prod-cp-1 [live] <- 7: its pods move to other machines
        9 guest.upgrade prod-cp-1 1.13.8 to 1.13.9 [reboot] <- 2 8: 1.13.8 -> 1.13.9
        10 etcd.join prod-cp-1 <- 9: it restarted
        11 node.await prod-cp-1 <- 9 10: it restarted
        12 node.uncordon prod-cp-1 [live] <- 11: its turn is over"#]].assert_eq(&of("prod-cp-1"));
    expect![[r#"
        6 guest.pull prod-w-2 factory.talos.dev/nocloud-installer/376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba:v1.13.9 <- 1 2: it is there before anything is disturbed
        30 node.cordon prod-w-2 for upgrade [live] <- 6 29: 1.13.8 -> 1.13.9
        31 node.drain prod-w-2 [live] <- 30: its pods move to other machines
        32 guest.upgrade prod-w-2 1.13.8 to 1.13.9 [reboot] <- 6 31: 1.13.8 -> 1.13.9
        33 node.await prod-w-2 <- 32: it restarted
        34 node.uncordon prod-w-2 [live] <- 33: its turn is over"#]].assert_eq(&of("prod-w-2"));
    assert_eq!(
        upgraded(&plan),
        ["prod-cp-1", "prod-cp-2", "prod-cp-3", "prod-w-1", "prod-w-2"]
    );
    world.settle();
    assert_eq!(releases(&world), ["1.13.9"; 5]);
    assert_eq!(world.recorded("prod-cp-1").upgrade, None);
    assert_eq!(world.recorded("prod-cp-1").versions.unwrap().release, Version::new(1, 13, 9));
    assert_eq!(world.plan().render(), "nothing to do");
}

#[test]
fn the_leader_of_etcd_is_upgraded_last_of_the_control_planes() {
    let mut world = newer();
    world.leader = Some("prod-cp-1".into());
    assert_eq!(
        upgraded(&world.plan()),
        ["prod-cp-2", "prod-cp-3", "prod-cp-1", "prod-w-1", "prod-w-2"]
    );
}

#[test]
fn an_upgrade_over_two_minors_settles_in_each_of_them() {
    let mut world =
        settled(&format!("talos: {{ version: 1.12.3 }}\nkubernetes: 1.34.0\n{THREE_AND_TWO}")).edit("1.12.3", "1.14.1");
    world.apply(&world.plan());
    assert_eq!(releases(&world), ["1.13.10"; 5]);
    world.settle();
    assert_eq!(releases(&world), ["1.14.1"; 5]);
}

#[test]
fn other_extensions_are_an_upgrade_to_the_same_version() {
    let mut world = edited("talos: { version: 1.13.8, extensions: [qemu-guest-agent] }");
    let plan = world.plan();
    assert_eq!(upgraded(&plan).len(), 5);
    let why = plan
        .steps
        .iter()
        .find(|step| matches!(step.action, Action::GuestUpgrade(_)))
        .unwrap();
    assert_eq!(why.why, "1.13.8 with other extensions");
    world.settle();
    assert_eq!(world.plan().render(), "nothing to do");
}

#[test]
fn a_schematic_that_cannot_be_read_is_not_another_one() {
    let world = edited("talos: { version: 1.13.8, extensions: [qemu-guest-agent] }").blurred(|seen| {
        for guest in seen.guests.values_mut() {
            if let mainstay_plan::Guest::Running(guest) = guest {
                guest.schematic = mainstay_plan::Seen::Unknown("deadline".into());
            }
        }
    });
    assert!(upgraded(&world.plan()).is_empty());
}

#[test]
fn one_restart_serves_a_new_system_and_a_new_shape() {
    let mut world = newer().edit("count: 2, cpu: 4", "count: 2, cpu: 8");
    let plan = world.plan();
    let of_worker = plan.steps.iter().filter(|step| step.subject.to_string() == "prod-w-1");
    let names: Vec<&str> = of_worker.map(|step| step.action.name()).collect();
    assert_eq!(
        names,
        [
            "guest.pull",
            "node.cordon",
            "node.drain",
            "machine.change",
            "guest.upgrade",
            "node.await",
            "node.uncordon"
        ]
    );
    let by_pve = |step: &&mainstay_plan::Step| matches!(&step.action, Action::GuestUpgrade(upgrade) if upgrade.restarts_vm);
    assert_eq!(plan.steps.iter().filter(by_pve).count(), 2);
    world.settle();
}

#[test]
fn a_worker_that_came_back_with_the_old_system_holds_only_itself() {
    let mut world = newer();
    world.unbootable.insert("prod-w-1".into());
    world.settle();
    assert_eq!(releases(&world), ["1.13.9", "1.13.9", "1.13.9", "1.13.8", "1.13.9"]);
    expect![". upgrade prod-w-1 held: it started 1.13.9, and came back with the system that it had before; to try again: --retry-upgrade prod-w-1"].assert_eq(&world.plan().render());
    assert!(world.cordons.is_empty());
    // Until the file names another version, or the operator says so.
    world.unbootable.clear();
    assert!(upgraded(&world.plan()).is_empty());
    world.policy.retry_upgrade.insert("prod-w-1".into());
    world.settle();
    assert_eq!(releases(&world), ["1.13.9"; 5]);
}

#[test]
fn a_control_plane_that_came_back_with_the_old_system_stops_the_upgrade_of_all_others() {
    let mut world = newer();
    world.unbootable.insert("prod-cp-1".into());
    world.settle();
    assert_eq!(releases(&world), ["1.13.8"; 5]);
    let plan = world.plan();
    assert_eq!(plan.held.len(), 5);
    assert!(
        plan.held.iter().all(|held| held.lasts == HoldKind::NeedsOperator),
        "{:?}",
        plan.held
    );
    let mut world = world.edit("1.13.9", "1.13.10");
    world.unbootable.clear();
    world.settle();
    assert_eq!(releases(&world), ["1.13.10"; 5]);
}

#[test]
fn what_became_of_an_upgrade_is_told_by_the_boot_and_the_version_together() {
    // The same boot: it goes on.
    let mut world = newer();
    let boot = format!("boot-{}", world.guest("prod-w-1").boots);
    world.record("prod-w-1", begun(&boot, true));
    assert!(upgraded(&world.plan()).contains(&"prod-w-1".to_owned()));
    world.settle();
    // Another boot and the new version: it is done, and the record goes.
    let mut world = newer();
    world.record("prod-w-1", begun("boot-before", true));
    world.guest("prod-w-1").system.as_mut().unwrap().0 = Version::new(1, 13, 9);
    assert!(!upgraded(&world.plan()).contains(&"prod-w-1".to_owned()));
    world.settle();
    assert_eq!(world.recorded("prod-w-1").upgrade, None);
    // The same where the new system was perhaps never installed: it is tried again.
    let mut world = newer();
    world.record("prod-w-1", begun("boot-before", false));
    world.settle();
    assert_eq!(releases(&world), ["1.13.9"; 5]);
    // Another boot and the old version: it came back.
    let mut world = newer();
    world.record("prod-w-1", begun("boot-before", true));
    world.settle();
    assert!(matches!(
        world.recorded("prod-w-1").upgrade,
        Some(UpgradeRecord::RolledBack { .. })
    ));
    assert_eq!(releases(&world), ["1.13.9", "1.13.9", "1.13.9", "1.13.8", "1.13.9"]);
}

#[test]
fn a_system_that_is_bootable_and_not_wanted_any_more_is_told_and_not_booted() {
    let mut world = settled(&format!("{OLD}{THREE_AND_TWO}"));
    let boot = format!("boot-{}", world.guest("prod-w-1").boots);
    world.record("prod-w-1", begun(&boot, true));
    expect![". upgrade prod-w-1 held: it boots 1.13.9 at its next restart, which the file does not ask for any more"]
        .assert_eq(&world.plan().render());
}

#[test]
fn no_plan_lowers_a_version() {
    let older = OLD.replace("1.36.1", "1.35.4");
    let world = settled(&format!("{older}{THREE_AND_TWO}")).edit("1.13.8", "1.12.3");
    let plan = world.plan();
    assert_eq!((plan.refusals[0].kind, plan.steps.len()), (RefusalKind::Gate, 0));
    expect![[r#"
        refused (gate): Talos cannot go back from 1.13.8 to 1.12.3
          why:  what a newer minor wrote to etcd and to its disks is not readable by an older one.
          help: write `talos.version: 1.13.8`, or leave it out."#]]
    .assert_eq(&plan.render());
    // A machine that runs more than the file says is left as it is.
    let mut world = settled(&format!("{OLD}{THREE_AND_TWO}"));
    world.guest("prod-w-1").system.as_mut().unwrap().0 = Version::new(1, 13, 9);
    world.settle();
    let plan = world.plan();
    assert!(plan.steps.is_empty() && plan.is_blocked());
    expect![". upgrade prod-w-1 held: it runs 1.13.9, the file says 1.13.8; no plan lowers a version"].assert_eq(&plan.render());
}

#[test]
fn a_machine_that_is_added_during_an_upgrade_begins_with_what_the_cluster_runs() {
    let mut world = newer().edit("count: 2", "count: 3");
    let plan = world.plan();
    let image = plan.steps.iter().find_map(|step| match &step.action {
        Action::MachineFill(fill) => Some(fill.image.file.clone()),
        _ => None,
    });
    assert!(image.unwrap().contains("1.13.8"));
    assert!(!upgraded(&plan).contains(&"prod-w-3".to_owned()));
    world.settle();
    assert_eq!(world.release("prod-w-3"), "1.13.9");
}

#[test]
fn an_upgrade_that_is_killed_anywhere_is_continued_by_the_next_plan() {
    let plan = newer().plan();
    for stop in 0..plan.steps.len() {
        let mut world = newer();
        for step in &plan.steps[..stop] {
            world.step(step);
        }
        world.settle();
        assert_eq!(releases(&world), ["1.13.9"; 5], "after {stop}");
        assert!(world.cordons.is_empty(), "after {stop}");
    }
}

fn newer_kubernetes() -> World {
    settled(&format!("{OLD}{THREE_AND_TWO}")).edit("kubernetes: 1.36.1", "kubernetes: 1.36.3")
}

#[test]
fn kubernetes_changes_part_by_part_and_the_kubelets_come_last() {
    let mut world = newer_kubernetes();
    let plan = world.plan();
    let changes = plan
        .steps
        .iter()
        .filter(|step| matches!(step.action, Action::KubernetesChange { .. }));
    let lines: Vec<String> = changes
        .map(|step| format!("{} {}", step.subject, step.action.detail().unwrap()))
        .collect();
    expect![[r#"
        prod-cp-1 kube-apiserver to 1.36.3
        prod-cp-2 kube-apiserver to 1.36.3
        prod-cp-3 kube-apiserver to 1.36.3
        prod-cp-1 kube-controller-manager to 1.36.3
        prod-cp-2 kube-controller-manager to 1.36.3
        prod-cp-3 kube-controller-manager to 1.36.3
        prod-cp-1 kube-scheduler to 1.36.3
        prod-cp-2 kube-scheduler to 1.36.3
        prod-cp-3 kube-scheduler to 1.36.3
        prod-cp-1 kube-proxy to 1.36.3
        prod-cp-2 kube-proxy to 1.36.3
        prod-cp-3 kube-proxy to 1.36.3
        prod-cp-1 kubelet to 1.36.3
        prod-cp-2 kubelet to 1.36.3
        prod-cp-3 kubelet to 1.36.3
        prod-w-1 kubelet to 1.36.3
        prod-w-2 kubelet to 1.36.3"#]]
    .assert_eq(&lines.join("\n"));
    assert!(
        plan.steps.iter().all(|step| step.impact < mainstay_plan::Impact::Reboot),
        "{}",
        plan.trace()
    );
    world.settle();
    assert_eq!(world.plan().render(), "nothing to do");
    assert_eq!(
        world.recorded("prod-w-2").versions.unwrap().kubernetes,
        Version::new(1, 36, 3)
    );
}

#[test]
fn a_kubernetes_upgrade_that_is_killed_anywhere_is_continued_by_the_next_plan() {
    let plan = newer_kubernetes().plan();
    for stop in 0..plan.steps.len() {
        let mut world = newer_kubernetes();
        for step in &plan.steps[..stop] {
            world.step(step);
        }
        world.settle();
        assert_eq!(world.plan().render(), "nothing to do", "after {stop}");
    }
}

#[test]
fn kubernetes_does_not_change_while_a_control_plane_is_silent() {
    let world = newer_kubernetes().silent("prod-cp-2");
    let plan = world.plan();
    assert!(
        !plan.steps.iter().any(|step| step.action.name().starts_with("kubernetes.")),
        "{}",
        plan.trace()
    );
}

#[test]
fn talos_goes_first_where_both_change() {
    let mut world = edited("talos: { version: 1.13.9 }").edit("kubernetes: 1.36.1", "kubernetes: 1.36.3");
    let plan = world.plan();
    assert!(!upgraded(&plan).is_empty());
    assert!(!plan.steps.iter().any(|step| step.action.name().starts_with("kubernetes.")));
    assert!(
        plan.notes.iter().any(|note| note.contains("then Kubernetes 1.36.3")),
        "{:?}",
        plan.notes
    );
    world.settle();
    assert_eq!(world.plan().render(), "nothing to do");
}
