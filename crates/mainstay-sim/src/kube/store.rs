//! The objects of one Kubernetes cluster, as they lie in its etcd: one revision counter, and a history that watches read from.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

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
        if !new["metadata"]["deletionTimestamp"].is_null() && !has_finalizers(&new) {
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
        let mut inner = Inner {
            revision,
            compacted: revision,
            serial: dump["serial"].as_u64().unwrap_or(0),
            ..Inner::default()
        };
        for object in dump["objects"].as_array().into_iter().flatten() {
            if let Some(key) = key_of(object) {
                inner.objects.insert(key, Arc::new(object.clone()));
            }
        }
        Self {
            inner: Mutex::new(inner),
            revision: watch::Sender::new(revision),
        }
    }
}

fn has_finalizers(object: &Value) -> bool {
    // A namespace's own finalizers are in its spec.
    object["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|list| !list.is_empty())
}

fn key_of(object: &Value) -> Option<Key> {
    let api_version = object["apiVersion"].as_str()?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = kinds::ALL
        .into_iter()
        .find(|kind| kind.group == group && kind.version == version && Some(kind.kind) == object["kind"].as_str())?;
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
