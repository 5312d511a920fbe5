//! A datacenter with strangers in it, and the cluster that is to stand beside them, both from a seed.

use mainstay_sim::WorldSpec;
use rand::{Rng, RngExt};

/// What one seed asks for.
#[derive(Debug)]
pub struct Shape {
    pub hosts: usize,
    pub control_planes: u32,
    pub workers: u32,
    pub world: WorldSpec,
}

impl Shape {
    pub fn draw(rng: &mut impl Rng) -> Self {
        let hosts = if rng.random_bool(0.7) { 3 } else { 1 };
        let mut world = WorldSpec::parse(&strangers(rng, hosts)).expect("a world");
        world.datacenter.nodes.truncate(hosts);
        Self {
            hosts,
            control_planes: if rng.random_bool(0.5) { 3 } else { 1 },
            workers: rng.random_range(0..=3),
            world,
        }
    }

    /// One control plane, one worker, the default datacenter and nobody else.
    pub fn small() -> Self {
        Self {
            hosts: 3,
            control_planes: 1,
            workers: 1,
            world: WorldSpec::default(),
        }
    }

    /// The cluster file.
    pub fn file(&self) -> String {
        let (control_planes, workers) = (self.control_planes, self.workers);
        let vip = if control_planes > 1 { ", vip: 10.0.0.20" } else { "" };
        let mut file = format!(
            "name: demo\n\
             network: {{ cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1]{vip} }}\n\
             talos: {{ version: 1.13.9 }}\n\
             pools:\n  \
             control-plane: {{ count: {control_planes}, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+ }}\n"
        );
        if workers > 0 {
            file += &format!(
                "  worker: {{ count: {workers}, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.31+, vmids: 3000+ }}\n"
            );
        }
        file
    }
}

/// VMs and images of others. Some carry our tag, or stand right beside our VMIDs: neither makes them ours.
fn strangers(rng: &mut impl Rng, hosts: usize) -> String {
    let (mut vms, mut volumes) = (String::new(), String::new());
    let count = rng.random_range(1..=4_usize);
    for number in 0..count {
        let vmid = [100, 1999, 2007, 3005][number];
        let host = format!("pve{}", rng.random_range(1..=hosts));
        let tags = if rng.random_bool(0.5) { ", tags: mainstay" } else { "" };
        let running = rng.random_bool(0.5);
        vms += &format!(
            "  {vmid}: {{ node: {host}, running: {running}, config: {{ name: stranger-{vmid}, memory: 1024, \
             scsi0: \"local-lvm:vm-{vmid}-disk-0,size=8G\"{tags} }} }}\n"
        );
        let disk = format!(
            "{{ volid: \"local-lvm:vm-{vmid}-disk-0\", content: images, format: raw, size: {} }}",
            8_u64 << 30
        );
        volumes += &format!("    - [{host}, {disk}]\n");
    }
    let mut by_host = String::new();
    for host in (1..=hosts).map(|number| format!("pve{number}")) {
        let disks: Vec<&str> = volumes
            .lines()
            .filter_map(|line| line.trim().strip_prefix(&format!("- [{host}, "))?.strip_suffix(']'))
            .collect();
        let image = "{ volid: \"local:import/theirs.qcow2\", content: import, format: qcow2, size: 1048576 }";
        by_host += &format!("  {host}: {{ local-lvm: [{}], local: [{image}] }}\n", disks.join(", "));
    }
    format!("vms:\n{vms}volumes:\n{by_host}")
}
