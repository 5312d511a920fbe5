//! The guest's scripts, run by a real shell in a directory that stands for the guest's root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use rancher_config::config::config;
use rancher_config::guest::{
    ArtifactKind, ArtifactOrigin, FileState, GuestCommand, GuestFile, PinnedArtifact, Probe, RESTART_PENDING, UnitReport, Work,
    activate, may_found, note_pending_restart, probe, pushed_state, receive_artifact, restart_unit, unit_status,
    wipe_unready_founder,
};
use rancher_config::{Checksum, Cni, Distro, Role, newest, yaml};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::support::{cluster, founder, joiner, secrets};

/// A directory in which the scripts' absolute paths are found.
struct Guest {
    root: TempDir,
}

/// What the scripts name by absolute path.
const PATHS: [&str; 13] = [
    "/etc/modules-load.d",
    "/etc/sysctl.d",
    "/etc/fstab",
    "/dev/disk/",
    "/var/lib/mainstay",
    "/var/lib/rancher",
    "/usr/local/",
    "/etc/rancher",
    "/etc/cloud",
    "/etc/ufw",
    "/run/",
    "/sys/class",
    "/proc/sys/kernel/random",
];

impl Guest {
    fn new() -> Self {
        let guest = Self {
            root: TempDir::new().expect("a directory"),
        };
        guest.write("/proc/sys/kernel/random/boot_id", "boot-1\n");
        guest.write("/sys/class/dmi/id/product_uuid", "UUID-1\n");
        guest.write("/sys/class/dmi/id/product_serial", "serial-1\n");
        fs::create_dir_all(guest.at("/var/lib/mainstay")).expect("a directory");
        fs::create_dir_all(guest.at("/run")).expect("a directory");
        guest.tool("findmnt", "echo /");
        for tool in ["systemctl", "ip", "pgrep", "cloud-init", "ss", "sync"] {
            guest.tool(tool, "exit 0");
        }
        guest
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("written");
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.at(path)).ok()
    }

    /// A program that comes before the machine's own.
    fn tool(&self, name: &str, script: &str) {
        let path = format!("/bin/{name}");
        self.write(&path, &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(self.at(&path), fs::Permissions::from_mode(0o755)).expect("executable");
    }

    fn within(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for path in PATHS {
            text = text.replace(path, &format!("{}{path}", self.root.path().display()));
        }
        text
    }

    #[expect(clippy::disallowed_methods, reason = "the scripts are for a real shell")]
    fn shell(&self, script: &str, arguments: &[String]) -> Output {
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", self.at("/bin").display());
        std::process::Command::new("/bin/sh")
            .arg("-c")
            .arg(self.within(script))
            .arg("sh")
            .args(arguments.iter().map(|argument| self.within(argument)))
            .env("PATH", path)
            .env("LC_ALL", "C")
            .output()
            .expect("a shell")
    }

    fn run(&self, command: &GuestCommand) -> Output {
        self.shell(&command.script, &command.arguments)
    }

    /// The same with an input.
    fn run_with(&self, command: &GuestCommand, input: &str) -> Output {
        self.write("/input", input);
        let script = format!("(\n{}\n) < {}", command.script, self.at("/input").display());
        self.shell(&script, &command.arguments)
    }

    fn may_start(&self) -> bool {
        let arguments = ["/var/lib/rancher/k3s", "/etc/rancher/k3s/config.yaml"].map(str::to_owned);
        let output = self.shell(include_str!("../../guest/may-start.sh"), &arguments);
        output.status.success()
    }

    fn fetch(&self) -> i64 {
        self.shell(&include_str!("../../guest/fetch.sh").replace("sleep 6", "sleep 0"), &[]);
        let text = self.read("/var/lib/mainstay/fetch.json").expect("a result");
        let result: Value = serde_json::from_str(&text).expect("JSON");
        let input = fs::read(self.at("/var/lib/mainstay/fetch.input")).expect("an input");
        assert_eq!(result["input"], hex::encode(Sha256::digest(input)));
        assert_eq!(result["boot"], "boot-1");
        result["rc"].as_i64().expect("a number")
    }
}

fn config_text(machine: &rancher_config::MachineInput) -> String {
    let file = config(&cluster(Distro::K3s, Cni::Flannel), machine, &secrets(Distro::K3s), None).expect("a file");
    yaml::document(&Value::Object(file))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), output.stderr.as_slice()].concat()).into_owned()
}

#[test]
fn a_first_server_starts_only_with_the_recorded_intent() {
    let guest = Guest::new();
    guest.write("/etc/rancher/k3s/config.yaml", &config_text(&founder()));
    assert!(!guest.may_start());
    let refused = guest.read("/var/lib/mainstay/refused").expect("a reason");
    assert!(refused.contains("no intent to found a cluster"), "{refused}");
    guest.write("/var/lib/mainstay/found", "");
    assert!(!guest.may_start(), "an empty file is no intent");
    guest.write("/var/lib/mainstay/found", "intent-1\n");
    assert!(guest.may_start());
    assert_eq!(guest.read("/var/lib/mainstay/refused"), None);
}

#[test]
fn a_founder_whose_data_was_deleted_by_hand_stays_down() {
    let guest = Guest::new();
    guest.write("/etc/rancher/k3s/config.yaml", &config_text(&founder()));
    guest.write("/var/lib/rancher/k3s/server/db/etcd/member", "");
    assert!(guest.may_start(), "it has data");
    fs::remove_dir_all(guest.at("/var/lib/rancher/k3s/server/db")).expect("deleted");
    assert!(!guest.may_start());
}

#[test]
fn a_joining_server_starts_without_an_intent() {
    let guest = Guest::new();
    guest.write("/etc/rancher/k3s/config.yaml", &config_text(&joiner(Distro::K3s)));
    assert!(guest.may_start());
    let without_token: String = config_text(&joiner(Distro::K3s))
        .lines()
        .filter(|line| !line.starts_with("token:"))
        .map(|line| format!("{line}\n"))
        .collect();
    guest.write("/etc/rancher/k3s/config.yaml", &without_token);
    assert!(!guest.may_start(), "k3s would found a cluster of its own");
}

#[test]
fn a_data_directory_that_cannot_be_read_is_not_absent() {
    let guest = Guest::new();
    guest.write("/etc/rancher/k3s/config.yaml", &config_text(&joiner(Distro::K3s)));
    guest.tool("stat", "echo 'stat: cannot statx: Input/output error' >&2; exit 1");
    assert!(!guest.may_start());
    let refused = guest.read("/var/lib/mainstay/refused").expect("a reason");
    assert!(refused.contains("cannot be read"), "{refused}");
}

#[test]
fn the_intent_is_recorded_once() {
    let guest = Guest::new();
    let record = |intent: &str| guest.run(&may_found(Distro::K3s, intent));
    assert!(record("intent-1").status.success(), "{}", said(&record("intent-1")));
    assert_eq!(guest.read("/var/lib/mainstay/found").as_deref(), Some("intent-1\n"));
    assert!(record("intent-1").status.success(), "the same again");
    let other = record("intent-2");
    assert_eq!(other.status.code(), Some(65), "{}", said(&other));
    assert_eq!(guest.read("/var/lib/mainstay/found").as_deref(), Some("intent-1\n"));
}

#[test]
fn no_intent_is_recorded_on_a_server_with_data() {
    let guest = Guest::new();
    guest.write("/var/lib/rancher/k3s/server/db/etcd/member", "");
    let output = guest.run(&may_found(Distro::K3s, "intent-1"));
    assert_eq!(output.status.code(), Some(65), "{}", said(&output));
    assert_eq!(guest.read("/var/lib/mainstay/found"), None);
}

/// Input for a fetch of `content` from a file that stands for the download.
fn offer(guest: &Guest, content: &str, sha256: &str, url: Option<&Path>) {
    let url = match url {
        Some(path) => format!("file://{}", path.display()),
        None => "-".to_owned(),
    };
    guest.write("/download/k3s", content);
    let images = guest.at("/var/lib/rancher/k3s/agent/images");
    let input = format!(
        "release v1.36.3+k3s1\nimport-to {}\nprogram {sha256} k3s {url}\n",
        images.display()
    );
    guest.write("/var/lib/mainstay/fetch.input", &input);
}

fn digest(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

#[test]
fn a_download_is_verified_unpacked_and_not_active_before_it_is_activated() {
    let guest = Guest::new();
    let content = "#!/bin/sh\necho k3s version v1.36.3+k3s1\n";
    offer(&guest, content, &digest(content), Some(&guest.at("/download/k3s")));
    assert_eq!(guest.fetch(), 0);
    assert_eq!(guest.read("/usr/local/bin/k3s"), None, "only fetched");
    let output = guest.run(&activate(newest(Distro::K3s)));
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(guest.read("/usr/local/bin/k3s").as_deref(), Some(content));
    assert_eq!(guest.fetch(), 0, "again");
}

#[test]
fn a_download_with_another_checksum_is_refused_and_leaves_nothing() {
    let guest = Guest::new();
    offer(&guest, "tampered", &digest("genuine"), Some(&guest.at("/download/k3s")));
    assert_eq!(guest.fetch(), 65);
    assert!(!guest.at("/usr/local/lib/mainstay/releases/v1.36.3+k3s1").exists());
    let output = guest.run(&activate(newest(Distro::K3s)));
    assert_eq!(output.status.code(), Some(66), "{}", said(&output));
}

#[test]
fn a_source_that_is_not_there_is_given_up_after_a_bounded_number_of_attempts() {
    let guest = Guest::new();
    offer(&guest, "x", &digest("x"), Some(Path::new("/nonexistent/k3s")));
    assert_eq!(guest.fetch(), 69);
}

#[test]
fn a_pushed_artifact_is_verified_too() {
    let guest = Guest::new();
    offer(&guest, "", &digest("pushed"), None);
    assert_eq!(guest.fetch(), 66, "not pushed yet");
    guest.write("/var/lib/mainstay/artifacts/k3s", "pus");
    assert_eq!(guest.fetch(), 66, "half of it");
    guest.write("/var/lib/mainstay/artifacts/k3s", "pushed");
    assert_eq!(guest.fetch(), 0);
}

#[test]
fn image_archives_are_placed_for_import() {
    let guest = Guest::new();
    offer(&guest, "program", &digest("program"), Some(&guest.at("/download/k3s")));
    guest.write("/download/images.tar.zst", "images");
    let line = format!(
        "images {} images.tar.zst file://{}\n",
        digest("images"),
        guest.at("/download/images.tar.zst").display()
    );
    let input = guest.read("/var/lib/mainstay/fetch.input").expect("an input");
    guest.write("/var/lib/mainstay/fetch.input", &format!("{input}{line}"));
    assert_eq!(guest.fetch(), 0);
    assert_eq!(
        guest.read("/var/lib/rancher/k3s/agent/images/images.tar.zst").as_deref(),
        Some("images")
    );
}

#[test]
fn a_datastore_is_not_deleted_while_etcd_runs() {
    let guest = Guest::new();
    guest.write("/var/lib/rancher/rke2/server/db/etcd/member", "");
    guest.write("/var/lib/rancher/rke2/server/tls/server-ca.key", "");
    guest.write("/var/lib/rancher/rke2/server/tls-1790000000/server-ca.key", "");
    let output = guest.run(&wipe_unready_founder(Distro::Rke2));
    assert_eq!(output.status.code(), Some(75), "{}", said(&output));
    assert!(guest.at("/var/lib/rancher/rke2/server/db/etcd").exists());
    guest.tool("pgrep", "exit 1");
    guest.tool("ss", "echo 'LISTEN 0 4096 10.0.0.11:2379 0.0.0.0:*'");
    assert_eq!(guest.run(&wipe_unready_founder(Distro::Rke2)).status.code(), Some(75));
    guest.tool("ss", "exit 0");
    let output = guest.run(&wipe_unready_founder(Distro::Rke2));
    assert!(output.status.success(), "{}", said(&output));
    assert!(!guest.at("/var/lib/rancher/rke2/server/db").exists());
    assert!(guest.at("/var/lib/rancher/rke2/server/tls/server-ca.key").exists());
    assert!(
        !guest.at("/var/lib/rancher/rke2/server/tls-1790000000").exists(),
        "a copy of CA keys"
    );
}

#[test]
fn a_probe_of_a_new_guest_is_complete() {
    let guest = Guest::new();
    guest.tool("pgrep", "exit 1");
    guest.tool("ip", "case \"$*\" in *addr*) echo '2: eth0    inet 10.0.0.11/24 scope global eth0';; *) echo 'default via 10.0.0.1 dev eth0 proto static';; esac");
    guest.tool(
        "systemctl",
        "case $1 in show) printf 'ActiveState=inactive\\nNRestarts=0\\n';; *) exit 3;; esac",
    );
    guest.write("/sys/class/net/eth0/device", "");
    guest.write("/sys/class/net/eth0/address", "bc:24:11:00:00:17\n");
    guest.write("/run/cloud-init/result.json", "{}");
    guest.write("/etc/rancher/k3s/config.yaml", "a: 1\n");
    let file = |path: &str| GuestFile {
        path: path.to_owned(),
        mode: 0o600,
        content: String::new().into(),
        secret: false,
    };
    let files = [file("/etc/rancher/k3s/config.yaml"), file("/etc/rancher/k3s/registries.yaml")];
    let output = guest.run(&probe(Distro::K3s, Role::Server, &files));
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output).replace(&guest.root.path().display().to_string(), "");
    let seen = Probe::parse(Distro::K3s, &text).unwrap_or_else(|problem| panic!("{problem}\n{text}"));
    assert_eq!(
        (seen.smbios_uuid.as_str(), seen.smbios_serial.as_str()),
        ("uuid-1", "serial-1")
    );
    assert_eq!(
        seen.files["/etc/rancher/k3s/config.yaml"],
        FileState::Sha256(digest("a: 1\n"))
    );
    assert_eq!(seen.files["/etc/rancher/k3s/registries.yaml"], FileState::Absent);
    assert_eq!(seen.addresses, [("eth0".to_owned(), "10.0.0.11/24".to_owned())]);
    assert_eq!(seen.default_route.as_deref(), Some("eth0"));
    assert_eq!(seen.nics["eth0"], "bc:24:11:00:00:17");
    assert_eq!(seen.has_datastore(), Some(false));
    assert!(!seen.control_plane_runs() && seen.version.is_none());
    assert_eq!(seen.binary, FileState::Absent);
    assert_eq!(seen.units["k3s.service"].active, "inactive");
}

fn pushed(content: &str) -> PinnedArtifact {
    PinnedArtifact {
        kind: ArtifactKind::Program,
        file: "k3s".into(),
        sha256: Checksum::parse(&digest(content)).expect("a checksum"),
        origin: ArtifactOrigin::Pushed,
    }
}

#[test]
fn a_push_that_broke_off_goes_on_behind_what_arrived() {
    let guest = Guest::new();
    let artifact = pushed("hello world");
    assert_eq!(said(&guest.run(&pushed_state(&artifact))).trim(), "part 0");
    let cut = guest.run_with(&receive_artifact(&artifact, 0, 11), "hello");
    assert_eq!(cut.status.code(), Some(74), "{}", said(&cut));
    assert_eq!(said(&guest.run(&pushed_state(&artifact))).trim(), "part 5");
    let overlapping = guest.run_with(&receive_artifact(&artifact, 0, 11), "hello world");
    assert_eq!(overlapping.status.code(), Some(75), "{}", said(&overlapping));
    let rest = guest.run_with(&receive_artifact(&artifact, 5, 11), " world");
    assert!(rest.status.success(), "{}", said(&rest));
    assert_eq!(said(&guest.run(&pushed_state(&artifact))).trim(), "verified");
    assert_eq!(guest.read(&artifact.pushed_path()).as_deref(), Some("hello world"));
}

#[test]
fn a_pushed_file_with_another_checksum_leaves_nothing() {
    let guest = Guest::new();
    let artifact = pushed("hello world");
    let wrong = guest.run_with(&receive_artifact(&artifact, 0, 11), "hello there");
    assert_eq!(wrong.status.code(), Some(65), "{}", said(&wrong));
    assert_eq!(said(&guest.run(&pushed_state(&artifact))).trim(), "part 0");
}

#[test]
fn a_push_that_does_not_fit_is_refused_before_it_begins() {
    let guest = Guest::new();
    let artifact = pushed("hello world");
    let full = guest.run_with(&receive_artifact(&artifact, 0, 1 << 60), "hello");
    assert_eq!(full.status.code(), Some(73), "{}", said(&full));
    assert_eq!(guest.read(&format!("{}.part", artifact.pushed_path())), None);
}

#[test]
fn a_unit_tells_its_state_its_result_and_its_last_lines() {
    let guest = Guest::new();
    let show =
        "printf 'ActiveState=failed\\nSubState=failed\\nResult=exit-code\\nNRestarts=3\\nMainPID=0\\nUnitFileState=enabled\\n'";
    guest.tool("systemctl", show);
    guest.tool("journalctl", "printf 'one\\nlast words\\n'");
    let result = r#"{"input":"i","boot":"boot-1","rc":69,"text":"no way"}"#;
    guest.write("/var/lib/mainstay/fetch.json", &format!("{result}\n"));
    guest.write("/var/lib/mainstay/refused", "1700000000 no intent\n");
    let output = guest.run(&unit_status("mainstay-fetch.service", Some(Work::Fetch)));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let report = UnitReport::parse(&text).expect(&text);
    assert_eq!(report.boot_id, "boot-1");
    assert_eq!(
        (report.unit.active.as_str(), report.unit.restarts, report.unit.pid.as_str()),
        ("failed", 3, "0")
    );
    assert_eq!(
        report.result.map(|result| (result.rc, result.text)),
        Some((69, "no way".to_owned()))
    );
    assert_eq!(report.refused.as_deref(), Some("1700000000 no intent"));
    assert_eq!(report.log, ["one", "last words"]);
    // An answer that broke off says nothing.
    assert!(UnitReport::parse(&text[..text.len() - 1]).is_err());
}

#[test]
fn a_pending_restart_is_remembered_until_the_restart() {
    let guest = Guest::new();
    assert!(guest.run(&note_pending_restart()).status.success());
    assert_eq!(guest.read(RESTART_PENDING).as_deref(), Some(""));
    assert!(guest.run(&restart_unit(Distro::K3s, Role::Server)).status.success());
    assert_eq!(guest.read(RESTART_PENDING), None);
}

#[test]
fn every_script_is_plain_posix_shell() {
    let guest = Guest::new();
    for script in [
        include_str!("../../guest/prepare.sh"),
        include_str!("../../guest/packages.sh"),
        include_str!("../../guest/fetch.sh"),
        include_str!("../../guest/may-start.sh"),
        include_str!("../../guest/probe.sh"),
    ] {
        guest.write("/script", script);
        let checked = guest.shell(&format!("/bin/sh -n {}", guest.at("/script").display()), &[]);
        assert!(checked.status.success(), "{}", said(&checked));
    }
}

/// A guest with one system disk, and tools that write down how they were called.
fn unprepared() -> Guest {
    let guest = Guest::new();
    guest.write("/etc/modules-load.d/mainstay.conf", "overlay\nbr_netfilter\n");
    guest.write("/etc/sysctl.d/90-mainstay.conf", "net.ipv4.ip_forward = 1\n");
    guest.write(
        "/etc/fstab",
        "LABEL=root / ext4 defaults 0 1\n/swapfile none swap sw 0 0\n# none swap\n",
    );
    let log = guest.at("/called");
    for tool in [
        "modprobe",
        "sysctl",
        "swapoff",
        "growpart",
        "resize2fs",
        "systemctl",
        "mount",
        "mountpoint",
    ] {
        let exit = if tool == "mountpoint" { 1 } else { 0 };
        guest.tool(tool, &format!("echo {tool} \"$@\" >> {}; exit {exit}", log.display()));
    }
    guest.tool("findmnt", "case $* in *FSTYPE*) echo ext4 ;; *) echo /dev/vda1 ;; esac");
    guest
}

/// Runs the preparation, with files in the place of block devices. Returns its exit code and text.
fn prepare(guest: &Guest, input: &str) -> (i64, String) {
    guest.write("/var/lib/mainstay/prepare.input", input);
    let script = include_str!("../../guest/prepare.sh").replace("[ -b ", "[ -e ");
    guest.shell(&script, &[]);
    let text = guest.read("/var/lib/mainstay/prepare.json").expect("a result");
    let result: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(result["input"], digest(input));
    (
        result["rc"].as_i64().expect("a number"),
        result["text"].as_str().expect("a text").to_owned(),
    )
}

#[test]
fn a_guest_is_prepared_and_preparing_it_again_changes_nothing_more() {
    let guest = unprepared();
    assert_eq!(
        prepare(&guest, "file 0 /etc/sysctl.d/90-mainstay.conf\n"),
        (0, "done".to_owned())
    );
    let called = guest.read("/called").expect("calls");
    for call in ["modprobe overlay", "modprobe br_netfilter", "sysctl -q -p", "swapoff -a"] {
        assert!(called.contains(call), "{call}: {called}");
    }
    let fstab = guest.read("/etc/fstab").expect("a table");
    assert_eq!(
        fstab,
        "LABEL=root / ext4 defaults 0 1\n# /swapfile none swap sw 0 0\n# none swap\n"
    );
    assert_eq!(prepare(&guest, "file 0 /etc/sysctl.d/90-mainstay.conf\n").0, 0);
    assert_eq!(guest.read("/etc/fstab"), Some(fstab));
}

#[test]
fn a_kernel_without_a_module_is_named() {
    let guest = unprepared();
    guest.tool("modprobe", "[ \"$1\" != br_netfilter ]");
    assert_eq!(prepare(&guest, ""), (71, "the kernel has no module br_netfilter".to_owned()));
}

#[test]
fn a_new_data_disk_is_formatted_once_and_one_with_data_never() {
    let guest = unprepared();
    guest.write("/dev/disk/by-id/scsi-0QEMU_longhorn", "");
    let made = guest.at("/made");
    // A disk without signatures until it is formatted.
    guest.tool(
        "blkid",
        &format!(
            "[ -e {0} ] || exit 2; case $* in *LABEL*) echo ms-longhorn ;; *) echo ext4 ;; esac",
            made.display()
        ),
    );
    guest.tool("wipefs", "exit 0");
    guest.tool("mkfs.ext4", &format!("echo made >> {}", made.display()));
    let disk = "disk longhorn longhorn /var/lib/mainstay/mnt new\n";
    assert_eq!(prepare(&guest, disk), (0, "done".to_owned()));
    assert_eq!(prepare(&guest, disk).0, 0);
    assert_eq!(guest.read("/made").as_deref(), Some("made\n"), "formatted once");
    let fstab = guest.read("/etc/fstab").expect("a table");
    assert_eq!(fstab.matches("LABEL=ms-longhorn ").count(), 1, "{fstab}");
    // Another disk has the serial, and holds a file system of others.
    guest.tool("blkid", "case $* in *LABEL*) echo theirs ;; *) echo xfs ;; esac");
    guest.tool("wipefs", "echo xfs");
    let (rc, text) = prepare(&guest, disk);
    assert!(rc == 77 && text.contains("holds data"), "{rc} {text}");
    let (rc, text) = prepare(&guest, &disk.replace("new", "used"));
    assert!(rc == 77 && text.contains("is not new"), "{rc} {text}");
    assert_eq!(guest.read("/made").as_deref(), Some("made\n"), "nothing was formatted");
    let (rc, text) = prepare(&guest, "disk other absent /mnt new\n");
    assert_eq!((rc, text.as_str()), (66, "no disk with serial absent"));
}

/// Runs the installation of packages. Returns its result and what was called.
fn install(guest: &Guest, packages: &[&str]) -> (i64, String) {
    let arguments: Vec<String> = packages.iter().map(|package| (*package).to_owned()).collect();
    guest.shell(include_str!("../../guest/packages.sh"), &arguments);
    let text = guest.read("/var/lib/mainstay/packages.json").expect("a result");
    let result: Value = serde_json::from_str(&text).expect("JSON");
    (
        result["rc"].as_i64().expect("a number"),
        guest.read("/called").unwrap_or_default(),
    )
}

#[test]
fn packages_are_installed_once_and_the_agent_is_started() {
    let guest = Guest::new();
    let (log, there) = (guest.at("/called"), guest.at("/installed"));
    guest.tool("dpkg", &format!("[ -e {} ]", there.display()));
    guest.tool(
        "apt-get",
        &format!(
            "echo apt-get \"$@\" >> {}; case $* in *install*) touch {} ;; esac",
            log.display(),
            there.display()
        ),
    );
    guest.tool("systemctl", &format!("echo systemctl \"$@\" >> {}", log.display()));
    let (rc, called) = install(&guest, &["qemu-guest-agent"]);
    assert_eq!(rc, 0);
    assert!(
        called.contains("install qemu-guest-agent") && called.contains("start qemu-guest-agent"),
        "{called}"
    );
    let (rc, again) = install(&guest, &["qemu-guest-agent"]);
    assert_eq!(
        (rc, again.matches("install").count()),
        (0, called.matches("install").count()),
        "{again}"
    );
}

#[test]
fn a_package_mirror_that_is_down_is_told_and_nothing_waits_for_it() {
    let guest = Guest::new();
    let log = guest.at("/called");
    guest.tool("dpkg", &format!("echo dpkg \"$@\" >> {}; exit 1", log.display()));
    guest.tool("apt-get", "exit 100");
    let (rc, called) = install(&guest, &["qemu-guest-agent"]);
    assert_eq!(rc, 69);
    assert!(
        called.contains("dpkg --configure -a"),
        "an installation that was cut off is repaired: {called}"
    );
}
