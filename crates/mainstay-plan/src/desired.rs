//! What is wanted, with everything that the file, the secrets and the Image Factory decide already decided.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use mainstay_spec::{Cni, Machine, Network, Role, Spec, StorageNames, smbios_uuid};
use semver::Version;
use talos_config::versions::{RELEASES, Unsupported, check_pair};
use uuid::Uuid;

use crate::mark::{Mark, Versions};
use crate::observed::{Config, Observed, Talos};
use crate::step::Subject;

/// One goal for one cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    pub cluster: String,
    /// From the secrets. `None`: there are no secrets yet, so a plan can be shown but not executed.
    pub cluster_id: Option<Uuid>,
    /// `protect: true` in the file.
    pub protect: bool,
    /// Which machine the file puts on which VMID. Kept for `down` too: a machine that lost its marks is looked for there.
    pub vmids: BTreeMap<u32, ExpectedMachine>,
    /// Volumes that mainstay did not make and that may be destroyed with their VM, each named by the user.
    pub with_disks: BTreeSet<String>,
    pub goal: Goal,
}

/// The machine that a VMID is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedMachine {
    pub machine: String,
    pub role: Role,
    /// The serials of its disks besides the system disk.
    pub disks: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Goal {
    Cluster(Box<DesiredCluster>),
    /// Everything that is ours is to go, images by file name.
    Nothing {
        images: Vec<String>,
    },
}

/// The cluster that is wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredCluster {
    pub versions: Versions,
    pub image: Image,
    pub network: Network,
    pub storage: StorageNames,
    /// The PVE resource pool that machines are created in.
    pub resource_pool: Option<String>,
    /// The image has the guest agent.
    pub agent: bool,
    pub cni: Cni,
    /// Control planes first, then by pool and ordinal.
    pub machines: Vec<DesiredMachine>,
}

/// A machine that is wanted, and its config.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredMachine {
    pub machine: Machine,
    pub config: Config,
}

/// The bootable disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub schematic: String,
    pub url: String,
    /// Named by version, schematic and architecture, so that it is never overwritten by another.
    pub file: String,
    /// In bytes, as the factory says. Unknown while offline; then any size is believed.
    pub size: Option<u64>,
}

/// What the plan must be told besides the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    pub cluster_id: Option<Uuid>,
    pub versions: Versions,
    pub image: Image,
    /// By machine. May be empty while there are no secrets.
    pub configs: BTreeMap<String, Config>,
}

impl Desired {
    /// The cluster of the file.
    pub fn cluster(spec: &Spec, facts: Facts) -> Self {
        let mut configs = facts.configs;
        let with_config = |machine: &Machine| {
            let config = configs.remove(machine.name.as_str()).unwrap_or_else(|| Config::new(""));
            DesiredMachine {
                machine: machine.clone(),
                config,
            }
        };
        let machines = spec.machines.iter().map(with_config).collect();
        let cluster = DesiredCluster {
            versions: facts.versions,
            image: facts.image,
            network: spec.network.clone(),
            storage: spec.datacenter.storage.clone(),
            resource_pool: spec.datacenter.pool.as_ref().map(ToString::to_string),
            agent: spec.distro.has_guest_agent(),
            cni: spec.cni,
            machines,
        };
        Self {
            goal: Goal::Cluster(Box::new(cluster)),
            ..Self::nothing(spec, facts.cluster_id, Vec::new())
        }
    }

    /// Nothing of the cluster of the file.
    pub fn nothing(spec: &Spec, cluster_id: Option<Uuid>, images: Vec<String>) -> Self {
        let claimant = |machine: &Machine| {
            (
                machine.vmid,
                ExpectedMachine {
                    machine: machine.name.to_string(),
                    role: machine.role,
                    disks: machine.shape.disks.iter().map(|disk| disk.name.clone()).collect(),
                },
            )
        };
        let vmids = spec.machines.iter().map(claimant).collect();
        Self {
            vmids,
            protect: spec.protect,
            ..Self::nothing_of(spec.name.as_str(), cluster_id, images)
        }
    }

    /// Nothing of a cluster that is known by name and id only.
    pub fn nothing_of(cluster: &str, cluster_id: Option<Uuid>, images: Vec<String>) -> Self {
        Self {
            cluster: cluster.to_owned(),
            cluster_id,
            protect: false,
            vmids: BTreeMap::new(),
            with_disks: BTreeSet::new(),
            goal: Goal::Nothing { images },
        }
    }

    pub fn cluster_goal(&self) -> Option<&DesiredCluster> {
        match &self.goal {
            Goal::Cluster(cluster) => Some(cluster),
            Goal::Nothing { .. } => None,
        }
    }

    /// The id, or nil in a plan that is only shown.
    pub(crate) fn id(&self) -> Uuid {
        self.cluster_id.unwrap_or_default()
    }

    pub(crate) fn uuid(&self, machine: &str) -> Uuid {
        smbios_uuid(self.id(), machine)
    }
}

impl DesiredCluster {
    pub fn machine(&self, name: &str) -> Option<&DesiredMachine> {
        self.machines.iter().find(|wanted| wanted.name() == name)
    }

    pub fn control_planes(&self) -> impl Iterator<Item = &DesiredMachine> {
        self.machines.iter().filter(|wanted| wanted.is_control_plane())
    }

    /// Address with the length of the network's prefix.
    pub fn interface(&self, wanted: &DesiredMachine) -> Ipv4Net {
        Ipv4Net::new(wanted.address(), self.network.cidr.prefix_len()).unwrap_or(self.network.cidr)
    }
}

impl DesiredMachine {
    pub fn name(&self) -> &str {
        self.machine.name.as_str()
    }

    pub fn address(&self) -> Ipv4Addr {
        self.machine.address
    }

    pub fn subject(&self) -> Subject {
        Subject::Machine(self.name().to_owned())
    }

    pub fn is_control_plane(&self) -> bool {
        self.machine.role == Role::ControlPlane
    }
}

/// What the cluster runs: read from its machines, else from the marks of those that are silent. `None` for a cluster that is not there.
///
/// The oldest wins where they differ, so that a half-done change of versions is never taken for a finished one.
pub fn running(observed: &Observed, cluster_id: Uuid) -> Option<Versions> {
    let marks: Vec<Mark> = observed
        .vms
        .yes()?
        .values()
        .filter_map(|vm| Mark::parse(&vm.config.yes()?.description))
        .collect();
    let ours = || {
        marks
            .iter()
            .filter(|mark| mark.cluster_id == cluster_id)
            .filter_map(|mark| mark.versions.as_ref())
    };
    let nodes = || {
        observed
            .talos
            .values()
            .filter_map(|talos| if let Talos::Running(node) = talos { Some(node) } else { None })
    };
    let talos = nodes()
        .map(|node| &node.version)
        .min()
        .or_else(|| ours().map(|versions| &versions.talos).min())?;
    let kubernetes = nodes().filter_map(|node| node.kubernetes.as_ref()).min();
    let kubernetes = kubernetes.or_else(|| ours().map(|versions| &versions.kubernetes).min())?;
    Some(Versions {
        talos: talos.clone(),
        kubernetes: kubernetes.clone(),
    })
}

/// The versions to use: what the file says, else what runs, else the newest known.
pub fn resolve(spec: &Spec, running: Option<&Versions>) -> Result<Versions, Unsupported> {
    let Some(wish) = spec.distro.talos() else {
        return Err(Unsupported::Malformed(format!("a version of {}", spec.distro.distro())));
    };
    let known = RELEASES.iter().map(|release| &release.newest);
    let talos = wish.version.pick(running.map(|versions| &versions.talos), known);
    let talos = talos.ok_or_else(|| Unsupported::Malformed(wish.version.to_string()))?.clone();
    let release = talos_config::versions::release(&talos)?;
    let fitting: Vec<&Version> = RELEASES
        .iter()
        .map(|known| &known.kubernetes)
        .filter(|version| release.runs(version))
        .collect();
    let kubernetes = spec.kubernetes.pick(running.map(|versions| &versions.kubernetes), fitting);
    let kubernetes = kubernetes.cloned().or_else(|| first_of_minor(&spec.kubernetes));
    let kubernetes = kubernetes.ok_or_else(|| Unsupported::Malformed(spec.kubernetes.to_string()))?;
    check_pair(&talos, &kubernetes)?;
    Ok(Versions { talos, kubernetes })
}

/// A minor that is in the window of a release but whose patches are not in the table.
fn first_of_minor(wish: &mainstay_spec::VersionWish) -> Option<Version> {
    match wish {
        mainstay_spec::VersionWish::Minor(major, minor) => Some(Version::new(*major, *minor, 0)),
        _ => None,
    }
}
