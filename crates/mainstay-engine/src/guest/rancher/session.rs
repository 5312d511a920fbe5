//! SSH to a guest: from the first dial to a machine that proved to be ours.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mainstay_net::{
    HostKeyPolicy, RemoteFile, Secret, SshClient, SshCommand, SshEndpoint, SshError, SshErrorClass, SshHostKey, SshLimits,
    SshOutput, Target,
};
use rancher_config::guest::{GuestCommand, GuestFile, LOCKED};
use tokio::io::AsyncRead;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::access::{MachineAccess, RancherAccess, SSH_USER};
use super::wait::{Poll, WaitReporter, until};
use crate::failure::{Failure, FailureKind};

pub const SSH_PORT: u16 = 22;

/// sshd's longest penalty is ten minutes, and a first boot takes a few.
const LOGIN_LIMIT: Duration = Duration::from_secs(900);

/// A refused key within this time after the start of the VM means that cloud-init has not written it yet.
const BOOT: Duration = Duration::from_secs(300);

/// A slow host needs no longer for the first boot of a cloud image.
const FIRST_BOOT: Duration = Duration::from_secs(120);

/// Commands of another run may hold the guest's lock for this long.
const LOCK_LIMIT: Duration = Duration::from_secs(300);

/// How far a machine is, as SSH sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SshState {
    NoTcp,
    NoBanner,
    HostKeyMismatch,
    Booting,
    /// The machine is up for long enough and does not accept our key.
    LoginRefused,
    NoSudo,
    /// Logged in, and the connection broke or a command did not begin.
    Disconnected,
    OtherMachine,
    CloudInitRunning,
    Ready,
}

impl SshState {
    /// One wording for the live view.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NoTcp => "no TCP connection to its SSH port",
            Self::NoBanner => "its SSH port is open, sshd does not answer",
            Self::HostKeyMismatch => "it shows another host key than the recorded one",
            Self::Booting => "booting",
            Self::LoginRefused => "it does not accept our SSH key",
            Self::NoSudo => "the image has no sudo without a password",
            Self::Disconnected => "the SSH connection broke",
            Self::OtherMachine => "another machine answers on its address",
            Self::CloudInitRunning => "cloud-init is running",
            Self::Ready => "ready",
        }
    }

    fn of(error: &SshError, started: Option<Instant>) -> Self {
        use SshErrorClass as Class;
        match error.class() {
            Class::Refused | Class::TimedOut | Class::Unreachable | Class::JumpHost => Self::NoTcp,
            Class::NoBanner | Class::Penalty => Self::NoBanner,
            Class::HostKeyMismatch => Self::HostKeyMismatch,
            Class::LoginsDisabled => Self::Booting,
            Class::LoginRefused if started.is_some_and(|at| at.elapsed() < BOOT) => Self::Booting,
            Class::LoginRefused => Self::LoginRefused,
            Class::SudoRefused => Self::NoSudo,
            Class::OutcomeUnknown | Class::Other => Self::Disconnected,
        }
    }
}

impl fmt::Display for SshState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The connection to one machine. Clones share it.
#[derive(Clone)]
pub(super) struct GuestSession {
    machine: Arc<MachineAccess>,
    client: SshClient,
    /// The host key under which the proof succeeded. Once per run is enough: every connection of this client shows the same key.
    proved: Arc<Mutex<Option<SshHostKey>>>,
}

/// A machine that proved to be the VM of the plan, under its recorded host key. The only way to write into a guest.
#[derive(Clone)]
pub struct OpenGuest {
    pub(super) access: RancherAccess,
    session: GuestSession,
}

/// Why a login or a proof did not succeed.
#[derive(Debug, Clone)]
pub(super) struct SshProblem {
    pub state: SshState,
    pub error: Option<SshError>,
    pub why: String,
}

impl GuestSession {
    pub fn new(access: &RancherAccess, machine: &MachineAccess, key: Secret<String>) -> Self {
        let host_key = match &machine.pin {
            Some(pin) => HostKeyPolicy::Pinned(pin.clone()),
            None => HostKeyPolicy::LearnFirst,
        };
        let endpoint = SshEndpoint {
            address: Target::new(machine.address.to_string(), SSH_PORT),
            user: SSH_USER.to_owned(),
            key,
            host_key,
        };
        Self {
            machine: Arc::new(machine.clone()),
            client: SshClient::new(access.env.dialer.clone(), endpoint, SshLimits::default()),
            proved: Arc::default(),
        }
    }

    /// Whether this session may serve a caller with that pin: the same pin, or the key that was learned and has been recorded since.
    pub fn accepts(&self, machine: &MachineAccess) -> bool {
        if self.machine.uuid != machine.uuid {
            return false;
        }
        match (&self.machine.pin, &machine.pin) {
            (known, wanted) if known == wanted => true,
            (None, Some(wanted)) => self.proved.try_lock().is_ok_and(|proved| proved.as_ref() == Some(wanted)),
            _ => false,
        }
    }

    /// Logs in and proves the machine, once. Returns its host key.
    pub async fn prove_once(&self) -> Result<SshHostKey, SshProblem> {
        let mut proved = self.proved.lock().await;
        if let Some(key) = proved.as_ref() {
            return Ok(key.clone());
        }
        let key = self.client.connect().await.map_err(|error| self.problem(error))?;
        let command = SshCommand::root("prove the machine", PROOF);
        let output = self.client.run(&command).await.map_err(|error| self.problem(error))?;
        let text = output.stdout_text();
        let mut lines = text.lines().map(str::trim);
        let (uuid, serial) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let machine = &self.machine;
        if machine.serial.is_empty() || !uuid.eq_ignore_ascii_case(&machine.uuid) || serial != machine.serial {
            // The connection to a machine that is not ours is of no use, and its key must not be remembered.
            self.client.close().await;
            let differs = if uuid.eq_ignore_ascii_case(&machine.uuid) {
                "SMBIOS serial"
            } else {
                "SMBIOS UUID"
            };
            return Err(SshProblem {
                state: SshState::OtherMachine,
                error: None,
                why: format!(
                    "the {differs} of the machine on {} is not the one in the config of its VM",
                    machine.address
                ),
            });
        }
        *proved = Some(key.clone());
        Ok(key)
    }

    fn problem(&self, error: SshError) -> SshProblem {
        SshProblem {
            state: SshState::of(&error, self.machine.started),
            why: error.to_string(),
            error: Some(error),
        }
    }
}

/// Two lines. The files belong to root.
const PROOF: &str = "cat /sys/class/dmi/id/product_uuid /sys/class/dmi/id/product_serial";

impl SshProblem {
    /// States that pass while a machine boots, and connection losses.
    fn is_retryable(&self) -> bool {
        match self.state {
            SshState::NoTcp => self
                .error
                .as_ref()
                .is_none_or(|error| error.class() != SshErrorClass::JumpHost),
            SshState::NoBanner | SshState::Booting | SshState::Disconnected => true,
            _ => false,
        }
    }

    pub fn text(&self) -> String {
        match self.state {
            SshState::NoTcp | SshState::NoBanner | SshState::Disconnected => format!("{}: {}", self.state, self.why),
            SshState::OtherMachine => self.why.clone(),
            _ => self.state.to_string(),
        }
    }

    pub fn into_failure(self, machine: &str) -> Failure {
        let kind = match self.state {
            SshState::NoTcp | SshState::NoBanner | SshState::Booting | SshState::Disconnected | SshState::CloudInitRunning => {
                FailureKind::Unreachable
            }
            SshState::HostKeyMismatch | SshState::OtherMachine => FailureKind::Conflict,
            SshState::LoginRefused | SshState::NoSudo => FailureKind::Denied,
            SshState::Ready => FailureKind::Bug,
        };
        let what = format!("{machine} cannot be configured over SSH: {}", self.state);
        let mut failure = Failure::new(kind, what).why(self.why);
        if let Some(error) = self.error {
            failure.help.extend(error.remedy());
            failure = failure.caused_by(error);
        }
        failure
    }
}

impl RancherAccess {
    /// Waits for the machine's first login and proves it. Returns the host key to record in its mark, before anything secret is sent.
    pub async fn prove(&self, machine: &MachineAccess, progress: &dyn WaitReporter) -> Result<SshHostKey, Failure> {
        let what = format!("{} accepted no SSH login", machine.name);
        let began = Instant::now();
        let proved = until(self, progress, &what, LOGIN_LIMIT, async || {
            match self.prove_once(machine).await {
                Ok(key) => Ok(Poll::Done(key)),
                // Until the guest has had time to boot, its silence is no problem.
                Err(problem) if problem.is_retryable() && began.elapsed() < FIRST_BOOT => {
                    Ok(Poll::NotYet("booting: SSH is not up yet".to_owned()))
                }
                Err(problem) if problem.is_retryable() => Ok(Poll::NotYet(problem.text())),
                Err(problem) => Err(problem.into_failure(&machine.name)),
            }
        });
        proved.await.map_err(|failure| match failure.kind {
            FailureKind::Unsettled => failure.help(format!(
                "look at its console for the cause (no address, no network, cloud-init still running): qm terminal VMID of {}",
                machine.name
            )),
            _ => failure,
        })
    }

    /// One attempt to log in and to prove the machine.
    pub(super) async fn prove_once(&self, machine: &MachineAccess) -> Result<SshHostKey, SshProblem> {
        let proved = self.session(machine).prove_once().await;
        let is_foreign = |problem: &SshProblem| matches!(problem.state, SshState::OtherMachine | SshState::HostKeyMismatch);
        if proved.as_ref().is_err_and(is_foreign) {
            self.forget_session(machine);
        }
        proved
    }

    /// A machine to write to. Its host key must be recorded: `machine.pin`.
    pub async fn open(&self, machine: &MachineAccess, progress: &dyn WaitReporter) -> Result<OpenGuest, Failure> {
        if machine.pin.is_none() {
            let what = format!(
                "the host key of {} is not recorded yet, so nothing is sent to it",
                machine.name
            );
            return Err(Failure::new(FailureKind::Bug, what));
        }
        self.prove(machine, progress).await?;
        Ok(OpenGuest {
            access: self.clone(),
            session: self.session(machine),
        })
    }
}

impl OpenGuest {
    /// For questions to a machine that was proved a moment ago. Its host key may not be recorded yet, so nothing is written through it.
    pub(super) fn proved(access: &RancherAccess, machine: &MachineAccess) -> Self {
        Self {
            access: access.clone(),
            session: access.session(machine),
        }
    }

    pub fn name(&self) -> &str {
        &self.session.machine.name
    }

    pub fn machine(&self) -> &MachineAccess {
        &self.session.machine
    }

    /// Runs a command whose exit code is not judged.
    pub(super) async fn run(&self, command: &GuestCommand) -> Result<SshOutput, Failure> {
        self.run_with(command, tokio::io::empty()).await
    }

    pub(super) async fn run_with(
        &self,
        command: &GuestCommand,
        input: impl AsyncRead + Send + Unpin,
    ) -> Result<SshOutput, Failure> {
        let client = &self.session.client;
        let output = client.run_with(&ssh_command(command), input).await;
        output.map_err(|error| self.failure(error))
    }

    /// Runs a command that must succeed. While another run holds the guest's lock it waits.
    pub(super) async fn execute(&self, command: &GuestCommand, progress: &dyn WaitReporter) -> Result<SshOutput, Failure> {
        let what = format!("`{}` did not run on {}", command.name, self.name());
        until(&self.access, progress, &what, LOCK_LIMIT, async || {
            let output = self.run(command).await?;
            if output.is_success() {
                return Ok(Poll::Done(output));
            }
            if output.exit == mainstay_net::SshExit::Code(LOCKED) {
                return Ok(Poll::NotYet("another run of mainstay works on this machine".into()));
            }
            let said = last_line(&output.stderr_text());
            let what = format!("`{}` failed on {} ({})", command.name, self.name(), output.exit);
            Err(Failure::new(FailureKind::Failed, what).why(said))
        })
        .await
    }

    /// Writes a file whole or not at all. Its content goes through stdin and is in no command line.
    pub(super) async fn write(&self, file: &GuestFile) -> Result<(), Failure> {
        let remote = RemoteFile::new(file.path.as_str(), file.mode, file.content.as_bytes());
        let written = self.session.client.write_file(&remote).await;
        written.map_err(|error| self.failure(error))
    }

    fn failure(&self, error: SshError) -> Failure {
        let started = error.class() == SshErrorClass::OutcomeUnknown;
        let kind = if started {
            FailureKind::Unsettled
        } else {
            FailureKind::Unreachable
        };
        match error {
            SshError::FileNotWritten { .. } => Failure::new(FailureKind::Failed, error.to_string()).caused_by(error),
            _ if started || matches!(error, SshError::NotStarted { .. }) => {
                Failure::new(kind, error.to_string()).caused_by(error)
            }
            _ => self.session.problem(error).into_failure(self.name()),
        }
    }
}

impl fmt::Debug for OpenGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenGuest({})", self.name())
    }
}

fn ssh_command(command: &GuestCommand) -> SshCommand {
    let mut ssh = SshCommand::root(command.name, command.script.as_str()).timeout(command.timeout);
    ssh.arguments.clone_from(&command.arguments);
    ssh
}

/// The last line that says something.
pub(super) fn last_line(text: &str) -> String {
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    line.unwrap_or_default().chars().take(300).collect()
}
