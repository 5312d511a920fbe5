//! Faults as data: which call, which time, how likely, and what happens instead.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mainstay_net::Entropy;
use rand::RngExt;
use rand_chacha::ChaCha20Rng;
use serde::Deserialize;

use crate::die::Die;
use crate::http::Response;

/// One rule. A call must fit, then chance and count decide.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Rule {
    /// `POST /nodes/{node}/qemu`, `* /cluster/resources`, `task qmcreate`; `*` alone is every call.
    pub call: String,
    /// Only requests whose path contains this.
    #[serde(default)]
    pub path: Option<String>,
    /// From the nth fitting call on (1 is the first).
    #[serde(default = "first")]
    pub from: u64,
    /// So many times; absent = always.
    #[serde(default)]
    pub times: Option<u64>,
    /// From 0 to 1.
    #[serde(default = "certain")]
    pub chance: f64,
    pub then: Fault,
}

fn first() -> u64 {
    1
}

fn certain() -> f64 {
    1.0
}

/// What happens.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Refused before anything is done.
    Refuse { status: u16, reason: String },
    /// The connection is cut before anything is done.
    CutBefore,
    /// The call is carried out, its answer is lost.
    CutAfter,
    /// The call is carried out, and answered with this instead (596 `Connection timed out`).
    ReplaceAnswer { status: u16, reason: String },
    /// The call takes so much longer.
    Delay { seconds: f64 },
    /// The worker is killed after so long; its log has no end (`unexpected status`).
    KillTask { seconds: f64 },
    /// The worker fails after so long with this text.
    FailTask { seconds: f64, error: String },
    /// What the worker copies or downloads takes this long at least.
    SlowTask { seconds: f64 },
}

/// The rules in force.
pub struct Faults(Mutex<Inner>);

struct Inner {
    rules: Vec<(u64, Rule, u64, u64)>,
    next: u64,
    rng: ChaCha20Rng,
}

/// What the rules say about one request.
#[derive(Debug, Default)]
pub struct Fate {
    pub refuse: Option<Response>,
    pub cut_before: bool,
    pub cut_after: bool,
    pub replace: Option<Response>,
    pub delay: Duration,
}

/// What the rules say about one worker.
#[derive(Debug, Default)]
pub(crate) struct TaskFate {
    /// How long its copies and downloads take at least.
    pub copying: Duration,
    /// After how long it ends, and with what; nothing: it is killed.
    end: Option<(Duration, Option<Die>)>,
}

impl TaskFate {
    /// Resolves when a rule kills the worker or makes it fail; never if none does.
    pub async fn end(self) -> Option<Die> {
        let Some((after, die)) = self.end else {
            return std::future::pending().await;
        };
        tokio::time::sleep(after).await;
        die
    }
}

impl Faults {
    pub fn new(rules: Vec<Rule>, entropy: &Entropy) -> Self {
        let faults = Self(Mutex::new(Inner {
            rules: Vec::new(),
            next: 0,
            rng: entropy.fork("pve-sim faults").rng(),
        }));
        for rule in rules {
            faults.add(rule);
        }
        faults
    }

    fn with<R>(&self, act: impl FnOnce(&mut Inner) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a rule in force; the number takes it out again.
    pub fn add(&self, rule: Rule) -> u64 {
        self.with(|inner| {
            inner.next += 1;
            inner.rules.push((inner.next, rule, 0, 0));
            inner.next
        })
    }

    pub fn remove(&self, number: u64) {
        self.with(|inner| inner.rules.retain(|(n, ..)| *n != number));
    }

    pub fn clear(&self) {
        self.with(|inner| inner.rules.clear());
    }

    /// How often a rule struck.
    pub fn struck(&self, number: u64) -> u64 {
        self.with(|inner| {
            inner
                .rules
                .iter()
                .find(|(n, ..)| *n == number)
                .map_or(0, |(.., struck)| *struck)
        })
    }

    fn strike(&self, call: &str, path: &str) -> Vec<Fault> {
        self.with(|Inner { rules, rng, .. }| {
            let mut faults = Vec::new();
            for (_, rule, seen, struck) in rules.iter_mut() {
                if !rule.fits(call, path) {
                    continue;
                }
                *seen += 1;
                // Drawn whether or not it counts, so that one rule's luck does not depend on another's count.
                let lucky = rule.chance < 1.0 && rng.random::<f64>() >= rule.chance;
                if lucky || *seen < rule.from || rule.times.is_some_and(|times| *struck >= times) {
                    continue;
                }
                *struck += 1;
                faults.push(rule.then.clone());
            }
            faults
        })
    }

    pub(crate) fn fate(&self, call: &str, path: &str) -> Fate {
        let mut fate = Fate::default();
        for fault in self.strike(call, path) {
            match fault {
                Fault::Refuse { status, reason } => fate.refuse = Some(Response::plain(status, &reason, "")),
                Fault::CutBefore => fate.cut_before = true,
                Fault::CutAfter => fate.cut_after = true,
                Fault::ReplaceAnswer { status, reason } => fate.replace = Some(Response::plain(status, &reason, "")),
                Fault::Delay { seconds } => fate.delay += Duration::from_secs_f64(seconds),
                Fault::KillTask { .. } | Fault::FailTask { .. } | Fault::SlowTask { .. } => {}
            }
        }
        fate
    }

    /// Of several ends the first counts.
    pub(crate) fn task_fate(&self, kind: &str, id: &str) -> TaskFate {
        let mut fate = TaskFate::default();
        for fault in self.strike(&format!("task {kind}"), id) {
            let end = match fault {
                Fault::KillTask { seconds } => (seconds, None),
                Fault::FailTask { seconds, error } => (seconds, Some(Die::new(error))),
                Fault::SlowTask { seconds } => {
                    fate.copying = Duration::from_secs_f64(seconds);
                    continue;
                }
                _ => continue,
            };
            fate.end.get_or_insert((Duration::from_secs_f64(end.0), end.1));
        }
        fate
    }
}

impl Rule {
    fn fits(&self, call: &str, path: &str) -> bool {
        let named = match self.call.strip_prefix("* ") {
            Some(template) => call.split_once(' ').is_some_and(|(_, t)| t == template),
            None => self.call == "*" && !call.starts_with("task ") || self.call == call,
        };
        named && self.path.as_ref().is_none_or(|part| path.contains(part.as_str()))
    }
}
