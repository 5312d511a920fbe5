//! Reports to observers: every request with its answer, and every lasting effect.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

/// Watches a datacenter. Calls come in the order of events; they must not call back into the datacenter.
pub trait Observer: Send + Sync + 'static {
    fn request(&self, _seen: &Seen) {}

    /// `by` is `user@realm` or `user@realm!token`.
    fn effect(&self, _by: &str, _effect: &Effect) {}

    /// A task has ended.
    fn task_ended(&self, _upid: &str) {}
}

/// A request and what became of it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The host that was contacted.
    pub host: String,
    pub by: Option<String>,
    pub verb: String,
    /// Decoded, without the format prefix.
    pub path: String,
    /// The call's template, `/nodes/{node}/qemu`, where there is one.
    pub template: Option<&'static str>,
    pub params: Value,
    /// `None`: the connection was cut.
    pub status: Option<u16>,
    pub reason: String,
    pub answer: String,
}

impl Seen {
    /// One line of a recording.
    pub fn to_json(&self) -> Value {
        json!({
            "host": self.host, "by": self.by, "method": self.verb, "path": self.path, "params": self.params, "status": self.status,
            "reason": self.reason, "body": self.answer,
        })
    }
}

/// A change of something that outlives the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    VmCreated { vmid: u32, host: String },
    VmConfigured { vmid: u32, keys: Vec<String> },
    VmStarted { vmid: u32 },
    VmStopped { vmid: u32 },
    VmReset { vmid: u32 },
    VmMoved { vmid: u32, to: String },
    VmTemplated { vmid: u32 },
    VmRemoved { vmid: u32 },
    VolumeCreated { volid: String, host: String },
    VolumeRemoved { volid: String, host: String },
    VolumeResized { volid: String, size: u64 },
    PoolChanged { pool: String },
    AclChanged { path: String },
    UserChanged { user: String },
    StorageChanged { storage: String },
    OptionsChanged,
}

/// How often each call was made.
#[derive(Default)]
pub struct Stats(Mutex<BTreeMap<String, u64>>);

impl Stats {
    pub(crate) fn count(&self, call: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(call).or_default() += 1;
    }

    /// Calls as `GET /nodes/{node}/qemu`, with their number.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn total(&self) -> u64 {
        self.calls().values().sum()
    }
}
