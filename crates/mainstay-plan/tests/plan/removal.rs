//! Machines go only when nothing breaks without them.

use expect_test::expect;
use mainstay_plan::{Desired, EtcdMember, Goal, ImageFile, Mark, PowerState, Seen, StorageAt, Versions, VmSettings, plan};
use uuid::Uuid;

use crate::world::{THREE_AND_TWO, World, empty, settled};

fn five_and_two() -> World {
    settled(&THREE_AND_TWO.replace("count: 3", "count: 5"))
}

#[test]
fn a_worker_that_left_the_file_stops_loses_its_node_and_goes() {
    let mut world = settled(THREE_AND_TWO).edit("count: 2", "count: 1");
    expect![[r#"
        1 node.cordon prod-w-2 for removal [live]: not in cluster.yaml
        2 node.drain prod-w-2 [live] <- 1: its pods move to other machines
        3 machine.stop prod-w-2 [live] <- 2: it is being removed
        4 node.delete prod-w-2 [live] <- 2 3: its machine is being removed
        5 machine.delete prod-w-2 [wipe] <- 2 3 4: not in cluster.yaml"#]]
    .assert_eq(&world.plan().trace());
    expect!["- machine prod-w-2 vm 3002 pve2 drain, stop, delete node, 3 volumes: not in cluster.yaml"]
        .assert_eq(&world.plan().render());
    world.settle();
    assert!(!world.nodes.contains("prod-w-2"));
}

#[test]
fn workers_are_added_without_touching_the_others() {
    let mut world = settled(THREE_AND_TWO).edit("count: 2", "count: 4");
    expect![[r#"
        + machine prod-w-3 vm 3003 pve3 4 cpu 8 GiB 10.10.0.23: pool worker: 2 -> 4
        + machine prod-w-4 vm 3004 pve1 4 cpu 8 GiB 10.10.0.24: pool worker: 2 -> 4"#]]
    .assert_eq(&world.plan().render());
    world.settle();
}

#[test]
fn control_planes_are_added_one_by_one() {
    let yaml = THREE_AND_TWO.replace("count: 3", "count: 1");
    let mut world = settled(&yaml).edit("count: 1", "count: 3");
    expect![[r#"
        1 machine.claim prod-cp-2 vm 2002 on pve2: pool control-plane: 1 -> 3
        2 machine.fill prod-cp-2 from local:talos-1.14.1-376567988ad3-nocloud-amd64.qcow2 <- 1: it has no disk
        3 machine.grow prod-cp-2 scsi0 to 40 GiB <- 2: the disk has the size of the image
        4 machine.start prod-cp-2 <- 3: it is new
        5 machine.claim prod-cp-3 vm 2003 on pve3: pool control-plane: 1 -> 3
        6 machine.fill prod-cp-3 from local:talos-1.14.1-376567988ad3-nocloud-amd64.qcow2 <- 5: it has no disk
        7 machine.grow prod-cp-3 scsi0 to 40 GiB <- 6: the disk has the size of the image
        8 machine.start prod-cp-3 <- 7: it is new
        9 guest.configure prod-cp-2 <- 4: it is new
        10 etcd.join prod-cp-2 <- 9: a new member
        11 guest.configure prod-cp-3 <- 8 10: it is new
        12 etcd.join prod-cp-3 <- 11: a new member
        13 node.await prod-cp-2 <- 9: not a node yet
        14 node.await prod-cp-3 <- 11: not a node yet"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(world.members.len(), 3);
}

#[test]
fn control_planes_leave_etcd_first_and_one_by_one() {
    let mut world = five_and_two().edit("count: 5", "count: 3");
    expect![[r#"
        1 node.cordon prod-cp-5 for removal [live]: not in cluster.yaml
        2 node.drain prod-cp-5 [live] <- 1: its pods move to other machines
        3 etcd.leave prod-cp-5 [live] <- 2: not in cluster.yaml
        4 machine.stop prod-cp-5 [live] <- 3: it is being removed
        5 node.delete prod-cp-5 [live] <- 3 4: its machine is being removed
        6 machine.delete prod-cp-5 [wipe] <- 3 4 5: not in cluster.yaml
        7 node.cordon prod-cp-4 for removal [live] <- 6: not in cluster.yaml
        8 node.drain prod-cp-4 [live] <- 7: its pods move to other machines
        9 etcd.leave prod-cp-4 [live] <- 8: not in cluster.yaml
        10 machine.stop prod-cp-4 [live] <- 6 9: it is being removed
        11 node.delete prod-cp-4 [live] <- 6 9 10: its machine is being removed
        12 machine.delete prod-cp-4 [wipe] <- 6 9 10 11: not in cluster.yaml"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(world.members.len(), 3);
}

#[test]
fn a_healthy_control_plane_does_not_leave_while_another_is_away() {
    let world = settled(THREE_AND_TWO).edit("count: 3", "count: 1").blurred(|seen| {
        if let Seen::Yes(members) = &mut seen.etcd {
            members[1].healthy = false;
        }
    });
    expect![[r#"
        - machine prod-cp-2 vm 2002 pve2 drain, stop, delete node, leave etcd, 3 volumes: not in cluster.yaml
        . remove prod-cp-3 held: etcd would have 1 of 2 healthy members without it and needs 2 (not healthy: prod-cp-2)"#]]
    .assert_eq(&world.plan().render());
    assert!(world.plan().held[0].is_transient(), "it may be starting");
}

#[test]
fn a_dead_control_plane_is_taken_out_by_a_survivor() {
    let mut world = five_and_two().edit("count: 5", "count: 3").stopped("prod-cp-5");
    expect![[r#"
        1 node.delete prod-cp-5 [live]: its machine is being removed
        2 machine.delete prod-cp-5 [wipe] <- 1: not in cluster.yaml
        3 etcd.leave prod-cp-5 by prod-cp-1 [live] <- 2: not in cluster.yaml
        4 node.cordon prod-cp-4 for removal [live] <- 3: not in cluster.yaml
        5 node.drain prod-cp-4 [live] <- 4: its pods move to other machines
        6 etcd.leave prod-cp-4 [live] <- 5: not in cluster.yaml
        7 machine.stop prod-cp-4 [live] <- 3 6: it is being removed
        8 node.delete prod-cp-4 [live] <- 3 6 7: its machine is being removed
        9 machine.delete prod-cp-4 [wipe] <- 3 6 7 8: not in cluster.yaml"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(world.members.len(), 3);
}

#[test]
fn a_removal_that_was_broken_off_anywhere_can_be_taken_back() {
    let worlds = [
        five_and_two(),
        five_and_two().stopped("prod-cp-5"),
        five_and_two().silent("prod-cp-5"),
        five_and_two().silent("prod-cp-4"),
    ];
    for world in worlds {
        let plan = world.clone().edit("count: 5", "count: 3").plan();
        for done in 0..=plan.steps.len() {
            let mut world = world.clone();
            for step in &plan.steps[..done] {
                world.step(step);
            }
            world.settle();
            assert_eq!(world.members.len(), 5, "after {done} of\n{}", plan.trace());
        }
    }
}

#[test]
fn a_control_plane_that_left_etcd_and_is_wanted_joins_again_by_a_restart() {
    let mut world = five_and_two();
    let plan = world.clone().edit("count: 5", "count: 3").plan();
    world.apply_some(&plan, |step| {
        step.action.name() == "etcd.leave" && step.subject.to_string() == "prod-cp-5"
    });
    expect![[r#"
        1 node.cordon prod-cp-5 for restart [live]: etcd has left the cluster on this machine; it rejoins after a reboot
        2 node.drain prod-cp-5 [live] <- 1: its pods move to other machines
        3 machine.reboot prod-cp-5 [reboot] <- 2: etcd has left the cluster on this machine; it rejoins after a reboot
        4 etcd.join prod-cp-5 <- 3: it restarted
        5 node.await prod-cp-5 <- 3 4: it restarted
        6 node.uncordon prod-cp-5 [live] <- 5: its turn is over"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(world.members.len(), 5);
}

/// The operator ran `talosctl etcd remove-member`.
#[test]
fn a_control_plane_whose_member_was_removed_is_held_with_the_way_out() {
    let mut world = settled(THREE_AND_TWO);
    world.members.retain(|(_, name)| name != "prod-cp-2");
    expect![". join prod-cp-2 held: its etcd member was removed and etcd rejects its old data; to recreate the machine: qm stop 2002 && qm destroy 2002 --purge"].assert_eq(&world.plan().render());
    let mut world = world.without("prod-cp-2");
    world.settle();
    assert_eq!(world.members.len(), 3);
}

#[test]
fn a_member_whose_machine_is_gone_for_good_is_taken_out() {
    let mut world = five_and_two()
        .without("prod-cp-4")
        .without("prod-cp-5")
        .edit("count: 5", "count: 3");
    expect![[r#"
         1 etcd.leave prod-cp-4 by prod-cp-1 [live]: not in cluster.yaml
         2 etcd.leave prod-cp-5 by prod-cp-1 [live] <- 1: not in cluster.yaml"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(world.members.len(), 3);
}

#[test]
fn removal_waits_for_kubernetes() {
    let world = settled(THREE_AND_TWO).edit("count: 2", "count: 1").blurred(|seen| {
        seen.kubernetes = Seen::Unknown("connection refused".to_owned());
    });
    expect![[r#"
        ~ machine prod-cp-1 await node: Kubernetes does not answer: connection refused
        ~ machine prod-cp-2 await node: Kubernetes does not answer: connection refused
        ~ machine prod-cp-3 await node: Kubernetes does not answer: connection refused
        ~ machine prod-w-1 await node: Kubernetes does not answer: connection refused
        . remove prod-w-2 held: its Node cannot be deleted, the Kubernetes API does not answer: connection refused"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn removal_waits_for_pves_quorum_to_be_known() {
    let world = settled(THREE_AND_TWO).edit("count: 2", "count: 1").blurred(|seen| {
        seen.quorate = Seen::Unknown("the token lacks Sys.Audit on /".to_owned());
    });
    expect![". remove prod-w-2 held: whether PVE has quorum is unknown: the token lacks Sys.Audit on /"]
        .assert_eq(&world.plan().render());
    assert!(world.down().plan().steps.is_empty());
}

#[test]
fn pves_protection_holds_a_removal_and_refuses_down() {
    let world = settled(THREE_AND_TWO).changed(|world| world.config("prod-w-2").protection = true);
    expect![". remove prod-w-2 held: the VM has PVE's protection flag; to clear it: qm set 3002 --protection 0"]
        .assert_eq(&world.clone().edit("count: 2", "count: 1").plan().render());
    expect![[r#"
        refused (gate): prod-w-2 (VM 3002) is protected in PVE
          why:  the VM has PVE's protection flag; deleting only the others would leave a broken cluster.
          help: qm set 3002 --protection 0"#]]
    .assert_eq(&world.down().plan().render());
}

#[test]
fn a_protected_cluster_is_not_taken_down() {
    let world = settled(THREE_AND_TWO).edit("name: prod", "name: prod\nprotect: true").down();
    expect![[r#"
        refused (gate): cluster prod is protected
          why:  cluster.yaml says `protect: true`.
          help: take `protect` out of cluster.yaml first."#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_locked_machine_holds_its_removal() {
    let world = settled(THREE_AND_TWO).changed(|world| world.config("prod-w-2").lock = Some("backup".to_owned()));
    assert_eq!(world.plan().render(), "nothing to do");
    expect![". remove prod-w-2 held: PVE holds the lock `backup`; if no task runs, root can remove it: qm unlock 3002"]
        .assert_eq(&world.edit("count: 2", "count: 1").plan().render());
}

#[test]
fn a_machine_that_never_joined_goes_without_ceremony() {
    let mut world = empty(THREE_AND_TWO);
    let plan = world.plan();
    world.apply_some(&plan, |step| step.action.name() == "machine.start");
    let mut world = world.edit("count: 3", "count: 1").edit("count: 2", "count: 1");
    expect![[r#"
        ~ machine prod-cp-1 vm 2001 pve1 configure, mark: it waits for its config
        ~ machine prod-w-1 configure: it waits for its config
        - machine prod-w-2 vm 3002 pve2 stop, 3 volumes: not in cluster.yaml
        - machine prod-cp-3 vm 2003 pve3 stop, 3 volumes: not in cluster.yaml
        - machine prod-cp-2 vm 2002 pve2 stop, 3 volumes: not in cluster.yaml
        + etcd prod-cp-1 bootstraps here: no control plane has etcd data"#]]
    .assert_eq(&world.plan().render());
    world.settle();
    assert_eq!(world.vms().len(), 2);
}

#[test]
fn a_paused_machine_is_stopped_to_go_but_not_started_to_stay() {
    let world = settled(THREE_AND_TWO).changed(|world| world.vm("prod-w-2").power = PowerState::Other("io-error".to_owned()));
    expect![". start prod-w-2 held: the VM is in state io-error; check its console, then: qm resume 3002 or qm stop 3002"]
        .assert_eq(&world.plan().render());
    expect!["- machine prod-w-2 vm 3002 pve2 stop, delete node, 3 volumes: not in cluster.yaml"]
        .assert_eq(&world.edit("count: 2", "count: 1").plan().render());
}

#[test]
fn down_takes_images_only_when_asked() {
    use mainstay_plan::{Desired, plan};
    let world = settled(THREE_AND_TWO).changed(|world| world.vms().clear());
    let file = world.file();
    let spec = crate::world::spec(&world.yaml);
    let desired = Desired::nothing(&spec, world.cluster_id, vec![file]);
    expect![[r#"
        - image pve1:local: not kept
        - image pve2:local: not kept
        - image pve3:local: not kept"#]]
    .assert_eq(&plan(&desired, &world.look()).render());
}

#[test]
fn down_by_name_and_id_needs_no_file() {
    use mainstay_plan::{Desired, plan};
    let world = settled(THREE_AND_TWO);
    let desired = Desired::nothing_of("prod", world.cluster_id, Vec::new());
    assert_eq!(plan(&desired, &world.look()).summary().machines_to_remove, 5);
}

/// Its predecessor was added to etcd and gone before it started.
#[test]
fn a_machine_made_anew_joins_after_the_learner_of_its_name_is_gone() {
    let world = settled(&THREE_AND_TWO.replace("count: 3", "count: 1"))
        .edit("count: 1", "count: 3")
        .blurred(|seen| {
            if let Seen::Yes(members) = &mut seen.etcd {
                members.push(EtcdMember {
                    id: 7,
                    name: "prod-cp-2".to_owned(),
                    learner: true,
                    healthy: false,
                });
            }
        });
    expect![[r#"
        1 machine.claim prod-cp-2 vm 2002 on pve2: not found in the datacenter
        2 machine.fill prod-cp-2 from local:talos-1.14.1-376567988ad3-nocloud-amd64.qcow2 <- 1: it has no disk
        3 machine.grow prod-cp-2 scsi0 to 40 GiB <- 2: the disk has the size of the image
        4 machine.start prod-cp-2 <- 3: it is new
        5 machine.claim prod-cp-3 vm 2003 on pve3: pool control-plane: 1 -> 3
        6 machine.fill prod-cp-3 from local:talos-1.14.1-376567988ad3-nocloud-amd64.qcow2 <- 5: it has no disk
        7 machine.grow prod-cp-3 scsi0 to 40 GiB <- 6: the disk has the size of the image
        8 machine.start prod-cp-3 <- 7: it is new
        9 etcd.leave prod-cp-2 by prod-cp-1 [live]: its etcd never started
        10 guest.configure prod-cp-2 <- 4 9: it is new
        11 etcd.join prod-cp-2 <- 10: a new member
        12 guest.configure prod-cp-3 <- 8 11: it is new
        13 etcd.join prod-cp-3 <- 12: a new member
        14 node.await prod-cp-2 <- 10: not a node yet
        15 node.await prod-cp-3 <- 12: not a node yet"#]]
    .assert_eq(&world.plan().trace());
}

#[test]
fn protect_also_stops_removals_by_up() {
    let world = settled(THREE_AND_TWO)
        .edit("name: prod", "name: prod\nprotect: true")
        .edit("count: 2", "count: 1");
    expect![". remove prod-w-2 held: cluster.yaml says `protect: true`, so no machine is removed; take `protect` out of cluster.yaml first"].assert_eq(&world.plan().render());
}

#[test]
fn an_image_that_another_cluster_may_use_is_kept_and_one_that_cannot_be_told_too() {
    let mut world = settled(THREE_AND_TWO).down();
    let file = "talos-1.13.9-376567988ad3-nocloud-amd64.qcow2".to_owned();
    let at = StorageAt {
        host: "pve1".into(),
        storage: "local".into(),
    };
    let kept = ImageFile {
        file: file.clone(),
        size: 9,
        may_delete: true,
    };
    world.observed.images.insert(at, Seen::Yes(vec![kept]));
    let deletes = |world: &World| {
        let images = vec![file.clone()];
        let desired = Desired {
            goal: Goal::Absent { images },
            ..world.desired()
        };
        let plan = plan(&desired, &world.look());
        plan.steps.iter().any(|step| step.action.name() == "image.delete")
    };
    assert!(deletes(&world), "nothing else uses it");
    let mut other = world.vm("prod-w-1").clone();
    other.vmid = 512;
    let theirs = |release: &str, config: &VmSettings| {
        let mark = Mark::parse(&config.description).expect("a mark");
        let versions = mark.versions.clone().map(|versions| Versions {
            release: release.parse().expect("a version"),
            ..versions
        });
        let mark = Mark {
            cluster_id: Uuid::from_u128(7),
            versions,
            ..mark
        };
        mark.write_into("")
    };
    for (release, is_deleted) in [("1.13.9", false), ("1.12.6", true)] {
        let mut vm = other.clone();
        if let Seen::Yes(config) = &mut vm.config {
            config.description = theirs(release, config);
        }
        world.vms().insert(512, vm);
        assert_eq!(deletes(&world), is_deleted, "{release}");
    }
    other.config = Seen::Unknown("its host does not answer".into());
    world.vms().insert(512, other);
    assert!(!deletes(&world));
}
