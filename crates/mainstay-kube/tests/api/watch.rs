//! List and watch: reconnecting, forgotten history, bookmarks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::response::Response;
use mainstay_kube::{Class, ListScope, NodeWatch, WatchEvent};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::scripted::{Call, ok, open_watch, refused, run, watch_lines};

const QUIET: Duration = Duration::from_secs(5);

fn node(name: &str, version: &str) -> Value {
    json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "resourceVersion": version}})
}

fn event(kind: &str, name: &str, version: &str) -> Value {
    json!({"type": kind, "object": node(name, version)})
}

fn bookmark(version: &str) -> Value {
    json!({"type": "BOOKMARK", "object": {"kind": "Node", "apiVersion": "v1", "metadata": {"resourceVersion": version}}})
}

fn gone() -> Value {
    json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410,
        "message": "too old resource version"}})
}

fn nodes(version: &str, names: &[&str]) -> Response {
    let items: Vec<_> = names.iter().map(|name| node(name, "1")).collect();
    ok(json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items}))
}

async fn told(watch: &mut NodeWatch, count: usize) -> Vec<String> {
    let mut told = Vec::new();
    for _ in 0..count {
        told.push(match watch.next(QUIET).await.unwrap() {
            WatchEvent::Is(node) => node.name,
            WatchEvent::Gone { name, .. } => format!("{name} gone"),
            WatchEvent::Listed => "listed".to_owned(),
            WatchEvent::Quiet => "quiet".to_owned(),
        });
    }
    told
}

/// Answers the watches one after the other, then with one that stays open and silent.
fn script(answers: Vec<fn() -> Response>) -> impl Fn(&Call) -> Response + Clone + Send + Sync + 'static {
    let (lists, watches) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    move |call| {
        if !call.query.contains("watch=true") {
            return match lists.fetch_add(1, Ordering::Relaxed) {
                0 => nodes("7", &["w1", "w2"]),
                _ => nodes("50", &["w2", "w3"]),
            };
        }
        let answer = answers.get(watches.fetch_add(1, Ordering::Relaxed));
        answer.map_or_else(|| open_watch(&[]), |answer| answer())
    }
}

fn versions(calls: &crate::scripted::Calls) -> Vec<String> {
    let watches = calls.all().into_iter().filter(|call| call.query.contains("watch=true"));
    let version = |query: &str| {
        query
            .split('&')
            .find_map(|part| part.strip_prefix("resourceVersion=").map(str::to_owned))
    };
    watches.filter_map(|call| version(&call.query)).collect()
}

#[test]
fn all_is_told_first_then_changes_and_then_silence() {
    let open = || open_watch(&[event("MODIFIED", "w1", "8"), event("DELETED", "w1", "9")]);
    run(script(vec![open]), |cluster, calls| async move {
        let mut watch = cluster.watch_nodes();
        assert_eq!(told(&mut watch, 5).await, ["w1", "w2", "listed", "w1", "w1 gone"]);
        let start = Instant::now();
        assert_eq!(told(&mut watch, 1).await, ["quiet"]);
        assert_eq!(start.elapsed(), QUIET);
        assert_eq!(versions(&calls), ["7"]);
    });
}

#[test]
fn a_watch_that_ends_goes_on_from_the_last_version_also_of_a_bookmark() {
    let first = || watch_lines(&[event("ADDED", "w3", "8"), bookmark("20")]);
    let second = || watch_lines(&[event("ADDED", "w4", "21")]);
    run(script(vec![first, second]), |cluster, calls| async move {
        let mut watch = cluster.watch_nodes();
        assert_eq!(
            told(&mut watch, 6).await,
            ["w1", "w2", "listed", "w3", "w4", "quiet"],
            "nothing is told twice"
        );
        assert_eq!(versions(&calls), ["7", "20", "21"]);
    });
}

#[test]
fn forgotten_history_means_the_whole_list_again() {
    let in_stream = || watch_lines(&[gone()]);
    let at_start = || refused(410, "Expired", "too old resource version", json!({}));
    for answer in [in_stream as fn() -> Response, at_start] {
        run(script(vec![answer]), |cluster, calls| async move {
            let mut watch = cluster.watch_nodes();
            assert_eq!(
                told(&mut watch, 7).await,
                ["w1", "w2", "listed", "w2", "w3", "listed", "quiet"]
            );
            assert_eq!(versions(&calls), ["7", "50"]);
        });
    }
}

#[test]
fn a_server_that_forgets_at_once_or_refuses_is_an_error_and_no_loop() {
    let forget = || watch_lines(&[gone()]);
    run(script(vec![forget; 9]), |cluster, calls| async move {
        let mut watch = cluster.watch_nodes();
        let mut error = None;
        for _ in 0..20 {
            if let Err(failed) = watch.next(QUIET).await {
                error = Some(failed);
                break;
            }
        }
        assert_eq!(error.unwrap().class(), Class::Gone);
        assert_eq!(versions(&calls).len(), 4);
    });
    let deny = || refused(403, "Forbidden", "no", json!({}));
    run(script(vec![deny]), |cluster, _| async move {
        let mut watch = cluster.watch_nodes();
        told(&mut watch, 3).await;
        assert_eq!(watch.next(QUIET).await.unwrap_err().class(), Class::Denied);
        assert_eq!(told(&mut watch, 1).await, ["quiet"], "it goes on where it was");
    });
}

#[test]
fn a_server_that_ends_every_watch_is_not_hammered() {
    let end = || watch_lines(&[]);
    run(script(vec![end; 100]), |cluster, calls| async move {
        let mut watch = cluster.watch_nodes();
        assert_eq!(told(&mut watch, 4).await, ["w1", "w2", "listed", "quiet"]);
        assert!(versions(&calls).len() <= 6, "{:?}", versions(&calls));
    });
}

#[test]
fn objects_of_any_kind_are_followed_by_their_labels() {
    let server = |call: &Call| match (call.path.as_str(), call.query.contains("watch=true")) {
        ("/apis/batch/v1", _) => ok(json!({"kind": "APIResourceList", "groupVersion": "batch/v1", "resources": [
            {"name": "jobs", "kind": "Job", "namespaced": true, "singularName": "job", "verbs": ["list", "watch"]}]})),
        ("/apis/batch/v1/namespaces/kube-system/jobs", true) => {
            open_watch(&[json!({"type": "DELETED", "object": {"apiVersion": "batch/v1",
            "kind": "Job", "metadata": {"namespace": "kube-system", "name": "install", "resourceVersion": "8"}}})])
        }
        ("/apis/batch/v1/namespaces/kube-system/jobs", false) => ok(json!({"kind": "JobList", "apiVersion": "batch/v1",
            "metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"namespace": "kube-system", "name": "install"}, "status": {"active": 1}}]})),
        _ => refused(404, "NotFound", &call.path, json!({})),
    };
    run(server, |cluster, calls| async move {
        let scope = ListScope::labels("mainstay/cluster=x").in_namespace("kube-system");
        let mut watch = cluster.watch_objects("batch/v1", "Job", &scope).await.unwrap();
        let WatchEvent::Is(job) = watch.next(QUIET).await.unwrap() else {
            panic!()
        };
        assert_eq!((&job["status"]["active"], &job["kind"]), (&json!(1), &json!("Job")));
        assert_eq!(watch.next(QUIET).await.unwrap(), WatchEvent::Listed);
        let gone = WatchEvent::Gone {
            namespace: "kube-system".into(),
            name: "install".into(),
        };
        assert_eq!(watch.next(QUIET).await.unwrap(), gone);
        assert!(
            calls
                .all()
                .iter()
                .all(|call| call.query.contains("labelSelector=mainstay%2Fcluster%3Dx"))
        );
        assert_eq!(
            cluster.watch_objects("x/v1", "Job", &scope).await.unwrap_err().class(),
            Class::NotFound
        );
    });
}
