//! A place to run the built binary in: a folder of its own, a clean environment, and goldens of what it said.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use expect_test::expect_file;
use mainstay_net::{Entropy, Env, Tcp, Trust, Wall};
use pve_api::{Client, ClientOptions, Endpoint, cluster, qemu};
use regex::Regex;
use serde_json::Value;
use tempfile::TempDir;

/// Opens the secrets of these tests, and nothing else in the world.
pub const AGE_KEY: &str = "AGE-SECRET-KEY-1V6ZKFZS2TL2GRNSM2PFHWPZWSLKAR3PSQGAKMR99P5GRJ3N2E2WSCSFRT4";

/// A token that no datacenter knows.
pub const TOKEN: &str = "root@pam!mainstay=00000000-0000-4000-8000-0000000000ff";

const PROGRAM: &str = env!("CARGO_BIN_EXE_mainstay");

pub struct Stage {
    folder: TempDir,
    variables: BTreeMap<String, String>,
    /// What differs from run to run, and the word that stands for it in a golden.
    volatile: Vec<(String, &'static str)>,
}

impl Stage {
    /// An empty folder, and a home without a key or a token.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("mainstay-box").tempdir().expect("a folder");
        let home = folder.path().join("home");
        std::fs::create_dir(&home).expect("a home");
        let variables = [
            ("HOME", home.display().to_string()),
            ("USER", "ada".into()),
            ("HOSTNAME", "desk".into()),
        ];
        let volatile = vec![(folder.path().display().to_string(), "<DIR>")];
        Self {
            variables: variables.map(|(name, value)| (name.to_owned(), value)).into(),
            folder,
            volatile,
        }
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.insert(name.to_owned(), value.into());
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.variables.remove(name);
        self
    }

    pub fn volatile(mut self, text: impl Into<String>, word: &'static str) -> Self {
        self.volatile.push((text.into(), word));
        self
    }

    /// With a file of this text, which may lie in a folder.
    pub fn file(self, name: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("has a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
        self
    }

    /// With a token, the age key, and the secrets of a cluster taken over from talosctl.
    pub fn with_secrets(self) -> Self {
        let stage = self
            .with("SOPS_AGE_KEY", AGE_KEY)
            .file("from-talosctl.yaml", talosctl_secrets());
        let said = stage.run(&["secrets", "import", "from-talosctl.yaml"]);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        stage
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn change(&self, name: &str, change: impl FnOnce(String) -> String) {
        std::fs::write(self.path(name), change(self.read(name))).expect("a file");
    }

    /// Begins a run, to be watched and interrupted.
    pub fn spawn(&self, arguments: &[&str]) -> Running<'_> {
        self.watch(self.command(arguments), arguments)
    }

    fn watch(&self, mut command: Command, arguments: &[&str]) -> Running<'_> {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let stdout = Heard::from(child.stdout.take().expect("is piped"));
        let stderr = Heard::from(child.stderr.take().expect("is piped"));
        Running {
            stage: self,
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            child,
            stdout,
            stderr,
        }
    }

    /// Begins a run as `nohup` does: SIGHUP is ignored.
    #[expect(clippy::disallowed_methods, reason = "the shell ignores signals, which std does not")]
    pub fn spawn_without_hangup(&self, arguments: &[&str]) -> Running<'_> {
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", PROGRAM])
            .args(arguments)
            .env_clear()
            .envs(&self.variables)
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        self.watch(shell, arguments)
    }

    /// Begins a run on a pseudo-terminal.
    pub fn on_terminal(&self, arguments: &[&str]) -> OnTerminal<'_> {
        let (master, slave) = terminal();
        let mut command = self.command(arguments);
        let child = command
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .expect("the program runs");
        OnTerminal {
            stage: self,
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            child,
            keyboard: master.try_clone().expect("a copy"),
            screen: Heard::from(master),
        }
    }

    /// A run on a terminal that is closed as soon as it shows this text. The exit code.
    pub fn close_terminal_at(&self, arguments: &[&str], text: &str) -> Option<i32> {
        let (mut master, slave) = terminal();
        let mut command = self.command(arguments);
        let child = command.stdin(slave()).stdout(slave()).stderr(slave()).spawn();
        // The command keeps its ends of the terminal open.
        drop(command);
        let mut shown = Vec::new();
        let mut buffer = [0; 4096];
        while !String::from_utf8_lossy(&shown).contains(text) {
            let length = master.read(&mut buffer).expect("shows the question");
            shown.extend(&buffer[..length]);
        }
        drop(master);
        child.expect("the program runs").wait().expect("ends").code()
    }

    /// A run that reads this text from a pipe.
    pub fn run_with_stdin(&self, arguments: &[&str], text: &str) -> Said {
        let mut command = self.command(arguments);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let mut stdin = child.stdin.take().expect("is piped");
        stdin.write_all(text.as_bytes()).expect("is read");
        drop(stdin);
        self.finish(arguments, child.wait_with_output().expect("ends"))
    }

    pub fn run(&self, arguments: &[&str]) -> Said {
        self.finish(arguments, self.command(arguments).output().expect("the program runs"))
    }

    #[expect(clippy::disallowed_methods, reason = "these tests run the built program")]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments)
            .env_clear()
            .envs(&self.variables)
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    /// A run that can write no byte to any file.
    #[expect(clippy::disallowed_methods, reason = "the shell sets limits, which std does not")]
    pub fn run_on_full_disk(&self, arguments: &[&str]) -> Said {
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\"", PROGRAM])
            .args(arguments)
            .env_clear()
            .envs(&self.variables)
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        self.finish(arguments, shell.output().expect("the program runs"))
    }

    fn finish(&self, arguments: &[&str], output: Output) -> Said {
        let steady = |bytes: &[u8]| self.steady(&String::from_utf8_lossy(bytes));
        Said {
            line: self.steady(&format!("mainstay {}", arguments.join(" "))),
            code: output.status.code(),
            stdout: steady(&output.stdout),
            stderr: steady(&output.stderr),
        }
    }

    /// What stays the same from run to run.
    pub fn steady(&self, text: &str) -> String {
        let named = self
            .volatile
            .iter()
            .fold(text.to_owned(), |text, (volatile, word)| text.replace(volatile, word));
        let patterns = [
            (r"(?m)^ *\d+:\d\d ", " 0:00 "),
            (r" in \d+:\d\d\b", " in 0:00"),
            (r"\(\d+(m \d+)?[ms]\)", "(0s)"),
            (r#""(t|took)":[0-9.]+"#, r#""$1":0"#),
            (r"age1[a-z0-9]{58}", "<AGE>"),
            (r"[A-Za-z0-9+/]{80,}={0,2}", "<BASE64>"),
            (r"\b20\d\d-\d\d-\d\d(T[0-9:.]+Z)?", "<DATE>"),
            (r"\b\d+ days", "<N> days"),
            (r"SHA256:[A-Za-z0-9+/]{43}", "SHA256:<KEY>"),
        ];
        patterns.iter().fold(named, |text, (pattern, with)| {
            Regex::new(pattern).expect("a pattern").replace_all(&text, *with).into_owned()
        })
    }
}

/// A run that goes on.
pub struct Running<'a> {
    stage: &'a Stage,
    arguments: Vec<String>,
    child: Child,
    pub stdout: Heard,
    pub stderr: Heard,
}

impl Running<'_> {
    /// Sends `INT` or `TERM`.
    pub fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    pub fn finish(mut self) -> Said {
        let status = self.child.wait().expect("was begun");
        let (stdout, stderr) = (self.stdout.all(), self.stderr.all());
        let output = Output { status, stdout, stderr };
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.stage.finish(&arguments, output)
    }
}

/// Output as it comes, also a part of a line.
pub struct Heard {
    chunks: mpsc::Receiver<Vec<u8>>,
    so_far: Vec<u8>,
}

/// Longer than anything takes that these tests wait for.
const PATIENCE: Duration = Duration::from_secs(60);

impl Heard {
    fn from(mut from: impl Read + Send + 'static) -> Self {
        let (sender, chunks) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // A terminal whose other end was closed answers with an error, a pipe with zero bytes.
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            chunks,
            so_far: Vec::new(),
        }
    }

    /// Waits until every one of these texts was heard.
    pub fn until(&mut self, texts: &[&str]) {
        let heard = |so_far: &[u8], text: &str| String::from_utf8_lossy(so_far).contains(text);
        while !texts.iter().all(|text| heard(&self.so_far, text)) {
            let chunk = self.chunks.recv_timeout(PATIENCE);
            let chunk = chunk.unwrap_or_else(|_| panic!("{texts:?} is not all in\n{}", String::from_utf8_lossy(&self.so_far)));
            self.so_far.extend(chunk);
        }
    }

    fn all(mut self) -> Vec<u8> {
        self.so_far.extend(self.chunks.iter().flatten());
        self.so_far
    }
}

/// A run on a pseudo-terminal, where a person can be asked.
pub struct OnTerminal<'a> {
    stage: &'a Stage,
    arguments: Vec<String>,
    child: Child,
    keyboard: std::fs::File,
    pub screen: Heard,
}

impl OnTerminal<'_> {
    pub fn type_line(&mut self, text: &str) {
        self.keyboard.write_all(format!("{text}\n").as_bytes()).expect("types");
    }

    pub fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    /// Everything that was on the screen counts as stderr.
    pub fn finish(mut self) -> Said {
        let status = self.child.wait().expect("was begun");
        let screen = String::from_utf8_lossy(&self.screen.all()).replace('\r', "");
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let output = Output {
            status,
            stdout: Vec::new(),
            stderr: screen.into_bytes(),
        };
        self.stage.finish(&arguments, output)
    }
}

/// A pseudo-terminal: its keyboard and screen, and what opens its other end.
fn terminal() -> (std::fs::File, impl Fn() -> std::fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&master).expect("is ours");
    unlockpt(&master).expect("is open");
    let name = ptsname(&master, Vec::new()).expect("a name").into_string().expect("text");
    let slave = move || {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).open(&name).expect("the other end")
    };
    (std::fs::File::from(master), slave)
}

#[expect(clippy::disallowed_methods, reason = "the shell sends signals, which std does not")]
fn signal(child: &Child, name: &str) {
    let line = format!("kill -{name} {}", child.id());
    let sent = Command::new("sh").args(["-c", &line]).status().expect("a shell");
    assert!(sent.success(), "{line}");
}

/// What one run said.
pub struct Said {
    line: String,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    /// Compares everything with `golden/NAME.txt`.
    pub fn golden(&self, name: &str) {
        self.golden_with(name, str::to_owned);
    }

    /// Compares with a golden after a change to both outputs.
    pub fn golden_with(&self, name: &str, change: impl Fn(&str) -> String) {
        let code = self.code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        let mut text = format!("$ {}\nexit {code}\n", self.line);
        for (title, said) in [("stdout", change(&self.stdout)), ("stderr", change(&self.stderr))] {
            if !said.is_empty() {
                text.push_str(&format!("--- {title}\n{said}"));
            }
        }
        expect_file![format!("golden/{name}.txt")].assert_eq(&text);
    }

    pub fn objects(&self) -> Vec<Value> {
        let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.stdout.lines().map(read).collect()
    }
}

/// The lines of a run in an order of their own: who is first among machines is up to the moment, and so is what is waited for.
pub fn in_order(text: &str) -> String {
    let waits = [
        " 0:00 wait ",
        " 0:00 still ",
        " 0:00 retry ",
        r#""event":"wait""#,
        r#""event":"retry""#,
    ];
    let lines = text.lines().filter(|line| !waits.iter().any(|wait| line.contains(wait)));
    let (mut moments, rest): (Vec<&str>, Vec<&str>) =
        lines.partition(|line| line.starts_with(" 0:00 ") || line.contains(r#""type":"step""#));
    moments.sort_unstable();
    let ends = [" is settled", " is gone", "Stopped after ", "Aborted; ", r#""type":"report""#];
    let at = rest
        .iter()
        .position(|line| ends.iter().any(|end| line.contains(end)))
        .unwrap_or(rest.len());
    let lines = rest[..at].iter().chain(&moments).chain(&rest[at..]);
    lines.map(|line| format!("{line}\n")).collect()
}

/// How many times faster than life a simulated datacenter is.
const FAST: &str = "400";
const SLOW: &str = "15";

/// A simulated datacenter on loopback, gone when this is dropped.
pub struct Sim {
    child: Child,
    pub endpoint: String,
    pub token: String,
    pub fingerprint: String,
    pub factory: String,
    pub jump: Value,
}

impl Sim {
    pub fn start() -> Self {
        Self::serve(&Stage::new(), FAST, &[])
    }

    /// Slow enough to be watched.
    pub fn slow() -> Self {
        Self::serve(&Stage::new(), SLOW, &[])
    }

    /// A world of its own, as slow.
    pub fn slow_of(world: &str) -> Self {
        let stage = Stage::new().file("world.yaml", world);
        Self::serve(&stage, SLOW, &["--world", "world.yaml"])
    }

    /// A world of its own, as a file.
    pub fn of(world: &str) -> Self {
        let stage = Stage::new().file("world.yaml", world);
        Self::serve(&stage, FAST, &["--world", "world.yaml"])
    }

    fn serve(stage: &Stage, speed: &str, more: &[&str]) -> Self {
        let mut arguments = vec!["sim", "--listen", "127.0.0.1:0", "--speed", speed, "--json"];
        arguments.extend(more);
        let mut command = stage.command(&arguments);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the program runs");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("is piped");
        BufReader::new(stdout).read_line(&mut line).expect("one line");
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        let text = |key: &str| said[key].as_str().expect("a text").to_owned();
        Self {
            child,
            endpoint: text("endpoint"),
            token: text("token"),
            fingerprint: text("fingerprint"),
            factory: text("factory"),
            jump: said["jump"].clone(),
        }
    }

    /// For what happens behind mainstay's back.
    fn pve(&self) -> Client {
        let env = Env {
            dialer: Arc::new(Tcp),
            wall: Wall::real(),
            entropy: Entropy::from_os(),
        };
        let endpoint = Endpoint {
            target: self.endpoint.trim_start_matches("https://").parse().expect("an address"),
            trust: Trust::Pin(self.fingerprint.parse().expect("a fingerprint")),
            host: None,
        };
        let login = self.token.parse().expect("a token");
        Client::new(&env, vec![endpoint], login, ClientOptions::default()).expect("a client")
    }

    /// Asks its API, in a runtime of its own.
    pub fn ask<T>(&self, ask: impl AsyncFnOnce(Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async { ask(self.pve()).await })
    }

    /// Protects a VM, or lifts that, as an administrator would.
    pub fn protect(&self, name: &str, protection: bool) {
        self.ask(async |pve| {
            let all = pve
                .call(cluster::resources(Some(cluster::ResourceKind::Vm)))
                .await
                .expect("a list");
            let guest = all.into_iter().find_map(|resource| match resource {
                cluster::Resource::Guest(guest) if guest.name.as_deref() == Some(name) => Some(guest),
                _ => None,
            });
            let guest = guest.expect("is there");
            let mut change = qemu::Change::default();
            change.set.protection = Some(protection);
            pve.call(qemu::set(&guest.host, guest.vmid, &change)).await.expect("is set");
        });
    }

    /// Pulls the plug of a VM, and waits until the inventory says so.
    pub fn stop(&self, name: &str) {
        self.ask(async |pve| {
            loop {
                let all = pve
                    .call(cluster::resources(Some(cluster::ResourceKind::Vm)))
                    .await
                    .expect("a list");
                let guest = all.into_iter().find_map(|resource| match resource {
                    cluster::Resource::Guest(guest) if guest.name.as_deref() == Some(name) => Some(guest),
                    _ => None,
                });
                let guest = guest.expect("is there");
                if guest.status == cluster::RunState::Stopped {
                    return;
                }
                let upid = pve.call(qemu::stop(&guest.host, guest.vmid, true)).await.expect("a task");
                let _ = pve.wait(&upid).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        });
    }

    /// With the jump host of this datacenter in the file, and the key to it at home.
    pub fn stage_behind_jump(&self) -> Stage {
        let text = |key: &str| self.jump[key].as_str().expect("a text").to_owned();
        let address = text("address");
        let port = address.rsplit(':').next().expect("has a port").to_owned();
        self.stage()
            .volatile(&address, "127.0.0.1:<JUMP>")
            .volatile(format!("[127.0.0.1]:{port}"), "[127.0.0.1]:<JUMP>")
            .volatile(text("host_key"), "<HOST-KEY>")
            .file("home/.ssh/id_ed25519", text("key"))
            .file("home/.ssh/known_hosts", format!("[127.0.0.1]:{port} {}\n", text("host_key")))
    }

    /// `jump: ops@127.0.0.1:2222`, as a line of `datacenter`.
    pub fn jump_line(&self) -> String {
        let text = |key: &str| self.jump[key].as_str().expect("a text").to_owned();
        format!("  jump: {}@{}\n", text("user"), text("address"))
    }

    /// A stage whose token opens this datacenter.
    pub fn stage(&self) -> Stage {
        let port = |url: &str| url.rsplit(':').next().expect("has a port").to_owned();
        Stage::new()
            .with("PROXMOX_VE_API_TOKEN", &self.token)
            .volatile(format!("127.0.0.1:{}", port(&self.endpoint)), "127.0.0.1:<PVE>")
            .volatile(format!("127.0.0.1:{}", port(&self.factory)), "127.0.0.1:<FACTORY>")
            .volatile(&self.fingerprint, "<FINGERPRINT>")
    }

    /// One control plane and one worker on this network of loopback addresses, as a file.
    pub fn cluster(&self, network: u8) -> String {
        format!(
            "name: box\ndatacenter:\n  endpoint: {}\n  fingerprint: \"{}\"\n  storage: {{ images: local, disks: local-lvm }}\n\
             network:\n  cidr: 127.{network}.0.0/16\n  gateway: 127.{network}.0.1\ntalos:\n  factory: {}\n\
             pools:\n  control-plane: {{ count: 1, memory: 4GiB, addresses: 127.{network}.0.11+ }}\n  \
             worker: {{ count: 1, memory: 4GiB, addresses: 127.{network}.0.21+ }}\n",
            self.endpoint, self.fingerprint, self.factory
        )
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A cluster file for a Proxmox VE at this address.
pub fn cluster_at(endpoint: &str) -> String {
    format!(
        "name: box\ndatacenter:\n  endpoint: {endpoint}\n  storage: {{ images: local, disks: local-lvm }}\n\
         network:\n  cidr: 10.7.0.0/24\n  gateway: 10.7.0.1\n\
         pools:\n  control-plane: {{ count: 1, addresses: 10.7.0.11+ }}\n  worker: {{ count: 2, addresses: 10.7.0.21+ }}\n"
    )
}

/// A cluster file whose endpoint is never dialled.
pub fn cluster() -> String {
    cluster_at("https://pve.lan:8006")
}

pub fn talosctl_secrets() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../talos-config/tests/data/secrets.yaml");
    std::fs::read_to_string(path).expect("the secrets that talosctl made")
}

/// A port without a listener.
pub fn closed_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Who may read a file, as `600`.
pub fn mode(path: &Path) -> String {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path).expect("a file").permissions().mode();
    format!("{:o}", mode & 0o777)
}
