//! Files in `server/manifests`: every server applies those that changed, each file for itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::cluster::Cluster;
use crate::cloud::fs::Credentials;
use crate::cloud::host::Host;
use crate::kube::kinds;
use crate::kube::store::Key;
use crate::talos::{Site, objects};
use crate::yaml;

const POLL: Duration = Duration::from_secs(15);

/// What was applied: in reality the Addon objects keep it, one per file name.
#[derive(Default)]
pub(crate) struct Deployed {
    due: Option<Instant>,
    files: BTreeMap<String, (String, Vec<Key>)>,
}

/// Applies what changed since the last poll. An object that was changed over the API stays as it is until its file changes.
pub(super) fn round(site: &Site, cluster: &Arc<Cluster>) {
    let now = Instant::now();
    if cluster.lock().deployed.due.is_some_and(|due| now < due) {
        return;
    }
    cluster.lock().deployed.due = Some(now + site.pace.scale(POLL));
    for host in site.cloud.all() {
        let is_member = host.runtime.etcd().is_some_and(|data| Arc::ptr_eq(&data.cluster, cluster));
        if is_member && host.runtime.serves_api() {
            apply_files(site, cluster, &host);
        }
    }
}

fn apply_files(site: &Site, cluster: &Cluster, host: &Host) {
    let directory = format!("{}/server/manifests", cluster.distro.data());
    let names = host.fs.list(Credentials::ROOT, &directory).unwrap_or_default();
    for name in names
        .into_iter()
        .filter(|name| name.ends_with(".yaml") || name.ends_with(".yml"))
    {
        let Some(text) = host.fs.text(&format!("{directory}/{name}")) else {
            continue;
        };
        let before = cluster.lock().deployed.files.get(&name).cloned();
        // A name with an underscore is no name of an Addon, so the file is passed over.
        if name.contains('_') || before.as_ref().is_some_and(|(applied, _)| *applied == text) {
            continue;
        }
        // One bad document and nothing of the file is applied.
        let documents: Result<Vec<Value>, _> = yaml::split(&text).iter().map(|(_, part)| yaml::parse(part)).collect();
        let Ok(documents) = documents else { continue };
        let keys: Vec<Key> = documents
            .iter()
            .filter_map(|document| apply(site, cluster, document))
            .collect();
        for dropped in before
            .into_iter()
            .flat_map(|(_, keys)| keys)
            .filter(|key| !keys.contains(key))
        {
            let _ = cluster.store().delete(&dropped);
        }
        cluster.lock().deployed.files.insert(name, (text, keys));
    }
}

fn apply(site: &Site, cluster: &Cluster, document: &Value) -> Option<Key> {
    let store = cluster.store();
    let kind = kinds::of_manifest(store, document)?;
    let namespace = document["metadata"]["namespace"].as_str().unwrap_or("default");
    let namespace = if kind.namespaced { namespace } else { "" };
    let key = Key::new(kind, namespace, document["metadata"]["name"].as_str()?);
    let updated = store.update(&key, |object| {
        for (part, value) in document
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(part, _)| *part != "metadata")
        {
            object[part.as_str()] = value.clone();
        }
        Ok(())
    });
    if updated.is_err() {
        objects::create(store, &key, document.clone(), &objects::now(site.wall));
    }
    Some(key)
}
