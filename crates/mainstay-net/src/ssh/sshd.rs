//! A simulated sshd that forwards: the jump host of simulated worlds and of tests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use russh::keys::ssh_key::LineEnding;
use russh::keys::{PrivateKey, PublicKey};
use russh::server::{self, Auth, ChannelOpenHandle, Msg, PublicKeyOffer, Session, VerifiedPublicKey};
use russh::{Channel, ChannelOpenFailure, MethodKind, MethodSet};
use tokio::task::JoinSet;

use super::known_hosts::KnownHosts;
use crate::dial::{BoxIo, Dialer, dial_within};
use crate::env::Entropy;
use crate::error::DialFault;
use crate::listen::Listener;
use crate::secret::Secret;
use crate::target::Target;

/// How long a forwarded dial may take; sshd itself waits as long as its kernel.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(60);

/// Who may log in and what they may do.
#[derive(Clone)]
pub struct Sshd {
    pub host_key: PrivateKey,
    pub users: Vec<User>,
    /// `AllowTcpForwarding`.
    pub forwarding: bool,
    /// Where forwarded connections leave from.
    pub dialer: Arc<dyn Dialer>,
}

#[derive(Clone, Debug)]
pub struct User {
    pub name: String,
    pub authorized_keys: Vec<PublicKey>,
}

/// An Ed25519 key that depends on the entropy alone.
pub fn ed25519_key(entropy: &Entropy) -> PrivateKey {
    use rand::Rng;
    let mut seed = [0; 32];
    entropy.rng().fill_bytes(&mut seed);
    let pair = russh::keys::ssh_key::private::Ed25519Keypair::from_seed(&seed);
    PrivateKey::from(pair)
}

/// The private key as a file's content, for [`Login::Key`](crate::Login::Key) or `ssh -i`.
pub fn key_file(key: &PrivateKey) -> Secret<String> {
    let text = key.to_openssh(LineEnding::LF).map(|text| text.to_string());
    Secret::new(text.expect("a key that was made here can be written"))
}

/// The known_hosts line of a server with this host key.
pub fn known_hosts_line(at: &Target, host_key: &PrivateKey) -> String {
    KnownHosts::line_for(at, host_key.public_key())
}

impl User {
    /// A user with the content of an authorized_keys file. Lines that are not a plain key are passed over.
    pub fn new(name: &str, authorized_keys: &str) -> Self {
        let authorized_keys = authorized_keys
            .lines()
            .filter_map(|line| PublicKey::from_openssh(line).ok())
            .collect();
        Self {
            name: name.to_owned(),
            authorized_keys,
        }
    }

    pub fn with_key(name: &str, key: &PrivateKey) -> Self {
        Self {
            name: name.to_owned(),
            authorized_keys: vec![key.public_key().clone()],
        }
    }
}

impl Sshd {
    /// Serves until the listener fails. Dropping the future ends every session at once.
    pub async fn serve(self, mut listener: Box<dyn Listener>) -> io::Error {
        let config = Arc::new(self.config());
        let shared = Arc::new(self);
        let mut sessions = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                Some(_) = sessions.join_next() => {}
                arrival = listener.accept() => match arrival {
                    Ok((stream, peer)) => {
                        sessions.spawn(session(Arc::clone(&shared), Arc::clone(&config), stream, peer));
                    }
                    Err(fault) => return fault,
                },
            }
        }
    }

    fn config(&self) -> server::Config {
        server::Config {
            methods: MethodSet::from(&[MethodKind::PublicKey][..]),
            keys: vec![self.host_key.clone()],
            auth_rejection_time: Duration::from_millis(50),
            auth_rejection_time_initial: Some(Duration::ZERO),
            nodelay: true,
            ..server::Config::default()
        }
    }

    fn admits(&self, user: &str, key: &PublicKey) -> bool {
        let of_user = self.users.iter().filter(|known| known.name == user);
        of_user
            .flat_map(|known| &known.authorized_keys)
            .any(|known| known.key_data() == key.key_data())
    }
}

/// russh runs a session in a task of its own, out of our reach; it gets one end of a pipe, so that dropping ours ends it.
async fn session(sshd: Arc<Sshd>, config: Arc<server::Config>, mut stream: BoxIo, peer: SocketAddr) {
    let (mut ours, theirs) = tokio::io::duplex(256 * 1024);
    let run = async {
        match server::run_stream(config, theirs, Door { sshd }).await {
            Ok(running) => running.await,
            Err(fault) => Err(fault),
        }
    };
    let (copied, ended) = futures::join!(tokio::io::copy_bidirectional(&mut stream, &mut ours), run);
    if let Err(fault) = copied {
        tracing::debug!(%peer, %fault, "SSH connection broke");
    }
    if let Err(fault) = ended {
        tracing::debug!(%peer, %fault, "SSH session ended");
    }
}

struct Door {
    sshd: Arc<Sshd>,
}

impl Door {
    fn answer(&self, user: &str, key: &PublicKey) -> Auth {
        if self.sshd.admits(user, key) {
            Auth::Accept
        } else {
            Auth::reject()
        }
    }
}

impl server::Handler for Door {
    type Error = russh::Error;

    async fn auth_publickey_offered(&mut self, user: &str, offer: PublicKeyOffer<'_>) -> Result<Auth, russh::Error> {
        Ok(self.answer(user, offer.public_key))
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        Ok(self.answer(user, key.public_key))
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        let Ok(port) = u16::try_from(port) else {
            reply.reject(ChannelOpenFailure::ConnectFailed).await;
            return Ok(());
        };
        if !self.sshd.forwarding {
            reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
            return Ok(());
        }
        // In a task of its own: a slow dial must not hold up the other channels.
        let (sshd, to) = (Arc::clone(&self.sshd), Target::new(host, port));
        tokio::spawn(async move { forward(sshd, to, channel, reply).await });
        Ok(())
    }
}

async fn forward(sshd: Arc<Sshd>, to: Target, channel: Channel<Msg>, reply: ChannelOpenHandle) {
    match dial_within(&*sshd.dialer, &to, FORWARD_TIMEOUT).await {
        Ok(mut upstream) => {
            reply.accept().await;
            let copied = tokio::io::copy_bidirectional(&mut channel.into_stream(), &mut upstream).await;
            if let Err(fault) = copied {
                tracing::debug!(%to, %fault, "forwarded connection broke");
            }
        }
        Err(failure) => {
            tracing::debug!(%failure, "forwarding failed");
            let prohibited = matches!(failure.fault(), DialFault::ForwardingProhibited);
            let reason = if prohibited {
                ChannelOpenFailure::AdministrativelyProhibited
            } else {
                ChannelOpenFailure::ConnectFailed
            };
            reply.reject(reason).await;
        }
    }
}
