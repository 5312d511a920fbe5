//! The jump host: what goes through it, and every way it can say no.

use std::sync::Arc;
use std::time::Duration;

use mainstay_net::sshd::{Sshd, User, ed25519_key, key_file, known_hosts_line};
use mainstay_net::{
    Binder, DialError, DialFault, Dialer, Entropy, JumpAddress, JumpDialer, KnownHosts, Login, Loopback, Operation, Secret,
    ServeOptions, SimNet, Target, Tcp, dial_within, simulate,
};
use russh::keys::{PrivateKey, PublicKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use crate::world::{HOUR, SECOND, client, get_url, ip, start, text};

/// A jump host at 10.0.0.5 in front of a network that only it can reach.
pub struct Site {
    pub net: SimNet,
    pub sshd: Sshd,
    user_key: PrivateKey,
    pub task: JoinHandle<std::io::Error>,
}

impl Site {
    pub async fn start(entropy: &Entropy) -> Self {
        let net = SimNet::new(entropy.fork("net"));
        let user_key = ed25519_key(&entropy.fork("user"));
        let dialer = Arc::new(net.from(ip("10.0.0.5")));
        let sshd = sshd(entropy, &user_key, dialer);
        let task = run(&net, &sshd).await;
        net.attach(ip("10.10.0.11"));
        net.partition(ip("192.0.2.1"), ip("10.10.0.11"));
        Self {
            net,
            sshd,
            user_key,
            task,
        }
    }

    /// Everything as it should be.
    pub fn jump(&self) -> JumpDialer {
        self.jump_with(&self.known_line(), vec![login(&self.user_key)])
    }

    pub fn jump_with(&self, known_hosts: &str, logins: Vec<Login>) -> JumpDialer {
        jump(Arc::new(self.net.clone()), "ops@10.0.0.5", known_hosts, logins)
    }

    pub fn known_line(&self) -> String {
        known_hosts_line(&Target::new("10.0.0.5", 22), &self.sshd.host_key)
    }
}

async fn run(network: &dyn Binder, sshd: &Sshd) -> JoinHandle<std::io::Error> {
    let listener = network.bind("10.0.0.5:22".parse().unwrap()).await.unwrap();
    tokio::spawn(sshd.clone().serve(listener))
}

fn sshd(entropy: &Entropy, user_key: &PrivateKey, dialer: Arc<dyn Dialer>) -> Sshd {
    let users = vec![User::with_key("ops", user_key)];
    Sshd {
        host_key: ed25519_key(&entropy.fork("host")),
        users,
        forwarding: true,
        dialer,
    }
}

fn jump(via: Arc<dyn Dialer>, address: &str, known_hosts: &str, logins: Vec<Login>) -> JumpDialer {
    JumpDialer::new(
        via,
        address.parse().unwrap(),
        KnownHosts::parse(known_hosts),
        logins,
        SECOND * 10,
    )
}

fn login(key: &PrivateKey) -> Login {
    Login::Key {
        text: key_file(key),
        passphrase: None,
    }
}

fn openssh_line(key: &PublicKey) -> String {
    key.to_openssh().unwrap()
}

/// A simulated sshd on real loopback TCP.
pub async fn loopback_site(entropy: &Entropy) -> (JumpDialer, JoinHandle<std::io::Error>) {
    let user_key = ed25519_key(&entropy.fork("user"));
    let sshd = sshd(entropy, &user_key, Arc::new(Tcp));
    let listener = Loopback.bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let port = listener.address().port();
    let known = known_hosts_line(&listener.address().into(), &sshd.host_key);
    let task = tokio::spawn(sshd.serve(listener));
    (
        jump(
            Arc::new(Tcp),
            &format!("ops@127.0.0.1:{port}"),
            &known,
            vec![login(&user_key)],
        ),
        task,
    )
}

async fn refusal(jump: &JumpDialer, to: &str) -> DialError {
    let to: Target = to.parse().unwrap();
    dial_within(jump, &to, SECOND * 30).await.err().expect("the dial fails")
}

#[test]
fn only_the_jump_host_reaches_the_network_behind_it() {
    let run = simulate(3, HOUR, |entropy| async move {
        let site = Site::start(&entropy).await;
        let at = start(&site.net, "10.10.0.11:80", ServeOptions::plain()).await;
        let direct = dial_within(&site.net, &at.into(), SECOND * 3).await.err().unwrap();
        assert!(matches!(direct.fault(), DialFault::TimedOut { .. }), "{direct:?}");
        let through: Arc<dyn Dialer> = Arc::new(site.jump());
        let answer = get_url(&client(&through, &mainstay_net::Trust::Plain), "http://10.10.0.11/")
            .await
            .unwrap();
        assert_eq!(text(&answer), "HTTP/1.1 from 10.0.0.5 with 0 certificates");
    });
    run.unwrap();
}

#[test]
fn a_closed_port_behind_the_jump_host_is_refused() {
    let run = simulate(3, HOUR, |entropy| async move {
        let site = Site::start(&entropy).await;
        refusal(&site.jump(), "10.10.0.11:50000").await
    });
    let error = run.unwrap();
    assert!(matches!(error.fault(), DialFault::Refused));
    assert_eq!(
        error.to_string(),
        "connect to 10.10.0.11:50000 through jump host 10.0.0.5:22: connection refused"
    );
    assert!(error.remedy().unwrap().contains("50000"));
}

#[test]
fn a_refused_jump_host_is_named() {
    let run = simulate(3, HOUR, |entropy| async move {
        let site = Site::start(&entropy).await;
        site.task.abort();
        site.net.attach(ip("10.0.0.5"));
        tokio::task::yield_now().await;
        refusal(&site.jump(), "10.10.0.11:50000").await
    });
    let error = run.unwrap();
    assert!(matches!(error.fault(), DialFault::Refused));
    assert_eq!(error.to_string(), "connect to jump host 10.0.0.5:22: connection refused");
}

#[test]
fn a_silent_jump_host_ends_at_its_own_deadline() {
    let run = simulate(3, HOUR, |entropy| async move {
        let site = Site::start(&entropy).await;
        site.net.black_hole(ip("10.0.0.5"));
        let start = tokio::time::Instant::now();
        (refusal(&site.jump(), "10.10.0.11:50000").await, start.elapsed())
    });
    let (error, took) = run.unwrap();
    assert_eq!(took, SECOND * 10);
    assert_eq!(
        error.to_string(),
        "SSH handshake with jump host 10.0.0.5:22: no answer within 10s"
    );
    assert!(error.remedy().is_some());
}

#[test]
fn an_unknown_host_key_says_which_line_to_add() {
    let run = simulate(3, HOUR, |entropy| async move {
        let site = Site::start(&entropy).await;
        let unknown = site.jump_with("# nothing yet\n", vec![login(&site.user_key)]);
        let error = refusal(&unknown, "10.10.0.11:50000").await;
        let DialFault::HostKeyUnknown { line, fingerprint } = error.fault() else {
            panic!("{error:?}")
        };
        assert!(fingerprint.starts_with("SHA256:"), "{fingerprint}");
        assert!(error.remedy().unwrap().ends_with(line.as_str()));
        assert_eq!(*error.operation(), Operation::SshHandshake);
        // With the line it offers, the host is known.
        site.jump_with(line, vec![login(&site.user_key)]).check().await
    });
    run.unwrap().unwrap();
}

#[test]
fn a_changed_host_key_names_the_recorded_line() {
    let run = simulate(3, HOUR, |entropy| async move {
        let site = Site::start(&entropy).await;
        let other = openssh_line(ed25519_key(&entropy.fork("other")).public_key());
        let changed = site.jump_with(&format!("# first\n10.0.0.5 {other}\n"), vec![login(&site.user_key)]);
        refusal(&changed, "10.10.0.11:50000").await
    });
    let error = run.unwrap();
    assert!(
        matches!(error.fault(), DialFault::HostKeyChanged { recorded_at_line: 2, .. }),
        "{error:?}"
    );
    assert!(error.remedy().unwrap().contains("line 2"));
    assert!(!error.is_transient());
}

#[test]
fn a_refused_key_names_what_was_tried() {
    let run = simulate(3, HOUR, |entropy| async move {
        let site = Site::start(&entropy).await;
        let stranger = ed25519_key(&entropy.fork("stranger"));
        let jump = site.jump_with(&site.known_line(), vec![login(&stranger)]);
        (
            refusal(&jump, "10.10.0.11:50000").await,
            stranger.fingerprint(russh::keys::HashAlg::Sha256).to_string(),
        )
    });
    let (error, offered) = run.unwrap();
    let DialFault::LoginRefused { tried } = error.fault() else {
        panic!("{error:?}")
    };
    assert_eq!(*tried, [offered]);
    assert!(
        error
            .to_string()
            .starts_with("log in to jump host 10.0.0.5:22 as ops: none of our keys is accepted (SHA256:"),
        "{error}"
    );
    assert!(error.remedy().unwrap().contains("authorized_keys"));
}

#[test]
fn the_second_key_is_tried_after_the_first() {
    let run = simulate(3, HOUR, |entropy| async move {
        let site = Site::start(&entropy).await;
        let stranger = ed25519_key(&entropy.fork("stranger"));
        site.jump_with(&site.known_line(), vec![login(&stranger), login(&site.user_key)])
            .check()
            .await
    });
    run.unwrap().unwrap();
}

#[test]
fn prohibited_forwarding_is_its_own_error() {
    let run = simulate(3, HOUR, |entropy| async move {
        let mut site = Site::start(&entropy).await;
        site.task.abort();
        tokio::task::yield_now().await;
        site.sshd.forwarding = false;
        site.task = run(&site.net, &site.sshd).await;
        refusal(&site.jump(), "10.10.0.11:50000").await
    });
    let error = run.unwrap();
    assert!(matches!(error.fault(), DialFault::ForwardingProhibited), "{error:?}");
    assert!(error.remedy().unwrap().contains("AllowTcpForwarding"));
}

#[test]
fn a_reset_ends_every_stream_and_the_next_dial_connects_again() {
    let run = simulate(3, HOUR, |entropy| async move {
        let site = Site::start(&entropy).await;
        start(&site.net, "10.10.0.11:80", ServeOptions::plain()).await;
        let jump = site.jump();
        let to: Target = "10.10.0.11:80".parse().unwrap();
        let (mut one, mut two) = (jump.dial(&to).await.unwrap(), jump.dial(&to).await.unwrap());
        site.net.reset(ip("10.0.0.5"));
        let mut byte = [0];
        for stream in [&mut one, &mut two] {
            let ended = tokio::time::timeout(SECOND * 5, stream.read(&mut byte))
                .await
                .expect("the stream ends with its connection");
            assert!(matches!(ended, Ok(0) | Err(_)));
        }
        let mut again = dial_within(&jump, &to, SECOND * 5).await.unwrap();
        again.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        again.read_to_string(&mut answer).await.unwrap();
        answer
    });
    assert!(run.unwrap().ends_with("from 10.0.0.5 with 0 certificates"));
}

#[test]
fn a_jump_host_that_falls_silent_is_given_up_and_dialled_anew() {
    let run = simulate(3, HOUR, |entropy| async move {
        let site = Site::start(&entropy).await;
        start(&site.net, "10.10.0.11:80", ServeOptions::plain()).await;
        let jump = site.jump();
        let to: Target = "10.10.0.11:80".parse().unwrap();
        let mut held = jump.dial(&to).await.unwrap();
        // The connection dies without a word, as after a power cut.
        site.net.black_hole(ip("10.0.0.5"));
        let ended = tokio::time::timeout(SECOND * 30, held.read_u8()).await;
        assert!(ended.expect("the silence is noticed").is_err());
        // The host is back, and with it a packet of the old connection would be no help.
        site.net.crash(ip("10.0.0.5"));
        site.net.end_black_hole(ip("10.0.0.5"));
        run(&site.net, &site.sshd).await;
        dial_within(&jump, &to, SECOND * 5).await.map(drop)
    });
    run.unwrap().unwrap();
}

#[test]
fn a_jump_host_behind_a_jump_host_is_reached() {
    let run = simulate(3, HOUR, |entropy| async move {
        let site = Site::start(&entropy).await;
        let inner = sshd(
            &entropy.fork("inner"),
            &site.user_key,
            Arc::new(site.net.from(ip("10.10.0.11"))),
        );
        let known = known_hosts_line(&Target::new("10.10.0.11", 22), &inner.host_key);
        let listener = site.net.bind("10.10.0.11:22".parse().unwrap()).await.unwrap();
        tokio::spawn(inner.serve(listener));
        start(&site.net, "10.20.0.1:80", ServeOptions::plain()).await;
        let outer = Arc::new(site.jump());
        let jump: Arc<dyn Dialer> = Arc::new(jump(outer, "ops@10.10.0.11", &known, vec![login(&site.user_key)]));
        text(
            &get_url(&client(&jump, &mainstay_net::Trust::Plain), "http://10.20.0.1/")
                .await
                .unwrap(),
        )
    });
    assert_eq!(run.unwrap(), "HTTP/1.1 from 10.10.0.11 with 0 certificates");
}

#[test]
fn an_encrypted_key_needs_its_passphrase_and_an_rsa_key_works() {
    let key = include_str!("../data/ssh-encrypted.key");
    let encrypted = |passphrase: Option<&str>| Login::Key {
        text: key.into(),
        passphrase: passphrase.map(Secret::from),
    };
    let rsa = Login::Key {
        text: include_str!("../data/ssh-rsa.key").into(),
        passphrase: None,
    };
    let garbage = Login::Key {
        text: "-----BEGIN OPENSSH PRIVATE KEY-----".into(),
        passphrase: None,
    };
    let run = simulate(3, HOUR, |entropy| async move {
        let mut site = Site::start(&entropy).await;
        site.task.abort();
        tokio::task::yield_now().await;
        let keys = [
            include_str!("../data/ssh-encrypted.pub"),
            "# a comment\n",
            include_str!("../data/ssh-rsa.pub"),
        ]
        .concat();
        site.sshd.users = vec![User::new("ops", &keys)];
        site.task = run(&site.net, &site.sshd).await;
        let check = async |login: Login| site.jump_with(&site.known_line(), vec![login]).check().await;
        assert!(check(encrypted(Some("correct horse"))).await.is_ok());
        assert!(check(rsa).await.is_ok());
        for unusable in [encrypted(None), encrypted(Some("wrong")), garbage] {
            let error = check(unusable).await.unwrap_err();
            assert!(matches!(error.fault(), DialFault::KeyUnusable(_)), "{error:?}");
            assert!(!format!("{error:?}").contains("b3BlbnNz"), "the key's text is not shown");
        }
    });
    run.unwrap();
}

#[tokio::test]
async fn a_missing_agent_is_its_own_error() {
    let entropy = Entropy::from_seed(4);
    let server = sshd(&entropy, &ed25519_key(&entropy), Arc::new(Tcp));
    let listener = Loopback.bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let port = listener.address().port();
    let known = known_hosts_line(&listener.address().into(), &server.host_key);
    let task = tokio::spawn(server.serve(listener));
    let agent = Login::Agent {
        socket: "/nonexistent/agent.sock".into(),
    };
    let error = jump(Arc::new(Tcp), &format!("ops@127.0.0.1:{port}"), &known, vec![agent])
        .check()
        .await
        .unwrap_err();
    assert!(matches!(error.fault(), DialFault::AgentUnusable(_)), "{error:?}");
    assert!(error.remedy().unwrap().contains("ssh-add"));
    task.abort();
}

#[test]
fn jump_addresses_are_read_or_refused() {
    let read = |text: &str| text.parse::<JumpAddress>().map(|at| at.to_string());
    assert_eq!(read("ops@pve.lan").unwrap(), "ops@pve.lan:22");
    assert_eq!(read("root@10.0.0.1:2222").unwrap(), "root@10.0.0.1:2222");
    assert_eq!(read("root@fd00::5").unwrap(), "root@[fd00::5]:22");
    assert_eq!(read("root@[fd00::5]:2222").unwrap(), "root@[fd00::5]:2222");
    for wrong in ["pve.lan", "@pve.lan", "ops@", "ops@pve.lan:ssh", "ops @pve.lan", ""] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

/// The real thing, where it is installed.
pub mod openssh {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Stdio};

    use super::*;

    pub struct OpenSsh {
        child: Child,
        dir: PathBuf,
        port: u16,
    }

    /// A real sshd on a free loopback port, or `None` with a sentence.
    pub async fn start() -> Option<OpenSsh> {
        start_with("AllowTcpForwarding yes").await
    }

    pub async fn start_with(rule: &str) -> Option<OpenSsh> {
        let programs = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"];
        let Some(program) = programs.into_iter().find(|path| Path::new(path).exists()) else {
            return skip("OpenSSH's sshd is not installed");
        };
        let port = Loopback.bind("127.0.0.1:0".parse().unwrap()).await.unwrap().address().port();
        let dir = std::env::temp_dir().join(format!("mainstay-net-sshd-{}-{port}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let sshd = OpenSsh {
            child: spawn(program, &dir, port, rule),
            dir,
            port,
        };
        for _ in 0..200 {
            if Tcp.dial(&Target::new("127.0.0.1", port)).await.is_ok() {
                return Some(sshd);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let log = fs::read_to_string(sshd.dir.join("log")).unwrap_or_default();
        // A service manager makes that directory; without one a root's sshd does not start.
        if log.contains("Missing privilege separation directory") {
            return skip(log.trim());
        }
        panic!("sshd did not start: {log}");
    }

    #[expect(clippy::print_stdout, reason = "a skipped test says so")]
    fn skip(why: &str) -> Option<OpenSsh> {
        println!("skipped: {why}");
        None
    }

    #[expect(clippy::disallowed_methods, reason = "this test runs the real sshd")]
    fn spawn(program: &str, dir: &Path, port: u16, rule: &str) -> Child {
        let entropy = Entropy::from_seed(9);
        write_private(&dir.join("host"), &ed25519_key(&entropy.fork("host")));
        let user = ed25519_key(&entropy.fork("user"));
        fs::write(dir.join("authorized_keys"), openssh_line(user.public_key())).unwrap();
        let dir = dir.display();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {dir}/host\nAuthorizedKeysFile {dir}/authorized_keys\n\
             PidFile {dir}/pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n{rule}\n"
        );
        fs::write(format!("{dir}/config"), config).unwrap();
        let mut command = std::process::Command::new(program);
        command.args(["-D", "-f", &format!("{dir}/config"), "-E", &format!("{dir}/log")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    fn write_private(path: &Path, key: &PrivateKey) {
        use std::os::unix::fs::PermissionsExt;
        fs::write(path, key_file(key).expose()).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    #[expect(clippy::disallowed_methods, reason = "sshd lets in only the user it runs as")]
    fn user() -> String {
        std::env::var("USER")
            .or_else(|_| std::env::var("LOGNAME"))
            .unwrap_or_else(|_| "root".to_owned())
    }

    impl OpenSsh {
        pub fn jump(&self) -> JumpDialer {
            self.jump_with(vec![login(&ed25519_key(&Entropy::from_seed(9).fork("user")))])
        }

        pub fn jump_with(&self, logins: Vec<Login>) -> JumpDialer {
            let at = Target::new("127.0.0.1", self.port);
            let known = known_hosts_line(&at, &ed25519_key(&Entropy::from_seed(9).fork("host")));
            jump(Arc::new(Tcp), &format!("{}@127.0.0.1:{}", user(), self.port), &known, logins)
        }
    }

    impl Drop for OpenSsh {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

#[tokio::test]
async fn openssh_refuses_a_closed_port_and_an_unknown_key() {
    let Some(sshd) = openssh::start().await else { return };
    let closed = Loopback.bind("127.0.0.1:0".parse().unwrap()).await.unwrap().address();
    let error = refusal(&sshd.jump(), &closed.to_string()).await;
    assert!(matches!(error.fault(), DialFault::Refused), "{error:?}");
    let stranger = ed25519_key(&Entropy::from_seed(99));
    let error = refusal(&sshd.jump_with(vec![login(&stranger)]), &closed.to_string()).await;
    assert!(
        matches!(error.fault(), DialFault::LoginRefused { tried } if tried.len() == 1),
        "{error:?}"
    );
}

#[tokio::test]
async fn openssh_that_forbids_forwarding_says_so() {
    let Some(sshd) = openssh::start_with("AllowTcpForwarding no").await else {
        return;
    };
    let error = refusal(&sshd.jump(), "127.0.0.1:1").await;
    assert!(matches!(error.fault(), DialFault::ForwardingProhibited), "{error:?}");
}

/// An agent holds the key: the stranger's key first, so that both a refused and an accepted signature are seen.
#[tokio::test]
async fn an_agent_signs_for_the_simulated_and_the_real_sshd() {
    let entropy = Entropy::from_seed(9);
    let keys = [ed25519_key(&entropy.fork("stranger")), ed25519_key(&entropy.fork("user"))];
    let socket = std::env::temp_dir().join(format!("mainstay-net-agent-{}", std::process::id()));
    let _ = std::fs::remove_file(&socket);
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let arrivals = futures::stream::unfold(listener, |listener| async move {
        let arrival = listener.accept().await.map(|(stream, _)| stream);
        Some((arrival, listener))
    });
    let agent = tokio::spawn(russh::keys::agent::server::serve(Box::pin(arrivals), ()));
    let mut client = russh::keys::agent::client::AgentClient::connect_uds(&socket).await.unwrap();
    for key in &keys {
        client.add_identity(key, &[]).await.unwrap();
    }
    let logins = || vec![Login::Agent { socket: socket.clone() }];

    let server = sshd(&entropy, &keys[1], Arc::new(Tcp));
    let listener = Loopback.bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let port = listener.address().port();
    let known = known_hosts_line(&listener.address().into(), &server.host_key);
    let task = tokio::spawn(server.serve(listener));
    jump(Arc::new(Tcp), &format!("ops@127.0.0.1:{port}"), &known, logins())
        .check()
        .await
        .unwrap();
    task.abort();

    if let Some(sshd) = openssh::start().await {
        sshd.jump_with(logins()).check().await.unwrap();
    }
    agent.abort();
    std::fs::remove_file(&socket).unwrap();
}
