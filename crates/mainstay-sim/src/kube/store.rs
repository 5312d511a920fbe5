//! The objects of one Kubernetes cluster, as they lie in its etcd: one revision counter, and a history that watches read from.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use super::kinds::{self, Kind};

/// Changes that a watch may begin from; older ones are compacted away.
const HISTORY: usize = 4096;

pub(crate) struct Store {
    inner: Mutex<Inner>,
    revision: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    revision: u64,
    compacted: u64,
    serial: u64,
    /// Tells the uids of one cluster from those of another.
    seed: String,
    objects: BTreeMap<Key, Arc<Value>>,
    history: VecDeque<Change>,
    /// Who follows single objects.
    followers: BTreeMap<Key, watch::Sender<u64>>,
    /// The controllers of this cluster run.
    controlled: bool,
    policy: PodPolicy,
    /// What containers wrote, by pod.
    logs: BTreeMap<Key, String>,
}

/// The PodSecurity level that holds where a namespace has no label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodPolicy {
    /// `baseline`, `restricted`, or nothing.
    pub enforce: Option<&'static str>,
    pub exempt: &'static [&'static str],
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub kind: &'static Kind,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(kind: &'static Kind, namespace: &str, name: &str) -> Self {
        Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeType {
    Added,
    Modified,
    Deleted,
}

#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub revision: u64,
    pub what: ChangeType,
    pub key: Key,
    pub object: Arc<Value>,
}

/// Why a write was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreError {
    NotFound,
    AlreadyExists,
    /// The resourceVersion of the request is not the object's.
    Conflict,
    /// The history does not reach back to this revision.
    Expired,
}

impl Store {
    pub fn new() -> Self {
        Self {
            inner: Mutex::new(Inner {
                revision: 1,
                ..Inner::default()
            }),
            revision: watch::Sender::new(1),
        }
    }

    /// A store whose uids no other store gives.
    pub fn seeded(seed: String) -> Self {
        let store = Self::new();
        store.lock().seed = seed;
        store
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no request panics while it holds the store")
    }

    /// True for the first caller only.
    pub fn claim_controllers(&self) -> bool {
        !std::mem::replace(&mut self.lock().controlled, true)
    }

    pub fn set_policy(&self, policy: PodPolicy) {
        self.lock().policy = policy;
    }

    pub fn policy(&self) -> PodPolicy {
        self.lock().policy.clone()
    }

    pub fn set_log(&self, pod: &Key, text: String) {
        self.lock().logs.insert(pod.clone(), text);
    }

    pub fn log(&self, pod: &Key) -> String {
        self.lock().logs.get(pod).cloned().unwrap_or_default()
    }

    /// As the API server ends a pod: one on a node gets its grace period, and its kubelet removes it.
    pub fn end_pod(&self, key: &Key, grace: Option<u64>, now: &str, at: jiff::Timestamp) -> Result<Arc<Value>, StoreError> {
        let pod = self.get(key).ok_or(StoreError::NotFound)?;
        let own = pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
        let grace = grace.unwrap_or(own);
        let is_mirror = !pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null();
        let is_finished = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let on_node = !pod["spec"]["nodeName"].is_null();
        if grace == 0 || !on_node || is_mirror || is_finished || !self.lock().controlled {
            return self.mark_deleted(key, now);
        }
        let known = pod["metadata"]["deletionGracePeriodSeconds"].as_u64();
        if known.is_some_and(|known| known <= grace) {
            return Ok(pod);
        }
        let ends = at.checked_add(Duration::from_secs(grace)).unwrap_or(at);
        let ends = jiff::Timestamp::from_second(ends.as_second()).unwrap_or(ends);
        self.update_keeping(key, |pod| {
            pod["metadata"]["deletionTimestamp"] = json!(ends.to_string());
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        })
    }

    /// Changes an object that stays although it is being deleted.
    pub fn update_keeping(&self, key: &Key, change: impl FnOnce(&mut Value)) -> Result<Arc<Value>, StoreError> {
        let mut inner = self.lock();
        let old = inner.objects.get(key).cloned().ok_or(StoreError::NotFound)?;
        let mut new = (*old).clone();
        change(&mut new);
        if new == *old {
            return Ok(old);
        }
        Ok(self.write(&mut inner, ChangeType::Modified, key, new))
    }

    pub fn revision(&self) -> u64 {
        self.lock().revision
    }

    /// Wakes whenever the revision has moved.
    pub fn watch_revision(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// Wakes when this one object has changed.
    pub fn follow(&self, key: &Key) -> watch::Receiver<u64> {
        self.lock()
            .followers
            .entry(key.clone())
            .or_insert_with(|| watch::Sender::new(0))
            .subscribe()
    }

    pub fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.lock().objects.get(key).cloned()
    }

    /// Objects of a kind, in order of namespace and name, and the revision they are from.
    pub fn list(&self, kind: &'static Kind, namespace: Option<&str>) -> (u64, Vec<Arc<Value>>) {
        let inner = self.lock();
        let from = Key::new(kind, namespace.unwrap_or_default(), "");
        let of_kind = inner.objects.range(from..).take_while(|(key, _)| key.kind == kind);
        let items = of_kind.filter(|(key, _)| namespace.is_none_or(|namespace| key.namespace == namespace));
        (inner.revision, items.map(|(_, object)| Arc::clone(object)).collect())
    }

    pub fn create(&self, key: &Key, object: Value, now: &str) -> Result<Arc<Value>, StoreError> {
        let mut inner = self.lock();
        if inner.objects.contains_key(key) {
            return Err(StoreError::AlreadyExists);
        }
        let mut object = object;
        inner.serial += 1;
        let uid = uuid::Uuid::new_v5(
            &uuid::Uuid::NAMESPACE_OID,
            format!("{}{}/{}", inner.seed, inner.serial, key.name).as_bytes(),
        );
        let metadata = &mut object["metadata"];
        metadata["uid"] = json!(uid.to_string());
        metadata["creationTimestamp"] = json!(now);
        if counts_generations(key.kind) {
            metadata["generation"] = json!(1);
        }
        Ok(self.write(&mut inner, ChangeType::Added, key, object))
    }

    /// Replaces the object by what `change` makes of it. A result that equals the object writes nothing.
    pub fn update(&self, key: &Key, change: impl FnOnce(&mut Value) -> Result<(), StoreError>) -> Result<Arc<Value>, StoreError> {
        let mut inner = self.lock();
        let old = inner.objects.get(key).cloned().ok_or(StoreError::NotFound)?;
        let mut new = (*old).clone();
        change(&mut new)?;
        for fixed in ["uid", "creationTimestamp", "resourceVersion"] {
            new["metadata"][fixed] = old["metadata"][fixed].clone();
        }
        if new == *old {
            return Ok(old);
        }
        if counts_generations(key.kind) && new["spec"] != old["spec"] {
            let generation = old["metadata"]["generation"].as_u64().unwrap_or_default();
            new["metadata"]["generation"] = json!(generation + 1);
        }
        // A pod waits for its kubelet, anything else for its finalizers.
        let is_kept =
            has_finalizers(&new) || (*key.kind == kinds::PODS && !new["metadata"]["deletionGracePeriodSeconds"].is_null());
        if !new["metadata"]["deletionTimestamp"].is_null() && !is_kept {
            inner.objects.remove(key);
            return Ok(self.write(&mut inner, ChangeType::Deleted, key, new));
        }
        Ok(self.write(&mut inner, ChangeType::Modified, key, new))
    }

    /// As a client deletes: an object with finalizers stays until they are gone.
    pub fn mark_deleted(&self, key: &Key, now: &str) -> Result<Arc<Value>, StoreError> {
        if self.get(key).is_some_and(|object| has_finalizers(&object)) {
            return self.update(key, |object| {
                if object["metadata"]["deletionTimestamp"].is_null() {
                    object["metadata"]["deletionTimestamp"] = json!(now);
                }
                Ok(())
            });
        }
        self.delete(key)
    }

    pub fn delete(&self, key: &Key) -> Result<Arc<Value>, StoreError> {
        let mut inner = self.lock();
        let old = inner.objects.remove(key).ok_or(StoreError::NotFound)?;
        Ok(self.write(&mut inner, ChangeType::Deleted, key, (*old).clone()))
    }

    fn write(&self, inner: &mut Inner, what: ChangeType, key: &Key, mut object: Value) -> Arc<Value> {
        inner.revision += 1;
        object["metadata"]["resourceVersion"] = json!(inner.revision.to_string());
        let object = Arc::new(object);
        if what != ChangeType::Deleted {
            inner.objects.insert(key.clone(), Arc::clone(&object));
        }
        inner.history.push_back(Change {
            revision: inner.revision,
            what,
            key: key.clone(),
            object: Arc::clone(&object),
        });
        if inner.history.len() > HISTORY
            && let Some(oldest) = inner.history.pop_front()
        {
            inner.compacted = oldest.revision;
        }
        if let Some(follower) = inner.followers.get(key) {
            follower.send_replace(inner.revision);
        }
        self.revision.send_replace(inner.revision);
        object
    }

    /// What happened to a kind after `revision`.
    pub fn changes(&self, kind: &'static Kind, namespace: Option<&str>, revision: u64) -> Result<(u64, Vec<Change>), StoreError> {
        let inner = self.lock();
        if revision < inner.compacted {
            return Err(StoreError::Expired);
        }
        let begin = inner.history.partition_point(|change| change.revision <= revision);
        let wanted =
            |change: &&Change| change.key.kind == kind && namespace.is_none_or(|namespace| change.key.namespace == namespace);
        Ok((inner.revision, inner.history.range(begin..).filter(wanted).cloned().collect()))
    }

    /// Everything, for a snapshot of etcd.
    pub fn dump(&self) -> Value {
        let inner = self.lock();
        let objects: Vec<Value> = inner.objects.values().map(|object| (**object).clone()).collect();
        json!({"revision": inner.revision, "serial": inner.serial, "objects": objects})
    }

    pub fn restore(dump: &Value) -> Self {
        let revision = dump["revision"].as_u64().unwrap_or(1);
        let inner = Inner {
            revision,
            compacted: revision,
            serial: dump["serial"].as_u64().unwrap_or(0),
            ..Inner::default()
        };
        let store = Self {
            inner: Mutex::new(inner),
            revision: watch::Sender::new(revision),
        };
        // Definitions first: they name the kinds of the others.
        let objects = || dump["objects"].as_array().into_iter().flatten();
        let is_definition = |object: &&Value| object["kind"] == "CustomResourceDefinition";
        for object in objects()
            .filter(is_definition)
            .chain(objects().filter(|object| !is_definition(object)))
        {
            if let Some(key) = key_of(&store, object) {
                store.lock().objects.insert(key, Arc::new(object.clone()));
            }
        }
        store
    }
}

fn has_finalizers(object: &Value) -> bool {
    // A namespace's own finalizers are in its spec.
    let listed = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    listed(&object["metadata"]["finalizers"]) || (object["kind"] == "Namespace" && listed(&object["spec"]["finalizers"]))
}

/// Kinds whose `metadata.generation` follows their spec.
fn counts_generations(kind: &Kind) -> bool {
    const BUILT_IN: [&str; 4] = ["apps", "batch", "policy", "apiextensions.k8s.io"];
    BUILT_IN.contains(&kind.group) || (kind.group.contains('.') && !kind.group.ends_with(".k8s.io"))
}

fn key_of(store: &Store, object: &Value) -> Option<Key> {
    let kind = kinds::of_manifest(store, object)?;
    let metadata = &object["metadata"];
    Some(Key::new(
        kind,
        metadata["namespace"].as_str().unwrap_or_default(),
        metadata["name"].as_str()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    }

    #[test]
    fn every_write_moves_the_revision_and_reaches_the_history() {
        let store = Store::new();
        let key = Key::new(&kinds::NODES, "", "a");
        store.create(&key, node("a"), "2026-01-01T00:00:00Z").expect("created");
        assert_eq!(
            store.create(&key, node("a"), "2026-01-01T00:00:00Z"),
            Err(StoreError::AlreadyExists)
        );
        let begin = store.revision();
        store
            .update(&key, |object| {
                object["spec"]["unschedulable"] = json!(true);
                Ok(())
            })
            .expect("updated");
        store.update(&key, |_| Ok(())).expect("nothing to do");
        store.delete(&key).expect("deleted");
        let (_, changes) = store.changes(&kinds::NODES, None, begin).expect("history");
        let kinds: Vec<ChangeType> = changes.iter().map(|change| change.what).collect();
        assert_eq!(kinds, [ChangeType::Modified, ChangeType::Deleted]);
        assert_eq!(store.delete(&key), Err(StoreError::NotFound));
    }

    #[test]
    fn a_watch_from_before_the_history_is_expired() {
        let store = Store::new();
        let key = Key::new(&kinds::NODES, "", "a");
        store.create(&key, node("a"), "t").expect("created");
        for count in 0..HISTORY {
            store
                .update(&key, |object| {
                    object["spec"]["n"] = json!(count);
                    Ok(())
                })
                .expect("updated");
        }
        assert_eq!(store.changes(&kinds::NODES, None, 1).map(|_| ()), Err(StoreError::Expired));
    }

    #[test]
    fn a_restored_dump_has_the_same_objects() {
        let store = Store::new();
        store
            .create(&Key::new(&kinds::NODES, "", "a"), node("a"), "t")
            .expect("created");
        let again = Store::restore(&store.dump());
        assert_eq!(again.list(&kinds::NODES, None), store.list(&kinds::NODES, None));
    }
}
