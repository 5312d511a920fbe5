//! Every example's whole life, with the built program: built, planned again, changed, and torn down to an empty datacenter. None of their
//! networks exists here, so everything goes through the simulated jump host.

use std::collections::BTreeSet;

use pve_api::{Content, cluster, storage};

use crate::stage::{Sim, Stage};

/// Hosts, bridges, storages and a pool as the examples name them.
const WORLD: &str = "\
nodes:
  pve1: &host { nodeid: 1, ip: 127.0.0.1, maxcpu: 64, maxmem: 549755813888, bridges: { vmbr0: { active: 1, vlan_aware: true }, vmbr1: { active: 1 } } }
  pve2: { <<: *host, nodeid: 2, ip: 127.0.0.2 }
  pve3: { <<: *host, nodeid: 3, ip: 127.0.0.3 }
storages:
  local: { type: dir, path: /var/lib/vz, content: 'iso,vztmpl,import', shared: 0, capacity: 107374182400 }
  local-lvm: { type: lvmthin, content: 'images,rootdir', shared: 0, capacity: 4398046511104, vgname: pve, thinpool: data }
  nfs-images: { type: nfs, path: /mnt/pve/nfs-images, content: 'iso,import', shared: 1, capacity: 1099511627776, server: 10.0.0.5, export: /images }
  ceph-vm: { type: rbd, content: 'images', shared: 1, capacity: 17592186044416, pool: vm }
pools:
  k8s: {}
";

/// The file of an example, in front of a simulated datacenter and through its jump host.
fn example(name: &str, sim: &Sim) -> String {
    let path = format!("{}/../../examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("an example");
    let kept = text.lines().filter(|line| !line.trim_start().starts_with("jump:"));
    let mut lines: Vec<String> = kept.map(|line| format!("{line}\n")).collect();
    let at = lines.iter().position(|line| line.trim_start().starts_with("endpoint:"));
    lines[at.expect("has an endpoint")] = format!(
        "  endpoint: {}\n  fingerprint: \"{}\"\n{}",
        sim.endpoint,
        sim.fingerprint,
        sim.jump_line()
    );
    match lines.iter().position(|line| line == "talos:\n") {
        Some(at) => lines[at] = format!("talos:\n  factory: {}\n", sim.factory),
        None => lines.push(format!("talos: {{ factory: {} }}\n", sim.factory)),
    }
    lines.concat()
}

/// Everything that the datacenter holds: guests, disks and images.
fn contents(sim: &Sim) -> BTreeSet<String> {
    sim.ask(async |pve| {
        let mut all = BTreeSet::new();
        for resource in pve.call(cluster::resources(None)).await.expect("a list") {
            match resource {
                cluster::Resource::Guest(guest) => drop(all.insert(format!("vm {}", guest.vmid))),
                cluster::Resource::Storage(place) => {
                    for content in [Content::Images, Content::Import] {
                        let filter = storage::ContentFilter {
                            content: Some(content),
                            vmid: None,
                        };
                        let volumes = pve.call(storage::content(&place.host, &place.storage, &filter)).await;
                        all.extend(
                            volumes
                                .unwrap_or_default()
                                .iter()
                                .map(|volume| format!("{} {}", place.host, volume.volid)),
                        );
                    }
                }
                _ => {}
            }
        }
        all
    })
}

fn settles(stage: &Stage, nodes: usize) {
    let said = stage.run(&["up", "--yes"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let ready = format!("{nodes} of {nodes} node");
    assert!(said.stderr.contains(&ready), "{ready}: {}", said.stderr);
    let again = stage.run(&["plan", "--check"]);
    assert_eq!(again.code, Some(0), "planned again, it is empty: {}", again.stdout);
}

/// Built with so many nodes, then changed step by step, then taken down.
fn lives(name: &str, cluster: &str, nodes: usize, changes: &[(&str, &str, usize)]) {
    let sim = Sim::of(WORLD);
    let empty = contents(&sim);
    let stage = sim
        .stage_behind_jump()
        .file("cluster.yaml", example(name, &sim))
        .with_secrets();
    settles(&stage, nodes);
    let mut before = nodes;
    for (from, to, nodes) in changes {
        // A protected cluster loses no machine, also not by a smaller count.
        if *nodes < before {
            stage.change("cluster.yaml", |text| text.replace("protect: true", "protect: false"));
        }
        before = *nodes;
        stage.change("cluster.yaml", |text| {
            assert!(text.contains(from), "`{from}` is in {name}");
            text.replacen(from, to, 1)
        });
        assert_eq!(stage.run(&["plan", "--check"]).code, Some(3), "{from} -> {to}");
        settles(&stage, *nodes);
    }
    stage.change("cluster.yaml", |text| text.replace("protect: true", "protect: false"));
    let said = stage.run(&["down", "--yes", "--name", cluster, "--images"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert_eq!(contents(&sim), empty);
}

#[test]
fn the_minimal_cluster_lives() {
    let pool = "control-plane: { count: 1, addresses: 192.168.1.50+ }";
    let worker = format!("{pool}\n  worker: {{ count: 1, addresses: 192.168.1.60+ }}");
    let more = "control-plane: { count: 1, memory: 10GiB, addresses: 192.168.1.50+ }";
    lives("minimal", "minimal", 1, &[(pool, &worker, 2), (pool, more, 2)]);
}

#[test]
fn the_homelab_lives() {
    lives(
        "homelab",
        "homelab",
        5,
        &[
            (
                "worker: { count: 2, cpu: 8, memory: 16GiB",
                "worker: { count: 3, cpu: 8, memory: 12GiB",
                6,
            ),
            ("worker: { count: 3", "worker: { count: 1", 4),
        ],
    );
}

#[test]
fn the_cluster_on_many_hosts_lives() {
    lives(
        "multi-host",
        "prod",
        11,
        &[
            ("    count: 6\n", "    count: 7\n", 12),
            ("    count: 7\n", "    count: 5\n", 10),
        ],
    );
}

#[test]
fn the_cluster_on_an_internal_bridge_lives() {
    lives(
        "internal-bridge",
        "inside",
        6,
        &[
            ("    memory: 12GiB\n", "    memory: 10GiB\n", 6),
            ("    count: 3\n", "    count: 2\n", 5),
        ],
    );
}
