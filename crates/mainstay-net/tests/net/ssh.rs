//! Sessions on a guest: what runs, what is refused, and what is not known afterwards.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_net::sshd::{ed25519_key, key_file};
use mainstay_net::{
    Binder, Dialer, Entropy, HostKeyPolicy, RemoteFile, SimNet, SshClient, SshCommand, SshEndpoint, SshError, SshErrorClass,
    SshExit, SshHostKey, SshLimits, simulate,
};
use russh::keys::PrivateKey;
use russh::server::{self, Auth, ChannelOpenHandle, Msg, PublicKeyOffer, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, MethodKind, MethodSet};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::jump::Site;
use crate::world::{HOUR, SECOND, ip};

const GUEST: &str = "10.10.0.11:22";
const BOOTING: &str = "System is booting up. Unprivileged users are not permitted to log in yet.\r\n";

/// What the guest's sshd does, and what it saw.
#[derive(Default)]
struct Guest {
    connections: usize,
    sessions: usize,
    sessions_max: usize,
    logins: usize,
    commands: Vec<String>,
    /// The text before a login, and whether the connection is dropped instead of refused.
    booting: Option<bool>,
    accepts_key: bool,
    allowed_sessions: usize,
}

#[derive(Clone)]
struct Door {
    guest: Arc<Mutex<Guest>>,
    key: PrivateKey,
    running: BTreeMap<ChannelId, (String, Vec<u8>)>,
}

impl Door {
    fn judge(&self, offered: &russh::keys::PublicKey) -> Result<Auth, russh::Error> {
        let mut guest = self.guest.lock().unwrap();
        guest.logins += 1;
        match guest.booting {
            Some(true) => Err(russh::Error::Disconnect),
            Some(false) => Ok(Auth::reject()),
            None if guest.accepts_key && offered.key_data() == self.key.public_key().key_data() => Ok(Auth::Accept),
            None => Ok(Auth::reject()),
        }
    }

    fn end(&self, channel: ChannelId, session: &mut Session, stdout: &[u8], code: u32) -> Result<(), russh::Error> {
        self.guest.lock().unwrap().sessions -= 1;
        session.data(channel, b"noise of .bashrc\nmainstay-output-begins\n".to_vec())?;
        session.data(channel, stdout.to_vec())?;
        session.exit_status_request(channel, code)?;
        session.eof(channel)?;
        session.close(channel)
    }
}

impl server::Handler for Door {
    type Error = russh::Error;

    async fn authentication_banner(&mut self) -> Result<Option<String>, russh::Error> {
        Ok(self.guest.lock().unwrap().booting.map(|_| BOOTING.to_owned()))
    }

    async fn auth_publickey_offered(&mut self, _user: &str, offer: PublicKeyOffer<'_>) -> Result<Auth, russh::Error> {
        self.judge(offer.public_key)
    }

    async fn auth_publickey(&mut self, _user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        self.judge(key.public_key)
    }

    async fn channel_open_session(
        &mut self,
        _channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        let is_free = {
            let mut guest = self.guest.lock().unwrap();
            guest.sessions += 1;
            guest.sessions_max = guest.sessions_max.max(guest.sessions);
            guest.sessions <= guest.allowed_sessions
        };
        if is_free {
            reply.accept().await;
        } else {
            reply.reject(ChannelOpenFailure::ConnectFailed).await;
        }
        Ok(())
    }

    async fn exec_request(&mut self, channel: ChannelId, command: &[u8], session: &mut Session) -> Result<(), russh::Error> {
        let command = String::from_utf8(command.to_vec()).unwrap();
        self.guest.lock().unwrap().commands.push(command.clone());
        if command.contains("forbidden") {
            return session.channel_failure(channel);
        }
        session.channel_success(channel)?;
        self.running.insert(channel, (command, Vec::new()));
        Ok(())
    }

    async fn data(&mut self, channel: ChannelId, data: &[u8], _session: &mut Session) -> Result<(), russh::Error> {
        if let Some((_, stdin)) = self.running.get_mut(&channel) {
            stdin.extend_from_slice(data);
        }
        Ok(())
    }

    async fn channel_eof(&mut self, channel: ChannelId, session: &mut Session) -> Result<(), russh::Error> {
        let Some((command, stdin)) = self.running.remove(&channel) else {
            return Ok(());
        };
        match command {
            command if command.contains("crash") => Err(russh::Error::Disconnect),
            command if command.contains("hang") => Ok(()),
            command if command.contains("flood") => session.data(channel, vec![b'x'; 400_000]),
            command if command.contains("no sudo") => {
                session.extended_data(channel, 1, b"sudo: a password is required\n".to_vec())?;
                session.exit_status_request(channel, 1)?;
                session.eof(channel)?;
                session.close(channel)
            }
            command if command.contains("half") => {
                session.data(channel, b"mainstay-output-begins\npart".to_vec())?;
                session.exit_status_request(channel, 0)?;
                let handle = session.handle();
                tokio::spawn(async move {
                    tokio::time::sleep(SECOND).await;
                    let _ = handle
                        .disconnect(russh::Disconnect::ByApplication, String::new(), String::new())
                        .await;
                });
                Ok(())
            }
            command if command.contains("temporary=") && stdin.starts_with(b"bad") => {
                session.extended_data(channel, 1, b"No space left on device\n".to_vec())?;
                self.end(channel, session, b"", 1)
            }
            _ => {
                tokio::time::sleep(Duration::from_millis(300)).await;
                self.end(channel, session, &stdin, 0)
            }
        }
    }
}

/// A guest with sshd, and a key that may log in.
struct Machine {
    guest: Arc<Mutex<Guest>>,
    host_key: PrivateKey,
    key: PrivateKey,
    net: SimNet,
    task: JoinHandle<()>,
}

impl Machine {
    async fn start(net: &SimNet, entropy: &Entropy) -> Self {
        let guest = Guest {
            accepts_key: true,
            allowed_sessions: 10,
            ..Guest::default()
        };
        let mut machine = Self {
            guest: Arc::new(Mutex::new(guest)),
            host_key: ed25519_key(&entropy.fork("guest-host")),
            key: ed25519_key(&entropy.fork("guest-user")),
            net: net.clone(),
            task: tokio::spawn(async {}),
        };
        machine.serve().await;
        machine
    }

    async fn serve(&mut self) {
        self.task.abort();
        tokio::task::yield_now().await;
        let mut listener = self.net.bind(GUEST.parse().unwrap()).await.unwrap();
        let config = Arc::new(server::Config {
            methods: MethodSet::from(&[MethodKind::PublicKey][..]),
            keys: vec![self.host_key.clone()],
            auth_rejection_time: Duration::from_millis(50),
            auth_rejection_time_initial: Some(Duration::ZERO),
            ..server::Config::default()
        });
        let door = Door {
            guest: Arc::clone(&self.guest),
            key: self.key.clone(),
            running: BTreeMap::new(),
        };
        self.task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                door.guest.lock().unwrap().connections += 1;
                let (config, door) = (Arc::clone(&config), door.clone());
                tokio::spawn(async move {
                    if let Ok(running) = server::run_stream(config, stream, door).await {
                        let _ = running.await;
                    }
                });
            }
        });
    }

    fn pin(&self) -> SshHostKey {
        self.host_key.public_key().to_openssh().unwrap().parse().unwrap()
    }

    fn client(&self, host_key: HostKeyPolicy) -> SshClient {
        self.client_through(Arc::new(self.net.clone()), host_key)
    }

    fn client_through(&self, dialer: Arc<dyn Dialer>, host_key: HostKeyPolicy) -> SshClient {
        let endpoint = SshEndpoint {
            address: GUEST.parse().unwrap(),
            user: "mainstay".into(),
            key: key_file(&self.key),
            host_key,
        };
        SshClient::new(dialer, endpoint, SshLimits::default())
    }
}

fn run<F: Future<Output = ()>>(test: impl FnOnce(Machine) -> F + Send) {
    simulate(5, HOUR, |entropy| async move {
        let net = SimNet::new(entropy.fork("net"));
        test(Machine::start(&net, &entropy).await).await;
    })
    .unwrap();
}

fn command(script: &str) -> SshCommand {
    SshCommand::root("test", script)
}

#[test]
fn a_command_gets_its_input_and_tells_its_output_without_noise() {
    run(|machine| async move {
        let client = machine.client(HostKeyPolicy::LearnFirst);
        let output = client.run_with(&command("cat"), &b"in\0put"[..]).await.unwrap();
        assert_eq!(
            (output.exit.clone(), output.stdout.as_slice()),
            (SshExit::Code(0), &b"in\0put"[..])
        );
        assert_eq!(
            format!("{output:?}"),
            "SshOutput(exit code 0, 6 bytes of stdout, 0 bytes of stderr)"
        );
        assert_eq!(
            client.connect().await.unwrap(),
            machine.pin(),
            "the key is given to the caller"
        );
    });
}

#[test]
fn one_connection_carries_all_commands_and_four_at_once() {
    run(|machine| async move {
        let client = machine.client(HostKeyPolicy::Pinned(machine.pin()));
        let running = (0..12).map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.run(&command("true")).await.map(drop) })
        });
        for ended in futures::future::join_all(running).await {
            ended.unwrap().unwrap();
        }
        let guest = machine.guest.lock().unwrap();
        assert_eq!((guest.connections, guest.sessions_max, guest.sessions), (1, 4, 0));
    });
}

#[test]
fn large_input_passes_the_window_of_the_session() {
    run(|machine| async move {
        let client = machine.client(HostKeyPolicy::LearnFirst);
        let input: Vec<u8> = (0..5_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let mut wide = command("cat");
        wide.output_max = input.len() + 100;
        assert_eq!(client.run_with(&wide, input.as_slice()).await.unwrap().stdout, input);
    });
}

#[test]
fn another_host_key_is_refused_before_the_login() {
    run(|mut machine| async move {
        let pinned = machine.pin();
        let client = machine.client(HostKeyPolicy::Pinned(pinned.clone()));
        machine.host_key = ed25519_key(&Entropy::from_seed(99));
        machine.serve().await;
        let error = client.connect().await.unwrap_err();
        assert_eq!(error.class(), SshErrorClass::HostKeyMismatch);
        let SshError::HostKeyMismatch { expected, seen, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!((expected, seen), (&pinned, &machine.pin()));
        assert!(error.remedy().unwrap().contains("mainstay trust"));
        assert_eq!(machine.guest.lock().unwrap().logins, 0);
    });
}

#[test]
fn a_learned_key_is_pinned_for_later_connections_of_the_client() {
    run(|mut machine| async move {
        let client = machine.client(HostKeyPolicy::LearnFirst);
        client.connect().await.unwrap();
        client.close().await;
        machine.host_key = ed25519_key(&Entropy::from_seed(99));
        machine.serve().await;
        tokio::time::sleep(SECOND).await;
        assert_eq!(client.connect().await.unwrap_err().class(), SshErrorClass::HostKeyMismatch);
    });
}

#[test]
fn a_booting_system_is_told_from_a_wrong_key() {
    run(|machine| async move {
        for drops in [true, false] {
            machine.guest.lock().unwrap().booting = Some(drops);
            let error = machine.client(HostKeyPolicy::LearnFirst).connect().await.unwrap_err();
            assert_eq!(error.class(), SshErrorClass::LoginsDisabled, "{error:?}");
            assert!(
                error.is_transient() && error.to_string().contains("System is booting up"),
                "{error}"
            );
        }
        machine.guest.lock().unwrap().booting = None;
        machine.guest.lock().unwrap().accepts_key = false;
        let error = machine.client(HostKeyPolicy::LearnFirst).connect().await.unwrap_err();
        assert_eq!(error.class(), SshErrorClass::LoginRefused, "{error:?}");
        assert!(!error.is_transient());
    });
}

#[test]
fn failed_logins_are_repeated_slowly_and_penalties_waited_for() {
    run(|machine| async move {
        machine.guest.lock().unwrap().accepts_key = false;
        let client = machine.client(HostKeyPolicy::LearnFirst);
        let start = Instant::now();
        let mut attempts = Vec::new();
        for _ in 0..5 {
            client.connect().await.unwrap_err();
            attempts.push(start.elapsed().as_secs());
        }
        assert_eq!(attempts, [0, 6, 18, 42, 72], "6, 12, 24, 30 seconds between them");
        machine.task.abort();
        tokio::task::yield_now().await;
        let mut listener = machine.net.bind(GUEST.parse().unwrap()).await.unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(b"Not allowed at this time\r\n").await;
            }
        });
        let error = client.connect().await.unwrap_err();
        assert_eq!(error.class(), SshErrorClass::Penalty, "{error:?}");
        assert!(
            error.to_string().ends_with("before SSH began (Not allowed at this time)"),
            "{error}"
        );
        let dropped = Instant::now();
        client.connect().await.unwrap_err();
        assert_eq!(dropped.elapsed().as_secs(), 60);
    });
}

#[test]
fn refused_silent_and_unreachable_guests_are_told_apart_without_a_pause() {
    run(|machine| async move {
        machine.task.abort();
        tokio::task::yield_now().await;
        machine.net.attach(ip("10.10.0.11"));
        let client = machine.client(HostKeyPolicy::LearnFirst);
        let start = Instant::now();
        for _ in 0..3 {
            assert_eq!(client.connect().await.unwrap_err().class(), SshErrorClass::Refused);
        }
        assert!(start.elapsed() < SECOND, "no connection was made, so nothing is punished");
        machine.net.black_hole(ip("10.10.0.11"));
        assert_eq!(client.connect().await.unwrap_err().class(), SshErrorClass::TimedOut);
        machine.net.end_black_hole(ip("10.10.0.11"));

        // ssh.socket: systemd accepts, sshd does not run yet.
        let mut listener = machine.net.bind(GUEST.parse().unwrap()).await.unwrap();
        tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                held.push(stream);
            }
        });
        let start = Instant::now();
        let error = client.connect().await.unwrap_err();
        assert_eq!((error.class(), start.elapsed().as_secs()), (SshErrorClass::NoBanner, 10));
    });
}

#[test]
fn a_connection_lost_in_mid_command_leaves_the_outcome_unknown() {
    run(|machine| async move {
        let client = machine.client(HostKeyPolicy::LearnFirst);
        let error = client.run(&command("crash")).await.unwrap_err();
        assert!(matches!(error, SshError::Disconnected { .. }), "{error:?}");
        assert_eq!(error.class(), SshErrorClass::OutcomeUnknown);
        assert!(!error.is_transient(), "the caller looks first");
        let error = client.run(&command("half")).await.unwrap_err();
        assert!(
            matches!(error, SshError::Disconnected { .. }),
            "an exit code without the end of the output: {error:?}"
        );
        client.run(&command("true")).await.expect("the next command connects anew");
        assert_eq!(machine.guest.lock().unwrap().connections, 3);
    });
}

#[test]
fn a_connection_that_died_between_commands_is_replaced_without_an_error() {
    run(|machine| async move {
        let client = machine.client(HostKeyPolicy::LearnFirst);
        client.run(&command("true")).await.unwrap();
        machine.net.reset(ip("10.10.0.11"));
        client.run(&command("true")).await.unwrap();
        assert_eq!(machine.guest.lock().unwrap().connections, 2);
    });
}

#[test]
fn a_command_that_hangs_or_prints_too_much_is_left_and_the_connection_stays() {
    run(|machine| async move {
        let client = machine.client(HostKeyPolicy::LearnFirst);
        let start = Instant::now();
        let error = client.run(&command("hang").timeout(SECOND * 20)).await.unwrap_err();
        assert!(matches!(error, SshError::CommandTimedOut { .. }), "{error:?}");
        assert_eq!(start.elapsed().as_secs(), 20);
        let mut small = command("flood");
        small.output_max = 100_000;
        let error = client.run(&small).await.unwrap_err();
        assert!(matches!(error, SshError::OutputTooLarge { limit: 100_000, .. }), "{error:?}");
        client.run(&command("true")).await.unwrap();
        assert_eq!(machine.guest.lock().unwrap().connections, 1);
    });
}

#[test]
fn what_was_not_started_says_so() {
    run(|machine| async move {
        let client = machine.client(HostKeyPolicy::LearnFirst);
        let error = client.run(&command("forbidden")).await.unwrap_err();
        assert!(matches!(error, SshError::NotStarted { .. }), "{error:?}");
        let error = client.run(&command("no sudo")).await.unwrap_err();
        assert_eq!(error.class(), SshErrorClass::SudoRefused);
        assert!(error.to_string().contains("a password is required") && !error.is_transient());
        machine.guest.lock().unwrap().allowed_sessions = 0;
        let error = client.run(&command("true")).await.unwrap_err();
        assert!(matches!(error, SshError::NotStarted { .. }), "{error:?}");
    });
}

#[test]
fn a_file_goes_through_stdin_and_a_failure_names_its_cause() {
    run(|machine| async move {
        let client = machine.client(HostKeyPolicy::LearnFirst);
        let file = RemoteFile::new("/etc/rancher/rke2/config.yaml", 0o600, "token: CANARY");
        client.write_file(&file).await.unwrap();
        let commands = machine.guest.lock().unwrap().commands.clone();
        assert!(commands[0].contains("/etc/rancher/rke2/config.yaml") && !commands[0].contains("CANARY"));
        let error = client
            .write_file(&RemoteFile::new("/full/file", 0o600, "bad CANARY"))
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "/full/file on 10.10.0.11:22 was not written (exit code 1): No space left on device"
        );
        assert!(!format!("{error:?}").contains("CANARY"));
        assert!(matches!(
            client.write_file(&RemoteFile::new("relative", 0o600, "")).await.unwrap_err(),
            SshError::BadPath(_)
        ));
    });
}

#[test]
fn a_guest_behind_the_jump_host_is_reached_and_its_refusals_are_told() {
    simulate(5, HOUR, |entropy| async move {
        let site = Site::start(&entropy).await;
        let machine = Machine::start(&site.net, &entropy).await;
        let direct = machine.client(HostKeyPolicy::LearnFirst).connect().await.unwrap_err();
        assert_eq!(direct.class(), SshErrorClass::TimedOut);
        let client = machine.client_through(Arc::new(site.jump()), HostKeyPolicy::Pinned(machine.pin()));
        assert_eq!(
            client.run_with(&command("cat"), &b"hello"[..]).await.unwrap().stdout_text(),
            "hello"
        );
        let stranger = site.jump_with("# no line", Vec::new());
        let client = machine.client_through(Arc::new(stranger), HostKeyPolicy::LearnFirst);
        assert_eq!(client.connect().await.unwrap_err().class(), SshErrorClass::JumpHost);
    })
    .unwrap();
}
