//! Helm as it runs in a pod: the klipper-helm image, or a `helm` command. It reads what is mounted, and writes releases as Helm does.

mod apply;
mod controller;
mod invocation;
pub(crate) mod release;
mod values;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::control::{Round, condition, log_key, text};
use super::kinds;
use super::store::Key;
use invocation::{Invocation, Verb};

pub(crate) use controller::run as controller;

/// How long Helm waits for hooks.
const HOOKS_WAIT: Duration = Duration::from_secs(300);

/// What a program does next.
pub(crate) enum Step {
    Until(Instant),
    Exit { code: i32, message: String },
}

/// One run of Helm. Killed in the middle it leaves what it had written.
pub(crate) struct Run {
    invocation: Invocation,
    stage: Stage,
    due: Instant,
    log: Vec<String>,
}

enum Stage {
    Read,
    Record(Box<Work>),
    Crds(Box<Work>),
    Apply(Box<Work>),
    Hooks(Box<Work>, Instant),
    Uninstall,
}

/// A release on its way.
struct Work {
    record: Value,
    before: Option<Value>,
    hooks: Vec<Value>,
    /// klipper-helm ends with 0 whatever came of it.
    always_zero: bool,
}

impl Run {
    /// `None` for a pod that does not run Helm.
    pub fn of_pod(round: &Round<'_>, pod: &Value) -> Option<Self> {
        let invocation = Invocation::of_pod(round, pod)?;
        Some(Self {
            invocation,
            stage: Stage::Read,
            due: round.instant + round.pace.scale(round.world.helm_step()),
            log: Vec::new(),
        })
    }

    pub fn step(&mut self, round: &mut Round<'_>, pod: &Value) -> Step {
        if self.due > round.instant {
            return Step::Until(self.due);
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Read);
        let next = match allowed(round, pod) {
            Err(error) => Err(error),
            Ok(()) => self.advance(round, stage),
        };
        let exit = match next {
            Ok(None) => {
                self.due = round.instant + round.pace.scale(round.world.helm_step());
                return Step::Until(self.due);
            }
            Ok(Some(code)) => (code, String::new()),
            Err(error) => {
                self.log.push(format!("Error: {error}"));
                (1, error)
            }
        };
        round.store.set_log(&log_key(pod), self.log.join("\n") + "\n");
        let code = if self.invocation.always_zero { 0 } else { exit.0 };
        let message = if exit.1.is_empty() {
            self.log.last().cloned().unwrap_or_default()
        } else {
            format!("Error: {}", exit.1)
        };
        Step::Exit { code, message }
    }

    /// One part of the work; an exit code when there is nothing left.
    fn advance(&mut self, round: &mut Round<'_>, stage: Stage) -> Result<Option<i32>, String> {
        match stage {
            Stage::Read => self.read(round),
            Stage::Record(work) => {
                let word = if work.before.is_some() {
                    "pending-upgrade"
                } else {
                    "pending-install"
                };
                release::write(round, &self.invocation.namespace, &work.record, word, &self.invocation.labels);
                self.stage = Stage::Apply(work);
                Ok(None)
            }
            Stage::Crds(work) => {
                if apply::crds(round, &self.invocation)? {
                    self.stage = Stage::Record(work);
                } else {
                    self.stage = Stage::Crds(work);
                }
                Ok(None)
            }
            Stage::Apply(work) => match apply::objects(round, &self.invocation, &work.record, work.before.as_ref()) {
                Err(error) => self.fail(round, &work, &error),
                Ok(()) => {
                    apply::hooks(round, &work.record, &work.hooks);
                    self.stage = Stage::Hooks(work, round.instant + round.pace.scale(HOOKS_WAIT));
                    Ok(None)
                }
            },
            Stage::Hooks(work, until) => self.hooks(round, work, until),
            Stage::Uninstall => {
                let (namespace, name) = (self.invocation.namespace.clone(), self.invocation.name.clone());
                if let Some(record) = release::newest(round.store, &namespace, &name) {
                    apply::remove(round, &record);
                }
                release::remove(round, &namespace, &name);
                self.log.push(format!("release \"{name}\" uninstalled"));
                Ok(Some(0))
            }
        }
    }

    fn fail(&mut self, round: &mut Round<'_>, work: &Work, error: &str) -> Result<Option<i32>, String> {
        let word = if work.before.is_some() {
            "UPGRADE FAILED"
        } else {
            "INSTALLATION FAILED"
        };
        let mut record = work.record.clone();
        let what = if work.before.is_some() {
            format!("Upgrade \"{}\" failed: {error}", self.invocation.name)
        } else {
            format!("Release \"{}\" failed: {error}", self.invocation.name)
        };
        record["info"]["description"] = json!(what);
        release::write(round, &self.invocation.namespace, &record, "failed", &json!({}));
        self.invocation.always_zero |= work.always_zero;
        Err(format!("{word}: {error}"))
    }

    fn hooks(&mut self, round: &mut Round<'_>, work: Box<Work>, until: Instant) -> Result<Option<i32>, String> {
        let jobs: Vec<_> = work
            .hooks
            .iter()
            .filter_map(|hook| release::key_of(round.store, hook, &self.invocation.namespace))
            .filter(|key| *key.kind == kinds::JOBS)
            .filter_map(|key| round.store.get(&key))
            .collect();
        if jobs.iter().any(|job| condition(job, "Failed")) {
            return self.fail(
                round,
                &work,
                "failed post-install: 1 error occurred:\n\t* job failed: BackoffLimitExceeded",
            );
        }
        if !jobs.iter().all(|job| condition(job, "Complete")) {
            if until <= round.instant {
                return self.fail(
                    round,
                    &work,
                    "failed post-install: 1 error occurred:\n\t* timed out waiting for the condition",
                );
            }
            self.stage = Stage::Hooks(work, until);
            return Ok(None);
        }
        let namespace = self.invocation.namespace.clone();
        release::supersede(round, &namespace, &work.record);
        let mut record = work.record.clone();
        let plain = if work.before.is_some() {
            "Upgrade complete"
        } else {
            "Install complete"
        };
        record["info"]["description"] = json!(self.invocation.description.clone().unwrap_or_else(|| plain.to_owned()));
        release::write(round, &namespace, &record, "deployed", &json!({}));
        self.log.push(format!(
            "Release \"{}\" has been {}. Happy Helming!",
            self.invocation.name,
            if work.before.is_some() { "upgraded" } else { "installed" }
        ));
        Ok(Some(0))
    }

    /// Looks at the release and decides, as the entry script of klipper-helm or Helm itself does.
    fn read(&mut self, round: &mut Round<'_>) -> Result<Option<i32>, String> {
        let newest = release::newest(round.store, &self.invocation.namespace, &self.invocation.name);
        let status = newest.as_ref().map(|record| text(&record["info"]["status"]).to_owned());
        if self.invocation.verb == Verb::Uninstall {
            return self.uninstall(round, newest.as_ref());
        }
        let (Some(record), Some(status)) = (newest, status) else {
            return self.prepare(round, None);
        };
        if !self.invocation.is_klipper {
            if status.starts_with("pending-") {
                return Err("UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress".to_owned());
            }
            return self.prepare(round, Some(record));
        }
        if self
            .invocation
            .expected_revision
            .as_ref()
            .is_some_and(|wanted| wanted.parse().ok() != record["version"].as_u64())
        {
            self.log.push(format!(
                "Current release revision {} does not match expected revision {}",
                record["version"],
                self.invocation.expected_revision.clone().unwrap_or_default()
            ));
            return Ok(Some(0));
        }
        let interrupted = status.starts_with("pending-") || matches!(status.as_str(), "superseded" | "uninstalling");
        if interrupted {
            self.log.push(format!(
                "Previous helm job was interrupted, updating status from {status} to failed"
            ));
            release::write(round, &self.invocation.namespace, &record, "failed", &json!({}));
            if matches!(status.as_str(), "pending-upgrade" | "superseded") {
                return self.prepare(round, Some(record));
            }
        }
        if status == "deployed" {
            return self.prepare(round, Some(record));
        }
        match self.invocation.failure_policy.as_str() {
            "abort" => {
                self.log.push(
                    "Release status is 'failed' and failure policy is 'abort'; waiting for operator intervention".to_owned(),
                );
                Ok(Some(1))
            }
            "retry" => {
                self.invocation.always_zero = true;
                self.prepare(round, Some(record))
            }
            _ => {
                apply::remove(round, &record);
                release::remove(round, &self.invocation.namespace, &self.invocation.name);
                self.prepare(round, None)
            }
        }
    }

    fn uninstall(&mut self, round: &Round<'_>, newest: Option<&Value>) -> Result<Option<i32>, String> {
        let Some(record) = newest else {
            self.log.push("No helm chart installed; nothing to delete".to_owned());
            let name = &self.invocation.name;
            return if self.invocation.is_klipper {
                Ok(Some(0))
            } else {
                Err(format!("uninstall: Release not loaded: {name}: release: not found"))
            };
        };
        release::write(round, &self.invocation.namespace, record, "uninstalling", &json!({}));
        self.stage = Stage::Uninstall;
        Ok(None)
    }

    /// Loads, judges and renders the chart; nothing is written before that succeeds.
    fn prepare(&mut self, round: &mut Round<'_>, before: Option<Value>) -> Result<Option<i32>, String> {
        let word = if before.is_some() {
            "UPGRADE FAILED"
        } else {
            "INSTALLATION FAILED"
        };
        let rendered = apply::render(&self.invocation).map_err(|error| format!("{word}: {error}"))?;
        let chart = self.invocation.chart.as_ref().map_err(|error| format!("{word}: {error}"))?;
        let first = before
            .as_ref()
            .map_or_else(|| json!(round.now), |record| record["info"]["first_deployed"].clone());
        let revision = before
            .as_ref()
            .and_then(|record| record["version"].as_u64())
            .unwrap_or_default()
            + 1;
        let record = json!({
            "name": self.invocation.name, "namespace": self.invocation.namespace, "version": revision, "config": self.invocation.values,
            "manifest": rendered.manifest, "hooks": rendered.hooks, "apply_method": "ssa",
            "info": {"first_deployed": first, "last_deployed": round.now, "deleted": "", "description": if before.is_some() { "Preparing upgrade" } else { "Initial install underway" }, "status": "pending-install"},
            "chart": {"metadata": chart.metadata, "lock": null, "templates": [], "values": chart.values, "schema": null, "files": []},
        });
        let work = Box::new(Work {
            record,
            before,
            hooks: rendered.hooks,
            always_zero: self.invocation.always_zero,
        });
        self.stage = if self.invocation.skip_crds || chart.crds.is_empty() {
            Stage::Record(work)
        } else {
            Stage::Crds(work)
        };
        Ok(None)
    }
}

/// Helm runs with the account of its pod, which needs cluster-admin.
fn allowed(round: &Round<'_>, pod: &Value) -> Result<(), String> {
    let namespace = text(&pod["metadata"]["namespace"]);
    let account = pod["spec"]["serviceAccountName"].as_str().unwrap_or("default");
    let exists = round
        .store
        .get(&Key::new(&kinds::SERVICE_ACCOUNTS, namespace, account))
        .is_some();
    let subject = |one: &Value| one["kind"] == "ServiceAccount" && one["name"] == account && one["namespace"] == namespace;
    let bound = round.list(&kinds::CLUSTER_ROLE_BINDINGS).iter().any(|binding| {
        binding["roleRef"]["name"] == "cluster-admin" && binding["subjects"].as_array().into_iter().flatten().any(subject)
    });
    if exists && bound {
        return Ok(());
    }
    Err(format!(
        "query: failed to query with labels: secrets is forbidden: User \"system:serviceaccount:{namespace}:{account}\" cannot list resource \"secrets\" in API group \"\" in the namespace \"{namespace}\""
    ))
}
