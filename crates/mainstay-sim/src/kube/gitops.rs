//! Flux and Argo CD: they read a repository, report it, and take over the releases that they are told of.

use std::time::Duration;

use serde_json::{Value, json};

use super::control::{Round, condition, is_deleting, set_condition, text};
use super::helm::release;
use super::kinds::{self, Kind};

/// How long a first sync takes.
const SYNCED_AFTER: Duration = Duration::from_secs(3);
/// How often a repository that cannot be read is asked again.
const ASKED_AGAIN: Duration = Duration::from_secs(60);
const REVISION: &str = "main@sha1:0123456789abcdef0123456789abcdef01234567";

pub(crate) fn run(round: &mut Round<'_>) {
    let custom = kinds::custom(round.store);
    let find = |group: &str, plural: &str| {
        custom
            .iter()
            .copied()
            .find(|kind| kind.group == group && kind.plural == plural)
    };
    let flux = "fluxcd.controlplane.io";
    if let Some(kind) = find(flux, "fluxinstances").filter(|_| works(round, "flux-operator")) {
        for instance in round.list(kind) {
            flux_instance(round, kind, &instance, &custom);
        }
    }
    let flux_runs = works(round, "source-controller");
    for (group, plural) in [
        ("source.toolkit.fluxcd.io", "gitrepositories"),
        ("kustomize.toolkit.fluxcd.io", "kustomizations"),
        ("helm.toolkit.fluxcd.io", "helmreleases"),
    ] {
        let Some(kind) = find(group, plural).filter(|_| flux_runs) else {
            continue;
        };
        for object in round.list(kind) {
            if object["spec"]["suspend"] != true && !is_deleting(&object) {
                toolkit(round, kind, &object, &custom);
            }
        }
    }
    if let Some(kind) = find("argoproj.io", "applications").filter(|_| works(round, "argocd-repo-server")) {
        for application in round.list(kind) {
            self::application(round, kind, &application);
        }
    }
}

/// Whether a controller's Deployment has a pod that runs.
fn works(round: &Round<'_>, deployment: &str) -> bool {
    let all = round.list(&kinds::DEPLOYMENTS);
    all.iter()
        .any(|object| object["metadata"]["name"] == deployment && object["status"]["availableReplicas"].as_u64() > Some(0))
}

fn ready(round: &Round<'_>, kind: &'static Kind, object: &Value, outcome: Result<(&str, String), (&str, String)>) {
    let (word, reason, message) = match outcome {
        Ok((reason, message)) => ("True", reason, message),
        Err((reason, message)) => ("False", reason, message),
    };
    let now = round.now.clone();
    round.change(object, kind, |object| {
        object["status"]["observedGeneration"] = object["metadata"]["generation"].clone();
        set_condition(object, "Ready", word, reason, &message, &now);
    });
}

/// The operator installs the controllers, and a GitRepository and a Kustomization for `spec.sync`.
fn flux_instance(round: &mut Round<'_>, kind: &'static Kind, instance: &Value, custom: &[&'static Kind]) {
    let namespace = text(&instance["metadata"]["namespace"]).to_owned();
    for controller in [
        "source-controller",
        "kustomize-controller",
        "helm-controller",
        "notification-controller",
    ] {
        let labels = json!({"app": controller, "app.kubernetes.io/part-of": "flux"});
        round.create(&kinds::DEPLOYMENTS, json!({
            "metadata": {"name": controller, "namespace": namespace, "labels": labels},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": controller}}, "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "manager", "image": format!("ghcr.io/fluxcd/{controller}:v1.9.4")}]}}},
        }));
    }
    let sync = &instance["spec"]["sync"];
    let find = |plural: &str| custom.iter().copied().find(|kind| kind.plural == plural);
    if let (true, Some(repository), Some(kustomization)) = (sync.is_object(), find("gitrepositories"), find("kustomizations")) {
        let labels =
            json!({"fluxcd.controlplane.io/name": instance["metadata"]["name"], "fluxcd.controlplane.io/namespace": namespace});
        round.create(repository, json!({
            "metadata": {"name": namespace, "namespace": namespace, "labels": labels},
            "spec": {"url": sync["url"], "ref": {"name": sync["ref"]}, "interval": "1m", "secretRef": sync["pullSecret"].as_str().map(|name| json!({"name": name}))},
        }));
        round.create(kustomization, json!({
            "metadata": {"name": namespace, "namespace": namespace, "labels": labels},
            "spec": {"path": sync["path"], "prune": true, "interval": "10m", "sourceRef": {"kind": "GitRepository", "name": namespace}},
        }));
    }
    let name = text(&instance["metadata"]["name"]);
    if name != "flux" {
        ready(
            round,
            kind,
            instance,
            Err((
                "ReconciliationFailed",
                "only one instance named flux is allowed per cluster".to_owned(),
            )),
        );
    } else if works(round, "helm-controller") {
        ready(
            round,
            kind,
            instance,
            Ok(("ReconciliationSucceeded", "Reconciliation finished".to_owned())),
        );
    } else {
        ready(
            round,
            kind,
            instance,
            Err(("Progressing", "Reconciliation in progress".to_owned())),
        );
    }
}

/// A GitRepository, a Kustomization or a HelmRelease.
fn toolkit(round: &mut Round<'_>, kind: &'static Kind, object: &Value, custom: &[&'static Kind]) {
    let namespace = text(&object["metadata"]["namespace"]).to_owned();
    if !round.after(&format!("sync {}", text(&object["metadata"]["uid"])), SYNCED_AFTER) {
        return;
    }
    match kind.plural {
        "gitrepositories" => {
            let url = text(&object["spec"]["url"]).to_owned();
            let outcome = match repository_error(round, object, &namespace, &url) {
                Some((reason, message)) => {
                    round.wake(round.instant + round.pace.scale(ASKED_AGAIN));
                    Err((reason, message))
                }
                None => Ok(("Succeeded", format!("stored artifact for revision '{REVISION}'"))),
            };
            ready(round, kind, object, outcome);
        }
        "kustomizations" => {
            let source = text(&object["spec"]["sourceRef"]["name"]);
            let repository = custom
                .iter()
                .find(|kind| kind.plural == "gitrepositories")
                .and_then(|kind| round.get(kind, &namespace, source));
            let outcome = if repository.as_ref().is_some_and(|one| condition(one, "Ready")) {
                Ok(("ReconciliationSucceeded", format!("Applied revision: {REVISION}")))
            } else {
                Err((
                    "DependencyNotReady",
                    format!("dependency 'GitRepository/{namespace}/{source}' is not ready"),
                ))
            };
            ready(round, kind, object, outcome);
        }
        _ => helm_release(round, kind, object, &namespace),
    }
}

/// Why source-controller cannot read a repository: its secret first, then what the server says.
fn repository_error(round: &Round<'_>, object: &Value, namespace: &str, url: &str) -> Option<(&'static str, String)> {
    if let Some(name) = object["spec"]["secretRef"]["name"].as_str() {
        let Some(secret) = round.get(&kinds::SECRETS, namespace, name) else {
            return Some((
                "AuthenticationFailed",
                format!("failed to get secret '{namespace}/{name}': secrets \"{name}\" not found"),
            ));
        };
        if url.starts_with("ssh://") && secret["data"]["known_hosts"].is_null() {
            return Some((
                "AuthenticationFailed",
                format!(
                    "failed to configure authentication options: invalid '{namespace}/{name}' secret data: required field 'known_hosts'"
                ),
            ));
        }
    }
    round.world.git_error(url).map(|error| {
        (
            "GitOperationFailed",
            format!("failed to checkout and determine revision: {error}"),
        )
    })
}

/// helm-controller takes a release over by an upgrade, and marks what it renders.
fn helm_release(round: &mut Round<'_>, kind: &'static Kind, object: &Value, namespace: &str) {
    let own = text(&object["metadata"]["name"]).to_owned();
    let target = object["spec"]["targetNamespace"].as_str().unwrap_or(namespace).to_owned();
    let prefix = if object["spec"]["targetNamespace"].is_null() {
        String::new()
    } else {
        format!("{target}-")
    };
    let name = object["spec"]["releaseName"]
        .as_str()
        .map_or_else(|| format!("{prefix}{own}"), str::to_owned);
    let storage = object["spec"]["storageNamespace"].as_str().unwrap_or(namespace).to_owned();
    let Some(newest) = release::newest(round.store, &storage, &name) else {
        ready(
            round,
            kind,
            object,
            Err(("ArtifactFailed", format!("Could not load chart of release {target}/{name}"))),
        );
        return;
    };
    let labels = json!({"helm.toolkit.fluxcd.io/name": own, "helm.toolkit.fluxcd.io/namespace": namespace});
    if object["status"]["history"].is_null() {
        let mut next = newest.clone();
        next["version"] = json!(newest["version"].as_u64().unwrap_or_default() + 1);
        next["info"]["description"] = json!("Upgrade complete");
        release::supersede(round, &storage, &newest);
        release::write(round, &storage, &next, "deployed", &json!({}));
        release::mark(round, &newest, |object| {
            for (key, value) in labels.as_object().into_iter().flatten() {
                object["metadata"]["labels"][key] = value.clone();
            }
        });
        round.change(object, kind, |object| {
            object["status"]["history"] = json!([{"name": name, "namespace": target, "version": next["version"]}]);
        });
    }
    ready(
        round,
        kind,
        object,
        Ok((
            "UpgradeSucceeded",
            format!("Helm upgrade succeeded for release {target}/{name}"),
        )),
    );
}

/// Argo CD applies what `helm template` renders: it marks objects and writes no release.
fn application(round: &mut Round<'_>, kind: &'static Kind, application: &Value) {
    let uid = text(&application["metadata"]["uid"]).to_owned();
    if is_deleting(application) || !round.after(&format!("sync {uid}"), SYNCED_AFTER) {
        return;
    }
    let source = &application["spec"]["source"];
    let url = text(&source["repoURL"]).to_owned();
    if let Some(error) = round.world.git_error(&url) {
        round.wake(round.instant + round.pace.scale(ASKED_AGAIN));
        let message = format!("Failed to load target state: failed to generate manifest for source 1 of 1: {error}");
        let condition = json!([{"type": "ComparisonError", "message": message, "lastTransitionTime": round.now}]);
        round.change(application, kind, |object| {
            object["status"] = json!({"sync": {"status": "Unknown"}, "health": {"status": "Healthy"}, "conditions": condition});
        });
        return;
    }
    let namespace = text(&application["spec"]["destination"]["namespace"]).to_owned();
    let app = text(&application["metadata"]["name"]).to_owned();
    if let Some(release) = source["helm"]["releaseName"]
        .as_str()
        .and_then(|name| release::newest(round.store, &namespace, name))
    {
        release::mark(round, &release, |object| {
            let tracking = format!(
                "{app}:{}/{}:{}/{}",
                text(&object["apiVersion"]).split('/').next().unwrap_or_default(),
                text(&object["kind"]),
                text(&object["metadata"]["namespace"]),
                text(&object["metadata"]["name"])
            );
            object["metadata"]["annotations"]["argocd.argoproj.io/tracking-id"] = json!(tracking);
        });
    }
    round.change(application, kind, |object| {
        object["status"] = json!({"sync": {"status": "Synced", "revision": REVISION}, "health": {"status": "Healthy"}});
    });
}
