//! Claims that get a volume, and volumes that are attached to the node of their pod.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::kinds;
use super::nodes::is_out_of_service;
use super::{Round, is_deleting, key_of, text};

const ATTACHED_AFTER: Duration = Duration::from_secs(2);
const DETACHED_AFTER: Duration = Duration::from_secs(2);
/// A volume of a dead kubelet is detached by force after this time.
const FORCED_AFTER: Duration = Duration::from_secs(360);

pub(super) fn run(round: &mut Round<'_>) {
    let used = used_volumes(round);
    for (volume, node) in &used {
        attach(round, volume, node);
    }
    for attachment in round.list(&kinds::VOLUME_ATTACHMENTS) {
        let name = text(&attachment["metadata"]["name"]).to_owned();
        let volume = text(&attachment["spec"]["source"]["persistentVolumeName"]).to_owned();
        let node = text(&attachment["spec"]["nodeName"]).to_owned();
        if used.contains(&(volume, node.clone())) && !is_deleting(&attachment) {
            round.forget(&format!("unused {name}"));
            attached(round, &attachment, &name);
        } else if text(&attachment["metadata"]["annotations"]["mainstay-sim/made-by"]) == "attach-detach"
            || is_deleting(&attachment)
        {
            detach(round, &attachment, &name, &node);
        }
    }
}

/// Volumes and the nodes that pods use them on; claims of scheduled pods are bound here.
fn used_volumes(round: &mut Round<'_>) -> BTreeSet<(String, String)> {
    let mut used = BTreeSet::new();
    for pod in round.list(&kinds::PODS) {
        let Some(node) = pod["spec"]["nodeName"].as_str() else {
            continue;
        };
        let namespace = text(&pod["metadata"]["namespace"]);
        for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
            let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() else {
                continue;
            };
            if let Some(bound) = bind(round, namespace, claim) {
                used.insert((bound, node.to_owned()));
            }
        }
    }
    used
}

fn bind(round: &mut Round<'_>, namespace: &str, name: &str) -> Option<String> {
    let claim = round.get(&kinds::PERSISTENT_VOLUME_CLAIMS, namespace, name)?;
    if let Some(volume) = claim["spec"]["volumeName"].as_str() {
        return Some(volume.to_owned());
    }
    let class = round.get(&kinds::STORAGE_CLASSES, "", text(&claim["spec"]["storageClassName"]))?;
    let volume = format!("pvc-{}", text(&claim["metadata"]["uid"]));
    let object = json!({
        "metadata": {"name": volume, "annotations": {"pv.kubernetes.io/provisioned-by": class["provisioner"]}},
        "spec": {"csi": {"driver": class["provisioner"], "volumeHandle": volume}, "storageClassName": class["metadata"]["name"], "capacity": claim["spec"]["resources"]["requests"],
            "persistentVolumeReclaimPolicy": "Delete", "claimRef": {"namespace": namespace, "name": name, "uid": claim["metadata"]["uid"]}},
        "status": {"phase": "Bound"},
    });
    round.create(&kinds::PERSISTENT_VOLUMES, object);
    round.change(&claim, &kinds::PERSISTENT_VOLUME_CLAIMS, |claim| {
        claim["spec"]["volumeName"] = json!(volume);
        claim["status"]["phase"] = json!("Bound");
    });
    Some(volume)
}

fn attachment_name(volume: &str, node: &str) -> String {
    let digest = <sha2::Sha256 as sha2::Digest>::digest(format!("{volume}{node}"));
    format!("csi-{}", hex::encode(digest))
}

fn attach(round: &Round<'_>, volume: &str, node: &str) {
    let others = round.list(&kinds::VOLUME_ATTACHMENTS);
    // A volume for one node is attached elsewhere only after it was detached.
    if others
        .iter()
        .any(|one| one["spec"]["source"]["persistentVolumeName"] == volume)
    {
        return;
    }
    let driver = round
        .get(&kinds::PERSISTENT_VOLUMES, "", volume)
        .map(|volume| volume["spec"]["csi"]["driver"].clone());
    let object = json!({
        "metadata": {"name": attachment_name(volume, node), "annotations": {"mainstay-sim/made-by": "attach-detach"}, "finalizers": ["external-attacher/csi"]},
        "spec": {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": volume}}, "status": {"attached": false},
    });
    round.create(&kinds::VOLUME_ATTACHMENTS, object);
}

fn attached(round: &mut Round<'_>, attachment: &Value, name: &str) {
    if attachment["status"]["attached"] != true && round.after(&format!("attach {name}"), ATTACHED_AFTER) {
        round.change(attachment, &kinds::VOLUME_ATTACHMENTS, |one| {
            one["status"]["attached"] = json!(true);
        });
    }
}

fn detach(round: &mut Round<'_>, attachment: &Value, name: &str, node: &str) {
    let object = round.get(&kinds::NODES, "", node);
    let forced = object.as_ref().is_none_or(|node| is_out_of_service(node));
    let wait = if forced || (round.hooks.is_alive)(node) {
        DETACHED_AFTER
    } else {
        FORCED_AFTER
    };
    if !is_deleting(attachment) && !round.after(&format!("unused {name}"), Duration::ZERO) {
        return;
    }
    if !round.after(&format!("unused {name}"), wait) {
        if !is_deleting(attachment) && (forced || (round.hooks.is_alive)(node)) {
            let _ = round
                .store
                .mark_deleted(&key_of(attachment, &kinds::VOLUME_ATTACHMENTS), &round.now);
        }
        return;
    }
    for key in ["unused", "attach"] {
        round.forget(&format!("{key} {name}"));
    }
    let _ = round.store.delete(&key_of(attachment, &kinds::VOLUME_ATTACHMENTS));
}

/// Whether every volume of a pod is attached to its node.
pub(super) fn are_attached(round: &Round<'_>, pod: &Value) -> bool {
    let namespace = text(&pod["metadata"]["namespace"]);
    let node = text(&pod["spec"]["nodeName"]);
    let claims = pod["spec"]["volumes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str());
    let mut names = claims.map(|claim| round.get(&kinds::PERSISTENT_VOLUME_CLAIMS, namespace, claim));
    names.all(|claim| {
        let volume = claim.as_ref().and_then(|claim| claim["spec"]["volumeName"].as_str());
        volume.is_some_and(|volume| {
            round
                .get(&kinds::VOLUME_ATTACHMENTS, "", &attachment_name(volume, node))
                .is_some_and(|one| one["status"]["attached"] == true)
        })
    })
}
