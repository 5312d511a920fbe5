//! Tasks: a worker with an id (UPID), a log, an owner and an end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::access::Auth;
use crate::bandwidth::Share;
use crate::datacenter::Datacenter;
use crate::die::Die;

/// Finished and running tasks of all hosts, oldest first.
#[derive(Default)]
pub struct Tasks {
    all: BTreeMap<u64, Task>,
    by_upid: BTreeMap<String, u64>,
    next: u64,
}

pub struct Task {
    pub upid: String,
    pub host: String,
    pub pid: u32,
    pub pstart: u64,
    pub starttime: i64,
    pub endtime: Option<i64>,
    pub kind: String,
    pub id: String,
    /// `user@realm` or `user@realm!token`.
    pub owner: String,
    pub exit: Option<String>,
    log: Arc<TaskLog>,
    stop: CancellationToken,
}

/// Keeps this many finished tasks; PVE keeps some thousand per host.
const KEPT: usize = 2000;

impl Task {
    pub fn log(&self) -> Vec<String> {
        self.log.lines()
    }

    pub fn user(&self) -> &str {
        self.owner.split('!').next().unwrap_or_default()
    }

    pub fn token(&self) -> Option<&str> {
        self.owner.split_once('!').map(|(_, token)| token)
    }
}

impl Tasks {
    pub fn get(&self, upid: &str) -> Option<&Task> {
        self.all.get(self.by_upid.get(upid)?)
    }

    /// Newest first.
    pub fn newest(&self) -> impl Iterator<Item = &Task> {
        self.all.values().rev()
    }

    fn add(&mut self, task: Task) {
        self.by_upid.insert(task.upid.clone(), self.next);
        self.all.insert(self.next, task);
        self.next += 1;
        while self.all.len() > KEPT {
            let Some((_, old)) = self.all.pop_first() else { break };
            self.by_upid.remove(&old.upid);
        }
    }

    fn get_mut(&mut self, upid: &str) -> Option<&mut Task> {
        self.all.get_mut(self.by_upid.get(upid)?)
    }

    /// SIGTERM to the worker.
    pub fn stop(&self, upid: &str) {
        if let Some(task) = self.get(upid) {
            task.stop.cancel();
        }
    }
}

#[derive(Default)]
struct TaskLog(Mutex<Lines>);

#[derive(Default)]
struct Lines {
    lines: Vec<String>,
    open: bool,
    warnings: usize,
}

impl TaskLog {
    fn with<R>(&self, act: impl FnOnce(&mut Lines) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn lines(&self) -> Vec<String> {
        self.with(|l| l.lines.clone())
    }

    fn say(&self, line: String) {
        self.with(|l| {
            l.open = false;
            l.lines.push(line);
        });
    }
}

/// What changes the datacenter: a request, or the worker of a task. Both take locks, check rights and may log what they do;
/// only a worker's log is kept.
#[derive(Clone)]
pub struct Job {
    pub dc: Datacenter,
    pub host: String,
    pub auth: Auth,
    task: Option<Handle>,
}

#[derive(Clone)]
struct Handle {
    upid: String,
    log: Arc<TaskLog>,
    stop: CancellationToken,
    /// How long its copies take at least.
    copying: Duration,
}

impl Job {
    pub fn request(dc: &Datacenter, host: &str, auth: &Auth) -> Self {
        Self {
            dc: dc.clone(),
            host: host.into(),
            auth: auth.clone(),
            task: None,
        }
    }

    pub fn say(&self, line: impl Into<String>) {
        if let Some(task) = &self.task {
            task.log.say(line.into());
        }
    }

    pub fn warn(&self, line: &str) {
        if let Some(task) = &self.task {
            task.log.say(format!("WARN: {line}"));
            task.log.with(|l| l.warnings += 1);
        }
    }

    /// Says something without ending the line.
    pub fn begin_line(&self, text: &str) {
        if let Some(task) = &self.task {
            task.log.say(text.into());
            task.log.with(|l| l.open = true);
        }
    }

    pub fn end_line(&self, text: &str) {
        if let Some(task) = &self.task {
            task.log.with(|l| {
                if l.open
                    && let Some(last) = l.lines.last_mut()
                {
                    last.push_str(text);
                }
                l.open = false;
            });
        }
    }

    /// Resolves when a user stops the task; never for a request.
    pub async fn interrupted(&self) {
        match &self.task {
            Some(task) => task.stop.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Lets time pass as protocols count it.
    pub async fn sleep(&self, duration: Duration) -> Result<(), Die> {
        tokio::select! {
            biased;
            () = self.interrupted() => Err(Die::interrupted()),
            () = tokio::time::sleep(duration) => Ok(()),
        }
    }

    /// Works for so long, scaled by the world's pace.
    pub async fn work(&self, duration: Duration) -> Result<(), Die> {
        self.sleep(self.dc.pace().scale(duration)).await
    }

    /// Copies to a storage, and tells which share is done: a hundred times at most, and once a second if nothing else is copied there.
    /// `alone` is how long it takes at its own rate, which is `wants` times that of a plain copy.
    pub async fn copy(
        &self,
        storage: &str,
        host: &str,
        (alone, wants): (Duration, f64),
        mut told: impl FnMut(f64) + Send,
    ) -> Result<(), Die> {
        let slowed = self.task.as_ref().map_or(Duration::ZERO, |task| task.copying);
        // What a fault makes slow takes less of the storage, too.
        let wants = if slowed > alone {
            wants * alone.as_secs_f64() / slowed.as_secs_f64()
        } else {
            wants
        };
        let whole = alone.max(slowed);
        let place = self.dc.state().place(storage, host).to_string();
        let capacity = f64::from(self.dc.timing().copies_per_storage.max(1));
        let share = self.dc.bandwidth().join(format!("{place}/{storage}"), wants, capacity);
        let parts = u32::try_from(whole.as_secs()).unwrap_or(u32::MAX).clamp(1, 100);
        let mut done = Duration::ZERO;
        for part in 1..=parts {
            let goal = whole * part / parts;
            while done < goal {
                done += self.copy_until(&share, goal - done).await?;
            }
            if part < parts {
                told(f64::from(part) / f64::from(parts));
            }
        }
        Ok(())
    }

    /// Copies a piece, or as much of it as is done when others join or leave. Counts in time at the copy's own rate.
    async fn copy_until(&self, share: &Share, piece: Duration) -> Result<Duration, Die> {
        let mut changes = share.changes();
        let speed = share.speed();
        let begun = tokio::time::Instant::now();
        let takes = if speed < 1.0 { piece.div_f64(speed) } else { piece };
        tokio::select! {
            biased;
            () = self.interrupted() => Err(Die::interrupted()),
            () = tokio::time::sleep(takes) => Ok(piece),
            _ = changes.changed() => Ok(begun.elapsed().mul_f64(speed).min(piece)),
        }
    }

    /// Starts a worker and returns its UPID.
    pub fn fork<F, Fut>(&self, kind: &str, id: &str, work: F) -> String
    where
        F: FnOnce(Job) -> Fut,
        Fut: Future<Output = Result<(), Die>> + Send + 'static,
    {
        let fate = self.dc.faults().task_fate(kind, id);
        let handle = self.register(kind, id, fate.copying);
        let upid = handle.upid.clone();
        let job = Self {
            task: Some(handle.clone()),
            ..self.clone()
        };
        let work = work(job.clone());
        tokio::spawn(async move {
            let result = tokio::select! {
                biased;
                // Killed: the log has no last line.
                ended = fate.end() => ended.map(Err),
                result = work => Some(result),
            };
            job.finish(&handle, result);
        });
        upid
    }

    fn register(&self, kind: &str, id: &str, copying: Duration) -> Handle {
        let (log, stop) = (Arc::new(TaskLog::default()), CancellationToken::new());
        let starttime = self.dc.epoch();
        let mut state = self.dc.state();
        let pid = state.next_pid();
        let pstart = self.dc.jiffies();
        let owner = self.auth.full();
        let upid = format!(
            "UPID:{}:{pid:08X}:{pstart:08X}:{starttime:08X}:{kind}:{id}:{owner}:",
            self.host
        );
        state.tasks.add(Task {
            upid: upid.clone(),
            host: self.host.clone(),
            pid,
            pstart,
            starttime,
            endtime: None,
            kind: kind.into(),
            id: id.into(),
            owner,
            exit: None,
            log: Arc::clone(&log),
            stop: stop.clone(),
        });
        Handle {
            upid,
            log,
            stop,
            copying,
        }
    }

    fn finish(&self, handle: &Handle, result: Option<Result<(), Die>>) {
        let warnings = handle.log.with(|l| l.warnings);
        let (exit, line) = match result {
            None => ("unexpected status".to_string(), None),
            Some(Err(die)) => (die.exit_status(), Some(format!("TASK ERROR: {}", die.exit_status()))),
            Some(Ok(())) if warnings > 0 => (format!("WARNINGS: {warnings}"), Some(format!("TASK WARNINGS: {warnings}"))),
            Some(Ok(())) => ("OK".to_string(), Some("TASK OK".to_string())),
        };
        if let Some(line) = line {
            handle.log.say(line);
        }
        let now = self.dc.epoch();
        let mut state = self.dc.state();
        if let Some(task) = state.tasks.get_mut(&handle.upid) {
            task.exit = Some(exit);
            task.endtime = Some(now);
        }
        drop(state);
        self.dc.task_ended(&handle.upid);
    }

    /// The end of a task, awaited.
    pub async fn ended(&self, upid: &str) -> String {
        loop {
            let mut ends = self.dc.task_ends();
            if let Some(exit) = self.dc.state().tasks.get(upid).and_then(|t| t.exit.clone()) {
                return exit;
            }
            if ends.changed().await.is_err() {
                return "unexpected status".into();
            }
        }
    }
}
