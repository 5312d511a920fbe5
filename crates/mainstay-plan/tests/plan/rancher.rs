//! RKE2 and k3s: servers come and go in the order that their etcd survives.

use expect_test::expect;
use mainstay_plan::{Action, Seen};

use crate::world::{World, settled};

const SERVERS: &str = "
name: prod
datacenter: { endpoint: https://pve.lan:8006 }
network: { cidr: 10.10.0.0/16, gateway: 10.10.0.1, vip: 10.10.0.20, dns: [1.1.1.1] }
rke2: { version: v1.36.3+rke2r1, image: ubuntu-24.04 }
pools:
  control-plane: { count: 3, addresses: 10.10.0.11+, vmids: 2001+, names: 'prod-cp-{n}' }
  worker: { count: 2, addresses: 10.10.0.21+, vmids: 3001+, names: 'prod-w-{n}' }
";

fn of(servers: u32) -> String {
    SERVERS.replace("count: 3", &format!("count: {servers}"))
}

#[test]
fn a_server_that_goes_is_stopped_before_it_leaves_while_two_others_vote_and_after_it_when_one_does() {
    let mut world = settled(SERVERS).edit("count: 3", "count: 1");
    expect![[r#"
        1 node.cordon prod-cp-3 for removal [live]: not in cluster.yaml
        2 node.drain prod-cp-3 [live] <- 1: its pods move to other machines
        3 machine.stop prod-cp-3 [live] <- 2: it is being removed
        4 etcd.leave prod-cp-3 by prod-cp-1 [live] <- 2 3: not in cluster.yaml
        5 node.delete prod-cp-3 [live] <- 2 3 4: its machine is being removed
        6 machine.delete prod-cp-3 [wipe] <- 2 3 4 5: not in cluster.yaml
        7 node.cordon prod-cp-2 for removal [live] <- 6: not in cluster.yaml
        8 node.drain prod-cp-2 [live] <- 7: its pods move to other machines
        9 etcd.leave prod-cp-2 by prod-cp-1 [live] <- 8: not in cluster.yaml
        10 machine.stop prod-cp-2 [live] <- 6 9: it is being removed
        11 node.delete prod-cp-2 [live] <- 6 9 10: its machine is being removed
        12 machine.delete prod-cp-2 [wipe] <- 6 9 10 11: not in cluster.yaml"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(world.members.len(), 1);
    assert!(world.nodes.contains("prod-cp-1") && !world.nodes.contains("prod-cp-2"));
}

#[test]
fn servers_are_added_one_by_one_and_prepared_at_once() {
    let mut world = settled(&of(1)).edit("count: 1", "count: 3");
    expect![[r#"
        1 machine.claim prod-cp-2 vm 2002 on pve2: pool control-plane: 1 -> 3
        2 machine.fill prod-cp-2 from local:talos-1.36.3+rke2r1-376567988ad3-nocloud-amd64.qcow2 <- 1: it has no disk
        3 machine.grow prod-cp-2 scsi0 to 50 GiB <- 2: the disk has the size of the image
        4 machine.start prod-cp-2 <- 3: it is new
        5 machine.claim prod-cp-3 vm 2003 on pve3: pool control-plane: 1 -> 3
        6 machine.fill prod-cp-3 from local:talos-1.36.3+rke2r1-376567988ad3-nocloud-amd64.qcow2 <- 5: it has no disk
        7 machine.grow prod-cp-3 scsi0 to 50 GiB <- 6: the disk has the size of the image
        8 machine.start prod-cp-3 <- 7: it is new
        9 guest.prove prod-cp-2 <- 4: it is new
        10 guest.prepare prod-cp-2 <- 9: it is new
        11 guest.prove prod-cp-3 <- 8: it is new
        12 guest.prepare prod-cp-3 <- 11: it is new
        13 guest.configure prod-cp-2 <- 4 10: it is new
        14 etcd.join prod-cp-2 <- 13: a new member
        15 guest.configure prod-cp-3 <- 8 12 14: it is new
        16 etcd.join prod-cp-3 <- 15: a new member
        17 node.await prod-cp-2 <- 13: not a node yet
        18 node.await prod-cp-3 <- 15: not a node yet"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(world.members.len(), 3);
}

#[test]
fn agents_are_added_and_removed_without_touching_servers() {
    let mut world = settled(SERVERS).edit("count: 2", "count: 3");
    let touched = |world: &World| -> Vec<String> {
        let plan = world.plan();
        let servers = plan.steps.iter().filter(|step| step.subject.to_string().contains("-cp-"));
        servers.map(|step| step.action.name().to_owned()).collect()
    };
    assert_eq!(touched(&world), Vec::<String>::new());
    world.settle();
    let mut world = world.edit("count: 3, addresses: 10.10.0.21", "count: 1, addresses: 10.10.0.21");
    assert_eq!(touched(&world), Vec::<String>::new());
    world.settle();
    assert!(world.nodes.contains("prod-w-1") && !world.nodes.contains("prod-w-2") && !world.nodes.contains("prod-w-3"));
}

/// One server, and a file that names another one in its place.
fn replaced_in_the_file() -> World {
    let other = "servers: { role: control-plane, count: 1, addresses: 10.10.0.31+, vmids: 2101+, names: 'prod-server-{n}' }";
    let pool = "control-plane: { count: 1, addresses: 10.10.0.11+, vmids: 2001+, names: 'prod-cp-{n}' }";
    settled(&of(1)).edit(pool, other)
}

/// Its finalizer would wait for a second voter, and then take the first one away.
#[test]
fn the_node_of_an_only_server_is_never_deleted() {
    let plan = replaced_in_the_file().plan();
    let is_removal = |action: &Action| matches!(action, Action::NodeDelete { .. } | Action::EtcdLeave { .. });
    let of_server = plan.steps.iter().filter(|step| step.subject.to_string() == "prod-cp-1");
    assert!(
        !of_server.into_iter().any(|step| is_removal(&step.action)),
        "{}",
        plan.trace()
    );
    assert!(
        plan.held
            .iter()
            .any(|held| held.reason.contains("it is the only etcd member")),
        "{:?}",
        plan.held
    );
}

#[test]
fn an_only_server_that_is_replaced_in_the_file_goes_when_the_other_one_votes() {
    let mut world = replaced_in_the_file();
    world.settle();
    let names: Vec<&str> = world.members.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["prod-server-1"]);
}

/// Etcd promotes a learner that was stopped, so it counts as a voter before it is one.
#[test]
fn a_learner_that_goes_is_taken_out_while_it_runs() {
    let world = settled(SERVERS).edit("count: 3", "count: 1").blurred(|seen| {
        if let Seen::Yes(members) = &mut seen.etcd {
            members[2].learner = true;
        }
    });
    expect![[r#"
        1 node.cordon prod-cp-3 for removal [live]: not in cluster.yaml
        2 node.drain prod-cp-3 [live] <- 1: its pods move to other machines
        3 etcd.leave prod-cp-3 by prod-cp-1 [live] <- 2: not in cluster.yaml
        4 machine.stop prod-cp-3 [live] <- 3: it is being removed
        5 node.delete prod-cp-3 [live] <- 3 4: its machine is being removed
        6 machine.delete prod-cp-3 [wipe] <- 3 4 5: not in cluster.yaml
        7 node.cordon prod-cp-2 for removal [live] <- 6: not in cluster.yaml
        8 node.drain prod-cp-2 [live] <- 7: its pods move to other machines
        9 etcd.leave prod-cp-2 by prod-cp-1 [live] <- 8: not in cluster.yaml
        10 machine.stop prod-cp-2 [live] <- 6 9: it is being removed
        11 node.delete prod-cp-2 [live] <- 6 9 10: its machine is being removed
        12 machine.delete prod-cp-2 [wipe] <- 6 9 10 11: not in cluster.yaml"#]]
    .assert_eq(&world.plan().trace());
}

#[test]
fn a_member_without_a_node_is_held_with_the_way_out() {
    let world = settled(SERVERS).edit("count: 3", "count: 1").blurred(|seen| {
        if let Seen::Yes(kubernetes) = &mut seen.kubernetes {
            kubernetes.nodes.remove("prod-cp-3");
        }
    });
    expect![[r#"
        - machine prod-cp-2 vm 2002 pve2 drain, stop, leave etcd, delete node, 3 volumes: not in cluster.yaml
        . remove prod-cp-3 held: its etcd member is removed through its Node, and there is no Node prod-cp-3; if it stays away: etcdctl member remove"#]].assert_eq(&world.plan().render());
}

#[test]
fn a_dead_server_is_taken_out_by_the_others_and_none_leaves_without_a_majority() {
    let mut world = settled(SERVERS).stopped("prod-cp-3").edit("count: 3", "count: 1");
    expect![[r#"
        1 etcd.leave prod-cp-3 by prod-cp-1 [live]: not in cluster.yaml
        2 node.delete prod-cp-3 [live] <- 1: its machine is being removed
        3 machine.delete prod-cp-3 [wipe] <- 1 2: not in cluster.yaml
        4 node.cordon prod-cp-2 for removal [live] <- 3: not in cluster.yaml
        5 node.drain prod-cp-2 [live] <- 4: its pods move to other machines
        6 etcd.leave prod-cp-2 by prod-cp-1 [live] <- 5: not in cluster.yaml
        7 machine.stop prod-cp-2 [live] <- 3 6: it is being removed
        8 node.delete prod-cp-2 [live] <- 3 6 7: its machine is being removed
        9 machine.delete prod-cp-2 [wipe] <- 3 6 7 8: not in cluster.yaml"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    let world = settled(&of(3))
        .without("prod-cp-3")
        .edit("count: 3", "count: 1")
        .silent("prod-cp-2");
    let plan = world.plan();
    assert!(
        !plan.steps.iter().any(|step| matches!(step.action, Action::EtcdLeave { .. })),
        "{}",
        plan.trace()
    );
}

/// Kubernetes keeps the password of the machine that had the name before, and etcd its member: a new one would be refused by both.
#[test]
fn a_machine_that_was_destroyed_by_hand_is_made_anew_under_a_free_name() {
    let mut world = settled(SERVERS).without("prod-cp-2").without("prod-w-1");
    expect![[r#"
        1 machine.claim prod-cp-2 vm 2002 on pve2: not found in the datacenter
        2 machine.fill prod-cp-2 from local:talos-1.36.3+rke2r1-376567988ad3-nocloud-amd64.qcow2 <- 1: it has no disk
        3 machine.grow prod-cp-2 scsi0 to 50 GiB <- 2: the disk has the size of the image
        4 machine.start prod-cp-2 <- 3: it is new
        5 machine.claim prod-w-1 vm 3001 on pve1: not found in the datacenter
        6 machine.fill prod-w-1 from local:talos-1.36.3+rke2r1-376567988ad3-nocloud-amd64.qcow2 <- 5: it has no disk
        7 machine.grow prod-w-1 scsi0 to 100 GiB <- 6: the disk has the size of the image
        8 machine.start prod-w-1 <- 7: it is new
        9 guest.prove prod-cp-2 <- 4: it is new
        10 guest.prepare prod-cp-2 <- 9: it is new
        11 guest.prove prod-w-1 <- 8: it is new
        12 guest.prepare prod-w-1 <- 11: it is new
        13 etcd.leave prod-cp-2 by prod-cp-1 [live]: left by an earlier machine of this name
        14 node.delete prod-cp-2 [live] <- 13: left by an earlier machine of this name
        15 guest.configure prod-cp-2 <- 4 10 14: it is new
        16 etcd.join prod-cp-2 <- 15: a new member
        17 node.delete prod-w-1 [live]: left by an earlier machine of this name
        18 guest.configure prod-w-1 <- 8 12 17: it is new
        19 node.await prod-cp-2 <- 15: not ready: kubelet stopped posting status
        20 node.await prod-w-1 <- 18: not ready: kubelet stopped posting status"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(world.members.len(), 3);
    assert!(world.nodes.contains("prod-w-1"));
}

#[test]
fn a_removal_that_was_broken_off_anywhere_is_ended_by_the_next_plan() {
    for world in [settled(SERVERS), settled(SERVERS).stopped("prod-cp-3")] {
        let world = world.edit("count: 3", "count: 1");
        let plan = world.plan();
        for done in 0..=plan.steps.len() {
            let mut world = world.clone();
            for step in &plan.steps[..done] {
                world.step(step);
            }
            world.settle();
            assert_eq!(world.members.len(), 1, "after {done} of\n{}", plan.trace());
        }
    }
}
