//! Volumes of others on, beside and under the numbers of our machines: they survive whatever we remove.

use std::collections::BTreeSet;

use mainstay_sim::WorldSpec;

use crate::stage::{Stage, on_stage, settled};

const FILE: &str = "\
name: small
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }
talos: { version: 1.13.9 }
pools:
  control-plane: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+ }
  worker: { count: 2, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.21+, vmids: 3000+ }
";

/// A storage that PVE has and our token may not see.
fn with_a_hidden_storage() -> WorldSpec {
    let mut world = WorldSpec::parse(
        "tokens: { root@pam!mainstay: { privsep: 1, secret: 00000000-0000-4000-8000-000000000001 } }\n\
         acl:\n\
         - { path: /, ugid: root@pam!mainstay, type: token, roleid: Administrator }\n\
         - { path: /storage/hidden, ugid: root@pam!mainstay, type: token, roleid: NoAccess }\n",
    )
    .expect("a world");
    let mut hidden = world.datacenter.storages["local-lvm"].clone();
    hidden.other = [("vgname".to_owned(), "hidden".into()), ("thinpool".to_owned(), "data".into())].into();
    world.datacenter.storages.insert("hidden".to_owned(), hidden);
    world
}

fn host_of(stage: &Stage, vmid: u32) -> String {
    stage.world.datacenter().inspect().vms[&vmid].host.clone()
}

/// A person attaches a volume to a VM.
fn attach(stage: &Stage, vmid: u32, slot: &str, volid: &str) {
    let lab = stage.world.datacenter().lab();
    lab.add_volume(&host_of(stage, vmid), volid, 8 << 30);
    let value = if slot.starts_with("unused") {
        volid.to_owned()
    } else {
        format!("{volid},size=8G")
    };
    lab.set_config(vmid, slot, &value);
}

fn exists(stage: &Stage, volid: &str) -> bool {
    stage
        .world
        .datacenter()
        .inspect()
        .volumes
        .iter()
        .any(|volume| volume.volid == volid)
}

fn is_there(stage: &Stage, vmid: u32) -> bool {
    stage.world.datacenter().inspect().vms.contains_key(&vmid)
}

#[test]
fn a_volume_of_our_vmid_that_no_vm_names_survives_also_where_the_token_sees_nothing() {
    on_stage(81, with_a_hidden_storage(), async |stage| {
        settled(stage, stage.up(FILE).await);
        let lab = stage.world.datacenter().lab();
        let seen = "local-lvm:vm-3001-disk-7";
        let unseen = "hidden:vm-3001-disk-0";
        for volid in [seen, unseen] {
            lab.add_volume(&host_of(stage, 3001), volid, 1 << 30);
        }
        let hosts = stage.observed(FILE).await.hosts;
        let is_hidden = |host: &mainstay_plan::Host| !host.storages.yes().expect("listed").contains_key("hidden");
        assert!(hosts.values().all(is_hidden));
        let report = settled(stage, stage.down(FILE).await);
        assert!(!is_there(stage, 3001), "{}", stage.story());
        assert!(exists(stage, seen) && exists(stage, unseen), "{}", stage.story());
        assert!(
            report
                .held
                .iter()
                .any(|held| held.reason.contains(&format!("pvesm free {seen}"))),
            "{:?}",
            report.held
        );
    });
}

#[test]
fn a_csi_volume_and_another_vms_disk_survive_down_and_the_run_after_it() {
    on_stage(82, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        let csi = "local-lvm:vm-9999-pvc-0f8fad5b-d9cb-469f-a165-70867728950e";
        let theirs = "local-lvm:vm-500-disk-0";
        attach(stage, 3001, "scsi4", csi);
        attach(stage, 3001, "scsi5", theirs);
        // The worker goes, and its volume is attached to the other one meanwhile.
        let fewer = FILE.replace("count: 2", "count: 1");
        settled(stage, stage.up(&fewer).await);
        assert!(
            !is_there(stage, 3001) && exists(stage, csi) && exists(stage, theirs),
            "{}",
            stage.story()
        );
        attach(stage, 3000, "scsi4", csi);
        settled(stage, stage.down(&fewer).await);
        settled(stage, stage.down(&fewer).await);
        assert!(
            !is_there(stage, 3000) && exists(stage, csi) && exists(stage, theirs),
            "{}",
            stage.story()
        );
    });
}

#[test]
fn a_disk_that_a_person_added_holds_its_machine_until_it_is_named_or_moved() {
    for slot in ["scsi3", "unused0"] {
        on_stage(83, WorldSpec::default(), async |stage| {
            settled(stage, stage.up(FILE).await);
            let added = "local-lvm:vm-3001-disk-5";
            attach(stage, 3001, slot, added);
            let report = settled(stage, stage.down(FILE).await);
            assert!(is_there(stage, 3001) && exists(stage, added), "{slot}\n{}", stage.story());
            assert!(!report.is_settled());
            let held = &report.held[0].reason;
            assert!(held.contains(&format!("qm disk move 3001 {slot} --target-vmid")), "{held}");
            assert!(held.contains(&format!("--with-disk {added}")), "{held}");
            let mut named = stage.with_a_colleague();
            named.with_disks = BTreeSet::from([added.to_owned()]);
            settled(&named, named.down(FILE).await);
            assert!(!is_there(stage, 3001) && !exists(stage, added), "{slot}\n{}", stage.story());
        });
    }
}

#[test]
fn a_pending_disk_of_another_hand_holds_the_machine() {
    on_stage(84, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        let (lab, added) = (stage.world.datacenter().lab(), "local-lvm:vm-3001-disk-5");
        lab.add_volume(&host_of(stage, 3001), added, 8 << 30);
        lab.set_pending(3001, "virtio3", &format!("{added},size=8G"));
        settled(stage, stage.down(FILE).await);
        assert!(is_there(stage, 3001) && exists(stage, added), "{}", stage.story());
    });
}

#[test]
fn a_disk_that_appears_after_the_plan_stops_the_deletion() {
    on_stage(85, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        let added = "local-lvm:vm-3001-disk-5";
        let add = async {
            stage
                .ended(|step| step.action.name() == "machine.stop" && step.action.info().vm.is_some_and(|vm| vm.vmid == 3001))
                .await;
            attach(stage, 3001, "scsi3", added);
        };
        let (outcome, ()) = futures::future::join(stage.down(FILE), add).await;
        settled(stage, outcome);
        assert!(is_there(stage, 3001) && exists(stage, added), "{}", stage.story());
    });
}

#[test]
fn a_volume_that_was_ours_and_is_another_vms_now_is_not_freed() {
    on_stage(86, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        let vm = stage.world.datacenter().inspect().vms[&3001].clone();
        let system = vm.config["scsi0"].split(',').next().expect("a volume").to_owned();
        let lab = stage.world.datacenter().lab();
        // A stranger names it before its machine is destroyed by hand, with its config alone.
        let config = [
            ("name".to_owned(), "theirs".to_owned()),
            ("scsi1".to_owned(), format!("{system},size=20G")),
        ];
        lab.create_vm(500, &vm.host, config.into());
        stage
            .site(&stage.spec(FILE))
            .journal
            .write(&mainstay_engine::JournalEntry::Made {
                vmid: 3001,
                volumes: vec![system.clone()],
                host: Some(vm.host.clone()),
                since: None,
            });
        lab.forget_vm(3001);
        settled(stage, stage.down(FILE).await);
        assert!(exists(stage, &system), "{}", stage.story());
    });
}

#[test]
fn a_stopped_machine_that_ha_manages_goes_with_its_resource() {
    on_stage(88, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        let lab = stage.world.datacenter().lab();
        lab.kill_vm(3001);
        lab.add_to_ha(3001, "stopped");
        settled(stage, stage.down(FILE).await);
        assert!(!is_there(stage, 3001), "{}", stage.story());
    });
}

#[test]
fn the_mark_lists_the_volumes_that_the_fill_made() {
    on_stage(87, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        let vm = stage.world.datacenter().inspect().vms[&3001].clone();
        let volume = |slot: &str| vm.config[slot].split(',').next().expect("a volume").to_owned();
        let description = &vm.config["description"];
        for line in [
            format!("disk scsi0 {} system", volume("scsi0")),
            format!("disk efidisk0 {}", volume("efidisk0")),
        ] {
            assert!(description.lines().any(|there| there == line), "{line}\n{description}");
        }
    });
}
