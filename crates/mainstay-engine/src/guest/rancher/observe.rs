//! What one machine is, by supervisor and SSH.

use std::time::Duration;

use mainstay_plan::guest::RancherFiles;
use rancher_config::guest::{GuestFile, Probe, UnitState};
use rancher_config::manifests::VIP_LABEL;
use rancher_config::{ReleaseVersion, Role};

use super::access::RancherAccess;
use super::lifecycle::has_founder_failure;
use super::prepare::{probe, unit_report};
use super::session::OpenGuest;
use super::ssh::{MachineAccess, SshState};
use super::supervisor::{SupervisorError, SupervisorMember};
use super::vip::vip_holder;

/// A login that waits out a penalty of sshd does not hold up an observation.
const SSH_LIMIT: Duration = Duration::from_secs(20);

/// The machine to observe.
#[derive(Clone, Copy)]
pub struct ObservedMachine<'a> {
    pub machine: &'a MachineAccess,
    pub role: Role,
    /// Files whose state is wanted.
    pub files: &'a [GuestFile],
    /// `server:` of configs that need no change.
    pub servers: &'a [String],
}

/// Everything that was seen, and what it means.
#[derive(Debug)]
pub struct RancherObservation {
    pub guest: RancherGuest,
    /// How far SSH came.
    pub ssh: SshState,
    /// Why SSH steps are not possible, if they are not.
    pub ssh_problem: Option<String>,
    pub probe: Option<Probe>,
}

#[derive(Debug)]
pub enum RancherGuest {
    /// Neither channel answers.
    Silent {
        why: String,
    },
    /// Booted, and its server or agent was never started. `proved`: it is the VM of the plan.
    WaitingForConfig {
        proved: bool,
    },
    Running(Box<RunningFacts>),
    /// Another machine, or a server of another authority.
    Foreign {
        why: String,
    },
}

/// A machine whose server or agent was started at least once.
#[derive(Debug, Default)]
pub struct RunningFacts {
    /// What the API server of this machine runs; for an agent, what is installed.
    pub version: Option<ReleaseVersion>,
    pub boot_id: Option<String>,
    /// The supervisor says ready; for an agent, its unit does.
    pub ready: bool,
    pub not_ready_because: Option<String>,
    /// The members that this server names, or why it names none. `None` for an agent.
    pub members: Option<Result<Vec<SupervisorMember>, String>>,
    pub unit: Option<UnitState>,
    /// The founder was killed in its first seconds and can never start.
    pub founder_failed: bool,
    /// It has the virtual address.
    pub holds_vip: bool,
    /// A killed run left the label that keeps the virtual address away.
    pub vip_off: bool,
    /// How files differ from `files`. `None` if that could not be read.
    pub files: Option<RancherFiles>,
}

/// Looks at one machine. Changes nothing, and sends nothing but questions.
pub async fn observe(access: &RancherAccess, asked: &ObservedMachine<'_>) -> RancherObservation {
    let (by_supervisor, by_ssh) = tokio::join!(ask_supervisor(access, asked), ask_ssh(access, asked));
    let (ssh, ssh_problem, opened) = match by_ssh {
        Ok((guest, probe)) => (SshState::Ready, None, Some((guest, probe))),
        Err((state, why)) => (state, Some(why), None),
    };
    let guest = match (by_supervisor, &opened) {
        (Some(Err(SupervisorError::Foreign(why))), _) => RancherGuest::Foreign { why },
        (Some(Ok(mut facts)), opened) => {
            // A founder that can never start answers for a moment at each of its starts.
            if let (false, Some(Err(_)), Some((guest, _))) = (facts.ready, &facts.members, opened) {
                facts.founder_failed = shows_founder_failure(guest, asked.role).await;
            }
            RancherGuest::Running(Box::new(with_probe(facts, asked, opened.as_ref().map(|it| &it.1))))
        }
        (None | Some(Err(_)), Some((guest, probe))) => by_probe(access, asked, guest, probe).await,
        (None | Some(Err(_)), None) => match ssh {
            SshState::OtherMachine | SshState::HostKeyMismatch => RancherGuest::Foreign {
                why: ssh_problem.clone().unwrap_or_default(),
            },
            SshState::LoginRefused | SshState::NoSudo => RancherGuest::WaitingForConfig { proved: false },
            _ => RancherGuest::Silent {
                why: ssh_problem.clone().unwrap_or_default(),
            },
        },
    };
    RancherObservation {
        guest,
        ssh,
        ssh_problem,
        probe: opened.map(|(_, probe)| probe),
    }
}

/// `None` for an agent, which has no supervisor. A supervisor that answers and is not ready is a running machine.
async fn ask_supervisor(access: &RancherAccess, asked: &ObservedMachine<'_>) -> Option<Result<RunningFacts, SupervisorError>> {
    if asked.role == Role::Agent {
        return None;
    }
    let address = asked.machine.address;
    let supervisor = match access.supervisor(address) {
        Ok(supervisor) => supervisor,
        Err(failure) => return Some(Err(SupervisorError::Silent(failure.what))),
    };
    match supervisor.serves_our_authority().await {
        Ok(()) | Err(SupervisorError::NotReady(_)) => {}
        Err(error) => return Some(Err(error)),
    }
    let (ready, members) = tokio::join!(supervisor.readyz(), supervisor.members());
    let (version, holder, node) = match access.kubernetes(address) {
        Ok(cluster) => {
            let (version, holder, node) =
                tokio::join!(cluster.version(), vip_holder(&cluster), cluster.node(&asked.machine.name));
            (version.ok(), holder.ok().flatten(), node.ok().flatten())
        }
        Err(_) => (None, None, None),
    };
    let version = version.and_then(|version| ReleaseVersion::parse(access.distro, &format!("v{version}")).ok());
    Some(Ok(RunningFacts {
        version,
        ready: ready.is_ok(),
        not_ready_because: ready.err().map(|error| error.to_string()),
        members: Some(members.map_err(|error| error.to_string())),
        holds_vip: holder.as_deref() == Some(asked.machine.name.as_str()),
        vip_off: node.is_some_and(|node| node.labels.contains_key(VIP_LABEL)),
        ..RunningFacts::default()
    }))
}

async fn ask_ssh(access: &RancherAccess, asked: &ObservedMachine<'_>) -> Result<(OpenGuest, Probe), (SshState, String)> {
    let attempt = async {
        if let Err(problem) = access.prove_once(asked.machine).await {
            return Err((problem.state, problem.text()));
        }
        let guest = OpenGuest::proved(access, asked.machine);
        match probe(&guest, asked.role, asked.files).await {
            Ok(probe) => Ok((guest, probe)),
            Err(failure) => Err((SshState::Disconnected, failure.why.unwrap_or(failure.what))),
        }
    };
    match tokio::time::timeout(SSH_LIMIT, attempt).await {
        Ok(outcome) => outcome,
        Err(_) => Err((SshState::NoBanner, format!("no SSH login within {SSH_LIMIT:?}"))),
    }
}

async fn shows_founder_failure(guest: &OpenGuest, role: Role) -> bool {
    let report = unit_report(guest, guest.access.distro.unit(role), None).await;
    report.is_ok_and(|report| has_founder_failure(&report.log))
}

fn with_probe(mut facts: RunningFacts, asked: &ObservedMachine<'_>, probe: Option<&Probe>) -> RunningFacts {
    let Some(probe) = probe else { return facts };
    facts.boot_id = Some(probe.boot_id.clone());
    let paths = |files: Vec<&GuestFile>| files.into_iter().map(|file| file.path.clone()).collect();
    facts.files = probe.changes(asked.files, asked.servers).map(|changes| RancherFiles {
        outdated: paths(changes.restart),
        live: paths(changes.live),
        restart_pending: probe.restart_pending,
        vip_off: facts.vip_off,
    });
    facts
}

/// A machine whose supervisor is silent, or an agent: the guest itself tells whether it was ever started.
async fn by_probe(access: &RancherAccess, asked: &ObservedMachine<'_>, guest: &OpenGuest, probe: &Probe) -> RancherGuest {
    let name = access.distro.unit(asked.role);
    let unit = probe.units.get(name).cloned().unwrap_or_default();
    let runs = matches!(unit.active.as_str(), "active" | "activating" | "reloading" | "deactivating");
    let started = match asked.role {
        Role::Server => probe.has_datastore() != Some(false),
        Role::Agent => false,
    };
    // A started unit is enabled, so that it starts again after a reboot. Nothing else enables it.
    if !runs && !started && unit.file != "enabled" {
        return RancherGuest::WaitingForConfig { proved: true };
    }
    let log = unit_report(guest, name, None)
        .await
        .map(|report| report.log)
        .unwrap_or_default();
    let ready = asked.role == Role::Agent && unit.active == "active";
    let facts = RunningFacts {
        version: probe.version,
        ready,
        not_ready_because: (!ready).then(|| format!("{name} is {} ({})", unit.active, unit.sub)),
        members: (asked.role == Role::Server).then(|| Err("its supervisor does not answer".to_owned())),
        founder_failed: asked.role == Role::Server && has_founder_failure(&log),
        unit: Some(unit),
        ..RunningFacts::default()
    };
    RancherGuest::Running(Box::new(with_probe(facts, asked, Some(probe))))
}
