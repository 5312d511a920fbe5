//! Controllers of a cluster: members that are to go, DaemonSets, snapshots, packaged charts.

use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::config::Config;
use super::{Distro, deploy, node, supervisor, vip};
use crate::cloud::host::Host;
use crate::kube::control;
use crate::kube::kinds;
use crate::kube::store::Key;
use crate::talos::{Site, etcd, objects};

const ROUND: Duration = Duration::from_millis(300);

/// Looks after a cluster for as long as it exists; once per cluster.
pub(super) fn watch_over(site: &Arc<Site>, cluster: &Arc<Cluster>) {
    if std::mem::replace(&mut cluster.lock().is_watched, true) {
        return;
    }
    start_controllers(site, cluster);
    let (site, cluster): (Weak<Site>, Weak<Cluster>) = (Arc::downgrade(site), Arc::downgrade(cluster));
    etcd::spawn(async move {
        let mut round: u64 = 0;
        while let (Some(site), Some(cluster)) = (site.upgrade(), cluster.upgrade()) {
            if let Some(by) = active_member(&site, &cluster) {
                members(&site, &cluster, by);
                deploy::round(&site, &cluster);
                daemon_sets(&site, &cluster);
                if round.is_multiple_of(10) {
                    node::look(&site, &cluster);
                    voters(&site, &cluster);
                }
            }
            vip::round(&site, &cluster).await;
            drop((site, cluster));
            tokio::time::sleep(ROUND).await;
            round += 1;
        }
    });
}

/// Jobs, Deployments, charts and the pods of all kubelets.
fn start_controllers(site: &Arc<Site>, cluster: &Arc<Cluster>) {
    let (around, served, pods) = (Arc::downgrade(site), Arc::downgrade(cluster), Arc::downgrade(cluster));
    let hooks = control::Hooks {
        is_served: Box::new(move || Some(active_member(&*around.upgrade()?, &served.upgrade()?).is_some())),
        is_alive: Box::new(move |name| pods.upgrade().is_some_and(|cluster| node::is_alive(&cluster, name))),
        is_rancher: true,
    };
    control::start(cluster.store(), hooks, Arc::clone(&site.charts), site.pace, site.wall);
}

/// A member whose server runs controllers: its API serves, and it sees a leader.
fn active_member(site: &Site, cluster: &Arc<Cluster>) -> Option<u64> {
    site.cloud.all().iter().find_map(|host| {
        let data = host.runtime.etcd().filter(|data| Arc::ptr_eq(&data.cluster, cluster))?;
        (host.runtime.serves_api() && cluster.etcd.leader_of(data.member).is_some()).then_some(data.member)
    })
}

fn text(node: &Value, key: &str) -> Option<String> {
    node["metadata"]["annotations"][key].as_str().map(str::to_owned)
}

/// The annotation that removes a member, and Nodes that are deleted.
fn members(site: &Site, cluster: &Arc<Cluster>, by: u64) {
    let distro = cluster.distro;
    let (remove, removed, name) = (
        distro.annotation("remove"),
        distro.annotation("removed-node-name"),
        distro.annotation("node-name"),
    );
    for object in cluster.store().list(&kinds::NODES, None).1 {
        let Some(node) = object["metadata"]["name"].as_str() else {
            continue;
        };
        let key = Key::new(&kinds::NODES, "", node);
        let member = text(&object, &name);
        if text(&object, &remove).as_deref() == Some("true") {
            // A request on a node that still carries an earlier removal is taken for done.
            let gone =
                text(&object, &removed).is_none() && member.as_ref().is_some_and(|member| remove_member(cluster, by, member));
            let _ = cluster.store().update(&key, |node| {
                let annotations = &mut node["metadata"]["annotations"];
                let map = annotations.as_object_mut();
                let Some(map) = map else { return Ok(()) };
                map.shift_remove(&remove);
                let eaten = map.shift_remove(&removed).is_some();
                if gone && !eaten {
                    map.shift_remove(&name);
                    map.shift_remove(&distro.annotation("node-address"));
                    map.insert(removed.clone(), json!(member));
                }
                Ok(())
            });
        }
        if !object["metadata"]["deletionTimestamp"].is_null() {
            finish_deletion(site, cluster, by, &key, member.as_deref());
        }
    }
}

fn remove_member(cluster: &Cluster, by: u64, name: &str) -> bool {
    let Some(victim) = cluster.etcd.members().into_iter().find(|member| member.name == name) else {
        return true;
    };
    // A member that is asked to remove itself hands over first; the last voter is refused by etcd.
    let others = cluster
        .etcd
        .members()
        .into_iter()
        .find(|member| member.id != victim.id && member.running && !member.learner);
    let by = if by == victim.id {
        others.map_or(by, |other| other.id)
    } else {
        by
    };
    cluster.etcd.remove(by, victim.id).is_ok()
}

fn finish_deletion(site: &Site, cluster: &Arc<Cluster>, by: u64, key: &Key, member: Option<&str>) {
    if member.is_some_and(|member| !remove_member(cluster, by, member)) {
        return;
    }
    let _ = cluster.store().update(key, |node| {
        node["metadata"]["finalizers"] = Value::Null;
        Ok(())
    });
    let secret = format!("{}.node-password.{}", key.name, cluster.distro.name());
    let _ = cluster.store().delete(&Key::new(&kinds::SECRETS, "kube-system", &secret));
    objects::delete_lease(cluster.store(), &key.name);
    // A kubelet that still runs registers its node again when it is restarted; until then it has none.
    cluster.lock().kubelets.remove(&key.name);
    let _ = site;
}

/// `EtcdIsVoter`, written by the leader on Nodes with the etcd annotation.
fn voters(site: &Site, cluster: &Cluster) {
    let name = cluster.distro.annotation("node-name");
    let members = cluster.etcd.members();
    let now = objects::now(site.wall);
    for object in cluster.store().list(&kinds::NODES, None).1 {
        let (Some(node), Some(member)) = (object["metadata"]["name"].as_str(), text(&object, &name)) else {
            continue;
        };
        let (status, reason) = match members.iter().find(|known| known.name == member) {
            Some(known) if known.learner => ("False", "MemberIsLearner"),
            Some(_) => ("True", "MemberNotLearner"),
            None => ("False", "NotAMember"),
        };
        let _ = cluster.store().update(&Key::new(&kinds::NODES, "", node), |node| {
            let Some(conditions) = node["status"]["conditions"].as_array_mut() else { return Ok(()) };
            match conditions.iter_mut().find(|condition| condition["type"] == "EtcdIsVoter") {
                Some(condition) if condition["status"] == status && condition["reason"] == reason => {}
                Some(condition) => (condition["status"], condition["reason"]) = (json!(status), json!(reason)),
                None => conditions.push(json!({"type": "EtcdIsVoter", "status": status, "reason": reason, "message": "Node is a voting member of the etcd cluster", "lastHeartbeatTime": now, "lastTransitionTime": now})),
            }
            Ok(())
        });
    }
}

/// One pod per node that a DaemonSet may run on.
fn daemon_sets(site: &Site, cluster: &Cluster) {
    let store = cluster.store();
    let nodes = store.list(&kinds::NODES, None).1;
    let now = objects::now(site.wall);
    for set in store.list(&kinds::DAEMON_SETS, None).1 {
        let (Some(name), Some(namespace)) = (set["metadata"]["name"].as_str(), set["metadata"]["namespace"].as_str()) else {
            continue;
        };
        let mut count = 0;
        for node in &nodes {
            let Some(node_name) = node["metadata"]["name"].as_str() else {
                continue;
            };
            let key = Key::new(&kinds::PODS, namespace, &format!("{name}-{node_name}"));
            if fits(&set["spec"]["template"]["spec"], node) {
                count += 1;
                if store.get(&key).is_none() {
                    objects::write_daemon_pod(store, &set, &key, node, &now);
                }
            } else if store.get(&key).is_some() {
                let _ = store.delete(&key);
            }
        }
        let status = json!({"currentNumberScheduled": count, "desiredNumberScheduled": count, "numberAvailable": count, "numberMisscheduled": 0, "numberReady": count, "updatedNumberScheduled": count});
        let _ = store.update(&Key::new(&kinds::DAEMON_SETS, namespace, name), |set| {
            set["status"] = status.clone();
            Ok(())
        });
    }
}

/// Whether a pod of this spec may run on a node: selector, required affinity, taints.
fn fits(pod: &Value, node: &Value) -> bool {
    let labels = &node["metadata"]["labels"];
    let selected = pod["nodeSelector"]
        .as_object()
        .into_iter()
        .flatten()
        .all(|(key, value)| labels[key] == *value);
    let terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].as_array();
    let wanted = terms.is_none_or(|terms| {
        terms.iter().any(|term| {
            term["matchExpressions"]
                .as_array()
                .into_iter()
                .flatten()
                .all(|expression| holds(expression, labels))
        })
    });
    let tolerations: Vec<&Value> = pod["tolerations"].as_array().into_iter().flatten().collect();
    let tolerated = node["spec"]["taints"].as_array().into_iter().flatten().all(|taint| {
        // The DaemonSet controller tolerates what says that a node is not ready.
        let key = taint["key"].as_str().unwrap_or_default();
        key.starts_with("node.kubernetes.io/")
            || tolerations.iter().any(|toleration| {
                let same_key = toleration["key"].is_null() || toleration["key"] == taint["key"];
                let same_value = toleration["operator"] == "Exists" || toleration["value"] == taint["value"];
                let same_effect = toleration["effect"].is_null() || toleration["effect"] == taint["effect"];
                same_key && same_value && same_effect
            })
    });
    selected && wanted && tolerated
}

fn holds(expression: &Value, labels: &Value) -> bool {
    let value = &labels[expression["key"].as_str().unwrap_or_default()];
    let listed = || expression["values"].as_array().is_some_and(|values| values.contains(value));
    match expression["operator"].as_str() {
        Some("In") => listed(),
        Some("NotIn") => !listed(),
        Some("Exists") => !value.is_null(),
        Some("DoesNotExist") => value.is_null(),
        _ => false,
    }
}

/// Charts and workloads that every server brings.
pub(super) fn deploy_packaged(host: &Host, distro: Distro, config: &Config, cluster: &Cluster) {
    let store = cluster.store();
    let now = objects::now(host.site.wall);
    let disabled = config.list("disable");
    let names: Vec<String> = match distro {
        Distro::K3s => vec!["coredns".to_owned(), "metrics-server".to_owned(), "traefik".to_owned()],
        Distro::Rke2 => {
            let cni = config.list("cni").first().cloned().unwrap_or_else(|| "canal".to_owned());
            let mut charts = vec!["rke2-coredns".to_owned(), "rke2-metrics-server".to_owned()];
            if cni != "none" {
                charts.push(format!("rke2-{cni}"));
                objects::create(
                    store,
                    &Key::new(&kinds::DAEMON_SETS, "kube-system", &format!("rke2-{cni}")),
                    json!({"spec": {"template": {"spec": {"hostNetwork": true, "tolerations": [{"operator": "Exists"}]}}}, "status": {}}),
                    &now,
                );
            }
            charts
        }
    };
    for name in names.iter().filter(|name| !disabled.contains(name)) {
        objects::create(
            store,
            &Key::new(&kinds::HELM_CHARTS, "kube-system", name),
            json!({"spec": {"chart": name}, "status": {"jobName": format!("helm-install-{name}")}}),
            &now,
        );
    }
    objects::create(
        store,
        &Key::new(&kinds::DEPLOYMENTS, "kube-system", "coredns"),
        json!({"spec": {"replicas": 1}, "status": {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}}),
        &now,
    );
}

/// `POST /db/snapshot`
pub(super) async fn snapshot(host: &Arc<Host>, cluster: &Cluster, node: &str, asked: &Value) -> Response {
    let snapshots = format!("{}/server/db/snapshots", cluster.distro.data());
    match asked["operation"].as_str() {
        Some("save") => {
            host.pass(Duration::from_millis(300)).await;
            let base = asked["name"][0].as_str().unwrap_or("on-demand");
            let name = format!("{base}-{node}-{}", host.now());
            let dump: Arc<Value> = Arc::new(cluster.store().dump());
            host.fs.attach(&format!("{snapshots}/{name}"), dump, host.now());
            let object = json!({
                "spec": {"location": format!("file://{snapshots}/{name}"), "nodeName": node, "snapshotName": name},
                "status": {"readyToUse": true},
            });
            let key = Key::new(&kinds::SNAPSHOT_FILES, "", &format!("local-{name}").to_lowercase());
            objects::create(cluster.store(), &key, object, &objects::now(host.site.wall));
            axum::Json(json!({"created": [name]})).into_response()
        }
        Some("list") => {
            let items: Vec<Value> = cluster
                .store()
                .list(&kinds::SNAPSHOT_FILES, None)
                .1
                .iter()
                .map(|item| (**item).clone())
                .collect();
            axum::Json(json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items})).into_response()
        }
        _ => supervisor::status(StatusCode::BAD_REQUEST, "BadRequest", "operation not supported"),
    }
}
