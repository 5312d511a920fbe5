//! Single requests recorded from the real PVE: every kind of request and every refusal seen there is answered the same here.
//!
//! What stood before each request is known only from its neighbours, so the fixture sets the scene itself (steps marked unstable) and then
//! sends the recorded request. Most kinds and refusals are in the recorded scenarios too, which `scenarios.rs` replays; the fixture holds
//! the others.

use std::collections::BTreeSet;

use pve_sim::conformance::{Folder, play_all};
use regex::Regex;
use serde_json::Value;

/// Refusals that nothing here reaches, each with its reason in docs/reference/simulator.md.
const UNREACHED: &[&str] = &[];

fn traces() -> (Value, Folder) {
    let fixture = crate::recorded::unpack(include_bytes!("data/pve-traces.json.gz"));
    let mut folder = crate::recorded::scenarios();
    for part in ["users", "tokens", "principals"] {
        for (name, value) in fixture["world"][part].as_object().into_iter().flatten() {
            folder.world[part][name] = value.clone();
        }
    }
    let entries = fixture["world"]["acl"].as_array().cloned().unwrap_or_default();
    folder.world["acl"]
        .as_array_mut()
        .expect("a list of ACL entries")
        .extend(entries);
    folder.scenarios = fixture["scenarios"].as_array().cloned().unwrap_or_default();
    (fixture, folder)
}

fn steps(scenarios: &[Value]) -> Vec<&Value> {
    let all = scenarios.iter().flat_map(|s| s["steps"].as_array().into_iter().flatten());
    all.filter(|step| step["unstable"] != true && step["method"] != "LAB")
        .collect()
}

/// Of a step whose answer depends on all that went before, only the outcome is compared.
fn matters(step: &Value, line: &str) -> bool {
    let kept = ["answer.status", "answer.reason", "task.exitstatus"];
    step["loose"] != true || kept.iter().any(|place| line.starts_with(place))
}

#[test]
fn every_recorded_request_is_answered_like_the_real_code() {
    let (_, folder) = traces();
    let mut differences = Vec::new();
    for (outcome, scenario) in play_all(&folder).iter().zip(&folder.scenarios) {
        for different in &outcome.different {
            let all = scenario["steps"].as_array().expect("a scenario has steps");
            let step = all
                .iter()
                .find(|s| s["n"] == different.step)
                .expect("the step that was played");
            let lines = different.why.iter().filter(|line| matters(step, line));
            differences.extend(lines.map(|line| format!("{} {}: {line}", outcome.name, step["note"])));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

fn segments(path: &str) -> Vec<&str> {
    path.split('/').filter(|s| !s.is_empty()).collect()
}

/// Whether a path is of a template; `{volume}` and what lies below takes the rest.
fn fits(template: &str, path: &str) -> bool {
    let (wanted, given) = (segments(template), segments(path));
    let rest = wanted.last() == Some(&"{volume}") && given.len() > wanted.len();
    let same = |(want, have): (&&str, &&str)| want.starts_with('{') || want == have;
    (rest || wanted.len() == given.len()) && wanted.iter().zip(&given).all(same)
}

fn keys(value: &Value) -> impl Iterator<Item = String> {
    value.as_object().into_iter().flatten().map(|(key, _)| key.clone())
}

/// Names of a step's parameters, indexes taken out: `scsi[n]`.
fn parameters(step: &Value) -> BTreeSet<String> {
    let index = Regex::new(r"\d+$").expect("a fixed pattern");
    let target = step["url"].as_str().or(step["path"].as_str()).unwrap_or_default();
    let query = target.split_once('?').map(|(_, query)| query).unwrap_or_default();
    let in_query = query
        .split(['&', ';'])
        .filter(|p| !p.is_empty())
        .map(|p| p.split('=').next().unwrap_or(p).to_string());
    let all = keys(&step["query"])
        .chain(keys(&step["form"]))
        .chain(keys(&step["json"]))
        .chain(in_query);
    all.map(|name| index.replace(&name, "[n]").into_owned()).collect()
}

fn is_of_kind(step: &Value, kind: &str) -> bool {
    let mut words = kind.splitn(3, ' ');
    let (verb, template) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let wanted: BTreeSet<String> = words
        .next()
        .unwrap_or_default()
        .split(',')
        .filter(|p| !p.is_empty())
        .map(Into::into)
        .collect();
    let target = step["url"].as_str().or(step["path"].as_str()).unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default();
    let path = path.strip_prefix("/api2/json").unwrap_or(path);
    step["method"] == verb && (template == "?" || fits(template, path)) && parameters(step) == wanted
}

#[test]
fn every_kind_of_request_is_sent_by_a_test() {
    let (fixture, folder) = traces();
    let scenarios = crate::recorded::scenarios();
    let all: Vec<&Value> = steps(&scenarios.scenarios)
        .into_iter()
        .chain(steps(&folder.scenarios))
        .collect();
    let kinds: Vec<&str> = fixture["kinds"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    assert!(kinds.len() > 200, "{} kinds", kinds.len());
    let missing: Vec<&&str> = kinds
        .iter()
        .filter(|kind| !all.iter().any(|step| is_of_kind(step, kind)))
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Numbers and ids differ from recording to recording.
fn normal(text: &str) -> String {
    let volatile = Regex::new(r"<[a-z]+>|[0-9a-f]{32,}|\d+").expect("a fixed pattern");
    volatile.replace_all(text.trim_end(), "#").into_owned()
}

fn refusals(step: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let answer = &step["answer"];
    if answer["status"].as_u64().is_some_and(|status| status >= 400) {
        let status = &answer["status"];
        let errors: Vec<String> = answer["body"]["errors"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, why)| normal(&format!("http {status} {key}: {}", why.as_str().unwrap_or_default())))
            .collect();
        if errors.is_empty() {
            found.push(normal(&format!(
                "http {status} {}",
                answer["reason"].as_str().unwrap_or_default()
            )));
        }
        found.extend(errors);
    }
    if let Some(exit) = step["task"]["exitstatus"].as_str().filter(|exit| *exit != "OK") {
        found.push(normal(&format!("task {exit}")));
    }
    found
}

#[test]
fn every_refusal_is_met_by_a_test() {
    let (fixture, folder) = traces();
    let scenarios = crate::recorded::scenarios();
    let met: BTreeSet<String> = steps(&scenarios.scenarios)
        .into_iter()
        .chain(steps(&folder.scenarios))
        .flat_map(refusals)
        .collect();
    let wanted: Vec<&str> = fixture["refusals"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    assert!(wanted.len() > 150, "{} refusals", wanted.len());
    let missing: Vec<&&str> = wanted.iter().filter(|text| !met.contains(&normal(text))).collect();
    let known: Vec<&&str> = UNREACHED.iter().collect();
    assert_eq!(missing, known, "refusals that no test meets");
}
