//! SSH to a machine: the connection, how far the machine is, and the proof that it is ours.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use mainstay_net::{
    Env, HostKeyPolicy, Secret, SshClient, SshCommand, SshEndpoint, SshError, SshErrorClass, SshHostKey, SshLimits, Target,
};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::failure::{Failure, FailureKind};

pub const SSH_PORT: u16 = 22;

/// The user that the cloud-init drive makes on every image.
pub const SSH_USER: &str = "mainstay";

/// A refused key within this time after the start of the VM means that cloud-init has not written it yet.
const BOOT: Duration = Duration::from_secs(300);

/// One machine as PVE's config and the mark describe it.
#[derive(Clone, Debug)]
pub struct MachineAccess {
    /// The machine's name, which is also its Node's name.
    pub name: String,
    pub address: IpAddr,
    /// SMBIOS UUID and serial, read from PVE's config in this run.
    pub uuid: String,
    pub serial: String,
    /// The host key of the mark, if its recorded serial is the current one. `None` before the first proof.
    pub pin: Option<SshHostKey>,
    /// When the VM started. A login that fails shortly afterwards means that the guest still boots.
    pub started: Option<Instant>,
}

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
    pub(super) machine: Arc<MachineAccess>,
    pub(super) client: SshClient,
    /// The host key under which the proof succeeded. Once per run is enough: every connection of this client shows the same key.
    proved: Arc<Mutex<Option<SshHostKey>>>,
}

/// Why a login or a proof did not succeed.
#[derive(Debug, Clone)]
pub(super) struct SshProblem {
    pub state: SshState,
    pub error: Option<SshError>,
    pub why: String,
}

impl GuestSession {
    pub fn new(env: &Env, machine: &MachineAccess, key: Secret<String>) -> Self {
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
            client: SshClient::new(env.dialer.clone(), endpoint, SshLimits::default()),
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

    pub fn problem(&self, error: SshError) -> SshProblem {
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
    pub fn is_retryable(&self) -> bool {
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
