//! Where machines and their disks go.

use std::collections::BTreeMap;

use expect_test::expect;
use mainstay_plan::{Action, Plan, Seen, StorageKind};

use crate::world::{ONE, THREE_AND_TWO, World, empty, gib, settled, storage};

fn hosts(plan: &Plan) -> String {
    let claims = plan.steps.iter().filter_map(|step| {
        if let Action::MachineClaim(claim) = &step.action {
            Some(claim)
        } else {
            None
        }
    });
    claims
        .map(|claim| format!("{} {}", claim.name, claim.vm.host))
        .collect::<Vec<_>>()
        .join("\n")
}

fn storages<'w>(world: &'w mut World, host: &str) -> &'w mut BTreeMap<String, mainstay_plan::HostStorage> {
    match &mut world.observed.hosts.get_mut(host).unwrap().storages {
        Seen::Yes(storages) => storages,
        _ => panic!("storages are not seen"),
    }
}

fn stock(world: &mut World) {
    for host in ["pve1", "pve2", "pve3"] {
        storages(world, host).get_mut("local").unwrap().content.remove("import");
    }
}

#[test]
fn a_stock_pve_gets_the_one_line_that_mends_it() {
    let world = empty(THREE_AND_TWO).changed(stock);
    expect![[r#"
        refused (lacking): no host has room for prod-cp-1 and 4 more (4 CPUs, 8 GiB memory each)
          why:  pve1, pve2, pve3: no storage there allows `import`
          help: pvesm set local --content backup,iso,vztmpl,import"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_settled_cluster_needs_no_image_storage() {
    let world = settled(THREE_AND_TWO).changed(stock);
    expect!["nothing to do"].assert_eq(&world.plan().render());
}

#[test]
fn a_storage_that_the_file_names_must_allow_it() {
    let world = empty(ONE).edit(
        "endpoint: https://pve.lan:8006",
        "endpoint: https://pve.lan:8006, storage: { images: local-lvm }",
    );
    expect![[r#"
        refused (lacking): no host has room for lab-cp-1 (4 CPUs, 8 GiB memory)
          why:  pve1, pve2, pve3: storage local-lvm does not allow `import`"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn roles_are_spread_before_memory_decides() {
    let mut world = empty(&THREE_AND_TWO.replace("count: 2", "count: 4"));
    world.observed.hosts.get_mut("pve3").unwrap().memory.free = gib(120);
    expect![[r#"
        prod-cp-1 pve3
        prod-cp-2 pve1
        prod-cp-3 pve2
        prod-w-1 pve3
        prod-w-2 pve1
        prod-w-3 pve2
        prod-w-4 pve3"#]]
    .assert_eq(&hosts(&world.plan()));
}

#[test]
fn machines_that_exist_count_for_the_spread() {
    let world = settled(THREE_AND_TWO).edit("count: 2", "count: 5");
    expect![[r#"
        prod-w-3 pve3
        prod-w-4 pve1
        prod-w-5 pve2"#]]
    .assert_eq(&hosts(&world.plan()));
}

#[test]
fn pinned_hosts_are_honoured() {
    let world = empty(THREE_AND_TWO).edit("disk: 60GiB", "disk: 60GiB, hosts: [pve2, pve3]");
    let world = world.edit("pools:", "machines: { prod-cp-1: { host: pve3 } }\npools:");
    expect![[r#"
        prod-cp-1 pve3
        prod-cp-2 pve1
        prod-cp-3 pve2
        prod-w-1 pve2
        prod-w-2 pve3"#]]
    .assert_eq(&hosts(&world.plan()));
}

#[test]
fn an_unknown_host_is_refused() {
    let world = empty(ONE).edit("count: 1,", "count: 1, hosts: [pve9],");
    expect![[r#"
        refused (lacking): no host has room for lab-cp-1 (4 CPUs, 8 GiB memory)
          why:  pve9: there is no such host (there are pve1, pve2, pve3)"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn memory_is_counted_down_while_machines_are_placed() {
    let world =
        empty(THREE_AND_TWO).changed(|world| world.observed.hosts.values_mut().for_each(|host| host.memory.free = gib(12)));
    expect![[r#"
        refused (lacking): no host has room for prod-w-1 and 1 more (4 CPUs, 8 GiB memory each)
          why:  pve1, pve2, pve3: 4 GiB of memory free, 8 GiB needed"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_thick_storage_must_hold_whole_disks() {
    let world = empty(ONE).changed(|world| {
        for host in ["pve1", "pve2", "pve3"] {
            storages(world, host).insert("local-lvm".to_owned(), storage(StorageKind::Lvm, &["images"], 30));
        }
    });
    expect![[r#"
        refused (lacking): no host has room for lab-cp-1 (4 CPUs, 8 GiB memory)
          why:  pve1, pve2, pve3: 30 GiB free on local-lvm, 40 GiB needed"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_thin_storage_may_promise_more_than_it_has_and_says_so() {
    let world = empty(ONE).changed(|world| {
        for host in ["pve1", "pve2", "pve3"] {
            storages(world, host).insert("local-lvm".to_owned(), storage(StorageKind::LvmThin, &["images"], 30));
        }
    });
    expect![[r#"
        note: pve1:local-lvm is thin-provisioned: planned disks need up to 40 GiB, 30 GiB is free; monitor it
        + image talos-1.14.1 (376567988ad3) pve1:local: missing there
        + machine lab-cp-1 vm 2001 pve1 4 cpu 8 GiB 10.10.0.11: new cluster
        + etcd lab-cp-1 bootstraps here: no control plane has etcd data"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_full_thin_storage_is_refused() {
    let world = empty(ONE).changed(|world| {
        for host in ["pve1", "pve2", "pve3"] {
            storages(world, host).get_mut("local-lvm").unwrap().free = gib(2);
        }
    });
    expect![[r#"
        refused (lacking): no host has room for lab-cp-1 (4 CPUs, 8 GiB memory)
          why:  pve1, pve2, pve3: 2 GiB free on local-lvm, 8 GiB needed"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn a_bridge_that_is_not_there_or_hidden_is_refused() {
    let world = empty(ONE).edit("dns: [1.1.1.1]", "dns: [1.1.1.1], bridge: vmbr7");
    expect![[r#"
        refused (lacking): no host has room for lab-cp-1 (4 CPUs, 8 GiB memory)
          why:  pve1, pve2, pve3: bridge vmbr7 is absent there, or hidden from the token
          help: if it is there, this prints the commands that let the token use it: mainstay grant"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn more_processors_than_a_host_has_are_refused() {
    let world = empty(ONE).edit("count: 1,", "count: 1, cpu: 64,");
    expect![[r#"
        refused (lacking): no host has room for lab-cp-1 (64 CPUs, 8 GiB memory)
          why:  pve1, pve2, pve3: it has 32 processors, 64 are wanted; PVE starts no VM with more than its host has"#]]
    .assert_eq(&world.plan().render());
}

#[test]
fn disks_go_to_the_largest_storage_of_each_host() {
    let world = empty(ONE).changed(|world| {
        storages(world, "pve1").insert("tank".to_owned(), storage(StorageKind::Zfs, &["images"], 4000));
    });
    let plan = world.plan();
    let fill = plan
        .steps
        .iter()
        .find_map(|step| {
            if let Action::MachineFill(fill) = &step.action {
                Some(fill)
            } else {
                None
            }
        })
        .unwrap();
    assert_eq!(
        (fill.system.as_ref().unwrap().storage.as_str(), fill.image.storage.as_str()),
        ("tank", "local")
    );
}

#[test]
fn a_host_whose_processors_cannot_be_seen_is_not_said_to_have_none() {
    let world = empty(ONE).changed(|world| {
        for host in world.observed.hosts.values_mut() {
            host.cpus = 0;
        }
    });
    let plan = world.plan().render();
    assert!(!plan.contains("0 processors"), "{plan}");
    assert!(plan.contains("Sys.Audit"), "{plan}");
}
