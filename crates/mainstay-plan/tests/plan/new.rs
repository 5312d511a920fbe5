//! A cluster that is not there yet, and one that is.

use expect_test::expect;

use crate::world::{ONE, THREE_AND_TWO, empty, settled};

#[test]
fn a_new_cluster_is_one_plan_from_the_image_to_ready_nodes() {
    let world = empty(THREE_AND_TWO);
    expect![[r#"
        1 schematic.register schematic: the Image Factory builds registered schematics only
        2 image.fetch pve1:local <- 1: missing there
        3 machine.claim prod-cp-1 vm 2001 on pve1: new cluster
        4 machine.fill prod-cp-1 from local:talos-1.14.1-376567988ad3-nocloud-amd64.qcow2 <- 2 3: it has no disk
        5 machine.grow prod-cp-1 scsi0 to 40 GiB <- 4: the disk has the size of the image
        6 machine.start prod-cp-1 <- 5: it is new
        7 image.fetch pve2:local <- 1: missing there
        8 machine.claim prod-cp-2 vm 2002 on pve2: new cluster
        9 machine.fill prod-cp-2 from local:talos-1.14.1-376567988ad3-nocloud-amd64.qcow2 <- 7 8: it has no disk
        10 machine.grow prod-cp-2 scsi0 to 40 GiB <- 9: the disk has the size of the image
        11 machine.start prod-cp-2 <- 10: it is new
        12 image.fetch pve3:local <- 1: missing there
        13 machine.claim prod-cp-3 vm 2003 on pve3: new cluster
        14 machine.fill prod-cp-3 from local:talos-1.14.1-376567988ad3-nocloud-amd64.qcow2 <- 12 13: it has no disk
        15 machine.grow prod-cp-3 scsi0 to 40 GiB <- 14: the disk has the size of the image
        16 machine.start prod-cp-3 <- 15: it is new
        17 machine.claim prod-w-1 vm 3001 on pve1: new cluster
        18 machine.fill prod-w-1 from local:talos-1.14.1-376567988ad3-nocloud-amd64.qcow2 <- 2 17: it has no disk
        19 machine.grow prod-w-1 scsi0 to 60 GiB <- 18: the disk has the size of the image
        20 machine.start prod-w-1 <- 19: it is new
        21 machine.claim prod-w-2 vm 3002 on pve2: new cluster
        22 machine.fill prod-w-2 from local:talos-1.14.1-376567988ad3-nocloud-amd64.qcow2 <- 7 21: it has no disk
        23 machine.grow prod-w-2 scsi0 to 60 GiB <- 22: the disk has the size of the image
        24 machine.start prod-w-2 <- 23: it is new
        25 guest.configure prod-cp-1 <- 6: it is new
        26 guest.configure prod-cp-2 <- 11: it is new
        27 guest.configure prod-cp-3 <- 16: it is new
        28 guest.configure prod-w-1 <- 20: it is new
        29 guest.configure prod-w-2 <- 24: it is new
        30 machine.mark prod-cp-1 bootstrap here <- 6: records in the VM description that etcd is bootstrapped here
        31 etcd.bootstrap prod-cp-1 <- 25 30: no control plane has etcd data
        32 etcd.join prod-cp-1 <- 25 31: a member of the new cluster
        33 etcd.join prod-cp-2 <- 26 31: a member of the new cluster
        34 etcd.join prod-cp-3 <- 27 31: a member of the new cluster
        35 node.await prod-cp-1 <- 25 31: not a node yet
        36 node.await prod-cp-2 <- 26 31: not a node yet
        37 node.await prod-cp-3 <- 27 31: not a node yet
        38 node.await prod-w-1 <- 28 31: not a node yet
        39 node.await prod-w-2 <- 29 31: not a node yet"#]]
    .assert_eq(&world.plan().trace());
}

#[test]
fn a_new_cluster_settles_in_one_round() {
    assert_eq!(empty(THREE_AND_TWO).settle(), 1);
}

#[test]
fn planning_a_settled_cluster_is_empty() {
    let plan = settled(THREE_AND_TWO).plan();
    expect!["nothing to do"].assert_eq(&plan.render());
    assert_eq!((plan.unchanged.machines, plan.unchanged.images), (5, 3));
}

#[test]
fn one_machine_needs_no_vip() {
    expect![[r#"
        + image talos-1.14.1 (376567988ad3) pve1:local: missing there
        + machine lab-cp-1 vm 2001 pve1 4 cpu 8 GiB 10.10.0.11: new cluster
        + etcd lab-cp-1 bootstraps here: no control plane has etcd data"#]]
    .assert_eq(&empty(ONE).plan().render());
}

#[test]
fn down_removes_every_machine_and_keeps_images() {
    let mut world = settled(THREE_AND_TWO).down();
    expect![[r#"
        1 machine.stop prod-cp-1 [live]: it is being removed
        2 machine.delete prod-cp-1 [wipe] <- 1: the cluster is being deleted
        3 machine.stop prod-cp-2 [live]: it is being removed
        4 machine.delete prod-cp-2 [wipe] <- 3: the cluster is being deleted
        5 machine.stop prod-cp-3 [live]: it is being removed
        6 machine.delete prod-cp-3 [wipe] <- 5: the cluster is being deleted
        7 machine.stop prod-w-1 [live]: it is being removed
        8 machine.delete prod-w-1 [wipe] <- 7: the cluster is being deleted
        9 machine.stop prod-w-2 [live]: it is being removed
        10 machine.delete prod-w-2 [wipe] <- 9: the cluster is being deleted"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    assert!(world.vms().is_empty());
}
