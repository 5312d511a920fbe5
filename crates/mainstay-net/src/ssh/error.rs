//! What can go wrong with a guest over SSH, and what may be done about it.

use std::sync::Arc;
use std::time::Duration;

use super::command::SshExit;
use super::host_key::SshHostKey;
use crate::error::{DialError, DialFault};
use crate::target::Target;

#[derive(Clone, Debug, thiserror::Error)]
pub enum SshError {
    /// No connection: refused, no answer, or the jump host says no.
    #[error(transparent)]
    Unreachable(DialError),
    /// The connection was dropped before SSH began. sshd does that to a source address whose logins failed, and when too many
    /// connections wait for a login.
    #[error("{at} closed the connection before SSH began{}", said_text(.said.as_deref()))]
    DroppedBeforeBanner { at: Target, said: Option<String> },
    /// The port is open but sshd does not answer yet.
    #[error("sshd on {at} sent nothing within {after:?}")]
    NoBanner { at: Target, after: Duration },
    #[error("SSH handshake with {at} failed")]
    Handshake { at: Target, source: Arc<russh::Error> },
    #[error("SSH handshake with {at}: no answer within {after:?}")]
    HandshakeTimedOut { at: Target, after: Duration },
    /// Nothing was authenticated and nothing was sent.
    #[error("the host key of {at} is {}, not the pinned {}", .seen.fingerprint(), .expected.fingerprint())]
    HostKeyMismatch {
        at: Target,
        expected: SshHostKey,
        seen: SshHostKey,
    },
    /// `pam_nologin`: the system is still booting, or going down.
    #[error("{at} accepts no logins now: {message}")]
    LoginsDisabled { at: Target, message: String },
    #[error("{at} does not accept our key for {user}{}", said_text(.message.as_deref()))]
    LoginRefused {
        at: Target,
        user: String,
        message: Option<String>,
    },
    #[error("log in to {at}: no answer within {after:?}")]
    LoginTimedOut { at: Target, after: Duration },
    /// The connection broke during the login.
    #[error("{at} closed the connection during the login")]
    LoginBroken { at: Target },
    #[error("our SSH key cannot be used")]
    KeyUnusable(Arc<russh::keys::Error>),
    /// The command was not started.
    #[error("{at} did not start `{command}`: {reason}")]
    NotStarted { at: Target, command: String, reason: String },
    /// Sudo asks for a password, or forbids the command. The command was not started.
    #[error("{at} has no sudo without a password: {message}")]
    SudoRefused { at: Target, message: String },
    /// The command was started. Whether it ended, and how, is not known.
    #[error("the connection to {at} broke while `{command}` ran")]
    Disconnected { at: Target, command: String },
    /// The command was started and may still run.
    #[error("`{command}` on {at} did not end within {after:?}")]
    CommandTimedOut { at: Target, command: String, after: Duration },
    /// The command was started and may still run.
    #[error("`{command}` on {at} printed more than {limit} bytes")]
    OutputTooLarge { at: Target, command: String, limit: usize },
    /// The local input of the command could not be read. The command saw an early end of its input.
    #[error("the input of `{command}` for {at} cannot be read")]
    Input {
        at: Target,
        command: String,
        source: Arc<std::io::Error>,
    },
    /// The command ended and says that the file was not written; the old file is unchanged.
    #[error("{path} on {at} was not written ({exit}): {message}")]
    FileNotWritten {
        at: Target,
        path: String,
        exit: SshExit,
        message: String,
    },
    #[error("`{0}` is not an absolute path of a file")]
    BadPath(String),
}

/// What may be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SshErrorClass {
    /// The machine is up and nothing listens on the port.
    Refused,
    /// No answer: the machine is off, booting, or not reachable.
    TimedOut,
    /// No route, unknown name, connection reset.
    Unreachable,
    /// The jump host refuses us or forbids forwarding: waiting does not help.
    JumpHost,
    /// The port is open, sshd does not answer yet.
    NoBanner,
    /// sshd refuses this source address for a while, or has too many unauthenticated connections.
    Penalty,
    HostKeyMismatch,
    /// `System is booting up`.
    LoginsDisabled,
    LoginRefused,
    SudoRefused,
    /// The command was started and its end was not seen: look for its effect before it is repeated.
    OutcomeUnknown,
    Other,
}

impl SshError {
    pub fn class(&self) -> SshErrorClass {
        use SshErrorClass as Class;
        match self {
            Self::Unreachable(error) => match error.fault() {
                _ if error.is_of_the_jump_host() => Class::JumpHost,
                DialFault::Refused => Class::Refused,
                DialFault::TimedOut { .. } => Class::TimedOut,
                _ => Class::Unreachable,
            },
            Self::DroppedBeforeBanner { .. } => Class::Penalty,
            Self::NoBanner { .. } => Class::NoBanner,
            Self::HandshakeTimedOut { .. } | Self::LoginTimedOut { .. } => Class::TimedOut,
            Self::Handshake { .. } | Self::LoginBroken { .. } => Class::Unreachable,
            Self::HostKeyMismatch { .. } => Class::HostKeyMismatch,
            Self::LoginsDisabled { .. } => Class::LoginsDisabled,
            Self::LoginRefused { .. } => Class::LoginRefused,
            Self::SudoRefused { .. } => Class::SudoRefused,
            Self::Disconnected { .. } | Self::CommandTimedOut { .. } | Self::OutputTooLarge { .. } | Self::Input { .. } => {
                Class::OutcomeUnknown
            }
            Self::KeyUnusable(_) | Self::NotStarted { .. } | Self::FileNotWritten { .. } | Self::BadPath(_) => Class::Other,
        }
    }

    /// Whether trying again could help without a change by a person.
    pub fn is_transient(&self) -> bool {
        use SshErrorClass as Class;
        matches!(
            self.class(),
            Class::Refused | Class::TimedOut | Class::Unreachable | Class::NoBanner | Class::Penalty | Class::LoginsDisabled
        )
    }

    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Unreachable(error) => return error.remedy(),
            Self::DroppedBeforeBanner { .. } => {
                "sshd refuses this address for a while after failed logins (PerSourcePenalties); it ends by itself within ten minutes"
                    .into()
            }
            Self::HostKeyMismatch { .. } => {
                "another machine may answer on this address. `mainstay trust NAME` shows both keys and proves the machine again".into()
            }
            Self::LoginRefused { at, .. } => {
                format!("check on the console of {} that its cloud-init ended and wrote authorized_keys", at.host)
            }
            Self::SudoRefused { .. } => "use an image whose default user has sudo without a password".into(),
            _ => return None,
        })
    }
}

fn said_text(said: Option<&str>) -> String {
    said.map(|said| format!(" ({said})")).unwrap_or_default()
}
