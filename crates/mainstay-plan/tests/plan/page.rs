//! The plan as people read it.

use expect_test::expect;
use mainstay_plan::{Page, Plan, Seen};
use mainstay_spec::Mib;

use crate::world::{THREE_AND_TWO, empty, settled};

fn page(plan: &Plan, width: usize) -> String {
    plan.page(&Page {
        datacenter: "pve.lan",
        hosts: 3,
        file: "cluster.yaml",
        width,
    })
}

#[test]
fn a_new_cluster_at_120_columns() {
    expect![[r#"
        prod: Talos 1.14.1, Kubernetes 1.37.0, datacenter pve.lan (3 hosts)

        + image     talos-1.14.1 (376567988ad3)  pve1:local, pve2:local, pve3:local  missing there
        + machine   prod-cp-1  vm 2001  pve1  4 cpu  8 GiB  10.10.0.11  new cluster   cluster.yaml:6
        + machine   prod-cp-2  vm 2002  pve2  4 cpu  8 GiB  10.10.0.12  new cluster   cluster.yaml:6
        + machine   prod-cp-3  vm 2003  pve3  4 cpu  8 GiB  10.10.0.13  new cluster   cluster.yaml:6
        + machine   prod-w-1   vm 3001  pve1  4 cpu  8 GiB  10.10.0.21  new cluster   cluster.yaml:7
        + machine   prod-w-2   vm 3002  pve2  4 cpu  8 GiB  10.10.0.22  new cluster   cluster.yaml:7
        + etcd      prod-cp-1  begins here  no control plane has etcd data

        3 images and 5 machines to create. 39 steps, about 4 min.
    "#]]
    .assert_eq(&page(&empty(THREE_AND_TWO).plan(), 120));
}

#[test]
fn a_new_cluster_at_80_columns() {
    expect![[r#"
        prod: Talos 1.14.1, Kubernetes 1.37.0, datacenter pve.lan (3 hosts)

        + image     talos-1.14.1 (376567988ad3)  pve1:local, pve2:local, pve3:local
            missing there
        + machine   prod-cp-1  vm 2001  pve1  4 cpu  8 GiB  10.10.0.11  new cluster
        + machine   prod-cp-2  vm 2002  pve2  4 cpu  8 GiB  10.10.0.12  new cluster
        + machine   prod-cp-3  vm 2003  pve3  4 cpu  8 GiB  10.10.0.13  new cluster
        + machine   prod-w-1   vm 3001  pve1  4 cpu  8 GiB  10.10.0.21  new cluster
        + machine   prod-w-2   vm 3002  pve2  4 cpu  8 GiB  10.10.0.22  new cluster
        + etcd      prod-cp-1  begins here  no control plane has etcd data

        3 images and 5 machines to create. 39 steps, about 4 min.
    "#]]
    .assert_eq(&page(&empty(THREE_AND_TWO).plan(), 80));
}

#[test]
fn a_reason_that_all_machines_share_gives_way_where_there_is_no_room() {
    let narrow = page(&empty(THREE_AND_TWO).plan(), 74);
    assert!(narrow.contains("10.10.0.11\n+ machine   prod-cp-2"), "{narrow}");
    assert!(!narrow.contains("new cluster"), "{narrow}");
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
        prod: Talos 1.14.1, Kubernetes 1.37.0, datacenter pve.lan (3 hosts)

        changed outside mainstay
          prod-w-1   memory is 4 GiB, was set to 8 GiB

        + machine   prod-w-2   vm 3002  pve2  4 cpu  8 GiB  10.10.0.22       not found in the datacenter
        ~ machine   prod-cp-2  vm 2002  pve2  cpu 4 -> 8, reboot             changed in the file
        ~ machine   prod-w-1   vm 3001  pve1  memory 4 GiB -> 8 GiB, reboot  changed outside
        . change    prod-cp-1  held: etcd would have 1 of 3 healthy members while it restarts and needs 2
            (not healthy: prod-cp-2)
        . change    prod-cp-3  held: etcd would have 1 of 3 healthy members while it restarts and needs 2
            (not healthy: prod-cp-2)

        1 machine to create, 2 machines to change, 2 held. 14 steps, about 6 min.
    "#]]
    .assert_eq(&page(&world.plan(), 100));
}

#[test]
fn nothing_to_do() {
    expect![[r#"
        prod: Talos 1.14.1, Kubernetes 1.37.0, datacenter pve.lan (3 hosts)

        Nothing to do: 5 unchanged.
    "#]]
    .assert_eq(&page(&settled(THREE_AND_TWO).plan(), 80));
}

#[test]
fn down() {
    expect![[r#"
        prod: datacenter pve.lan (3 hosts)

        - machine   prod-cp-1  vm 2001  pve1  stop, 3 volumes  nothing is wanted
        - machine   prod-cp-2  vm 2002  pve2  stop, 3 volumes  nothing is wanted
        - machine   prod-cp-3  vm 2003  pve3  stop, 3 volumes  nothing is wanted
        - machine   prod-w-1   vm 3001  pve1  stop, 3 volumes  nothing is wanted
        - machine   prod-w-2   vm 3002  pve2  stop, 3 volumes  nothing is wanted

        5 machines to remove. 10 steps, about 6 s.
    "#]]
    .assert_eq(&page(&settled(THREE_AND_TWO).down().plan(), 80));
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for width in [40, 60, 80, 100, 200] {
        for plan in [
            empty(THREE_AND_TWO).plan(),
            settled(THREE_AND_TWO).edit("cpu: 4, memory", "cpu: 8, memory").plan(),
        ] {
            let text = page(&plan, width);
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
            assert!(widest <= width, "{widest} > {width}\n{text}");
        }
    }
}
