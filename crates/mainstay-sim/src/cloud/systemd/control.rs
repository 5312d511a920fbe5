//! `systemctl` and `journalctl`.

use super::unit::{self, Definition, full_name};
use super::{ActiveState, run};
use crate::cloud::boot;
use crate::cloud::fs::{self, Credentials};
use crate::cloud::host::Ending;
use crate::cloud::shell::Process;

pub(crate) async fn systemctl(p: &Process, a: Vec<String>) -> i32 {
    let mut options = Vec::new();
    let mut words = Vec::new();
    let mut properties = Vec::new();
    let mut rest = a.into_iter();
    while let Some(word) = rest.next() {
        if let Some(value) = word
            .strip_prefix("--property=")
            .or_else(|| word.strip_prefix("-p").filter(|value| !value.is_empty()))
        {
            properties.extend(value.split(',').map(str::to_owned));
        } else if word == "-p" || word == "--property" {
            properties.extend(rest.next().unwrap_or_default().split(',').map(str::to_owned));
        } else if word.starts_with('-') {
            options.push(word);
        } else {
            words.push(word);
        }
    }
    let has = |name: &str| options.iter().any(|option| option == name);
    let Some(verb) = words.first().cloned() else { return 0 };
    let units: Vec<String> = words[1..].iter().map(|name| full_name(name)).collect();
    let reads = [
        "is-active",
        "is-enabled",
        "is-failed",
        "show",
        "status",
        "cat",
        "is-system-running",
        "list-unit-files",
        "list-units",
    ];
    if !reads.contains(&verb.as_str()) && p.user.uid != 0 {
        return p.fail("Failed to connect to bus: Interactive authentication required.");
    }
    match verb.as_str() {
        "start" | "restart" | "try-restart" | "reload-or-restart" => change(p, &verb, &units, has("--no-block")).await,
        "stop" | "kill" => {
            for unit in &units {
                if Definition::read(&p.host.fs, unit).is_none() && p.host.systemd.unit(unit).definition.is_none() {
                    p.complain(format!("Failed to stop {unit}: Unit {unit} not loaded."));
                    return 5;
                }
                run::stop(&p.host, unit).await;
            }
            0
        }
        "enable" | "disable" | "mask" | "unmask" => {
            let status = link(p, &verb, &units);
            if status == 0 && has("--now") {
                let action = if verb == "enable" { "start" } else { "stop" };
                let words = [
                    vec![action.to_owned()],
                    units,
                    options.iter().filter(|option| *option == "--no-block").cloned().collect(),
                ];
                return Box::pin(systemctl(p, words.concat())).await;
            }
            status
        }
        "daemon-reload" | "daemon-reexec" => {
            p.host.systemd.reload(|name| Definition::read(&p.host.fs, name));
            0
        }
        "reset-failed" => {
            for name in p.host.systemd.names() {
                p.host.systemd.change(&name, |unit| {
                    if unit.active == ActiveState::Failed {
                        (unit.active, unit.sub, unit.restarts) = (ActiveState::Inactive, "dead", 0);
                    }
                });
            }
            0
        }
        "reboot" => end(p, Ending::Reboot),
        "poweroff" | "halt" => end(p, Ending::Off),
        "is-system-running" => {
            p.line(if p.host.lock().booting { "starting" } else { "running" });
            i32::from(p.host.lock().booting)
        }
        _ => report(p, &verb, &units, &properties, &has),
    }
}

fn end(p: &Process, ending: Ending) -> i32 {
    p.host.end(ending);
    0
}

async fn change(p: &Process, verb: &str, units: &[String], no_block: bool) -> i32 {
    let mut status = 0;
    for unit in units {
        // These belong to the system itself; what matters is what they do when started.
        if unit == "systemd-sysctl.service" {
            boot::load_sysctl(&p.host);
            continue;
        }
        if [
            "systemd-modules-load.service",
            "systemd-resolved.service",
            "systemd-networkd.service",
            "ssh.service",
            "systemd-journald.service",
        ]
        .contains(&unit.as_str())
        {
            continue;
        }
        if verb == "try-restart" && p.host.systemd.unit(unit).active == ActiveState::Inactive {
            continue;
        }
        if verb != "start" {
            run::stop(&p.host, unit).await;
        }
        if let Err(error) = run::start(&p.host, unit) {
            p.complain(format!("Failed to {verb} {unit}: {error}"));
            status = 5;
            continue;
        }
        if no_block {
            continue;
        }
        let settled = |unit: &super::Unit| unit.active != ActiveState::Activating || unit.sub == "auto-restart";
        let unit_now = p.host.systemd.until(unit, settled).await;
        if unit_now.active == ActiveState::Failed || unit_now.sub == "auto-restart" {
            p.complain(format!(
                "Job for {unit} failed because the control process exited with error code.\nSee \"systemctl status {unit}\" and \"journalctl -xeu {unit}\" for details."
            ));
            status = 1;
        }
    }
    status
}

fn link(p: &Process, verb: &str, units: &[String]) -> i32 {
    let (fs, root, now) = (&p.host.fs, Credentials::ROOT, p.host.now());
    for unit in units {
        let masked = format!("/etc/systemd/system/{unit}");
        match verb {
            "mask" => {
                let _ = fs.remove(root, &masked);
                let _ = fs.link(root, "/dev/null", &masked, now);
                continue;
            }
            "unmask" => {
                if Definition::read(fs, unit).is_some_and(|definition| definition.masked) {
                    let _ = fs.remove(root, &masked);
                }
                continue;
            }
            _ => {}
        }
        let Some(definition) = Definition::read(fs, unit) else {
            return p.fail(format!("Failed to {verb} unit: Unit file {unit} does not exist."));
        };
        for path in unit::wanted_by(&definition, unit) {
            let _ = fs.remove(root, &path);
            if verb == "enable" {
                let _ = fs.make_directories(root, fs::parent(&path), 0o755, now);
                let _ = fs.link(root, &definition.path, &path, now);
                p.complain(format!("Created symlink {path} -> {}.", definition.path));
            }
        }
    }
    0
}

fn report(p: &Process, verb: &str, units: &[String], properties: &[String], has: &dyn Fn(&str) -> bool) -> i32 {
    let quiet = has("--quiet") || has("-q");
    let mut status = 0;
    for name in units {
        let unit = p.host.systemd.unit(name);
        let definition = Definition::read(&p.host.fs, name);
        match verb {
            "is-active" => {
                if !quiet {
                    p.line(unit.active.word());
                }
                if unit.active != ActiveState::Active {
                    status = if definition.is_none() { 4 } else { 3 };
                }
            }
            "is-failed" => {
                p.line(unit.active.word());
                status = i32::from(unit.active != ActiveState::Failed);
            }
            "is-enabled" => {
                let Some(definition) = &definition else {
                    if !quiet {
                        p.complain(format!("Failed to get unit file state for {name}: No such file or directory"));
                    }
                    status = 4;
                    continue;
                };
                let word = match (definition.masked, unit::is_enabled(&p.host.fs, name)) {
                    (true, _) => "masked",
                    (_, true) => "enabled",
                    _ if definition.words("Install.WantedBy").is_empty() => "static",
                    _ => "disabled",
                };
                if !quiet {
                    p.line(word);
                }
                status = i32::from(!["enabled", "static"].contains(&word));
            }
            "cat" => match &definition {
                Some(definition) => p.say(format!("# {}\n{}", definition.path, definition.text)),
                None => status = p.fail(format!("No files found for {name}.")),
            },
            "show" => show(p, name, definition.as_ref(), properties, has("--value")),
            _ => {
                p.line(format!("* {name}\n     Active: {} ({})", unit.active.word(), unit.sub));
                let entries = p.host.journal.entries();
                let own: Vec<_> = entries.iter().filter(|entry| entry.unit.as_deref() == Some(name)).collect();
                own.iter()
                    .rev()
                    .take(10)
                    .rev()
                    .for_each(|entry| p.line(entry.short(&p.host.hostname())));
                status = if unit.active == ActiveState::Active { 0 } else { 3 };
            }
        }
    }
    status
}

fn show(p: &Process, name: &str, definition: Option<&Definition>, properties: &[String], bare: bool) {
    let unit = p.host.systemd.unit(name);
    let state = match definition {
        None => String::new(),
        Some(definition) if definition.masked => "masked".to_owned(),
        Some(_) if unit::is_enabled(&p.host.fs, name) => "enabled".to_owned(),
        Some(_) => "disabled".to_owned(),
    };
    let stale = unit
        .definition
        .as_deref()
        .is_some_and(|loaded| definition.is_some_and(|file| file != loaded));
    let all = [
        ("Id", name.to_owned()),
        (
            "LoadState",
            if definition.is_some() || unit.definition.is_some() {
                "loaded"
            } else {
                "not-found"
            }
            .to_owned(),
        ),
        ("ActiveState", unit.active.word().to_owned()),
        ("SubState", unit.sub.to_owned()),
        ("Result", unit.result.to_owned()),
        ("NRestarts", unit.restarts.to_string()),
        ("MainPID", unit.pid.to_string()),
        ("ExecMainStatus", unit.status.to_string()),
        ("UnitFileState", state),
        (
            "FragmentPath",
            definition.map(|definition| definition.path.clone()).unwrap_or_default(),
        ),
        ("NeedDaemonReload", if stale { "yes" } else { "no" }.to_owned()),
    ];
    for (key, value) in all
        .iter()
        .filter(|(key, _)| properties.is_empty() || properties.iter().any(|wanted| wanted == key))
    {
        p.line(if bare { value.clone() } else { format!("{key}={value}") });
    }
}

pub(crate) fn journalctl(p: &Process, a: &[String]) -> i32 {
    if p.user.uid != 0 {
        p.complain("Hint: You are currently not seeing messages from other users and the system.");
        return 0;
    }
    let mut units = Vec::new();
    let (mut count, mut format) = (usize::MAX, "short".to_owned());
    let mut rest = a.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "-u" | "--unit" => units.push(full_name(rest.next().map(String::as_str).unwrap_or_default())),
            "-n" | "--lines" => count = rest.next().and_then(|text| text.parse().ok()).unwrap_or(10),
            "-o" | "--output" => format = rest.next().cloned().unwrap_or_default(),
            other => {
                if let Some(name) = other.strip_prefix("--unit=").or_else(|| other.strip_prefix("-u")) {
                    units.push(full_name(name));
                } else if let Some(text) = other.strip_prefix("--lines=").or_else(|| other.strip_prefix("-n")) {
                    count = text.parse().unwrap_or(10);
                } else if let Some(text) = other.strip_prefix("--output=").or_else(|| other.strip_prefix("-o")) {
                    format = text.to_owned();
                }
            }
        }
    }
    let entries = p.host.journal.entries();
    let wanted = |unit: &Option<String>| units.is_empty() || unit.as_ref().is_some_and(|unit| units.contains(unit));
    let shown: Vec<_> = entries.iter().filter(|entry| wanted(&entry.unit)).collect();
    let hostname = p.host.hostname();
    for entry in &shown[shown.len().saturating_sub(count)..] {
        p.line(if format == "cat" {
            entry.message.clone()
        } else {
            entry.short(&hostname)
        });
    }
    0
}
