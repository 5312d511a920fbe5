//! The file changed, or the machines were changed outside of mainstay.

use expect_test::expect;
use mainstay_plan::{GuestConfig, PowerState, Seen};
use mainstay_spec::Mib;

use crate::world::{ONE, THREE_AND_TWO, empty, settled};

#[test]
fn more_memory_restarts_control_planes_one_at_a_time() {
    let mut world = settled(THREE_AND_TWO).edit("count: 3, cpu: 4, memory: 8GiB", "count: 3, cpu: 4, memory: 16GiB");
    expect![[r#"
        1 node.cordon prod-cp-1 for restart [live]: memory 8 GiB -> 16 GiB
        2 node.drain prod-cp-1 [live] <- 1: its pods move to other machines
        3 machine.change prod-cp-1 memory [live] <- 2: memory 8 GiB -> 16 GiB
        4 machine.reboot prod-cp-1 [reboot] <- 2 3: takes effect at a reboot
        5 etcd.join prod-cp-1 <- 4: it restarted
        6 node.await prod-cp-1 <- 4 5: it restarted
        7 node.uncordon prod-cp-1 [live] <- 6: its turn is over
        8 node.cordon prod-cp-2 for restart [live] <- 7: memory 8 GiB -> 16 GiB
        9 node.drain prod-cp-2 [live] <- 8: its pods move to other machines
        10 machine.change prod-cp-2 memory [live] <- 9: memory 8 GiB -> 16 GiB
        11 machine.reboot prod-cp-2 [reboot] <- 9 10: takes effect at a reboot
        12 etcd.join prod-cp-2 <- 11: it restarted
        13 node.await prod-cp-2 <- 11 12: it restarted
        14 node.uncordon prod-cp-2 [live] <- 13: its turn is over
        15 node.cordon prod-cp-3 for restart [live] <- 14: memory 8 GiB -> 16 GiB
        16 node.drain prod-cp-3 [live] <- 15: its pods move to other machines
        17 machine.change prod-cp-3 memory [live] <- 16: memory 8 GiB -> 16 GiB
        18 machine.reboot prod-cp-3 [reboot] <- 16 17: takes effect at a reboot
        19 etcd.join prod-cp-3 <- 18: it restarted
        20 node.await prod-cp-3 <- 18 19: it restarted
        21 node.uncordon prod-cp-3 [live] <- 20: its turn is over"#]]
    .assert_eq(&world.plan().trace());
    expect![[r#"
        ~ machine prod-cp-1 vm 2001 pve1 drain, memory 8 GiB -> 16 GiB, reboot: changed in the file
        ~ machine prod-cp-2 vm 2002 pve2 drain, memory 8 GiB -> 16 GiB, reboot: changed in the file
        ~ machine prod-cp-3 vm 2003 pve3 drain, memory 8 GiB -> 16 GiB, reboot: changed in the file"#]]
    .assert_eq(&world.plan().render());
    world.settle();
}

#[test]
fn more_processors_restart_workers_one_at_a_time() {
    let mut world = settled(THREE_AND_TWO).edit("count: 2, cpu: 4", "count: 2, cpu: 8");
    expect![[r#"
        1 node.cordon prod-w-1 for restart [live]: cpu 4 -> 8
        2 node.drain prod-w-1 [live] <- 1: its pods move to other machines
        3 machine.change prod-w-1 cores [live] <- 2: cpu 4 -> 8
        4 machine.reboot prod-w-1 [reboot] <- 2 3: takes effect at a reboot
        5 node.await prod-w-1 <- 4: it restarted
        6 node.uncordon prod-w-1 [live] <- 5: its turn is over
        7 node.cordon prod-w-2 for restart [live] <- 6: cpu 4 -> 8
        8 node.drain prod-w-2 [live] <- 7: its pods move to other machines
        9 machine.change prod-w-2 cores [live] <- 8: cpu 4 -> 8
        10 machine.reboot prod-w-2 [reboot] <- 8 9: takes effect at a reboot
        11 node.await prod-w-2 <- 10: it restarted
        12 node.uncordon prod-w-2 [live] <- 11: its turn is over"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
}

#[test]
fn the_only_control_plane_may_restart() {
    let mut world = settled(ONE).edit("count: 1,", "count: 1, cpu: 8,");
    expect![[r#"
        1 machine.change lab-cp-1 cores [live]: cpu 4 -> 8
        2 machine.reboot lab-cp-1 [reboot] <- 1: takes effect at a reboot
        3 etcd.join lab-cp-1 <- 2: it restarted
        4 node.await lab-cp-1 <- 2 3: it restarted"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
}

#[test]
fn a_control_plane_does_not_restart_while_another_is_away() {
    let world = settled(THREE_AND_TWO)
        .edit("count: 3, cpu: 4", "count: 3, cpu: 8")
        .blurred(|seen| {
            if let Seen::Yes(members) = &mut seen.etcd {
                members[1].healthy = false;
            }
        });
    expect![[r#"
        ~ machine prod-cp-2 vm 2002 pve2 drain, cpu 4 -> 8, reboot: changed in the file
        . change prod-cp-1 held: etcd would have 1 of 3 healthy members while it restarts and needs 2 (not healthy: prod-cp-2) (waits: cpu 4 -> 8)
        . change prod-cp-3 held: etcd would have 1 of 3 healthy members while it restarts and needs 2 (not healthy: prod-cp-2) (waits: cpu 4 -> 8)"#]]
    .assert_eq(&world.plan().render());
}

/// One that is not yet a member is one when its turn comes, and counts for the majority like any other.
#[test]
fn a_control_plane_that_joins_first_restarts_only_if_the_others_are_a_majority_then() {
    let mut world = empty(&THREE_AND_TWO.replace("count: 3", "count: 5"));
    let plan = world.plan();
    let others = ["prod-cp-2", "prod-cp-3", "prod-cp-4"];
    world.apply_some(&plan, |step| {
        step.action.name() != "etcd.join" || !others.contains(&step.subject.to_string().as_str())
    });
    let mut world = world
        .silent("prod-cp-5")
        .edit("count: 5", "count: 3")
        .edit("memory: 8GiB", "memory: 10GiB");
    expect![[r#"
        1 etcd.join prod-cp-2: not yet a member
        2 etcd.join prod-cp-3: not yet a member
        3 node.await prod-cp-1: Kubernetes does not answer: connection refused
        4 node.await prod-cp-2: Kubernetes does not answer: connection refused
        5 node.await prod-cp-3: Kubernetes does not answer: connection refused
        6 node.await prod-w-1: Kubernetes does not answer: connection refused
        7 node.await prod-w-2: Kubernetes does not answer: connection refused
        8 guest.await prod-cp-5: its etcd data must be read before it can be removed"#]]
    .assert_eq(&world.plan().trace());
    expect![[r#"
        ~ machine prod-cp-2 join etcd, await node: not yet a member
        ~ machine prod-cp-3 join etcd, await node: not yet a member
        ~ machine prod-cp-1 await node: Kubernetes does not answer: connection refused
        ~ machine prod-w-1 await node: Kubernetes does not answer: connection refused
        ~ machine prod-w-2 await node: Kubernetes does not answer: connection refused
        ~ machine prod-cp-5 await guest: its etcd data must be read before it can be removed
        . change prod-cp-1 held: etcd would have 2 of 4 healthy members while it restarts and needs 3 (not healthy: prod-cp-5) (waits: memory 8 GiB -> 10 GiB)
        . change prod-cp-2 held: etcd would have 2 of 4 healthy members while it restarts and needs 3 (not healthy: prod-cp-5) (waits: memory 8 GiB -> 10 GiB)
        . change prod-cp-3 held: etcd would have 2 of 4 healthy members while it restarts and needs 3 (not healthy: prod-cp-5) (waits: memory 8 GiB -> 10 GiB)
        . change prod-w-1 held: its pods cannot be moved away, Kubernetes does not answer: connection refused; to go on all the same: --skip-drain prod-w-1 (waits: memory 8 GiB -> 10 GiB)
        . change prod-w-2 held: its pods cannot be moved away, Kubernetes does not answer: connection refused; to go on all the same: --skip-drain prod-w-2 (waits: memory 8 GiB -> 10 GiB)
        . remove prod-cp-5 held: its Node cannot be deleted, the Kubernetes API does not answer: connection refused
        . remove prod-cp-4 held: its Node cannot be deleted, the Kubernetes API does not answer: connection refused"#]]
    .assert_eq(&world.plan().render());
    world.settle();
}

#[test]
fn a_stopped_machine_is_changed_before_it_starts() {
    let mut world = settled(THREE_AND_TWO)
        .stopped("prod-w-1")
        .edit("count: 2, cpu: 4", "count: 2, cpu: 8");
    expect![[r#"
        ~ machine prod-w-1 vm 3001 pve1 cpu 4 -> 8, start, configure: it is stopped
        . change prod-w-2 held: prod-w-1 is unavailable already: it is off; to go on all the same: --despite prod-w-1 (waits: cpu 4 -> 8)"#]]
    .assert_eq(&world.plan().render());
    world.settle();
}

#[test]
fn disks_grow_live() {
    let mut world = settled(THREE_AND_TWO).edit("disk: 60GiB", "disk: 80GiB");
    expect![[r#"
        1 machine.grow prod-w-1 scsi0 to 80 GiB [live]: disk 60 -> 80 GiB
        2 machine.mark prod-w-1 <- 1: updates the recorded settings in the VM description
        3 machine.grow prod-w-2 scsi0 to 80 GiB [live]: disk 60 -> 80 GiB
        4 machine.mark prod-w-2 <- 3: updates the recorded settings in the VM description"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
}

#[test]
fn a_disk_never_shrinks() {
    let world = settled(THREE_AND_TWO).edit("disk: 60GiB", "disk: 50GiB");
    expect![[r#"
        refused (gate): prod-w-1: its disk cannot shrink from 60 GiB to 50 GiB
          why:  PVE cannot shrink disks, and data at the end of the disk would be lost.
          help: write 60GiB, or remove the machine first and add it again.
        refused (gate): prod-w-2: its disk cannot shrink from 60 GiB to 50 GiB
          why:  PVE cannot shrink disks, and data at the end of the disk would be lost.
          help: write 60GiB, or remove the machine first and add it again."#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn an_extra_disk_is_attached_live() {
    let mut world = settled(THREE_AND_TWO).edit("disk: 60GiB", "disk: 60GiB, disks: [{ name: longhorn, size: 100GiB }]");
    expect![[r#"
         1 machine.change prod-w-1 disk [live]: disk longhorn 100 GiB
         2 machine.change prod-w-2 disk [live]: disk longhorn 100 GiB"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    let mut world = world.edit("size: 100GiB", "size: 200GiB");
    expect![[r#"
        ~ machine prod-w-1 vm 3001 pve1 disk longhorn 100 -> 200 GiB, mark: changed in the file
        ~ machine prod-w-2 vm 3002 pve2 disk longhorn 100 -> 200 GiB, mark: changed in the file"#]]
    .assert_eq(&world.plan().render());
    world.settle();
}

#[test]
fn an_extra_disk_that_left_the_file_stays_and_is_named() {
    let world = settled(&THREE_AND_TWO.replace("disk: 60GiB", "disk: 60GiB, disks: [{ name: longhorn, size: 100GiB }]"));
    let world = world.edit(", disks: [{ name: longhorn, size: 100GiB }]", "");
    expect![[r#"
        ~ machine prod-w-1 vm 3001 pve1 mark: updates the recorded settings in the VM description
        ~ machine prod-w-2 vm 3002 pve2 mark: updates the recorded settings in the VM description
        . change prod-w-1 held: disk longhorn left cluster.yaml; it may hold data, so it is kept: detach it in PVE
        . change prod-w-2 held: disk longhorn left cluster.yaml; it may hold data, so it is kept: detach it in PVE"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn tags_and_names_change_live() {
    let mut world = settled(THREE_AND_TWO).edit("disk: 60GiB", "disk: 60GiB, tags: [team-a]");
    world.vm("prod-w-1").name = Some("renamed".to_owned());
    world.config("prod-w-1").name = Some("renamed".to_owned());
    expect![[r#"
         1 machine.change prod-w-1 name+tags: name renamed -> prod-w-1, tags team-a
         2 machine.change prod-w-2 tags: tags team-a"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
}

#[test]
fn another_bridge_or_vlan_changes_live() {
    let mut world = settled(THREE_AND_TWO).edit("vip: 10.10.0.20", "vip: 10.10.0.20, bridge: vmbr1, vlan: 20");
    expect![[r#"
        ~ machine prod-cp-1 vm 2001 pve1 network vmbr0 -> vmbr1.20: changed in the file
        ~ machine prod-cp-2 vm 2002 pve2 network vmbr0 -> vmbr1.20: changed in the file
        ~ machine prod-cp-3 vm 2003 pve3 network vmbr0 -> vmbr1.20: changed in the file
        ~ machine prod-w-1 vm 3001 pve1 network vmbr0 -> vmbr1.20: changed in the file
        ~ machine prod-w-2 vm 3002 pve2 network vmbr0 -> vmbr1.20: changed in the file"#]]
    .assert_eq(&world.plan().render());
    world.settle();
}

#[test]
fn other_dns_servers_change_the_first_boot() {
    let mut world = settled(ONE).edit("dns: [1.1.1.1]", "dns: [9.9.9.9]");
    expect!["~ machine lab-cp-1 vm 2001 pve1 first boot 10.10.0.11/16 via 10.10.0.1 dns 1.1.1.1 -> 10.10.0.11/16 via 10.10.0.1 dns 9.9.9.9: changed in the file"].assert_eq(&world.plan().render());
    world.settle();
}

#[test]
fn an_address_of_a_machine_that_exists_cannot_change() {
    let world = settled(THREE_AND_TWO).edit("addresses: 10.10.0.21+", "addresses: 10.10.0.31+");
    expect![[r#"
        refused (gate): prod-w-1: its address cannot change from 10.10.0.21 to 10.10.0.31
          why:  etcd, certificates and other nodes refer to the machine by its address; this version cannot change addresses.
          help: put 10.10.0.21 back, or remove the machine first and add it again.
        refused (gate): prod-w-2: its address cannot change from 10.10.0.22 to 10.10.0.32
          why:  etcd, certificates and other nodes refer to the machine by its address; this version cannot change addresses.
          help: put 10.10.0.22 back, or remove the machine first and add it again."#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn another_mac_or_firmware_is_refused() {
    let world = settled(ONE).edit("count: 1,", "count: 1, firmware: seabios,");
    let world = world.edit("pools:", "machines: { lab-cp-1: { mac: 'BC:24:11:00:00:17' } }\npools:");
    expect![[r#"
        refused (gate): lab-cp-1: its MAC cannot change from 16:A9:B0:B0:47:72 to BC:24:11:00:00:17
          why:  the guest finds its network card by the MAC; with another MAC the machine would boot without an address.
          help: put 16:A9:B0:B0:47:72 back, or remove the machine first and add it again.
        refused (gate): lab-cp-1: its firmware cannot change from ovmf to seabios
          why:  an installed system boots only with the firmware that it was installed for.
          help: put ovmf back, or remove the machine first and add it again."#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn another_vmid_range_leaves_machines_where_they_are() {
    let mut world = settled(THREE_AND_TWO).edit("vmids: 3001+", "vmids: 4001+");
    expect![[r#"
        . change prod-w-1 held: it keeps VMID 3001: a VM cannot change its VMID to 4001
        . change prod-w-2 held: it keeps VMID 3002: a VM cannot change its VMID to 4002"#]]
    .assert_eq(&world.plan().render());
    assert_eq!(world.settle(), 0);
}

#[test]
fn machines_are_not_renamed() {
    let world = settled(THREE_AND_TWO).edit("prod-w-{n}", "node-{n}");
    expect![[r#"
        refused (conflict): VMID 3001 of node-1 is taken by VM prod-w-1 on pve1
          why:  it is prod-w-1 of this cluster, and a machine cannot be renamed.
          help: choose other VMIDs: `vmids` of the pool, or `vmid` of the machine.
        refused (conflict): VMID 3002 of node-2 is taken by VM prod-w-2 on pve2
          why:  it is prod-w-2 of this cluster, and a machine cannot be renamed.
          help: choose other VMIDs: `vmids` of the pool, or `vmid` of the machine."#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_change_made_outside_of_mainstay_is_reported_as_drift_and_changed_back() {
    let mut world = settled(THREE_AND_TWO);
    world.config("prod-w-1").memory = Mib(4096);
    expect![[r#"
        ! prod-w-1 memory is 4 GiB, was set to 8 GiB
        ~ machine prod-w-1 vm 3001 pve1 drain, memory 4 GiB -> 8 GiB, reboot: changed outside"#]]
    .assert_eq(&world.plan().render());
    world.settle();
}

#[test]
fn a_change_that_waits_for_a_restart_gets_one() {
    let mut world = settled(THREE_AND_TWO);
    world.config("prod-w-1").pending.insert("memory".to_owned());
    world.config("prod-w-2").pending.insert("hotplug".to_owned());
    expect![[r#"
        1 node.cordon prod-w-1 for restart [live]: written, takes effect at a reboot
        2 node.drain prod-w-1 [live] <- 1: its pods move to other machines
        3 machine.reboot prod-w-1 [reboot] <- 2: memory: written, takes effect at a reboot
        4 node.await prod-w-1 <- 3: it restarted
        5 node.uncordon prod-w-1 [live] <- 4: its turn is over"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
}

#[test]
fn a_machine_that_moved_stays_where_it_is() {
    let world = settled(THREE_AND_TWO).changed(|world| world.vm("prod-w-1").host = "pve3".to_owned());
    expect!["nothing to do"].assert_eq(&world.plan().render());
}

#[test]
fn a_version_left_out_means_what_runs() {
    let world = settled(&THREE_AND_TWO.replace("pools:", "talos: { version: 1.12.3 }\nkubernetes: 1.34.0\npools:"));
    let mut world = world.edit("talos: { version: 1.12.3 }\nkubernetes: 1.34.0\n", "");
    expect!["nothing to do"].assert_eq(&world.plan().render());
    // Even while every machine is silent, since their marks say it.
    world.vms().values_mut().for_each(|vm| vm.power = PowerState::Stopped);
    assert!(world.plan().refusals.is_empty());
    assert_eq!(world.plan().versions.unwrap().release.to_string(), "1.12.3");
}

#[test]
fn a_changed_config_is_applied_where_it_changed() {
    let mut world = settled(THREE_AND_TWO).edit("disk: 60GiB", "disk: 60GiB, labels: { tier: gold }");
    expect![[r#"
        1 guest.reconfigure prod-w-1 [live]: config differs at machine.nodeLabels.tier
        2 guest.reconfigure prod-w-2 [live]: config differs at machine.nodeLabels.tier
        3 node.change prod-w-1 [live]: label tier=gold
        4 node.change prod-w-2 [live]: label tier=gold"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
}

#[test]
fn control_planes_take_a_new_config_one_by_one() {
    let mut world = settled(THREE_AND_TWO).edit("disk: 40GiB", "disk: 40GiB, labels: { tier: gold }");
    expect![[r#"
        1 guest.reconfigure prod-cp-1 [live]: config differs at machine.nodeLabels.tier
        2 guest.reconfigure prod-cp-2 [live] <- 1: config differs at machine.nodeLabels.tier
        3 guest.reconfigure prod-cp-3 [live] <- 2: config differs at machine.nodeLabels.tier
        4 node.change prod-cp-1 [live]: label tier=gold
        5 node.change prod-cp-2 [live]: label tier=gold
        6 node.change prod-cp-3 [live]: label tier=gold"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
}

#[test]
fn a_config_that_needs_a_reboot_gets_one() {
    let old = THREE_AND_TWO.replace("pools:", "talos: { version: 1.13.9 }\npools:");
    let mut world = settled(&old).edit("disk: 60GiB", "disk: 60GiB, patches: [proxy.yaml]");
    expect![[r#"
        1 node.cordon prod-w-1 for restart [live]: config differs at machine.env.HTTP_PROXY
        2 node.drain prod-w-1 [live] <- 1: its pods move to other machines
        3 guest.reconfigure prod-w-1 [reboot] <- 2: config differs at machine.env.HTTP_PROXY
        4 node.await prod-w-1 <- 3: it restarted
        5 node.uncordon prod-w-1 [live] <- 4: its turn is over
        6 node.cordon prod-w-2 for restart [live] <- 5: config differs at machine.env.HTTP_PROXY
        7 node.drain prod-w-2 [live] <- 6: its pods move to other machines
        8 guest.reconfigure prod-w-2 [reboot] <- 7: config differs at machine.env.HTTP_PROXY
        9 node.await prod-w-2 <- 8: it restarted
        10 node.uncordon prod-w-2 [live] <- 9: its turn is over"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
}

#[test]
fn a_config_that_the_node_would_not_reboot_for_is_staged_and_the_machine_restarted() {
    let mut world = settled(THREE_AND_TWO).edit("disk: 60GiB", "disk: 60GiB, patches: [proxy.yaml]");
    expect![[r#"
        1 node.cordon prod-w-1 for restart [live]: config differs at machine.env.HTTP_PROXY
        2 node.drain prod-w-1 [live] <- 1: its pods move to other machines
        3 guest.reconfigure prod-w-1 [live] <- 2: config differs at machine.env.HTTP_PROXY
        4 machine.reboot prod-w-1 [reboot] <- 2 3: takes effect at a reboot
        5 node.await prod-w-1 <- 4: it restarted
        6 node.uncordon prod-w-1 [live] <- 5: its turn is over
        7 node.cordon prod-w-2 for restart [live] <- 6: config differs at machine.env.HTTP_PROXY
        8 node.drain prod-w-2 [live] <- 7: its pods move to other machines
        9 guest.reconfigure prod-w-2 [live] <- 8: config differs at machine.env.HTTP_PROXY
        10 machine.reboot prod-w-2 [reboot] <- 8 9: takes effect at a reboot
        11 node.await prod-w-2 <- 10: it restarted
        12 node.uncordon prod-w-2 [live] <- 11: its turn is over"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
}

#[test]
fn one_restart_serves_a_new_shape_and_a_new_config() {
    let new = "cpu: 8, memory: 8GiB, disk: 60GiB, patches: [proxy.yaml]";
    let mut world = settled(THREE_AND_TWO).edit("cpu: 4, memory: 8GiB, disk: 60GiB", new);
    expect![[r#"
        1 node.cordon prod-w-1 for restart [live]: config differs at machine.env.HTTP_PROXY; cpu 4 -> 8
        2 node.drain prod-w-1 [live] <- 1: its pods move to other machines
        3 guest.reconfigure prod-w-1 [live] <- 2: config differs at machine.env.HTTP_PROXY
        4 machine.change prod-w-1 cores [live] <- 2: cpu 4 -> 8
        5 machine.reboot prod-w-1 [reboot] <- 2 3 4: takes effect at a reboot
        6 node.await prod-w-1 <- 5: it restarted
        7 node.uncordon prod-w-1 [live] <- 6: its turn is over
        8 node.cordon prod-w-2 for restart [live] <- 7: config differs at machine.env.HTTP_PROXY; cpu 4 -> 8
        9 node.drain prod-w-2 [live] <- 8: its pods move to other machines
        10 guest.reconfigure prod-w-2 [live] <- 9: config differs at machine.env.HTTP_PROXY
        11 machine.change prod-w-2 cores [live] <- 9: cpu 4 -> 8
        12 machine.reboot prod-w-2 [reboot] <- 9 10 11: takes effect at a reboot
        13 node.await prod-w-2 <- 12: it restarted
        14 node.uncordon prod-w-2 [live] <- 13: its turn is over"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
}

#[test]
fn a_config_that_this_version_cannot_read_is_left_alone_and_not_quoted() {
    let mut world = settled(ONE);
    world.guest("lab-cp-1").config = Some(GuestConfig::new("version: v1alpha1\nsecret: hunter2\n"));
    expect![". configure lab-cp-1 held: its config cannot be compared: it is not a config of Talos 1.14"]
        .assert_eq(&world.plan().render());
}

#[test]
fn memory_that_the_host_does_not_have_is_refused() {
    let world = settled(THREE_AND_TWO).edit("memory: 8GiB, disk: 60GiB", "memory: 512GiB, disk: 60GiB");
    expect![[r#"
        refused (lacking): pve1 has no room for prod-w-1 with the settings of cluster.yaml
          why:  pve1: 100 GiB of memory free, 504 GiB more needed
          help: make room, or migrate the machine to another host in PVE.
        refused (lacking): pve2 has no room for prod-w-2 with the settings of cluster.yaml
          why:  pve2: 100 GiB of memory free, 504 GiB more needed
          help: make room, or migrate the machine to another host in PVE."#]]
    .assert_eq(&world.plan().render());
}
