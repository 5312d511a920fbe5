//! What is not ours is not touched, and what is in the way is said.

use expect_test::expect;
use mainstay_plan::{Guest, Mark, PowerState, Seen};
use mainstay_spec::Mac;
use uuid::Uuid;

use crate::world::{ONE, THREE_AND_TWO, World, empty, settled};

#[test]
fn a_stranger_on_our_vmid_stops_everything() {
    let world = empty(THREE_AND_TWO).changed(|world| world.stranger(3002, "accounting"));
    expect![[r#"
        refused (conflict): VMID 3002 of prod-w-2 is taken by VM accounting on pve2
          why:  it does not carry our mark.
          help: choose other VMIDs: `vmids` of the pool, or `vmid` of the machine."#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_stranger_with_our_name_stops_everything() {
    let world = empty(THREE_AND_TWO).changed(|world| world.stranger(512, "prod-w-1"));
    expect![[r#"
        refused (conflict): a VM called prod-w-1 exists already: VM 512 on pve2
          why:  it does not carry our mark.
          help: rename it, or give the cluster another `name` or `names` pattern."#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_foreign_vm_on_another_vmid_and_address_is_left_alone() {
    let mut world = empty(ONE).changed(|world| world.stranger(512, "accounting"));
    assert_eq!(world.settle(), 1);
    let mut world = world.down();
    world.settle();
    assert_eq!(world.vms().keys().copied().collect::<Vec<_>>(), [512]);
}

#[test]
fn a_stranger_on_our_address_stops_everything() {
    let world = empty(ONE).changed(|world| world.answers([10, 10, 0, 11], 50000));
    expect![[r#"
        refused (conflict): address 10.10.0.11 of lab-cp-1 is already in use
          why:  port 50000 answers there, but the machine does not run.
          help: free the address, or change the pool's `addresses`."#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_stranger_on_the_address_of_a_stopped_machine_stops_everything() {
    let world = settled(THREE_AND_TWO)
        .stopped("prod-w-1")
        .changed(|world| world.answers([10, 10, 0, 21], 6443));
    expect![[r#"
        refused (conflict): address 10.10.0.21 of prod-w-1 is already in use
          why:  port 6443 answers there, but the machine does not run.
          help: free the address, or change the pool's `addresses`."#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_stranger_on_the_vip_stops_a_new_cluster() {
    let world = empty(THREE_AND_TWO).changed(|world| world.answers([10, 10, 0, 20], 6443));
    expect![[r#"
        refused (conflict): VIP 10.10.0.20 is already in use
          why:  port 6443 answers there, but no control plane of ours runs.
          help: free the address, or choose another `network.vip`."#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn our_own_vip_is_no_stranger() {
    let world = settled(THREE_AND_TWO).changed(|world| world.answers([10, 10, 0, 20], 6443));
    expect!["nothing to do"].assert_eq(&world.plan().render());
}

#[test]
fn a_machine_with_another_uuid_on_our_address_gets_no_config() {
    let world = settled(THREE_AND_TWO).blurred(|seen| {
        let stranger = Guest::AwaitingConfig {
            uuid: Seen::Yes(Uuid::from_u128(7)),
            release: None,
        };
        seen.guests.insert("prod-w-1".to_owned(), stranger);
    });
    expect![[r#"
        refused (conflict): another machine in maintenance mode answers on 10.10.0.21 of prod-w-1
          why:  its SMBIOS UUID is 00000000-0000-0000-0000-000000000007, ours has 90adc7c1-7908-5d68-9dfc-7d6a23a90eeb; a config with secrets goes to ours only.
          help: find the machine that has the address, and give it another."#]].assert_eq(&world.plan().render());
}

#[test]
fn a_machine_that_cannot_be_proved_gets_no_config() {
    let world = settled(THREE_AND_TWO).blurred(|seen| {
        let someone = Guest::AwaitingConfig {
            uuid: Seen::Unknown("it does not say".to_owned()),
            release: None,
        };
        seen.guests.insert("prod-w-1".to_owned(), someone);
        seen.guests.insert(
            "prod-w-2".to_owned(),
            Guest::Foreign("certificate signed by unknown authority".to_owned()),
        );
    });
    expect![[r#"
        . configure prod-w-1 held: cannot read the SMBIOS UUID of the machine on 10.10.0.21; no config is sent
        . configure prod-w-2 held: the machine on 10.10.0.22 does not accept this cluster's credentials: certificate signed by unknown authority"#]].assert_eq(&world.plan().render());
}

#[test]
fn a_clone_of_our_machine_is_a_stranger() {
    let mut world = settled(THREE_AND_TWO);
    let mut copy = world.vm("prod-w-1").clone();
    (copy.vmid, copy.name) = (512, Some("Copy-of-VM-prod-w-1".to_owned()));
    if let Seen::Yes(config) = &mut copy.config {
        config.uuid = Some(Uuid::from_u128(9));
        config.nic.as_mut().expect("a NIC").mac = Mac([0xbc, 0x24, 0x11, 0x99, 0x99, 0x99]);
    }
    world.vms().insert(512, copy);
    expect!["nothing to do"].assert_eq(&world.plan().render());
    let mut world = world.down();
    world.settle();
    assert_eq!(world.vms().keys().copied().collect::<Vec<_>>(), [512]);
}

#[test]
fn a_restored_backup_on_another_vmid_is_a_stranger_although_its_uuid_is_ours() {
    let mut world = settled(THREE_AND_TWO);
    let mut copy = world.vm("prod-w-1").clone();
    (copy.vmid, copy.power) = (512, PowerState::Stopped);
    world.vms().insert(512, copy);
    let mut world = world.down();
    world.settle();
    assert_eq!(world.vms().keys().copied().collect::<Vec<_>>(), [512]);
}

#[test]
fn a_machine_that_has_a_copy_gets_no_config_and_both_are_named() {
    for (uuid, what) in [(None, "SMBIOS UUID"), (Some(Uuid::from_u128(9)), "MAC address")] {
        let mut world = settled(THREE_AND_TWO);
        let mut copy = world.vm("prod-w-1").clone();
        copy.vmid = 512;
        if let (Seen::Yes(config), Some(uuid)) = (&mut copy.config, uuid) {
            config.uuid = Some(uuid);
        }
        world.vms().insert(512, copy);
        let plan = world.edit("memory: 8GiB, disk: 60GiB", "memory: 16GiB, disk: 60GiB").plan();
        let told = format!("VM 512 has the same {what} as its VM 3001");
        assert!(plan.render().contains(&told), "{}", plan.render());
        let of_it = |step: &mainstay_plan::Step| step.subject.to_string() == "prod-w-1";
        assert!(!plan.steps.iter().any(of_it), "{}", plan.render());
    }
}

#[test]
fn a_machine_whose_copy_is_all_that_is_left_is_not_made_again_beside_it() {
    let mut world = settled(THREE_AND_TWO);
    let mut copy = world.vms().remove(&3001).expect("is there");
    copy.vmid = 512;
    copy.name = Some("restored".into());
    world.vms().insert(512, copy);
    let plan = world.plan();
    assert!(plan.render().contains("VM 512 has the same SMBIOS UUID"), "{}", plan.render());
    assert!(!plan.steps.iter().any(|step| step.action.name() == "machine.claim"));
}

#[test]
fn a_namesake_cluster_is_not_ours() {
    let mut world = settled(THREE_AND_TWO);
    world.cluster_id = Some(Uuid::from_u128(2));
    expect![[r#"
        refused (conflict): VMID 2001 of prod-cp-1 is taken by VM prod-cp-1 on pve1
          why:  it belongs to another cluster prod (id 5eed0000-0000-4000-8000-000000000001).
          help: choose other VMIDs: `vmids` of the pool, or `vmid` of the machine.
        refused (conflict): VMID 2002 of prod-cp-2 is taken by VM prod-cp-2 on pve2
          why:  it belongs to another cluster prod (id 5eed0000-0000-4000-8000-000000000001).
          help: choose other VMIDs: `vmids` of the pool, or `vmid` of the machine.
        refused (conflict): VMID 2003 of prod-cp-3 is taken by VM prod-cp-3 on pve3
          why:  it belongs to another cluster prod (id 5eed0000-0000-4000-8000-000000000001).
          help: choose other VMIDs: `vmids` of the pool, or `vmid` of the machine.
        refused (conflict): VMID 3001 of prod-w-1 is taken by VM prod-w-1 on pve1
          why:  it belongs to another cluster prod (id 5eed0000-0000-4000-8000-000000000001).
          help: choose other VMIDs: `vmids` of the pool, or `vmid` of the machine.
        refused (conflict): VMID 3002 of prod-w-2 is taken by VM prod-w-2 on pve2
          why:  it belongs to another cluster prod (id 5eed0000-0000-4000-8000-000000000001).
          help: choose other VMIDs: `vmids` of the pool, or `vmid` of the machine."#]]
    .assert_eq(&world.plan().render());
    assert_eq!(world.down().plan().render(), "nothing to do");
}

#[test]
fn marked_machines_without_the_secrets_refuse_everything() {
    let mut world = settled(THREE_AND_TWO);
    world.cluster_id = None;
    expect![[r#"
        refused (gate): found 5 machines of cluster prod, but not its secrets file
          why:  new secrets cannot access the running cluster (id 5eed0000-0000-4000-8000-000000000001).
          help: restore the secrets file next to cluster.yaml, or use another cluster name."#]]
    .assert_eq(&world.plan().render());
    let world = world.down();
    assert!(world.plan().steps.is_empty() && !world.plan().refusals.is_empty());
}

#[test]
fn without_secrets_and_machines_a_plan_is_for_reading_only() {
    let mut world = empty(ONE);
    world.cluster_id = None;
    let plan = world.plan();
    assert_eq!(plan.cluster_id, None);
    assert!(plan.render().starts_with("+ image"));
}

#[test]
fn a_machine_that_lost_its_tag_is_held_and_named_with_adopt() {
    let world = settled(THREE_AND_TWO).changed(|world| world.vm("prod-w-1").tags = ["gpu".to_owned()].into());
    expect![". change prod-w-1 held: VM 3001 lacks its tag, so it is not proved to be mainstay's and is left alone; if it is: mainstay adopt 3001"].assert_eq(&world.plan().render());
}

#[test]
fn a_machine_that_lost_its_description_is_held_and_named_with_adopt() {
    let world = settled(THREE_AND_TWO).changed(|world| world.config("prod-w-1").description = "mine now".to_owned());
    expect![". change prod-w-1 held: VM 3001 lacks its description block, so it is not proved to be mainstay's and is left alone; if it is: mainstay adopt 3001"].assert_eq(&world.plan().render());
}

#[test]
fn a_machine_with_fewer_than_three_marks_is_not_started_changed_or_given_a_config() {
    let world = settled(THREE_AND_TWO)
        .stopped("prod-w-1")
        .changed(|world| world.vm("prod-w-1").tags.clear());
    let world = world.edit("memory: 8GiB, disk: 60GiB", "memory: 16GiB, disk: 60GiB");
    let about: Vec<String> = world
        .plan()
        .steps
        .iter()
        .filter(|step| step.subject.to_string() == "prod-w-1")
        .map(|step| step.action.info().name.to_owned())
        .collect();
    assert_eq!(about, Vec::<String>::new());
}

#[test]
fn a_machine_with_fewer_than_three_marks_is_not_deleted_by_down() {
    for lose in [
        |world: &mut World| world.vm("prod-w-1").tags.clear(),
        |world: &mut World| world.config("prod-w-1").description.clear(),
        |world: &mut World| {
            world.vm("prod-w-1").tags.clear();
            world.config("prod-w-1").description.clear();
        },
    ] {
        let mut world = settled(THREE_AND_TWO).changed(lose).down();
        let held = world.plan().held;
        assert!(
            held.iter().any(|held| held.reason.contains("mainstay adopt 3001")),
            "{held:?}"
        );
        let plan = world.plan();
        world.apply(&plan);
        assert_eq!(world.vms().keys().copied().collect::<Vec<_>>(), [3001]);
    }
}

#[test]
fn the_etcd_member_on_a_vm_with_lost_marks_stays_and_counts() {
    // Not in the file any more, and its VM cannot be proved: it may still run, so its member is not removed.
    for lose in [
        |world: &mut World| world.vm("prod-cp-3").tags.clear(),
        |world: &mut World| world.config("prod-cp-3").description.clear(),
    ] {
        let world = settled(THREE_AND_TWO).changed(lose).edit("count: 3", "count: 1");
        let plan = world.plan();
        let touched = plan.steps.iter().any(|step| step.subject.to_string() == "prod-cp-3");
        assert!(!touched, "{}", plan.render());
        assert!(
            plan.held.iter().any(|held| held.reason.contains("mainstay adopt 2003")),
            "{}",
            plan.render()
        );
    }
}

#[test]
fn an_unfinished_claim_says_that_its_tag_follows_and_is_completed() {
    let mut world = settled(ONE);
    world.vm("lab-cp-1").tags.clear();
    let mark = Mark::parse(&world.config("lab-cp-1").description).unwrap();
    world.config("lab-cp-1").description = Mark {
        tag_follows: true,
        ..mark
    }
    .write_into("");
    expect!["1 machine.mark lab-cp-1 bootstrap here: its claim was interrupted before it got its tag"]
        .assert_eq(&world.plan().trace());
    expect![[r#"
        1 machine.mark lab-cp-1 bootstrap here: its claim was interrupted before it got its tag
        2 machine.stop lab-cp-1 [live] <- 1: it is being removed
        3 machine.delete lab-cp-1 [wipe] <- 1 2: the cluster is being deleted"#]]
    .assert_eq(&world.clone().down().plan().trace());
    world.settle();
    assert!(world.vm("lab-cp-1").tags.contains("mainstay"));
    assert!(!Mark::parse(&world.config("lab-cp-1").description).unwrap().tag_follows);
}

#[test]
fn a_foreign_volume_on_our_vmid_is_named_and_the_machine_is_created() {
    let mut world = empty(ONE).changed(|world| world.leftover(2001, false));
    world.settle();
    expect![". free local-lvm:vm-2001-disk-9 held: no VM uses it, and nothing proves that mainstay made it, so it is kept; if it is not needed: pvesm free local-lvm:vm-2001-disk-9"].assert_eq(&world.plan().render());
    assert!(matches!(&world.observed.leftovers, Seen::Yes(left) if left.len() == 1));
}

#[test]
fn a_foreign_cloud_init_volume_on_our_vmid_stops_the_claim() {
    let world = empty(ONE).changed(|world| world.leftover_named(2001, "vm-2001-cloudinit", false));
    expect![[r#"
        refused (conflict): VMID 2001 of lab-cp-1 has a cloud-init volume without a VM: local-lvm:vm-2001-cloudinit
          why:  Proxmox VE gives the cloud-init drive of a new VM this name, so the VM could not be created.
          help: if another Proxmox VE does not use it: pvesm free local-lvm:vm-2001-cloudinit"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_volume_that_our_journal_knows_is_freed() {
    let mut world = empty(ONE).changed(|world| world.leftover(2001, true)).down();
    expect!["1 volume.delete local-lvm:vm-2001-disk-9 [wipe]: leftover volume of a deleted machine of this cluster"]
        .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(world.observed.leftovers, Seen::Yes(Vec::new()));
}

#[test]
fn down_names_volumes_that_nothing_proves() {
    let world = empty(ONE).changed(|world| world.leftover(2001, false)).down();
    expect![". free local-lvm:vm-2001-disk-9 held: no VM uses it, and nothing proves that mainstay made it, so it is kept; if it is not needed: pvesm free local-lvm:vm-2001-disk-9"].assert_eq(&world.plan().render());
}

#[test]
fn users_text_and_tags_survive_every_change() {
    let mut world = settled(THREE_AND_TWO);
    world.vm("prod-w-1").tags.insert("keep-me".to_owned());
    let config = world.config("prod-w-1");
    config.description = format!("Ask Ada before touching.\n\n{}\n\nRack 4", config.description);
    let mut world = world.edit("memory: 8GiB, disk: 60GiB", "memory: 16GiB, disk: 60GiB, tags: [team-a]");
    world.settle();
    assert!(
        world
            .vm("prod-w-1")
            .tags
            .is_superset(&["keep-me".to_owned(), "team-a".to_owned(), "mainstay".to_owned()].into())
    );
    let description = world.config("prod-w-1").description.clone();
    assert!(
        description.starts_with("Ask Ada before touching.\n\nprod-w-1: worker"),
        "{description}"
    );
    assert!(description.ends_with("```\n\nRack 4"), "{description}");
    assert!(Mark::parse(&description).is_some());
}

#[test]
fn a_machine_that_was_turned_into_a_template_is_held() {
    let world = settled(THREE_AND_TWO)
        .stopped("prod-w-1")
        .changed(|world| world.vm("prod-w-1").template = true);
    expect![". change prod-w-1 held: the VM was converted to a template, which cannot run"].assert_eq(&world.plan().render());
}
