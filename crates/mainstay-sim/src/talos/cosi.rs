//! The resource store of a node: versions that count up, and a log that watches read from.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use jiff::Timestamp;
use mainstay_net::Wall;
use serde_json::Value;
use talos_proto::cosi::resource as proto;
use tokio::sync::watch;

use super::kinds::{Kind, described};
use crate::yaml;

/// Changes a watch may still read; who falls behind further is cut off.
const LOG: usize = 1024;

/// A spec in both encodings. The text is written when a client reads it: most specs are replaced before that.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    value: Value,
    pub proto: Vec<u8>,
    text: OnceLock<String>,
}

impl PartialEq for Spec {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value && self.proto == other.proto
    }
}

impl Spec {
    pub fn new(value: impl Into<Value>, message: &impl prost::Message) -> Self {
        Self {
            value: value.into(),
            proto: message.encode_to_vec(),
            text: OnceLock::new(),
        }
    }

    /// One that is shown as text alone.
    pub fn plain(value: Value) -> Self {
        Self {
            value,
            proto: Vec::new(),
            text: OnceLock::new(),
        }
    }

    pub fn value(&self) -> &Value {
        &self.value
    }

    pub fn yaml(&self) -> &str {
        self.text.get_or_init(|| yaml::emit(&self.value))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Resource {
    pub kind: &'static Kind,
    pub id: String,
    version: u64,
    created: Timestamp,
    updated: Timestamp,
    pub spec: Arc<Spec>,
}

impl Resource {
    pub fn to_proto(&self) -> proto::Resource {
        let annotations = if self.kind.is_config() {
            BTreeMap::from([("talos.dev/yaml-spec".to_owned(), "1".to_owned())])
        } else {
            BTreeMap::new()
        };
        let metadata = proto::Metadata {
            namespace: self.kind.namespace.to_owned(),
            r#type: self.kind.name.to_owned(),
            id: self.id.clone(),
            version: self.version.to_string(),
            owner: self.kind.owner.to_owned(),
            phase: "running".to_owned(),
            created: Some(stamp(self.created)),
            updated: Some(stamp(self.updated)),
            finalizers: self.kind.finalizers(&self.id),
            labels: self.kind.labels(),
            annotations,
        };
        let spec = proto::Spec {
            proto_spec: self.spec.proto.clone(),
            yaml_spec: self.spec.yaml().to_owned(),
        };
        proto::Resource {
            metadata: Some(metadata),
            spec: Some(spec),
        }
    }
}

/// A resource that is not there, as watches report it.
pub(crate) fn tombstone(kind: &'static Kind, id: &str, now: Timestamp) -> proto::Resource {
    let metadata = proto::Metadata {
        namespace: kind.namespace.to_owned(),
        r#type: kind.name.to_owned(),
        id: id.to_owned(),
        version: "undefined".to_owned(),
        phase: "running".to_owned(),
        created: Some(stamp(now)),
        updated: Some(stamp(now)),
        ..proto::Metadata::default()
    };
    proto::Resource {
        metadata: Some(metadata),
        spec: Some(proto::Spec::default()),
    }
}

pub(crate) fn stamp(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: at.as_second(),
        nanos: at.subsec_nanosecond(),
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub what: proto::EventType,
    pub resource: Resource,
    pub old: Option<Resource>,
    /// Position in the log: what a bookmark holds.
    pub position: u64,
}

pub(crate) struct Resources {
    inner: Mutex<Inner>,
    moved: watch::Sender<u64>,
    wall: Wall,
    began: Timestamp,
    /// Bookmarks of another boot are refused.
    pub epoch: [u8; 8],
}

#[derive(Default)]
struct Inner {
    entries: BTreeMap<&'static str, BTreeMap<String, Resource>>,
    log: VecDeque<Arc<Change>>,
    position: u64,
}

impl Resources {
    pub fn new(wall: Wall, epoch: [u8; 8]) -> Self {
        Self {
            inner: Mutex::default(),
            moved: watch::Sender::new(0),
            began: wall.now(),
            wall,
            epoch,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no controller panics while it writes")
    }

    pub fn watch(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    /// Writes a resource. One that is there already with the same spec is left alone.
    pub fn put(&self, kind: &'static Kind, id: &str, spec: impl Into<Arc<Spec>>) {
        let spec = spec.into();
        let same = self.spec(kind, id).is_some_and(|old| old == spec);
        if !same {
            self.write(kind, id, spec);
        }
    }

    /// What a resource says, without the rest of it.
    pub fn spec(&self, kind: &'static Kind, id: &str) -> Option<Arc<Spec>> {
        let inner = self.lock();
        let found = inner.entries.get(kind.name)?.get(id)?;
        Some(Arc::clone(&found.spec))
    }

    /// The version of a resource; 0 while it is not there.
    pub fn version(&self, kind: &'static Kind, id: &str) -> u64 {
        let inner = self.lock();
        let found = inner.entries.get(kind.name).and_then(|of_kind| of_kind.get(id));
        found.map_or(0, |resource| resource.version)
    }

    /// Writes a resource even when nothing changes, as an apply of the same config does.
    pub fn write(&self, kind: &'static Kind, id: &str, spec: impl Into<Arc<Spec>>) {
        let now = self.wall.now();
        let mut inner = self.lock();
        let of_kind = inner.entries.entry(kind.name).or_default();
        let old = of_kind.get(id).cloned();
        let (version, created) = old.as_ref().map_or((1, now), |old| (old.version + 1, old.created));
        let resource = Resource {
            kind,
            id: id.to_owned(),
            version,
            created,
            updated: now,
            spec: spec.into(),
        };
        of_kind.insert(id.to_owned(), resource.clone());
        let what = if old.is_some() {
            proto::EventType::Updated
        } else {
            proto::EventType::Created
        };
        self.log(&mut inner, what, resource, old);
    }

    pub fn remove(&self, kind: &'static Kind, id: &str) {
        let mut inner = self.lock();
        if let Some(old) = inner.entries.get_mut(kind.name).and_then(|of_kind| of_kind.remove(id)) {
            self.log(&mut inner, proto::EventType::Destroyed, old, None);
        }
    }

    pub fn remove_all(&self, kind: &'static Kind) {
        for resource in self.list(kind) {
            self.remove(kind, &resource.id);
        }
    }

    fn log(&self, inner: &mut Inner, what: proto::EventType, resource: Resource, old: Option<Resource>) {
        inner.position += 1;
        let change = Change {
            what,
            resource,
            old,
            position: inner.position,
        };
        inner.log.push_back(Arc::new(change));
        if inner.log.len() > LOG {
            inner.log.pop_front();
        }
        self.moved.send_replace(inner.position);
    }

    /// A resource that every node has from its first moment on, and that never changes.
    fn given(&self, kind: &'static Kind, id: &str, spec: &Arc<Spec>) -> Resource {
        Resource {
            kind,
            id: id.to_owned(),
            version: 1,
            created: self.began,
            updated: self.began,
            spec: Arc::clone(spec),
        }
    }

    pub fn get(&self, kind: &'static Kind, id: &str) -> Option<Resource> {
        if let Some(given) = described(kind) {
            return given.get(id).map(|spec| self.given(kind, id, spec));
        }
        self.lock().entries.get(kind.name)?.get(id).cloned()
    }

    pub fn list(&self, kind: &'static Kind) -> Vec<Resource> {
        if let Some(given) = described(kind) {
            return given.iter().map(|(id, spec)| self.given(kind, id, spec)).collect();
        }
        let inner = self.lock();
        let of_kind = inner.entries.get(kind.name);
        of_kind.map(|of_kind| of_kind.values().cloned().collect()).unwrap_or_default()
    }

    pub fn position(&self) -> u64 {
        self.lock().position
    }

    /// Changes after a position; `None` when the log does not reach back that far.
    pub fn changes(&self, after: u64) -> Option<(u64, Vec<Arc<Change>>)> {
        let inner = self.lock();
        let oldest = inner.log.front().map_or(inner.position, |change| change.position - 1);
        if after < oldest {
            return None;
        }
        let begin = inner.log.partition_point(|change| change.position <= after);
        Some((inner.position, inner.log.range(begin..).cloned().collect()))
    }
}
