//! The steps of the plan on RKE2 and k3s guests.

use std::net::{IpAddr, Ipv4Addr};

use mainstay_net::Env;
use mainstay_plan::guest::{ArtifactText, FileText, RancherConfig};
use mainstay_plan::{
    ApplyMode, EtcdState, Guest, GuestConfig, GuestRef, MemberRef, MemberRemoval, PinnedHostKey, QuorumCheck, RunningGuest, Seen,
    mint_time,
};
use mainstay_spec::Role;
use rancher_config::guest::{ArtifactKind, ArtifactOrigin, GuestFile, PinnedArtifact};
use rancher_config::{Checksum, ReleaseVersion, Secrets};
use semver::Version;
use uuid::Uuid;

use super::clients::RancherClients;
use super::session::OpenGuest;
use super::supervisor::SupervisorMember;
use super::{
    ChangedFiles, ExpectedFacts, Founding, Join, MachineAccess, ObservedMachine, Preparation, RancherAccess, RancherGuest,
    RunningFacts, ServerRemoval, found, join_agent, join_server, probe, recover_founder,
};
use crate::addresses::AddressBook;
use crate::failure::{Failure, FailureKind};
use crate::guest::{AskedGuest, GuestReport, ListedMember, StepContext, etcd};
use crate::kube::KubeAccess;
use crate::wait::WaitStatus;

/// The administrator's certificates for supervisors and for Kubernetes, and the SSH key.
pub fn access(env: &Env, secrets: &Secrets) -> Result<(RancherAccess, KubeAccess), Failure> {
    let failed = |why: String| Failure::new(FailureKind::Failed, "cannot issue client certificates from the secrets").why(why);
    let at = mint_time(env.wall.now()).map_err(|error| failed(error.to_string()))?;
    let access = RancherAccess::new(env, secrets, at).map_err(|error| failed(error.to_string()))?;
    let kube = KubeAccess {
        ca: secrets.server_ca().to_owned(),
        identity: access.kubernetes_identity(),
    };
    Ok((access, kube))
}

/// Waits for the first login and the proof. The key is recorded before anything secret is sent.
pub async fn prove(
    ctx: StepContext<'_>,
    clients: &RancherClients,
    guest: &GuestRef,
    serial: Option<&str>,
) -> Result<PinnedHostKey, Failure> {
    let Some(serial) = serial else {
        let what = format!(
            "the VM of {} has no SMBIOS serial, so its guest cannot be proved",
            guest.machine
        );
        return Err(Failure::refused(what).help("remove the machine from cluster.yaml, run `mainstay up`, and add it again"));
    };
    let recorded = ctx
        .addresses
        .identity(&guest.machine)
        .filter(|known| known.serial.as_deref() == Some(serial));
    let pin = recorded
        .and_then(|known| known.host_key.as_ref())
        .and_then(|key| key.parse().ok());
    let machine = MachineAccess {
        name: guest.machine.clone(),
        address: ctx.addresses.address(&guest.machine)?.into(),
        uuid: guest.uuid.to_string(),
        serial: serial.to_owned(),
        pin,
        started: None,
    };
    let key = clients.access()?.prove(&machine, ctx.progress).await?;
    clients.remember(MachineAccess {
        pin: Some(key.clone()),
        ..machine
    });
    Ok(PinnedHostKey {
        serial: serial.to_owned(),
        key: key.to_string(),
    })
}

/// A machine whose host key is recorded: by this run, or in its mark.
fn machine(addresses: &AddressBook, clients: &RancherClients, name: &str) -> Option<MachineAccess> {
    clients.known(name).or_else(|| {
        let identity = addresses.identity(name)?;
        Some(MachineAccess {
            name: name.to_owned(),
            address: addresses.get(name)?.into(),
            uuid: identity.uuid.to_string(),
            serial: identity.serial.clone()?,
            pin: identity.host_key.as_ref().and_then(|key| key.parse().ok()),
            started: None,
        })
    })
}

/// Proves the machine again before each step: since the plan was made its VMID or address may have another owner.
async fn open(ctx: StepContext<'_>, clients: &RancherClients, name: &str) -> Result<OpenGuest, Failure> {
    let known = machine(ctx.addresses, clients, name);
    let known =
        known.ok_or_else(|| Failure::stale_plan(format!("the VM of {name} was not read, so its guest cannot be proved")))?;
    clients.access()?.open(&known, ctx.progress).await
}

/// A config of another distribution here means that the plan mixed two: an error of mainstay, never of the user.
fn parse(guest: &GuestRef, config: &GuestConfig) -> Result<RancherConfig, Failure> {
    let what = || {
        Failure::new(
            FailureKind::Bug,
            format!("the config of {} is not one of its distribution", guest.machine),
        )
    };
    RancherConfig::parse(config).ok_or_else(what)
}

fn files(texts: &[FileText]) -> Vec<GuestFile> {
    texts.iter().map(FileText::guest_file).collect()
}

/// What the guest must show about itself before files are written. A wrong address or host name would go into certificates.
fn expected(config: &RancherConfig) -> ExpectedFacts {
    ExpectedFacts {
        hostname: config.hostname.clone(),
        address: config.address,
        mac: config.mac.clone(),
    }
}

fn role(config: &RancherConfig) -> rancher_config::Role {
    if config.is_server {
        rancher_config::Role::Server
    } else {
        rancher_config::Role::Agent
    }
}

/// The checksum comes from the plan, not from the mirror, so a mirror cannot choose what is installed.
fn artifact(text: &ArtifactText) -> Result<PinnedArtifact, Failure> {
    let bug = |why: String| Failure::new(FailureKind::Bug, "an artifact in the plan cannot be read").why(why);
    let url = text.url.as_ref().map(|url| url.parse()).transpose();
    Ok(PinnedArtifact {
        kind: if text.is_program {
            ArtifactKind::Program
        } else {
            ArtifactKind::Images
        },
        file: text.file.clone(),
        sha256: Checksum::parse(&text.sha256).map_err(|error| bug(error.to_string()))?,
        origin: url
            .map_err(|error: url::ParseError| bug(error.to_string()))?
            .map_or(ArtifactOrigin::Pushed, ArtifactOrigin::Download),
    })
}

/// Everything that can be done before the cluster must be there.
pub async fn prepare(
    ctx: StepContext<'_>,
    clients: &RancherClients,
    guest: &GuestRef,
    config: &GuestConfig,
) -> Result<(), Failure> {
    let config = parse(guest, config)?;
    let opened = open(ctx, clients, &guest.machine).await?;
    let version = ReleaseVersion::parse(clients.access()?.distro(), &config.release)
        .map_err(|error| Failure::new(FailureKind::Bug, error.to_string()))?;
    let artifacts: Vec<PinnedArtifact> = config.artifacts.iter().map(artifact).collect::<Result<_, _>>()?;
    let preparation = Preparation {
        role: role(&config),
        files: &files(&config.files),
        version,
        artifacts: &artifacts,
        pushed: None,
        expected: &expected(&config),
    };
    super::prepare(&opened, &preparation, ctx.progress).await.map(drop)
}

/// Starts the first server, after every other control plane proved that it has no datastore.
pub async fn bootstrap(
    ctx: StepContext<'_>,
    clients: &RancherClients,
    guest: &GuestRef,
    config: &GuestConfig,
    (prove_empty, again): (&[String], bool),
) -> Result<(), Failure> {
    let config = parse(guest, config)?;
    let opened = open(ctx, clients, &guest.machine).await?;
    let mut others = Vec::new();
    for machine in prove_empty.iter().filter(|machine| **machine != guest.machine) {
        others.push(open(ctx, clients, machine).await?);
    }
    let founding = Founding {
        files: &files(&config.founder_files),
        authority: &files(&config.authority),
        intent: &guest.uuid.to_string(),
        expected: &expected(&config),
        others: &others,
    };
    if again {
        recover_founder(&opened, &founding, ctx.progress).await?;
    }
    found(&opened, &founding, ctx.progress).await?;
    begin_packages(&opened, ctx).await;
    Ok(())
}

/// Packages are a convenience: that they cannot be installed now is no failure of the step, and is shown by the guest's own unit.
async fn begin_packages(opened: &OpenGuest, ctx: StepContext<'_>) {
    if let Err(failure) = super::start_packages(opened, ctx.progress).await {
        ctx.progress
            .note(format!("packages of {} are not installed: {failure}", opened.name()));
    }
}

/// Starts a server or agent that joins.
pub async fn configure(
    ctx: StepContext<'_>,
    clients: &RancherClients,
    guest: &GuestRef,
    config: &GuestConfig,
) -> Result<(), Failure> {
    let config = parse(guest, config)?;
    let opened = open(ctx, clients, &guest.machine).await?;
    let access = clients.access()?;
    let join = super::choose_join(access, &guest.machine, &config.joins).await?;
    let mut files = files(&config.files);
    files.retain(|file| file.path != join.form.config.path);
    files.push(join.form.config.guest_file());
    let join = Join {
        files: &files,
        expected: &expected(&config),
        through: join.form.through,
        servers: &join.servers,
    };
    if config.is_server {
        join_server(&opened, &join, ctx.progress).await?;
    } else {
        join_agent(&opened, &join, ctx.progress).await?;
    }
    begin_packages(&opened, ctx).await;
    Ok(())
}

/// The quorum is read again right before the unit restarts, because the plan may be minutes old.
pub async fn reconfigure(
    ctx: StepContext<'_>,
    clients: &RancherClients,
    guest: &GuestRef,
    config: &GuestConfig,
    (mode, check): (ApplyMode, Option<&QuorumCheck>),
) -> Result<(), Failure> {
    let config = parse(guest, config)?;
    let opened = open(ctx, clients, &guest.machine).await?;
    etcd::check_restart(ctx, guest, check).await?;
    let files = files(&config.files);
    let change = ChangedFiles {
        role: role(&config),
        files: &files,
        servers: &config.servers,
        mode,
    };
    if config.is_server && mode == ApplyMode::Reboot {
        super::vip::release_vip(&opened, ctx.progress).await?;
    }
    super::reconfigure(&opened, &change, ctx.progress).await?;
    if config.is_server && mode != ApplyMode::Staged {
        super::vip::return_vip(&opened, ctx.progress).await?;
    }
    Ok(())
}

/// Before PVE restarts the machine. A machine that does not answer holds nothing.
pub async fn release_endpoint(ctx: StepContext<'_>, clients: &RancherClients, machine: &str) -> Result<(), Failure> {
    match (is_server(ctx, machine), open(ctx, clients, machine).await) {
        (true, Ok(opened)) => super::vip::release_vip(&opened, ctx.progress).await,
        (_, Ok(_) | Err(_)) => Ok(()),
    }
}

/// After PVE restarted the machine.
pub async fn return_endpoint(ctx: StepContext<'_>, clients: &RancherClients, machine: &str) -> Result<(), Failure> {
    if !is_server(ctx, machine) {
        return Ok(());
    }
    let opened = open(ctx, clients, machine).await?;
    super::vip::return_vip(&opened, ctx.progress).await
}

fn is_server(ctx: StepContext<'_>, machine: &str) -> bool {
    let role = ctx.addresses.identity(machine).map(|identity| identity.role);
    role == Some(Role::ControlPlane)
}

pub async fn await_answer(ctx: StepContext<'_>, clients: &RancherClients, guest: &GuestRef) -> Result<(), Failure> {
    open(ctx, clients, &guest.machine).await.map(drop)
}

/// Joining a server waits for its vote, so this only asks once more.
pub async fn await_voter(ctx: StepContext<'_>, clients: &RancherClients, guest: &GuestRef) -> Result<(), Failure> {
    let name = &guest.machine;
    let what = format!("{name} did not join etcd");
    let limit = std::time::Duration::from_secs(600);
    crate::wait::until(ctx.jitter, ctx.progress, &what, limit, async || {
        Ok(match members(ctx, clients, name).await {
            Ok(members) => match members.iter().find(|member| member.name == *name) {
                Some(member) if !member.learner => WaitStatus::Done(()),
                Some(_) => WaitStatus::Waiting("a learner of etcd, not a voter yet".into()),
                None => WaitStatus::Waiting("etcd does not list it yet".into()),
            },
            Err(failure) => WaitStatus::Waiting(failure.why.unwrap_or(failure.what)),
        })
    })
    .await
}

/// A member is removed through the annotation of its Node: the machine itself is not asked.
pub async fn remove_member(
    ctx: StepContext<'_>,
    clients: &RancherClients,
    member: &MemberRef,
    _by: &MemberRemoval,
    ask: &[String],
) -> Result<(), Failure> {
    let others: Vec<IpAddr> = ask
        .iter()
        .filter_map(|machine| ctx.addresses.get(machine))
        .map(IpAddr::from)
        .collect();
    let is_it = |listed: &SupervisorMember| member_id(listed) == member.id;
    let removal = ServerRemoval {
        node: &member.name,
        is_it: &is_it,
        others: &others,
    };
    super::remove_member(clients.access()?, &removal, ctx.progress).await
}

/// A login that reads the boot id is enough: the unit of the release is judged by the wait for its node.
pub async fn is_back(ctx: StepContext<'_>, clients: &RancherClients, guest: &GuestRef) -> Result<WaitStatus<()>, Failure> {
    Ok(match boot_id(ctx, clients, &guest.machine).await {
        Ok(_) => WaitStatus::Done(()),
        Err(why) => WaitStatus::Waiting(why),
    })
}

/// Asks the machine itself over SSH: a server that does not run yet has no supervisor that could answer.
pub async fn has_etcd_data(ctx: StepContext<'_>, clients: &RancherClients, machine: &str) -> Result<bool, Failure> {
    let opened = open(ctx, clients, machine).await?;
    let probe = probe(&opened, rancher_config::Role::Server, &[]).await?;
    probe.has_datastore().ok_or_else(|| {
        Failure::new(
            FailureKind::Failed,
            format!("{machine} cannot say whether it has a datastore"),
        )
    })
}

/// As this server's own etcd lists them. A server without quorum fails here, and another one is asked.
pub async fn members(ctx: StepContext<'_>, clients: &RancherClients, machine: &str) -> Result<Vec<ListedMember>, Failure> {
    let address = ctx.addresses.address(machine)?;
    let members = clients
        .access()?
        .supervisor(address.into())?
        .members()
        .await
        .map_err(|error| Failure::stale_plan(format!("{machine} does not list the members of etcd")).why(error.to_string()))?;
    Ok(members.iter().map(|member| listed(member, ctx.addresses)).collect())
}

/// The supervisor tells no ids. A member's name is new at every join, so a hash of it identifies the member as well.
fn listed(member: &SupervisorMember, addresses: &AddressBook) -> ListedMember {
    let address = match member.address() {
        Some(IpAddr::V4(address)) => Some(address),
        Some(IpAddr::V6(_)) | None => None,
    };
    let machine = address.and_then(|address| addresses.machine_at(address)).map(str::to_owned);
    ListedMember {
        id: member_id(member),
        name: machine.unwrap_or_else(|| member.node().unwrap_or_default().to_owned()),
        learner: member.learner,
        address,
    }
}

/// Not stored anywhere: plan and execution compute it from the same answer.
fn member_id(member: &SupervisorMember) -> u64 {
    let id = Uuid::new_v5(
        &Uuid::NAMESPACE_OID,
        format!("{} {}", member.name, member.peers.join(" ")).as_bytes(),
    );
    id.as_u64_pair().0
}

/// A supervisor that answers may still stand in front of an etcd without quorum, so the members are read too.
pub async fn has_healthy_etcd(clients: &RancherClients, address: Ipv4Addr) -> bool {
    let Ok(supervisor) = clients.access().and_then(|access| access.supervisor(address.into())) else {
        return false;
    };
    supervisor.readyz().await.is_ok() && supervisor.members().await.is_ok()
}

/// Tells a machine that restarted from one that did not answer for a moment.
pub async fn boot_id(ctx: StepContext<'_>, clients: &RancherClients, machine: &str) -> Result<String, String> {
    let text = |failure: Failure| failure.why.unwrap_or(failure.what);
    let opened = open(ctx, clients, machine).await.map_err(text)?;
    let probe = probe(&opened, rancher_config::Role::Agent, &[]).await.map_err(text)?;
    Ok(probe.boot_id)
}

pub async fn not_ready_reason(ctx: StepContext<'_>, clients: &RancherClients, machine: &str) -> Option<String> {
    let address = ctx.addresses.get(machine)?;
    let supervisor = clients.access().ok()?.supervisor(address.into()).ok()?;
    supervisor.readyz().await.err().map(|error| error.to_string())
}

/// Reads one machine by supervisor and SSH.
pub async fn observe(clients: &RancherClients, addresses: &AddressBook, asked: AskedGuest<'_>) -> GuestReport {
    let (Ok(access), Some(identity)) = (clients.access(), addresses.identity(asked.name)) else {
        return Guest::Silent("its VM was not read".into()).into();
    };
    let Some(machine) = machine(addresses, clients, asked.name) else {
        return Guest::Silent("its VM has no SMBIOS serial".into()).into();
    };
    let config = asked.config.and_then(RancherConfig::parse);
    let files = config.as_ref().map(|config| files(&config.files)).unwrap_or_default();
    let question = ObservedMachine {
        machine: &machine,
        role: match identity.role {
            Role::ControlPlane => rancher_config::Role::Server,
            Role::Worker => rancher_config::Role::Agent,
        },
        files: &files,
        servers: config.as_ref().map(|config| config.servers.as_slice()).unwrap_or_default(),
    };
    let seen = super::observe(access, &question).await;
    match seen.guest {
        RancherGuest::Silent { why } => Guest::Silent(why).into(),
        RancherGuest::Foreign { why } => Guest::Foreign(why).into(),
        RancherGuest::WaitingForConfig { proved } => Guest::AwaitingConfig {
            uuid: if proved {
                Seen::Yes(identity.uuid)
            } else {
                Seen::Unknown(seen.ssh_problem.unwrap_or_else(|| "it was not proved".into()))
            },
            release: None,
        }
        .into(),
        RancherGuest::Running(facts) => report(&facts, identity.uuid, addresses, config.is_some()),
    }
}

fn report(facts: &RunningFacts, uuid: Uuid, addresses: &AddressBook, is_compared: bool) -> GuestReport {
    let listed_members = match &facts.members {
        Some(Ok(members)) => Some(members.iter().map(|member| listed(member, addresses)).collect()),
        Some(Err(_)) | None => None,
    };
    let etcd = match (&facts.members, facts.ready) {
        (None, _) => Seen::No,
        (Some(Err(_)), _) if facts.founder_failed => Seen::Yes(EtcdState::Stillborn),
        (Some(Ok(_)), true) => Seen::Yes(EtcdState::Healthy),
        (Some(_), _) => Seen::Yes(EtcdState::Unhealthy),
    };
    let config = match (&facts.files, is_compared) {
        (_, false) => Seen::No,
        (Some(files), true) => Seen::Yes(files.config()),
        (None, true) => Seen::Unknown("SSH does not answer".into()),
    };
    let release = facts.version.map(|version| version.to_string());
    let release: Option<Version> = release.and_then(|text| text.trim_start_matches('v').parse().ok());
    let guest = RunningGuest {
        uuid,
        kubernetes: facts.version.map(|version| version.kubernetes()),
        release,
        stage: if facts.ready { "running" } else { "starting" }.to_owned(),
        unmet: facts.not_ready_because.iter().cloned().collect(),
        config,
        etcd,
        boot_id: None,
        schematic: Seen::No,
        leads_etcd: false,
        holds_vip: facts.holds_vip,
    };
    GuestReport {
        guest: Guest::Running(Box::new(guest)),
        members: listed_members,
        boot_id: facts.boot_id.clone(),
    }
}
