//! A volume's name is not its identity: a journal entry proves one volume, on one host, in one life.

use mainstay_engine::FileStore;
use mainstay_sim::WorldSpec;

use crate::stage::{Stage, on_stage, settled};

const FILE: &str = "\
name: small
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }
talos: { version: 1.13.9 }
pools:
  control-plane: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+ }
  worker: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.21+, vmids: 3000+ }
";

const LEFT: &str = "local-lvm:vm-3000-disk-9";

/// An earlier run wrote this into the journal.
fn journal(stage: &Stage, line: &str) {
    let path = std::path::PathBuf::from("state").join(format!("{}.journal", stage.secrets.id()));
    stage.disk.append(&path, line).expect("writes");
}

fn made(stage: &Stage, host: &str, volume: &str) {
    let line = format!(r#"{{"entry":"made","vmid":3000,"volumes":["{volume}"],"host":"{host}"}}"#);
    journal(stage, &line);
}

fn exists(stage: &Stage, host: &str, volid: &str) -> bool {
    let inspected = stage.world.datacenter().inspect();
    inspected
        .volumes
        .iter()
        .any(|volume| volume.volid == volid && volume.host.as_deref().is_none_or(|at| at == host))
}

fn names(report: &mainstay_engine::RunReport, words: &[&str]) -> bool {
    report
        .held
        .iter()
        .any(|held| words.iter().all(|word| held.reason.contains(word)))
}

fn hosts(stage: &Stage) -> (String, String) {
    let own = stage.world.datacenter().inspect().vms[&3000].host.clone();
    let other = ["pve1", "pve2"].into_iter().find(|host| *host != own).expect("two hosts");
    (own, other.to_owned())
}

#[test]
fn a_leftover_that_mainstay_made_on_this_host_is_freed() {
    on_stage(301, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        let (own, _) = hosts(stage);
        stage.world.datacenter().lab().add_volume(&own, LEFT, 8 << 30);
        made(stage, &own, LEFT);
        settled(stage, stage.up(FILE).await);
        assert!(!exists(stage, &own, LEFT), "{}", stage.story());
    });
}

#[test]
fn a_replica_on_another_host_is_named_and_survives() {
    on_stage(302, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        let (own, other) = hosts(stage);
        stage.world.datacenter().lab().add_volume(&other, LEFT, 8 << 30);
        made(stage, &own, LEFT);
        let report = settled(stage, stage.up(FILE).await);
        assert!(exists(stage, &other, LEFT), "{}", stage.story());
        assert!(
            names(&report, &["replica", &own, &format!("pvesm free {LEFT}")]),
            "{:?}",
            report.held
        );
        settled(stage, stage.down(FILE).await);
        assert!(exists(stage, &other, LEFT), "{}", stage.story());
    });
}

#[test]
fn a_name_that_was_free_in_between_proves_nothing_any_more() {
    on_stage(303, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        let (own, _) = hosts(stage);
        made(stage, &own, LEFT);
        // This plan sees that the volume is gone. Then a person makes one of the same name.
        stage.plan(FILE).await;
        stage.world.datacenter().lab().add_volume(&own, LEFT, 8 << 30);
        settled(stage, stage.down(FILE).await);
        assert!(exists(stage, &own, LEFT), "{}", stage.story());
    });
}

#[test]
fn a_vmid_that_another_vm_had_in_between_proves_nothing_any_more() {
    on_stage(304, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        let (own, _) = hosts(stage);
        let lab = stage.world.datacenter().lab();
        let theirs = "local-lvm:vm-3001-disk-0";
        journal(
            stage,
            &format!(r#"{{"entry":"made","vmid":3001,"volumes":["{theirs}"],"host":"{own}"}}"#),
        );
        lab.add_volume(&own, theirs, 8 << 30);
        let config = [
            ("name".to_owned(), "theirs".to_owned()),
            ("scsi0".to_owned(), format!("{theirs},size=8G")),
        ];
        lab.create_vm(3001, &own, config.into());
        stage.plan(FILE).await;
        // Its owner removes the VM from the inventory and keeps the disk.
        lab.forget_vm(3001);
        settled(stage, stage.down(FILE).await);
        assert!(exists(stage, &own, theirs), "{}", stage.story());
    });
}

#[test]
fn a_volume_that_is_older_than_the_task_that_made_ours_is_another_one() {
    on_stage(305, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        let (own, _) = hosts(stage);
        stage.world.datacenter().lab().add_volume(&own, LEFT, 8 << 30);
        let later = stage.env.wall.now().as_second() + 3600;
        journal(
            stage,
            &format!(r#"{{"entry":"made","vmid":3000,"volumes":["{LEFT}"],"host":"{own}","since":{later}}}"#),
        );
        let report = settled(stage, stage.up(FILE).await);
        assert!(exists(stage, &own, LEFT), "{}", stage.story());
        assert!(names(&report, &["older", LEFT]), "{:?}", report.held);
    });
}

/// Two PVE clusters keep disks on one NFS export, and count their VMs from the same number.
fn with_a_shared_export() -> WorldSpec {
    let mut world = WorldSpec::parse("").expect("a world");
    let mut nfs = world.datacenter.storages["local"].clone();
    nfs.kind = "nfs".into();
    nfs.content = "images".into();
    nfs.shared = 1;
    nfs.path = Some("/mnt/pve/nfs".into());
    nfs.other = [
        ("server".to_owned(), "10.9.9.9".into()),
        ("export".to_owned(), "/export".into()),
    ]
    .into();
    world.datacenter.storages.insert("nfs".to_owned(), nfs);
    world
}

#[test]
fn a_storage_that_another_pve_uses_too_keeps_volumes_of_our_numbers() {
    on_stage(306, with_a_shared_export(), async |stage| {
        settled(stage, stage.up(FILE).await);
        let (own, _) = hosts(stage);
        let lab = stage.world.datacenter().lab();
        let (same_number, theirs) = ("nfs:3000/vm-3000-disk-9.raw", "nfs:7000/vm-7000-disk-0.raw");
        lab.add_volume(&own, same_number, 8 << 30);
        lab.add_volume(&own, theirs, 8 << 30);
        made(stage, &own, same_number);
        let report = settled(stage, stage.up(FILE).await);
        assert!(exists(stage, &own, same_number), "{}", stage.story());
        assert!(names(&report, &["another PVE", same_number]), "{:?}", report.held);
        // Alone on the storage, the entry proves it.
        lab.remove_volume(&own, theirs);
        made(stage, &own, same_number);
        settled(stage, stage.up(FILE).await);
        assert!(!exists(stage, &own, same_number), "{}", stage.story());
    });
}
