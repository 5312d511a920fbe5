//! The kubelets: they pull images, run containers, restart them, and end them.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::helm;
use super::super::kinds;
use super::super::store::Key;
use super::schedule::is_ready;
use super::{Round, condition, is_deleting, key_of, set_condition, text, volumes};

const STARTED_AFTER: Duration = Duration::from_secs(1);
const STOPPED_AFTER: Duration = Duration::from_secs(1);
/// How long a container of a Job runs that this simulation does not know.
const JOB_RUNS: Duration = Duration::from_secs(2);
const BACKOFF_FIRST: u64 = 10;
const BACKOFF_MAX: u64 = 300;

/// A pod as its kubelet runs it.
pub(crate) struct PodRun {
    stage: Stage,
    boot: String,
    pub restarts: u64,
    pulls_failed: u32,
    program: Option<helm::Run>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Waiting,
    Pulling(Instant),
    Backoff(Instant),
    Starting(Instant),
    Running(Instant),
}

pub(super) fn run(round: &mut Round<'_>) {
    let nodes = round.list(&kinds::NODES);
    let mut seen = BTreeSet::new();
    for pod in round.list(&kinds::PODS) {
        let uid = text(&pod["metadata"]["uid"]).to_owned();
        seen.insert(uid.clone());
        let is_mirror = !pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null();
        let node = nodes.iter().find(|node| node["metadata"]["name"] == pod["spec"]["nodeName"]);
        let Some(node) = node.filter(|node| !is_mirror && (round.hooks.is_alive)(text(&node["metadata"]["name"]))) else {
            continue;
        };
        advance(round, &pod, node, &uid);
    }
    // A pod that was removed at once takes its processes with it, in the middle of whatever they did.
    round.state.pods.retain(|uid, _| seen.contains(uid));
}

fn advance(round: &mut Round<'_>, pod: &Value, node: &Value, uid: &str) {
    let finished = matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed");
    if is_deleting(pod) {
        return end(round, pod, uid);
    }
    if finished {
        return;
    }
    let boot = text(&node["status"]["nodeInfo"]["bootID"]);
    let mut run = match round.state.pods.remove(uid) {
        Some(run) => run,
        None => PodRun {
            // What guests wrote as running runs already.
            stage: if pod["status"]["phase"] == "Running" {
                Stage::Running(round.instant)
            } else {
                Stage::Waiting
            },
            boot: boot.to_owned(),
            restarts: 0,
            pulls_failed: 0,
            program: None,
        },
    };
    if run.boot != boot {
        // The machine started again: every container begins anew, and a program in the middle of its work is lost.
        run = PodRun {
            stage: Stage::Starting(round.instant + round.pace.scale(STARTED_AFTER)),
            boot: boot.to_owned(),
            restarts: run.restarts + 1,
            pulls_failed: 0,
            program: None,
        };
    }
    let finished = step(round, pod, node, &mut run);
    if !finished {
        round.state.pods.insert(uid.to_owned(), run);
    }
}

/// Moves a pod on; true when it has ended.
fn step(round: &mut Round<'_>, pod: &Value, node: &Value, run: &mut PodRun) -> bool {
    match run.stage {
        Stage::Waiting => {
            if let Some(why) = blocked(round, pod, node) {
                waiting(round, pod, "ContainerCreating", &why);
                round.wake(round.instant + round.pace.scale(Duration::from_secs(2)));
            } else {
                waiting(round, pod, "ContainerCreating", "");
                run.stage = Stage::Pulling(round.instant + round.pace.scale(round.world.pull_time()));
            }
        }
        Stage::Pulling(until) | Stage::Backoff(until) if until > round.instant => {}
        Stage::Pulling(_) | Stage::Backoff(_) => pulled(round, pod, run),
        Stage::Starting(until) if until > round.instant => {}
        Stage::Starting(_) => {
            started(round, pod, node, run);
            run.program = helm::Run::of_pod(round, pod);
            run.stage = Stage::Running(round.instant);
        }
        Stage::Running(since) => return running(round, pod, run, since),
    }
    if let Stage::Pulling(until) | Stage::Backoff(until) | Stage::Starting(until) = run.stage {
        round.wake(until);
    } else {
        round.wake(round.instant);
    }
    if let Stage::Waiting = run.stage {
        round.wake(round.instant + round.pace.scale(Duration::from_secs(2)));
    }
    false
}

/// Why a sandbox cannot be made yet.
fn blocked(round: &Round<'_>, pod: &Value, node: &Value) -> Option<String> {
    let namespace = text(&pod["metadata"]["namespace"]);
    if pod["spec"]["hostNetwork"] != true && !is_ready(node) {
        return Some("network is not ready: container runtime network not ready: NetworkReady=false".to_owned());
    }
    let account = pod["spec"]["serviceAccountName"].as_str().unwrap_or("default");
    if round.get(&kinds::SERVICE_ACCOUNTS, namespace, account).is_none() {
        return Some(format!(
            "MountVolume.SetUp failed: failed to fetch token: serviceaccounts \"{account}\" not found"
        ));
    }
    for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
        for (field, key, kind) in [
            ("secret", "secretName", &kinds::SECRETS),
            ("configMap", "name", &kinds::CONFIG_MAPS),
        ] {
            let source = &volume[field];
            let Some(name) = source[key].as_str().filter(|_| source["optional"] != true) else {
                continue;
            };
            if round.get(kind, namespace, name).is_none() {
                let what = kind.kind.to_lowercase();
                return Some(format!(
                    "MountVolume.SetUp failed for volume \"{}\" : {what} \"{name}\" not found",
                    text(&volume["name"])
                ));
            }
        }
    }
    (!volumes::are_attached(round, pod)).then(|| "AttachVolume.Attach failed: volume is not attached".to_owned())
}

fn image(pod: &Value) -> &str {
    text(&pod["spec"]["containers"][0]["image"])
}

fn pulled(round: &mut Round<'_>, pod: &Value, run: &mut PodRun) {
    let image = image(pod).to_owned();
    let Some(why) = round.world.pull_error(&image) else {
        run.stage = Stage::Starting(round.instant + round.pace.scale(STARTED_AFTER));
        return;
    };
    run.pulls_failed += 1;
    let seconds = (BACKOFF_FIRST << (run.pulls_failed - 1).min(5)).min(BACKOFF_MAX);
    let message = format!("failed to pull and unpack image \"{image}\": {why}");
    let reason = if run.pulls_failed % 2 == 1 {
        "ErrImagePull"
    } else {
        "ImagePullBackOff"
    };
    let shown = if reason == "ErrImagePull" {
        message.clone()
    } else {
        format!("Back-off pulling image \"{image}\": ErrImagePull: {message}")
    };
    waiting(round, pod, reason, &shown);
    round.event(
        pod,
        &kinds::PODS,
        "Warning",
        "Failed",
        &format!("Failed to pull image \"{image}\": {why}"),
    );
    run.stage = Stage::Backoff(round.instant + round.pace.scale(Duration::from_secs(seconds)));
}

fn container_status(pod: &Value, state: &Value, ready: bool, restarts: u64, last: &Value) -> Value {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let one = |container: &Value| {
        json!({
            "name": container["name"], "image": container["image"], "imageID": if ready { container["image"].clone() } else { json!("") }, "ready": ready, "started": ready,
            "restartCount": restarts, "state": state, "lastState": last,
        })
    };
    containers.map(one).collect()
}

fn waiting(round: &Round<'_>, pod: &Value, reason: &str, message: &str) {
    let mut state = json!({"waiting": {"reason": reason}});
    if !message.is_empty() {
        state["waiting"]["message"] = json!(message);
        if reason == "ContainerCreating" {
            round.event(pod, &kinds::PODS, "Warning", "FailedMount", message);
        }
    }
    let now = round.now.clone();
    round.change(pod, &kinds::PODS, |pod| {
        pod["status"]["phase"] = json!("Pending");
        pod["status"]["containerStatuses"] = container_status(pod, &state, false, 0, &json!({}));
        if pod["status"]["startTime"].is_null() {
            pod["status"]["startTime"] = json!(now);
        }
        for name in ["Ready", "ContainersReady"] {
            set_condition(pod, name, "False", "ContainersNotReady", "", &now);
        }
    });
}

fn started(round: &Round<'_>, pod: &Value, node: &Value, run: &PodRun) {
    let (now, address) = (round.now.clone(), node["status"]["addresses"][0]["address"].clone());
    let (is_host, restarts) = (pod["spec"]["hostNetwork"] == true, run.restarts);
    let own = pod_address(node, text(&pod["metadata"]["uid"]));
    round.change(pod, &kinds::PODS, |pod| {
        pod["status"]["phase"] = json!("Running");
        pod["status"]["hostIP"] = address.clone();
        pod["status"]["podIP"] = if is_host { address.clone() } else { json!(own) };
        pod["status"]["containerStatuses"] =
            container_status(pod, &json!({"running": {"startedAt": now}}), true, restarts, &json!({}));
        for name in [
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
            "PodScheduled",
        ] {
            set_condition(pod, name, "True", "", "", &now);
        }
    });
}

/// An address in the node's part of the pod network.
fn pod_address(node: &Value, uid: &str) -> Option<String> {
    let network: ipnet::Ipv4Net = node["spec"]["podCIDR"].as_str()?.parse().ok()?;
    let digest = <sha2::Sha256 as sha2::Digest>::digest(uid);
    network.hosts().nth(usize::from(digest[0])).map(|address| address.to_string())
}

fn running(round: &mut Round<'_>, pod: &Value, run: &mut PodRun, since: Instant) -> bool {
    let restarts_always = !matches!(text(&pod["spec"]["restartPolicy"]), "OnFailure" | "Never");
    let outcome = match run.program.as_mut() {
        Some(program) => match program.step(round, pod) {
            helm::Step::Until(at) => {
                round.wake(at);
                return false;
            }
            helm::Step::Exit { code, message } => Some((code, message)),
        },
        None if restarts_always => {
            // A node that was lost and came back says again that its pods are ready.
            if !condition(pod, "Ready") {
                let now = round.now.clone();
                round.change(pod, &kinds::PODS, |pod| set_condition(pod, "Ready", "True", "", "", &now));
            }
            return false;
        }
        None => {
            let done = since + round.pace.scale(JOB_RUNS);
            if done > round.instant {
                round.wake(done);
                return false;
            }
            Some((i32::from(round.world.is_failing(image(pod))), String::new()))
        }
    };
    let Some((code, message)) = outcome else { return false };
    if code != 0 && text(&pod["spec"]["restartPolicy"]) != "Never" {
        restart(round, pod, run, code, &message);
        return false;
    }
    terminated(round, pod, run, code, &message);
    true
}

fn exited(code: i32, message: &str, now: &str) -> Value {
    let reason = if code == 0 { "Completed" } else { "Error" };
    let mut state = json!({"exitCode": code, "reason": reason, "finishedAt": now});
    if !message.is_empty() {
        state["message"] = json!(message);
    }
    json!({"terminated": state})
}

fn restart(round: &mut Round<'_>, pod: &Value, run: &mut PodRun, code: i32, message: &str) {
    let seconds = (BACKOFF_FIRST << run.restarts.min(5)).min(BACKOFF_MAX);
    run.restarts += 1;
    run.program = None;
    run.stage = Stage::Starting(round.instant + round.pace.scale(Duration::from_secs(seconds)));
    if let Stage::Starting(at) = run.stage {
        round.wake(at);
    }
    let (now, restarts) = (round.now.clone(), run.restarts);
    let state =
        json!({"waiting": {"reason": "CrashLoopBackOff", "message": format!("back-off {seconds}s restarting failed container")}});
    round.change(pod, &kinds::PODS, |pod| {
        pod["status"]["containerStatuses"] = container_status(pod, &state, false, restarts, &exited(code, message, &now));
        set_condition(pod, "Ready", "False", "ContainersNotReady", "", &now);
    });
}

fn terminated(round: &Round<'_>, pod: &Value, run: &PodRun, code: i32, message: &str) {
    let (now, restarts) = (round.now.clone(), run.restarts);
    round.change(pod, &kinds::PODS, |pod| {
        pod["status"]["phase"] = json!(if code == 0 { "Succeeded" } else { "Failed" });
        pod["status"]["containerStatuses"] = container_status(pod, &exited(code, message, &now), false, restarts, &json!({}));
        let reason = if code == 0 { "PodCompleted" } else { "PodFailed" };
        set_condition(pod, "Ready", "False", reason, "", &now);
    });
}

/// SIGTERM, then the end of the grace period. A helm image ignores SIGTERM and finishes its work if the time is enough.
fn end(round: &mut Round<'_>, pod: &Value, uid: &str) {
    let grace = Duration::from_secs(pod["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or_default());
    let mut is_busy = false;
    if let Some(mut run) = round.state.pods.remove(uid) {
        if let Some(program) = run.program.as_mut()
            && let helm::Step::Until(at) = program.step(round, pod)
        {
            is_busy = true;
            round.wake(at);
        }
        if is_busy {
            round.state.pods.insert(uid.to_owned(), run);
        }
    }
    let stops = if is_busy { grace } else { grace.min(STOPPED_AFTER) };
    if round.after(&format!("ending {uid}"), stops) {
        round.forget(&format!("ending {uid}"));
        round.state.pods.remove(uid);
        let _ = round.store.delete(&key_of(pod, &kinds::PODS));
    }
}

/// The key of a pod, for its log.
pub(crate) fn log_key(pod: &Value) -> Key {
    key_of(pod, &kinds::PODS)
}
