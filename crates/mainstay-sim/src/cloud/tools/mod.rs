//! Programs of a cloud guest: which one a command names, and those that every image has.

mod args;
mod files;
mod network;
mod packages;
mod system;
mod tests_of_files;
mod text;
mod wrappers;

use futures::future::BoxFuture;

use super::fs::Kind;
use super::rancher;
use super::shell::{Process, interpret};
use super::systemd::control as systemctl;

pub(crate) use self::packages::is_installed;

/// Programs of the image, by name. Those of packages that are not installed are looked up there.
const PROGRAMS: &[&str] = &[
    "[",
    "apt",
    "apt-get",
    "arch",
    "awk",
    "base64",
    "basename",
    "bash",
    "blkid",
    "cat",
    "chmod",
    "chown",
    "cloud-init",
    "cmp",
    "cp",
    "curl",
    "cut",
    "date",
    "df",
    "dirname",
    "dmidecode",
    "dpkg",
    "dpkg-query",
    "echo",
    "env",
    "false",
    "find",
    "findmnt",
    "flock",
    "getent",
    "grep",
    "growpart",
    "gunzip",
    "gzip",
    "head",
    "hostname",
    "hostnamectl",
    "id",
    "install",
    "ip",
    "journalctl",
    "kill",
    "ln",
    "logger",
    "ls",
    "lsblk",
    "lsmod",
    "mkdir",
    "mkfs.ext4",
    "mktemp",
    "modprobe",
    "mount",
    "mountpoint",
    "mv",
    "nohup",
    "nproc",
    "pgrep",
    "pkill",
    "poweroff",
    "printenv",
    "printf",
    "ps",
    "pwd",
    "readlink",
    "realpath",
    "reboot",
    "resize2fs",
    "rm",
    "rmdir",
    "sed",
    "seq",
    "setsid",
    "sh",
    "sha256sum",
    "sha512sum",
    "shutdown",
    "sleep",
    "sort",
    "ss",
    "stat",
    "sudo",
    "swapoff",
    "swapon",
    "sync",
    "sysctl",
    "systemctl",
    "systemd-detect-virt",
    "tail",
    "tar",
    "tee",
    "test",
    "timedatectl",
    "timeout",
    "touch",
    "tr",
    "true",
    "udevadm",
    "umount",
    "uname",
    "uniq",
    "update-ca-certificates",
    "uptime",
    "wc",
    "wget",
    "whoami",
    "wipefs",
    "xargs",
    "zcat",
];

const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];

/// What a name stands for.
enum Program {
    /// Part of the image.
    Known(&'static str),
    /// A file on the disk.
    File(String),
    NotFound,
    Denied,
}

fn find(process: &Process, name: &str) -> Program {
    if let Some((directory, last)) = name.rsplit_once('/') {
        if SYSTEM_DIRECTORIES.contains(&directory)
            && let Some(known) = known(process, last)
        {
            return Program::Known(known);
        }
        return match process.stat(name) {
            Ok(inode) if inode.is_directory() => Program::Denied,
            Ok(inode) if process.host.fs.may_execute(process.who(), &inode) => Program::File(name.to_owned()),
            Ok(_) => Program::Denied,
            Err(_) => Program::NotFound,
        };
    }
    let path = process.env.get("PATH").cloned().unwrap_or_default();
    for directory in path.split(':').filter(|directory| !directory.is_empty()) {
        let candidate = format!("{directory}/{name}");
        let executable = |inode: &super::fs::Inode| !inode.is_directory() && process.host.fs.may_execute(process.who(), inode);
        if process.stat(&candidate).is_ok_and(|inode| executable(&inode)) {
            return Program::File(candidate);
        }
        if SYSTEM_DIRECTORIES.contains(&directory)
            && let Some(known) = known(process, name)
        {
            return Program::Known(known);
        }
    }
    Program::NotFound
}

fn known(process: &Process, name: &str) -> Option<&'static str> {
    let of_image = PROGRAMS.iter().find(|known| **known == name).copied();
    of_image.or_else(|| packages::program(&process.host, name))
}

/// Where a command lies.
pub(crate) fn which(process: &Process, name: &str) -> Option<String> {
    match find(process, name) {
        Program::Known(known) => Some(format!("/usr/bin/{known}")),
        Program::File(path) => Some(path),
        Program::NotFound | Program::Denied => None,
    }
}

/// Runs a program to its end.
pub(crate) fn execute(mut process: Process, arguments: Vec<String>) -> BoxFuture<'static, i32> {
    Box::pin(async move {
        let Some(name) = arguments.first().cloned() else { return 0 };
        process.depth += 1;
        process.host.note_command(&process.user.name, &arguments);
        match find(&process, &name) {
            Program::Known(known) => run_known(process, known, arguments[1..].to_vec()).await,
            Program::File(path) => run_file(process, &path, arguments).await,
            Program::NotFound => {
                let text = if name.contains('/') {
                    "No such file or directory"
                } else {
                    "command not found"
                };
                process.complain(format!("bash: line 1: {name}: {text}"));
                127
            }
            Program::Denied => {
                process.complain(format!("bash: line 1: {name}: Permission denied"));
                126
            }
        }
    })
}

/// A program from the disk: one that the world knows by what is in it, or a script.
async fn run_file(process: Process, path: &str, mut arguments: Vec<String>) -> i32 {
    let Ok(Kind::File { bytes, .. }) = process.stat(path).map(|inode| inode.kind.clone()) else {
        return 126;
    };
    if let Some(binary) = rancher::Binary::read(&bytes) {
        return rancher::run(process, binary, arguments[1..].to_vec()).await;
    }
    let text = String::from_utf8_lossy(&bytes);
    let first = text.lines().next().unwrap_or_default();
    let Some(interpreter) = first.strip_prefix("#!") else {
        process.complain(format!("bash: line 1: {path}: cannot execute binary file: Exec format error"));
        return 126;
    };
    let mut words: Vec<String> = interpreter.split_whitespace().map(str::to_owned).collect();
    if words.first().is_some_and(|word| word.ends_with("/env")) {
        words.remove(0);
    }
    let program = words.first().map(|word| super::fs::name(word).to_owned()).unwrap_or_default();
    if !["sh", "bash", "dash"].contains(&program.as_str()) {
        process.complain(format!(
            "bash: line 1: {path}: {program}: bad interpreter: No such file or directory"
        ));
        return 126;
    }
    arguments[0] = path.to_owned();
    let flags: String = words.iter().skip(1).cloned().collect();
    let script = if flags.is_empty() {
        text.into_owned()
    } else {
        format!("set {flags}\n{text}")
    };
    interpret(process, &script, arguments).await
}

async fn run_known(p: Process, name: &'static str, a: Vec<String>) -> i32 {
    match name {
        "sh" | "bash" => wrappers::shell(p, a).await,
        "sudo" => wrappers::sudo(p, a).await,
        "env" => wrappers::env(p, a).await,
        "timeout" => wrappers::timeout(p, a).await,
        "flock" => wrappers::flock(p, a).await,
        "nohup" | "setsid" => execute(p, a.into_iter().skip_while(|word| word.starts_with('-')).collect()).await,
        "xargs" => wrappers::xargs(p, a).await,
        "sleep" => wrappers::sleep(&p, &a).await,
        "test" | "[" => tests_of_files::test(&p, name, a),
        "systemctl" => systemctl::systemctl(&p, a).await,
        "journalctl" => systemctl::journalctl(&p, &a),
        "curl" => network::curl(&p, &a).await,
        "wget" => network::wget(&p, &a).await,
        "apt" | "apt-get" => packages::apt_get(&p, &a).await,
        "dpkg" | "dpkg-query" => packages::dpkg(&p, &a),
        "tar" => packages::tar(&p, &a).await,
        "gunzip" | "zcat" | "gzip" => packages::gunzip(&p, &a).await,
        "true" | "sync" | "update-ca-certificates" | "udevadm" => 0,
        "false" => 1,
        "qemu-ga" => std::future::pending().await,
        _ => match files::run(&p, name, &a).await {
            Some(status) => status,
            None => match text::run(&p, name, &a).await {
                Some(status) => status,
                None => system::run(&p, name, &a).await,
            },
        },
    }
}
