//! Every action, and one table of what the program knows about each kind.
//!
//! Views, limits, lease, approval and linter read the table. Both matches are exhaustive, so that an action
//! that is not classified does not compile.

use std::time::Duration;

use mainstay_spec::Gib;
use semver::Version;

use crate::addon::ready::AwaitedWorkload;
use crate::addon::run::{ChartRef, ReleaseCleanup, ReleaseRun, ReleaseWatch};
use crate::desired::{Image, SchematicRef};
use crate::mark::Mark;
use crate::node_change::NodeChange;
use crate::observed::{GuestConfig, StorageAt, VolumeIdentity};
use crate::settings::Setting;
use crate::step::{
    ApplyMode, Ask, Claim, Drain, Fill, GuestRef, Impact, KubernetesPart, MarkUpdate, MemberRef, MemberRemoval, NodeState,
    PoolBudget, QuorumCheck, UpgradeOrder, VmRef,
};

/// Everything that can be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Make the schematic known to the Image Factory.
    SchematicRegister {
        schematic: SchematicRef,
    },
    /// Have a host download the image. On a shared storage one host does it for all.
    ImageFetch {
        at: StorageAt,
        image: Image,
    },
    /// Remove a file of the image's name that is not the whole image.
    ImageDiscard {
        at: StorageAt,
        file: String,
    },
    /// Remove an image that no machine needs.
    ImageDelete {
        at: StorageAt,
        file: String,
    },
    /// Create a VM without disks that carries all marks: the claim of its VMID.
    MachineClaim(Box<Claim>),
    /// Write the mark, and the tags that are missing.
    MachineMark(Box<MarkUpdate>),
    /// Give a claimed VM its disks, in one request. Not idempotent: read the VM before repeating it. A VM that was started
    /// before it got its system disk is stopped by this action, because it would not boot from the new disk.
    MachineFill(Box<Fill>),
    /// Grow a disk to a size.
    MachineGrow {
        vm: VmRef,
        slot: String,
        to: Gib,
    },
    MachineStart {
        vm: VmRef,
    },
    /// Change settings in one request, and record the shape in the mark.
    MachineChange {
        vm: VmRef,
        settings: Vec<Setting>,
        mark: Box<Mark>,
    },
    /// Move a VM from one resource pool of PVE to another, or out of its pool.
    MachinePool {
        vm: VmRef,
        from: Option<String>,
        to: Option<String>,
    },
    /// Restart through PVE, so that pending settings take effect.
    MachineReboot {
        vm: VmRef,
        guest: GuestRef,
        check: Option<QuorumCheck>,
    },
    /// Switch off, and wait until it is off.
    MachineStop {
        vm: VmRef,
        check: Option<QuorumCheck>,
    },
    /// Destroy a stopped VM with its volumes: those that mainstay made, and those that the user named with `--with-disk`. Proof of
    /// ownership, the config's volumes and PVE's quorum are read again right before: a volume that is in neither list stops it.
    /// `purge`: also take it out of HA, which the approval says. `only_going`: the machine is wanted, so only what is left of a
    /// destruction that was begun may go.
    MachineDelete {
        vm: VmRef,
        volumes: Vec<String>,
        with_disks: Vec<String>,
        purge: bool,
        check: Option<QuorumCheck>,
        only_going: bool,
    },
    /// Destroy a volume that no VM refers to, if it is still the one that was read.
    VolumeDelete {
        at: StorageAt,
        volume: String,
        identity: VolumeIdentity,
    },
    /// Wait until the guest proves that it is this life of the VM, and record its host key in the mark. Nothing secret is sent before.
    GuestProve {
        vm: VmRef,
        guest: GuestRef,
    },
    /// Write public files and install the release. Nothing of the cluster starts.
    GuestPrepare {
        guest: GuestRef,
        config: GuestConfig,
    },
    /// Wait for the guest; where it has no config, prove the VM by its UUID and send it; done if it is configured already.
    GuestConfigure {
        guest: GuestRef,
        config: GuestConfig,
    },
    /// Wait for the guest of a machine that is not wanted any more, so that it can be seen whether it has etcd data.
    GuestAwait {
        guest: GuestRef,
    },
    /// Apply a changed config to a running guest.
    GuestReconfigure {
        guest: GuestRef,
        config: GuestConfig,
        mode: ApplyMode,
        /// For a mode that restarts a control plane.
        check: Option<QuorumCheck>,
    },
    /// Load another system onto the machine. Nothing that runs notices.
    GuestPull {
        guest: GuestRef,
        image: String,
    },
    /// Install another system and restart into it. What is about to happen is written into the mark first.
    GuestUpgrade(Box<UpgradeOrder>),
    /// Load the images of a version of Kubernetes onto the machine. Nothing that runs notices.
    KubernetesPull {
        guest: GuestRef,
        parts: Vec<KubernetesPart>,
        to: Version,
    },
    /// Change the version of one part of Kubernetes on one machine, and wait until it runs.
    KubernetesChange {
        guest: GuestRef,
        part: KubernetesPart,
        to: Version,
        ask: Ask,
    },
    /// Begin etcd here, once in the life of the cluster. `prove_empty` are the control planes that could have data: each is read again first.
    EtcdBootstrap {
        guest: GuestRef,
        config: GuestConfig,
        prove_empty: Ask,
        /// It began here before and was killed before it was ready: those data are deleted first.
        again: bool,
    },
    /// Wait until the machine is a healthy voter of etcd.
    EtcdJoin {
        guest: GuestRef,
    },
    EtcdLeave {
        member: MemberRef,
        by: MemberRemoval,
        /// Other control planes, which tell whether it is still a member.
        ask: Ask,
    },
    /// Wait for the Kubernetes Node.
    NodeAwait {
        until: NodeState,
        ask: Ask,
    },
    /// Set labels and taints of the Kubernetes Node, and take off those that are not wanted any more.
    NodeChange {
        change: Box<NodeChange>,
        ask: Ask,
    },
    /// Delete the Node of a machine that is off. `was_drained`: no pod holds a volume there any more. Otherwise the volumes are released
    /// first.
    NodeDelete {
        ask: Ask,
        was_drained: bool,
    },
    /// Keep new pods away from the machine, and record on its Node that mainstay did so.
    NodeCordon {
        /// What the turn is for, recorded on the Node.
        turn: &'static str,
        /// `None`: the machine leaves, so that no budget counts it.
        budget: Option<PoolBudget>,
        ask: Ask,
    },
    /// Evict the pods of the machine, within their disruption budgets, and wait until its volumes are detached.
    NodeDrain {
        drain: Drain,
        ask: Ask,
    },
    /// End the cordon, if it is that of mainstay.
    NodeUncordon {
        ask: Ask,
    },
    /// Pull a chart where the cache lacks it, check its digest, and pin it in the lock file.
    ChartFetch {
        chart: ChartRef,
    },
    /// Give a run of Helm to the cluster: a suspended Job, its inputs and rights, then released. One that exists is completed.
    ReleaseStart(Box<ReleaseRun>),
    /// Wait until the release has the wanted content, whatever the Job says of itself.
    ReleaseAwait(Box<ReleaseWatch>),
    /// Delete finished Jobs, and role bindings that no running Helm needs.
    ReleaseClean(ReleaseCleanup),
    /// Wait until the workloads of an add-on are rolled out.
    AddonAwait {
        workloads: Vec<AwaitedWorkload>,
        ask: Ask,
    },
}

/// What the program knows about an action.
#[derive(Debug, Clone)]
pub struct ActionInfo<'a> {
    /// In traces, in the event stream and in the journal.
    pub name: &'static str,
    /// In the rows of a plan. Empty: the row says it otherwise.
    pub verb: &'static str,
    /// While it runs.
    pub progress: &'static str,
    /// The VM that is acted on.
    pub vm: Option<&'a VmRef>,
    /// The host whose workers it keeps busy.
    pub host: Option<&'a str>,
    /// The storage on which it allocates space.
    pub allocates_on: Option<StorageAt>,
    /// What becomes of the subject.
    pub fate: SubjectFate,
    /// The most that a step of this kind does to what runs; a step may say less, never more.
    pub max_impact: Impact,
    /// Destroys data: what an approval must cover.
    pub removes_data: bool,
    /// Ends what runs, if only for a moment.
    pub stops: bool,
    /// Two runs must not do this at once.
    pub needs_lease: bool,
    /// Waits, or ends a turn: a row tells it where nothing else happens.
    pub waits: bool,
    /// What it does to the member of its subject.
    pub etcd: EtcdEffect<'a>,
    /// How long it takes when nothing is wrong. An order of magnitude, not a deadline.
    pub expected: Duration,
}

/// What becomes of the subject of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectFate {
    Created,
    Kept,
    Removed,
}

/// What a step does to etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EtcdEffect<'a> {
    None,
    Joins,
    /// The member is down for a while.
    Interrupts,
    Leaves(&'a MemberRef),
}

impl<'a> ActionInfo<'a> {
    fn new(name: &'static str, verb: &'static str, progress: &'static str, expected: u64) -> Self {
        Self {
            name,
            verb,
            progress,
            vm: None,
            host: None,
            allocates_on: None,
            fate: SubjectFate::Kept,
            max_impact: Impact::None,
            removes_data: false,
            stops: false,
            needs_lease: false,
            waits: false,
            etcd: EtcdEffect::None,
            expected: Duration::from_secs(expected),
        }
    }

    /// Acts on a VM, and keeps its host busy.
    fn on(self, vm: &'a VmRef) -> Self {
        Self {
            vm: Some(vm),
            host: Some(&vm.host),
            ..self
        }
    }

    fn busy(self, at: &'a StorageAt) -> Self {
        Self {
            host: Some(&at.host),
            ..self
        }
    }

    fn allocates(self, host: &str, storage: Option<&String>) -> Self {
        let at = |storage: &String| StorageAt {
            host: host.to_owned(),
            storage: storage.clone(),
        };
        Self {
            allocates_on: storage.map(at),
            ..self
        }
    }

    /// Work that takes something down or away needs the lease.
    fn impact(self, max_impact: Impact) -> Self {
        Self {
            max_impact,
            needs_lease: self.needs_lease || max_impact >= Impact::Reboot,
            ..self
        }
    }

    fn creates(self) -> Self {
        Self {
            fate: SubjectFate::Created,
            ..self
        }
    }

    fn removes_data(self) -> Self {
        Self {
            removes_data: true,
            needs_lease: true,
            ..self
        }
    }

    fn removes_subject(self) -> Self {
        Self {
            fate: SubjectFate::Removed,
            ..self.removes_data()
        }
    }

    /// The machine goes down and comes back.
    fn restarts(self, vm: &'a VmRef) -> Self {
        self.on(vm).impact(Impact::Reboot).stops()
    }

    /// The machine goes down, and its etcd member with it.
    fn stops(self) -> Self {
        Self {
            stops: true,
            needs_lease: true,
            etcd: EtcdEffect::Interrupts,
            ..self
        }
    }

    /// Changes what runs, in steps that two runs must not take at once.
    fn leased(self) -> Self {
        Self {
            needs_lease: true,
            ..self.impact(Impact::Live)
        }
    }

    fn waits(self) -> Self {
        Self { waits: true, ..self }
    }

    fn etcd(self, etcd: EtcdEffect<'a>) -> Self {
        Self { etcd, ..self }
    }
}

/// What Helm does to a release decides what becomes of it.
fn release_start(run: &ReleaseRun) -> ActionInfo<'_> {
    let row = |verb, progress| ActionInfo::new("release.start", verb, progress, 5);
    if run.removes() {
        row("", "starting the removal").impact(Impact::Live).removes_subject()
    } else if run.is_new {
        row("", "starting Helm").creates()
    } else {
        row("upgrade", "starting Helm").impact(Impact::Live)
    }
}

impl Action {
    /// The table: one row for each kind of action.
    pub fn info(&self) -> ActionInfo<'_> {
        let row = ActionInfo::new;
        match self {
            Self::SchematicRegister { .. } => row("schematic.register", "", "registering with the Image Factory", 1),
            Self::ImageFetch { at, .. } => row("image.fetch", "", "downloading", 40)
                .busy(at)
                .allocates(&at.host, Some(&at.storage))
                .creates(),
            Self::ImageDiscard { .. } => row("image.discard", "", "removing a partial download", 1),
            Self::ImageDelete { .. } => row("image.delete", "", "deleting", 1).removes_subject(),
            Self::MachineClaim(claim) => row("machine.claim", "", "creating the VM", 1).on(&claim.vm).creates(),
            Self::MachineMark(update) => row("machine.mark", "mark", "updating the VM's mark", 1).on(&update.vm),
            Self::MachineFill(fill) => row("machine.fill", "fill", "importing the disk", 20)
                .on(&fill.vm)
                .allocates(&fill.vm.host, fill.system.as_ref().map(|disk| &disk.storage)),
            Self::MachineGrow { vm, .. } => row("machine.grow", "grow", "growing the disk", 1).on(vm).impact(Impact::Live),
            Self::MachineStart { vm } => row("machine.start", "start", "starting", 3).on(vm),
            Self::MachineChange { vm, settings, .. } => row("machine.change", "change", "changing settings", 1)
                .on(vm)
                .impact(Impact::Live)
                .allocates(&vm.host, settings.iter().find_map(Setting::allocates_on)),
            Self::MachinePool { vm, .. } => row("machine.pool", "", "moving to its pool", 1).on(vm),
            Self::MachineReboot { vm, .. } => row("machine.reboot", "reboot", "restarting", 60).restarts(vm),
            Self::MachineStop { vm, .. } => row("machine.stop", "stop", "stopping", 3).on(vm).impact(Impact::Live).stops(),
            Self::MachineDelete { vm, .. } => row("machine.delete", "", "deleting", 3)
                .on(vm)
                .impact(Impact::Wipe)
                .removes_subject(),
            Self::VolumeDelete { at, .. } => row("volume.delete", "", "deleting", 3)
                .busy(at)
                .impact(Impact::Wipe)
                .removes_subject(),
            Self::GuestProve { .. } => row("guest.prove", "prove", "waiting for the first login", 45),
            Self::GuestPrepare { .. } => row("guest.prepare", "install", "installing the release", 60),
            Self::GuestConfigure { .. } => row("guest.configure", "configure", "configuring", 45),
            Self::GuestAwait { .. } => row("guest.await", "await guest", "waiting for the guest", 45),
            Self::GuestReconfigure {
                mode: ApplyMode::Live, ..
            } => row("guest.reconfigure", "new config, live", "applying the config", 5).impact(Impact::Live),
            Self::GuestReconfigure {
                mode: ApplyMode::Staged, ..
            } => row("guest.reconfigure", "new config", "applying the config", 5).impact(Impact::Live),
            Self::GuestReconfigure {
                mode: ApplyMode::Reboot, ..
            } => row("guest.reconfigure", "new config, reboot", "applying the config", 60)
                .impact(Impact::Reboot)
                .etcd(EtcdEffect::Interrupts),
            Self::GuestPull { .. } => row("guest.pull", "", "loading the new system", 30),
            Self::GuestUpgrade(upgrade) => row("guest.upgrade", "upgrade", "upgrading", 120).restarts(&upgrade.vm),
            Self::KubernetesPull { .. } => row("kubernetes.pull", "", "loading the new Kubernetes", 30),
            Self::KubernetesChange { .. } => row("kubernetes.change", "new Kubernetes", "changing Kubernetes", 45).leased(),
            Self::EtcdBootstrap { .. } => row("etcd.bootstrap", "", "bootstrapping etcd", 15),
            Self::EtcdJoin { .. } => row("etcd.join", "join etcd", "joining etcd", 30)
                .waits()
                .etcd(EtcdEffect::Joins),
            Self::EtcdLeave { member, .. } => row("etcd.leave", "leave etcd", "leaving etcd", 10)
                .impact(Impact::Live)
                .removes_data()
                .etcd(EtcdEffect::Leaves(member)),
            Self::NodeAwait { .. } => row("node.await", "await node", "waiting for the node", 90).waits(),
            Self::NodeChange { .. } => row("node.change", "", "setting labels and taints", 1).impact(Impact::Live),
            Self::NodeDelete { .. } => row("node.delete", "delete node", "deleting the Node", 1)
                .impact(Impact::Live)
                .removes_data(),
            Self::NodeCordon { .. } => row("node.cordon", "", "keeping new pods away", 1).leased(),
            Self::NodeDrain { .. } => row("node.drain", "drain", "moving the pods away", 30).leased(),
            // It gives back what was taken, so that a run which lost the lease may still do it.
            Self::NodeUncordon { .. } => row("node.uncordon", "uncordon", "taking pods again", 1)
                .impact(Impact::Live)
                .waits(),
            Self::ChartFetch { .. } => row("chart.fetch", "fetch chart", "fetching the chart", 3),
            Self::ReleaseStart(run) => release_start(run),
            Self::ReleaseAwait(_) => row("release.await", "await release", "waiting for Helm", 20).waits(),
            Self::ReleaseClean(_) => row("release.clean", "clean up", "removing what Helm's Jobs left", 2).waits(),
            Self::AddonAwait { .. } => row("addon.await", "await add-on", "waiting for the add-on", 30).waits(),
        }
    }

    pub fn name(&self) -> &'static str {
        self.info().name
    }

    /// What the trace says besides name and subject.
    pub fn detail(&self) -> Option<String> {
        match self {
            Self::MachineClaim(claim) => Some(claim.vm.to_string()),
            Self::MachineFill(fill) => Some(format!("from {}:{}", fill.image.storage, fill.image.file)),
            Self::MachineGrow { slot, to, .. } => Some(format!("{slot} to {} GiB", to.0)),
            Self::MachineChange { settings, .. } => Some(settings.iter().map(Setting::key).collect::<Vec<_>>().join("+")),
            Self::MachineMark(update) => update.mark.bootstrap.then(|| "bootstrap here".to_owned()),
            Self::EtcdLeave { by, .. } => match by {
                MemberRemoval::Leave => None,
                MemberRemoval::RemovedBy(peer) => Some(format!("by {peer}")),
            },
            Self::GuestPull { image, .. } => Some(image.clone()),
            Self::KubernetesPull { to, .. } => Some(to.to_string()),
            Self::KubernetesChange { part, to, .. } => Some(format!("{part} to {to}")),
            Self::GuestUpgrade(upgrade) => Some(format!("{} to {}", upgrade.from, upgrade.to)),
            Self::NodeCordon { turn, .. } => Some(format!("for {turn}")),
            Self::NodeDrain { drain, .. } => drain.deletes_unmanaged.then(|| "with pods without a controller".to_owned()),
            Self::EtcdBootstrap { prove_empty, .. } => {
                (!prove_empty.is_empty()).then(|| format!("after reading {}", prove_empty.join(", ")))
            }
            Self::ChartFetch { chart } => Some(format!("{} {}", chart.chart, chart.version)),
            Self::ReleaseStart(run) => Some(format!("{} {}", run.wanted.name, run.wanted.version)),
            Self::SchematicRegister { .. }
            | Self::ReleaseAwait(_)
            | Self::ReleaseClean(_)
            | Self::AddonAwait { .. }
            | Self::ImageFetch { .. }
            | Self::ImageDiscard { .. }
            | Self::ImageDelete { .. }
            | Self::MachineStart { .. }
            | Self::MachinePool { .. }
            | Self::MachineReboot { .. }
            | Self::MachineStop { .. }
            | Self::MachineDelete { .. }
            | Self::VolumeDelete { .. }
            | Self::GuestProve { .. }
            | Self::GuestPrepare { .. }
            | Self::GuestConfigure { .. }
            | Self::GuestAwait { .. }
            | Self::GuestReconfigure { .. }
            | Self::EtcdJoin { .. }
            | Self::NodeAwait { .. }
            | Self::NodeChange { .. }
            | Self::NodeDelete { .. }
            | Self::NodeUncordon { .. } => None,
        }
    }
}
