//! "Absent" and "could not look" are different.

use expect_test::expect;
use mainstay_plan::{Guest, Seen};
use semver::Version;

use crate::world::{ONE, THREE_AND_TWO, empty, settled};

#[test]
fn an_unknown_vm_is_neither_created_nor_deleted() {
    let world = settled(THREE_AND_TWO).blurred(|seen| {
        if let Seen::Yes(vms) = &mut seen.vms {
            vms.get_mut(&3002).unwrap().config = Seen::Unknown("595 no route to host".to_owned());
        }
    });
    expect![". machine prod-w-2 held: VM 3002: 595 no route to host"].assert_eq(&world.plan().render());
    expect![[r#"
        - machine prod-cp-1 vm 2001 pve1 stop, 3 volumes: the cluster is being deleted
        - machine prod-cp-2 vm 2002 pve2 stop, 3 volumes: the cluster is being deleted
        - machine prod-cp-3 vm 2003 pve3 stop, 3 volumes: the cluster is being deleted
        - machine prod-w-1 vm 3001 pve1 stop, 3 volumes: the cluster is being deleted
        . remove prod-w-2 held: 595 no route to host"#]]
    .assert_eq(&world.down().plan().render());
}

#[test]
fn a_token_that_does_not_see_all_vms_is_refused() {
    let world = settled(THREE_AND_TWO).blurred(|seen| seen.vms = Seen::Unknown("VM.Audit is missing on /vms".to_owned()));
    let (desired, observed) = (empty(THREE_AND_TWO).desired(), world.look());
    expect![[r#"
        refused (lacking): not every VM can be seen
          why:  PVE hides what a token may not see, so a VM that is not listed may be there: VM.Audit is missing on /vms
          help: give the token VM.Audit: mainstay grant"#]]
    .assert_eq(&mainstay_plan::plan(&desired, &observed).render());
}

#[test]
fn without_pves_quorum_nothing_is_done() {
    let world = empty(THREE_AND_TWO).blurred(|seen| seen.quorate = Seen::Yes(false));
    expect![[r#"
        refused (gate): the datacenter has no quorum
          why:  PVE refuses most writes without it, and would destroy disks while it keeps their VMs.
          help: bring hosts back until `pvecm status` says Quorate: Yes."#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_host_that_is_offline_holds_its_machines() {
    let world = settled(THREE_AND_TWO).changed(|world| {
        world.observed.hosts.get_mut("pve2").unwrap().online = false;
        for vm in world.vms().values_mut().filter(|vm| vm.host == "pve2") {
            vm.config = Seen::Unknown("host pve2 is offline".to_owned());
        }
    });
    expect![[r#"
        . machine prod-cp-2 held: VM 2002: host pve2 is offline
        . machine prod-w-2 held: VM 3002: host pve2 is offline"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn new_machines_avoid_a_host_that_is_offline() {
    let world = empty(THREE_AND_TWO).changed(|world| world.observed.hosts.get_mut("pve2").unwrap().online = false);
    expect![[r#"
        + image talos-1.14.1 (376567988ad3) pve1:local, pve3:local: missing there
        + machine prod-cp-1 vm 2001 pve1 4 cpu 8 GiB 10.10.0.11: new cluster
        + machine prod-cp-2 vm 2002 pve3 4 cpu 8 GiB 10.10.0.12: new cluster
        + machine prod-cp-3 vm 2003 pve1 4 cpu 8 GiB 10.10.0.13: new cluster
        + machine prod-w-1 vm 3001 pve3 4 cpu 8 GiB 10.10.0.21: new cluster
        + machine prod-w-2 vm 3002 pve1 4 cpu 8 GiB 10.10.0.22: new cluster
        + etcd prod-cp-1 bootstraps here: no control plane has etcd data"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_machine_pinned_to_a_host_that_is_offline_waits() {
    let mut world = empty(THREE_AND_TWO).edit("pools:", "machines: { prod-w-2: { host: pve2 } }\npools:");
    world.observed.hosts.get_mut("pve2").unwrap().online = false;
    let render = world.plan().render();
    assert!(render.contains(". create prod-w-2 held: pve2: it is offline"), "{render}");
    assert!(render.contains("+ etcd prod-cp-1 bootstraps here"), "{render}");
}

#[test]
fn unknown_etcd_data_holds_the_bootstrap() {
    let mut world = empty(THREE_AND_TWO);
    let plan = world.plan();
    world.apply_some(&plan, |step| step.action.name() == "guest.configure");
    let world = world.blurred(|seen| {
        if let Some(Guest::Running(node)) = seen.guests.get_mut("prod-cp-3") {
            node.etcd = Seen::Unknown("deadline exceeded".to_owned());
        }
    });
    expect![". bootstrap cluster held: a control plane could have etcd data: prod-cp-3: deadline exceeded"]
        .assert_eq(&world.plan().render());
}

#[test]
fn a_config_that_cannot_be_read_is_not_compared() {
    let world = settled(ONE).blurred(|seen| {
        if let Some(Guest::Running(node)) = seen.guests.get_mut("lab-cp-1") {
            node.config = Seen::Unknown("deadline exceeded".to_owned());
        }
    });
    expect![". configure lab-cp-1 held: its config could not be read: deadline exceeded"].assert_eq(&world.plan().render());
}

#[test]
fn a_node_that_is_well_but_does_not_answer_us_is_left_alone() {
    let world = settled(THREE_AND_TWO).blurred(|seen| {
        seen.guests
            .insert("prod-w-1".to_owned(), Guest::Silent("connection timed out".to_owned()));
    });
    expect![". configure prod-w-1 held: its node is Ready but its Talos API does not answer: connection timed out"]
        .assert_eq(&world.plan().render());
}

#[test]
fn kubernetes_that_does_not_answer_is_waited_for() {
    let world = settled(ONE).blurred(|seen| seen.kubernetes = Seen::Unknown("connection refused".to_owned()));
    expect!["~ machine lab-cp-1 await node: Kubernetes does not answer: connection refused"].assert_eq(&world.plan().render());
}

#[test]
fn images_that_could_not_be_listed_hold_what_needs_them() {
    let world = empty(ONE)
        .changed(|world| drop(world.observed.hosts.split_off("pve2")))
        .blurred(|seen| {
            seen.images
                .values_mut()
                .for_each(|files| *files = Seen::Unknown("storage hangs".to_owned()));
        });
    expect![[r#"
        . create lab-cp-1 held: the images on pve1:local could not be listed: storage hangs
        . bootstrap cluster held: lab-cp-1 is held"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn leftovers_that_could_not_be_listed_hold_a_claim() {
    let world = empty(ONE).blurred(|seen| seen.leftovers = Seen::Unknown("storage hangs".to_owned()));
    expect![[r#"
        . create lab-cp-1 held: cannot list storages, so leftover volumes of VM 2001 cannot be ruled out: storage hangs
        . bootstrap cluster held: lab-cp-1 is held"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn workers_that_outlived_every_control_plane_stop_everything() {
    let mut world = settled(THREE_AND_TWO)
        .without("prod-cp-1")
        .without("prod-cp-2")
        .without("prod-cp-3");
    world.members.clear();
    expect![[r#"
        refused (gate): every control plane is gone
          why:  prod-w-1 belongs to a cluster whose control planes are all gone; a new, empty etcd would not match it.
          help: restore the control planes from a backup of their VMs; or give the cluster up: mainstay down, then mainstay up."#]].assert_eq(&world.plan().render());
}

#[test]
fn an_old_pve_is_refused() {
    let world = empty(ONE).changed(|world| world.observed.pve = Version::new(8, 3, 2));
    expect![[r#"
        refused (lacking): PVE 8.3.2 is too old
          why:  disk images are imported through the API, which PVE does since 8.4.
          help: upgrade the hosts."#]]
    .assert_eq(&world.plan().render());
}
