//! How late the end of a task is noticed, and how many calls that costs. On virtual time, so that the numbers are the same everywhere.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pve_api::{Client, Upid};
use tokio::time::Instant;

use crate::client::pve::{Asked, ONE, Pve, Reply, world};

/// The time a host takes to answer.
const LATENCY: Duration = Duration::from_millis(20);

/// Tasks are begun in waves. The first one knows nothing of its kind.
const WAVES: u32 = 8;

/// Seconds since 1970 at which the world begins.
const EPOCH: u64 = 0x6AFA_193D;

struct Task {
    upid: Upid,
    begun: Duration,
    end: Duration,
    /// A daemon that was restarted does not take the ended task off the list.
    stays_listed: bool,
}

impl Task {
    fn entry(&self, now: Duration) -> String {
        let status = if self.end > now { "RUNNING" } else { "OK" };
        format!(r#"{{"upid":"{}","status":"{status}","user":"ops@pve!ms"}}"#, self.upid)
    }

    /// A line per percent, as a disk copy writes it.
    fn log(&self, target: &str, now: Duration) -> String {
        let share = (now - self.begun).as_secs_f64() / (self.end - self.begun).as_secs_f64();
        let percent = (share * 100.0).floor().min(100.0) as usize;
        let mut lines: Vec<String> = (1..=percent)
            .map(|n| format!("transferred {n}.0 MiB of 100.0 MiB ({n}.00%)"))
            .collect();
        if self.end <= now {
            lines.push("TASK OK".to_owned());
        }
        let start: usize = target
            .split("start=")
            .nth(1)
            .unwrap()
            .split('&')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        let line = |(n, text): (usize, &String)| format!(r#"{{"n":{},"t":"{text}"}}"#, n + 1);
        let shown: Vec<String> = lines.iter().enumerate().skip(start).map(line).collect();
        format!(r#"{{"data":[{}],"total":{}}}"#, shown.join(","), lines.len())
    }
}

/// The tasks of `pve1`, with the lists that PVE makes of them.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<Vec<Task>>>);

impl Tasks {
    async fn serve(&self, pve: &Pve) -> Client {
        let served = self.clone();
        pve.listen(ONE, move |asked| served.answer(asked)).await;
        pve.client(&[ONE])
    }

    fn begin(&self, pve: &Pve, kind: &str, takes: Duration) -> (Upid, Duration) {
        let now = pve.start.elapsed();
        let mut tasks = self.0.lock().unwrap();
        let (n, starttime) = (tasks.len() + 1, EPOCH + now.as_secs());
        let upid: Upid = format!("UPID:pve1:{n:08X}:000501E4:{starttime:08X}:{kind}:{n}:ops@pve!ms:")
            .parse()
            .unwrap();
        let task = Task {
            upid: upid.clone(),
            begun: now,
            end: now + takes,
            stays_listed: false,
        };
        tasks.push(task);
        (upid, now + takes)
    }

    fn answer(&self, asked: &Asked) -> Reply {
        let tasks = self.0.lock().unwrap();
        let target = asked.target.replace("%3A", ":").replace("%40", "@").replace("%21", "!");
        let list = |shown: Vec<String>| format!(r#"{{"data":[{}],"total":{}}}"#, shown.join(","), shown.len());
        let body = if asked.is("GET", "/nodes/pve1/tasks") {
            if target.contains("source=active") {
                let running = tasks.iter().filter(|task| task.end > asked.at || task.stays_listed);
                list(running.map(|task| task.entry(task.begun)).collect())
            } else {
                let since: u64 = target
                    .split("since=")
                    .nth(1)
                    .unwrap()
                    .split('&')
                    .next()
                    .unwrap()
                    .parse()
                    .unwrap();
                let fits = |task: &&Task| u64::from(task.upid.starttime()) >= since;
                list(tasks.iter().filter(fits).map(|task| task.entry(asked.at)).collect())
            }
        } else {
            let task = tasks.iter().find(|task| target.contains(task.upid.as_str())).unwrap();
            if target.contains("/log") {
                task.log(&target, asked.at)
            } else if task.end > asked.at {
                format!(r#"{{"data":{{"upid":"{}","status":"running"}}}}"#, task.upid)
            } else {
                format!(
                    r#"{{"data":{{"upid":"{}","status":"stopped","exitstatus":"OK"}}}}"#,
                    task.upid
                )
            }
        };
        Reply::Answer {
            status: 200,
            reason: "OK".to_owned(),
            body,
            after: LATENCY,
        }
    }
}

struct Measured {
    /// Mean seconds between the end of a task and its notice.
    late: f64,
    /// Requests per task, of all kinds.
    calls: f64,
}

/// Two requests a second, and twenty more that were saved up.
fn keeps_to_the_budget(pve: &Pve) {
    let (mut saved, mut before) = (20.0_f64, Duration::ZERO);
    for asked in pve.asked() {
        saved = (asked.at - before).as_secs_f64().mul_add(2.0, saved).min(20.0) - 1.0;
        before = asked.at;
        assert!(saved >= -0.1, "{saved} at {:?}", asked.at);
    }
}

/// Waves of tasks that take the same time, a tenth more or less.
fn measure(at_once: u32, kind: &'static str, seconds: f64) -> Measured {
    world(|pve| async move {
        let tasks = Tasks::default();
        let client = tasks.serve(&pve).await;
        let mut late = 0.0;
        for wave in 0..WAVES {
            let waits = (0..at_once).map(|n| {
                let (client, tasks, pve) = (client.clone(), tasks.clone(), pve.clone());
                async move {
                    // One request after another begins them.
                    tokio::time::sleep(Duration::from_millis(u64::from(n) * 30)).await;
                    let jitter = f64::from((wave * at_once + n) * 7 % 21) / 100.0;
                    let takes = Duration::from_secs_f64(seconds * (0.9 + jitter));
                    let (upid, end) = tasks.begin(&pve, kind, takes);
                    client.wait(&upid).await.unwrap();
                    (pve.start.elapsed() - end).as_secs_f64()
                }
            });
            late += futures::future::join_all(waits).await.into_iter().sum::<f64>();
            // The run does something else meanwhile.
            tokio::time::sleep(Duration::from_secs(12)).await;
        }
        keeps_to_the_budget(&pve);
        let all = f64::from(WAVES * at_once);
        Measured {
            late: late / all,
            calls: pve.asked().len() as f64 / all,
        }
    })
}

#[test]
fn the_end_of_a_task_is_noticed_in_time_and_with_few_calls() {
    let kinds = [
        ("qmcreate", 0.2, 0.1),
        ("qmstop", 0.5, 0.1),
        ("qmstart", 2.0, 0.2),
        ("qmconfig", 20.0, 0.6),
        ("download", 120.0, 1.0),
    ];
    let (mut table, mut broken) = (String::new(), Vec::new());
    for (kind, seconds, bar) in kinds {
        for at_once in [1, 5, 10] {
            let Measured { late, calls } = measure(at_once, kind, seconds);
            let line = format!("{at_once:>2} {kind:>8} of {seconds:>5} s: {late:.3} s late, {calls:.2} calls each");
            let _ = writeln!(table, "{line}");
            if late > bar || (at_once >= 5 && seconds <= 20.0 && calls > 3.5) {
                broken.push(line);
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?} of\n{table}");
}

/// Begins tasks at the same time and waits for all of them.
async fn all_of(pve: &Pve, client: &Client, tasks: &Tasks, kind: &str, takes: &[u64]) {
    let waits = takes.iter().map(|seconds| {
        let (upid, _) = tasks.begin(pve, kind, Duration::from_secs(*seconds));
        async move { client.wait(&upid).await.unwrap() }
    });
    futures::future::join_all(waits).await;
}

fn count(pve: &Pve, part: &str) -> usize {
    pve.asked().iter().filter(|asked| asked.target.contains(part)).count()
}

#[test]
fn tasks_that_end_together_are_read_with_one_list() {
    world(|pve| async move {
        let tasks = Tasks::default();
        let client = tasks.serve(&pve).await;
        all_of(&pve, &client, &tasks, "qmstart", &[3; 10]).await;
        assert_eq!((count(&pve, "source=all"), count(&pve, "/status")), (1, 0));
        // Since the first of them began, by PVE's own clock.
        assert_eq!(count(&pve, &format!("since={EPOCH}")), 1);
    });
}

#[test]
fn a_task_that_ends_alone_is_read_by_its_status() {
    world(|pve| async move {
        let tasks = Tasks::default();
        let client = tasks.serve(&pve).await;
        all_of(&pve, &client, &tasks, "qmstart", &[3, 30]).await;
        assert_eq!(count(&pve, "source=all"), 0);
    });
}

#[test]
fn one_log_tells_when_all_copies_of_its_kind_end() {
    world(|pve| async move {
        let tasks = Tasks::default();
        let client = tasks.serve(&pve).await;
        let began = Instant::now();
        all_of(&pve, &client, &tasks, "qmconfig", &[60; 10]).await;
        let late = began.elapsed().checked_sub(Duration::from_secs(60)).unwrap();
        assert!(late < Duration::from_millis(1100), "{late:?}");
        // At 2 s, then every 5 s.
        assert_eq!(count(&pve, "/log"), 12);
        // There is no look before the end comes near, apart from the first guess.
        let looks = pve.asked().into_iter().filter(|asked| !asked.target.contains("/log"));
        let early = looks.filter(|asked| (3..54).contains(&asked.at.as_secs())).count();
        assert_eq!(early, 0);
    });
}

#[test]
fn a_list_that_shows_an_ended_task_for_ever_is_not_believed_for_ever() {
    world(|pve| async move {
        let tasks = Tasks::default();
        let client = tasks.serve(&pve).await;
        let (stuck, end) = tasks.begin(&pve, "qmstop", Duration::from_millis(500));
        let (long, _) = tasks.begin(&pve, "qmshutdown", Duration::from_secs(600));
        tasks.0.lock().unwrap()[0].stays_listed = true;
        let other = client.clone();
        let long = tokio::spawn(async move { other.wait(&long).await });
        client.wait(&stuck).await.unwrap();
        let late = pve.start.elapsed() - end;
        assert!(late < Duration::from_secs(33), "{late:?}");
        long.await.unwrap().unwrap();
    });
}

#[test]
fn a_copy_tells_its_bytes_and_its_rate_while_it_runs() {
    world(|pve| async move {
        let tasks = Tasks::default();
        let client = tasks.serve(&pve).await;
        let (upid, _) = tasks.begin(&pve, "qmconfig", Duration::from_secs(50));
        let storage = "local-lvm".parse().unwrap();
        let mut told = Vec::new();
        let every = Duration::from_secs(10);
        let done = client.wait_copy(&upid, Some(&storage), every, |progress| told.push(progress));
        assert_eq!(done.await.unwrap().upid, upid);
        let mib = |bytes: Option<u64>| bytes.unwrap() >> 20;
        let seen: Vec<(u64, u64)> = told
            .iter()
            .map(|progress| (mib(progress.done), mib(progress.total)))
            .collect();
        // Two MiB a second, at 2 s and then no more often than every ten.
        assert_eq!(seen, [(4, 100), (24, 100), (44, 100), (64, 100), (84, 100)]);
        assert!(told[1..].iter().all(|progress| progress.rate == Some(2 << 20)), "{told:?}");
    });
}
