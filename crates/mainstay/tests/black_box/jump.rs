//! Machines that only a jump host can reach, and every way in which it says no.

use std::sync::Arc;
use std::time::Duration;

use mainstay_net::sshd::{Sshd, User, ed25519_key, key_file, known_hosts_line};
use mainstay_net::{Binder, Dial, Dialer, Entropy, JumpAddress, JumpDialer, KnownHosts, Login, Loopback, Secret, Target, Tcp};

use crate::stage::{Sim, Stage, closed_port};

/// A cluster in a network that cannot be dialled from here.
fn inside(sim: &Sim) -> String {
    let file = sim.cluster(74).replace("127.74.0", "10.74.0");
    file.replacen("datacenter:\n", &format!("datacenter:\n{}", sim.jump_line()), 1)
}

#[test]
fn machines_behind_a_jump_host_are_reached_through_it() {
    let sim = Sim::start();
    let stage = sim.stage_behind_jump().file("cluster.yaml", inside(&sim)).with_secrets();
    assert_eq!(stage.run(&["up", "--yes"]).code, Some(0));
    stage.run(&["status"]).golden("jump-status");
    stage.run(&["doctor"]).golden("jump-doctor");
    assert_eq!(stage.run(&["down", "--yes", "--name", "box"]).code, Some(0));
}

#[test]
fn a_jump_host_that_does_not_let_us_in_is_told_before_anything_is_done() {
    let sim = Sim::start();
    let stage = sim.stage_behind_jump().file("cluster.yaml", inside(&sim)).with_secrets();
    let known = stage.read("home/.ssh/known_hosts");
    let key = stage.read("home/.ssh/id_ed25519");
    let stage = stage.file("home/.ssh/known_hosts", "");
    for command in [vec!["up", "--yes"], vec!["plan"], vec!["status"], vec!["doctor"]] {
        stage.run(&command).golden(&format!("jump-unknown-{}", command[0]));
    }
    stage.run(&["up", "--yes", "--json"]).golden("jump-unknown-up-json");
    let (name, _) = known.split_once(' ').expect("a name and a key");
    let other = ed25519_key(&Entropy::from_seed(1)).public_key().to_openssh().expect("a key");
    let stage = stage.file("home/.ssh/known_hosts", format!("# mine\n{name} {other}\n"));
    stage.run(&["up", "--yes"]).golden("jump-changed");
    let stranger = key_file(&ed25519_key(&Entropy::from_seed(2))).expose().clone();
    let stage = stage
        .file("home/.ssh/known_hosts", known)
        .file("home/.ssh/id_ed25519", stranger);
    stage.run(&["up", "--yes"]).golden("jump-login");
    std::fs::remove_file(stage.path("home/.ssh/id_ed25519")).expect("was there");
    stage.run(&["plan"]).golden("jump-no-key");
    let stage = stage.file("home/.ssh/id_ed25519", key);
    let said = stage.run(&["plan", "--check"]);
    assert_eq!(said.code, Some(3), "something was done: {}", said.stderr);
    assert!(said.stdout.contains("2 machines to create"), "{}", said.stdout);
}

#[test]
fn a_closed_jump_host_is_named() {
    let sim = Sim::start();
    let port = closed_port();
    let address = sim.jump["address"].as_str().expect("a text");
    let file = inside(&sim).replace(address, &format!("127.0.0.1:{port}"));
    let stage = sim
        .stage_behind_jump()
        .volatile(format!("127.0.0.1:{port}"), "127.0.0.1:<CLOSED>")
        .volatile(format!("port {port}"), "port <CLOSED>")
        .file("cluster.yaml", file);
    stage.run(&["up", "--yes"]).golden("jump-refused");
}

/// Where `pve.invalid`, a name that no resolver here knows, is the simulated datacenter. The machines are behind a second jump host.
struct Behind {
    pve: Target,
    machines: JumpDialer,
}

impl Dialer for Behind {
    fn dial<'a>(&'a self, to: &'a Target) -> Dial<'a> {
        if to.host == "pve.invalid" {
            Tcp.dial(&self.pve)
        } else {
            self.machines.dial(to)
        }
    }
}

impl Behind {
    fn of(sim: &Sim) -> Self {
        let text = |key: &str| sim.jump[key].as_str().expect("a text").to_owned();
        let address: JumpAddress = format!("{}@{}", text("user"), text("address")).parse().expect("an address");
        let known = format!("[127.0.0.1]:{} {}", address.target.port, text("host_key"));
        let login = Login::Key {
            text: Secret::new(text("key")),
            passphrase: None,
        };
        let patience = Duration::from_secs(20);
        Self {
            pve: sim.endpoint.trim_start_matches("https://").parse().expect("an address"),
            machines: JumpDialer::new(Arc::new(Tcp), address, KnownHosts::parse(&known), vec![login], patience),
        }
    }
}

/// A jump host of our own, for the life of the test.
fn serve(sshd: Sshd) -> std::net::SocketAddr {
    let (sender, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let listener = Loopback.bind("127.0.0.1:0".parse().expect("reads")).await.expect("a port");
            sender.send(listener.address()).expect("is awaited");
            sshd.serve(listener).await
        })
    });
    address.recv().expect("it listens")
}

fn behind(sim: &Sim, forwarding: bool) -> Stage {
    let (host_key, user_key) = (ed25519_key(&Entropy::from_seed(3)), ed25519_key(&Entropy::from_seed(4)));
    let address = serve(Sshd {
        host_key: host_key.clone(),
        users: vec![User::with_key("ada", &user_key)],
        forwarding,
        dialer: Arc::new(Behind::of(sim)),
    });
    let at = Target::new("127.0.0.1", address.port());
    let inside = sim.cluster(77).replace("127.77.0", "10.77.0");
    let file = inside.replace(&sim.endpoint, "https://pve.invalid:8006").replacen(
        "datacenter:\n",
        &format!("datacenter:\n  jump: ada@{at}\n"),
        1,
    );
    sim.stage()
        .volatile(at.to_string(), "127.0.0.1:<JUMP>")
        .file("cluster.yaml", file)
        .file("home/.ssh/id_ed25519", key_file(&user_key).expose())
        .file("home/.ssh/known_hosts", known_hosts_line(&at, &host_key) + "\n")
}

#[test]
fn proxmox_itself_may_be_behind_the_jump_host() {
    let sim = Sim::start();
    let stage = behind(&sim, true).with_secrets();
    assert_eq!(stage.run(&["trust"]).stdout, "<FINGERPRINT>\n");
    let said = stage.run(&["up", "--yes"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert_eq!(stage.run(&["down", "--yes", "--name", "box"]).code, Some(0));
}

#[test]
fn a_jump_host_that_does_not_forward_gets_the_line_that_mends_it() {
    let sim = Sim::start();
    let stage = behind(&sim, false);
    stage.run(&["up", "--yes"]).golden("jump-no-forwarding");
}
