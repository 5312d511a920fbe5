//! What runs inside the machines. This module alone in the engine knows that there is more than one distribution: each answers the same
//! questions in a module of its own.

pub mod etcd;
pub mod rancher;
mod talos;

use std::net::Ipv4Addr;

use mainstay_net::Env;
use mainstay_plan::{
    ApplyMode, ClusterSecrets, DistroSecrets, Guest, GuestConfig, GuestRef, Image, KubernetesPart, MemberRef, MemberRemoval,
    Observed, PinnedHostKey, Pins, Publisher, QuorumCheck, SchematicRef, Versions,
};
use mainstay_spec::{DistroSpec, Spec};
use semver::Version;

use crate::addresses::AddressBook;
use crate::event::StepProgress;
use crate::failure::{Failure, FailureKind};
use crate::jitter::Jitter;
use crate::kube::{KubeAccess, KubeClients};
use crate::lock_file::LockStore;
use crate::wait::WaitStatus;

/// The port on which a machine of this distribution is configured: Talos' API, or SSH.
pub fn guest_port(distro: &DistroSpec) -> u16 {
    match distro {
        DistroSpec::Talos(_) => talos::TALOS_PORT,
        DistroSpec::Rancher(_) => rancher::ssh::SSH_PORT,
    }
}

/// Clients of the guests of one cluster.
pub enum GuestClients {
    Talos(Box<talos::TalosClients>),
    Rancher(Box<rancher::RancherClients>),
}

/// Credentials for the guests of one cluster, minted from its secrets.
pub enum GuestAccess {
    Talos(talos_api::Access),
    Rancher(Box<rancher::RancherAccess>),
}

/// What a step on a guest may use.
#[derive(Clone, Copy)]
pub struct StepContext<'a> {
    pub env: &'a Env,
    pub guests: &'a GuestClients,
    pub kube: &'a KubeClients,
    pub jitter: &'a Jitter,
    pub addresses: &'a AddressBook,
    pub progress: &'a StepProgress,
}

/// What one machine said about itself.
pub struct GuestReport {
    pub guest: Guest,
    /// The members of etcd, where its own etcd lists them.
    pub members: Option<Vec<ListedMember>>,
    /// The boot that it runs in.
    pub boot_id: Option<String>,
}

impl From<Guest> for GuestReport {
    fn from(guest: Guest) -> Self {
        Self {
            guest,
            members: None,
            boot_id: None,
        }
    }
}

/// An etcd member, as a machine lists it.
#[derive(Debug, Clone)]
pub struct ListedMember {
    pub id: u64,
    /// The machine that it belongs to; where none is known, its own name or address.
    pub name: String,
    pub learner: bool,
    /// Members may speak to each other on a network that is not ours.
    pub address: Option<Ipv4Addr>,
}

impl ListedMember {
    pub fn is(&self, member: &MemberRef) -> bool {
        self.id == member.id || self.name == member.name
    }
}

impl GuestClients {
    /// `web_ca`: a further authority to believe when publishers are asked.
    pub fn new(env: &Env, spec: &Spec, access: Option<GuestAccess>, web_ca: Option<String>) -> Result<Self, Failure> {
        match (&spec.distro, access) {
            (DistroSpec::Talos(talos), None) => talos::TalosClients::new(env, talos, None).map(Box::new).map(Self::Talos),
            (DistroSpec::Talos(talos), Some(GuestAccess::Talos(access))) => talos::TalosClients::new(env, talos, Some(access))
                .map(Box::new)
                .map(Self::Talos),
            (DistroSpec::Rancher(rancher), None) => rancher::RancherClients::new(env, rancher, None, web_ca)
                .map(Box::new)
                .map(Self::Rancher),
            (DistroSpec::Rancher(rancher), Some(GuestAccess::Rancher(access))) => {
                rancher::RancherClients::new(env, rancher, Some(*access), web_ca)
                    .map(Box::new)
                    .map(Self::Rancher)
            }
            (DistroSpec::Talos(_), Some(GuestAccess::Rancher(_))) | (DistroSpec::Rancher(_), Some(GuestAccess::Talos(_))) => {
                Err(Failure::refused("the secrets file is of a cluster of another distribution"))
            }
        }
    }
}

/// A machine to read.
#[derive(Clone, Copy)]
pub struct AskedGuest<'a> {
    pub name: &'a str,
    pub address: Ipv4Addr,
    /// What its files are compared with, where the guest itself does not say what it has.
    pub config: Option<&'a GuestConfig>,
}

/// What is known of the exact files of a cluster before a publisher is asked.
#[derive(Clone, Copy)]
pub struct KnownFiles<'a> {
    pub lock: Option<&'a LockStore>,
    pub observed: &'a Observed,
    /// Machines of the cluster are there, so what they were made of is taken again and not the newest.
    pub exists: bool,
}

/// Exact files of these versions: pinned ones, else those of the storages, else what the publisher says.
pub async fn pins(guests: &GuestClients, versions: &Versions, known: KnownFiles<'_>) -> Result<Pins, Failure> {
    match guests {
        GuestClients::Talos(_) => Ok(Pins::default()),
        GuestClients::Rancher(clients) => clients.pins(versions, known).await,
    }
}

/// Writes what publishers said into the lock file. Returns what was added, for people.
pub fn keep_pins(guests: &GuestClients, lock: Option<&LockStore>) -> Result<Option<String>, Failure> {
    match (guests, lock) {
        (GuestClients::Talos(_), _) | (_, None) => Ok(None),
        (GuestClients::Rancher(clients), Some(lock)) => clients.keep_pins(lock),
    }
}

/// Whether an observation needs the wanted configs: a guest that returns its own config is compared by the plan.
pub fn compares_files(guests: &GuestClients) -> bool {
    match guests {
        GuestClients::Talos(_) => false,
        GuestClients::Rancher(_) => true,
    }
}

/// Waits until the guest proves that it is this life of the VM. Returns the host key to record. `None`: it needs none.
pub async fn prove(ctx: StepContext<'_>, guest: &GuestRef, serial: Option<&str>) -> Result<Option<PinnedHostKey>, Failure> {
    match ctx.guests {
        GuestClients::Talos(_) => Ok(None),
        GuestClients::Rancher(clients) => rancher::step::prove(ctx, clients, guest, serial).await.map(Some),
    }
}

/// Writes public files and installs the release. Starts nothing of the cluster.
pub async fn prepare(ctx: StepContext<'_>, guest: &GuestRef, config: &GuestConfig) -> Result<(), Failure> {
    match ctx.guests {
        GuestClients::Talos(_) => Ok(()),
        GuestClients::Rancher(clients) => rancher::step::prepare(ctx, clients, guest, config).await,
    }
}

/// What opens the machines and the Kubernetes API of a cluster, minted offline.
pub fn access(env: &Env, secrets: &ClusterSecrets) -> Result<(GuestAccess, KubeAccess), Failure> {
    match &secrets.distro {
        DistroSecrets::Talos(secrets) => talos::access(env, secrets).map(|(guests, kube)| (GuestAccess::Talos(guests), kube)),
        DistroSecrets::Rancher(secrets) => {
            rancher::step::access(env, secrets).map(|(guests, kube)| (GuestAccess::Rancher(Box::new(guests)), kube))
        }
    }
}

/// Reads one machine. Fails never: a machine that cannot be read is silent, and says why.
pub async fn observe(env: &Env, guests: &GuestClients, addresses: &AddressBook, asked: AskedGuest<'_>) -> GuestReport {
    match guests {
        GuestClients::Talos(clients) => talos::observe(env, clients, addresses, asked.address).await,
        GuestClients::Rancher(clients) => rancher::step::observe(clients, addresses, asked).await,
    }
}

/// Waits for the guest, proves that it is the VM that mainstay made, and gives it its config.
pub async fn configure(ctx: StepContext<'_>, guest: &GuestRef, config: &GuestConfig) -> Result<(), Failure> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::configure(ctx, clients, guest, config).await,
        GuestClients::Rancher(clients) => rancher::step::configure(ctx, clients, guest, config).await,
    }
}

/// Waits until a configured guest answers.
pub async fn await_answer(ctx: StepContext<'_>, guest: &GuestRef) -> Result<(), Failure> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::await_answer(ctx, clients, guest).await,
        GuestClients::Rancher(clients) => rancher::step::await_answer(ctx, clients, guest).await,
    }
}

/// Applies a changed config, and waits for the restart if there is one.
pub async fn reconfigure(
    ctx: StepContext<'_>,
    guest: &GuestRef,
    config: &GuestConfig,
    mode: ApplyMode,
    check: Option<&QuorumCheck>,
) -> Result<(), Failure> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::reconfigure(ctx, clients, guest, config, (mode, check)).await,
        GuestClients::Rancher(clients) => rancher::step::reconfigure(ctx, clients, guest, config, (mode, check)).await,
    }
}

/// Begins etcd on this machine, once in the life of the cluster.
pub async fn bootstrap(
    ctx: StepContext<'_>,
    guest: &GuestRef,
    config: &GuestConfig,
    prove_empty: &[String],
    again: bool,
) -> Result<(), Failure> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::bootstrap(ctx, clients, guest, prove_empty).await,
        GuestClients::Rancher(clients) => rancher::step::bootstrap(ctx, clients, guest, config, (prove_empty, again)).await,
    }
}

/// Waits until the machine is a healthy voter.
pub async fn await_voter(ctx: StepContext<'_>, guest: &GuestRef) -> Result<(), Failure> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::await_voter(ctx, clients, guest).await,
        GuestClients::Rancher(clients) => rancher::step::await_voter(ctx, clients, guest).await,
    }
}

/// Removes a member from etcd, by itself or by another member. A member that is gone is gone.
pub async fn remove_member(ctx: StepContext<'_>, member: &MemberRef, by: &MemberRemoval, ask: &[String]) -> Result<(), Failure> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::remove_member(ctx, clients, member, by, ask).await,
        GuestClients::Rancher(clients) => rancher::step::remove_member(ctx, clients, member, by, ask).await,
    }
}

/// Before a machine goes down that PVE restarts: the address of the API moves to another one, where that takes a step of its own.
pub async fn release_endpoint(ctx: StepContext<'_>, machine: &str) -> Result<(), Failure> {
    match ctx.guests {
        GuestClients::Talos(_) => Ok(()),
        GuestClients::Rancher(clients) => rancher::step::release_endpoint(ctx, clients, machine).await,
    }
}

/// When it is back, it may have that address again.
pub async fn return_endpoint(ctx: StepContext<'_>, machine: &str) -> Result<(), Failure> {
    match ctx.guests {
        GuestClients::Talos(_) => Ok(()),
        GuestClients::Rancher(clients) => rancher::step::return_endpoint(ctx, clients, machine).await,
    }
}

/// Whether a learner of etcd can get its vote after its machine was stopped, so that it counts as a voter already.
pub fn promotes_stopped_learners(guests: &GuestClients) -> bool {
    match guests {
        GuestClients::Talos(_) => false,
        GuestClients::Rancher(_) => true,
    }
}

/// Whether a machine that was restarted is back.
pub async fn is_back(ctx: StepContext<'_>, guest: &GuestRef) -> Result<WaitStatus<()>, Failure> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::is_back(ctx, clients, guest).await,
        GuestClients::Rancher(clients) => rancher::step::is_back(ctx, clients, guest).await,
    }
}

pub async fn has_etcd_data(ctx: StepContext<'_>, machine: &str) -> Result<bool, Failure> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::has_etcd_data(ctx, clients, machine).await,
        GuestClients::Rancher(clients) => rancher::step::has_etcd_data(ctx, clients, machine).await,
    }
}

/// The members of etcd, as this machine lists them.
pub async fn members(ctx: StepContext<'_>, machine: &str) -> Result<Vec<ListedMember>, Failure> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::members(ctx, clients, machine).await,
        GuestClients::Rancher(clients) => rancher::step::members(ctx, clients, machine).await,
    }
}

/// The etcd of the machine at this address says itself that it is healthy.
pub async fn has_healthy_etcd(guests: &GuestClients, address: Ipv4Addr) -> bool {
    match guests {
        GuestClients::Talos(clients) => talos::has_healthy_etcd(clients, address).await,
        GuestClients::Rancher(clients) => rancher::step::has_healthy_etcd(clients, address).await,
    }
}

/// The boot that a machine runs in, or why it does not say so.
pub async fn boot_id(ctx: StepContext<'_>, machine: &str) -> Result<String, String> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::boot_id(ctx, clients, machine).await,
        GuestClients::Rancher(clients) => rancher::step::boot_id(ctx, clients, machine).await,
    }
}

/// Why the machine is not ready, in its own words.
pub async fn not_ready_reason(ctx: StepContext<'_>, machine: &str) -> Option<String> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::not_ready_reason(ctx, clients, machine).await,
        GuestClients::Rancher(clients) => rancher::step::not_ready_reason(ctx, clients, machine).await,
    }
}

/// The system that a machine runs, as far as an upgrade changes it.
#[derive(Debug, Clone)]
pub struct RunningSystem {
    pub release: Version,
    /// What its image is made of, where that has a name.
    pub schematic: Option<String>,
    pub boot_id: String,
    /// It does its work: nothing of the boot is left to do.
    pub is_up: bool,
}

/// What became of the call that installs another system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrittenSystem {
    /// The next boot runs it.
    Armed,
    /// The machine installs it and restarts by itself.
    Restarting,
}

fn no_upgrades<T>() -> Result<T, Failure> {
    Err(Failure::new(
        FailureKind::Bug,
        "this distribution changes its version in another way",
    ))
}

pub async fn running_system(ctx: StepContext<'_>, guest: &GuestRef) -> Result<RunningSystem, Failure> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::upgrade::running_system(ctx, clients, guest).await,
        GuestClients::Rancher(_) => no_upgrades(),
    }
}

/// Loads a system onto the machine, which disturbs nothing.
pub async fn pull_system(ctx: StepContext<'_>, guest: &GuestRef, image: &str) -> Result<(), Failure> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::upgrade::pull(ctx, clients, guest, image).await,
        GuestClients::Rancher(_) => no_upgrades(),
    }
}

/// Installs a system that was loaded before.
pub async fn write_system(ctx: StepContext<'_>, guest: &GuestRef, image: &str) -> Result<WrittenSystem, Failure> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::upgrade::write(ctx, clients, guest, image).await,
        GuestClients::Rancher(_) => no_upgrades(),
    }
}

/// Has another member lead etcd, before this one goes down. Best effort: etcd elects one anyway.
pub async fn hand_over_etcd(ctx: StepContext<'_>, guest: &GuestRef) {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::upgrade::hand_over_etcd(ctx, clients, guest).await,
        GuestClients::Rancher(_) => {}
    }
}

/// Asks the guest to restart, and does not wait.
pub async fn restart(ctx: StepContext<'_>, guest: &GuestRef) -> Result<(), Failure> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::upgrade::restart(ctx, clients, guest).await,
        GuestClients::Rancher(_) => no_upgrades(),
    }
}

/// Loads the images of a version of Kubernetes, which disturbs nothing.
pub async fn pull_kubernetes(
    ctx: StepContext<'_>,
    guest: &GuestRef,
    parts: &[KubernetesPart],
    to: &Version,
) -> Result<(), Failure> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::upgrade::pull_kubernetes(ctx, clients, guest, parts, to).await,
        GuestClients::Rancher(_) => no_upgrades(),
    }
}

/// Writes the version of one part of Kubernetes into the config of the machine.
pub async fn set_kubernetes(ctx: StepContext<'_>, guest: &GuestRef, part: KubernetesPart, to: &Version) -> Result<(), Failure> {
    match ctx.guests {
        GuestClients::Talos(clients) => talos::upgrade::set_kubernetes(ctx, clients, guest, part, to).await,
        GuestClients::Rancher(_) => no_upgrades(),
    }
}

/// Makes a schematic known to the publisher of images.
pub async fn register_schematic(guests: &GuestClients, schematic: &SchematicRef) -> Result<(), Failure> {
    match guests {
        GuestClients::Talos(clients) => talos::register_schematic(clients, schematic).await,
        GuestClients::Rancher(_) => Ok(()),
    }
}

/// The size of an image in bytes, as its publisher says. `None`: PVE checks the image by its checksum instead.
pub async fn image_size(guests: &GuestClients, progress: &StepProgress, image: &Image) -> Result<Option<u64>, Failure> {
    match guests {
        GuestClients::Talos(clients) => talos::image_size(clients, progress, image).await.map(Some),
        GuestClients::Rancher(_) => Ok(None),
    }
}

/// Asks the publisher of images whether it has what the file asks for. `sized`: also how large the image is, which is only known for
/// one that was built before.
pub async fn ask_publisher(guests: &GuestClients, spec: &Spec, versions: &Versions, image: &Image, sized: bool) -> Publisher {
    match guests {
        GuestClients::Talos(clients) => talos::ask_publisher(clients, spec, versions, image, sized).await,
        // Its pins were read from the publisher, with a checksum that PVE compares.
        GuestClients::Rancher(_) => Publisher::NotAsked,
    }
}

/// Whether `status` knows which workloads of the system there are to ask for.
pub fn has_known_workloads(guests: &GuestClients) -> bool {
    match guests {
        GuestClients::Talos(_) => true,
        GuestClients::Rancher(_) => false,
    }
}

/// Asks the publisher of images what it has. Returns a sentence for people.
pub async fn check_image_source(guests: &GuestClients, spec: &Spec, versions: &Versions) -> Result<String, Failure> {
    match guests {
        GuestClients::Talos(clients) => talos::check_image_source(clients, spec, versions).await,
        GuestClients::Rancher(clients) => clients.check_image_source().await,
    }
}
