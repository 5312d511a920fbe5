//! Talos: the first config, later configs, the one bootstrap, etcd's members, and what a machine says about itself.

pub mod upgrade;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use mainstay_net::{Env, Identity, Secret, Target, Trust};
use mainstay_plan::{
    ApplyMode, EtcdState, Guest, GuestConfig, GuestRef, Image, MemberRef, MemberRemoval, Pins, Publisher, QuorumCheck,
    RunningGuest, SchematicRef, Seen, Versions,
};
use mainstay_spec::{Spec, TalosSpec};
use semver::Version;
use talos_api::factory::{Factory, FactoryError};
use talos_api::resource::{Stage, SystemInformation};
use talos_api::{
    Access, Applied, Effect, Error, Mode, Next, Node, Outcome, Presence, ServiceState, presence, why_no_answer, why_not_ready,
};
use talos_config::access::{DEFAULT_LIFETIME, kubernetes_admin, talos_identity};
use talos_config::{PkiError, Secrets, TalosRole};
use tokio::time::Instant;
use uuid::Uuid;

use super::{GuestReport, ListedMember, StepContext, etcd};
use crate::addresses::AddressBook;
use crate::event::StepProgress;
use crate::failure::{Failure, FailureKind};
use crate::in_flight;
use crate::kube::KubeAccess;
use crate::wait::{self, WaitStatus};

pub const TALOS_PORT: u16 = 50000;

/// From power on to a configured machine: firmware, kernel, config, and for some images an installation.
const CONFIGURED: Duration = Duration::from_secs(900);
/// A slow host needs no longer from power on to the Talos API.
const BOOT: Duration = Duration::from_secs(120);
/// A config whose answer was lost and that has not shown by then did not arrive.
const CONFIG_SHOWS: Duration = Duration::from_secs(30);
const REBOOTED: Duration = Duration::from_secs(600);
const ETCD_STARTS: Duration = Duration::from_secs(600);
const ETCD_JOINS: Duration = Duration::from_secs(600);
const ETCD_LEAVES: Duration = Duration::from_secs(300);

/// How long the Image Factory may take to build an image.
const IMAGE_BUILD: Duration = Duration::from_secs(1800);

/// How long a plan waits for the Image Factory.
const FACTORY_ANSWERS: Duration = Duration::from_secs(10);

/// The machine API and the Image Factory of one cluster.
pub struct TalosClients {
    /// `None` while there are no secrets.
    access: Option<Access>,
    factory: Factory,
    /// What the factory said about an image in this run, by the image's address and whether its size was asked for.
    told: tokio::sync::Mutex<Option<((String, bool), Publisher)>>,
}

impl TalosClients {
    pub fn new(env: &Env, talos: &TalosSpec, access: Option<Access>) -> Result<Self, Failure> {
        let trust = if talos.factory.scheme() == "http" {
            Trust::Plain
        } else {
            Trust::Roots { extra_ca_pem: None }
        };
        let factory = Factory::new(env, &talos.factory, &trust)?;
        Ok(Self {
            access,
            factory,
            told: tokio::sync::Mutex::default(),
        })
    }

    /// Steps that need certificates are planned only with secrets, so a lack of them here is an error of mainstay.
    fn access(&self) -> Result<&Access, Failure> {
        self.access
            .as_ref()
            .ok_or_else(|| Failure::new(FailureKind::Bug, "a step needs the cluster's secrets, and there are none"))
    }

    /// A configured machine.
    fn node(&self, address: Ipv4Addr) -> Result<Node, Failure> {
        Ok(self.access()?.node(&at(address))?)
    }
}

/// The administrator's certificates for machines and for Kubernetes.
pub fn access(env: &Env, secrets: &Secrets) -> Result<(Access, KubeAccess), Failure> {
    let mut rng = env.entropy.fork("client certificates").rng();
    let now = env.wall.now();
    let failed = |error: PkiError| {
        Failure::new(FailureKind::Failed, "cannot issue client certificates from the secrets").why(error.to_string())
    };
    let talos = talos_identity(secrets, &[TalosRole::Admin].into(), DEFAULT_LIFETIME, now, &mut rng).map_err(failed)?;
    let kubernetes = kubernetes_admin(secrets, DEFAULT_LIFETIME, now, &mut rng).map_err(failed)?;
    let identity = |minted: talos_config::ClientIdentity| Identity {
        cert_pem: minted.certificate,
        key_pem: Secret::new(minted.pkcs8_key.to_string()),
    };
    let kube = KubeAccess {
        ca: secrets.kubernetes_ca().to_owned(),
        identity: identity(kubernetes),
    };
    Ok((Access::new(env, secrets.os_ca().to_owned(), identity(talos)), kube))
}

fn at(address: Ipv4Addr) -> Target {
    Target {
        host: address.to_string(),
        port: TALOS_PORT,
    }
}

fn secret(config: &GuestConfig) -> Secret<String> {
    Secret::new(config.expose().to_owned())
}

/// Waiting helps, unless the jump host itself says no.
fn not_yet<T>(error: &Error) -> Result<WaitStatus<T>, Failure> {
    match error.dial().filter(|dial| dial.is_of_the_jump_host()) {
        Some(closed) => Err(closed.clone().into()),
        None => Ok(WaitStatus::Waiting(why_no_answer(error))),
    }
}

/// As [`not_yet`], for a VM that was just started. Until it has had time to boot, its silence is no problem.
fn boots<T>(error: &Error, began: Instant) -> Result<WaitStatus<T>, Failure> {
    match (not_yet(error)?, error.dial()) {
        (WaitStatus::Waiting(_), Some(_)) if began.elapsed() < BOOT => {
            Ok(WaitStatus::Waiting("booting: the Talos API is not up yet".into()))
        }
        (status, _) => Ok(status),
    }
}

/// Waits for the machine, has it prove that it is the VM that we made, and gives it its config. A stranger on that address gets nothing.
pub async fn configure(
    ctx: StepContext<'_>,
    clients: &TalosClients,
    guest: &GuestRef,
    config: &GuestConfig,
) -> Result<(), Failure> {
    let (at, uuid) = (at(ctx.addresses.address(&guest.machine)?), guest.uuid);
    let access = clients.access()?;
    let (began, mut sent) = (Instant::now(), None::<Instant>);
    wait::until(
        ctx.jitter,
        ctx.progress,
        &format!("the machine at {at} did not accept its config"),
        CONFIGURED,
        async || {
            let met = match presence(ctx.env, access, &at).await? {
                Presence::Configured { node, .. } => return is_up(&node, uuid).await,
                Presence::Unconfigured(met) => met,
                Presence::Foreign => return Err(foreign(&at.to_string())),
                Presence::Absent(error) | Presence::Odd(error) => return boots(&error, began),
            };
            if sent.is_some_and(|at| at.elapsed() < CONFIG_SHOWS) {
                return Ok(WaitStatus::Waiting("waiting for the machine to apply its config".into()));
            }
            let proven = match met.prove(uuid).await {
                Ok(proven) => proven,
                Err(error @ Error::Stranger { .. }) => return Err(error.into()),
                Err(error) => return not_yet(&error),
            };
            match in_flight::send(proven.apply(&secret(config))).await {
                Ok(Applied::Taken { .. } | Applied::Maybe(_)) => sent = Some(Instant::now()),
                Err(error) if matches!(error.next(), Next::Retry | Next::Look | Next::AwaitReboot) => return not_yet(&error),
                Err(error) => return Err(error.into()),
            }
            Ok(WaitStatus::Waiting("waiting for the machine to apply its config".into()))
        },
    )
    .await
}

/// Waits until a configured machine answers.
pub async fn await_answer(ctx: StepContext<'_>, clients: &TalosClients, guest: &GuestRef) -> Result<(), Failure> {
    let address = ctx.addresses.address(&guest.machine)?;
    wait::until(
        ctx.jitter,
        ctx.progress,
        &format!("the machine at {address} did not answer"),
        CONFIGURED,
        async || is_up(&clients.node(address)?, guest.uuid).await,
    )
    .await
}

/// A configured machine of this cluster: is it the one that was meant?
async fn is_up(node: &Node, uuid: Uuid) -> Result<WaitStatus<()>, Failure> {
    let seen = match node.get::<SystemInformation>(SystemInformation::ID).await {
        Ok(Some(found)) => found.spec.uuid.parse::<Uuid>().ok(),
        Ok(None) => None,
        Err(error) => return not_yet(&error),
    };
    match seen {
        Some(seen) if seen == uuid => Ok(WaitStatus::Done(())),
        Some(seen) => Err(
            Failure::conflict(format!("another machine of this cluster answers at {}", node.at()))
                .why(format!("its SMBIOS UUID is {seen}, not {uuid}"))
                .help("two machines have one address: look at their consoles in Proxmox VE"),
        ),
        None => Ok(WaitStatus::Waiting("the machine does not know its hardware yet".into())),
    }
}

/// Its certificate is not of our authority, so it gets nothing from us and is not changed.
fn foreign(at: &str) -> Failure {
    Failure::conflict(format!("{at} belongs to another Talos cluster"))
        .why("it is configured already, and not with this cluster's secrets")
        .help("if it is an old machine of this cluster, delete its VM; if it belongs to another cluster, choose other addresses")
}

/// Applies a changed config, and waits for the restart if there is one.
pub async fn reconfigure(
    ctx: StepContext<'_>,
    clients: &TalosClients,
    guest: &GuestRef,
    config: &GuestConfig,
    (apply, check): (ApplyMode, Option<&QuorumCheck>),
) -> Result<(), Failure> {
    let address = ctx.addresses.address(&guest.machine)?;
    let node = clients.node(address)?;
    if let WaitStatus::Waiting(why) = is_up(&node, guest.uuid).await? {
        return Err(Failure::timed_out(
            format!("the machine at {address} did not answer"),
            Duration::ZERO,
            why,
        ));
    }
    if node
        .config()
        .await?
        .is_some_and(|(_, there)| there.expose() == config.expose())
    {
        return Ok(());
    }
    let before = node.boot_id().await?;
    if apply == ApplyMode::Reboot {
        etcd::check_restart(ctx, guest, check).await?;
    }
    let mode = match apply {
        ApplyMode::Live => Mode::NoReboot,
        ApplyMode::Reboot => Mode::Auto,
        ApplyMode::Staged => Mode::Staged,
    };
    let applied = match in_flight::send(node.apply(&secret(config), mode)).await {
        // A run that was killed sent a config with a restart. What the machine needs is known when it is back.
        Err(error) if error.next() == Next::AwaitReboot => {
            await_reboot(ctx, &node, &before).await?;
            return Err(Failure::stale_plan(format!("{} restarted with an earlier config", node.at())));
        }
        applied => applied?,
    };
    let restarts = match applied {
        Applied::Taken { effect, .. } => effect == Effect::Reboots,
        // It may be on its way down: the boot id tells.
        Applied::Maybe(_) => apply == ApplyMode::Reboot,
    };
    if apply != ApplyMode::Reboot && !restarts {
        return Ok(());
    }
    if !restarts {
        // From 1.14 on no config makes a machine restart.
        in_flight::send(node.reboot()).await?;
    }
    await_reboot(ctx, &node, &before).await
}

/// The boot id tells a machine that restarted from one that has not gone down yet: both answer and look alike.
async fn await_reboot(ctx: StepContext<'_>, node: &Node, before: &str) -> Result<(), Failure> {
    wait::until(
        ctx.jitter,
        ctx.progress,
        &format!("{} did not answer after its restart", node.at()),
        REBOOTED,
        async || {
            match node.boot_id().await {
                Ok(id) if id == before => return Ok(WaitStatus::Waiting("about to restart".into())),
                Ok(_) => {}
                Err(error) => return not_yet(&error),
            }
            match node.status().await {
                Ok(Some(status)) if status.stage == Stage::Running => Ok(WaitStatus::Done(())),
                Ok(status) => Ok(WaitStatus::Waiting(format!("Talos is {}", status.unwrap_or_default().stage))),
                Err(error) => not_yet(&error),
            }
        },
    )
    .await
}

/// Begins etcd on this machine, once in the life of the cluster. It is sent only here, and only while no control plane has etcd data.
pub async fn bootstrap(
    ctx: StepContext<'_>,
    clients: &TalosClients,
    guest: &GuestRef,
    prove_empty: &[String],
) -> Result<(), Failure> {
    let address = ctx.addresses.address(&guest.machine)?;
    let mut sent: Option<Instant> = None;
    wait::until(
        ctx.jitter,
        ctx.progress,
        &format!("etcd did not start at {address}"),
        ETCD_STARTS,
        async || {
            let node = clients.node(address)?;
            let services = match node.services().await {
                Ok(services) => services,
                Err(error) => return not_yet(&error),
            };
            if let Some(etcd) = services
                .iter()
                .find(|service| service.id == "etcd")
                .filter(|etcd| etcd.state == ServiceState::Running)
            {
                return Ok(if etcd.is_healthy() {
                    WaitStatus::Done(())
                } else {
                    WaitStatus::Waiting("etcd runs, but is not healthy yet".into())
                });
            }
            match node.has_etcd_data().await {
                Ok(true) => return Ok(WaitStatus::Waiting("etcd has data and is starting".into())),
                Ok(false) => {}
                Err(error) => return not_yet(&error),
            }
            if sent.is_some_and(|at| at.elapsed() < CONFIG_SHOWS) {
                return Ok(WaitStatus::Waiting("etcd starts".into()));
            }
            check_no_etcd_data(ctx, clients, prove_empty, &guest.machine).await?;
            match in_flight::send(node.bootstrap()).await {
                Ok(_) => sent = Some(Instant::now()),
                Err(error) if error.outcome() == Outcome::Unknown => sent = Some(Instant::now()),
                Err(error) if matches!(error.next(), Next::Retry | Next::Look) => return not_yet(&error),
                Err(error) => return Err(error.into()),
            }
            Ok(WaitStatus::Waiting("etcd starts".into()))
        },
    )
    .await
}

/// A second bootstrap would make a second cluster, so every other control plane that could have data is read right before.
async fn check_no_etcd_data(
    ctx: StepContext<'_>,
    clients: &TalosClients,
    machines: &[String],
    founder: &str,
) -> Result<(), Failure> {
    let access = clients.access()?;
    for machine in machines.iter().filter(|machine| *machine != founder) {
        let target = at(ctx.addresses.address(machine)?);
        match presence(ctx.env, access, &target).await? {
            Presence::Configured { node, .. } => {
                if node.has_etcd_data().await? {
                    return Err(Failure::stale_plan(format!(
                        "{machine} has etcd data already, so etcd was not bootstrapped again"
                    )));
                }
            }
            Presence::Unconfigured(_) => {}
            Presence::Foreign => return Err(foreign(&target.to_string())),
            Presence::Absent(error) | Presence::Odd(error) => {
                let what = format!("{machine} could not be read, so etcd was not bootstrapped");
                return Err(Failure::timed_out(what, Duration::ZERO, why_no_answer(&error)));
            }
        }
    }
    Ok(())
}

/// Waits until the machine is a healthy voter.
pub async fn await_voter(ctx: StepContext<'_>, clients: &TalosClients, guest: &GuestRef) -> Result<(), Failure> {
    let machine = &guest.machine;
    let address = ctx.addresses.address(machine)?;
    wait::until(
        ctx.jitter,
        ctx.progress,
        &format!("{machine} did not join etcd"),
        ETCD_JOINS,
        async || {
            let node = clients.node(address)?;
            let services = match node.services().await {
                Ok(services) => services,
                Err(error) => return not_yet(&error),
            };
            let etcd = services.iter().find(|service| service.id == "etcd");
            if has_left(&node, etcd).await {
                return Err(Failure::stale_plan(format!(
                    "{machine} has left etcd and rejoins only after a reboot"
                )));
            }
            if etcd.is_none_or(|etcd| etcd.state != ServiceState::Running) {
                let why = node.look().await.ok().and_then(|seen| why_not_ready(&seen));
                return Ok(WaitStatus::Waiting(why.unwrap_or_else(|| "etcd does not run yet".into())));
            }
            // Its own list proves the vote: etcd answers it only with a majority, and a learner does not answer it. The health of the service
            // follows at its next check, up to twenty seconds later.
            let members = match node.etcd_members().await {
                Ok(members) => members,
                Err(error) if error.dial().is_some() => return not_yet(&error),
                Err(_) if etcd.is_some_and(talos_api::Service::is_healthy) => {
                    return Ok(WaitStatus::Waiting("etcd does not list its members yet".into()));
                }
                Err(_) => return Ok(WaitStatus::Waiting("a learner of etcd, not a voter yet".into())),
            };
            Ok(match members.iter().find(|member| member.name == *machine) {
                Some(member) if !member.learner => WaitStatus::Done(()),
                Some(_) => WaitStatus::Waiting("a learner of etcd, not a voter yet".into()),
                None => WaitStatus::Waiting("etcd does not list it yet".into()),
            })
        },
    )
    .await
}

/// Other members do not list it any more, although its own machine could not end what it began.
async fn is_member_removed(ctx: StepContext<'_>, clients: &TalosClients, member: &MemberRef, ask: &[String]) -> bool {
    for address in ask.iter().filter_map(|machine| ctx.addresses.get(machine)) {
        if let Ok(node) = clients.node(address)
            && let Ok(members) = node.etcd_members().await
        {
            return !members.iter().any(|listed| listed.id == member.id);
        }
    }
    false
}

/// Its etcd ended, and took its data along. One that only ended, with the machine, is still a member.
async fn has_left(node: &Node, etcd: Option<&talos_api::Service>) -> bool {
    etcd.is_some_and(talos_api::Service::is_over) && matches!(node.has_etcd_data().await, Ok(false))
}

/// Removes a member, by itself or by another member.
pub async fn remove_member(
    ctx: StepContext<'_>,
    clients: &TalosClients,
    member: &MemberRef,
    by: &MemberRemoval,
    ask: &[String],
) -> Result<(), Failure> {
    match by {
        MemberRemoval::Leave => leave(ctx, clients, member, ask).await,
        MemberRemoval::RemovedBy(peer) => remove(&clients.node(ctx.addresses.address(peer)?)?, member).await,
    }
}

/// Repeated until etcd has stopped, because the answer to the call is often lost together with the machine's etcd.
async fn leave(ctx: StepContext<'_>, clients: &TalosClients, member: &MemberRef, ask: &[String]) -> Result<(), Failure> {
    let node = clients.node(ctx.addresses.address(&member.name)?)?;
    wait::until(
        ctx.jitter,
        ctx.progress,
        &format!("{} did not leave etcd", member.name),
        ETCD_LEAVES,
        async || {
            let services = match node.services().await {
                Ok(services) => services,
                Err(error) => return not_yet(&error),
            };
            let etcd = services.iter().find(|service| service.id == "etcd");
            let is_over = etcd.is_some_and(talos_api::Service::is_over);
            if is_over && (has_left(&node, etcd).await || is_member_removed(ctx, clients, member, ask).await) {
                return Ok(WaitStatus::Done(()));
            }
            // A leader that leaves costs the others an election; one that cannot hand over leaves all the same.
            let _ = node.etcd_forfeit_leadership().await;
            match in_flight::send(node.etcd_leave()).await {
                Ok(()) => Ok(WaitStatus::Done(())),
                Err(error) if error.outcome() == Outcome::Refused && error.next() == Next::Stop => Err(error.into()),
                Err(error) => not_yet(&error),
            }
        },
    )
    .await
}

/// By id: a machine that was recreated has the name of its predecessor, and must not lose its own membership.
async fn remove(survivor: &Node, member: &MemberRef) -> Result<(), Failure> {
    if !survivor.etcd_members().await?.iter().any(|listed| listed.id == member.id) {
        return Ok(());
    }
    match in_flight::send(survivor.etcd_remove(member.id)).await {
        Ok(()) => Ok(()),
        Err(error) if error.next() == Next::Done => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Stranger { .. } => FailureKind::Conflict,
            Error::Credentials { .. } | Error::Address { .. } => FailureKind::Bug,
            _ => match error.outcome() {
                Outcome::NotSent => FailureKind::Unreachable,
                Outcome::Unknown => FailureKind::Unsettled,
                Outcome::Refused => FailureKind::Failed,
            },
        };
        // Talos lists what it refuses in lines of their own: the first one says that it refuses, the others say what.
        let text = error.to_string();
        let mut lines = text
            .lines()
            .map(|line| line.trim().trim_start_matches("* "))
            .filter(|line| !line.is_empty());
        let mut failure = Self::new(kind, lines.next().unwrap_or_default().trim_end_matches(':'));
        failure.help.extend(error.remedy());
        // The text of the error is the failure's own; what is below it is the cause.
        let below = std::error::Error::source(&error).map(ToString::to_string);
        let why: Vec<String> = lines.map(str::to_owned).chain(below).collect();
        failure.why = (!why.is_empty()).then(|| why.join("\n"));
        failure
    }
}

/// Reads one machine.
pub async fn observe(env: &Env, clients: &TalosClients, addresses: &AddressBook, address: Ipv4Addr) -> GuestReport {
    let Some(access) = &clients.access else {
        return Guest::Silent("cannot ask it without the cluster's secrets".into()).into();
    };
    match presence(env, access, &at(address)).await {
        Ok(Presence::Configured { node, release }) => configured(&node, addresses, release.version().clone()).await,
        Ok(Presence::Unconfigured(met)) => {
            let uuid = match met.get::<SystemInformation>(SystemInformation::ID).await {
                Ok(Some(found)) => found
                    .spec
                    .uuid
                    .parse()
                    .map_or_else(|_| Seen::Unknown(format!("`{}` is no UUID", found.spec.uuid)), Seen::Yes),
                Ok(None) => Seen::Unknown("it does not know its hardware yet".into()),
                Err(error) => Seen::Unknown(error.to_string()),
            };
            let release = met.release().await.ok().flatten().map(|release| release.version().clone());
            Guest::AwaitingConfig { uuid, release }.into()
        }
        Ok(Presence::Foreign) => Guest::Foreign("its certificate is not signed by this cluster's authority".into()).into(),
        Ok(Presence::Absent(error) | Presence::Odd(error)) | Err(error) => Guest::Silent(short_reason(&error)).into(),
    }
}

/// All reads at once: a machine that restarts in between gives a report that is wrong in one way, not in several.
async fn configured(node: &Node, addresses: &AddressBook, release: Version) -> GuestReport {
    let (information, status, config, services, boot, schematic) = tokio::join!(
        node.get::<SystemInformation>(SystemInformation::ID),
        node.status(),
        node.config(),
        node.services(),
        node.boot_id(),
        node.schematic(),
    );
    let uuid = information
        .ok()
        .flatten()
        .and_then(|found| found.spec.uuid.parse::<Uuid>().ok());
    let (Some(uuid), Ok(status)) = (uuid, status) else {
        return Guest::Silent("it answers, but its version cannot be read".into()).into();
    };
    let status = status.unwrap_or_default();
    let config = match config {
        Ok(Some((_, text))) => Seen::Yes(GuestConfig::new(text.expose().as_str())),
        Ok(None) => Seen::No,
        Err(error) => Seen::Unknown(error.to_string()),
    };
    let (etcd, members) = etcd_of(node, services).await;
    let leads_etcd = members.is_some() && node.etcd_status().await.is_ok_and(|status| status.is_leader());
    let kubernetes = config.yes().and_then(|config| kubelet_version(config.expose()));
    let unmet = status
        .status
        .unmet_conditions
        .into_iter()
        .map(|unmet| format!("{}: {}", unmet.name, unmet.reason))
        .collect();
    let running = RunningGuest {
        holds_vip: false,
        uuid,
        release: Some(release),
        kubernetes,
        stage: status.stage.to_string(),
        unmet,
        config,
        etcd,
        boot_id: boot.as_ref().ok().cloned(),
        schematic: match schematic {
            Ok(Some(schematic)) => Seen::Yes(schematic),
            Ok(None) => Seen::No,
            Err(error) => Seen::Unknown(error.to_string()),
        },
        leads_etcd,
    };
    GuestReport {
        guest: Guest::Running(Box::new(running)),
        members: members.map(|members| members.iter().map(|member| listed(member, addresses)).collect()),
        boot_id: boot.ok(),
    }
}

/// Asking for members hangs on a machine whose etcd never ran, so its service is asked first, and its disk where the service says nothing.
async fn etcd_of(
    node: &Node,
    services: Result<Vec<talos_api::Service>, Error>,
) -> (Seen<EtcdState>, Option<Vec<talos_api::EtcdMember>>) {
    let services = match services {
        Ok(services) => services,
        Err(error) => return (Seen::Unknown(error.to_string()), None),
    };
    let Some(etcd) = services.iter().find(|service| service.id == "etcd") else {
        return (Seen::No, None);
    };
    if etcd.state == ServiceState::Running {
        let members = node.etcd_members().await.ok();
        // Members are listed only with a majority behind the list, so a list of its own says more than a check that was made before it.
        let state = if members.is_some() {
            EtcdState::Healthy
        } else {
            EtcdState::Unhealthy
        };
        return (Seen::Yes(state), members);
    }
    match node.has_etcd_data().await {
        Ok(true) => (Seen::Yes(EtcdState::Unhealthy), None),
        Ok(false) if etcd.is_over() => (Seen::Yes(EtcdState::Left), None),
        Ok(false) => (Seen::No, None),
        Err(error) => (Seen::Unknown(error.to_string()), None),
    }
}

/// A member has no name before it has started for the first time: its address tells which machine it belongs to.
fn listed(member: &talos_api::EtcdMember, addresses: &AddressBook) -> ListedMember {
    let address = member.addresses().next();
    let v4 = member
        .addresses()
        .find_map(|at| if let IpAddr::V4(at) = at { Some(at) } else { None });
    let by_address = || {
        let machine = v4.and_then(|at| addresses.machine_at(at)).map(str::to_owned);
        machine.or_else(|| address.map(|at| at.to_string())).unwrap_or_default()
    };
    ListedMember {
        id: member.id,
        name: if member.name.is_empty() {
            by_address()
        } else {
            member.name.clone()
        },
        learner: member.learner,
        address: v4,
    }
}

/// As this machine's own etcd lists them. A machine without quorum fails here, and another one is asked.
pub async fn members(ctx: StepContext<'_>, clients: &TalosClients, machine: &str) -> Result<Vec<ListedMember>, Failure> {
    let node = clients.node(ctx.addresses.address(machine)?)?;
    let members = node.etcd_members().await.map_err(|error| {
        Failure::stale_plan(format!("{machine} does not list the members of etcd")).why(why_no_answer(&error))
    })?;
    Ok(members.iter().map(|member| listed(member, ctx.addresses)).collect())
}

pub async fn has_etcd_data(ctx: StepContext<'_>, clients: &TalosClients, machine: &str) -> Result<bool, Failure> {
    Ok(clients.node(ctx.addresses.address(machine)?)?.has_etcd_data().await?)
}

/// A machine that cannot be asked does not count as healthy: the caller is about to stop another member.
pub async fn has_healthy_etcd(clients: &TalosClients, address: Ipv4Addr) -> bool {
    let Ok(node) = clients.node(address) else { return false };
    let services = node.services().await.unwrap_or_default();
    let Some(etcd) = services.iter().find(|service| service.id == "etcd") else {
        return false;
    };
    etcd.is_healthy() || etcd.state == ServiceState::Running && node.etcd_members().await.is_ok()
}

pub async fn is_back(ctx: StepContext<'_>, clients: &TalosClients, guest: &GuestRef) -> Result<WaitStatus<()>, Failure> {
    let node = clients.node(ctx.addresses.address(&guest.machine)?)?;
    Ok(match node.status().await {
        Ok(Some(status)) if status.stage == Stage::Running => WaitStatus::Done(()),
        Ok(status) => WaitStatus::Waiting(format!("Talos is {}", status.unwrap_or_default().stage)),
        Err(error) => WaitStatus::Waiting(error.to_string()),
    })
}

/// A reason instead of a failure: the caller waits, and shows it.
pub async fn boot_id(ctx: StepContext<'_>, clients: &TalosClients, machine: &str) -> Result<String, String> {
    let address = ctx.addresses.address(machine).map_err(|failure| failure.what)?;
    let node = clients.node(address).map_err(|failure| failure.what)?;
    node.boot_id().await.map_err(|error| why_no_answer(&error))
}

/// Kubernetes only says that the kubelet is silent; the machine itself names the service or condition that blocks it.
pub async fn not_ready_reason(ctx: StepContext<'_>, clients: &TalosClients, machine: &str) -> Option<String> {
    let node = clients.node(ctx.addresses.get(machine)?).ok()?;
    match node.look().await {
        Ok(seen) => why_not_ready(&seen),
        Err(error) if error.dial().is_some() => {
            Some("its Talos port is silent: the machine is off, dead or restarting".to_owned())
        }
        Err(error) => Some(why_no_answer(&error)),
    }
}

/// The factory computes the id from the text, so registering the same text twice has no further effect.
pub async fn register_schematic(clients: &TalosClients, schematic: &SchematicRef) -> Result<(), Failure> {
    clients.factory.register(&schematic.text, &schematic.id).await?;
    Ok(())
}

/// Has the factory build the image, and returns its size.
pub async fn image_size(clients: &TalosClients, progress: &StepProgress, image: &Image) -> Result<u64, Failure> {
    let mut waiting = |_| progress.wait("the Image Factory builds the image", IMAGE_BUILD);
    let asset = clients.factory.asset(&order(image)?, IMAGE_BUILD, &mut waiting).await?;
    Ok(asset.size)
}

/// The image as the factory names it: its URL contains schematic, version and file.
fn order(image: &Image) -> Result<talos_api::factory::Image, Failure> {
    let bug = || Failure::new(FailureKind::Bug, format!("`{}` is no address of an image", image.url));
    let mut parts = image.url.rsplit('/');
    let (file, version) = (
        parts.next().ok_or_else(bug)?,
        parts.next().and_then(|tag| tag.strip_prefix('v')).ok_or_else(bug)?,
    );
    Ok(talos_api::factory::Image {
        schematic: image.schematic.as_ref().ok_or_else(bug)?.id.clone(),
        version: version.parse().map_err(|_| bug())?,
        file: file.to_owned(),
    })
}

/// Whether the factory has the release with all extensions of the file.
async fn check_release(clients: &TalosClients, spec: &Spec, versions: &Versions) -> Result<(), FactoryError> {
    let talos = spec.distro.talos();
    let extensions: Vec<String> = talos
        .iter()
        .flat_map(|talos| &talos.extensions)
        .map(ToString::to_string)
        .collect();
    if extensions.is_empty() {
        return clients.factory.check_version(&versions.release).await;
    }
    clients.factory.check_extensions(&versions.release, &extensions).await
}

/// Asks the factory, within a short time: a plan waits for nothing that is built.
pub async fn ask_publisher(clients: &TalosClients, spec: &Spec, versions: &Versions, image: &Image, sized: bool) -> Publisher {
    let mut told = clients.told.lock().await;
    if let Some((_, publisher)) = told.as_ref().filter(|(of, _)| *of == (image.url.clone(), sized)) {
        return publisher.clone();
    }
    let release = tokio::time::timeout(FACTORY_ANSWERS, check_release(clients, spec, versions)).await;
    let publisher = match release {
        Err(_) => Publisher::Silent(format!("no answer within {} s", FACTORY_ANSWERS.as_secs())),
        Ok(Err(error)) if error.is_transient() => Publisher::Silent(short_reason(&error)),
        Ok(Err(error)) => Publisher::Lacks {
            help: error.remedy(),
            what: error.to_string(),
        },
        Ok(Ok(())) => Publisher::Has {
            size: if sized { built_size(clients, image).await } else { None },
        },
    };
    if matches!(publisher, Publisher::Has { .. }) {
        *told = Some(((image.url.clone(), sized), publisher.clone()));
    }
    publisher
}

/// The size of an image that the factory has built already.
async fn built_size(clients: &TalosClients, image: &Image) -> Option<u64> {
    let asked = clients.factory.asset(&order(image).ok()?, FACTORY_ANSWERS, &mut |_| {}).await;
    asked.ok().map(|asset| asset.size)
}

pub async fn check_image_source(clients: &TalosClients, spec: &Spec, versions: &Versions) -> Result<String, Failure> {
    check_release(clients, spec, versions).await?;
    let count = spec.distro.talos().map_or(0, |talos| talos.extensions.len());
    let extensions = match count {
        0 => String::new(),
        1 => " with its extension".to_owned(),
        more => format!(" with its {more} extensions"),
    };
    let image = mainstay_plan::derive::image(spec, versions, &Pins::default())?;
    let size = match built_size(clients, &image).await {
        Some(size) => format!("{} MB", size.div_ceil(1_000_000)),
        None => "not built yet".to_owned(),
    };
    Ok(format!("has Talos {}{extensions}; the image: {size}", versions.release))
}

/// `ghcr.io/siderolabs/kubelet:v1.35.2`: the version that the machine is to run.
fn kubelet_version(config: &str) -> Option<Version> {
    let image = config.lines().find_map(|line| {
        line.trim()
            .strip_prefix("image: ")
            .filter(|image| image.contains("/kubelet:"))
    })?;
    let tag = image.rsplit_once(":v")?.1;
    tag.split(['@', '-', '"']).next()?.parse().ok()
}

/// One line with the direct cause: the whole chain would not fit into a row of a plan.
fn short_reason(error: &(dyn std::error::Error + 'static)) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

impl From<FactoryError> for Failure {
    fn from(error: FactoryError) -> Self {
        let kind = if error.is_transient() {
            FailureKind::Unreachable
        } else {
            FailureKind::Failed
        };
        let mut failure = Self::new(kind, error.to_string());
        failure.help.extend(error.remedy());
        failure.caused_by(error)
    }
}
