//! Whatever was left half done is finished.

use expect_test::expect;
use mainstay_plan::{Action, ImageFile, PowerState, PveTask, Seen, Step, StorageAt};

use crate::world::{ONE, THREE_AND_TWO, World, empty, settled};

/// A cluster whose `up` was killed after the steps that are picked.
fn killed_after(yaml: &str, pick: impl Fn(&Step) -> bool) -> World {
    let mut world = empty(yaml);
    let plan = world.plan();
    world.apply_some(&plan, pick);
    world
}

fn is(step: &Step, action: &str) -> bool {
    step.action.name() == action
}

#[test]
fn claimed_machines_are_filled_where_they_are() {
    let mut world = killed_after(THREE_AND_TWO, |step| is(step, "machine.claim"));
    expect![[r#"
        + image talos-1.14.1 (376567988ad3) pve1:local, pve2:local, pve3:local: missing there
        ~ machine prod-cp-1 vm 2001 pve1 fill, grow, start, configure, mark: it has no disk
        ~ machine prod-cp-2 vm 2002 pve2 fill, grow, start, configure: it has no disk
        ~ machine prod-cp-3 vm 2003 pve3 fill, grow, start, configure: it has no disk
        ~ machine prod-w-1 vm 3001 pve1 fill, grow, start, configure: it has no disk
        ~ machine prod-w-2 vm 3002 pve2 fill, grow, start, configure: it has no disk
        + etcd prod-cp-1 bootstraps here: no control plane has etcd data"#]]
    .assert_eq(&world.plan().render());
    world.settle();
}

#[test]
fn a_machine_that_was_created_but_not_started_is_started() {
    let mut world = killed_after(ONE, |step| is(step, "machine.grow"));
    expect![[r#"
         1 machine.start lab-cp-1: it is stopped
         2 guest.configure lab-cp-1 <- 1: it was stopped"#]]
    .assert_eq(&world.plan().trace());
    assert_eq!(world.settle(), 2);
}

#[test]
fn a_disk_that_was_not_grown_is_grown_before_the_start() {
    let mut world = killed_after(ONE, |step| is(step, "machine.fill"));
    expect![[r#"
        ~ machine lab-cp-1 vm 2001 pve1 disk 2 -> 40 GiB, start, configure: it is stopped
        . bootstrap cluster held: a control plane could have etcd data: lab-cp-1 does not run"#]]
    .assert_eq(&world.plan().render());
    world.settle();
}

#[test]
fn a_machine_that_was_started_but_not_configured_gets_its_config() {
    let mut world = killed_after(THREE_AND_TWO, |step| is(step, "machine.start"));
    expect![[r#"
        1 guest.configure prod-cp-1: it waits for its config
        2 guest.configure prod-cp-2: it waits for its config
        3 guest.configure prod-cp-3: it waits for its config
        4 guest.configure prod-w-1: it waits for its config
        5 guest.configure prod-w-2: it waits for its config
        6 machine.mark prod-cp-1 bootstrap here: records in the VM description that etcd is bootstrapped here
        7 etcd.bootstrap prod-cp-1 after reading prod-cp-1, prod-cp-2, prod-cp-3 <- 1 6: no control plane has etcd data
        8 etcd.join prod-cp-1 <- 1 7: a member of the new cluster
        9 etcd.join prod-cp-2 <- 2 7: a member of the new cluster
        10 etcd.join prod-cp-3 <- 3 7: a member of the new cluster
        11 node.await prod-cp-1 <- 1 7: not a node yet
        12 node.await prod-cp-2 <- 2 7: not a node yet
        13 node.await prod-cp-3 <- 3 7: not a node yet
        14 node.await prod-w-1 <- 4 7: not a node yet
        15 node.await prod-w-2 <- 5 7: not a node yet"#]]
    .assert_eq(&world.plan().trace());
    assert_eq!(world.settle(), 1);
}

#[test]
fn a_cluster_that_was_configured_but_not_bootstrapped_is_bootstrapped_after_reading_all_control_planes() {
    let mut world = killed_after(THREE_AND_TWO, |step| is(step, "guest.configure"));
    expect![[r#"
        1 machine.mark prod-cp-1 bootstrap here: records in the VM description that etcd is bootstrapped here
        2 etcd.bootstrap prod-cp-1 after reading prod-cp-1, prod-cp-2, prod-cp-3 <- 1: no control plane has etcd data
        3 etcd.join prod-cp-1 <- 2: not yet a member
        4 etcd.join prod-cp-2 <- 2: not yet a member
        5 etcd.join prod-cp-3 <- 2: not yet a member
        6 node.await prod-cp-1 <- 2: not a node yet
        7 node.await prod-cp-2 <- 2: not a node yet
        8 node.await prod-cp-3 <- 2: not a node yet
        9 node.await prod-w-1 <- 2: not a node yet
        10 node.await prod-w-2 <- 2: not a node yet"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
}

#[test]
fn an_intended_bootstrap_is_sent_again_to_the_same_machine() {
    let mut world = killed_after(THREE_AND_TWO, |step| is(step, "guest.configure") || is(step, "machine.mark"));
    let steps = world.plan().trace();
    assert!(!steps.contains("machine.mark"), "{steps}");
    assert!(
        steps.contains("etcd.bootstrap prod-cp-1 after reading prod-cp-1, prod-cp-2, prod-cp-3"),
        "{steps}"
    );
    world.settle();
}

#[test]
fn a_control_plane_that_still_boots_holds_the_bootstrap() {
    let world = killed_after(THREE_AND_TWO, |step| is(step, "guest.configure")).silent("prod-cp-2");
    expect![[r#"
        ~ machine prod-cp-2 configure: its Talos API does not answer: connection refused
        . bootstrap cluster held: a control plane could have etcd data: prod-cp-2: connection refused"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_bootstrapped_cluster_takes_the_missing_control_planes_one_by_one() {
    let mut world = killed_after(THREE_AND_TWO, |step| is(step, "machine.start") || is(step, "etcd.bootstrap"));
    expect![[r#"
        1 guest.configure prod-cp-2: it waits for its config
        2 etcd.join prod-cp-2 <- 1: a new member
        3 guest.configure prod-cp-3 <- 2: it waits for its config
        4 etcd.join prod-cp-3 <- 3: a new member
        5 guest.configure prod-w-1: it waits for its config
        6 guest.configure prod-w-2: it waits for its config
        7 node.await prod-cp-2 <- 1: not a node yet
        8 node.await prod-cp-3 <- 3: not a node yet
        9 node.await prod-w-1 <- 5: not a node yet
        10 node.await prod-w-2 <- 6: not a node yet"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
}

#[test]
fn a_vm_that_pve_is_still_creating_is_left_alone() {
    let mut world = empty(ONE);
    world.stranger(2001, "lab-cp-1");
    let vm = world.vms().get_mut(&2001).unwrap();
    (vm.name, vm.power) = (None, PowerState::Stopped);
    if let Seen::Yes(config) = &mut vm.config {
        (config.lock, config.description) = (Some("create".to_owned()), String::new());
    }
    expect![[r#"
        . machine lab-cp-1 held: VM 2001: it is being created (lock `create`), so it carries no mark yet
        . bootstrap cluster held: a control plane could have etcd data: lab-cp-1: it is being created (lock `create`), so it carries no mark yet"#]].assert_eq(&world.plan().render());
}

#[test]
fn a_fill_that_still_runs_in_pve_is_waited_for_and_its_volume_is_not_taken_for_a_leftover() {
    let mut world = killed_after(ONE, |step| is(step, "machine.claim"));
    world.leftover(2001, false);
    let (upid, kind) = ("UPID:pve1:1".to_owned(), "qmconfig".to_owned());
    world.observed.tasks.push(PveTask {
        upid,
        kind,
        subject: "2001".to_owned(),
        host: "pve1".to_owned(),
    });
    expect![[r#"
        . change lab-cp-1 held: its PVE task qmconfig still runs
        . bootstrap cluster held: lab-cp-1 is held"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_volume_that_is_on_its_way_out_is_waited_for_lest_the_next_disk_take_its_name() {
    let mut world = killed_after(ONE, |step| is(step, "machine.claim"));
    let (upid, kind) = ("UPID:pve2:1".to_owned(), "imgdel".to_owned());
    let (subject, host) = ("2001@nfs".to_owned(), "pve2".to_owned());
    world.observed.tasks.push(PveTask {
        upid,
        kind,
        subject,
        host,
    });
    expect![[r#"
        . change lab-cp-1 held: its PVE task imgdel still runs
        . bootstrap cluster held: lab-cp-1 is held"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn the_volume_of_a_fill_that_broke_off_is_freed_before_the_next() {
    let mut world = killed_after(ONE, |step| is(step, "machine.claim"));
    world.leftover(2001, true);
    expect![[r#"
        1 schematic.register schematic: the Image Factory builds registered schematics only
        2 image.fetch pve1:local <- 1: missing there
        3 volume.delete local-lvm:vm-2001-disk-9 [wipe]: leftover volume of an interrupted disk import
        4 machine.fill lab-cp-1 from local:talos-1.14.1-376567988ad3-nocloud-amd64.qcow2 <- 2 3: it has no disk
        5 machine.grow lab-cp-1 scsi0 to 40 GiB <- 4: the disk has the size of the image
        6 machine.start lab-cp-1 <- 5: it is new
        7 guest.configure lab-cp-1 <- 6: it is new
        8 machine.mark lab-cp-1 bootstrap here <- 6: records in the VM description that etcd is bootstrapped here
        9 etcd.bootstrap lab-cp-1 <- 7 8: no control plane has etcd data
        10 etcd.join lab-cp-1 <- 7 9: a member of the new cluster
        11 node.await lab-cp-1 <- 7 9: not a node yet"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(world.observed.leftovers, Seen::Yes(Vec::new()));
}

#[test]
fn a_half_downloaded_image_is_discarded_and_fetched_again() {
    let mut world = empty(ONE);
    let file = world.file();
    let at = StorageAt {
        host: "pve1".to_owned(),
        storage: "local".to_owned(),
    };
    world.observed.images.insert(
        at,
        Seen::Yes(vec![ImageFile {
            file,
            size: 9,
            may_delete: true,
        }]),
    );
    expect![[r#"
        1 image.discard pve1:local: 9 of 1200000000 bytes: an interrupted download
        2 schematic.register schematic: the Image Factory builds registered schematics only
        3 image.fetch pve1:local <- 1 2: missing there
        4 machine.claim lab-cp-1 vm 2001 on pve1: new cluster
        5 machine.fill lab-cp-1 from local:talos-1.14.1-376567988ad3-nocloud-amd64.qcow2 <- 3 4: it has no disk
        6 machine.grow lab-cp-1 scsi0 to 40 GiB <- 5: the disk has the size of the image
        7 machine.start lab-cp-1 <- 6: it is new
        8 guest.configure lab-cp-1 <- 7: it is new
        9 machine.mark lab-cp-1 bootstrap here <- 7: records in the VM description that etcd is bootstrapped here
        10 etcd.bootstrap lab-cp-1 <- 8 9: no control plane has etcd data
        11 etcd.join lab-cp-1 <- 8 10: a member of the new cluster
        12 node.await lab-cp-1 <- 8 10: not a node yet"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
}

#[test]
fn a_shared_storage_gets_the_image_once() {
    let mut world = empty(THREE_AND_TWO);
    for host in world.observed.hosts.values_mut() {
        if let Seen::Yes(storages) = &mut host.storages {
            storages.get_mut("local").unwrap().shared = true;
        }
    }
    let fetches = world.plan().steps.iter().filter(|step| is(step, "image.fetch")).count();
    assert_eq!(fetches, 1);
    assert_eq!(world.settle(), 1);
}

#[test]
fn a_stopped_machine_is_started_again() {
    let mut world = settled(THREE_AND_TWO).stopped("prod-w-1");
    expect![[r#"
         1 machine.start prod-w-1: it is stopped
         2 guest.configure prod-w-1 <- 1: it was stopped
         3 node.await prod-w-1 <- 2: not ready: kubelet stopped posting status"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
}

#[test]
fn a_claimed_machine_is_changed_to_what_the_file_says_now() {
    let mut world = killed_after(ONE, |step| is(step, "machine.claim")).edit("count: 1,", "count: 1, cpu: 8,");
    let trace = world.plan().trace();
    assert!(trace.contains("machine.change lab-cp-1 cores: cpu 4 -> 8"), "{trace}");
    assert_eq!(world.settle(), 1);
}

#[test]
fn a_datacenter_after_a_power_cut_is_started_and_never_bootstrapped_again() {
    let mut world = settled(THREE_AND_TWO);
    world.vms().values_mut().for_each(|vm| vm.power = PowerState::Stopped);
    let plan = world.plan();
    expect![[r#"
        ~ machine prod-cp-1 vm 2001 pve1 start, configure: it is stopped
        ~ machine prod-cp-2 vm 2002 pve2 start, configure: it is stopped
        ~ machine prod-cp-3 vm 2003 pve3 start, configure: it is stopped
        ~ machine prod-w-1 vm 3001 pve1 start, configure: it is stopped
        ~ machine prod-w-2 vm 3002 pve2 start, configure: it is stopped
        . bootstrap cluster held: a control plane could have etcd data: prod-cp-1 does not run"#]]
    .assert_eq(&plan.render());
    assert!(
        plan.steps
            .iter()
            .all(|step| !matches!(step.action, Action::EtcdBootstrap { .. }))
    );
    world.settle();
}

#[test]
fn a_machine_that_runs_without_a_disk_is_stopped_and_filled() {
    let mut world = killed_after(ONE, |step| is(step, "machine.claim"));
    world.vm("lab-cp-1").power = PowerState::Running;
    expect![[r#"
        + image talos-1.14.1 (376567988ad3) pve1:local: missing there
        ~ machine lab-cp-1 vm 2001 pve1 stop, fill, grow, start, configure, mark: it runs without a disk
        + etcd lab-cp-1 bootstraps here: no control plane has etcd data"#]]
    .assert_eq(&world.plan().render());
    world.settle();
}

#[test]
fn a_pool_scoped_token_tags_after_the_claim() {
    let mut world = empty(ONE);
    world.observed.token.pool_scoped = true;
    let plan = world.plan();
    assert!(
        plan.trace()
            .contains("machine.mark lab-cp-1 <- 3: this token may set tags only after the VM exists"),
        "{}",
        plan.trace()
    );
    world.apply_some(&plan, |step| is(step, "machine.claim"));
    assert!(world.vm("lab-cp-1").tags.is_empty());
    expect![[r#"
        + image talos-1.14.1 (376567988ad3) pve1:local: missing there
        ~ machine lab-cp-1 vm 2001 pve1 mark, fill, grow, start, configure: its claim was interrupted before it got its tag
        + etcd lab-cp-1 bootstraps here: no control plane has etcd data"#]]
    .assert_eq(&world.plan().render());
    world.settle();
}

#[test]
fn a_lost_worker_is_replaced_at_its_own_address() {
    let mut world = settled(THREE_AND_TWO).without("prod-w-2");
    expect!["+ machine prod-w-2 vm 3002 pve2 4 cpu 8 GiB 10.10.0.22: not found in the datacenter"]
        .assert_eq(&world.plan().render());
    world.settle();
}

#[test]
fn a_lost_control_plane_is_made_anew_and_joins() {
    let mut world = settled(THREE_AND_TWO).without("prod-cp-1");
    expect![[r#"
         1 machine.claim prod-cp-1 vm 2001 on pve1: not found in the datacenter
         2 machine.fill prod-cp-1 from local:talos-1.14.1-376567988ad3-nocloud-amd64.qcow2 <- 1: it has no disk
         3 machine.grow prod-cp-1 scsi0 to 40 GiB <- 2: the disk has the size of the image
         4 machine.start prod-cp-1 <- 3: it is new
         5 guest.configure prod-cp-1 <- 4: it is new
         6 etcd.join prod-cp-1 <- 5: a new member
         7 node.await prod-cp-1 <- 5: not ready: kubelet stopped posting status"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(world.members.len(), 3);
}

#[test]
fn a_node_that_is_not_ready_is_waited_for() {
    let world = settled(THREE_AND_TWO).blurred(|seen| {
        if let Seen::Yes(kubernetes) = &mut seen.kubernetes {
            let node = kubernetes.nodes.get_mut("prod-w-1").unwrap();
            (node.ready, node.why) = (false, "kubelet stopped posting status".to_owned());
        }
    });
    expect!["~ machine prod-w-1 await node: not ready: kubelet stopped posting status"].assert_eq(&world.plan().render());
}

#[test]
fn a_node_that_only_its_predecessor_registered_is_waited_for_even_without_a_cni() {
    let mut world = empty(&format!("{THREE_AND_TWO}cni: none\n"));
    assert_eq!(world.settle(), 1);
    let world = world.blurred(|seen| {
        if let Seen::Yes(kubernetes) = &mut seen.kubernetes {
            let node = kubernetes.nodes.get_mut("prod-w-1").unwrap();
            (node.stale, node.why) = (true, "from before its last boot".to_owned());
        }
    });
    expect!["~ machine prod-w-1 await node: not ready: from before its last boot"].assert_eq(&world.plan().render());
}

#[test]
fn without_a_cni_nodes_only_have_to_register() {
    let mut world = empty(&format!("{THREE_AND_TWO}cni: none\n"));
    assert_eq!(world.settle(), 1);
    let nodes = world.look().kubernetes;
    assert!(nodes.yes().unwrap().nodes.values().all(|node| !node.ready));
    expect!["nothing to do"].assert_eq(&world.plan().render());
}

#[test]
fn a_machine_whose_destruction_broke_off_is_destroyed_and_made_anew_when_it_is_wanted_again() {
    let mut world = settled(THREE_AND_TWO)
        .stopped("prod-w-2")
        .changed(|world| world.half_destroy("prod-w-2"));
    expect![[r#"
        1 node.delete prod-w-2 [live]: its machine is being removed
        2 machine.delete prod-w-2 [wipe] <- 1: finishes a deletion that stopped after the system disk was removed"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(world.plan().unchanged.machines, 5);
}

#[test]
fn a_control_plane_whose_destruction_broke_off_is_taken_out_of_etcd_before_it_is_made_anew() {
    let mut world = settled(THREE_AND_TWO)
        .stopped("prod-cp-3")
        .changed(|world| world.half_destroy("prod-cp-3"));
    expect![[r#"
        1 node.delete prod-cp-3 [live]: its machine is being removed
        2 machine.delete prod-cp-3 [wipe] <- 1: finishes a deletion that stopped after the system disk was removed
        3 etcd.leave prod-cp-3 by prod-cp-1 [live] <- 2: finishes a deletion that stopped after the system disk was removed"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(world.members.len(), 3);
}

#[test]
fn a_cluster_whose_down_broke_off_begins_anew() {
    let mut world = settled(ONE)
        .stopped("lab-cp-1")
        .changed(|world| world.half_destroy("lab-cp-1"));
    world.members.clear();
    world.nodes.clear();
    world.settle();
    assert_eq!(world.members.len(), 1);
}

#[test]
fn a_machine_that_was_to_go_and_lost_nothing_stays_what_it_is() {
    let mut world = settled(THREE_AND_TWO).stopped("prod-w-2").changed(|world| {
        world.half_destroy("prod-w-2");
        world.observed.lost.clear();
    });
    expect![[r#"
        1 machine.start prod-w-2: it is stopped
        2 machine.mark prod-w-2 <- 1: cancels a deletion that was started earlier
        3 guest.configure prod-w-2 <- 1: it was stopped
        4 node.await prod-w-2 <- 3: not ready: kubelet stopped posting status"#]]
    .assert_eq(&world.plan().trace());
    let plan = world.plan();
    world.apply_some(&plan, |step| is(step, "machine.start"));
    assert_eq!(world.plan().steps[0].why, "cancels a deletion that was started earlier");
    world.settle();
    assert!(!world.config("prod-w-2").description.contains("going"));
}

/// A storage that is not mounted is listed as empty.
#[test]
fn a_machine_that_lacks_a_disk_and_was_not_to_go_is_never_destroyed() {
    let world = settled(THREE_AND_TWO).stopped("prod-w-2").changed(|world| {
        let lost = world
            .config("prod-w-2")
            .disks
            .values()
            .map(|disk| disk.volume.clone())
            .collect();
        world.observed.lost = lost;
    });
    let plan = world.plan();
    assert!(!plan.steps.iter().any(|step| is(step, "machine.delete")), "{}", plan.trace());
}

#[test]
fn a_new_etcd_is_not_begun_under_workers_that_outlived_a_destruction_that_broke_off() {
    let yaml = THREE_AND_TWO.replace("count: 3", "count: 1");
    let mut world = settled(&yaml)
        .stopped("prod-cp-1")
        .changed(|world| world.half_destroy("prod-cp-1"));
    world.members.clear();
    let plan = world.plan();
    assert!(plan.steps.is_empty(), "{}", plan.trace());
    assert_eq!(plan.refusals[0].what, "every control plane is gone");
}

/// The restart of a machine that was destroyed meanwhile starts the next one that has its VMID.
#[test]
fn a_machine_that_was_started_before_its_disk_was_whole_is_started_again() {
    let mut world = killed_after(THREE_AND_TWO, |step| is(step, "machine.fill"));
    world.vm("prod-w-1").power = PowerState::Running;
    world.guest("prod-w-1").silent = true;
    let plan = world.plan();
    let steps: Vec<&str> = plan
        .steps
        .iter()
        .filter(|step| step.subject.to_string() == "prod-w-1")
        .map(|step| step.action.name())
        .collect();
    assert_eq!(
        steps,
        ["machine.stop", "machine.grow", "machine.start", "guest.configure"],
        "{}",
        plan.trace()
    );
    world.settle();
}

#[test]
fn a_larger_disk_in_the_file_does_not_stop_a_machine_that_does_not_answer() {
    let world = settled(THREE_AND_TWO).silent("prod-w-1").edit("disk: 60GiB", "disk: 80GiB");
    let plan = world.plan();
    assert!(!plan.steps.iter().any(|step| is(step, "machine.stop")), "{}", plan.trace());
}

/// The storage for images was removed after everything was created.
#[test]
fn a_disk_is_grown_before_the_start_also_where_no_image_could_be_kept_any_more() {
    let mut world = killed_after(ONE, |step| is(step, "machine.fill"));
    for host in world.observed.hosts.values_mut() {
        if let Seen::Yes(storages) = &mut host.storages {
            storages.get_mut("local").unwrap().content.remove("import");
        }
    }
    let plan = world.plan();
    let start = plan.steps.iter().find(|step| is(step, "machine.start")).unwrap();
    let grow = plan.steps.iter().find(|step| is(step, "machine.grow")).unwrap();
    assert_eq!(start.needs, [grow.id], "{}", plan.trace());
}
