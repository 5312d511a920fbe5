//! Looks at the tasks of one host: one list answers for all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Client;
use super::forecast::CLOSEST;
use super::progress::LINES;
use super::watch::{HostWatch, Watched};
use crate::calls::task::{self, TaskEnd, TaskEntry, TaskFilter};
use crate::error::{Class, Error};
use crate::value::{Host, Upid};

/// A fresh task may be unknown for a moment to another host than its own.
const FRESH: Duration = Duration::from_secs(10);

/// Looks keep so many requests of the budget for themselves before a log is read.
const RESERVED: f64 = 4.0;

/// PVE's list is a file that a daemon updates when a task ends. If that daemon was restarted, the list shows the task as running for longer,
/// so a task that takes twice its time is also asked for itself, this often.
const DOUBTED: Duration = Duration::from_secs(30);

/// More than a host runs at once, and than ends between two looks.
const TASKS: u32 = 500;

/// Polls one host for as long as a task on it has a waiter.
pub(super) struct Poller {
    client: Client,
    host: Host,
    changed: Arc<Notify>,
    /// The last look, which answered for all tasks.
    looked: Option<Instant>,
    /// Since when the host gives no answer.
    silent: Option<Instant>,
}

/// A task as a look sees it.
struct Subject {
    id: u64,
    upid: Upid,
    listed: bool,
    due: bool,
    /// Whether its own status is to be read although the list shows it.
    doubted: bool,
}

impl Poller {
    pub(super) fn new(client: Client, host: Host, changed: Arc<Notify>) -> Self {
        Self {
            client,
            host,
            changed,
            looked: None,
            silent: None,
        }
    }

    pub(super) async fn run(mut self) {
        while let Some(due) = self.next_event() {
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(due) => self.step().await,
            }
        }
    }

    /// When to do something next; `None` when no task has a waiter, and then the entry is gone too.
    fn next_event(&self) -> Option<Instant> {
        let mut waiting = self.client.0.watch.lock();
        let Some(look) = waiting.look_due(&self.host) else {
            waiting.hosts.remove(&self.host);
            return None;
        };
        let look = self.apart(look);
        let log = waiting.hosts.get(&self.host).and_then(HostWatch::log_due);
        let budget = waiting.budget(&self.host);
        let look = look.max(budget.ready(1.0));
        let log = log.map(|(log, _)| log.max(budget.ready(1.0 + RESERVED)));
        Some(log.map_or(look, |log| look.min(log)))
    }

    /// Tasks begun one shortly after another are looked at together.
    fn apart(&self, due: Instant) -> Instant {
        self.looked.map_or(due, |last| due.max(last + CLOSEST))
    }

    /// Looks come before logs.
    async fn step(&mut self) {
        let now = Instant::now();
        let (look, log) = {
            let mut waiting = self.client.0.watch.lock();
            let look = waiting.look_due(&self.host).is_some_and(|due| self.apart(due) <= now);
            let log = waiting.hosts.get(&self.host).and_then(HostWatch::log_due);
            let enough = waiting.budget(&self.host).ready(1.0 + RESERVED) <= now;
            (look, log.filter(|(due, _)| enough && *due <= now))
        };
        match log {
            _ if look => self.look().await,
            Some((_, id)) => self.read_log(id).await,
            None => {}
        }
    }

    /// The list of active tasks answers for all that it shows. How a task ended that is gone from it is read for itself, or for several at
    /// once. A task alone is asked for itself: that answer also tells how it ended.
    async fn look(&mut self) {
        self.looked = Some(Instant::now());
        let tasks = self.subjects();
        let listed = tasks.iter().filter(|task| task.listed).count();
        let active = if listed > 1 { self.active().await } else { Ok(Vec::new()) };
        let active = match active {
            Ok(active) => active,
            Err(error) => return self.missed(tasks.iter().map(|task| task.id).collect(), &Arc::new(error)),
        };
        let (running, mut gone): (Vec<_>, Vec<_>) = tasks.into_iter().partition(|task| active.contains(&task.upid));
        for task in &running {
            self.runs(task.id, true);
        }
        // What the list never shows has its own times.
        gone.retain(|task| task.due || (task.listed && listed > 1));
        gone.extend(running.into_iter().find(|task| task.doubted));
        if gone.iter().filter(|task| task.listed && !task.doubted).count() > 1 {
            gone = self.ended_together(gone).await;
        }
        self.ask_each(gone, listed > 1).await;
    }

    /// One list of all tasks since the first of these began tells how they ended. Returns those that it does not tell.
    async fn ended_together(&mut self, gone: Vec<Subject>) -> Vec<Subject> {
        let since = gone.iter().map(|task| i64::from(task.upid.starttime())).min();
        let filter = TaskFilter {
            since,
            limit: Some(TASKS),
            ..TaskFilter::default()
        };
        self.take().await;
        // Without this list each of them is asked for, which tells the same and names the error.
        let Ok(page) = self.client.call(task::list(&self.host, &filter)).await else {
            return gone;
        };
        // A task that ends between PVE's two files is in both: the end counts.
        let ended = |entry: TaskEntry| Some((entry.end()?, entry.upid));
        let mut ends: BTreeMap<Upid, TaskEnd> = page
            .items
            .into_iter()
            .filter_map(ended)
            .map(|(end, upid)| (upid, end))
            .collect();
        let mut open = Vec::new();
        for task in gone {
            match ends.remove(&task.upid) {
                Some(end) => self.tell(task.id, Ok(end)),
                None => open.push(task),
            }
        }
        open
    }

    async fn ask_each(&mut self, tasks: Vec<Subject>, was_listed: bool) {
        for _ in &tasks {
            self.take().await;
        }
        let statuses = tasks.iter().map(|task| self.client.call(task::status(&task.upid)));
        let statuses = futures::future::join_all(statuses).await;
        for (task, status) in tasks.into_iter().zip(statuses) {
            match status.map(|status| status.end()) {
                Ok(Some(end)) => self.tell(task.id, Ok(end)),
                // Alone it was not looked for in the list, and a doubted one was found in it.
                Ok(None) => {
                    self.runs(task.id, !was_listed || task.doubted);
                    self.looked(task.id, |task| task.proved = Instant::now());
                }
                Err(error) => self.missed(vec![task.id], &Arc::new(error)),
            }
        }
    }

    /// A slow answer must not delay a look, so it is not waited for.
    async fn read_log(&self, id: u64) {
        self.take().await;
        let (upid, seen) = {
            let mut waiting = self.client.0.watch.lock();
            let Some(host) = waiting.hosts.get_mut(&self.host) else {
                return;
            };
            let Some(task) = host.tasks.get_mut(&id) else { return };
            let now = Instant::now();
            task.log.read_at = Some(now);
            host.logs.insert(task.class.clone(), now);
            (task.upid.clone(), task.log.seen)
        };
        let (client, host, changed) = (self.client.clone(), self.host.clone(), Arc::clone(&self.changed));
        tokio::spawn(async move {
            // Progress is a courtesy: a log that cannot be read now is no reason to stop waiting.
            let Ok(page) = client.call(task::log(&upid, seen, LINES)).await else {
                return;
            };
            let now = Instant::now();
            let mut waiting = client.0.watch.lock();
            let Some(host) = waiting.hosts.get_mut(&host) else { return };
            let Some(task) = host.tasks.get_mut(&id) else { return };
            if let Some(progress) = task.log.take(now, &page.items) {
                task.tell_progress(now, progress);
            }
            if let Some(length) = task.log.forecast(task.begun) {
                host.lengths.insert(task.group.clone(), (id, length));
            }
            changed.notify_one();
        });
    }

    fn subjects(&self) -> Vec<Subject> {
        let now = Instant::now();
        let waiting = self.client.0.watch.lock();
        let Some(host) = waiting.hosts.get(&self.host) else {
            return Vec::new();
        };
        let subject = |(id, task): (&u64, &Watched)| Subject {
            id: *id,
            upid: task.upid.clone(),
            listed: task.listed,
            due: waiting.due(host, task) <= now,
            doubted: now - task.proved >= DOUBTED && now - task.begun > waiting.forecast(host, task).length() * 2,
        };
        host.tasks.iter().map(subject).collect()
    }

    async fn active(&self) -> Result<Vec<Upid>, Error> {
        self.take().await;
        let page = self.client.call(task::active(&self.host)).await?;
        let running = page.items.into_iter().filter(|entry| entry.end().is_none());
        Ok(running.map(|entry| entry.upid).collect())
    }

    /// Waits until the budget has a request.
    async fn take(&self) {
        loop {
            let ready = {
                let mut waiting = self.client.0.watch.lock();
                let budget = waiting.budget(&self.host);
                if budget.take() {
                    return;
                }
                budget.ready(1.0)
            };
            tokio::time::sleep_until(ready).await;
        }
    }

    fn runs(&mut self, id: u64, listed: bool) {
        self.silent = None;
        self.looked(id, |task| {
            task.listed &= listed;
            task.seen = true;
        });
    }

    fn looked(&self, id: u64, note: impl FnOnce(&mut Watched)) {
        let mut waiting = self.client.0.watch.lock();
        if let Some(task) = waiting.hosts.get_mut(&self.host).and_then(|host| host.tasks.get_mut(&id)) {
            task.looked = Instant::now();
            task.log.ended = false;
            note(task);
        }
    }

    /// A look that showed nothing. A silent host gets time to come back; what will not change is told at once.
    fn missed(&mut self, ids: Vec<u64>, error: &Arc<Error>) {
        let now = Instant::now();
        let silent_for = |since: Instant| now - since;
        for id in ids {
            let patient = if is_out_of_reach(error) {
                silent_for(*self.silent.get_or_insert(now)) < self.client.0.options.task_patience
            } else {
                error.class() == Some(&Class::Missing) && self.age(id) < FRESH
            };
            if patient {
                self.looked(id, |_| {});
            } else {
                self.tell(id, Err(Arc::clone(error)));
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
        let mut waiting = self.client.0.watch.lock();
        let Some(task) = waiting.hosts.get_mut(&self.host).and_then(|host| host.tasks.remove(&id)) else {
            return;
        };
        if matches!(end, Ok(TaskEnd::Ok | TaskEnd::Warnings(_))) {
            let took = task.begun.elapsed();
            // The first look already found it ended: it took less, and the next forecast looks earlier.
            let took = if task.seen { took } else { took.mul_f64(0.9) };
            waiting.durations.note(&task.class, took);
        }
        drop(waiting);
        // The waiter may have left just now.
        let _ = task.told.send(end);
    }
}

/// Whether a task's state cannot be told because its host, or everything, is out of reach for the moment.
fn is_out_of_reach(error: &Error) -> bool {
    matches!(error, Error::NotSent { .. } | Error::Unknown { .. }) || error.class() == Some(&Class::Busy)
}
