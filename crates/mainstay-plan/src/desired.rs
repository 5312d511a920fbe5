//! What is wanted, with everything that the file and the secrets decide already decided.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use ipnet::Ipv4Net;
use mainstay_spec::{Cni, Machine, Network, Pool, Role, Spec, StorageNames, smbios_uuid};
use semver::Version;
use uuid::Uuid;

use crate::addon::wanted::DesiredAddons;
use crate::mark::Mark;
use crate::observed::{GuestConfig, Observed};
use crate::policy::TurnPolicy;
use crate::step::{FirstUser, Subject};
use crate::versions::{Course, Versions};

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
    pub policy: TurnPolicy,
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
    Absent {
        images: Vec<String>,
    },
}

/// The cluster that is wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredCluster {
    /// What the file asks for. Each machine has its own versions beside.
    pub versions: Versions,
    pub course: Course,
    /// The system of this hop. `None`: the distribution changes its version in another way.
    pub system: Option<SystemGoal>,
    pub network: Network,
    pub storage: StorageNames,
    /// The PVE resource pool that machines are created in.
    pub resource_pool: Option<String>,
    /// The image has the guest agent.
    pub agent: bool,
    pub cni: Cni,
    /// How many machines of a pool may be unavailable at once, by pool.
    pub budgets: BTreeMap<String, usize>,
    /// The search domain of the first boot.
    pub search: String,
    /// The account that the first boot creates. `None`: the guest has no accounts.
    pub first_user: Option<FirstUser>,
    /// Control planes take ordinary pods.
    pub control_plane_workloads: bool,
    pub addons: DesiredAddons,
    /// Control planes first, then by pool and ordinal.
    pub machines: Vec<DesiredMachine>,
}

/// A machine that is wanted, and its config.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredMachine {
    pub machine: Machine,
    /// What it runs, or is made with: its config is written for that.
    pub runs: Versions,
    /// What it is to run when this plan is carried out.
    pub versions: Versions,
    pub image: Arc<Image>,
    pub config: GuestConfig,
}

/// The bootable disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub url: String,
    /// Named by version, schematic and architecture, so that it is never overwritten by another.
    pub file: String,
    /// What must be registered before the publisher builds it. `None`: the file is published as it is.
    pub schematic: Option<SchematicRef>,
    /// In bytes, as the publisher says. Unknown while offline; then any size is believed.
    pub size: Option<u64>,
    /// PVE compares it while it downloads.
    pub checksum: Option<ImageChecksum>,
}

/// A published checksum of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageChecksum {
    /// `sha256` or `sha512`.
    pub algorithm: &'static str,
    pub hex: String,
}

/// The system that machines are to run after this hop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemGoal {
    pub release: Version,
    /// Where a machine loads it from.
    pub image: String,
    pub schematic: Option<SchematicRef>,
}

/// The description of an image that its factory builds on demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchematicRef {
    /// A hash of the text.
    pub id: String,
    pub text: String,
}

/// What the plan must be told besides the file.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredInputs {
    pub cluster_id: Option<Uuid>,
    pub versions: Versions,
    pub course: Course,
    pub system: Option<SystemGoal>,
    pub image: Image,
    /// By machine. May be empty while there are no secrets.
    pub configs: BTreeMap<String, GuestConfig>,
    pub first_user: Option<FirstUser>,
    pub addons: DesiredAddons,
}

impl Desired {
    /// The cluster of the file.
    pub fn cluster(spec: &Spec, facts: DesiredInputs) -> Self {
        let mut configs = facts.configs;
        let image = Arc::new(facts.image);
        let with_config = |machine: &Machine| {
            let config = configs.remove(machine.name.as_str()).unwrap_or_else(|| GuestConfig::new(""));
            DesiredMachine {
                machine: machine.clone(),
                runs: facts.course.runs(machine.name.as_str()).clone(),
                versions: facts.course.hop(&facts.versions),
                image: image.clone(),
                config,
            }
        };
        let machines = spec.machines.iter().map(with_config).collect();
        let cluster = DesiredCluster {
            versions: facts.versions.clone(),
            system: facts.system.clone(),
            course: facts.course.clone(),
            network: spec.network.clone(),
            storage: spec.datacenter.storage.clone(),
            resource_pool: spec.datacenter.pool.as_ref().map(ToString::to_string),
            agent: spec.distro.has_guest_agent(),
            cni: spec.cni,
            budgets: spec.pools.iter().map(pool_budget).collect(),
            search: match spec.network.search.as_slice() {
                [] => format!("{}.internal", spec.name),
                search => search.join(" "),
            },
            first_user: facts.first_user,
            control_plane_workloads: spec.control_plane_workloads,
            addons: facts.addons,
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
            policy: TurnPolicy::default(),
            goal: Goal::Absent { images },
        }
    }

    pub fn cluster_goal(&self) -> Option<&DesiredCluster> {
        match &self.goal {
            Goal::Cluster(cluster) => Some(cluster),
            Goal::Absent { .. } => None,
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

    /// How many machines of this pool may be unavailable at once.
    pub fn max_unavailable(&self, pool: &str) -> usize {
        self.budgets.get(pool).copied().unwrap_or(1)
    }

    /// How many machines of the cluster may be unavailable at once.
    pub fn max_unavailable_of_all(&self) -> usize {
        self.budgets.values().copied().max().unwrap_or(1)
    }

    /// Address with the length of the network's prefix.
    pub fn interface(&self, wanted: &DesiredMachine) -> Ipv4Net {
        Ipv4Net::new(wanted.address(), self.network.cidr.prefix_len()).unwrap_or(self.network.cidr)
    }
}

fn pool_budget(pool: &Pool) -> (String, usize) {
    (pool.name.to_string(), usize::try_from(pool.max_unavailable).unwrap_or(1))
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

/// What the cluster runs: read from its control planes, else from the marks of those that are silent. `None` for a cluster that is not there.
///
/// The newest wins where they differ: a version that is left out never means that machines go back.
pub fn running(observed: &Observed, cluster_id: Uuid) -> Option<Versions> {
    let vms = observed.vms.yes()?.values();
    let marks = vms.filter_map(|vm| Mark::parse(&vm.config.yes()?.description));
    let ours: Vec<Mark> = marks.filter(|mark| mark.cluster_id == cluster_id).collect();
    let recorded = || ours.iter().filter_map(|mark| mark.versions.as_ref());
    let is_worker = |name: &str| ours.iter().any(|mark| mark.machine == name && mark.role == Role::Worker);
    let guests = |workers: bool| {
        let of_role = observed.guests.iter().filter(move |(name, _)| workers || !is_worker(name));
        of_role.filter_map(|(_, guest)| guest.running())
    };
    let release = |workers: bool| guests(workers).filter_map(|guest| guest.release.clone()).max();
    let kubernetes = |workers: bool| guests(workers).filter_map(|guest| guest.kubernetes.clone()).max();
    let recorded_release = || recorded().map(|versions| versions.release.clone()).max();
    let recorded_kubernetes = || recorded().map(|versions| versions.kubernetes.clone()).max();
    Some(Versions {
        distro: recorded().map(|versions| versions.distro).next()?,
        release: release(false).or_else(|| release(true)).or_else(recorded_release)?,
        kubernetes: kubernetes(false).or_else(|| kubernetes(true)).or_else(recorded_kubernetes)?,
    })
}
