//! Tools that look at the machine or change it.

use super::args::Arguments;
use crate::cloud::boot;
use crate::cloud::cloudinit;
use crate::cloud::host::{Ending, Stage};
use crate::cloud::shell::{Process, User};
use crate::cloud::systemd::ActiveState;

pub(super) async fn run(p: &Process, name: &str, a: &[String]) -> i32 {
    match name {
        "id" => id(p, a),
        "whoami" => say(p, &p.user.name),
        "pwd" => say(p, &p.cwd),
        "hostname" => say(p, &p.host.hostname()),
        "hostnamectl" => hostnamectl(p, a),
        "uname" => uname(p, a),
        "arch" => say(p, "x86_64"),
        "nproc" => say(p, &p.host.hardware.cores.to_string()),
        "date" => date(p, a),
        "uptime" => say(p, "up 1 minute"),
        "printenv" => printenv(p, a),
        "cloud-init" => cloud_init(p, a).await,
        "dmidecode" => dmidecode(p, a),
        "systemd-detect-virt" => say(p, "kvm"),
        "timedatectl" => say(p, "NTPSynchronized=yes"),
        "sysctl" => sysctl(p, a),
        "modprobe" => modprobe(p, a),
        "lsmod" => lsmod(p),
        "swapoff" | "swapon" => 0,
        "ip" => ip(p, a),
        "ss" => ss(p),
        "ps" | "pgrep" => processes(p, name, a),
        "kill" | "pkill" => 0,
        "df" => df(p, a),
        "findmnt" => findmnt(p, a),
        "mountpoint" => i32::from(a.last().is_none_or(|path| path != "/")),
        "lsblk" => lsblk(p),
        "blkid" | "wipefs" => probe(p, name, a),
        "growpart" | "resize2fs" => grow(p, name),
        "mount" | "umount" | "mkfs.ext4" => privileged(p, name),
        "getent" => getent(p, a),
        "logger" => {
            let arguments = Arguments::parse(a, &["t", "p"]);
            let tag = arguments.value(&["t"]).unwrap_or(&p.user.name).to_owned();
            p.host.journal.write(&p.host, None, &tag, &arguments.operands.join(" "));
            0
        }
        "reboot" | "poweroff" | "shutdown" => power(p, name, a),
        _ => {
            p.complain(format!("bash: line 1: {name}: command not found"));
            127
        }
    }
}

fn say(p: &Process, text: &str) -> i32 {
    p.line(text);
    0
}

fn privileged(p: &Process, name: &str) -> i32 {
    if p.user.uid == 0 {
        0
    } else {
        p.fail(format!("{name}: must be superuser."))
    }
}

fn id(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &[]);
    let user = match arguments.operands.first() {
        Some(name) => match User::find(&p.host, name) {
            Some(user) => user,
            None => return p.fail(format!("id: '{name}': no such user")),
        },
        None => p.user.clone(),
    };
    let (uid, gid, name) = (user.uid, user.gid, user.name);
    p.line(match (arguments.has(&["u"]), arguments.has(&["g"]), arguments.has(&["n"])) {
        (true, _, true) => name,
        (true, _, _) => uid.to_string(),
        (_, true, _) => gid.to_string(),
        _ => format!("uid={uid}({name}) gid={gid}({name}) groups={gid}({name})"),
    });
    0
}

fn hostnamectl(p: &Process, a: &[String]) -> i32 {
    let words: Vec<&String> = a.iter().filter(|word| !word.starts_with('-')).collect();
    if let [verb, name] = words.as_slice()
        && ["set-hostname", "hostname"].contains(&verb.as_str())
    {
        if p.user.uid != 0 {
            return p.fail("Could not set static hostname: Interactive authentication required.");
        }
        p.host.fs.install("/etc/hostname", format!("{name}\n"), 0o644, p.host.now());
        p.host.lock().hostname = (*name).clone();
        return 0;
    }
    say(p, &p.host.hostname())
}

fn uname(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &[]);
    let parts = [
        ("s", "Linux".to_owned()),
        ("n", p.host.hostname()),
        ("r", p.host.image.kernel().to_owned()),
        ("m", "x86_64".to_owned()),
    ];
    let all = arguments.has(&["a"]);
    let shown: Vec<String> = parts
        .iter()
        .filter(|(flag, _)| all || arguments.has(&[flag]))
        .map(|(_, text)| text.clone())
        .collect();
    say(
        p,
        &if shown.is_empty() {
            "Linux".to_owned()
        } else {
            shown.join(" ")
        },
    )
}

fn date(p: &Process, a: &[String]) -> i32 {
    let now = p.host.timestamp();
    let format = a
        .iter()
        .find_map(|word| word.strip_prefix('+'))
        .unwrap_or("%a %b %e %H:%M:%S UTC %Y");
    let format = format.replace("%N", "000000000").replace("%3N", "000");
    let zoned = now.to_zoned(jiff::tz::TimeZone::UTC);
    say(p, &zoned.strftime(&format).to_string())
}

fn printenv(p: &Process, a: &[String]) -> i32 {
    match a.first() {
        Some(name) => match p.env.get(name) {
            Some(value) => say(p, value),
            None => 1,
        },
        None => {
            p.env.iter().for_each(|(name, value)| p.line(format!("{name}={value}")));
            0
        }
    }
}

async fn cloud_init(p: &Process, a: &[String]) -> i32 {
    match a.first().map(String::as_str) {
        Some("status") => {
            if a.iter().any(|word| word == "--wait") {
                while !matches!(p.host.lock().cloud_init, Stage::Done | Stage::Disabled) {
                    tokio::time::sleep(std::time::Duration::from_millis(250)).await;
                }
            }
            let word = cloudinit::status_word(&p.host);
            if a.iter().any(|word| word == "json" || word == "--format=json") {
                let status = serde_json::json!({
                    "boot_status_code": if word == "disabled" { "disabled-by-marker-file" } else { "enabled-by-generator" },
                    "datasource": "nocloud", "detail": "DataSourceNoCloud [seed=/dev/sr0]", "errors": [], "extended_status": word,
                    "recoverable_errors": {}, "status": word,
                });
                p.line(status.to_string());
            } else {
                p.line(format!("status: {word}"));
            }
            0
        }
        Some("--version" | "-v") => say(p, "/usr/bin/cloud-init 25.1.4-0ubuntu0~24.04.1"),
        _ => 2,
    }
}

fn dmidecode(p: &Process, a: &[String]) -> i32 {
    if p.user.uid != 0 {
        return p.fail("/sys/firmware/dmi/tables/smbios_entry_point: Permission denied");
    }
    let arguments = Arguments::parse(a, &["s", "t"]);
    match arguments.value(&["s"]) {
        Some("system-uuid") => say(p, &p.host.hardware.uuid),
        Some("system-serial-number") => say(p, &p.host.hardware.serial),
        Some("system-manufacturer") => say(p, "QEMU"),
        Some(other) => p.fail(format!("Invalid argument for -s: {other}")),
        None => say(
            p,
            &format!(
                "System Information\n\tSerial Number: {}\n\tUUID: {}",
                p.host.hardware.serial, p.host.hardware.uuid
            ),
        ),
    }
}

fn sysctl(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["p"]);
    let change = arguments.has(&["w", "p", "system"]) || arguments.operands.iter().any(|word| word.contains('='));
    if change && p.user.uid != 0 {
        return p.fail("sysctl: permission denied");
    }
    if arguments.has(&["system"]) {
        boot::load_sysctl(&p.host);
    }
    if let Some(file) = arguments.value(&["p"]) {
        boot::apply_sysctl(&p.host, &p.host.fs.text(file).unwrap_or_default());
    }
    let mut status = 0;
    for word in &arguments.operands {
        if word.contains('=') {
            boot::apply_sysctl(&p.host, word);
            continue;
        }
        let value = p.host.lock().sysctl.get(word).cloned();
        match value {
            Some(value) if arguments.has(&["n"]) => p.line(value),
            Some(value) => p.line(format!("{word} = {value}")),
            None => {
                status = p.fail(format!(
                    "sysctl: cannot stat /proc/sys/{}: No such file or directory",
                    word.replace('.', "/")
                ));
            }
        }
    }
    status
}

fn modprobe(p: &Process, a: &[String]) -> i32 {
    if p.user.uid != 0 {
        return p.fail("modprobe: ERROR: could not insert module: Operation not permitted");
    }
    let all = a.iter().any(|word| word == "-a");
    let names = a
        .iter()
        .filter(|word| !word.starts_with('-'))
        .take(if all { usize::MAX } else { 1 });
    p.host.lock().modules.extend(names.map(|name| name.replace('-', "_")));
    0
}

fn lsmod(p: &Process) -> i32 {
    p.line("Module                  Size  Used by");
    p.host
        .lock()
        .modules
        .iter()
        .for_each(|name| p.line(format!("{name} 16384 0")));
    0
}

fn ip(p: &Process, a: &[String]) -> i32 {
    let brief = a.iter().any(|word| word == "-br" || word == "-brief" || word == "-o");
    let what = a
        .iter()
        .find(|word| !word.starts_with('-'))
        .map(String::as_str)
        .unwrap_or_default();
    let state = p.host.lock();
    match what {
        "a" | "addr" | "address" => {
            let extra = state.extra.iter().map(|address| format!("{address}/32"));
            for (index, (name, net)) in state.addresses.iter().enumerate() {
                let own = [net.to_string()].into_iter().chain(extra.clone().filter(|_| index == 0));
                for address in own {
                    p.line(if brief {
                        format!("{}: {name}    inet {address} scope global {name}", index + 2)
                    } else {
                        format!("    inet {address} scope global {name}")
                    });
                }
            }
            0
        }
        "r" | "route" => {
            if let (Some(gateway), Some((name, _))) = (state.gateway, state.addresses.first()) {
                p.line(format!("default via {gateway} dev {name} proto static"));
            }
            0
        }
        "l" | "link" => {
            for (index, nic) in p.host.hardware.nics.iter().enumerate() {
                let name = state.addresses.get(index).map_or("ens18", |(name, _)| name);
                p.line(format!(
                    "{}: {name}: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 state UP link/ether {}",
                    index + 2,
                    nic.mac.to_lowercase()
                ));
            }
            0
        }
        _ => p.fail(format!("Object \"{what}\" is unknown, try \"ip help\".")),
    }
}

fn ss(p: &Process) -> i32 {
    p.line("State  Recv-Q Send-Q Local Address:Port Peer Address:Port Process");
    for port in [22].into_iter().chain(p.host.runtime.open_ports()) {
        p.line(format!("LISTEN 0      4096   *:{port} *:*"));
    }
    0
}

/// Main processes of units, and what RKE2 left running.
fn processes(p: &Process, name: &str, a: &[String]) -> i32 {
    let mut found: Vec<(u32, String)> = vec![(1, "/sbin/init".to_owned())];
    for unit in p.host.systemd.names() {
        let known = p.host.systemd.unit(&unit);
        if known.pid > 0 && matches!(known.active, ActiveState::Active | ActiveState::Activating) {
            let command = known
                .definition
                .and_then(|definition| definition.value("Service.ExecStart"))
                .unwrap_or_default();
            found.push((known.pid, command));
        }
    }
    found.extend(
        p.host
            .runtime
            .processes()
            .into_iter()
            .enumerate()
            .map(|(index, name)| (9000 + u32::try_from(index).unwrap_or(0), name)),
    );
    if name == "ps" {
        p.line("PID CMD");
        found.iter().for_each(|(pid, command)| p.line(format!("{pid} {command}")));
        return 0;
    }
    let arguments = Arguments::parse(a, &["u"]);
    let wanted = arguments.operands.first().cloned().unwrap_or_default();
    let (whole, exact) = (arguments.has(&["f"]), arguments.has(&["x"]));
    let fits = |command: &str| {
        let program = crate::cloud::fs::name(command.split_whitespace().next().unwrap_or_default()).to_owned();
        if exact && !whole {
            program == wanted
        } else if whole {
            command.contains(&wanted)
        } else {
            program.contains(&wanted)
        }
    };
    let matching: Vec<&(u32, String)> = found.iter().filter(|(_, command)| fits(command)).collect();
    matching.iter().for_each(|(pid, _)| p.line(pid.to_string()));
    i32::from(matching.is_empty())
}

fn df(p: &Process, a: &[String]) -> i32 {
    let disk = p.host.fs.disk();
    let (size, used) = (disk.root_size(), disk.tree().used());
    let block = if a.iter().any(|word| word == "-B1" || word == "--block-size=1") {
        1
    } else {
        1024
    };
    if a.iter().any(|word| word.starts_with("--output=avail")) {
        p.line("Avail");
        p.line((size.saturating_sub(used) / block).to_string());
        return 0;
    }
    p.line("Filesystem 1024-blocks Used Available Capacity Mounted on");
    p.line(format!(
        "/dev/sda1 {} {} {} 10% /",
        size / block,
        used / block,
        size.saturating_sub(used) / block
    ));
    0
}

fn findmnt(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["o", "output", "T", "target", "S"]);
    // Everything lies on the root file system.
    let exact = arguments.operands.first().is_some_and(|path| path != "/");
    if exact && !arguments.has(&["T", "target"]) {
        return 1;
    }
    p.line(match arguments.value(&["o", "output"]) {
        Some("SOURCE") => "/dev/sda1",
        Some("TARGET") => "/",
        Some("FSTYPE") => "ext4",
        _ => "/ /dev/sda1 ext4 rw,relatime",
    });
    0
}

fn lsblk(p: &Process) -> i32 {
    p.line("NAME SIZE TYPE SERIAL");
    for (index, disk) in p.host.hardware.disks.iter().enumerate() {
        let letter = char::from(b'a' + u8::try_from(index.min(25)).unwrap_or(25));
        p.line(format!(
            "sd{letter} {} disk {}",
            disk.size,
            disk.serial.clone().unwrap_or_default()
        ));
    }
    0
}

/// Signatures on a block device: the system disk has some, a new one none.
fn probe(p: &Process, name: &str, a: &[String]) -> i32 {
    let Some(path) = a.iter().rev().find(|word| word.starts_with('/')) else {
        return 2;
    };
    let target = p.host.fs.resolve(p.who(), path, true).unwrap_or_else(|_| path.clone());
    let Some(disk) = p.host.block_device(&target) else {
        return p.fail(format!("{name}: {path}: No such file or directory"));
    };
    if disk.key == p.host.fs.disk().key {
        p.line(if name == "blkid" {
            format!("{path}: PTTYPE=\"gpt\"")
        } else {
            "DEVICE OFFSET TYPE\nsda 0x200 gpt".to_owned()
        });
        return 0;
    }
    if name == "blkid" { 2 } else { 0 }
}

fn grow(p: &Process, name: &str) -> i32 {
    if p.user.uid != 0 {
        return p.fail(format!("{name}: must be superuser."));
    }
    let disk = p.host.fs.disk();
    if name == "growpart" && disk.root_size() >= disk.size {
        p.line("NOCHANGE: partition 1 is size. it cannot be grown");
        return 1;
    }
    disk.grow_root();
    0
}

fn getent(p: &Process, a: &[String]) -> i32 {
    let [database, key, ..] = a else { return 1 };
    if database == "hosts" || database == "ahosts" {
        return i32::from(!p.host.fs.text("/etc/hosts").unwrap_or_default().contains(key.as_str()));
    }
    let text = p.host.fs.text(&format!("/etc/{database}")).unwrap_or_default();
    match text.lines().find(|line| line.starts_with(&format!("{key}:"))) {
        Some(line) => say(p, line),
        None => 2,
    }
}

fn power(p: &Process, name: &str, a: &[String]) -> i32 {
    if p.user.uid != 0 {
        return p.fail("Failed to connect to bus: Interactive authentication required.");
    }
    let reboot = name == "reboot" || a.iter().any(|word| word == "-r" || word == "--reboot");
    p.host.end(if reboot { Ending::Reboot } else { Ending::Off });
    0
}
