//! Dialling through a jump host: one SSH connection, a direct-tcpip channel per dial.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use russh::client::{self, AuthResult, Handle};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::{Algorithm, HashAlg, PrivateKeyWithHashAlg, PublicKey, PublicKeyOrCertificate, decode_secret_key};
use russh::{ChannelOpenFailure, Preferred};
use tokio::sync::Mutex;

use super::known_hosts::{HostKey, KnownHosts, fingerprint};
use crate::dial::{BoxIo, Dial, Dialer};
use crate::error::{DialError, DialFault, Operation};
use crate::secret::Secret;
use crate::target::Target;

/// A silent jump host is given up after three of these: dials then reconnect instead of hanging on a dead connection.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Dials from the jump host's place in the network.
///
/// All dials share one SSH connection, so one reset ends them all; the next dial connects anew.
pub struct JumpDialer {
    via: Arc<dyn Dialer>,
    address: JumpAddress,
    known_hosts: KnownHosts,
    logins: Vec<Login>,
    /// Bounds connection, host key check and login together.
    timeout: Duration,
    session: Mutex<Option<Arc<Handle<Checker>>>>,
}

/// How to prove who we are. Tried in the order given.
#[derive(Clone, Debug)]
pub enum Login {
    /// The content of a private key file, in any format OpenSSH or OpenSSL writes.
    Key {
        text: Secret<String>,
        passphrase: Option<Secret<String>>,
    },
    /// The socket of an SSH agent.
    Agent { socket: PathBuf },
}

/// `user@host` or `user@host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JumpAddress {
    pub user: String,
    pub target: Target,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a jump host: write user@host or user@host:port")]
pub struct JumpAddressError(String);

impl FromStr for JumpAddress {
    type Err = JumpAddressError;

    fn from_str(text: &str) -> Result<Self, JumpAddressError> {
        let fault = || JumpAddressError(text.to_owned());
        let (user, place) = text.rsplit_once('@').ok_or_else(fault)?;
        let bare = place
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(place);
        let is_host_alone = bare.parse::<std::net::Ipv6Addr>().is_ok() || !place.contains(':');
        let target = if is_host_alone {
            Target::new(bare, 22)
        } else {
            place.parse().map_err(|_| fault())?
        };
        if user.is_empty() || target.host.is_empty() || text.contains(char::is_whitespace) {
            return Err(fault());
        }
        Ok(Self {
            user: user.to_owned(),
            target,
        })
    }
}

impl fmt::Display for JumpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.user, self.target)
    }
}

impl JumpDialer {
    /// The jump host itself is dialled through `via`, so jumps can be chained. Nothing is sent before the first dial.
    pub fn new(
        via: Arc<dyn Dialer>,
        address: JumpAddress,
        known_hosts: KnownHosts,
        logins: Vec<Login>,
        timeout: Duration,
    ) -> Self {
        Self {
            via,
            address,
            known_hosts,
            logins,
            timeout,
            session: Mutex::new(None),
        }
    }

    /// Connects and logs in now, for a check before anything is dialled through it.
    pub async fn check(&self) -> Result<(), DialError> {
        self.session().await.map(drop)
    }

    /// The live SSH connection, made anew if there is none. Dials that wait here share the one that is being made.
    async fn session(&self) -> Result<Arc<Handle<Checker>>, DialError> {
        let mut slot = self.session.lock().await;
        if let Some(session) = slot.as_ref().filter(|session| !session.is_closed()) {
            return Ok(Arc::clone(session));
        }
        *slot = None;
        let opening = tokio::time::timeout(self.timeout, self.log_in());
        let timed_out = |_| self.failed(Operation::SshHandshake, DialFault::TimedOut { after: self.timeout });
        let session = Arc::new(opening.await.map_err(timed_out)??);
        *slot = Some(Arc::clone(&session));
        Ok(session)
    }

    async fn log_in(&self) -> Result<Handle<Checker>, DialError> {
        let stream = self
            .via
            .dial(&self.address.target)
            .await
            .map_err(|error| self.not_reached(error))?;
        let checker = Checker {
            host: self.address.target.clone(),
            known_hosts: self.known_hosts.clone(),
        };
        let connecting = client::connect_stream(Arc::new(self.config()), stream, checker).await;
        let mut session = connecting.map_err(|failure| self.failed(Operation::SshHandshake, failure.fault()))?;
        let login = Attempt {
            user: &self.address.user,
            session: &mut session,
            refused: Vec::new(),
        };
        let outcome = login.run(&self.logins).await;
        let operation = || Operation::SshLogin {
            user: self.address.user.clone(),
        };
        outcome.map_err(|fault| self.failed(operation(), fault))?;
        Ok(session)
    }

    fn config(&self) -> client::Config {
        let mut preferred = Preferred::default();
        preferred.key = Cow::Owned(recorded_first(
            &self.known_hosts.algorithms(&self.address.target),
            &preferred.key,
        ));
        client::Config {
            preferred,
            keepalive_interval: Some(KEEPALIVE),
            nodelay: true,
            ..client::Config::default()
        }
    }

    /// Says that it is the jump host that was dialled, unless another one was on the way.
    fn not_reached(&self, error: DialError) -> DialError {
        match error.operation() {
            Operation::Connect => self.failed(Operation::SshConnect, error.fault().clone()),
            _ => error,
        }
    }

    fn failed(&self, operation: Operation, fault: DialFault) -> DialError {
        DialError::new(self.address.target.clone(), operation, fault)
    }

    async fn forward(&self, to: &Target) -> Result<BoxIo, DialError> {
        let session = self.session().await?;
        match open_channel(&session, to).await {
            Err(failure) if session.is_closed() => {
                // The connection died since the last dial: one fresh one is tried.
                tracing::debug!(jump = %self.address, %failure, "jump host connection lost, connecting again");
                let session = self.session().await?;
                open_channel(&session, to)
                    .await
                    .map_err(|failure| self.not_forwarded(to, failure))
            }
            outcome => outcome.map_err(|failure| self.not_forwarded(to, failure)),
        }
    }

    fn not_forwarded(&self, to: &Target, failure: russh::Error) -> DialError {
        let fault = match failure {
            russh::Error::ChannelOpenFailure(ChannelOpenFailure::ConnectFailed) => DialFault::Refused,
            russh::Error::ChannelOpenFailure(ChannelOpenFailure::AdministrativelyProhibited) => DialFault::ForwardingProhibited,
            other => ssh_fault(other),
        };
        DialError::new(
            to.clone(),
            Operation::SshForward {
                jump: self.address.target.clone(),
            },
            fault,
        )
    }
}

impl Dialer for JumpDialer {
    fn dial<'a>(&'a self, to: &'a Target) -> Dial<'a> {
        Box::pin(self.forward(to))
    }
}

async fn open_channel(session: &Handle<Checker>, to: &Target) -> Result<BoxIo, russh::Error> {
    let channel = session
        .channel_open_direct_tcpip(to.host.clone(), to.port.into(), "127.0.0.1", 0)
        .await?;
    Ok(Box::new(channel.into_stream()))
}

fn ssh_fault(failure: russh::Error) -> DialFault {
    match failure {
        russh::Error::IO(cause) => DialFault::from_io(cause),
        russh::Error::HUP
        | russh::Error::Disconnect
        | russh::Error::SendError
        | russh::Error::RecvError
        | russh::Error::ConnectionTimeout
        | russh::Error::KeepaliveTimeout
        | russh::Error::InactivityTimeout => DialFault::Closed,
        other => DialFault::Ssh(Arc::new(other)),
    }
}

/// The usual order, but first what known_hosts can judge: a server shows one of its keys, and another one would look changed.
pub(super) fn recorded_first(recorded: &[Algorithm], usual: &[Algorithm]) -> Vec<Algorithm> {
    let is_recorded = |algorithm: &Algorithm| {
        recorded.iter().any(|known| match known {
            Algorithm::Rsa { .. } => matches!(algorithm, Algorithm::Rsa { .. }),
            known => known == algorithm,
        })
    };
    let (mut first, rest): (Vec<_>, Vec<_>) = usual.iter().cloned().partition(is_recorded);
    first.extend(rest);
    first
}

/// Judges the host key.
pub(super) struct Checker {
    host: Target,
    known_hosts: KnownHosts,
}

#[derive(Debug)]
pub(super) enum SshFailure {
    HostKey(DialFault),
    Ssh(russh::Error),
}

impl SshFailure {
    fn fault(self) -> DialFault {
        match self {
            Self::HostKey(fault) => fault,
            Self::Ssh(failure) => ssh_fault(failure),
        }
    }
}

impl From<russh::Error> for SshFailure {
    fn from(failure: russh::Error) -> Self {
        Self::Ssh(failure)
    }
}

impl client::Handler for Checker {
    type Error = SshFailure;

    async fn check_server_key(&mut self, offered: &PublicKeyOrCertificate) -> Result<bool, SshFailure> {
        let key = offered.public_key();
        let line = KnownHosts::line_for(&self.host, &key);
        let fingerprint = fingerprint(&key);
        match self.known_hosts.check(&self.host, &key) {
            HostKey::Known => Ok(true),
            HostKey::Unknown => Err(SshFailure::HostKey(DialFault::HostKeyUnknown { fingerprint, line })),
            HostKey::Changed { line: recorded_at_line } => Err(SshFailure::HostKey(DialFault::HostKeyChanged {
                fingerprint,
                recorded_at_line,
                line,
            })),
        }
    }
}

/// One login, key after key.
struct Attempt<'a> {
    user: &'a str,
    session: &'a mut Handle<Checker>,
    refused: Vec<String>,
}

impl Attempt<'_> {
    async fn run(mut self, logins: &[Login]) -> Result<(), DialFault> {
        let mut unusable = None;
        for login in logins {
            let outcome = match login {
                Login::Key { text, passphrase } => self.with_key(text, passphrase.as_ref()).await,
                Login::Agent { socket } => self.with_agent(socket).await,
            };
            match outcome {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(fault) => unusable = Some(fault),
            }
            if self.session.is_closed() {
                break;
            }
        }
        Err(self.verdict(unusable))
    }

    fn verdict(self, unusable: Option<DialFault>) -> DialFault {
        match unusable {
            // A server that has heard enough wrong keys hangs up.
            _ if !self.refused.is_empty() => DialFault::LoginRefused { tried: self.refused },
            Some(fault) => fault,
            None if self.session.is_closed() => DialFault::Closed,
            None => DialFault::LoginRefused { tried: Vec::new() },
        }
    }

    async fn with_key(&mut self, text: &Secret<String>, passphrase: Option<&Secret<String>>) -> Result<bool, DialFault> {
        let passphrase = passphrase.map(|secret| secret.expose().as_str());
        let key = decode_secret_key(text.expose(), passphrase).map_err(|cause| DialFault::KeyUnusable(Arc::new(cause)))?;
        let public = key.public_key().clone();
        let hash = signature_hash(self.session, &public).await.map_err(ssh_fault)?;
        let key = PrivateKeyWithHashAlg::new(Arc::new(key), hash);
        let outcome = self.session.authenticate_publickey(self.user, key).await.map_err(ssh_fault)?;
        Ok(self.judge(&public, &outcome))
    }

    async fn with_agent(&mut self, socket: &PathBuf) -> Result<bool, DialFault> {
        let failed = |cause: russh::keys::Error| DialFault::AgentUnusable(Arc::new(cause));
        let mut agent = AgentClient::connect_uds(socket).await.map_err(failed)?;
        for identity in agent.request_identities().await.map_err(failed)? {
            // Certificates in an agent come with their plain key, which is tried too.
            let AgentIdentity::PublicKey { key, .. } = identity else {
                continue;
            };
            let hash = signature_hash(self.session, &key).await.map_err(ssh_fault)?;
            let signing = self
                .session
                .authenticate_publickey_with(self.user, key.clone(), hash, &mut agent);
            let outcome = signing.await.map_err(|cause| DialFault::AgentUnusable(Arc::new(cause)))?;
            if self.judge(&key, &outcome) {
                return Ok(true);
            }
            if self.session.is_closed() {
                break;
            }
        }
        Ok(false)
    }

    fn judge(&mut self, key: &PublicKey, outcome: &AuthResult) -> bool {
        // Without a list of methods the server sent no answer: the connection broke.
        if let AuthResult::Failure { remaining_methods, .. } = outcome
            && !remaining_methods.is_empty()
        {
            self.refused.push(fingerprint(key));
        }
        outcome.success()
    }
}

/// RSA keys sign with the best hash the server takes; SHA-1 has been refused by default since OpenSSH 8.8.
pub(super) async fn signature_hash<H: client::Handler>(
    session: &Handle<H>,
    key: &PublicKey,
) -> Result<Option<HashAlg>, russh::Error> {
    if !matches!(key.algorithm(), Algorithm::Rsa { .. }) {
        return Ok(None);
    }
    let best = session.best_supported_rsa_hash().await?;
    Ok(best.unwrap_or(Some(HashAlg::Sha256)))
}
