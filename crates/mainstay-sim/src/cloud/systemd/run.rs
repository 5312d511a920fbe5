//! How units start, run and end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::unit::{self, Definition};
use super::{ActiveState, Unit};
use crate::cloud::host::Host;
use crate::cloud::shell::{Output, Process, User};
use crate::cloud::tools;

/// Starts what is enabled, when the machine boots.
pub(crate) async fn boot(host: &Arc<Host>) {
    for name in unit::enabled(&host.fs) {
        let _ = start(host, &name);
    }
}

/// Begins to start a unit; an error is what `systemctl start` says at once.
pub(crate) fn start(host: &Arc<Host>, name: &str) -> Result<(), String> {
    let running = host.systemd.unit(name);
    if running.stop.is_some() {
        return Ok(());
    }
    let definition = Definition::read(&host.fs, name).ok_or_else(|| format!("Unit {name} not found."))?;
    if definition.masked {
        return Err(format!("Failed to start {name}: Unit {name} is masked."));
    }
    if !name.ends_with(".service") {
        host.systemd
            .change(name, |unit| (unit.active, unit.sub) = (ActiveState::Active, "active"));
        return Ok(());
    }
    let definition = Arc::new(definition);
    let stop = CancellationToken::new();
    let life = host.site.next_serial();
    host.systemd.change(name, |unit| {
        *unit = Unit {
            active: ActiveState::Activating,
            sub: "start",
            result: "success",
            definition: Some(definition),
            stop: Some(stop.clone()),
            life,
            ..Unit::default()
        };
    });
    let task = Life {
        host: Arc::clone(host),
        name: name.to_owned(),
        life,
        stop,
    };
    host.spawn(async move { task.run().await });
    Ok(())
}

/// Stops a unit and waits until its process is gone.
pub(crate) async fn stop(host: &Arc<Host>, name: &str) {
    let Some(stop) = host.systemd.unit(name).stop else {
        host.systemd
            .change(name, |unit| (unit.active, unit.sub) = (ActiveState::Inactive, "dead"));
        return;
    };
    stop.cancel();
    host.systemd.until(name, |unit| unit.stop.is_none()).await;
}

struct Life {
    host: Arc<Host>,
    name: String,
    life: u64,
    stop: CancellationToken,
}

/// How one run of the main process ended.
enum Ended {
    Exited(i32),
    Stopped,
    Skipped,
    TimedOut,
}

impl Life {
    fn change(&self, change: impl FnOnce(&mut Unit)) {
        self.host.systemd.change(&self.name, |unit| {
            if unit.life == self.life {
                change(unit);
            }
        });
    }

    fn log(&self, text: &str) {
        self.host.journal.write(&self.host, Some(&self.name), "systemd", text);
    }

    async fn run(self) {
        loop {
            let Some(definition) = self.host.systemd.unit(&self.name).definition else {
                return;
            };
            let ended = self.once(&definition).await;
            let (status, result) = match ended {
                Ended::Stopped => {
                    for command in definition.values("Service.ExecStopPost") {
                        self.command(&definition, &command, None).await;
                    }
                    self.log(&format!("Stopped {}.", self.name));
                    return self.finish(ActiveState::Inactive, "success");
                }
                Ended::Skipped => return self.finish(ActiveState::Inactive, "exec-condition"),
                Ended::Exited(0) if definition.kind() == "oneshot" => {
                    if definition.value("Service.RemainAfterExit").is_some_and(|value| truth(&value)) {
                        self.change(|unit| (unit.active, unit.sub) = (ActiveState::Active, "exited"));
                        self.stop.cancelled().await;
                    }
                    return self.finish(ActiveState::Inactive, "success");
                }
                Ended::Exited(0) => (0, "success"),
                Ended::Exited(status) => (status, "exit-code"),
                Ended::TimedOut => (143, "timeout"),
            };
            self.change(|unit| unit.status = status);
            self.log(&format!("{}: Main process exited, code=exited, status={status}", self.name));
            if !restarts(&definition, status) {
                let active = if status == 0 {
                    ActiveState::Inactive
                } else {
                    ActiveState::Failed
                };
                self.log(&format!("{}: Failed with result '{result}'.", self.name));
                return self.finish(active, result);
            }
            self.change(|unit| (unit.active, unit.sub, unit.result) = (ActiveState::Activating, "auto-restart", result));
            let pause = definition
                .value("Service.RestartSec")
                .and_then(|text| seconds(&text))
                .unwrap_or(Duration::from_millis(100));
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return self.finish(ActiveState::Inactive, "success"),
                () = tokio::time::sleep(pause) => {}
            }
            self.change(|unit| unit.restarts += 1);
            self.log(&format!(
                "{}: Scheduled restart job, restart counter is at {}.",
                self.name,
                self.host.systemd.unit(&self.name).restarts
            ));
        }
    }

    fn finish(&self, active: ActiveState, result: &'static str) {
        self.change(|unit| {
            unit.active = active;
            unit.sub = if active == ActiveState::Failed { "failed" } else { "dead" };
            unit.result = result;
            unit.pid = 0;
            unit.stop = None;
        });
    }

    /// Conditions, then the commands in their order.
    async fn once(&self, definition: &Definition) -> Ended {
        self.change(|unit| (unit.active, unit.sub) = (ActiveState::Activating, "start"));
        for (key, wanted) in [("Unit.ConditionPathExists", true), ("Unit.AssertPathExists", true)] {
            for path in definition.values(key) {
                let (path, wanted) = path.strip_prefix('!').map_or((path.as_str(), wanted), |path| (path, !wanted));
                if self.host.fs.exists(path) != wanted {
                    self.log(&format!(
                        "{} was skipped because of an unmet condition check ({key}={path}).",
                        self.name
                    ));
                    return Ended::Skipped;
                }
            }
        }
        let commands = self.commands(definition);
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Ended::Stopped,
            ended = commands => ended,
        }
    }

    async fn commands(&self, definition: &Definition) -> Ended {
        for command in definition.values("Service.ExecCondition") {
            match self.command(definition, &command, None).await {
                0 => {}
                status @ (1..=254) => {
                    self.log(&format!("{}: Skipped due to 'exec-condition' (status {status}).", self.name));
                    return Ended::Skipped;
                }
                status => return Ended::Exited(status),
            }
        }
        for command in definition.values("Service.ExecStartPre") {
            match self.command(definition, &command, None).await {
                0 => {}
                status => return Ended::Exited(status),
            }
        }
        let limit = definition
            .value("Service.TimeoutStartSec")
            .map_or(Some(Duration::from_secs(90)), |text| seconds(&text));
        let limit = limit.filter(|limit| !limit.is_zero());
        match definition.kind().as_str() {
            // A oneshot has no limit unless it says one.
            "oneshot" => self.oneshot(definition).await,
            "notify" => self.notify(definition, limit).await,
            _ => {
                self.started(definition).await;
                Ended::Exited(self.main(definition, None).await)
            }
        }
    }

    async fn oneshot(&self, definition: &Definition) -> Ended {
        for command in definition.values("Service.ExecStart") {
            let status = self.command(definition, &command, None).await;
            if status != 0 {
                return Ended::Exited(status);
            }
        }
        for command in definition.values("Service.ExecStartPost") {
            self.command(definition, &command, None).await;
        }
        Ended::Exited(0)
    }

    async fn notify(&self, definition: &Definition, limit: Option<Duration>) -> Ended {
        let (ready, mut told) = watch::channel(false);
        let main = self.main(definition, Some(Arc::new(ready)));
        tokio::pin!(main);
        let too_late = async {
            match limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let is_ready = async {
            if told.wait_for(|ready| *ready).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            status = &mut main => return Ended::Exited(status),
            () = is_ready => {}
            () = too_late => return Ended::TimedOut,
        }
        let post = self.started(definition);
        let (status, ()) = futures::join!(main, post);
        Ended::Exited(status)
    }

    async fn started(&self, definition: &Definition) {
        self.change(|unit| (unit.active, unit.sub) = (ActiveState::Active, "running"));
        self.log(&format!("Started {}.", self.name));
        for command in definition.values("Service.ExecStartPost") {
            self.command(definition, &command, None).await;
        }
    }

    async fn main(&self, definition: &Definition, ready: Option<Arc<watch::Sender<bool>>>) -> i32 {
        let pid = u32::try_from(700 + self.host.site.next_serial() % 30_000).unwrap_or(700);
        self.change(|unit| unit.pid = pid);
        match definition.value("Service.ExecStart") {
            Some(command) => self.command(definition, &command, ready).await,
            None => 0,
        }
    }

    async fn command(&self, definition: &Definition, text: &str, ready: Option<Arc<watch::Sender<bool>>>) -> i32 {
        let (words, ignored) = unit::command_line(text);
        let user = definition
            .value("Service.User")
            .and_then(|name| User::find(&self.host, &name))
            .unwrap_or_else(User::root);
        let mut process = Process::new(&self.host, user);
        process.cwd = definition.value("Service.WorkingDirectory").unwrap_or_else(|| "/".to_owned());
        process.unit = Some(self.name.clone());
        process.ready = ready;
        let identifier = words
            .first()
            .map(|word| crate::cloud::fs::name(word).to_owned())
            .unwrap_or_default();
        process.outputs.insert(1, Output::Journal(identifier.clone()));
        process.outputs.insert(2, Output::Journal(identifier));
        for file in definition.values("Service.EnvironmentFile") {
            let text = self.host.fs.text(file.trim_start_matches('-')).unwrap_or_default();
            let pairs = text
                .lines()
                .filter(|line| !line.starts_with('#'))
                .filter_map(|line| line.split_once('='));
            process
                .env
                .extend(pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().trim_matches('"').to_owned())));
        }
        for pairs in definition.values("Service.Environment") {
            let (pairs, _) = unit::command_line(&pairs);
            process.env.extend(
                pairs
                    .iter()
                    .filter_map(|pair| pair.split_once('='))
                    .map(|(name, value)| (name.to_owned(), value.to_owned())),
            );
        }
        let expand = |word: String| match word.strip_prefix('$').map(|name| name.trim_matches(['{', '}'])) {
            Some(name) if process.env.contains_key(name) => process.env[name].clone(),
            _ => word.replace("%n", &self.name),
        };
        let words = words.into_iter().map(expand).collect();
        let status = tools::execute(process, words).await;
        if ignored { 0 } else { status }
    }
}

fn truth(text: &str) -> bool {
    ["yes", "true", "1", "on"].contains(&text)
}

/// `5`, `5s`, `500ms`, `2min`, `infinity`
fn seconds(text: &str) -> Option<Duration> {
    let (number, scale) = [("ms", 0.001), ("min", 60.0), ("s", 1.0), ("h", 3600.0)]
        .into_iter()
        .find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))
        .unwrap_or((text, 1.0));
    Duration::try_from_secs_f64(number.trim().parse::<f64>().ok()? * scale).ok()
}

fn restarts(definition: &Definition, status: i32) -> bool {
    match definition.value("Service.Restart").as_deref() {
        Some("always") => true,
        Some("on-failure" | "on-abnormal") => status != 0,
        Some("on-success") => status == 0,
        _ => false,
    }
}
