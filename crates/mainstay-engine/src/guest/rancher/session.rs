//! A machine that proved to be ours, and writing to it.

use std::fmt;
use std::time::Duration;

use mainstay_net::{RemoteFile, SshCommand, SshError, SshErrorClass, SshHostKey, SshOutput};
use rancher_config::guest::{GuestCommand, GuestFile, LOCKED};
use tokio::io::AsyncRead;
use tokio::time::Instant;

use super::access::RancherAccess;
use super::ssh::{GuestSession, MachineAccess, SshProblem, SshState};
use super::wait::{Poll, WaitReporter, until};
use crate::failure::{Failure, FailureKind};
use crate::in_flight;

/// sshd's longest penalty is ten minutes, and a first boot takes a few.
const LOGIN_LIMIT: Duration = Duration::from_secs(900);

/// A slow host needs no longer for the first boot of a cloud image.
const FIRST_BOOT: Duration = Duration::from_secs(120);

/// Commands of another run may hold the guest's lock for this long.
const LOCK_LIMIT: Duration = Duration::from_secs(300);

/// A command that may take longer is not waited for by a run that is told to stop.
const ANSWERED_SOON: Duration = Duration::from_secs(60);

/// A machine that proved to be the VM of the plan, under its recorded host key. The only way to write into a guest.
#[derive(Clone)]
pub struct OpenGuest {
    pub(super) access: RancherAccess,
    session: GuestSession,
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
            // Installing and starting take minutes, and go on in the guest without us.
            let output = if command.timeout <= ANSWERED_SOON {
                in_flight::send(self.run(command)).await?
            } else {
                self.run(command).await?
            };
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
        let written = in_flight::send(self.session.client.write_file(&remote)).await;
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
