//! A look at everything, for assertions.

use std::collections::BTreeMap;

use crate::datacenter::Datacenter;
use crate::guest::Platter;

/// The datacenter at one moment.
#[derive(Clone, Debug)]
pub struct Inventory {
    pub vms: BTreeMap<u32, VmView>,
    pub volumes: Vec<VolumeView>,
    pub tasks: Vec<TaskView>,
    pub pools: BTreeMap<String, Vec<u32>>,
    /// `user@realm!token`, and plain users.
    pub principals: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct VmView {
    pub host: String,
    pub config: BTreeMap<String, String>,
    pub pending: BTreeMap<String, String>,
    pub running: bool,
    pub digest: String,
}

#[derive(Clone)]
pub struct VolumeView {
    pub volid: String,
    /// `None` on shared storage.
    pub host: Option<String>,
    pub vmid: Option<u32>,
    pub content: &'static str,
    pub size: u64,
    pub platter: Platter,
}

impl std::fmt::Debug for VolumeView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {:?}, {} bytes", self.volid, self.host, self.size)
    }
}

#[derive(Clone, Debug)]
pub struct TaskView {
    pub upid: String,
    pub kind: String,
    pub id: String,
    pub by: String,
    /// `None` while it runs.
    pub exit: Option<String>,
    pub log: Vec<String>,
}

impl Datacenter {
    /// Everything there is, copied.
    pub fn inspect(&self) -> Inventory {
        let state = self.state();
        let vms = state.vms.values().map(|vm| {
            let view = VmView {
                host: vm.node.clone(),
                config: vm.conf.now.clone(),
                pending: vm.conf.pending.clone(),
                running: vm.is_running(),
                digest: vm.conf.digest().to_string(),
            };
            (vm.vmid, view)
        });
        let volumes = state.volumes.all().map(|(place, volume)| VolumeView {
            volid: volume.volid.clone(),
            host: Some(place.to_string()).filter(|p| !p.is_empty()),
            vmid: volume.vmid,
            content: volume.kind.name(),
            size: volume.size,
            platter: volume.content.clone(),
        });
        let tasks = state.tasks.newest().map(|task| TaskView {
            upid: task.upid.clone(),
            kind: task.kind.clone(),
            id: task.id.clone(),
            by: task.owner.clone(),
            exit: task.exit.clone(),
            log: task.log(),
        });
        let tokens = |(name, user): (&String, &crate::access::User)| {
            let own: Vec<String> = user.tokens.keys().map(|t| format!("{name}!{t}")).collect();
            std::iter::once(name.clone()).chain(own).collect::<Vec<_>>()
        };
        Inventory {
            vms: vms.collect(),
            volumes: volumes.collect(),
            tasks: tasks.collect(),
            pools: state
                .access
                .pools
                .iter()
                .map(|(name, pool)| (name.clone(), pool.vms.iter().copied().collect()))
                .collect(),
            principals: state.access.users.iter().flat_map(tokens).collect(),
        }
    }
}
