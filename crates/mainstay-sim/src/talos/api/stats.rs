//! What a machine says about its memory, processes and disks: plausible, and always the same for the same machine.

use std::collections::BTreeMap;

use talos_proto::common::ContainerDriver;
use talos_proto::machine;

use super::Api;
use crate::talos::disk;
use crate::talos::node::Node;
use crate::talos::resources;
use crate::talos::services::ServiceState;

/// Sizes in KiB, as the kernel writes them, in the proportions of a small node.
pub(super) fn memory(total: u64) -> machine::MemInfo {
    let part = |hundredths: u64| total * hundredths / 100;
    machine::MemInfo {
        memtotal: total,
        memfree: part(40),
        memavailable: part(60),
        buffers: part(1),
        cached: part(22),
        active: part(18),
        inactive: part(20),
        activeanon: part(6),
        inactiveanon: part(8),
        activefile: part(12),
        inactivefile: part(12),
        unevictable: part(1),
        mlocked: part(1),
        dirty: 976,
        anonpages: part(12),
        mapped: part(4),
        shmem: part(2),
        slab: part(6),
        sreclaimable: part(4),
        sunreclaim: part(2),
        kernelstack: 8_192,
        pagetables: 16_384,
        commitlimit: part(50),
        committedas: part(60),
        vmalloctotal: 34_359_738_367,
        vmallocused: 27_064,
        anonhugepages: 98_304,
        hugepagesize: 2_048,
        directmap4k: 28_672,
        directmap2m: part(10),
        directmap1g: part(90),
        ..machine::MemInfo::default()
    }
}

/// A process: its number, and how it was started.
struct Task {
    pid: u32,
    line: String,
}

/// Services that are processes of their own, with the numbers they said they had.
fn tasks(node: &Node) -> BTreeMap<String, Task> {
    let running = node
        .services
        .all()
        .into_iter()
        .filter(|(_, own)| own.state == ServiceState::Running);
    let pid = |id: &str| {
        let events = node
            .services
            .get(id)
            .map(|own| own.to_proto(id).events.unwrap_or_default().events)?;
        let started = events.iter().rev().find(|event| event.msg.contains("PID "))?;
        let digits: String = started
            .msg
            .split("PID ")
            .nth(1)?
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        digits.parse().ok()
    };
    running
        .filter_map(|(id, _)| {
            let pid = pid(&id)?;
            let line = match id.as_str() {
                "cri" => "/bin/containerd --address /run/containerd/containerd.sock --config /etc/cri/containerd.toml".to_owned(),
                "containerd" => "/bin/containerd --address /system/run/containerd/containerd.sock".to_owned(),
                "udevd" => "/sbin/systemd-udevd --resolve-names=never".to_owned(),
                "dashboard" => "/sbin/dashboard".to_owned(),
                "kubelet" => "/usr/local/bin/kubelet --config=/etc/kubernetes/kubelet.yaml".to_owned(),
                "etcd" => "/usr/local/bin/etcd --data-dir=/var/lib/etcd".to_owned(),
                other => format!("/{other}"),
            };
            Some((id, Task { pid, line }))
        })
        .collect()
}

/// Services that run as containers of Talos' own containerd; etcd and the kubelet are with the one of Kubernetes.
const CONTAINED: [&str; 2] = ["apid", "trustd"];

impl Api {
    pub(super) fn process_list(&self) -> Vec<machine::ProcessInfo> {
        let one = |pid: u32, ppid: i32, line: &str| machine::ProcessInfo {
            pid: i32::try_from(pid).unwrap_or(0),
            ppid,
            state: "S".to_owned(),
            threads: 12,
            cpu_time: 1.5,
            virtual_memory: 1_300_000_000,
            resident_memory: 60_000_000,
            command: line
                .split(' ')
                .next()
                .and_then(|path| path.rsplit('/').next())
                .unwrap_or_default()
                .to_owned(),
            executable: line.split(' ').next().unwrap_or_default().to_owned(),
            args: line.to_owned(),
        };
        let machined = one(1, 0, "/sbin/init");
        let others = tasks(&self.0).into_values().map(|task| one(task.pid, 1, &task.line));
        [machined].into_iter().chain(others).collect()
    }

    /// Containers of services, or the pods and containers of Kubernetes.
    pub(super) fn container_list(&self, namespace: &str, driver: ContainerDriver) -> Vec<machine::ContainerInfo> {
        if driver == ContainerDriver::Cri || namespace == "k8s.io" {
            return self.pod_containers();
        }
        let own = tasks(&self.0)
            .into_iter()
            .filter(|(id, _)| CONTAINED.contains(&id.as_str()) || id.starts_with("ext-"));
        own.map(|(id, task)| machine::ContainerInfo {
            namespace: "system".to_owned(),
            pid: task.pid,
            status: "RUNNING".to_owned(),
            name: id.clone(),
            pod_id: id.clone(),
            id,
            ..machine::ContainerInfo::default()
        })
        .collect()
    }

    fn pod_containers(&self) -> Vec<machine::ContainerInfo> {
        let mut list = Vec::new();
        for (index, pod) in (0u32..).zip(self.0.resources.list(&resources::STATIC_POD_STATUS)) {
            let status = pod.spec.value();
            let container = &status["containerStatuses"][0];
            let text = |key: &str| container[key].as_str().unwrap_or_default().to_owned();
            let name = text("name");
            let state = if container["ready"] == true {
                "CONTAINER_RUNNING"
            } else {
                "CONTAINER_EXITED"
            };
            let base = machine::ContainerInfo {
                namespace: "k8s.io".to_owned(),
                pod_id: pod.id.clone(),
                pid: 2000 + 10 * index,
                ..machine::ContainerInfo::default()
            };
            list.push(machine::ContainerInfo {
                id: pod.id.clone(),
                name: name.clone(),
                image: "registry.k8s.io/pause:3.10.1".to_owned(),
                status: "SANDBOX_READY".to_owned(),
                ..base.clone()
            });
            list.push(machine::ContainerInfo {
                id: format!(
                    "{}:{name}:{}",
                    pod.id,
                    text("containerID")
                        .trim_start_matches("containerd://")
                        .get(..12)
                        .unwrap_or_default()
                ),
                name,
                image: text("image"),
                status: state.to_owned(),
                pid: base.pid + 1,
                ..base
            });
        }
        list
    }

    pub(super) fn stat_list(&self, namespace: &str, driver: ContainerDriver) -> Vec<machine::Stat> {
        let containers = self.container_list(namespace, driver).into_iter();
        containers
            .map(|container| machine::Stat {
                namespace: container.namespace,
                id: container.id,
                memory_usage: 60_000_000,
                cpu_usage: 1_500_000_000,
                pod_id: container.pod_id,
                name: container.name,
            })
            .collect()
    }

    pub(super) fn processors(&self) -> Vec<machine::CpuInfo> {
        let cores = self.0.hardware.cores;
        let one = |index: u32| machine::CpuInfo {
            processor: index,
            vendor_id: "AuthenticAMD".to_owned(),
            model_name: "QEMU Virtual CPU version 2.5+".to_owned(),
            cpu_mhz: 2600.0,
            siblings: cores,
            core_id: index.to_string(),
            cpu_cores: cores,
            ..machine::CpuInfo::default()
        };
        (0..cores).map(one).collect()
    }

    pub(super) fn disk_counters(&self) -> Vec<machine::DiskStat> {
        let devices = &self.0.hardware.disks;
        let one = |index: usize| machine::DiskStat {
            name: disk::device_name(devices, index),
            read_completed: 12_000,
            read_sectors: 900_000,
            write_completed: 30_000,
            write_sectors: 2_400_000,
            ..machine::DiskStat::default()
        };
        (0..devices.len()).map(one).collect()
    }

    pub(super) fn link_counters(&self) -> Vec<machine::NetDev> {
        let names = ["lo"].into_iter().chain(self.0.nics.iter().map(|nic| nic.name.as_str()));
        names
            .map(|name| machine::NetDev {
                name: name.to_owned(),
                rx_bytes: 40_000_000,
                rx_packets: 60_000,
                tx_bytes: 12_000_000,
                tx_packets: 50_000,
                ..machine::NetDev::default()
            })
            .collect()
    }
}
