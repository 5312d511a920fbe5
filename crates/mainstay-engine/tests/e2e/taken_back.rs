//! Control planes that were to go, and are wanted again before they went.

use std::time::Duration;

use futures::future::{Either, select};
use mainstay_plan::{EtcdMember, EtcdState, Guest, RunningGuest, Seen};
use mainstay_sim::WorldSpec;
use pve_sim::faults::{Fault, Rule};
use tokio::time::Instant;

use crate::stage::{QUICK, Stage, on_stage, settled};

const THREE: &str = "\
name: small
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }
talos: { version: 1.13.9 }
pools:
  control-plane: { count: 3, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+, names: 'cp-{n}' }
";

fn quick() -> WorldSpec {
    WorldSpec::parse(QUICK).expect("a world")
}

/// Runs `up` with one control plane until a step on `cp-3` has ended, as a kill would end it.
async fn shrink_until(stage: &Stage, action: &str) {
    let one = THREE.replace("count: 3", "count: 1");
    let ended = stage.ended(|step| step.action.name() == action && step.subject.to_string() == "cp-3");
    match select(Box::pin(stage.up(&one)), Box::pin(ended)).await {
        Either::Left((outcome, _)) => panic!("{action} did not come: {outcome:?}\n{}", stage.story()),
        Either::Right(_) => {}
    }
}

async fn members(stage: &Stage) -> Vec<EtcdMember> {
    let mut members = stage.observed(THREE).await.etcd.yes().cloned().expect("etcd is there");
    members.sort_by(|one, other| one.name.cmp(&other.name));
    members
}

async fn assert_three_voters(stage: &Stage) {
    let members = members(stage).await;
    let well: Vec<&str> = members
        .iter()
        .filter(|member| member.votes() && member.healthy)
        .map(|member| member.name.as_str())
        .collect();
    assert_eq!(well, ["cp-1", "cp-2", "cp-3"], "{}", stage.story());
    assert_eq!(members.len(), 3);
}

#[test]
fn a_removal_that_was_killed_anywhere_can_be_taken_back() {
    for action in ["etcd.leave", "machine.stop", "node.delete", "machine.delete"] {
        on_stage(81, quick(), async |stage| {
            settled(stage, stage.up(THREE).await);
            shrink_until(stage, action).await;
            settled(stage, stage.up(THREE).await);
            assert_three_voters(stage).await;
        });
    }
}

#[test]
fn the_removal_of_a_dead_control_plane_that_was_killed_anywhere_can_be_taken_back() {
    for action in ["node.delete", "machine.delete", "etcd.leave"] {
        on_stage(82, quick(), async |stage| {
            settled(stage, stage.up(THREE).await);
            stage.world.datacenter().lab().kill_vm(2002);
            shrink_until(stage, action).await;
            settled(stage, stage.up(THREE).await);
            assert_three_voters(stage).await;
        });
    }
}

/// Has PVE break off whatever it destroys, so late that the system disk is gone.
fn break_destructions_off(stage: &Stage) {
    stage.world.datacenter().faults().add(Rule {
        call: "task qmdestroy".into(),
        path: None,
        from: 1,
        times: None,
        chance: 1.0,
        then: Fault::FailTask {
            seconds: 0.15,
            error: "received interrupt".into(),
        },
    });
}

async fn assert_disks_are_lost(stage: &Stage) {
    let lost = stage.observed(THREE).await.lost;
    assert!(
        !lost.is_empty(),
        "nothing broke off, or this shows nothing\n{}",
        stage.story()
    );
}

#[test]
fn a_destruction_that_broke_off_is_ended_and_the_machine_made_anew_if_it_is_wanted_again() {
    on_stage(88, quick(), async |stage| {
        settled(stage, stage.up(THREE).await);
        break_destructions_off(stage);
        let outcome = stage.up(&THREE.replace("count: 3", "count: 1")).await;
        assert!(outcome.is_err(), "{outcome:?}");
        assert_disks_are_lost(stage).await;
        stage.world.datacenter().faults().clear();
        settled(stage, stage.up(THREE).await);
        assert_three_voters(stage).await;
    });
}

#[test]
fn only_disks_of_its_own_that_are_gone_count_as_lost() {
    on_stage(92, quick(), async |stage| {
        settled(stage, stage.up(THREE).await);
        let lab = stage.world.datacenter().lab();
        lab.set_config(2002, "ide0", "local:iso/rescue.iso,media=cdrom");
        assert!(stage.observed(THREE).await.lost.is_empty());
        let vm = stage.world.datacenter().inspect().vms[&2002].clone();
        let volid = vm.config["scsi0"].split(',').next().expect("a volume");
        lab.remove_volume(&vm.host, volid);
        assert_eq!(stage.observed(THREE).await.lost, [volid.to_owned()].into());
    });
}

#[test]
fn a_machine_whose_destruction_did_not_come_to_its_disks_is_kept_with_its_data() {
    on_stage(91, quick(), async |stage| {
        settled(stage, stage.up(THREE).await);
        stage.world.datacenter().faults().add(Rule {
            call: "DELETE /nodes/{node}/qemu/{vmid}".into(),
            path: None,
            from: 1,
            times: None,
            chance: 1.0,
            then: Fault::Refuse {
                status: 500,
                reason: "got no worker upid - start worker failed".into(),
            },
        });
        let outcome = stage.up(&THREE.replace("count: 3", "count: 1")).await;
        assert!(outcome.is_err(), "{outcome:?}");
        let before = stage.world.datacenter().inspect();
        assert!(before.vms[&2002].config["description"].contains("\ngoing\n"));
        stage.world.datacenter().faults().clear();
        settled(stage, stage.up(THREE).await);
        assert_three_voters(stage).await;
        assert!(!stage.story().contains("its destruction broke off"), "{}", stage.story());
        let after = stage.world.datacenter().inspect();
        assert!(!after.vms[&2002].config["description"].contains("going"));
    });
}

#[test]
fn a_down_that_broke_off_is_ended_and_the_cluster_made_anew_if_it_is_wanted_again() {
    on_stage(89, quick(), async |stage| {
        let file = format!("{THREE}  worker: {{ count: 1, addresses: 10.0.0.31+, vmids: 3000+, names: 'w-{{n}}' }}\n");
        settled(stage, stage.up(&file).await);
        break_destructions_off(stage);
        let outcome = stage.down(&file).await;
        assert!(outcome.is_err(), "{outcome:?}");
        assert_disks_are_lost(stage).await;
        stage.world.datacenter().faults().clear();
        let began = Instant::now();
        settled(stage, stage.up(&file).await);
        assert_three_voters(stage).await;
        // No step waits for what only a later round brings.
        assert!(began.elapsed() < Duration::from_secs(600), "{}", stage.story());
    });
}

/// Stopped in the moment in which it gets its vote, it would take the majority with it.
#[test]
fn a_control_plane_that_joins_while_it_is_to_go_is_let_in_and_leaves() {
    let slow = QUICK.replace("apid-start: 0.1", "apid-start: 0.1, etcd-promotion: 10");
    on_stage(90, WorldSpec::parse(&slow).expect("a world"), async |stage| {
        let one = THREE.replace("count: 3", "count: 1");
        settled(stage, stage.up(&one).await);
        let first = stage.talos_node("10.0.0.11");
        let learner = async {
            while !first
                .etcd_members()
                .await
                .is_ok_and(|members| members.iter().any(|member| member.learner))
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        match select(Box::pin(stage.up(THREE)), Box::pin(learner)).await {
            Either::Left((outcome, _)) => panic!("it was never seen: {outcome:?}"),
            Either::Right(_) => {}
        }
        settled(stage, stage.up(&one).await);
        let story = stage.story();
        let at = |what: &str| story.find(what).unwrap_or_else(|| panic!("no {what}\n{story}"));
        let joined = if story.contains("etcd.leave cp-2: Done") {
            "cp-2"
        } else {
            "cp-3"
        };
        assert!(
            at(&format!("etcd.leave {joined}: Done")) < at(&format!("machine.stop {joined}: Done")),
            "{story}"
        );
        assert_eq!(first.etcd_members().await.expect("are listed").len(), 1);
    });
}

/// As `talosctl etcd leave` does it.
#[test]
fn a_control_plane_that_left_etcd_by_hand_is_brought_back() {
    on_stage(83, quick(), async |stage| {
        settled(stage, stage.up(THREE).await);
        stage.talos_node("10.0.0.12").etcd_leave().await.expect("leaves");
        let seen = stage.observed(THREE).await;
        let left = |node: &RunningGuest| node.etcd == Seen::Yes(EtcdState::Left);
        assert!(
            matches!(&seen.guests["cp-2"], Guest::Running(node) if left(node)),
            "{:?}",
            seen.guests
        );
        settled(stage, stage.up(THREE).await);
        assert_three_voters(stage).await;
    });
}

/// As `talosctl etcd remove-member` does it.
#[test]
fn a_control_plane_whose_member_was_removed_by_hand_is_held_and_then_made_anew() {
    on_stage(84, quick(), async |stage| {
        settled(stage, stage.up(THREE).await);
        let id = members(stage).await[1].id;
        stage.talos_node("10.0.0.11").etcd_remove(id).await.expect("is removed");
        let report = settled(stage, stage.up(THREE).await);
        let held: Vec<String> = report.held.iter().map(|held| held.reason.clone()).collect();
        assert!(
            held.len() == 1 && held[0].contains("qm destroy 2001 --purge"),
            "{held:?}\n{}",
            stage.story()
        );
        stage.world.datacenter().lab().destroy_vm(2001);
        tokio::time::sleep(Duration::from_secs(1)).await;
        settled(stage, stage.up(THREE).await);
        assert_three_voters(stage).await;
    });
}

/// Those that leave are as good as the others until they have left.
#[test]
fn control_planes_restart_and_go_in_one_run() {
    on_stage(85, quick(), async |stage| {
        let five = THREE.replace("count: 3", "count: 5");
        settled(stage, stage.up(&five).await);
        let larger = THREE.replace("memory: 4GiB", "memory: 6GiB");
        settled(stage, stage.up(&larger).await);
        assert_three_voters(stage).await;
        assert_eq!(stage.plan(&larger).await.render(), "nothing to do");
    });
}

/// Added to etcd, and gone before it started for the first time: a member without a name, in whose presence no other member may join.
#[test]
fn a_member_that_never_started_is_taken_out_whether_or_not_its_machine_is_wanted_again() {
    for wanted_again in [false, true] {
        on_stage(86, quick(), async |stage| lose_a_learner(stage, wanted_again).await);
    }
}

async fn lose_a_learner(stage: &Stage, wanted_again: bool) {
    let one = THREE.replace("count: 3", "count: 1");
    settled(stage, stage.up(&one).await);
    let first = stage.talos_node("10.0.0.11");
    let nameless = async {
        loop {
            let members = first.etcd_members().await.expect("are listed");
            if let Some(nameless) = members.iter().find(|member| member.name.is_empty()) {
                return nameless.addresses().next().expect("has an address");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let address = match select(Box::pin(stage.up(THREE)), Box::pin(nameless)).await {
        Either::Left((outcome, _)) => panic!("it was never seen: {outcome:?}"),
        Either::Right((address, _)) => address,
    };
    let vmid = if address.to_string() == "10.0.0.12" { 2001 } else { 2002 };
    stage.world.datacenter().lab().destroy_vm(vmid);
    tokio::time::sleep(Duration::from_secs(1)).await;
    if !wanted_again {
        settled(stage, stage.up(&one).await);
        assert_eq!(first.etcd_members().await.expect("are listed").len(), 1, "{}", stage.story());
    }
    settled(stage, stage.up(THREE).await);
    assert_three_voters(stage).await;
}

/// Its etcd has ended and its disk is unmounted, but its API still answers.
#[test]
fn a_control_plane_that_is_restarted_by_hand_has_not_left_etcd() {
    on_stage(87, quick(), async |stage| {
        settled(stage, stage.up(THREE).await);
        let node = stage.talos_node("10.0.0.12");
        let before = members(stage).await;
        node.reboot().await.expect("begins");
        let mut unread = 0;
        loop {
            let seen = stage.observed(THREE).await;
            match &seen.guests["cp-2"] {
                Guest::Running(node) => {
                    assert_ne!(node.etcd, Seen::Yes(EtcdState::Left));
                    assert_ne!(node.etcd, Seen::No);
                    unread += usize::from(node.etcd.unknown().is_some());
                }
                _ => break,
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert!(unread > 0, "it was never seen in between, or this shows nothing");
        settled(stage, stage.up(THREE).await);
        assert_eq!(members(stage).await, before);
    });
}
