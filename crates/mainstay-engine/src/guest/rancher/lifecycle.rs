//! etcd begins once, and machines join.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use mainstay_plan::guest::JoinForm;
use rancher_config::Role;
use rancher_config::guest::{self as guest_config, DataState, GuestFile, Probe, UnitReport};

use super::access::RancherAccess;
use super::prepare::{ExpectedFacts, check, outdated, probe, unit_report};
use super::session::OpenGuest;
use super::supervisor::{Supervisor, SupervisorError, SupervisorMember};
use super::wait::{Poll, WaitReporter, until};
use crate::failure::{Failure, FailureKind};

/// The supervisor itself gives its API server 15 minutes before it starts over.
const SERVER_LIMIT: Duration = Duration::from_secs(1200);
const AGENT_LIMIT: Duration = Duration::from_secs(900);
/// Several starts of a server that fails in its first second.
const FAILURE_LIMIT: Duration = Duration::from_secs(60);

/// What the founding of etcd needs to know.
#[derive(Clone, Copy)]
pub struct Founding<'a> {
    /// Every file of the founder, its config without `server:` among them.
    pub files: &'a [GuestFile],
    /// The CA files, which only the founder receives.
    pub authority: &'a [GuestFile],
    /// The id of the intent that the founder's mark records.
    pub intent: &'a str,
    pub expected: &'a ExpectedFacts,
    /// Every other control plane of the file and every other machine marked as a server. Each must prove that it has no datastore.
    pub others: &'a [OpenGuest],
}

/// A machine that joins.
#[derive(Clone, Copy)]
pub struct Join<'a> {
    /// Every file of the machine, its config with `server:` and token among them.
    pub files: &'a [GuestFile],
    pub expected: &'a ExpectedFacts,
    /// The address of its `server:`.
    pub through: IpAddr,
    /// Every server that was ever started, the joining one excluded. A joining server must be a voter for each of them.
    pub servers: &'a [IpAddr],
}

/// Starts the first server without `server:`, once in the life of a cluster, and waits until it is ready under our authority.
pub async fn found(guest: &OpenGuest, founding: &Founding<'_>, progress: &dyn WaitReporter) -> Result<(), Failure> {
    let supervisor = guest.access.supervisor(guest.machine().address)?;
    if matches!(founder_status(&supervisor, guest.name()).await, Ok(Poll::Done(()))) {
        return Ok(());
    }
    check_no_other_datastore(guest, founding.others).await?;
    let all: Vec<GuestFile> = founding.authority.iter().chain(founding.files).cloned().collect();
    let probe = probe(guest, Role::Server, &all).await?;
    check(guest, &probe, founding.expected)?;
    match datastore(&probe) {
        Datastore::Unknown => return Err(unknown_datastore(guest)),
        Datastore::Deleted => {
            let what = format!("the datastore of {} is gone, and it had been started before", guest.name());
            return Err(Failure::refused(what).help("restore the datastore from a snapshot, or run `down` and begin again"));
        }
        // Started by an earlier run. Nothing is written under a server that lives.
        Datastore::Present => {}
        Datastore::Absent => {
            write_all(guest, outdated(guest, &probe, &all)?).await?;
            guest
                .execute(&guest_config::may_found(guest.access.distro, founding.intent), progress)
                .await?;
        }
    }
    ensure_started(guest, Role::Server, &probe, progress).await?;
    let what = format!("{} did not found the cluster", guest.name());
    await_server(guest, &what, progress, async || {
        founder_status(&supervisor, guest.name()).await
    })
    .await
}

/// Deletes the datastore of a founder that was killed in its first seconds and can never start, so that it may be founded again. The
/// caller knows that the server never was ready, and that no other one was started since.
pub async fn recover_founder(guest: &OpenGuest, founding: &Founding<'_>, progress: &dyn WaitReporter) -> Result<(), Failure> {
    let refused = |why: &str| {
        let what = format!("the datastore of {} is not deleted", guest.name());
        Err(Failure::refused(what).why(why))
    };
    check_no_other_datastore(guest, founding.others).await?;
    let supervisor = guest.access.supervisor(guest.machine().address)?;
    if supervisor.members().await.is_ok() {
        return refused("its etcd answers");
    }
    let probe = probe(guest, Role::Server, &[]).await?;
    match datastore(&probe) {
        Datastore::Unknown => return Err(unknown_datastore(guest)),
        // Deleted by an earlier run that was killed before it recorded the intent again.
        Datastore::Absent | Datastore::Deleted => {}
        Datastore::Present => {
            // The error shows itself within a second of every start, and a start follows every five seconds.
            let what = format!(
                "{} does not show the error of a founder that was killed in its first seconds",
                guest.name()
            );
            until(&guest.access, progress, &what, FAILURE_LIMIT, async || {
                let report = server_report(guest).await?;
                Ok(match has_founder_failure(&report.log) {
                    true => Poll::Done(()),
                    false => Poll::NotYet(unit_reason(&report)),
                })
            })
            .await?;
            let command = guest_config::wipe_unready_founder(guest.access.distro);
            guest.execute(&command, progress).await?;
        }
    }
    let command = guest_config::may_found(guest.access.distro, founding.intent);
    guest.execute(&command, progress).await.map(drop)
}

/// Whether the last start in a server's journal ended with the error of a founder that was killed in its first seconds.
pub fn has_founder_failure(log: &[String]) -> bool {
    const TEXTS: [&str; 2] = ["failed to read consistent index", "no bootstrap data found in datastore"];
    // Errors of starts before it may have been remedied.
    let last_start = log.iter().rposition(|line| line.contains("Starting ")).unwrap_or(0);
    log[last_start..]
        .iter()
        .any(|line| TEXTS.iter().any(|text| line.contains(text)))
}

/// How a machine joins, and the servers that must count it as a voter.
pub struct ChosenJoin<'a> {
    pub form: &'a JoinForm,
    pub servers: Vec<IpAddr>,
}

/// The first of these servers that is ready. A server that only has our certificates has joined nothing yet.
pub async fn choose_join<'a>(access: &RancherAccess, machine: &str, forms: &'a [JoinForm]) -> Result<ChosenJoin<'a>, Failure> {
    let mut failure = Failure::stale_plan(format!("{machine} has no other server to join"));
    for form in forms {
        let supervisor = access.supervisor(form.through)?;
        let what = || format!("{machine} cannot join through {}", form.through);
        let members = async {
            supervisor.serves_our_authority().await?;
            supervisor.readyz().await?;
            supervisor.members().await
        };
        match members.await {
            Ok(members) => {
                let servers = answering_servers(access, &members, machine).await;
                return Ok(ChosenJoin { form, servers });
            }
            Err(error @ SupervisorError::Foreign(_)) => return Err(error.into_failure(what())),
            Err(error) => failure = error.into_failure(what()),
        }
    }
    Err(failure)
}

/// The servers of these members that list members themselves. One that is away has no word in who joins.
async fn answering_servers(access: &RancherAccess, members: &[SupervisorMember], joining: &str) -> Vec<IpAddr> {
    let voters = members.iter().filter(|member| !member.learner && !member.is_of(joining));
    let addresses: Vec<IpAddr> = voters.filter_map(SupervisorMember::address).collect();
    let asked = addresses.iter().map(|address| async move {
        let supervisor = access.supervisor(*address).ok()?;
        supervisor.members().await.ok().map(|_| *address)
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

/// Starts a further server and waits until every server counts it as a voter. From here on it must not be stopped before it is one.
pub async fn join_server(guest: &OpenGuest, join: &Join<'_>, progress: &dyn WaitReporter) -> Result<(), Failure> {
    let own = guest.access.supervisor(guest.machine().address)?;
    let servers = join.servers.iter().map(|address| guest.access.supervisor(*address));
    let servers: Vec<Supervisor> = servers.collect::<Result<_, _>>()?;
    if matches!(joined_status(&own, &servers, guest.name()).await, Ok(Poll::Done(()))) {
        return Ok(());
    }
    start_joiner(guest, join, Role::Server, progress).await?;
    let what = format!("{} did not become a voting etcd member", guest.name());
    await_server(guest, &what, progress, async || {
        joined_status(&own, &servers, guest.name()).await
    })
    .await
}

/// Starts an agent and waits until it runs. Its Node is awaited elsewhere.
pub async fn join_agent(guest: &OpenGuest, join: &Join<'_>, progress: &dyn WaitReporter) -> Result<(), Failure> {
    start_joiner(guest, join, Role::Agent, progress).await?;
    await_agent(guest, progress).await
}

/// The unit of an agent says that it is ready once an API server answered it.
pub(super) async fn await_agent(guest: &OpenGuest, progress: &dyn WaitReporter) -> Result<(), Failure> {
    let unit = guest.access.distro.unit(Role::Agent);
    let what = format!("the agent of {} did not start", guest.name());
    until(&guest.access, progress, &what, AGENT_LIMIT, async || {
        let report = unit_report(guest, unit, None).await?;
        Ok(match report.unit.active.as_str() {
            "active" => Poll::Done(()),
            _ => Poll::NotYet(unit_reason(&report)),
        })
    })
    .await
}

async fn start_joiner(guest: &OpenGuest, join: &Join<'_>, role: Role, progress: &dyn WaitReporter) -> Result<(), Failure> {
    let target = guest.access.supervisor(join.through)?;
    // A machine that joins hands its token to that server, and believes its authority from then on.
    target
        .serves_our_authority()
        .await
        .map_err(|error| error.into_failure(format!("{} cannot join through {}", guest.name(), join.through)))?;
    let probe = probe(guest, role, join.files).await?;
    check(guest, &probe, join.expected)?;
    if role == Role::Server && datastore(&probe) == Datastore::Unknown {
        return Err(unknown_datastore(guest));
    }
    write_all(guest, outdated(guest, &probe, join.files)?).await?;
    ensure_started(guest, role, &probe, progress).await
}

async fn write_all(guest: &OpenGuest, files: Vec<&GuestFile>) -> Result<(), Failure> {
    for file in files {
        guest.write(file).await?;
    }
    Ok(())
}

/// A unit that runs, or that systemd starts over, is left alone: a joining server must never be stopped.
async fn ensure_started(guest: &OpenGuest, role: Role, probe: &Probe, progress: &dyn WaitReporter) -> Result<(), Failure> {
    let distro = guest.access.distro;
    let unit = probe.units.get(distro.unit(role));
    let runs = unit.is_some_and(|unit| matches!(unit.active.as_str(), "active" | "activating" | "reloading"));
    let enabled = unit.is_some_and(|unit| unit.file == "enabled");
    if runs && enabled {
        return Ok(());
    }
    guest
        .execute(&guest_config::start_unit(distro, role), progress)
        .await
        .map(drop)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Datastore {
    Present,
    Absent,
    /// The server ran once and its datastore is not there any more.
    Deleted,
    Unknown,
}

fn datastore(probe: &Probe) -> Datastore {
    let state = |path: &str| probe.data.get(path).copied().unwrap_or(DataState::Unknown);
    let stores = [state("server/db/etcd"), state("server/db/state.db")];
    if stores.contains(&DataState::Present) {
        return Datastore::Present;
    }
    if stores.contains(&DataState::Unknown) {
        return Datastore::Unknown;
    }
    // Credentials are written at the first start. A recorded intent is removed when the server was ready once.
    match (state("server/cred"), state("found")) {
        (DataState::Absent, _) | (DataState::Present, DataState::Present) => Datastore::Absent,
        (DataState::Present, DataState::Absent) => Datastore::Deleted,
        _ => Datastore::Unknown,
    }
}

fn unknown_datastore(guest: &OpenGuest) -> Failure {
    let what = format!(
        "whether {} has a datastore cannot be read, so its server is not started",
        guest.name()
    );
    Failure::new(FailureKind::Failed, what).help("check the machine's disk: dmesg on its console")
}

/// A second founding would be a second cluster. Every other server is read in the same moment; one that cannot tell stops the founding.
async fn check_no_other_datastore(founder: &OpenGuest, others: &[OpenGuest]) -> Result<(), Failure> {
    let probes = others.iter().map(|other| probe(other, Role::Server, &[]));
    let probes = futures::future::join_all(probes).await;
    for (other, seen) in others.iter().zip(probes) {
        let why = match seen {
            Err(failure) => format!("{} cannot be read: {failure}", other.name()),
            Ok(probe) => match probe.has_datastore() {
                Some(false) => continue,
                Some(true) => format!("{} has a datastore", other.name()),
                None => format!("{} cannot tell whether it has a datastore", other.name()),
            },
        };
        let what = format!("{} does not found a cluster", founder.name());
        return Err(Failure::stale_plan(what).why(why));
    }
    Ok(())
}

async fn server_report(guest: &OpenGuest) -> Result<UnitReport, Failure> {
    unit_report(guest, guest.access.distro.unit(Role::Server), None).await
}

/// Waits for a server by its supervisor. While that is silent, its unit tells why.
async fn await_server(
    guest: &OpenGuest,
    what: &str,
    progress: &dyn WaitReporter,
    mut status: impl AsyncFnMut() -> Result<Poll<()>, SupervisorError>,
) -> Result<(), Failure> {
    until(&guest.access, progress, what, SERVER_LIMIT, async || match status().await {
        Ok(poll) => Ok(poll),
        Err(error @ SupervisorError::Foreign(_)) => Err(error.into_failure(what)),
        Err(SupervisorError::Silent(_)) => {
            let report = server_report(guest).await?;
            if has_founder_failure(&report.log) {
                let why = "it was killed in the first seconds of its first start and cannot start again";
                return Err(Failure::stale_plan(what).why(why));
            }
            if let Some(refused) = report.refused.as_ref().filter(|_| report.unit.active == "inactive") {
                return Err(Failure::refused(what).why(format!("its start was refused: {refused}")));
            }
            Ok(Poll::NotYet(unit_reason(&report)))
        }
        Err(error) => Ok(Poll::NotYet(error.to_string())),
    })
    .await
}

/// Ready, alone in its etcd, and serving our authority.
async fn founder_status(supervisor: &Supervisor, node: &str) -> Result<Poll<()>, SupervisorError> {
    supervisor.serves_our_authority().await?;
    let members = supervisor.members().await?;
    if let Some(reason) = not_a_voter(&members, node) {
        return Ok(Poll::NotYet(reason));
    }
    supervisor.readyz().await?;
    Ok(Poll::Done(()))
}

/// A voter for every server, in one cluster: all of them name the same members.
async fn joined_status(own: &Supervisor, servers: &[Supervisor], node: &str) -> Result<Poll<()>, SupervisorError> {
    own.serves_our_authority().await?;
    let names = |members: &[SupervisorMember]| -> BTreeSet<String> { members.iter().map(|member| member.name.clone()).collect() };
    let mut seen: Option<BTreeSet<String>> = None;
    for server in servers.iter().chain([own]) {
        let members = match server.members().await {
            Ok(members) => members,
            Err(error) => return Ok(Poll::NotYet(format!("{server:?}: {error}"))),
        };
        if let Some(reason) = not_a_voter(&members, node) {
            return Ok(Poll::NotYet(reason));
        }
        let names = names(&members);
        if seen.as_ref().is_some_and(|seen| *seen != names) {
            return Ok(Poll::NotYet("the servers name different etcd members".into()));
        }
        seen = Some(names);
    }
    own.readyz().await?;
    Ok(Poll::Done(()))
}

fn not_a_voter(members: &[SupervisorMember], node: &str) -> Option<String> {
    match members.iter().find(|member| member.is_of(node)) {
        None => Some("it is not a member of etcd yet".into()),
        Some(member) if member.learner => Some("it is a learner of etcd and waits to be promoted".into()),
        Some(_) => None,
    }
}

/// What a unit that does not run says: the guard's refusal, the last error of its journal, or its state.
pub(super) fn unit_reason(report: &UnitReport) -> String {
    let unit = &report.unit;
    if let Some(refused) = report.refused.as_ref().filter(|_| unit.active == "inactive") {
        return refused.clone();
    }
    let is_error = |line: &&String| {
        ["level=fatal", "level=error", "Failed", "Waiting"]
            .iter()
            .any(|word| line.contains(word))
    };
    match report.log.iter().rev().find(is_error) {
        Some(line) => line.chars().take(300).collect(),
        None => format!("its unit is {} ({})", unit.active, unit.sub),
    }
}
