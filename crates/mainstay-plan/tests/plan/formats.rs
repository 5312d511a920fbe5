//! Formats that outlive the binary: what an earlier mainstay wrote is read as it was meant.
//!
//! The files in `tests/golden` are never written anew: a new format gets a new file, and the old one is still read.

use expect_test::expect_file;
use mainstay_plan::{Desired, DesiredMachine, Mark, ShapeDigest, matches_shape, shape_digest};
use mainstay_spec::{Distro, Role};

use crate::world::{ID, THREE_AND_TWO, empty, settled};

/// Every key that decides something about a VM, away from its default.
const UNUSUAL: &str = "
name: prod
datacenter: { endpoint: https://pve.lan:8006 }
network: { cidr: 10.10.0.0/16, gateway: 10.10.0.1, bridge: vmbr1, vlan: 42, dns: [1.1.1.1, 9.9.9.9] }
talos: { extensions: [iscsi-tools] }
pools:
  control-plane:
    count: 1
    cpu: 6
    cpu-type: host
    memory: 6144MiB
    disk: { size: 50GiB, storage: fast, cache: writeback, discard: false, ssd: true, iothread: true }
    disks: [{ name: data, size: 10GiB }, { name: logs, size: 5GiB, storage: slow, cache: directsync }]
    scsi: virtio-scsi-single
    firmware: seabios
    onboot: false
    startup-order: 3
    tags: [blue, green]
    addresses: 10.10.0.11+
    vmids: 2001+
    names: 'prod-cp-{n}'
";

#[test]
fn a_mark_of_format_1_is_read_and_written_as_it_was() {
    let text = include_str!("../golden/mark-1.txt");
    let mark = Mark::parse(text).expect("reads");
    assert_eq!((mark.cluster.as_str(), mark.cluster_id), ("prod", ID));
    assert_eq!(
        (mark.machine.as_str(), mark.role, mark.vmid),
        ("prod-cp-1", Role::ControlPlane, 2001)
    );
    assert_eq!(mark.shape.as_ref().expect("a digest").to_string(), "1:0123456789abcdef");
    assert_eq!(mark.versions.as_ref().expect("versions").kubernetes.to_string(), "1.36.2");
    assert!(mark.bootstrap && mark.going);
    let lease = mark.lease.as_ref().expect("a lease");
    assert_eq!(lease.to_string(), "ada@laptop 2026-03-01T10:00:00Z 2026-03-01T10:05:00Z");
    assert_eq!(mark.write_into(text), text);
}

/// Every line that a mark may have.
#[test]
fn a_mark_with_every_line_is_read_and_written_as_it_was() {
    let text = include_str!("../golden/mark-1-full.txt");
    let mark = Mark::parse(text).expect("reads");
    assert!(mark.tag_follows);
    let disks = mark.disks.as_ref().expect("a list");
    assert_eq!(disks["scsi0"].volume.as_deref(), Some("local-lvm:vm-3001-disk-1"));
    assert_eq!(disks["scsi0"].serial.as_deref(), Some("system"));
    assert_eq!(
        (&disks["scsi1"].volume, disks["scsi1"].serial.as_deref()),
        (&None, Some("longhorn"))
    );
    let pinned = mark.host_key.as_ref().expect("a host key");
    assert_eq!(
        (pinned.serial.as_str(), pinned.key.as_str()),
        ("8f0e6c1d2b3a4958", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5")
    );
    let versions = mark.versions.as_ref().expect("versions");
    assert_eq!(
        (versions.distro, versions.release.to_string().as_str()),
        (Distro::Rke2, "1.34.2+rke2r1")
    );
    assert_eq!(mark.write_into(text), text);
}

/// What a golden file says about each machine of both clusters.
fn digests(golden: &str) -> Vec<(Desired, String, ShapeDigest)> {
    let machines = [THREE_AND_TWO, UNUSUAL].into_iter().flat_map(|yaml| {
        let desired = empty(yaml).desired();
        let names: Vec<String> = desired
            .cluster_goal()
            .expect("a cluster")
            .machines
            .iter()
            .map(|machine| machine.name().to_owned())
            .collect();
        names.into_iter().map(move |name| (desired.clone(), name))
    });
    let lines = golden.lines().map(|line| line.split_once(' ').expect("name and digest"));
    machines
        .zip(lines)
        .map(|((desired, name), (written, digest))| {
            assert_eq!(name, written);
            (desired, name, digest.parse().expect("reads"))
        })
        .collect()
}

fn is_digest_of(desired: &Desired, name: &str, digest: &ShapeDigest) -> bool {
    let cluster = desired.cluster_goal().expect("a cluster");
    matches_shape(digest, cluster, cluster.machine(name).expect("is there"))
}

#[test]
fn shape_digests_of_every_format_are_understood() {
    for golden in [include_str!("../golden/digest-1.txt"), include_str!("../golden/digest-2.txt")] {
        let digests = digests(golden);
        assert_eq!(digests.len(), 6);
        for (desired, name, digest) in &digests {
            assert!(is_digest_of(desired, name, digest), "{name} {digest}");
        }
        let (desired, name, _) = &digests[0];
        assert!(!is_digest_of(desired, name, &digests[1].2), "that of another machine");
    }
}

/// A new binary must write what the present one writes, or every machine of every cluster gets a new mark.
#[test]
fn a_shape_digest_is_written_in_format_2() {
    let lines = [THREE_AND_TWO, UNUSUAL].into_iter().flat_map(|yaml| {
        let desired = empty(yaml).desired();
        let cluster = desired.cluster_goal().expect("a cluster").clone();
        let line = |machine: &DesiredMachine| format!("{} {}\n", machine.name(), shape_digest(&cluster, machine));
        cluster.machines.iter().map(line).collect::<Vec<_>>()
    });
    expect_file!["../golden/digest-2.txt"].assert_eq(&lines.collect::<String>());
}

/// The binary was updated; the file and the machines are unchanged.
#[test]
fn a_cluster_that_an_earlier_version_settled_stays_settled() {
    let mut world = settled(THREE_AND_TWO);
    for (_, name, digest) in &digests(include_str!("../golden/digest-1.txt"))[..5] {
        let config = world.config(name);
        let mark = Mark::parse(&config.description).expect("a mark");
        let shape = Some(digest.clone());
        config.description = Mark { shape, ..mark }.write_into(&config.description);
    }
    assert_eq!(world.plan().render(), "nothing to do");
    world.config("prod-w-1").cores = 2;
    let plan = world.plan();
    assert_eq!(
        plan.drift[0].what, "cpu is 2, was set to 4",
        "a digest of format 1 still tells who changed it"
    );
}
