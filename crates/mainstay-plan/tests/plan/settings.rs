//! Settings of the file that change on a cluster that runs: each is carried out, or refused by name.

use expect_test::expect;
use mainstay_plan::{Action, ImageFile, Publisher, Seen, StorageAt, StorageKind, TaintOnNode};

use crate::world::{THREE_AND_TWO, World, empty, settled, storage};

const WORKERS: &str = "disk: 60GiB";

fn taint(key: &str, value: &str) -> TaintOnNode {
    TaintOnNode {
        key: key.to_owned(),
        effect: "NoSchedule".to_owned(),
        value: value.to_owned(),
    }
}

#[test]
fn a_new_node_gets_its_labels_and_taints_when_it_is_there() {
    let world = empty(&THREE_AND_TWO.replace(WORKERS, "disk: 60GiB, labels: { tier: gold }, taints: ['gpu=yes:NoSchedule']"));
    let trace = world.plan().trace();
    let of = |name: &str| trace.lines().find(|line| line.contains(name)).map(str::to_owned);
    let awaited = of("node.await prod-w-1").expect("is awaited");
    let id = awaited.split_whitespace().next().expect("an id");
    let changed = of("node.change prod-w-1").expect("is changed");
    assert!(
        changed.ends_with(&format!(
            "node.change prod-w-1 <- {id}: label tier=gold, taint gpu=yes:NoSchedule"
        )),
        "{changed}"
    );
}

#[test]
fn a_taint_is_set_replaced_and_taken_off_and_those_of_others_stay() {
    let mut world = settled(THREE_AND_TWO).edit(WORKERS, "disk: 60GiB, taints: ['gpu=old:NoSchedule']");
    expect![[r#"
        ~ machine prod-w-1 taint gpu=old:NoSchedule: changed in the file
        ~ machine prod-w-2 taint gpu=old:NoSchedule: changed in the file"#]]
    .assert_eq(&world.plan().render());
    world.settle();
    let foreign = taint("maintenance", "ops");
    world
        .node_settings
        .entry("prod-w-1".to_owned())
        .or_default()
        .taints
        .insert(foreign.clone());
    let mut world = world.edit("gpu=old", "gpu=new");
    expect!["1 node.change prod-w-1 [live]: taint gpu=new:NoSchedule\n2 node.change prod-w-2 [live]: taint gpu=new:NoSchedule"]
        .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(
        world.node_settings["prod-w-1"].taints,
        [taint("gpu", "new"), foreign.clone()].into()
    );
    let mut world = world.edit(", taints: ['gpu=new:NoSchedule']", "");
    expect!["1 node.change prod-w-1 [live]: no taint gpu:NoSchedule\n2 node.change prod-w-2 [live]: no taint gpu:NoSchedule"]
        .assert_eq(&world.plan().trace());
    world.settle();
    assert_eq!(world.node_settings["prod-w-1"].taints, [foreign].into());
    assert_eq!(world.node_settings["prod-w-1"].applied, None);
}

#[test]
fn a_label_that_left_the_file_is_taken_off_and_one_of_others_stays() {
    let mut world = settled(&THREE_AND_TWO.replace(WORKERS, "disk: 60GiB, labels: { tier: gold, rack: a }"));
    let labels = &mut world.node_settings.get_mut("prod-w-1").expect("a node").labels;
    labels.insert("owner".to_owned(), "ops".to_owned());
    let mut world = world.edit("tier: gold, rack: a", "rack: b");
    let trace = world.plan().trace();
    assert!(
        trace.contains("node.change prod-w-1 [live]: label rack=b, no label tier"),
        "{trace}"
    );
    world.settle();
    let labels: Vec<String> = world.node_settings["prod-w-1"]
        .labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    assert_eq!(labels, ["owner=ops", "rack=b"]);
}

#[test]
fn labels_and_taints_that_were_changed_by_hand_are_drift() {
    let mut world = settled(&THREE_AND_TWO.replace(WORKERS, "disk: 60GiB, labels: { tier: gold }, taints: ['gpu:NoSchedule']"));
    assert_eq!(world.plan().render(), "nothing to do");
    let node = world.node_settings.get_mut("prod-w-2").expect("a node");
    node.labels.insert("tier".to_owned(), "lead".to_owned());
    node.taints.clear();
    expect![[r#"
        ! prod-w-2 label tier is `lead`, was set to `gold`
        ! prod-w-2 taint gpu:NoSchedule is gone
        ~ machine prod-w-2 label tier=gold, taint gpu:NoSchedule: changed outside"#]]
    .assert_eq(&world.plan().render());
    world.settle();
}

#[test]
fn a_tag_that_left_the_file_is_taken_off_and_one_of_others_stays() {
    let mut world = settled(&THREE_AND_TWO.replace(WORKERS, "disk: 60GiB, tags: [team-a, blue]"));
    world.vm("prod-w-1").tags.insert("precious".to_owned());
    let mut world = world.edit("tags: [team-a, blue]", "tags: [blue, green]");
    expect![[r#"
        1 machine.change prod-w-1 tags: tags green, not team-a
        2 machine.change prod-w-2 tags: tags green, not team-a"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
    let tags: Vec<String> = world.vm("prod-w-1").tags.iter().cloned().collect();
    assert_eq!(tags, ["blue", "green", "mainstay", "precious"]);
    let mut world = world.edit(", tags: [blue, green]", "");
    world.settle();
    let tags: Vec<String> = world.vm("prod-w-1").tags.iter().cloned().collect();
    assert_eq!(tags, ["mainstay", "precious"]);
}

#[test]
fn machines_move_to_another_resource_pool_and_out_of_it() {
    let pool = |name: &str| format!("datacenter: {{ endpoint: https://pve.lan:8006{name} }}");
    let mut world = settled(THREE_AND_TWO).edit(&pool(""), &pool(", pool: k8s"));
    let trace = world.plan().trace();
    assert!(
        trace.contains("3 machine.pool prod-cp-2: pool k8s\n4 machine.mark prod-cp-2 <- 3"),
        "{trace}"
    );
    world.settle();
    assert!(world.vms().values().all(|vm| vm.pool.as_deref() == Some("k8s")));
    // Another hand moved one: it is moved back, and told.
    world.vm("prod-w-1").pool = Some("attic".to_owned());
    expect![[r#"
        ! prod-w-1 pool is attic, was set to k8s
        ~ machine prod-w-1 vm 3001 pve1 pool k8s: changed outside"#]]
    .assert_eq(&world.plan().render());
    world.settle();
    let mut world = world.edit(&pool(", pool: k8s"), &pool(""));
    world.settle();
    assert!(world.vms().values().all(|vm| vm.pool.is_none()));
    // A pool that mainstay did not put them in is not its business.
    world.vm("prod-w-1").pool = Some("attic".to_owned());
    assert_eq!(world.plan().render(), "nothing to do");
}

#[test]
fn an_argument_of_etcd_takes_effect_in_the_turn_of_each_control_plane() {
    let old = THREE_AND_TWO.replace("pools:", "talos: { version: 1.13.9 }\npools:");
    let mut world = settled(&old).edit("count: 3, cpu: 4", "count: 3, patches: [etcd.yaml], cpu: 4");
    expect![[r#"
        1 node.cordon prod-cp-1 for restart [live]: config differs at cluster.etcd.extraArgs.quota-backend-bytes
        2 node.drain prod-cp-1 [live] <- 1: its pods move to other machines
        3 guest.reconfigure prod-cp-1 [live] <- 2: config differs at cluster.etcd.extraArgs.quota-backend-bytes
        4 machine.reboot prod-cp-1 [reboot] <- 2 3: takes effect at a reboot
        5 etcd.join prod-cp-1 <- 4: it restarted
        6 node.await prod-cp-1 <- 4 5: it restarted
        7 node.uncordon prod-cp-1 [live] <- 6: its turn is over
        8 node.cordon prod-cp-2 for restart [live] <- 7: config differs at cluster.etcd.extraArgs.quota-backend-bytes
        9 node.drain prod-cp-2 [live] <- 8: its pods move to other machines
        10 guest.reconfigure prod-cp-2 [live] <- 9: config differs at cluster.etcd.extraArgs.quota-backend-bytes
        11 machine.reboot prod-cp-2 [reboot] <- 9 10: takes effect at a reboot
        12 etcd.join prod-cp-2 <- 11: it restarted
        13 node.await prod-cp-2 <- 11 12: it restarted
        14 node.uncordon prod-cp-2 [live] <- 13: its turn is over
        15 node.cordon prod-cp-3 for restart [live] <- 14: config differs at cluster.etcd.extraArgs.quota-backend-bytes
        16 node.drain prod-cp-3 [live] <- 15: its pods move to other machines
        17 guest.reconfigure prod-cp-3 [live] <- 16: config differs at cluster.etcd.extraArgs.quota-backend-bytes
        18 machine.reboot prod-cp-3 [reboot] <- 16 17: takes effect at a reboot
        19 etcd.join prod-cp-3 <- 18: it restarted
        20 node.await prod-cp-3 <- 18 19: it restarted
        21 node.uncordon prod-cp-3 [live] <- 20: its turn is over"#]]
    .assert_eq(&world.plan().trace());
    world.settle();
}

#[test]
fn protect_holds_removals_by_a_smaller_count() {
    let world = settled(THREE_AND_TWO)
        .edit("name: prod", "name: prod\nprotect: true")
        .edit("count: 2, cpu: 4", "count: 1, cpu: 4");
    expect![". remove prod-w-2 held: cluster.yaml says `protect: true`, so no machine is removed; take `protect` out of cluster.yaml first"]
        .assert_eq(&world.plan().render());
}

#[test]
fn a_held_change_says_what_would_change() {
    let mut world = settled(THREE_AND_TWO).edit("count: 2, cpu: 4", "count: 2, cpu: 8");
    world.config("prod-w-1").lock = Some("backup".to_owned());
    let held = world.plan().held;
    let reason = &held
        .iter()
        .find(|held| held.subject.to_string() == "prod-w-1")
        .expect("is held")
        .reason;
    assert!(reason.ends_with("(waits: cpu 4 -> 8)"), "{reason}");
}

#[test]
fn an_image_that_is_not_whole_and_may_not_be_deleted_is_named() {
    let mut world = empty(THREE_AND_TWO);
    let file = world.file();
    for host in ["pve1", "pve2", "pve3"] {
        let at = StorageAt {
            host: host.to_owned(),
            storage: "local".to_owned(),
        };
        let there = ImageFile {
            file: file.clone(),
            size: 9,
            may_delete: false,
        };
        world.observed.images.insert(at, Seen::Yes(vec![there]));
    }
    let plan = world.plan();
    let reason = &plan.held.first().expect("is held").reason;
    assert!(
        reason.contains("lacks Datastore.Allocate on /storage/local") && reason.ends_with(&file),
        "{reason}"
    );
    assert!(!plan.trace().contains("image."), "{}", plan.trace());
}

#[test]
fn a_silent_publisher_is_a_note_where_the_images_are_there() {
    let world = settled(THREE_AND_TWO)
        .without("prod-w-2")
        .blurred(|seen| seen.publisher = Publisher::Silent("connection refused".to_owned()));
    let plan = world.plan();
    assert!(
        plan.refusals.is_empty() && plan.trace().contains("machine.fill prod-w-2"),
        "{}",
        plan.render()
    );
    assert!(
        plan.notes[0].contains("whether they are whole is unknown"),
        "{:?}",
        plan.notes
    );
    let plan = settled(THREE_AND_TWO)
        .blurred(|seen| seen.publisher = Publisher::Silent("connection refused".to_owned()))
        .plan();
    assert_eq!(plan.render(), "nothing to do");
}

#[test]
fn placement_does_not_depend_on_what_a_host_frees_in_a_moment() {
    let hosts = |free: [u64; 3]| -> Vec<String> {
        let mut world = empty(THREE_AND_TWO);
        for (host, free) in world.observed.hosts.values_mut().zip(free) {
            host.memory.free = free;
        }
        let plan = world.plan();
        let claims = plan.steps.iter().filter_map(|step| match &step.action {
            Action::MachineClaim(claim) => Some(claim.vm.host.clone()),
            _ => None,
        });
        claims.collect()
    };
    let gib = 1_u64 << 30;
    let first = hosts([100 * gib, 100 * gib, 100 * gib]);
    assert_eq!(hosts([100 * gib + (90 << 20), 101 * gib, 100 * gib + (700 << 20)]), first);
    assert_eq!(first, ["pve1", "pve2", "pve3", "pve1", "pve2"]);
}

#[test]
fn disks_go_to_block_storage_first_and_to_where_the_cluster_has_its_own() {
    let mut world = empty(THREE_AND_TWO);
    for host in world.observed.hosts.values_mut() {
        if let Seen::Yes(storages) = &mut host.storages {
            storages.insert("nas".to_owned(), storage(StorageKind::Nfs, &["images", "import"], 50_000));
        }
    }
    let disks = |world: &World| -> Vec<String> {
        let fills = world.plan().steps;
        let storages = fills.iter().filter_map(|step| match &step.action {
            Action::MachineFill(fill) => Some(fill.system.as_ref()?.storage.clone()),
            _ => None,
        });
        storages.collect()
    };
    assert!(disks(&world).iter().all(|name| name == "local-lvm"), "{:?}", disks(&world));
    let named = "datacenter: { endpoint: https://pve.lan:8006, storage: { disks: nas } }";
    let mut world = world.edit("datacenter: { endpoint: https://pve.lan:8006 }", named);
    world.settle();
    let world = world
        .edit(named, "datacenter: { endpoint: https://pve.lan:8006 }")
        .without("prod-w-2");
    assert_eq!(disks(&world), ["nas"], "the others have theirs there");
}
