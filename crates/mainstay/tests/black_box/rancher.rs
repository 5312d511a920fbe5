//! An RKE2 cluster on the simulated datacenter, with the real `ssh` where it is.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::stage::{AGE_KEY, Sim, Stage};

const IMAGE: &str = "cloud-images.ubuntu.com/noble/20260810";
const IMAGE_FILE: &str = "noble-server-cloudimg-amd64.img";

/// Where the simulated datacenter serves copies of the public hosts.
fn mirror(sim: &Sim) -> String {
    format!("{}/mirror", sim.factory)
}

/// A page of the mirror.
#[expect(clippy::disallowed_methods, reason = "a test asks as any browser would")]
fn page(sim: &Sim, path: &str) -> String {
    let at = sim.factory.trim_start_matches("http://");
    let mut stream = TcpStream::connect(at).expect("the mirror listens");
    write!(
        stream,
        "GET /mirror/{path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n"
    )
    .expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    answer
}

/// One server and one agent in a network that only the jump host reaches.
fn cluster(sim: &Sim) -> String {
    let listing = page(sim, "cloud-images.ubuntu.com/noble/");
    let dates = listing.split("href=\"").filter_map(|rest| rest.split("/\"").next());
    let date = dates
        .filter(|name| name.len() == 8 && name.bytes().all(|byte| byte.is_ascii_digit()))
        .max();
    let folder = format!("{}/{}", IMAGE.rsplit_once('/').expect("a folder").0, date.expect("a date"));
    let sums = page(sim, &format!("{folder}/SHA256SUMS"));
    let line = sums.lines().find(|line| line.ends_with(IMAGE_FILE)).expect("the image");
    let sum = line.split_whitespace().next().expect("a digest");
    let mirror = mirror(sim);
    format!(
        "name: box\ndatacenter:\n{}  endpoint: {}\n  fingerprint: \"{}\"\n  storage: {{ images: local, disks: local-lvm }}\n\
         network: {{ cidr: 10.79.0.0/16, gateway: 10.79.0.1, dns: [1.1.1.1] }}\n\
         rke2:\n  version: v1.35.7+rke2r1\n  image: {{ url: {mirror}/{folder}/{IMAGE_FILE}, checksum: sha256:{sum} }}\n  \
         mirror: {mirror}/release-assets.githubusercontent.com/rke2\n\
         pools:\n  control-plane: {{ count: 1, addresses: 10.79.0.11+ }}\n  worker: {{ count: 1, addresses: 10.79.0.21+ }}\n",
        sim.jump_line(),
        sim.endpoint,
        sim.fingerprint
    )
}

#[expect(clippy::disallowed_methods, reason = "the test looks for a program as a shell would")]
fn found(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

#[expect(clippy::disallowed_methods, reason = "this test is about the real program")]
fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the program runs")
}

/// The jump host is the user's own affair, so its entry is not one of ours.
fn with_jump_host(stage: &Stage, sim: &Sim) -> PathBuf {
    let text = |key: &str| sim.jump[key].as_str().expect("a text").to_owned();
    let (host, port) = text("address")
        .rsplit_once(':')
        .map(|(host, port)| (host.to_owned(), port.to_owned()))
        .expect("a port");
    let (key, known, config) = (stage.path("jump-key"), stage.path("jump-known"), stage.path("ssh-config"));
    std::fs::write(&key, text("key")).expect("a file");
    std::fs::write(&known, format!("[{host}]:{port} {}\n", text("host_key"))).expect("a file");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("private");
    let entry = format!(
        "Include \"{}\"\nHost {host}\n  IdentityFile \"{}\"\n  IdentitiesOnly yes\n  UserKnownHostsFile \"{}\"\n",
        stage.path("ssh/config").display(),
        key.display(),
        known.display()
    );
    std::fs::write(&config, entry).expect("a file");
    config
}

#[test]
fn ssh_logs_in_with_what_sshconfig_writes_and_the_cluster_comes_and_goes() {
    let sim = Sim::start();
    let stage = sim
        .stage_behind_jump()
        .with("SOPS_AGE_KEY", AGE_KEY)
        .file("cluster.yaml", cluster(&sim));
    let early = stage.run(&["sshconfig"]);
    assert_eq!(early.code, Some(1), "{}", early.stderr);
    let up = stage.run(&["up", "--yes"]);
    assert_eq!(up.code, Some(0), "{}\n{}", up.stdout, up.stderr);
    let printed = stage.run(&["sshconfig"]);
    assert_eq!(printed.code, Some(0), "{}", printed.stderr);
    assert!(
        printed
            .stdout
            .contains("Host box-control-plane-1\n  HostName 10.79.0.11\n  User mainstay\n"),
        "{}",
        printed.stdout
    );
    assert!(!printed.stdout.contains("PRIVATE") && !stage.path("home/.ssh/mainstay").exists());
    let written = stage.run(&["sshconfig", "--out", "ssh"]);
    assert_eq!(written.code, Some(0), "{}", written.stderr);
    assert_eq!(stage.read("ssh/known_hosts").lines().count(), 2);
    // Merging twice includes it once.
    for _ in 0..2 {
        assert_eq!(stage.run(&["sshconfig", "--merge"]).code, Some(0));
    }
    assert_eq!(stage.read("home/.ssh/config").matches("Include").count(), 1);
    match found("ssh") {
        Some(ssh) => log_in(&ssh, &stage, &sim),
        None => eprintln!("skipped: there is no ssh here"),
    }
    assert_eq!(stage.run(&["down", "--yes", "--name", "box"]).code, Some(0));
}

fn log_in(ssh: &Path, stage: &Stage, sim: &Sim) {
    let config = with_jump_host(stage, sim);
    let config = config.to_str().expect("text");
    for host in ["box-control-plane-1", "box-worker-1"] {
        let said = run(ssh, &["-F", config, host, "hostname; sudo -n true && echo root"]);
        let stderr = String::from_utf8_lossy(&said.stderr);
        assert_eq!(String::from_utf8_lossy(&said.stdout), format!("{host}\nroot\n"), "{stderr}");
    }
    // A machine that shows another host key is not logged in to.
    let other = stage
        .read("ssh/known_hosts")
        .replace("box-control-plane-1.", "box-other.")
        .replace("box-worker-1.", "box-control-plane-1.");
    std::fs::write(stage.path("ssh/known_hosts"), other).expect("a file");
    let said = run(ssh, &["-F", config, "box-control-plane-1", "hostname"]);
    assert!(!said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
}
