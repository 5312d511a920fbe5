//! Formats that outlive the binary: what an earlier mainstay wrote is read as it was meant.
//!
//! The files in `tests/golden` are never written anew: a new format gets a new file, and the old one is still read.

use mainstay_plan::Mark;
use mainstay_spec::Role;

use crate::world::{ID, THREE_AND_TWO, empty};

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

#[test]
fn a_shape_digest_of_format_1_stays_as_it_was() {
    let lines = [THREE_AND_TWO, UNUSUAL].into_iter().flat_map(|yaml| {
        let desired = empty(yaml).desired();
        let wish = desired.wish().expect("a cluster").clone();
        let line = |wanted: &mainstay_plan::Wanted| format!("{} {}\n", wanted.name(), wish.digest(wanted));
        wish.machines.iter().map(line).collect::<Vec<_>>()
    });
    assert_eq!(lines.collect::<String>(), include_str!("../golden/digest-1.txt"));
}
