//! Which disks go with a machine, and which hold its removal.

use std::collections::BTreeSet;

use expect_test::expect;
use mainstay_plan::{Action, Mark, Plan, Seen, VmDisk, VolumeUse};
use mainstay_spec::{DiskCache, DiskOptions, Gib};

use crate::world::{ONE, THREE_AND_TWO, World, empty, settled};

fn disk(volume: &str, serial: Option<&str>) -> VmDisk {
    VmDisk {
        volume: volume.to_owned(),
        size: Gib(100),
        serial: serial.map(str::to_owned),
        options: DiskOptions {
            cache: DiskCache::None,
            discard: true,
            ssd: true,
            iothread: false,
        },
    }
}

/// A cluster with one worker too many, whose VM has another drive.
fn with_drive(slot: &str, volume: &str, serial: Option<&str>) -> World {
    let mut world = settled(THREE_AND_TWO);
    let new = disk(volume, serial);
    world.config("prod-w-2").disks.insert(slot.to_owned(), new);
    world.edit("count: 2", "count: 1")
}

/// The same, with a volume that its config names elsewhere.
fn with_aside(slot: &str, volume: &str, snapshot: Option<&str>) -> World {
    let mut world = settled(THREE_AND_TWO);
    let config = world.config("prod-w-2");
    config.aside.push(VolumeUse {
        slot: slot.to_owned(),
        volume: volume.to_owned(),
        serial: None,
        snapshot: snapshot.map(str::to_owned),
    });
    config.snapshots = Seen::Yes(snapshot.map(str::to_owned).into_iter().collect());
    world.edit("count: 2", "count: 1")
}

fn deleted(plan: &Plan) -> Vec<String> {
    let volumes = plan.steps.iter().find_map(|step| match &step.action {
        Action::MachineDelete { volumes, with_disks, .. } => Some(volumes.iter().chain(with_disks).cloned().collect()),
        _ => None,
    });
    volumes.unwrap_or_default()
}

fn is_held(world: &World) -> bool {
    let plan = world.plan();
    plan.removals().next().is_none() && plan.held.iter().any(|held| held.what == "remove" && held.blocks())
}

#[test]
fn a_disk_that_a_person_added_holds_the_removal_and_is_named_with_both_ways_out() {
    let world = with_drive("scsi3", "local-lvm:vm-3002-disk-5", None);
    expect![". remove prod-w-2 held: scsi3 local-lvm:vm-3002-disk-5 was not made by mainstay; to keep it: qm disk move 3002 scsi3 --target-vmid <VMID>; to delete it with the VM: --with-disk local-lvm:vm-3002-disk-5"]
        .assert_eq(&world.plan().render());
    // Nor does `down` take it, while the other machines go.
    let down = world.down().plan();
    let going = down
        .removals()
        .filter(|step| matches!(step.action, Action::MachineDelete { .. }));
    assert_eq!(going.count(), 4, "{}", down.trace());
    assert!(
        !down.steps.iter().any(|step| step.subject.to_string() == "prod-w-2"),
        "{}",
        down.trace()
    );
}

#[test]
fn a_disk_that_the_user_names_goes_with_the_machine_and_the_approval_shows_it() {
    let volume = "local-lvm:vm-3002-disk-5";
    let mut world = with_drive("scsi3", volume, None);
    world.with_disks = BTreeSet::from([volume.to_owned()]);
    let plan = world.plan();
    assert!(deleted(&plan).contains(&volume.to_owned()), "{}", plan.trace());
    assert!(
        plan.render().contains("3 volumes and local-lvm:vm-3002-disk-5"),
        "{}",
        plan.render()
    );
}

#[test]
fn a_machine_that_ha_manages_is_taken_out_of_it_and_the_approval_says_so() {
    let mut world = settled(THREE_AND_TWO);
    world.vm("prod-w-2").ha = true;
    let plan = world.edit("count: 2", "count: 1").plan();
    assert!(
        plan.render().contains("not in cluster.yaml; its HA resource is removed too"),
        "{}",
        plan.render()
    );
    assert!(purges(&plan));
}

fn purges(plan: &Plan) -> bool {
    let purges = |action: &Action| matches!(action, Action::MachineDelete { purge, .. } if *purge);
    plan.steps.iter().any(|step| purges(&step.action))
}

#[test]
fn a_machine_in_no_job_is_deleted_without_purge() {
    let plan = settled(THREE_AND_TWO).edit("count: 2", "count: 1").plan();
    assert!(!deleted(&plan).is_empty() && !purges(&plan), "{}", plan.render());
}

#[test]
fn a_purge_names_every_job_that_the_machine_leaves() {
    let mut world = settled(THREE_AND_TWO);
    world.vm("prod-w-2").jobs.purged = Seen::Yes(vec!["backup job nightly".into(), "HA rule apart".into()]);
    let plan = world.edit("count: 2", "count: 1").plan();
    let told = "; it leaves backup job nightly; it leaves HA rule apart";
    assert!(plan.render().contains(told) && purges(&plan), "{}", plan.render());
}

#[test]
fn jobs_that_cannot_be_read_are_not_purged() {
    let unread = || Seen::Unknown("Sys.Audit is missing on /".into());
    let mut world = settled(THREE_AND_TWO);
    world.vm("prod-w-2").jobs.purged = unread();
    let plan = world.edit("count: 2", "count: 1").plan();
    assert!(!deleted(&plan).is_empty() && !purges(&plan), "{}", plan.render());
    // Proxmox VE would refuse it.
    let mut world = settled(THREE_AND_TWO);
    world.vm("prod-w-2").jobs.purged = unread();
    world.vm("prod-w-2").ha = true;
    let plan = world.edit("count: 2", "count: 1").plan();
    assert!(plan.render().contains("ha-manager remove vm:"), "{}", plan.render());
    assert!(deleted(&plan).is_empty());
}

#[test]
fn a_replicated_machine_is_held_until_its_replica_is_gone() {
    let mut world = settled(THREE_AND_TWO);
    world.vm("prod-w-2").jobs.replication = Seen::Yes(vec!["3002-0 to pve2".into()]);
    let plan = world.edit("count: 2", "count: 1").plan();
    assert!(plan.render().contains("pvesr delete 3002-0"), "{}", plan.render());
    assert!(deleted(&plan).is_empty());
}

#[test]
fn a_volume_of_another_vm_is_not_destroyed_and_holds_nothing() {
    for volume in ["ceph:vm-9999-pvc-0f8fad5b-d9cb", "local-lvm:vm-500-disk-0"] {
        let plan = with_drive("scsi4", volume, None).plan();
        assert!(
            !deleted(&plan).is_empty() && !deleted(&plan).contains(&volume.to_owned()),
            "{}",
            plan.trace()
        );
    }
}

#[test]
fn unused_pending_and_saved_volumes_of_another_hand_hold_the_removal() {
    assert!(is_held(&with_aside("unused0", "local-lvm:vm-3002-disk-5", None)));
    assert!(is_held(&with_aside("scsi5", "local-lvm:vm-3002-disk-5", None)));
    assert!(is_held(&with_aside("scsi5", "local-lvm:vm-3002-disk-5", Some("before"))));
    assert!(is_held(&with_aside(
        "vmstate",
        "local-lvm:vm-3002-state-before",
        Some("before")
    )));
    // A snapshot names the disks of its machine again.
    assert!(!is_held(&with_aside("scsi0", "local-lvm:vm-3002-scsi0", Some("before"))));
}

#[test]
fn our_disk_stays_ours_when_it_is_moved_to_another_storage_and_the_list_follows() {
    let mut world = settled(THREE_AND_TWO);
    let system = world.config("prod-w-2").disks.get_mut("scsi0").unwrap();
    system.volume = "nfs:3002/vm-3002-disk-0.raw".to_owned();
    expect!["1 machine.mark prod-w-2: records in the VM description the disks that mainstay made"]
        .assert_eq(&world.plan().trace());
    world.settle();
    let mark = Mark::parse(&world.config("prod-w-2").description).unwrap();
    assert_eq!(
        mark.disks.unwrap()["scsi0"].volume.as_deref(),
        Some("nfs:3002/vm-3002-disk-0.raw")
    );
    let plan = world.edit("count: 2", "count: 1").plan();
    assert!(
        deleted(&plan).contains(&"nfs:3002/vm-3002-disk-0.raw".to_owned()),
        "{}",
        plan.trace()
    );
}

#[test]
fn another_disk_in_a_slot_of_ours_is_not_ours() {
    assert!(is_held(&with_drive("scsi0", "local-lvm:vm-3002-disk-5", None)));
    assert!(is_held(&with_drive("efidisk0", "local-lvm:vm-3002-disk-5", None)));
}

#[test]
fn a_name_that_pve_gave_again_is_not_taken_for_the_disk_that_had_it() {
    // Our system disk was moved away, and a person's new disk got its name, then was detached.
    let mut world = with_drive("scsi0", "nfs:3002/vm-3002-disk-0.raw", Some("system"));
    world.config("prod-w-2").aside.push(VolumeUse {
        slot: "unused0".to_owned(),
        volume: "local-lvm:vm-3002-scsi0".to_owned(),
        serial: None,
        snapshot: None,
    });
    assert!(is_held(&world), "{}", world.plan().trace());
}

#[test]
fn our_own_disk_that_was_detached_still_goes_with_its_machine() {
    let mut world = settled(THREE_AND_TWO);
    let config = world.config("prod-w-2");
    let system = config.disks.remove("scsi0").unwrap();
    config.aside.push(VolumeUse {
        slot: "unused0".to_owned(),
        volume: system.volume.clone(),
        serial: None,
        snapshot: None,
    });
    let plan = world.edit("count: 2", "count: 1").plan();
    assert!(deleted(&plan).contains(&system.volume), "{}", plan.trace());
}

/// As a mainstay wrote it that did not list disks.
fn unlisted(world: &mut World, name: &str) {
    let config = world.config(name);
    let lines = config.description.lines().filter(|line| !line.starts_with("disk"));
    config.description = lines.collect::<Vec<_>>().join("\n");
}

#[test]
fn a_machine_from_before_disks_were_listed_has_the_disks_of_the_file_and_no_others() {
    let yaml = THREE_AND_TWO.replace("disk: 60GiB,", "disk: 60GiB, disks: [{ name: data, size: 10GiB }],");
    let world = settled(&yaml).changed(|world| unlisted(world, "prod-w-2"));
    let mut extra = world.clone();
    let new = disk("local-lvm:vm-3002-disk-5", None);
    extra.config("prod-w-2").disks.insert("scsi3".to_owned(), new);
    let plan = world.down().plan();
    assert!(plan.held.is_empty(), "{}", plan.render());
    let plan = extra.down().plan();
    assert!(
        plan.render().contains("remove prod-w-2 held: scsi3 local-lvm:vm-3002-disk-5"),
        "{}",
        plan.render()
    );
}

#[test]
fn up_lists_the_disks_of_a_machine_from_before() {
    let mut world = settled(ONE).changed(|world| unlisted(world, "lab-cp-1"));
    expect!["1 machine.mark lab-cp-1: records in the VM description the disks that mainstay made"]
        .assert_eq(&world.plan().trace().replace(" bootstrap here", ""));
    world.settle();
    let mark = Mark::parse(&world.config("lab-cp-1").description).unwrap();
    assert_eq!(mark.disks.unwrap().into_keys().collect::<Vec<_>>(), ["efidisk0", "scsi0"]);
}

#[test]
fn snapshots_that_cannot_be_read_hold_the_removal() {
    let mut world = settled(ONE);
    world.config("lab-cp-1").snapshots = Seen::Unknown("the host does not answer".to_owned());
    assert!(is_held(&world.down()));
}

#[test]
fn a_leftover_beside_our_machine_that_nothing_proves_stays_and_is_named() {
    let world = settled(ONE).changed(|world| world.leftover(2001, false));
    expect![". free local-lvm:vm-2001-disk-9 held: no VM uses it, and nothing proves that mainstay made it, so it is kept; if it is not needed: pvesm free local-lvm:vm-2001-disk-9"]
        .assert_eq(&world.plan().render());
    assert!(!world.plan().is_blocked());
    let down = world.down().plan();
    assert!(
        !down
            .steps
            .iter()
            .any(|step| matches!(step.action, Action::VolumeDelete { .. })),
        "{}",
        down.trace()
    );
}

#[test]
fn a_leftover_that_a_task_may_be_writing_waits_for_the_task() {
    let world = settled(ONE).changed(|world| {
        world.leftover(2001, true);
        let Seen::Yes(all) = &mut world.observed.leftovers else {
            panic!("leftovers are not seen")
        };
        all[0].busy = Some("a qmclone task runs on pve1 and may be writing it".to_owned());
    });
    for plan in [world.plan(), world.down().plan()] {
        let deletes = |step: &mainstay_plan::Step| matches!(step.action, Action::VolumeDelete { .. });
        assert!(!plan.steps.iter().any(deletes), "{}", plan.trace());
        assert!(plan.held.iter().any(mainstay_plan::Held::is_transient), "{:?}", plan.held);
    }
}

#[test]
fn a_leftover_that_is_ours_goes_beside_a_machine_that_runs_too() {
    let world = settled(ONE).changed(|world| world.leftover(2001, true));
    expect!["1 volume.delete local-lvm:vm-2001-disk-9 [wipe]: leftover volume of an interrupted disk import"]
        .assert_eq(&world.plan().trace());
}

#[test]
fn a_leftover_that_the_token_may_not_free_is_named_with_the_command() {
    let world = empty(ONE)
        .changed(|world| world.leftover(2001, true))
        .down()
        .changed(|world| {
            if let Seen::Yes(leftovers) = &mut world.observed.leftovers {
                leftovers[0].may_free = false;
            }
        });
    expect![". free local-lvm:vm-2001-disk-9 held: mainstay made it and no VM uses it, but the token lacks Datastore.Allocate on /storage/local-lvm: pvesm free local-lvm:vm-2001-disk-9"]
        .assert_eq(&world.plan().render());
    assert!(world.plan().is_blocked());
}
