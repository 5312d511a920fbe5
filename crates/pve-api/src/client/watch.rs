//! Waiting for tasks: one poll per host answers for all of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::Client;
use crate::calls::task::{self, TaskEnd};
use crate::error::{Class, Error, TaskFailure, Unknown};
use crate::value::{Host, Upid};

/// A task just begun is looked at this soon, and an old one that rarely.
const SOON: Duration = Duration::from_millis(200);
const RARELY: Duration = Duration::from_secs(2);

/// A task is looked at again when it is a quarter older.
const AGEING: u32 = 4;

/// Polls of a host that may come at once, before they are held to one per second. Enough for a few short tasks one after another.
const BURST: f64 = 10.0;

/// A fresh task may be unknown for a moment to another host than its own.
const FRESH: Duration = Duration::from_secs(10);

/// How many lines of a failed task's log are worth showing.
const TAIL: u64 = 20;

/// A task that ended well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskDone {
    pub upid: Upid,
    /// Lines in its log that begin with `WARN:`.
    pub warnings: u32,
}

/// Who waits for what.
#[derive(Default)]
pub(super) struct Watch(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    next: u64,
    hosts: BTreeMap<Host, HostWatch>,
    /// Kept between pollers: many short tasks must not add up to many polls.
    budgets: BTreeMap<Host, Budget>,
}

/// The tasks of a host. There is an entry exactly as long as its poller runs.
struct HostWatch {
    tasks: BTreeMap<u64, Watched>,
    changed: Arc<Notify>,
}

struct Watched {
    upid: Upid,
    begun: Instant,
    looked: Instant,
    /// Whether the list of active tasks shows it. It does not show other people's to a token without `Sys.Audit`.
    listed: bool,
    told: oneshot::Sender<Result<TaskEnd, Arc<Error>>>,
}

impl Watched {
    /// The older a task, the longer it may take to notice its end.
    fn due(&self) -> Instant {
        self.looked + ((self.looked - self.begun) / AGEING).clamp(SOON, RARELY)
    }
}

impl Client {
    /// Waits for the end of a task. It may be given up at any time; the task goes on.
    pub async fn wait(&self, upid: &Upid) -> Result<TaskDone, Error> {
        let end = self.end_of(upid).await.map_err(|source| unknown(upid, source))?;
        let end = if end == TaskEnd::Unexpected {
            self.look_again(upid).await?
        } else {
            end
        };
        match end {
            TaskEnd::Ok => Ok(TaskDone {
                upid: upid.clone(),
                warnings: 0,
            }),
            TaskEnd::Warnings(warnings) => Ok(TaskDone {
                upid: upid.clone(),
                warnings,
            }),
            TaskEnd::Unexpected => Err(self.failure(upid, "unexpected status".to_owned()).await),
            TaskEnd::Failed(exitstatus) => Err(self.failure(upid, exitstatus).await),
        }
    }

    async fn end_of(&self, upid: &Upid) -> Result<TaskEnd, Arc<Error>> {
        loop {
            let (waiter, told) = self.watch(upid);
            let told = told.await;
            drop(waiter);
            // A poller that ended without a word lost its runtime's favour only: watch anew.
            if let Ok(end) = told {
                return end;
            }
        }
    }

    /// The task's process ended without a last line in its log, or we looked too early. The log decides, since PVE remembers the early
    /// look.
    async fn look_again(&self, upid: &Upid) -> Result<TaskEnd, Error> {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let status = self
            .call(task::status(upid))
            .await
            .map_err(|error| unknown(upid, Arc::new(error)))?;
        let end = status.end().unwrap_or(TaskEnd::Unexpected);
        if end != TaskEnd::Unexpected {
            return Ok(end);
        }
        let lines = self.log_tail(upid, 1).await.unwrap_or_default();
        Ok(lines
            .last()
            .and_then(|line| TaskEnd::of_log_line(line))
            .unwrap_or(TaskEnd::Unexpected))
    }

    async fn failure(&self, upid: &Upid, exitstatus: String) -> Error {
        let tail = self.log_tail(upid, TAIL).await.unwrap_or_default();
        Error::TaskFailed(Box::new(TaskFailure::new(upid.clone(), exitstatus, tail)))
    }

    /// Adds a task to its host's poll, which begins with the first one.
    fn watch(&self, upid: &Upid) -> (Waiter, oneshot::Receiver<Result<TaskEnd, Arc<Error>>>) {
        let (told, listen) = oneshot::channel();
        let now = Instant::now();
        let watched = Watched {
            upid: upid.clone(),
            begun: now,
            looked: now,
            listed: true,
            told,
        };
        let mut waiting = self.0.watch.lock();
        let id = waiting.next;
        waiting.next += 1;
        let host = upid.host().clone();
        if let Some(polled) = waiting.hosts.get_mut(&host) {
            polled.tasks.insert(id, watched);
            polled.changed.notify_one();
        } else {
            let changed = Arc::new(Notify::new());
            let budget = waiting.budgets.get(&host).copied().unwrap_or_else(Budget::new);
            let tasks = BTreeMap::from([(id, watched)]);
            waiting.hosts.insert(
                host.clone(),
                HostWatch {
                    tasks,
                    changed: Arc::clone(&changed),
                },
            );
            tokio::spawn(Poller::new(self.clone(), host.clone(), changed, budget).run());
        }
        (
            Waiter {
                client: self.clone(),
                host,
                id,
            },
            listen,
        )
    }
}

fn unknown(upid: &Upid, source: Arc<Error>) -> Error {
    let call = task::status(upid).request.name();
    Error::Unknown {
        call,
        source: Unknown::Task {
            upid: Box::new(upid.clone()),
            source,
        },
    }
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes its task off the poll when nobody waits any more.
struct Waiter {
    client: Client,
    host: Host,
    id: u64,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.client.0.watch.lock();
        if let Some(host) = waiting.hosts.get_mut(&self.host) {
            host.tasks.remove(&self.id);
            host.changed.notify_one();
        }
    }
}

/// Polls one host for as long as somebody waits for a task on it.
struct Poller {
    client: Client,
    host: Host,
    changed: Arc<Notify>,
    budget: Budget,
    /// Since when the host gives no answer.
    silent: Option<Instant>,
}

impl Poller {
    fn new(client: Client, host: Host, changed: Arc<Notify>, budget: Budget) -> Self {
        Self {
            client,
            host,
            changed,
            budget,
            silent: None,
        }
    }

    async fn run(mut self) {
        while let Some(due) = self.due() {
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(due.max(self.budget.ready())) => self.poll().await,
            }
        }
    }

    /// When to look next; `None` when nobody waits, and then the entry is gone too.
    fn due(&self) -> Option<Instant> {
        let mut waiting = self.client.0.watch.lock();
        let due = waiting
            .hosts
            .get(&self.host)
            .and_then(|host| host.tasks.values().map(Watched::due).min());
        if due.is_none() {
            waiting.hosts.remove(&self.host);
            waiting.budgets.insert(self.host.clone(), self.budget);
        }
        due
    }

    /// The list of active tasks answers for all that it shows; those that are not in it are asked about one by one.
    async fn poll(&mut self) {
        let tasks = self.tasks();
        let listed = tasks.iter().filter(|(_, _, listed)| *listed).count();
        let active = if listed > 1 { self.active().await } else { Ok(Vec::new()) };
        let active = match active {
            Ok(active) => active,
            Err(error) => return self.missed(tasks.into_iter().map(|(id, _, _)| id).collect(), Arc::new(error)),
        };
        let (running, gone): (Vec<_>, Vec<_>) = tasks.into_iter().partition(|(_, upid, _)| active.contains(upid));
        for (id, ..) in running {
            self.runs(id, true);
        }
        let statuses = gone.iter().map(|(_, upid, _)| self.client.call(task::status(upid)));
        let statuses = futures::future::join_all(statuses).await;
        for ((id, ..), status) in gone.into_iter().zip(statuses) {
            self.budget.spend();
            match status {
                Ok(status) => match status.end() {
                    Some(end) => self.tell(id, Ok(end)),
                    // Alone it was not looked for in the list.
                    None => self.runs(id, listed <= 1),
                },
                Err(error) => self.missed(vec![id], Arc::new(error)),
            }
        }
    }

    fn tasks(&self) -> Vec<(u64, Upid, bool)> {
        let waiting = self.client.0.watch.lock();
        let tasks = waiting.hosts.get(&self.host).map(|host| host.tasks.iter());
        tasks
            .into_iter()
            .flatten()
            .map(|(id, task)| (*id, task.upid.clone(), task.listed))
            .collect()
    }

    async fn active(&mut self) -> Result<Vec<Upid>, Error> {
        self.budget.spend();
        let page = self.client.call(task::active(&self.host)).await?;
        Ok(page
            .items
            .into_iter()
            .filter(|entry| entry.end().is_none())
            .map(|entry| entry.upid)
            .collect())
    }

    fn runs(&mut self, id: u64, listed: bool) {
        self.silent = None;
        self.looked(id, |task| task.listed &= listed);
    }

    fn looked(&self, id: u64, note: impl FnOnce(&mut Watched)) {
        let mut waiting = self.client.0.watch.lock();
        if let Some(task) = waiting.hosts.get_mut(&self.host).and_then(|host| host.tasks.get_mut(&id)) {
            task.looked = Instant::now();
            note(task);
        }
    }

    /// A look that showed nothing. A silent host gets time to come back; what will not change is told at once.
    fn missed(&mut self, ids: Vec<u64>, error: Arc<Error>) {
        let now = Instant::now();
        let silent_for = |since: Instant| now - since;
        for id in ids {
            let patient = if is_out_of_reach(&error) {
                silent_for(*self.silent.get_or_insert(now)) < self.client.0.options.task_patience
            } else {
                error.class() == Some(&Class::Missing) && self.age(id) < FRESH
            };
            if patient {
                self.looked(id, |_| {});
            } else {
                self.tell(id, Err(Arc::clone(&error)));
            }
        }
    }

    fn age(&self, id: u64) -> Duration {
        let waiting = self.client.0.watch.lock();
        let task = waiting.hosts.get(&self.host).and_then(|host| host.tasks.get(&id));
        task.map(|task| task.begun.elapsed()).unwrap_or_default()
    }

    fn tell(&mut self, id: u64, end: Result<TaskEnd, Arc<Error>>) {
        if end.is_ok() {
            self.silent = None;
        }
        let task = self
            .client
            .0
            .watch
            .lock()
            .hosts
            .get_mut(&self.host)
            .and_then(|host| host.tasks.remove(&id));
        if let Some(task) = task {
            // The waiter may have left just now.
            let _ = task.told.send(end);
        }
    }
}

/// Whether a task's state cannot be told because its host, or everything, is out of reach for the moment.
fn is_out_of_reach(error: &Error) -> bool {
    matches!(error, Error::NotSent { .. } | Error::Unknown { .. }) || error.class() == Some(&Class::Busy)
}

/// Holds the polls of a host to one per second, a few at the start apart.
#[derive(Clone, Copy)]
struct Budget {
    tokens: f64,
    at: Instant,
}

impl Budget {
    fn new() -> Self {
        Self {
            tokens: BURST,
            at: Instant::now(),
        }
    }

    fn spend(&mut self) {
        let now = Instant::now();
        self.tokens = (self.tokens + (now - self.at).as_secs_f64()).min(BURST) - 1.0;
        self.at = now;
    }

    /// When there is a whole token. Reading how a task ended is never put off, so that there may be a debt.
    fn ready(&self) -> Instant {
        self.at + Duration::from_secs_f64((1.0 - self.tokens).max(0.0))
    }
}
