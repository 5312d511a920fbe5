//! Waiting for tasks: who waits for what, and when each task is looked at.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::Client;
use super::forecast::{Durations, Forecast, tells_percentage};
use super::limit::Budget;
use super::poll::Poller;
use super::progress::{LogReader, Progress};
use crate::calls::task::{self, TaskEnd};
use crate::error::{Error, TaskFailure, Unknown};
use crate::value::{Host, StorageId, Upid};

/// How many lines of a failed task's log are worth showing.
const TAIL: u64 = 20;

/// The first read of a copy's log, and the interval of the next ones of the same kind and storage.
const FIRST_LOG: Duration = Duration::from_secs(2);
const NEXT_LOG: Duration = Duration::from_secs(5);

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
pub(super) struct Waiting {
    next: u64,
    pub(super) hosts: BTreeMap<Host, HostWatch>,
    /// Kept between pollers: many short tasks must not add up to many polls.
    budgets: BTreeMap<Host, Budget>,
    pub(super) durations: Durations,
}

impl Waiting {
    pub(super) fn budget(&mut self, host: &Host) -> &mut Budget {
        self.budgets.entry(host.clone()).or_insert_with(Budget::new)
    }

    /// When a task of a host is to be looked at next; `None` without a task.
    pub(super) fn look_due(&self, host: &Host) -> Option<Instant> {
        let host = self.hosts.get(host)?;
        let due = |task| self.due(host, task);
        host.tasks.values().map(due).min()
    }

    pub(super) fn due(&self, host: &HostWatch, task: &Watched) -> Instant {
        if task.log.ended {
            return task.looked;
        }
        task.begun + self.forecast(host, task).next(task.looked - task.begun)
    }

    /// By its own log, else by the log of a task of the same kind and storage, else by those that ended before, else by its kind.
    pub(super) fn forecast(&self, host: &HostWatch, task: &Watched) -> Forecast {
        let sibling = || {
            let (id, length) = host.lengths.get(&task.group)?;
            host.tasks.contains_key(id).then_some(*length)
        };
        let length = task.log.forecast(task.begun).or_else(sibling);
        length
            .map(Forecast::measured)
            .or_else(|| self.durations.forecast(&task.class))
            .unwrap_or_else(|| Forecast::constant(task.upid.kind()))
    }
}

/// The tasks of a host. There is an entry exactly as long as its poller runs.
pub(super) struct HostWatch {
    pub(super) tasks: BTreeMap<u64, Watched>,
    /// For each group of alike tasks: one whose log was read, and how long it will take in all.
    pub(super) lengths: BTreeMap<String, (u64, Duration)>,
    /// For each kind and storage: when a log was read last.
    pub(super) logs: BTreeMap<String, Instant>,
    changed: Arc<Notify>,
}

impl HostWatch {
    /// The next log to read, and when.
    pub(super) fn log_due(&self) -> Option<(Instant, u64)> {
        let due = |(id, task): (&u64, &Watched)| Some((self.log_due_of(task)?, task.log.read_at, *id));
        self.tasks.iter().filter_map(due).min().map(|(due, _, id)| (due, id))
    }

    /// Alike tasks take turns, so that one log is read for all. A waiter that wants progress has it read until it shows a percentage.
    fn log_due_of(&self, task: &Watched) -> Option<Instant> {
        let in_turn = tells_percentage(task.upid.kind()).then(|| {
            let first = task.begun + FIRST_LOG;
            self.logs.get(&task.class).map_or(first, |last| first.max(*last + NEXT_LOG))
        });
        let wanted = task.report.as_ref().filter(|_| !task.log.shows_percentage());
        let wanted = wanted.map(|report| task.log.read_at.unwrap_or(task.begun) + report.every);
        in_turn.into_iter().chain(wanted).min()
    }
}

/// Where the progress of a task is told, and how often at most.
pub(super) struct Report {
    pub(super) every: Duration,
    pub(super) sender: mpsc::UnboundedSender<Progress>,
}

pub(super) struct Watched {
    pub(super) upid: Upid,
    /// Kind and storage, for the durations of this run.
    pub(super) class: String,
    /// The same, but each download is of its own size.
    pub(super) group: String,
    pub(super) begun: Instant,
    pub(super) looked: Instant,
    /// Whether a look showed it running.
    pub(super) seen: bool,
    /// Whether the list of active tasks shows it. It does not show other people's to a token without `Sys.Audit`.
    pub(super) listed: bool,
    /// When its own status was read last.
    pub(super) proved: Instant,
    pub(super) log: LogReader,
    pub(super) report: Option<Report>,
    pub(super) reported: Option<Instant>,
    pub(super) told: oneshot::Sender<Result<TaskEnd, Arc<Error>>>,
}

impl Watched {
    fn new(upid: &Upid, storage: Option<&StorageId>, report: Option<Report>, told: Told) -> Self {
        let now = Instant::now();
        let class = storage.map_or_else(|| upid.kind().to_owned(), |storage| format!("{}@{storage}", upid.kind()));
        let group = match upid.kind() {
            "download" => format!("{class}:{}", upid.subject()),
            _ => class.clone(),
        };
        Self {
            upid: upid.clone(),
            class,
            group,
            begun: now,
            looked: now,
            seen: false,
            listed: true,
            proved: now,
            log: LogReader::default(),
            report,
            reported: None,
            told,
        }
    }

    /// Tells progress to a waiter that wants it.
    pub(super) fn tell_progress(&mut self, now: Instant, progress: Progress) {
        let Some(report) = &self.report else { return };
        let is_time = |last: Instant| now - last >= report.every;
        if self.reported.is_none_or(is_time) {
            self.reported = Some(now);
            // The waiter may have left just now.
            let _ = report.sender.send(progress);
        }
    }
}

type Told = oneshot::Sender<Result<TaskEnd, Arc<Error>>>;

impl Client {
    /// Waits for the end of a task. It may be given up at any time; the task goes on.
    pub async fn wait(&self, upid: &Upid) -> Result<TaskDone, Error> {
        self.wait_as(upid, None, None).await
    }

    pub(super) async fn wait_as(
        &self,
        upid: &Upid,
        storage: Option<&StorageId>,
        report: Option<Report>,
    ) -> Result<TaskDone, Error> {
        let end = self
            .end_of(upid, storage, report)
            .await
            .map_err(|source| unknown(upid, source))?;
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

    async fn end_of(&self, upid: &Upid, storage: Option<&StorageId>, mut report: Option<Report>) -> Result<TaskEnd, Arc<Error>> {
        loop {
            let (waiter, told) = self.watch(upid, storage, report.take());
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
    fn watch(
        &self,
        upid: &Upid,
        storage: Option<&StorageId>,
        report: Option<Report>,
    ) -> (Waiter, oneshot::Receiver<Result<TaskEnd, Arc<Error>>>) {
        let (told, listen) = oneshot::channel();
        let watched = Watched::new(upid, storage, report, told);
        let mut waiting = self.0.watch.lock();
        let id = waiting.next;
        waiting.next += 1;
        let host = upid.host().clone();
        if let Some(polled) = waiting.hosts.get_mut(&host) {
            polled.tasks.insert(id, watched);
            polled.changed.notify_one();
        } else {
            let changed = Arc::new(Notify::new());
            let polled = HostWatch {
                tasks: BTreeMap::from([(id, watched)]),
                lengths: BTreeMap::new(),
                logs: BTreeMap::new(),
                changed: Arc::clone(&changed),
            };
            waiting.hosts.insert(host.clone(), polled);
            tokio::spawn(Poller::new(self.clone(), host.clone(), changed).run());
        }
        let client = self.clone();
        (Waiter { client, host, id }, listen)
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
    pub(super) fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stops the polling of its task when the last waiter is dropped.
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
