//! A datacenter with strangers in it, and the cluster that is to stand beside them, both from a seed.

use mainstay_sim::WorldSpec;
use rand::{Rng, RngExt};

use super::disks;

const MOST_CONTROL_PLANES: u32 = 3;
const MOST_WORKERS: u32 = 4;

/// What one seed asks for.
#[derive(Clone, Debug)]
pub struct Shape {
    pub hosts: usize,
    pub control_planes: u32,
    pub workers: u32,
    /// GiB of each machine.
    memory: u32,
    talos: &'static str,
    cni: &'static str,
    /// People change their minds, also about control planes: Kubernetes has an address that no machine has.
    pub fickle: bool,
    /// People write another version of Talos into the file.
    pub upgrades: bool,
    pub world: WorldSpec,
}

/// A change of the file, one day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Nothing,
    WorkerMore,
    WorkerLess,
    ControlPlanesMore,
    ControlPlanesLess,
    MoreMemory,
    /// Another version of Talos.
    NewerTalos,
    /// A machine is lost, with its disks.
    Loss,
}

impl Shape {
    pub fn draw(rng: &mut impl Rng) -> Self {
        let hosts = if rng.random_bool(0.7) { 3 } else { 1 };
        let mut world = WorldSpec::parse(&strangers(rng, hosts)).expect("a world");
        world.datacenter.nodes.truncate(hosts);
        if rng.random_bool(0.25) {
            world.datacenter.pve.version = "8.4.14".into();
            world.datacenter.pve.release = "8.4".into();
        }
        if rng.random_bool(0.25) {
            let local = world.datacenter.storages.get_mut("local-lvm").expect("is there");
            local.kind = "zfspool".into();
            local.other = [("pool".to_owned(), "rpool/data".into())].into();
        }
        Self {
            hosts,
            control_planes: if rng.random_bool(0.5) { 3 } else { 1 },
            fickle: false,
            upgrades: false,
            workers: rng.random_range(0..=3),
            memory: 4,
            talos: ["1.12.6", "1.13.9", "1.13.9"][rng.random_range(0..3)],
            cni: if rng.random_bool(0.2) { "none" } else { "flannel" },
            world,
        }
    }

    /// An old host with slow disks, a quick one with a slow line, and all between: nothing that must come in order does so by its length.
    pub fn draw_paces(&mut self, rng: &mut impl Rng) {
        let mut factor = || 4.0_f64.powf(rng.random_range(-1.5..=1.0));
        let host = &mut self.world.datacenter.timing;
        for took in [
            &mut host.allocate,
            &mut host.worker,
            &mut host.start,
            &mut host.stop,
            &mut host.delete,
            &mut host.resize,
            &mut host.restart_gap,
            &mut host.request,
        ] {
            *took = took.mul_f64(factor());
        }
        for rate in [&mut host.copy_rate, &mut host.download_rate] {
            *rate = (*rate as f64 / factor()) as u64;
        }
        let guest = &mut self.world.guests.timing;
        for took in [
            &mut guest.image_build,
            &mut guest.firmware,
            &mut guest.kernel,
            &mut guest.initialize,
            &mut guest.apid_restart,
            &mut guest.apid_start,
            &mut guest.cri,
            &mut guest.image_pull,
            &mut guest.kubelet_healthy,
            &mut guest.bootstrap_unguarded,
            &mut guest.etcd_healthy,
            &mut guest.etcd_learner_starts,
            &mut guest.etcd_promotion,
            &mut guest.etcd_election,
            &mut guest.apiserver,
            &mut guest.manifests,
            &mut guest.node_registers,
            &mut guest.node_ready,
            &mut guest.time_sync,
            &mut guest.stop_pods,
            &mut guest.install,
        ] {
            *took = took.mul_f64(factor());
        }
    }

    /// A storage that the token cannot list.
    pub fn hide_a_storage(&mut self) {
        let datacenter = &mut self.world.datacenter;
        let rights = WorldSpec::parse(disks::RIGHTS).expect("a world").datacenter;
        (datacenter.tokens, datacenter.acl) = (rights.tokens, rights.acl);
        let mut hidden = datacenter.storages["local-lvm"].clone();
        hidden.kind = "lvmthin".into();
        hidden.other = [("vgname".to_owned(), "hidden".into()), ("thinpool".to_owned(), "data".into())].into();
        datacenter.storages.insert(disks::HIDDEN.to_owned(), hidden);
    }

    /// One control plane, one worker, the default datacenter and no foreign VM.
    pub fn small() -> Self {
        Self {
            hosts: 3,
            control_planes: 1,
            fickle: false,
            upgrades: false,
            workers: 1,
            memory: 4,
            talos: "1.13.9",
            cni: "flannel",
            world: WorldSpec::default(),
        }
    }

    /// What is wanted otherwise from now on.
    pub fn change(&mut self, rng: &mut impl Rng) -> Change {
        let change = match rng.random_range(0..6) {
            0 => Change::WorkerMore,
            1 if self.workers > 0 => Change::WorkerLess,
            2 => Change::MoreMemory,
            3 if self.workers > 0 || self.control_planes > 1 => Change::Loss,
            _ => Change::Nothing,
        };
        match change {
            Change::WorkerMore => self.workers += 1,
            Change::WorkerLess => self.workers -= 1,
            Change::MoreMemory => self.memory += 1,
            Change::ControlPlanesMore | Change::ControlPlanesLess | Change::NewerTalos | Change::Loss | Change::Nothing => {}
        }
        change
    }

    /// The largest file of any day.
    pub fn largest(&self) -> Self {
        let (control_planes, workers) = if self.fickle {
            (MOST_CONTROL_PLANES, MOST_WORKERS)
        } else {
            (self.control_planes, self.workers + 1)
        };
        Self {
            control_planes,
            workers,
            ..self.clone()
        }
    }

    /// The file changes again, whether or not everything in the file before was done.
    pub fn change_mind(&mut self, rng: &mut impl Rng) -> Change {
        let change = match rng.random_range(0..6) {
            0 if self.workers < MOST_WORKERS => Change::WorkerMore,
            1 if self.workers > 0 => Change::WorkerLess,
            2 => Change::MoreMemory,
            _ if self.control_planes > 1 => Change::ControlPlanesLess,
            _ => Change::ControlPlanesMore,
        };
        match change {
            Change::WorkerMore => self.workers += 1,
            Change::WorkerLess => self.workers -= 1,
            Change::ControlPlanesMore => self.control_planes = MOST_CONTROL_PLANES,
            Change::ControlPlanesLess => self.control_planes = 1,
            Change::MoreMemory => self.memory += 1,
            Change::NewerTalos | Change::Loss | Change::Nothing => {}
        }
        change
    }

    /// The next version of Talos, of the same minor or not. `None`: there is none.
    pub fn newer_talos(&mut self) -> Option<Change> {
        let versions = ["1.12.6", "1.12.11", "1.13.9", "1.13.10", "1.14.1"];
        let at = versions.iter().position(|version| *version == self.talos)?;
        self.talos = versions.get(at + 1)?;
        Some(Change::NewerTalos)
    }

    /// The cluster file.
    pub fn file(&self) -> String {
        let Self {
            control_planes,
            workers,
            memory,
            talos,
            cni,
            fickle,
            ..
        } = self;
        let vip = if *fickle || *control_planes > 1 {
            ", vip: 10.0.0.20"
        } else {
            ""
        };
        let machine = format!("cpu: 2, memory: {memory}GiB, disk: 20GiB");
        let mut file = format!(
            "name: demo\n\
             network: {{ cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1]{vip} }}\n\
             talos: {{ version: {talos} }}\n\
             cni: {cni}\n\
             pools:\n  \
             control-plane: {{ count: {control_planes}, {machine}, addresses: 10.0.0.11+, vmids: 2000+ }}\n"
        );
        if *workers > 0 {
            file += &format!("  worker: {{ count: {workers}, {machine}, addresses: 10.0.0.31+, vmids: 3000+ }}\n");
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
