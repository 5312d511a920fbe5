//! Jobs: pods until enough have succeeded, or too many have failed.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::kinds;
use super::{Round, condition, is_deleting, key_of, set_condition, text};

pub(super) fn run(round: &mut Round<'_>) {
    for job in round.list(&kinds::JOBS) {
        if is_deleting(&job) {
            continue;
        }
        if condition(&job, "Complete") || condition(&job, "Failed") {
            expire(round, &job);
        } else {
            advance(round, &job);
        }
    }
}

/// `ttlSecondsAfterFinished`
fn expire(round: &mut Round<'_>, job: &Value) {
    let Some(seconds) = job["spec"]["ttlSecondsAfterFinished"].as_u64() else {
        return;
    };
    if round.after(
        &format!("ttl {}", text(&job["metadata"]["uid"])),
        Duration::from_secs(seconds),
    ) {
        let _ = round.store.delete(&key_of(job, &kinds::JOBS));
    }
}

fn phase(pods: &[Arc<Value>], phase: &str) -> u64 {
    u64::try_from(pods.iter().filter(|pod| pod["status"]["phase"] == phase).count()).unwrap_or_default()
}

/// Restarts of containers count as failures of a pod that is restarted in place.
fn restarts(pods: &[Arc<Value>]) -> u64 {
    let statuses = pods
        .iter()
        .flat_map(|pod| pod["status"]["containerStatuses"].as_array().into_iter().flatten());
    statuses.filter_map(|status| status["restartCount"].as_u64()).sum()
}

fn advance(round: &mut Round<'_>, job: &Value) {
    let uid = text(&job["metadata"]["uid"]).to_owned();
    let pods = round.pods_of(&job["metadata"]["uid"]);
    let active: Vec<&Arc<Value>> = pods
        .iter()
        .filter(|pod| !is_deleting(pod) && matches!(text(&pod["status"]["phase"]), "Pending" | "Running" | ""))
        .collect();
    if job["spec"]["suspend"] == true {
        active.iter().for_each(|pod| round.delete_pod(pod));
        let now = round.now.clone();
        round.forget(&format!("deadline {uid}"));
        round.change(job, &kinds::JOBS, |job| {
            job["status"]["active"] = Value::Null;
            set_condition(job, "Suspended", "True", "JobSuspended", "Job suspended", &now);
        });
        return;
    }
    let (succeeded, failed) = (phase(&pods, "Succeeded"), phase(&pods, "Failed"));
    let completions = job["spec"]["completions"].as_u64().unwrap_or(1);
    let limit = job["spec"]["backoffLimit"].as_u64().unwrap_or(6);
    let late = job["spec"]["activeDeadlineSeconds"]
        .as_u64()
        .is_some_and(|seconds| round.after(&format!("deadline {uid}"), Duration::from_secs(seconds)));
    if succeeded >= completions {
        return finish(
            round,
            job,
            &pods,
            ("Complete", "CompletionsReached", "Reached expected number of succeeded pods"),
        );
    }
    if late {
        return finish(
            round,
            job,
            &pods,
            ("Failed", "DeadlineExceeded", "Job was active longer than specified deadline"),
        );
    }
    if failed > limit || restarts(&pods) > limit || (failed > 0 && failed + restarts(&pods) > limit) {
        return finish(
            round,
            job,
            &pods,
            (
                "Failed",
                "BackoffLimitExceeded",
                "Job has reached the specified backoff limit",
            ),
        );
    }
    let parallelism = job["spec"]["parallelism"].as_u64().unwrap_or(1).min(completions - succeeded);
    let missing = usize::try_from(parallelism).unwrap_or(1).saturating_sub(active.len());
    let terminating = pods.iter().any(|pod| is_deleting(pod));
    // 10 s, 20 s, 40 s, … after a failure, at most six minutes.
    let delay = if failed == 0 {
        Duration::ZERO
    } else {
        Duration::from_secs((10 << (failed - 1).min(6)).min(360))
    };
    if missing > 0 && !terminating && round.after(&format!("retry {uid} {failed}"), delay) {
        let mut template = job["spec"]["template"].clone();
        for label in ["batch.kubernetes.io/job-name", "job-name"] {
            template["metadata"]["labels"][label] = job["metadata"]["name"].clone();
        }
        template["metadata"]["labels"]["batch.kubernetes.io/controller-uid"] = job["metadata"]["uid"].clone();
        for _ in 0..missing {
            let name = format!("{}-{}", text(&job["metadata"]["name"]), round.suffix());
            if round.create_pod((&kinds::JOBS, job), &name, &template).is_err() {
                round.wake(round.instant + Duration::from_secs(10));
            }
        }
    }
    status(round, job, (active.len() + missing, succeeded, failed));
}

fn status(round: &Round<'_>, job: &Value, (active, succeeded, failed): (usize, u64, u64)) {
    let now = round.now.clone();
    round.change(job, &kinds::JOBS, |job| {
        if job["status"]["startTime"].is_null() {
            job["status"]["startTime"] = json!(now);
        }
        (job["status"]["active"], job["status"]["succeeded"], job["status"]["failed"]) =
            (json!(active), json!(succeeded), json!(failed));
        if condition(job, "Suspended") {
            set_condition(job, "Suspended", "False", "JobResumed", "Job resumed", &now);
        }
    });
}

fn finish(round: &mut Round<'_>, job: &Value, pods: &[Arc<Value>], (word, reason, message): (&str, &str, &str)) {
    for pod in pods
        .iter()
        .filter(|pod| matches!(text(&pod["status"]["phase"]), "Pending" | "Running" | ""))
    {
        round.delete_pod(pod);
    }
    status(round, job, (0, phase(pods, "Succeeded"), phase(pods, "Failed")));
    let now = round.now.clone();
    round.change(job, &kinds::JOBS, |job| {
        set_condition(job, word, "True", reason, message, &now);
        if word == "Complete" {
            job["status"]["completionTime"] = json!(now);
        }
    });
    round.wake(round.instant + round.pace.scale(Duration::from_secs(1)));
}
