//! Namespaces that begin and end, definitions that become established, and the garbage collector.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::kinds::{self, Kind};
use super::{Round, is_deleting, key_of, set_condition, text};

const ESTABLISHED_AFTER: Duration = Duration::from_millis(500);
const FOREGROUND: &str = "foregroundDeletion";

pub(super) fn run(round: &mut Round<'_>) {
    definitions(round);
    namespaces(round);
    collect(round);
}

/// A definition is served once it is established.
fn definitions(round: &mut Round<'_>) {
    for crd in round.list(&kinds::CRDS) {
        let name = text(&crd["metadata"]["name"]).to_owned();
        if super::condition(&crd, "Established") || !round.after(&format!("crd {name}"), ESTABLISHED_AFTER) {
            continue;
        }
        let now = round.now.clone();
        let stored: Vec<Value> = crd["spec"]["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|version| version["storage"] == true)
            .map(|version| version["name"].clone())
            .collect();
        round.change(&crd, &kinds::CRDS, |crd| {
            crd["status"]["acceptedNames"] = crd["spec"]["names"].clone();
            crd["status"]["storedVersions"] = json!(stored);
            set_condition(crd, "NamesAccepted", "True", "NoConflicts", "no conflicts found", &now);
            set_condition(
                crd,
                "Established",
                "True",
                "InitialNamesAccepted",
                "the initial names have been accepted",
                &now,
            );
        });
    }
}

fn every_kind(round: &Round<'_>) -> Vec<&'static Kind> {
    let mut all: Vec<&'static Kind> = kinds::ALL.to_vec();
    all.extend(kinds::custom(round.store));
    all
}

fn namespaces(round: &mut Round<'_>) {
    for namespace in round.list(&kinds::NAMESPACES) {
        let name = text(&namespace["metadata"]["name"]).to_owned();
        if !is_deleting(&namespace) {
            // What the controller manager puts into every namespace: pods cannot start without them.
            if round.get(&kinds::SERVICE_ACCOUNTS, &name, "default").is_none() {
                round.create(
                    &kinds::SERVICE_ACCOUNTS,
                    json!({"metadata": {"name": "default", "namespace": name}}),
                );
                round.create(
                    &kinds::CONFIG_MAPS,
                    json!({"metadata": {"name": "kube-root-ca.crt", "namespace": name}, "data": {"ca.crt": ""}}),
                );
            }
            continue;
        }
        let mut left = 0;
        for kind in every_kind(round).into_iter().filter(|kind| kind.namespaced) {
            for object in round.store.list(kind, Some(&name)).1 {
                left += 1;
                if *kind == kinds::PODS {
                    round.delete_pod(&object);
                } else if !is_deleting(&object) {
                    let _ = round.store.mark_deleted(&key_of(&object, kind), &round.now);
                }
            }
        }
        if left == 0 {
            round.change(&namespace, &kinds::NAMESPACES, |namespace| {
                namespace["metadata"]["finalizers"] = Value::Null;
                namespace["spec"]["finalizers"] = Value::Null;
            });
        } else {
            round.wake(round.instant + Duration::from_secs(1));
        }
    }
}

/// Objects whose owners are all gone, and owners that wait for their dependents.
fn collect(round: &mut Round<'_>) {
    let kinds = every_kind(round);
    let mut uids: BTreeSet<String> = BTreeSet::new();
    let mut owned = Vec::new();
    let mut waiting = Vec::new();
    for kind in kinds {
        for object in round.list(kind) {
            uids.insert(text(&object["metadata"]["uid"]).to_owned());
            if object["metadata"]["finalizers"]
                .as_array()
                .is_some_and(|list| list.contains(&json!(FOREGROUND)))
            {
                waiting.push((kind, object.clone()));
            }
            if object["metadata"]["ownerReferences"]
                .as_array()
                .is_some_and(|owners| !owners.is_empty())
            {
                owned.push((kind, object));
            }
        }
    }
    let going: BTreeSet<&str> = waiting.iter().map(|(_, object)| text(&object["metadata"]["uid"])).collect();
    let mut blocked: BTreeSet<String> = BTreeSet::new();
    for (kind, object) in &owned {
        let owners: Vec<&str> = object["metadata"]["ownerReferences"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|owner| text(&owner["uid"]))
            .collect();
        let unwanted = owners.iter().all(|uid| !uids.contains(*uid) || going.contains(uid));
        blocked.extend(owners.iter().filter(|uid| going.contains(*uid)).map(|uid| (*uid).to_owned()));
        if !unwanted {
            continue;
        }
        if **kind == kinds::PODS {
            round.delete_pod(object);
        } else if !is_deleting(object) {
            let _ = round.store.mark_deleted(&key_of(object, kind), &round.now);
        }
    }
    for (kind, object) in &waiting {
        if !blocked.contains(text(&object["metadata"]["uid"])) {
            round.change(object, kind, |object| {
                if let Some(list) = object["metadata"]["finalizers"].as_array_mut() {
                    list.retain(|finalizer| finalizer != FOREGROUND);
                }
            });
        }
    }
}
