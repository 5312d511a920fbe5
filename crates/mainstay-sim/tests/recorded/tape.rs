//! The recording, and how an answer is held against it.

use std::sync::OnceLock;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tonic::Code;

use crate::lab::{Node, reflect};
use crate::recorded::{configs, events};

const RECORDED: &str = include_str!("../data/recorded.jsonl");

/// One call to the real cluster.
#[derive(Clone, Debug, Deserialize)]
pub struct Call {
    pub n: usize,
    pub note: String,
    pub addr: String,
    pub method: String,
    pub request: Value,
    pub code: String,
    pub message: String,
    pub ms: u64,
    node: Option<String>,
    nodes: Option<String>,
    config: Option<String>,
    response: Option<Value>,
    stream: Option<usize>,
}

pub fn all() -> &'static [Call] {
    static ALL: OnceLock<Vec<Call>> = OnceLock::new();
    ALL.get_or_init(|| RECORDED.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn code(name: &str) -> Code {
    match name {
        "OK" => Code::Ok,
        "AlreadyExists" => Code::AlreadyExists,
        "DeadlineExceeded" => Code::DeadlineExceeded,
        "FailedPrecondition" => Code::FailedPrecondition,
        "Internal" => Code::Internal,
        "InvalidArgument" => Code::InvalidArgument,
        "NotFound" => Code::NotFound,
        "PermissionDenied" => Code::PermissionDenied,
        "Unavailable" => Code::Unavailable,
        "Unimplemented" => Code::Unimplemented,
        "Unknown" => Code::Unknown,
        other => panic!("{other}"),
    }
}

/// What the simulator answered to a recorded call.
#[derive(Debug)]
pub struct Answer {
    pub code: Code,
    pub message: String,
    pub items: Vec<Value>,
}

impl Answer {
    /// Broken connections and spent time have codes of their own in our client.
    pub fn code(&self) -> Code {
        match (self.code, self.message.as_str()) {
            (Code::Cancelled, "Timeout expired") => Code::DeadlineExceeded,
            (Code::Cancelled, "operation was canceled") => Code::Unavailable,
            (Code::Unknown, text) if text.starts_with("h2 protocol error") || text.starts_with("transport error") => {
                Code::Unavailable
            }
            (code, _) => code,
        }
    }
}

impl Call {
    /// The request as it was, with the id of a member of this cluster in place of a recorded one.
    fn request(&self, member: u64) -> Value {
        let mut request = self.request.clone();
        if request["member_id"].as_str().is_some_and(|id| id.len() > 8) {
            request["member_id"] = json!(member.to_string());
        }
        if let Some(name) = &self.config {
            request["data"] = json!(configs::base64(name));
        }
        request
    }

    pub async fn ask(&self, node: &Node, member: u64) -> Answer {
        let mut headers: Vec<(&str, &str)> = self.node.iter().map(|name| ("node", name.as_str())).collect();
        headers.extend(
            self.nodes
                .iter()
                .flat_map(|names| names.split(','))
                .map(|name| ("nodes", name)),
        );
        // A call that ran into its deadline is given the same one; any other has time enough.
        let patience = match self.code.as_str() {
            "DeadlineExceeded" => Duration::from_millis(self.ms),
            _ => Duration::from_millis(30_000.max(self.ms * 2)),
        };
        let outcome = node.raw_within(patience, &self.method, &self.request(member), &headers).await;
        Answer {
            code: outcome.code,
            message: outcome.message,
            items: outcome
                .answers
                .iter()
                .map(|answer| reflect::decode(&self.method, answer))
                .collect(),
        }
    }

    /// In which the answer differs from the recorded one.
    pub fn differences(&self, answer: &Answer) -> Vec<String> {
        let mut found = Vec::new();
        if crate::recorded::known::excused(self.n) {
            return found;
        }
        if answer.code() != code(&self.code) {
            found.push(format!("code {:?} {:?}", answer.code, answer.message));
            return found;
        }
        // What a client says about a deadline or a broken connection is its own text.
        let own_text = matches!(answer.code(), Code::DeadlineExceeded | Code::Unavailable);
        let (recorded, answered) = (stable(&self.message), stable(&answer.message));
        if !own_text && !same_text(&recorded, &answered) {
            found.push(format!("message\n      {recorded:?}\n      {answered:?}"));
        }
        match (&self.response, self.stream) {
            (Some(Value::Array(recorded)), count) => {
                // The recorder kept the first messages of a long stream.
                // And where a stream of events ends with the node, the last ones are a matter of luck.
                let ended = self.method.ends_with("/Events") && self.code == "OK";
                let cut = ended || count.is_some_and(|count| count > recorded.len());
                items(&self.method, recorded, &answer.items, cut, &mut found);
            }
            (Some(recorded), _) => match answer.items.first() {
                Some(answered) => compare(&self.method, "", recorded, answered, &mut found),
                None => found.push("no answer".to_owned()),
            },
            // Of some streams only the number of messages was kept.
            (None, Some(count)) if (count == 0) != answer.items.is_empty() => {
                found.push(format!("{count} items, answered {}", answer.items.len()));
            }
            _ => {}
        }
        found
    }
}

/// Without the services that only a machine has, as a watch tells of them.
fn without_machine_services(message: &Value) -> Option<Value> {
    let mut message = message.clone();
    let events = message["event"].as_array()?;
    let machine_only = |event: &Value| {
        let metadata = &event["resource"]["metadata"];
        metadata["type"] == "Services.v1alpha1.talos.dev"
            && crate::recorded::known::MACHINE_ONLY.iter().any(|id| metadata["id"] == **id)
    };
    let left: Vec<Value> = events.iter().filter(|event| !machine_only(event)).cloned().collect();
    let whole = left.len() == events.len();
    message["event"] = Value::Array(left);
    (whole || message["event"] != json!([])).then_some(message)
}

fn items(method: &str, recorded: &[Value], answered: &[Value], cut: bool, found: &mut Vec<String>) {
    // Lists of resources are compared by id: which of them a container has is another matter, see `KNOWN`.
    if method.ends_with("State/List") {
        for one in recorded {
            let id = &one["resource"]["metadata"]["id"];
            match answered.iter().find(|other| other["resource"]["metadata"]["id"] == *id) {
                Some(other) => compare(method, &format!("[{}]", id.as_str().unwrap()), one, other, found),
                None if crate::recorded::known::absent(one) => {}
                None => found.push(format!("no {id}")),
            }
        }
        for one in answered {
            let id = &one["resource"]["metadata"]["id"];
            let there = recorded.iter().any(|other| other["resource"]["metadata"]["id"] == *id);
            if !there && !cut && !crate::recorded::known::absent(one) {
                found.push(format!("{id} too many"));
            }
        }
        return;
    }
    let watched: Vec<Value>;
    let mut answered = answered;
    if method.ends_with("State/Watch") {
        watched = answered
            .iter()
            .filter_map(|message| {
                if message["event"].is_array() {
                    without_machine_services(message)
                } else {
                    Some(message.clone())
                }
            })
            .collect();
        answered = &watched;
    }
    if method.ends_with("/Events") {
        return events::compare(recorded, answered, cut, found);
    }
    compare(
        method,
        "",
        &Value::Array(recorded.to_vec()),
        &Value::Array(
            answered
                .iter()
                .take(if cut { recorded.len() } else { usize::MAX })
                .cloned()
                .collect(),
        ),
        found,
    );
}

/// Walks both; a value that is another in every run counts as present.
fn compare(method: &str, path: &str, recorded: &Value, answered: &Value, found: &mut Vec<String>) {
    if crate::recorded::known::is_known(method, path) {
        return;
    }
    match (recorded, answered) {
        (Value::Object(left), Value::Object(right)) => {
            for key in left.keys().chain(right.keys().filter(|key| !left.contains_key(*key))) {
                let (one, other) = (left.get(key).unwrap_or(&Value::Null), right.get(key).unwrap_or(&Value::Null));
                compare(method, &format!("{path}.{key}"), one, other, found);
            }
        }
        (Value::Array(left), Value::Array(right)) if path.ends_with(".services") => services(method, left, right, found),
        // Members are in the order of their ids, which are others in every run.
        (Value::Array(left), Value::Array(right)) if path.ends_with("members") && left.len() == right.len() => {
            let by_name = |list: &[Value]| {
                let mut list = list.to_vec();
                list.sort_by_key(|member| member["hostname"].as_str().or(member.as_str()).unwrap_or_default().to_owned());
                list
            };
            let ids: Vec<u64> = right
                .iter()
                .filter_map(|member| member["id"].as_str()?.parse().ok())
                .collect();
            if !ids.is_sorted() {
                found.push(format!("{path} are not in the order of their ids"));
            }
            for (index, (one, other)) in by_name(left).iter().zip(&by_name(right)).enumerate() {
                compare(method, &format!("{path}[{index}]"), one, other, found);
            }
        }
        (Value::Array(left), Value::Array(right)) => {
            for index in 0..left.len().max(right.len()) {
                let (one, other) = (
                    left.get(index).unwrap_or(&Value::Null),
                    right.get(index).unwrap_or(&Value::Null),
                );
                compare(method, &format!("{path}[{index}]"), one, other, found);
            }
        }
        (Value::String(left), Value::String(right)) => {
            let key = path.rsplit(['.', ']']).next().unwrap_or_default();
            if !volatile(key) && !path.contains(".meminfo.") && !same_text(&stable(left), &stable(right)) {
                found.push(format!("{path}\n      {:?}\n      {:?}", stable(left), stable(right)));
            }
        }
        _ if recorded == answered => {}
        _ => found.push(format!("{path}: recorded {}, answered {}", short(recorded), short(answered))),
    }
}

/// A machine has services that a container has not; what both have must be the same.
fn services(method: &str, recorded: &[Value], answered: &[Value], found: &mut Vec<String>) {
    let ids = |list: &[Value]| {
        list.iter()
            .map(|service| service["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let mut there = ids(answered);
    there.retain(|id| !crate::recorded::known::MACHINE_ONLY.contains(&id.as_str()));
    if there != ids(recorded) {
        found.push(format!("services {:?}, answered {there:?}", ids(recorded)));
    }
    for one in recorded {
        if let Some(other) = answered.iter().find(|other| other["id"] == one["id"]) {
            let (one, other) = (&settled(one), &settled(other));
            compare(
                method,
                &format!(".services.{}", one["id"].as_str().unwrap()),
                one,
                other,
                found,
            );
        }
    }
}

/// A first check that came too early is chance.
fn settled(service: &Value) -> Value {
    let mut service = service.clone();
    if let Some(events) = service["events"]["events"].as_array_mut() {
        events.retain(|event| !events::is_chance(event["msg"].as_str().unwrap_or_default()));
    }
    service
}

fn short(value: &Value) -> String {
    let text: String = value.to_string().chars().take(200).collect();
    if value.is_null() { "nothing".to_owned() } else { text }
}

/// Counters, sizes, keys and random names: only their presence can be compared.
fn volatile(key: &str) -> bool {
    [
        "version",
        "modified",
        "size",
        "actor_id",
        "layer_id",
        "db_size",
        "db_size_in_use",
        "raft_index",
        "raft_applied_index",
        "raft_term",
        "leader",
        "member_id",
        "digest",
        "bookmark",
        "bytes",
        "ca",
        "crt",
        "key",
        "talosconfig",
        "proto_spec",
    ]
    .contains(&key)
}

/// The recorder cut long texts: `…(12406 chars)`.
pub fn same_text(recorded: &str, answered: &str) -> bool {
    match recorded.split_once('…') {
        Some((begin, _)) => answered.starts_with(begin),
        None => recorded == answered,
    }
}

/// Times, process ids, member ids, event ids, node ids and secrets are others in every run.
pub fn stable(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    for line in text.split('\n') {
        let secret = ["token:", "key:", "crt:", "secret:", "nodeId:", "secretboxEncryptionSecret:"]
            .iter()
            .find_map(|name| line.find(name).map(|at| at + name.len()));
        let line = secret.map_or_else(|| line.to_owned(), |at| format!("{} …", &line[..at]));
        let mut words = Vec::new();
        let mut pid = false;
        for word in line.split(' ') {
            words.push(if pid { "N".to_owned() } else { stable_word(word) });
            pid = word.ends_with("PID");
        }
        out.push(words.join(" "));
    }
    out.join("\n")
}

fn stable_word(word: &str) -> String {
    let bare = word.trim_matches(['"', '\'', ':', ',', ')', '(']);
    let never = bare == "0001-01-01T00:00:00Z";
    let time = !never && bare.parse::<jiff::Timestamp>().is_ok();
    let number = bare.len() >= 15 && bare.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((name, _)) = bare.split_once("sha256:").or_else(|| bare.split_once("containerd://")) {
        return format!("{name}~");
    }
    let hex = bare.len() == 16 && bare.bytes().all(|byte| byte.is_ascii_hexdigit());
    let xid = bare.len() == 20 && bare.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'v'));
    if !bare.is_empty() && (time || number || hex || xid) {
        word.replace(bare, "~")
    } else {
        word.to_owned()
    }
}
