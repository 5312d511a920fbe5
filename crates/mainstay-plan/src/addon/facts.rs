//! What the catalogue must know about a cluster. Everything comes from cluster.yaml and the lock file, never from what was observed:
//! values that followed the observed cluster would change a release whenever a node is away.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use mainstay_spec::{Addon, AddressSpan, Distro};

/// The input of every catalogue function.
#[derive(Debug, Clone, PartialEq)]
pub struct AddonFacts {
    pub cluster: String,
    pub distro: Distro,
    /// Wanted machines by name. An address that DHCP gives is not known in advance.
    pub control_planes: BTreeMap<String, Option<Ipv4Addr>>,
    pub workers: BTreeMap<String, Option<Ipv4Addr>>,
    pub vip: Option<Ipv4Addr>,
    /// Every catalogue entry of the file that is one release.
    pub wanted: BTreeSet<Addon>,
    pub loadbalancer: Option<AddressSpan>,
    /// CoreDNS forwards to a resolver on the host's link-local address.
    pub forwards_dns_to_host: bool,
    pub pve: PveFacts,
    /// The VMID that owns CSI volumes, from the lock file.
    pub csi_controller_vmid: Option<u32>,
    /// At least one pool has a disk named `longhorn`.
    pub has_longhorn_disk: bool,
    /// Minor of the first Cilium that was installed here; `None` before the first install.
    pub first_cilium_minor: Option<String>,
}

/// How pods reach PVE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PveFacts {
    /// `https://10.0.0.5:8006`: an address, because cluster DNS does not answer yet when the cloud controller starts.
    pub endpoint: String,
    /// Name of the PVE cluster, or of its only host. Becomes the region label.
    pub region: String,
    /// The certificate is signed by a CA of the datacenter that must be mounted into the pods.
    pub has_own_ca: bool,
    /// Storage of the default StorageClass.
    pub storage: String,
    /// The storage is reachable from every host, so a volume is not bound to one.
    pub is_shared: bool,
}

impl AddonFacts {
    pub fn wants(&self, addon: Addon) -> bool {
        self.wanted.contains(&addon)
    }

    pub fn nodes(&self) -> usize {
        self.control_planes.len() + self.workers.len()
    }

    /// Wanted replicas of a component that runs once per node: two, unless there is only one node to run on.
    pub fn replicas(&self) -> usize {
        self.nodes().clamp(1, 2)
    }
}
