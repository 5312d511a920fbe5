//! Plays a scenario: the requests byte for byte as they were sent, the answers as they come.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use mainstay_net::{Binder, Dialer, Entropy, SimNet, Target, Wall};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::normal::{Normal, canonical, difference, resorted};
use super::{Different, Folder, Outcome, web};
use crate::guest::{Content, Hardware, Pace};
use crate::{AgentOs, Datacenter, Serving, SimEnv, World};

const BOUNDARY: &str = "scenario-boundary-7f3a";

struct Player<'a> {
    folder: &'a Folder,
    net: SimNet,
    dc: Datacenter,
    normal: Normal,
    /// Raw answers by step, for placeholders.
    raw: BTreeMap<u64, Value>,
    tickets: BTreeMap<String, (String, String)>,
    _serving: Serving,
}

struct Reply {
    status: u16,
    reason: String,
    headers: BTreeMap<String, String>,
    body: Bytes,
}

impl Reply {
    fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }
}

/// Plays one scenario and compares its stable steps.
pub(super) async fn play(folder: &Folder, scenario: &Value) -> Outcome {
    let mut player = Player::new(folder).await;
    let mut outcome = Outcome {
        name: text(scenario, "name"),
        stable: 0,
        different: Vec::new(),
    };
    for step in scenario["steps"].as_array().into_iter().flatten() {
        let got = player.step(step).await;
        if step["method"] == "LAB" || step["unstable"] == true {
            continue;
        }
        outcome.stable += 1;
        let why = compare(step, &got);
        if !why.is_empty() {
            let what = ["path", "url", "upid"]
                .iter()
                .find_map(|k| step[*k].as_str())
                .unwrap_or_default();
            let call = format!("{} {} {what}", text(step, "as"), text(step, "method"));
            outcome.different.push(Different {
                step: step["n"].as_u64().unwrap_or(0),
                call,
                why,
            });
        }
    }
    outcome
}

fn compare(step: &Value, got: &Value) -> Vec<String> {
    let mut lines = difference(&resorted(&step["answer"]), &resorted(&got["answer"]), "answer");
    let (want, have) = (&step["task"], &got["task"]);
    if !want.is_null() || !have.is_null() {
        let part = |task: &Value| json!({ "upid": task["upid"], "exitstatus": task["exitstatus"], "log": task["log"] });
        lines.extend(difference(&part(want), &part(have), "task"));
    }
    lines
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_string()
}

/// A scalar as Python's `str` writes it.
fn plain(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Null => "None".into(),
        other => other.to_string(),
    }
}

fn quote(text: &str) -> String {
    let safe = |b: u8| b.is_ascii_alphanumeric() || b"_.-~".contains(&b);
    text.bytes()
        .map(|b| {
            if safe(b) {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}

fn encode(pairs: &Value) -> String {
    let mut parts = Vec::new();
    for (key, value) in pairs.as_object().into_iter().flatten() {
        let values = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
        parts.extend(values.iter().map(|v| format!("{}={}", quote(key), quote(&plain(v)))));
    }
    parts.join("&")
}

impl<'a> Player<'a> {
    async fn new(folder: &'a Folder) -> Self {
        let world = World::parse(&folder.world.to_string()).expect("the folder's world can be read");
        let net = SimNet::new(Entropy::from_seed(1));
        let env = SimEnv {
            network: Arc::new(net.clone()),
            dialer: Arc::new(net.clone()),
            wall: Wall::at("2026-11-15T20:00:00Z".parse().expect("a timestamp")),
            entropy: Entropy::from_seed(2),
            pace: Pace::default(),
            tls: false,
        };
        let marker = agent_image(&folder.world);
        let guests = AgentOs {
            knows: move |hardware: &Hardware| boots(hardware, &marker),
            boot: Duration::from_secs(20),
        };
        let addresses = world
            .nodes
            .iter()
            .map(|(name, node)| (name.clone(), format!("{}:8006", node.ip).parse().expect("an address")));
        let addresses = addresses.collect();
        let dc = Datacenter::new(world, env, Arc::new(guests));
        let serving = dc.serve(addresses).await.expect("a fresh network has free addresses");
        let listener = net
            .bind("127.0.0.1:9000".parse().expect("an address"))
            .await
            .expect("a fresh network has free addresses");
        tokio::spawn(web::serve(listener, Arc::clone(&folder.files)));
        Self {
            folder,
            net,
            dc,
            normal: Normal::default(),
            raw: BTreeMap::new(),
            tickets: BTreeMap::new(),
            _serving: serving,
        }
    }

    async fn step(&mut self, step: &Value) -> Value {
        if let Some(pause) = step["pause_before"].as_f64() {
            tokio::time::sleep(Duration::from_secs_f64(pause)).await;
        }
        match step["method"].as_str() {
            Some("LAB") => {
                let words: Vec<String> = step["lab"].as_array().into_iter().flatten().map(plain).collect();
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let done = self.dc.lab().act(&words).await;
                json!({ "answer": { "status": if done.is_ok() { 200 } else { 501 }, "reason": "lab", "body": Value::Null } })
            }
            Some("WAIT") => {
                let upid = self.fill(&step["upid"], false).await;
                let upid = upid.as_str().unwrap_or_default().to_string();
                let task = if upid.starts_with("UPID") {
                    self.wait(&upid).await
                } else {
                    Value::Null
                };
                json!({ "answer": { "status": 200, "reason": "wait", "body": Value::Null }, "task": task })
            }
            _ => self.request_step(step).await,
        }
    }

    async fn request_step(&mut self, step: &Value) -> Value {
        let began = Instant::now();
        let until = &step["until"];
        let limit = Duration::from_secs_f64(until["timeout"].as_f64().unwrap_or(60.0));
        let (reply, view) = loop {
            let reply = self.request(step).await;
            let view = self.view(&reply);
            let body = canonical(&view["body"]);
            let has = |key: &str, wanted: bool| {
                until[key]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .all(|x| body.contains(x) == wanted)
            };
            if until.is_null() || has("contains", true) && has("lacks", false) || began.elapsed() > limit {
                break (reply, view);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        let parsed = reply.json();
        let data = parsed
            .as_ref()
            .and_then(|p| p.get("data"))
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_string();
        let raw = parsed.unwrap_or_else(|| json!(String::from_utf8_lossy(&reply.body)));
        self.raw.insert(step["n"].as_u64().unwrap_or(0), raw);
        let mut result = json!({ "answer": view });
        if step["wait"] != false && data.starts_with("UPID:") && step["method"] != "GET" {
            result["task"] = self.wait(&data).await;
        }
        result
    }

    /// An answer as it is compared.
    fn view(&self, reply: &Reply) -> Value {
        if reply.status == 0 {
            return json!({ "status": 0, "reason": "<connection closed>", "body": Value::Null });
        }
        let body = match reply.json() {
            Some(body) => self.normal.message(self.normal.value(&body, "")),
            None => json!(self.normal.text(&String::from_utf8_lossy(&reply.body))),
        };
        let mut view = json!({
            "status": reply.status, "reason": self.normal.text(&reply.reason), "content_type": reply.headers.get("content-type"), "body": body,
        });
        if let Some(allow) = reply.headers.get("allow") {
            view["allow"] = json!(allow);
        }
        view
    }

    /// Replaces `{{step3.data.digest|enc}}` and its like.
    async fn fill(&mut self, value: &Value, encoded: bool) -> Value {
        match value {
            Value::String(text) => json!(self.fill_text(text, encoded).await),
            Value::Array(items) => {
                let mut out = Vec::new();
                for item in items {
                    out.push(Box::pin(self.fill(item, encoded)).await);
                }
                Value::Array(out)
            }
            Value::Object(members) => {
                let mut out = serde_json::Map::new();
                for (key, item) in members {
                    out.insert(key.clone(), Box::pin(self.fill(item, encoded)).await);
                }
                Value::Object(out)
            }
            other => other.clone(),
        }
    }

    async fn fill_text(&mut self, text: &str, encoded: bool) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let Some((inner, tail)) = after.split_once("}}") else { break };
            out.push_str(before);
            let (path, mode) = inner.split_once('|').map_or((inner, ""), |(p, m)| (p, m));
            let value = self.look_up(path).await;
            out.push_str(&if encoded || mode == "enc" { quote(&value) } else { value });
            rest = tail;
        }
        out + rest
    }

    async fn look_up(&mut self, path: &str) -> String {
        let mut parts = path.split('.');
        let first = parts.next().unwrap_or_default();
        if first == "principal" {
            let name = parts.next().unwrap_or_default().to_string();
            let (ticket, csrf) = self.ticket(&name).await;
            return if parts.next() == Some("csrf") { csrf } else { ticket };
        }
        let number: u64 = first.trim_start_matches("step").parse().unwrap_or(0);
        let mut value = self.raw.get(&number).cloned().unwrap_or(Value::Null);
        for part in parts {
            value = match part.parse::<usize>() {
                Ok(index) if value.is_array() => value[index].clone(),
                _ => value.get(part).cloned().unwrap_or(Value::Null),
            };
        }
        if value.is_null() { String::new() } else { plain(&value) }
    }

    async fn ticket(&mut self, name: &str) -> (String, String) {
        if let Some(known) = self.tickets.get(name) {
            return known.clone();
        }
        let principal = &self.folder.world["principals"][name];
        let body = encode(&json!({ "username": principal["user"], "password": principal["password"] }));
        let head = format!(
            "POST /api2/json/access/ticket HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let reply = self.send("pve1", head.as_bytes(), body.as_bytes()).await;
        let data = reply.json().unwrap_or(Value::Null)["data"].clone();
        let pair = (text(&data, "ticket"), text(&data, "CSRFPreventionToken"));
        self.tickets.insert(name.into(), pair.clone());
        pair
    }

    async fn auth(&mut self, name: &str, method: &str) -> Vec<(String, String)> {
        let principal = self.folder.world["principals"][name].clone();
        match principal["auth"].as_str() {
            Some("token") => {
                vec![(
                    "Authorization".into(),
                    format!("PVEAPIToken={}={}", text(&principal, "token"), text(&principal, "secret")),
                )]
            }
            Some("ticket") => {
                let (ticket, csrf) = self.ticket(name).await;
                let mut headers = vec![("Cookie".into(), format!("PVEAuthCookie={}", quote(&ticket)))];
                if method != "GET" {
                    headers.push(("CSRFPreventionToken".into(), csrf));
                }
                headers
            }
            _ => Vec::new(),
        }
    }

    async fn request(&mut self, step: &Value) -> Reply {
        let method = text(step, "method");
        let mut url = match step["url"].as_str() {
            Some(url) => self.fill_text(url, true).await,
            None => format!(
                "/api2/json{}",
                self.fill_text(step["path"].as_str().unwrap_or_default(), true).await
            ),
        };
        if step["query"].as_object().is_some_and(|q| !q.is_empty()) {
            let query = self.fill(&step["query"], false).await;
            url = format!("{url}{}{}", if url.contains('?') { "&" } else { "?" }, encode(&query));
        }
        let mut headers: Vec<(String, String)> = [
            ("Host", "127.0.0.1:8006"),
            ("User-Agent", "scenario"),
            ("Accept", "*/*"),
            ("Connection", "close"),
        ]
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .into();
        let principal = step["as"].as_str().unwrap_or("anon").to_string();
        headers.extend(self.auth(&principal, &method).await);
        let (body, kind) = self.body(step).await;
        if let Some(kind) = kind {
            headers.push(("Content-Type".into(), kind));
        }
        if matches!(method.as_str(), "POST" | "PUT") || !body.is_empty() {
            headers.push(("Content-Length".into(), body.len().to_string()));
        }
        for (name, value) in step["headers"].as_object().cloned().into_iter().flatten() {
            headers.retain(|(n, _)| *n != name);
            if !value.is_null() {
                headers.push((name, plain(&self.fill(&value, false).await)));
            }
        }
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("{method} {url} HTTP/1.1\r\n{lines}\r\n");
        let via = step["via"].as_str().unwrap_or("pve1").to_string();
        self.send(&via, head.as_bytes(), &body).await
    }

    async fn body(&mut self, step: &Value) -> (Vec<u8>, Option<String>) {
        let form = || Some("application/x-www-form-urlencoded".to_string());
        if step.get("form").is_some() {
            let filled = self.fill(&step["form"], false).await;
            return (encode(&filled).into_bytes(), form());
        }
        if step.get("json").is_some() {
            let filled = self.fill(&step["json"], false).await;
            return (filled.to_string().into_bytes(), Some("application/json".into()));
        }
        match &step["raw"] {
            Value::Object(raw) => {
                let count = raw["count"].as_u64().unwrap_or(0) as usize;
                let body = raw.get("prefix").map(plain).unwrap_or_default() + &plain(&raw["char"]).repeat(count);
                return (body.into_bytes(), form());
            }
            Value::String(raw) => return (self.fill_text(raw, false).await.into_bytes(), form()),
            _ => {}
        }
        match step["multipart"].as_array() {
            Some(parts) => (
                self.multipart(parts),
                Some(format!("multipart/form-data; boundary={BOUNDARY}")),
            ),
            None => (Vec::new(), None),
        }
    }

    fn multipart(&self, parts: &[Value]) -> Vec<u8> {
        let mut body = Vec::new();
        for part in parts {
            body.extend(format!("--{BOUNDARY}\r\n").bytes());
            for header in part["headers"].as_array().into_iter().flatten() {
                body.extend(format!("{}\r\n", plain(header)).bytes());
            }
            body.extend(b"\r\n");
            match part["file"].as_str().and_then(|name| self.folder.files.get(name)) {
                Some(bytes) => body.extend_from_slice(bytes),
                None => body.extend(text(part, "text").bytes()),
            }
            body.extend(b"\r\n");
        }
        body.extend(format!("--{BOUNDARY}--\r\n").bytes());
        body
    }

    /// One connection, one request. What breaks on the way is an answer that did not come.
    async fn send(&self, via: &str, head: &[u8], body: &[u8]) -> Reply {
        let address = self.folder.world["nodes"][via]["ip"]
            .as_str()
            .unwrap_or("10.99.0.1")
            .to_string();
        let nothing = || Reply {
            status: 0,
            reason: String::new(),
            headers: BTreeMap::new(),
            body: Bytes::new(),
        };
        let Ok(mut stream) = self.net.dial(&Target::new(address, 8006)).await else {
            return nothing();
        };
        let _ = stream.write_all(head).await;
        let _ = stream.write_all(body).await;
        let mut bytes = BytesMut::new();
        while let Ok(count) = stream.read_buf(&mut bytes).await {
            if count == 0 || complete(&bytes) {
                break;
            }
        }
        parse(&bytes).unwrap_or_else(nothing)
    }

    async fn observe(&mut self, path: &str) -> Value {
        let observer = text(&self.folder.world, "observer");
        let reply = self
            .request(&json!({ "as": observer, "method": "GET", "path": path, "via": "pve1" }))
            .await;
        reply.json().map_or(Value::Null, |body| body["data"].clone())
    }

    /// Waits for a task as the recorder did.
    async fn wait(&mut self, upid: &str) -> Value {
        let node = upid.split(':').nth(1).unwrap_or_default().to_string();
        let (encoded, began) = (quote(upid), Instant::now());
        let mut exit = Value::Null;
        while began.elapsed() < Duration::from_secs(180) {
            let status = self.observe(&format!("/nodes/{node}/tasks/{encoded}/status")).await;
            if status["status"] == "stopped" {
                exit = status["exitstatus"].clone();
                break;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        let log = self.observe(&format!("/nodes/{node}/tasks/{encoded}/log?limit=0")).await;
        let lines: Vec<&str> = log.as_array().into_iter().flatten().filter_map(|l| l["t"].as_str()).collect();
        json!({
            "upid": self.normal.text(upid), "exitstatus": self.normal.text(exit.as_str().unwrap_or("<still running>")),
            "log": self.normal.log(&lines),
        })
    }
}

/// What marks the image that has an agent: the world knows it by its checksum.
fn agent_image(world: &Value) -> String {
    let volumes = world["volumes"]
        .as_object()
        .into_iter()
        .flatten()
        .flat_map(|(_, s)| s.as_object().into_iter().flatten());
    let volumes = volumes.flat_map(|(_, list)| list.as_array().into_iter().flatten());
    let guest = volumes.into_iter().find(|v| v["volid"] == "local:import/guest.qcow2");
    guest.map(|v| text(v, "sha256")).unwrap_or_default()
}

fn boots(hardware: &Hardware, marker: &str) -> bool {
    let first = hardware.disks.first().map(|d| d.content.read());
    matches!(first, Some(Content::Image(bytes)) if bytes == marker.as_bytes())
}

fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4)
}

fn complete(bytes: &[u8]) -> bool {
    let Some(end) = head_end(bytes) else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length = head
        .split("\r\n")
        .find_map(|l| l.strip_prefix("content-length:"))
        .and_then(|l| l.trim().parse::<usize>().ok());
    length.is_some_and(|length| bytes.len() - end >= length)
}

fn parse(bytes: &[u8]) -> Option<Reply> {
    let end = head_end(bytes)?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let first = lines.next()?;
    let rest = first.split_once(' ')?.1;
    let (status, reason) = rest.split_once(' ').unwrap_or((rest, ""));
    let headers = lines
        .filter_map(|l| l.split_once(':'))
        .map(|(k, v)| (k.to_lowercase(), v.trim().to_string()))
        .collect();
    Some(Reply {
        status: status.parse().ok()?,
        reason: reason.to_string(),
        headers,
        body: Bytes::copy_from_slice(&bytes[end..]),
    })
}

#[cfg(test)]
mod tests {
    use super::quote;
    use crate::http::unescape;

    #[test]
    fn quoting_is_undone_by_the_server() {
        let text = "order=scsi0;net0 ü+%";
        assert_eq!(unescape(&quote(text)), text);
    }
}
