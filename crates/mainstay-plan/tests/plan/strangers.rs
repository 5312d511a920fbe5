//! What is not ours is not touched, and what is in the way is said.

use expect_test::expect;
use mainstay_plan::{Mark, Power, Seen, Talos};
use uuid::Uuid;

use crate::world::{ONE, THREE_AND_TWO, empty, settled};

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
fn a_stranger_elsewhere_is_nobodys_business() {
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
        refused (conflict): somebody else has the address 10.10.0.11 of lab-cp-1
          why:  port 50000 answers there, but the machine does not run.
          help: find who has it, or give the pool other `addresses`."#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_stranger_on_the_address_of_a_stopped_machine_stops_everything() {
    let world = settled(THREE_AND_TWO)
        .stopped("prod-w-1")
        .changed(|world| world.answers([10, 10, 0, 21], 6443));
    expect![[r#"
        refused (conflict): somebody else has the address 10.10.0.21 of prod-w-1
          why:  port 6443 answers there, but the machine does not run.
          help: find who has it, or give the pool other `addresses`."#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_stranger_on_the_vip_stops_a_new_cluster() {
    let world = empty(THREE_AND_TWO).changed(|world| world.answers([10, 10, 0, 20], 6443));
    expect![[r#"
        refused (conflict): somebody else has the VIP 10.10.0.20
          why:  port 6443 answers there, but no control plane of ours runs.
          help: find who has it, or choose another `network.vip`."#]]
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
        let stranger = Talos::Maintenance {
            uuid: Seen::Yes(Uuid::from_u128(7)),
            version: None,
        };
        seen.talos.insert("prod-w-1".to_owned(), stranger);
    });
    expect![[r#"
        refused (conflict): somebody else's machine waits on the address 10.10.0.21 of prod-w-1
          why:  its SMBIOS UUID is 00000000-0000-0000-0000-000000000007, ours has 90adc7c1-7908-5d68-9dfc-7d6a23a90eeb; a config with secrets goes to ours only.
          help: find the machine that has the address, and give it another."#]].assert_eq(&world.plan().render());
}

#[test]
fn a_machine_that_cannot_be_proved_gets_no_config() {
    let world = settled(THREE_AND_TWO).blurred(|seen| {
        let someone = Talos::Maintenance {
            uuid: Seen::Unknown("it does not say".to_owned()),
            version: None,
        };
        seen.talos.insert("prod-w-1".to_owned(), someone);
        seen.talos.insert(
            "prod-w-2".to_owned(),
            Talos::Foreign("certificate signed by unknown authority".to_owned()),
        );
    });
    expect![[r#"
        . configure prod-w-1 held: who waits for a config on 10.10.0.21 could not be proved
        . configure prod-w-2 held: who answers on 10.10.0.22 does not believe our secrets: certificate signed by unknown authority"#]].assert_eq(&world.plan().render());
}

#[test]
fn a_clone_of_our_machine_is_a_stranger() {
    let mut world = settled(THREE_AND_TWO);
    let mut copy = world.vm("prod-w-1").clone();
    (copy.vmid, copy.name) = (512, Some("Copy-of-VM-prod-w-1".to_owned()));
    if let Seen::Yes(config) = &mut copy.config {
        config.uuid = Some(Uuid::from_u128(9));
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
    (copy.vmid, copy.power) = (512, Power::Stopped);
    world.vms().insert(512, copy);
    let mut world = world.down();
    world.settle();
    assert_eq!(world.vms().keys().copied().collect::<Vec<_>>(), [512]);
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
        refused (gate): 5 machines of cluster prod exist, but its secrets do not
          why:  new secrets would not open the running cluster (id 5eed0000-0000-4000-8000-000000000001), and nothing proves that it is yours.
          help: bring the secrets file back to where cluster.yaml is, or use another name."#]].assert_eq(&world.plan().render());
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
fn a_lost_tag_is_put_back() {
    let mut world = settled(THREE_AND_TWO);
    world.vm("prod-w-1").tags = ["gpu".to_owned()].into();
    expect!["1 machine.mark prod-w-1: ours by its UUID, but its tag is missing"].assert_eq(&world.plan().trace());
    world.settle();
    assert!(world.vm("prod-w-1").tags.contains("gpu"));
}

#[test]
fn a_lost_description_is_put_back_by_the_uuid() {
    let mut world = settled(THREE_AND_TWO);
    world.config("prod-w-1").description = "mine now".to_owned();
    expect!["1 machine.mark prod-w-1: ours by its UUID, but its description block is missing"].assert_eq(&world.plan().trace());
    world.settle();
    assert!(world.config("prod-w-1").description.starts_with("mine now\n"));
}

#[test]
fn a_machine_with_lost_marks_is_marked_before_it_is_deleted() {
    let mut world = settled(ONE);
    world.vm("lab-cp-1").tags.clear();
    expect![[r#"
         1 machine.mark lab-cp-1 bootstrap here: ours by its UUID, but its tag is missing
         2 machine.stop lab-cp-1 [live] <- 1: it goes
         3 machine.delete lab-cp-1 [wipe] <- 1 2: nothing is wanted"#]]
    .assert_eq(&world.down().plan().trace());
}

#[test]
fn a_volume_of_somebody_on_our_vmid_stops_the_claim() {
    let world = empty(ONE).changed(|world| world.leftover(2001, false));
    expect![[r#"
        refused (conflict): VMID 2001 of lab-cp-1 has a volume without a VM: local-lvm:vm-2001-disk-9
          why:  it may be somebody's data; a new VM would take it for its own.
          help: if nobody needs it: pvesm free local-lvm:vm-2001-disk-9"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_volume_that_our_journal_knows_is_freed() {
    let mut world = empty(ONE).changed(|world| world.leftover(2001, true)).down();
    expect!["1 volume.delete local-lvm:vm-2001-disk-9 [wipe]: left by a machine of ours that is gone"]
        .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(world.observed.leftovers, Seen::Yes(Vec::new()));
}

#[test]
fn down_names_volumes_that_nothing_proves() {
    let world = empty(ONE).changed(|world| world.leftover(2001, false)).down();
    expect![". free local-lvm:vm-2001-disk-9 held: no VM uses it, and nothing proves that mainstay made it, so it stays; if it is not needed: pvesm free local-lvm:vm-2001-disk-9"].assert_eq(&world.plan().render());
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
    expect![". change prod-w-1 held: it was turned into a template, which cannot run"].assert_eq(&world.plan().render());
}
