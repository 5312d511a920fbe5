//! What differs between two recordings of the same thing is made equal: ids, times, addresses, sizes of the host.

use regex::{Captures, Regex};
use serde_json::{Map, Value, json};

/// Below these, only shape and types count.
const DEEP: &[&str] = &[
    "cpuinfo",
    "memory_",
    "rootfs",
    "swap",
    "ksm",
    "boot-info",
    "current-kernel",
    "blockstat",
    "ballooninfo",
    "nics",
    "loadavg",
    "proxmox-support",
    "statistics",
];

fn number_tag(key: &str) -> Option<&'static str> {
    Some(match key {
        "pid" | "pstart" | "uptime" | "cpu" | "mem" | "memhost" | "freemem" | "netin" | "netout" | "diskread" | "diskwrite"
        | "used" | "avail" | "used_fraction" | "wait" | "idle" => "num",
        "starttime" | "endtime" | "ctime" | "time" | "localtime" | "mtime" | "snaptime" | "timestamp" | "lastupdate" => "time",
        key if key.starts_with("pressure") => "num",
        _ => return None,
    })
}

fn text_tag(key: &str) -> Option<&'static str> {
    Some(match key {
        "digest" => "digest",
        "ssl_fingerprint" | "fingerprint" => "fingerprint",
        "kversion" | "pem" => "str",
        "running-machine" | "running-qemu" => "ver",
        "CSRFPreventionToken" => "csrf",
        "vmgenid" => "uuid",
        _ => return None,
    })
}

/// The patterns, compiled once.
pub struct Normal {
    upid: Regex,
    uuid: Regex,
    mac: Regex,
    numeric: Regex,
    plain_number: Regex,
    tag: Regex,
    content: Regex,
    noise: Regex,
    stamp: Regex,
    replacements: Vec<(Regex, &'static str)>,
}

fn re(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a fixed pattern")
}

impl Default for Normal {
    fn default() -> Self {
        Self {
            upid: re(r#"UPID:([A-Za-z0-9\-]+):[0-9A-Fa-f]{8}:[0-9A-Fa-f]{8,9}:[0-9A-Fa-f]{8}:([^:\s]+):([^:\s]*):([^:\s'"]+):"#),
            uuid: re(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"),
            mac: re(r"\b[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}\b"),
            numeric: re(r"^-?[0-9.]+(e[+-]?\d+)?$"),
            plain_number: re(r"^-?[0-9.]+$"),
            tag: re(r"^<[a-z]+>$"),
            content: re(r"^[a-z]+(,[a-z]+)+$"),
            noise: re(concat!(
                r"^(--\d{4}-|Connecting to |HTTP request sent|Length: |Saving to: |\s*\d+K[ .]|\s*$|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (\(|ERROR )",
                r"|Formatting '|transferred |kvm: |qemu-img: warning|\d+\+\d+ records (in|out)|\d+ bytes .* copied|Image resized\.",
                r"|Connection closed|Retrying|WARNING: .*locale|Warning: Permanently added|swtpm|  *Volume id|I: |Location: )"
            )),
            stamp: re(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "),
            replacements: vec![
                (re(r"creation-qemu=[^,]+,ctime=\d+"), "creation-qemu=<ver>,ctime=<time>"),
                (re(r"tmp_(dwnl|dcom)\.\d+"), "tmp_$1.<pid>"),
                (re(r"pveupload-[0-9a-f]{32}"), "pveupload-<hex>"),
                (re(r"PVE:[^:\s]+:[0-9A-F]{8}::[A-Za-z0-9+/=]+"), "<ticket>"),
                (re(r"\$[56y]\$[A-Za-z0-9./$]+"), "<crypt>"),
                (re(r"\bpid \d+"), "pid <pid>"),
                (re(r"\b(HASH|ARRAY|CODE)\(0x[0-9a-f]+\)"), "$1(<hex>)"),
                (re(r"\(duration \d\d:\d\d:\d\d\)"), "(duration <time>)"),
                (re(r"(QEMU|KVM) version '[0-9.]+'"), "$1 version '<ver>'"),
                (re(r"pve-storage-lock-\S+"), "pve-storage-lock-<hex>"),
                (re(r"(/etc/pve/\S*?|\.conf)\.tmp\.\d+(\.\d+)?"), "$1.tmp.<pid>"),
                (re(r"at /usr/share/perl5/(\S+) line \d+"), "at /usr/share/perl5/$1 line <num>"),
            ],
        }
    }
}

impl Normal {
    pub fn text(&self, text: &str) -> String {
        let text = self.upid.replace_all(text, |c: &Captures<'_>| {
            format!("<upid:{}:{}:{}:{}>", &c[1], &c[2], &c[3], &c[4])
        });
        let keep = |c: &Captures<'_>, chosen: bool, tag: &str| if chosen { c[0].to_string() } else { tag.to_string() };
        let text = self
            .uuid
            .replace_all(&text, |c: &Captures<'_>| keep(c, c[0].starts_with("a0000000-"), "<uuid>"));
        let text = self.mac.replace_all(&text, |c: &Captures<'_>| {
            keep(c, c[0].to_lowercase().starts_with("02:00:"), "<mac>")
        });
        self.replacements.iter().fold(text.into_owned(), |text, (pattern, with)| {
            pattern.replace_all(&text, *with).into_owned()
        })
    }

    fn scrub(&self, value: &Value) -> Value {
        match value {
            Value::Object(members) => Value::Object(
                members
                    .iter()
                    .map(|(k, v)| (self.mac.replace_all(k, "<mac>").into_owned(), self.scrub(v)))
                    .collect(),
            ),
            Value::Array(items) => Value::Array(items.iter().map(|v| self.scrub(v)).collect()),
            Value::Number(_) => json!("<num>"),
            Value::String(s) if self.tag.is_match(s) => value.clone(),
            Value::String(s) if self.plain_number.is_match(s) => json!("<numstr>"),
            Value::String(_) => json!("<str>"),
            other => other.clone(),
        }
    }

    pub fn value(&self, value: &Value, key: &str) -> Value {
        match value {
            Value::Object(members) => Value::Object(self.object(members)),
            Value::Array(items) => self.array(items, key),
            Value::String(text) if key == "content" && self.content.is_match(text) => {
                let mut parts: Vec<&str> = text.split(',').collect();
                parts.sort_unstable();
                json!(parts.join(","))
            }
            Value::String(text) => json!(self.text(text)),
            other => other.clone(),
        }
    }

    fn object(&self, members: &Map<String, Value>) -> Map<String, Value> {
        let of_host = matches!(members.get("type").and_then(Value::as_str), Some("node" | "storage"))
            || members.contains_key("used_fraction")
            || members.contains_key("avail") && members.contains_key("total");
        let is_digest = members.get("key").is_some_and(|k| k == "digest") && members.get("value").is_some_and(Value::is_string);
        let mut normal = Map::new();
        for (key, value) in members {
            let scalar = !value.is_object() && !value.is_array() && !value.is_boolean() && !value.is_null();
            let countable = scalar && value.as_str().is_none_or(|s| self.numeric.is_match(s));
            let new = if is_digest && key == "value" {
                json!("<digest>")
            } else if DEEP.contains(&key.as_str()) || key == "memory" && value.is_object() {
                self.scrub(value)
            } else if let Some(tag) = number_tag(key).filter(|_| countable) {
                json!(if value.is_string() {
                    format!("<{tag}str>")
                } else {
                    format!("<{tag}>")
                })
            } else if of_host && matches!(key.as_str(), "disk" | "maxdisk" | "maxmem" | "maxcpu" | "total") && value.is_number() {
                json!("<num>")
            } else if let Some(tag) = text_tag(key).filter(|_| value.is_string()) {
                json!(format!("<{tag}>"))
            } else {
                self.value(value, key)
            };
            normal.insert(key.clone(), new);
        }
        normal
    }

    fn array(&self, items: &[Value], key: &str) -> Value {
        let mut normal: Vec<Value> = items.iter().map(|v| self.value(v, key)).collect();
        let is_log = !normal.is_empty() && normal.iter().all(|v| v.get("n").is_some() && v.get("t").is_some());
        if is_log {
            let lines: Vec<&str> = items.iter().filter_map(|v| v["t"].as_str()).collect();
            let lines = self.log(&lines);
            return Value::Array(lines.iter().enumerate().map(|(n, t)| json!({ "n": n + 1, "t": t })).collect());
        }
        let sorted_texts = matches!(key, "nodes" | "allowed_nodes" | "formats") && normal.iter().all(Value::is_string);
        if normal.iter().all(Value::is_object) || sorted_texts {
            normal.sort_by_key(canonical);
        }
        Value::Array(normal)
    }

    /// A task's log without what carries no meaning.
    pub fn log(&self, lines: &[&str]) -> Vec<String> {
        let meaningful = |line: &&&str| !self.noise.is_match(line) && !self.noise.is_match(&self.stamp.replace(line, ""));
        lines
            .iter()
            .filter(meaningful)
            .map(|line| self.text(&self.stamp.replace(line, "<time> ")))
            .collect()
    }

    /// Several parameter errors arrive in random order in the message.
    pub fn message(&self, mut body: Value) -> Value {
        let has_errors = body
            .get("errors")
            .is_some_and(|e| e.as_object().is_some_and(|e| !e.is_empty()));
        if let Some(text) = body.get("message").and_then(Value::as_str).filter(|_| has_errors)
            && let Some((head, rest)) = text.split_once('\n').filter(|(_, rest)| !rest.is_empty())
        {
            let mut lines: Vec<&str> = rest.split('\n').collect();
            lines.sort_unstable();
            body["message"] = json!(format!("{head}\n{}", lines.join("\n")));
        }
        body
    }
}

/// One spelling per value: members sorted.
pub(super) fn canonical(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let mut pairs: Vec<(&String, &Value)> = members.iter().collect();
            pairs.sort_by_key(|(key, _)| *key);
            let pairs: Vec<String> = pairs
                .iter()
                .map(|(key, value)| format!("{}:{}", json!(key), canonical(value)))
                .collect();
            format!("{{{}}}", pairs.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}

/// Lists of objects in the recording are sorted again, since two languages sort differently.
pub(super) fn resorted(value: &Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(members.iter().map(|(k, v)| (k.clone(), resorted(v))).collect()),
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(resorted).collect();
            let is_log = items.iter().all(|v| v.get("n").is_some() && v.get("t").is_some());
            if !items.is_empty() && items.iter().all(Value::is_object) && !is_log {
                items.sort_by_key(canonical);
            }
            Value::Array(items)
        }
        other => other.clone(),
    }
}

/// Where two values differ, as lines.
pub fn difference(want: &Value, got: &Value, path: &str) -> Vec<String> {
    match (want, got) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.dedup();
            keys.iter()
                .flat_map(|key| differing_member(a.get(*key), b.get(*key), &format!("{path}.{key}")))
                .collect()
        }
        (Value::Array(a), Value::Array(b)) => (0..a.len().max(b.len()))
            .flat_map(|i| differing_member(a.get(i), b.get(i), &format!("{path}[{i}]")))
            .collect(),
        _ if want == got => Vec::new(),
        _ => vec![format!("{path}: want {}, got {}", short(want), short(got))],
    }
}

fn differing_member(want: Option<&Value>, got: Option<&Value>, path: &str) -> Vec<String> {
    match (want, got) {
        (Some(want), Some(got)) => difference(want, got, path),
        (Some(want), None) => vec![format!("{path}: missing (want {})", short(want))],
        (None, Some(got)) => vec![format!("{path}: unexpected {}", short(got))],
        (None, None) => Vec::new(),
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(220) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Normal;

    #[test]
    fn what_the_scenarios_chose_is_kept() {
        let normal = Normal::default();
        assert_eq!(
            normal.text("uuid=a0000000-1111-4222-8333-000000001000"),
            "uuid=a0000000-1111-4222-8333-000000001000"
        );
        assert_eq!(normal.text("virtio=BC:24:11:00:00:01,x"), "virtio=<mac>,x");
        assert_eq!(
            normal.text("UPID:pve1:0000041D:0002756E:6AFA12B7:qmcreate:101:root@pam!t:"),
            "<upid:pve1:qmcreate:101:root@pam!t>"
        );
    }

    #[test]
    fn numbers_as_text_stay_text() {
        let normal = Normal::default();
        assert_eq!(
            normal.value(&json!({ "expire": "1", "pid": "12", "uptime": 3 }), ""),
            json!({ "expire": "1", "pid": "<numstr>", "uptime": "<num>" })
        );
    }
}
