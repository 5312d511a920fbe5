//! RKE2 and k3s: versions, image, the files of every machine, and how they change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use mainstay_spec::{Cni, Distro, Machine, RancherSpec, Role, Spec};
use rancher_config::config::{InputError, join_url};
use rancher_config::guest::{DataDisk, GuestFile, GuestInput, authority_files, config_file, guest_files};
use rancher_config::manifests::{KubeVip, ManifestFile};
use rancher_config::{ClusterInput, MachineInput, Place, Registries, ReleaseVersion, Secrets, VersionRequest, stable};
use semver::Version;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{ConfigChange, EtcdExit, Pins};
use crate::context::Context;
use crate::derive_error::DeriveError;
use crate::desired::{DesiredMachine, Image, ImageChecksum};
use crate::etcd;
use crate::observed::{EtcdMember, GuestConfig, RunningGuest, Seen};
use crate::plan::HoldReason;
use crate::step::ApplyMode;
use crate::versions::Versions;

/// Differences that are named; the rest is counted.
const NAMED: usize = 3;

/// Everything that a machine gets, written into a [`GuestConfig`]. It holds secrets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RancherConfig {
    pub is_server: bool,
    /// `v1.35.7+rke2r1`.
    pub release: String,
    /// What the machine has once it is a member.
    pub files: Vec<FileText>,
    /// What it has instead while it founds the cluster. Empty for machines that never do.
    pub founder_files: Vec<FileText>,
    /// The certificate authorities, which only the founder gets.
    pub authority: Vec<FileText>,
    pub artifacts: Vec<ArtifactText>,
    /// Ways to join, in the order of trying. Empty: there is no other server.
    pub joins: Vec<JoinForm>,
    /// `server:` of configs that need no change.
    pub servers: Vec<String>,
    pub hostname: String,
    pub address: IpAddr,
    pub mac: String,
}

/// A server to join through, and the config of a machine that does.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinForm {
    pub through: IpAddr,
    pub config: FileText,
}

/// A file of a guest.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileText {
    pub path: String,
    pub mode: u32,
    pub secret: bool,
    pub content: String,
}

/// A file of a release, with its pinned checksum.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactText {
    pub is_program: bool,
    pub file: String,
    pub sha256: String,
    /// `None`: mainstay pushes it.
    pub url: Option<String>,
}

/// What an observation says about the files of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RancherFiles {
    /// Paths of files that are not as they should be, and are read at a start of the unit only.
    pub outdated: Vec<String>,
    /// Paths of files that are not as they should be, and take effect as soon as they are.
    pub live: Vec<String>,
    /// Files were changed by a run that ended before it restarted the unit.
    pub restart_pending: bool,
    /// A run that ended in the middle of a turn left the label that keeps the virtual address away.
    pub vip_off: bool,
}

impl RancherConfig {
    /// `None` for a text of another distribution.
    pub fn parse(config: &GuestConfig) -> Option<Self> {
        serde_json::from_str(config.expose()).ok()
    }

    fn into_config(self) -> GuestConfig {
        GuestConfig::new(serde_json::to_string(&self).unwrap_or_default())
    }
}

impl FileText {
    pub fn guest_file(&self) -> GuestFile {
        GuestFile {
            path: self.path.clone(),
            mode: self.mode,
            content: Zeroizing::new(self.content.clone()),
            secret: self.secret,
        }
    }

    fn of(file: &GuestFile) -> Self {
        Self {
            path: file.path.clone(),
            mode: file.mode,
            secret: file.secret,
            content: file.content.to_string(),
        }
    }
}

impl RancherFiles {
    pub fn config(&self) -> GuestConfig {
        GuestConfig::new(serde_json::to_string(self).unwrap_or_default())
    }
}

/// The versions to use: what the file says, else what runs, else what the distribution recommends.
pub(super) fn resolve_versions(rancher: &RancherSpec, running: Option<&Versions>) -> Result<Versions, DeriveError> {
    let distro = rancher.distro;
    let release = match (rancher.version, running) {
        (Some(VersionRequest::Exact(exact)), _) => exact,
        // A channel never upgrades by itself: what runs stays.
        (_, Some(running)) => release_of(distro, &running.release)?,
        (Some(request), None) => request.resolve(distro).map_err(DeriveError::new)?,
        (None, None) => stable(distro),
    };
    let text = release.to_string();
    Ok(Versions {
        distro: match distro {
            rancher_config::Distro::Rke2 => Distro::Rke2,
            rancher_config::Distro::K3s => Distro::K3s,
        },
        release: text.trim_start_matches('v').parse().map_err(DeriveError::new)?,
        kubernetes: release.kubernetes(),
    })
}

fn release_of(distro: rancher_config::Distro, release: &Version) -> Result<ReleaseVersion, DeriveError> {
    ReleaseVersion::parse(distro, &format!("v{release}")).map_err(DeriveError::new)
}

/// The cloud image.
pub(super) fn image(pins: &Pins) -> Result<Image, DeriveError> {
    let pinned = pins.image.as_ref();
    let pinned = pinned.ok_or_else(|| DeriveError::new("the cloud image is not known yet: its publisher was not asked"))?;
    Ok(Image {
        url: pinned.url.clone(),
        file: pinned.file.clone(),
        schematic: None,
        size: None,
        checksum: Some(ImageChecksum {
            algorithm: pinned.checksum.algorithm(),
            hex: pinned.checksum.hex().to_owned(),
        }),
    })
}

/// The files of every machine, by name.
pub(super) fn configs(
    spec: &Spec,
    rancher: &RancherSpec,
    secrets: &Secrets,
    versions: &Versions,
    pins: &Pins,
) -> Result<BTreeMap<String, GuestConfig>, DeriveError> {
    let cluster = cluster_input(spec, rancher);
    let version = release_of(rancher.distro, &versions.release)?;
    let mut configs = BTreeMap::new();
    for machine in &spec.machines {
        let files = |place: Place| machine_files(spec, &cluster, machine, place, secrets, version, pins);
        let joins = join_forms(spec, rancher, &cluster, machine, secrets)?;
        let founds = machine.role == Role::ControlPlane;
        let founder_files = if founds { files(Place::Founder)? } else { Vec::new() };
        let files = match joins.first() {
            Some(join) => files(place(rancher, machine, join.through))?,
            None => founder_files.clone(),
        };
        let authority: Vec<GuestFile> = if founds { authority_files(secrets) } else { Vec::new() };
        let config = RancherConfig {
            is_server: founds,
            release: version.to_string(),
            files,
            founder_files,
            authority: authority.iter().map(FileText::of).collect(),
            artifacts: pins.artifacts.iter().map(artifact_text).collect(),
            servers: joins.iter().map(|join| server_text(rancher, join.through)).collect(),
            joins,
            hostname: machine.name.to_string(),
            address: machine.address.into(),
            mac: machine.mac.to_string(),
        };
        configs.insert(machine.name.to_string(), config.into_config());
    }
    Ok(configs)
}

/// A machine joins through another control plane of the file, or else through the VIP: the first of them that is ready.
fn join_forms(
    spec: &Spec,
    rancher: &RancherSpec,
    cluster: &ClusterInput,
    machine: &Machine,
    secrets: &Secrets,
) -> Result<Vec<JoinForm>, DeriveError> {
    let others = spec.control_planes().filter(|other| other.name != machine.name);
    let mut through: Vec<IpAddr> = others.map(|other| other.address.into()).collect();
    if through.is_empty() {
        return Ok(Vec::new());
    }
    let vip = spec.network.vip.map(IpAddr::from);
    through.extend(vip);
    let form = |through: IpAddr| {
        let input = machine_input(machine, place(rancher, machine, through));
        let config = config_file(cluster, &input, secrets, vip).map_err(|error| unconfigurable(machine, error))?;
        Ok(JoinForm {
            through,
            config: FileText::of(&config),
        })
    };
    through.into_iter().map(form).collect()
}

/// As a probe reads it from a config.
fn server_text(rancher: &RancherSpec, through: IpAddr) -> String {
    join_url(rancher.distro, through).as_str().trim_end_matches('/').to_owned()
}

fn place(rancher: &RancherSpec, machine: &Machine, through: IpAddr) -> Place {
    let server = join_url(rancher.distro, through);
    match machine.role {
        Role::ControlPlane => Place::Server { server },
        Role::Worker => Place::Agent { server },
    }
}

fn cluster_input(spec: &Spec, rancher: &RancherSpec) -> ClusterInput {
    let network = &spec.network;
    let vip = network.vip.map(|vip| vip.to_string());
    // A server adds its own address by itself. The addresses of the others would restart all of them whenever one comes or goes.
    let sans: BTreeSet<String> = vip.into_iter().chain([spec.endpoint.host.clone()]).collect();
    ClusterInput {
        distro: rancher.distro,
        cni: match spec.cni {
            Cni::Flannel => rancher_config::Cni::Flannel,
            Cni::Canal => rancher_config::Cni::Canal,
            Cni::Cilium => rancher_config::Cni::Cilium,
            Cni::None => rancher_config::Cni::None,
        },
        sans,
        dns: network.dns.clone(),
        search: network.search.clone(),
        disable: BTreeSet::new(),
        external_cloud_provider: false,
        system_registry: None,
        extra: rancher.config.clone(),
    }
}

fn machine_files(
    spec: &Spec,
    cluster: &ClusterInput,
    machine: &Machine,
    place: Place,
    secrets: &Secrets,
    version: ReleaseVersion,
    pins: &Pins,
) -> Result<Vec<FileText>, DeriveError> {
    let vip = spec.network.vip.map(IpAddr::from);
    let manifests: Vec<ManifestFile> = vip
        .map(|address| KubeVip {
            distro: cluster.distro,
            address,
            interface: None,
            image: None,
        })
        .map(|vip| ManifestFile::new("kube-vip", &vip.objects()))
        .into_iter()
        .collect();
    let disk = |disk: &mainstay_spec::ExtraDisk| DataDisk {
        name: disk.name.clone(),
        serial: disk.name.clone(),
        mount: format!("/var/mnt/{}", disk.name),
        new: true,
    };
    let disks: Vec<DataDisk> = machine.shape.disks.iter().map(disk).collect();
    let input = machine_input(machine, place);
    let files = guest_files(&GuestInput {
        cluster,
        machine: &input,
        secrets,
        vip,
        registries: &Registries::default(),
        manifests: &manifests,
        version,
        artifacts: &pins.artifacts,
        ordinal: machine.ordinal,
        disks: &disks,
        longhorn: false,
    });
    let files = files.map_err(|error| unconfigurable(machine, error))?;
    Ok(files.iter().map(FileText::of).collect())
}

fn machine_input(machine: &Machine, place: Place) -> MachineInput {
    let taint = |taint: &mainstay_spec::Taint| format!("{}={}:{}", taint.key, taint.value, taint.effect.as_str());
    MachineInput {
        name: machine.name.to_string(),
        address: machine.address.into(),
        place,
        labels: machine.labels.clone(),
        taints: machine.taints.iter().map(taint).collect(),
        interface: None,
    }
}

fn unconfigurable(machine: &Machine, error: InputError) -> DeriveError {
    DeriveError::new(format!("{} cannot be configured", machine.name)).why(error)
}

fn artifact_text(artifact: &rancher_config::guest::PinnedArtifact) -> ArtifactText {
    use rancher_config::guest::{ArtifactKind, ArtifactOrigin};
    ArtifactText {
        is_program: artifact.kind == ArtifactKind::Program,
        file: artifact.file.clone(),
        sha256: artifact.sha256.hex().to_owned(),
        url: match &artifact.origin {
            ArtifactOrigin::Download(url) => Some(url.to_string()),
            ArtifactOrigin::Pushed => None,
        },
    }
}

/// How the files of a running machine must change, if they must.
pub(super) fn config_change(machine: &DesiredMachine, guest: &RunningGuest) -> Result<Option<ConfigChange>, HoldReason> {
    let current = match &guest.config {
        Seen::Yes(config) => config,
        Seen::No => return Ok(None),
        Seen::Unknown(why) => return Err(HoldReason::transient(format!("its files could not be read: {why}"))),
    };
    let Ok(files) = serde_json::from_str::<RancherFiles>(current.expose()) else {
        return Err("its files cannot be compared".to_owned().into());
    };
    let differing: Vec<&str> = files.outdated.iter().chain(&files.live).map(String::as_str).collect();
    let is_same = differing.is_empty() && !files.vip_off;
    let mode = match (files.outdated.is_empty() && !files.restart_pending, is_same) {
        (true, true) => return Ok(None),
        (true, false) => ApplyMode::Live,
        // The unit restarts, and its etcd member with it.
        (false, _) => ApplyMode::Reboot,
    };
    let more = differing.len().saturating_sub(NAMED);
    let named = differing.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    let text = match (differing.is_empty(), more) {
        (true, _) if files.restart_pending => "its files were changed, and its unit was not restarted since".to_owned(),
        (true, _) => "a label of an earlier run keeps the virtual address away".to_owned(),
        (false, 0) => format!("files differ: {named}"),
        (false, _) => format!("files differ: {named} and {more} more"),
    };
    let config = machine.config.clone();
    Ok(Some(ConfigChange { config, mode, text }))
}

/// A server that was taken out comes back by itself as a new member as long as it runs, so it is stopped first. Where the rest is one
/// voter that would cost the majority: then it is taken out first and stopped before its process has ended and begun again. A learner
/// counts as a voter, because it may be promoted after it was stopped.
///
/// Members are taken out through their Nodes. One without a Node cannot be.
pub(super) fn etcd_exit(ctx: Context<'_>, member: &EtcdMember, rest: &[EtcdMember]) -> Result<EtcdExit, String> {
    let peer = etcd::healthy_peer(ctx, rest)?;
    let name = &member.name;
    if ctx.node(name).is_none() {
        return Err(format!(
            "its etcd member is removed through its Node, and there is no Node {name}; if it stays away: etcdctl member remove"
        ));
    }
    let others = rest.iter().filter(|other| other.votes()).count();
    if member.votes() && others >= 2 {
        Ok(EtcdExit::AfterStop(peer))
    } else {
        Ok(EtcdExit::BeforeStop(peer))
    }
}
