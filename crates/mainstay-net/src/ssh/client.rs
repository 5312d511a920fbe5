//! SSH to a guest: one connection, several sessions on it.

use std::borrow::Cow;
use std::sync::{Arc, Mutex as SyncMutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use russh::client::{self, Handle, Msg};
use russh::keys::{Algorithm, PrivateKeyWithHashAlg, PublicKeyOrCertificate, decode_secret_key};
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Disconnect, Preferred};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use super::banner::{BannerProbe, Preamble, printable};
use super::command::{RemoteFile, RunAs, SshCommand, SshExit, SshOutput, after_marker};
use super::error::SshError;
use super::host_key::{HostKeyPolicy, SshHostKey};
use super::jump::{recorded_first, signature_hash};
use crate::dial::{Dialer, dial_within};
use crate::secret::Secret;
use crate::target::Target;

/// What pam_nologin says while a system boots or goes down.
const LOGINS_DISABLED: [&str; 2] = ["System is booting up", "System is going down"];

/// How much of the text is kept that a server shows during the login.
const LOGIN_TEXT_MAX: usize = 4096;

/// Size of one piece of a command's input.
const CHUNK: usize = 32 * 1024;

/// Whom to log in to, and as whom.
#[derive(Clone, Debug)]
pub struct SshEndpoint {
    pub address: Target,
    pub user: String,
    /// The content of a private key file without a passphrase.
    pub key: Secret<String>,
    pub host_key: HostKeyPolicy,
}

/// How long each part may take, and how often it is tried.
#[derive(Clone, Copy, Debug)]
pub struct SshLimits {
    pub connect: Duration,
    pub banner: Duration,
    pub handshake: Duration,
    pub login: Duration,
    /// Opening one session on a connection that lives.
    pub session: Duration,
    pub keepalive: Duration,
    /// Sessions at once. sshd allows ten on a connection (`MaxSessions`); an administrator's own sessions do not count there.
    pub sessions: usize,
    /// The pause after a failed attempt; it doubles up to `retry_max`. sshd punishes quick repetitions.
    pub retry_min: Duration,
    pub retry_max: Duration,
    /// The pause after a connection that was dropped before SSH began: the penalty is in force, and every attempt may prolong it.
    pub retry_penalty: Duration,
}

impl Default for SshLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            banner: Duration::from_secs(10),
            handshake: Duration::from_secs(10),
            login: Duration::from_secs(10),
            session: Duration::from_secs(10),
            keepalive: Duration::from_secs(15),
            sessions: 4,
            retry_min: Duration::from_secs(6),
            retry_max: Duration::from_secs(30),
            retry_penalty: Duration::from_secs(60),
        }
    }
}

/// The SSH connection to one guest. Clones share it. It is opened by the first use and opened again when it was lost.
#[derive(Clone)]
pub struct SshClient {
    shared: Arc<SshShared>,
}

struct SshShared {
    dialer: Arc<dyn Dialer>,
    endpoint: SshEndpoint,
    limits: SshLimits,
    state: Mutex<ConnectionState>,
    sessions: Semaphore,
}

struct ConnectionState {
    connection: Option<Arc<Connection>>,
    /// The key that every connection must show; learned from the first one if none is pinned.
    expected: Option<SshHostKey>,
    /// Failed attempts in a row, and when the next one may begin.
    failures: u32,
    not_before: Option<Instant>,
}

struct Connection {
    handle: Handle<HostKeyCheck>,
    host_key: SshHostKey,
}

impl SshClient {
    /// Nothing is sent before the first use. `dialer` may lead through a jump host.
    pub fn new(dialer: Arc<dyn Dialer>, endpoint: SshEndpoint, limits: SshLimits) -> Self {
        let expected = match &endpoint.host_key {
            HostKeyPolicy::Pinned(key) => Some(key.clone()),
            HostKeyPolicy::LearnFirst => None,
        };
        let state = ConnectionState {
            connection: None,
            expected,
            failures: 0,
            not_before: None,
        };
        Self {
            shared: Arc::new(SshShared {
                sessions: Semaphore::new(limits.sessions),
                state: Mutex::new(state),
                dialer,
                endpoint,
                limits,
            }),
        }
    }

    pub fn address(&self) -> &Target {
        &self.shared.endpoint.address
    }

    /// Connects and logs in unless that is done, and returns the host key that the guest shows. After a failed attempt it first
    /// waits until the next one is due.
    pub async fn connect(&self) -> Result<SshHostKey, SshError> {
        Ok(self.shared.connection().await?.host_key.clone())
    }

    /// Runs a command without input.
    pub async fn run(&self, command: &SshCommand) -> Result<SshOutput, SshError> {
        self.run_with(command, tokio::io::empty()).await
    }

    /// Runs a command whose stdin is `input`. A command that ended is `Ok`, whatever its exit code.
    pub async fn run_with(&self, command: &SshCommand, input: impl AsyncRead + Send + Unpin) -> Result<SshOutput, SshError> {
        self.shared.run(command, input).await
    }

    /// Writes a file whole or not at all, through sudo. The content goes through stdin.
    pub async fn write_file(&self, file: &RemoteFile) -> Result<(), SshError> {
        if !file.path.starts_with('/') || file.path.ends_with('/') {
            return Err(SshError::BadPath(file.path.clone()));
        }
        let output = self.run_with(&file.command(), file.content.expose().as_slice()).await?;
        if output.is_success() {
            return Ok(());
        }
        Err(SshError::FileNotWritten {
            at: self.address().clone(),
            path: file.path.clone(),
            exit: output.exit.clone(),
            message: printable(&output.stderr_text()),
        })
    }

    /// Ends the connection. The next use opens another one.
    pub async fn close(&self) {
        let connection = self.shared.state.lock().await.connection.take();
        if let Some(connection) = connection {
            // The guest may be gone; then there is nothing to say goodbye to.
            let _ = connection.handle.disconnect(Disconnect::ByApplication, "", "").await;
        }
    }
}

impl std::fmt::Debug for SshClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SshClient({}@{})", self.shared.endpoint.user, self.address())
    }
}

impl SshShared {
    fn at(&self) -> Target {
        self.endpoint.address.clone()
    }

    /// The live connection, or a new one. Callers that wait here share the one that is being made.
    async fn connection(&self) -> Result<Arc<Connection>, SshError> {
        let mut state = self.state.lock().await;
        if let Some(connection) = state.connection.as_ref().filter(|known| !known.handle.is_closed()) {
            return Ok(Arc::clone(connection));
        }
        state.connection = None;
        if let Some(due) = state.not_before {
            sleep_until(due).await;
        }
        match self.open(state.expected.clone()).await {
            Ok(connection) => {
                state.failures = 0;
                state.not_before = None;
                state.expected = Some(connection.host_key.clone());
                let connection = Arc::new(connection);
                state.connection = Some(Arc::clone(&connection));
                Ok(connection)
            }
            Err(error) => {
                state.not_before = self.pause_after(&error, state.failures).map(|pause| Instant::now() + pause);
                state.failures = state.failures.saturating_add(u32::from(state.not_before.is_some()));
                Err(error)
            }
        }
    }

    /// Attempts that never reached sshd cost nothing, so they need no pause here.
    fn pause_after(&self, error: &SshError, failures: u32) -> Option<Duration> {
        let limits = &self.limits;
        match error {
            SshError::Unreachable(_) | SshError::KeyUnusable(_) => None,
            SshError::DroppedBeforeBanner { .. } => Some(limits.retry_penalty),
            _ => Some(limits.retry_min.saturating_mul(1 << failures.min(8)).min(limits.retry_max)),
        }
    }

    async fn open(&self, expected: Option<SshHostKey>) -> Result<Connection, SshError> {
        let key = decode_secret_key(self.endpoint.key.expose(), None).map_err(|cause| SshError::KeyUnusable(Arc::new(cause)))?;
        let dialled = dial_within(&*self.dialer, &self.endpoint.address, self.limits.connect).await;
        let (stream, preamble) = BannerProbe::new(dialled.map_err(SshError::Unreachable)?);
        let seen = Arc::new(SyncMutex::new(ServerGreeting::default()));
        let check = HostKeyCheck {
            expected: expected.clone(),
            seen: Arc::clone(&seen),
        };
        let config = Arc::new(self.config(expected.as_ref()));
        let mut handle = self.handshake(config, stream, check, &preamble).await?;
        let host_key = lock(&seen).host_key.clone();
        let host_key = host_key.ok_or_else(|| self.handshake_failed(russh::Error::UnknownKey))?;

        let public = key.public_key().clone();
        let login = async {
            let hash = signature_hash(&handle, &public).await?;
            let key = PrivateKeyWithHashAlg::new(Arc::new(key), hash);
            handle.authenticate_publickey(&self.endpoint.user, key).await
        };
        let outcome = timeout(self.limits.login, login).await;
        let message = lock(&seen).login_text.clone();
        match outcome {
            Ok(Ok(result)) if result.success() => Ok(Connection { handle, host_key }),
            outcome => Err(self.not_logged_in(outcome, &message)),
        }
    }

    /// The identification line and the key exchange have a limit each.
    async fn handshake(
        &self,
        config: Arc<client::Config>,
        stream: BannerProbe,
        check: HostKeyCheck,
        preamble: &Preamble,
    ) -> Result<Handle<HostKeyCheck>, SshError> {
        let at = self.at();
        let expected = check.expected.clone();
        let connecting = client::connect_stream(config, stream, check);
        tokio::pin!(connecting);
        let banner = async {
            tokio::select! {
                biased;
                early = &mut connecting => Some(early),
                () = preamble.identified() => None,
            }
        };
        let connected = match timeout(self.limits.banner, banner).await {
            Ok(Some(early)) => early,
            Ok(None) => {
                let after = self.limits.handshake;
                let rest = timeout(after, connecting).await;
                rest.map_err(|_| SshError::HandshakeTimedOut { at: at.clone(), after })?
            }
            Err(_) => {
                let after = self.limits.banner;
                return Err(SshError::NoBanner { at, after });
            }
        };
        connected.map_err(|failure| match (failure, expected) {
            (ConnectFailure::HostKey(seen), Some(expected)) => SshError::HostKeyMismatch { at, expected, seen },
            (ConnectFailure::HostKey(_), None) => self.handshake_failed(russh::Error::UnknownKey),
            (ConnectFailure::Ssh(_), _) if !preamble.is_identified() => SshError::DroppedBeforeBanner {
                at,
                said: preamble.said(),
            },
            (ConnectFailure::Ssh(cause), _) => self.handshake_failed(cause),
        })
    }

    fn handshake_failed(&self, cause: russh::Error) -> SshError {
        SshError::Handshake {
            at: self.at(),
            source: Arc::new(cause),
        }
    }

    /// pam_nologin lets sshd show a text and then hang up, or refuse the key: the text decides.
    fn not_logged_in<E>(&self, outcome: Result<Result<client::AuthResult, russh::Error>, E>, text: &str) -> SshError {
        let at = self.at();
        let message = Some(printable(text)).filter(|text| !text.is_empty());
        if LOGINS_DISABLED.iter().any(|known| text.contains(known)) {
            let message = message.unwrap_or_default();
            return SshError::LoginsDisabled { at, message };
        }
        match outcome {
            // Without a list of methods there was no answer: the connection broke.
            Ok(Ok(client::AuthResult::Failure { remaining_methods, .. })) if !remaining_methods.is_empty() => {
                let user = self.endpoint.user.clone();
                SshError::LoginRefused { at, user, message }
            }
            Ok(_) => SshError::LoginBroken { at },
            Err(_) => SshError::LoginTimedOut {
                at,
                after: self.limits.login,
            },
        }
    }

    fn config(&self, expected: Option<&SshHostKey>) -> client::Config {
        // A server has several keys and shows one: the pinned kind is asked for first, Ed25519 if none is pinned.
        let first = expected.map_or(Algorithm::Ed25519, |expected| expected.key().algorithm());
        let mut preferred = Preferred::default();
        preferred.key = Cow::Owned(recorded_first(&[first], &preferred.key));
        client::Config {
            preferred,
            keepalive_interval: Some(self.limits.keepalive),
            nodelay: true,
            ..client::Config::default()
        }
    }

    async fn run(&self, command: &SshCommand, input: impl AsyncRead + Send + Unpin) -> Result<SshOutput, SshError> {
        let _session = self.sessions.acquire().await;
        let (read, write) = self.session(command).await?.split();
        let running = self.follow(command, read, &write, input);
        let outcome = timeout(command.timeout, running).await.unwrap_or_else(|_| {
            Err(SshError::CommandTimedOut {
                at: self.at(),
                command: command.name.clone(),
                after: command.timeout,
            })
        });
        // Frees the session on the server also where the command goes on.
        let _ = write.close().await;
        let mut output = outcome?;
        match after_marker(&output.stdout) {
            Some(stdout) => output.stdout = stdout.to_vec(),
            None => return Err(self.without_marker(command, &output)),
        }
        Ok(output)
    }

    /// A session on the live connection. If that connection turns out to be dead, on a new one: nothing was sent yet.
    async fn session(&self, command: &SshCommand) -> Result<Channel<Msg>, SshError> {
        let connection = self.connection().await?;
        match self.open_session(&connection, command).await {
            Err(_) if connection.handle.is_closed() => {
                let connection = self.connection().await?;
                self.open_session(&connection, command).await
            }
            outcome => outcome,
        }
    }

    async fn open_session(&self, connection: &Connection, command: &SshCommand) -> Result<Channel<Msg>, SshError> {
        match timeout(self.limits.session, connection.handle.channel_open_session()).await {
            Ok(Ok(channel)) => Ok(channel),
            Ok(Err(cause)) => Err(self.not_started(command, cause.to_string())),
            Err(_) => Err(self.not_started(command, format!("no session within {:?}", self.limits.session))),
        }
    }

    fn not_started(&self, command: &SshCommand, reason: String) -> SshError {
        SshError::NotStarted {
            at: self.at(),
            command: command.name.clone(),
            reason,
        }
    }

    /// The script prints the marker first, so without it something before the script failed.
    fn without_marker(&self, command: &SshCommand, output: &SshOutput) -> SshError {
        let message = printable(&output.stderr_text());
        if command.user == RunAs::Root && message.contains("sudo:") {
            return SshError::SudoRefused { at: self.at(), message };
        }
        self.not_started(command, format!("{} before the script began: {message}", output.exit))
    }

    /// Sends the command and its input, and reads until the server closes the session.
    async fn follow(
        &self,
        command: &SshCommand,
        mut read: ChannelReadHalf,
        write: &ChannelWriteHalf<Msg>,
        mut input: impl AsyncRead + Send + Unpin,
    ) -> Result<SshOutput, SshError> {
        let disconnected = || SshError::Disconnected {
            at: self.at(),
            command: command.name.clone(),
        };
        write.exec(true, command.line()).await.map_err(|_| disconnected())?;
        let sending = send_input(write, &mut input);
        tokio::pin!(sending);
        let mut is_sent = false;
        let mut collected = Collected::default();
        loop {
            let message = tokio::select! {
                biased;
                message = read.wait() => message,
                sent = &mut sending, if !is_sent => {
                    is_sent = true;
                    // A command may end without reading all of its input; only our own side failing to read it is an error.
                    if let Err(source) = sent {
                        let command = command.name.clone();
                        return Err(SshError::Input { at: self.at(), command, source: Arc::new(source) });
                    }
                    continue;
                }
            };
            match collected.take(message) {
                ChannelStatus::More => {}
                ChannelStatus::Refused => return Err(self.not_started(command, "the server refused it".into())),
                ChannelStatus::Ended => break,
            }
            if collected.longest() > command.output_max {
                return Err(SshError::OutputTooLarge {
                    at: self.at(),
                    command: command.name.clone(),
                    limit: command.output_max,
                });
            }
        }
        collected.finish().ok_or_else(disconnected)
    }
}

/// Fails only if the input cannot be read.
async fn send_input(write: &ChannelWriteHalf<Msg>, input: &mut (impl AsyncRead + Send + Unpin)) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = input.read(&mut chunk).await?;
        if length == 0 {
            break;
        }
        if write.data_bytes(Bytes::copy_from_slice(&chunk[..length])).await.is_err() {
            return Ok(());
        }
    }
    let _ = write.eof().await;
    Ok(())
}

/// What a session has told so far.
#[derive(Default)]
struct Collected {
    exit: Option<SshExit>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// The server says that no more output follows.
    is_complete: bool,
}

enum ChannelStatus {
    More,
    Refused,
    Ended,
}

impl Collected {
    fn take(&mut self, message: Option<ChannelMsg>) -> ChannelStatus {
        match message {
            Some(ChannelMsg::Data { data }) => self.stdout.extend_from_slice(&data),
            Some(ChannelMsg::ExtendedData { data, ext: 1 }) => self.stderr.extend_from_slice(&data),
            Some(ChannelMsg::ExitStatus { exit_status }) => self.exit = Some(SshExit::Code(exit_status)),
            Some(ChannelMsg::ExitSignal { signal_name, .. }) => self.exit = Some(SshExit::Signal(format!("{signal_name:?}"))),
            Some(ChannelMsg::Failure) => return ChannelStatus::Refused,
            Some(ChannelMsg::Eof) => self.is_complete = true,
            Some(ChannelMsg::Close) => {
                self.is_complete = true;
                return ChannelStatus::Ended;
            }
            Some(_) => {}
            None => return ChannelStatus::Ended,
        }
        ChannelStatus::More
    }

    fn longest(&self) -> usize {
        self.stdout.len().max(self.stderr.len())
    }

    /// The exit status may come before the last output, so both are needed.
    fn finish(self) -> Option<SshOutput> {
        let exit = self.exit.filter(|_| self.is_complete)?;
        Some(SshOutput {
            exit,
            stdout: self.stdout,
            stderr: self.stderr,
        })
    }
}

/// What the server showed while the connection was made.
#[derive(Default)]
struct ServerGreeting {
    host_key: Option<SshHostKey>,
    login_text: String,
}

fn lock(seen: &SyncMutex<ServerGreeting>) -> std::sync::MutexGuard<'_, ServerGreeting> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Compares the host key before anything is authenticated.
struct HostKeyCheck {
    expected: Option<SshHostKey>,
    seen: Arc<SyncMutex<ServerGreeting>>,
}

#[derive(Debug)]
enum ConnectFailure {
    HostKey(SshHostKey),
    Ssh(russh::Error),
}

impl From<russh::Error> for ConnectFailure {
    fn from(cause: russh::Error) -> Self {
        Self::Ssh(cause)
    }
}

impl client::Handler for HostKeyCheck {
    type Error = ConnectFailure;

    async fn check_server_key(&mut self, offered: &PublicKeyOrCertificate) -> Result<bool, ConnectFailure> {
        let shown = SshHostKey::new(&offered.public_key());
        if self.expected.as_ref().is_some_and(|expected| *expected != shown) {
            return Err(ConnectFailure::HostKey(shown));
        }
        lock(&self.seen).host_key = Some(shown);
        Ok(true)
    }

    async fn auth_banner(&mut self, text: &str, _session: &mut client::Session) -> Result<(), ConnectFailure> {
        let mut seen = lock(&self.seen);
        if seen.login_text.len() < LOGIN_TEXT_MAX {
            seen.login_text.extend(text.chars().take(LOGIN_TEXT_MAX));
        }
        Ok(())
    }
}
