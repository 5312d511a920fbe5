//! Packages and archives.

use std::io::Read;
use std::time::Duration;

use flate2::read::GzDecoder;

use super::args::Arguments;
use super::network::fetch;
use crate::cloud::DPKG_LOCK;
use crate::cloud::archive;
use crate::cloud::fs::{self, Credentials};
use crate::cloud::host::Host;
use crate::cloud::shell::Process;

/// Packages that clients of these guests install, and the programs in them.
const PACKAGES: [(&str, &[&str]); 7] = [
    ("qemu-guest-agent", &["qemu-ga"]),
    ("iptables", &["iptables"]),
    ("open-iscsi", &["iscsiadm"]),
    ("nfs-common", &["mount.nfs"]),
    ("jq", &["jq"]),
    ("apparmor", &["apparmor_parser"]),
    ("cloud-guest-utils", &[]),
];

/// Started by a udev rule where the channel exists; it has no `[Install]` section.
const AGENT_UNIT: &str = "/usr/lib/systemd/system/qemu-guest-agent.service";
const AGENT: &str = "[Unit]\nDescription=QEMU Guest Agent\n[Service]\nExecStart=-/usr/sbin/qemu-ga\nRestart=always\n";

const STATUS: &str = "/var/lib/dpkg/status";

pub(crate) fn is_installed(host: &Host, package: &str) -> bool {
    let text = host.fs.text(STATUS).unwrap_or_default();
    let preset = package == "cloud-guest-utils" || package == "iptables" && host.image.os == "ubuntu";
    preset || text.lines().any(|line| line.strip_prefix("Package: ") == Some(package))
}

/// A program of an installed package.
pub(super) fn program(host: &Host, name: &str) -> Option<&'static str> {
    let (package, programs) = PACKAGES.iter().find(|(_, programs)| programs.contains(&name))?;
    is_installed(host, package).then(|| *programs.iter().find(|program| **program == name).expect("it was found"))
}

pub(super) async fn apt_get(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["o", "option", "t"]);
    let Some((verb, packages)) = arguments.operands.split_first() else {
        return 0;
    };
    if p.user.uid != 0 {
        p.complain("E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)");
        return 100;
    }
    let patience = arguments
        .values(&["o", "option"])
        .iter()
        .find_map(|option| option.strip_prefix("DPkg::Lock::Timeout=")?.parse().ok())
        .map_or(Duration::from_millis(1), Duration::from_secs);
    let Ok(_guard) = tokio::time::timeout(patience, p.host.lock_of(DPKG_LOCK).lock_owned()).await else {
        p.complain("E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1234 (apt-get)");
        return 100;
    };
    let mirror = if p.host.image.os == "ubuntu" {
        "http://archive.ubuntu.com/ubuntu/"
    } else {
        "http://deb.debian.org/debian/"
    };
    match verb.as_str() {
        "update" => update(p, mirror).await,
        "install" => install(p, mirror, packages).await,
        "upgrade" | "dist-upgrade" => {
            p.host.pass(p.host.timing().package_upgrade).await;
            0
        }
        _ => 0,
    }
}

async fn update(p: &Process, mirror: &str) -> i32 {
    p.host.pass(p.host.timing().apt).await;
    match fetch(
        &p.host,
        &format!("{mirror}dists/stable/InRelease"),
        true,
        Duration::from_secs(120),
    )
    .await
    {
        Ok(answer) if answer.status < 400 => {
            p.host.fs.install("/var/lib/apt/lists/InRelease", "", 0o644, p.host.now());
            0
        }
        // apt-get update fails softly: old lists stay in use.
        _ => {
            p.complain(format!("W: Failed to fetch {mirror}dists/stable/InRelease  Could not connect\nW: Some index files failed to download. They have been ignored, or old ones used instead."));
            0
        }
    }
}

async fn install(p: &Process, mirror: &str, packages: &[String]) -> i32 {
    for package in packages {
        if is_installed(&p.host, package) {
            p.line(format!("{package} is already the newest version."));
            continue;
        }
        if !PACKAGES.iter().any(|(known, _)| known == package) {
            p.complain(format!("E: Unable to locate package {package}"));
            return 100;
        }
        p.host.pass(p.host.timing().apt).await;
        match fetch(
            &p.host,
            &format!("{mirror}pool/main/{package}.deb"),
            true,
            Duration::from_secs(120),
        )
        .await
        {
            Ok(answer) if answer.status < 400 => {}
            _ => {
                p.complain(format!("E: Failed to fetch {mirror}pool/main/{package}.deb  Could not connect\nE: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?"));
                return 100;
            }
        }
        let text = p.host.fs.text(STATUS).unwrap_or_default();
        p.host.fs.install(
            STATUS,
            format!("{text}Package: {package}\nStatus: install ok installed\n\n"),
            0o644,
            p.host.now(),
        );
        p.line(format!("Setting up {package} ..."));
        if package == "qemu-guest-agent" {
            p.host.fs.install(AGENT_UNIT, AGENT, 0o644, p.host.now());
        }
        p.host.lock().packages.insert(package.clone());
    }
    0
}

pub(super) fn dpkg(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["f", "showformat"]);
    let mut status = 0;
    for package in &arguments.operands {
        if is_installed(&p.host, package) {
            p.line("install ok installed");
        } else {
            status = p.fail(format!("dpkg-query: no packages found matching {package}"));
        }
    }
    status
}

/// `tar -x`, plain or with gzip.
pub(super) async fn tar(p: &Process, a: &[String]) -> i32 {
    // The first word may lack its dash.
    let mut words = a.to_vec();
    if let Some(first) = words.first_mut().filter(|first| !first.starts_with('-')) {
        first.insert(0, '-');
    }
    let arguments = Arguments::parse(&words, &["f", "file", "C", "directory", "strip-components"]);
    let source = arguments.value(&["f", "file"]).unwrap_or("-").to_owned();
    let bytes = if source == "-" {
        Ok(p.stdin.read_to_end().await)
    } else {
        p.read(&source)
    };
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(error) => {
            p.complain(format!("tar: {source}: Cannot open: {error}"));
            return 2;
        }
    };
    let mut plain = Vec::new();
    let is_gzip = bytes.starts_with(&[0x1f, 0x8b]);
    if is_gzip && GzDecoder::new(&bytes[..]).read_to_end(&mut plain).is_err() {
        p.complain(
            "gzip: stdin: unexpected end of file\ntar: Child returned status 1\ntar: Error is not recoverable: exiting now",
        );
        return 2;
    }
    let plain = if is_gzip { plain } else { bytes.to_vec() };
    let base = arguments
        .value(&["C", "directory"])
        .map_or_else(|| p.cwd.clone(), |path| p.path(path));
    let strip = arguments
        .value(&["strip-components"])
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    match unpack(p, &plain, &base, strip, arguments.has(&["t", "list"])) {
        Ok(()) => 0,
        Err(error) => {
            p.complain(format!("tar: {error}\ntar: Error is not recoverable: exiting now"));
            2
        }
    }
}

fn unpack(p: &Process, bytes: &[u8], base: &str, strip: usize, list: bool) -> Result<(), String> {
    let entries = archive::unpack(bytes).ok_or("This does not look like a tar archive")?;
    for entry in entries {
        if list {
            p.line(&entry.path);
            continue;
        }
        let parts: Vec<&str> = entry
            .path
            .split('/')
            .filter(|part| !part.is_empty() && *part != ".")
            .skip(strip)
            .collect();
        if parts.is_empty() {
            continue;
        }
        let goal = format!("{base}/{}", parts.join("/"));
        let (host, who, now) = (&p.host, p.who(), p.host.now());
        let refused = |error: fs::FsError| format!("{}: Cannot open: {error}", entry.path);
        if entry.is_directory {
            host.fs.make_directories(who, &goal, 0o755, now).map_err(refused)?;
            continue;
        }
        host.fs
            .make_directories(who, fs::parent(&goal), 0o755, now)
            .map_err(refused)?;
        let _ = host.fs.remove(who, &goal);
        host.fs
            .write(who, &goal, entry.content.clone(), entry.mode, now)
            .map_err(refused)?;
        let _ = host.fs.alter(Credentials::ROOT, &goal, |inode| inode.mode = entry.mode);
    }
    Ok(())
}

pub(super) async fn gunzip(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &[]);
    for (name, content) in p.inputs(&arguments.operands).await {
        let Ok(bytes) = content else {
            return p.fail(format!("gzip: {name}: No such file or directory"));
        };
        let mut plain = Vec::new();
        if GzDecoder::new(&bytes[..]).read_to_end(&mut plain).is_err() {
            return p.fail(format!("gzip: {name}: not in gzip format"));
        }
        if name == "-" || arguments.has(&["c", "stdout"]) {
            p.write(1, plain);
        } else {
            let goal = name.trim_end_matches(".gz").to_owned();
            if p.store(&goal, plain).is_err() || p.host.fs.remove(p.who(), &p.path(&name)).is_err() {
                return p.fail(format!("gzip: {goal}: Permission denied"));
            }
        }
    }
    0
}
