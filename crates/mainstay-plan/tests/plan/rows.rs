//! The rows of a plan: one line per subject, without a layout.

use expect_test::expect;
use mainstay_plan::Seen;
use mainstay_spec::Mib;

use crate::world::{THREE_AND_TWO, empty, settled};

#[test]
fn a_new_cluster() {
    expect![[r#"
        + image talos-1.14.1 (376567988ad3) pve1:local, pve2:local, pve3:local: missing there
        + machine prod-cp-1 vm 2001 pve1 4 cpu 8 GiB 10.10.0.11: new cluster
        + machine prod-cp-2 vm 2002 pve2 4 cpu 8 GiB 10.10.0.12: new cluster
        + machine prod-cp-3 vm 2003 pve3 4 cpu 8 GiB 10.10.0.13: new cluster
        + machine prod-w-1 vm 3001 pve1 4 cpu 8 GiB 10.10.0.21: new cluster
        + machine prod-w-2 vm 3002 pve2 4 cpu 8 GiB 10.10.0.22: new cluster
        + etcd prod-cp-1 bootstraps here: no control plane has etcd data"#]]
    .assert_eq(&empty(THREE_AND_TWO).plan().render());
}

#[test]
fn drift_changes_and_held_things() {
    let mut world = settled(THREE_AND_TWO)
        .without("prod-w-2")
        .edit("count: 3, cpu: 4", "count: 3, cpu: 8")
        .blurred(|seen| {
            if let Seen::Yes(members) = &mut seen.etcd {
                members[1].healthy = false;
            }
        });
    world.config("prod-w-1").memory = Mib(4096);
    expect![[r#"
        ! prod-w-1 memory is 4 GiB, was set to 8 GiB
        note: no other machine can take the pods of prod-w-1: they stop with it
        + machine prod-w-2 vm 3002 pve2 4 cpu 8 GiB 10.10.0.22: not found in the datacenter
        ~ machine prod-cp-2 vm 2002 pve2 drain, cpu 4 -> 8, reboot: changed in the file
        ~ machine prod-w-1 vm 3001 pve1 memory 4 GiB -> 8 GiB, reboot: changed outside
        . change prod-cp-1 held: etcd would have 1 of 3 healthy members while it restarts and needs 2 (not healthy: prod-cp-2) (waits: cpu 4 -> 8)
        . change prod-cp-3 held: etcd would have 1 of 3 healthy members while it restarts and needs 2 (not healthy: prod-cp-2) (waits: cpu 4 -> 8)"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn nothing_to_do() {
    expect!["nothing to do"].assert_eq(&settled(THREE_AND_TWO).plan().render());
}

#[test]
fn down() {
    expect![[r#"
        - machine prod-cp-1 vm 2001 pve1 stop, 3 volumes: the cluster is being deleted
        - machine prod-cp-2 vm 2002 pve2 stop, 3 volumes: the cluster is being deleted
        - machine prod-cp-3 vm 2003 pve3 stop, 3 volumes: the cluster is being deleted
        - machine prod-w-1 vm 3001 pve1 stop, 3 volumes: the cluster is being deleted
        - machine prod-w-2 vm 3002 pve2 stop, 3 volumes: the cluster is being deleted"#]]
    .assert_eq(&settled(THREE_AND_TWO).down().plan().render());
}
