//! sshd of a cloud guest: real SSH, with the limits of OpenSSH.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use mainstay_net::{BoxIo, Listener};
use rand::RngExt;
use russh::keys::{PrivateKey, PublicKey};
use russh::server::{self, Auth, ChannelOpenHandle, Handle, Msg, PublicKeyOffer, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, MethodKind, MethodSet, SshId};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::cloudinit::HOST_KEY;
use super::host::Host;
use super::shell::{Input, Output, Process, User, interpret};

const PORT: u16 = 22;
/// `MaxStartups 10:30:100`
const STARTUPS: (usize, usize, usize) = (10, 30, 100);
/// `MaxSessions`
const SESSIONS: usize = 10;
const LOGIN_GRACE: Duration = Duration::from_secs(120);
const BOOTING: &str = "\"System is booting up. Unprivileged users are not permitted to log in yet. Please come back later. For technical details, see pam_nologin(8).\"\n";

/// `PerSourcePenalties`, on by default since OpenSSH 9.8.
const AUTH_FAILED: Duration = Duration::from_secs(5);
const NO_AUTH: Duration = Duration::from_secs(1);
const GRACE_EXCEEDED: Duration = Duration::from_secs(10);
const PENALTY_MIN: Duration = Duration::from_secs(15);
const PENALTY_MAX: Duration = Duration::from_secs(600);

pub(crate) async fn listen(host: &Arc<Host>) -> Option<Box<dyn Listener>> {
    let address = host.address()?;
    host.site.network.bind(SocketAddr::new(address, PORT)).await.ok()
}

#[derive(Default)]
struct Penalty {
    until: Option<Instant>,
    active: bool,
}

/// What all connections of one sshd share.
struct Daemon {
    host: Arc<Host>,
    penalties: Mutex<BTreeMap<IpAddr, Penalty>>,
    /// Connections that have not logged in.
    startups: Mutex<usize>,
    punishes: bool,
}

impl Daemon {
    fn penalise(&self, source: IpAddr, by: Duration) {
        if !self.punishes {
            return;
        }
        let now = Instant::now();
        let mut penalties = self.penalties.lock().expect("plain data");
        let penalty = penalties.entry(source).or_default();
        let until = (penalty.until.filter(|until| *until > now).unwrap_or(now) + by).min(now + PENALTY_MAX);
        penalty.active = (penalty.active && penalty.until.is_some_and(|until| until > now)) || until - now > PENALTY_MIN;
        penalty.until = Some(until);
    }

    fn is_penalised(&self, source: IpAddr) -> bool {
        let penalties = self.penalties.lock().expect("plain data");
        let penalty = penalties.get(&source);
        penalty.is_some_and(|penalty| penalty.active && penalty.until.is_some_and(|until| until > Instant::now()))
    }

    /// Random early drop of connections that have not logged in.
    fn drops_early(&self) -> bool {
        let count = *self.startups.lock().expect("plain data");
        let (begin, rate, full) = STARTUPS;
        if count < begin {
            return false;
        }
        if count >= full {
            return true;
        }
        let chance = rate + (100 - rate) * (count - begin) / (full - begin);
        let serial = self.host.site.next_serial();
        self.host
            .entropy
            .fork(&format!("startup {serial}"))
            .rng()
            .random_range(0..100)
            < chance
    }
}

/// Serves until the guest ends.
pub(crate) async fn serve(host: Arc<Host>, mut listener: Box<dyn Listener>) {
    let Some(key) = host.fs.text(HOST_KEY).and_then(|text| PrivateKey::from_openssh(text).ok()) else {
        return;
    };
    let (version, number) = host.image.ssh_version();
    let config = Arc::new(server::Config {
        server_id: SshId::Standard(version.into()),
        methods: MethodSet::from(&[MethodKind::PublicKey][..]),
        keys: vec![key],
        auth_rejection_time: Duration::from_millis(50),
        auth_rejection_time_initial: Some(Duration::ZERO),
        max_auth_attempts: 6,
        nodelay: true,
        ..server::Config::default()
    });
    let daemon = Arc::new(Daemon {
        host,
        penalties: Mutex::default(),
        startups: Mutex::default(),
        punishes: number >= (9, 8),
    });
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            arrival = listener.accept() => match arrival {
                Ok((stream, peer)) => drop(connections.spawn(connection(Arc::clone(&daemon), Arc::clone(&config), stream, peer))),
                Err(_) => return,
            },
        }
    }
}

async fn connection(daemon: Arc<Daemon>, config: Arc<server::Config>, mut stream: BoxIo, peer: SocketAddr) {
    let source = peer.ip();
    if daemon.is_penalised(source) {
        let _ = stream.write_all(b"Not allowed at this time\r\n").await;
        return;
    }
    if daemon.drops_early() {
        let _ = stream.write_all(b"Exceeded MaxStartups\r\n").await;
        return;
    }
    *daemon.startups.lock().expect("plain data") += 1;
    let progress = Arc::new(Mutex::new(Progress::default()));
    let handler = Door {
        daemon: Arc::clone(&daemon),
        progress: Arc::clone(&progress),
        sessions: BTreeMap::new(),
        open: Arc::default(),
        user: None,
    };
    let (mut ours, theirs) = tokio::io::duplex(256 * 1024);
    let run = async {
        match server::run_stream(config, theirs, handler).await {
            Ok(running) => running.await,
            Err(fault) => Err(fault),
        }
    };
    let both = async { futures::join!(tokio::io::copy_bidirectional(&mut stream, &mut ours), run) };
    tokio::pin!(both);
    let in_time = tokio::select! {
        biased;
        _ = &mut both => true,
        () = tokio::time::sleep(LOGIN_GRACE) => false,
    };
    if !in_time && progress.lock().expect("plain data").logged_in {
        let _ = both.await;
    }
    let progress = progress.lock().expect("plain data").clone();
    if !progress.logged_in {
        *daemon.startups.lock().expect("plain data") -= 1;
        let by = match (in_time, progress.failed) {
            (false, _) => GRACE_EXCEEDED,
            (true, true) => AUTH_FAILED,
            (true, false) => NO_AUTH,
        };
        daemon.penalise(source, by);
    }
}

#[derive(Clone, Default)]
struct Progress {
    logged_in: bool,
    failed: bool,
}

struct Door {
    daemon: Arc<Daemon>,
    progress: Arc<Mutex<Progress>>,
    sessions: BTreeMap<ChannelId, Channelled>,
    /// Sessions whose program has not ended.
    open: Arc<Mutex<BTreeSet<ChannelId>>>,
    user: Option<User>,
}

#[derive(Default)]
struct Channelled {
    input: Option<mpsc::UnboundedSender<Bytes>>,
    env: Vec<(String, String)>,
    /// Dropped with the connection: the programs of a session get a hangup.
    running: Option<Hangup>,
}

struct Hangup(AbortHandle);

impl Drop for Hangup {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Door {
    fn knows(&self, user: &str, key: &PublicKey) -> Option<User> {
        let host = &self.daemon.host;
        let found = User::find(host, user)?;
        let keys = host.fs.text(&format!("{}/.ssh/authorized_keys", found.home))?;
        let fits = |line: &str| PublicKey::from_openssh(line.trim()).is_ok_and(|known| known.key_data() == key.key_data());
        keys.lines().any(fits).then_some(found)
    }

    fn refuse(&self) -> Auth {
        self.progress.lock().expect("plain data").failed = true;
        Auth::reject()
    }

    fn start(&mut self, channel: ChannelId, command: Option<String>, handle: Handle) {
        let (Some(user), Some(session)) = (self.user.clone(), self.sessions.get_mut(&channel)) else {
            return;
        };
        let (to_program, from_client) = mpsc::unbounded_channel();
        session.input = Some(to_program);
        let mut process = Process::new(&self.daemon.host, user);
        process.stdin = Input::from_channel(from_client);
        process.env.extend(session.env.iter().cloned());
        let host = Arc::clone(&self.daemon.host);
        let open = Arc::clone(&self.open);
        let running = host.spawn(async move {
            execute(process, command, channel, handle).await;
            open.lock().expect("plain data").remove(&channel);
        });
        session.running = Some(Hangup(running.abort_handle()));
    }
}

/// Runs a command of a session and sends what it writes while it runs.
async fn execute(mut process: Process, command: Option<String>, channel: ChannelId, handle: Handle) {
    let (out, mut written) = mpsc::unbounded_channel();
    let (err, mut complained) = mpsc::unbounded_channel();
    process.outputs.insert(1, Output::Channel(out));
    process.outputs.insert(2, Output::Channel(err));
    let stdin = process.stdin.clone();
    let run = async {
        match command {
            Some(command) => interpret(process, &command, vec!["bash: line 1".to_owned()]).await,
            None => {
                let script = stdin.read_to_end().await;
                interpret(process, &String::from_utf8_lossy(&script), vec!["-bash".to_owned()]).await
            }
        }
    };
    let forward = async {
        while let Some(bytes) = written.recv().await {
            let _ = handle.data(channel, bytes).await;
        }
    };
    let forward_errors = async {
        while let Some(bytes) = complained.recv().await {
            let _ = handle.extended_data(channel, 1, bytes).await;
        }
    };
    let (status, (), ()) = tokio::join!(run, forward, forward_errors);
    let _ = handle
        .exit_status_request(channel, u32::try_from(status & 0xff).unwrap_or(255))
        .await;
    let _ = handle.eof(channel).await;
    let _ = handle.close(channel).await;
}

impl server::Handler for Door {
    type Error = russh::Error;

    async fn authentication_banner(&mut self) -> Result<Option<String>, russh::Error> {
        Ok(self.daemon.host.lock().booting.then(|| BOOTING.to_owned()))
    }

    async fn auth_publickey_offered(&mut self, user: &str, offer: PublicKeyOffer<'_>) -> Result<Auth, russh::Error> {
        Ok(match self.knows(user, offer.public_key) {
            Some(_) => Auth::Accept,
            None => self.refuse(),
        })
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        let Some(found) = self.knows(user, key.public_key) else {
            return Ok(self.refuse());
        };
        // The key is right, but pam_nologin lets only root in while the system boots.
        if self.daemon.host.lock().booting && found.uid != 0 {
            return Ok(self.refuse());
        }
        self.user = Some(found);
        let first = !std::mem::replace(&mut self.progress.lock().expect("plain data").logged_in, true);
        if first {
            *self.daemon.startups.lock().expect("plain data") -= 1;
        }
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        let full = {
            let mut open = self.open.lock().expect("plain data");
            let full = open.len() >= SESSIONS;
            if !full {
                open.insert(channel.id());
            }
            full
        };
        if full {
            reply.reject(ChannelOpenFailure::ConnectFailed).await;
            return Ok(());
        }
        self.sessions.insert(channel.id(), Channelled::default());
        reply.accept().await;
        Ok(())
    }

    async fn env_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        value: &str,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        // `AcceptEnv LANG LC_*`
        if name == "LANG" || name.starts_with("LC_") {
            if let Some(opened) = self.sessions.get_mut(&channel) {
                opened.env.push((name.to_owned(), value.to_owned()));
            }
            return session.channel_success(channel);
        }
        session.channel_failure(channel)
    }

    async fn exec_request(&mut self, channel: ChannelId, data: &[u8], session: &mut Session) -> Result<(), russh::Error> {
        session.channel_success(channel)?;
        let command = String::from_utf8_lossy(data).into_owned();
        self.start(channel, Some(command), session.handle());
        Ok(())
    }

    async fn shell_request(&mut self, channel: ChannelId, session: &mut Session) -> Result<(), russh::Error> {
        session.channel_success(channel)?;
        self.start(channel, None, session.handle());
        Ok(())
    }

    async fn subsystem_request(&mut self, channel: ChannelId, _name: &str, session: &mut Session) -> Result<(), russh::Error> {
        session.channel_failure(channel)
    }

    async fn data(&mut self, channel: ChannelId, data: &[u8], _session: &mut Session) -> Result<(), russh::Error> {
        if let Some(input) = self.sessions.get(&channel).and_then(|session| session.input.as_ref()) {
            let _ = input.send(Bytes::copy_from_slice(data));
        }
        Ok(())
    }

    async fn channel_eof(&mut self, channel: ChannelId, _session: &mut Session) -> Result<(), russh::Error> {
        if let Some(session) = self.sessions.get_mut(&channel) {
            session.input = None;
        }
        Ok(())
    }

    async fn channel_close(&mut self, channel: ChannelId, _session: &mut Session) -> Result<(), russh::Error> {
        self.sessions.remove(&channel);
        self.open.lock().expect("plain data").remove(&channel);
        Ok(())
    }
}
