//! How late the end of each task is noticed: when the simulated datacenter ended it, and when an answer first told so.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use pve_sim::{Observer, Seen};
use serde_json::Value;
use tokio::time::Instant;

/// Watches the requests of a run.
#[derive(Default)]
pub struct Listener(Mutex<Heard>);

#[derive(Default)]
struct Heard {
    requests: u64,
    /// When the last start was sent, and how many requests came until then, itself included.
    last_start: Option<(Instant, u64)>,
    /// Tasks that ended and whose end was not told yet.
    ended: BTreeMap<String, Instant>,
    late: BTreeMap<String, Late>,
}

/// Tasks of one kind.
#[derive(Debug, Clone, Copy, Default)]
pub struct Late {
    pub tasks: u32,
    pub sum: Duration,
    pub worst: Duration,
}

impl Late {
    pub fn mean(&self) -> Duration {
        self.sum.checked_div(self.tasks).unwrap_or_default()
    }
}

impl Listener {
    pub fn last_start(&self) -> Option<(Instant, u64)> {
        self.0.lock().expect("plain data").last_start
    }

    /// By kind of task.
    pub fn late(&self) -> BTreeMap<String, Late> {
        self.0.lock().expect("plain data").late.clone()
    }
}

impl Heard {
    fn noticed(&mut self, upid: &str) {
        let Some(ended) = self.ended.remove(upid) else { return };
        let kind = upid.split(':').nth(5).unwrap_or_default().to_owned();
        let late = self.late.entry(kind).or_default();
        late.tasks += 1;
        late.sum += ended.elapsed();
        late.worst = late.worst.max(ended.elapsed());
    }
}

impl Observer for Listener {
    fn request(&self, seen: &Seen) {
        let mut heard = self.0.lock().expect("plain data");
        heard.requests += 1;
        let answer = || serde_json::from_str::<Value>(&seen.answer).unwrap_or_default();
        match seen.template {
            Some("/nodes/{node}/qemu/{vmid}/status/start") => heard.last_start = Some((Instant::now(), heard.requests)),
            Some("/nodes/{node}/tasks/{upid}/status") if seen.answer.contains("stopped") => {
                if let Some(upid) = answer()["data"]["upid"].as_str() {
                    heard.noticed(upid);
                }
            }
            Some("/nodes/{node}/tasks") => {
                let ended = answer()["data"].as_array().cloned().unwrap_or_default();
                for task in ended.iter().filter(|task| !task["endtime"].is_null()) {
                    heard.noticed(task["upid"].as_str().unwrap_or_default());
                }
            }
            _ => {}
        }
    }

    fn task_ended(&self, upid: &str) {
        self.0
            .lock()
            .expect("plain data")
            .ended
            .insert(upid.to_owned(), Instant::now());
    }
}
