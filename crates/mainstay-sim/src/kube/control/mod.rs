//! The controllers and kubelets behind a simulated API server: one loop per cluster, woken by changes and by the next thing that is due.
//!
//! Every round reads the store and writes what the controllers would write. Nothing here runs while no API server of the cluster works.

mod budgets;
mod cleanup;
mod jobs;
mod kubelet;
mod nodes;
mod schedule;
mod volumes;
mod workloads;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use mainstay_net::Wall;
use pve_sim::guest::Pace;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::kinds::{self, Kind};
use super::store::{Key, Store};
use super::{admission, gitops, helm};
use crate::charts::ChartWorld;

pub(crate) use kubelet::{PodRun, log_key};

/// Changes within this time are looked at together, as work queues do.
const BATCH: Duration = Duration::from_millis(100);
/// How often a cluster without a working API server is asked again.
const IDLE: Duration = Duration::from_secs(5);

/// What a cluster tells its controllers about itself.
pub(crate) struct Hooks {
    /// `None` once the cluster is gone; whether an API server works.
    pub is_served: Box<dyn Fn() -> Option<bool> + Send + Sync>,
    /// Whether the kubelet of this Node runs and reaches the API.
    pub is_alive: Box<dyn Fn(&str) -> bool + Send + Sync>,
    /// RKE2 and k3s run a helm controller, and write the pods of DaemonSets themselves.
    pub is_rancher: bool,
}

/// What the controllers remember between rounds; the rest is in the store.
#[derive(Default)]
pub(crate) struct State {
    /// By the uid of the pod.
    pub pods: BTreeMap<String, PodRun>,
    /// When something was first seen, by a name for it.
    pub since: BTreeMap<String, Instant>,
    serial: u64,
}

/// One round.
pub(crate) struct Round<'a> {
    pub store: &'a Store,
    pub hooks: &'a Hooks,
    pub world: &'a ChartWorld,
    pub pace: Pace,
    pub wall: Wall,
    pub now: String,
    pub instant: Instant,
    /// The earliest moment at which there is something to do without a change.
    pub due: Option<Instant>,
    pub state: &'a mut State,
}

/// Runs the controllers of a cluster until it is gone.
pub(crate) fn start(store: &Arc<Store>, hooks: Hooks, world: Arc<ChartWorld>, pace: Pace, wall: Wall) {
    if !store.claim_controllers() {
        return;
    }
    let weak = Arc::downgrade(store);
    crate::talos::etcd::spawn(run(weak, hooks, world, pace, wall));
}

async fn run(store: Weak<Store>, hooks: Hooks, world: Arc<ChartWorld>, pace: Pace, wall: Wall) {
    let state = Mutex::new(State::default());
    let Some(mut moved) = store.upgrade().map(|store| store.watch_revision()) else {
        return;
    };
    let mut changed_world = world.watch();
    loop {
        let Some(is_served) = (hooks.is_served)() else { return };
        moved.mark_unchanged();
        changed_world.mark_unchanged();
        let due = if is_served {
            let Some(store) = store.upgrade() else { return };
            let mut state = state.lock().expect("rounds do not overlap");
            round(&store, &hooks, &world, pace, wall, &mut state)
        } else {
            Some(Instant::now() + pace.scale(IDLE))
        };
        tokio::select! {
            biased;
            changed = moved.changed() => if changed.is_err() { return },
            _ = changed_world.changed() => {}
            () = reached(due) => {}
        }
        tokio::time::sleep(pace.scale(BATCH)).await;
    }
}

async fn reached(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

/// Everything that is due now; answers when the next thing is.
pub(crate) fn round(
    store: &Store,
    hooks: &Hooks,
    world: &ChartWorld,
    pace: Pace,
    wall: Wall,
    state: &mut State,
) -> Option<Instant> {
    let now = wall.now();
    let now = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    let mut round = Round {
        store,
        hooks,
        world,
        pace,
        wall,
        now,
        instant: Instant::now(),
        due: None,
        state,
    };
    cleanup::run(&mut round);
    nodes::run(&mut round);
    workloads::run(&mut round);
    jobs::run(&mut round);
    schedule::run(&mut round);
    volumes::run(&mut round);
    kubelet::run(&mut round);
    budgets::run(&mut round);
    helm::controller(&mut round);
    gitops::run(&mut round);
    round.due
}

impl Round<'_> {
    /// Asks for another round at this moment at the latest.
    pub fn wake(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Whether `delay` has passed since this name was asked for the first time; if not, the loop wakes when it has.
    pub fn after(&mut self, name: &str, delay: Duration) -> bool {
        let first = *self.state.since.entry(name.to_owned()).or_insert(self.instant);
        let at = first + self.pace.scale(delay);
        if at <= self.instant {
            return true;
        }
        self.wake(at);
        false
    }

    pub fn forget(&mut self, name: &str) {
        self.state.since.remove(name);
    }

    pub fn list(&self, kind: &'static Kind) -> Vec<Arc<Value>> {
        self.store.list(kind, None).1
    }

    pub fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.store.get(&Key::new(kind, namespace, name))
    }

    pub fn set_status(&self, object: &Value, kind: &'static Kind, status: &Value) {
        self.change(object, kind, |object| object["status"] = status.clone());
    }

    pub fn change(&self, object: &Value, kind: &'static Kind, change: impl FnOnce(&mut Value)) {
        let _ = self.store.update(&key_of(object, kind), |object| {
            change(object);
            Ok(())
        });
    }

    /// Creates an object as a controller does.
    pub fn create(&self, kind: &'static Kind, object: Value) {
        let key = key_of(&object, kind);
        crate::talos::objects::create(self.store, &key, object, &self.now);
    }

    /// Five letters that no other object of this cluster was given.
    pub fn suffix(&mut self) -> String {
        self.state.serial += 1;
        let digest = <sha2::Sha256 as sha2::Digest>::digest(format!("{} {}", self.now, self.state.serial));
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        digest
            .iter()
            .take(5)
            .map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]))
            .collect()
    }

    /// Creates a pod for its owner, through admission; the refusal as the API server words it.
    pub fn create_pod(&self, owner: (&'static Kind, &Value), name: &str, template: &Value) -> Result<(), String> {
        let (kind, controller) = owner;
        let namespace = text(&controller["metadata"]["namespace"]);
        let mut pod =
            json!({"metadata": template["metadata"].clone(), "spec": template["spec"].clone(), "status": {"phase": "Pending"}});
        if !pod["metadata"].is_object() {
            pod["metadata"] = json!({});
        }
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["namespace"] = json!(namespace);
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": kind.api_version(), "kind": kind.kind, "name": controller["metadata"]["name"], "uid": controller["metadata"]["uid"],
            "controller": true, "blockOwnerDeletion": true,
        }]);
        if let Some(refusal) = admission::refuse_pod(self.store, namespace, name, &pod["spec"]) {
            self.event(
                controller,
                kind,
                "Warning",
                "FailedCreate",
                &format!("Error creating: {refusal}"),
            );
            return Err(refusal);
        }
        admission::default_pod(&mut pod);
        self.create(&kinds::PODS, pod);
        Ok(())
    }

    /// Writes an event about an object, or counts it again.
    pub fn event(&self, about: &Value, kind: &'static Kind, level: &str, reason: &str, message: &str) {
        let namespace = about["metadata"]["namespace"].as_str().unwrap_or("default");
        let digest = <sha2::Sha256 as sha2::Digest>::digest(format!("{}{reason}{message}", about["metadata"]["uid"]));
        let name = format!("{}.{}", text(&about["metadata"]["name"]), hex::encode(&digest[..8]));
        let key = Key::new(&kinds::EVENTS, namespace, &name);
        if self.store.get(&key).is_some() {
            return;
        }
        let event = json!({
            "metadata": {"name": name, "namespace": namespace}, "type": level, "reason": reason, "message": message, "count": 1,
            "firstTimestamp": self.now, "lastTimestamp": self.now,
            "involvedObject": {"apiVersion": kind.api_version(), "kind": kind.kind, "name": about["metadata"]["name"], "namespace": about["metadata"]["namespace"], "uid": about["metadata"]["uid"]},
        });
        self.create(&kinds::EVENTS, event);
    }

    /// Asks for the end of a pod, as a controller that scales down does.
    pub fn delete_pod(&self, pod: &Value) {
        let _ = self
            .store
            .end_pod(&key_of(pod, &kinds::PODS), None, &self.now, self.wall.now());
    }

    /// Pods whose controller has this uid.
    pub fn pods_of(&self, uid: &Value) -> Vec<Arc<Value>> {
        let mut pods = self.list(&kinds::PODS);
        pods.retain(|pod| controller_of(pod) == Some(uid));
        pods
    }
}

pub(crate) fn key_of(object: &Value, kind: &'static Kind) -> Key {
    Key::new(
        kind,
        text(&object["metadata"]["namespace"]),
        text(&object["metadata"]["name"]),
    )
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn controller_of(object: &Value) -> Option<&Value> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    owners
        .iter()
        .find(|owner| owner["controller"] == true)
        .map(|owner| &owner["uid"])
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Whether a condition is `True`.
pub(crate) fn condition(object: &Value, name: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|one| one["type"] == name && one["status"] == "True")
}

/// Writes a condition; its time changes with its status only.
pub(crate) fn set_condition(object: &mut Value, name: &str, status: &str, reason: &str, message: &str, now: &str) {
    if !object["status"]["conditions"].is_array() {
        object["status"]["conditions"] = json!([]);
    }
    let Some(list) = object["status"]["conditions"].as_array_mut() else {
        return;
    };
    let mut new = json!({"type": name, "status": status, "reason": reason, "message": message, "lastTransitionTime": now});
    match list.iter_mut().find(|one| one["type"] == name) {
        Some(old) => {
            if old["status"] == status {
                new["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            *old = new;
        }
        None => list.push(new),
    }
}

/// A label selector of a spec; an absent one matches nothing.
pub(crate) fn selects(selector: &Value, labels: &Value) -> bool {
    if !selector.is_object() {
        return false;
    }
    let equal = selector["matchLabels"]
        .as_object()
        .into_iter()
        .flatten()
        .all(|(key, value)| labels[key] == *value);
    equal
        && selector["matchExpressions"]
            .as_array()
            .into_iter()
            .flatten()
            .all(|expression| schedule::holds(expression, labels))
}
