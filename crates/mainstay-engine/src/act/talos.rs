//! Talos: the first config, later configs, the one bootstrap, and etcd's members.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use futures::future::join_all;
use mainstay_net::Secret;
use mainstay_plan::{Apply, Config, EtcdMember, LeaveBy, Peer, Spare};
use talos_api::resource::{Stage, SystemInformation};
use talos_api::{
    Applied, Effect, Error, Mode, Next, Node, Outcome, Presence, ServiceState, presence, why_no_answer, why_not_ready,
};
use tokio::time::Instant;
use uuid::Uuid;

use super::wait::{self, Look};
use crate::event::Voice;
use crate::failure::{Failure, Kind};
use crate::site::{Site, talos_at};

/// From power on to a configured machine: firmware, kernel, config, and for some images an installation.
const CONFIGURED: Duration = Duration::from_secs(900);
/// A config whose answer was lost and that has not shown by then did not arrive.
const CONFIG_SHOWS: Duration = Duration::from_secs(30);
const REBOOTED: Duration = Duration::from_secs(600);
const ETCD_STARTS: Duration = Duration::from_secs(600);
const ETCD_JOINS: Duration = Duration::from_secs(600);
const ETCD_LEAVES: Duration = Duration::from_secs(300);
/// A machine that is not listed by then hardly joins, and neither does a learner after as much again: Talos tries for a vote every fifteen
/// seconds.
const ETCD_MAY_JOIN: Duration = Duration::from_secs(60);

fn secret(config: &Config) -> Secret<String> {
    Secret::new(config.expose().to_owned())
}

/// Waiting helps, unless the jump host itself says no.
fn not_yet<T>(error: &Error) -> Result<Look<T>, Failure> {
    match error.dial().filter(|dial| dial.is_of_the_jump_host()) {
        Some(closed) => Err(closed.clone().into()),
        None => Ok(Look::NotYet(why_no_answer(error))),
    }
}

/// Waits for the machine, has it prove that it is the VM that we made, and gives it its config. A stranger on that address gets nothing.
pub async fn configure(site: &Site, voice: &Voice, address: Ipv4Addr, uuid: Uuid, config: &Config) -> Result<(), Failure> {
    let at = talos_at(address);
    let access = &site.keys()?.talos;
    let mut sent: Option<Instant> = None;
    wait::until(
        site,
        voice,
        &format!("the machine at {at} did not take its config"),
        CONFIGURED,
        async || {
            let met = match presence(&site.env, access, &at).await? {
                Presence::Configured { node, .. } => return is_up(&node, uuid).await,
                Presence::Unconfigured(met) => met,
                Presence::Foreign => return Err(foreign(&at.to_string())),
                Presence::Absent(error) | Presence::Odd(error) => return not_yet(&error),
            };
            if sent.is_some_and(|at| at.elapsed() < CONFIG_SHOWS) {
                return Ok(Look::NotYet("the machine takes its config".into()));
            }
            let proven = match met.prove(uuid).await {
                Ok(proven) => proven,
                Err(error @ Error::Stranger { .. }) => return Err(error.into()),
                Err(error) => return not_yet(&error),
            };
            match proven.apply(&secret(config)).await {
                Ok(Applied::Taken { .. } | Applied::Maybe(_)) => sent = Some(Instant::now()),
                Err(error) if matches!(error.next(), Next::Retry | Next::Look) => return not_yet(&error),
                Err(error) => return Err(error.into()),
            }
            Ok(Look::NotYet("the machine takes its config".into()))
        },
    )
    .await
}

/// Waits until a configured machine answers.
pub async fn await_answer(site: &Site, voice: &Voice, address: Ipv4Addr, uuid: Uuid) -> Result<(), Failure> {
    wait::until(
        site,
        voice,
        &format!("the machine at {address} did not answer"),
        CONFIGURED,
        async || is_up(&site.node(address)?, uuid).await,
    )
    .await
}

/// A configured machine of this cluster: is it the one that was meant?
async fn is_up(node: &Node, uuid: Uuid) -> Result<Look<()>, Failure> {
    let seen = match node.get::<SystemInformation>(SystemInformation::ID).await {
        Ok(Some(found)) => found.spec.uuid.parse::<Uuid>().ok(),
        Ok(None) => None,
        Err(error) => return not_yet(&error),
    };
    match seen {
        Some(seen) if seen == uuid => Ok(Look::Done(())),
        Some(seen) => Err(
            Failure::conflict(format!("another machine of this cluster answers at {}", node.at()))
                .why(format!("its SMBIOS UUID is {seen}, not {uuid}"))
                .help("two machines have one address: look at their consoles in Proxmox VE"),
        ),
        None => Ok(Look::NotYet("the machine does not know its hardware yet".into())),
    }
}

fn foreign(at: &str) -> Failure {
    Failure::conflict(format!("{at} belongs to another Talos cluster"))
        .why("it is configured already, and not with this cluster's secrets")
        .help("if it is a machine of ours from before, its VM is to be deleted; if it is somebody else's, choose other addresses")
}

/// The last look before a control plane is sent away: can etcd do without it now? The plan saw to that, but others may have gone
/// since, and a step that lost an answer is begun anew minutes later.
pub async fn can_be_spared(site: &Site, address: Ipv4Addr) -> Result<(), Failure> {
    if !site.control_planes.contains(&address) {
        return Ok(());
    }
    let own = site.node(address)?;
    if own.has_etcd_data().await.is_ok_and(|data| !data) {
        return Ok(());
    }
    let members = members(site, &own, address).await?;
    let name = site
        .addresses
        .iter()
        .find(|(_, at)| **at == address)
        .map(|(name, _)| name.as_str());
    majority_without(site, &members, &address.to_string(), |voter| {
        Some(voter.name.as_str()) == name || voter.addresses().any(|at| at == address)
    })
    .await
}

/// The same for a control plane that goes. Who left, or never was a member, is not listed, and may go.
pub async fn can_spare(site: &Site, spare: Option<&Spare>) -> Result<(), Failure> {
    let Some(spare) = spare else { return Ok(()) };
    let members = told_by(site, &spare.by).await?;
    majority_without(site, &members, &spare.member.name, |voter| is_of(voter, &spare.member)).await
}

/// A vote that a machine gets in the moment of its stop would count for the majority and be missing in it. So one that may be about to
/// join is given the time to do so, and then to leave, unless etcd can do without its vote as well.
pub async fn does_not_join(site: &Site, voice: &Voice, spare: Option<&Spare>) -> Result<(), Failure> {
    let Some(spare) = spare.filter(|spare| spare.may_join) else {
        return Ok(());
    };
    let name = &spare.member.name;
    let (mut since, mut was_listed) = (Instant::now(), false);
    let limit = ETCD_MAY_JOIN * 3;
    wait::until(
        site,
        voice,
        &format!("{name} was not seen to stay out of etcd"),
        limit,
        async || {
            let members = told_by(site, &spare.by).await?;
            let (own, others): (Vec<_>, Vec<_>) = members.iter().partition(|member| is_of(member, &spare.member));
            let voters: Vec<_> = others.into_iter().filter(|member| !member.learner).collect();
            if healthy(site, &voters).await > voters.len().div_ceil(2) {
                return Ok(Look::Done(()));
            }
            if own.iter().any(|member| !member.learner) {
                return Err(Failure::changed(format!(
                    "{name} joined etcd, and leaves it before it is stopped"
                )));
            }
            if !own.is_empty() && !was_listed {
                (since, was_listed) = (Instant::now(), true);
            }
            if since.elapsed() >= ETCD_MAY_JOIN {
                return Ok(Look::Done(()));
            }
            Ok(Look::NotYet(format!(
                "{name} may be about to join etcd, which it would have to leave again"
            )))
        },
    )
    .await
}

async fn told_by(site: &Site, peer: &Peer) -> Result<Vec<talos_api::EtcdMember>, Failure> {
    site.node(peer.address)?.etcd_members().await.map_err(|error| {
        Failure::changed(format!("{} does not list the members of etcd", peer.machine)).why(why_no_answer(&error))
    })
}

fn is_of(listed: &talos_api::EtcdMember, member: &EtcdMember) -> bool {
    listed.id == member.id || listed.name == member.name
}

/// The voters beside this one are a majority, each by its own word. The only one may always go: there is nobody else to ask.
async fn majority_without(
    site: &Site,
    members: &[talos_api::EtcdMember],
    who: &str,
    is_own: impl Fn(&talos_api::EtcdMember) -> bool,
) -> Result<(), Failure> {
    let (own, others): (Vec<_>, Vec<_>) = members
        .iter()
        .filter(|member| !member.learner)
        .partition(|voter| is_own(voter));
    if own.is_empty() || others.is_empty() {
        return Ok(());
    }
    let (healthy, voters) = (healthy(site, &others).await, own.len() + others.len());
    if healthy > voters / 2 {
        return Ok(());
    }
    Err(Failure::changed(format!("etcd cannot do without {who} now"))
        .why(format!("{healthy} of its {voters} voters are healthy beside it")))
}

async fn healthy(site: &Site, members: &[&talos_api::EtcdMember]) -> usize {
    let healthy = join_all(members.iter().map(|member| has_healthy_etcd(site, member))).await;
    healthy.into_iter().filter(|healthy| *healthy).count()
}

fn others(site: &Site, address: Ipv4Addr) -> impl Iterator<Item = Ipv4Addr> {
    site.control_planes.iter().copied().filter(move |other| *other != address)
}

/// The members, as the machine itself or else the first of the others tells.
async fn members(site: &Site, own: &Node, address: Ipv4Addr) -> Result<Vec<talos_api::EtcdMember>, Failure> {
    let mut told = own.etcd_members().await;
    for other in others(site, address) {
        if told.is_ok() {
            break;
        }
        told = site.node(other)?.etcd_members().await;
    }
    told.map_err(|error| Failure::changed("no control plane lists the members of etcd").why(why_no_answer(&error)))
}

async fn has_healthy_etcd(site: &Site, member: &talos_api::EtcdMember) -> bool {
    // Members may speak to each other on a net that is not ours.
    let told = member
        .addresses()
        .find_map(|at| if let IpAddr::V4(at) = at { Some(at) } else { None });
    let Some(address) = site.addresses.get(&member.name).copied().or(told) else {
        return false;
    };
    let Ok(node) = site.node(address) else { return false };
    let services = node.services().await.unwrap_or_default();
    services.iter().any(|service| service.id == "etcd" && service.is_healthy())
}

/// Applies a changed config, and waits for the restart if there is one.
pub async fn reconfigure(
    site: &Site,
    voice: &Voice,
    address: Ipv4Addr,
    uuid: Uuid,
    config: &Config,
    how: Apply,
) -> Result<(), Failure> {
    let node = site.node(address)?;
    if let Look::NotYet(why) = is_up(&node, uuid).await? {
        return Err(Failure::too_late(
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
    if how == Apply::Reboot {
        can_be_spared(site, address).await?;
    }
    let mode = match how {
        Apply::Live => Mode::NoReboot,
        Apply::Reboot => Mode::Auto,
        Apply::Staged => Mode::Staged,
    };
    let restarts = match node.apply(&secret(config), mode).await? {
        Applied::Taken { effect, .. } => effect == Effect::Reboots,
        // It may be on its way down: the boot id tells.
        Applied::Maybe(_) => how == Apply::Reboot,
    };
    if how != Apply::Reboot && !restarts {
        return Ok(());
    }
    if !restarts {
        // From 1.14 on no config makes a machine restart.
        node.reboot().await?;
    }
    await_reboot(site, voice, &node, &before).await
}

async fn await_reboot(site: &Site, voice: &Voice, node: &Node, before: &str) -> Result<(), Failure> {
    wait::until(
        site,
        voice,
        &format!("{} did not come back from its restart", node.at()),
        REBOOTED,
        async || {
            match node.boot_id().await {
                Ok(id) if id == before => return Ok(Look::NotYet("about to restart".into())),
                Ok(_) => {}
                Err(error) => return not_yet(&error),
            }
            match node.status().await {
                Ok(Some(status)) if status.stage == Stage::Running => Ok(Look::Done(())),
                Ok(status) => Ok(Look::NotYet(format!("Talos is {}", status.unwrap_or_default().stage))),
                Err(error) => not_yet(&error),
            }
        },
    )
    .await
}

/// Begins etcd on this machine, once in the life of the cluster. It is sent only here, and only while nobody has etcd data.
pub async fn bootstrap(site: &Site, voice: &Voice, address: Ipv4Addr, prove: &[Peer]) -> Result<(), Failure> {
    let mut sent: Option<Instant> = None;
    wait::until(
        site,
        voice,
        &format!("etcd did not start at {address}"),
        ETCD_STARTS,
        async || {
            let node = site.node(address)?;
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
                    Look::Done(())
                } else {
                    Look::NotYet("etcd runs, but is not healthy yet".into())
                });
            }
            match node.has_etcd_data().await {
                Ok(true) => return Ok(Look::NotYet("etcd has data and starts".into())),
                Ok(false) => {}
                Err(error) => return not_yet(&error),
            }
            if sent.is_some_and(|at| at.elapsed() < CONFIG_SHOWS) {
                return Ok(Look::NotYet("etcd starts".into()));
            }
            nobody_has_data(site, prove, address).await?;
            match node.bootstrap().await {
                Ok(_) => sent = Some(Instant::now()),
                Err(error) if error.outcome() == Outcome::Unknown => sent = Some(Instant::now()),
                Err(error) if matches!(error.next(), Next::Retry | Next::Look) => return not_yet(&error),
                Err(error) => return Err(error.into()),
            }
            Ok(Look::NotYet("etcd starts".into()))
        },
    )
    .await
}

/// A second bootstrap would make a second cluster, so every other control plane that could have data is read right before.
async fn nobody_has_data(site: &Site, prove: &[Peer], own: Ipv4Addr) -> Result<(), Failure> {
    let access = &site.keys()?.talos;
    for peer in prove.iter().filter(|peer| peer.address != own) {
        let unreadable = |why: String| {
            Failure::too_late(
                format!("{} could not be read, so etcd was not begun", peer.machine),
                Duration::ZERO,
                why,
            )
        };
        match presence(&site.env, access, &talos_at(peer.address)).await? {
            Presence::Configured { node, .. } => {
                if node.has_etcd_data().await? {
                    return Err(Failure::changed(format!(
                        "{} has etcd data already, so etcd was not begun again",
                        peer.machine
                    )));
                }
            }
            Presence::Unconfigured(_) => {}
            Presence::Foreign => return Err(foreign(&peer.address.to_string())),
            Presence::Absent(error) | Presence::Odd(error) => return Err(unreadable(why_no_answer(&error))),
        }
    }
    Ok(())
}

/// Waits until the machine is a healthy voter.
pub async fn etcd_join(site: &Site, voice: &Voice, machine: &str, address: Ipv4Addr) -> Result<(), Failure> {
    wait::until(site, voice, &format!("{machine} did not join etcd"), ETCD_JOINS, async || {
        let node = site.node(address)?;
        let services = match node.services().await {
            Ok(services) => services,
            Err(error) => return not_yet(&error),
        };
        let etcd = services.iter().find(|service| service.id == "etcd");
        if has_left(&node, etcd).await {
            return Err(Failure::changed(format!(
                "{machine} left etcd, and joins again only at a restart"
            )));
        }
        if !etcd.is_some_and(talos_api::Service::is_healthy) {
            let why = node.look().await.ok().and_then(|seen| why_not_ready(&seen));
            return Ok(Look::NotYet(why.unwrap_or_else(|| "etcd is not healthy yet".into())));
        }
        let members = match node.etcd_members().await {
            Ok(members) => members,
            Err(error) => return not_yet(&error),
        };
        Ok(match members.iter().find(|member| member.name == machine) {
            Some(member) if !member.learner => Look::Done(()),
            Some(_) => Look::NotYet("a learner of etcd, not a voter yet".into()),
            None => Look::NotYet("etcd does not list it yet".into()),
        })
    })
    .await
}

/// The others do not list it any more, although its own machine could not end what it began.
async fn is_taken_out(site: &Site, member: &EtcdMember, address: Ipv4Addr) -> bool {
    for other in others(site, address) {
        if let Ok(node) = site.node(other)
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

/// Takes a member out, by itself or by a survivor. A member that is gone is gone.
pub async fn etcd_leave(site: &Site, voice: &Voice, member: &EtcdMember, by: &LeaveBy) -> Result<(), Failure> {
    match by {
        LeaveBy::Itself(address) => leave(site, voice, member, *address).await,
        LeaveBy::Survivor(peer) => remove(&site.node(peer.address)?, member).await,
    }
}

async fn leave(site: &Site, voice: &Voice, member: &EtcdMember, address: Ipv4Addr) -> Result<(), Failure> {
    let node = site.node(address)?;
    wait::until(
        site,
        voice,
        &format!("{} did not leave etcd", member.name),
        ETCD_LEAVES,
        async || {
            let services = match node.services().await {
                Ok(services) => services,
                Err(error) => return not_yet(&error),
            };
            let etcd = services.iter().find(|service| service.id == "etcd");
            let is_over = etcd.is_some_and(talos_api::Service::is_over);
            if is_over && (has_left(&node, etcd).await || is_taken_out(site, member, address).await) {
                return Ok(Look::Done(()));
            }
            // A leader that leaves costs the others an election; one that cannot hand over leaves all the same.
            let _ = node.etcd_forfeit_leadership().await;
            match node.etcd_leave().await {
                Ok(()) => Ok(Look::Done(())),
                Err(error) if error.outcome() == Outcome::Refused && error.next() == Next::Stop => Err(error.into()),
                Err(error) => not_yet(&error),
            }
        },
    )
    .await
}

async fn remove(survivor: &Node, member: &EtcdMember) -> Result<(), Failure> {
    if !survivor.etcd_members().await?.iter().any(|listed| listed.id == member.id) {
        return Ok(());
    }
    match survivor.etcd_remove(member.id).await {
        Ok(()) => Ok(()),
        Err(error) if error.next() == Next::Done => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Stranger { .. } => Kind::Conflict,
            Error::Credentials { .. } | Error::Address { .. } => Kind::Bug,
            _ => match error.outcome() {
                Outcome::NotSent => Kind::Unreachable,
                Outcome::Unknown => Kind::Unsettled,
                Outcome::Refused => Kind::Failed,
            },
        };
        let mut failure = Self::new(kind, error.to_string());
        failure.help.extend(error.remedy());
        // The text of the error is the failure's own; what is below it is the cause.
        failure.why = std::error::Error::source(&error).map(ToString::to_string);
        failure
    }
}
