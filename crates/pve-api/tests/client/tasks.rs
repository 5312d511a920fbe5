use std::sync::{Arc, Mutex};
use std::time::Duration;

use pve_api::{Class, Error, Host, Unknown, Upid, Vmid, qemu};
use tokio::time::Instant;

use crate::client::pve::{Asked, ONE, Pve, Reply, answer, ok, world};

fn upid(n: u32) -> Upid {
    format!("UPID:pve1:{n:08X}:000501E4:6AFA193D:qmstart:{n}:ops@pve!ms:")
        .parse()
        .unwrap()
}

fn pve1() -> Host {
    "pve1".parse().unwrap()
}

/// Tasks of `pve1`, each with the time it ends and how.
#[derive(Clone)]
struct Tasks {
    ends: Vec<(Upid, Duration, &'static str)>,
    /// Whether the list of active tasks shows them.
    listed: bool,
}

impl Tasks {
    fn one(end: Duration, how: &'static str) -> Self {
        Self {
            ends: vec![(upid(1), end, how)],
            listed: true,
        }
    }

    fn answer(&self, asked: &Asked) -> Reply {
        let target = asked.target.replace("%3A", ":").replace("%40", "@").replace("%21", "!");
        if asked.is("GET", "/nodes/pve1/tasks") {
            let all = target.contains("source=all");
            assert!(all || target.contains("source=active"));
            let shown = self.ends.iter().filter(|(_, end, _)| self.listed && (all || *end > asked.at));
            let entry = |(upid, end, how): &(Upid, Duration, &str)| {
                let status = if *end > asked.at { "RUNNING" } else { how };
                format!(r#"{{"upid":"{upid}","status":"{status}","user":"ops@pve!ms"}}"#)
            };
            return ok(&format!("[{}]", shown.map(entry).collect::<Vec<_>>().join(",")));
        }
        let (upid, end, how) = self.ends.iter().find(|(upid, ..)| target.contains(upid.as_str())).unwrap();
        if target.contains("/log") {
            return log(&target, how);
        }
        if *end > asked.at {
            return ok(&format!(r#"{{"upid":"{upid}","status":"running"}}"#));
        }
        ok(&format!(r#"{{"upid":"{upid}","status":"stopped","exitstatus":"{how}"}}"#))
    }
}

/// Thirty lines and the last.
fn log(target: &str, how: &str) -> Reply {
    let mut lines: Vec<String> = (1..=30)
        .map(|n| format!("transferred {n} MiB of 30 MiB ({}.0%)", n * 3))
        .collect();
    lines.push(if how == "OK" {
        "TASK OK".to_owned()
    } else {
        format!("TASK ERROR: {how}")
    });
    let number = |name: &str| {
        target
            .split(&format!("{name}="))
            .nth(1)
            .unwrap()
            .split('&')
            .next()
            .unwrap()
            .parse::<usize>()
            .unwrap()
    };
    let (start, limit) = (number("start"), number("limit"));
    let shown = lines.iter().enumerate().skip(start).take(limit);
    let shown: Vec<String> = shown.map(|(n, line)| format!(r#"{{"n":{},"t":"{line}"}}"#, n + 1)).collect();
    answer(
        200,
        "OK",
        &format!(r#"{{"data":[{}],"total":{}}}"#, shown.join(","), lines.len()),
    )
}

async fn serve(pve: &Pve, tasks: Tasks) {
    pve.listen(ONE, move |asked| tasks.answer(asked)).await;
}

#[test]
fn a_short_task_is_noticed_soon() {
    world(|pve| async move {
        serve(&pve, Tasks::one(Duration::from_millis(300), "OK")).await;
        let began = Instant::now();
        let done = pve.client(&[ONE]).wait(&upid(1)).await.unwrap();
        assert_eq!(done.warnings, 0);
        assert!(began.elapsed() < Duration::from_millis(600), "{:?}", began.elapsed());
    });
}

#[test]
fn warnings_are_success_with_a_number() {
    world(|pve| async move {
        serve(&pve, Tasks::one(Duration::ZERO, "WARNINGS: 2")).await;
        assert_eq!(pve.client(&[ONE]).wait(&upid(1)).await.unwrap().warnings, 2);
    });
}

#[test]
fn a_failed_task_shows_its_class_and_the_end_of_its_log() {
    world(|pve| async move {
        let how = "can't lock file '/var/lock/qemu-server/lock-1.conf' - got timeout";
        serve(&pve, Tasks::one(Duration::from_secs(1), how)).await;
        let error = pve.client(&[ONE]).wait(&upid(1)).await.unwrap_err();
        assert_eq!(error.class(), Some(&Class::LockTimeout));
        let Error::TaskFailed(failure) = &error else {
            panic!("{error:?}")
        };
        assert_eq!(failure.log_tail.len(), 20);
        assert_eq!(failure.log_tail.last().unwrap(), &format!("TASK ERROR: {how}"));
        assert_eq!(error.to_string(), format!("task qmstart on pve1 failed: {how}"));
    });
}

#[test]
fn a_task_that_lost_its_last_line_is_looked_at_again() {
    world(|pve| async move {
        // PVE remembers the early look, so that the log is what tells the truth.
        pve.listen(ONE, |asked| {
            if asked.target.contains("/log") {
                return answer(200, "OK", r#"{"data":[{"n":1,"t":"TASK OK"}],"total":1}"#);
            }
            ok(&format!(
                r#"{{"upid":"{}","status":"stopped","exitstatus":"unexpected status"}}"#,
                upid(1)
            ))
        })
        .await;
        assert_eq!(pve.client(&[ONE]).wait(&upid(1)).await.unwrap().warnings, 0);
    });
}

#[test]
fn a_task_that_really_died_is_a_failure() {
    world(|pve| async move {
        pve.listen(ONE, |asked| {
            if asked.target.contains("/log") {
                return answer(200, "OK", r#"{"data":[{"n":1,"t":"transferred 1 MiB"}],"total":1}"#);
            }
            ok(&format!(
                r#"{{"upid":"{}","status":"stopped","exitstatus":"unexpected status"}}"#,
                upid(1)
            ))
        })
        .await;
        let error = pve.client(&[ONE]).wait(&upid(1)).await.unwrap_err();
        assert_eq!(error.class(), Some(&Class::Interrupted));
    });
}

/// Waits for all tasks, each begun at the same time.
async fn wait_for_all(pve: &Pve, tasks: &Tasks) -> Vec<Result<(), Error>> {
    let client = pve.client(&[ONE]);
    let waits = tasks.ends.iter().map(|(upid, ..)| {
        let client = client.clone();
        async move { client.wait(upid).await.map(|_| ()) }
    });
    futures::future::join_all(waits).await
}

fn twenty(listed: bool) -> Tasks {
    let end = |n: u32| (upid(n), Duration::from_secs(u64::from(n) * 3), "OK");
    Tasks {
        ends: (1..=20).map(end).collect(),
        listed,
    }
}

#[test]
fn one_list_answers_for_all_tasks_of_a_host() {
    world(|pve| async move {
        let tasks = twenty(true);
        serve(&pve, tasks.clone()).await;
        for outcome in wait_for_all(&pve, &tasks).await {
            outcome.unwrap();
        }
        let asked = pve.asked();
        let seconds = asked.last().unwrap().at.as_secs_f64();
        assert!(seconds < 63.0, "{seconds}");
        // Far less than two a second, and one look at the end of each.
        assert!(asked.len() <= 80, "{} in {seconds} s", asked.len());
        let looks = asked.iter().filter(|asked| asked.target.ends_with("/status")).count();
        assert!(looks <= 21, "{looks}");
    });
}

#[test]
fn many_short_tasks_one_after_another_do_not_add_up_to_many_polls() {
    world(|pve| async move {
        let end = |n: u32| (upid(n), Duration::ZERO, "OK");
        serve(
            &pve,
            Tasks {
                ends: (1..=60).map(end).collect(),
                listed: true,
            },
        )
        .await;
        let client = pve.client(&[ONE]);
        for n in 1..=60 {
            client.wait(&upid(n)).await.unwrap();
        }
        // Two a second, the first burst apart.
        let seconds = pve.asked().last().unwrap().at.as_secs_f64();
        assert!(
            pve.asked().len() as f64 <= 2.0 * seconds + 20.0,
            "{} in {seconds} s",
            pve.asked().len()
        );
    });
}

#[test]
fn tasks_that_the_list_does_not_show_are_asked_for_one_by_one() {
    world(|pve| async move {
        let tasks = Tasks {
            ends: twenty(false).ends[..3].to_vec(),
            listed: false,
        };
        serve(&pve, tasks.clone()).await;
        for outcome in wait_for_all(&pve, &tasks).await {
            outcome.unwrap();
        }
        // The list is asked while it may still show something, then no more.
        assert!(
            pve.count("GET", "/nodes/pve1/tasks") <= 2,
            "{}",
            pve.count("GET", "/nodes/pve1/tasks")
        );
        assert!(pve.asked().last().unwrap().at < Duration::from_secs(16));
    });
}

#[test]
fn a_task_of_another_user_is_an_unknown_that_names_the_privilege() {
    world(|pve| async move {
        pve.listen(ONE, |_| answer(403, "Permission check failed (/nodes/pve1, Sys.Audit)", ""))
            .await;
        let error = pve.client(&[ONE]).wait(&upid(1)).await.unwrap_err();
        assert!(error.is_unknown());
        assert_eq!(error.privilege().unwrap().any_of, ["Sys.Audit"]);
        assert_eq!(pve.asked().len(), 1);
    });
}

#[test]
fn a_fresh_task_may_be_unknown_for_a_moment() {
    world(|pve| async move {
        let tasks = Tasks::one(Duration::from_secs(2), "OK");
        pve.listen(ONE, move |asked| {
            if asked.at < Duration::from_secs(1) {
                return answer(
                    400,
                    "Parameter verification failed.",
                    r#"{"data":null,"errors":{"upid":"no such task"}}"#,
                );
            }
            tasks.answer(asked)
        })
        .await;
        pve.client(&[ONE]).wait(&upid(1)).await.unwrap();
    });
}

#[test]
fn a_task_that_stays_unknown_is_given_up() {
    world(|pve| async move {
        pve.listen(ONE, |_| {
            answer(
                400,
                "Parameter verification failed.",
                r#"{"data":null,"errors":{"upid":"no such task"}}"#,
            )
        })
        .await;
        let began = Instant::now();
        let error = pve.client(&[ONE]).wait(&upid(1)).await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::Unknown {
                    source: Unknown::Task { .. },
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(began.elapsed() < Duration::from_secs(14));
    });
}

#[test]
fn a_host_that_goes_away_leaves_its_tasks_unknown() {
    world(|pve| async move {
        pve.listen(ONE, |_| answer(595, "No route to host", "")).await;
        let began = Instant::now();
        let tasks = twenty(true);
        for outcome in wait_for_all(&pve, &tasks).await {
            let error = outcome.unwrap_err();
            assert!(
                error.is_unknown() && error.class() == Some(&Class::HostUnreachable),
                "{error:?}"
            );
        }
        assert!((60..90).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    });
}

#[test]
fn a_host_that_comes_back_has_its_tasks_followed_to_the_end() {
    world(|pve| async move {
        let tasks = Tasks::one(Duration::from_secs(30), "OK");
        pve.listen(ONE, move |asked| match asked.at.as_secs() {
            5..40 => answer(596, "Connection timed out", ""),
            _ => tasks.answer(asked),
        })
        .await;
        pve.client(&[ONE]).wait(&upid(1)).await.unwrap();
    });
}

#[test]
fn no_host_is_polled_once_no_task_has_a_waiter() {
    world(|pve| async move {
        serve(&pve, Tasks::one(Duration::from_secs(3600), "OK")).await;
        let client = pve.client(&[ONE]);
        let given_up = tokio::time::timeout(Duration::from_secs(5), client.wait(&upid(1))).await;
        assert!(given_up.is_err());
        let asked = pve.asked().len();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(pve.asked().len(), asked);
    });
}

#[test]
fn a_call_that_begins_a_task_can_be_waited_for_in_one_go() {
    world(|pve| async move {
        let tasks = Tasks::one(Duration::from_secs(1), "OK");
        pve.listen(ONE, move |asked| {
            if asked.method == "POST" {
                ok(&format!("\"{}\"", upid(1)))
            } else {
                tasks.answer(asked)
            }
        })
        .await;
        let done = pve
            .client(&[ONE])
            .run(qemu::start(&pve1(), Vmid::new(100).unwrap()))
            .await
            .unwrap();
        assert_eq!(done.unwrap().upid, upid(1));
    });
}

#[test]
fn a_change_that_is_done_at_once_has_no_task() {
    world(|pve| async move {
        pve.listen(ONE, |_| ok("null")).await;
        let change = qemu::change(&pve1(), Vmid::new(100).unwrap(), &qemu::Change::default());
        assert_eq!(pve.client(&[ONE]).run(change).await.unwrap(), None);
    });
}

#[test]
fn progress_is_told_while_waiting_and_on_request() {
    world(|pve| async move {
        serve(&pve, Tasks::one(Duration::from_secs(10), "OK")).await;
        let client = pve.client(&[ONE]);
        let told = Arc::new(Mutex::new(Vec::new()));
        let report = Arc::clone(&told);
        client
            .wait_reporting(&upid(1), Duration::from_secs(3), move |progress| {
                report.lock().unwrap().push(progress);
            })
            .await
            .unwrap();
        // The log does not grow here: what was told is not told again.
        assert_eq!(
            told.lock()
                .unwrap()
                .iter()
                .map(|progress| progress.line.clone())
                .collect::<Vec<_>>(),
            ["TASK OK"]
        );
        assert_eq!(client.progress(&upid(1)).await.unwrap().unwrap().line, "TASK OK");
    });
}
