//! A fresh guest becomes one whose server or agent can be started: system settings, disks, artifact.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use rancher_config::guest::{
    self as guest_config, CLOCK_LIMIT, CloudInit, GuestFile, PinnedArtifact, Probe, ProbeError, UnitReport, Work,
};
use rancher_config::{ReleaseVersion, Role};

use super::push::{self, ArtifactFiles};
use super::session::OpenGuest;
use super::ssh::SshState;
use super::wait::{Poll, WaitReporter, until};
use crate::failure::{Failure, FailureKind};

/// cloud-init's last stages may wait for a network that never comes.
const CLOUD_INIT_LIMIT: Duration = Duration::from_secs(360);
/// A slow network may take this long for one release.
const WORK_LIMIT: Duration = Duration::from_secs(3600);

/// What a machine is prepared for.
#[derive(Clone, Copy)]
pub struct Preparation<'a> {
    pub role: Role,
    /// Every file of the machine. Secret ones are written by the step that starts the unit.
    pub files: &'a [GuestFile],
    pub version: ReleaseVersion,
    pub artifacts: &'a [PinnedArtifact],
    /// Where artifacts come from that are pushed.
    pub pushed: Option<&'a dyn ArtifactFiles>,
    pub expected: &'a ExpectedFacts,
}

/// What the first boot must have made of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedFacts {
    pub hostname: String,
    pub address: IpAddr,
    /// Of the card that carries the address.
    pub mac: String,
}

/// Something in a guest that keeps its server or agent from being started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestProblem {
    Hostname {
        seen: String,
        expected: String,
    },
    NoCard {
        mac: String,
    },
    Address {
        address: IpAddr,
        card: String,
    },
    NoDefaultRoute,
    /// It would cut the cluster's own traffic. It belongs to the image and is not changed.
    Firewall(String),
    /// A file in `config.yaml.d`, which wins over ours.
    ForeignConfig(String),
    Clock {
        seconds: i64,
    },
}

impl fmt::Display for GuestProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hostname { seen, expected } => write!(f, "its hostname is {seen}, not {expected}"),
            Self::NoCard { mac } => write!(f, "it has no network card with the MAC {mac}"),
            Self::Address { address, card } => write!(f, "{card} does not have the address {address}"),
            Self::NoDefaultRoute => f.write_str("it has no default route"),
            Self::Firewall(name) => write!(f, "the firewall {name} is active and would cut the cluster's traffic"),
            Self::ForeignConfig(name) => write!(f, "config.yaml.d/{name} is not ours and overrides the config"),
            Self::Clock { seconds } => write!(f, "its clock differs by {seconds} s from the operator's"),
        }
    }
}

/// Everything in a probe that speaks against starting a server or agent.
pub fn check_facts(probe: &Probe, expected: &ExpectedFacts, now: Timestamp) -> Vec<GuestProblem> {
    let mut problems = Vec::new();
    if probe.hostname.split('.').next() != Some(expected.hostname.as_str()) {
        problems.push(GuestProblem::Hostname {
            seen: probe.hostname.clone(),
            expected: expected.hostname.clone(),
        });
    }
    let mac = expected.mac.to_ascii_lowercase();
    match probe.nics.iter().find(|(_, seen)| **seen == mac) {
        None => problems.push(GuestProblem::NoCard { mac }),
        Some((card, _)) => {
            let has = |(name, address): &(String, String)| {
                name == card && address.split('/').next().and_then(|text| text.parse().ok()) == Some(expected.address)
            };
            if !probe.addresses.iter().any(has) {
                problems.push(GuestProblem::Address {
                    address: expected.address,
                    card: card.clone(),
                });
            }
        }
    }
    if probe.default_route.is_none() {
        problems.push(GuestProblem::NoDefaultRoute);
    }
    problems.extend(probe.firewalls.iter().cloned().map(GuestProblem::Firewall));
    problems.extend(probe.foreign_configs.iter().cloned().map(GuestProblem::ForeignConfig));
    let offset = probe.clock_offset(now);
    if offset.abs() > CLOCK_LIMIT {
        problems.push(GuestProblem::Clock {
            seconds: offset.as_secs(),
        });
    }
    problems
}

/// All facts of a machine, of which every step on it is decided. `files` are those whose hash is wanted.
pub async fn probe(guest: &OpenGuest, role: Role, files: &[GuestFile]) -> Result<Probe, Failure> {
    let distro = guest.access.distro;
    let output = guest.run(&guest_config::probe(distro, role, files)).await?;
    let text = output.stdout_text();
    Probe::parse(distro, &text).map_err(|error| unreadable_probe(guest, &text, error))
}

/// Shows the line that could not be read: a probe's answer holds no secret.
fn unreadable_probe(guest: &OpenGuest, text: &str, error: ProbeError) -> Failure {
    let line = match error {
        ProbeError::Line { line } => text.lines().nth(line - 1).unwrap_or_default(),
        _ => text.lines().last().unwrap_or_default(),
    };
    let line: String = line.chars().take(100).collect();
    let what = format!("the state of {} cannot be read", guest.name());
    Failure::new(FailureKind::Failed, what).why(format!("{error}: `{line}`"))
}

/// Makes the machine ready for the first start of its unit, or goes on where an earlier run stopped. Starts nothing of the cluster.
pub async fn prepare(guest: &OpenGuest, preparation: &Preparation<'_>, progress: &dyn WaitReporter) -> Result<Probe, Failure> {
    let probe = await_cloud_init(guest, preparation, progress).await?;
    check(guest, &probe, preparation.expected)?;
    guest
        .execute(&guest_config::directories(guest.access.distro), progress)
        .await?;
    for file in outdated(guest, &probe, preparation.files)?
        .into_iter()
        .filter(|file| !file.secret)
    {
        guest.write(file).await?;
    }
    push::push(guest, preparation.artifacts, preparation.pushed, progress).await?;
    let (prepared, fetched) = tokio::join!(
        run_work(guest, Work::Prepare, preparation.files, progress),
        run_work(guest, Work::Fetch, preparation.files, progress)
    );
    prepared?;
    fetched?;
    activate(guest, preparation.role, preparation.version, progress).await?;
    self::probe(guest, preparation.role, preparation.files).await
}

/// Installs packages in the background. The cluster never depends on them.
pub async fn start_packages(guest: &OpenGuest, progress: &dyn WaitReporter) -> Result<(), Failure> {
    guest
        .execute(&guest_config::run_work(Work::Packages), progress)
        .await
        .map(drop)
}

/// Refuses to go on with a machine that would not work.
pub(super) fn check(guest: &OpenGuest, probe: &Probe, expected: &ExpectedFacts) -> Result<(), Failure> {
    let problems = check_facts(probe, expected, guest.access.env.wall.now());
    if problems.is_empty() {
        return Ok(());
    }
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let what = format!("{} cannot be set up as it is", guest.name());
    Err(Failure::new(FailureKind::Held, what).why(texts.join("; ")))
}

/// Files that must be written, or why that cannot be said.
pub(super) fn outdated<'a>(guest: &OpenGuest, probe: &Probe, files: &'a [GuestFile]) -> Result<Vec<&'a GuestFile>, Failure> {
    probe.outdated(files).ok_or_else(|| unknown_files(guest))
}

pub(super) fn unknown_files(guest: &OpenGuest) -> Failure {
    let what = format!("a file of {} could not be read", guest.name());
    Failure::new(FailureKind::Failed, what).help("check the machine's disk: dmesg on its console")
}

/// Logins work before cloud-init is done. Files that it still writes would overwrite ours.
async fn await_cloud_init(
    guest: &OpenGuest,
    preparation: &Preparation<'_>,
    progress: &dyn WaitReporter,
) -> Result<Probe, Failure> {
    let what = format!("cloud-init did not end on {}", guest.name());
    until(&guest.access, progress, &what, CLOUD_INIT_LIMIT, async || {
        let probe = probe(guest, preparation.role, preparation.files).await?;
        Ok(match probe.cloud_init {
            CloudInit::Running => Poll::NotYet(SshState::CloudInitRunning.to_string()),
            CloudInit::Done | CloudInit::Disabled => Poll::Done(probe),
        })
    })
    .await
}

/// Runs work of the guest to its end, or waits for the one that runs already.
pub(super) async fn run_work(
    guest: &OpenGuest,
    work: Work,
    files: &[GuestFile],
    progress: &dyn WaitReporter,
) -> Result<(), Failure> {
    let path = work.input_path();
    let input = files.iter().find(|file| file.path == path).map(GuestFile::sha256);
    let input =
        input.ok_or_else(|| Failure::new(FailureKind::Bug, format!("{path} is not among the files of {}", guest.name())))?;
    let mut started = false;
    let what = format!("`{}` did not end on {}", work.name(), guest.name());
    until(&guest.access, progress, &what, WORK_LIMIT, async || {
        let report = unit_report(guest, &work.unit(), Some(work)).await?;
        let runs = matches!(
            report.unit.active.as_str(),
            "activating" | "active" | "deactivating" | "reloading"
        );
        let result = report.result.as_ref().filter(|result| result.input == input);
        match result {
            Some(result) if result.rc == 0 => return Ok(Poll::Done(())),
            Some(result) if runs => return Ok(Poll::NotYet(format!("{}: {}", work.name(), result.text))),
            Some(result) if started && result.boot == report.boot_id && result.rc != guest_config::WorkResult::RUNNING => {
                return Err(work_failure(guest, work, result));
            }
            _ if runs => return Ok(Poll::NotYet(format!("{} is running", work.name()))),
            _ => {}
        }
        // Never begun, begun for another input, cut off by a reboot, or failed before this step: it begins.
        if started && report.unit.result != "success" {
            let line = report.log.last().cloned().unwrap_or_default();
            return Err(Failure::new(FailureKind::Failed, format!("`{}` failed on {}", work.name(), guest.name())).why(line));
        }
        guest.execute(&guest_config::run_work(work), progress).await?;
        started = true;
        Ok(Poll::NotYet(format!("{} begins", work.name())))
    })
    .await
}

fn work_failure(guest: &OpenGuest, work: Work, result: &guest_config::WorkResult) -> Failure {
    // sysexits: a wrong checksum or a disk with data does not pass by itself.
    let kind = match result.rc {
        65 | 77 => FailureKind::Refused,
        _ => FailureKind::Failed,
    };
    let what = format!("`{}` failed on {}", work.name(), guest.name());
    let failure = Failure::new(kind, what).why(result.text.clone());
    match (work, result.rc) {
        (Work::Fetch, 65) => failure.help("the download differs from the pinned release: check the mirror or proxy in between"),
        (Work::Fetch, 69) => failure.help("for guests without internet set `mirror:` or `artifact: push`"),
        _ => failure,
    }
}

pub(super) async fn unit_report(guest: &OpenGuest, unit: &str, work: Option<Work>) -> Result<UnitReport, Failure> {
    let output = guest.run(&guest_config::unit_status(unit, work)).await?;
    UnitReport::parse(&output.stdout_text()).map_err(|error| {
        let what = format!("the state of {unit} on {} cannot be read", guest.name());
        Failure::new(FailureKind::Failed, what).why(error.to_string())
    })
}

/// Installs the fetched release. A running process keeps its version until its unit restarts.
pub(super) async fn activate(
    guest: &OpenGuest,
    role: Role,
    version: ReleaseVersion,
    progress: &dyn WaitReporter,
) -> Result<(), Failure> {
    if probe(guest, role, &[]).await?.version == Some(version) {
        return Ok(());
    }
    guest.execute(&guest_config::activate(version), progress).await?;
    let seen = probe(guest, role, &[]).await?.version;
    if seen == Some(version) {
        return Ok(());
    }
    let seen = seen.map_or("no version".to_owned(), |seen| seen.to_string());
    let what = format!("the release installed on {} is not {version}", guest.name());
    Err(Failure::new(FailureKind::Failed, what).why(format!("the program says {seen}")))
}
