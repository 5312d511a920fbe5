//! What runs inside the machines. This module alone in the planner knows that there is more than one distribution: each answers the same
//! questions in a module of its own.

mod pins;
mod rancher;
mod talos;

use std::collections::BTreeMap;

use jiff::Timestamp;
use mainstay_spec::{Distro, DistroSpec, Spec};
use rand::CryptoRng;
use semver::Version;

use crate::builder::PlanBuilder;
use crate::context::Context;
use crate::derive_error::DeriveError;
use crate::desired::DesiredMachine;
use crate::desired::{Image, SystemGoal};
use crate::etcd;
use crate::observed::{EtcdMember, Guest, GuestConfig, RunningGuest, Seen};
use crate::plan::HoldReason;
use crate::secrets::{ClusterSecrets, DistroSecrets};
use crate::step::{ApplyMode, FirstUser, KubernetesPart, MemberRemoval};
use crate::versions::{Course, Versions};
use crate::vm::{VmOutcome, VmPass};

pub use pins::{PinnedImage, Pins};
pub use rancher::{ArtifactText, FileText, JoinForm, RancherConfig, RancherFiles};

/// What is known about the guest of a machine after the VM pass.
pub(crate) enum GuestStatus<'a> {
    Running(&'a RunningGuest),
    /// Waits for its config, or will answer soon, and why we think so. `joins_etcd`: it will be a new etcd member.
    NeedsConfig {
        reason: String,
        joins_etcd: bool,
    },
    /// Nothing is done inside it in this plan.
    Held,
}

/// In file order.
pub(crate) type Guests<'a> = Vec<(&'a DesiredMachine, GuestStatus<'a>)>;

/// A running guest has another config than the file gives it.
#[derive(Debug, Clone)]
pub(crate) struct ConfigChange {
    pub mode: ApplyMode,
    /// What is to be applied.
    pub config: GuestConfig,
    /// Where the configs differ. Values stay out: some are secret.
    pub text: String,
}

/// The versions to use: what the file says, else what runs, else the newest known.
pub(crate) fn resolve_versions(spec: &Spec, running: Option<&Versions>) -> Result<Versions, DeriveError> {
    match &spec.distro {
        DistroSpec::Talos(_) => talos::desired::resolve_versions(spec, running).map_err(DeriveError::new),
        DistroSpec::Rancher(rancher) => rancher::resolve_versions(rancher, running),
    }
}

/// The bootable disk of machines of these versions.
pub(crate) fn image(spec: &Spec, versions: &Versions, pins: &Pins) -> Result<Image, DeriveError> {
    match versions.distro {
        Distro::Talos => Ok(talos::desired::image(spec, versions)),
        Distro::Rke2 | Distro::K3s => rancher::image(pins),
    }
}

/// The hops from what runs to what is wanted, or why there is no way.
pub(crate) fn road(from: &Versions, to: &Versions) -> Result<Vec<Versions>, String> {
    match to.distro {
        Distro::Talos => talos::road::road(from, to),
        // What runs says by which version a server of these changes: one machine after another, without a system of its own.
        Distro::Rke2 | Distro::K3s => Ok(Vec::new()),
    }
}

/// Whether mainstay changes the version of a running cluster of this distribution.
pub(crate) fn changes_versions(distro: Distro) -> bool {
    match distro {
        Distro::Talos => true,
        Distro::Rke2 | Distro::K3s => false,
    }
}

/// The system that machines of these versions boot.
pub(crate) fn system(spec: &Spec, versions: &Versions) -> Option<SystemGoal> {
    match versions.distro {
        Distro::Talos => Some(talos::desired::system(spec, versions)),
        Distro::Rke2 | Distro::K3s => None,
    }
}

/// The oldest version of Kubernetes that a part of it has on this machine.
pub(crate) fn oldest_kubernetes(guest: &RunningGuest) -> Option<Version> {
    kubernetes_parts(guest).into_values().min()
}

/// The versions of the parts of Kubernetes that the config of this machine asks for. Empty where one version stands for all.
pub(crate) fn kubernetes_parts(guest: &RunningGuest) -> BTreeMap<KubernetesPart, Version> {
    let config = guest.config.yes();
    config.map(|config| talos::images::parts(config.expose())).unwrap_or_default()
}

/// The config of a Talos machine of this release with another version of one part. `None`: it cannot be read.
pub fn talos_config_with(config: &GuestConfig, release: &Version, part: KubernetesPart, to: &Version) -> Option<GuestConfig> {
    talos::images::with_version(config.expose(), release, part, to)
}

/// Where a Talos machine loads another version of a part from, as its config says.
pub fn talos_image_of(config: &GuestConfig, part: KubernetesPart, to: &Version) -> Option<String> {
    talos::images::image_of(config.expose(), part, to)
}

/// The config of every machine, by name, each for what its machine runs.
pub(crate) fn configs_for(
    spec: &Spec,
    secrets: &ClusterSecrets,
    course: &Course,
    versions: &Versions,
    pins: &Pins,
) -> Result<BTreeMap<String, GuestConfig>, DeriveError> {
    match (&spec.distro, &secrets.distro) {
        (DistroSpec::Talos(_), DistroSecrets::Talos(secrets)) => {
            talos::desired::configs(spec, secrets, &|machine| course.runs(machine).clone())
        }
        _ => configs(spec, secrets, versions, pins),
    }
}

/// Whether a machine of these versions may have been made of this image file. A mark does not tell which extensions it has.
pub(crate) fn may_be_made_of(versions: &Versions, file: &str) -> bool {
    match versions.distro {
        Distro::Talos => file.starts_with(&talos::desired::image_prefix(versions)),
        Distro::Rke2 | Distro::K3s => true,
    }
}

/// The config of every machine, by name.
pub(crate) fn configs(
    spec: &Spec,
    secrets: &ClusterSecrets,
    versions: &Versions,
    pins: &Pins,
) -> Result<BTreeMap<String, GuestConfig>, DeriveError> {
    match (&spec.distro, &secrets.distro) {
        (DistroSpec::Talos(_), DistroSecrets::Talos(secrets)) => talos::desired::configs(spec, secrets, &|_| versions.clone()),
        (DistroSpec::Rancher(rancher), DistroSecrets::Rancher(secrets)) => {
            rancher::configs(spec, rancher, secrets, versions, pins)
        }
        (DistroSpec::Talos(_), DistroSecrets::Rancher(_)) | (DistroSpec::Rancher(_), DistroSecrets::Talos(_)) => {
            Err(DeriveError::new("the secrets file is of a cluster of another distribution")
                .why("a cluster cannot change its distribution"))
        }
    }
}

/// Whether the configs that a new cluster would get can be used, as far as that does not depend on its secrets.
pub(crate) fn check_configs(
    spec: &Spec,
    versions: &Versions,
    now: Timestamp,
    rng: &mut impl CryptoRng,
) -> Result<(), DeriveError> {
    match versions.distro {
        Distro::Talos => talos::desired::check_configs(spec, versions, now, rng),
        // Their files are made of what a publisher says, which is asked for when there are secrets.
        Distro::Rke2 | Distro::K3s => Ok(()),
    }
}

/// The account that mainstay logs in with, where guests have accounts.
pub(crate) fn first_user(secrets: &ClusterSecrets) -> Option<FirstUser> {
    match &secrets.distro {
        DistroSecrets::Talos(_) => None,
        DistroSecrets::Rancher(secrets) => Some(FirstUser {
            name: "mainstay".to_owned(),
            public_key: secrets.ssh().public().to_owned(),
        }),
    }
}

/// Guests that get files and a release before they are configured. That starts nothing, so all machines do it at once.
pub(crate) fn is_prepared(machine: &DesiredMachine) -> bool {
    match machine.versions.distro {
        Distro::Talos => false,
        Distro::Rke2 | Distro::K3s => true,
    }
}

/// Whether configured control planes become members without further steps as soon as etcd is bootstrapped. Otherwise they are configured
/// one by one, each after the one before is a voter.
pub(crate) fn joins_by_itself(machine: &DesiredMachine) -> bool {
    match machine.versions.distro {
        Distro::Talos => true,
        Distro::Rke2 | Distro::K3s => false,
    }
}

/// When a member leaves etcd whose machine goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EtcdExit {
    /// By itself, while it still runs.
    Itself,
    /// This member takes it out while it still runs, and it is stopped at once.
    BeforeStop(String),
    /// This member takes it out when it is stopped, while its VM is there.
    AfterStop(String),
    /// This member takes it out when its VM is gone.
    AfterDeletion(String),
}

impl EtcdExit {
    pub fn removal(&self) -> MemberRemoval {
        match self {
            Self::Itself => MemberRemoval::Leave,
            Self::BeforeStop(peer) | Self::AfterStop(peer) | Self::AfterDeletion(peer) => MemberRemoval::RemovedBy(peer.clone()),
        }
    }
}

/// How this member leaves etcd, of which `rest` stays.
pub(crate) fn etcd_exit(ctx: Context<'_>, member: &EtcdMember, rest: &[EtcdMember]) -> Result<EtcdExit, String> {
    match ctx.cluster.versions.distro {
        Distro::Talos => talos::etcd_exit(ctx, member, rest),
        Distro::Rke2 | Distro::K3s => rancher::etcd_exit(ctx, member, rest),
    }
}

/// Whether etcd data that never were ready may be deleted, so that it is recorded when they are.
pub(crate) fn records_founding(machine: &DesiredMachine) -> bool {
    match machine.versions.distro {
        Distro::Talos => false,
        Distro::Rke2 | Distro::K3s => true,
    }
}

/// A new machine under the name of an earlier one is refused until the earlier one's member and Node are gone.
pub(crate) fn needs_free_name(machine: &DesiredMachine) -> bool {
    match machine.versions.distro {
        Distro::Talos => false,
        Distro::Rke2 | Distro::K3s => true,
    }
}

/// What answers inside the machine, in messages.
fn channel(machine: &DesiredMachine) -> &'static str {
    match machine.versions.distro {
        Distro::Talos => "its Talos API",
        Distro::Rke2 | Distro::K3s => "it",
    }
}

/// How the config of a running guest must change, if it must.
fn config_change(machine: &DesiredMachine, guest: &RunningGuest) -> Result<Option<ConfigChange>, HoldReason> {
    match machine.versions.distro {
        Distro::Talos => talos::config_change(machine, guest),
        Distro::Rke2 | Distro::K3s => rancher::config_change(machine, guest),
    }
}

/// What is inside every machine. Adds holds only.
pub(crate) fn inspect<'a>(ctx: Context<'a>, vms: &VmPass<'a>, plan: &mut PlanBuilder) -> Guests<'a> {
    let status = |machine: &'a DesiredMachine| {
        let status = status(ctx, machine, vms.outcomes[machine.name()], plan);
        (machine, require_control_plane(ctx, machine, status, vms, plan))
    };
    ctx.cluster.machines.iter().map(status).collect()
}

fn status<'a>(ctx: Context<'a>, machine: &DesiredMachine, vm: VmOutcome, plan: &mut PlanBuilder) -> GuestStatus<'a> {
    match vm {
        VmOutcome::Held => GuestStatus::Held,
        // It does not run yet, so there is nothing to read.
        VmOutcome::Running {
            after: Some(_),
            new_disk,
        } => GuestStatus::NeedsConfig {
            reason: if new_disk { "it is new" } else { "it was stopped" }.to_owned(),
            joins_etcd: new_disk,
        },
        VmOutcome::Running { after: None, .. } => match inside(ctx, machine) {
            Ok(status) => status,
            Err((what, reason)) => {
                plan.hold(machine.subject(), what, reason);
                GuestStatus::Held
            }
        },
    }
}

/// A worker gets the certificate of its API from a control plane. While there is none, waiting for the worker would be in vain.
fn require_control_plane<'a>(
    ctx: Context<'a>,
    machine: &DesiredMachine,
    status: GuestStatus<'a>,
    vms: &VmPass<'a>,
    plan: &mut PlanBuilder,
) -> GuestStatus<'a> {
    let will_run = |machine: &DesiredMachine| matches!(vms.outcomes[machine.name()], VmOutcome::Running { .. });
    let waits = matches!(status, GuestStatus::NeedsConfig { .. }) && !machine.is_control_plane();
    if !waits || ctx.cluster.control_planes().any(will_run) {
        return status;
    }
    let reason = HoldReason::transient("waits for a control plane, which issues the worker's certificate");
    plan.hold(machine.subject(), "configure", reason);
    GuestStatus::Held
}

/// Which running guests need another config. Adds holds only.
pub(crate) fn compare<'a>(ctx: Context<'a>, guests: &Guests<'a>, plan: &mut PlanBuilder) -> BTreeMap<&'a str, ConfigChange> {
    let mut changes = BTreeMap::new();
    // Without secrets there are no configs to compare with: the plan is for reading only.
    if ctx.desired.cluster_id.is_none() {
        return changes;
    }
    for (machine, status) in guests {
        let GuestStatus::Running(guest) = status else { continue };
        match config_change(machine, guest) {
            Ok(change) => changes.extend(change.map(|change| (machine.name(), change))),
            Err(reason) => plan.hold(machine.subject(), "configure", reason),
        }
    }
    changes
}

/// What is known about the guest of a VM that runs. `Err`: what is held, and why.
fn inside<'a>(ctx: Context<'a>, machine: &DesiredMachine) -> Result<GuestStatus<'a>, (&'static str, HoldReason)> {
    let (name, address) = (machine.name(), machine.address());
    let (ours, channel) = (ctx.uuid(name), channel(machine));
    let needs_config = |reason: String, joins_etcd: bool| Ok(GuestStatus::NeedsConfig { reason, joins_etcd });
    let held = match ctx.guest(name) {
        Some(Guest::Running(node)) if node.uuid == ours && etcd::was_removed(ctx, name) => {
            let vmid = ctx.owned.ours.get(name).map_or(machine.machine.vmid, |vm| vm.vm.vmid);
            let reason = format!(
                "its etcd member was removed and etcd rejects its old data; to recreate the machine: qm stop {vmid} && qm destroy {vmid} --purge"
            );
            return Err(("join", HoldReason::transient(reason)));
        }
        Some(Guest::Running(node)) if node.uuid == ours => return Ok(GuestStatus::Running(node)),
        Some(Guest::AwaitingConfig {
            uuid: Seen::Yes(uuid), ..
        }) if *uuid == ours => return needs_config("it waits for its config".to_owned(), true),
        // The step waits for its API; if it is configured already, nothing is sent.
        Some(Guest::Silent(why)) if !ctx.is_ready(name) => {
            return needs_config(format!("{channel} does not answer: {why}"), false);
        }
        None if !ctx.is_ready(name) => return needs_config(format!("{channel} was not asked"), false),
        Some(Guest::Silent(why)) => HoldReason::transient(format!("its node is Ready but {channel} does not answer: {why}")),
        None => format!("{channel} was not asked").into(),
        Some(Guest::Running(_)) => format!("another machine of this cluster answers on {address}").into(),
        Some(Guest::AwaitingConfig { .. }) => {
            format!("cannot read the SMBIOS UUID of the machine on {address}; no config is sent").into()
        }
        Some(Guest::Foreign(why)) => format!("the machine on {address} does not accept this cluster's credentials: {why}").into(),
    };
    Err(("configure", held))
}
